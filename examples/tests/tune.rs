//! The program `burn-rocm-tune`: a run that is killed, and one that goes on where it was.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The program, which `cargo test` builds beside the tests.
fn program() -> PathBuf {
    let own = std::env::current_exe().expect("this program's path");
    let folder = own.parent().and_then(Path::parent).expect("a folder above `deps`");
    let program = folder.join("examples").join(format!("burn-rocm-tune{}", std::env::consts::EXE_SUFFIX));
    assert!(program.exists(), "{} is missing: cargo test --examples builds it", program.display());
    program
}

/// A folder that goes with its owner.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const PROBLEMS: usize = 200;

#[test]
fn a_killed_run_goes_on_where_it_was() {
    let folder = Folder(std::env::temp_dir().join(format!("burn-rocm-tune-{}", std::process::id())));
    let _ = fs::remove_dir_all(&folder.0);
    fs::create_dir_all(&folder.0).expect("a temporary folder");
    let (trace, store) = (folder.0.join("trace.txt"), folder.0.join("cache").join("tuning"));
    // Lines of a trace, each problem twice.
    let line = |n: usize| {
        let size = 8 + n % PROBLEMS;
        format!(
            "[INFO burn_rocm::trace] conv2d f32: miopenConvolutionForwardImmediate convolution forward f32 x \
             1x2x{size}x{size} w 2x2x3x3 stride 1x1 padding 1x1 dilation 1x1 groups 1\n"
        )
    };
    fs::write(&trace, (0..2 * PROBLEMS).map(line).collect::<String>()).expect("a trace");
    let mut command = Command::new(program());
    command
        .arg(&trace)
        .env("BURN_ROCM_PROVIDER", "cpu")
        .env("BURN_ROCM_CACHE_DIR", folder.0.join("cache"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let is_result = |file: &fs::DirEntry| file.path().extension().is_some_and(|end| end == "tuning");
    let kept = || fs::read_dir(&store).map_or(0, |files| files.flatten().filter(is_result).count());

    let mut first = command.spawn().expect("the program starts");
    let begun = Instant::now();
    while kept() < 3 && first.try_wait().expect("its state").is_none() {
        assert!(begun.elapsed() < Duration::from_secs(120), "nothing was kept");
        std::thread::sleep(Duration::from_millis(1));
    }
    // It may have ended by now.
    let _ = first.kill();
    first.wait().expect("its end");
    let before = kept();
    assert!(before >= 3);

    let mut run = || {
        let output = command.output().expect("the program starts");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (done, said) = run();
    assert!(done && said.contains(&format!("{PROBLEMS} convolutions on ")), "{said}");
    let timed =
        said.lines().find_map(|line| line.strip_prefix("timed ")?.split(';').next()?.parse::<usize>().ok());
    assert_eq!(timed, Some(PROBLEMS - before), "{said}");
    assert!(said.contains(&format!("{PROBLEMS} results are kept")), "{said}");

    let (done, said) = run();
    assert!(done && said.contains("timed 0;"), "{said}");
}
