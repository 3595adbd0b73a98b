//! `bench compare`: both servers, every case, several rounds, taking turns.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result};

use crate::dataset::Dataset;
use crate::driver::{Pace, measure};
use crate::loading::{Footprint, create, drop_collection, load};
use crate::operations::{Scratch, Setting};
use crate::options::{CompareOptions, ComparePlan};
use crate::place::{self, Place};
use crate::report::{CaseResult, Report, SideSummary};
use crate::servers::{Product, Server};
use crate::statistics::Measurement;
use crate::table;
use crate::workload::{Case, cases};

/// One of the compared servers with what it was given.
pub struct Side {
    pub label: String,
    pub server: Server,
    pub dataset: Arc<Dataset>,
    pub footprint: Footprint,
}

impl Side {
    /// Loads the dataset into a server that has just started.
    pub fn load(label: String, server: Server, records: u64) -> Result<Side> {
        let dataset = Arc::new(Dataset::new(records));
        eprintln!("{label}: loading {records} users and {records} orders");
        let footprint = load(&server, &dataset).with_context(|| format!("loading {label}"))?;
        Ok(Side {
            label,
            server,
            dataset,
            footprint,
        })
    }

    /// Measures one case, with a collection of its own where the workload needs one.
    pub fn measure(
        &self,
        case: Case,
        sessions: bool,
        pace: Pace,
        seed: u64,
    ) -> Result<Measurement> {
        let scratch = case.workload.needs_scratch_collection().then(|| Scratch {
            collection: format!("scratch_{seed}"),
            next: AtomicU64::new(0),
        });
        if let Some(scratch) = &scratch {
            create(&self.server, &scratch.collection)?;
        }
        let setting = Arc::new(Setting {
            dataset: Arc::clone(&self.dataset),
            durability: case.durability,
            scratch,
            sessions,
        });
        let measurement = measure(
            &self.server,
            &setting,
            case.workload,
            case.connections,
            pace,
            seed,
        )?;
        if let Some(scratch) = &setting.scratch {
            drop_collection(&self.server, &scratch.collection)?;
        }
        Ok(measurement)
    }
}

pub fn run(options: &CompareOptions) -> Result<()> {
    let plan = options.plan()?;
    place::raise_open_files();
    place::warn_if_busy();
    let place = Place::new(&options.servers)?;
    let mut sides = start(options, &plan, &place)?;
    let results = measure_all(options, &plan, &mut sides)?;

    let mut summaries = Vec::new();
    for side in &mut sides {
        side.server.resume()?;
        summaries.push(SideSummary {
            label: side.label.clone(),
            footprint: side.footprint.clone(),
            resident_bytes_at_end: side.server.resident_bytes()?,
        });
    }
    for side in sides {
        side.server.stop()?;
    }

    let report = Report {
        machine: place::machine(),
        plan,
        sides: summaries,
        results,
    };
    println!("\n{}", report.text());
    if let Some(path) = &options.json {
        let json = serde_json::to_string_pretty(&report.json())?;
        fs::write(path, json).with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(path) = &options.markdown {
        fs::write(path, report.markdown())
            .with_context(|| format!("writing {}", path.display()))?;
    }
    place.clear()
}

fn start(options: &CompareOptions, plan: &ComparePlan, place: &Place) -> Result<Vec<Side>> {
    let binaries = options.servers.binaries();
    let mut sides: Vec<Side> = Vec::new();
    for (position, &product) in plan.sides.iter().enumerate() {
        let repeated = plan.sides[..position].contains(&product);
        let label = if repeated {
            format!("{}-again", product.name())
        } else {
            product.name().to_owned()
        };
        let server = match (product, options.shape()) {
            (Product::Terndb, Some(shape)) => {
                Server::start_cluster(&label, &binaries, place.path(), shape)?
            }
            (Product::Terndb | Product::Mongod, _) => {
                Server::start_members(product, &label, &binaries, place.path(), options.members)?
            }
        };
        let mut side = Side::load(label, server, plan.records)?;
        if options.pauses() {
            side.server.pause()?;
        }
        sides.push(side);
    }
    Ok(sides)
}

fn measure_all(
    options: &CompareOptions,
    plan: &ComparePlan,
    sides: &mut [Side],
) -> Result<Vec<CaseResult>> {
    let cases = cases(&plan.workloads, &plan.durabilities, &plan.connections);
    let mut results = Vec::new();
    let mut seed = 0;
    for (position, &case) in cases.iter().enumerate() {
        let mut result = CaseResult {
            case,
            figures: vec![Vec::new(); sides.len()],
        };
        eprint!(
            "[{}/{}] {case}, {} connections:",
            position + 1,
            cases.len(),
            case.connections
        );
        for _ in 0..plan.rounds {
            // The same seed for all sides of a round: they are asked for the same records.
            seed += 1;
            for (side, figures) in sides.iter_mut().zip(&mut result.figures) {
                side.server.resume()?;
                let measured = side.measure(case, options.sessions, plan.pace, seed);
                let measured = measured.with_context(|| format!("{case} on {}", side.label))?;
                if options.pauses() {
                    side.server.pause()?;
                }
                eprint!(" {}", table::number(measured.figures().throughput));
                figures.push(measured.figures());
            }
        }
        eprintln!();
        results.push(result);
    }
    Ok(results)
}
