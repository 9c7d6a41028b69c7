//! Counts how kernels access memory, in their disassembly.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// Global memory instructions of one kernel.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Accesses {
    /// Loads of 16 bytes for each lane.
    pub(crate) wide_loads: u32,
    /// Stores of 16 bytes for each lane.
    pub(crate) wide_stores: u32,
}

/// Disassembles a code object with LLVM's tool, and counts for each symbol.
pub(crate) fn accesses_of(file: &Path) -> Result<HashMap<String, Accesses>, String> {
    let tool = "/usr/bin/llvm-objdump-22";
    let output = Command::new(tool)
        .args(["--disassemble", "--no-show-raw-insn", "--no-leading-addr"])
        .arg(file)
        .output()
        .map_err(|error| format!("{tool}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{tool}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(count(&String::from_utf8_lossy(&output.stdout)))
}

fn count(text: &str) -> HashMap<String, Accesses> {
    let mut found: HashMap<String, Accesses> = HashMap::new();
    let mut symbol = String::new();
    for line in text.lines() {
        // `<_Z4fillIjEvyT_PS0_>:`
        if let Some(name) = line.strip_prefix('<').and_then(|line| line.strip_suffix(">:")) {
            symbol = name.to_owned();
            continue;
        }
        let instruction = line.split_whitespace().next().unwrap_or_default();
        let entry = match instruction {
            "global_load_dwordx4" | "global_load_b128" | "global_store_dwordx4" | "global_store_b128" => {
                found.entry(symbol.clone()).or_default()
            }
            _ => continue,
        };
        if instruction.starts_with("global_load") {
            entry.wide_loads += 1;
        } else {
            entry.wide_stores += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_names_of_the_instructions_are_counted_for_their_kernel() {
        let text = "\nx.co:\tfile format elf64-amdgpu\n\n<_Z1av>:\n\tglobal_load_dwordx4 v[0:3], v4, s[0:1]\n\
            \tglobal_load_dword v4, v4, s[0:1]\n\tglobal_store_dwordx4 v0, v[0:3], s[2:3]\n\ts_endpgm\n\n<_Z1bv>:\n\
            \tglobal_load_b128 v[0:3], v4, s[0:1]\n\tglobal_load_b128 v[4:7], v4, s[0:1] offset:16\n\
            \tglobal_store_b64 v0, v[0:1], s[2:3]\n\n<_Z1cv>:\n\ts_endpgm\n";
        let found = count(text);
        assert_eq!(found["_Z1av"], Accesses { wide_loads: 1, wide_stores: 1 });
        assert_eq!(found["_Z1bv"], Accesses { wide_loads: 2, wide_stores: 0 });
        assert!(!found.contains_key("_Z1cv"));
    }
}
