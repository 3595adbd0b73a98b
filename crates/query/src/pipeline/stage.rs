//! Stages as plain data: what a pipeline is made of before it runs.
//!
//! Each step keeps the document it was read from, so that a pipeline can be
//! shown by explain, and split and sent on.

use super::bucket_auto::BucketAuto;
use super::change_stream::ChangeStream;
use super::collection_stats::CollectionStats;
use super::facet::Facet;
use super::graph_lookup::GraphLookup;
use super::group::Group;
use super::list_sessions::SessionsOf;
use super::lookup::Lookup;
use super::output::{Merge, Out};
use super::project::Projector;
use super::redact::Redact;
use super::source::Replacement;
use super::union::UnionWith;
use super::unwind::Unwind;
use crate::expression::Expression;
use crate::filter::Filter;
use crate::sort::SortPattern;
use model::Namespace;
use model::bson::{DocBuf, DocWriter, ValueRef};

/// A stage and how it was written.
#[derive(Clone, Debug)]
pub struct Step {
    pub spec: DocBuf,
    pub stage: Stage,
}

impl Step {
    pub(super) fn new<'a>(name: &str, spec: impl Into<ValueRef<'a>>, stage: Stage) -> Self {
        Self {
            spec: DocWriter::new().with(name, spec).finish(),
            stage,
        }
    }

    /// The stage's name, `$match` say.
    pub fn name(&self) -> &str {
        self.spec.as_doc().first().map_or("", |first| first.key())
    }
}

#[derive(Clone, Debug)]
pub enum Stage {
    Match(Filter),
    /// `$project`, `$addFields`, `$set`, `$unset`.
    Project(Projector),
    /// `$replaceRoot`, `$replaceWith`.
    Replace(Replacement),
    Sort {
        pattern: SortPattern,
        /// A `$limit` behind it, taken in.
        limit: Option<u64>,
    },
    Limit(u64),
    Skip(u64),
    Count(Box<str>),
    Unwind(Unwind),
    Group(Box<Group>),
    BucketAuto(Box<BucketAuto>),
    Sample {
        size: u64,
        /// Whether what they were chosen by comes with the documents, for whoever
        /// has to choose again.
        keyed: bool,
    },
    Redact(Redact),
    Facet(Box<Facet>),
    Lookup(Box<Lookup>),
    GraphLookup(Box<GraphLookup>),
    UnionWith(Box<UnionWith>),
    /// The array of documents that a pipeline without a collection begins with.
    Documents(Expression),
    CollectionStats(Namespace, CollectionStats),
    IndexStats(Namespace),
    CurrentOperations(DocBuf),
    LocalSessions(SessionsOf),
    ChangeStream(Box<ChangeStream>),
    Out(Out),
    Merge(Box<Merge>),
}

impl Stage {
    /// Whether the stage makes documents rather than taking them.
    pub(super) fn is_initial(&self) -> bool {
        matches!(
            self,
            Stage::Documents(_)
                | Stage::CollectionStats(..)
                | Stage::IndexStats(_)
                | Stage::CurrentOperations(_)
                | Stage::LocalSessions(_)
                | Stage::ChangeStream(_)
        )
    }

    /// Whether the stage writes documents rather than passing them on.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Stage::Out(_) | Stage::Merge(_))
    }
}
