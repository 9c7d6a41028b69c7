//! Adapters in the format of the Python library PEFT: a folder with `adapter_config.json` and
//! `adapter_model.safetensors`. Both versions of Burn compile this file.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use burn_backend::{DType, TensorData};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value, json};

use super::config::ALL_LINEAR;
use super::{AdapterConfig, Lora, LoraConfig, LoraError, Targets};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// What PEFT's names begin with.
const PREFIX: &str = "base_model.model.";

/// A matrix on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct PeftMatrix {
    /// Rows and columns.
    pub shape: [usize; 2],
    /// f64, f32, f16 or bf16.
    pub dtype: DType,
    /// The little-endian elements, row by row.
    pub bytes: Vec<u8>,
}

impl PeftMatrix {
    /// The matrix for [`Tensor::from_data`](burn::tensor::Tensor::from_data).
    pub fn data(&self) -> TensorData {
        TensorData::from_bytes_vec(self.bytes.clone(), self.shape, self.dtype)
    }
}

/// The two matrices of an adapter on the host, as PEFT's files have them.
#[derive(Clone, Debug, PartialEq)]
pub struct PeftPair {
    /// `lora_A.weight`, `[rank, inputs]`.
    pub a: PeftMatrix,
    /// `lora_B.weight`, `[outputs, rank]`.
    pub b: PeftMatrix,
}

/// Adapters of a model on the host: what a PEFT folder has.
#[derive(Clone, Debug)]
pub struct Peft {
    lora: Lora,
    base_model: Option<String>,
    pairs: BTreeMap<String, PeftPair>,
    /// The file of the tensors, for errors.
    path: PathBuf,
}

impl Peft {
    /// The adapters of layers, by name. [`LoraLayer::pair`](super::LoraLayer::pair) reads one from
    /// the device.
    ///
    /// # Errors
    /// [`LoraError::Tensor`] for a pair of a layer that has no adapter by these settings, or with
    /// another rank.
    pub fn new(lora: Lora, pairs: impl IntoIterator<Item = (String, PeftPair)>) -> Result<Self, LoraError> {
        let peft = Self { lora, base_model: None, pairs: pairs.into_iter().collect(), path: WEIGHTS.into() };
        peft.check()?;
        Ok(peft)
    }

    /// Names the model that the adapters belong to, for `base_model_name_or_path`.
    pub fn with_base_model(mut self, name: impl Into<String>) -> Self {
        self.base_model = Some(name.into());
        self
    }

    /// The settings.
    pub fn lora(&self) -> &Lora {
        &self.lora
    }

    /// The model that the adapters belong to, if the file says so.
    pub fn base_model(&self) -> Option<&str> {
        self.base_model.as_deref()
    }

    /// The names of the layers.
    pub fn layers(&self) -> impl Iterator<Item = &str> {
        self.pairs.keys().map(String::as_str)
    }

    /// The adapter of a layer with these sizes; `None` if the settings give it none.
    ///
    /// # Errors
    /// [`LoraError::Tensor`] if the layer's adapter is missing or has other sizes.
    pub fn pair(
        &self,
        layer: &str,
        [inputs, outputs]: [usize; 2],
    ) -> Result<Option<(AdapterConfig, &PeftPair)>, LoraError> {
        let Some(adapter) = self.lora.adapter(layer) else { return Ok(None) };
        let [shape_a, shape_b] = [[adapter.rank, inputs], [outputs, adapter.rank]];
        let [name_a, name_b] = names(layer);
        let Some(pair) = self.pairs.get(layer) else {
            return Err(self.wrong(&name_a, format!("a tensor {shape_a:?}"), "nothing"));
        };
        for (name, expected, matrix) in [(name_a, shape_a, &pair.a), (name_b, shape_b, &pair.b)] {
            if matrix.shape != expected {
                return Err(self.wrong(&name, format!("{expected:?}"), format!("{:?}", matrix.shape)));
            }
        }
        Ok(Some((adapter, pair)))
    }

    /// Checks that the model has a layer for each adapter.
    ///
    /// # Errors
    /// [`LoraError::Tensor`] for the first adapter without a layer.
    pub fn check_layers(&self, has: impl Fn(&str) -> bool) -> Result<(), LoraError> {
        match self.layers().find(|layer| !has(layer)) {
            Some(layer) => {
                let [name, _] = names(layer);
                Err(self.wrong(&name, "an adapter of a layer of the model", "a layer that the model lacks"))
            }
            None => Ok(()),
        }
    }

    /// Reads a folder.
    ///
    /// # Errors
    /// [`LoraError::File`] for a file that is missing or damaged; [`LoraError::Field`] for settings
    /// that are missing, make no sense, or ask for what this crate does not compute (DoRA, biases,
    /// embeddings and others); [`LoraError::Tensor`] for tensors whose names are not those of
    /// adapters, that lack their partner, or that have other shapes or dtypes;
    /// [`LoraError::Setting`] as [`LoraConfig::build`].
    pub fn read(folder: &Path) -> Result<Self, LoraError> {
        let (config, base_model) = Settings::read(&folder.join(CONFIG))?;
        let path = folder.join(WEIGHTS);
        let failed = |reason: String| LoraError::File { path: path.clone(), reason };
        let bytes = fs::read(&path).map_err(|why| match folder.join("adapter_model.bin").exists() {
            true => failed(format!("{why}; adapter_model.bin is there, but only safetensors are read")),
            false => failed(why.to_string()),
        })?;
        let file = SafeTensors::deserialize(&bytes)
            .map_err(|why| failed(format!("damaged or cut off ({} bytes): {why}", bytes.len())))?;
        let mut halves: BTreeMap<String, [Option<PeftMatrix>; 2]> = BTreeMap::new();
        let wrong = |name: &str, expected: &str, found: String| LoraError::Tensor {
            path: path.clone(),
            name: name.to_owned(),
            expected: expected.to_owned(),
            found,
        };
        for (name, view) in file.iter() {
            let layer = name.strip_prefix(PREFIX);
            let of = |suffix| layer.and_then(|layer| layer.strip_suffix(suffix));
            let (layer, half) = match (of(".lora_A.weight"), of(".lora_B.weight")) {
                (Some(layer), _) => (layer, 0),
                (_, Some(layer)) => (layer, 1),
                _ => {
                    let expected = "a name `base_model.model.LAYER.lora_A.weight` or `..lora_B.weight`";
                    return Err(wrong(name, expected, "another name".to_owned()));
                }
            };
            let &[rows, columns] = view.shape() else {
                return Err(wrong(name, "a matrix", format!("{:?}", view.shape())));
            };
            let dtype = match view.dtype() {
                Dtype::F64 => DType::F64,
                Dtype::F32 => DType::F32,
                Dtype::F16 => DType::F16,
                Dtype::BF16 => DType::BF16,
                other => return Err(wrong(name, "f64, f32, f16 or bf16", format!("{other:?}"))),
            };
            let matrix = PeftMatrix { shape: [rows, columns], dtype, bytes: view.data().to_vec() };
            halves.entry(layer.to_owned()).or_default()[half] = Some(matrix);
        }
        let mut pairs = BTreeMap::new();
        for (layer, pair) in halves {
            let [name_a, name_b] = names(&layer);
            match pair {
                [Some(a), Some(b)] => pairs.insert(layer, PeftPair { a, b }),
                [None, _] => return Err(wrong(&name_a, "a tensor beside its lora_B", "nothing".to_owned())),
                [_, None] => return Err(wrong(&name_b, "a tensor beside its lora_A", "nothing".to_owned())),
            };
        }
        let peft = Self { lora: config.build()?, base_model, pairs, path };
        peft.check()?;
        Ok(peft)
    }

    /// Writes a folder, which PEFT's `PeftModel.from_pretrained` reads. Makes the folder if it does
    /// not exist, and replaces the two files.
    ///
    /// # Errors
    /// [`LoraError::File`] if a file can't be written.
    pub fn write(&self, folder: &Path) -> Result<(), LoraError> {
        let failed = |path: &Path, why: &dyn fmt::Display| LoraError::File {
            path: path.to_owned(),
            reason: why.to_string(),
        };
        fs::create_dir_all(folder).map_err(|why| failed(folder, &why))?;
        let path = folder.join(WEIGHTS);
        let mut views = Vec::new();
        for (layer, pair) in &self.pairs {
            for (name, matrix) in names(layer).into_iter().zip([&pair.a, &pair.b]) {
                let dtype = match matrix.dtype {
                    DType::F64 => Dtype::F64,
                    DType::F16 => Dtype::F16,
                    DType::BF16 => Dtype::BF16,
                    // `check` has refused the others.
                    _ => Dtype::F32,
                };
                let view = TensorView::new(dtype, matrix.shape.to_vec(), &matrix.bytes);
                views.push((name, view.map_err(|why| failed(&path, &why))?));
            }
        }
        let metadata = Some([("format".to_owned(), "pt".to_owned())].into());
        let bytes = safetensors::serialize(views, metadata).map_err(|why| failed(&path, &why))?;
        fs::write(&path, bytes).map_err(|why| failed(&path, &why))?;
        let path = folder.join(CONFIG);
        let text = Settings::text(self.lora.config(), self.base_model.as_deref());
        fs::write(&path, text).map_err(|why| failed(&path, &why))
    }

    /// Checks names, dtypes and ranks against the settings.
    fn check(&self) -> Result<(), LoraError> {
        for (layer, PeftPair { a, b }) in &self.pairs {
            let [name, name_b] = names(layer);
            let Some(AdapterConfig { rank, .. }) = self.lora.adapter(layer) else {
                return Err(self.wrong(&name, "an adapter of a target", "a layer that is no target"));
            };
            for (name, matrix, axis) in [(&name, a, 0), (&name_b, b, 1)] {
                if matrix.shape[axis] != rank {
                    let side = ["rows", "columns"][axis];
                    let found = format!("{:?}", matrix.shape);
                    return Err(self.wrong(name, format!("a matrix of {rank} {side}"), found));
                }
                if !matches!(matrix.dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16) {
                    return Err(self.wrong(name, "f64, f32, f16 or bf16", format!("{:?}", matrix.dtype)));
                }
            }
        }
        Ok(())
    }

    fn wrong(&self, name: &str, expected: impl Into<String>, found: impl Into<String>) -> LoraError {
        LoraError::Tensor {
            path: self.path.clone(),
            name: name.to_owned(),
            expected: expected.into(),
            found: found.into(),
        }
    }
}

fn names(layer: &str) -> [String; 2] {
    ["lora_A", "lora_B"].map(|half| format!("{PREFIX}{layer}.{half}.weight"))
}

/// An object's entries in the order of the file.
struct Pairs<T>(Vec<(String, T)>);

impl<T> Default for Pairs<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Each<T> {
            type Value = Pairs<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of patterns and numbers")
            }

            fn visit_unit<E>(self) -> Result<Pairs<T>, E> {
                Ok(Pairs(Vec::new()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<T>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_any(Each(std::marker::PhantomData))
    }
}

/// The patterns, whose order counts.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Patterns {
    rank_pattern: Pairs<usize>,
    alpha_pattern: Pairs<f64>,
}

/// The contents of `adapter_config.json`.
struct Settings {
    path: PathBuf,
    map: Map<String, Value>,
}

/// Settings that change nothing once the adapters are trained, or that other functions here read.
const HARMLESS: [&str; 16] = [
    "auto_mapping",
    "base_model_name_or_path",
    "ensure_weight_tying",
    "inference_mode",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
    "alpha_pattern",
    "rank_pattern",
    "eva_config",
    "loftq_config",
    "peft_type",
    "init_lora_weights",
];

impl Settings {
    /// The settings, and the name of the model.
    fn read(path: &Path) -> Result<(LoraConfig, Option<String>), LoraError> {
        let failed = |reason: String| LoraError::File { path: path.to_owned(), reason };
        let text = fs::read_to_string(path).map_err(|why| failed(why.to_string()))?;
        let map =
            serde_json::from_str(&text).map_err(|why| failed(format!("expected a JSON object: {why}")))?;
        let patterns: Patterns =
            serde_json::from_str(&text).map_err(|why| failed(format!("the patterns: {why}")))?;
        let mut settings = Self { path: path.to_owned(), map };
        let kind = settings.map.get("peft_type").and_then(Value::as_str);
        if kind != Some("LORA") {
            return Err(settings.wrong("peft_type", "\"LORA\"", settings.map.get("peft_type")));
        }
        settings.check_start()?;
        let base_model =
            settings.map.get("base_model_name_or_path").and_then(Value::as_str).map(str::to_owned);
        let take =
            |settings: &mut Self, name: &str| settings.map.remove(name).filter(|value| !value.is_null());
        let targets = take(&mut settings, "target_modules");
        let Some(targets) =
            targets.as_ref().map(|value| settings.targets("target_modules", value)).transpose()?
        else {
            return Err(settings.wrong("target_modules", "names or a regular expression", None));
        };
        let exclude = take(&mut settings, "exclude_modules");
        let exclude = exclude.as_ref().map(|value| settings.targets("exclude_modules", value)).transpose()?;
        let exclude = exclude.filter(|exclude| !matches!(exclude, Targets::Names(names) if names.is_empty()));
        let config = LoraConfig {
            rank: settings.take("r", "a whole number", Some(8), |value| {
                value.as_u64().and_then(|rank| usize::try_from(rank).ok())
            })?,
            alpha: settings.take("lora_alpha", "a number", Some(8.0), Value::as_f64)?,
            rslora: settings.take("use_rslora", "true or false", Some(false), Value::as_bool)?,
            dropout: settings.take("lora_dropout", "a number", Some(0.0), Value::as_f64)?,
            targets,
            exclude,
            layers: settings.layers()?,
            ranks: patterns.rank_pattern.0,
            alphas: patterns.alpha_pattern.0,
        };
        let bias = settings
            .take("bias", "a text", Some("none".to_owned()), |value| value.as_str().map(str::to_owned))?;
        if bias != "none" {
            return Err(settings.wrong("bias", "\"none\"", Some(&json!(bias))));
        }
        settings.check_rest()?;
        Ok((config, base_model))
    }

    /// Some ways to start the training change the model's weights, so that the adapters fit only
    /// the changed ones.
    fn check_start(&self) -> Result<(), LoraError> {
        let value = self.map.get("init_lora_weights");
        let keeps = match value {
            None | Some(Value::Null | Value::Bool(_)) => true,
            Some(Value::String(kind)) => matches!(kind.as_str(), "gaussian" | "eva" | "orthogonal"),
            Some(_) => false,
        };
        if keeps {
            return Ok(());
        }
        let expected =
            "true, false, \"gaussian\", \"eva\" or \"orthogonal\", which leave the model's weights";
        Err(self.wrong("init_lora_weights", expected, value))
    }

    /// Every other setting must be off.
    fn check_rest(&self) -> Result<(), LoraError> {
        let asks = |value: &Value| match value {
            Value::Null | Value::Bool(false) => false,
            Value::Array(list) => !list.is_empty(),
            Value::Object(map) => !map.is_empty(),
            _ => true,
        };
        let rest = self.map.iter().find(|(name, value)| !HARMLESS.contains(&name.as_str()) && asks(value));
        match rest {
            Some((name, value)) => {
                Err(self.wrong(name, "null or false, because this crate does not compute it", Some(value)))
            }
            None => Ok(()),
        }
    }

    fn wrong(&self, field: &str, expected: &str, found: Option<&Value>) -> LoraError {
        LoraError::Field {
            path: self.path.clone(),
            field: field.to_owned(),
            expected: expected.to_owned(),
            found: found.map_or_else(|| "nothing".to_owned(), Value::to_string),
        }
    }

    fn take<T>(
        &mut self,
        name: &str,
        expected: &str,
        default: Option<T>,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<T, LoraError> {
        let value = self.map.remove(name).filter(|value| !value.is_null());
        let read = match &value {
            Some(value) => read(value),
            None => default,
        };
        read.ok_or_else(|| self.wrong(name, expected, value.as_ref()))
    }

    fn targets(&self, name: &str, value: &Value) -> Result<Targets, LoraError> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let targets = match value {
            // If it is `all-linear`, `LoraConfig::build` makes it all layers.
            Value::String(text) => Some(Targets::Matching(text.clone())),
            Value::Array(list) => list.iter().map(text).collect::<Option<_>>().map(Targets::Names),
            _ => None,
        };
        targets.ok_or_else(|| self.wrong(name, "a list of names or a regular expression", Some(value)))
    }

    /// The indices of layers.
    fn layers(&mut self) -> Result<Option<Vec<usize>>, LoraError> {
        let index = |value: &Value| value.as_u64().and_then(|index| usize::try_from(index).ok());
        let layers =
            self.take("layers_to_transform", "a layer's index or a list", Some(None), |value| match value {
                Value::Array(list) => list.iter().map(index).collect::<Option<Vec<_>>>().map(Some),
                one => index(one).map(|index| Some(vec![index])),
            })?;
        Ok(layers.filter(|layers| !layers.is_empty()))
    }

    /// The file of these settings.
    fn text(config: &LoraConfig, base_model: Option<&str>) -> String {
        let targets = |targets: &Targets| match targets {
            Targets::Names(names) => json!(names),
            Targets::Matching(pattern) => json!(pattern),
            Targets::All => json!(ALL_LINEAR),
        };
        // serde_json may sort an object's entries, and the order of patterns counts.
        fn object<T: serde::Serialize>(pairs: &[(String, T)]) -> String {
            let entry = |(pattern, value): &(String, T)| format!("{}: {}", json!(pattern), json!(value));
            format!("{{{}}}", pairs.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
        let entries = [
            ("peft_type", json!("LORA").to_string()),
            ("task_type", json!("CAUSAL_LM").to_string()),
            ("base_model_name_or_path", json!(base_model).to_string()),
            ("inference_mode", json!(true).to_string()),
            ("r", json!(config.rank).to_string()),
            ("lora_alpha", json!(config.alpha).to_string()),
            ("use_rslora", json!(config.rslora).to_string()),
            ("lora_dropout", json!(config.dropout).to_string()),
            ("target_modules", targets(&config.targets).to_string()),
            ("exclude_modules", json!(config.exclude.as_ref().map(targets)).to_string()),
            ("layers_to_transform", json!(config.layers).to_string()),
            ("rank_pattern", object(&config.ranks)),
            ("alpha_pattern", object(&config.alphas)),
            ("bias", json!("none").to_string()),
        ];
        let lines: Vec<String> =
            entries.iter().map(|(name, value)| format!("  \"{name}\": {value}")).collect();
        format!("{{\n{}\n}}\n", lines.join(",\n"))
    }
}
