//! How the processes of a job find each other: rank 0 listens on a port, and the others connect.

mod world;

pub use world::{Launcher, World};

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::settings::settings;

/// The first bytes on a connection.
const MAGIC: [u8; 8] = *b"hip-rdv1";
/// The longest secret, and the longest reason for a refusal.
const MOST_TEXT: usize = 4096;
/// The most bytes of one process in [`Rendezvous::gather`].
const MOST_BYTES: usize = 16 << 20;
/// How long one connection may take to say who it is, so that a stranger's does not hold up others.
const GREETING: Duration = Duration::from_secs(2);
/// How often rank 0 looks for connections, and how long others wait before they try again.
const AGAIN: Duration = Duration::from_millis(20);

/// Rank 0's answer to a greeting.
const WELCOME: u8 = 1;
/// The other answer, followed by a reason.
const REFUSED: u8 = 2;

/// The connected processes of a job. All of its methods are called by all processes, in the same
/// order, and wait at most [`Config::collective_timeout`](crate::Config::collective_timeout).
///
/// ```
/// use hip::rendezvous::{Rendezvous, World};
///
/// let rendezvous = Rendezvous::join(&World::from_env()?)?;
/// let all = rendezvous.gather(b"hello")?;
/// assert_eq!(all.len(), rendezvous.world().size);
/// # Ok::<(), hip::Error>(())
/// ```
pub struct Rendezvous {
    world: World,
    timeout: Duration,
    links: Mutex<Links>,
}

/// Connections: of rank 0 to each other rank, in their order; of another rank to rank 0 only.
struct Links(Vec<TcpStream>);

/// A failure of what a process did, with what it was about.
fn failed(call: &'static str, name: &str, detail: String) -> Error {
    Error::Collective { call, name: name.into(), detail }
}

fn broken(call: &'static str, detail: String, error: &io::Error) -> Error {
    let slow = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
    let name = if slow { "timeout" } else { "connection" };
    failed(call, name, format!("{detail}: {error}"))
}

impl Rendezvous {
    /// Waits for all processes of the job.
    ///
    /// # Errors
    /// `Invalid` for a rank that is not below the size; `Collective` if a process does not come in
    /// time, is refused (its secret or size differs, or its rank is taken), or no port is free.
    pub fn join(world: &World) -> Result<Self> {
        Self::join_within(world, settings()?.collective_timeout)
    }

    fn join_within(world: &World, timeout: Duration) -> Result<Self> {
        const CALL: &str = "Rendezvous::join";
        let World { rank, size, secret, .. } = world;
        if rank >= size {
            return Err(Error::invalid(
                CALL,
                format!("a rank below the size {size}"),
                format!("rank {rank}"),
            ));
        }
        if secret.len() > MOST_TEXT {
            let found = format!("{} bytes", secret.len());
            return Err(Error::invalid(CALL, format!("a secret of at most {MOST_TEXT} bytes"), found));
        }
        let until = Instant::now() + timeout;
        let links = match (rank, size) {
            (_, 1) => Vec::new(),
            (0, _) => listen(world, until)?,
            _ => vec![connect(world, until)?],
        };
        for link in &links {
            let set = link
                .set_nodelay(true)
                .and_then(|()| link.set_read_timeout(Some(timeout)))
                .and_then(|()| link.set_write_timeout(Some(timeout)));
            set.map_err(|error| broken(CALL, "a connection".into(), &error))?;
        }
        Ok(Self { world: world.clone(), timeout, links: Mutex::new(Links(links)) })
    }

    /// This process's place.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Every process's bytes, in the order of ranks. They need not be of equal length.
    ///
    /// # Errors
    /// `Invalid` for more than 16 MiB; `Collective` if a process has ended or does not answer in
    /// time. Then the rendezvous is closed, for all processes.
    pub fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        const CALL: &str = "Rendezvous::gather";
        if bytes.len() > MOST_BYTES {
            return Err(Error::invalid(CALL, "at most 16 MiB", format!("{} bytes", bytes.len())));
        }
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if self.world.size > 1 && links.0.is_empty() {
            return Err(failed(CALL, "closed", "an earlier call failed".into()));
        }
        let gathered = links.gather(self.world.rank, bytes);
        gathered.map_err(|(rank, error)| {
            // The connections' contents no longer match. Without them, the others fail too.
            links.0.clear();
            broken(
                CALL,
                format!("rank {} and rank {rank}, within {:?}", self.world.rank, self.timeout),
                &error,
            )
        })
    }

    /// Rank 0's bytes. The other processes' are ignored.
    ///
    /// # Errors
    /// As for [`gather`](Self::gather).
    pub fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        let own = if self.world.rank == 0 { bytes } else { &[] };
        Ok(self.gather(own)?.swap_remove(0))
    }

    /// Waits until all processes call it.
    ///
    /// # Errors
    /// As for [`gather`](Self::gather).
    pub fn barrier(&self) -> Result<()> {
        self.gather(&[]).map(drop)
    }
}

impl fmt::Debug for Rendezvous {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let World { rank, size, address, .. } = &self.world;
        write!(f, "Rendezvous(rank {rank} of {size}, {address})")
    }
}

impl Links {
    /// Gathers everybody's bytes. A failure names the rank at the other end.
    fn gather(&mut self, rank: usize, bytes: &[u8]) -> std::result::Result<Vec<Vec<u8>>, (usize, io::Error)> {
        if rank > 0 {
            let Some(link) = self.0.first_mut() else { return Ok(vec![bytes.to_vec()]) };
            let mut exchange = || -> io::Result<Vec<Vec<u8>>> {
                write_frame(link, bytes)?;
                let mut size = [0; 4];
                link.read_exact(&mut size)?;
                (0..u32::from_le_bytes(size)).map(|_| read_frame(link, MOST_BYTES)).collect()
            };
            return exchange().map_err(|error| (0, error));
        }
        let mut all = vec![bytes.to_vec()];
        for (at, link) in self.0.iter_mut().enumerate() {
            all.push(read_frame(link, MOST_BYTES).map_err(|error| (at + 1, error))?);
        }
        for (at, link) in self.0.iter_mut().enumerate() {
            let mut answer = || {
                link.write_all(&(all.len() as u32).to_le_bytes())?;
                all.iter().try_for_each(|bytes| write_frame(link, bytes))
            };
            answer().map_err(|error| (at + 1, error))?;
        }
        Ok(all)
    }
}

fn write_frame(link: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    link.write_all(&(bytes.len() as u32).to_le_bytes())?;
    link.write_all(bytes)
}

fn read_frame(link: &mut TcpStream, most: usize) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    link.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > most {
        return Err(io::Error::other(format!("a message of {length} bytes")));
    }
    let mut bytes = vec![0; length];
    link.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Rank 0: listens until every other rank has connected.
fn listen(world: &World, until: Instant) -> Result<Vec<TcpStream>> {
    const CALL: &str = "Rendezvous::join";
    let wide = bind_address(&world.address);
    let mut why = String::from("there is none to try");
    let bound = world.ports.iter().find_map(|&port| match TcpListener::bind((wide, port)) {
        Ok(listener) => Some(listener),
        Err(error) => {
            why = error.to_string();
            None
        }
    });
    let Some(listener) = bound else {
        let ports = format!("rank 0 can listen on none of the ports {:?}: {why}", world.ports);
        return Err(failed(CALL, "port", ports));
    };
    listener.set_nonblocking(true).map_err(|error| broken(CALL, "the listening port".into(), &error))?;
    let mut links: Vec<Option<TcpStream>> = (1..world.size).map(|_| None).collect();
    let mut refusals: Vec<String> = Vec::new();
    while links.iter().any(Option::is_none) {
        match listener.accept() {
            Ok((link, from)) => match welcome(world, link, &links) {
                Ok((rank, link)) => links[rank - 1] = Some(link),
                // A stranger, or a process that will say itself why it failed.
                Err(why) => refusals.push(format!("{from}: {why}")),
            },
            Err(_) if Instant::now() >= until => {
                let missing: Vec<_> = (1..world.size).filter(|rank| links[rank - 1].is_none()).collect();
                let detail = format!("rank 0 of {} waited for ranks {missing:?}", world.size);
                let refused = if refusals.is_empty() { "" } else { "; it refused " };
                return Err(failed(CALL, "timeout", format!("{detail}{refused}{}", refusals.join(", "))));
            }
            Err(_) => sleep(AGAIN),
        }
    }
    Ok(links.into_iter().flatten().collect())
}

/// Where rank 0 listens: on the loopback if the others reach it there, else on every interface.
fn bind_address(address: &str) -> IpAddr {
    let resolved = (address, 0).to_socket_addrs().ok().and_then(|mut all| all.next());
    match resolved.map(|address| address.ip()) {
        Some(ip) if ip.is_loopback() => ip,
        Some(IpAddr::V6(_)) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        _ => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// Reads a greeting. Returns the rank.
fn welcome(
    world: &World,
    mut link: TcpStream,
    links: &[Option<TcpStream>],
) -> std::result::Result<(usize, TcpStream), String> {
    let read = |link: &mut TcpStream| {
        link.set_nonblocking(false)?;
        link.set_read_timeout(Some(GREETING))?;
        link.set_write_timeout(Some(GREETING))?;
        let mut start = [0; 16];
        link.read_exact(&mut start)?;
        Ok::<_, io::Error>((start, read_frame(link, MOST_TEXT)?))
    };
    let (start, secret) = read(&mut link).map_err(|error| error.to_string())?;
    let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| start[at + i])) as usize;
    let (rank, size) = (number(8), number(12));
    // Without an early exit, so that the time does not tell how many bytes were right.
    let own = world.secret.as_bytes();
    let wrong =
        secret.iter().zip(own).fold(secret.len() ^ own.len(), |wrong, (a, b)| wrong | usize::from(a ^ b));
    let refusal = if start[..8] != MAGIC || wrong != 0 {
        "another job: the secret differs".to_owned()
    } else if size != world.size {
        format!("rank {rank} says that there are {size} processes, rank 0 says {}", world.size)
    } else if rank == 0 || rank >= size || links[rank - 1].is_some() {
        format!("rank {rank} is there already")
    } else {
        link.write_all(&[WELCOME]).map_err(|error| error.to_string())?;
        return Ok((rank, link));
    };
    let _ = link.write_all(&[REFUSED]).and_then(|()| write_frame(&mut link, refusal.as_bytes()));
    Err(refusal)
}

/// Another rank: connects to rank 0, which may not listen yet.
fn connect(world: &World, until: Instant) -> Result<TcpStream> {
    const CALL: &str = "Rendezvous::join";
    let World { rank, size, address, ports, .. } = world;
    loop {
        let mut last = String::from("no port to try");
        for &port in ports {
            match greet(world, port) {
                Ok(Ok(link)) => return Ok(link),
                // On a port of another job, another port may be right.
                Ok(Err(refusal)) if refusal.contains("secret") => {
                    last = format!("{address}:{port}: {refusal}")
                }
                Ok(Err(refusal)) => return Err(failed(CALL, "refused", refusal)),
                Err(error) => last = format!("{address}:{port}: {error}"),
            }
        }
        if Instant::now() >= until {
            let detail = format!("rank {rank} of {size} does not reach rank 0: {last}");
            return Err(failed(CALL, "timeout", detail));
        }
        sleep(AGAIN);
    }
}

/// Connects to a port and says who this is. The inner error is a refusal.
fn greet(world: &World, port: u16) -> io::Result<std::result::Result<TcpStream, String>> {
    let mut error = io::Error::other("the name has no address");
    for address in (world.address.as_str(), port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, GREETING) {
            Ok(link) => return greet_on(world, link, address),
            Err(why) => error = why,
        }
    }
    Err(error)
}

fn greet_on(
    world: &World,
    mut link: TcpStream,
    to: SocketAddr,
) -> io::Result<std::result::Result<TcpStream, String>> {
    // Connecting to a free port of this machine can meet itself.
    if link.local_addr()? == to {
        return Err(io::Error::other("nobody listens"));
    }
    // Rank 0 greets one process after the other.
    link.set_read_timeout(Some(GREETING * 5))?;
    link.set_write_timeout(Some(GREETING))?;
    link.write_all(&MAGIC)?;
    link.write_all(&(world.rank as u32).to_le_bytes())?;
    link.write_all(&(world.size as u32).to_le_bytes())?;
    write_frame(&mut link, world.secret.as_bytes())?;
    let mut answer = [0];
    link.read_exact(&mut answer)?;
    match answer[0] {
        WELCOME => Ok(Ok(link)),
        REFUSED => Ok(Err(String::from_utf8_lossy(&read_frame(&mut link, MOST_TEXT)?).into_owned())),
        _ => Err(io::Error::other("another program listens")),
    }
}

#[cfg(test)]
mod tests;
