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
    /// A plain token, and its text.
    plain: Option<(u32, String)>,
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
        let mut tokens = Self { path: path.to_owned(), tokenizer, plain: None };
        // A tokenizer that doesn't know the letter has no such token.
        let plain = tokens.encode("a", false).unwrap_or_default().last().copied();
        let text = |id: u32| Some((id, tokens.decode(&[id]).ok().filter(|text| text.ends_with('a'))?));
        tokens.plain = plain.and_then(text);
        Ok(tokens)
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

    /// The text of one token in the middle of a text: a decoder that leaves out the space at a
    /// text's start keeps it. Empty for special tokens.
    ///
    /// # Errors
    /// [`Error::File`] if the tokenizer fails.
    pub fn decode_one(&self, id: u32) -> Result<String> {
        if let Some((plain, before)) = &self.plain
            && let Some(text) = self.decode(&[*plain, id])?.strip_prefix(before.as_str())
        {
            return Ok(text.to_owned());
        }
        self.decode(&[id])
    }

    /// A token as the tokenizer's file names it, special ones too.
    pub fn name(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// The id of a token by its text.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }
}
