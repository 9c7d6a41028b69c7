//! The memory that a step takes. These tests have their own program and run one at a time, because
//! the pool belongs to the device. Both versions of Burn compile this file.

use std::sync::{Mutex, PoisonError};

use burn::nn::LinearConfig;
use burn::optim::GradientsParams;
#[allow(unused_imports, reason = "only Burn 0.21 has `step` in this trait")]
use burn::optim::Optimizer;

use crate::world::nn::attention::{MhaInput, MultiHeadAttentionConfig};
use crate::world::nn::language::lora::{LoraConfig, Targets};
use crate::world::nn::language::quant::{QuantWeight, RoundTo, round_to_nearest};
use crate::world::nn::optim::AdamConfig;
use crate::world::{
    Linear, MultiHeadAttention, QuantLora, RECORDS_HOLD_TENSORS, Tracked, again, quant_linear, tracking,
};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn a_step_is_taken_in_place() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    const SIDE: usize = 512;
    let bytes = 4 * SIDE * (SIDE + 1);
    let device = tracking();
    let pool = hip::Device::get(0).unwrap();
    let gradients = |layer: &Linear| {
        let loss = layer.forward(Tracked::<2>::ones([4, SIDE], &device)).mean();
        GradientsParams::from_grads(loss.backward(), layer)
    };
    let mut optimizer = AdamConfig::new().init();
    let mut layer: Linear = LinearConfig::new(SIDE, SIDE).init(&device);
    let grads = gradients(&layer);
    layer = optimizer.step(1e-3, layer, grads);

    // Without other owners, parameters and both moments are updated in place.
    let grads = gradients(&layer);
    pool.pool().reset_peak();
    let before = pool.pool().stats().allocated;
    layer = optimizer.step(1e-3, layer, grads);
    assert_eq!(pool.pool().stats().peak, before);

    // With a clone and a record that are kept, what they hold gets new tensors.
    let kept = (layer.clone(), optimizer.to_record());
    let grads = gradients(&layer);
    pool.pool().reset_peak();
    let before = pool.pool().stats().allocated;
    layer = optimizer.step(1e-3, layer, grads);
    let grown = pool.pool().stats().peak - before;
    let held = if RECORDS_HOLD_TENSORS { 3 } else { 1 };
    assert!((held * bytes..(held + 1) * bytes).contains(&grown), "{grown} bytes for parameters of {bytes}");
    drop((kept, layer));
}

/// The most bytes that attention takes beyond those in use before, forward and backward, for each
/// sequence length.
fn attention_takes(lengths: [usize; 3]) -> [usize; 3] {
    let device = tracking();
    let pool = hip::Device::get(0).unwrap();
    let module: MultiHeadAttention = MultiHeadAttentionConfig::new(16, 2).with_dropout(0.0).init(&device);
    lengths.map(|length| {
        let run = || {
            let x = Tracked::<3>::ones([1, length, 16], &device).require_grad();
            module.forward(MhaInput::self_attn(x)).context.sum().backward()
        };
        drop(run()); // allocates what stays, such as a workspace
        pool.pool().reset_peak();
        let before = pool.pool().stats().allocated;
        drop(run());
        pool.pool().stats().peak - before
    })
}

/// Adapters are trained on weights that stay quantised: no pass has more floats than those of one
/// layer, and none stay.
#[test]
fn frozen_weights_stay_quantised() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    const SIDE: usize = 512;
    const LAYERS: usize = 8;
    let floats = 4 * SIDE * SIDE;
    let numbers: Vec<f32> = (0..SIDE * SIDE).map(|at| ((at * 37 % 101) as f32 - 50.0) / 1e3).collect();
    let parts = round_to_nearest(&numbers, [SIDE, SIDE], RoundTo::Int4).unwrap();
    let pool = hip::Device::get(0).unwrap();
    let lora = LoraConfig::new(2, Targets::All).build().unwrap();
    let start = pool.pool().stats().allocated;
    let mut layers: Vec<QuantLora> = (0..LAYERS)
        .map(|at| {
            let weight = QuantWeight::upload(&parts, &Default::default()).unwrap();
            lora.adapt(&at.to_string(), quant_linear(weight))
        })
        .collect();
    let of_layers = LAYERS * parts.bytes();
    let kept = pool.pool().stats().allocated - start;
    assert!(kept < of_layers + floats / 4, "{kept} bytes for {of_layers} of codes");

    let mut optimizer = AdamConfig::new().init();
    // More rows than one kernel takes, so that forward passes make floats, too.
    for rows in [4, 20] {
        for _ in 0..2 {
            pool.pool().reset_peak();
            let before = pool.pool().stats().allocated;
            let x = Tracked::<2>::ones([rows, SIDE], &tracking());
            let grads = layers.iter().fold(x, |x, layer| layer.forward(x)).mean().backward();
            let grads = GradientsParams::from_grads(grads, &layers);
            assert_eq!(grads.len(), 2 * LAYERS);
            layers = optimizer.step(1e-3, layers, grads);
            let grown = pool.pool().stats().peak - before;
            // Of one layer at a time. Activations, gradients and moments take less than a second
            // layer's.
            assert!(grown < 2 * floats, "{rows} rows: {grown} bytes, {floats} of a layer's floats");
        }
    }
    let kept = pool.pool().stats().allocated - start;
    assert!(kept < of_layers + floats, "{kept} bytes stay, {of_layers} of codes");
}

/// How many bytes of scores the child process of the test below keeps. A process reads the setting
/// once, and the environment of the whole test program may have it, too.
const CHILD: &str = "BURN_ROCM_TEST_MEMORY_CHILD";

/// Up to the bytes of scores that `BURN_ROCM_ATTENTION_SCORES` allows, memory grows with the square
/// of the sequence. Beyond, a sequence of twice the length takes twice the memory.
#[test]
fn memory_is_linear_in_the_sequence_beyond_the_scores_that_are_kept() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let name = "memory::memory_is_linear_in_the_sequence_beyond_the_scores_that_are_kept";
    let Ok(scores) = std::env::var(CHILD) else {
        for scores in ["", "1M"] {
            let text = again(&["--exact", name], &[(CHILD, scores), ("BURN_ROCM_ATTENTION_SCORES", scores)]);
            assert!(text.contains("1 passed"), "{text}");
        }
        return;
    };
    let [short, medium, long] = attention_takes([512, 1024, 2048]);
    for (half, whole) in [(short, medium), (medium, long)] {
        match scores.is_empty() {
            true => assert!(whole > 3 * half, "kept by default: {short}, {medium}, {long}"),
            false => assert!((19 * half..=21 * half).contains(&(10 * whole)), "{short}, {medium}, {long}"),
        }
    }
}
