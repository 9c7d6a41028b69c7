//! Self-attention with one product for queries, keys and values, and tokens with the sequence
//! first: compared with Burn's, and which path runs.

use burn::nn::attention as theirs;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_rocm_nn::attention as ours;
use burn_rocm_nn::attention::{
    MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask,
};
use burn_rocm_tests::trace::during;
use burn_rocm_tests::{again, assert_close};

use crate::attention::{bools, drawn_bools, loaded, saved};
use crate::attention_dropout::is_alone;
use crate::support::*;

/// Batch, sequence, features and heads.
type Sizes = [usize; 4];

/// Enough rows for one product: four for each feature.
const JOINED: &[Sizes] = &[
    [5, 9, 8, 2],
    [4, 7, 6, 2], // heads of three features
    [3, 9, 5, 5], // heads of one feature
    [2, 14, 7, 1],
    [1, 40, 8, 2],
    [40, 1, 8, 2],
    [2, 37, 8, 4],
];

/// Too few rows for one product.
const APART: &[Sizes] = &[[2, 3, 8, 2], [1, 31, 8, 2], [31, 1, 8, 4], [3, 9, 9, 3]];

struct Call {
    sizes: Sizes,
    tokens: TensorData,
    pad: TensorData,
    attn: TensorData,
    weights: TensorData,
}

impl Call {
    fn new(random: &Random, sizes: Sizes) -> Self {
        let [batch, sequence, d_model, heads] = sizes;
        Self {
            sizes,
            tokens: uniform(random, &[sequence, batch, d_model + 1]),
            pad: drawn_bools(random, &[batch, sequence], 0.3),
            attn: drawn_bools(random, &[batch, sequence, sequence], 0.3),
            weights: uniform(random, &[batch, heads, sequence, sequence]),
        }
    }
}

/// Which masks hide keys: none, padding, a random mask, both, or a causal mask.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hides {
    Nothing,
    Padding,
    Drawn,
    Both,
    Later,
}

/// The context, the weights if they are used, and the gradients of the tokens and of all
/// parameters. The tokens are a view without any order in memory.
macro_rules! all_of {
    ($B:ident, $api:ident, $module:expr, $call:expr, $hides:expr, $looks:expr) => {{
        let (module, call) = ($module, $call);
        let [batch, sequence, d_model, _] = call.sizes;
        let leaf = tensor::<$B, 3>(&call.tokens, DType::F32).require_grad();
        let x = leaf.clone().swap_dims(0, 1).slice([0..batch, 0..sequence, 1..d_model + 1]);
        let mut input = $api::MhaInput::self_attn(x);
        if matches!($hides, Hides::Padding | Hides::Both) {
            input = input.mask_pad(bools(&call.pad));
        }
        if matches!($hides, Hides::Drawn | Hides::Both) {
            input = input.mask_attn(bools(&call.attn));
        }
        if $hides == Hides::Later {
            let mask = generate_autoregressive_mask::<$B>(batch, sequence, &Default::default());
            input = input.mask_attn(mask);
        }
        let output = module.forward(input);
        let mut loss = (output.context.clone() * output.context.clone().exp()).sum();
        let mut all = vec![output.context.into_data()];
        if $looks {
            let weights: Tensor<$B, 4> = output.weights.clone();
            all.push(weights.clone().into_data());
            loss = loss + (weights * tensor::<$B, 4>(&call.weights, DType::F32)).sum();
        }
        let grads = loss.backward();
        all.push(leaf.grad(&grads).unwrap().into_data());
        all.extend(gradients_of(&module, &grads));
        all
    }};
}

/// The settings that differ from the default.
#[derive(Clone, Copy, Debug)]
struct Kind {
    hides: Hides,
    quiet: bool,
    looks: bool,
    /// A layer without a bias: 0 to 3.
    without: Option<usize>,
}

macro_rules! module {
    ($B:ident, $api:ident, $call:expr, $kind:expr, $record:expr) => {{
        let [.., d_model, heads] = $call.sizes;
        let config = $api::MultiHeadAttentionConfig::new(d_model, heads).with_dropout(0.0);
        let config = config.with_quiet_softmax($kind.quiet);
        let mut module = loaded(config.init::<$B>(&Default::default()), $record);
        match $kind.without {
            Some(0) => module.query.bias = None,
            Some(1) => module.key.bias = None,
            Some(2) => module.value.bias = None,
            Some(_) => module.output.bias = None,
            None => {}
        }
        module
    }};
}

fn as_burns(random: &Random, sizes: Sizes, kind: Kind) {
    let call = Call::new(random, sizes);
    let [.., d_model, heads] = sizes;
    let config = theirs::MultiHeadAttentionConfig::new(d_model, heads);
    let record = saved(config.init::<Oracle>(&Default::default()));
    let Kind { hides, looks, .. } = kind;
    against_burn!(format!("{sizes:?} {kind:?}"), Tolerance::of(DType::F32).times(300.0), |B|
        theirs all_of!(B, theirs, module!(B, theirs, call, kind, &record), &call, hides, looks),
        ours all_of!(B, ours, module!(B, ours, call, kind, &record), &call, hides, looks)
    );
}

const PLAIN: Kind = Kind { hides: Hides::Nothing, quiet: false, looks: false, without: None };

#[test]
fn values_and_gradients() {
    let random = Random::new();
    for &sizes in JOINED.iter().chain(APART) {
        for hides in [Hides::Nothing, Hides::Both] {
            as_burns(&random, sizes, Kind { hides, ..PLAIN });
        }
    }
    for (hides, quiet) in [(Hides::Padding, true), (Hides::Drawn, false), (Hides::Later, false)] {
        as_burns(&random, JOINED[0], Kind { hides, quiet, ..PLAIN });
    }
}

/// Windows, some of them with no key that the masks leave, against the module on Burn's ops. The last
/// takes the tiled path.
#[test]
fn windows() {
    let random = Random::new();
    for (sizes, window, hides) in [
        (JOINED[0], 2, Hides::Both),
        (JOINED[2], 4, Hides::Later),
        (APART[0], 1, Hides::Nothing),
        (APART[1], usize::MAX, Hides::Drawn),
        (JOINED[4], 5, Hides::Later),
    ] {
        let call = Call::new(&random, sizes);
        let [.., d_model, heads] = sizes;
        let config = ours::MultiHeadAttentionConfig::new(d_model, heads).with_dropout(0.0);
        let config = config.with_window(Some(window));
        let record = saved(config.init::<Oracle>(&Default::default()));
        macro_rules! on {
            ($B:ident) => {
                all_of!($B, ours, loaded(config.init::<$B>(&Default::default()), &record), &call, hides, true)
            };
        }
        let (expected, tolerance) = (on!(Oracle), Tolerance::of(DType::F32).times(300.0));
        let what = format!("{sizes:?}, window {window}, {hides:?}");
        assert_close(&what, &on!(Ours), &expected, tolerance);
        assert_close(&format!("{what}, recomputed"), &on!(Balanced), &expected, tolerance);
    }
}

/// Other products compute the weights, and their gradients are added to those of the context.
#[test]
fn weights_that_are_looked_at() {
    let random = Random::new();
    for sizes in [JOINED[0], JOINED[1], APART[0]] {
        for hides in [Hides::Nothing, Hides::Padding] {
            as_burns(&random, sizes, Kind { hides, looks: true, ..PLAIN });
        }
    }
}

#[test]
fn layers_without_a_bias() {
    let random = Random::new();
    for layer in 0..4 {
        as_burns(&random, JOINED[0], Kind { without: Some(layer), ..PLAIN });
    }
}

/// The two tests above with scores that are never in memory, and on the kernel that replaces
/// rocBLAS.
#[test]
fn by_tiles_and_by_the_own_product() {
    const TILED: [(&str, &str); 1] = [("BURN_ROCM_ATTENTION_SCORES", "0")];
    const OWN: [(&str, &str); 1] = [("BURN_ROCM_MATMUL", "own")];
    for setting in [TILED, OWN] {
        for test in ["values_and_gradients", "which_path_runs"] {
            let text = again(&["--exact", &format!("self_attention::{test}")], &setting);
            assert!(text.contains("1 passed"), "{setting:?}: {text}");
        }
    }
}

/// The trace of the forward and backward pass of the context alone.
fn lines_of(sizes: Sizes, alike: bool) -> Vec<String> {
    let random = Random::new();
    let [batch, sequence, d_model, heads] = sizes;
    let module =
        MultiHeadAttentionConfig::new(d_model, heads).with_dropout(0.0).init::<Ours>(&Default::default());
    let x = tensor::<Ours, 3>(&uniform(&random, &[batch, sequence, d_model]), DType::F32).require_grad();
    let input = || match alike {
        true => MhaInput::self_attn(x.clone()),
        false => MhaInput::new(x.clone(), x.clone(), x.clone()),
    };
    module.forward(input()).context.sum().backward(); // initialises the parameters
    during(|| module.forward(input()).context.sum().backward()).1
}

/// The copies that each op makes, from their kernels.
fn copies<'a>(lines: &'a [String], op: &str) -> Vec<&'a str> {
    let kernel = |line: &'a String| line.strip_prefix(op)?.strip_prefix(" f32: kernel ");
    lines.iter().filter_map(kernel).filter(|kernel| kernel.starts_with("copy_")).collect()
}

#[test]
fn which_path_runs() {
    let tiled = hip::attention_scores() == Ok(0);
    let own = hip::matmul_route() == Ok(hip::Route::Own);
    let of = |lines: &[String], op: &str| lines.iter().filter(|line| line.starts_with(op)).count();
    // The fewest queries for which the tiled kernels run.
    let sizes = [2, 37, 8, 2];
    let lines = lines_of(sizes, true);
    if tiled {
        for kernel in [
            "nn_self_attention f32: kernel attention<",
            "nn_self_attention_backward f32: kernel attention_dots<",
        ] {
            assert_eq!(of(&lines, kernel), 1, "{lines:#?}");
        }
    } else {
        // One copy transposes the weight, and one each splits the gradients of weights and of
        // biases. The own product writes packed results, which are then copied.
        let copied = |op| copies(&lines, op).len();
        assert_eq!(copied("nn_self_attention"), usize::from(own), "{lines:#?}");
        assert_eq!(of(&lines, "nn_self_attention f32: kernel pack_heads<"), 1, "{lines:#?}");
        assert_eq!(copied("nn_self_attention_backward"), 3 + 3 * usize::from(own), "{lines:#?}");
        assert_eq!(copied("nn_swap_leading") + copied("nn_swap_leading_backward"), 4, "{lines:#?}");
        let all = lines.iter().filter(|line| line.contains("kernel copy_")).count();
        assert_eq!(all, 7 + 4 * usize::from(own), "{lines:#?}");
        if !own {
            let products = of(&lines, "nn_self_attention f32: rocblas")
                + of(&lines, "nn_self_attention_backward f32: rocblas");
            assert_eq!(products, 1 + 2 + 2 + 4, "{lines:#?}");
        }
    }
    assert_eq!(of(&lines, "nn_attention"), 0, "{lines:#?}");
    // With too few rows, each layer has its own product, and only the tokens are copied.
    let lines = lines_of([2, 33, 24, 2], true);
    assert!(of(&lines, "nn_attention f32") > 0 && of(&lines, "nn_self_attention") == 0, "{lines:#?}");
    if !own && !tiled {
        assert_eq!(copies(&lines, "nn_swap_leading").len(), 2, "{lines:#?}");
        let all = lines.iter().filter(|line| line.contains("kernel copy_")).count();
        assert_eq!(all, 4, "{lines:#?}");
    }
    // Three tensors, although they are equal.
    let lines = lines_of(sizes, false);
    assert_eq!(of(&lines, "nn_self_attention") + of(&lines, "nn_swap_leading"), 0, "{lines:#?}");
    // With one batch or one token, the tokens already have the sequence first.
    for sizes in [[1, 40, 8, 2], [40, 1, 8, 2]] {
        let lines = lines_of(sizes, true);
        assert!(
            of(&lines, "nn_self_attention") > 0 && copies(&lines, "nn_swap_leading").is_empty(),
            "{lines:#?}"
        );
    }
}

/// If nothing is recorded, the general path runs, and the tokens keep their layout.
#[test]
fn inference_is_as_it_was() {
    let module = MultiHeadAttentionConfig::new(8, 2).init::<burn_rocm::Rocm>(&Default::default());
    let x = Tensor::<burn_rocm::Rocm, 3>::ones([5, 9, 8], &Default::default());
    let (_, lines) = during(|| module.forward(MhaInput::self_attn(x)).context);
    let ops = |op: &str| lines.iter().filter(|line| line.starts_with(op)).count();
    assert!(ops("nn_attention f32") > 0 && ops("nn_self_attention") + ops("nn_swap") == 0, "{lines:#?}");
}

/// Which scores are dropped depends on their position and not on the path. The same holds for the
/// weights.
#[test]
fn dropout_is_the_same_on_every_path() {
    if !is_alone("self_attention::dropout_is_the_same_on_every_path") {
        return;
    }
    let config = MultiHeadAttentionConfig::new(6, 2).with_dropout(0.4);
    let record = saved(config.init::<Ours>(&Default::default()));
    let data = uniform(&Random::new(), &[4, 9, 6]);
    let run = |alike: bool| {
        let module: MultiHeadAttention<Ours> = loaded(config.init(&Default::default()), &record);
        let x = tensor::<Ours, 3>(&data, DType::F32).require_grad();
        Ours::seed(&x.device(), 3);
        let input = match alike {
            true => MhaInput::self_attn(x.clone()),
            false => MhaInput::new(x.clone(), x.clone(), x.clone()),
        };
        let (output, lines) = during(|| module.forward(input));
        assert_eq!(lines.iter().any(|line| line.starts_with("nn_self_attention")), alike, "{lines:#?}");
        let grads = (output.context.clone() * output.context.clone()).sum().backward();
        let mut all = vec![output.context.into_data(), output.weights.into_data()];
        all.push(x.grad(&grads).unwrap().into_data());
        all.extend(gradients_of(&module, &grads));
        all
    };
    assert_close(&"dropout", &run(true), &run(false), Tolerance::of(DType::F32).times(300.0));
}

/// Frozen parameters get no gradient. The others, and the tokens, get theirs.
#[test]
fn frozen_parameters() {
    let random = Random::new();
    let call = Call::new(&random, JOINED[0]);
    let record = saved(MultiHeadAttentionConfig::new(8, 2).init::<Oracle>(&Default::default()));
    for frozen in 0..6 {
        macro_rules! run {
            ($B:ident, $api:ident) => {{
                let mut module = module!($B, $api, call, PLAIN, &record);
                let layer =
                    [&mut module.query, &mut module.key, &mut module.value].into_iter().nth(frozen / 2);
                let layer = layer.unwrap();
                if frozen % 2 == 0 {
                    layer.weight = layer.weight.clone().set_require_grad(false);
                } else {
                    layer.bias = layer.bias.clone().map(|bias| bias.set_require_grad(false));
                }
                all_of!($B, $api, module, &call, Hides::Nothing, false)
            }};
        }
        let what = format!("{frozen} is frozen");
        against_burn!(what, Tolerance::of(DType::F32).times(300.0), |B| theirs run!(B, theirs), ours run!(B, ours));
    }
}

/// An empty batch, and empty sequences.
#[test]
fn nothing_to_attend_to() {
    fn check<B: AutodiffBackend>() {
        for shape in [[0, 5, 8], [3, 0, 8]] {
            let module = MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0).init::<B>(&Default::default());
            let x = Tensor::<B, 3>::zeros(shape, &Default::default()).require_grad();
            let out = module.forward(MhaInput::self_attn(x.clone())).context;
            assert_eq!(out.dims(), shape);
            let grads = out.sum().backward();
            assert_eq!(x.grad(&grads).unwrap().dims(), shape);
            for data in gradients_of(&module, &grads) {
                assert!(data.iter::<f32>().all(|value| value == 0.0), "{shape:?}");
            }
        }
    }
    check::<Ours>();
    check::<Balanced>();
}
