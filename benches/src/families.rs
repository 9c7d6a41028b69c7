//! Every family of ops beside the peer: small cases, where the cost of a call shows, and large ones.
//!
//! What counts is the geometric mean of a family's ratios, held to 1.

use burn_backend::backend::ops::{
    ActivationOps, BoolTensorOps, ConvOptions, ConvTransposeOptions, FloatTensorOps, GridSampleOptions,
    IntTensorOps, InterpolateMode, InterpolateOptions, ModuleOps, UnfoldOptions,
};
use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn_backend::{Backend, DType, Distribution, Scalar, Shape, Slice};
use burn_std::{BoolDType, FloatDType, IntDType};

use crate::Options;
use crate::cases::{Ours, Peer, compare, sync};
use crate::table::Row;

const BOOL: BoolDType = BoolDType::Native;
/// The two sizes of most cases, in elements: what fits a core's caches, and 4 MiB of f32.
const SIZES: [usize; 2] = [1 << 12, 1 << 20];

/// How often a case repeats its op within one measurement: small ones until the clock's own cost vanishes.
fn times(elements: usize) -> usize {
    ((1 << 18) / elements.max(1)).clamp(1, 64)
}

fn floats<B: Backend>(device: &B::Device, dtype: DType, shape: &[usize]) -> FloatTensor<B> {
    B::float_random(Shape::from(shape.to_vec()), Distribution::Uniform(0.1, 0.9), device, dtype.into())
}

fn ints<B: Backend>(device: &B::Device, dtype: DType, shape: &[usize], below: usize) -> IntTensor<B> {
    let range = Distribution::Uniform(1.0, below as f64);
    B::int_random(Shape::from(shape.to_vec()), range, device, dtype.into())
}

fn bools<B: Backend>(device: &B::Device, shape: &[usize]) -> BoolTensor<B> {
    B::float_greater_elem(floats::<B>(device, DType::F32, shape), Scalar::Float(0.5), BOOL)
}

/// The ratios of a family's cases.
struct Family<'a> {
    name: &'static str,
    options: &'a Options,
    rows: &'a mut Vec<Row>,
    cases: Vec<(f64, f64)>,
}

impl Family<'_> {
    fn push(&mut self, case: String, times: usize, (ours, peer): (f64, f64)) {
        let (ours, peer) = (ours / times as f64, peer / times as f64);
        eprintln!("{}: {case}: {:.2}", self.name, ours / peer);
        self.cases.push((ours, peer));
        if self.options.verbose {
            let case = format!("{}: {case}", self.name);
            self.rows.push(Row { case, ours, peer: Some(peer), bar: f64::INFINITY });
        }
    }
}

impl Drop for Family<'_> {
    fn drop(&mut self) {
        let mean = |pick: fn(&(f64, f64)) -> f64| {
            (self.cases.iter().map(|case| pick(case).ln()).sum::<f64>() / self.cases.len() as f64).exp()
        };
        let case = format!("{}, {} cases", self.name, self.cases.len());
        self.rows.push(Row { case, ours: mean(|case| case.0), peer: Some(mean(|case| case.1)), bar: 1.0 });
    }
}

/// Times one body on both backends, `$times` times a measurement; the state is made beforehand.
macro_rules! case {
    ($family:expr, $times:expr, $name:expr, |$B:ident, $device:ident| $setup:expr, |$state:ident| $body:expr) => {{
        let times = $times;
        macro_rules! side {
            ($backend:ty) => {{
                type $B = $backend;
                let device: <$B as burn_backend::backend::BackendTypes>::Device = Default::default();
                let $device = &device;
                let state = $setup;
                move || {
                    for _ in 0..times {
                        let $state = &state;
                        let _ = $body;
                    }
                    sync::<$B>(&device);
                }
            }};
        }
        let figures = compare($family.options, side!(Ours), side!(Peer));
        $family.push($name.to_string(), times, figures);
    }};
}

/// Runs every family.
pub(crate) fn families(options: &Options, rows: &mut Vec<Row>) {
    macro_rules! family {
        ($name:literal, |$family:ident| $body:expr) => {
            if options.families.as_deref().is_none_or(|named| named.is_empty() || named == $name) {
                let mut family = Family { name: $name, options, rows: &mut *rows, cases: Vec::new() };
                let $family = &mut family;
                $body;
            }
        };
    }
    family!("binary", |family| binary(family));
    family!("unary", |family| unary(family));
    family!("compare", |family| comparisons(family));
    family!("cast", |family| casts(family));
    family!("layout", |family| layout(family));
    family!("mask", |family| masks(family));
    family!("reduce", |family| reductions(family));
    family!("scan", |family| scans(family));
    family!("index", |family| indices(family));
    family!("sort", |family| sorts(family));
    family!("random", |family| random(family));
    family!("softmax", |family| softmax(family));
    family!("norm", |family| norm(family));
    family!("matmul", |family| products(family));
    family!("conv", |family| convolutions(family));
    family!("pool", |family| pools(family));
    family!("interpolate", |family| interpolations(family));
    family!("fft", |family| transforms(family));
}

fn binary(family: &mut Family<'_>) {
    for n in SIZES {
        for dtype in [DType::F32, DType::F64, DType::F16] {
            case!(
                family,
                times(n),
                format!("add, mul, div {} {n}", dtype.name()),
                |B, device| [(); 2].map(|()| floats::<B>(device, dtype, &[n])),
                |s| {
                    let _ = B::float_add(s[0].clone(), s[1].clone());
                    let _ = B::float_mul(s[0].clone(), s[1].clone());
                    B::float_div(s[0].clone(), s[1].clone())
                }
            );
        }
        case!(
            family,
            times(n),
            format!("powf f32 {n}"),
            |B, device| [(); 2].map(|()| floats::<B>(device, DType::F32, &[n])),
            |s| { B::float_powf(s[0].clone(), s[1].clone()) }
        );
        for dtype in [DType::I64, DType::I32, DType::U8] {
            case!(
                family,
                times(n),
                format!("add, remainder {} {n}", dtype.name()),
                |B, device| [(); 2].map(|()| ints::<B>(device, dtype, &[n], 100)),
                |s| {
                    let _ = B::int_add(s[0].clone(), s[1].clone());
                    B::int_remainder(s[0].clone(), s[1].clone())
                }
            );
        }
        let [rows, columns] = [n / 64, 64];
        case!(
            family,
            times(n),
            format!("add of a row f32 {rows}x{columns}"),
            |B, device| {
                [
                    floats::<B>(device, DType::F32, &[rows, columns]),
                    floats::<B>(device, DType::F32, &[1, columns]),
                ]
            },
            |s| B::float_add(s[0].clone(), s[1].clone())
        );
        case!(
            family,
            times(n),
            format!("add of a transposed f32 {rows}x{columns}"),
            |B, device| {
                [
                    floats::<B>(device, DType::F32, &[rows, columns]),
                    B::float_transpose(floats::<B>(device, DType::F32, &[columns, rows])),
                ]
            },
            |s| B::float_add(s[0].clone(), s[1].clone())
        );
    }
}

fn unary(family: &mut Family<'_>) {
    macro_rules! each {
        ($n:expr, $dtype:expr, $($op:ident)*) => {$(
            case!(family, times($n), format!("{} {} {}", stringify!($op), $dtype.name(), $n), |B, device| floats::<B>(device, $dtype, &[$n]), |s| B::$op(s.clone()));
        )*};
    }
    for n in SIZES {
        each!(n, DType::F32, float_exp float_log float_tanh float_sqrt float_sin float_erf float_abs float_neg relu sigmoid gelu);
        each!(n, DType::F64, float_exp float_abs);
        each!(n, DType::BF16, float_exp relu);
        case!(
            family,
            times(n),
            format!("clamp f32 {n}"),
            |B, device| floats::<B>(device, DType::F32, &[n]),
            |s| { B::float_clamp(s.clone(), Scalar::Float(0.2), Scalar::Float(0.8)) }
        );
    }
}

fn comparisons(family: &mut Family<'_>) {
    for n in SIZES {
        case!(
            family,
            times(n),
            format!("equal, lower f32 {n}"),
            |B, device| [(); 2].map(|()| floats::<B>(device, DType::F32, &[n])),
            |s| {
                let _ = B::float_equal(s[0].clone(), s[1].clone(), BOOL);
                B::float_lower(s[0].clone(), s[1].clone(), BOOL)
            }
        );
        case!(
            family,
            times(n),
            format!("greater_elem i64 {n}"),
            |B, device| ints::<B>(device, DType::I64, &[n], 100),
            |s| { B::int_greater_elem(s.clone(), Scalar::Int(50), BOOL) }
        );
        case!(
            family,
            times(n),
            format!("and, not {n}"),
            |B, device| [(); 2].map(|()| bools::<B>(device, &[n])),
            |s| {
                let _ = B::bool_and(s[0].clone(), s[1].clone());
                B::bool_not(s[0].clone())
            }
        );
    }
}

fn casts(family: &mut Family<'_>) {
    for n in SIZES {
        case!(
            family,
            times(n),
            format!("f32 to f16 and f64 {n}"),
            |B, device| floats::<B>(device, DType::F32, &[n]),
            |s| {
                let _ = B::float_cast(s.clone(), FloatDType::F16);
                B::float_cast(s.clone(), FloatDType::F64)
            }
        );
        case!(
            family,
            times(n),
            format!("i64 to f32, f32 to i32 {n}"),
            |B, device| (ints::<B>(device, DType::I64, &[n], 100), floats::<B>(device, DType::F32, &[n])),
            |s| {
                let _ = B::int_into_float(s.0.clone(), FloatDType::F32);
                B::float_into_int(s.1.clone(), IntDType::I32)
            }
        );
        case!(family, times(n), format!("bool to f32 {n}"), |B, device| bools::<B>(device, &[n]), |s| {
            B::bool_into_float(s.clone(), FloatDType::F32)
        });
    }
}

fn layout(family: &mut Family<'_>) {
    for n in SIZES {
        let [rows, columns] = [n / 64, 64];
        case!(
            family,
            times(n),
            format!("cat f32 {n}"),
            |B, device| [(); 4].map(|()| floats::<B>(device, DType::F32, &[rows, columns / 4])),
            |s| {
                let _ = B::float_cat(s.to_vec(), 0);
                B::float_cat(s.to_vec(), 1)
            }
        );
        case!(
            family,
            times(n),
            format!("repeat_dim f32 {n}"),
            |B, device| floats::<B>(device, DType::F32, &[rows, columns / 4]),
            |s| { B::float_repeat_dim(s.clone(), 1, 4) }
        );
        case!(
            family,
            times(n),
            format!("slice_assign f32 {n}"),
            |B, device| {
                [
                    floats::<B>(device, DType::F32, &[rows, columns]),
                    floats::<B>(device, DType::F32, &[rows, columns / 2]),
                ]
            },
            |s| B::float_slice_assign(
                s[0].clone(),
                &[Slice::from(0..rows as isize), Slice::from(3..3 + columns as isize / 2)],
                s[1].clone()
            )
        );
        case!(
            family,
            times(n),
            format!("flipped, then abs f32 {n}"),
            |B, device| floats::<B>(device, DType::F32, &[rows, columns]),
            |s| { B::float_abs(B::float_flip(s.clone(), &[0, 1])) }
        );
        case!(
            family,
            times(n),
            format!("permuted, then abs f32 {n}"),
            |B, device| floats::<B>(device, DType::F32, &[rows / 8, 8, columns]),
            |s| { B::float_abs(B::float_permute(s.clone(), &[2, 0, 1])) }
        );
        case!(family, times(n), format!("zeros, full, arange {n}"), |B, device| device.clone(), |device| {
            let _ = B::float_zeros(Shape::from([n]), device, FloatDType::F32);
            let _ = B::float_full(Shape::from([n]), Scalar::Float(2.5), device, FloatDType::F32);
            B::int_arange(0..n as i64, device, IntDType::I64)
        });
    }
}

fn masks(family: &mut Family<'_>) {
    for n in SIZES {
        case!(
            family,
            times(n),
            format!("mask_where, mask_fill f32 {n}"),
            |B, device| (bools::<B>(device, &[n]), [(); 2].map(|()| floats::<B>(device, DType::F32, &[n]))),
            |s| {
                let _ = B::float_mask_where(s.1[0].clone(), s.0.clone(), s.1[1].clone());
                B::float_mask_fill(s.1[0].clone(), s.0.clone(), Scalar::Float(1.0))
            }
        );
        case!(
            family,
            times(n),
            format!("mask_fill of a row's mask f32 {n}"),
            |B, device| {
                (
                    B::bool_expand(bools::<B>(device, &[1, 64]), Shape::from([n / 64, 64])),
                    floats::<B>(device, DType::F32, &[n / 64, 64]),
                )
            },
            |s| B::float_mask_fill(s.1.clone(), s.0.clone(), Scalar::Float(1.0))
        );
    }
}

fn reductions(family: &mut Family<'_>) {
    for n in SIZES {
        let shape = [n / 64, 64];
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            case!(
                family,
                times(n),
                format!("sum, max {} {n}", dtype.name()),
                |B, device| floats::<B>(device, dtype, &shape),
                |s| {
                    let _ = B::float_sum(s.clone());
                    B::float_max(s.clone())
                }
            );
            for dim in [0, 1] {
                case!(
                    family,
                    times(n),
                    format!("sum_dim, mean_dim {dim} {} {n}", dtype.name()),
                    |B, device| floats::<B>(device, dtype, &shape),
                    |s| {
                        let _ = B::float_sum_dim(s.clone(), dim);
                        B::float_mean_dim(s.clone(), dim)
                    }
                );
                case!(
                    family,
                    times(n),
                    format!("argmax, max_dim_with_indices {dim} {} {n}", dtype.name()),
                    |B, device| floats::<B>(device, dtype, &shape),
                    |s| {
                        let _ = B::float_argmax(s.clone(), dim, IntDType::I64);
                        B::float_max_dim_with_indices(s.clone(), dim, IntDType::I64)
                    }
                );
            }
        }
        case!(
            family,
            times(n),
            format!("sum, sum_dim i64 {n}"),
            |B, device| ints::<B>(device, DType::I64, &shape, 100),
            |s| {
                let _ = B::int_sum(s.clone());
                B::int_sum_dim(s.clone(), 1)
            }
        );
        case!(family, times(n), format!("any, all {n}"), |B, device| bools::<B>(device, &shape), |s| {
            let _ = B::bool_any(s.clone());
            B::bool_all_dim(s.clone(), 1)
        });
    }
}

fn scans(family: &mut Family<'_>) {
    for n in SIZES {
        for dim in [0, 1] {
            case!(
                family,
                times(n),
                format!("cumsum, cumprod, cummax {dim} f32 {n}"),
                |B, device| floats::<B>(device, DType::F32, &[n / 64, 64]),
                |s| {
                    let _ = B::float_cumsum(s.clone(), dim);
                    let _ = B::float_cumprod(s.clone(), dim);
                    B::float_cummax(s.clone(), dim)
                }
            );
        }
        case!(
            family,
            times(n),
            format!("cumsum i64 {n}"),
            |B, device| ints::<B>(device, DType::I64, &[n], 3),
            |s| B::int_cumsum(s.clone(), 0)
        );
    }
}

fn indices(family: &mut Family<'_>) {
    for n in SIZES {
        let [rows, columns] = [n / 64, 64];
        for dim in [0, 1] {
            case!(
                family,
                times(n),
                format!("gather {dim} f32 {n}"),
                |B, device| {
                    (
                        floats::<B>(device, DType::F32, &[rows, columns]),
                        ints::<B>(device, DType::I64, &[rows, columns], [rows, columns][dim]),
                    )
                },
                |s| B::float_gather(dim, s.0.clone(), s.1.clone())
            );
            case!(
                family,
                times(n),
                format!("scatter_add {dim} f32 {n}"),
                |B, device| {
                    (
                        [(); 2].map(|()| floats::<B>(device, DType::F32, &[rows, columns])),
                        ints::<B>(device, DType::I64, &[rows, columns], [rows, columns][dim]),
                    )
                },
                |s| B::float_scatter_add(dim, s.0[0].clone(), s.1.clone(), s.0[1].clone())
            );
            case!(
                family,
                times(n),
                format!("select {dim} f32 {n}"),
                |B, device| {
                    (
                        floats::<B>(device, DType::F32, &[rows, columns]),
                        ints::<B>(device, DType::I64, &[[rows, columns][dim]], [rows, columns][dim]),
                    )
                },
                |s| B::float_select(s.0.clone(), dim, s.1.clone())
            );
            case!(
                family,
                times(n),
                format!("select_add {dim} f32 {n}"),
                |B, device| {
                    (
                        [(); 2].map(|()| floats::<B>(device, DType::F32, &[rows, columns])),
                        ints::<B>(device, DType::I64, &[[rows, columns][dim]], [rows, columns][dim]),
                    )
                },
                |s| B::float_select_add(s.0[0].clone(), dim, s.1.clone(), s.0[1].clone())
            );
        }
        case!(
            family,
            times(n),
            format!("embedding and its gradient f32 {n}"),
            |B, device| {
                (
                    floats::<B>(device, DType::F32, &[1000, 64]),
                    ints::<B>(device, DType::I64, &[8, n / 512], 1000),
                    floats::<B>(device, DType::F32, &[8, n / 512, 64]),
                )
            },
            |s| {
                let _ = B::embedding(s.0.clone(), s.1.clone());
                B::embedding_backward(s.0.clone(), s.2.clone(), s.1.clone())
            }
        );
    }
}

fn sorts(family: &mut Family<'_>) {
    for n in SIZES {
        for shape in [[n / 64, 64], [1, n]] {
            case!(
                family,
                times(n),
                format!("sort f32 {shape:?}"),
                |B, device| floats::<B>(device, DType::F32, &shape),
                |s| B::float_sort(s.clone(), 1, false)
            );
            case!(
                family,
                times(n),
                format!("argsort f32 {shape:?}"),
                |B, device| floats::<B>(device, DType::F32, &shape),
                |s| B::float_argsort(s.clone(), 1, true, IntDType::I64)
            );
            case!(
                family,
                times(n),
                format!("topk 5 f32 {shape:?}"),
                |B, device| floats::<B>(device, DType::F32, &shape),
                |s| B::float_topk(s.clone(), 1, 5)
            );
        }
        case!(
            family,
            times(n),
            format!("sort i64 {n}"),
            |B, device| ints::<B>(device, DType::I64, &[n], 1 << 30),
            |s| B::int_sort(s.clone(), 0, false)
        );
    }
}

fn random(family: &mut Family<'_>) {
    for n in SIZES {
        for (name, distribution) in [
            ("uniform", Distribution::Uniform(-1.0, 1.0)),
            ("normal", Distribution::Normal(0.0, 1.0)),
            ("bernoulli", Distribution::Bernoulli(0.3)),
        ] {
            case!(family, times(n), format!("{name} f32 {n}"), |B, device| device.clone(), |device| {
                B::float_random(Shape::from([n]), distribution, device, FloatDType::F32)
            });
        }
    }
}

fn softmax(family: &mut Family<'_>) {
    for n in SIZES {
        for (dim, shape) in [(1, [n / 64, 64]), (0, [64, n / 64]), (1, [4, n / 4])] {
            case!(
                family,
                times(n),
                format!("softmax, log_softmax {dim} f32 {shape:?}"),
                |B, device| floats::<B>(device, DType::F32, &shape),
                |s| {
                    let _ = B::softmax(s.clone(), dim);
                    B::log_softmax(s.clone(), dim)
                }
            );
        }
    }
}

fn norm(family: &mut Family<'_>) {
    for n in SIZES {
        for width in [64, 1024] {
            case!(
                family,
                times(n),
                format!("layer_norm f32 {}x{width}", n / width),
                |B, device| {
                    (
                        floats::<B>(device, DType::F32, &[n / width, width]),
                        [(); 2].map(|()| floats::<B>(device, DType::F32, &[width])),
                    )
                },
                |s| B::layer_norm(s.0.clone(), s.1[0].clone(), Some(s.1[1].clone()), 1e-5)
            );
        }
    }
}

fn products(family: &mut Family<'_>) {
    for dtype in [DType::F32, DType::F64] {
        for [batch, m, k, n] in
            [[1, 32, 32, 32], [1, 128, 784, 512], [16, 64, 64, 64], [1, 512, 512, 512], [1, 1, 1024, 1024]]
        {
            case!(
                family,
                times(m * n * k / 64),
                format!("matmul {} {batch}x{m}x{k}x{n}", dtype.name()),
                |B, device| {
                    [floats::<B>(device, dtype, &[batch, m, k]), floats::<B>(device, dtype, &[batch, k, n])]
                },
                |s| B::float_matmul(s[0].clone(), s[1].clone())
            );
        }
    }
    case!(
        family,
        1,
        "int_matmul i32 256",
        |B, device| [(); 2].map(|()| ints::<B>(device, DType::I32, &[256, 256], 9)),
        |s| B::int_matmul(s[0].clone(), s[1].clone())
    );
    case!(
        family,
        times(1 << 15),
        "linear 64x256x128 f32",
        |B, device| {
            (
                floats::<B>(device, DType::F32, &[64, 256]),
                floats::<B>(device, DType::F32, &[256, 128]),
                floats::<B>(device, DType::F32, &[128]),
            )
        },
        |s| B::linear(s.0.clone(), s.1.clone(), Some(s.2.clone()))
    );
}

fn convolutions(family: &mut Family<'_>) {
    for dtype in [DType::F32, DType::F64] {
        let name = dtype.name();
        case!(
            family,
            1,
            format!("conv1d {name}"),
            |B, device| [floats::<B>(device, dtype, &[8, 16, 256]), floats::<B>(device, dtype, &[32, 16, 5])],
            |s| { B::conv1d(s[0].clone(), s[1].clone(), None, ConvOptions::new([1], [2], [1], 1)) }
        );
        let options = || ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
        case!(
            family,
            1,
            format!("conv2d {name}"),
            |B, device| [
                floats::<B>(device, dtype, &[8, 16, 28, 28]),
                floats::<B>(device, dtype, &[32, 16, 3, 3])
            ],
            |s| { B::conv2d(s[0].clone(), s[1].clone(), None, options()) }
        );
        case!(
            family,
            1,
            format!("conv2d backward {name}"),
            |B, device| {
                [
                    floats::<B>(device, dtype, &[8, 16, 28, 28]),
                    floats::<B>(device, dtype, &[32, 16, 3, 3]),
                    floats::<B>(device, dtype, &[8, 32, 28, 28]),
                ]
            },
            |s| {
                let _ = B::conv2d_x_backward(s[0].clone(), s[1].clone(), s[2].clone(), options());
                B::conv2d_weight_backward(s[0].clone(), s[1].clone(), s[2].clone(), options())
            }
        );
        case!(
            family,
            1,
            format!("conv2d depthwise {name}"),
            |B, device| [
                floats::<B>(device, dtype, &[8, 32, 28, 28]),
                floats::<B>(device, dtype, &[32, 1, 3, 3])
            ],
            |s| { B::conv2d(s[0].clone(), s[1].clone(), None, ConvOptions::new([1, 1], [1, 1], [1, 1], 32)) }
        );
        case!(
            family,
            1,
            format!("conv3d {name}"),
            |B, device| [
                floats::<B>(device, dtype, &[2, 4, 16, 16, 16]),
                floats::<B>(device, dtype, &[8, 4, 3, 3, 3])
            ],
            |s| { B::conv3d(s[0].clone(), s[1].clone(), None, ConvOptions::new([1; 3], [1; 3], [1; 3], 1)) }
        );
        case!(
            family,
            1,
            format!("conv_transpose2d {name}"),
            |B, device| [
                floats::<B>(device, dtype, &[8, 16, 14, 14]),
                floats::<B>(device, dtype, &[16, 32, 3, 3])
            ],
            |s| {
                B::conv_transpose2d(
                    s[0].clone(),
                    s[1].clone(),
                    None,
                    ConvTransposeOptions::new([2, 2], [1, 1], [1, 1], [1, 1], 1),
                )
            }
        );
    }
    case!(family, 1, "unfold4d f32", |B, device| floats::<B>(device, DType::F32, &[8, 16, 28, 28]), |s| {
        B::unfold4d(s.clone(), [3, 3], UnfoldOptions::new([1, 1], [1, 1], [1, 1]))
    });
}

fn pools(family: &mut Family<'_>) {
    for [batch, channels, size] in [[1, 4, 16], [16, 32, 28]] {
        let shape = [batch, channels, size, size];
        let half = [batch, channels, size / 2, size / 2];
        let n = batch * channels * size * size;
        case!(
            family,
            times(n),
            format!("max_pool2d {shape:?}"),
            |B, device| floats::<B>(device, DType::F32, &shape),
            |s| { B::max_pool2d(s.clone(), [2, 2], [2, 2], [0, 0], [1, 1], false) }
        );
        case!(
            family,
            times(n),
            format!("max_pool2d with indices and its gradient {shape:?}"),
            |B, device| { [floats::<B>(device, DType::F32, &shape), floats::<B>(device, DType::F32, &half)] },
            |s| {
                let out = B::max_pool2d_with_indices(s[0].clone(), [2, 2], [2, 2], [0, 0], [1, 1], false);
                B::max_pool2d_with_indices_backward(
                    s[0].clone(),
                    [2, 2],
                    [2, 2],
                    [0, 0],
                    [1, 1],
                    false,
                    s[1].clone(),
                    out.indices,
                )
            }
        );
        case!(
            family,
            times(n),
            format!("avg_pool2d and its gradient {shape:?}"),
            |B, device| { [floats::<B>(device, DType::F32, &shape), floats::<B>(device, DType::F32, &half)] },
            |s| {
                let _ = B::avg_pool2d(s[0].clone(), [2, 2], [2, 2], [0, 0], true, false);
                B::avg_pool2d_backward(s[0].clone(), s[1].clone(), [2, 2], [2, 2], [0, 0], true, false)
            }
        );
        case!(
            family,
            times(n),
            format!("adaptive_avg_pool2d and its gradient {shape:?}"),
            |B, device| {
                [
                    floats::<B>(device, DType::F32, &shape),
                    floats::<B>(device, DType::F32, &[batch, channels, 7, 7]),
                ]
            },
            |s| {
                let _ = B::adaptive_avg_pool2d(s[0].clone(), [7, 7]);
                B::adaptive_avg_pool2d_backward(s[0].clone(), s[1].clone())
            }
        );
    }
}

fn interpolations(family: &mut Family<'_>) {
    for size in [16, 64] {
        for mode in [
            InterpolateMode::Nearest,
            InterpolateMode::Bilinear,
            InterpolateMode::Bicubic,
            InterpolateMode::Lanczos3,
        ] {
            let options = || InterpolateOptions::new(mode.clone());
            case!(
                family,
                times(8 * size * size),
                format!("{mode:?} {size} doubled"),
                |B, device| floats::<B>(device, DType::F32, &[2, 4, size, size]),
                |s| { B::interpolate(s.clone(), [2 * size, 2 * size], options()) }
            );
        }
        case!(
            family,
            times(8 * size * size),
            format!("grid_sample_2d {size}"),
            |B, device| {
                [
                    floats::<B>(device, DType::F32, &[2, 4, size, size]),
                    floats::<B>(device, DType::F32, &[2, size, size, 2]),
                ]
            },
            |s| B::float_grid_sample_2d(s[0].clone(), s[1].clone(), GridSampleOptions::default())
        );
    }
}

fn transforms(family: &mut Family<'_>) {
    for [batch, n] in [[4, 256], [64, 1024], [1, 1 << 16]] {
        case!(
            family,
            times(batch * n),
            format!("rfft {batch}x{n}"),
            |B, device| floats::<B>(device, DType::F32, &[batch, n]),
            |s| B::rfft(s.clone(), 1, None)
        );
        case!(
            family,
            times(batch * n),
            format!("irfft {batch}x{n}"),
            |B, device| [(); 2].map(|()| floats::<B>(device, DType::F32, &[batch, n / 2 + 1])),
            |s| { B::irfft(s[0].clone(), s[1].clone(), 1, None) }
        );
    }
}
