//! Types of fp8 ([Micikevicius et al. 2022](https://arxiv.org/abs/2209.05433)): their numbers, and
//! rounding to OCP's.

use half::f16;
use std::sync::LazyLock;

/// A type of fp8.
#[derive(Clone, Copy)]
pub(crate) struct Format {
    /// E4M3, else E5M2.
    pub(crate) e4m3: bool,
    /// The type of gfx942, else OCP's.
    pub(crate) fnuz: bool,
}

impl Format {
    /// The number of a code. OCP's E5M2 is the upper byte of f16. The others lack infinities; FNUZ
    /// has one NaN.
    pub(crate) fn number(self, code: u8) -> f32 {
        let Self { e4m3, fnuz } = self;
        let sign = if code >= 0x80 { -1.0 } else { 1.0 };
        let code_size = code & 0x7f;
        match (e4m3, fnuz) {
            (false, false) => return f16::from_bits(u16::from(code) << 8).to_f32(),
            (true, false) if code_size == 0x7f => return f32::NAN,
            (_, true) if code == 0x80 => return f32::NAN,
            _ => {}
        }
        let (fraction, bias) = if e4m3 { (3, 7) } else { (2, 15) };
        let (exponent, low) =
            (i32::from(code_size >> fraction), i32::from(code_size & ((1 << fraction) - 1)));
        let steps = if exponent == 0 { low } else { low + (1 << fraction) };
        sign * steps as f32 * 2f32.powi(exponent.max(1) - bias - i32::from(fnuz) - fraction)
    }
}

/// The numbers of an OCP type, and its largest finite code.
struct Table {
    numbers: [f32; 256],
    largest: u8,
}

impl Table {
    fn of(e4m3: bool, largest: u8) -> Self {
        let format = Format { e4m3, fnuz: false };
        Self { numbers: core::array::from_fn(|code| format.number(code as u8)), largest }
    }

    /// The code of the nearest number, or the even one of two. Numbers beyond the largest become
    /// the largest, as in CUDA's and HIP's conversions.
    fn code(&self, value: f32) -> u8 {
        let sign = u8::from(value.is_sign_negative()) << 7;
        if value.is_nan() {
            return sign | 0x7f;
        }
        let size = value.abs();
        let positive = &self.numbers[..=usize::from(self.largest)];
        let above = positive.partition_point(|&number| number < size) as u8;
        if above == 0 || above > self.largest {
            return sign | above.min(self.largest);
        }
        let [below, from_above] = [above - 1, above].map(|code| (positive[usize::from(code)] - size).abs());
        let nearest = match below.total_cmp(&from_above) {
            core::cmp::Ordering::Less => above - 1,
            core::cmp::Ordering::Greater => above,
            core::cmp::Ordering::Equal => above - above % 2,
        };
        sign | nearest
    }
}

static TABLES: LazyLock<[Table; 2]> = LazyLock::new(|| [Table::of(true, 0x7e), Table::of(false, 0x7b)]);

/// A number of OCP's E4M3.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct E4M3(u8);

/// A number of OCP's E5M2.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct E5M2(u8);

impl E4M3 {
    pub(crate) fn to_f32(self) -> f32 {
        TABLES[0].numbers[usize::from(self.0)]
    }

    pub(crate) fn from_f32(value: f32) -> Self {
        Self(TABLES[0].code(value))
    }
}

impl E5M2 {
    pub(crate) fn to_f32(self) -> f32 {
        TABLES[1].numbers[usize::from(self.0)]
    }

    pub(crate) fn from_f32(value: f32) -> Self {
        Self(TABLES[1].code(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number has its own code, and between two neighbours the nearer one is taken: for E4M3 by
    /// OCP's table (largest 448, smallest 2^-9), for E5M2 by f16 (largest 57344, smallest 2^-16).
    #[test]
    fn numbers_round_to_the_nearest() {
        assert_eq!((TABLES[0].numbers[0x7e], TABLES[0].numbers[1]), (448.0, 2f32.powi(-9)));
        assert_eq!((TABLES[1].numbers[0x7b], TABLES[1].numbers[1]), (57344.0, 2f32.powi(-16)));
        for table in TABLES.iter() {
            for code in 0..=table.largest {
                let number = table.numbers[usize::from(code)];
                assert_eq!((table.code(number), table.code(-number)), (code, code | 0x80));
                if code == table.largest {
                    continue;
                }
                let next = table.numbers[usize::from(code) + 1];
                let middle = (number + next) / 2.0;
                assert_eq!(table.code(middle), code + code % 2, "{middle} of {number} and {next}");
                assert_eq!(table.code(middle.next_down()), code);
                assert_eq!(table.code(middle.next_up()), code + 1);
            }
            assert_eq!(table.code(f32::INFINITY), table.largest);
            assert_eq!(table.code(f32::MIN), table.largest | 0x80);
            assert!(table.numbers[usize::from(table.code(f32::NAN))].is_nan());
        }
    }
}
