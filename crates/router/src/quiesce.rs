//! The orderly end of a router, as its clients notice it.
//!
//! ```text
//!   serving ──► quiescing ── nobody is connected, or time is up and nothing runs ──► connections are closed
//!               hello: 91, how long it lasts
//!               new work: 91; what runs goes on, and so do cursors
//! ```
//!
//! Drivers go to another router as soon as they hear it. Where `config.mongos` names none that lives, that time
//! is zero. What runs has the time that the caller grants it; what is left then is cut off: its clients do not
//! know what became of it, as when a router is killed.
//!
//! The last thing that a router does is to take its document out of `config.mongos`.

use crate::Router;
use crate::hello::now_ms;
use model::bson::{Doc, DocWriter, ValueRef};
use model::error::{Code, Error};
use std::time::{Duration, Instant};

/// How often connections are counted.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// How long the config server may take to say who else is there, and to forget this router.
const CONFIG_LIMIT: Duration = Duration::from_secs(1);
/// Routers that have not been heard of for so long are gone: twice the time between two of their words.
const ALIVE_MS: i64 = 60_000;

impl Router {
    /// How long clients are told that this router is about to stop.
    pub async fn quiesce_limit(&self) -> Duration {
        let asked = *self.shutdown_limit.lock();
        let limit = asked.unwrap_or_else(|| self.parameters().quiesce());
        if limit.is_zero() {
            return limit;
        }
        let looked = tokio::time::timeout(CONFIG_LIMIT, self.has_others());
        match looked.await {
            Ok(Ok(false)) => Duration::ZERO,
            Ok(Ok(true) | Err(_)) | Err(_) => limit,
        }
    }

    async fn has_others(&self) -> Result<bool, Error> {
        let mut command = DocWriter::new().with("find", "mongos");
        command.begin_document("filter");
        command
            .begin_document("_id")
            .append("$ne", self.options.host.as_str())
            .end()
            .begin_document("ping")
            .append("$gte", ValueRef::DateTime(now_ms() - ALIVE_MS))
            .end()
            .end();
        command.append("limit", 1).append("$db", "config");
        Ok(!self.config.find_all(command).await?.is_empty())
    }

    /// Tells clients that this router is about to stop, for `limit` at most, and completes when connections may
    /// be closed. What runs has had `finish` to end.
    pub async fn quiesce(&self, limit: Duration, finish: Duration) {
        let began = Instant::now();
        let _ = self.quiesces_until.set(began + limit);
        self.ending.send_replace(true);
        let Some(server) = self.server.get() else {
            return;
        };
        loop {
            let metrics = server.metrics();
            let (is_idle, waited) = (metrics.connections_active == 0, began.elapsed());
            if metrics.connections_current == 0
                || (is_idle && waited >= limit)
                || waited >= finish.max(limit)
            {
                return;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Takes this router out of the list of those that live.
    pub async fn say_farewell(&self) {
        let mut command = DocWriter::new().with("delete", "mongos");
        command.begin_array("deletes").push_document();
        command
            .begin_document("q")
            .append("_id", self.options.host.as_str())
            .end()
            .append("limit", 1)
            .end()
            .end();
        command.append("$db", "config");
        match tokio::time::timeout(CONFIG_LIMIT, self.config.run(command)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "config.mongos still names this router"),
            Err(_) => tracing::debug!("config.mongos still names this router"),
        }
    }

    /// What clients are told instead of what they asked for, once this router is about to stop.
    pub(crate) fn quiescing(&self, body: Doc<'_>) -> Option<Error> {
        let until = *self.quiesces_until.get()?;
        let left = until.saturating_duration_since(Instant::now());
        let left_ms = i64::try_from(left.as_millis()).unwrap_or(i64::MAX);
        let mut details = DocWriter::new();
        crate::hello::append_topology_version(&mut details, self);
        details.append("remainingQuiesceTimeMillis", left_ms);
        // Drivers try again elsewhere only if they are told that they may. A write that waits for a new connection
        // hears of it by the answer to the connection's `hello`.
        let command = body.iter().next().map(|element| element.key());
        let is_handshake = matches!(command, Some("hello" | "isMaster" | "ismaster"));
        if is_handshake || body.get("txnNumber").is_some() {
            details.begin_array("errorLabels");
            details.push("RetryableWriteError").end();
        }
        let error = Error::new(
            Code::SHUTDOWN_IN_PROGRESS,
            "The server is in quiesce mode and will shut down",
        );
        Some(error.with_details(details.finish()))
    }
}
