//! The table of counters (`VIRTUAL_GPU_COUNTERS`): a header, then a line for each launch that ended well.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::sync::{Mutex, PoisonError};

use crate::dispatch::Geometry;
use crate::isa::Counters;

/// A launch's own columns.
pub(super) struct Row<'a> {
    pub(super) kernel: &'a str,
    pub(super) geometry: Geometry,
    /// Vector registers of a lane.
    pub(super) vgprs: usize,
    /// LDS of a workgroup, in bytes.
    pub(super) lds_size: u32,
    /// Private memory of a lane, in bytes.
    pub(super) private_size: u32,
}

pub(super) struct CounterFile(Mutex<File>);

impl CounterFile {
    /// Opens the file to append to it. Writes the header if the file is empty. The lock lets only
    /// one of several processes that start together write it.
    pub(super) fn open(path: &OsStr) -> io::Result<Self> {
        Self::open_locked_by(path, File::lock)
    }

    fn open_locked_by(path: &OsStr, lock: fn(&File) -> io::Result<()>) -> io::Result<Self> {
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        lock(&file).map_err(|error| {
            let why = format!(
                "expected a file that can be locked, found one whose file system refuses ({error}); name a file on a \
                 local disk"
            );
            io::Error::new(error.kind(), why)
        })?;
        if file.metadata()?.len() == 0 {
            file.write_all(Self::header().as_bytes())?;
        }
        file.unlock()?;
        Ok(Self(Mutex::new(file)))
    }

    fn header() -> String {
        let mut header = String::from("kernel\tgrid\tblock\tvgprs\tlds_size\tprivate_size");
        for (name, _) in Counters::default().columns() {
            header.push('\t');
            header.push_str(&name);
        }
        header.push('\n');
        header
    }

    /// Adds a launch: the grid in workgroups, the workgroup in work-items.
    pub(super) fn add(&self, row: &Row<'_>, counters: &Counters) -> io::Result<()> {
        let place = |[x, y, z]: [u32; 3]| format!("{x},{y},{z}");
        let Row { kernel, geometry, vgprs, lds_size, private_size } = row;
        let (grid, block) = (place(geometry.groups), place(geometry.workgroup));
        let mut line = format!("{kernel}\t{grid}\t{block}\t{vgprs}\t{lds_size}\t{private_size}");
        for (_, count) in counters.columns() {
            // Writing to a string can't fail.
            let _ = write!(line, "\t{count}");
        }
        line.push('\n');
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_locks_is_told() {
        let path = std::env::temp_dir().join(format!("virtual-gpu-counters-{}", std::process::id()));
        let path = path.as_os_str();
        let refused =
            CounterFile::open_locked_by(path, |_| Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
        let error = refused.err().expect("no lock").to_string();
        assert!(
            error.starts_with("expected a file that can be locked") && error.contains("os error"),
            "{error}"
        );
        assert_eq!(std::fs::read(path).expect("the file"), b"", "no header without a lock");
        assert!(CounterFile::open(path).is_ok());
        assert_eq!(std::fs::read_to_string(path).expect("the file"), CounterFile::header());
        std::fs::remove_file(path).expect("to remove it");
    }
}
