//! Temporary folders of the run-time compiler and of the programs that it made.

use std::{
    env,
    fs::{self, File, Metadata},
    io,
    path::{Path, PathBuf},
    process,
    sync::{
        Once, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// How the names of the folders begin.
const PREFIX: &str = "hip-cpu-";

/// A file in each folder that is locked while the folder is in use.
const LOCK: &str = "in-use";

/// The age from which a folder that is not in use is removed. A younger one may be in use soon.
const STALE: Duration = Duration::from_secs(3600);

static PARENT: OnceLock<fn() -> Result<PathBuf, String>> = OnceLock::new();

/// Sets where temporary folders are made. They hold programs that this crate loads, so nobody else
/// may be able to write the folder that `parent` returns. The first call of a process counts.
/// Without a call, the parent is [`env::temp_dir`]. That suffices on Linux, but on Windows other
/// users may be able to write there.
pub fn make_temporary_folders_in(parent: fn() -> Result<PathBuf, String>) {
    let _ = PARENT.set(parent);
}

/// A temporary folder that no other user may write. It is removed on drop. If the process ends
/// before, a later process removes it.
pub(crate) struct Folder {
    path: PathBuf,
    /// The open file [`LOCK`].
    lock: Option<File>,
}

impl Folder {
    pub(crate) fn new() -> Result<Self, String> {
        let parent = PARENT.get().map_or_else(|| Ok(env::temp_dir()), |parent| parent())?;
        let folder =
            Self::new_in(&parent).map_err(|error| format!("no folder in {}: {error}", parent.display()))?;
        static ONCE: Once = Once::new();
        ONCE.call_once(|| remove_stale(&parent, &folder, STALE));
        Ok(folder)
    }

    fn new_in(parent: &Path) -> io::Result<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let path = loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("{PREFIX}{}-{number}", process::id()));
            match create_private(&path) {
                Ok(()) => break path,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        };
        let mut folder = Self { path, lock: None };
        let lock = File::create_new(folder.path.join(LOCK))?;
        // On a file system without locks, other processes can't lock the file either, and leave the
        // folder alone.
        if let Err(error) = lock.try_lock() {
            log::debug!("{} can't be locked: {error}", folder.path.display());
        }
        folder.lock = Some(lock);
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Windows does not remove a folder with an open file.
        drop(self.lock.take());
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders that processes of this user left when they were killed.
fn remove_stale(parent: &Path, own: &Folder, age: Duration) {
    let Ok(own) = fs::symlink_metadata(&own.path) else { return };
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        let Ok(facts) = fs::symlink_metadata(&path) else { continue };
        let old = facts.modified().is_ok_and(|made| made.elapsed().is_ok_and(|found| found >= age));
        if old && facts.is_dir() && same_owner(&facts, &own) && !in_use(&path) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Whether a process has a folder in use, or may have.
fn in_use(folder: &Path) -> bool {
    match File::options().read(true).write(true).open(folder.join(LOCK)) {
        Ok(lock) => lock.try_lock().is_err(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

#[cfg(unix)]
fn create_private(folder: &Path) -> io::Result<()> {
    std::os::unix::fs::DirBuilderExt::mode(&mut fs::DirBuilder::new(), 0o700).create(folder)
}

/// The folder gets the rights that its parent passes on.
#[cfg(not(unix))]
fn create_private(folder: &Path) -> io::Result<()> {
    fs::create_dir(folder)
}

/// Everybody may make folders in Linux's folder for temporary files.
#[cfg(unix)]
fn same_owner(a: &Metadata, b: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    a.uid() == b.uid()
}

/// Only this user may write the parent ([`make_temporary_folders_in`]).
#[cfg(not(unix))]
fn same_owner(_: &Metadata, _: &Metadata) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The variable that names the parent of the folders of a process that is killed.
    const PARENT_OF_KILLED: &str = "HIP_CPU_TEST_PARENT_OF_KILLED";

    #[test]
    fn what_a_killed_process_left_is_removed_and_what_is_in_use_is_not() {
        if let Some(parent) = env::var_os(PARENT_OF_KILLED) {
            let folder = Folder::new_in(Path::new(&parent)).unwrap();
            fs::write(folder.path().join("program.so"), "x").unwrap();
            // Drops nothing.
            process::exit(3);
        }
        let parent = env::temp_dir().join(format!("hip-cpu-test-{}", process::id()));
        fs::create_dir_all(&parent).unwrap();
        let name = "what_a_killed_process_left_is_removed_and_what_is_in_use_is_not";
        let mut killed = process::Command::new(env::current_exe().unwrap());
        let ended = killed.args([name, "--nocapture"]).env(PARENT_OF_KILLED, &parent).output().unwrap();
        assert_eq!(ended.status.code(), Some(3));
        let count = || fs::read_dir(&parent).unwrap().count();
        assert_eq!(count(), 1, "{}", String::from_utf8_lossy(&ended.stderr));

        let (own, other) = (Folder::new_in(&parent).unwrap(), Folder::new_in(&parent).unwrap());
        // A folder without the file, as older versions left it, and what is no folder of this crate.
        fs::create_dir(parent.join(format!("{PREFIX}1-1"))).unwrap();
        fs::create_dir(parent.join("another")).unwrap();
        fs::write(parent.join(format!("{PREFIX}file")), "x").unwrap();
        assert_eq!(count(), 6);
        remove_stale(&parent, &own, STALE);
        assert_eq!(count(), 6, "they are young");
        remove_stale(&parent, &own, Duration::ZERO);
        assert_eq!(count(), 4);
        assert!(own.path().is_dir() && other.path().is_dir() && parent.join("another").is_dir());
        drop((own, other));
        assert_eq!(count(), 2, "removed on drop");
        fs::remove_dir_all(&parent).unwrap();
    }

    #[test]
    fn a_parent_that_is_no_folder_is_named() {
        let missing = env::temp_dir().join(format!("hip-cpu-missing-{}", process::id()));
        assert!(Folder::new_in(&missing).is_err());
    }
}
