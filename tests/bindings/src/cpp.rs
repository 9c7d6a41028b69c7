//! Checks the items by static assertions in C++, compiled against the headers of one ROCm.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::items::{Declared, What, cpp};
use crate::{Fact, Result};

/// The findings for the headers of one ROCm.
pub(crate) struct Found {
    /// HIP's version, such as `7.2`.
    pub(crate) version: String,
    /// One for each item; `None` if the library's headers are absent.
    pub(crate) facts: Vec<Option<Fact>>,
    /// The assertions that failed.
    pub(crate) disagree: Vec<String>,
    /// The number of comparisons, in words.
    pub(crate) summary: String,
}

/// The headers of each library, in an include folder.
const HEADERS: [(&str, &[&str]); 5] = [
    ("hip", &["hip/hip_runtime_api.h", "hip/hiprtc.h"]),
    ("rocblas", &["rocblas/rocblas.h"]),
    ("hipblaslt", &["hipblaslt/hipblaslt.h"]),
    ("miopen", &["miopen/miopen.h"]),
    ("rccl", &["rccl/rccl.h"]),
];

/// The rocBLAS of each ROCm. Debian 13 has rocBLAS 5.5 beside HIP 5.7; its headers are not
/// compared.
const ROCBLAS: [(&str, &str); 3] = [("5.7", "3.1"), ("6.4", "4.4"), ("7.2", "5.2")];

/// Folders that a library's headers include besides its own.
const COMPANIONS: [&str; 2] = ["hipblas-common", "hipblas"];

/// The hipBLASLt beside each HIP. That of ROCm 6.2 stands for 6.4. The backend opens none of ROCm 5,
/// whose data types have other values.
const HIPBLASLT: [(&str, &str); 2] = [("6.4", "0.8"), ("7.2", "1.2")];

/// The RCCL beside each HIP, as its version of NCCL. Debian has RCCL 5.4 beside HIP 5.7 and 6.4.
const RCCL: [(&str, &str); 3] = [("5.7", "2.13"), ("6.4", "2.13"), ("7.2", "2.27")];

/// What NVIDIA's header needs of CUDA's.
const CUDA: [(&str, &str); 4] =
    [("cuda_runtime.h", CUDA_TYPES), ("cuda_fp16.h", ""), ("cuda_bf16.h", ""), ("cuda_fp8.h", "")];

const CUDA_TYPES: &str = "
#include <cstddef>
#define CUDART_VERSION 10000
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
";

/// HIP 6 changed the layout of the device properties. In the headers, the function of the old
/// layout got another name. Its symbol stayed.
const OLD_PROPERTIES: (&str, &str, &str) =
    ("hipGetDeviceProperties", "hipGetDevicePropertiesR0000", "hip/hip_deprecated.h");
/// The name of the old layout before the new one existed.
const OLD_STRUCT: (&str, &str) = ("hipDeviceProp_tR0000", "hipDeviceProp_t");
/// Arrays of texts that are `const` in the headers since HIP 7. Callers see no difference.
const SINCE_7: (&[&str], &str, &str) =
    (&["hiprtcCreateProgram", "hiprtcCompileProgram"], "char const* const*", "char const**");
/// Fields that stand for unused fields. Only the offsets of the other fields and the size are
/// checked.
const TRIMMED: [&str; 2] = ["before", "after"];
/// In C an unnamed union in this struct; here a type, and a field of that type.
const UNNAMED: (&str, &str, &str) = ("miopenConvAlgoPerf_algorithm", "miopenConvAlgoPerf_t", "algorithm");

const TEMPLATES: &str = "
#include <cstddef>
#include <cstdint>
#include <type_traits>
// Another name of a type or, for an enum, of the integer that represents it.
template <class Theirs, class Ours> constexpr bool alias() {
    if constexpr (std::is_enum_v<Theirs>) return std::is_same_v<std::underlying_type_t<Theirs>, Ours>;
    else return std::is_same_v<Theirs, Ours>;
}
// A constant that is declared with an enum's type has that type.
template <class Theirs, class Ours> constexpr bool constant() {
    return !std::is_enum_v<Ours> || std::is_same_v<Theirs, Ours>;
}
template <class T> constexpr bool enumeration() { return std::is_enum_v<T> && sizeof(T) == 4 && alignof(T) == 4; }
";

/// Compares every item whose library has headers under `include` with these headers.
pub(crate) fn compare(include: &Path, items: &[Declared]) -> Result<Found> {
    let mut there: Vec<_> =
        HEADERS.into_iter().filter(|(_, headers)| include.join(headers[0]).exists()).collect();
    if !there.iter().any(|(library, _)| *library == "hip") {
        return Err(format!("{} has no hip/hip_runtime_api.h", include.display()).into());
    }
    // Without the overloads for C++, a function is one symbol. MIOpen declares its beta API only on
    // request.
    let mut prelude = String::from(
        "#define __HIP_PLATFORM_AMD__ 1\n#define __HIP_DISABLE_CPP_FUNCTIONS__ 1\n#define MIOPEN_BETA_API 1\n\
         #define ROCBLAS_BETA_FEATURES_API 1\n",
    );
    for header in there.iter().flat_map(|(_, headers)| *headers) {
        writeln!(prelude, "#include <{header}>")?;
    }
    let (old, named, deprecated) = OLD_PROPERTIES;
    if include.join(deprecated).exists() {
        writeln!(prelude, "#include <{deprecated}>\n#undef {old}\n#define {old} {named}")?;
    }
    let text = preprocessed(include, &prelude)?;
    let names: HashSet<&str> = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let define = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
        line.map(str::trim).map(str::to_owned).ok_or(format!("the headers do not define {name}"))
    };
    let version = format!("{}.{}", define("HIP_VERSION_MAJOR")?, define("HIP_VERSION_MINOR")?);
    let old_texts = define("HIP_VERSION_MAJOR")?.parse::<u32>()? < 7;
    let mut source = prelude.clone();
    if !names.contains(OLD_STRUCT.0) {
        writeln!(source, "using {} = {};", OLD_STRUCT.0, OLD_STRUCT.1)?;
    }
    source.push_str(TEMPLATES);

    if there.iter().any(|(library, _)| *library == "rocblas") {
        let found = format!("{}.{}", define("ROCBLAS_VERSION_MAJOR")?, define("ROCBLAS_VERSION_MINOR")?);
        if !ROCBLAS.contains(&(&version, &found)) {
            there.retain(|(library, _)| *library != "rocblas");
        }
    }
    if there.iter().any(|(library, _)| *library == "rccl") {
        let found = format!("{}.{}", define("NCCL_MAJOR")?, define("NCCL_MINOR")?);
        if !RCCL.contains(&(&version, &found)) {
            return Err(format!("{}: RCCL {found} beside HIP {version}", include.display()).into());
        }
    }
    if there.iter().any(|(library, _)| *library == "hipblaslt") {
        let (major, minor) = (define("HIPBLASLT_VERSION_MAJOR")?, define("HIPBLASLT_VERSION_MINOR")?);
        if !HIPBLASLT.contains(&(&version, &format!("{major}.{minor}"))) {
            return Err(
                format!("{}: hipBLASLt {major}.{minor} beside HIP {version}", include.display()).into()
            );
        }
    }
    let mut facts = Vec::new();
    let (mut compared, mut lacking, mut elsewhere) = (0, 0, 0);
    for item in items {
        let fact = if item.library == "hipblaslt" && !HIPBLASLT.iter().any(|(hip, _)| *hip == version) {
            lacking += 1;
            Some(Fact::Lacks)
        } else if !there.iter().any(|(library, _)| *library == item.library) {
            elsewhere += 1;
            None
        } else if !names.contains(item.name.as_str()) && item.name != OLD_STRUCT.0 && item.name != UNNAMED.0 {
            lacking += 1;
            Some(Fact::Lacks)
        } else {
            compared += 1;
            assert(&mut source, item, old_texts)?;
            Some(Fact::Agrees)
        };
        facts.push(fact);
    }
    // Every item must have exactly one assertion that contains its text.
    let asserted: HashSet<&str> =
        source.lines().filter_map(|line| line.split_once(", \"")?.1.strip_suffix("\");")).collect();
    if asserted.len() != compared || compared + lacking + elsewhere != items.len() {
        return Err(
            format!("{} assertions, {compared} of {} items compared", asserted.len(), items.len()).into()
        );
    }
    let disagree = disagreements(&compiled(include, &source, &["-fsyntax-only", "-fmax-errors=0"])?);
    let libraries: Vec<_> = there.iter().map(|(library, _)| *library).collect();
    let summary = format!(
        "{} ({}): {compared} items compared, {lacking} not in its headers, {elsewhere} of libraries that are not there",
        include.display(),
        libraries.join(", ")
    );
    Ok(Found { version, facts, disagree, summary })
}

/// Compares RCCL's items with NVIDIA's header, `nccl.h`, because `libnccl` fills the same table.
/// Returns the assertions that failed, and the number of comparisons.
pub(crate) fn compare_nccl(header: &Path, items: &[Declared]) -> Result<(Vec<String>, usize)> {
    let scratch = std::env::temp_dir().join(format!("burn-rocm-nccl-{}", std::process::id()));
    // A folder as the other function takes it: its part `rccl` has the header and CUDA's.
    let folder = scratch.join("rccl");
    std::fs::create_dir_all(&folder)?;
    let copied = std::fs::copy(header, folder.join("nccl.h"));
    copied.map_err(|error| format!("{}: {error}", header.display()))?;
    for (name, text) in CUDA {
        std::fs::write(folder.join(name), text)?;
    }
    let mut source = String::from("#include <rccl/nccl.h>\nusing hipStream_t = cudaStream_t;\n");
    source.push_str(TEMPLATES);
    let mut compared = 0;
    for item in items.iter().filter(|item| item.library == "rccl") {
        assert(&mut source, item, false)?;
        compared += 1;
    }
    let folder = folder.display().to_string();
    let output = compiled(&scratch, &source, &["-fsyntax-only", "-fmax-errors=0", "-I", &folder]);
    std::fs::remove_dir_all(&scratch)?;
    Ok((disagreements(&output?), compared))
}

/// The errors that a compiler's output names.
fn disagreements(output: &Output) -> Vec<String> {
    let messages = String::from_utf8_lossy(&output.stderr);
    let mut disagree: Vec<String> =
        messages.lines().filter_map(|line| Some(line.split_once("error: ")?.1.to_owned())).collect();
    disagree.dedup();
    if !output.status.success() && disagree.is_empty() {
        disagree.push(messages.into_owned());
    }
    disagree
}

/// The assertions of one item. Each contains the item's text.
fn assert(source: &mut String, item: &Declared, old_texts: bool) -> Result<()> {
    let (name, text) = (&item.name, item.text());
    let mut holds = |condition: String| writeln!(source, "static_assert({condition}, \"{text}\");");
    match &item.what {
        What::Function { arguments, result, .. } => {
            let mut arguments = arguments.join(", ");
            let (functions, since, before) = SINCE_7;
            if old_texts && functions.contains(&name.as_str()) {
                arguments = arguments.replace(since, before);
            }
            holds(format!("std::is_same_v<decltype(&{name}), {result} (*)({arguments})>"))?;
        }
        What::Constant { of, value } => {
            holds(format!("(long long)({name}) == {value} && constant<decltype({name}), {of}>()"))?;
        }
        What::Enum => holds(format!("enumeration<{name}>()"))?,
        What::Alias(to) => holds(format!("alias<{name}, {to}>()"))?,
        What::Opaque => holds(format!("std::is_class_v<{name}>"))?,
        What::Record { union, align, fields } => {
            let kind = if *union { "union" } else { "struct" };
            let align = align.as_ref().map_or(String::new(), |align| format!("alignas({align}) "));
            write!(source, "namespace ours {{ {kind} {align}{name} {{")?;
            for (field, ty) in fields {
                let ty = cpp(ty);
                let (ty, length) = ty.split_at(ty.find('[').unwrap_or(ty.len()));
                write!(source, " {ty} {field}{length};")?;
            }
            writeln!(source, " }}; }}")?;
            let mut holds = |condition: String| writeln!(source, "static_assert({condition}, \"{text}\");");
            if name == UNNAMED.0 {
                // The offset of the field after the union, which the struct's own assertions check,
                // gives the union's size. The struct comes later.
                for (field, ty) in fields {
                    holds(format!("std::is_same_v<decltype({}::{field}), {}>", UNNAMED.1, cpp(ty)))?;
                    holds(format!("offsetof({}, {field}) == 0 && sizeof(ours::{name}) == 4", UNNAMED.1))?;
                }
                return Ok(());
            }
            holds(format!(
                "sizeof({name}) == sizeof(ours::{name}) && alignof({name}) == alignof(ours::{name})"
            ))?;
            for (field, ty) in fields {
                if TRIMMED.contains(&field.as_str()) {
                    continue;
                }
                if (name.as_str(), field.as_str()) == (UNNAMED.1, UNNAMED.2) {
                    holds(format!("offsetof(ours::{name}, {field}) == 0"))?;
                    continue;
                }
                holds(format!("offsetof({name}, {field}) == offsetof(ours::{name}, {field})"))?;
                holds(format!("std::is_same_v<decltype({name}::{field}), {}>", cpp(ty)))?;
            }
        }
    }
    Ok(())
}

/// The headers' text after preprocessing, with their definitions.
fn preprocessed(include: &Path, prelude: &str) -> Result<String> {
    let output = compiled(include, prelude, &["-E", "-dD"])?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs the host's C++ compiler on a text. It sees only the folders of the libraries, because the
/// rest of a root has another C library.
fn compiled(include: &Path, source: &str, flags: &[&str]) -> Result<Output> {
    let scratch = std::env::temp_dir().join(format!("burn-rocm-bindings-{}", std::process::id()));
    let shown = scratch.join("include");
    std::fs::create_dir_all(&shown)?;
    for library in HEADERS.iter().map(|(library, _)| *library).chain(COMPANIONS) {
        let (from, to) = (include.canonicalize()?.join(library), shown.join(library));
        if from.exists() {
            std::os::unix::fs::symlink(from, to)?;
        }
    }
    let file = scratch.join("bindings.cpp");
    std::fs::write(&file, source)?;
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let output = Command::new(&compiler)
        .args(["-std=c++17", "-w", "-Winvalid-offsetof", "-isystem"])
        .arg(&shown)
        .args(flags)
        .arg(&file)
        .output();
    std::fs::remove_dir_all(&scratch)?;
    Ok(output.map_err(|error| format!("{compiler}: {error}"))?)
}
