//! Settings, read from the environment once.

use hip_provider::Problem;
use std::sync::OnceLock;

fn tf32_of(value: Option<&str>) -> Result<bool, Problem> {
    match value {
        None | Some("" | "0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => {
            let (what, expected) = ("BURN_ROCM_CUDA_TF32".into(), "0 or 1".into());
            Err(Problem { what, expected, found: format!("`{other}`") })
        }
    }
}

fn read() -> &'static Result<bool, Problem> {
    static READ: OnceLock<Result<bool, Problem>> = OnceLock::new();
    READ.get_or_init(|| {
        let value = std::env::var_os("BURN_ROCM_CUDA_TF32");
        tf32_of(value.as_deref().map(|value| value.to_string_lossy()).as_deref())
    })
}

/// Whether the settings make sense.
pub fn check_settings() -> Result<(), Problem> {
    read().as_ref().map(|_| ()).map_err(Problem::clone)
}

/// Whether f32 operands may be rounded to TF32.
pub(crate) fn tf32() -> bool {
    read().as_ref().is_ok_and(|&on| on)
}

#[cfg(test)]
mod tests {
    use super::tf32_of;

    #[test]
    fn tf32_is_off_unless_asked_for() {
        assert_eq!(tf32_of(None), Ok(false));
        assert_eq!(tf32_of(Some("0")), Ok(false));
        assert_eq!(tf32_of(Some("1")), Ok(true));
        let problem = tf32_of(Some("yes")).unwrap_err();
        assert_eq!(problem.to_string(), "BURN_ROCM_CUDA_TF32: expected 0 or 1, found `yes`");
    }
}
