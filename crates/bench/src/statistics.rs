//! From measurements to figures: medians, spreads, ratios.
//!
//! A case is measured in several rounds, servers alternating. Each round gives one [`Figures`] per
//! server. Over rounds a figure is reported as its median with the smallest and largest value
//! ([`Spread`]); a ratio is formed within each round first, so that what slows the whole machine for a
//! moment slows both sides of it, and its spread is that of the per-round ratios.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Latencies up to five minutes, with two significant digits, in microseconds.
pub fn empty_latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 300_000_000, 2).expect("the bounds are valid")
}

pub fn record_latency(latencies: &mut Histogram<u64>, latency: Duration) {
    let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
    latencies.saturating_record(micros.max(1));
}

/// What one measurement of one server gave.
#[derive(Debug)]
pub struct Measurement {
    pub elapsed: Duration,
    /// Operations or documents, by the workload's unit.
    pub units: u64,
    pub latencies: Histogram<u64>,
    pub server_cpu: Duration,
    pub client_cpu: Duration,
}

/// One measurement, per second and per unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    pub throughput: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub server_cpu_us: f64,
    pub client_cpu_us: f64,
}

impl Measurement {
    pub fn figures(&self) -> Figures {
        let per_unit = |cpu: Duration| cpu.as_secs_f64() * 1e6 / self.units.max(1) as f64;
        Figures {
            throughput: self.units as f64 / self.elapsed.as_secs_f64(),
            p50_us: self.latencies.value_at_quantile(0.50) as f64,
            p99_us: self.latencies.value_at_quantile(0.99) as f64,
            server_cpu_us: per_unit(self.server_cpu),
            client_cpu_us: per_unit(self.client_cpu),
        }
    }
}

/// A figure over several rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// `None` without values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(values[middle - 1], values[middle])
        } else {
            values[middle]
        };
        Some(Spread { median, min, max })
    }
}

/// The ratio of a figure, one side to the other, formed round by round.
pub fn ratio(
    numerator: &[Figures],
    denominator: &[Figures],
    figure: fn(&Figures) -> f64,
) -> Option<Spread> {
    let rounds = numerator.iter().zip(denominator);
    Spread::of(
        rounds
            .map(|(above, below)| figure(above) / figure(below))
            .filter(|ratio| ratio.is_finite()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(values: &[f64], expected: Option<(f64, f64, f64)>) {
        let spread = Spread::of(values.iter().copied());
        assert_eq!(
            spread.map(|spread| (spread.median, spread.min, spread.max)),
            expected,
            "{values:?}"
        );
    }

    #[test]
    fn spreads() {
        check(&[], None);
        check(&[3.0], Some((3.0, 3.0, 3.0)));
        check(&[4.0, 2.0], Some((3.0, 2.0, 4.0)));
        check(&[9.0, 1.0, 5.0], Some((5.0, 1.0, 9.0)));
        check(&[4.0, 1.0, 3.0, 2.0], Some((2.5, 1.0, 4.0)));
    }

    fn figures(throughput: f64) -> Figures {
        Figures {
            throughput,
            p50_us: 1.0,
            p99_us: 1.0,
            server_cpu_us: 1.0,
            client_cpu_us: 1.0,
        }
    }

    #[test]
    fn ratios_are_formed_within_a_round() {
        // The second round was slow for both: each round's ratio is 2 all the same.
        let fast = [figures(200.0), figures(20.0)];
        let slow = [figures(100.0), figures(10.0)];
        let spread = ratio(&fast, &slow, |figures| figures.throughput).expect("a ratio");
        assert_eq!((spread.median, spread.min, spread.max), (2.0, 2.0, 2.0));
        assert_eq!(ratio(&[], &[], |figures| figures.throughput), None);
        let nothing = ratio(&[figures(1.0)], &[figures(0.0)], |figures| {
            figures.throughput
        });
        assert_eq!(nothing, None, "a ratio to zero says nothing");
    }

    #[test]
    fn figures_are_per_unit_and_second() {
        let mut latencies = empty_latencies();
        for micros in 1..=100 {
            record_latency(&mut latencies, Duration::from_micros(micros));
        }
        let figures = Measurement {
            elapsed: Duration::from_secs(2),
            units: 100,
            latencies,
            server_cpu: Duration::from_millis(3),
            client_cpu: Duration::from_millis(1),
        }
        .figures();
        assert_eq!(figures.throughput, 50.0);
        assert_eq!(figures.p50_us, 50.0);
        assert_eq!(figures.p99_us, 99.0);
        assert_eq!(figures.server_cpu_us, 30.0);
        assert_eq!(figures.client_cpu_us, 10.0);
    }

    #[test]
    fn latencies_beyond_the_bounds_are_kept() {
        let mut latencies = empty_latencies();
        record_latency(&mut latencies, Duration::ZERO);
        record_latency(&mut latencies, Duration::from_secs(100_000));
        assert_eq!(latencies.len(), 2);
    }
}
