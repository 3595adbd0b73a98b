//! What a comparison came to: for the terminal, as Markdown, as JSON.
//!
//! The side compared *with* comes first (`mongod`), the side in question second; ratios are second to
//! first, so a throughput ratio above 1 and a CPU ratio below 1 speak for the second.

use serde_json::{Value, json};

use crate::loading::Footprint;
use crate::options::ComparePlan;
use crate::servers::Shape;
use crate::statistics::{Figures, Spread, ratio};
use crate::table::{Table, megabytes, number, time};
use crate::workload::{Case, Durability, Unit, Workload};

/// What is aimed for, as ratios to the other server.
struct Aims {
    /// Server CPU per operation that every workload should stay within …
    cpu: f64,
    /// … and reads by `_id`.
    cpu_for_reads: f64,
    /// How many times as fast majority writes at few connections should be.
    majority_rate: Option<f64>,
    /// Memory and disk should be no larger.
    sizes: bool,
}

impl Aims {
    /// One server has aims for everything; several processes, or a cluster, beside one `mongod` have
    /// them for the CPU of an operation.
    fn of(plan: &ComparePlan) -> Aims {
        let cpu_alone = |cpu| Aims {
            cpu,
            cpu_for_reads: cpu,
            majority_rate: None,
            sizes: false,
        };
        match plan.shape {
            Some(Shape { apart: true, .. }) => cpu_alone(1.0 / 2.0),
            Some(Shape { apart: false, .. }) => cpu_alone(1.0 / 3.0),
            None if plan.members > 1 => cpu_alone(1.0 / 2.0),
            None => Aims {
                cpu: 1.0 / 3.0,
                cpu_for_reads: 1.0 / 6.0,
                majority_rate: Some(3.0),
                sizes: true,
            },
        }
    }
}

const FEW_CONNECTIONS: usize = 8;

pub struct CaseResult {
    pub case: Case,
    /// One list per side, one entry per round.
    pub figures: Vec<Vec<Figures>>,
}

pub struct SideSummary {
    pub label: String,
    pub footprint: Footprint,
    pub resident_bytes_at_end: u64,
}

pub struct Report {
    pub machine: String,
    pub plan: ComparePlan,
    pub sides: Vec<SideSummary>,
    pub results: Vec<CaseResult>,
}

/// The figures of a measurement by name, for columns that treat them alike.
const THROUGHPUT: fn(&Figures) -> f64 = |figures| figures.throughput;
const P50: fn(&Figures) -> f64 = |figures| figures.p50_us;
const P99: fn(&Figures) -> f64 = |figures| figures.p99_us;
const SERVER_CPU: fn(&Figures) -> f64 = |figures| figures.server_cpu_us;
const CLIENT_CPU: fn(&Figures) -> f64 = |figures| figures.client_cpu_us;

fn spread(rounds: &[Figures], figure: fn(&Figures) -> f64) -> Option<Spread> {
    Spread::of(rounds.iter().map(figure))
}

fn shown(spread: Option<Spread>, format: fn(f64) -> String) -> String {
    spread.map_or_else(|| "-".to_owned(), |spread| format(spread.median))
}

fn range(spread: Option<Spread>) -> String {
    let text = |spread: Spread| format!("{}..{}", number(spread.min), number(spread.max));
    spread.map_or_else(|| "-".to_owned(), text)
}

/// Its median, and what it lies between.
pub fn with_range(spread: Option<Spread>) -> String {
    if spread.is_none_or(|spread| spread.min == spread.max) {
        return shown(spread, number);
    }
    format!("{} ({})", shown(spread, number), range(spread))
}

/// A size by what it is called.
type Size = (&'static str, fn(&SideSummary) -> u64);

/// What the other server takes more of, of memory and disk.
fn larger(base: &SideSummary, other: &SideSummary) -> Vec<String> {
    let sizes: [Size; 4] = [
        ("memory after loading", |side| side.footprint.resident_bytes),
        ("memory at the end", |side| side.resident_bytes_at_end),
        ("disk after loading", |side| side.footprint.disk_bytes),
        ("disk after loading, without the log", |side| {
            side.footprint.disk_bytes_without_log()
        }),
    ];
    let larger = sizes
        .iter()
        .filter(|(_, size)| size(other) > size(base))
        .map(|(what, size)| {
            let [of_base, of_other] = [base, other].map(|side| megabytes(size(side)));
            format!("- {what}: {of_other} against {of_base}")
        });
    larger.collect()
}

impl Report {
    pub fn text(&self) -> String {
        let mut text = format!("{}\n{}\n\n", self.machine, self.conditions());
        text += &self.measured_table().text();
        text += "\n";
        text += &self.footprint_table().text();
        for line in self.aims() {
            text += &format!("\n{line}");
        }
        text
    }

    pub fn markdown(&self) -> String {
        let mut text = format!("{}. {}\n\n", self.machine, self.conditions());
        text += &self.markdown_table().markdown();
        text += "\n";
        text += &self.footprint_table().markdown();
        text += "\n";
        for line in self.aims() {
            text += &format!("{line}\n");
        }
        text
    }

    fn conditions(&self) -> String {
        format!(
            "{} users of 1.1 kB and {} orders; {} round(s) of {:.1} s per server and case; median, (smallest..largest). \
             CPU is user and system time per operation, or per document for load and full scan.",
            number(self.plan.records as f64),
            number(self.plan.records as f64),
            self.plan.rounds,
            self.plan.pace.measure.as_secs_f64(),
        )
    }

    fn measured_table(&self) -> Table {
        let mut table = Table::new(
            3,
            &[
                "workload",
                "conn",
                "server",
                "per second",
                "min..max",
                "p50",
                "p99",
                "CPU µs",
                "min..max",
                "client µs",
            ],
        );
        for result in &self.results {
            for (position, rounds) in result.figures.iter().enumerate() {
                let first = position == 0;
                let unit = match result.case.workload.unit() {
                    Unit::Operation => "",
                    Unit::Document => ", documents",
                };
                table.push(vec![
                    if first {
                        format!("{}{unit}", result.case)
                    } else {
                        String::new()
                    },
                    if first {
                        result.case.connections.to_string()
                    } else {
                        String::new()
                    },
                    self.sides[position].label.clone(),
                    shown(spread(rounds, THROUGHPUT), number),
                    range(spread(rounds, THROUGHPUT)),
                    shown(spread(rounds, P50), time),
                    shown(spread(rounds, P99), time),
                    shown(spread(rounds, SERVER_CPU), number),
                    range(spread(rounds, SERVER_CPU)),
                    shown(spread(rounds, CLIENT_CPU), number),
                ]);
            }
            if let [base, other] = &result.figures[..] {
                let times = |value: f64| format!("×{}", number(value));
                let of = |figure| ratio(other, base, figure);
                table.push(vec![
                    String::new(),
                    String::new(),
                    "ratio".to_owned(),
                    shown(of(THROUGHPUT), times),
                    range(of(THROUGHPUT)),
                    shown(of(P50), times),
                    shown(of(P99), times),
                    shown(of(SERVER_CPU), times),
                    range(of(SERVER_CPU)),
                    String::new(),
                ]);
            }
        }
        table
    }

    fn markdown_table(&self) -> Table {
        let mut header = vec!["workload".to_owned(), "connections".to_owned()];
        for side in &self.sides {
            header.push(format!("{} per second", side.label));
            header.push("p50".to_owned());
            header.push("p99".to_owned());
            header.push("CPU µs".to_owned());
        }
        let compared = self.sides.len() == 2;
        if compared {
            header.push("rate ratio".to_owned());
            header.push("CPU ratio".to_owned());
        }
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let mut table = Table::new(1, &header);
        for result in &self.results {
            let mut row = vec![result.case.to_string(), result.case.connections.to_string()];
            for rounds in &result.figures {
                row.push(with_range(spread(rounds, THROUGHPUT)));
                row.push(shown(spread(rounds, P50), time));
                row.push(shown(spread(rounds, P99), time));
                row.push(with_range(spread(rounds, SERVER_CPU)));
            }
            if let [base, other] = &result.figures[..] {
                row.push(with_range(ratio(other, base, THROUGHPUT)));
                row.push(with_range(ratio(other, base, SERVER_CPU)));
            }
            table.push(row);
        }
        table
    }

    fn footprint_table(&self) -> Table {
        let mut table = Table::new(
            1,
            &[
                "after loading",
                "memory",
                "memory at the end",
                "disk",
                "without its log",
                "load",
                "index build",
            ],
        );
        for side in &self.sides {
            let footprint = &side.footprint;
            table.push(vec![
                side.label.clone(),
                megabytes(footprint.resident_bytes),
                megabytes(side.resident_bytes_at_end),
                megabytes(footprint.disk_bytes),
                megabytes(footprint.disk_bytes_without_log()),
                time(footprint.load.as_secs_f64() * 1e6),
                time(footprint.index_build.as_secs_f64() * 1e6),
            ]);
        }
        table
    }

    /// What was aimed for and not reached, or that all was.
    fn aims(&self) -> Vec<String> {
        let [base, other] = &self.sides[..] else {
            return Vec::new();
        };
        if self.plan.sides[0] == self.plan.sides[1] {
            return vec![
                "One server against itself: how far its ratios are from 1 is the noise.".to_owned(),
            ];
        }
        let aims = Aims::of(&self.plan);
        let mut missed = Vec::new();
        for result in &self.results {
            let [below, above] = &result.figures[..] else {
                continue;
            };
            let case = format!("{}, {} connections", result.case, result.case.connections);
            let cpu_aim = if result.case.workload == Workload::C {
                aims.cpu_for_reads
            } else {
                aims.cpu
            };
            match ratio(above, below, SERVER_CPU) {
                Some(cpu) if cpu.median > cpu_aim => missed.push(format!(
                    "- {case}: CPU ×{}, the aim is ×{}",
                    number(cpu.median),
                    number(cpu_aim)
                )),
                Some(_) | None => {}
            }
            let majority_write = result.case.durability == Some(Durability::Majority)
                && matches!(result.case.workload, Workload::Insert | Workload::Update)
                && result.case.connections == FEW_CONNECTIONS;
            let rate_aim = aims.majority_rate.filter(|_| majority_write);
            match (ratio(above, below, THROUGHPUT), rate_aim) {
                (Some(rate), Some(aim)) if rate.median < aim => {
                    missed.push(format!(
                        "- {case}: rate ×{}, the aim is ×{aim}",
                        number(rate.median)
                    ));
                }
                _ => {}
            }
        }
        if aims.sizes {
            missed.extend(larger(base, other));
        }
        if missed.is_empty() {
            return vec!["All aims reached.".to_owned()];
        }
        missed.insert(0, format!("Aims that {} missed:", other.label));
        missed
    }

    pub fn json(&self) -> Value {
        let side = |side: &SideSummary| {
            let by_entry: serde_json::Map<String, Value> = side
                .footprint
                .disk_bytes_by_entry
                .iter()
                .map(|(name, bytes)| (name.clone(), json!(bytes)))
                .collect();
            json!({
                "label": side.label,
                "resident_bytes": side.footprint.resident_bytes,
                "resident_bytes_at_end": side.resident_bytes_at_end,
                "disk_bytes": side.footprint.disk_bytes,
                "disk_bytes_without_log": side.footprint.disk_bytes_without_log(),
                "disk_bytes_by_entry": by_entry,
                "load_seconds": side.footprint.load.as_secs_f64(),
                "index_build_seconds": side.footprint.index_build.as_secs_f64(),
            })
        };
        let round = |figures: &Figures| {
            json!({
                "per_second": figures.throughput,
                "p50_us": figures.p50_us,
                "p99_us": figures.p99_us,
                "server_cpu_us": figures.server_cpu_us,
                "client_cpu_us": figures.client_cpu_us,
            })
        };
        let case = |result: &CaseResult| {
            let rounds: serde_json::Map<String, Value> = self
                .sides
                .iter()
                .zip(&result.figures)
                .map(|(side, figures)| (side.label.clone(), figures.iter().map(round).collect()))
                .collect();
            json!({
                "workload": result.case.workload.title(),
                "durability": result.case.durability.map(|durability| durability.to_string()),
                "connections": result.case.connections,
                "rounds": rounds,
            })
        };
        json!({
            "machine": self.machine,
            "records": self.plan.records,
            "seconds": self.plan.pace.measure.as_secs_f64(),
            "sides": self.sides.iter().map(side).collect::<Vec<_>>(),
            "cases": self.results.iter().map(case).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn whatever_is_larger_is_told() {
        let side = |loaded: u64, at_end: u64, disk: u64| SideSummary {
            label: "a server".to_owned(),
            footprint: Footprint {
                resident_bytes: loaded * 1_000_000,
                disk_bytes: disk * 1_000_000,
                disk_bytes_by_entry: vec![("data".to_owned(), disk * 1_000_000)],
                load: Duration::ZERO,
                index_build: Duration::ZERO,
            },
            resident_bytes_at_end: at_end * 1_000_000,
        };
        let base = side(300, 1_000, 400);
        assert_eq!(larger(&base, &side(300, 1_000, 400)), [""; 0]);
        let table = [
            (
                side(301, 999, 399),
                vec!["- memory after loading: 301 MB against 300 MB"],
            ),
            (
                side(299, 1_001, 400),
                vec!["- memory at the end: 1,001 MB against 1,000 MB"],
            ),
            (
                side(299, 999, 401),
                vec![
                    "- disk after loading: 401 MB against 400 MB",
                    "- disk after loading, without the log: 401 MB against 400 MB",
                ],
            ),
        ];
        for (other, told) in table {
            assert_eq!(larger(&base, &other), told);
        }
    }
}
