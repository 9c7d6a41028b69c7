//! The raw tables against AMD's headers, by the C++ compiler: every signature, every constant, every struct.
//!
//! Looks for the headers of HIP, hipRTC, rocBLAS and MIOpen under `ROCM_INCLUDE`, `ROCM_PATH/include`,
//! `/opt/rocm/include` and `/usr/include`; passes, and says so, where they are not installed.
#![allow(clippy::unwrap_used)] // A test may.

use std::fmt::Write;
use std::mem::{offset_of, size_of};
use std::path::PathBuf;
use std::process::Command;

use miopen_sys::{miopenConvAlgoPerf_t, miopenConvSolution_t};

const TABLES: [&str; 4] = [
    include_str!("../hip-sys/src/hip.rs"),
    include_str!("../hip-sys/src/hiprtc.rs"),
    include_str!("../rocblas-sys/src/ffi.rs"),
    include_str!("../miopen-sys/src/ffi.rs"),
];
const TYPES: [&str; 3] = [
    include_str!("../hip-sys/src/types.rs"),
    include_str!("../rocblas-sys/src/ffi.rs"),
    include_str!("../miopen-sys/src/types.rs"),
];

/// Functions that the header names otherwise, with why.
const SKIPPED: [&str; 2] = [
    // The header makes this name a macro for the one below.
    "hipGetDeviceProperties",
    // Its struct is trimmed and has a name of its own here.
    "hipGetDevicePropertiesR0600",
];

fn include_directory() -> Option<PathBuf> {
    let root = |name: &str| std::env::var_os(name).map(PathBuf::from);
    [
        root("ROCM_INCLUDE"),
        root("ROCM_PATH").map(|root| root.join("include")),
        Some("/opt/rocm/include".into()),
        Some("/usr/include".into()),
    ]
    .into_iter()
    .flatten()
    .find(|path| path.join("miopen/miopen.h").exists() && path.join("rocblas/rocblas.h").exists())
}

/// A Rust type of the tables in C++.
fn cpp(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(inner) = rust.strip_prefix("*const ") {
        return format!("{} const*", cpp(inner));
    }
    if let Some(inner) = rust.strip_prefix("*mut ") {
        return format!("{}*", cpp(inner));
    }
    match rust {
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "c_char" => "char",
        "c_void" | "()" => "void",
        "f32" => "float",
        "f64" => "double",
        "usize" => "size_t",
        "i32" => "int32_t",
        "u32" => "uint32_t",
        "i64" => "int64_t",
        "u64" => "uint64_t",
        other => other,
    }
    .to_string()
}

/// Each `fn name(argument: type, ...) -> type;` of a table: the name and the C++ pointer that it must fit.
fn functions(source: &str) -> Vec<(String, String)> {
    let code: String =
        source.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    for item in code.split("\n            fn ").skip(1) {
        let item = &item[..item.find(';').unwrap()];
        let (name, rest) = item.split_once('(').unwrap();
        let (arguments, result) = rest.rsplit_once("->").unwrap();
        let arguments = arguments.trim().strip_suffix(')').unwrap();
        let types: Vec<String> = arguments
            .split(',')
            .filter_map(|argument| argument.split_once(':'))
            .map(|(_, rust)| cpp(rust))
            .collect();
        found.push((name.to_string(), format!("{} (*fits_{name})({})", cpp(result), types.join(", "))));
    }
    found
}

/// Every constant and its value.
fn constants(source: &str) -> Vec<(&str, &str)> {
    let enums = source.lines().filter_map(|line| {
        let (name, value) = line.strip_prefix("        ")?.strip_suffix(',')?.split_once(" = ")?;
        Some((name, value))
    });
    let single = source.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("pub const ")?.split_once(':')?;
        Some((name, rest.split_once(" = ")?.1.strip_suffix(';')?))
    });
    enums
        .chain(single)
        .filter(|(name, value)| {
            name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
                && value.chars().all(|c| c.is_ascii_hexdigit() || c == 'x' || c == '-')
        })
        .collect()
}

#[test]
fn the_tables_are_those_of_the_headers() {
    let Some(include) = include_directory() else {
        println!("skipped: AMD's headers are not installed");
        return;
    };
    let mut source = String::from(
        "#define __HIP_PLATFORM_AMD__ 1\n#define MIOPEN_BETA_API 1\n#include <cstddef>\n\
         #include <hip/hip_runtime_api.h>\n#include <hip/hiprtc.h>\n#include <rocblas/rocblas.h>\n\
         #include <miopen/miopen.h>\n",
    );
    let (mut function_count, mut constant_count) = (0, 0);
    for (name, pointer) in TABLES.into_iter().flat_map(functions) {
        if !SKIPPED.contains(&name.as_str()) {
            writeln!(source, "[[maybe_unused]] static {pointer} = &{name};").unwrap();
            function_count += 1;
        }
    }
    for (name, value) in TYPES.into_iter().flat_map(constants) {
        writeln!(source, "static_assert((long long)({name}) == {value}, \"{name}\");").unwrap();
        constant_count += 1;
    }
    // C's enums and ours: 4 bytes.
    for line in TYPES.into_iter().flat_map(str::lines) {
        if let Some(name) = line.trim().strip_prefix("pub enum ").and_then(|rest| rest.strip_suffix(" {")) {
            writeln!(source, "static_assert(sizeof({name}) == 4, \"{name}\");").unwrap();
        }
    }
    for (what, value) in [
        ("sizeof(miopenConvSolution_t)", size_of::<miopenConvSolution_t>()),
        ("offsetof(miopenConvSolution_t, time)", offset_of!(miopenConvSolution_t, time)),
        ("offsetof(miopenConvSolution_t, workspace_size)", offset_of!(miopenConvSolution_t, workspace_size)),
        ("offsetof(miopenConvSolution_t, solution_id)", offset_of!(miopenConvSolution_t, solution_id)),
        ("offsetof(miopenConvSolution_t, algorithm)", offset_of!(miopenConvSolution_t, algorithm)),
        ("sizeof(miopenConvAlgoPerf_t)", size_of::<miopenConvAlgoPerf_t>()),
        ("offsetof(miopenConvAlgoPerf_t, fwd_algo)", offset_of!(miopenConvAlgoPerf_t, algorithm)),
        ("offsetof(miopenConvAlgoPerf_t, time)", offset_of!(miopenConvAlgoPerf_t, time)),
        ("offsetof(miopenConvAlgoPerf_t, memory)", offset_of!(miopenConvAlgoPerf_t, memory)),
    ] {
        writeln!(source, "static_assert({what} == {value}, \"{what}\");").unwrap();
    }
    assert!(function_count > 100 && constant_count > 150, "{function_count} and {constant_count} were read");

    let file = std::env::temp_dir().join(format!("hip-headers-{}.cpp", std::process::id()));
    std::fs::write(&file, source).unwrap();
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let output = Command::new(&compiler)
        .args(["-std=c++17", "-fsyntax-only", "-w", "-isystem"])
        .arg(&include)
        .arg(&file)
        .output()
        .unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    println!("{function_count} functions and {constant_count} constants agree with {}", include.display());
}
