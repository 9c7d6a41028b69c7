use burn::grad_clipping::GradientClippingConfig;
use burn::module::{AutodiffModule, Module, ModuleVisitor, Param, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, Optimizer};
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Record, Recorder};
use burn::tensor::TensorPrimitive;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::quantization::QuantScheme;
use burn_rocm_nn::optim as fused;
use burn_rocm_nn::{BatchNorm, BatchNormConfig};
use burn_rocm_tests::assert_close;
use burn_rocm_tests::trace::during;

use crate::support::*;

/// Parameters of several ranks, one without a gradient, and more small ones than a launch takes.
#[derive(Module, Debug)]
pub(crate) struct Params<B: Backend> {
    one: Param<Tensor<B, 1>>,
    matrix: Param<Tensor<B, 2>>,
    unused: Param<Tensor<B, 2>>,
    long: Param<Tensor<B, 1>>,
    deep: Param<Tensor<B, 4>>,
    many: Vec<Param<Tensor<B, 1>>>,
}

const MANY: usize = 70;

pub(crate) fn shapes() -> Vec<Vec<usize>> {
    let mut shapes = vec![vec![1], vec![3, 5], vec![7, 2], vec![9001], vec![2, 3, 4, 5]];
    shapes.extend((0..MANY).map(|k| vec![k + 1]));
    shapes
}

/// Data of every parameter's shape.
fn all(random: &Random) -> Vec<TensorData> {
    shapes().iter().map(|shape| uniform(random, shape)).collect()
}

impl<B: AutodiffBackend> Params<B> {
    pub(crate) fn new(values: &[TensorData], dtype: DType) -> Self {
        fn param<B: AutodiffBackend, const D: usize>(
            (k, data): (usize, &TensorData),
            dtype: DType,
        ) -> Param<Tensor<B, D>> {
            Param::initialized(ParamId::from(k as u64 + 1), tensor::<B, D>(data, dtype).require_grad())
        }
        let mut next = values.iter().enumerate();
        let mut next = || next.next().unwrap();
        Self {
            one: param(next(), dtype),
            matrix: param(next(), dtype),
            unused: param(next(), dtype),
            long: param(next(), dtype),
            deep: param(next(), dtype),
            many: (0..MANY).map(|_| param(next(), dtype)).collect(),
        }
    }

    pub(crate) fn data(&self) -> Vec<TensorData> {
        struct Read(Vec<TensorData>);
        impl<B: Backend> ModuleVisitor<B> for Read {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
                self.0.push(param.val().into_data());
            }
        }
        let mut read = Read(Vec::new());
        self.visit(&mut read);
        read.0
    }

    /// These as the gradients of all parameters but the unused one.
    fn gradients(&self, values: &[TensorData], dtype: DType) -> GradientsParams {
        struct Register<'a>(GradientsParams, std::slice::Iter<'a, TensorData>, DType);
        impl<B: AutodiffBackend> ModuleVisitor<B> for Register<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
                let data = self.1.next().unwrap().clone();
                if param.dims()[..] == [7, 2] {
                    return;
                }
                let grad = Tensor::<B::InnerBackend, D>::from_data(data, (&Default::default(), self.2));
                self.0.register(param.id, grad);
            }
        }
        let mut register = Register(GradientsParams::new(), values.iter(), dtype);
        self.visit(&mut register);
        register.0
    }

    fn train<O: Optimizer<Self, B>>(
        mut self,
        optimizer: &mut O,
        grads: &[Vec<TensorData>],
        dtype: DType,
    ) -> Self {
        for grads in grads {
            let grads = self.gradients(grads, dtype);
            self = optimizer.step(0.01, self, grads);
        }
        self
    }
}

const NEAR: Tolerance = Tolerance { absolute: 1e-6, relative: 1e-5 };

/// Some steps by Burn's optimizer on the oracle, by ours on ours, and by ours on the oracle.
macro_rules! many_steps {
    ($Config:ident $(, $with:ident($value:expr))*) => {{
        let random = Random::new();
        let (start, grads) = (all(&random), (0..steps()).map(|_| all(&random)).collect::<Vec<_>>());
        for dtype in [DType::F32, DType::F64] {
            let what = concat!(stringify!($Config), $(" ", stringify!($with), "(", stringify!($value), ")"),*);
            let mut theirs = burn::optim::$Config::new()$(.$with($value))*.init::<Oracle, Params<Oracle>>();
            let expected = Params::new(&start, dtype).train(&mut theirs, &grads, dtype).data();
            let mut ours = fused::$Config::new()$(.$with($value))*.init::<Ours, Params<Ours>>();
            let found = Params::new(&start, dtype).train(&mut ours, &grads, dtype).data();
            assert_close(&what, &found, &expected, NEAR);
            let unchanged = &Params::<Ours>::new(&start, dtype).data()[2..3];
            assert_close(&format!("{what}, no gradient"), &found[2..3], unchanged, Tolerance::EXACT);
            let mut again = fused::$Config::new()$(.$with($value))*.init::<Ours, Params<Ours>>();
            let repeated = Params::new(&start, dtype).train(&mut again, &grads, dtype).data();
            assert_close(&format!("{what}, again"), &repeated, &found, Tolerance::EXACT);
            let mut composed = fused::$Config::new()$(.$with($value))*.init::<Oracle, Params<Oracle>>();
            let found = Params::new(&start, dtype).train(&mut composed, &grads, dtype).data();
            assert_close(&format!("{what}, composed"), &found, &expected, Tolerance::EXACT);
        }
    }};
}

#[test]
fn adam_is_burns() {
    let decay = || Some(WeightDecayConfig::new(0.05));
    let value = || Some(GradientClippingConfig::Value(0.5));
    let norm = || Some(GradientClippingConfig::Norm(1.5));
    many_steps!(AdamConfig);
    many_steps!(AdamConfig, with_beta_1(0.8), with_beta_2(0.99), with_epsilon(1e-8));
    many_steps!(AdamConfig, with_weight_decay(decay()), with_amsgrad(true));
    many_steps!(AdamConfig, with_grad_clipping(value()));
    many_steps!(AdamConfig, with_grad_clipping(norm()), with_weight_decay(decay()));
}

#[test]
fn adamw_is_burns() {
    let norm = || Some(GradientClippingConfig::Norm(1.5));
    many_steps!(AdamWConfig);
    many_steps!(AdamWConfig, with_weight_decay(0.5), with_amsgrad(true), with_epsilon(1e-8));
    many_steps!(AdamWConfig, with_weight_decay(0.5), with_cautious_weight_decay(true));
    many_steps!(AdamWConfig, with_weight_decay(0.0), with_grad_clipping(norm()));
}

#[test]
fn sgd_is_burns() {
    let decay = || Some(WeightDecayConfig::new(0.05));
    let momentum = |nesterov| Some(MomentumConfig { momentum: 0.9, dampening: 0.2, nesterov });
    let norm = || Some(GradientClippingConfig::Norm(1.5));
    let value = || Some(GradientClippingConfig::Value(0.5));
    many_steps!(SgdConfig);
    many_steps!(SgdConfig, with_weight_decay(decay()), with_gradient_clipping(value()));
    many_steps!(SgdConfig, with_momentum(momentum(false)), with_weight_decay(decay()));
    many_steps!(SgdConfig, with_momentum(momentum(true)), with_gradient_clipping(norm()));
}

fn save<B: Backend, R: Record<B>>(record: R) -> Vec<u8> {
    BinBytesRecorder::<FullPrecisionSettings>::default().record(record, ()).unwrap()
}

fn load<B: Backend, R: Record<B>>(bytes: Vec<u8>) -> R {
    BinBytesRecorder::<FullPrecisionSettings>::default().load(bytes, &Default::default()).unwrap()
}

/// Burn's optimizer goes on from what ours saved, and ours from what Burn's did, as if there had
/// been one; Burn's on this backend too, whose record is of the same type.
macro_rules! records {
    ($Config:ident $(, $with:ident($value:expr))*) => {{
        let random = Random::new();
        let (start, grads) = (all(&random), (0..10).map(|_| all(&random)).collect::<Vec<_>>());
        let (first, rest) = grads.split_at(4);
        let what = concat!(stringify!($Config), $(" ", stringify!($with)),*);
        let dtype = DType::F32;
        let theirs = || burn::optim::$Config::new()$(.$with($value))*.init::<Oracle, Params<Oracle>>();
        let ours = || fused::$Config::new()$(.$with($value))*.init::<Ours, Params<Ours>>();
        let mut optimizer = theirs();
        let expected = Params::new(&start, dtype).train(&mut optimizer, &grads, dtype).data();

        let (mut from, mut to) = (theirs(), ours());
        let params = Params::new(&start, dtype).train(&mut from, first, dtype).data();
        to = to.load_record(load(save::<Oracle, _>(from.to_record())));
        // Saved again before any step: as it was.
        to = ours().load_record(load(save::<Ours, _>(to.to_record())));
        let found = Params::new(&params, dtype).train(&mut to, rest, dtype).data();
        assert_close(&format!("{what}: Burn's record"), &found, &expected, NEAR);

        let (mut from, mut to) = (ours(), theirs());
        let params = Params::new(&start, dtype).train(&mut from, first, dtype).data();
        to = to.load_record(load(save::<Ours, _>(from.to_record())));
        let found = Params::new(&params, dtype).train(&mut to, rest, dtype).data();
        assert_close(&format!("{what}: our record"), &found, &expected, NEAR);

        let mut same = burn::optim::$Config::new()$(.$with($value))*.init::<Ours, Params<Ours>>();
        same = same.load_record(from.to_record());
        let params = Params::new(&params, dtype).train(&mut same, &rest[..2], dtype);
        let mut back = ours().load_record(same.to_record());
        let found = params.train(&mut back, &rest[2..], dtype).data();
        assert_close(&format!("{what}: by hand"), &found, &expected, NEAR);
    }};
}

#[test]
fn records_go_both_ways() {
    let momentum = || Some(MomentumConfig { momentum: 0.9, dampening: 0.2, nesterov: true });
    records!(AdamConfig);
    records!(AdamConfig, with_amsgrad(true));
    records!(AdamWConfig, with_weight_decay(0.5));
    records!(SgdConfig);
    records!(SgdConfig, with_momentum(momentum()));
}

#[test]
fn a_record_without_the_largest_moment_loads_into_amsgrad() {
    let random = Random::new();
    let (start, grads) = (all(&random), (0..8).map(|_| all(&random)).collect::<Vec<_>>());
    let dtype = DType::F32;
    let mut plain = burn::optim::AdamConfig::new().init::<Oracle, Params<Oracle>>();
    let params = Params::new(&start, dtype).train(&mut plain, &grads[..3], dtype);
    let bytes = save::<Oracle, _>(plain.to_record());
    let mut theirs = burn::optim::AdamConfig::new().with_amsgrad(true).init::<Oracle, Params<Oracle>>();
    theirs = theirs.load_record(load(bytes.clone()));
    let mut ours = fused::AdamConfig::new().with_amsgrad(true).init::<Ours, Params<Ours>>();
    ours = ours.load_record(load(bytes));
    let found = Params::new(&params.data(), dtype).train(&mut ours, &grads[3..], dtype).data();
    let expected = params.train(&mut theirs, &grads[3..], dtype).data();
    assert_close(&"amsgrad from then on", &found, &expected, NEAR);
}

#[test]
fn clones_and_records_keep_their_values() {
    let random = Random::new();
    let dtype = DType::F32;
    let (start, grads) = (all(&random), (0..3).map(|_| all(&random)).collect::<Vec<_>>());
    let mut optimizer = fused::AdamConfig::new().init::<Ours, Params<Ours>>();
    let params = Params::new(&start, dtype).train(&mut optimizer, &grads[..1], dtype);
    let (clone, values) = (params.clone(), params.data());
    let (record, bytes) = (optimizer.to_record(), save::<Ours, _>(optimizer.to_record()));
    let mut other = optimizer.clone();
    let stepped = params.train(&mut optimizer, &grads[1..], dtype).data();
    assert_close(&"the clone", &clone.data(), &values, Tolerance::EXACT);
    // In the order of a hash map: compared by what it does.
    let of = |record| fused::AdamConfig::new().init::<Ours, Params<Ours>>().load_record(record);
    for (what, mut from) in [("record", of(record)), ("bytes", of(load(bytes)))] {
        let found = clone.clone().train(&mut from, &grads[1..], dtype).data();
        assert_close(&what, &found, &stepped, Tolerance::EXACT);
    }
    let found = clone.train(&mut other, &grads[1..], dtype).data();
    assert_close(&"the optimizer's clone", &found, &stepped, Tolerance::EXACT);
}

#[test]
fn parameters_share_launches() {
    let random = Random::new();
    let (start, grads) = (all(&random), all(&random));
    let kernels = |lines: &[String]| {
        let op = |line: &&String| line.starts_with("nn_adam: kernel ") || line.starts_with("nn_sgd: kernel ");
        lines
            .iter()
            .filter(op)
            .map(|line| line.split([' ', '<']).nth(2).unwrap().into())
            .collect::<Vec<String>>()
    };
    macro_rules! launched {
        ($config:expr) => {{
            let mut optimizer = $config.init::<Ours, Params<Ours>>();
            let params = Params::new(&start, DType::F32).train(
                &mut optimizer,
                std::slice::from_ref(&grads),
                DType::F32,
            );
            let grads = params.gradients(&grads, DType::F32);
            let (params, lines) = during(|| optimizer.step(0.01, params, grads));
            assert!(params.one.val().is_require_grad());
            // None but these.
            assert_eq!(kernels(&lines).len(), lines.len(), "{lines:#?}");
            kernels(&lines)
        }};
    }
    // 74 parameters with gradients: 62, 49 or 82 a launch.
    assert_eq!(launched!(fused::AdamConfig::new()), ["optim_adam"; 2]);
    assert_eq!(launched!(fused::AdamConfig::new().with_amsgrad(true)), ["optim_adam"; 2]);
    assert_eq!(launched!(fused::SgdConfig::new()), ["optim_sgd"; 1]);
    let norm = Some(GradientClippingConfig::Norm(1.0));
    assert_eq!(
        launched!(fused::AdamWConfig::new().with_grad_clipping(norm)),
        ["optim_squares", "optim_norms", "optim_adam"].repeat(2)
    );
}

/// A frozen clone has the id of its original. The step leaves it as it is, also if the module lists
/// it first.
#[test]
fn a_step_updates_the_trained_one_of_clones() {
    #[derive(Module, Debug)]
    struct Pair<B: Backend> {
        frozen: Linear<B>,
        trained: Linear<B>,
    }
    let random = Random::new();
    let of = |shape: &[usize]| tensor::<Ours, 2>(&uniform(&random, shape), DType::F32);
    let mut trained: Linear<Ours> = LinearConfig::new(3, 2).with_bias(false).init(&Default::default());
    trained.weight = Param::initialized(ParamId::new(), of(&[3, 2]).require_grad());
    let model = Pair { frozen: trained.clone().no_grad(), trained };
    let loss = (model.frozen.forward(of(&[4, 3])) * model.trained.forward(of(&[4, 3]))).sum();
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    let id = model.trained.weight.id;
    let before = model.frozen.weight.val().into_data();
    let grad = grads.get::<burn_rocm::Rocm, 2>(id).unwrap();
    let expected = (model.trained.weight.val().inner() - grad * 0.1).into_data();
    let mut optimizer = fused::SgdConfig::new().init::<Ours, Pair<Ours>>();
    let model = optimizer.step(0.1, model, grads);
    assert_eq!([model.frozen.weight.id, model.trained.weight.id], [id; 2]);
    assert!(!model.frozen.weight.val().is_require_grad() && model.trained.weight.val().is_require_grad());
    assert_close(&"frozen", &[model.frozen.weight.val().into_data()], &[before], Tolerance::EXACT);
    assert_close(&"trained", &[model.trained.weight.val().into_data()], &[expected], NEAR);
}

/// The same for a quantised clone.
#[test]
fn a_step_leaves_a_quantised_clone() {
    #[derive(Module, Debug)]
    struct Pair<B: Backend> {
        quantised: Param<Tensor<B, 2>>,
        trained: Param<Tensor<B, 2>>,
    }
    let random = Random::new();
    let of = || tensor::<Ours, 2>(&uniform(&random, &[4, 8]), DType::F32).inner();
    let (id, value, grad) = (ParamId::new(), of(), of());
    let TensorPrimitive::QFloat(codes) =
        value.clone().quantize_dynamic(&QuantScheme::default()).into_primitive()
    else {
        panic!("a quantised tensor")
    };
    let codes = Tensor::<Ours, 2>::from_primitive(TensorPrimitive::QFloat(codes));
    let trained = Tensor::<Ours, 2>::from_inner(value.clone()).require_grad();
    let model = Pair { quantised: Param::initialized(id, codes), trained: Param::initialized(id, trained) };
    let before = model.quantised.val().inner().into_data();
    let mut grads = GradientsParams::new();
    grads.register(id, grad.clone());
    let mut optimizer = fused::SgdConfig::new().init::<Ours, Pair<Ours>>();
    let model = optimizer.step(0.1, model, grads);
    assert_eq!([model.quantised.id, model.trained.id], [id; 2]);
    assert_eq!(model.quantised.val().inner().into_data(), before);
    let expected = (value - grad * 0.1).into_data();
    assert_close(&"trained", &[model.trained.val().into_data()], &[expected], NEAR);
}

/// Clones of a batch norm share their running statistics, which no step changes.
#[test]
fn a_step_leaves_the_statistics_of_clones() {
    #[derive(Module, Debug)]
    struct Twice<B: Backend> {
        first: BatchNorm<B>,
        second: BatchNorm<B>,
    }
    let norm: BatchNorm<Ours> = BatchNormConfig::new(3).init(&Default::default());
    // A clone of an uninitialised parameter would become a tensor of its own.
    drop((norm.gamma.val(), norm.beta.val()));
    let model = Twice { second: norm.clone(), first: norm };
    let x = tensor::<Ours, 2>(&uniform(&Random::new(), &[8, 3]), DType::F32);
    let y = model.second.forward(model.first.forward(x));
    let grads = GradientsParams::from_grads(y.powf_scalar(2.0).sum().backward(), &model);
    // Burn applies the last update now. Until then it is kept aside, where no step finds it.
    drop(model.valid());
    let statistics = |model: &Twice<Ours>| {
        [&model.first, &model.second]
            .map(|norm| [&norm.running_mean, &norm.running_var].map(|state| state.value_sync().into_data()))
            .concat()
    };
    let before = statistics(&model);
    let gamma = model.first.gamma.val().into_data();
    let mut optimizer = fused::SgdConfig::new().init::<Ours, Twice<Ours>>();
    let model = optimizer.step(0.1, model, grads);
    assert_close(&"statistics", &statistics(&model), &before, Tolerance::EXACT);
    let after = [&model.first, &model.second].map(|norm| norm.gamma.val().into_data());
    assert!(after[0] != gamma && after[0] == after[1], "{after:?}");
}

#[test]
fn valid_modules_and_their_gradients_of_other_kinds() {
    // A frozen parameter that gets a gradient stays frozen, and takes the step as Burn's does.
    let random = Random::new();
    let (start, grads) = (all(&random), vec![all(&random)]);
    let mut optimizer = fused::SgdConfig::new().init::<Ours, Params<Ours>>();
    let params = Params::<Ours>::new(&start, DType::F32).no_grad();
    let params = params.train(&mut optimizer, &grads, DType::F32);
    assert!(!params.one.val().is_require_grad());
    assert_eq!(params.valid().one.dims(), [1]);
}
