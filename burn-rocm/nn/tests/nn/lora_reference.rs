//! The networks of `tests/llama/lora.py` on the host: what PyTorch computed for them, and how far a
//! result may be off. Both Burns' tests compile this file.

use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};

/// A matrix, row by row; a vector is one row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) values: Vec<f64>,
}

impl Matrix {
    fn map(&self, f: impl Fn(f64) -> f64) -> Self {
        Self { values: self.values.iter().map(|&x| f(x)).collect(), ..*self }
    }

    fn with(&self, other: &Self, f: impl Fn(f64, f64) -> f64) -> Self {
        let one = other.rows == 1 && self.rows != 1;
        let at = |k: usize| if one { k % other.columns } else { k };
        let of = |(k, &x): (usize, &f64)| f(x, other.values[at(k)]);
        Self { values: self.values.iter().enumerate().map(of).collect(), ..*self }
    }

    fn plus(&self, other: &Self) -> Self {
        self.with(other, |a, b| a + b)
    }

    pub(crate) fn transposed(&self) -> Self {
        let of = |k: usize| self.values[k % self.rows * self.columns + k / self.rows];
        Self { rows: self.columns, columns: self.rows, values: (0..self.values.len()).map(of).collect() }
    }

    fn times(&self, other: &Self) -> Self {
        assert_eq!(self.columns, other.rows);
        let of = |k: usize| {
            let (row, column) = (k / other.columns, k % other.columns);
            let term = |i| self.values[row * self.columns + i] * other.values[i * other.columns + column];
            (0..self.columns).map(term).sum()
        };
        let values = (0..self.rows * other.columns).map(of).collect();
        Self { rows: self.rows, columns: other.columns, values }
    }
}

/// A network of the references.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    folder: &'static str,
    /// The most roundings that a result's error stands for, as a share of its magnitude.
    roundings: f64,
}

/// The network of float weights. To first order, with all sums added one after the other:
/// - a first layer's output is off by 10 + 3 terms and 3 more (scale, adapter, bias): 16. Its tanh
///   adds 5 ulp ("The OpenCL C Specification", section "Relative Error as ULPs"), 10 roundings: 26;
/// - the second layer: 12 + 2 + 2 more, 42, and its tanh 52; the head: 6 and its bias, 59;
/// - the loss's gradient: 3 more, 62. Through the head: 4, 66;
/// - through tanh: the slope `1 - t^2` is off by 3, and by 0.77 times the error of tanh's argument,
///   which the magnitude has as a factor of its own: 66 + 52 + 4 = 122;
/// - through the second layer: 6 + 2 + 3, 133. Through tanh: 26 + 4, 163;
/// - the gradient of the first `A`: 12 terms for `B`, 7 for the rows, and the scale: 183.
pub(crate) const FLOATS: Case = Case { folder: "lora", roundings: 183.0 };

/// The network of quantised weights, whose products have 8 roundings more
/// (`tests/quant/products.rs`), counted in the same way:
/// - the first layer's output: 70 + 8, the bias and the sum, 80; tanh, 90; the second: 40 + 8 and the
///   sum, 139; tanh, 149; the head: 33 + 8 and its bias, 191;
/// - the loss's gradient, 194; through the head: 4 + 8, 206; through tanh: 149 + 4, 359;
/// - through the second layer: 33 + 8 and the sum, 401; through tanh: 90 + 4, 495;
/// - the gradient of the first `A`: 40 terms for `B`, 20 for the rows, and the scale: 556.
pub(crate) const QUANTISED: Case = Case { folder: "qlora", roundings: 556.0 };

impl Case {
    /// The folder of the references.
    pub(crate) fn folder(self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../burn-rocm/nn/tests").join(self.folder)
    }

    /// A number that PyTorch computed, or an operand.
    pub(crate) fn reference(self, name: &str) -> Matrix {
        self.tensor("reference.safetensors", name)
    }

    /// A tensor of a file of the folder.
    pub(crate) fn tensor(self, file: &str, name: &str) -> Matrix {
        let bytes = std::fs::read(self.folder().join(file)).expect("the reference");
        let tensors = SafeTensors::deserialize(&bytes).expect("the reference");
        let view = tensors.tensor(name).expect(name);
        let values = match view.dtype() {
            Dtype::U8 => view.data().iter().map(|&byte| byte.into()).collect(),
            Dtype::F64 => {
                view.data().chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
            }
            _ => {
                let number = |b: &[u8]| f32::from_le_bytes(b.try_into().unwrap()).into();
                view.data().chunks_exact(4).map(number).collect()
            }
        };
        let (rows, columns) = match *view.shape() {
            [rows, columns] => (rows, columns),
            _ => (1, view.shape().iter().product()),
        };
        Matrix { rows, columns, values }
    }
}

/// [`FLOATS`]' folder.
pub(crate) fn folder() -> PathBuf {
    FLOATS.folder()
}

/// A number of [`FLOATS`].
pub(crate) fn reference(name: &str) -> Matrix {
    FLOATS.reference(name)
}

/// The names of the layers with adapters, their ranks, and their scales: `6 / sqrt(3)` and
/// `5 / sqrt(2)`.
pub(crate) const LAYERS: [(&str, usize, f64); 2] =
    [("blocks.0.q_proj", 3, 3.464_101_615_137_754_6), ("blocks.1.out_proj", 2, 3.535_533_905_932_737_7)];

/// A result's name, PyTorch's value, and its magnitude.
pub(crate) struct Limited {
    pub(crate) name: String,
    pub(crate) expected: Matrix,
    /// The result for operands without signs, of which [`roundings`](Case::roundings) units are the
    /// error allowed.
    pub(crate) magnitude: Matrix,
    pub(crate) roundings: f64,
}

/// The results of [`FLOATS`].
pub(crate) fn results() -> Vec<Limited> {
    FLOATS.results()
}

impl Case {
    /// The output, the loss and all gradients.
    pub(crate) fn results(self) -> Vec<Limited> {
        let adapters = LAYERS.map(|(name, ..)| {
            ["A", "B"].map(|half| {
                let name = format!("base_model.model.{name}.lora_{half}.weight");
                self.tensor("adapter_model.safetensors", &name).transposed()
            })
        });
        self.results_with(&adapters)
    }

    /// The results of PyTorch with the magnitudes for other adapters: `A` `[inputs, rank]` and `B`
    /// `[rank, outputs]` of each layer.
    pub(crate) fn results_with(self, adapters: &[[Matrix; 2]; 2]) -> Vec<Limited> {
        let abs = |name: &str| self.reference(name).map(f64::abs);
        let slope = |z: &Matrix| z.map(|z| 1.0 + 0.77 * z);
        let product = |a: &Matrix, b: &Matrix| a.with(b, |a, b| a * b);
        let adapter = |layer: usize| {
            let (name, _, scale) = LAYERS[layer];
            let [a, b] = [0, 1].map(|half: usize| adapters[layer][half].map(f64::abs));
            let weight = abs(&format!("base.{name}.weight")).transposed();
            let whole = weight.plus(&a.times(&b).map(|x| scale * x));
            (a, b, whole, scale)
        };
        let ((a1, b1, w1, s1), (a2, b2, w2, s2)) = (adapter(0), adapter(1));
        let (x, head) = (abs("x"), abs("base.head.weight").transposed());
        let z1 = x.times(&w1).plus(&abs("base.blocks.0.q_proj.bias"));
        let z2 = z1.times(&w2);
        let output = z2.times(&head).plus(&abs("base.head.bias"));
        let count = output.values.len() as f64;
        let residual = output.plus(&abs("target"));
        let loss = residual.values.iter().map(|r| r * r).sum::<f64>() / count;
        let to_output = residual.map(|r| 2.0 * r / count);
        let to_z2 = product(&to_output.times(&head.transposed()), &slope(&z2));
        let to_z1 = product(&to_z2.times(&w2.transposed()), &slope(&z1));
        let grads = |input: &Matrix, to: &Matrix, a: &Matrix, b: &Matrix, scale: f64| {
            let of_b = input.times(a).transposed().times(to).map(|g| scale * g);
            let of_a = input.transposed().times(&to.times(&b.transposed())).map(|g| scale * g);
            [of_a, of_b]
        };
        let [of_a1, of_b1] = grads(&x, &to_z1, &a1, &b1, s1);
        let [of_a2, of_b2] = grads(&z1, &to_z2, &a2, &b2, s2);
        let named = |name: &str, magnitude: Matrix, transposed: bool| {
            let expected = self.reference(name);
            let expected = if transposed { expected.transposed() } else { expected };
            Limited { name: name.to_owned(), expected, magnitude, roundings: self.roundings }
        };
        vec![
            named("output", output, false),
            named("loss", Matrix { rows: 1, columns: 1, values: vec![loss] }, false),
            named("grad.blocks.0.q_proj.lora_A", of_a1, true),
            named("grad.blocks.0.q_proj.lora_B", of_b1, true),
            named("grad.blocks.1.out_proj.lora_A", of_a2, true),
            named("grad.blocks.1.out_proj.lora_B", of_b2, true),
        ]
    }
}

/// Asserts that a result differs from PyTorch's by no more than its limit.
pub(crate) fn hold(limited: &Limited, found: &[f64], unit: f64) {
    let Limited { name, expected, magnitude, roundings } = limited;
    assert_eq!(found.len(), expected.values.len(), "{name}");
    assert_eq!(found.len(), magnitude.values.len(), "{name}");
    for (k, &found) in found.iter().enumerate() {
        // The square of the units stands for what first order leaves out.
        let limit = 1.01 * roundings * unit * magnitude.values[k];
        let error = (found - expected.values[k]).abs();
        assert!(error <= limit, "{name}[{k}]: {found}, not {}; limit {limit:e}", expected.values[k]);
    }
}
