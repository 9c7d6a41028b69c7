use burn::grad_clipping::GradientClippingConfig;
use burn::module::{AutodiffModule, Module, Param, ParamId, RunningState};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, MultiGradientsParams, Optimizer};
use burn::record::{BinBytesRecorder, FullPrecisionSettings, HalfPrecisionSettings, Recorder};
use burn::tensor::FloatDType;
use burn::tensor::backend::{AutodiffBackend, Backend, DeviceOps as _};
use burn_rocm::{RocmError, take_last_error, trace};
use burn_rocm_nn as ours;
use burn_rocm_nn::amp::{GradScaler, GradScalerConfig, GradScalerRecord, Mixed, Precision};
use burn_rocm_nn::optim::{AdamConfig, AdamWConfig, SgdConfig};
use burn_rocm_nn::{Act, ConvAct, ConvActConfig, LinearAct, LinearActConfig};
use burn_rocm_tests::assert_close;
use burn_rocm_tests::trace::during;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::support::*;

#[derive(Module, Debug)]
struct Net<B: Backend> {
    first: Linear<B>,
    norm: BatchNorm<B>,
    last: Vec<Linear<B>>,
}

impl<B: AutodiffBackend> Net<B> {
    fn new() -> Self {
        let device = Default::default();
        let linear = |from, to| LinearConfig::new(from, to).init(&device);
        let net = Self {
            first: linear(6, 8),
            norm: BatchNormConfig::new(8).init(&device),
            last: vec![linear(8, 8), linear(8, 2)],
        };
        // The same on every backend.
        let random = Random::from_seed(7);
        let fill = |linear: &mut Linear<B>| {
            let weights =
                |shape: [usize; 2]| tensor::<B, 2>(&uniform(&random, &shape), DType::F32).mul_scalar(0.25);
            linear.weight = Param::from_tensor(weights(linear.weight.dims()));
            linear.bias = linear.bias.as_ref().map(|bias| Param::from_tensor(bias.val().zeros_like()));
        };
        let mut net = net;
        fill(&mut net.first);
        net.last.iter_mut().for_each(fill);
        net
    }

    /// Computes in the parameters' dtype, the norm in f32. The result is f32.
    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let dtype: FloatDType = self.first.weight.val().dtype().into();
        let x = self.first.forward(x.cast(dtype));
        let x = self.norm.forward(x.cast(FloatDType::F32)).cast(dtype);
        self.last.iter().fold(x, |x, linear| linear.forward(x).tanh()).cast(FloatDType::F32)
    }

    fn loss(&self, x: Tensor<B, 2>) -> Tensor<B, 1> {
        let distance = self.forward(x.clone()) - x.clone().narrow(1, 0, 2);
        (distance.clone() * distance).mean()
    }
}

fn input<B: AutodiffBackend>() -> Tensor<B, 2> {
    tensor(&uniform(&Random::from_seed(9), &[16, 6]), DType::F32)
}

#[test]
fn a_converted_module_is_a_copy_of_the_same_ids() {
    for dtype in [FloatDType::F16, FloatDType::BF16] {
        let net = Net::<Ours>::new();
        let before = net.first.weight.val().into_data();
        // Burn initialises parameters at their first use.
        drop(Precision::new(dtype).convert(&net));
        let ((half, counts), lines) = during(|| trace::counting(|| Precision::new(dtype).convert(&net)));
        // Six parameters of linear layers.
        assert_eq!((counts.kernels, counts.launches()), (1, 1), "{counts:?} {lines:#?}");
        assert_eq!(half.first.weight.val().dtype(), DType::from(dtype));
        assert_eq!(half.norm.gamma.val().dtype(), DType::F32);
        assert_eq!(half.norm.running_mean.value().dtype(), DType::F32);
        assert_eq!(half.last[1].weight.id, net.last[1].weight.id);
        assert!(half.first.weight.val().is_require_grad());
        let expected = net.first.weight.val().cast(dtype).into_data();
        assert_close(&"converted", &[half.first.weight.val().into_data()], &[expected], Tolerance::EXACT);
        assert_close(&"original", &[net.first.weight.val().into_data()], &[before], Tolerance::EXACT);

        let all = Precision::new(dtype).keep_none().convert(&net.clone().no_grad());
        assert_eq!(all.norm.gamma.val().dtype(), DType::from(dtype));
        assert!(!all.first.weight.val().is_require_grad());
        let kept = Precision::new(dtype).keep("Linear").convert(&Net::<Ours>::new());
        assert_eq!(kept.first.weight.val().dtype(), DType::F32);
        // A lazy parameter of the copy has the value that the original draws at its first use.
        let lazy = LinearConfig::new(5, 3).init::<Ours>(&Default::default());
        let copy = Precision::new(dtype).keep("Linear").convert(&lazy);
        let [theirs, ours] = [&lazy, &copy].map(|linear| linear.weight.val().into_data());
        assert_close(&"drawn once", &[ours], &[theirs], Tolerance::EXACT);
        let composed = Precision::new(dtype).convert(&Net::<Oracle>::new());
        assert_eq!(composed.last[0].weight.val().dtype(), DType::from(dtype));
        assert_eq!(composed.norm.gamma.val().dtype(), DType::F32);
    }
}

#[derive(Module, Debug)]
struct Layers<B: Backend> {
    linear: Linear<B>,
    linear_act: LinearAct<B>,
    conv_act: ConvAct<B>,
    norm: ours::BatchNorm<B>,
}

impl<B: AutodiffBackend> Layers<B> {
    fn new() -> Self {
        let device = Default::default();
        Self {
            linear: LinearConfig::new(3, 4).init(&device),
            linear_act: LinearActConfig::new(3, 4, Act::Relu).init(&device),
            conv_act: ConvActConfig::new([2, 4], [3, 3], Act::Silu).init(&device),
            norm: ours::BatchNormConfig::new(4).init(&device),
        }
    }

    /// The dtypes of the linear layer, the layer with an activation, the convolution, the norm's
    /// scale and its running mean.
    fn dtypes(&self) -> [DType; 5] {
        let Self { linear, linear_act, conv_act, norm } = self;
        [
            linear.weight.val().dtype(),
            linear_act.weight.val().dtype(),
            conv_act.bias.as_ref().unwrap().val().dtype(),
            norm.gamma.val().dtype(),
            norm.running_mean.value().dtype(),
        ]
    }
}

/// Layers that replace one of Burn's are kept by either name. A name that no module has is refused,
/// and the error lists the existing names.
#[test]
fn modules_are_kept_by_their_names() {
    fn check<B: AutodiffBackend>() {
        let (half, full) = (DType::BF16, DType::F32);
        let net = Layers::<B>::new();
        let bf16 = || Precision::new(FloatDType::BF16);
        assert_eq!(bf16().convert(&net).dtypes(), [half, half, half, full, full]);
        assert_eq!(bf16().keep("LinearAct").convert(&net).dtypes(), [half, full, half, full, full]);
        assert_eq!(bf16().keep("ConvAct").convert(&net).dtypes(), [half, half, full, full, full]);
        assert_eq!(bf16().keep("Conv2d").convert(&net).dtypes(), [half, half, full, full, full]);
        assert_eq!(bf16().keep("Linear").convert(&net).dtypes(), [full, full, half, full, full]);
        assert_eq!(bf16().keep("Layers").convert(&net).dtypes(), [full; 5]);
        let both = bf16().keep("LinearAct").keep("ConvAct").convert(&net);
        assert_eq!(both.dtypes(), [half, full, full, full, full]);
        for wrong in ["Lineer", "linear", "linear_act", "LayerNorm", ""] {
            let precision = bf16().keep("Linear").keep(wrong);
            catch_unwind(AssertUnwindSafe(|| drop(precision.convert(&net)))).expect_err(wrong);
            match take_last_error() {
                Some(RocmError::Invalid { op: "Precision::keep", expected, found }) => {
                    assert_eq!(found, wrong);
                    for name in ["BatchNorm", "Conv2d", "ConvAct", "Layers", "Linear", "LinearAct"] {
                        assert!(expected.contains(name), "{name} in {expected}");
                    }
                }
                other => panic!("{wrong}: {other:?}"),
            }
        }
        // A model without a batch norm is not an error.
        let linear = bf16().convert(&net.linear);
        assert_eq!(linear.weight.val().dtype(), half);
        assert_eq!(net.dtypes(), [full; 5]);
    }
    check::<Ours>();
    check::<Oracle>();
}

/// If everything is converted, the original evaluates as before, and gets its statistics from the
/// copy.
#[test]
fn running_statistics_stay_where_everything_is_converted() {
    fn check<B: AutodiffBackend>() {
        let net = Layers::<B>::new();
        let x = || tensor::<B, 2>(&uniform(&Random::from_seed(3), &[16, 3]), DType::F32);
        let run = |net: &Layers<B>, x| net.norm.forward(net.linear.forward(x));
        run(&net, x());
        let (full, half) = (DType::F32, DType::BF16);
        let statistics = |net: &Layers<B>| {
            let states = [&net.norm.running_mean, &net.norm.running_var];
            states.map(|state| state.value_sync().into_data())
        };
        let before = statistics(&net);
        let expected = net.valid().norm.forward(net.valid().linear.forward(x().inner())).into_data();
        let copy = Precision::new(FloatDType::BF16).keep_none().convert(&net);
        assert_eq!(copy.dtypes(), [half, half, half, half, full]);
        assert_close(&"statistics", &statistics(&net), &before, Tolerance::EXACT);
        let found = net.valid().norm.forward(net.valid().linear.forward(x().inner())).into_data();
        assert_close(&"the original", &[found], &[expected], Tolerance::EXACT);
        // A step of the copy, in bf16 throughout, and the same step in f32.
        let other = Layers::<B>::new().load_record(net.clone().into_record());
        let out = run(&copy, x().cast(FloatDType::BF16));
        assert_eq!(out.dtype(), half);
        let grads = (out.clone() * out).sum().backward();
        assert_eq!(copy.norm.gamma.val().grad(&grads).unwrap().dtype(), half);
        run(&other, x());
        let tolerance = Tolerance { absolute: 0.02, relative: 0.02 };
        assert_close(&"after a step", &statistics(&net), &statistics(&other), tolerance);
        assert_eq!(statistics(&net)[0].dtype, full);
        assert!(statistics(&net) != before);
        // Frozen parameters are converted, and those of the original stay.
        let frozen = net.clone().no_grad();
        let copy = Precision::new(FloatDType::BF16).keep_none().convert(&frozen);
        assert_eq!((copy.dtypes(), frozen.dtypes()), ([half, half, half, half, full], [full; 5]));
    }
    check::<Ours>();
    check::<Oracle>();
}

/// Running statistics of clones have one id. Two of them share their values, the third has others, as
/// after a record was loaded into it. Each stays as it is, in the original and in the copy.
#[test]
fn running_statistics_of_one_id_stay_apart() {
    #[derive(Module, Debug)]
    struct Clones<B: Backend> {
        first: RunningState<Tensor<B, 1>>,
        apart: RunningState<Tensor<B, 1>>,
        shared: RunningState<Tensor<B, 1>>,
    }
    fn check<B: AutodiffBackend>() {
        let id = ParamId::new();
        let state =
            |value: f32| RunningState::with_id(id, Tensor::<B, 1>::full([2], value, &Default::default()));
        // bf16 holds neither.
        let first = state(1.001);
        let clones = Clones { shared: first.clone(), first, apart: state(2.002) };
        let values = |clones: &Clones<B>| {
            let states = [&clones.first, &clones.apart, &clones.shared];
            states.map(|state| state.value_sync().into_data())
        };
        let before = values(&clones);
        assert!(before[0] == before[2] && before[0] != before[1]);
        let copy = Precision::new(FloatDType::BF16).keep_none().convert(&clones);
        assert_close(&"the original", &values(&clones), &before, Tolerance::EXACT);
        assert_close(&"the copy", &values(&copy), &before, Tolerance::EXACT);
        assert!(values(&clones).iter().chain(&values(&copy)).all(|data| data.dtype == DType::F32));
    }
    check::<Ours>();
    check::<Oracle>();
}

/// If one of two clones is frozen, the gradient gets the dtype of the other, also if the module
/// lists the frozen one first.
#[test]
fn a_gradient_gets_the_dtype_of_the_trained_clone() {
    #[derive(Module, Debug)]
    struct Pair<B: Backend> {
        frozen: Param<Tensor<B, 1>>,
        trained: Param<Tensor<B, 1>>,
    }
    let (id, value) = (ParamId::new(), Tensor::<Ours, 1>::full([3], 0.5, &Default::default()));
    let model = Pair {
        frozen: Param::initialized(id, value.clone().cast(FloatDType::F16)),
        trained: Param::initialized(id, value.require_grad()),
    };
    let mut scaler = GradScalerConfig::new().init();
    // A gradient that f16 does not hold.
    let loss = (model.trained.val() * 1e6).sum();
    let grads = GradientsParams::from_grads(scaler.scale(loss).backward(), &model);
    let mut optimizer = SgdConfig::new().init::<Ours, Pair<Ours>>();
    let model = scaler.step(&mut optimizer, 1e-6, model, grads);
    let [frozen, trained] = [&model.frozen, &model.trained].map(|param| param.val().into_data());
    assert_eq!(frozen, TensorData::from([0.5f32; 3]).convert_dtype(DType::F16));
    // The rate is off by half a unit in its last place.
    let expected = TensorData::from([-0.5f32; 3]);
    assert_close(&"the trained one", &[trained], &[expected], Tolerance { absolute: 1e-6, relative: 0.0 });
}

/// The losses of `steps` steps, in a precision or in f32.
fn train<B: AutodiffBackend>(dtype: Option<FloatDType>, scaler: &mut GradScaler, steps: usize) -> Vec<f64> {
    let mut net = Net::<B>::new();
    let mut optimizer = AdamConfig::new().init();
    let mut losses = Vec::new();
    for _ in 0..steps {
        let half = dtype.map_or_else(|| net.clone(), |dtype| Precision::new(dtype).convert(&net));
        let loss = half.loss(input());
        losses.push(loss.clone().into_data().iter::<f64>().next().unwrap());
        let grads = GradientsParams::from_grads(scaler.scale(loss).backward(), &half);
        net = scaler.step(&mut optimizer, 0.01, net, grads);
    }
    losses
}

#[test]
fn halves_train_as_f32_does() {
    let scaler = || GradScalerConfig::new().init();
    let expected = train::<Oracle>(None, &mut scaler(), 40);
    assert!(expected[39] < 0.3 * expected[0], "{expected:?}");
    let near = |what: &str, found: Vec<f64>, relative: f64| {
        for (step, (x, y)) in found.iter().zip(&expected).enumerate() {
            assert!((x - y).abs() <= relative * (y + 0.05), "{what}, step {step}: {x} instead of {y}");
        }
    };
    near("f32", train::<Ours>(None, &mut scaler(), 40), 1e-3);
    near("f16", train::<Ours>(Some(FloatDType::F16), &mut scaler(), 40), 0.05);
    near("bf16", train::<Ours>(Some(FloatDType::BF16), &mut scaler(), 40), 0.2);
    near("f16, composed", train::<Oracle>(Some(FloatDType::F16), &mut scaler(), 40), 0.05);
}

/// The weights after ten steps with the gradients of a converted model: unscaled, or converted to
/// f32 by a scaler of scale 1.
fn weights<B: AutodiffBackend>(
    dtype: FloatDType,
    mut optimizer: impl Optimizer<Net<B>, B>,
    scaler: Option<GradScalerConfig>,
) -> Vec<TensorData> {
    let mut scaler = scaler.map(|config| config.with_initial_scale(1.0).init());
    let mut net = Net::<B>::new();
    for _ in 0..10 {
        let half = Precision::new(dtype).convert(&net);
        let grads = GradientsParams::from_grads(half.loss(input()).backward(), &half);
        let grad = grads.get::<B::InnerBackend, 2>(net.first.weight.id).unwrap();
        assert_eq!(grad.dtype(), DType::from(dtype));
        net = match &mut scaler {
            Some(scaler) => scaler.step(&mut optimizer, 0.01, net, grads),
            None => optimizer.step(0.01, net, grads),
        };
    }
    assert_eq!(net.first.weight.val().dtype(), DType::F32);
    [&net.first, &net.last[0], &net.last[1]].map(|linear| linear.weight.val().into_data()).into()
}

/// What twelve steps compute, by `Mixed` or by its parts.
fn steps<B: AutodiffBackend>(
    precision: Precision,
    scaler: Option<GradScaler>,
    mixed: bool,
) -> (Vec<TensorData>, Option<GradScalerRecord>) {
    let mut net = Net::<B>::new();
    let mut optimizer = AdamConfig::new().init();
    let mut by = Mixed::new(precision.clone());
    let mut scaler = scaler;
    if let Some(scaler) = scaler.clone().filter(|_| mixed) {
        by = by.with_scaler(scaler);
    }
    let mut out = Vec::new();
    for _ in 0..12 {
        let loss;
        (net, loss) = if mixed {
            by.step(&mut optimizer, 0.01, net, |half| half.loss(input()))
        } else {
            let half = precision.convert(&net);
            let loss = half.loss(input());
            let factor = |loss| match &scaler {
                Some(scaler) => scaler.scale(loss),
                None => loss,
            };
            let grads = GradientsParams::from_grads(factor(loss.clone()).backward(), &half);
            drop(half);
            let net = match &mut scaler {
                Some(scaler) => scaler.step(&mut optimizer, 0.01, net, grads),
                None => optimizer.step(0.01, net, grads),
            };
            (net, loss.inner())
        };
        out.push(loss.into_data());
    }
    out.extend([&net.first, &net.last[0], &net.last[1]].map(|linear| linear.weight.val().into_data()));
    out.extend([&net.norm.gamma, &net.norm.beta].map(|param| param.val().into_data()));
    assert!(out.iter().all(|data| data.dtype == DType::F32));
    (
        out,
        if mixed { by.scaler().map(GradScaler::to_record) } else { scaler.map(|scaler| scaler.to_record()) },
    )
}

/// The wrapper's steps have the bits of steps by its parts, some of which overflow.
#[test]
fn a_mixed_step_is_that_of_its_parts() {
    fn check<B: AutodiffBackend>() {
        let overflowing = || GradScalerConfig::new().with_initial_scale(2f64.powi(24)).init();
        let new = Precision::new;
        let cases = [
            (new(FloatDType::BF16), None),
            (new(FloatDType::BF16).keep("Linear"), None),
            (new(FloatDType::BF16), Some(overflowing())),
            (new(FloatDType::F16), Some(GradScalerConfig::new().init())),
            (new(FloatDType::F16), Some(overflowing())),
            (new(FloatDType::F16).keep("Linear"), Some(overflowing())),
        ];
        for (number, (precision, scaler)) in cases.into_iter().enumerate() {
            let (expected, record) = steps::<B>(precision.clone(), scaler.clone(), false);
            let (found, ours) = steps::<B>(precision, scaler, true);
            assert_close(&format!("case {number}"), &found, &expected, Tolerance::EXACT);
            assert_eq!(ours, record, "case {number}");
            assert_ne!(expected[0], expected[11], "case {number}: the steps change something");
            if number == 4 {
                let skipped = record.unwrap().skipped;
                assert!(skipped > 0 && skipped < 11, "{skipped} of 12 steps overflow");
            }
        }
    }
    check::<Ours>();
    check::<Oracle>();
}

#[test]
fn a_mixed_step_scales_f16_alone_and_keeps_what_is_named() {
    assert!(Mixed::bf16().scaler().is_none());
    assert_eq!(Mixed::f16().scaler().unwrap().factor(), 32768.0);
    let restored = GradScalerRecord { scale: 32.0, finite: 3, skipped: 1 };
    let scaler = GradScalerConfig::new().init().load_record(restored.clone());
    assert_eq!(Mixed::f16().with_scaler(scaler).scaler().unwrap().to_record(), restored);
    let dtype_of = |mixed: Mixed| {
        let mut mixed = mixed;
        let mut found = None;
        let mut optimizer = SgdConfig::new().init();
        let (net, loss) = mixed.step(&mut optimizer, 0.01, Net::<Ours>::new(), |half| {
            found = Some([half.first.weight.val().dtype(), half.norm.gamma.val().dtype()]);
            // Its gradient in f16 is the scale, which must be finite there.
            half.loss(input()).cast(FloatDType::F16)
        });
        assert_eq!(loss.dtype(), DType::F32);
        assert_eq!(mixed.scaler().map_or(0, GradScaler::skipped), 0);
        assert_eq!(net.first.weight.val().dtype(), DType::F32);
        found.unwrap()
    };
    assert_eq!(dtype_of(Mixed::bf16()), [DType::BF16, DType::F32]);
    assert_eq!(dtype_of(Mixed::f16()), [DType::F16, DType::F32]);
    assert_eq!(dtype_of(Mixed::f16().keep("Linear")), [DType::F32; 2]);
    let all = Precision::new(FloatDType::BF16).keep_none().keep("Net");
    assert_eq!(dtype_of(Mixed::new(all)), [DType::F32; 2]);
}

#[test]
fn bf16_needs_no_scaler() {
    fn check<B: AutodiffBackend>() {
        let momentum = || Some(MomentumConfig { momentum: 0.9, dampening: 0.2, nesterov: true });
        let norm = || Some(GradientClippingConfig::Norm(0.01));
        for dtype in [FloatDType::BF16, FloatDType::F16] {
            macro_rules! same {
                ($config:expr) => {{
                    let plain = weights::<B>(dtype, $config.init(), None);
                    let scaled = weights::<B>(dtype, $config.init(), Some(GradScalerConfig::new()));
                    assert_close(&format!("{dtype:?}"), &plain, &scaled, Tolerance::EXACT);
                }};
            }
            same!(AdamConfig::new());
            same!(AdamWConfig::new().with_grad_clipping(norm()));
            same!(SgdConfig::new().with_momentum(momentum()));
        }
    }
    check::<Ours>();
    check::<Oracle>();
}

/// The gradients of two devices are summed in the parameters' dtype.
#[test]
fn gradients_of_several_sources_are_summed_in_f32() {
    fn check<B: AutodiffBackend>() {
        let net = Net::<B>::new();
        let before = net.first.weight.val().into_data();
        let of = |value: f32| {
            let mut grads = GradientsParams::new();
            let device = Default::default();
            let data = TensorData::full::<f32, _>([6, 8], value);
            grads.register(
                net.first.weight.id,
                Tensor::<B::InnerBackend, 2>::from_data(data, (&device, DType::BF16)),
            );
            grads
        };
        // In bf16 the sum would be 1.
        let parts = [1.0, 1.0 / 512.0].map(|value| (of(value), B::Device::default().id()));
        let grads = MultiGradientsParams { grads: parts.into() };
        let net = SgdConfig::new().init().step_multi(1.0, net, grads);
        let moved = tensor::<B, 2>(&before, DType::F32) - net.first.weight.val();
        let expected = TensorData::full::<f32, _>([6, 8], 1.0 + 1.0 / 512.0);
        assert_close(
            &"the sum",
            &[moved.into_data()],
            &[expected],
            Tolerance { absolute: 1e-6, relative: 0.0 },
        );
    }
    check::<Ours>();
    check::<Oracle>();
}

/// One step whose gradient of the first weight is filled with `value`.
fn step<B: AutodiffBackend, O: Optimizer<Net<B>, B>>(
    scaler: &mut GradScaler,
    optimizer: &mut O,
    net: Net<B>,
    dtype: DType,
    value: f32,
) -> Net<B> {
    let mut grads = GradientsParams::new();
    let device = Default::default();
    let mut values = vec![1.0f32; 48];
    // In the middle, outside the last piece that a kernel computes.
    values[29] = value;
    let data = TensorData::new(values, [6, 8]);
    grads.register(net.first.weight.id, Tensor::<B::InnerBackend, 2>::from_data(data, (&device, dtype)));
    let zeros = Tensor::<B::InnerBackend, 1>::from_data(TensorData::zeros::<f32, _>([8]), (&device, dtype));
    grads.register(net.first.bias.as_ref().unwrap().id, zeros);
    scaler.step(optimizer, 1.0, net, grads)
}

fn skips_and_scales<B: AutodiffBackend>() {
    let config = GradScalerConfig::new().with_initial_scale(8.0).with_growth_interval(2);
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let mut scaler = config.init();
        let mut optimizer = SgdConfig::new().init::<B, Net<B>>();
        let net = Net::<B>::new();
        let start = net.first.weight.val().into_data();
        let first = |net: &Net<B>| {
            let difference = tensor::<B, 2>(&start, DType::F32) - net.first.weight.val();
            difference.into_data().iter::<f32>().collect::<Vec<_>>()
        };
        for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let unchanged = step(&mut scaler, &mut optimizer, net.clone(), dtype, value);
            assert_eq!(first(&unchanged), [0.0; 48], "{dtype:?} {value}");
        }
        assert_eq!((scaler.factor(), scaler.skipped()), (1.0, 3));
        let net = step(&mut scaler, &mut optimizer, net, dtype, 0.5);
        let found = first(&net);
        for (i, x) in found.iter().enumerate() {
            let expected = if i == 29 { 0.5 } else { 1.0 };
            assert!((x - expected).abs() < 1e-5, "{dtype:?}: {found:?}");
        }
        assert_eq!(scaler.factor(), 1.0);
        let net = step(&mut scaler, &mut optimizer, net, dtype, 0.5);
        assert_eq!((scaler.factor(), scaler.skipped()), (2.0, 3));
        // A skipped step restarts the count.
        let net = step(&mut scaler, &mut optimizer, net, dtype, 0.5);
        let net = step(&mut scaler, &mut optimizer, net, dtype, f32::NAN);
        assert_eq!(scaler.factor(), 1.0);
        step(&mut scaler, &mut optimizer, net, dtype, 0.5);
        assert_eq!(scaler.factor(), 1.0);
    }
}

#[test]
fn a_step_that_overflows_is_skipped_and_the_scale_follows() {
    skips_and_scales::<Ours>();
    skips_and_scales::<Oracle>();
}

#[test]
fn a_step_reads_one_flag() {
    let net = Net::<Ours>::new();
    let mut scaler = GradScalerConfig::new().init();
    let mut optimizer = SgdConfig::new().init();
    let mut once = |scaler: &mut GradScaler, net: Net<Ours>| {
        let half = Precision::new(FloatDType::F16).convert(&net);
        let grads = GradientsParams::from_grads(scaler.scale(half.loss(input())).backward(), &half);
        trace::counting(|| scaler.step(&mut optimizer, 0.1, net, grads))
    };
    // Burn initialises parameters at their first use.
    let (net, _) = once(&mut scaler, net);
    let (_, counts) = once(&mut scaler, net);
    // The flag's zero, the f16 gradients, the norm's f32 gradients, and the optimizer's step.
    assert_eq!((counts.launches(), counts.transfers), (4, 1), "{counts:?}");
}

#[test]
fn a_skipped_step_leaves_the_optimizers_state() {
    let mut scaler = GradScalerConfig::new().init();
    let mut optimizer = AdamConfig::new().init::<Ours, Net<Ours>>();
    let net = step(&mut scaler, &mut optimizer, Net::new(), DType::F16, f32::NAN);
    assert!(optimizer.to_record().is_empty());
    step(&mut scaler, &mut optimizer, net, DType::F16, 1.0);
    assert_eq!(optimizer.to_record().len(), 2);
}

#[test]
fn the_scale_stays_positive_and_finite() {
    let mut scaler = GradScalerConfig::new().with_initial_scale(1e38).with_growth_interval(1).init();
    let mut optimizer = SgdConfig::new().init();
    let mut net = Net::<Ours>::new();
    for _ in 0..4 {
        net = step(&mut scaler, &mut optimizer, net, DType::F32, 0.0);
        assert!(scaler.factor().is_finite());
    }
    let mut scaler = GradScalerConfig::new().with_initial_scale(1e-37).init();
    for _ in 0..8 {
        net = step(&mut scaler, &mut optimizer, net, DType::F32, f32::NAN);
        assert!(scaler.factor() > 0.0);
    }
    let bad = || GradScalerConfig::new().with_backoff_factor(1.5).init();
    assert!(std::panic::catch_unwind(bad).is_err());
}

/// Nine steps, two of which overflow, without a break or resumed from records after `resumed_after`
/// steps. Returns the scales and the last weights.
fn scales<B: AutodiffBackend>(resumed_after: Option<usize>) -> (Vec<(f32, usize)>, TensorData) {
    let config = GradScalerConfig::new().with_initial_scale(8.0).with_growth_interval(3);
    let new = || (config.init(), AdamConfig::new().init::<B, Net<B>>(), Net::<B>::new());
    let (mut scaler, mut optimizer, mut net) = new();
    let mut seen = Vec::new();
    for (i, value) in [1.0, 1.0, f32::NAN, 1.0, 1.0, 1.0, 1.0, f32::INFINITY, 1.0].into_iter().enumerate() {
        if resumed_after == Some(i) {
            let device = Default::default();
            // A scale is stored exactly, even by a recorder of half precision.
            let scale = BinBytesRecorder::<HalfPrecisionSettings>::default();
            let scale_bytes = Recorder::<B>::record(&scale, scaler.to_record(), ()).unwrap();
            let full = BinBytesRecorder::<FullPrecisionSettings>::default();
            let steps_bytes = Recorder::<B>::record(&full, optimizer.to_record(), ()).unwrap();
            let net_bytes = Recorder::<B>::record(&full, net.into_record(), ()).unwrap();
            (scaler, optimizer, net) = new();
            scaler = scaler.load_record(Recorder::<B>::load(&scale, scale_bytes, &device).unwrap());
            optimizer = optimizer.load_record(Recorder::<B>::load(&full, steps_bytes, &device).unwrap());
            net = net.load_record(Recorder::<B>::load(&full, net_bytes, &device).unwrap());
        }
        net = step(&mut scaler, &mut optimizer, net, DType::F16, value);
        seen.push((scaler.factor(), scaler.skipped()));
    }
    (seen, net.first.weight.val().into_data())
}

#[test]
fn a_resumed_run_goes_on_with_the_same_scale() {
    let (expected, weights) = scales::<Ours>(None);
    assert_eq!(expected[2], (4.0, 1), "backed off");
    assert_eq!(expected[5], (8.0, 1), "grown after three steps");
    assert_eq!(expected[8], (4.0, 2));
    // Before and after a skipped step, in the middle of a count, and right after its end.
    for after in 1..9 {
        let (found, resumed) = scales::<Ours>(Some(after));
        assert_eq!(found, expected, "resumed after {after} steps");
        assert_close(&after, &[resumed], std::slice::from_ref(&weights), Tolerance::EXACT);
    }
    assert_eq!(scales::<Oracle>(Some(4)).0, expected);
    for scale in [0.0, -1.0, f32::INFINITY, f32::NAN] {
        let bad = GradScalerRecord { scale, finite: 0, skipped: 0 };
        let load = || GradScalerConfig::new().init().load_record(bad);
        assert!(std::panic::catch_unwind(load).is_err(), "{scale}");
    }
}
