//! Random chains of ops on a pool of tensors that share buffers. No op may change a tensor that it
//! did not get.

use crate::run;
use burn_backend::tensor::FloatTensor;
use burn_rocm_tests::*;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestError};

/// One op of a chain. Its operands are indices into the pool. Its numbers are taken modulo what is
/// possible.
#[derive(Clone, Debug)]
struct Step {
    op: usize,
    operands: [usize; 2],
    numbers: [usize; 4],
    /// Whether the first operand leaves the pool. The op may then reuse its buffer, unless a view
    /// of it lives on.
    takes: bool,
}

#[derive(Clone, Debug)]
struct Chain {
    dims: Vec<usize>,
    steps: Vec<Step>,
    /// Whether the tensors are read only after the last step, so that nothing waits in between.
    late: bool,
}

fn chain() -> impl Strategy<Value = Chain> {
    let step = (0..OPS.len(), any::<[u8; 2]>(), prop::array::uniform4(0usize..1000), any::<bool>()).prop_map(
        |(op, operands, numbers, takes)| Step { op, operands: operands.map(usize::from), numbers, takes },
    );
    (prop::collection::vec(1usize..7, 1..=4), prop::collection::vec(step, 2..=10), any::<bool>())
        .prop_map(|(dims, steps, late)| Chain { dims, steps, late })
}

/// The ops, each exact in f32. Views come first, because they share buffers.
const OPS: &[&str] = &[
    "clone",
    "slice",
    "permute",
    "flip",
    "reshape",
    "expand",
    "unfold",
    "neg",
    "abs",
    "relu",
    "clamp",
    "add_scalar",
    "mul_scalar",
    "add",
    "sub",
    "mul",
    "add_broadcast",
    "slice_assign",
    "mask_fill",
    "mask_where",
    "cat",
    "repeat_dim",
    "select_add",
    "scatter_add",
    "gather",
    "cummax",
    "max_dim",
    "sort",
    "cast",
    "sign",
];

fn apply<B: Backend>(step: &Step, a: FloatTensor<B>, b: FloatTensor<B>) -> FloatTensor<B> {
    let shape = a.shape().to_vec();
    let rank = shape.len();
    let [n, m, ..] = step.numbers;
    let dim = n % rank;
    let device = B::float_device(&a);
    let halves = |along: usize| -> Vec<Slice> {
        let cut = |(d, &len): (usize, &usize)| {
            let from = if d == along { m % len } else { 0 };
            Slice::new(
                from as isize,
                Some(len as isize),
                if d == along { 1 + (m / 7 % 2) as isize } else { 1 },
            )
        };
        shape.iter().enumerate().map(cut).collect()
    };
    // Another tensor of the same shape, or the tensor itself.
    let partner = |b: FloatTensor<B>, a: &FloatTensor<B>| if b.shape() == a.shape() { b } else { a.clone() };
    let mask = |shape: &[usize]| {
        let count = shape.iter().product();
        let bits: Vec<bool> = (0..count).map(|i: usize| (i * 7 + m).is_multiple_of(3)).collect();
        B::bool_from_data(TensorData::new(bits, Shape::from(shape.to_vec())), &device)
    };
    let indices = |shape: &[usize], below: usize| {
        let count = shape.iter().product();
        let at: Vec<i64> = (0..count).map(|i: usize| ((i * 5 + m) % below) as i64).collect();
        B::int_from_data(TensorData::new(at, Shape::from(shape.to_vec())), &device)
    };
    match OPS[step.op] {
        "clone" => a.clone(),
        "slice" => B::float_slice(a, &halves(dim)),
        "permute" => B::float_swap_dims(a, dim, m % rank),
        "flip" => B::float_flip(a, &[dim]),
        "reshape" => B::float_reshape(a, Shape::from(vec![shape.iter().product::<usize>()])),
        "expand" => {
            let mut to = shape;
            if to.iter().product::<usize>() < 200 {
                to.insert(0, 2);
                to.truncate(6);
            }
            if to.len() == rank { a } else { B::float_expand(a, Shape::from(to)) }
        }
        "unfold" if rank < 5 => B::float_unfold(a, dim, shape[dim].div_ceil(2), 1 + m % 2),
        "neg" => B::float_neg(a),
        "abs" => B::float_abs(a),
        "relu" => B::relu(a),
        "clamp" => B::float_clamp(a, Scalar::Float(-3.0), Scalar::Float(5.0)),
        "add_scalar" => B::float_add_scalar(a, Scalar::Float(1.5)),
        "mul_scalar" => B::float_mul_scalar(a, Scalar::Float(0.5)),
        "add" => B::float_add(a.clone(), partner(b, &a)),
        "sub" => {
            let b = partner(b, &a);
            B::float_sub(b, a)
        }
        "mul" => {
            let b = partner(b, &a);
            B::float_mul(a, b)
        }
        "add_broadcast" => {
            let row = B::float_slice(a.clone(), &[Slice::new(0, Some(1), 1)]);
            B::float_add(row, a)
        }
        "slice_assign" => {
            let slices = halves(dim);
            let value = B::float_flip(B::float_slice(a.clone(), &slices), &[dim]);
            B::float_slice_assign(a, &slices, value)
        }
        "mask_fill" => B::float_mask_fill(a, mask(&shape), Scalar::Float(9.0)),
        "mask_where" => {
            let b = partner(b, &a);
            B::float_mask_where(a, mask(&shape), b)
        }
        "cat" if shape.iter().product::<usize>() < 200 => {
            let b = partner(b, &a);
            B::float_cat(vec![a, b], dim)
        }
        "repeat_dim" if shape.iter().product::<usize>() < 200 => B::float_repeat_dim(a, dim, 2),
        "select_add" => {
            let value = B::float_mul_scalar(a.clone(), Scalar::Float(2.0));
            // Each index once, in another order.
            let turned: Vec<i64> = (0..shape[dim]).map(|i| ((i + m) % shape[dim]) as i64).collect();
            let at = B::int_from_data(TensorData::new(turned, [shape[dim]]), &device);
            B::float_select_add(a, dim, at, value)
        }
        "scatter_add" => {
            let mut one = shape.clone();
            one[dim] = 1;
            let value =
                B::float_full(Shape::from(one.clone()), Scalar::Float(0.25), &device, FloatDType::F32);
            B::float_scatter_add(dim, a, indices(&one, shape[dim]), value)
        }
        "gather" => B::float_gather(dim, a, indices(&shape, shape[dim])),
        "cummax" => B::float_cummax(a, dim),
        "max_dim" => B::float_max_dim(a, dim),
        "sort" => B::float_sort(a, dim, m % 2 == 0),
        "cast" => B::float_cast(B::float_cast(a, FloatDType::F64), FloatDType::F32),
        "sign" => B::float_sign(a),
        _ => a,
    }
}

/// A tensor of the pool on both sides, and its contents when it was made.
struct Pooled {
    ours: FloatTensor<R>,
    theirs: FloatTensor<O>,
    held: Option<TensorData>,
    made_by: String,
}

impl Pooled {
    fn check(&mut self, after: &str) {
        let now = read_float::<R>(self.ours.clone());
        let what = format!("the result of {}, after {after}", self.made_by);
        if let Some(held) = &self.held {
            assert_eq!(held, &now, "{what}");
            return;
        }
        assert_close(
            &what,
            std::slice::from_ref(&now),
            &[read_float::<O>(self.theirs.clone())],
            Tolerance::EXACT,
        );
        self.held = Some(now);
    }
}

fn follow(chain: &Chain) {
    let count: usize = chain.dims.iter().product();
    let data = |scale: f32| {
        let values: Vec<f32> = (0..count).map(|i| (i % 17) as f32 * scale - 4.0).collect();
        TensorData::new(values, Shape::from(chain.dims.clone()))
    };
    let mut pool: Vec<Pooled> = [1.0, 0.5]
        .map(|scale| Pooled {
            ours: R::float_from_data(data(scale), &Default::default()),
            theirs: O::float_from_data(data(scale), &Default::default()),
            held: None,
            made_by: "from_data".into(),
        })
        .into();
    for (n, step) in chain.steps.iter().enumerate() {
        let [a, b] = step.operands.map(|operand| operand % pool.len());
        let name = format!("{} (step {n})", OPS[step.op]);
        let (ours_b, theirs_b) = (pool[b].ours.clone(), pool[b].theirs.clone());
        let (ours, theirs) = if step.takes && pool.len() > 1 && a != b {
            let Pooled { ours, theirs, .. } = pool.swap_remove(a);
            (ours, theirs)
        } else {
            (pool[a].ours.clone(), pool[a].theirs.clone())
        };
        let (ours, theirs) = (apply::<R>(step, ours, ours_b), apply::<O>(step, theirs, theirs_b));
        pool.push(Pooled { ours, theirs, held: None, made_by: name.clone() });
        if !chain.late || n + 1 == chain.steps.len() {
            pool.iter_mut().for_each(|tensor| tensor.check(&name));
        }
    }
}

pub(crate) fn chains_leave_other_tensors_alone() {
    let result = run::runner(run::cases(10))
        .run(&chain(), |chain| run::caught(|| follow(&chain)).map_err(TestCaseError::fail));
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, chain)) => panic!("{why}\n{chain:#?}"),
        Err(other) => panic!("{other}"),
    }
}
