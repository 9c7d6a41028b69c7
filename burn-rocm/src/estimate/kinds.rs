//! Which kind of memory a block is: by its label, or guessed from when it lives.

use hip::{MemoryKind, MemoryRecord};

/// The bytes at the peak by kind.
#[derive(Default)]
pub(super) struct AtPeak {
    /// In the order of [`MemoryKind::ALL`].
    pub(super) bytes: [usize; 5],
    /// The bytes whose kind no label says, a part of the above.
    pub(super) guessed: usize,
}

/// A block, with the numbers of the events that hand it out and take it back.
struct Block<'a> {
    from: usize,
    /// `usize::MAX` if the step returns it.
    to: usize,
    bytes: usize,
    label: &'a str,
    op: &'static str,
}

/// The bytes in use at the record's first peak.
pub(super) fn at_peak(record: &MemoryRecord) -> AtPeak {
    let blocks = blocks(record);
    let peak = peak(record);
    let course = Course::of(&blocks);
    let mut sums = AtPeak::default();
    for block in blocks.iter().filter(|block| block.from <= peak && peak < block.to) {
        let kind = MemoryKind::of_path(block.label).unwrap_or_else(|| {
            sums.guessed += block.bytes;
            guess(block, &course)
        });
        sums.bytes[kind as usize] += block.bytes;
    }
    sums
}

fn blocks(record: &MemoryRecord) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    // By the block's number, the last block that was handed out under it.
    let mut last = std::collections::HashMap::new();
    for (number, event) in record.events.iter().enumerate() {
        if event.allocated {
            last.insert(event.block, blocks.len());
            let (bytes, label, op) = (event.bytes, &*event.label, event.op);
            blocks.push(Block { from: number, to: usize::MAX, bytes, label, op });
        } else if let Some(at) = last.remove(&event.block) {
            blocks[at].to = number;
        }
    }
    blocks
}

/// The number of the event with which the bytes in use first reach their peak.
fn peak(record: &MemoryRecord) -> usize {
    let (mut now, mut most, mut at) = (0, 0, 0);
    for (number, event) in record.events.iter().enumerate() {
        match event.allocated {
            true => now += event.bytes,
            false => now -= event.bytes.min(now),
        }
        if now > most {
            (most, at) = (now, number);
        }
    }
    at
}

/// The op in which Burn makes a module's parameters.
const PARAMETERS: &str = "memory_persistent_allocations";

/// The step's course, as numbers of events.
struct Course {
    /// The first gradient. Before it there is no optimizer.
    gradient: usize,
    /// The last allocation. What lives longer is not the step's own.
    last: usize,
}

impl Course {
    fn of(blocks: &[Block<'_>]) -> Self {
        let gradient = blocks.iter().find(|block| is_gradient(block));
        Self {
            gradient: gradient.map_or(usize::MAX, |block| block.from),
            last: blocks.last().map_or(0, |block| block.from),
        }
    }
}

fn is_gradient(block: &Block<'_>) -> bool {
    block.op.contains("backward")
}

fn guess(block: &Block<'_>, course: &Course) -> MemoryKind {
    if block.op == PARAMETERS {
        return MemoryKind::Parameters;
    }
    if is_gradient(block) {
        return MemoryKind::Gradients;
    }
    match (block.to > course.last, block.from > course.gradient) {
        (true, true) => MemoryKind::Optimizer,
        (true, false) => MemoryKind::Parameters,
        (false, _) => MemoryKind::Activations,
    }
}
