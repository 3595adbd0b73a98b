//! `movePrimary`: the unsharded collections of a database go to another shard, which is its primary then.
//!
//! ```text
//!   {movePrimary: database, to: shard}
//!   known     the new primary learns of the database's sharded collections
//!   moved     _terndbMovePrimary to the old primary, again and again until it answers
//!                └─ donor ── _configsvrCommitPrimary ─► config.databases and the outcome, one entry ⚑
//!             ─► settled
//!   told      old and new primary have the new version
//! ```
//!
//! What is moved, and how, is the donor's (`migration/database.rs` of the shard); here it is decided. The
//! operation has its database for itself: nothing in it is sharded, dropped, renamed or moved by the config
//! server meanwhile. Its id is that of the decision: whoever lost an answer asks with it, and is told what
//! was decided, or that it is aborted by that. ⚑ So the outcome stays when the operation has ended, like that
//! of a move of a range.
//!
//! Left out: ranges of the database's sharded collections do not move meanwhile.

use super::{Context, Operation, Step};
use crate::collection::Facts;
use crate::commit::{Commit, by};
use crate::database::set_database;
use crate::documents::{self, DATABASES, Fields, OPERATIONS, uuid_value};
use crate::error::Fault;
use crate::placement;
use crate::queue::Claim;
use crate::server::{missing, ok, text};
use crate::settle;
use crate::state::{Effect, State};
use crate::tenure::{Plan, Tenure, log_change, no_primary};
use cluster::authority::{Answer, DatabasePlacement, OperationId, Outcome};
use cluster::routing::ShardId;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::time::ClusterTime;
use model::version::{DatabaseVersion, PlacementVersion};
use model::{Code, Error, Namespace};
use std::sync::Arc;
use wire::BoxFuture;

pub(crate) const KIND: &str = "movePrimary";

pub(crate) struct MovePrimary {
    name: String,
    /// As it was asked for: a name, or a connection string.
    wanted: String,
    version: DatabaseVersion,
    from: ShardId,
    to: ShardId,
    /// Whether the new primary knows the sharded collections.
    known: bool,
    outcome: Option<Outcome>,
    /// Why it was aborted, if the donor said so.
    reason: Option<String>,
}

impl MovePrimary {
    pub(crate) fn parse(command: Doc<'_>) -> Result<Self, Fault> {
        let name = text(command, KIND)?;
        let mut wanted = None;
        for element in command.iter().skip(1) {
            match (element.key(), element.value()) {
                ("to", ValueRef::String(to)) => wanted = Some(to.to_owned()),
                ("to", other) => {
                    return Err(Fault::new(
                        Code::TYPE_MISMATCH,
                        format!(
                            "BSON field 'movePrimary.to' is the wrong type '{}', expected type 'string'",
                            other.kind().name()
                        ),
                    ));
                }
                (
                    "maxTimeMS"
                    | "writeConcern"
                    | "readConcern"
                    | "comment"
                    | "lsid"
                    | "apiVersion"
                    | "apiStrict"
                    | "apiDeprecationErrors",
                    _,
                ) => {}
                (name, _) if name.starts_with('$') => {}
                (name, _) => {
                    return Err(Fault::Refused(Error::location(
                        40415,
                        format!("BSON field 'movePrimary.{name}' is an unknown field."),
                    )));
                }
            }
        }
        model::namespace::check_database(name)?;
        if matches!(name, "admin" | "config" | "local") {
            return Err(Fault::new(
                Code::INVALID_OPTIONS,
                format!("Can't move primary for {name} database"),
            ));
        }
        let wanted = wanted.ok_or_else(|| missing("movePrimary.to"))?;
        if wanted.is_empty() {
            return Err(Fault::new(
                Code::INVALID_OPTIONS,
                "you have to specify where you want to move it",
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            wanted,
            version: DatabaseVersion::fixed(),
            from: ShardId::new(""),
            to: ShardId::new(""),
            known: false,
            outcome: None,
            reason: None,
        })
    }

    pub(crate) fn restore(fields: &Fields<'_>) -> Result<Self, Fault> {
        let outcome = match (fields.doc.get_doc("committed"), fields.flag("aborted")) {
            (Some(version), _) => Some(Outcome::Committed {
                version: PlacementVersion::from_document(version)?,
                since: fields.time("validAfter")?,
            }),
            (None, true) => Some(Outcome::Aborted),
            (None, false) => None,
        };
        Ok(Self {
            name: fields.text("db")?.to_owned(),
            wanted: fields.text("to")?.to_owned(),
            version: DatabaseVersion::from_document(fields.doc("version")?)?,
            from: ShardId::new(fields.text("from")?),
            to: ShardId::new(fields.text("to")?),
            known: fields.flag("known"),
            outcome,
            reason: fields.doc.get_str("reason").map(str::to_owned),
        })
    }

    async fn check(&mut self, tenure: &Tenure) -> Result<Option<DocBuf>, Fault> {
        let state = tenure.state().await?;
        let placement = state.database(&self.name)?;
        let placement = placement.ok_or_else(|| crate::database::not_found(&self.name))?;
        state.check_within(&self.name)?;
        let to = &state.shard_called(&self.wanted)?;
        if placement.primary == *to {
            return Ok(Some(ok()));
        }
        let mut shards = state.authority.shards();
        if shards.any(|(shard, usable)| shard == to && !usable) {
            return Err(Fault::new(
                Code::SHARD_NOT_FOUND,
                format!("{to} is being removed and takes no more data"),
            ));
        }
        self.version = placement.version;
        self.from = placement.primary.clone();
        self.to = to.clone();
        Ok(None)
    }

    /// A database's primary knows all of its sharded collections, whether it owns something of them or not.
    async fn make_known(&mut self, tenure: &Tenure) -> Result<Step, Fault> {
        let names: Vec<Namespace> = tenure.with_state(|state| {
            state.check_within(&self.name)?;
            let all = state.collections.keys();
            let within = all.filter(|name| name.database() == self.name);
            Ok::<_, Fault>(within.cloned().collect())
        })?;
        for name in names {
            let sharded = {
                let state = tenure.state().await?;
                let sharded = state.lookup(&name)?;
                sharded.map(|(entry, table)| (entry.clone(), table.clone()))
            };
            let Some((entry, table)) = sharded else {
                continue;
            };
            if table.shards().iter().any(|owner| owner.shard == self.to) {
                continue;
            }
            let facts = Facts::ask(tenure, &self.from, &name).await?;
            let Some(facts) = facts else { continue };
            let mut command = DocWriter::new()
                .with("_terndbCreateSharded", 1)
                .with("options", &facts.options);
            command.begin_array("indexes");
            for index in &facts.indexes {
                command.push(index);
            }
            command.end();
            let command = placement::tell(command, &entry, &table, &self.to)?;
            match tenure.insist(&self.to, "admin", command.as_doc()).await {
                Ok(_) => {}
                Err(fault @ Fault::Refused(_)) => return Ok(Step::Failed(fault)),
                Err(fault) => return Err(fault),
            }
        }
        self.known = true;
        Ok(Step::Next)
    }

    async fn bring_over(&mut self, context: Context<'_>) -> Result<Step, Fault> {
        let tenure = context.tenure;
        let host = tenure.with_state(|state| state.hosts.get(&self.to).cloned());
        let mut command = DocWriter::new()
            .with("_terndbMovePrimary", 1)
            .with("id", uuid_value(&context.id))
            .with("db", self.name.as_str());
        documents::database_version(&mut command, "version", self.version);
        let command = command
            .with("to", self.to.as_str())
            .with("toHost", host.unwrap_or_default().as_str())
            .finish();
        let answered = tenure.insist(&self.from, "admin", command.as_doc()).await;
        if tenure.is_over() {
            return Err(no_primary());
        }
        self.reason = match answered {
            Ok(reply) => reply.as_doc().get_str("reason").map(str::to_owned),
            Err(fault) => Some(fault.to_string()),
        };
        // Whatever the donor says: what counts is what was decided here, and if nothing was, now it is.
        let outcome = tenure
            .decide(|state| settle::plan(state, context.id))
            .await?;
        self.outcome = Some(outcome);
        Ok(Step::Next)
    }

    async fn tell(&self, tenure: &Tenure, outcome: Outcome) -> Result<Step, Fault> {
        if outcome == Outcome::Aborted {
            let why = self.reason.as_deref().unwrap_or("the move was aborted");
            return Ok(Step::Failed(Fault::new(Code::OPERATION_FAILED, why)));
        }
        let version = self.version.moved();
        for (shard, is_primary) in [(&self.from, false), (&self.to, true)] {
            let command = set_database(&self.name, version, is_primary);
            match tenure.insist(shard, "admin", command.as_doc()).await {
                Ok(_) => {}
                // It has left the cluster, and took nothing with it.
                Err(fault) if fault.code() == Some(Code::SHARD_NOT_FOUND) && !is_primary => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(Step::Done(ok()))
    }
}

impl Operation for MovePrimary {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn claim(&self) -> Claim {
        Claim::Database(self.name.clone())
    }

    fn changes(&self) -> Vec<String> {
        // It may take hours, and routing stays what it is until it is decided.
        Vec::new()
    }

    fn halts_moves(&self) -> bool {
        true
    }

    fn append_state(&self, writer: &mut DocWriter) {
        writer.append("db", self.name.as_str());
        documents::database_version(writer, "version", self.version);
        writer
            .append("from", self.from.as_str())
            .append("to", self.to.as_str())
            .append("known", self.known);
        match self.outcome {
            Some(Outcome::Committed { version, since }) => {
                writer.begin_document("committed");
                version.append_to(writer);
                writer.end().append("validAfter", since);
            }
            Some(Outcome::Aborted) => {
                writer.append("aborted", true);
            }
            None => {}
        }
        if let Some(reason) = &self.reason {
            writer.append("reason", reason);
        }
    }

    fn prepare<'a>(
        &'a mut self,
        tenure: &'a Tenure,
    ) -> BoxFuture<'a, Result<Option<DocBuf>, Fault>> {
        Box::pin(self.check(tenure))
    }

    fn step<'a>(&'a mut self, context: Context<'a>) -> BoxFuture<'a, Result<Step, Fault>> {
        match (self.known, self.outcome) {
            (_, Some(outcome)) => Box::pin(self.tell(context.tenure, outcome)),
            (false, None) => Box::pin(self.make_known(context.tenure)),
            (true, None) => Box::pin(self.bring_over(context)),
        }
    }

    fn remains(&self, id: OperationId) -> Option<DocBuf> {
        let outcome = self.outcome.unwrap_or(Outcome::Aborted);
        Some(settle::outcome_document(id, outcome))
    }
}

/// `_configsvrCommitPrimary {id, db, version, from, to, blockedAt}`: everything is on the recipient, and
/// blocked on the donor. Answers as `_configsvrSettle` does; asked again, the same.
pub(crate) async fn commit(tenure: &Arc<Tenure>, body: Doc<'_>) -> Result<DocBuf, Fault> {
    let fields = Fields::of(OPERATIONS, body);
    let id = fields.uuid("id")?;
    let name = fields.text("db")?.to_owned();
    let before = DatabasePlacement {
        primary: ShardId::new(fields.text("from")?),
        version: DatabaseVersion::from_document(fields.doc("version")?)?,
    };
    let to = ShardId::new(fields.text("to")?);
    let now = tenure.store.time_after(fields.time("blockedAt")?);
    let here = tenure.clone();
    let outcome = tenure
        .complete(async move {
            here.decide(|state| plan(state, id, &name, &before, &to, now))
                .await
        })
        .await?;
    Ok(settle::reply(outcome))
}

/// ⚑ One entry, by operation id: the database and the outcome are written together, if nothing was decided
/// before and the database is where it was.
fn plan(
    state: &State,
    id: OperationId,
    name: &str,
    before: &DatabasePlacement,
    to: &ShardId,
    now: ClusterTime,
) -> Result<Plan<Outcome>, Fault> {
    let decided = |outcome: Outcome| Plan {
        commit: Commit::default(),
        effects: Vec::new(),
        answer: outcome,
    };
    if let Some(outcome) = state.authority.outcome(id) {
        return Ok(decided(outcome));
    }
    let (answer, after) = state.authority.decide_primary(id, name, before, to, now)?;
    let decision = match answer {
        Answer::Write(decision) => decision,
        Answer::Decided(outcome) => return Ok(decided(outcome)),
    };
    let outcome = decision.outcome;
    let mut commit = Commit::default();
    let key = by("_id", uuid_value(&id));
    let mut undecided = DocWriter::new()
        .with("kind", KIND)
        .with("db", name)
        .with("from", before.primary.as_str())
        .with("to", to.as_str());
    for field in ["committed", "aborted"] {
        undecided
            .begin_document(field)
            .append("$exists", false)
            .end();
    }
    commit.expect(OPERATIONS, key.as_doc(), undecided.finish().as_doc());
    let database = by("_id", name);
    let stored = documents::database(name, before);
    commit.expect(DATABASES, database.as_doc(), stored.as_doc());
    let stored = documents::database(name, &after);
    commit.put(DATABASES, database.as_doc(), stored.as_doc());
    if let Outcome::Committed { version, since } = outcome {
        let mut change = DocWriter::new();
        change.begin_document("$set").begin_document("committed");
        version.append_to(&mut change);
        change.end().append("validAfter", since).end();
        commit.change(OPERATIONS, key.as_doc(), change.finish().as_doc());
    }
    let details = DocWriter::new()
        .with("from", before.primary.as_str())
        .with("to", to.as_str())
        .finish();
    log_change(&mut commit, "movePrimary.commit", name, details.as_doc());
    Ok(Plan {
        commit,
        effects: vec![
            Effect::Outcome(Box::new(decision), documents::now_ms()),
            Effect::Database(name.to_owned(), Some(after)),
        ],
        answer: outcome,
    })
}
