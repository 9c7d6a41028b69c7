//! The cases of a GPU, generic over the backend.

use std::cell::RefCell;
use std::rc::Rc;

use burn::backend::Autodiff;
use burn::nn::LayerNormConfig;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::backend::Backend;
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Distribution, FloatDType, Int, Tensor, activation};

use super::models::{Trained, fill, stock};
use super::sizes::{BEYOND_CACHES, rotations, scanned};
use super::time::Clock;
use crate::Options;

/// The suffix of the names of burn-rocm-nn's rows. The name without it is that of the stock
/// modules' and the peers' row.
pub(crate) const FUSED: &str = ", burn-rocm-nn";
/// The end of the names of rows whose step is a graph's replay.
pub(crate) const GRAPH: &str = ", graph";

/// The option that selects a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Matmul,
    Conv,
    Elementwise,
    Reduce,
    Softmax,
    Norm,
    Attention,
    Overhead,
    Train,
    Inference,
    ColdStart,
}

impl Group {
    pub(crate) const ALL: [Self; 11] = [
        Self::Elementwise,
        Self::Reduce,
        Self::Softmax,
        Self::Norm,
        Self::Matmul,
        Self::Conv,
        Self::Attention,
        Self::Overhead,
        Self::Train,
        Self::Inference,
        Self::ColdStart,
    ];

    /// The option's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Matmul => "matmul",
            Self::Conv => "conv",
            Self::Elementwise => "elementwise",
            Self::Reduce => "reduce",
            Self::Softmax => "softmax",
            Self::Norm => "norm",
            Self::Attention => "attention",
            Self::Overhead => "overhead",
            Self::Train => "train",
            Self::Inference => "inference",
            Self::ColdStart => "cold-start",
        }
    }

    pub(crate) fn wanted(self, options: &Options) -> bool {
        match self {
            Self::Matmul => options.matmul,
            Self::Conv => options.conv,
            Self::Elementwise => options.elementwise,
            Self::Reduce => options.reduce,
            Self::Softmax => options.softmax,
            Self::Norm => options.norm,
            Self::Attention => options.attention,
            Self::Overhead => options.overhead,
            Self::Train => options.train,
            Self::Inference => options.inference,
            Self::ColdStart => options.cold_start,
        }
    }
}

/// The work of one call of a case, from which its rate follows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Bytes that must be read or written.
    Bytes(f64),
    /// Multiplications and additions.
    Flops(f64),
    /// A number of small ops: the figure is the time of one op.
    Ops(f64),
    /// One step: the figure is its time.
    Step,
}

/// The bar of a case.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bar {
    /// At least this many bytes per second.
    Rate(f64),
    /// At least this share of the device's copy bandwidth.
    OfCopy(f64),
    /// At least this share of the bandwidth of a copy that is as long as the cumulative sum.
    OfShortCopy(f64),
    /// At least this share of the rate of the library when called directly.
    OfLibrary(f64),
    /// At most this many seconds.
    Seconds(f64),
    /// At most this many times the seconds of the row of the same name in bf16, in the same run.
    OfBf16(f64),
    /// At most this many times PyTorch's seconds in the same run.
    OfTorch(f64),
    /// No bar.
    None,
}

/// A prepared case: the body that is timed and, if the case trains, the losses before each of the
/// first steps. The losses are available once these steps have run.
pub(crate) struct Timed {
    pub(crate) body: Box<dyn FnMut()>,
    pub(crate) losses: Option<Losses>,
}

type Losses = Box<dyn Fn() -> Option<Vec<f64>>>;

type Make<B> = Box<dyn FnOnce(&<B as burn_backend::BackendTypes>::Device) -> Timed>;

/// One row.
pub(crate) struct Case<B: Backend> {
    pub(crate) group: Group,
    pub(crate) name: String,
    pub(crate) work: Work,
    pub(crate) bar: Bar,
    pub(crate) make: Make<B>,
}

/// Several copies of the operands, so that no call finds its operands in a cache.
struct Rotation<T> {
    states: Vec<T>,
    next: usize,
}

impl<T> Rotation<T> {
    fn new(bytes: usize, make: impl Fn() -> T) -> Self {
        Self { states: (0..rotations(bytes)).map(|_| make()).collect(), next: 0 }
    }

    fn next(&mut self) -> &T {
        self.next = (self.next + 1) % self.states.len();
        &self.states[self.next]
    }
}

fn uniform<B: Backend, const D: usize>(shape: [usize; D], device: &B::Device) -> Tensor<B, D> {
    Tensor::random(shape, Distribution::Uniform(-1.0, 1.0), device)
}

/// A case over one tensor `[rows, columns]` and further operands, both from `make`.
///
/// The result of `body` is held until the device has the work: a backend that defers ops would skip
/// a result that nobody holds any more.
fn over<B: Clock, T: 'static, R>(
    group: Group,
    name: String,
    bytes: f64,
    bar: Bar,
    operand_bytes: usize,
    make: impl Fn(&B::Device) -> T + 'static,
    body: impl Fn(&T) -> R + 'static,
) -> Case<B> {
    let make = Box::new(move |device: &B::Device| {
        let mut rotation = Rotation::new(operand_bytes, || make(device));
        let device = device.clone();
        let held = move || {
            let result = body(rotation.next());
            B::launch(&device);
            drop(result);
        };
        Timed { body: Box::new(held), losses: None }
    });
    Case { group, name, work: Work::Bytes(bytes), bar, make }
}

/// Every case.
pub(crate) fn cases<B: Clock>(options: &Options) -> Vec<Case<B>> {
    let mut all = memory::<B>(options);
    all.extend(products::<B>(options));
    all.extend(convolutions::<B>(options));
    all.extend(chains::<B>(options));
    all.extend(training::<B>(options));
    all.retain(|case| options.names(&case.name));
    all
}

fn memory<B: Clock>(options: &Options) -> Vec<Case<B>> {
    let n = (1usize << 28) / options.shrink;
    let (rows, columns) = (65536 / options.shrink.min(4096), 4096);
    let long = scanned(options);
    let size = |n: usize| n as f64 * 4.0;
    let name = |op: &str| format!("{op} {n} f32");
    let pair = move |device: &B::Device| [(); 2].map(|()| uniform::<B, 1>([n], device));
    let one = move |device: &B::Device| uniform::<B, 1>([n], device);
    let table = move |device: &B::Device| uniform::<B, 2>([rows, columns], device);
    let shape = format!("{rows}x{columns} f32");
    let m = rows * columns;
    use Group::*;
    vec![
        over(
            Elementwise,
            name("add"),
            size(3 * n),
            Bar::OfCopy(0.95),
            8 * n,
            pair,
            |[a, b]: &[Tensor<B, 1>; 2]| a.clone() + b.clone(),
        ),
        over(Elementwise, name("gelu"), size(2 * n), Bar::OfCopy(0.95), 4 * n, one, |a: &Tensor<B, 1>| {
            activation::gelu(a.clone())
        }),
        over(Elementwise, name("exp"), size(2 * n), Bar::OfCopy(0.95), 4 * n, one, |a: &Tensor<B, 1>| {
            a.clone().exp()
        }),
        over(
            Elementwise,
            format!("transpose to contiguous {shape}"),
            size(2 * m),
            Bar::Rate(3.2e12),
            4 * m,
            table,
            |a: &Tensor<B, 2>| {
                // Flattening the transposed matrix forces a copy.
                a.clone().transpose().reshape([-1])
            },
        ),
        over(Reduce, name("sum"), size(n), Bar::Rate(3.9e12), 4 * n, one, |a: &Tensor<B, 1>| a.clone().sum()),
        over(
            Reduce,
            format!("sum_dim 1 {shape}"),
            size(m),
            Bar::Rate(3.9e12),
            4 * m,
            table,
            |a: &Tensor<B, 2>| a.clone().sum_dim(1),
        ),
        over(
            Reduce,
            format!("sum_dim 0 {shape}"),
            size(m),
            Bar::Rate(3.9e12),
            4 * m,
            table,
            |a: &Tensor<B, 2>| a.clone().sum_dim(0),
        ),
        over(
            Reduce,
            format!("cumsum {long} f32"),
            size(2 * long),
            Bar::OfShortCopy(0.8),
            4 * long,
            move |device: &B::Device| uniform::<B, 1>([long], device),
            |a: &Tensor<B, 1>| a.clone().cumsum(0),
        ),
        over(
            Softmax,
            format!("softmax {shape}"),
            size(2 * m),
            Bar::Rate(3.7e12),
            4 * m,
            table,
            |a: &Tensor<B, 2>| activation::softmax(a.clone(), 1),
        ),
        over(
            Softmax,
            format!("cross entropy {shape}"),
            size(m),
            Bar::Rate(1.8e12),
            4 * m,
            move |device| {
                let labels =
                    Tensor::<B, 1, Int>::arange(0..rows as i64, device).remainder_scalar(columns as i64);
                (table(device), labels, CrossEntropyLossConfig::new().init::<B>(device))
            },
            |(logits, labels, loss)| loss.forward(logits.clone(), labels.clone()),
        ),
        over(
            Norm,
            format!("layer_norm {shape}"),
            size(2 * m),
            Bar::Rate(3.7e12),
            4 * m,
            move |device| (table(device), LayerNormConfig::new(columns).init::<B>(device)),
            |(x, norm)| norm.forward(x.clone()),
        ),
    ]
}

fn products<B: Clock>(options: &Options) -> Vec<Case<B>> {
    let dtypes = [FloatDType::F32, FloatDType::BF16, FloatDType::F16];
    let square = |((name, dtype, n), float): ((&str, hip::DType, usize), FloatDType)| {
        let bytes = 2 * n * n * dtype.size();
        let make = move |device: &B::Device| [(); 2].map(|()| uniform::<B, 2>([n, n], device).cast(float));
        let body = |[a, b]: &[Tensor<B, 2>; 2]| a.clone().matmul(b.clone());
        let case =
            over(Group::Matmul, format!("matmul {n} {name}"), 0.0, Bar::OfLibrary(1.0), bytes, make, body);
        Case { work: Work::Flops(2.0 * (n as f64).powi(3)), ..case }
    };
    super::sizes::products(options).into_iter().zip(dtypes).map(square).collect()
}

fn convolutions<B: Clock>(options: &Options) -> Vec<Case<B>> {
    let batch = (64 / options.shrink).max(1);
    let layer = |[from, to, side, kernel, stride]: [usize; 5]| {
        let out = side / stride;
        let flops = 2.0 * (batch * to * out * out * from * kernel * kernel) as f64;
        let bytes = 4 * batch * (from * side * side + to * out * out);
        let make = move |device: &B::Device| {
            (
                uniform::<B, 4>([batch, from, side, side], device),
                uniform::<B, 4>([to, from, kernel, kernel], device),
            )
        };
        let body = move |(x, w): &(Tensor<B, 4>, Tensor<B, 4>)| {
            let pad = kernel / 2;
            let options = ConvOptions::new([stride, stride], [pad, pad], [1, 1], 1);
            conv2d(x.clone(), w.clone(), None, options)
        };
        let name = format!(
            "conv2d {from}->{to} {kernel}x{kernel} stride {stride} on {side}x{side}, batch {batch} f32"
        );
        Case { work: Work::Flops(flops), ..over(Group::Conv, name, 0.0, Bar::None, bytes, make, body) }
    };
    [[3, 64, 224, 7, 2], [64, 64, 56, 3, 1], [128, 128, 28, 3, 1], [256, 256, 14, 3, 1], [512, 512, 7, 3, 1]]
        .map(layer)
        .into()
}

/// The number of additions in a chain.
const CHAIN: usize = 1000;

fn chains<B: Clock>(_: &Options) -> Vec<Case<B>> {
    let pair = |device: &B::Device| [(); 2].map(|()| uniform::<B, 2>([32, 32], device));
    let case = |name: &str, body: fn(&[Tensor<B, 2>; 2]) -> Vec<Tensor<B, 2>>| Case {
        work: Work::Ops(CHAIN as f64),
        ..over(Group::Overhead, name.into(), 0.0, Bar::Seconds(2.5e-6), BEYOND_CACHES, pair, body)
    };
    vec![
        case("add 32x32, a chain of 1000, results kept", |[a, b]| {
            let mut kept = vec![a.clone()];
            for i in 0..CHAIN {
                kept.push(kept[i].clone() + b.clone());
            }
            kept
        }),
        case("add 32x32, a chain of 1000, results dropped", |[a, b]| {
            vec![(0..CHAIN).fold(a.clone(), |sum, _| sum + b.clone())]
        }),
    ]
}

/// The training rows of one set of modules and one optimizer. `$bars` holds each row's bars, in
/// seconds.
macro_rules! training {
    ($options:expr, $modules:ident, $optimizer:expr, $suffix:expr, $bars:expr) => {{
        let small = $options.shrink > 1;
        let [mlp, cnn, resnet, transformer]: [&[f64]; 4] = $bars;
        let mut all = Vec::new();
        for (size, &bar) in [64, 512, 4096].into_iter().zip(mlp) {
            all.push(trainer::<_, $modules::Mlp<_>, _>("MLP", size, $suffix, $optimizer, bar));
        }
        for (size, &bar) in [64, 512, 4096].into_iter().zip(cnn) {
            all.push(trainer::<_, $modules::Cnn<_>, _>("CNN", size, $suffix, $optimizer, bar));
        }
        if small {
            all.retain(|case| case.name.contains("batch 64"));
        }
        let (images, sequences) = if small { (1, 1) } else { (64, 16) };
        all.push(trainer::<_, $modules::ResNet18<_>, _>("ResNet-18", images, $suffix, $optimizer, resnet[0]));
        all.push(trainer::<_, $modules::Transformer<_>, _>(
            "transformer",
            sequences,
            $suffix,
            $optimizer,
            transformer[0],
        ));
        all
    }};
}

fn training<B: Backend>(options: &Options) -> Vec<Case<B>> {
    let bars: [&[f64]; 4] = [&[0.45e-3, 0.45e-3, 0.55e-3], &[1.4e-3, 4e-3, 28e-3], &[24e-3], &[40e-3]];
    training!(options, stock, || AdamConfig::new().init(), "", bars)
}

/// The number of steps over which the losses of all peers are compared.
pub(crate) const STEPS: usize = 20;
/// The rate is so low that a rounding error of the first step is still no larger than a rounding
/// error after the last step. With 1e-3 even PyTorch's losses in f32 and f64 diverge from each
/// other (the transformer's, on other data, by 40 %).
pub(crate) const LEARNING_RATE: f64 = 1e-4;

fn trainer<B: Backend, M, O>(
    model: &str,
    size: usize,
    suffix: &str,
    optimizer: impl Fn() -> O + 'static,
    bar: f64,
) -> Case<B>
where
    M: Trained<Autodiff<B>> + burn::module::AutodiffModule<Autodiff<B>> + 'static,
    M::Batch: 'static,
    O: Optimizer<M, Autodiff<B>> + 'static,
{
    let make = move |device: &B::Device| {
        let batch = M::batch(size, device);
        let mut state = Some(fill::<Autodiff<B>, M>(M::new(device)));
        let mut optimizer = optimizer();
        // The loss before each of the first steps. It is read only at the end.
        let losses = Rc::new(RefCell::new(Vec::new()));
        let seen = losses.clone();
        let body = move || {
            let Some(model) = state.take() else { return };
            let loss = model.loss(batch.clone());
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            if seen.borrow().len() <= STEPS {
                seen.borrow_mut().push(loss.inner());
            }
            state = Some(optimizer.step(LEARNING_RATE, model, gradients));
        };
        let first = move || -> Option<Vec<f64>> {
            let losses = losses.borrow();
            let all: &[Tensor<B, 1>] = losses.get(..=STEPS)?;
            all.iter().map(|loss| loss.to_data().iter::<f64>().next()).collect()
        };
        Timed { body: Box::new(body), losses: Some(Box::new(first)) }
    };
    Case {
        group: Group::Train,
        name: format!("{model} Adam step, batch {size}{suffix}"),
        work: Work::Step,
        bar: Bar::Seconds(bar),
        make: Box::new(make),
    }
}
