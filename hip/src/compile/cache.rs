//! The cache of code objects on disk, so that kernels are not compiled at every start.

use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use crate::error::Error;
use crate::hash::Digest;
use crate::os::private::{self, Refusal};
use crate::settings::settings;
use crate::whole_file;

/// A compiled kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CodeObject {
    /// The kernel's symbol in the code.
    pub(crate) symbol: String,
    pub(crate) code: Box<[u8]>,
}

/// What the code-object cache did in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// Code objects read from disk.
    pub hits: u64,
    /// Code objects that were not in the cache.
    pub misses: u64,
    /// Kernels compiled.
    pub compiled: u64,
    /// Time spent compiling, summed over threads.
    pub compile_time: Duration,
    /// Files written.
    pub stored: u64,
    /// Damaged files, whose kernels were compiled again.
    pub damaged: u64,
    /// Files and directories that were refused, because another user owns them or may write them.
    pub refused: u64,
    /// Files removed to stay below the limit.
    pub evicted: u64,
}

/// The cache of code objects on disk, which all programs of a user share.
pub struct CodeCache {
    directory: Option<PathBuf>,
    limit: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    stats: CacheStats,
    /// Whether the directory is usable, or why not; `None` until it is checked.
    usable: Option<Result<(), Error>>,
    /// Bytes on disk; `None` if not known.
    size: Option<u64>,
    refusal: Option<Error>,
}

const MAGIC: &[u8; 8] = b"BRCODE1\n";
/// Magic, key, checksum, length of the symbol.
const HEADER: usize = 8 + 16 + 16 + 4;
/// No kernel's code comes near this size. A larger file counts as damaged and is not read.
const LARGEST: u64 = 256 << 20;

/// The process's cache of code objects.
///
/// ```
/// let cache = hip::code_cache();
/// cache.set_limit(64 << 20);
/// println!("{:?}: {:?}", cache.directory(), cache.stats());
/// ```
pub fn code_cache() -> &'static CodeCache {
    static CACHE: OnceLock<CodeCache> = OnceLock::new();
    CACHE.get_or_init(|| match settings() {
        Ok(settings) => CodeCache::new(settings.cache_directory(), settings.cache_limit as u64),
        Err(_) => CodeCache::new(None, 0),
    })
}

/// A folder for files that are loaded and do not outlive a process; created if missing. It is in the
/// cache's folder or, if only this user may write that, the system's folder for temporary files.
///
/// `Err` says what was expected and found.
#[cfg_attr(not(feature = "cpu"), allow(dead_code, reason = "only the CPU device compiles to files"))]
pub(crate) fn temporary_folder() -> Result<PathBuf, String> {
    let cache = settings().ok().and_then(|settings| settings.cache_dir.clone());
    first_private(cache.map(|cache| cache.join("temporary")).into_iter().chain([std::env::temp_dir()]))
}

/// The first folder that is or can be made this user's alone.
#[cfg_attr(not(feature = "cpu"), allow(dead_code, reason = "as above"))]
fn first_private(folders: impl IntoIterator<Item = PathBuf>) -> Result<PathBuf, String> {
    let mut refused = Vec::new();
    for folder in folders {
        let looked = private::create_folder(&folder).and_then(|()| private::refuse_folder(&folder));
        let why = match looked {
            Ok(None) => return Ok(folder),
            Ok(Some(Refusal { expected, found })) => format!("expected {expected}, found {found}"),
            Err(error) => error.to_string(),
        };
        refused.push(format!("{}: {why}", folder.display()));
    }
    Err(refused.join("; "))
}

impl CodeCache {
    pub(crate) fn new(directory: Option<PathBuf>, limit: u64) -> Self {
        Self { directory, limit: AtomicU64::new(limit), state: Mutex::new(State::default()) }
    }

    /// The cache's directory; `None` if there is none, or if
    /// [`Config::cache`](crate::Config::cache) is off.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// What the cache has done so far.
    pub fn stats(&self) -> CacheStats {
        self.state().stats
    }

    /// Sets how many bytes the cache may take on disk. The least recently used files are removed
    /// first.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Why the last file or directory was refused.
    pub fn last_refusal(&self) -> Option<Error> {
        self.state().refusal.clone()
    }

    /// Removes every file of the cache. Returns the bytes removed.
    pub fn clear(&self) -> u64 {
        let Some(directory) = self.usable() else { return 0 };
        let removed = files(directory)
            .into_iter()
            .filter(|file| fs::remove_file(&file.path).is_ok())
            .map(|file| file.size)
            .sum();
        self.state().size = None;
        removed
    }

    pub(crate) fn count_compilation(&self, time: Duration) {
        let mut state = self.state();
        state.stats.compiled += 1;
        state.stats.compile_time += time;
    }

    /// As [`CodeCache::find`]; `None` for what is refused, too.
    pub(crate) fn get(&self, key: u128) -> Option<CodeObject> {
        self.find(key).ok().flatten()
    }

    /// Reads a code object. A damaged file is removed; a file that another user owns is left alone.
    /// In both cases the kernel is compiled again.
    ///
    /// # Errors
    /// `Config` if the directory or this key's file is refused.
    pub(crate) fn find(&self, key: u128) -> Result<Option<CodeObject>, Error> {
        let Some(directory) = self.own_directory()? else { return Ok(None) };
        let path = path(directory, key);
        let mut file = match private::open_file(&path) {
            Ok(file) => file,
            Err(error) => {
                self.state().stats.misses += 1;
                if error.kind() == ErrorKind::PermissionDenied {
                    return Err(self.refuse(&path, "a file that this user may read", error.to_string()));
                }
                return Ok(None);
            }
        };
        let Ok(facts) = file.metadata() else { return Ok(None) };
        match private::refuse_file(&file) {
            Ok(None) => {}
            Ok(Some(Refusal { expected, found })) => return Err(self.refuse(&path, expected, found)),
            Err(_) => return Ok(None),
        }
        let mut bytes = Vec::new();
        let read = facts.len() <= LARGEST && file.read_to_end(&mut bytes).is_ok();
        match if read { decode(key, &bytes) } else { Err("it can't be read") } {
            Ok(object) => {
                self.state().stats.hits += 1;
                // Records the time of last use, for eviction, at most once a day.
                let now = SystemTime::now();
                let age = facts.modified().ok().and_then(|then| now.duration_since(then).ok());
                if age.is_some_and(|age| age > Duration::from_secs(24 * 3600)) {
                    let _ = file.set_modified(now);
                }
                Ok(Some(object))
            }
            Err(why) => {
                self.discard(key, why);
                Ok(None)
            }
        }
    }

    /// Removes a file that can't be used.
    pub(crate) fn discard(&self, key: u128, why: &str) {
        let Some(directory) = self.usable() else { return };
        let path = path(directory, key);
        log::warn!("damaged cache file {}: {why}; compiling again", path.display());
        let _ = fs::remove_file(&path);
        self.state().stats.damaged += 1;
    }

    /// Stores a code object. A failure is not an error: the kernel is then compiled again next
    /// time.
    pub(crate) fn put(&self, key: u128, object: &CodeObject) {
        let Some(directory) = self.usable() else { return };
        let bytes = encode(key, object);
        let limit = self.limit.load(Ordering::Relaxed);
        if bytes.len() as u64 > limit {
            return;
        }
        if let Err(error) = whole_file::write_private(&path(directory, key), &bytes) {
            log::debug!("can't write to the cache {}: {error}", directory.display());
            return;
        }
        let mut state = self.state();
        state.stats.stored += 1;
        let size = match state.size {
            Some(size) => size + bytes.len() as u64,
            None => files(directory).iter().map(|file| file.size).sum(),
        };
        state.size = Some(size);
        if size > limit {
            drop(state);
            self.evict(directory, limit);
        }
    }

    fn evict(&self, directory: &Path, limit: u64) {
        let mut files = files(directory);
        files.sort_by_key(|file| file.used);
        let mut size: u64 = files.iter().map(|file| file.size).sum();
        let mut evicted = 0;
        for file in files {
            // Leave some room, so that the next file does not trigger another eviction.
            if size <= limit / 4 * 3 {
                break;
            }
            if fs::remove_file(&file.path).is_ok() {
                size -= file.size;
                evicted += 1;
            }
        }
        let mut state = self.state();
        state.size = Some(size);
        state.stats.evicted += evicted;
    }

    /// The directory, created if missing; `None` if it is not this user's alone.
    fn usable(&self) -> Option<&Path> {
        self.own_directory().ok().flatten()
    }

    /// The directory, created if missing; `None` if the cache has none.
    ///
    /// # Errors
    /// `Config` if the directory is not this user's alone.
    fn own_directory(&self) -> Result<Option<&Path>, Error> {
        let Some(directory) = self.directory.as_deref() else { return Ok(None) };
        let known = self.state().usable.clone();
        let usable = match known {
            Some(usable) => usable,
            None => {
                let usable = self.look_at(directory);
                self.state().usable = Some(usable.clone());
                usable
            }
        };
        usable.map(|()| Some(directory))
    }

    fn look_at(&self, directory: &Path) -> Result<(), Error> {
        if let Err(error) = private::create_folder(directory) {
            return Err(self.refuse(directory, "a directory that can be made", error.to_string()));
        }
        match private::refuse_folder(directory) {
            Ok(None) => Ok(()),
            Ok(Some(Refusal { expected, found })) => Err(self.refuse(directory, expected, found)),
            Err(error) => Err(self.refuse(directory, "a directory", error.to_string())),
        }
    }

    /// Counts a refusal, and returns it as an error.
    fn refuse(&self, path: &Path, expected: impl Into<String>, found: impl Into<String>) -> Error {
        let error = Error::config(format!("code-object cache {}", path.display()), expected, found);
        log::warn!("{error}; compiling without it");
        let mut state = self.state();
        state.stats.refused += 1;
        state.refusal = Some(error.clone());
        error
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn path(directory: &Path, key: u128) -> PathBuf {
    directory.join(format!("{key:032x}.code"))
}

struct CacheFile {
    path: PathBuf,
    size: u64,
    used: SystemTime,
}

/// The cache's files. Removes temporary files that a killed process left.
fn files(directory: &Path) -> Vec<CacheFile> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let path = entry.path();
            let facts = entry.metadata().ok()?;
            let used = facts.modified().ok()?;
            match path.extension()?.to_str()? {
                "code" => Some(CacheFile { path, size: facts.len(), used }),
                _ => {
                    whole_file::discard_leftover(&path, used);
                    None
                }
            }
        })
        .collect()
}

fn encode(key: u128, object: &CodeObject) -> Vec<u8> {
    let mut payload = Vec::with_capacity(object.symbol.len() + object.code.len());
    payload.extend_from_slice(object.symbol.as_bytes());
    payload.extend_from_slice(&object.code);
    let symbol = (object.symbol.len() as u32).to_le_bytes();
    let checksum = Digest::new().bytes(&symbol).bytes(&payload).finish();
    [MAGIC.as_slice(), &key.to_le_bytes(), &checksum.to_le_bytes(), &symbol, &payload].concat()
}

fn decode(key: u128, bytes: &[u8]) -> Result<CodeObject, &'static str> {
    let Some((header, payload)) = bytes.split_at_checked(HEADER) else { return Err("it is cut short") };
    if &header[..8] != MAGIC {
        return Err("it is not a cache file");
    }
    if header[8..24] != key.to_le_bytes() {
        return Err("it belongs to another kernel");
    }
    let symbol = &header[40..44];
    if header[24..40] != Digest::new().bytes(symbol).bytes(payload).finish().to_le_bytes() {
        return Err("its checksum is wrong");
    }
    let length = symbol.iter().rev().fold(0usize, |length, &byte| length << 8 | usize::from(byte));
    let (symbol, code) = payload.split_at_checked(length).ok_or("its lengths do not fit")?;
    let symbol = String::from_utf8(symbol.to_vec()).map_err(|_| "its symbol is not text")?;
    Ok(CodeObject { symbol, code: code.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(unix)]
    use std::os::unix::fs::PermissionsExt;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("hip-cache-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }
        fn cache(&self) -> CodeCache {
            CodeCache::new(Some(self.0.clone()), 1 << 20)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn object(size: usize) -> CodeObject {
        CodeObject { symbol: "_Z6kernelPf".into(), code: (0..size).map(|i| (i * 7) as u8).collect() }
    }

    #[test]
    fn what_was_put_is_found_again_by_another_process() {
        let scratch = Scratch::new("roundtrip");
        let cache = scratch.cache();
        assert_eq!(cache.get(1), None);
        cache.put(1, &object(5000));
        assert_eq!(scratch.cache().get(1), Some(object(5000)));
        assert_eq!((cache.stats().misses, cache.stats().stored), (1, 1));
        assert!(cache.clear() > 5000);
        assert_eq!(cache.get(1), None);
    }

    #[test]
    fn every_kind_of_damage_is_seen_and_mended() {
        let scratch = Scratch::new("damage");
        let cache = scratch.cache();
        cache.put(9, &object(300));
        let file = path(&scratch.0, 9);
        let whole = fs::read(&file).unwrap();
        let mut damaged: Vec<Vec<u8>> =
            [0, 3, HEADER - 1, HEADER, whole.len() - 1].map(|length| whole[..length].to_vec()).into();
        for at in [0, 9, 30, 41, 43, HEADER, HEADER + 50, whole.len() - 1] {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x40;
            damaged.push(bytes);
        }
        damaged.push([whole.as_slice(), &[0]].concat());
        let count = damaged.len() as u64;
        for bytes in damaged {
            fs::write(&file, bytes).unwrap();
            assert_eq!(cache.get(9), None);
            assert!(!file.exists());
            cache.put(9, &object(300));
            assert_eq!(cache.get(9), Some(object(300)));
        }
        assert_eq!(cache.stats().damaged, count);
    }

    #[cfg(unix)]
    #[test]
    fn files_that_others_may_have_written_are_refused() {
        let scratch = Scratch::new("foreign");
        let cache = scratch.cache();
        cache.put(2, &object(10));
        let file = path(&scratch.0, 2);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(cache.get(2), None);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(cache.stats().refused, 1);
        match cache.last_refusal() {
            Some(Error::Config { what, expected, found }) => {
                assert!(what.contains("code-object cache"), "{what}");
                assert_eq!(expected, "a file that only its owner may write");
                assert_eq!(found, "mode 100666");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(cache.get(2), Some(object(10)), "the file is left alone");
    }

    /// In strict mode a refusal is an error.
    #[cfg(unix)]
    #[test]
    fn a_refused_file_is_an_error_for_its_own_key_only() {
        let scratch = Scratch::new("own-key");
        let cache = scratch.cache();
        cache.put(1, &object(10));
        fs::set_permissions(path(&scratch.0, 1), fs::Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(cache.find(1), Err(Error::Config { .. })));
        assert_eq!(cache.find(2), Ok(None));
        cache.put(2, &object(20));
        assert_eq!(cache.find(2), Ok(Some(object(20))));
        assert!(cache.find(1).is_err() && cache.last_refusal().is_some());
    }

    #[cfg(unix)]
    #[test]
    fn a_directory_that_others_may_write_is_refused() {
        let scratch = Scratch::new("directory");
        fs::create_dir(&scratch.0).unwrap();
        fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o777)).unwrap();
        let cache = scratch.cache();
        cache.put(1, &object(10));
        assert_eq!(cache.get(1), None);
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0);
        assert!(
            matches!(cache.last_refusal(), Some(Error::Config { found, .. }) if found.ends_with("mode 0777"))
        );
    }

    #[test]
    fn temporary_files_go_to_the_first_folder_that_is_this_users_alone() {
        let scratch = Scratch::new("temporary");
        fs::create_dir(&scratch.0).unwrap();
        fs::write(scratch.0.join("file"), "").unwrap();
        let (nowhere, good) = (scratch.0.join("file").join("folder"), scratch.0.join("a").join("b"));
        assert_eq!(first_private([nowhere.clone(), good.clone()]), Ok(good.clone()));
        assert!(good.is_dir());
        let why = first_private([nowhere.clone()]).unwrap_err();
        assert!(why.starts_with(&nowhere.display().to_string()), "{why}");
        #[cfg(unix)]
        {
            let open = scratch.0.join("open");
            fs::create_dir(&open).unwrap();
            fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
            assert_eq!(first_private([open.clone(), good.clone()]), Ok(good));
            let why = first_private([open]).unwrap_err();
            assert!(why.contains("expected a directory of user") && why.ends_with("mode 0777"), "{why}");
        }
    }

    /// Not in `%TEMP%`, which other users may be able to write.
    #[cfg(all(windows, feature = "cpu"))]
    #[test]
    fn the_cpu_device_compiles_in_a_folder_of_the_cache() {
        use crate::compile::{program::Program, rtc};
        use crate::provider::{candidate, kind::ProviderKind};
        let folder = settings().unwrap().cache_dir.clone().unwrap().join("temporary");
        let _ = fs::remove_dir(&folder);
        let source = "extern \"C\" __global__ void own(int *p) { *p = 1; }";
        let program = Program { name: "own", source, headers: &[], options: &[] };
        // Without a C++ compiler this fails, but after the folder was made.
        let _ = rtc::compile(candidate(ProviderKind::Cpu).unwrap().hiprtc(), &program, &["own"], &[]);
        assert!(folder.is_dir());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "the files are removed");
    }

    /// The variable that names the cache of a process that is killed.
    const OF_KILLED: &str = "HIP_TEST_CACHE_OF_KILLED";

    /// Ctrl-C ends a process as abruptly.
    #[test]
    fn a_process_that_is_killed_leaves_whole_files() {
        const SIZE: usize = 3 << 20;
        if let Some(directory) = std::env::var_os(OF_KILLED) {
            let cache = CodeCache::new(Some(directory.into()), u64::MAX);
            for round in 0.. {
                cache.put(round % 3, &object(SIZE));
            }
        }
        let scratch = Scratch::new("killed");
        let name = "compile::cache::tests::a_process_that_is_killed_leaves_whole_files";
        let test = std::env::current_exe().unwrap();
        for kill_after in [1, 20, 60] {
            let mut writer = std::process::Command::new(&test)
                .args(["--exact", name])
                .env(OF_KILLED, &scratch.0)
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            let begin = std::time::Instant::now();
            while files(&scratch.0).len() < 2 && begin.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(kill_after));
            writer.kill().unwrap();
            writer.wait().unwrap();
            let whole = files(&scratch.0);
            assert!(whole.len() >= 2, "the process wrote {} files", whole.len());
            for file in &whole {
                let key = u128::from_str_radix(file.path.file_stem().unwrap().to_str().unwrap(), 16).unwrap();
                let found = decode(key, &fs::read(&file.path).unwrap());
                assert!(found == Ok(object(SIZE)), "{}: {:?}", file.path.display(), found.err());
            }
            for file in whole {
                fs::remove_file(&file.path).unwrap();
            }
        }
    }

    #[test]
    fn a_directory_that_cant_be_made_is_refused() {
        let scratch = Scratch::new("nowhere");
        fs::create_dir(&scratch.0).unwrap();
        fs::write(scratch.0.join("file"), "").unwrap();
        let nowhere = CodeCache::new(Some(scratch.0.join("file").join("folder")), 1 << 20);
        nowhere.put(1, &object(10));
        assert_eq!(nowhere.get(1), None);
        // For every key, each time.
        assert!([1, 2, 2].iter().all(|key| nowhere.find(*key).is_err()));
        assert_eq!(nowhere.stats().refused, 1);
        assert!(nowhere.last_refusal().is_some());
    }

    #[test]
    fn the_files_used_longest_ago_go_first() {
        let scratch = Scratch::new("limit");
        let cache = scratch.cache();
        cache.set_limit(10_000);
        for key in 0..4u128 {
            cache.put(key, &object(2000));
            let then = SystemTime::now() - Duration::from_secs(3600 * (10 - key as u64));
            private::open_file(&path(&scratch.0, key)).unwrap().set_modified(then).unwrap();
        }
        cache.put(4, &object(2500));
        assert_eq!(cache.stats().evicted, 2);
        assert_eq!([0, 1, 2, 3, 4].map(|key| cache.get(key).is_some()), [false, false, true, true, true]);
        cache.put(5, &object(20_000));
        assert_eq!(cache.get(5), None, "larger than the limit");
    }

    #[test]
    fn writers_may_race() {
        let scratch = Scratch::new("race");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    // Each thread has its own `CodeCache`, as each process does.
                    let cache = scratch.cache();
                    for round in 0..200u128 {
                        cache.put(round % 5, &object(3000));
                        assert_eq!(cache.get(round % 5), Some(object(3000)));
                    }
                    assert_eq!(cache.stats().damaged, 0);
                });
            }
        });
        assert!(files(&scratch.0).len() == 5);
    }
}
