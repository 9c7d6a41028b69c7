//! Kernels of an app's own, in HIP C++, on this project's tensors.
//!
//! [`Kernel::compile`] compiles a kernel with the device's own compiler: hipRTC on AMD GPUs, NVRTC
//! on the `cuda` provider, and the machine's C++ compiler on the CPU device. Code objects are cached
//! on disk like those of the built-in kernels. [`Kernel::call`] collects the arguments, and checks
//! each against the kernel's [`Parameter`]s before anything is launched.
//!
//! ```
//! use burn_backend::{DType, TensorMetadata, ops::FloatTensorOps};
//! use burn_rocm::kernel::{self, Kernel, KernelSource, Parameter, Work};
//! use burn_rocm::{Rocm, RocmDevice};
//!
//! const SOURCE: KernelSource<'static> = KernelSource {
//!     name: "halves.hip",
//!     source: r#"
//!         extern "C" __global__ void halves(size_t n, const float *x, float *y) {
//!             size_t step = (size_t)gridDim.x * blockDim.x;
//!             for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
//!                 y[i] = x[i] * 0.5f;
//!         }"#,
//!     headers: &[],
//!     options: &[],
//! };
//!
//! let device = RocmDevice::default();
//! let f32 = DType::F32;
//! let parameters = [Parameter::Number(DType::U64), Parameter::Input(f32), Parameter::Output(f32)];
//! let halves = Kernel::compile(&device, &SOURCE, "halves", &parameters)?;
//!
//! let x = Rocm::<f32>::float_ones([3, 5].into(), &device, f32.into());
//! let mut y = kernel::empty(&device, x.shape(), f32)?;
//! let n = x.len();
//! let call = halves.call(Work::Elements(n)).number(n as u64).input(&x).output(&mut y);
//! // SAFETY: the kernel reads and writes the first n elements.
//! unsafe { call.launch()? };
//! # let data = burn_backend::read_sync(Rocm::<f32>::float_into_data(y)).unwrap();
//! # assert_eq!(data.iter::<f32>().collect::<Vec<_>>(), vec![0.5; 15]);
//! # Ok::<(), burn_rocm::RocmError>(())
//! ```
//!
//! `burn_rocm_nn::custom` gives such a kernel a gradient.
//!
//! # What a kernel must not assume
//!
//! A tensor's first element is aligned to one element only, because a slice may begin anywhere. So
//! a kernel that reads several elements at once has to look at the address.
//!
//! A launch over [`Work::Elements`] or [`Work::Rows`] has any number of blocks and threads, so the
//! kernel loops over its range, as above. On the CPU device a block has one thread, unless
//! `BURN_ROCM_CPU_WAVE` asks for lockstep.

use std::sync::Arc;

use burn_std::{DType, Shape};
use hip::{Error, Grid};

use crate::arg::Arg;
use crate::device::RocmDevice;
use crate::dtype::kernel_type;
use crate::error::invalid;
use crate::ops::copy::contiguous;
use crate::tensor::RocmTensor;
use crate::waiting::enqueue_readers;

pub use hip::Program as KernelSource;

/// The most dims that [`Parameter::Dims`] and [`Parameter::Strides`] hold.
pub const MAX_DIMS: usize = 8;

/// What a kernel takes as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// `const T *`: the elements of a tensor of this dtype in row-major order. A tensor that has
    /// another order in memory is copied first.
    Input(DType),
    /// `const T *`: the first element of a tensor of this dtype, whose elements may lie anywhere.
    /// [`Parameter::Strides`] tells the kernel where.
    View(DType),
    /// `T *`: the elements of a tensor of this dtype in row-major order, which the kernel writes.
    Output(DType),
    /// A number of this dtype by value: `f64`, `f32`, `i64`, `i32`, `u64` or `u32`.
    Number(DType),
    /// `struct { unsigned long long dims[8]; }` by value: a tensor's sizes, followed by ones.
    Dims,
    /// `struct { long long strides[8]; }` by value: a tensor's strides in elements, followed by
    /// zeros.
    Strides,
}

/// The range that a launch covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// This many elements, which all threads of the launch share in a loop.
    Elements(usize),
    /// This many rows, one block each in a loop. A block's threads share a row's `length` elements.
    Rows {
        /// The number of rows.
        rows: usize,
        /// The elements of a row.
        length: usize,
    },
    /// Exactly these blocks and threads.
    Blocks {
        /// Blocks.
        blocks: u32,
        /// Threads of a block: a multiple of the device's wave size.
        threads: u32,
        /// Bytes of dynamic shared memory of a block.
        shared_bytes: u32,
    },
}

/// A new tensor for a kernel to write. Its elements are uninitialised.
///
/// # Errors
/// `OutOfMemory`; `Unsupported` for a quantised dtype; an error of the device.
pub fn empty(device: &RocmDevice, shape: impl Into<Shape>, dtype: DType) -> Result<RocmTensor, Error> {
    RocmTensor::empty(&device.open()?, shape, dtype)
}

/// A kernel that is compiled and loaded onto one device.
#[derive(Clone)]
pub struct Kernel {
    kernel: Arc<hip::Kernel>,
    device: Arc<hip::Device>,
    name: Arc<str>,
    parameters: Arc<[Parameter]>,
}

impl core::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Kernel").field("name", &self.name).field("parameters", &self.parameters).finish()
    }
}

const OP: &str = "kernel";

impl Kernel {
    /// Compiles a kernel of `source` for `device`, or loads it from the code cache. `name` is that of
    /// an `extern "C"` kernel or an instantiation such as `scaled<float, 4>`. `parameters` are those
    /// of the kernel, in their order.
    ///
    /// # Errors
    /// `Compilation`, with the compiler's messages and their line numbers in `source`, if the source
    /// does not compile, if it has no such kernel, or if the CPU device finds no C++ compiler;
    /// `Unsupported` for a parameter of a dtype that kernels don't have, or a number of a dtype other
    /// than those that [`Parameter::Number`] lists; `Invalid` for more than 32 parameters.
    pub fn compile(
        device: &RocmDevice,
        source: &KernelSource<'_>,
        name: &str,
        parameters: &[Parameter],
    ) -> Result<Self, Error> {
        if parameters.len() > hip::MAX_ARGUMENTS {
            let expected = format!("at most {} parameters", hip::MAX_ARGUMENTS);
            return invalid(OP, expected, format!("{} of {name}", parameters.len()));
        }
        for &parameter in parameters {
            match parameter {
                Parameter::Input(dtype) | Parameter::View(dtype) | Parameter::Output(dtype) => {
                    kernel_type(dtype)?;
                }
                Parameter::Number(
                    DType::F64 | DType::F32 | DType::I64 | DType::I32 | DType::U64 | DType::U32,
                ) => {}
                Parameter::Number(dtype) => return crate::error::unsupported("a kernel's number", dtype),
                Parameter::Dims | Parameter::Strides => {}
            }
        }
        let device = device.open()?;
        let kernel = device.kernel(source, name)?;
        Ok(Self { kernel, device, name: name.into(), parameters: parameters.into() })
    }

    /// The name with which the kernel was compiled.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A call of the kernel over `work`. Add its arguments in the order of the parameters, then
    /// [`launch`](Call::launch) it.
    pub fn call<'a>(&'a self, work: Work) -> Call<'a> {
        Call { kernel: self, work, arguments: Vec::with_capacity(self.parameters.len()), wrong: None }
    }
}

/// A number for a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Number(Arg);

macro_rules! numbers {
    ($($ty:ty => $arg:ident),*) => {$(
        impl From<$ty> for Number {
            fn from(value: $ty) -> Self {
                Self(Arg::$arg(value))
            }
        }
    )*};
}
numbers!(f64 => F64, f32 => F32, i64 => I64, i32 => I32, u64 => U64, u32 => U32);

impl Number {
    fn dtype(&self) -> Option<DType> {
        Some(match self.0 {
            Arg::F64(_) => DType::F64,
            Arg::F32(_) => DType::F32,
            Arg::I64(_) => DType::I64,
            Arg::I32(_) => DType::I32,
            Arg::U64(_) => DType::U64,
            Arg::U32(_) => DType::U32,
            _ => return None,
        })
    }
}

enum Argument<'a> {
    /// Holds a copy if the tensor had to be packed.
    Input(RocmTensor),
    Output(&'a RocmTensor),
    Value(Arg),
}

/// The arguments of a launch. A wrong argument is reported by [`launch`](Self::launch).
#[must_use = "nothing is launched until `launch`"]
pub struct Call<'a> {
    kernel: &'a Kernel,
    work: Work,
    arguments: Vec<Argument<'a>>,
    wrong: Option<Error>,
}

impl<'a> Call<'a> {
    /// A tensor for [`Parameter::Input`].
    pub fn input(self, tensor: &RocmTensor) -> Self {
        let found = |dtype| Parameter::Input(dtype);
        self.tensor(tensor, found, |tensor| contiguous(tensor.clone()).map(Argument::Input))
    }

    /// A tensor for [`Parameter::View`].
    pub fn view(self, tensor: &RocmTensor) -> Self {
        self.tensor(tensor, Parameter::View, |tensor| Ok(Argument::Input(tensor.clone())))
    }

    /// A tensor for [`Parameter::Output`]. Its elements must be in row-major order, and no other
    /// tensor may share them, because that one would change too. If it is a graph's result, the next
    /// replay overwrites them.
    pub fn output(self, tensor: &'a mut RocmTensor) -> Self {
        let writable = is_alone(tensor);
        let tensor: &'a RocmTensor = tensor;
        self.tensor(tensor, Parameter::Output, |tensor| match writable {
            true => Ok(Argument::Output(tensor)),
            false => {
                // The product that writes the tensor may be part of another thread's capture.
                tensor.settle()?;
                let expected = "an output in row-major order that no other tensor shares";
                invalid(OP, expected, format!("{tensor:?}"))
            }
        })
    }

    /// A number for [`Parameter::Number`]. Its Rust type decides its dtype.
    pub fn number(self, number: impl Into<Number>) -> Self {
        let number = number.into();
        match number.dtype() {
            Some(dtype) => self.add(Parameter::Number(dtype), |_| Ok(Argument::Value(number.0))),
            None => self,
        }
    }

    /// A tensor's sizes for [`Parameter::Dims`].
    pub fn dims(self, tensor: &RocmTensor) -> Self {
        self.add(Parameter::Dims, |_| {
            let mut all = [1; MAX_DIMS];
            for (to, &from) in places(&mut all, tensor)?.iter_mut().zip(tensor.dims()) {
                *to = from as u64;
            }
            Ok(Argument::Value(Arg::U64x8(all)))
        })
    }

    /// A tensor's strides for [`Parameter::Strides`].
    pub fn strides(self, tensor: &RocmTensor) -> Self {
        self.add(Parameter::Strides, |_| {
            let mut all = [0; MAX_DIMS];
            for (to, &from) in places(&mut all, tensor)?.iter_mut().zip(tensor.layout().strides()) {
                *to = from as i64;
            }
            Ok(Argument::Value(Arg::I64x8(all)))
        })
    }

    fn tensor<'t>(
        self,
        tensor: &'t RocmTensor,
        parameter: fn(DType) -> Parameter,
        argument: impl FnOnce(&'t RocmTensor) -> hip::Result<Argument<'a>>,
    ) -> Self {
        self.add(parameter(tensor.dtype_of()), |device| {
            if !Arc::ptr_eq(device, tensor.hip_device()) {
                let expected = format!("tensors on {}", RocmDevice::new(device.info().index));
                return invalid(OP, expected, tensor.rocm_device().to_string());
            }
            argument(tensor)
        })
    }

    /// Adds an argument if it is what the kernel's next parameter takes.
    fn add(
        mut self,
        found: Parameter,
        argument: impl FnOnce(&Arc<hip::Device>) -> hip::Result<Argument<'a>>,
    ) -> Self {
        if self.wrong.is_some() {
            return self;
        }
        let (at, name) = (self.arguments.len(), self.kernel.name());
        let argument = match self.kernel.parameters.get(at) {
            Some(&expected) if expected == found => argument(&self.kernel.device),
            Some(expected) => {
                invalid(OP, format!("{expected:?} as argument {at} of {name}"), format!("{found:?}"))
            }
            None => invalid(OP, format!("{at} arguments of {name}"), format!("another one: {found:?}")),
        };
        match argument {
            Ok(argument) => self.arguments.push(argument),
            Err(error) => self.wrong = Some(error),
        }
        self
    }

    /// Enqueues the kernel after all earlier ops on the device, or captures it.
    ///
    /// # Safety
    /// The kernel's declaration has the parameters with which it was compiled. With these arguments
    /// it reads only elements of its inputs and views, writes only elements of its outputs, and
    /// ends.
    ///
    /// # Errors
    /// `Invalid` for an argument that is not what its parameter takes, for a missing argument, for
    /// tensors of another device, for an output that is shared or not in row-major order, for a
    /// tensor of more than 8 dims whose dims or strides are passed, and for a block size that the
    /// device does not have or that is not a multiple of its wave size; the error of an op that
    /// computes an input; an error of the driver.
    pub unsafe fn launch(self) -> Result<(), Error> {
        let Self { kernel, work, arguments, wrong } = self;
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        if let Some(missing) = kernel.parameters.get(arguments.len()) {
            let expected = format!("{} arguments of {}", kernel.parameters.len(), kernel.name);
            return invalid(OP, expected, format!("{}, without {missing:?}", arguments.len()));
        }
        let (grid, shared_bytes) = grid(&kernel.device, work)?;
        let mut launch = kernel.device.launch_kernel(&kernel.kernel)?;
        // An output takes over the faults of all inputs, and the kernel's own order may differ.
        for argument in &arguments {
            match argument {
                Argument::Input(tensor) => {
                    tensor.settle()?;
                    launch.reads(tensor.buffer());
                }
                Argument::Output(tensor) => {
                    tensor.settle()?;
                    launch.reads(tensor.buffer());
                }
                Argument::Value(_) => {}
            }
        }
        for argument in &arguments {
            launch = match argument {
                Argument::Input(tensor) => launch.buffer(tensor.buffer(), tensor.byte_offset()),
                Argument::Output(tensor) => launch.output(tensor.buffer(), tensor.byte_offset()),
                &Argument::Value(value) => value.push(launch),
            };
        }
        // SAFETY: the arguments are what the parameters take, and the caller says that these are
        // the kernel's and that it stays inside the tensors.
        unsafe { launch.submit(grid, shared_bytes) }
    }
}

/// Whether the tensor is in row-major order and no other tensor shares its elements.
fn is_alone(tensor: &mut RocmTensor) -> bool {
    let is_written_alone = |tensor: &mut RocmTensor| tensor.is_contiguous() && tensor.is_written_alone();
    if is_written_alone(tensor) {
        return true;
    }
    let Ok(memory) = tensor.shared_buffer() else { return false };
    // A product that another thread put off may still have to read the tensor. If it fails, reads of
    // its result report the error.
    let _ = enqueue_readers(|buffer| std::ptr::eq(buffer, Arc::as_ptr(memory)));
    is_written_alone(tensor)
}

/// The places of the tensor's dims among `all`.
fn places<'p, T>(all: &'p mut [T; MAX_DIMS], tensor: &RocmTensor) -> hip::Result<&'p mut [T]> {
    let rank = tensor.dims().len();
    match all.get_mut(..rank) {
        Some(places) => Ok(places),
        None => invalid(OP, format!("at most {MAX_DIMS} dims"), format!("{rank}")),
    }
}

fn grid(device: &hip::Device, work: Work) -> hip::Result<(Grid, u32)> {
    match work {
        Work::Elements(0) | Work::Rows { rows: 0, .. } => Ok((Grid { blocks: 0, ..device.grid_bytes(0) }, 0)),
        // As for elements of four bytes.
        Work::Elements(count) => Ok((device.grid_bytes(count.saturating_mul(4)), 0)),
        Work::Rows { rows, length } => Ok((device.grid_rows(rows, length), 0)),
        Work::Blocks { blocks, threads, shared_bytes } => {
            let (most, wave) = (device.info().max_threads_per_block, device.info().warp_size);
            if threads == 0 || threads > most || !threads.is_multiple_of(wave) {
                let expected = format!("blocks of 1 to {most} threads, a multiple of {wave}");
                return invalid(OP, expected, threads.to_string());
            }
            Ok((Grid { blocks, threads }, shared_bytes))
        }
    }
}
