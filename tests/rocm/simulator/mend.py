"""Mends what was found wrong in AMD's simulator rocjitsu, makes it faster (faster.py), and trims it to some
architectures.

    mend.py SOURCE ARCHITECTURE...      SOURCE is a copy of emulation/rocjitsu, which is changed in place;
                                        an ARCHITECTURE is a name of its instruction sets, for instance cdna3

Each mend names the program beside this file that shows the fault. The mends are for ROCm's rocm-systems at commit
96b8d0f254623442c4ffcb0eca6d6b6af2d313fb, of 10 July 2026. In another version some files or texts may be missing; each
is reported on stderr. That version may be mended already, or may still have the fault.

Exit status: 0 if every mend was made, 3 if something was missing.
"""

import collections
import pathlib
import re
import sys

sys.dont_write_bytecode = True
import faster  # noqa: E402

ALL = ["cdna1", "cdna2", "cdna3", "cdna4", "rdna1", "rdna2", "rdna3", "rdna3_5", "rdna4", "gfx1250"]
ISA = "lib/rocjitsu/src/rocjitsu/isa/"
SHARED = ISA + "arch/amdgpu/shared/"

source = pathlib.Path(sys.argv[1])
wanted = sys.argv[2:]
if not wanted or not set(wanted) <= set(ALL):
    sys.exit(f"usage: mend.py SOURCE ARCHITECTURE..., of: {' '.join(ALL)}")


# How often the file that is being edited has each text or pattern of the mend.
hits = collections.Counter()
is_whole = True


def missing(what):
    global is_whole
    is_whole = False
    print(f"mend.py: {what}", file=sys.stderr)


def edit(path, change):
    """Replaces the file's text by change(text). Reports each text and pattern of the mend that the file lacks."""
    file = source / path
    if not file.is_file():
        missing(f"there is no file {path}")
        return
    hits.clear()
    old = file.read_text()
    new = change(old)
    file.write_text(new)
    lacks = [what for what, count in hits.items() if count == 0]
    for what in lacks:
        missing(f"{path} has no {' '.join(what.split())[:90]}")
    if new == old and not lacks:
        missing(f"nothing to change in {path}")


def put(text, old, new, count=-1):
    """text.replace(old, new, count)"""
    hits[old] += text.count(old)
    return text.replace(old, new, count)


def sub(pattern, new, text, count=0):
    """re.sub(pattern, new, text, count)"""
    text, found = re.subn(pattern, new, text, count=count)
    hits[pattern] += found
    return text


def parted(text, at):
    """text.partition(at)"""
    hits[at] += at in text
    return text.partition(at)


def replace(path, old, new):
    edit(path, lambda text: put(text, old, new))


def replace_all(edits):
    """Makes the edits, each a path, an old text and a new one, if the source has all old texts. Otherwise, reports
    those that it lacks and makes none."""
    texts = {}
    is_complete = True
    for path, old, new in edits:
        file = source / path
        if path not in texts:
            texts[path] = file.read_text() if file.is_file() else ""
        if old not in texts[path]:
            missing(f"{path} has no {' '.join(old.split())[:90]}")
            is_complete = False
        texts[path] = texts[path].replace(old, new)
    if is_complete:
        for path, text in texts.items():
            (source / path).write_text(text)


# An instruction set that is left out is neither compiled nor linked: it takes minutes. The library is linked with lazy
# binding, so that only a call into what is missing fails.
for arch in set(ALL) - set(wanted):
    replace("CMakeLists.txt", f"        rocjitsu_isa_{arch}\n", "")
    replace(ISA + "CMakeLists.txt", f"add_subdirectory(arch/amdgpu/{arch})\n", "")
# A newer compiler than the authors' warns of more.
replace("cmake/rj_add_object_library.cmake", " -Werror", "")


# packed_f32.c: v_pk_fma_f32, v_pk_mul_f32 and v_pk_add_f32 took the low word of a pair of SGPRs for both halves. Source
# codes up to 106 are SGPRs. gfx1250 alone repeats the low word.
def packed_pair(text):
    vector = r"inst\.src(\d)\.encoding_value_ >= 256 && inst\.src\1\.encoding_value_ <= 511"
    return sub(vector, r"(\g<0>) || inst.src\1.encoding_value_ < 107", text)


edit(SHARED + "execute_shared.h", packed_pair)
SPLAT = "const util::native<float> b = util::broadcast<float>(op.read_scalar(wf));"
PAIR = """if (op.encoding_value_ < 107) {
    const uint64_t both = op.read_lane64(wf, lane_base);
    return {util::broadcast<float>(static_cast<uint32_t>(both)),
            util::broadcast<float>(static_cast<uint32_t>(both >> 32))};
  }
  """
edit(SHARED + "simd_glue.h", lambda text: put(text, SPLAT, PAIR + SPLAT, 1))

# packed_f32.c: v_pk_mov_b32 chose its high word by op_sel_hi; bit 1 of op_sel counts.
replace(SHARED + "execute_shared.h", "hi = (inst.inst_.op_sel_hi & 2) ?", "hi = (inst.inst_.op_sel & 2) ?")


def move_at_once(text):
    head, name, tail = parted(text, "inline bool try_execute_vop3p_mov_b32_simd")
    plain = "inst.inst_.op_sel != 0u || inst.inst_.op_sel_hi != 3u"
    return head + name + put(tail, plain, "inst.inst_.op_sel != 2u", 1)


edit(SHARED + "simd_glue.h", move_at_once)


# raw_buffer.c: the range check of raw buffers left out the offset in an SGPR (AMD's Vega ISA, 8.1.5).
def raw_range(text):
    head, name, tail = parted(text, "mtbuf_calculate_addresses(const MtbufInst")
    check = "oob = offset_part >= num_records;"
    return put(head, check, "oob = uint64_t{offset_part} + soffset_val >= num_records;") + name + tail


edit(SHARED + "addr_calc_buffer.h", raw_range)


# sdwa.c: sub-dword operands (SDWA) lost |x| and -x of f16, whose sign is bit 15 and not bit 31; of every whole dword;
# and took a VGPR for an SGPR.
def sub_dword(text):
    parts = re.split(r"(?m)^(?=void \w+::execute_impl)", text)
    return parts[0] + "".join(map(sub_dword_function, parts[1:]))


def sub_dword_function(text):
    # The name ends with the type of the sources: VCvtF32F16Vop1 reads f16.
    types = re.findall(r"[FIUB](?:16|32|64)", text[: text.index("::")])
    sign = "0x8000u" if types[-1:] == ["F16"] else "0x80000000u"
    for n, operand in (0, "src0"), (1, "vsrc1"):
        if f"{operand}.set_delegate" not in text:
            continue
        whole = f"sdwa_src{n}_sel_ != amdgpu::sdwa::DWORD"
        changed = f"{whole} || sdwa_src{n}_abs_ || sdwa_src{n}_neg_"
        text = sub(rf"{whole}( &&|\))", lambda at: f"({changed}) &&" if at[1] == " &&" else f"{changed})", text)
        text = put(
            text,
            f"sdwa_src_select(cu.read_vgpr(vb, i), sdwa_src{n}_sel_",
            f"sdwa_src_select({operand}.read_lane(wf, i), sdwa_src{n}_sel_",
        )
    text = sub(r"float sv = std::bit_cast<float>\((result1?\[i\])\);", r"uint32_t sv = \1;", text)
    text = put(put(text, "sv = std::fabs(sv);", f"sv &= ~{sign};"), "sv = -sv;", f"sv ^= {sign};")
    return sub(r"(result1?\[i\]) = std::bit_cast<uint32_t>\(sv\);", r"\1 = sv;", text)


for arch in {"cdna1", "cdna2", "cdna3", "cdna4", "rdna1", "rdna2"} & set(wanted):
    for encoding in "vop1", "vop2", "vopc":
        edit(f"{ISA}arch/amdgpu/{arch}/{encoding}.cpp", sub_dword)


# constant_f16.c: the code for a wave at once took an inline constant of an f16 operand (1.0, -4.0) for that of f32,
# whose low half is 0.
def constant_by_size(text):
    head, name, tail = parted(text, "uint32_t Operand::read_scalar(")
    whole = "return resolve_src_scalar(wf, encoding_value_);"
    sized = "return size_bits_ == 16 ? resolve_src_scalar16(wf, encoding_value_)\n"
    sized += "                          : resolve_src_scalar(wf, encoding_value_);"
    return head + name + put(tail, whole, sized, 1)


for arch in wanted:
    edit(f"{ISA}arch/amdgpu/{arch}/operand.cpp", constant_by_size)
replace(
    ISA + "isa_operand_simd_inl.h",
    "Isa::simd_broadcast_value(wf, this->opr_type_, this->encoding_value_)",
    "this->read_scalar(wf)",
)

# scalar_condition.c: instructions that count or reverse bits of a scalar, or round one, leave the condition code (SCC)
# as it is.
UNCONDITIONAL = r"s_(?:brev|clz|cls|ctz|flbit|ff0|ff1|ceil|floor|trunc|rndne)_\w+_sop1"


def keep_condition(text):
    function = rf"(?ms)^inline void execute_{UNCONDITIONAL}\(.*?^\}}"
    return sub(function, lambda found: sub(r"  wf\.write_scc\([^;]*;\n", "", found[0]), text)


edit(SHARED + "execute_shared.h", keep_condition)


# trig_preop.c, conversions.c, division.c, division_f64.c: what their mends call.
DIGITS = 1201
HELPERS = """template <typename Inst>
inline void execute_v_trig_preop_f64_vop3(Inst &inst, Wavefront &wf) {
  static constexpr uint64_t words[] = {WORDS};
  for (uint32_t lane = 0; lane < wf.wf_size(); ++lane) {
    if (!(wf.exec() & (1ULL << lane)))
      continue;
    const uint32_t exponent = static_cast<uint32_t>(inst.src0.read_lane64(wf, lane) >> 52) & 0x7ffu;
    uint32_t first = (static_cast<uint32_t>(inst.src1.read_lane(wf, lane)) & 31u) * 53u;
    if (exponent > 1077)
      first += exponent - 1077;
    uint64_t digits = 0;
    for (uint32_t i = first; i < first + 53; ++i)
      digits = 2 * digits + (i < DIGITS ? words[i / 64] >> (63 - i % 64) & 1u : 0u);
    const int scale = -53 - static_cast<int>(first) + (exponent >= 1968 ? 128 : 0);
    const double result = std::ldexp(static_cast<double>(digits), scale);
    inst.vdst.write_lane64(wf, lane, std::bit_cast<uint64_t>(result));
  }
}

template <typename Bits, typename Encoding>
inline Bits with_sign(Bits bits, Bits sign, const Encoding &encoding, uint32_t source) {
  if (encoding.abs & (1u << source))
    bits &= ~sign;
  if (encoding.neg & (1u << source))
    bits ^= sign;
  return bits;
}

template <typename F> inline F fixed_quotient(F quotient, F denominator, F numerator) {
  if (std::isnan(quotient))
    quotient = std::fabs(numerator) < std::fabs(denominator) ? F(0) : std::numeric_limits<F>::infinity();
  quotient = std::fabs(quotient);
  return std::signbit(numerator) != std::signbit(denominator) ? -quotient : quotient;
}

"""


def digits_of_two_by_pi():
    """The binary digits of 2/pi after the point, in words of 64 bits. pi is by Machin's formula."""
    one = 1 << DIGITS + 64

    def inverse_tangent_of_inverse(n):
        total, power, k = 0, one // n, 1
        while power:
            total += power // k if k % 4 == 1 else -(power // k)
            power //= n * n
            k += 2
        return total

    pi = 16 * inverse_tangent_of_inverse(5) - 4 * inverse_tangent_of_inverse(239)
    words = -(-DIGITS // 64)
    digits = (2 * one << DIGITS) // pi << 64 * words - DIGITS
    return ", ".join(f"{digits >> 64 * i & 2**64 - 1:#x}u" for i in reversed(range(words)))


HELPERS = HELPERS.replace("WORDS", digits_of_two_by_pi()).replace("DIGITS", str(DIGITS))
edit(
    SHARED + "execute_shared.h",
    lambda text: put(text, "template <typename Inst>\n", HELPERS + "template <typename Inst>\n", 1),
)

# trig_preop.c: v_trig_preop_f64 was missing.
for arch in wanted:
    replace(
        f"{ISA}arch/amdgpu/{arch}/vop3.cpp",
        "void VTrigPreopF64Vop3::execute_impl(amdgpu::Wavefront &wf) {\n  (void)wf;\n"
        "  throw util::UnimplementedInst(mnemonic());\n",
        "void VTrigPreopF64Vop3::execute_impl(amdgpu::Wavefront &wf) {\n"
        "  amdgpu::execute_v_trig_preop_f64_vop3(*this, wf);\n",
    )

# conversions.c: the long form (VOP3) of conversions left out |x| and -x. With them, each lane is computed alone. The
# conversions of gfx950 that scale (v_cvt_scalef32_*) still leave them out.
AS_FLOAT = r"((?:bit_cast<(?:float|double)>|b?f16_to_f32)\(\s*(?:static_cast<uint\d\d_t>\(\s*)?)"
READ = r"(((?:inst\.)?)src(\d)\.read_lane(64)?\(wf, lane\)"
READ += r"|::rocjitsu::amdgpu::read_vop3_true16_src\(((?:inst\.)?)src(\d), wf, lane, (?:inst_\.)?op_?sel, \d\))"


def signed_conversion(text, at_once):
    def signed(found):
        prefix, read, wide = found[1], found[2], found[5]
        bits = "uint64_t" if wide else "uint32_t"
        sign = 63 if wide else 15 if prefix.lstrip("b").startswith("f16") else 31
        source = found[4] or found[7]
        inst = found[3] or found[6] or ""
        changed = f"::rocjitsu::amdgpu::with_sign<{bits}>({read}, {bits}{{1}} << {sign}, {inst}inst_, {source})"
        return prefix + changed

    changed = sub(AS_FLOAT + READ, signed, text)
    if changed == text or not at_once:
        return changed
    plain = r"\1if (inst.inst_.abs == 0 && inst.inst_.neg == 0)\n    \2"
    return sub(r"( *)(ROCJITSU_TRY_SIMD_)", plain, changed)


def conversions(function, at_once):
    return lambda text: sub(
        rf"(?ms)^(?:inline )?void {function}\(.*?^\}}", lambda found: signed_conversion(found[0], at_once), text
    )


edit(SHARED + "execute_shared.h", conversions(r"execute_v_cvt_\w+_vop3", True))
for arch in wanted:
    # CDNA's own conversions are computed lane by lane, and RDNA 1 and 2 have only the shared ones.
    if arch not in ("rdna1", "rdna2"):
        function = r"VCvt(?!Scale)\w+Vop3::execute_impl"
        edit(f"{ISA}arch/amdgpu/{arch}/vop3.cpp", conversions(function, arch.startswith("rdna")))

# division.c, division_f64.c: v_div_scale scaled by wrong conditions, and v_div_fmas scaled back by half the exponent. A
# wave of which no lane is scaled is still computed at once.
BOTH_SUBNORMAL = r"""(std::fpclassify\(s2 / s1\) == FP_SUBNORMAL\) \{
        set_vcc = true;
        if \(s0 == s1\)
          result = std::ldexp\(s0, )(64|128)"""


def division(text):
    text = put(text, "std::fpclassify(1.0 / static_cast<double>(s1))", "std::fpclassify(1.0f / s1)")
    text = sub(BOTH_SUBNORMAL, r"\1-\2", text)
    text = put(put(text, "exp2 <= -23", "exp2 <= 23 - 126"), "exp2 <= -53", "exp2 <= 53 - 1022")
    at_once = r"  (ROCJITSU_TRY_SIMD_DIV_FMAS_VOP3_FP)"
    text = sub(at_once, r"  if ((wf.exec() & wf.vcc()) == 0)\n    \1", text)
    for half, float in (32, "float"), (64, "double"):
        back = f"(std::ilogb(s2) > 0 ? 0x1p{2 * half} : 0x1p-{2 * half})"
        exact = f"static_cast<{float}>((static_cast<__float128>(s0) * s1 + s2) * {back})"
        text = put(text, f"result = std::ldexp(result, {half});", f"result = {exact};")
    # v_div_fixup gives the quotient's sign, and the limit for a NaN that an overflow made.
    return put(text, "result = p;", "result = fixed_quotient(p, b, c);")


def fixed_at_once(text):
    def fixed(found):
        smaller = "util::stdx::isnan(p) && util::stdx::abs(c) < util::stdx::abs(b)"
        return (
            f"  {found[1]} r = util::stdx::copysign(p, bxc);\n"
            "  util::stdx::where(util::stdx::isnan(p), r) = inf_val;\n"
            f"  util::stdx::where({smaller}, r) = zero_val;\n"
        )

    return sub(r"  ([FD]) r = p;\n", fixed, text)


edit(SHARED + "execute_shared.h", division)
edit(SHARED + "simd_glue.h", fixed_at_once)

# workitem_ids.c: RDNA 3 and RDNA 4 got the ids of a work-item in v0, v1 and v2, but pack them in v0, as CDNA 3 does.
replace(
    "lib/rocjitsu/src/rocjitsu/config/config_loader.cpp",
    "bool packed = (arch == ROCJITSU_CODE_ARCH_CDNA3 ||",
    "bool packed = (arch == ROCJITSU_CODE_ARCH_RDNA3 || arch == ROCJITSU_CODE_ARCH_RDNA3_5 ||\n"
    "                     arch == ROCJITSU_CODE_ARCH_RDNA4 || arch == ROCJITSU_CODE_ARCH_CDNA3 ||",
)

# saturated.c: the long form (VOP3) of additions and subtractions of 32-bit integers did not clamp. Those of 16-bit
# integers, packed ones and multiply-adds still do not.
CLAMPED = """template <typename Inst>
static void saturated(Inst &inst, amdgpu::Wavefront &wf, bool is_signed, int sign0, int sign1) {
  const int64_t least = is_signed ? INT32_MIN : 0, greatest = is_signed ? INT32_MAX : int64_t{UINT32_MAX};
  for (uint32_t lane = 0; lane < wf.wf_size(); ++lane) {
    if (!(wf.exec() & (1ULL << lane)))
      continue;
    const uint32_t bits0 = inst.src0.read_lane(wf, lane), bits1 = inst.src1.read_lane(wf, lane);
    const int64_t s0 = is_signed ? int64_t{static_cast<int32_t>(bits0)} : int64_t{bits0};
    const int64_t s1 = is_signed ? int64_t{static_cast<int32_t>(bits1)} : int64_t{bits1};
    const int64_t result = std::clamp(sign0 * s0 + sign1 * s1, least, greatest);
    inst.vdst.write_lane(wf, lane, static_cast<uint32_t>(result));
  }
}

"""
SUM = r"amdgpu::execute_v_(add|sub|subrev)(?:_nc)?_([ui])32_vop3\(\*this, wf\);"


def saturating(text):
    def clamped(found):
        sign0, sign1 = {"add": (1, 1), "sub": (1, -1), "subrev": (-1, 1)}[found[1]]
        is_signed = str(found[2] == "i").lower()
        return f"if (inst_.clamp) saturated(*this, wf, {is_signed}, {sign0}, {sign1}); else {found[0]}"

    return sub(r"(?m)^(?=VNopVop3::VNopVop3\()", CLAMPED, sub(SUM, clamped, text), count=1)


for arch in wanted:
    edit(f"{ISA}arch/amdgpu/{arch}/vop3.cpp", saturating)

# literal_f64.c: a literal of an f64 operand is the high word; the simulator took it for the low one.
LITERAL = r"(OperandType::OPR_SIMM32,\s*)static_cast<int>(\([^;]*->simm32\))\);"


def high_word(text):
    parts = re.split(r"(?m)^(?=\w+::\w+\()", text)
    literal = rf"Operand\(\s*64, {LITERAL}"
    wide = r"Operand(64, \1static_cast<uint64_t>\2 << 32, true);"
    return "".join(sub(literal, wide, part) if "F64" in part[: part.index("(")] else part for part in parts)


for arch in wanted:
    for encoding in "vop1", "vop3", "vopc":
        # CDNA has no literals in the long form.
        if encoding != "vop3" or arch.startswith("rdna"):
            edit(f"{ISA}arch/amdgpu/{arch}/{encoding}.cpp", high_word)
    if arch in ("cdna3", "cdna4", "rdna4"):
        edit(f"{ISA}arch/amdgpu/{arch}/vop2.cpp", high_word)

# scalar_bytes.c: RDNA 4 loads bytes and halves into scalars too. Their addresses lost the lowest two bits, as those of
# whole words do.
if "rdna4" in wanted:
    replace(ISA + "arch/amdgpu/rdna4/addr_calc.cpp", "return (base + off) & ~0x3ULL;", "return base + off;")
    edit(
        ISA + "arch/amdgpu/rdna4/smem.cpp",
        lambda text: sub(r"(elem_size = 4;[^}]*smem_calculate_address\(inst_, wf\));", r"\1 & ~0x3ULL;", text),
    )

# scalar_load_vcc.c: a scalar load into VCC went to the scalar registers of another wave, or ended the process.
replace(
    "lib/rocjitsu/src/rocjitsu/vm/amdgpu/memory_pipeline.cpp",
    "    cu.write_sgpr(d.dst_reg_base + i, d.response_data[i]);\n",
    """    const uint32_t reg = d.dst_reg_base + i - wf.sgpr_alloc().base;
    if (reg == 106) {
      wf.set_vcc((wf.vcc() & ~0xffffffffull) | d.response_data[i]);
      continue;
    }
    if (reg == 107) {
      wf.set_vcc_hi(d.response_data[i]);
      continue;
    }
    cu.write_sgpr(d.dst_reg_base + i, d.response_data[i]);
""",
)

# true16.c: the long forms (VOP3, VOP3P) name the register of a result of 16 bits by 8 bits, and its half by op_sel. The
# short form's number, of 7 bits with the half in the eighth, was read there too.
SHORT = "vdst(16, OperandType::OPR_VGPR, reinterpret_cast<const OpEncoding *>(inst)->vdst)"
LONG = "vdst(16, OperandType::OPR_SRC_VGPR, reinterpret_cast<const OpEncoding *>(inst)->vdst + 256)"
for arch in {"rdna3", "rdna3_5", "rdna4"} & set(wanted):
    for encoding in "vop3", "vop3p":
        replace(f"{ISA}arch/amdgpu/{arch}/{encoding}.cpp", SHORT, LONG)

# vcc_high.c: in a wave of 32 lanes VCC's high word is a scalar register that no mask changes. Instructions that write a
# mask to VCC set it to 0. The new word lies where the class had none, so the other members stay where they were.
replace(
    "lib/rocjitsu/src/rocjitsu/vm/amdgpu/wavefront.h",
    "  void set_vcc(uint64_t val) { vcc_ = val; }\n",
    """  void set_vcc(uint64_t val) { vcc_ = val; }
  uint32_t vcc_hi() const { return wf_size_ > 32 ? static_cast<uint32_t>(vcc_ >> 32) : vcc_hi_; }
  void set_vcc_hi(uint32_t val) {
    if (wf_size_ > 32)
      vcc_ = (vcc_ & 0xffffffffull) | static_cast<uint64_t>(val) << 32;
    else
      vcc_hi_ = val;
  }
""",
)
SCRATCH = "  uint32_t scratch_lane_size_ = 0;   ///< Per-lane private scratch allocation size in bytes.\n"
replace("lib/rocjitsu/src/rocjitsu/vm/amdgpu/wavefront.h", SCRATCH, SCRATCH + "  uint32_t vcc_hi_ = 0;\n")


def high_word_apart(text):
    text = put(text, "return static_cast<uint32_t>(wf.vcc() >> 32);", "return wf.vcc_hi();")
    whole = "return (wf.vcc() & 0xffffffffu) | static_cast<uint64_t>(wf.vcc_hi()) << 32;"
    text = put(text, "    return wf.vcc();\n", f"    {whole}\n")
    text = sub(r"wf\.set_vcc\(\(wf\.vcc\(\) & 0x00000000F[^;]*;", "wf.set_vcc_hi(val);", text)
    both = "    wf.set_vcc(val);\n    wf.set_vcc_hi(static_cast<uint32_t>(val >> 32));\n"
    return put(text, "    wf.set_vcc(val);\n", both)


for arch in {"rdna1", "rdna2", "rdna3", "rdna3_5", "rdna4"} & set(wanted):
    edit(f"{ISA}arch/amdgpu/{arch}/operand.cpp", high_word_apart)

# last_scalars.c: a wave of RDNA has 106 scalar registers; s102 and s103 are two of them, not the address of private
# memory. With VCC and what follows it they are 128.
replace("configs/gfx1100_w7900.json", '"sgprs_per_wf", "value": "104"', '"sgprs_per_wf", "value": "128"')


def plain_registers(text):
    text = sub(r"  if \(ev == 10[23]\)\n    return [^;]*wf\.scratch_base\(\)[^;]*;\n", "", text)
    write = r"(?s)  if \(ev == 10[23]\) \{\n[^}]*?set_scratch_base\([^}]*?return;\n  \}\n"
    return sub(write, "", text)


for arch in {"rdna1", "rdna2", "rdna3", "rdna3_5", "rdna4"} & set(wanted):
    edit(f"{ISA}arch/amdgpu/{arch}/operand.cpp", plain_registers)

# lds_atomics.c: atomics of LDS that return nothing wrote the old value to the register whose number is in the unused
# field, v0.
WITHOUT_RESULT = r"(?ms)^void Ds(?!Consume|Append)(?:(?!Rtn)\w)+::execute_impl\(.*?^\}"


def without_result(text):
    def silent(found):
        if "d->atomic_op" not in found[0]:
            return found[0]
        return put(found[0], "d->is_load = true;", "d->is_load = false;")

    return sub(WITHOUT_RESULT, silent, text)


for arch in wanted:
    name = "vds" if arch in ("rdna4", "gfx1250") else "ds"
    edit(f"{ISA}arch/amdgpu/{arch}/{name}.cpp", without_result)

# running_at_exit.c: the thread that simulates the GPU goes on while the process ends. Where it reads memory that is
# freed by then, it stops, and the process ends as it would have.
INTERPOSER = "lib/rocjitsu/src/rocjitsu/kmd/linux/interposer.cpp"
replace(
    INTERPOSER,
    "void rj_sigsegv_handler(int, siginfo_t *, void *) {\n",
    """std::atomic<long> rj_engine{0};
std::atomic<bool> rj_exiting{false};

void rj_sigsegv_handler(int, siginfo_t *, void *) {
  while (rj_exiting && syscall(SYS_gettid) == rj_engine)
    pause();
""",
)
replace(
    INTERPOSER,
    "      std::thread([vm = rj_vm_]() { rj_vm_run(vm, nullptr); }).detach();\n",
    """      // Called before the destructors of the libraries that are loaded by now.
      std::atexit([] { rj_exiting = true; });
      std::thread([vm = rj_vm_]() {
        rj_engine = syscall(SYS_gettid);
        rj_vm_run(vm, nullptr);
      }).detach();
""",
)


# leading_signs.c: s_cls counted one bit too few, gave 31 where all bits are equal, and looked at 32 bits of 64.
def leading_signs(text):
    def counted(found):
        body = put(put(found[0], "return 31u;", "return ~0u;"), "countl_zero(u)) - 1u;", "countl_zero(u));")
        if "_i64_" in found[0].split("(")[0]:
            body = put(body, "int32_t sv = static_cast<int32_t>(", "int64_t sv = static_cast<int64_t>(")
            body = sub(r"uint32_t(?= u =|>\(sv\))", "uint64_t", body)
        return body

    return sub(r"(?ms)^inline void execute_s_cls_\w+_sop1\(.*?^\}", counted, text)


edit(SHARED + "execute_shared.h", leading_signs)

for edits in faster.groups():
    replace_all(edits)

sys.exit(0 if is_whole else 3)
