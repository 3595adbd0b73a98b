//! How a member begins: alone, with others that begin at the same time, or as a newcomer.
//!
//! Three phases: the components (`Shard::open_member`: engine, log, links), the state from disk and log
//! (`Shard::join_replica_set`: name and address), and what only a primary does (`primary_services.rs`).
//!
//! A shard that was never configured becomes a set of one, so that whoever starts a server has one to
//! write to. The only member of a set may come back under another address (another port, say): it is
//! certain to be the same member, so the configuration follows it. With several members the
//! configuration decides, and a host that it does not name is not a member. The first configuration of
//! several members is written by whoever of them is elected first.

use super::configuration::{CONFIGURATION_KEY, Configuration, read_host};
use super::transport::{Absence, Introduction, MemberNumber};
use super::{Membership, ReplicaSetOptions};
use crate::Shard;
use model::{Code, Error};
use replication::{MemberId, Term};
use std::sync::Arc;
use wire::{ConnectionInfo, Reply, Request};

impl Shard {
    /// Takes part in the replica set under this name and address. Called once, before serving.
    pub async fn join_replica_set(
        self: &Arc<Self>,
        options: &ReplicaSetOptions,
    ) -> Result<(), Error> {
        let host = read_host(&options.host)?;
        // A second call would be a mistake of the caller, and has no effect.
        let _ = self.replica_set.host.set(host.clone());
        let _ = self.replica_set.name.set(options.name.clone());
        self.peers.set_detours(&options.detours);
        let stored = self.replica_set.configuration();
        if let Some(stored) = stored.as_deref()
            && stored.name != options.name
        {
            return Err(Error::new(
                Code::INVALID_REPLICA_SET_CONFIG,
                format!(
                    "the data belongs to the replica set {:?}, not to {:?}",
                    stored.name, options.name
                ),
            ));
        }
        self.introduce_peers();
        let members = self.log.members();
        if members.configuration.is_sole(members.me) && self.log.role().borrow().is_leader() {
            self.prepare_to_lead().await?;
            self.follow_address(host).await?;
        }
        Ok(())
    }

    /// What a new primary does before it serves.
    pub(crate) async fn prepare_to_lead(&self) -> Result<(), Error> {
        self.found_configuration().await?;
        self.discard_unfinished_builds().await
    }

    async fn follow_address(&self, host: String) -> Result<(), Error> {
        let term = self.log.leading().map_err(crate::error::from_log)?;
        let Some(stored) = self.replica_set.configuration() else {
            return Ok(());
        };
        match stored.members.as_slice() {
            [only] if only.host != host => {
                let mut moved = Configuration::clone(&stored);
                moved.version = moved.version.saturating_add(1);
                moved.members[0].host = host;
                self.store_configuration(term, moved).await
            }
            _ => Ok(()),
        }
    }

    /// Writes the first configuration if there is none, and the members' addresses if they have been
    /// given new ones all together.
    pub(crate) async fn found_configuration(&self) -> Result<(), Error> {
        let _ddl = self.ddl.lock().await;
        let term = self.log.leading().map_err(crate::error::from_log)?;
        let Some(name) = self.replica_set.name.get() else {
            return Ok(());
        };
        let stored = self.replica_set.configuration();
        let next = match (stored.as_deref(), self.replica_set.membership()) {
            // Whoever invited it has one.
            (_, Membership::Newcomer { .. }) => None,
            (
                Some(stored),
                Membership::Founder {
                    founders,
                    configuration: None,
                    ..
                },
            ) => moved(stored, founders),
            (Some(_), Membership::Founder { .. }) => None,
            (
                None,
                Membership::Founder {
                    founders,
                    configuration,
                    ..
                },
            ) => Some(match configuration {
                Some(first) => Configuration::from_document(first.as_doc(), self.new_object_id())?,
                None => {
                    let mut hosts: Vec<String> =
                        founders.iter().map(|(_, host)| host.clone()).collect();
                    if hosts.is_empty() {
                        hosts.push(self.replica_set.host().to_owned());
                    }
                    Configuration::first(name, &hosts, self.new_object_id())
                }
            }),
        };
        match next {
            Some(next) => self.store_configuration(term, next).await,
            None => Ok(()),
        }
    }

    /// Tells the links what to say to the other members.
    fn introduce_peers(self: &Arc<Self>) {
        let (shard, reported) = (Arc::downgrade(self), Arc::downgrade(self));
        self.peers.introduce_with(
            Box::new(move |to| shard.upgrade()?.introduction_to(to)),
            Box::new(move |member, absence| {
                let Some(shard) = reported.upgrade() else {
                    return;
                };
                match absence {
                    Absence::Unreachable => shard.log.unreachable(member),
                    Absence::Gone => shard.log.gone(member),
                }
            }),
        );
        if let Some(configuration) = self.replica_set.configuration() {
            self.replica_set.find_members(&configuration);
        }
    }

    /// What a link says to a member when it begins.
    pub(crate) fn introduction_to(&self, to: MemberId) -> Option<Introduction> {
        let members = self.log.members();
        let number = MemberNumber::from_log(to);
        let configuration = self.replica_set.configuration();
        // ⚑ Nobody is begun in a life that is over, as long as links to it remain.
        let may_begin = configuration.is_some_and(|now| {
            now.member_in_log(to).is_some() && !now.lives.is_returned(number.id)
        });
        let newcomer = may_begin
            && !members.configuration.voters.contains(&to)
            && !members.configuration.outgoing.contains(&to);
        self.introduction(number, newcomer)
    }

    /// What this member says when it calls another one.
    pub(super) fn introduction(&self, to: MemberNumber, newcomer: bool) -> Option<Introduction> {
        let configuration = self.replica_set.configuration();
        Some(Introduction {
            set: self.replica_set.name.get()?.clone(),
            replica_set_id: configuration.map(|now| now.settings.replica_set_id),
            to,
            from: MemberNumber::from_log(self.log.members().me),
            host: self.replica_set.host().to_owned(),
            newcomer,
        })
    }

    /// Packets of the log from another member.
    pub(crate) fn receive(
        &self,
        connection: &ConnectionInfo,
        request: &Request,
    ) -> Result<Reply, Error> {
        let incoming = self.callers.incoming(connection);
        incoming.receive(request, |packet| {
            if let Err(error) = self.log.receive(packet) {
                tracing::debug!(%error, "a packet is not taken");
            }
        })?;
        Ok(Reply::ok())
    }

    /// Another member has called; whether it is right about whom.
    pub(crate) fn answer_call(&self, request: &Request) -> Result<Reply, Error> {
        let caller = &Introduction::parse(request.body())?;
        let members = self.log.members();
        let refuse = |message: &str| Err(Error::new(Code::INVALID_REPLICA_SET_CONFIG, message));
        if self.replica_set.name.get() != Some(&caller.set) {
            return refuse("this server belongs to another replica set");
        }
        if caller.to.in_log() != members.me {
            return refuse("this server is another member");
        }
        let known = self.replica_set.configuration();
        let known = known.map(|known| known.settings.replica_set_id);
        if let (Some(known), Some(named)) = (known, caller.replica_set_id)
            && known != named
        {
            return refuse("this server belongs to another replica set of the same name");
        }
        let from = caller.from.in_log();
        if !self.peers.knows(from) {
            self.peers.set_host(from, &caller.host);
        }
        Ok(Reply::ok())
    }

    /// Makes a configuration the one that holds, through the log. The caller holds `ddl`, and led in `term` when
    /// it read the configuration that this one follows.
    ///
    /// ⚑ Whoever has lost that term meanwhile stores nothing: another primary may have stored a configuration that
    /// this one knows nothing of, and would undo, together with the lives that it gave.
    pub(crate) async fn store_configuration(
        &self,
        term: Term,
        mut configuration: Configuration,
    ) -> Result<(), Error> {
        configuration.term = i64::try_from(term.get()).unwrap_or(i64::MAX);
        let document = configuration.to_stored();
        self.propose_catalog_in(term, |encoder| {
            encoder.put_meta(CONFIGURATION_KEY, document.as_bytes());
        })
        .await
    }
}

/// The configuration with the addresses that the members have now, if any differs.
fn moved(stored: &Configuration, founders: &[(i32, String)]) -> Option<Configuration> {
    let mut next = stored.clone();
    for (id, host) in founders {
        let member = next.members.iter_mut().find(|member| member.id == *id)?;
        member.host.clone_from(host);
    }
    next.version = next.version.saturating_add(1);
    (next.members != stored.members).then_some(next)
}
