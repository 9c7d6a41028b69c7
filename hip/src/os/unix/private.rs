//! Files and folders that only this user may write: the owner and the mode.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Why a file or folder is not trusted.
pub(crate) struct Refusal {
    /// What it must be.
    pub(crate) expected: String,
    /// What it is.
    pub(crate) found: String,
}

/// Creates a folder, and its parents if they are missing, that only this user may read or write.
pub(crate) fn create_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Creates a file that only this user may read or write. It must not exist.
pub(crate) fn create_file(file: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)
}

/// Opens a file to read it. Its time of modification can be set too.
pub(crate) fn open_file(file: &Path) -> io::Result<File> {
    File::open(file)
}

/// Why a folder is not this user's alone; `None` if it is.
pub(crate) fn refuse_folder(folder: &Path) -> io::Result<Option<Refusal>> {
    let (facts, own) = (fs::metadata(folder)?, effective_user());
    let trusted = facts.uid() == own && facts.mode() & 0o022 == 0;
    Ok((!trusted).then(|| Refusal {
        expected: format!("a directory of user {own} that nobody else may write (mode 0700)"),
        found: format!("user {}, mode {:04o}", facts.uid(), facts.mode() & 0o7777),
    }))
}

/// Why an open file is not this user's alone; `None` if it is.
///
/// Looks at the open file rather than at a path, because another user could replace the file at the
/// path in between.
pub(crate) fn refuse_file(file: &File) -> io::Result<Option<Refusal>> {
    let (facts, own) = (file.metadata()?, effective_user());
    if facts.uid() != own {
        let (expected, found) = (format!("a file of user {own}"), format!("one of user {}", facts.uid()));
        return Ok(Some(Refusal { expected, found }));
    }
    let trusted = facts.is_file() && facts.mode() & 0o022 == 0;
    Ok((!trusted).then(|| Refusal {
        expected: "a file that only its owner may write".into(),
        found: format!("mode {:o}", facts.mode()),
    }))
}

fn effective_user() -> u32 {
    // SAFETY: the function takes nothing and can't fail (POSIX).
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown};

    #[test]
    fn what_others_may_write_or_own_is_refused() {
        let folder = std::env::temp_dir().join(format!("hip-private-{}", std::process::id()));
        create_folder(&folder).unwrap();
        let path = folder.join("file");
        let file = create_file(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&path)), (0o700, 0o600));
        assert!(refuse_folder(&folder).unwrap().is_none() && refuse_file(&file).unwrap().is_none());

        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        assert!(refuse_folder(&folder).unwrap().is_some_and(|why| why.found.ends_with("mode 0777")));
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        assert!(refuse_file(&file).unwrap().is_some_and(|why| why.found == "mode 100666"));
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        // Only root may give a file to another user. Run by other users, this tests only the mode.
        let own = effective_user();
        if chown(&path, Some(own + 1), None).is_ok() {
            let why = refuse_file(&file).unwrap().expect("another user's file");
            assert_eq!(why.expected, format!("a file of user {own}"));
            assert_eq!(why.found, format!("one of user {}", own + 1));
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
