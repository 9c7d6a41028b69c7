//! Text as it is generated, in whole characters.

use super::Tokens;
use crate::error::Result;

/// What a decoder writes for bytes that are no character yet.
const INCOMPLETE: char = char::REPLACEMENT_CHARACTER;
/// The most bytes of a character, each of which may be a token.
const BYTES: usize = 4;

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
    /// The text of the shown tokens.
    before: String,
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
        let (before, waiting) = (String::new(), String::new());
        Self { tokens, recent: Vec::new(), shown: 0, before, waiting, characters: 0, begin: 0 }
    }

    /// The tokens at a prompt's end that [`after`](Self::after) looks at: those of a whole
    /// character, and of one that lacks a byte.
    pub const CONTEXT: usize = 2 * BYTES - 1;

    /// A stream behind a prompt, in the middle of the text: a decoder that leaves out the space at
    /// a text's start keeps it. Without a prompt, a stream at the start of an answer.
    pub fn after(tokens: &'a Tokens, prompt: &[u32]) -> Self {
        let last = last_character(tokens, prompt);
        // If these can't be decoded, then the first `push` returns the error.
        let before = tokens.decode(last).unwrap_or_default();
        Self { recent: last.to_vec(), shown: last.len(), before, ..Self::new(tokens) }
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
        self.before = text;
        // Tokens without text, such as special ones, are no context for the next.
        if !piece.is_empty() {
            let last = self.tokens.decode(&self.recent[self.shown..])?;
            // Nor is the rest of a character that began in the prompt.
            if piece.starts_with(INCOMPLETE) || !last.starts_with(INCOMPLETE) {
                self.recent.drain(..self.shown);
                self.before = last;
            }
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
        // Some decoders make U+FFFD of all bytes in a row, shown ones too, if the last are no
        // character.
        if text.starts_with(INCOMPLETE) && !self.before.contains(INCOMPLETE) {
            return self.tokens.decode(&self.recent[self.shown..]);
        }
        // A decoder may change the end of the text before, such as a space before a comma. What is
        // shown stays.
        let (_, at) = common(&self.before, text);
        Ok(text[at..].to_owned())
    }
}

/// The tokens of the prompt's last character, or of its last bytes if these are no character yet.
/// Behind a part of a character, some decoders make U+FFFD of all bytes.
fn last_character<'p>(tokens: &Tokens, prompt: &'p [u32]) -> &'p [u32] {
    let is_whole = |end: &[u32]| {
        let text = tokens.decode(end);
        text.is_ok_and(|text| !text.starts_with(INCOMPLETE) && !text.ends_with(INCOMPLETE))
    };
    let whole = |text: &'p [u32]| {
        let mut ends = (1..=BYTES.min(text.len())).map(|count| &text[text.len() - count..]);
        ends.find(|end| is_whole(end))
    };
    if let Some(character) = whole(prompt) {
        return character;
    }
    // Bytes that are no character begin behind a character. If tokens end one character and begin
    // the next, there may be no such start. Then the last three tokens have all of these bytes.
    let mut starts = (0..prompt.len()).rev().take(BYTES - 1);
    let start = starts.find(|&start| start == 0 || whole(&prompt[..start]).is_some());
    &prompt[start.unwrap_or(prompt.len().saturating_sub(BYTES - 1))..]
}

/// The characters and the bytes with which two texts begin alike.
fn common(a: &str, b: &str) -> (usize, usize) {
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    same.fold((0, 0), |(count, bytes), (letter, _)| (count + 1, bytes + letter.len_utf8()))
}
