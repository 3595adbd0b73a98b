//! The replica set that this shard is, as its clients see it.
//!
//! Everything a client can notice about the set is one value, a [`Topology`], behind a watch channel: the
//! configuration, and which part this member plays. Each change of it raises the version by one, and that
//! is what a `hello` that waits is waiting for.
//!
//! | file | part |
//! | --- | --- |
//! | `configuration/` | the document that names the members |
//! | `start.rs` | how a member begins; the first configuration |
//! | `identity.rs`, `waiting_room.rs` | which member a server is, and how it learns it |
//! | `membership.rs` | from the configuration to the members of the log |
//! | `returning.rs` | whether a member that is added again is the server that was removed |
//! | `installing.rs` | readers beside a state that is replaced |
//! | `takeover.rs` | who is wanted more as primary becomes it |
//! | `transport.rs`, `link.rs` | links to the other members |
//! | `primary.rs` | what a secondary asks of the primary |
//! | `cluster_time.rs` | `$clusterTime` and `operationTime`, in and out |
//!
//! The configuration changes through the log: the applier publishes it here.

pub(crate) mod cluster_time;
mod collection;
pub(crate) mod configuration;
mod fields;
mod identity;
mod installing;
mod link;
pub(crate) mod membership;
pub(crate) mod primary;
mod returning;
mod start;
pub(crate) mod takeover;
pub(crate) mod transport;
pub(crate) mod waiting_room;

use crate::command::default_concerns::ConcernDefaults;
pub(crate) use collection::ConfigurationCollection;
use configuration::{Configuration, MemberConfiguration};
use model::bson::{DocBuf, ObjectId};
use parking_lot::RwLock;
use replication::{Beginning, MemberId, Role, Term};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;
pub use transport::MemberNumber;
use transport::Peers;

/// How a shard takes part in its replica set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSetOptions {
    pub name: String,
    /// As clients and other members reach this one: host and port.
    pub host: String,
    /// Other members' hosts, and by which address this one reaches them where it is another one: an
    /// address translated on the way, a tunnel.
    pub detours: BTreeMap<String, String>,
}

/// Which member a shard is, and how it begins if it holds nothing yet.
#[derive(Clone, Debug, PartialEq)]
pub enum Membership {
    /// One of those with which the set begins.
    Founder {
        /// The configuration's id of this member.
        member: i32,
        /// Ids and hosts of all that vote, in the order of their ids. None: this one alone.
        founders: Vec<(i32, String)>,
        /// The configuration that was asked for, if it says more than that.
        configuration: Option<DocBuf>,
    },
    /// Added to a set that exists, by a member that has called.
    Newcomer {
        member: MemberNumber,
        caller: (MemberNumber, String),
    },
}

impl Membership {
    /// The only member of its set.
    pub const ALONE: Membership = Membership::Founder {
        member: 0,
        founders: Vec::new(),
        configuration: None,
    };

    pub(crate) fn member(&self) -> MemberId {
        match self {
            Membership::Founder { member, .. } => MemberNumber::first(*member).in_log(),
            Membership::Newcomer { member, .. } => member.in_log(),
        }
    }

    pub(crate) fn beginning(&self) -> Beginning {
        match self {
            Membership::Founder { founders, .. } if founders.is_empty() => {
                Beginning::Voters(vec![self.member()])
            }
            Membership::Founder { founders, .. } => {
                let mut voters: Vec<MemberId> = founders
                    .iter()
                    .map(|(id, _)| MemberNumber::first(*id).in_log())
                    .collect();
                voters.sort_unstable();
                Beginning::Voters(voters)
            }
            Membership::Newcomer { .. } => Beginning::Joining,
        }
    }
}

/// What clients can notice about the set.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    /// Counts the changes since the process began.
    pub(crate) version: i64,
    pub(crate) configuration: Option<Arc<Configuration>>,
    pub(crate) role: Role,
    /// The member is about to stop: until when it finishes what runs.
    pub(crate) quiesces_until: Option<Instant>,
}

pub(crate) struct ReplicaSet {
    membership: Membership,
    /// Set when the shard starts to serve.
    name: OnceLock<String>,
    host: OnceLock<String>,
    /// Whether the role is the primary's, for a look without a lock.
    is_primary: AtomicBool,
    /// Where the configuration's members are told to.
    peers: Arc<Peers>,
    topology: watch::Sender<Topology>,
    /// Concerns of commands that name none, where they are not the built-in ones.
    defaults: RwLock<Option<Arc<ConcernDefaults>>>,
    /// Held while the primary is asked for an entry.
    asking: tokio::sync::Mutex<()>,
    /// When the last applied entry was made, by the clock of the member that made it.
    applied_wall_ms: AtomicI64,
    pub(crate) installs: installing::Installs,
}

impl ReplicaSet {
    pub(crate) fn new(
        configuration: Option<Configuration>,
        defaults: Option<ConcernDefaults>,
        membership: Membership,
        peers: Arc<Peers>,
    ) -> Self {
        Self {
            membership,
            name: OnceLock::new(),
            host: OnceLock::new(),
            is_primary: AtomicBool::new(false),
            peers,
            topology: watch::Sender::new(Topology {
                version: 0,
                configuration: configuration.map(Arc::new),
                role: Role::Candidate { term: Term::new(0) },
                quiesces_until: None,
            }),
            defaults: RwLock::new(defaults.map(Arc::new)),
            asking: tokio::sync::Mutex::new(()),
            applied_wall_ms: AtomicI64::new(0),
            installs: installing::Installs::default(),
        }
    }

    pub(crate) fn host(&self) -> &str {
        self.host.get().map_or("", String::as_str)
    }

    pub(crate) fn membership(&self) -> &Membership {
        &self.membership
    }

    pub(crate) fn is_primary(&self) -> bool {
        self.is_primary.load(Ordering::Acquire)
    }

    /// The log has given this member another role.
    pub(crate) fn took_role(&self, role: Role) {
        self.topology.send_if_modified(|topology| {
            let changed = topology.role != role;
            if changed {
                topology.version += 1;
                topology.role = role;
                self.is_primary.store(role.is_leader(), Ordering::Release);
            }
            changed
        });
    }

    /// The member is about to stop.
    pub(crate) fn quiesces(&self, until: Instant) {
        self.topology.send_modify(|topology| {
            topology.version += 1;
            topology.quiesces_until = Some(until);
        });
    }

    pub(crate) fn topology(&self) -> Topology {
        self.topology.borrow().clone()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Topology> {
        self.topology.subscribe()
    }

    /// How long members wait to hear of a primary before they elect another.
    pub(crate) fn election_timeout(&self) -> Duration {
        let configuration = self.configuration();
        let settings = configuration.as_ref().map(|it| &it.settings);
        let ms = settings.map_or(configuration::ELECTION_TIMEOUT_MS, |settings| {
            settings.election_timeout_ms
        });
        Duration::from_millis(u64::try_from(ms).unwrap_or(1))
    }

    pub(crate) fn configuration(&self) -> Option<Arc<Configuration>> {
        self.topology.borrow().configuration.clone()
    }

    /// How much a member is wanted as primary. Without a configuration all are alike.
    pub(crate) fn rank(&self, member: MemberId) -> u64 {
        let topology = self.topology.borrow();
        let configuration = topology.configuration.as_ref();
        configuration
            .and_then(|now| now.member_in_log(member))
            .map_or(1, MemberConfiguration::rank)
    }

    pub(crate) fn defaults(&self) -> Option<Arc<ConcernDefaults>> {
        self.defaults.read().clone()
    }

    /// The log has applied other defaults.
    pub(crate) fn defaulted(&self, defaults: ConcernDefaults) {
        *self.defaults.write() = Some(Arc::new(defaults));
    }

    pub(crate) fn applied_wall_ms(&self) -> i64 {
        self.applied_wall_ms.load(Ordering::Relaxed)
    }

    pub(crate) fn applied_at(&self, wall_ms: i64) {
        self.applied_wall_ms.store(wall_ms, Ordering::Relaxed);
    }

    /// The state was installed from another member, and this was read from it.
    pub(crate) fn take_over(&self, loaded: &ReplicaSet) {
        *self.defaults.write() = loaded.defaults.read().clone();
        let configuration = loaded.topology.borrow().configuration.clone();
        if let Some(configuration) = &configuration {
            self.find_members(configuration);
        }
        self.topology.send_modify(|topology| {
            topology.version += 1;
            topology.configuration = configuration;
        });
    }

    /// Tells the links where the members are.
    fn find_members(&self, configuration: &Configuration) {
        for member in &configuration.members {
            self.peers
                .set_host(configuration.in_log(member), &member.host);
        }
    }

    /// The log has applied another configuration.
    pub(crate) fn configured(&self, configuration: Configuration) {
        self.find_members(&configuration);
        self.topology.send_modify(|topology| {
            topology.version += 1;
            topology.configuration = Some(Arc::new(configuration));
        });
    }
}

/// What drivers tell two primaries apart by: the later term has the greater id.
pub(crate) fn election_id(term: Term) -> ObjectId {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&[0x7F, 0xFF, 0xFF, 0xFF]);
    bytes[4..].copy_from_slice(&term.get().to_be_bytes());
    ObjectId(bytes)
}
