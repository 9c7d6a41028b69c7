//! rocBLAS through `hip::Blas` against plain references, on whatever provider the process has.
#![allow(clippy::unwrap_used)] // A test may.

mod common;

use std::sync::Arc;

use common::{Tensor, close, device, output, random_tensor, read, tensor, tolerance};
use hip::{Buffer, DType, Device, Error, MatrixView};

/// The layout of a matrix in memory.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Order {
    Rows,
    Columns,
    /// Row-major with a gap of 3 after each row, and 5 elements before the first.
    Padded,
}

/// A batch of matrices: strides, offset, and the number of elements in memory.
#[derive(Debug, Clone, Copy)]
struct Shape {
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
    batch_stride: usize,
    offset: usize,
    elements: usize,
}

impl Shape {
    fn new(order: Order, batch: usize, rows: usize, cols: usize, shared: bool) -> Self {
        let (row_stride, col_stride, one, offset) = match order {
            Order::Rows => (cols, 1, rows * cols, 0),
            Order::Columns => (1, rows, rows * cols, 0),
            Order::Padded => (cols + 3, 1, rows * (cols + 3), 5),
        };
        let batch_stride = if shared { 0 } else { one };
        let elements = offset + if shared { one } else { batch * one };
        Self { rows, cols, row_stride, col_stride, batch_stride, offset, elements }
    }

    fn view<'a>(&self, buffer: &'a Buffer) -> MatrixView<'a> {
        MatrixView {
            buffer,
            offset: self.offset,
            rows: self.rows,
            cols: self.cols,
            row_stride: self.row_stride,
            col_stride: self.col_stride,
            batch_stride: self.batch_stride,
        }
    }

    fn at(&self, batch: usize, row: usize, col: usize) -> usize {
        self.offset + batch * self.batch_stride + row * self.row_stride + col * self.col_stride
    }
}

struct Case {
    dtype: DType,
    batch: usize,
    size: (usize, usize, usize),
    orders: [Order; 3],
    shared: (bool, bool),
    scalars: (f64, f64),
}

fn gemm(device: &Arc<Device>, case: &Case) {
    let Case { dtype, batch, size: (m, n, k), orders, shared, scalars: (alpha, beta) } = *case;
    let out = if dtype == DType::I8 { DType::I32 } else { dtype };
    let a_shape = Shape::new(orders[0], batch, m, k, shared.0);
    let b_shape = Shape::new(orders[1], batch, k, n, shared.1);
    let c_shape = Shape::new(orders[2], batch, m, n, false);
    let a = random_tensor(device, 1, dtype, a_shape.elements.max(1));
    let b = random_tensor(device, 2, dtype, b_shape.elements.max(1));
    let c = random_tensor(device, 3, out, c_shape.elements);
    device
        .blas()
        .expect("rocBLAS")
        .gemm(
            dtype,
            batch,
            a_shape.view(&a.buffer),
            b_shape.view(&b.buffer),
            c_shape.view(&c.buffer),
            alpha,
            beta,
            false,
        )
        .expect("a product");
    let mut want = c.values.clone();
    for i in 0..batch {
        for row in 0..m {
            for col in 0..n {
                let sum: f64 =
                    (0..k).map(|j| a.values[a_shape.at(i, row, j)] * b.values[b_shape.at(i, j, col)]).sum();
                let c = &mut want[c_shape.at(i, row, col)];
                *c = alpha * sum + if beta == 0.0 { 0.0 } else { beta * *c };
            }
        }
    }
    let got = read(device, &c.buffer, out, c_shape.elements);
    let name = format!("{dtype:?} {batch} x {m} x {n} x {k} {orders:?} shared {shared:?} {alpha} {beta}");
    close(&name, &got, &want, tolerance(out));
}

const PLAIN: Case = Case {
    dtype: DType::F32,
    batch: 1,
    size: (0, 0, 0),
    orders: [Order::Rows; 3],
    shared: (false, false),
    scalars: (1.0, 0.0),
};

#[test]
fn transposes_and_dtypes() {
    let device = device();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I8] {
        for a in [Order::Rows, Order::Columns, Order::Padded] {
            for b in [Order::Rows, Order::Columns, Order::Padded] {
                for c in [Order::Rows, Order::Columns, Order::Padded] {
                    gemm(&device, &Case { dtype, size: (12, 20, 16), orders: [a, b, c], ..PLAIN });
                }
            }
        }
    }
}

#[test]
fn sizes() {
    let device = device();
    for dtype in [DType::F32, DType::F16] {
        for size in [
            (1, 1, 1),
            (3, 4, 5),
            (1, 40, 7),
            (40, 1, 7),
            (1, 1, 300),
            (5, 6, 1),
            (17, 33, 9),
            (64, 64, 64),
            (65, 127, 129),
        ] {
            for order in [Order::Rows, Order::Columns, Order::Padded] {
                gemm(&device, &Case { dtype, size, orders: [order, order, Order::Rows], ..PLAIN });
            }
        }
    }
}

#[test]
fn batches() {
    let device = device();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I8] {
        for shared in [(false, false), (true, false), (false, true), (true, true)] {
            for orders in [
                [Order::Rows; 3],
                [Order::Columns, Order::Rows, Order::Rows],
                [Order::Rows, Order::Columns, Order::Padded],
                [Order::Padded, Order::Columns, Order::Columns],
            ] {
                gemm(&device, &Case { dtype, batch: 3, size: (4, 8, 12), orders, shared, ..PLAIN });
            }
        }
    }
    gemm(&device, &Case { batch: 5, size: (1, 6, 4), shared: (false, true), ..PLAIN });
    gemm(&device, &Case { batch: 5, size: (6, 1, 4), shared: (true, false), ..PLAIN });
    gemm(&device, &Case { batch: 70, size: (2, 2, 2), ..PLAIN });
}

#[test]
fn scalars_and_empty_sums() {
    let device = device();
    for scalars in [(2.0, 0.0), (1.0, 1.0), (-0.5, 0.25), (0.0, 2.0)] {
        gemm(&device, &Case { size: (7, 9, 5), scalars, ..PLAIN });
        gemm(&device, &Case { dtype: DType::F16, size: (8, 8, 8), scalars, ..PLAIN });
    }
    gemm(&device, &Case { dtype: DType::I8, size: (8, 8, 8), scalars: (2.0, 3.0), ..PLAIN });
    for dtype in [DType::F32, DType::F16, DType::F64] {
        gemm(&device, &Case { dtype, size: (3, 4, 0), ..PLAIN });
        gemm(&device, &Case { dtype, batch: 2, size: (3, 4, 0), scalars: (1.0, 0.5), ..PLAIN });
    }
    // Nothing to compute.
    gemm(&device, &Case { size: (0, 4, 3), ..PLAIN });
    gemm(&device, &Case { size: (4, 0, 3), ..PLAIN });
    gemm(&device, &Case { batch: 0, size: (4, 4, 3), ..PLAIN });
}

/// As heads of attention in the rows of one tensor.
#[test]
fn results_may_lie_side_by_side() {
    let device = device();
    let (heads, m, n, k) = (3, 4, 5, 6);
    let [a_shape, b_shape] = [(m, k), (k, n)].map(|(r, c)| Shape::new(Order::Rows, heads, r, c, false));
    let packed = Shape::new(Order::Rows, heads, m, n, false);
    let c_shape = Shape { row_stride: heads * n, batch_stride: n, ..packed };
    let a = random_tensor(&device, 1, DType::F32, a_shape.elements);
    let b = random_tensor(&device, 2, DType::F32, b_shape.elements);
    let c = output(&device, DType::F32, c_shape.elements);
    let (x, y) = (a_shape.view(&a.buffer), b_shape.view(&b.buffer));
    device.blas().unwrap().gemm(DType::F32, heads, x, y, c_shape.view(&c), 1.0, 0.0, false).unwrap();
    let mut want = vec![0.0; c_shape.elements];
    for (head, row, col) in (0..heads * m * n).map(|at| (at / (m * n), at / n % m, at % n)) {
        let terms = (0..k).map(|j| a.values[a_shape.at(head, row, j)] * b.values[b_shape.at(head, j, col)]);
        want[c_shape.at(head, row, col)] = terms.sum::<f64>();
    }
    close("heads", &read(&device, &c, DType::F32, c_shape.elements), &want, tolerance(DType::F32));
}

#[test]
fn nan_in_the_result_is_not_read_when_beta_is_0() {
    let device = device();
    let (a, b) = (random_tensor(&device, 1, DType::F32, 16), random_tensor(&device, 2, DType::F32, 16));
    let c = output(&device, DType::F32, 16);
    let shape = Shape::new(Order::Rows, 1, 4, 4, false);
    let (a, b) = (shape.view(&a.buffer), shape.view(&b.buffer));
    device.blas().unwrap().gemm(DType::F32, 1, a, b, shape.view(&c), 1.0, 0.0, false).unwrap();
    assert!(read(&device, &c, DType::F32, 16).iter().all(|v| v.is_finite()));
}

#[test]
fn sums_and_transposes() {
    let device = device();
    for dtype in [DType::F32, DType::F64] {
        for orders in [
            [Order::Rows, Order::Rows, Order::Rows],
            [Order::Columns, Order::Rows, Order::Rows],
            [Order::Rows, Order::Columns, Order::Columns],
            [Order::Padded, Order::Columns, Order::Padded],
        ] {
            let [a_shape, b_shape, c_shape] = orders.map(|order| Shape::new(order, 2, 5, 7, false));
            let a = random_tensor(&device, 1, dtype, a_shape.elements);
            let b = random_tensor(&device, 2, dtype, b_shape.elements);
            let c = random_tensor(&device, 3, dtype, c_shape.elements);
            let views = (a_shape.view(&a.buffer), b_shape.view(&b.buffer), c_shape.view(&c.buffer));
            device.blas().unwrap().geam(dtype, 2, 2.0, views.0, -0.5, views.1, views.2).unwrap();
            let mut want = c.values.clone();
            for i in 0..2 {
                for row in 0..5 {
                    for col in 0..7 {
                        want[c_shape.at(i, row, col)] =
                            2.0 * a.values[a_shape.at(i, row, col)] - 0.5 * b.values[b_shape.at(i, row, col)];
                    }
                }
            }
            close(&format!("{orders:?}"), &read(&device, &c.buffer, dtype, c_shape.elements), &want, 1e-6);
        }
    }
}

#[test]
fn bad_input_is_refused_and_the_next_product_works() {
    let device = device();
    let blas = device.blas().unwrap();
    let Tensor { buffer, .. } = tensor(&device, DType::F32, &[0.0; 64]);
    let other = output(&device, DType::F32, 64);
    let view = |buffer, rows, cols, row_stride, col_stride, offset| MatrixView {
        buffer,
        offset,
        rows,
        cols,
        row_stride,
        col_stride,
        batch_stride: 0,
    };
    let square = view(&buffer, 4, 4, 4, 1, 0);
    for (what, a, c) in [
        ("inner dimensions", view(&buffer, 4, 5, 5, 1, 0), view(&other, 4, 4, 4, 1, 0)),
        ("no stride of 1", view(&buffer, 4, 4, 8, 2, 0), view(&other, 4, 4, 4, 1, 0)),
        ("expanded", view(&buffer, 4, 4, 0, 1, 0), view(&other, 4, 4, 4, 1, 0)),
        ("past the end of a", view(&buffer, 4, 4, 4, 1, 49), view(&other, 4, 4, 4, 1, 0)),
        ("past the end of c", square, view(&other, 4, 4, 21, 1, 0)),
        ("overflow", view(&buffer, 4, 4, usize::MAX / 2, 1, 0), view(&other, 4, 4, 4, 1, 0)),
        ("c over a", square, view(&buffer, 4, 4, 4, 1, 8)),
    ] {
        match blas.gemm(DType::F32, 1, a, square, c, 1.0, 0.0, false) {
            Err(Error::Invalid { op: "gemm", .. }) => {}
            other => panic!("{what}: {other:?}"),
        }
    }
    // Results of a batch that share elements.
    let batch = |matrix, batch_stride| MatrixView { batch_stride, ..matrix };
    let operand = batch(square, 16);
    for stride in [0, 1, 15] {
        let c = batch(view(&other, 4, 4, 4, 1, 0), stride);
        let product = blas.gemm(DType::F32, 2, operand, operand, c, 1.0, 0.0, false);
        assert!(matches!(product, Err(Error::Invalid { op: "gemm", .. })), "{stride}: {product:?}");
        let sum = blas.geam(DType::F32, 2, 1.0, operand, 1.0, operand, c);
        assert!(matches!(sum, Err(Error::Invalid { op: "geam", .. })), "{stride}: {sum:?}");
    }
    let result = blas.gemm(DType::I64, 1, square, square, view(&other, 4, 4, 4, 1, 0), 1.0, 0.0, false);
    assert!(matches!(result, Err(Error::Unsupported { op: "gemm", .. })), "{result:?}");
    gemm(&device, &Case { size: (8, 8, 8), ..PLAIN });
}

#[test]
fn threads_share_the_handle() {
    let device = device();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for size in [(16, 8, 4), (5, 6, 7), (33, 2, 9)] {
                    gemm(&device, &Case { size, ..PLAIN });
                }
            });
        }
    });
}
