//! The families of models, and what `config.json` leaves to them.

use super::Rope;
use super::fields::Fields;
use crate::error::{Error, Result};

/// A family of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama 2 and 3.
    Llama,
    /// Qwen 2 and 2.5.
    Qwen2,
    /// Qwen 3.
    Qwen3,
    /// Mistral and Mistral Nemo.
    Mistral,
    /// Gemma 2.
    Gemma2,
    /// Gemma 3, its text part.
    Gemma3,
}

/// What the program runs, for errors.
const SUPPORTED: &str = "the text models llama, qwen2, qwen3, mistral, gemma2 and gemma3";

impl Family {
    /// The features of a head if `config.json` does not say; `None`: the width by the heads.
    pub(super) fn head_dim(self) -> Option<usize> {
        match self {
            Self::Qwen3 => Some(128),
            Self::Gemma2 | Self::Gemma3 => Some(256),
            Self::Llama | Self::Qwen2 | Self::Mistral => None,
        }
    }

    /// The heads of queries and of keys if `config.json` does not say: those of `transformers`. The
    /// `text_config` of Gemma 3 4B leaves them out.
    pub(super) fn heads(self) -> [Option<usize>; 2] {
        match self {
            Self::Gemma3 => [Some(8), Some(4)],
            Self::Mistral => [None, Some(8)],
            _ => [None, None],
        }
    }

    /// The vocabulary if `config.json` does not say. The `text_config` of Gemma 3 may leave it out.
    pub(super) fn vocabulary(self) -> Option<usize> {
        (self == Self::Gemma3).then_some(262_208)
    }

    /// The context if `config.json` does not say.
    pub(super) fn context(self) -> usize {
        match self {
            Self::Llama => 2048,
            Self::Qwen2 | Self::Qwen3 => 32_768,
            Self::Mistral | Self::Gemma3 => 131_072,
            Self::Gemma2 => 8192,
        }
    }
}

/// The model's family, and the object with the settings of its text part.
pub(super) fn find(outer: &Fields) -> Result<(Family, Fields)> {
    let unsupported = |what: String| Error::Unsupported {
        path: outer.path().to_owned(),
        what,
        supported: SUPPORTED.to_owned(),
    };
    let Some(kind) = outer.text("model_type")? else {
        return Err(outer.wrong("model_type", SUPPORTED, "nothing"));
    };
    if let Some(text) = outer.object("text_config")? {
        let inner = text.text("model_type")?.unwrap_or(kind);
        // Gemma 3's text part runs without its vision part.
        let sees = outer.get("vision_config").is_some() || outer.get("audio_config").is_some();
        if sees && kind != "gemma3" {
            return Err(unsupported(format!("`{kind}`, a model of images or sound, is")));
        }
        return Ok((of(inner).ok_or_else(|| unsupported(format!("`{inner}` is")))?, text));
    }
    if outer.get("vision_config").is_some() {
        return Err(unsupported(format!("`{kind}`, a model of images, is")));
    }
    match of(kind) {
        Some(family) => Ok((family, outer.clone())),
        None if kind.contains("moe") || kind == "mixtral" => {
            Err(unsupported(format!("`{kind}`, a mixture of experts, is")))
        }
        None => Err(unsupported(format!("`{kind}` is"))),
    }
}

fn of(kind: &str) -> Option<Family> {
    Some(match kind {
        "llama" => Family::Llama,
        "qwen2" => Family::Qwen2,
        "qwen3" => Family::Qwen3,
        "mistral" => Family::Mistral,
        "gemma2" => Family::Gemma2,
        "gemma3" | "gemma3_text" => Family::Gemma3,
        _ => return None,
    })
}

/// Refuses settings of the known families that this program would silently get wrong.
pub(super) fn refuse_others(fields: &Fields) -> Result<()> {
    let unsupported = |what: &str| {
        let (path, supported) = (fields.path().to_owned(), SUPPORTED.to_owned());
        Err(Error::Unsupported { path, what: what.to_owned(), supported })
    };
    for name in ["num_local_experts", "num_experts", "n_routed_experts"] {
        if fields.count(name)?.is_some_and(|experts| experts > 1) {
            return unsupported("a mixture of experts is");
        }
    }
    if fields.flag("use_bidirectional_attention", false)? {
        return unsupported("attention to later tokens is");
    }
    Ok(())
}

/// The rotary embeddings: one, or that of layers with a window and that of the others. Newer files
/// have them in `rope_parameters`, older ones in `rope_theta` and `rope_scaling`.
pub(super) fn ropes(family: Family, fields: &Fields, head_dim: usize, context: usize) -> Result<Vec<Rope>> {
    let own = fields.positive("rope_theta")?;
    let partial = fields.positive("partial_rotary_factor")?.unwrap_or(1.0);
    let context = fields.size("original_max_position_embeddings", Some(context))?;
    let parameters = fields.object("rope_parameters")?;
    let scaling = fields.object("rope_scaling")?;
    let make =
        |scaling: Option<&Fields>, base: f64| Rope::new(scaling, head_dim, base, partial, context, fields);
    if family != Family::Gemma3 {
        let base = own.unwrap_or(10_000.0);
        return Ok(vec![make(scaling.as_ref().or(parameters.as_ref()), base)?]);
    }
    let part = |name: &str| match &parameters {
        Some(parameters) => parameters.object(name),
        None => Ok(None),
    };
    let global = scaling.or(part("full_attention")?);
    let local = part("sliding_attention")?;
    let base = fields.positive("rope_local_base_freq")?.unwrap_or(10_000.0);
    Ok(vec![make(local.as_ref(), base)?, make(global.as_ref(), own.unwrap_or(1_000_000.0))?])
}
