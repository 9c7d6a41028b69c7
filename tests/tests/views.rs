//! Random chains of views against the oracle: each op must read the strides that the op before
//! left.
#![allow(missing_docs)]

use burn_rocm_tests::*;
use proptest::prelude::*;

/// One step of a chain. Its numbers are taken modulo what the shape at that point allows.
#[derive(Clone, Copy, Debug)]
enum Step {
    Swap(usize, usize),
    Flip(usize),
    Slice(usize, usize, isize),
    Expand(usize),
    Unfold(usize, usize, usize),
    Merge(usize),
    Split(usize),
    /// A computed result, so that a new tensor gets the layout.
    Double,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0usize..6, 0usize..6).prop_map(|(a, b)| Step::Swap(a, b)),
        (0usize..6).prop_map(Step::Flip),
        (0usize..6, 0usize..6, prop_oneof![Just(1isize), Just(2), Just(-1), Just(-2)])
            .prop_map(|(d, start, by)| Step::Slice(d, start, by)),
        (0usize..6).prop_map(Step::Expand),
        (0usize..6, 1usize..4, 1usize..3).prop_map(|(d, size, by)| Step::Unfold(d, size, by)),
        (0usize..6).prop_map(Step::Merge),
        (0usize..6).prop_map(Step::Split),
        Just(Step::Double),
    ]
}

fn apply<B: Backend>(
    tensor: burn_backend::tensor::FloatTensor<B>,
    step: Step,
) -> burn_backend::tensor::FloatTensor<B> {
    let dims = tensor.shape().to_vec();
    let rank = dims.len();
    let reshape = |tensor, dims: Vec<usize>| B::float_reshape(tensor, Shape::from(dims));
    match step {
        Step::Swap(a, b) => B::float_swap_dims(tensor, a % rank, b % rank),
        Step::Flip(d) => B::float_flip(tensor, &[d % rank]),
        Step::Slice(d, start, by) => {
            let slices: Vec<Slice> = (0..rank)
                .map(|k| {
                    let (start, by) = if k == d % rank { (start % dims[k], by) } else { (0, 1) };
                    Slice::new(start as isize, Some(dims[k] as isize), by)
                })
                .collect();
            B::float_slice(tensor, &slices)
        }
        Step::Expand(d) => {
            let mut larger = dims.clone();
            if dims[d % rank] == 1 {
                larger[d % rank] = 3;
            }
            B::float_expand(tensor, Shape::from(larger))
        }
        Step::Unfold(d, size, by) if rank < 6 => {
            B::float_unfold(tensor, d % rank, size.min(dims[d % rank]), by)
        }
        Step::Merge(d) if rank > 1 => {
            let d = d % (rank - 1);
            let mut merged = dims.clone();
            merged[d] *= merged.remove(d + 1);
            reshape(tensor, merged)
        }
        Step::Split(d) if rank < 6 && dims[d % rank].is_multiple_of(2) => {
            let mut split = dims.clone();
            split[d % rank] /= 2;
            split.insert(d % rank + 1, 2);
            reshape(tensor, split)
        }
        Step::Double => B::float_mul_scalar(tensor, Scalar::Float(2.0)),
        Step::Unfold(..) | Step::Merge(_) | Step::Split(_) => tensor,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn chains_of_views(dims in prop::collection::vec(1usize..7, 1..5), steps in prop::collection::vec(step(), 1..8)) {
        let count: usize = dims.iter().product();
        let data = TensorData::new((0..count).map(|i| i as f32).collect(), Shape::from(dims.clone()));
        differential!(format!("{dims:?} through {steps:?}"), Tolerance::EXACT, |B, device| {
            let tensor = B::float_from_data(data.clone(), &device);
            let viewed = steps.iter().fold(tensor, |tensor, &step| apply::<B>(tensor, step));
            // The tensor is read as it is, reduced, and added to a flipped view of itself.
            let last = viewed.shape().num_dims() - 1;
            vec![
                read_float::<B>(viewed.clone()),
                read_float::<B>(B::float_sum_dim(viewed.clone(), last)),
                read_float::<B>(B::float_add(viewed.clone(), B::float_flip(viewed, &[0]))),
            ]
        });
    }
}
