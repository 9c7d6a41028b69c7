//! Counts instructions in the disassembly of kernels.

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

/// Disassembles a code object with LLVM's tool.
pub(crate) fn disassembly(file: &Path) -> Result<String, String> {
    let tool = "/usr/bin/llvm-objdump-22";
    let output = Command::new(tool)
        .args(["--disassemble", "--no-show-raw-insn", "--no-leading-addr"])
        .arg(file)
        .output()
        .map_err(|error| format!("{tool}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{tool}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Calls `each` with the symbol and the name of each instruction. RDNA 3 puts two into one line.
fn for_each_instruction<'a>(text: &'a str, mut each: impl FnMut(&'a str, &'a str)) {
    let mut symbol = "";
    for line in text.lines() {
        // `<_Z4fillIjEvyT_PS0_>:`
        if let Some(name) = line.strip_prefix('<').and_then(|line| line.strip_suffix(">:")) {
            symbol = name;
            continue;
        }
        let names = line.split("::").filter_map(|part| part.split_whitespace().next());
        names.for_each(|instruction| each(symbol, instruction));
    }
}

/// The accesses of each symbol.
pub(crate) fn accesses(text: &str) -> HashMap<String, Accesses> {
    let mut found: HashMap<String, Accesses> = HashMap::new();
    for_each_instruction(text, |symbol, instruction| match instruction {
        "global_load_dwordx4" | "global_load_b128" => {
            found.entry(symbol.to_owned()).or_default().wide_loads += 1;
        }
        "global_store_dwordx4" | "global_store_b128" => {
            found.entry(symbol.to_owned()).or_default().wide_stores += 1;
        }
        _ => {}
    });
    found
}

/// How many products each symbol adds to a float without rounding the product. Those of divisions and
/// of functions such as exp count too.
pub(crate) fn fused(text: &str) -> HashMap<String, u32> {
    let mut found: HashMap<String, u32> = HashMap::new();
    for_each_instruction(text, |symbol, instruction| {
        let name = instruction.split_once('_').map_or("", |(_unit, name)| name);
        let (name, products) = match name.strip_prefix("pk_") {
            Some(name) => (name, 2),
            None => (name.strip_prefix("dual_").unwrap_or(name), 1),
        };
        // v_mad_u64_u32 and such are of integers.
        let starts = ["fma", "mad_f", "mad_mix", "madak", "madmk", "mac_f"];
        if starts.iter().any(|start| name.starts_with(start)) {
            *found.entry(symbol.to_owned()).or_default() += products;
        }
    });
    found
}

/// How many products of tiles each symbol has on matrix cores: MFMA of CDNA, WMMA of RDNA 3 and 4.
pub(crate) fn matrix_products(text: &str) -> HashMap<String, u32> {
    let mut found: HashMap<String, u32> = HashMap::new();
    for_each_instruction(text, |symbol, instruction| {
        if instruction.starts_with("v_mfma_") || instruction.starts_with("v_wmma_") {
            *found.entry(symbol.to_owned()).or_default() += 1;
        }
    });
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
        let found = accesses(text);
        assert_eq!(found["_Z1av"], Accesses { wide_loads: 1, wide_stores: 1 });
        assert_eq!(found["_Z1bv"], Accesses { wide_loads: 2, wide_stores: 0 });
        assert!(!found.contains_key("_Z1cv"));
    }

    #[test]
    fn fused_products_are_counted_and_other_instructions_are_not() {
        let text = "<_Z1av>:\n\tv_fma_f32 v0, v1, v2, v3\n\tv_fmac_f32_e32 v0, v1, v2\n\
            \tv_pk_fma_f16 v0, v1, v2, v3\n\tv_fma_mixlo_f16 v0, v1, v2, v3\n\tv_mul_f32_e32 v0, v1, v2\n\
            \tv_div_fmas_f32 v0, v1, v2, v3\n\tv_mad_u64_u32 v[0:1], s0, v2, v3, v[4:5]\n\
            \tv_mad_i32_i24 v0, v1, v2, v3\n\ts_fmac_f32 s0, s1, s2\n\tv_mac_f32_e32 v0, v1, v2\n\n<_Z1bv>:\n\
            \tv_dual_fmac_f32 v0, v1, v2 :: v_dual_mul_f32 v3, v4, v5\n\
            \tv_dual_mul_f32 v0, v1, v2 :: v_dual_fmac_f32 v3, v4, v5\n\n<_Z1cv>:\n\ts_endpgm\n";
        let found = fused(text);
        assert_eq!((found["_Z1av"], found["_Z1bv"]), (7, 2));
        assert!(!found.contains_key("_Z1cv"));
    }
    #[test]
    fn products_of_both_kinds_of_matrix_cores_are_counted() {
        let text = "<_Z1av>:\n\tv_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], v[0:3]\n\
            \tv_mfma_f32_16x16x8bf16 a[0:3], v4, v5, a[0:3]\n\tv_accvgpr_read_b32 v0, a0\n\ts_endpgm\n\n\
            <_Z1bv>:\n\tv_wmma_f32_16x16x16_bf16 v[0:7], v[8:15], v[16:23], v[0:7]\n\n\
            <_Z1cv>:\n\tv_fma_f32 v0, v1, v2, v3\n\ts_endpgm\n";
        let found = matrix_products(text);
        assert_eq!((found["_Z1av"], found["_Z1bv"]), (2, 1));
        assert!(!found.contains_key("_Z1cv"));
    }
}
