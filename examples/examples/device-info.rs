//! Shows what this machine offers burn-rocm, provider by provider, and why a provider was passed
//! over. Then it lists what keeps HIP from a GPU or slows it down, with the commands that mend it.
//! Paste its output into bug reports. It also works if the ROCm installation is broken.
//!
//! ```text
//! cargo run --release --example device-info
//! cargo run --release --example device-info -- --check
//! cargo run --release --example device-info -- --json
//! ```
//!
//! The exit status is 0 if burn-rocm can be used, on whichever provider. With `--check` it is 1 also
//! if a computation fails or a finding is a problem.

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use burn::tensor::Tensor;
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn_rocm::{Rocm, RocmDevice, RocmError, Severity};
use burn_rocm_examples::machine;
use clap::Parser;

/// Shows what this machine offers burn-rocm, provider by provider, and why a provider was passed
/// over.
#[derive(Debug, Parser)]
#[command(name = "device-info")]
struct Arguments {
    /// Also compute something small on each device: with a kernel, rocBLAS and MIOpen. Fails if that
    /// fails, or if a finding is a problem.
    #[arg(long)]
    check: bool,
    /// Print the report as one JSON object: providers with their devices and libraries, and findings.
    #[arg(long, conflicts_with = "check")]
    json: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.json {
        println!("{}", burn_rocm::report_json());
        return match burn_rocm::provider() {
            Ok(_) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    println!("burn-rocm {}, {}\n", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    // Files and environment come first, so that they are printed even if a broken library ends the
    // process.
    let root = Path::new("/");
    println!("{}", machine::system(root));
    println!("{}", machine::kernel_driver(root));
    println!("{}", machine::environment(std::env::vars_os()));
    println!("{}", machine::cache(burn_rocm::code_cache().directory()));

    let sound = findings();

    println!("providers, in the order in which they are tried");
    for report in burn_rocm::survey() {
        for line in report.to_string().lines() {
            println!("  {line}");
        }
    }

    println!("\nAMD GPUs that can be used: {}", burn_rocm::rocm_device_count());
    let usable = match burn_rocm::provider() {
        Ok(provider) => {
            println!("burn-rocm uses here: {}, {} device(s)", provider.kind(), provider.device_count());
            for (kind, why) in burn_rocm::passed_over() {
                println!("  passed over {kind}: {}", short(&why));
            }
            let devices = 0..provider.device_count();
            // Checks every device, also after one fails.
            !arguments.check || (devices.filter(|&index| !check(index)).count() == 0 && sound)
        }
        Err(error) => {
            println!("burn-rocm cannot be used here: {}", short(&error));
            false
        }
    };
    if usable { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints what the doctor finds. Returns whether none of it is a problem.
fn findings() -> bool {
    let findings = burn_rocm::doctor();
    println!("findings");
    if findings.is_empty() {
        println!("  none");
    }
    for found in &findings {
        for line in found.to_string().lines() {
            println!("  {line}");
        }
    }
    println!();
    findings.iter().all(|found| found.severity != Severity::Problem)
}

/// The error without the list of places that were searched, which the report above contains.
fn short(error: &RocmError) -> String {
    match error {
        RocmError::NotAvailable { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}

/// Computes something small with each part that training needs, and prints the result.
fn check(index: usize) -> bool {
    let device = RocmDevice::new(index);
    let ones = |rows: usize, columns: usize| Tensor::<Rocm, 2>::ones([rows, columns], &device);
    println!("\n{device}: checks");
    let copy = attempt("copies to the device and back", 2.5, || {
        Tensor::<Rocm, 2>::from_data([[2.5; 64]; 64], &device)
    });
    let kernel = attempt("kernels (hipRTC)", 3.0, || ones(64, 64) + ones(64, 64) * 2.0);
    let product = attempt("matrix product (rocBLAS)", 32.0, || ones(64, 32).matmul(ones(32, 64)));
    let convolution = attempt("convolution (MIOpen)", 36.0, || {
        let (image, filters) = (ones(4, 64).reshape([1, 4, 8, 8]), ones(8, 36).reshape([8, 4, 3, 3]));
        let options = ConvOptions::new([1, 1], [0, 0], [1, 1], 1);
        conv2d(image, filters, None, options).reshape([8, 36])
    });
    copy && kernel && product && convolution
}

/// Runs one check, whose result should be `expected` in every place.
fn attempt(name: &str, expected: f32, work: impl FnOnce() -> Tensor<Rocm, 2>) -> bool {
    let begin = Instant::now();
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let result = panic::catch_unwind(AssertUnwindSafe(|| work().try_into_data()));
    panic::set_hook(hook);
    let failure = match result {
        Ok(Ok(data)) => {
            let wrong = data.iter::<f32>().find(|&value| value != expected);
            wrong.map(|value| format!("expected {expected} everywhere, found {value}"))
        }
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(burn_rocm::take_last_error().map_or("unknown".to_owned(), |error| error.to_string())),
    };
    match &failure {
        None => println!("  {name}: right, {:.0} ms", begin.elapsed().as_secs_f64() * 1e3),
        Some(reason) => println!("  {name}: FAILED: {reason}"),
    }
    failure.is_none()
}
