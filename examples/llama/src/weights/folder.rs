//! The weights of a Hugging Face folder: `model.safetensors`, or the files of
//! `model.safetensors.index.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Component, Path, PathBuf};

use burn::tensor::DType;
use burn_rocm::RocmError;
use burn_rocm::fused::WeightParts;
use burn_rocm_nn::language::quant::RawTensor;
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};

use super::fp8::{Fp8, Matrix, fp8_type};
use super::quantised::{self, Method, Scheme};
use super::{Elements, POINTER, Role, Source, Weight, is_pointer};
use crate::config::{Config, Family, read_json};
use crate::error::{Error, Result};

/// One mapped file.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    map: Mmap,
}

/// One tensor of a file.
#[derive(Debug)]
struct Entry {
    part: usize,
    /// Where its bytes are within the file.
    bytes: std::ops::Range<usize>,
    shape: Vec<usize>,
    dtype: Dtype,
}

/// The weights of a folder, mapped into memory: the system reads a tensor's pages when they are
/// copied to the device.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    parts: Vec<Part>,
    entries: BTreeMap<String, Entry>,
    /// What the names of the text model begin with.
    prefix: String,
    gemma: bool,
    /// How linear layers are quantised.
    method: Option<Method>,
}

impl Folder {
    /// Opens the weights of a folder.
    ///
    /// # Errors
    /// [`Error::File`] if a file is missing, cut off or damaged; [`Error::Unsupported`] for another
    /// quantisation than GPTQ, AWQ, compressed-tensors and fp8.
    pub fn open(path: &Path, config: &Config) -> Result<Self> {
        let mut folder = Self {
            path: path.to_owned(),
            parts: Vec::new(),
            entries: BTreeMap::new(),
            prefix: String::new(),
            method: method(&path.join("config.json"))?,
            gemma: matches!(config.family, Family::Gemma2 | Family::Gemma3),
        };
        for file in files(path)? {
            folder.add(file)?;
        }
        let embedding = "embed_tokens.weight";
        let prefix = folder.entries.keys().filter_map(|name| name.strip_suffix(embedding)).next();
        folder.prefix = match prefix {
            Some(prefix) => prefix.to_owned(),
            None => {
                let (expected, found) = ("the embedding", format!("{} other tensors", folder.entries.len()));
                return Err(folder.wrong(&format!("model.{embedding}"), expected, found));
            }
        };
        Ok(folder)
    }

    fn add(&mut self, path: PathBuf) -> Result<()> {
        let file = File::open(&path).map_err(|why| Error::file(&path, why))?;
        // SAFETY: nobody guarantees that another process leaves the file as it is while it is
        // mapped; this is the risk of every program that maps files. If the file is cut off
        // meanwhile, the process ends with SIGBUS. All values of its bytes are valid as bytes, and
        // every dtype here takes all of them.
        let map = unsafe { Mmap::map(&file) }.map_err(|why| Error::file(&path, why))?;
        if is_pointer(&map) {
            return Err(Error::file(&path, POINTER));
        }
        let parsed = SafeTensors::deserialize(&map)
            .map_err(|why| Error::file(&path, format!("damaged or cut off ({} bytes): {why}", map.len())))?;
        let start = map.as_ptr() as usize;
        for (name, view) in parsed.iter() {
            let at = view.data().as_ptr() as usize - start;
            let entry = Entry {
                part: self.parts.len(),
                bytes: at..at + view.data().len(),
                shape: view.shape().to_vec(),
                dtype: view.dtype(),
            };
            self.entries.insert(name.to_owned(), entry);
        }
        self.parts.push(Part { path, map });
        Ok(())
    }

    fn wrong(&self, name: &str, expected: impl Into<String>, found: impl Into<String>) -> Error {
        let path = match self.entries.get(name) {
            Some(entry) => &self.parts[entry.part].path,
            None => &self.path,
        };
        Error::Tensor {
            path: path.clone(),
            name: name.to_owned(),
            expected: expected.into(),
            found: found.into(),
        }
    }

    /// The name of a weight in the files.
    fn name(&self, weight: &Weight) -> String {
        match weight.role {
            Role::Output => format!("{}lm_head.weight", beside_model(&self.prefix)),
            _ => format!("{}{}", self.prefix, weight.name(self.gemma)),
        }
    }

    /// A tensor as the importers of quantised weights take it.
    fn raw(&self, name: &str) -> Option<RawTensor<'_>> {
        let (name, entry) = self.entries.get_key_value(name)?;
        let dtype = dtype(entry.dtype).or(match entry.dtype {
            Dtype::I32 => Some(DType::I32),
            Dtype::I8 => Some(DType::I8),
            Dtype::U8 => Some(DType::U8),
            _ => None,
        })?;
        Some(RawTensor { name, bytes: self.bytes(entry), shape: &entry.shape, dtype })
    }

    fn bytes(&self, entry: &Entry) -> &[u8] {
        &self.parts[entry.part].map[entry.bytes.clone()]
    }

    /// A matrix of fp8, after a check of its shape and its scales.
    fn fp8(&self, weight: &Weight) -> Result<Option<Matrix<'_>>> {
        let (Some(Method::Fp8(fp8)), &[outs, inputs]) = (self.method, &weight.shape[..]) else {
            return Ok(None);
        };
        let (name, shape) = (self.name(weight), [outs, inputs]);
        let Some(entry) = self.entries.get(&name) else { return Ok(None) };
        let Some(ty) = fp8_type(entry.dtype) else { return Ok(None) };
        if entry.shape != shape {
            return Err(self.wrong(&name, format!("{shape:?}"), format!("{:?}", entry.shape)));
        }
        let stem = name.strip_suffix("weight").unwrap_or(&name);
        let names = Fp8::SCALES.map(|last| format!("{stem}{last}"));
        let found = names.iter().find_map(|name| Some((name, self.entries.get(name)?)));
        let Some((name, scales)) = found else { return Err(self.wrong(&names[1], "a scale", "nothing")) };
        let Some(dtype) = dtype(scales.dtype) else {
            return Err(self.wrong(name, "f32, f16 or bf16", format!("{:?}", scales.dtype)));
        };
        let covered = fp8
            .covered(shape, &scales.shape)
            .map_err(|expected| self.wrong(name, expected, format!("{:?}", scales.shape)))?;
        let (codes, scales) = (self.bytes(entry), (self.bytes(scales), dtype));
        Ok(Some(Matrix { ty, shape, codes, covered, scales }))
    }

    /// The scheme of a quantised matrix, its shape, and what the names of its tensors begin with.
    fn quantised(&self, weight: &Weight) -> Option<(Scheme, [usize; 2], String)> {
        let (Some(Method::Integers(scheme)), &[outs, inputs]) = (self.method, &weight.shape[..]) else {
            return None;
        };
        let name = self.name(weight);
        let stem = name.strip_suffix("weight")?;
        let is_codes = |last: &&str| {
            let entry = self.entries.get(&format!("{stem}{last}"));
            entry.is_some_and(|entry| matches!(entry.dtype, Dtype::I32 | Dtype::I8))
        };
        scheme.codes().iter().any(is_codes).then(|| (scheme, [outs, inputs], stem.to_owned()))
    }

    fn quantised_parts(&self, weight: &Weight) -> Result<Option<WeightParts>> {
        let Some((scheme, shape, stem)) = self.quantised(weight) else { return Ok(None) };
        match scheme.parts(shape, |last| self.raw(&format!("{stem}{last}"))) {
            Ok(parts) => Ok(Some(parts)),
            Err(RocmError::Invalid { expected, found, .. }) => {
                Err(self.wrong(&format!("{stem}{}", scheme.codes()[0]), expected, found))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The entry of a weight, with its dtype, after a check of its name, shape and dtype.
    fn find(&self, weight: &Weight) -> Result<(&Entry, DType)> {
        let name = self.name(weight);
        let shape = format!("{:?}", weight.shape);
        let Some(entry) = self.entries.get(&name) else {
            return Err(self.wrong(&name, format!("a tensor {shape}"), "nothing"));
        };
        if entry.shape != weight.shape {
            return Err(self.wrong(&name, shape, format!("{:?}", entry.shape)));
        }
        match dtype(entry.dtype) {
            Some(dtype) => Ok((entry, dtype)),
            None => Err(self.wrong(&name, "f32, f16 or bf16", format!("{:?}", entry.dtype))),
        }
    }
}

/// What precedes the part `model` of a prefix. The output matrix `lm_head` has this in front of its
/// name: nothing for the prefixes `model.` and `model.language_model.`, and `language_model.` for
/// `language_model.model.`.
fn beside_model(prefix: &str) -> &str {
    match prefix.starts_with("model.") {
        true => "",
        false => prefix.find(".model.").map_or(prefix, |dot| &prefix[..=dot]),
    }
}

/// The paths of the weights' files.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let index = folder.join("model.safetensors.index.json");
    if !index.exists() {
        let one = folder.join("model.safetensors");
        if !one.exists() {
            let reason = "expected model.safetensors or model.safetensors.index.json, found neither";
            return Err(Error::file(folder, reason));
        }
        return Ok(vec![one]);
    }
    let json = read_json(&index)?;
    let Some(map) = json.get("weight_map").and_then(|map| map.as_object()) else {
        return Err(Error::file(&index, "expected an object `weight_map`, found none"));
    };
    let mut names = BTreeSet::new();
    for (tensor, file) in map {
        let is_name = |name: &&str| {
            let mut parts = Path::new(name).components();
            matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) && !name.contains('\\')
        };
        match file.as_str().filter(is_name) {
            Some(file) => names.insert(file),
            None => {
                let reason = format!("`{tensor}`: expected the name of a file in this folder, found {file}");
                return Err(Error::file(&index, reason));
            }
        };
    }
    let paths: Vec<_> = names.into_iter().map(|name| folder.join(name)).collect();
    let missing: Vec<_> = paths.iter().filter(|path| !path.exists()).collect();
    match missing.first() {
        Some(first) => {
            let reason = format!("missing; {} of the {} files of the index are", missing.len(), paths.len());
            Err(Error::file(*first, reason))
        }
        None => Ok(paths),
    }
}

fn dtype(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::F32 => Some(DType::F32),
        Dtype::F16 => Some(DType::F16),
        Dtype::BF16 => Some(DType::BF16),
        _ => None,
    }
}

/// The method of quantisation in a folder's settings.
fn method(path: &Path) -> Result<Option<Method>> {
    if !path.exists() {
        return Ok(None);
    }
    quantised::method(path, &read_json(path)?)
}

impl Source for Folder {
    fn read(&self, weight: &Weight) -> Result<Elements<'_>> {
        if let Some(parts) = self.quantised_parts(weight)? {
            return Ok(Elements::Quantised(Box::new(parts)));
        }
        if let Some(matrix) = self.fp8(weight)? {
            return Ok(Elements::F32(matrix.floats()));
        }
        let (entry, dtype) = self.find(weight)?;
        Ok(Elements::Bytes(self.bytes(entry), dtype))
    }

    fn check(&self, weights: &[Weight]) -> Result<()> {
        weights.iter().try_for_each(|weight| match (self.quantised(weight), self.fp8(weight)?) {
            (None, None) => self.find(weight).map(|_| ()),
            // The tensors of integers are checked when they are read.
            _ => Ok(()),
        })?;
        // A layer's tensor that this program does not read belongs to an architecture that computes
        // something else. Old files have the frequencies of the rotary embedding, which follow from the
        // settings.
        let mut names: BTreeSet<String> = weights.iter().map(|weight| self.name(weight)).collect();
        for weight in weights {
            if let Some((scheme, _, stem)) = self.quantised(weight) {
                names.extend(scheme.tensors().iter().map(|last| format!("{stem}{last}")));
                // Programs for GPTQ write biases of zeros for layers that have none.
                let bias = format!("{stem}bias");
                if self.raw(&bias).is_some_and(|bias| bias.bytes.iter().all(|&byte| byte == 0)) {
                    names.insert(bias);
                }
            }
            if self.fp8(weight)?.is_some() {
                let name = self.name(weight);
                let stem = name.strip_suffix("weight").unwrap_or(&name);
                let beside = Fp8::SCALES.into_iter().chain(Fp8::UNREAD);
                names.extend(beside.map(|last| format!("{stem}{last}")));
            }
        }
        let layers = format!("{}layers.", self.prefix);
        let is_read = |name: &str| {
            !name.starts_with(&layers) || names.contains(name) || name.ends_with(".rotary_emb.inv_freq")
        };
        match self.entries.keys().find(|name| !is_read(name)) {
            Some(other) => {
                let found = "one that the settings do not mention";
                Err(self.wrong(other, "a tensor of the model", found))
            }
            None => Ok(()),
        }
    }

    fn quantised_bytes(&self, weight: &Weight) -> Result<Option<usize>> {
        Ok(self.quantised(weight).map(|(scheme, shape, _)| scheme.device_bytes(shape)))
    }

    fn dtype(&self) -> DType {
        let floats = self.entries.values().filter(|entry| dtype(entry.dtype).is_some());
        let largest = floats.max_by_key(|entry| entry.bytes.len());
        largest.and_then(|entry| dtype(entry.dtype)).unwrap_or(DType::F32)
    }
}
