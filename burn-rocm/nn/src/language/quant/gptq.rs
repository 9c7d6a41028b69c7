//! Checkpoints of GPTQ (Frantar et al. 2022), as GPTQModel, AutoRound and AutoGPTQ write them.

use burn_rocm::RocmError;
use burn_rocm::fused::{GroupZeros, GroupedWeights, WeightParts};

use super::raw::{RawTensor, invalid, order_of};

const OP: &str = "GPTQ";

/// How zeros are stored (`checkpoint_format` in `quantize_config.json`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GptqZeros {
    /// Words of packed zeros, from each of which `0x1111_1111` (4 bits) or `0x0101_0101` (8 bits)
    /// was subtracted (`gptq`). So a zero of 0 borrows from the next output's. Source:
    /// `convert_gptq_v2_to_v1_format_module` in GPTQModel's
    /// [`utils/model.py`](https://github.com/ModelCloud/GPTQModel/blob/main/gptqmodel/utils/model.py).
    /// AutoRound writes the same words.
    ///
    /// AutoGPTQ writes the same words unless a zero is 0. Then its packer sets all later bits of the
    /// word, and the zeros of the outputs after this one are lost.
    LessOne,
    /// As they are (`gptq_v2`).
    Plain,
}

/// A linear layer's tensors. Weight `(input, output)` is `scale * (code - zero)`, with the scale and
/// the zero of the input's group.
#[derive(Clone, Copy, Debug)]
pub struct Gptq<'a> {
    /// 4 or 8.
    pub bits: u32,
    /// `group_size`; `None` for -1, where all inputs of an output share a scale.
    pub group: Option<usize>,
    /// How zeros are stored.
    pub zeros: GptqZeros,
    /// `[inputs * bits / 32, outputs]`: the codes of neighbouring inputs in a word, the first in the
    /// lowest bits.
    pub qweight: RawTensor<'a>,
    /// `[groups, outputs * bits / 32]`: the zeros of neighbouring outputs in a word.
    pub qzeros: RawTensor<'a>,
    /// `[groups, outputs]`.
    pub scales: RawTensor<'a>,
    /// `[inputs]`: the group of each input (`desc_act`). Without it, groups follow each other.
    pub g_idx: Option<RawTensor<'a>>,
}

impl Gptq<'_> {
    /// The weight `[outputs, inputs]`.
    ///
    /// # Errors
    /// `Invalid` for bits other than 4 and 8, for tensors whose shapes or types do not fit each
    /// other, for groups that are no multiple of 32, and for inputs' groups of other sizes.
    pub fn parts(&self) -> Result<WeightParts, RocmError> {
        let bits = self.bits;
        if bits != 4 && bits != 8 {
            return invalid(OP, "4 or 8 bits", format!("{bits} bits"));
        }
        let per_word = (32 / bits) as usize;
        let mask = (1u32 << bits) - 1;
        let [words, outs] = self.qweight.matrix(OP)?;
        let inputs = words.saturating_mul(per_word);
        let codes = self.qweight.words(OP, &[words, outs])?;
        let group = self.group.filter(|&group| group < inputs);
        let groups = match group {
            Some(0) => return invalid(OP, "groups of at least 32 inputs", "groups of 0"),
            Some(group) => inputs.div_ceil(group),
            None => 1,
        };
        let width = outs.div_ceil(per_word);
        let mut zero_words = self.qzeros.words(OP, &[groups, width])?;
        if self.zeros == GptqZeros::LessOne {
            // A one in each field.
            let ones = u32::MAX / mask;
            zero_words.iter_mut().for_each(|word| *word = word.wrapping_add(ones));
        }
        let zero = |out: usize, group: usize| {
            (zero_words[group * width + out / per_word] >> (bits as usize * (out % per_word)) & mask) as u8
        };
        let zeros = (0..outs).flat_map(|out| (0..groups).map(move |group| (out, group)));
        let zeros = zeros.map(|(out, group)| zero(out, group)).collect();
        let order = match &self.g_idx {
            Some(g_idx) => order_of(OP, g_idx, inputs, group)?,
            None => None,
        };
        let weights = GroupedWeights {
            shape: [outs, inputs],
            bits,
            group,
            scales: self.scales.scales(OP, [groups, outs], true)?,
            zeros: GroupZeros::Each(zeros),
            order,
        };
        WeightParts::grouped(weights, |out, input| {
            (codes[input / per_word * outs + out] >> (bits as usize * (input % per_word)) & mask) as u8
        })
    }
}
