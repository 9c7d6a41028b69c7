//! `loader VERSION` asserts what the loader finds in a real ROCm on a machine without a device.
//! VERSION is the version of the ROCm root in which it runs. `loader --rocblas ARCHITECTURE...`
//! prints for each architecture whether rocBLAS has kernels for it. `tests/rocm/loader.sh` runs it.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use burn_rocm_tests::*;
use hip::{Error, ProviderKind};

/// The libraries of each root: the beginning of the version of HIP, hipRTC, rocBLAS, hipBLASLt,
/// MIOpen and RCCL, or `None` for a library that the root lacks. Without a device, hipBLASLt does
/// not say its version. Only HIP's version follows ROCm's: hipRTC is 9.0 in all three, rocBLAS and
/// MIOpen are 4.4 and 3.4 in ROCm 6.4, and 5.2 and 3.5 in ROCm 7.2. Debian has no rocBLAS and
/// MIOpen 5.7. RCCL has NCCL's version; Debian's RCCL for 5.7 is that of ROCm 5.4, and it has none
/// for 6.4.
const ROOTS: [(&str, [Option<&str>; 6]); 3] = [
    ("5.7", [Some("5.7."), Some("9."), None, None, None, Some("2.13.")]),
    ("6.4", [Some("6.4."), Some("9."), Some("4.4."), None, Some("3.4."), None]),
    ("7.2", [Some("7.2."), Some("9."), Some("5.2."), Some(""), Some("3.5."), Some("2.27.")]),
];

/// The functions that each version's headers declare: the list that `tests/rocm/bindings.sh`
/// checks.
const DECLARED: &str = include_str!("../../rocm/bindings.txt");

/// Functions that a library has although its version's headers do not declare them.
const UNDECLARED: [(&str, &str); 0] = [];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(version) = arguments.next() else {
        eprintln!("usage: loader VERSION | loader --rocblas ARCHITECTURE...");
        return ExitCode::from(2);
    };
    if version == "--rocblas" {
        for architecture in arguments {
            match hip::rocblas_serves(&architecture) {
                Ok(()) => println!("{architecture}: yes"),
                Err(Error::NotAvailable { reason, searched }) => {
                    println!("{architecture}: NotAvailable: {reason} ({})", searched.join(", "));
                }
                Err(other) => panic!("{architecture}: {other}"),
            }
        }
        return ExitCode::SUCCESS;
    }
    let Some((version, expected)) = ROOTS.into_iter().find(|(name, _)| *name == version) else {
        eprintln!("loader: nothing is known of ROCm {version}");
        return ExitCode::from(2);
    };
    let report = hip::survey().into_iter().find(|report| report.kind == ProviderKind::Rocm).unwrap();
    let (mut required, mut optional) = (0, 0);
    for (library, expected) in report.libraries.iter().zip(expected) {
        println!("{library}");
        let Some(prefix) = expected else {
            let error = library.path.as_ref().unwrap_err();
            assert!(matches!(error, Error::NotAvailable { .. }), "{error}");
            continue;
        };
        library.path.as_ref().unwrap();
        assert!(
            library.version.as_deref().unwrap_or_default().starts_with(prefix),
            "{library}: expected {prefix}"
        );
        assert_eq!(library.missing, [""; 0], "{library}");
        required += 1;
        for &(name, has) in &library.optional {
            let undeclared = UNDECLARED.contains(&(version, name));
            assert_eq!(has, declared(version, name) || undeclared, "{}: {name}", library.title);
            optional += 1;
        }
    }
    println!(
        "{required} libraries have every function they must; {optional} optional ones as the headers of {version} \
         have them"
    );

    // Without a device there is a typed error that says why, and where the loader searched.
    let Some(Error::NotAvailable { reason, searched }) = &report.error else {
        panic!("{:?}", report.error);
    };
    assert!(reason.starts_with("HIP is installed but finds no device"), "{reason}");
    assert!(searched.iter().any(|place| place.contains("libamdhip64")), "{searched:?}");
    assert!(report.devices.is_empty());
    assert_eq!(hip::rocm_device_count(), 0);
    assert!(!hip::is_available());

    // The first op of a program, on any provider.
    let sum = catch_unwind(AssertUnwindSafe(|| {
        let ones = R::float_ones(Shape::new([2]), &Default::default(), FloatDType::F32);
        read_float::<R>(R::float_add(ones.clone(), ones)).to_vec::<f32>().unwrap()
    }));
    if std::env::var("BURN_ROCM_PROVIDER").as_deref() == Ok("rocm") {
        assert!(sum.is_err());
        let error = burn_rocm::take_last_error().unwrap();
        let Error::NotAvailable { reason: why, .. } = &error else { panic!("{error}") };
        assert_eq!(why, reason);
        println!("without a fallback: {error}");
    } else {
        assert_eq!(sum.unwrap(), [2.0, 2.0]);
        assert_eq!(hip::provider().unwrap().kind(), ProviderKind::Cpu);
        let passed_over = hip::passed_over();
        assert!(
            matches!(&passed_over[0], (ProviderKind::Rocm, Error::NotAvailable { reason: why, .. }) if why == reason)
        );
        println!("fell back to the cpu provider");
    }
    ExitCode::SUCCESS
}

/// Whether the headers of a version declare a function.
fn declared(version: &str, name: &str) -> bool {
    let line = DECLARED.lines().find(|line| line.contains(&format!(" {name}("))).unwrap();
    line.split('|').next().unwrap().split_whitespace().any(|column| column == version)
}
