//! Training steps replayed from graphs, compared bit by bit with the same steps run one by one.
#![allow(missing_docs, clippy::unwrap_used)]

mod clones;
#[path = "../shared/holders.rs"]
mod holders;
mod mixed;
#[path = "../shared/replays.rs"]
mod replays;
#[path = "../shared/small.rs"]
mod small;
#[path = "../shared/world.rs"]
mod world;

use burn::backend::Autodiff;
use burn::nn::LinearConfig;
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::backend::Backend;
use burn::tensor::{Distribution, s};
use burn_rocm::graph::Graph;
use burn_rocm::{RandomMark, Rocm, RocmDevice, RocmError};
use burn_rocm_nn::optim::adaptor::OptimizerAdaptor;
use burn_rocm_nn::optim::{Adam, AdamConfig};
use burn_rocm_nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};

use replays::{alone, compare_training};
use small::{Mlp, Scores, batch, mlp};
use world::{Linear, Plain, Tracked, bits, seed};

type B = Autodiff<Rocm>;

/// One layer of attention, whose scores are dropped too, over the images' rows.
type Attends = (TransformerEncoder<B>, Linear);

fn attends() -> Attends {
    let device = RocmDevice::default();
    let encoder = TransformerEncoderConfig::new(6, 12, 2, 1).with_dropout(0.2);
    (encoder.init(&device), LinearConfig::new(36, 4).init(&device))
}

impl Scores for Attends {
    fn scores(&self, images: Tracked<3>) -> Tracked<2> {
        let x = self.0.forward(TransformerEncoderInput::new(images));
        self.1.forward(x.flatten(1, 2))
    }
}

#[test]
fn adam_with_dropped_scores_of_attention() {
    compare_training!(attends(), AdamConfig::new().init());
}

/// In each replay of a graph, the second drawing has the numbers of the first. They differ from
/// replay to replay. The graph's later numbers are the same as without the second drawing.
#[test]
fn numbers_are_drawn_again_in_a_graph() {
    let _alone = alone();
    let device = RocmDevice::default();
    let draw = || Plain::<1>::random([33], Distribution::Default, &device);
    let replays = |again: bool| -> Vec<Vec<Vec<f32>>> {
        seed(23);
        let (graph, drawn) = Graph::capture(&device, || {
            let before = draw();
            let mark = RandomMark::of(&device);
            let first = [draw(), draw()];
            let second = match again {
                true => mark.again(|| [draw(), draw()]),
                false => first.clone(),
            };
            [vec![before], first.to_vec(), second.to_vec(), vec![draw()]].concat()
        })
        .unwrap();
        let read = |tensor: &Plain<1>| tensor.to_data().iter::<f32>().collect();
        (0..3)
            .map(|_| {
                graph.replay().unwrap();
                drawn.iter().map(read).collect()
            })
            .collect()
    };
    let found = replays(true);
    for replay in &found {
        assert_eq!(replay[1..3], replay[3..5]);
        assert_ne!(replay[1], replay[2]);
    }
    assert_ne!(found[0], found[1]);
    assert_eq!(found, replays(false));
}

/// Also if nothing was drawn in the graph before, and behind a mark that is set while drawing again.
#[test]
fn the_first_numbers_of_a_graph_are_drawn_again() {
    let _alone = alone();
    let device = RocmDevice::default();
    let draw = || Plain::<1>::random([33], Distribution::Default, &device);
    let (graph, drawn) = Graph::capture(&device, || {
        let mark = RandomMark::of(&device);
        let [first, second, third] = mark.again(|| {
            let first = draw();
            let inner = RandomMark::of(&device);
            let second = draw();
            [first, second, inner.again(draw)]
        });
        let again = mark.again(|| {
            let first = draw();
            let inner = RandomMark::of(&device);
            [first, draw(), inner.again(draw)]
        });
        [vec![first, second, third], again.to_vec()].concat()
    })
    .unwrap();
    graph.replay().unwrap();
    let numbers = |tensor: &Plain<1>| tensor.to_data().iter::<f32>().collect::<Vec<_>>();
    let found: Vec<_> = drawn.iter().map(numbers).collect();
    assert_ne!(found[0], found[1]);
    assert_eq!(found[1], found[2]);
    assert_eq!(found[..3], found[3..]);
}

/// What a step may not do is refused by name, and nothing changes.
#[test]
fn refused_steps_name_the_op_and_change_nothing() {
    let _alone = alone();
    let device = RocmDevice::default();
    let mut model = Some(mlp());
    let mut optimizer = AdamConfig::new().init();
    let fed = batch(0);
    let mut step = |after: &dyn Fn(&Mlp, &Tracked<1>)| {
        let before = model.clone().expect("a model");
        let loss = before.loss(&fed);
        after(&before, &loss);
        let grads = GradientsParams::from_grads(loss.backward(), &before);
        model = Some(optimizer.step(0.1, before, grads));
    };
    step(&|_, _| ());
    let op_of = |result: Result<(Graph, ()), RocmError>| match result {
        Err(RocmError::Capture { op, .. }) => op,
        other => panic!("{other:?}"),
    };
    let read = Graph::capture_after(&device, 0, || step(&|_, loss| drop(loss.to_data())));
    assert_eq!(op_of(read), "a read");
    let sync = Graph::capture_after(&device, 0, || step(&|_, _| drop(<Rocm>::sync(&RocmDevice::default()))));
    assert!(matches!(sync, Err(RocmError::Capture { op: "sync", .. })), "{sync:?}");
    // `model.clone()` is another owner of every parameter.
    let shared = Graph::capture_after(&device, 0, || step(&|_, _| ()));
    assert!(matches!(shared, Err(RocmError::Capture { op: "adam", .. })), "{shared:?}");
    // Another panic of the step is its own.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = Graph::capture_after(&device, 0, || panic!("of the step"));
    }));
    assert_eq!(panicked.unwrap_err().downcast_ref::<&str>(), Some(&"of the step"));
    // The first step of an optimizer makes its state, so it is not captured.
    let mut fresh = AdamConfig::new().init();
    let mut other = Some(mlp());
    let unready = Graph::capture_after(&device, 0, || {
        let before = other.take().expect("a model");
        let loss = before.scores(fed.images.clone()).mean();
        let grads = GradientsParams::from_grads(loss.backward(), &before);
        other = Some(fresh.step(0.1, before, grads));
    });
    assert!(matches!(unready, Err(RocmError::Capture { op: "adam", .. })), "{unready:?}");
    step(&|_, _| ());
    let state = bits(&model.expect("put back"));
    assert!(state.iter().flatten().all(|bits| f32::from_bits(*bits).is_finite()));
}

/// An op on a result leaves it alone, also if nobody else holds it: the next replay writes the result's
/// memory. What a graph only reads is written in place, and the next replay reads that.
#[test]
fn ops_write_inputs_in_place_and_results_not() {
    let _alone = alone();
    let device = RocmDevice::default();
    let of = |values: [f32; 3]| Plain::<1>::from_data(values, &device);
    let values = |tensor: Plain<1>| tensor.into_data().iter::<f32>().collect::<Vec<_>>();
    let input = of([1.0, 2.0, 3.0]);
    let step = || [2.0, 3.0, 4.0, 5.0].map(|factor| input.clone() * factor);
    let (graph, [doubled, tripled, fourfold, fivefold]) = Graph::capture(&device, step).unwrap();
    graph.replay().unwrap();
    let sum = doubled + 1.0;
    let negated = -tripled;
    let assigned = fourfold.slice_assign(s![1..2], Plain::from_data([9.0], &device));
    // The next replay reads the new values only if they are where the old ones were.
    let input = input.slice_assign(s![0..3], of([5.0, 6.0, 7.0]));
    graph.replay().unwrap();
    assert_eq!(values(fivefold.clone()), [25.0, 30.0, 35.0]);
    assert_eq!(values(sum), [3.0, 5.0, 7.0]);
    assert_eq!(values(negated), [-3.0, -6.0, -9.0]);
    assert_eq!(values(assigned), [4.0, 9.0, 12.0]);
    // An op of another capture would write into the first graph's memory.
    let mut last = Some(fivefold);
    let step = || last.take().expect("one call") + 1.0;
    let (second, incremented) = Graph::capture_after(&device, 0, step).unwrap();
    second.replay().unwrap();
    graph.replay().unwrap();
    assert_eq!(values(incremented), [26.0, 31.0, 36.0]);
    assert_eq!(values(input), [5.0, 6.0, 7.0]);
}

/// Random ops draw in the order in which they run, in graphs and outside.
#[test]
fn random_numbers_follow_in_any_mix() {
    let _alone = alone();
    let device = RocmDevice::default();
    let draw = |n: usize| Plain::<1>::random([n], Distribution::Normal(0.0, 1.0), &device);
    let bits = |drawn: &Plain<1>| drawn.to_data().iter::<f32>().map(f32::to_bits).collect::<Vec<_>>();
    let (first, one) = Graph::capture_after(&device, 0, || [draw(7), draw(5)]).unwrap();
    let (second, two) = Graph::capture_after(&device, 0, || draw(3)).unwrap();
    for number in [4, 5] {
        seed(number);
        let expected: Vec<Vec<u32>> = [7, 5, 3, 7, 5, 7, 5, 9, 3, 3].map(|n| bits(&draw(n))).into();
        seed(number);
        let mut found = Vec::new();
        let both = |found: &mut Vec<Vec<u32>>| {
            first.replay().unwrap();
            found.extend(one.each_ref().map(bits));
        };
        let single = |found: &mut Vec<Vec<u32>>| {
            second.replay().unwrap();
            found.push(bits(&two));
        };
        both(&mut found);
        single(&mut found);
        both(&mut found);
        both(&mut found);
        found.push(bits(&draw(9)));
        single(&mut found);
        single(&mut found);
        assert_eq!(found, expected, "seed {number}");
    }
}

/// A record and a clone of the optimizer count the replays, and go their own way from there.
#[test]
fn records_and_clones_count_the_replays() {
    let _alone = alone();
    let device = RocmDevice::default();
    let mut model = Some(mlp());
    let mut optimizer = AdamConfig::new().init();
    let x = batch(0).images;
    let mut step = |optimizer: &mut OptimizerAdaptor<Adam, Mlp, B>| {
        let before = model.take().expect("put back below");
        let x: Tracked<2> = x.clone().flatten(1, 2);
        let loss = before.1.forward(before.0.forward(x)).powf_scalar(2.0).mean();
        let grads = GradientsParams::from_grads(loss.backward(), &before);
        model = Some(optimizer.step(0.01, before, grads));
        loss.inner()
    };
    step(&mut optimizer);
    let (graph, loss) = Graph::capture_after(&device, 0, || step(&mut optimizer)).unwrap();
    for _ in 0..9 {
        graph.replay().unwrap();
    }
    drop(loss);
    let mut others = [optimizer.clone(), AdamConfig::new().init().load_record(optimizer.to_record())];
    let next = |optimizer: &mut OptimizerAdaptor<Adam, Mlp, B>, model: Mlp| {
        let loss = model.1.weight.val().powf_scalar(3.0).sum() + model.0.weight.val().sum();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        bits(&optimizer.step(0.01, model, grads))
    };
    let trained = model.expect("put back");
    // The clones step first, so that a shared clock would show.
    let found = others.each_mut().map(|other| next(other, trained.clone()));
    let expected = next(&mut optimizer, trained);
    assert_eq!(found, [expected.clone(), expected]);
}

/// The same in lockstep. With waves of 64, small ops are deferred as on a GPU.
mod lockstep {
    use burn_rocm_tests::lockstep::whole_program;

    #[test]
    fn wave_32() {
        whole_program(32);
    }

    #[test]
    fn wave_64() {
        whole_program(64);
    }
}
