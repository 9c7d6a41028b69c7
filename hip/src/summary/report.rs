//! A summary as values and as a table.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use crate::profile::names;
use crate::profile::table::Table;
use crate::profile::work::WorkKind;
use crate::summary::ledger::{How, Ledger};

/// How the ops of a time were computed; see [`optimization_summary`](crate::optimization_summary).
/// Its `Display` is a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// One row for each op and dtype, by name.
    pub ops: Vec<OpSummary>,
    /// Ops that shared a launch with others, or could have: the sum of [`OpSummary::joined`].
    pub joined_ops: u64,
    /// The launches of those ops.
    pub joined_launches: u64,
    /// What the first choice did not compute, by op.
    pub fallbacks: Vec<Fallback>,
}

/// How one op was computed for one dtype. The numbers count launches and calls, not calls of the
/// op.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpSummary {
    /// The op; empty for work outside any op.
    pub op: String,
    /// The dtype of its first tensor; empty if it takes none.
    pub dtype: String,
    /// Launches of kernels of its own.
    pub kernels: u64,
    /// Steps in launches that it shared with other ops.
    pub joined: u64,
    /// Calls into rocBLAS.
    pub rocblas: u64,
    /// Calls into hipBLASLt.
    pub hipblaslt: u64,
    /// Calls into MIOpen.
    pub miopen: u64,
    /// Calls into RCCL.
    pub rccl: u64,
    /// Copies of a tensor to row-major order, because a kernel or a library needs it so.
    pub layout_copies: u64,
    /// Other copies, and fills, within device memory.
    pub copies: u64,
    /// Copies from the host or to it.
    pub transfers: u64,
    /// Replays of captured graphs.
    pub graphs: u64,
    /// The kernels and the libraries' functions, each with its number.
    pub by: BTreeMap<String, u64>,
}

/// That something else than an op's first choice computed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// The op.
    pub op: String,
    /// The dtype of its first tensor.
    pub dtype: String,
    /// Why: a setting, what the library lacks, or its error.
    pub reason: String,
    /// How often.
    pub count: u64,
}

impl Summary {
    pub(crate) fn of(ledger: &Ledger) -> Self {
        let mut ops = BTreeMap::<(&str, &str), OpSummary>::new();
        let mut fallbacks = BTreeMap::new();
        for (entry, &count) in &ledger.counts {
            let by = names::string(entry.by);
            if entry.how == How::Fallback {
                fallbacks.insert((entry.op, entry.dtype, by), count);
                continue;
            }
            let row = ops.entry((entry.op, entry.dtype)).or_default();
            *match entry.how {
                How::LayoutCopy => &mut row.layout_copies,
                How::Joined => &mut row.joined,
                How::Work(WorkKind::Library) if by.starts_with("rocblas") => &mut row.rocblas,
                How::Work(WorkKind::Library) if by.starts_with("hipblasLt") => &mut row.hipblaslt,
                How::Work(WorkKind::Library) if by.starts_with("nccl") => &mut row.rccl,
                How::Work(WorkKind::Library) => &mut row.miopen,
                How::Work(WorkKind::Copy) => &mut row.copies,
                How::Work(WorkKind::Transfer) => &mut row.transfers,
                How::Work(WorkKind::Graph) => &mut row.graphs,
                How::Work(WorkKind::Kernel) | How::Fallback => &mut row.kernels,
            } += count;
            *row.by.entry(by.to_string()).or_default() += count;
        }
        let ops: Vec<_> = ops
            .into_iter()
            .map(|((op, dtype), row)| OpSummary { op: op.into(), dtype: dtype.into(), ..row })
            .collect();
        let fallbacks = fallbacks.into_iter().map(|((op, dtype, reason), count)| Fallback {
            op: op.into(),
            dtype: dtype.into(),
            reason: reason.to_string(),
            count,
        });
        Self {
            joined_ops: ops.iter().map(|row| row.joined).sum(),
            joined_launches: ledger.shared,
            fallbacks: fallbacks.collect(),
            ops,
        }
    }

    /// The rows of an op, one for each dtype.
    pub fn of_op(&self, op: &str) -> impl Iterator<Item = &OpSummary> {
        self.ops.iter().filter(move |row| row.op == op)
    }
}

/// A name, or what stands for none.
fn named(op: &str) -> String {
    if op.is_empty() { "outside an op".into() } else { op.into() }
}

impl Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = [
            "op",
            "dtype",
            "kernels",
            "joined",
            "rocBLAS",
            "hipBLASLt",
            "MIOpen",
            "RCCL",
            "layout copies",
            "copies",
            "transfers",
            "graphs",
        ];
        let mut table = Table::new(&heads, 2);
        for row in &self.ops {
            let counts = [
                row.kernels,
                row.joined,
                row.rocblas,
                row.hipblaslt,
                row.miopen,
                row.rccl,
                row.layout_copies,
                row.copies,
                row.transfers,
                row.graphs,
            ];
            let counts = counts.map(|count| if count == 0 { String::new() } else { count.to_string() });
            table.add([named(&row.op), row.dtype.clone()].into_iter().chain(counts).collect());
        }
        writeln!(f, "how ops were computed\n{table}")?;
        writeln!(f, "{} element-wise ops shared {} launches", self.joined_ops, self.joined_launches)?;
        if self.fallbacks.is_empty() {
            return writeln!(f, "nothing fell back");
        }
        let mut table = Table::new(&["fell back", "dtype", "reason", "times"], 3);
        for Fallback { op, dtype, reason, count } in &self.fallbacks {
            table.add(vec![named(op), dtype.clone(), reason.clone(), count.to_string()]);
        }
        write!(f, "\n{table}")
    }
}
