//! The file of PyTorch's TunableOp: comma-separated lines, first `Validator` lines with versions,
//! then one line a product (`aten/src/ATen/cuda/tunable` in PyTorch's source: `Tunable.cpp` writes
//! and reads the lines, `GemmCommon.h` the parameters, `TunableGemm.h` the names).

use std::collections::BTreeMap;
use std::path::Path;

use super::problem::{DEFAULT as DEFAULT_SOLUTION, GemmProblem, number, transposes};
use super::{Blas, Identity};
use crate::tuning::{Changes, TuningEntry, tuning_store};
use crate::{DType, Error, Result, whole_file};

const EXPORT: &str = "tunable_op_export";
const IMPORT: &str = "tunable_op_import";

/// What became of the lines of a TunableOp file, or of the store's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TunableOpCount {
    /// Lines read into the store, or written.
    pub taken: usize,
    /// Lines, or entries of this device and library, that the other side can't express.
    pub left_out: usize,
}

const ARCH: &str = "GCN_ARCH_NAME";
const VERSION: &str = "ROCBLAS_VERSION";
const SINGLE: &str = "GemmTunableOp_";
const BATCHED: &str = "GemmStridedBatchedTunableOp_";
const SOLUTION: &str = "Gemm_Rocblas_";
const DEFAULT: &str = "Default";
/// PyTorch's names of dtypes.
const DTYPES: [(DType, &str); 4] =
    [(DType::F32, "float"), (DType::F64, "double"), (DType::BF16, "BFloat16"), (DType::F16, "Half")];

impl Blas {
    /// Writes the tuning store's products for this device and this rocBLAS as a file that PyTorch
    /// reads (`PYTORCH_TUNABLEOP_FILENAME`).
    ///
    /// PyTorch refuses a file whose validators are not just its own
    /// (`torch.cuda.tunable.get_validators()`). `GCN_ARCH_NAME` and `ROCBLAS_VERSION` are written
    /// as this device and library have them; `validators` are the others, by name and value.
    ///
    /// Left out are products that PyTorch's lines can't express: i8, gaps between the matrices of a
    /// batch, gfx90a's alternative for f16, and, where a product has one result with and one
    /// without addition, the former.
    ///
    /// # Errors
    /// `Invalid` if the file can't be written, or for a validator that is written anyway or has a
    /// comma or a line's end; `NotAvailable` if rocBLAS does not say its version; `Config` if the store
    /// is off. The file then stays as it is.
    pub fn export_tunable_op(&self, file: &Path, validators: &[(&str, &str)]) -> Result<TunableOpCount> {
        tuning_store().folder()?;
        let own = self.identity.validators()?;
        for (name, value) in validators {
            let splits = |text: &str| text.is_empty() || text.contains([',', '\n', '\r']);
            if own.iter().any(|(known, _)| known == name) || splits(name) || splits(value) {
                let expected = "validators besides GCN_ARCH_NAME and ROCBLAS_VERSION, without commas";
                return Err(Error::invalid(EXPORT, expected, format!("`{name}`, `{value}`")));
            }
        }
        let mut count = TunableOpCount::default();
        let mut lines = BTreeMap::new();
        let mine = |entry: &TuningEntry| {
            entry.device == self.identity.device && entry.library == self.identity.library
        };
        for entry in tuning_store().entries().into_iter().filter(mine) {
            // Sorted by the problem's text, so what adds comes after what does not.
            let Some((product, solution)) = line_of(&entry) else {
                count.left_out += 1;
                continue;
            };
            let milliseconds = entry.microseconds / 1e3;
            let result = format!("{solution},{milliseconds}");
            let kept = lines.entry(product).or_insert_with(|| result.clone());
            count.left_out += usize::from(*kept != result);
        }
        count.taken = lines.len();
        let all = own.iter().map(|(name, value)| (*name, value.as_str())).chain(validators.iter().copied());
        let mut text: String = all.map(|(name, value)| format!("Validator,{name},{value}\n")).collect();
        text.extend(lines.into_iter().map(|(product, result)| format!("{product},{result}\n")));
        let written = whole_file::write(file, &text);
        written.map_err(|error| {
            Error::invalid(EXPORT, "a file that can be written", format!("{}: {error}", file.display()))
        })?;
        Ok(count)
    }

    /// Adds the rocBLAS solutions of a file that PyTorch's TunableOp wrote to the tuning store. If
    /// the store has an entry for the same product, the faster one stays.
    ///
    /// A line says neither whether the product adds to its result nor how far the matrices of a
    /// batch lie apart, so it becomes an entry of each kind, without gaps between matrices. Left
    /// out are lines for other libraries (hipBLASLt) and other operations (scaled products, complex
    /// numbers). Nothing is timed or compared here. An entry serves from the next use of its
    /// product on, also in this process.
    ///
    /// # Errors
    /// `Invalid` if the file can't be read, has a line of another format, or lacks the validators
    /// `GCN_ARCH_NAME` and `ROCBLAS_VERSION` or has other values than this device and library;
    /// nothing was added then. The other validators are not looked at, because they don't name what
    /// computes here. rocBLAS and the hipBLASLt that it calls come from one release.
    /// `NotAvailable` if rocBLAS does not say its version; `Config` if the store is off or can't be
    /// written.
    pub fn import_tunable_op(&self, file: &Path) -> Result<TunableOpCount> {
        let at = |what: &dyn std::fmt::Display| format!("{}: {what}", file.display());
        let text = std::fs::read_to_string(file)
            .map_err(|error| Error::invalid(IMPORT, "a file of PyTorch's TunableOp", at(&error)))?;
        let own = self.identity.validators()?;
        let (validators, products, left_out) =
            parse(&text).map_err(|(line, what)| Error::invalid(IMPORT, what, at(&format!("line {line}"))))?;
        for (name, expected) in own {
            let found = validators.get(name).copied();
            if found != Some(expected.as_str()) {
                let found = found.map_or_else(|| format!("no {name}"), |found| format!("{name} `{found}`"));
                return Err(Error::invalid(IMPORT, format!("{name} `{expected}`"), at(&found)));
            }
        }
        // Even if an entry can't be written, because those before it were added.
        let _changed = Changes(tuning_store());
        for product in &products {
            for adds in [false, true] {
                self.add(GemmProblem { adds, ..product.problem }, product)?;
            }
        }
        Ok(TunableOpCount { taken: products.len(), left_out })
    }

    fn add(&self, problem: GemmProblem, product: &Line) -> Result<()> {
        let Identity { device, library, .. } = &self.identity;
        let problem = problem.to_string();
        let known = tuning_store().peek(device, library, &problem);
        // PyTorch may omit the time, and then reads 0.
        let faster =
            |known: TuningEntry| 0.0 < product.microseconds && product.microseconds < known.microseconds;
        if !known.is_none_or(faster) {
            return Ok(());
        }
        tuning_store().put(&TuningEntry {
            device: device.clone(),
            library: library.clone(),
            problem,
            solution: product.solution.into(),
            workspace: 0,
            microseconds: product.microseconds,
        })
    }
}

impl Identity {
    fn validators(&self) -> Result<[(&'static str, String); 2]> {
        // rocBLAS writes `5.2.0.4b9f0c4`, and PyTorch `5.2.0-4b9f0c4`.
        let mut parts = self.version.splitn(4, '.');
        let numbers: Vec<&str> = parts.by_ref().take(3).collect();
        if numbers.len() < 3 {
            return Err(Error::NotAvailable {
                reason: "rocBLAS does not say its version, on which its solutions depend".into(),
                searched: Vec::new(),
            });
        }
        let rest = parts.next().map(|rest| format!("-{rest}")).unwrap_or_default();
        Ok([(ARCH, self.arch.clone()), (VERSION, numbers.join(".") + &rest)])
    }
}

/// The columns of an entry: the product in two, and the solution.
fn line_of(entry: &TuningEntry) -> Option<(String, String)> {
    let problem: GemmProblem = entry.problem.parse().ok()?;
    if problem.alternative || problem.strides != problem.dense_strides() {
        return None;
    }
    let (_, dtype) = DTYPES.into_iter().find(|(dtype, _)| *dtype == problem.dtype)?;
    let ([m, n, k], [a, b, c], letters) = (problem.sizes, problem.ld, problem.letters());
    let (name, batch) = match problem.batch {
        1 => (SINGLE, String::new()),
        batch => (BATCHED, format!("_B_{batch}")),
    };
    let product =
        format!("{name}{dtype}_{},{letters}_{m}_{n}_{k}{batch}_ld_{a}_{b}_{c}", letters.to_ascii_uppercase());
    let solution = match entry.solution {
        solution if solution == i64::from(DEFAULT_SOLUTION) => DEFAULT.to_owned(),
        solution => format!("{SOLUTION}{solution}"),
    };
    Some((product, solution))
}

/// A line for rocBLAS. The problem does not add.
#[derive(Debug, PartialEq)]
struct Line {
    problem: GemmProblem,
    solution: i32,
    microseconds: f64,
}

/// The validators, the lines for rocBLAS, and the number of others.
type Parsed<'a> = (BTreeMap<&'a str, &'a str>, Vec<Line>, usize);

/// Reads a file's text. The error has the line, from 1 on, and what it should be.
fn parse(text: &str) -> std::result::Result<Parsed<'_>, (usize, &'static str)> {
    let (mut validators, mut products, mut left_out) = (BTreeMap::new(), Vec::new(), 0);
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |expected| (at + 1, expected);
        let columns: Vec<&str> = line.split(',').collect();
        let [first, second, third, ..] = columns[..] else {
            return Err(wrong("at least three columns"));
        };
        if first == "Validator" {
            validators.insert(second, third);
            continue;
        }
        let milliseconds: f64 = match columns.get(3) {
            Some(time) => time.parse().map_err(|_| wrong("a time in milliseconds in column 4"))?,
            None => 0.0,
        };
        if !milliseconds.is_finite() || milliseconds < 0.0 {
            return Err(wrong("a time in milliseconds in column 4"));
        }
        let solution = match third.strip_prefix(SOLUTION) {
            Some(digits) => number(digits.parse().map_err(|_| wrong("a number after `Gemm_Rocblas_`"))?),
            None if third == DEFAULT => DEFAULT_SOLUTION,
            None => {
                left_out += 1;
                continue;
            }
        };
        let Some((dtype, letters)) = operation(first) else {
            left_out += 1;
            continue;
        };
        let problem = problem(dtype, second, first.starts_with(BATCHED))
            .filter(|problem| problem.letters().eq_ignore_ascii_case(letters))
            .ok_or_else(|| wrong("a product such as `nt_128_64_256_ld_128_64_128` in column 2"))?;
        products.push(Line { problem, solution, microseconds: milliseconds * 1e3 });
    }
    Ok((validators, products, left_out))
}

/// The dtype and the transposes of an operation's name; `None` for an operation or a type that this
/// project does not have.
fn operation(name: &str) -> Option<(DType, &str)> {
    let rest = name.strip_prefix(SINGLE).or_else(|| name.strip_prefix(BATCHED))?;
    let (dtype, letters) = rest.rsplit_once('_')?;
    let (dtype, _) = DTYPES.into_iter().find(|(_, known)| *known == dtype)?;
    Some((dtype, letters))
}

/// A product from `nt_M_N_K`, then `_B_BATCH` if it has a batch, then `_ld_A_B_C`. Before PyTorch
/// wrote leading dimensions, lines ended before them; the matrices then count as without gaps.
fn problem(dtype: DType, text: &str, batched: bool) -> Option<GemmProblem> {
    let mut words = text.split('_').peekable();
    let transposed = transposes(words.next()?)?;
    let size = |words: &mut std::iter::Peekable<_>| {
        words.next().and_then(|word: &str| word.parse::<i32>().ok()).filter(|&size| size > 0)
    };
    let [m, n, k] = [size(&mut words)?, size(&mut words)?, size(&mut words)?];
    let batch = match batched {
        true => words.next_if_eq(&"B").and_then(|_| size(&mut words))?,
        false => 1,
    };
    let least = [if transposed[0] { k } else { m }, if transposed[1] { n } else { k }, m];
    let ld = match words.next_if_eq(&"ld") {
        Some(_) => [size(&mut words)?, size(&mut words)?, size(&mut words)?],
        None => least,
    };
    if words.next().is_some() || ld.iter().zip(least).any(|(ld, least)| *ld < least) {
        return None;
    }
    let sizes = [m, n, k];
    let (strides, adds, alternative) = ([0; 3], false, false);
    let packed = GemmProblem { dtype, transposed, sizes, batch, ld, strides, adds, alternative };
    Some(GemmProblem { strides: packed.dense_strides(), ..packed })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As PyTorch writes lines, by its source.
    const SAMPLE: &str = "\
Validator,PT_VERSION,2.9.0
Validator,ROCM_VERSION,7.0.2.0-56-9428210
Validator,GCN_ARCH_NAME,gfx90a:sramecc+:xnack-
Validator,ROCBLAS_VERSION,5.0.2-a1b2c3d
GemmTunableOp_float_NT,nt_128_64_256_ld_130_64_128,Gemm_Rocblas_1234,0.05
GemmTunableOp_Half_TN,tn_128_64_256_ld_256_256_128,Gemm_Hipblaslt_220580,0.011
GemmStridedBatchedTunableOp_BFloat16_NN,nn_8_16_32_B_12_ld_8_32_8,Gemm_Rocblas_77,0.0125
GemmTunableOp_double_TT,tt_5_6_7,Default,0.5
GemmTunableOp_c10::complex<float>_NN,nn_5_6_7_ld_5_7_5,Gemm_Rocblas_9,0.5
ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_Half_TN,tn_16_16_16_ld_16_16_16_rw_0,Default,0.01
GemmAndBiasTunableOp_float_TN,tn_16_16_16_ld_16_16_16,Gemm_Hipblaslt_1,0.01
GemmTunableOp_float_NN,nn_3_4_5_ld_3_5_3,Gemm_Rocblas_-5432
GemmTunableOp_float_NN,nn_3_4_6_ld_3_6_3,Gemm_Rocblas_-1,0.00025
";

    #[test]
    fn lines_are_read_and_others_are_counted() {
        let (validators, lines, left_out) = parse(SAMPLE).unwrap();
        assert_eq!((validators.len(), validators[VERSION], left_out), (4, "5.0.2-a1b2c3d", 4));
        let found: Vec<_> =
            lines.iter().map(|line| (line.problem.to_string(), line.solution, line.microseconds)).collect();
        let expected = [
            ("gemm f32 nt 128x64x256 ld 130x64x128 batch 1 strides 0x0x0", 1234, 50.0),
            ("gemm bf16 nn 8x16x32 ld 8x32x8 batch 12 strides 256x512x128", 77, 12.5),
            ("gemm f64 tt 5x6x7 ld 7x6x5 batch 1 strides 0x0x0", 0, 500.0),
            ("gemm f32 nn 3x4x5 ld 3x5x3 batch 1 strides 0x0x0", -5432, 0.0),
            ("gemm f32 nn 3x4x6 ld 3x6x3 batch 1 strides 0x0x0", 0, 0.25),
        ];
        assert_eq!(found, expected.map(|(text, solution, time)| (text.to_owned(), solution, time)));
    }

    #[test]
    fn a_line_that_is_wrong_is_named() {
        for (from, to, line) in [
            ("Validator,PT_VERSION,2.9.0", "Validator,PT_VERSION", 1),
            ("nt_128", "nx_128", 5),
            ("nt_128", "tt_128", 5),
            ("nt_128_64", "nt_128_0", 5),
            ("ld_130", "ld_127", 5),
            ("64_128,", "64,", 5),
            ("64_128,", "64_128_1,", 5),
            ("_1234", "_x", 5),
            (",0.05\n", ",fast\n", 5),
            (",0.05\n", ",-1\n", 5),
            (",0.05\n", ",inf\n", 5),
            ("_B_12", "", 7),
        ] {
            let text = SAMPLE.replacen(from, to, 1);
            assert_ne!(text, SAMPLE);
            assert_eq!(parse(&text).unwrap_err().0, line, "{from} -> {to}");
        }
    }

    #[test]
    fn lines_are_written_as_they_were_read() {
        let rocblas = |line: &&str| ["Rocblas_1234", "Rocblas_77"].iter().any(|part| line.contains(part));
        for line in SAMPLE.lines().filter(rocblas) {
            let read = parse(line).unwrap().1.remove(0);
            let entry = |problem: GemmProblem| TuningEntry {
                device: String::new(),
                library: String::new(),
                problem: problem.to_string(),
                solution: read.solution.into(),
                workspace: 0,
                microseconds: read.microseconds,
            };
            let (product, solution) = line_of(&entry(read.problem)).unwrap();
            assert_eq!(format!("{product},{solution},{}", read.microseconds / 1e3), line);
            assert_eq!(
                line_of(&entry(GemmProblem { adds: true, ..read.problem })),
                Some((product, solution))
            );
            for other in [
                GemmProblem { alternative: true, ..read.problem },
                GemmProblem { dtype: DType::I8, ..read.problem },
                GemmProblem { strides: [1, 2, 3], ..read.problem },
            ] {
                assert_eq!(line_of(&entry(other)), None, "{other}");
            }
        }
    }

    #[test]
    fn versions_are_written_as_pytorch_writes_them() {
        let identity = |version: &str| Identity {
            device: "a device".into(),
            arch: "gfx1030".into(),
            library: format!("rocBLAS {version}"),
            version: version.into(),
        };
        for (version, expected) in
            [("5.2.0", "5.2.0"), ("4.0.0.72e57364-dirty", "4.0.0-72e57364-dirty"), ("4.0.0.1.2", "4.0.0-1.2")]
        {
            assert_eq!(identity(version).validators().unwrap()[1], (VERSION, expected.into()));
        }
        assert!(matches!(identity("").validators(), Err(Error::NotAvailable { .. })));
    }
}
