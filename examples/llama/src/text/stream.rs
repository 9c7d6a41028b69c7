//! Text as it is generated, in whole characters.

use super::Tokens;
use crate::error::Result;

/// What a decoder writes for bytes that are no character yet.
const INCOMPLETE: char = char::REPLACEMENT_CHARACTER;

/// Turns tokens into text, one by one. A token may end within a character; then its text waits for
/// the tokens that complete it.
#[derive(Debug)]
pub struct Stream<'a> {
    tokens: &'a Tokens,
    /// The last tokens: those of the last piece of text, without which a decoder might drop a
    /// space, and those that wait.
    recent: Vec<u32>,
    /// How many of the recent tokens are shown.
    shown: usize,
}

impl<'a> Stream<'a> {
    /// A stream at the start of an answer.
    pub fn new(tokens: &'a Tokens) -> Self {
        Self { tokens, recent: Vec::new(), shown: 0 }
    }

    /// A stream behind a text's last token, in the middle of the text: a decoder that leaves out
    /// the space at a text's start keeps it.
    pub fn after(tokens: &'a Tokens, last: u32) -> Self {
        Self { tokens, recent: vec![last], shown: 1 }
    }

    /// The text that this token completes; empty while a character lacks bytes.
    ///
    /// # Errors
    /// As [`Tokens::decode`].
    pub fn push(&mut self, token: u32) -> Result<String> {
        self.recent.push(token);
        let text = self.tokens.decode(&self.recent)?;
        if text.ends_with(INCOMPLETE) {
            return Ok(String::new());
        }
        self.show(&text)
    }

    /// The rest: bytes that no token completed to a character, each sequence as U+FFFD.
    ///
    /// # Errors
    /// As [`Tokens::decode`].
    pub fn finish(mut self) -> Result<String> {
        let text = self.tokens.decode(&self.recent)?;
        self.show(&text)
    }

    fn show(&mut self, text: &str) -> Result<String> {
        let before = self.tokens.decode(&self.recent[..self.shown])?;
        // A decoder may change the end of the text before, such as a space before a comma. What is
        // shown stays.
        let same = before.chars().zip(text.chars()).take_while(|(a, b)| a == b);
        let at: usize = same.map(|(shown, _)| shown.len_utf8()).sum();
        let piece = text[at..].to_owned();
        // Tokens without text, such as special ones, are no context for the next.
        if !piece.is_empty() {
            self.recent.drain(..self.shown);
        }
        self.shown = self.recent.len();
        Ok(piece)
    }
}
