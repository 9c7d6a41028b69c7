//! Results of timing the libraries' algorithms, kept on disk, so that no process times what another
//! has timed.
//!
//! Each result is a small text file of its own, whose name is a hash of device, library and problem.
//! A file is written under another name and then renamed, so several processes can share the
//! folder, also over a network file system: nobody locks, and nobody sees half a file.

mod entry;

use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::error::{Error, Result};
use crate::hash::Digest;
use crate::os::private::{self, Refusal};
use crate::settings::settings;
use crate::whole_file;

pub use entry::TuningEntry;
use entry::{NoEntry, parse, text};

/// What the tuning store did in this process, and how many entries it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TuningStats {
    /// Problems whose entry was found.
    pub hits: u64,
    /// Problems that had no entry.
    pub misses: u64,
    /// Problems whose algorithms were timed.
    pub trials: u64,
    /// Entries written, imported ones too.
    pub stored: u64,
    /// Damaged files, which were removed.
    pub damaged: u64,
    /// Files and folders that were not used: another user owns them or may write them, another
    /// version of this project wrote them, or the system refused.
    pub refused: u64,
    /// Entries whose solution the library refused. They were removed.
    pub outdated: u64,
    /// Entries in the folder now, for all devices and libraries.
    pub entries: u64,
}

/// The results of timing that all programs of a user share.
pub struct TuningStore {
    directory: Option<PathBuf>,
    state: Mutex<State>,
    /// A number that each import changes, from 1 on.
    generation: AtomicU64,
}

#[derive(Default)]
struct State {
    stats: TuningStats,
    /// At most this many entries may be written before the folder is listed again.
    room: usize,
    /// Whether the folder is usable; `None` until it is checked.
    usable: Option<bool>,
    refusal: Option<Error>,
}

/// The most entries of a folder. A program with new shapes at each step would fill the disk
/// otherwise.
const MOST: usize = 1 << 14;
/// Uses of a problem before its candidates are timed.
pub(crate) const USES_BEFORE_FIND: u32 = 2;
/// A candidate replaces the default if it takes less than this part of its time. A smaller gain may
/// be chance, and the default's bits then stay.
pub(crate) const CLEARLY: f64 = 0.97;
/// The name of the store in errors.
const STORE: &str = "tuning store";
/// An entry is far smaller. A larger file counts as damaged and is not read.
const LARGEST: u64 = 1 << 16;

/// The process's tuning store. It is off if [`Config::cache`](crate::Config::cache) or
/// [`Config::tuning`](crate::Config::tuning) is, and if
/// [`Config::deterministic`](crate::Config::deterministic) is set, because which algorithm is the
/// fastest may differ between runs.
///
/// ```
/// let store = hip::tuning_store();
/// println!("{:?}: {:?}", store.directory(), store.stats());
/// ```
pub fn tuning_store() -> &'static TuningStore {
    static STORE: OnceLock<TuningStore> = OnceLock::new();
    STORE.get_or_init(|| {
        let settings = settings().ok().filter(|settings| settings.tuning && !settings.deterministic);
        let cache = settings.and_then(|settings| settings.cache_directory());
        TuningStore::new(cache.map(|cache| cache.join("tuning")))
    })
}

impl TuningStore {
    pub(crate) fn new(directory: Option<PathBuf>) -> Self {
        Self { directory, state: Mutex::default(), generation: AtomicU64::new(1) }
    }

    /// The store's folder; `None` if the store is off.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// What the store has done so far.
    pub fn stats(&self) -> TuningStats {
        let entries = self.usable().map_or(0, |folder| files(folder).len() as u64);
        TuningStats { entries, ..self.state().stats }
    }

    /// Why the last file or folder was not used.
    pub fn last_refusal(&self) -> Option<Error> {
        self.state().refusal.clone()
    }

    /// The entries of the folder, for all devices and libraries, sorted by these and by the problem.
    pub fn entries(&self) -> Vec<TuningEntry> {
        let Some(folder) = self.usable() else { return Vec::new() };
        let mut entries: Vec<_> = files(folder).iter().filter_map(|path| self.read(path)).collect();
        let key = |entry: &TuningEntry| [&entry.device, &entry.library, &entry.problem].map(String::clone);
        entries.sort_by_cached_key(key);
        entries
    }

    /// Removes every entry. Returns their number. Processes that run keep what they have read.
    pub fn clear(&self) -> usize {
        let Some(folder) = self.usable() else { return 0 };
        files(folder).into_iter().filter(|path| fs::remove_file(path).is_ok()).count()
    }

    /// Writes all entries to a file, which [`TuningStore::import`] of another machine with such
    /// devices reads. Returns their number.
    ///
    /// # Errors
    /// `Invalid` if the file can't be written, and `Config` if the store is off. The file then stays as
    /// it is.
    pub fn export(&self, file: &Path) -> Result<usize> {
        self.folder()?;
        let entries = self.entries();
        let written = whole_file::write(file, &text(&entries));
        written.map_err(|error| {
            Error::invalid("tuning_export", "a file that can be written", at(file, error))
        })?;
        Ok(entries.len())
    }

    /// Adds the entries of a file that [`TuningStore::export`] wrote. If the store has an entry for
    /// the same device, library and problem, the faster one stays. Returns how many entries were
    /// added or replaced. An entry serves from the next use of its problem on, also in this
    /// process.
    ///
    /// # Errors
    /// `Invalid` if the file can't be read or has another format, and `Config` if the store is off
    /// or can't be written. In the first case nothing was added.
    pub fn import(&self, file: &Path) -> Result<usize> {
        let read = fs::read_to_string(file);
        let read = read
            .map_err(|error| Error::invalid("tuning_import", "a file of tuning entries", at(file, error)))?;
        let entries = parse(&read).map_err(|error| {
            let found = at(file, format_args!("line {}: {}", error.line, error.found));
            Error::invalid("tuning_import", error.expected, found)
        })?;
        let mut added = 0;
        // Even if an entry can't be written, because those before it were added.
        let _changed = Changes(self);
        for entry in entries {
            let known = self.peek(&entry.device, &entry.library, &entry.problem);
            if known.is_none_or(|known| entry.microseconds < known.microseconds) {
                self.put(&entry)?;
                added += 1;
            }
        }
        Ok(added)
    }

    /// A number that each import changes. A caller that looked a problem up under another number
    /// looks it up again.
    pub(crate) fn generation(&self) -> u64 {
        // Relaxed: the entries are files, written before it changes.
        self.generation.load(Ordering::Relaxed)
    }

    /// The entry of a problem.
    pub(crate) fn get(&self, device: &str, library: &str, problem: &str) -> Option<TuningEntry> {
        let found = self.peek(device, library, problem);
        self.count(found.is_some());
        found
    }

    /// Counts a problem that was looked up, perhaps under several names.
    pub(crate) fn count(&self, found: bool) {
        let stats = &mut self.state().stats;
        match found {
            true => stats.hits += 1,
            false => stats.misses += 1,
        }
    }

    /// Removes the entry of a problem, because the library refused its solution. Does nothing if
    /// there is none: it may be removed already, or the solution is of a timing that was not kept.
    pub(crate) fn refused(&self, device: &str, library: &str, problem: &str) {
        let Some(folder) = self.usable() else { return };
        if fs::remove_file(path(folder, device, library, problem)).is_ok() {
            self.state().stats.outdated += 1;
        }
    }

    pub(crate) fn count_trial(&self) {
        self.state().stats.trials += 1;
    }

    /// Keeps an entry in place of the one for the same problem.
    ///
    /// # Errors
    /// `Config` if the store is off, full or can't be written.
    pub(crate) fn put(&self, entry: &TuningEntry) -> Result<()> {
        let folder = self.folder()?;
        let path = path(folder, &entry.device, &entry.library, &entry.problem);
        if !path.exists() && !self.has_room(folder) {
            let expected = format!("at most {MOST} entries");
            return Err(Error::config(STORE, expected, format!("{MOST} in {}", folder.display())));
        }
        match whole_file::write_private(&path, text([entry]).as_bytes()) {
            Ok(()) => self.state().stats.stored += 1,
            Err(error) => {
                self.refuse(&path, "a file that can be written", error.to_string());
                return Err(Error::config(STORE, "a file that can be written", at(&path, error)));
            }
        }
        Ok(())
    }

    /// Whether the folder takes one more entry. It is listed only once for each hundredth of [`MOST`]
    /// entries, or for each entry if it is nearly full. Other processes may write meanwhile, so each
    /// of them may pass the limit by as many entries.
    fn has_room(&self, folder: &Path) -> bool {
        if self.state().room == 0 {
            let left = MOST.saturating_sub(files(folder).len());
            self.state().room = if left > MOST / 50 { MOST / 100 } else { left.min(1) };
        }
        let mut state = self.state();
        let has = state.room > 0;
        state.room = state.room.saturating_sub(1);
        has
    }

    /// As `put`. A failure is logged, once, and is no error: the problem is then timed again in the
    /// next process.
    pub(crate) fn keep(&self, entry: &TuningEntry) {
        if self.directory.is_none() {
            return;
        }
        if let Err(error) = self.put(entry) {
            static SAID: std::sync::Once = std::sync::Once::new();
            SAID.call_once(|| log::warn!("{error}; results of timing are not kept"));
        }
    }

    /// As [`get`](Self::get), but counts nothing.
    pub(crate) fn peek(&self, device: &str, library: &str, problem: &str) -> Option<TuningEntry> {
        let entry = self.read(&path(self.usable()?, device, library, problem))?;
        // A file of this name may have been copied here.
        let same = entry.device == device && entry.library == library && entry.problem == problem;
        same.then_some(entry)
    }

    fn read(&self, path: &Path) -> Option<TuningEntry> {
        let mut file = match private::open_file(path) {
            Ok(file) => file,
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    self.refuse(path, "a file that this user may read", error.to_string());
                }
                return None;
            }
        };
        if let Some(Refusal { expected, found }) = private::refuse_file(&file).ok()? {
            self.refuse(path, expected, found);
            return None;
        }
        let small = file.metadata().is_ok_and(|facts| facts.len() <= LARGEST);
        let mut text = String::new();
        let why = match small && file.read_to_string(&mut text).is_ok() {
            true => match parse(&text) {
                Ok(entries) if entries.len() == 1 => return entries.into_iter().next(),
                Ok(entries) => format!("it has {} entries", entries.len()),
                Err(NoEntry { other_version: true, expected, found, .. }) => {
                    self.refuse(path, expected, found);
                    return None;
                }
                Err(error) => error.to_string(),
            },
            false => "it is not a small text".to_string(),
        };
        log::debug!("damaged tuning entry {}: {why}", path.display());
        let _ = fs::remove_file(path);
        self.state().stats.damaged += 1;
        None
    }

    /// The folder, made if it is missing; `None` if it is not this user's alone.
    fn usable(&self) -> Option<&Path> {
        let directory = self.directory.as_deref()?;
        if let Some(usable) = self.state().usable {
            return usable.then_some(directory);
        }
        let refused = match private::create_folder(directory).and_then(|()| private::refuse_folder(directory))
        {
            Ok(None) => None,
            Ok(Some(Refusal { expected, found })) => Some((expected, found)),
            Err(error) => Some(("a folder that can be made".to_string(), error.to_string())),
        };
        let usable = refused.is_none();
        if let Some((expected, found)) = refused {
            self.refuse(directory, expected, found);
        }
        self.state().usable = Some(usable);
        usable.then_some(directory)
    }

    /// The folder.
    ///
    /// # Errors
    /// `Config` if the store is off, or its folder is not usable.
    pub(crate) fn folder(&self) -> Result<&Path> {
        self.usable().ok_or_else(|| {
            let why = self.last_refusal();
            let found = why.map_or_else(|| "a store that is off".to_string(), |why| why.to_string());
            Error::config(STORE, "a folder for its entries", found)
        })
    }

    /// Counts what is not used, and logs the first.
    fn refuse(&self, path: &Path, expected: impl Into<String>, found: impl Into<String>) {
        let error = Error::config(format!("tuning store {}", path.display()), expected, found);
        let is_first = {
            let mut state = self.state();
            state.stats.refused += 1;
            state.refusal = Some(error.clone());
            state.stats.refused == 1
        };
        // Without the lock, because a logger may ask the store.
        if is_first {
            log::warn!("{error}; timing without it");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name in the store's entries of a library that computes f32. The name says if TF32 is on,
/// because the library then has other algorithms.
pub(crate) fn library_name(library: String) -> String {
    match settings().is_ok_and(|settings| settings.cuda_tf32) {
        true => format!("{library}, TF32"),
        false => library,
    }
}

/// Changes a store's generation when it is dropped, which an import does after it added entries.
pub(crate) struct Changes<'a>(pub(crate) &'a TuningStore);

impl Drop for Changes<'_> {
    fn drop(&mut self) {
        self.0.generation.fetch_add(1, Ordering::Relaxed);
    }
}

fn at(file: &Path, what: impl std::fmt::Display) -> String {
    format!("{}: {what}", file.display())
}

fn path(folder: &Path, device: &str, library: &str, problem: &str) -> PathBuf {
    let key = Digest::new().part(device).part(library).part(problem).finish();
    folder.join(format!("{key:032x}.tuning"))
}

/// The files of entries.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let path = entry.path();
            if path.extension()? == "tuning" {
                return Some(path);
            }
            whole_file::discard_leftover(&path, entry.metadata().ok()?.modified().ok()?);
            None
        })
        .collect()
}

#[cfg(test)]
mod tests;
