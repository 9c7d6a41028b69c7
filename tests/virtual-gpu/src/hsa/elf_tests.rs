use super::*;

#[path = "../../tests/support/mod.rs"]
mod support;
use support::{DATA, DATA_SIZE, DESCRIPTORS, Kernel, Relocation, Source, TEXT, code_object};

const BASE: u64 = 0x7000_1234_5000;

fn source() -> Source {
    Source::new(&[Kernel::new("first", &[0xbf81_0000]), Kernel::new("second", &[1, 2, 0xbf81_0000])])
}

fn load(source: &Source) -> Result<Vec<u8>, ElfError> {
    let file = code_object(source);
    let object = CodeObject::parse(&file)?;
    let mut image = vec![0; object.size as usize];
    object.load(&mut image, BASE, |name| (name == "outside").then_some(0x1_0000_0042))?;
    Ok(image)
}

fn word(image: &[u8], at: u64, bytes: usize) -> u64 {
    let mut word = [0; 8];
    word[..bytes].copy_from_slice(&image[at as usize..][..bytes]);
    u64::from_le_bytes(word)
}

#[test]
fn segments_and_symbols_are_found() {
    for abi in 2..=4 {
        let file = code_object(&Source { abi, ..source() });
        let object = CodeObject::parse(&file).expect("the file is valid");
        let flags: Vec<_> = object.segments.iter().map(|s| (s.address, s.executable, s.writable)).collect();
        assert_eq!(flags, [(DESCRIPTORS, false, false), (TEXT, true, false), (DATA, false, true)]);
        assert_eq!(object.size, DATA + DATA_SIZE);
        let names: Vec<_> =
            object.symbols.iter().map(|s| (s.name.as_str(), s.address, s.size, s.kernel)).collect();
        let second = DESCRIPTORS + 64;
        assert_eq!(
            names,
            [("first.kd", DESCRIPTORS, 64, true), ("second.kd", second, 64, true), ("data", DATA, 16, false)]
        );
    }
}

#[test]
fn what_the_file_lacks_is_zero() {
    let image = load(&source()).expect("the file is valid");
    assert_eq!(word(&image, TEXT, 4), 0xbf81_0000);
    assert_eq!(word(&image, DATA, 8), 0x0707_0707_0707_0707);
    assert!(image[(DATA + 0x800) as usize..].iter().all(|&byte| byte == 0));
    assert_eq!(image.len() as u64, DATA + DATA_SIZE);
}

#[test]
fn relocations_are_done() {
    // The symbols 1 and 2 are kernels, 3 is `data`, 4 is undefined here.
    let absolute = BASE + DATA + 5;
    let cases: [(u32, u32, i64, usize, u64); 9] = [
        (1, 3, 5, 4, absolute & 0xffff_ffff),
        (2, 3, 5, 4, absolute >> 32),
        (3, 3, 5, 8, absolute),
        (3, 4, -2, 8, 0x1_0000_0040),
        (4, 3, 0, 4, u64::from((-0x40i32 as u32).wrapping_sub(0x20 * 4))),
        (5, 3, 0, 8, (-0x40i64 - 0x20 * 5) as u64),
        (6, 3, 5, 4, absolute & 0xffff_ffff),
        (13, 0, 0x99, 8, BASE + 0x99),
        (11, 1, 0, 4, 0xffff_ffff),
    ];
    let relocations = cases.iter().enumerate().map(|(place, &(kind, symbol, addend, ..))| {
        let offset = 0x40 + 0x20 * place as u64;
        Relocation { offset, kind, symbol, addend }
    });
    let source = Source { relocations: relocations.collect(), undefined: Some("outside"), ..source() };
    let image = load(&source).expect("the file is valid");
    for (place, &(kind, _, _, bytes, expected)) in cases.iter().enumerate() {
        let found = word(&image, DATA + 0x40 + 0x20 * place as u64, bytes);
        assert_eq!(found, expected, "relocation {place} of kind {kind}: {found:#x}, not {expected:#x}");
    }
}

#[test]
fn what_cannot_be_loaded_is_refused() {
    let relocation = |kind, symbol, offset| vec![Relocation { offset, kind, symbol, addend: 0 }];
    let outcome = |source: &Source| load(source).map(drop).expect_err("the file is not valid").to_string();
    let machine = outcome(&Source { machine: 0x4c, ..source() });
    assert!(machine.contains("machine 0x4c"), "{machine}");
    assert!(outcome(&Source { abi: 1, ..source() }).contains("version 4 to 6"));
    let kind = outcome(&Source { relocations: relocation(99, 3, 0), ..source() });
    assert_eq!(kind, "relocations of type 99 are not known");
    let undefined = Source { undefined: Some("nowhere"), relocations: relocation(3, 4, 0), ..source() };
    assert_eq!(outcome(&undefined), "the symbol nowhere is not defined");
    let outside = outcome(&Source { relocations: relocation(3, 3, DATA_SIZE - 4), ..source() });
    assert_eq!(outside, "a relocation lies outside the segments");
}

#[test]
fn damaged_files_are_errors() {
    let file = code_object(&source());
    for length in 0..file.len() {
        // However much is cut off, there is no panic, and nothing is loaded from beyond the file.
        if let Ok(object) = CodeObject::parse(&file[..length]) {
            assert!(object.load(&mut vec![0; object.size as usize], BASE, |_| None).is_ok(), "{length}");
        }
    }
    for (place, byte) in (0..file.len()).flat_map(|place| [0, 1, 0x7f, 0xff].map(|byte| (place, byte))) {
        // Headers, then the sections at the end; the padding between holds nothing.
        if (512..0x3800).contains(&place) {
            continue;
        }
        let mut file = file.clone();
        file[place] = byte;
        if let Ok(object) = CodeObject::parse(&file)
            && object.size < 1 << 20
        {
            let _ = object.load(&mut vec![0; object.size as usize], BASE, |_| None);
        }
    }
}
