//! Aggregation pipelines.
//!
//! ```text
//!   BSON array ─parse─► steps (plain data) ─optimize─► scan request + steps
//!                                                         │ start
//!                                                         ▼
//!                                    scan ─► stage ─► stage ─► documents, pulled one by one
//! ```
//!
//! | file | part |
//! | --- | --- |
//! | `parse.rs` | stages by name, and the rules about their places |
//! | `stage.rs` | stages as data |
//! | `optimize.rs` | rearranging, and what the scan takes over |
//! | `run.rs` | from stages to a chain of sources |
//! | `source.rs` | the pull model, and the stages that pass documents through |
//! | `environment.rs` | what stages need from outside |
//! | `project.rs` | `$project`, `$addFields`, `$unset` |
//! | `group.rs`, `bucket.rs`, `bucket_auto.rs`, `collect.rs` | stages that collect their input |
//! | `lookup.rs`, `correlate.rs`, `graph_lookup.rs`, `union.rs` | stages that read elsewhere |
//! | `unwound.rs` | `$lookup` and the `$unwind` of its field, as one |
//! | `change_stream.rs` | `$changeStream` as data; the environment makes events |
//! | `facet.rs`, `unwind.rs`, `redact.rs` | the others |
//! | `collection_stats.rs` | `$collStats` as data; the environment has the figures |
//! | `list_sessions.rs` | `$listSessions`, `$listLocalSessions` |
//! | `output.rs` | `$out` and `$merge` as data; the caller writes |
//! | `split/` | pipelines in two halves, for documents on several shards |
//!
//! A stage that has to collect its input may take 100 MB, then it goes to disk
//! if it is allowed to.
//!
//! Left out and refused by name: geo and text search, window functions.

mod bucket;
mod bucket_auto;
mod change_stream;
mod collect;
mod collection_stats;
mod correlate;
mod environment;
mod facet;
mod graph_lookup;
mod group;
mod join;
mod list_sessions;
mod lookup;
pub mod memory;
mod nested_field;
mod optimize;
mod output;
mod parse;
pub mod project;
mod redact;
mod run;
mod source;
pub mod split;
mod stage;
mod state_limit;
#[cfg(test)]
mod tests;
mod union;
mod unwind;
mod unwound;

pub use change_stream::{BeforeChange, ChangeStream, FullDocument, Start, Target};
pub use collection_stats::{CollectionStats, LatencyStats, StorageStats};
pub use environment::{Environment, ScanRequest};
pub use list_sessions::SessionsOf;
pub use output::{Merge, Out, WhenMatched, WhenNotMatched};
pub use parse::{Place, Scope, not_an_array, parse};
pub use run::{CountedChain, chain_counted, lets_through, split_scan, start};
pub use source::{Advance, Documents, Source, Visitor};
pub use stage::{Stage, Step};
pub use unwound::shown_unwound;

use crate::context::QueryContext;
use model::Error;
use model::bson::{Array, Doc, DocBuf};

/// The stages that change one document at a time, as updates use them.
#[derive(Clone, Debug)]
pub struct Transform {
    stages: Vec<Stage>,
}

impl Transform {
    /// Parses the pipeline of an update.
    pub fn parse_update(stages: Array<'_>, context: &QueryContext) -> Result<Self, Error> {
        // Nothing of it is computed before there is a document.
        let context = context.computing_late();
        let scope = Scope {
            database: "update",
            collection: None,
            context: &context,
            place: Place::Update,
            depth: 0,
        };
        let stages = parse(stages, &scope)?
            .into_iter()
            .map(|step| step.stage)
            .collect();
        Ok(Self { stages })
    }

    pub fn apply(&self, doc: Doc<'_>) -> Result<DocBuf, Error> {
        let mut document = doc.to_owned();
        for stage in &self.stages {
            match stage {
                Stage::Project(projector) => document = projector.apply(document.as_doc())?,
                Stage::Replace(replacement) => document = replacement.apply(document.as_doc())?,
                // Parsing for an update lets no other stage pass.
                _ => {}
            }
        }
        Ok(document)
    }
}
