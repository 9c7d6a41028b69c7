//! Kernels that show what a setting does. They have the arguments' address in s0 and s1, and the workgroup in s2.
#![allow(unreachable_pub, reason = "a module of tests")]

/// Each work-item writes its number to LDS and stores what it reads of its counterpart in the other wave. A barrier is
/// missing before the read.
///
/// ```text
/// s_load_dwordx2 s[4:5], s[0:1], 0x0
/// v_lshlrev_b32_e32 v1, 2, v0
/// ds_write_b32 v1, v0
/// s_waitcnt lgkmcnt(0)
/// v_xor_b32_e32 v2, 0x80, v1
/// ds_read_b32 v3, v2
/// s_waitcnt lgkmcnt(0)
/// global_store_dword v1, v3, s[4:5]
/// s_endpgm
/// ```
pub const EXCHANGE_UNORDERED: &[u32] = &[
    0xf404_0100,
    0xfa00_0000,
    0x3402_0082,
    0xd834_0000,
    0x0000_0001,
    0xbf8c_c07f,
    0x3a04_02ff,
    0x0000_0080,
    0xd8d8_0000,
    0x0300_0002,
    0xbf8c_c07f,
    0xdc70_8000,
    0x0004_0301,
    0xbf81_0000,
];
/// Stores what its memory, LDS, private memory and a register hold before anything was written: 64 words each. Then it
/// writes to all but the memory, so that the next workgroup must not see that.
///
/// ```text
/// s_load_dwordx2 s[4:5], s[0:1], 0x0
/// s_lshl_b32 s3, s2, 11
/// v_lshlrev_b32_e32 v1, 2, v0
/// v_mov_b32_e32 v2, 0
/// v_mov_b32_e32 v3, 7
/// v_add_nc_u32_e32 v4, s3, v1
/// s_waitcnt lgkmcnt(0)
/// global_load_dword v5, v4, s[4:5]
/// ds_read_b32 v6, v1
/// scratch_load_dword v7, v2, off
/// s_waitcnt vmcnt(0) lgkmcnt(0)
/// global_store_dword v4, v5, s[4:5] offset:256
/// global_store_dword v4, v6, s[4:5] offset:512
/// global_store_dword v4, v7, s[4:5] offset:768
/// global_store_dword v4, v8, s[4:5] offset:1024
/// v_mov_b32_e32 v8, 7
/// ds_write_b32 v1, v3
/// scratch_store_dword v2, v3, off
/// s_endpgm
/// ```
pub const UNWRITTEN: &[u32] = &[
    0xf404_0100,
    0xfa00_0000,
    0x8f03_8b02,
    0x3402_0082,
    0x7e04_0280,
    0x7e06_0287,
    0x4a08_0203,
    0xbf8c_c07f,
    0xdc30_8000,
    0x0504_0004,
    0xd8d8_0000,
    0x0600_0001,
    0xdc30_4000,
    0x077d_0002,
    0xbf8c_0070,
    0xdc70_8100,
    0x0004_0504,
    0xdc70_8200,
    0x0004_0604,
    0xdc70_8300,
    0x0004_0704,
    0xdc70_8400,
    0x0004_0804,
    0x7e10_0287,
    0xd834_0000,
    0x0000_0301,
    0xdc70_4000,
    0x007d_0302,
    0xbf81_0000,
];
/// Each work-item of two workgroups stores its number, and loads that of its counterpart in the other workgroup.
///
/// ```text
/// s_load_dwordx2 s[4:5], s[0:1], 0x0
/// s_lshl_b32 s3, s2, 6
/// v_add_nc_u32_e32 v0, s3, v0
/// v_lshlrev_b32_e32 v1, 2, v0
/// v_xor_b32_e32 v2, 0x100, v1
/// s_waitcnt lgkmcnt(0)
/// global_store_dword v1, v0, s[4:5]
/// s_waitcnt_vscnt null, 0x0
/// global_load_dword v3, v2, s[4:5]
/// s_waitcnt vmcnt(0)
/// global_store_dword v1, v3, s[4:5] offset:512
/// s_endpgm
/// ```
pub const RACE: &[u32] = &[
    0xf404_0100,
    0xfa00_0000,
    0x8f03_8602,
    0x4a00_0003,
    0x3402_0082,
    0x3a04_02ff,
    0x0000_0100,
    0xbf8c_c07f,
    0xdc70_8000,
    0x0004_0001,
    0xbbfd_0000,
    0xdc30_8000,
    0x0304_0002,
    0xbf8c_3f70,
    0xdc70_8200,
    0x0004_0301,
    0xbf81_0000,
];
/// Each of 8 workgroups stores 64 partial results. The last one to count itself adds them up.
///
/// ```text
/// s_load_dwordx2 s[4:5], s[0:1], 0x0
/// s_lshl_b32 s3, s2, 8
/// v_lshlrev_b32_e32 v1, 2, v0
/// v_add_nc_u32_e32 v2, s3, v1
/// v_mov_b32_e32 v3, s2
/// v_add_nc_u32_e32 v3, 1, v3
/// s_waitcnt lgkmcnt(0)
/// global_store_dword v2, v3, s[4:5] offset:512
/// s_waitcnt_vscnt null, 0x0
/// s_barrier
/// v_mov_b32_e32 v4, 0
/// v_mov_b32_e32 v5, 1
/// v_cmp_eq_u32_e32 vcc_lo, 0, v0
/// s_and_saveexec_b32 s6, vcc_lo
/// s_cbranch_execz others
/// global_atomic_add v6, v4, v5, s[4:5] glc
/// s_waitcnt vmcnt(0)
/// ds_write_b32 v4, v6
/// s_waitcnt lgkmcnt(0)
/// others:
/// s_mov_b32 exec_lo, s6
/// s_barrier
/// ds_read_b32 v6, v4
/// s_waitcnt lgkmcnt(0)
/// v_readfirstlane_b32 s7, v6
/// s_cmp_lg_u32 s7, 7
/// s_cbranch_scc1 end
/// v_mov_b32_e32 v7, 0
/// s_mov_b32 s8, 0
/// loop:
/// v_add_nc_u32_e32 v2, s8, v1
/// global_load_dword v3, v2, s[4:5] offset:512
/// s_waitcnt vmcnt(0)
/// v_add_nc_u32_e32 v7, v7, v3
/// s_addk_i32 s8, 0x100
/// s_cmpk_lg_i32 s8, 0x800
/// s_cbranch_scc1 loop
/// global_store_dword v1, v7, s[4:5] offset:256
/// end:
/// s_endpgm
/// ```
pub const LAST_REDUCES: &[u32] = &[
    0xf404_0100,
    0xfa00_0000,
    0x8f03_8802,
    0x3402_0082,
    0x4a04_0203,
    0x7e06_0202,
    0x4a06_0681,
    0xbf8c_c07f,
    0xdc70_8200,
    0x0004_0302,
    0xbbfd_0000,
    0xbf8a_0000,
    0x7e08_0280,
    0x7e0a_0281,
    0x7d84_0080,
    0xbe86_3c6a,
    0xbf88_0006,
    0xdcc9_8000,
    0x0604_0504,
    0xbf8c_3f70,
    0xd834_0000,
    0x0000_0604,
    0xbf8c_c07f,
    0xbefe_0306,
    0xbf8a_0000,
    0xd8d8_0000,
    0x0600_0004,
    0xbf8c_c07f,
    0x7e0e_0506,
    0xbf07_8707,
    0xbf85_000c,
    0x7e0e_0280,
    0xbe88_0380,
    0x4a04_0208,
    0xdc30_8200,
    0x0304_0002,
    0xbf8c_3f70,
    0x4a0e_0707,
    0xb788_0100,
    0xb208_0800,
    0xbf85_fff8,
    0xdc70_8100,
    0x0004_0701,
    0xbf81_0000,
];
/// Each workgroup waits for the flag of the one before, adds 1 to its value, and sets a flag of its own.
///
/// ```text
/// s_load_dwordx2 s[4:5], s[0:1], 0x0
/// v_readfirstlane_b32 s7, v0
/// s_cmp_lg_u32 s7, 0
/// s_cbranch_scc1 end
/// s_lshl_b32 s3, s2, 3
/// v_mov_b32_e32 v1, s3
/// v_mov_b32_e32 v2, 0
/// v_mov_b32_e32 v3, 1
/// s_waitcnt lgkmcnt(0)
/// s_cmp_eq_u32 s2, 0
/// s_cbranch_scc1 first
/// poll:
/// global_load_dword v4, v1, s[4:5] offset:-4 glc dlc
/// s_waitcnt vmcnt(0)
/// v_readfirstlane_b32 s6, v4
/// s_cmp_eq_u32 s6, 0
/// s_cbranch_scc1 poll
/// buffer_gl1_inv
/// buffer_gl0_inv
/// global_load_dword v2, v1, s[4:5] offset:-8
/// s_waitcnt vmcnt(0)
/// first:
/// v_add_nc_u32_e32 v2, 1, v2
/// global_store_dword v1, v2, s[4:5]
/// s_waitcnt_vscnt null, 0x0
/// global_store_dword v1, v3, s[4:5] offset:4
/// end:
/// s_endpgm
/// ```
pub const CHAIN: &[u32] = &[
    0xf404_0100,
    0xfa00_0000,
    0x7e0e_0500,
    0xbf07_8007,
    0xbf85_001a,
    0x8f03_8302,
    0x7e02_0203,
    0x7e04_0280,
    0x7e06_0281,
    0xbf8c_c07f,
    0xbf06_8002,
    0xbf85_000d,
    0xdc31_9ffc,
    0x0404_0001,
    0xbf8c_3f70,
    0x7e0c_0504,
    0xbf06_8006,
    0xbf85_fffa,
    0xe1c8_0000,
    0x0000_0000,
    0xe1c4_0000,
    0x0000_0000,
    0xdc30_8ff8,
    0x0204_0001,
    0xbf8c_3f70,
    0x4a04_0481,
    0xdc70_8000,
    0x0004_0201,
    0xbbfd_0000,
    0xdc70_8004,
    0x0004_0301,
    0xbf81_0000,
];
/// Each work-item stores which number it drew.
///
/// ```text
/// s_load_dwordx2 s[4:5], s[0:1], 0x0
/// s_lshl_b32 s3, s2, 6
/// v_add_nc_u32_e32 v0, s3, v0
/// v_lshlrev_b32_e32 v1, 2, v0
/// v_mov_b32_e32 v2, 0
/// v_mov_b32_e32 v3, 1
/// s_waitcnt lgkmcnt(0)
/// global_atomic_add v4, v2, v3, s[4:5] glc
/// s_waitcnt vmcnt(0)
/// global_store_dword v1, v4, s[4:5] offset:4
/// s_endpgm
/// ```
pub const TICKETS: &[u32] = &[
    0xf404_0100,
    0xfa00_0000,
    0x8f03_8602,
    0x4a00_0003,
    0x3402_0082,
    0x7e04_0280,
    0x7e06_0281,
    0xbf8c_c07f,
    0xdcc9_8000,
    0x0404_0302,
    0xbf8c_3f70,
    0xdc70_8004,
    0x0004_0401,
    0xbf81_0000,
];
