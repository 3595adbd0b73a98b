//! `refineCollectionShardKey`: the same chunks under a key with more fields.
//!
//! ```text
//!   prepare  the new key continues the old one; every owner has an index that begins with it
//!   announce every owner looks whether its documents fit the new key, and lets none in that does not
//!   │           one refuses? ──► withdraw: as if nothing had been said
//!   decide   a new incarnation: the collection's document, and its zones with the new fields, one entry
//!   shards   owners take over key and version; what they own stays the same
//!   chunks   their stored bounds get the new fields, some with each entry
//! ```
//!
//! ⚑ A document with an array in one of the new fields has no place among the new keys. It is looked for where
//! nothing can come in between, before the decision.
//!
//! Between the decision and the shards a request routed by the old incarnation is still right: who owns what did not change.

use super::{Context, Operation, Step};
use crate::collection;
use crate::commit::{Commit, by};
use crate::documents::{self, CHUNKS, COLLECTIONS, Fields, TAGS, as_time, uuid_value};
use crate::error::Fault;
use crate::placement;
use crate::queue::Claim;
use crate::server::{missing, ok};
use crate::tenure::{Plan, Tenure};
use crate::zones;
use cluster::authority::{Expected, Request};
use cluster::routing::RoutingTable;
use model::bson::{Doc, DocBuf, DocWriter, ObjectId, ValueRef};
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::Incarnation;
use model::{Code, Error, Namespace};
use std::sync::Arc;
use wire::BoxFuture;

pub(crate) const KIND: &str = "refineCollectionShardKey";
/// Chunks whose bounds are rewritten together.
const CHUNKS_PER_ENTRY: usize = 1000;

pub(crate) struct Refine {
    namespace: Namespace,
    key: DocBuf,
    epoch: ObjectId,
    began: ClusterTime,
    phase: Phase,
}

#[derive(Clone, Debug)]
enum Phase {
    Announce,
    /// What an owner said to it.
    Withdraw(Error),
    Decide,
    Decided,
}

impl Phase {
    fn name(&self) -> &'static str {
        match self {
            Phase::Announce => "announce",
            Phase::Withdraw(_) => "withdraw",
            Phase::Decide => "decide",
            Phase::Decided => "decided",
        }
    }
}

impl Refine {
    pub(crate) fn parse(command: Doc<'_>) -> Result<Self, Fault> {
        let namespace = Namespace::parse(crate::server::text(command, KIND)?)?;
        let key = match command.get("key") {
            Some(ValueRef::Document(key)) => key,
            Some(other) => {
                let kind = other.kind().name();
                let wrong = format!(
                    "BSON field '{KIND}.key' is the wrong type '{kind}', expected type 'object'"
                );
                return Err(Fault::new(Code::TYPE_MISMATCH, wrong));
            }
            None => return Err(missing(&format!("{KIND}.key"))),
        };
        ShardKeyPattern::parse(key)?;
        Ok(Self {
            namespace,
            key: key.to_owned(),
            epoch: documents::new_object_id(),
            began: ClusterTime::ZERO,
            phase: Phase::Announce,
        })
    }

    pub(crate) fn restore(fields: &Fields<'_>) -> Result<Self, Fault> {
        Ok(Self {
            namespace: Namespace::parse(fields.text("ns")?)?,
            key: fields.doc("key")?.to_owned(),
            epoch: fields.object_id("epoch")?,
            began: fields.time("began")?,
            phase: match fields.doc.get_str("phase") {
                Some("withdraw") => Phase::Withdraw(Error::new(
                    fields
                        .number("code")
                        .map_or(Code::OPERATION_FAILED, |code| Code(code as i32)),
                    (fields.text("why")).unwrap_or("a shard refused the refined shard key"),
                )),
                Some("decide") => Phase::Decide,
                Some("decided") => Phase::Decided,
                // What an earlier version began and had decided says so in another field.
                _ if fields.flag("decided") => Phase::Decided,
                _ => Phase::Announce,
            },
        })
    }

    async fn check(&mut self, tenure: &Tenure) -> Result<Option<DocBuf>, Fault> {
        let (entry, participants) = {
            let state = tenure.state().await?;
            let (entry, _) = state.sharded(&self.namespace)?;
            (entry.clone(), state.participants(&self.namespace))
        };
        let pattern = ShardKeyPattern::parse(self.key.as_doc())?;
        if collection::same_key(entry.key.as_doc(), self.key.as_doc()) {
            return Ok(Some(ok()));
        }
        if !pattern.extends(&entry.pattern) {
            return Err(Fault::new(
                Code::INVALID_OPTIONS,
                format!(
                    "refineCollectionShardKey shard key {} must extend the current shard key {}",
                    model::text::document_quoted(self.key.as_doc()),
                    model::text::document_quoted(entry.key.as_doc()),
                ),
            ));
        }
        for shard in participants {
            let indexes = collection::indexes(tenure, &shard, &self.namespace).await?;
            let useful = |index: &DocBuf| {
                collection::supports(index, self.key.as_doc())
                    && (!entry.unique || collection::is_unique(index))
            };
            if !indexes.iter().any(useful) {
                return Err(Fault::new(
                    Code::INVALID_OPTIONS,
                    "Please create an index that starts with the proposed shard key before refining \
                     the shard key of the collection",
                ));
            }
            let kept = |index: &DocBuf| {
                !collection::is_unique(index) || collection::keeps_unique(index, &pattern)
            };
            if !indexes.iter().all(kept) {
                return Err(Fault::new(
                    Code::INVALID_OPTIONS,
                    "Uniqueness of an index can't be maintained unless the shard key is a prefix of it",
                ));
            }
        }
        self.began = tenure.store.next_time();
        Ok(None)
    }

    /// Tells every owner which key comes next, or that none does.
    async fn tell_next_key(&self, tenure: &Tenure, key: Option<&DocBuf>) -> Result<(), Fault> {
        let (uuid, shards) = {
            let state = tenure.state().await?;
            let (entry, _) = state.sharded(&self.namespace)?;
            (entry.uuid, state.participants(&self.namespace))
        };
        let mut command = DocWriter::new()
            .with("_terndbSetNextKey", 1)
            .with("ns", self.namespace.as_str())
            .with("uuid", uuid_value(&uuid));
        if let Some(key) = key {
            command.append("key", key);
        }
        let command = command.finish();
        for shard in shards {
            tenure.insist(&shard, "admin", command.as_doc()).await?;
        }
        Ok(())
    }

    async fn announce(&mut self, tenure: &Tenure) -> Result<Step, Fault> {
        self.phase = match self.tell_next_key(tenure, Some(&self.key)).await {
            Ok(()) => Phase::Decide,
            Err(Fault::Refused(error)) => Phase::Withdraw(error),
            Err(fault) => return Err(fault),
        };
        Ok(Step::Next)
    }

    async fn withdraw(&self, tenure: &Tenure, why: Error) -> Result<Step, Fault> {
        self.tell_next_key(tenure, None).await?;
        Ok(Step::Failed(Fault::Refused(why)))
    }

    async fn decide(&mut self, context: Context<'_>) -> Result<Step, Fault> {
        self.phase = Phase::Decided;
        let here = &*self;
        let zones = zones::refined(context.tenure, &here.namespace, here.key.as_doc()).await?;
        let incarnation = Incarnation {
            epoch: here.epoch,
            began: here.began,
        };
        context
            .tenure
            .decide(|state| {
                let (entry, table) = state.sharded(&here.namespace)?;
                let request = Request::Refine {
                    expected: Expected {
                        incarnation: table.incarnation,
                        catalog: None,
                    },
                    pattern: Arc::new(ShardKeyPattern::parse(here.key.as_doc())?),
                    incarnation,
                };
                let answer =
                    state
                        .authority
                        .decide(context.id, &here.namespace, request, here.began)?;
                let decision = placement::decision(answer)?;
                let changes = DocWriter::new()
                    .with("lastmodEpoch", here.epoch)
                    .with("lastmod", ValueRef::DateTime(documents::now_ms()))
                    .with("timestamp", here.began)
                    .with("key", &here.key)
                    .finish();
                let new = entry.with(changes.as_doc())?;
                let mut commit = Commit::default();
                placement::expect_unchanged(&mut commit, entry);
                let id = by("_id", here.namespace.as_str());
                commit.put(COLLECTIONS, id.as_doc(), new.document.as_doc());
                for (before, after) in &zones {
                    if let Some(id) = before.get("_id") {
                        commit.delete(TAGS, by("_id", id).as_doc());
                    }
                    commit.insert(TAGS, after.as_doc());
                }
                context.write_state(here, &mut commit);
                Ok(Plan {
                    commit,
                    effects: vec![placement::keeps(decision, new)],
                    answer: (),
                })
            })
            .await?;
        Ok(Step::Written)
    }

    async fn tell(&self, tenure: &Tenure) -> Result<Step, Fault> {
        let known = tenure.with_state(|state| -> Result<_, Fault> {
            let sharded = state.lookup(&self.namespace)?;
            Ok(sharded.map(|(entry, table)| {
                (
                    entry.clone(),
                    table.clone(),
                    state.participants(&self.namespace),
                )
            }))
        })?;
        let Some((entry, table, shards)) = known else {
            return Ok(Step::Done(ok()));
        };
        for shard in shards {
            let command = placement::set_placement(&entry, &table, &shard)?;
            tenure.insist(&shard, "admin", command.as_doc()).await?;
        }
        rewrite_bounds(tenure, &table).await?;
        Ok(Step::Done(ok()))
    }
}

/// Gives stored bounds the new fields, some chunks with each entry. Until then they are read as what they
/// stand for ([`documents::read_chunk`]), by this primary and the next.
async fn rewrite_bounds(tenure: &Tenure, table: &RoutingTable) -> Result<(), Fault> {
    let chunks: Vec<_> = table.chunks().collect();
    for some in chunks.chunks(CHUNKS_PER_ENTRY) {
        let mut commit = Commit::default();
        for view in some {
            let chunk = DocWriter::new()
                .with("uuid", uuid_value(&table.uuid))
                .with("lastmod", as_time(view.chunk.version))
                .finish();
            let min = documents::bound(&table.pattern, view.chunk.min.as_bytes())?;
            let max = documents::bound(&table.pattern, view.max.as_bytes())?;
            let bounds = DocWriter::new().with("min", &min).with("max", &max);
            let change = by("$set", bounds.finish().as_doc());
            commit.change(CHUNKS, chunk.as_doc(), change.as_doc());
        }
        tenure.write(commit).await?;
    }
    Ok(())
}

impl Operation for Refine {
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
        true
    }

    fn append_state(&self, writer: &mut DocWriter) {
        writer
            .append("ns", self.namespace.as_str())
            .append("key", &self.key)
            .append("epoch", self.epoch)
            .append("began", self.began)
            .append("phase", self.phase.name());
        if let Phase::Withdraw(why) = &self.phase {
            writer
                .append("code", why.code.0)
                .append("why", &why.message);
        }
    }

    fn prepare<'a>(
        &'a mut self,
        tenure: &'a Tenure,
    ) -> BoxFuture<'a, Result<Option<DocBuf>, Fault>> {
        Box::pin(self.check(tenure))
    }

    fn step<'a>(&'a mut self, context: Context<'a>) -> BoxFuture<'a, Result<Step, Fault>> {
        let tenure = context.tenure;
        match self.phase.clone() {
            Phase::Announce => Box::pin(self.announce(tenure)),
            Phase::Withdraw(why) => Box::pin(self.withdraw(tenure, why)),
            Phase::Decide => Box::pin(self.decide(context)),
            Phase::Decided => Box::pin(self.tell(tenure)),
        }
    }
}
