//! Whether both sides are the same cluster, whatever their URIs say.
//!
//! A host has many names, and a replica set as many URIs as members. Told apart by, whichever both
//! sides have: the process that greets (`topologyVersion.processId`), the replica set's id (if the
//! user may see its configuration), its name and members as the driver finds them, and the id of a
//! sharded cluster (if the user may read `config`). What a user may not see is left out: an
//! identity that is not noticed costs a run that proves nothing, and says so to nobody but its user.
//! Files that were copied bring their ids along: two processes whose sets, or shards, have no server in common
//! are two clusters, whatever ids they have.
//!
//! A cluster may be compared with itself as long as `--map` gives everything another name there.

use crate::cluster::Cluster;
use crate::error::VerifyError;
use crate::settings::Settings;
use crate::survey::Survey;
use crate::topology::Topology;
use bson::{Bson, Document, doc};
use std::collections::BTreeSet;

/// What is known of who a cluster is.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Identity {
    process: Option<Bson>,
    set_id: Option<Bson>,
    /// The set's name and its members; none if the URI wants one member only.
    members: Option<(Bson, Bson)>,
    cluster_id: Option<Bson>,
    /// All servers that it says it has: its members, or those of its shards.
    hosts: BTreeSet<String>,
}

impl Identity {
    pub async fn ask(cluster: &Cluster) -> Result<Identity, VerifyError> {
        let greeting = doc! {"hello": 1};
        let hello = cluster
            .command("admin", greeting, "tell what it is")
            .await?;
        // Both need privileges that a run does not, so that a refusal means nothing.
        let silent = "tell its identity";
        let mut identity = Identity::of_greeting(&hello, cluster.is_direct());
        match cluster.topology {
            Topology::Standalone => {}
            Topology::ReplicaSet => {
                let command = doc! {"replSetGetConfig": 1};
                let reply = cluster.command("admin", command, silent).await;
                identity.set_id = reply.ok().and_then(|reply| {
                    let settings = reply.get_document("config").ok()?.get_document("settings");
                    settings.ok()?.get("replicaSetId").cloned()
                });
            }
            Topology::Sharded => {
                let command = doc! {"find": "version", "limit": 1};
                let found = cluster.drain("config", command, silent).await;
                identity.cluster_id = found
                    .ok()
                    .and_then(|found| found.first()?.get("clusterId").cloned());
                for (_, hosts) in cluster.shards().await.unwrap_or_default() {
                    let members = hosts.split_once('/').map_or(hosts.as_str(), |(_, all)| all);
                    identity.hosts.extend(members.split(',').map(str::to_owned));
                }
            }
        }
        Ok(identity)
    }

    fn of_greeting(hello: &Document, direct: bool) -> Identity {
        let version = hello.get_document("topologyVersion").ok();
        let set = hello
            .get("setName")
            .cloned()
            .zip(hello.get("hosts").cloned());
        let hosts = hello.get_array("hosts").into_iter().flatten();
        let hosts = hosts.filter_map(|host| host.as_str().map(str::to_owned));
        Identity {
            hosts: hosts.collect(),
            process: version.and_then(|version| version.get("processId").cloned()),
            members: set.filter(|_| !direct),
            ..Identity::default()
        }
    }

    pub fn is_same(&self, other: &Identity) -> bool {
        fn agree<T: PartialEq>(one: &Option<T>, other: &Option<T>) -> bool {
            one.is_some() && one == other
        }
        if agree(&self.process, &other.process) {
            return true;
        }
        // A copy of another's files has its ids, and servers of its own.
        let differ = |one: &BTreeSet<String>, other: &BTreeSet<String>| {
            !one.is_empty() && !other.is_empty() && one.is_disjoint(other)
        };
        if differ(&self.hosts, &other.hosts) {
            return false;
        }
        agree(&self.set_id, &other.set_id)
            || agree(&self.members, &other.members)
            || agree(&self.cluster_id, &other.cluster_id)
    }
}

impl Survey {
    /// Refuses to compare anything with itself.
    pub fn check_distinct_sides(&self, settings: &Settings) -> Result<(), VerifyError> {
        let mut names = self.names();
        match names.find(|name| settings.mapping.to_destination(name) == **name) {
            None => Ok(()),
            Some(name) => Err(VerifyError::settings(format!(
                "--from and --to are the same cluster, and {name} would be compared with itself: give two clusters, or name with --include only what --map gives another name"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_known_by_any_name() {
        let greeting = |process: i32, set: &str, hosts: &[&str]| {
            doc! {"topologyVersion": {"processId": process}, "setName": set, "hosts": hosts}
        };
        let check = |one: Document, other: Document, direct: bool, expected: bool| {
            let same =
                Identity::of_greeting(&one, direct).is_same(&Identity::of_greeting(&other, direct));
            assert_eq!(same, expected, "{one} {other}");
        };
        let (a, b) = (["a:1", "b:1"], ["a:1"]);
        check(greeting(1, "r", &a), greeting(1, "r", &a), true, true);
        check(greeting(1, "r", &a), greeting(2, "r", &a), false, true);
        // Two sets may have been given the same names, behind tunnels.
        check(greeting(1, "r", &a), greeting(2, "r", &a), true, false);
        check(greeting(1, "r", &a), greeting(2, "r", &b), false, false);
        check(greeting(1, "r", &a), greeting(2, "s", &a), false, false);
        check(doc! {}, doc! {}, false, false);
        let of_cluster = |id: i32| Identity {
            cluster_id: Some(id.into()),
            ..Identity::default()
        };
        assert!(of_cluster(1).is_same(&of_cluster(1)));
        let copied = |process: i32, hosts: &[&str], direct: bool| Identity {
            set_id: Some(7.into()),
            cluster_id: Some(7.into()),
            ..Identity::of_greeting(&greeting(process, "r", hosts), direct)
        };
        for direct in [true, false] {
            let one = copied(1, &["a:1", "b:1"], direct);
            assert!(!one.is_same(&copied(2, &["c:1"], direct)));
            assert!(one.is_same(&copied(2, &["b:1", "c:1"], direct)));
            assert!(one.is_same(&copied(1, &["c:1"], direct)));
        }
        assert!(!of_cluster(1).is_same(&of_cluster(2)));
    }
}
