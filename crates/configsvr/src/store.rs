//! The document server that this config server stands in front of: its `config` database is where
//! everything is kept.
//!
//! It is the member in this process and nobody else. If it does not lead its group it refuses to
//! write, which is what keeps a primary of yesterday from deciding anything.

use crate::commit::Commit;
use crate::error::Fault;
use crate::rules::{Rule, Rules};
use crate::tenure::no_primary;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::time::ClusterTime;
use model::{Code, Error};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::{CallError, Endpoint, Request};

/// Documents that a batch of a long read holds.
const BATCH: i32 = 10_000;

pub(crate) struct Store {
    endpoint: Arc<dyn Endpoint>,
    /// The latest time that was seen or given.
    latest: AtomicU64,
    /// The latest cluster time that a shard told.
    told: AtomicU64,
    /// How far this member's log has come, as far as was seen.
    applied: AtomicU64,
    pub(crate) rules: Rules,
}

impl Store {
    pub(crate) fn new(endpoint: Arc<dyn Endpoint>) -> Self {
        Self {
            endpoint,
            latest: AtomicU64::new(0),
            told: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            rules: Rules::default(),
        }
    }

    /// A time that is later than everything that was applied here, and is given once.
    pub(crate) fn next_time(&self) -> ClusterTime {
        ClusterTime::from_u64(self.latest.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// [`Store::next_time`] that is also later than a time of somebody else.
    pub(crate) fn time_after(&self, other: ClusterTime) -> ClusterTime {
        if self.rules.hold(Rule::DecideBehindBlock) {
            self.latest.fetch_max(other.to_u64(), Ordering::AcqRel);
        }
        self.next_time()
    }

    /// Takes note of the time in what a shard says.
    pub(crate) fn observe(&self, said: Doc<'_>) {
        let gossip = said.get_doc("$clusterTime");
        if let Some(ValueRef::Timestamp(time)) = gossip.and_then(|told| told.get("clusterTime")) {
            let told = ClusterTime::new(time.seconds, time.increment).to_u64();
            self.told.fetch_max(told, Ordering::AcqRel);
        }
    }

    /// The time that whoever asked for an operation has to know of: ⚑ what shards did for it is not
    /// later. A snapshot that is taken next shows it, on shards that said nothing since.
    pub(crate) fn told(&self) -> ClusterTime {
        ClusterTime::from_u64(self.told.load(Ordering::Acquire))
    }

    /// The config time: what is told to others comes from a log that has come this far.
    pub(crate) fn config_time(&self) -> ClusterTime {
        ClusterTime::from_u64(self.applied.load(Ordering::Acquire))
    }

    /// ⚑ Refuses whoever has seen more of the config server than this member has: it was deposed,
    /// and what it knows is of yesterday.
    pub(crate) async fn has_come_to(&self, request: Doc<'_>) -> Result<(), Fault> {
        let Some(ValueRef::Timestamp(time)) = request.get("$configTime") else {
            return Ok(());
        };
        let wanted = ClusterTime::new(time.seconds, time.increment);
        if self.config_time() < wanted {
            // The log may have come further with nothing said.
            self.run_on("admin", DocWriter::new().with("ping", 1))
                .await?;
        }
        match self.config_time() < wanted {
            true => Err(no_primary()),
            false => Ok(()),
        }
    }

    /// Runs a command on the database `config`.
    pub(crate) async fn run(&self, command: DocWriter) -> Result<DocBuf, Fault> {
        self.run_on("config", command).await
    }

    pub(crate) async fn run_on(&self, database: &str, command: DocWriter) -> Result<DocBuf, Fault> {
        let reply = call(&*self.endpoint, command.with("$db", database).finish()).await?;
        if let Some(ValueRef::Timestamp(time)) = reply.get("operationTime") {
            let seen = ClusterTime::new(time.seconds, time.increment).to_u64();
            self.latest.fetch_max(seen, Ordering::AcqRel);
            self.applied.fetch_max(seen, Ordering::AcqRel);
        }
        Ok(reply)
    }

    /// Makes a commit so: all of it is applied, or nothing.
    pub(crate) async fn commit(&self, commit: &Commit) -> Result<(), Fault> {
        self.run_on("admin", commit.command()).await.map(|_| ())
    }

    /// Documents of a collection of the database `config`, all of them.
    pub(crate) async fn find(
        &self,
        collection: &str,
        filter: Doc<'_>,
        sort: Doc<'_>,
    ) -> Result<Vec<DocBuf>, Fault> {
        let command = DocWriter::new()
            .with("find", collection)
            .with("filter", filter)
            .with("sort", sort);
        let mut found = Vec::new();
        let take = |doc: Doc<'_>| {
            found.push(doc.to_owned());
            Ok(())
        };
        self.find_each(collection, command, take).await?;
        Ok(found)
    }

    /// Looks at every document of a collection, as they lie.
    pub(crate) async fn scan(
        &self,
        collection: &str,
        take: impl FnMut(Doc<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let command = DocWriter::new().with("find", collection);
        self.find_each(collection, command, take).await
    }

    async fn find_each(
        &self,
        collection: &str,
        command: DocWriter,
        mut take: impl FnMut(Doc<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut reply = self.run(command.with("batchSize", BATCH)).await?;
        loop {
            let id = each_of_batch(reply.as_doc(), &mut take)?;
            if id == 0 {
                return Ok(());
            }
            let more = DocWriter::new()
                .with("getMore", id)
                .with("collection", collection)
                .with("batchSize", BATCH);
            reply = self.run(more).await?;
        }
    }

    pub(crate) async fn find_one(
        &self,
        collection: &str,
        filter: Doc<'_>,
    ) -> Result<Option<DocBuf>, Fault> {
        self.find_first(find_one(collection, filter)).await
    }

    /// The same, by a member that a majority says is the primary: nothing that was decided before is missed.
    pub(crate) async fn find_confirmed(
        &self,
        collection: &str,
        filter: Doc<'_>,
    ) -> Result<Option<DocBuf>, Fault> {
        let mut command = find_one(collection, filter);
        command
            .begin_document("readConcern")
            .append("level", "linearizable")
            .end();
        self.find_first(command).await
    }

    async fn find_first(&self, command: DocWriter) -> Result<Option<DocBuf>, Fault> {
        let reply = self.run(command).await?;
        let mut found = Vec::new();
        cursor_batch(reply.as_doc(), &mut found)?;
        Ok(found.pop())
    }
}

fn find_one(collection: &str, filter: Doc<'_>) -> DocWriter {
    DocWriter::new()
        .with("find", collection)
        .with("filter", filter)
        .with("limit", 1)
        .with("singleBatch", true)
}

/// Asks somebody, and takes `ok: 0` and errors of writes for what they are.
pub(crate) async fn call(endpoint: &dyn Endpoint, body: DocBuf) -> Result<DocBuf, Fault> {
    let request = Request::from_parts(body, Vec::new())?;
    let reply = endpoint.call(request).await.map_err(|lost| match lost {
        CallError::NotSent(why) | CallError::NobodyFits(why) => {
            Fault::Unreachable(Error::new(Code::HOST_UNREACHABLE, why))
        }
        CallError::OutcomeUnknown(why) => Fault::Unknown(why),
    })?;
    check(reply.into_document())
}

/// A reply, unless it says that something went wrong.
pub(crate) fn check(reply: DocBuf) -> Result<DocBuf, Fault> {
    let doc = reply.as_doc();
    if !matches!(
        doc.get("ok"),
        Some(ValueRef::Double(1.0) | ValueRef::Int32(1))
    ) {
        return Err(Fault::from_reply(error_of(doc)));
    }
    if let Some(ValueRef::Document(first)) = doc
        .get_array("writeErrors")
        .and_then(|errors| errors.get(0))
    {
        return Err(Fault::from_reply(error_of(first)));
    }
    match doc.get_doc("writeConcernError") {
        Some(error) => Err(Fault::Unknown(
            error.get_str("errmsg").unwrap_or_default().to_owned(),
        )),
        None => Ok(reply),
    }
}

/// The error in a reply, with all that it says.
fn error_of(doc: Doc<'_>) -> Error {
    let code = match doc.get("code") {
        Some(ValueRef::Int32(code)) => Code(code),
        _ => Code::UNKNOWN_ERROR,
    };
    let error = Error::new(code, doc.get_str("errmsg").unwrap_or_default());
    let mut details = DocWriter::new();
    for element in doc.iter() {
        let known = matches!(
            element.key(),
            "ok" | "errmsg" | "code" | "codeName" | "index" | "operationTime" | "$clusterTime"
        );
        if !known {
            details.append_element(&element);
        }
    }
    match details.is_empty() {
        true => error,
        false => error.with_details(details.finish()),
    }
}

/// Takes the documents of a cursor's batch; the id of the cursor.
pub(crate) fn cursor_batch(reply: Doc<'_>, into: &mut Vec<DocBuf>) -> Result<i64, Fault> {
    each_of_batch(reply, &mut |doc| {
        into.push(doc.to_owned());
        Ok(())
    })
}

fn each_of_batch(
    reply: Doc<'_>,
    take: &mut impl FnMut(Doc<'_>) -> Result<(), Fault>,
) -> Result<i64, Fault> {
    let malformed = || Fault::new(Code::INTERNAL_ERROR, "a reply has no cursor");
    let cursor = reply.get_doc("cursor").ok_or_else(malformed)?;
    let batch = cursor
        .get_array("firstBatch")
        .or(cursor.get_array("nextBatch"))
        .ok_or_else(malformed)?;
    for value in batch.iter() {
        if let ValueRef::Document(doc) = value {
            take(doc)?;
        }
    }
    match cursor.get("id") {
        Some(ValueRef::Int64(id)) => Ok(id),
        _ => Err(malformed()),
    }
}
