//! A cache with sequences, and the same keys and values on the host.

use burn::tensor::{DType, Tensor, TensorData};
use burn_rocm::fused::{RmsOptions, Rotary, RotaryPositions, upload};
use burn_rocm::{Rocm, RocmDevice, RocmTensor};
use burn_rocm_nn::language::{CacheType, KvBatch, KvCache, KvCacheConfig, SequenceId};
pub(crate) use burn_rocm_tests::Random;

pub(crate) type B = Rocm;

/// Each type of keys with each way to store them that takes it.
pub(crate) const PAIRS: [(DType, CacheType); 8] = [
    (DType::F32, CacheType::F32),
    (DType::F16, CacheType::F16),
    (DType::BF16, CacheType::BF16),
    (DType::F32, CacheType::F16),
    (DType::F32, CacheType::BF16),
    (DType::F32, CacheType::I8),
    (DType::F16, CacheType::I8),
    (DType::BF16, CacheType::I8),
];

/// The unit roundoff of a type.
pub(crate) fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    }
}

/// Uniform values in -1..1, rounded to `dtype`, on the host and on the device.
pub(crate) fn draw(random: &Random, shape: [usize; 3], dtype: DType) -> (Vec<f64>, Tensor<B, 3>) {
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| random.uniform(-1.0, 1.0)).collect();
    on_device(values, shape, dtype)
}

/// The values, rounded to `dtype`, on the host and on the device.
pub(crate) fn on_device(values: Vec<f64>, shape: [usize; 3], dtype: DType) -> (Vec<f64>, Tensor<B, 3>) {
    let data = TensorData::new(values, shape).convert_dtype(dtype);
    let rounded = data.iter::<f64>().collect();
    (rounded, Tensor::from_data(data, (&RocmDevice::default(), dtype)))
}

/// Uniform values in -2..2 as an operand of the ops in `fused`.
pub(crate) fn drawn(random: &Random, shape: &[usize], dtype: DType) -> RocmTensor {
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| random.uniform(-2.0, 2.0)).collect();
    upload(TensorData::new(values, shape).convert_dtype(dtype), dtype, &RocmDevice::default()).unwrap()
}

/// A rotation of these heads by drawn frequencies, from position 0 on.
pub(crate) fn rotation(random: &Random, [heads, kv_heads, pairs]: [usize; 3]) -> Rotary {
    Rotary {
        heads,
        kv_heads,
        frequencies: drawn(random, &[pairs], DType::F32),
        factor: 1.0,
        interleaved: false,
        positions: RotaryPositions::FromZero,
        norms: RmsOptions { epsilon: 1e-5, shift: 0.0 },
    }
}

pub(crate) fn read<const D: usize>(tensor: Tensor<B, D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// Keys and values of a sequence as they were given, `[tokens, heads, features]`.
#[derive(Clone, Default)]
pub(crate) struct Given {
    pub(crate) keys: Vec<f64>,
    pub(crate) values: Vec<f64>,
}

pub(crate) struct Setup {
    pub(crate) cache: KvCache,
    pub(crate) batch: KvBatch,
    pub(crate) heads: usize,
    pub(crate) features: usize,
    pub(crate) dtype: DType,
}

impl Setup {
    pub(crate) fn new(
        [heads, features]: [usize; 2],
        [blocks, rows, context, tokens]: [usize; 4],
        (dtype, stored): (DType, CacheType),
    ) -> Self {
        let device = RocmDevice::default();
        let cache = KvCacheConfig { layers: 2, heads, features, blocks, stored }.init(&device).unwrap();
        let batch = KvBatch::new(&device, rows, context, tokens).unwrap();
        Self { cache, batch, heads, features, dtype }
    }

    pub(crate) fn create(&mut self) -> SequenceId {
        self.cache.sequences().create()
    }

    /// Appends random tokens to the sequences in layer 1 (layer 0 gets others), behind what `given`
    /// has. Does not advance.
    pub(crate) fn append(
        &mut self,
        random: &Random,
        rows: &[Option<(SequenceId, usize)>],
        given: &mut [Given],
    ) {
        self.cache.bind(&mut self.batch, rows, 1).unwrap();
        let tokens = rows.iter().flatten().map(|row| row.1).sum();
        let shape = [tokens, self.heads, self.features];
        for layer in 0..2 {
            let (keys, on_device_keys) = draw(random, shape, self.dtype);
            let (values, on_device_values) = draw(random, shape, self.dtype);
            self.cache.append(layer, &self.batch, on_device_keys, on_device_values).unwrap();
            if layer == 0 {
                continue;
            }
            let (mut at, wide) = (0, self.heads * self.features);
            for (row, given) in rows.iter().zip(given.iter_mut()) {
                let end = at + row.map_or(0, |row| row.1) * wide;
                given.keys.extend(&keys[at..end]);
                given.values.extend(&values[at..end]);
                at = end;
            }
        }
    }

    /// The keys and values of the rows as the cache has them.
    pub(crate) fn stored(&mut self, rows: &[Option<(SequenceId, usize)>], more: bool) -> Vec<Given> {
        let mut lengths = Vec::new();
        for row in rows {
            let tokens = row.map_or(0, |(id, step)| {
                self.cache.sequences().tokens(id).unwrap() + if more { step } else { 0 }
            });
            lengths.push(tokens);
        }
        let [keys, values] = self.cache.gather::<B>(1, &self.batch, &lengths, DType::F32).unwrap();
        let (keys, values, wide) = (read(keys), read(values), self.heads * self.features);
        let mut at = 0;
        let part = |length: &usize| {
            let range = at..at + length * wide;
            at = range.end;
            Given { keys: keys[range.clone()].to_vec(), values: values[range].to_vec() }
        };
        lengths.iter().map(part).collect()
    }
}
