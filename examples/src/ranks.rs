//! Training on several devices: a thread for each, or a process for each.

use burn::backend::Autodiff;
use burn::module::{AutodiffModule, Module};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn_rocm::rendezvous::{Rendezvous, World};
use burn_rocm::{Communicator, Rocm, RocmDevice, RocmError};
use burn_rocm_nn::parallel::{DataParallel, Part, Share};

use crate::data::Data;
use crate::error::Error;
use crate::mnist::same;
use crate::model::Model;
use crate::progress::{History, Options};
use crate::train::{Together, train_together};

/// This process's ranks.
pub struct Ranks {
    communicators: Vec<Communicator>,
    /// The connections to the other processes.
    rendezvous: Option<Rendezvous>,
}

impl Ranks {
    /// The ranks that a launcher's variables or the command line ask for; `None` without either.
    ///
    /// # Errors
    /// `Config` for variables that contradict each other, or both variables and `devices`;
    /// `NotAvailable` without a library for collectives; `Collective` if not all processes come.
    pub fn of(devices: Option<usize>) -> Result<Option<Self>, RocmError> {
        let world = World::from_env()?;
        // Under a launcher, too: a shell of srun is a job of one process.
        if world.size == 1 {
            let Some(count) = devices else { return Ok(None) };
            let devices: Vec<RocmDevice> = (0..count).map(RocmDevice::new).collect();
            return Ok(Some(Self { communicators: Communicator::local(&devices)?, rendezvous: None }));
        }
        if let Some(count) = devices {
            return Err(RocmError::Config {
                what: "--devices".into(),
                expected: format!("none under {}, which starts a process for each device", world.launcher),
                found: count.to_string(),
            });
        }
        let rendezvous = Rendezvous::join(&world)?;
        let communicator = Communicator::connect(&RocmDevice::new(world.local_rank), &rendezvous)?;
        Ok(Some(Self { communicators: vec![communicator], rendezvous: Some(rendezvous) }))
    }

    /// Whether rank 0, which shows and saves, is in this process.
    pub fn has_first(&self) -> bool {
        self.communicators.iter().any(|communicator| communicator.rank() == 0)
    }

    /// The device of this process's first rank.
    pub fn device(&self) -> RocmDevice {
        self.communicators[0].device()
    }

    /// Trains the model on every rank, from rank 0's parameters. Returns this process's first
    /// rank's model and the readings over all ranks.
    ///
    /// # Errors
    /// As [`train`](crate::train::train), of any rank.
    pub fn train(
        self,
        model: Model<Autodiff<Rocm>>,
        data: &Data,
        options: &Options,
    ) -> Result<(Model<Autodiff<Rocm>>, History), Error> {
        // Draws the parameters before the threads start, which would draw from one generator.
        let model = model.fork(&self.device());
        let one = |communicator: Communicator, model: Model<Autodiff<Rocm>>| {
            let (ranks, device) = (DataParallel::new(communicator.clone()), communicator.device());
            let model = ranks.broadcast::<Autodiff<Rocm>, _>(model.fork(&device));
            let result = train_together(model, data, options, &device, Rank(ranks));
            if result.is_err() {
                // The others get an error instead of waiting for this rank.
                communicator.abort();
            }
            result
        };
        std::thread::scope(|scope| {
            let spawn = |communicator| {
                // Clones share their running statistics, and each device needs its own.
                let model = Model::from_inner(model.valid());
                scope.spawn(move || one(communicator, model))
            };
            let threads: Vec<_> = self.communicators.into_iter().map(spawn).collect();
            let mut results = Vec::with_capacity(threads.len());
            for thread in threads {
                let panicked = |payload: Box<dyn std::any::Any + Send>| {
                    let text = payload.downcast_ref::<String>().map_or("a rank panicked", String::as_str);
                    Err(Error::Device(text.to_owned()))
                };
                results.push(thread.join().unwrap_or_else(panicked)?);
            }
            Ok(results.swap_remove(0))
        })
    }

    /// Checks that what each process loads for itself, such as the images, is the same in all of them.
    ///
    /// # Errors
    /// `Config`, in every process, with the ranks that differ from rank 0; `Collective` if a process has
    /// ended.
    pub fn have_same(&self, what: &str, own: &str) -> Result<(), RocmError> {
        let Some(rendezvous) = &self.rendezvous else { return Ok(()) };
        let all = rendezvous.gather(own.as_bytes())?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        same(what, &all.into_iter().map(text).collect::<Vec<_>>())
    }
}

/// One rank.
struct Rank(DataParallel);

impl Rank {
    fn own(&self, images: &[usize]) -> Part {
        Part::of(images, self.0.rank(), self.0.size())
    }
}

impl Together<Autodiff<Rocm>> for Rank {
    fn rank(&self) -> (usize, usize) {
        (self.0.rank(), self.0.size())
    }

    fn part(&self, images: &[usize]) -> Vec<usize> {
        self.own(images).indices
    }

    fn gradients(
        &mut self,
        model: &Model<Autodiff<Rocm>>,
        loss: Option<Tensor<Autodiff<Rocm>, 1>>,
        images: &[usize],
    ) -> GradientsParams {
        let share = self.own(images).share;
        let gradients = self.0.backward(model, loss);
        self.0.reduce(model, gradients, share)
    }

    fn same(&self, model: &Model<Autodiff<Rocm>>) {
        self.0.broadcast_statistics::<Autodiff<Rocm>, _>(model);
    }

    fn sum(&self, sums: Tensor<Rocm, 1>) -> Tensor<Rocm, 1> {
        self.0.mean(sums, Share::EVEN) * self.0.size() as f32
    }
}
