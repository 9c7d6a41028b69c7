//! Compares the raw crates (hip-sys, rocblas-sys, hipblaslt-sys, miopen-sys, rccl-sys) with AMD's
//! headers, by the C++ compiler: every signature, every struct's size and offsets, every constant and
//! its type.
//!
//! `bindings [--crates DIR] [--facts FILE] [--write] [--nccl HEADER] [INCLUDE...]`: DIR holds the
//! raw crates (`hip/`). Each INCLUDE holds the folders `hip` and, if they exist, `rocblas`,
//! `hipblaslt`, `miopen` and `rccl` of one ROCm. HEADER is NVIDIA's `nccl.h`, which rccl-sys must
//! match too. FILE (`tests/rocm/bindings.txt`) lists every item with the versions whose headers
//! agree with it, and `-` for a version that lacks it. `--write` updates the list. The crates'
//! declarations must match the list even without any headers, so that a change can't pass where
//! headers are missing.

mod cpp;
mod items;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use items::{Declared, What, declared};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The versions of ROCm whose headers are compared, one column of the list each.
const VERSIONS: [&str; 3] = ["5.7", "6.4", "7.2"];

/// The finding for an item in the headers of one version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fact {
    /// The headers agree.
    Agrees,
    /// The headers lack the item.
    Lacks,
    /// Not compared since the item changed.
    Unknown,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut crates, mut list) = (root.join("hip"), root.join("tests/rocm/bindings.txt"));
    let (mut write, mut includes, mut nccl) = (false, Vec::new(), None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().map(PathBuf::from).ok_or(format!("{argument} wants a path"));
        match argument.as_str() {
            "--crates" => crates = value()?,
            "--facts" => list = value()?,
            "--write" => write = true,
            "--nccl" => nccl = Some(value()?),
            include => includes.push(PathBuf::from(include)),
        }
    }
    let items = declared(&crates)?;
    let before = std::fs::read_to_string(&list).unwrap_or_default();
    let before =
        before.lines().filter(|line| !line.starts_with('#')).map(parse).collect::<Result<Vec<_>>>()?;
    // The known facts of each item. There are none if the list lacks the item in its present form.
    let known = |item: &Declared| {
        let text = item.text();
        before.iter().find(|(known, _)| *known == text).map_or([Fact::Unknown; 3], |(_, facts)| *facts)
    };
    let mut facts: Vec<[Fact; 3]> = items.iter().map(known).collect();

    let mut wrong = Vec::new();
    for include in &includes {
        let found = cpp::compare(include, &items)?;
        let Some(column) = VERSIONS.iter().position(|version| *version == found.version) else {
            return Err(
                format!("{}: HIP {} is none of {VERSIONS:?}", include.display(), found.version).into()
            );
        };
        for ((item, known), fact) in items.iter().zip(&mut facts).zip(&found.facts) {
            let Some(fact) = *fact else { continue };
            if known[column] != fact && !write {
                wrong.push(format!(
                    "{}: the headers say {fact:?}, the list {:?}: {}",
                    found.version,
                    known[column],
                    item.text()
                ));
            }
            known[column] = fact;
        }
        wrong.extend(found.disagree.iter().map(|what| format!("{}: {what}", found.version)));
        println!("{}: {}", found.version, found.summary);
    }

    if let Some(header) = nccl {
        let (disagree, compared) = cpp::compare_nccl(&header, &items)?;
        wrong.extend(disagree.iter().map(|what| format!("NCCL: {what}")));
        println!("NCCL: {}: {compared} items compared", header.display());
    }

    for (item, facts) in items.iter().zip(&facts) {
        if facts.contains(&Fact::Unknown) {
            wrong.push(format!("not held against every version's headers: {}", item.text()));
        }
        // The backend opens no hipBLASLt of ROCm 5.
        let opened = if item.library == "hipblaslt" { &facts[1..] } else { &facts[..] };
        if opened.contains(&Fact::Lacks) && matches!(item.what, What::Function { optional: false, .. }) {
            wrong.push(format!("a version lacks it, so it must be optional: {}", item.text()));
        }
    }
    if write {
        std::fs::write(&list, document(&items, &facts))?;
    } else if before.len() != items.len() {
        let declared: Vec<_> = items.iter().map(Declared::text).collect();
        wrong.extend(
            before
                .iter()
                .filter(|(text, _)| !declared.contains(text))
                .map(|(text, _)| format!("in the list but not in the crates: {text}")),
        );
        wrong.push(format!("the list has {} items, the crates {}", before.len(), items.len()));
    }
    let count = |wanted: fn(&What) -> bool| items.iter().filter(|item| wanted(&item.what)).count();
    println!(
        "{} items: {} functions, {} constants, {} types; all in {}",
        items.len(),
        count(|what| matches!(what, What::Function { .. })),
        count(|what| matches!(what, What::Constant { .. })),
        count(|what| !matches!(what, What::Function { .. } | What::Constant { .. })),
        list.display()
    );
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

/// One line of the list.
fn parse(line: &str) -> Result<(String, [Fact; 3])> {
    let (columns, text) = line.split_once('|').ok_or_else(|| format!("not a line of the list: {line}"))?;
    let mut facts = [Fact::Unknown; 3];
    for ((fact, column), version) in facts.iter_mut().zip(columns.split_whitespace()).zip(VERSIONS) {
        *fact = match column {
            "-" => Fact::Lacks,
            "?" => Fact::Unknown,
            column if column == version => Fact::Agrees,
            other => return Err(format!("`{other}` in the place of {version}: {line}").into()),
        };
    }
    Ok((text.trim().into(), facts))
}

fn document(items: &[Declared], facts: &[[Fact; 3]]) -> String {
    let mut text = String::from(
        "# Every item of the raw crates, and the versions of ROCm whose headers say the same; - where they lack it.\n\
         # Made by tests/rocm/bindings.sh --write, and checked by tests/rocm/bindings.sh.\n",
    );
    for (item, facts) in items.iter().zip(facts) {
        for (fact, version) in facts.iter().zip(VERSIONS) {
            let column = match fact {
                Fact::Agrees => version,
                Fact::Lacks => "-",
                Fact::Unknown => "?",
            };
            text.push_str(&format!("{column:<4}"));
        }
        text.push_str(&format!("| {}\n", item.text()));
    }
    text
}
