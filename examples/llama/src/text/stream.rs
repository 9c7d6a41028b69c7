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
    /// The text of the recent tokens that are not shown yet.
    waiting: String,
    /// The characters that are shown.
    characters: usize,
    /// The characters before the last token.
    begin: usize,
}

impl<'a> Stream<'a> {
    /// A stream at the start of an answer.
    pub fn new(tokens: &'a Tokens) -> Self {
        Self { tokens, recent: Vec::new(), shown: 0, waiting: String::new(), characters: 0, begin: 0 }
    }

    /// A stream behind a text's last token, in the middle of the text: a decoder that leaves out
    /// the space at a text's start keeps it.
    pub fn after(tokens: &'a Tokens, last: u32) -> Self {
        Self { recent: vec![last], shown: 1, ..Self::new(tokens) }
    }

    /// The text that this token completes; empty while a character lacks bytes.
    ///
    /// # Errors
    /// As [`Tokens::decode`].
    pub fn push(&mut self, token: u32) -> Result<String> {
        self.recent.push(token);
        let text = self.tokens.decode(&self.recent)?;
        let piece = self.behind_shown(&text)?;
        // Bytes at the end may start a character that is not complete; then the token begins inside it.
        let whole = piece.trim_end_matches(INCOMPLETE);
        self.begin = self.characters + common(&self.waiting, whole).0;
        if text.ends_with(INCOMPLETE) {
            self.waiting = piece;
            return Ok(String::new());
        }
        self.waiting.clear();
        self.characters += piece.chars().count();
        // Tokens without text, such as special ones, are no context for the next.
        if !piece.is_empty() {
            self.recent.drain(..self.shown);
        }
        self.shown = self.recent.len();
        Ok(piece)
    }

    /// The characters of the text before the last token. For a token within a character, those
    /// before that character.
    pub fn begin(&self) -> usize {
        self.begin
    }

    /// The rest: bytes that no token completed to a character, each sequence as U+FFFD.
    ///
    /// # Errors
    /// As [`Tokens::decode`].
    pub fn finish(self) -> Result<String> {
        let text = self.tokens.decode(&self.recent)?;
        self.behind_shown(&text)
    }

    /// What the text of the recent tokens has behind the text that is shown.
    fn behind_shown(&self, text: &str) -> Result<String> {
        let before = self.tokens.decode(&self.recent[..self.shown])?;
        // A decoder may change the end of the text before, such as a space before a comma. What is
        // shown stays.
        let (_, at) = common(&before, text);
        Ok(text[at..].to_owned())
    }
}

/// The characters and the bytes with which two texts begin alike.
fn common(a: &str, b: &str) -> (usize, usize) {
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    same.fold((0, 0), |(count, bytes), (letter, _)| (count + 1, bytes + letter.len_utf8()))
}
