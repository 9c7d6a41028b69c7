//! The settings from the environment. `lib.rs` documents the variables in one table.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroUsize;

/// The settings of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How many GPUs there are.
    pub devices: usize,
    /// The memory of each GPU, in bytes.
    pub memory: u64,
    /// The compute units that each GPU reports.
    pub units: u32,
    /// Whether each GPU says that it is an APU.
    pub apu: bool,
    /// The threads that run workgroups.
    pub threads: usize,
    /// Whether new device memory, registers and LDS hold 0xff bytes.
    pub poison: bool,
    /// Whether the waves of a workgroup take turns after a barrier.
    pub turns: bool,
    /// Whether conflicting accesses to LDS or global memory that nothing orders are faults.
    pub races: bool,
    /// The vector instructions of the host to use at most: `portable`, `avx2` or `avx512`, else its best.
    /// [`crate::isa`] reads the variable itself.
    pub level: Option<String>,
    /// Whether each launch is reported on stderr, with the number of its instructions.
    pub statistics: bool,
    /// The file that gets what the waves of each launch did.
    pub counters: Option<OsString>,
    /// Where calls are logged: a path, or `stderr`.
    pub log: Option<OsString>,
}

/// What `VIRTUAL_GPU_LEVEL` may ask for.
const LEVELS: [&str; 3] = ["portable", "avx2", "avx512"];

/// A variable with an invalid value.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{variable}={value}: expected {expected}")]
pub struct InvalidSetting {
    variable: &'static str,
    value: String,
    expected: &'static str,
}

impl InvalidSetting {
    fn new(variable: &'static str, value: &OsStr, expected: &'static str) -> Self {
        Self { variable, value: value.to_string_lossy().into_owned(), expected }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            devices: 1,
            memory: 8192 << 20,
            // MIOpen's find-db for gfx1030 is for 36 units. HIP halves the number for a GPU whose
            // workgroups run on pairs of compute units.
            units: 72,
            apu: false,
            threads: std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
            poison: false,
            turns: true,
            races: false,
            level: None,
            statistics: false,
            counters: None,
            log: None,
        }
    }
}

impl Settings {
    /// The settings of this process's environment.
    ///
    /// # Errors
    /// The first variable whose value is invalid.
    pub fn from_env() -> Result<Self, InvalidSetting> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// The settings from the values that `lookup` returns by name.
    fn from_variables(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, InvalidSetting> {
        let number = |variable, least: u64, most: u64, default: u64, expected| match lookup(variable) {
            None => Ok(default),
            Some(value) => match value.to_str().map(str::parse) {
                Some(Ok(number)) if (least..=most).contains(&number) => Ok(number),
                _ => Err(InvalidSetting::new(variable, &value, expected)),
            },
        };
        let switch = |variable, default| match lookup(variable) {
            None => Ok(default),
            Some(value) if value == "0" => Ok(false),
            Some(value) if value == "1" => Ok(true),
            Some(other) => Err(InvalidSetting::new(variable, &other, "0 or 1")),
        };
        let level = match lookup("VIRTUAL_GPU_LEVEL") {
            None => None,
            Some(value) => match value.to_str().filter(|level| LEVELS.contains(level)) {
                Some(level) => Some(level.to_owned()),
                None => {
                    let expected = "portable, avx2 or avx512";
                    return Err(InvalidSetting::new("VIRTUAL_GPU_LEVEL", &value, expected));
                }
            },
        };
        let default = Self::default();
        Ok(Self {
            devices: number("VIRTUAL_GPU_DEVICES", 0, 16, default.devices as u64, "0 to 16")? as usize,
            memory: number("VIRTUAL_GPU_MEMORY_MIB", 1, 1 << 20, default.memory >> 20, "1 to 1048576")? << 20,
            units: number("VIRTUAL_GPU_UNITS", 2, 1024, default.units.into(), "2 to 1024")? as u32,
            threads: number("VIRTUAL_GPU_THREADS", 1, 1024, default.threads as u64, "1 to 1024")? as usize,
            apu: switch("VIRTUAL_GPU_APU", default.apu)?,
            poison: switch("VIRTUAL_GPU_POISON", default.poison)?,
            turns: switch("VIRTUAL_GPU_YIELD", default.turns)?,
            races: switch("VIRTUAL_GPU_RACES", default.races)?,
            level,
            statistics: switch("VIRTUAL_GPU_STATISTICS", default.statistics)?,
            counters: lookup("VIRTUAL_GPU_COUNTERS").filter(|to| !to.is_empty()),
            log: lookup("VIRTUAL_GPU_LOG").filter(|to| !to.is_empty()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        let with = |name: &'static str, value: &'static str| {
            Settings::from_variables(move |asked| (asked == name).then(|| value.into()))
        };
        assert_eq!(with("OTHER", "1").expect("nothing is set"), Settings::default());
        assert_eq!(with("VIRTUAL_GPU_DEVICES", "2").expect("2 is valid").devices, 2);
        assert_eq!(with("VIRTUAL_GPU_MEMORY_MIB", "64").expect("64 is valid").memory, 64 << 20);
        assert!(with("VIRTUAL_GPU_APU", "1").expect("1 is valid").apu);
        assert!(!with("VIRTUAL_GPU_YIELD", "0").expect("0 is valid").turns);
        for level in LEVELS {
            assert_eq!(with("VIRTUAL_GPU_LEVEL", level).expect("a level").level.as_deref(), Some(level));
        }
        for (name, value) in [
            ("VIRTUAL_GPU_DEVICES", "17"),
            ("VIRTUAL_GPU_THREADS", "0"),
            ("VIRTUAL_GPU_MEMORY_MIB", "-1"),
            ("VIRTUAL_GPU_POISON", "yes"),
            ("VIRTUAL_GPU_UNITS", ""),
            ("VIRTUAL_GPU_RACES", "true"),
            ("VIRTUAL_GPU_LEVEL", "AVX2"),
            ("VIRTUAL_GPU_LEVEL", ""),
        ] {
            let error = with(name, value).expect_err("the value is not valid");
            assert!(error.to_string().starts_with(&format!("{name}={value}: ")), "{error}");
        }
    }

    /// Paths are kept as they are. Other values are refused.
    #[test]
    fn values_may_not_be_utf8() {
        use std::os::unix::ffi::OsStrExt;

        let with = |name: &'static str, value: &'static [u8]| {
            Settings::from_variables(move |asked| {
                (asked == name).then(|| OsStr::from_bytes(value).to_owned())
            })
        };
        let path = b"/tmp/caf\xe9.tsv";
        let counters = with("VIRTUAL_GPU_COUNTERS", path).expect("a path").counters;
        assert_eq!(counters.as_deref(), Some(OsStr::from_bytes(path)));
        let log = with("VIRTUAL_GPU_LOG", path).expect("a path").log;
        assert_eq!(log.as_deref(), Some(OsStr::from_bytes(path)));
        for (name, value) in [
            ("VIRTUAL_GPU_DEVICES", &b"1\xe9"[..]),
            ("VIRTUAL_GPU_RACES", b"1\xe9"),
            ("VIRTUAL_GPU_LEVEL", b"avx2\xe9"),
        ] {
            let error = with(name, value).expect_err("the value is not valid");
            assert!(error.to_string().starts_with(&format!("{name}=")), "{error}");
        }
    }

    #[test]
    fn every_variable_is_documented() {
        let asked = std::cell::RefCell::new(Vec::new());
        let found = Settings::from_variables(|name| {
            asked.borrow_mut().push(name.to_owned());
            None
        });
        assert!(found.is_ok());
        let docs = include_str!("lib.rs");
        for name in asked.into_inner() {
            assert!(docs.contains(&format!("//! | `{name}` |")), "lib.rs has no row for {name}");
        }
    }
}
