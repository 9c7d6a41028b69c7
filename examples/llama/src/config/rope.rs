//! Rotary position embedding: the frequencies that `config.json` asks for.

use burn_rocm::fused::MOST_PAIRS;
use burn_rocm_nn::language::{RotaryConfig, RotaryFrequencies, RotaryScaling};

use super::fields::Fields;
use crate::error::{Error, Result};

/// The rotary embedding of some layers ([Su et al. 2021](https://arxiv.org/abs/2104.09864)).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians per position of each pair of features, from the fastest to the slowest. Feature `i`
    /// and feature `i + frequencies.len()` of a head are a pair. Features from
    /// `2 * frequencies.len()` on are not rotated.
    pub frequencies: Vec<f32>,
    /// The factor of cosines and sines, 1 without YaRN.
    pub factor: f32,
}

impl Rope {
    /// The embedding of the object `scaling`, or without scaling if it is `None`.
    ///
    /// `base` and `partial` count unless the object has its own. `context` is the length that the
    /// model was trained for.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for dynamic scaling and LongRoPE; [`Error::Field`].
    pub(super) fn new(
        scaling: Option<&Fields>,
        head_dim: usize,
        base: f64,
        partial: f64,
        context: usize,
        fields: &Fields,
    ) -> Result<Self> {
        let own = |name| scaling.map_or(Ok(None), |scaling| scaling.positive(name));
        let base = own("rope_theta")?.unwrap_or(base);
        let partial = own("partial_rotary_factor")?.unwrap_or(partial);
        if partial > 1.0 {
            return Err(fields.wrong("partial_rotary_factor", "a number from 0 to 1", partial.to_string()));
        }
        let rotated = (head_dim as f64 * partial) as usize;
        if rotated < 2 || !rotated.is_multiple_of(2) || rotated > 2 * MOST_PAIRS {
            let expected = format!("an even number of features that are rotated, 2 to {}", 2 * MOST_PAIRS);
            return Err(fields.wrong("head_dim", expected, rotated.to_string()));
        }
        let of = |scaling| {
            let config = RotaryConfig::new(head_dim).with_base(base).with_rotated(Some(rotated));
            let RotaryFrequencies { frequencies, factor } = config.with_scaling(scaling).frequencies();
            Self { frequencies, factor }
        };
        let Some(scaling) = scaling else { return Ok(of(None)) };
        let kind = match scaling.text("rope_type")? {
            Some(kind) => kind,
            None => scaling.text("type")?.unwrap_or("default"),
        };
        match kind {
            "default" => Ok(of(None)),
            "linear" => Ok(of(Some(RotaryScaling::Linear { factor: required(scaling, "factor")? }))),
            "llama3" => Ok(of(Some(llama3(scaling, context)?))),
            "yarn" => Ok(of(Some(yarn(scaling, context)?))),
            other => Err(Error::Unsupported {
                path: scaling.path().to_owned(),
                what: format!("the rotary embedding `{other}` is"),
                supported: "default, linear, llama3 and yarn".to_owned(),
            }),
        }
    }
}

fn required(fields: &Fields, name: &str) -> Result<f64> {
    fields.positive(name)?.ok_or_else(|| fields.wrong(name, "a number above 0", "nothing"))
}

fn llama3(scaling: &Fields, context: usize) -> Result<RotaryScaling> {
    Ok(RotaryScaling::Llama3 {
        factor: required(scaling, "factor")?,
        slow: required(scaling, "low_freq_factor")?,
        fast: required(scaling, "high_freq_factor")?,
        trained: scaling.size("original_max_position_embeddings", Some(context))?,
    })
}

fn yarn(scaling: &Fields, context: usize) -> Result<RotaryScaling> {
    let trained = scaling.size("original_max_position_embeddings", Some(context))?;
    let factor = scaling.positive("factor")?.unwrap_or(context as f64 / trained as f64);
    let attention = match scaling.positive("attention_factor")? {
        Some(attention) => attention,
        None => match (scaling.number("mscale")?, scaling.number("mscale_all_dim")?) {
            (Some(one), Some(all)) if one != 0.0 && all != 0.0 => {
                // YaRN's factor with another weight of the logarithm.
                let weighted = |weight: f64| 1.0 + weight * (RotaryScaling::yarn_attention(factor) - 1.0);
                weighted(one) / weighted(all)
            }
            _ => RotaryScaling::yarn_attention(factor),
        },
    };
    Ok(RotaryScaling::Yarn {
        factor,
        attention,
        fast: scaling.positive("beta_fast")?.unwrap_or(32.0),
        slow: scaling.positive("beta_slow")?.unwrap_or(1.0),
        truncate: scaling.flag("truncate", true)?,
        trained,
    })
}
