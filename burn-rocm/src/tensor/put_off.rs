//! Batched products that are put off, because a sum over their batches may follow.
//!
//! A weight that all matrices of a batch share gets its gradient from two ops: a product for each
//! matrix, and the sum of these products. Stacked along the inner axis, the same matrices give the
//! sum by one product, without the products in memory. Burn 0.22 differentiates a linear layer this
//! way. So a product whose operands can be stacked waits until its elements are needed.
//!
//! Each access to a tensor's buffer first enqueues the product that the tensor waits for, so only
//! the timing differs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

use hip::Error;

use super::RocmTensor;
use crate::waiting::{Waiting, wait};

/// A product that may still wait.
pub(super) struct PutOff {
    state: Mutex<State>,
    /// Whether the product has been enqueued. Set under the lock.
    enqueued: AtomicBool,
    /// The number of matrices, and the rows and columns of each.
    pub(super) dims: [usize; 3],
    /// The thread that put it off, and whether it captured a graph then.
    thread: ThreadId,
    captured: bool,
}

enum State {
    Waiting(Work),
    Enqueued,
    Failed(Error),
}

/// What a product needs while it waits.
pub(crate) struct Work {
    /// Enqueues the product, which writes the tensor's buffer.
    pub(crate) run: Box<dyn FnOnce() -> hip::Result<()> + Send>,
    /// The operands stacked along the summed axis, `[terms, rows]` and `[terms, columns]`.
    pub(crate) stacked: [RocmTensor; 2],
}

impl PutOff {
    pub(super) fn new(dims: [usize; 3], work: Work) -> Arc<Self> {
        let new = Arc::new(Self {
            state: Mutex::new(State::Waiting(work)),
            enqueued: AtomicBool::new(false),
            dims,
            thread: std::thread::current().id(),
            captured: hip::is_capturing(),
        });
        wait(&new);
        new
    }

    /// Whether this thread may enqueue the product: it becomes a part of the graph that this thread
    /// captures, if and only if it was put off there.
    fn is_here(&self) -> bool {
        let other = std::thread::current().id() != self.thread;
        !(other && (self.captured || hip::is_capturing()))
    }

    /// Enqueues the product unless that was done. Another thread that needs the product waits here
    /// meanwhile, so that its own work comes after.
    ///
    /// # Errors
    /// The product's, each time. `Capture` if this thread or the one that put the product off
    /// captures a graph, which would not be of both.
    #[inline]
    pub(super) fn run(&self) -> hip::Result<()> {
        match self.enqueued.load(Ordering::Acquire) {
            true => Ok(()),
            false => self.enqueue(),
        }
    }

    #[cold]
    fn enqueue(&self) -> hip::Result<()> {
        // A panic below leaves an error.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Waiting(_) = *state {
            if !self.is_here() {
                let reason = "another thread's product that waits, which `sync` enqueues there".into();
                return Err(Error::Capture { op: "float_matmul", reason });
            }
            let panicked = State::Failed(Error::Invalid {
                op: "float_matmul",
                expected: "a product that was enqueued".into(),
                found: "a panic in it".into(),
            });
            if let State::Waiting(work) = std::mem::replace(&mut *state, panicked) {
                *state = match (work.run)() {
                    Ok(()) => State::Enqueued,
                    Err(error) => State::Failed(error),
                };
            }
        }
        match &*state {
            State::Failed(error) => Err(error.clone()),
            _ => {
                self.enqueued.store(true, Ordering::Release);
                Ok(())
            }
        }
    }

    /// The work, if the product still waits.
    pub(super) fn into_work(self) -> Option<Work> {
        match self.state.into_inner().unwrap_or_else(PoisonError::into_inner) {
            State::Waiting(work) => Some(work),
            _ => None,
        }
    }
}

impl Waiting for PutOff {
    fn thread(&self) -> ThreadId {
        self.thread
    }

    fn enqueue_here(&self) {
        // The tensor's readers get the error.
        let _ = self.run();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;

    use burn_backend::TensorData;
    use burn_std::DType;

    use super::*;
    use crate::ops::transfer::upload;
    use crate::waiting::{enqueue_all, enqueue_own};
    use crate::{RocmDevice, take_last_error};

    fn tensor(dims: [usize; 3]) -> RocmTensor {
        let data = TensorData::new(vec![1f32; dims.iter().product()], dims);
        upload(data, DType::F32, &RocmDevice::default()).expect("an upload")
    }

    /// A tensor that waits for a count of `runs`, which `outcome` follows.
    fn waits(runs: &Arc<AtomicUsize>, outcome: fn() -> hip::Result<()>) -> RocmTensor {
        let dims = [2, 3, 4];
        let runs = runs.clone();
        let run = move || {
            runs.fetch_add(1, Ordering::Relaxed);
            outcome()
        };
        let stacked = [tensor([1, 5, 3]), tensor([1, 5, 4])];
        tensor(dims).put_off(dims, Work { run: Box::new(run), stacked })
    }

    fn access(tensor: &RocmTensor) -> Result<(), Error> {
        catch_unwind(AssertUnwindSafe(|| drop(tensor.buffer().len())))
            .map_err(|_| take_last_error().expect("a typed error"))
    }

    #[test]
    fn a_product_runs_once_before_the_first_access() {
        let runs = Arc::new(AtomicUsize::new(0));
        let made = waits(&runs, || Ok(()));
        let view = made.clone();
        assert_eq!((made.dims(), runs.load(Ordering::Relaxed)), (&[2, 3, 4][..], 0));
        assert!(access(&view).is_ok() && access(&made).is_ok());
        assert_eq!(runs.load(Ordering::Relaxed), 1);
        drop(view);
        assert!(made.into_stacked([2, 3, 4]).is_err(), "it ran");
    }

    #[test]
    fn only_the_sole_view_of_all_matrices_is_stacked() {
        let runs = Arc::new(AtomicUsize::new(0));
        let made = waits(&runs, || Ok(()));
        let made = made.into_stacked([2, 4, 3]).expect_err("other matrices");
        let shared = made.clone();
        let made = made.into_stacked([2, 3, 4]).expect_err("another view");
        drop(shared);
        let stacked = made.into_stacked([2, 3, 4]).expect("the operands");
        assert_eq!(stacked.map(|side| side.dims().to_vec()), [[1, 5, 3], [1, 5, 4]]);
        assert_eq!(runs.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn each_access_gets_the_error_of_a_product_that_failed() {
        let runs = Arc::new(AtomicUsize::new(0));
        let fails = || Err(Error::Unsupported { op: "float_matmul", dtype: "f32".into() });
        let failed = waits(&runs, fails);
        let panicked = waits(&runs, || panic!("in a product"));
        enqueue_own();
        for _ in 0..2 {
            assert!(matches!(access(&failed), Err(Error::Unsupported { op: "float_matmul", .. })));
            assert!(matches!(access(&panicked), Err(Error::Invalid { op: "float_matmul", .. })));
        }
        assert_eq!(runs.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_thread_has_one_product_waiting_and_leaves_other_threads_theirs() {
        let runs = Arc::new(AtomicUsize::new(0));
        let first = waits(&runs, || Ok(()));
        let of_another = std::thread::scope(|scope| scope.spawn(|| waits(&runs, || Ok(()))).join());
        let of_another = of_another.expect("a thread that ends well");
        assert_eq!(runs.load(Ordering::Relaxed), 0);
        let second = waits(&runs, || Ok(()));
        assert_eq!(runs.load(Ordering::Relaxed), 1, "the first");
        enqueue_own();
        assert_eq!(runs.load(Ordering::Relaxed), 2, "the second");
        enqueue_all();
        assert_eq!(runs.load(Ordering::Relaxed), 3, "the other thread's");
        assert!([first, second, of_another].iter().all(|tensor| access(tensor).is_ok()));
    }

    #[test]
    fn operands_are_nobody_elses_to_a_thread_that_asks() {
        let operand = tensor([1, 5, 3]);
        let dims = [2, 3, 4];
        let work = Work { run: Box::new(|| Ok(())), stacked: [operand.clone(), tensor([1, 5, 4])] };
        let made = tensor(dims).put_off(dims, work);
        assert!(operand.has_one_holder(), "the product was enqueued and let go of it");
        drop(made);
    }
}
