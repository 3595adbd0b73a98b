//! Scans of collections that are not sharded.
//!
//! Such a collection is at home on the primary shard of its database, as a whole. It is scanned like a sharded one
//! of a single range that is there, so that a cursor goes on from its place when its member is lost, and where the
//! database has moved to:
//!
//! ```text
//!   databaseVersion, uuid, after    to the primary shard, as the router knows it
//!     StaleDbVersion                who is the primary? the same: a pause, then again
//!                                   another one: the whole range has moved there
//!     QueryPlanKilled               it was dropped, renamed or made anew: that is the end
//! ```
//!
//! ⚑ Nothing but its UUID tells a collection that is not sharded from another one that has taken its name: a shard says
//! it with its first place, and is told it with every place that it is asked to go on from.
//!
//! There is one stream at a time that has not ended, so what a shard sorts is in order without a look at it here.
//!
//! Left out: a collection that is sharded while it is scanned ends the scan when a part of it moves away, or the
//! shard's cursor is lost.

use super::ElasticScan;
use super::asking::{Ask, Asker};
use super::naming::{Named, Words};
use crate::config::Database;
use crate::failure::{Failure, Stale};
use crate::request::{stamp_database, stamp_version};
use cluster::routing::{RoutingTable, ShardId, initial_chunks};
use cluster::scan::Question;
use model::bson::{DocWriter, ValueRef};
use model::error::{Code, Error};
use model::ids::Uuid;
use model::range::{KeyRange, RangeSet};
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::PlacementVersion;
use std::sync::Arc;

/// The placement of a collection that is not sharded, as scans look at it. It has no version: databases have.
pub(crate) fn home(primary: &ShardId) -> Result<RoutingTable, Error> {
    let pattern = DocWriter::new().with("_id", 1).finish();
    let pattern = Arc::new(ShardKeyPattern::parse(pattern.as_doc())?);
    let owners = std::slice::from_ref(primary);
    let chunks = initial_chunks(&pattern, &[], owners, ClusterTime::ZERO);
    let incarnation = PlacementVersion::UNSHARDED.incarnation;
    RoutingTable::full(Uuid([0; 16]), incarnation, pattern, chunks)
        .map_err(|error| Error::new(Code::INTERNAL_ERROR, error.to_string()))
}

impl Asker {
    async fn database(&self) -> Result<Option<Database>, Error> {
        let name = self.command.namespace.database();
        self.router.routing.database(name, false).await
    }

    /// Whether the shard that is asked is where the collection is, as far as is known here.
    pub(super) async fn name_home(&self, question: &Question) -> Result<Named, Failure> {
        if question.after.is_some() && self.collection.is_none() {
            let message = format!(
                "shard {} of an earlier version did not say which collection it has read",
                question.shard
            );
            return Err(Error::new(Code::QUERY_PLAN_KILLED, message).into());
        }
        Ok(match self.database().await? {
            Some(database) if database.primary == question.shard => {
                Named::So(Words::AtHome(database))
            }
            Some(_) => {
                let everything = RangeSet::of([self.base.whole()]);
                Named::Answered(Ask::not_owned(everything, None))
            }
            None => Named::Answered(Ask::Stale(Stale::Database)),
        })
    }

    /// Says by what it was routed, and which collection is meant. The part's document stays open.
    pub(super) fn append_home(&self, writer: &mut DocWriter, database: &Database) {
        stamp_version(writer, PlacementVersion::UNSHARDED);
        stamp_database(writer, database);
        writer.begin_document("_terndbScan");
        if let Some(Uuid(bytes)) = &self.collection {
            let uuid = ValueRef::Binary { subtype: 4, bytes };
            writer.append("uuid", uuid);
        }
    }
}

impl ElasticScan {
    /// Where the collection is by now; `None` if that is the shard which does not have it.
    pub(super) async fn locate_home(
        &self,
        shard: &ShardId,
    ) -> Result<Option<Vec<(KeyRange, ShardId)>>, Failure> {
        let (routing, name) = (&self.router.routing, self.command.namespace.database());
        match routing.database(name, false).await? {
            Some(database) if database.primary == *shard => {
                routing.forget_database(name);
                Ok(None)
            }
            Some(database) => Ok(Some(vec![(self.scan.base().whole(), database.primary)])),
            None => Err(self.killed()),
        }
    }

    /// What a shard says that was asked for a collection which is not at home there. If it says why it must be waited
    /// for, that.
    pub(super) async fn settle_home(
        &mut self,
        question: &Question,
        stale: Stale,
    ) -> Result<Failure, Failure> {
        self.router.routing.note(&self.command.namespace, &stale);
        if !self.begun {
            return Err(Failure::Stale(stale));
        }
        // It is sharded by now.
        if let Stale::Collection { .. } = stale {
            return Err(self.killed());
        }
        let name = self.command.namespace.database();
        if self.router.routing.database(name, false).await?.is_none() {
            return Err(self.killed());
        }
        self.scan.name_ranges(question.stream);
        Ok(self.did_not_arrive(&question.shard))
    }
}
