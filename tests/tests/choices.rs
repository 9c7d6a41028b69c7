//! The table of defaults by architecture: the guide has it, each constant that it names stands where
//! it says, and a device looks up its own.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use hip::defaults::{Defaults, FIXED, Family, ROWS, Source};
use hip::{Device, ProviderKind};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The rows of the guide's table whose header begins with these cells.
fn table(header: &str) -> Vec<String> {
    let guide = fs::read_to_string(root().join("docs/guide/tuning.md")).unwrap();
    let mut lines = guide.lines().skip_while(|line| !line.starts_with(header));
    assert!(lines.next().is_some(), "no table `{header}`");
    lines.skip(1).take_while(|line| line.starts_with('|')).map(str::to_owned).collect()
}

#[test]
fn the_guide_has_the_defaults_that_devices_look_up() {
    let rows: Vec<String> = ROWS
        .iter()
        .map(|row| {
            let values = Family::ALL.map(|family| (row.value)(family).to_string()).join(" | ");
            format!("| `{}` | {values} | {} | {} |", row.name, row.meaning, row.source)
        })
        .collect();
    assert_eq!(table("| default | CDNA"), rows);
}

#[test]
fn the_guide_has_the_constants_that_stand_in_one_file() {
    let rows: Vec<String> = FIXED
        .iter()
        .map(|one| {
            format!("| `{}` | `{} = {}` | {} | {} |", one.file, one.name, one.value, one.meaning, one.source)
        })
        .collect();
    assert_eq!(table("| file | constant"), rows);
}

/// Whether a source declares the constant with this value: `NAME = value` or `NAME: type = value`.
fn declares(source: &str, name: &str, value: &str) -> bool {
    source.match_indices(name).any(|(at, _)| {
        let word = |letter: char| letter.is_alphanumeric() || letter == '_';
        let rest = &source[at + name.len()..];
        let (before, declared) = match rest.split_once('=') {
            Some((before, declared)) => (before.trim(), declared.trim_start()),
            None => return false,
        };
        let typed = before.is_empty() || before.strip_prefix(": ").is_some_and(|ty| ty.chars().all(word));
        let ends = |rest: &str| rest.starts_with([',', ';', ' ', '\n']);
        !source[..at].ends_with(word) && typed && declared.strip_prefix(value).is_some_and(ends)
    })
}

#[test]
fn each_constant_stands_where_the_table_says() {
    for one in FIXED {
        let source = fs::read_to_string(root().join(one.file)).unwrap();
        assert!(
            declares(&source, one.name, one.value),
            "{} does not declare {} = {}",
            one.file,
            one.name,
            one.value
        );
    }
    assert!(declares("const A: usize = 1 << 3;", "A", "1 << 3"));
    for wrong in ["const AB: usize = 1;", "const A: usize = 12;", "A == 1;", "BA = 1;"] {
        assert!(!declares(wrong, "A", "1"), "{wrong}");
    }
    let places: BTreeSet<_> = FIXED.iter().map(|one| (one.file, one.name)).collect();
    assert_eq!(places.len(), FIXED.len(), "each once");
}

/// No AMD GPU has measured anything yet, so a source that says so would be wrong.
#[test]
fn no_source_claims_an_amd_gpu() {
    for source in ROWS.iter().map(|row| row.source).chain(FIXED.iter().map(|one| one.source)) {
        if let Source::Measured(on) | Source::Modelled { measured: on, .. } = source {
            assert!(on.contains("H200") || on.contains("Xeon"), "{on}");
        }
    }
    for row in ROWS {
        let amd = [Family::Cdna, Family::Cdna3, Family::Rdna2, Family::Rdna3].map(row.value);
        let differs = amd.iter().any(|value| *value != amd[0]);
        let is_modelled = matches!(row.source, Source::Modelled { .. });
        assert_eq!(differs, is_modelled, "{} differs without a source, or its source is not used", row.name);
    }
}

#[test]
fn a_device_looks_up_its_own() {
    let device = Device::get(0).unwrap();
    let family = Family::of(device.info());
    assert_eq!(*device.defaults(), Defaults::of(family));
    match hip::provider().unwrap().kind() {
        ProviderKind::Cpu if device.info().max_threads_per_block == 1 => assert_eq!(family, Family::Cpu),
        ProviderKind::Cuda => assert_eq!(family, Family::Nvidia),
        ProviderKind::Rocm => assert!(!matches!(family, Family::Nvidia | Family::Cpu)),
        ProviderKind::Cpu => {}
    }
    let named = |arch: &str| {
        let threads = 1024;
        let info =
            hip::DeviceInfo { arch: arch.into(), max_threads_per_block: threads, ..device.info().clone() };
        Family::of(&info)
    };
    if family != Family::Nvidia {
        assert_eq!(named("gfx90a:sramecc+:xnack-"), Family::Cdna);
        assert_eq!(named("gfx942:sramecc+:xnack-"), Family::Cdna3);
        assert_eq!(named("gfx950"), Family::Cdna3);
        assert_eq!(named("gfx1030"), Family::Rdna2);
        assert_eq!(named("gfx1100"), Family::Rdna3);
        assert_eq!(named("gfx1201"), Family::Rdna3);
        assert_eq!(named("gfx2000"), Family::Rdna3, "nobody listed it");
    }
}
