//! Shard keys, as `config.collections` has them.
//!
//! They are compared where both sides are sharded clusters; elsewhere there is nothing to compare. A
//! cluster whose `config` database the user may not read makes them unverified. Where one side is
//! sharded its keys still tell documents apart that share an `_id`, if they can be read.

use crate::cluster::Cluster;
use crate::error::VerifyError;
use crate::merge::Side;
use crate::metadata::{MetadataMismatch, Numbers, document, same_setting, show};
use crate::namespace::Namespace;
use crate::report::Unverified;
use crate::topology::Topology;
use bson::{Document, doc};
use std::collections::HashMap;

/// The keys of sharded collections by their names, with whether they are unique.
type ShardKeys = HashMap<String, Document>;

/// The shard keys of both sides, if they can be compared.
#[derive(Debug, Default)]
pub struct BothShardKeys {
    keys: Option<(ShardKeys, ShardKeys)>,
    /// Of the one side that is sharded.
    single: Option<(Side, ShardKeys)>,
    pub unverified: Option<Unverified>,
}

impl BothShardKeys {
    pub async fn read(
        source: &Cluster,
        destination: &Cluster,
    ) -> Result<BothShardKeys, VerifyError> {
        let sharded = |cluster: &Cluster| cluster.topology == Topology::Sharded;
        let single = match (sharded(source), sharded(destination)) {
            (true, true) => None,
            (true, false) => Some(source),
            (false, true) => Some(destination),
            (false, false) => return Ok(BothShardKeys::default()),
        };
        if let Some(cluster) = single {
            let keys = match shard_keys(cluster).await {
                // They are good to have, and nothing depends on them.
                Err(VerifyError::Privilege { .. }) => None,
                read => Some((cluster.side, read?)),
            };
            return Ok(BothShardKeys {
                single: keys,
                ..BothShardKeys::default()
            });
        }
        match tokio::try_join!(shard_keys(source), shard_keys(destination)) {
            Ok(keys) => Ok(BothShardKeys {
                keys: Some(keys),
                ..BothShardKeys::default()
            }),
            Err(error @ VerifyError::Privilege { .. }) => Ok(BothShardKeys {
                unverified: Some(Unverified {
                    namespace: "shard keys".to_owned(),
                    why: error.to_string(),
                }),
                ..BothShardKeys::default()
            }),
            Err(error) => Err(error),
        }
    }

    /// The fields of the shard key of a pair, of the source's if both have one.
    pub fn fields(&self, name: &Namespace, destination: &Namespace) -> Vec<String> {
        let key = match (&self.keys, &self.single) {
            (Some((source_keys, destination_keys)), _) => source_keys
                .get(&name.to_string())
                .or_else(|| destination_keys.get(&destination.to_string())),
            (None, Some((Side::Source, keys))) => keys.get(&name.to_string()),
            (None, Some((Side::Destination, keys))) => keys.get(&destination.to_string()),
            (None, None) => None,
        };
        let fields = key.and_then(|key| key.get_document("key").ok());
        fields.map_or_else(Vec::new, |fields| fields.keys().cloned().collect())
    }

    /// The difference between the shard keys of a pair, if there is one.
    pub fn compare(&self, name: &Namespace, destination: &Namespace) -> Option<MetadataMismatch> {
        let (source_keys, destination_keys) = self.keys.as_ref()?;
        let one = source_keys.get(&name.to_string());
        let other = destination_keys.get(&destination.to_string());
        let same = match (one, other) {
            (None, None) => true,
            (Some(one), Some(other)) => {
                let (one, other) = (bytes(one), bytes(other));
                same_setting(document(&one), document(&other), Numbers::ByValue)
            }
            (_, _) => false,
        };
        let shown = |key: Option<&Document>| key.map(|key| show(document(&bytes(key))));
        (!same).then(|| MetadataMismatch {
            namespace: name.to_string(),
            what: "shard key".to_owned(),
            source: shown(one),
            destination: shown(other),
        })
    }
}

fn bytes(key: &Document) -> Vec<u8> {
    key.to_vec().expect("a document of ours")
}

async fn shard_keys(cluster: &Cluster) -> Result<ShardKeys, VerifyError> {
    let command = doc! {
        "find": "collections",
        "filter": {"dropped": {"$ne": true}},
        "projection": {"key": 1, "unique": 1},
    };
    let action = "read the shard keys in config.collections";
    let listed = cluster.drain("config", command, action).await?;
    let keys = listed.into_iter().filter_map(|entry| {
        let name = entry.get_str("_id").ok()?.to_owned();
        let key = entry.get_document("key").ok()?.clone();
        let unique = entry.get_bool("unique").unwrap_or(false);
        Some((name, doc! {"key": key, "unique": unique}))
    });
    Ok(keys.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_compared_by_fields_and_order() {
        let name = Namespace::new("d", "c");
        let keys = |key: Option<Document>| {
            let key = key.map(|key| doc! {"key": key, "unique": false});
            key.map(|key| ("d.c".to_owned(), key)).into_iter().collect()
        };
        let check = |one: Option<Document>, other: Option<Document>, same: bool| {
            let both = BothShardKeys {
                keys: Some((keys(one.clone()), keys(other.clone()))),
                ..BothShardKeys::default()
            };
            let found = both.compare(&name, &name);
            assert_eq!(found.is_none(), same, "{one:?} {other:?}");
        };
        check(None, None, true);
        check(Some(doc! {"a": 1}), Some(doc! {"a": 1.0}), true);
        check(Some(doc! {"a": 1}), Some(doc! {"a": "hashed"}), false);
        check(
            Some(doc! {"a": 1, "b": 1}),
            Some(doc! {"b": 1, "a": 1}),
            false,
        );
        check(Some(doc! {"a": 1}), None, false);
        assert!(BothShardKeys::default().compare(&name, &name).is_none());
    }
}
