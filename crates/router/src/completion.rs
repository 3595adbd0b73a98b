//! What servers put into documents that are inserted, where a document is routed by it: then the router has to,
//! before it knows where the document goes.
//!
//! - An `_id`, if there is none.
//! - The time in place of `Timestamp(0, 0)`, in fields of the document itself other than `_id`. What is nested stays
//!   as it is, as on a shard.
//!
//! ⚑ A retryable insert that its driver sends again must get the same, or it may be a document of another shard,
//! which does not recognise it and inserts it too. So what it gets follows from what is sent again: the session, the
//! transaction number and the statement's id, and for the seconds the `_id` that drivers make, if that is an
//! ObjectId of this hour. Where there is no such `_id`, this router remembers which second it gave.
//!
//! Left out: a retry of the latter kind that comes through another router, in another second and, by that, to
//! another chunk.

use crate::hello::{now_ms, object_id};
use cluster::routing::RoutingTable;
use model::bson::{Doc, DocBuf, DocWriter, ObjectId, Timestamp, ValueRef};
use model::hash::hashed_index_key;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};

/// How far an `_id`'s time may be from now to be the time of its document's insertion.
const SECONDS_APART_MAX: u32 = 3_600;
/// Commands whose second is remembered; the oldest is forgotten first. ⚑ Commands, not their statements: one has up to
/// a hundred thousand, and would push out its own.
const REMEMBERED_MAX: usize = 10_000;

/// Which statement of a retryable write it is, however often it is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RetriedAs {
    command: i64,
    statement: i64,
}

impl RetriedAs {
    pub(crate) fn of(body: Doc<'_>, statement_id: i32) -> Option<RetriedAs> {
        let (session, number) = (body.get_doc("lsid")?, body.get("txnNumber")?);
        let named = || {
            DocWriter::new()
                .with("lsid", session)
                .with("txnNumber", number)
        };
        let hash = |named: DocWriter| hashed_index_key(ValueRef::Document(named.finish().as_doc()));
        Some(RetriedAs {
            command: hash(named()),
            statement: hash(named().with("stmtId", statement_id)),
        })
    }
}

/// The seconds that were given to commands that may be sent again.
#[derive(Default)]
pub(crate) struct GivenSeconds(Mutex<Given>);

#[derive(Default)]
struct Given {
    seconds: BTreeMap<i64, u32>,
    oldest_first: VecDeque<i64>,
}

impl GivenSeconds {
    fn of(&self, command: i64, now: u32) -> u32 {
        let mut given = self.0.lock();
        if let Some(seconds) = given.seconds.get(&command) {
            return *seconds;
        }
        if given.oldest_first.len() == REMEMBERED_MAX
            && let Some(oldest) = given.oldest_first.pop_front()
        {
            given.seconds.remove(&oldest);
        }
        given.seconds.insert(command, now);
        given.oldest_first.push_back(command);
        now
    }
}

/// What a document lacks that it is routed by.
struct Lack {
    id: bool,
    time: bool,
}

impl Lack {
    fn of(table: &RoutingTable, document: Doc<'_>) -> Lack {
        let fields = table.pattern.fields();
        let by_id = |path: &str| path == "_id" || path.starts_with("_id.");
        Lack {
            id: fields.iter().any(|field| by_id(&field.path)) && document.get("_id").is_none(),
            time: fields.iter().any(|field| {
                &*field.path != "_id" && document.get(&field.path).is_some_and(is_zero)
            }),
        }
    }
}

fn is_zero(value: ValueRef<'_>) -> bool {
    matches!(value, ValueRef::Timestamp(time) if time.seconds == 0 && time.increment == 0)
}

/// Whether a document has all that it is routed by.
pub(crate) fn is_complete(table: &RoutingTable, document: Doc<'_>) -> bool {
    let Lack { id, time } = Lack::of(table, document);
    !id && !time
}

/// The document with all that it is routed by; `None` if it has that already.
pub(crate) fn completed(
    table: &RoutingTable,
    document: Doc<'_>,
    retried_as: impl FnOnce() -> Option<RetriedAs>,
    given: &GivenSeconds,
) -> Option<DocBuf> {
    let lack = Lack::of(table, document);
    if !lack.id && !lack.time {
        return None;
    }
    let now = u32::try_from(now_ms() / 1000).unwrap_or(u32::MAX);
    let (id, time) = match retried_as() {
        None => (object_id(), time_at(now)),
        Some(RetriedAs { command, statement }) => {
            let made_at = match document.get("_id") {
                Some(ValueRef::ObjectId(id)) => Some(seconds_of(id)),
                _ => None,
            };
            let seconds = made_at
                .filter(|made_at| made_at.abs_diff(now) <= SECONDS_APART_MAX)
                .unwrap_or_else(|| given.of(command, now));
            let time = Timestamp {
                seconds,
                increment: (statement as u32).max(1),
            };
            (id_of(seconds, statement), time)
        }
    };
    let fields = table.pattern.fields();
    let is_key = |name: &str| {
        fields
            .iter()
            .any(|field| &*field.path == name && name != "_id")
    };
    let mut writer = DocWriter::new();
    if lack.id {
        writer.append("_id", id);
    }
    for element in document.iter() {
        match is_zero(element.value()) && is_key(element.key()) {
            true => writer.append(element.key(), ValueRef::Timestamp(time)),
            false => writer.append_element(&element),
        };
    }
    Some(writer.finish())
}

fn seconds_of(ObjectId(bytes): ObjectId) -> u32 {
    let [a, b, c, d, ..] = bytes;
    u32::from_be_bytes([a, b, c, d])
}

fn id_of(seconds: u32, hash: i64) -> ObjectId {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&seconds.to_be_bytes());
    bytes[4..].copy_from_slice(&hash.to_be_bytes());
    ObjectId(bytes)
}

/// Another one each time.
fn time_at(seconds: u32) -> Timestamp {
    static INCREMENT: AtomicU32 = AtomicU32::new(1);
    Timestamp {
        seconds,
        increment: INCREMENT.fetch_add(1, Ordering::Relaxed).max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::routing::{Chunk, ShardId};
    use model::ids::Uuid;
    use model::range::KeyBound;
    use model::shard_key::ShardKeyPattern;
    use model::time::ClusterTime;
    use model::version::{ChunkVersion, PlacementVersion};

    /// A collection that is sharded by these fields, in one chunk.
    fn table(fields: &[&str]) -> RoutingTable {
        let mut pattern = DocWriter::new();
        for field in fields {
            pattern.append(field, 1);
        }
        let pattern = ShardKeyPattern::parse(pattern.finish().as_doc()).expect("a pattern");
        let least = KeyBound::new(&pattern.least());
        let version = ChunkVersion::new(1, 0);
        let chunk = Chunk::new(least, ShardId::new("a"), version, ClusterTime::ZERO);
        let chunks = vec![(chunk, KeyBound::after_all())];
        let life = PlacementVersion::UNSHARDED.incarnation;
        RoutingTable::full(Uuid([7; 16]), life, pattern.into(), chunks).expect("a table")
    }

    fn retryable(number: i64) -> DocBuf {
        let mut command = DocWriter::new().with("insert", "birds");
        command.begin_document("lsid").append("id", 7).end();
        command.append("txnNumber", number);
        command.finish()
    }

    const ZERO: ValueRef<'static> = ValueRef::Timestamp(Timestamp {
        seconds: 0,
        increment: 0,
    });

    /// ⚑ A retried insert that gets another time may be one of another shard, and inserted twice.
    #[test]
    fn a_retried_insert_is_completed_to_the_same() {
        let now = u32::try_from(now_ms() / 1000).expect("a time");
        let by_driver = id_of(now - 600, 1);
        let documents = [
            DocWriter::new().with("_id", by_driver).with("t", ZERO),
            // Of another year, and of another kind.
            DocWriter::new().with("_id", id_of(7, 1)).with("t", ZERO),
            DocWriter::new().with("_id", 5).with("t", ZERO),
            DocWriter::new().with("t", ZERO),
        ];
        let table = table(&["t", "_id"]);
        let given = GivenSeconds::default();
        for document in documents.map(DocWriter::finish) {
            let complete = |body: &DocBuf, statement: i32| {
                let retried_as = || RetriedAs::of(body.as_doc(), statement);
                let complete = completed(&table, document.as_doc(), retried_as, &given);
                complete.expect("it lacks something")
            };
            let first = complete(&retryable(1), 0);
            assert!(is_complete(&table, first.as_doc()), "{first:?}");
            assert_eq!(complete(&retryable(1), 0), first);
            assert_ne!(complete(&retryable(1), 1), first);
            assert_ne!(complete(&retryable(2), 0), first);
            // The time is that of the insertion.
            let Some(ValueRef::Timestamp(time)) = first.get("t") else {
                panic!("{first:?}");
            };
            assert!(time.seconds >= now - 600, "{time:?}");
            // One that is not retried gets another one each time.
            let once = || completed(&table, document.as_doc(), || None, &given);
            assert_ne!(once(), once());
        }
        // Another router knows no more than what is sent.
        let another = GivenSeconds::default();
        let document = DocWriter::new().with("_id", by_driver).with("t", ZERO);
        let document = document.finish();
        let body = retryable(1);
        let complete = |given| {
            let retried_as = || RetriedAs::of(body.as_doc(), 0);
            completed(&table, document.as_doc(), retried_as, given)
        };
        assert_eq!(complete(&given), complete(&another));
    }

    #[test]
    fn few_seconds_are_remembered() {
        let given = GivenSeconds::default();
        for command in 0..REMEMBERED_MAX as i64 + 5 {
            given.of(command, 1);
        }
        assert_eq!(given.of(9, 2), 1);
        assert_eq!(given.of(0, 2), 2);
        assert_eq!(given.0.lock().seconds.len(), REMEMBERED_MAX);
    }

    /// ⚑ However long a batch is, all of it is remembered.
    #[test]
    fn a_long_batch_is_one_command() {
        let given = GivenSeconds::default();
        let body = retryable(1);
        let commands: BTreeMap<i64, usize> = (0..REMEMBERED_MAX + 1)
            .map(|at| RetriedAs::of(body.as_doc(), at as i32).expect("it is retryable"))
            .map(|retried| (retried.command, 1))
            .collect();
        assert_eq!(commands.len(), 1);
        for (now, expected) in [(5, 5), (6, 5)] {
            let seconds = commands.keys().map(|command| given.of(*command, now));
            assert_eq!(seconds.collect::<Vec<_>>(), [expected]);
        }
    }
}
