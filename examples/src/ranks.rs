//! Training on several devices: a thread for each, or a process for each.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::backend::Autodiff;
use burn::module::{AutodiffModule, Module};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn_rocm::rendezvous::{Rendezvous, World};
use burn_rocm::{Communicator, Rocm, RocmDevice, RocmError, take_last_error};
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
    /// As [`train`](crate::train::train), of the rank that failed. The errors of the others say
    /// only that it is missing.
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
                scope.spawn(move || outcome(|| one(communicator, model)))
            };
            let threads: Vec<_> = self.communicators.into_iter().map(spawn).collect();
            // Not reached: `outcome` catches panics.
            let missed =
                |payload: Box<dyn Any + Send>| Err(Failure { error: panicked(&*payload), of_group: false });
            first_of(threads.into_iter().map(|thread| thread.join().unwrap_or_else(missed)).collect())
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

/// Why a rank has ended early.
#[derive(Debug)]
struct Failure {
    error: Error,
    /// Whether the error only says that another rank has failed.
    of_group: bool,
}

/// Runs a rank in its thread.
fn outcome<T>(run: impl FnOnce() -> Result<T, Error>) -> Result<T, Failure> {
    let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| Err(panicked(&*payload)));
    result.map_err(|error| {
        let of_group = matches!(take_last_error(), Some(RocmError::Collective { .. }));
        Failure { error, of_group }
    })
}

/// The error of a panic: a device that fails in the middle of an op panics with the error's text.
fn panicked(payload: &(dyn Any + Send)) -> Error {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    Error::Device(text.unwrap_or("a rank panicked").to_owned())
}

/// The first rank's result, or the error of the rank that failed, if one did.
fn first_of<T>(results: Vec<Result<T, Failure>>) -> Result<T, Error> {
    let order = |result: &Result<T, Failure>| match result {
        Err(Failure { of_group: false, .. }) => 0,
        Err(_) => 1,
        Ok(_) => 2,
    };
    // `min_by_key` returns the first of equals.
    match results.into_iter().min_by_key(order) {
        Some(result) => result.map_err(|failure| failure.error),
        None => Err(Error::Device("no rank has a device".to_owned())),
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

#[cfg(test)]
mod tests {
    use std::panic::{panic_any, resume_unwind};

    use super::*;

    #[test]
    fn the_error_of_the_rank_that_failed_comes_before_the_others() {
        let failure = |of_group, text: &str| {
            Err::<usize, _>(Failure { error: Error::Device(text.to_owned()), of_group })
        };
        let [missing, own, later] = [(true, "missing"), (false, "own"), (false, "later")];
        for (results, expected) in [
            (vec![Some(missing), None, Some(own), Some(later)], Some("own")),
            (vec![None, Some(missing)], Some("missing")),
            (vec![None, None], None),
        ] {
            let results = results.into_iter().enumerate().map(|(rank, failed)| match failed {
                Some((of_group, text)) => failure(of_group, text),
                None => Ok(rank),
            });
            match (first_of(results.collect()), expected) {
                (Ok(rank), None) => assert_eq!(rank, 0),
                (Err(error), Some(text)) => assert!(error.to_string().ends_with(text), "{error}"),
                (found, expected) => panic!("{found:?}, {expected:?}"),
            }
        }
    }

    #[test]
    fn a_panic_is_an_error_with_its_text() {
        let missing = || RocmError::Collective { call: "a call", name: "left".into(), detail: "gone".into() };
        let panics: [(&dyn Fn(), bool, &str); 4] = [
            (&|| panic_any("a literal"), false, "a literal"),
            (&|| panic_any("a text".to_owned()), false, "a text"),
            (&|| resume_unwind(Box::new(7)), false, "a rank panicked"),
            (&|| burn_rocm::raise(missing()), true, "gone"),
        ];
        for (panics, expected, text) in panics {
            let failed = outcome(|| {
                panics();
                Ok(())
            });
            let Failure { error, of_group } = failed.expect_err("a panic");
            assert!(of_group == expected && error.to_string().ends_with(text), "{of_group} {error}");
        }
    }
}
