//! How the processes of a job find each other: rank 0 listens on a port, and the others connect.

mod world;

pub use world::{Launcher, World};
use world::{MOST_RANKS, SECRET};

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::settings::{allow_fallback, settings};

/// The first bytes on a connection.
const MAGIC: [u8; 8] = *b"hip-rdv1";
/// The longest secret, and the longest reason for a refusal.
const MOST_TEXT: usize = 4096;
/// The most bytes of one process in [`Rendezvous::gather`].
const MOST_BYTES: usize = 16 << 20;
/// How long one connection may take to say who it is. Rank 0 greets one after the other.
const GREETING: Duration = Duration::from_secs(2);
/// How often rank 0 looks for connections, and how long others wait before they try again.
const AGAIN: Duration = Duration::from_millis(20);

/// Rank 0's answer to a greeting. The rank sends it back: only then do both count the connection.
const WELCOME: u8 = 1;
/// Another answer, followed by a reason.
const REFUSED: u8 = 2;
/// [`REFUSED`], but another port may be right.
const OTHER_JOB: u8 = 3;
/// How many refusals an error names.
const NAMED: usize = 4;

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

/// Rank 0 has a connection to each other rank, in their order. Another rank has one, to rank 0.
struct Links(Vec<TcpStream>);

/// A connection whose reads and writes all end by `until`.
struct Timed<'a> {
    link: &'a TcpStream,
    until: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.link.set_read_timeout(self.left()?)?;
        self.link.read(bytes)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.link.set_write_timeout(self.left()?)?;
        self.link.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.link.flush()
    }
}

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
    /// `Invalid` for a rank that is not below the size, a size above `i32::MAX`, or port 0 in a job of
    /// several processes; `Collective` if a process does not come in time, is refused (its secret or
    /// size differs, or its rank is taken), or no port is free.
    pub fn join(world: &World) -> Result<Self> {
        Self::join_within(world, settings()?.collective_timeout)
    }

    fn join_within(world: &World, timeout: Duration) -> Result<Self> {
        const CALL: &str = "Rendezvous::join";
        let World { rank, size, .. } = world;
        if rank >= size {
            return Err(Error::invalid(
                CALL,
                format!("a rank below the size {size}"),
                format!("rank {rank}"),
            ));
        }
        if *size > MOST_RANKS {
            let expected = format!("at most {MOST_RANKS} processes");
            return Err(Error::invalid(CALL, expected, size.to_string()));
        }
        if *size > 1 && world.ports.contains(&0) {
            let expected = "a port from 1 on, because port 0 is a different one each time";
            return Err(Error::invalid(CALL, expected, "port 0"));
        }
        let bytes = world.password().len();
        if bytes > MOST_TEXT {
            let expected =
                format!("a job's name and a secret ({SECRET}) of at most {MOST_TEXT} bytes together");
            return Err(Error::invalid(CALL, expected, format!("{bytes} bytes")));
        }
        let until = Instant::now() + timeout;
        let links = match (rank, size) {
            (_, 1) => Vec::new(),
            (0, _) => listen(world, until)?,
            _ => vec![connect(world, until)?],
        };
        for link in &links {
            link.set_nodelay(true).map_err(|error| broken(CALL, "a connection".into(), &error))?;
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
    /// `Invalid` if this process passes more than 16 MiB; `Collective` if another one did, has ended or
    /// does not answer in time. Then the rendezvous is closed, for all processes.
    pub fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        const CALL: &str = "Rendezvous::gather";
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes.len() > MOST_BYTES {
            // The others wait for this process's bytes. Without its connections, they fail too.
            links.0.clear();
            return Err(Error::invalid(CALL, "at most 16 MiB", format!("{} bytes", bytes.len())));
        }
        if self.world.size > 1 && links.0.is_empty() {
            return Err(failed(CALL, "closed", "an earlier call failed".into()));
        }
        let gathered = links.gather(self.world.rank, bytes, Instant::now() + self.timeout);
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
    fn gather(
        &self,
        rank: usize,
        bytes: &[u8],
        until: Instant,
    ) -> std::result::Result<Vec<Vec<u8>>, (usize, io::Error)> {
        let mut links = self.0.iter().map(|link| Timed { link, until });
        if rank > 0 {
            let Some(mut link) = links.next() else { return Ok(vec![bytes.to_vec()]) };
            let mut exchange = || -> io::Result<Vec<Vec<u8>>> {
                write_frame(&mut link, bytes)?;
                let mut size = [0; 4];
                link.read_exact(&mut size)?;
                (0..u32::from_le_bytes(size)).map(|_| read_frame(&mut link, MOST_BYTES)).collect()
            };
            return exchange().map_err(|error| (0, error));
        }
        let mut all = vec![bytes.to_vec()];
        for (at, mut link) in links.clone().enumerate() {
            all.push(read_frame(&mut link, MOST_BYTES).map_err(|error| (at + 1, error))?);
        }
        for (at, mut link) in links.enumerate() {
            let mut answer = || {
                link.write_all(&(all.len() as u32).to_le_bytes())?;
                all.iter().try_for_each(|bytes| write_frame(&mut link, bytes))
            };
            answer().map_err(|error| (at + 1, error))?;
        }
        Ok(all)
    }
}

fn write_frame(link: &mut Timed<'_>, bytes: &[u8]) -> io::Result<()> {
    link.write_all(&(bytes.len() as u32).to_le_bytes())?;
    link.write_all(bytes)
}

fn read_frame(link: &mut Timed<'_>, most: usize) -> io::Result<Vec<u8>> {
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
    let mut why = String::from("there is none to try");
    let bound = world.ports.iter().find_map(|&port| match bind(world, port) {
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
    let open = listener.local_addr().ok().filter(|address| !address.ip().is_loopback());
    if let Some(open) = open.filter(|_| world.secret.is_empty()) {
        let expected = "a secret, because others may reach the port of rank 0";
        let found = format!("none, and rank 0 ({}) listens on {open}", world.address);
        // Outside of the macro, which leaves out its arguments where warnings are off.
        let error = allow_fallback(Error::config(SECRET, expected, found))?;
        log::warn!("{error}");
    }
    listener.set_nonblocking(true).map_err(|error| broken(CALL, "the listening port".into(), &error))?;
    let mut links: Vec<Option<TcpStream>> = (1..world.size).map(|_| None).collect();
    let (mut refusals, mut refused) = (VecDeque::new(), 0);
    while links.iter().any(Option::is_none) {
        // Also if strangers connect without a pause.
        if Instant::now() >= until {
            let missing: Vec<_> = (1..world.size).filter(|rank| links[rank - 1].is_none()).collect();
            let mut detail = format!("rank 0 of {} waited for ranks {missing:?}", world.size);
            if refused > 0 {
                let last = refusals.into_iter().collect::<Vec<String>>().join(", ");
                detail += &format!("; it refused {refused} connections, the last ones from {last}");
            }
            return Err(failed(CALL, "timeout", detail));
        }
        match listener.accept() {
            Ok((link, from)) => match welcome(world, link, &links) {
                Ok((rank, link)) => links[rank - 1] = Some(link),
                // A stranger, or a process that will say itself why it failed.
                Err(why) => {
                    refused += 1;
                    refusals.push_back(format!("{from}: {why}"));
                    if refusals.len() > NAMED {
                        refusals.pop_front();
                    }
                }
            },
            Err(_) => sleep(AGAIN),
        }
    }
    Ok(links.into_iter().flatten().collect())
}

/// Listens on the address by which the others reach rank 0. Listens on every interface if the name
/// does not resolve, if the address is not this machine's (it may be a router's), or if [`listening`]
/// says so.
fn bind(world: &World, port: u16) -> io::Result<TcpListener> {
    let resolved = (world.address.as_str(), port).to_socket_addrs().ok().and_then(|mut all| all.next());
    let ip = resolved.map(|address| listening(world, address.ip()));
    let ip = ip.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    match TcpListener::bind((ip, port)) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            TcpListener::bind((everywhere(ip), port))
        }
        bound => bound,
    }
}

/// Where rank 0 listens, if `ip` is what it finds for its machine's name.
///
/// Debian and Ubuntu map a machine's own name to 127.0.1.1 in `/etc/hosts`. Other machines find
/// another address for that name, and do not reach this one. So a loopback counts only if the job
/// names it, or if there are no other machines.
fn listening(world: &World, ip: IpAddr) -> IpAddr {
    let name = world.address.as_str();
    // Also Debian's `ip6-localhost` and `ip6-loopback`, and Red Hat's `localhost4` and `localhost6`.
    let first = name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let is_localhost = first == "ip6-loopback" || first.trim_start_matches("ip6-").starts_with("localhost");
    let is_meant = world.is_one_machine || is_localhost || name.parse::<IpAddr>().is_ok();
    match ip.is_loopback() && !is_meant {
        true => everywhere(ip),
        false => ip,
    }
}

/// Every interface, of the same IP version.
fn everywhere(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// Reads a greeting. Returns the rank.
fn welcome(
    world: &World,
    stream: TcpStream,
    links: &[Option<TcpStream>],
) -> std::result::Result<(usize, TcpStream), String> {
    let text = |error: io::Error| error.to_string();
    stream.set_nonblocking(false).map_err(text)?;
    let mut link = Timed { link: &stream, until: Instant::now() + GREETING };
    let mut start = [0; 16];
    link.write_all(&MAGIC).map_err(text)?;
    link.read_exact(&mut start).map_err(text)?;
    let secret = read_frame(&mut link, MOST_TEXT).map_err(text)?;
    let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| start[at + i])) as usize;
    let (rank, size) = (number(8), number(12));
    // Without an early exit, so that the time does not tell how many bytes were right.
    let own = world.password();
    let bytes = secret.iter().zip(own.as_bytes());
    let wrong = bytes.fold(secret.len() ^ own.len(), |wrong, (a, b)| wrong | usize::from(a ^ b));
    let (answer, refusal) = if start[..8] != MAGIC || wrong != 0 {
        (OTHER_JOB, "another job: the secret differs".to_owned())
    } else if size != world.size {
        (REFUSED, format!("rank {rank} says that there are {size} processes, rank 0 says {}", world.size))
    } else if rank == 0 || rank >= size || links[rank - 1].is_some() {
        (REFUSED, format!("rank {rank} is there already"))
    } else {
        let mut back = [0];
        link.write_all(&[WELCOME]).and_then(|()| link.read_exact(&mut back)).map_err(text)?;
        return Ok((rank, stream));
    };
    let _ = link.write_all(&[answer]).and_then(|()| write_frame(&mut link, refusal.as_bytes()));
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
                Ok(Answer::Welcome(link)) => return Ok(link),
                Ok(Answer::Refused(refusal)) => return Err(failed(CALL, "refused", refusal)),
                Ok(Answer::OtherJob(refusal)) => last = format!("{address}:{port}: {refusal}"),
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

/// What rank 0, or another job's rank 0, says to a greeting.
enum Answer {
    Welcome(TcpStream),
    Refused(String),
    OtherJob(String),
}

/// Connects to a port and says who this is.
fn greet(world: &World, port: u16) -> io::Result<Answer> {
    let mut error = io::Error::other("the name has no address");
    for address in (world.address.as_str(), port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, GREETING) {
            Ok(link) => return greet_on(world, link, address),
            Err(why) => error = why,
        }
    }
    Err(error)
}

fn greet_on(world: &World, stream: TcpStream, to: SocketAddr) -> io::Result<Answer> {
    // Connecting to a free port of this machine can meet itself.
    if stream.local_addr()? == to {
        return Err(io::Error::other("nobody listens"));
    }
    let mut link = Timed { link: &stream, until: Instant::now() + GREETING };
    // Rank 0 speaks first, so that another program that is silent costs no more time than this.
    let mut hello = [0; 8];
    link.read_exact(&mut hello)?;
    if hello != MAGIC {
        return Err(io::Error::other("another program listens"));
    }
    link.until = Instant::now() + GREETING;
    link.write_all(&MAGIC)?;
    link.write_all(&(world.rank as u32).to_le_bytes())?;
    link.write_all(&(world.size as u32).to_le_bytes())?;
    write_frame(&mut link, world.password().as_bytes())?;
    let mut answer = [0];
    link.read_exact(&mut answer)?;
    let mut reason =
        || io::Result::Ok(String::from_utf8_lossy(&read_frame(&mut link, MOST_TEXT)?).into_owned());
    match answer[0] {
        WELCOME => link.write_all(&[WELCOME])?,
        REFUSED => return Ok(Answer::Refused(reason()?)),
        OTHER_JOB => return Ok(Answer::OtherJob(reason()?)),
        _ => return Err(io::Error::other("another program listens")),
    }
    Ok(Answer::Welcome(stream))
}

#[cfg(test)]
mod tests;
