//! What the doctor finds.

use std::fmt;

use crate::json::Json;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Keeps HIP from a GPU, or makes results wrong.
    Problem,
    /// Slows the GPU down, or breaks some programs.
    Warning,
    /// Unusual, but perhaps wanted.
    Note,
}

impl Severity {
    /// `problem`, `warning` or `note`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the doctor found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The check's name, such as `group-missing`. One of [`CHECKS`](crate::doctor::CHECKS).
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is so on this machine, as one sentence without a full stop.
    pub what: String,
    /// Why it matters, as one or two sentences.
    pub why: String,
    /// The commands that mend it, in their order. A line that begins with `#` says in words what no
    /// command does.
    pub mend: Vec<String>,
}

impl Finding {
    /// The finding as a JSON object with the keys `code`, `severity`, `what`, `why` and `mend`,
    /// where `mend` is an array of texts.
    pub fn to_json(&self) -> String {
        let mend: Vec<String> = self.mend.iter().map(|line| Json(line).to_string()).collect();
        format!(
            r#"{{"code":{},"severity":{},"what":{},"why":{},"mend":[{}]}}"#,
            Json(self.code),
            Json(self.severity.name()),
            Json(&self.what),
            Json(&self.why),
            mend.join(",")
        )
    }
}

/// Several lines: severity, code and sentence, then the reason, then each command after a `$`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} [{}]: {}", self.severity, self.code, self.what)?;
        writeln!(f, "  {}", self.why)?;
        for line in &self.mend {
            writeln!(f, "  {}{line}", if line.starts_with('#') { "" } else { "$ " })?;
        }
        Ok(())
    }
}
