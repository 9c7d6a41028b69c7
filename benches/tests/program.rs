//! The program itself, over the cases of a GPU made small: what it writes can be read again.

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
