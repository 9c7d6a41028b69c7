//! GGUF files: the models of llama.cpp.

mod header;
mod quants;
mod rope;
mod settings;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread;

use burn::tensor::DType;
use memmap2::Mmap;

use crate::config::{Config, Family, Generation};
use crate::error::{Error, Result};
use crate::text::{Chat, Tokens};
use crate::weights::{Elements, Role, Source, Weight};
use header::{Entry, Header};
use quants::{Quant, SUPPORTED};

/// A GGUF file, mapped into memory. Quantised matrices stay so.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    map: Mmap,
    header: Header,
    config: Config,
    generation: Generation,
}

impl Gguf {
    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::File`] if the file is missing, cut off, damaged or no GGUF file; the errors of
    /// [`Config::of`].
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|why| Error::file(path, why))?;
        // SAFETY: nobody guarantees that another process leaves the file as it is while it is
        // mapped; this is the risk of every program that maps files. If the file is cut off
        // meanwhile, the process ends with SIGBUS. All values of its bytes are valid as bytes.
        let map = unsafe { Mmap::map(&file) }.map_err(|why| Error::file(path, why))?;
        let header = Header::parse(&map).map_err(|why| Error::file(path, why))?;
        let factors = match header.tensors.get("rope_freqs.weight") {
            Some(entry) => Some(read(path, &map, "rope_freqs.weight", entry)?),
            None => None,
        };
        let (config, generation) = settings::read(path, &header, factors.as_deref())?;
        Ok(Self { path: path.to_owned(), map, header, config, generation })
    }

    /// The settings of the model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The stop tokens.
    pub fn generation(&self) -> &Generation {
        &self.generation
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// [`Error::File`] if the file has none, or one of another kind than byte-level BPE and
    /// SentencePiece's BPE.
    pub fn tokens(&self) -> Result<Tokens> {
        let json = tokens::to_json(&self.header).map_err(|why| Error::file(&self.path, why))?;
        Tokens::of_json(&self.path, &json.to_string())
    }

    /// The chat template, if the file has one.
    ///
    /// # Errors
    /// [`Error::Template`] if it does not compile.
    pub fn chat(&self) -> Result<Option<Chat>> {
        match self.header.metadata.get("tokenizer.chat_template") {
            Some(header::Value::Text(text)) => {
                Chat::new(text.clone(), tokens::special(&self.header)).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The names and shapes of the tensors.
    pub fn tensors(&self) -> BTreeMap<&str, Vec<usize>> {
        let shape = |entry: &Entry| entry.dims.iter().rev().copied().collect();
        self.header.tensors.iter().map(|(name, entry)| (name.as_str(), shape(entry))).collect()
    }

    /// The elements of a tensor by its name in the file, in f32 and in the order of the file.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the file has no such tensor, or one of another type; [`Error::File`] if
    /// it is cut off.
    pub fn values(&self, name: &str) -> Result<Vec<f32>> {
        match self.header.tensors.get(name) {
            Some(entry) => read(&self.path, &self.map, name, entry),
            None => Err(wrong(&self.path, name, "a tensor", "nothing")),
        }
    }

    /// The name and entry of a weight, after a check of its shape and its bytes.
    fn find(&self, weight: &Weight) -> Result<(String, &Entry)> {
        let name = name(weight);
        let Some(entry) = self.header.tensors.get(&name) else {
            return Err(wrong(&self.path, &name, format!("a tensor {:?}", weight.shape), "nothing"));
        };
        let shape: Vec<_> = entry.dims.iter().rev().copied().collect();
        if shape != weight.shape {
            return Err(wrong(&self.path, &name, format!("{:?}", weight.shape), format!("{shape:?}")));
        }
        bytes(&self.path, &self.map, &name, entry)?;
        Ok((name, entry))
    }

    /// The heads of a weight whose rows the file has in the order of interleaved pairs: llama.cpp's
    /// rotary embedding of Llama rotates neighbours.
    fn interleaved(&self, weight: &Weight) -> Option<usize> {
        match weight.role {
            _ if self.config.family != Family::Llama => None,
            Role::Query | Role::QueryBias => Some(self.config.heads),
            Role::Key | Role::KeyBias => Some(self.config.kv_heads),
            _ => None,
        }
    }
}

impl Source for Gguf {
    fn read(&self, weight: &Weight) -> Result<Elements<'_>> {
        let (name, entry) = self.find(weight)?;
        let (quant, bytes) = bytes(&self.path, &self.map, &name, entry)?;
        if let (Some(blocks), &[rows, columns]) = (quant.blocks(), &weight.shape[..]) {
            let parts = match self.interleaved(weight) {
                Some(heads) => blocks.parts(&in_halves(bytes, rows, heads), [rows, columns]),
                None => blocks.parts(bytes, [rows, columns]),
            };
            return Ok(Elements::Quantised(Box::new(parts?)));
        }
        self.read_floats(weight)
    }

    fn read_floats(&self, weight: &Weight) -> Result<Elements<'_>> {
        let (name, entry) = self.find(weight)?;
        let (quant, bytes) = bytes(&self.path, &self.map, &name, entry)?;
        match (self.interleaved(weight), quant.dtype()) {
            (None, Some(dtype)) => Ok(Elements::Bytes(bytes, dtype)),
            (None, None) => Ok(Elements::F32(values(quant, bytes, weight.len()))),
            (Some(heads), _) => {
                let values = values(quant, bytes, weight.len());
                Ok(Elements::F32(in_halves(&values, weight.shape[0], heads)))
            }
        }
    }

    fn check(&self, weights: &[Weight]) -> Result<()> {
        weights.iter().try_for_each(|weight| self.find(weight).map(|_| ()))?;
        // A tensor that this program does not read belongs to an architecture that computes something
        // else.
        let names: BTreeSet<String> = weights.iter().map(name).collect();
        let is_read = |name: &str| names.contains(name) || name == "rope_freqs.weight";
        match self.header.tensors.keys().find(|name| !is_read(name)) {
            Some(other) => {
                Err(wrong(&self.path, other, "a tensor of the model", "one that this program does not read"))
            }
            None => Ok(()),
        }
    }

    fn quantised_bytes(&self, weight: &Weight) -> Result<Option<usize>> {
        let (name, entry) = self.find(weight)?;
        let (quant, _) = bytes(&self.path, &self.map, &name, entry)?;
        Ok(match (quant.blocks(), &weight.shape[..]) {
            (Some(blocks), &[rows, columns]) => Some(blocks.device_bytes([rows, columns])),
            _ => None,
        })
    }

    fn dtype(&self) -> DType {
        let count = |entry: &&Entry| entry.dims.iter().product::<usize>();
        let largest = self.header.tensors.values().max_by_key(count);
        let dtype = |entry: &Entry| Quant::of(entry.kind).ok().and_then(Quant::dtype);
        // Of a quantised model the embedding may be f16, which says nothing of the others.
        let is_quantised = self.header.tensors.values().any(|entry| dtype(entry).is_none());
        // The scores of Gemma exceed f16.
        let is_gemma = matches!(self.config.family, Family::Gemma2 | Family::Gemma3);
        let own = largest.and_then(dtype).filter(|&own| !(is_quantised || is_gemma && own == DType::F16));
        own.unwrap_or(DType::BF16)
    }
}

fn wrong(path: &Path, name: &str, expected: impl Into<String>, found: impl Into<String>) -> Error {
    let (path, name) = (path.to_owned(), name.to_owned());
    Error::Tensor { path, name, expected: expected.into(), found: found.into() }
}

/// The type and bytes of a tensor.
fn bytes<'a>(path: &Path, file: &'a [u8], name: &str, entry: &Entry) -> Result<(Quant, &'a [u8])> {
    let quant = Quant::of(entry.kind).map_err(|found| wrong(path, name, SUPPORTED, found))?;
    let (elements, size) = quant.block();
    if !entry.dims[0].is_multiple_of(elements) {
        let expected = format!("a row of whole blocks of {elements} elements");
        return Err(wrong(path, name, expected, entry.dims[0].to_string()));
    }
    let count: usize = entry.dims.iter().product();
    let len = (count / elements).checked_mul(size);
    let end = len.and_then(|len| entry.start.checked_add(len)).filter(|&end| end <= file.len());
    match end {
        Some(end) => Ok((quant, &file[entry.start..end])),
        None => {
            let (start, shape) = (entry.start, &entry.dims);
            let reason =
                format!("cut off: tensor `{name}` {shape:?} from byte {start} on ends after the file");
            Err(Error::file(path, reason))
        }
    }
}

/// The elements of a tensor in f32.
fn read(path: &Path, file: &[u8], name: &str, entry: &Entry) -> Result<Vec<f32>> {
    let (quant, bytes) = bytes(path, file, name, entry)?;
    Ok(values(quant, bytes, entry.dims.iter().product()))
}

/// The elements in f32, computed by all processors.
fn values(quant: Quant, bytes: &[u8], count: usize) -> Vec<f32> {
    /// Fewer elements are not worth a thread.
    const SHARE: usize = 1 << 16;
    let (elements, size) = quant.block();
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let blocks = (count / elements).div_ceil(threads).max(SHARE / elements);
    let mut out = vec![0.0; count];
    let mut shares = out.chunks_mut(blocks * elements).zip(bytes.chunks(blocks * size));
    thread::scope(|scope| {
        let first = shares.next();
        for (out, bytes) in shares {
            scope.spawn(move || quant.values(bytes, out));
        }
        if let Some((out, bytes)) = first {
            quant.values(bytes, out);
        }
    });
    out
}

/// Brings the rows of each head from interleaved pairs (0, 1), (2, 3).. into halves: first all
/// first rows of the pairs, then all second ones.
fn in_halves<T: Copy>(values: &[T], rows: usize, heads: usize) -> Vec<T> {
    let width = values.len() / rows;
    let dim = rows / heads;
    let mut out = Vec::with_capacity(values.len());
    for row in 0..rows {
        let (head, within) = (row / dim, row % dim);
        let from = head * dim + within % (dim / 2) * 2 + within / (dim / 2);
        out.extend_from_slice(&values[from * width..][..width]);
    }
    out
}

/// A weight's name in a GGUF file.
fn name(weight: &Weight) -> String {
    let name = match weight.role {
        Role::Embedding => "token_embd.weight",
        Role::Output => "output.weight",
        Role::FinalNorm => "output_norm.weight",
        Role::AttentionNorm => "attn_norm.weight",
        Role::AttentionPostNorm => "post_attention_norm.weight",
        Role::FeedForwardNorm => "ffn_norm.weight",
        Role::FeedForwardPostNorm => "post_ffw_norm.weight",
        Role::Query => "attn_q.weight",
        Role::QueryBias => "attn_q.bias",
        Role::Key => "attn_k.weight",
        Role::KeyBias => "attn_k.bias",
        Role::Value => "attn_v.weight",
        Role::ValueBias => "attn_v.bias",
        Role::QueryNorm => "attn_q_norm.weight",
        Role::KeyNorm => "attn_k_norm.weight",
        Role::AttentionOutput => "attn_output.weight",
        Role::AttentionOutputBias => "attn_output.bias",
        Role::Gate => "ffn_gate.weight",
        Role::GateBias => "ffn_gate.bias",
        Role::Up => "ffn_up.weight",
        Role::UpBias => "ffn_up.bias",
        Role::Down => "ffn_down.weight",
        Role::DownBias => "ffn_down.bias",
    };
    match weight.layer {
        Some(layer) => format!("blk.{layer}.{name}"),
        None => name.to_owned(),
    }
}
