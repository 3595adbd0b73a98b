//! `killCursors`: ends cursors before their time.

use super::arguments::{arguments, missing};
use super::{Answer, Invocation, finish};
use model::bson::ValueRef;
use wire::Reply;

pub(crate) fn kill_cursors(invocation: &Invocation<'_>) -> Answer {
    invocation.namespace()?;
    let mut ids = None;
    for argument in arguments("killCursors", invocation.request.body()) {
        match argument.name() {
            "cursors" => {
                let mut listed = Vec::new();
                for value in argument.array()?.iter() {
                    match value {
                        ValueRef::Int64(id) => listed.push(id),
                        other => {
                            return Err(model::Error::new(
                                model::Code::TYPE_MISMATCH,
                                format!(
                                    "BSON field 'killCursors.cursors.{}' is the wrong type '{}', \
                                     expected type 'long'",
                                    listed.len(),
                                    other.kind().name()
                                ),
                            ));
                        }
                    }
                }
                ids = Some(listed);
            }
            _ => return Err(argument.unknown()),
        }
    }
    let ids = ids.ok_or_else(|| missing("killCursors", "cursors"))?;
    let outcome = invocation.shard.cursors.kill(&ids);
    let mut writer = Reply::writer();
    for (name, ids) in [
        ("cursorsKilled", &outcome.killed[..]),
        ("cursorsNotFound", &outcome.not_found[..]),
        ("cursorsAlive", &[]),
        ("cursorsUnknown", &[]),
    ] {
        writer.begin_array(name);
        for &id in ids {
            writer.push(id);
        }
        writer.end();
    }
    finish(writer)
}
