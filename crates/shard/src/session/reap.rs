//! Reaping: what is kept for retries goes when its session has been gone for long.
//!
//! 1. Histories that nobody has checked out for half an hour, of sessions that are
//!    no longer in `config.system.sessions`, are forgotten.
//! 2. Session documents whose last write is as old, of such sessions, are deleted,
//!    with their overflow documents and images.
//!
//! A session is checked out while its documents are deleted, and they are read
//! again under it: one that has come back to life keeps them. One that is in use
//! is left for the next time.
//!
//! Dropping `config.transactions` deletes them all, and losing the leadership
//! forgets them all, and ends the operations that hold or await one: others may go on
//! with the sessions (`role_changed` in `write/append.rs`).

use super::SessionId;
use super::cache::JobStatistics;
use super::catalog::CheckedOut;
use super::document::{SessionKey, Stored};
use super::history::History;
use super::refresh::{count, milliseconds};
use crate::Shard;
use model::Error;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Sessions whose documents one entry deletes.
const PORTION: usize = 256;

impl Shard {
    pub(crate) async fn reap_sessions(self: &Arc<Self>) -> Result<usize, Error> {
        let began = Instant::now();
        let now_ms = self.clock.now_ms();
        let cutoff_ms = now_ms.saturating_sub(self.session_lifetime_ms());
        let idle = self.sessions.idle_since(cutoff_ms).into_iter();
        for id in self.sessions_gone(idle.collect()).await? {
            self.sessions.remove_idle(id, cutoff_ms);
        }
        let mut reaped = 0;
        let old = match self.log.leading() {
            Ok(_) => tokio::task::block_in_place(|| self.sessions_written_before(cutoff_ms))?,
            // What the leader deletes is deleted here too.
            Err(_) => Vec::new(),
        };
        let old: Vec<SessionId> = self.sessions_gone(old).await?.into_iter().collect();
        for portion in old.chunks(PORTION) {
            reaped += self.delete_sessions(portion, cutoff_ms, now_ms).await?;
            if self.is_shutting_down() {
                break;
            }
        }
        if self.log.leading().is_ok() {
            self.forget_broadcasts().await?;
        }
        let mut statistics = self.session_cache.statistics.lock();
        statistics.reap = JobStatistics {
            count: statistics.reap.count + 1,
            duration_ms: milliseconds(began.elapsed()),
            began_ms: now_ms,
        };
        statistics.reaped = count(reaped);
        Ok(reaped)
    }

    /// Sessions that nobody knows any more.
    async fn sessions_gone(&self, mut asked: Vec<SessionId>) -> Result<BTreeSet<SessionId>, Error> {
        asked.retain(|id| !self.session_cache.contains(*id));
        self.sessions_not_kept(&asked).await
    }

    /// Whether a session that was gone is used again, as far as is known here.
    fn is_session_back(&self, id: SessionId) -> Result<bool, Error> {
        let is_stored = self.cluster_sessions().is_none() && self.is_session_stored(id)?;
        Ok(self.session_cache.contains(id) || is_stored)
    }

    fn sessions_written_before(&self, time_ms: i64) -> Result<Vec<SessionId>, Error> {
        let snapshot = self.store.snapshot();
        let mut found = Vec::new();
        for pair in snapshot.scan_meta(SessionKey::SESSIONS) {
            let (key, value) = pair.map_err(crate::error::from_storage)?;
            let Some(id) = SessionKey::parse(&key) else {
                continue;
            };
            if Stored::decode(&value)?.last.wall_ms <= time_ms {
                found.push(id);
            }
        }
        Ok(found)
    }

    async fn delete_sessions(
        &self,
        sessions: &[SessionId],
        cutoff_ms: i64,
        now_ms: i64,
    ) -> Result<usize, Error> {
        let mut held: Vec<CheckedOut> = Vec::new();
        let mut keys = Vec::new();
        for &id in sessions {
            let Some(checked_out) = self.sessions.try_check_out(id, now_ms) else {
                continue;
            };
            let value = self
                .store
                .get_meta(&SessionKey::session(id))
                .map_err(crate::error::from_storage)?;
            let Some(value) = value else {
                continue;
            };
            let stored = Stored::decode(&value)?;
            let is_old = stored.last.wall_ms <= cutoff_ms && !checked_out.is_unsettled();
            if !is_old || self.is_session_back(id)? {
                continue;
            }
            keys.push(SessionKey::session(id));
            keys.push(SessionKey::image(id));
            keys.extend((0..stored.overflow).map(|chunk| SessionKey::overflow(id, chunk)));
            held.push(checked_out);
        }
        if held.is_empty() {
            return Ok(0);
        }
        self.delete_documents(&keys).await?;
        let deleted = held.len();
        for mut checked_out in held {
            let id = checked_out.id();
            checked_out.load(History::default());
            drop(checked_out);
            self.sessions.remove_idle(id, now_ms);
        }
        Ok(deleted)
    }

    async fn delete_documents(&self, keys: &[Vec<u8>]) -> Result<(), Error> {
        self.propose_catalog(|encoder| {
            for key in keys {
                encoder.delete_meta(key);
            }
        })
        .await
    }

    /// Forgets what sessions have written, and ends the operations that hold or
    /// await a session.
    pub(crate) fn forget_sessions(&self) -> Vec<super::Forgotten> {
        let forgotten = self.sessions.invalidate();
        for operation in self.operations.all() {
            if operation.is_numbered() {
                operation.kill();
            }
        }
        forgotten
    }

    /// Deletes what is kept of all sessions: `config.transactions` is dropped.
    pub(crate) async fn drop_session_documents(&self) -> Result<(), Error> {
        // What is under way may still append an entry of its session: it would
        // outlive the rest.
        for forgotten in self.forget_sessions() {
            forgotten.returned().await;
        }
        loop {
            let keys = tokio::task::block_in_place(|| self.some_session_keys())?;
            if keys.is_empty() {
                return Ok(());
            }
            self.delete_documents(&keys).await?;
        }
    }

    fn some_session_keys(&self) -> Result<Vec<Vec<u8>>, Error> {
        let snapshot = self.store.snapshot();
        let mut keys = BTreeSet::new();
        for prefix in [
            SessionKey::SESSIONS,
            SessionKey::OVERFLOWS,
            SessionKey::IMAGES,
        ] {
            for pair in snapshot.scan_meta(prefix).take(PORTION) {
                let (key, _) = pair.map_err(crate::error::from_storage)?;
                keys.insert(key.to_vec());
            }
        }
        Ok(keys.into_iter().collect())
    }
}
