//! Reports of a pool's memory: a table of sums, and a list of the blocks in use.

use std::fmt::{self, Display, Write};
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::json::Json;
use crate::whole_file;

/// What some of a pool's blocks use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryUse {
    /// Bytes of the blocks in use, as the pool rounded them up.
    pub bytes: usize,
    /// The most bytes at once, since the start or the last
    /// [`reset_peak`](crate::MemoryPool::reset_peak).
    pub peak: usize,
    /// Blocks handed out since the start.
    pub allocations: u64,
    /// Blocks handed back since the start.
    pub frees: u64,
}

impl MemoryUse {
    /// The number of blocks in use.
    pub fn blocks(&self) -> u64 {
        self.allocations - self.frees
    }

    pub(crate) fn add(&mut self, size: usize) {
        self.bytes += size;
        self.peak = self.peak.max(self.bytes);
        self.allocations += 1;
    }

    pub(crate) fn remove(&mut self, size: usize) {
        self.bytes -= size;
        self.frees += 1;
    }
}

/// A row of a [`MemorySummary`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryRow {
    /// The label's path or the class of sizes.
    pub name: String,
    /// Its blocks.
    pub used: MemoryUse,
}

/// Who holds blocks in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryHolder {
    /// The thread or the op.
    pub name: String,
    /// Bytes of its blocks.
    pub bytes: usize,
    /// The number of its blocks.
    pub blocks: u64,
}

/// Sums over a pool's memory; see [`MemoryPool::summary`](crate::MemoryPool::summary). Its
/// `Display` is a table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemorySummary {
    /// All blocks.
    pub allocated: MemoryUse,
    /// Bytes held from the driver.
    pub reserved: usize,
    /// The most bytes held from the driver at once, since the start or the last
    /// [`reset_peak`](crate::MemoryPool::reset_peak).
    pub peak_reserved: usize,
    /// Bytes of `reserved` that are managed memory, which only an integrated GPU may have
    /// ([`Config::apu_memory`](crate::Config::apu_memory)).
    pub managed: usize,
    /// Memory that other libraries own and tensors use. Not a part of `allocated` or `reserved`.
    pub imported: MemoryUse,
    /// Bytes that rounding up adds to the requests of the blocks in use.
    pub padding: usize,
    /// Bytes held from the driver that are in no block in use.
    pub free: usize,
    /// Bytes of the largest free block. A larger request needs memory from the driver.
    pub largest_free: usize,
    /// Blocks by size.
    pub classes: Vec<MemoryRow>,
    /// Blocks by [label](crate::memory_label). A label has the blocks of the labels inside it too.
    /// Without a label: `(no label)`.
    pub labels: Vec<MemoryRow>,
    /// Blocks in use by the thread that allocated them, most bytes first.
    pub threads: Vec<MemoryHolder>,
    /// Blocks in use by the op that allocated them, most bytes first. Those that were allocated
    /// outside any op, or while [ops were not tracked](crate::memory_track_ops): `(not tracked)`.
    pub ops: Vec<MemoryHolder>,
}

impl MemorySummary {
    /// The share of the free bytes that is outside the largest free block: `1 - largest_free /
    /// free`, and 0 if nothing is free. At 0 one request could take all free bytes. Near 1, many
    /// small holes lie between blocks in use.
    pub fn fragmentation(&self) -> f64 {
        match self.free {
            0 => 0.0,
            free => 1.0 - self.largest_free as f64 / free as f64,
        }
    }
}

/// Bytes in powers of 1024.
pub(crate) fn bytes_of(bytes: usize) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    for unit in units {
        value /= 1024.0;
        // What would round to 1024 takes the next unit.
        if value < 1023.95 || unit == "TiB" {
            return format!("{value:.1} {unit}");
        }
    }
    unreachable!("the last unit takes any value")
}

/// The last `most` characters of a name, because the end of a path says more than its beginning.
pub(crate) fn shortened(name: &str, most: usize) -> String {
    match name.chars().count() {
        count if count <= most => name.to_owned(),
        count => format!("..{}", name.chars().skip(count + 2 - most).collect::<String>()),
    }
}

/// The columns of a name, and of a number.
const NAME: usize = 40;
const NUMBER: usize = 12;

fn row(f: &mut fmt::Formatter<'_>, name: &str, cells: [&dyn Display; 5]) -> fmt::Result {
    write!(f, "| {name:<NAME$} |")?;
    for cell in cells {
        write!(f, " {:>NUMBER$} |", cell.to_string())?;
    }
    writeln!(f)
}

fn line(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "|{}|", "-".repeat(NAME + 2))?;
    for _ in 0..5 {
        write!(f, "{}|", "-".repeat(NUMBER + 2))?;
    }
    writeln!(f)
}

impl Display for MemorySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An app's label may have any letters, and a row is one line.
        let plain = |letter: char| if letter.is_control() || letter == '|' { ' ' } else { letter };
        let inner = |name: &str| {
            let name: String = name.chars().map(plain).collect();
            format!("  {}", shortened(&name, NAME - 2))
        };
        let used = |f: &mut fmt::Formatter<'_>, name: &str, used: &MemoryUse| {
            let (bytes, peak) = (bytes_of(used.bytes), bytes_of(used.peak));
            row(f, name, [&bytes, &peak, &used.blocks(), &used.allocations, &used.frees])
        };
        row(f, "device memory", [&"bytes", &"peak", &"blocks", &"allocations", &"frees"])?;
        line(f)?;
        used(f, "allocated", &self.allocated)?;
        row(f, "reserved", [&bytes_of(self.reserved), &bytes_of(self.peak_reserved), &"", &"", &""])?;
        if self.managed > 0 {
            row(f, "  of it managed memory", [&bytes_of(self.managed), &"", &"", &"", &""])?;
        }
        for (name, bytes) in
            [("padding", self.padding), ("free", self.free), ("largest free block", self.largest_free)]
        {
            row(f, name, [&bytes_of(bytes), &"", &"", &"", &""])?;
        }
        let fragmentation = format!("{:.1} %", 100.0 * self.fragmentation());
        row(f, "fragmentation", [&fragmentation, &"", &"", &"", &""])?;
        used(f, "imported from other libraries", &self.imported)?;
        for (head, rows) in [("by size", &self.classes), ("by label", &self.labels)] {
            line(f)?;
            row(f, head, [&""; 5].map(|cell| cell as &dyn Display))?;
            rows.iter()
                .filter(|row| row.used.allocations > 0)
                .try_for_each(|row| used(f, &inner(&row.name), &row.used))?;
        }
        for (head, holders) in [("by thread", &self.threads), ("by op", &self.ops)] {
            line(f)?;
            row(f, head, [&""; 5].map(|cell| cell as &dyn Display))?;
            holders.iter().try_for_each(|one| {
                row(f, &inner(&one.name), [&bytes_of(one.bytes), &"", &one.blocks, &"", &""])
            })?;
        }
        Ok(())
    }
}

/// A block in use.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryBlock {
    /// Its bytes.
    pub bytes: usize,
    /// The bytes that were asked for.
    pub requested: usize,
    /// The time since it was allocated, if [ops were tracked](crate::memory_track_ops) then.
    pub age: Option<Duration>,
    /// The op that allocated it, if ops were tracked then.
    pub op: Option<&'static str>,
    /// The path of labels that the thread was in.
    pub label: Option<String>,
    /// The thread that allocated it.
    pub thread: String,
}

/// The blocks in use; see [`MemoryPool::snapshot`](crate::MemoryPool::snapshot).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemorySnapshot {
    /// Bytes of the blocks in use.
    pub allocated: usize,
    /// Bytes held from the driver.
    pub reserved: usize,
    /// Memory that other libraries own and tensors use. Not a part of the others.
    pub imported: MemoryUse,
    /// The blocks in use, the largest first.
    pub blocks: Vec<MemoryBlock>,
}

impl MemorySnapshot {
    /// The snapshot as JSON: an object with the numbers `allocated`, `reserved` and `imported` (bytes
    /// of memory that other libraries own), and the list `blocks`. A block has the numbers `bytes` and
    /// `requested`, `age` in seconds, and the texts `op`, `label` and `thread`; `age`, `op` and
    /// `label` may be `null`.
    pub fn to_json(&self) -> String {
        let text = |text: Option<&str>| text.map_or("null".into(), |text| Json(text).to_string());
        let (allocated, reserved, imported) = (self.allocated, self.reserved, self.imported.bytes);
        let mut all =
            format!(r#"{{"allocated":{allocated},"reserved":{reserved},"imported":{imported},"blocks":["#);
        for (number, block) in self.blocks.iter().enumerate() {
            let MemoryBlock { bytes, requested, .. } = block;
            let age = block.age.map_or("null".into(), |age| format!("{:.9}", age.as_secs_f64()));
            let (op, label, thread) = (text(block.op), text(block.label.as_deref()), Json(&block.thread));
            let comma = if number == 0 { "" } else { "," };
            // Writing to a `String` does not fail.
            let _ = write!(all, r#"{comma}{{"bytes":{bytes},"requested":{requested},"age":{age},"#);
            let _ = write!(all, r#""op":{op},"label":{label},"thread":{thread}}}"#);
        }
        all + "]}\n"
    }

    /// Writes [`to_json`](Self::to_json) to a file.
    ///
    /// # Errors
    /// The system's, if the file can't be written. What was there before stays then.
    pub fn write_json(&self, path: impl AsRef<Path>) -> io::Result<()> {
        whole_file::write(path.as_ref(), &self.to_json())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(shortened("encoder/ä", 9), "encoder/ä");
        assert_eq!(shortened("encoder/ää", 9), "..oder/ää");
    }

    #[test]
    fn bytes_have_units() {
        let cases =
            [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1 << 20, "1.0 MiB"), (3 << 29, "1.5 GiB")];
        for (bytes, text) in cases {
            assert_eq!(bytes_of(bytes), text);
        }
        assert_eq!(bytes_of((1 << 20) - 1), "1.0 MiB");
        assert!(bytes_of(usize::MAX).ends_with(" TiB"));
    }
}
