//! Runs the program itself over the GPU's cases in small sizes. Its output can be read again.

use std::path::{Path, PathBuf};
use std::process::Command;

fn run(arguments: &[&str]) -> (bool, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_benches")).args(arguments).output().expect("the program starts");
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (output.status.success(), text)
}

#[test]
fn a_run_is_compared_with_another_and_drawn() {
    let folder = std::env::temp_dir().join(format!("burn-rocm-benches-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder can be made");
    let path = |name: &str| folder.join(name).to_str().expect("a path in UTF-8").to_string();
    let (csv, svg) = (path("run.csv"), path("run.svg"));
    let common =
        ["--elementwise", "--softmax", "--matmul", "--shrink", "65536", "--iterations", "1", "--warmup", "1"];
    let with = |more: &[&str]| run(&[&common[..], more].concat());

    let (ok, text) = with(&["--csv", &csv]);
    assert!(ok, "{text}");
    for case in ["| add 4096 f32 |", "| softmax 16x4096 f32 |", "| matmul 64 f32 |", "of the library"] {
        assert!(text.contains(case), "no {case} in {text}");
    }
    let (ok, text) = with(&["--compare", &csv, "--plot", &svg]);
    assert!(ok && text.contains("its time / ours"), "{text}");
    let drawn = std::fs::read_to_string(&svg).expect("a picture");
    assert!(drawn.contains("add 4096 f32") && drawn.contains("</svg>"), "{drawn}");

    let (ok, text) = with(&["--plot", &svg]);
    assert!(!ok && text.contains("--compare"), "a picture of no ratios: {text}");
    let (ok, text) = with(&["--compare", &path("absent.csv")]);
    assert!(!ok && text.contains("absent.csv"), "{text}");
    std::fs::remove_dir_all(&folder).expect("the folder goes");
}

/// What the first process has timed, the second finds.
#[test]
fn a_filled_store_leaves_nothing_to_time() {
    let (ok, text) = run(&["--tuned-start", "--filter", "CNN", "--shrink", "512", "--iterations", "1"]);
    assert!(ok, "{text}");
    for way in [
        "convolutions by auto",
        "convolutions by find",
        "convolutions by find, products and kernels by trial",
    ] {
        let row = text.lines().find(|line| line.starts_with(&format!("| CNN, {way} |"))).expect("a row");
        let columns: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, _, _, timed, _, again, found, ..] = columns[..] else { panic!("{row}") };
        assert!(timed != "0" && again == "0" && found == timed, "{row}");
    }
}

#[test]
fn every_group_of_a_gpus_cases_runs() {
    for (group, cases) in [
        ("--conv", &["| conv2d 3->64 7x7 stride 2 on 224x224, batch 1 f32 |", "| conv2d 512->512 3x3"][..]),
        ("--reduce", &["| sum 4096 f32 |", "| sum_dim 0 16x4096 f32 |", "| sum_dim 1 16x4096 f32 |"]),
        ("--norm", &["| layer_norm 16x4096 f32 |"]),
        ("--overhead", &["a chain of 1000, results kept |", "a chain of 1000, results dropped |"]),
        (
            "--cold-start",
            &[
                "| cold start to the end of the first mlp step |",
                "| warm start to the end of the first cnn step |",
            ],
        ),
    ] {
        let (ok, text) = run(&[group, "--shrink", "65536", "--iterations", "1", "--warmup", "0"]);
        assert!(ok, "{group}: {text}");
        for case in cases {
            assert!(text.contains(case), "{group}: no {case} in {text}");
        }
    }
}

#[test]
fn attention_runs_forward_and_backward_in_each_precision() {
    let (ok, text) = run(&[
        "--attention",
        "--filter",
        "attention 4x12x32x64",
        "--precision",
        "f32,bf16,f16",
        "--shrink",
        "64",
        "--iterations",
        "1",
        "--warmup",
        "0",
    ]);
    assert!(ok, "{text}");
    for precision in ["", ", bf16", ", f16"] {
        for causal in ["", ", causal"] {
            for pass in ["forward", "forward and backward"] {
                let case = format!("| attention 4x12x32x64{precision}{causal}, {pass} |");
                let row = text.lines().find(|line| line.starts_with(&case));
                let row = row.unwrap_or_else(|| panic!("no {case} in {text}"));
                // bf16 ran beside f16, and PyTorch did not run.
                assert_eq!(row.contains("1.05 of bf16"), precision == ", f16", "{row}");
                assert!(!row.contains("of PyTorch"), "{row}");
            }
        }
    }
}

#[test]
fn inference_runs_call_by_call_and_from_a_graph() {
    let model = ["--inference", "--filter", "ResNet-50", "--graph", "--precision", "bf16"];
    let (ok, text) =
        run(&[&model[..], &["--shrink", "65536", "--iterations", "1", "--warmup", "0"]].concat());
    assert!(ok, "{text}");
    for end in ["", ", graph", ", burn-rocm-nn", ", burn-rocm-nn, graph"] {
        assert!(text.contains(&format!("| ResNet-50 inference, batch 1, bf16{end} |")), "no {end} in {text}");
    }
}

/// The losses of a training run are compared with another run's step by step, and the largest
/// difference is reported.
#[test]
fn losses_that_part_are_told() {
    let folder = std::env::temp_dir().join(format!("burn-rocm-losses-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder can be made");
    let path = |name: &str| folder.join(name).to_str().expect("a path in UTF-8").to_string();
    let (csv, other) = (path("run.csv"), path("other.csv"));
    let loss = |step: usize| format!("\"loss {step} of MLP Adam step, batch 64\",");
    // A run whose loss does not fall.
    let rows: String = (0..=20).map(|step| loss(step) + "2.5\n").collect();
    std::fs::write(&other, rows).expect("a file can be written");
    let common = ["--train", "--filter", "MLP", "--shrink", "65536", "--iterations", "1", "--warmup", "0"];
    let (ok, text) = run(&[&common[..], &["--csv", &csv, "--compare", &other]].concat());
    assert!(ok, "{text}");
    let rows = std::fs::read_to_string(&csv).expect("the rows");
    let ours = |step: usize| -> f64 {
        let row = rows.lines().find_map(|line| line.strip_prefix(&loss(step))).expect("a row a step");
        row.split(',').next().and_then(|number| number.parse().ok()).expect("a loss")
    };
    assert!(ours(20) < ours(0), "it learns");
    let apart = (0..=20).map(|step| (ours(step) - 2.5).abs() / ours(step).max(2.5)).fold(0.0, f64::max);
    let told: Vec<&str> = text.lines().filter(|line| line.ends_with(" apart")).collect();
    assert_eq!(told.len(), 2, "of stock modules and of burn-rocm-nn's: {text}");
    assert!(told[0].starts_with("MLP Adam step, batch 64: "), "{}", told[0]);
    assert!(told[1].starts_with("MLP Adam step, batch 64, burn-rocm-nn: "), "{}", told[1]);
    assert!(
        told[0].ends_with(&format!("2.500000 and 2.500000, at most {apart:.1e} apart")),
        "{}: {apart}",
        told[0]
    );
    std::fs::remove_dir_all(&folder).expect("the folder goes");
}

/// A folder that is removed when the value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("burn-rocm-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder can be made");
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a path in UTF-8").to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An imitation of a Python with PyTorch, which runs `peer` instead of the peer's script.
#[cfg(unix)]
fn python(folder: &Folder, peer: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.path("python");
    let text = format!("#!/bin/sh\n[ \"$1\" != -c ] || exit 0\ncat >/dev/null\n{peer}\n");
    std::fs::write(&path, text).expect("a file can be written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode can be set");
    path
}

const FUSED: &str = "MLP Adam step, batch 64, burn-rocm-nn";

/// Runs the one row [`FUSED`].
fn fused(more: &[&str]) -> (bool, String) {
    let common = ["--train", "--filter", FUSED, "--shrink", "65536", "--iterations", "1", "--warmup", "0"];
    run(&[&common[..], more].concat())
}

/// `--filter` may name rows that peers have under another name.
#[cfg(unix)]
#[test]
fn a_selected_row_of_burn_rocm_nn_has_peers() {
    let folder = Folder::new("peers");
    let peer = "while [ $# -gt 0 ]; do [ \"$1\" != --rows ] || rows=$2; shift; done\n\
                printf '\"%s\",0.5\\n' \"$rows\"";
    let (ok, text) = fused(&["--torch", &python(&folder, peer), "--flex"]);
    assert!(ok, "{text}");
    let row = text.lines().find(|line| line.starts_with(&format!("| {FUSED} |"))).expect("a row");
    let columns: Vec<&str> = row.split('|').map(str::trim).collect();
    let [_, _, _, _, _, _, torch, _, flex, ..] = columns[..] else { panic!("{row}") };
    assert!(torch == "500.00 ms" && flex != "-", "{row}");
}

/// What was measured is not lost because a peer fails.
#[cfg(unix)]
#[test]
fn rows_outlive_a_peer_that_fails() {
    let folder = Folder::new("fails");
    let csv = folder.path("run.csv");
    let (ok, text) = fused(&["--torch", &python(&folder, "exit 3"), "--csv", &csv]);
    assert!(!ok && text.contains("exit status: 3"), "{text}");
    assert!(text.contains(&format!("| {FUSED} |")), "{text}");
    let rows = std::fs::read_to_string(Path::new(&csv)).expect("the rows");
    assert!(rows.contains(&format!("\"{FUSED}\",")), "{rows}");
}

/// Nothing is measured before the options are known to be right.
#[test]
fn wrong_options_are_refused_at_once() {
    let absent = std::env::temp_dir().join("burn-rocm-no-such-python");
    let absent = absent.to_str().expect("a path in UTF-8");
    for (arguments, error) in [
        (&["--train", "--shrink", "65536", "--torch", absent][..], "burn-rocm-no-such-python"),
        (&["--reduce", "--shrink", "65536", "--plot", absent], "--plot draws ratios to a peer"),
        (&["--families", "fft", "--shrink", "2"], "would ignore --families"),
        (&["--memory", "--csv", absent], "would ignore --csv"),
        (&["--launches", "--csv", absent], "would ignore --csv"),
        (&["--matmul", "--iterations", "0"], "a number from 1"),
    ] {
        let (ok, text) = run(arguments);
        assert!(!ok && text.contains(error), "{arguments:?}: {text}");
        assert!(!text.contains("| case |"), "{arguments:?}: {text}");
    }
}
