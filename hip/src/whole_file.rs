//! Files that are written whole.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes a text to a file. Another process sees either what was there before or all of the text.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    // What is no plain file, such as `/dev/stdout`, must not be replaced by one.
    let special = fs::metadata(path).is_ok_and(|found| !found.is_file());
    // The file that a link leads to.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let Some(name) = path.file_name().filter(|_| !special) else { return fs::write(path, text) };
    let mut temporary = name.to_owned();
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    temporary.push(format!(".{}.{serial}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary);
    // A rename is atomic.
    let written = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
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
