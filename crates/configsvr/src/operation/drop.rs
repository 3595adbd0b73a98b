//! `drop` of a sharded collection; of another one the database's primary shard does it alone (`alone.rs`).
//!
//! ```text
//!   decide   the collection leaves the config server, one entry
//!   shards   every shard forgets it, with its data; the primary last, which tells change streams
//!   chunks   their documents, which mean nothing any more, are removed
//! ```
//!
//! ⚑ The answer comes when all shards have forgotten: a write that a shard acknowledged because it did not
//! know yet happened before the drop, and none is accepted into what is gone after it was answered. All
//! shards are told, not only owners: one that gave its last chunk away may still hold the collection.

use super::alone::{self, Said, may_mean, only_for, without_message};
use super::{Context, Operation, Step};
use crate::collection;
use crate::commit::{Commit, by};
use crate::documents::{CHUNKS, Fields, TAGS, new_uuid, uuid_value};
use crate::error::Fault;
use crate::placement;
use crate::queue::Claim;
use crate::state::{Effect, State};
use crate::tenure::{Plan, Tenure};
use cluster::authority::{Expected, Request};
use cluster::routing::ShardId;
use model::bson::{Doc, DocBuf, DocWriter};
use model::ids::Uuid;
use model::time::ClusterTime;
use model::{Code, Namespace};
use wire::BoxFuture;

pub(crate) const KIND: &str = "drop";

pub(crate) struct Drop {
    namespace: Namespace,
    /// As the client gave it.
    command: DocBuf,
    uuid: Uuid,
    indexes: i32,
    primary: ShardId,
    decided: bool,
    /// Not sharded.
    alone: bool,
    /// The primary shard may have been asked to drop it alone.
    asked: bool,
}

impl Drop {
    pub(crate) fn parse(database: &str, command: Doc<'_>) -> Result<Self, Fault> {
        let name = crate::server::text(command, "drop")?;
        Ok(Self {
            namespace: Namespace::new(database, name)?,
            command: without_message(command),
            uuid: Uuid([0; 16]),
            indexes: 0,
            primary: ShardId::new(""),
            decided: false,
            alone: false,
            asked: false,
        })
    }

    pub(crate) fn restore(fields: &Fields<'_>) -> Result<Self, Fault> {
        Ok(Self {
            namespace: Namespace::parse(fields.text("ns")?)?,
            command: fields
                .doc
                .get_doc("command")
                .map_or_else(DocBuf::new, Doc::to_owned),
            uuid: fields.uuid("uuid")?,
            indexes: fields.number("indexes")? as i32,
            primary: ShardId::new(fields.text("primary").unwrap_or_default()),
            decided: fields.flag("decided"),
            alone: fields.flag("alone"),
            asked: true,
        })
    }

    async fn check(&mut self, tenure: &Tenure) -> Result<Option<DocBuf>, Fault> {
        let (uuid, primary) = {
            let state = tenure.state().await?;
            let entry = state.to_be_dropped(&self.namespace)?;
            let uuid = entry.map(|entry| entry.uuid);
            if uuid.is_some() {
                state.check_all_shards()?;
            }
            let database = state.database(self.namespace.database())?;
            (uuid, database.map(|placement| placement.primary.clone()))
        };
        let Some(primary) = primary else {
            return Err(not_found());
        };
        self.uuid = match uuid {
            Some(uuid) if may_mean(self.command.as_doc(), uuid) => uuid,
            Some(_) => return Err(alone::another_uuid(self.command.as_doc())),
            None => match collection::uuid(tenure, &primary, &self.namespace).await? {
                Some(uuid) if may_mean(self.command.as_doc(), uuid) => {
                    self.alone = true;
                    uuid
                }
                found => return self.refused(tenure, &primary, found).await.map(Some),
            },
        };
        let indexes = collection::indexes(tenure, &primary, &self.namespace).await;
        self.indexes = indexes.map_or(1, |indexes| indexes.len() as i32 + 1);
        self.primary = primary;
        Ok(None)
    }

    /// Lets the shard say what is wrong. ⚑ With a UUID that no collection has: one that is made right now stays.
    async fn refused(
        &self,
        tenure: &Tenure,
        primary: &ShardId,
        found: Option<Uuid>,
    ) -> Result<DocBuf, Fault> {
        // Who names one is told about that one.
        let is_ours = found.is_none() && self.command.get("collectionUUID").is_none();
        let command = match is_ours {
            false => self.command.clone(),
            true => only_for(self.command.as_doc(), &new_uuid()),
        };
        let database = self.namespace.database();
        let answer = tenure.ask(primary, database, command.as_doc()).await;
        match answer {
            Err(Fault::Refused(error))
                if is_ours && error.code == Code::COLLECTION_UUID_MISMATCH =>
            {
                Err(not_found())
            }
            answer => answer,
        }
    }

    async fn drop_alone(&mut self, tenure: &Tenure) -> Result<Step, Fault> {
        const GONE: [Code; 2] = [Code::NAMESPACE_NOT_FOUND, Code::COLLECTION_UUID_MISMATCH];
        let again = std::mem::replace(&mut self.asked, true);
        let command = only_for(self.command.as_doc(), &self.uuid);
        let place = (&self.primary, self.namespace.database());
        Ok(
            match alone::ask(tenure, place, command.as_doc(), (again, &GONE)).await? {
                Said::Done(reply) => Step::Done(reply),
                Said::DoneBefore => Step::Done(self.reply()),
                // Another client was faster.
                Said::Refused(Fault::Refused(error)) if GONE.contains(&error.code) => {
                    Step::Failed(not_found())
                }
                Said::Refused(fault) => Step::Failed(fault),
            },
        )
    }

    fn reply(&self) -> DocBuf {
        DocWriter::new()
            .with("nIndexesWas", self.indexes)
            .with("ns", self.namespace.as_str())
            .with("ok", 1.0)
            .finish()
    }

    async fn decide(&mut self, context: Context<'_>) -> Result<Step, Fault> {
        self.decided = true;
        let here = &*self;
        context
            .tenure
            .decide(|state| {
                let (mut commit, mut effects) = (Commit::default(), Vec::new());
                // Gone already if the answer to this very commit was lost.
                if state.to_be_dropped(&here.namespace)?.is_some() {
                    effects.push(gone(state, context, &here.namespace, &mut commit)?);
                    forget_zones(&mut commit, &here.namespace);
                }
                context.write_state(here, &mut commit);
                Ok(Plan {
                    commit,
                    effects,
                    answer: (),
                })
            })
            .await?;
        Ok(Step::Written)
    }

    async fn tell(&self, tenure: &Tenure) -> Result<Step, Fault> {
        let mut shards = tenure.with_state(State::shard_names);
        shards.sort_by_key(|shard| *shard == self.primary);
        for shard in shards {
            let quietly = shard != self.primary;
            let command = placement::forget(self.namespace.as_str(), &self.uuid, quietly);
            tenure.insist(&shard, "admin", command.as_doc()).await?;
        }
        remove_chunks(tenure, &self.uuid).await?;
        Ok(Step::Done(self.reply()))
    }
}

fn not_found() -> Fault {
    Fault::new(Code::NAMESPACE_NOT_FOUND, "ns not found")
}

/// Removes the chunks of a collection that is gone, however many there are.
pub(super) async fn remove_chunks(tenure: &Tenure, uuid: &Uuid) -> Result<(), Fault> {
    let mut delete = DocWriter::new().with("delete", CHUNKS);
    delete
        .begin_array("deletes")
        .push_document()
        .append("q", &by("uuid", uuid_value(uuid)))
        .append("limit", 0)
        .end()
        .end();
    delete
        .begin_document("writeConcern")
        .append("w", "majority")
        .end();
    tenure.store.run(delete).await.map(|_| ())
}

/// What removes a sharded collection from the config server; its chunks go later.
pub(super) fn gone(
    state: &State,
    context: Context<'_>,
    name: &Namespace,
    commit: &mut Commit,
) -> Result<Effect, Fault> {
    if let Some(damaged) = state.damaged.get(name.as_str())
        && let Some(entry) = &damaged.entry
    {
        placement::expect_unchanged(commit, entry);
        placement::remove(commit, entry);
        return Ok(Effect::DamagedGone(name.clone()));
    }
    let (entry, table) = state.sharded(name)?;
    let request = Request::Drop {
        expected: Expected {
            incarnation: table.incarnation,
            catalog: None,
        },
    };
    let answer = state
        .authority
        .decide(context.id, name, request, ClusterTime::ZERO)?;
    placement::expect_unchanged(commit, entry);
    placement::remove(commit, entry);
    Ok(Effect::Placement(
        Box::new(placement::decision(answer)?),
        None,
    ))
}

/// The zones of a collection's ranges go with it: another one of that name begins without.
pub(super) fn forget_zones(commit: &mut Commit, name: &Namespace) {
    commit.delete(TAGS, by("ns", name.as_str()).as_doc());
}

impl Operation for Drop {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn claim(&self) -> Claim {
        Claim::one(&self.namespace)
    }

    fn changes(&self) -> Vec<String> {
        if self.alone {
            return Vec::new();
        }
        vec![self.namespace.to_string()]
    }

    fn halts_moves(&self) -> bool {
        true
    }

    fn append_state(&self, writer: &mut DocWriter) {
        writer
            .append("ns", self.namespace.as_str())
            .append("uuid", uuid_value(&self.uuid))
            .append("indexes", self.indexes)
            .append("primary", self.primary.as_str())
            .append("decided", self.decided);
        if self.alone {
            writer
                .append("alone", true)
                .append("command", &self.command);
        }
    }

    fn prepare<'a>(
        &'a mut self,
        tenure: &'a Tenure,
    ) -> BoxFuture<'a, Result<Option<DocBuf>, Fault>> {
        Box::pin(self.check(tenure))
    }

    fn step<'a>(&'a mut self, context: Context<'a>) -> BoxFuture<'a, Result<Step, Fault>> {
        match self.decided {
            false if self.alone => Box::pin(self.drop_alone(context.tenure)),
            false => Box::pin(self.decide(context)),
            true => Box::pin(self.tell(context.tenure)),
        }
    }
}
