//! Short answers: what shells, drivers and monitoring tools ask of any server
//! to find out what it is, and commands that are refused by name.

use super::arguments::{Argument, arguments, missing};
use super::server_status::append_server_status;
use super::{Answer, Invocation, finish, not_found};
use model::bson::{Doc, DocWriter, ValueRef};
use model::number::Number;
use model::{Code, Error};
use wire::Reply;

/// Commands of MongoDB that belong to another kind of server or are not there
/// yet, with why. They exist, so they are not answered with CommandNotFound.
const REFUSED: &[(&str, &str)] = &[
    (
        "cloneCollectionAsCapped",
        "capped collections are not supported yet",
    ),
    ("compact", "the storage engine compacts on its own"),
    (
        "convertToCapped",
        "capped collections are not supported yet",
    ),
    ("createRole", "users and roles are not supported yet"),
    ("createUser", "users and roles are not supported yet"),
    ("filemd5", "it is deprecated"),
    ("mapReduce", "use aggregate"),
    ("planCacheSetFilter", "index filters are not supported"),
    (
        "reIndex",
        "validate says whether an index is damaged; drop and create it then",
    ),
];

/// Answers the commands that are not listed in [`super::run_rare`].
pub(crate) fn answer(name: &str, invocation: &Invocation<'_>) -> Answer {
    match name {
        "authenticate" | "saslStart" => refuse_authentication(name, invocation),
        "availableQueryOptions" => finish(Reply::writer().with("options", 246)),
        "connPoolStats" => connection_pools(),
        "features" => features(invocation),
        "getDiagnosticData" => diagnostic_data(invocation),
        "getFreeMonitoringStatus" => {
            invocation.admin_only()?;
            finish(Reply::writer().with("state", "disabled"))
        }
        "getLastError" | "getlasterror" => Err(Error::location(
            5_739_000,
            "getLastError command is not supported",
        )),
        "getShardMap" => {
            invocation.admin_only()?;
            Err(Error::new(
                Code::SHARDING_STATE_NOT_INITIALIZED,
                "Sharding is not enabled",
            ))
        }
        "lockInfo" => empty_list(invocation, "lockInfo"),
        "logRotate" => {
            invocation.admin_only()?;
            // The log goes to standard error, where nothing rotates.
            finish(Reply::writer())
        }
        "logout" => finish(Reply::writer()),
        "profile" => profile(invocation),
        "rolesInfo" => finish_list("roles"),
        "usersInfo" => finish_list("users"),
        "setFeatureCompatibilityVersion" => set_feature_compatibility(invocation),
        "top" => top(invocation),
        "commitTransaction" | "abortTransaction" => {
            invocation.admin_only()?;
            Err(Error::new(
                Code::COMMAND_FAILED,
                format!("{name} must be run within a transaction"),
            ))
        }
        _ => match REFUSED.iter().find(|(refused, _)| *refused == name) {
            Some((_, why)) => Err(Error::new(
                Code::COMMAND_NOT_SUPPORTED,
                format!("{name} is not supported: {why}"),
            )),
            None => Err(not_found(name)),
        },
    }
}

/// There are no users yet, so no mechanism is there to authenticate by.
fn refuse_authentication(name: &str, invocation: &Invocation<'_>) -> Answer {
    match invocation.request.body().get_str("mechanism") {
        None => Err(missing(name, "mechanism")),
        Some(mechanism) => Err(Error::new(
            Code::MECHANISM_UNAVAILABLE,
            format!("Received authentication for mechanism {mechanism} which is not enabled"),
        )),
    }
}

fn finish_list(name: &str) -> Answer {
    let mut writer = Reply::writer();
    writer.begin_array(name).end();
    finish(writer)
}

fn empty_list(invocation: &Invocation<'_>, name: &str) -> Answer {
    invocation.admin_only()?;
    finish_list(name)
}

fn connection_pools() -> Answer {
    let mut writer = Reply::writer();
    for name in [
        "numClientConnections",
        "numAScopedConnections",
        "totalInUse",
        "totalAvailable",
        "totalCreated",
        "totalRefreshing",
        "totalRefreshed",
    ] {
        writer.append(name, 0);
    }
    writer
        .begin_document("pools")
        .end()
        .begin_document("hosts")
        .end()
        .append("numReplicaSetMonitorsCreated", 0)
        .begin_document("replicaSets")
        .end();
    finish(writer)
}

fn features(invocation: &Invocation<'_>) -> Answer {
    let machine = &invocation.shard.process_id.0[4..8];
    let machine = machine
        .iter()
        .fold(0, |sum, byte| sum << 8 | i64::from(*byte));
    let mut writer = Reply::writer();
    writer
        .begin_document("js")
        .append("utf8", true)
        .end()
        .append("oidMachine", machine);
    finish(writer)
}

fn diagnostic_data(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let now = || ValueRef::DateTime(invocation.shard.clock.now_ms());
    let mut writer = Reply::writer();
    writer
        .begin_document("data")
        .append("start", now())
        .begin_document("serverStatus");
    append_server_status(invocation.shard, &mut writer);
    writer.end().append("end", now()).end();
    finish(writer)
}

/// Profiling is always off; asking for it is refused, asking about it is not.
/// What `profile` says of slow operations.
const SLOW_MS: i32 = 100;

fn profile(invocation: &Invocation<'_>) -> Answer {
    let body = invocation.request.body();
    let level = body.first().and_then(|element| Number::of(element.value()));
    match level.map(Number::to_f64) {
        Some(level) if level == 0.0 || level == -1.0 => {
            check_slow_operations(body)?;
            let writer = Reply::writer()
                .with("was", 0)
                .with("slowms", SLOW_MS)
                .with("sampleRate", 1.0);
            finish(writer)
        }
        Some(_) => Err(Error::new(
            Code::COMMAND_NOT_SUPPORTED,
            "profiling is not supported",
        )),
        None => Err(Error::new(
            Code::TYPE_MISMATCH,
            "BSON field 'profile.profile' is the wrong type, expected types '[long, int, decimal, \
             double']",
        )),
    }
}

/// No slow operation is written down, so that what says which ones may only
/// repeat what holds.
fn check_slow_operations(body: Doc<'_>) -> Result<(), Error> {
    let number = |argument: &Argument<'_>| match Number::of(argument.value()) {
        Some(number) => Ok(number.to_f64()),
        None => Err(argument.wrong_type("[long, int, decimal, double]")),
    };
    for argument in arguments("profile", body) {
        let holds = match argument.name() {
            _ if argument.is_null() => true,
            "slowms" => number(&argument)? == f64::from(SLOW_MS),
            "sampleRate" => {
                let rate = number(&argument)?;
                if !(0.0..=1.0).contains(&rate) {
                    return Err(Error::bad_value(
                        "'sampleRate' must be between 0.0 and 1.0 inclusive",
                    ));
                }
                rate == 1.0
            }
            "filter" => match argument.value() {
                ValueRef::String("unset") => true,
                ValueRef::Document(_) => false,
                _ => {
                    return Err(Error::bad_value(
                        "Expected an object, or the string 'unset'.",
                    ));
                }
            },
            _ => return Err(argument.unknown()),
        };
        if !holds {
            return Err(Error::new(
                Code::COMMAND_NOT_SUPPORTED,
                format!(
                    "slow operations are not logged: '{}' cannot be changed",
                    argument.name()
                ),
            ));
        }
    }
    Ok(())
}

fn set_feature_compatibility(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    match invocation
        .request
        .body()
        .first()
        .map(|element| element.value())
    {
        Some(ValueRef::String("6.0")) => finish(Reply::writer()),
        Some(ValueRef::String(version)) => Err(Error::bad_value(format!(
            "Invalid feature compatibility version value '{version}'; expected '6.0'"
        ))),
        other => Err(Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "BSON field 'setFeatureCompatibilityVersion.setFeatureCompatibilityVersion' is \
                 the wrong type '{}', expected type 'string'",
                other.map_or("missing", |value| value.kind().name())
            ),
        )),
    }
}

/// Times by collection are not measured: the list holds the collections, with
/// zeros, so that tools find what they walk over.
fn top(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let mut writer = Reply::writer();
    writer
        .begin_document("totals")
        .append("note", "all times in microseconds");
    for collection in invocation.shard.catalog.current().collections() {
        writer.begin_document(collection.namespace.as_str());
        append_zero_times(&mut writer);
        writer.end();
    }
    writer.end();
    finish(writer)
}

fn append_zero_times(writer: &mut DocWriter) {
    for kind in [
        "total",
        "readLock",
        "writeLock",
        "queries",
        "getmore",
        "insert",
        "update",
        "remove",
        "commands",
    ] {
        writer
            .begin_document(kind)
            .append("time", 0)
            .append("count", 0)
            .end();
    }
}
