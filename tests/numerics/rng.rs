//! A small deterministic generator (SplitMix64).

pub struct Rng(pub u64);

impl Rng {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Uniform in 0..bound.
    pub fn below(&mut self, bound: usize) -> usize {
        (((self.bits() >> 32) * bound as u64) >> 32) as usize
    }

    /// Roughly N(0, 1): the sum of twelve uniforms.
    pub fn normal(&mut self) -> f64 {
        (0..12)
            .map(|_| (self.bits() >> 11) as f64 * 2f64.powi(-53))
            .sum::<f64>()
            - 6.0
    }
}
