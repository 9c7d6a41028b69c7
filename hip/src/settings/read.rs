//! What the variables of the settings may say, and how an invalid value is refused.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{ProfileOutput, Route, STEPS};
use crate::error::{Error, Result};

/// This project's folder in the user's cache folder.
pub(super) fn user_cache(windows: bool, set: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| set(name).map(PathBuf::from);
    let caches = if windows {
        // Not the roaming folder, which Windows copies to other machines.
        path("LOCALAPPDATA").filter(|path| path.is_absolute())
    } else {
        // The XDG specification says to ignore relative paths.
        let caches = path("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        caches.or_else(|| path("HOME").map(|home| home.join(".cache")))
    };
    caches.map(|caches| caches.join("burn-rocm"))
}

/// A value as an error shows it. Bytes that are not UTF-8 become the replacement character, which
/// every setting refuses.
pub(super) fn found(value: &OsStr) -> String {
    format!("`{}`", value.to_string_lossy())
}

pub(super) fn choice<T: Copy>(name: &str, value: &OsStr, choices: &[(&str, T)]) -> Result<T> {
    match choices.iter().find(|(text, _)| value == *text) {
        Some(&(_, chosen)) => Ok(chosen),
        None => {
            let names: Vec<_> = choices.iter().map(|&(text, _)| text).collect();
            Err(Error::config(name, format!("one of {}", names.join(", ")), found(value)))
        }
    }
}

pub(super) fn route(name: &str, value: &OsStr, library: &str) -> Result<Route> {
    choice(name, value, &[("auto", Route::Auto), (library, Route::Library), ("own", Route::Own)])
}

pub(super) fn flag(name: &str, value: &OsStr) -> Result<bool> {
    let words = [("0", false), ("1", true), ("off", false), ("on", true), ("false", false), ("true", true)];
    choice(name, value, &words)
}

pub(super) fn no_chain(name: &str, found: String) -> Error {
    Error::config(name, format!("auto, or ops from 0 to {STEPS}"), found)
}

pub(super) fn chain(name: &str, value: &OsStr) -> Result<Option<usize>> {
    if value == "auto" {
        return Ok(None);
    }
    match value.to_str().and_then(|count| count.parse().ok()) {
        Some(count) if count <= STEPS => Ok(Some(count)),
        _ => Err(no_chain(name, found(value))),
    }
}

pub(super) fn fresh(name: &str, value: &OsStr) -> Result<Option<usize>> {
    if value == "auto" {
        return Ok(None);
    }
    match value.to_str().and_then(|count| count.parse().ok()) {
        Some(count) => Ok(Some(count)),
        None => Err(Error::config(name, "auto, or a number of uses", found(value))),
    }
}

pub(super) fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

pub(super) fn no_profile(name: &str, value: &OsStr) -> Error {
    Error::config(name, "table, or a path that ends in .json", found(value))
}

pub(super) fn profile(name: &str, value: &OsStr) -> Result<ProfileOutput> {
    match Path::new(value) {
        _ if value == "table" => Ok(ProfileOutput::Table),
        path if is_json(path) => Ok(ProfileOutput::Trace(path.to_owned())),
        _ => Err(no_profile(name, value)),
    }
}

pub(super) fn bytes(name: &str, value: &OsStr) -> Result<usize> {
    let text = value.to_string_lossy();
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (&*text, 0),
    };
    let count = digits.parse::<usize>().ok().and_then(|count| count.checked_mul(1 << shift));
    count.ok_or_else(|| Error::config(name, "bytes, such as 1073741824, 1024M or 1G", found(value)))
}

pub(super) const PERCENT: std::ops::RangeInclusive<u8> = 1..=100;

pub(super) fn no_percent(name: &str, found: String) -> Error {
    Error::config(name, "percent from 1 to 100", found)
}

pub(super) fn percent(name: &str, value: &OsStr) -> Result<Option<u8>> {
    let percent = value.to_str().and_then(|text| text.parse().ok());
    match percent.filter(|percent| PERCENT.contains(percent)) {
        Some(percent) => Ok(Some(percent)),
        None => Err(no_percent(name, found(value))),
    }
}

/// The pool cuts its segments for small blocks in any case.
pub(super) const LEAST_SPLIT: usize = 1 << 20;

pub(super) fn no_split(name: &str, found: String) -> Error {
    Error::config(name, "at least 1048576 bytes, such as 256M", found)
}

pub(super) fn split(name: &str, value: &OsStr) -> Result<Option<usize>> {
    match bytes(name, value)? {
        bytes if bytes >= LEAST_SPLIT => Ok(Some(bytes)),
        _ => Err(no_split(name, found(value))),
    }
}

/// How long a wait for a rank may be set to last. A day is more than any job waits, and can't
/// overflow a clock; a socket refuses a limit of 0.
pub(super) const WAITS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(86_400);

pub(super) fn seconds(name: &str, value: &OsStr) -> Result<Duration> {
    let number = value.to_str().and_then(|text| text.parse::<f64>().ok());
    let time = number.and_then(|number| Duration::try_from_secs_f64(number).ok());
    time.filter(|time| WAITS.contains(time))
        .ok_or_else(|| Error::config(name, "seconds from 0.001 to 86400", found(value)))
}

/// Whether this may name an architecture: `gfx` or `sm_` and a chip, then LLVM's features of the
/// chip, each on or off (`gfx90a:sramecc+:xnack-`), or a family (`gfx10-3-generic`).
pub(super) fn is_architecture(text: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric());
    let mut parts = text.split(':');
    let chip = parts.next().unwrap_or_default();
    let named = chip.strip_prefix("gfx").is_some_and(|rest| rest.split('-').all(is_word))
        || chip.strip_prefix("sm_").is_some_and(is_word);
    let is_feature = |part: &str| part.strip_suffix(['+', '-']).is_some_and(is_word);
    named && parts.all(is_feature)
}

pub(super) fn no_architecture(name: &str, found: String) -> Error {
    Error::config(name, "an architecture, such as gfx1030, gfx90a:xnack- or gfx10-3-generic", found)
}

pub(super) fn architecture(name: &str, value: &OsStr) -> Result<Option<String>> {
    match value.to_str().filter(|text| is_architecture(text)) {
        Some(text) => Ok(Some(text.to_owned())),
        None => Err(no_architecture(name, found(value))),
    }
}
