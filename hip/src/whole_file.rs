//! Files that are written whole.

use std::ffi::OsString;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::os::private;

/// Writes a text to a file. Another process sees either what was there before or all of the text.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    // What is no plain file, such as `/dev/stdout`, must not be replaced by one.
    let special = fs::metadata(path).is_ok_and(|found| !found.is_file());
    // The file that a link leads to.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let Some(name) = path.file_name().filter(|_| !special) else { return fs::write(path, text) };
    let temporary = path.with_file_name(temporary(name.to_owned()));
    renamed(&temporary, &path, fs::write(&temporary, text))
}

/// As [`write`], to a plain file that only this user may read or write.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let Some(name) = path.file_name() else { return Err(io::ErrorKind::InvalidInput.into()) };
    let temporary = path.with_file_name(temporary(name.to_owned()));
    // If it exists, it is another process's.
    let mut file = private::create_file(&temporary)?;
    let written = file.write_all(bytes);
    drop(file);
    renamed(&temporary, path, written)
}

/// Removes a file that a killed process left, if it is one.
pub(crate) fn discard_leftover(path: &Path, modified: SystemTime) {
    let old = || modified.elapsed().is_ok_and(|age| age > Duration::from_secs(3600));
    if path.extension().is_some_and(|extension| extension == "tmp") && old() {
        let _ = fs::remove_file(path);
    }
}

/// A file's name until it is whole, which no other write uses. Containers that share a folder may
/// have equal process ids, so it has a random part.
fn temporary(mut name: OsString) -> OsString {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let (serial, random) =
        (SERIAL.fetch_add(1, Ordering::Relaxed), RandomState::new().build_hasher().finish());
    name.push(format!(".{}.{serial}.{random:016x}.tmp", std::process::id()));
    name
}

/// Gives a file that was written its name. A rename is atomic.
fn renamed(temporary: &Path, path: &Path, written: io::Result<()>) -> io::Result<()> {
    let written = written.and_then(|()| fs::rename(temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_a_failure_leaves_nothing() {
        let folder = std::env::temp_dir().join(format!("burn-rocm-whole-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("file");
        for text in ["first", "second, which is longer", ""] {
            write(&path, text).expect("to write");
            assert_eq!(fs::read_to_string(&path).expect("the file"), text);
        }
        #[cfg(unix)]
        {
            let link = folder.join("link");
            std::os::unix::fs::symlink(&path, &link).expect("a link");
            write(&link, "through the link").expect("to write");
            assert!(fs::symlink_metadata(&link).expect("the link").is_symlink());
            assert_eq!(fs::read_to_string(&path).expect("the file"), "through the link");
            fs::remove_file(&link).expect("to remove the link");
        }
        write(&folder, "a folder is no file").expect_err("a folder");
        write(&folder.join("missing/file"), "text").expect_err("a missing folder");
        let left: Vec<_> = fs::read_dir(&folder).expect("the folder").collect();
        assert_eq!(left.len(), 1, "{left:?}");
        fs::remove_dir_all(&folder).expect("to remove the folder");
    }
}
