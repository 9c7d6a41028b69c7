//! Batched products that are put off (deferred), because a sum over their batches may follow.
//!
//! A weight that all matrices of a batch share gets its gradient from two ops: a product for each
//! matrix, and the sum of these products. Burn 0.22 differentiates a linear layer this way. If the
//! matrices are stacked along the inner axis, one product gives the sum, and the separate products
//! are never written. So a product whose operands can be stacked waits for the thread's next op.
//!
//! If that op is such a sum, it replaces the product. Any other op enqueues the product before its
//! own work (`waiting.rs`), and so does each access to the tensor's buffer, by any thread. So only
//! the timing differs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

use hip::{Buffer, Device, Error};

use super::RocmTensor;
use crate::waiting::Waiting;

/// A view's share in the product that writes its buffer.
#[derive(Clone)]
pub(super) struct Share {
    pub(super) product: Arc<PutOff>,
    /// Held by the views only, unlike the product.
    views: Arc<()>,
}

impl Share {
    pub(super) fn new(product: Arc<PutOff>) -> Self {
        Self { product, views: Arc::default() }
    }

    /// Whether this is the only view.
    pub(super) fn is_only(&self) -> bool {
        Arc::strong_count(&self.views) == 1
    }
}

/// A product that was put off and may not be enqueued yet.
pub(super) struct PutOff {
    state: Mutex<State>,
    /// Whether the product has been enqueued. Set under the lock.
    enqueued: AtomicBool,
    /// The number of matrices, and the rows and columns of each.
    pub(super) dims: [usize; 3],
    device: Arc<Device>,
    /// The thread that put the product off, if it was capturing a graph then.
    captured_by: Option<ThreadId>,
}

enum State {
    Waiting(Box<Work>),
    Enqueued,
    /// Another op has taken over the work. The product's tensor is gone.
    Taken,
    Failed(Error),
}

/// What a product that is put off holds.
pub(crate) struct Work {
    /// Enqueues the product, which writes the tensor's buffer.
    pub(crate) run: Box<dyn FnOnce() -> hip::Result<()> + Send>,
    /// The operands stacked along the summed axis, `[terms, rows]` and `[terms, columns]`.
    pub(crate) stacked: [RocmTensor; 2],
}

impl PutOff {
    pub(super) fn new(dims: [usize; 3], work: Work) -> Self {
        let captured_by = hip::is_capturing().then(|| std::thread::current().id());
        let device = work.stacked[0].hip_device().clone();
        let state = Mutex::new(State::Waiting(Box::new(work)));
        Self { state, enqueued: AtomicBool::new(false), dims, device, captured_by }
    }

    #[cold]
    fn run(&self) -> hip::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Waiting(_) = *state {
            if self.captured_by.is_some_and(|thread| thread != std::thread::current().id()) {
                let reason = "the product needed here belongs to another thread's capture".into();
                return Err(Error::Capture { op: "float_matmul", reason });
            }
            // If enqueueing the product panics, this error stays as the state.
            let panicked = State::Failed(Error::Invalid {
                op: "float_matmul",
                expected: "the product to be enqueued".into(),
                found: "a panic while enqueueing it".into(),
            });
            if let State::Waiting(work) = std::mem::replace(&mut *state, panicked) {
                // A product that was put off before this thread's capture is not part of the graph.
                let outcome = match self.captured_by {
                    Some(_) => (work.run)(),
                    None => hip::uncaptured(work.run),
                };
                *state = outcome.map_or_else(State::Failed, |()| State::Enqueued);
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

    /// Takes the work if the product is still put off. The product is then never computed.
    pub(super) fn take(&self) -> Option<Box<Work>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Taken) {
            State::Waiting(work) => Some(work),
            other => {
                *state = other;
                None
            }
        }
    }
}

impl Waiting for PutOff {
    fn reads(&self, is: &dyn Fn(&Buffer) -> bool) -> bool {
        if self.enqueued.load(Ordering::Acquire) {
            return false;
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(&*state, State::Waiting(work) if work.stacked.iter().any(|operand| is(&operand.buffer)))
    }

    fn captured_on(&self) -> Option<&Arc<Device>> {
        self.captured_by.map(|_| &self.device)
    }

    /// Enqueues the product if that has not happened yet. Another thread that needs the product
    /// blocks here until it is enqueued, so that its own work comes later.
    ///
    /// # Errors
    /// The product's. `Capture` if the product belongs to another thread's capture.
    #[inline]
    fn enqueue(&self) -> hip::Result<()> {
        match self.enqueued.load(Ordering::Acquire) {
            true => Ok(()),
            false => self.run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;

    use burn_backend::TensorData;
    use burn_std::DType;

    use super::*;
    use crate::graph::{self, Graph};
    use crate::guard;
    use crate::ops::matmul::matmul;
    use crate::ops::transfer::{read, upload};
    use crate::ops::view::swap_dims;
    use crate::waiting::{any_put_off, enqueue_own};
    use crate::{RocmDevice, take_last_error};

    const DIMS: [usize; 3] = [2, 3, 4];

    fn tensor(dims: impl Into<Vec<usize>>) -> RocmTensor {
        let dims = dims.into();
        let data = TensorData::new(vec![1f32; dims.iter().product()], dims);
        upload(data, DType::F32, &RocmDevice::default()).expect("an upload")
    }

    /// A tensor whose product was put off, counts its runs in `runs`, and has this outcome.
    fn waits(runs: &Arc<AtomicUsize>, outcome: fn() -> hip::Result<()>) -> RocmTensor {
        let runs = runs.clone();
        let run = move || {
            runs.fetch_add(1, Ordering::Relaxed);
            outcome()
        };
        let stacked = [tensor([10, 3]), tensor([10, 4])];
        tensor(DIMS).put_off(DIMS, Work { run: Box::new(run), stacked })
    }

    fn fails() -> hip::Result<()> {
        Err(Error::Unsupported { op: "float_matmul", dtype: Some("f32"), what: None })
    }

    fn is_unsupported(found: &hip::Result<impl Sized>) -> bool {
        matches!(found, Err(Error::Unsupported { op: "float_matmul", .. }))
    }

    fn access(tensor: &RocmTensor) -> Result<(), Error> {
        catch_unwind(AssertUnwindSafe(|| tensor.buffer().len()))
            .map(|_| ())
            .map_err(|_| take_last_error().expect("a typed error"))
    }

    #[test]
    fn a_product_runs_once_before_the_first_access() {
        let runs = Arc::new(AtomicUsize::new(0));
        let made = waits(&runs, || Ok(()));
        let view = made.clone();
        assert_eq!((made.dims(), runs.load(Ordering::Relaxed)), (&DIMS[..], 0));
        assert!(access(&view).is_ok() && access(&made).is_ok());
        assert_eq!(runs.load(Ordering::Relaxed), 1);
        drop(view);
        assert!(made.take_stacked(DIMS).is_none(), "it ran");
    }

    #[test]
    fn only_the_sole_view_of_all_matrices_is_stacked() {
        let runs = Arc::new(AtomicUsize::new(0));
        let made = waits(&runs, || Ok(()));
        assert!(made.take_stacked([2, 4, 3]).is_none(), "other matrices");
        let shared = made.clone();
        assert!(made.take_stacked(DIMS).is_none(), "another view");
        drop(shared);
        let stacked = made.take_stacked(DIMS).expect("the operands");
        assert_eq!(stacked.map(|side| side.dims().to_vec()), [[10, 3], [10, 4]]);
        assert_eq!(runs.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn each_access_gets_the_error_of_a_product_that_failed() {
        let runs = Arc::new(AtomicUsize::new(0));
        let failed = waits(&runs, fails);
        assert!(is_unsupported(&RocmDevice::default().synchronize()));
        for _ in 0..2 {
            assert!(is_unsupported(&access(&failed)));
            assert!(is_unsupported(&read(failed.clone())), "reads return it");
        }
        assert!(failed.take_stacked(DIMS).is_none() && is_unsupported(&access(&failed)));
        assert_eq!(runs.load(Ordering::Relaxed), 1);
        let panicked = waits(&runs, || panic!("in a product"));
        assert!(catch_unwind(AssertUnwindSafe(|| panicked.settle())).is_err());
        assert!(matches!(access(&panicked), Err(Error::Invalid { op: "float_matmul", .. })));
    }

    #[test]
    fn a_product_of_a_failed_one_has_its_error() {
        let left = swap_dims(waits(&Arc::default(), fails), 1, 2).expect("a view");
        let second = matmul("float_matmul", left, tensor([2, 3, 5])).expect("put off");
        assert!(is_unsupported(&RocmDevice::default().synchronize()));
        assert!(is_unsupported(&read(second)));
    }

    #[test]
    fn a_product_waits_for_the_next_op_of_its_thread() {
        let runs = Arc::new(AtomicUsize::new(0));
        let count = || runs.load(Ordering::Relaxed);
        let first = waits(&runs, || Ok(()));
        assert_eq!(count(), 0);
        let other = tensor([1]).empty_like().expect("a tensor");
        assert_eq!(count(), 1, "an allocation");
        let second = waits(&runs, || Ok(()));
        assert!(other.has_one_holder());
        assert_eq!(count(), 1, "nothing asked for an owner");
        let shared = other.clone();
        assert!(!shared.has_one_holder());
        assert_eq!(count(), 2, "an op that waits may be the other owner");
        let third = waits(&runs, || Ok(()));
        enqueue_own().expect("a product");
        assert_eq!(count(), 3);
        assert!([first, second, third].iter().all(|tensor| access(tensor).is_ok()));
        assert_eq!(count(), 3);
    }

    /// Neither the thread's next op, which would get its error, nor the next capture enqueues it.
    #[test]
    fn a_product_of_an_abandoned_capture_is_not_enqueued() {
        let (device, runs) = (RocmDevice::default(), Arc::new(AtomicUsize::new(0)));
        let before = waits(&runs, || Ok(()));
        graph::start(&device).expect("a capture");
        assert_eq!(runs.load(Ordering::Relaxed), 1, "that one is no part of the capture");
        let ends: [fn(&RocmDevice); 2] = [
            |device| graph::prepare(device).expect("the end of a capture"),
            |_| guard::failed(&fails().expect_err("it fails")),
        ];
        for end in ends {
            drop(waits(&runs, fails));
            assert!(any_put_off());
            end(&device);
            assert!(!any_put_off() && !hip::is_capturing());
            enqueue_own().expect("nothing is left of it");
            graph::start(&device).expect("a capture");
        }
        graph::prepare(&device).expect("the end of a capture");
        let captured = catch_unwind(AssertUnwindSafe(|| {
            Graph::capture_after::<()>(&device, 0, || {
                drop(waits(&runs, fails));
                panic!("of the step");
            })
        }));
        assert!(captured.is_err());
        enqueue_own().expect("nothing is left of it");
        assert_eq!(runs.load(Ordering::Relaxed), 1);
        // What was put off outside the capture stays so.
        let outside = waits(&runs, || Ok(()));
        graph::prepare(&device).expect("no capture to end");
        assert!(any_put_off());
        assert!(access(&before).is_ok() && access(&outside).is_ok());
        assert_eq!(runs.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn the_product_of_a_thread_that_ended_waits_for_its_reader() {
        let runs = Arc::new(AtomicUsize::new(0));
        let made = std::thread::scope(|scope| scope.spawn(|| waits(&runs, || Ok(()))).join());
        let made = made.expect("a thread that ends well");
        assert_eq!(runs.load(Ordering::Relaxed), 0);
        assert!(access(&made).is_ok());
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    }

    /// While it waits, a product holds the buffer that it writes.
    #[test]
    fn the_product_of_another_thread_lets_go_of_its_result() {
        std::thread::scope(|scope| {
            let (give, take) = mpsc::channel();
            let (done, wait) = mpsc::channel::<()>();
            scope.spawn(move || {
                let left = swap_dims(tensor([2, 3, 4]), 1, 2).expect("a view");
                let product = matmul("float_matmul", left, tensor([2, 3, 5])).expect("put off");
                give.send(product).expect("a receiver");
                // The thread calls no other op, and does not end.
                let _ = wait.recv();
            });
            let mut product = take.recv().expect("a product");
            assert!(product.has_one_holder() && product.can_overwrite());
            let read = read(product).expect("a read");
            assert_eq!(read.iter::<f32>().collect::<Vec<_>>(), [3.0; 40]);
            drop(done);
        });
    }

    #[test]
    fn operands_are_nobody_elses_to_a_thread_that_asks() {
        let operand = tensor([10, 3]);
        let work = Work { run: Box::new(|| Ok(())), stacked: [operand.clone(), tensor([10, 4])] };
        let made = tensor(DIMS).put_off(DIMS, work);
        assert!(operand.has_one_holder(), "the product was enqueued and let go of it");
        drop(made);
    }
}
