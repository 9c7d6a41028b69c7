//! The doctor on imitations of machines: folders with the files that it reads, each broken in one
//! way. Every finding of Linux occurs, and a healthy machine has none. `hip/src/doctor/windows.rs`
//! tests those of Windows.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use hip::Finding;
use hip::doctor::{CHECKS, Check};
use serde_json::Value;

mod cases;
mod imitation;
use cases::{CASES, ONE};
use imitation::Imitation;

#[test]
fn each_imitation_has_its_findings_and_no_others() {
    let mut seen = BTreeSet::new();
    for (name, gpus, damage, expected) in CASES {
        let mut machine = Imitation::healthy(gpus);
        damage(&mut machine);
        let findings = machine.findings();
        let codes: Vec<_> = findings.iter().map(|found| found.code).collect();
        let expected_codes: Vec<_> = expected.iter().map(|(code, ..)| *code).collect();
        assert_eq!(codes, expected_codes, "{name}: {findings:#?}");
        for (found, (_, what, mend)) in findings.iter().zip(*expected) {
            let gid = machine.gid.to_string();
            let (what, mend) = (what.replace("GID", &gid), mend.replace("GID", &gid));
            assert!(found.what.contains(&what), "{name}: `{what}` is not in `{}`", found.what);
            assert!(found.mend[0].starts_with(&mend), "{name}: `{mend}` does not begin {:?}", found.mend);
            assert!(!found.mend.iter().any(|line| line.contains('{')), "{name}: {:?}", found.mend);
        }
        seen.extend(codes);
    }
    let linux = CHECKS.iter().map(|check| check.code).filter(|code| !code.starts_with("windows"));
    assert_eq!(seen, linux.collect(), "each finding has an imitation");
}

#[test]
fn findings_can_be_read_back_from_json() {
    let mut machine = Imitation::healthy(ONE);
    machine.set("HSA_OVERRIDE_GFX_VERSION", "\"ä\\\n\"");
    machine.mode("dev/kfd", 0o600);
    let findings = machine.findings();
    assert_eq!(findings.len(), 2);
    for found in findings {
        let read: Value = serde_json::from_str(&found.to_json()).unwrap();
        let expected = serde_json::json!({
            "code": found.code,
            "severity": found.severity.name(),
            "what": found.what,
            "why": found.why,
            "mend": found.mend,
        });
        assert_eq!(read, expected);
    }
}

#[test]
fn the_whole_report_can_be_read_back_from_json() {
    let report: Value = serde_json::from_str(&hip::report_json()).unwrap();
    let provider = hip::provider().unwrap();
    assert_eq!(report["provider"], provider.kind().name());
    assert_eq!(report["error"], Value::Null);
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    let codes = |findings: &[Finding]| findings.iter().map(|found| found.code).collect::<Vec<_>>();
    let read: Vec<_> = report["findings"].as_array().unwrap().iter().map(|found| &found["code"]).collect();
    assert_eq!(read, codes(&hip::doctor()));
    let providers = report["providers"].as_array().unwrap();
    assert_eq!(providers.len(), hip::survey().len());
    for (read, expected) in providers.iter().zip(hip::survey()) {
        assert_eq!(read["provider"], expected.kind.name());
        assert_eq!(read["error"].is_null(), expected.error.is_none());
        let titles: Vec<_> = read["libraries"].as_array().unwrap().iter().map(|one| &one["title"]).collect();
        assert_eq!(titles, expected.libraries.iter().map(|one| one.title).collect::<Vec<_>>());
        let devices = read["devices"].as_array().unwrap();
        assert_eq!(devices.len(), expected.devices.len());
        for (read, (info, _)) in devices.iter().zip(&expected.devices) {
            assert_eq!(read["name"], info.name.as_str());
            assert_eq!(read["arch"], info.arch.as_str());
            assert_eq!(read["total_memory"], info.total_memory);
            assert_eq!(read["warp_size"], info.warp_size);
        }
    }
}

#[test]
fn the_guide_lists_each_finding() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/doctor.md");
    let guide = fs::read_to_string(guide).unwrap();
    let rows: Vec<_> = guide.lines().filter(|line| line.starts_with("| `")).collect();
    let cell = |text: &str| text.replace('|', "\\|");
    let mend = |line: &&str| match line.strip_prefix("# ") {
        Some(words) => cell(words).replace('<', "\\<"),
        None => format!("`{}`", cell(line)),
    };
    let row = |check: &Check| {
        let mend: Vec<_> = check.mend.iter().map(mend).collect();
        format!("| `{}` | {} | {} | {} |", check.code, check.severity, cell(check.why), mend.join("<br>"))
    };
    let expected: Vec<_> = CHECKS.iter().map(row).collect();
    assert!(rows == expected, "docs/guide/doctor.md should have these rows:\n{}", expected.join("\n"));
}
