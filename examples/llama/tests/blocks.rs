//! A GGUF file with matrices of blocks is the model of the same file with their values in f32.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::DType;
use burn_rocm::{RocmDevice, f16};
use burn_rocm_llama::Rng;
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

fn original() -> (Gguf, Vec<u8>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf/llama.gguf");
    (Gguf::open(&path).expect("the file"), std::fs::read(&path).expect("the file"))
}

/// A text as GGUF has it.
fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// Writes a file with the settings of the original and these tensors: type and bytes by name.
fn write(name: &str, tensors: &BTreeMap<String, (u32, Vec<u8>)>) -> Gguf {
    let (file, bytes) = original();
    // The entries of tensors begin after the settings, and tensors at multiples of 32 bytes.
    let first = text("token_embd.weight");
    let settings = (0..bytes.len()).find(|&at| bytes[at..].starts_with(&first)).expect("the first tensor");
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, shape) in file.tensors() {
        let (kind, bytes) = &tensors[name];
        entries.extend(text(name));
        entries.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|&dim| entries.extend((dim as u64).to_le_bytes()));
        entries.extend(kind.to_le_bytes());
        entries.extend((data.len() as u64).to_le_bytes());
        data.extend(bytes);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    let mut whole = [&bytes[..settings], &entries].concat();
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

#[test]
fn matrices_of_blocks_have_the_logits_of_their_values() {
    let (file, _) = original();
    let mut rng = Rng::new(5);
    for (name, kind, size, has_least, device) in TYPES {
        let mut tensors = BTreeMap::new();
        let mut expected_bytes = 0;
        for (tensor, shape) in file.tensors() {
            let count = shape.iter().product::<usize>();
            let floats = || file.values(tensor).expect("a tensor").into_iter().flat_map(f32::to_le_bytes);
            let entry = match shape.len() {
                1 => (0, floats().collect()),
                _ => (kind, blocks(count / 32, size, has_least, &mut rng)),
            };
            expected_bytes += if shape.len() == 1 { 4 * count } else { count / 32 * device };
            tensors.insert(tensor.to_owned(), entry);
        }
        let of_blocks = write(name, &tensors);
        let bytes = weight_bytes(of_blocks.config(), &of_blocks, DType::F32, Quantise::default());
        assert_eq!(bytes.expect("bytes"), expected_bytes, "{name}");
        let in_f32 = of_blocks.tensors().into_keys().map(|tensor| {
            let values = of_blocks.values(tensor).expect("a tensor");
            (tensor.to_owned(), (0, values.into_iter().flat_map(f32::to_le_bytes).collect()))
        });
        let in_f32 = write(&format!("{name}-f32"), &in_f32.collect());
        let (found, expected) = (logits(&of_blocks), logits(&in_f32));
        let largest = expected.iter().fold(0f32, |most, logit| most.max(logit.abs()));
        let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        println!("{name}: logits up to {largest:.1} differ by at most {worst:e}");
        assert!(largest > 0.5 && found.len() == expected.len(), "{name}");
        // As for references in f32: the sums have another order.
        assert!(worst <= 1e-4 && found.iter().all(|logit| logit.is_finite()), "{name}: {worst:e}");
    }
}
