//! The rules for kernels, and the exceptions.

use hip::Template;

use crate::architecture::Architecture;
use crate::cores::on_cores;
use crate::wide::wide;
use crate::work::Compiled;

/// Templates that are limited by arithmetic, LDS or chains of dependent steps instead of memory.
/// Their occupancy is listed, but has no rule.
const NOT_BOUND_BY_MEMORY: &[Template] = &[
    Template::attention,
    Template::attention_backward_keys,
    Template::attention_backward_queries,
    Template::attention_f32,
    Template::attention_f32_backward,
    Template::attention_matrix,
    Template::attention_matrix_backward,
    Template::attention_softmax,
    Template::attention_softmax_backward,
    Template::conv_backward_data,
    Template::conv_backward_weights,
    Template::conv_forward,
    Template::ctc_alpha,
    Template::ctc_posterior,
    Template::decode_attention,
    Template::decode_attention_matrix,
    Template::decode_rotary_attention,
    Template::interpolate_table,
    Template::matmul,
    Template::qmatmul,
    Template::sample_codes,
    Template::sample_draw,
    Template::scan_tiles,
    Template::sort_merge,
    Template::sort_rows,
    Template::sort_tiles,
];

/// The rules that a kernel breaks, in short; empty if there are none.
pub(crate) fn violations(architecture: &Architecture, compiled: &Compiled) -> Vec<(&'static str, String)> {
    let notes = &compiled.notes;
    let mut found = Vec::new();
    if notes.scratch > 0 || notes.dynamic_stack {
        found.push(("scratch", format!("{} bytes of scratch a lane", notes.scratch)));
    }
    if notes.vgpr_spills > 0 {
        found.push(("vgpr-spills", format!("{} vector registers spilled", notes.vgpr_spills)));
    }
    if notes.sgpr_spills > 0 {
        found.push(("sgpr-spills", format!("{} scalar registers spilled", notes.sgpr_spills)));
    }
    let named = template_of(&compiled.kernel);
    let not_bound = NOT_BOUND_BY_MEMORY.iter().any(|template| template.to_string() == named);
    let waves = architecture.generation.waves_of(notes);
    if waves < architecture.generation.enough && !not_bound {
        found.push((
            "occupancy",
            format!(
                "{waves} of {} waves a SIMD ({} vector, {} scalar registers, {} bytes of LDS)",
                architecture.generation.waves, notes.vgprs, notes.sgprs, notes.lds
            ),
        ));
    }
    if let Some(accesses) = compiled.accesses {
        let name = hip_kernels::families()
            .iter()
            .flat_map(|family| family.instantiations())
            .find(|name| name.to_string() == compiled.kernel);
        if let Some((loads, stores)) = name.and_then(|name| wide(&name))
            && (loads && accesses.wide_loads == 0 || stores && accesses.wide_stores == 0)
        {
            found.push((
                "narrow",
                format!("{} loads and {} stores of 16 bytes", accesses.wide_loads, accesses.wide_stores),
            ));
        }
    }
    if let Some([fused, least]) = compiled.fused
        && fused != least
    {
        let what = format!("{fused} fused multiply-adds, but {least} with `-ffp-contract=off`");
        found.push(("fused", what));
    }
    if let (Some(products), Some(wanted)) =
        (compiled.products, on_cores(architecture, template_of(&compiled.kernel)))
        && (products > 0) != wanted
    {
        let expected = if wanted { "at least one" } else { "none" };
        found.push(("cores", format!("{products} products on matrix cores, where {expected} is expected")));
    }
    found
}

/// The template of an instantiation.
pub(crate) fn template_of(kernel: &str) -> &str {
    kernel.split('<').next().unwrap_or(kernel)
}

/// A violation that is accepted, with the reason.
#[derive(Debug)]
pub(crate) struct Exception {
    line: usize,
    architectures: String,
    kernels: String,
    kinds: String,
}

/// Reads `exceptions.txt`: `architectures | kernels | kinds | reason`. The first two may contain
/// `*`. Blanks separate architectures and kinds, semicolons separate kernels.
pub(crate) fn read_exceptions(text: &str) -> Result<Vec<Exception>, String> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        let &[architectures, kernels, kinds, reason] = columns.as_slice() else {
            return Err(format!("exceptions.txt:{}: four columns expected", index + 1));
        };
        if reason.is_empty() {
            return Err(format!("exceptions.txt:{}: no reason", index + 1));
        }
        found.push(Exception {
            line: index + 1,
            architectures: architectures.into(),
            kernels: kernels.into(),
            kinds: kinds.into(),
        });
    }
    Ok(found)
}

impl Exception {
    pub(crate) fn covers(&self, architecture: &str, kernel: &str, kind: &str) -> bool {
        self.architectures.split_whitespace().any(|pattern| matches(pattern, architecture))
            && self.kernels.split(';').any(|pattern| matches(pattern.trim(), kernel))
            && self.kinds.split_whitespace().any(|one| one == kind)
    }

    /// Whether everything that the exception may cover was compiled. Only then can it be found
    /// unnecessary.
    pub(crate) fn decided_by(&self, architectures: &[&str], whole: bool) -> bool {
        whole
            && crate::architecture::ARCHITECTURES
                .iter()
                .filter(|one| self.architectures.split_whitespace().any(|pattern| matches(pattern, one.name)))
                .all(|one| architectures.contains(&one.name))
    }

    /// The exception's name in messages.
    pub(crate) fn place(&self) -> String {
        format!("exceptions.txt:{} ({} | {} | {})", self.line, self.architectures, self.kernels, self.kinds)
    }
}

/// Whether a text matches a pattern with `*`.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, tail)) => text.strip_prefix(head).is_some_and(|rest| {
            (0..=rest.len()).any(|at| rest.is_char_boundary(at) && matches(tail, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::architecture::ARCHITECTURES;
    use crate::assembly::Accesses;
    use crate::notes::Notes;

    fn compiled(kernel: &str, notes: Notes, accesses: Option<Accesses>) -> Compiled {
        let (architecture, family) = ("gfx1030".into(), "binary".into());
        let (kernel, sources, fused, products) = (kernel.into(), 0, None, None);
        Compiled { architecture, family, sources, kernel, notes, accesses, fused, products }
    }

    fn plain() -> Notes {
        Notes {
            symbol: String::new(),
            vgprs: 20,
            agprs: 0,
            sgprs: 20,
            vgpr_spills: 0,
            sgpr_spills: 0,
            scratch: 0,
            lds: 0,
            wave: 32,
            dynamic_stack: false,
        }
    }

    #[test]
    fn each_fault_is_found_and_nothing_else() {
        let gfx1030 = ARCHITECTURES.iter().find(|one| one.name == "gfx1030").expect("it is listed");
        let kinds = |notes: Notes, loads: u32| -> Vec<&str> {
            let accesses = Accesses { wide_loads: loads, wide_stores: 1 };
            let kernel = compiled("binary_contiguous<Add, f32>", notes, Some(accesses));
            violations(gfx1030, &kernel).into_iter().map(|(kind, _)| kind).collect()
        };
        assert!(kinds(plain(), 2).is_empty());
        assert_eq!(kinds(Notes { scratch: 4, ..plain() }, 2), ["scratch"]);
        assert_eq!(kinds(Notes { dynamic_stack: true, ..plain() }, 2), ["scratch"]);
        assert_eq!(kinds(Notes { vgpr_spills: 1, ..plain() }, 2), ["vgpr-spills"]);
        assert_eq!(kinds(Notes { sgpr_spills: 1, ..plain() }, 2), ["sgpr-spills"]);
        assert_eq!(kinds(Notes { vgprs: 65, ..plain() }, 2), ["occupancy"]);
        assert_eq!(kinds(Notes { lds: 17 << 10, ..plain() }, 2), ["occupancy"]);
        assert_eq!(kinds(plain(), 0), ["narrow"]);
        let matmul = compiled("matmul<f32>", Notes { vgprs: 200, ..plain() }, None);
        assert!(violations(gfx1030, &matmul).is_empty());
        let chain = |fused| Compiled { fused: Some(fused), ..compiled("chain<f32>", plain(), None) };
        assert!(violations(gfx1030, &chain([288, 288])).is_empty());
        let found = violations(gfx1030, &chain([295, 288]));
        let what = "295 fused multiply-adds, but 288 with `-ffp-contract=off`";
        assert_eq!(found, [("fused", what.to_owned())]);
    }

    #[test]
    fn an_empty_kernel_passes_only_where_there_are_no_matrix_cores() {
        for architecture in ARCHITECTURES {
            let kinds = |kernel: &str, products| -> Vec<&str> {
                let notes = Notes { vgprs: 8, ..plain() };
                let one = Compiled { products: Some(products), ..compiled(kernel, notes, None) };
                violations(architecture, &one).into_iter().map(|(kind, _)| kind).collect()
            };
            let of = |start| architecture.name.starts_with(start);
            let cdna = ["gfx908", "gfx90a", "gfx942", "gfx950"].contains(&architecture.name);
            for (kernel, multiplies) in [
                ("attention_matrix<f16, 64, 0>", cdna || of("gfx11") || of("gfx12")),
                ("attention_matrix_backward<bf16, 96, 1, 0>", cdna || of("gfx11") || of("gfx12")),
                ("few_codes<Int4, f16, 2, 1>", cdna || of("gfx12")),
            ] {
                let [empty, full] = [kinds(kernel, 0), kinds(kernel, 32)];
                let (fails, passes) = if multiplies { (empty, full) } else { (full, empty) };
                assert_eq!(fails, ["cores"], "{kernel} on {}", architecture.name);
                assert!(passes.is_empty(), "{kernel} on {}: {passes:?}", architecture.name);
            }
        }
        // `decode_matrix` and the dots of attention's gradient have no such rule.
        let dots = compiled("attention_matrix_dots<f16>", Notes { vgprs: 8, ..plain() }, None);
        assert!(violations(&ARCHITECTURES[0], &dots).is_empty());
    }

    #[test]
    fn exceptions_cover_what_they_name() {
        let text = "# comment\n\ngfx9* gfx1030 | softmax_rows<f64> | occupancy sgpr-spills | because\n";
        let exceptions = read_exceptions(text).expect("it is well formed");
        let one = &exceptions[0];
        assert!(one.covers("gfx90a", "softmax_rows<f64>", "occupancy"));
        assert!(!one.covers("gfx1100", "softmax_rows<f64>", "occupancy"));
        assert!(!one.covers("gfx90a", "softmax_rows<f32>", "occupancy"));
        assert!(!one.covers("gfx90a", "softmax_rows<f64>", "scratch"));
        assert!(!one.decided_by(&["gfx90a", "gfx1030"], true), "gfx942 was not compiled");
        assert!(read_exceptions("a | b | c |").is_err() && read_exceptions("a | b | c").is_err());
        assert!(matches("unary*<*, f64>", "unary_contiguous<Erf, f64>"));
        assert!(!matches("unary*<*, f64>", "unary_contiguous<Erf, f32>"));
    }
}
