//! One question to one shard: on its cursor, or anew from a place.

use super::ScanCommand;
use super::naming::{Named, Words};
use super::partials::PartialRoom;
use super::past::history_is_gone;
use super::piece::Piece;
use super::reported::{Reported, malformed};
use crate::Router;
use crate::failure::{Failure, Stale, checked, unreachable};
use crate::operation;
use crate::registry::batch_of;
use crate::request::fields_without;
use cluster::routing::RoutingTable;
use cluster::scan::{Asked, Entry, Place, Question};
use model::bson::{Doc, DocWriter, ValueRef};
use model::error::{Code, Error};
use model::ids::Uuid;
use model::range::RangeSet;
use model::time::ClusterTime;
use model::version::PlacementVersion;
use query::sort::Run;
use std::sync::Arc;
use wire::{Endpoint, Reply, Request};

/// A shard's cursor.
#[derive(Clone)]
pub(crate) struct OpenCursor {
    pub(crate) member: Arc<dyn Endpoint>,
    pub(crate) id: i64,
}

/// What a question came to.
pub(super) enum Ask {
    Answered(Box<Answered>),
    /// The shard's ranges changed since its cursor was opened.
    Lost,
    Stale(Stale),
    /// The shard cannot answer now; another member may, in a moment.
    Away(Failure),
    /// Its ranges are too many for one request.
    TooLong,
}

pub(super) struct Answered {
    pub(super) entries: Vec<Entry<Piece>>,
    pub(super) place: Option<Place>,
    pub(super) ended: bool,
    pub(super) not_owned: RangeSet,
    pub(super) version: Option<PlacementVersion>,
    pub(super) cursor: Option<OpenCursor>,
    /// Of a collection that is not sharded: which it is.
    pub(super) collection: Option<Uuid>,
    pub(super) times: Vec<ClusterTime>,
    /// What it weighs, if it was asked on an open cursor.
    pub(super) bytes_on_cursor: Option<usize>,
    /// What comes before the entries, and did not fit into memory.
    pub(super) run: Option<Box<dyn Run>>,
}

/// Who asks, for all streams of one round.
pub(super) struct Asker {
    pub(super) router: Arc<Router>,
    pub(super) command: Arc<ScanCommand>,
    pub(super) base: Arc<RoutingTable>,
    pub(super) batch_size: Option<u64>,
    pub(super) limit: Option<u64>,
    pub(super) not_before: ClusterTime,
    pub(super) begun: bool,
    /// Nobody is waited for who does not say a word.
    pub(super) is_hurried: bool,
    /// What a batch may weigh, if anybody has to know before it comes.
    pub(super) bytes_max: Option<usize>,
    pub(super) room: Arc<PartialRoom>,
    /// Which collection is meant, as far as it is known.
    pub(super) collection: Option<Uuid>,
}

impl Asker {
    /// Asks for one batch; of a scan whose results count as a whole, for all of them.
    pub(super) async fn ask(
        &self,
        question: &Question,
        cursor: Option<OpenCursor>,
    ) -> Result<Ask, Failure> {
        let first = match cursor {
            Some(cursor) => self.go_on(question, cursor).await?,
            None => self.open(question).await?,
        };
        match first {
            Ask::Answered(answered) if self.command.whole => self.gather(question, answered).await,
            other => Ok(other),
        }
    }

    pub(super) async fn go_on(
        &self,
        question: &Question,
        cursor: OpenCursor,
    ) -> Result<Ask, Failure> {
        let namespace = &self.command.namespace;
        let mut more = DocWriter::new()
            .with("getMore", cursor.id)
            .with("collection", namespace.collection());
        if let Some(size) = self.batch_size.filter(|size| *size > 0) {
            more.append("batchSize", i64::try_from(size).unwrap_or(i64::MAX));
        }
        if let Some(session) = &self.command.session {
            more.append("lsid", session);
        }
        if let Some(bytes) = self.bytes_max {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            more.begin_document("_terndbScan").append("bytes", bytes);
            more.end();
        }
        self.router.clock.append_to(&mut more);
        more.append("$db", namespace.database());
        let request = Request::from_parts(more.finish(), Vec::new())?;
        let request = request
            .passing_batch(self.command.passes)
            .hurried(self.is_hurried);
        let shard = &question.shard;
        let call = cursor.member.call(request);
        let answered = match self.bytes_max {
            // ⚑ Asked ahead, for a command that has not come: the one that is answered now may end, with its
            // client and its time.
            Some(_) => call.await,
            None => operation::waiting(call).await?,
        };
        let reply = match answered {
            Ok(reply) => reply,
            Err(error) => return Ok(Ask::Away(unreachable(shard, &error, false).into())),
        };
        self.router.clock.observe(reply.document());
        match checked(reply, shard) {
            Ok(reply) => {
                let bytes = reply.document().len();
                let mut ask = self.read(reply, question, cursor.member)?;
                if let Ask::Answered(answered) = &mut ask {
                    answered.bytes_on_cursor = Some(bytes);
                }
                Ok(ask)
            }
            Err(Failure::Reply(reply)) => match code_of(&reply) {
                // Whatever the reason is, who asks anew is told.
                Code::QUERY_PLAN_KILLED => Ok(Ask::Lost),
                code if is_passing(code) => Ok(Ask::Away(Failure::Reply(reply))),
                _ => Err(Failure::Reply(reply)),
            },
            Err(Failure::Stale(stale)) => Ok(Ask::Stale(stale)),
            Err(other) => Err(other),
        }
    }

    async fn open(&self, question: &Question) -> Result<Ask, Failure> {
        let named = match self.name(question).await? {
            Named::So(named) => named,
            Named::Answered(ask) => return Ok(ask),
        };
        let request = self.request(question, &named)?;
        match self.router.ask_as_named(&question.shard, request).await {
            Ok(answered) => self.read(answered.reply, question, answered.member),
            Err(Failure::Stale(stale)) => Ok(Ask::Stale(stale)),
            // It was removed: the database is elsewhere.
            Err(Failure::Error(error))
                if error.code == Code::SHARD_NOT_FOUND && self.command.is_at_home =>
            {
                Ok(Ask::Stale(Stale::Database))
            }
            Err(Failure::Error(error))
                if error.code == Code::SHARD_NOT_FOUND && self.command.is_past =>
            {
                Err(history_is_gone(&self.command.namespace).into())
            }
            // It was drained and removed: nothing of what it had is there.
            Err(Failure::Error(error)) if error.code == Code::SHARD_NOT_FOUND => {
                match &question.asked {
                    Asked::AsInBase => Ok(Ask::Lost),
                    Asked::These(ranges) => Ok(Ask::not_owned(ranges.clone(), None)),
                }
            }
            // Whoever has not seen anything yet is told at once, and may try again itself.
            Err(failure) if !self.begun => Err(failure),
            Err(Failure::Reply(reply)) if is_passing(code_of(&reply)) => {
                Ok(Ask::Away(Failure::Reply(reply)))
            }
            Err(Failure::Error(error)) if is_passing(error.code) => {
                Ok(Ask::Away(Failure::Error(error)))
            }
            Err(other) => Err(other),
        }
    }

    /// The command for a shard, from the place that a stream has reached.
    fn request(&self, question: &Question, named: &Words) -> Result<Request, Error> {
        let body = self.command.body.as_doc();
        let is_find = body.first().is_some_and(|first| first.key() == "find");
        let mut writer = match self.not_before > ClusterTime::ZERO {
            true => self.not_before(body),
            false => fields_without(body, &[]),
        };
        if is_find {
            if let Some(limit) = self.limit {
                writer.append("limit", i64::try_from(limit).unwrap_or(i64::MAX));
            }
            if let Some(size) = self.batch_size {
                writer.append("batchSize", i64::try_from(size).unwrap_or(i64::MAX));
            }
        }
        self.append_part(&mut writer, question, named);
        if self.command.places {
            writer.append("places", true);
        }
        if self.begun {
            writer.append("goesOn", true);
        }
        writer.end();
        self.router.clock.append_to(&mut writer);
        let request = Request::from_parts(writer.finish(), Vec::new())?;
        Ok(request
            .passing_batch(self.command.passes)
            .hurried(self.is_hurried))
    }

    /// The command's fields, with the time floor ⚑: a member that lags behind must not lose what an
    /// earlier batch saw, nor answer for a range as it was before it went to where an earlier answer
    /// missed it.
    fn not_before(&self, body: Doc<'_>) -> DocWriter {
        let concern = body.get_doc("readConcern").unwrap_or(Doc::EMPTY);
        let level = concern.get_str("level");
        let takes_time = matches!(level, None | Some("local" | "majority"));
        let asked = crate::config::time_of(concern.get("afterClusterTime"));
        if !takes_time || asked.is_some_and(|asked| asked >= self.not_before) {
            return fields_without(body, &[]);
        }
        let mut writer = fields_without(body, &["readConcern"]);
        writer.begin_document("readConcern");
        if let Some(level) = level {
            writer.append("level", level);
        }
        writer.append("afterClusterTime", self.not_before).end();
        writer
    }

    fn read(
        &self,
        reply: Reply,
        question: &Question,
        member: Arc<dyn Endpoint>,
    ) -> Result<Ask, Failure> {
        let shard = &question.shard;
        let reply = Arc::new(reply);
        let reported = Reported::read(reply.document(), shard)?;
        let mut places = reported.places.into_iter();
        let mut entries = Vec::new();
        let passed = match self.command.passes {
            true => Piece::batch(&reply).map_err(|why| malformed(shard, why))?,
            false => None,
        };
        let documents: Vec<Doc<'_>> = match reply.document().get_doc("cursor") {
            // ⚑ Documents of a batch that is passed on are not checked: nobody reads them.
            _ if self.command.passes => Vec::new(),
            Some(cursor) => batch_of(cursor).collect(),
            None => vec![reply.document()],
        };
        entries.extend(passed.map(|batch| Entry {
            sort: Vec::new(),
            place: None,
            value: batch,
        }));
        for document in documents {
            let mut sort = Vec::new();
            if let Some(order) = &self.command.order {
                order.key_into(document, &mut sort)?;
            }
            entries.push(Entry {
                sort,
                place: places.next(),
                value: Piece::new(&reply, document)
                    .ok_or_else(|| malformed(shard, "a document lies outside"))?,
            });
        }
        let goes_on = reported.cursor != 0 && !entries.is_empty();
        if goes_on && reported.place.is_none() && !self.command.whole {
            return Err(malformed(shard, "it does not say where its cursor stands").into());
        }
        let time = crate::config::time_of(reply.document().get("operationTime"));
        Ok(Ask::Answered(Box::new(Answered {
            entries,
            place: reported.place,
            ended: reported.cursor == 0,
            not_owned: reported.not_owned,
            version: reported.version,
            cursor: (reported.cursor != 0).then_some(OpenCursor {
                member,
                id: reported.cursor,
            }),
            collection: reported.uuid,
            times: time.into_iter().collect(),
            bytes_on_cursor: None,
            run: None,
        })))
    }
}

pub(crate) fn append_ranges(writer: &mut DocWriter, name: &str, ranges: &RangeSet) {
    writer.begin_array(name);
    for range in ranges.iter() {
        writer.push(binary(range.min.as_bytes()));
        writer.push(binary(range.max.as_bytes()));
    }
    writer.end();
}

pub(super) fn binary(bytes: &[u8]) -> ValueRef<'_> {
    ValueRef::Binary { subtype: 0, bytes }
}

pub(crate) fn code_of(reply: &Reply) -> Code {
    match reply.document().get("code") {
        Some(ValueRef::Int32(code)) => Code(code),
        _ => Code(0),
    }
}

/// Errors that say nothing about the query: another member, or the same one a moment later, may
/// answer it.
pub(crate) fn is_passing(code: Code) -> bool {
    matches!(
        code,
        Code::CURSOR_NOT_FOUND
            | Code::CURSOR_KILLED
            | Code::HOST_UNREACHABLE
            | Code::NETWORK_TIMEOUT
            | Code::FAILED_TO_SATISFY_READ_PREFERENCE
            | Code::SHUTDOWN_IN_PROGRESS
            | Code::PRIMARY_STEPPED_DOWN
            | Code::NOT_WRITABLE_PRIMARY
            | Code::INTERRUPTED_AT_SHUTDOWN
            | Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE
    ) || matches!(code.0, 6 | 7 | 13435 | 13436)
}
