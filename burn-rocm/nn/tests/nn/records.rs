//! Records of the modules whose own tests have none. They load what Burn's modules saved, and
//! Burn's modules load theirs, with each kind of recorder.

use burn::module::Module;
use burn::nn;
use burn::nn::loss as burns;
use burn::record::{BinBytesRecorder, FullPrecisionSettings, NamedMpkBytesRecorder, Recorder};
use burn::tensor::Int;
use burn_flex::Flex;
use burn_rocm::Rocm;
use burn_rocm_nn as ours;
use burn_rocm_nn::{Act, loss, transformer};
use burn_rocm_tests::assert_close;

use crate::support::*;

/// Burn's module with the record of this crate's, and this crate's with the record of Burn's, by
/// each recorder. The bytes of both records are the same.
fn exchanged<T: Module<Flex>, O: Module<Rocm>>(what: &str, theirs: &T, ours: &O, blank: &T) -> Vec<(T, O)> {
    // Initialises both modules: a clone of an uninitialised module would draw other numbers.
    assert_eq!(theirs.num_params(), ours.num_params(), "{what}");
    let mut all = Vec::new();
    macro_rules! with {
        ($recorder:ty) => {{
            let recorder = <$recorder>::default();
            let bytes = Recorder::<Flex>::record(&recorder, theirs.clone().into_record(), ()).unwrap();
            let record = Recorder::<Rocm>::load(&recorder, bytes.clone(), &Default::default()).unwrap();
            let here = ours.clone().load_record(record);
            let again = Recorder::<Rocm>::record(&recorder, here.clone().into_record(), ()).unwrap();
            assert!(again == bytes, "{what}: the bytes of {}", stringify!($recorder));
            let record = Recorder::<Flex>::load(&recorder, again, &Default::default()).unwrap();
            all.push((blank.clone().load_record(record), here));
        }};
    }
    with!(NamedMpkBytesRecorder<FullPrecisionSettings>);
    with!(BinBytesRecorder<FullPrecisionSettings>);
    all
}

fn values(random: &Random) -> TensorData {
    uniform(random, &[5, 6]).convert_dtype(DType::F32)
}

fn on<B: burn::tensor::backend::Backend>(data: &TensorData) -> Tensor<B, 2> {
    Tensor::from_data(data.clone(), &Default::default())
}

/// Asserts that both give the same result for the same input as `$theirs` gave before.
macro_rules! same {
    ($what:expr, $theirs:expr, $ours:expr, $blank:expr, $x:expr, |$module:ident, $input:ident| $forward:expr) => {{
        let (theirs, ours, blank) = ($theirs, $ours, $blank);
        let pairs = exchanged($what, &theirs, &ours, &blank);
        macro_rules! run {
            ($of:expr, $backend:ty) => {{
                let ($module, $input) = ($of, on::<$backend>(&$x));
                $forward.into_data()
            }};
        }
        let expected = [run!(theirs, Flex)];
        for (there, here) in pairs {
            let tolerance = Tolerance::of(DType::F32).times(100.0);
            assert_close(&$what, &[run!(here, Rocm)], &expected, tolerance);
            assert_close(&$what, &[run!(there, Flex)], &expected, Tolerance::EXACT);
        }
    }};
}

#[test]
fn layers() {
    let device = Default::default();
    let x = values(&Random::new());
    for bias in [true, false] {
        let what = format!("bias {bias}");
        let theirs = || nn::LinearConfig::new(6, 4).with_bias(bias).init::<Flex>(&device);
        let own =
            ours::LinearActConfig::new(6, 4, Act::Silu).with_bias(bias).init::<Rocm>(&Default::default());
        for (there, here) in exchanged(&format!("linear, {what}"), &theirs(), &own, &theirs()) {
            let expected = burn::tensor::activation::silu(there.forward(on(&x))).into_data();
            let tolerance = Tolerance::of(DType::F32).times(100.0);
            assert_close(&what, &[here.forward(on(&x)).into_data()], &[expected], tolerance);
        }
        let theirs = || nn::conv::Conv2dConfig::new([1, 4], [2, 3]).with_bias(bias).init::<Flex>(&device);
        let own = ours::ConvActConfig::new([1, 4], [2, 3], Act::Relu)
            .with_bias(bias)
            .init::<Rocm>(&Default::default());
        for (there, here) in exchanged(&format!("convolution, {what}"), &theirs(), &own, &theirs()) {
            let expected = there.forward(on(&x).unsqueeze::<4>()).into_data();
            let expected = Tensor::<Flex, 4>::from_data(expected, &device).clamp_min(0.0).into_data();
            let found = here.forward(on(&x).unsqueeze::<4>()).into_data();
            assert_close(&what, &[found], &[expected], Tolerance::of(DType::F32).times(100.0));
        }
        let theirs = || nn::SwiGluConfig::new(6, 4).with_bias(bias).init::<Flex>(&device);
        let own = ours::SwiGluConfig::new(6, 4).with_bias(bias).init::<Rocm>(&Default::default());
        same!(&format!("SwiGLU, {what}"), theirs(), own, theirs(), x, |module, x| module.forward(x));
        let theirs = || nn::LayerNormConfig::new(6).with_bias(bias).init::<Flex>(&device);
        let own = ours::LayerNormConfig::new(6).with_bias(bias).init::<Rocm>(&Default::default());
        same!(&format!("layer norm, {what}"), theirs(), own, theirs(), x, |module, x| module.forward(x));
        let theirs = || nn::GroupNormConfig::new(3, 6).with_affine(bias).init::<Flex>(&device);
        let own = ours::GroupNormConfig::new(3, 6).with_affine(bias).init::<Rocm>(&Default::default());
        same!(&format!("group norm, {what}"), theirs(), own, theirs(), x, |module, x| module.forward(x));
        let theirs = || nn::InstanceNormConfig::new(6).with_affine(bias).init::<Flex>(&device);
        let own = ours::InstanceNormConfig::new(6).with_affine(bias).init::<Rocm>(&Default::default());
        same!(&format!("instance norm, {what}"), theirs(), own, theirs(), x, |module, x| {
            module.forward(x.unsqueeze_dim::<3>(2).repeat_dim(2, 3))
        });
    }
    let theirs = || nn::transformer::PositionWiseFeedForwardConfig::new(6, 8).init::<Flex>(&device);
    let own = transformer::PositionWiseFeedForwardConfig::new(6, 8).init::<Rocm>(&Default::default());
    same!("feed forward", theirs(), own, theirs(), x, |module, x| module.forward(x));
}

#[test]
fn losses() {
    let random = Random::new();
    let x = values(&random);
    let (flex, rocm) = (Default::default(), Default::default());
    let classes: Vec<i64> = (0..5).map(|_| random.below(6) as i64).collect();
    let weights: Vec<f32> = (0..6).map(|_| random.uniform(0.5, 2.0) as f32).collect();
    let theirs = || {
        burns::CrossEntropyLossConfig::new()
            .with_weights(Some(weights.clone()))
            .with_pad_tokens(Some(vec![1]))
            .with_smoothing(Some(0.1))
            .init::<Flex>(&flex)
    };
    let own = loss::CrossEntropyLossConfig::new()
        .with_weights(Some(weights.clone()))
        .with_pad_tokens(Some(vec![1]))
        .with_smoothing(Some(0.1))
        .init::<Rocm>(&rocm);
    same!("cross entropy", theirs(), own, theirs(), x, |module, x| {
        let targets = TensorData::new(classes.clone(), [5]);
        module.forward(x, Tensor::<_, 1, Int>::from_data(targets, &Default::default()))
    });
    // The record of Burn's cross entropy, which has all but one of the fields.
    let own = loss::NllLossConfig::new().with_weights(Some(weights.clone())).init::<Rocm>(&rocm);
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
    let bytes = Recorder::<Rocm>::record(&recorder, own.clone().into_record(), ()).unwrap();
    let again = own.load_record(Recorder::<Rocm>::load(&recorder, bytes, &rocm).unwrap());
    assert_eq!(again.weights.unwrap().into_data().to_vec::<f32>().unwrap(), weights);
    let theirs = || {
        burns::BinaryCrossEntropyLossConfig::new()
            .with_weights(Some(weights.clone()))
            .with_logits(true)
            .init::<Flex>(&flex)
    };
    let own = loss::BinaryCrossEntropyLossConfig::new()
        .with_weights(Some(weights.clone()))
        .with_logits(true)
        .init::<Rocm>(&rocm);
    same!("binary cross entropy", theirs(), own, theirs(), x, |module, x| {
        let targets = x.clone().greater_elem(0.5).int();
        module.forward(x, targets)
    });
    let (theirs, own) = (burns::MseLoss::new, loss::MseLoss::new());
    same!("mean squared error", theirs(), own, theirs(), x, |module, x| {
        module.forward(x.clone(), x * 0.5, loss::Reduction::Mean)
    });
    let (theirs, own) = (|| burns::HuberLossConfig::new(0.7).init(), loss::HuberLossConfig::new(0.7).init());
    same!("Huber's", theirs(), own, theirs(), x, |module, x| module.forward_residuals(x));
}

/// Modules that Burn lacks, or that have no parameters in Burn: records store nothing for them.
#[test]
fn modules_without_parameters() {
    fn check<M: Module<Rocm> + ToString>(module: M) {
        let recorder = NamedMpkBytesRecorder::<FullPrecisionSettings>::default();
        let text = module.to_string();
        let bytes = Recorder::<Rocm>::record(&recorder, module.clone().into_record(), ()).unwrap();
        let record = Recorder::<Rocm>::load(&recorder, bytes.clone(), &Default::default()).unwrap();
        let again = module.load_record(record);
        assert_eq!((again.to_string(), again.num_params()), (text, 0));
        assert_eq!(Recorder::<Rocm>::record(&recorder, again.into_record(), ()).unwrap(), bytes);
    }
    check(ours::Silu::new());
    check(ours::AddAct::new(Act::Gelu));
    check(ours::MulAdd::new());
    check(ours::MaxPool3dConfig::new([2; 3]).init());
    check(ours::AvgPool3dConfig::new([2; 3]).init());
}
