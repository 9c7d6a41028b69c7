//! A GGUF file of random weights in Q4_0, with the shapes of Llama 3.2 1B.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use candle_core::Device;
use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use half::f16;

use crate::result::Result;

/// The weights of a block of Q4_0, and its bytes: a scale in f16 and 32 codes of 4 bits.
pub const BLOCK: usize = 32;
pub const BLOCK_BYTES: usize = 18;

/// The shapes of a model.
#[derive(Clone, Copy)]
pub struct Shapes {
    pub layers: usize,
    pub width: usize,
    pub inner: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub vocabulary: usize,
}

/// <https://huggingface.co/meta-llama/Llama-3.2-1B/blob/main/config.json>, without its scaling of the
/// rotary embedding, which candle does not read from a file.
pub const LLAMA_3_2_1B: Shapes =
    Shapes { layers: 16, width: 2048, inner: 8192, heads: 32, kv_heads: 8, vocabulary: 128_256 };

impl Shapes {
    /// The names and shapes `[outputs, inputs]` of a layer's matrices.
    fn of_layer(&self) -> [(&'static str, [usize; 2]); 7] {
        let kv = self.width / self.heads * self.kv_heads;
        [
            ("attn_q", [self.width, self.width]),
            ("attn_k", [kv, self.width]),
            ("attn_v", [kv, self.width]),
            ("attn_output", [self.width, self.width]),
            ("ffn_gate", [self.inner, self.width]),
            ("ffn_up", [self.inner, self.width]),
            ("ffn_down", [self.width, self.inner]),
        ]
    }

    /// The weights of the matrices that a token is multiplied with: those of the layers and the
    /// embedding, which is the output matrix too.
    pub fn weights(&self) -> usize {
        let layer: usize = self.of_layer().iter().map(|(_, [outs, inputs])| outs * inputs).sum();
        self.layers * layer + self.vocabulary * self.width
    }
}

/// Random numbers: xorshift64*.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number from -1 to 1.
    pub fn number(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.bits() >> 32) as usize % limit
    }

    /// The blocks of a matrix. Codes are uniform. Scales differ by a factor of up to 3 and have
    /// either sign, and the deviation of a weight is about 1 / sqrt(inputs).
    pub fn blocks(&mut self, [outs, inputs]: [usize; 2]) -> Vec<u8> {
        /// The deviation of the numbers -8 to 7.
        const OF_CODES: f32 = 4.61;
        let scale = 1.0 / ((inputs as f32).sqrt() * OF_CODES);
        let mut bytes = Vec::with_capacity(outs * inputs / BLOCK * BLOCK_BYTES);
        for _ in 0..outs * inputs / BLOCK {
            let sign = if self.bits() >> 63 == 0 { 1.0 } else { -1.0 };
            let scale = f16::from_f32(sign * scale * (1.0 + 0.5 * self.number()));
            bytes.extend_from_slice(&scale.to_le_bytes());
            bytes.extend_from_slice(&self.bits().to_le_bytes());
            bytes.extend_from_slice(&self.bits().to_le_bytes());
        }
        bytes
    }
}

/// A matrix of candle's.
pub fn matrix(bytes: Vec<u8>, shape: [usize; 2]) -> Result<QTensor> {
    let storage = QStorage::from_data(Cow::Owned(bytes), &Device::Cpu, GgmlDType::Q4_0)?;
    Ok(QTensor::new(storage, (shape[0], shape[1]))?)
}

/// Writes the file.
pub fn write(path: &Path, shapes: Shapes, seed: u64) -> Result<()> {
    let mut random = Random(seed);
    let Shapes { layers, width, inner, heads, kv_heads, vocabulary } = shapes;
    let norm = || -> Result<QTensor> {
        let ones: Vec<u8> = std::iter::repeat_n(1f32.to_le_bytes(), width).flatten().collect();
        let storage = QStorage::from_data(Cow::Owned(ones), &Device::Cpu, GgmlDType::F32)?;
        Ok(QTensor::new(storage, width)?)
    };
    let mut tensors = vec![
        ("token_embd.weight".to_owned(), matrix(random.blocks([vocabulary, width]), [vocabulary, width])?),
        ("output_norm.weight".to_owned(), norm()?),
    ];
    for layer in 0..layers {
        for name in ["attn_norm", "ffn_norm"] {
            tensors.push((format!("blk.{layer}.{name}.weight"), norm()?));
        }
        for (name, shape) in shapes.of_layer() {
            tensors.push((format!("blk.{layer}.{name}.weight"), matrix(random.blocks(shape), shape)?));
        }
    }
    let number = |value: usize| Value::U32(value as u32);
    let metadata = [
        ("general.architecture", Value::String("llama".to_owned())),
        ("llama.block_count", number(layers)),
        ("llama.embedding_length", number(width)),
        ("llama.feed_forward_length", number(inner)),
        ("llama.attention.head_count", number(heads)),
        ("llama.attention.head_count_kv", number(kv_heads)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("llama.rope.dimension_count", number(width / heads)),
        ("llama.rope.freq_base", Value::F32(500_000.0)),
        ("llama.context_length", number(4096)),
        ("llama.vocab_size", number(vocabulary)),
    ];
    let metadata: Vec<_> = metadata.iter().map(|(name, value)| (*name, value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    // An interrupted run leaves no file that a later one would open.
    let part = path.with_extension("part");
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&part)?);
    gguf_file::write(&mut file, &metadata, &tensors)?;
    file.flush()?;
    Ok(std::fs::rename(part, path)?)
}
