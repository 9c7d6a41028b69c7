//! The decode cache over the machine code of loaded code objects.
//!
//! Code is decoded in basic blocks, each when a wave first enters it. A jump into the middle of a
//! block makes a new block that begins there.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use super::class::Class;
use super::decode::{LONGEST, decode};
use super::exec::Inst;

/// Dwords of code per page of the cache.
const PAGE: usize = 256;
/// Instructions at which a block ends even without a branch.
const MAX_BLOCK: usize = 128;

/// Decoded instructions of all loaded code, shared by all waves.
#[derive(Debug, Default)]
pub struct Code {
    regions: RwLock<Vec<Arc<Region>>>,
}

/// Instructions that run one after another.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) insts: Box<[Inst]>,
    /// One more than the highest vector register used.
    pub(crate) vgprs: usize,
    /// The address after the block.
    pub(crate) end: u64,
    classes: OnceLock<Box<[Class]>>,
}

/// The blocks that begin at the dwords of a page.
type Page = [OnceLock<Box<Block>>; PAGE];

/// The code of one code object.
#[derive(Debug)]
pub(crate) struct Region {
    base: u64,
    len: u64,
    pages: Box<[OnceLock<Box<Page>>]>,
}

impl Code {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares `len` bytes of machine code at the host address `base`. They must stay readable and
    /// unchanged until [`Code::remove`].
    pub fn add(&self, base: u64, len: u64) {
        let pages = (len as usize / 4).div_ceil(PAGE);
        let region = Region { base, len, pages: std::iter::repeat_with(OnceLock::new).take(pages).collect() };
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.retain(|r| r.base != base);
        regions.push(Arc::new(region));
    }

    /// Forgets the code at `base`, as given to [`Code::add`].
    pub fn remove(&self, base: u64) {
        self.regions.write().unwrap_or_else(PoisonError::into_inner).retain(|r| r.base != base);
    }

    /// The region that has the dword at `pc`.
    pub(crate) fn region(&self, pc: u64) -> Option<Arc<Region>> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        regions.iter().find(|r| r.contains(pc)).cloned()
    }
}

impl Block {
    /// The class of each instruction.
    pub(crate) fn classes(&self) -> &[Class] {
        self.classes.get_or_init(|| self.insts.iter().map(|inst| Class::of(inst.op)).collect())
    }
}

impl Region {
    fn contains(&self, pc: u64) -> bool {
        pc.is_multiple_of(4) && pc >= self.base && pc - self.base < self.len / 4 * 4
    }

    /// The block that begins at `pc`; `None` if that lies elsewhere.
    #[inline]
    pub(crate) fn block(&self, pc: u64) -> Option<&Block> {
        if !self.contains(pc) {
            return None;
        }
        let dword = ((pc - self.base) / 4) as usize;
        let page =
            self.pages[dword / PAGE].get_or_init(|| Box::new(std::array::from_fn(|_| OnceLock::new())));
        Some(page[dword % PAGE].get_or_init(|| Box::new(self.decode(pc))))
    }

    #[cold]
    fn decode(&self, pc: u64) -> Block {
        let (mut insts, mut at) = (Vec::new(), pc);
        while insts.len() < MAX_BLOCK && self.contains(at) {
            let mut words = [0; LONGEST];
            let count = (((self.base + self.len - at) / 4) as usize).min(LONGEST);
            for (k, word) in words[..count].iter_mut().enumerate() {
                // SAFETY: the caller of `Code::add` promised `len` readable bytes, and `contains` checked `at`.
                *word = unsafe { (at as *const u32).add(k).read_unaligned() };
            }
            let inst = decode(at, &words[..count]);
            at = inst.next();
            let last = inst.ends_block();
            insts.push(inst);
            if last {
                break;
            }
        }
        let vgprs = insts.iter().map(|i| usize::from(i.vgprs)).max().unwrap_or(0);
        Block { insts: insts.into(), vgprs, end: at, classes: OnceLock::new() }
    }
}
