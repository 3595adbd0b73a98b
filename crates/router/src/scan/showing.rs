//! Scans as `$currentOp` shows them: what they began with, and how far each stream has come.

use super::ElasticScan;
use cluster::scan::Reached;
use model::bson::{DocWriter, ValueRef};
use model::ids::Uuid;

impl ElasticScan {
    pub(super) fn append_streams(&self, cursor: &mut DocWriter) {
        let base = self.scan.base();
        cursor.begin_document("elasticScan");
        if let Some(Uuid(bytes)) = &self.collection {
            let uuid = ValueRef::Binary { subtype: 4, bytes };
            cursor.append("collectionUUID", uuid);
        }
        cursor.begin_document("baseVersion");
        base.version().append_to(cursor);
        cursor.end().begin_array("streams");
        for stream in self.scan.streams() {
            let state = match (stream.has_ended, stream.reached) {
                (true, _) => "ended",
                (false, Reached::Beginning) => "opened",
                (false, Reached::Behind(_) | Reached::End) => "under way",
            };
            cursor
                .push_document()
                .append("shard", stream.shard.as_str())
                .append("virtual", stream.is_virtual)
                .append("hops", i64::from(stream.hops))
                .append("state", state);
            if let Some(ranges) = stream.ranges {
                cursor.append("ranges", ranges.iter().len() as i32);
            }
            if let Reached::Behind(place) = stream.reached {
                let bytes = place.as_slice();
                cursor.append("position", ValueRef::Binary { subtype: 0, bytes });
            }
            cursor.end();
        }
        cursor.end().end();
    }
}
