//! What is measured: workloads, their mixes of actions, and the durability of their writes.
//!
//! A *workload* is a mix of actions in percent. A *case* is a workload at one durability and one number
//! of connections; a report has one entry per case. Workloads that add users (D, E) run last, because
//! they let the faster server's collection grow further.

use std::fmt;

use bson::{Document, doc};
use clap::ValueEnum;

/// One thing that a connection does and that counts as an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Ping,
    InsertBatch,
    Insert,
    Read,
    ReadRecent,
    Update,
    UpdateRetryable,
    UpdateOrder,
    ReadModifyWrite,
    ScanRange,
    LookUpByIndex,
    AggregateIndexed,
    AggregateUnindexed,
    ScanAll,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// The cheapest command: the floor of everything else
    Ping,
    /// All records, a hundred in each insert command
    Load,
    /// One new record in each command
    Insert,
    /// One field of one record in each command
    Update,
    /// The same as drivers send it: with a session and a transaction number
    UpdateRetryable,
    /// YCSB A: half reads, half updates
    A,
    /// YCSB B: 95% reads, 5% updates
    B,
    /// YCSB C: reads by _id
    C,
    /// YCSB D: 95% reads of recent records, 5% inserts
    D,
    /// YCSB E: 95% range scans of 1 to 100 records, 5% inserts
    E,
    /// YCSB F: half reads, half read-modify-write
    F,
    /// Ten documents by a secondary index
    Index,
    /// $match on an indexed field (1% of the documents) and $group
    AggIndexed,
    /// $match on an unindexed field (20% of the documents) and $group
    AggUnindexed,
    /// The whole collection, in batches of 1,000 documents
    Scan,
    /// The same in four commands of five, and updates of single documents of that collection
    ScanWritten,
}

impl Workload {
    /// In the order in which they run.
    pub const ALL: [Workload; 16] = [
        Workload::Ping,
        Workload::Load,
        Workload::Insert,
        Workload::Update,
        Workload::UpdateRetryable,
        Workload::C,
        Workload::B,
        Workload::A,
        Workload::F,
        Workload::Index,
        Workload::AggIndexed,
        Workload::AggUnindexed,
        Workload::Scan,
        Workload::ScanWritten,
        Workload::D,
        Workload::E,
    ];

    /// The actions and their shares, which add up to 100.
    pub fn mix(self) -> &'static [(Action, u8)] {
        match self {
            Workload::Ping => &[(Action::Ping, 100)],
            Workload::Load => &[(Action::InsertBatch, 100)],
            Workload::Insert => &[(Action::Insert, 100)],
            Workload::Update => &[(Action::Update, 100)],
            Workload::UpdateRetryable => &[(Action::UpdateRetryable, 100)],
            Workload::A => &[(Action::Read, 50), (Action::Update, 50)],
            Workload::B => &[(Action::Read, 95), (Action::Update, 5)],
            Workload::C => &[(Action::Read, 100)],
            Workload::D => &[(Action::ReadRecent, 95), (Action::Insert, 5)],
            Workload::E => &[(Action::ScanRange, 95), (Action::Insert, 5)],
            Workload::F => &[(Action::Read, 50), (Action::ReadModifyWrite, 50)],
            Workload::Index => &[(Action::LookUpByIndex, 100)],
            Workload::AggIndexed => &[(Action::AggregateIndexed, 100)],
            Workload::AggUnindexed => &[(Action::AggregateUnindexed, 100)],
            Workload::Scan => &[(Action::ScanAll, 100)],
            Workload::ScanWritten => &[(Action::ScanAll, 80), (Action::UpdateOrder, 20)],
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Workload::Ping => "ping",
            Workload::Load => "load, 100 per command",
            Workload::Insert => "insert",
            Workload::Update => "update",
            Workload::UpdateRetryable => "update, retryable",
            Workload::A => "YCSB A",
            Workload::B => "YCSB B",
            Workload::C => "YCSB C, read by _id",
            Workload::D => "YCSB D",
            Workload::E => "YCSB E",
            Workload::F => "YCSB F",
            Workload::Index => "secondary index",
            Workload::AggIndexed => "aggregate, indexed",
            Workload::AggUnindexed => "aggregate, unindexed",
            Workload::Scan => "full scan",
            Workload::ScanWritten => "full scan beside updates",
        }
    }

    pub fn unit(self) -> Unit {
        match self {
            Workload::Load | Workload::Scan | Workload::ScanWritten => Unit::Document,
            Workload::Ping
            | Workload::Insert
            | Workload::Update
            | Workload::UpdateRetryable
            | Workload::A
            | Workload::B
            | Workload::C
            | Workload::D
            | Workload::E
            | Workload::F
            | Workload::Index
            | Workload::AggIndexed
            | Workload::AggUnindexed => Unit::Operation,
        }
    }

    /// Runs in a collection of its own that begins empty.
    pub fn needs_scratch_collection(self) -> bool {
        matches!(self, Workload::Load | Workload::Insert)
    }

    /// The durabilities worth a measurement: none for reads, and only the cheap one where writes are
    /// so few that both measure the reads.
    pub fn durabilities(self) -> &'static [Durability] {
        match self {
            Workload::Load
            | Workload::Insert
            | Workload::Update
            | Workload::UpdateRetryable
            | Workload::A
            | Workload::F => &[Durability::W1, Durability::Majority],
            Workload::B | Workload::D | Workload::E | Workload::ScanWritten => &[Durability::W1],
            Workload::Ping
            | Workload::C
            | Workload::Index
            | Workload::AggIndexed
            | Workload::AggUnindexed
            | Workload::Scan => &[],
        }
    }
}

/// What throughput and CPU are counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Operation,
    Document,
}

/// The write concern of a workload's writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Durability {
    /// w: 1, j unspecified: the journal follows within 100 ms
    W1,
    /// w: "majority", j: true: synced to disk before the reply
    Majority,
}

impl Durability {
    pub fn write_concern(self) -> Document {
        match self {
            Durability::W1 => doc! { "w": 1 },
            Durability::Majority => doc! { "w": "majority", "j": true },
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Durability::W1 => "w:1",
            Durability::Majority => "majority",
        })
    }
}

/// One entry of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    pub workload: Workload,
    /// Absent for workloads that write nothing.
    pub durability: Option<Durability>,
    pub connections: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.workload.title())?;
        match self.durability {
            Some(durability) => write!(formatter, " ({durability})"),
            None => Ok(()),
        }
    }
}

/// All cases of the chosen workloads, in the order in which they run.
pub fn cases(
    workloads: &[Workload],
    durabilities: &[Durability],
    connections: &[usize],
) -> Vec<Case> {
    let mut cases = Vec::new();
    for workload in Workload::ALL {
        if !workloads.contains(&workload) {
            continue;
        }
        let variants: Vec<Option<Durability>> = if workload.durabilities().is_empty() {
            vec![None]
        } else {
            let chosen = workload
                .durabilities()
                .iter()
                .filter(|durability| durabilities.contains(durability));
            chosen.copied().map(Some).collect()
        };
        for durability in variants {
            for &connections in connections {
                cases.push(Case {
                    workload,
                    durability,
                    connections,
                });
            }
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for workload in Workload::ALL {
            let total: u32 = workload
                .mix()
                .iter()
                .map(|(_, share)| u32::from(*share))
                .sum();
            assert_eq!(total, 100, "{workload:?}");
        }
    }

    #[test]
    fn every_workload_runs() {
        let names: Vec<_> = Workload::value_variants().to_vec();
        assert_eq!(names.len(), Workload::ALL.len());
        assert!(
            names
                .iter()
                .all(|workload| Workload::ALL.contains(workload))
        );
    }

    #[test]
    fn cases_follow_the_choice() {
        let chosen = cases(
            &[Workload::C, Workload::A, Workload::B],
            &[Durability::Majority],
            &[8, 64],
        );
        let texts: Vec<String> = chosen
            .iter()
            .map(|case| format!("{case} {}", case.connections))
            .collect();
        assert_eq!(
            texts,
            [
                "YCSB C, read by _id 8",
                "YCSB C, read by _id 64",
                "YCSB A (majority) 8",
                "YCSB A (majority) 64",
            ]
        );
    }
}
