//! Which record a request asks for.
//!
//! YCSB requests are skewed: a few records are hot. [`Zipfian`] draws ranks with probability
//! proportional to `1 / (rank + 1)^0.99`, by the constant-time method of Gray and others
//! ("Quickly generating billion-record synthetic databases"): the normalising sum is computed once,
//! a draw then costs one random number and at most one power.
//!
//! Two uses follow from a rank:
//! - *scrambled*: the rank is hashed over the records, so that hot records lie scattered
//!   ([`Zipfian::scrambled`]; workloads A, B, C, E, F);
//! - *latest*: rank 0 is the newest record ([`Zipfian::latest`]; workload D).
//!
//! Records added during a run do not widen the distribution: the sum stays that of the loaded records,
//! which shifts the skew by less than the noise of any run.

use fastrand::Rng;

/// YCSB's constant: the hottest of 100,000 records gets about 8% of all requests.
const SKEW: f64 = 0.99;

#[derive(Debug, Clone)]
pub struct Zipfian {
    ranks: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
    /// Draws below this (scaled by zeta) are rank 1; below 1.0 they are rank 0.
    second_rank_limit: f64,
}

impl Zipfian {
    /// A distribution over ranks `0..ranks`; there must be at least two.
    pub fn new(ranks: u64) -> Zipfian {
        assert!(ranks >= 2, "a zipfian distribution needs two ranks");
        let zeta: f64 = (1..=ranks).map(|rank| (rank as f64).powf(-SKEW)).sum();
        let zeta_of_two = 1.0 + 0.5f64.powf(SKEW);
        let eta = (1.0 - (2.0 / ranks as f64).powf(1.0 - SKEW)) / (1.0 - zeta_of_two / zeta);
        Zipfian {
            ranks,
            zeta,
            alpha: 1.0 / (1.0 - SKEW),
            eta,
            second_rank_limit: zeta_of_two,
        }
    }

    /// A rank: 0 is the most likely one.
    pub fn rank(&self, random: &mut Rng) -> u64 {
        let draw = random.f64();
        let scaled = draw * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < self.second_rank_limit {
            return 1;
        }
        let rank = self.ranks as f64 * (self.eta * draw - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.ranks - 1)
    }

    /// A record number below `records`, hot ones scattered over the whole range.
    pub fn scrambled(&self, records: u64, random: &mut Rng) -> u64 {
        scatter(self.rank(random)) % records
    }

    /// A record number below `records`, the newest ones hot.
    pub fn latest(&self, records: u64, random: &mut Rng) -> u64 {
        records - 1 - self.rank(random).min(records - 1)
    }
}

/// Spreads consecutive numbers over all 64-bit values (the finaliser of SplitMix64).
pub fn scatter(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 200_000;

    /// Draws many ranks and compares the share of each named rank with the exact probability.
    fn check(ranks: u64, named: &[u64]) {
        let zipfian = Zipfian::new(ranks);
        let mut random = Rng::with_seed(7);
        let mut seen = vec![0u64; ranks as usize];
        for _ in 0..DRAWS {
            seen[zipfian.rank(&mut random) as usize] += 1;
        }
        let zeta: f64 = (1..=ranks).map(|rank| (rank as f64).powf(-SKEW)).sum();
        for &rank in named {
            let expected = ((rank + 1) as f64).powf(-SKEW) / zeta;
            let share = seen[rank as usize] as f64 / DRAWS as f64;
            // The method is exact for ranks 0 and 1 and an approximation for the rest.
            let tolerance = if rank < 2 { 0.05 } else { 0.35 };
            assert!(
                (share / expected - 1.0).abs() < tolerance,
                "{ranks} ranks, rank {rank}: share {share}, expected {expected}"
            );
        }
    }

    #[test]
    fn shares_follow_the_law() {
        check(2, &[0, 1]);
        check(100, &[0, 1, 2, 10, 50]);
        check(100_000, &[0, 1, 2, 9]);
    }

    #[test]
    fn drawn_records_exist() {
        let zipfian = Zipfian::new(1_000);
        let mut random = Rng::with_seed(1);
        for _ in 0..DRAWS {
            assert!(zipfian.rank(&mut random) < 1_000);
            assert!(zipfian.scrambled(1_500, &mut random) < 1_500);
            assert!(zipfian.latest(1_500, &mut random) < 1_500);
            assert!(zipfian.latest(5, &mut random) < 5);
        }
    }

    #[test]
    fn latest_prefers_the_newest() {
        let zipfian = Zipfian::new(1_000);
        let mut random = Rng::with_seed(3);
        let newest = (0..10_000)
            .filter(|_| zipfian.latest(2_000, &mut random) == 1_999)
            .count();
        assert!(
            newest > 1_000,
            "the newest record was drawn {newest} times of 10,000"
        );
    }

    #[test]
    fn scatter_is_one_to_one_on_a_sample() {
        let mut scattered: Vec<u64> = (0..100_000).map(scatter).collect();
        scattered.sort_unstable();
        scattered.dedup();
        assert_eq!(scattered.len(), 100_000);
    }
}
