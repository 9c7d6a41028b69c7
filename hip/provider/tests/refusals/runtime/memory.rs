//! Memory, the map of allocations, copies and fills.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use hip_provider::runtime::{Allocations, Place};
use hip_sys::*;

use super::{LIVE, OTHERS, at, hip};
use crate::{Fails, Nothing, Runs, check, dangling};

#[test]
fn memory() {
    let t = hip();
    let mut to = null_mut();
    type Malloc = (*mut *mut c_void, usize);
    let rules: &[crate::Rule<'_, Malloc, hipError_t>] = &[
        ("no bytes", &|call| call.1 = 0, Nothing),
        ("null", &|call| call.0 = null_mut(), Fails(hipErrorInvalidValue)),
        ("null, no bytes", &|call| *call = (null_mut(), 0), Fails(hipErrorInvalidValue)),
    ];
    check("hipMalloc", (&raw mut to, 8), |call: &mut Malloc| unsafe { (t.hipMalloc)(call.0, call.1) }, rules);
    assert!(to.is_null(), "no bytes give null");
    check(
        "hipHostMalloc",
        (&raw mut to, 8),
        |call: &mut Malloc| unsafe { (t.hipHostMalloc)(call.0, call.1, 0) },
        rules,
    );
    type Managed = (*mut *mut c_void, usize, std::ffi::c_uint);
    let managed = t.hipMallocManaged.expect("every provider has it");
    let none = Fails(hipErrorInvalidValue);
    let rules: &[crate::Rule<'_, Managed, hipError_t>] = &[
        ("no bytes", &|call| call.1 = 0, none),
        ("null", &|call| call.0 = null_mut(), none),
        ("no flag", &|call| call.2 = 0, none),
        ("both flags", &|call| call.2 = 3, none),
        ("the host's", &|call| call.2 = hipMemAttachHost, Runs),
    ];
    check(
        "hipMallocManaged",
        (&raw mut to, 8, hipMemAttachGlobal),
        |call: &mut Managed| unsafe { managed(call.0, call.1, call.2) },
        rules,
    );
    type Free = *mut c_void;
    let rules: &[crate::Rule<'_, Free, hipError_t>] = &[("null", &|at| *at = null_mut(), Nothing)];
    check("hipFree", dangling(), |at: &mut Free| unsafe { (t.hipFree)(*at) }, rules);
    check("hipHostFree", dangling(), |at: &mut Free| unsafe { (t.hipHostFree)(*at) }, rules);
    let bad = Fails(hipErrorInvalidValue);
    check(
        "hipHostRegister",
        (dangling(), 8),
        |call: &mut (*mut c_void, usize)| unsafe { (t.hipHostRegister)(call.0, call.1, 0) },
        &[("null", &|call| call.0 = null_mut(), bad), ("no bytes", &|call| call.1 = 0, bad)],
    );
    let rules: &[crate::Rule<'_, Free, hipError_t>] = &[("null", &|at| *at = null_mut(), bad)];
    check("hipHostUnregister", dangling(), |at: &mut Free| unsafe { (t.hipHostUnregister)(*at) }, rules);
}

#[test]
fn the_map_of_allocations() {
    let map = Allocations::new(|at, bytes| at as usize == 1200 && bytes <= 10);
    map.keep(1000, 100, 'a');
    map.keep(1100, 50, 'b');
    for (address, bytes, expected) in [
        (999, 1, "elsewhere"),
        (1000, 0, "inside"),
        (1000, 100, "inside"),
        (1000, 101, "past"),
        (1099, 1, "inside"),
        (1099, 2, "past"),
        (1040, usize::MAX, "past"),
        (1100, 50, "inside"),
        (1149, 2, "past"),
        (1150, 0, "elsewhere"),
        (999, 200, "elsewhere"),
    ] {
        let found = match map.place(at(address), bytes) {
            Place::Inside => "inside",
            Place::Past => "past",
            Place::Elsewhere => "elsewhere",
        };
        assert_eq!(found, expected, "{bytes} bytes at {address}");
        assert_eq!(map.holds(at(address), bytes), expected == "inside");
    }
    // Somebody else's.
    assert!(map.holds(at(1200), 10) && !map.holds(at(1200), 11) && !map.holds(at(1201), 1));
    assert_eq!(map.find(1099), Some((1000, 100, 'a')));
    assert_eq!(map.find(1100), Some((1100, 50, 'b')));
    assert_eq!(map.find(1150), None);
    for (address, valid, expected) in [
        (1001, true, Err(hipErrorInvalidValue)),
        (900, true, Err(hipErrorInvalidValue)),
        (1000, false, Err(hipErrorInvalidValue)),
        (1000, true, Ok('a')),
        (1000, true, Err(hipErrorInvalidValue)),
    ] {
        assert_eq!(map.forget(at(address), |_| valid), expected, "{address}");
    }
    assert_eq!(map.read().len(), 1);
}

#[derive(Clone, Copy)]
struct Transfer {
    to: *mut c_void,
    devices: [c_int; 2],
    from: *mut c_void,
    size: usize,
    kind: hipMemcpyKind,
}

#[test]
fn copies() {
    let t = hip();
    // No other test keeps anything in this map.
    LIVE.keep(0x10000, 0x100, ());
    LIVE.keep(0x20000, 0x100, ());
    let [one, two, host] = [0x10000, 0x20000, 0x90000].map(at);
    let copy = |c: &mut Transfer| unsafe { (t.hipMemcpyAsync)(c.to, c.from, c.size, c.kind, null_mut()) };
    let good = Transfer { to: one, devices: [0, 1], from: two, size: 0x100, kind: hipMemcpyDeviceToDevice };
    let bad = Fails(hipErrorInvalidValue);
    check(
        "hipMemcpyAsync",
        good,
        copy,
        &[
            ("nothing is copied", &|c| (c.size, c.to, c.kind) = (0, null_mut(), 9), Nothing),
            ("to null", &|c| c.to = null_mut(), bad),
            ("from null", &|c| c.from = null_mut(), bad),
            ("to null, any kind", &|c| (c.to, c.kind) = (null_mut(), hipMemcpyDefault), bad),
            ("an unknown kind", &|c| c.kind = 5, Fails(hipErrorInvalidMemcpyDirection)),
            ("null comes before the kind", &|c| (c.to, c.kind) = (null_mut(), 5), bad),
            ("one byte more", &|c| c.size = 0x101, bad),
            ("to past an end", &|c| c.to = at(0x10001), bad),
            ("from past an end", &|c| c.from = at(0x20001), bad),
            ("device to device, to the host", &|c| c.to = host, bad),
            ("device to device, from the host", &|c| c.from = host, bad),
            ("to the device", &|c| (c.from, c.kind) = (host, hipMemcpyHostToDevice), Runs),
            ("to the device, to the host", &|c| (c.to, c.kind) = (host, hipMemcpyHostToDevice), bad),
            ("to the host", &|c| (c.to, c.kind) = (host, hipMemcpyDeviceToHost), Runs),
            ("to the host, from the host", &|c| (c.from, c.kind) = (host, hipMemcpyDeviceToHost), bad),
            ("by addresses, from the host", &|c| (c.from, c.kind) = (host, hipMemcpyDefault), Runs),
            (
                "by addresses, past an end",
                &|c| (c.from, c.kind, c.size) = (host, hipMemcpyDefault, 0x101),
                bad,
            ),
            ("host to host", &|c| (c.to, c.from, c.kind) = (host, host, hipMemcpyHostToHost), Runs),
            ("to somebody else's", &|c| (c.to, c.size) = (at(OTHERS), 0x80), Runs),
            ("from somebody else's", &|c| (c.from, c.size) = (at(OTHERS), 0x80), Runs),
            ("from past somebody else's", &|c| (c.from, c.size) = (at(OTHERS), 0x81), bad),
            ("host to host, past an end", &|c| (c.from, c.kind) = (at(0x20001), hipMemcpyHostToHost), bad),
        ],
    );
    let peer = |c: &mut Transfer| unsafe {
        (t.hipMemcpyPeerAsync)(c.to, c.devices[0], c.from, c.devices[1], c.size, null_mut())
    };
    check(
        "hipMemcpyPeerAsync",
        good,
        peer,
        &[
            ("nothing is copied", &|c| (c.size, c.to) = (0, null_mut()), Nothing),
            ("to no device", &|c| c.devices[0] = 2, Fails(hipErrorInvalidDevice)),
            ("from no device", &|c| c.devices[1] = -1, Fails(hipErrorInvalidDevice)),
            ("the device comes first", &|c| (c.devices[1], c.size) = (2, 0), Fails(hipErrorInvalidDevice)),
            ("null", &|c| c.from = null_mut(), bad),
            ("one byte more", &|c| c.size = 0x101, bad),
            ("from the host", &|c| c.from = host, bad),
        ],
    );
    let fill = |c: &mut Transfer| unsafe { (t.hipMemsetAsync)(c.to, 7, c.size, null_mut()) };
    check(
        "hipMemsetAsync",
        good,
        fill,
        &[
            ("nothing is filled", &|c| (c.size, c.to) = (0, null_mut()), Nothing),
            ("null", &|c| c.to = null_mut(), bad),
            ("one byte more", &|c| c.size = 0x101, bad),
            ("the host's", &|c| c.to = host, bad),
        ],
    );
    let words = |c: &mut Transfer| unsafe { (t.hipMemsetD32Async)(c.to, 7, c.size, null_mut()) };
    check(
        "hipMemsetD32Async",
        Transfer { size: 0x40, ..good },
        words,
        &[
            ("nothing is filled", &|c| (c.size, c.to) = (0, null_mut()), Nothing),
            ("null", &|c| c.to = null_mut(), bad),
            ("not aligned", &|c| (c.to, c.size) = (at(0x10002), 1), bad),
            ("one word more", &|c| c.size = 0x41, bad),
            ("bytes that overflow", &|c| c.size = usize::MAX / 4 + 1, bad),
            ("the host's", &|c| c.to = host, bad),
        ],
    );
}
