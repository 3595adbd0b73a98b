//! What a verification is asked to do, settled and checked.

use crate::cluster::shown_address;
use crate::compare::Comparison;
use crate::difference::relaxed;
use crate::element::{ValueRef, kind};
use crate::error::VerifyError;
use crate::namespace::{Mapping, Namespace, Pattern, Selection};
use crate::range_query::AcrossTypes;
use crate::report::Scope;
use crate::store::Place;
use mongodb::options::{ReadPreference, SelectionCriteria};
use std::time::Duration;

#[derive(Debug, Clone)]
pub struct Settings {
    pub from: String,
    pub to: String,
    pub selection: Selection,
    pub mapping: Mapping,
    /// A filter as BSON: only documents that match it, on their own side, are compared.
    pub filter: Option<Vec<u8>>,
    pub comparison: Comparison,
    pub partitioning: Partitioning,
    /// Compare hashes that the servers make, and sizes, instead of documents.
    pub hash: bool,
    pub workers: usize,
    pub partition_bytes: u64,
    /// None takes what the URI says, or the primary.
    pub read_preference: Option<SelectionCriteria>,
    /// None takes what the URI says, or majority.
    pub read_concern: Option<String>,
    /// Of both sides together.
    pub bytes_per_second_max: Option<u64>,
    /// How many mismatches are described; all are counted.
    pub described_max: usize,
    /// How long to look for a server.
    pub connect_timeout: Duration,
    pub display: Display,
    pub writes: Writes,
    pub changes: Changes,
    /// Where the run is kept.
    pub place: Place,
    /// Begin anew, whatever the place holds.
    pub restart: bool,
    /// Where the HTTP API listens, if anywhere.
    pub listen: Option<String>,
    /// Begin when the API says so.
    pub wait: bool,
    /// The least time between two generations.
    pub generation_pause: Duration,
    /// Whether both sides turned out to be one cluster, within which names differ.
    pub same_cluster: bool,
    /// None decides by the server's version. Given, it is for both sides.
    pub across_types: Option<AcrossTypes>,
    /// None decides by the server's version.
    pub has_sample_rate: Option<bool>,
}

/// How collections are cut into parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Partitioning {
    /// By `_id`, along its index on both sides.
    Id,
    /// By record id on one node of the source, and by `_id` on the destination.
    Natural,
}

/// Whether somebody may write to the clusters meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// Nobody does: one scan, and a second look at what differs.
    Off,
    /// Until told otherwise: generations, driven by the changes of both sides.
    On,
}

/// How changes of both sides are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changes {
    /// By change streams.
    Stream,
    /// By their oplogs, which only replica sets show.
    Oplog,
}

/// How progress is shown, on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Display {
    /// Bars, for a terminal.
    Bars,
    /// A line now and then, for a log.
    Lines,
    Silent,
}

pub const DEFAULT_WORKERS: usize = 4;
/// Each has a connection to either side.
pub const WORKERS_MAX: usize = 1000;
pub const DEFAULT_PARTITION_BYTES: u64 = 32_000_000;
pub const DEFAULT_GENERATION_PAUSE: Duration = Duration::from_secs(1);
pub const DEFAULT_DESCRIBED_MAX: usize = 1000;

impl Settings {
    /// Everything, compared by bytes, with the defaults.
    pub fn new(from: impl Into<String>, to: impl Into<String>) -> Settings {
        Settings {
            from: from.into(),
            to: to.into(),
            selection: Selection::default(),
            mapping: Mapping::default(),
            filter: None,
            comparison: Comparison::Bytes,
            partitioning: Partitioning::Id,
            hash: false,
            workers: DEFAULT_WORKERS,
            partition_bytes: DEFAULT_PARTITION_BYTES,
            read_preference: None,
            read_concern: None,
            bytes_per_second_max: None,
            described_max: DEFAULT_DESCRIBED_MAX,
            connect_timeout: Duration::from_secs(10),
            display: Display::Silent,
            writes: Writes::Off,
            changes: Changes::Stream,
            place: Place::Memory,
            restart: false,
            listen: None,
            wait: false,
            generation_pause: DEFAULT_GENERATION_PAUSE,
            same_cluster: false,
            across_types: None,
            has_sample_rate: None,
        }
    }

    /// Whether a namespace, and what it is called on the source, is to be verified.
    pub fn verifies(&self, namespace: &Namespace, on_source: &Namespace) -> bool {
        let ours = match &self.place {
            Place::Database { name, .. } => {
                *name == namespace.database && crate::store::is_ours(&namespace.collection)
            }
            Place::Memory | Place::Directory(_) => false,
        };
        !ours && !namespace.is_internal() && self.selection.selects(on_source)
    }

    /// What a report says about what was asked for.
    pub fn scope(&self) -> Scope {
        let shown = |patterns: &[Pattern]| patterns.iter().map(ToString::to_string).collect();
        let filter = self.filter.as_ref().map(|filter| {
            relaxed(ValueRef {
                kind: kind::DOCUMENT,
                bytes: filter,
            })
        });
        Scope {
            include: shown(&self.selection.include),
            exclude: shown(&self.selection.exclude),
            map: self.mapping.texts(),
            filter,
            read_by: match (self.partitioning, self.hash) {
                (_, true) => "hashes",
                (Partitioning::Id, false) => "_id",
                (Partitioning::Natural, false) => "natural",
            },
            ignore_field_order: self.comparison == Comparison::IgnoreFieldOrder,
        }
    }

    /// What makes two starts the same run: not who asks, nor how fast.
    pub fn asked(&self) -> String {
        let from = shown_address(&self.from);
        let to = shown_address(&self.to);
        let Selection { include, exclude } = &self.selection;
        let (mapping, comparison, filter) = (&self.mapping, self.comparison, &self.filter);
        let way = (self.partitioning, self.hash);
        format!("{from} {to} {include:?} {exclude:?} {mapping:?} {comparison:?} {filter:?} {way:?}")
    }

    pub fn check(&self) -> Result<(), VerifyError> {
        if self.from == self.to && self.mapping.is_empty() {
            return Err(VerifyError::settings(
                "--from and --to are the same, which would prove nothing: give two clusters, or a --map to compare within one",
            ));
        }
        if self.workers == 0 {
            return Err(VerifyError::settings("there must be at least one worker"));
        }
        if self.workers > WORKERS_MAX {
            return Err(VerifyError::settings(format!(
                "{} workers are too many: at most {WORKERS_MAX} can work at the same time",
                self.workers
            )));
        }
        if self.hash && self.partitioning == Partitioning::Natural {
            return Err(VerifyError::settings(
                "--hash compares along the index on _id: leave it out, or --partition-by natural",
            ));
        }
        if self.hash && self.comparison == Comparison::IgnoreFieldOrder {
            return Err(VerifyError::settings(
                "a hash depends on the order of fields: leave out --hash or --ignore-field-order",
            ));
        }
        if self.wait && self.listen.is_none() {
            return Err(VerifyError::settings(
                "--wait begins when the HTTP API is told to, but there is none: give its address with --listen",
            ));
        }
        let weak = self
            .read_concern
            .as_deref()
            .filter(|level| *level != "majority");
        if let (Writes::On, Some(level)) = (self.writes, weak) {
            return Err(VerifyError::settings(format!(
                "the read concern {level} can show what is rolled back later, so that nothing is proved while clusters are written: leave --read-concern out, or stop writes and say so with --writes-off"
            )));
        }
        Ok(())
    }
}

/// The read preference that a person named.
pub fn parse_read_preference(mode: &str) -> Result<SelectionCriteria, VerifyError> {
    let options = None;
    let preference = match mode {
        "primary" => ReadPreference::Primary,
        "primaryPreferred" => ReadPreference::PrimaryPreferred { options },
        "secondary" => ReadPreference::Secondary { options },
        "secondaryPreferred" => ReadPreference::SecondaryPreferred { options },
        "nearest" => ReadPreference::Nearest { options },
        other => {
            return Err(VerifyError::settings(format!(
                "the read preference {other:?} is not primary, primaryPreferred, secondary, secondaryPreferred or nearest"
            )));
        }
    };
    Ok(SelectionCriteria::ReadPreference(preference))
}

/// The read concern that a person named.
pub fn parse_read_concern(level: String) -> Result<String, VerifyError> {
    match level.as_str() {
        "local" | "available" | "majority" | "linearizable" | "snapshot" => Ok(level),
        other => Err(VerifyError::settings(format!(
            "the read concern {other:?} is not local, available, majority, linearizable or snapshot"
        ))),
    }
}
