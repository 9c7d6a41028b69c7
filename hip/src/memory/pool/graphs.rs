//! The memory of captured graphs, which run again and again on the same addresses.
//!
//! What a capture allocates comes from the graph's own arena. So the graph's work can use one block
//! for several tensors in turn, and no other work can use it. The graph also *holds* the other
//! blocks that its work uses: if such a block is freed, the pool gives it out again only after the
//! graph has ended.

use std::collections::{HashMap, HashSet};

use super::{ARENAS, MemoryPool, PoolBlock, SMALL, State, WHOLE};
use crate::error::{Error, Result};
use crate::memory::arena::{Arena, Taken};
use crate::memory::ledger::Entry;

/// How many bytes a graph's arena takes from the other arenas at a time, for small requests. A
/// larger request takes as much as it needs.
const SEGMENT: usize = 2 << 20;

/// A pool's graphs.
#[derive(Default)]
pub(super) struct Graphs {
    /// Each graph's memory, by the number of its arena. The numbers begin at [`ARENAS`].
    memory: HashMap<usize, GraphMemory>,
    /// How many captures have begun.
    begun: usize,
    /// The number of the graph that is being captured.
    captured: Option<usize>,
    /// The blocks that graphs hold, by address.
    held: HashMap<usize, Held>,
}

struct GraphMemory {
    arena: Arena,
    /// The blocks of the other arenas that this arena is made of.
    segments: Vec<PoolBlock>,
    /// The addresses of the blocks that are held.
    held: HashSet<usize>,
    /// Whether the graph has ended. Its tensors may outlive it.
    ended: bool,
}

/// A block that graphs hold.
#[derive(Default)]
struct Held {
    graphs: usize,
    /// The block and its fence, once its owner has freed it.
    freed: Option<(PoolBlock, u64)>,
}

impl MemoryPool {
    /// Allocates from the memory of the graph that is being captured.
    pub(super) fn allocate_captured(&self, bytes: usize, size: usize) -> Result<PoolBlock> {
        let mut state = self.state();
        let (arena, graph) = state.graphs.captured()?;
        // The ledger lists the segments that the graph's memory is made of.
        let of_graph = |Taken { address, id, .. }| PoolBlock {
            address,
            fence: 0,
            arena,
            id,
            requested: bytes,
            entry: Entry::NONE,
        };
        if let Some(taken) = graph.arena.take(size) {
            state.stats.hits += 1;
            return Ok(of_graph(taken));
        }
        drop(state);
        // Within the graph, smaller requests may share what is larger than `split`: the graph keeps
        // the memory in any case, and gives it back whole.
        let (segment, from) = match size {
            _ if size <= SMALL => (SEGMENT, 0),
            _ if size <= self.split => (size, 1),
            _ => (size, WHOLE),
        };
        let block = self.allocate_in(from, segment, segment)?;
        let mut state = self.state();
        let (_, graph) = state.graphs.captured()?;
        let taken = graph.arena.add_segment(block.address, segment, size);
        graph.segments.push(block);
        state.stats.graphs += segment;
        Ok(of_graph(taken))
    }

    /// Makes the memory of a new graph, and returns its number for the calls below. Only one graph
    /// is captured at a time.
    pub(crate) fn begin_graph(&self) -> usize {
        let Graphs { memory, begun, captured, .. } = &mut self.state().graphs;
        let number = ARENAS + *begun;
        *begun += 1;
        let (arena, segments, held) = (Arena::new(), Vec::new(), HashSet::new());
        memory.insert(number, GraphMemory { arena, segments, held, ended: false });
        *captured = Some(number);
        number
    }

    /// Ends the capture. The graph's memory is kept as it is.
    pub(crate) fn end_capture(&self) {
        self.state().graphs.captured = None;
    }

    /// Makes the graph that is being captured hold a block, because its work uses the block.
    pub(crate) fn hold(&self, block: &PoolBlock) {
        let graphs = &mut self.state().graphs;
        let Ok((number, graph)) = graphs.captured() else { return };
        if block.arena != number && graph.held.insert(block.address) {
            graphs.held.entry(block.address).or_default().graphs += 1;
        }
    }

    /// Whether a block belongs to the graph that is being captured.
    pub(crate) fn is_captured(&self, block: &PoolBlock) -> bool {
        self.state().graphs.captured == Some(block.arena)
    }

    /// Whether a block belongs to a graph's memory, or a graph holds it.
    pub(crate) fn is_of_graph(&self, block: &PoolBlock) -> bool {
        let graphs = &self.state().graphs;
        graphs.memory.contains_key(&block.arena) || graphs.held.contains_key(&block.address)
    }

    /// Whether a block belongs to the memory of a graph that has not ended. `false` for the graph in
    /// progress if the caller captures it, as `captures` says.
    pub(crate) fn is_replayed(&self, block: &PoolBlock, captures: bool) -> bool {
        let graphs = &self.state().graphs;
        let lives = graphs.memory.get(&block.arena).is_some_and(|graph| !graph.ended);
        lives && !(captures && graphs.captured == Some(block.arena))
    }

    /// Ends a graph, whose work the device has passed or will never run.
    pub(crate) fn end_graph(&self, number: usize) {
        let mut state = self.state();
        for (block, fence) in state.graphs.end(number) {
            state.free(block, fence);
        }
        state.take_back(number);
    }
}

impl Graphs {
    /// Whether a graph is being captured.
    pub(super) fn captures(&self) -> bool {
        self.captured.is_some()
    }

    /// The graph that is being captured, with its number.
    fn captured(&mut self) -> Result<(usize, &mut GraphMemory)> {
        let captured = self.captured.and_then(|number| Some((number, self.memory.get_mut(&number)?)));
        captured.ok_or_else(|| Error::invalid("captured memory", "a capture in progress", "none"))
    }

    /// Ends a graph. Returns the freed blocks that no graph holds any more.
    fn end(&mut self, number: usize) -> Vec<(PoolBlock, u64)> {
        let Some(graph) = self.memory.get_mut(&number) else { return Vec::new() };
        graph.ended = true;
        let mut freed = Vec::new();
        for address in std::mem::take(&mut graph.held) {
            let Some(held) = self.held.get_mut(&address) else { continue };
            held.graphs -= 1;
            if held.graphs == 0 {
                freed.extend(self.held.remove(&address).and_then(|held| held.freed));
            }
        }
        freed
    }

    /// Keeps a freed block if a graph holds it, and returns the block otherwise.
    pub(super) fn keep(&mut self, block: PoolBlock, fence: u64) -> Option<PoolBlock> {
        match self.held.get_mut(&block.address) {
            // The fence remains right, because the device has passed the graph's work before the
            // graph ends.
            Some(held) => {
                held.freed = Some((block, fence));
                None
            }
            None => Some(block),
        }
    }
}

impl State {
    /// Frees a block of a graph's own arena.
    pub(super) fn free_captured(&mut self, block: PoolBlock) {
        if let Some(graph) = self.graphs.memory.get_mut(&block.arena) {
            graph.arena.free(block.id, 0);
            self.take_back(block.arena);
        }
    }

    /// Frees the part of an ended graph's memory that no living tensor uses.
    fn take_back(&mut self, number: usize) {
        let Some(graph) = self.graphs.memory.get_mut(&number).filter(|graph| graph.ended) else { return };
        let mut free = Vec::new();
        for (address, bytes) in graph.arena.remove_free_segments() {
            let at = graph.segments.iter().position(|segment| segment.address == address);
            free.extend(at.map(|at| (graph.segments.swap_remove(at), bytes)));
        }
        if graph.segments.is_empty() {
            self.graphs.memory.remove(&number);
        }
        for (segment, bytes) in free {
            self.stats.graphs -= bytes;
            self.free(segment, 0);
        }
    }
}
