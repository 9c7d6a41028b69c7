//! Lists the instructions of AMD's code objects for gfx1030, and those that the virtual GPU lacks.
//!
//! ```text
//! instructions [--counts] [--except NAME,NAME...] PATH...
//! ```
//!
//! A PATH is a file, or a folder with all files below it: code objects, bundles of them, and programs
//! or libraries that contain such bundles. A line for each PATH says how many code objects, kernels
//! and instructions it has. What the virtual GPU does not execute follows, with an example.
//! `--counts` prints a line for each mnemonic, too.
//!
//! Exit status: 0 if every instruction is executed, except for those whose names `--except` lists; 1
//! if not, or if a PATH has no code object; 2 if a file can't be read.

mod containers;
mod listing;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use containers::code_objects;
use listing::Listing;

/// Why a path can't be listed.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{}: {error}", path.display())]
    Read { path: PathBuf, error: std::io::Error },
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: FileError },
}

#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("{0}")]
    Container(#[from] containers::Error),
    #[error("{0}")]
    Object(#[from] object::read::Error),
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    let counts = arguments.next_if(|argument| argument == "--counts").is_some();
    let except = arguments.next_if(|argument| argument == "--except").and_then(|_| arguments.next());
    let except: Vec<&str> = except.iter().flat_map(|names| names.split(',')).collect();
    if arguments.peek().is_none_or(|argument| argument.starts_with("--")) {
        eprintln!("usage: instructions [--counts] [--except NAME,NAME...] PATH...");
        return ExitCode::from(2);
    }
    let mut status = ExitCode::SUCCESS;
    for path in arguments {
        let mut listing = Listing::default();
        if let Err(error) = list(Path::new(&path), &mut listing) {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
        print!("{path}: {listing}");
        if counts {
            print!("{}", listing.counts());
        }
        if !listing.is_complete(&except) || listing.objects() == 0 {
            status = ExitCode::FAILURE;
        }
    }
    status
}

/// Lists a file, or all files below a folder.
fn list(path: &Path, listing: &mut Listing) -> Result<(), Error> {
    let failed = |error| Error::Read { path: path.to_owned(), error };
    if path.is_dir() {
        let entries = std::fs::read_dir(path).map_err(failed)?;
        let mut below =
            entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        below.sort();
        // A link is another name of a file, which is listed under its own.
        return below.iter().filter(|path| !path.is_symlink()).try_for_each(|path| list(path, listing));
    }
    let bytes = std::fs::read(path).map_err(failed)?;
    let name = path.display().to_string();
    code_objects(&bytes, &mut |object: &[u8]| Ok::<(), FileError>(listing.add(&name, object)?))
        .map_err(|error| Error::File { path: path.to_owned(), error })
}
