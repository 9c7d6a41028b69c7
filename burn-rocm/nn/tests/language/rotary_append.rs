//! The rotation that appends to a cache has the bits of the rotation and the append that follow each other.

use burn::tensor::{DType, TensorData};
use burn_rocm::fused::decode::{self, CacheType, PagedBatch, PagedLayer};
use burn_rocm::fused::{self, RmsOptions, Rotary, RotaryPositions, read_all, rotary_heads, upload};
use burn_rocm::{RocmDevice, RocmError, RocmTensor};
use burn_rocm_tests::lockstep::fewer;

use crate::support::{Random, drawn, rotation};

const PAGES: usize = 9;

fn ints(values: Vec<i32>, shape: &[usize]) -> RocmTensor {
    upload(TensorData::new(values, shape), DType::I32, &RocmDevice::default()).unwrap()
}

fn read(tensors: Vec<RocmTensor>) -> Vec<TensorData> {
    read_all(tensors).unwrap()
}

/// What is the same in both ways.
struct Case {
    heads: usize,
    kv_heads: usize,
    width: usize,
    dtype: DType,
    stored: CacheType,
    x: RocmTensor,
    norms: Option<[RocmTensor; 2]>,
    rotary: Rotary,
    batch: PagedBatch,
    /// The tokens of each row, with those of the step.
    lengths: Vec<usize>,
}

impl Case {
    /// Queries, keys and values after one way of appending to an empty layer.
    fn run(&self, append: impl FnOnce(&PagedLayer) -> RocmTensor) -> Vec<TensorData> {
        let device = RocmDevice::default();
        let layer = PagedLayer::new(&device, PAGES, self.kv_heads, self.width, self.stored).unwrap();
        let queries = append(&layer);
        let [keys, values, _] = decode::gather(&layer, &self.batch, &self.lengths, DType::F32).unwrap();
        read(vec![queries, keys, values])
    }

    fn at_once(&self, layer: &PagedLayer) -> RocmTensor {
        let (x, norms) = (self.x.clone(), self.norms.clone());
        decode::rotary_append(layer, &self.batch, x, norms, &self.rotary).unwrap()
    }

    fn apart(&self, layer: &PagedLayer) -> RocmTensor {
        // A copy, so that both ways have a rotation that writes elsewhere.
        let all = fused::rotary(self.x.clone(), self.norms.clone(), &self.rotary).unwrap();
        let (batch, length) = (all.dims()[0], all.dims()[1]);
        let parts = rotary_heads(all, self.heads, self.kv_heads).unwrap().map(|part| {
            let heads = part.dims()[1];
            let turned =
                burn_rocm_tests::read_float::<burn_rocm::Rocm>(part).iter::<f64>().collect::<Vec<_>>();
            // [batch, heads, length, width] as [tokens, heads, width].
            let mut tokens = vec![0.0; turned.len()];
            for (at, value) in turned.into_iter().enumerate() {
                let [w, l] = [at % self.width, at / self.width % length];
                let [h, b] = [at / self.width / length % heads, at / self.width / length / heads];
                tokens[((b * length + l) * heads + h) * self.width + w] = value;
            }
            let data = TensorData::new(tokens, [batch * length, heads, self.width]);
            upload(data.convert_dtype(self.dtype), self.dtype, &RocmDevice::default()).unwrap()
        });
        let [queries, keys, values] = parts;
        decode::append(layer, &self.batch, keys, values).unwrap();
        queries
    }
}

/// Rows of several lengths, one without a sequence and one whose first page is partly filled, and tokens
/// of no row behind them.
#[test]
fn both_ways_have_the_same_bits() {
    let random = Random::new();
    let types = [
        (DType::F32, CacheType::F32),
        (DType::F16, CacheType::F16),
        (DType::BF16, CacheType::BF16),
        (DType::F32, CacheType::F16),
        (DType::BF16, CacheType::I8),
    ];
    // Heads of whole pieces that are turned as a whole, and others; more heads than teams of a block.
    let sizes =
        [(4, 2, 64, 32), (3, 3, 20, 10), (2, 1, 20, 6), (6, 2, 128, 64), (40, 8, 16, 8), (1, 1, 7, 3)];
    let cases = sizes.into_iter().flat_map(|size| types.map(|types| (size, types)));
    for ((heads, kv_heads, width, pairs), (dtype, stored)) in fewer(cases, 4, &random) {
        for normed in [false, true] {
            let batch = PagedBatch::new(&RocmDevice::default(), 4, 3, 20).unwrap();
            batch.write(&[(&[7, 2], 13, 5), (&[], 0, 0), (&[4], 0, 2), (&[8, 1, 3], 30, 18)]).unwrap();
            let tokens = 5 + 2 + 18 + random.below(3);
            let weights = if random.below(2) == 0 { dtype } else { DType::F32 };
            let positions = (0..tokens).map(|_| random.below(5000) as i32).collect();
            let case = Case {
                heads,
                kv_heads,
                width,
                dtype,
                stored,
                x: drawn(&random, &[1, tokens, (heads + 2 * kv_heads) * width], dtype),
                norms: normed.then(|| [(); 2].map(|()| drawn(&random, &[width], weights))),
                rotary: Rotary {
                    heads,
                    kv_heads,
                    frequencies: drawn(&random, &[pairs], DType::F32),
                    factor: 1.25,
                    interleaved: random.below(2) == 0,
                    positions: RotaryPositions::Each(ints(positions, &[1, tokens])),
                    norms: RmsOptions { epsilon: 1e-5, shift: 0.5 },
                },
                batch,
                lengths: vec![18, 0, 2, 48],
            };
            let what =
                format!("{heads} + 2 * {kv_heads} heads of {width}, {pairs} pairs, {dtype:?} as {stored:?}");
            let [found, expected] =
                [case.run(|layer| case.at_once(layer)), case.run(|layer| case.apart(layer))];
            for ((found, expected), part) in found.iter().zip(&expected).zip(["queries", "keys", "values"]) {
                assert_eq!(found.bytes, expected.bytes, "{part} of {what}, norms {normed}");
                assert!(expected.iter::<f64>().any(|x| x != 0.0), "{part} of {what}");
            }
        }
    }
}

/// Rows as sequences of one token each, whose positions are the lengths: a step of decoding.
#[test]
fn a_step_of_decoding() {
    let random = Random::new();
    let batch = PagedBatch::new(&RocmDevice::default(), 3, 2, 1).unwrap();
    batch.write(&[(&[5, 6], 16, 1), (&[0], 3, 1), (&[1], 15, 1)]).unwrap();
    let rotary =
        Rotary { positions: RotaryPositions::Starts(batch.lengths()), ..rotation(&random, [4, 2, 16]) };
    let case = Case {
        heads: 4,
        kv_heads: 2,
        width: 32,
        dtype: DType::BF16,
        stored: CacheType::BF16,
        x: drawn(&random, &[3, 1, 8 * 32], DType::BF16),
        norms: None,
        rotary,
        batch,
        lengths: vec![17, 4, 16],
    };
    let [found, expected] = [case.run(|layer| case.at_once(layer)), case.run(|layer| case.apart(layer))];
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found.bytes, expected.bytes);
    }
}

/// Other heads or features than the cache has are refused, by the name of an op of the call.
#[test]
fn other_caches_are_refused() {
    let random = Random::new();
    let batch = PagedBatch::new(&RocmDevice::default(), 1, 1, 4).unwrap();
    batch.write(&[(&[0], 0, 2)]).unwrap();
    let rotary = |kv_heads| rotation(&random, [2, kv_heads, 4]);
    let layer = PagedLayer::new(&RocmDevice::default(), 1, 2, 8, CacheType::F32).unwrap();
    for (kv_heads, width, of) in [(2, 16, "decode::rotary_append"), (1, 8, "decode::append")] {
        let x = drawn(&random, &[1, 2, (2 + 2 * kv_heads) * width], DType::F32);
        match decode::rotary_append(&layer, &batch, x, None, &rotary(kv_heads)) {
            Err(RocmError::Invalid { op, .. }) => assert_eq!(op, of),
            other => panic!("{kv_heads} heads of {width}: {other:?}"),
        }
    }
}

/// A token whose row has no page for it is a fault, which waits and reads report.
#[test]
fn a_token_without_a_page_is_a_fault() {
    let random = Random::new();
    let device = RocmDevice::default();
    let batch = PagedBatch::new(&device, 1, 1, 2).unwrap();
    batch.write(&[(&[0], 15, 1)]).unwrap();
    // The row has 16 tokens now, all that its page has room for.
    batch.advance().unwrap();
    let layer = PagedLayer::new(&device, 2, 1, 8, CacheType::F32).unwrap();
    let options = rotation(&random, [1, 1, 4]);
    let x = drawn(&random, &[1, 1, 24], DType::F32);
    decode::rotary_append(&layer, &batch, x, None, &options).unwrap();
    let error = device.synchronize().unwrap_err();
    assert!(matches!(error, RocmError::Invalid { .. }), "{error}");
    // So do reads of what comes from the layer.
    let [keys, _, _] = decode::gather(&layer, &batch, &[16], DType::F32).unwrap();
    let error = read_all(vec![keys]).unwrap_err();
    assert!(matches!(error, RocmError::Invalid { .. }), "{error}");
}
