//! What is known of one move, as it is stored and as the donor is told.

use crate::documents::{self, Fields, OPERATIONS, uuid_value};
use crate::error::Fault;
use crate::ticket::{self, Ticket};
use cluster::authority::OperationId;
use cluster::routing::ShardId;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::ids::Uuid;
use model::range::{KeyBound, KeyRange};
use model::{Code, Namespace};

pub(crate) const KIND: &str = "moveRange";

/// One move, from its first entry to its last.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    pub(crate) id: OperationId,
    pub(crate) namespace: Namespace,
    pub(crate) uuid: Uuid,
    /// The shard key when it began.
    pub(crate) key: DocBuf,
    pub(crate) range: KeyRange,
    /// The bounds as they were given or stored: the range knows only their order.
    pub(crate) min: DocBuf,
    pub(crate) max: DocBuf,
    pub(crate) from: ShardId,
    pub(crate) to: ShardId,
    /// Of options and indexes, when it began.
    pub(crate) catalog: u64,
    pub(crate) options: Options,
    pub(crate) began_ms: i64,
    /// Of the command that asked for it.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) told: Told,
}

/// How whoever asked for a move is answered when it has succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    Plainly,
    /// As `moveChunk` does.
    WithMillis,
}

impl Told {
    pub(super) fn reply(self, millis: i64) -> DocBuf {
        let mut reply = DocWriter::new();
        if self == Told::WithMillis {
            reply.append("millis", i32::try_from(millis).unwrap_or(i32::MAX));
        }
        reply.with("ok", 1.0).finish()
    }
}

/// What a client may ask for beside what moves where.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Options {
    pub(crate) wait_for_delete: bool,
    pub(crate) force_jumbo: bool,
    pub(crate) secondary_throttle: bool,
}

fn binary(bytes: &[u8]) -> ValueRef<'_> {
    ValueRef::Binary { subtype: 0, bytes }
}

/// A range as it travels: encoded bounds.
pub(super) fn append_range(writer: &mut DocWriter, range: &KeyRange) {
    writer
        .begin_document("range")
        .append("min", binary(range.min.as_bytes()))
        .append("max", binary(range.max.as_bytes()))
        .end();
}

pub(super) fn read_range(doc: Doc<'_>) -> Result<KeyRange, Fault> {
    let bound = |name: &str| match doc.get_doc("range").and_then(|range| range.get(name)) {
        Some(ValueRef::Binary { bytes, .. }) => Ok(KeyBound::new(bytes)),
        _ => Err(Fault::new(
            Code::TYPE_MISMATCH,
            "range must have min and max as binary data",
        )),
    };
    Ok(KeyRange::new(bound("min")?, bound("max")?))
}

impl Move {
    /// The state document, when it begins.
    pub(super) fn document(&self) -> DocBuf {
        let mut writer = DocWriter::new()
            .with("_id", uuid_value(&self.id))
            .with("kind", KIND)
            .with("ns", self.namespace.as_str())
            .with("uuid", uuid_value(&self.uuid))
            .with("key", &self.key);
        append_range(&mut writer, &self.range);
        writer
            .append("min", &self.min)
            .append("max", &self.max)
            .append("from", self.from.as_str())
            .append("to", self.to.as_str())
            .append("catalogVersion", self.catalog as i64)
            .append("waitForDelete", self.options.wait_for_delete)
            .append("forceJumbo", self.options.force_jumbo)
            .append("secondaryThrottle", self.options.secondary_throttle)
            .append("startedAt", ValueRef::DateTime(self.began_ms));
        if self.told == Told::WithMillis {
            writer.append("tellsMillis", true);
        }
        ticket::append(&mut writer, self.ticket);
        writer.finish()
    }

    pub(crate) fn restore(doc: Doc<'_>) -> Result<Self, Fault> {
        let fields = Fields::of(OPERATIONS, doc);
        let began_ms = match doc.get("startedAt") {
            Some(ValueRef::DateTime(began_ms)) => began_ms,
            _ => documents::now_ms(),
        };
        Ok(Self {
            id: fields.uuid("_id")?,
            namespace: Namespace::parse(fields.text("ns")?)?,
            uuid: fields.uuid("uuid")?,
            key: fields.doc("key")?.to_owned(),
            range: read_range(doc)?,
            min: fields.doc("min")?.to_owned(),
            max: fields.doc("max")?.to_owned(),
            from: ShardId::new(fields.text("from")?),
            to: ShardId::new(fields.text("to")?),
            catalog: fields.number("catalogVersion")?,
            options: Options {
                wait_for_delete: fields.flag("waitForDelete"),
                force_jumbo: fields.flag("forceJumbo"),
                secondary_throttle: fields.flag("secondaryThrottle"),
            },
            began_ms,
            ticket: ticket::stored(doc),
            told: match fields.flag("tellsMillis") {
                true => Told::WithMillis,
                false => Told::Plainly,
            },
        })
    }

    /// What the changelog says of it.
    pub(super) fn described(&self) -> DocWriter {
        DocWriter::new()
            .with("min", &self.min)
            .with("max", &self.max)
            .with("from", self.from.as_str())
            .with("to", self.to.as_str())
    }

    /// What the donor is asked for.
    pub(super) fn command(&self, host: &str) -> DocBuf {
        let mut writer = DocWriter::new()
            .with("_terndbMoveRange", 1)
            .with("id", uuid_value(&self.id))
            .with("ns", self.namespace.as_str())
            .with("uuid", uuid_value(&self.uuid))
            .with("key", &self.key);
        append_range(&mut writer, &self.range);
        writer
            .begin_document("bounds")
            .append("min", &self.min)
            .append("max", &self.max)
            .end()
            .append("to", self.to.as_str())
            .append("toHost", host)
            .append("catalogVersion", self.catalog as i64)
            .append("waitForDelete", self.options.wait_for_delete)
            .append("forceJumbo", self.options.force_jumbo)
            .append("secondaryThrottle", self.options.secondary_throttle);
        writer.finish()
    }
}
