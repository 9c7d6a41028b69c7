//! Matrices on the device and in f64, and what a right result may be.

use burn_backend::TensorData;
use burn_rocm_tests::*;
use hip::MatrixView;

/// Values of a dtype, as bytes and in f64.
fn encoded(values: Vec<f32>, dtype: DType) -> (Vec<u8>, Vec<f64>) {
    let count = values.len();
    let data = TensorData::new(values, [count]).convert_dtype(dtype);
    (data.as_bytes().to_vec(), data.iter::<f64>().collect())
}

fn decoded(bytes: Vec<u8>, dtype: DType) -> Vec<f64> {
    let count = bytes.len() / dtype.size();
    TensorData::from_bytes_vec(bytes, [count], dtype).iter::<f64>().collect()
}

/// A matrix on the device, whose rows or columns (if it is turned) have gaps between them.
pub(crate) struct Matrix {
    pub(crate) buffer: hip::Buffer,
    values: Vec<f64>,
    rows: usize,
    cols: usize,
    strides: [usize; 2],
}

/// Elements in front of each matrix, which keep it aligned.
pub(crate) const BEFORE: usize = 64;

impl Matrix {
    pub(crate) fn new(
        random: &Random,
        dtype: DType,
        [rows, cols]: [usize; 2],
        turned: bool,
        gap: usize,
    ) -> Self {
        let strides = if turned { [1, rows + gap] } else { [cols + gap, 1] };
        let count = BEFORE + (rows - 1) * strides[0] + (cols - 1) * strides[1] + 1;
        let (bytes, values) = encoded((0..count).map(|_| random.uniform(-1.0, 1.0) as f32).collect(), dtype);
        Self { buffer: hip::Device::get(0).unwrap().upload(&bytes).unwrap(), values, rows, cols, strides }
    }

    pub(crate) fn at(&self, row: usize, col: usize) -> f64 {
        self.values[BEFORE + row * self.strides[0] + col * self.strides[1]]
    }

    pub(crate) fn view(&self) -> MatrixView<'_> {
        MatrixView {
            buffer: &self.buffer,
            offset: BEFORE,
            rows: self.rows,
            cols: self.cols,
            row_stride: self.strides[0],
            col_stride: self.strides[1],
            batch_stride: 0,
        }
    }

    /// What the device has now: the elements, without those before and after, which must not have
    /// changed.
    pub(crate) fn read(&self, dtype: DType) -> Vec<f64> {
        let mut bytes = vec![0; self.buffer.len()];
        hip::Device::get(0).unwrap().read(&self.buffer, 0, &mut bytes).unwrap();
        let all = decoded(bytes, dtype);
        assert_eq!(all[..BEFORE], self.values[..BEFORE], "what lies before a result was written");
        all[BEFORE..].to_vec()
    }
}

const FACTOR: f64 = 0.797_884_560_802_865_4;
const CUBIC: f64 = 0.044_715;

pub(crate) fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + (FACTOR * (x + CUBIC * x.powi(3))).tanh())
}

/// GELU's derivative, and how far a tanh that is off by a share of 2^-11 takes it.
pub(crate) fn slope(x: f64) -> (f64, f64) {
    let tanh = (FACTOR * (x + CUBIC * x.powi(3))).tanh();
    let inner = 0.5 * x * FACTOR * (1.0 + 3.0 * CUBIC * x * x);
    let off = 2f64.powi(-11) * (0.5 + 2.0 * tanh * tanh * inner.abs());
    (0.5 * (1.0 + tanh) + inner * (1.0 - tanh * tanh), off)
}

/// Compares what was found with a result in f64; `off` is how far a right one may be from it before
/// it is rounded. `Err` says what was found.
fn near(expected: f64, off: f64, found: f64, dtype: DType, what: impl Fn() -> String) -> Result<(), String> {
    let off = off + limits::unit(dtype) * (expected.abs() + off) + limits::least(dtype);
    let is_near = (found - expected).abs() <= off;
    let text = || {
        format!("{}: {found}, expected {expected}, off by {:e}, allowed {off:e}", what(), found - expected)
    };
    if is_near { Ok(()) } else { Err(text()) }
}

/// [`near`], or a panic.
pub(crate) fn assert_near(expected: f64, off: f64, found: f64, dtype: DType, what: impl Fn() -> String) {
    near(expected, off, found, dtype, what).unwrap();
}

/// Results that are not near what was expected, each with its text.
#[derive(Default)]
pub(crate) struct Misses {
    checked: usize,
    texts: Vec<String>,
}

impl Misses {
    pub(crate) fn check(
        &mut self,
        expected: f64,
        off: f64,
        found: f64,
        dtype: DType,
        what: impl Fn() -> String,
    ) {
        self.checked += 1;
        self.texts.extend(near(expected, off, found, dtype, what).err());
    }

    pub(crate) fn assert_none(&self, what: &str) {
        let first = self.texts.iter().take(8).map(String::as_str).collect::<Vec<_>>().join("\n");
        let (missed, all) = (self.texts.len(), self.checked);
        assert!(missed == 0, "{what}: {missed} of {all} results are too far off:\n{first}");
    }
}
