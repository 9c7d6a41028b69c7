//! A rank's share of a shuffled dataset, as the workers of Burn's data loader load it.

use std::sync::Arc;

use burn::data::dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher};
use burn::data::dataset::{Dataset, DatasetError, InMemDataset};
use burn::tensor::{Device, Tensor, TensorData};
use burn_rocm_nn_022::parallel::{Part, Shards};

/// A rank's parts of an epoch. An item is a step: its index, the part, and the samples.
struct OfRank {
    parts: Vec<Part>,
    samples: InMemDataset<f32>,
}

type Item = (usize, Part, Vec<f32>);

impl Dataset<Item> for OfRank {
    fn get(&self, step: usize) -> Result<Item, DatasetError> {
        let part = self.parts[step].clone();
        let samples = part.indices.iter().map(|&index| self.samples.get(index));
        let samples = samples.collect::<Result<_, _>>()?;
        Ok((step, part, samples))
    }

    fn len(&self) -> usize {
        self.parts.len()
    }
}

#[derive(Clone, Debug)]
struct Batch {
    step: usize,
    part: Part,
    samples: Tensor<1>,
}

struct Batches;

impl Batcher<Item, Batch> for Batches {
    fn batch(&self, mut items: Vec<Item>, device: &Device) -> Batch {
        let (step, part, samples) = items.remove(0);
        let count = samples.len();
        Batch { step, part, samples: Tensor::from_data(TensorData::new(samples, [count]), device) }
    }
}

/// Without workers, with one, and with three, which take turns as they like.
#[test]
fn any_number_of_workers_loads_the_same_share() {
    const SAMPLES: usize = 50;
    const RANKS: usize = 3;
    // The last global batch has two samples, so that a rank has none.
    const BATCH: usize = 16;
    for epoch in 0..2 {
        let mut all = Vec::new();
        for rank in 0..RANKS {
            let parts: Vec<Part> =
                Shards::new(SAMPLES, BATCH, rank, RANKS).shuffled(7).epoch(epoch).collect();
            for workers in [0, 1, 3] {
                let samples = InMemDataset::new((0..SAMPLES).map(|index| 0.5 * index as f32).collect());
                let loader: Arc<dyn DataLoader<Batch>> = DataLoaderBuilder::new(Batches)
                    .batch_size(1)
                    .num_workers(workers)
                    .set_device(Device::rocm(0))
                    .build(OfRank { parts: parts.clone(), samples });
                let mut loaded = loader.iter().collect::<Result<Vec<Batch>, _>>().unwrap();
                if workers > 1 {
                    loaded.sort_by_key(|batch| batch.step);
                }
                assert_eq!(loaded.len(), parts.len(), "rank {rank}, {workers} workers");
                for (step, (batch, part)) in loaded.iter().zip(&parts).enumerate() {
                    assert_eq!((batch.step, &batch.part), (step, part), "rank {rank}, {workers} workers");
                    let found: Vec<f32> = batch.samples.to_data().iter::<f32>().collect();
                    let expected: Vec<f32> = part.indices.iter().map(|&index| 0.5 * index as f32).collect();
                    assert_eq!(found, expected, "rank {rank}, {workers} workers, step {step}");
                }
            }
            all.extend(parts.into_iter().flat_map(|part| part.indices));
        }
        assert!(!all.is_sorted(), "shuffled");
        all.sort_unstable();
        assert_eq!(all, (0..SAMPLES).collect::<Vec<_>>(), "each sample is in one rank's share");
    }
}
