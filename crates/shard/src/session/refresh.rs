//! Refresh: what the cache knows goes to `config.system.sessions`, and what is
//! no longer there goes from the cache.
//!
//! 1. Sessions used here since the last refresh are upserted, with the time of now;
//!    so are sessions with an operation under way.
//! 2. Sessions that were ended are removed.
//! 3. Sessions of the cache that the collection no longer has have expired.
//! 4. Cursors of ended and expired sessions are closed.
//!
//! The collection is an ordinary one, written through ordinary commands; an index
//! on `lastUse` lets its documents expire. In a cluster it is sharded, and every member writes it through
//! routing (`home.rs`). In a set of its own only the leader writes it: the others tell it which
//! sessions they have seen and which were ended, and it takes them for its own. If it cannot be
//! written, or the leader is not reached, ended sessions are kept for the next time and nothing is
//! taken for expired.
//!
//! In such a set, what a follower has told the leader is in the collection one refresh of the leader later. So its
//! cache forgets only what was not used for as long as sessions live.

use super::SessionId;
use super::cache::JobStatistics;
use super::home::{ClusterSessions, namespace};
use crate::{Shard, command};
use cluster::sessions::{self, INDEX, PORTION, removals, upserts};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::{Code, Error};
use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{ConnectionInfo, Request};

/// Runs until a shutdown begins.
pub(crate) async fn run(shard: &Arc<Shard>) {
    let settings = shard.parameters.current();
    if settings.session_refresh_disabled {
        return;
    }
    let interval_ms = u64::try_from(settings.session_refresh_ms).unwrap_or(1);
    let interval = Duration::from_millis(interval_ms.max(1));
    loop {
        tokio::select! {
            () = shard.shutdown_begun() => return,
            () = tokio::time::sleep(interval) => {}
        }
        for (done, outcome) in [
            ("refreshed", shard.refresh_sessions().await),
            ("reaped", shard.reap_sessions().await.map(|_| ())),
        ] {
            match outcome {
                Ok(()) => {}
                // The config server makes it before long.
                Err(error) if error.code == Code::NAMESPACE_NOT_SHARDED => {
                    tracing::info!("sessions were not {done}: {error}");
                }
                Err(error) => tracing::warn!("sessions were not {done}: {error}"),
            }
        }
    }
}

impl Shard {
    pub(crate) async fn refresh_sessions(self: &Arc<Self>) -> Result<(), Error> {
        let began = Instant::now();
        let now_ms = self.clock.now_ms();
        let ended = self.session_cache.take_ended();
        let cluster = self.cluster_sessions();
        let writes = cluster.is_some() || self.log.leading().is_ok();
        let mut used = self.sessions_to_refresh(&ended);
        if !writes {
            used.extend(self.sessions_not_stored(&ended, now_ms)?);
        }
        let written = match (cluster, writes) {
            (Some(cluster), _) => {
                self.write_cluster_sessions(cluster, &used, &ended, now_ms)
                    .await
            }
            (None, true) => self.write_sessions(&used, &ended, now_ms).await,
            (None, false) => self.tell_primary(&used, &ended).await,
        };
        if let Err(error) = written {
            for id in ended {
                self.session_cache.end(id);
            }
            return Err(error);
        }
        let mut gone = BTreeSet::new();
        for id in &ended {
            self.session_cache.remove(*id, now_ms);
            gone.insert(*id);
        }
        let unused_since_ms = match writes {
            // What came while this was written belongs to the next time.
            true => now_ms - 1,
            false => now_ms.saturating_sub(self.session_lifetime_ms()),
        };
        gone.extend(self.remove_expired(&used, unused_since_ms).await?);
        let closed = self.cursors.kill_of_sessions(&|id| gone.contains(id));
        self.session_cache.refreshed_at(now_ms);
        let mut statistics = self.session_cache.statistics.lock();
        statistics.refresh = JobStatistics {
            count: statistics.refresh.count + 1,
            duration_ms: milliseconds(began.elapsed()),
            began_ms: now_ms,
        };
        statistics.refreshed = count(used.len());
        statistics.ended = count(ended.len());
        statistics.cursors_closed = count(closed);
        Ok(())
    }

    fn sessions_to_refresh(&self, ended: &BTreeSet<SessionId>) -> BTreeSet<SessionId> {
        let since = self.session_cache.last_refresh_ms();
        let mut used: BTreeSet<SessionId> = self
            .session_cache
            .all()
            .into_iter()
            .filter(|(_, last_use)| *last_use >= since)
            .map(|(id, _)| id)
            .collect();
        let running = self.operations.all();
        used.extend(running.iter().filter_map(|operation| operation.session()));
        used.retain(|id| !ended.contains(id));
        used
    }

    /// A member that does not lead has the leader write what it has seen.
    async fn tell_primary(
        &self,
        used: &BTreeSet<SessionId>,
        ended: &BTreeSet<SessionId>,
    ) -> Result<(), Error> {
        for (command, sessions) in [("refreshSessions", used), ("endSessions", ended)] {
            let sessions: Vec<SessionId> = sessions.iter().copied().collect();
            for portion in sessions.chunks(PORTION) {
                let mut writer = DocWriter::new();
                writer.begin_array(command);
                for id in portion {
                    writer.push_document();
                    id.append_fields(&mut writer);
                    writer.end();
                }
                writer.end().append("$db", "admin");
                self.ask_primary(&writer.finish()).await?;
            }
        }
        Ok(())
    }

    /// Sessions in use here that the leader has not written yet: it may have failed before it did.
    fn sessions_not_stored(
        &self,
        ended: &BTreeSet<SessionId>,
        now_ms: i64,
    ) -> Result<Vec<SessionId>, Error> {
        let lifetime_ms = self.session_lifetime_ms();
        let mut found = Vec::new();
        for (id, last_use) in self.session_cache.all() {
            let is_alive = last_use > now_ms.saturating_sub(lifetime_ms);
            if is_alive && !ended.contains(&id) && !self.is_session_stored(id)? {
                found.push(id);
            }
        }
        Ok(found)
    }

    async fn write_sessions(
        self: &Arc<Self>,
        used: &BTreeSet<SessionId>,
        ended: &BTreeSet<SessionId>,
        now_ms: i64,
    ) -> Result<(), Error> {
        if used.is_empty() && ended.is_empty() {
            return Ok(());
        }
        let _one = self.session_home.of_its_own.lock().await;
        if self.cluster_sessions().is_some() {
            let message = "this is a shard now, and its sessions are kept in the cluster";
            return Err(Error::new(Code::NAMESPACE_NOT_SHARDED, message));
        }
        self.ensure_sessions_collection().await?;
        let used: Vec<SessionId> = used.iter().copied().collect();
        for portion in used.chunks(PORTION) {
            self.run_command(upserts(portion, now_ms)).await?;
        }
        let ended: Vec<SessionId> = ended.iter().copied().collect();
        for portion in ended.chunks(PORTION) {
            self.run_command(removals(portion)).await?;
        }
        Ok(())
    }

    /// The same where the collection is sharded.
    async fn write_cluster_sessions(
        &self,
        cluster: &ClusterSessions,
        used: &BTreeSet<SessionId>,
        ended: &BTreeSet<SessionId>,
        now_ms: i64,
    ) -> Result<(), Error> {
        self.check_cluster_sessions(cluster).await?;
        let used: Vec<SessionId> = used.iter().copied().collect();
        for portion in used.chunks(PORTION) {
            self.run_routed(cluster, upserts(portion, now_ms)).await?;
        }
        let ended: Vec<SessionId> = ended.iter().copied().collect();
        for portion in ended.chunks(PORTION) {
            self.run_routed(cluster, removals(portion)).await?;
        }
        Ok(())
    }

    /// Makes the collection and its index, or gives the index another time.
    async fn ensure_sessions_collection(self: &Arc<Self>) -> Result<(), Error> {
        let seconds = i64::from(self.session_timeout_minutes()) * 60;
        if let Some(collection) = self.catalog.get(&namespace()?)
            && let Some(known) = collection.index_by_name(INDEX)
        {
            if known.definition.expire_after_seconds == Some(seconds) {
                return Ok(());
            }
            return self.run_command(sessions::set_lifetime(seconds)).await;
        }
        let mut command = sessions::command("createIndexes");
        command
            .begin_array("indexes")
            .push(&sessions::index(seconds))
            .end();
        self.run_command(command).await
    }

    /// Removes sessions from the cache that have expired from the collection.
    async fn remove_expired(
        &self,
        used: &BTreeSet<SessionId>,
        unused_since_ms: i64,
    ) -> Result<Vec<SessionId>, Error> {
        let mut unused = self.session_cache.all();
        unused.retain(|(id, last_use)| *last_use <= unused_since_ms && !used.contains(id));
        let asked: Vec<SessionId> = unused.iter().map(|(id, _)| *id).collect();
        let missing = self.sessions_not_kept(&asked).await?;
        let expired = unused.into_iter().filter(|(id, last_use)| {
            missing.contains(id) && self.session_cache.remove(*id, *last_use)
        });
        Ok(expired.map(|(id, _)| id).collect())
    }

    /// Runs a command of the server's own on the sessions collection.
    fn run_command(
        self: &Arc<Self>,
        command: DocWriter,
    ) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
        let shard = self.clone();
        Box::pin(async move {
            let body = command.with("$db", sessions::DATABASE).finish();
            let request = Request::from_parts(body, Vec::new())
                .map_err(|fault| Error::new(Code::INTERNAL_ERROR, fault.to_string()))?;
            let connection = Arc::new(ConnectionInfo::in_process(0));
            let reply = command::dispatch(&shard, &connection, &request).await;
            check(reply.document())
        })
    }
}

/// The error in a reply, or the first one of its writes.
pub(super) fn check(reply: Doc<'_>) -> Result<(), Error> {
    let first_error = reply
        .get_array("writeErrors")
        .and_then(|errors| errors.get(0))
        .and_then(|error| match error {
            ValueRef::Document(error) => Some(error),
            _ => None,
        });
    let failure = match first_error {
        Some(error) => error,
        None if reply.get("ok") == Some(ValueRef::Double(1.0)) => return Ok(()),
        None => reply,
    };
    let code = match failure.get("code") {
        Some(ValueRef::Int32(code)) => Code(code),
        _ => Code::INTERNAL_ERROR,
    };
    Err(Error::new(
        code,
        failure.get_str("errmsg").unwrap_or_default().to_owned(),
    ))
}

pub(super) fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}

pub(super) fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// A session as `$listLocalSessions` and the collection show it.
pub(crate) fn describe(id: SessionId, last_use_ms: i64) -> DocBuf {
    let mut writer = DocWriter::new();
    id.append(&mut writer, "_id");
    writer.append("lastUse", ValueRef::DateTime(last_use_ms));
    writer.finish()
}
