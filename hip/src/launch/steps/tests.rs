//! Lists of steps over tensors of 16 elements of f32.

use super::*;
use crate::launch::map::{Mapped, Over};

const BYTES: u64 = 64;

fn whole(address: u64) -> Access {
    Access { address, start: address, end: address + BYTES, mapped: None }
}

/// The rows of a `[4, 4]` result, each `stride` elements after the one before.
fn rows(address: u64, stride: isize) -> Access {
    let mapped = Mapped::new(Over { shape: &[4, 4], strides: &[stride, 1] }).unwrap();
    let end = address + 4 * (mapped.greatest as u64 + 1);
    Access { address, start: address, end, mapped: Some((mapped.source(address, 4), mapped.map)) }
}

fn op(a: Access, b: Option<Access>, out: u64) -> Next {
    let b = b.map_or(Operand::Scalar(1.0), Operand::Tensor);
    let operands = [Operand::Tensor(a), b];
    Next { functor: 0, from: DType::F32, to: DType::F32, operands, out: whole(out), copies_halves: false }
}

fn step(a: u64, b: Option<u64>, out: u64) -> Next {
    op(whole(a), b.map(whole), out)
}

fn list(steps: impl IntoIterator<Item = Next>) -> Pending {
    let mut list = Pending::default();
    list.steps.len = 16;
    for next in steps {
        assert!(next.is_sound() && list.fits(&next));
        list.push(next);
    }
    list
}

fn stored(list: &Pending) -> Vec<u8> {
    list.so_far().iter().map(|step| step.stored).collect()
}

#[test]
fn results_stay_in_registers_and_are_stored_once() {
    // x1 = x * s, y = g * s, x2 = x1 + y in x's place, z = x2 * y
    let list = list([step(0, None, 0), step(64, None, 128), step(0, Some(128), 0), step(0, Some(128), 192)]);
    let sources: Vec<_> = list.so_far().iter().map(|s| (s.source_a, s.source_b, s.stored)).collect();
    assert_eq!(
        sources,
        [(IN_MEMORY, SCALAR, 0), (IN_MEMORY, SCALAR, 1), (BEFORE_LAST, LAST, 1), (LAST, BEFORE_LAST, 1)]
    );
    assert_eq!(list.bytes(), 5 * BYTES as usize);
}

#[test]
fn what_a_step_reads_from_memory_is_stored() {
    let list = list([
        step(0, None, 0),
        step(64, None, 64),
        step(128, None, 128),
        step(192, Some(0), 192),
        step(0, None, 0),
    ]);
    assert_eq!(list.so_far()[3].source_b, IN_MEMORY);
    assert_eq!(stored(&list), [1; 5]);
}

#[test]
fn memory_that_overlaps_elsewhere_does_not_follow() {
    let list = list([step(0, Some(256), 512)]);
    for (next, follows) in [
        (step(512, None, 1024), true),
        (step(528, None, 1024), false), // reads what was written, shifted
        (step(1024, Some(496), 1024), false),
        (step(1024, None, 16), false), // writes over what was read, shifted
        (step(1024, None, 240), false),
        (step(1024, None, 512), true),
        (step(16, Some(240), 1024), true), // reads what was read
    ] {
        assert_eq!(list.fits(&next), follows, "{next:?}");
    }
}

#[test]
fn what_is_broadcast_was_written_before_the_list() {
    let list = list([op(whole(0), Some(rows(256, 0)), 512)]);
    for (next, follows, apart) in [
        (op(rows(512, 0), None, 1024), false, false), // reads what other threads write
        (op(rows(572, 0), None, 1024), false, false),
        (op(rows(576, 0), None, 1024), true, true),
        (op(rows(464, 8), None, 1024), false, false),
        (step(1024, None, 256), false, false), // writes what other threads read
        (step(1024, None, 224), false, false),
        (step(1024, None, 272), true, true),
        (step(1024, None, 0), true, false),
        (step(512, None, 1024), true, false),
        (step(0, None, 1024), true, true),
    ] {
        assert_eq!((list.fits(&next), list.is_apart_from(&next)), (follows, apart), "{next:?}");
    }
    assert!(!op(rows(0, 0), None, 0).is_sound());
    assert!(op(rows(64, 0), None, 0).is_sound());
}

#[test]
fn a_list_has_four_maps() {
    let of = |at: u64, stride: isize| op(rows(4096 * at, stride), None, 65536 + 4096 * at);
    let list = list([of(0, 0), of(1, 4 + 4), of(2, 12), of(3, 16), of(4, 12)]);
    assert_eq!(list.so_far().iter().map(|step| step.map_a).collect::<Vec<_>>(), [0, 1, 2, 3, 2]);
    assert!(list.fits(&of(5, 16)));
    assert!(!list.fits(&of(5, 20)));
    // 4 rows of 16 bytes, whatever lies between them, and the results.
    assert_eq!(list.bytes(), 5 * 64 + 16 + 4 * (28 + 2 * 40 + 52));
}

#[test]
fn what_nobody_reads_is_not_stored() {
    let mut steps = list([
        step(0, None, 64),
        step(64, None, 128),
        step(128, Some(0), 192),
        step(192, Some(64), 256), // reads the first from memory
        step(256, None, 128),
    ]);
    steps.forget(1024, 2048);
    assert_eq!(stored(&steps), [1, 0, 1, 1, 1]);
    steps.forget(64, 128);
    assert_eq!(stored(&steps), [1, 0, 1, 1, 1]);
    steps.forget(192, 200);
    assert_eq!(stored(&steps), [1, 0, 0, 1, 1]);
    steps.forget(128, 256);
    assert_eq!(stored(&steps), [1, 0, 0, 1, 0]);
}

#[test]
fn elements_of_another_size_lie_elsewhere() {
    let half = |address: u64| Access { end: address + BYTES / 2, ..whole(address) };
    let cast = |from: u64, to: u64| Next { to: DType::BF16, out: half(to), ..step(from, None, to) };
    assert!(!cast(64, 64).is_sound());
    assert!(cast(64, 128).is_sound() && cast(64, 32).is_sound());
    let list = list([cast(64, 128)]);
    for (next, follows) in [
        (step(128, None, 512), false),
        (step(0, None, 128), false),
        (step(160, None, 512), true),
        (step(0, None, 64), true),
        (Next { from: DType::BF16, to: DType::BF16, ..op(half(128), None, 512) }, true),
    ] {
        assert_eq!(list.fits(&next), follows, "{next:?}");
    }
    assert_eq!(list.bytes(), 96);
}

#[test]
fn what_stays_in_registers_leaves_its_memory_to_others() {
    for (threads, follows) in [(1, false), (256, true)] {
        let mut list = Pending::default();
        list.begin(Grid { blocks: 1, threads }, 16);
        list.push(step(0, None, 256));
        list.push(step(256, None, 512));
        assert!(!list.fits(&step(0, None, 264)));
        list.forget(256, 320);
        assert_eq!(list.fits(&step(0, None, 264)), follows);
        assert!(!list.fits(&step(0, None, 520)));
    }
}

#[test]
fn norms_and_shifts_are_compiled_as_a_whole() {
    let of = |functor: Functor, b: Option<Access>, at: u64| {
        let before = if at == 0 { 1 << 20 } else { at * BYTES };
        Next { functor: functor.in_chain().unwrap() as u8, ..op(whole(before), b, (at + 1) * BYTES) }
    };
    // A value for each row.
    let channel = |address: u64| {
        let mapped = Mapped::new(Over { shape: &[4, 4], strides: &[1, 0] }).unwrap();
        let end = address + 16;
        Some(Access { address, start: address, end, mapped: Some((mapped.source(address, 4), mapped.map)) })
    };
    let (memory, all) = (Some(whole(1 << 21)), [1 << 22, 1 << 23, 1 << 24, 1 << 25].map(channel));
    let [sub, div, mul, add] = [0, 1, 2, 3].map(|at| of(NORM_FUNCTORS[at], all[at], at as u64));
    let norm = [sub, div, mul, add];
    let relu = |at: u64| of(Functor::Relu, None, at);
    let sum = of(Functor::Add, memory, 4);
    let program = |steps: &[Next], keeps: bool| {
        let mut list = Pending { keeps_registers: true, dtype: Some(DType::F32), ..Pending::default() };
        list.steps.len = 16;
        for (at, &next) in steps.iter().enumerate() {
            list.push(next);
            if at > 0 && !keeps {
                list.forget(at as u64 * BYTES, (at as u64 + 1) * BYTES);
            }
        }
        list.program()
    };
    // A bias, and what may follow it.
    let bias = of(Functor::Add, all[0], 0);
    let (second_relu, sum_of_bias) = (of(Functor::Relu, None, 1), of(Functor::Add, memory, 1));
    for (steps, found) in [
        (norm.to_vec(), NORM),
        ([&norm[..], &[relu(4)]].concat(), NORM),
        ([&norm[..], &[sum]].concat(), NORM),
        ([&norm[..], &[sum, relu(5)]].concat(), NORM),
        (norm[..3].to_vec(), INTERPRETED),
        ([&norm[..], &[relu(4), relu(5)]].concat(), INTERPRETED),
        ([&norm[..], &[sum, relu(5), relu(6)]].concat(), INTERPRETED),
        (vec![sub, div, add, of(Functor::Mul, all[2], 3)], INTERPRETED),
        (vec![sub, div, mul, of(Functor::Add, memory, 3)], INTERPRETED),
        (vec![bias, second_relu], SHIFT),
        (vec![bias, sum_of_bias], SHIFT),
        (vec![bias, sum_of_bias, relu(2)], SHIFT),
        (vec![bias, of(Functor::Add, all[1], 1)], INTERPRETED),
        (vec![bias, second_relu, of(Functor::Add, memory, 2)], INTERPRETED),
        (vec![of(Functor::Add, memory, 0), second_relu], INTERPRETED),
        (vec![of(Functor::Sub, all[0], 0), second_relu], INTERPRETED),
    ] {
        assert_eq!(program(&steps, false), found, "{steps:#?}");
        assert_eq!(program(&steps, true), INTERPRETED, "all results are stored");
    }
    assert_eq!(program(&[bias], true), SHIFT);
    assert_eq!(program(&[of(Functor::Add, memory, 0)], true), INTERPRETED);
}
