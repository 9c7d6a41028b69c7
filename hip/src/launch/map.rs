//! Maps: how a chain's operand lies in memory if it is broadcast or strided.

use bytemuck::{Pod, Zeroable};

/// The values of `Source` in `chain.h` for operands with a map.
pub(crate) const ONE: u8 = 4;
pub(crate) const NEIGHBOURS: u8 = 5;
const APART: u8 = 6;

/// `MAP_AXES` of `chain.h`.
const AXES: usize = 4;

/// `GROUP` of `chain.h`: the elements that a thread reads at once.
const GROUP: usize = 4;

/// `Map` of `chain.h`: axes from the innermost outwards.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct Map {
    rank: u32,
    size: [u32; AXES - 1],
    factor: [u32; AXES - 1],
    shift: [u32; AXES - 1],
    stride: [i32; AXES],
}

/// The distances of an operand's elements from one another.
#[derive(Debug, Clone, Copy)]
pub struct Over<'a> {
    /// The sizes of the op's axes. Their product is the number of the result's elements.
    pub shape: &'a [usize],
    /// For each axis, the distance in elements between neighbours; 0 repeats an element.
    pub strides: &'a [isize],
}

/// A map, and what it means for the memory of its operand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mapped {
    pub(crate) map: Map,
    /// The distances from the operand's first element to those at the lowest and the highest
    /// address.
    pub(crate) least: isize,
    pub(crate) greatest: isize,
}

impl Mapped {
    /// The map of an operand; `None` if it has more than [`AXES`] axes after merging, or if the op
    /// or the operand's memory spans 2^31 elements or more.
    pub(crate) fn new(over: Over<'_>) -> Option<Self> {
        let mut axes = [(1usize, 0isize); AXES];
        let mut rank = 0;
        let (mut least, mut greatest) = (0isize, 0isize);
        if over.shape.len() != over.strides.len() {
            return None;
        }
        for (&size, &stride) in over.shape.iter().zip(over.strides).rev().filter(|&(&size, _)| size != 1) {
            let reach = stride.checked_mul(isize::try_from(size).ok()?.checked_sub(1)?)?;
            let end = if reach < 0 { &mut least } else { &mut greatest };
            *end = end.saturating_add(reach);
            match axes[..rank].last_mut() {
                Some((inner, step)) if step.checked_mul(*inner as isize) == Some(stride) => {
                    *inner = inner.checked_mul(size)?;
                }
                _ => {
                    *axes.get_mut(rank)? = (size, stride);
                    rank += 1;
                }
            }
        }
        let all: usize = axes.iter().try_fold(1usize, |all, &(size, _)| all.checked_mul(size))?;
        let most = i32::MAX as usize;
        if all > most || least.unsigned_abs() > most || greatest.unsigned_abs() > most {
            return None;
        }
        let mut map = Map { rank: rank.max(1) as u32, ..Map::zeroed() };
        for (at, &(size, stride)) in axes[..rank].iter().enumerate() {
            map.stride[at] = stride as i32;
            if at + 1 < rank {
                let (factor, shift) = reciprocal(size as u32);
                (map.size[at], map.factor[at], map.shift[at]) = (size as u32, factor, shift);
            }
        }
        Some(Self { map, least, greatest })
    }

    /// Whether the operand lies as the result does.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.map.rank == 1 && self.map.stride[0] == 1
    }

    /// How the kernel reads a group of `size`-byte elements of an operand at `address`: see
    /// `Source` of `chain.h`.
    pub(crate) fn source(&self, address: u64, size: usize) -> u8 {
        let Map { rank, size: sizes, stride, .. } = &self.map;
        let outer = &stride[1..*rank as usize];
        // Rows of whole groups, or a single row.
        let whole = *rank > 1 && (sizes[0] as usize).is_multiple_of(GROUP);
        match stride[0] {
            0 if whole || *rank == 1 => ONE,
            1 if whole
                && address.is_multiple_of((GROUP * size) as u64)
                && outer.iter().all(|stride| stride.unsigned_abs().is_multiple_of(GROUP as u32)) =>
            {
                NEIGHBOURS
            }
            _ => APART,
        }
    }
}

/// `factor` and `shift` with which `chain.h` divides an index below 2^31: with `l` the least
/// exponent for which `2^l >= size`, they are `ceil(2^(31 + l) / size)` and `l`. The error of the
/// factor is below `2^l / 2^(31 + l)`, which is exact for 31 bits (Granlund and Montgomery 1994,
/// "Division by Invariant Integers using Multiplication", theorem 4.2).
fn reciprocal(size: u32) -> (u32, u32) {
    let shift = size.next_power_of_two().trailing_zeros();
    ((1u64 << (31 + shift)).div_ceil(u64::from(size)) as u32, shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `offset_of` of `chain.h`.
    fn offset_of(map: &Map, mut i: u32) -> i32 {
        let mut offset = 0;
        for axis in 0..map.rank as usize - 1 {
            let quotient = ((u64::from(2 * i) * u64::from(map.factor[axis])) >> 32) as u32 >> map.shift[axis];
            offset += (i - quotient * map.size[axis]) as i32 * map.stride[axis];
            i = quotient;
        }
        offset + i as i32 * map.stride[map.rank as usize - 1]
    }

    fn of(shape: &[usize], strides: &[isize]) -> Option<Mapped> {
        Mapped::new(Over { shape, strides })
    }

    #[test]
    fn indices_are_divided_exactly() {
        let sizes = (1..=200).chain([255, 257, 1000, 4095, 4097, 65535, 65537, 1 << 20, (1 << 30) - 1]);
        for size in sizes.chain([1 << 30, (1 << 30) + 1, i32::MAX as u32]) {
            let (factor, shift) = reciprocal(size);
            let quotients = [0, 1, 2, 3, 1000, u32::MAX / size].into_iter().map(|q| q.saturating_mul(size));
            let near = quotients.flat_map(|at| [at.saturating_sub(1), at, at.saturating_add(1)]);
            for i in near.chain([i32::MAX as u32 - 1, i32::MAX as u32]).filter(|&i| i <= i32::MAX as u32) {
                let quotient = ((u64::from(2 * i) * u64::from(factor)) >> 32) as u32 >> shift;
                assert_eq!(quotient, i / size, "{i} / {size}");
            }
        }
    }

    #[test]
    fn offsets_are_those_of_the_strides() {
        for (shape, strides, rank) in [
            (vec![3, 4, 5], vec![20, 5, 1], 1),
            (vec![2, 3, 4, 5], vec![0, 1, 0, 0], 3),
            (vec![7, 5], vec![0, 1], 2),
            (vec![7, 5], vec![1, 0], 2),
            (vec![2, 3, 4], vec![0, 0, 0], 1),
            (vec![4, 3, 5, 2], vec![10, 40, 2, 1], 3),
            (vec![3, 5, 2, 7], vec![0, 7, 0, 1], 4),
            (vec![3, 6], vec![-6, -1], 1),
            (vec![1, 1], vec![9, 9], 1),
        ] {
            let mapped = of(&shape, &strides).unwrap();
            assert_eq!(mapped.map.rank, rank, "{shape:?} {strides:?}");
            let (mut low, mut high) = (0, 0);
            for i in 0..shape.iter().product::<usize>() {
                let (mut rest, mut expected) = (i, 0);
                for (&size, &stride) in shape.iter().zip(&strides).rev() {
                    expected += (rest % size) as isize * stride;
                    rest /= size;
                }
                (low, high) = (low.min(expected), high.max(expected));
                assert_eq!(offset_of(&mapped.map, i as u32) as isize, expected, "{shape:?} {strides:?} {i}");
            }
            assert_eq!((mapped.least, mapped.greatest), (low, high));
        }
    }

    #[test]
    fn what_no_map_can_say_is_refused() {
        assert!(of(&[2, 2, 2, 2, 2], &[0, 1, 0, 1, 0]).is_none());
        assert!(of(&[1 << 16, 1 << 16], &[0, 1]).is_none());
        assert!(of(&[2, 2], &[1 << 40, 1]).is_none());
        assert!(of(&[2, 2], &[1]).is_none());
    }

    #[test]
    fn groups_are_read_as_they_lie() {
        for (shape, strides, address, source) in [
            (vec![8, 12], vec![0, 1], 64, NEIGHBOURS),
            (vec![8, 12], vec![0, 1], 68, APART),
            (vec![8, 13], vec![0, 1], 64, APART),
            (vec![8, 12], vec![1, 0], 68, ONE),
            (vec![8, 13], vec![1, 0], 64, APART),
            (vec![8, 13], vec![0, 0], 68, ONE),
            (vec![8, 12], vec![13, 1], 64, APART),
            (vec![8, 12], vec![16, 1], 64, NEIGHBOURS),
            (vec![8, 12], vec![1, 8], 64, APART),
            (vec![13], vec![1], 68, APART),
        ] {
            assert_eq!(of(&shape, &strides).unwrap().source(address, 4), source, "{shape:?} {strides:?}");
        }
    }
}
