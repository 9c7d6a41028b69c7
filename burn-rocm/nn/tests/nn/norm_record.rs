//! The norms' records: they load what Burn's modules saved, and Burn's modules load theirs. Also
//! the norms' path on backends that this crate does not know.

use burn::module::{Module, Param, RunningState};
use burn::nn as theirs;
use burn::record::{BinBytesRecorder, FullPrecisionSettings, NamedMpkBytesRecorder, Recorder};
use burn_flex::Flex;
use burn_rocm::Rocm;
use burn_rocm_nn as ours;
use burn_rocm_tests::assert_close;
use burn_rocm_tests::trace::during;

use crate::norm::Case;
use crate::support::*;

/// Saves `$theirs` with each recorder and loads the record into `$ours`, whose record `$blank` then
/// loads. All give the same result for `$x`.
macro_rules! both_ways {
    ($name:literal, $x:expr, $theirs:expr, $ours:expr, $blank:expr) => {{
        let (theirs, device) = ($theirs, Default::default());
        let expected = theirs.forward(Tensor::<Flex, 3>::from_data($x, &device)).into_data();
        macro_rules! with {
            ($recorder:ty) => {{
                let recorder = <$recorder>::default();
                let bytes = Recorder::<Flex>::record(&recorder, theirs.clone().into_record(), ()).unwrap();
                let here =
                    $ours.load_record(Recorder::<Rocm>::load(&recorder, bytes, &Default::default()).unwrap());
                let found = here.forward(Tensor::<Rocm, 3>::from_data($x, &Default::default())).into_data();
                let what = concat!($name, " that Burn's module saved");
                let tolerance = Tolerance::of(DType::F32).times(200.0);
                assert_close(&what, &[found], std::slice::from_ref(&expected), tolerance);
                let bytes = Recorder::<Rocm>::record(&recorder, here.into_record(), ()).unwrap();
                let there = $blank.load_record(Recorder::<Flex>::load(&recorder, bytes, &device).unwrap());
                let found = there.forward(Tensor::<Flex, 3>::from_data($x, &device)).into_data();
                assert_eq!(found, expected, concat!($name, " that this one saved"));
            }};
        }
        with!(NamedMpkBytesRecorder<FullPrecisionSettings>);
        with!(BinBytesRecorder<FullPrecisionSettings>);
    }};
}

#[test]
fn records_of_burns_modules_load_and_back() {
    let random = Random::new();
    let (flex, rocm) = (Default::default(), Default::default());
    let x = || uniform(&random, &[2, 6, 6]).convert_dtype(DType::F32);
    let x = x();
    let values = |low| -> Tensor<Flex, 1> {
        let values: Vec<f64> = (0..6).map(|_| random.uniform(low, 2.0)).collect();
        Tensor::from_data(TensorData::new(values, [6]).convert_dtype(DType::F32), &flex)
    };
    let param = || Param::from_tensor(values(-2.0));

    let config = theirs::LayerNormConfig::new(6);
    let mut module = config.init::<Flex>(&flex);
    (module.gamma, module.beta) = (param(), Some(param()));
    let here = || ours::LayerNormConfig::new(6).init::<Rocm>(&rocm);
    both_ways!("layer norm", x.clone(), module, here(), config.init::<Flex>(&flex));

    let config = theirs::RmsNormConfig::new(6);
    let mut module = config.init::<Flex>(&flex);
    module.gamma = param();
    let here = || ours::RmsNormConfig::new(6).init::<Rocm>(&rocm);
    both_ways!("RMS norm", x.clone(), module, here(), config.init::<Flex>(&flex));

    let config = theirs::GroupNormConfig::new(3, 6);
    let mut module = config.init::<Flex>(&flex);
    (module.gamma, module.beta) = (Some(param()), Some(param()));
    let here = || ours::GroupNormConfig::new(3, 6).init::<Rocm>(&rocm);
    both_ways!("group norm", x.clone(), module, here(), config.init::<Flex>(&flex));

    let config = theirs::InstanceNormConfig::new(6);
    let mut module = config.init::<Flex>(&flex);
    (module.gamma, module.beta) = (Some(param()), Some(param()));
    let here = || ours::InstanceNormConfig::new(6).init::<Rocm>(&rocm);
    both_ways!("instance norm", x.clone(), module, here(), config.init::<Flex>(&flex));

    let config = theirs::BatchNormConfig::new(6);
    let mut module = config.init::<Flex>(&flex);
    (module.gamma, module.beta) = (param(), param());
    module.running_mean = RunningState::new(values(-2.0));
    module.running_var = RunningState::new(values(0.5));
    let here = || ours::BatchNormConfig::new(6).init::<Rocm>(&rocm);
    both_ways!("batch norm", x.clone(), module, here(), config.init::<Flex>(&flex));
}

/// On another project's backend, the composed path gives the results of Burn's modules, with
/// running statistics, and launches nothing.
#[test]
fn other_backends_compose() {
    let case = Case::new(&Random::new(), &[4, 6, 6], 6, DType::F32);
    let (_, lines) = during(|| {
        macro_rules! same {
            ($name:literal, $config:ident($($size:expr),*)) => {{
                macro_rules! of {
                    ($nn:ident) => {{
                        // New modules, whose parameters are not initialised before the forward
                        // pass.
                        let module = $nn::$config::new($($size),*).init::<Oracle>(&Default::default());
                        let [x, leaf] = case.input::<Oracle, 3>(DType::F32, true);
                        let out = module.forward(x);
                        let grads = case.loss(out.clone(), DType::F32).backward();
                        let mut all = vec![out.into_data(), leaf.grad(&grads).unwrap().into_data()];
                        all.extend(gradients_of(&module, &grads));
                        all
                    }};
                }
                let (found, expected): (Vec<TensorData>, Vec<TensorData>) = (of!(ours), of!(theirs));
                assert!(expected.len() > 2, "{} has parameters", $name);
                assert_eq!(found, expected, $name);
            }};
        }
        same!("layer norm", LayerNormConfig(6));
        same!("RMS norm", RmsNormConfig(6));
        same!("group norm", GroupNormConfig(3, 6));
        same!("instance norm", InstanceNormConfig(6));
        same!("batch norm", BatchNormConfig(6));
        let [x, _] = case.input::<Oracle, 3>(DType::F32, false);
        let here = ours::BatchNormConfig::new(6).init::<Oracle>(&Default::default());
        let there = theirs::BatchNormConfig::new(6).init::<Oracle>(&Default::default());
        here.forward(x.clone());
        there.forward(x);
        for (here, there) in
            [(&here.running_mean, &there.running_mean), (&here.running_var, &there.running_var)]
        {
            assert_eq!(here.value_sync().into_data(), there.value_sync().into_data());
        }
    });
    assert!(lines.is_empty(), "{lines:#?}");
}

/// A program prints the same after it changes its imports.
#[test]
fn displays_as_burns() {
    let device = Default::default();
    macro_rules! same {
        ($config:ident($($size:expr),*)) => {
            assert_eq!(
                format!("{}", ours::$config::new($($size),*).init::<Flex>(&device)),
                format!("{}", theirs::$config::new($($size),*).init::<Flex>(&device))
            )
        };
    }
    same!(LayerNormConfig(6));
    same!(RmsNormConfig(6));
    same!(GroupNormConfig(3, 6));
    same!(InstanceNormConfig(6));
    same!(BatchNormConfig(6));
}
