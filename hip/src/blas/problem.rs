//! A matrix product without its data, as text: the tuning store's key.

use std::fmt::{self, Display};
use std::str::FromStr;

use super::layout::Plan;
use crate::{DType, Error, Result};

/// rocBLAS's own choice of a solution.
pub(super) const DEFAULT: i32 = 0;

/// The number of a solution, with one number for rocBLAS's own choice, which -1 means too. Numbers
/// above 0 are Tensile's, in a rocBLAS with hipBLASLt that library's; there Tensile's are below -10
/// (`rocblas_default_solution_index` in rocBLAS's `tensile_host.hpp`).
pub(super) fn number(solution: i32) -> i32 {
    if solution == -1 { DEFAULT } else { solution }
}

/// What rocBLAS's choice of a solution may depend on. Sizes, transposes and strides are those of
/// rocBLAS's call, which is column-major.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct GemmProblem {
    /// Of the operands.
    pub(crate) dtype: DType,
    /// Whether the first and the second operand are transposed.
    pub(crate) transposed: [bool; 2],
    /// m, n, k.
    pub(crate) sizes: [i32; 3],
    pub(crate) batch: i32,
    /// Leading dimensions of the operands and of the result.
    pub(crate) ld: [i32; 3],
    /// Elements from one matrix of the batch to the next; 0 if the batch is 1.
    pub(crate) strides: [i64; 3],
    /// Whether the result is added to.
    pub(crate) adds: bool,
    /// Whether f16 is computed by rocBLAS's alternative implementation.
    pub(crate) alternative: bool,
}

const BEGIN: &str = "gemm ";
const ADDS: &str = "adds";
const ALTERNATIVE: &str = "alternative";
const DTYPES: [DType; 5] = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I8];

impl GemmProblem {
    pub(super) fn new(dtype: DType, plan: &Plan, adds: bool, alternative: bool) -> Self {
        let Plan { m, n, k, batch, first, second, ldc, stride_c, .. } = *plan;
        let strides = [first.batch_stride, second.batch_stride, stride_c];
        Self {
            dtype,
            transposed: [first.transpose, second.transpose],
            sizes: [m, n, k],
            batch,
            ld: [first.ld, second.ld, ldc],
            strides: if batch == 1 { [0; 3] } else { strides },
            adds,
            alternative,
        }
    }

    /// The batch strides of matrices that follow each other without gaps.
    pub(crate) fn dense_strides(&self) -> [i64; 3] {
        if self.batch == 1 {
            return [0; 3];
        }
        let [m, n, k] = self.sizes;
        let columns = [if self.transposed[0] { m } else { k }, if self.transposed[1] { k } else { n }, n];
        [0, 1, 2].map(|at| i64::from(self.ld[at]) * i64::from(columns[at]))
    }

    /// The transposes as BLAS writes them: `nt` if the second operand is transposed.
    pub(crate) fn letters(&self) -> String {
        self.transposed.map(|transposed| if transposed { 't' } else { 'n' }).iter().collect()
    }
}

/// The transposes of two letters, `n` or `t`.
pub(crate) fn transposes(letters: &str) -> Option<[bool; 2]> {
    let mut each = letters.chars().map(|letter| match letter {
        'n' | 'N' => Some(false),
        't' | 'T' => Some(true),
        _ => None,
    });
    let both = [each.next()??, each.next()??];
    each.next().is_none().then_some(both)
}

impl Display for GemmProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([m, n, k], [a, b, c], [far_a, far_b, far_c]) = (self.sizes, self.ld, self.strides);
        write!(f, "{BEGIN}{} {} {m}x{n}x{k} ld {a}x{b}x{c}", self.dtype.cpp(), self.letters())?;
        write!(f, " batch {} strides {far_a}x{far_b}x{far_c}", self.batch)?;
        let flags = [(self.adds, ADDS), (self.alternative, ALTERNATIVE)];
        flags.iter().filter(|(on, _)| *on).try_for_each(|(_, name)| write!(f, " {name}"))
    }
}

impl FromStr for GemmProblem {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        read(text).ok_or_else(|| Error::invalid("gemm_problem", "a product as the tuning store has it", text))
    }
}

fn read(text: &str) -> Option<GemmProblem> {
    let mut words = text.strip_prefix(BEGIN)?.split(' ').peekable();
    let dtype = words.next()?;
    let dtype = DTYPES.into_iter().find(|known| known.cpp() == dtype)?;
    let transposed = transposes(words.next()?)?;
    let sizes = three(words.next()?)?;
    let mut named = |name: &str| words.next_if_eq(&name).and_then(|_| words.next());
    let ld = three(named("ld")?)?;
    let batch = named("batch")?.parse().ok()?;
    let strides = three(named("strides")?)?;
    let adds = words.next_if_eq(&ADDS).is_some();
    let alternative = words.next_if_eq(&ALTERNATIVE).is_some();
    let problem = GemmProblem { dtype, transposed, sizes, batch, ld, strides, adds, alternative };
    words.next().is_none().then_some(problem)
}

fn three<T: FromStr>(text: &str) -> Option<[T; 3]> {
    let numbers: Option<Vec<T>> = text.split('x').map(|number| number.parse().ok()).collect();
    numbers?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_its_problem_again_and_each_field_is_in_it() {
        let plain = GemmProblem {
            dtype: DType::F32,
            transposed: [false, false],
            sizes: [3, 5, 7],
            batch: 2,
            ld: [8, 9, 10],
            strides: [56, 45, -50],
            adds: false,
            alternative: false,
        };
        let all = [
            plain,
            GemmProblem { dtype: DType::BF16, ..plain },
            GemmProblem { transposed: [true, false], ..plain },
            GemmProblem { transposed: [false, true], ..plain },
            GemmProblem { sizes: [5, 3, 7], ..plain },
            GemmProblem { batch: 3, ..plain },
            GemmProblem { ld: [8, 9, 11], ..plain },
            GemmProblem { strides: [56, 46, -50], ..plain },
            GemmProblem { adds: true, ..plain },
            GemmProblem { alternative: true, ..plain },
            GemmProblem { adds: true, alternative: true, ..plain },
        ];
        for (i, problem) in all.iter().enumerate() {
            let text = problem.to_string();
            assert_eq!(text.parse().as_ref(), Ok(problem), "{text}");
            assert!(all[i + 1..].iter().all(|other| other.to_string() != text), "{text}");
            for wrong in
                [format!("{text} "), format!("{text} more"), text.replace("ld", "lda"), text.to_uppercase()]
            {
                assert!(wrong.parse::<GemmProblem>().is_err(), "{wrong}");
            }
        }
        assert_eq!(plain.dense_strides(), [8 * 7, 9 * 5, 10 * 5]);
        assert_eq!(GemmProblem { transposed: [true; 2], ..plain }.dense_strides(), [8 * 3, 9 * 7, 10 * 5]);
        assert_eq!(GemmProblem { batch: 1, ..plain }.dense_strides(), [0; 3]);
    }
}
