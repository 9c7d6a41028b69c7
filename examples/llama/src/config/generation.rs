//! How to generate: stop tokens and the sampling that the model's authors recommend.

use std::path::Path;

use super::fields::Fields;
use crate::error::{Error, Result};

/// The contents of `generation_config.json`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generation {
    /// Tokens that end an answer. A model may have several, such as the ends of a turn and of a
    /// document.
    pub stop: Vec<u32>,
    /// Whether the authors recommend to draw tokens. If not, the recommendations below don't count.
    pub sample: bool,
    /// The recommended temperature.
    pub temperature: Option<f64>,
    /// The recommended number of most likely tokens to draw from.
    pub top_k: Option<usize>,
    /// The recommended part of the probability to draw from.
    pub top_p: Option<f64>,
    /// The recommended least probability, as a part of the largest one.
    pub min_p: Option<f64>,
    /// The recommended repetition penalty.
    pub repetition_penalty: Option<f64>,
}

impl Generation {
    /// Reads `generation_config.json` of a folder. Without it, or without stop tokens in it, those of
    /// `config.json` count.
    ///
    /// # Errors
    /// [`Error::File`] and [`Error::Field`].
    pub fn read(folder: &Path) -> Result<Self> {
        let config = Fields::read(&folder.join("config.json"))?;
        let text = config.object("text_config")?;
        let path = folder.join("generation_config.json");
        let mut generation = if path.exists() { Self::of(&Fields::read(&path)?)? } else { Self::default() };
        if generation.stop.is_empty() {
            generation.stop = config.tokens("eos_token_id")?;
        }
        if let (true, Some(text)) = (generation.stop.is_empty(), text) {
            generation.stop = text.tokens("eos_token_id")?;
        }
        Ok(generation)
    }

    fn of(fields: &Fields) -> Result<Self> {
        Ok(Self {
            stop: fields.tokens("eos_token_id")?,
            sample: fields.flag("do_sample", false)?,
            temperature: fields.number("temperature")?,
            top_k: fields.count("top_k")?,
            top_p: fields.number("top_p")?,
            min_p: fields.number("min_p")?,
            repetition_penalty: fields.positive("repetition_penalty")?,
        })
    }

    /// Checks the stop tokens against the model's vocabulary.
    ///
    /// # Errors
    /// [`Error::Token`].
    pub fn check(&self, vocabulary: usize) -> Result<()> {
        match self.stop.iter().find(|&&token| token as usize >= vocabulary) {
            Some(&token) => Err(Error::Token { token, vocabulary }),
            None => Ok(()),
        }
    }
}
