//! Mixed precision.

use burn::module::{Module, Param, ParamId, RunningState};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use burn_rocm_nn_022::amp::{GradScaler, GradScalerConfig, GradScalerRecord, Mixed, Precision};
use burn_rocm_nn_022::optim::{AdamWConfig, SgdConfig};
use burn_rocm_nn_022::{Act, LayerNorm, LayerNormConfig, LinearAct};

use crate::worlds::{Ty, assert_same, flex, uniform, v22};

/// Several steps of a network in half precision, with a scaler.
macro_rules! trained {
    ($v:ident, $burn:ident, $nn:ident, $dtype:expr) => {{
        use $burn::optim::GradientsParams;
        use $burn::tensor::FloatDType;
        let device = $v::device();
        let act = $nn::Act::Gelu;
        let first = $v::filled($nn::LinearActConfig::new(6, 8, act).init(&device), Ty::F32);
        let norm = $v::filled($nn::LayerNormConfig::new(8).init(&device), Ty::F32);
        let mut model = (first, norm);
        let mut optim = $nn::optim::AdamWConfig::new().init();
        let mut scaler = $nn::amp::GradScalerConfig::new().with_initial_scale(1024.0).init();
        let mut losses = Vec::new();
        for step in 0..4 {
            let half = $nn::amp::Precision::new($dtype).keep("LayerNorm").convert(&model);
            let x = $v::tensor::<2>(70 + step, [5, 6], Ty::F32).cast($dtype);
            let out = half.1.forward(half.0.forward(x)).cast(FloatDType::F32);
            let loss = (out.clone() * out).mean();
            losses.push($v::read(loss.clone())[0]);
            let grads = GradientsParams::from_grads(scaler.scale(loss).backward(), &half);
            model = scaler.step(&mut optim, 0.01, model, grads);
        }
        let (first, norm) = model;
        vec![
            losses,
            $v::read(first.weight.val()),
            $v::read(first.bias.as_ref().unwrap().val()),
            $v::read(norm.gamma.val()),
            vec![f64::from(scaler.factor()), scaler.skipped() as f64],
        ]
    }};
}

#[test]
fn training_as_with_burn_0_21() {
    use crate::worlds::v21;
    macro_rules! old {
        ($dtype:ident) => {{
            #[allow(unused_imports)]
            use burn_021::optim::Optimizer;
            trained!(v21, burn_021, burn_rocm_nn_021, burn_021::tensor::FloatDType::$dtype)
        }};
    }
    let new = trained!(v22, burn, burn_rocm_nn_022, FloatDType::F16);
    assert!(new[0][1..].iter().all(|loss| *loss != new[0][0]), "the steps change something: {:?}", new[0]);
    assert_same("f16", &new, &old!(F16));
    assert_same("bf16", &trained!(v22, burn, burn_rocm_nn_022, FloatDType::BF16), &old!(BF16));
    // Elsewhere Burn's ops compute the same to within half precision: a share of 2^-11 in each of
    // some 8 roundings on the way to a loss. It is a mean of squares of a norm's outputs, which
    // gamma and beta keep below 8. Each step adds its own.
    let flex = trained!(flex, burn, burn_rocm_nn_022, FloatDType::F16);
    for (step, (a, b)) in new[0].iter().zip(&flex[0]).enumerate() {
        let limit = (step + 1) as f64 * 2.0 * 8.0 * 8.0 * 2f64.powi(-11);
        assert!((a - b).abs() <= limit, "step {step}: {a}, on burn-flex {b}");
    }
}

/// If one of two clones is frozen, the gradient gets the dtype of the other, also if the module
/// lists the frozen one first.
#[test]
fn a_gradient_gets_the_dtype_of_the_trained_clone() {
    let (id, value) = (ParamId::new(), v22::of::<1>(vec![0.5; 3], [3], Ty::F32));
    let frozen = Param::initialized(id, value.clone().cast(FloatDType::F16));
    let model = (frozen, Param::initialized(id, value.require_grad()));
    let mut scaler = GradScalerConfig::new().init();
    // A gradient that f16 does not hold.
    let loss = (model.1.val() * 1e6).sum();
    let grads = GradientsParams::from_grads(scaler.scale(loss).backward(), &model);
    let (frozen, trained) = scaler.step(&mut SgdConfig::new().init(), 1e-6, model, grads);
    assert_eq!(frozen.val().dtype(), DType::F16);
    assert_eq!(v22::read(frozen.val()), [0.5; 3]);
    // The rate is off by half a unit in its last place.
    let trained = v22::read(trained.val());
    assert!(trained.iter().all(|value| (value + 0.5).abs() < 1e-6), "{trained:?}");
}

/// The wrapper's steps have the bits of steps by its parts, some of which overflow in f16.
#[test]
fn a_mixed_step_is_that_of_its_parts() {
    let run = |dtype: FloatDType, mixed: bool| {
        let device = v22::device();
        let first =
            v22::filled(burn_rocm_nn_022::LinearActConfig::new(6, 8, Act::Gelu).init(&device), Ty::F32);
        let mut model = (first, v22::filled(LayerNormConfig::new(8).init(&device), Ty::F32));
        let mut optim = AdamWConfig::new().init();
        let scaled = dtype == FloatDType::F16;
        let mut scaler = GradScalerConfig::new().with_initial_scale(2f64.powi(24)).init();
        let mut by = match scaled {
            true => Mixed::f16().with_scaler(scaler.clone()),
            false => Mixed::bf16(),
        }
        .keep("LayerNorm");
        let precision = Precision::new(dtype).keep("LayerNorm");
        let mut out = Vec::new();
        for step in 0..16 {
            let loss = |half: &(LinearAct, LayerNorm)| {
                let x = v22::tensor::<2>(70 + step, [5, 6], Ty::F32).cast(dtype);
                let out = half.1.forward(half.0.forward(x)).cast(FloatDType::F32);
                (out.clone() * out).mean()
            };
            if mixed {
                let value;
                (model, value) = by.step(&mut optim, 0.01, model, loss);
                out.push(value.into_data());
                continue;
            }
            let half = precision.convert(&model);
            let loss = loss(&half);
            out.push(loss.clone().inner().into_data());
            let loss = if scaled { scaler.scale(loss) } else { loss };
            let grads = GradientsParams::from_grads(loss.backward(), &half);
            drop(half);
            model = match scaled {
                true => scaler.step(&mut optim, 0.01, model, grads),
                false => optim.step(0.01, model, grads),
            };
        }
        out.push(model.0.weight.val().into_data());
        out.push(model.1.gamma.val().into_data());
        let skipped = if mixed { by.scaler().map_or(0, GradScaler::skipped) } else { scaler.skipped() };
        (out, skipped)
    };
    for dtype in [FloatDType::F16, FloatDType::BF16] {
        let (expected, skipped) = run(dtype, false);
        assert_eq!(run(dtype, true), (expected, skipped), "{dtype:?}");
        assert_eq!((1..15).contains(&skipped), dtype == FloatDType::F16, "{dtype:?}: {skipped}");
    }
}

#[derive(Module, Debug)]
struct Network {
    linear: Linear,
    act: LinearAct,
    batch: BatchNorm,
    layer: LayerNorm,
}

fn network() -> Network {
    let device = Device::rocm(0).autodiff();
    Network {
        linear: LinearConfig::new(3, 3).init(&device),
        act: burn_rocm_nn_022::LinearActConfig::new(3, 3, burn_rocm_nn_022::Act::Relu).init(&device),
        batch: BatchNormConfig::new(3).init(&device),
        layer: LayerNormConfig::new(3).init(&device),
    }
}

#[test]
fn what_is_converted() {
    let network = network();
    let half = Precision::new(FloatDType::F16).keep("LayerNorm").convert(&network);
    let dtypes = [
        half.linear.weight.dtype(),
        half.act.weight.dtype(),
        half.batch.gamma.dtype(),
        half.layer.gamma.dtype(),
    ];
    assert_eq!(dtypes, [DType::F16, DType::F16, DType::F32, DType::F32]);
    assert_eq!(half.linear.weight.id, network.linear.weight.id);
    assert!(half.linear.weight.is_require_grad());
    assert_eq!(network.linear.weight.dtype(), DType::F32, "the original stays");
    // `LinearAct` has its own name beside Burn's.
    let half = Precision::new(FloatDType::F16).keep("LinearAct").convert(&network);
    assert_eq!([half.linear.weight.dtype(), half.act.weight.dtype()], [DType::F16, DType::F32]);
    let frozen = network.no_grad();
    assert!(!Precision::new(FloatDType::BF16).convert(&frozen).linear.weight.is_require_grad());
}

#[test]
#[should_panic(expected = "Precision::keep")]
fn a_name_that_is_not_there() {
    Precision::new(FloatDType::F16).keep("Nothing").convert(&network());
}

/// Burn's batch norm with an f16 input and parameters in f32, as in a converted module.
#[test]
fn batch_norm_of_f16() {
    let values = uniform(1, 4 * 3 * 10);
    let run = |device: Device, dtype: DType| {
        let norm = BatchNormConfig::new(3).init(&device);
        let data = burn::tensor::TensorData::new(values.clone(), [4, 3, 10]).convert_dtype(DType::F16);
        let x = Tensor::<3>::from_data(data, (&device, dtype)).require_grad();
        let out = norm.forward(x.clone());
        assert_eq!(out.dtype(), dtype);
        let out = out.cast(FloatDType::F32);
        let grads = (out.clone() * out.clone() * out.clone()).sum().backward();
        let by_gamma = norm.gamma.val().grad(&grads).unwrap();
        assert_eq!(by_gamma.dtype(), DType::F32);
        assert_eq!(x.grad(&grads).unwrap().dtype(), dtype);
        [out.into_data(), by_gamma.into_data(), norm.running_var.value().into_data()]
            .map(|data| data.iter::<f64>().collect::<Vec<_>>())
    };
    let found = run(Device::rocm(0).autodiff(), DType::F16);
    let expected = run(Device::flex().autodiff(), DType::F32);
    // Statistics of 40 values have 42 roundings of f32, of values below 4 and factors below 16.
    let computed = 42.0 * 64.0 * 2f64.powi(-24);
    // The output is rounded to f16 once. Gamma's gradient is a sum of `3 out^2 normalised`, where the
    // normalised input is the output: three outputs, and a gradient in f16.
    let half = 1.01 * 2f64.powi(-11);
    let cubes = |channel: usize| {
        let of = |(k, out): (usize, &f64)| if k / 10 % 3 == channel { 3.0 * out.abs().powi(3) } else { 0.0 };
        expected[0].iter().enumerate().map(of).sum::<f64>()
    };
    let limits = [
        expected[0].iter().map(|out| half * out.abs() + computed).collect::<Vec<_>>(),
        (0..3).map(|channel| 4.0 * (half + computed) * cubes(channel) + computed).collect(),
        vec![computed; 3],
    ];
    for (k, limits) in limits.iter().enumerate() {
        for ((a, b), limit) in found[k].iter().zip(&expected[k]).zip(limits) {
            assert!((a - b).abs() <= *limit, "result {k}: {a}, expected {b} within {limit:.1e}");
        }
    }
}

#[test]
fn an_overflow_skips_the_step() {
    let device = Device::rocm(0).autodiff();
    let mut model = LinearConfig::new(3, 2).init(&device);
    let before = v22::read(model.weight.val());
    let mut optim = AdamWConfig::new().init();
    let mut scaler = GradScalerConfig::new().with_initial_scale(1e30).init();
    let loss = |model: &Linear, by: f32| model.forward(Tensor::<2>::ones([4, 3], &device)).sum() * by;
    let grads = GradientsParams::from_grads(scaler.scale(loss(&model, 1e20)).backward(), &model);
    model = scaler.step(&mut optim, 0.01, model, grads);
    assert_eq!(v22::read(model.weight.val()), before);
    assert_eq!((scaler.skipped(), scaler.factor()), (1, 5e29));
    let grads = GradientsParams::from_grads(scaler.scale(loss(&model, 1e-3)).backward(), &model);
    model = scaler.step(&mut optim, 0.01, model, grads);
    assert_ne!(v22::read(model.weight.val()), before);
    let record = scaler.to_record();
    assert_eq!(record, GradScalerRecord { scale: 5e29, finite: 1, skipped: 1 });
    let again = GradScalerConfig::new().init().load_record(record);
    assert_eq!(again.factor(), 5e29);
}

/// Running statistics of clones have one id. Two of them share their values, the third has others, as
/// after a record was loaded into it. Each stays as it is, in the original and in the copy.
#[test]
fn running_statistics_of_one_id_stay_apart() {
    #[derive(Module, Debug)]
    struct Clones {
        first: RunningState<Tensor<1>>,
        apart: RunningState<Tensor<1>>,
        shared: RunningState<Tensor<1>>,
    }
    let device = Device::rocm(0).autodiff();
    let id = ParamId::new();
    let state = |value: f32| RunningState::with_id(id, Tensor::<1>::full([2], value, &device));
    // bf16 holds neither.
    let first = state(1.001);
    let clones = Clones { shared: first.clone(), first, apart: state(2.002) };
    let values = |clones: &Clones| {
        let states = [&clones.first, &clones.apart, &clones.shared];
        states.map(|state| state.value_sync().into_data())
    };
    let before = values(&clones);
    assert!(before[0] == before[2] && before[0] != before[1]);
    let copy = Precision::new(FloatDType::BF16).convert(&clones);
    assert_eq!((values(&clones), values(&copy)), (before.clone(), before));
}
