//! The tables in `docs/kernels.md`.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::architecture::{ARCHITECTURES, Architecture};
use crate::rules::template_of;
use crate::work::Compiled;

/// The largest needs of a template's instantiations on one architecture.
#[derive(Default, Clone, Copy)]
struct Needs {
    vgprs: u32,
    sgprs: u32,
    lds: u32,
    waves: Option<u32>,
    count: usize,
}

impl Needs {
    fn add(&mut self, architecture: &Architecture, compiled: &Compiled) {
        let waves = architecture.generation.waves_of(&compiled.notes);
        self.vgprs = self.vgprs.max(compiled.notes.vgprs);
        self.sgprs = self.sgprs.max(compiled.notes.sgprs);
        self.lds = self.lds.max(compiled.notes.lds);
        self.waves = Some(self.waves.map_or(waves, |least| least.min(waves)));
        self.count += 1;
    }
}

/// One of the tables: its name and its text.
pub(crate) struct Table {
    /// The name in the document's markers.
    pub(crate) name: &'static str,
    text: String,
}

/// A row for each template, on the architectures that every run compiles.
pub(crate) fn templates(made_with: &str, compiled: &[Compiled]) -> Table {
    let always: Vec<&Architecture> = ARCHITECTURES.iter().filter(|one| one.always).collect();
    let mut rows: BTreeMap<(&str, &str), Vec<Needs>> = BTreeMap::new();
    for one in compiled {
        let Some(at) = always.iter().position(|architecture| architecture.name == one.architecture) else {
            continue;
        };
        rows.entry((&one.family, template_of(&one.kernel)))
            .or_insert_with(|| vec![Needs::default(); always.len()])[at]
            .add(always[at], one);
    }
    let mut text = format!("Made with {made_with}.\n\n| family | kernel | instantiations | LDS |");
    for architecture in &always {
        let Architecture { name, generation, .. } = architecture;
        let _ = write!(text, " {name}: VGPR, SGPR, waves of {} |", generation.waves);
    }
    let _ = writeln!(text, "\n|---|---|---:|---:|{}", "---:|".repeat(always.len()));
    for ((family, template), needs) in rows {
        let lds = needs.iter().map(|needs| needs.lds).max().unwrap_or_default();
        let _ = write!(text, "| {family} | {template} | {} | {lds} |", needs[0].count);
        for needs in needs {
            let _ = write!(text, " {}, {}, {} |", needs.vgprs, needs.sgprs, needs.waves.unwrap_or_default());
        }
        text.push('\n');
    }
    Table { name: "templates", text }
}

/// A row for each architecture.
pub(crate) fn architectures(
    made_with: &str,
    compiled: &[Compiled],
    excepted: &BTreeMap<String, usize>,
) -> Table {
    let mut text = format!(
        "Made with {made_with}.\n\n| architecture | kernels | most VGPRs | most SGPRs | most LDS | with all waves \
        | asked for | least waves | exceptions |\n\
        |---|---:|---:|---:|---:|---:|---:|---:|---:|\n"
    );
    for architecture in ARCHITECTURES {
        let generation = architecture.generation;
        let (mut needs, mut full) = (Needs::default(), 0);
        for one in compiled.iter().filter(|one| one.architecture == architecture.name) {
            needs.add(architecture, one);
            full += usize::from(generation.waves_of(&one.notes) == generation.waves);
        }
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {full} | {} of {} | {} | {} |",
            architecture.name,
            needs.count,
            needs.vgprs,
            needs.sgprs,
            needs.lds,
            generation.enough,
            generation.waves,
            needs.waves.unwrap_or_default(),
            excepted.get(architecture.name).copied().unwrap_or_default(),
        );
    }
    Table { name: "architectures", text }
}

/// A line for each template with instantiations that spill or use scratch: their number, and the
/// largest figures.
pub(crate) fn spilling(compiled: &[Compiled]) -> Vec<String> {
    let mut templates: BTreeMap<(&str, &str), (usize, [u32; 3])> = BTreeMap::new();
    for one in compiled {
        let figures = [one.notes.scratch, one.notes.vgpr_spills, one.notes.sgpr_spills];
        if figures.iter().any(|&figure| figure > 0) {
            let (count, most) = templates.entry((&one.architecture, template_of(&one.kernel))).or_default();
            *count += 1;
            for (most, figure) in most.iter_mut().zip(figures) {
                *most = figure.max(*most);
            }
        }
    }
    let line = |((architecture, template), (count, [scratch, vgprs, sgprs])): (
        (&str, &str),
        (usize, [u32; 3]),
    )| {
        format!(
            "{architecture} | {template}, {count} instantiations: at most {scratch} bytes of scratch, {vgprs} vector, \
             {sgprs} scalar registers spilled"
        )
    };
    templates.into_iter().map(line).collect()
}

impl Table {
    /// The document with this table in its place.
    pub(crate) fn put_into(&self, document: &str) -> Result<String, String> {
        let (before, _, after) = self.find_in(document)?;
        Ok(format!("{before}\n{}{after}", self.text))
    }

    /// Whether the document has exactly this table. `None` if another compiler made the document's
    /// table, so that they can't be compared.
    pub(crate) fn is_in(&self, document: &str) -> Result<Option<bool>, String> {
        let (_, there, _) = self.find_in(document)?;
        let first = |text: &str| text.trim_start().lines().next().map(str::to_owned);
        if !there.trim().is_empty() && first(there) != first(&self.text) {
            return Ok(None);
        }
        Ok(Some(there.trim() == self.text.trim()))
    }

    fn find_in<'a>(&self, document: &'a str) -> Result<(&'a str, &'a str, &'a str), String> {
        let (begin, end) = (format!("<!-- {} -->\n", self.name), format!("<!-- end of {} -->", self.name));
        let start =
            document.find(&begin).ok_or_else(|| format!("docs/kernels.md has no {}", begin.trim()))?;
        let start = start + begin.len();
        let length = document[start..].find(&end).ok_or_else(|| format!("docs/kernels.md has no {end}"))?;
        Ok((&document[..start], &document[start..start + length], &document[start + length..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_put_in_and_found_again() {
        let table = Table { name: "t", text: "Made with x.\n\n| a |\n".into() };
        let empty = "# Head\n<!-- t -->\n<!-- end of t -->\nTail\n";
        assert_eq!(table.is_in(empty), Ok(Some(false)));
        let full = table.put_into(empty).expect("there are markers");
        assert_eq!(full, "# Head\n<!-- t -->\n\nMade with x.\n\n| a |\n<!-- end of t -->\nTail\n");
        assert_eq!(table.is_in(&full), Ok(Some(true)));
        assert_eq!(table.is_in(&full.replace("| a |", "| b |")), Ok(Some(false)));
        assert_eq!(table.is_in(&full.replace("with x", "with y")), Ok(None));
        assert!(table.is_in("no markers").is_err());
        assert_eq!(table.put_into(&full), Ok(full.clone()));
    }
}
