//! A folder with matrices of fp8 is the model of the floats that its codes stand for.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::DType;
use burn_rocm_llama::Rng;
use burn_rocm_llama::config::Config;
use burn_rocm_llama::model::{Cache, Logits, Quantise, weight_bytes};
use burn_rocm_llama::weights::{Elements, Folder, Role, Source, Weight};
use half::bf16;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::shared::{compare, read};
use crate::{Copy, load};

/// More outputs or inputs than any matrix has.
const ALL: usize = usize::MAX;

/// A tensor of a file: type, shape and bytes.
type Stored = (Dtype, Vec<usize>, Vec<u8>);
type Tensors = BTreeMap<String, Stored>;

struct Case {
    name: &'static str,
    settings: Value,
    ty: Dtype,
    /// The outputs and inputs that a scale covers.
    covered: [usize; 2],
    /// The last part of the scales' names, and their type.
    scale: (&'static str, Dtype),
    /// The shape of the scales, if it is not that of the blocks.
    shape: Option<Vec<usize>>,
    /// The last part of the name of a tensor that nothing here needs.
    beside: Option<&'static str>,
}

/// What `compressed-tensors` writes, with activations that other programs round.
fn compressed(weights: Value) -> Value {
    json!({
        "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": weights,
            "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": true}
        }}
    })
}

fn fp8(block: Value) -> Value {
    json!({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": block})
}

fn cases() -> Vec<Case> {
    let inverse = "weight_scale_inv";
    let channel = json!({"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true});
    let tensor = json!({"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": true});
    let block = json!({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [10, 16]});
    let case = |name, settings, covered, scale| Case {
        name,
        settings,
        ty: Dtype::F8_E4M3,
        covered,
        scale,
        shape: None,
        beside: None,
    };
    vec![
        // The matrices have 12 to 32 outputs and inputs, so the last blocks are cut off.
        case("blocks", fp8(json!([16, 10])), [16, 10], (inverse, Dtype::BF16)),
        case("large-blocks", fp8(json!([128, 128])), [128, 128], (inverse, Dtype::F32)),
        Case {
            shape: Some(vec![]),
            beside: Some("input_scale"),
            ..case("tensor", fp8(Value::Null), [ALL, ALL], ("weight_scale", Dtype::F32))
        },
        Case {
            ty: Dtype::F8_E5M2,
            shape: Some(vec![]),
            beside: Some("activation_scale"),
            ..case("e5m2", fp8(Value::Null), [ALL, ALL], (inverse, Dtype::BF16))
        },
        case("channels", compressed(channel), [1, ALL], ("weight_scale", Dtype::BF16)),
        Case {
            shape: Some(vec![1]),
            ..case("compressed-tensor", compressed(tensor), [ALL, ALL], ("weight_scale", Dtype::F32))
        },
        case("compressed-blocks", compressed(block), [10, 16], ("weight_scale", Dtype::F32)),
    ]
}

/// The number of a code, by the definition of OCP's formats: a sign, an exponent, and a fraction.
fn number(ty: Dtype, code: u8) -> f64 {
    let (bits, bias) = if ty == Dtype::F8_E5M2 { (2, 15) } else { (3, 7) };
    let (exponent, fraction) = (i32::from(code & 0x7f) >> bits, i32::from(code) % (1 << bits));
    let part = f64::from(fraction) / f64::from(1i32 << bits);
    let size = match exponent {
        // Subnormal numbers.
        0 => part * 2f64.powi(1 - bias),
        _ => (1.0 + part) * 2f64.powi(exponent - bias),
    };
    if code < 0x80 { size } else { -size }
}

/// A code that stands for a finite number.
fn finite(ty: Dtype, code: u8) -> u8 {
    let greatest = if ty == Dtype::F8_E5M2 { 0x7b } else { 0x7e };
    if code & 0x7f > greatest { 0 } else { code }
}

/// The layers' matrices.
const MATRICES: [(Role, &str); 7] = [
    (Role::Query, "self_attn.q_proj"),
    (Role::Key, "self_attn.k_proj"),
    (Role::Value, "self_attn.v_proj"),
    (Role::AttentionOutput, "self_attn.o_proj"),
    (Role::Gate, "mlp.gate_proj"),
    (Role::Up, "mlp.up_proj"),
    (Role::Down, "mlp.down_proj"),
];

fn bytes_of(numbers: &[f32], dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::BF16 => numbers.iter().flat_map(|&number| bf16::from_f32(number).to_le_bytes()).collect(),
        _ => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
    }
}

impl Case {
    /// The tensors of a model with codes, those of the same model with floats, and these floats.
    fn tensors(&self, model: &Copy) -> (Tensors, Tensors, Vec<(Weight, Vec<f32>)>) {
        let file = std::fs::read(model.path("model.safetensors")).expect("a file");
        let file = SafeTensors::deserialize(&file).expect("the weights");
        let mut codes: Tensors = file
            .iter()
            .map(|(name, view)| {
                (name.to_owned(), (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
            })
            .collect();
        let (mut plain, mut floats) = (codes.clone(), Vec::new());
        let seed = 1;
        println!("{}: seed {seed}", self.name);
        let mut rng = Rng::new(seed);
        let [rows, columns] = self.covered;
        let size = if self.ty == Dtype::F8_E5M2 { 2e-5 } else { 2e-3 };
        for (layer, (role, stem)) in (0..3).flat_map(|layer| MATRICES.map(|matrix| (layer, matrix))) {
            let stem = format!("model.layers.{layer}.{stem}.");
            let name = format!("{stem}weight");
            let shape = codes[&name].1.clone();
            let [outs, inputs] = shape[..] else { panic!("{name}: {shape:?}") };
            let blocks = [outs.div_ceil(rows), inputs.div_ceil(columns)];
            // Numbers that bf16 can hold.
            let scale = |rng: &mut Rng| bf16::from_f32((size * (0.5 + rng.uniform())) as f32).to_f32();
            let scales: Vec<f32> = (0..blocks[0] * blocks[1]).map(|_| scale(&mut rng)).collect();
            // Each code once, and then others.
            let code = |at: usize, rng: &mut Rng| if at < 256 { at as u8 } else { rng.bits() as u8 };
            let drawn: Vec<u8> = (0..outs * inputs).map(|at| finite(self.ty, code(at, &mut rng))).collect();
            let value = |(at, &code): (usize, &u8)| {
                let (out, input) = (at / inputs, at % inputs);
                let scale = scales[out / rows * blocks[1] + input / columns];
                // The product is exact in f64.
                (number(self.ty, code) * f64::from(scale)) as f32
            };
            let values: Vec<f32> = drawn.iter().enumerate().map(value).collect();
            plain.insert(name.clone(), (Dtype::F32, shape.clone(), bytes_of(&values, Dtype::F32)));
            let (last, dtype) = self.scale;
            let of_scales = self.shape.clone().unwrap_or_else(|| blocks.to_vec());
            codes.insert(format!("{stem}{last}"), (dtype, of_scales, bytes_of(&scales, dtype)));
            codes.insert(name, (self.ty, shape.clone(), drawn));
            if let Some(beside) = self.beside {
                codes.insert(format!("{stem}{beside}"), (Dtype::F32, vec![], bytes_of(&[0.5], Dtype::F32)));
            }
            floats.push((Weight { role, layer: Some(layer), shape }, values));
        }
        (codes, plain, floats)
    }
}

fn write(model: &Copy, tensors: &Tensors, settings: &Value) {
    let views: BTreeMap<&String, TensorView<'_>> = tensors
        .iter()
        .map(|(name, (dtype, shape, bytes))| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor"))
        })
        .collect();
    safetensors::serialize_to_file(views, None, &model.path("model.safetensors")).expect("a file");
    let path = model.path("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("settings");
    config["quantization_config"] = settings.clone();
    std::fs::write(&path, config.to_string()).expect("a file");
}

fn opened(folder: &Path) -> (Config, Folder) {
    let config = Config::read(folder).expect("the settings");
    let source = Folder::open(folder, &config).expect("the weights");
    (config, source)
}

#[test]
fn matrices_of_fp8_are_the_floats_of_their_codes() {
    for case in cases() {
        let name = case.name;
        let [coded, plain] =
            ["codes", "floats"].map(|kind| Copy::of("llama3", &format!("fp8-{name}-{kind}")));
        let (codes, same, floats) = case.tensors(&coded);
        write(&coded, &codes, &case.settings);
        write(&plain, &same, &Value::Null);
        let (config, source) = opened(&coded.0);
        for (weight, expected) in &floats {
            let Elements::F32(found) = source.read(weight).expect("floats") else {
                panic!("{name}: {weight:?} is not floats");
            };
            let bits = |numbers: &[f32]| numbers.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found), bits(expected), "{name}: {weight:?}");
        }
        let bytes = |config: &Config, source: &Folder| {
            weight_bytes(config, source, DType::BF16, Quantise::default()).expect("bytes")
        };
        let (of_floats, floats) = opened(&plain.0);
        assert_eq!(bytes(&config, &source), bytes(&of_floats, &floats), "{name}");
        let [found, expected] = [&coded, &plain].map(|model| {
            let model = load(&model.0, DType::F32);
            let prompt = [5, 9, 63, 0, 17, 30];
            let mut cache = Cache::new(&model, prompt.len()).expect("a cache");
            read(model.forward(&prompt, &mut cache, Logits::All).expect("logits"))
        });
        compare(name, &found, &expected);
    }
}

#[test]
fn fp8_that_does_not_fit_is_refused() {
    let case = cases().remove(0);
    let (codes, ..) = case.tensors(&Copy::of("llama3", "fp8-whole"));
    let error = |tensors: &Tensors, settings: &Value| {
        let model = Copy::of("llama3", "fp8-refused");
        write(&model, tensors, settings);
        model.error()
    };
    let query = "`model.layers.0.self_attn.q_proj.weight";
    let group = json!({"num_bits": 8, "type": "float", "strategy": "group", "group_size": 16});
    let of_four = json!({"num_bits": 4, "type": "float", "strategy": "tensor"});
    for (settings, text) in [
        (Value::Null, format!("{query}`: expected f32, f16 or bf16, found F8_E4M3")),
        (fp8(json!([8, 10])), format!("{query}_scale_inv`: expected [3, 3], found [2, 3]")),
        (fp8(Value::Null), format!("{query}_scale_inv`: expected [1] or [24, 1], found [2, 3]")),
        (
            fp8(json!([128])),
            "`quantization_config.weight_block_size`: expected two whole numbers above 0, found [128]".into(),
        ),
        (fp8(json!([0, 10])), "expected two whole numbers above 0, found [0,10]".into()),
        (compressed(group), "fp8 with scales by `group` is not supported".into()),
        (compressed(of_four), "a float-quantized checkpoint without fp8 is not supported".into()),
    ] {
        let found = error(&codes, &settings);
        assert!(found.contains(&text), "expected {text}\nfound    {found}");
    }
    let changed = |name: &str, to: Option<Stored>| {
        let mut tensors = codes.clone();
        tensors.remove(name).expect("the tensor");
        tensors.extend(to.map(|to| (name.to_owned(), to)));
        error(&tensors, &case.settings)
    };
    let scale = "model.layers.1.mlp.up_proj.weight_scale_inv";
    let found = changed(scale, None);
    assert!(found.contains("up_proj.weight_scale`: expected a scale, found nothing"), "{found}");
    let found = changed(scale, Some((Dtype::F8_E8M0, vec![2, 3], vec![127; 6])));
    assert!(found.contains("up_proj.weight_scale_inv`: expected f32, f16 or bf16, found F8_E8M0"), "{found}");
    let wide =
        changed("model.layers.0.mlp.gate_proj.weight", Some((case.ty, vec![33, 24], vec![0; 33 * 24])));
    assert!(wide.contains("gate_proj.weight`: expected [32, 24], found [33, 24]"), "{wide}");
}
