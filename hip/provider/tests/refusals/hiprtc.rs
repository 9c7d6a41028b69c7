//! hipRTC's functions.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::{null, null_mut};

use hip_provider::hiprtc::{Programs, Status, table};
use hip_sys::*;

use crate::{Fails, Runs, asked, check, dangling, text};

struct Imitation;

fn note<T>(what: &'static str, answer: T) -> Status<T> {
    asked(what);
    Ok(answer)
}

impl Programs for Imitation {
    fn version() -> Status<[c_int; 2]> {
        note("version", [7, 2])
    }
    fn create(source: &CStr, name: &CStr, headers: &[(&CStr, &CStr)]) -> Status<hiprtcProgram> {
        assert_eq!(source, c"source");
        assert!(name == c"name" || name.is_empty());
        assert!(headers.is_empty() || *headers == [(c"h", c"text")], "{headers:?}");
        note("create", dangling())
    }
    unsafe fn destroy(_: hiprtcProgram) -> Status {
        note("destroy", ())
    }
    unsafe fn add_name(_: hiprtcProgram, _: &CStr) -> Status {
        note("add_name", ())
    }
    unsafe fn compile(_: hiprtcProgram, options: &[String]) -> Status {
        assert!(options.is_empty() || options == ["-O3"], "{options:?}");
        note("compile", ())
    }
    unsafe fn log_size(_: hiprtcProgram) -> Status<usize> {
        note("log_size", 1)
    }
    unsafe fn log(_: hiprtcProgram, _: *mut c_char) -> Status {
        note("log", ())
    }
    unsafe fn lowered_name(_: hiprtcProgram, _: &CStr) -> Status<*const c_char> {
        note("lowered_name", c"lowered".as_ptr())
    }
    unsafe fn code_size(_: hiprtcProgram) -> Status<usize> {
        note("code_size", 1)
    }
    unsafe fn code(_: hiprtcProgram, _: *mut c_char) -> Status {
        panic!("must not unwind into C")
    }
}

const INPUT: crate::Then<hiprtcResult> = Fails(HIPRTC_ERROR_INVALID_INPUT);
const PROGRAM: crate::Then<hiprtcResult> = Fails(HIPRTC_ERROR_INVALID_PROGRAM);

#[derive(Clone, Copy)]
struct Create {
    program: *mut hiprtcProgram,
    source: *const c_char,
    name: *const c_char,
    count: c_int,
    headers: *const *const c_char,
    names: *const *const c_char,
}

#[test]
fn programs_are_created_and_destroyed() {
    let t = table::<Imitation>();
    let (headers, names, nulls) = ([c"text".as_ptr()], [c"h".as_ptr()], [null::<c_char>()]);
    let (headers, names, nulls) = (headers.as_ptr(), names.as_ptr(), nulls.as_ptr());
    let mut program = null_mut();
    let (source, name) = (c"source".as_ptr(), c"name".as_ptr());
    let good = Create { program: &raw mut program, source, name, count: 1, headers, names };
    let create = |c: &mut Create| unsafe {
        (t.hiprtcCreateProgram)(c.program, c.source, c.name, c.count, c.headers, c.names)
    };
    check(
        "hiprtcCreateProgram",
        good,
        create,
        &[
            ("null", &|c| c.program = null_mut(), PROGRAM),
            ("no source", &|c| c.source = null(), INPUT),
            ("no name", &|c| c.name = null(), Runs),
            ("no headers", &|c| (c.count, c.headers, c.names) = (0, null(), null()), Runs),
            ("a negative number of headers", &|c| c.count = -1, INPUT),
            ("no texts", &|c| c.headers = null(), INPUT),
            ("no names", &|c| c.names = null(), INPUT),
            ("a text that is null", &|c| c.headers = nulls, INPUT),
            ("a name that is null", &|c| c.names = nulls, INPUT),
        ],
    );
    assert!(!program.is_null());
    let good = (&raw mut program, dangling());
    let destroy = |(at, program): &mut (*mut hiprtcProgram, hiprtcProgram)| unsafe {
        if !at.is_null() {
            at.write(*program);
        }
        (t.hiprtcDestroyProgram)(*at)
    };
    check(
        "hiprtcDestroyProgram",
        good,
        destroy,
        &[("null", &|call| call.0 = null_mut(), INPUT), ("no program", &|call| call.1 = null_mut(), PROGRAM)],
    );
    assert_eq!(destroy(&mut (&raw mut program, dangling())), HIPRTC_SUCCESS);
    assert!(program.is_null(), "a destroyed program is null");
}

#[test]
fn programs_are_compiled() {
    let t = table::<Imitation>();
    let k = c"k".as_ptr();
    let add = |(program, name): &mut (hiprtcProgram, *const c_char)| unsafe {
        (t.hiprtcAddNameExpression)(*program, *name)
    };
    check(
        "hiprtcAddNameExpression",
        (dangling(), k),
        add,
        &[("no program", &|call| call.0 = null_mut(), PROGRAM), ("no name", &|call| call.1 = null(), INPUT)],
    );
    let (options, nulls, latin) = ([c"-O3".as_ptr()], [null::<c_char>()], [c"-D\xe9".as_ptr()]);
    let (options, nulls, latin) = (options.as_ptr(), nulls.as_ptr(), latin.as_ptr());
    type Compile = (hiprtcProgram, c_int, *const *const c_char);
    let compile = |(program, count, options): &mut Compile| unsafe {
        (t.hiprtcCompileProgram)(*program, *count, *options)
    };
    check(
        "hiprtcCompileProgram",
        (dangling(), 1, options),
        compile,
        &[
            ("no program", &|call| call.0 = null_mut(), PROGRAM),
            ("no options", &|call| (call.1, call.2) = (0, null()), Runs),
            ("a negative number of options", &|call| call.1 = -1, INPUT),
            ("no list of options", &|call| call.2 = null(), INPUT),
            ("an option that is null", &|call| call.2 = nulls, INPUT),
            ("an option that is not UTF-8", &|call| call.2 = latin, Fails(HIPRTC_ERROR_INVALID_OPTION)),
        ],
    );
}

#[test]
fn programs_are_read() {
    let t = table::<Imitation>();
    let (mut size, mut byte, mut name) = (0usize, 0, null());
    type Size = (hiprtcProgram, *mut usize);
    let rules: &[crate::Rule<'_, Size, hiprtcResult>] =
        &[("no program", &|call| call.0 = null_mut(), PROGRAM)];
    let good = (dangling(), &raw mut size);
    let log_size = |(program, to): &mut Size| unsafe { (t.hiprtcGetProgramLogSize)(*program, *to) };
    let code_size = |(program, to): &mut Size| unsafe { (t.hiprtcGetCodeSize)(*program, *to) };
    check("hiprtcGetProgramLogSize", good, log_size, rules);
    check("hiprtcGetCodeSize", good, code_size, rules);
    let nowhere = (dangling(), null_mut());
    assert_eq!([log_size(&mut { nowhere }), code_size(&mut { nowhere })], [HIPRTC_ERROR_INVALID_INPUT; 2]);
    type Read = (hiprtcProgram, *mut c_char);
    let log = |(program, to): &mut Read| unsafe { (t.hiprtcGetProgramLog)(*program, *to) };
    check(
        "hiprtcGetProgramLog",
        (dangling(), &raw mut byte),
        log,
        &[("no program", &|call| call.0 = null_mut(), PROGRAM), ("null", &|call| call.1 = null_mut(), INPUT)],
    );
    let code = |program, to| unsafe { (t.hiprtcGetCode)(program, to) };
    assert_eq!(code(null_mut(), &mut byte), HIPRTC_ERROR_INVALID_PROGRAM);
    assert_eq!(code(dangling(), null_mut()), HIPRTC_ERROR_INVALID_INPUT);
    assert_eq!(code(dangling(), &mut byte), HIPRTC_ERROR_INTERNAL_ERROR, "of a panic");
    type Lowered = (hiprtcProgram, *const c_char, *mut *const c_char);
    let lowered =
        |(program, name, to): &mut Lowered| unsafe { (t.hiprtcGetLoweredName)(*program, *name, *to) };
    check(
        "hiprtcGetLoweredName",
        (dangling(), c"k".as_ptr(), &raw mut name),
        lowered,
        &[("no program", &|call| call.0 = null_mut(), PROGRAM), ("no name", &|call| call.1 = null(), INPUT)],
    );
    assert_eq!(text(name), "lowered");
    assert_eq!(lowered(&mut (dangling(), c"k".as_ptr(), null_mut())), HIPRTC_ERROR_INVALID_INPUT);
    let (mut major, mut minor) = (0, 0);
    type Version = (*mut c_int, *mut c_int);
    let version = |(major, minor): &mut Version| unsafe { (t.hiprtcVersion)(*major, *minor) };
    check(
        "hiprtcVersion",
        (&raw mut major, &raw mut minor),
        version,
        &[("no major", &|call| call.0 = null_mut(), INPUT), ("no minor", &|call| call.1 = null_mut(), INPUT)],
    );
    assert_eq!((major, minor), (7, 2));
}

#[test]
fn statuses() {
    let t = table::<Imitation>();
    for (status, name) in [
        (0, "HIPRTC_SUCCESS"),
        (1, "HIPRTC_ERROR_OUT_OF_MEMORY"),
        (2, "HIPRTC_ERROR_PROGRAM_CREATION_FAILURE"),
        (3, "HIPRTC_ERROR_INVALID_INPUT"),
        (4, "HIPRTC_ERROR_INVALID_PROGRAM"),
        (5, "HIPRTC_ERROR_INVALID_OPTION"),
        (6, "HIPRTC_ERROR_COMPILATION"),
        (7, "HIPRTC_ERROR_BUILTIN_OPERATION_FAILURE"),
        (8, "HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION"),
        (9, "HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION"),
        (10, "HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID"),
        (11, "HIPRTC_ERROR_INTERNAL_ERROR"),
        (99, "HIPRTC_ERROR_INTERNAL_ERROR"),
    ] {
        assert_eq!(text(unsafe { (t.hiprtcGetErrorString)(status) }), name);
    }
}
