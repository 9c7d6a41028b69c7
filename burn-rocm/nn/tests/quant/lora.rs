//! Adapters of quantised weights against f64, within a derived bound: the output, and the gradients
//! of the input and of both matrices of the adapter.

use burn::backend::Autodiff;
use burn::module::Param;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};
use burn_rocm::fused::QuantWeight;
use burn_rocm::{Rocm, RocmDevice};
use burn_rocm_nn::language::lora::{LoraConfig, LoraLayer, Targets};
use burn_rocm_nn::language::quant::QuantLinear;
use burn_rocm_tests::Random;
use burn_rocm_tests::limits::{growth, least, unit};
use burn_rocm_tests::lockstep::{fewer, in_lockstep};

use crate::products::Bound;
use crate::weights::{Drawn, every};

type Ours = Autodiff<Rocm>;

/// A matrix in f64, and the same on the device.
struct Operand {
    columns: usize,
    values: Vec<f64>,
    data: TensorData,
}

impl Operand {
    fn drawn(random: &Random, [rows, columns]: [usize; 2], most: f64, dtype: DType) -> Self {
        let values = (0..rows * columns).map(|_| random.uniform(-most, most)).collect();
        let data = TensorData::new::<f64, _>(values, [rows, columns]).convert_dtype(dtype);
        Self { columns, values: data.iter::<f64>().collect(), data }
    }

    fn tensor(&self) -> Tensor<Ours, 2> {
        Tensor::from_data(self.data.clone(), (&RocmDevice::default(), self.data.dtype))
    }
}

/// A sum of products in f64, and the sum of the products' magnitudes.
type Sums = Vec<[f64; 2]>;

/// The product of matrices, each as its elements and a function of row and column.
fn product(
    [rows, inner, columns]: [usize; 3],
    left: impl Fn(usize, usize) -> [f64; 2],
    right: impl Fn(usize, usize) -> [f64; 2],
) -> Sums {
    let element = |row: usize, column: usize| {
        let mut sum = [0.0; 2];
        for at in 0..inner {
            let (left, right) = (left(row, at), right(at, column));
            sum[0] += left[0] * right[0];
            sum[1] += left[1] * right[1];
        }
        sum
    };
    (0..rows)
        .flat_map(|row| (0..columns).map(move |column| (row, column)))
        .map(|(r, c)| element(r, c))
        .collect()
}

fn hold<B: Backend>(name: &str, found: Tensor<B, 2>, expected: &Sums, limit: impl Fn(usize) -> f64) {
    let found: Vec<f64> = found.into_data().iter::<f64>().collect();
    assert_eq!(found.len(), expected.len(), "{name}");
    for (at, (found, [expected, _])) in found.into_iter().zip(expected).enumerate() {
        let limit = limit(at);
        assert!((found - expected).abs() <= limit, "{name}[{at}]: {found}, not {expected} within {limit:e}");
    }
}

/// The limit of a layer's part plus an adapter's, `base` and `added` with their magnitudes. The
/// adapter's part is off by `share` of its magnitude; it is rounded to the dtype and added.
fn of_sum(dtype: DType, base: f64, base_limit: f64, added: [f64; 2], share: f64) -> f64 {
    let u = unit(dtype);
    let apart = share * added[1] + least(dtype);
    let cast = u * (added[0].abs() + apart);
    let errors = base_limit + apart + cast;
    errors + u * ((base + added[0]).abs() + errors)
}

/// An adapter's matrices and sums are f32. A sum of n products is off by `growth(n)`; two products
/// follow each other, and the scale is rounded once and multiplies once.
fn adapter_is_right(random: &Random, drawn: &Drawn, rows: usize, dtype: DType, biased: bool) {
    let [outs, inputs] = drawn.parts.shape();
    let largest = drawn.magnitudes.iter().copied().fold(0.0, f64::max);
    if dtype == DType::F16 && largest * 2.0 * outs.max(inputs) as f64 > 50000.0 {
        return; // f16 can't hold the results
    }
    let rank = 1 + random.below(5);
    let operand = |shape, most, dtype| Operand::drawn(random, shape, most, dtype);
    let (x, grad) = (operand([rows, inputs], 2.0, dtype), operand([rows, outs], 2.0, dtype));
    let [a, b] = [[inputs, rank], [rank, outs]].map(|shape| operand(shape, 0.5, DType::F32));
    let bias = operand([1, outs], 2.0, dtype);

    let weight = QuantWeight::upload(&drawn.parts, &RocmDevice::default()).unwrap();
    let bias_tensor = biased.then(|| bias.tensor().squeeze_dim::<1>(0));
    let base = QuantLinear::new::<Ours>(weight, bias_tensor).unwrap();
    let alpha = random.uniform(0.5, 8.0);
    let lora = LoraConfig { alpha, ..LoraConfig::new(rank, Targets::All) }.build().unwrap();
    let mut layer: LoraLayer<Ours, QuantLinear> = lora.adapt("layer", base);
    let adapter = layer.adapter.as_mut().expect("an adapter");
    (adapter.a, adapter.b) = (Param::from_tensor(a.tensor()), Param::from_tensor(b.tensor()));
    let scale = alpha / rank as f64;
    let input = x.tensor().require_grad();
    let output = layer.forward(input.clone());
    assert_eq!(output.dtype(), dtype);
    let grads = (output.clone() * grad.tensor()).sum().backward();

    let both = |x: f64| [x, x.abs()];
    let element =
        |operand: &Operand, row: usize, column: usize| both(operand.values[row * operand.columns + column]);
    let weight = |out: usize, input: usize| {
        let at = out * inputs + input;
        [drawn.values[at], drawn.magnitudes[at]]
    };
    let scaled = |sums: Sums| -> Sums { sums.iter().map(|sum| sum.map(|x| scale * x)).collect() };
    // `scale x A`, `[rows, rank]`, and `scale grad B^T`.
    let narrow = scaled(product([rows, inputs, rank], |r, i| element(&x, r, i), |i, k| element(&a, i, k)));
    let back = scaled(product([rows, outs, rank], |r, o| element(&grad, r, o), |o, k| element(&b, k, o)));
    let name = format!("{} by {rows} rows of {dtype:?}, rank {rank}, bias {biased}", drawn.name);
    let f32s = |terms: usize| growth(terms, DType::F32);
    let u = unit(DType::F32);

    let base = product([rows, inputs, outs], |r, i| element(&x, r, i), |i, o| weight(o, i));
    let added = product([rows, rank, outs], |r, k| narrow[r * rank + k], |k, o| element(&b, k, o));
    let floats = rows > 16;
    let bound = Bound { dtype, terms: inputs, rounds_weights: floats, biased: biased && floats };
    let of_bias = |at: usize| if biased { bias.values[at % outs] } else { 0.0 };
    let whole: Sums = (0..rows * outs).map(|at| [base[at][0] + of_bias(at) + added[at][0], 0.0]).collect();
    hold(&format!("{name}, output"), output, &whole, |at| {
        let limit = bound.of(base[at][0], of_bias(at), base[at][1]);
        of_sum(
            dtype,
            base[at][0] + of_bias(at),
            limit,
            added[at],
            1.01 * (f32s(inputs) + f32s(rank) + 2.0 * u),
        )
    });

    let base = product([rows, outs, inputs], |r, o| element(&grad, r, o), weight);
    let added = product([rows, rank, inputs], |r, k| back[r * rank + k], |k, i| element(&a, i, k));
    let bound = Bound { dtype, terms: outs, rounds_weights: true, biased: false };
    let whole: Sums = base.iter().zip(&added).map(|(base, added)| [base[0] + added[0], 0.0]).collect();
    hold(&format!("{name}, gradient of x"), input.grad(&grads).unwrap(), &whole, |at| {
        let limit = bound.of(base[at][0], 0.0, base[at][1]);
        of_sum(dtype, base[at][0], limit, added[at], 1.01 * (f32s(outs) + f32s(rank) + 2.0 * u))
    });

    let adapter = layer.adapter.as_ref().expect("an adapter");
    let of_a = product([inputs, rows, rank], |i, r| element(&x, r, i), |r, k| back[r * rank + k]);
    let share = 1.01 * (f32s(outs) + f32s(rows) + 2.0 * u);
    hold(&format!("{name}, gradient of A"), adapter.a.val().grad(&grads).unwrap(), &of_a, |at| {
        share * of_a[at][1]
    });
    let of_b = product([rank, rows, outs], |k, r| narrow[r * rank + k], |r, o| element(&grad, r, o));
    let share = 1.01 * (f32s(inputs) + f32s(rows) + 2.0 * u);
    hold(&format!("{name}, gradient of B"), adapter.b.val().grad(&grads).unwrap(), &of_b, |at| {
        share * of_b[at][1]
    });
}

#[test]
fn adapters_are_within_the_bound() {
    let random = Random::new();
    let rows = [1, 2, 5, 16, 17, 33];
    for drawn in fewer(every(&random), 3, &random) {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for _ in 0..if in_lockstep() { 1 } else { 2 } {
                let rows = rows[random.below(rows.len())];
                adapter_is_right(&random, &drawn, rows, dtype, random.below(2) == 0);
            }
        }
    }
}
