//! Requests as they go to shards: the client's fields, the versions they were routed by, and the
//! cluster time.

use crate::config::time_of;
use crate::routing::Route;
use cluster::cache::Placement;
use cluster::routing::{RoutingTable, ShardId};
use model::bson::{Doc, DocWriter, ValueRef};
use model::error::{Code, Error};
use model::time::ClusterTime;
use model::version::PlacementVersion;
use parking_lot::Mutex;
use wire::{Reply, Request};

/// The time in a `$clusterTime`.
pub(crate) fn time_in(gossip: Doc<'_>) -> Option<ClusterTime> {
    match ClusterTime::of_unsigned(gossip) {
        Some(time) => Some(time),
        None => time_of(gossip.get("clusterTime")),
    }
}

/// The latest cluster time that anybody told.
pub(crate) struct Clock {
    latest: Mutex<ClusterTime>,
    /// How far ahead of the wall clock a client's time may be.
    drift_secs_max: i64,
}

impl Clock {
    pub(crate) fn new(drift_secs_max: i64) -> Clock {
        Clock {
            latest: Mutex::default(),
            drift_secs_max,
        }
    }

    pub(crate) fn now(&self) -> ClusterTime {
        *self.latest.lock()
    }

    /// Takes note of `$clusterTime` in a reply.
    pub(crate) fn observe(&self, doc: Doc<'_>) {
        if let Some(told) = doc.get_doc("$clusterTime").and_then(time_in) {
            self.raise(told);
        }
    }

    /// Takes note of a time that something happened at.
    pub(crate) fn raise(&self, time: ClusterTime) {
        let mut now = self.latest.lock();
        *now = (*now).max(time);
    }

    /// The same for a client, which may not push the cluster's time far ahead of the clocks.
    pub(crate) fn observe_client(&self, request: &Request) -> Result<(), Error> {
        let told = request.get_doc("$clusterTime").and_then(time_in);
        told.map_or(Ok(()), |time| self.raise_from_client(time))
    }

    /// The same for a time that comes with something else.
    pub(crate) fn raise_from_client(&self, time: ClusterTime) -> Result<(), Error> {
        let wall_seconds = crate::hello::now_ms().div_euclid(1000);
        if i64::from(time.seconds()) > wall_seconds.saturating_add(self.drift_secs_max) {
            return Err(Error::new(
                Code::CLUSTER_TIME_FAILS_RATE_LIMITER,
                format!(
                    "New $clusterTime, {}, is too far from this node's wall clock time, \
                     {wall_seconds}.",
                    time.seconds()
                ),
            ));
        }
        self.raise(time);
        Ok(())
    }

    pub(crate) fn append_to(&self, writer: &mut DocWriter) {
        let now = self.now();
        if now > ClusterTime::ZERO {
            now.append_to(writer);
        }
    }

    /// Ends a reply that is the router's own.
    pub(crate) fn tell(&self, reply: &mut Reply) {
        let now = self.now();
        let told =
            ClusterTime::ends(reply.document()) || reply.document().get("$clusterTime").is_some();
        if now == ClusterTime::ZERO || told {
            return;
        }
        let mut trailer = DocWriter::new();
        now.append_to(&mut trailer);
        if reply.document().get("operationTime").is_none() {
            trailer.append("operationTime", now);
        }
        let trailer = trailer.finish();
        let bytes = trailer.as_bytes();
        reply.append_elements(&bytes[4..bytes.len() - 1]);
    }
}

/// The same request with the time that all shards read at, if it asks for a snapshot and names no
/// time: shards that chose for themselves would not show one moment.
pub(crate) fn with_snapshot_time(request: &Request, clock: &Clock) -> Option<Request> {
    let concern = request.get_doc("readConcern")?;
    let body = request.body();
    let now = clock.now();
    let is_open =
        concern.get_str("level") == Some("snapshot") && concern.get("atClusterTime").is_none();
    if !is_open || now == ClusterTime::ZERO {
        return None;
    }
    // Whoever wants to read behind a time reads there, or at what is known by now.
    let after = match concern.get("afterClusterTime") {
        None => ClusterTime::ZERO,
        after => time_of(after)?,
    };
    let mut writer = DocWriter::new();
    for element in body.iter() {
        if element.key() != "readConcern" {
            writer.append_element(&element);
            continue;
        }
        writer.begin_document("readConcern");
        for field in concern.iter() {
            if field.key() != "afterClusterTime" {
                writer.append_element(&field);
            }
        }
        writer.append("atClusterTime", now.max(after)).end();
    }
    Request::from_parts(writer.finish(), request.sequences().to_vec()).ok()
}

/// The time that a request for a snapshot reads at; `None` for a concern that shards refuse.
pub(crate) fn snapshot_time(body: Doc<'_>) -> Option<ClusterTime> {
    let concern = body.get_doc("readConcern")?;
    let time = time_of(concern.get("atClusterTime"))?;
    let is_snapshot = concern.get_str("level") == Some("snapshot");
    let is_refused = time == ClusterTime::ZERO || concern.get("afterClusterTime").is_some();
    (is_snapshot && !is_refused).then_some(time)
}

/// Whether a client's `$clusterTime` is what it should be, if there is one.
pub(crate) fn is_time_well_formed(request: &Request) -> bool {
    let Some(given) = request.get("$clusterTime") else {
        return true;
    };
    let ValueRef::Document(gossip) = given else {
        return false;
    };
    let Some(signature) = gossip.get_doc("signature") else {
        return false;
    };
    let hash = matches!(
        signature.get("hash"),
        Some(ValueRef::Binary { bytes, .. }) if bytes.len() == 20
    );
    time_in(gossip).is_some() && hash && signature.get("keyId").is_some()
}

/// What only routers add.
const OURS: [&str; 5] = [
    "shardVersion",
    "databaseVersion",
    "routedBy",
    "$clusterTime",
    "$configTime",
];

fn is_ours(name: &[u8]) -> bool {
    // Nearly every field is the client's: the first byte tells.
    matches!(name.first(), Some(b's' | b'd' | b'r' | b'$'))
        && OURS.iter().any(|ours| ours.as_bytes() == name)
}

/// The client's fields without those named, and without those that only routers add.
pub(crate) fn fields_without(body: Doc<'_>, dropped: &[&str]) -> DocWriter {
    let mut writer = DocWriter::with_buffer(Vec::with_capacity(body.len() + 256));
    for element in body.iter() {
        let name = element.key_bytes();
        if !is_ours(name) && !dropped.iter().any(|dropped| dropped.as_bytes() == name) {
            writer.append_element(&element);
        }
    }
    writer
}

/// The client's request with what a router adds: as it is, but for these fields, if it has none of them.
fn stamped(original: &Request, stamp: impl FnOnce(&mut DocWriter)) -> Result<Request, Error> {
    if !OURS.iter().any(|name| original.may_have(name)) {
        return Ok(original.extended(stamp));
    }
    let mut writer = fields_without(original.body(), &[]);
    stamp(&mut writer);
    Request::from_parts(writer.finish(), original.sequences().to_vec())
}

impl Route {
    /// Says by which versions a request for a shard was routed.
    pub(crate) fn stamp(&self, writer: &mut DocWriter, shard: &ShardId) {
        match &self.placement {
            Placement::Sharded(table) => {
                stamp_known(writer, table.shard_version(shard), table.came_to_be());
            }
            Placement::Unsharded => {
                stamp_version(writer, PlacementVersion::UNSHARDED);
                stamp_database(writer, &self.database);
            }
        }
    }

    /// The client's request for one shard, its documents where they lie.
    pub(crate) fn request(
        &self,
        original: &Request,
        shard: &ShardId,
        clock: &Clock,
    ) -> Result<Request, Error> {
        stamped(original, |writer| {
            self.stamp(writer, shard);
            clock.append_to(writer);
        })
    }
}

/// The same for a collection that is known to be sharded.
pub(crate) fn request_by(
    table: &RoutingTable,
    original: &Request,
    shard: &ShardId,
    clock: &Clock,
) -> Result<Request, Error> {
    stamped(original, |writer| {
        stamp_version(writer, table.shard_version(shard));
        clock.append_to(writer);
    })
}

pub(crate) fn stamp_version(writer: &mut DocWriter, version: PlacementVersion) {
    writer.begin_document("shardVersion");
    version.append_to(writer);
    writer.end();
}

/// The same with the time until which it is known who owned what: an older version is good enough for a read of that
/// time.
pub(crate) fn stamp_known(writer: &mut DocWriter, version: PlacementVersion, known: ClusterTime) {
    writer.begin_document("shardVersion");
    version.append_to(writer);
    writer.append("known", known).end();
}

pub(crate) fn stamp_database(writer: &mut DocWriter, database: &crate::config::Database) {
    writer.begin_document("databaseVersion");
    database.version.append_to(writer);
    writer.end();
}
