//! What the environment variables change, through a queue. A process reads them once, so each launch here is in a
//! process of its own.

#[path = "support/api.rs"]
#[allow(dead_code, reason = "each test uses a part")]
mod api;
#[path = "support/kernels.rs"]
mod kernels;
mod support;

use std::process::{Command, Output};

use api::*;
use kernels::*;
use support::{Kernel, Source};
use virtual_gpu::hsa::{Status, hsa_init};

/// If this is set, the test is the process that it started itself, and it only launches.
const LAUNCH: &str = "VIRTUAL_GPU_TEST_LAUNCH";
/// Settings that a test sets or leaves at their default.
const SETTINGS: [&str; 7] = ["POISON", "YIELD", "RACES", "THREADS", "LEVEL", "DEVICES", "COUNTERS"];
/// `s_barrier`
const BARRIER: u32 = 0xbf8a_0000;
/// Where [`EXCHANGE_UNORDERED`] lacks a barrier: before `v_xor_b32`.
const READS: usize = 6;

/// Runs a test again with these settings, without the prefix of their names.
fn again(test: &str, settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args([test, "--exact", "--nocapture"]).env(LAUNCH, "1");
    for name in SETTINGS {
        command.env_remove(format!("VIRTUAL_GPU_{name}"));
    }
    for (name, value) in settings {
        assert!(SETTINGS.contains(name), "{name}");
        command.env(format!("VIRTUAL_GPU_{name}"), value);
    }
    command.output().expect("this program starts")
}

/// The same, of a process that succeeds: what it prints after `found` on stdout, and stderr.
fn found(test: &str, settings: &[(&str, &str)]) -> (Vec<String>, String) {
    let output = again(test, settings);
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{test} with {settings:?}: {out}{err}");
    // libtest may begin the first line.
    let found = out.lines().filter_map(|line| Some(line.split_once("found ")?.1.to_owned()));
    (found.collect(), err)
}

fn is_launch() -> bool {
    std::env::var_os(LAUNCH).is_some()
}

/// Launches a kernel. Its argument is memory of so many words, which are 0 at first if `clear`; returns what they are
/// in the end, and the queue's errors.
fn launch(kernel: Kernel, groups: u32, words: usize, clear: bool) -> (Vec<u32>, Vec<Status>) {
    let lds = kernel.lds;
    let name = kernel.name;
    let kernel = api::kernel(load(&Source::new(&[kernel])), name);
    let (queue, done) = (TestQueue::new(), signal(1));
    let memory = allocate(pool(agents().1), 4 * words).cast::<u32>();
    if clear {
        // SAFETY: the allocation holds so many words.
        unsafe { memory.write_bytes(0, words) };
    }
    queue.dispatch_with(kernel, groups, lds, memory as u64, done);
    wait(done);
    // SAFETY: as above, and the launch has completed.
    let found = unsafe { std::slice::from_raw_parts(memory, words) }.to_vec();
    (found, queue.errors())
}

fn exchange(barrier: bool) -> (Vec<u32>, Vec<Status>) {
    let mut code = EXCHANGE_UNORDERED.to_vec();
    if barrier {
        code.insert(READS, BARRIER);
    }
    launch(Kernel { lds: 256, ..Kernel::new("exchange", &code) }, 1, 64, true)
}

/// Without a barrier, the waves are right by luck as long as they advance together.
#[test]
fn a_missing_barrier_shows_without_yield() {
    if is_launch() {
        for barrier in [true, false] {
            let (words, errors) = exchange(barrier);
            assert_eq!(errors, []);
            println!("found {:?}", (0..64).filter(|&i| words[i] != i as u32 ^ 32).count());
        }
        return;
    }
    let test = "a_missing_barrier_shows_without_yield";
    assert_eq!(found(test, &[]).0, ["0", "0"]);
    assert_eq!(found(test, &[("YIELD", "0")]).0, ["0", "32"], "wave 0 reads before wave 1 has written");
}

#[test]
fn races_in_lds_stop_the_queue() {
    if is_launch() {
        for barrier in [true, false] {
            println!("found {:?}", exchange(barrier).1);
        }
        return;
    }
    let test = "races_in_lds_stop_the_queue";
    assert_eq!(found(test, &[]).0, ["[]", "[]"]);
    for turns in ["0", "1"] {
        let (errors, report) = found(test, &[("RACES", "1"), ("YIELD", turns)]);
        assert_eq!(errors, ["[]".to_owned(), format!("[{:?}]", Status::MEMORY_APERTURE_VIOLATION)]);
        let expected = "kernel exchange, pc +0x";
        assert!(report.contains(expected) && report.contains("since the last barrier"), "{report}");
    }
}

#[test]
fn races_in_global_memory_stop_the_queue() {
    if is_launch() {
        for groups in [1, 2] {
            println!("found {:?}", launch(Kernel::new("race", RACE), groups, 256, true).1);
        }
        return;
    }
    let test = "races_in_global_memory_stop_the_queue";
    assert_eq!(found(test, &[]).0, ["[]", "[]"]);
    for threads in ["1", "4"] {
        let (errors, report) = found(test, &[("RACES", "1"), ("THREADS", threads)]);
        assert_eq!(errors, ["[]".to_owned(), format!("[{:?}]", Status::MEMORY_FAULT)]);
        assert!(report.contains("virtual-gpu: kernel race, pc +0x"), "{report}");
        assert!(report.contains(", and nothing orders the two; the other wave: pc +0x"), "{report}");
        assert!(report.contains(" of 1024 bytes at 0x"), "{report}");
        if threads == "1" {
            // Workgroup 1 stores where workgroup 0 has loaded.
            let who = "pc +0x20 (global_store_dword), workgroup 1,0,0 wave 0 lane 0: writes memory at 0x";
            assert!(report.contains(who) && report.contains(", which another wave read, "), "{report}");
            assert!(report.contains("the other wave: pc +0x2c, workgroup 0,0,0 wave 0; "), "{report}");
            assert!(report.contains("; at byte 256 of 1024 bytes at 0x"), "{report}");
        }
    }
}

/// Atomics and polled flags order workgroups.
#[test]
fn no_race_is_seen_where_atomics_order_workgroups() {
    if is_launch() {
        let reduce = Kernel { lds: 4, ..Kernel::new("reduce", LAST_REDUCES) };
        let (words, errors) = launch(reduce, 8, 128 + 8 * 64, true);
        assert_eq!(errors, []);
        assert!(words[64..128].iter().all(|&sum| sum == 36), "{words:?}");
        let (words, errors) = launch(Kernel::new("chain", CHAIN), 20, 40, true);
        assert_eq!(errors, []);
        assert!((0..20).all(|group| words[2 * group..][..2] == [group as u32 + 1, 1]), "{words:?}");
        return;
    }
    for threads in ["1", "4"] {
        for turns in ["0", "1"] {
            let settings = [("RACES", "1"), ("THREADS", threads), ("YIELD", turns)];
            found("no_race_is_seen_where_atomics_order_workgroups", &settings);
        }
    }
}

#[test]
fn poison_fills_device_memory_lds_private_memory_and_registers() {
    let test = "poison_fills_device_memory_lds_private_memory_and_registers";
    if is_launch() {
        let kernel = Kernel { lds: 256, private: 16, ..Kernel::new("unwritten", UNWRITTEN) };
        // Each workgroup has 512 words, of which the kernel stores words 64 to 319.
        let (words, errors) = launch(kernel, 3, 3 * 512, false);
        assert_eq!(errors, []);
        for group in words.chunks(512) {
            let parts = group[64..320].chunks(64);
            println!("found {:x?}", parts.map(|part| (part[0], part[63])).collect::<Vec<_>>());
        }
        return;
    }
    for (poison, word) in [("0", 0), ("1", u32::MAX)] {
        // One thread, which gives each workgroup the memory of the last one.
        let parts = found(test, &[("POISON", poison), ("THREADS", "1")]).0;
        // Nothing clears private memory or registers but poison; the first workgroup sees zeros.
        assert_eq!(parts.len(), 3);
        assert_eq!(parts[0], format!("{:x?}", [(word, word); 4]));
        if poison == "1" {
            assert_eq!(parts[1..], [parts[0].as_str(), parts[0].as_str()]);
        }
    }
}

/// With one thread, workgroups and waves always run in the same order.
#[test]
fn one_thread_is_deterministic() {
    if is_launch() {
        for _ in 0..3 {
            let (words, errors) = launch(Kernel::new("tickets", TICKETS), 200, 1 + 64 * 200, true);
            assert_eq!(errors, []);
            println!("found {:?}", words[1..].iter().zip(0..).all(|(&ticket, item)| ticket == item));
        }
        return;
    }
    for turns in ["0", "1"] {
        let settings = [("THREADS", "1"), ("YIELD", turns)];
        assert_eq!(found("one_thread_is_deterministic", &settings).0, ["true"; 3]);
    }
}

#[test]
fn values_that_are_not_valid_are_refused() {
    if is_launch() {
        println!("found {:?}", hsa_init());
        return;
    }
    let test = "values_that_are_not_valid_are_refused";
    for level in ["portable", "avx2", "avx512"] {
        let settings = [("LEVEL", level), ("RACES", "0")];
        assert_eq!(found(test, &settings).0, [format!("{:?}", Status::SUCCESS)], "{level}");
    }
    for (name, value, expected) in [
        ("LEVEL", "avx-512", "portable, avx2 or avx512"),
        ("RACES", "yes", "0 or 1"),
        ("POISON", "", "0 or 1"),
        ("YIELD", "2", "0 or 1"),
        ("THREADS", "0", "1 to 1024"),
        ("DEVICES", "none", "0 to 16"),
    ] {
        let (status, report) = found(test, &[(name, value)]);
        assert_eq!(status, [format!("{:?}", Status::INVALID_ARGUMENT)]);
        let line = format!("virtual-gpu: VIRTUAL_GPU_{name}={value}: expected {expected}\n");
        assert!(report.contains(&line), "{report}");
    }
}
