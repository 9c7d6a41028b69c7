//! Which kernels are asked for 16-byte accesses.

use hip::{DType, KernelName};
use hip_kernels::Arg;

/// Templates that go through contiguous memory on the hot path, and whether 16 bytes a lane are asked of their
/// loads and of their stores. A reduction stores one element a row; what a cast or a comparison makes narrower is
/// stored narrower.
pub(crate) const WIDE: &[(&str, bool, bool)] = &[
    ("binary_contiguous", true, true),
    ("binary_scalar", true, true),
    ("unary_contiguous", true, true),
    ("unary2_contiguous", true, true),
    ("cast_contiguous", true, true),
    ("compare_contiguous", true, false),
    ("compare_scalar", true, false),
    ("mask_where_contiguous", true, true),
    ("mask_fill_contiguous", true, true),
    ("fill", false, true),
    ("reduce_rows", true, false),
    ("softmax_rows", true, true),
    ("log_softmax_rows", true, true),
    ("softmax_rows_backward", true, true),
    ("log_softmax_rows_backward", true, true),
    ("layer_norm_rows", true, true),
    ("rms_norm_rows", true, true),
    ("group_norm_rows", true, true),
    ("layer_norm_rows_backward", true, true),
    ("rms_norm_rows_backward", true, true),
    ("group_norm_rows_backward", true, true),
    ("residual_loss", true, true),
    ("residual_loss_sum", true, false),
    ("residual_loss_backward", true, true),
    ("residual_loss_sum_backward", true, true),
    ("bias_act", true, true),
    ("bias_add", true, true),
    ("add_act", true, true),
    ("add_act_backward", true, true),
    ("mul_add", true, true),
    ("silu_mul", true, true),
];

/// Whether 16-byte loads and stores are asked of a kernel: those named above, in f32 and 16 bits.
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
        // 16 bytes of the wider type a lane.
        ("cast_contiguous", &[from, to]) => {
            (of_width(from) && of_width(to) && from.is_float() && to.is_float())
                .then_some((from.size() >= to.size(), to.size() >= from.size()))
        }
        ("mask_where_contiguous" | "mask_fill_contiguous", &[raw, bools]) => {
            (of_width(raw) && (raw.size() >= bools.size())).then_some((true, true))
        }
        // The type of a norm's rows; its parameters' type does not count.
        (_, &[dtype] | &[dtype, DType::F32 | DType::F16 | DType::BF16]) => {
            of_width(dtype).then_some((loads, stores))
        }
        _ => None,
    }
}
