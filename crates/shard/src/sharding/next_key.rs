//! Whether a shard key fits the documents that are stored, and keeping it so until it is the key.
//!
//! A document with an array in the key has no place among the keys: it could be neither found nor moved. An
//! index that begins with the key knows whether there may be one (`catalog/multikey.rs`), and knows it exactly
//! while the collection's gate is held and nothing is under way. As in MongoDB, an index that has held
//! arrays is not trusted again, whether or not they are still there.
//!
//! ```text
//!   shardCollection            first ownership: looked at in the entry's turn; writes are checked behind it
//!   refineCollectionShardKey   _terndbSetNextKey on every owner ─► decided ─► _terndbSetPlacement
//! ```
//!
//! ⚑ A refined key is decided before the owners have it. From `_terndbSetNextKey {ns, uuid, key}` on, an owner
//! refuses what the next key has no place for; without `key` it stops doing so.

use super::ownership::Ownership;
use crate::Shard;
use crate::catalog::{Collection, Index};
use crate::command::arguments::{arguments, missing};
use crate::command::{Answer, Invocation, finish};
use model::bson::{Doc, DocBuf, ValueRef};
use model::ids::Uuid;
use model::shard_key::ShardKeyPattern;
use model::{Code, Error, Namespace};
use wire::Reply;

/// A shard key that a collection is about to get.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct NextKey {
    pub(crate) key: DocBuf,
    pub(crate) pattern: ShardKeyPattern,
}

impl NextKey {
    pub(super) fn parse(key: Doc<'_>) -> Result<Self, Error> {
        Ok(Self {
            key: key.to_owned(),
            pattern: ShardKeyPattern::parse(key)?,
        })
    }
}

impl Ownership {
    /// The next key as it is kept by an ownership under `pattern`: until it is the key.
    pub(super) fn next_key_of(&self, pattern: &ShardKeyPattern) -> Option<NextKey> {
        let next = self.next_key.as_ref();
        next.filter(|next| next.pattern != *pattern).cloned()
    }
}

/// Refuses a key that documents may have arrays in. The collection's gate is held exclusively, and everything
/// that was written is applied.
pub(super) fn check_no_arrays(
    collection: &Collection,
    pattern: &ShardKeyPattern,
) -> Result<(), Error> {
    let fields = pattern.fields();
    if fields.iter().all(|field| &*field.path == "_id") {
        return Ok(());
    }
    let begins_with_key = |index: &Index| {
        let mut key = index.definition.key_pattern().iter();
        fields.iter().all(|field| {
            key.next().is_some_and(|given| {
                let is_hashed = matches!(given.value(), ValueRef::String(_));
                given.key() == &*field.path && is_hashed == field.hashed
            })
        })
    };
    let holds_all = |index: &Index| !index.definition.sparse && index.definition.partial.is_none();
    let has_arrays = |index: &Index| {
        let paths = index.multikey_paths();
        (0..fields.len()).any(|at| !paths.field(at).is_empty())
    };
    let mut useful = (collection.indexes.iter())
        .filter(|index| index.is_ready() && holds_all(index) && begins_with_key(index))
        .peekable();
    let Some(first) = useful.peek().map(|index| index.definition.name.clone()) else {
        return Err(unfit("there is none that begins with it"));
    };
    match useful.any(|index| !has_arrays(index)) {
        true => Ok(()),
        false => Err(unfit(&format!("{first} has held arrays in it"))),
    }
}

fn unfit(why: &str) -> Error {
    Error::new(
        Code::OPERATION_FAILED,
        format!("couldn't find valid index for shard key: {why}"),
    )
}

pub(crate) async fn set_next_key(invocation: &Invocation<'_>) -> Answer {
    const NAME: &str = "_terndbSetNextKey";
    invocation.admin_only()?;
    let (mut namespace, mut uuid, mut next) = (None, None, None);
    for argument in arguments(NAME, invocation.request.body()) {
        match (argument.name(), argument.value()) {
            ("ns", _) => namespace = Some(Namespace::parse(argument.string()?)?),
            ("uuid", ValueRef::Binary { subtype: 4, bytes }) => {
                let bytes = bytes.try_into();
                uuid = Some(Uuid(bytes.map_err(|_| argument.wrong_type("UUID"))?));
            }
            ("uuid", _) => return Err(argument.wrong_type("UUID")),
            ("key", _) => next = Some(NextKey::parse(argument.doc()?)?),
            _ => return Err(argument.unknown()),
        }
    }
    let namespace = namespace.ok_or_else(|| missing(NAME, "ns"))?;
    let uuid = uuid.ok_or_else(|| missing(NAME, "uuid"))?;
    invocation
        .shard
        .put_next_key(&namespace, uuid, next)
        .await?;
    finish(Reply::writer())
}

impl Shard {
    /// What is not there, or has the key already, stays as it is: it may be told late.
    async fn put_next_key(
        &self,
        namespace: &Namespace,
        uuid: Uuid,
        next: Option<NextKey>,
    ) -> Result<(), Error> {
        let _ddl = self.ddl.lock().await;
        let meant = self.catalog.get(namespace).filter(|it| it.uuid == uuid);
        let Some(collection) = meant else {
            return Ok(());
        };
        let _gate = collection.gate.write().await;
        self.wait_for_proposed().await?;
        // A move may have changed it: moves hold the gate and not `ddl`.
        let Some(collection) = self.catalog.by_id(collection.id) else {
            return Ok(());
        };
        let Some(known) = collection.sharded_ownership() else {
            return Ok(());
        };
        let next_key = next.filter(|next| next.pattern != known.pattern);
        if next_key == known.next_key {
            return Ok(());
        }
        let is_empty = self.store.collection_counter(collection.id).items == 0;
        if let Some(next) = &next_key
            && !is_empty
        {
            check_no_arrays(&collection, &next.pattern)?;
        }
        let new = Ownership {
            next_key,
            ..Ownership::clone(known)
        };
        self.put_ownership(&collection, new, is_empty).await
    }
}
