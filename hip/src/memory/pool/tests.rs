//! The pool over an imitation of a driver.

use super::*;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// A driver with `total` bytes, which never gives the same address twice.
struct Imitation {
    total: usize,
    state: Mutex<(usize, Vec<(usize, usize)>)>,
    /// If set, `wait` is slow: it sends on the first channel, then waits for the second.
    slow: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Backing for Arc<Imitation> {
    fn allocate(&self, bytes: usize) -> Result<Option<usize>> {
        let mut state = self.state.lock().unwrap();
        let used: usize = state.1.iter().map(|(_, size)| size).sum();
        if used + bytes > self.total {
            return Ok(None);
        }
        let address = state.0;
        state.0 += bytes.next_multiple_of(1 << 20);
        state.1.push((address, bytes));
        Ok(Some(address))
    }
    fn release(&self, address: usize) {
        let mut state = self.state.lock().unwrap();
        let at = state.1.iter().position(|(start, _)| *start == address).expect("given by this driver");
        state.1.remove(at);
    }
    fn wait(&self) -> Result<()> {
        if let Some((waiting, go)) = self.slow.lock().unwrap().take() {
            waiting.send(()).unwrap();
            go.recv().unwrap();
        }
        Ok(())
    }
    fn free_and_total(&self) -> Result<(usize, usize)> {
        let used: usize = self.state.lock().unwrap().1.iter().map(|(_, size)| size).sum();
        Ok((self.total - used, self.total))
    }
}

const OPTIONS: Options = Options { limit: None, pooled: true, split: usize::MAX };

fn pool(total: usize) -> (MemoryPool, Arc<Imitation>) {
    pool_with(total, OPTIONS)
}

fn pool_with(total: usize, options: Options) -> (MemoryPool, Arc<Imitation>) {
    let state = Mutex::new((1 << 20, Vec::new()));
    let driver = Arc::new(Imitation { total, state, slow: Mutex::new(None) });
    (MemoryPool::new(Box::new(driver.clone()), options), driver)
}

fn take(pool: &MemoryPool, bytes: usize) -> Result<PoolBlock> {
    pool.allocate(bytes, Purpose::Compute)
}

/// The requested, free and total bytes of an `OutOfMemory`.
#[track_caller]
fn numbers(result: Result<PoolBlock>) -> [usize; 3] {
    match result {
        Err(Error::OutOfMemory { requested, free, total, .. }) => [requested, free, total],
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_freed_block_is_given_out_again() {
    let (pool, driver) = pool(1 << 30);
    let first = take(&pool, 1000).unwrap();
    let address = first.address;
    pool.free(first, 0);
    let second = take(&pool, 1000).unwrap();
    assert_eq!(second.address, address);
    let stats = pool.stats();
    assert_eq!((stats.hits, stats.misses, stats.allocated, stats.peak), (1, 1, 1024, 1024));
    assert_eq!(stats.reserved, 8 << 20);
    pool.free(second, 0);
    assert_eq!(pool.clear().unwrap(), 8 << 20);
    assert_eq!(pool.stats().reserved, 0);
    assert!(driver.state.lock().unwrap().1.is_empty());
}

#[test]
fn blocks_and_segments_are_counted() {
    let (pool, _) = pool(1 << 30);
    let small: Vec<_> = (0..3).map(|_| take(&pool, 1000).unwrap()).collect();
    let large = take(&pool, 40 << 20).unwrap();
    let whole = take(&pool, 100 << 20).unwrap();
    let stats = pool.stats();
    assert_eq!((stats.blocks, stats.padding), (5, 3 * 24));
    assert_eq!(stats.allocated, 3 * 1024 + (140 << 20));
    let of = |size: usize, held, peak, largest| SegmentStats { size, held, peak, largest };
    let [none, also_none] = [of(32 << 20, 0, 0, 0), of(8 << 20, 0, 0, 0)];
    assert_eq!(pool.segments(), [of(8 << 20, 1, 1, 1000), of(64 << 20, 1, 1, 40 << 20), none, also_none]);
    for block in small.into_iter().chain([large, whole]) {
        pool.free(block, 0);
    }
    let stats = pool.stats();
    assert_eq!((stats.blocks, stats.padding, stats.allocated), (0, 0, 0));
    pool.clear().unwrap();
    assert_eq!(pool.segments(), [of(8 << 20, 0, 1, 1000), of(64 << 20, 0, 1, 40 << 20), none, also_none]);
}

#[test]
fn clear_keeps_what_is_in_use() {
    let (pool, _) = pool(1 << 30);
    let small = take(&pool, 100).unwrap();
    let large = take(&pool, 100 << 20).unwrap();
    pool.free(large, 0);
    assert_eq!(pool.clear().unwrap(), 100 << 20);
    assert_eq!(pool.stats().reserved, 8 << 20);
    pool.free(small, 0);
}

#[test]
fn out_of_memory_frees_the_cache_and_tries_again() {
    let (pool, _) = pool(256 << 20);
    let cached = take(&pool, 200 << 20).unwrap();
    pool.free(cached, 0);
    // Neither the cached 200 MiB block nor the remaining 56 MiB hold 240 MiB.
    let block = take(&pool, 240 << 20).unwrap();
    assert_eq!(pool.stats().reserved, 240 << 20);
    // A small request no longer gets a whole segment, but it gets the memory that it needs.
    let tiny = take(&pool, 8 << 20).unwrap();
    assert_eq!(pool.stats().reserved, 248 << 20);
    assert_eq!(numbers(take(&pool, 64 << 20)), [64 << 20, 8 << 20, 256 << 20]);
    // The next op works.
    pool.free(block, 0);
    pool.free(tiny, 0);
    let again = take(&pool, 64 << 20).unwrap();
    pool.free(again, 0);
}

#[test]
fn memory_that_another_thread_is_giving_back_is_waited_for() {
    let (pool, driver) = pool(256 << 20);
    let cached = take(&pool, 200 << 20).unwrap();
    pool.free(cached, 0);
    let ((waiting, is_waiting), (tell, go)) = (channel(), channel());
    *driver.slow.lock().unwrap() = Some((waiting, go));
    std::thread::scope(|scope| {
        let pool = &pool;
        let clearing = scope.spawn(|| pool.clear());
        is_waiting.recv().unwrap();
        // The segment is out of the lists, and the driver does not have it back yet.
        let (answer, answered) = channel();
        scope.spawn(move || answer.send(take(pool, 200 << 20)).unwrap());
        let early = answered.recv_timeout(Duration::from_millis(300));
        tell.send(()).unwrap();
        assert_eq!(clearing.join().unwrap(), Ok(200 << 20));
        let block = early.or_else(|_| answered.recv()).unwrap().expect("memory was about to come back");
        pool.free(block, 0);
    });
    assert_eq!(pool.stats().reserved, 200 << 20);
}

#[test]
fn impossible_sizes_are_out_of_memory() {
    let (pool, _) = pool(256 << 20);
    for bytes in [1 << 30, usize::MAX / 2, usize::MAX] {
        let error = take(&pool, bytes).unwrap_err();
        assert!(
            matches!(error, Error::OutOfMemory { requested, total, .. } if requested == bytes && total == 256 << 20)
        );
    }
}

#[test]
fn the_limit_holds() {
    let (pool, _) = pool(1 << 30);
    pool.set_limit(Some(32 << 20));
    let block = take(&pool, 20 << 20).unwrap();
    assert_eq!(numbers(take(&pool, 16 << 20)), [16 << 20, 12 << 20, 32 << 20]);
    pool.free(block, 0);
    let other = take(&pool, 30 << 20).unwrap();
    assert!(pool.stats().reserved <= 32 << 20);
    pool.free(other, 0);
    pool.set_limit(None);
    assert!(take(&pool, 512 << 20).is_ok());
}

#[test]
fn transfer_blocks_are_apart_and_keep_their_fence() {
    let (pool, _) = pool(1 << 30);
    let upload = pool.allocate(1 << 20, Purpose::Transfer).unwrap();
    assert_eq!(upload.fence, 0);
    let address = upload.address;
    pool.free(upload, 42);
    assert_ne!(take(&pool, 1 << 20).unwrap().address, address);
    let again = pool.allocate(1 << 20, Purpose::Transfer).unwrap();
    assert_eq!((again.address, again.fence), (address, 42));
}

#[test]
fn persistent_blocks_are_apart() {
    let (pool, _) = pool(1 << 30);
    let (transient, other) = (take(&pool, 1000).unwrap(), super::tests::pool(1 << 30).0);
    let kept = pool.persistently(|| {
        // Other pools are not affected, nor is this pool on other threads.
        let block = take(&other, 1000).unwrap();
        assert_eq!(other.stats().persistent, 0);
        other.free(block, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| pool.free(take(&pool, 5000).unwrap(), 0));
        });
        assert_eq!(pool.stats().persistent_reserved, 0);
        pool.persistently(|| take(&pool, 3000).unwrap())
    });
    let stats = pool.stats();
    assert_eq!((stats.persistent, stats.persistent_reserved), (3072, 8 << 20));
    assert_eq!((stats.allocated, stats.reserved), (4096, 16 << 20));
    let address = kept.address;
    pool.free(kept, 7);
    assert_eq!(pool.stats().persistent, 0);
    // Only the next persistent allocation reuses the memory, whatever its purpose.
    let next = take(&pool, 3000).unwrap();
    assert_ne!(next.address, address);
    let again = pool.persistently(|| pool.allocate(3000, Purpose::Transfer).unwrap());
    assert_eq!((again.address, again.fence, again.fenced()), (address, 7, true));
    for block in [transient, next, again] {
        pool.free(block, 0);
    }
    pool.clear().unwrap();
    let stats = pool.stats();
    assert_eq!((stats.reserved, stats.persistent_reserved), (0, 0));
    // A panic ends it too.
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pool.persistently(|| panic!())));
    assert!(caught.is_err());
    let block = take(&pool, 100).unwrap();
    assert_eq!(pool.stats().persistent, 0);
    pool.free(block, 0);
}

#[test]
fn threads_share_a_pool() {
    let (pool, driver) = pool(1 << 30);
    std::thread::scope(|scope| {
        for seed in 0..4usize {
            let pool = &pool;
            scope.spawn(move || {
                for i in 0..2000usize {
                    let a = take(pool, (i * 37 + seed) % 100_000).unwrap();
                    let b = take(pool, (i * 91 + seed) % 5_000_000).unwrap();
                    assert_ne!(a.address, b.address);
                    pool.free(a, 0);
                    if i % 500 == 0 {
                        pool.clear().unwrap();
                    }
                    pool.free(b, 0);
                }
            });
        }
    });
    assert_eq!(pool.stats().allocated, 0);
    pool.clear().unwrap();
    assert_eq!(pool.stats().reserved, 0);
    assert!(driver.state.lock().unwrap().1.is_empty());
}

fn used(rows: &[crate::MemoryRow], name: &str) -> crate::MemoryUse {
    rows.iter().find(|row| row.name == name).map(|row| row.used).unwrap_or_default()
}

#[test]
fn the_summary_is_the_sum_of_the_blocks() {
    let (pool, _) = pool(1 << 30);
    let small = take(&pool, 1000).unwrap();
    let (inner, outer) = {
        let _model = crate::memory_label("pool-tests");
        let outer = take(&pool, 2 << 20).unwrap();
        let _layer = crate::memory_label("layer");
        (take(&pool, 100 << 20).unwrap(), outer)
    };
    let summary = pool.summary();
    let sum = |bytes, peak, allocations, frees| crate::MemoryUse { bytes, peak, allocations, frees };
    let [a, b, c] = [1024, 2 << 20, 100 << 20];
    assert_eq!(summary.allocated, sum(a + b + c, a + b + c, 3, 0));
    assert_eq!(used(&summary.labels, "(no label)"), sum(a, a, 1, 0));
    assert_eq!(used(&summary.labels, "pool-tests"), sum(b + c, b + c, 2, 0));
    assert_eq!(used(&summary.labels, "pool-tests/layer"), sum(c, c, 1, 0));
    assert_eq!(used(&summary.classes, "up to 4.0 KiB"), sum(a, a, 1, 0));
    assert_eq!(used(&summary.classes, "up to 256.0 MiB"), sum(c, c, 1, 0));
    assert_eq!((summary.reserved, summary.peak_reserved), (172 << 20, 172 << 20));
    assert_eq!((summary.padding, summary.free), (24, (172 << 20) - a - b - c));
    assert_eq!(summary.largest_free, 62 << 20);
    let expected = 1.0 - (62 << 20) as f64 / summary.free as f64;
    assert!((summary.fragmentation() - expected).abs() < 1e-12, "{}", summary.fragmentation());
    // A label's bytes go when its block goes, whatever label the thread is in then.
    pool.free(inner, 0);
    pool.reset_peak();
    pool.clear().unwrap();
    let summary = pool.summary();
    assert_eq!(used(&summary.labels, "pool-tests"), sum(b, b, 2, 1));
    assert_eq!(used(&summary.labels, "pool-tests/layer"), sum(0, 0, 1, 1));
    assert_eq!((summary.reserved, summary.peak_reserved), (72 << 20, 172 << 20));
    pool.reset_peak();
    assert_eq!(pool.summary().peak_reserved, 72 << 20);
    let snapshot = pool.snapshot();
    let blocks: Vec<_> = snapshot.blocks.iter().map(|b| (b.bytes, b.requested, b.label.as_deref())).collect();
    assert_eq!(blocks, [(b, b, Some("pool-tests")), (a, 1000, None)]);
    pool.free(small, 0);
    pool.free(outer, 0);
    assert_eq!(pool.summary().allocated, sum(0, a + b, 3, 3));
    assert!(pool.snapshot().blocks.is_empty());
}

#[test]
fn out_of_memory_names_what_holds_the_memory() {
    let (pool, _) = pool(64 << 20);
    let blocks: Vec<_> = ["a", "b", "c", "d", "e"]
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let _label = crate::memory_label(name);
            take(&pool, (6 - at) << 20).unwrap()
        })
        .collect();
    let text = take(&pool, 128 << 20).unwrap_err().to_string();
    let expected = "in use: 20.0 MiB in 5 blocks, the largest 6.0 MiB; \
        by label: a 6.0 MiB, b 5.0 MiB, c 4.0 MiB, d 3.0 MiB, 1 more; ";
    assert!(text.contains(expected), "{text}");
    assert!(!text.contains("between") && !text.contains("limit"), "{text}");
    for block in blocks {
        pool.free(block, 0);
    }
}

#[test]
fn out_of_memory_names_fragments_and_the_limit() {
    let (pool, _) = pool(1 << 30);
    pool.set_limit(Some(64 << 20));
    let mut blocks: Vec<_> = (0..16).map(|_| take(&pool, 4 << 20).unwrap()).collect();
    let mut number = 0;
    for block in blocks.extract_if(.., |_| {
        number += 1;
        number % 2 == 0
    }) {
        pool.free(block, 0);
    }
    let text = take(&pool, 8 << 20).unwrap_err().to_string();
    for part in [
        "asked for 8388608 bytes, 0 free of 67108864; in use: 32.0 MiB in 8 blocks",
        "32.0 MiB are free between blocks in use, at most 4.0 MiB in one piece",
        "the pool's limit is 64.0 MiB (BURN_ROCM_MEMORY_LIMIT, ",
    ] {
        assert!(text.contains(part), "`{part}` in `{text}`");
    }
    for block in blocks {
        pool.free(block, 0);
    }
}

#[test]
fn without_pooling_each_block_is_the_drivers() {
    let (pool, driver) = pool_with(1 << 30, Options { pooled: false, ..OPTIONS });
    let regions = || driver.state.lock().unwrap().1.iter().map(|(_, size)| *size).collect::<Vec<_>>();
    let blocks = [0, 1, 1000, 3 << 20].map(|bytes| take(&pool, bytes).unwrap());
    // As they were asked for, so that a memory checker sees the bounds.
    assert_eq!(regions(), [1, 1, 1000, 3 << 20]);
    let uploaded = pool.allocate(5000, Purpose::Transfer).unwrap();
    let kept = pool.persistently(|| take(&pool, 70)).unwrap();
    assert_eq!(regions(), [1, 1, 1000, 3 << 20, 5000, 70]);
    let [first, second, third, fourth] = blocks;
    pool.free(third, 0);
    pool.free(uploaded, 7);
    // Only an allocation may wait for the device, so the regions stay until then.
    assert_eq!(regions().len(), 6);
    let again = take(&pool, 1000).unwrap();
    assert_eq!(regions(), [1, 1, 3 << 20, 70, 1000]);
    for block in [first, second, fourth, kept, again] {
        pool.free(block, 0);
    }
    pool.clear().unwrap();
    let stats = pool.stats();
    assert_eq!((stats.allocated, stats.reserved, stats.persistent_reserved, stats.hits), (0, 0, 0, 0));
    assert!(regions().is_empty());
}

#[test]
fn without_pooling_a_capture_does_not_wait() {
    let (pool, driver) = pool_with(1 << 30, Options { pooled: false, ..OPTIONS });
    pool.free(take(&pool, 100).unwrap(), 0);
    let graph = pool.begin_graph();
    // `wait` would block.
    let (waiting, _waits) = channel();
    let (_go, go) = channel();
    *driver.slow.lock().unwrap() = Some((waiting, go));
    let captured = pool.allocate(200, Purpose::Captured).unwrap();
    let other = take(&pool, 300).unwrap();
    pool.end_capture();
    assert!(driver.slow.lock().unwrap().take().is_some(), "the pool waited");
    pool.free(captured, 0);
    pool.end_graph(graph);
    pool.free(other, 0);
    pool.clear().unwrap();
    assert_eq!(pool.stats().reserved, 0);
}

#[test]
fn a_graphs_large_pieces_are_not_split_after_it() {
    let (pool, _) = pool_with(1 << 30, Options { split: 32 << 20, ..OPTIONS });
    let graph = pool.begin_graph();
    let captured = pool.allocate(90 << 20, Purpose::Captured).unwrap();
    let place = captured.address;
    pool.free(captured, 0);
    // The graph's own requests share the memory.
    let shared = pool.allocate(40 << 20, Purpose::Captured).unwrap();
    assert_eq!(shared.address, place);
    pool.end_capture();
    pool.free(shared, 0);
    pool.end_graph(graph);
    let small = [1000, 2 << 20, 32 << 20].map(|bytes| take(&pool, bytes).unwrap());
    assert!(small.iter().all(|block| block.address != place));
    let large = take(&pool, 90 << 20).unwrap();
    assert_eq!(large.address, place);
    for block in small.into_iter().chain([large]) {
        pool.free(block, 0);
    }
    pool.clear().unwrap();
    assert_eq!((pool.stats().allocated, pool.stats().reserved), (0, 0));
}

#[test]
fn large_pieces_are_not_split() {
    let (pool, _) = pool_with(1 << 30, Options { split: 32 << 20, ..OPTIONS });
    let large = take(&pool, 90 << 20).unwrap();
    let place = large.address;
    pool.free(large, 0);
    // A small request, and one that would waste more than a ninth, leave it whole.
    let others = [1000, 2 << 20, 32 << 20, 70 << 20].map(|bytes| take(&pool, bytes).unwrap());
    assert!(others.iter().all(|block| block.address != place));
    let reserved = pool.stats().reserved;
    let near = take(&pool, 81 << 20).unwrap();
    assert_eq!((near.address, pool.stats().reserved), (place, reserved));
    // What it has beyond the request counts as padding.
    let small = [1000, 2 << 20, 32 << 20, 70 << 20].map(|bytes| rounded(bytes).unwrap() - bytes);
    assert_eq!(pool.stats().padding, (9 << 20) + small.iter().sum::<usize>());
    assert_eq!(pool.segments().len(), 4);
    // If memory is short, it goes back to the driver as all cached memory does.
    pool.free(near, 0);
    pool.set_limit(Some(reserved));
    let whole = take(&pool, 60 << 20).unwrap();
    for block in others.into_iter().chain([whole]) {
        pool.free(block, 0);
    }
    pool.clear().unwrap();
    assert_eq!((pool.stats().allocated, pool.stats().reserved), (0, 0));
}

#[test]
fn a_failure_that_somebody_made_up_for_is_not_named() {
    let (pool, _) = pool(64 << 20);
    let fails = |bytes| drop(take(&pool, bytes).unwrap_err());
    let named = || match pool.failure() {
        Some(Error::OutOfMemory { requested, .. }) => requested >> 20,
        None => 0,
        other => panic!("{other:?}"),
    };
    fails(100 << 20);
    fails(200 << 20);
    // The thread does without the second.
    pool.made_up_for(1);
    assert_eq!(named(), 100);
    pool.made_up_for(1);
    assert_eq!(named(), 0);

    // An excuse is for its own thread's failures, whatever others see meanwhile.
    fails(100 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| fails(300 << 20));
    });
    pool.made_up_for(1);
    assert_eq!(named(), 300);
    pool.made_up_for(1);
    assert_eq!(named(), 300);

    // More than are kept.
    let (pool, _) = pool_with(64 << 20, OPTIONS);
    (0..3 * FAILURES).for_each(|_| drop(take(&pool, 100 << 20).unwrap_err()));
    pool.made_up_for(3 * FAILURES as u64 - 1);
    assert!(pool.failure().is_some());
    pool.made_up_for(1);
    assert_eq!(pool.failure(), None);
}
