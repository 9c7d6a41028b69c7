//! Which layers get an adapter, and of what size. Both versions of Burn compile this file.

use regex::Regex;

use super::LoraError;

/// PEFT's name for [`Targets::All`], in upper or lower case.
pub(super) const ALL_LINEAR: &str = "all-linear";

/// The layers that get an adapter, by name. A name is the path of a layer in the model that a
/// checkpoint belongs to, such as `model.layers.0.self_attn.q_proj`.
#[derive(Clone, Debug, PartialEq)]
pub enum Targets {
    /// Layers whose names are one of these, or end with a dot and one of these.
    Names(Vec<String>),
    /// Layers whose whole name matches this regular expression. The syntax is that of the crate
    /// `regex`, which has no look-around. As in PEFT, [`LoraConfig::targets`] of `all-linear` are
    /// [`All`](Self::All).
    Matching(String),
    /// All layers except those whose name is `lm_head` or ends with `.lm_head`, the matrix of the
    /// logits. In PEFT's files this is `all-linear`.
    All,
}

impl Targets {
    /// Layers whose names are one of these, or end with a dot and one of these.
    pub fn names<T: Into<String>>(names: impl IntoIterator<Item = T>) -> Self {
        Self::Names(names.into_iter().map(Into::into).collect())
    }
}

/// Low-rank adapters ([Hu et al. 2021](https://arxiv.org/abs/2106.09685)): `scale * x A B` is added
/// to the output of a frozen layer, where `A` is `[inputs, rank]` and `B` is `[rank, outputs]`.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    /// The rank of `A B`, at least 1.
    pub rank: usize,
    /// The scale is `alpha / rank`, or `alpha / sqrt(rank)` with [`rslora`](Self::rslora).
    pub alpha: f64,
    /// Whether the scale is that of rsLoRA ([Kalajdzievski
    /// 2023](https://arxiv.org/abs/2312.03732)).
    pub rslora: bool,
    /// The probability that a feature of the adapter's input is dropped in training, from 0 to
    /// less than 1.
    pub dropout: f64,
    /// The layers that get an adapter.
    pub targets: Targets,
    /// Layers that get none, although they are among the targets: names or a regular expression.
    pub exclude: Option<Targets>,
    /// If [`targets`](Self::targets) is a list of names: the indices of the model's layers that get
    /// adapters. A layer's index is the first number in its name that has two parts before it, as
    /// in `model.layers.3.self_attn.q_proj`.
    pub layers: Option<Vec<usize>>,
    /// Other ranks of layers whose name, or whose end of a name after a dot, matches a regular
    /// expression. The first that matches counts.
    pub ranks: Vec<(String, usize)>,
    /// Other alphas, likewise.
    pub alphas: Vec<(String, f64)>,
}

/// What one layer's adapter is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterConfig {
    /// The rank.
    pub rank: usize,
    /// The factor of `x A B`.
    pub scale: f64,
    /// The probability that a feature of the adapter's input is dropped in training.
    pub dropout: f64,
}

/// A [`LoraConfig`] that was checked. Made by [`LoraConfig::build`].
#[derive(Clone, Debug)]
pub struct Lora {
    config: LoraConfig,
    targets: Matcher,
    exclude: Option<Matcher>,
    ranks: Vec<(Regex, usize)>,
    alphas: Vec<(Regex, f64)>,
}

#[derive(Clone, Debug)]
enum Matcher {
    Names(Vec<String>),
    Matching(Regex),
    All,
}

impl LoraConfig {
    /// Adapters of this rank for these layers, with an alpha of twice the rank and without dropout.
    pub fn new(rank: usize, targets: Targets) -> Self {
        Self {
            rank,
            alpha: 2.0 * rank as f64,
            rslora: false,
            dropout: 0.0,
            targets,
            exclude: None,
            layers: None,
            ranks: Vec::new(),
            alphas: Vec::new(),
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`LoraError::Setting`] for a rank of 0, an alpha that is not finite, a dropout outside 0 to
    /// 1, no targets, an exclusion of [`Targets::All`], which PEFT's files can't express, indices of
    /// layers without a list of names, and patterns that are no regular expressions of the crate
    /// `regex`.
    pub fn build(&self) -> Result<Lora, LoraError> {
        let mut config = self.clone();
        if matches!(&self.targets, Targets::Matching(pattern) if pattern.eq_ignore_ascii_case(ALL_LINEAR)) {
            config.targets = Targets::All;
        }
        let patterns = |name, patterns: &mut dyn Iterator<Item = &String>| -> Result<Vec<Regex>, LoraError> {
            patterns.map(|pattern| regex(name, &format!(r"\A(?:.*\.)?(?:{pattern})\z"), pattern)).collect()
        };
        let ranks = patterns("ranks", &mut self.ranks.iter().map(|(pattern, _)| pattern))?;
        let alphas = patterns("alphas", &mut self.alphas.iter().map(|(pattern, _)| pattern))?;
        for &rank in self.ranks.iter().map(|(_, rank)| rank).chain([&self.rank]) {
            if rank == 0 {
                return Err(wrong("rank", "at least 1", rank));
            }
        }
        for &alpha in self.alphas.iter().map(|(_, alpha)| alpha).chain([&self.alpha]) {
            if !alpha.is_finite() {
                return Err(wrong("alpha", "a finite number", alpha));
            }
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(wrong("dropout", "a probability from 0 to less than 1", self.dropout));
        }
        if matches!(&self.targets, Targets::Names(names) if names.is_empty()) {
            return Err(wrong("targets", "the name of a layer", "none"));
        }
        if matches!(self.exclude, Some(Targets::All)) {
            return Err(wrong("exclude", "names or a regular expression", "all layers"));
        }
        if self.layers.is_some() && !matches!(self.targets, Targets::Names(_)) {
            return Err(wrong("layers", "targets that are a list of names", format!("{:?}", self.targets)));
        }
        Ok(Lora {
            targets: Matcher::new("targets", &config.targets)?,
            exclude: self.exclude.as_ref().map(|targets| Matcher::new("exclude", targets)).transpose()?,
            ranks: ranks.into_iter().zip(self.ranks.iter().map(|&(_, rank)| rank)).collect(),
            alphas: alphas.into_iter().zip(self.alphas.iter().map(|&(_, alpha)| alpha)).collect(),
            config,
        })
    }
}

fn wrong(name: &'static str, expected: &str, found: impl std::fmt::Display) -> LoraError {
    LoraError::Setting { name, expected: expected.to_owned(), found: found.to_string() }
}

fn regex(name: &'static str, whole: &str, pattern: &str) -> Result<Regex, LoraError> {
    let expected = "a regular expression of the crate `regex`, which has no look-around";
    Regex::new(whole).map_err(|_| wrong(name, expected, format_args!("`{pattern}`")))
}

impl Matcher {
    fn new(name: &'static str, targets: &Targets) -> Result<Self, LoraError> {
        Ok(match targets {
            Targets::Names(names) => Self::Names(names.clone()),
            Targets::Matching(pattern) => {
                Self::Matching(regex(name, &format!(r"\A(?:{pattern})\z"), pattern)?)
            }
            Targets::All => Self::All,
        })
    }

    fn matches(&self, layer: &str) -> bool {
        match self {
            Self::Names(names) => names.iter().any(|name| ends_with(layer, name)),
            Self::Matching(regex) => regex.is_match(layer),
            Self::All => !ends_with(layer, "lm_head"),
        }
    }
}

/// Whether the layer has this name, or ends with a dot and this name.
fn ends_with(layer: &str, name: &str) -> bool {
    layer.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// The first number between dots that has at least two parts before it and one behind it.
fn index(layer: &str) -> Option<usize> {
    let parts: Vec<&str> = layer.split('.').collect();
    let between = parts.get(2..parts.len().checked_sub(1)?)?;
    let digits = |part: &&&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    between.iter().find(digits)?.parse().ok()
}

impl Lora {
    /// The settings.
    pub fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// The adapter of the layer with this name; `None` if it gets none.
    pub fn adapter(&self, layer: &str) -> Option<AdapterConfig> {
        let excluded = self.exclude.as_ref().is_some_and(|exclude| exclude.matches(layer));
        if excluded || !self.targets.matches(layer) {
            return None;
        }
        // As in PEFT, a target that is a whole name counts without its index.
        let is_whole =
            matches!(&self.targets, Matcher::Names(names) if names.iter().any(|name| name == layer));
        if let (Some(layers), false) = (&self.config.layers, is_whole)
            && !index(layer).is_some_and(|index| layers.contains(&index))
        {
            return None;
        }
        let LoraConfig { rank, alpha, rslora, dropout, .. } = self.config;
        let rank = first(&self.ranks, layer).unwrap_or(rank);
        let alpha = first(&self.alphas, layer).unwrap_or(alpha);
        let divisor = if rslora { (rank as f64).sqrt() } else { rank as f64 };
        Some(AdapterConfig { rank, scale: alpha / divisor, dropout })
    }
}

fn first<T: Copy>(patterns: &[(Regex, T)], layer: &str) -> Option<T> {
    patterns.iter().find(|(pattern, _)| pattern.is_match(layer)).map(|&(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(config: &LoraConfig, layers: &[&str]) -> Vec<usize> {
        let lora = config.build().expect("settings that make sense");
        (0..layers.len()).filter(|&at| lora.adapter(layers[at]).is_some()).collect()
    }

    const LAYERS: [&str; 6] = [
        "model.layers.0.self_attn.q_proj",
        "model.layers.12.self_attn.q_proj",
        "model.layers.12.mlp.up_proj",
        "model.layers.12.mlp.not_up_proj",
        "lm_head",
        "q_proj",
    ];

    #[test]
    fn targets_are_those_of_peft() {
        let config = |targets| LoraConfig::new(2, targets);
        assert_eq!(names(&config(Targets::names(["q_proj"])), &LAYERS), [0, 1, 5]);
        assert_eq!(names(&config(Targets::names(["mlp.up_proj", "lm_head"])), &LAYERS), [2, 4]);
        assert_eq!(names(&config(Targets::All), &LAYERS), [0, 1, 2, 3, 5]);
        // The whole name must match.
        let matching = |pattern: &str| config(Targets::Matching(pattern.to_owned()));
        assert_eq!(names(&matching(r".*\.12\..*(q|up)_proj"), &LAYERS), [1, 2, 3]);
        assert_eq!(names(&matching("q_proj"), &LAYERS), [5]);
        assert_eq!(names(&matching("lm_head|.*q_proj"), &LAYERS), [0, 1, 4, 5]);
        assert_eq!(names(&matching("All-Linear"), &LAYERS), [0, 1, 2, 3, 5]);
        let some = LoraConfig { layers: Some(vec![12]), ..config(Targets::names(["q_proj", "up_proj"])) };
        // Like PEFT, a target that is a whole name counts without its index.
        assert_eq!(names(&some, &LAYERS), [1, 2, 5]);
        let without = LoraConfig { exclude: Some(Targets::names(["12.self_attn.q_proj"])), ..some };
        assert_eq!(names(&without, &LAYERS), [2, 5]);
    }

    #[test]
    fn scales_and_patterns() {
        let mut config = LoraConfig { alpha: 8.0, ..LoraConfig::new(4, Targets::All) };
        config.ranks = vec![(r"12\.mlp\..*".to_owned(), 16), ("up_proj".to_owned(), 2)];
        config.alphas = vec![("q_proj".to_owned(), 1.0)];
        let of = |config: &LoraConfig, at: usize| {
            let lora = config.build().expect("settings that make sense");
            let AdapterConfig { rank, scale, .. } = lora.adapter(LAYERS[at]).expect("an adapter");
            (rank, scale)
        };
        assert_eq!([of(&config, 0), of(&config, 2), of(&config, 5)], [(4, 0.25), (16, 0.5), (4, 0.25)]);
        config.rslora = true;
        assert_eq!([of(&config, 0), of(&config, 2)], [(4, 0.5), (16, 2.0)]);
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        type Change<'a> = &'a dyn Fn(&mut LoraConfig);
        let error = |change: Change<'_>| {
            let mut config = LoraConfig::new(2, Targets::names(["q_proj"]));
            change(&mut config);
            config.build().expect_err("an error").to_string()
        };
        let cases: [(&str, Change<'_>); 9] = [
            ("`rank`: expected at least 1, found 0", &|c| c.rank = 0),
            ("`rank`: expected at least 1, found 0", &|c| c.ranks = vec![("a".to_owned(), 0)]),
            ("`alpha`: expected a finite number, found NaN", &|c| c.alpha = f64::NAN),
            ("`dropout`: expected a probability from 0 to less than 1, found 1", &|c| c.dropout = 1.0),
            ("`targets`: expected the name of a layer", &|c| c.targets = Targets::Names(vec![])),
            ("no look-around, found `(?!a)b`", &|c| c.targets = Targets::Matching("(?!a)b".to_owned())),
            ("no look-around, found `(`", &|c| c.exclude = Some(Targets::Matching("(".to_owned()))),
            ("`exclude`: expected names or a regular expression, found all layers", &|c| {
                c.exclude = Some(Targets::All);
            }),
            ("`layers`: expected targets that are a list of names", &|c| {
                c.targets = Targets::All;
                c.layers = Some(vec![0]);
            }),
        ];
        for (text, change) in cases {
            let found = error(change);
            assert!(found.contains(text), "expected {text}\nfound    {found}");
        }
    }
}
