//! What the waves of a launch did, counted.

use std::collections::HashMap;

use super::LANES;
use super::class::Class;

/// Bytes of a line, in which global memory moves.
const LINE: u64 = 64;
/// Banks of LDS, each of 4 bytes.
const BANKS: usize = 32;

/// Traffic with one kind of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that lanes asked for.
    pub bytes: u64,
    /// Lines of 64 bytes that hold them: each counts once an instruction of a wave, however many of its lanes share it.
    pub lines: u64,
}

/// The lines of global memory that were accessed at least once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Touched(HashMap<u64, u64>);

impl Touched {
    /// Lines of an entry: one bit each.
    const LINES: u64 = u64::BITS as u64;

    fn insert(&mut self, line: u64) {
        *self.0.entry(line / Self::LINES).or_default() |= 1 << (line % Self::LINES);
    }

    fn merge(&mut self, other: &Self) {
        for (place, lines) in &other.0 {
            *self.0.entry(*place).or_default() |= lines;
        }
    }

    fn count(&self) -> u64 {
        self.0.values().map(|lines| u64::from(lines.count_ones())).sum()
    }
}

impl Traffic {
    /// Adds one instruction's accesses: each lane's first byte and length.
    pub(crate) fn add(&mut self, accesses: impl Iterator<Item = (u64, u64)>, touched: &mut Touched) {
        // A lane has 16 bytes at most, so two lines.
        let (mut lines, mut count) = ([0; 2 * LANES], 0);
        for (at, bytes) in accesses.filter(|&(_, bytes)| bytes > 0) {
            self.bytes += bytes;
            for line in at / LINE..=(at + bytes - 1) / LINE {
                if count < lines.len() {
                    lines[count] = line;
                    count += 1;
                }
            }
        }
        let lines = &mut lines[..count];
        lines.sort_unstable();
        for same in lines.chunk_by(|a, b| a == b) {
            self.lines += 1;
            touched.insert(same[0]);
        }
    }

    fn merge(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.lines += other.lines;
    }
}

/// Counts of a wave, or of all waves of a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Waves that had a lane in the grid.
    pub waves: u64,
    /// Instructions of waves, by [`Class`].
    instructions: [u64; Class::ALL.len()],
    /// Active lanes of those, by [`Class`].
    lanes: [u64; Class::ALL.len()],
    /// Vector loads of global memory.
    pub loads: Traffic,
    /// Vector stores to global memory.
    pub stores: Traffic,
    /// Atomics in global memory.
    pub atomics: Traffic,
    /// Scalar loads.
    pub scalar: Traffic,
    /// The lines of all of these.
    pub(crate) touched: Touched,
    /// Bytes that lanes read, wrote or updated in LDS.
    pub lds_bytes: u64,
    /// Cycles that accesses to LDS take beyond those that they need.
    ///
    /// LDS has 32 banks of 4 bytes. A bank serves one dword a cycle, to all lanes that ask for it; an atomic takes a
    /// cycle a lane. So an access takes as many cycles as its fullest bank has dwords. It needs as many as the same
    /// dwords would take if they lay evenly over the banks.
    pub lds_conflicts: u64,
    /// Accesses of lanes to private memory.
    pub scratch_accesses: u64,
    /// Their bytes.
    pub scratch_bytes: u64,
}

impl Counters {
    /// Of a wave that has run nothing yet; without a lane in the grid it never starts.
    pub(crate) fn of_wave(starts: bool) -> Self {
        Self { waves: starts.into(), ..Self::default() }
    }

    /// Counts an instruction with its active lanes.
    pub(crate) fn instruction(&mut self, class: Class, exec: u32) {
        self.instructions[class as usize] += 1;
        self.lanes[class as usize] += u64::from(exec.count_ones());
    }

    /// Counts an access to LDS: the offsets of the lanes in `mask`.
    pub(crate) fn lds(&mut self, at: &[u32; LANES], mask: u32, bytes: u32, atomic: bool) {
        let (mut dwords, mut count) = ([0; 5 * LANES], 0);
        for (_, at) in at.iter().enumerate().filter(|(lane, _)| mask >> lane & 1 != 0) {
            self.lds_bytes += u64::from(bytes);
            for dword in at / 4..=(at + bytes - 1) / 4 {
                dwords[count] = dword;
                count += 1;
            }
        }
        let dwords = &mut dwords[..count];
        dwords.sort_unstable();
        let mut banks = [0u64; BANKS];
        let mut distinct = 0;
        for same in dwords.chunk_by(|a, b| a == b) {
            let cycles = if atomic { same.len() as u64 } else { 1 };
            banks[same[0] as usize % BANKS] += cycles;
            distinct += cycles;
        }
        let fullest = banks.into_iter().max().unwrap_or(0);
        self.lds_conflicts += fullest - distinct.div_ceil(BANKS as u64);
    }

    /// Adds what other waves did.
    pub fn merge(&mut self, other: &Self) {
        self.waves += other.waves;
        for (sum, count) in self.instructions.iter_mut().zip(other.instructions) {
            *sum += count;
        }
        for (sum, count) in self.lanes.iter_mut().zip(other.lanes) {
            *sum += count;
        }
        self.loads.merge(other.loads);
        self.stores.merge(other.stores);
        self.atomics.merge(other.atomics);
        self.scalar.merge(other.scalar);
        self.touched.merge(&other.touched);
        self.lds_bytes += other.lds_bytes;
        self.lds_conflicts += other.lds_conflicts;
        self.scratch_accesses += other.scratch_accesses;
        self.scratch_bytes += other.scratch_bytes;
    }

    /// Instructions of a class that waves executed.
    pub fn instructions(&self, class: Class) -> u64 {
        self.instructions[class as usize]
    }

    /// The active lanes of those: `lanes / (32 * instructions)` is 1 without divergence.
    pub fn lanes(&self, class: Class) -> u64 {
        self.lanes[class as usize]
    }

    /// Lines of 64 bytes of global memory that were accessed at least once, also by scalar loads.
    /// Private memory does not count.
    pub fn distinct_lines(&self) -> u64 {
        self.touched.count()
    }

    /// Every count with the name of its column, always in the same order.
    pub fn columns(&self) -> Vec<(String, u64)> {
        let mut columns = vec![("waves".to_owned(), self.waves)];
        for class in Class::ALL {
            columns.push((class.name().to_owned(), self.instructions(class)));
            if class.is_vector() {
                columns.push((format!("{}_lanes", class.name()), self.lanes(class)));
            }
        }
        for (name, traffic) in
            [("load", self.loads), ("store", self.stores), ("atomic", self.atomics), ("scalar", self.scalar)]
        {
            columns.push((format!("{name}_bytes"), traffic.bytes));
            columns.push((format!("{name}_lines"), traffic.lines));
        }
        let rest = [
            ("distinct_lines", self.distinct_lines()),
            ("lds_bytes", self.lds_bytes),
            ("lds_conflict_cycles", self.lds_conflicts),
            ("scratch_accesses", self.scratch_accesses),
            ("scratch_bytes", self.scratch_bytes),
        ];
        columns.extend(rest.map(|(name, count)| (name.to_owned(), count)));
        columns
    }
}
