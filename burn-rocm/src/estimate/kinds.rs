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
    /// `usize::MAX` if it outlives the record.
    to: usize,
    bytes: usize,
    label: &'a str,
    op: &'static str,
}

impl Block<'_> {
    fn lives_at(&self, event: usize) -> bool {
        self.from <= event && event < self.to
    }
}

/// The bytes in use at the record's first peak.
pub(super) fn at_peak(record: &MemoryRecord) -> AtPeak {
    let blocks = blocks(record);
    let peak = peak(record);
    let course = Course::new(&blocks, peak);
    let mut sums = AtPeak::default();
    for block in blocks.iter().filter(|block| block.lives_at(peak)) {
        let kind = MemoryKind::of_path(block.label).unwrap_or_else(|| {
            sums.guessed += block.bytes;
            course.guess(block)
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
/// The op with which Burn begins a backward pass: the gradient of the loss, a block of the least
/// size.
const SEED: (&str, usize) = ("float_ones", 256);

fn is_backward(block: &Block<'_>) -> bool {
    block.op.contains("backward")
}

/// The first allocation of each backward pass. Ones of the same size may also be made elsewhere, so
/// those are chosen after which the first op with `backward` in its name comes. Without such an op
/// there is no pass.
fn backward_passes(blocks: &[Block<'_>]) -> Vec<usize> {
    let seeds = blocks.iter().filter(|block| (block.op, block.bytes) == SEED).map(|block| block.from);
    let (mut seeds, mut passes) = (seeds.peekable(), Vec::new());
    for block in blocks.iter().filter(|block| is_backward(block)) {
        let mut seed = None;
        while let Some(next) = seeds.next_if(|&next| next < block.from) {
            seed = Some(next);
        }
        match seed {
            Some(seed) => passes.push(seed),
            None if passes.is_empty() => passes.push(block.from),
            None => {}
        }
    }
    passes
}

/// The step's course around the peak, as numbers of events.
struct Course {
    /// The first backward pass. Before it there is no optimizer.
    first: Option<usize>,
    /// The last backward pass before the peak.
    before: Option<usize>,
    /// The first one after it.
    after: Option<usize>,
    /// Whether the peak is in the forward pass of `after`.
    is_forward: bool,
    /// The last allocation. What lives longer is not the step's own.
    last: usize,
    /// Whether the optimizer says what its state is.
    is_labelled: bool,
}

impl Course {
    fn new(blocks: &[Block<'_>], peak: usize) -> Self {
        let passes = backward_passes(blocks);
        let (before, after) = passes.split_at(passes.partition_point(|&pass| pass <= peak));
        let mut course = Self {
            first: passes.first().copied(),
            before: before.last().copied(),
            after: after.first().copied(),
            is_forward: false,
            last: blocks.last().map_or(0, |block| block.from),
            is_labelled: blocks.iter().any(|b| MemoryKind::of_path(b.label) == Some(MemoryKind::Optimizer)),
        };
        // What one backward pass leaves to the next is no gradient.
        course.is_forward = course.before.zip(course.after).is_some_and(|(before, after)| {
            let mut later = blocks.iter().filter(|block| block.from > before && block.lives_at(peak));
            later.any(|block| block.lives_at(after) && !course.is_outlived_by(block))
        });
        course
    }

    fn is_outlived_by(&self, block: &Block<'_>) -> bool {
        block.to > self.last
    }

    fn guess(&self, block: &Block<'_>) -> MemoryKind {
        if block.op == PARAMETERS {
            return MemoryKind::Parameters;
        }
        if is_backward(block) {
            return MemoryKind::Gradients;
        }
        let stays = self.is_outlived_by(block);
        let is_first = self.first.is_none_or(|first| block.from < first);
        match self.before.is_some_and(|before| block.from >= before) {
            false if stays && is_first => MemoryKind::Parameters,
            false if stays => MemoryKind::Optimizer,
            false => MemoryKind::Activations,
            // Several steps have made the optimizer's state before the last one.
            true if self.after.is_none() && (self.first != self.before || self.is_labelled) => {
                MemoryKind::Gradients
            }
            true if stays => MemoryKind::Optimizer,
            true if self.is_forward => MemoryKind::Activations,
            true => MemoryKind::Gradients,
        }
    }
}
