//! Compares modules of `burn-rocm-nn` with what Burn composes. Both run on one backend in one
//! process and take turns.

mod activation;
mod attention;
mod conv;
mod launches;
mod layer;
mod loss;
mod norm;
mod optim;
mod pool;
mod train;

use burn::backend::Autodiff;
use burn::module::AutodiffModule;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Distribution, Tensor};
use burn_rocm::{Rocm, RocmDevice};
use burn_rocm_nn::amp::Precision;

use crate::Options;
use crate::gpu::cases::{Bar, Work};
use crate::gpu::ceiling::Ceiling;
use crate::gpu::report::{self, Line, Measured};
use crate::gpu::time::{self, Clock};

pub(crate) use launches::launches;

/// The backend of the rows.
pub(crate) type B = Autodiff<Rocm>;

/// The body that is timed.
pub(crate) type Body = Box<dyn FnMut()>;

type Make = Box<dyn FnOnce(&RocmDevice) -> [Body; 2]>;

/// One row: the same work composed and fused.
pub(crate) struct Case {
    name: String,
    work: Work,
    bar: Bar,
    make: Make,
}

impl Case {
    /// A row of two bodies, which are made only when the row is measured.
    pub(crate) fn new(
        name: impl Into<String>,
        make: impl FnOnce(&RocmDevice) -> [Body; 2] + 'static,
    ) -> Self {
        Self { name: name.into(), work: Work::Step, bar: Bar::None, make: Box::new(make) }
    }

    /// Reports the row as a rate. `bytes` is the number of bytes that must be read or written, and
    /// `bar` is the bar for a GPU.
    pub(crate) fn moves(self, bytes: f64, bar: Bar) -> Self {
        Self { work: Work::Bytes(bytes), bar, ..self }
    }

    /// A row of two functions of one tensor with uniform values, forward and backward.
    pub(crate) fn unary<const D: usize>(
        name: impl Into<String>,
        shape: [usize; D],
        dtype: DType,
        composed: fn(Tensor<B, D>) -> Tensor<B, D>,
        fused: fn(Tensor<B, D>) -> Tensor<B, D>,
    ) -> Self {
        Self::new(
            format!("{} {shape:?} {}, forward and backward", name.into(), dtype.name()),
            move |device| [composed, fused].map(|op| step(uniform(shape, dtype, device), op)),
        )
    }
}

/// The 16-bit floats. The hot ops have rows for them too.
pub(crate) const HALVES: [DType; 2] = [DType::F16, DType::BF16];

/// The bytes of one pass over a tensor: of reading or writing it once.
pub(crate) fn pass<const D: usize>(shape: [usize; D], dtype: DType) -> f64 {
    (shape.iter().product::<usize>() * dtype.size()) as f64
}

/// Values in -1..1.
pub(crate) fn uniform<const D: usize>(shape: [usize; D], dtype: DType, device: &RocmDevice) -> Tensor<B, D> {
    Tensor::<B, D>::random(shape, Distribution::Uniform(-1.0, 1.0), device).cast(dtype)
}

/// A body that runs `call` and holds its result until the deferred ops are launched.
pub(crate) fn held<R>(device: &RocmDevice, call: impl Fn() -> R + 'static) -> Body {
    let device = device.clone();
    Box::new(move || {
        let result = call();
        <Rocm as Clock>::launch(&device);
        drop(result);
    })
}

/// A function of a tensor, forward and backward.
pub(crate) fn step<const D: usize, const OUT: usize>(
    x: Tensor<B, D>,
    op: impl Fn(Tensor<B, D>) -> Tensor<B, OUT> + 'static,
) -> Body {
    held(&x.device(), move || {
        let leaf = x.clone().detach().require_grad();
        let out = op(leaf.clone());
        let grads = out.backward();
        (leaf.grad(&grads), grads, out)
    })
}

/// The module with all its parameters in `dtype`.
pub(crate) fn converted<M: AutodiffModule<B>>(module: M, dtype: DType) -> M {
    if dtype == DType::F32 { module } else { Precision::new(dtype.into()).keep_none().convert(&module) }
}

/// The number of tensor rows of the large cases: 65536 on a GPU, divided by `--shrink`, and 64
/// times fewer on the CPU device.
pub(crate) fn large(options: &Options, is_gpu: bool) -> usize {
    (65536 / options.shrink / if is_gpu { 1 } else { 64 }).max(1)
}

fn cases(options: &Options, is_gpu: bool) -> Vec<Case> {
    let rows = large(options, is_gpu);
    let mut all = activation::cases(rows);
    all.extend(attention::cases(is_gpu));
    all.extend(conv::cases(if is_gpu { 64 } else { 4 }));
    all.extend(layer::cases(rows));
    all.extend(loss::cases(rows));
    all.extend(norm::cases(rows, if is_gpu { 64 } else { 4 }));
    all.extend(optim::cases(is_gpu));
    all.extend(pool::cases(if is_gpu { 64 } else { 4 }));
    if !is_gpu {
        // On a GPU, `--train` has these rows.
        all.extend(train::cases());
    }
    all.retain(|case| options.names(&case.name));
    all
}

/// Measures every row and prints the table.
///
/// # Errors
/// An error text if a file can't be written.
pub(crate) fn run(options: &Options, is_gpu: bool) -> Result<(), String> {
    let device = RocmDevice::default();
    let gpu = hip::Device::get(device.index).map_err(|error| error.to_string())?;
    let ceiling = Ceiling::measure(&gpu, options).map_err(|error| error.to_string())?;
    println!("{}", report::heading(&gpu, &ceiling));
    println!(
        "| case | composed | fused | times faster | of copy | bar | |\n|---|---:|---:|---:|---:|---:|---|"
    );
    let mut csv = String::from("case,composed_s,fused_s\n");
    for Case { name, work, bar, make } in cases(options, is_gpu) {
        eprintln!("{name}");
        let [mut composed, mut fused] = make(&device);
        let [composed, fused] = time::medians::<Rocm, 2>(&device, [&mut *composed, &mut *fused], options);
        // The bars apply to GPUs.
        let bar = if is_gpu { bar } else { Bar::None };
        let line = Line { name, work, bar, seconds: fused, losses: Vec::new() };
        println!(
            "| {} | {} | {} | {:.2} | {} |",
            line.name,
            line.figure(composed),
            line.figure(fused),
            composed / fused,
            line.judged(Measured { ceiling: &ceiling, lines: &[], columns: &[] })
        );
        csv += &format!("\"{}\",{composed:.9},{fused:.9}\n", line.name);
        // Blocks that the pool cached for one case should not affect the next.
        Rocm::<f32, i32, u8>::memory_cleanup(&device);
    }
    match &options.csv {
        Some(path) => std::fs::write(path, csv).map_err(|error| format!("{}: {error}", path.display())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::alone::{DEFERS, is_alone};

    fn launches() -> u64 {
        RocmDevice::default().counters().expect("the counters").launches
    }

    /// A result that notes, when it is dropped, how many kernels were launched.
    struct Noted {
        _sum: Tensor<Rocm, 1>,
        launches: Rc<Cell<u64>>,
    }

    impl Drop for Noted {
        fn drop(&mut self) {
            self.launches.set(launches());
        }
    }

    #[test]
    fn results_are_held_until_their_ops_are_launched() {
        if !is_alone("fused::tests::results_are_held_until_their_ops_are_launched", &DEFERS) {
            return;
        }
        let device = RocmDevice::default();
        let x = Tensor::<Rocm, 1>::ones([64], &device);
        crate::cases::sync::<Rocm>(&device);
        let (before, noted) = (launches(), Rc::new(Cell::new(0)));
        let seen = noted.clone();
        let noting = move || Noted { _sum: x.clone() + 1.0, launches: seen.clone() };
        let mut body = held(&device, noting);
        body();
        assert_eq!(noted.get(), before + 1);
    }
}
