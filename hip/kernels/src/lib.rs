//! The HIP C++ kernels of burn-rocm and the table of their instantiations.
//!
//! The sources are embedded as text. The run-time compiles an instantiation when it is first
//! requested. The CPU device builds all of them in advance. The check with AMD's compiler goes
//! through the same table, so no kernel exists that is not in it.

mod dtype;
mod name;
mod table;

pub use dtype::*;
pub use name::{Arg, KernelName, MAX_ARGS};
pub use table::{Family, Functor, Param, Rule, Template, families, family_of};

/// The headers that kernel sources include: file names and texts.
pub const HEADERS: &[(&str, &str)] = &[
    ("prelude.h", include_str!("../prelude.h")),
    ("prelude_compiler.h", include_str!("../prelude_compiler.h")),
    ("prelude_convert.h", include_str!("../prelude_convert.h")),
    ("prelude_device.h", include_str!("../prelude_device.h")),
    ("prelude_map.h", include_str!("../prelude_map.h")),
    ("prelude_math.h", include_str!("../prelude_math.h")),
    ("prelude_ranges.h", include_str!("../prelude_ranges.h")),
    ("prelude_reduce.h", include_str!("../prelude_reduce.h")),
    ("prelude_registers.h", include_str!("../prelude_registers.h")),
    ("prelude_types.h", include_str!("../prelude_types.h")),
    ("activations.h", include_str!("../activations.h")),
    ("approximate.h", include_str!("../approximate.h")),
    ("attention_f32.h", include_str!("../attention_f32.h")),
    ("attention_f32_backward.h", include_str!("../attention_f32_backward.h")),
    ("attention_matrix.h", include_str!("../attention_matrix.h")),
    ("attention_scores.h", include_str!("../attention_scores.h")),
    ("attention_sequences.h", include_str!("../attention_sequences.h")),
    ("attention_stage.h", include_str!("../attention_stage.h")),
    ("functors.h", include_str!("../functors.h")),
    ("block_product.h", include_str!("../block_product.h")),
    ("chain.h", include_str!("../chain.h")),
    ("decode.h", include_str!("../decode.h")),
    ("far_from_mean.h", include_str!("../far_from_mean.h")),
    ("fp8.h", include_str!("../fp8.h")),
    ("log_sum_exp.h", include_str!("../log_sum_exp.h")),
    ("matrix_cores.h", include_str!("../matrix_cores.h")),
    ("matrix_few.h", include_str!("../matrix_few.h")),
    ("norm_gradient.h", include_str!("../norm_gradient.h")),
    ("normal.h", include_str!("../normal.h")),
    ("overlap.h", include_str!("../overlap.h")),
    ("packed.h", include_str!("../packed.h")),
    ("paged.h", include_str!("../paged.h")),
    ("philox.h", include_str!("../philox.h")),
    ("pool_window.h", include_str!("../pool_window.h")),
    ("projection.h", include_str!("../projection.h")),
    ("published.h", include_str!("../published.h")),
    ("qweight.h", include_str!("../qweight.h")),
    ("relu.h", include_str!("../relu.h")),
    ("rounded.h", include_str!("../rounded.h")),
    ("rotary.h", include_str!("../rotary.h")),
    ("rows.h", include_str!("../rows.h")),
    ("sums.h", include_str!("../sums.h")),
    ("widen.h", include_str!("../widen.h")),
];

/// The most dims that a kernel's strided operands may have after merging (`MAX_DIMS` in
/// `prelude_map.h`).
pub const MAX_DIMS: usize = 8;

/// Whether the table lists this instantiation.
pub fn contains(name: &KernelName) -> bool {
    family_of(name.template()).contains(name)
}
