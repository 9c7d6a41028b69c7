//! CSV files of measured layers, and the Markdown page that is made from them.

use std::{collections::HashMap, fmt::Write};

use crate::median::median;
use crate::{DIRECTIONS, Result, layers};

/// The milliseconds of a row: own f32, auto f32, auto f16, auto bf16.
pub(crate) type Times = [f64; 4];

/// The first line of a CSV file.
pub(crate) const HEADER: &str = "row,own_f32_ms,auto_f32_ms,auto_f16_ms,auto_bf16_ms";

/// A row as a line of a CSV file.
pub(crate) fn line(name: &str, [own, auto, half, brain]: Times) -> String {
    format!("\"{name}\",{own},{auto},{half},{brain}")
}

/// The row of a line, unless the line is wrong.
fn row(line: &str) -> Option<(&str, Times)> {
    let (name, times) = line.strip_prefix('"')?.split_once("\",")?;
    let times = times.split(',').map(|time| time.parse().ok()).collect::<Option<Vec<f64>>>()?;
    Some((name, times.try_into().ok()?))
}

/// The rows of a CSV file.
fn rows(text: &str) -> Result<Vec<(&str, Times)>> {
    let Some(lines) = text.strip_prefix(HEADER) else {
        return Err(format!("a CSV file must begin with {HEADER}").into());
    };
    lines.trim().lines().map(|line| row(line).ok_or_else(|| format!("not a row: {line}").into())).collect()
}

/// The batch in a layer's name, which is the second word.
fn batch(name: &str) -> Option<usize> {
    name.split(' ').nth(1)?.parse().ok()
}

/// All layers of each batch that the CSV files `texts` contain, as a Markdown page. `note` says
/// where, when and from which commit the files come. If files have the same row, the page has the
/// smallest figure of each column.
pub(crate) fn page(texts: &[String], note: &str) -> Result<String> {
    let mut measured: HashMap<&str, Times> = HashMap::new();
    for (name, times) in texts.iter().map(|text| rows(text)).collect::<Result<Vec<_>>>()?.concat() {
        let least = measured.entry(name).or_insert(times);
        *least = std::array::from_fn(|at| least[at].min(times[at]));
    }
    let mut batches: Vec<usize> = measured.keys().filter_map(|name| batch(name)).collect();
    batches.sort_unstable();
    batches.dedup();
    let mut rows: Vec<(String, &str, Times)> = Vec::new();
    for (layer, _) in batches.iter().flat_map(|&batch| layers(batch)) {
        for direction in DIRECTIONS {
            let name = format!("{layer}, {direction}");
            let times = measured.remove(name.as_str()).ok_or_else(|| format!("no figures of {name}"))?;
            rows.push((layer.clone(), direction, times));
        }
    }
    if let Some(name) = measured.keys().next() {
        return Err(format!("not a layer of this program: {name}").into());
    }
    let mut text = format!("{INTRODUCTION}\n{note}\n\n{SUMMARY}");
    for direction in DIRECTIONS {
        let of = rows.iter().filter(|row| row.1 == direction);
        let ratios: Vec<f64> = of.map(|&(_, _, [own, auto, ..])| auto / own).collect();
        let largest = ratios.iter().copied().fold(0.0, f64::max);
        let (count, slower) = (ratios.len(), ratios.iter().filter(|&&ratio| ratio > 1.05).count());
        let Some(median) = median(ratios) else { continue };
        writeln!(text, "| {direction} | {count} | {median:.2} | {largest:.2} | {slower} |")?;
    }
    text += COLUMNS;
    for (layer, direction, [own, auto, half, brain]) in rows {
        writeln!(
            text,
            "| {layer} | {direction} | {own:.2} | {auto:.2} | {half:.2} | {brain:.2} | {:.2} | {:.2} | {:.2} |",
            auto / own,
            half / auto,
            brain / auto
        )?;
    }
    Ok(text)
}

const INTRODUCTION: &str = "\
# Convolutions on the CPU device

This page compares two ways to compute a convolution on the CPU device, layer by layer: `own` (this crate's kernels and
products) and `auto` (the provider's MIOpen, [decision 011](decisions/011-convolution-on-the-cpu.md)). A row is a layer
of ResNet-18, ResNet-50, YOLOX-tiny or MobileNetV2 and a direction: forward, the gradient of the input (data) or the
gradient of the weights. The columns take turns, and a figure is the minimum of 31 rounds.

`cpu_convolutions --csv FILE` measures the rows, and `cpu_convolutions --table FILES --note TEXT` prints this page.
";

const SUMMARY: &str = "\
| direction | rows | auto / own in f32, median | largest | rows above 1.05 |
|---|---:|---:|---:|---:|
";

const COLUMNS: &str = "
| layer | direction | own f32, ms | auto f32, ms | auto f16, ms | auto bf16, ms | auto / own | f16 / f32 | bf16 / f32 |
|---|---|---:|---:|---:|---:|---:|---:|---:|
";

#[cfg(test)]
mod tests {
    use super::*;

    fn file(names: impl Iterator<Item = String>, times: Times) -> String {
        names.fold(format!("{HEADER}\n"), |text, name| text + &line(&name, times) + "\n")
    }

    fn names(batch: usize) -> impl Iterator<Item = String> {
        layers(batch).flat_map(|(layer, _)| DIRECTIONS.map(|direction| format!("{layer}, {direction}")))
    }

    #[test]
    fn a_page_has_every_layer_and_the_smallest_figures() {
        let files = [
            file(names(2).step_by(2), [4.0, 2.0, 3.0, 5.0]),
            file(names(2).skip(1).step_by(2), [1.0, 2.0, 2.0, 4.0]),
            file(names(2).take(1), [8.0, 1.0, 3.0, 5.0]),
        ];
        let text = page(&files, "Two cores of a machine.").unwrap();
        let found: Vec<&str> = text.lines().filter(|line| line.contains(" groups ")).collect();
        assert_eq!(found.len(), names(2).count());
        let first = "| ResNet-18 2 x 3->64 7x7 stride 2 groups 1 on 224 | forward |";
        assert_eq!(found[0], format!("{first} 4.00 | 1.00 | 3.00 | 5.00 | 0.25 | 3.00 | 5.00 |"));
        assert!(found[1].ends_with(" | data | 1.00 | 2.00 | 2.00 | 4.00 | 2.00 | 1.00 | 2.00 |"));
        assert!(text.contains("\nTwo cores of a machine.\n"));
        assert!(text.contains(&format!("\n| data | {} | 1.25 | 2.00 | 18 |\n", names(2).count() / 3)));
    }

    #[test]
    fn a_page_is_refused_if_a_layer_is_missing_or_unknown() {
        let why = |files: &[String]| page(files, "").unwrap_err().to_string();
        let missing = why(&[file(names(2).skip(1), [1.0; 4])]);
        assert_eq!(missing, format!("no figures of {}", names(2).next().unwrap()));
        let unknown = why(&[file(names(2).chain(["ResNet-18 2 x 224, inference".into()]), [1.0; 4])]);
        assert_eq!(unknown, "not a layer of this program: ResNet-18 2 x 224, inference");
        assert_eq!(why(&[format!("{HEADER}\n\"a\",1,2,3\n")]), "not a row: \"a\",1,2,3");
    }
}
