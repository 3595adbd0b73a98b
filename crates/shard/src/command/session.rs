//! Logical sessions, as far as one server without transactions needs them:
//! a session is an id, and nothing is kept under it yet.

use super::{Answer, Invocation, finish};
use model::bson::{Kind, ValueRef};
use model::{Code, Error};
use wire::Reply;

const TIMEOUT_MINUTES: i32 = 30;

pub(crate) fn start_session(invocation: &Invocation<'_>) -> Answer {
    let mut writer = Reply::writer();
    let id = invocation.shard.new_uuid();
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
    writer.append("timeoutMinutes", TIMEOUT_MINUTES);
    finish(writer)
}

/// `refreshSessions` and `endSessions`: a list of ids, checked. There is nothing
/// to prolong or to end while sessions hold no state.
pub(crate) fn note_sessions(invocation: &Invocation<'_>) -> Answer {
    let name = invocation.request.name();
    let listed = invocation.request.body().first().map(|e| e.value());
    let Some(ValueRef::Array(sessions)) = listed else {
        return Err(Error::new(
            Code::TYPE_MISMATCH,
            format!("BSON field '{name}.{name}' is the wrong type, expected type 'array'"),
        ));
    };
    for session in sessions.iter() {
        let id = match session {
            ValueRef::Document(session) => session.get("id"),
            other => {
                return Err(Error::new(
                    Code::TYPE_MISMATCH,
                    format!(
                        "BSON field '{name}' is the wrong type '{}', expected type 'object'",
                        other.kind().name()
                    ),
                ));
            }
        };
        if id.map(|id| id.kind()) != Some(Kind::Binary) {
            return Err(Error::location(
                40414,
                format!("BSON field '{name}.id' is missing but a required field"),
            ));
        }
    }
    finish(Reply::writer())
}
