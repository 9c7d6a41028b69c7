//! `run.sh` with imitations of test programs, of `chroot`, of perl and of the C compiler.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// A root with an imitation of the virtual GPU's library, and a folder of imitated tools.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("burn-rocm-run-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        let scratch = Self(path);
        fs::create_dir_all(scratch.0.join("root/opt/hsa")).unwrap();
        fs::write(scratch.0.join("root/opt/hsa/libhsa-runtime64.so.1"), "").unwrap();
        scratch.script("tools/chroot", "root=$1; shift\nprogram=$1; shift\nexec \"$root$program\" \"$@\"");
        // As programs of libtest do.
        for (program, tests) in
            [("nn", "norms::layer norms::batch"), ("nn_faults", "faults::read"), ("memory", "memory::step")]
        {
            scratch.script(&format!("programs/{program}"), &LIBTEST.replace("TESTS", tests));
        }
        scratch
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn run(&self, root: &Path, arguments: &[&str]) -> Output {
        self.command(root, arguments).output().unwrap()
    }

    fn command(&self, root: &Path, arguments: &[&str]) -> Command {
        let program = |name: &str| self.0.join("programs").join(name);
        let path = format!("{}:{}", self.0.join("tools").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/run.sh"));
        command
            .arg(root)
            .args(arguments)
            .envs([("NN", program("nn")), ("NN_FAULTS", program("nn_faults")), ("MEMORY", program("memory"))])
            .env("STEPS", program("steps"))
            .envs([("HSA", "/opt/hsa"), ("COMMIT", "c0ffee"), ("PATH", &path)])
            .env_remove("RESULTS");
        command
    }

    fn root(&self) -> PathBuf {
        self.0.join("root")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Lists the tests, or runs them, that contain one of the filters.
const LIBTEST: &str = r#"list= filters= count=0
while [ $# -gt 0 ]; do
    case $1 in
    --list) list=yes ;;
    --ignored) exit ;;
    --exact) ;;
    --skip | --format | --test-threads) shift ;;
    *) filters="$filters $1" ;;
    esac
    shift
done
for test in TESTS; do
    for filter in ${filters:-:}; do
        case $test in
        *"$filter"*)
            count=$((count + 1))
            [ -z "$list" ] || echo "$test: test"
            ;;
        esac
    done
done
[ -n "$list" ] || echo "test result: ok. $count passed; 0 failed"
"#;

/// Makes a program that says with which libraries it was linked.
const COMPILER: &str = r#"libraries=
while [ $# -gt 0 ]; do
    case $1 in
    -o) out=$2 ;;
    *.so.*) [ -e "$1" ] && libraries="$libraries ${1##*/}" ;;
    -I*) [ -e "${1#-I}/hip/hip_runtime.h" ] || exit 1 ;;
    esac
    shift
done
printf '#!/bin/sh\necho with%s\n' "$libraries" >"$out"
chmod +x "$out"
"#;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_filter_may_name_tests_of_one_program() {
    for on in [&[][..], &["--on", "gpu"]] {
        let scratch = Scratch::new(&format!("filter-{}", on.len()));
        let run = |more: &[&str]| scratch.run(&scratch.root(), &[on, &["--nn"], more].concat());
        let found = run(&["layer"]);
        assert_eq!(found.status.code(), Some(0), "{found:?}");
        let out = text(&found.stdout);
        assert!(out.contains(if on.is_empty() { "1 passed" } else { "nn::norms::layer: passed" }), "{out}");
        assert!(!out.contains("faults") && !text(&found.stderr).contains("no such test"), "{found:?}");

        let found = run(&["nowhere"]);
        assert_eq!(found.status.code(), Some(2), "{found:?}");
        assert!(text(&found.stderr).contains("no such test in nn, nn_faults and memory"), "{found:?}");

        let found = run(&[]);
        assert_eq!(found.status.code(), Some(0), "{found:?}");
        if !on.is_empty() {
            let lines = fs::read_to_string(scratch.root().join("opt/burn-rocm/gpu.tsv")).unwrap();
            let passed = lines.lines().filter(|line| line.contains("\tpassed\t") && line.ends_with("c0ffee"));
            assert_eq!(passed.count(), 4, "{lines}");
        }
    }
}

/// `run.sh` itself works in the repository.
#[test]
fn paths_are_relative_to_the_callers_folder() {
    let scratch = Scratch::new("relative");
    let mut command = scratch.command(&scratch.root(), &["--on", "gpu", "--nn", "layer"]);
    let paths = [("NN", "programs/nn"), ("RESULTS", "results.tsv")];
    let found = command.current_dir(&scratch.0).envs(paths).output().unwrap();
    assert_eq!(found.status.code(), Some(0), "{found:?}");
    let lines = fs::read_to_string(scratch.0.join("results.tsv")).unwrap();
    assert!(lines.starts_with("nn::norms::layer\tpassed\t"), "{lines}");
}

/// The system kills a program that takes too much memory. Its exit status is also that of a program
/// that exceeded its time limit and did not end when asked to.
#[test]
fn a_killed_test_has_failed() {
    let scratch = Scratch::new("killed");
    let killed = "case \"$*\" in *--list*) ;; *) kill -KILL $$ ;; esac\n";
    scratch.script("programs/killed", &[killed, &LIBTEST.replace("TESTS", "memory::much")].concat());
    let path = scratch.0.join("programs/killed");
    let found = scratch.run(&scratch.root(), &["--on", "gpu", "--program", path.to_str().unwrap()]);
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    assert!(text(&found.stdout).contains("1 failed, 0 timed out"), "{found:?}");
}

#[test]
fn tests_end_with_the_run() {
    let scratch = Scratch::new("ended");
    let slow = "case \"$*\" in *--list*) ;; *) echo $$ >\"${0%/*}/pid\"; exec sleep 120 ;; esac\n";
    scratch.script("programs/slow", &[slow, &LIBTEST.replace("TESTS", "slow::test")].concat());
    let path = scratch.0.join("programs/slow");
    let mut command = scratch.command(&scratch.root(), &["--on", "gpu", "--program", path.to_str().unwrap()]);
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = within_a_minute(|| {
        let pid = fs::read_to_string(scratch.root().join("opt/burn-rocm/pid")).ok()?;
        pid.strip_suffix('\n').map(str::to_owned)
    });
    Command::new("kill").arg(run.id().to_string()).status().unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(143));
    within_a_minute(|| {
        // A process that ended has no file, or is a zombie while nobody asks for its exit status.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
}

fn within_a_minute<T>(mut found: impl FnMut() -> Option<T>) -> T {
    for _ in 0..600 {
        if let Some(found) = found() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("not within a minute");
}

/// rocjitsu must be loaded before the test program, and `--rocblas` loads no library before it.
#[test]
fn tests_of_rocblas_do_not_run_on_rocjitsu() {
    let scratch = Scratch::new("rocblas");
    for (on, status) in [("gfx1100", 2), ("gfx942", 2), ("gpu", 77)] {
        let found = scratch.run(&scratch.root(), &["--on", on, "--rocblas"]);
        assert_eq!(found.status.code(), Some(status), "{found:?}");
        let refused = text(&found.stderr).contains("--rocblas runs on gfx1030 and gpu only");
        assert_eq!(refused, status == 2, "{found:?}");
    }
}

/// The losses must be numbers: NaN is not near another loss.
#[test]
fn losses_must_be_near() {
    for (name, loss, passes) in
        [("near", "0.5001", true), ("far", "0.502", false), ("nan", "NaN", false), ("none", "", false)]
    {
        let scratch = Scratch::new(name);
        let steps = "loss=0.5; [ \"$BURN_ROCM_PROVIDER\" != rocm ] || loss=LOSS\n\
                     step=0; while [ $step -lt $2 ]; do echo \"$step $loss\"; step=$((step + 1)); done";
        scratch.script("programs/steps", &steps.replace("LOSS", loss));
        let found = scratch.run(&scratch.root(), &["--on", "gpu", "--train"]);
        assert_eq!(found.status.success(), passes, "{found:?}");
        let expected = "mlp: expected 20 steps, losses less than 0.001 apart";
        assert_eq!(text(&found.stderr).contains(expected), !passes, "{found:?}");
    }
}

/// `run.sh` changes the root by perl, which leaves the library's name to the program: roots have no `env`.
#[test]
fn a_simulator_is_loaded_before_the_program() {
    let scratch = Scratch::new("preload");
    let enter = r#"shift 2; root=$1 preload=$2 program=$3; shift 3
[ "${LD_PRELOAD-none}" = none ] && [ -e "$root$preload" ] || exit 3
echo "${program##*/} loads $preload" >>"$root/loaded"
exec "$root$program" "$@""#;
    scratch.script("tools/perl", enter);
    scratch.script("tools/chroot", "exit 3");
    let skipped = scratch.run(&scratch.root(), &["--on", "gfx942", "--nn", "layer"]);
    assert_eq!(skipped.status.code(), Some(77), "{skipped:?}");

    for (file, content) in
        [("lib/librocjitsu.so", ""), ("share/rocjitsu/configs/gfx942_kmd.json", r#"{"simd_count": 8}"#)]
    {
        let path = scratch.root().join("opt/rocjitsu").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let found = scratch.run(&scratch.root(), &["--on", "gfx942", "--nn", "layer"]);
    assert_eq!(found.status.code(), Some(0), "{found:?}");
    assert!(text(&found.stdout).contains("nn::norms::layer: passed"), "{found:?}");
    let loaded = fs::read_to_string(scratch.root().join("loaded")).unwrap();
    assert!(loaded.lines().all(|line| line == "nn loads /opt/rocjitsu/lib/librocjitsu.so"), "{loaded}");
}

/// A test that passes is counted as raced if rocjitsu's detector found races, and what it said is kept.
#[test]
fn races_are_results_of_their_own() {
    let scratch = Scratch::new("races");
    let report = "echo 'RACE type=LDS reg=508 wave=0 lane=0 wg=0,0,0 conflict=unknown' >&2\n";
    let program = LIBTEST.replace("TESTS", "reduce::rows");
    scratch.script("programs/quiet", &program);
    scratch.script(
        "programs/races",
        &program.replace("echo \"test result", &format!("{report}echo \"test result")),
    );
    let run = |name: &str| {
        let path = scratch.0.join("programs").join(name);
        scratch.run(&scratch.root(), &["--on", "gpu", "--program", path.to_str().unwrap(), "reduce"])
    };
    let found = run("quiet");
    assert_eq!(found.status.code(), Some(0), "{found:?}");
    let found = run("races");
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    assert!(
        text(&found.stdout).contains("1 tests, 0 passed, 0 failed, 0 timed out, 1 with races"),
        "{found:?}"
    );
    let lines = fs::read_to_string(scratch.root().join("opt/burn-rocm/gpu.tsv")).unwrap();
    assert!(lines.contains("quiet::reduce::rows\tpassed\t"), "{lines}");
    assert!(lines.contains("races::reduce::rows\traced\t"), "{lines}");
    let said = scratch.root().join("opt/burn-rocm/gpu.tsv.said");
    let kept: Vec<_> = fs::read_dir(said).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(kept, ["races.reduce.rows"]);

    let found = scratch.run(&scratch.root(), &["--on", "gpu", "--program"]);
    assert!(!found.status.success() && text(&found.stderr).contains("usage: "), "{found:?}");
}

/// Programs that start themselves again read `/proc/self/exe`. The root has it only meanwhile. Where
/// nothing can be mounted, `run.sh` says so.
#[test]
fn the_root_has_proc_while_programs_run() {
    let scratch = Scratch::new("proc");
    fs::create_dir(scratch.root().join("proc")).unwrap();
    let checked = "case $0 in */opt/*) [ -e \"${0%/opt/*}/proc/self\" ] || exit 1 ;; esac\n";
    scratch.script("programs/again", &[checked, &LIBTEST.replace("TESTS", "proc::read")].concat());
    let path = scratch.0.join("programs/again");
    let found = scratch.run(&scratch.root(), &["--on", "gpu", "--program", path.to_str().unwrap()]);
    let mounted = !text(&found.stderr).contains("/proc can't be mounted");
    assert_eq!(found.status.code(), Some(i32::from(!mounted)), "{found:?}");
    assert_eq!(fs::read_dir(scratch.root().join("proc")).unwrap().count(), 0);
}

#[test]
fn the_simulators_programs_take_hip_from_either_layout() {
    for (name, lib, include) in [
        ("debian", "usr/lib/x86_64-linux-gnu", "usr/include/hip"),
        ("amd", "opt/rocm/lib", "opt/rocm/include/hip"),
    ] {
        let scratch = Scratch::new(name);
        scratch.script("tools/cc", COMPILER);
        let found = scratch.run(&scratch.root(), &["--on", "gpu", "--simulator"]);
        assert_eq!(found.status.code(), Some(2), "{found:?}");
        assert!(text(&found.stderr).contains("has no HIP: "), "{found:?}");

        for file in ["libamdhip64.so.7", "libamdhip64.so.7.2.1", "libhiprtc.so.7"] {
            fs::create_dir_all(scratch.root().join(lib)).unwrap();
            fs::write(scratch.root().join(lib).join(file), "").unwrap();
        }
        fs::create_dir_all(scratch.root().join(include)).unwrap();
        fs::write(scratch.root().join(include).join("hip_runtime.h"), "").unwrap();
        let found = scratch.run(&scratch.root(), &["--on", "gpu", "--simulator"]);
        assert_eq!(found.status.code(), Some(0), "{found:?}");
        let out = text(&found.stdout);
        let programs = out.lines().filter(|line| *line == "with libamdhip64.so.7 libhiprtc.so.7").count();
        let sources = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/simulator")).unwrap();
        let sources =
            sources.filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|e| e == "c"));
        assert_eq!(programs, sources.count(), "{out}");
    }
}

/// What each case's exit status says is kept, and a case that has a result is not run again.
#[test]
fn solvers_resume() {
    let scratch = Scratch::new("solvers");
    let program = r#"case $1 in
list) printf 'A.forward.f32\nB.data.f16\nC.weights.bf16\nD.data.f32\nE.data.bf16\n' ;;
A*) ;;
B*) exit 1 ;;
C*) exit 3 ;;
D*) kill -SEGV $$ ;;
E*) exit 4 ;;
esac"#;
    scratch.script("programs/xdlops", program);
    let compiler = "while [ \"$1\" != -o ]; do shift; done\ncp \"${0%/*}/../programs/xdlops\" \"$2\"";
    scratch.script("tools/c++", compiler);
    for file in ["lib/libamdhip64.so.7", "lib/libMIOpen.so.1", "include/hip/hip_runtime.h"] {
        let path = scratch.root().join("opt/rocm").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    let run = |more: &[&str]| scratch.run(&scratch.root(), &[&["--on", "gpu", "--solvers"], more].concat());
    let found = run(&["forward"]);
    assert_eq!(found.status.code(), Some(0), "{found:?}");
    let counts = "xdlops on gpu: 1 cases, 1 right, 0 wrong, 0 refused, 0 aborted, 0 errors, 0 timed out";
    assert!(text(&found.stdout).contains(counts), "{found:?}");

    for first in [true, false] {
        let found = run(&[]);
        assert_eq!(found.status.code(), Some(1), "{found:?}");
        let out = text(&found.stdout);
        assert!(
            out.contains(
                "xdlops on gpu: 5 cases, 1 right, 1 wrong, 1 refused, 1 aborted, 1 errors, 0 timed out"
            ),
            "{out}"
        );
        assert!(!out.contains("A.forward.f32: "), "it has a result: {out}");
        assert_eq!(out.contains("xdlops::C.weights.bf16: refused"), first, "{out}");
    }
    let found = run(&["nowhere"]);
    assert!(text(&found.stderr).contains("no such test in solvers"), "{found:?}");
}

/// The virtual GPU, or a simulator's configuration, would be written into the machine's own root.
#[test]
fn simulated_gpus_need_a_root_of_their_own() {
    let scratch = Scratch::new("own");
    for arguments in
        [&["--simulator"][..], &["--on", "gfx1030", "--simulator"], &["--on", "gfx942"], &["matmul"]]
    {
        // Without a virtual GPU in this folder, nothing is built even if the root is taken.
        let found = scratch.run(Path::new("/"), arguments);
        assert_eq!(found.status.code(), Some(2), "{arguments:?}: {found:?}");
        assert!(text(&found.stderr).contains("ROOT may be / only with --on gpu"), "{arguments:?}: {found:?}");
    }
}
