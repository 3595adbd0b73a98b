//! `createIndexes`, `dropIndexes` and `collMod` of sharded collections: the same on every shard that has it.
//!
//! ⚑ The collection's catalog version grows before the first shard is touched and again after the last, and
//! none stands in between: no move is committed then, so that whoever owns the collection when shards are
//! told owns it until the end. Moves go on meanwhile. One that looked at options and indexes before is put
//! off when it wants to commit, until its recipient has caught up (`moves`). If that has happened to it often
//! enough, the next operation waits for it, for a limited time.
//!
//! One shard that refuses ends the operation. Indexes that others have made by then are dropped again; what
//! others have dropped or modified stays so, as with MongoDB, and can be asked for again.
//!
//! The reply is the first shard's, and `raw` has those of all, as with MongoDB. ⚑ One that is asked again answers for what is left to do: what was there before is
//! kept with the state, and the reply tells of that (`before.rs`).
//!
//! A collection that is not sharded is on one shard, and nothing else is different.

use super::alone::{without_message, without_times};
use super::before::Before;
use super::{Context, Operation, Step};
use crate::collection;
use crate::commit::{Commit, by};
use crate::documents::{COLLECTIONS, Fields};
use crate::error::Fault;
use crate::placement;
use crate::queue::Claim;
use crate::state::Effect;
use crate::tenure::{Plan, Tenure};
use cluster::routing::ShardId;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::text::document_quoted;
use model::{Code, Namespace};
use wire::BoxFuture;

pub(crate) const KIND: &str = "onOwners";

pub(crate) struct OnOwners {
    namespace: Namespace,
    command: DocBuf,
    /// Where it is, if it is not sharded.
    alone: Option<ShardId>,
    announced: bool,
    /// Goes on with what was begun before: shards may have been told.
    resumed: bool,
    /// Indexes that no shard had before.
    created: Vec<String>,
    /// What the reply tells of the time before.
    before: Before,
    /// Why a shard refused: what was created is dropped again.
    refused: Option<(Code, String)>,
    /// The first shard's answer.
    reply: Option<DocBuf>,
}

impl OnOwners {
    pub(crate) fn parse(database: &str, command: Doc<'_>) -> Result<Self, Fault> {
        let first = command.first().map(|element| element.value());
        let Some(ValueRef::String(name)) = first else {
            return Err(Fault::new(
                Code::BAD_VALUE,
                "collection name has invalid type",
            ));
        };
        Ok(Self {
            namespace: Namespace::new(database, name)?,
            command: without_message(command),
            alone: None,
            announced: false,
            resumed: false,
            created: Vec::new(),
            before: Before::default(),
            refused: None,
            reply: None,
        })
    }

    pub(crate) fn restore(fields: &Fields<'_>) -> Result<Self, Fault> {
        Ok(Self {
            namespace: Namespace::parse(fields.text("ns")?)?,
            command: fields.doc("command")?.to_owned(),
            alone: fields.doc.get_str("alone").map(ShardId::new),
            announced: fields.flag("announced"),
            resumed: true,
            created: texts(fields.doc, "created"),
            before: Before::restore(fields.doc),
            refused: fields.doc.get_str("why").map(|why| {
                let code = fields.number("code").unwrap_or(0) as i32;
                (Code(code), why.to_owned())
            }),
            reply: None,
        })
    }

    fn name(&self) -> &str {
        self.command
            .as_doc()
            .first()
            .map_or("", |first| first.key())
    }

    async fn check(&mut self, tenure: &Tenure) -> Result<Option<DocBuf>, Fault> {
        let (sharded, primary) = {
            let state = tenure.state().await?;
            let sharded = state.lookup(&self.namespace)?;
            let database = state.database(self.namespace.database())?;
            // The sessions collection is in a database that no shard is the primary of.
            let owner = sharded.and_then(|(_, table)| table.shards().first());
            (
                sharded.map(|(entry, _)| entry.clone()),
                database
                    .map(|placement| placement.primary.clone())
                    .or(owner.map(|part| part.shard.clone())),
            )
        };
        let Some(primary) = primary else {
            return Err(Fault::new(
                Code::NAMESPACE_NOT_FOUND,
                format!("ns does not exist: {}", self.namespace),
            ));
        };
        let Some(entry) = sharded else {
            // The shard says what is wrong with it, if something is.
            if let Ok(indexes) = collection::indexes(tenure, &primary, &self.namespace).await {
                self.before = Before::new(self.command.as_doc(), &indexes);
            }
            self.alone = Some(primary);
            // Nobody else has it, and no range of it moves.
            self.announced = true;
            return Ok(None);
        };
        // ⚑ Nothing of this has begun: a move that others before it have put off may end first.
        tenure.moves.give_way(&self.namespace).await;
        let indexes = collection::indexes(tenure, &primary, &self.namespace).await?;
        self.before = Before::new(self.command.as_doc(), &indexes);
        match self.name() {
            "createIndexes" => {
                self.check_unique(&entry.pattern)?;
                let name = |index: &DocBuf| index.as_doc().get_str("name").map(str::to_owned);
                let known: Vec<String> = indexes.iter().filter_map(name).collect();
                let specs = self.command.as_doc().get_array("indexes");
                let asked = specs.into_iter().flat_map(|specs| specs.iter());
                let asked = asked.filter_map(|spec| match spec {
                    ValueRef::Document(spec) => spec.get_str("name").map(str::to_owned),
                    _ => None,
                });
                self.created = asked.filter(|name| !known.contains(name)).collect();
            }
            "dropIndexes" | "deleteIndexes" => {
                self.spare_shard_key(&indexes, entry.key.as_doc())?;
            }
            _ => {}
        }
        Ok(None)
    }

    fn check_unique(&self, pattern: &model::shard_key::ShardKeyPattern) -> Result<(), Fault> {
        let specs = self.command.as_doc().get_array("indexes");
        for spec in specs.into_iter().flat_map(|all| all.iter()) {
            let ValueRef::Document(spec) = spec else {
                continue;
            };
            let spec = spec.to_owned();
            if collection::is_unique(&spec) && !collection::keeps_unique(&spec, pattern) {
                return Err(Fault::new(
                    Code::CANNOT_CREATE_INDEX,
                    format!(
                        "cannot create unique index over {} with a shard key that is not its prefix",
                        document_quoted(spec.as_doc().get_doc("key").unwrap_or(Doc::EMPTY)),
                    ),
                ));
            }
        }
        Ok(())
    }

    /// The last index that supports the shard key stays; `*` means all others.
    fn spare_shard_key(&mut self, indexes: &[DocBuf], key: Doc<'_>) -> Result<(), Fault> {
        let on_id = by("key", by("_id", 1).as_doc());
        let name_of = |index: &DocBuf| {
            index
                .as_doc()
                .get_str("name")
                .unwrap_or_default()
                .to_owned()
        };
        let supporting: Vec<&DocBuf> = indexes
            .iter()
            .filter(|index| collection::supports(index, key))
            .collect();
        let asked = self.command.get("index").map(|value| value.to_owned());
        let dropped: Vec<String> = match asked.as_ref().map(|value| value.as_ref()) {
            Some(ValueRef::String("*")) => {
                let others = indexes
                    .iter()
                    .filter(|index| !collection::supports(index, key));
                let others: Vec<String> = others.map(name_of).collect();
                self.drop_these(&others);
                return Ok(());
            }
            Some(ValueRef::String(name)) => vec![name.to_owned()],
            Some(ValueRef::Array(names)) => names
                .iter()
                .filter_map(|name| match name {
                    ValueRef::String(name) => Some(name.to_owned()),
                    _ => None,
                })
                .collect(),
            Some(ValueRef::Document(wanted)) => indexes
                .iter()
                .filter(|index| {
                    let key = index.as_doc().get_doc("key").unwrap_or(Doc::EMPTY);
                    collection::same_key(key, wanted)
                })
                .map(name_of)
                .collect(),
            _ => Vec::new(),
        };
        let left = supporting
            .iter()
            .any(|index| !dropped.contains(&name_of(index)));
        let loses = supporting
            .iter()
            .any(|index| dropped.contains(&name_of(index)));
        if loses && !left && !collection::supports(&on_id, key) {
            return Err(Fault::new(
                Code::INVALID_OPTIONS,
                "Cannot drop the only compatible index for this collection's shard key",
            ));
        }
        Ok(())
    }

    fn drop_these(&mut self, names: &[String]) {
        let mut command = DocWriter::new();
        for element in self.command.iter() {
            if element.key() == "index" {
                command.begin_array("index");
                for name in names {
                    command.push(name);
                }
                command.end();
            } else {
                command.append_element(&element);
            }
        }
        self.command = command.finish();
    }

    /// The new catalog version, in a commit.
    fn count_change(
        &self,
        tenure: &Tenure,
        commit: &mut Commit,
        changes: bool,
    ) -> Result<Option<Effect>, Fault> {
        let entry = tenure.with_state(|state| -> Result<_, Fault> {
            Ok(state
                .lookup(&self.namespace)?
                .map(|(entry, _)| entry.clone()))
        })?;
        let Some(entry) = entry else {
            return Ok(None);
        };
        let version = DocWriter::new()
            .with("catalogVersion", entry.catalog.version as i64 + 1)
            .with("catalogChanges", changes)
            .finish();
        let new = entry.with(version.as_doc())?;
        placement::expect_unchanged(commit, &entry);
        let id = by("_id", self.namespace.as_str());
        commit.put(COLLECTIONS, id.as_doc(), new.document.as_doc());
        Ok(Some(Effect::Collection(new)))
    }

    async fn announce(&mut self, context: Context<'_>) -> Result<Step, Fault> {
        self.announced = true;
        let mut commit = Commit::default();
        let effect = self.count_change(context.tenure, &mut commit, true)?;
        context.write_state(self, &mut commit);
        context
            .tenure
            .decide(|_| {
                Ok(Plan {
                    commit,
                    effects: effect.into_iter().collect(),
                    answer: (),
                })
            })
            .await?;
        Ok(Step::Written)
    }

    async fn tell(&mut self, tenure: &Tenure) -> Result<Step, Fault> {
        let shards = match &self.alone {
            Some(shard) => vec![shard.clone()],
            None => tenure.with_state(|state| state.participants(&self.namespace)),
        };
        // ⚑ From here on, whoever is asked may have been asked before.
        let again = std::mem::replace(&mut self.resumed, true);
        let mut raw = DocWriter::new();
        for shard in shards {
            let database = self.namespace.database();
            match tenure.ask(&shard, database, self.command.as_doc()).await {
                Ok(reply) => {
                    let reply = self.as_before(without_times(&reply), again);
                    let host = tenure.with_state(|state| state.hosts.get(&shard).cloned());
                    raw.append(host.as_deref().unwrap_or(shard.as_str()), &reply);
                    self.reply.get_or_insert(reply);
                }
                // Dropped by an earlier attempt, or never on this shard.
                Err(Fault::Refused(error))
                    if error.code == Code::INDEX_NOT_FOUND
                        && (self.reply.is_some() || again && self.before.had_index()) => {}
                Err(Fault::Refused(error)) if !self.created.is_empty() && self.reply.is_some() => {
                    self.refused = Some((error.code, error.message));
                    return Ok(Step::Next);
                }
                Err(fault @ Fault::Refused(_)) => return Ok(Step::Failed(fault)),
                // It never reached anybody, and there is nobody else who has heard of it.
                Err(fault)
                    if self.alone.is_some()
                        && !again
                        && fault.code() == Some(Code::HOST_UNREACHABLE) =>
                {
                    return Ok(Step::Failed(fault));
                }
                Err(fault) => return Err(fault),
            }
        }
        let reply = self.reply.clone().unwrap_or_else(|| {
            let done = crate::server::ok();
            self.as_before(done, again)
        });
        Ok(Step::Done(self.with_raw(&reply, raw.finish())))
    }

    /// A shard's reply as it would have been the first time.
    fn as_before(&self, reply: DocBuf, again: bool) -> DocBuf {
        match again {
            true => self.before.tell(self.command.as_doc(), &reply),
            false => reply,
        }
    }

    /// A reply with those of all shards.
    fn with_raw(&self, reply: &DocBuf, raw: DocBuf) -> DocBuf {
        if self.name() == "collMod" {
            return reply.clone();
        }
        let mut told = DocWriter::new();
        for element in reply.iter() {
            if element.key() == "ok" {
                told.append("raw", &raw);
            }
            told.append_element(&element);
        }
        told.finish()
    }

    /// Drops what some shards have created before one refused.
    async fn undo(&self, tenure: &Tenure, code: Code, why: &str) -> Result<Step, Fault> {
        let shards = tenure.with_state(|state| state.participants(&self.namespace));
        for shard in shards {
            for name in &self.created {
                let drop = DocWriter::new()
                    .with("dropIndexes", self.namespace.collection())
                    .with("index", name)
                    .finish();
                let database = self.namespace.database();
                match tenure.insist(&shard, database, drop.as_doc()).await {
                    Ok(_) => {}
                    Err(Fault::Refused(error)) if error.code == Code::INDEX_NOT_FOUND => {}
                    Err(fault) => return Err(fault),
                }
            }
        }
        Ok(Step::Failed(Fault::new(code, why)))
    }
}

fn texts(doc: Doc<'_>, name: &str) -> Vec<String> {
    let listed = doc.get_array(name).into_iter();
    let texts = listed
        .flat_map(|list| list.iter())
        .filter_map(|one| match one {
            ValueRef::String(text) => Some(text.to_owned()),
            _ => None,
        });
    texts.collect()
}

impl Operation for OnOwners {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn claim(&self) -> Claim {
        Claim::one(&self.namespace)
    }

    fn changes(&self) -> Vec<String> {
        Vec::new()
    }

    fn halts_moves(&self) -> bool {
        false
    }

    fn append_state(&self, writer: &mut DocWriter) {
        writer
            .append("ns", self.namespace.as_str())
            .append("command", &self.command)
            .append("announced", self.announced)
            .begin_array("created");
        for name in &self.created {
            writer.push(name);
        }
        writer.end();
        self.before.append(writer);
        if let Some(shard) = &self.alone {
            writer.append("alone", shard.as_str());
        }
        if let Some((code, why)) = &self.refused {
            writer.append("code", code.0).append("why", why);
        }
    }

    fn prepare<'a>(
        &'a mut self,
        tenure: &'a Tenure,
    ) -> BoxFuture<'a, Result<Option<DocBuf>, Fault>> {
        Box::pin(self.check(tenure))
    }

    fn step<'a>(&'a mut self, context: Context<'a>) -> BoxFuture<'a, Result<Step, Fault>> {
        match (self.announced, self.refused.clone()) {
            (false, _) => Box::pin(self.announce(context)),
            (true, None) => Box::pin(self.tell(context.tenure)),
            (true, Some((code, why))) => {
                let tenure = context.tenure;
                Box::pin(async move { self.undo(tenure, code, &why).await })
            }
        }
    }

    fn last_words(&self, tenure: &Tenure, commit: &mut Commit) -> Result<Vec<Effect>, Fault> {
        let effect = self.count_change(tenure, commit, false)?;
        Ok(effect.into_iter().collect())
    }
}
