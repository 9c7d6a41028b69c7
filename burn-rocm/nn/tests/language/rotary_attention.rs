//! `rotary_attention` gives the bits of `rotary_append` followed by `attention`: the two ways.

use burn::tensor::{DType, TensorData};
use burn_rocm::fused::decode::{self, CacheType, DecodeOptions, PagedBatch, PagedLayer};
use burn_rocm::fused::{RmsOptions, Rotary, RotaryPositions, read_all, upload};
use burn_rocm::{RocmDevice, RocmError, RocmTensor};
use burn_rocm_tests::lockstep::fewer;
use burn_rocm_tests::trace::during;

use crate::support::{Random, drawn, rotation};

/// The rows of a batch, and the pages of each.
const ROWS: usize = 3;
const MOST: usize = 20;
const KERNEL: &str = "kernel decode_rotary_attention";

/// The tokens of each row before the step. A row without a sequence has none, also in the step.
fn lengths(random: &Random) -> Vec<Option<usize>> {
    let ends = [0, 1, 15, 16, 63, 64, 65, MOST * 16 - 1];
    let length = |row| match random.below(4) {
        0 if row > 0 => None,
        1 => Some(random.below(MOST * 16)),
        _ => Some(ends[random.below(ends.len())]),
    };
    (0..ROWS).map(length).collect()
}

/// What the two ways are given.
struct Case {
    kv_heads: usize,
    width: usize,
    stored: CacheType,
    lengths: Vec<Option<usize>>,
    /// The keys and values of all rows' tokens, if there are any.
    cached: Option<[RocmTensor; 2]>,
    x: RocmTensor,
    norms: Option<[RocmTensor; 2]>,
    rotary: Rotary,
    options: DecodeOptions,
}

impl Case {
    /// A batch of the rows. `tokens(length)`: a row's tokens in the cache and in the step; `most`: the most
    /// tokens of a row in a step.
    fn batch(&self, most: usize, tokens: impl Fn(usize) -> [usize; 2]) -> PagedBatch {
        let batch = PagedBatch::new(&RocmDevice::default(), ROWS, MOST, most).unwrap();
        // The rows' pages lie between each other.
        let pages = |row| (0..MOST).map(move |page| (page * ROWS + row) as u32).collect::<Vec<_>>();
        let pages: Vec<_> = (0..ROWS).map(pages).collect();
        let row = |(pages, length): (&'_ Vec<u32>, &Option<usize>)| match *length {
            Some(length) => (pages.clone(), tokens(length)),
            None => (Vec::new(), [0, 0]),
        };
        let rows: Vec<_> = pages.iter().zip(&self.lengths).map(row).collect();
        let rows: Vec<_> = rows.iter().map(|(pages, [before, step])| (&pages[..], *before, *step)).collect();
        batch.write(&rows).unwrap();
        batch
    }

    fn tokens(&self) -> usize {
        self.lengths.iter().flatten().sum()
    }

    /// The output of one way, and the keys and values after it. Also whether one launch computed it.
    fn run(
        &self,
        way: impl FnOnce(&PagedLayer, &PagedBatch, &Self) -> Result<RocmTensor, RocmError>,
    ) -> (Vec<TensorData>, bool) {
        let device = RocmDevice::default();
        let layer = PagedLayer::new(&device, ROWS * MOST, self.kv_heads, self.width, self.stored).unwrap();
        if let Some([keys, values]) = self.cached.clone() {
            let filled = self.batch(MOST * 16, |length| [0, length]);
            decode::append(&layer, &filled, keys, values).unwrap();
        }
        let batch = self.batch(1, |length| [length, 1]);
        let (out, lines) = during(|| way(&layer, &batch, self).unwrap());
        let all: Vec<usize> = self.lengths.iter().map(|length| length.map_or(0, |n| n + 1)).collect();
        let [keys, values, _] = decode::gather(&layer, &batch, &all, DType::F32).unwrap();
        let fused = lines.iter().any(|line| line.contains(KERNEL));
        (read_all(vec![out, keys, values]).unwrap(), fused)
    }

    fn at_once(&self) -> (Vec<TensorData>, bool) {
        self.run(|layer, batch, case| {
            let (x, norms) = (case.x.clone(), case.norms.clone());
            decode::rotary_attention(layer, batch, x, norms, &case.rotary, &case.options)
        })
    }

    fn apart(&self) -> (Vec<TensorData>, bool) {
        self.run(|layer, batch, case| {
            let (x, norms) = (case.x.clone(), case.norms.clone());
            let queries = decode::rotary_append(layer, batch, x, norms, &case.rotary)?;
            decode::attention(layer, batch, queries, &case.options)
        })
    }
}

/// How many values differ, and which differ most.
fn differences(found: &TensorData, expected: &TensorData) -> String {
    let both: Vec<(f64, f64)> = found.iter::<f64>().zip(expected.iter::<f64>()).collect();
    let differ = both.iter().filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    let apart = |at: &usize| (both[*at].0 - both[*at].1).abs();
    let most = (0..both.len()).max_by(|a, b| apart(a).total_cmp(&apart(b))).unwrap_or(0);
    format!("{differ} of {} differ, at {most} {} and {}", both.len(), both[most].0, both[most].1)
}

/// Whether one launch computes it on this device.
fn fits([heads, kv_heads, width, pairs]: [usize; 4], (dtype, stored): (DType, CacheType)) -> bool {
    let info = hip::Device::get(0).unwrap().info().clone();
    let kind = match (dtype, stored) {
        (DType::F16, CacheType::F16) => hip::DType::F16,
        (DType::BF16, CacheType::BF16) => hip::DType::BF16,
        _ => return false,
    };
    let wide = match info.matrix_cores(kind, false).unwrap() {
        None => 0,
        Some(hip::MatrixCores::Wmma) if info.arch.starts_with("gfx12") => 64,
        Some(hip::MatrixCores::Wmma) => 0,
        Some(_) => 256,
    };
    let whole = 2 * pairs == width && pairs % 8 == 0 && pairs.div_ceil(4) <= info.warp_size as usize;
    whole && width <= wide && heads / kv_heads <= 8
}

#[test]
fn both_ways_have_the_same_bits() {
    let random = Random::new();
    let types = [
        (DType::F16, CacheType::F16),
        (DType::BF16, CacheType::BF16),
        (DType::F32, CacheType::F32),
        (DType::BF16, CacheType::I8),
    ];
    // Heads, those of the cache, features and pairs. The last three are never computed by one launch.
    let sizes = [
        [8, 2, 64, 32],
        [4, 4, 128, 64],
        [5, 1, 96, 48],
        [8, 1, 16, 8],
        [2, 1, 256, 128],
        [9, 1, 64, 32],
        [4, 2, 64, 16],
        [2, 2, 20, 10],
    ];
    let cases: Vec<_> = sizes.into_iter().flat_map(|size| types.map(|types| (size, types))).collect();
    for (size, (dtype, stored)) in fewer(cases, 4, &random) {
        let [heads, kv_heads, width, pairs] = size;
        let lengths = lengths(&random);
        let all: usize = lengths.iter().flatten().sum();
        let cached = (all > 0).then(|| [(); 2].map(|()| drawn(&random, &[all, kv_heads, width], dtype)));
        // Tokens of the step, and some of no row behind them.
        let tokens = lengths.iter().flatten().count() + random.below(2);
        let packed = (heads + 2 * kv_heads) * width;
        let weights = if random.below(2) == 0 { dtype } else { DType::F32 };
        let normed = random.below(2) == 0;
        let positions: Vec<i32> = (0..tokens).map(|_| random.below(5000) as i32).collect();
        let positions =
            upload(TensorData::new(positions, [1, tokens]), DType::I32, &RocmDevice::default()).unwrap();
        let yes = || random.below(3) == 0;
        let case = Case {
            kv_heads,
            width,
            stored,
            cached,
            x: drawn(&random, &[1, tokens, packed], dtype),
            norms: normed.then(|| [(); 2].map(|()| drawn(&random, &[width], weights))),
            rotary: Rotary {
                heads,
                kv_heads,
                frequencies: drawn(&random, &[pairs], DType::F32),
                factor: 1.25,
                interleaved: yes(),
                positions: RotaryPositions::Each(positions),
                norms: RmsOptions { epsilon: 1e-5, shift: 0.5 },
            },
            options: DecodeOptions {
                scale: yes().then_some(0.3),
                softcap: yes().then_some(5.0),
                window: yes().then(|| 1 + random.below(100)),
                splits: yes().then(|| 1 + random.below(5)),
            },
            lengths,
        };
        let what = format!("{size:?} in {dtype:?} as {stored:?}, {:?}, {:?}", case.lengths, case.options);
        let [(found, fused), (expected, apart)] = [case.at_once(), case.apart()];
        assert_eq!((fused, apart), (fits(size, (dtype, stored)), false), "{what}");
        for ((found, expected), part) in found.iter().zip(&expected).zip(["output", "keys", "values"]) {
            assert!(found.bytes == expected.bytes, "{part} of {what}: {}", differences(found, expected));
        }
        assert!(expected[0].iter::<f64>().any(|x| x != 0.0), "{what}, {} cached tokens", case.tokens());
    }
}

/// A step of decoding: sequences of one token each, whose positions are the rows' lengths.
#[test]
fn positions_may_be_the_lengths() {
    let random = Random::new();
    let [heads, kv_heads, width] = [4, 2, 64];
    let lengths = vec![Some(70), Some(0), Some(15)];
    let all = lengths.iter().flatten().sum();
    let mut case = Case {
        kv_heads,
        width,
        stored: CacheType::BF16,
        lengths,
        cached: Some([(); 2].map(|()| drawn(&random, &[all, kv_heads, width], DType::BF16))),
        x: drawn(&random, &[ROWS, 1, (heads + 2 * kv_heads) * width], DType::BF16),
        norms: None,
        rotary: rotation(&random, [heads, kv_heads, width / 2]),
        options: DecodeOptions::default(),
    };
    case.rotary.positions = RotaryPositions::Starts(case.batch(1, |length| [length, 1]).lengths());
    let [(found, _), (expected, _)] = [case.at_once(), case.apart()];
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found.bytes, expected.bytes);
    }
}

/// As for the append alone, a token whose row has no page for it is a fault that `synchronize` and reads
/// report.
#[test]
fn a_token_without_a_page_is_a_fault() {
    let random = Random::new();
    let device = RocmDevice::default();
    let batch = PagedBatch::new(&device, 1, 1, 1).unwrap();
    batch.write(&[(&[0], 15, 1)]).unwrap();
    // The row has 16 tokens now, all that its page has room for.
    batch.advance().unwrap();
    let layer = PagedLayer::new(&device, 2, 1, 16, CacheType::BF16).unwrap();
    let rotary = rotation(&random, [1, 1, 8]);
    let x = drawn(&random, &[1, 1, 48], DType::BF16);
    let out = decode::rotary_attention(&layer, &batch, x, None, &rotary, &DecodeOptions::default()).unwrap();
    let error = device.synchronize().unwrap_err();
    assert!(matches!(error, RocmError::Invalid { .. }), "{error}");
    let error = read_all(vec![out]).unwrap_err();
    assert!(matches!(error, RocmError::Invalid { .. }), "{error}");
}

/// Options and shapes that do not fit are refused; the error names an op of `decode`.
#[test]
fn what_does_not_fit_is_refused() {
    let random = Random::new();
    let device = RocmDevice::default();
    let batch = PagedBatch::new(&device, 1, 1, 1).unwrap();
    batch.write(&[(&[0], 0, 1)]).unwrap();
    let layer = PagedLayer::new(&device, 1, 2, 16, CacheType::BF16).unwrap();
    let rotary = |heads| rotation(&random, [heads, 2, 8]);
    let no_window = DecodeOptions { window: Some(0), ..DecodeOptions::default() };
    let no_splits = DecodeOptions { splits: Some(0), ..DecodeOptions::default() };
    let cases = [
        (4, 128, no_window),
        (4, 128, no_splits),
        (3, 112, DecodeOptions::default()),
        (4, 256, DecodeOptions::default()),
    ];
    for (heads, features, options) in cases {
        let x = drawn(&random, &[1, 1, features], DType::BF16);
        let refused = decode::rotary_attention(&layer, &batch, x, None, &rotary(heads), &options);
        match refused {
            Err(RocmError::Invalid { op, .. }) => assert!(op.starts_with("decode::"), "{op}"),
            other => panic!("{heads} heads, {features} features, {options:?}: {other:?}"),
        }
    }
}
