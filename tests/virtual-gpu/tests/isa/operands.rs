//! Compares the operands that the tables found with LLVM's text of an instruction.

use std::collections::BTreeMap;

/// Operands in their order, and modifiers: a name, and what follows its colon.
#[derive(Debug, Default)]
struct Parts {
    operands: Vec<String>,
    modifiers: BTreeMap<String, String>,
}

/// Modifiers without a value.
const FLAGS: [&str; 13] = [
    "clamp",
    "glc",
    "slc",
    "dlc",
    "lds",
    "gds",
    "tfe",
    "offen",
    "idxen",
    "fi",
    "bound_ctrl",
    "row_mirror",
    "row_half_mirror",
];

impl Parts {
    fn new<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        let mut parts = Self::default();
        for word in words {
            match word.split_once(':') {
                Some((name, value)) if !name.contains(['[', '(', '|', '-']) => {
                    // `mul:2` and `div:2` exclude each other.
                    parts.modifiers.insert(name.to_owned(), value.to_owned());
                }
                _ if FLAGS.contains(&word) => _ = parts.modifiers.insert(word.to_owned(), "1".into()),
                _ => parts.operands.push(word.to_owned()),
            }
        }
        parts
    }
}

/// Splits at spaces and commas outside brackets.
fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut words, mut start) = (0, Vec::new(), 0);
    for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth -= 1,
            ' ' | ',' if depth == 0 => {
                words.extend((at > start).then(|| &text[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    words
}

fn number(text: &str) -> Option<i64> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()? as i64,
        None => digits.parse::<i64>().ok()?,
    };
    Some(sign * value)
}

/// The elements of `[a,b]`, or of nothing.
fn elements(text: Option<&String>) -> Vec<String> {
    let inner = text.map_or("", |t| t.trim_matches(['[', ']']));
    inner.split(',').map(|e| e.trim().to_owned()).filter(|e| !e.is_empty()).collect()
}

/// The lane that each lane reads, and those that write, by LLVM's modifiers of DPP.
fn dpp(modifiers: &mut BTreeMap<String, String>) -> Option<(Vec<String>, u32)> {
    let mut take = |name: &str| modifiers.remove(name);
    let (rows, banks) = (take("row_mask"), take("bank_mask"));
    let mask = |text: Option<String>| text.and_then(|t| number(&t)).unwrap_or(15);
    let (rows, banks) = (mask(rows), mask(banks));
    let controls = [
        "quad_perm",
        "row_shl",
        "row_shr",
        "row_ror",
        "row_mirror",
        "row_half_mirror",
        "row_share",
        "row_xmask",
        "dpp8",
    ];
    let (name, value) = controls.into_iter().find_map(|name| Some((name, take(name)?)))?;
    let list: Vec<usize> = elements(Some(&value)).iter().map(|e| e.parse().expect("a number")).collect();
    let n = list[0];
    let from = |l: usize| {
        let (row, at) = (l / 16 * 16, l % 16);
        let to = match name {
            "quad_perm" => return Some(l / 4 * 4 + list[l % 4]),
            "dpp8" => return Some(l / 8 * 8 + list[l % 8]),
            "row_shl" => at + n,
            "row_shr" => at.wrapping_sub(n),
            "row_ror" => (at + 16 - n) % 16,
            "row_mirror" => 15 - at,
            "row_half_mirror" => at / 8 * 8 + 7 - at % 8,
            "row_share" => n,
            _ => at ^ n,
        };
        (to < 16).then(|| row + to)
    };
    let lanes = (0..32).map(|l| from(l).map_or("_".into(), |l| l.to_string())).collect();
    let writes = (0..32u32).filter(|l| rows >> (l / 16) & 1 == 1 && banks >> (l / 4 % 4) & 1 == 1);
    Some((lanes, writes.map(|l| 1 << l).sum()))
}

/// The bits of `hwreg(name, offset, size)`.
fn hardware_register(text: &str) -> Option<i64> {
    const NAMES: [(&str, i64); 18] = [
        ("HW_REG_MODE", 1),
        ("HW_REG_STATUS", 2),
        ("HW_REG_TRAPSTS", 3),
        ("HW_REG_GPR_ALLOC", 5),
        ("HW_REG_LDS_ALLOC", 6),
        ("HW_REG_IB_STS", 7),
        ("HW_REG_SH_MEM_BASES", 15),
        ("HW_REG_TBA_LO", 16),
        ("HW_REG_TBA_HI", 17),
        ("HW_REG_TMA_LO", 18),
        ("HW_REG_TMA_HI", 19),
        ("HW_REG_FLAT_SCR_LO", 20),
        ("HW_REG_FLAT_SCR_HI", 21),
        ("HW_REG_XNACK_MASK", 22),
        ("HW_REG_HW_ID1", 23),
        ("HW_REG_HW_ID2", 24),
        ("HW_REG_POPS_PACKER", 25),
        ("HW_REG_SHADER_CYCLES", 29),
    ];
    let inner = text.strip_prefix("hwreg(")?.strip_suffix(')')?;
    let mut fields = inner.split(',').map(str::trim);
    let name = fields.next()?;
    let id = NAMES.iter().find(|(known, _)| *known == name).map(|(_, id)| *id).or(number(name))?;
    let mut field = |default| fields.next().map_or(Some(default), number);
    let (offset, size) = (field(0)?, field(32)?);
    Some(id | offset << 6 | (size - 1) << 11)
}

/// An operand in one spelling.
fn spelled(text: &str) -> String {
    if let Some(bits) = hardware_register(text) {
        return bits.to_string();
    }
    // A literal whose value has an inline constant.
    if let Some((before, after)) = text.split_once("lit(") {
        return spelled(&format!("{before}{}", after.replacen(')', "", 1)));
    }
    if let Some((before, after)) = text.split_once("0.1591549") {
        let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
        return format!("{before}1/(2*pi){rest}");
    }
    // Scalar registers go together at even numbers, or multiples of 4. LLVM ignores the lower bits.
    for prefix in ["s[", "ttmp["] {
        if let Some((before, after)) = text.split_once(prefix)
            && !before.contains(|c: char| c.is_ascii_alphabetic())
            && let Some((first, rest)) = after.split_once(':')
            && let Some((last, rest)) = rest.split_once(']')
            && let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>())
        {
            let odd = first & if last - first > 2 { 3 } else { 1 };
            return format!("{before}{prefix}{}:{}]{rest}", first - odd, last - odd);
        }
    }
    number(text).map_or_else(|| text.to_owned(), |n| n.to_string())
}

/// Whether two spelled operands of the instruction `name` are the same.
fn same(name: &str, own: &str, other: &str) -> bool {
    if own == other {
        return true;
    }
    // The same modifiers around something.
    for (open, close) in [("-|", "|"), ("|", "|"), ("neg(", ")"), ("sext(", ")")] {
        let inner = |text: &str| Some(spelled(text.strip_prefix(open)?.strip_suffix(close)?));
        if let (Some(own), Some(other)) = (inner(own), inner(other)) {
            return same(name, &own, &other);
        }
    }
    let half = name.ends_with("16");
    let Some(b) = number(other) else { return false };
    match number(own) {
        // LLVM shows the low half of some immediates and literals, or all of it.
        Some(a) => (half || name.starts_with("s_")) && a as u16 == b as u16 && b >> 16 == 0,
        // An inline float is an f32 to 16-bit integers (LLVM's `isInlinableLiteralI16`), but LLVM shows an f16.
        None => {
            let x = if own == "1/(2*pi)" { Some(0.159_154_94) } else { own.parse::<f32>().ok() };
            half && !name.ends_with("f16")
                && x.is_some_and(|x| i64::from(half::f16::from_f32(x).to_bits()) == b)
        }
    }
}

/// Instructions whose operands are never compared: the tables know them as a number only.
pub(crate) const SPECIAL: [&str; 11] = [
    "s_version",
    "s_atc_probe",
    "s_atc_probe_buffer",
    "s_sendmsg",
    "s_waitcnt",
    "s_waitcnt_depctr",
    "s_waitcnt_expcnt",
    "s_waitcnt_lgkmcnt",
    "s_waitcnt_vmcnt",
    "s_waitcnt_vscnt",
    "s_ttracedata_imm",
];

/// Whether LLVM's text of the instruction `name` has an operand that the tables know as a number only.
pub(crate) fn is_special(name: &str, text: &str) -> bool {
    let theirs = Parts::new(split(text).into_iter().skip(1));
    let first = theirs.operands.first().map_or("", String::as_str);
    let scalar = ["s", "vcc", "ttmp", "exec", "m0", "null"].iter().any(|p| first.starts_with(p));
    SPECIAL.contains(&name)
        // The field of a scalar destination has eight bits, but there are only 128 scalar registers.
        || ["v_cmp_", "v_read"].iter().any(|n| name.starts_with(n)) && (!scalar || first.starts_with("src_"))
        || theirs.modifiers.get("offset").is_some_and(|o| o.starts_with("swizzle("))
}

/// What differs between the tables' operands of the instruction `name` and LLVM's text, which must not be special.
pub(crate) fn difference(name: &str, ours: &[String], text: &str) -> Option<String> {
    let words = split(text);
    let mut theirs = Parts::new(words.iter().skip(1).copied());
    let mut ours = Parts::new(ours.iter().map(String::as_str));
    // The hardware has 11 bits for the offset of a FLAT instruction, of which LLVM shows 12.
    if name.starts_with("flat_")
        && let Some(offset) = theirs.modifiers.get_mut("offset")
        && let Some(bits) = number(offset)
    {
        *offset = (bits & 0x7ff).to_string();
    }
    if theirs.modifiers.get("offset").is_some_and(|offset| offset == "0") {
        theirs.modifiers.remove("offset");
    }
    ["slc", "dlc"].iter().for_each(|bit| _ = theirs.modifiers.remove(*bit));
    if name.starts_with("s_") {
        theirs.modifiers.remove("glc");
    }
    if theirs.modifiers.contains_key("dpp8") {
        // Inactive lanes give 0.
        theirs.modifiers.insert("bound_ctrl".into(), "1".into());
    }
    if let Some((lanes, writes)) = dpp(&mut theirs.modifiers) {
        theirs.modifiers.insert("lanes".into(), format!("[{}]", lanes.join(",")));
        theirs.modifiers.insert("writes".into(), format!("{writes:#010x}"));
    }
    let mixed = name.starts_with("v_fma_mix");
    let ones = if mixed { "0" } else { "1" };
    for (key, default) in [("op_sel", "0"), ("op_sel_hi", ones), ("neg_lo", "0"), ("neg_hi", "0")] {
        let (own, other) = (ours.modifiers.remove(key), theirs.modifiers.remove(key));
        // LLVM ignores `op_sel` of what has another encoding than VOP3.
        if other.is_none() && key == "op_sel" && text.contains("_e64") {
            continue;
        }
        let (own, mut other) = (elements(own.as_ref()), elements(other.as_ref()));
        // VOP3's last element is the destination.
        if own.len() == 4 && other.len() > 2 {
            let last = other.pop().unwrap_or_default();
            other.resize(3, default.into());
            other.push(last);
        }
        other.resize(own.len().max(other.len()), default.into());
        for (k, element) in other.iter().enumerate() {
            let mine = own.get(k).map_or("_", String::as_str);
            if mine != "_" && mine != element {
                return Some(format!("{key} {own:?}, not {other:?}"));
            }
        }
    }
    for parts in [&mut ours, &mut theirs] {
        parts.modifiers.values_mut().for_each(|value| *value = spelled(value));
    }
    if ours.modifiers != theirs.modifiers {
        return Some(format!("modifiers {:?}, not {:?}", ours.modifiers, theirs.modifiers));
    }
    let (own, other) = (spell(&ours), spell(&theirs));
    // SOPP without an operand has the bits of one.
    let none = other.is_empty() && name.starts_with("s_") && own.len() == 1;
    let alike = own.len() == other.len() && own.iter().zip(&other).all(|(a, b)| same(name, a, b));
    (!none && !alike).then(|| format!("{own:?}, not {other:?}"))
}

fn spell(parts: &Parts) -> Vec<String> {
    parts.operands.iter().map(|o| spelled(o)).collect()
}
