//! Where sessions are kept: in this replica set, or in the sharded collection of its cluster.
//!
//! ```text
//!   a set of its own     config.system.sessions is an ordinary collection here; the leader makes and writes it
//!   a cluster            it is sharded over the shards; every member of a shard or of the config server
//!                        writes and asks through routing; the config server's primary makes it
//! ```
//!
//! In a cluster the config server says how long sessions live, and every member of it goes by that.
//! ⚑ While the collection is not there, or cannot be asked, nobody takes a session for gone.
//!
//! ⚑ A set that becomes a shard drops its own collection of sessions afterwards. A refresh that began before
//! would make it again, and nobody would look at it: so becoming a shard is answered when no such refresh is
//! under way any more ([`SessionHome::of_its_own`]), and one that has waited for another looks again.

use super::SessionId;
use crate::Shard;
use cluster::sessions::{self, PORTION};
use model::bson::{DocBuf, DocWriter, ValueRef};
use model::{Code, Error, Namespace};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use wire::{Endpoint, Request};

/// How long one answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// The collection of a cluster, as one of its members reaches it.
pub(crate) struct ClusterSessions {
    config: Arc<dyn Endpoint>,
    /// A router of this member's own.
    routed: Arc<dyn Endpoint>,
    /// Whether this member is one of the config server.
    is_config: bool,
}

#[derive(Default)]
pub(crate) struct SessionHome {
    cluster: OnceLock<ClusterSessions>,
    /// What the config server said last; zero before.
    timeout_minutes: AtomicI32,
    /// Held by who writes the collection of a set of its own.
    pub(crate) of_its_own: tokio::sync::Mutex<()>,
}

impl Shard {
    /// Says that sessions are kept in a cluster, once this is a shard of it (`is_config`: at once).
    /// The first word counts.
    pub fn keep_sessions_in_cluster(
        &self,
        config: Arc<dyn Endpoint>,
        routed: Arc<dyn Endpoint>,
        is_config: bool,
    ) {
        let _ = self.session_home.cluster.set(ClusterSessions {
            config,
            routed,
            is_config,
        });
    }

    pub(super) fn cluster_sessions(&self) -> Option<&ClusterSessions> {
        let cluster = self.session_home.cluster.get()?;
        (cluster.is_config || self.sharding.is_shard()).then_some(cluster)
    }

    /// After which time without use sessions expire.
    pub(crate) fn session_timeout_minutes(&self) -> i32 {
        let told = self.session_home.timeout_minutes.load(Ordering::Relaxed);
        match self.cluster_sessions() {
            Some(cluster) if !cluster.is_config && told > 0 => told,
            Some(_) | None => self.parameters.current().session_timeout_minutes,
        }
    }

    pub(super) fn session_lifetime_ms(&self) -> i64 {
        i64::from(self.session_timeout_minutes()) * 60_000
    }

    /// Makes sure that the collection of the cluster is there; the config server's primary makes it.
    pub(super) async fn check_cluster_sessions(
        &self,
        cluster: &ClusterSessions,
    ) -> Result<(), Error> {
        let mut question = DocWriter::new().with("_configsvrSessionsCollection", 1);
        if cluster.is_config && self.log.leading().is_ok() {
            question.append("setUp", true);
        }
        let question = question.with("$db", "admin");
        let told = self.ask_about_sessions(&*cluster.config, question).await?;
        if let Some(ValueRef::Int32(minutes @ 1..)) = told.get("timeoutMinutes") {
            let known = &self.session_home.timeout_minutes;
            known.store(minutes, Ordering::Relaxed);
        }
        match told.get("exists") {
            Some(ValueRef::Boolean(true)) => Ok(()),
            _ => Err(Error::new(
                Code::NAMESPACE_NOT_SHARDED,
                format!("Collection {} is not sharded", sessions::NAMESPACE),
            )),
        }
    }

    /// Runs a command on the collection of the cluster.
    pub(super) async fn run_routed(
        &self,
        cluster: &ClusterSessions,
        command: DocWriter,
    ) -> Result<DocBuf, Error> {
        let command = command.with("$db", sessions::DATABASE);
        self.ask_about_sessions(&*cluster.routed, command).await
    }

    async fn ask_about_sessions(
        &self,
        whom: &dyn Endpoint,
        command: DocWriter,
    ) -> Result<DocBuf, Error> {
        let unreachable = |why: String| Error::new(Code::HOST_UNREACHABLE, why);
        let request = Request::from_parts(command.finish(), Vec::new())
            .map_err(|fault| Error::new(Code::INTERNAL_ERROR, fault.to_string()))?;
        let answered = tokio::select! {
            answered = whom.call(request) => answered,
            () = tokio::time::sleep(ANSWER_LIMIT) => {
                return Err(unreachable("the sessions collection does not answer".to_owned()));
            }
            () = self.shutdown_begun() => {
                return Err(Error::new(Code::INTERRUPTED_AT_SHUTDOWN, "stopping"));
            }
        };
        let reply = answered.map_err(|lost| unreachable(lost.to_string()))?;
        super::refresh::check(reply.document())?;
        Ok(reply.into_document())
    }

    /// Which of these the sessions collection does not have.
    pub(super) async fn sessions_not_kept(
        &self,
        asked: &[SessionId],
    ) -> Result<BTreeSet<SessionId>, Error> {
        let mut missing: BTreeSet<SessionId> = asked.iter().copied().collect();
        let Some(cluster) = self.cluster_sessions() else {
            for id in asked {
                if self.is_session_stored(*id)? {
                    missing.remove(id);
                }
            }
            return Ok(missing);
        };
        if missing.is_empty() {
            return Ok(missing);
        }
        self.check_cluster_sessions(cluster).await?;
        for portion in asked.chunks(PORTION) {
            let reply = self.run_routed(cluster, sessions::look_up(portion)).await?;
            let found = sessions::found(reply.as_doc()).ok_or_else(|| {
                Error::new(
                    Code::INTERNAL_ERROR,
                    "an answer about sessions is malformed",
                )
            })?;
            missing.retain(|id| !found.contains(id));
        }
        Ok(missing)
    }

    /// Whether `config.system.sessions` of this set has a session.
    pub(super) fn is_session_stored(&self, id: SessionId) -> Result<bool, Error> {
        let Some(collection) = self.catalog.get(&namespace()?) else {
            return Ok(false);
        };
        let mut key = DocWriter::new();
        id.append_fields(&mut key);
        let key = key.finish();
        let key = model::key::RecordKey::from_id(ValueRef::Document(key.as_doc()));
        let stored = self.store.latest(collection.id, key.as_bytes());
        Ok(stored.map_err(crate::error::from_storage)?.is_some())
    }
}

pub(super) fn namespace() -> Result<Namespace, Error> {
    Namespace::new(sessions::DATABASE, sessions::COLLECTION)
}
