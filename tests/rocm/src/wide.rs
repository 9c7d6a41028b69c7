//! The kernels that need 16-byte accesses.

use hip::{DType, KernelName, Template};
use hip_kernels::Arg;

/// Templates that access contiguous memory on the hot path, and whether their loads and their
/// stores must have 16 bytes for each lane. A reduction stores one element for each row. Casts and
/// comparisons store narrower results in narrower accesses.
const WIDE: &[(Template, bool, bool)] = &[
    (Template::binary_contiguous, true, true),
    (Template::binary_scalar, true, true),
    (Template::unary_contiguous, true, true),
    (Template::unary2_contiguous, true, true),
    (Template::cast_contiguous, true, true),
    (Template::compare_contiguous, true, false),
    (Template::compare_scalar, true, false),
    (Template::mask_where_contiguous, true, true),
    (Template::mask_fill_contiguous, true, true),
    (Template::fill, false, true),
    (Template::reduce_rows, true, false),
    (Template::softmax_rows, true, true),
    (Template::log_softmax_rows, true, true),
    (Template::softmax_short_rows, true, true),
    (Template::log_softmax_short_rows, true, true),
    (Template::softmax_rows_backward, true, true),
    (Template::log_softmax_rows_backward, true, true),
    (Template::layer_norm_rows, true, true),
    (Template::rms_norm_rows, true, true),
    (Template::layer_norm_warps, true, true),
    (Template::rms_norm_warps, true, true),
    (Template::group_norm_rows, true, true),
    (Template::layer_norm_rows_backward, true, true),
    (Template::rms_norm_rows_backward, true, true),
    (Template::group_norm_rows_backward, true, true),
    (Template::residual_loss, true, true),
    (Template::residual_loss_sum, true, false),
    (Template::residual_loss_backward, true, true),
    (Template::residual_loss_sum_backward, true, true),
    (Template::bias_act, true, true),
    (Template::bias_add, true, true),
    (Template::add_act, true, true),
    (Template::add_act_backward, true, true),
    (Template::mul_add, true, true),
    (Template::qweight_product, true, false),
    (Template::qweight_dequantize, true, true),
    (Template::gated, true, true),
    (Template::residual_norm, true, true),
];

/// Whether a kernel must have 16-byte loads and stores: the templates above, in f32 and 16-bit
/// types.
pub(crate) fn wide(name: &KernelName) -> Option<(bool, bool)> {
    let &(_, loads, stores) = WIDE.iter().find(|(template, ..)| *template == name.template())?;
    let types: Vec<DType> = name
        .args()
        .filter_map(|arg| match arg {
            Arg::Type(dtype) => Some(dtype),
            _ => None,
        })
        .collect();
    let of_width =
        |dtype: DType| matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::U32 | DType::U16);
    match (name.template(), types.as_slice()) {
        // 16 bytes of the wider type for each lane.
        (Template::cast_contiguous, &[from, to]) => {
            (of_width(from) && of_width(to) && from.is_float() && to.is_float())
                .then_some((from.size() >= to.size(), to.size() >= from.size()))
        }
        (Template::mask_where_contiguous | Template::mask_fill_contiguous, &[raw, bools]) => {
            (of_width(raw) && (raw.size() >= bools.size())).then_some((true, true))
        }
        // The type of a norm's rows counts, and its parameters' type does not.
        (_, &[dtype] | &[dtype, DType::F32 | DType::F16 | DType::BF16]) => {
            of_width(dtype).then_some((loads, stores))
        }
        _ => None,
    }
}
