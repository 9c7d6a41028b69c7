//! Device memory and pinned host memory: the pool, buffers, copies, and the fault words that
//! kernels write.

pub(crate) mod arena;
pub(crate) mod buffer;
pub(crate) mod driver;
pub(crate) mod fault;
pub(crate) mod foreign;
pub(crate) mod host;
pub(crate) mod kind;
pub(crate) mod label;
pub(crate) mod last_use;
pub(crate) mod late;
pub(crate) mod ledger;
pub(crate) mod marks;
pub(crate) mod pinned;
pub(crate) mod pool;
pub(crate) mod ready;
pub(crate) mod record;
pub(crate) mod release;
pub(crate) mod span;
pub(crate) mod summary;
pub(crate) mod transfer;
