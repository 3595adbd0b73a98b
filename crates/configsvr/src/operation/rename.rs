//! `renameCollection`. Where neither name is a sharded collection, the primary shard that both databases
//! have does it alone (`alone.rs`), and zones follow in an entry of their own. Otherwise:
//!
//! ```text
//!   reserve  where there is no target: its name gets a placeholder on the primary, if it is still free
//!   decide   a sharded target leaves the config server, a sharded source has the new name: one entry
//!   shards   every shard renames its part and drops what the target was there, the primary last
//!   chunks   those of the target are removed
//! ```
//!
//! The ranges of its zones go with the name. The collection keeps its UUID, and so its chunks; it gets another incarnation, so that whatever was
//! routed under an older life of either name is stale. ⚑ Until all shards know, nobody is told where either
//! name is: who asks waits.
//!
//! ⚑ Clients do not ask the config server before they create a collection: until the primary shard has the
//! placeholder, the name may be taken, and then the rename is refused. Whoever comes later is told that the
//! name is a sharded collection's, and asks where it is.
//!
//! Shards are told by UUID: one that has renamed already answers with success.
//!
//! Left out: a sharded collection does not change its database, as in MongoDB.

use super::alone::{self, Said, may_mean, only_for, without_message};
use super::drop::{forget_zones, gone, remove_chunks};
use super::{Context, Operation, Step};
use crate::collection::{self, Facts};
use crate::commit::{Commit, by};
use crate::documents::{self, COLLECTIONS, CollectionEntry, Fields, TAGS, uuid_value};
use crate::error::Fault;
use crate::placement;
use crate::queue::{Claim, Patience};
use crate::server::{ok, text};
use crate::state::{Effect, State};
use crate::tenure::{Plan, Tenure};
use cluster::routing::ShardId;
use model::bson::{Doc, DocBuf, DocWriter, ObjectId, ValueRef};
use model::ids::Uuid;
use model::time::ClusterTime;
use model::version::{ChunkVersion, Incarnation, PlacementVersion};
use model::{Code, Namespace};
use std::collections::BTreeSet;
use std::sync::Arc;
use wire::BoxFuture;

pub(crate) const KIND: &str = "renameCollection";

pub(crate) struct Rename {
    from: Namespace,
    to: Namespace,
    /// As the client gave it.
    command: DocBuf,
    uuid: Uuid,
    epoch: ObjectId,
    began: ClusterTime,
    primary: ShardId,
    /// The sharded collection that is replaced.
    replaced: Option<Uuid>,
    /// What keeps the target's name free.
    placeholder: Option<Placeholder>,
    decided: bool,
    /// Neither name is a sharded collection.
    alone: bool,
    /// The primary shard may have been asked to rename it alone.
    asked: bool,
}

struct Placeholder {
    uuid: Uuid,
    is_there: bool,
}

impl Rename {
    pub(crate) async fn parse(
        tenure: &Arc<Tenure>,
        command: Doc<'_>,
        patience: Patience,
    ) -> Result<Self, Fault> {
        let from = Namespace::parse(text(command, "renameCollection")?)?;
        let to = Namespace::parse(text(command, "to")?)?;
        if from.database() != to.database() {
            make_database(tenure, &from, to.database(), patience).await?;
        }
        Ok(Self {
            from,
            to,
            command: without_message(command),
            uuid: Uuid([0; 16]),
            epoch: documents::new_object_id(),
            began: ClusterTime::ZERO,
            primary: ShardId::new(""),
            replaced: None,
            placeholder: None,
            decided: false,
            alone: false,
            asked: false,
        })
    }

    pub(crate) fn restore(fields: &Fields<'_>) -> Result<Self, Fault> {
        Ok(Self {
            from: Namespace::parse(fields.text("from")?)?,
            to: Namespace::parse(fields.text("to")?)?,
            command: fields
                .doc
                .get_doc("command")
                .map_or_else(DocBuf::new, Doc::to_owned),
            uuid: fields.uuid("uuid")?,
            epoch: fields.object_id("epoch")?,
            began: fields.time("began")?,
            primary: ShardId::new(fields.text("primary")?),
            replaced: match fields.doc.get("replaced") {
                Some(_) => Some(fields.uuid("replaced")?),
                None => None,
            },
            placeholder: match fields.doc.get("placeholder") {
                Some(_) => Some(Placeholder {
                    uuid: fields.uuid("placeholder")?,
                    is_there: fields.flag("reserved"),
                }),
                None => None,
            },
            decided: fields.flag("decided"),
            alone: fields.flag("alone"),
            asked: true,
        })
    }

    async fn check(&mut self, tenure: &Tenure) -> Result<Option<DocBuf>, Fault> {
        let (source, target, primary) = {
            let state = tenure.state().await?;
            let entry = |name| -> Result<Option<CollectionEntry>, Fault> {
                Ok(state.lookup(name)?.map(|(entry, _)| entry.clone()))
            };
            let primary = |name: &Namespace| -> Result<Option<ShardId>, Fault> {
                let database = state.database(name.database())?;
                Ok(database.map(|placement| placement.primary.clone()))
            };
            let primary = match (primary(&self.from)?, primary(&self.to)?) {
                (Some(source), Some(target)) if source == target => source,
                (None, _) => return Err(no_source(&self.from)),
                (Some(_), _) => {
                    return Err(Fault::new(
                        Code::COMMAND_FAILED,
                        "Source and destination collections must be on the same shard",
                    ));
                }
            };
            let (source, target) = (entry(&self.from)?, entry(&self.to)?);
            if source.is_some() || target.is_some() {
                state.check_all_shards()?;
            }
            (source, target, primary)
        };
        if source.is_none() && target.is_none() {
            return self.check_alone(tenure, primary).await;
        }
        self.check_ends(tenure, &primary, source.as_ref(), target.as_ref())
            .await?;
        self.replaced = target.map(|entry| entry.uuid);
        self.primary = primary;
        self.began = tenure.store.next_time();
        Ok(None)
    }

    async fn check_alone(
        &mut self,
        tenure: &Tenure,
        primary: ShardId,
    ) -> Result<Option<DocBuf>, Fault> {
        let found = collection::uuid(tenure, &primary, &self.from).await?;
        match found {
            Some(uuid) if may_mean(self.command.as_doc(), uuid) => {
                self.alone = true;
                self.uuid = uuid;
                self.primary = primary;
                Ok(None)
            }
            // ⚑ The shard says what is wrong, and one that is made right now keeps its name: no collection has this
            // UUID.
            found => {
                // Who names one is told about that one.
                let is_ours = found.is_none() && self.command.get("collectionUUID").is_none();
                let command = match is_ours {
                    false => self.command.clone(),
                    true => only_for(self.command.as_doc(), &documents::new_uuid()),
                };
                match tenure.ask(&primary, "admin", command.as_doc()).await {
                    Err(Fault::Refused(error))
                        if is_ours && error.code == Code::COLLECTION_UUID_MISMATCH =>
                    {
                        Err(no_source(&self.from))
                    }
                    answer => answer.map(Some),
                }
            }
        }
    }

    async fn rename_alone(&mut self, context: Context<'_>) -> Result<Step, Fault> {
        const GONE: [Code; 2] = [Code::NAMESPACE_NOT_FOUND, Code::COLLECTION_UUID_MISMATCH];
        if self.from.database() != self.to.database() {
            self.tell_database(context.tenure).await?;
        }
        let again = std::mem::replace(&mut self.asked, true);
        let command = only_for(self.command.as_doc(), &self.uuid);
        let place = (&self.primary, "admin");
        let said = alone::ask(context.tenure, place, command.as_doc(), (again, &GONE)).await?;
        match said {
            Said::Done(_) => self.take_zones_along(context).await,
            // ⚑ Nobody knows whether it was asked before: what is not there any more may have gone another way.
            Said::DoneBefore if !self.has_arrived(context.tenure).await? => {
                Ok(Step::Failed(no_source(&self.from)))
            }
            Said::DoneBefore => self.take_zones_along(context).await,
            // Another client was faster.
            Said::Refused(Fault::Refused(error)) if GONE.contains(&error.code) => {
                Ok(Step::Failed(no_source(&self.from)))
            }
            Said::Refused(fault) => Ok(Step::Failed(fault)),
        }
    }

    /// Whether the collection has its new name. Between databases it is copied, and has another UUID then.
    async fn has_arrived(&self, tenure: &Tenure) -> Result<bool, Fault> {
        let found = collection::uuid(tenure, &self.primary, &self.to).await?;
        Ok(match self.from.database() == self.to.database() {
            true => found == Some(self.uuid),
            false => found.is_some(),
        })
    }

    /// The database may have been made for this, and whoever made it lost before its primary was told.
    async fn tell_database(&self, tenure: &Tenure) -> Result<(), Fault> {
        let name = self.to.database();
        let known = tenure.with_state(|state| state.database(name).map(|known| known.cloned()))?;
        if let Some(placement) = known {
            let command = crate::database::set_database(name, placement.version, true);
            tenure
                .insist(&placement.primary, "admin", command.as_doc())
                .await?;
        }
        Ok(())
    }

    /// Zones of a collection that is not sharded, or not yet, go with its name too.
    async fn take_zones_along(&mut self, context: Context<'_>) -> Result<Step, Fault> {
        let (from, to) = (by("ns", self.from.as_str()), by("ns", self.to.as_str()));
        let store = &context.tenure.store;
        let moved = store.find(TAGS, from.as_doc(), Doc::EMPTY).await?;
        let replaced = store.find(TAGS, to.as_doc(), Doc::EMPTY).await?;
        if moved.is_empty() && replaced.is_empty() {
            return Ok(Step::Done(ok()));
        }
        self.decided = true;
        let mut commit = Commit::default();
        context.write_state(self, &mut commit);
        for zone in moved.iter().chain(&replaced) {
            if let Some(id) = zone.get("_id") {
                commit.delete(TAGS, by("_id", id).as_doc());
            }
        }
        for zone in &moved {
            commit.insert(TAGS, self.under_new_name(zone).as_doc());
        }
        context.tenure.write(commit).await?;
        Ok(Step::Written)
    }

    async fn check_ends(
        &mut self,
        tenure: &Tenure,
        primary: &ShardId,
        source: Option<&CollectionEntry>,
        target: Option<&CollectionEntry>,
    ) -> Result<(), Fault> {
        let illegal = |why: &str| Err(Fault::new(Code::ILLEGAL_OPERATION, why));
        if self.from == self.to {
            return illegal("Can't rename a collection to itself");
        }
        if self.to.collection().starts_with("system.") {
            return illegal("cannot rename a sharded collection to a system collection");
        }
        if self.to.collection().contains('$') {
            let name = self.to.collection();
            return illegal(&format!(
                "error with target namespace: Invalid collection name: {name}"
            ));
        }
        if source.is_some() && self.from.database() != self.to.database() {
            return Err(Fault::new(
                Code::COMMAND_FAILED,
                "Source and destination databases of a sharded collection must be the same",
            ));
        }
        self.uuid = match source {
            Some(entry) => entry.uuid,
            None => match Facts::ask(tenure, primary, &self.from).await? {
                Some(facts) => facts.uuid,
                None => return Err(no_source(&self.from)),
            },
        };
        if !may_mean(self.command.as_doc(), self.uuid) {
            return Err(alone::another_uuid(self.command.as_doc()));
        }
        let is_there = match target {
            Some(_) => true,
            None => Facts::ask(tenure, primary, &self.to).await?.is_some(),
        };
        let replaces = match self.command.get("dropTarget") {
            Some(ValueRef::Boolean(replaces)) => replaces,
            Some(ValueRef::Binary { .. }) => true,
            _ => false,
        };
        if is_there && !replaces {
            return Err(exists());
        }
        if !replaces {
            self.placeholder = Some(Placeholder {
                uuid: documents::new_uuid(),
                is_there: false,
            });
        }
        Ok(())
    }

    /// A collection without documents takes the new name, unless another one has.
    async fn reserve(&mut self, tenure: &Tenure) -> Result<Step, Fault> {
        let Some(placeholder) = &mut self.placeholder else {
            return Ok(Step::Next);
        };
        let command = {
            let state = tenure.state().await?;
            let (entry, _) = state.sharded(&self.from)?;
            let incarnation = Incarnation {
                epoch: self.epoch,
                began: self.began,
            };
            let mut command = DocWriter::new()
                .with("_terndbCreateSharded", 1)
                .with("ns", self.to.as_str())
                .with("uuid", uuid_value(&placeholder.uuid))
                .with("options", Doc::EMPTY)
                .with("key", &entry.key)
                .with("unique", false)
                .with("quietly", true);
            for (name, chunk) in [
                ("placement", ChunkVersion::ZERO),
                ("collectionVersion", ChunkVersion::FIRST),
            ] {
                command.begin_document(name);
                PlacementVersion { incarnation, chunk }.append_to(&mut command);
                command.end();
            }
            command.begin_array("indexes").end();
            command.begin_array("owned").end();
            command.finish()
        };
        match tenure
            .insist(&self.primary, "admin", command.as_doc())
            .await
        {
            Ok(_) => placeholder.is_there = true,
            Err(Fault::Refused(error)) if error.code == Code::INVALID_UUID => {
                return Ok(Step::Failed(exists()));
            }
            Err(fault) => return Err(fault),
        }
        Ok(Step::Next)
    }

    async fn decide(&mut self, context: Context<'_>) -> Result<Step, Fault> {
        self.decided = true;
        let here = &*self;
        let zones = |name: &Namespace| by("ns", name.as_str());
        let store = &context.tenure.store;
        let moved = store
            .find(TAGS, zones(&here.from).as_doc(), Doc::EMPTY)
            .await?;
        let replaced = store
            .find(TAGS, zones(&here.to).as_doc(), Doc::EMPTY)
            .await?;
        context
            .tenure
            .decide(|state| {
                let (mut commit, mut effects) = (Commit::default(), Vec::new());
                // Written already if the answer to this very commit was lost.
                if here.replaced.is_some() && here.is_replaced_there(state)? {
                    effects.push(gone(state, context, &here.to, &mut commit)?);
                    forget_zones(&mut commit, &here.to);
                    if state.lookup(&here.from)?.is_none() {
                        for zone in &moved {
                            if let Some(id) = zone.get("_id") {
                                commit.delete(TAGS, by("_id", id).as_doc());
                            }
                            commit.insert(TAGS, here.under_new_name(zone).as_doc());
                        }
                    }
                }
                if let Some((entry, table)) = state.lookup(&here.from)? {
                    let mut table = table.clone();
                    table.incarnation = Incarnation {
                        epoch: here.epoch,
                        began: here.began,
                    };
                    let changes = DocWriter::new()
                        .with("_id", here.to.as_str())
                        .with("lastmodEpoch", here.epoch)
                        .with("lastmod", ValueRef::DateTime(documents::now_ms()))
                        .with("timestamp", here.began)
                        .finish();
                    let new = entry.with(changes.as_doc())?;
                    effects.push(gone(state, context, &here.from, &mut commit)?);
                    commit.insert(COLLECTIONS, new.document.as_doc());
                    for zone in moved.iter().chain(&replaced) {
                        if let Some(id) = zone.get("_id") {
                            commit.delete(TAGS, by("_id", id).as_doc());
                        }
                    }
                    for zone in &moved {
                        commit.insert(TAGS, here.under_new_name(zone).as_doc());
                    }
                    effects.push(Effect::Renamed(Box::new(table), new));
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

    /// A zone's range, of the collection as it is called from now on.
    fn under_new_name(&self, zone: &DocBuf) -> DocBuf {
        let mut writer = DocWriter::new();
        for field in zone.iter() {
            match field.key() {
                "_id" => {
                    writer.begin_document("_id").append("ns", self.to.as_str());
                    if let Some(min) = zone.get("min") {
                        writer.append("min", min);
                    }
                    writer.end();
                }
                "ns" => {
                    writer.append("ns", self.to.as_str());
                }
                _ => {
                    writer.append_element(&field);
                }
            }
        }
        writer.finish()
    }

    fn is_replaced_there(&self, state: &State) -> Result<bool, Fault> {
        let entry = state.lookup(&self.to)?.map(|(entry, _)| entry.uuid);
        Ok(entry.is_some() && entry == self.replaced)
    }

    async fn tell(&self, tenure: &Tenure) -> Result<Step, Fault> {
        let mut shards = tenure.with_state(State::shard_names);
        shards.sort_by_key(|shard| *shard == self.primary);
        for shard in shards {
            let command = self.command_for(tenure, &shard)?;
            tenure.insist(&shard, "admin", command.as_doc()).await?;
        }
        if let Some(replaced) = &self.replaced {
            remove_chunks(tenure, replaced).await?;
        }
        Ok(Step::Done(ok()))
    }

    fn command_for(&self, tenure: &Tenure, shard: &ShardId) -> Result<DocBuf, Fault> {
        let mut command = DocWriter::new()
            .with("_terndbRename", 1)
            .with("from", self.from.as_str());
        if *shard != self.primary {
            command.append("quietly", true);
        }
        if let Some(placeholder) = &self.placeholder {
            command.append("placeholder", uuid_value(&placeholder.uuid));
        }
        let sharded = tenure.with_state(|state| -> Result<_, Fault> {
            let sharded = state.lookup(&self.to)?;
            Ok(sharded.map(|(entry, table)| (entry.clone(), table.clone())))
        })?;
        match sharded {
            Some((entry, table)) => placement::tell(command, &entry, &table, shard),
            None => Ok(command
                .with("ns", self.to.as_str())
                .with("uuid", uuid_value(&self.uuid))
                .finish()),
        }
    }
}

fn exists() -> Fault {
    Fault::new(Code::NAMESPACE_EXISTS, "target namespace exists")
}

fn no_source(from: &Namespace) -> Fault {
    Fault::new(
        Code::NAMESPACE_NOT_FOUND,
        format!("Source collection {from} does not exist"),
    )
}

/// Makes the database that a collection is renamed into, where the collection is. ⚑ Only if there is one: a
/// refusal leaves nothing behind.
async fn make_database(
    tenure: &Arc<Tenure>,
    from: &Namespace,
    into: &str,
    patience: Patience,
) -> Result<(), Fault> {
    let (source, is_sharded, is_there) = {
        let state = tenure.state().await?;
        let source = state.database(from.database())?;
        let source = source.map(|placement| placement.primary.clone());
        let is_there = state.database(into)?.is_some();
        (source, state.lookup(from)?.is_some(), is_there)
    };
    let source = source.ok_or_else(|| no_source(from))?;
    // A sharded one does not change its database, and is refused in turn.
    if is_there || is_sharded {
        return Ok(());
    }
    if Facts::ask(tenure, &source, from).await?.is_none() {
        return Err(no_source(from));
    }
    let made = crate::database::create(tenure, into, Some(source.as_str()), patience, None).await;
    match made {
        // Somebody else was faster, elsewhere: what that means is checked in turn.
        Err(Fault::Refused(error)) if error.code == Code::NAMESPACE_EXISTS => Ok(()),
        made => made.map(|_| ()),
    }
}

impl Operation for Rename {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn claim(&self) -> Claim {
        Claim::Collections(BTreeSet::from([self.from.clone(), self.to.clone()]))
    }

    fn halts_moves(&self) -> bool {
        true
    }

    fn changes(&self) -> Vec<String> {
        if self.alone {
            return Vec::new();
        }
        vec![self.from.to_string(), self.to.to_string()]
    }

    fn append_state(&self, writer: &mut DocWriter) {
        writer
            .append("from", self.from.as_str())
            .append("to", self.to.as_str())
            .append("uuid", uuid_value(&self.uuid))
            .append("epoch", self.epoch)
            .append("began", self.began)
            .append("primary", self.primary.as_str())
            .append("decided", self.decided);
        if self.alone {
            writer
                .append("alone", true)
                .append("command", &self.command);
        }
        if let Some(replaced) = &self.replaced {
            writer.append("replaced", uuid_value(replaced));
        }
        if let Some(placeholder) = &self.placeholder {
            writer
                .append("placeholder", uuid_value(&placeholder.uuid))
                .append("reserved", placeholder.is_there);
        }
    }

    fn prepare<'a>(
        &'a mut self,
        tenure: &'a Tenure,
    ) -> BoxFuture<'a, Result<Option<DocBuf>, Fault>> {
        Box::pin(self.check(tenure))
    }

    fn step<'a>(&'a mut self, context: Context<'a>) -> BoxFuture<'a, Result<Step, Fault>> {
        let is_free = (self.placeholder.as_ref()).is_none_or(|placeholder| placeholder.is_there);
        match self.decided {
            false if self.alone => Box::pin(self.rename_alone(context)),
            true if self.alone => Box::pin(async { Ok(Step::Done(ok())) }),
            false if !is_free => Box::pin(self.reserve(context.tenure)),
            false => Box::pin(self.decide(context)),
            true => Box::pin(self.tell(context.tenure)),
        }
    }
}
