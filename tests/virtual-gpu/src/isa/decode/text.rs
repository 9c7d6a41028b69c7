//! The operands of a decoded instruction as text. It is made of what decoding found, not of the encoding's bits, so
//! that another disassembler's text shows whether each field was read from the right place.

use super::operand::{CUT_OFF, FLOATS, SDWA};
use super::{Decoder, bits};
use crate::isa::exec::Inst;
use crate::isa::exec::value::F16;
use crate::isa::inst::{Flags, Operand, Select, Source, Ty, Unused};
use crate::isa::state::{EXEC, M0, NULL, VCC};
use crate::isa::{PRIVATE_APERTURE, SHARED_APERTURE};

/// The operands and modifiers of the instruction that starts with `words`, in LLVM's syntax with these differences:
///
/// - a constant is shown by its value, whatever its encoding: as a float if an inline constant has this value
///   (`0.5`), else as an integer;
/// - `op_sel`, `op_sel_hi`, `neg_lo` and `neg_hi` have an element for each source, and VOP3's `op_sel` one
///   more for the destination; `_` stands where an element has no effect;
/// - `lanes:` tells which lane each lane reads by DPP (`_` for none), and `writes:` which lanes DPP lets write;
/// - the immediates of SOPK and SOPP are numbers, as are the bits of `sendmsg`, `hwreg` and counters;
/// - of a memory instruction's cache bits there is only `glc`.
///
/// `None` if the tables don't know the encoding, or the virtual GPU doesn't execute it.
pub fn operands(words: &[u32]) -> Option<Vec<String>> {
    let mut decoder = Decoder::new(0, words);
    decoder.format()?;
    let lacks = decoder.unsupported || decoder.inst.op.flags.contains(Flags::LACKING);
    let (word, inst) = (*words.first()?, decoder.finish());
    let mut text = Text { inst: &inst, list: Vec::new() };
    match word >> 26 {
        _ if lacks => return None,
        0b110110 => text.ds(),
        0b110111 => text.flat(bits(word, 14, 2)),
        0b111000 => text.buffer(),
        0b111101 => text.scalar_memory(),
        0b110011 => text.packed(),
        0b110101 => text.vop3(),
        _ if word >> 31 == 0 => text.vop12c(bits(word, 0, 9) == SDWA),
        _ => text.scalar(word),
    }
    Some(text.list)
}

struct Text<'a> {
    inst: &'a Inst,
    list: Vec<String>,
}

impl Text<'_> {
    fn push(&mut self, text: impl Into<String>) {
        self.list.push(text.into());
    }

    fn flag(&mut self, set: bool, name: &str) {
        if set {
            self.push(name);
        }
    }

    fn offset(&mut self, name: &str, value: i32) {
        if value != 0 {
            self.push(format!("{name}:{value}"));
        }
    }

    fn source(&mut self, k: usize) {
        let (op, source) = (self.inst.op, &self.inst.src[k]);
        let ty = match op.src[k] {
            Ty::None => return,
            // What `op_sel_hi` makes a 16-bit float.
            Ty::Mix if source.packed != Operand::PACKED => Ty::F16,
            ty => ty,
        };
        let text = plain(source, ty);
        // If packed halves have a 32-bit addend, `neg_lo` is its sign.
        let addend = matches!(op.src[0], Ty::PkF16 | Ty::PkB16) && op.src[k] == Ty::F32;
        let float = matches!(ty, Ty::F16 | Ty::F32 | Ty::F64 | Ty::Mix) && !addend;
        // A selection takes floats or integers.
        let modified = float || op.name == "v_cndmask_b32" && ty == Ty::B32;
        self.push(if modified { signed(source, text) } else { extended(source, text) });
    }

    fn vector(&mut self, reg: u16, ty: Ty) {
        if ty != Ty::None {
            self.push(register("v", reg, ty.dwords()));
        }
    }

    /// Destinations, then the sources that the encoding has.
    fn vector_operands(&mut self) {
        let (inst, op) = (self.inst, self.inst.op);
        if op.flags.contains(Flags::SCALAR_DST) {
            self.push(scalar(inst.dst, 1));
        } else {
            self.vector(inst.dst, op.dst);
        }
        if op.flags.contains(Flags::SDST) && !op.flags.contains(Flags::CMPX) {
            self.push(scalar(inst.sdst, 1));
        }
        let count = op.src.iter().filter(|ty| **ty != Ty::None).count();
        let implied = usize::from(op.flags.contains(Flags::ACCUMULATE));
        (0..count - implied).for_each(|k| self.source(k));
        if implied == 1 && inst.src[count - 1].reg != inst.dst {
            self.push("an addend that isn't the destination");
        }
    }

    fn output_modifiers(&mut self) {
        self.flag(self.inst.clamp, "clamp");
        let omod = self.inst.omod as usize & 3;
        self.flag(omod != 0, ["", "mul:2", "mul:4", "div:2"][omod]);
    }

    fn vop12c(&mut self, sdwa: bool) {
        let (inst, op) = (self.inst, self.inst.op);
        self.vector_operands();
        if let Some(dpp) = &inst.dpp {
            let from = dpp.from.map(|l| if l < 32 { l.to_string() } else { "_".into() });
            self.push(format!("lanes:[{}]", from.join(",")));
            self.push(format!("writes:{:#010x}", dpp.enabled));
            self.flag(dpp.bound_ctrl, "bound_ctrl");
            self.flag(dpp.fetch_inactive, "fi");
            self.flag(dpp.reg != inst.src[0].reg, "another register");
        }
        if sdwa {
            self.output_modifiers();
            if op.dst != Ty::None {
                let unused = match inst.dst_unused {
                    Unused::Zero => "PAD",
                    Unused::SignExtend => "SEXT",
                    Unused::Preserve => "PRESERVE",
                };
                self.push(format!("dst_sel:{}", selection(inst.dst_select)));
                self.push(format!("dst_unused:UNUSED_{unused}"));
            }
            for k in 0..2 {
                if op.src[k] != Ty::None {
                    self.push(format!("src{k}_sel:{}", selection(inst.src[k].select)));
                }
            }
        }
    }

    fn vop3(&mut self) {
        let (inst, op) = (self.inst, self.inst.op);
        self.vector_operands();
        self.output_modifiers();
        let upper = |half: bool, select: Select| match (half, select) {
            (false, _) => "_",
            (_, Select::Word(1)) => "1",
            _ => "0",
        };
        let mut halves: Vec<&str> = (0..3).map(|k| upper(op.src[k].is_half(), inst.src[k].select)).collect();
        halves.push(upper(op.dst.is_half(), inst.dst_select));
        if op.name.starts_with("v_permlane") {
            (halves[0], halves[1]) =
                (["0", "1"][inst.op_sel as usize & 1], ["0", "1"][inst.op_sel as usize >> 1 & 1]);
        }
        self.push(format!("op_sel:[{}]", halves.join(",")));
    }

    fn packed(&mut self) {
        let (inst, op) = (self.inst, self.inst.op);
        self.vector_operands();
        self.flag(inst.clamp, "clamp");
        // The bits of an operand's `packed`; a mixed operand has the first two, in another form.
        for (bit, name) in ["op_sel", "op_sel_hi", "neg_lo", "neg_hi"].into_iter().enumerate() {
            let element = |k: usize| {
                let source = &inst.src[k];
                let set = match op.src[k] {
                    Ty::PkB16 | Ty::PkF16 => source.packed >> bit & 1 != 0,
                    Ty::Mix if bit == 1 => source.packed != Operand::PACKED,
                    Ty::Mix if bit == 0 && source.packed != Operand::PACKED => source.packed & 1 != 0,
                    Ty::F32 if bit == 2 => source.neg,
                    _ => return "_",
                };
                if set { "1" } else { "0" }
            };
            self.push(format!("{name}:[{}]", [0, 1, 2].map(element).join(",")));
        }
    }

    fn ds(&mut self) {
        let (inst, op) = (self.inst, self.inst.op);
        self.vector(inst.dst, op.dst);
        (0..3).for_each(|k| self.source(k));
        if op.flags.contains(Flags::TWO_OFFSETS) {
            self.offset("offset0", inst.imm);
            self.offset("offset1", inst.imm1);
        } else {
            self.offset("offset", inst.imm);
        }
    }

    fn flat(&mut self, segment: u32) {
        let (inst, op) = (self.inst, self.inst.op);
        if !op.flags.contains(Flags::ATOMIC) || inst.glc {
            self.vector(inst.dst, op.dst);
        }
        let base = &inst.src[2];
        match inst.src[0].source {
            Source::Vgpr => {
                let wide = segment != 1 && base.source == Source::None;
                self.vector(inst.src[0].reg, if wide { Ty::B64 } else { Ty::B32 });
            }
            _ if op.flags.contains(Flags::NO_ADDRESS) => {}
            _ => self.push("off"),
        }
        self.source(1);
        if segment != 0 {
            let none = base.source == Source::None || base.reg == NULL;
            let width = if segment == 1 { 1 } else { 2 };
            self.push(if none { "off".into() } else { scalar(base.reg, width) });
        }
        self.offset("offset", inst.imm);
        self.flag(inst.glc, "glc");
    }

    fn buffer(&mut self) {
        let (inst, op) = (self.inst, self.inst.op);
        if op.flags.contains(Flags::NO_ADDRESS) {
            return;
        }
        if op.src[1] != Ty::None {
            self.source(1);
        } else if !inst.to_lds {
            self.vector(inst.dst, op.dst);
        }
        self.flag(
            op.flags.contains(Flags::ATOMIC) && inst.glc && inst.dst != inst.src[1].reg,
            "a destination that isn't the data",
        );
        match u16::from(inst.idxen) + u16::from(inst.offen) {
            0 => self.push("off"),
            n => self.push(register("v", inst.src[0].reg, n)),
        }
        self.push(scalar(inst.src[2].reg, 4));
        self.push(plain(&inst.soffset, Ty::B32));
        self.flag(inst.idxen, "idxen");
        self.flag(inst.offen, "offen");
        self.offset("offset", inst.imm);
        self.flag(inst.glc, "glc");
        self.flag(inst.to_lds, "lds");
    }

    fn scalar_memory(&mut self) {
        let (inst, op) = (self.inst, self.inst.op);
        if op.dst != Ty::None {
            self.push(scalar(inst.dst, op.dst.dwords()));
        }
        if op.src[0] != Ty::None {
            self.push(scalar(inst.src[0].reg, op.src[0].dwords()));
            if inst.src[1].source == Source::Sgpr {
                self.push(scalar(inst.src[1].reg, 1));
                self.offset("offset", inst.imm);
            } else {
                self.push(inst.imm.to_string());
            }
        }
    }

    fn scalar(&mut self, word: u32) {
        let (inst, op) = (self.inst, self.inst.op);
        let sopp = word >> 23 == 0b1_0111_1111;
        let sopk = word >> 28 == 0b1011 && word >> 23 & 31 < 29;
        if op.dst != Ty::None {
            self.push(scalar(inst.dst, op.dst.dwords()));
        }
        if sopp {
            self.push(inst.imm.to_string());
        } else if sopk {
            // The immediate is the second source, and the first one is the old destination or what is compared.
            let written = op.name.starts_with("s_setreg");
            if op.dst == Ty::None && !written {
                self.source(0);
            }
            self.flag(op.dst != Ty::None && inst.src[0].reg != inst.dst, "another register");
            self.push(inst.src[1].value.to_string());
            if written {
                self.source(0);
            }
        } else {
            let implied = op.flags.contains(Flags::ACCUMULATE);
            let count = op.src.iter().filter(|ty| **ty != Ty::None).count() - usize::from(implied);
            (0..count).for_each(|k| self.source(k));
            self.flag(implied && inst.src[count].reg != inst.dst, "another register");
        }
    }
}

/// One register, or some that follow each other.
fn register(prefix: &str, first: u16, count: u16) -> String {
    if count < 2 { format!("{prefix}{first}") } else { format!("{prefix}[{first}:{}]", first + count - 1) }
}

fn scalar(reg: u16, count: u16) -> String {
    const TRAPS: u16 = 108;
    match reg {
        NULL => "null".into(),
        M0 => "m0".into(),
        VCC | EXEC => {
            let name = if reg == VCC { "vcc" } else { "exec" };
            format!("{name}{}", if count < 2 { "_lo" } else { "" })
        }
        _ if reg == VCC + 1 => "vcc_hi".into(),
        _ if reg == EXEC + 1 => "exec_hi".into(),
        TRAPS.. => register("ttmp", reg - TRAPS, count),
        _ => register("s", reg, count),
    }
}

/// An operand without modifiers.
fn plain(source: &Operand, ty: Ty) -> String {
    match source.source {
        Source::None => "none".into(),
        Source::Vgpr | Source::Permuted => register("v", source.reg, ty.dwords()),
        Source::Sgpr => scalar(source.reg, ty.dwords()),
        Source::Vccz => "src_vccz".into(),
        Source::Execz => "src_execz".into(),
        Source::Scc => "src_scc".into(),
        Source::Constant => constant(source.value, ty),
    }
}

/// A float with its modifiers.
fn signed(source: &Operand, text: String) -> String {
    let constant = source.source == Source::Constant && !text.starts_with("src_");
    match (source.neg, source.abs) {
        (false, false) => text,
        (false, true) => format!("|{text}|"),
        (true, true) => format!("-|{text}|"),
        (true, false) if constant => format!("neg({text})"),
        (true, false) => format!("-{text}"),
    }
}

/// An integer with SDWA's modifier.
fn extended(source: &Operand, text: String) -> String {
    if source.sext { format!("sext({text})") } else { text }
}

fn constant(value: u64, ty: Ty) -> String {
    let apertures = [("shared", SHARED_APERTURE), ("private", PRIVATE_APERTURE)];
    for (name, high) in apertures {
        for (end, low) in [("base", 0), ("limit", u32::MAX)] {
            if value == u64::from(high) << 32 | u64::from(low) {
                return format!("src_{name}_{end}");
            }
        }
    }
    let number = if ty.dwords() == 2 { value as i64 } else { (value as u32 as i32).into() };
    if (-16..=64).contains(&number) {
        return number.to_string();
    }
    let bits = |x: f64| match ty {
        Ty::B64 | Ty::I64 | Ty::F64 => x.to_bits(),
        Ty::F16 | Ty::PkF16 => F16::of(x as f32).0.into(),
        _ => (x as f32).to_bits().into(),
    };
    if let Some(x) = FLOATS.iter().take(8).find(|x| bits(**x) == value) {
        return format!("{x:?}");
    }
    if value == bits(FLOATS[8]) || ty.dwords() == 2 && value == CUT_OFF {
        return "1/(2*pi)".into();
    }
    format!("{:#x}", if ty == Ty::F64 { value >> 32 } else { value & u64::from(u32::MAX) })
}

fn selection(select: Select) -> String {
    match select {
        Select::Byte(n) => format!("BYTE_{n}"),
        Select::Word(n) => format!("WORD_{n}"),
        Select::Dword => "DWORD".into(),
    }
}
