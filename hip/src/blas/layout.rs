//! Translates strided matrices to rocBLAS's operands: transposes, leading dimensions, batches.

use crate::{Error, Result};

/// A batch of matrices, sizes and strides in elements: a `MatrixView` without its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Strided {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) row_stride: usize,
    pub(crate) col_stride: usize,
    pub(crate) batch_stride: usize,
}

/// How rocBLAS reads a matrix: column-major with this leading dimension, then transposed or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operand {
    pub(crate) transpose: bool,
    pub(crate) ld: i32,
    pub(crate) batch_stride: i64,
}

/// A product `a x b = c` in rocBLAS's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Whether the caller's b is rocBLAS's first operand: c is row-major, so rocBLAS computes its
    /// transpose.
    pub(crate) swap: bool,
    pub(crate) m: i32,
    pub(crate) n: i32,
    pub(crate) k: i32,
    pub(crate) batch: i32,
    /// rocBLAS's first operand, m x k.
    pub(crate) first: Operand,
    /// rocBLAS's second operand, k x n.
    pub(crate) second: Operand,
    pub(crate) ldc: i32,
    pub(crate) stride_c: i64,
}

impl Strided {
    fn transposed(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            batch_stride: self.batch_stride,
        }
    }

    /// How rocBLAS can read this matrix; `None` if neither stride is 1 or if rows overlap.
    ///
    /// The stride of a dimension of size 1 does not matter, but rocBLAS always requires
    /// `ld >= max(1, rows)`.
    pub(crate) fn operand(self) -> Option<Operand> {
        if self.rows == 0 || self.cols == 0 {
            let ld = i32::try_from(self.rows.max(1)).ok()?;
            return Some(Operand { transpose: false, ld, batch_stride: 0 });
        }
        let plain = leading_dimension(self.rows, self.cols, self.row_stride, self.col_stride);
        let turned = leading_dimension(self.cols, self.rows, self.col_stride, self.row_stride);
        // rocBLAS reads a single row as one transposed column, not as columns of one element each.
        let (ld, transpose) = match (plain, turned) {
            (Some(_), Some(ld)) if self.rows == 1 => (ld, true),
            (Some(ld), _) => (ld, false),
            (None, Some(ld)) => (ld, true),
            (None, None) => return None,
        };
        Some(Operand {
            transpose,
            ld: i32::try_from(ld).ok()?,
            batch_stride: i64::try_from(self.batch_stride).ok()?,
        })
    }

    /// The number of elements that the whole batch spans, from its first to its last; `None` on
    /// overflow.
    pub(crate) fn extent(self, batch: usize) -> Option<usize> {
        if batch == 0 || self.rows == 0 || self.cols == 0 {
            return Some(0);
        }
        let rows = (self.rows - 1).checked_mul(self.row_stride)?;
        let cols = (self.cols - 1).checked_mul(self.col_stride)?;
        let batches = (batch - 1).checked_mul(self.batch_stride)?;
        rows.checked_add(cols)?.checked_add(batches)?.checked_add(1)
    }
}

/// The leading dimension of a matrix if it is stored by columns of `inner` elements; `None` if it
/// is not.
fn leading_dimension(inner: usize, outer: usize, inner_stride: usize, outer_stride: usize) -> Option<usize> {
    let ld = if outer <= 1 { inner.max(1) } else { outer_stride };
    ((inner <= 1 || inner_stride == 1) && ld >= inner.max(1)).then_some(ld)
}

/// How rocBLAS computes `c = a x b`. Neither `batch` nor a dimension of `c` may be 0, but the inner
/// dimension may.
pub(crate) fn plan(batch: usize, a: Strided, b: Strided, c: Strided) -> Result<Plan> {
    if a.rows != c.rows || b.cols != c.cols || a.cols != b.rows {
        return Err(Error::Invalid {
            op: "gemm",
            expected: format!("a {} x k and a k x {} matrix", c.rows, c.cols),
            found: format!("{} x {} and {} x {}", a.rows, a.cols, b.rows, b.cols),
        });
    }
    let out = |c: Strided| {
        let ld = leading_dimension(c.rows, c.cols, c.row_stride, c.col_stride)?;
        i32::try_from(ld).ok()
    };
    let (swap, ldc) = match (out(c.transposed()), out(c)) {
        (Some(ld), _) => (true, ld),
        (None, Some(ld)) => (false, ld),
        (None, None) => return Err(not_a_matrix("c", c)),
    };
    let size = |what: &str, size: usize| {
        i32::try_from(size).map_err(|_| Error::Invalid {
            op: "gemm",
            expected: format!("{what} of at most {}", i32::MAX),
            found: size.to_string(),
        })
    };
    let (rows, cols, k) =
        (size("rows", c.rows)?, size("columns", c.cols)?, size("an inner dimension", a.cols)?);
    let (first, second) = if swap { (b.transposed(), a.transposed()) } else { (a, b) };
    let named = |matrix: Strided, is_a: bool| {
        matrix.operand().ok_or_else(|| not_a_matrix(if is_a { "a" } else { "b" }, matrix))
    };
    refuse_overlaps("gemm", batch, if swap { c.transposed() } else { c }, ldc)?;
    Ok(Plan {
        swap,
        m: if swap { cols } else { rows },
        n: if swap { rows } else { cols },
        k,
        batch: size("a batch", batch)?,
        first: named(first, !swap)?,
        second: named(second, swap)?,
        ldc,
        stride_c: i64::try_from(c.batch_stride).map_err(|_| not_a_matrix("c", c))?,
    })
}

/// How rocBLAS computes `c = a + b`, three matrices of one shape that is not empty. The plan's `k`
/// is 0.
pub(crate) fn plan_sum(batch: usize, a: Strided, b: Strided, c: Strided) -> Result<Plan> {
    if (a.rows, a.cols) != (c.rows, c.cols) || (b.rows, b.cols) != (c.rows, c.cols) {
        return Err(Error::Invalid {
            op: "geam",
            expected: format!("two {} x {} matrices", c.rows, c.cols),
            found: format!("{} x {} and {} x {}", a.rows, a.cols, b.rows, b.cols),
        });
    }
    // If c is row-major, its transpose is column-major, so the plan transposes all three matrices.
    let turn = leading_dimension(c.cols, c.rows, c.col_stride, c.row_stride).is_some();
    let [a, b, c] = if turn { [a.transposed(), b.transposed(), c.transposed()] } else { [a, b, c] };
    let ldc = leading_dimension(c.rows, c.cols, c.row_stride, c.col_stride)
        .and_then(|ld| i32::try_from(ld).ok())
        .ok_or_else(|| not_a_matrix("c", c))?;
    let size = |size: usize| i32::try_from(size).map_err(|_| not_a_matrix("c", c));
    refuse_overlaps("geam", batch, c, ldc)?;
    Ok(Plan {
        swap: turn,
        m: size(c.rows)?,
        n: size(c.cols)?,
        k: 0,
        batch: size(batch)?,
        first: a.operand().ok_or_else(|| not_a_matrix("a", a))?,
        second: b.operand().ok_or_else(|| not_a_matrix("b", b))?,
        ldc,
        stride_c: i64::try_from(c.batch_stride).map_err(|_| not_a_matrix("c", c))?,
    })
}

/// Returns `Invalid` unless a batch's result matrices lie one after the other, or side by side in
/// longer columns. The caller's matrices are not empty and are stored by columns with the leading
/// dimension `ld`.
///
/// With some other strides results don't overlap either, but no view of a packed tensor has them.
fn refuse_overlaps(op: &'static str, batch: usize, c: Strided, ld: i32) -> Result<()> {
    let (stride, ld) = (c.batch_stride, ld as usize);
    // Where the first matrix ends, and where the first column of the last one does.
    let matrix = (c.cols - 1).saturating_mul(ld).saturating_add(c.rows);
    let columns = (batch - 1).saturating_mul(stride).saturating_add(c.rows);
    if batch == 1 || stride >= matrix || stride >= c.rows && columns <= ld {
        return Ok(());
    }
    Err(Error::Invalid {
        op,
        expected: "memory of its own for each result of the batch".into(),
        found: format!("{} x {} matrices, leading dimension {ld}, batch stride {stride}", c.rows, c.cols),
    })
}

fn not_a_matrix(name: &str, matrix: Strided) -> Error {
    Error::Invalid {
        op: "gemm",
        expected: format!("{name} with a stride of 1 and one that is at least the other dimension"),
        found: format!(
            "{} x {} with strides {} and {}",
            matrix.rows, matrix.cols, matrix.row_stride, matrix.col_stride
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row_major(rows: usize, cols: usize) -> Strided {
        Strided { rows, cols, row_stride: cols, col_stride: 1, batch_stride: rows * cols }
    }

    fn operand(rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> Option<(bool, i32)> {
        let matrix = Strided { rows, cols, row_stride, col_stride, batch_stride: 0 };
        matrix.operand().map(|o| (o.transpose, o.ld))
    }

    #[test]
    fn operands() {
        for (rows, cols, row_stride, col_stride, expected) in [
            (3, 4, 1, 3, Some((false, 3))),
            (3, 4, 1, 7, Some((false, 7))),
            (3, 4, 4, 1, Some((true, 4))),
            (3, 4, 9, 1, Some((true, 9))),
            // One column: whatever its stride says, ld covers the rows.
            (3, 1, 1, 0, Some((false, 3))),
            (3, 1, 1, 1, Some((false, 3))),
            // One strided column is a transposed row with a leading dimension.
            (3, 1, 5, 1, Some((true, 5))),
            // One row.
            (1, 4, 0, 1, Some((true, 4))),
            (1, 4, 4, 1, Some((true, 4))),
            (1, 4, 1, 6, Some((false, 6))),
            (1, 1, 0, 0, Some((true, 1))),
            // Inner dimension 0.
            (3, 0, 0, 1, Some((false, 3))),
            (0, 4, 4, 1, Some((false, 1))),
            // Not matrices to rocBLAS: no stride of 1, expanded, overlapping.
            (3, 4, 8, 2, None),
            (3, 4, 0, 1, None),
            (3, 4, 2, 1, None),
            (3, 4, 1, 0, None),
        ] {
            assert_eq!(
                operand(rows, cols, row_stride, col_stride),
                expected,
                "{rows} x {cols}, {row_stride}, {col_stride}"
            );
        }
    }

    #[test]
    fn row_major_result_swaps_the_operands() {
        let plan = plan(1, row_major(2, 3), row_major(3, 5), row_major(2, 5)).unwrap();
        assert!(plan.swap);
        assert_eq!((plan.m, plan.n, plan.k, plan.ldc), (5, 2, 3, 5));
        assert_eq!((plan.first.transpose, plan.first.ld), (false, 5));
        assert_eq!((plan.second.transpose, plan.second.ld), (false, 3));
    }

    #[test]
    fn column_major_result_does_not() {
        let c = Strided { rows: 2, cols: 5, row_stride: 1, col_stride: 2, batch_stride: 0 };
        let plan = plan(1, row_major(2, 3), row_major(3, 5), c).unwrap();
        assert!(!plan.swap);
        assert_eq!((plan.m, plan.n, plan.k, plan.ldc), (2, 5, 3, 2));
        assert!(plan.first.transpose && plan.second.transpose);
    }

    #[test]
    fn a_shared_matrix_has_batch_stride_0() {
        let shared = Strided { batch_stride: 0, ..row_major(3, 5) };
        let gaps = Strided { batch_stride: 7, ..row_major(2, 3) };
        let plan = plan(4, gaps, shared, row_major(2, 5)).unwrap();
        assert_eq!((plan.m, plan.n, plan.k, plan.batch), (5, 2, 3, 4));
        assert_eq!((plan.first.batch_stride, plan.second.batch_stride, plan.stride_c), (0, 7, 10));
    }

    #[test]
    fn one_shared_first_matrix() {
        // Row vectors times a batch: c's columns are not stacked, so this stays a batch with stride
        // 0.
        let shared = Strided { batch_stride: 0, ..row_major(2, 3) };
        let plan = plan(4, shared, row_major(3, 5), row_major(2, 5)).unwrap();
        assert_eq!((plan.batch, plan.second.batch_stride), (4, 0));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let huge = Strided { rows: 1 << 31, cols: 1, row_stride: 1, col_stride: 1, batch_stride: 0 };
        assert!(plan(1, huge, row_major(1, 1), huge).is_err());
        assert!(plan(1, row_major(2, 3), row_major(4, 5), row_major(2, 5)).is_err());
        let c = Strided { batch_stride: 0, ..row_major(2, 5) };
        assert!(plan(2, row_major(2, 3), row_major(3, 5), c).is_err());
    }

    #[test]
    fn results_of_a_batch_have_memory_of_their_own() {
        for (batch, [rows, cols], row_stride, batch_stride, apart) in [
            // One after the other, without and with gaps.
            (3, [4, 5], 5, 20, true),
            (3, [4, 5], 8, 29, true),
            (3, [4, 5], 8, 28, false),
            (3, [4, 5], 5, 19, false),
            (3, [4, 5], 5, 1, false),
            (3, [4, 5], 5, 0, false),
            // Heads in the rows of a tensor, also with gaps.
            (3, [4, 5], 15, 5, true),
            (3, [4, 5], 40, 7, true),
            (3, [4, 5], 14, 5, false),
            (3, [4, 5], 15, 4, false),
            // One row: its stride does not matter.
            (3, [1, 5], 0, 5, true),
            (3, [1, 5], 99, 4, false),
            // Columns of one element.
            (3, [4, 1], 3, 1, true),
            (3, [4, 1], 2, 1, false),
            (1, [4, 5], 5, 0, true),
        ] {
            let c = Strided { rows, cols, row_stride, col_stride: 1, batch_stride };
            let what = format!("{batch} of {c:?}");
            assert_eq!(plan(batch, row_major(rows, 2), row_major(2, cols), c).is_ok(), apart, "{what}");
            let operand = row_major(rows, cols);
            assert_eq!(plan_sum(batch, operand, operand, c).is_ok(), apart, "{what}");
            let operand = operand.transposed();
            assert_eq!(plan_sum(batch, operand, operand, c.transposed()).is_ok(), apart, "{what}, turned");
        }
    }

    #[test]
    fn extents() {
        assert_eq!(row_major(2, 3).extent(4), Some(24));
        assert_eq!(row_major(2, 0).extent(4), Some(0));
        assert_eq!(Strided { row_stride: usize::MAX, ..row_major(3, 3) }.extent(1), None);
    }
}
