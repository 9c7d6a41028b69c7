//! What this machine has for burn-rocm, provider by provider, and why one was passed over. Made to be pasted
//! into a bug report; also works where the ROCm installation does not.
//!
//! ```text
//! cargo run --release --example device-info
//! ```

use std::path::Path;
use std::process::ExitCode;

use burn_rocm_examples::machine;

fn main() -> ExitCode {
    println!("burn-rocm {}, {}\n", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    // Files and environment first: were a broken library to end the process when it is loaded, these would
    // have been told.
    let root = Path::new("/");
    println!("{}", machine::system(root));
    println!("{}", machine::kernel_driver(root));
    println!("{}", machine::environment(std::env::vars_os()));
    println!("{}", machine::cache(hip::code_cache().directory()));

    println!("providers, in the order in which they are tried");
    for report in hip::survey() {
        for line in report.to_string().lines() {
            println!("  {line}");
        }
    }

    println!("\nAMD GPUs that can be used: {}", hip::rocm_device_count());
    match hip::provider() {
        Ok(provider) => {
            println!("burn-rocm uses here: {}, {} device(s)", provider.kind(), provider.device_count());
            for (kind, why) in hip::passed_over() {
                println!("  passed over {kind}: {}", short(&why));
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("burn-rocm cannot be used here: {}", short(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error without the places that were looked at: the survey has told those.
fn short(error: &hip::Error) -> String {
    match error {
        hip::Error::NotAvailable { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}
