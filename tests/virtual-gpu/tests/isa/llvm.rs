//! Holds the decode tables against LLVM's disassembler, for every opcode and for random words: the mnemonic, the
//! length, and the operands with their modifiers.
//!
//! It needs LLVM 22 in the root that the environment variable `ROOT` names (`tests/rocm/root.sh` makes one).

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use virtual_gpu::isa::{describe, operands};

use crate::operands::{SPECIAL, difference, is_special};
use crate::random::{Random, seed};

/// `s_nop 0x1234`: what follows an encoding under test.
const PADDING: u32 = 0xbf80_1234;

/// The tool's output for `input` on its standard input.
pub(crate) fn llvm_mc(root: &Path, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new("chroot")
        .arg(root)
        .args(["/usr/lib/llvm-22/bin/llvm-mc", "-arch=amdgcn", "-mcpu=gfx1030", "-show-encoding"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("chroot (it needs root) and llvm-mc");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().expect("llvm-mc");
    writer.join().expect("the writer").expect("llvm-mc reads all");
    String::from_utf8(output.stdout).expect("text")
}

/// A line of `encodings.txt`: the text and its dwords.
pub(crate) fn parse(line: &str) -> Option<(String, Vec<u32>)> {
    let (text, words) = line.split_once('\t')?;
    let words = words.split_whitespace().map(|w| u32::from_str_radix(w, 16).ok()).collect::<Option<_>>()?;
    Some((text.to_owned(), words))
}

/// The root with LLVM.
pub(crate) fn root() -> PathBuf {
    std::env::var_os("ROOT").expect("ROOT: a root with ROCm and LLVM 22, as root.sh makes one").into()
}

/// The dwords of one instruction.
pub(crate) fn assemble(root: &Path, text: &str) -> Vec<u32> {
    assemble_all(root, &[text]).pop().flatten().unwrap_or_else(|| panic!("LLVM doesn't assemble {text:?}"))
}

/// The dwords of each instruction; `None` where LLVM has an error.
pub(crate) fn assemble_all(root: &Path, texts: &[&str]) -> Vec<Option<Vec<u32>>> {
    // A marker behind each line keeps the answers apart.
    let input: String = texts.iter().map(|t| format!("{t}\ns_nop 0x1234\n")).collect();
    let (mut found, mut words) = (Vec::new(), None);
    for line in llvm_mc(root, &[], &input).lines() {
        let Some((_, encoding)) = line.split_once("encoding: [") else { continue };
        let bytes = parse_bytes(encoding);
        let dwords: Vec<u32> =
            bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        if dwords == [PADDING] {
            found.push(words.take());
        } else {
            words = Some(dwords);
        }
    }
    assert_eq!(found.len(), texts.len(), "one answer for each text");
    found
}

/// The bytes of a comment `encoding: [0x00,0x01]`.
fn parse_bytes(encoding: &str) -> Vec<u8> {
    let digits = encoding.trim_matches(['[', ']']).split(',');
    digits.filter_map(|b| u8::from_str_radix(b.trim().trim_start_matches("0x"), 16).ok()).collect()
}

/// What LLVM makes of an encoding: mnemonic without its format's suffix, bytes, and the whole text.
type Disassembly = Option<(String, u8, String)>;

/// What LLVM makes of each encoding. Some crash it; those count as unknown.
fn disassemble(root: &Path, encodings: &[[u32; 5]]) -> Vec<Disassembly> {
    match (disassemble_at_once(root, encodings), encodings.len()) {
        (Some(found), _) => found,
        (None, 0 | 1) => vec![None; encodings.len()],
        (None, n) => {
            let (first, second) = encodings.split_at(n / 2);
            [disassemble(root, first), disassemble(root, second)].concat()
        }
    }
}

fn disassemble_at_once(root: &Path, encodings: &[[u32; 5]]) -> Option<Vec<Disassembly>> {
    let mut input = String::new();
    for words in encodings {
        let bytes = words.iter().flat_map(|w| w.to_le_bytes()).map(|b| format!("{b:#04x}"));
        input += &format!("[{}]\n[0x77,0x77,0x81,0xbf]\n", bytes.collect::<Vec<_>>().join(","));
    }
    let output = llvm_mc(root, &["-disassemble"], &input);
    let (mut found, mut first) = (Vec::new(), None);
    for line in output.lines().map(str::trim) {
        let Some((text, encoding)) = line.split_once("; encoding: ") else { continue };
        let text = text.trim();
        if encoding.starts_with("[0x77,0x77,0x81,0xbf]") {
            found.push(first.take().flatten());
            continue;
        }
        if first.is_none() {
            let bytes: Vec<u8> = parse_bytes(encoding);
            // LLVM shows how it would encode the instruction, which may be longer: then its size says nothing.
            let given = encodings[found.len()].iter().flat_map(|w| w.to_le_bytes());
            let same = bytes.iter().copied().eq(given.take(bytes.len()));
            let size = if same { bytes.len() as u8 } else { 0 };
            let refused = text.contains("Invalid ") || text.contains("not supported");
            first = Some((!refused).then(|| (mnemonic(text).to_owned(), size, text.to_owned())));
        }
    }
    (found.len() == encodings.len()).then_some(found)
}

/// The first word, without the suffix of its format.
fn mnemonic(text: &str) -> &str {
    let name = text.split_whitespace().next().unwrap_or_default();
    ["_e32", "_e64", "_sdwa", "_dpp8", "_dpp"].iter().find_map(|s| name.strip_suffix(s)).unwrap_or(name)
}

/// A format: bits of the first dword and which ones it fixes, and where the opcode lies (its lowest bit, its bits).
type Format = (u32, u32, u32, u32);

/// VOP1, VOP2 and VOPC have forms of their own by the first source: SDWA, DPP in rows, DPP in groups of 8.
const FORMATS: [Format; 26] = [
    (0x8000_0000, 0xc000_0000, 23, 7),
    (0xbe80_0000, 0xff80_0000, 8, 8),
    (0xb000_0000, 0xf000_0000, 23, 5),
    (0xbf00_0000, 0xff80_0000, 16, 7),
    (0xbf80_0000, 0xff80_0000, 16, 7),
    (0xf400_0000, 0xfc00_0000, 18, 8),
    (0x0000_0000, 0x8000_0000, 25, 6),
    (0x0000_00f9, 0x8000_01ff, 25, 6),
    (0x0000_00fa, 0x8000_01ff, 25, 6),
    (0x0000_00e9, 0x8000_01ff, 25, 6),
    (0x0000_00ea, 0x8000_01ff, 25, 6),
    (0x7e00_0000, 0xfe00_0000, 9, 8),
    (0x7e00_00f9, 0xfe00_01ff, 9, 8),
    (0x7e00_00fa, 0xfe00_01ff, 9, 8),
    (0x7e00_00e9, 0xfe00_01ff, 9, 8),
    (0x7c00_0000, 0xfe00_0000, 17, 8),
    (0x7c00_00f9, 0xfe00_01ff, 17, 8),
    VOP3,
    // Again, because LLVM refuses most fillings.
    VOP3,
    (0xcc00_0000, 0xfc00_0000, 16, 7),
    (0xd800_0000, 0xfc00_0000, 18, 8),
    // The segments: flat, scratch, global.
    (0xdc00_0000, SEGMENT, 18, 7),
    (0xdc00_4000, SEGMENT, 18, 7),
    (0xdc00_8000, SEGMENT, 18, 7),
    (0xe000_0000, 0xfc00_0000, 18, 8),
    (0xe000_0000, 0xfc00_0000, 18, 8),
];
const VOP3: Format = (0xd400_0000, 0xfc00_0000, 16, 10);
const SEGMENT: u32 = 0xfc00_c000;

/// Encodings of all opcodes of all formats, with random operands.
fn every_opcode(random: &mut Random, fillings: usize) -> Vec<[u32; 5]> {
    let mut encodings = Vec::new();
    for (base, mask, shift, bits) in FORMATS {
        let fixed = mask | (((1 << bits) - 1) << shift);
        for code in 0..1 << bits {
            for filling in 0..fillings {
                let mut words = [PADDING; 5];
                // The operands' fields: all zero, few registers, anything. LLVM refuses unused fields that aren't
                // zero, so that some fields are left out each time.
                let fields = random.next();
                let some = (0..4).filter(|k| fields >> k & 1 == 1).map(|k| 0xff << (8 * k)).sum::<u32>();
                let kept = [0, 0x0707_0707, u32::MAX, some, some, some][filling % 6];
                let free = [u32::MAX, 0xff, 0xffff, 0x0001_dfff, 0x7fff][filling % 5];
                words[0] = base | code << shift;
                words[0] |= if kept == 0 { 0 } else { random.next() & free & !fixed };
                words[1] = random.next() & kept;
                // No SDWA operand selects part 7, and LLVM crashes on it.
                let seven = |at: u32| u32::from(base & mask & 0x1ff == 0xf9 && words[1] >> at & 7 == 7) << at;
                words[1] &= !(seven(8) | seven(16) | seven(24));
                if mask == SEGMENT && filling % 2 == 0 {
                    // No scalar address.
                    words[1] = words[1] & 0xff80_ffff | 0x7d << 16;
                } else if base == VOP3.0 && filling % 3 == 0 {
                    // A vector register and two others.
                    words[1] = words[1] & !(1 << 17 | 1 << 26) | 1 << 8;
                }
                encodings.push(words);
            }
        }
    }
    encodings
}

/// Formats whose instructions are known by length only.
fn is_graphics(name: &str) -> bool {
    ["image_", "exp", "v_interp", "tbuffer_"].iter().any(|p| name.starts_with(p))
}

/// What the comparison found.
#[derive(Default)]
struct Report {
    agreed: BTreeSet<String>,
    compared: usize,
    /// LLVM knows it, the tables don't; or name or length differ. With an example each.
    wrong: BTreeMap<String, String>,
    /// How many encodings' operands were compared.
    operands: BTreeMap<&'static str, usize>,
    /// The operands differ: examples, and how many.
    different: BTreeMap<String, (Vec<String>, usize)>,
    /// The tables know it, LLVM refuses the operands.
    lenient: BTreeMap<&'static str, usize>,
}

/// Whether LLVM takes a literal, or the lanes of DPP in groups of 8, for the code of an inline constant.
fn misread(words: &[u32; 5], text: &str) -> bool {
    let inline = 128..=248;
    inline.contains(&words[1])
        || text.contains("dpp8") && (inline.contains(&(words[1] >> 8)) || words[1] >> 8 == 255)
}

fn compare(root: &Path, encodings: &[[u32; 5]]) -> Report {
    let mut report = Report::default();
    let theirs = encodings.chunks(5000).flat_map(|chunk| disassemble(root, chunk));
    for (words, theirs) in encodings.iter().zip(theirs) {
        let ours = describe(words).map(|found| (found.name, found.size));
        report.compared += 1;
        let example = |text: &str| {
            format!("{:08x} {:08x} {:08x}: LLVM {text}; tables {ours:?}", words[0], words[1], words[2])
        };
        match (&theirs, ours) {
            (None, None) => {}
            (None, Some((name, _))) => *report.lenient.entry(name).or_default() += 1,
            // LLVM lets a literal be a buffer's offset.
            _ if words[0] >> 26 == 0b11_1000 && words[1] >> 24 == 0xff => {}
            (Some((name, ..)), _) if is_graphics(name) || name == "v_illegal" => {}
            // LLVM prints sources that these can't have: they take vector registers only.
            (Some((name, ..)), None) if name.starts_with("v_swap") || name.starts_with("v_permlane") => {}
            // LLVM doesn't look at the source of these, which would be SDWA or DPP.
            (Some((name, ..)), None) if ["v_nop", "v_pipeflush", "v_clrexcp"].contains(&name.as_str()) => {}
            // LLVM takes gfx9's encoding of these too.
            (Some((name, ..)), None) if name.starts_with("v_fma_mix") && words[0] >> 24 == 0xd3 => {}
            (Some((name, size, text)), Some((own, bytes)))
                if name == own && (*size == bytes || *size == 0) =>
            {
                report.agreed.insert(name.clone());
                if let Some(ours) = operands(words) {
                    // An instruction that is never compared has an entry too.
                    let compared = report.operands.entry(own).or_default();
                    if misread(words, text) || is_special(name, text) {
                        continue;
                    }
                    *compared += 1;
                    if let Some(found) = difference(name, &ours, text) {
                        let (examples, n) = report.different.entry(name.clone()).or_default();
                        *n += 1;
                        if *n < 4 {
                            examples.push(format!("{}: {found}", example(text)));
                        }
                    }
                }
            }
            (Some((name, _, text)), _) => {
                report.wrong.entry(name.clone()).or_insert_with(|| example(text));
            }
        }
    }
    report
}

#[test]
#[ignore = "needs ROOT, a root with LLVM 22"]
fn tables_agree_with_llvm() {
    let root = root();
    let mut random = Random::new(seed());
    let mut encodings = every_opcode(&mut random, 30);
    for _ in 0..20_000 {
        encodings.push([random.next(), random.next(), random.next(), random.next(), PADDING]);
    }
    let report = compare(&root, &encodings);
    println!("{} encodings, {} mnemonics agree", report.compared, report.agreed.len());
    let (special, others): (Vec<_>, Vec<_>) =
        report.operands.iter().partition(|(name, _)| SPECIAL.contains(name));
    let few: Vec<_> = others.into_iter().filter(|(_, n)| **n < 2).collect();
    println!("known to the tables though LLVM refuses the operands: {:?}", report.lenient);
    for (name, example) in &report.wrong {
        println!("{name}: {example}");
    }
    for (name, (examples, n)) in &report.different {
        println!("{name}, {n} times");
        examples.iter().for_each(|e| println!("    {e}"));
    }
    assert!(report.wrong.is_empty(), "{} mnemonics differ", report.wrong.len());
    assert_eq!(special.len(), SPECIAL.len(), "only these are special: {special:?}");
    assert!(few.is_empty(), "operands were hardly compared: {few:?}");
    assert!(report.different.is_empty(), "{} mnemonics have other operands", report.different.len());
}

#[test]
#[ignore = "needs ROOT, a root with LLVM 22"]
fn encodings_are_what_llvm_assembles() {
    let table: Vec<(String, Vec<u32>)> = include_str!("encodings.txt").lines().filter_map(parse).collect();
    let texts: Vec<&str> = table.iter().map(|(text, _)| text.as_str()).collect();
    for ((text, words), theirs) in table.iter().zip(assemble_all(&root(), &texts)) {
        assert_eq!(Some(words), theirs.as_ref(), "{text}");
    }
}
