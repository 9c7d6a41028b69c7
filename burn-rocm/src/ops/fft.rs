//! Fourier transforms of real signals of any length. Each prime factor of the length takes one
//! launch (two factors of 2 share one), and lengths with a large prime factor use Bluestein's
//! algorithm.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use burn_backend::DType;
use hip::{Device, KernelName, Template};

use super::copy::packed;
use super::launch::rows;
use crate::arg::Arg;
use crate::error::invalid;
use crate::tensor::{RocmTensor, check_axis, float_type, one_device, one_dtype};
use crate::waiting::enqueue_own;

/// The largest prime factor that is summed directly. For larger ones Bluestein's three transforms,
/// of four to eight times the length, cost less.
const LARGEST_RADIX: usize = 61;

/// Lengths must be below this: `fft.hip` squares indices and multiplies them by eight in 64 bits.
const LONGEST: usize = 1 << 31;

/// The most entries of all cached twiddle tables together: 16 MiB of f64.
const MOST_KEPT: usize = 1 << 20;

/// Cached twiddle tables, most recently used first. Making a table takes more work than the
/// transform, because it computes the sine and cosine of every angle in f64.
static TABLES: Mutex<VecDeque<Table>> = Mutex::new(VecDeque::new());

struct Table {
    device: usize,
    dtype: DType,
    len: usize,
    entries: Complex,
}

/// Drops a device's tables.
pub(crate) fn forget_tables(device: &Device) {
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    tables.retain(|table| table.device != device.info().index);
}

/// Real and imaginary parts, each a flat tensor of the type in which the transform computes.
#[derive(Clone)]
struct Complex {
    re: RocmTensor,
    im: RocmTensor,
}

/// Lines of `len` elements along the middle axis of `[outer, len, inner]`, and the type in which
/// they are computed.
struct Lines {
    op: &'static str,
    device: Arc<Device>,
    dtype: DType,
    outer: usize,
    len: usize,
    inner: usize,
}

impl Lines {
    fn new(op: &'static str, x: &RocmTensor, axis: usize, len: usize) -> hip::Result<Self> {
        let dims = x.dims();
        if len == 0 || len >= LONGEST {
            return invalid(op, format!("a length from 1 to {}", LONGEST - 1), format!("{len}"));
        }
        let dtype = if x.dtype_of() == DType::F64 { DType::F64 } else { DType::F32 };
        let device = Arc::clone(x.hip_device());
        let (outer, inner) = (dims[..axis].iter().product(), dims[axis + 1..].iter().product());
        Ok(Self { op, device, dtype, outer, len, inner })
    }

    fn one(&self) -> Self {
        Self {
            op: self.op,
            device: Arc::clone(&self.device),
            dtype: self.dtype,
            outer: 1,
            len: self.len,
            inner: 1,
        }
    }

    fn with_len(&self, len: usize) -> Self {
        Self { len, device: Arc::clone(&self.device), ..*self }
    }

    fn complex(&self, elements: usize) -> hip::Result<Complex> {
        let part = || RocmTensor::empty(&self.device, [elements], self.dtype);
        Ok(Complex { re: part()?, im: part()? })
    }

    fn whole(&self) -> hip::Result<Complex> {
        self.complex(self.outer * self.len * self.inner)
    }

    fn launch(
        &self,
        kernel: KernelName,
        items: usize,
        dims: &[usize],
        inputs: &[&RocmTensor],
        scalars: &[Arg],
        outputs: &[&RocmTensor],
    ) -> hip::Result<()> {
        let dims: Vec<Arg> = dims.iter().map(|&dim| Arg::U64(dim as u64)).collect();
        rows(self.op, &self.device, kernel, self.device.grid(items), &dims, inputs, scalars, outputs)
    }

    /// The kernel for the type in which the transform computes.
    fn kernel(&self, name: Template) -> hip::Result<KernelName> {
        Ok(name.ty(crate::dtype::kernel_type(self.dtype)?))
    }

    /// The table of `exp(-2 pi i k / n)`, which is cached for the next transform.
    fn table(&self, n: usize) -> hip::Result<Complex> {
        // A product that a capture put off must not run with a new table, outside the graph. If it
        // fails, reads of its result report the error.
        let _ = enqueue_own();
        let device = self.device.info().index;
        let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = tables.iter().position(|t| (t.device, t.dtype, t.len) == (device, self.dtype, n));
        if let Some(table) = kept.and_then(|at| tables.remove(at)) {
            let entries = table.entries.clone();
            tables.push_front(table);
            return Ok(entries);
        }
        // The table outlives a capture in progress, so it is computed now, not when the graph runs.
        let entries = hip::uncaptured(|| {
            let entries = self.complex(n)?;
            let parts = [&entries.re, &entries.im];
            self.launch(self.kernel(Template::fft_twiddles)?, n, &[n], &[], &[], &parts)?;
            hip::Result::Ok(entries)
        })?;
        tables.push_front(Table { device, dtype: self.dtype, len: n, entries: entries.clone() });
        let mut total = 0;
        tables.retain(|table| {
            total += table.len;
            total <= MOST_KEPT
        });
        Ok(entries)
    }

    /// The transform of every line. `table` may have several entries for each element of a line.
    fn transform(&self, x: Complex, table: Option<&Complex>) -> hip::Result<Complex> {
        let radices = radices(self.len);
        if radices.last().is_some_and(|&radix| radix > LARGEST_RADIX) {
            return self.bluestein(x);
        }
        if radices.is_empty() {
            return Ok(x);
        }
        match table {
            Some(table) => self.passes(x, &radices, table),
            None => self.passes(x, &radices, &self.table(self.len)?),
        }
    }

    /// Stockham's passes, one for each radix.
    fn passes(&self, mut x: Complex, radices: &[usize], table: &Complex) -> hip::Result<Complex> {
        let mut out = self.whole()?;
        let (mut left, mut done) = (self.len, 1);
        let finer = table.re.len() / self.len;
        for &radix in radices {
            let m = left / radix;
            let stride = done * self.inner;
            let inputs = [&table.re, &table.im, &x.re, &x.im];
            let outputs = [&out.re, &out.im];
            let ty = crate::dtype::kernel_type(self.dtype)?;
            if radix <= 5 {
                let kernel = Template::fft_stage.int(radix as i32).ty(ty);
                let items = self.outer * m * stride;
                self.launch(kernel, items, &[self.outer, m, stride, done * finer], &inputs, &[], &outputs)?;
            } else {
                let kernel = Template::fft_stage_any.ty(ty);
                let items = self.outer * self.len * self.inner;
                self.launch(
                    kernel,
                    items,
                    &[self.outer, radix, m, stride, done * finer],
                    &inputs,
                    &[],
                    &outputs,
                )?;
            }
            std::mem::swap(&mut x, &mut out);
            left = m;
            done *= radix;
        }
        Ok(x)
    }

    /// The transform as a convolution, computed by transforms whose length is a power of two
    /// (Bluestein).
    fn bluestein(&self, x: Complex) -> hip::Result<Complex> {
        let (outer, len, inner) = (self.outer, self.len, self.inner);
        let padded = self.with_len((2 * len - 1).next_power_of_two());
        let (size, radices) = (padded.len, radices(padded.len));
        let (table, chirp) = (self.table(size)?, self.table(2 * len)?);

        let one = padded.one();
        let filter = one.whole()?;
        let kernel = self.kernel(Template::fft_chirp_filter)?;
        one.launch(kernel, size, &[len, size], &[&chirp.re, &chirp.im], &[], &[&filter.re, &filter.im])?;
        let filter = one.passes(filter, &radices, &table)?;

        let items = outer * size * inner;
        let wide = padded.whole()?;
        let inputs = [&chirp.re, &chirp.im, &x.re, &x.im];
        let dims = [outer, len, size, inner];
        self.launch(self.kernel(Template::fft_chirp)?, items, &dims, &inputs, &[], &[&wide.re, &wide.im])?;
        let wide = padded.passes(wide, &radices, &table)?;
        let product = padded.whole()?;
        let inputs = [&filter.re, &filter.im, &wide.re, &wide.im];
        let outputs = [&product.re, &product.im];
        let kernel = self.kernel(Template::fft_filter)?;
        self.launch(kernel, items, &[outer, size, inner], &inputs, &[], &outputs)?;
        let product = padded.passes(product, &radices, &table)?;

        let inputs = [&chirp.re, &chirp.im, &product.re, &product.im];
        let outputs = [&x.re, &x.im];
        self.launch(self.kernel(Template::fft_unchirp)?, outer * len * inner, &dims, &inputs, &[], &outputs)?;
        Ok(x)
    }

    /// The first `count` elements of each line, times `scale`, as a tensor of `shape`.
    fn store(
        &self,
        x: &RocmTensor,
        shape: &[usize],
        count: usize,
        scale: f64,
        dtype: DType,
    ) -> hip::Result<RocmTensor> {
        let out = RocmTensor::empty(&self.device, shape.to_vec(), dtype)?;
        let kernel = Template::fft_store.ty(out.kernel_type()?);
        let dims = [self.outer, self.len, self.inner, count];
        self.launch(kernel, out.len(), &dims, &[x], &[Arg::F64(scale)], &[&out])?;
        Ok(out)
    }
}

/// The radices of a length's passes, small ones first.
fn radices(mut len: usize) -> Vec<usize> {
    let mut radices = Vec::new();
    while len.is_multiple_of(4) {
        radices.push(4);
        len /= 4;
    }
    let mut factor = 2;
    while factor * factor <= len {
        while len.is_multiple_of(factor) {
            radices.push(factor);
            len /= factor;
        }
        factor += 1;
    }
    if len > 1 {
        radices.push(len);
    }
    radices
}

fn with_axis(x: &RocmTensor, axis: usize, len: usize) -> Vec<usize> {
    let mut dims = x.dims().to_vec();
    dims[axis] = len;
    dims
}

/// The `n / 2 + 1` frequency bins of the real signal along an axis. The signal is cut, or padded
/// with zeros, to `n` samples.
pub(crate) fn rfft(x: RocmTensor, axis: usize, n: Option<usize>) -> hip::Result<(RocmTensor, RocmTensor)> {
    const OP: &str = "rfft";
    check_axis(OP, &x, axis)?;
    let stored = x.dims()[axis];
    let len = n.unwrap_or(stored);
    let lines = Lines::new(OP, &x, axis, len)?;
    let (dtype, ty) = (x.dtype_of(), float_type(OP, &x)?);
    let bins = len / 2 + 1;
    let shape = with_axis(&x, axis, bins);
    if lines.outer * lines.inner == 0 {
        let empty = || RocmTensor::empty(&lines.device, shape.clone(), dtype);
        return Ok((empty()?, empty()?));
    }
    let x = packed(x)?;
    let have = len.min(stored);
    if len.is_multiple_of(2) {
        let (pairs, table) = (lines.with_len(len / 2), lines.table(len)?);
        let signal = pairs.whole()?;
        let dims = [lines.outer, pairs.len, lines.inner, stored, have];
        let kernel = Template::fft_load_pairs.ty(ty);
        pairs.launch(kernel, signal.re.len(), &dims, &[&x], &[], &[&signal.re, &signal.im])?;
        let spectrum = pairs.transform(signal, Some(&table))?;
        let (re, im) = (
            RocmTensor::empty(&lines.device, shape.clone(), dtype)?,
            RocmTensor::empty(&lines.device, shape, dtype)?,
        );
        let inputs = [&table.re, &table.im, &spectrum.re, &spectrum.im];
        let dims = [lines.outer, pairs.len, lines.inner];
        let kernel = Template::fft_unpack.ty(ty);
        pairs.launch(kernel, re.len(), &dims, &inputs, &[], &[&re, &im])?;
        return Ok((re, im));
    }
    let signal = lines.whole()?;
    let dims = [lines.outer, len, lines.inner, stored, have];
    let kernel = Template::fft_load.ty(ty);
    lines.launch(kernel, signal.re.len(), &dims, &[&x], &[], &[&signal.re, &signal.im])?;
    let spectrum = lines.transform(signal, None)?;
    let part = |part| lines.store(part, &shape, bins, 1.0, dtype);
    Ok((part(&spectrum.re)?, part(&spectrum.im)?))
}

/// The `n` samples of the real signal with these frequency bins along an axis. The bins are cut, or
/// padded with zeros, to `n / 2 + 1`. Without `n` there are `2 * (bins - 1)` samples.
pub(crate) fn irfft(
    re: RocmTensor,
    im: RocmTensor,
    axis: usize,
    n: Option<usize>,
) -> hip::Result<RocmTensor> {
    const OP: &str = "irfft";
    check_axis(OP, &re, axis)?;
    one_device(OP, &[&re, &im])?;
    let dtype = one_dtype(OP, &[&re, &im])?;
    let ty = float_type(OP, &re)?;
    if re.dims() != im.dims() {
        return invalid(
            OP,
            format!("an imaginary part of shape {:?}", re.dims()),
            format!("{:?}", im.dims()),
        );
    }
    let stored = re.dims()[axis];
    if stored == 0 {
        return invalid(OP, "at least one bin", "none");
    }
    let len = n.unwrap_or(2 * (stored - 1));
    let lines = Lines::new(OP, &re, axis, len)?;
    let shape = with_axis(&re, axis, len);
    if lines.outer * lines.inner == 0 {
        return RocmTensor::empty(&lines.device, shape, dtype);
    }
    let (re, im) = (packed(re)?, packed(im)?);
    let have = stored.min(len / 2 + 1);
    if len.is_multiple_of(2) {
        let (pairs, table) = (lines.with_len(len / 2), lines.table(len)?);
        let spectrum = pairs.whole()?;
        let dims = [lines.outer, pairs.len, lines.inner, stored, have];
        let inputs = [&table.re, &table.im, &re, &im];
        let kernel = Template::fft_pack.ty(ty);
        pairs.launch(kernel, spectrum.re.len(), &dims, &inputs, &[], &[&spectrum.re, &spectrum.im])?;
        let signal = pairs.transform(spectrum, Some(&table))?;
        let out = RocmTensor::empty(&lines.device, shape, dtype)?;
        let kernel = Template::fft_store_pairs.ty(ty);
        let scale = [Arg::F64(1.0 / pairs.len as f64)];
        let dims = [lines.outer, pairs.len, lines.inner];
        pairs.launch(kernel, signal.re.len(), &dims, &[&signal.re, &signal.im], &scale, &[&out])?;
        return Ok(out);
    }
    let spectrum = lines.whole()?;
    let dims = [lines.outer, len, lines.inner, stored, have];
    let kernel = Template::fft_load_half.ty(ty);
    lines.launch(kernel, spectrum.re.len(), &dims, &[&re, &im], &[], &[&spectrum.re, &spectrum.im])?;
    let signal = lines.transform(spectrum, None)?;
    lines.store(&signal.re, &shape, len, 1.0 / len as f64, dtype)
}

#[cfg(test)]
mod tests {
    use super::radices;

    #[test]
    fn radices_multiply_to_the_length() {
        for len in 1..2000 {
            let radices = radices(len);
            assert_eq!(radices.iter().product::<usize>(), len);
            assert!(radices.iter().all(|&radix| radix > 1));
        }
        assert_eq!(radices(1000), [4, 2, 5, 5, 5]);
        assert_eq!(radices(2 * 1009), [2, 1009]);
    }
}
