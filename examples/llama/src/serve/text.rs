//! Tokens to text and back, for a model with a tokenizer or without.

use crate::error::Result;
use crate::text::{Stream, Tokens};

/// The tokens of a model. Without a tokenizer (random weights), a byte of a prompt is a token, and
/// an answer is the tokens' numbers.
#[derive(Debug)]
pub struct Vocabulary(pub Option<Tokens>);

impl Vocabulary {
    /// The tokens of a text; `special` as for [`Tokens::encode`].
    ///
    /// # Errors
    /// As [`Tokens::encode`].
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        match &self.0 {
            Some(tokens) => tokens.encode(text, special),
            None => Ok(text.bytes().map(u32::from).collect()),
        }
    }

    /// The text of one token in the middle of an answer; empty for special tokens.
    ///
    /// # Errors
    /// As [`Tokens::decode`].
    pub fn decode(&self, token: u32) -> Result<String> {
        match &self.0 {
            Some(tokens) => tokens.decode_one(token),
            None => Ok(format!("{token} ")),
        }
    }

    /// A token with this text, as a list of tokens shows it: special tokens have their names.
    pub fn shown(&self, token: u32, text: String) -> String {
        match &self.0 {
            Some(tokens) if text.is_empty() => tokens.name(token).unwrap_or_default(),
            _ => text,
        }
    }
}

/// An answer as it is generated: whole characters, up to a stop string.
#[derive(Debug)]
pub struct Answer<'a> {
    stream: Option<Stream<'a>>,
    stops: &'a [String],
    /// Text that may be the start of a stop string.
    held: String,
    /// The characters so far. Used only without a tokenizer; else the stream counts them.
    characters: usize,
    /// The characters before the last token, likewise.
    begin: usize,
}

/// A part of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The text.
    pub text: String,
    /// Whether a stop string follows, which ends the answer.
    pub stopped: bool,
}

impl<'a> Answer<'a> {
    /// An answer that ends before the first of these strings, none of which is empty. `prompt`: the
    /// prompt's last tokens ([`Stream::CONTEXT`]) if the answer goes on with its text, else none.
    pub fn new(vocabulary: &'a Vocabulary, stops: &'a [String], prompt: &[u32]) -> Self {
        let stream = vocabulary.0.as_ref().map(|tokens| Stream::after(tokens, prompt));
        Self { stream, stops, held: String::new(), characters: 0, begin: 0 }
    }

    /// The text that a token completes.
    ///
    /// # Errors
    /// As [`Tokens::decode`].
    pub fn push(&mut self, token: u32) -> Result<Part> {
        let text = match &mut self.stream {
            Some(stream) => stream.push(token)?,
            None => {
                let text = format!("{token} ");
                self.begin = self.characters;
                self.characters += text.chars().count();
                text
            }
        };
        Ok(self.add(&text))
    }

    /// The characters of the answer before the last token; see [`Stream::begin`].
    pub fn begin(&self) -> usize {
        self.stream.as_ref().map_or(self.begin, Stream::begin)
    }

    /// The rest.
    ///
    /// # Errors
    /// As [`Tokens::decode`].
    pub fn finish(mut self) -> Result<Part> {
        let text = self.stream.take().map_or(Ok(String::new()), Stream::finish)?;
        let mut part = self.add(&text);
        if !part.stopped {
            part.text += &self.held;
        }
        Ok(part)
    }

    fn add(&mut self, text: &str) -> Part {
        self.held += text;
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.held.truncate(at);
            return Part { text: std::mem::take(&mut self.held), stopped: true };
        }
        // The longest end of the text with which a stop string begins.
        let is_begin = |at: usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[at..]));
        let at = self.held.char_indices().map(|(at, _)| at).find(|&at| is_begin(at));
        let held = self.held.split_off(at.unwrap_or(self.held.len()));
        Part { text: std::mem::replace(&mut self.held, held), stopped: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_may_begin_a_stop_string_waits() {
        let vocabulary = Vocabulary(None);
        let stops = ["END".to_owned(), "\n\nQ:".to_owned()];
        let mut answer = Answer::new(&vocabulary, &stops, &[]);
        let mut add = |text: &str| {
            let Part { text, stopped } = answer.add(text);
            (text, stopped)
        };
        assert_eq!(add("the E"), ("the ".to_owned(), false));
        assert_eq!(add("N"), (String::new(), false));
        assert_eq!(add("E"), ("EN".to_owned(), false));
        assert_eq!(add("\n\n"), ("E".to_owned(), false));
        assert_eq!(add("\nQ"), ("\n".to_owned(), false));
        assert_eq!(add(": END"), (String::new(), true));
        // The earlier of two in one piece.
        let mut answer = Answer::new(&vocabulary, &stops, &[]);
        assert_eq!(answer.add("aéENDb\n\nQ:"), Part { text: "aé".to_owned(), stopped: true });
        // What waited and was no stop string comes last.
        let mut answer = Answer::new(&vocabulary, &stops, &[]);
        assert_eq!(answer.add("aEN").text, "a");
        assert_eq!(answer.finish().expect("a text"), Part { text: "EN".to_owned(), stopped: false });
    }

    #[test]
    fn tokens_without_a_tokenizer_are_numbers() {
        let vocabulary = Vocabulary(None);
        assert_eq!(vocabulary.encode("aé", true).expect("tokens"), [97, 195, 169]);
        let stops = ["2 3".to_owned()];
        let mut answer = Answer::new(&vocabulary, &stops, &[]);
        let mut text = String::new();
        for token in [1, 2, 3, 4] {
            let part = answer.push(token).expect("a text");
            text += &part.text;
            if part.stopped {
                break;
            }
        }
        assert_eq!(text, "1 ");
    }

    /// A tokenizer as SentencePiece's models have it: spaces are U+2581, and the decoder leaves out
    /// the space at a text's start.
    fn pieces() -> Vocabulary {
        let vocabulary = serde_json::json!({
            "<unk>": 0, "<s>": 1, "\u{2581}": 2, "a": 3, "\u{2581}a": 4, "b": 5, "<0xC3>": 6, "<0xA9>": 7,
            "<0xF0>": 8, "<0x9F>": 9, "<0x98>": 10, "<0x80>": 11,
        });
        let file = serde_json::json!({
            "version": "1.0",
            "added_tokens": [{"id": 1, "content": "<s>", "single_word": false, "lstrip": false,
                              "rstrip": false, "normalized": false, "special": true}],
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
            "pre_tokenizer": null, "post_processor": null,
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ]},
            "model": {"type": "BPE", "vocab": vocabulary, "merges": ["\u{2581} a"], "unk_token": "<unk>",
                      "byte_fallback": true, "fuse_unk": true},
        });
        let tokens = Tokens::of_json(std::path::Path::new("pieces"), &file.to_string());
        Vocabulary(Some(tokens.expect("a tokenizer")))
    }

    /// A byte-level tokenizer, whose tokens may end one character and begin the next. Its characters
    /// stand for bytes: "æ\u{139}¥" are those of 日, "Ã¼" those of ü, and "â\u{124}¬" those of €.
    fn bytes() -> Vocabulary {
        let level = serde_json::json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
        });
        let vocabulary = serde_json::json!({
            "a": 0, "æ": 1, "\u{139}": 2, "¥Ã¼â": 3, "\u{124}": 4, "¬": 5,
        });
        let file = serde_json::json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": level,
            "post_processor": null, "decoder": level,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        });
        let tokens = Tokens::of_json(std::path::Path::new("bytes"), &file.to_string());
        Vocabulary(Some(tokens.expect("a tokenizer")))
    }

    /// The text of an answer behind a prompt, in [`pieces`].
    fn behind(prompt: &[u32], tokens: &[u32]) -> String {
        continued(&pieces(), prompt, tokens)
    }

    fn continued(vocabulary: &Vocabulary, prompt: &[u32], tokens: &[u32]) -> String {
        let mut answer = Answer::new(vocabulary, &[], prompt);
        let text: String = tokens.iter().map(|&token| answer.push(token).expect("a text").text).collect();
        text + &answer.finish().expect("a text").text
    }

    #[test]
    fn an_answer_keeps_the_space_between_it_and_its_prompt() {
        // Spaced and plain letters, a special token, and a character of two tokens.
        let tokens = [4, 5, 4, 1, 3, 6, 7, 2, 5];
        assert_eq!(behind(&[5], &tokens), " ab aa\u{e9} b");
        assert_eq!(behind(&[6, 7], &tokens), " ab aa\u{e9} b");
        assert_eq!(behind(&[], &tokens), "ab aa\u{e9} b");
        // Behind a special token, a text starts.
        assert_eq!(behind(&[5, 1], &tokens), "ab aa\u{e9} b");
        // Behind half a character.
        assert_eq!(behind(&[6], &[7, 4]), "\u{e9} a");
    }

    /// The decoder turns all bytes in a row into U+FFFD unless together they are whole characters.
    #[test]
    fn an_answer_keeps_its_characters_behind_those_of_its_prompt() {
        for (prompt, tokens, expected) in [
            // Behind a character of bytes.
            (&[3, 6, 7][..], &[6, 7][..], "\u{e9}"),
            (&[6, 7], &[6, 7, 6, 7, 5], "\u{e9}\u{e9}b"),
            (&[3, 6, 7], &[4, 5], " ab"),
            (&[8, 9, 10, 11], &[6, 7], "\u{e9}"),
            (&[6, 7, 6, 7, 6, 7], &[8, 9, 10, 11, 8], "\u{1f600}\u{fffd}"),
            // Behind part of a character, which follows a letter or a whole character.
            (&[3, 6], &[7, 6, 7, 5], "\u{e9}\u{e9}b"),
            (&[3, 6, 7, 6], &[7, 4], "\u{e9} a"),
            (&[6, 7, 8, 9, 10], &[11, 6, 7, 6], "\u{1f600}\u{e9}\u{fffd}"),
            (&[3, 8, 9, 10, 11, 8, 9, 10], &[11, 5], "\u{1f600}b"),
            (&[3, 6], &[5], "b"),
            // Behind bytes of no character.
            (&[7, 7, 7, 7, 7, 7, 7, 7], &[5, 6, 7], "b\u{e9}"),
        ] {
            let context = &prompt[prompt.len().saturating_sub(Stream::CONTEXT)..];
            assert_eq!(behind(context, tokens), expected, "{tokens:?} behind {prompt:?}");
        }
    }

    /// The last token of a whole character may lie more than three tokens before the prompt's end.
    #[test]
    fn a_character_that_begins_in_a_token_of_two_characters_is_kept() {
        let vocabulary = bytes();
        assert_eq!(continued(&vocabulary, &[], &[0, 1, 2, 3, 4, 5, 0]), "a日ü€a");
        for (prompt, tokens, expected) in [
            (&[0, 1, 2, 3, 4][..], &[5, 0][..], "€a"),
            (&[0, 1, 2, 3], &[4, 5, 0], "€a"),
            (&[0, 1, 2], &[3, 4, 5], "日ü€"),
        ] {
            assert_eq!(continued(&vocabulary, prompt, tokens), expected, "{tokens:?} behind {prompt:?}");
        }
    }

    #[test]
    fn bytes_of_no_character_behind_a_character_are_shown_once() {
        assert_eq!(behind(&[], &[6, 7, 6]), "\u{e9}\u{fffd}");
        assert_eq!(behind(&[], &[6, 7, 6, 5]), "\u{e9}\u{fffd}b");
        assert_eq!(behind(&[], &[6, 7, 6, 4]), "\u{e9}\u{fffd} a");
        assert_eq!(behind(&[], &[6, 7, 1, 6]), "\u{e9}\u{fffd}");
        assert_eq!(behind(&[], &[8, 9, 10, 11, 8]), "\u{1f600}\u{fffd}");
        // What completes the character replaces them.
        assert_eq!(behind(&[], &[8, 9, 10, 11, 6, 7, 5]), "\u{1f600}\u{e9}b");
    }

    #[test]
    fn a_token_begins_where_its_text_does() {
        let vocabulary = pieces();
        let begins = |vocabulary: &Vocabulary, tokens: &[u32], prompt: &[u32]| {
            let mut answer = Answer::new(vocabulary, &[], prompt);
            let begin = |&token: &u32| {
                answer.push(token).expect("a text");
                answer.begin()
            };
            tokens.iter().map(begin).collect::<Vec<_>>()
        };
        // " ab aa\u{e9} b": the special token has no text, and two tokens are one character.
        let tokens = [4, 5, 4, 1, 3, 6, 7, 2, 5];
        assert_eq!(begins(&vocabulary, &tokens, &[5]), [0, 2, 3, 5, 5, 6, 6, 7, 8]);
        // The text lacks the first space.
        assert_eq!(begins(&vocabulary, &tokens, &[1]), [0, 1, 2, 4, 4, 5, 5, 6, 7]);
        // "a\u{fffd}b": no character follows from the byte.
        assert_eq!(begins(&vocabulary, &[3, 6, 5], &[5]), [0, 1, 2]);
        // The same behind a character of bytes: "\u{e9}\u{fffd}b".
        assert_eq!(begins(&vocabulary, &[6, 7, 6, 5], &[6, 7]), [0, 0, 1, 2]);
        assert_eq!(begins(&Vocabulary(None), &[7, 20, 7], &[]), [0, 2, 5]);
    }

    #[test]
    fn the_texts_of_tokens_are_those_in_an_answer() {
        let vocabulary = pieces();
        let texts: Vec<String> =
            [4, 3, 5, 2, 1].map(|token| vocabulary.decode(token).expect("a text")).into();
        assert_eq!(texts, [" a", "a", "b", " ", ""]);
        assert_eq!(vocabulary.shown(1, String::new()), "<s>");
        assert_eq!(vocabulary.shown(4, " a".to_owned()), " a");
        assert_eq!(Vocabulary(None).shown(4, "4 ".to_owned()), "4 ");
    }
}
