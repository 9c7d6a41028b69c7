//! The table that `VIRTUAL_GPU_COUNTERS` asks for. A process reads its settings once, so
//! the launches have processes of their own.

#[path = "support/api.rs"]
#[allow(dead_code, reason = "each test uses a part")]
mod api;
mod support;

use std::collections::HashMap;
use std::process::Command;

use api::*;
use support::{Kernel, NUMBERS, Source};

/// `s_trap 2; s_endpgm`
const TRAP: &[u32] = &[0xbf92_0002, 0xbf81_0000];

/// If this is set, the test is the process that it started itself, and it only launches.
const LAUNCH: &str = "VIRTUAL_GPU_TEST_LAUNCH";

/// Two processes write one table, as a run with a process for each test does.
#[test]
fn every_launch_of_every_process_has_a_line() {
    if std::env::var_os(LAUNCH).is_some() {
        return launch();
    }
    let path = std::env::temp_dir().join(format!("virtual-gpu-counters-{}.tsv", std::process::id()));
    for _ in 0..2 {
        let status = Command::new(std::env::current_exe().expect("this program"))
            .arg("every_launch_of_every_process_has_a_line")
            .envs([(LAUNCH, "1".as_ref()), ("VIRTUAL_GPU_COUNTERS", path.as_os_str())])
            .status()
            .expect("this program starts");
        assert!(status.success(), "{status}");
    }
    let table = std::fs::read_to_string(&path).expect("the table");
    std::fs::remove_file(&path).expect("the table can be removed");
    check(&table, &[3, 300, 3, 300]);
}

fn launch() {
    let (queue, executable) =
        (TestQueue::new(), load(&Source::new(&[Kernel::new("numbers", NUMBERS), Kernel::new("trap", TRAP)])));
    let memory = allocate(pool(agents().1), 4 * 64 * 300);
    for groups in [3, 300] {
        let done = signal(1);
        queue.dispatch(kernel(executable, "numbers"), groups, memory as u64, done);
        wait(done);
    }
    let failed = signal(1);
    queue.dispatch(kernel(executable, "trap"), 1, 0, failed);
    wait(failed);
}

/// Compares the table with launches of so many workgroups.
fn check(table: &str, launches: &[u64]) {
    let mut lines = table.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let header = lines.next().expect("a header");
    let rows: Vec<HashMap<&str, &str>> = lines
        .map(|line| {
            assert_eq!(line.len(), header.len());
            header.iter().copied().zip(line).collect()
        })
        .collect();
    assert_eq!(rows.len(), launches.len(), "a launch that faults has none");
    for (row, &groups) in rows.iter().zip(launches) {
        assert_eq!((row["kernel"], row["block"]), ("numbers", "64,1,1"));
        assert_eq!(row["grid"], format!("{groups},1,1"));
        assert_eq!((row["vgprs"], row["lds_size"], row["private_size"]), ("16", "0", "0"));
        let waves = 2 * groups;
        // What each wave does; every other count is 0.
        let expected = HashMap::from([
            ("waves", 1),
            ("valu_int", 2),
            ("valu_int_lanes", 64),
            ("salu", 1),
            ("smem", 1),
            ("vmem_store", 1),
            ("vmem_store_lanes", 32),
            ("wait", 1),
            ("other", 1),
            ("store_bytes", 128),
            ("store_lines", 2),
            ("scalar_bytes", 8),
            ("scalar_lines", 1),
        ]);
        for name in &header[6..] {
            let count = row[name].parse::<u64>().expect("a number");
            if *name == "distinct_lines" {
                // Each wave stores to lines of its own, and all of them load the same arguments.
                assert_eq!(count, 2 * waves + 1);
                continue;
            }
            assert_eq!(count, waves * expected.get(name).copied().unwrap_or(0), "{name}");
        }
    }
}
