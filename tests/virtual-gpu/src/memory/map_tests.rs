use super::*;
use proptest::prelude::*;

fn range(start: u64, end: u64) -> Range {
    Range { start, end, writable: true, host: false }
}

#[test]
fn an_access_is_checked_to_the_byte() {
    let map = AllocationMap::new();
    map.insert(range(0x1000, 0x1007));
    let mut hint = Hint::default();
    // Asks each question twice, because the second answer comes from the hint.
    for _ in 0..2 {
        assert_eq!(map.check(0x1000, 7, true, &mut hint), Ok(()));
        assert_eq!(map.check(0x1006, 1, false, &mut hint), Ok(()));
        assert_eq!(map.check(0x1007, 1, false, &mut hint), Err(AccessError::Outside));
        assert_eq!(map.check(0x1004, 4, false, &mut hint), Err(AccessError::Outside));
        assert_eq!(map.check(0xfff, 2, false, &mut hint), Err(AccessError::Outside));
        assert_eq!(map.check(u64::MAX, 1, false, &mut hint), Err(AccessError::Outside));
        assert_eq!(map.check(0x1000, u64::MAX, false, &mut hint), Err(AccessError::Outside));
    }
}

#[test]
fn two_neighbours_are_not_one() {
    let map = AllocationMap::new();
    map.insert(range(0x1000, 0x2000));
    map.insert(range(0x2000, 0x3000));
    assert_eq!(map.check(0x1ffe, 4, false, &mut Hint::default()), Err(AccessError::Outside));
}

#[test]
fn read_only_memory_is_not_written() {
    let map = AllocationMap::new();
    map.insert(Range { start: 0x1000, end: 0x2000, writable: false, host: false });
    let mut hint = Hint::default();
    for _ in 0..2 {
        assert_eq!(map.check(0x1000, 4, false, &mut hint), Ok(()));
        assert_eq!(map.check(0x1000, 4, true, &mut hint), Err(AccessError::ReadOnly));
    }
}

#[test]
fn freed_memory_is_refused_in_spite_of_a_hint() {
    let map = AllocationMap::new();
    map.insert(range(0x1000, 0x2000));
    let mut hint = Hint::default();
    assert_eq!(map.check(0x1800, 4, true, &mut hint), Ok(()));
    assert_eq!(map.remove(0x1000), Some(range(0x1000, 0x2000)));
    assert_eq!(map.remove(0x1000), None);
    assert_eq!(map.check(0x1800, 4, true, &mut hint), Err(AccessError::Outside));
    let expected = Nearest { range: range(0x1000, 0x2000), freed: true };
    assert_eq!(map.nearest(0x1800), Some(expected));
}

#[test]
fn host_memory_is_told_apart() {
    let map = AllocationMap::new();
    map.insert(range(0x1000, 0x2000));
    map.insert(Range { host: true, ..range(0x2000, 0x3000) });
    map.pin(0x5000, 0x5100);
    let mut hint = Hint::default();
    // Without a hint, and with one.
    for _ in 0..2 {
        for (at, host) in [(0x1fff, false), (0x2000, true), (0x3000, false), (0x50ff, true), (0x5100, false)]
        {
            assert_eq!(map.is_host(at, &hint), host, "{at:#x}");
            let _ = map.check(at, 1, true, &mut hint);
        }
    }
    map.unpin(0x5000, 0x5100);
    assert!(!map.is_host(0x5000, &hint), "the hint is outdated");
}

#[test]
fn a_hint_holds_several_ranges() {
    let map = AllocationMap::new();
    let starts = [0x1000, 0x3000, 0x5000, 0x7000, 0x9000, 0xb000];
    for start in starts {
        map.insert(range(start, start + 16));
    }
    let mut hint = Hint::default();
    for _ in 0..3 {
        for start in starts {
            assert_eq!(map.check(start + 12, 4, true, &mut hint), Ok(()));
            assert_eq!(map.check(start + 13, 4, true, &mut hint), Err(AccessError::Outside));
        }
    }
}

#[test]
fn pinned_ranges_may_overlap() {
    let map = AllocationMap::new();
    let ok = |at, len| map.check(at, len, true, &mut Hint::default()).is_ok();
    map.pin(0x1000, 0x2000);
    map.pin(0x1800, 0x2800);
    map.pin(0x1000, 0x2000);
    assert!(ok(0x1000, 0x1800));
    map.unpin(0x1000, 0x2000);
    assert!(ok(0x1000, 0x1800));
    map.unpin(0x1000, 0x2000);
    assert!(!ok(0x17ff, 2) && ok(0x1800, 0x1000));
    map.unpin(0x1800, 0x2800);
    assert!(!ok(0x1800, 1));
}

#[test]
fn the_nearest_allocation_is_found_on_both_sides() {
    let map = AllocationMap::new();
    assert_eq!(map.nearest(0x1000), None);
    map.insert(range(0x1000, 0x2000));
    map.insert(range(0x4000, 0x5000));
    map.pin(0x8000, 0x8010);
    for (at, start) in [(0, 0x1000), (0x2001, 0x1000), (0x3fff, 0x4000), (0x7000, 0x8000), (0x9000, 0x8000)] {
        assert_eq!(map.nearest(at).map(|nearest| nearest.range.start), Some(start), "{at:#x}");
    }
}

proptest! {
    /// Random allocations, frees and accesses with one hint throughout, against a byte for byte model.
    #[test]
    fn the_map_equals_a_model(steps in prop::collection::vec((0..4u8, 0..64u64, 1..9u64), 1..200)) {
        let map = AllocationMap::new();
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        let mut hint = Hint::default();
        for (step, at, len) in steps {
            match step {
                0 if !model.iter().any(|(&start, &end)| start < at + len && at < end) => {
                    map.insert(range(at, at + len));
                    model.insert(at, at + len);
                }
                1 => prop_assert_eq!(map.remove(at).map(|range| range.end), model.remove(&at)),
                _ => {
                    let expected = model.iter().any(|(&start, &end)| start <= at && at + len <= end);
                    prop_assert_eq!(map.check(at, len, step == 2, &mut hint).is_ok(), expected);
                }
            }
        }
    }
}
