//! Heads that share keys and values, and sliding windows: the ops against the formulas in f64, and
//! the module against Burn's with repeated heads and a mask.

use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::nn::{attention as theirs, transformer as their_encoder};
use burn::record::{BinBytesRecorder, FullPrecisionSettings, NamedMpkBytesRecorder, Recorder};
use burn::tensor::Tensor;
use burn_rocm::RocmTensor;
use burn_rocm::fused::{
    AttentionOptions, AttentionPath, attention, attention_backward, attention_weights,
    attention_weights_backward,
};
use burn_rocm_nn::attention::{
    MhaCache, MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask,
};
use burn_rocm_nn::{attention as ours, transformer as our_encoder};
use burn_rocm_tests::lockstep::{fewer, in_lockstep};
use burn_rocm_tests::trace::during;
use burn_rocm_tests::{BoolTensorOps, FLOATS, FloatTensorOps, R, Slice, assert_close, read_float};

use crate::attention::{Call, bools, loaded, made, mha_of, saved};
use crate::attention_formulas::{Case, case};
use crate::attention_fused::{Lies, against_the_formulas, on_device};
use crate::support::*;

/// Groups of 1, 2, 4 and of all heads; more queries than keys, fewer, and one, as in decoding; more
/// than a tile of each; whole pieces of 16 bytes, which have kernels of their own on matrix cores.
const CASES: &[Case] = &[
    case([2, 2, 33, 70, 8, 8]),
    case([2, 4, 33, 40, 8, 8]).grouped(2),
    case([1, 4, 70, 130, 16, 12]).grouped(4),
    case([1, 4, 140, 70, 33, 20]).grouped(2),
    case([1, 4, 72, 200, 64, 64]).grouped(2),
    case([1, 2, 150, 150, 96, 96]).grouped(2),
    case([2, 6, 5, 9, 3, 4]).grouped(2),
    case([2, 4, 1, 70, 8, 8]).grouped(2),
];

/// None, 1, odd, on either side of a tile's border, and beyond the sequences.
const WINDOWS: &[Option<usize>] = &[None, Some(1), Some(17), Some(63), Some(64), Some(65), Some(1000)];

fn on_path(path: AttentionPath) {
    let random = Random::new();
    for dtype in FLOATS {
        for &case in CASES {
            against_the_formulas(case, dtype, path, WINDOWS, &random);
        }
    }
}

#[test]
fn tiled() {
    on_path(AttentionPath::Tiled);
}

#[test]
fn composed() {
    on_path(AttentionPath::Composed);
}

/// Every window of a short sequence, with every group.
#[test]
fn every_window() {
    let random = Random::new();
    for group in [1, 2, 4] {
        for window in 1..10 {
            for path in [AttentionPath::Tiled, AttentionPath::Composed] {
                let case = case([1, 4, 6, 8, 4, 4]).grouped(group);
                against_the_formulas(case, DType::F32, path, &[Some(window)], &random);
            }
        }
    }
}

fn read(tensor: RocmTensor) -> Vec<f64> {
    read_float::<R>(tensor).iter::<f64>().collect()
}

/// Heads `[1, heads, length, width]`, drawn, with `poison` in the first `count` rows of each head.
fn poisoned(random: &Random, [heads, length, width]: [usize; 3], count: usize) -> [TensorData; 2] {
    let shape = [1, heads, length, width];
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| random.uniform(-1.0, 1.0)).collect();
    let with = |poison: f64| {
        let first = |at: usize| at / width % length < count;
        let values = values.iter().enumerate().map(|(at, &value)| if first(at) { poison } else { value });
        TensorData::new(values.collect::<Vec<_>>(), shape)
    };
    [with(0.0), with(f64::NAN)]
}

#[test]
fn keys_outside_the_windows_are_not_read() {
    keys_outside_the_windows(if in_lockstep() { 16 } else { 64 }, &FLOATS);
}

/// Tiles of keys that no query of a tile sees are not read: NaN in them changes nothing. Their
/// gradients are 0.
pub(crate) fn keys_outside_the_windows(width: usize, dtypes: &[DType]) {
    let (random, queries, keys) = (Random::new(), 200, 400);
    for &dtype in dtypes {
        // The first query is at position 200 and sees the keys from 151 on, and query 128 those from 279
        // on. Tiles have at most 64 keys.
        let cases = [(true, 128, 0), (false, 128, 0), (true, 256, 128)];
        for (causal, unseen, first_row) in fewer(cases, 3, &random) {
            let options = AttentionOptions {
                causal,
                window: Some(50),
                path: AttentionPath::Tiled,
                ..Default::default()
            };
            let [k, bad_k] = poisoned(&random, [2, keys, width], unseen);
            let [v, bad_v] = poisoned(&random, [2, keys, width], unseen);
            let of = |data: &TensorData| on_device(data, dtype, Lies::Packed);
            let [q, grad] = [(); 2].map(|()| of(&uniform(&random, &[1, 4, queries, width])));
            let run = |k: &TensorData, v: &TensorData| {
                let inputs = || [q.clone(), of(k), of(v)];
                let [a, b, c] = inputs();
                let attended = attention(a, b, c, None, &options).unwrap();
                let out = read(attended.out);
                let (kept, grad) = (attended.kept, grad.clone());
                let grads = attention_backward(inputs(), None, kept, grad, &options, [true; 3]).unwrap();
                (out, grads.map(|grad| read(grad.unwrap())))
            };
            let ((out, grads), (found, found_grads)) = (run(&k, &v), run(&bad_k, &bad_v));
            let what = format!("{dtype:?} causal {causal} from row {first_row}");
            let rows = |out: &[f64]| -> Vec<f64> {
                let seen = out.iter().enumerate().filter(|(at, _)| at / width % queries >= first_row);
                seen.map(|(_, &value)| value).collect()
            };
            assert_eq!(rows(&found), rows(&out), "{what}");
            assert_eq!(rows(&found_grads[0]), rows(&grads[0]), "queries of {what}");
            if first_row == 0 {
                assert_eq!(found_grads, grads, "{what}");
                for grads in &found_grads[1..] {
                    let zeros = grads.chunks(width).enumerate().filter(|(row, _)| row % keys < unseen);
                    assert!(zeros.flat_map(|(_, row)| row).all(|&x| x == 0.0), "{what}");
                }
            }
        }
    }
}

/// The mask's score does not count outside the windows, on any path, forward and backward: NaN and +inf
/// there change nothing.
#[test]
fn masks_outside_the_windows_do_not_count() {
    let (random, queries, keys, width) = (Random::new(), 40, 100, 8);
    let paths = [AttentionPath::Tiled, AttentionPath::Composed];
    let windows = [(true, None), (true, Some(9)), (false, Some(9))];
    let cases = paths.into_iter().flat_map(|path| windows.map(|window| (path, window)));
    let cases = FLOATS.into_iter().flat_map(|dtype| cases.clone().map(move |case| (dtype, case)));
    for (dtype, (path, (causal, window))) in fewer(cases, 5, &random) {
        let of =
            |heads, length| on_device(&uniform(&random, &[1, heads, length, width]), dtype, Lies::Packed);
        let (q, k, v, grad) = (of(4, queries), of(2, keys), of(2, keys), of(4, queries));
        let by_weights = on_device(&uniform(&random, &[1, 4, queries, keys]), dtype, Lies::Packed);
        let case = case([1, 4, queries, keys, width, width]);
        let run = |fill| {
            let options = AttentionOptions { causal, window, fill, path, ..Default::default() };
            let hidden = |at: usize| !at.is_multiple_of(3) && !case.sees(&options, at / keys, at % keys);
            let hidden: Vec<bool> = (0..queries * keys).map(hidden).collect();
            assert!(hidden.contains(&true));
            let hidden = TensorData::new(hidden, [1, 1, queries, keys]);
            let mask = || Some(R::bool_from_data(hidden.clone(), &Default::default()));
            let inputs = || [q.clone(), k.clone(), v.clone()];
            let [a, b, c] = inputs();
            let attended = attention(a, b, c, mask(), &options).unwrap();
            let (kept, grad) = (attended.kept, grad.clone());
            let grads = attention_backward(inputs(), mask(), kept, grad, &options, [true; 3]).unwrap();
            let weights = attention_weights(q.clone(), k.clone(), mask(), &options).unwrap();
            let [a, b, _] = inputs();
            let (made, by_weights) = (weights.clone(), by_weights.clone());
            let more = attention_weights_backward([a, b], mask(), made, by_weights, &options, [true; 2]);
            let grads = grads.into_iter().chain(more.unwrap()).flatten();
            [attended.out, weights].into_iter().chain(grads).map(read).collect::<Vec<_>>()
        };
        let expected = run(f64::NEG_INFINITY);
        assert!(expected.iter().flatten().all(|x| x.is_finite()));
        for fill in [f64::NAN, f64::INFINITY] {
            assert_eq!(run(fill), expected, "{dtype:?} {path:?} causal {causal} {window:?} {fill}");
        }
    }
}

/// More than 2^32 pairs of queries and keys: the last tokens of a long sequence give, bit for bit, what
/// they give alone. They begin at a tile's border.
#[test]
fn more_pairs_than_32_bits_count_natively() {
    let (random, length, last, window, width) = (Random::new(), 516 * 128, 3 * 128, 64, 8);
    assert!(length * length > 1 << 32);
    let drawn = [(); 4].map(|()| uniform(&random, &[1, 1, length, width]));
    for dtype in [DType::F32, DType::BF16] {
        let run = |from: usize| {
            let whole = |data: &TensorData| on_device(data, dtype, Lies::Packed);
            let of = |data: &TensorData| {
                R::float_slice(whole(data), &[Slice::full(), Slice::full(), (from..length).into()])
            };
            let hidden: Vec<bool> = (from..length).map(|key| key % 7 == 3).collect();
            let hidden = TensorData::new(hidden, [1, 1, 1, length - from]);
            let mask = || Some(R::bool_from_data(hidden.clone(), &Default::default()));
            let options = AttentionOptions {
                causal: true,
                window: Some(window),
                path: AttentionPath::Tiled,
                ..Default::default()
            };
            let [q, k, v, grad] = drawn.each_ref().map(of);
            let attended = attention(q.clone(), k.clone(), v.clone(), mask(), &options).unwrap();
            let kept = attended.kept;
            let grads = attention_backward([q, k, v], mask(), kept, grad, &options, [true; 3]).unwrap();
            // Those of the last tokens that see no other tokens than the last.
            let found = [attended.out].into_iter().chain(grads.into_iter().flatten());
            let rows = 2 * 128 * width;
            found.map(|x| read(x).split_off((length - from) * width - rows)).collect::<Vec<_>>()
        };
        assert!(run(0) == run(length - last), "{dtype:?}");
    }
}

/// No path repeats keys and values: on the tiled one the four kernels run, and on the composed one
/// contiguous operands are not copied. A narrow window takes the tiled path.
#[test]
fn shared_heads_are_not_repeated() {
    let random = Random::new();
    let draw = |heads, length| on_device(&uniform(&random, &[2, heads, length, 8]), DType::F32, Lies::Packed);
    let lines = |[queries, keys]: [usize; 2], options: &AttentionOptions| {
        let (q, k, v, grad) = (draw(4, queries), draw(2, keys), draw(2, keys), draw(4, queries));
        let (_, lines) = during(|| {
            let attended = attention(q.clone(), k.clone(), v.clone(), None, options).unwrap();
            attention_backward([q, k, v], None, attended.kept, grad, options, [true; 3]).unwrap()
        });
        lines
    };
    let four = [
        "attention<f32, 2>",
        "attention_dots<f32>",
        "attention_backward_queries<f32, 0>",
        "attention_backward_keys<f32, 0>",
    ];
    let tiled = AttentionOptions { path: AttentionPath::Tiled, ..Default::default() };
    let narrow = AttentionOptions { window: Some(9), causal: true, ..Default::default() };
    // Without causality, and longer than the queries: 49 keys before a query, and at most 39 behind it.
    let long = AttentionOptions { window: Some(50), ..Default::default() };
    for (options, sizes) in [(tiled, [40, 40]), (narrow, [40, 40]), (long, [40, 400])] {
        let lines = lines(sizes, &options);
        let kernels: Vec<&str> = lines.iter().filter_map(|line| line.split("kernel ").nth(1)).collect();
        assert_eq!(kernels, four, "{lines:#?}");
    }
    let wide = AttentionOptions { window: Some(11), causal: true, ..Default::default() };
    let long = AttentionOptions { window: Some(62), ..Default::default() };
    for (options, sizes) in [(wide, [40, 40]), (long, [40, 400])] {
        let lines = lines(sizes, &options);
        assert!(lines.iter().any(|line| line.contains("kernel attention_weights<f32>")), "{lines:#?}");
        assert!(!lines.iter().any(|line| line.contains("kernel copy_")), "{lines:#?}");
    }
}

/// `[rows, heads * width]` with each head repeated `group` times.
fn repeated(data: &TensorData, group: usize, width: usize) -> TensorData {
    let columns = *data.shape.as_slice().last().unwrap();
    let values: Vec<f32> = data.iter::<f32>().collect();
    let row = |row: &[f32]| -> Vec<f32> {
        (0..group * columns).map(|at| row[at / width / group * width + at % width]).collect()
    };
    let mut shape = data.shape.as_slice().to_vec();
    *shape.last_mut().unwrap() *= group;
    TensorData::new(values.chunks(columns).flat_map(row).collect::<Vec<_>>(), shape)
}

/// Undoes [`repeated`], adding the heads of a group.
fn summed(data: &TensorData, group: usize, width: usize) -> TensorData {
    let columns = *data.shape.as_slice().last().unwrap();
    let values: Vec<f32> = data.iter::<f32>().collect();
    let row = |row: &[f32]| -> Vec<f32> {
        let of = |at: usize| (0..group).map(|k| row[(at / width * group + k) * width + at % width]).sum();
        (0..columns / group).map(of).collect()
    };
    let mut shape = data.shape.as_slice().to_vec();
    *shape.last_mut().unwrap() /= group;
    TensorData::new(values.chunks(columns).flat_map(row).collect::<Vec<_>>(), shape)
}

/// The module, on this backend and composed of Burn's ops on another, against Burn's module with
/// repeated heads and the window as a mask.
#[test]
fn the_module_is_burns_with_repeated_heads_and_a_mask() {
    let random = Random::new();
    for ([batch, queries, keys, d_model, heads, kv_heads], window, masked) in [
        ([2, 5, 5, 12, 6, 3], None, false),
        ([1, 7, 9, 16, 4, 1], Some(4), true),
        ([2, 40, 33, 8, 2, 2], Some(40), false),
        ([1, 6, 5, 8, 4, 2], Some(usize::MAX), true),
        ([2, 33, 40, 8, 4, 2], Some(3), true),
    ] {
        let (width, group) = (d_model / heads, heads / kv_heads);
        let mut call = Call::new(&random, [batch, queries, keys, d_model, heads], [masked, false]);
        // Each window keeps a key. If the mask hid all of them, the module would weigh those equally, and
        // Burn's with one mask for both all keys.
        if let Some(pad) = &mut call.mask_pad {
            let hidden: Vec<bool> = (0..batch * keys).map(|at| at % keys % 5 == 2).collect();
            *pad = TensorData::new(hidden, [batch, keys]);
        }
        let config = MultiHeadAttentionConfig::new(d_model, heads)
            .with_kv_heads(Some(kv_heads))
            .with_window(window)
            .with_dropout(0.0);
        let module = made(config.init::<Oracle>(&Default::default()));
        let record = saved(module.clone());
        let full = theirs::MultiHeadAttentionConfig::new(d_model, heads).with_dropout(0.0);
        let mut full = made(full.init::<Oracle>(&Default::default()));
        let repeat = |to: &mut Linear<Oracle>, from: &Linear<Oracle>| {
            let of = |data: TensorData| repeated(&data, group, width);
            let weight = of(from.weight.val().into_data());
            let bias = of(from.bias.as_ref().unwrap().val().into_data());
            to.weight = Param::from_data(weight, &Default::default());
            to.bias = Some(Param::from_data(bias, &Default::default()));
        };
        (full.query, full.output) = (module.query.clone(), module.output.clone());
        repeat(&mut full.key, &module.key);
        repeat(&mut full.value, &module.value);
        // Burn's module sees the window as a mask.
        let outside = |at: usize| {
            let distance = (at / keys + keys) as i64 - (at % keys + queries) as i64;
            window.is_some_and(|window| distance.unsigned_abs() >= window as u64)
        };
        let outside: Vec<bool> = (0..queries * keys).map(outside).collect();
        let mut call_with_mask = call.clone();
        call_with_mask.mask_attn = Some(TensorData::new(outside, [1, queries, keys]));
        let mut expected = mha_of!(Oracle, full, MhaInput of theirs, &call_with_mask);
        for result in &mut expected[7..11] {
            *result = summed(result, group, width);
        }
        let what = format!("{batch} {queries} {keys} {d_model} {heads} {kv_heads} {window:?}");
        let tolerance = Tolerance::of(DType::F32).times(100.0);
        let found = mha_of!(Oracle, module, MhaInput of ours, &call);
        assert_close(&format!("{what}, composed"), &found, &expected, tolerance);
        let module = loaded(config.init::<Ours>(&Default::default()), &record);
        let found = mha_of!(Ours, module, MhaInput of ours, &call);
        assert_close(&what, &found, &expected, tolerance);
        let module = loaded(config.init::<Balanced>(&Default::default()), &record);
        let found = mha_of!(Balanced, module, MhaInput of ours, &call);
        assert_close(&format!("{what}, recomputed"), &found, &expected, tolerance);
    }
}

/// Masks that leave no key of some windows, and more queries than keys, so that some windows have
/// none: on this backend the module gives what it gives when it is composed of Burn's ops.
#[test]
fn windows_without_a_visible_key() {
    let random = Random::new();
    for ([batch, queries, keys, d_model, heads, kv_heads], window, quiet) in [
        ([2, 9, 4, 8, 2, 1], 3, false),
        ([1, 6, 6, 8, 4, 4], 1, true),
        ([2, 5, 7, 12, 6, 2], 2, false),
        ([1, 40, 33, 12, 2, 2], 2, false),
    ] {
        let call = Call::new(&random, [batch, queries, keys, d_model, heads], [true, true]);
        let config = MultiHeadAttentionConfig::new(d_model, heads)
            .with_kv_heads(Some(kv_heads))
            .with_window(Some(window))
            .with_quiet_softmax(quiet)
            .with_dropout(0.0);
        let module = made(config.init::<Oracle>(&Default::default()));
        let record = saved(module.clone());
        let expected = mha_of!(Oracle, module, MhaInput of ours, &call);
        for result in &expected {
            assert!(result.iter::<f32>().all(f32::is_finite), "{result:?}");
        }
        let module = loaded(config.init::<Ours>(&Default::default()), &record);
        let found = mha_of!(Ours, module, MhaInput of ours, &call);
        let what = format!("{batch} {queries} {keys} {d_model} {heads} {kv_heads} {window} {quiet}");
        assert_close(&what, &found, &expected, Tolerance::of(DType::F32).times(100.0));
    }
}

/// The module's `min_float` does not count outside the window either: NaN there changes nothing. More
/// queries than keys, so that some windows have no key, and fewer.
#[test]
fn min_float_outside_the_window_does_not_count() {
    let (random, window) = (Random::new(), 3);
    for (queries, keys) in [(9, 4), (6, 9), (40, 33)] {
        let mut call = Call::new(&random, [2, queries, keys, 8, 4], [false, false]);
        let hidden = |at: usize| {
            let distance = (at / keys % queries + keys) as i64 - (at % keys + queries) as i64;
            at % 5 < 2 && distance.unsigned_abs() >= window as u64
        };
        let hidden: Vec<bool> = (0..2 * queries * keys).map(hidden).collect();
        call.mask_attn = Some(TensorData::new(hidden, [2, queries, keys]));
        let config = MultiHeadAttentionConfig::new(8, 4).with_window(Some(window)).with_dropout(0.0);
        let record = saved(made(config.init::<Oracle>(&Default::default())));
        macro_rules! on {
            ($B:ident, $min_float:expr) => {{
                let mut module = loaded(config.init::<$B>(&Default::default()), &record);
                module.min_float = $min_float;
                mha_of!($B, module, MhaInput of ours, &call)
            }};
        }
        for min_float in [f64::NAN, f64::INFINITY] {
            let what = format!("{queries} {keys} {min_float}");
            let composed = [on!(Oracle, min_float), on!(Oracle, -1e4)];
            assert_close(&format!("{what}, composed"), &composed[0], &composed[1], Tolerance::EXACT);
            let fused = [on!(Ours, min_float), on!(Ours, -1e4)];
            assert_close(&what, &fused[0], &fused[1], Tolerance::EXACT);
            for result in composed.iter().chain(&fused).flatten() {
                assert!(result.iter::<f32>().all(f32::is_finite), "{what}: {result:?}");
            }
        }
    }
}

/// The record of Burn's module, loaded into this crate's, saved from it, and loaded into `blank`.
fn through<A: Module<Oracle>, M: Module<Ours>, R>(recorder: R, burns: &A, ours: &M, blank: &A) -> Vec<u8>
where
    R: Recorder<Oracle, RecordArgs = (), RecordOutput = Vec<u8>, LoadArgs = Vec<u8>>
        + Recorder<Ours, RecordArgs = (), RecordOutput = Vec<u8>, LoadArgs = Vec<u8>>,
{
    let bytes = Recorder::<Oracle>::record(&recorder, burns.clone().into_record(), ()).unwrap();
    let record = Recorder::<Ours>::load(&recorder, bytes, &Default::default()).unwrap();
    let ours = ours.clone().load_record(record);
    let bytes = Recorder::<Ours>::record(&recorder, ours.into_record(), ()).unwrap();
    let record = Recorder::<Oracle>::load(&recorder, bytes, &Default::default()).unwrap();
    saved(blank.clone().load_record(record))
}

/// Records are Burn's, by name and by position: in an encoder, parameters follow those of attention.
/// They lack the window, which the module keeps.
#[test]
fn records_are_burns() {
    let config = their_encoder::TransformerEncoderConfig::new(8, 12, 2, 2);
    let burns = made(config.init::<Oracle>(&Default::default()));
    let blank = made(config.init::<Oracle>(&Default::default()));
    let ours = our_encoder::TransformerEncoderConfig::new(8, 12, 2, 2).init::<Ours>(&Default::default());
    let expected = saved(burns.clone());
    assert_ne!(saved(blank.clone()), expected);
    let by_name = NamedMpkBytesRecorder::<FullPrecisionSettings>::default();
    assert!(through(by_name, &burns, &ours, &blank) == expected, "by name");
    let by_position = BinBytesRecorder::<FullPrecisionSettings>::default();
    assert!(through(by_position, &burns, &ours, &blank) == expected, "by position");
    let config = theirs::MultiHeadAttentionConfig::new(8, 2);
    let burns = made(config.init::<Oracle>(&Default::default()));
    let module = MultiHeadAttentionConfig::new(8, 2).with_window(Some(5)).init::<Ours>(&Default::default());
    assert_eq!(loaded(module, &saved(burns)).activation.window, Some(5));
}

/// Tokens one by one, from a cache, give what the whole sequence gives. Self-attention gives what
/// attention to the same tokens gives.
#[test]
fn decoding_and_self_attention() {
    let random = Random::new();
    for (kv_heads, window) in [(2, None), (1, Some(3)), (4, Some(2))] {
        let config = MultiHeadAttentionConfig::new(16, 4).with_kv_heads(Some(kv_heads)).with_dropout(0.0);
        let module: MultiHeadAttention<Ours> = made(config.with_window(window).init(&Default::default()));
        assert_eq!((module.kv_heads(), module.key.weight.dims()), (kv_heads, [16, 4 * kv_heads]));
        let x = tensor::<Ours, 3>(&uniform(&random, &[2, 7, 16]), DType::F32);
        let mask = || generate_autoregressive_mask(2, 7, &x.device());
        let input = MhaInput::new(x.clone(), x.clone(), x.clone()).mask_attn(mask());
        let whole = module.forward(input).context;
        let alike = module.forward(MhaInput::self_attn(x.clone()).mask_attn(mask())).context;
        let mut cache = MhaCache::autoregressive();
        let last = (1..=7).map(|known| {
            let tokens = x.clone().narrow(1, 0, known);
            let context = module.forward_cache(MhaInput::self_attn(tokens), &mut cache).context;
            context.narrow(1, known - 1, 1)
        });
        let decoded = Tensor::cat(last.collect(), 1);
        let tolerance = Tolerance::of(DType::F32).times(100.0);
        let expected = [whole.into_data()];
        assert_close(&"self-attention", &[alike.into_data()], &expected, tolerance);
        // A cached token sees no later ones, so it needs no mask.
        assert_close(&format!("{kv_heads} {window:?}"), &[decoded.into_data()], &expected, tolerance);
    }
}
