//! Compares each view with its definition: the list of buffer positions in row-major order.

use super::*;

fn positions(layout: &Layout) -> Vec<usize> {
    let mut out = Vec::new();
    for flat in 0..layout.len() {
        let mut rest = flat;
        let mut at = layout.offset() as isize;
        for (&dim, &stride) in layout.dims().iter().zip(layout.strides()).rev() {
            at += (rest % dim) as isize * stride;
            rest /= dim;
        }
        out.push(at as usize);
    }
    out
}

fn base() -> Layout {
    Layout::contiguous([2, 3, 4])
}

#[test]
fn contiguous_is_row_major() {
    assert_eq!(base().strides(), [12, 4, 1]);
    assert_eq!(positions(&base()), (0..24).collect::<Vec<_>>());
    assert!(base().is_contiguous());
    assert!(Layout::contiguous([0, 3]).is_contiguous());
    assert_eq!(Layout::contiguous([0, 3]).span(), None);
    assert_eq!(base().span(), Some((0, 23)));
}

#[test]
fn permute_moves_axes() {
    let p = base().permute("t", &[2, 0, 1]).unwrap();
    assert_eq!(p.dims(), [4, 2, 3]);
    assert_eq!(&positions(&p)[..4], [0, 4, 8, 12]);
    assert!(!p.is_contiguous());
    assert!(base().permute("t", &[0, 0, 1]).is_err());
    assert!(base().permute("t", &[0, 1]).is_err());
    assert_eq!(base().swap_dims("t", 0, 2).unwrap().dims(), [4, 3, 2]);
    assert!(base().swap_dims("t", 0, 3).is_err());
}

#[test]
fn flip_reads_backwards_and_twice_is_nothing() {
    let f = base().flip("t", &[0, 2]).unwrap();
    assert_eq!(positions(&f)[0], 15);
    assert_eq!(f.span(), Some((0, 23)));
    assert_eq!(f.flip("t", &[0, 2]).unwrap(), base());
    assert!(base().flip("t", &[3]).is_err());
    assert_eq!(Layout::contiguous([0]).flip("t", &[0]).unwrap().offset(), 0);
}

#[test]
fn names_each_once_is_what_the_positions_say() {
    let s = |a, b, c| Slice::new(a, Some(b), c);
    for (layout, expected) in [
        (base(), true),
        (base().permute("t", &[2, 0, 1]).unwrap(), true),
        (base().flip("t", &[0, 2]).unwrap(), true),
        (base().slice("t", &[s(0, 2, 1), s(0, 3, 2), s(1, 4, 1)]).unwrap(), true),
        (Layout::contiguous([2, 1, 4]).expand("t", &[2, 3, 4]).unwrap(), false),
        (Layout::contiguous([2, 1, 4]).expand("t", &[2, 1, 4]).unwrap(), true),
        (Layout::contiguous([8]).unfold("t", 0, 3, 2).unwrap(), false),
        (Layout::contiguous([8]).unfold("t", 0, 2, 2).unwrap(), true),
    ] {
        let mut at = positions(&layout);
        at.sort_unstable();
        at.dedup();
        assert_eq!(at.len() == layout.len(), expected, "{layout:?}");
        assert_eq!(layout.names_each_once(), expected, "{layout:?}");
    }
    assert!(Layout::contiguous([1, 0]).expand("t", &[3, 0]).unwrap().names_each_once());
}

#[test]
fn slice_with_steps() {
    let s = |a, b, c| Slice::new(a, Some(b), c);
    let v = base().slice("t", &[s(1, 2, 1), s(0, 3, 2)]).unwrap();
    assert_eq!(v.dims(), [1, 2, 4]);
    assert_eq!(positions(&v), [12, 13, 14, 15, 20, 21, 22, 23]);
    let back = Layout::contiguous([6]).slice("t", &[s(1, 6, -2)]).unwrap();
    assert_eq!(positions(&back), [5, 3, 1]);
    let empty = Layout::contiguous([6]).slice("t", &[s(4, 2, 1)]).unwrap();
    assert_eq!(empty.dims(), [0]);
    assert!(Layout::contiguous([6]).slice("t", &[Slice::full(), Slice::full()]).is_err());
}

#[test]
fn narrow_is_a_slice() {
    let n = base().narrow("t", 1, 1, 2).unwrap();
    assert_eq!(n, base().slice("t", &[Slice::full(), Slice::new(1, Some(3), 1)]).unwrap());
    assert!(base().narrow("t", 1, 2, 2).is_err());
}

#[test]
fn expand_repeats() {
    let e = Layout::contiguous([3, 1]).expand("t", &[2, 3, 2]).unwrap();
    assert_eq!(positions(&e), [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]);
    assert!(Layout::contiguous([3]).expand("t", &[4]).is_err());
    assert!(Layout::contiguous([3, 1]).expand("t", &[3]).is_err());
    assert_eq!(Layout::contiguous([1]).expand("t", &[0]).unwrap().len(), 0);
}

#[test]
fn reshape_views_where_it_can() {
    let check = |from: &Layout, to: &[usize]| {
        let view = from.reshape("t", to).unwrap();
        if let Some(view) = &view {
            assert_eq!(positions(view), positions(from), "{from:?} to {to:?}");
        }
        view.is_some()
    };
    assert!(check(&base(), &[6, 4]));
    let t = base().permute("t", &[0, 2, 1]).unwrap();
    assert!(check(&t, &[2, 2, 2, 3]));
    assert!(!check(&t, &[2, 12]));
    let swapped = base().permute("t", &[2, 0, 1]).unwrap();
    assert!(check(&swapped, &[4, 6]));
    assert!(check(&swapped, &[4, 1, 3, 2]));
    assert!(!check(&swapped, &[24]));
    assert!(check(&base().narrow("t", 2, 1, 2).unwrap(), &[6, 2]));
    assert!(check(&Layout::contiguous([2, 1]).expand("t", &[2, 3]).unwrap(), &[2, 3, 1]));
    assert!(check(&Layout::contiguous([0, 4]), &[2, 0]));
    assert!(check(&Layout::contiguous([1]), &[1, 1, 1]));
    assert!(check(&Layout::contiguous([1]), &[]));
    let flipped = Layout::contiguous([6]).flip("t", &[0]).unwrap();
    assert!(check(&flipped, &[2, 3]));
    assert!(base().reshape("t", &[5]).is_err());
}

#[test]
fn unfold_overlaps() {
    let u = Layout::contiguous([5]).unfold("t", 0, 3, 1).unwrap();
    assert_eq!(u.dims(), [3, 3]);
    assert_eq!(positions(&u), [0, 1, 2, 1, 2, 3, 2, 3, 4]);
    let none = Layout::contiguous([2, 5]).unfold("t", 1, 6, 1).unwrap();
    assert_eq!((none.dims(), none.is_empty()), ([2, 0, 6].as_slice(), true));
    // Even the largest possible step gives one window.
    assert_eq!(positions(&Layout::contiguous([5]).unfold("t", 0, 3, usize::MAX).unwrap()), [0, 1, 2]);
    assert!(Layout::contiguous([5]).unfold("t", 1, 1, 1).is_err());
    assert!(Layout::contiguous([5]).unfold("t", 0, 1, 0).is_err());
}

#[test]
fn broadcast_shapes() {
    assert_eq!(broadcast_shape("t", &[3, 1], &[4]).unwrap().to_vec(), [3, 4]);
    assert_eq!(broadcast_shape("t", &[1], &[0]).unwrap().to_vec(), [0]);
    assert!(broadcast_shape("t", &[2], &[3]).is_err());
    assert!(broadcast_shape("t", &[0], &[3]).is_err());
}

#[test]
fn collapse_merges_what_all_walk_as_one() {
    let a = base();
    let b = Layout::contiguous([1, 3, 4]).expand("t", &[2, 3, 4]).unwrap();
    let one = collapse(a.dims(), [a.strides()]);
    assert_eq!((one.shape.as_slice(), one.strides[0].as_slice()), (&[24][..], &[1][..]));
    let two = collapse(a.dims(), [a.strides(), b.strides()]);
    assert_eq!(two.shape.as_slice(), [2, 12]);
    assert_eq!(two.strides[0].as_slice(), [12, 1]);
    assert_eq!(two.strides[1].as_slice(), [0, 1]);
    let none = collapse(&[1, 1], [&[1, 1]]);
    assert!(none.shape.is_empty());
    let expanded = collapse(&[2, 3], [&[0, 0]]);
    assert_eq!((expanded.shape.as_slice(), expanded.strides[0].as_slice()), (&[6][..], &[0][..]));
}

#[test]
fn dense_order_undoes_a_permutation() {
    assert_eq!(base().dense_order(), Some(vec![0, 1, 2]));
    let p = base().permute("t", &[2, 0, 1]).unwrap();
    assert_eq!(p.permute("t", &p.dense_order().unwrap()).unwrap(), base());
    assert_eq!(base().narrow("t", 1, 0, 2).unwrap().dense_order(), None);
    assert_eq!(base().flip("t", &[1]).unwrap().dense_order(), None);
    assert_eq!(Layout::contiguous([2, 1]).expand("t", &[2, 3]).unwrap().dense_order(), None);
}

#[test]
fn element_counts_do_not_wrap() {
    // Modulo 2^64 these have the 4 elements of `four`.
    let four = Layout::contiguous([4]);
    for wraps in [&[(1 << 62) + 1, 4][..], &[2, (1 << 62) + 1, 2], &[usize::MAX, usize::MAX - 3]] {
        assert!(four.reshape("t", wraps).is_err(), "{wraps:?}");
    }
    let one = Layout::contiguous([1, 1]);
    assert!(one.expand("t", &[(1 << 62) + 1, 4]).is_err());
    assert!(one.expand("t", &[1 << 62, 2]).is_err(), "one more than isize::MAX");
    let long = Layout::contiguous([1]).expand("t", &[1 << 40]).unwrap();
    assert_eq!(long.reshape("t", &[1 << 20, 1 << 20]).unwrap().unwrap().strides(), [0, 0]);
    assert!(long.unfold("t", 0, 1 << 39, 1).is_err());
    assert_eq!(long.expand("t", &[0, 1 << 40]).unwrap().len(), 0);
    assert_eq!(count(&[1 << 40, 1 << 40, 0]), Some(0));
    assert_eq!(count(&[isize::MAX as usize]), Some(isize::MAX as usize));
}

#[test]
fn a_step_past_the_end_leaves_the_stride() {
    for step in [isize::MAX, isize::MIN] {
        let cut = base().slice("t", &[Slice::new(0, None, step)]).unwrap();
        assert_eq!((cut.dims(), cut.strides()), (&[1, 3, 4][..], &[12, 4, 1][..]), "{step}");
    }
}
