//! `tokenizer.json`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use tokenizers::Tokenizer;

use crate::error::{Error, Result};

/// The tokens of a model: `tokenizer.json`, in the format of the crate `tokenizers`.
#[derive(Debug)]
pub struct Tokens {
    path: PathBuf,
    tokenizer: Tokenizer,
}

impl Tokens {
    /// Reads a file in the format of `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::File`] if the file is missing or damaged.
    pub fn read(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Err(Error::file(path, "missing: the tokens of the model"));
        }
        let text = std::fs::read_to_string(path).map_err(|why| Error::file(path, why))?;
        Self::of_json(path, &text)
    }

    /// A tokenizer in the format of `tokenizer.json`; `path` is for errors.
    ///
    /// # Errors
    /// [`Error::File`] if the text is damaged.
    pub fn of_json(path: &Path, text: &str) -> Result<Self> {
        let mut tokenizer = Tokenizer::from_str(text).map_err(|why| Error::file(path, why))?;
        // Files saved after training may cut or fill up each text.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|why| Error::file(path, why))?;
        Ok(Self { path: path.to_owned(), tokenizer })
    }

    /// The token ids of a text. `special`: whether the tokenizer adds its own tokens, such as that
    /// at the start of a text. The text of a chat template has them already.
    ///
    /// # Errors
    /// [`Error::File`] if the tokenizer fails.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode(text, special).map_err(|why| Error::file(&self.path, why))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of token ids, without special tokens.
    ///
    /// # Errors
    /// [`Error::File`] if the tokenizer fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer.decode(ids, true).map_err(|why| Error::file(&self.path, why))
    }

    /// The id of a token by its text.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }
}
