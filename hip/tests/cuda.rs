//! The CUDA provider. Without an NVIDIA GPU: the reason why it can't be used. With one: its
//! description.

use hip::{Config, Error, ProviderKind, survey};

#[test]
fn the_survey_says_why_cuda_is_not_usable_or_what_it_has() {
    let reports = survey();
    let report = reports.iter().find(|report| report.kind == ProviderKind::Cuda).unwrap();
    match &report.error {
        None => {
            let (info, free) = &report.devices[0];
            assert!(info.arch.starts_with("sm_"), "{}", info.arch);
            assert_eq!(info.warp_size, 32);
            assert!(free.is_some_and(|free| free <= info.total_memory));
        }
        Some(Error::NotAvailable { reason, searched }) if !cfg!(feature = "cuda") => {
            assert_eq!(reason, "the cuda provider is not built into this program");
            assert!(searched.is_empty());
        }
        Some(Error::NotAvailable { reason, searched }) => {
            let expected = [
                "NVIDIA's driver is not installed",
                "NVIDIA's driver is installed but does not load",
                "NVRTC is not installed",
                "cuda has no device",
            ];
            assert!(expected.iter().any(|start| reason.starts_with(start)), "{reason}");
            if reason == expected[0] {
                assert!(searched.iter().any(|place| place == "libcuda.so.1"), "{searched:?}");
                assert!(searched.iter().any(|place| place.starts_with("/usr/local/cuda/lib64/")));
            }
        }
        Some(other) => panic!("{other}"),
    }
    // A survey does not use a device, so the settings are not fixed yet.
    Config::default().install().unwrap();
}
