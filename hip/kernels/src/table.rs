//! The table of all kernel instantiations.

use crate::{ALL, DType, FLOATS, INTS, KernelName, NUMBERS};

/// What a template parameter ranges over.
#[derive(Clone, Copy, Debug)]
pub enum Param {
    /// Element types.
    Types(&'static [DType]),
    /// The element types of two parameters: the tensor's, and that of its values per channel or
    /// column.
    Pairs(&'static [[DType; 2]]),
    /// Functors.
    Names(&'static [&'static str]),
    /// Integers.
    Ints(&'static [i32]),
}

impl Param {
    fn len(&self) -> usize {
        match self {
            Self::Types(x) => x.len(),
            Self::Pairs(x) => x.len(),
            Self::Names(x) => x.len(),
            Self::Ints(x) => x.len(),
        }
    }

    /// The name, with the entry at `index` as its next argument.
    fn add(&self, name: KernelName, index: usize) -> KernelName {
        match self {
            Self::Types(x) => name.ty(x[index]),
            Self::Pairs(x) => name.ty(x[index][0]).ty(x[index][1]),
            Self::Names(x) => name.name(x[index]),
            Self::Ints(x) => name.int(x[index]),
        }
    }
}

/// A template and the instantiations it has: every combination of its parameters' values.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The kernel template.
    pub template: &'static str,
    /// Its parameters.
    pub params: &'static [Param],
}

impl Rule {
    /// Every instantiation.
    pub fn instantiations(&self) -> impl Iterator<Item = KernelName> + '_ {
        let count = self.params.iter().map(Param::len).product::<usize>();
        (0..count).map(|mut index| {
            self.params.iter().fold(KernelName::new(self.template), |name, param| {
                let at = index % param.len();
                index /= param.len();
                param.add(name, at)
            })
        })
    }

    fn contains(&self, name: &KernelName) -> bool {
        self.template == name.template() && self.instantiations().any(|one| one == *name)
    }
}

/// One source file of kernels.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The file's name without its ending.
    pub name: &'static str,
    /// Its text.
    pub source: &'static str,
    /// What it is instantiated for.
    pub rules: &'static [Rule],
}

impl Family {
    /// Every instantiation of the family, each once.
    pub fn instantiations(&self) -> impl Iterator<Item = KernelName> + '_ {
        self.rules.iter().flat_map(Rule::instantiations)
    }

    /// Whether the family lists this instantiation.
    pub fn contains(&self, name: &KernelName) -> bool {
        self.rules.iter().any(|rule| rule.contains(name))
    }
}

/// All families.
pub fn families() -> &'static [Family] {
    FAMILIES
}

/// The family that has this kernel template.
pub fn family_of(template: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.rules.iter().any(|rule| rule.template == template))
}

macro_rules! family {
    ($name:literal, [$( $template:literal [ $($param:expr),* $(,)? ] ),* $(,)?]) => {
        Family {
            name: $name,
            source: include_str!(concat!("../", $name, ".hip")),
            rules: &[$( Rule { template: $template, params: &[$($param),*] } ),*],
        }
    };
}

use Param::{Ints, Names, Pairs, Types};

/// Functors for every number type.
const ARITHMETIC: &[&str] = &["Add", "Sub", "Mul", "Pow", "Max", "Min"];
/// Functors that integer tensors have in kernels of their own, which look for zeros.
const DIVISION: &[&str] = &["Div", "Rem"];
const BITWISE: &[&str] = &["BitAnd", "BitOr", "BitXor", "Shl", "Shr"];
/// Functors of two floats beyond the arithmetic ones.
const FLOAT_BINARY: &[&str] = &[
    "Atan2",
    "Prelu",
    "ReluBackward",
    "SigmoidBackward",
    "GeluBackward",
    "LogSigmoidBackward",
    "SiluBackward",
];

/// The functors of a step of `chain.hip`, in the order of its list.
pub const CHAIN: &[&str] = &[
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Max",
    "Min",
    "ReluBackward",
    "SigmoidBackward",
    "Fill",
    "Neg",
    "Abs",
    "Sqrt",
    "Recip",
    "Exp",
    "Log",
    "Tanh",
    "Relu",
    "Sigmoid",
];

/// Activations that are joined to other ops.
const ACT: &[&str] = &["Relu", "Gelu", "Silu"];
/// What losses read.
const CLASS_SCORES: &[&str] = &["Logits", "Probabilities", "LogProbabilities"];
const PROBABILITIES: &[&str] = &["Probabilities", "LogProbabilities"];
const BINARY_SCORES: &[&str] = &["BinaryLogits", "BinaryProbabilities"];
const RESIDUAL: &[&str] = &["Squared", "Huber"];

const LOGIC: &[&str] = &["LogicAnd", "LogicOr", "LogicXor"];
#[rustfmt::skip] // one a line otherwise
const FLOAT_UNARY: &[&str] = &[
    "Exp", "Log", "Log1p", "Sqrt", "Recip", "Cos", "Sin", "Tan", "Cosh", "Sinh", "Tanh", "Acos", "Acosh", "Asin",
    "Asinh", "Atan", "Atanh", "Round", "Floor", "Ceil", "Trunc", "Erf", "Sigmoid", "LogSigmoid", "Silu", "Gelu", "Relu",
];
const NUMBER_UNARY: &[&str] = &["Neg", "Abs", "Sign"];
const FLOAT_UNARY2: &[&str] = &["LeakyRelu", "HardSigmoid"];
const EQUALITY: &[&str] = &["Equal", "NotEqual"];
const COMPARE: &[&str] = &["Equal", "NotEqual", "Less", "LessEqual"];
const REDUCE: &[&str] = &["Sum", "Prod", "Mean", "Max", "Min", "MaxAbs"];
const REDUCE_BOOL: &[&str] = &["Any", "All"];
const ARG: &[&str] = &["ArgMax", "ArgMin"];
/// The floats that are computed in as they are stored.
const WIDE: &[DType] = &[DType::F32, DType::F64];
/// The floats that are computed in f32.
const NARROW: &[DType] = &[DType::F32, DType::F16, DType::BF16];
/// What MIOpen normalises.
const BY_MIOPEN: &[DType] = &[DType::F32, DType::F16];
const HALVES: &[DType] = &[DType::F16, DType::BF16];
/// The types of rows and their parameters: the same type, or f32 parameters beside 16-bit rows.
const AFFINE: &[[DType; 2]] = &[
    [DType::F32, DType::F32],
    [DType::F64, DType::F64],
    [DType::F16, DType::F16],
    [DType::BF16, DType::BF16],
    [DType::F16, DType::F32],
    [DType::BF16, DType::F32],
];
/// How bools are stored: in one byte, or as Burn's four.
const BOOLS: &[DType] = &[DType::Bool, DType::U32];
/// The unsigned integers by which kernels that only move bits take elements.
const RAW: &[DType] = &[DType::U8, DType::U16, DType::U32, DType::U64];

/// Index tensors.
const INDEX: &[DType] = &[DType::I32, DType::I64];
/// Types that every GPU adds atomically.
const ATOMIC: &[DType] = &[DType::F32, DType::F64, DType::I32, DType::U32, DType::I64, DType::U64];

#[rustfmt::skip] // it would lay out some families one way and some another
const FAMILIES: &[Family] = &[
    family!("act", [
        "bias_act" [Names(ACT), Types(FLOATS)],
        "bias_act_columns_backward" [Names(ACT), Types(FLOATS)],
        "bias_act_planes_backward" [Names(ACT), Types(FLOATS)],
        "bias_add" [Types(FLOATS)],
        "add_act" [Names(ACT), Types(FLOATS)],
        "add_act_backward" [Names(ACT), Types(FLOATS)],
        "mul_add" [Types(FLOATS)],
        "silu_mul" [Types(FLOATS)],
        "mul_backward" [Names(&["Plain", "Silu"]), Types(FLOATS)],
    ]),
    family!("binary", [
        "binary_contiguous" [Names(ARITHMETIC), Types(NUMBERS)],
        "binary_contiguous" [Names(DIVISION), Types(FLOATS)],
        "binary_contiguous" [Names(BITWISE), Types(INTS)],
        "binary_contiguous" [Names(FLOAT_BINARY), Types(FLOATS)],
        "binary_strided" [Names(ARITHMETIC), Types(NUMBERS)],
        "binary_strided" [Names(DIVISION), Types(FLOATS)],
        "binary_strided" [Names(BITWISE), Types(INTS)],
        "binary_strided" [Names(FLOAT_BINARY), Types(FLOATS)],
        "binary_contiguous" [Names(LOGIC), Types(BOOLS)],
        "binary_strided" [Names(LOGIC), Types(BOOLS)],
        "divide_contiguous" [Names(DIVISION), Types(INTS)],
        "divide_strided" [Names(DIVISION), Types(INTS)],
        "binary_scalar" [Names(ARITHMETIC), Types(NUMBERS)],
        "binary_scalar" [Names(DIVISION), Types(NUMBERS)],
        "binary_scalar" [Names(BITWISE), Types(INTS)],
        "cross" [Types(FLOATS)],
    ]),
    family!("cast", [
        "cast_contiguous" [Types(ALL), Types(ALL)],
        "cast_bool" [Types(ALL)],
    ]),
    family!("chain", ["chain" [Types(NARROW)]]),
    family!("copy", [
        "copy_strided" [Types(RAW)],
        "copy_strided_units" [Ints(&[16])],
        "copy_to_strided" [Types(RAW)],
        "copy_transposed" [Types(RAW)],
        "fill" [Types(RAW)],
        "fill_strided" [Types(RAW)],
        "arange" [Types(INTS)],
        "cat" [Types(RAW)],
        "cat_units" [Ints(&[16])],
    ]),
    family!("unary", [
        "unary_contiguous" [Names(FLOAT_UNARY), Types(FLOATS)],
        "unary_contiguous" [Names(NUMBER_UNARY), Types(NUMBERS)],
        "unary_contiguous" [Names(&["BitNot"]), Types(INTS)],
        "unary_contiguous" [Names(&["LogicNot"]), Types(BOOLS)],
        "unary_strided" [Names(FLOAT_UNARY), Types(FLOATS)],
        "unary_strided" [Names(NUMBER_UNARY), Types(NUMBERS)],
        "unary_strided" [Names(&["BitNot"]), Types(INTS)],
        "unary_strided" [Names(&["LogicNot"]), Types(BOOLS)],
        "unary2_contiguous" [Names(&["Clamp"]), Types(NUMBERS)],
        "unary2_contiguous" [Names(FLOAT_UNARY2), Types(FLOATS)],
        "unary2_contiguous" [Names(&["Powi"]), Types(FLOATS)],
        "unary2_strided" [Names(&["Clamp"]), Types(NUMBERS)],
        "unary2_strided" [Names(FLOAT_UNARY2), Types(FLOATS)],
        "unary2_strided" [Names(&["Powi"]), Types(FLOATS)],
    ]),
    family!("compare", [
        "compare_contiguous" [Names(COMPARE), Types(NUMBERS)],
        "compare_contiguous" [Names(EQUALITY), Types(&[DType::Bool])],
        "compare_strided" [Names(COMPARE), Types(NUMBERS)],
        "compare_strided" [Names(EQUALITY), Types(&[DType::Bool])],
        "compare_scalar" [Names(COMPARE), Types(NUMBERS)],
        "compare_scalar" [Names(&["Greater", "GreaterEqual"]), Types(NUMBERS)],
        "compare_scalar" [Names(EQUALITY), Types(&[DType::Bool])],
        "predicate_contiguous" [Names(&["IsNan", "IsInf"]), Types(FLOATS)],
    ]),
    family!("mask", [
        "mask_where_contiguous" [Types(RAW), Types(BOOLS)],
        "mask_where" [Types(RAW), Types(BOOLS)],
        "mask_fill_contiguous" [Types(RAW), Types(BOOLS)],
        "mask_fill" [Types(RAW), Types(BOOLS)],
    ]),
    family!("reduce", [
        "reduce_rows" [Names(REDUCE), Types(NUMBERS)],
        "reduce_rows" [Names(REDUCE_BOOL), Types(BOOLS)],
        "reduce_rows_between" [Names(&["Sum", "Prod"]), Types(HALVES), Types(&[DType::F32])],
        "reduce_rows_between" [Names(&["Sum", "Prod", "Mean"]), Types(&[DType::F32]), Types(HALVES)],
        "reduce_columns" [Names(REDUCE), Types(NUMBERS)],
        "reduce_columns" [Names(REDUCE_BOOL), Types(BOOLS)],
        "reduce_columns_between" [Names(&["Sum", "Prod"]), Types(HALVES), Types(&[DType::F32])],
        "reduce_columns_between" [Names(&["Sum", "Prod", "Mean"]), Types(&[DType::F32]), Types(HALVES)],
        "arg_rows" [Names(ARG), Types(NUMBERS)],
        "arg_columns" [Names(ARG), Types(NUMBERS)],
    ]),
    family!("random", [
        "random_uniform" [Types(NUMBERS)],
        "random_bernoulli" [Types(ALL)],
        "random_normal" [Types(FLOATS)],
        "philox_words" [],
    ]),
    family!("index", [
        "gather" [Types(RAW), Types(INDEX)],
        "select_rows" [Types(INDEX)],
        "scatter" [Names(&["Add"]), Types(ATOMIC), Types(INDEX)],
        "scatter" [Names(&["Or"]), Types(BOOLS), Types(INDEX)],
        "scatter" [Names(&["Assign"]), Types(RAW), Types(INDEX)],
        "scatter_ordered" [Names(&["Add"]), Types(NUMBERS), Types(INDEX)],
        "scatter_columns" [Names(&["Add"]), Types(NUMBERS), Types(INDEX)],
        "scatter_ordered" [Names(&["Or"]), Types(BOOLS), Types(INDEX)],
    ]),
    family!("index_nd", [
        "tuple_places" [Types(INDEX), Types(INDEX)],
        "scatter_sorted" [Names(&["Assign"]), Types(RAW)],
        "scatter_sorted" [Names(&["Add", "Mul", "Min", "Max"]), Types(NUMBERS)],
    ]),
    family!("argwhere", [
        "argwhere_count" [Types(BOOLS)],
        "argwhere_places" [Types(BOOLS)],
        "place_coordinates" [Types(INDEX)],
    ]),
    family!("softmax", [
        "softmax_rows" [Types(FLOATS)],
        "masked_softmax_rows" [Types(FLOATS)],
        "softmin_rows" [Types(FLOATS)],
        "log_softmax_rows" [Types(FLOATS)],
        "softmax_columns" [Types(FLOATS)],
        "softmin_columns" [Types(FLOATS)],
        "log_softmax_columns" [Types(FLOATS)],
        "softmax_rows_backward" [Types(FLOATS)],
        "log_softmax_rows_backward" [Types(FLOATS)],
        "softmax_columns_backward" [Types(FLOATS)],
        "log_softmax_columns_backward" [Types(FLOATS)],
    ]),
    family!("pool", [
        "max_pool2d" [Types(FLOATS), Types(INDEX)],
        "max_pool2d_backward" [Types(FLOATS), Types(INDEX)],
        "avg_pool2d" [Types(FLOATS)],
        "avg_pool2d_backward" [Types(FLOATS)],
        "max_pool3d" [Types(FLOATS)],
        "max_pool3d_backward" [Types(FLOATS)],
        "avg_pool3d" [Types(FLOATS)],
        "avg_pool3d_backward" [Types(FLOATS)],
        "adaptive_avg_pool2d" [Types(FLOATS)],
        "adaptive_avg_pool2d_backward" [Types(FLOATS)],
    ]),
    family!("conv", [
        "conv_forward" [Types(FLOATS)],
        "conv_backward_data" [Types(FLOATS)],
        "conv_backward_weights" [Types(FLOATS)],
        "conv_patches" [Types(RAW)],
        "conv_unpatch" [Types(WIDE)],
    ]),
    family!("interpolate", [
        "interpolate_table" [Types(&[DType::F32, DType::F64])],
        "interpolate_reach" [],
        "interpolate" [Types(FLOATS)],
        "interpolate_backward" [Types(FLOATS)],
        "grid_sample_2d" [Types(FLOATS), Ints(&[2, 4, 6])],
    ]),
    family!("deform_conv", [
        "deform_columns" [Types(FLOATS)],
        "deform_offset_backward" [Types(FLOATS)],
        "deform_x_backward" [Types(FLOATS)],
        "deform_x_backward_ordered" [Types(FLOATS)],
    ]),
    family!("ctc", [
        "ctc_alpha" [Types(FLOATS)],
        "ctc_posterior" [Types(FLOATS)],
        "ctc_gradient" [Types(FLOATS)],
    ]),
    family!("loss", [
        "cross_entropy" [Types(FLOATS), Types(INDEX)],
        "cross_entropy_warps" [Types(FLOATS), Types(INDEX)],
        "cross_entropy_short" [Types(FLOATS), Types(INDEX)],
        "nll_loss" [Names(PROBABILITIES), Types(FLOATS), Types(INDEX)],
        "cross_entropy_backward" [Names(CLASS_SCORES), Types(FLOATS), Types(INDEX)],
        "cross_entropy_short_backward" [Names(CLASS_SCORES), Types(FLOATS), Types(INDEX)],
        "residual_loss" [Names(RESIDUAL), Types(FLOATS)],
        "residual_loss_sum" [Names(RESIDUAL), Types(FLOATS)],
        "residual_loss_backward" [Names(RESIDUAL), Types(FLOATS)],
        "residual_loss_sum_backward" [Names(RESIDUAL), Types(FLOATS)],
        "binary_cross_entropy" [Names(BINARY_SCORES), Types(FLOATS), Types(INDEX)],
        "binary_cross_entropy_backward" [Names(BINARY_SCORES), Types(FLOATS), Types(INDEX)],
        "loss_total" [Types(FLOATS)],
    ]),
    family!("matmul", [
        "matmul" [Types(NUMBERS)],
    ]),
    family!("attention", [
        "attention" [Types(FLOATS), Ints(&[0, 1, 2])],
        "causal_mask" [Types(FLOATS)],
    ]),
    family!("attention_backward", [
        "attention_backward_keys" [Types(FLOATS)],
        "attention_backward_queries" [Types(FLOATS)],
        "attention_dots" [Types(FLOATS)],
    ]),
    family!("attention_rows", [
        "attention_weights" [Types(FLOATS)],
        "attention_weights_backward" [Types(FLOATS)],
    ]),
    family!("attention_softmax", [
        "attention_softmax" [Types(&[DType::F32]), Ints(&[2, 4])],
        "attention_softmax_backward" [Types(&[DType::F32]), Ints(&[2, 4])],
    ]),
    family!("heads", [
        "pack_heads" [Ints(&[2, 4, 8, 16])],
    ]),
    family!("norm", [
        "layer_norm_rows" [Pairs(AFFINE)],
        "layer_norm_repair" [Types(BY_MIOPEN)],
        "group_norm_rows" [Pairs(AFFINE)],
        "group_norm_repair" [Types(BY_MIOPEN)],
        "rms_norm_rows" [Pairs(AFFINE)],
    ]),
    family!("norm_backward", [
        "layer_norm_rows_backward" [Pairs(AFFINE)],
        "rms_norm_rows_backward" [Pairs(AFFINE)],
        "group_norm_rows_backward" [Pairs(AFFINE)],
        "sum_partials" [Types(FLOATS)],
    ]),
    family!("batch_norm", [
        "batch_norm_moments" [Types(FLOATS)],
        "batch_norm_apply" [Types(FLOATS)],
        "batch_norm_finish" [Types(BY_MIOPEN)],
        "batch_norm_infer" [Types(FLOATS)],
        "channel_sums" [Types(FLOATS)],
        "batch_norm_backward" [Types(FLOATS)],
    ]),
    family!("optim", [
        "optim_adam" [Types(FLOATS), Ints(&[2]), Ints(&[0, 2])],
        "optim_adam" [Types(FLOATS), Ints(&[3]), Ints(&[0, 1, 2])],
        "optim_sgd" [Types(FLOATS), Ints(&[0]), Ints(&[0])],
        "optim_sgd" [Types(FLOATS), Ints(&[1]), Ints(&[0, 2])],
        "optim_squares" [Types(FLOATS)],
        "optim_norms" [Types(WIDE)],
        "optim_unscale" [Types(NARROW), Types(&[DType::F32])],
        "optim_unscale" [Types(&[DType::F64]), Types(&[DType::F64])],
        "optim_cast" [Types(&[DType::F32]), Types(HALVES)],
        "optim_cast" [Types(HALVES), Types(&[DType::F32])],
    ]),
    family!("fft", [
        "fft_twiddles" [Types(WIDE)],
        "fft_load" [Types(FLOATS)],
        "fft_load_half" [Types(FLOATS)],
        "fft_load_pairs" [Types(FLOATS)],
        "fft_pack" [Types(FLOATS)],
        "fft_unpack" [Types(FLOATS)],
        "fft_store_pairs" [Types(FLOATS)],
        "fft_store" [Types(FLOATS)],
        "fft_stage" [Ints(&[2, 3, 4, 5]), Types(WIDE)],
        "fft_stage_any" [Types(WIDE)],
        "fft_chirp" [Types(WIDE)],
        "fft_chirp_filter" [Types(WIDE)],
        "fft_filter" [Types(WIDE)],
        "fft_unchirp" [Types(WIDE)],
    ]),
    family!("scan", [
        "scan" [Names(&["CumSum", "CumProd", "CumMin", "CumMax"]), Types(NUMBERS)],
        "scan_tiles" [Names(&["CumSum", "CumProd", "CumMin", "CumMax"]), Types(NUMBERS)],
    ]),
    family!("quantize", [
        "quantize_extent" [Types(FLOATS)],
        "quantize_scales" [Types(FLOATS)],
        "quantize_params" [],
        "quantize" [Types(FLOATS), Ints(&[8, 4, 2])],
        "dequantize" [Types(FLOATS), Ints(&[8, 4, 2])],
        "dequantize_strided" [Types(FLOATS)],
        "unpack_strided" [],
        "pack" [Ints(&[4, 2])],
    ]),
    family!("qmatmul", [
        "qmatmul" [Types(&[DType::I8]), Types(&[DType::I8]), Types(NARROW)],
        "qmatmul" [Types(&[DType::I8]), Types(&[DType::F32]), Types(&[DType::F32])],
        "qmatmul" [Types(&[DType::I8]), Types(&[DType::F16]), Types(&[DType::F16])],
        "qmatmul" [Types(&[DType::I8]), Types(&[DType::BF16]), Types(&[DType::BF16])],
        "qmatmul" [Types(&[DType::F32]), Types(&[DType::I8]), Types(&[DType::F32])],
        "qmatmul" [Types(&[DType::F16]), Types(&[DType::I8]), Types(&[DType::F16])],
        "qmatmul" [Types(&[DType::BF16]), Types(&[DType::I8]), Types(&[DType::BF16])],
        "scale_product" [Types(FLOATS)],
    ]),
    family!("sort", [
        "sort_rows" [Types(RAW)],
        "sort_tiles" [Types(RAW)],
        "sort_merge" [Types(RAW)],
        "sort_finish" [Types(RAW)],
    ]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_instantiation_is_listed_once_and_found() {
        let mut seen = HashSet::new();
        for family in families() {
            for name in family.instantiations() {
                assert!(seen.insert(name), "{name} is listed twice");
                assert!(crate::contains(&name), "{name} is not found");
                assert!(
                    family.source.contains(&format!("void {}(", name.template())),
                    "{} has no kernel {}",
                    family.name,
                    name.template()
                );
            }
        }
        assert!(!crate::contains(&KernelName::new("binary_contiguous").name("Add")));
        assert!(!crate::contains(&KernelName::new("no_such_kernel")));
    }
}
