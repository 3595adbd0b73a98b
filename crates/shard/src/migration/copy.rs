//! `_terndbMoveCopy`: the donor's documents, in the order of their record keys.
//!
//! ```text
//!   {_terndbMoveCopy: 1, id, after: BinData | null, bytes}
//!   {documents: [..], next: BinData | null, strain: double, lately: bool, kept: bool}       null: that was the last
//! ```
//!
//! `strain` is how many times longer clients wait here than at rest (`latency.rs`), if there are any; `lately`,
//! whether there were some in the last seconds; `kept`, whether scans have left these documents in memory here, so
//! that they should find them in memory there too.
//!
//! Each answer is read from a snapshot of its own, and shows the latest versions. What changes
//! before or behind the place that was reached is in the log, which the recipient replays from
//! before the beginning on. Documents are passed on as the bytes that are stored.

use super::pacing::Felt;
use super::stretch::Stretch;
use crate::Shard;
use crate::command::{Answer, finish};
use model::bson::{Doc, MAX_DOCUMENT_BYTES, ValueRef};
use storage::giving_way;
use wire::Reply;

/// Records that one answer looks at where only few of them may belong to the range.
const RECORDS_MAX: usize = 20_000;

pub(super) fn binary(bytes: &[u8]) -> ValueRef<'_> {
    ValueRef::Binary { subtype: 0, bytes }
}

pub(super) fn copy(shard: &Shard, stretch: &Stretch, after: Option<&[u8]>, bytes: usize) -> Answer {
    // One document more may follow behind what was asked for.
    let bytes = bytes.min(MAX_DOCUMENT_BYTES);
    let mut writer = Reply::writer_with_capacity(bytes + bytes / 8);
    writer.begin_array("documents");
    let snapshot = shard.store.snapshot();
    let range = stretch.records(after);
    let (mut sent, mut looked_at) = (0, 0);
    let mut last: Option<storage::Position> = None;
    let mut is_last = true;
    let mut records = snapshot.scan_records_once(stretch.collection, range);
    let mut kept = false;
    while let Some(record) = records.next() {
        giving_way::look();
        kept = records.is_kept();
        let record = record.map_err(crate::error::from_storage)?;
        let document = Doc::from_validated(record.document());
        if stretch.has(record.key(), document) {
            if sent > 0 && sent + document.len() > bytes {
                is_last = false;
                break;
            }
            sent += document.len();
            writer.push(document);
        }
        looked_at += 1;
        last = Some(record.into_position());
        if looked_at == RECORDS_MAX {
            is_last = false;
            break;
        }
    }
    writer.end();
    match &last {
        Some(last) if !is_last => writer.append("next", binary(last.as_bytes())),
        _ => writer.append("next", ValueRef::Null),
    };
    let Felt { strain, lately } = Felt::on(shard);
    if let Some(strain) = strain {
        writer.append("strain", strain);
    }
    writer.append("lately", lately).append("kept", kept);
    finish(writer)
}
