//! Files and folders that only this user may write: the owner and the access control list.
//!
//! The rule is the one of other systems. Root's place is taken by the system's own account and the
//! administrators, who may always write. Folders and files are created with the rights that their
//! folder passes on, which in `%LOCALAPPDATA%` are those of the user, the system and the
//! administrators.

use std::ffi::{OsString, c_void};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::windows::ffi::OsStringExt;
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::AsRawHandle;
use std::path::Path;
use std::ptr;

use super::api;

/// Why a file or folder is not trusted.
pub(crate) struct Refusal {
    /// What it must be.
    pub(crate) expected: String,
    /// What it is.
    pub(crate) found: String,
}

/// Accounts besides the user that may own or write: the system, the administrators, and the names
/// that stand for the owner ("Well-known SIDs").
const TRUSTED: &[&str] = &["S-1-5-18", "S-1-5-32-544", "S-1-3-0", "S-1-3-4"];

/// The rights to change a file, a folder, their content or their rights: `FILE_WRITE_DATA`,
/// `FILE_APPEND_DATA`, `FILE_DELETE_CHILD`, `DELETE`, `WRITE_DAC`, `WRITE_OWNER`, `GENERIC_ALL`,
/// `GENERIC_WRITE`.
const WRITE: u32 = 0x2 | 0x4 | 0x40 | 0x1_0000 | 0x4_0000 | 0x8_0000 | 0x1000_0000 | 0x4000_0000;

/// Creates a folder, and its parents if they are missing.
pub(crate) fn create_folder(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)
}

/// Creates a file. It must not exist.
pub(crate) fn create_file(file: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(file)
}

/// Opens a file to read it. Its time of modification can be set too.
pub(crate) fn open_file(file: &Path) -> io::Result<File> {
    // GENERIC_READ | FILE_WRITE_ATTRIBUTES.
    let opened = OpenOptions::new().access_mode(0x8000_0000 | 0x100).open(file);
    opened.or_else(|_| File::open(file))
}

/// Why a folder is not this user's alone; `None` if it is.
pub(crate) fn refuse_folder(folder: &Path) -> io::Result<Option<Refusal>> {
    // READ_CONTROL; FILE_FLAG_BACKUP_SEMANTICS, without which folders can't be opened.
    let opened = OpenOptions::new().access_mode(0x2_0000).custom_flags(0x0200_0000).open(folder)?;
    refuse(&opened, Kind::Folder)
}

/// Why an open file is not this user's alone; `None` if it is.
pub(crate) fn refuse_file(file: &File) -> io::Result<Option<Refusal>> {
    refuse(file, Kind::File)
}

/// What a handle is of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Folder,
}

fn refuse(file: &File, kind: Kind) -> io::Result<Option<Refusal>> {
    let (own, rights) = (user()?, Rights::of(file, kind)?);
    let what = if kind == Kind::File { "file" } else { "folder" };
    Ok(rights.fault(&own).map(|found| Refusal {
        expected: format!(
            "a {what} of account {own} that nobody else but administrators may write (see icacls)"
        ),
        found,
    }))
}

/// The owner of a file, and the accounts that may write it. Accounts are texts such as `S-1-5-18`.
struct Rights {
    owner: String,
    /// `None` if there is no list, so that everyone may write.
    writers: Option<Vec<String>>,
}

impl Rights {
    /// What makes these rights no longer `own`'s alone; `None` if nothing does.
    fn fault(&self, own: &str) -> Option<String> {
        let trusted = |account: &str| account == own || TRUSTED.contains(&account);
        if !trusted(&self.owner) {
            return Some(format!("one of account {}", self.owner));
        }
        let Some(writers) = &self.writers else { return Some("one that everyone may write".into()) };
        let other = writers.iter().find(|writer| !trusted(writer))?;
        Some(format!("one that {other} may write"))
    }

    fn of(file: &File, kind: Kind) -> io::Result<Self> {
        let (mut owner, mut dacl, mut descriptor) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        // SAFETY: an open file's handle; the function writes three pointers, of which the first two
        // point into the third.
        let status = unsafe {
            api::GetSecurityInfo(
                file.as_raw_handle(),
                api::FILE_OBJECT,
                api::OWNER_AND_DACL,
                &mut owner,
                ptr::null_mut(),
                &mut dacl,
                ptr::null_mut(),
                &mut descriptor,
            )
        };
        if status != 0 {
            return Err(io::Error::from_raw_os_error(status as i32));
        }
        let _freed = Local(descriptor);
        // SAFETY: the owner and the list live as long as the descriptor.
        unsafe { Ok(Self { owner: account(owner)?, writers: writers(dacl, kind)? }) }
    }
}

/// The accounts that an access control list lets write; `None` for no list. A folder's list also has
/// entries for what is created in the folder, which count too.
///
/// # Safety
/// `list` is null or a list that Windows made.
unsafe fn writers(list: *const c_void, of: Kind) -> io::Result<Option<Vec<String>>> {
    /// `ACL`.
    #[repr(C)]
    struct List {
        revision: u8,
        padding: u8,
        size: u16,
        count: u16,
    }
    /// `ACE_HEADER` and the mask that follows it. The account begins after the mask.
    #[repr(C)]
    struct Entry {
        kind: u8,
        flags: u8,
        size: u16,
        mask: u32,
    }
    /// `INHERIT_ONLY_ACE`: the entry is for what is created in the folder.
    const INHERITED_ONLY: u8 = 0x8;

    if list.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller vouches for the list.
    let count = unsafe { (*list.cast::<List>()).count };
    let mut found = Vec::new();
    for index in 0..u32::from(count) {
        let mut entry = ptr::null_mut();
        // SAFETY: a valid list and an index in it; the function writes one pointer into the list.
        if unsafe { api::GetAce(list, index, &mut entry) } == 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: each entry begins with a header and a mask.
        let Entry { kind, flags, mask, .. } = unsafe { entry.cast::<Entry>().read_unaligned() };
        let applies = of == Kind::Folder || flags & INHERITED_ONLY == 0;
        if !applies || mask & WRITE == 0 {
            continue;
        }
        match kind {
            // ACCESS_ALLOWED_ACE_TYPE, ACCESS_ALLOWED_CALLBACK_ACE_TYPE: the account follows.
            // SAFETY: the entry's size covers its account.
            0 | 9 => found.push(unsafe { account(entry.cast::<Entry>().add(1).cast()) }?),
            // The compound and object types that allow. Files have none.
            4 | 5 | 11 => found.push(format!("an account of an entry of type {kind}")),
            _ => {}
        }
    }
    Ok(Some(found))
}

/// This process's user.
fn user() -> io::Result<String> {
    let mut token = ptr::null_mut();
    // SAFETY: the function writes one handle.
    if unsafe { api::OpenProcessToken(api::GetCurrentProcess(), api::TOKEN_QUERY, &mut token) } == 0 {
        return Err(io::Error::last_os_error());
    }
    // `TOKEN_USER`, which begins with a pointer to the account, and then the account (at most 68
    // bytes), aligned as pointers are.
    let mut user = [ptr::null_mut::<c_void>(); 32];
    let mut needed = 0;
    // SAFETY: the function writes at most the given size.
    let known = unsafe {
        let (buffer, size) = (user.as_mut_ptr().cast(), size_of_val(&user) as u32);
        api::GetTokenInformation(token, api::TOKEN_USER, buffer, size, &mut needed)
    };
    let error = io::Error::last_os_error();
    // SAFETY: the token was opened above and is not used any more.
    unsafe { api::CloseHandle(token) };
    if known == 0 {
        return Err(error);
    }
    // SAFETY: the pointer leads into the buffer.
    unsafe { account(user[0]) }
}

/// An account as text.
///
/// # Safety
/// `sid` is an account that Windows made.
unsafe fn account(sid: *const c_void) -> io::Result<String> {
    let mut text = ptr::null_mut();
    // SAFETY: the caller vouches for the account; the function writes one pointer.
    if unsafe { api::ConvertSidToStringSidW(sid, &mut text) } == 0 {
        return Err(io::Error::last_os_error());
    }
    let _freed = Local(text.cast());
    // SAFETY: the text ends with a 0.
    let units = unsafe {
        let length = (0..).take_while(|&at| *text.add(at) != 0).count();
        std::slice::from_raw_parts(text, length)
    };
    Ok(OsString::from_wide(units).to_string_lossy().into_owned())
}

/// Memory that Windows allocated, freed on drop.
struct Local(*mut c_void);

impl Drop for Local {
    fn drop(&mut self) {
        // SAFETY: the function that returned the memory says to free it so.
        unsafe { api::LocalFree(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_user_makes_is_trusted() {
        let folder = std::env::temp_dir().join(format!("hip-private-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        create_folder(&folder).unwrap();
        let path = folder.join("file");
        drop(create_file(&path).unwrap());
        let found = [refuse_file(&open_file(&path).unwrap()), refuse_folder(&folder)];
        fs::remove_dir_all(&folder).unwrap();
        for found in found {
            assert!(found.unwrap().is_none_or(|why| panic!("{}", why.found)));
        }
    }

    #[test]
    fn other_owners_and_writers_are_refused() {
        let own = user().unwrap();
        assert!(own.starts_with("S-1-5-"), "{own}");
        let fault = |owner: &str, writers: Option<&[&str]>| {
            let writers = writers.map(|writers| writers.iter().map(|&writer| writer.to_owned()).collect());
            Rights { owner: owner.to_owned(), writers }.fault(&own)
        };
        let system = "S-1-5-18";
        assert_eq!(fault(&own, Some(&[&own, system])), None);
        assert_eq!(fault("S-1-5-32-544", Some(&[])), None);
        assert_eq!(fault("S-1-5-21-7", Some(&[])), Some("one of account S-1-5-21-7".into()));
        assert_eq!(fault(&own, Some(&[&own, "S-1-1-0"])), Some("one that S-1-1-0 may write".into()));
        assert_eq!(fault(&own, None), Some("one that everyone may write".into()));
    }
}
