//! Attention of packed sequences: against the formulas in f64, against the padded form of each sequence,
//! and with other sequences' rows poisoned.

use std::ops::Range;

use burn::tensor::Int;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_rocm::fused::{
    AttentionDropout, AttentionInferenceOptions, AttentionOptions, AttentionPath, PackedOffsets, attention,
    attention_backward, attention_inference, attention_packed, attention_packed_backward,
    attention_packed_inference,
};
use burn_rocm::{RocmError, RocmTensor};
use burn_rocm_nn::attention::{PackedAttentionOptions, PackedSequences, packed_attention};
use burn_rocm_tests::lockstep::{fewer, in_lockstep};
use burn_rocm_tests::trace::during;
use burn_rocm_tests::{FLOATS, FloatTensorOps, IntTensorOps, R, Shape, assert_close, read_float};

use crate::attention_dropout::is_alone;
use crate::attention_formulas::{Case, Given, case, expected};
use crate::bounded::{Bounded, assert_bounded, exact};
use crate::support::*;

/// Queries and keys of each sequence: none, one, odd numbers, more than a tile, and one that is much
/// longer than the others.
const LENGTHS: &[[usize; 2]] = &[[0, 3], [1, 1], [70, 70], [33, 140], [5, 0], [0, 0], [131, 67], [2, 9]];
/// Heads, heads of keys, features of queries and keys, features of values.
const HEADS: &[[usize; 4]] = &[[2, 2, 4, 4], [4, 2, 20, 36], [2, 1, 32, 32], [2, 2, 64, 64], [1, 1, 80, 96]];

fn first_rows(lengths: &[[usize; 2]], side: usize) -> Vec<usize> {
    let mut first = vec![0];
    lengths.iter().for_each(|lengths| first.push(first[first.len() - 1] + lengths[side]));
    first
}

fn ints(values: &[usize]) -> RocmTensor {
    let values: Vec<i32> = values.iter().map(|&value| value as i32).collect();
    let shape = [values.len()];
    R::int_from_data(TensorData::new(values, shape), &Default::default())
}

fn offsets(lengths: &[[usize; 2]]) -> PackedOffsets {
    PackedOffsets { queries: ints(&first_rows(lengths, 0)), keys: ints(&first_rows(lengths, 1)) }
}

/// The operands of a batch: queries, keys, values and the output's gradient, `[rows, heads, features]`.
struct Batch {
    lengths: Vec<[usize; 2]>,
    data: [TensorData; 4],
}

impl Batch {
    fn new(random: &Random, lengths: &[[usize; 2]], [heads, shared, width, values]: [usize; 4]) -> Self {
        let [queries, keys] = [0, 1].map(|side| first_rows(lengths, side)[lengths.len()]);
        let draw = |shape: [usize; 3]| {
            let values = (0..shape.iter().product()).map(|_| random.uniform(-1.0, 1.0)).collect();
            TensorData::new::<f64, _>(values, shape)
        };
        let data = [
            draw([queries, heads, width]),
            draw([keys, shared, width]),
            draw([keys, shared, values]),
            draw([queries, heads, values]),
        ];
        Self { lengths: lengths.to_vec(), data }
    }

    /// The rows of a sequence in operand `which`.
    fn rows(&self, sequence: usize, which: usize) -> Range<usize> {
        let side = usize::from(which == 1 || which == 2);
        let first = first_rows(&self.lengths, side);
        first[sequence]..first[sequence + 1]
    }

    fn on_device(&self, dtype: DType) -> [RocmTensor; 4] {
        self.data
            .each_ref()
            .map(|data| R::float_from_data(data.clone().convert_dtype(dtype), &Default::default()))
    }

    /// The rows of a sequence of a result shaped like operand `which`, as `[1, heads, rows, features]`.
    fn part(&self, sequence: usize, which: usize, of: &TensorData) -> TensorData {
        let rows = self.rows(sequence, which);
        let &[_, heads, columns] = of.shape.as_slice() else { panic!("{:?}", of.shape) };
        let all: Vec<f64> = of.iter::<f64>().collect();
        let mut values: Vec<f64> = Vec::new();
        for head in 0..heads {
            for row in rows.clone() {
                values.extend(&all[(row * heads + head) * columns..][..columns]);
            }
        }
        TensorData::new(values, [1, heads, rows.len(), columns])
    }
}

/// The output and the gradients.
fn run(batch: &Batch, dtype: DType, options: &AttentionOptions) -> [TensorData; 4] {
    let [q, k, v, grad] = batch.on_device(dtype);
    let offsets = offsets(&batch.lengths);
    let attended = attention_packed(q.clone(), k.clone(), v.clone(), &offsets, options).unwrap();
    let inputs = [q, k, v];
    let grads = attention_packed_backward(inputs, &offsets, attended.kept, grad, options, [true; 3]).unwrap();
    let [by_q, by_k, by_v] = grads.map(|grad| read_float::<R>(grad.unwrap()));
    [read_float::<R>(attended.out), by_q, by_k, by_v]
}

/// For each result of [`run`], the operand that it is shaped like.
const SHAPED: [usize; 4] = [3, 0, 1, 2];

fn options(trial: usize, random: &Random) -> AttentionOptions {
    AttentionOptions {
        scale: (trial == 1).then_some(0.3),
        causal: trial >= 2,
        window: [None, Some(1), Some(21), None, Some(64)][trial],
        quiet: trial == 3,
        dropout: (trial % 2 == 1).then(|| AttentionDropout {
            prob: 0.3,
            seed: random.below(usize::MAX) as u64,
            call: random.below(1 << 63) as u64,
        }),
        ..AttentionOptions::default()
    }
}

/// Compares the results of [`run`] with the formulas of each sequence.
fn compare(
    batch: &Batch,
    heads: [usize; 4],
    dtype: DType,
    options: &AttentionOptions,
    found: &[TensorData; 4],
) {
    let lengths = &batch.lengths;
    let [all_queries, all_keys] = [0, 1].map(|side| first_rows(lengths, side)[lengths.len()]);
    for (sequence, &[queries, keys]) in lengths.iter().enumerate() {
        let [count, shared, width, values] = heads;
        let first = batch.rows(sequence, 0).start;
        let case = Case {
            packed: Some([first, all_queries, all_keys]),
            ..case([1, count, queries, keys, width, values]).grouped(count / shared)
        };
        let [q, k, v, grad] = [0, 1, 2, 3].map(|which| {
            let part = batch.part(sequence, which, &batch.data[which]).convert_dtype(dtype);
            exact(part.iter::<f64>())
        });
        let weights_grad = vec![Bounded::default(); count * queries * keys];
        let given = Given {
            case,
            q: &q,
            k: &k,
            v: &v,
            grad: &grad,
            weights_grad: &weights_grad,
            mask: None,
            options,
        };
        let expected = expected(&given, dtype);
        let [by_q, by_k, by_v] = expected.grads;
        let parts: Vec<TensorData> =
            (0..4).map(|at| batch.part(sequence, SHAPED[at], &found[at]).convert_dtype(dtype)).collect();
        let what = format!("{dtype:?} {heads:?} {queries} {keys} of {lengths:?} {options:?}");
        assert_bounded(&what, &parts, &[expected.out, by_q, by_k, by_v]);
    }
}

fn against_the_formulas(dtype: DType) {
    let random = Random::new();
    for &heads in HEADS {
        for trial in fewer(0..5, 5, &random) {
            let options = options(trial, &random);
            let lengths: Vec<[usize; 2]> = fewer(LENGTHS.iter().copied(), 2, &random).collect();
            let batch = Batch::new(&random, &lengths, heads);
            compare(&batch, heads, dtype, &options, &run(&batch, dtype, &options));
        }
    }
}

#[test]
fn packed_attention_and_its_gradients_f32() {
    against_the_formulas(DType::F32);
}

#[test]
fn packed_attention_and_its_gradients_f64() {
    against_the_formulas(DType::F64);
}

#[test]
fn packed_attention_and_its_gradients_f16() {
    against_the_formulas(DType::F16);
}

#[test]
fn packed_attention_and_its_gradients_bf16() {
    against_the_formulas(DType::BF16);
}

/// Whether the padded form of a sequence has the kernel of the packed form: in f32, more queries than
/// half a tile have one of their own, which sums in another order.
fn has_the_same_kernel(dtype: DType, queries: usize) -> bool {
    dtype != DType::F32 || queries <= 64
}

/// Tiles begin with a sequence, so each sequence has the bits of the padded form.
#[test]
fn a_packed_sequence_has_the_bits_of_the_padded_form() {
    let random = Random::new();
    for (dtype, heads) in FLOATS
        .into_iter()
        .flat_map(|dtype| [[4, 2, 32, 32], [2, 2, 64, 64], [1, 1, 128, 128]].map(|heads| (dtype, heads)))
    {
        let options = AttentionOptions {
            causal: random.below(2) == 0,
            window: [None, Some(40)][random.below(2)],
            path: AttentionPath::Tiled,
            ..AttentionOptions::default()
        };
        let batch =
            Batch::new(&random, &fewer(LENGTHS.iter().copied(), 2, &random).collect::<Vec<_>>(), heads);
        let found = run(&batch, dtype, &options);
        for (sequence, &[queries, keys]) in batch.lengths.iter().enumerate() {
            if queries == 0 || keys == 0 || !has_the_same_kernel(dtype, queries) {
                continue;
            }
            let [q, k, v, grad] = [0, 1, 2, 3].map(|which| {
                let part = batch.part(sequence, which, &batch.data[which]).convert_dtype(dtype);
                R::float_from_data(part, &Default::default())
            });
            let attended = attention(q.clone(), k.clone(), v.clone(), None, &options).unwrap();
            let grads =
                attention_backward([q, k, v], None, attended.kept, grad, &options, [true; 3]).unwrap();
            let [by_q, by_k, by_v] = grads.map(Option::unwrap);
            let expected = [attended.out, by_q, by_k, by_v].map(read_float::<R>);
            let parts =
                [0, 1, 2, 3].map(|at| batch.part(sequence, SHAPED[at], &found[at]).convert_dtype(dtype));
            let what = format!("{dtype:?} {heads:?} {queries} {keys} {options:?}");
            assert_close(&what, &parts, &expected, Tolerance::EXACT);
        }
    }
}

/// NaN in the rows of one sequence reaches no other sequence.
#[test]
fn nothing_outside_a_sequence_is_read() {
    let random = Random::new();
    let options = AttentionOptions::default();
    for dtype in [DType::F32, DType::BF16] {
        let lengths: Vec<[usize; 2]> = fewer(LENGTHS.iter().copied(), 2, &random).collect();
        let mut batch = Batch::new(&random, &lengths, [2, 1, 32, 32]);
        let clean = run(&batch, dtype, &options);
        // Every other sequence has NaN throughout.
        let poisoned = |sequence: usize| sequence % 2 == 1;
        for which in 0..4 {
            let columns: usize = batch.data[which].shape.as_slice()[1..].iter().product();
            let mut values: Vec<f64> = batch.data[which].iter::<f64>().collect();
            for sequence in (0..lengths.len()).filter(|&sequence| poisoned(sequence)) {
                let rows = batch.rows(sequence, which);
                values[rows.start * columns..rows.end * columns].fill(f64::NAN);
            }
            batch.data[which] = TensorData::new(values, batch.data[which].shape.clone());
        }
        let found = run(&batch, dtype, &options);
        for sequence in (0..lengths.len()).filter(|&sequence| !poisoned(sequence)) {
            for at in 0..4 {
                let [found, clean] = [&found[at], &clean[at]].map(|of| batch.part(sequence, SHAPED[at], of));
                let what = format!("{dtype:?} sequence {sequence} of {lengths:?}, result {at}");
                assert_close(&what, &[found], &[clean], Tolerance::EXACT);
            }
        }
    }
}

/// The inference form, whose softcap the padded form has too.
#[test]
fn packed_inference_has_the_bits_of_the_padded_form() {
    let random = Random::new();
    for (dtype, heads) in
        FLOATS.into_iter().flat_map(|dtype| [[2, 1, 64, 64], [1, 1, 200, 256]].map(|heads| (dtype, heads)))
    {
        let lengths = [[40, 40], [33, 70], [0, 5], [50, 50]];
        let options = AttentionInferenceOptions {
            softcap: Some(1.5),
            causal: random.below(2) == 0,
            ..AttentionInferenceOptions::default()
        };
        let batch = Batch::new(&random, &lengths, heads);
        let [q, k, v, _] = batch.on_device(dtype);
        let found =
            read_float::<R>(attention_packed_inference(q, k, v, &offsets(&lengths), &options).unwrap());
        for (sequence, _) in lengths.iter().enumerate().filter(|(_, lengths)| lengths[0] > 0) {
            let [q, k, v] = [0, 1, 2].map(|which| {
                let part = batch.part(sequence, which, &batch.data[which]).convert_dtype(dtype);
                R::float_from_data(part, &Default::default())
            });
            let expected = read_float::<R>(attention_inference(q, k, v, None, None, &options).unwrap());
            let found = batch.part(sequence, 3, &found).convert_dtype(dtype);
            let what = format!("{dtype:?} {heads:?} {sequence} {options:?}");
            assert_close(&what, &[found], &[expected], Tolerance::EXACT);
        }
    }
}

/// One check of the offsets and the kernels of the padded form, forward and backward, and no copy.
#[test]
fn packed_attention_is_six_kernels() {
    let random = Random::new();
    let options = AttentionOptions::default();
    let info = hip::Device::get(0).unwrap().info().clone();
    let lengths = [[40, 40], [3, 3], [20, 20]];
    for dtype in [DType::F32, DType::BF16] {
        let [q, k, v, grad] = Batch::new(&random, &lengths, [2, 2, 32, 32]).on_device(dtype);
        let offsets = PackedOffsets::from(ints(&first_rows(&lengths, 0)));
        let (_, lines) = during(|| {
            let attended = attention_packed(q.clone(), k.clone(), v.clone(), &offsets, &options).unwrap();
            let (kept, inputs) = (attended.kept, [q, k, v]);
            attention_packed_backward(inputs, &offsets, kept, grad, &options, [true; 3]).unwrap()
        });
        let kernels: Vec<&str> = lines.iter().filter_map(|line| line.split("kernel ").nth(1)).collect();
        let cores = dtype == DType::BF16 && info.matrix_cores(hip::DType::BF16, true).unwrap().is_some();
        let six = match (dtype, cores) {
            (_, true) => [
                "attention_offsets<i32>",
                "attention_matrix<bf16, 32, 2>",
                "attention_offsets<i32>",
                "attention_matrix_dots<bf16>",
                "attention_matrix_backward<bf16, 32, 2, 0>",
                "attention_matrix_backward<bf16, 32, 2, 1>",
            ],
            (DType::F32, _) => [
                "attention_offsets<i32>",
                "attention<f32, 3>",
                "attention_offsets<i32>",
                "attention_dots<f32>",
                "attention_backward_queries<f32, 1>",
                "attention_backward_keys<f32, 1>",
            ],
            _ => continue,
        };
        assert_eq!(kernels, six, "{lines:#?}");
        assert_eq!(lines.len(), 6, "{lines:#?}");
    }
}

fn zeros(shape: &[usize]) -> RocmTensor {
    R::float_zeros(Shape::from(shape.to_vec()), &Default::default(), DType::F32.into())
}

/// Offsets that do not ascend from 0 to the number of rows: reads of every result fail, and no kernel
/// reads outside the operands.
#[test]
fn bad_offsets_are_faults_of_the_results() {
    let good = [0, 3, 10];
    for (bad, found) in [
        (vec![1, 3, 10], "offset 1"),
        (vec![0, 11, 10], "offset 11"),
        (vec![0, 3, 9], "offset 9"),
        (vec![0, 3, 1 << 20], "offset 1048576"),
        (vec![0, usize::MAX, 10], "offset -1"),
    ] {
        for which in 0..2 {
            let [queries, keys] = if which == 0 { [&bad[..], &good] } else { [&good, &bad[..]] };
            let offsets = PackedOffsets { queries: ints(queries), keys: ints(keys) };
            let operand = || zeros(&[10, 1, 8]);
            let options = AttentionOptions::default();
            let attended = attention_packed(operand(), operand(), operand(), &offsets, &options).unwrap();
            let inputs = [operand(), operand(), operand()];
            let grads =
                attention_packed_backward(inputs, &offsets, attended.kept, operand(), &options, [true; 3])
                    .unwrap();
            for result in [Some(attended.out)].into_iter().chain(grads) {
                match burn_rocm::read_with_fault(result.unwrap()).unwrap().1 {
                    Some(error @ RocmError::Invalid { .. }) => {
                        let text = error.to_string();
                        assert!(text.contains("ascend from 0 to the number of rows, 10"), "{text}");
                        assert!(text.contains(found), "{bad:?}: {text}");
                    }
                    other => panic!("{bad:?}: {other:?}"),
                }
            }
        }
    }
    // Later calls are not affected. `sync` reports faults once.
    let _ = hip::Device::get(0).unwrap().sync();
    let offsets = PackedOffsets::from(ints(&good));
    let operand = || zeros(&[10, 1, 8]);
    let options = AttentionOptions::default();
    let attended = attention_packed(operand(), operand(), operand(), &offsets, &options).unwrap();
    assert!(burn_rocm::read_with_fault(attended.out).unwrap().1.is_none());
}

#[test]
fn packed_attention_refuses_what_does_not_fit() {
    let offsets =
        |queries: &[usize], keys: &[usize]| PackedOffsets { queries: ints(queries), keys: ints(keys) };
    let options = AttentionOptions::default();
    let run = |[q, k, v]: [&[usize]; 3], offsets: &PackedOffsets, options: &AttentionOptions| {
        attention_packed(zeros(q), zeros(k), zeros(v), offsets, options)
    };
    let shape: &[usize] = &[4, 2, 8];
    let same = offsets(&[0, 4], &[0, 4]);
    let composed = AttentionOptions { path: AttentionPath::Composed, ..options };
    let window = AttentionOptions { window: Some(0), ..options };
    let cases: [([&[usize]; 3], PackedOffsets, AttentionOptions, &str); 8] = [
        ([&[4, 8], shape, shape], same.clone(), options, "[rows, heads, features]"),
        ([shape, &[4, 3, 8], &[4, 3, 8]], same.clone(), options, "divide"),
        ([shape, shape, &[5, 2, 8]], same.clone(), options, "values"),
        ([&[4, 2, 257], &[4, 2, 257], shape], same.clone(), options, "at most 256 features"),
        ([shape; 3], offsets(&[0, 2, 4], &[0, 4]), options, "[sequences + 1]"),
        ([shape; 3], offsets(&[0], &[0]), options, "at least 2 offsets"),
        ([shape; 3], same.clone(), composed, "AttentionPath::Auto"),
        ([shape; 3], same.clone(), window, "window"),
    ];
    for (shapes, offsets, options, expected) in cases {
        match run(shapes, &offsets, &options) {
            Err(error @ RocmError::Invalid { op: "attention_packed", .. }) => {
                assert!(error.to_string().contains(expected), "{error} does not name {expected}");
            }
            other => panic!("{expected}: {other:?}"),
        }
    }
    // f32 rounds this softcap to 0.
    let softcapped =
        AttentionInferenceOptions { softcap: Some(1e-50), ..AttentionInferenceOptions::default() };
    let [q, k, v] = [shape; 3].map(zeros);
    let error = attention_packed_inference(q, k, v, &same, &softcapped).unwrap_err();
    assert!(error.to_string().contains("a softcap above 0"), "{error}");
    // Heads of 129 features have an output, but no gradient.
    let wide: &[usize] = &[4, 2, 129];
    let attended = run([wide; 3], &same, &options).unwrap();
    let inputs = [zeros(wide), zeros(wide), zeros(wide)];
    let found = attention_packed_backward(inputs, &same, attended.kept, zeros(wide), &options, [true; 3]);
    assert!(found.unwrap_err().to_string().contains("at most 128 features"));
}

/// Batches without sequences, without queries and without keys.
#[test]
fn empty_batches() {
    let options = AttentionOptions::default();
    for (lengths, queries, keys) in [(&[][..], 0, 0), (&[[0, 4], [0, 0]], 0, 4), (&[[3, 0], [1, 0]], 4, 0)] {
        let (q, k) = (zeros(&[queries, 2, 8]), zeros(&[keys, 2, 8]));
        let offsets = offsets(lengths);
        let attended = attention_packed(q.clone(), k.clone(), k.clone(), &offsets, &options).unwrap();
        assert_eq!(attended.out.dims(), [queries, 2, 8]);
        assert!(read_float::<R>(attended.out).iter::<f64>().all(|value| value == 0.0));
        let (inputs, grad) = ([q.clone(), k.clone(), k], q);
        let grads =
            attention_packed_backward(inputs, &offsets, attended.kept, grad, &options, [true; 3]).unwrap();
        for (grad, rows) in grads.into_iter().zip([queries, keys, keys]) {
            let grad = grad.unwrap();
            assert_eq!(grad.dims(), [rows, 2, 8]);
            assert!(read_float::<R>(grad).iter::<f64>().all(|value| value == 0.0));
        }
    }
}

/// A thousand short sequences and a long one, whose tiles a block finds among theirs.
#[test]
fn many_sequences() {
    let random = Random::new();
    let count = if in_lockstep() { 40 } else { 1000 };
    let mut lengths: Vec<[usize; 2]> = (0..count).map(|_| [random.below(3), random.below(3)]).collect();
    lengths[count / 2] = [200, 150];
    let options = AttentionOptions { path: AttentionPath::Tiled, ..AttentionOptions::default() };
    let batch = Batch::new(&random, &lengths, [2, 2, 16, 16]);
    for dtype in [DType::F32, DType::BF16] {
        let found = run(&batch, dtype, &options);
        for sequence in [0, 1, 7, count / 2, count / 2 + 1, count - 1] {
            if lengths[sequence].contains(&0) || !has_the_same_kernel(dtype, lengths[sequence][0]) {
                continue;
            }
            let [q, k, v] = [0, 1, 2].map(|which| {
                let part = batch.part(sequence, which, &batch.data[which]).convert_dtype(dtype);
                R::float_from_data(part, &Default::default())
            });
            let expected = read_float::<R>(attention(q, k, v, None, &options).unwrap().out);
            let found = batch.part(sequence, 3, &found[0]).convert_dtype(dtype);
            assert_close(&format!("{dtype:?} {sequence}"), &[found], &[expected], Tolerance::EXACT);
        }
    }
}

/// `packed_attention` of this crate, fused and composed of Burn's ops.
fn module_against_the_formulas<B: AutodiffBackend>() {
    let random = Random::new();
    let heads = [4, 2, 8, 5];
    let lengths = [[3, 5], [0, 2], [40, 33], [4, 0], [1, 1]];
    for (causal, window, quiet, dropout) in [
        (false, None, false, 0.0),
        (true, None, true, 0.0),
        (true, Some(3), false, 0.0),
        (true, None, false, 1.0),
    ] {
        let options = PackedAttentionOptions { causal, window, quiet, dropout, ..Default::default() };
        let batch = Batch::new(&random, &lengths, heads);
        let [q, k, v, grad] =
            batch.data.each_ref().map(|data| tensor::<B, 3>(data, DType::F32).require_grad());
        let of = |side| {
            let offsets: Vec<i64> = first_rows(&lengths, side).iter().map(|&row| row as i64).collect();
            let count = offsets.len();
            Tensor::<B, 1, Int>::from_data(TensorData::new(offsets, [count]), &Default::default())
        };
        let sequences = PackedSequences::between(of(0), of(1));
        let out = packed_attention(q.clone(), k.clone(), v.clone(), sequences, &options);
        let grads = (out.clone() * grad.detach()).sum().backward();
        let [by_q, by_k, by_v] = [&q, &k, &v].map(|x| x.grad(&grads).unwrap().into_data());
        // Scores that are all dropped are 0.
        let scale = (dropout == 1.0).then_some(0.0);
        let scores = AttentionOptions { scale, causal, window, quiet, ..AttentionOptions::default() };
        compare(&batch, heads, DType::F32, &scores, &[out.into_data(), by_q, by_k, by_v]);
    }
}

#[test]
fn fused_packed_attention_of_tensors() {
    module_against_the_formulas::<Ours>();
    module_against_the_formulas::<Balanced>();
}

#[test]
fn composed_packed_attention_of_tensors() {
    module_against_the_formulas::<Oracle>();
}

/// Dropout is drawn in training alone, and again after the same seed.
#[test]
fn dropout_of_packed_tensors() {
    if !is_alone("attention_packed::dropout_of_packed_tensors") {
        return;
    }
    let x = uniform(&Random::new(), &[9, 2, 4]);
    let options = PackedAttentionOptions { dropout: 0.5, ..Default::default() };
    fn run<B: Backend>(x: &TensorData, options: &PackedAttentionOptions) -> TensorData {
        let device = Default::default();
        let x = Tensor::<B, 3>::from_data(x.clone(), (&device, DType::F32));
        let sequences = PackedSequences::of_lengths(&[4, 5], &device);
        packed_attention(x.clone(), x.clone(), x, sequences, options).into_data()
    }
    let device = Default::default();
    Ours::seed(&device, 5);
    let (first, second) = (run::<Ours>(&x, &options), run::<Ours>(&x, &options));
    Ours::seed(&device, 5);
    assert_eq!(first, run::<Ours>(&x, &options));
    assert!(first != second, "each call drops others");
    let none = PackedAttentionOptions::default();
    assert_eq!(run::<burn_rocm::Rocm>(&x, &options), run::<burn_rocm::Rocm>(&x, &none));
}
