//! Which samples a rank computes.

use crate::ops::refuse;

/// How many of a global batch's samples a rank computed, which is its weight in the mean over all
/// ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// `None` if every rank has the same number of samples.
    of: Option<(usize, usize)>,
}

impl Share {
    /// Every rank computed the same number of samples. All ranks must say so, or none.
    pub const EVEN: Self = Self { of: None };

    /// This rank computed `samples` of the `total` samples of all ranks. The other ranks must use
    /// this too, even a rank with just as many samples as the others.
    ///
    /// # Panics
    /// With `Invalid` for more samples than `total`, or a total of 0.
    pub fn of(samples: usize, total: usize) -> Self {
        if samples > total || total == 0 {
            let expected = "a total above 0, and at most that many samples";
            refuse("Share::of", expected, format!("{samples} of {total}"));
        }
        Self { of: Some((samples, total)) }
    }

    /// The factor of this rank's samples in a sum over all ranks; `None` if the mean of the ranks
    /// is the mean of the samples.
    pub(crate) fn weight(&self) -> Option<f64> {
        self.of.map(|(samples, total)| samples as f64 / total as f64)
    }
}

/// The samples of one step: this rank's part of a global batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The indices of this rank's samples in the dataset. Empty if the last global batch has fewer
    /// samples than there are ranks; the rank must then still call
    /// [`reduce`](crate::parallel::DataParallel::reduce), with no gradients.
    pub indices: Vec<usize>,
    /// The weight of these samples.
    pub share: Share,
}

/// Divides a dataset among ranks, shuffled anew in each epoch.
///
/// The order of the samples depends on the seed, the epoch and the length of the dataset only. So
/// the global batches are the same for every number of ranks, and so is each rank's part for every
/// number of threads that load its samples. All ranks take the same number of steps.
///
/// Several workers of Burn's `DataLoader` give batches in the order in which they finish. If a
/// loader's items are the parts, keep each one's step with it and sort by it, or use one worker:
/// all ranks must take the parts of one step together.
#[derive(Clone, Debug)]
pub struct Shards {
    samples: usize,
    batch: usize,
    rank: usize,
    world: usize,
    seed: Option<u64>,
}

impl Shards {
    /// The part of `rank` among `world` ranks in batches of `batch` samples, counted over all
    /// ranks. The samples are in order unless [`shuffled`](Self::shuffled) is called.
    ///
    /// # Panics
    /// With `Invalid` for a batch of 0, or a rank that is not below `world`.
    pub fn new(samples: usize, batch: usize, rank: usize, world: usize) -> Self {
        if batch == 0 || rank >= world {
            let expected = "a batch above 0 and a rank below the number of ranks";
            refuse("Shards::new", expected, format!("a batch of {batch}, rank {rank} of {world}"));
        }
        Self { samples, batch, rank, world, seed: None }
    }

    /// Shuffles the samples in each epoch. All ranks must use one seed.
    pub fn shuffled(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The number of steps of an epoch, on every rank.
    pub fn steps(&self) -> usize {
        self.samples.div_ceil(self.batch)
    }

    /// This rank's parts in an epoch, one for each step. The last global batch is shorter if the
    /// samples don't fill it.
    pub fn epoch(&self, epoch: u64) -> impl Iterator<Item = Part> + use<> {
        let order = match self.seed {
            Some(seed) => order(self.samples, seed, epoch),
            None => (0..self.samples).collect(),
        };
        let Self { samples, batch, rank, world, .. } = *self;
        (0..self.steps()).map(move |step| {
            let begin = step * batch;
            Part::of(&order[begin..samples.min(begin + batch)], rank, world)
        })
    }
}

impl Part {
    /// The part of `rank` in a global batch of these samples. Ranks differ by at most one sample.
    ///
    /// # Panics
    /// With `Invalid` for an empty batch, or a rank that is not below `world`.
    pub fn of(batch: &[usize], rank: usize, world: usize) -> Self {
        let total = batch.len();
        if total == 0 || rank >= world {
            let expected = "at least one sample and a rank below the number of ranks";
            refuse("Part::of", expected, format!("{total} samples, rank {rank} of {world}"));
        }
        let indices = batch[total * rank / world..total * (rank + 1) / world].to_vec();
        let share = match total.is_multiple_of(world) {
            true => Share::EVEN,
            false => Share::of(indices.len(), total),
        };
        Self { indices, share }
    }
}

/// A permutation of `0..samples` (Fisher-Yates, with numbers from SplitMix64).
fn order(samples: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut state = mixed(seed).wrapping_add(epoch);
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(state)
    };
    let mut order: Vec<usize> = (0..samples).collect();
    for last in (1..samples).rev() {
        // The bias of this reduction is below last / 2^64.
        let at = ((u128::from(next()) * (last as u128 + 1)) >> 64) as usize;
        order.swap(last, at);
    }
    order
}

/// The finalizer of SplitMix64 ([Steele et al. 2014](https://doi.org/10.1145/2714064.2660195)).
fn mixed(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The global batches of an epoch, joined from the parts of all ranks.
    fn batches(samples: usize, batch: usize, world: usize, epoch: u64) -> Vec<Vec<usize>> {
        let ranks: Vec<Vec<Part>> = (0..world)
            .map(|rank| Shards::new(samples, batch, rank, world).shuffled(11).epoch(epoch).collect())
            .collect();
        (0..ranks[0].len())
            .map(|step| {
                let total: usize = ranks.iter().map(|parts| parts[step].indices.len()).sum();
                for parts in &ranks {
                    let weight = parts[step].share.weight().unwrap_or(1.0 / world as f64);
                    assert_eq!(weight, parts[step].indices.len() as f64 / total as f64);
                    // All ranks agree on how they reduce.
                    assert_eq!(parts[step].share.weight().is_none(), total.is_multiple_of(world));
                }
                ranks.iter().flat_map(|parts| parts[step].indices.clone()).collect()
            })
            .collect()
    }

    #[test]
    fn global_batches_do_not_depend_on_the_number_of_ranks() {
        for (samples, batch) in [(96, 24), (100, 24), (25, 24), (23, 24), (5, 5), (1, 3), (0, 3)] {
            let alone = batches(samples, batch, 1, 3);
            let mut all: Vec<usize> = alone.concat();
            all.sort();
            assert_eq!(all, (0..samples).collect::<Vec<_>>());
            for world in [2, 3, 4, 7] {
                assert_eq!(batches(samples, batch, world, 3), alone, "{samples} in {batch}, {world} ranks");
            }
        }
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let order = |seed, epoch| order(100, seed, epoch);
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
        assert_ne!(order(1, 1), order(2, 0));
        let in_order = Shards::new(6, 4, 1, 2).epoch(5).map(|part| part.indices).collect::<Vec<_>>();
        assert_eq!(in_order, [vec![2, 3], vec![5]]);
    }

    /// Each sample comes to each place about equally often. With 20,000 draws of 8 places the
    /// chi-squared statistic has 7 degrees of freedom; it exceeds 40.5 once in a million.
    #[test]
    fn orders_are_uniform() {
        let draws = 20_000;
        for sample in [0, 3, 7] {
            let mut counts = [0f64; 8];
            for epoch in 0..draws {
                let place = order(8, 5, epoch).iter().position(|&at| at == sample).expect("a permutation");
                counts[place] += 1.0;
            }
            let expected = draws as f64 / 8.0;
            let statistic: f64 = counts.iter().map(|count| (count - expected).powi(2) / expected).sum();
            assert!(statistic < 40.5, "{sample}: {counts:?}");
        }
    }
}
