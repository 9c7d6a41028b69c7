//! The random-number kernels: Philox's known answers, and equal bits on every provider and for
//! every grid.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use hip::{Buffer, DType, Device, Grid, Template};

fn device() -> Arc<Device> {
    Device::get(0).expect("a provider with a device")
}

fn read(buffer: &Buffer) -> Vec<u8> {
    let mut out = vec![0; buffer.len()];
    buffer.device().read(buffer, 0, &mut out).expect("read");
    out
}

/// Random123's `kat_vectors` for philox4x32 with 10 rounds: counter, key, result.
const KNOWN: [([u32; 4], [u32; 2], [u32; 4]); 3] = [
    ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
    ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
    (
        [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
        [0xa409_3822, 0x299f_31d0],
        [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
    ),
];

#[test]
fn philox_gives_the_known_answers() {
    let device = device();
    let counters: Vec<u32> = KNOWN.iter().flat_map(|x| x.0).collect();
    let keys: Vec<u32> = KNOWN.iter().flat_map(|x| x.1).collect();
    let want: Vec<u32> = KNOWN.iter().flat_map(|x| x.2).collect();
    let counters = device.upload(bytemuck::cast_slice(&counters)).unwrap();
    let keys = device.upload(bytemuck::cast_slice(&keys)).unwrap();
    let out = device.alloc(want.len() * 4).unwrap();
    let launch = device.launch(Template::philox_words.name()).unwrap();
    let launch = launch.value(KNOWN.len() as u64).buffer(&counters, 0).buffer(&keys, 0).buffer(&out, 0);
    // SAFETY: the parameters are the count, so many counters of four words and keys of two, and
    // room for as many results.
    unsafe { launch.submit(device.grid(KNOWN.len()), 0).unwrap() };
    assert_eq!(read(&out), bytemuck::cast_slice::<u32, u8>(&want));
}

/// `random_uniform` or `random_normal`, seed 5, call 6.
fn random(template: Template, dtype: DType, count: usize, a: f64, b: f64, grid: Grid) -> Vec<u8> {
    let device = device();
    // The CPU device's blocks have one thread.
    let grid = Grid { threads: grid.threads.min(device.info().max_threads_per_block), ..grid };
    let out = device.alloc(count * dtype.size()).unwrap();
    let launch = device.launch(template.ty(dtype)).unwrap();
    let launch = launch.value(count as u64).value(5u64).value(6u64).value(a).value(b).buffer(&out, 0);
    // SAFETY: the parameters are the count, seed, call and two f64, and room for `count` elements.
    unsafe { launch.submit(grid, 0).unwrap() };
    read(&out)
}

#[test]
fn values_do_not_depend_on_the_launch() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::I32, DType::U8, DType::I64] {
        let first = random(Template::random_uniform, dtype, 5003, -3.0, 5.0, Grid { blocks: 1, threads: 64 });
        let again =
            random(Template::random_uniform, dtype, 5003, -3.0, 5.0, Grid { blocks: 7, threads: 192 });
        assert!(first == again, "{dtype}");
        let shorter =
            random(Template::random_uniform, dtype, 4001, -3.0, 5.0, Grid { blocks: 3, threads: 64 });
        assert!(first[..shorter.len()] == shorter, "{dtype}");
    }
}

/// FNV-1a over elements, which also made the reference.
fn hash(state: u64, elements: impl Iterator<Item = u64>) -> u64 {
    elements.fold(state, |h, x| (h ^ x).wrapping_mul(1_099_511_628_211))
}

#[test]
fn normals_have_the_same_bits_on_every_provider() {
    let grid = device().grid(100_003);
    let narrow = random(Template::random_normal, DType::F32, 100_003, 0.5, 2.0, grid);
    let wide = random(Template::random_normal, DType::F64, 100_003, 0.5, 2.0, grid);
    let words = narrow.chunks_exact(4).map(|x| u64::from(u32::from_le_bytes(x.try_into().unwrap())));
    let state = hash(1_469_598_103_934_665_603, words);
    let state = hash(state, wide.chunks_exact(8).map(|x| u64::from_le_bytes(x.try_into().unwrap())));
    // Computed from the kernel's source built by g++ 12 with -ffp-contract=off; the same for
    // x86-64, v3 and v4.
    assert_eq!(state, 0x3548_566e_1c37_62e4);
}
