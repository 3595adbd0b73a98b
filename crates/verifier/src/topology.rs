//! What kind of cluster a side is, and what its clock says.

use crate::cluster::Cluster;
use crate::error::VerifyError;
use crate::settings::Changes;
use crate::time::ClusterTime;
use bson::{Document, RawDocumentBuf, doc};
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::ResumeToken;
use mongodb::options::{ReadPreference, SelectionCriteria};
use std::time::Duration;

/// How long a change stream waits for something to happen before it answers that nothing did.
const STREAM_WAIT: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    Standalone,
    ReplicaSet,
    Sharded,
}

impl Cluster {
    pub(crate) async fn ask_topology(&self) -> Result<Topology, VerifyError> {
        let reply = self
            .command("admin", doc! {"hello": 1}, "tell what it is")
            .await?;
        Ok(topology_of(&reply))
    }

    /// The node that reads go to now; none where there is but one server.
    pub async fn reading_node(&self) -> Result<Option<String>, VerifyError> {
        let reply = self
            .client
            .database("admin")
            .run_command(doc! {"hello": 1})
            .selection_criteria(self.reads_from.clone())
            .await
            .map_err(|error| self.failed("tell what it is", &error))?;
        Ok(reply.get_str("me").ok().map(str::to_owned))
    }

    /// A cluster time that covers every write that was acknowledged before; none without a clock.
    ///
    /// A router knows what it has heard; listing databases makes it hear from every shard.
    pub async fn now(&self) -> Result<Option<ClusterTime>, VerifyError> {
        if self.topology == Topology::Standalone {
            return Ok(None);
        }
        let command = doc! {"listDatabases": 1, "nameOnly": true};
        let reply = self
            .client
            .database("admin")
            .run_command(command)
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .await
            .map_err(|error| self.failed("tell its cluster time", &error))?;
        Ok(match self.topology {
            Topology::Sharded => ClusterTime::heard_of(&reply),
            Topology::Standalone | Topology::ReplicaSet => ClusterTime::of_reply(&reply),
        })
    }

    /// The cluster's changes, from a time or a token on.
    pub async fn changes(
        &self,
        start: ClusterTime,
        token: Option<ResumeToken>,
        expanded: bool,
    ) -> Result<ChangeStream<RawDocumentBuf>, mongodb::error::Error> {
        // The documents themselves are read when they are looked at again.
        let stages = [
            doc! {"$match": {"ns.db": {"$nin": ["admin", "config", "local"]}}},
            doc! {"$project": {
                "operationType": 1, "ns": 1, "to": 1, "documentKey._id": 1, "clusterTime": 1,
            }},
        ];
        let mut watch = self
            .client
            .watch()
            .pipeline(stages)
            .max_await_time(STREAM_WAIT);
        watch = match token {
            Some(token) => watch.resume_after(token),
            None => watch.start_at_operation_time(start.timestamp()),
        };
        if expanded {
            watch = watch.show_expanded_events(true);
        }
        Ok(watch.await?.with_type())
    }

    /// Whether a stream on which nothing is waiting, with a token of this time, has passed `time`.
    ///
    /// The oplog of one replica set is read in order. Over shards a token promises only that
    /// nothing earlier is left.
    pub fn has_passed(&self, token: ClusterTime, time: ClusterTime) -> bool {
        match self.topology {
            Topology::Sharded => token > time,
            Topology::Standalone | Topology::ReplicaSet => token >= time,
        }
    }

    /// Refuses a side whose changes cannot be followed soundly.
    pub fn check_can_be_followed(&self, changes: Changes) -> Result<(), VerifyError> {
        let refused = |detail: &str| Err(self.no_changes(detail.to_owned()));
        if (changes, self.topology) == (Changes::Oplog, Topology::Sharded) {
            return refused("a router does not show the oplogs of its shards: leave --changes out");
        }
        match (self.topology, self.read_concern.as_str()) {
            (Topology::Standalone, _) => {
                refused("a standalone server has no change streams: run it as a replica set")
            }
            (Topology::ReplicaSet | Topology::Sharded, "majority") => Ok(()),
            (Topology::ReplicaSet | Topology::Sharded, _) => refused(
                "its URI names a read concern that can show what is rolled back later: leave readConcernLevel out",
            ),
        }
    }
}

impl Cluster {
    pub fn no_changes(&self, detail: String) -> VerifyError {
        VerifyError::NoChanges {
            side: self.side,
            address: self.address.clone(),
            detail,
        }
    }

    pub fn history_lost(&self) -> VerifyError {
        self.no_changes(
            "its oplog no longer reaches back to where this run left off: make the oplog larger and begin anew with --restart".to_owned(),
        )
    }
}

fn topology_of(hello: &Document) -> Topology {
    match (hello.get_str("msg"), hello.get_str("setName")) {
        (Ok("isdbgrid"), _) => Topology::Sharded,
        (_, Ok(_)) => Topology::ReplicaSet,
        (_, Err(_)) => Topology::Standalone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_cluster_is_told_from_its_greeting() {
        assert_eq!(topology_of(&doc! {"ok": 1}), Topology::Standalone);
        assert_eq!(topology_of(&doc! {"setName": "a"}), Topology::ReplicaSet);
        assert_eq!(topology_of(&doc! {"msg": "isdbgrid"}), Topology::Sharded);
    }
}
