//! Rotary position embedding: the frequencies that `config.json` asks for.

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
        if rotated < 2 || !rotated.is_multiple_of(2) {
            let expected = "an even number of features that are rotated, at least 2";
            return Err(fields.wrong("head_dim", expected, rotated.to_string()));
        }
        let frequency = |pair: usize| {
            let exponent = (2 * pair) as f32 / rotated as f32;
            1.0 / (base as f32).powf(exponent)
        };
        let plain: Vec<f32> = (0..rotated / 2).map(frequency).collect();
        let Some(scaling) = scaling else { return Ok(Self { frequencies: plain, factor: 1.0 }) };
        let kind = match scaling.text("rope_type")? {
            Some(kind) => kind,
            None => scaling.text("type")?.unwrap_or("default"),
        };
        match kind {
            "default" => Ok(Self { frequencies: plain, factor: 1.0 }),
            "linear" => {
                let factor = required(scaling, "factor")? as f32;
                let frequencies = plain.into_iter().map(|frequency| frequency / factor).collect();
                Ok(Self { frequencies, factor: 1.0 })
            }
            "llama3" => Ok(Self { frequencies: llama3(scaling, plain, context)?, factor: 1.0 }),
            "yarn" => yarn(scaling, plain, rotated, base, context),
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

/// The scaling of Llama 3.1: slow frequencies are divided by a factor, fast ones stay, and between
/// the two limits the result moves from one to the other.
fn llama3(scaling: &Fields, plain: Vec<f32>, context: usize) -> Result<Vec<f32>> {
    let factor = required(scaling, "factor")? as f32;
    let [low, high] = ["low_freq_factor", "high_freq_factor"].map(|name| required(scaling, name));
    let (low, high) = (low? as f32, high? as f32);
    let trained = scaling.size("original_max_position_embeddings", Some(context))? as f32;
    let scale = |frequency: f32| {
        let wavelength = std::f32::consts::TAU / frequency;
        if wavelength > trained / low {
            frequency / factor
        } else if wavelength < trained / high {
            frequency
        } else {
            let smooth = (trained / wavelength - low) / (high - low);
            (1.0 - smooth) * frequency / factor + smooth * frequency
        }
    };
    Ok(plain.into_iter().map(scale).collect())
}

/// YaRN ([Peng et al. 2023](https://arxiv.org/abs/2309.00071)).
fn yarn(scaling: &Fields, plain: Vec<f32>, rotated: usize, base: f64, context: usize) -> Result<Rope> {
    let trained = scaling.size("original_max_position_embeddings", Some(context))? as f64;
    let factor = scaling.positive("factor")?.unwrap_or(context as f64 / trained);
    let attention = match scaling.positive("attention_factor")? {
        Some(attention) => attention,
        None => {
            let weight = |weight: f64| if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
            match (scaling.number("mscale")?, scaling.number("mscale_all_dim")?) {
                (Some(one), Some(all)) if one != 0.0 && all != 0.0 => weight(one) / weight(all),
                _ => weight(1.0),
            }
        }
    };
    let fast = scaling.positive("beta_fast")?.unwrap_or(32.0);
    let slow = scaling.positive("beta_slow")?.unwrap_or(1.0);
    // The pair that turns so many times over the trained length.
    let pair =
        |turns: f64| rotated as f64 * (trained / (turns * std::f64::consts::TAU)).ln() / (2.0 * base.ln());
    let (mut first, mut last) = (pair(fast), pair(slow));
    if scaling.flag("truncate", true)? {
        (first, last) = (first.floor(), last.ceil());
    }
    let first = first.max(0.0);
    let mut last = last.min((rotated - 1) as f64);
    if first == last {
        // The ramp between the two pairs must not be vertical.
        last += 0.001;
    }
    let scale = |(at, frequency): (usize, f32)| {
        let ramp = ((at as f32 - first as f32) / (last - first) as f32).clamp(0.0, 1.0);
        let kept = 1.0 - ramp;
        frequency / factor as f32 * (1.0 - kept) + frequency * kept
    };
    let frequencies = plain.into_iter().enumerate().map(scale).collect();
    Ok(Rope { frequencies, factor: attention as f32 })
}
