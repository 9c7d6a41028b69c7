//! Uploads in which one step fails. The upload is an error, every other buffer keeps its contents,
//! and no copy is left in flight.
//!
//! `BURN_ROCM_CPU_FAIL` names the failing function. A process reads it once, so each case is a
//! separate process.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Command;
use std::sync::Arc;

use hip::{Buffer, Device, Error};

/// More than goes through the compute stream, in several chunks.
const LARGE: usize = 9 << 20;
/// A few uploads of this size fill a page.
const SMALL: usize = 60_000;

/// Repeats the upload until it succeeds, and counts the failures.
fn upload(device: &Arc<Device>, value: u8, bytes: usize, failures: &mut u32) -> Buffer {
    loop {
        let waits = device.counters().waits;
        match device.upload(&vec![value; bytes]) {
            Ok(buffer) => return buffer,
            Err(error) => {
                assert!(matches!(error, Error::Device { .. } | Error::OutOfMemory { .. }), "{error}");
                // Another buffer gets the memory next, and copies of chunks may still write to it.
                let waited = device.counters().waits > waits;
                assert!(waited || bytes < LARGE, "copies were left in flight: {error}");
                *failures += 1;
                assert!(*failures < 2, "one call fails");
                let next = device.alloc(bytes).unwrap();
                device.fill_bytes(&next, 0, 7, bytes).unwrap();
                let mut read = vec![0; bytes];
                device.read(&next, 0, &mut read).unwrap();
                assert!(read.iter().all(|&byte| byte == 7));
            }
        }
    }
}

#[test]
#[ignore = "run by the test below, with the call that is to fail in the environment"]
fn many_uploads() {
    let device = match Device::get(0) {
        Ok(device) => device,
        // This call needs some pinned memory itself.
        Err(error) => {
            assert!(matches!(error, Error::Device { call: "hipHostMalloc", .. }), "{error}");
            Device::get(0).unwrap()
        }
    };
    let (mut failures, mut held, mut value) = (0, Vec::new(), 0);
    for _ in 0..2 {
        for bytes in std::iter::repeat_n(SMALL, 20).chain([LARGE]) {
            value += 1;
            held.push((value, bytes, upload(&device, value, bytes, &mut failures)));
        }
    }
    for (value, bytes, buffer) in &held {
        let mut read = vec![0; *bytes];
        if let Err(error) = device.read(buffer, 0, &mut read) {
            assert!(matches!(error, Error::Device { .. } | Error::OutOfMemory { .. }), "{error}");
            device.read(buffer, 0, &mut read).unwrap();
        }
        assert!(read.iter().all(|byte| byte == value), "buffer {value}");
    }
    println!("uploads that failed: {failures}");
}

#[test]
fn an_upload_that_fails_leaves_nothing_in_flight() {
    let run = |fail: &str| {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "many_uploads", "--nocapture"])
            .env("BURN_ROCM_PROVIDER", "cpu")
            .env("BURN_ROCM_CPU_FAIL", fail)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "with {fail}:\n{text}\n{errors}");
        text.contains("uploads that failed: 1")
    };
    for call in ["hipEventRecord", "hipHostMalloc"] {
        let failed = (1..=10).filter(|number| run(&format!("{call}:{number}"))).count();
        assert!(failed >= 2, "{failed} of the calls of {call} belong to uploads");
    }
    assert!(!run(""));
}
