//! burn-collective, which reduces by copies from device to device, as any app calls it.

use std::sync::{Mutex, PoisonError};
use std::thread;

use burn::backend::{Autodiff, Rocm};
use burn::collective::{
    AllReduceStrategy, CollectiveConfig, PeerId, ReduceOperation, all_reduce, finish_collective, register,
    reset_collective,
};
use burn::data::dataloader::batcher::Batcher;
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::{DType, ElementConversion, Tensor, TensorData, TensorPrimitive};
use burn_rocm::{Rocm as Backend, RocmDevice};

use crate::again::again;
use crate::model::{BATCH, Batch, Batches, Item, Model, agree, divided, items};
use crate::{CHILD, environment, sizes, timeout};

/// A generator of numbers in [-1, 1): SplitMix64.
struct Random(u64);

impl Random {
    /// The seed is printed. `BURN_ROCM_TEST_SEED` repeats a run.
    fn new() -> Self {
        let seed = std::env::var("BURN_ROCM_TEST_SEED").ok().map(|text| text.parse().expect("a number"));
        let seed =
            seed.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(1, |now| now.as_nanos() as u64));
        println!("BURN_ROCM_TEST_SEED={seed}");
        Self(seed)
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn number(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }
}

fn reduced(
    inputs: &[TensorData],
    dtype: DType,
    op: ReduceOperation,
    strategy: AllReduceStrategy,
) -> Vec<TensorData> {
    reset_collective::<Backend>();
    let config =
        CollectiveConfig::default().with_num_devices(inputs.len()).with_local_all_reduce_strategy(strategy);
    thread::scope(|scope| {
        let peer = |(index, data): (usize, &TensorData)| {
            let (config, data) = (config.clone(), data.clone());
            scope.spawn(move || {
                let (id, device) = (PeerId::from(index), RocmDevice::new(index));
                register::<Backend>(id, device.clone(), config).unwrap();
                let tensor = Tensor::<Backend, 2>::from_data(data, (&device, dtype));
                let sum = all_reduce::<Backend>(id, tensor.into_primitive().tensor(), op).unwrap();
                let sum = Tensor::<Backend, 2>::from_primitive(TensorPrimitive::Float(sum));
                assert_eq!(sum.device(), device, "the sum is on the peer's device");
                finish_collective::<Backend>(id).unwrap();
                sum.into_data()
            })
        };
        let threads: Vec<_> = inputs.iter().enumerate().map(peer).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// `n - 1` additions in any order, each rounded to the type by at most `u` of a partial sum, which is
/// at most the sum of the absolute values. A mean rounds once more.
#[test]
fn sums_of_peers_are_those_in_f64() {
    const TEST: &str = "collective::sums_of_peers_are_those_in_f64";
    let Ok(count) = std::env::var(CHILD) else {
        for count in sizes(&["2", "3", "4"]) {
            again(&["--exact", TEST], &environment(&count, timeout()));
        }
        return;
    };
    let count: usize = count.parse().unwrap();
    let mut random = Random::new();
    let strategies = [AllReduceStrategy::Centralized, AllReduceStrategy::Tree(2), AllReduceStrategy::Ring];
    // The unit of rounding of each type.
    let dtypes = [(DType::F64, 53), (DType::F32, 24), (DType::F16, 11), (DType::BF16, 8)];
    for round in 0..24 {
        let strategy = strategies[round % 3];
        let (dtype, digits) = dtypes[random.below(4)];
        let op = [ReduceOperation::Sum, ReduceOperation::Mean][random.below(2)];
        // The ring takes fewer elements than peers by another way.
        let dims = [1 + random.below(5), 1 + random.below(300)];
        let inputs: Vec<TensorData> = (0..count)
            .map(|_| {
                let numbers = (0..dims[0] * dims[1]).map(|_| random.number()).collect();
                TensorData::new::<f64, _>(numbers, dims).convert_dtype(dtype)
            })
            .collect();
        let results = reduced(&inputs, dtype, op, strategy);
        let what = format!("{strategy:?} {op:?} {dtype:?} {dims:?} of {count}");
        let numbers: Vec<Vec<f64>> = inputs.iter().map(|data| data.iter().collect()).collect();
        let by = if op == ReduceOperation::Mean { count as f64 } else { 1.0 };
        for result in &results {
            assert_eq!((result.dtype, &result.shape[..]), (dtype, &dims[..]), "{what}");
            assert_eq!(result.bytes, results[0].bytes, "{what}: the same bits on every peer");
        }
        for (at, found) in results[0].iter::<f64>().enumerate() {
            let of = |f: fn(f64) -> f64| numbers.iter().map(|all| f(all[at])).sum::<f64>() / by;
            let (expected, size) = (of(|x| x), of(f64::abs));
            // Below the type's normal numbers, rounding is absolute.
            let limit = size * count as f64 * 2f64.powi(-digits) + 2f64.powi(-25);
            assert!((found - expected).abs() <= limit, "{what}: {found} instead of {expected}");
        }
    }
}

type B = Autodiff<Rocm<f64>>;

/// The losses of a training whose gradients `reduce` averages.
fn train(
    items: &[Item],
    batch: usize,
    mut model: Model<B>,
    reduce: impl Fn(GradientsParams) -> GradientsParams,
) -> Vec<f64> {
    // A backward pass of Burn 0.21 drops nodes that another thread is just recording (burn#5573).
    static TURN: Mutex<()> = Mutex::new(());
    let device = burn::module::Module::<B>::devices(&model).remove(0);
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.05).init();
    let mut losses = Vec::new();
    for items in items.chunks(batch) {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let batch: Batch<B> = Batches.batch(items.to_vec(), &device);
        let loss = model.loss(batch);
        losses.push(loss.clone().into_scalar().elem());
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        drop(turn);
        model = optimizer.step(0.02, model, reduce(grads));
    }
    losses
}

/// The training loop of Burn's documentation, with a thread for each device.
#[test]
fn gradients_of_peers_train_as_one_device() {
    const TEST: &str = "collective::gradients_of_peers_train_as_one_device";
    let Some(devices) = crate::devices(TEST) else { return };
    let count = devices.len();
    let items = items(count);
    let model = Model::<B>::new(&devices[0]);
    let expected = train(&items, BATCH * count, model.clone(), |grads| grads);
    type Inner = Rocm<f64>;
    let config = CollectiveConfig::default().with_num_devices(count);
    let losses: Vec<Vec<f64>> = thread::scope(|scope| {
        let peer = |(index, (device, items)): (usize, (&RocmDevice, Vec<Item>))| {
            let (device, config) = (device.clone(), config.clone());
            let model = burn::module::Module::<B>::fork(model.clone(), &device);
            scope.spawn(move || {
                let id = PeerId::from(index);
                register::<Inner>(id, device, config).unwrap();
                let losses = train(&items, BATCH, model, |grads| {
                    grads.all_reduce::<Inner>(id, ReduceOperation::Mean).unwrap()
                });
                finish_collective::<Inner>(id).unwrap();
                losses
            })
        };
        let parts = devices.iter().zip(divided(&items, count)).enumerate();
        let threads: Vec<_> = parts.map(peer).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mean = |step| losses.iter().map(|losses| losses[step]).sum::<f64>() / count as f64;
    let found: Vec<f64> = (0..losses[0].len()).map(mean).collect();
    agree("burn-collective", &found, &expected);
}
