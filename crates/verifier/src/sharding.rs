//! Shard keys, as `config.collections` has them.
//!
//! They are compared where both sides are sharded clusters; elsewhere there is nothing to compare. A
//! cluster whose `config` database the user may not read makes them unverified.

use crate::cluster::Cluster;
use crate::error::VerifyError;
use crate::metadata::{MetadataMismatch, same_setting, show};
use crate::namespace::Namespace;
use crate::report::Unverified;
use crate::topology::Topology;
use bson::{Bson, Document, doc};
use std::collections::HashMap;

/// The keys of sharded collections by their names, with whether they are unique.
type ShardKeys = HashMap<String, Document>;

/// The shard keys of both sides, if they can be compared.
#[derive(Debug, Default)]
pub struct BothShardKeys {
    keys: Option<(ShardKeys, ShardKeys)>,
    pub unverified: Option<Unverified>,
}

impl BothShardKeys {
    pub async fn read(
        source: &Cluster,
        destination: &Cluster,
    ) -> Result<BothShardKeys, VerifyError> {
        let sharded = |cluster: &Cluster| cluster.topology == Topology::Sharded;
        if !sharded(source) || !sharded(destination) {
            return Ok(BothShardKeys::default());
        }
        match tokio::try_join!(shard_keys(source), shard_keys(destination)) {
            Ok(keys) => Ok(BothShardKeys {
                keys: Some(keys),
                unverified: None,
            }),
            Err(error @ VerifyError::Privilege { .. }) => Ok(BothShardKeys {
                keys: None,
                unverified: Some(Unverified {
                    namespace: "shard keys".to_owned(),
                    why: error.to_string(),
                }),
            }),
            Err(error) => Err(error),
        }
    }

    /// The difference between the shard keys of a pair, if there is one.
    pub fn compare(&self, name: &Namespace, destination: &Namespace) -> Option<MetadataMismatch> {
        let (source_keys, destination_keys) = self.keys.as_ref()?;
        let one = source_keys.get(&name.to_string());
        let other = destination_keys.get(&destination.to_string());
        let same = match (one, other) {
            (None, None) => true,
            (Some(one), Some(other)) => {
                same_setting(&Bson::Document(one.clone()), &Bson::Document(other.clone()))
            }
            (_, _) => false,
        };
        let shown = |key: Option<&Document>| key.map(|key| show(&Bson::Document(key.clone())));
        (!same).then(|| MetadataMismatch {
            namespace: name.to_string(),
            what: "shard key".to_owned(),
            source: shown(one),
            destination: shown(other),
        })
    }
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
                unverified: None,
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
