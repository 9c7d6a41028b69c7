//! Quantised tensors: quantisation, reads, layouts, selections, products.
//!
//! Where `burn-flex` quantises blocks again and this backend moves views, the reference is the
//! float op on the dequantised operand.

use crate::draw::{ANY, Draw, Range, Side, TAME};
use crate::run::{Bound::*, table};
use burn_backend::TensorPrimitive;
use burn_backend::quantization::{
    QuantLevel, QuantParam, QuantScheme, QuantStore, QuantValue, QuantizationParametersPrimitive,
    QuantizedBytes,
};
use burn_backend::tensor::{FloatTensor, QuantizedTensor};
use burn_rocm_tests::limits::{self, Terms};
use burn_rocm_tests::*;
use burn_std::{bf16, f16};

const MOST: usize = 1500;
const VALUES: [QuantValue; 6] =
    [QuantValue::Q8S, QuantValue::Q8F, QuantValue::Q4S, QuantValue::Q4F, QuantValue::Q2S, QuantValue::Q2F];

/// A random scheme for a tensor of `shape`, from the number `knob`.
fn scheme(knob: usize, shape: &[usize]) -> QuantScheme {
    let count: usize = shape.iter().product();
    // The tensor has whole blocks of any fitting length. The oracle does not support zero blocks.
    let lengths: Vec<usize> = (1..=count.min(255)).filter(|&n| count.is_multiple_of(n)).collect();
    let level = match (knob / 12 % 3, lengths.is_empty()) {
        (0, _) | (_, true) => QuantLevel::Tensor,
        (kind, _) => {
            let length = lengths[knob / 36 % lengths.len()];
            let rows =
                [2, 3, 5].into_iter().find(|rows| kind == 2 && length.is_multiple_of(*rows)).unwrap_or(1);
            match rows {
                1 => QuantLevel::block([length as u8]),
                _ => QuantLevel::block([rows as u8, (length / rows) as u8]),
            }
        }
    };
    let store = [QuantStore::Native, QuantStore::PackedU32(0)][knob / 6 % 2];
    QuantScheme::default().with_value(VALUES[knob % 6]).with_store(store).with_level(level)
}

/// The case's scheme for its first operand.
fn own_scheme(d: &Draw, shape: &[usize]) -> QuantScheme {
    scheme(d.knobs[11] + 1000 * d.knobs[10], shape)
}

/// Operand `k`, quantised with scales from its own range.
fn quantized<B: Backend>(c: &Side<'_, B>, k: usize, shape: &[usize]) -> QuantizedTensor<B> {
    B::quantize_dynamic(c.float(k, shape, TAME), &own_scheme(c.d, shape))
}

/// The stored values and their scales.
fn parts<B: Backend>(tensor: QuantizedTensor<B>) -> Vec<TensorData> {
    let data = burn_std::future::block_on(B::q_into_data(tensor)).expect("the data can be read");
    let DType::QFloat(scheme) = data.dtype else { panic!("quantised data, not {:?}", data.dtype) };
    let (shape, num_elements) = (data.shape.clone(), data.num_elements());
    let (values, params) = QuantizedBytes { bytes: data.into_bytes(), scheme, num_elements }.into_vec_i8();
    let scales = params.scales.len();
    vec![TensorData::new(values, shape), TensorData::new(params.scales, [scales])]
}

fn floats<B: Backend>(tensor: QuantizedTensor<B>) -> FloatTensor<B> {
    B::dequantize(tensor, FloatDType::F32)
}

fn read<B: Backend>(tensor: QuantizedTensor<B>) -> TensorData {
    read_float::<B>(floats::<B>(tensor))
}

/// A view: one number selects it, another one its arguments.
#[derive(Clone, Copy)]
struct Step(usize, usize);

/// The views of a case.
fn steps(d: &Draw, most: usize) -> Vec<Step> {
    (0..1 + d.knob(0, most)).map(|n| Step(d.knobs[1 + 2 * n], d.knobs[2 + 2 * n])).collect()
}

impl Step {
    fn axes(self, rank: usize) -> Vec<usize> {
        let mut axes: Vec<usize> = (0..rank).collect();
        axes.rotate_left(self.1 % rank);
        if self.1 / 7 % 2 == 1 {
            axes.swap(0, rank - 1);
        }
        axes
    }

    fn slices(self, shape: &[usize]) -> Vec<Slice> {
        let along = |(axis, &n): (usize, &usize)| {
            let knob = self.1 / (axis + 1);
            let start = if n == 0 { 0 } else { knob % n };
            let end = if knob.is_multiple_of(5) { n } else { (start + 1 + knob / 3 % 4).min(n) };
            Slice::new(start as isize, Some(end as isize), [1, 1, 2, -1, -2][knob / 11 % 5])
        };
        shape.iter().enumerate().map(along).collect()
    }

    fn expanded(self, shape: &[usize]) -> Vec<usize> {
        let mut to = shape.to_vec();
        if to.len() < 5 && to.iter().product::<usize>() < 600 {
            to.insert(0, 1 + self.1 % 3);
        }
        to
    }
}

macro_rules! viewed {
    (
        $name:ident, $tensor:ident,
        $swap:ident, $permute:ident, $flip:ident, $slice:ident, $expand:ident, $transpose:ident
    ) => {
        fn $name<B: Backend>(tensor: $tensor<B>, steps: &[Step]) -> $tensor<B> {
            steps.iter().fold(tensor, |t, step| {
                let shape = t.shape().to_vec();
                let rank = shape.len();
                match step.0 % 7 {
                    0 => B::$swap(t, step.1 % rank, step.1 / 7 % rank),
                    1 => B::$permute(t, &step.axes(rank)),
                    2 => B::$flip(t, &step.axes(rank)[..step.1 / 13 % (rank + 1)]),
                    3 | 4 => B::$slice(t, &step.slices(&shape)),
                    5 => B::$expand(t, Shape::from(step.expanded(&shape))),
                    _ if rank > 1 => B::$transpose(t),
                    _ => t,
                }
            })
        }
    };
}
viewed!(viewed, QuantizedTensor, q_swap_dims, q_permute, q_flip, q_slice, q_expand, q_transpose);
viewed!(
    viewed_floats,
    FloatTensor,
    float_swap_dims,
    float_permute,
    float_flip,
    float_slice,
    float_expand,
    float_transpose
);

/// The two correct results of storing values again: the values themselves or, in blocks, the values
/// quantised again with the range of their new neighbours. The values stay if whole blocks move. A
/// limit of half a step would be too wide: a two-bit value of one and a half steps is stored as one
/// step, and twice that is off by half a step too.
fn anew<B: Backend>(expected: FloatTensor<B>, scheme: &QuantScheme) -> Vec<TensorData> {
    let kept = read_float::<B>(expected.clone());
    let again = match scheme.level {
        QuantLevel::Tensor => kept.clone(),
        QuantLevel::Block(_) => read::<B>(B::quantize_dynamic(expected, scheme)),
    };
    vec![kept, again]
}

/// Whether a tensor of this shape has a whole number of the scheme's blocks, at least one.
fn whole(shape: &[usize], scheme: &QuantScheme) -> bool {
    let count: usize = shape.iter().product();
    match scheme.level {
        QuantLevel::Tensor => true,
        QuantLevel::Block(block) => count > 0 && count.is_multiple_of(block.num_elements()),
    }
}

/// An axis that has elements, and the operand's shape.
fn indexed(d: &Draw) -> (Vec<usize>, usize) {
    let mut shape = d.shape(MOST);
    let dim = d.axis(&shape);
    shape[dim] = shape[dim].max(1);
    (shape, dim)
}

/// `[.., m, k]` and `[.., k, n]`.
fn factors(d: &Draw) -> [Vec<usize>; 2] {
    let batch: Vec<usize> = (0..d.knob(0, 3)).map(|n| 1 + d.knob(1 + n, 3)).collect();
    let (m, k, n) = (1 + d.knob(3, 70), d.knob(4, 90), 1 + d.knob(5, 70));
    [0, 1].map(|side| {
        let mut shape = d.narrowed(side, &batch);
        shape.extend([[m, k], [k, n]][side]);
        shape
    })
}

/// The range of a factor's values.
const FACTOR: Range = Range { low: -2.0, high: 2.0, wildest: 1, nan: true };

/// A factor: floats, or quantised values, stored directly or with its matrices transposed. The
/// oracle quantises blocks again to transpose them, so it gets the dequantised values.
fn factor<B: Backend>(c: &Side<'_, B>, side: usize, shape: &[usize], float: bool) -> TensorPrimitive<B> {
    if float {
        return TensorPrimitive::Float(c.float(side, shape, FACTOR));
    }
    let (mut stored, rank) = (shape.to_vec(), shape.len());
    let knob = c.d.knobs[8 + side] + 1000 * c.d.knobs[10 + side];
    let turned = knob / 5 % 3 == 1;
    if turned {
        stored.swap(rank - 1, rank - 2);
    }
    let q = B::quantize_dynamic(c.float(side, &stored, FACTOR), &scheme(knob, &stored));
    if c.oracle() {
        let values = B::dequantize(q, FloatDType::F64);
        return TensorPrimitive::Float(if turned { B::float_transpose(values) } else { values });
    }
    TensorPrimitive::QFloat(if turned { B::q_transpose(q) } else { q })
}

/// The scale types that the oracle keeps in f32.
const PARAMS: [QuantParam; 4] = [QuantParam::F16, QuantParam::BF16, QuantParam::UE8M0, QuantParam::UE4M3];

/// A scale rounded to its type: the divisor of the values in a block.
fn rounded(scale: f32, param: QuantParam) -> f32 {
    match param {
        QuantParam::F16 => f16::from_f32(scale).to_f32().clamp(2f32.powi(-24), 65504.0),
        QuantParam::BF16 => bf16::from_f32(scale).to_f32(),
        // The next power of two, so nothing is clipped.
        QuantParam::UE8M0 => {
            (-126..=127).map(|e| 2f32.powi(e)).find(|&p| p >= scale).expect("scales are small")
        }
        // Three bits of mantissa down to 2^-6, then steps of 2^-9; ties to even.
        _ => {
            let exponent = (scale.log2().floor() as i32).clamp(-6, 8);
            let step = 2f32.powi(exponent - 3);
            ((scale / step).round_ties_even() * step).clamp(2f32.powi(-9), 448.0)
        }
    }
}

table! { |c, B|
    // By the definition, computed on the host.
    quantize_in_params, Exact => {
        let shape = c.d.shape(MOST);
        let param = PARAMS[c.d.knob(1, 4)];
        let scheme = own_scheme(c.d, &shape).with_param(param);
        let x = c.float(0, &shape, TAME);
        if !c.oracle() {
            return parts::<B>(B::quantize_dynamic(x, &scheme));
        }
        let x: Vec<f32> = read_float::<B>(x).iter::<f32>().collect();
        let (low, high) = scheme.value.range();
        let length = match scheme.level {
            QuantLevel::Tensor => x.len().max(1),
            QuantLevel::Block(block) => block.num_elements(),
        };
        let (mut values, mut scales) = (Vec::new(), Vec::new());
        let whole: &[f32] = &[];
        let blocks: Vec<&[f32]> = if x.is_empty() { vec![whole] } else { x.chunks(length).collect() };
        for block in blocks {
            let most = block.iter().fold(0f32, |most, x| most.max(x.abs()));
            let scale = rounded((2.0 * most / (high - low)).max(f32::MIN_POSITIVE), param);
            values.extend(block.iter().map(|x| (x * (1.0 / scale)).round().clamp(low, high) as i8));
            scales.push(scale);
        }
        let count = scales.len();
        vec![TensorData::new(values, Shape::from(shape)), TensorData::new(scales, [count])]
    };
    quantize_dynamic, Exact => {
        let shape = c.d.shape(MOST);
        let q = B::quantize_dynamic(c.float(0, &shape, ANY), &own_scheme(c.d, &shape));
        let to = [FloatDType::F32, FloatDType::F64, FloatDType::F16, FloatDType::BF16][c.d.knob(1, 4)];
        let mut results = parts::<B>(q.clone());
        results.push(read_float::<B>(B::dequantize(q, to)));
        results
    };
    quantize, Exact => {
        let shape = c.d.shape(MOST);
        let scheme = own_scheme(c.d, &shape);
        let count = match scheme.level {
            QuantLevel::Tensor => 1,
            QuantLevel::Block(block) => shape.iter().product::<usize>() / block.num_elements(),
        };
        // Scales that clip some values. With whole numbers, some scales are invalid.
        let scales = c.float(1, &[count], Range { low: 0.0, high: 0.8, wildest: 2, nan: true });
        let q = B::quantize(c.float(0, &shape, ANY), &scheme, QuantizationParametersPrimitive { scales });
        let mut results = parts::<B>(q.clone());
        results.push(read::<B>(q));
        results
    };
    q_from_data, Exact => {
        let shape = c.d.shape(MOST);
        let data = burn_std::future::block_on(B::q_into_data(quantized(c, 0, &shape))).expect("the data can be read");
        let back = B::q_from_data(data, &c.device);
        let mut results = vec![read::<B>(back.clone())];
        results.extend(parts::<B>(back));
        results
    };
    q_views, Exact => {
        let q = quantized(c, 0, &c.d.shape(MOST));
        let steps = steps(c.d, 4);
        let before = q.clone();
        let out = match c.oracle() {
            true => read_float::<B>(viewed_floats::<B>(floats::<B>(q), &steps)),
            false => read::<B>(viewed::<B>(q, &steps)),
        };
        vec![out, read::<B>(before)]
    };
    // Views, read as data.
    q_into_data, Either => {
        let shape = c.d.shape(MOST);
        let (q, steps, scheme) = (quantized(c, 0, &shape), steps(c.d, 2), own_scheme(c.d, &shape));
        let expected = viewed_floats::<B>(floats::<B>(q.clone()), &steps);
        if !whole(&expected.shape().to_vec(), &scheme) {
            return Vec::new();
        }
        match c.oracle() {
            true => anew::<B>(expected, &scheme),
            false => {
                let data = burn_std::future::block_on(B::q_into_data(viewed::<B>(q, &steps)));
                let data = data.expect("the data can be read");
                vec![read::<B>(B::q_from_data(data, &c.device))]
            }
        }
    };
    q_reshape, Either => {
        let shape = c.d.shape(MOST);
        let (q, steps, scheme) = (quantized(c, 0, &shape), steps(c.d, 2), own_scheme(c.d, &shape));
        let expected = viewed_floats::<B>(floats::<B>(q.clone()), &steps);
        if !whole(&expected.shape().to_vec(), &scheme) {
            return Vec::new();
        }
        let to = Shape::from(vec![expected.shape().num_elements()]);
        match c.oracle() {
            true => anew::<B>(B::float_reshape(expected, to), &scheme),
            false => vec![read::<B>(B::q_reshape(viewed::<B>(q, &steps), to))],
        }
    };
    q_repeat_dim, Either => {
        let shape = c.d.shape(MOST / 3);
        let (dim, times) = (c.d.axis(&shape), 1 + c.d.knob(1, 3));
        let q = quantized(c, 0, &shape);
        match c.oracle() {
            true => anew::<B>(B::float_repeat_dim(floats::<B>(q), dim, times), &own_scheme(c.d, &shape)),
            false => vec![read::<B>(B::q_repeat_dim(q, dim, times))],
        }
    };
    q_select, Either => {
        let (shape, dim) = indexed(c.d);
        let scheme = own_scheme(c.d, &shape);
        let mut taken = shape.clone();
        taken[dim] = c.d.knob(1, 20);
        if !whole(&taken, &scheme) {
            return Vec::new();
        }
        let (q, indices) = (quantized(c, 0, &shape), c.indices(1, &[taken[dim]], shape[dim]));
        match c.oracle() {
            true => anew::<B>(B::float_select(floats::<B>(q), dim, indices), &scheme),
            false => vec![read::<B>(B::q_select(q, dim, indices))],
        }
    };
    q_gather, Either => {
        let (shape, dim) = indexed(c.d);
        let scheme = own_scheme(c.d, &shape);
        let mut taken = shape.clone();
        taken[dim] = c.d.knob(1, 9);
        if !whole(&taken, &scheme) {
            return Vec::new();
        }
        let (q, indices) = (quantized(c, 0, &shape), c.indices(1, &taken, shape[dim]));
        match c.oracle() {
            true => anew::<B>(B::float_gather(dim, floats::<B>(q), indices), &scheme),
            false => vec![read::<B>(B::q_gather(dim, q, indices))],
        }
    };
    // The oracle's indices of extremes compare bytes across scales, so its float op is the
    // reference.
    q_argmax_argmin, Exact => {
        let (shape, dim) = indexed(c.d);
        let q = quantized(c, 0, &shape);
        let out = IntDType::I32;
        match c.oracle() {
            true => {
                let x = floats::<B>(q);
                vec![read_int::<B>(B::float_argmax(x.clone(), dim, out)), read_int::<B>(B::float_argmin(x, dim, out))]
            }
            false => vec![read_int::<B>(B::q_argmax(q.clone(), dim, out)), read_int::<B>(B::q_argmin(q, dim, out))],
        }
    };
    q_matmul, Within => {
        let [left, right] = factors(c.d);
        let kinds = [(false, false), (true, false), (false, true)][c.d.knob(6, 3)];
        let (a, b) = (factor(c, 0, &left, kinds.0), factor(c, 1, &right, kinds.1));
        let dtype = if kinds == (false, false) { DType::F32 } else { c.d.float_type() };
        if !c.oracle() {
            let TensorPrimitive::Float(out) = B::q_matmul(a, b) else { panic!("the product is of floats") };
            assert_eq!(out.dtype(), dtype);
            return vec![read_float::<B>(out)];
        }
        let exact = [a, b].map(|t| match t {
            TensorPrimitive::Float(t) => B::float_cast(t, FloatDType::F64),
            TensorPrimitive::QFloat(t) => B::dequantize(t, FloatDType::F64),
        });
        let product = |[a, b]: [FloatTensor<B>; 2]| read_float::<B>(B::float_matmul(a, b));
        let (reference, magnitude) = (product(exact.clone()), product(exact.map(B::float_abs)));
        // Scales times values, and f64 floats, are rounded to f32, as if there were more terms.
        let terms = Terms { wide: DType::F32, ..Terms::of(left[left.len() - 1] + 4, dtype) };
        let limits = limits::sums(&reference, &magnitude, terms);
        vec![reference, limits]
    };
}
