//! Requests as they go to shards: the client's fields, the versions they were routed by, and the
//! cluster time.

use crate::config::time_of;
use crate::routing::Route;
use cluster::cache::Placement;
use cluster::routing::ShardId;
use model::bson::{Doc, DocWriter, ValueRef};
use model::error::Error;
use model::time::ClusterTime;
use model::version::PlacementVersion;
use parking_lot::Mutex;
use wire::{Reply, Request};

/// The latest cluster time that anybody told.
#[derive(Default)]
pub(crate) struct Clock(Mutex<ClusterTime>);

impl Clock {
    pub(crate) fn now(&self) -> ClusterTime {
        *self.0.lock()
    }

    /// Takes note of `$clusterTime` in a request or a reply.
    pub(crate) fn observe(&self, doc: Doc<'_>) {
        let told = doc
            .get_doc("$clusterTime")
            .and_then(|gossip| time_of(gossip.get("clusterTime")));
        if let Some(told) = told {
            let mut now = self.0.lock();
            *now = (*now).max(told);
        }
    }

    pub(crate) fn append_to(&self, writer: &mut DocWriter) {
        let now = self.now();
        if now > ClusterTime::ZERO {
            append_cluster_time(writer, now);
        }
    }

    /// Ends a reply that is the router's own.
    pub(crate) fn tell(&self, reply: &mut Reply) {
        let now = self.now();
        let told = reply.document().get("$clusterTime").is_some();
        if now == ClusterTime::ZERO || told {
            return;
        }
        let mut trailer = DocWriter::new();
        append_cluster_time(&mut trailer, now);
        if reply.document().get("operationTime").is_none() {
            trailer.append("operationTime", now);
        }
        let trailer = trailer.finish();
        let bytes = trailer.as_bytes();
        reply.append_elements(&bytes[4..bytes.len() - 1]);
    }
}

pub(crate) fn append_cluster_time(writer: &mut DocWriter, time: ClusterTime) {
    writer
        .begin_document("$clusterTime")
        .append("clusterTime", time)
        .begin_document("signature")
        .append(
            "hash",
            ValueRef::Binary {
                subtype: 0,
                bytes: &[0; 20],
            },
        )
        .append("keyId", 0i64)
        .end()
        .end();
}

/// The client's fields without those named, and without those that only routers add.
pub(crate) fn fields_without(body: Doc<'_>, dropped: &[&str]) -> DocWriter {
    let mut writer = DocWriter::with_buffer(Vec::with_capacity(body.len() + 256));
    for element in body.iter() {
        let name = element.key();
        let ours = matches!(
            name,
            "shardVersion" | "databaseVersion" | "routedBy" | "$clusterTime"
        );
        if !ours && !dropped.contains(&name) {
            writer.append_element(&element);
        }
    }
    writer
}

impl Route {
    /// Says by which versions a request for a shard was routed.
    pub(crate) fn stamp(&self, writer: &mut DocWriter, shard: &ShardId) {
        let version = match &self.placement {
            Placement::Sharded(table) => table.shard_version(shard),
            Placement::Unsharded => PlacementVersion::UNSHARDED,
        };
        writer.begin_document("shardVersion");
        version.append_to(writer);
        writer.end();
        match &self.placement {
            Placement::Sharded(_) => {}
            Placement::Unsharded => stamp_database(writer, &self.database),
        }
    }

    /// The client's request for one shard, its documents where they lie.
    pub(crate) fn request(
        &self,
        original: &Request,
        shard: &ShardId,
        clock: &Clock,
    ) -> Result<Request, Error> {
        let mut writer = fields_without(original.body(), &[]);
        self.stamp(&mut writer, shard);
        clock.append_to(&mut writer);
        Request::from_parts(writer.finish(), original.sequences().to_vec())
    }
}

pub(crate) fn stamp_database(writer: &mut DocWriter, database: &crate::config::Database) {
    writer.begin_document("databaseVersion");
    database.version.append_to(writer);
    writer.end();
}
