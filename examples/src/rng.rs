//! A small random number generator. With it, data and order depend only on the seed, not on the
//! version of a crate.

/// SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014).
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// A generator for `seed`. `stream` separates independent uses of one seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut rng = Self { state: seed ^ stream.wrapping_mul(0xD1B5_4A32_D192_ED03) };
        // Neighbouring seeds may differ in one bit only. One step spreads the difference.
        rng.state = rng.next_u64();
        rng
    }

    /// The next 64 uniform bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `0..bound`; `bound` must not be 0. The bias is below 2^-32 for the bounds used
    /// here.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// Uniform in `[low, high)`.
    pub fn range(&mut self, low: f32, high: f32) -> f32 {
        let unit = (self.next_u64() >> 40) as f32 / (1u64 << 24) as f32;
        low + unit * (high - low)
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f32) -> bool {
        self.range(0.0, 1.0) < p
    }

    /// Close to a standard normal: the sum of four uniforms, scaled to variance 1.
    pub fn normal(&mut self) -> f32 {
        let sum: f32 = (0..4).map(|_| self.range(-1.0, 1.0)).sum();
        sum * (3.0f32 / 4.0).sqrt()
    }

    /// Shuffles in place (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_and_streams_differ_and_repeat() {
        let draw = |seed, stream| {
            (0..4).map(|_| 0).scan(Rng::new(seed, stream), |r, _: i32| Some(r.next_u64())).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 0), draw(1, 0));
        assert_ne!(draw(1, 0), draw(2, 0));
        assert_ne!(draw(1, 0), draw(1, 1));
    }

    #[test]
    fn normal_has_mean_0_and_variance_1() {
        let mut rng = Rng::new(7, 0);
        let draws: Vec<f32> = (0..100_000).map(|_| rng.normal()).collect();
        let mean = draws.iter().sum::<f32>() / 1e5;
        let variance = draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / 1e5;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "mean {mean}, variance {variance}");
    }

    #[test]
    fn shuffle_keeps_every_item() {
        let mut items: Vec<usize> = (0..1000).collect();
        Rng::new(3, 0).shuffle(&mut items);
        assert_ne!(items, (0..1000).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..1000).collect::<Vec<_>>());
    }
}
