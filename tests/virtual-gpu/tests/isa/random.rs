//! Random test values.

/// The seed of a test with random input, which it prints: `BURN_ROCM_TEST_SEED`, or a fixed one.
pub(crate) fn seed() -> u64 {
    let given = std::env::var("BURN_ROCM_TEST_SEED");
    let seed = given.map_or(20_261_124, |text| text.parse().expect("BURN_ROCM_TEST_SEED is a number"));
    println!("BURN_ROCM_TEST_SEED={seed}");
    seed
}

/// A generator of test values: xorshift64*, Vigna, "An experimental exploration of Marsaglia's xorshift generators".
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(1))
    }

    pub(crate) fn next(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    /// A lane's worth of bits for each lane.
    pub(crate) fn lanes(&mut self) -> [u32; 32] {
        std::array::from_fn(|_| self.next())
    }
}
