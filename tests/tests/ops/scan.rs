//! Cumulative sums, products, minima and maxima.

use burn_rocm_tests::limits::{self, Terms};
use burn_rocm_tests::lockstep::{fewer, in_lockstep};
use burn_rocm_tests::*;

const LONG: &[&[usize]] = &[&[3, 5000], &[5000, 3], &[7, 300, 5]];

const LONG_IN_LOCKSTEP: &[&[usize]] = &[&[3, 5000], &[600, 3], &[7, 60, 5]];

fn shapes() -> impl Iterator<Item = &'static [usize]> {
    SHAPES.iter().chain(if in_lockstep() { LONG_IN_LOCKSTEP } else { LONG }).copied()
}

#[test]
fn float_scans() {
    let random = Random::new();
    for dtype in FLOATS {
        for shape in fewer(shapes(), 2, &random) {
            let view = View::ALL[random.below(5)];
            // Values near one, so that products neither vanish nor overflow.
            let a = float(&random, shape, dtype, view, -1.02, 1.02);
            for dim in 0..shape.len() {
                let what = format!("{dtype:?} {shape:?} {view:?} dim {dim}");
                let terms = Terms::of(shape[dim], dtype);
                sums!(format!("float_cumsum {what}"), terms, |B, device, [a = &a]| B::float_cumsum(a, dim));
                let (ours, [reference, _]) = sides!(|B, device, [a = &a]| B::float_cumprod(a, dim));
                let limits = limits::products(&reference, shape[dim], dtype);
                limits::assert_within(&format!("float_cumprod {what}"), &ours, &reference, &limits);
                differential!(format!("float_cummin, float_cummax {what}"), Tolerance::EXACT, |B, device| {
                    vec![
                        read_float::<B>(B::float_cummin(a.float::<B>(&device), dim)),
                        read_float::<B>(B::float_cummax(a.float::<B>(&device), dim)),
                    ]
                });
            }
        }
    }
}

#[test]
fn int_scans() {
    let random = Random::new();
    for dtype in INTS {
        for shape in fewer(shapes(), 3, &random) {
            let view = View::ALL[random.below(5)];
            let (sums, products) =
                (int(&random, shape, dtype, view, 0, 2), int(&random, shape, dtype, view, 1, 2));
            let values = int(&random, shape, dtype, view, 0, 100);
            // Burn does not define sums that overflow the type.
            let narrow = matches!(dtype, DType::I8 | DType::U8);
            for dim in (0..shape.len()).filter(|&dim| !narrow || shape[dim] < 127) {
                differential!(
                    format!("int scans {dtype:?} {shape:?} {view:?} dim {dim}"),
                    Tolerance::EXACT,
                    |B, device| {
                        vec![
                            read_int::<B>(B::int_cumsum(sums.int::<B>(&device), dim)),
                            read_int::<B>(B::int_cumprod(products.int::<B>(&device), dim)),
                            read_int::<B>(B::int_cummin(values.int::<B>(&device), dim)),
                            read_int::<B>(B::int_cummax(values.int::<B>(&device), dim)),
                        ]
                    }
                );
            }
        }
    }
}

/// Shapes `[rows, len]` whose rows several blocks share, in tiles of a few thousand elements. The
/// last shape uses each level at which tiles publish their sums on a GPU (1024 tiles of f32);
/// lockstep is too slow for it.
fn long_rows() -> Vec<[usize; 2]> {
    let mut shapes = vec![[1, 16_384], [1, 70_001], [3, 33_333]];
    if !in_lockstep() {
        shapes.push([1, (1 << 22) + 12_345]);
    }
    shapes
}

/// The running results of each row in f64, for inputs whose partial results f64 represents exactly.
fn running(values: &[f64], len: usize, apply: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let mut out = values.to_vec();
    for row in out.chunks_mut(len) {
        for i in 1..len {
            row[i] = apply(row[i - 1], row[i]);
        }
    }
    out
}

#[test]
fn long_rows_are_scanned_exactly_whatever_blocks_share_them() {
    let random = Random::new();
    let device = Default::default();
    for [rows, len] in long_rows() {
        // The steps are -1, 0 and 1, so the sums stay near 0. They are compared in the types that
        // represent all of them.
        let steps: Vec<f64> = (0..rows * len).map(|_| random.below(3) as f64 - 1.0).collect();
        let sums = running(&steps, len, |a, b| a + b);
        let signs: Vec<f64> = (0..rows * len).map(|_| [-1.0, 1.0][random.below(2)]).collect();
        let products = running(&signs, len, |a, b| a * b);
        // Each element is a little greater or less than the one before, so that extremes change
        // along the whole row.
        let heights: Vec<f64> = sums.iter().map(|sum| sum + random.below(4) as f64).collect();
        let [highest, lowest] = [f64::max, f64::min].map(|apply| running(&heights, len, apply));
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let fits = |all: &[f64]| {
                let most = all.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                // The integers that a type represents without gaps: up to 2 to the power of its
                // significand's bits.
                most <= match dtype {
                    DType::BF16 => 256.0,
                    DType::F16 => 2048.0,
                    _ => 16_777_216.0,
                }
            };
            let what = format!("{dtype:?} [{rows}, {len}]");
            let of = |values: &[f64]| {
                let data = TensorData::new(values.to_vec(), [rows, len]).convert_dtype(dtype);
                <R as FloatTensorOps<R>>::float_from_data(data, &device)
            };
            let same = |name: &str, found, expected: &[f64]| {
                let found: Vec<f64> = read_float::<R>(found).iter::<f64>().collect();
                let wrong = found.iter().zip(expected).position(|(a, b)| a != b);
                assert!(wrong.is_none(), "{name} {what}: element {wrong:?} of {}", expected.len());
            };
            same("cumprod", R::float_cumprod(of(&signs), 1), &products);
            if fits(&sums) {
                same("cumsum", R::float_cumsum(of(&steps), 1), &sums);
            }
            if fits(&heights) {
                same("cummax", R::float_cummax(of(&heights), 1), &highest);
                same("cummin", R::float_cummin(of(&heights), 1), &lowest);
            }
        }
        for dtype in [DType::I64, DType::I32, DType::I16] {
            let data = TensorData::new(steps.clone(), [rows, len]).convert_dtype(dtype);
            let found = R::int_cumsum(<R as IntTensorOps<R>>::int_from_data(data, &device), 1);
            let found: Vec<f64> = read_int::<R>(found).iter::<f64>().collect();
            assert!(found == sums, "cumsum {dtype:?} [{rows}, {len}]");
        }
    }
}

/// On a GPU, and so in lockstep, a group has at least 256 tiles of 2048 elements of f64.
#[test]
fn a_row_of_more_than_one_group_of_tiles_is_summed_exactly() {
    let random = Random::new();
    let device = Default::default();
    let len = 256 * 4096 + 5_000;
    let steps: Vec<f64> = (0..len).map(|_| random.below(3) as f64 - 1.0).collect();
    let sums = running(&steps, len, |a, b| a + b);
    let found = R::float_cumsum(R::float_from_data(TensorData::new(steps, [len]), &device), 0);
    let found: Vec<f64> = read_float::<R>(found).iter::<f64>().collect();
    assert_eq!(found.iter().zip(&sums).position(|(a, b)| a != b), None);
}

/// A core scans one element after the other. (On a GPU a tile's own product would overflow.)
#[test]
fn on_the_cpu_device_partial_results_beyond_the_type_change_nothing() {
    const CHILD: &str = "BURN_ROCM_TEST_SCAN_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let this = "scan::on_the_cpu_device_partial_results_beyond_the_type_change_nothing";
        again(&["--exact", this], &[(CHILD, "1"), ("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CPU_WAVE", "")]);
        return;
    }
    let device = Default::default();
    let of = |values: Vec<f32>| R::float_from_data(TensorData::new(values, [20_000]), &device);
    let mut values = vec![2.0f32; 20_000];
    values[0] = 0.0;
    let products = read_float::<R>(R::float_cumprod(of(values), 0));
    assert!(products.iter::<f32>().all(|x| x == 0.0));
    let mut values = vec![0.0f32; 20_000];
    values[0] = -3e38;
    values[4096..4099].copy_from_slice(&[2e38, 2e38, -2e38]);
    let sums = read_float::<R>(R::float_cumsum(of(values), 0)).to_vec::<f32>().expect("f32");
    assert_eq!(sums[19_999], (-3e38f32 + 2e38 + 2e38) - 2e38);
}

/// If blocks have several threads, as on a GPU and in lockstep, several blocks share a row of at
/// least four tiles. Shorter rows take one block each.
#[test]
fn several_blocks_share_a_long_row() {
    const CHILD: &str = "BURN_ROCM_TEST_SCAN_TILES";
    if std::env::var_os(CHILD).is_none() {
        let this = "scan::several_blocks_share_a_long_row";
        let lockstep = [(CHILD, "1"), ("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CPU_WAVE", "32")];
        again(&["--exact", this], &lockstep);
        return;
    }
    let random = Random::new();
    let device = Default::default();
    for (shape, kernel) in [
        ([1, 16_384], "scan_tiles<"),
        ([3, 33_333], "scan_tiles<"),
        ([1, 16_383], "scan<"),
        ([40, 50], "scan<"),
    ] {
        let a = float(&random, &shape, DType::F32, View::Contiguous, -1.0, 1.0).float::<R>(&device);
        let (_, lines) = trace::during(|| R::float_cumsum(a, 1));
        let scans: Vec<_> = lines.iter().filter(|line| line.contains(": kernel scan")).collect();
        assert!(scans.len() == 1 && scans[0].contains(kernel), "{shape:?}: {lines:#?}");
    }
}

#[test]
fn a_long_row_gives_the_same_bits_each_time() {
    let random = Random::new();
    let device = Default::default();
    let values: Vec<f32> = (0..300_007).map(|_| random.uniform(-1.0, 1.0) as f32).collect();
    let of = || {
        let data = TensorData::new(values.clone(), [values.len()]);
        read_float::<R>(R::float_cumsum(<R as FloatTensorOps<R>>::float_from_data(data, &device), 0))
    };
    let first = of();
    for _ in 0..5 {
        assert!(of().as_bytes() == first.as_bytes());
    }
}
