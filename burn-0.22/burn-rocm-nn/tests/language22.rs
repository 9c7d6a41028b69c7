//! Decoding with Burn 0.22: the same bits as with Burn 0.21 on the same device, and a step as a graph.
#![allow(missing_docs, clippy::unwrap_used)]

use std::cell::RefCell;

use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_rocm::{RocmDevice, RocmError};
use burn_rocm_021::Rocm;
use burn_rocm_nn_021::language as former;
use burn_rocm_nn_022::language::{
    self, CacheError, CacheType, DecodeOptions, DecodeStep, KvBatch, KvCacheConfig, SampleState,
    SampleTables, Sampling,
};

type Former<const D: usize> = burn_021::tensor::Tensor<Rocm, D>;

const HEADS: usize = 4;
const SHARED: usize = 2;
const FEATURES: usize = 24;

fn values(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect()
}

/// The outputs of attention after a prompt and after three steps, the tokens drawn, and the last draws
/// with their chances, by one of the two crates.
macro_rules! run {
    ($language:ident, $rocm:ident, $tensor:expr, $read:expr) => {{
        use $language::{
            CacheType, DecodeOptions, Draw, KvBatch, KvCacheConfig, LateDraws, SampleState, SampleTables,
            Sampling,
        };
        let device = $rocm::RocmDevice::default();
        let config =
            KvCacheConfig { layers: 1, heads: SHARED, features: FEATURES, blocks: 9, stored: CacheType::I8 };
        let mut cache = config.init(&device).unwrap();
        let ids = [cache.sequences().create(), cache.sequences().create()];
        let mut batch = KvBatch::new(&device, 2, 64, 20).unwrap();
        let mut all = Vec::new();
        for (step, counts) in [[19, 5], [1, 1], [1, 3], [2, 1]].into_iter().enumerate() {
            let rows: Vec<_> = ids.iter().zip(counts).map(|(&id, count)| Some((id, count))).collect();
            if step == 1 {
                batch = KvBatch::new(&device, 2, 64, 3).unwrap();
            }
            cache.bind(&mut batch, &rows, 1).unwrap();
            let tokens = counts[0] + counts[1];
            let keys = $tensor(values(tokens * SHARED * FEATURES, step), [tokens, SHARED, FEATURES]);
            let queries = $tensor(values(tokens * HEADS * FEATURES, step + 9), [tokens, HEADS, FEATURES]);
            cache.append(0, &batch, keys.clone(), keys).unwrap();
            let options = DecodeOptions { window: Some(11), ..DecodeOptions::default() };
            let out = cache.attend(0, &batch, queries, &options).unwrap();
            all.extend($read(out.reshape([tokens * HEADS, FEATURES])));
            cache.advance(&batch).unwrap();
        }
        let tables = SampleTables { counts: true, chances: true, ring: 6 };
        let state = SampleState::new(&device, 2, 300, tables).unwrap();
        let sampling = Sampling { temperature: 0.9, top_p: 0.9, seed: 5, ..Sampling::default() };
        state.set(0, &sampling, &[3]).unwrap();
        state.set(1, &Sampling { repetition_penalty: 1.2, ..sampling }, &[]).unwrap();
        let logits = $tensor(values(600, 77), [2, 300, 1]).reshape([2, 300]);
        for _ in 0..6 {
            $language::sample(logits.clone(), &state).unwrap();
        }
        let late: LateDraws = state.begin_read().unwrap();
        let bits = |draw: Draw| (draw.token, draw.chance.map(f32::to_bits));
        let last: Vec<_> = late.wait().unwrap().into_iter().map(bits).collect();
        let ring = $rocm::read_with_fault(state.ring().unwrap()).unwrap().0;
        (all, ring.iter::<i64>().collect::<Vec<_>>(), last)
    }};
}

#[test]
fn both_burns_have_the_same_bits() {
    let device = Device::rocm(0);
    let tensor = |values: Vec<f32>, shape: [usize; 3]| {
        Tensor::<3>::from_data(TensorData::new(values, shape), (&device, DType::F32))
    };
    let read = |tensor: Tensor<2>| tensor.into_data().iter::<f32>().map(f32::to_bits).collect::<Vec<_>>();
    let (found, tokens, last) = run!(language, burn_rocm, tensor, read);
    let tensor = |values: Vec<f32>, shape: [usize; 3]| {
        Former::<3>::from_data(burn_021::tensor::TensorData::new(values, shape), &Default::default())
    };
    let read = |tensor: Former<2>| tensor.into_data().iter::<f32>().map(f32::to_bits).collect::<Vec<_>>();
    let (expected, expected_tokens, expected_last) = run!(former, burn_rocm_021, tensor, read);
    assert_eq!(found, expected);
    assert_eq!(tokens, expected_tokens);
    assert_eq!(last, expected_last);
    assert!(tokens.iter().any(|token| token != &tokens[0]));
}

#[test]
fn a_replayed_step_draws_what_single_steps_draw() {
    let (rows, vocabulary, steps) = (2, 50, 12);
    let tensor = |shape: [usize; 2], seed| {
        let data = TensorData::new(values(shape[0] * shape[1], seed), shape);
        Tensor::<2>::from_data(data, (&Device::rocm(0), DType::F32))
    };
    let (embedding, weights) =
        (tensor([vocabulary, HEADS * FEATURES], 1), tensor([HEADS * FEATURES, vocabulary], 2));
    let run = |captured: bool| {
        let device = RocmDevice::default();
        let config =
            KvCacheConfig { layers: 1, heads: HEADS, features: FEATURES, blocks: 4, stored: CacheType::BF16 };
        let cache = RefCell::new(config.init(&device).unwrap());
        let ids = [(); 2].map(|()| cache.borrow_mut().sequences().create());
        let mut batch = KvBatch::new(&device, rows, 32, 1).unwrap();
        cache.borrow_mut().bind(&mut batch, &ids.map(|id| Some((id, 1))), steps).unwrap();
        let state =
            SampleState::new(&device, rows, vocabulary, SampleTables { ring: steps, ..Default::default() });
        let state = state.unwrap();
        for row in 0..rows {
            let sampling = Sampling { temperature: 1.0, seed: row as u64, ..Sampling::default() };
            state.set(row, &sampling, &[]).unwrap();
        }
        let step = |state: &SampleState| -> Result<(), CacheError> {
            let x = embedding.clone().select(0, language::tokens(state));
            let x = x.reshape([rows, HEADS, FEATURES]);
            let cache = cache.borrow();
            cache.append(0, &batch, x.clone(), x.clone())?;
            let out = cache.attend(0, &batch, x, &DecodeOptions::default())?;
            Ok(language::sample(out.reshape([rows, HEADS * FEATURES]).matmul(weights.clone()), state)?)
        };
        let ring = |state: &SampleState| -> Result<Vec<i64>, RocmError> {
            Ok(burn_rocm::read_with_fault(state.ring().unwrap())?.0.iter::<i64>().collect())
        };
        if captured {
            let graph = DecodeStep::capture(&device, &batch, state, step).unwrap();
            (0..steps).for_each(|_| graph.replay(&mut cache.borrow_mut(), &batch).unwrap());
            ring(graph.state()).unwrap()
        } else {
            for _ in 0..steps {
                step(&state).unwrap();
                cache.borrow_mut().advance(&batch).unwrap();
            }
            ring(&state).unwrap()
        }
    };
    let eager = run(false);
    assert_eq!(run(true), eager);
    assert!(eager.iter().any(|token| token != &eager[0]), "{eager:?}");
}
