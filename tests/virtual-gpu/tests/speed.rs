//! How fast waves run: a loop of loads, LDS, arithmetic and stores, as in most kernels.

#[path = "support/api.rs"]
#[allow(dead_code, reason = "each test uses a part")]
mod api;
mod support;

use std::time::Instant;

use api::*;
use support::{Kernel, Source};

/// Loops of each wave.
const LOOPS: u64 = 4096;
/// Instructions of a loop.
const LOOP: u64 = 14;
const GROUPS: u32 = 64;
/// Launches in a measurement, of which the quickest counts.
const LAUNCHES: usize = 10;

/// ```text
/// s_load_dwordx2 s[4:5], s[0:1], 0x0
/// s_lshl_b32 s3, s2, 6
/// v_add_nc_u32_e32 v1, s3, v0
/// v_lshlrev_b32_e32 v1, 2, v1
/// v_lshlrev_b32_e32 v2, 2, v0
/// s_movk_i32 s6, 0x1000
/// s_waitcnt lgkmcnt(0)
/// loop:
/// global_load_dword v3, v1, s[4:5]
/// s_waitcnt vmcnt(0)
/// ds_write_b32 v2, v3
/// s_waitcnt lgkmcnt(0)
/// ds_read_b32 v4, v2
/// s_waitcnt lgkmcnt(0)
/// v_fma_f32 v5, v3, v4, v5
/// v_fma_f32 v6, v3, v4, v6
/// v_add_f32_e32 v7, v5, v6
/// v_mul_f32_e32 v8, v7, v3
/// s_sub_i32 s6, s6, 1
/// global_store_dword v1, v3, s[4:5]
/// s_cmp_lg_u32 s6, 0
/// s_cbranch_scc1 loop
/// s_endpgm
/// ```
const CODE: &[u32] = &[
    0xf404_0100,
    0xfa00_0000,
    0x8f03_8602,
    0x4a02_0003,
    0x3402_0282,
    0x3404_0082,
    0xb006_1000,
    0xbf8c_c07f,
    0xdc30_8000,
    0x0304_0001,
    0xbf8c_3f70,
    0xd834_0000,
    0x0000_0302,
    0xbf8c_c07f,
    0xd8d8_0000,
    0x0400_0002,
    0xbf8c_c07f,
    0xd54b_0005,
    0x0416_0903,
    0xd54b_0006,
    0x041a_0903,
    0x060e_0d05,
    0x1010_0707,
    0x8186_8106,
    0xdc70_8000,
    0x0004_0301,
    0xbf07_8006,
    0xbf85_ffec,
    0xbf81_0000,
];

#[test]
#[ignore = "a measurement: run it with --release -- --ignored --nocapture"]
fn instructions_a_second() {
    let queue = TestQueue::new();
    let kernel = kernel(load(&Source::new(&[Kernel { lds: 256, ..Kernel::new("loops", CODE) }])), "loops");
    let memory = allocate(pool(agents().1), 64 * 4 * GROUPS as usize);
    let launch = || {
        let (begin, done) = (Instant::now(), signal(1));
        queue.dispatch_with(kernel, GROUPS, 256, memory as u64, done);
        wait(done);
        begin.elapsed().as_secs_f64()
    };
    let quickest = (0..LAUNCHES).map(|_| launch()).fold(f64::INFINITY, f64::min);
    assert_eq!(queue.errors(), []);
    let instructions = 2 * u64::from(GROUPS) * LOOPS * LOOP;
    println!("{:.1} million wave instructions a second", instructions as f64 / quickest / 1e6);
}
