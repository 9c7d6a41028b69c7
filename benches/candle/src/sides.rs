//! The two programs that compute the same model, each with greedy tokens.

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use burn::tensor::DType;
use burn_rocm::RocmDevice;
use burn_rocm::fused::decode::{self, SampleTables};
use burn_rocm_llama::gguf::Gguf;
use burn_rocm_llama::model::{Cache, Logits, Model, Step};
use burn_rocm_llama::sample::Sampling;
use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;

use crate::result::Result;

/// This backend's model: its step is a graph, and a token is read a step late.
pub struct Ours<'a> {
    model: &'a Model,
    caches: Vec<Cache>,
    step: Step<'a>,
    before: usize,
}

/// This backend's model from the file. Activations, keys and values are f32, as candle's are between
/// its products.
pub fn ours(path: &Path) -> Result<Model> {
    let file = Gguf::open(path)?;
    Ok(Model::load(file.config().clone(), &file, &RocmDevice::default(), DType::F32, |_| ())?)
}

impl<'a> Ours<'a> {
    pub fn new(model: &'a Model, context: usize) -> Result<Self> {
        let caches = vec![Cache::new(model, context)?];
        let step = Step::new(model, &caches, SampleTables::default())?;
        step.state().set(0, &Sampling::default().on_device(0), &[])?;
        Ok(Self { model, caches, step, before: 0 })
    }

    /// Runs the prompt: the milliseconds until the first token is chosen.
    pub fn prompt(&mut self, prompt: &[u32]) -> Result<f64> {
        let start = Instant::now();
        self.caches[0].truncate(0);
        let logits = self.model.prefill(prompt, &mut self.caches[0], prompt.len())?;
        decode::sample(logits.into_primitive().tensor(), self.step.state())?;
        self.step.state().begin_read()?.wait()?;
        self.before = prompt.len();
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }

    /// Generates tokens after the prompt: the milliseconds of each.
    pub fn generate(&mut self, count: usize) -> Result<f64> {
        self.caches[0].truncate(self.before);
        let mut read = self.step.state().begin_read()?;
        let start = Instant::now();
        for _ in 0..count {
            self.step.run(&mut self.caches)?;
            let next = self.step.state().begin_read()?;
            std::mem::replace(&mut read, next).wait()?;
        }
        read.wait()?;
        Ok(start.elapsed().as_secs_f64() * 1e3 / count as f64)
    }

    /// The logits after each of these tokens, which follow the prompt.
    pub fn logits(&mut self, prompt: &[u32], tokens: &[u32]) -> Result<Vec<Vec<f32>>> {
        let cache = &mut self.caches[0];
        cache.truncate(0);
        let mut all = vec![self.model.prefill(prompt, cache, prompt.len())?];
        for &token in tokens {
            all.push(self.model.forward(&[token], cache, Logits::Last)?);
        }
        Ok(all.into_iter().map(|logits| logits.into_data().iter::<f32>().collect()).collect())
    }
}

/// candle's model.
pub struct Candle {
    /// Without keys and values.
    model: ModelWeights,
    /// After the prompt, with the first token.
    prompted: Option<(ModelWeights, u32)>,
    before: usize,
}

impl Candle {
    pub fn new(path: &Path) -> Result<Self> {
        let mut file = File::open(path)?;
        let content = Content::read(&mut file)?;
        let model = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
        Ok(Self { model, prompted: None, before: 0 })
    }

    pub fn prompt(&mut self, prompt: &[u32]) -> Result<f64> {
        let start = Instant::now();
        // A copy shares the weights.
        let mut model = self.model.clone();
        let token = most_likely(&pass(&mut model, prompt, 0)?)?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        self.prompted = Some((model, token));
        self.before = prompt.len();
        Ok(ms)
    }

    pub fn generate(&mut self, count: usize) -> Result<f64> {
        let Some((model, token)) = &self.prompted else { return Err("no prompt".into()) };
        let (mut model, mut token) = (model.clone(), *token);
        let start = Instant::now();
        for at in 0..count {
            token = most_likely(&pass(&mut model, &[token], self.before + at)?)?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e3 / count as f64)
    }

    pub fn logits(&mut self, prompt: &[u32], tokens: &[u32]) -> Result<Vec<Vec<f32>>> {
        let mut model = self.model.clone();
        let mut all = vec![pass(&mut model, prompt, 0)?.to_vec1()?];
        for (at, &token) in tokens.iter().enumerate() {
            all.push(pass(&mut model, &[token], prompt.len() + at)?.to_vec1()?);
        }
        Ok(all)
    }
}

fn pass(model: &mut ModelWeights, tokens: &[u32], at: usize) -> Result<Tensor> {
    Ok(model.forward(&Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?, at)?.squeeze(0)?)
}

fn most_likely(logits: &Tensor) -> Result<u32> {
    Ok(logits.argmax(0)?.to_scalar()?)
}
