//! One decoded token of a language model, as the launches of this project's decoder and the bytes
//! that each must move (`--model-decoding`).
//!
//! With one row, a product reads each weight once and does two FLOPs with it. So it takes the time
//! of its bytes, as a stream does.

use std::fmt::Write;

use super::chips::{CHIPS, Chip, Family};
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

/// A launch: its kernel, by the template's name, and what it moves.
type Launch = (&'static str, Work);

/// Stands for the kernels that multiply one row with weights: `row_product` floats, `few_codes` and
/// `qweight_product` codes.
const PRODUCT: &str = "product";

/// How a chip computes attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attention {
    /// On matrix cores: one launch, which also rotates, appends to the cache, and joins the parts of
    /// the keys.
    MatrixCores,
    /// On vector units: a launch that rotates and appends, one for the parts of the keys, and one that
    /// joins them. A cache of at most 64 tokens has one part.
    VectorUnits,
}

impl Attention {
    /// What `burn_rocm::fused::decode::attention` chooses for 16-bit values.
    fn on(chip: &Chip) -> Self {
        match chip.family {
            Family::Cdna => Self::MatrixCores,
            // RDNA 2 has no matrix cores. On RDNA 3 operands would take too many registers.
            Family::Rdna => Self::VectorUnits,
        }
    }
}

/// The launches of a token's pass.
struct Pass {
    before: Vec<Launch>,
    /// Those of each layer.
    layer: Vec<Launch>,
    after: Vec<Launch>,
}

impl Pass {
    /// Those before and after the layers.
    fn around(&self) -> impl Iterator<Item = &Launch> {
        self.before.iter().chain(&self.after)
    }

    /// Each launch, with how often it runs in a model with this many layers.
    fn counted(&self, layers: f64) -> impl Iterator<Item = (f64, &Launch)> {
        let of_layers = self.layer.iter().map(move |launch| (layers, launch));
        of_layers.chain(self.around().map(|launch| (1.0, launch)))
    }
}

impl Model {
    /// Weights that a token reads: all but the embedding's other rows.
    #[cfg(test)]
    fn weights(&self) -> f64 {
        let packed = (self.heads + 2.0 * self.shared) * self.head;
        let layer = self.width * (packed + self.heads * self.head + 3.0 * self.hidden);
        self.layers * layer + self.width * self.vocabulary
    }

    /// The pass of a token with `context` tokens in the cache. A test compares its launches with
    /// those of the program `llama`.
    fn pass(&self, context: f64, attention: Attention) -> Pass {
        let Self { width, heads, shared, head, hidden, vocabulary, .. } = *self;
        let (packed, all_heads) = ((heads + 2.0 * shared) * head, heads * head);
        let from_memory = |memory| Work { memory, place: Place::Memory, ..Work::default() };
        let product =
            |from: f64, to: f64| (PRODUCT, from_memory(from * to * self.weights.1 + (from + to) * HALF));
        // What the launch before left in a cache.
        let small =
            |kernel, bytes: f64| (kernel, Work { memory: bytes, place: Place::Cached, ..Work::default() });
        let keys = 2.0 * context * shared * head;
        // The token's queries, keys and values, read and, rotated, written.
        let rotated = 2.0 * packed * HALF;
        let attend = match attention {
            Attention::MatrixCores => {
                vec![("decode_rotary_attention", from_memory((keys + all_heads) * HALF + rotated))]
            }
            Attention::VectorUnits => vec![
                small("rotary_append", rotated),
                ("decode_attention", from_memory((keys + 2.0 * all_heads) * HALF)),
                small("decode_combine", 2.0 * all_heads * HALF),
            ],
        };
        // The products' kernels compute sums, norms and gates too.
        let sums = 4.0 * width * HALF;
        let summed = |from: f64| {
            let (kernel, Work { memory, .. }) = product(from, width);
            (kernel, from_memory(memory + sums))
        };
        let gated = (PRODUCT, from_memory(width * 2.0 * hidden * self.weights.1 + (width + hidden) * HALF));
        let fed = [summed(all_heads), gated, summed(hidden)];
        Pass {
            before: vec![
                small("select_rows", 2.0 * width * HALF),
                small("rms_norm_rows", 2.0 * width * HALF),
            ],
            layer: [product(width, packed)].into_iter().chain(attend).chain(fed).collect(),
            after: vec![
                product(width, vocabulary),
                // Reads the logits and writes scores of 4 bytes. The next two return at once where
                // the most likely token is taken.
                small("sample_scores", vocabulary * (HALF + 4.0)),
                small("sample_codes", 0.0),
                small("sample_draw", 0.0),
                small("kv_advance", 0.0),
            ],
        }
    }

    /// Seconds of a token on a chip.
    fn seconds(&self, context: f64, chip: &Chip, trust: &Trust) -> f64 {
        let pass = self.pass(context, Attention::on(chip));
        let time =
            |(count, (_, work)): (f64, &Launch)| count * cost::estimate(work, chip, &trust.shares).seconds;
        pass.counted(self.layers).map(time).sum()
    }

    /// Launches of a token.
    fn launches(&self, attention: Attention) -> f64 {
        self.pass(0.0, attention).counted(self.layers).map(|(count, _)| count).sum()
    }
}

/// The tables of launches, and of models and chips.
pub(crate) fn report() -> String {
    let figures = figures::figures();
    let chips: Vec<(&Chip, Trust)> = CHIPS
        .iter()
        .filter(|chip| WANTED.contains(&chip.name))
        .map(|chip| (chip, figures::trust(chip, &figures)))
        .filter(|(_, trust)| trust.holds())
        .collect();
    let mut text = launches(&chips.iter().map(|(chip, _)| *chip).collect::<Vec<_>>());
    text.push_str("\n| model | weights | GB a token | cached tokens |");
    for (chip, trust) in &chips {
        let _ = write!(text, " {}, ±{:.0} % |", chip.name, 100.0 * trust.error);
    }
    let _ = writeln!(text, "\n|---|---|---:|---:|{}", "---:|".repeat(chips.len()));
    for model in &MODELS {
        for context in CONTEXTS {
            let pass = model.pass(context, Attention::MatrixCores);
            let bytes: f64 = pass.counted(model.layers).map(|(count, (_, work))| count * work.memory).sum();
            let (weights, _) = model.weights;
            let _ = write!(text, "| {} | {weights} | {:.2} | {context} |", model.name, 1e-9 * bytes);
            for (chip, trust) in &chips {
                let launches = model.launches(Attention::on(chip));
                let seconds = model.seconds(context, chip, trust);
                let _ = write!(
                    text,
                    " {launches} launches, {:.2} ms, {:.0} tokens/s |",
                    1e3 * seconds,
                    1.0 / seconds
                );
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

/// The table of a token's launches by kernel.
fn launches(chips: &[&Chip]) -> String {
    let passes: Vec<Pass> = chips.iter().map(|chip| MODELS[0].pass(0.0, Attention::on(chip))).collect();
    let mut kernels: Vec<&str> = Vec::new();
    for pass in &passes {
        // In the order of the pass.
        let mut next = 0;
        for (kernel, _) in pass.before.iter().chain(&pass.layer).chain(&pass.after) {
            let place = kernels.iter().position(|known| known == kernel).unwrap_or_else(|| {
                kernels.insert(next, kernel);
                next
            });
            next = next.max(place + 1);
        }
    }
    let mut text = String::from("| kernel |");
    for chip in chips {
        let _ = write!(text, " in each layer, {} |", chip.name);
    }
    let _ = writeln!(text, " before and after the layers |\n|---|{}---:|", "---:|".repeat(chips.len()));
    for kernel in kernels {
        let count = |launches: &mut dyn Iterator<Item = &Launch>| {
            launches.filter(|(launched, _)| *launched == kernel).count()
        };
        let _ = write!(text, "| {kernel} |");
        for pass in &passes {
            let _ = write!(text, " {} |", count(&mut pass.layer.iter()));
        }
        let around = passes.first().map_or(0, |pass| count(&mut pass.around()));
        let _ = writeln!(text, " {around} |");
    }
    text.push_str("| together |");
    for pass in &passes {
        let _ = write!(text, " {} |", pass.layer.len());
    }
    let _ = writeln!(text, " {} |", passes.first().map_or(0, |pass| pass.around().count()));
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use burn::tensor::DType;
    use burn_rocm::RocmDevice;
    use burn_rocm::fused::decode::{CacheType, SampleTables};
    use burn_rocm::profile::{Detail, WorkKind, profile};
    use burn_rocm_llama::config::Config;
    use burn_rocm_llama::model::{self, Cache, Quantise, Step, pass_bytes};
    use burn_rocm_llama::program::RandomModel;
    use burn_rocm_llama::weights::Random;
    use burn_rocm_nn::language::quant::RoundTo;

    use super::*;
    use crate::alone::is_alone;

    /// The settings and the weights of a random model of the program `llama`.
    fn random(model: RandomModel) -> (Config, Random) {
        let config = model.config().expect("the settings");
        let source = Random { norm_adds_one: config.norm_adds_one };
        (config, source)
    }

    /// The same shapes for the estimate.
    fn shapes(config: &Config) -> Model {
        Model {
            name: "",
            layers: config.layers.len() as f64,
            width: config.width as f64,
            heads: config.heads as f64,
            shared: config.kv_heads as f64,
            head: config.head_dim as f64,
            hidden: config.inner as f64,
            vocabulary: config.vocabulary as f64,
            weights: BF16,
        }
    }

    /// How often a pass of the program `llama` launches each kernel, by a profile. Asserts that its
    /// graph has these launches and no others.
    fn traced(quantise: Quantise) -> BTreeMap<String, u64> {
        let (config, source) = random(RandomModel::Tiny);
        let device = RocmDevice::default();
        let loaded = model::Model::load_quantised(config, &source, &device, DType::BF16, quantise, |_| ());
        let loaded = loaded.expect("the model");
        // Attention divides keys by the tokens that a cache has room for.
        let mut caches = Cache::rows(&loaded, 1, 512, CacheType::BF16).expect("a cache");
        let tables = SampleTables { counts: true, chances: true, ring: 0 };
        let step = || Step::new(&loaded, &caches, tables).expect("a step");
        let (mut replayed, mut eager) = (step(), step().op_by_op());
        // The second pass is captured.
        (0..2).for_each(|_| replayed.run(&mut caches).expect("a pass"));
        let recorded = replayed.graph().expect("a graph").recorded();
        device.synchronize().expect("the device");
        let (passed, profile) = profile(|| {
            let passed = eager.run(&mut caches);
            device.synchronize().map(|()| passed)
        });
        passed.expect("the device").expect("a pass");
        let mut found = BTreeMap::new();
        for row in profile.rows(Detail::Work) {
            let name = match row.kind {
                Some(WorkKind::Kernel) => row.work.split('<').next().unwrap_or_default(),
                // The eager pass tells the device where the rows are; a replayed one need not.
                Some(WorkKind::Transfer) => continue,
                other => panic!("{other:?}: {row:?}"),
            };
            let name = match name {
                "row_product" | "few_codes" | "qweight_product" => PRODUCT,
                // The embedding's row.
                "qweight_dequantize" => "select_rows",
                name => name,
            };
            *found.entry(name.to_owned()).or_default() += row.calls;
        }
        let all: u64 = found.values().sum();
        assert_eq!((recorded.kernels + recorded.library_calls, recorded.copies), (all, 0), "{found:?}");
        assert_eq!(recorded.transfers, 0, "{recorded:?}");
        found
    }

    /// How a device computes attention over heads of 64 or 128 features in bf16.
    fn attention(info: &hip::DeviceInfo) -> Attention {
        match info.matrix_cores(hip::DType::BF16, false).expect("the settings") {
            None => Attention::VectorUnits,
            Some(hip::MatrixCores::Wmma) if !info.arch.starts_with("gfx12") => Attention::VectorUnits,
            Some(_) => Attention::MatrixCores,
        }
    }

    #[test]
    fn chips_compute_attention_as_the_backend_chooses() {
        let mut info = hip::Device::get(0).expect("a device").info().clone();
        info.max_threads_per_block = 1024;
        let architectures = ["gfx942", "gfx90a", "gfx1100", "gfx1030", "gfx90a"];
        for (chip, arch) in CHIPS.iter().zip(architectures) {
            info.arch = arch.to_owned();
            assert_eq!(Attention::on(chip), attention(&info), "{} is {arch}", chip.name);
        }
    }

    /// What the model counts, on the device of this process.
    fn counted() -> BTreeMap<String, u64> {
        let device = hip::Device::get(0).expect("a device");
        let attention = attention(device.info());
        let (config, _) = random(RandomModel::Tiny);
        let shapes = shapes(&config);
        let mut counts = BTreeMap::new();
        for (count, (kernel, _)) in shapes.pass(512.0, attention).counted(shapes.layers) {
            *counts.entry((*kernel).to_owned()).or_default() += count as u64;
        }
        counts
    }

    /// Alone, because a profile has the work of all threads, and so of all tests.
    #[test]
    fn a_pass_launches_what_the_model_counts() {
        if !is_alone("model::decoding::tests::a_pass_launches_what_the_model_counts", &[]) {
            return;
        }
        let rounded = Quantise { layers: Some(RoundTo::Int4), output: Some(RoundTo::Int8) };
        for quantise in [Quantise::default(), rounded] {
            assert_eq!(traced(quantise), counted(), "{quantise:?}");
        }
    }

    /// The CPU device has matrix cores only in lockstep. `cargo test -p benches` builds no lockstep,
    /// and then this tests nothing.
    #[test]
    fn a_pass_on_matrix_cores_launches_what_the_model_counts() {
        let lockstep = [("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CPU_WAVE", "32")];
        let test = "model::decoding::tests::a_pass_on_matrix_cores_launches_what_the_model_counts";
        if !is_alone(test, &lockstep) {
            return;
        }
        if let Err(error) = hip::Device::get(0)
            && error.to_string().contains("this build lacks the lockstep mode")
        {
            return;
        }
        assert!(counted().contains_key("decode_rotary_attention"));
        assert_eq!(traced(Quantise::default()), counted());
    }

    #[test]
    fn shapes_and_bytes_are_those_of_the_program() {
        for (model, of) in [(&MODELS[0], RandomModel::Llama32), (&LLAMA_8B, RandomModel::Llama31)] {
            let (config, source) = random(of);
            let own = |model: &Model| {
                let Model { layers, width, heads, shared, head, hidden, vocabulary, .. } = *model;
                [layers, width, heads, shared, head, hidden, vocabulary]
            };
            assert_eq!(own(model), own(&shapes(&config)), "{}", model.name);
            // Norms are f32.
            let norms = (2.0 * model.layers + 1.0) * model.width * 4.0;
            let bytes = pass_bytes(&config, &source, DType::BF16, Quantise::default(), 1).expect("bytes");
            assert_eq!(model.weights() * model.weights.1 + norms, bytes as f64, "{}", model.name);
            let keys = 2.0 * 4096.0 * model.shared * model.head * HALF * model.layers;
            assert_eq!(keys, config.cache_bytes(4096, CacheType::BF16) as f64, "{}", model.name);
        }
    }

    #[test]
    fn the_readme_has_the_tables() {
        let readme = include_str!("../../README.md");
        for row in report().lines().filter(|line| line.starts_with('|')) {
            assert!(readme.contains(row), "benches/README.md lacks `{row}` of --model-decoding");
        }
    }

    #[test]
    fn weights_are_those_of_the_models() {
        // Parameters as published, without norms and, where it is a matrix of its own, the
        // embedding.
        assert_eq!(MODELS[0].weights(), 1_235_814_400.0 - 33.0 * 2048.0);
        assert_eq!(LLAMA_8B.weights(), 8_030_261_248.0 - 65.0 * 4096.0 - 128256.0 * 4096.0);
        assert_eq!(MODELS[3].weights(), 6_738_415_616.0 - 65.0 * 4096.0 - 32000.0 * 4096.0);
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
