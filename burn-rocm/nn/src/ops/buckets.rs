//! Which gradients are reduced together, and in which order. All of it depends on the parameters
//! only, so every rank gets the same.

use burn_backend::DType;

/// A parameter that every rank has. Its gradient has this shape and dtype.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) dims: Vec<usize>,
    pub(crate) dtype: DType,
}

impl Entry {
    pub(crate) fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }
}

/// Orders a bucket's parameters: those of whole units of 16 bytes first, so that each of them is
/// aligned.
pub(super) fn aligned_first(members: &mut [usize], entries: &[Entry]) {
    members.sort_by_key(|&member| !entries[member].bytes().is_multiple_of(16));
}

/// Gradients of one dtype that are reduced by one call of the library. Parameters are indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) dtype: DType,
    /// Those whose gradients are packed into one tensor.
    pub(super) packed: Vec<usize>,
    /// Those whose gradients are reduced in their own memory.
    pub(super) whole: Vec<usize>,
    /// Those whose flags are behind the packed gradients: in the dtype's last bucket, all of them.
    pub(super) flags: Vec<usize>,
}

/// There are several buckets if all gradients of a dtype together are larger than this part of a
/// whole one. A single bucket is complete when the backward pass is over, so nothing hides it: an
/// all-reduce of half a bucket (12.5 MiB) takes some 60 us among two H200, one of the last bucket 20.
const SEVERAL: usize = 2;

/// If there are several buckets, the last ones are smaller: each takes half of what is left, but at
/// least this part of a whole one. Their gradients are complete when little or nothing of the backward
/// pass is left to run beside them. On two H200, NCCL reduced 1 MiB in 22 us, so a smaller bucket
/// would hardly take less.
const SMALLEST: usize = 16;

/// If there are several buckets, a gradient of at least this part of a whole one is reduced in its
/// own memory: 1 MiB of 25. A smaller one is copied in less time than the host needs for one more
/// call of RCCL.
const WHOLE: usize = 25;

/// If there are several buckets, a gradient smaller than this part of a whole one is in the last
/// bucket: 64 KiB of 25 MiB. Norms and biases have such gradients. The backward pass may compute
/// them last in a layer, wherever the module lists them, and a bucket that has one would wait.
const LAST: usize = 400;

/// The buckets of one dtype that are being planned.
struct Open {
    dtype: DType,
    /// Whether there are several buckets.
    several: bool,
    /// The parameters of the next bucket, and their bytes.
    members: Vec<usize>,
    bytes: usize,
    /// The bytes of these and of all that come after them, without those of the last bucket.
    left: usize,
    /// The parameters of the last bucket so far, and their bytes.
    last: Vec<usize>,
    last_bytes: usize,
    /// Those that filled a bucket. It comes behind the next one, when they are complete.
    full: Vec<usize>,
    all: Vec<usize>,
}

impl Open {
    fn new(dtype: DType, entries: &[Entry], bytes: usize) -> Self {
        let of = |keep: &dyn Fn(usize) -> bool| {
            let sizes = entries.iter().filter(|entry| entry.dtype == dtype).map(Entry::bytes);
            sizes.filter(|&size| keep(size)).sum()
        };
        let total: usize = of(&|_| true);
        let several = total > bytes / SEVERAL;
        let left = of(&|size| !(several && is_last(size, bytes)));
        let (members, last, full, all) = Default::default();
        Self { dtype, several, members, bytes: 0, left, last, last_bytes: 0, full, all }
    }

    fn limit(&self, bytes: usize) -> usize {
        match self.several {
            true => (self.left / 2).clamp(bytes / SMALLEST, bytes),
            false => bytes,
        }
    }

    fn bucket(&self, members: Vec<usize>, entries: &[Entry], bytes: usize) -> Planned {
        let is_whole = |&member: &usize| {
            let size = entries[member].bytes();
            self.several && size > 0 && size.saturating_mul(WHOLE) >= bytes
        };
        let (whole, packed) = members.into_iter().partition(is_whole);
        Planned { dtype: self.dtype, packed, whole, flags: Vec::new() }
    }
}

fn is_last(size: usize, bytes: usize) -> bool {
    size == 0 || size < bytes / LAST
}

/// Divides the parameters among buckets, beginning with the last one, whose gradient is ready first.
/// `bytes` is the size from which a bucket is full.
pub(super) fn plan(entries: &[Entry], bytes: usize) -> Vec<Planned> {
    let mut all: Vec<Open> = Vec::new();
    let mut plan: Vec<Planned> = Vec::new();
    for (index, entry) in entries.iter().enumerate().rev() {
        let at = all.iter().position(|open| open.dtype == entry.dtype).unwrap_or_else(|| {
            all.push(Open::new(entry.dtype, entries, bytes));
            all.len() - 1
        });
        let (open, size) = (&mut all[at], entry.bytes());
        open.all.push(index);
        if open.several && is_last(size, bytes) {
            open.last.push(index);
            open.last_bytes += size;
            if open.last_bytes >= (bytes / SMALLEST).max(1) {
                open.full.append(&mut open.last);
                open.last_bytes = 0;
            }
            continue;
        }
        open.members.push(index);
        open.bytes += size;
        if open.bytes >= open.limit(bytes) {
            let members = std::mem::take(&mut open.members);
            open.left -= std::mem::take(&mut open.bytes);
            plan.push(open.bucket(members, entries, bytes));
            if !open.full.is_empty() {
                let full = std::mem::take(&mut open.full);
                plan.push(open.bucket(full, entries, bytes));
            }
        }
    }
    for open in &mut all {
        // What is left is in the last bucket, unless it is worth one of its own.
        let mut members = std::mem::take(&mut open.members);
        if open.several && open.bytes > bytes / SMALLEST {
            plan.push(open.bucket(std::mem::take(&mut members), entries, bytes));
        }
        members.append(&mut open.full);
        members.append(&mut open.last);
        if !members.is_empty() {
            plan.push(open.bucket(members, entries, bytes));
        }
        if let Some(last) = plan.iter_mut().rev().find(|bucket| bucket.dtype == open.dtype) {
            last.flags = std::mem::take(&mut open.all);
        }
    }
    plan.iter_mut().for_each(|bucket| aligned_first(&mut bucket.packed, entries));
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn entries(dtype: DType, sizes: &[usize]) -> Vec<Entry> {
        sizes.iter().map(|&size| Entry { dims: vec![size / dtype.size()], dtype }).collect()
    }

    fn sizes(members: &[usize], entries: &[Entry]) -> Vec<usize> {
        members.iter().map(|&member| entries[member].bytes()).collect()
    }

    /// A layer of a transformer with 768 features, as its module lists it: queries, keys, values and
    /// output, the feed-forward layer, two norms.
    fn layer() -> Vec<usize> {
        let linear = |from: usize, to: usize| [4 * from * to, 4 * to];
        let attention = [linear(768, 768); 4].concat();
        [attention, linear(768, 3072).to_vec(), linear(3072, 768).to_vec(), vec![4 * 768; 4]].concat()
    }

    #[test]
    fn what_a_transformer_computes_last_is_small() {
        let entries = entries(DType::F32, &layer().repeat(4));
        let plan = plan(&entries, 25 * MIB);
        let (square, wide) = (4 * 768 * 768, 4 * 768 * 3072);
        let found: Vec<_> = plan.iter().map(|bucket| sizes(&bucket.whole, &entries)).collect();
        let whole = vec![wide, wide, square, square, square, square];
        let first = [&whole[..], &whole, &whole, &[wide, wide], &[square; 2], &[square], &[square]];
        let expected: Vec<_> = first.iter().map(|sizes| sizes.to_vec()).chain([vec![]]).collect();
        assert_eq!(found, expected);
        let (last, rest) = plan.split_last().unwrap();
        assert!(rest.iter().all(|bucket| bucket.packed.is_empty() && bucket.flags.is_empty()));
        assert_eq!((last.packed.len(), last.flags.len()), (4 * 10, entries.len()));
        assert!(sizes(&last.packed, &entries).iter().sum::<usize>() < 200 << 10);
    }

    /// ResNet-18 in bf16, whose gradients are smaller than a bucket.
    #[test]
    fn half_a_bucket_is_divided() {
        let convolution = |from: usize, to: usize| 2 * 9 * from * to;
        let stage = |from: usize, to: usize| {
            let same = convolution(to, to);
            [convolution(from, to), same, 4 * to, 2 * from * to, same, same]
        };
        let stages = [stage(64, 64), stage(64, 128), stage(128, 256), stage(256, 512)];
        let entries = entries(DType::BF16, &stages.concat());
        let total: usize = entries.iter().map(Entry::bytes).sum();
        assert!(total < 25 * MIB && total > 25 * MIB / 2, "{total}");
        let plan = plan(&entries, 25 * MIB);
        let of = |bucket: &Planned| sizes(&[&bucket.packed[..], &bucket.whole].concat(), &entries);
        let bytes: Vec<usize> = plan.iter().map(|bucket| of(bucket).iter().sum()).collect();
        assert!(bytes[0] <= total * 3 / 4 && *bytes.last().unwrap() <= 2 * MIB, "{bytes:?}");
    }

    #[test]
    fn one_bucket_packs_everything() {
        let entries = entries(DType::F32, &[4, 2 * MIB, 40]);
        let found = plan(&entries, 25 * MIB);
        let expected =
            Planned { dtype: DType::F32, packed: vec![1, 2, 0], whole: vec![], flags: vec![2, 1, 0] };
        assert_eq!(found, [expected]);
        assert!(plan(&[], MIB).is_empty());
    }

    #[test]
    fn every_parameter_is_in_one_bucket_and_has_one_flag() {
        let state = std::cell::Cell::new(1u64);
        // Knuth's generator (MMIX).
        let whole = |most: u64| {
            let next = 6364136223846793005u64.wrapping_mul(state.get()).wrapping_add(1442695040888963407);
            state.set(next);
            ((next >> 33) % most) as usize
        };
        for _ in 0..200 {
            let bytes = [0, 1, 300, 5000, 100_000, 1 << 40][whole(6)];
            let mut all = Vec::new();
            for _ in 0..whole(30) {
                let dtype = [DType::F32, DType::F64, DType::BF16][whole(3)];
                let elements = [0, 1, 3, 40, 700, 9000][whole(6)] * (1 + whole(2));
                all.push(Entry { dims: vec![elements], dtype });
            }
            let plan = plan(&all, bytes);
            let sorted = |mut members: Vec<usize>| {
                members.sort_unstable();
                members
            };
            let members = plan.iter().flat_map(|bucket| [&bucket.packed[..], &bucket.whole].concat());
            let expected: Vec<usize> = (0..all.len()).collect();
            assert_eq!(sorted(members.collect()), expected, "{bytes}: {all:?}");
            assert_eq!(sorted(plan.iter().flat_map(|bucket| bucket.flags.clone()).collect()), expected);
            for (at, bucket) in plan.iter().enumerate() {
                let own = [&bucket.packed[..], &bucket.whole, &bucket.flags].concat();
                assert!(own.iter().all(|&member| all[member].dtype == bucket.dtype));
                // A call with no elements.
                let elements = |members: &[usize]| members.iter().map(|&m| all[m].elements()).sum::<usize>();
                assert!(elements(&bucket.packed) + elements(&bucket.whole) + bucket.flags.len() > 0);
                assert!(bucket.whole.iter().all(|&member| all[member].elements() > 0));
                let is_last = plan[at + 1..].iter().all(|other| other.dtype != bucket.dtype);
                assert_eq!(!bucket.flags.is_empty(), is_last, "{bytes}: {all:?}");
            }
        }
    }
}
