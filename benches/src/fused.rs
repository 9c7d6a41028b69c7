//! What `burn-rocm-nn` is made of, beside the same composed by Burn: one backend, one process, taking turns.

mod activation;
mod attention;
mod launches;
mod loss;
mod norm;
mod optim;
mod train;

use burn::backend::Autodiff;
use burn::tensor::backend::Backend;
use burn::tensor::{Distribution, Tensor};
use burn_rocm::{Rocm, RocmDevice};

use crate::Options;
use crate::gpu::time;

pub(crate) use launches::launches;

/// What the rows are measured on.
pub(crate) type B = Autodiff<Rocm>;

/// What is timed.
pub(crate) type Body = Box<dyn FnMut()>;

type Make = Box<dyn FnOnce(&RocmDevice) -> [Body; 2]>;

/// One row: the same work composed and fused.
pub(crate) struct Case {
    name: String,
    make: Make,
}

impl Case {
    /// A row of two bodies, made when its turn comes.
    pub(crate) fn new(
        name: impl Into<String>,
        make: impl FnOnce(&RocmDevice) -> [Body; 2] + 'static,
    ) -> Self {
        Self { name: name.into(), make: Box::new(make) }
    }

    /// Two functions of one tensor of uniform values, forward and backward.
    pub(crate) fn unary<const D: usize>(
        name: impl Into<String>,
        shape: [usize; D],
        composed: fn(Tensor<B, D>) -> Tensor<B, D>,
        fused: fn(Tensor<B, D>) -> Tensor<B, D>,
    ) -> Self {
        Self::new(format!("{} {shape:?} f32, forward and backward", name.into()), move |device| {
            [composed, fused].map(|op| {
                let x = Tensor::<B, D>::random(shape, Distribution::Uniform(-1.0, 1.0), device);
                let body = move || {
                    let leaf = x.clone().detach().require_grad();
                    let grads = op(leaf.clone()).backward();
                    drop(leaf.grad(&grads));
                };
                Box::new(body) as Body
            })
        })
    }
}

/// The number of rows of the large cases: 65536 on a GPU, divided by `--shrink`; 64 times fewer on the CPU device.
pub(crate) fn large(options: &Options, is_gpu: bool) -> usize {
    (65536 / options.shrink / if is_gpu { 1 } else { 64 }).max(1)
}

fn cases(options: &Options, is_gpu: bool) -> Vec<Case> {
    let rows = large(options, is_gpu);
    let mut all = activation::cases(rows);
    all.extend(attention::cases(is_gpu));
    all.extend(loss::cases(rows));
    all.extend(norm::cases(rows, if is_gpu { 64 } else { 4 }));
    all.extend(optim::cases(is_gpu));
    all.extend(train::cases(options, is_gpu));
    all
}

/// Measures every row and prints the table.
///
/// # Errors
/// What could not be written, in words.
pub(crate) fn run(options: &Options, is_gpu: bool) -> Result<(), String> {
    let device = RocmDevice::default();
    println!("| case | composed, ms | fused, ms | times faster |\n|---|---|---|---|");
    let mut csv = String::from("case,composed_s,fused_s\n");
    for case in cases(options, is_gpu) {
        eprintln!("{}", case.name);
        let [mut composed, mut fused] = (case.make)(&device);
        let [composed, fused] = time::medians::<Rocm, 2>(&device, [&mut *composed, &mut *fused], options);
        println!("| {} | {:.3} | {:.3} | {:.2} |", case.name, composed * 1e3, fused * 1e3, composed / fused);
        csv += &format!("\"{}\",{composed:.9},{fused:.9}\n", case.name);
        // The pool's blocks of one case are not in the way of the next.
        Rocm::<f32, i32, u8>::memory_cleanup(&device);
    }
    match &options.csv {
        Some(path) => std::fs::write(path, csv).map_err(|error| format!("{}: {error}", path.display())),
        None => Ok(()),
    }
}
