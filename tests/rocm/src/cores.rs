//! The kernels that multiply on matrix cores.

use hip::Template;

use crate::architecture::Architecture;

/// Templates whose kernels multiply on matrix cores, and whether they do so on RDNA 3. Where they do
/// not, they are empty (`hip/kernels/matrix_cores.h`, `hip/kernels/matrix_few.h`). Not here: kernels
/// of `decode_matrix`, which are empty for some widths too.
const ON_CORES: &[(Template, bool)] = &[
    (Template::attention_matrix, true),
    (Template::attention_matrix_backward, true),
    (Template::few_codes, false),
];

/// Whether a template's kernels must have products on an architecture's matrix cores (`true`), or must
/// have none (`false`); `None` if no rule is about them.
pub(crate) fn on_cores(architecture: &Architecture, named: &str) -> Option<bool> {
    let &(_, on_rdna3) = ON_CORES.iter().find(|(template, _)| template.to_string() == named)?;
    Some(match architecture.name {
        "gfx908" | "gfx90a" | "gfx942" | "gfx950" | "gfx1200" | "gfx1201" => true,
        "gfx1100" | "gfx1101" | "gfx1102" | "gfx1151" => on_rdna3,
        _ => false,
    })
}

/// Whether a rule is about a kernel's products on matrix cores.
pub(crate) fn is_counted(template: Template) -> bool {
    ON_CORES.iter().any(|&(one, _)| one == template)
}
