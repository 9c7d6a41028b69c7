//! The decoder with its layers and cross attention, positions, and attention's gradients: as with Burn 0.21, and as the
//! modules composed of Burn's ops on burn-flex.

use crate::worlds::{Ty, as_composed, assert_same_sums, same_as_021};

const NAMES: [&str; 6] = ["Llama", "Qwen 2", "Qwen 3", "Mistral", "Gemma 2", "a decoder of an encoder"];

/// The settings of `NAMES`.
macro_rules! config {
    ($nn:ident, $which:expr) => {{
        use $nn::language::{DecoderConfig, GateKind, RotaryConfig};
        let plain = DecoderConfig::new(24, 40, 2, 4).with_kv_heads(Some(2)).with_head_dim(Some(16));
        match NAMES[$which] {
            "Llama" => plain,
            "Qwen 2" => plain.with_qkv_bias(true),
            "Qwen 3" => plain.with_head_norms(true).with_epsilon(1e-5),
            "Mistral" => plain.with_window(Some(3)).with_kv_heads(Some(1)),
            "Gemma 2" => plain
                .with_adds_one(true)
                .with_post_norms(true)
                .with_gate(GateKind::GeluTanh)
                .with_softcap(Some(5.0))
                .with_scale(Some(0.3125)),
            _ => plain
                .with_cross(true)
                .with_output_bias(true)
                .with_inner_bias(true)
                .with_rotary(Some(RotaryConfig::new(16).with_rotated(Some(4)).with_interleaved(true))),
        }
    }};
}

/// The results of a decoder. Its weights are at most 0.5: so no number on the way exceeds f16.
macro_rules! decoded {
    ($v:ident, $nn:ident, $ty:ident, $which:expr) => {{
        let config = config!($nn, $which);
        let [tokens, encoded] =
            [(1, 5), (2, 7)].map(|(tag, length)| $v::leaf::<3>(tag, [2, length, 24], $ty));
        let decoder = $v::scaled(config.init(&$v::device()), $ty, 0.25);
        let of_encoder = config.cross.then(|| encoded.clone());
        let out = decoder.forward(tokens.clone(), &$nn::language::Positions::FromZero, of_encoder);
        match config.cross {
            true => $v::results(out, &[&tokens, &encoded], &decoder),
            false => $v::results(out, &[&tokens], &decoder),
        }
    }};
}

/// Like [`assert_same_sums`], but with a wider limit in f16 and bf16: the two versions of Burn compose a
/// softcap of ops that may round at different places, and about a hundred roundings precede a gradient.
fn assert_same_softcaps(what: &str, ty: Ty, found: &[Vec<f64>], expected: &[Vec<f64>]) {
    let unit = match ty {
        Ty::F64 | Ty::F32 => return assert_same_sums(what, ty, found, expected),
        Ty::F16 => 2f64.powi(-11),
        Ty::BF16 => 2f64.powi(-8),
    };
    assert_eq!(found.len(), expected.len(), "{what}: number of results");
    for (k, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "{what}, result {k}: length");
        let largest = expected.iter().fold(0.0f64, |most, b| most.max(b.abs()));
        for (i, (a, b)) in found.iter().zip(expected).enumerate() {
            let limit = 100.0 * unit * largest;
            assert!((a - b).abs() <= limit, "{what}, result {k}, element {i}: {a} instead of {b}");
        }
        // Roundings of either sign add up as a random walk over a whole result.
        let length = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
        let apart = length(&mut found.iter().zip(expected).map(|(a, b)| a - b));
        let limit = 100f64.sqrt() * unit * length(&mut expected.iter().copied());
        assert!(apart <= limit, "{what}, result {k}: {apart} apart, at most {limit}");
    }
}

/// Burn 0.22 sums weights' gradients in another order, and takes more launches than Burn 0.21:
///
/// - up to three for each of Burn's own linear layers (one, one for a view, and one to compute the view
///   again). A decoder layer has four, and three more for an encoder;
/// - one for each norm whose input has another use;
/// - up to one for each op of a softcap and its gradient.
#[test]
fn decoders() {
    for (which, name) in NAMES.into_iter().enumerate() {
        let (linears, norms) = if which == 5 { (7, 3) } else { (4, 2) };
        let added = 2 * (3 * linears + norms) + 1;
        if name == "Gemma 2" {
            same_as_021!(name, added + 2 * 24, assert_same_softcaps, |v, nn, ty| {
                decoded!(v, nn, ty, which)
            });
        } else {
            same_as_021!(name, added, assert_same_sums, |v, nn, ty| { decoded!(v, nn, ty, which) });
        }
    }
}

/// A decoder has about 40 steps, not 16, with sums of up to 64 terms: `40 / 16 * (64 + 32)` is less than `256 + 32`.
#[test]
fn composed_decoders() {
    for (which, name) in NAMES.into_iter().enumerate() {
        as_composed!(name, 256, |v, nn, ty| { decoded!(v, nn, ty, which) });
    }
}

/// A layer alone computes the norm before it, and no norm after it.
#[test]
fn a_layer_alone() {
    macro_rules! alone {
        ($v:ident, $nn:ident, $ty:ident) => {{
            use $nn::language::{Positions, RotaryConfig};
            let config = config!($nn, 5);
            let device = $v::device();
            let rotary = RotaryConfig::new(16).init(&device);
            let [x, encoded] = [(1, 5), (2, 7)].map(|(tag, length)| $v::leaf::<3>(tag, [2, length, 24], $ty));
            let layer = $v::scaled(config.init_layer(&device), $ty, 0.25);
            let cross = layer.cross.as_ref().map(|cross| cross.keys_and_values(encoded.clone()));
            let attend = |heads| layer.attention(heads);
            let out = layer.forward_alone(x.clone(), (&rotary, &Positions::FromZero), cross, attend);
            $v::results(out, &[&x, &encoded], &layer)
        }};
    }
    same_as_021!("a layer", 3 * 7 + 3, assert_same_sums, |v, nn, ty| { alone!(v, nn, ty) });
    as_composed!("a layer", 128, |v, nn, ty| { alone!(v, nn, ty) });
}

/// Positions from each sequence's start, and of each token in any order, with norms, for parts of the features and for
/// both kinds of pairs.
#[test]
fn positions() {
    for each in [false, true] {
        for (rotated, interleaved, norms) in
            [(16, false, false), (16, true, true), (8, false, true), (8, true, false)]
        {
            macro_rules! rotated {
                ($v:ident, $nn:ident, $ty:ident) => {{
                    use $nn::language::{NormConfig, Positions, RotaryConfig};
                    let x = $v::leaf::<3>(1, [2, 5, 8 * 16], $ty);
                    let positions = match each {
                        true => Positions::Each($v::ints(vec![3, 0, 7, 7, 1, 40, 2, 31, 4, 0], [2, 5])),
                        false => Positions::Starts($v::ints(vec![4, 19], [2])),
                    };
                    let norm = $v::filled(NormConfig::new(16).init(&$v::device()), $ty);
                    let config = RotaryConfig::new(16).with_rotated(Some(rotated));
                    let embedding = config.with_interleaved(interleaved).init(&$v::device());
                    let both = norms.then_some([&norm, &norm]);
                    let heads = embedding.forward(x.clone(), [2, 3], &positions, both);
                    let of_key = heads.key.narrow(1, 0, 2) + heads.value.narrow(1, 1, 2);
                    match norms {
                        true => $v::results(heads.query * of_key, &[&x], &norm),
                        false => $v::results(heads.query * of_key, &[&x], &$v::NONE),
                    }
                }};
            }
            let what = format!("each {each}, {rotated} features, interleaved {interleaved}, norms {norms}");
            same_as_021!(&what, 0, |v, nn, ty| { rotated!(v, nn, ty) });
            as_composed!(&what, 64, |v, nn, ty| { rotated!(v, nn, ty) });
        }
    }
}

/// Values of attention's gradients, with fewer heads of keys than of queries. Queries that see no key have none.
#[test]
fn gradients_of_attention() {
    for (causal, window, softcap, [queries, keys]) in [
        (true, None, None, [5, 5]),
        (true, Some(3), None, [7, 9]),
        (false, Some(2), None, [6, 6]),
        (false, None, None, [3, 4]),
        (true, None, Some(5.0), [5, 3]),
        (true, Some(3), Some(5.0), [7, 9]),
        (false, Some(2), Some(5.0), [9, 3]),
    ] {
        macro_rules! attended {
            ($v:ident, $nn:ident, $ty:ident) => {{
                use $nn::language::{AttentionRule, attention};
                let rule = AttentionRule { softcap, causal, window, ..AttentionRule::default() };
                let [q, k, v] = [(1, 4, queries), (2, 2, keys), (3, 2, keys)]
                    .map(|(tag, heads, length)| $v::leaf::<4>(tag, [2, heads, length, 16], $ty));
                let out = attention(q.clone(), k.clone(), v.clone(), &rule);
                $v::results(out, &[&q, &k, &v], &$v::NONE)
            }};
        }
        let what = format!("causal {causal}, window {window:?}, softcap {softcap:?}, {queries} of {keys}");
        if softcap.is_none() {
            same_as_021!(&what, 0, assert_same_sums, |v, nn, ty| { attended!(v, nn, ty) });
        }
        as_composed!(&what, 64, |v, nn, ty| { attended!(v, nn, ty) });
    }
}
