//! A GGUF file with matrices of blocks is the model of the same file with their values in f32.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::DType;
use burn_rocm::{RocmDevice, f16};
use burn_rocm_llama::Rng;
use burn_rocm_llama::config::Config;
use burn_rocm_llama::gguf::Gguf;
use burn_rocm_llama::model::{Cache, Logits, Model, Quantise, weight_bytes};

/// Types of blocks of 32 numbers: the type's number in GGUF, a block's bytes, whether a block has a
/// least value, and the bytes that 32 numbers take on the device in f32.
const TYPES: [(&str, u32, usize, bool, usize); 5] = [
    ("Q4_0", 2, 18, false, 18),
    ("Q4_1", 3, 20, true, 128),
    ("Q5_0", 6, 22, false, 34),
    ("Q5_1", 7, 24, true, 128),
    ("Q8_0", 8, 34, false, 34),
];

/// Tensors by name: the type's number, the shape and the bytes.
type Tensors = BTreeMap<String, (u32, Vec<usize>, Vec<u8>)>;

fn original() -> (Gguf, Vec<u8>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf/llama.gguf");
    (Gguf::open(&path).expect("the file"), std::fs::read(&path).expect("the file"))
}

/// A text as GGUF has it.
fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// The start of the original file, up to the entries of its tensors.
fn settings() -> Vec<u8> {
    let (_, mut bytes) = original();
    let first = text("token_embd.weight");
    let end = (0..bytes.len()).find(|&at| bytes[at..].starts_with(&first)).expect("the first tensor");
    bytes.truncate(end);
    bytes
}

/// Writes a file with these settings and tensors.
fn write(name: &str, settings: &[u8], tensors: &Tensors) -> Gguf {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, (kind, shape, bytes)) in tensors {
        entries.extend(text(name));
        entries.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|&dim| entries.extend((dim as u64).to_le_bytes()));
        entries.extend(kind.to_le_bytes());
        entries.extend((data.len() as u64).to_le_bytes());
        data.extend(bytes);
        // Tensors begin at multiples of 32 bytes.
        data.resize(data.len().next_multiple_of(32), 0);
    }
    let mut whole = [settings, &entries].concat();
    whole.resize(whole.len().next_multiple_of(32), 0);
    whole.extend(data);
    let path: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("blocks-{name}.gguf"));
    std::fs::write(&path, whole).expect("a file");
    Gguf::open(&path).expect("the file")
}

/// Random blocks whose numbers lie between about -0.2 and 0.2.
fn blocks(count: usize, size: usize, has_least: bool, rng: &mut Rng) -> Vec<u8> {
    let codes = size - if has_least { 4 } else { 2 };
    // 2 to the bits of a number: 32 numbers take `codes` bytes.
    let span = f64::from(1u32 << (codes / 4));
    let mut out = Vec::with_capacity(count * size);
    for _ in 0..count {
        let scale = (0.3 + 0.1 * rng.uniform()) / span;
        out.extend(f16::from_f64(scale).to_le_bytes());
        if has_least {
            out.extend(f16::from_f64(-scale * span * (0.45 + 0.1 * rng.uniform())).to_le_bytes());
        }
        out.extend((0..codes).map(|_| (rng.uniform() * 256.0) as u8));
    }
    out
}

fn logits(file: &Gguf) -> Vec<f32> {
    let config = file.config().clone();
    let model = Model::load(config, file, &RocmDevice::default(), DType::F32, |_| ()).expect("a model");
    let tokens: Vec<u32> = (4..44).collect();
    // More rows than `qweight_product` takes, and one.
    let mut cache = Cache::new(&model, tokens.len()).expect("a cache");
    let many = model.forward(&tokens[..39], &mut cache, Logits::All).expect("logits");
    let one = model.forward(&tokens[39..], &mut cache, Logits::Last).expect("logits");
    [many, one].into_iter().flat_map(|part| part.into_data().to_vec::<f32>().expect("f32")).collect()
}

/// The error allowed to a token's logits: the length of their difference as a vector, as a share of
/// their own length.
///
/// `u` is 2^-24. A product of `n` terms in f32 is off by at most `(n + 8) u` of the sum of its terms'
/// magnitudes, in any order (`burn-rocm/nn/tests/quant`). For codes, the kernel sums the codes' terms
/// and those of zeros or least values separately. Their magnitudes are at most 4 times those of the
/// weights, so this side is off by `4 (n + 8) u`. For floats, each weight has four roundings, which the
/// 8 includes, so that side is off by `(n + 8) u`. Together that is `5 (n + 8) u`. With terms of both
/// signs, the sum of magnitudes is about `sqrt(n)` times the result, and the errors are about `sqrt(n)`
/// times less than their bound. The two factors cancel, so the bound is a share of the result.
///
/// A product scales an error as it scales a vector, and a residual connection only reduces the error's
/// share. So the shares of consecutive products add up: in each layer those of values, of attention's
/// output, of the gate and of the layer's output, and at the end that of the logits. On each side, each
/// norm (two in a layer, and the last one) adds `n + 8`, and attention adds its sums over a head and
/// over the tokens.
fn share(config: &Config, tokens: usize) -> f64 {
    let sum = |terms: usize| (terms + 8) as f64;
    let heads = config.heads * config.head_dim;
    let products = 2.0 * sum(config.width) + sum(heads) + sum(config.inner);
    let others = 2.0 * sum(config.width) + sum(config.head_dim) + sum(tokens);
    let layers = config.layers.len() as f64 * (5.0 * products + 2.0 * others);
    (layers + (5.0 + 2.0) * sum(config.width)) * 2f64.powi(-24)
}

/// Holds the logits of a file with blocks against those of a file with the values of its blocks.
fn compare(name: &str, settings: &[u8], of_blocks: &Gguf) {
    let in_f32 = of_blocks.tensors().into_iter().map(|(tensor, shape)| {
        let values = of_blocks.values(tensor).expect("a tensor");
        (tensor.to_owned(), (0, shape, values.into_iter().flat_map(f32::to_le_bytes).collect()))
    });
    let in_f32 = write(&format!("{name}-f32"), settings, &in_f32.collect());
    let (found, expected) = (logits(of_blocks), logits(&in_f32));
    assert_eq!(found.len(), expected.len(), "{name}");
    let length =
        |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let vocabulary = of_blocks.config().vocabulary;
    let within = share(of_blocks.config(), found.len() / vocabulary);
    let mut worst = 0f64;
    for (token, (found, expected)) in found.chunks(vocabulary).zip(expected.chunks(vocabulary)).enumerate() {
        let error = length(&mut found.iter().zip(expected).map(|(a, b)| a - b));
        let error = error / length(&mut expected.iter().copied());
        worst = worst.max(error);
        // Also fails for NaN.
        assert!(error <= within, "{name}, token {token}: {error:e} of {within:e}");
    }
    println!("{name}: logits differ by at most {worst:e} of their length, of {within:e}");
}

#[test]
fn matrices_of_blocks_have_the_logits_of_their_values() {
    let ((file, _), settings) = (original(), settings());
    let mut rng = Rng::new(5);
    for (name, kind, size, has_least, device) in TYPES {
        let mut tensors = Tensors::new();
        let mut expected_bytes = 0;
        for (tensor, shape) in file.tensors() {
            let count = shape.iter().product::<usize>();
            let floats = || file.values(tensor).expect("a tensor").into_iter().flat_map(f32::to_le_bytes);
            let (kind, bytes) = match shape.len() {
                1 => (0, floats().collect()),
                _ => (kind, blocks(count / 32, size, has_least, &mut rng)),
            };
            expected_bytes += if shape.len() == 1 { 4 * count } else { count / 32 * device };
            tensors.insert(tensor.to_owned(), (kind, shape, bytes));
        }
        let of_blocks = write(name, &settings, &tensors);
        let bytes = weight_bytes(of_blocks.config(), &of_blocks, DType::F32, Quantise::default());
        assert_eq!(bytes.expect("bytes"), expected_bytes, "{name}");
        compare(name, &settings, &of_blocks);
    }
}

const Q4_K: u32 = 12;
const Q6_K: u32 = 14;

/// Random blocks of 256 numbers, whose numbers are about 0.1.
fn k_blocks(count: usize, kind: u32, rng: &mut Rng) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..count {
        let scale = 0.75 + 0.5 * rng.uniform();
        let mut random = |bytes: usize| (0..bytes).map(|_| (rng.uniform() * 256.0) as u8).collect::<Vec<_>>();
        match kind {
            Q4_K => {
                // A mean number times the scale is a least value times its own.
                let scale = 5e-4 * scale;
                out.extend([scale, 7.5 * scale].into_iter().flat_map(|x| f16::from_f64(x).to_le_bytes()));
                out.extend(random(12 + 128));
            }
            _ => {
                out.extend(random(128 + 64 + 16));
                // As in many files, a subnormal f16.
                out.extend(f16::from_f64(5e-5 * scale).to_le_bytes());
            }
        }
    }
    out
}

/// Types as in the files called Q4_K_M: Q4_K, but Q6_K for the output matrix and in some layers for
/// values and for the last product. So in one layer the matrix of queries and keys is another than
/// that of values, and in the other all three are one.
#[test]
fn mixed_k_quants_have_the_logits_of_their_values() {
    let (vocabulary, width, inner) = (64, 256, 512);
    let count = |key: &str, value: u32| {
        [text(&format!("llama.{key}")), 4u32.to_le_bytes().into(), value.to_le_bytes().into()].concat()
    };
    let pairs = [
        [text("general.architecture"), 8u32.to_le_bytes().into(), text("llama")].concat(),
        count("embedding_length", width as u32),
        count("feed_forward_length", inner as u32),
        count("block_count", 2),
        count("attention.head_count", 4),
        count("attention.head_count_kv", 2),
        count("context_length", 128),
        count("vocab_size", vocabulary as u32),
    ];
    let mut shapes = vec![
        ("token_embd".to_owned(), Q4_K, [vocabulary, width]),
        ("output".to_owned(), Q6_K, [vocabulary, width]),
    ];
    let mut norms = vec!["output_norm".to_owned()];
    for layer in 0..2 {
        let more = if layer == 0 { Q6_K } else { Q4_K };
        for (name, kind, shape) in [
            ("attn_q", Q4_K, [width, width]),
            ("attn_k", Q4_K, [width / 2, width]),
            ("attn_v", more, [width / 2, width]),
            ("attn_output", Q4_K, [width, width]),
            ("ffn_gate", Q4_K, [inner, width]),
            ("ffn_up", Q4_K, [inner, width]),
            ("ffn_down", more, [width, inner]),
        ] {
            shapes.push((format!("blk.{layer}.{name}"), kind, shape));
        }
        norms.extend(["attn_norm", "ffn_norm"].map(|name| format!("blk.{layer}.{name}")));
    }
    let mut rng = Rng::new(6);
    let (mut tensors, mut expected_bytes) = (Tensors::new(), 0);
    for (name, kind, shape) in shapes {
        let blocks = shape[0] * shape[1] / 256;
        expected_bytes += blocks * if kind == Q4_K { 148 } else { 210 };
        let bytes = k_blocks(blocks, kind, &mut rng);
        tensors.insert(format!("{name}.weight"), (kind, shape.to_vec(), bytes));
    }
    for name in norms {
        let bytes = (0..width).flat_map(|_| (0.9 + 0.2 * rng.uniform() as f32).to_le_bytes()).collect();
        tensors.insert(format!("{name}.weight"), (0, vec![width], bytes));
        expected_bytes += 4 * width;
    }
    let settings = [
        b"GGUF".to_vec(),
        3u32.to_le_bytes().into(),
        (tensors.len() as u64).to_le_bytes().into(),
        (pairs.len() as u64).to_le_bytes().into(),
        pairs.concat(),
    ]
    .concat();
    let of_blocks = write("Q4_K_M", &settings, &tensors);
    let bytes = weight_bytes(of_blocks.config(), &of_blocks, DType::F32, Quantise::default());
    assert_eq!(bytes.expect("bytes"), expected_bytes);
    compare("Q4_K_M", &settings, &of_blocks);
}
