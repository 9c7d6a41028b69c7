//! Unique ids, and this process's groups by their ids.

use super::hub::Hub;
use super::message::Secret;
use super::serve::welcome;
use super::{Failure, Outcome};
use rccl_sys::*;
use std::{
    collections::HashMap,
    collections::hash_map::RandomState,
    ffi::c_char,
    hash::{BuildHasher, Hasher},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// The first bytes of an id.
const MAGIC: [u8; 8] = *b"hip-cpu1";

/// The groups whose hub this process is. An entry lives for as long as a rank or a joining thread
/// holds the hub, and at least until all ranks have joined.
static HUBS: Mutex<Option<HashMap<Secret, Weak<Hub>>>> = Mutex::new(None);

/// How long the listening thread, and the one that ends it, wait after an error, and how often.
const PAUSE: Duration = Duration::from_millis(10);
const TRIES: usize = 100;

/// An id's parts.
pub(super) struct Id {
    pub(super) address: SocketAddr,
    pub(super) secret: Secret,
}

impl Id {
    /// `None` if the bytes are not those of an id.
    pub(super) fn read(id: &ncclUniqueId) -> Option<Self> {
        let bytes = id.internal.map(|byte| byte as u8);
        let mut secret = [0; 32];
        secret.copy_from_slice(&bytes[16..48]);
        let port = u16::from_le_bytes([bytes[8], bytes[9]]);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        (bytes[..8] == MAGIC).then_some(Self { address, secret })
    }

    /// The group's hub, if it is in this process.
    pub(super) fn hub(&self) -> Option<Arc<Hub>> {
        let hubs = HUBS.lock().unwrap_or_else(PoisonError::into_inner);
        hubs.as_ref()?.get(&self.secret)?.upgrade()
    }
}

/// 64 bits that nobody can guess: the standard library's keys come from the system.
fn random() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(0);
    hasher.finish()
}

/// This process's number, which no other process has.
pub(super) fn process() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(random)
}

/// Makes an id, and this process the hub of its group.
pub(super) fn make() -> Outcome<ncclUniqueId> {
    let system = |what: &str, error: std::io::Error| {
        Failure::new(ncclSystemError, format!("{what} on the loopback: {error}"))
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| system("no port", error))?;
    let address = listener.local_addr().map_err(|error| system("no address", error))?;
    let mut secret = [0; 32];
    secret.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&random().to_le_bytes()));

    let closed = Arc::new(AtomicBool::new(false));
    let hub = {
        let closed = closed.clone();
        Arc::new(Hub::new(move || {
            // The first call wakes the listener, which then ends.
            if !closed.swap(true, Ordering::AcqRel) {
                // The process may be out of descriptors for a moment.
                for _ in 0..TRIES {
                    if TcpStream::connect(address).is_ok() {
                        break;
                    }
                    thread::sleep(PAUSE);
                }
            }
        }))
    };
    HUBS.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get_or_insert_default()
        .insert(secret, Arc::downgrade(&hub));
    let listen = move || {
        loop {
            let accepted = listener.accept();
            if closed.load(Ordering::Acquire) {
                break;
            }
            match accepted {
                Ok((stream, _)) => welcome(stream, secret, hub.clone()),
                // A connection that was closed early, or too few descriptors: later ranks must still
                // get in.
                Err(error) => {
                    log::debug!("hip-cpu: a connection to a group was not accepted: {error}");
                    thread::sleep(PAUSE);
                }
            }
        }
        // From here on only the ranks keep the hub.
        drop(hub);
        let mut hubs = HUBS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hubs) = hubs.as_mut() {
            hubs.retain(|_, hub| hub.strong_count() > 0);
        }
    };
    thread::Builder::new()
        .name("hip-cpu-group".into())
        .spawn(listen)
        .map_err(|error| system("no thread", error))?;

    let mut bytes = [0; 128];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&address.port().to_le_bytes());
    bytes[16..48].copy_from_slice(&secret);
    Ok(ncclUniqueId { internal: bytes.map(|byte: u8| byte as c_char) })
}
