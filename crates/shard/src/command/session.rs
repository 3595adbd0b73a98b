//! Commands about logical sessions: beginning, prolonging, ending, killing.
//!
//! Ending a session is a word of its client that it is done: what belongs to it
//! goes with the next refresh. Killing ends its operations and cursors now.

use super::arguments::missing;
use super::{Answer, Invocation, finish};
use crate::session::SessionId;
use model::bson::{Array, Doc, ValueRef};
use model::{Code, Error};
use wire::Reply;

pub(crate) fn start_session(invocation: &Invocation<'_>) -> Answer {
    let shard = invocation.shard;
    let id = shard.new_uuid();
    shard
        .session_cache
        .touch(SessionId::new(id.0), shard.clock.now_ms())?;
    let mut writer = Reply::writer();
    writer
        .begin_document("id")
        .append(
            "id",
            ValueRef::Binary {
                subtype: 4,
                bytes: &id.0,
            },
        )
        .end();
    writer.append("timeoutMinutes", shard.session_timeout_minutes());
    finish(writer)
}

/// The list that a command's first field is; `path` names it in errors.
fn list<'a>(invocation: &'a Invocation<'_>, path: &str) -> Result<Array<'a>, Error> {
    let name = invocation.request.name();
    match invocation.request.body().first().map(|e| e.value()) {
        Some(ValueRef::Array(listed)) => Ok(listed),
        other => Err(Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "BSON field '{path}.{name}' is the wrong type '{}', expected type 'array'",
                other.map_or("missing", |value| value.kind().name())
            ),
        )),
    }
}

fn documents<'a>(listed: Array<'a>, path: &str) -> Result<Vec<Doc<'a>>, Error> {
    let mut documents = Vec::new();
    for (at, value) in listed.iter().enumerate() {
        match value {
            ValueRef::Document(doc) => documents.push(doc),
            other => {
                return Err(Error::new(
                    Code::TYPE_MISMATCH,
                    format!(
                        "BSON field '{path}.{at}' is the wrong type '{}', expected type 'object'",
                        other.kind().name()
                    ),
                ));
            }
        }
    }
    Ok(documents)
}

fn listed_sessions(
    invocation: &Invocation<'_>,
    command: &str,
    path: &str,
) -> Result<Vec<SessionId>, Error> {
    documents(list(invocation, command)?, path)?
        .into_iter()
        .map(|session| SessionId::parse(path, session))
        .collect()
}

pub(crate) fn refresh_sessions(invocation: &Invocation<'_>) -> Answer {
    let shard = invocation.shard;
    let now_ms = shard.clock.now_ms();
    let path = "refreshSessions.refreshSessionsFromClient";
    for session in listed_sessions(invocation, "refreshSessions", path)? {
        shard.session_cache.touch(session, now_ms)?;
    }
    finish(Reply::writer())
}

pub(crate) fn end_sessions(invocation: &Invocation<'_>) -> Answer {
    let path = "endSessions.endSessionsFromClient";
    for session in listed_sessions(invocation, "endSessions", path)? {
        invocation.shard.session_cache.end(session);
    }
    finish(Reply::writer())
}

pub(crate) async fn refresh_now(invocation: &Invocation<'_>) -> Answer {
    invocation.shard.refresh_sessions().await?;
    finish(Reply::writer())
}

pub(crate) async fn reap_now(invocation: &Invocation<'_>) -> Answer {
    invocation.shard.reap_sessions().await?;
    finish(Reply::writer())
}

/// Ends the operations and cursors of sessions, except this very command.
fn kill(invocation: &Invocation<'_>, is_meant: &dyn Fn(&SessionId) -> bool) -> Answer {
    let shard = invocation.shard;
    shard
        .operations
        .kill_of_sessions(is_meant, invocation.operation.id);
    shard.cursors.kill_of_sessions(is_meant);
    finish(Reply::writer())
}

pub(crate) fn kill_sessions(invocation: &Invocation<'_>) -> Answer {
    let path = "KillSessionsCmd.killSessions";
    let sessions = listed_sessions(invocation, "KillSessionsCmd", path)?;
    if sessions.is_empty() {
        let own = SessionId::new([0; 16]);
        return kill(invocation, &|id| id.user() == own.user());
    }
    kill(invocation, &|id| sessions.contains(id))
}

/// All sessions, or those of users; there are no users yet.
pub(crate) fn kill_all_sessions(invocation: &Invocation<'_>) -> Answer {
    const PATH: &str = "KillAllSessionsCmd.killAllSessions";
    let users = documents(list(invocation, "KillAllSessionsCmd")?, PATH)?;
    if let Some(user) = users.first() {
        let name = user.get_str("user").ok_or_else(|| missing(PATH, "user"))?;
        let database = user.get_str("db").ok_or_else(|| missing(PATH, "db"))?;
        return Err(Error::new(
            Code::USER_NOT_FOUND,
            format!("Could not find user \"{name}\" for db \"{database}\""),
        ));
    }
    kill(invocation, &|_| true)
}

/// One of the patterns that `killAllSessionsByPattern` takes.
enum Pattern<'a> {
    Session(SessionId),
    User(&'a [u8]),
    /// Named users and roles only say who acts for whom.
    Any,
}

pub(crate) fn kill_all_sessions_by_pattern(invocation: &Invocation<'_>) -> Answer {
    const PATH: &str = "KillAllSessionsByPatternCmd.killAllSessionsByPattern";
    let listed = documents(list(invocation, "KillAllSessionsByPatternCmd")?, PATH)?;
    let mut patterns = Vec::new();
    for pattern in listed {
        let mut parsed = Pattern::Any;
        for element in pattern.iter() {
            match (element.key(), element.value()) {
                ("lsid", ValueRef::Document(session)) => {
                    let path = format!("{PATH}.lsid");
                    let id = SessionId::parse(&path, session)?;
                    if session.get("uid").is_none() {
                        return Err(missing(&path, "uid"));
                    }
                    parsed = Pattern::Session(id);
                }
                ("uid", ValueRef::Binary { bytes, .. }) => {
                    // The narrower one holds.
                    if let Pattern::Any = parsed {
                        parsed = Pattern::User(bytes);
                    }
                }
                ("users" | "roles", ValueRef::Array(_)) => {}
                (name @ ("lsid" | "uid" | "users" | "roles"), value) => {
                    let expected = match name {
                        "lsid" => "object",
                        "uid" => "binData",
                        _ => "array",
                    };
                    return Err(Error::new(
                        Code::TYPE_MISMATCH,
                        format!(
                            "BSON field '{PATH}.{name}' is the wrong type '{}', expected type '{expected}'",
                            value.kind().name()
                        ),
                    ));
                }
                (name, _) => {
                    return Err(Error::location(
                        40415,
                        format!("BSON field '{PATH}.{name}' is an unknown field."),
                    ));
                }
            }
        }
        patterns.push(parsed);
    }
    kill(invocation, &|id| {
        patterns.is_empty()
            || patterns.iter().any(|pattern| match pattern {
                Pattern::Session(session) => session == id,
                Pattern::User(user) => *user == id.user(),
                Pattern::Any => true,
            })
    })
}
