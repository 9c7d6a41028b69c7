//! What one run does, and which options it reads.

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory};

use crate::Options;

/// What one run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    ModelDecoding,
    Model,
    Launches,
    /// Also counts launches if asked to.
    Fused,
    TunedStart,
    Memory,
    Profile,
    Cupti,
    Devices,
    /// The cases of a GPU.
    Gpu,
    /// The cases of the CPU device.
    Cpu,
}

impl Mode {
    /// The mode that the options choose. `is_gpu` opens a device.
    pub(crate) fn of(options: &Options, is_gpu: impl Fn() -> bool) -> Self {
        match options {
            Options { model_decoding: true, .. } => Self::ModelDecoding,
            Options { model: Some(_), .. } => Self::Model,
            Options { fused: true, .. } => Self::Fused,
            Options { launches: true, .. } => Self::Launches,
            Options { tuned_start: true, .. } => Self::TunedStart,
            Options { memory: true, .. } => Self::Memory,
            Options { profile: true, .. } => Self::Profile,
            Options { cupti: Some(_), .. } => Self::Cupti,
            Options { shrink: ..=1, .. } if !is_gpu() => Self::Cpu,
            Options { devices, .. } if !devices.is_empty() => Self::Devices,
            _ => Self::Gpu,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::ModelDecoding => "--model-decoding",
            Self::Model => "--model",
            Self::Launches => "--launches",
            Self::Fused => "--fused",
            Self::TunedStart => "--tuned-start",
            Self::Memory => "--memory",
            Self::Profile => "--profile",
            Self::Cupti => "--cupti",
            Self::Devices => "--devices",
            Self::Gpu => "the cases of a GPU",
            Self::Cpu => "the cases of the CPU device",
        }
    }

    /// The options that the mode reads, by their fields' names.
    fn reads(self) -> &'static [&'static str] {
        match self {
            Self::ModelDecoding => &["model_decoding"],
            Self::Model => &["model", "filter"],
            Self::Launches => &["launches"],
            Self::Fused => &["fused", "launches", "iterations", "warmup", "filter", "csv", "shrink"],
            Self::TunedStart => &["tuned_start", "iterations", "filter", "bf16", "shrink"],
            Self::Memory => &["memory", "filter", "bf16", "verbose", "shrink"],
            Self::Profile => &["profile", "precision", "graph", "filter", "iterations", "warmup", "shrink"],
            Self::Cupti => &["cupti", "precision", "graph", "filter", "train", "inference", "shrink"],
            Self::Devices => &["devices", "iterations", "warmup", "filter", "bf16", "torch", "shrink"],
            Self::Gpu => &[
                "all",
                "matmul",
                "conv",
                "elementwise",
                "reduce",
                "softmax",
                "norm",
                "attention",
                "overhead",
                "train",
                "inference",
                "cold_start",
                "graph",
                "precision",
                "iterations",
                "warmup",
                "filter",
                "csv",
                "compare",
                "plot",
                "torch",
                "torch_compiled",
                "flex",
                "burn_cuda",
                "shrink",
            ],
            Self::Cpu => &[
                "all",
                "matmul",
                "conv",
                "elementwise",
                "reduce",
                "softmax",
                "attention",
                "overhead",
                "train",
                "families",
                "verbose",
                "cold_start",
                "iterations",
                "warmup",
                "csv",
                "shrink",
            ],
        }
    }

    /// Refuses options of the command line that the mode would ignore.
    ///
    /// # Errors
    /// The names of these options.
    pub(crate) fn check(self, given: &ArgMatches) -> Result<(), String> {
        let command = Options::command();
        let ignored: Vec<String> = command
            .get_arguments()
            .filter(|option| !self.reads().contains(&option.get_id().as_str()))
            .filter(|option| given.value_source(option.get_id().as_str()) == Some(ValueSource::CommandLine))
            .filter_map(|option| Some(format!("--{}", option.get_long()?)))
            .collect();
        if ignored.is_empty() {
            return Ok(());
        }
        Err(format!("{} would ignore {}: leave it out", self.name(), ignored.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    const ALL: [Mode; 11] = [
        Mode::ModelDecoding,
        Mode::Model,
        Mode::Launches,
        Mode::Fused,
        Mode::TunedStart,
        Mode::Memory,
        Mode::Profile,
        Mode::Cupti,
        Mode::Devices,
        Mode::Gpu,
        Mode::Cpu,
    ];

    fn checked(arguments: &[&str], is_gpu: bool) -> (Mode, Result<(), String>) {
        let given = Options::command().try_get_matches_from([&["benches"][..], arguments].concat());
        let given = given.expect("options");
        let options = Options::from_arg_matches(&given).expect("options");
        let mode = Mode::of(&options, || is_gpu);
        (mode, mode.check(&given))
    }

    #[test]
    fn every_option_is_read_by_some_mode() {
        let command = Options::command();
        let options: Vec<&str> =
            command.get_arguments().filter(|o| !o.is_hide_set()).map(|o| o.get_id().as_str()).collect();
        for option in &options {
            assert!(ALL.iter().any(|mode| mode.reads().contains(option)), "{option}");
        }
        for name in ALL.iter().flat_map(|mode| mode.reads()) {
            assert!(options.contains(name), "{name}");
        }
    }

    #[test]
    fn options_that_a_mode_would_ignore_are_refused() {
        for (arguments, is_gpu, expected, ignored) in [
            (&["--families", "fft"][..], true, Mode::Gpu, Some("--families")),
            (&["--families", "fft"], false, Mode::Cpu, None),
            (&["--devices", "2", "--csv", "a"], true, Mode::Devices, Some("--csv")),
            (&["--devices", "2", "--shrink", "2"], false, Mode::Devices, None),
            (&["--devices", "2"], false, Mode::Cpu, Some("--devices")),
            (&["--memory", "--csv", "a"], false, Mode::Memory, Some("--csv")),
            (&["--memory", "--bf16", "--verbose"], true, Mode::Memory, None),
            (&["--profile", "--csv", "a"], true, Mode::Profile, Some("--csv")),
            (&["--memory", "--profile"], true, Mode::Memory, Some("--profile")),
            (&["--cupti", "--csv", "a"], true, Mode::Cupti, Some("--csv")),
            (&["--tuned-start", "--csv", "a"], true, Mode::TunedStart, Some("--csv")),
            (&["--launches", "--csv", "a"], true, Mode::Launches, Some("--csv")),
            (&["--launches", "--fused", "--csv", "a"], true, Mode::Fused, None),
            (&["--model", "a", "--csv", "b"], true, Mode::Model, Some("--csv")),
            (&["--model-decoding", "--filter", "b"], true, Mode::ModelDecoding, Some("--filter")),
            (&["--all", "--torch", "--csv", "a"], true, Mode::Gpu, None),
            (&["--all", "--torch"], false, Mode::Cpu, Some("--torch")),
        ] {
            let (mode, result) = checked(arguments, is_gpu);
            assert_eq!(mode, expected, "{arguments:?}");
            let error = result.err().unwrap_or_default();
            assert_eq!(error.is_empty(), ignored.is_none(), "{arguments:?}: {error}");
            let end = format!("would ignore {}: leave it out", ignored.unwrap_or_default());
            assert!(error.is_empty() || error.ends_with(&end), "{arguments:?}: {error}");
        }
    }

    #[test]
    fn no_iterations_are_refused() {
        for option in ["--iterations", "--shrink", "--devices"] {
            assert!(Options::command().try_get_matches_from(["benches", option, "0"]).is_err(), "{option}");
        }
    }
}
