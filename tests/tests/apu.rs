//! Memory of an integrated GPU. The CPU device is integrated and has managed memory.
//!
//! The settings belong to a process, so each case is a process of its own.
#![allow(missing_docs, clippy::unwrap_used)]

use burn_rocm::{RocmDevice, RocmError, memory_summary};
use burn_rocm_tests::limits::Terms;
use burn_rocm_tests::*;

/// Computes, and says whether all of the pool's memory is managed, some of it, or none.
#[test]
#[ignore = "run by the test below, with other settings"]
fn computes() {
    let device = RocmDevice::default();
    if let Err(RocmError::Config { expected, .. }) = device.info() {
        println!("{SAID}refused: {expected}");
        return;
    }
    let random = Random::new();
    let input = |shape: &[usize]| float(&random, shape, DType::F32, View::Contiguous, -1.0, 1.0);
    let (a, b) = (input(&[130, 70]), input(&[70, 1 << 12]));
    let held = a.float::<R>(&device);
    sums!("product", Terms::of(70, DType::F32), |B, device, [a = &a, b = &b]| B::float_matmul(a, b));
    let summary = memory_summary(&device).unwrap();
    println!(
        "{SAID}{}",
        match summary.managed {
            0 => "none",
            managed if managed == summary.reserved => "all",
            _ => "some",
        }
    );
    assert_eq!(summary.to_string().contains("of it managed memory"), summary.managed > 0, "{summary}");
    // What is given back is not counted any more.
    drop(held);
    R::memory_cleanup(&device);
    let left = memory_summary(&device).unwrap();
    assert!(left.reserved < summary.reserved && left.managed <= left.reserved, "{left}");
}

#[test]
fn the_setting_says_where_memory_comes_from() {
    let apu = hip::Device::get(0).unwrap().info().apu.clone();
    let with = |value: &str| said_by("computes", &[("BURN_ROCM_APU_MEMORY", value)]);
    assert_eq!(with("device"), ["none"]);
    assert_eq!(with("auto"), ["none"], "hipMalloc has memory: {apu:?}");
    let managed = with("managed");
    match apu {
        Some(_) => assert!(managed == ["all"] || managed[0].starts_with("refused"), "{managed:?}"),
        None => assert_eq!(managed, ["none"], "no APU, so nothing is asked for"),
    }
    if hip::provider().unwrap().kind() == hip::ProviderKind::Cpu {
        assert_eq!(managed, ["all"]);
    }
}

/// The report says where the memory comes from, and why.
#[test]
fn the_report_has_the_choice_and_its_reason() {
    let report: serde_json::Value = serde_json::from_str(&hip::report_json()).unwrap();
    let cpu = report["providers"].as_array().unwrap().iter().find(|one| one["provider"] == "cpu").unwrap();
    let device = &cpu["devices"][0];
    assert_eq!(device["apu"]["allocation"], "hipMalloc");
    assert_eq!(device["apu"]["reason"], "the kernel shows no GTT of this device");
    assert_eq!(device["usable_memory"], device["total_memory"]);
    let text = hip::survey().iter().map(ToString::to_string).collect::<String>();
    assert!(text.contains("shared with the host, by hipMalloc: the kernel shows no GTT"), "{text}");
}
