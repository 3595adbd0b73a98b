//! What a move is about, and the documents in which both sides keep how far they are.
//!
//! ```text
//!   config.migrationCoordinators   on the donor       MongoDB's fields, then ours
//!   config.migrationRecipients     on the recipient
//!   { _id: UUID, nss, collectionUuid, donorShardId, recipientShardId, range: {min, max},
//!     key, encodedRange: {min, max}, known: {e, t, v}, otherHost, catalogVersion, secondaryThrottle, waitForDelete,
//!     partOf: UUID,                    of the move of a database's primary, if it is a part of one
//!     described: {options, ...},       of a part, on the donor: the collection that the recipient was told to make
//!     since: long, phase: "copying" | "writesBlocked" | "readsBlocked" | "committed" | "aborted"
//!                       | "receiving" | "ready" | "owner" | "aborted",
//!     version: {e, t, v},              committed: of the collection from then on
//!     validAfter: Timestamp,           committed: the time from which on the recipient owns the range
//!     cleared: bool,                   receiving: nothing of earlier days is left in the range
//!     alignedWith: long,               on the recipient: options and indexes are those of this catalogVersion
//!     endedAt: date }                  ended on the recipient
//! ```
//!
//! ⚑ `known` is the version of the collection that was known here when the move began. A commit of
//! this move is newer: it is decided later. One that is not is of an earlier life of the move, all
//! of whose messages came again after it was forgotten, and says nothing about now.
//!
//! `catalogVersion` numbers the attempts of a move: it grows when the donor learns that options or indexes have
//! changed.
//!
//! ⚑ `described` is of the time when the part began, whoever leads by now: a collection that has got an index or
//! other options since then is not what the recipient made, and its part begins anew. A part of an earlier
//! release does not say, and does so too.
//!
//! A document is what the protocol's machine holds (`cluster::migration`), and what is needed to
//! carry it out. It is written before anything follows from it, in the entry that changes
//! ownership if one does.

use super::copy::binary;
use crate::sharding::StateWrite;
use crate::sharding::range_deletion::{RangeDeletion, WhenToClean};
use cluster::authority::Outcome;
use cluster::migration::Move;
use cluster::migration::donor::{self, Donor};
use cluster::migration::recipient::{self, Recipient};
use cluster::routing::ShardId;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::ids::Uuid;
use model::range::{KeyBound, KeyRange};
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::PlacementVersion;
use model::{Code, Error, Namespace};

/// What is moved, by whom, and how.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) id: Uuid,
    /// The move of a database's primary that this is a part of: its outcome is this one's.
    pub(super) part_of: Option<Uuid>,
    pub(super) namespace: Namespace,
    pub(super) uuid: Uuid,
    pub(super) key: DocBuf,
    pub(super) pattern: ShardKeyPattern,
    pub(super) range: KeyRange,
    /// The range as people know it.
    pub(super) bounds: DocBuf,
    pub(super) donor: String,
    pub(super) recipient: String,
    /// Where the other side is.
    pub(super) other_host: String,
    pub(super) catalog_version: i64,
    /// The version of the collection that was known here when the move began.
    pub(super) known: PlacementVersion,
    pub(super) secondary_throttle: bool,
    pub(super) wait_for_delete: bool,
}

pub(super) fn uuid_value(uuid: &Uuid) -> ValueRef<'_> {
    ValueRef::Binary {
        subtype: 4,
        bytes: &uuid.0,
    }
}

/// Reads fields of messages and of stored documents.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) Doc<'a>);

impl<'a> Fields<'a> {
    pub(super) fn uuid(self, name: &str) -> Result<Uuid, Error> {
        match self.0.get(name) {
            Some(ValueRef::Binary { subtype: 4, bytes }) => {
                bytes.try_into().map(Uuid).map_err(|_| wrong(name))
            }
            _ => Err(wrong(name)),
        }
    }

    pub(super) fn text(self, name: &str) -> Result<&'a str, Error> {
        self.0.get_str(name).ok_or_else(|| wrong(name))
    }

    pub(super) fn doc(self, name: &str) -> Result<Doc<'a>, Error> {
        self.0.get_doc(name).ok_or_else(|| wrong(name))
    }

    pub(super) fn long(self, name: &str) -> Result<i64, Error> {
        match self.0.get(name) {
            Some(ValueRef::Int64(long)) => Ok(long),
            Some(ValueRef::Int32(int)) => Ok(i64::from(int)),
            _ => Err(wrong(name)),
        }
    }

    pub(super) fn count(self, name: &str) -> Result<u64, Error> {
        u64::try_from(self.long(name)?).map_err(|_| wrong(name))
    }

    pub(super) fn flag(self, name: &str) -> bool {
        self.0.get(name) == Some(ValueRef::Boolean(true))
    }

    pub(super) fn bytes(self, name: &str) -> Option<&'a [u8]> {
        match self.0.get(name) {
            Some(ValueRef::Binary { bytes, .. }) => Some(bytes),
            _ => None,
        }
    }

    pub(super) fn range(self, name: &str) -> Result<KeyRange, Error> {
        let range = Fields(self.doc(name)?);
        let bound = |side| {
            let bytes = range.bytes(side).ok_or_else(|| wrong(name))?;
            Ok::<_, Error>(KeyBound::new(bytes))
        };
        Ok(KeyRange::new(bound("min")?, bound("max")?))
    }

    pub(super) fn version(self, name: &str) -> Result<PlacementVersion, Error> {
        PlacementVersion::from_document(self.doc(name)?)
    }

    pub(super) fn time(self, name: &str) -> Result<ClusterTime, Error> {
        match self.0.get(name) {
            Some(ValueRef::Timestamp(time)) => Ok(ClusterTime::new(time.seconds, time.increment)),
            _ => Err(wrong(name)),
        }
    }

    /// What was decided of a move, as [`append_outcome`] writes it.
    pub(super) fn outcome(self) -> Result<Outcome, Error> {
        match self.text("outcome")? {
            "committed" => self.committed(),
            "aborted" => Ok(Outcome::Aborted),
            _ => Err(wrong("outcome")),
        }
    }

    fn committed(self) -> Result<Outcome, Error> {
        Ok(Outcome::Committed {
            version: self.version("version")?,
            since: self.time("validAfter")?,
        })
    }
}

/// `outcome`, and the version and time of a commit.
pub(super) fn append_outcome(writer: &mut DocWriter, outcome: Outcome) {
    match outcome {
        Outcome::Committed { version, since } => {
            writer.append("outcome", "committed");
            append_committed(writer, version, since);
        }
        Outcome::Aborted => {
            writer.append("outcome", "aborted");
        }
    }
}

fn append_committed(writer: &mut DocWriter, version: PlacementVersion, since: ClusterTime) {
    writer.begin_document("version");
    version.append_to(writer);
    writer.end().append("validAfter", since);
}

pub(super) fn wrong(name: &str) -> Error {
    Error::new(
        Code::TYPE_MISMATCH,
        format!("the field {name} of a move is missing or of another type"),
    )
}

pub(super) fn append_range(writer: &mut DocWriter, name: &str, range: &KeyRange) {
    writer
        .begin_document(name)
        .append("min", binary(range.min.as_bytes()))
        .append("max", binary(range.max.as_bytes()))
        .end();
}

impl Plan {
    /// By which its outcome is known.
    pub(super) fn operation(&self) -> Uuid {
        self.part_of.unwrap_or(self.id)
    }

    pub(super) fn moved(&self) -> Move {
        Move {
            id: self.id,
            range: self.range.clone(),
            from: ShardId::new(&self.donor),
            to: ShardId::new(&self.recipient),
            catalog: self.catalog_version.unsigned_abs(),
        }
    }

    /// The document's beginning.
    fn document(&self) -> DocWriter {
        let mut writer = DocWriter::new()
            .with("_id", uuid_value(&self.id))
            .with("nss", self.namespace.as_str())
            .with("collectionUuid", uuid_value(&self.uuid))
            .with("donorShardId", self.donor.as_str())
            .with("recipientShardId", self.recipient.as_str())
            .with("range", &self.bounds)
            .with("key", &self.key);
        append_range(&mut writer, "encodedRange", &self.range);
        writer.begin_document("known");
        self.known.append_to(&mut writer);
        writer.end();
        if let Some(whole) = &self.part_of {
            writer.append("partOf", uuid_value(whole));
        }
        writer
            .with("otherHost", self.other_host.as_str())
            .with("catalogVersion", self.catalog_version)
            .with("secondaryThrottle", self.secondary_throttle)
            .with("waitForDelete", self.wait_for_delete)
    }

    fn from_document(doc: Doc<'_>) -> Result<Self, Error> {
        let fields = Fields(doc);
        let key = fields.doc("key")?;
        Ok(Self {
            id: fields.uuid("_id")?,
            part_of: fields.uuid("partOf").ok(),
            namespace: Namespace::parse(fields.text("nss")?)?,
            uuid: fields.uuid("collectionUuid")?,
            pattern: ShardKeyPattern::parse(key)?,
            key: key.to_owned(),
            range: fields.range("encodedRange")?,
            bounds: fields.doc("range")?.to_owned(),
            donor: fields.text("donorShardId")?.to_owned(),
            recipient: fields.text("recipientShardId")?.to_owned(),
            other_host: fields.text("otherHost")?.to_owned(),
            catalog_version: fields.long("catalogVersion")?,
            known: fields.version("known")?,
            secondary_throttle: fields.flag("secondaryThrottle"),
            wait_for_delete: fields.flag("waitForDelete"),
        })
    }

    /// The task of the range's deletion: what is left of it here, once that is decided.
    pub(super) fn deletion(
        &self,
        pending: bool,
        when: WhenToClean,
        since: ClusterTime,
        documents: i64,
    ) -> Result<StateWrite, Error> {
        let bounds = Fields(self.bounds.as_doc());
        let task = RangeDeletion {
            id: self.id,
            namespace: self.namespace.clone(),
            collection: self.uuid,
            donor: self.donor.clone(),
            range: self.range.clone(),
            min: bounds.doc("min")?.to_owned(),
            max: bounds.doc("max")?.to_owned(),
            when,
            pending,
            documents,
            since,
        };
        task.put()
    }

    /// When the donor's copy is to be removed.
    pub(super) fn when_to_clean(&self) -> WhenToClean {
        match self.wait_for_delete {
            true => WhenToClean::Now,
            false => WhenToClean::Delayed,
        }
    }
}

/// Where a donor is.
#[derive(Clone, Debug)]
pub(super) struct DonorState {
    pub(super) plan: Plan,
    pub(super) donor: Donor,
    /// Of a part: the collection as it was when this began.
    pub(super) described: Option<DocBuf>,
    /// How many documents the range has; known once writes are blocked.
    pub(super) documents: i64,
}

impl DonorState {
    pub(super) fn document(&self) -> DocBuf {
        let since = self.donor.since as i64;
        let mut writer = self
            .plan
            .document()
            .with("since", since)
            .with("documents", self.documents);
        if let Some(described) = &self.described {
            writer.append("described", described);
        }
        let (phase, committed) = match self.donor.phase {
            donor::Phase::Copying => ("copying", None),
            donor::Phase::WritesBlocked => ("writesBlocked", None),
            donor::Phase::ReadsBlocked => ("readsBlocked", None),
            donor::Phase::Committed(Outcome::Committed { version, since }) => {
                ("committed", Some((version, since)))
            }
            donor::Phase::Committed(Outcome::Aborted) | donor::Phase::Aborted => ("aborted", None),
        };
        writer.append("phase", phase);
        if let Some((version, since)) = committed {
            append_committed(&mut writer, version, since);
        }
        writer.finish()
    }

    pub(super) fn from_document(doc: Doc<'_>) -> Result<Self, Error> {
        let fields = Fields(doc);
        let plan = Plan::from_document(doc)?;
        let since = fields.count("since")?;
        let phase = match fields.text("phase")? {
            "copying" => donor::Phase::Copying,
            "writesBlocked" => donor::Phase::WritesBlocked,
            "readsBlocked" => donor::Phase::ReadsBlocked,
            "committed" => donor::Phase::Committed(fields.committed()?),
            "aborted" => donor::Phase::Aborted,
            _ => return Err(wrong("phase")),
        };
        Ok(Self {
            donor: Donor {
                moved: plan.moved(),
                since,
                phase,
            },
            plan,
            described: doc.get_doc("described").map(Doc::to_owned),
            documents: fields.long("documents").unwrap_or(0),
        })
    }
}

/// Where a recipient is.
#[derive(Clone, Debug)]
pub(super) struct RecipientState {
    pub(super) plan: Plan,
    pub(super) recipient: Recipient,
    pub(super) since: u64,
    /// What an earlier move left behind is removed.
    pub(super) cleared: bool,
    pub(super) ended_ms: Option<i64>,
}

pub(super) fn phase_name(phase: &recipient::Phase) -> &'static str {
    match phase {
        recipient::Phase::Receiving { .. } => "receiving",
        recipient::Phase::Ready => "ready",
        recipient::Phase::Owner => "owner",
        recipient::Phase::Aborted => "aborted",
    }
}

impl RecipientState {
    pub(super) fn document(&self) -> DocBuf {
        let mut writer = self
            .plan
            .document()
            .with("since", self.since as i64)
            .with("phase", phase_name(&self.recipient.phase))
            .with("cleared", self.cleared);
        if let Some(aligned) = self.recipient.aligned {
            writer.append("alignedWith", aligned as i64);
        }
        if let Some(ended_ms) = self.ended_ms {
            writer.append("endedAt", ValueRef::DateTime(ended_ms));
        }
        writer.finish()
    }

    pub(super) fn from_document(doc: Doc<'_>) -> Result<Self, Error> {
        let fields = Fields(doc);
        let plan = Plan::from_document(doc)?;
        let since = fields.count("since")?;
        let phase = match fields.text("phase")? {
            // What was replayed is replayed again: it comes to the same.
            "receiving" => recipient::Phase::Receiving { copied: since },
            "ready" => recipient::Phase::Ready,
            "owner" => recipient::Phase::Owner,
            "aborted" => recipient::Phase::Aborted,
            _ => return Err(wrong("phase")),
        };
        Ok(Self {
            recipient: Recipient {
                moved: plan.moved(),
                aligned: fields.count("alignedWith").ok(),
                phase,
            },
            plan,
            since,
            cleared: fields.flag("cleared"),
            ended_ms: match doc.get("endedAt") {
                Some(ValueRef::DateTime(ms)) => Some(ms),
                _ => None,
            },
        })
    }
}
