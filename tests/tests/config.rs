//! Settings as a value: their sources, what is refused, and that the guide lists each.
#![allow(missing_docs, clippy::unwrap_used)]

use burn_rocm::{Config, ProviderKind, RocmDevice, RocmError};
use burn_rocm_tests::*;

const CHILD: &str = "BURN_ROCM_TEST_CONFIG_CHILD";

/// Runs `body` in a separate process with this environment, because a process fixes its settings
/// once.
#[track_caller]
fn alone(test: &str, environment: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    // An empty variable counts as not set, so this run's environment does not reach the child.
    let mut all: Vec<_> = hip::SETTINGS.iter().map(|setting| (setting.variable, "")).collect();
    all.extend_from_slice(&[(CHILD, "1"), ("BURN_ROCM_CPU_DEVICES", "2"), ("BURN_ROCM_LAUNCH_REACH", "")]);
    all.extend_from_slice(environment);
    again(&["--exact", test, "--nocapture"], &all);
}

/// The variable that an error names, its allowed values and the value found.
fn config_error<T: std::fmt::Debug>(result: Result<T, RocmError>) -> (String, String, String) {
    match result {
        Err(RocmError::Config { what, expected, found }) => (what, expected, found),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_installed_config_counts_instead_of_the_environment() {
    let environment = [("BURN_ROCM_PROVIDER", "rocm"), ("BURN_ROCM_MEMORY_LIMIT", "nonsense")];
    alone("an_installed_config_counts_instead_of_the_environment", &environment, || {
        let config = Config::default().provider(ProviderKind::Cpu).memory_limit(128 << 20);
        config.device_memory_limit(1, 32 << 20).deterministic(true).chain(4).cache(false).install().unwrap();
        assert_eq!(burn_rocm::provider().unwrap().kind(), ProviderKind::Cpu);
        assert!(hip::deterministic());
        assert_eq!(burn_rocm::code_cache().directory(), None);
        let [first, second] = RocmDevice::all().unwrap().try_into().unwrap();
        assert_eq!(hip::Device::get(0).unwrap().chain_limit(), 4);
        let fits = |device: &RocmDevice, bytes| hip::Device::get(device.index).unwrap().alloc(bytes).is_ok();
        assert_eq!([fits(&first, 32 << 20), fits(&first, 256 << 20)], [true, false]);
        assert_eq!([fits(&second, 1 << 20), fits(&second, 64 << 20)], [true, false]);
        second.set_memory_limit(None).unwrap();
        assert!(fits(&second, 64 << 20));
    });
}

#[test]
fn a_config_that_comes_too_late_is_refused() {
    let environment = [("BURN_ROCM_PROVIDER", "cpu")];
    alone("a_config_that_comes_too_late_is_refused", &environment, || {
        RocmDevice::default().info().unwrap();
        assert_eq!(config_error(Config::default().install()).0, "Config::install");
    });
}

#[test]
fn a_process_takes_one_config() {
    alone("a_process_takes_one_config", &[], || {
        assert_eq!(config_error(Config::default().chain(17).install()).0, "Config::chain");
        Config::default().provider(ProviderKind::Cpu).install().unwrap();
        assert_eq!(config_error(Config::default().install()).0, "Config::install");
        assert_eq!(burn_rocm::provider().unwrap().kind(), ProviderKind::Cpu);
    });
}

#[test]
fn a_wrong_value_names_variable_value_and_choices() {
    let environment = [("BURN_ROCM_CONV", "rocblas")];
    alone("a_wrong_value_names_variable_value_and_choices", &environment, || {
        let expected = ("BURN_ROCM_CONV".into(), "one of auto, miopen, own".into(), "`rocblas`".into());
        assert_eq!(config_error(Config::from_env()), expected);
        assert_eq!(config_error(RocmDevice::default().info()), expected);
    });
}

#[test]
fn the_environment_says_what_the_program_does_not() {
    let environment =
        [("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CHAIN", "3"), ("BURN_ROCM_MEMORY_LIMIT", "8M")];
    alone("the_environment_says_what_the_program_does_not", &environment, || {
        let env = Config::from_env().unwrap();
        assert_eq!(env.chain(None).provider(None).memory_limit(None), Config::default());
        Config::from_env().unwrap().deterministic(true).install().unwrap();
        assert_eq!(burn_rocm::provider().unwrap().kind(), ProviderKind::Cpu);
        let device = hip::Device::get(0).unwrap();
        assert_eq!((device.chain_limit(), hip::deterministic()), (3, true));
        assert!(device.alloc(16 << 20).is_err());
    });
}

#[test]
fn the_pools_settings_reach_the_device() {
    let environment = [("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_MEMORY_SPLIT", "32M")];
    alone("the_pools_settings_reach_the_device", &environment, || {
        for (config, setting) in [
            (Config::default().memory_percent(0), "Config::memory_percent"),
            (Config::default().memory_percent(101), "Config::memory_percent"),
            (Config::default().memory_split(4096), "Config::memory_split"),
        ] {
            assert_eq!(config_error(config.install()).0, setting);
        }
        Config::from_env().unwrap().memory_percent(50).memory_pool(false).install().unwrap();
        let device = hip::Device::get(0).unwrap();
        let block = device.alloc(1000).unwrap();
        assert_eq!(device.pool().stats().reserved, 1024);
        drop(block);
        let next = device.alloc(5000).unwrap();
        assert_eq!(device.pool().stats().reserved, 5120);
        drop(next);
        let total = device.info().total_memory;
        match device.alloc(total / 5 * 3).map(|_| ()) {
            Err(error @ RocmError::OutOfMemory { total: limit, .. }) => {
                assert_eq!(limit, total / 2);
                assert!(error.to_string().contains("BURN_ROCM_MEMORY_PERCENT"), "{error}");
            }
            other => panic!("{other:?}"),
        }
        // Ops compute the same.
        let x = R::float_ones(Shape::from(vec![300, 300]), &RocmDevice::new(0), FloatDType::F32);
        let product = read_float::<R>(R::float_matmul(x.clone(), x));
        assert!(product.iter::<f32>().all(|value| value == 300.0));
    });
}

#[test]
fn devices_are_listed_and_one_is_the_default() {
    let environment = [("BURN_ROCM_PROVIDER", "cpu")];
    alone("devices_are_listed_and_one_is_the_default", &environment, || {
        assert_eq!(RocmDevice::all().unwrap(), [RocmDevice::new(0), RocmDevice::new(1)]);
        assert_eq!(RocmDevice::current(), RocmDevice::new(0));
        RocmDevice::new(1).set_default().unwrap();
        assert_eq!((RocmDevice::current(), RocmDevice::default()), (RocmDevice::new(1), RocmDevice::new(1)));
        assert_eq!(config_error(RocmDevice::new(2).set_default()).2, "2");
        let device = RocmDevice::current();
        let info = device.info().unwrap();
        assert_eq!(info.provider, ProviderKind::Cpu);
        assert_eq!(info.matrix_types.contains(&DType::F32), info.architecture.starts_with("gfx90a"));
        assert!(
            info.memory > 0 && info.compute_units > 0 && info.wave_size > 0 && !info.architecture.is_empty()
        );

        let tensor = R::float_ones(Shape::from(vec![1 << 20]), &device, FloatDType::F32);
        device.synchronize().unwrap();
        drop(tensor);
        let stats = device.memory_stats().unwrap();
        assert!(stats.peak >= 4 << 20 && stats.reserved >= stats.peak, "{stats:?}");
        device.reset_peak_memory().unwrap();
        assert!(device.memory_stats().unwrap().peak < 4 << 20);
        let counters = device.counters().unwrap();
        assert!(counters.launches + counters.waits > 0, "{counters:?}");
        let (free, total) = device.free_and_total_memory().unwrap();
        assert!(free <= total);
    });
}

/// Runs `body` with `BURN_ROCM_STRICT=1` and without it.
#[track_caller]
fn strictly(test: &str, environment: &[(&str, &str)], body: impl Fn(bool)) {
    if std::env::var_os(CHILD).is_some() {
        return body(std::env::var("BURN_ROCM_STRICT").is_ok_and(|value| value == "1"));
    }
    for strict in ["1", "0"] {
        alone(test, &[environment, &[("BURN_ROCM_STRICT", strict)]].concat(), || {});
    }
}

/// Whether a product and a norm work, or the errors of those that don't.
fn product_and_norm() -> [Result<(), RocmError>; 2] {
    let device = RocmDevice::new(0);
    let ones = |shape: &[usize]| R::float_ones(Shape::from(shape.to_vec()), &device, FloatDType::F32);
    let (x, row) = (ones(&[8, 8]), ones(&[8]));
    let _ = burn_rocm::take_last_error();
    let product = std::panic::catch_unwind(|| drop(R::float_matmul(x.clone(), x.clone())));
    let product = product.map_err(|_| burn_rocm::take_last_error().unwrap());
    [product, burn_rocm::fused::layer_norm(x, row, None, 1e-5).map(drop)]
}

#[test]
fn strict_settings_forbid_that_kernels_replace_a_library() {
    let environment = [
        ("BURN_ROCM_PROVIDER", "cpu"),
        ("BURN_ROCM_CPU_FAIL", "miopenCreateWithStream,rocblas_create_handle"),
    ];
    strictly("strict_settings_forbid_that_kernels_replace_a_library", &environment, |strict| {
        let [product, norm] = product_and_norm();
        assert_eq!(matches!(product, Err(RocmError::Rocblas { .. })), strict, "{product:?}");
        assert_eq!(matches!(norm, Err(RocmError::Miopen { .. })), strict, "{norm:?}");
        assert_eq!([product.is_ok(), norm.is_ok()], [!strict; 2]);
    });
}

/// What MIOpen lacks by design is no failure, so kernels compute it in either case.
#[test]
fn strict_settings_allow_what_is_not_a_warning() {
    let environment = [("BURN_ROCM_PROVIDER", "cpu")];
    strictly("strict_settings_allow_what_is_not_a_warning", &environment, |_| {
        let device = RocmDevice::new(0);
        let ones = |shape: &[usize]| R::float_ones(Shape::from(shape.to_vec()), &device, FloatDType::F64);
        burn_rocm::fused::layer_norm(ones(&[8, 8]), ones(&[8]), None, 1e-5).unwrap();
        assert!(product_and_norm().into_iter().all(|done| done.is_ok()));
    });
}

#[test]
fn strict_settings_forbid_the_cpu_device_in_place_of_a_gpu() {
    strictly("strict_settings_forbid_the_cpu_device_in_place_of_a_gpu", &[], |strict| {
        match burn_rocm::provider() {
            Ok(provider) => assert!(!strict || provider.kind() != ProviderKind::Cpu),
            Err(error) => {
                assert!(strict, "{error}");
                assert!(matches!(error, RocmError::NotAvailable { .. }), "{error:?}");
                assert!(error.to_string().contains("only the CPU device"), "{error}");
            }
        }
    });
}

#[test]
fn strict_settings_want_the_cache() {
    let test = "strict_settings_want_the_cache";
    // A file is no folder.
    let file = std::env::current_exe().unwrap();
    let environment = [("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CACHE_DIR", file.to_str().unwrap())];
    strictly(test, &environment, |strict| {
        let program = hip::Program {
            name: "one.hip",
            source: "extern \"C\" __global__ void one(int *x) { x[0] = 1; }",
            headers: &[],
            options: &[],
        };
        let kernel = hip::Device::get(0).unwrap().kernel(&program, "one").map(drop);
        assert_eq!(matches!(kernel, Err(RocmError::Config { .. })), strict, "{kernel:?}");
        assert_eq!(kernel.is_ok(), !strict);
    });
}

/// The CPU device has no profiler's library.
#[test]
fn strict_settings_want_ranges() {
    let ranges = [("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_RANGES", "1")];
    strictly("strict_settings_want_ranges", &ranges, |strict| {
        let opened = RocmDevice::new(0).info().map(drop);
        assert_eq!(matches!(opened, Err(RocmError::NotAvailable { .. })), strict, "{opened:?}");
        assert_eq!(opened.is_ok(), !strict);
    });
}

#[test]
fn kernels_are_compiled_for_an_architecture_that_the_device_runs() {
    let test = "kernels_are_compiled_for_an_architecture_that_the_device_runs";
    for arch in ["gfx10-3-generic", "gfx1030", "gfx1031"] {
        let environment =
            [("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CPU_ARCH", "gfx1030"), ("BURN_ROCM_ARCH", arch)];
        if std::env::var_os(CHILD).is_some() && std::env::var("BURN_ROCM_ARCH").as_deref() != Ok(arch) {
            continue;
        }
        alone(test, &environment, || {
            let opened = RocmDevice::new(0).info();
            if arch == "gfx1031" {
                let (what, expected, found) = config_error(opened);
                assert!(what.contains("BURN_ROCM_ARCH"), "{what}");
                assert!(expected.contains("gfx1030") && expected.contains("gfx10-3-generic"), "{expected}");
                return assert_eq!(found, "`gfx1031`");
            }
            assert_eq!(opened.unwrap().architecture, "gfx1030");
            // An error of the compiler shows the option.
            let broken = hip::Program { name: "broken.hip", source: "no C++", headers: &[], options: &[] };
            match hip::Device::get(0).unwrap().kernel(&broken, "none").map(drop) {
                Err(RocmError::Compilation { options, .. }) => {
                    assert!(options.contains(&format!("--offload-arch={arch}")), "{options:?}");
                }
                other => panic!("{other:?}"),
            }
            assert!(product_and_norm().into_iter().all(|done| done.is_ok()));
        });
    }
}

#[test]
fn loaded_kernels_stay_below_their_limit() {
    let environment = [("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_LOADED_LIMIT", "1")];
    alone("loaded_kernels_stay_below_their_limit", &environment, || {
        let device = RocmDevice::new(0);
        for size in 1..4 {
            let x = R::float_ones(Shape::from(vec![size, 3]), &device, FloatDType::F32);
            let y = R::float_exp(R::float_sqrt(x));
            assert!(read_float::<R>(y).iter::<f32>().all(|value| value == 1f32.exp()));
            assert!(hip::Device::get(0).unwrap().loaded_kernels().0 <= 1);
        }
    });
}

#[test]
fn a_preset_comes_from_the_environment_and_variables_override_it() {
    let test = "a_preset_comes_from_the_environment_and_variables_override_it";
    alone(test, &[("BURN_ROCM_PRESET", "conservative"), ("BURN_ROCM_CHAIN", "3")], || {
        assert_eq!(Config::from_env().unwrap(), Config::conservative().chain(3));
        assert_ne!(Config::conservative(), Config::balanced());
        assert_eq!(Config::balanced(), Config::default());
        let (what, ..) = config_error(Config::aggressive().architecture("native".to_owned()).install());
        assert_eq!(what, "Config::architecture");
        Config::from_env().unwrap().install().unwrap();
        assert!(hip::deterministic());
    });
}

/// The guide's first table equals the settings' table, followed by variables of other projects.
#[test]
fn the_guide_lists_the_settings() {
    let guide = include_str!("../../docs/guide/configuration.md");
    let rows: Vec<String> = hip::SETTINGS
        .iter()
        .map(|s| {
            format!("| `{}` | `{}` | {} | {} | {} |", s.variable, s.method, s.values, s.default, s.meaning)
        })
        .collect();
    let found: Vec<&str> = guide
        .lines()
        .skip_while(|line| !line.starts_with("| variable"))
        .skip(2)
        .take_while(|line| line.starts_with("| `BURN_ROCM_"))
        .collect();
    assert!(found == rows, "the table of docs/guide/configuration.md is to be:\n{}", rows.join("\n"));
}
