//! The table of all kernel instantiations.

use crate::{ALL, DType, FLOATS, INTS, NUMBERS};

/// An enum whose variants are spelled as in the kernels' sources.
macro_rules! names {
    ($(#[$about:meta])* $names:ident: $($(#[$doc:meta])* $name:ident),*) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $names { $($(#[$doc])* $name),* }

        /// The name as spelled in the sources.
        impl core::fmt::Display for $names {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Debug::fmt(self, f)
            }
        }
    };
}

/// Defines [`Functor`] from lists. Each list is a constant too, unless it is called `_`.
macro_rules! functors {
    ($($list:tt: $($functor:ident)*;)*) => {
        names! {
            /// A functor: a struct in the kernels' sources, which say what it computes.
            #[allow(missing_docs, reason = "the sources have them")]
            Functor: $($($functor),*),*
        }
        $(const $list: &[Functor] = &[$(Functor::$functor),*];)*
    };
}

/// Defines [`Template`] and `FAMILIES` from each family's templates and the values of their
/// parameters.
macro_rules! families {
    ($($family:ident [ $($template:ident $([ $($param:expr),* ])+),* $(,)? ])*) => {
        names! {
            /// A kernel template.
            #[allow(non_camel_case_types, reason = "spelled as in the sources")]
            Template: $($(#[doc = concat!("Of `", stringify!($family), ".hip`.")] $template),*),*
        }
        const FAMILIES: &[Family] = &[$(Family {
            name: stringify!($family),
            source: include_str!(concat!("../", stringify!($family), ".hip")),
            rules: &[$($(Rule { template: Template::$template, params: &[$($param),*] }),+),*],
        }),*];
    };
}

/// The values that a template parameter takes.
#[derive(Clone, Copy, Debug)]
pub enum Param {
    /// Element types.
    Types(&'static [DType]),
    /// The element types of two parameters: the tensor's, and that of its values per channel or
    /// column.
    Pairs(&'static [[DType; 2]]),
    /// Functors.
    Functors(&'static [Functor]),
    /// Integers.
    Ints(&'static [i32]),
}

/// A template and its instantiations: every combination of its parameters' values.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The kernel template.
    pub template: Template,
    /// Its parameters.
    pub params: &'static [Param],
}

/// One source file of kernels.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The file's name without its ending.
    pub name: &'static str,
    /// Its text.
    pub source: &'static str,
    /// Its templates and their instantiations.
    pub rules: &'static [Rule],
}

use DType::*;
use Functor::*;
use Param::{Functors, Ints, Pairs, Types};

functors! {
    // Functors for every number type.
    ARITHMETIC: Add Sub Mul Pow Max Min;
    // Functors for which integer tensors have kernels of their own, which look for zero divisors.
    DIVISION: Div Rem;
    BITWISE: BitAnd BitOr BitXor Shl Shr;
    // Functors of two floats, besides the arithmetic ones.
    FLOAT_BINARY: Atan2 Prelu ReluBackward SigmoidBackward GeluBackward LogSigmoidBackward SiluBackward;
    LOGIC: LogicAnd LogicOr LogicXor;
    FLOAT_UNARY: Exp Log Log1p Sqrt Recip Cos Sin Tan Cosh Sinh Tanh Acos Acosh Asin Asinh Atan Atanh Round Floor Ceil
        Trunc Erf Sigmoid LogSigmoid Silu Gelu Relu;
    NUMBER_UNARY: Neg Abs Sign;
    FLOAT_UNARY2: LeakyRelu HardSigmoid;
    COMPARE: Equal NotEqual Less LessEqual;
    REDUCE_BOOL: Any All;
    ARG: ArgMax ArgMin;
    SCAN: CumSum CumProd CumMin CumMax;
    // The kinds of input that losses have.
    CLASS_SCORES: Logits Probabilities LogProbabilities;
    BINARY_SCORES: BinaryLogits BinaryProbabilities;
    RESIDUAL: Squared Huber;
    // How quantised weights are stored.
    WEIGHTS: Int4 Int8 Q4K Q6K;
    // Floats of 8 bits.
    FP8: E4M3 E5M2 E4M3Fnuz E5M2Fnuz;
    // Functors that only lists below or single rules use.
    _: Sum Prod Mean MaxAbs Fill Cast GeluTanh BitNot LogicNot Clamp Powi Greater GreaterEqual IsNan IsInf Or Assign;
}

/// The functors of a step in `chain.hip`, in the order of its lists.
#[rustfmt::skip] // one a line otherwise
const CHAIN: &[Functor] = &[
    Add, Sub, Mul, Div, Max, Min, ReluBackward, SigmoidBackward, Fill,
    Neg, Abs, Sqrt, Recip, Exp, Log, Tanh, Relu, Sigmoid, Cast,
];

impl Functor {
    /// The functor's number in `chain.hip`, or `None` if `chain.hip` does not have it.
    pub const fn in_chain(self) -> Option<u32> {
        const NUMBERS: [Option<u32>; 1 << u8::BITS] = {
            let (mut numbers, mut at) = ([None; 1 << u8::BITS], 0);
            while at < CHAIN.len() {
                numbers[CHAIN[at] as usize] = Some(at as u32);
                at += 1;
            }
            numbers
        };
        NUMBERS[self as usize]
    }
}

/// Activations that kernels fuse with other ops.
const ACT: &[Functor] = &[Relu, Gelu, Silu];
/// Activations of a gated linear unit.
const GATES: &[Functor] = &[Silu, Gelu, GeluTanh];
const PROBABILITIES: &[Functor] = CLASS_SCORES.split_at(1).1;
const EQUALITY: &[Functor] = COMPARE.split_at(2).0;
const REDUCE: &[Functor] = &[Sum, Prod, Mean, Max, Min, MaxAbs];
/// The floats that are computed in their own type.
const WIDE: &[DType] = &[F32, F64];
/// The floats that are computed in f32.
const NARROW: &[DType] = &[F32, F16, BF16];
/// The types that MIOpen normalises.
const BY_MIOPEN: &[DType] = &[F32, F16];
const HALVES: &[DType] = &[F16, BF16];
/// The types of rows and of their parameters: the same type, or f32 parameters for 16-bit rows.
const AFFINE: &[[DType; 2]] = &[[F32, F32], [F64, F64], [F16, F16], [BF16, BF16], [F16, F32], [BF16, F32]];
/// The same for 16-bit rows only.
const AFFINE_HALVES: &[[DType; 2]] = AFFINE.split_at(2).1;
/// The types of parameters and of their gradients: the same type, or f32 and 16 bits.
const GRADIENTS: &[[DType; 2]] = &[[F32, F32], [F64, F64], [F16, F16], [BF16, BF16], [F32, F16], [F32, BF16]];
/// The types of results that are summed, and of their sums or the sums of their parts.
const SUMMED: &[[DType; 2]] = &[[F32, F32], [F16, F16], [BF16, BF16], [F16, F32], [BF16, F32]];
/// The types of keys and values as they are computed, and as a cache stores them.
const CACHED: &[[DType; 2]] =
    &[[F32, F32], [F16, F16], [BF16, BF16], [F32, F16], [F32, BF16], [F32, I8], [F16, I8], [BF16, I8]];
/// The same the other way around.
const GATHERED: &[[DType; 2]] =
    &[[F32, F32], [F16, F16], [BF16, BF16], [F16, F32], [BF16, F32], [I8, F32], [I8, F16], [I8, BF16]];
/// The types of rotated heads, which a cache stores as they are, and of their norms' weights.
const ROTATED: &[[DType; 2]] = &[[F32, F32], [F16, F16], [BF16, BF16], [F16, F32], [BF16, F32]];
const ROTATED_HALVES: &[[DType; 2]] = ROTATED.split_at(1).1;
/// Those that attention over a cache multiplies on matrix cores, and the features of its heads.
const CACHED_HALVES: &[[DType; 2]] = &[[F16, F16], [BF16, BF16], [F16, I8], [BF16, I8]];
const CACHED_HEADS: &[i32] = &[64, 128, 256];
/// The features of a head for which attention on matrix cores has tiles.
const HEADS: &[i32] = &[32, 64, 96, 128, 256];
const TRAINED_HEADS: &[i32] = HEADS.split_at(4).0;
/// How bools are stored: in one byte, or in four bytes as Burn does.
const BOOLS: &[DType] = &[Bool, U32];
/// The unsigned integers that stand for elements in kernels that only move bits.
const RAW: &[DType] = &[U8, U16, U32, U64];

/// The types of index tensors.
const INDEX: &[DType] = &[I32, I64];
/// The types that every GPU can add atomically.
const ATOMIC: &[DType] = &[F32, F64, I32, U32, I64, U64];

families! {
    act [
        bias_act [Functors(ACT), Types(FLOATS)],
        bias_act_columns_backward [Functors(ACT), Types(FLOATS)],
        bias_act_planes_backward [Functors(ACT), Types(FLOATS)],
        bias_add [Types(FLOATS)],
        add_act [Functors(ACT), Types(FLOATS)],
        add_act_backward [Functors(ACT), Types(FLOATS)],
        mul_add [Types(FLOATS)],
        mul_backward [Types(FLOATS)],
    ]
    binary [
        binary_contiguous [Functors(ARITHMETIC), Types(NUMBERS)]
            [Functors(DIVISION), Types(FLOATS)]
            [Functors(BITWISE), Types(INTS)]
            [Functors(FLOAT_BINARY), Types(FLOATS)]
            [Functors(LOGIC), Types(BOOLS)],
        binary_strided [Functors(ARITHMETIC), Types(NUMBERS)]
            [Functors(DIVISION), Types(FLOATS)]
            [Functors(BITWISE), Types(INTS)]
            [Functors(FLOAT_BINARY), Types(FLOATS)]
            [Functors(LOGIC), Types(BOOLS)],
        divide_contiguous [Functors(DIVISION), Types(INTS)],
        divide_strided [Functors(DIVISION), Types(INTS)],
        binary_scalar [Functors(ARITHMETIC), Types(NUMBERS)]
            [Functors(DIVISION), Types(NUMBERS)]
            [Functors(BITWISE), Types(INTS)],
        cross [Types(FLOATS)],
    ]
    cast [
        cast_contiguous [Types(ALL), Types(ALL)],
        cast_bool [Types(ALL)],
    ]
    chain [
        chain [Types(NARROW)],
        chain_mixed [Types(&[F32])],
    ]
    chain_reduce [
        chain_rows [Functors(&[Sum, Mean]), Pairs(SUMMED)],
        chain_columns [Functors(&[Sum, Mean]), Pairs(SUMMED)],
    ]
    check [check_finite [Types(FLOATS)]]
    copy [
        copy_strided [Types(RAW)],
        copy_strided_units [Ints(&[16])],
        copy_to_strided [Types(RAW)],
        copy_transposed [Types(RAW)],
        copy_narrow [Types(RAW), Ints(&[0, 1])],
        fill [Types(RAW)],
        fill_strided [Types(RAW)],
        arange [Types(INTS)],
        cat [Types(RAW)],
        cat_units [Ints(&[16])],
    ]
    unary [
        unary_contiguous [Functors(FLOAT_UNARY), Types(FLOATS)]
            [Functors(NUMBER_UNARY), Types(NUMBERS)]
            [Functors(&[BitNot]), Types(INTS)]
            [Functors(&[LogicNot]), Types(BOOLS)],
        unary_strided [Functors(FLOAT_UNARY), Types(FLOATS)]
            [Functors(NUMBER_UNARY), Types(NUMBERS)]
            [Functors(&[BitNot]), Types(INTS)]
            [Functors(&[LogicNot]), Types(BOOLS)],
        unary2_contiguous [Functors(&[Clamp]), Types(NUMBERS)]
            [Functors(FLOAT_UNARY2), Types(FLOATS)]
            [Functors(&[Powi]), Types(FLOATS)],
        unary2_strided [Functors(&[Clamp]), Types(NUMBERS)]
            [Functors(FLOAT_UNARY2), Types(FLOATS)]
            [Functors(&[Powi]), Types(FLOATS)],
    ]
    compare [
        compare_contiguous [Functors(COMPARE), Types(NUMBERS)]
            [Functors(EQUALITY), Types(&[Bool])],
        compare_strided [Functors(COMPARE), Types(NUMBERS)]
            [Functors(EQUALITY), Types(&[Bool])],
        compare_scalar [Functors(COMPARE), Types(NUMBERS)]
            [Functors(&[Greater, GreaterEqual]), Types(NUMBERS)]
            [Functors(EQUALITY), Types(&[Bool])],
        predicate_contiguous [Functors(&[IsNan, IsInf]), Types(FLOATS)],
    ]
    mask [
        mask_where_contiguous [Types(RAW), Types(BOOLS)],
        mask_where [Types(RAW), Types(BOOLS)],
        mask_fill_contiguous [Types(RAW), Types(BOOLS)],
        mask_fill [Types(RAW), Types(BOOLS)],
    ]
    reduce [
        reduce_rows [Functors(REDUCE), Types(NUMBERS)]
            [Functors(REDUCE_BOOL), Types(BOOLS)],
        reduce_rows_between [Functors(&[Sum, Prod]), Types(HALVES), Types(&[F32])]
            [Functors(&[Sum, Prod, Mean]), Types(&[F32]), Types(HALVES)],
        reduce_columns [Functors(REDUCE), Types(NUMBERS)]
            [Functors(REDUCE_BOOL), Types(BOOLS)],
        reduce_columns_between [Functors(&[Sum, Prod]), Types(HALVES), Types(&[F32])]
            [Functors(&[Sum, Prod, Mean]), Types(&[F32]), Types(HALVES)],
        arg_rows [Functors(ARG), Types(NUMBERS)],
        arg_columns [Functors(ARG), Types(NUMBERS)],
    ]
    random [
        random_uniform [Types(NUMBERS)],
        random_bernoulli [Types(ALL)],
        random_normal [Types(FLOATS)],
        philox_advance [],
        philox_words [],
    ]
    index [
        gather [Types(RAW), Types(INDEX)],
        select_rows [Types(INDEX)],
        scatter [Functors(&[Add]), Types(ATOMIC), Types(INDEX)]
            [Functors(&[Or]), Types(BOOLS), Types(INDEX)]
            [Functors(&[Assign]), Types(RAW), Types(INDEX)],
        scatter_ordered [Functors(&[Add]), Types(NUMBERS), Types(INDEX)]
            [Functors(&[Or]), Types(BOOLS), Types(INDEX)],
        scatter_columns [Functors(&[Add]), Types(NUMBERS), Types(INDEX)],
    ]
    index_nd [
        tuple_places [Types(INDEX), Types(INDEX)],
        scatter_sorted [Functors(&[Assign]), Types(RAW)]
            [Functors(&[Add, Mul, Min, Max]), Types(NUMBERS)],
    ]
    segment [
        segment_pieces [Types(FLOATS), Types(INDEX)],
        segment_sums [Types(FLOATS), Types(INDEX)],
        segment_few [Types(FLOATS), Types(INDEX)],
    ]
    argwhere [
        argwhere_count [Types(BOOLS)],
        argwhere_places [Types(BOOLS)],
        place_coordinates [Types(INDEX)],
    ]
    softmax [
        softmax_rows [Types(FLOATS)],
        softmax_short_rows [Types(FLOATS)],
        log_softmax_short_rows [Types(FLOATS)],
        masked_softmax_rows [Types(FLOATS)],
        softmin_rows [Types(FLOATS)],
        log_softmax_rows [Types(FLOATS)],
        softmax_columns [Types(FLOATS)],
        softmin_columns [Types(FLOATS)],
        log_softmax_columns [Types(FLOATS)],
        softmax_rows_backward [Types(FLOATS)],
        log_softmax_rows_backward [Types(FLOATS)],
        softmax_columns_backward [Types(FLOATS)],
        log_softmax_columns_backward [Types(FLOATS)],
    ]
    pool [
        max_pool2d [Types(FLOATS), Types(INDEX)],
        max_pool2d_backward [Types(FLOATS), Types(INDEX)],
        avg_pool2d [Types(FLOATS)],
        avg_pool2d_backward [Types(FLOATS)],
        max_pool3d [Types(FLOATS)],
        max_pool3d_backward [Types(FLOATS)],
        avg_pool3d [Types(FLOATS)],
        avg_pool3d_backward [Types(FLOATS)],
        adaptive_avg_pool2d [Types(FLOATS)],
        adaptive_avg_pool2d_backward [Types(FLOATS)],
    ]
    pool_last [
        max_pool2d_last [Types(HALVES), Types(INDEX)],
        max_pool2d_last_backward [Types(HALVES), Types(INDEX)],
        avg_pool2d_last [Types(HALVES)],
        avg_pool2d_last_backward [Types(HALVES)],
    ]
    conv_few [
        conv_few_forward [Types(NARROW), Ints(&[0, 1])],
        conv_few_matrix [Types(HALVES)],
        conv_few_weights [Types(NARROW), Ints(&[9, 27]), Ints(&[0, 1])],
    ]
    conv [
        conv_forward [Types(FLOATS)],
        conv_backward_data [Types(FLOATS)],
        conv_backward_weights [Types(FLOATS)],
        conv_patches [Types(RAW)],
        conv_unpatch [Types(WIDE)],
    ]
    interpolate [
        interpolate_table [Types(&[F32, F64])],
        interpolate_reach [],
        interpolate [Types(FLOATS)],
        interpolate_backward [Types(FLOATS)],
        grid_sample_2d [Types(FLOATS), Ints(&[2, 4, 6])],
    ]
    deform_conv [
        deform_columns [Types(FLOATS)],
        deform_offset_backward [Types(FLOATS)],
        deform_x_backward [Types(FLOATS)],
        deform_x_backward_ordered [Types(FLOATS)],
    ]
    ctc [
        ctc_alpha [Types(FLOATS)],
        ctc_posterior [Types(FLOATS)],
        ctc_gradient [Types(FLOATS)],
    ]
    loss [
        cross_entropy [Types(FLOATS), Types(INDEX)],
        cross_entropy_warps [Types(FLOATS), Types(INDEX)],
        cross_entropy_short [Types(FLOATS), Types(INDEX)],
        nll_loss [Functors(PROBABILITIES), Types(FLOATS), Types(INDEX)],
        cross_entropy_backward [Functors(CLASS_SCORES), Types(FLOATS), Types(INDEX)],
        cross_entropy_short_backward [Functors(CLASS_SCORES), Types(FLOATS), Types(INDEX)],
        residual_loss [Functors(RESIDUAL), Types(FLOATS)],
        residual_loss_sum [Functors(RESIDUAL), Types(FLOATS)],
        residual_loss_backward [Functors(RESIDUAL), Types(FLOATS)],
        residual_loss_sum_backward [Functors(RESIDUAL), Types(FLOATS)],
        binary_cross_entropy [Functors(BINARY_SCORES), Types(FLOATS), Types(INDEX)],
        binary_cross_entropy_backward [Functors(BINARY_SCORES), Types(FLOATS), Types(INDEX)],
        loss_total [Types(FLOATS)],
    ]
    matmul [matmul [Types(NUMBERS)]]
    attention [
        attention [Types(FLOATS), Ints(&[0, 1, 2, 3])],
        attention_window [Types(FLOATS)],
    ]
    attention_f32 [attention_f32 [Types(&[F32]), Ints(&[8, 16])]]
    attention_f32_backward [attention_f32_backward [Types(&[F32]), Ints(&[1, 2])]]
    attention_f32_kept [attention_f32_kept [Types(&[F32])]]
    attention_f32_kept_backward [attention_f32_kept_backward [Types(&[F32])]]
    attention_backward [
        attention_backward_keys [Types(FLOATS), Ints(&[0, 1])],
        attention_backward_queries [Types(FLOATS), Ints(&[0, 1])],
        attention_dots [Types(FLOATS)],
    ]
    attention_matrix [attention_matrix [Types(HALVES), Ints(HEADS), Ints(&[0, 1, 2, 3])]]
    attention_matrix_backward [
        attention_matrix_backward [Types(HALVES), Ints(TRAINED_HEADS), Ints(&[0, 1, 2, 3]), Ints(&[0, 1])],
        attention_matrix_dots [Types(HALVES)],
    ]
    attention_offsets [attention_offsets [Types(INDEX)]]
    attention_rows [
        attention_weights [Types(FLOATS)],
        attention_weights_backward [Types(FLOATS)],
    ]
    attention_softmax [
        attention_softmax [Types(&[F32]), Ints(&[2, 4])],
        attention_softmax_backward [Types(&[F32]), Ints(&[2, 4])],
    ]
    kv_cache [
        kv_write [Pairs(CACHED)],
        kv_gather [Pairs(GATHERED)],
        kv_advance [],
    ]
    decode [
        decode_attention [Pairs(CACHED), Ints(&[1, 2, 4, 8])],
        decode_combine [Types(NARROW)],
    ]
    decode_matrix [
        decode_attention_matrix [Pairs(CACHED_HALVES), Ints(CACHED_HEADS)],
        decode_rotary_attention [Pairs(ROTATED_HALVES), Ints(CACHED_HEADS), Ints(&[2, 3])],
    ]
    sample [
        sample_scores [Types(NARROW)],
        sample_codes [],
        sample_draw [Types(NARROW)],
    ]
    gate [
        gated [Functors(GATES), Types(FLOATS)],
        gated_backward [Functors(GATES), Types(FLOATS)],
    ]
    heads [pack_heads [Ints(&[2, 4, 8, 16])]]
    norm [
        layer_norm_rows [Pairs(AFFINE)],
        layer_norm_repair [Types(BY_MIOPEN)],
        group_norm_rows [Pairs(AFFINE)],
        group_norm_repair [Types(BY_MIOPEN)],
        rms_norm_rows [Pairs(AFFINE)],
        layer_norm_warps [Pairs(AFFINE_HALVES), Ints(&[4, 8, 16])],
        rms_norm_warps [Pairs(AFFINE_HALVES), Ints(&[4, 8, 16])],
    ]
    norm_backward [
        layer_norm_rows_backward [Pairs(AFFINE)],
        rms_norm_rows_backward [Pairs(AFFINE)],
        group_norm_rows_backward [Pairs(AFFINE)],
        sum_partials [Types(FLOATS)],
    ]
    residual_norm [residual_norm [Pairs(AFFINE)]]
    rotary [
        rotary [Pairs(AFFINE), Ints(&[0, 1, 2, 3])],
        rotary_append [Pairs(ROTATED), Ints(&[0, 1, 2, 3])],
        rotary_backward [Pairs(AFFINE), Ints(&[0, 1, 2, 3])],
    ]
    batch_norm [
        batch_norm_moments [Types(FLOATS)],
        batch_norm_apply [Types(FLOATS)],
        batch_norm_relu [Types(FLOATS)],
        batch_norm_finish [Types(BY_MIOPEN)],
        batch_norm_infer [Types(FLOATS)],
        batch_norm_infer_relu [Types(FLOATS)],
        channel_sums [Types(FLOATS)],
        batch_norm_relu_sums [Types(FLOATS)],
        batch_norm_backward [Types(FLOATS)],
        batch_norm_relu_backward [Types(FLOATS)],
    ]
    batch_norm_rows [
        batch_norm_rows_moments [Types(HALVES)],
        batch_norm_rows_join [Types(&[F32])],
        batch_norm_rows_apply [Types(HALVES)],
        batch_norm_rows_relu [Types(HALVES)],
        batch_norm_rows_apply_joined [Types(HALVES)],
        batch_norm_rows_relu_joined [Types(HALVES)],
        batch_norm_rows_sums [Types(HALVES)],
        batch_norm_rows_relu_sums [Types(HALVES)],
        batch_norm_rows_total [Types(&[F32])],
        batch_norm_rows_backward [Types(HALVES)],
        batch_norm_rows_relu_backward [Types(HALVES)],
        batch_norm_rows_backward_joined [Types(HALVES)],
        batch_norm_rows_relu_backward_joined [Types(HALVES)],
    ]
    optim [
        optim_adam [Pairs(GRADIENTS), Ints(&[2]), Ints(&[0, 2])]
            [Pairs(GRADIENTS), Ints(&[3]), Ints(&[0, 1, 2])],
        optim_sgd [Pairs(GRADIENTS), Ints(&[0]), Ints(&[0])]
            [Pairs(GRADIENTS), Ints(&[1]), Ints(&[0, 2])],
        optim_adam_replayed [Pairs(GRADIENTS), Ints(&[2, 3])],
        optim_sgd_replayed [Pairs(GRADIENTS), Ints(&[0, 1])],
        optim_adam_numbers [Types(WIDE)],
        optim_sgd_numbers [Types(WIDE)],
        optim_squares [Types(FLOATS)],
        optim_norms [Types(WIDE)],
        optim_unscale [Types(NARROW), Types(&[F32])]
            [Types(&[F64]), Types(&[F64])],
        optim_unscale_replayed [Types(NARROW), Types(&[F32])]
            [Types(&[F64]), Types(&[F64])],
        optim_rescale [],
        optim_cast [Types(&[F32]), Types(HALVES)]
            [Types(HALVES), Types(&[F32])],
    ]
    fp8 [
        fp8_decode [Functors(FP8), Types(NARROW)],
        fp8_encode [Functors(FP8), Types(NARROW)],
        fp8_extent [Types(NARROW)],
        fp8_quantize [Functors(FP8), Types(NARROW)],
    ]
    fft [
        fft_twiddles [Types(WIDE)],
        fft_load [Types(FLOATS)],
        fft_load_half [Types(FLOATS)],
        fft_load_pairs [Types(FLOATS)],
        fft_pack [Types(FLOATS)],
        fft_unpack [Types(FLOATS)],
        fft_store_pairs [Types(FLOATS)],
        fft_store [Types(FLOATS)],
        fft_stage [Ints(&[2, 3, 4, 5]), Types(WIDE)],
        fft_stage_any [Types(WIDE)],
        fft_chirp [Types(WIDE)],
        fft_chirp_filter [Types(WIDE)],
        fft_filter [Types(WIDE)],
        fft_unchirp [Types(WIDE)],
    ]
    scan [
        scan [Functors(SCAN), Types(NUMBERS)],
        scan_tiles [Functors(SCAN), Types(NUMBERS)],
    ]
    quantize [
        quantize_extent [Types(FLOATS)],
        quantize_scales [Types(FLOATS)],
        quantize_params [],
        quantize [Types(FLOATS), Ints(&[8, 4, 2])],
        dequantize [Types(FLOATS), Ints(&[8, 4, 2])],
        dequantize_strided [Types(FLOATS)],
        unpack_strided [],
        pack [Ints(&[4, 2])],
    ]
    qmatmul [
        qmatmul [Types(&[I8]), Types(&[I8]), Types(NARROW)]
            [Types(&[I8]), Types(&[F32]), Types(&[F32])]
            [Types(&[I8]), Types(&[F16]), Types(&[F16])]
            [Types(&[I8]), Types(&[BF16]), Types(&[BF16])]
            [Types(&[F32]), Types(&[I8]), Types(&[F32])]
            [Types(&[F16]), Types(&[I8]), Types(&[F16])]
            [Types(&[BF16]), Types(&[I8]), Types(&[BF16])],
        scale_product [Types(FLOATS)],
    ]
    row_product [row_product [Types(NARROW)]]
    few_codes [few_codes [Functors(&[Int4, Int8]), Types(HALVES), Ints(&[2, 16]), Ints(&[1, 4])]]
    qweight [
        qweight_product [Functors(WEIGHTS), Types(NARROW), Ints(&[1, 4, 16])],
        qweight_dequantize [Functors(WEIGHTS), Types(NARROW)],
    ]
    sort [
        sort_rows [Types(RAW)],
        sort_tiles [Types(RAW)],
        sort_merge [Types(RAW)],
        sort_finish [Types(RAW)],
    ]
}

/// All families.
pub fn families() -> &'static [Family] {
    FAMILIES
}

/// The family that has this kernel template.
pub fn family_of(template: Template) -> &'static Family {
    let has = |family: &&Family| family.rules.iter().any(|rule| rule.template == template);
    FAMILIES.iter().find(has).expect("the templates are those of the families")
}

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
        assert!(!crate::contains(&Template::binary_contiguous.functor(Add)));
    }

    #[test]
    fn a_chains_functors_have_the_numbers_of_its_source() {
        let (_, source) = crate::HEADERS.iter().find(|(name, _)| *name == "chain.h").unwrap();
        let lists = source.lines().filter(|line| line.starts_with("#define CHAIN_OF_"));
        let names: Vec<&str> = lists.flat_map(|line| line.split(" X(").skip(1)).collect();
        assert_eq!(names.len(), CHAIN.len());
        for (number, name) in names.into_iter().enumerate() {
            assert_eq!(CHAIN[number].to_string(), name.trim_end_matches(')'));
            assert_eq!(CHAIN[number].in_chain(), Some(number as u32));
        }
        assert_eq!(Sum.in_chain(), None);
    }
}
