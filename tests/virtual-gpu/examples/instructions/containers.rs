//! Finds code objects in the files that store them.

use std::io::Read;

use object::elf::{EM_AMDGPU, FileHeader64};
use object::read::elf::{ElfFile64, FileHeader};
use object::{LittleEndian, Object, ObjectSection};
use ruzstd::decoding::StreamingDecoder;

/// Begins a bundle of code objects ("Clang Offload Bundler" in Clang's documentation).
const BUNDLE: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
/// Begins a compressed one.
const COMPRESSED: &[u8] = b"CCOB";
/// The compression that AMD's compiler uses.
const ZSTD: u16 = 1;
const ELF: &[u8] = b"\x7fELF";
/// The most bytes that may lie before a code object: the files of this project's cache have their
/// key and the kernel's name there.
const PREFACE: usize = 4096;

/// Why a file's code objects can't be had. Places are bytes from the start of the bundles.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// An ELF file is damaged.
    #[error("{0}")]
    Elf(#[from] object::read::Error),
    /// A bundle ends too early.
    #[error("a bundle at byte {at}: expected {expected}, found the end after {found} bytes")]
    Bundle { at: usize, expected: &'static str, found: usize },
    /// A compressed bundle of a form that this program does not know.
    #[error("a bundle at byte {at}: expected version 1 to 3 by method 1 (zstd), found {version} by {method}")]
    Form { at: usize, version: u16, method: u16 },
    /// A compressed bundle whose bytes are damaged.
    #[error("a bundle at byte {0} can't be decompressed: {1}")]
    Compressed(usize, std::io::Error),
}

/// Calls `add` for each AMDGPU code object in a file: the file itself or what follows its preface, the
/// members of bundles, and the bundles in a program's or library's section `.hip_fatbin`. Other files
/// have none.
///
/// # Errors
/// [`Error`] if the file is damaged, or what `add` returns.
pub(crate) fn code_objects<E: From<Error>>(
    bytes: &[u8],
    add: &mut impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    if bytes.starts_with(BUNDLE) || bytes.starts_with(COMPRESSED) {
        return bundles(bytes, add);
    }
    let Some(start) = bytes.windows(ELF.len()).take(PREFACE).position(|start| start == ELF) else {
        return Ok(());
    };
    let bytes = &bytes[start..];
    let header = FileHeader64::<LittleEndian>::parse(bytes).map_err(Error::Elf)?;
    if header.e_machine(LittleEndian) == EM_AMDGPU {
        return add(bytes);
    }
    let file = ElfFile64::<LittleEndian>::parse(bytes).map_err(Error::Elf)?;
    match file.section_by_name(".hip_fatbin") {
        Some(section) => bundles(section.data().map_err(Error::Elf)?, add),
        None => Ok(()),
    }
}

/// The code objects of bundles that follow each other, with padding between.
fn bundles<E: From<Error>>(bytes: &[u8], add: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        at += if rest.starts_with(COMPRESSED) {
            let (unpacked, length) = decompress(at, rest)?;
            bundle(at, &unpacked, add)?;
            length
        } else if rest.starts_with(BUNDLE) {
            bundle(at, rest, add)?
        } else {
            // Padding, up to what may begin another bundle.
            let next = rest.iter().skip(1).position(|byte| [BUNDLE[0], COMPRESSED[0]].contains(byte));
            next.map_or(rest.len(), |next| 1 + next)
        };
    }
    Ok(())
}

/// A little-endian number of `size` bytes in the bundle at `at`.
fn number(at: usize, bytes: &[u8], place: usize, size: usize) -> Result<usize, Error> {
    let field = place.checked_add(size).and_then(|end| bytes.get(place..end));
    let value = field.map(|field| field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)));
    let value = value.and_then(|value| usize::try_from(value).ok());
    value.ok_or(Error::Bundle { at, expected: "a header", found: bytes.len() })
}

/// The bundle in a compressed one, and the compressed one's length (`CompressedOffloadBundle` in
/// LLVM's `OffloadBundle.cpp`).
fn decompress(at: usize, bytes: &[u8]) -> Result<(Vec<u8>, usize), Error> {
    let [version, method] = [number(at, bytes, 4, 2)? as u16, number(at, bytes, 6, 2)? as u16];
    // The lengths of both bundles have 4 bytes, from version 3 on 8. A hash of 8 bytes follows.
    // Version 1 lacks the compressed bundle's length: it reaches to the end.
    let (length, data) = match version {
        1 => (bytes.len(), 20),
        2 => (number(at, bytes, 8, 4)?, 24),
        3 => (number(at, bytes, 8, 8)?, 32),
        _ => return Err(Error::Form { at, version, method }),
    };
    if method != ZSTD {
        return Err(Error::Form { at, version, method });
    }
    let packed = bytes.get(data..length);
    let packed = packed.ok_or(Error::Bundle { at, expected: "the compressed bytes", found: bytes.len() })?;
    let mut unpacked = Vec::new();
    let failed = |error| Error::Compressed(at, error);
    let mut stream = StreamingDecoder::new(packed).map_err(|error| failed(std::io::Error::other(error)))?;
    stream.read_to_end(&mut unpacked).map_err(failed)?;
    Ok((unpacked, length))
}

/// The code objects of one bundle, and its length.
fn bundle<E: From<Error>>(
    at: usize,
    bytes: &[u8],
    add: &mut impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<usize, E> {
    let number = |place| number(at, bytes, place, 8);
    let mut place = BUNDLE.len() + 8;
    let mut length = place;
    for _ in 0..number(BUNDLE.len())? {
        let (offset, size, name) = (number(place)?, number(place + 8)?, number(place + 16)?);
        place = (place + 24).saturating_add(name);
        let member = offset.checked_add(size).and_then(|end| bytes.get(offset..end));
        let member = member.ok_or(Error::Bundle { at, expected: "a member", found: bytes.len() })?;
        length = length.max(offset + size).max(place);
        // The host's member is empty.
        if member.starts_with(ELF) {
            add(member)?;
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    /// A bundle with these members.
    fn bundle_of(members: &[&[u8]]) -> Vec<u8> {
        let name = b"hipv4-amdgcn-amd-amdhsa--gfx1030";
        let mut offset = BUNDLE.len() + 8 + members.len() * (24 + name.len());
        let mut bytes = [BUNDLE, &(members.len() as u64).to_le_bytes()].concat();
        for member in members {
            for field in [offset, member.len(), name.len()] {
                bytes.extend((field as u64).to_le_bytes());
            }
            bytes.extend(name);
            offset += member.len();
        }
        members.iter().for_each(|member| bytes.extend(*member));
        bytes
    }

    /// A compressed bundle of version 2 or another.
    fn compressed(version: u16, method: u16, bundle: &[u8]) -> Vec<u8> {
        let packed = compress_to_vec(bundle, CompressionLevel::Fastest);
        let size = if version == 2 { 4 } else { 8 };
        let length = 8 + 2 * size + 8 + packed.len();
        let mut bytes = [COMPRESSED, &version.to_le_bytes(), &method.to_le_bytes()].concat();
        for field in [length, bundle.len()] {
            bytes.extend(&(field as u64).to_le_bytes()[..size]);
        }
        // The hash, which nobody checks.
        bytes.extend([0; 8]);
        bytes.extend(packed);
        bytes
    }

    fn found(bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let mut found = Vec::new();
        code_objects(bytes, &mut |object: &[u8]| {
            found.push(object.to_vec());
            Ok::<(), Error>(())
        })?;
        Ok(found)
    }

    #[test]
    fn bundles_may_follow_each_other() {
        let (first, second) = (b"\x7fELF first".as_slice(), b"\x7fELF second".as_slice());
        let mut file = bundle_of(&[b"", first]);
        // Padding in which the first byte of another bundle occurs.
        file.extend(b"\0\0\0C_\0");
        file.extend(bundle_of(&[second, first]));
        assert_eq!(found(&file).expect("two bundles"), [first, second, first]);
        assert!(found(b"something else").expect("no code objects").is_empty());
    }

    #[test]
    fn compressed_bundles_have_the_same_members() {
        let (first, second) = (b"\x7fELF first".as_slice(), b"\x7fELF second".as_slice());
        let mut file = compressed(3, ZSTD, &bundle_of(&[first]));
        file.extend([0; 100]);
        file.extend(compressed(2, ZSTD, &bundle_of(&[b"", second])));
        assert_eq!(found(&file).expect("two bundles"), [first, second]);
    }

    #[test]
    fn damaged_bundles_are_errors() {
        let whole = bundle_of(&[b"\x7fELF member"]);
        for length in [BUNDLE.len() + 3, BUNDLE.len() + 20, whole.len() - 1] {
            assert!(matches!(found(&whole[..length]), Err(Error::Bundle { at: 0, .. })), "{length} bytes");
        }
        let packed = compressed(3, ZSTD, &whole);
        assert!(matches!(found(&packed[..packed.len() - 1]), Err(Error::Bundle { at: 0, .. })));
        let mut damaged = packed.clone();
        damaged[32..40].fill(0);
        assert!(matches!(found(&damaged), Err(Error::Compressed(0, _))));
        for (version, method) in [(4, ZSTD), (3, 0)] {
            let form = found(&compressed(version, method, &whole));
            assert!(matches!(form, Err(Error::Form { at: 0, .. })), "version {version}, method {method}");
        }
        assert!(matches!(found(b"\x7fELF"), Err(Error::Elf(_))));
    }
}
