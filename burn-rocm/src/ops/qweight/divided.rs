//! Parts of quantised weights, for several devices.

use std::ops::Range;

use super::parts::CHUNK;
use super::{QuantWeight, WeightFormat, WeightParts};
use crate::error::invalid;
use crate::ops::view::narrow;
use crate::tensor::RocmTensor;

const OP: &str = "a part of quantised weights";

/// The inputs of Q4_K and Q6_K that share a scale of scales.
const SUPER: usize = 256;

/// Checks a range of rows or columns.
fn check(what: &str, range: &Range<usize>, of: usize) -> hip::Result<()> {
    if range.start < range.end && range.end <= of {
        return Ok(());
    }
    invalid(OP, format!("at least one of {of} {what}"), format!("{range:?}"))
}

impl WeightParts {
    /// The weights of some outputs.
    ///
    /// # Errors
    /// `Invalid` for no outputs, or outputs that the weight does not have.
    pub fn outputs(&self, range: Range<usize>) -> hip::Result<Self> {
        let [outs, inputs] = self.shape;
        check("outputs", &range, outs)?;
        let rows = |array: &[u8]| {
            let row = array.len() / outs;
            array[range.start * row..range.end * row].to_vec()
        };
        Ok(Self {
            shape: [range.len(), inputs],
            codes: rows(&self.codes),
            upper: rows(&self.upper),
            scales: rows(&self.scales),
            extra: rows(&self.extra),
            ..self.clone()
        })
    }

    /// The weights of some inputs, whole groups of them.
    ///
    /// # Errors
    /// `Invalid` for no inputs, inputs that the weight does not have, a range that begins or ends
    /// within a group, and weights whose inputs have an order of their own (`g_idx`).
    pub fn inputs(&self, range: Range<usize>) -> hip::Result<Self> {
        let [outs, inputs] = self.shape;
        check("inputs", &range, inputs)?;
        if self.order.is_some() {
            return invalid(
                OP,
                "inputs in the order of their groups",
                "an order (`g_idx`) that mixes the groups",
            );
        }
        let is_grouped = matches!(self.format, WeightFormat::Int4 | WeightFormat::Int8);
        let whole = is_grouped && self.groups == 1;
        let group = match is_grouped {
            false => SUPER,
            true if whole => CHUNK,
            true => CHUNK << self.shift,
        };
        if [range.start, range.end].iter().any(|&end| end != inputs && !end.is_multiple_of(group)) {
            let what = if whole { "whole chunks" } else { "whole groups" };
            return invalid(OP, format!("{what} of {group} inputs"), format!("inputs {range:?} of {inputs}"));
        }
        // Of the arrays, each has the same number of bytes for a group of inputs.
        let padded = inputs.next_multiple_of(CHUNK);
        let end = if range.end == inputs { padded } else { range.end };
        let columns = |array: &[u8], unit: usize| -> Vec<u8> {
            if array.is_empty() {
                return Vec::new();
            }
            let row = array.len() / outs;
            let each = row / padded.div_ceil(unit);
            let (first, last) = (range.start / unit * each, end.div_ceil(unit) * each);
            array.chunks_exact(row).flat_map(|row| &row[first..last]).copied().collect()
        };
        let of_groups = |array: &[u8]| if whole { array.to_vec() } else { columns(array, group) };
        Ok(Self {
            shape: [outs, range.len()],
            codes: columns(&self.codes, CHUNK),
            upper: columns(&self.upper, CHUNK),
            scales: if is_grouped { of_groups(&self.scales) } else { columns(&self.scales, CHUNK) },
            extra: of_groups(&self.extra),
            groups: match is_grouped {
                true if whole => 1,
                true => end.div_ceil(group) - range.start / group,
                false => (end - range.start) / CHUNK,
            },
            ..self.clone()
        })
    }
}

impl QuantWeight {
    /// The weights of some outputs, in the same memory.
    ///
    /// # Errors
    /// `Invalid` for no outputs, or outputs that the weight does not have.
    pub fn outputs(&self, range: Range<usize>) -> hip::Result<Self> {
        let [outs, inputs] = self.shape;
        check("outputs", &range, outs)?;
        let rows = |array: &RocmTensor| {
            let row = array.len() / outs;
            narrow(array.clone(), 0, range.start * row, range.len() * row)
        };
        Ok(Self {
            shape: [range.len(), inputs],
            codes: rows(&self.codes)?,
            upper: self.upper.as_ref().map(rows).transpose()?,
            scales: rows(&self.scales)?,
            extra: self.extra.as_ref().map(rows).transpose()?,
            ..self.clone()
        })
    }
}
