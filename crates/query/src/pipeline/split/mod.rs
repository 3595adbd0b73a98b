//! Pipelines in two halves, for collections whose documents lie on several shards.
//!
//! ```text
//!   steps ─prepare─► Prepared ─┬─ origin: who is asked at all
//!                              ├─ filter: which of the shards
//!                              ├─ foreign, output: what else has to be at hand
//!                              │
//!                              ├─ for_one_shard ──┐
//!                              └─ for_shards ─────┴─► Split
//!
//!   shard 0 ── shard half ──► stream ┐
//!   shard 1 ── shard half ──► stream ┼─ by `Order` ─► merging half ─► documents
//!   shard 2 ── shard half ──► stream ┘                    (`Split::merge`)
//! ```
//!
//! Stages that look at one document at a time stay on the shards up to the first
//! one that has to see all of them; that one is divided, and everything behind it is
//! done by whoever merges:
//!
//! | stage | on the shards | where they merge |
//! | --- | --- | --- |
//! | `$sort` | the same, with `$limit` if one follows | streams merged in order |
//! | `$limit`, `$skip` | `$limit` of both together | the same |
//! | `$group` | states of groups ([`GROUP`]) | states put together |
//! | `$group` by a ranged shard key | the same | nothing |
//! | `$count` | the same | the sum of the counts |
//! | `$sample` | documents with random keys ([`SAMPLE`]) | the ones with the least |
//! | `$lookup`, `$unionWith`, `$facet`, … | nothing | the same |
//!
//! Where the merging half is seen to look at few fields only, the shards leave out the
//! others.
//!
//! **How requests are marked.** The shard half is sent with `fromMongos: true` and
//! `needsMerge: true` and parsed with [`super::Place::ShardHalf`]; nowhere else are the two
//! internal stages known. With it go the client's `let` as constants, and what
//! `$$NOW` and `$$CLUSTER_TIME` are (`runtimeConstants`), so that all halves agree.
//! The internal stages carry [`VERSION`]: a shard that does not know it refuses,
//! and what comes back is checked when it is put together.
//!
//! **Who merges** pulls from sources. One that has nothing yet may say
//! [`super::Advance::Paused`]: everything gathered so far is kept, and asking again later
//! goes on. So streams from afar need not block a thread.
//!
//! Left out: choosing a shard to merge on. Whoever splits merges.

mod explain;
mod foreign;
mod halves;
mod internal;
mod needed;
mod streams;
#[cfg(test)]
mod tests;

pub use internal::{GROUP, SAMPLE, VERSION};
pub(super) use internal::{read_group, read_sample, with_key};
pub use streams::merge_streams;

use super::change_stream::ChangeStream;
use super::environment::Environment;
use super::optimize::optimize;
use super::run::{chain, compile};
use super::source::Source;
use super::stage::{Stage, Step};
use crate::filter::Filter;
use crate::sort::SortPattern;
use model::bson::{ArrayBuf, ArrayWriter, DocWriter, ValueRef};
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::{Error, Namespace};
use std::sync::Arc;

/// Who makes the documents that a pipeline begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The shards that own documents which match [`Prepared::filter`].
    Collection,
    /// All shards that own a part of the collection: `$collStats`, `$indexStats`.
    Owners,
    /// All shards: `$currentOp`.
    EveryShard,
    /// All shards, and those to come: `$changeStream`.
    Events,
    /// Whoever was asked: `$documents`, `$listLocalSessions`, and `$currentOp` with
    /// `localOps`. Such a pipeline is run by [`super::start`].
    Here,
}

/// How the streams of the shards become one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    Any,
    /// Each stream is sorted by this pattern, and so is the result.
    Sorted(SortPattern),
    /// By the resume tokens of events.
    Events,
}

/// A pipeline, rearranged, that nobody runs yet.
#[derive(Clone, Debug)]
pub struct Prepared {
    steps: Vec<Step>,
    output: Option<Step>,
    origin: Origin,
    foreign: Vec<Namespace>,
}

/// A pipeline in two halves.
#[derive(Clone, Debug)]
pub struct Split {
    shards: Vec<Step>,
    merging: Vec<Step>,
    order: Order,
    /// What comes behind both: `$out` or `$merge`.
    output: Option<Step>,
}

/// Rearranges a parsed pipeline of a command in this database.
pub fn prepare(steps: Vec<Step>, database: &str) -> Result<Prepared, Error> {
    let mut foreign = Vec::new();
    for step in &steps {
        foreign::collect(step.spec.as_doc(), database, &mut foreign)?;
    }
    let mut steps = optimize(steps);
    let output = match steps.pop() {
        Some(last) if last.stage.is_final() => Some(last),
        Some(last) => {
            steps.push(last);
            None
        }
        None => None,
    };
    let origin = origin(steps.first());
    if origin == Origin::Collection {
        let scanned = halves::scanned(&steps);
        compile(&mut steps[scanned..]);
    }
    Ok(Prepared {
        steps,
        output,
        origin,
        foreign,
    })
}

fn origin(first: Option<&Step>) -> Origin {
    let Some(first) = first else {
        return Origin::Collection;
    };
    match &first.stage {
        Stage::CollectionStats(..) | Stage::IndexStats(_) => Origin::Owners,
        Stage::CurrentOperations(options) => match options.get("localOps") {
            Some(ValueRef::Boolean(true)) => Origin::Here,
            _ => Origin::EveryShard,
        },
        Stage::ChangeStream(_) => Origin::Events,
        Stage::Documents(_) | Stage::LocalSessions(_) => Origin::Here,
        Stage::Match(_)
        | Stage::Project(_)
        | Stage::Replace(_)
        | Stage::Sort { .. }
        | Stage::Limit(_)
        | Stage::Skip(_)
        | Stage::Count(_)
        | Stage::Unwind(_)
        | Stage::Group(_)
        | Stage::BucketAuto(_)
        | Stage::Sample { .. }
        | Stage::Redact(_)
        | Stage::Facet(_)
        | Stage::Lookup(_)
        | Stage::GraphLookup(_)
        | Stage::UnionWith(_)
        | Stage::Out(_)
        | Stage::Merge(_) => Origin::Collection,
    }
}

impl Prepared {
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// What every document that is read matches; shards are chosen by it.
    pub fn filter(&self) -> Filter {
        match self.steps.first().map(|step| &step.stage) {
            Some(Stage::Match(filter)) => filter.clone(),
            _ => Filter::everything(),
        }
    }

    /// The other collections that stages read, those inside of stages included.
    pub fn foreign(&self) -> &[Namespace] {
        &self.foreign
    }

    /// The collection that is written.
    pub fn target(&self) -> Option<&Namespace> {
        target(self.output.as_ref())
    }

    /// The steps as they are run here, and the one that writes: for [`Origin::Here`].
    pub fn into_steps(self) -> (Vec<Step>, Option<Step>) {
        (self.steps, self.output)
    }

    /// For one shard that has all documents that are read: it does everything up to
    /// the first stage that reads another collection. Where it has those too and
    /// what is written is there as well, the client's command can be handed on as it
    /// came.
    pub fn for_one_shard(self) -> Split {
        let Prepared {
            mut steps, output, ..
        } = self;
        let own = steps.iter().position(foreign::is_needed_by);
        let merging = steps.split_off(own.unwrap_or(steps.len()));
        let steps = steps.into_iter().map(halves::as_written).collect();
        Split {
            shards: steps,
            merging,
            order: match self.origin {
                Origin::Events => Order::Events,
                Origin::Collection | Origin::Owners | Origin::EveryShard | Origin::Here => {
                    Order::Any
                }
            },
            output,
        }
    }

    /// For several shards. `shard_key` is what the collection is sharded by.
    pub fn for_shards(self, shard_key: Option<&ShardKeyPattern>) -> Result<Split, Error> {
        let (shards, merging, order) = match self.origin {
            Origin::Events => (self.steps, Vec::new(), Order::Events),
            Origin::Collection | Origin::Owners | Origin::EveryShard | Origin::Here => {
                halves::halves(self.steps, shard_key)?
            }
        };
        Ok(Split {
            shards,
            merging,
            order,
            output: self.output,
        })
    }
}

fn target(output: Option<&Step>) -> Option<&Namespace> {
    match &output?.stage {
        Stage::Out(out) => Some(&out.target),
        Stage::Merge(merge) => Some(&merge.target),
        _ => None,
    }
}

impl Split {
    /// The pipeline for each shard, as its command has it.
    pub fn shard_pipeline(&self) -> ArrayBuf {
        let mut stages = ArrayWriter::new();
        for step in &self.shards {
            stages.push(&step.spec);
        }
        stages.finish()
    }

    /// What is watched, if this is a change stream.
    pub fn change_stream(&self) -> Option<&ChangeStream> {
        match &self.shards.first()?.stage {
            Stage::ChangeStream(stream) => Some(stream),
            _ => None,
        }
    }

    /// The pipeline of a change stream for each shard, from a time on wherever it was to
    /// begin: a place in one shard's log says nothing to the others.
    pub fn shard_pipeline_from(&self, time: ClusterTime) -> ArrayBuf {
        let mut stages = ArrayWriter::new();
        for step in &self.shards {
            let Stage::ChangeStream(_) = step.stage else {
                stages.push(&step.spec);
                continue;
            };
            let mut spec = DocWriter::new();
            spec.begin_document(step.name());
            let options = step.spec.as_doc().get_doc(step.name());
            for option in options.iter().flat_map(|options| options.iter()) {
                if !matches!(
                    option.key(),
                    "resumeAfter" | "startAfter" | "startAtOperationTime"
                ) {
                    spec.append_element(&option);
                }
            }
            spec.append("startAtOperationTime", time).end();
            stages.push(&spec.finish());
        }
        stages.finish()
    }

    pub fn order(&self) -> &Order {
        &self.order
    }

    /// Whether the streams of the shards are the result, in any order: then batches
    /// can be passed on as they come.
    pub fn passes_through(&self) -> bool {
        self.merging.is_empty() && self.output.is_none() && self.order == Order::Any
    }

    /// Whether each document of a shard's stream is made from one document alone, in the order in
    /// which they are read: then a stream can go on elsewhere, behind the last one. Of any other
    /// stream all counts or nothing.
    pub fn streams(&self) -> bool {
        let scanned = halves::scanned(&self.shards);
        let (read, made) = self.shards.split_at(scanned);
        let reads_on = |step: &Step| !matches!(step.stage, Stage::Skip(_));
        let makes = |step: &Step| halves::looks_at_one_document(&step.stage);
        read.iter().all(reads_on) && made.iter().all(makes)
    }

    /// `$out` or `$merge`: what [`Self::merge`] makes is written by the caller.
    pub fn output(&self) -> Option<&Stage> {
        self.output.as_ref().map(|step| &step.stage)
    }

    /// Runs the merging half over the streams of the shards. Those of a change stream
    /// are not for here: they are merged by time, and have no merging half.
    pub fn merge(
        self,
        streams: Vec<Box<dyn Source>>,
        environment: &Arc<dyn Environment>,
    ) -> Result<Box<dyn Source>, Error> {
        chain(
            merge_streams(streams, &self.order),
            self.merging,
            environment,
        )
    }
}
