//! Counts the instructions of code objects.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write as _};

use object::elf::{EM_AMDGPU, ET_DYN, FileHeader64, PF_X};
use object::read::elf::{ElfFile64, FileHeader};
use object::{LittleEndian, Object, ObjectSegment, ObjectSymbol, SegmentFlags};
use virtual_gpu::isa::describe;

/// `EF_AMDGPU_MACH` of gfx1030, and of the generic target that runs on it ("User Guide for AMDGPU
/// Backend" of LLVM).
const GFX1030: [u32; 2] = [0x36, 0x53];
/// `s_code_end`, with which compilers fill the room behind a function.
const CODE_END: u32 = 0xbf9f_0000;
/// `s_nop 0`, with which they align functions.
const NOP: u32 = 0xbf80_0000;

/// Instructions of one kind that the virtual GPU does not execute.
struct Lacking {
    count: u64,
    /// Where one of them is.
    example: String,
}

/// What was found in all code objects.
#[derive(Default)]
pub(crate) struct Listing {
    objects: u64,
    /// Code objects for other GPUs.
    others: u64,
    kernels: u64,
    instructions: u64,
    /// Instructions by mnemonic.
    mnemonics: BTreeMap<&'static str, u64>,
    lacking: BTreeMap<String, Lacking>,
}

impl Listing {
    /// Adds a code object; `name` says where it is. Files that still have to be linked are left out.
    ///
    /// # Errors
    /// The file is damaged.
    pub(crate) fn add(&mut self, name: &str, bytes: &[u8]) -> Result<(), object::read::Error> {
        let header = FileHeader64::<LittleEndian>::parse(bytes)?;
        if header.e_machine(LittleEndian) != EM_AMDGPU || header.e_type(LittleEndian) != ET_DYN {
            return Ok(());
        }
        if !GFX1030.contains(&(header.e_flags(LittleEndian).0 & 0xff)) {
            self.others += 1;
            return Ok(());
        }
        let file = ElfFile64::<LittleEndian>::parse(bytes)?;
        self.objects += 1;
        let mut functions: BTreeMap<u64, String> = BTreeMap::new();
        for symbol in file.symbols().chain(file.dynamic_symbols()) {
            functions.insert(symbol.address(), symbol.name()?.to_owned());
        }
        for symbol in file.dynamic_symbols() {
            let Some(kernel) = symbol.name()?.strip_suffix(".kd") else { continue };
            self.kernels += 1;
            if let Some(entry) = entry(&file, symbol.address()) {
                functions.insert(entry, kernel.to_owned());
            }
        }
        for segment in file.segments() {
            let SegmentFlags::Elf { p_flags, .. } = segment.flags() else { continue };
            if p_flags.contains(PF_X) {
                let (base, code) = (segment.address(), segment.data()?);
                let mut starts = BTreeMap::from([(base, String::new())]);
                let within = functions.range(base..base + code.len() as u64);
                starts.extend(within.map(|(at, name)| (*at, name.clone())));
                self.add_code(name, base, code, &starts);
            }
        }
        Ok(())
    }

    /// Adds machine code. Functions begin at `starts`: whatever lies before one, decoding starts
    /// there again.
    fn add_code(&mut self, file: &str, base: u64, code: &[u8], starts: &BTreeMap<u64, String>) {
        let words: Vec<u32> =
            code.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let ends = starts.keys().skip(1).copied().chain([base + code.len() as u64]);
        for ((start, function), end) in starts.iter().zip(ends) {
            let place = |address: u64| ((address.clamp(base, base + code.len() as u64) - base) / 4) as usize;
            let (first, last) = (place(*start), place(end));
            let mut at = first;
            let padding = |word: u32| matches!(word, 0 | CODE_END | NOP);
            let used =
                words[first..last].iter().rposition(|&word| !padding(word)).map_or(first, |n| first + n + 1);
            while at < used {
                let found = describe(&words[at..last]);
                let executed = found.is_some_and(|found| found.executed);
                self.instructions += 1;
                if let Some(found) = found.filter(|_| executed) {
                    *self.mnemonics.entry(found.name).or_default() += 1;
                } else {
                    let kind = found.map_or_else(|| unknown(words[at]), |found| found.name.to_owned());
                    let lacking = self.lacking.entry(kind).or_insert_with(|| {
                        let mut example = format!("{file}: {function}+{:#x}:", 4 * (at - first));
                        for word in &words[at..last.min(at + 3)] {
                            // Writing to a string can't fail.
                            let _ = write!(example, " {word:08x}");
                        }
                        Lacking { count: 0, example }
                    });
                    lacking.count += 1;
                }
                at += found.map_or(1, |found| usize::from(found.size) / 4);
            }
        }
    }

    /// Code objects for gfx1030.
    pub(crate) fn objects(&self) -> u64 {
        self.objects
    }

    /// Whether the virtual GPU executes all instructions but those with these names.
    pub(crate) fn is_complete(&self, except: &[&str]) -> bool {
        self.lacking.keys().all(|kind| except.contains(&kind.as_str()))
    }

    /// A line for each mnemonic with its count, the most frequent first.
    pub(crate) fn counts(&self) -> String {
        let mut counts: Vec<_> = self.mnemonics.iter().collect();
        counts.sort_by(|a, b| b.1.cmp(a.1));
        counts.iter().map(|(name, count)| format!("{name}\t{count}\n")).collect()
    }
}

impl Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lacking: u64 = self.lacking.values().map(|lacking| lacking.count).sum();
        writeln!(
            f,
            "{} code objects for gfx1030 ({} for other GPUs), {} kernels, {} instructions of {} mnemonics; {lacking} \
             instructions of {} kinds are not executed",
            self.objects,
            self.others,
            self.kernels,
            self.instructions,
            self.mnemonics.len(),
            self.lacking.len(),
        )?;
        self.lacking.iter().try_for_each(|(kind, Lacking { count, example })| {
            writeln!(f, "not executed: {kind}, {count} times, first in {example}")
        })
    }
}

/// The first instruction of a kernel, from its descriptor ("Kernel Descriptor" in LLVM's guide).
fn entry(file: &ElfFile64<'_, LittleEndian>, descriptor: u64) -> Option<u64> {
    let mut segments = file.segments();
    let field = segments.find_map(|segment| segment.data_range(descriptor + 16, 8).ok().flatten())?;
    Some(descriptor.wrapping_add(u64::from_le_bytes(field.try_into().ok()?)))
}

/// What the tables don't know, by format and opcode ("Microcode Formats" in AMD's RDNA 2 guide).
fn unknown(word: u32) -> String {
    let (format, low, bits) = match word >> 26 {
        0b110011 => ("VOP3P", 16, 7),
        0b110101 => ("VOP3", 16, 10),
        0b110110 => ("DS", 18, 8),
        0b110111 => ("FLAT", 18, 7),
        0b111000 => ("MUBUF", 18, 8),
        0b111101 => ("SMEM", 18, 8),
        _ if word >> 25 == 0b011_1110 => ("VOPC", 17, 8),
        _ if word >> 25 == 0b011_1111 => ("VOP1", 9, 8),
        _ if word >> 31 == 0 => ("VOP2", 25, 6),
        _ if word >> 23 == 0b1_0111_1101 => ("SOP1", 8, 8),
        _ if word >> 23 == 0b1_0111_1110 => ("SOPC", 16, 7),
        _ if word >> 23 == 0b1_0111_1111 => ("SOPP", 16, 7),
        _ if word >> 28 == 0b1011 => ("SOPK", 23, 5),
        _ if word >> 30 == 0b10 => ("SOP2", 23, 7),
        _ => ("format", 26, 6),
    };
    format!("unknown {format} {:#x}", word >> low & ((1 << bits) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `s_endpgm`
    const END: u32 = 0xbf81_0000;

    fn list(words: &[u32], starts: &[(u64, &str)]) -> Listing {
        let mut listing = Listing::default();
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let starts = starts.iter().map(|&(at, name)| (at, name.to_owned())).collect();
        listing.add_code("file", 0x1000, &code, &starts);
        listing
    }

    #[test]
    fn instructions_are_counted_and_padding_is_not() {
        // v_add_f32_e64 v3, v0, 0 clamp; s_endpgm; then padding.
        let listing = list(&[0xd503_8003, 0x0001_0100, END, CODE_END, CODE_END, 0], &[(0x1000, "first")]);
        assert_eq!(listing.counts(), "s_endpgm\t1\nv_add_f32\t1\n");
        assert!(listing.is_complete(&[]));
        assert_eq!(listing.instructions, 2);
    }

    #[test]
    fn functions_start_afresh() {
        // The literal of the last instruction is missing, since another function begins there.
        let words = [0x7e50_02ff, END];
        let (apart, joined) = (list(&words, &[(0x1000, "a"), (0x1004, "b")]), list(&words, &[(0x1000, "a")]));
        assert_eq!((apart.counts().as_str(), apart.is_complete(&[])), ("s_endpgm\t1\n", false));
        assert_eq!((joined.counts().as_str(), joined.is_complete(&[])), ("v_mov_b32\t1\n", true));
    }

    #[test]
    fn what_is_lacking_is_named_once_with_an_example() {
        // v_cubeid_f32 v0, v0, v0, v0 twice; SOP2 without such an opcode.
        let words = [0xd544_0000, 0x0402_0100, 0xd544_0000, 0x0402_0100, 0x9f80_0000, END];
        let listing = list(&words, &[(0x1000, "first"), (0x1008, "second")]);
        let text = listing.to_string();
        assert!(
            text.contains(
                "not executed: v_cubeid_f32, 2 times, first in file: first+0x0: d5440000 04020100\n"
            )
        );
        assert!(
            text.contains("not executed: unknown SOP2 0x3f, 1 times, first in file: second+0x8: 9f800000 "),
            "{text}"
        );
        assert!(text.contains("3 instructions of 2 kinds are not executed"), "{text}");
        assert!(!listing.is_complete(&[]) && !listing.is_complete(&["v_cubeid_f32"]));
        assert!(listing.is_complete(&["v_cubeid_f32", "unknown SOP2 0x3f"]));
    }

    #[test]
    fn formats_are_told_apart() {
        for (word, text) in [
            (0xcc7f_0000, "unknown VOP3P 0x7f"),
            (0xd7ff_0000, "unknown VOP3 0x3ff"),
            (0xdbfc_0000, "unknown DS 0xff"),
            (0xddfc_0000, "unknown FLAT 0x7f"),
            (0xe3fc_0000, "unknown MUBUF 0xff"),
            (0xf7fc_0000, "unknown SMEM 0xff"),
            (0x7dfe_0000, "unknown VOPC 0xff"),
            (0x7e01_fe00, "unknown VOP1 0xff"),
            (0x7a00_0000, "unknown VOP2 0x3d"),
            (0xbe80_ff00, "unknown SOP1 0xff"),
            (0xbf7f_0000, "unknown SOPC 0x7f"),
            (0xbfff_0000, "unknown SOPP 0x7f"),
            (0xb780_0000, "unknown SOPK 0xf"),
            (0x9f80_0000, "unknown SOP2 0x3f"),
            (0xfc00_0000, "unknown format 0x3f"),
        ] {
            assert_eq!(unknown(word), text, "{word:#x}");
        }
    }
}
