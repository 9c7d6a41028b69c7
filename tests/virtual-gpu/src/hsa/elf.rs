//! Code objects: AMDGPU ELF files ("Code Object" in LLVM's "User Guide for AMDGPU Backend").

use object::elf::{
    EM_AMDGPU, FileHeader64, OsAbi, PF_W, PF_X, PT_LOAD, SHN_UNDEF, SHT_DYNSYM, SHT_RELA, STT_OBJECT, Sym64,
    SymbolType,
};
use object::read::elf::{FileHeader, ProgramHeader, Rela, SectionHeader, Sym};
use object::{LittleEndian, SectionIndex};

/// Constants of LLVM's guide.
const ELFOSABI_AMDGPU_HSA: OsAbi = OsAbi(64);
const STT_AMDGPU_HSA_KERNEL: SymbolType = SymbolType(10);
/// `EF_AMDGPU_MACH` of gfx1030, and of the generic target that runs on it.
const GFX1030: u32 = 0x36;
const GFX10_3_GENERIC: u32 = 0x53;
/// The largest code object in memory, as a guard against damaged headers. rocBLAS's largest has 30
/// MB.
const MAX_SIZE: u64 = 4 << 30;

/// Why a file can't be loaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum ElfError {
    /// The file is damaged.
    #[error("{0}")]
    Malformed(#[from] object::read::Error),
    /// The file is not an AMDGPU code object of version 4 to 6.
    #[error("not an AMDGPU code object of version 4 to 6: {0}")]
    NotCodeObject(&'static str),
    /// The file is for another GPU.
    #[error("the code object is for the machine {0:#x}, not for gfx1030")]
    Machine(u32),
    /// A segment, symbol or relocation points outside.
    #[error("{0}")]
    Range(&'static str),
    /// A relocation of a kind that the loader does not support.
    #[error("relocations of type {0} are not known")]
    Relocation(u32),
    /// A symbol that nobody defines.
    #[error("the symbol {0} is not defined")]
    Undefined(String),
}

/// A part of the file that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// From the code object's base.
    pub(super) address: u64,
    /// The size in memory. Zeros follow the file's bytes.
    pub(super) size: u64,
    pub(super) executable: bool,
    pub(super) writable: bool,
    offset: u64,
    file_size: u64,
}

/// A symbol that the file defines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Symbol {
    pub(super) name: String,
    /// From the code object's base.
    pub(super) address: u64,
    pub(super) size: u64,
    /// Whether it is a kernel's descriptor.
    pub(super) kernel: bool,
}

#[derive(Clone, Debug)]
struct Relocation {
    offset: u64,
    kind: u32,
    addend: i64,
    /// A defined symbol's address, or an undefined one's name.
    symbol: Option<Result<u64, String>>,
}

/// A parsed code object.
#[derive(Debug)]
pub(super) struct CodeObject<'a> {
    data: &'a [u8],
    pub(super) segments: Vec<Segment>,
    pub(super) symbols: Vec<Symbol>,
    relocations: Vec<Relocation>,
    /// The bytes from the base to the last segment's end.
    pub(super) size: u64,
}

impl<'a> CodeObject<'a> {
    /// Parses a file.
    ///
    /// # Errors
    /// [`ElfError`] says what is wrong with it.
    pub(super) fn parse(data: &'a [u8]) -> Result<Self, ElfError> {
        let little = LittleEndian;
        let header = FileHeader64::<LittleEndian>::parse(data)?;
        if header.endian()? != little || header.e_machine(little) != EM_AMDGPU {
            return Err(ElfError::NotCodeObject("the machine is not AMDGPU"));
        }
        let ident = header.e_ident();
        // ELFABIVERSION_AMDGPU_HSA_V4 to _V6
        if ident.os_abi != ELFOSABI_AMDGPU_HSA || !(2..=4).contains(&ident.abi_version) {
            return Err(ElfError::NotCodeObject("the ABI is another one"));
        }
        let machine = header.e_flags(little).0 & 0xff;
        if machine != GFX1030 && machine != GFX10_3_GENERIC {
            return Err(ElfError::Machine(machine));
        }
        let mut segments = Vec::new();
        for segment in header.program_headers(little, data)? {
            if segment.p_type(little) != PT_LOAD || segment.p_memsz(little) == 0 {
                continue;
            }
            let found = Segment {
                address: segment.p_vaddr(little),
                size: segment.p_memsz(little),
                executable: segment.p_flags(little).contains(PF_X),
                writable: segment.p_flags(little).contains(PF_W),
                offset: segment.p_offset(little),
                file_size: segment.p_filesz(little),
            };
            let end = found.address.checked_add(found.size).filter(|&end| end <= MAX_SIZE);
            let file_end = found.offset.checked_add(found.file_size).filter(|&end| end <= data.len() as u64);
            if end.is_none() || file_end.is_none() || found.file_size > found.size {
                return Err(ElfError::Range("a segment lies outside the file or is too large"));
            }
            segments.push(found);
        }
        let size = segments.iter().map(|segment| segment.address + segment.size).max();
        let size = size.ok_or(ElfError::Range("nothing is loaded"))?;
        let mut object = Self { data, segments, symbols: Vec::new(), relocations: Vec::new(), size };
        object.read_sections(header)?;
        Ok(object)
    }

    fn read_sections(&mut self, header: &FileHeader64<LittleEndian>) -> Result<(), ElfError> {
        let little = LittleEndian;
        let sections = header.sections(little, self.data)?;
        let table = sections.symbols(little, self.data, SHT_DYNSYM)?;
        let name = |symbol: &Sym64<LittleEndian>| -> Result<String, ElfError> {
            Ok(String::from_utf8_lossy(symbol.name(little, table.strings())?).into_owned())
        };
        for symbol in table.iter() {
            let kind = symbol.st_type();
            if symbol.st_shndx(little) == SHN_UNDEF || (kind != STT_OBJECT && kind != STT_AMDGPU_HSA_KERNEL) {
                continue;
            }
            let (address, size, name) = (symbol.st_value(little), symbol.st_size(little), name(symbol)?);
            let kernel = name.ends_with(".kd");
            let least = if kernel { 64 } else { size };
            if address.checked_add(least).is_none_or(|end| end > self.size) {
                return Err(ElfError::Range("a symbol lies outside the segments"));
            }
            self.symbols.push(Symbol { name, address, size, kernel });
        }
        for section in sections.iter().filter(|section| section.sh_type(little) == SHT_RELA) {
            // Relocations that the link editor has already applied refer to another symbol table.
            let Some((relocations, link)) = section.rela(little, self.data)? else { continue };
            if link != table.section() && link != SectionIndex(0) {
                continue;
            }
            for relocation in relocations {
                let symbol = match relocation.symbol(little, false) {
                    None => None,
                    Some(index) => {
                        let symbol = table.symbol(index)?;
                        let defined = symbol.st_shndx(little) != SHN_UNDEF;
                        Some(if defined { Ok(symbol.st_value(little)) } else { Err(name(symbol)?) })
                    }
                };
                self.relocations.push(Relocation {
                    offset: relocation.r_offset(little),
                    kind: relocation.r_type(little, false).0,
                    addend: relocation.r_addend(little),
                    symbol,
                });
            }
        }
        Ok(())
    }

    /// Copies the segments into `image`, whose first byte will lie at `base`, and relocates them. `external` gives the
    /// addresses of symbols that the file does not define.
    ///
    /// # Errors
    /// [`ElfError`] if a relocation can't be done.
    pub(super) fn load(
        &self,
        image: &mut [u8],
        base: u64,
        external: impl Fn(&str) -> Option<u64>,
    ) -> Result<(), ElfError> {
        for segment in &self.segments {
            let from = &self.data[segment.offset as usize..][..segment.file_size as usize];
            let to = image.get_mut(segment.address as usize..).and_then(|rest| rest.get_mut(..from.len()));
            to.ok_or(ElfError::Range("a segment lies outside the image"))?.copy_from_slice(from);
        }
        for Relocation { offset, kind, addend, symbol } in &self.relocations {
            let symbol = match symbol {
                None => 0,
                Some(Ok(address)) => base.wrapping_add(*address),
                Some(Err(name)) => external(name).ok_or_else(|| ElfError::Undefined(name.clone()))?,
            };
            let absolute = symbol.wrapping_add_signed(*addend);
            let relative = absolute.wrapping_sub(base.wrapping_add(*offset));
            // "Relocation Records" in LLVM's guide.
            let (value, bytes) = match kind {
                0 => continue,
                // R_AMDGPU_ABS32_LO, _ABS32, _REL32, _REL32_LO
                1 | 6 => (absolute, 4),
                4 | 10 => (relative, 4),
                // R_AMDGPU_ABS32_HI, _REL32_HI
                2 => (absolute >> 32, 4),
                11 => (relative >> 32, 4),
                // R_AMDGPU_ABS64, _REL64, _RELATIVE64
                3 => (absolute, 8),
                5 => (relative, 8),
                13 => (base.wrapping_add_signed(*addend), 8),
                other => return Err(ElfError::Relocation(*other)),
            };
            let to = image.get_mut(*offset as usize..).and_then(|rest| rest.get_mut(..bytes));
            let to = to.ok_or(ElfError::Range("a relocation lies outside the segments"))?;
            to.copy_from_slice(&value.to_le_bytes()[..bytes]);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "elf_tests.rs"]
mod tests;
