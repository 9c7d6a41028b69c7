//! One decoded token of a language model, as the launches of this project's decoder and the bytes
//! that each must move (`--model-decoding`).
//!
//! With one row, a product reads each weight once and does two FLOPs with it. So it takes the time
//! of its bytes, as a stream does.

use std::fmt::Write;

use super::chips::{CHIPS, Chip};
use super::cost::{self, Place, Work};
use super::figures::{self, Trust};

/// A model of Llama's layers.
struct Model {
    name: &'static str,
    layers: f64,
    /// Elements of a token's vector.
    width: f64,
    heads: f64,
    /// Heads of keys and of values.
    shared: f64,
    /// Features of a head.
    head: f64,
    /// Elements of a gated unit.
    hidden: f64,
    vocabulary: f64,
    /// The weights' type, and bytes of one.
    weights: (&'static str, f64),
}

/// A block of 32 weights is an f16 scale and 4 bits for each.
const Q4_0: (&str, f64) = ("Q4_0", 18.0 / 32.0);
const BF16: (&str, f64) = ("bf16", 2.0);

const MODELS: [Model; 4] = [
    Model {
        name: "Llama 3.2 1B",
        layers: 16.0,
        width: 2048.0,
        heads: 32.0,
        shared: 8.0,
        head: 64.0,
        hidden: 8192.0,
        vocabulary: 128256.0,
        weights: BF16,
    },
    LLAMA_8B,
    Model { weights: Q4_0, ..LLAMA_8B },
    Model {
        name: "Llama 2 7B",
        shared: 32.0,
        hidden: 11008.0,
        vocabulary: 32000.0,
        weights: Q4_0,
        ..LLAMA_8B
    },
];

const LLAMA_8B: Model = Model {
    name: "Llama 3.1 8B",
    layers: 32.0,
    width: 4096.0,
    heads: 32.0,
    shared: 8.0,
    head: 128.0,
    hidden: 14336.0,
    vocabulary: 128256.0,
    weights: BF16,
};

/// The chips that the estimate is for.
const WANTED: [&str; 2] = ["MI300X", "RX 7900 XTX"];
/// Tokens in the cache.
const CONTEXTS: [f64; 2] = [64.0, 4096.0];
/// Bytes of an activation and of a cached number.
const HALF: f64 = 2.0;

/// Launches that move the same bytes.
struct Call {
    count: f64,
    work: Work,
}

impl Model {
    /// Weights that a token reads: all but the embedding's other rows.
    #[cfg(test)]
    fn weights(&self) -> f64 {
        let packed = (self.heads + 2.0 * self.shared) * self.head;
        let layer = self.width * (packed + self.heads * self.head + 3.0 * self.hidden);
        self.layers * layer + self.width * self.vocabulary
    }

    /// The launches of a token with `context` tokens in the cache.
    fn calls(&self, context: f64) -> Vec<Call> {
        let Self { layers, width, heads, shared, head, hidden, vocabulary, .. } = *self;
        let (packed, all_heads) = ((heads + 2.0 * shared) * head, heads * head);
        let product = |count, from: f64, to: f64| Call {
            count,
            work: Work {
                memory: from * to * self.weights.1 + (from + to) * HALF,
                place: Place::Memory,
                ..Work::default()
            },
        };
        // What the launch before left in a cache.
        let small = |count, elements: f64| Call {
            count,
            work: Work { memory: elements * HALF, place: Place::Cached, ..Work::default() },
        };
        let keys = 2.0 * context * shared * head;
        vec![
            // The embedding's row, and the first norm.
            small(2.0, 2.0 * width),
            product(layers, width, packed),
            small(layers, 2.0 * (heads + shared) * head),
            // The token's keys and values go to the cache.
            small(layers, 4.0 * shared * head),
            // Attention: parts of the keys, and the sum of the parts.
            Call {
                count: layers,
                work: Work {
                    memory: (keys + 2.0 * all_heads) * HALF,
                    place: Place::Memory,
                    ..Work::default()
                },
            },
            small(layers, 2.0 * all_heads),
            product(layers, all_heads, width),
            small(2.0 * layers, 4.0 * width),
            product(layers, width, 2.0 * hidden),
            small(layers, 3.0 * hidden),
            product(layers, hidden, width),
            product(1.0, width, vocabulary),
            // The choice of the token reads the logits.
            small(1.0, vocabulary),
        ]
    }

    /// Seconds of a token on a chip.
    fn seconds(&self, context: f64, chip: &Chip, trust: &Trust) -> f64 {
        let time = |call: &Call| call.count * cost::estimate(&call.work, chip, &trust.shares).seconds;
        self.calls(context).iter().map(time).sum()
    }
}

/// The table of models and chips.
pub(crate) fn report() -> String {
    let figures = figures::figures();
    let chips: Vec<(&Chip, Trust)> = CHIPS
        .iter()
        .filter(|chip| WANTED.contains(&chip.name))
        .map(|chip| (chip, figures::trust(chip, &figures)))
        .filter(|(_, trust)| trust.holds())
        .collect();
    let mut text = String::from("| model | weights | GB a token | cached tokens | launches |");
    for (chip, trust) in &chips {
        let _ = write!(text, " {}, ±{:.0} % |", chip.name, 100.0 * trust.error);
    }
    let _ = writeln!(text, "\n|---|---|---:|---:|---:|{}", "---:|".repeat(chips.len()));
    for model in &MODELS {
        for context in CONTEXTS {
            let calls = model.calls(context);
            let bytes: f64 = calls.iter().map(|call| call.count * call.work.memory).sum();
            let launches: f64 = calls.iter().map(|call| call.count).sum();
            let (weights, _) = model.weights;
            let _ =
                write!(text, "| {} | {weights} | {:.2} | {context} | {launches} |", model.name, 1e-9 * bytes);
            for (chip, trust) in &chips {
                let seconds = model.seconds(context, chip, trust);
                let _ = write!(text, " {:.2} ms, {:.0} tokens/s |", 1e3 * seconds, 1.0 / seconds);
            }
            text.push('\n');
        }
    }
    text.push_str(
        "\nA token takes the time of its bytes and of its launches, one after the other, as if the host \
         were never late. The error is that of streams, stencils and products of many rows; no product \
         of one row is among the figures.\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_those_of_the_models() {
        // Parameters as published, without norms and, where it is a matrix of its own, the
        // embedding.
        assert_eq!(MODELS[0].weights(), 1_235_814_400.0 - 33.0 * 2048.0);
        assert_eq!(LLAMA_8B.weights(), 8_030_261_248.0 - 65.0 * 4096.0 - 128256.0 * 4096.0);
        assert_eq!(MODELS[3].weights(), 6_738_415_616.0 - 65.0 * 4096.0 - 32000.0 * 4096.0);
    }

    #[test]
    fn a_layer_is_eleven_launches() {
        for model in &MODELS {
            let launches: f64 = model.calls(64.0).iter().map(|call| call.count).sum();
            assert_eq!(launches, 11.0 * model.layers + 4.0, "{}", model.name);
        }
    }

    #[test]
    fn a_token_takes_at_least_its_weights_over_the_bandwidth() {
        let figures = figures::figures();
        for chip in CHIPS.iter().filter(|chip| WANTED.contains(&chip.name)) {
            let trust = figures::trust(chip, &figures);
            for model in &MODELS {
                let least = model.weights() * model.weights.1 / chip.memory;
                let [short, long] = CONTEXTS.map(|context| model.seconds(context, chip, &trust));
                assert!(least < short && short < long, "{} on {}", model.name, chip.name);
            }
        }
    }
}
