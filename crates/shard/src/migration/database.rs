//! Moving the primary of a database: the donor's side.
//!
//! ```text
//!   config server ─ _terndbMovePrimary ─► one move for each unsharded collection, its parts (`donor.rs`)
//!     copying      parts come and go as collections are made, changed and dropped
//!     closed       no collection is made, changed or dropped; writes of all parts wait; all are the same
//!     closed, reads  everything that was routed by the database's version waits ─► _configsvrCommitPrimary
//!     decided      the database has its new version here ─► parts hear of it: given away, or kept
//! ```
//!
//! **One decision for all.** Each part is a move of the whole of a collection, with the copy, the log, the
//! comparison and the blocks of any other move. It does not ask the config server what became of it: that
//! is decided for the database, by the id of its move, and every part has that outcome. ⚑ It is asked for
//! only when every part has blocked its reads and its recipient has said that it has all of it. A recipient
//! that hears nothing asks for the same id.
//!
//! **Which collections there are** is decided here, because this shard makes them. ⚑ The entry that closes
//! the database is written under the lock of catalog changes, when there is a part for every collection
//! with the options and indexes that it has now, and no index is being built. From then on changes wait
//! (`sharding/waiting.rs`), and find the database gone, or open again.
//!
//! **A new primary** reads `config.movePrimaryDonors` and what is known of the database: nothing closed, the
//! copy goes on; closed for changes only, nothing was asked for, the move is aborted; closed for reads, the
//! config server is asked again; of the next version, the parts are told. ⚑ The database has its new version
//! here before the first part is given away: who finds a collection gone sees why.
//!
//! ```text
//!   { _id: UUID, db, version: {uuid, timestamp, lastMod}, donorShardId, recipientShardId, otherHost,
//!     phase: "running" | "aborted" }
//! ```
//!
//! Cursors of clients on collections that have gone end with `QueryPlanKilled`.

use super::donor::{DonorHandle, EndedMove};
use super::killing::Wish;
use super::peers::Failure;
use super::plan::{Fields, Plan, uuid_value, wrong};
use super::{put, remove, write_documents};
use crate::Shard;
use crate::catalog::Collection;
use crate::primary_services::Tenure;
use crate::sharding::{KnownDatabase, MovingDatabase, Ownership, StateKey, whole};
use cluster::authority::Outcome;
use model::bson::{Doc, DocBuf, DocWriter, Timestamp, ValueRef};
use model::ids::Uuid;
use model::version::DatabaseVersion;
use model::{Code, Error};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

pub(super) const DATABASES: &str = "movePrimaryDonors";
/// Collections that are copied at once.
const PARTS_MAX: usize = 8;
/// How long a database may be closed before its move is given up.
const CLOSED_LIMIT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(100);
const ANSWER_WAIT: Duration = Duration::from_secs(20);

/// What is moved, by whom.
#[derive(Clone, Debug)]
pub(super) struct DatabasePlan {
    pub(super) id: Uuid,
    pub(super) name: String,
    /// Before it moves.
    pub(super) version: DatabaseVersion,
    pub(super) donor: String,
    pub(super) recipient: String,
    pub(super) other_host: String,
    pub(super) is_aborted: bool,
}

impl DatabasePlan {
    /// As the config server gives it.
    pub(super) fn from_command(doc: Doc<'_>) -> Result<Self, Error> {
        let fields = Fields(doc);
        Ok(Self {
            id: fields.uuid("id")?,
            name: fields.text("db")?.to_owned(),
            version: DatabaseVersion::from_document(fields.doc("version")?)?,
            donor: String::new(),
            recipient: fields.text("to")?.to_owned(),
            other_host: fields.text("toHost")?.to_owned(),
            is_aborted: false,
        })
    }

    pub(super) fn document(&self) -> DocBuf {
        let mut writer = DocWriter::new()
            .with("_id", uuid_value(&self.id))
            .with("db", self.name.as_str());
        writer.begin_document("version");
        self.version.append_to(&mut writer);
        writer.end();
        let phase = match self.is_aborted {
            true => "aborted",
            false => "running",
        };
        writer
            .with("donorShardId", self.donor.as_str())
            .with("recipientShardId", self.recipient.as_str())
            .with("otherHost", self.other_host.as_str())
            .with("phase", phase)
            .finish()
    }

    pub(super) fn from_document(doc: Doc<'_>) -> Result<Self, Error> {
        let fields = Fields(doc);
        Ok(Self {
            id: fields.uuid("_id")?,
            name: fields.text("db")?.to_owned(),
            version: DatabaseVersion::from_document(fields.doc("version")?)?,
            donor: fields.text("donorShardId")?.to_owned(),
            recipient: fields.text("recipientShardId")?.to_owned(),
            other_host: fields.text("otherHost")?.to_owned(),
            is_aborted: match fields.text("phase")? {
                "running" => false,
                "aborted" => true,
                _ => return Err(wrong("phase")),
            },
        })
    }

    /// The move of one of its collections.
    fn part(&self, shard: &Shard, collection: &Collection) -> Result<Plan, Error> {
        let ownership = Ownership::of_unsharded(self.version.as_placement(), true)?;
        let range = whole(&ownership.pattern);
        let bounds = DocWriter::new()
            .with(
                "min",
                &DocWriter::new().with("_id", ValueRef::MinKey).finish(),
            )
            .with(
                "max",
                &DocWriter::new().with("_id", ValueRef::MaxKey).finish(),
            )
            .finish();
        Ok(Plan {
            id: shard.new_uuid(),
            part_of: Some(self.id),
            namespace: collection.namespace.clone(),
            uuid: collection.uuid,
            key: ownership.key,
            pattern: ownership.pattern,
            range,
            bounds,
            donor: self.donor.clone(),
            recipient: self.recipient.clone(),
            other_host: self.other_host.clone(),
            catalog_version: 0,
            known: self.version.as_placement(),
            secondary_throttle: false,
            wait_for_delete: false,
        })
    }
}

/// How far all parts may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Copying,
    BlockWrites,
    BlockReads,
    Decided(Outcome),
}

/// How far one part is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Reached {
    Copying,
    CaughtUp,
    /// The recipient has all of it.
    Ready,
    ReadsBlocked,
}

/// What others hold of a database that moves.
pub(super) struct DatabaseHandle {
    pub(super) plan: DatabasePlan,
    pub(super) stage: watch::Sender<Stage>,
    pub(super) ended: watch::Sender<Option<EndedMove>>,
}

impl DatabaseHandle {
    pub(super) fn new(plan: DatabasePlan) -> Arc<Self> {
        Arc::new(Self {
            plan,
            stage: watch::Sender::new(Stage::Copying),
            ended: watch::Sender::new(None),
        })
    }

    pub(super) fn stage(&self) -> Stage {
        *self.stage.borrow()
    }
}

pub(super) struct Driver {
    pub(super) shard: Arc<Shard>,
    pub(super) tenure: Tenure,
    pub(super) handle: Arc<DatabaseHandle>,
    pub(super) parts: Vec<Arc<DonorHandle>>,
    pub(super) reason: Option<String>,
}

/// The member does not lead any more.
struct Over;

/// Why parts do not get on.
enum Stuck {
    Over,
    GivenUp,
}

impl Driver {
    pub(super) async fn run(mut self) {
        // It ends with the tenure; the next primary goes on.
        let _ = self.drive().await;
    }

    async fn drive(&mut self) -> Result<(), Over> {
        let plan = self.handle.plan.clone();
        let known = self.shard.sharding.database(&plan.name);
        let ours = |moving: &MovingDatabase| moving.operation == plan.id;
        let moving = known.and_then(|known| known.moving).filter(ours);
        let outcome = match (known, moving) {
            (Some(known), _) if known.version == plan.version.moved() => {
                match self.deciding().await? {
                    // It was, and so long ago that nobody else remembers.
                    Outcome::Aborted => Outcome::Committed {
                        version: known.version.as_placement(),
                        since: self.shard.cluster_time(),
                    },
                    committed @ Outcome::Committed { .. } => committed,
                }
            }
            (_, Some(moving)) if moving.reads => self.deciding().await?,
            (_, Some(_)) => self.gives_up("the primary was lost while the database was closed"),
            (_, None) if plan.is_aborted => Outcome::Aborted,
            (_, None) => match self.bring_over().await {
                Ok(()) => self.deciding().await?,
                Err(Stuck::GivenUp) => Outcome::Aborted,
                Err(Stuck::Over) => return Err(Over),
            },
        };
        self.conclude(outcome).await
    }

    fn check(&self) -> Result<(), Over> {
        match self.tenure.is_over() {
            true => Err(Over),
            false => Ok(()),
        }
    }

    async fn pause(&self) {
        tokio::select! {
            () = self.tenure.ended() => {}
            () = tokio::time::sleep(PAUSE) => {}
        }
    }

    fn gives_up(&mut self, why: impl Into<String>) -> Outcome {
        let why = why.into();
        let name = &self.handle.plan.name;
        tracing::warn!("the primary of {name} does not move: {why}");
        self.reason.get_or_insert(why);
        Outcome::Aborted
    }

    fn stuck(&mut self, why: impl Into<String>) -> Stuck {
        self.gives_up(why);
        Stuck::GivenUp
    }

    // Until everything is there and closed.

    async fn bring_over(&mut self) -> Result<(), Stuck> {
        while !self.look().await? {}
        let began = Instant::now();
        self.handle.stage.send_replace(Stage::BlockWrites);
        self.all_reach(Reached::Ready, began).await?;
        self.handle.stage.send_replace(Stage::BlockReads);
        self.all_reach(Reached::ReadsBlocked, began).await?;
        match self.close(true).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.stuck(error.message)),
        }
    }

    /// Sees to it that there is a part for each collection as it is. Closes the database, and returns
    /// true, if all of them have caught up.
    async fn look(&mut self) -> Result<bool, Stuck> {
        self.check().map_err(|Over| Stuck::Over)?;
        let shard = self.shard.clone();
        let mut changed = std::pin::pin!(shard.catalog.changed());
        changed.as_mut().enable();
        let ddl = shard.ddl.lock().await;
        let catalog = shard.catalog.current().clone();
        let wanted: Vec<Arc<Collection>> = catalog
            .database(&self.handle.plan.name)
            .filter(|collection| !collection.is_sharded())
            .cloned()
            .collect();
        let is_as_it_was = |part: &Arc<DonorHandle>| {
            wanted.iter().any(|now| {
                now.uuid == part.plan.uuid
                    && now.namespace == part.plan.namespace
                    && part.described == Some(description(now, &part.plan))
            })
        };
        let (kept, outdated): (Vec<_>, Vec<_>) = std::mem::take(&mut self.parts)
            .into_iter()
            .partition(is_as_it_was);
        self.parts = kept;
        // One whose collection is gone, or another, has ended for that.
        let failed = self
            .parts
            .iter()
            .find_map(|part| part.ended.borrow().clone());
        if let Some(failed) = failed {
            return Err(self.stuck(failed.reason.unwrap_or_else(|| "it was aborted".to_owned())));
        }
        let copies = |part: &&Arc<DonorHandle>| *part.reached.borrow() < Reached::CaughtUp;
        let copying = self.parts.iter().filter(copies).count();
        let is_here = |collection: &&Arc<Collection>| {
            let mut parts = self.parts.iter();
            parts.any(|part| part.plan.uuid == collection.uuid)
        };
        let missing: Vec<Arc<Collection>> = (wanted.iter())
            .filter(|collection| !is_here(collection))
            .cloned()
            .collect();
        let builds =
            |collection: &Arc<Collection>| !collection.indexes.iter().all(|it| it.is_ready());
        let is_complete = outdated.is_empty() && missing.is_empty() && copying == 0;
        if is_complete && !wanted.iter().any(builds) {
            return match self.close_held(false).await {
                Ok(()) => Ok(true),
                Err(error) => Err(self.stuck(error.message)),
            };
        }
        drop(ddl);
        for part in &outdated {
            part.wish(Wish::End("a change of the collection".into()));
        }
        let ends: Vec<_> = outdated.iter().map(|part| part.ended.subscribe()).collect();
        drop(outdated);
        for end in ends {
            self.until_closed(end).await.map_err(|Over| Stuck::Over)?;
        }
        for collection in missing.iter().take(PARTS_MAX.saturating_sub(copying)) {
            self.begin_part(collection).await?;
        }
        tokio::select! {
            () = changed => {}
            () = self.pause() => {}
        }
        Ok(false)
    }

    async fn begin_part(&mut self, collection: &Collection) -> Result<(), Stuck> {
        let plan = self.handle.plan.part(&self.shard, collection);
        let begun = match plan {
            Ok(plan) => self.shard.migrations.begin_donor(plan).await,
            Err(error) => Err(error),
        };
        match begun {
            Ok(part) => self.parts.push(part),
            // Dropped meanwhile, or this member has just begun to lead, or leads no more: the next look tells.
            Err(error)
                if matches!(
                    error.code,
                    Code::NAMESPACE_NOT_FOUND | Code::NOT_WRITABLE_PRIMARY
                ) => {}
            Err(error) => return Err(self.stuck(error.message)),
        }
        Ok(())
    }

    /// Waits until all parts have come so far.
    async fn all_reach(&mut self, wanted: Reached, began: Instant) -> Result<(), Stuck> {
        for part in self.parts.clone() {
            let (mut reached, mut ended) = (part.reached.subscribe(), part.ended.subscribe());
            let why = tokio::select! {
                _ = reached.wait_for(|reached| *reached >= wanted) => continue,
                ended = ended.wait_for(Option::is_some) => {
                    let ended = ended.ok().and_then(|ended| ended.clone());
                    ended.and_then(|ended| ended.reason)
                }
                () = self.tenure.ended() => return Err(Stuck::Over),
                () = tokio::time::sleep_until((began + CLOSED_LIMIT).into()) => None,
            };
            let why = why.unwrap_or_else(|| "the recipient did not get ready in time".to_owned());
            return Err(self.stuck(why));
        }
        Ok(())
    }

    async fn close(&self, reads: bool) -> Result<(), Error> {
        let _ddl = self.shard.ddl.lock().await;
        self.close_held(reads).await
    }

    /// The lock of catalog changes is held.
    async fn close_held(&self, reads: bool) -> Result<(), Error> {
        let plan = &self.handle.plan;
        match self.shard.sharding.database(&plan.name) {
            Some(known) if known.version == plan.version && known.primary => {
                let moving = MovingDatabase {
                    operation: plan.id,
                    reads,
                };
                self.put_database(KnownDatabase {
                    moving: Some(moving),
                    ..known
                })
                .await
            }
            Some(_) | None => Err(Error::new(
                Code::STALE_DB_VERSION,
                format!("{} is not what it was when its move began", plan.name),
            )),
        }
    }

    async fn put_database(&self, database: KnownDatabase) -> Result<(), Error> {
        let key = StateKey::database(&self.handle.plan.name);
        let document = database.to_document();
        let put = self
            .shard
            .propose_catalog(|encoder| encoder.put_meta(&key, document.as_bytes()));
        put.await
    }

    // The decision, and what follows.

    /// Asks the config server until it is known what was decided. ⚑ A lost answer is never taken for an
    /// abort.
    async fn deciding(&mut self) -> Result<Outcome, Over> {
        let mut settles = false;
        loop {
            self.check()?;
            let decided = match settles {
                true => {
                    super::settle_operation(&self.shard, self.handle.plan.id, ANSWER_WAIT).await
                }
                false => self.commit().await,
            };
            match decided {
                Ok(Outcome::Aborted) => return Ok(self.gives_up("it was decided so")),
                Ok(outcome) => return Ok(outcome),
                Err(Failure::Unreachable(why)) => {
                    tracing::warn!("a move of a primary waits for the config server: {why}");
                    self.pause().await;
                }
                Err(Failure::Refused(error)) => {
                    self.reason = Some(error.message);
                    settles = true;
                }
            }
        }
    }

    async fn commit(&self) -> Result<Outcome, Failure> {
        let plan = &self.handle.plan;
        let blocked_at = self.shard.cluster_time();
        let mut question = DocWriter::new()
            .with("_configsvrCommitPrimary", 1)
            .with("id", uuid_value(&plan.id))
            .with("db", plan.name.as_str());
        question.begin_document("version");
        plan.version.append_to(&mut question);
        question.end();
        let question = question
            .with("from", plan.donor.as_str())
            .with("to", plan.recipient.as_str())
            .with(
                "blockedAt",
                ValueRef::Timestamp(Timestamp {
                    seconds: blocked_at.seconds(),
                    increment: blocked_at.increment(),
                }),
            );
        let reply = super::ask_config(&self.shard, question, ANSWER_WAIT).await?;
        Ok(Fields(reply.document()).outcome()?)
    }

    async fn conclude(&mut self, outcome: Outcome) -> Result<(), Over> {
        loop {
            self.check()?;
            match self.take_over(outcome).await {
                Ok(()) => break,
                Err(error) => {
                    tracing::warn!("what became of a database is not written: {error}");
                    self.pause().await;
                }
            }
        }
        self.handle.stage.send_replace(Stage::Decided(outcome));
        let mut ends: Vec<_> = (self.parts.iter())
            .map(|part| part.ended.subscribe())
            .collect();
        self.parts.clear();
        if outcome == Outcome::Aborted {
            for end in &mut ends {
                tokio::select! {
                    _ = end.wait_for(Option::is_some) => {}
                    () = self.tenure.ended() => return Err(Over),
                }
            }
            self.ended(outcome);
        }
        for end in ends {
            self.until_closed(end).await?;
        }
        loop {
            self.check()?;
            let forget = vec![remove(super::namespace(DATABASES), &self.handle.plan.id)];
            match write_documents(&self.shard, self.tenure.term(), forget).await {
                Ok(()) => break,
                Err(_) => self.pause().await,
            }
        }
        self.ended(outcome);
        Ok(())
    }

    /// Makes the outcome known here.
    async fn take_over(&self, outcome: Outcome) -> Result<(), Error> {
        let plan = &self.handle.plan;
        if outcome == Outcome::Aborted {
            let mut aborted = plan.clone();
            aborted.is_aborted = true;
            let noted = vec![put(super::namespace(DATABASES), aborted.document())];
            write_documents(&self.shard, self.tenure.term(), noted).await?;
            let _ddl = self.shard.ddl.lock().await;
            return match self.shard.sharding.database(&plan.name) {
                Some(known) if known.moving.is_some_and(|it| it.operation == plan.id) => {
                    self.put_database(KnownDatabase {
                        moving: None,
                        ..known
                    })
                    .await
                }
                Some(_) | None => Ok(()),
            };
        }
        let gone = KnownDatabase {
            version: plan.version.moved(),
            primary: false,
            moving: None,
        };
        self.shard.set_database(&plan.name, gone).await
    }

    /// Waits until nobody drives a part any more.
    async fn until_closed(&self, mut end: watch::Receiver<Option<EndedMove>>) -> Result<(), Over> {
        let closed = async { while end.changed().await.is_ok() {} };
        tokio::select! {
            () = closed => self.check(),
            () = self.tenure.ended() => Err(Over),
        }
    }

    fn ended(&self, outcome: Outcome) {
        if self.handle.ended.borrow().is_some() {
            return;
        }
        let ended = EndedMove {
            outcome,
            reason: match outcome {
                Outcome::Committed { .. } => None,
                Outcome::Aborted => self.reason.clone(),
            },
            is_killed: false,
            stats: DocBuf::new(),
        };
        let migrations = &self.shard.migrations;
        migrations.remember(self.handle.plan.id, ended.clone());
        self.handle.ended.send_replace(Some(ended));
    }
}

/// What a recipient needs to make the same collection.
pub(super) fn description(collection: &Collection, plan: &Plan) -> DocBuf {
    let mut writer = DocWriter::new();
    super::donor::describe(collection, plan, &mut writer);
    writer.finish()
}
