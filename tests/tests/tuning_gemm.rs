//! rocBLAS's solutions by trial: what one process has timed, no other times again; every solution's
//! results; and PyTorch's TunableOp file.
//!
//! A process has one store and one set of settings, so each case is a process of its own.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use burn_rocm::tuning::{TunableOpCount, export_tunable_op, import_tunable_op, store};
use burn_rocm::{ProviderKind, RocmDevice, RocmError};
use burn_rocm_tests::limits::{Terms, wide};
use burn_rocm_tests::trace::during;
use burn_rocm_tests::*;
use hip::MatrixView;

/// A cache folder of a test's own.
struct Cache(PathBuf);

impl Cache {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("burn-rocm-gemm-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    fn said_by(&self, test: &str, variables: &[(&str, &str)]) -> Vec<String> {
        let folder = self.0.to_str().unwrap();
        said_by(test, &[&[("BURN_ROCM_CACHE_DIR", folder)], variables].concat())
    }

    /// Gives every entry this solution.
    fn replace_solutions(&self, solution: i32) {
        for file in std::fs::read_dir(self.0.join("tuning")).unwrap() {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let lines = text.lines().map(|line| match line.starts_with("solution ") {
                true => format!("solution {solution}\n"),
                false => format!("{line}\n"),
            });
            let changed: String = lines.collect();
            std::fs::write(&path, changed).unwrap();
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The CPU device's solutions besides its default.
const SOLUTIONS: [i32; 2] = [1, -12];

const AUTO: (&str, &str) = ("BURN_ROCM_GEMM_FIND", "auto");

fn said(what: &str, value: impl std::fmt::Debug) {
    println!("{SAID}{what} {value:?}");
}

fn kind() -> ProviderKind {
    burn_rocm::provider().unwrap().kind()
}

/// Problems that have solutions to time. cuBLAS has none.
fn timed() -> usize {
    if kind() == ProviderKind::Cuda { 0 } else { PROBLEMS }
}

/// Those of [`four_times`]: 4 dtypes with 4 transposes and 2 batches each, and 2 that add.
const PROBLEMS: usize = 4 * 4 * 2 + 2 * 2;

/// The lines of [`four_times`].
fn counts(
    trials: usize,
    hits: usize,
    misses: usize,
    stored: usize,
    outdated: usize,
    entries: usize,
) -> Vec<String> {
    let all = [
        ("trials", trials),
        ("hits", hits),
        ("misses", misses),
        ("stored", stored),
        ("outdated", outdated),
        ("entries", entries),
    ];
    all.map(|(name, count)| format!("{name} {count}")).to_vec()
}

/// A product that adds to its result, against f64 sums, within the bound of `k` terms in any order.
fn adds(random: &Random, dtype: DType, batch: usize) {
    let (m, n, k, alpha, beta) = (9, 21, 600, 0.75, -0.5);
    let device = hip::Device::get(0).unwrap();
    let double = dtype == DType::F64;
    let bytes = |values: &[f64]| -> Vec<u8> {
        match double {
            true => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            false => values.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect(),
        }
    };
    // f32 holds every value exactly.
    let values = |count: usize| -> Vec<f64> {
        (0..count).map(|_| f64::from(random.uniform(-1.0, 1.0) as f32)).collect()
    };
    let (a, b, c) = (values(batch * m * k), values(batch * k * n), values(batch * m * n));
    let [first, second, out] = [&a, &b, &c].map(|values| device.upload(&bytes(values)).unwrap());
    let view = |buffer, rows: usize, cols: usize| MatrixView {
        buffer,
        offset: 0,
        rows,
        cols,
        row_stride: cols,
        col_stride: 1,
        batch_stride: rows * cols,
    };
    let own = if double { hip::DType::F64 } else { hip::DType::F32 };
    let (first, second, result) = (view(&first, m, k), view(&second, k, n), view(&out, m, n));
    device.blas().unwrap().gemm(own, batch, first, second, result, alpha, beta, false).unwrap();
    let mut read = vec![0; out.len()];
    device.read(&out, 0, &mut read).unwrap();
    let unit = limits::unit(wide(dtype));
    for (at, &c) in c.iter().enumerate() {
        let (matrix, row, col) = (at / (m * n), at / n % m, at % n);
        let products = (0..k).map(|l| a[(matrix * m + row) * k + l] * b[(matrix * k + l) * n + col]);
        let (sum, magnitude) = products.fold((0.0, 0.0), |(sum, all), x| (sum + x, all + x.abs()));
        let found = match double {
            true => f64::from_le_bytes(read[8 * at..8 * at + 8].try_into().unwrap()),
            false => f64::from(f32::from_le_bytes(read[4 * at..4 * at + 4].try_into().unwrap())),
        };
        let (expected, all) = (alpha * sum + beta * c, alpha * magnitude + (beta * c).abs());
        // The f64 reference rounds too.
        let bound = (k as f64 + 4.0) * (unit + f64::EPSILON) * all;
        assert!((found - expected).abs() <= bound, "{dtype:?} {at}: {found}, {expected}, allowed {bound:e}");
    }
}

/// The variable that tells a child which file of TunableOp to read after two rounds.
const IMPORTED: &str = "BURN_ROCM_TEST_IMPORT";

/// Each product four times, each time against f64 sums.
#[test]
#[ignore = "run by the tests below, with other settings"]
fn four_times() {
    let random = Random::new();
    let mut lines = Vec::new();
    for time in 0..4 {
        if let Some(file) = std::env::var_os(IMPORTED).filter(|_| time == 2) {
            import_tunable_op(&RocmDevice::default(), Path::new(&file)).unwrap();
        }
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            for batch in [1, 3] {
                for transposed in [[false, false], [true, false], [false, true], [true, true]] {
                    let shape =
                        |rows, cols, swap| if swap { [batch, cols, rows] } else { [batch, rows, cols] };
                    let input =
                        |shape: [usize; 3]| float(&random, &shape, dtype, View::Contiguous, -1.0, 1.0);
                    let (a, b) = (input(shape(33, 600, transposed[0])), input(shape(600, 17, transposed[1])));
                    let what = format!("{dtype:?} {transposed:?} batch {batch}");
                    let terms = Terms::of(600, dtype);
                    let traced = during(|| {
                        sums!(what, terms, |B, device, [a = &a, b = &b]| {
                            let a = if transposed[0] { B::float_transpose(a) } else { a };
                            B::float_matmul(a, if transposed[1] { B::float_transpose(b) } else { b })
                        });
                    });
                    lines.extend(traced.1);
                }
            }
        }
        for (dtype, batch) in [(DType::F32, 1), (DType::F32, 2), (DType::F64, 1), (DType::F64, 2)] {
            lines.extend(during(|| adds(&random, dtype, batch)).1);
        }
    }
    let stats = store().stats();
    said("trials", stats.trials);
    said("hits", stats.hits);
    said("misses", stats.misses);
    said("stored", stats.stored);
    said("outdated", stats.outdated);
    said("entries", stats.entries);
    for solution in SOLUTIONS {
        let text = format!(", solution {solution}");
        said("by", (solution, lines.iter().filter(|line| line.ends_with(&text)).count()));
    }
}

/// What `four_times` said, without which solutions were the fastest.
fn counted(cache: &Cache, variables: &[(&str, &str)]) -> Vec<String> {
    let said = cache.said_by("four_times", variables);
    said.into_iter().filter(|line| !line.starts_with("by ")).collect()
}

/// Which solutions rocBLAS lists depends on the variable.
#[test]
fn rocblas_with_hipblaslt_has_entries_of_its_own() {
    let (cache, timed) = (Cache::new("hipblaslt"), timed());
    assert_eq!(counted(&cache, &[AUTO]), counts(timed, 0, PROBLEMS, timed, 0, timed));
    let switched = [AUTO, ("ROCBLAS_USE_HIPBLASLT", "0")];
    assert_eq!(counted(&cache, &switched), counts(timed, 0, PROBLEMS, timed, 0, 2 * timed));
}

#[test]
fn a_second_process_times_nothing() {
    let (cache, timed) = (Cache::new("second"), timed());
    assert_eq!(counted(&cache, &[AUTO]), counts(timed, 0, PROBLEMS, timed, 0, timed));
    assert_eq!(counted(&cache, &[AUTO]), counts(0, timed, PROBLEMS - timed, 0, 0, timed));
}

#[test]
fn what_is_off_looks_nothing_up() {
    let cache = Cache::new("off");
    let off = ("BURN_ROCM_GEMM_FIND", "off");
    let deterministic = ("BURN_ROCM_DETERMINISTIC", "1");
    let nothing = SOLUTIONS.map(|at| format!("by ({at}, 0)"));
    for variables in [&[][..], &[off], &[AUTO, deterministic]] {
        let said = cache.said_by("four_times", variables);
        assert_eq!(said, [counts(0, 0, 0, 0, 0, 0), nothing.to_vec()].concat(), "{variables:?}");
    }
    // Without a store, the process keeps what it times to itself.
    for variable in ["BURN_ROCM_TUNING", "BURN_ROCM_CACHE"] {
        let found = counted(&cache, &[AUTO, (variable, "0")]);
        assert_eq!(found, counts(timed(), 0, 0, 0, 0, 0), "{variable}");
    }
}

#[test]
fn every_stored_solution_computes_and_a_refused_one_goes() {
    let (cache, timed) = (Cache::new("each"), timed());
    cache.said_by("four_times", &[AUTO]);
    if timed == 0 {
        assert!(!cache.0.join("tuning").exists() || store().entries().is_empty(), "cuBLAS has no solutions");
        return;
    }
    if kind() == ProviderKind::Cpu {
        for solution in SOLUTIONS {
            cache.replace_solutions(solution);
            let said = cache.said_by("four_times", &[AUTO]);
            let by =
                SOLUTIONS.map(|at| format!("by ({at}, {})", if at == solution { 4 * PROBLEMS } else { 0 }));
            assert_eq!(said, [counts(0, PROBLEMS, 0, 0, 0, PROBLEMS), by.to_vec()].concat());
        }
    }
    for refused in [i32::MAX, i32::MIN] {
        cache.replace_solutions(refused);
        assert_eq!(counted(&cache, &[AUTO]), counts(0, PROBLEMS, 0, 0, PROBLEMS, 0), "{refused}");
        // The next process times again.
        assert_eq!(counted(&cache, &[AUTO]), counts(PROBLEMS, 0, PROBLEMS, PROBLEMS, 0, PROBLEMS));
    }
}

/// With less workspace other solutions may be the fastest, and rocBLAS may refuse those that need
/// more. So neither process takes what the other has kept.
#[test]
fn a_limit_of_workspaces_has_entries_of_its_own() {
    let (cache, timed) = (Cache::new("limit"), timed());
    counted(&cache, &[AUTO]);
    let limited = [AUTO, ("BURN_ROCM_WORKSPACE_LIMIT", "1M")];
    assert_eq!(counted(&cache, &limited), counts(timed, 0, PROBLEMS, timed, 0, 2 * timed));
    assert_eq!(counted(&cache, &limited), counts(0, timed, PROBLEMS - timed, 0, 0, 2 * timed));
    assert_eq!(counted(&cache, &[AUTO]), counts(0, timed, PROBLEMS - timed, 0, 0, 2 * timed));
}

/// Four threads multiply at once, each product against the oracle. Each problem is timed once.
#[test]
#[ignore = "run by the test below, with other settings"]
fn by_threads() {
    let random = Random::new();
    let input = |shape: &[usize]| float(&random, shape, DType::F32, View::Contiguous, -1.0, 1.0);
    let inputs = [7, 19, 40].map(|n| (input(&[33, 300]), input(&[300, n])));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..6 {
                    for (a, b) in &inputs {
                        let terms = Terms::of(300, DType::F32);
                        sums!("product", terms, |B, device, [a = a, b = b]| B::float_matmul(a, b));
                    }
                }
            });
        }
    });
    let stats = store().stats();
    said("trials", (stats.trials, stats.stored, stats.entries));
}

#[test]
fn threads_time_each_problem_once() {
    let cache = Cache::new("threads");
    let expected = if timed() == 0 { "trials (0, 0, 0)" } else { "trials (3, 3, 3)" };
    assert_eq!(cache.said_by("by_threads", &[AUTO]), [expected]);
}

/// In a group of two ranks, nothing is timed, and what the store has is not used.
#[test]
#[ignore = "run by the test below, on two devices"]
fn of_two_ranks() {
    let devices = [0, 1].map(|index| hip::Device::get(index).unwrap());
    let _ranks = hip::Communicator::local(&devices).unwrap();
    four_times();
}

#[test]
fn ranks_do_not_choose() {
    let cache = Cache::new("ranks");
    let two = [("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CPU_DEVICES", "2"), AUTO];
    let alone = counted(&cache, &two);
    assert_eq!(alone, counts(PROBLEMS, 0, PROBLEMS, PROBLEMS, 0, PROBLEMS));
    let nothing = SOLUTIONS.map(|at| format!("by ({at}, 0)"));
    let expected = [counts(0, 0, 0, 0, 0, PROBLEMS), nothing.to_vec()].concat();
    assert_eq!(cache.said_by("of_two_ranks", &two), expected);
}

/// What is refused in a graph's capture may work outside it, and nothing is timed in one.
#[test]
#[ignore = "run by the test below, with other settings"]
fn in_a_graph() {
    use burn_rocm::graph::Graph;
    let (random, device) = (Random::new(), RocmDevice::default());
    let input = |shape: &[usize]| float(&random, shape, DType::F32, View::Contiguous, -1.0, 1.0);
    let (a, b) = (input(&[33, 600]), input(&[600, 17]));
    let tensors = (a.float::<R>(&device), b.float::<R>(&device));
    for _ in 0..2 {
        let _ = R::float_matmul(tensors.0.clone(), tensors.1.clone());
    }
    // The third use.
    let product = || R::float_matmul(tensors.0.clone(), tensors.1.clone());
    let (graph, _out) = Graph::capture_after(&device, 0, product).unwrap();
    graph.replay().unwrap();
    let trials = store().stats().trials;
    sums!("product", Terms::of(600, DType::F32), |B, device, [a = &a, b = &b]| B::float_matmul(a, b));
    said("trials", (trials, store().stats().trials));
}

#[test]
fn a_capture_times_nothing() {
    let cache = Cache::new("graph");
    assert_eq!(cache.said_by("in_a_graph", &[AUTO]), [format!("trials (0, {})", usize::from(timed() > 0))]);
}

const OTHERS: [(&str, &str); 3] =
    [("PT_VERSION", "2.9.0"), ("ROCM_VERSION", "7.2.0"), ("HIPBLASLT_VERSION", "1.0.0-abc")];
/// The variable that tells a child the file.
const FILE: &str = "BURN_ROCM_TEST_TUNABLE_OP";

/// What PyTorch's file says serves from the third use on, so nothing is timed then.
#[test]
fn pytorchs_file_reaches_products_that_were_used() {
    let (from, to, timed) = (Cache::new("used-from"), Cache::new("used-to"), timed());
    from.said_by("four_times", &[AUTO]);
    std::fs::create_dir_all(&from.0).unwrap();
    if kind() == ProviderKind::Cpu {
        from.replace_solutions(SOLUTIONS[1]);
    }
    let file = from.0.join("tunable_op.csv");
    let file = file.to_str().unwrap();
    from.said_by("exports", &[(FILE, file)]);
    let said = to.said_by("four_times", &[AUTO, (IMPORTED, file)]);
    // A line counts for products that add and for those that don't. Those of cuBLAS are asked twice,
    // and nothing is found.
    let misses = if timed == 0 { 2 * PROBLEMS } else { PROBLEMS };
    assert_eq!(said[..6], counts(0, timed, misses, 2 * timed, 0, 2 * timed));
    if kind() == ProviderKind::Cpu {
        let by =
            SOLUTIONS.map(|at| format!("by ({at}, {})", if at == SOLUTIONS[1] { 2 * PROBLEMS } else { 0 }));
        assert_eq!(said[6..], by);
    }
}

fn file() -> PathBuf {
    PathBuf::from(std::env::var_os(FILE).unwrap())
}

#[test]
#[ignore = "run by the test below, with a cache folder"]
fn exports() {
    said("exported", export_tunable_op(&RocmDevice::default(), &file(), &OTHERS));
    let wrong = [("GCN_ARCH_NAME", "gfx90a"), ("PT_VERSION", "2,9"), ("PT_VERSION", "2\n9"), ("", "1")];
    for (name, value) in wrong {
        let error = export_tunable_op(&RocmDevice::default(), &file(), &[(name, value)]).unwrap_err();
        assert!(matches!(error, RocmError::Invalid { .. }), "{error}");
    }
    let nowhere = export_tunable_op(&RocmDevice::default(), Path::new("/missing/folder/file.csv"), &OTHERS);
    assert!(matches!(nowhere, Err(RocmError::Invalid { .. })), "{nowhere:?}");
}

#[test]
#[ignore = "run by the test below, with the store off"]
fn exports_nothing() {
    let refused = export_tunable_op(&RocmDevice::default(), &file(), &OTHERS);
    assert!(matches!(refused, Err(RocmError::Config { .. })), "{refused:?}");
    let refused = store().export(&file());
    assert!(matches!(refused, Err(RocmError::Config { .. })), "{refused:?}");
    said("file", std::fs::read_to_string(file()).unwrap());
}

/// The file may have what another process has timed.
#[test]
fn a_store_that_is_off_replaces_no_file() {
    let cache = Cache::new("no-export");
    std::fs::create_dir_all(&cache.0).unwrap();
    let file = cache.0.join("tunable_op.csv");
    std::fs::write(&file, "of another process").unwrap();
    let variables = [(FILE, file.to_str().unwrap()), ("BURN_ROCM_TUNING", "0")];
    assert_eq!(cache.said_by("exports_nothing", &variables), ["file \"of another process\""]);
}

#[test]
#[ignore = "run by the test below, with a cache folder"]
fn imports() {
    match import_tunable_op(&RocmDevice::default(), &file()) {
        Ok(count) => said("imported", count),
        Err(RocmError::Invalid { expected, found, .. }) => {
            let found = found.rsplit_once(": ").map_or(found.clone(), |(_, found)| found.to_owned());
            said("refused", (expected, found));
        }
        Err(other) => panic!("{other}"),
    }
    said("entries", store().entries().len());
}

#[test]
fn pytorchs_file_is_written_and_read() {
    let (from, to) = (Cache::new("from"), Cache::new("to"));
    from.said_by("four_times", &[AUTO]);
    std::fs::create_dir_all(&from.0).unwrap();
    let first = from.0.join("first.csv");
    let variables = |file: &Path| [(FILE, file.to_str().unwrap().to_owned())];
    let run = |cache: &Cache, test: &str, file: &Path| {
        let variables = variables(file);
        cache.said_by(test, &variables.each_ref().map(|(name, value)| (*name, value.as_str())))
    };
    // Products that add have other sizes here, so each has a line.
    let lines = timed();
    let count = |taken, left_out| TunableOpCount { taken, left_out };
    let exported = format!("exported {:?}", Ok::<_, RocmError>(count(lines, 0)));
    assert_eq!(run(&from, "exports", &first), [exported.as_str()]);
    let text = std::fs::read_to_string(&first).unwrap();
    assert_eq!(text.lines().filter(|line| line.starts_with("Validator,")).count(), 5);

    // hipBLASLt's solutions and scaled products are counted.
    let second = from.0.join("second.csv");
    let more = "GemmTunableOp_Half_TN,tn_8_8_8_ld_8_8_8,Gemm_Hipblaslt_5,0.1\n\
        ScaledGemmTunableOp_Half_TN,tn_8_8_8_ld_8_8_8_rw_0_bias_None,Default,0.1\n";
    std::fs::write(&second, format!("{text}{more}")).unwrap();
    let entries = format!("entries {}", 2 * lines);
    assert_eq!(run(&to, "imports", &second), [format!("imported {:?}", count(lines, 2)), entries.clone()]);
    let third = from.0.join("third.csv");
    assert_eq!(run(&to, "exports", &third), [exported]);
    assert_eq!(std::fs::read_to_string(&third).unwrap(), text, "a round trip");

    let line_of = |name: &str| text.lines().find(|line| line.contains(name)).unwrap();
    for name in ["GCN_ARCH_NAME", "ROCBLAS_VERSION"] {
        let line = line_of(name);
        let value = line.rsplit(',').next().unwrap();
        let lost = text.replace(&format!("{line}\n"), "");
        for (text, found) in [
            (text.replace(line, &format!("{line}-1")), format!("{name} `{value}-1`")),
            (lost, format!("no {name}")),
        ] {
            std::fs::write(&second, text).unwrap();
            let refused = format!("refused {:?}", (format!("{name} `{value}`"), found));
            assert_eq!(run(&to, "imports", &second), [refused, entries.clone()]);
        }
    }
    // PyTorch's and other libraries' versions say nothing about rocBLAS's solutions.
    std::fs::write(&second, text.replace("PT_VERSION,2.9.0", "PT_VERSION,2.5.1")).unwrap();
    assert_eq!(run(&to, "imports", &second), [format!("imported {:?}", count(lines, 0)), entries]);
}
