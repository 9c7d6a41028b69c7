//! The files and variables to examine.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::provider::names::System as Kind;

/// The files and environment variables to examine: those of this machine, or of an imitation.
#[derive(Debug, Clone)]
pub struct System {
    pub(super) kind: Kind,
    pub(super) root: PathBuf,
    variables: BTreeMap<OsString, OsString>,
    /// Opens a device file for reading and writing.
    open: fn(&Self, &Path) -> io::Result<()>,
}

impl System {
    /// This machine.
    pub fn here() -> Self {
        let open = |_: &Self, path: &Path| OpenOptions::new().read(true).write(true).open(path).map(drop);
        Self { kind: Kind::HERE, root: "/".into(), variables: std::env::vars_os().collect(), open }
    }

    /// A system whose files lie below `root`, with these environment variables and no others.
    ///
    /// Device files are plain files there. Whether they can be opened follows from their owner,
    /// group and mode, and from the user in `proc/self/status` below `root`. So a root user can
    /// imitate another. On Windows every file can be opened.
    pub fn imitation<N: AsRef<OsStr>>(
        root: impl Into<PathBuf>,
        variables: impl IntoIterator<Item = (N, N)>,
    ) -> Self {
        let own = |(name, value): (N, N)| (name.as_ref().to_owned(), value.as_ref().to_owned());
        Self {
            kind: Kind::HERE,
            root: root.into(),
            variables: variables.into_iter().map(own).collect(),
            open: imitated_open,
        }
    }

    /// The value of a variable; `None` if it is not set.
    pub(super) fn raw(&self, name: &str) -> Option<OsString> {
        // Windows ignores the case of names.
        let is = |set: &OsStr| match self.kind {
            Kind::Unix => set == name,
            Kind::Windows => set.eq_ignore_ascii_case(name),
        };
        self.variables.iter().find(|(set, _)| is(set)).map(|(_, value)| value.clone())
    }

    /// The value of a variable. Bytes that are not UTF-8 become the replacement character.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        Some(self.raw(name)?.to_string_lossy().trim().to_owned())
    }

    /// A whole number that a variable has; `None` if it is not set or is something else.
    pub(super) fn number(&self, name: &str) -> Option<i64> {
        self.variable(name)?.parse().ok()
    }
}

#[cfg_attr(windows, allow(dead_code, reason = "the checks of Linux use it"))]
impl System {
    /// A path below the root; an absolute one too.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The content of a file, without the spaces around it; empty if it can't be read.
    pub(super) fn text(&self, path: &str) -> String {
        String::from_utf8_lossy(&self.bytes(path)).trim().to_owned()
    }

    pub(super) fn bytes(&self, path: &str) -> Vec<u8> {
        fs::read(self.path(path)).unwrap_or_default()
    }

    /// The names in a folder, sorted; `None` if it can't be read.
    pub(super) fn names(&self, folder: &str) -> Option<Vec<String>> {
        let entries = fs::read_dir(self.path(folder)).ok()?.flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
        Some(names)
    }

    /// Opens a device file for reading and writing, and closes it.
    pub(super) fn open(&self, path: &str) -> io::Result<()> {
        (self.open)(self, &self.path(path))
    }

    /// The numbers after a key of `/proc/self/status`.
    pub(super) fn status(&self, key: &str) -> Vec<u32> {
        let status = self.text("proc/self/status");
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        line.split_whitespace().filter_map(|number| number.parse().ok()).collect()
    }

    /// The numbers of the user's groups.
    pub(super) fn groups(&self) -> Vec<u32> {
        [self.status("Gid:"), self.status("Groups:")].concat()
    }

    /// The number of the user that the process acts as.
    pub(super) fn user(&self) -> Option<u32> {
        // The real, the effective, the saved and the file system's.
        self.status("Uid:").get(1).copied()
    }
}

/// Opens a file if its owner, group and mode allow it to the imitated user.
#[cfg(unix)]
fn imitated_open(system: &System, path: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let file = fs::metadata(path)?;
    let bits = match system.user() {
        Some(0) => 0o6,
        Some(user) if user == file.uid() => file.mode() >> 6,
        _ if system.groups().contains(&file.gid()) => file.mode() >> 3,
        _ => file.mode(),
    };
    if bits & 0o6 == 0o6 { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EACCES)) }
}

#[cfg(not(unix))]
fn imitated_open(_: &System, path: &Path) -> io::Result<()> {
    fs::metadata(path).map(drop)
}
