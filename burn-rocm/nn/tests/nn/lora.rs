//! Adapters: PyTorch's gradients, training, merging, and PEFT's files.

use std::path::{Path, PathBuf};

use burn::module::{AutodiffModule, Module, Param};
use burn::nn::Linear;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_rocm_nn::language::lora::{
    FrozenLinear, LoraConfig, LoraError, LoraLayer, LoraLinear, Peft, PeftMatrix, PeftPair, Targets,
};
use burn_rocm_nn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn_rocm_tests::limits::unit;

use crate::lora_reference::{LAYERS, Matrix, folder, hold, reference, results};
use crate::support::{DType, Oracle, Ours, Tensor, TensorData};

/// The network of `tests/llama/lora.py`.
#[derive(Module, Debug)]
struct Network<B: Backend> {
    first: LoraLinear<B>,
    second: LoraLinear<B>,
    head: LoraLinear<B>,
}

fn tensor<B: Backend>(matrix: &Matrix, dtype: DType) -> Tensor<B, 2> {
    let data = TensorData::new(matrix.values.clone(), [matrix.rows, matrix.columns]);
    Tensor::from_data(data, (&Default::default(), dtype))
}

fn linear<B: Backend>(name: &str, dtype: DType) -> Linear<B> {
    let weight = tensor(&reference(&format!("base.{name}.weight")).transposed(), dtype);
    let bias = (name != "blocks.1.out_proj")
        .then(|| tensor(&reference(&format!("base.{name}.bias")), dtype).squeeze_dim::<1>(0));
    Linear { weight: Param::from_tensor(weight), bias: bias.map(Param::from_tensor) }
}

impl<B: Backend> Network<B> {
    fn read(dtype: DType) -> Self {
        let peft = Peft::read(&folder()).unwrap();
        let layer = |name: &str| peft.adapt(name, linear(name, dtype)).unwrap();
        Self { first: layer("blocks.0.q_proj"), second: layer("blocks.1.out_proj"), head: layer("head") }
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.head.forward(self.second.forward(self.first.forward(x).tanh()).tanh())
    }

    fn loss(&self, dtype: DType) -> [Tensor<B, 2>; 2] {
        let output = self.forward(tensor(&reference("x"), dtype));
        let loss = (output.clone() - tensor(&reference("target"), dtype)).powi_scalar(2).mean();
        [output, loss.reshape([1, 1])]
    }
}

fn numbers<B: Backend>(tensor: Tensor<B, 2>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

fn gradients<B: AutodiffBackend>(dtype: DType) -> Vec<Vec<f64>> {
    let network = Network::<B>::read(dtype);
    assert!(network.head.adapter.is_none());
    let [output, loss] = network.loss(dtype);
    let grads = loss.clone().backward();
    let mut found = vec![numbers(output), numbers(loss)];
    for layer in [&network.first, &network.second] {
        let adapter = layer.adapter.as_ref().expect("an adapter");
        for param in [&adapter.a, &adapter.b] {
            assert_eq!(param.val().dtype(), dtype);
            found.push(numbers(param.val().grad(&grads).expect("a gradient")));
        }
        assert!(layer.base.weight.val().grad(&grads).is_none(), "the layer is frozen");
        assert!(layer.base.bias.as_ref().is_none_or(|bias| bias.val().grad(&grads).is_none()));
    }
    found
}

#[test]
fn gradients_are_those_of_pytorch() {
    for dtype in [DType::F64, DType::F32] {
        // In f64 the reference is off as well.
        let unit = unit(dtype) * if dtype == DType::F64 { 2.0 } else { 1.0 };
        for (limited, found) in results().iter().zip(gradients::<Ours>(dtype)) {
            hold(limited, &found, unit);
        }
        for (limited, found) in results().iter().zip(gradients::<Oracle>(dtype)) {
            hold(limited, &found, unit);
        }
    }
}

#[test]
fn only_adapters_are_trained() {
    let mut network = Network::<Ours>::read(DType::F32);
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.1).init();
    let all = |network: &Network<Ours>| {
        let layers = [&network.first, &network.second, &network.head];
        let base = layers.map(|layer| {
            (layer.base.weight.val().into_data(), layer.base.bias.as_ref().map(|bias| bias.val().into_data()))
        });
        let adapters = [&network.first, &network.second].map(|layer| layer.pair().unwrap().unwrap().1);
        (base, adapters, numbers(network.loss(DType::F32)[1].clone())[0])
    };
    let before = all(&network);
    for _ in 0..30 {
        let grads = network.loss(DType::F32)[1].clone().backward();
        let grads = GradientsParams::from_grads(grads, &network);
        assert_eq!(grads.len(), 4);
        network = optimizer.step(1e-2, network, grads);
    }
    assert_eq!(optimizer.to_record().len(), 4, "states of the adapters' parameters alone");
    let after = all(&network);
    assert_eq!(before.0, after.0, "frozen layers keep their bits");
    for (before, after) in before.1.iter().zip(&after.1) {
        assert!(before.a != after.a && before.b != after.b);
    }
    assert!(after.2 < 0.7 * before.2, "the loss falls: {} to {}", before.2, after.2);
    // A clone without autodiff computes the same.
    let valid = network.valid();
    let x = || reference("x");
    let found = numbers(valid.forward(tensor(&x(), DType::F32)));
    assert_eq!(found, numbers(network.forward(tensor(&x(), DType::F32))));
}

#[test]
fn new_adapters_change_nothing() {
    let lora = LoraConfig::new(3, Targets::names(["q_proj"])).build().unwrap();
    let base = linear::<Ours>("blocks.0.q_proj", DType::F32);
    let x = || tensor::<Ours>(&reference("x"), DType::F32);
    let before = base.forward(x()).into_data();
    let layer: LoraLinear<Ours> = lora.adapt("blocks.0.q_proj", base);
    let adapter = layer.adapter.as_ref().expect("an adapter");
    assert_eq!((adapter.a.val().dims(), adapter.b.val().dims()), ([10, 3], [3, 12]));
    let bound = 10f64.powf(-0.5);
    let drawn = numbers(adapter.a.val());
    assert!(drawn.iter().all(|x| x.abs() <= bound) && drawn.iter().any(|x| x.abs() > bound / 2.0));
    assert_eq!(layer.forward(x()).into_data(), before);
    // B has a gradient at once, A's is 0 because B is.
    let grads = layer.forward(x()).sum().backward();
    let grad = |param: &Param<Tensor<Ours, 2>>| numbers(param.val().grad(&grads).expect("a gradient"));
    assert!(grad(&adapter.a).iter().all(|&g| g == 0.0) && grad(&adapter.b).iter().any(|&g| g != 0.0));
}

/// `W + scale A B` is a sum of 3 products, a scale, a sum and a rounding to the weights' dtype.
#[test]
fn merged_and_unmerged_weights() {
    for (name, rank, scale) in LAYERS {
        for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
            let base = linear::<Ours>(name, dtype);
            let weight = numbers(base.weight.val());
            let layer = Peft::read(&folder()).unwrap().adapt(name, base).unwrap();
            let adapter = layer.adapter.as_ref().expect("an adapter");
            assert!((adapter.scale - scale).abs() <= 1e-15 * scale);
            let merged = layer.merged().unwrap();
            assert_eq!(merged.weight.val().dtype(), dtype);
            let product = adapter.a.val().abs().matmul(adapter.b.val().abs()) * scale;
            let magnitude = numbers(product);
            let expected = reference(&format!("merged.{name}")).transposed();
            let wide = unit(if dtype == DType::F64 { dtype } else { DType::F32 });
            let found = numbers(merged.weight.val());
            let again = numbers(layer.unmerged(merged).unwrap().weight.val());
            for (k, found) in found.into_iter().enumerate() {
                let whole = weight[k].abs() + magnitude[k];
                // The reference adds to weights that were not rounded to 16 bits.
                let rounded = 2.0 * unit(dtype);
                let limit = 1.01 * whole * (rounded + (rank + 3) as f64 * wide);
                let error = (found - expected.values[k]).abs();
                assert!(error <= limit, "{name} in {dtype:?}, {k}: off by {error:e}, limit {limit:e}");
                // Twice a sum in the wider dtype and a rounding; the product has the same bits.
                let limit = 1.01 * 2.0 * whole * (unit(dtype) + wide);
                let error = (again[k] - weight[k]).abs();
                assert!(error <= limit, "{name} in {dtype:?}, {k}: unmerged off by {error:e}");
            }
        }
    }
}

/// The output has the layer's dtype, and is off by its roundings: the layer's of 10 products in
/// f32, that to bf16, the adapter's cast to bf16, and the sum's.
#[test]
fn adapters_in_f32_on_layers_in_bf16() {
    let of = |dtype| {
        let layer: LoraLinear<Ours> =
            Peft::read(&folder()).unwrap().adapt(LAYERS[0].0, linear(LAYERS[0].0, DType::BF16)).unwrap();
        let x = tensor::<Ours>(&reference("x"), DType::BF16).cast(dtype);
        (layer, x)
    };
    let (layer, x) = of(DType::BF16);
    let found = layer.forward(x.clone());
    assert_eq!(found.dtype(), DType::BF16);
    let adapter = layer.adapter.as_ref().expect("an adapter");
    assert_eq!(adapter.a.val().dtype(), DType::F32);
    let wide = |tensor: Tensor<Ours, 2>| tensor.cast(DType::F64);
    let (a, b) = (wide(adapter.a.val()) * adapter.scale, wide(adapter.b.val()));
    let (weight, x) = (wide(layer.base.weight.val()), wide(x));
    let bias = wide(layer.base.bias.as_ref().expect("a bias").val().unsqueeze());
    let expected = x.clone().matmul(weight.clone() + a.clone().matmul(b.clone())) + bias.clone();
    let magnitude = x.abs().matmul(weight.abs() + a.abs().matmul(b.abs())) + bias.abs();
    let (found, expected, magnitude) = (numbers(found), numbers(expected), numbers(magnitude));
    for k in 0..found.len() {
        // Product, bias, cast and sum, each rounded to bf16.
        let limit = 1.01 * magnitude[k] * (4.0 * unit(DType::BF16) + 32.0 * unit(DType::F32));
        assert!((found[k] - expected[k]).abs() <= limit, "{k}: {}, not {}", found[k], expected[k]);
    }
}

#[test]
fn dropout_acts_in_training_alone() {
    let lora = LoraConfig { alpha: 8.0, dropout: 0.75, ..LoraConfig::new(8, Targets::All) }.build().unwrap();
    let eye = || Tensor::<Ours, 2>::eye(8, &Default::default());
    let zeros = Linear { weight: Param::from_tensor(eye() * 0.0), bias: None };
    let mut layer: LoraLinear<Ours> = lora.adapt("layer", zeros);
    let adapter = layer.adapter.as_mut().expect("an adapter");
    (adapter.a, adapter.b) = (Param::from_tensor(eye()), Param::from_tensor(eye()));
    let found = numbers(layer.forward(Tensor::ones([64, 8], &Default::default())));
    let kept = found.iter().filter(|&&x| x == 4.0).count();
    assert_eq!(kept + found.iter().filter(|&&x| x == 0.0).count(), 512, "dropped, or divided by 1 - 0.75");
    // 512 draws of which a quarter is kept: 128, give or take 8 deviations of 9.8.
    assert!((50..206).contains(&kept), "{kept} of 512 features are kept");
    let valid = numbers(layer.valid().forward(Tensor::ones([64, 8], &Default::default())));
    assert!(valid.iter().all(|&x| x == 1.0));
}

/// A layer whose weights can't be added to.
#[derive(Module, Debug)]
struct Twice<B: Backend> {
    place: Tensor<B, 1>,
}

impl<B: Backend> FrozenLinear<B> for Twice<B> {
    fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        x * 2.0
    }

    fn sizes(&self) -> [usize; 2] {
        [4, 4]
    }

    fn device(&self) -> B::Device {
        self.place.device()
    }
}

#[test]
fn other_layers_take_adapters() {
    let lora = LoraConfig::new(2, Targets::All).build().unwrap();
    let base = Twice { place: Tensor::<Ours, 1>::zeros([1], &Default::default()) };
    let layer: LoraLayer<Ours, Twice<Ours>> = lora.adapt("layers.0.twice", base);
    let x = Tensor::<Ours, 2>::ones([3, 4], &Default::default());
    let grads = layer.forward(x.clone()).sum().backward();
    assert_eq!(GradientsParams::from_grads(grads, &layer).len(), 2);
    assert!(numbers(layer.forward(x)).iter().all(|&y| y == 2.0));
    let error = layer.merged().expect_err("an error").to_string();
    assert!(
        error.contains("layer `layers.0.twice`: expected weights to which an adapter can be added"),
        "{error}"
    );
}

/// A folder that a test may change.
fn copy(test: &str) -> PathBuf {
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lora-{test}"));
    let _ = std::fs::remove_dir_all(&to);
    std::fs::create_dir_all(&to).unwrap();
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(folder().join(name), to.join(name)).unwrap();
    }
    to
}

#[test]
fn what_is_written_is_read() {
    let peft = Peft::read(&folder()).unwrap();
    let to = copy("written");
    let network = Network::<Ours>::read(DType::F32);
    let pairs = [&network.first, &network.second, &network.head].map(|layer| layer.pair().unwrap());
    let written = Peft::new(peft.lora().clone(), pairs.into_iter().flatten()).unwrap();
    written.with_base_model("a model").write(&to.join("new")).unwrap();
    let again = Peft::read(&to.join("new")).unwrap();
    assert_eq!(again.base_model(), Some("a model"));
    assert_eq!(again.lora().config(), peft.lora().config());
    assert_eq!(again.layers().collect::<Vec<_>>(), LAYERS.map(|(name, ..)| name));
    for (name, sizes) in LAYERS.iter().map(|layer| layer.0).zip([[10, 12], [12, 6]]) {
        let (config, pair) = peft.pair(name, sizes).unwrap().expect("an adapter");
        assert_eq!(again.pair(name, sizes).unwrap(), Some((config, pair)));
    }
    // Patterns keep their order, and every kind of target comes back.
    let pairs = |names: &[&str]| names.iter().map(|&name| (name.to_owned(), 0)).collect::<Vec<_>>();
    for targets in [Targets::All, Targets::names(["z", "a"]), Targets::Matching(r"\w+\.\d".to_owned())] {
        let config = LoraConfig {
            rslora: true,
            dropout: 0.25,
            layers: matches!(targets, Targets::Names(_)).then(|| vec![3, 1]),
            exclude: Some(Targets::names(["b"])),
            ranks: pairs(&["z\"", "a", "m"]).into_iter().map(|(name, _)| (name, 5)).collect(),
            alphas: pairs(&["y", "b"]).into_iter().map(|(name, _)| (name, 0.5)).collect(),
            ..LoraConfig::new(7, targets)
        };
        Peft::new(config.build().unwrap(), []).unwrap().write(&to.join("new")).unwrap();
        assert_eq!(Peft::read(&to.join("new")).unwrap().lora().config(), &config);
    }
    // PEFT's name for all layers, of any case. As an exclusion it is a pattern that no layer matches.
    let pattern = |pattern: &str| Targets::Matching(pattern.to_owned());
    let of = |targets| LoraConfig { exclude: Some(pattern("all-linear")), ..LoraConfig::new(7, targets) };
    for name in ["all-linear", "All-Linear"] {
        let lora = of(pattern(name)).build().unwrap();
        assert!(lora.adapter("q_proj").is_some());
        Peft::new(lora, []).unwrap().write(&to.join("new")).unwrap();
        assert_eq!(Peft::read(&to.join("new")).unwrap().lora().config(), &of(Targets::All));
    }
}

#[test]
fn wrong_settings_are_refused() {
    let to = copy("settings");
    let path = to.join("adapter_config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    for (from, with, expected) in [
        ("\"LORA\"", "\"IA3\"", "`peft_type`: expected \"LORA\", found \"IA3\""),
        ("\"r\": 3", "\"r\": \"3\"", "`r`: expected a whole number, found \"3\""),
        ("\"r\": 3", "\"r\": 0", "`rank`: expected at least 1, found 0"),
        ("\"use_dora\": false", "\"use_dora\": true", "`use_dora`: expected null or false"),
        ("\"bias\": \"none\"", "\"bias\": \"all\"", "`bias`: expected \"none\", found \"all\""),
        ("\"fan_in_fan_out\": false", "\"fan_in_fan_out\": true", "`fan_in_fan_out`: expected null or false"),
        ("\"modules_to_save\": null", "\"modules_to_save\": [\"head\"]", "`modules_to_save`: expected null"),
        ("\"use_dora\": false", "\"use_later_invention\": true", "`use_later_invention`: expected null"),
        ("\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa\"", "found \"pissa\""),
        ("\"target_modules\": ", "\"target_modules_\": ", "`target_modules`: expected names"),
        ("\"out_proj\": 2", "\"out_proj\": \"2\"", "the patterns: invalid type"),
        (
            "\"out_proj\": 2",
            "\"out_proj\": 4",
            "`base_model.model.blocks.1.out_proj.lora_A.weight`: expected a matrix of 4 rows",
        ),
        ("(q|out)", "(q)", "expected an adapter of a target, found a layer that is no target"),
    ] {
        assert!(text.contains(from), "{from} in {text}");
        std::fs::write(&path, text.replace(from, with)).unwrap();
        let found = Peft::read(&to).expect_err("an error").to_string();
        assert!(found.contains(expected), "expected {expected}\nfound    {found}");
    }
    std::fs::write(&path, "[1]").unwrap();
    let found = Peft::read(&to).expect_err("an error").to_string();
    assert!(found.contains("adapter_config.json: expected a JSON object"), "{found}");
}

#[test]
fn wrong_tensors_are_refused() {
    use safetensors::tensor::{Dtype, TensorView};
    let to = copy("tensors");
    let write = |tensors: &[(&str, Dtype, &[usize])]| {
        let zeros = [0; 4096];
        let views = tensors.iter().map(|&(name, dtype, shape)| {
            let size = if dtype == Dtype::I32 || dtype == Dtype::F32 { 4 } else { 8 };
            let bytes = &zeros[..size * shape.iter().product::<usize>()];
            (name, TensorView::new(dtype, shape.to_vec(), bytes).unwrap())
        });
        std::fs::write(to.join("adapter_model.safetensors"), safetensors::serialize(views, None).unwrap())
            .unwrap();
    };
    let error = |read: Result<Peft, LoraError>| read.expect_err("an error").to_string();
    let f = Dtype::F32;
    const A: &str = "base_model.model.blocks.0.q_proj.lora_A.weight";
    const B: &str = "base_model.model.blocks.0.q_proj.lora_B.weight";
    for (tensors, expected) in [
        (
            vec![(A, f, &[3, 10][..])],
            format!("tensor `{B}`: expected a tensor beside its lora_A, found nothing"),
        ),
        (vec![(B, f, &[12, 3])], format!("tensor `{A}`: expected a tensor beside its lora_B, found nothing")),
        (
            vec![(A, f, &[3, 10]), (B, f, &[12, 4])],
            format!("`{B}`: expected a matrix of 3 columns, found [12, 4]"),
        ),
        (vec![(A, f, &[30])], format!("`{A}`: expected a matrix, found [30]")),
        (vec![(A, Dtype::I32, &[3, 10])], format!("`{A}`: expected f64, f32, f16 or bf16, found I32")),
        (
            vec![("base_model.model.embed_tokens.lora_embedding_A", f, &[3, 10])],
            "lora_embedding_A`: expected a name `base_model.model.LAYER.lora_A.weight`".to_owned(),
        ),
        (vec![("blocks.0.q_proj.lora_A.weight", f, &[3, 10])], "found another name".to_owned()),
    ] {
        write(&tensors);
        let found = error(Peft::read(&to));
        assert!(found.contains(&expected), "expected {expected}\nfound    {found}");
    }
    // A layer of other sizes, one that the file lacks, and one that the model lacks.
    write(&[(A, f, &[3, 11]), (B, f, &[12, 3])]);
    let peft = Peft::read(&to).unwrap();
    let found = peft.adapt(LAYERS[0].0, linear::<Ours>(LAYERS[0].0, DType::F32)).expect_err("an error");
    assert!(found.to_string().contains(&format!("`{A}`: expected [3, 10], found [3, 11]")), "{found}");
    let found = peft.adapt(LAYERS[1].0, linear::<Ours>(LAYERS[1].0, DType::F32)).expect_err("an error");
    assert!(
        found.to_string().contains("out_proj.lora_A.weight`: expected a tensor [2, 12], found nothing"),
        "{found}"
    );
    peft.check_layers(|name| name == LAYERS[0].0).unwrap();
    let found = peft.check_layers(|_| false).expect_err("an error").to_string();
    assert!(
        found.contains("expected an adapter of a layer of the model, found a layer that the model lacks"),
        "{found}"
    );
    let zeros =
        |shape: [usize; 2], dtype| PeftMatrix { shape, dtype, bytes: vec![0; shape[0] * shape[1] * 4] };
    let pair = PeftPair { a: zeros([3, 10], DType::I32), b: zeros([12, 3], DType::F32) };
    let found = error(Peft::new(peft.lora().clone(), [(LAYERS[0].0.to_owned(), pair)]));
    assert!(found.contains("expected f64, f32, f16 or bf16, found I32"), "{found}");

    let whole = std::fs::read(folder().join("adapter_model.safetensors")).unwrap();
    for cut in [4, 100, whole.len() - 1] {
        std::fs::write(to.join("adapter_model.safetensors"), &whole[..cut]).unwrap();
        let found = error(Peft::read(&to));
        assert!(found.contains(&format!("damaged or cut off ({cut} bytes)")), "{found}");
    }
    std::fs::remove_file(to.join("adapter_model.safetensors")).unwrap();
    std::fs::write(to.join("adapter_model.bin"), "").unwrap();
    let found = error(Peft::read(&to));
    assert!(found.contains("adapter_model.bin is there, but only safetensors are read"), "{found}");
    assert!(matches!(Peft::read(Path::new("/nonexistent")), Err(LoraError::File { .. })));
}
