//! Builds every kernel of `hip-kernels` with the host's C++ compiler, and writes the table by which
//! `src/kernels.rs` finds them. The kernels are built for the newest instruction set of this
//! machine or, with the feature `portable`, for each. When it builds for another machine, it builds
//! them for each too, unless `BURN_ROCM_CPU_BUILD_ISA` names the only one to build.
//! `HIP_CPU_ADDITIONS` becomes a hash of what the run-time compiler adds to every program.

use std::{
    env,
    fmt::Write as _,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
};

/// The compiler flags of the kernels, which the run-time compiler shares.
mod flags {
    include!("src/flags.rs");
}

/// The families whose kernels take g++ longest.
const LONGEST: [&str; 6] = ["sort", "binary", "reduce", "unary", "loss", "decode"];

/// The variable that names the only instruction set to build, for checks that run on one machine.
const ONLY: &str = "BURN_ROCM_CPU_BUILD_ISA";

/// What the run-time compiler adds to every program: headers, flags and the text around the source.
const ADDITIONS: [&str; 5] = [
    "device/hip_cpu.h",
    "device/hip_cpu_program.h",
    "device/hip_cpu_table.h",
    "src/flags.rs",
    "src/compiler.rs",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=device");
    println!("cargo::rerun-if-env-changed={ONLY}");
    let mut additions = DefaultHasher::new();
    for path in ADDITIONS {
        println!("cargo::rerun-if-changed={path}");
        fs::read_to_string(path).unwrap_or_default().hash(&mut additions);
    }
    println!("cargo::rustc-env=HIP_CPU_ADDITIONS={:016x}", additions.finish());
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let out = Path::new(&out);
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
    let windows = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "windows");
    // Outside this package's own folder, so that builds with other features share the objects. With other
    // flags they lie elsewhere, so that neither build replaces the other's.
    let mut folder = String::from("hip-cpu-kernels");
    if let Some(flags) = env::var_os("CXXFLAGS").filter(|flags| !flags.is_empty()) {
        let mut hasher = DefaultHasher::new();
        flags.hash(&mut hasher);
        let _ = write!(folder, "-{:016x}", hasher.finish());
    }
    let objects = out.ancestors().nth(2).unwrap_or(out).join(folder);
    let include = objects.join("include");
    fs::create_dir_all(&include).expect("the target folder is writable");
    for (name, text) in hip_kernels::HEADERS {
        write(&include.join(name), text);
    }
    if let Err(reason) = compiler_works() {
        println!(
            "cargo::error=no working C++ compiler ({reason}): install one (Debian, Ubuntu: g++ or build-essential; \
             or point CXX at it), or turn off the feature `cpu`"
        );
        // That line makes Cargo fail and show only its message.
        return;
    }

    println!("cargo::rustc-check-cfg=cfg(lockstep)");
    let mut isas = flags::isas(&arch).to_vec();
    let only = env::var(ONLY).ok().filter(|only| !only.is_empty());
    let here = env::var_os("TARGET") == env::var_os("HOST");
    if let Some(only) = only {
        isas.retain(|isa| isa.name == only);
        if isas.is_empty() {
            println!("cargo::error={ONLY}={only} is no instruction set of {arch}");
            return;
        }
    } else if here && env::var_os("CARGO_FEATURE_PORTABLE").is_none() {
        // For this machine only, because each instruction set takes minutes of processor time.
        let newest = isas.iter().rposition(|isa| flags::cpu_has(isa.name)).unwrap_or(0);
        isas = vec![isas[newest]];
    }
    if env::var_os("CARGO_FEATURE_LOCKSTEP").is_some()
        && flags::LOCKSTEP_ARCHITECTURES.contains(&arch.as_str())
        // Of Windows's contexts, the trap's handler knows only this one.
        && (!windows || arch == "x86_64")
    {
        println!("cargo::rustc-cfg=lockstep");
        isas.push(flags::LOCKSTEP);
    }
    let mut declarations = String::new();
    let mut tables = String::new();
    for isa in &isas {
        let _ = writeln!(tables, "    Isa {{ name: {:?}, families: &[", isa.name);
        let mut units = Vec::new();
        for family in hip_kernels::families() {
            let symbol = format!("hip_cpu_{}_{}", isa.name, family.name);
            units.push((objects.join(format!("{symbol}.cpp")), translation_unit(family, &symbol)));
            let _ = writeln!(declarations, "    static {symbol}: Table;");
            let _ = writeln!(tables, "        ({:?}, &raw const {symbol}),", family.name);
        }
        tables.push_str("    ] },\n");
        // The families that take longest begin first, so that no core is left without work at the end.
        units.sort_by_key(|(source, _)| {
            !LONGEST.iter().any(|name| source.ends_with(format!("hip_cpu_{}_{name}.cpp", isa.name)))
        });
        compile(isa, units, &objects, windows);
    }
    write(
        &out.join("tables.rs"),
        &format!(
            "#[allow(non_upper_case_globals)]\nunsafe extern \"C\" {{\n{declarations}}}\n\
             pub(crate) static ISAS: &[Isa] = &[\n{tables}];\n"
        ),
    );
    if env::var("CARGO_CFG_TARGET_FAMILY").is_ok_and(|family| family.contains("unix")) {
        println!("cargo::rustc-link-lib=m");
    }
}

/// Compiles the changed translation units of one instruction set in parallel, and links all its
/// units into a library.
fn compile(isa: &flags::IsaFlags, units: Vec<(PathBuf, String)>, objects: &Path, windows: bool) {
    let mut build = cc::Build::new();
    // The kernels use nothing of the C++ library.
    build.cpp(true).cpp_link_stdlib(None).std("c++17").warnings(false).debug(false);
    build.include("device").flag("-iquote").flag(objects.join("include")).out_dir(objects);
    // The flags below name the level and the instruction set. Cargo's level, which differs between
    // profiles, would only make each profile compile objects of its own. rustc's flags, such as
    // `-C target-cpu=native`, would become the compiler's and apply to each instruction set.
    build.opt_level(2).inherit_rustflags(false);
    for flag in flags::of(isa) {
        build.flag(flag);
    }
    for flag in flags::if_known(windows) {
        build.flag_if_supported(flag);
    }
    let mut library = cc::Build::new();
    let mut stale = Vec::new();
    for (source, text) in units {
        let stamp = stamp(&build, &text, objects);
        let made = fs::read_to_string(source.with_extension("stamp")).unwrap_or_default();
        match made.split_once('\n') {
            Some((old, object)) if old == stamp && objects.join(object).exists() => {
                library.object(objects.join(object));
            }
            _ => {
                write(&source, &text);
                build.file(&source);
                stale.push((source, stamp));
            }
        }
    }
    if !stale.is_empty() {
        for ((source, stamp), object) in stale.iter().zip(build.compile_intermediates()) {
            let name = object.file_name().unwrap_or_default().to_string_lossy();
            write(&source.with_extension("stamp"), &format!("{stamp}\n{name}"));
            library.object(object);
        }
    }
    library.cpp(true).cpp_link_stdlib(None).compile(&format!("hip_cpu_{}", isa.name));
}

/// The texts of the kernels' headers that a source includes, directly or indirectly.
fn read_by(text: &str) -> Vec<&'static str> {
    let mut headers: Vec<&'static str> = Vec::new();
    let includes = |text: &str, name: &str| text.contains(&format!("#include \"{name}\""));
    loop {
        let next = hip_kernels::HEADERS.iter().find(|(name, body)| {
            !headers.contains(body)
                && (includes(text, name) || headers.iter().any(|header| includes(header, name)))
        });
        match next {
            Some((_, body)) => headers.push(body),
            None => return headers,
        }
    }
}

/// A hash of everything that an object is made from: the compiler, its flags and the texts that it
/// reads. The target folder's path is left out, so that a folder that was moved or restored from a
/// cache keeps its objects.
fn stamp(build: &cc::Build, text: &str, objects: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    read_by(text).hash(&mut hasher);
    for header in ["device/hip_cpu.h", "device/hip_cpu_table.h"] {
        fs::read_to_string(header).unwrap_or_default().hash(&mut hasher);
    }
    let compiler = build.get_compiler();
    let args: Vec<_> = compiler.args().iter().filter(|arg| !Path::new(arg).starts_with(objects)).collect();
    (compiler.path(), args).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// The source of one family, with its kernels in their own namespace. Two families, or one family
/// for two instruction sets, may have functions with one name, of which the linker would keep any
/// one.
fn translation_unit(family: &hip_kernels::Family, symbol: &str) -> String {
    let mut text = format!(
        "namespace {symbol}_kernels {{\n#include \"hip_cpu.h\"\n{}\n#include \"hip_cpu_table.h\"\n\
         static const hip_cpu_entry entries[] = {{\n",
        family.source
    );
    for name in family.instantiations() {
        let _ = writeln!(text, "HIP_CPU_KERNEL(\"{name}\", {name}),");
    }
    let _ = write!(
        text,
        "{{nullptr, nullptr, 0, nullptr}}}};\n}}\n\
         struct {symbol}_table {{ const void *entries; unsigned long long count; }};\n\
         extern \"C\" __attribute__((visibility(\"hidden\"))) const {symbol}_table {symbol};\n\
         extern \"C\" const {symbol}_table {symbol} = {{{symbol}_kernels::entries, \
         sizeof({symbol}_kernels::entries) / sizeof({symbol}_kernels::entries[0]) - 1}};\n"
    );
    text
}

fn compiler_works() -> Result<(), String> {
    let tool = cc::Build::new().cpp(true).try_get_compiler().map_err(|error| error.to_string())?;
    if tool.is_like_msvc() {
        let needs = "the kernels need gcc or clang: build for x86_64-pc-windows-gnu, or set CXX to clang++";
        return Err(format!("{} is Microsoft's; {needs}", tool.path().display()));
    }
    match Command::new(tool.path()).arg("--version").output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{} --version: {}", tool.path().display(), output.status)),
        Err(error) => Err(format!("{}: {error}", tool.path().display())),
    }
}

fn write(path: &Path, text: &str) {
    // Leave an unchanged file alone, so that it keeps its time stamp.
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return;
    }
    fs::write(path, text).expect("the target folder is writable");
}
