//! What the settings' variables may say.

use super::*;

/// A folder of the user, and this project's cache folder in it.
const USER: (&str, &str) =
    if cfg!(windows) { ("LOCALAPPDATA", r"C:\Users\a\Local") } else { ("HOME", "/home/a") };

fn cache_of_user() -> Option<PathBuf> {
    let user = PathBuf::from(USER.1);
    Some(if cfg!(windows) { user } else { user.join(".cache") }.join("burn-rocm"))
}

fn with(pairs: &[(&str, &str)]) -> Result<Config> {
    Config::read(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
}

#[test]
fn nothing_set_is_auto_without_limits() {
    let settings = with(&[USER]).unwrap();
    assert_eq!(settings.provider, None);
    assert!(!settings.deterministic);
    assert_eq!(settings.norm, Route::Auto);
    assert_eq!(settings.memory_limit, None);
    assert_eq!(settings.attention_scores, 256 << 20);
    assert_eq!(settings.chain, None);
    assert_eq!(settings.cache_directory(), cache_of_user());
}

#[test]
fn an_unknown_provider_names_what_there_is() {
    let error = with(&[("BURN_ROCM_PROVIDER", "opencl")]).unwrap_err();
    assert_eq!(error, Error::config("BURN_ROCM_PROVIDER", "one of auto, rocm, cuda, cpu", "`opencl`"),);
}

#[test]
fn a_switch_is_read_as_the_settings_are() {
    let read = |value: Option<&str>| switch("BURN_ROCM_FUZZ_SURVEY", value.map(Into::into));
    for value in [None, Some(""), Some("0"), Some("off"), Some("false")] {
        assert_eq!(read(value), Ok(false), "{value:?}");
    }
    for value in ["1", "on", "true"] {
        assert_eq!(read(Some(value)), Ok(true), "{value}");
    }
    let error = read(Some("yes")).unwrap_err();
    assert_eq!(error, Error::config("BURN_ROCM_FUZZ_SURVEY", "one of 0, 1, off, on, false, true", "`yes`"));
}

#[test]
fn values_that_make_no_sense_are_refused() {
    for (name, value) in [
        ("BURN_ROCM_DETERMINISTIC", "yes please"),
        ("BURN_ROCM_MEMORY_LIMIT", "lots"),
        ("BURN_ROCM_MEMORY_LIMIT", "99999999999G"),
        ("BURN_ROCM_MEMORY_PERCENT", "0"),
        ("BURN_ROCM_MEMORY_PERCENT", "101"),
        ("BURN_ROCM_MEMORY_PERCENT", "50%"),
        ("BURN_ROCM_MEMORY_PERCENT", "0.5"),
        ("BURN_ROCM_MEMORY_POOL", "none"),
        ("BURN_ROCM_MEMORY_SPLIT", "1023K"),
        ("BURN_ROCM_MEMORY_SPLIT", "all"),
        ("BURN_ROCM_CACHE_LIMIT", "-1"),
        ("BURN_ROCM_ATTENTION_SCORES", "none"),
        ("BURN_ROCM_CACHE", "maybe"),
        ("BURN_ROCM_CONV", "rocblas"),
        ("BURN_ROCM_MATMUL", "miopen"),
        ("BURN_ROCM_F16_ALTERNATIVE", "1"),
        ("BURN_ROCM_CONV_FIND", "quick"),
        ("BURN_ROCM_GEMM_FIND", "on"),
        ("BURN_ROCM_HIPBLASLT", "1"),
        ("BURN_ROCM_CONV_FRESH", "-1"),
        ("BURN_ROCM_CHANNELS_LAST", "1"),
        ("BURN_ROCM_NORM", "layer"),
        ("BURN_ROCM_CHAIN", "17"),
        ("BURN_ROCM_CHAIN", "on"),
        ("BURN_ROCM_CUDA_TF32", "yes"),
        ("BURN_ROCM_COLLECTIVE_TIMEOUT", "0"),
        ("BURN_ROCM_COLLECTIVE_TIMEOUT", "1e-12"),
        ("BURN_ROCM_COLLECTIVE_TIMEOUT", "nan"),
        ("BURN_ROCM_COLLECTIVE_TIMEOUT", "86401"),
        ("BURN_ROCM_COLLECTIVE_TIMEOUT", "10m"),
        ("BURN_ROCM_COLLECTIVE_CHECK", "all"),
        ("BURN_ROCM_PROFILE", "1"),
        ("BURN_ROCM_PROFILE", "table.txt"),
        ("BURN_ROCM_PROFILE", ".json"),
        ("BURN_ROCM_RANGES", "roctx"),
        ("BURN_ROCM_PRESET", "fast"),
        ("BURN_ROCM_STRICT", "yes"),
        ("BURN_ROCM_MATRIX_CORES", "auto"),
        ("BURN_ROCM_LOADED_LIMIT", "all"),
        ("BURN_ROCM_ARCH", "native"),
        ("BURN_ROCM_ARCH", "gfx"),
        ("BURN_ROCM_ARCH", "gfx90a xnack-"),
        ("BURN_ROCM_ARCH", "gfx90a:xnack"),
        ("BURN_ROCM_ARCH", "gfx90a:"),
        ("BURN_ROCM_ARCH", "gfx10-"),
        ("BURN_ROCM_ARCH", "gfx1030 -DX"),
    ] {
        match with(&[(name, value)]).unwrap_err() {
            Error::Config { what, found, .. } => {
                assert_eq!((what.as_str(), found), (name, format!("`{value}`")));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn values_that_are_not_utf8_are_refused_and_paths_may_be_so() {
    #[cfg(unix)]
    let broken = || -> OsString { std::os::unix::ffi::OsStringExt::from_vec(b"cp\xff".to_vec()) };
    // Half of a pair of surrogates.
    #[cfg(windows)]
    let broken = || -> OsString { std::os::windows::ffi::OsStringExt::from_wide(&[99, 112, 0xd800]) };
    for name in ["BURN_ROCM_PROVIDER", "BURN_ROCM_CACHE", "BURN_ROCM_MEMORY_LIMIT", "BURN_ROCM_CHAIN"] {
        match Config::read(|asked| (asked == name).then(broken)) {
            Err(Error::Config { what, found, .. }) => {
                assert_eq!((what.as_str(), found.as_str()), (name, "`cp\u{fffd}`"));
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    let settings = Config::read(|asked| (asked == "BURN_ROCM_CACHE_DIR").then(broken)).unwrap();
    assert_eq!(settings.cache_directory(), Some(broken().into()));
}

#[test]
fn who_convolves_and_how() {
    let settings = with(&[]).unwrap();
    assert_eq!((settings.conv, settings.conv_find), (Route::Auto, FindMode::Auto));
    assert_eq!(settings.gemm_find, GemmFind::Off);
    assert_eq!(with(&[("BURN_ROCM_GEMM_FIND", "auto")]).unwrap().gemm_find, GemmFind::Auto);
    assert_eq!(settings.hipblaslt, HipblasLt::Off);
    assert_eq!(with(&[("BURN_ROCM_HIPBLASLT", "auto")]).unwrap().hipblaslt, HipblasLt::Auto);
    assert_eq!(with(&[("BURN_ROCM_HIPBLASLT", "on")]).unwrap().hipblaslt, HipblasLt::On);
    let settings = with(&[("BURN_ROCM_CONV", "own"), ("BURN_ROCM_CONV_FIND", "find")]).unwrap();
    assert_eq!((settings.conv, settings.conv_find), (Route::Own, FindMode::Find));
    assert_eq!(with(&[("BURN_ROCM_CONV", "miopen")]).unwrap().conv, Route::Library);
}

#[test]
fn who_multiplies_and_by_which_implementation() {
    let settings = with(&[]).unwrap();
    assert_eq!((settings.matmul, settings.f16_alternative), (Route::Auto, F16Alternative::Gradients));
    assert_eq!(with(&[("BURN_ROCM_MATMUL", "own")]).unwrap().matmul, Route::Own);
    assert_eq!(with(&[("BURN_ROCM_MATMUL", "rocblas")]).unwrap().matmul, Route::Library);
    let all = with(&[("BURN_ROCM_F16_ALTERNATIVE", "all")]).unwrap();
    assert_eq!(all.f16_alternative, F16Alternative::All);
}

#[test]
fn limits_take_suffixes_and_the_cache_has_its_order() {
    let settings = with(&[
        ("BURN_ROCM_MEMORY_LIMIT", "3G"),
        ("BURN_ROCM_CACHE_LIMIT", "16m"),
        ("BURN_ROCM_ATTENTION_SCORES", "64k"),
        ("BURN_ROCM_NORM", "miopen"),
        USER,
    ])
    .unwrap();
    assert_eq!(settings.memory_limit, Some(3 << 30));
    assert_eq!(settings.cache_limit, 16 << 20);
    assert_eq!(settings.attention_scores, 64 << 10);
    assert_eq!(settings.norm, Route::Library);
    assert_eq!(settings.cache_directory(), cache_of_user());
    let settings = with(&[("BURN_ROCM_CACHE_DIR", "/own"), USER]).unwrap();
    assert_eq!(settings.cache_directory(), Some("/own".into()));
    let off = with(&[("BURN_ROCM_CACHE", "0"), USER]).unwrap();
    assert_eq!(off.cache_directory(), None);
}

#[test]
fn each_system_has_its_cache_folder() {
    let cache = |windows, pairs: &[(&str, &str)]| {
        user_cache(windows, |name| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
    };
    let local = if cfg!(windows) { r"C:\local" } else { "/local" };
    let (unix, windows) = (("HOME", "/home/a"), ("LOCALAPPDATA", local));
    assert_eq!(cache(false, &[unix, windows]), Some("/home/a/.cache/burn-rocm".into()));
    assert_eq!(cache(true, &[unix, windows]), Some(PathBuf::from(local).join("burn-rocm")));
    assert_eq!(cache(true, &[unix]), None);
    assert_eq!(cache(true, &[("LOCALAPPDATA", "relative")]), None);
    assert_eq!(cache(false, &[("XDG_CACHE_HOME", "relative")]), None);
    if cfg!(unix) {
        let xdg = ("XDG_CACHE_HOME", "/var/xdg");
        assert_eq!(cache(false, &[unix, xdg]), Some("/var/xdg/burn-rocm".into()));
    }
}

#[test]
fn a_device_may_have_a_limit_of_its_own() {
    let config = Config::default().device_memory_limit(1, 5).device_memory_limit(2, None).memory_limit(7);
    assert_eq!([0, 1, 2].map(|device| config.memory_limit_of(device, 100)), [Some(7), Some(5), None]);
    // The smaller limit counts.
    let config = config.memory_percent(6);
    assert_eq!([0, 1, 2].map(|device| config.memory_limit_of(device, 100)), [Some(6), Some(5), Some(6)]);
    assert_eq!(config.memory_limit_of(2, usize::MAX), Some((usize::MAX as u128 * 6 / 100) as usize));
    assert_eq!(Config::default().memory_percent(100).memory_limit_of(0, usize::MAX), Some(usize::MAX));
}

#[test]
fn a_profile_is_a_table_or_a_file_for_perfetto() {
    let of = |value| with(&[("BURN_ROCM_PROFILE", value)]).unwrap().profile;
    assert_eq!(of(""), ProfileOutput::None);
    assert_eq!(of("table"), ProfileOutput::Table);
    assert_eq!(of("runs/a.json"), ProfileOutput::Trace("runs/a.json".into()));
    let error = Config::default().profile(PathBuf::from("a.txt")).install().unwrap_err();
    let expected = "table, or a path that ends in .json";
    assert_eq!(error, Error::config("Config::profile", expected, "`a.txt`"));
}

#[test]
fn a_timeout_that_no_clock_can_hold_is_refused() {
    for timeout in [Duration::ZERO, Duration::from_micros(1), Duration::MAX] {
        let error = Config::default().collective_timeout(timeout).install().unwrap_err();
        assert!(error.to_string().contains("1 ms to 1 day"), "{error}");
    }
}

#[test]
fn an_installed_value_is_checked() {
    let error = Config::default().chain(17).install().unwrap_err();
    assert_eq!(error, Error::config("Config::chain", "auto, or ops from 0 to 16", "17"));
}

/// A preset is a set of other settings, and each variable overrides it.
#[test]
fn presets_are_sets_of_settings() {
    let of = |preset| with(&[("BURN_ROCM_PRESET", preset), USER]).unwrap();
    let default = with(&[USER]).unwrap();
    assert_eq!(of("balanced"), default);
    let conservative = default
        .clone()
        .deterministic(true)
        .conv_find(FindMode::Immediate)
        .norm(Route::Own)
        .chain(0)
        .matrix_cores(false)
        .collective_check(true);
    assert_eq!(of("conservative"), conservative);
    let aggressive =
        default.clone().conv_find(FindMode::Find).channels_last(ChannelsLast::On).attention_scores(1 << 30);
    assert_eq!(of("aggressive"), aggressive);
    let pairs = [("BURN_ROCM_DETERMINISTIC", "0"), ("BURN_ROCM_PRESET", "conservative"), USER];
    assert_eq!(with(&pairs).unwrap(), conservative.deterministic(false));
    assert_eq!(Config::balanced(), Config::default());
    assert_eq!(Config::conservative(), Config::default().preset(Preset::Conservative));
    assert_eq!(Config::aggressive(), Config::default().preset(Preset::Aggressive));
}

#[test]
fn architectures_are_llvms() {
    for arch in ["gfx1030", "gfx90a:sramecc+:xnack-", "gfx10-3-generic", "sm_90"] {
        assert_eq!(with(&[("BURN_ROCM_ARCH", arch)]).unwrap().architecture.as_deref(), Some(arch));
    }
    let error = Config::default().architecture("native".to_owned()).install().unwrap_err();
    assert!(error.to_string().contains("Config::architecture"), "{error}");
}
