//! Code objects, which hipRTC produces and `hipModuleLoadData` loads. A code object describes
//! itself, so that the device recognises one from another process, version or CPU, and refuses a
//! damaged one.
//!
//! The header is `MAGIC`, the payload's length and hash, and a hash of these. The payload is the
//! length of a text, then the text, then a shared object if the program is not built in. The lines
//! of the text are the compiler, the target, the kind and, for built-in kernels, the family, the
//! hash of its source and the kernels' names.

use crate::arch::target;
use std::ffi::c_void;

use xxhash_rust::xxh3::xxh3_64 as hash;

const MAGIC: &[u8; 8] = b"HIPCPU\x02\n";
const HEADER: usize = 32;
/// Far above the size of any code object, so a greater length means damage.
const LARGEST: u64 = 1 << 30;

/// The contents of a code object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// Kernels of a built-in family, by name expression.
    BuiltIn { family: String, names: Vec<String> },
    /// A shared object with a `hip_cpu_table`.
    Shared(Vec<u8>),
}

/// Why a code object was refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is not a code object, or is damaged.
    Damaged,
    /// It is intact, but of another build or for another architecture.
    Foreign,
}

fn source_hash(family: &str) -> Option<u64> {
    let family = hip_kernels::families().iter().find(|known| known.name == family)?;
    let all = hip_kernels::HEADERS.iter().map(|(_, text)| *text).chain([family.source]);
    Some(all.fold(0, |sum: u64, text| sum.rotate_left(1) ^ hash(text.as_bytes())))
}

/// Names what compiles the code. It has a hash of the additions, because commits can change them
/// without a new crate version.
const COMPILER: &str = concat!("hip-cpu ", env!("CARGO_PKG_VERSION"), " ", env!("HIP_CPU_ADDITIONS"));

impl Code {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut text = format!("{COMPILER}\n{}\n", target());
        let binary: &[u8] = match self {
            Self::BuiltIn { family, names } => {
                let hash = source_hash(family).unwrap_or(0);
                text.push_str(&format!("built-in\n{family}\n{hash:016x}\n"));
                for name in names {
                    text.push_str(name);
                    text.push('\n');
                }
                &[]
            }
            Self::Shared(binary) => {
                text.push_str("shared\n");
                binary
            }
        };
        let mut payload = (text.len() as u64).to_le_bytes().to_vec();
        payload.extend_from_slice(text.as_bytes());
        payload.extend_from_slice(binary);
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&hash(&payload).to_le_bytes());
        let check = hash(&bytes);
        bytes.extend_from_slice(&check.to_le_bytes());
        bytes.extend_from_slice(&payload);
        bytes
    }

    /// Reads a code object, whose length the API does not pass.
    ///
    /// # Safety
    /// `image` points to a code object, intact or with wrong bytes, or to at least 32 readable
    /// bytes of something else.
    pub(crate) unsafe fn read(image: *const c_void) -> Result<Self, Refused> {
        let image = image.cast::<u8>();
        // SAFETY: the caller's.
        let header = unsafe { std::slice::from_raw_parts(image, HEADER) };
        let word =
            |at: usize| header[at..at + 8].iter().rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
        if &header[..8] != MAGIC || hash(&header[..24]) != word(24) || word(8) > LARGEST {
            return Err(Refused::Damaged);
        }
        // SAFETY: the header's hash is right, so its length is the one that was written.
        let payload = unsafe { std::slice::from_raw_parts(image.add(HEADER), word(8) as usize) };
        if hash(payload) != word(16) {
            return Err(Refused::Damaged);
        }
        Self::parse(payload).ok_or(Refused::Damaged)?
    }

    fn parse(payload: &[u8]) -> Option<Result<Self, Refused>> {
        let (length, rest) = payload.split_first_chunk::<8>()?;
        let (text, binary) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        let mut lines = std::str::from_utf8(text).ok()?.lines();
        if lines.next()? != COMPILER || lines.next()? != target() {
            return Some(Err(Refused::Foreign));
        }
        Some(match lines.next()? {
            "built-in" => {
                let family = lines.next()?.to_owned();
                if Some(u64::from_str_radix(lines.next()?, 16).ok()?) != source_hash(&family) {
                    return Some(Err(Refused::Foreign));
                }
                Ok(Self::BuiltIn { family, names: lines.map(str::to_owned).collect() })
            }
            "shared" => Ok(Self::Shared(binary.to_vec())),
            _ => Err(Refused::Foreign),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Code, Refused> {
        // SAFETY: at least a header's length.
        unsafe { Code::read(bytes.as_ptr().cast()) }
    }

    #[test]
    fn whole_ones_are_read_and_damaged_ones_refused() {
        for make in [
            || Code::BuiltIn { family: "binary".into(), names: vec!["binary_contiguous<Add, f32>".into()] },
            || Code::Shared(vec![1, 2, 3]),
        ] {
            let bytes = make().to_bytes();
            assert_eq!(read(&bytes), Ok(make()));
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x10;
                assert_eq!(read(&damaged), Err(Refused::Damaged), "byte {at}");
            }
        }
        assert_eq!(read(&[0x7f; 64]), Err(Refused::Damaged));
    }

    #[test]
    fn code_that_other_headers_or_flags_made_is_foreign() {
        let bytes = Code::Shared(vec![]).to_bytes();
        let text = std::str::from_utf8(&bytes[HEADER + 8..]).unwrap();
        let foreign = text.replace(COMPILER, concat!("hip-cpu ", env!("CARGO_PKG_VERSION")));
        let payload = [&(foreign.len() as u64).to_le_bytes(), foreign.as_bytes()].concat();
        assert_eq!(Code::parse(&payload), Some(Err(Refused::Foreign)));
    }

    /// The test runs in its own process, because a process reads the variable once.
    #[test]
    fn a_device_that_goes_by_another_name_takes_no_other_instruction_sets_code() {
        const ARCH: &str = "BURN_ROCM_CPU_ARCH";
        if std::env::var(ARCH).as_deref() != Ok("gfx90a") {
            let name = "a_device_that_goes_by_another_name_takes_no_other_instruction_sets_code";
            let mut test = std::process::Command::new(std::env::current_exe().unwrap());
            let output = test.arg(name).env(ARCH, "gfx90a").output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        assert_eq!(crate::arch::arch_name(), "gfx90a");
        let bytes = Code::Shared(vec![]).to_bytes();
        assert_eq!(read(&bytes), Ok(Code::Shared(vec![])));
        let text = std::str::from_utf8(&bytes[HEADER + 8..]).unwrap();
        let foreign = text.replace(&target(), "cpu-of-another-kind");
        assert_ne!(foreign, text);
        let payload = [&(foreign.len() as u64).to_le_bytes(), foreign.as_bytes()].concat();
        assert_eq!(Code::parse(&payload), Some(Err(Refused::Foreign)));
    }
}
