//! Devices and their names.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr::null_mut;

use hip_provider::runtime::device;
use hip_sys::*;

use super::{COUNT, check_out, hip};
use crate::{Fails, check};

#[test]
fn devices() {
    let t = hip();
    for (count, index, expected) in [
        (0, 0, Err(hipErrorNoDevice)),
        (2, -1, Err(hipErrorInvalidDevice)),
        (2, 0, Ok(())),
        (2, 1, Ok(())),
        (2, 2, Err(hipErrorInvalidDevice)),
    ] {
        assert_eq!(device(&[(); 2][..count], index).copied(), expected, "device {index} of {count}");
    }
    unsafe {
        assert_eq!([(t.hipInit)(0), (t.hipInit)(1)], [hipSuccess, hipErrorInvalidValue]);
        let mut count = 9;
        assert_eq!((t.hipGetDeviceCount)(&mut count), hipSuccess);
        assert_eq!((count, (t.hipGetDeviceCount)(null_mut())), (2, hipErrorInvalidValue));
        COUNT.set(0);
        assert_eq!([(t.hipGetDeviceCount)(&mut count), (t.hipInit)(0)], [hipErrorNoDevice; 2]);
        COUNT.set(2);
        assert_eq!(count, 0);
        let mut index = 9;
        assert_eq!((t.hipGetDevice)(&mut index), hipSuccess);
        assert_eq!((index, (t.hipGetDevice)(null_mut())), (0, hipErrorInvalidValue));
    }
    assert_eq!(
        check_out("hipDeviceGetAttribute", 0, true, |to| unsafe { (t.hipDeviceGetAttribute)(to, 1, 0) }),
        7
    );
    assert_eq!(check_out("hipDeviceTotalMem", 0, true, |to| unsafe { (t.hipDeviceTotalMem)(to, 0) }), 7);
    assert_eq!(check_out("hipDriverGetVersion", 0, true, |to| unsafe { (t.hipDriverGetVersion)(to) }), 7);
    assert_eq!(check_out("hipRuntimeGetVersion", 0, true, |to| unsafe { (t.hipRuntimeGetVersion)(to) }), 7);
    assert_eq!(
        check_out("hipDeviceCanAccessPeer", 0, true, |to| unsafe { (t.hipDeviceCanAccessPeer)(to, 0, 1) }),
        1
    );
    assert_eq!(check_out("hipMemGetInfo: free", 0, true, |to| unsafe { (t.hipMemGetInfo)(to, &mut 0) }), 3);
    assert_eq!(check_out("hipMemGetInfo: total", 0, true, |to| unsafe { (t.hipMemGetInfo)(&mut 0, to) }), 7);
    let peer = |(peer, flags): &mut (c_int, c_uint)| unsafe { (t.hipDeviceEnablePeerAccess)(*peer, *flags) };
    check(
        "hipDeviceEnablePeerAccess",
        (1, 0),
        peer,
        &[
            ("flags", &|call| call.1 = 1, Fails(hipErrorInvalidValue)),
            ("itself", &|call| call.0 = 0, Fails(hipErrorInvalidDevice)),
        ],
    );
}

/// Names are cut to the room for them, and end with a NUL.
#[test]
fn names() {
    let t = hip();
    let mut room = [1; 20];
    let good = (room.as_mut_ptr(), 20, 0);
    let name = |(to, len, index): &mut (*mut c_char, c_int, c_int)| unsafe {
        (t.hipDeviceGetName)(*to, *len, *index)
    };
    check(
        "hipDeviceGetName",
        good,
        name,
        &[
            ("null", &|call| call.0 = null_mut(), Fails(hipErrorInvalidValue)),
            ("no room", &|call| call.1 = 0, Fails(hipErrorInvalidValue)),
            ("a negative length", &|call| call.1 = -1, Fails(hipErrorInvalidValue)),
            ("no such device", &|call| call.2 = 2, Fails(hipErrorInvalidDevice)),
            ("the device comes first", &|call| *call = (null_mut(), 20, -1), Fails(hipErrorInvalidDevice)),
        ],
    );
    for (len, expected) in [(1, ""), (4, "Imi"), (9, "Imitatio"), (10, "Imitation"), (20, "Imitation")] {
        room = [1; 20];
        assert_eq!(name(&mut (room.as_mut_ptr(), len, 0)), hipSuccess);
        assert_eq!(unsafe { CStr::from_ptr(room.as_ptr()) }.to_str(), Ok(expected));
        assert!(room[len as usize..].iter().all(|byte| *byte == 1), "past the room");
    }
    macro_rules! architectures {
        ($($function:ident $properties:ident $before:literal $after:literal;)*) => { $(
            for (index, expected) in [(0, "gfxgfx".to_owned()), (1, "gfx".repeat(85))] {
                let mut properties =
                    $properties { before: [1; $before], gcnArchName: [1; 256], after: [1; $after] };
                let get = t.$function.unwrap();
                assert_eq!(unsafe { get(&mut properties, index) }, hipSuccess);
                assert_eq!(unsafe { CStr::from_ptr(properties.gcnArchName.as_ptr()) }.to_str(), Ok(&*expected));
                assert_eq!(unsafe { get(null_mut(), index) }, hipErrorInvalidValue);
            }
        )* };
    }
    architectures! {
        hipGetDevicePropertiesR0600 hipDeviceProp_tR0600 1160 56;
        hipGetDeviceProperties hipDeviceProp_tR0000 396 140;
    }
}
