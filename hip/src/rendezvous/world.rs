//! A process's place in a job, by the variables of the common launchers.

use std::ffi::OsString;
use std::fmt;

use crate::error::{Error, Result};
use crate::hash::Digest;

/// How many ports after the first one rank 0 may take, if another program has the first.
const SPARE_PORTS: u16 = 16;
/// The most processes of a job: RCCL counts ranks in an i32.
pub(super) const MOST_RANKS: usize = i32::MAX as usize;
/// Ports for jobs whose launcher names none.
const OWN_PORTS: std::ops::Range<u16> = 20_000..30_000;

const PORT: &str = "BURN_ROCM_RENDEZVOUS_PORT";
pub(super) const SECRET: &str = "BURN_ROCM_RENDEZVOUS_SECRET";

/// Whose variables say a process's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// `torchrun`, or a user who sets its variables: `RANK`, `WORLD_SIZE`, `LOCAL_RANK`,
    /// `MASTER_ADDR` and `MASTER_PORT`.
    Torchrun,
    /// Open MPI's `mpirun`: `OMPI_COMM_WORLD_RANK` and its like.
    OpenMpi,
    /// The `mpirun` of MPICH and Intel: `PMI_RANK`, `PMI_SIZE` and `MPI_LOCALRANKID`.
    Pmi,
    /// `srun`: `SLURM_PROCID`, `SLURM_NTASKS`, `SLURM_LOCALID` and `SLURM_STEP_ID`.
    Slurm,
    /// No launcher: the process is the only one.
    Alone,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Torchrun => "torchrun",
            Self::OpenMpi => "Open MPI's mpirun",
            Self::Pmi => "mpirun",
            Self::Slurm => "srun",
            Self::Alone => "no launcher",
        })
    }
}

/// A process's place in a job of `size` processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct World {
    /// The process's number.
    pub rank: usize,
    /// The number of processes.
    pub size: usize,
    /// The number among the processes of this machine: the index of the process's device, if each
    /// process sees all devices.
    pub local_rank: usize,
    /// The host name or address of rank 0's machine.
    pub address: String,
    /// The ports that rank 0 may listen on. It takes the first that is free, and the others try them
    /// in turn.
    pub ports: Vec<u16>,
    /// Whether the launcher says that all processes are on this machine.
    pub is_one_machine: bool,
    /// The job's name, which a process must send to be let in. It tells jobs on one machine apart, but
    /// others may guess it.
    pub job: String,
    /// What a process must send besides the job's name; empty if nothing. It is sent as it is, so it
    /// keeps out those who can reach the port, not those who can read the network.
    pub secret: String,
    /// Where this was found.
    pub launcher: Launcher,
}

impl World {
    /// The process's place, from the first launcher whose variables are set: `torchrun`, Open MPI,
    /// MPICH, Slurm. Slurm is last, because an `mpirun` within its jobs inherits its variables with
    /// the values of one process.
    ///
    /// | variable | meaning |
    /// |---|---|
    /// | `MASTER_ADDR` | rank 0's machine; without it `srun`'s first node, or this machine if all of `mpirun`'s processes are here |
    /// | `MASTER_PORT` | the port; without it one that the job's name gives. Where `torchrun`'s agent holds it (`TORCHELASTIC_USE_AGENT_STORE`), the next ones |
    /// | `BURN_ROCM_RENDEZVOUS_PORT` | the port to use instead |
    /// | `BURN_ROCM_RENDEZVOUS_SECRET` | a text that all processes of the job have and others do not |
    ///
    /// # Errors
    /// `Config` for a variable that is missing, is not UTF-8, has an invalid value or contradicts
    /// another one. Also if the launcher names no job, and no secret tells this one from others.
    pub fn from_env() -> Result<Self> {
        Self::read(&|name| std::env::var_os(name))
    }

    /// A place in a job of `size` processes on this machine, whose rank 0 listens on `port`.
    pub fn on_this_machine(rank: usize, size: usize, port: u16, secret: &str) -> Self {
        Self {
            rank,
            size,
            local_rank: rank,
            address: "127.0.0.1".into(),
            ports: vec![port],
            is_one_machine: true,
            job: String::new(),
            secret: secret.into(),
            launcher: Launcher::Alone,
        }
    }

    /// What a process sends to be let in.
    pub(super) fn password(&self) -> String {
        format!("{}/{}", self.job, self.secret)
    }

    fn read(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self> {
        let env = Environment(variable);
        let (names, launcher) = if env.has("RANK") {
            (["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"], Launcher::Torchrun)
        } else if env.has("OMPI_COMM_WORLD_RANK") {
            let [rank, size] = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"];
            let [local, local_size] = ["OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"];
            ([rank, size, local, local_size], Launcher::OpenMpi)
        } else if env.has("PMI_RANK") {
            // `srun` also sets these, but not the local rank.
            let local = if env.has("MPI_LOCALRANKID") { "MPI_LOCALRANKID" } else { "SLURM_LOCALID" };
            let local = if env.has(local) { local } else { "MPI_LOCALRANKID" };
            (["PMI_RANK", "PMI_SIZE", local, "MPI_LOCALNRANKS"], Launcher::Pmi)
        } else if env.has("SLURM_PROCID") && env.has("SLURM_STEP_ID") {
            // A batch script has SLURM_PROCID too, but it is not a step.
            // A step has its own number of tasks. `salloc`'s shell is a step of one.
            let size = if env.has("SLURM_STEP_NUM_TASKS") { "SLURM_STEP_NUM_TASKS" } else { "SLURM_NTASKS" };
            (["SLURM_PROCID", size, "SLURM_LOCALID", ""], Launcher::Slurm)
        } else if env.has("WORLD_SIZE") {
            return Err(Error::config("RANK", "this process's number, because WORLD_SIZE is set", "nothing"));
        } else {
            return Ok(Self { launcher: Launcher::Alone, ..Self::on_this_machine(0, 1, 0, "") });
        };
        let [rank_name, size_name, local_name, local_size_name] = names;
        let [rank, size, local_rank] =
            [rank_name, size_name, local_name].map(|name| env.number::<usize>(name));
        let (rank, size, local_rank) = (rank?, size?, local_rank?);
        if size > MOST_RANKS {
            let expected = format!("at most {MOST_RANKS} processes");
            return Err(Error::config(size_name, expected, format!("`{size}`")));
        }
        let below = |name: &str, value: usize| {
            if value < size {
                return Ok(());
            }
            let expected = format!("a number below {size_name}, which is {size}");
            Err(Error::config(name, expected, format!("`{value}`")))
        };
        below(rank_name, rank)?;
        below(local_name, local_rank)?;
        if launcher != Launcher::Torchrun && env.has("WORLD_SIZE") {
            let found = env.number::<usize>("WORLD_SIZE")?;
            if found != size {
                let expected = format!("the number of {size_name}, which is {size}, or nothing");
                return Err(Error::config("WORLD_SIZE", expected, format!("`{found}`")));
            }
        }

        let (name, of_one) = match launcher {
            Launcher::Slurm => ("SLURM_STEP_NUM_NODES", 1),
            _ => (local_size_name, size),
        };
        let is_one_machine = size == 1 || env.has(name) && env.number::<usize>(name)? == of_one;
        let address = match env.get("MASTER_ADDR")? {
            Some(address) => address,
            None if size == 1 => "127.0.0.1".into(),
            None if launcher == Launcher::Torchrun => return Err(env.missing("MASTER_ADDR")),
            None if is_one_machine && launcher != Launcher::Slurm => "127.0.0.1".into(),
            // `mpirun` places its ranks itself, so rank 0 need not be on Slurm's first node.
            None if launcher == Launcher::OpenMpi => return Err(env.missing("MASTER_ADDR")),
            None => env.first_node()?.ok_or_else(|| env.missing("MASTER_ADDR"))?,
        };
        let job = env.job(launcher)?;
        if job.is_empty() && size > 1 && !env.has(SECRET) {
            let expected = "a text for this job, because the launcher gives it no name";
            return Err(Error::config(SECRET, expected, "nothing"));
        }
        let secret = env.get(SECRET)?.unwrap_or_default();
        let ports = env.ports(launcher, &job, size)?;
        Ok(Self { rank, size, local_rank, address, ports, is_one_machine, job, secret, launcher })
    }
}

struct Environment<'a>(&'a dyn Fn(&str) -> Option<OsString>);

impl Environment<'_> {
    /// An empty variable counts as not set. One that is not UTF-8 is an error: otherwise an
    /// unreadable secret would count as none, and an unreadable rank as no launcher. The error does
    /// not show the value, which may be a secret.
    fn get(&self, name: &str) -> Result<Option<String>> {
        let Some(value) = self.set(name) else { return Ok(None) };
        let text = value.into_string();
        text.map(Some).map_err(|_| Error::config(name, "a text in UTF-8", "a value that is not UTF-8"))
    }

    fn set(&self, name: &str) -> Option<OsString> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    fn has(&self, name: &str) -> bool {
        self.set(name).is_some()
    }

    /// The first of the variables that is set.
    fn first(&self, names: &[&str]) -> Result<Option<String>> {
        names.iter().find_map(|name| self.get(name).transpose()).transpose()
    }

    /// Those of the variables that are set.
    fn joined(&self, names: &[&str]) -> Result<String> {
        let set: Result<Vec<_>> = names.iter().filter_map(|name| self.get(name).transpose()).collect();
        Ok(set?.join("."))
    }

    fn missing(&self, name: &str) -> Error {
        Error::config(name, "rank 0's host name or address", "nothing")
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T> {
        let value = self.get(name)?;
        let number = value.as_deref().and_then(|value| value.trim().parse().ok());
        let shown = || value.as_deref().map_or("nothing".to_owned(), |value| format!("`{value}`"));
        number.ok_or_else(|| Error::config(name, "a number", shown()))
    }

    /// The job's name: the same in all of its processes, and in those of no other job. Only the
    /// launcher's own variables count: a job of Slurm that starts `mpirun` or `torchrun` on several
    /// machines has another step on each. Empty if the launcher gives no name.
    fn job(&self, launcher: Launcher) -> Result<String> {
        match launcher {
            // Its run id is "none" unless the user gives one.
            Launcher::Torchrun => self.joined(&["TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"]),
            Launcher::OpenMpi => {
                Ok(self.first(&["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"])?.unwrap_or_default())
            }
            Launcher::Pmi => match self.first(&["PMI_JOBID", "PMI_PORT"])? {
                Some(name) => Ok(name),
                // `srun` sets MPICH's variables, too.
                None => self.joined(&["SLURM_JOB_ID", "SLURM_STEP_ID"]),
            },
            Launcher::Slurm => self.joined(&["SLURM_JOB_ID", "SLURM_STEP_ID"]),
            Launcher::Alone => Ok(String::new()),
        }
    }

    /// Rank 0's port. A job of one process needs none, so its port may be 0.
    fn port(&self, name: &str, size: usize) -> Result<u16> {
        match self.number(name)? {
            0 if size > 1 => {
                let expected = "a number from 1 on, because the system picks another port for 0 each time";
                Err(Error::config(name, expected, "`0`"))
            }
            port => Ok(port),
        }
    }

    fn ports(&self, launcher: Launcher, job: &str, size: usize) -> Result<Vec<u16>> {
        if self.has(PORT) {
            return Ok(vec![self.port(PORT, size)?]);
        }
        let first = if self.has("MASTER_PORT") {
            let port = self.port("MASTER_PORT", size)?;
            // The agent's own store holds the port.
            let held = self.get("TORCHELASTIC_USE_AGENT_STORE")?.is_some_and(|value| value == "True");
            port.saturating_add(u16::from(held))
        } else if launcher == Launcher::Torchrun {
            return Err(Error::config("MASTER_PORT", "rank 0's port", "nothing"));
        } else {
            let room = u128::from(OWN_PORTS.end - OWN_PORTS.start - SPARE_PORTS);
            OWN_PORTS.start + (Digest::new().part(job).finish() % room) as u16
        };
        Ok((first..=first.saturating_add(SPARE_PORTS)).collect())
    }

    /// The first node of Slurm's list, such as `n007` of `n[007-009,012],login`.
    fn first_node(&self) -> Result<Option<String>> {
        let list = self.first(&["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"])?;
        Ok(list.as_deref().and_then(first_of))
    }
}

/// The first name of a list of Slurm's.
fn first_of(list: &str) -> Option<String> {
    let end = |text: &str, ends: &[char]| text.find(ends).unwrap_or(text.len());
    let (mut name, mut rest) = (String::new(), list);
    loop {
        let (part, after) = rest.split_at(end(rest, &['[', ',']));
        name += part;
        let Some(ranges) = after.strip_prefix('[') else { return Some(name) };
        let (ranges, after) = ranges.split_once(']')?;
        name += &ranges[..end(ranges, &['-', ','])];
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(pairs: &[(&str, &str)]) -> Result<World> {
        World::read(&|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
    }

    const TORCHRUN: [(&str, &str); 5] = [
        ("RANK", "5"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "n1"),
        ("MASTER_PORT", "29500"),
    ];
    const OPEN_MPI: [(&str, &str); 4] = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
        ("PMIX_NAMESPACE", "prterun-n1-7@1"),
    ];
    const SLURM: [(&str, &str); 6] = [
        ("SLURM_PROCID", "3"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_JOB_ID", "812"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NODELIST", "n[007-009,012],login"),
    ];

    const PMI: [(&str, &str); 4] =
        [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "2")];

    #[test]
    fn each_launcher_is_understood() {
        let found = world(&TORCHRUN).unwrap();
        assert_eq!((found.rank, found.size, found.local_rank), (5, 8, 1));
        assert_eq!(
            (found.address.as_str(), found.ports[0], found.launcher),
            ("n1", 29500, Launcher::Torchrun)
        );

        let held = [&TORCHRUN[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
        assert_eq!(world(&held).unwrap().ports, (29501..=29517).collect::<Vec<_>>());
        let own = [&held[..], &[(PORT, "7000")]].concat();
        assert_eq!(world(&own).unwrap().ports, [7000]);
        // A job of one process needs no port.
        let one = [("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("MASTER_PORT", "0")];
        assert_eq!(world(&one).unwrap().size, 1);

        let found = world(&SLURM).unwrap();
        assert_eq!((found.rank, found.size, found.local_rank), (3, 4, 1));
        assert_eq!((found.address.as_str(), found.launcher), ("n007", Launcher::Slurm));
        assert!(found.ports.iter().all(|port| OWN_PORTS.contains(port)));

        // mpirun within a job of Slurm.
        let both = [&OPEN_MPI[..], &SLURM, &[("MASTER_ADDR", "n1")]].concat();
        let found = world(&both).unwrap();
        assert_eq!((found.rank, found.size, found.launcher), (1, 2, Launcher::OpenMpi));
        let here = [&OPEN_MPI[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]].concat();
        assert_eq!(world(&here).unwrap().address, "127.0.0.1");

        let pmi = [&PMI[..], &[("PMI_JOBID", "7")]].concat();
        assert_eq!(world(&pmi).unwrap().launcher, Launcher::Pmi);
        let alone = world(&[]).unwrap();
        assert_eq!((alone.rank, alone.size, alone.launcher), (0, 1, Launcher::Alone));
        // A program that a batch script runs by itself.
        let batch = [("SLURM_PROCID", "0"), ("SLURM_LOCALID", "0"), ("SLURM_JOB_ID", "812")];
        assert_eq!(world(&batch).unwrap().launcher, Launcher::Alone);
        let shell = [("SLURM_STEP_ID", "4294967290"), ("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_NTASKS", "8")];
        assert_eq!(world(&[&batch[..], &shell].concat()).unwrap().size, 1);
    }

    #[test]
    fn jobs_differ_in_their_secrets_and_ports() {
        let other = SLURM.map(|(name, value)| (name, if name == "SLURM_JOB_ID" { "813" } else { value }));
        let (one, other) = (world(&SLURM).unwrap(), world(&other).unwrap());
        assert_ne!(one.password(), other.password());
        assert_ne!(one.ports, other.ports);
        let secret = [&SLURM[..], &[(SECRET, "x")]].concat();
        assert_ne!(world(&secret).unwrap().password(), one.password());
    }

    /// A secret may have any characters. The job's name is no secret, even if it has a slash.
    #[test]
    fn a_secret_may_end_in_a_slash() {
        for secret in ["/", "x/", "x"] {
            assert_eq!(world(&[&SLURM[..], &[(SECRET, secret)]].concat()).unwrap().secret, secret);
        }
        for launched in [&TORCHRUN[..], &SLURM] {
            assert_eq!(world(launched).unwrap().secret, "");
        }
        assert_eq!(World::on_this_machine(0, 2, 1, "x/").secret, "x/");
    }

    /// Where rank 0 need not listen for other machines.
    #[test]
    fn a_launcher_may_say_that_all_is_on_one_machine() {
        for (launched, more, expected) in [
            (&TORCHRUN[..], None, false),
            (&TORCHRUN[..], Some(("LOCAL_WORLD_SIZE", "4")), false),
            (&TORCHRUN[..], Some(("LOCAL_WORLD_SIZE", "8")), true),
            (&SLURM[..], None, false),
            (&SLURM[..], Some(("SLURM_STEP_NUM_NODES", "2")), false),
            (&SLURM[..], Some(("SLURM_STEP_NUM_NODES", "1")), true),
            (&OPEN_MPI[..], Some(("MASTER_ADDR", "n1")), false),
            (&OPEN_MPI[..], Some(("OMPI_COMM_WORLD_LOCAL_SIZE", "2")), true),
            (&PMI[..], Some(("PMI_JOBID", "7")), true),
            (&[][..], None, true),
        ] {
            let found = world(&[launched, more.as_slice()].concat()).unwrap();
            assert_eq!(found.is_one_machine, expected, "{launched:?} {more:?}");
        }
    }

    #[test]
    fn processes_of_one_job_have_one_secret() {
        // Each machine has a step of its own.
        let step = |number| [("SLURM_JOB_ID", "812"), ("SLURM_STEP_ID", number)];
        for launched in [&TORCHRUN[..], &[&OPEN_MPI[..], &[("MASTER_ADDR", "n1")]].concat()] {
            let [one, other] = ["0", "1"].map(|number| world(&[launched, &step(number)].concat()).unwrap());
            assert_eq!((one.password(), one.ports), (other.password(), other.ports));
        }
        // Two jobs of `torchrun` on one machine, whose run id is "none".
        let other = TORCHRUN.map(|(name, value)| (name, if name == "MASTER_PORT" { "29600" } else { value }));
        assert_ne!(world(&TORCHRUN).unwrap().password(), world(&other).unwrap().password());
        // Jobs without a name need a secret.
        assert!(world(&PMI).is_err());
        world(&[&PMI[..], &[(SECRET, "x")]].concat()).unwrap();
    }

    #[test]
    fn what_is_missing_or_contradicts_is_named() {
        let without = |all: &[(&'static str, &'static str)], name: &str| -> Vec<_> {
            all.iter().filter(|(other, _)| *other != name).copied().collect()
        };
        let with = |all: &[(&'static str, &'static str)], name: &'static str, value: &'static str| {
            let mut all = without(all, name);
            all.push((name, value));
            all
        };
        for (name, variables) in [
            ("WORLD_SIZE", without(&TORCHRUN, "WORLD_SIZE")),
            ("RANK", without(&TORCHRUN, "RANK")),
            ("LOCAL_RANK", without(&TORCHRUN, "LOCAL_RANK")),
            ("MASTER_ADDR", without(&TORCHRUN, "MASTER_ADDR")),
            ("MASTER_PORT", without(&TORCHRUN, "MASTER_PORT")),
            ("MASTER_PORT", with(&TORCHRUN, "MASTER_PORT", "70000")),
            ("RANK", with(&TORCHRUN, "RANK", "8")),
            ("RANK", with(&TORCHRUN, "RANK", "-1")),
            ("WORLD_SIZE", with(&TORCHRUN, "WORLD_SIZE", "0x8")),
            ("WORLD_SIZE", with(&TORCHRUN, "WORLD_SIZE", "99999999999999")),
            ("OMPI_COMM_WORLD_SIZE", with(&OPEN_MPI, "OMPI_COMM_WORLD_SIZE", "2147483648")),
            ("MASTER_PORT", with(&TORCHRUN, "MASTER_PORT", "0")),
            (PORT, with(&TORCHRUN, PORT, "none")),
            (PORT, with(&TORCHRUN, PORT, "0")),
            ("SLURM_NTASKS", without(&SLURM, "SLURM_NTASKS")),
            ("SLURM_LOCALID", without(&SLURM, "SLURM_LOCALID")),
            ("WORLD_SIZE", with(&SLURM, "WORLD_SIZE", "2")),
            ("MASTER_ADDR", without(&SLURM, "SLURM_STEP_NODELIST")),
            ("MASTER_ADDR", OPEN_MPI.to_vec()),
            ("MASTER_ADDR", [&OPEN_MPI[..], &SLURM].concat()),
            (SECRET, PMI.to_vec()),
            ("MPI_LOCALRANKID", vec![("PMI_RANK", "0"), ("PMI_SIZE", "2")]),
        ] {
            match world(&variables) {
                Err(Error::Config { what, .. }) => assert_eq!(what, name, "{variables:?}"),
                other => panic!("{variables:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_variable_that_is_not_utf8_is_named() {
        #[cfg(unix)]
        let broken = || -> OsString { std::os::unix::ffi::OsStringExt::from_vec(b"7\xff".to_vec()) };
        // Half of a pair of surrogates.
        #[cfg(windows)]
        let broken = || -> OsString { std::os::windows::ffi::OsStringExt::from_wide(&[55, 0xd800]) };
        let refused = |launched: &[(&str, &str)], names: &[&str]| {
            for name in names {
                let read = |asked: &str| match asked == *name {
                    true => Some(broken()),
                    false => launched.iter().find(|(n, _)| *n == asked).map(|(_, value)| value.into()),
                };
                let expected = Error::config(*name, "a text in UTF-8", "a value that is not UTF-8");
                assert_eq!(World::read(&read).unwrap_err(), expected, "{launched:?}");
            }
        };
        // Otherwise these would count as a process without a launcher.
        refused(&[], &["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"]);
        refused(&TORCHRUN, &["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"]);
        refused(&TORCHRUN, &["MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"]);
        refused(&TORCHRUN, &[PORT, SECRET]);
        let here = [&OPEN_MPI[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]].concat();
        refused(&here, &["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"]);
        refused(&here, &["OMPI_COMM_WORLD_LOCAL_SIZE", "WORLD_SIZE", "MASTER_ADDR", "PMIX_NAMESPACE"]);
        refused(&here, &[SECRET]);
        refused(&PMI, &["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID"]);
        refused(&PMI, &["PMI_PORT", SECRET]);
        refused(&SLURM, &["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID", "SLURM_STEP_ID"]);
        refused(&SLURM, &["SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST", SECRET]);
    }

    #[test]
    fn the_first_node_of_a_list_is_found() {
        for (list, first) in [
            ("n1", "n1"),
            ("n1,n2", "n1"),
            ("n[1-4]", "n1"),
            ("gpu[07,09-11]x,n2", "gpu07x"),
            ("a-b[3]", "a-b3"),
            ("a[1-2]b[3-4],c", "a1b3"),
        ] {
            let read = |name: &str| (name == "SLURM_NODELIST").then(|| OsString::from(list));
            assert_eq!(Environment(&read).first_node().unwrap().as_deref(), Some(first));
        }
    }
}
