//! Random encodings run without a panic, whatever they are: they end, fault or yield.

use virtual_gpu::isa::{Code, Lds, LdsInit, Wave, WaveInit};
use virtual_gpu::memory::AllocationMap;

use crate::random::{Random, seed};

/// First dwords of the formats, and the bits that they fix.
const FORMATS: [(u32, u32); 12] = [
    (0x8000_0000, 0xc000_0000),
    (0xbe80_0000, 0xff80_0000),
    (0xb000_0000, 0xf000_0000),
    (0xf400_0000, 0xfc00_0000),
    (0x0000_0000, 0x8000_0000),
    (0x7e00_0000, 0xfe00_0000),
    (0x7c00_0000, 0xfe00_0000),
    (0xd400_0000, 0xfc00_0000),
    (0xcc00_0000, 0xfc00_0000),
    (0xd800_0000, 0xfc00_0000),
    (0xdc00_0000, 0xfc00_0000),
    (0xe000_0000, 0xfc00_0000),
];

#[test]
fn random_encodings_do_not_panic() {
    let mut random = Random::new(seed());
    let memory = AllocationMap::new();
    let mut lds = Lds::new(&LdsInit { size: 512, races: true, ..LdsInit::default() });
    for round in 0..40_000 {
        let (base, fixed) = FORMATS[round % FORMATS.len()];
        let mut words = [0xbf81_0000; 8];
        words[0] = base | random.next() & !fixed;
        words[1] = random.next();
        words[2] = random.next();
        let code = Code::new();
        code.add(words.as_ptr() as u64, 32);
        let mut wave = Wave::new(&WaveInit {
            pc: words.as_ptr() as u64,
            sgprs: &[0, 64, 500, 0xffff_ffff, 3],
            vgprs: [[0; 32]; 3],
            exec: [u32::MAX, random.next(), 0][round % 3],
            vgpr_count: [256, 64][round % 2],
            mode: [0x3f0, 0x3c0, random.next() & 0x3ff][round % 3],
            scratch: 0,
            scratch_stride: 0,
            index: 0,
            poison: round % 5 == 0,
        });
        (0..8).for_each(|reg| wave.set_vgpr(reg, &random.lanes()));
        wave.set_sgpr(124, random.next());
        let _stop = wave.run(&code, &mut lds, &memory, 100);
    }
}
