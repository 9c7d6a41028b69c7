//! Texts to train on.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::rng::Rng;

/// What the names of texts end with.
const TEXTS: [&str; 9] = ["c", "cpp", "h", "hip", "md", "py", "rs", "toml", "txt"];

/// Tokens to train on, and tokens that are held out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Corpus {
    /// Tokens to train on.
    pub train: Vec<u32>,
    /// Tokens to evaluate on.
    pub held_out: Vec<u32>,
    /// The number of texts of both.
    pub texts: [usize; 2],
}

/// The bytes of a text as tokens.
pub fn bytes_of(text: &[u8]) -> Vec<u32> {
    text.iter().map(|&byte| byte.into()).collect()
}

impl Corpus {
    /// The bytes of the texts in a folder and in the folders in it (C, C++, HIP, Markdown, Python,
    /// Rust, TOML and plain text), in the order of their names. Hidden folders and those named
    /// `target` don't count. Every tenth text is held out.
    ///
    /// # Errors
    /// [`Error::File`] if a file can't be read, or if there are fewer than ten texts.
    pub fn of_folder(folder: &Path) -> Result<Self> {
        let mut paths = Vec::new();
        walk(folder, &mut paths)?;
        paths.sort();
        if paths.len() < 10 {
            let reason = format!("expected at least 10 texts ({}), found {}", TEXTS.join(", "), paths.len());
            return Err(Error::file(folder, reason));
        }
        let mut corpus = Self::default();
        for (at, path) in paths.iter().enumerate() {
            let text = fs::read(path).map_err(|why| Error::file(path, why))?;
            let tokens = bytes_of(&text);
            if at % 10 == 9 {
                corpus.held_out.extend(tokens);
                corpus.texts[1] += 1;
            } else {
                corpus.train.extend(tokens);
                corpus.texts[0] += 1;
            }
        }
        Ok(corpus)
    }

    /// One text, of whose tokens the last tenth is held out.
    pub fn of_tokens(mut tokens: Vec<u32>) -> Self {
        let held_out = tokens.split_off(tokens.len() - tokens.len() / 10);
        Self { train: tokens, held_out, texts: [1, 1] }
    }

    /// Checks that both parts have a window of `time` tokens and the one after it.
    ///
    /// # Errors
    /// [`Error::Argument`].
    pub fn check(&self, time: usize) -> Result<()> {
        let shorter = self.train.len().min(self.held_out.len());
        if shorter <= time {
            let expected = format!("texts of more than {time} tokens, also in the tenth that is held out");
            return Err(Error::Argument { name: "text", expected, found: format!("{shorter} tokens") });
        }
        Ok(())
    }
}

fn walk(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(|why| Error::file(folder, why))? {
        let entry = entry.map_err(|why| Error::file(folder, why))?;
        // Links are left out, because they may form a circle.
        let kind = entry.file_type().map_err(|why| Error::file(entry.path(), why))?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if kind.is_dir() && !name.starts_with('.') && name != "target" {
            walk(&path, paths)?;
        } else if kind.is_file() && path.extension().is_some_and(|end| TEXTS.iter().any(|&text| end == text))
        {
            paths.push(path);
        }
    }
    Ok(())
}

/// Windows of a text: tokens, and the token after each.
#[derive(Clone, Debug)]
pub struct Windows {
    /// `[count, time]`.
    pub tokens: Vec<i32>,
    /// `[count * time]`.
    pub targets: Vec<i32>,
    /// The number of windows and their length.
    pub shape: [usize; 2],
}

impl Windows {
    /// Windows that begin at random places of a text of more than `time` tokens.
    pub fn random(text: &[u32], shape: [usize; 2], rng: &mut Rng) -> Self {
        let places = (text.len() - shape[1]) as f64;
        Self::at((0..shape[0]).map(|_| (rng.uniform() * places) as usize), text, shape)
    }

    /// Windows that follow each other, at most `most` in number, spread over the text.
    pub fn spread(text: &[u32], time: usize, most: usize) -> Self {
        let all = (text.len() - 1) / time;
        let count = all.min(most);
        Self::at((0..count).map(|at| at * all / count * time), text, [count, time])
    }

    fn at(starts: impl Iterator<Item = usize>, text: &[u32], shape: [usize; 2]) -> Self {
        let (mut tokens, mut targets) = (Vec::new(), Vec::new());
        for start in starts {
            let window = &text[start..=start + shape[1]];
            let ids = |part: &[u32]| part.iter().map(|&token| token as i32).collect::<Vec<_>>();
            tokens.extend(ids(&window[..shape[1]]));
            targets.extend(ids(&window[1..]));
        }
        Self { tokens, targets, shape }
    }

    /// `count` of the windows, from `start` on.
    pub fn part(&self, start: usize, count: usize) -> Self {
        let [all, time] = self.shape;
        let count = count.min(all - start);
        let of = |ids: &[i32]| ids[start * time..(start + count) * time].to_vec();
        Self { tokens: of(&self.tokens), targets: of(&self.targets), shape: [count, time] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_pieces_of_the_text() {
        let text: Vec<u32> = (0..100).collect();
        let check = |windows: &Windows| {
            let [count, time] = windows.shape;
            assert_eq!([windows.tokens.len(), windows.targets.len()], [count * time; 2]);
            for (row, targets) in windows.tokens.chunks(time).zip(windows.targets.chunks(time)) {
                assert!(row.windows(2).all(|pair| pair[1] == pair[0] + 1));
                assert!(row.iter().zip(targets).all(|(token, target)| *target == token + 1));
            }
        };
        let mut rng = Rng::new(1);
        let random = Windows::random(&text, [50, 9], &mut rng);
        check(&random);
        // A window that ends with the last token may be drawn, and one that begins with the first.
        let all = Windows::random(&text[..11], [64, 9], &mut rng);
        assert_eq!((all.tokens.iter().min(), all.targets.iter().max()), (Some(&0), Some(&10)));
        let spread = Windows::spread(&text, 9, 4);
        check(&spread);
        assert_eq!(spread.tokens.iter().step_by(9).collect::<Vec<_>>(), [&0, &18, &45, &72]);
        assert_eq!(Windows::spread(&text, 9, 1000).shape, [11, 9]);
        assert_eq!(spread.part(3, 5).tokens[0], 72);
        let corpus = Corpus::of_tokens(text);
        assert_eq!((corpus.train.len(), corpus.held_out[0]), (90, 90));
        assert!(corpus.check(9).is_ok() && corpus.check(10).is_err());
    }
}
