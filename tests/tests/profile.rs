//! Profiles: each op's work and times, regions, failures, the trace for Perfetto, and the profile of
//! a whole process.
//!
//! The tests take turns, because a profile has the work of all threads.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Duration;

use burn_rocm::graph::Graph;
use burn_rocm::profile::{Detail, Row, WorkKind};
use burn_rocm::trace::counting;
use burn_rocm::{
    Profile, ProviderKind, RocmDevice, RocmError, RocmTensor, profile, provider, region, take_last_error,
};
use burn_rocm_tests::*;
use serde_json::Value;
use serial_test::serial;

fn ones(shape: &[usize]) -> RocmTensor {
    R::float_ones(Shape::from(shape.to_vec()), &RocmDevice::default(), FloatDType::F32)
}

/// Work of each kind.
fn step() -> TensorData {
    let x = R::float_add(ones(&[60, 70]), ones(&[60, 70]));
    let y = R::float_matmul(x.clone(), R::float_swap_dims(x, 0, 1));
    let y = R::softmax(y, 1);
    let y = R::float_cat(vec![y.clone(), R::float_exp(y)], 0);
    let sum = R::float_sum(y);
    read_float::<R>(R::float_reshape(sum, Shape::from(vec![1])))
}

fn calls(profile: &Profile, kind: WorkKind) -> u64 {
    profile.rows(Detail::Work).iter().filter(|row| row.kind == Some(kind)).map(|row| row.calls).sum()
}

/// The rows of an op.
fn rows_of(profile: &Profile, op: &str) -> Vec<Row> {
    profile
        .rows(Detail::Region)
        .into_iter()
        .filter(|row| row.op.split(" + ").any(|name| name == op))
        .collect()
}

/// The one row of an op.
#[track_caller]
fn row_of(profile: &Profile, op: &str) -> Row {
    let rows = rows_of(profile, op);
    assert_eq!(rows.len(), 1, "{op} in {profile:?}");
    rows.into_iter().next().unwrap()
}

#[test]
#[serial]
fn rows_count_what_the_trace_counts() {
    step();
    let ((data, counts), profile) = profile(|| counting(step));
    // 60 rows of a softmax, whose sums are 1, and their exponentials, each above 1.
    assert!(data.to_vec::<f32>().unwrap()[0] > 60.0 + 60.0 * 60.0, "{data:?}");
    for (kind, counted) in [
        (WorkKind::Kernel, counts.kernels),
        (WorkKind::Library, counts.library_calls),
        (WorkKind::Copy, counts.copies),
        (WorkKind::Transfer, counts.transfers),
        (WorkKind::Graph, counts.graphs),
    ] {
        assert_eq!(calls(&profile, kind), counted, "{kind:?}: {counts:?}\n{profile}");
    }
    assert!(counts.kernels >= 4 && counts.library_calls == 1 && counts.transfers == 1, "{counts:?}");
    for detail in [Detail::Op, Detail::Work, Detail::Shapes, Detail::Region] {
        let rows = profile.rows(detail);
        assert_eq!(rows.iter().map(|row| row.calls).sum::<u64>(), counts.launches() + counts.transfers);
        for row in &rows {
            assert_eq!(row.timed, row.calls, "{row:?}");
            assert!(row.least <= row.average() && row.average() <= row.most, "{row:?}");
            assert!(row.most <= row.total, "{row:?}");
        }
        // All of it runs on the compute stream, where no two times overlap.
        let total: Duration = rows.iter().map(|row| row.total).sum();
        assert!(total <= profile.wall(), "{total:?} of {:?}", profile.wall());
        assert_eq!(profile.devices()[0].total, total);
    }
    let text = profile.to_string();
    for part in ["float_matmul", "rocblas", "[60, 70] [70, 60]", "copy to the host", "GFLOP/s", "us"] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
}

#[test]
#[serial]
fn a_row_has_dtype_shapes_bytes_and_operations() {
    let (a, b) = (ones(&[30, 50]), ones(&[50, 70]));
    let (big, other) = (ones(&[3000, 1000]), ones(&[3000, 1000]));
    let body = || {
        let product = R::float_matmul(a.clone(), b.clone());
        let sum = R::float_add(big.clone(), other.clone());
        (product, sum)
    };
    drop(body());
    let ((product, sum), profile) = profile(body);
    let row = row_of(&profile, "float_matmul");
    assert_eq!((row.dtype, &*row.shapes, row.kind), ("f32", "[30, 50] [50, 70]", Some(WorkKind::Library)));
    assert!(row.work.starts_with("rocblas_sgemm "), "{row:?}");
    assert_eq!(row.flops, Some(2 * 30 * 50 * 70));
    assert_eq!(row.bytes, Some(4 * (30 * 50 + 50 * 70 + 30 * 70)));
    let row = row_of(&profile, "float_add");
    assert_eq!((&*row.shapes, row.bytes), ("[3000, 1000] [3000, 1000]", Some(3 * 4 * 3_000_000)));
    let rate = row.bytes_per_second().unwrap();
    assert!((rate * row.total.as_secs_f64() / (3.0 * 4.0 * 3e6) - 1.0).abs() < 1e-9, "{rate}");
    assert_eq!(profile.devices()[0].bandwidth, None);
    drop((product, sum));

    // A repeated row counts once as it is read, and in full as it is written.
    let wide = R::float_expand(ones(&[1, 1000]), Shape::from(vec![500, 1000]));
    let ((), profile) = burn_rocm::profile(|| drop(R::float_exp(wide.clone())));
    assert_eq!(row_of(&profile, "float_exp").bytes, Some(4 * 1000 + 4 * 500 * 1000));

    let measured = RocmDevice::default().measure_bandwidth().unwrap();
    let (_, profile) = burn_rocm::profile(body);
    assert_eq!(profile.devices()[0].bandwidth, Some(measured));
    assert!(measured > 1e6 && profile.to_string().contains("of memory"), "{profile}");
}

#[test]
#[serial]
fn regions_nest_and_threads_are_apart() {
    let x = ones(&[2000, 1100]);
    let body = || {
        let _train = region("train");
        for _ in 0..3 {
            let _forward = region("forward");
            drop(R::float_exp(x.clone()));
        }
        drop(R::float_log(x.clone()));
        std::thread::scope(|scope| {
            let worker = std::thread::Builder::new().name("worker".into());
            let worker = worker.spawn_scoped(scope, || {
                let _region = region("load");
                drop(R::float_sqrt(x.clone()));
            });
            worker.unwrap().join().unwrap();
        });
        // Without a region.
        RocmDevice::default().synchronize().unwrap();
    };
    body();
    let ((), profile) = profile(body);
    let of = |op| {
        let row = row_of(&profile, op);
        (row.region.to_string(), row.calls)
    };
    assert_eq!(of("float_exp"), ("train/forward".into(), 3));
    assert_eq!(of("float_log"), ("train".into(), 1));
    assert_eq!(of("float_sqrt"), ("load".into(), 1));
    let regions: Vec<_> = profile.regions().iter().map(|region| (&*region.path, region.calls)).collect();
    assert_eq!(regions, [("load", 1), ("train", 1), ("train/forward", 3)]);
    let [load, train, forward] = profile.regions() else { panic!("three regions") };
    assert!(forward.host < train.host && load.host < train.host, "{profile}");
    assert_eq!(forward.device, row_of(&profile, "float_exp").total);
    assert_eq!(train.device, forward.device + row_of(&profile, "float_log").total);
    // The region and the thread are also in the timeline.
    let trace: Value = serde_json::from_str(&profile.chrome_trace()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let ran = |op: &str| events.iter().find(|event| event["cat"] == "kernel" && event["args"]["op"] == op);
    let sqrt = ran("float_sqrt").unwrap();
    assert_eq!((&sqrt["args"]["region"], &sqrt["args"]["thread"]), (&"load".into(), &"worker".into()));
}

#[test]
#[serial]
fn a_failed_op_keeps_its_error_and_is_in_no_row() {
    let (a, b) = (ones(&[300, 20]), ones(&[30, 40]));
    let (failed, profile) = profile(|| {
        drop(R::float_exp(a.clone()));
        let failed = catch_unwind(AssertUnwindSafe(|| R::float_matmul(a.clone(), b.clone())));
        drop(R::float_exp(b.clone()));
        failed.is_err()
    });
    assert!(failed);
    assert!(matches!(take_last_error(), Some(RocmError::Invalid { op: "float_matmul", .. })));
    assert_eq!(rows_of(&profile, "float_matmul"), []);
    assert_eq!(
        rows_of(&profile, "float_exp").iter().map(|row| row.calls).sum::<u64>(),
        2 - chained(&profile)
    );
    assert_eq!(read_float::<R>(R::float_sum(ones(&[7]))).to_vec::<f32>().unwrap(), [7.0]);

    // A body that panics leaves no profile behind.
    let panics = || -> ((), Profile) {
        burn_rocm::profile(|| {
            let _region = region("panics");
            std::panic::panic_any("on purpose")
        })
    };
    assert!(catch_unwind(panics).is_err());
    let ((), profile) = burn_rocm::profile(|| drop(R::float_exp(ones(&[3000, 1000]))));
    assert_eq!(row_of(&profile, "float_exp").calls, 1);
}

/// How many launches joined two ops.
fn chained(profile: &Profile) -> u64 {
    profile.rows(Detail::Op).iter().filter(|row| row.op.contains(" + ")).map(|row| row.calls).sum()
}

#[test]
#[serial]
fn profiles_may_overlap() {
    let x = ones(&[2000, 1100]);
    let body = || drop(R::float_exp(x.clone()));
    let ((_, inner), outer) = profile(|| {
        body();
        let inner = profile(body);
        body();
        inner
    });
    assert_eq!((row_of(&inner, "float_exp").calls, row_of(&outer, "float_exp").calls), (1, 3));
    let row = row_of(&outer, "float_exp");
    assert!(row.total >= row_of(&inner, "float_exp").total);
}

#[test]
#[serial]
fn a_graph_lists_what_it_runs() {
    let device = RocmDevice::default();
    let x = ones(&[2000, 1100]);
    let body = || {
        let y = R::float_exp(x.clone());
        R::float_sum(R::float_matmul(y, R::float_swap_dims(x.clone(), 0, 1)))
    };
    let ((graph, out), profile) = profile(|| {
        let (graph, out) = Graph::capture_after(&device, 1, body).unwrap();
        graph.replay().unwrap();
        graph.replay().unwrap();
        (graph, out)
    });
    let recorded = graph.recorded();
    let rows = profile.rows(Detail::Work);
    let [row] = &rows.iter().filter(|row| row.kind == Some(WorkKind::Graph)).collect::<Vec<_>>()[..] else {
        panic!("{profile}")
    };
    assert_eq!((row.calls, row.timed), (2, 2));
    assert!(row.work.starts_with("graph "), "{row:?}");
    assert_eq!(row.contains.iter().map(|(_, count)| count).sum::<u64>(), recorded.launches());
    assert!(row.contains.iter().any(|(name, _)| name.starts_with("float_matmul: rocblas_")), "{row:?}");
    // The capture itself runs nothing: the warm-up is the only call.
    assert_eq!(row_of(&profile, "float_matmul").calls, 1);
    assert!(profile.to_string().contains("1 x float_matmul"), "{profile}");
    assert!(read_float::<R>(out).to_vec::<f32>().unwrap()[0] > 1e9);

    // A graph whose capture was not profiled says how much it runs.
    let (graph, _) = Graph::capture_after(&device, 0, body).unwrap();
    let ((), profile) = burn_rocm::profile(|| graph.replay().unwrap());
    let rows = profile.rows(Detail::Work);
    assert_eq!((rows.len(), rows[0].kind, rows[0].contains.len()), (1, Some(WorkKind::Graph), 0));
    let said = format!("of {} kernels, {} library", recorded.kernels, recorded.library_calls);
    assert!(rows[0].work.contains(&said), "{rows:?}");
}

/// Times in microseconds.
fn interval(event: &Value) -> (f64, f64) {
    let start = event["ts"].as_f64().unwrap();
    (start, start + event["dur"].as_f64().unwrap())
}

/// Checks what Perfetto needs of a trace. Returns its events.
#[track_caller]
fn checked(text: &str) -> Vec<Value> {
    let trace: Value = serde_json::from_str(text).unwrap();
    assert_eq!(trace["otherData"]["entries left out"], 0);
    let events = trace["traceEvents"].as_array().unwrap().clone();
    let thread = |event: &Value| (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
    let (mut processes, mut threads) = (BTreeSet::new(), BTreeSet::new());
    let mut tracks: BTreeMap<_, Vec<(f64, f64, bool)>> = BTreeMap::new();
    for event in &events {
        let name = event["name"].as_str().unwrap();
        match event["ph"].as_str().unwrap() {
            "M" => {
                assert!(!event["args"]["name"].as_str().unwrap().is_empty());
                let new = match name {
                    "process_name" => processes.insert(thread(event).0),
                    "thread_name" => threads.insert(thread(event)),
                    other => panic!("{other}"),
                };
                assert!(new, "{event}");
            }
            "X" => {
                let (start, stop) = interval(event);
                assert!(!name.is_empty() && start >= 0.0 && stop >= start, "{event}");
                tracks.entry(thread(event)).or_default().push((start, stop, event["pid"] == 1));
            }
            "C" => {
                let of = |what: &str| event["args"][what].as_u64().unwrap();
                assert!(name == "memory" && of("in use") <= of("reserved"), "{event}");
            }
            other => panic!("{other}"),
        }
    }
    // Times are exact to a nanosecond, and their sums to a rounding.
    const EXACT: f64 = 1e-4;
    for (track, intervals) in tracks {
        assert!(processes.contains(&track.0) && threads.contains(&track), "{track:?}");
        let mut open: Vec<f64> = Vec::new();
        let mut last = 0.0;
        for (start, stop, host) in intervals {
            assert!(start >= last, "in order");
            last = start;
            while open.last().is_some_and(|end| *end <= start + EXACT) {
                open.pop();
            }
            // Spans of the host nest, work on a stream does not.
            assert!(open.is_empty() || host && stop <= open[open.len() - 1] + EXACT, "{track:?} at {start}");
            open.push(stop);
        }
    }
    events
}

#[test]
#[serial]
fn the_timeline_is_a_trace_for_perfetto() {
    step();
    let (counts, profile) = profile(|| {
        let _region = region("a \"step\" \\ of\nlines");
        let large = vec![1u8; 3 << 20];
        let copied = hip::Device::get(0).unwrap().upload(&large).unwrap();
        let (_, counts) = counting(step);
        drop(copied);
        counts
    });
    let events = checked(&profile.chrome_trace());
    let count = |what: &str| events.iter().filter(|event| event["cat"] == what).count() as u64;
    assert_eq!((count("kernel"), count("library")), (counts.kernels, counts.library_calls));
    assert_eq!(count("region"), 1);
    assert!(events.iter().any(|event| event["name"] == "a \"step\" \\ of\nlines"));
    let named = |name: &str| events.iter().any(|event| event["args"]["name"] == name);
    assert!(named("host") && named("device 0") && named("compute") && named("copies"));
    assert!(events.iter().filter(|event| event["ph"] == "C").count() > 3);
    let find = |what: &str, name: &str| {
        let mut found = events.iter().filter(|event| event["cat"] == what);
        found.find(|event| event["args"]["op"] == name).cloned().unwrap()
    };
    // No work begins before the op that enqueued it.
    let (op, work) = (find("op", "float_matmul"), find("library", "float_matmul"));
    assert!(interval(&work).0 >= interval(&op).0, "{op} {work}");
    assert_eq!(work["args"]["flops"], 2 * 60 * 70 * 60);
    assert_eq!(work["args"]["shapes"], "[60, 70] [70, 60]");

    let path = std::env::temp_dir().join(format!("burn-rocm-profile-{}.json", std::process::id()));
    profile.write_chrome_trace(&path).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), profile.chrome_trace());
    std::fs::remove_file(&path).unwrap();
    assert!(profile.write_chrome_trace(path.join("in/a/file")).is_err());
}

/// This test's process with other settings. Returns its stderr.
#[track_caller]
fn child(test: &str, environment: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("BURN_ROCM_TEST_PROFILE_CHILD", "1")
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}\n{errors}", String::from_utf8_lossy(&output.stdout));
    errors
}

fn is_child() -> bool {
    std::env::var_os("BURN_ROCM_TEST_PROFILE_CHILD").is_some()
}

#[test]
#[serial]
fn a_process_can_be_profiled_as_a_whole() {
    const TEST: &str = "a_process_can_be_profiled_as_a_whole";
    if is_child() {
        step();
        std::thread::spawn(step).join().unwrap();
        return;
    }
    let table = child(TEST, &[("BURN_ROCM_PROFILE", "table")]);
    let line = table.lines().find(|line| line.starts_with("float_matmul")).expect(&table);
    assert!(line.contains("[60, 70] [70, 60]") && line.split_whitespace().any(|word| word == "2"), "{line}");

    let path = std::env::temp_dir().join(format!("burn-rocm-process-{}.json", std::process::id()));
    let errors = child(TEST, &[("BURN_ROCM_PROFILE", path.to_str().unwrap())]);
    let events = checked(&std::fs::read_to_string(&path).expect(&errors));
    std::fs::remove_file(&path).unwrap();
    let products = events.iter().filter(|event| event["cat"] == "library");
    assert_eq!(products.count(), 2);
    let threads = events.iter().filter(|event| event["name"] == "thread_name" && event["pid"] == 1);
    assert_eq!(threads.count(), 2);

    // A file that can't be written is said, and changes nothing else.
    let errors = child(TEST, &[("BURN_ROCM_PROFILE", "no/such/folder/a.json")]);
    assert!(errors.contains("the profile was not written") && errors.contains("a.json"), "{errors}");
}

#[test]
#[serial]
fn a_wrong_setting_is_refused() {
    if is_child() {
        let expected = RocmError::Config {
            what: "BURN_ROCM_PROFILE".into(),
            expected: "table, or a path that ends in .json".into(),
            found: "`yes`".into(),
        };
        assert_eq!(RocmDevice::default().info().unwrap_err(), expected);
        return;
    }
    child("a_wrong_setting_is_refused", &[("BURN_ROCM_PROFILE", "yes")]);
}

/// Whether the CPU device runs the tests, which can be told to fail.
fn on_cpu() -> bool {
    provider().unwrap().kind() == ProviderKind::Cpu
}

#[test]
#[serial]
fn nothing_is_recorded_unless_something_is_profiled() {
    const TEST: &str = "nothing_is_recorded_unless_something_is_profiled";
    if !is_child() {
        if on_cpu() {
            child(TEST, &[("BURN_ROCM_CPU_FAIL", "hipEventRecord:1")]);
        }
        return;
    }
    // Only the first event of the process fails.
    let x = ones(&[2000, 1100]);
    (0..10).for_each(|_| drop(R::float_exp(x.clone())));
    let ((), profile) = profile(|| (0..3).for_each(|_| drop(R::float_exp(x.clone()))));
    let row = row_of(&profile, "float_exp");
    assert_eq!((row.calls, row.timed), (3, 2), "the first event is the profile's");
    assert!(profile.to_string().contains("the time of 1 calls of 3 is not known"), "{profile}");
    (0..10).for_each(|_| drop(R::float_exp(x.clone())));
    RocmDevice::default().synchronize().unwrap();
}

#[test]
#[serial]
fn work_without_events_is_counted() {
    const TEST: &str = "work_without_events_is_counted";
    if !is_child() {
        if on_cpu() {
            child(TEST, &[("BURN_ROCM_CPU_FAIL", "hipEventRecord")]);
        }
        return;
    }
    let x = ones(&[2000, 1100]);
    let ((), profile) = profile(|| (0..3).for_each(|_| drop(R::float_exp(x.clone()))));
    let row = row_of(&profile, "float_exp");
    assert_eq!((row.calls, row.timed, row.total, row.average()), (3, 0, Duration::ZERO, Duration::ZERO));
    // The failed events failed nothing else.
    RocmDevice::default().synchronize().unwrap();
}

#[test]
#[serial]
fn a_launch_that_fails_is_in_no_row() {
    const TEST: &str = "a_launch_that_fails_is_in_no_row";
    if !is_child() {
        if on_cpu() {
            child(TEST, &[("BURN_ROCM_CPU_FAIL", "hipModuleLaunchKernel:3"), ("BURN_ROCM_CHAIN", "0")]);
        }
        return;
    }
    let x = ones(&[2000, 1100]);
    let (results, profile) = profile(|| {
        [(); 3].map(|()| catch_unwind(AssertUnwindSafe(|| drop(R::float_exp(x.clone())))).is_ok())
    });
    // The first launch of the process made the ones.
    assert_eq!(results, [true, false, true]);
    assert!(matches!(take_last_error(), Some(RocmError::Device { call: "hipModuleLaunchKernel", .. })));
    assert_eq!(row_of(&profile, "float_exp").calls, 2);
}

#[test]
#[serial]
fn devices_have_rows_of_their_own() {
    const TEST: &str = "devices_have_rows_of_their_own";
    if !is_child() {
        if on_cpu() {
            child(TEST, &[("BURN_ROCM_CPU_DEVICES", "2")]);
        }
        return;
    }
    let on = |index: usize, times: usize| {
        let shape = Shape::from(vec![2000, 1100]);
        let x = R::float_ones(shape, &RocmDevice::new(index), FloatDType::F32);
        (0..times).for_each(|_| drop(R::float_exp(x.clone())));
    };
    let ((), profile) = profile(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| on(0, 2));
            scope.spawn(|| on(1, 5));
        });
    });
    let rows = rows_of(&profile, "float_exp");
    let of: BTreeMap<usize, u64> = rows.iter().map(|row| (row.device, row.calls)).collect();
    assert_eq!(of, BTreeMap::from([(0, 2), (1, 5)]));
    assert_eq!(profile.devices().iter().map(|device| device.device).collect::<Vec<_>>(), [0, 1]);
    let events = checked(&profile.chrome_trace());
    assert!(["device 0", "device 1"].iter().all(|name| events.iter().any(|e| e["args"]["name"] == *name)));
    assert!(profile.to_string().lines().any(|line| line.starts_with("device  op")), "{profile}");
}

#[test]
#[serial]
fn call_sites_are_those_of_the_app() {
    const TEST: &str = "call_sites_are_those_of_the_app";
    if !is_child() {
        child(TEST, &[("BURN_ROCM_PROFILE_CALL_SITES", "1")]);
        return;
    }
    #[inline(never)]
    fn one_place() {
        drop(R::float_exp(ones(&[2000, 1100])));
    }
    #[inline(never)]
    fn another_place() {
        drop(R::float_exp(ones(&[2000, 1100])));
    }
    let ((), profile) = profile(|| {
        one_place();
        (0..2).for_each(|_| another_place());
    });
    let mut rows = profile.rows(Detail::CallSite);
    rows.retain(|row| &*row.op == "float_exp");
    let calls = |place: &str| rows.iter().find(|row| row.site.contains(place)).map(|row| row.calls);
    assert_eq!((rows.len(), calls("one_place"), calls("another_place")), (2, Some(1), Some(2)), "{rows:?}");
    let shapes = profile.rows(Detail::Shapes);
    let joined = shapes.iter().find(|row| &*row.op == "float_exp").unwrap();
    assert_eq!((joined.calls, &*joined.site), (3, ""));
    assert!(profile.to_string().contains("call site"), "{profile}");
    let trace: Value = serde_json::from_str(&profile.chrome_trace()).unwrap();
    let mut sites =
        trace["traceEvents"].as_array().unwrap().iter().filter_map(|e| e["args"]["call site"].as_str());
    assert!(sites.any(|site| site.contains("another_place")));
}

#[test]
#[serial]
fn without_the_setting_there_are_no_call_sites() {
    let ((), profile) = profile(|| drop(R::float_exp(ones(&[2000, 1100]))));
    assert_eq!(&*row_of(&profile, "float_exp").site, "");
    assert!(!profile.to_string().contains("call site"), "{profile}");
}
