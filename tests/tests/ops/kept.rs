//! A tensor that one call returns for a later one may come back as a view.

use burn_rocm::RocmTensor;
use burn_rocm::fused::optim::{Clip, Momentum, Rule, Sgd, State, Step};
use burn_rocm::fused::{ClassScores, ClassTargets, cross_entropy, cross_entropy_backward};
use burn_rocm_tests::*;

#[test]
fn a_gradient_reads_what_was_kept_through_its_strides() {
    let random = Random::new();
    let device = Default::default();
    let x = float(&random, &[6, 5], DType::F32, View::Contiguous, -2.0, 2.0).float::<R>(&device);
    let of = ClassTargets {
        scores: ClassScores::Logits,
        targets: R::int_from_data(TensorData::new(vec![0i32, 4, 2, 1, 3, 0], [6]), &device),
        smoothing: None,
        pad_tokens: Vec::new(),
    };
    let (_, kept) = cross_entropy(x.clone(), None, &of).expect("a loss");
    let gradient = |kept: &RocmTensor| {
        let one = R::float_ones(Shape::from(vec![1]), &device, FloatDType::F32);
        read_float::<R>(cross_entropy_backward(x.clone(), None, &of, kept, one).expect("a gradient"))
    };
    let len = kept.dims()[0];
    let column = R::float_reshape(kept.clone(), Shape::from(vec![len, 1]));
    let wide =
        R::float_cat(vec![column.clone(), R::float_zeros(column.shape(), &device, FloatDType::F32)], 1);
    let view = R::float_slice(R::float_reshape(wide, Shape::from(vec![2 * len])), &[Slice::new(0, None, 2)]);
    assert_eq!(gradient(&view), gradient(&kept));
}

#[test]
fn an_optimizers_state_may_begin_anywhere() {
    let device = Default::default();
    let of = |n: usize| {
        let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
        R::float_from_data(TensorData::new(values, [n]), &device)
    };
    let momentum = Momentum { momentum: 0.5, dampening: 0.0, nesterov: false };
    let sgd = Sgd { lr: 0.1, penalty: 0.0, momentum: Some(momentum) };
    let stepped = |velocity: RocmTensor| {
        let mut step = Step::new(Rule::Sgd(sgd), Clip::None);
        let mut state = State { tensors: vec![velocity], ..State::default() };
        let (param, _) = step.add(of(8), of(8), &mut state).expect("gathered");
        step.run().expect("a step");
        read_float::<R>(param)
    };
    let view = R::float_slice(of(10), &[Slice::from(1..9)]);
    let packed = R::float_add(view.clone(), R::float_zeros(view.shape(), &device, FloatDType::F32));
    assert_eq!(stepped(view), stepped(packed));
}
