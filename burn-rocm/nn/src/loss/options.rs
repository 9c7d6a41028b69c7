//! The options of losses: checks and display. Both versions of Burn compile this file.

use crate::fuse::refuse;

/// The checks of options that Burn's classification losses share.
///
/// # Panics
/// If the smoothing is outside 0 to 1 or a weight is not positive.
pub(super) fn check_options(smoothing: Option<f32>, weights: Option<&[f32]>) {
    if let Some(alpha) = smoothing.filter(|alpha| !(0.0..=1.0).contains(alpha)) {
        refuse("loss", "a label smoothing of 0 to 1", alpha.to_string());
    }
    if let Some(weights) = weights.filter(|weights| !weights.iter().all(|&weight| weight > 0.0)) {
        refuse("loss", "positive class weights", format!("{weights:?}"));
    }
}

/// Pad tokens as Burn displays them.
pub(super) fn shown(pad_tokens: Option<&[usize]>) -> String {
    pad_tokens.map_or("None".into(), |tokens| format!("Vec<0..{}>", tokens.len()))
}
