//! The config server as the router asks it: routing, databases, and its collections.

use crate::failure::is_ok;
use crate::find::whole;
use crate::registry::batch_of;
use cluster::cache::{Fetch, Fetched};
use cluster::routing::{Chunk, ChunkWithEnd, MergedPart, PastOwner, RoutingTable, ShardId};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::error::{Code, Error};
use model::ids::Uuid;
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::{ChunkVersion, DatabaseVersion, PlacementVersion};
use parking_lot::Mutex;
use std::sync::Arc;
use wire::{Endpoint, Reply, Request};

/// How often it is asked where a database is, if the primary is lost meanwhile.
const DATABASE_ATTEMPTS: usize = 3;

/// Whether an error says that who was asked is the primary no more. ⚑ What it has begun may be done.
pub(crate) fn is_lost(code: Code) -> bool {
    matches!(
        code,
        Code::NOT_WRITABLE_PRIMARY
            | Code::PRIMARY_STEPPED_DOWN
            | Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE
            | Code::NOT_PRIMARY_NO_SECONDARY_OK
            | Code::NOT_PRIMARY_OR_SECONDARY
            | Code::SHUTDOWN_IN_PROGRESS
            | Code::INTERRUPTED_AT_SHUTDOWN
    )
}

/// The primary shard of a database.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Database {
    pub(crate) primary: ShardId,
    pub(crate) version: DatabaseVersion,
}

pub(crate) struct ConfigServer {
    pub(crate) endpoint: Arc<dyn Endpoint>,
    /// How far the config server's log had come when it was heard last. ⚑ A member that has not
    /// come as far was deposed, and is not believed.
    seen: Mutex<ClusterTime>,
}

impl ConfigServer {
    pub(crate) fn new(endpoint: Arc<dyn Endpoint>) -> Self {
        Self {
            endpoint,
            seen: Mutex::default(),
        }
    }

    /// Sends a command and passes its error on.
    pub(crate) async fn run(&self, command: DocWriter) -> Result<DocBuf, Error> {
        let request = Request::from_parts(command.finish(), Vec::new())?;
        let reply = self.call(request).await?;
        if is_ok(reply.document()) {
            return Ok(reply.into_document());
        }
        Err(error_of(reply.document()))
    }

    pub(crate) async fn call(&self, request: Request) -> Result<Reply, Error> {
        let reply = self.endpoint.call(request).await.map_err(|error| {
            let message = format!("the config server: {error}");
            Error::new(Code::HOST_UNREACHABLE, message)
        })?;
        self.heard(reply.document());
        Ok(reply)
    }

    /// Takes note of how far its log has come.
    pub(crate) fn heard(&self, reply: Doc<'_>) {
        if let Some(time) = time_of(reply.get("$configTime")) {
            let mut seen = self.seen.lock();
            *seen = (*seen).max(time);
        }
    }

    /// Asks the config server itself, rather than its documents.
    async fn ask(&self, mut command: DocWriter) -> Result<DocBuf, Error> {
        self.append_time(&mut command);
        self.run(command.with("$db", "admin")).await
    }

    /// Whoever answers must have seen what this router has.
    pub(crate) fn append_time(&self, command: &mut DocWriter) {
        let seen = *self.seen.lock();
        if seen > ClusterTime::ZERO {
            command.append("$configTime", seen);
        }
    }

    /// All documents of a `find`.
    pub(crate) async fn find_all(&self, command: DocWriter) -> Result<Vec<DocBuf>, Error> {
        let mut documents = Vec::new();
        let mut reply = self.run(command).await?;
        loop {
            let cursor = reply
                .as_doc()
                .get_doc("cursor")
                .ok_or_else(|| malformed("a find"))?;
            documents.extend(batch_of(cursor).map(Doc::to_owned));
            let id = match cursor.get("id") {
                Some(ValueRef::Int64(id)) if id != 0 => id,
                _ => return Ok(documents),
            };
            let namespace = cursor.get_str("ns").unwrap_or_default();
            let (database, collection) = namespace
                .split_once('.')
                .ok_or_else(|| malformed("a find"))?;
            let more = DocWriter::new()
                .with("getMore", id)
                .with("collection", collection)
                .with("$db", database);
            reply = self.run(more).await?;
        }
    }

    /// Where a database is. Making it may be asked for again: it is made once.
    pub(crate) async fn database(&self, name: &str, create: bool) -> Result<Database, Error> {
        for _ in 1..DATABASE_ATTEMPTS {
            match self.ask_database(name, create).await {
                Err(error) if error.code == Code::HOST_UNREACHABLE || is_lost(error.code) => {
                    tracing::debug!("the config server is asked again for {name}: {error}");
                }
                answered => return answered,
            }
        }
        self.ask_database(name, create).await
    }

    async fn ask_database(&self, name: &str, create: bool) -> Result<Database, Error> {
        let command = match create {
            true => "_configsvrCreateDatabase",
            false => "_configsvrGetDatabase",
        };
        let command = DocWriter::new().with(command, 1).with("db", name);
        let command = match create {
            true => {
                let majority = DocWriter::new().with("w", "majority").finish();
                command.with("writeConcern", &majority)
            }
            false => command,
        };
        let reply = self.ask(command).await?;
        let reply = reply.as_doc();
        let primary = reply
            .get_str("primary")
            .ok_or_else(|| malformed("a database"))?;
        let version = reply.get_doc("version");
        let version = version.ok_or_else(|| malformed("a database"))?;
        let version = DatabaseVersion::from_document(version)?;
        Ok(Database {
            primary: ShardId::new(primary),
            version,
        })
    }

    /// Answers a question of the routing cache, page by page. All pages are of one version: if the
    /// collection changes between two, the config server begins anew and says so.
    ///
    /// Also tells the latest time at which one of these ranges came to its owner.
    pub(crate) async fn routing(
        &self,
        namespace: &str,
        fetch: Fetch,
    ) -> Result<(Fetched, ClusterTime), Error> {
        let mut found: Option<Found> = None;
        loop {
            let mut command = DocWriter::new()
                .with("_configsvrGetRouting", namespace)
                .with("ns", namespace);
            if let Fetch::Since(version) = fetch {
                append_version(&mut command, "since", version);
            }
            if let Some(found) = &found {
                append_version(&mut command, "at", found.version);
                command.append("from", found.chunks.len() as i64);
            }
            let reply = self.ask(command).await?;
            let (sharded, more) = (is_true(&reply, "sharded"), is_true(&reply, "more"));
            if !sharded {
                return Ok((Fetched::Unsharded, ClusterTime::ZERO));
            }
            let continues = whole(reply.get("from")).is_some_and(|from| from > 0);
            let size = reply.as_doc().len();
            let page = aside(size, move || Found::parse(reply.as_doc())).await?;
            match &mut found {
                Some(found) if continues => found.chunks.extend(page.chunks),
                Some(_) | None => found = Some(page),
            }
            if !more {
                break;
            }
        }
        let found = found.ok_or_else(|| malformed("routing"))?;
        let size = found.chunks.len() * size_of::<ChunkWithEnd>();
        aside(size, move || found.fetched()).await
    }
}

/// Works through so many bytes; many of them beside the threads that answer requests, which would wait.
async fn aside<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    const AT_ONCE: usize = 128 * 1024;
    if bytes <= AT_ONCE {
        return work();
    }
    let stopped = |_| Error::new(Code::INTERRUPTED_AT_SHUTDOWN, "stopping");
    tokio::task::spawn_blocking(work).await.map_err(stopped)?
}

fn is_true(reply: &DocBuf, name: &str) -> bool {
    reply.get(name) == Some(ValueRef::Boolean(true))
}

fn append_version(writer: &mut DocWriter, name: &str, version: PlacementVersion) {
    writer.begin_document(name);
    version.append_to(writer);
    writer.end();
}

/// What the config server tells of a sharded collection.
struct Found {
    uuid: Uuid,
    version: PlacementVersion,
    pattern: ShardKeyPattern,
    chunks: Vec<ChunkWithEnd>,
    /// Whether these are only the chunks that changed.
    is_incremental: bool,
}

impl Found {
    fn parse(reply: Doc<'_>) -> Result<Found, Error> {
        let missing = || malformed("routing");
        let pattern = ShardKeyPattern::parse(reply.get_doc("key").ok_or_else(missing)?)?;
        let version = reply.get_doc("version").ok_or_else(missing)?;
        let version = PlacementVersion::from_document(version)?;
        let uuid = reply.get("uuid").and_then(uuid_of).ok_or_else(missing)?;
        let mut chunks = Vec::new();
        for chunk in reply.get_array("chunks").ok_or_else(missing)?.iter() {
            let ValueRef::Document(chunk) = chunk else {
                return Err(missing());
            };
            chunks.push(chunk_of(chunk, &pattern)?);
        }
        Ok(Found {
            uuid,
            version,
            pattern,
            chunks,
            is_incremental: reply.get("incremental") == Some(ValueRef::Boolean(true)),
        })
    }

    fn fetched(self) -> Result<(Fetched, ClusterTime), Error> {
        let latest = self.chunks.iter().map(|(chunk, _)| chunk.since).max();
        let fetched = match self.is_incremental {
            true => Fetched::Changes(self.chunks),
            false => {
                let pattern = Arc::new(self.pattern);
                let incarnation = self.version.incarnation;
                let table = RoutingTable::full(self.uuid, incarnation, pattern, self.chunks);
                let unusable = |error| Error::new(Code::INTERNAL_ERROR, format!("{error}"));
                Fetched::Everything(table.map_err(unusable)?)
            }
        };
        Ok((fetched, latest.unwrap_or_default()))
    }
}

fn chunk_of(doc: Doc<'_>, pattern: &ShardKeyPattern) -> Result<ChunkWithEnd, Error> {
    let missing = || malformed("a chunk");
    let bound = |name: &str| doc.get_doc(name).ok_or_else(missing);
    let range = pattern.range_of(bound("min")?, bound("max")?)?;
    let shard = ShardId::new(doc.get_str("shard").ok_or_else(missing)?);
    let lastmod = time_of(doc.get("lastmod")).ok_or_else(missing)?;
    let version = ChunkVersion::new(lastmod.seconds(), lastmod.increment());
    let (since, past) = history_of(doc)?;
    let chunk = Chunk::new(range.min, shard, version, since);
    let mut parts = Vec::new();
    for part in doc.get_array("parts").iter().flat_map(|parts| parts.iter()) {
        let ValueRef::Document(part) = part else {
            return Err(missing());
        };
        let (since, past) = history_of(part)?;
        parts.push(MergedPart {
            min: pattern.bound(part.get_doc("min").ok_or_else(missing)?)?,
            since,
            past,
        });
    }
    match parts.is_empty() {
        true => Ok((chunk.with_past(past), range.max)),
        false => Ok((chunk.with_parts(parts), range.max)),
    }
}

/// Since when something is with its owner, and who owned it before.
fn history_of(doc: Doc<'_>) -> Result<(ClusterTime, Vec<PastOwner>), Error> {
    let missing = || malformed("a chunk");
    let mut owners = Vec::new();
    let listed = doc.get_array("history").into_iter();
    for owner in listed.flat_map(|owners| owners.iter()) {
        let ValueRef::Document(owner) = owner else {
            return Err(missing());
        };
        owners.push(PastOwner {
            since: time_of(owner.get("validAfter")).ok_or_else(missing)?,
            shard: ShardId::new(owner.get_str("shard").ok_or_else(missing)?),
        });
    }
    // The first is the owner of now.
    let since = match owners.is_empty() {
        true => time_of(doc.get("onCurrentShardSince")).unwrap_or(ClusterTime::ZERO),
        false => owners.remove(0).since,
    };
    Ok((since, owners))
}

pub(crate) fn time_of(value: Option<ValueRef<'_>>) -> Option<ClusterTime> {
    match value {
        Some(ValueRef::Timestamp(time)) => Some(ClusterTime::new(time.seconds, time.increment)),
        _ => None,
    }
}

fn uuid_of(value: ValueRef<'_>) -> Option<Uuid> {
    match value {
        ValueRef::Binary { bytes, .. } => Some(Uuid(bytes.try_into().ok()?)),
        _ => None,
    }
}

/// The error in a reply, with all its fields.
pub(crate) fn error_of(reply: Doc<'_>) -> Error {
    let code = match reply.get("code") {
        Some(ValueRef::Int32(code)) => Code(code),
        _ => Code::UNKNOWN_ERROR,
    };
    let message = reply.get_str("errmsg").unwrap_or("the command failed");
    let mut details = DocWriter::new();
    for element in reply.iter() {
        let told = matches!(
            element.key(),
            "ok" | "code"
                | "codeName"
                | "errmsg"
                | "$clusterTime"
                | "$configTime"
                | "operationTime"
        );
        if !told {
            details.append_element(&element);
        }
    }
    let error = Error::new(code, message);
    match details.is_empty() {
        true => error,
        false => error.with_details(details.finish()),
    }
}

fn malformed(what: &str) -> Error {
    Error::new(
        Code::INTERNAL_ERROR,
        format!("the config server's answer about {what} is malformed"),
    )
}
