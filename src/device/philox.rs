//! Random numbers by position: Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011), a counter-based
//! generator. Element i of a stream is the same on every device, for every number of threads, and
//! when it is asked for a second time: a checkpoint replays its dropout masks from this.

/// One stream of random numbers: a key and the part of the counter that is not the position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stream {
    pub(crate) seed: u64,
    pub(crate) stream: u64,
}

impl Stream {
    /// Four independent 32-bit numbers for one position.
    #[inline]
    pub(crate) fn block(self, position: u64) -> [u32; 4] {
        let mut c = [
            position as u32,
            (position >> 32) as u32,
            self.stream as u32,
            (self.stream >> 32) as u32,
        ];
        let mut k = [self.seed as u32, (self.seed >> 32) as u32];
        for _ in 0..10 {
            let p0 = 0xD251_1F53u64 * c[0] as u64;
            let p1 = 0xCD9E_8D57u64 * c[2] as u64;
            c = [
                (p1 >> 32) as u32 ^ c[1] ^ k[0],
                p1 as u32,
                (p0 >> 32) as u32 ^ c[3] ^ k[1],
                p0 as u32,
            ];
            k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
        }
        c
    }

    /// Uniform on `[0, 1)` with 53 bits.
    #[inline]
    pub(crate) fn uniform(self, position: u64) -> f64 {
        let [a, b, ..] = self.block(position);
        ((a as u64) << 21 | (b as u64) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Standard normal, by Box and Muller's transform (1958).
    #[inline]
    pub(crate) fn normal(self, position: u64) -> f64 {
        let [a, b, c, d] = self.block(position);
        let unit = |hi: u32, lo: u32| {
            (((hi as u64) << 21 | (lo as u64) >> 11) as f64 + 0.5) * (1.0 / (1u64 << 53) as f64)
        };
        (-2.0 * unit(a, b).ln()).sqrt() * (std::f64::consts::TAU * unit(c, d)).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors publish with their implementation (Random123, kat_vectors).
    #[test]
    fn known_answers() {
        let zero = Stream { seed: 0, stream: 0 };
        assert_eq!(zero.block(0), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        let ones = Stream { seed: u64::MAX, stream: u64::MAX };
        assert_eq!(ones.block(u64::MAX), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        let pi = Stream { seed: 0x299f31d0_a4093822, stream: 0x03707344_13198a2e };
        assert_eq!(pi.block(0x85a308d3_243f6a88), [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]);
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        let stream = Stream { seed: 7, stream: 3 };
        let n = 100_000u64;
        let moments = |f: &dyn Fn(u64) -> f64| {
            let mean = (0..n).map(f).sum::<f64>() / n as f64;
            let variance = (0..n).map(|i| (f(i) - mean).powi(2)).sum::<f64>() / n as f64;
            (mean, variance)
        };
        // Four standard errors of each estimate.
        let (mean, variance) = moments(&|i| stream.uniform(i));
        assert!((mean - 0.5).abs() < 4.0 * (1.0 / 12.0 / n as f64).sqrt());
        assert!((variance - 1.0 / 12.0).abs() < 4.0 * (1.0 / 180.0 / n as f64).sqrt());
        let (mean, variance) = moments(&|i| stream.normal(i));
        assert!(mean.abs() < 4.0 / (n as f64).sqrt());
        assert!((variance - 1.0).abs() < 4.0 * (2.0 / n as f64).sqrt());
    }
}
