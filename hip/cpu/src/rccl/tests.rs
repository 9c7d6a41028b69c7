//! A hub whose other rank is a bare connection, so that the test decides when it reads. And calls
//! of a single thread.

use super::call::{Call, Kind};
use super::compute::Memory;
use super::hub::Hub;
use super::id::{Id, make};
use super::message::{CALL, FAILED, GREETING, JOINED, LEAVE, RESULT};
use rccl_sys::*;
use std::{
    io::{Read, Write},
    net::TcpStream,
    ptr::{null, null_mut},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

/// How long something takes at most that must happen.
const MOST: Duration = Duration::from_secs(100);

/// Connects as a rank of two.
fn connect(id: &Id, rank: u32) -> TcpStream {
    let mut stream = TcpStream::connect(id.address).unwrap();
    stream.set_read_timeout(Some(MOST)).unwrap();
    let mut greeting = [0; GREETING];
    greeting[..32].copy_from_slice(&id.secret);
    greeting[32..36].copy_from_slice(&rank.to_le_bytes());
    greeting[36..40].copy_from_slice(&2u32.to_le_bytes());
    stream.write_all(&greeting).unwrap();
    stream
}

fn byte(stream: &mut TcpStream) -> u8 {
    let mut byte = [0];
    stream.read_exact(&mut byte).unwrap();
    byte[0]
}

/// A group of rank 0 here and rank 1 at the other end of a connection.
fn pair() -> (Arc<Hub>, TcpStream) {
    let id = Id::read(&make().unwrap()).unwrap();
    let hub = id.hub().unwrap();
    // Strangers: without the secret, and one that closes at once.
    TcpStream::connect(id.address).unwrap().write_all(&[0; GREETING]).unwrap();
    drop(TcpStream::connect(id.address).unwrap());
    let mut stream = connect(&id, 1);
    hub.join(0, 2, (7, 0), None).unwrap();
    assert_eq!(byte(&mut stream), JOINED);
    (hub, stream)
}

/// Both ranks gather this many bytes. Rank 1 does not read its result.
fn gather(hub: &Hub, stream: &mut TcpStream, count: usize) {
    let call = Call { kind: Kind::AllGather, dtype: ncclUint8, op: ncclSum, count, peer: 0 };
    stream.write_all(&[CALL]).unwrap();
    stream.write_all(&call.encode()).unwrap();
    stream.write_all(&vec![2; count]).unwrap();
    let (send, mut recv) = (vec![1u8; count], vec![0u8; 2 * count]);
    let memory = Memory { send: send.as_ptr(), recv: recv.as_mut_ptr() };
    // SAFETY: the memory is the call's until the wait returns.
    let ticket = unsafe { hub.post(0, call, memory) }.unwrap();
    hub.wait(&ticket).unwrap();
    assert_eq!(recv, [vec![1; count], vec![2; count]].concat());
}

fn read_result(stream: &mut TcpStream, count: usize) {
    assert_eq!(byte(stream), RESULT);
    let mut length = [0; 8];
    stream.read_exact(&mut length).unwrap();
    assert_eq!(u64::from_le_bytes(length), 2 * count as u64);
    let mut result = vec![0; 2 * count];
    stream.read_exact(&mut result).unwrap();
    assert_eq!(result, [vec![1; count], vec![2; count]].concat());
}

/// Lets rank 0 leave in a thread, which says when it has.
fn leave(hub: &Arc<Hub>) -> mpsc::Receiver<()> {
    let (left, gone) = mpsc::channel();
    let hub = hub.clone();
    thread::spawn(move || {
        hub.leave(0);
        left.send(()).unwrap();
    });
    gone
}

/// The result is more than the buffers of a connection hold.
#[test]
fn a_hub_waits_for_a_rank_that_reads_late() {
    const COUNT: usize = 16 << 20;
    let (hub, mut stream) = pair();
    gather(&hub, &mut stream, COUNT);
    let gone = leave(&hub);
    let late = gone.recv_timeout(Duration::from_secs(1));
    assert!(late.is_err(), "rank 0 left before rank 1 had its result");
    read_result(&mut stream, COUNT);
    // Rank 1 may call again, but leaves.
    assert!(gone.recv_timeout(Duration::from_millis(200)).is_err(), "rank 0 left before rank 1");
    assert_eq!(hub.failure(), None);
    stream.write_all(&[LEAVE]).unwrap();
    gone.recv_timeout(MOST).unwrap();
    assert_eq!(hub.failure(), None);
}

/// A failure ends the wait, also if the rank takes nothing.
#[test]
fn a_failure_lets_the_hub_go() {
    let (hub, mut stream) = pair();
    gather(&hub, &mut stream, 16 << 20);
    let gone = leave(&hub);
    hub.fail(super::Failure::new(ncclRemoteError, "on purpose"));
    gone.recv_timeout(MOST).unwrap();

    // One that does take it is told.
    let (hub, mut stream) = pair();
    let gone = leave(&hub);
    hub.fail(super::Failure::new(ncclRemoteError, "on purpose"));
    gone.recv_timeout(MOST).unwrap();
    assert_eq!(byte(&mut stream), FAILED);
}

/// A rank that dies also lets it go.
#[test]
fn a_dead_rank_lets_the_hub_go() {
    let (hub, stream) = pair();
    let gone = leave(&hub);
    assert!(gone.recv_timeout(Duration::from_millis(200)).is_err(), "rank 0 left before rank 1");
    drop(stream);
    gone.recv_timeout(MOST).unwrap();
    assert!(hub.failure().unwrap().text.contains("rank 1 is gone"));
}

/// A rank that dies while it waits for the others, so that the hub can't even tell it that all are
/// there, fails the group for them.
#[cfg(unix)]
#[test]
fn a_rank_that_dies_before_all_have_joined_fails_the_group() {
    use std::os::fd::AsRawFd;

    let id = Id::read(&make().unwrap()).unwrap();
    let hub = id.hub().unwrap();
    let stream = connect(&id, 1);
    let begun = Instant::now();
    while hub.joined() == 0 {
        assert!(begun.elapsed() < MOST, "rank 1 does not join");
        thread::sleep(Duration::from_millis(5));
    }
    // Closing then resets the connection, as a process's end with unread bytes does. After a plain end
    // the first write still succeeds.
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let bytes = size_of::<libc::linger>() as libc::socklen_t;
    let value = std::ptr::from_ref(&linger).cast();
    // SAFETY: the descriptor is the stream's, and the option's value is a `linger` of this size.
    let set =
        unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, bytes) };
    assert_eq!(set, 0);
    drop(stream);
    thread::sleep(Duration::from_millis(100));
    hub.join(0, 2, (7, 0), None).unwrap();
    let begun = Instant::now();
    while hub.failure().is_none() {
        assert!(begun.elapsed() < MOST, "nobody fails the group");
        thread::sleep(Duration::from_millis(5));
    }
    assert!(hub.failure().unwrap().text.starts_with("rank 1 "), "{:?}", hub.failure());
}

/// Nobody else can make the other call.
#[test]
fn a_send_to_oneself_without_its_receive_is_refused() {
    let rccl = super::rccl_table();
    let (done, found) = mpsc::channel();
    // In a thread of its own, because a call that is not refused waits for ever.
    thread::spawn(move || {
        let mut comm = null_mut();
        // SAFETY: an out-pointer. The calls have no elements, so they use no buffer.
        let found = unsafe {
            assert_eq!((rccl.ncclCommInitRank)(&mut comm, 1, make().unwrap(), 0), ncclSuccess);
            let send = || (rccl.ncclSend)(null(), 0, ncclUint8, 0, comm, null_mut());
            let receive = || (rccl.ncclRecv)(null_mut(), 0, ncclUint8, 0, comm, null_mut());
            let alone = [send(), receive()];
            let group = |sends: usize| {
                assert_eq!((rccl.ncclGroupStart)(), ncclSuccess);
                (0..sends).for_each(|_| assert_eq!(send(), ncclSuccess));
                assert_eq!(receive(), ncclSuccess);
                (rccl.ncclGroupEnd)()
            };
            [alone[0], alone[1], group(2), group(1), (rccl.ncclCommDestroy)(comm)]
        };
        done.send(found).unwrap();
    });
    let refused = ncclInvalidUsage;
    assert_eq!(found.recv_timeout(MOST).unwrap(), [refused, refused, refused, ncclSuccess, ncclSuccess]);
}

/// A destructor of a thread's value may make calls. The value was used first, so it goes last.
#[test]
fn a_thread_that_ends_makes_calls() {
    static AT_THE_END: Mutex<Vec<ncclResult_t>> = Mutex::new(Vec::new());
    struct AtEnd;
    impl Drop for AtEnd {
        fn drop(&mut self) {
            AT_THE_END.lock().unwrap().extend(calls());
        }
    }
    thread_local!(static AT_END: AtEnd = const { AtEnd });
    /// A group without calls, and a call that fails.
    fn calls() -> [ncclResult_t; 3] {
        let rccl = super::rccl_table();
        // SAFETY: none of them uses a pointer.
        unsafe { [(rccl.ncclGroupStart)(), (rccl.ncclGroupEnd)(), (rccl.ncclCommDestroy)(null_mut())] }
    }
    let thread = thread::spawn(|| {
        AT_END.with(|_| ());
        calls()
    });
    let expected = [ncclSuccess, ncclSuccess, ncclInvalidArgument];
    assert_eq!(thread.join().unwrap(), expected);
    assert_eq!(*AT_THE_END.lock().unwrap(), expected);
}
