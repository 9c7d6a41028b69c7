//! Small code objects, made by hand.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test includes this and uses a part")]

/// Where the parts lie, from the code object's base.
pub const DESCRIPTORS: u64 = 0x1000;
/// See [`DESCRIPTORS`].
pub const TEXT: u64 = 0x2000;
/// See [`DESCRIPTORS`].
pub const DATA: u64 = 0x3000;
/// The bytes of the data segment; those that the file does not hold are zeros.
pub const DATA_SIZE: u64 = 0x1800;

/// Each work-item writes its number; workgroups of 64.
///
/// ```text
/// s_load_dwordx2 s[4:5], s[0:1], 0x0
/// s_lshl_b32 s3, s2, 6
/// v_add_nc_u32_e32 v0, s3, v0
/// v_lshlrev_b32_e32 v1, 2, v0
/// s_waitcnt lgkmcnt(0)
/// global_store_dword v1, v0, s[4:5]
/// s_endpgm
/// ```
pub const NUMBERS: &[u32] = &[
    0xf404_0100,
    0xfa00_0000,
    0x8f03_8602,
    0x4a00_0003,
    0x3402_0082,
    0xbf8c_c07f,
    0xdc70_8000,
    0x0004_0001,
    0xbf81_0000,
];

/// A kernel that has its arguments' address in s0 and s1 and its workgroup's x in s2.
#[derive(Clone)]
pub struct Kernel {
    pub name: &'static str,
    pub code: Vec<u32>,
    pub lds: u32,
    /// Private memory of a work-item, in bytes.
    pub private: u32,
    pub wave32: bool,
}

impl Kernel {
    pub fn new(name: &'static str, code: &[u32]) -> Self {
        Self { name, code: code.to_vec(), lds: 0, private: 0, wave32: true }
    }

    fn descriptor(&self, place: u64, entry: u64) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[0..4].copy_from_slice(&self.lds.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.private.to_le_bytes());
        bytes[8..12].copy_from_slice(&16u32.to_le_bytes());
        bytes[16..24].copy_from_slice(&entry.wrapping_sub(place).to_le_bytes());
        // RSRC1: 16 VGPRs (granule 8), denormals kept. RSRC2: two user SGPRs, the workgroup's x.
        bytes[48..52].copy_from_slice(&(1u32 | 0xf0 << 12).to_le_bytes());
        bytes[52..56].copy_from_slice(&(2u32 << 1 | 1 << 7).to_le_bytes());
        // The kernarg pointer, waves of 32.
        let properties = 1u16 << 3 | u16::from(self.wave32) << 10;
        bytes[56..58].copy_from_slice(&properties.to_le_bytes());
        bytes
    }
}

/// A relocation in the data segment: its offset there, its kind, its symbol (0 for none), its addend.
#[derive(Clone, Copy)]
pub struct Relocation {
    pub offset: u64,
    pub kind: u32,
    pub symbol: u32,
    pub addend: i64,
}

/// What [`code_object`] builds.
#[derive(Clone)]
pub struct Source {
    pub kernels: Vec<Kernel>,
    /// The data segment's first bytes, which the variable `data` names.
    pub data: Vec<u8>,
    pub relocations: Vec<Relocation>,
    /// An undefined symbol, the last of the table.
    pub undefined: Option<&'static str>,
    pub machine: u8,
    pub abi: u8,
}

impl Source {
    pub fn new(kernels: &[Kernel]) -> Self {
        let (data, relocations) = (vec![7; 16], Vec::new());
        // gfx1030, version 5 of the code object ABI.
        Self { kernels: kernels.to_vec(), data, relocations, undefined: None, machine: 0x36, abi: 3 }
    }
}

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// An ELF file of three segments. Symbols are numbered from 1: the kernels' descriptors, `data`, the undefined one.
pub fn code_object(source: &Source) -> Vec<u8> {
    let mut file = vec![0; (DATA + 0x800) as usize];
    let mut put = |at: u64, bytes: &[u8]| file[at as usize..][..bytes.len()].copy_from_slice(bytes);
    let (mut names, mut symbols) = (vec![0], vec![0; 24]);
    let mut symbol = |name: &str, kind: u8, section: u16, value: u64, size: u64| {
        symbols.extend((names.len() as u32).to_le_bytes());
        symbols.extend([1 << 4 | kind, 0]);
        symbols.extend(section.to_le_bytes());
        symbols.extend(words(&[value, size]));
        names.extend(name.bytes().chain([0]));
    };
    let mut entry = TEXT;
    for (number, kernel) in source.kernels.iter().enumerate() {
        let place = DESCRIPTORS + number as u64 * 64;
        put(place, &kernel.descriptor(place, entry));
        let code: Vec<u8> = kernel.code.iter().flat_map(|word| word.to_le_bytes()).collect();
        put(entry, &code);
        symbol(&format!("{}.kd", kernel.name), 1, 1, place, 64);
        entry = (entry + code.len() as u64).next_multiple_of(256);
    }
    put(DATA, &source.data);
    symbol("data", 1, 1, DATA, source.data.len() as u64);
    if let Some(name) = source.undefined {
        symbol(name, 1, 0, 0, 0);
    }
    let relocations: Vec<u8> = source
        .relocations
        .iter()
        .flat_map(|r| {
            words(&[DATA + r.offset, u64::from(r.symbol) << 32 | u64::from(r.kind), r.addend as u64])
        })
        .collect();
    // Segments: type and flags, offset, addresses, sizes in the file and in memory, alignment.
    let segment = |flags: u64, at: u64, in_file: u64, size: u64| {
        words(&[1 | flags << 32, at, at, at, in_file, size, 0x1000])
    };
    let segments = [
        segment(4, DESCRIPTORS, 0x1000, 0x1000),
        segment(5, TEXT, 0x1000, 0x1000),
        segment(6, DATA, 0x800, DATA_SIZE),
    ]
    .concat();
    put(64, &segments);
    // Sections: name and type, flags, address, offset, size, link and info, alignment, entry size.
    let mut sections = vec![0; 64];
    for (kind, contents, link, entry_size) in
        [(11u64, &symbols, 2u64, 24), (3, &names, 0, 0), (4, &relocations, 1, 24)]
    {
        let offset = file.len() as u64;
        file.extend(contents);
        file.resize(file.len().next_multiple_of(8), 0);
        sections.extend(words(&[kind << 32, 0, 0, offset, contents.len() as u64, link, 8, entry_size]));
    }
    let at = file.len() as u64;
    file.extend(sections);
    let ident = [0x7f, b'E', b'L', b'F', 2, 1, 1, 64, source.abi];
    file[..ident.len()].copy_from_slice(&ident);
    // The type (shared object), machine and version; then the program headers' offset, the sections', the flags.
    file[16..24].copy_from_slice(&words(&[3 | 224 << 16 | 1 << 32]));
    file[32..48].copy_from_slice(&words(&[64, at]));
    file[48..52].copy_from_slice(&u32::from(source.machine).to_le_bytes());
    for (place, value) in [64u16, 56, 3, 64, 4, 2].iter().enumerate() {
        file[52 + 2 * place..][..2].copy_from_slice(&value.to_le_bytes());
    }
    file
}
