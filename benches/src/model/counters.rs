//! The table of counters that the virtual GPU writes (`VIRTUAL_GPU_COUNTERS`).

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::cost::{Geometry, Place, Work};

/// Lanes of a wave of the virtual gfx1030.
const WAVE: f64 = 32.0;

/// A line of the table.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: String,
    pub(crate) grid: String,
    pub(crate) block: String,
    pub(crate) work: Work,
    /// Whether [`Work::memory`] counts a line as often as instructions ask for it, because the table
    /// does not say how many are distinct, or because it is private memory's: then the bytes are an
    /// upper bound.
    pub(crate) upper_bound: bool,
}

/// Why a table can't be read.
#[derive(Debug)]
pub(crate) enum Error {
    /// The file can't be read.
    Read(PathBuf, std::io::Error),
    /// A column that the model needs is missing.
    Column(&'static str),
    /// A field is no number, or not three of them with commas: the line's number and the column.
    Field(usize, String),
    /// A line has another number of fields than the header.
    Fields(usize),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Column(name) => write!(f, "the table of counters has no column {name}"),
            Self::Field(line, column) => {
                write!(f, "line {line} of the table of counters: {column} is not as expected")
            }
            Self::Fields(line) => {
                write!(f, "line {line} of the table of counters has not the header's number of fields")
            }
        }
    }
}

/// Reads the table of a file.
pub(crate) fn read(path: &Path) -> Result<Vec<Launch>, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::Read(path.to_owned(), error))?;
    parse(&text)
}

/// Reads a table: a header, then a launch a line, separated by tabs.
pub(crate) fn parse(text: &str) -> Result<Vec<Launch>, Error> {
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split('\t').collect();
    let columns: HashMap<&str, usize> = header.iter().enumerate().map(|(at, &name)| (name, at)).collect();
    // The header is line 1.
    (2..)
        .zip(lines)
        .filter(|(_, text)| !text.is_empty())
        .map(|(number, text)| {
            let fields: Vec<&str> = text.split('\t').collect();
            if fields.len() != header.len() {
                return Err(Error::Fields(number));
            }
            Row { columns: &columns, fields, number }.launch()
        })
        .collect()
}

struct Row<'a> {
    columns: &'a HashMap<&'a str, usize>,
    fields: Vec<&'a str>,
    number: usize,
}

impl Row<'_> {
    fn text(&self, column: &'static str) -> Result<&str, Error> {
        let at = self.columns.get(column).ok_or(Error::Column(column))?;
        Ok(self.fields[*at])
    }

    fn bad(&self, column: &str) -> Error {
        Error::Field(self.number, column.to_owned())
    }

    fn count(&self, column: &'static str) -> Result<f64, Error> {
        self.text(column)?.parse::<u64>().map(|count| count as f64).map_err(|_| self.bad(column))
    }

    /// The product of three numbers with commas between.
    fn volume(&self, column: &'static str) -> Result<f64, Error> {
        let sizes: Result<Vec<u64>, _> = self.text(column)?.split(',').map(str::parse::<u64>).collect();
        match sizes.as_deref() {
            Ok([x, y, z]) => Ok(*x as f64 * *y as f64 * *z as f64),
            _ => Err(self.bad(column)),
        }
    }

    fn sum(&self, columns: &[&'static str]) -> Result<f64, Error> {
        columns.iter().map(|column| self.count(column)).sum()
    }

    fn launch(&self) -> Result<Launch, Error> {
        let lines = self.sum(&["load_lines", "store_lines", "atomic_lines"])?;
        // Private memory is in lines of its own; a lane's neighbours lie beside it. The table does not
        // say how many of these are distinct.
        let private = self.count("scratch_bytes")? / 64.0;
        let lines = lines + private;
        let distinct = if self.columns.contains_key("distinct_lines") {
            Some(self.count("distinct_lines")? + private)
        } else {
            None
        };
        let groups = self.volume("grid")?;
        let work = Work {
            memory: 64.0 * distinct.unwrap_or(lines),
            place: Place::Cached,
            lines,
            // The table does not say what the first caches hold, so they miss each line.
            missed: 64.0 * lines,
            vector: WAVE * self.sum(&["valu_f32", "valu_f16", "valu_int", "valu_dot"])?,
            slow: WAVE * self.sum(&["valu_int_mul", "valu_trans"])?,
            f64: WAVE * self.count("valu_f64")?,
            scalar: self.sum(&["salu", "smem", "branch"])?,
            lds: self.count("lds_bytes")?,
            conflicts: self.count("lds_conflict_cycles")?,
            matrix: None,
            geometry: Some(Geometry {
                groups,
                lanes: self.volume("block")?,
                registers: self.count("vgprs")?,
                lds: self.count("lds_size")?,
            }),
        };
        let [kernel, grid, block] =
            ["kernel", "grid", "block"].map(|column| self.text(column).map(str::to_owned));
        let upper_bound = distinct.is_none() || private > 0.0;
        Ok(Launch { kernel: kernel?, grid: grid?, block: block?, work, upper_bound })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A table derived by hand, not one that a GPU wrote: a copy of 2^20 f32 by 256 lanes with 4
    /// elements each, 1024 workgroups. A wave loads 32 x 16 bytes, which are 8 lines.
    pub(in super::super) const BY_HAND: &str = concat!(
        "kernel\tgrid\tblock\tvgprs\tlds_size\tprivate_size\twaves\tvalu_f32\tvalu_f16\tvalu_f64\tvalu_int\t",
        "valu_int_mul\tvalu_trans\tvalu_dot\tvmem_load\tvmem_store\tsalu\tsmem\tbranch\tload_lines\tstore_lines\t",
        "atomic_lines\tlds_bytes\tlds_conflict_cycles\tscratch_bytes\n",
        "copy\t1024,1,1\t256,1,1\t16\t0\t0\t8192\t0\t0\t0\t65536\t",
        "8192\t0\t0\t8192\t8192\t40960\t16384\t8192\t65536\t65536\t",
        "0\t0\t0\t0\n",
    );

    #[test]
    fn a_line_becomes_work() {
        let launches = parse(BY_HAND).expect("a table");
        assert_eq!(launches.len(), 1);
        let Launch { kernel, grid, work, upper_bound, .. } = &launches[0];
        assert_eq!((kernel.as_str(), grid.as_str(), *upper_bound), ("copy", "1024,1,1", true));
        assert_eq!(work.memory, 2.0 * 4.0 * 1048576.0);
        assert_eq!(work.vector, 32.0 * 65536.0);
        assert_eq!(work.slow, 32.0 * 8192.0);
        assert_eq!(work.scalar, 65536.0);
        let geometry = work.geometry.expect("a geometry");
        assert_eq!((geometry.groups, geometry.lanes, geometry.registers), (1024.0, 256.0, 16.0));
    }

    /// The virtual GPU writes the columns that the model reads.
    #[test]
    fn columns_are_those_of_the_virtual_gpu() {
        let counters = virtual_gpu::isa::Counters::default();
        let written: Vec<String> = counters.columns().into_iter().map(|(name, _)| name).collect();
        // The launch's own, of `virtual_gpu::hsa`'s file.
        let own = ["kernel", "grid", "block", "vgprs", "lds_size", "private_size"];
        let header = BY_HAND.lines().next().expect("a header");
        let read = header.split('\t').filter(|column| !own.contains(column)).chain(["distinct_lines"]);
        for column in read {
            assert!(written.iter().any(|name| name == column), "{column} is not among {written:?}");
        }
    }

    #[test]
    fn distinct_lines_are_the_bytes_of_memory() {
        let (header, line) = BY_HAND.split_once('\n').expect("two lines");
        let text = format!("{header}\tdistinct_lines\n{}\t1000\n", line.trim_end());
        let launches = parse(&text).expect("a table");
        assert_eq!(launches[0].work.memory, 64000.0);
        assert!(!launches[0].upper_bound);
        // 640 bytes of private memory, each access of which counts.
        let spilled = text.replace("\t0\t1000\n", "\t640\t1000\n");
        let launches = parse(&spilled).expect("a table");
        assert_eq!(launches[0].work.memory, 64640.0);
        assert!(launches[0].upper_bound);
    }

    #[test]
    fn what_is_wrong_with_a_table_is_said() {
        assert!(parse("").expect("no launches").is_empty());
        let without = BY_HAND.replace("lds_conflict_cycles", "else");
        assert!(matches!(parse(&without), Err(Error::Column("lds_conflict_cycles"))));
        let word = BY_HAND.replace("40960", "many");
        assert!(matches!(parse(&word), Err(Error::Field(2, column)) if column == "salu"));
        let flat = BY_HAND.replace("1024,1,1", "1024");
        assert!(matches!(parse(&flat), Err(Error::Field(2, column)) if column == "grid"));
        let short = BY_HAND.replace("copy\t", "");
        assert!(matches!(parse(&short), Err(Error::Fields(2))));
        assert!(matches!(read(Path::new("/nowhere/counters.tsv")), Err(Error::Read(..))));
    }
}
