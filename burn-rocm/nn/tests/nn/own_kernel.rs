//! Kernels of an app's own: the example's op against Burn's composed form and against f64, and what
//! is refused.

use burn_backend::TensorMetadata;
use burn_rocm::kernel::{self, Kernel, KernelSource, Parameter, Work};
use burn_rocm::{RocmDevice, RocmError, RocmTensor, take_last_error};
use burn_rocm_nn::custom::{self, Applied, Gradients, Kept, Op};
use burn_rocm_tests::{FloatDType, FloatTensorOps, IntTensorOps, R, Shape, again, int_dtype, read_float};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use crate::support::*;

#[path = "../../examples/own_kernel.rs"]
mod example;

/// `x tanh(ln(1 + e^x))` and its derivative, in f64.
fn formula(x: f64) -> [f64; 2] {
    let t = x.exp().ln_1p().tanh();
    [x * t, t + x * (1.0 - t * t) / (1.0 + (-x).exp())]
}

#[test]
fn the_examples_op_is_right_forward_and_backward() {
    let random = Random::new();
    for shape in [[1, 1], [3, 5], [64, 257]] {
        let x = uniform(&random, &shape);
        let factor = uniform(&random, &shape);
        let input = tensor::<Ours, 2>(&x, DType::F32).require_grad();
        // A turned view, which the kernel gets packed.
        let turned = input.clone().transpose();
        let y = example::mish(turned).unwrap().transpose();
        let loss = (y.clone() * tensor(&factor, DType::F32)).sum();
        let grad = input.grad(&loss.backward()).unwrap().into_data();
        let y = y.into_data();
        for ((x, factor), (y, grad)) in
            x.iter::<f64>().zip(factor.iter::<f64>()).zip(y.iter::<f64>().zip(grad.iter::<f64>()))
        {
            let (x, factor) = (f64::from(x as f32), f64::from(factor as f32));
            let [value, slope] = formula(x);
            // HIP's and CUDA's expf, log1pf and tanhf are off by up to 2 ulp each. None of the
            // functions makes a relative error greater, and 3 operations round. The slope also
            // subtracts t^2 from 1, so its error is relative to 1 + |x|.
            let unit = f64::from(f32::EPSILON);
            assert!((y - value).abs() <= 10.0 * unit * value.abs(), "mish({x}) = {y}, not {value}");
            let limit = 24.0 * unit * factor.abs() * (1.0 + x.abs());
            assert!((grad - factor * slope).abs() <= limit, "{factor} * mish'({x}) = {grad}");
        }
    }
}

#[test]
fn another_backend_is_refused() {
    let x = Tensor::<Oracle, 1>::from_floats([1.0, 2.0], &Default::default());
    assert!(matches!(example::mish(x), Err(RocmError::Unsupported { op: "mish", .. })));
}

/// The sum of its two inputs. The function makes the second input's gradient from the output's.
#[derive(Debug)]
struct Sum(fn(RocmTensor) -> Option<RocmTensor>);

impl Op<2> for Sum {
    fn names(&self) -> [&'static str; 2] {
        ["sum", "sum_backward"]
    }

    fn reads(&self) -> [bool; 2] {
        [false; 2]
    }

    fn forward(&self, [x, y]: [RocmTensor; 2]) -> Result<Applied, RocmError> {
        Ok((R::float_add(x, y), Vec::new()))
    }

    fn backward(&self, grad: RocmTensor, _: Kept<2>, _: [bool; 2]) -> Gradients<2> {
        Ok([Some(grad.clone()), self.0(grad)])
    }
}

#[test]
fn a_gradient_unlike_its_input_is_refused() {
    type Second = fn(RocmTensor) -> Option<RocmTensor>;
    let ones = || Tensor::<Ours, 2>::ones([2, 3], &Default::default());
    let run = |second: Second, y: Tensor<Ours, 2>| {
        let sum: Tensor<Ours, 2> = custom::apply(Sum(second), [ones().require_grad(), y]).unwrap();
        sum.sum().backward()
    };
    let wrong: [(Second, &str); 2] = [
        (|grad| Some(R::float_reshape(grad, Shape::from([6]))), "[6] of f32 on"),
        (|grad| Some(R::float_cast(grad, FloatDType::F16)), "[2, 3] of f16 on"),
    ];
    for (second, what) in wrong {
        let caught = catch_unwind(AssertUnwindSafe(|| run(second, ones().require_grad())));
        assert!(caught.is_err(), "a gradient was taken: {what}");
        match take_last_error() {
            Some(RocmError::Invalid { op: "sum_backward", expected, found }) => {
                assert!(expected.contains("input 1, [2, 3] of f32 on") && found.contains(what), "{found}");
            }
            other => panic!("{what}: {other:?}"),
        }
        // Nobody wants this gradient.
        run(second, ones());
    }
    run(Some, ones().require_grad());
    // An input may have none.
    run(|_| None, ones().require_grad());
}

const TWICE: KernelSource<'static> = KernelSource {
    name: "twice.hip",
    source: r#"
struct Dims { unsigned long long dims[8]; };
struct Strides { long long strides[8]; };
extern "C" __global__ void twice(size_t n, const float *x, Dims d, Strides s, float factor, float *y) {
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        long long row = (long long)(i / d.dims[1]), column = (long long)(i % d.dims[1]);
        y[i] = factor * x[row * s.strides[0] + column * s.strides[1]];
    }
}
"#,
    headers: &[],
    options: &[],
};

fn twice(device: &RocmDevice) -> Kernel {
    let parameters = [
        Parameter::Number(DType::U64),
        Parameter::View(DType::F32),
        Parameter::Dims,
        Parameter::Strides,
        Parameter::Number(DType::F32),
        Parameter::Output(DType::F32),
    ];
    Kernel::compile(device, &TWICE, "twice", &parameters).unwrap()
}

fn on_device(values: &[f32], shape: [usize; 2]) -> RocmTensor {
    R::float_from_data(TensorData::new(values.to_vec(), shape), &Default::default())
}

#[test]
fn a_view_is_read_where_it_lies() {
    let device = RocmDevice::default();
    let x = R::float_transpose(on_device(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]));
    let mut y = kernel::empty(&device, x.shape(), DType::F32).unwrap();
    let kernel = twice(&device);
    let call = kernel.call(Work::Elements(6)).number(6u64).view(&x).dims(&x).strides(&x).number(2f32);
    // SAFETY: the kernel reads the view's 6 elements by its strides, and writes 6.
    unsafe { call.output(&mut y).launch() }.unwrap();
    assert_eq!(read_float::<R>(y).iter::<f32>().collect::<Vec<_>>(), [2.0, 8.0, 4.0, 10.0, 6.0, 12.0]);
}

#[test]
fn a_block_has_the_shared_memory_that_the_call_gives() {
    let turned = KernelSource {
        name: "turned.hip",
        source: r#"
extern "C" __global__ void turned(const float *x, float *y) {
    extern __shared__ float room[];
    for (int i = threadIdx.x; i < 4; i += blockDim.x) room[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < 4; i += blockDim.x) y[i] = room[3 - i];
}
"#,
        ..TWICE
    };
    let device = RocmDevice::default();
    let x = on_device(&[1.0, 2.0, 3.0, 4.0], [2, 2]);
    let mut y = kernel::empty(&device, x.shape(), DType::F32).unwrap();
    let parameters = [Parameter::Input(DType::F32), Parameter::Output(DType::F32)];
    let kernel = Kernel::compile(&device, &turned, "turned", &parameters).unwrap();
    let threads = device.info().unwrap().wave_size;
    let call = kernel.call(Work::Blocks { blocks: 1, threads, shared_bytes: 16 }).input(&x);
    // SAFETY: the kernel reads and writes 4 elements, and 16 bytes of its shared memory.
    unsafe { call.output(&mut y).launch() }.unwrap();
    assert_eq!(read_float::<R>(y).iter::<f32>().collect::<Vec<_>>(), [4.0, 3.0, 2.0, 1.0]);
}

#[test]
fn wrong_arguments_are_refused_and_change_nothing() {
    let device = RocmDevice::default();
    let (kernel, x) = (twice(&device), on_device(&[1.0, 2.0, 3.0, 4.0], [2, 2]));
    let ints = R::float_into_int(x.clone(), int_dtype(DType::I32));
    let mut y = on_device(&[7.0; 4], [2, 2]);
    let refused = |call: kernel::Call<'_>, expected: &str, found: &str| {
        // SAFETY: it is refused before anything is launched.
        let error = unsafe { call.launch() }.unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(found), "{error}");
    };
    let call = || kernel.call(Work::Elements(4));
    refused(call().number(4u64).view(&x), "6 arguments of twice", "2, without Dims");
    refused(call().number(4u32), "Number(U64) as argument 0 of twice", "Number(U32)");
    refused(call().number(4u64).view(&ints), "View(F32) as argument 1", "View(I32)");
    refused(call().number(4u64).input(&x), "View(F32) as argument 1", "Input(F32)");
    let whole = || call().number(4u64).view(&x).dims(&x).strides(&x).number(2f32);
    refused(whole().output(&mut y).number(1f32), "6 arguments of twice", "another one: Number(F32)");
    let mut shared = x.clone();
    refused(whole().output(&mut shared), "no other tensor shares", "RocmTensor");
    let mut turned = R::float_transpose(on_device(&[7.0; 6], [2, 3]));
    refused(whole().output(&mut turned), "row-major order", "RocmTensor");
    let wave = device.info().unwrap().wave_size;
    for threads in [1 << 20, wave + 1] {
        let work = Work::Blocks { blocks: 1, threads, shared_bytes: 0 };
        let wrong = kernel.call(work).number(4u64).view(&x).dims(&x).strides(&x).number(2f32);
        refused(wrong.output(&mut y), &format!("a multiple of {wave}"), &threads.to_string());
    }
    assert_eq!(read_float::<R>(y).iter::<f32>().collect::<Vec<_>>(), [7.0; 4]);
    assert_eq!(read_float::<R>(x).iter::<f32>().collect::<Vec<_>>(), [1.0, 2.0, 3.0, 4.0]);
}

/// A product that another thread has put off holds its result and its operands. It is enqueued
/// before a kernel writes to one of them.
#[test]
fn an_output_may_belong_to_a_product_of_another_thread() {
    let kernel = twice(&RocmDevice::default());
    let threes = on_device(&[3.0; 40], [8, 5]);
    for of_result in [true, false] {
        std::thread::scope(|scope| {
            let (give, take) = mpsc::channel();
            let (done, wait) = mpsc::channel::<()>();
            scope.spawn(move || {
                let ones = |shape: [usize; 3]| {
                    R::float_ones(Shape::from(shape), &RocmDevice::default(), FloatDType::F32)
                };
                let (x, other) = (ones([2, 3, 4]), ones([2, 3, 5]));
                let product = R::float_matmul(R::float_swap_dims(x.clone(), 1, 2), other);
                give.send((x, product)).unwrap();
                // The thread calls no other op, and does not end.
                let _ = wait.recv();
            });
            let (mut x, mut product) = take.recv().unwrap();
            let (output, n) = if of_result { (&mut product, 40) } else { (&mut x, 24) };
            let call = kernel.call(Work::Elements(n)).number(n as u64).view(&threes).dims(&threes);
            // SAFETY: the kernel reads and writes n elements.
            unsafe { call.strides(&threes).number(2f32).output(output).launch() }.unwrap();
            let read = |tensor| read_float::<R>(tensor).iter::<f32>().collect::<Vec<_>>();
            let expected = if of_result { [1.0, 6.0] } else { [6.0, 3.0] };
            assert_eq!(read(x), [expected[0]; 24]);
            assert_eq!(read(product), [expected[1]; 40]);
            drop(done);
        });
    }
}

/// The CPU device has waves only in lockstep.
#[test]
fn a_refused_launch_marks_no_output_on_the_cpu_device() {
    let environment = [("BURN_ROCM_CPU_WAVE", "32"), ("BURN_ROCM_PROVIDER", "cpu")];
    again(&["--ignored", "--exact", "own_kernel::a_part_of_a_wave"], &environment);
}

#[test]
#[ignore = "needs a process of its own, because a sync reports the faults of the whole device"]
fn a_part_of_a_wave() {
    let device = RocmDevice::default();
    let kernel = twice(&device);
    // The second row is read from a row that the tensor does not have.
    let rows = R::int_from_data(TensorData::new(vec![0i32, 9], [2]), &device);
    let faulty = R::float_select(on_device(&[1.0, 2.0, 3.0, 4.0], [2, 2]), 0, rows);
    let mut y = on_device(&[7.0; 4], [2, 2]);
    let work = Work::Blocks { blocks: 1, threads: 33, shared_bytes: 0 };
    let call = kernel.call(work).number(4u64).view(&faulty).dims(&faulty).strides(&faulty).number(2f32);
    // SAFETY: it is refused before anything is launched.
    let error = unsafe { call.output(&mut y).launch() }.unwrap_err();
    assert!(matches!(error, RocmError::Invalid { .. }), "{error}");
    assert_eq!(read_float::<R>(y).iter::<f32>().collect::<Vec<_>>(), [7.0; 4]);
}

#[test]
fn compilers_messages_name_the_line() {
    let broken = KernelSource {
        name: "broken.hip",
        source: "extern \"C\" __global__ void broken(float *x) {\n    x[0] = nonsense;\n}\n",
        ..TWICE
    };
    let parameters = [Parameter::Output(DType::F32)];
    let error = Kernel::compile(&RocmDevice::default(), &broken, "broken", &parameters).unwrap_err();
    let RocmError::Compilation { log, .. } = &error else { panic!("{error}") };
    assert!(log.contains("broken.hip") && log.contains("nonsense") && log.contains('2'), "{log}");
    let bytes = [Parameter::Number(DType::I8)];
    let error = Kernel::compile(&RocmDevice::default(), &TWICE, "twice", &bytes).unwrap_err();
    assert!(matches!(error, RocmError::Unsupported { .. }), "{error}");
    let many = [Parameter::Dims; 33];
    let error = Kernel::compile(&RocmDevice::default(), &TWICE, "twice", &many).unwrap_err();
    assert!(error.to_string().contains("at most 32 parameters"), "{error}");
}
