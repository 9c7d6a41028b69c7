//! A step of a small model as a graph, against the same steps one by one.

use std::sync::Arc;

use burn::tensor::{DType, Distribution, Int, Tensor};
use burn_rocm::RocmDevice;
use burn_rocm_nn::language::{
    self, CacheError, CacheType, DecodeOptions, DecodeStep, KvBatch, KvCache, KvCacheConfig, SampleState,
    SampleTables, Sampling,
};
use burn_rocm_tests::lockstep::in_lockstep;

use crate::support::*;

const ROWS: usize = 3;
const VOCABULARY: usize = 90;
const HEADS: usize = 4;
const SHARED: usize = 2;
const FEATURES: usize = 16;
const LAYERS: usize = 2;

/// An embedding, layers of attention alone, and an output matrix.
struct Model {
    embedding: Tensor<B, 2>,
    layers: Vec<[Tensor<B, 2>; 3]>,
    output: Tensor<B, 2>,
}

impl Model {
    fn new() -> Self {
        let device = RocmDevice::default();
        let random =
            |shape: [usize; 2]| Tensor::random(shape, Distribution::Normal(0.0, 0.4), (&device, DType::F32));
        let wide = HEADS * FEATURES;
        let layer = |_| [wide, SHARED * FEATURES, SHARED * FEATURES].map(|out| random([wide, out]));
        Self {
            embedding: random([VOCABULARY, wide]),
            layers: (0..LAYERS).map(layer).collect(),
            output: random([wide, VOCABULARY]),
        }
    }

    /// The logits of tokens `[n]`.
    fn forward(
        &self,
        cache: &KvCache,
        batch: &KvBatch,
        tokens: Tensor<B, 1, Int>,
    ) -> Result<Tensor<B, 2>, CacheError> {
        let mut x = self.embedding.clone().select(0, tokens);
        let [count, wide] = x.dims();
        for (layer, weights) in self.layers.iter().enumerate() {
            let [q, k, v] = weights.each_ref().map(|weight| x.clone().matmul(weight.clone()));
            let [k, v] = [k, v].map(|tensor| tensor.reshape([count, SHARED, FEATURES]));
            cache.append(layer, batch, k, v)?;
            let q = q.reshape([count, HEADS, FEATURES]);
            let attended = cache.attend(layer, batch, q, &DecodeOptions::default())?;
            x = (x + attended.reshape([count, wide])).tanh();
        }
        Ok(x.matmul(self.output.clone()))
    }
}

/// A cache with prompts of different lengths, a batch for single tokens and their sampling.
fn start(model: &Model, steps: usize) -> (KvCache, KvBatch, SampleState) {
    let device = RocmDevice::default();
    let stored = CacheType::BF16;
    let config = KvCacheConfig { layers: LAYERS, heads: SHARED, features: FEATURES, blocks: 40, stored };
    let mut cache = config.init(&device).unwrap();
    let ids = [(); ROWS].map(|()| cache.sequences().create());
    let mut prompts = KvBatch::new(&device, ROWS, 160, 32).unwrap();
    let lengths = [1, 30, 17];
    let rows: Vec<_> = ids.iter().zip(lengths).map(|(&id, length)| Some((id, length))).collect();
    cache.bind(&mut prompts, &rows, 1).unwrap();
    let tokens: Vec<i32> = (0..48).map(|i| (i * 7) % VOCABULARY as i32).collect();
    let logits = model.forward(&cache, &prompts, Tensor::from_ints(tokens.as_slice(), &device)).unwrap();
    cache.advance(&prompts).unwrap();
    let state = SampleState::new(
        &device,
        ROWS,
        VOCABULARY,
        SampleTables { counts: true, chances: true, ring: steps + 1 },
    )
    .unwrap();
    for row in 0..ROWS {
        let sampling = Sampling {
            temperature: 0.9,
            top_k: 40,
            top_p: 0.95,
            repetition_penalty: 1.1,
            seed: 77 + row as u64,
            ..Sampling::default()
        };
        state.set(row, &sampling, &[1, 2]).unwrap();
    }
    // The first token of each row comes from its prompt's last.
    let last = Tensor::from_ints([0, 30, 47], &device);
    language::sample(logits.select(0, last), &state).unwrap();
    let mut batch = KvBatch::new(&device, ROWS, 160, 1).unwrap();
    let rows: Vec<_> = ids.iter().map(|&id| Some((id, 1))).collect();
    cache.bind(&mut batch, &rows, steps).unwrap();
    (cache, batch, state)
}

fn ring(state: &SampleState) -> Vec<i64> {
    burn_rocm::read_with_fault(state.ring().unwrap()).unwrap().0.iter::<i64>().collect()
}

#[test]
fn replayed_tokens_are_those_of_single_steps() {
    let steps = if in_lockstep() { 5 } else { 64 };
    let model = Model::new();
    let step = |cache: &KvCache, batch: &KvBatch, state: &SampleState| -> Result<(), CacheError> {
        let logits = model.forward(cache, batch, language::tokens(state)?)?;
        Ok(language::sample(logits, state)?)
    };
    let (mut cache, batch, state) = start(&model, steps);
    let mut chances = Vec::new();
    for _ in 0..steps {
        step(&cache, &batch, &state).unwrap();
        cache.advance(&batch).unwrap();
        chances.push(read(language::chances::<B>(&state).unwrap().unwrap()));
    }
    let eager = ring(&state);

    let (mut cache, batch, state) = start(&model, steps);
    let device = RocmDevice::default();
    // A capture that fails leaves the caller its state.
    let state = Arc::new(state);
    let failing = |_: &SampleState| Err(CacheError::OutOfBlocks { needed: 1, free: 0 });
    let error = DecodeStep::capture(&device, &batch, state.clone(), failing).unwrap_err();
    assert!(matches!(error, CacheError::OutOfBlocks { .. }), "{error}");
    let captured = DecodeStep::capture(&device, &batch, state, |state| step(&cache, &batch, state)).unwrap();
    for chances in &chances {
        captured.replay(&mut cache, &batch).unwrap();
        let found = read(language::chances::<B>(captured.state()).unwrap().unwrap());
        assert_eq!(&found, chances);
    }
    assert_eq!(ring(captured.state()), eager);
    let rows = |at: usize| eager.iter().skip(at).step_by(ROWS).collect::<std::collections::BTreeSet<_>>();
    // Six tokens, as in lockstep, may be nearly all the same.
    assert!(in_lockstep() || (0..ROWS).all(|row| rows(row).len() > 2), "{eager:?}");
    // The rows' blocks have room for at most 15 steps more.
    let error = (0..16).find_map(|_| captured.replay(&mut cache, &batch).err());
    assert!(matches!(error, Some(CacheError::Tokens { .. })), "{error:?}");
}
