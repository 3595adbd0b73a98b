//! Sessions that are in use at this router, and their way into the cluster's sessions collection.
//!
//! ```text
//!   a command with an lsid ──► active ── ended, or expired from the collection ──► gone, cursors closed
//!                                │ refresh: used since the last one
//!                                ▼
//!                     config.system.sessions, sharded (cluster::sessions)
//! ```
//!
//! Shards and the config server have caches of their own, of the commands that reach them. What a client
//! ends is told to all of them, so that each closes its cursors with its next refresh; what a client
//! prolongs is prolonged here, and with the collection for everybody. A router never makes the
//! collection: while it is not there sessions stay in the cache.

use crate::bulk::{Kind, write};
use crate::config::error_of;
use crate::failure::{Failure, is_ok};
use crate::hello::now_ms;
use crate::{Router, diagnostic, find, operation};
use cluster::cache::Placement;
use cluster::sessions::{self, PORTION};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::error::{Code, Error};
use model::{Namespace, SessionId};
use parking_lot::Mutex;
use query::pipeline::SessionsOf;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};
use wire::{Reply, Request};

/// As MongoDB's `maxSessions`: more are not noted here; the shards that see them know them.
const SESSIONS_MAX: usize = 1_000_000;
const TIMEOUT_MINUTES: i32 = 30;
/// Ended sessions that are remembered while the collection cannot be written, because a shard is away.
/// More than that expire there by themselves, as if nobody had ended them.
const ENDED_MAX: usize = 100_000;

pub(crate) struct Sessions {
    /// When each was last used, in milliseconds.
    active: Mutex<HashMap<SessionId, i64>>,
    /// Ended by their clients since the last refresh.
    ended: Mutex<BTreeSet<SessionId>>,
    last_refresh_ms: AtomicI64,
    /// As the config server said last.
    timeout_minutes: AtomicI32,
    one_at_a_time: tokio::sync::Mutex<()>,
}

impl Sessions {
    pub(crate) fn new() -> Self {
        Self {
            active: Mutex::default(),
            ended: Mutex::default(),
            last_refresh_ms: AtomicI64::new(i64::MIN),
            timeout_minutes: AtomicI32::new(TIMEOUT_MINUTES),
            one_at_a_time: tokio::sync::Mutex::default(),
        }
    }

    /// How many are known here.
    pub(crate) fn active(&self) -> usize {
        self.active.lock().len()
    }

    pub(crate) fn timeout_minutes(&self) -> i32 {
        self.timeout_minutes.load(Ordering::Relaxed)
    }

    /// Takes note of the session of a request, if it has one.
    pub(crate) fn note(&self, session: Option<SessionId>) {
        if let Some(id) = session {
            self.touch(id, now_ms());
        }
    }

    fn touch(&self, id: SessionId, now_ms: i64) {
        let mut active = self.active.lock();
        let is_full = active.len() >= SESSIONS_MAX;
        match active.get_mut(&id) {
            Some(last_use) => *last_use = now_ms.max(*last_use),
            None if is_full => {}
            None => {
                active.insert(id, now_ms);
            }
        }
    }

    /// Their clients are done with them; they go with the next refresh.
    fn end(&self, ids: impl IntoIterator<Item = SessionId>) {
        let mut ended = self.ended.lock();
        for id in ids {
            if ended.len() >= ENDED_MAX {
                return;
            }
            ended.insert(id);
        }
    }

    #[cfg(test)]
    pub(crate) fn ended(&self) -> usize {
        self.ended.lock().len()
    }

    fn all(&self) -> Vec<(SessionId, i64)> {
        let active = self.active.lock();
        let mut all: Vec<_> = active
            .iter()
            .map(|(id, last_use)| (*id, *last_use))
            .collect();
        all.sort_unstable();
        all
    }

    /// Forgets a session, unless it was used after a time.
    fn remove(&self, id: SessionId, unused_since_ms: i64) -> bool {
        let mut active = self.active.lock();
        let is_unused = active
            .get(&id)
            .is_some_and(|last_use| *last_use <= unused_since_ms);
        is_unused && active.remove(&id).is_some()
    }

    /// What `$listLocalSessions` shows.
    pub(crate) fn describe(&self, whose: SessionsOf) -> Vec<DocBuf> {
        let own = SessionId::new([0; 16]);
        let mut all = self.all();
        all.retain(|(id, _)| match whose {
            SessionsOf::Own => id.user() == own.user(),
            SessionsOf::Everybody => true,
            SessionsOf::Nobody => false,
        });
        let described = all.into_iter().map(|(id, last_use_ms)| {
            let mut writer = DocWriter::new();
            id.append(&mut writer, "_id");
            writer.append("lastUse", ValueRef::DateTime(last_use_ms));
            writer.finish()
        });
        described.collect()
    }
}

/// Refreshes again and again, until it is aborted.
pub(crate) async fn run(router: Arc<Router>) {
    // What clients are told of the lifetime is right from the beginning, if that is possible.
    let _ = check(&router).await;
    let Some(period) = router.options.parameters.session_refresh() else {
        return;
    };
    loop {
        tokio::time::sleep(period).await;
        if let Err(error) = refresh(&router).await {
            tracing::info!(%error, "sessions were not refreshed");
        }
    }
}

/// Whether the cluster's sessions are in a sharded collection.
pub(crate) async fn are_sharded(router: &Router) -> Result<bool, Error> {
    let namespace = Namespace::parse(sessions::NAMESPACE)?;
    let placement = router.routing.placement(&namespace, None).await?;
    let is_sharded = matches!(placement, Placement::Sharded(_));
    if !is_sharded {
        // Nobody will say that this is old.
        router.routing.mark_stale(&namespace);
    }
    Ok(is_sharded)
}

/// Makes sure that the collection is there.
async fn check(router: &Router) -> Result<(), Error> {
    let question = DocWriter::new()
        .with("_configsvrSessionsCollection", 1)
        .with("$db", "admin");
    let told = router.config.run(question).await?;
    if let Some(ValueRef::Int32(minutes @ 1..)) = told.get("timeoutMinutes") {
        let known = &router.sessions.timeout_minutes;
        known.store(minutes, Ordering::Relaxed);
    }
    if told.get("exists") == Some(ValueRef::Boolean(true)) && are_sharded(router).await? {
        return Ok(());
    }
    Err(Error::new(
        Code::NAMESPACE_NOT_SHARDED,
        format!("Collection {} is not sharded", sessions::NAMESPACE),
    ))
}

/// Writes what was used, removes what was ended, and forgets what has expired.
pub(crate) async fn refresh(router: &Arc<Router>) -> Result<(), Error> {
    let known = &router.sessions;
    let _one = known.one_at_a_time.lock().await;
    let now_ms = now_ms();
    let ended = std::mem::take(&mut *known.ended.lock());
    let since_ms = known.last_refresh_ms.load(Ordering::Relaxed);
    let (mut used, unused): (Vec<_>, Vec<_>) = known
        .all()
        .into_iter()
        .partition(|(_, last_use)| *last_use >= since_ms);
    used.retain(|(id, _)| !ended.contains(id));
    let used: Vec<SessionId> = used.into_iter().map(|(id, _)| id).collect();
    if let Err(error) = store(router, &used, &ended, now_ms).await {
        known.end(ended);
        return Err(error);
    }
    let mut gone = ended;
    for id in &gone {
        known.remove(*id, now_ms);
    }
    known.last_refresh_ms.store(now_ms, Ordering::Relaxed);
    let forgotten = forget_expired(router, &unused, &mut gone).await;
    // Also if not all could be looked at: nobody will know of these any more.
    close_cursors(router, &|id| gone.contains(id)).await;
    forgotten
}

/// Forgets those of the sessions that the cluster has no more.
async fn forget_expired(
    router: &Arc<Router>,
    unused: &[(SessionId, i64)],
    gone: &mut BTreeSet<SessionId>,
) -> Result<(), Error> {
    for portion in unused.chunks(PORTION) {
        let ids: Vec<SessionId> = portion.iter().map(|(id, _)| *id).collect();
        let reply = ask(router, sessions::look_up(&ids)).await?;
        let found = sessions::found(reply.as_doc()).ok_or_else(|| {
            Error::new(
                Code::INTERNAL_ERROR,
                "an answer about sessions is malformed",
            )
        })?;
        let expired = portion
            .iter()
            .filter(|(id, last_use)| !found.contains(id) && router.sessions.remove(*id, *last_use));
        gone.extend(expired.map(|(id, _)| *id));
    }
    Ok(())
}

async fn store(
    router: &Arc<Router>,
    used: &[SessionId],
    ended: &BTreeSet<SessionId>,
    now_ms: i64,
) -> Result<(), Error> {
    check(router).await?;
    for portion in used.chunks(PORTION) {
        ask(router, sessions::upserts(portion, now_ms)).await?;
    }
    let ended: Vec<SessionId> = ended.iter().copied().collect();
    for portion in ended.chunks(PORTION) {
        ask(router, sessions::removals(portion)).await?;
    }
    Ok(())
}

/// Runs a command on the collection.
async fn ask(router: &Arc<Router>, command: DocWriter) -> Result<DocBuf, Error> {
    let command = command.with("$db", sessions::DATABASE).finish();
    let request = Request::from_parts(command, Vec::new())?;
    let answered = match request.name() {
        "update" => write(router, &request, Kind::Update).await,
        "delete" => write(router, &request, Kind::Delete).await,
        _ => find::find(router, &request).await,
    };
    let reply = answered.unwrap_or_else(Failure::into_reply);
    let document = reply.document();
    let faults = document.get_array("writeErrors");
    match faults.and_then(|faults| faults.get(0)) {
        Some(ValueRef::Document(fault)) => Err(error_of(fault)),
        _ if is_ok(document) => Ok(document.to_owned()),
        _ => Err(error_of(document)),
    }
}

async fn close_cursors(router: &Router, is_meant: &(dyn Fn(&SessionId) -> bool + Sync)) {
    for cursor in router.cursors.kill_of_sessions(is_meant) {
        cursor.close().await;
    }
}

/// `startSession`, `refreshSessions`, `endSessions`, `killSessions` and its kin, and the jobs at once.
pub(crate) async fn answer(router: &Arc<Router>, request: &Request) -> Result<Reply, Failure> {
    match request.name() {
        "refreshLogicalSessionCacheNow" => {
            refresh(router).await?;
            Ok(Reply::ok())
        }
        // What is reaped is kept by shards.
        "reapLogicalSessionCacheNow" => Ok(Reply::ok()),
        "startSession" => {
            let reply = diagnostic::ask_config(router, request).await?;
            if let Some(id) = reply.document().get_doc("id")
                && let Ok(id) = SessionId::parse("id", id)
            {
                router.sessions.touch(id, now_ms());
            }
            Ok(reply)
        }
        "refreshSessions" => {
            // It says what is wrong with them.
            let reply = diagnostic::ask_config(router, request).await?;
            for id in listed(request) {
                router.sessions.touch(id, now_ms());
            }
            Ok(reply)
        }
        "endSessions" => {
            // It says what is wrong with them.
            let reply = diagnostic::ask_config(router, request).await?;
            router.sessions.end(listed(request));
            // A shard that is away hears of it with the next refresh.
            if let Err(failure) = diagnostic::tell_everybody(router, request).await {
                let reply = failure.into_reply();
                tracing::debug!(reply = ?reply.document(), "not everybody was told of ended sessions");
            }
            Ok(reply)
        }
        _ => {
            // It says what is wrong with them. What runs here may wait for a shard that is away, so it ends
            // before anybody else is told.
            diagnostic::ask_config(router, request).await?;
            let meant = Meant::of(request);
            let own = operation::current().map_or(0, |operation| operation.id);
            (router.operations).kill_of_sessions(&|id| meant.includes(id), own);
            let reply = diagnostic::tell_everybody(router, request).await?;
            close_cursors(router, &|id| meant.includes(id)).await;
            Ok(reply)
        }
    }
}

/// The documents in a command's first field.
fn documents<'a>(request: &'a Request) -> impl Iterator<Item = Doc<'a>> {
    let first = request.body().first().map(|first| first.value());
    let list = match first {
        Some(ValueRef::Array(list)) => Some(list),
        _ => None,
    };
    let values = list.into_iter().flat_map(|list| list.iter());
    values.filter_map(|value| match value {
        ValueRef::Document(doc) => Some(doc),
        _ => None,
    })
}

fn listed(request: &Request) -> Vec<SessionId> {
    documents(request)
        .filter_map(|session| SessionId::parse("lsid", session).ok())
        .collect()
}

/// Whose cursors are killed, by a command that the others have found well-formed.
enum Meant {
    All,
    Sessions(Vec<SessionId>),
    /// Sessions, and all of some users.
    Patterns(Vec<SessionId>, Vec<Vec<u8>>),
}

impl Meant {
    fn of(request: &Request) -> Meant {
        match request.name() {
            // Nobody is logged in, so all sessions are one's own.
            "killSessions" if documents(request).next().is_some() => {
                Meant::Sessions(listed(request))
            }
            "killAllSessionsByPattern" if documents(request).next().is_some() => {
                let (mut ids, mut users) = (Vec::new(), Vec::new());
                for pattern in documents(request) {
                    match (pattern.get("lsid"), pattern.get("uid")) {
                        (Some(ValueRef::Document(session)), _) => {
                            ids.extend(SessionId::parse("lsid", session));
                        }
                        (_, Some(ValueRef::Binary { bytes, .. })) => users.push(bytes.to_vec()),
                        (_, _) => return Meant::All,
                    }
                }
                Meant::Patterns(ids, users)
            }
            _ => Meant::All,
        }
    }

    fn includes(&self, id: &SessionId) -> bool {
        match self {
            Meant::All => true,
            Meant::Sessions(ids) => ids.contains(id),
            Meant::Patterns(ids, users) => {
                ids.contains(id) || users.iter().any(|user| user == id.user())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_sessions_are_not_remembered_without_limit() {
        let sessions = Sessions::new();
        let id = |at: usize| SessionId::new((at as u128).to_be_bytes());
        for portion in (0..ENDED_MAX + 1_000).collect::<Vec<_>>().chunks(777) {
            sessions.end(portion.iter().copied().map(id));
        }
        assert_eq!(sessions.ended.lock().len(), ENDED_MAX);
    }
}
