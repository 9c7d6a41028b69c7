//! Linear layers with what is around them in a decoder, against f64 within a derived bound.

use burn::tensor::{DType, Tensor, TensorData, TensorPrimitive};
use burn_rocm::fused::{
    Gate, Projected, Projection, ProjectionWeight, QUANT_ROWS, QuantWeight, projection, upload,
};
use burn_rocm::{Rocm, RocmDevice, RocmError, RocmTensor};
use burn_rocm_tests::limits::{least, unit};
use burn_rocm_tests::lockstep::{fewer, in_lockstep};
use burn_rocm_tests::trace::during;
use burn_rocm_tests::{Random, read_float};

use crate::weights::{Drawn, Zeros, compressed, every};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
const GATES: [Gate; 3] = [Gate::Silu, Gate::Gelu, Gate::GeluTanh];
const EPSILON: f64 = 1e-3;
/// The kernels that compute a projection in one launch.
const KERNELS: [&str; 3] = ["kernel row_product", "kernel few_codes", "kernel qweight_product"];

/// A tensor on the host, as rounded, and on the device.
struct Both {
    host: Vec<f64>,
    device: RocmTensor,
}

fn drawn(random: &Random, shape: &[usize], [low, high]: [f64; 2], dtype: DType) -> Both {
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| random.uniform(low, high)).collect();
    let data = TensorData::new(values, shape).convert_dtype(dtype);
    Both { host: data.iter::<f64>().collect(), device: upload(data, dtype, &RocmDevice::default()).unwrap() }
}

fn read(tensor: RocmTensor) -> Vec<f64> {
    read_float::<Rocm>(tensor).iter::<f64>().collect()
}

fn float(tensor: RocmTensor) -> Tensor<Rocm, 2> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

/// A weight `[outs, inputs]` with its values, and the magnitudes of which they are made.
struct Weight {
    name: String,
    shape: [usize; 2],
    values: Vec<f64>,
    magnitudes: Vec<f64>,
    stored: Stored,
}

#[allow(clippy::large_enum_variant, reason = "one exists at a time")]
enum Stored {
    Floats(RocmTensor),
    Codes(QuantWeight),
}

impl Weight {
    fn floats(random: &Random, shape: [usize; 2], dtype: DType) -> Self {
        let Both { host, device } = drawn(random, &shape, [-1.0, 1.0], dtype);
        let magnitudes = host.iter().map(|x| x.abs()).collect();
        let name = format!("floats {shape:?}");
        Self { name, shape, values: host, magnitudes, stored: Stored::Floats(device) }
    }

    fn codes(Drawn { name, parts, values, magnitudes, .. }: Drawn) -> Self {
        let stored = Stored::Codes(QuantWeight::upload(&parts, &RocmDevice::default()).unwrap());
        Self { name, shape: parts.shape(), values, magnitudes, stored }
    }

    fn given(&self) -> ProjectionWeight<'_> {
        match &self.stored {
            Stored::Floats(weight) => ProjectionWeight::Floats(weight),
            Stored::Codes(weight) => ProjectionWeight::Quantised(weight),
        }
    }

    /// Whether a kernel computes the projection in one launch.
    fn is_one_launch(&self, rows: usize) -> bool {
        match self.stored {
            Stored::Floats(_) => rows == 1 && self.shape[1].is_multiple_of(8),
            Stored::Codes(_) => rows <= QUANT_ROWS,
        }
    }

    fn largest(&self) -> f64 {
        self.magnitudes.iter().copied().fold(0.0, f64::max)
    }
}

/// A number and the most that it may be off.
#[derive(Clone, Copy, Debug)]
struct Near {
    value: f64,
    off: f64,
}

/// The activation. Each is at most `|z|` and has a slope of at most 1.13.
fn activation(gate: Gate, z: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match gate {
        Gate::Silu => z * sigmoid(z),
        Gate::Gelu => z * phi(z),
        Gate::GeluTanh => z * sigmoid(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (z + 0.044715 * z.powi(3))),
    }
}

/// The normal distribution: by the Taylor series of erf, whose terms end below 2^-50; from 5 on, 1 or 0
/// within 3e-7.
fn phi(z: f64) -> f64 {
    let x = z * std::f64::consts::FRAC_1_SQRT_2;
    if z.abs() > 5.0 {
        return if z > 0.0 { 1.0 } else { 0.0 };
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..120 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    0.5 + sum / std::f64::consts::PI.sqrt()
}

/// How far a call may be off.
struct Bound {
    dtype: DType,
    /// Whether it is one launch: numbers between the parts are f32.
    one: bool,
    /// Whether weights are rounded to the dtype: quantised ones of many rows.
    rounds_weights: bool,
    terms: usize,
    /// The relative error of each input.
    input: f64,
}

impl Bound {
    /// A product and bias. A sum in f32 of n terms in any order is off by (n + 2) r of the sum of their
    /// magnitudes, with r the roundoff of f32. Each term has six more roundings (`products.rs`), and
    /// then come the root and the bias. In several launches the product and the sum with the bias
    /// are rounded to the dtype. 1.02: for products of errors, which are at most 4 2^-8.
    fn product(&self, value: f64, magnitude: f64, bias: f64) -> Near {
        let (u, r) = (unit(self.dtype), unit(DType::F32));
        let weights = if self.rounds_weights { u } else { 0.0 };
        let share = 1.02 * (self.input + weights + (self.terms as f64 + 12.0) * r);
        let mut off = share * (magnitude + bias.abs()) + least(self.dtype) * (1.0 + 2.0 * self.terms as f64);
        if !self.one {
            off += 2.02 * u * (value.abs() + bias.abs() + off);
        }
        Near { value: value + bias, off }
    }

    /// An activation of one product times another. The activation's own error: an exponential and a
    /// few operations, of which the argument's roundings are at most 5 r times 0.37 (the greatest of
    /// x exp(-x)); for GELU 8 r (`gate.rs`) and 3e-7 of `phi`, and for stored halves 2^-15.4
    /// (`normal.h`).
    fn gated(&self, gate: Gate, z: Near, up: Near) -> Near {
        let act = activation(gate, z.value);
        let own = 16.0 * unit(DType::F32) + if gate == Gate::Gelu { 2f64.powi(-15) } else { 0.0 };
        let act_off = 1.13 * z.off + own * (z.value.abs() + z.off);
        let mut off = act_off * (up.value.abs() + up.off) + act.abs() * up.off;
        off += 4.0 * unit(DType::F32) * (act * up.value).abs();
        let value = act * up.value;
        Near { value, off: if self.one { off } else { self.rounded(value, off) } }
    }

    fn rounded(&self, value: f64, off: f64) -> f64 {
        off + 1.01 * unit(self.dtype) * (value.abs() + off) + least(self.dtype)
    }
}

fn assert_near(what: &str, dtype: DType, found: &[f64], expected: &[Near]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (&found, near)) in found.iter().zip(expected).enumerate() {
        let Near { value, off } = *near;
        assert!((found - value).abs() <= off, "{what} {dtype:?} at {at}: {found}, not {value} within {off}");
    }
}

/// The product of rows with a weight, of rows whose elements have errors.
fn products(bound: &Bound, x: &[f64], weight: &Weight, bias: Option<&[f64]>) -> Vec<Near> {
    let [outs, inputs] = weight.shape;
    let mut all = Vec::new();
    for row in x.chunks(inputs) {
        for out in 0..outs {
            let of = out * inputs..(out + 1) * inputs;
            let value = row.iter().zip(&weight.values[of.clone()]).map(|(x, w)| x * w).sum();
            let magnitude = row.iter().zip(&weight.magnitudes[of]).map(|(x, w)| x.abs() * w).sum();
            all.push(bound.product(value, magnitude, bias.map_or(0.0, |bias| bias[out])));
        }
    }
    all
}

/// How many calls ran as intended.
#[derive(Default)]
struct Count {
    compared: usize,
    gated: usize,
    scaled: usize,
    /// Products of one or two rows with codes, behind a norm that is divided between two launches.
    roots_of_few: usize,
}

/// Runs a projection. The last result: whether one launch computed it.
fn run(x: Projected, weight: &Weight, options: Projection) -> (RocmTensor, Option<Projected>, bool) {
    let (result, lines) = during(|| projection(x, weight.given(), options));
    let launched = |line: &String| KERNELS.iter().any(|kernel| line.contains(kernel));
    let by_kernel = lines.iter().filter(|line| launched(line)).count();
    let (out, normed) = result.unwrap();
    assert!(by_kernel < 2, "{lines:#?}");
    (out, normed, by_kernel == 1)
}

/// A projection and the one that takes its norm. Everything but the weight is drawn.
fn pair_is_right(random: &Random, first: &Weight, rows: usize, dtype: DType, count: &mut Count) {
    let [outs, inputs] = first.shape;
    let yes = || random.below(2) == 0;
    let gate = (outs % 2 == 0 && yes()).then(|| GATES[random.below(3)]);
    let width = if gate.is_some() { outs / 2 } else { outs };
    let x = drawn(random, &[rows, inputs], [-1.0, 1.0], dtype);
    let bias = yes().then(|| drawn(random, &[outs], [-1.0, 1.0], dtype));
    let residual = yes().then(|| drawn(random, &[rows, width], [-1.0, 1.0], dtype));
    // The squares' sum is an f32, and f16 holds results below 60000.
    let sum = 2.0 + first.largest() * inputs as f64;
    let most = 2.0 + if gate.is_some() { sum * sum } else { sum };
    if dtype == DType::F16 && most > 60000.0 {
        return;
    }
    let factor_type = if random.below(3) == 0 { dtype } else { DType::F32 };
    let factor =
        (most < 1e15 && random.below(4) > 0).then(|| drawn(random, &[width], [0.5, 1.5], factor_type));
    let options = Projection {
        bias: bias.as_ref().map(|bias| bias.device.clone()),
        gate,
        residual: residual.as_ref().map(|residual| residual.device.clone()),
        norm: factor.as_ref().map(|factor| (factor.device.clone(), EPSILON)),
    };
    let what = format!(
        "{} by {rows} rows of {dtype:?}, bias {}, {gate:?}, residual {}, norm {:?}",
        first.name,
        bias.is_some(),
        residual.is_some(),
        factor.is_some().then_some(factor_type),
    );
    let (out, normed, one) = run(x.device.into(), first, options);
    assert_eq!(one, first.is_one_launch(rows), "{what}: one launch");
    let found = read(out);
    let codes = matches!(first.stored, Stored::Codes(_));
    let bound = Bound { dtype, one, rounds_weights: codes && !one, terms: inputs, input: 0.0 };
    let whole = products(&bound, &x.host, first, bias.as_ref().map(|bias| &bias.host[..]));
    let mut expected = Vec::new();
    for (row, whole) in whole.chunks(outs).enumerate() {
        for at in 0..width {
            let mut y = match gate {
                Some(gate) => bound.gated(gate, whole[at], whole[at + width]),
                None => whole[at],
            };
            if let Some(residual) = &residual {
                y.value += residual.host[row * width + at];
                y.off += unit(DType::F32) * y.value.abs();
            }
            expected.push(Near { value: y.value, off: bound.rounded(y.value, y.off) });
        }
    }
    assert_near(&what, dtype, &found, &expected);
    count.compared += 1;
    count.gated += usize::from(gate.is_some());

    let (Some(factor), Some(normed)) = (factor, normed) else { return };
    // Divided between two launches.
    let divided = one && factor_type == DType::F32 && dtype != DType::F16;
    count.scaled += usize::from(divided);
    // The norm of the rows that were found. The sum of `width` squares, all positive, is off by
    // (width + 4) r, its root by half as much. In one launch the inputs times the factor are rounded
    // to the dtype; `into_rows`, and the norm by itself, round the result as well.
    let rows_of = |found: &[f64]| -> Vec<f64> {
        let normed = found.chunks(width).flat_map(|row| {
            let mean = row.iter().map(|v| v * v).sum::<f64>() / width as f64;
            let root = (mean + EPSILON).sqrt();
            row.iter().zip(&factor.host).map(move |(v, f)| v / root * f)
        });
        normed.collect()
    };
    let input = 2.02 * unit(dtype) + (width as f64 + 16.0) * unit(DType::F32);
    let whole: Vec<Near> = rows_of(&found)
        .into_iter()
        .map(|value| Near { value, off: input * value.abs() + least(dtype) })
        .collect();
    assert_near(&format!("{what}, the norm"), dtype, &read(normed.clone().into_rows().unwrap()), &whole);

    // All rows, some, or a choice in which rows may be missing and be there twice.
    let (picked, normed): (Vec<usize>, Projected) = match random.below(3) {
        0 => ((0..rows).collect(), normed),
        1 => {
            let begin = random.below(rows);
            let count = 1 + random.below(rows - begin);
            ((begin..begin + count).collect(), normed.narrow(begin, count).unwrap())
        }
        _ => {
            let picked: Vec<usize> = (0..1 + random.below(rows + 2)).map(|_| random.below(rows)).collect();
            let indices = picked.iter().map(|&row| row as i32).collect();
            let indices = TensorData::new::<i32, _>(indices, [picked.len()]);
            let indices = upload(indices, DType::I32, &RocmDevice::default()).unwrap();
            (picked, normed.select(indices).unwrap())
        }
    };
    let shape = [1 + random.below(20), width];
    let second = match random.below(2) {
        0 => Weight::floats(random, shape, dtype),
        _ => {
            let (bits, group) = ([4, 8][random.below(2)], [None, Some(32)][random.below(2)]);
            let drawn = compressed(random, shape, bits, group, Zeros::None, DType::F16, true, yes());
            Weight::codes(drawn)
        }
    };
    let what = format!("{what}; then {} by rows {picked:?}", second.name);
    let bias = yes().then(|| drawn(random, &[second.shape[0]], [-1.0, 1.0], dtype));
    let options = Projection { bias: bias.as_ref().map(|bias| bias.device.clone()), ..Projection::default() };
    let taken: Vec<f64> =
        picked.iter().flat_map(|&row| found[row * width..(row + 1) * width].iter().copied()).collect();
    let x = rows_of(&taken);
    let greatest = x.iter().fold(0f64, |most, x| most.max(x.abs()));
    if dtype == DType::F16 && greatest * second.largest() * width as f64 > 60000.0 {
        return;
    }
    let (out, none, one) = run(normed, &second, options);
    assert!(none.is_none(), "{what}");
    assert_eq!(one, second.is_one_launch(picked.len()), "{what}: one launch");
    let codes = matches!(second.stored, Stored::Codes(_));
    let bound = Bound { dtype, one, rounds_weights: codes && !one, terms: width, input };
    let expected: Vec<Near> = products(&bound, &x, &second, bias.as_ref().map(|bias| &bias.host[..]))
        .into_iter()
        .map(|Near { value, off }| Near { value, off: bound.rounded(value, off) })
        .collect();
    assert_near(&what, dtype, &read(out), &expected);
    count.roots_of_few += usize::from(divided && codes && picked.len() <= 2);
}

const ROWS: [usize; 8] = [1, 2, 3, 4, 5, 9, 16, 17];

/// Codes of every kind, with groups, orders and rows that are no whole chunks.
#[test]
fn projections_of_codes() {
    let random = Random::new();
    let mut count = Count::default();
    for drawn in fewer(every(&random), 3, &random) {
        let weight = Weight::codes(drawn);
        for dtype in DTYPES {
            for _ in 0..if in_lockstep() { 2 } else { 6 } {
                pair_is_right(&random, &weight, ROWS[random.below(ROWS.len())], dtype, &mut count);
            }
        }
    }
    // GGUF's blocks have scales of any f16, and then results beyond f16 and squares beyond f32.
    assert!(count.compared > 20 && count.scaled > 0, "{}, {}", count.compared, count.scaled);
}

/// Floats with fewer outputs than a tile, with a tile and one more, halves of a gate that are no whole
/// half tiles, and rows that no kernel takes; inputs around a warp's step.
#[test]
fn projections_of_floats() {
    let random = Random::new();
    let mut count = Count::default();
    let inputs = [8, 16, 24, 31, 256, 264, 512, 1032, 1304, 2048, 2056, 4104];
    let shapes = [1, 2, 6, 7, 8, 9, 15, 16, 17, 18, 32, 33, 34, 50, 66, 130]
        .map(|outs| [outs, inputs[random.below(inputs.len())]]);
    for shape in fewer(shapes, 3, &random) {
        for dtype in DTYPES {
            let weight = Weight::floats(&random, shape, dtype);
            for rows in [1, 1, 1, 3] {
                pair_is_right(&random, &weight, rows, dtype, &mut count);
            }
        }
    }
    assert!(count.compared > 20 && count.gated > 0 && count.scaled > 0, "{}, {}", count.gated, count.scaled);
}

/// More outputs than blocks of the CPU device, with a gate whose halves end within a tile, and a norm
/// of more parts than a warp has lanes.
#[test]
fn many_tiles() {
    let random = Random::new();
    let mut count = Count::default();
    for dtype in [DType::F32, DType::BF16] {
        let outs = 2 * (4 * 64 + 3 + random.below(40));
        let codes =
            |bits| compressed(&random, [outs, 96], bits, Some(32), Zeros::Bytes, DType::F32, true, false);
        let weights =
            [Weight::floats(&random, [outs, 64], dtype), Weight::codes(codes(4)), Weight::codes(codes(8))];
        for weight in fewer(weights, 2, &random) {
            for rows in [1, 1 + random.below(16)] {
                pair_is_right(&random, &weight, rows, dtype, &mut count);
            }
        }
    }
    assert!(count.compared >= 4, "{}", count.compared);
}

/// A norm of so many parts that threads read more than what they read early, before one and two rows of
/// codes and of floats.
#[test]
fn norms_of_many_parts() {
    let random = Random::new();
    let mut count = Count::default();
    for _ in 0..if in_lockstep() { 16 } else { 32 } {
        let outs = [520 + random.below(40), 8200 + random.below(100)][random.below(2)];
        let weight = Weight::floats(&random, [outs, 8], DType::BF16);
        pair_is_right(&random, &weight, 1, DType::BF16, &mut count);
        let drawn = compressed(&random, [outs, 32], 4, Some(32), Zeros::None, DType::F16, true, false);
        pair_is_right(&random, &Weight::codes(drawn), 1 + random.below(2), DType::BF16, &mut count);
    }
    assert!(count.roots_of_few > 0);
}

/// Operands that lie in larger tensors: a row and a weight that begin at no multiple of 16 bytes, and
/// a weight that is transposed. The row is copied for the kernel; such weights are a library's.
#[test]
fn views() {
    let random = Random::new();
    let (inputs, outs, dtype) = (40, 9, DType::BF16);
    let x = drawn(&random, &[1, inputs + 3], [-1.0, 1.0], dtype);
    let row = float(x.device).narrow(1, 3, inputs);
    let Both { host, device } = drawn(&random, &[outs * inputs + 3, 1], [-1.0, 1.0], dtype);
    let flat = float(device);
    let begins_late = flat.clone().narrow(0, 3, outs * inputs).reshape([outs, inputs]);
    let transposed = flat.narrow(0, 0, outs * inputs).reshape([inputs, outs]).transpose();
    let across = (0..outs * inputs).map(|at| host[at % inputs * outs + at / inputs]).collect();
    for (name, view, values, packed) in [
        ("begins late", begins_late.clone(), host[3..].to_vec(), false),
        ("transposed", transposed, across, false),
        ("copied", begins_late.mul_scalar(1.0), host[3..].to_vec(), true),
    ] {
        let magnitudes = values.iter().map(|x| x.abs()).collect();
        let stored = Stored::Floats(view.into_primitive().tensor());
        let weight = Weight { name: name.into(), shape: [outs, inputs], values, magnitudes, stored };
        let row = row.clone().into_primitive().tensor();
        let (out, _, one) = run(row.into(), &weight, Projection::default());
        assert_eq!(one, packed, "{name}");
        let bound = Bound { dtype, one, rounds_weights: false, terms: inputs, input: 0.0 };
        let expected: Vec<Near> = products(&bound, &x.host[3..], &weight, None)
            .into_iter()
            .map(|Near { value, off }| Near { value, off: bound.rounded(value, off) })
            .collect();
        assert_near(name, dtype, &read(out), &expected);
    }
}

#[test]
fn no_rows() {
    let random = Random::new();
    let weight = Weight::floats(&random, [6, 8], DType::F32);
    let norm = drawn(&random, &[3], [0.5, 1.5], DType::F32).device;
    let options = || Projection {
        gate: Some(Gate::Silu),
        norm: Some((norm.clone(), EPSILON)),
        ..Projection::default()
    };
    let empty = drawn(&random, &[0, 8], [-1.0, 1.0], DType::F32).device;
    let (out, normed, one) = run(empty.into(), &weight, options());
    assert!(!one && read(out).is_empty() && read(normed.unwrap().into_rows().unwrap()).is_empty());
    let full = drawn(&random, &[1, 8], [-1.0, 1.0], DType::F32).device;
    let (_, normed, one) = run(full.into(), &weight, options());
    let none = normed.unwrap().narrow(1, 0).unwrap();
    assert!(one && read(none.clone().into_rows().unwrap()).is_empty());
    let next = Weight::floats(&random, [5, 3], DType::F32);
    assert!(read(run(none, &next, Projection::default()).0).is_empty());
}

/// Two runs give the same bits.
#[test]
fn a_projection_repeats_its_bits() {
    let random = Random::new();
    let weight = Weight::floats(&random, [70, 520], DType::BF16);
    let codes = compressed(&random, [70, 520], 4, Some(128), Zeros::Packed, DType::F16, true, false);
    for weight in [weight, Weight::codes(codes)] {
        let x = drawn(&random, &[1, 520], [-1.0, 1.0], DType::BF16).device;
        let factor = drawn(&random, &[35], [0.5, 1.5], DType::F32).device;
        let once = || {
            let norm = Some((factor.clone(), EPSILON));
            let options = Projection { gate: Some(Gate::Silu), norm, ..Projection::default() };
            let (out, normed, _) = run(x.clone().into(), &weight, options);
            [out, normed.unwrap().into_rows().unwrap()].map(read)
        };
        assert_eq!(once(), once(), "{}", weight.name);
    }
}

/// The error names what was found.
#[test]
fn what_does_not_fit_is_refused() {
    let random = Random::new();
    let of = |shape: &[usize], dtype| drawn(&random, shape, [-1.0, 1.0], dtype).device;
    let weight = Weight::floats(&random, [5, 8], DType::F32);
    let halves = Weight::floats(&random, [5, 8], DType::BF16);
    let x = || of(&[1, 8], DType::F32);
    let none = Projection::default;
    let norm = |shape: &[usize]| Some((of(shape, DType::F32), EPSILON));
    let cases = [
        ("5", x(), &weight, Projection { gate: Some(Gate::Silu), ..none() }),
        ("7", of(&[1, 7], DType::F32), &weight, none()),
        ("[8]", of(&[8], DType::F32), &weight, none()),
        ("[1, 1, 8]", of(&[1, 1, 8], DType::F32), &weight, none()),
        ("[4]", x(), &weight, Projection { bias: Some(of(&[4], DType::F32)), ..none() }),
        ("[5, 1]", x(), &weight, Projection { residual: Some(of(&[5, 1], DType::F32)), ..none() }),
        ("[1]", x(), &weight, Projection { norm: norm(&[1]), ..none() }),
        ("BF16", x(), &halves, none()),
        ("BF16", x(), &weight, Projection { bias: Some(of(&[5], DType::BF16)), ..none() }),
    ];
    for (what, x, weight, options) in cases {
        match projection(x.into(), weight.given(), options) {
            Err(RocmError::Invalid { op, found, .. }) => {
                assert_eq!(op, "projection", "{what}");
                assert!(found.to_lowercase().contains(&what.to_lowercase()), "{what}: found {found}");
            }
            other => panic!("{what}: {other:?}"),
        }
    }
    let wide = of(&[1, 8], DType::F64);
    let weight = Weight::floats(&random, [5, 8], DType::F64);
    let found = projection(wide.into(), weight.given(), none());
    assert!(matches!(found, Err(RocmError::Unsupported { .. })), "{found:?}");
}
