//! Reads a DLL's header without loading it: the processor that it is for, what it needs, and its
//! version. The format is that of Microsoft's "PE Format"; the version's is `VS_FIXEDFILEINFO`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// What a DLL's header says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dll {
    /// `IMAGE_FILE_MACHINE_*`.
    machine: u16,
    /// The names of the DLLs that it needs at its start.
    pub(crate) needs: Vec<String>,
    /// The file's version, such as `7.14.0.2`.
    pub(crate) version: Option<String>,
}

impl Dll {
    /// Reads a file's header; `None` if it can't be read or is not a 64-bit or 32-bit PE file.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        // The largest of AMD's DLLs have 1 GiB, nearly all of it code for GPUs. What is read lies in
        // the header and in three tables, so the file is read in parts.
        Self::parse(&mut File::open(path).ok()?)
    }

    fn parse(file: &mut impl Source) -> Option<Self> {
        let start = file.u32(0x3c)?.into();
        if file.bytes(0, 2)? != b"MZ" || file.bytes(start, 4)? != b"PE\0\0" {
            return None;
        }
        let coff = start + 4;
        let (machine, sections) = (file.u16(coff)?, file.u16(coff + 2)?);
        let optional = coff + 20;
        // The directories of tables begin further on if addresses have 64 bits.
        let directories = match file.u16(optional)? {
            0x10b => optional + 96,
            0x20b => optional + 112,
            _ => return None,
        };
        let table = optional + u64::from(file.u16(coff + 16)?);
        let sections: Option<Vec<Section>> = (0..u64::from(sections.min(96)))
            .map(|index| {
                let at = table + index * 40;
                let (size, address) = (file.u32(at + 8)?, file.u32(at + 12)?);
                let (stored, offset) = (file.u32(at + 16)?, file.u32(at + 20)?);
                let named_resources = file.bytes(at, 6)? == b".rsrc\0";
                Some(Section { address, size: size.max(stored), stored, offset, named_resources })
            })
            .collect();
        let sections = sections?;
        let count = file.u32(directories - 4)?;
        let imports = if count > 1 { file.u32(directories + 8)? } else { 0 };
        let needs =
            if imports == 0 { Vec::new() } else { needs(file, &sections, imports).unwrap_or_default() };
        let version = sections.iter().find(|section| section.named_resources).and_then(|resources| {
            let size = resources.stored.min(1 << 20) as usize;
            version(&file.bytes(resources.offset.into(), size)?)
        });
        Some(Self { machine, needs, version })
    }

    /// Why this process can't load the DLL; `None` if it is for this processor.
    pub(crate) fn misfit(&self) -> Option<String> {
        let (own, name) = match std::env::consts::ARCH {
            "x86_64" => (0x8664, "x86-64"),
            "aarch64" => (0xaa64, "ARM64"),
            _ => return None,
        };
        let theirs = match self.machine {
            machine if machine == own => return None,
            0x14c => "x86 (32 bits)".into(),
            0x8664 => "x86-64".into(),
            0xaa64 => "ARM64".into(),
            machine => format!("machine {machine:#x}"),
        };
        Some(format!("is built for {theirs}, and this program for {name}"))
    }
}

struct Section {
    address: u32,
    size: u32,
    stored: u32,
    offset: u32,
    named_resources: bool,
}

/// The names in the import table: entries of five words, of which the fourth is the name's address,
/// ended by an entry of zeros.
fn needs(file: &mut impl Source, sections: &[Section], table: u32) -> Option<Vec<String>> {
    let offset = |address: u32| {
        let section = sections
            .iter()
            .find(|section| address.checked_sub(section.address).is_some_and(|at| at < section.size))?;
        Some(u64::from(address - section.address) + u64::from(section.offset))
    };
    let start = offset(table)?;
    let mut needs = Vec::new();
    // No DLL needs so many others.
    for index in 0..1000 {
        let name = file.u32(start + index * 20 + 12)?;
        if name == 0 {
            break;
        }
        needs.push(file.text(offset(name)?)?);
    }
    Some(needs)
}

/// The file's version in a section of resources: after `VS_FIXEDFILEINFO`'s signature and the
/// version of the struct, two words.
fn version(resources: &[u8]) -> Option<String> {
    let signature = 0xfeef_04bd_u32.to_le_bytes();
    let at = resources.windows(4).position(|window| window == signature)?;
    let half = |offset: usize| -> Option<u16> {
        Some(u16::from_le_bytes(resources.get(at + offset..at + offset + 2)?.try_into().ok()?))
    };
    Some(format!("{}.{}.{}.{}", half(10)?, half(8)?, half(14)?, half(12)?))
}

/// Bytes at offsets.
trait Source {
    /// As many bytes, or `None` if they reach over the end.
    fn bytes(&mut self, offset: u64, count: usize) -> Option<Vec<u8>>;

    /// The text at an offset, ended by a 0, of at most 255 bytes.
    fn text(&mut self, offset: u64) -> Option<String>;

    fn u16(&mut self, offset: u64) -> Option<u16> {
        Some(u16::from_le_bytes(self.bytes(offset, 2)?.try_into().ok()?))
    }

    fn u32(&mut self, offset: u64) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes(offset, 4)?.try_into().ok()?))
    }
}

impl<F: Read + Seek> Source for F {
    fn bytes(&mut self, offset: u64, count: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.seek(SeekFrom::Start(offset)).ok()?;
        self.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    fn text(&mut self, offset: u64) -> Option<String> {
        self.seek(SeekFrom::Start(offset)).ok()?;
        let mut bytes = Vec::new();
        self.by_ref().take(256).read_to_end(&mut bytes).ok()?;
        let end = bytes.iter().position(|&byte| byte == 0)?;
        String::from_utf8(bytes[..end].to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    /// A DLL of one section at the address 0x1000, with an import table and a version.
    fn dll(machine: u16, needs: &[&str]) -> Vec<u8> {
        let mut bytes = vec![0; 0x400];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, b"MZ");
        put(0x3c, &0x80u32.to_le_bytes());
        put(0x80, b"PE\0\0");
        put(0x84, &machine.to_le_bytes());
        put(0x86, &1u16.to_le_bytes());
        put(0x94, &240u16.to_le_bytes());
        put(0x98, &0x20bu16.to_le_bytes());
        put(0x98 + 108, &16u32.to_le_bytes());
        put(0x98 + 120, &0x1000u32.to_le_bytes());
        let section = 0x98 + 240;
        put(section, b".rsrc\0");
        for (at, value) in [(8, 0x1000u32), (12, 0x1000), (16, 0x1000), (20, 0x400)] {
            put(section + at, &value.to_le_bytes());
        }
        let mut body = vec![0; 0x1000];
        let mut name = 0x200;
        for (index, need) in needs.iter().enumerate() {
            let address = 0x1000 + name as u32;
            body[index * 20 + 12..index * 20 + 16].copy_from_slice(&address.to_le_bytes());
            body[name..name + need.len()].copy_from_slice(need.as_bytes());
            name += need.len() + 1;
        }
        let words = [0xfeef_04bdu32, 0x1_0000, 7 << 16 | 14, 2 << 16 | 99];
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        body[0x800..0x800 + words.len()].copy_from_slice(&words);
        [bytes, body].concat()
    }

    #[test]
    fn a_dlls_header_says_what_it_is() {
        let bytes = dll(0x8664, &["amdhip64_7.dll", "KERNEL32.dll"]);
        let found = Dll::parse(&mut Cursor::new(&bytes)).unwrap();
        assert_eq!(found.needs, ["amdhip64_7.dll", "KERNEL32.dll"]);
        assert_eq!(found.version.as_deref(), Some("7.14.2.99"));
        let old = Dll::parse(&mut Cursor::new(dll(0x14c, &[]))).unwrap();
        assert_eq!(old.needs, [""; 0]);
        assert!(
            old.misfit().is_some_and(|why| why.starts_with("is built for x86 (32 bits), and this program"))
        );
        if std::env::consts::ARCH == "x86_64" {
            assert_eq!(found.misfit(), None);
        }
    }

    #[test]
    fn a_file_that_is_cut_or_damaged_is_no_panic() {
        let whole = dll(0x8664, &["amdhip64_7.dll"]);
        for length in (0..whole.len()).step_by(7) {
            let _ = Dll::parse(&mut Cursor::new(&whole[..length]));
        }
        for at in 0..0x400 {
            let mut bytes = whole.clone();
            bytes[at] = 0xff;
            let _ = Dll::parse(&mut Cursor::new(&bytes));
        }
        assert_eq!(Dll::parse(&mut Cursor::new(b"not a DLL")), None);
        assert_eq!(Dll::parse(&mut Cursor::new(b"")), None);
    }
}
