//! Reports of device memory: sums by label, size, thread and op, the list of blocks, and what an
//! `OutOfMemory` says.
//!
//! One test at a time, because they read the device's pool and switch the tracking of ops.
#![allow(missing_docs, clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn_rocm::{
    MemoryBy, MemoryUse, RocmDevice, RocmError, RocmTensor, memory_label, memory_record, memory_snapshot,
    memory_summary, memory_track_ops, take_last_error,
};
use burn_rocm_tests::*;
use serde_json::Value;
use serial_test::serial;

fn device() -> RocmDevice {
    RocmDevice::default()
}

fn ones(bytes: usize) -> RocmTensor {
    R::float_ones(Shape::from(vec![bytes / 4]), &device(), FloatDType::F32)
}

/// What the label uses.
fn label(path: &str) -> MemoryUse {
    let summary = memory_summary(&device()).unwrap();
    summary.labels.iter().find(|row| row.name == path).map(|row| row.used).unwrap_or_default()
}

/// Tracks ops until it is dropped.
struct Tracked;

impl Tracked {
    fn begin() -> Self {
        memory_track_ops(true);
        Self
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        memory_track_ops(false);
    }
}

#[test]
#[serial]
fn labels_count_their_blocks_and_those_inside() {
    let (kept, temporary);
    {
        let _outer = memory_label("reports-outer");
        kept = ones(1 << 20);
        let _inner = memory_label("inner");
        temporary = ones(2 << 20);
    }
    let unlabelled = ones(4 << 20);
    let used = label("reports-outer");
    assert_eq!((used.bytes, used.peak, used.blocks()), (3 << 20, 3 << 20, 2));
    assert_eq!(label("reports-outer/inner").bytes, 2 << 20);
    device().synchronize().unwrap();
    drop((temporary, unlabelled));
    let used = label("reports-outer");
    assert_eq!((used.bytes, used.peak, used.allocations, used.frees), (1 << 20, 3 << 20, 2, 1));
    device().reset_peak_memory().unwrap();
    assert_eq!(label("reports-outer").peak, 1 << 20);
    assert_eq!(label("reports-outer/inner").peak, 0);
    drop(kept);
    assert_eq!(label("reports-outer").bytes, 0);
}

#[test]
#[serial]
fn a_label_belongs_to_its_thread() {
    let _own = memory_label("reports-own");
    let named = std::thread::Builder::new().name("reports-thread".into());
    let other = named
        .spawn(|| {
            let _other = memory_label("reports-other");
            ones(1 << 20)
        })
        .unwrap()
        .join()
        .unwrap();
    assert_eq!((label("reports-own").allocations, label("reports-other").bytes), (0, 1 << 20));
    let snapshot = memory_snapshot(&device()).unwrap();
    let of_thread: Vec<_> = snapshot.blocks.iter().filter(|b| b.thread == "reports-thread").collect();
    assert_eq!(of_thread.len(), 1, "{snapshot:?}");
    assert_eq!(of_thread[0].label.as_deref(), Some("reports-other"));
    // It is counted under the label that it was allocated under, although another thread frees it.
    drop(other);
    assert_eq!(label("reports-other").bytes, 0);
}

#[test]
#[serial]
fn sums_agree_with_the_pool_and_with_the_blocks() {
    let tensors: Vec<_> = [100, 5000, 70_000, 3 << 20, 20 << 20].into_iter().map(ones).collect();
    let (summary, snapshot) = (memory_summary(&device()).unwrap(), memory_snapshot(&device()).unwrap());
    let stats = device().memory_stats().unwrap();
    assert_eq!((summary.allocated.bytes, summary.reserved), (stats.allocated, stats.reserved));
    assert_eq!((summary.allocated.blocks(), summary.padding), (stats.blocks, stats.padding));
    assert_eq!(summary.allocated.peak, stats.peak);
    assert!(summary.peak_reserved >= summary.reserved);
    assert_eq!(summary.allocated.bytes + summary.free, summary.reserved);
    assert!(summary.largest_free <= summary.free && (0.0..=1.0).contains(&summary.fragmentation()));
    let classes = summary.classes.iter().map(|row| row.used);
    assert_eq!(classes.clone().map(|used| used.bytes).sum::<usize>(), stats.allocated);
    assert_eq!(classes.map(|used| used.frees).sum::<u64>(), summary.allocated.frees);
    for holders in [&summary.threads, &summary.ops] {
        assert_eq!(holders.iter().map(|one| one.bytes).sum::<usize>(), stats.allocated);
    }
    assert_eq!(snapshot.blocks.iter().map(|block| block.bytes).sum::<usize>(), stats.allocated);
    let requested: usize = snapshot.blocks.iter().map(|block| block.bytes - block.requested).sum();
    assert_eq!(requested, stats.padding);
    assert!(snapshot.blocks.is_sorted_by(|a, b| a.bytes >= b.bytes));
    drop(tensors);
}

#[test]
#[serial]
fn the_table_has_a_row_for_each_sum() {
    let _label = memory_label("reports-table");
    let tensor = ones(1 << 20);
    let table = memory_summary(&device()).unwrap().to_string();
    let cells: Vec<Vec<&str>> =
        table.lines().map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect();
    assert!(cells.iter().filter(|row| row.len() > 1).all(|row| row.len() == 6), "{table}");
    let row = cells.iter().find(|row| row[0] == "reports-table").expect("the label's row");
    assert_eq!(row[1..], ["1.0 MiB", "1.0 MiB", "1", "1", "0"]);
    for name in ["allocated", "reserved", "fragmentation", "largest free block", "up to 1.0 MiB"] {
        assert!(cells.iter().any(|row| row[0] == name), "{name} in\n{table}");
    }
    drop(tensor);
}

#[test]
#[serial]
fn tracked_blocks_name_their_op_and_age() {
    let before = ones(1 << 20);
    let (product, other);
    {
        let _tracked = Tracked::begin();
        let _label = memory_label("reports \"quoted\"");
        let x = R::float_ones(Shape::from(vec![300, 300]), &device(), FloatDType::F32);
        product = R::float_matmul(x.clone(), x);
        other = memory_snapshot(&device()).unwrap();
    }
    let after = ones(1 << 20);
    let untracked = |block: &&burn_rocm::MemoryBlock| block.op.is_none() && block.age.is_none();
    let snapshot = memory_snapshot(&device()).unwrap();
    assert!(snapshot.blocks.iter().filter(untracked).count() >= 2, "before and after: {snapshot:?}");
    let of_op: Vec<_> = snapshot.blocks.iter().filter(|block| block.op == Some("float_matmul")).collect();
    assert!(of_op.iter().any(|block| block.requested == 300 * 300 * 4), "{of_op:?}");
    // The same block in the earlier snapshot was younger.
    let earlier = other.blocks.iter().find(|block| block.op == Some("float_matmul")).unwrap();
    assert!(earlier.age.unwrap() < of_op[0].age.unwrap());

    let json: Value = serde_json::from_str(&snapshot.to_json()).expect("JSON");
    assert_eq!(json["allocated"], snapshot.allocated);
    assert_eq!(json["reserved"], snapshot.reserved);
    let blocks = json["blocks"].as_array().unwrap();
    assert_eq!(blocks.len(), snapshot.blocks.len());
    for (found, block) in blocks.iter().zip(&snapshot.blocks) {
        assert_eq!(found["bytes"], block.bytes);
        assert_eq!(found["requested"], block.requested);
        assert_eq!(found["op"].as_str(), block.op);
        assert_eq!(found["label"].as_str(), block.label.as_deref());
        assert_eq!(found["thread"].as_str(), Some(&*block.thread));
        let age = found["age"].as_f64();
        assert_eq!(age.is_some(), block.age.is_some());
        // Written with nine digits after the point, so to the nanosecond.
        let difference = age.zip(block.age).map_or(0.0, |(a, b)| (a - b.as_secs_f64()).abs());
        assert!(difference <= 1e-9, "{found} {block:?}");
    }
    assert!(blocks.iter().any(|block| block["label"] == "reports \"quoted\""));
    drop((before, product, after));
}

#[test]
#[serial]
fn out_of_memory_says_what_holds_the_memory() {
    let tracked = Tracked::begin();
    let (label, x) = (memory_label("reports-holder"), ones(64 << 20));
    let kept = R::float_exp(x.clone());
    drop(label);
    drop(tracked);
    let before = read_float::<R>(kept.clone());
    let shape = Shape::from(vec![1 << 22, 1 << 22]);
    let caught = catch_unwind(AssertUnwindSafe(|| R::float_empty(shape, &device(), FloatDType::F32)));
    assert!(caught.is_err());
    let Some(error @ RocmError::OutOfMemory { .. }) = take_last_error() else { panic!("no OutOfMemory") };
    let text = error.to_string();
    for part in ["in use: ", "by label: reports-holder 128.0 MiB", "by op: ", "float_exp 64.0 MiB", "batch"] {
        assert!(text.contains(part), "`{part}` in `{text}`");
    }
    // Nothing was lost.
    assert!(read_float::<R>(kept) == before, "a tensor changed");
    drop(x);
}

#[test]
#[serial]
fn a_record_has_what_happened_and_no_more() {
    let old = ones(1 << 20);
    let mut kept = None;
    let device = device();
    let ((), record) = memory_record(&device, || {
        let _label = memory_label("reports-record");
        kept = Some(ones(2 << 20));
        drop(ones(8 << 20));
        drop(old);
    })
    .unwrap();
    let own = |event: &&burn_rocm::MemoryEvent| &*event.label == "reports-record";
    let events: Vec<_> = record.events.iter().filter(own).map(|e| (e.bytes, e.allocated)).collect();
    assert_eq!(events, [(2 << 20, true), (8 << 20, true), (8 << 20, false)]);
    assert!(!record.before.iter().any(|event| &*event.label == "reports-record"));
    assert!(record.events.iter().any(|e| (e.bytes, e.allocated) == (1 << 20, false) && !own(&e)));
    assert!(record.events.is_sorted_by_key(|event| event.at) && record.lost == 0);
    assert!(record.events.last().unwrap().at <= record.time);
    let before: usize = record.before.iter().map(|event| event.bytes).sum();
    assert_eq!(record.peak().0, before + (10 << 20));
    let at_peak = record.at_peak(MemoryBy::Label);
    assert_eq!(at_peak.iter().find(|one| one.0 == "reports-record").unwrap().1, 10 << 20);
    assert!(record.svg(MemoryBy::Label).contains(">reports-record</text>"));
    let path = std::env::temp_dir().join(format!("burn-rocm-record-{}.svg", std::process::id()));
    record.write_svg(&path, MemoryBy::Op).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), record.svg(MemoryBy::Op));
    std::fs::remove_file(&path).unwrap();
    // Nothing is kept between records.
    drop(ones(4 << 20));
    let ((), next) = memory_record(&device, || ()).unwrap();
    assert!(next.events.is_empty(), "{next:?}");
    let caught = catch_unwind(AssertUnwindSafe(|| memory_record(&device, || panic!("body"))));
    assert!(caught.is_err());
    let ((), next) = memory_record(&device, || drop(ones(4 << 20))).unwrap();
    assert_eq!(next.events.iter().filter(|event| event.bytes == 4 << 20).count(), 2);
}

#[test]
#[serial]
fn records_of_threads_overlap() {
    let _tracked = Tracked::begin();
    let (a, b) = (memory_label("reports-a"), ones(4 << 20));
    drop(a);
    let (other, own) = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            memory_record(&device(), || {
                let _label = memory_label("reports-thread-record");
                (0..50).for_each(|_| drop(ones(1 << 20)));
            })
            .unwrap()
            .1
        });
        let ((), own) = memory_record(&device(), || {
            let _label = memory_label("reports-own-record");
            (0..50).for_each(|_| drop(ones(2 << 20)));
        })
        .unwrap();
        (other.join().unwrap(), own)
    });
    for (record, label, bytes) in
        [(&other, "reports-thread-record", 1 << 20), (&own, "reports-own-record", 2 << 20)]
    {
        let events: Vec<_> = record.events.iter().filter(|event| &*event.label == label).collect();
        assert_eq!(events.len(), 100, "{label}");
        assert!(events.iter().all(|event| (event.bytes, event.op) == (bytes, "float_ones")), "{label}");
        let held = record.before.iter().find(|event| &*event.label == "reports-a").unwrap();
        assert_eq!((held.bytes, held.at), (4 << 20, std::time::Duration::ZERO));
    }
    drop(b);
}

/// Runs on the CPU provider in a separate process, because a process reads the number of devices
/// once.
#[test]
#[serial]
fn labels_count_in_the_pool_of_each_device() {
    const CHILD: &str = "BURN_ROCM_TEST_REPORT_CHILD";
    if std::env::var_os(CHILD).is_none() {
        again(
            &["--exact", "labels_count_in_the_pool_of_each_device", "--nocapture"],
            &[(CHILD, "1"), ("BURN_ROCM_CPU_DEVICES", "2"), ("BURN_ROCM_PROVIDER", "cpu")],
        );
        return;
    }
    let second = RocmDevice::new(1);
    let _label = memory_label("reports-devices");
    let first = ones(1 << 20);
    let other = R::float_ones(Shape::from(vec![1 << 20]), &second, FloatDType::F32);
    assert_eq!(label("reports-devices").bytes, 1 << 20);
    let summary = memory_summary(&second).unwrap();
    let row = summary.labels.iter().find(|row| row.name == "reports-devices").unwrap();
    assert_eq!(row.used.bytes, 4 << 20);
    drop((first, other));
}

#[test]
#[serial]
fn a_label_of_any_letters_is_one_row() {
    let _label = memory_label("reports-two\nlines|bar");
    let held = ones(4096);
    let table = memory_summary(&device()).unwrap().to_string();
    let row = table.lines().find(|line| line.contains("reports-two")).unwrap();
    assert!(row.contains("reports-two lines bar"), "{table}");
    drop(held);
}
