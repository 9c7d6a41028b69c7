//! Checkpoints of AWQ (Lin et al. 2023), as AutoAWQ writes them (`version: gemm`).

use burn_rocm::RocmError;
use burn_rocm::fused::{GroupZeros, GroupedWeights, WeightParts};

use super::raw::{RawTensor, invalid};

const OP: &str = "AWQ";

/// Where the number of each of a word's eight outputs lies: place `p` has that of output `ORDER[p]`.
const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// A linear layer's tensors. Weight `(input, output)` is `scale * (code - zero)`.
#[derive(Clone, Copy, Debug)]
pub struct Awq<'a> {
    /// `group_size`; `None` for -1.
    pub group: Option<usize>,
    /// `[inputs, outputs / 8]`: the codes of eight outputs in a word, interleaved.
    pub qweight: RawTensor<'a>,
    /// `[groups, outputs / 8]`.
    pub qzeros: RawTensor<'a>,
    /// `[groups, outputs]`.
    pub scales: RawTensor<'a>,
}

impl Awq<'_> {
    /// The weight `[outputs, inputs]`.
    ///
    /// # Errors
    /// `Invalid` for tensors whose shapes or types do not fit each other, and for groups that are no
    /// multiple of 32.
    pub fn parts(&self) -> Result<WeightParts, RocmError> {
        let [inputs, words] = self.qweight.matrix(OP)?;
        let outs = words.saturating_mul(8);
        let codes = self.qweight.words(OP, &[inputs, words])?;
        let group = self.group.filter(|&group| group < inputs);
        let groups = match group {
            Some(0) => return invalid(OP, "groups of at least 32 inputs", "groups of 0"),
            Some(group) => inputs.div_ceil(group),
            None => 1,
        };
        let zero_words = self.qzeros.words(OP, &[groups, words])?;
        let mut shift = [0; 8];
        for (place, &out) in ORDER.iter().enumerate() {
            shift[out] = 4 * place;
        }
        let number =
            |all: &[u32], row: usize, out: usize| (all[row * words + out / 8] >> shift[out % 8] & 15) as u8;
        let zeros = (0..outs).flat_map(|out| (0..groups).map(move |group| (out, group)));
        let zeros = zeros.map(|(out, group)| number(&zero_words, group, out)).collect();
        let weights = GroupedWeights {
            shape: [outs, inputs],
            bits: 4,
            group,
            scales: self.scales.scales(OP, [groups, outs], true)?,
            zeros: GroupZeros::Each(zeros),
            order: None,
        };
        WeightParts::grouped(weights, |out, input| number(&codes, input, out))
    }
}
