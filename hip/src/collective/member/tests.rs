//! A rank's thread, with functions of HIP and RCCL that the test replaces.

use hip_kernels::DType;
use hip_sys::{hipError_t, hipErrorNotReady, hipEvent_t};
use rccl_sys::{ncclRemoteError, ncclResult_t, ncclSuccess};

use super::*;
use crate::provider::{Provider, provider};
use crate::{Communicator, Part, ReduceOp};

/// Whether the device's work goes on for ever.
static UNFINISHED: AtomicBool = AtomicBool::new(false);
/// Whether the library has found an error outside of calls.
static FOUND: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn query(event: hipEvent_t) -> hipError_t {
    if UNFINISHED.load(Ordering::Acquire) {
        return hipErrorNotReady;
    }
    // SAFETY: the caller passes a handle of the same provider's functions.
    unsafe { (provider().expect("the CPU provider").hip().hipEventQuery)(event) }
}

/// Ends the device's work, also if the test fails. Without it, the rank would wait for the timeout.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        UNFINISHED.store(false, Ordering::Release);
    }
}

unsafe extern "C" fn asynchronous(_: ncclComm_t, error: *mut ncclResult_t) -> ncclResult_t {
    let status = if FOUND.load(Ordering::Acquire) { ncclRemoteError } else { ncclSuccess };
    // SAFETY: the caller's pointer.
    unsafe { error.write(status) };
    ncclSuccess
}

/// The call has succeeded, and nobody asks about the group. So only the rank's thread can hear of the
/// error, long before the timeout of 600 seconds.
#[test]
fn the_thread_hears_of_an_error_beside_running_work() {
    let provider = Provider::altered_rccl(
        |hip| hip.hipEventQuery = query,
        |rccl| rccl.ncclCommGetAsyncError = asynchronous,
    );
    let device = Arc::new(Device::new(provider, 0).expect("a device"));
    let rank = Communicator::local(std::slice::from_ref(&device)).expect("a group").remove(0);
    let buffer = Arc::new(device.alloc(16).expect("memory"));
    let part = Part::whole(&buffer);
    UNFINISHED.store(true, Ordering::Release);
    let work = rank.all_reduce(ReduceOp::Sum, DType::F32, 4, part, part).expect("a call");
    let _ends = Ends;
    assert!(rank.member().is_running());
    FOUND.store(true, Ordering::Release);
    let begun = Instant::now();
    let failure = loop {
        if let Some(failure) = rank.member().failure() {
            break failure;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody has asked the library");
        std::thread::sleep(LOOK);
    };
    let Error::Collective { call, name, .. } = &failure else { panic!("{failure}") };
    assert_eq!((*call, name.as_str()), ("ncclCommGetAsyncError", "ncclRemoteError"));
    // Until then the thread may still look at the work, which would end without an error.
    while !rank.member().lock().left {
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody has aborted the rank");
        std::thread::sleep(LOOK);
    }
    // What the abort does to the work on a GPU.
    UNFINISHED.store(false, Ordering::Release);
    assert_eq!(work.wait().expect_err("its result is lost"), failure);
    assert_eq!(device.sync().expect_err("it reports lost results"), failure);
}
