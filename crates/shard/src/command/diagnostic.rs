//! What shells and monitoring tools ask about the server itself.

use super::arguments::arguments;
use super::{Answer, Invocation, finish};
use model::bson::{DocWriter, ValueRef};
use model::{Code, Error};
use wire::{Origin, Reply};

/// The version of MongoDB whose behaviour this server follows.
pub(crate) const COMPATIBLE_VERSION: &str = "6.0.5";
const COMPATIBLE_VERSION_PARTS: [i32; 4] = [6, 0, 5, 0];

pub(crate) fn build_info() -> Answer {
    let mut writer = Reply::writer();
    writer
        .append("version", COMPATIBLE_VERSION)
        .append("terndbVersion", env!("CARGO_PKG_VERSION"))
        .append("gitVersion", "")
        .begin_array("modules")
        .end()
        .append("allocator", "mimalloc")
        .append("javascriptEngine", "none")
        .append("sysInfo", "deprecated")
        .begin_array("versionArray");
    for part in COMPATIBLE_VERSION_PARTS {
        writer.push(part);
    }
    writer
        .end()
        .begin_document("openssl")
        .append("running", "none")
        .end()
        .begin_document("buildEnvironment")
        .append("target_arch", std::env::consts::ARCH)
        .append("target_os", std::env::consts::OS)
        .end()
        .append("bits", usize::BITS as i32)
        .append("debug", cfg!(debug_assertions))
        .append("maxBsonObjectSize", model::bson::MAX_DOCUMENT_BYTES as i32)
        .begin_array("storageEngines")
        .push("fjall")
        .end();
    finish(writer)
}

pub(crate) fn connection_status(_invocation: &Invocation<'_>) -> Answer {
    let mut writer = Reply::writer();
    writer
        .begin_document("authInfo")
        .begin_array("authenticatedUsers")
        .end()
        .begin_array("authenticatedUserRoles")
        .end()
        .end();
    finish(writer)
}

pub(crate) fn whats_my_uri(invocation: &Invocation<'_>) -> Answer {
    let peer = match invocation.connection.origin() {
        Origin::Network { peer, .. } => peer.to_string(),
        Origin::InProcess => String::new(),
    };
    finish(Reply::writer().with("you", peer.as_str()))
}

/// The parameters that can be read, with their values.
fn parameters() -> DocWriter {
    let mut writer = DocWriter::new();
    writer
        .begin_document("featureCompatibilityVersion")
        .append("version", "6.0")
        .end()
        .begin_array("authenticationMechanisms")
        .end()
        .append("cursorTimeoutMillis", 600_000i64)
        .append("ttlMonitorEnabled", true)
        .append("ttlMonitorSleepSecs", 60)
        .append("internalQueryMaxBlockingSortMemoryUsageBytes", 104_857_600)
        .append("quiet", false)
        .append("logLevel", 0);
    writer
}

pub(crate) fn get_parameter(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let known = parameters().finish();
    let body = invocation.request.body();
    let all = body.first().map(|e| e.value()) == Some(ValueRef::String("*"))
        || body
            .get_doc("getParameter")
            .is_some_and(|doc| doc.get("allParameters") == Some(ValueRef::Boolean(true)));
    let mut writer = Reply::writer();
    let mut found = false;
    for element in known.iter() {
        if all || body.iter().skip(1).any(|e| e.key() == element.key()) {
            writer.append_element(&element);
            found = true;
        }
    }
    if !found {
        return Err(Error::new(Code::INVALID_OPTIONS, "no option found to get"));
    }
    finish(writer)
}

pub(crate) fn get_log(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let name = match invocation.request.body().first().map(|e| e.value()) {
        Some(ValueRef::String(name)) => name.to_owned(),
        _ => {
            return Err(Error::new(
                Code::TYPE_MISMATCH,
                "Argument to getLog must be of type String",
            ));
        }
    };
    let mut writer = Reply::writer();
    match name.as_str() {
        "*" => {
            writer
                .begin_array("names")
                .push("global")
                .push("startupWarnings")
                .end();
        }
        // The log goes to standard error and is not kept in memory.
        "global" | "startupWarnings" => {
            writer.append("totalLinesWritten", 0).begin_array("log").end();
        }
        _ => {
            return Err(Error::new(
                Code::OPERATION_FAILED,
                format!("No log named '{name}'"),
            ));
        }
    }
    finish(writer)
}

pub(crate) fn host_info(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let host = &invocation.shard.host;
    let mut writer = Reply::writer();
    writer
        .begin_document("system")
        .append(
            "currentTime",
            ValueRef::DateTime(invocation.shard.clock.now_ms()),
        )
        .append("hostname", &host.name)
        .append("cpuAddrSize", usize::BITS as i32)
        .append("memSizeMB", host.memory_mb)
        .append("memLimitMB", host.memory_mb)
        .append("numCores", host.cores)
        .append("cpuArch", std::env::consts::ARCH)
        .append("numaEnabled", false)
        .end()
        .begin_document("os")
        .append("type", "Linux")
        .append("name", &host.system)
        .append("version", &host.kernel)
        .end()
        .begin_document("extra")
        .end();
    finish(writer)
}

pub(crate) fn get_cmd_line_opts(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let mut writer = Reply::writer();
    writer.begin_array("argv");
    for argument in &invocation.shard.host.arguments {
        writer.push(argument.as_str());
    }
    writer.end().begin_document("parsed").end();
    finish(writer)
}

pub(crate) fn server_status(invocation: &Invocation<'_>) -> Answer {
    for argument in arguments("serverStatus", invocation.request.body()) {
        // Any section may be switched on or off; ours are always there.
        argument.loose_boolean().or_else(|error| match argument.value() {
            ValueRef::Document(_) => Ok(true),
            _ => Err(error),
        })?;
    }
    let shard = invocation.shard;
    let metrics = shard.wire_metrics();
    let uptime = shard.started.elapsed();
    let mut writer = Reply::writer();
    writer
        .append("host", &shard.host.name)
        .append("version", COMPATIBLE_VERSION)
        .append("process", "terndb")
        .append("pid", i64::from(std::process::id()))
        .append("uptime", uptime.as_secs_f64())
        .append("uptimeMillis", uptime.as_millis() as i64)
        .append("uptimeEstimate", uptime.as_secs() as i64)
        .append("localTime", ValueRef::DateTime(shard.clock.now_ms()))
        .begin_document("connections")
        .append("current", metrics.connections_current as i32)
        .append("available", metrics.connections_available as i32)
        .append("totalCreated", metrics.connections_created as i32)
        .end()
        .begin_document("network")
        .append("bytesIn", metrics.bytes_in as i64)
        .append("bytesOut", metrics.bytes_out as i64)
        .append("numRequests", metrics.requests as i64)
        .end();
    shard.counters.append_to(&mut writer);
    writer
        .begin_document("storageEngine")
        .append("name", "fjall")
        .append("supportsCommittedReads", true)
        .append("persistent", true)
        .append("readOnly", false)
        .end()
        .begin_document("mem")
        .append("bits", usize::BITS as i32)
        .append("resident", resident_mb())
        .append("supported", true)
        .end();
    finish(writer)
}

/// Resident memory in MiB, as the system counts it.
fn resident_mb() -> i32 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok())
        .unwrap_or(0);
    (pages * 4096 / (1024 * 1024)) as i32
}

/// Every command with what it is for.
const COMMANDS: &[(&str, &str)] = &[
    ("aggregate", "runs an aggregation pipeline"),
    ("buildInfo", "the version and how it was built"),
    ("collMod", "changes options of an index"),
    ("collStats", "sizes of a collection"),
    ("connectionStatus", "who is authenticated on this connection"),
    ("count", "counts documents"),
    ("create", "creates a collection"),
    ("createIndexes", "creates indexes"),
    ("currentOp", "what runs right now"),
    ("dataSize", "size of a range of documents"),
    ("dbStats", "sizes of a database"),
    ("delete", "removes documents"),
    ("distinct", "distinct values of a field"),
    ("drop", "drops a collection"),
    ("dropDatabase", "drops a database"),
    ("dropIndexes", "drops indexes"),
    ("endSessions", "ends sessions"),
    ("explain", "how a command would run"),
    ("find", "reads documents"),
    ("findAndModify", "changes one document and returns it"),
    ("fsync", "makes everything durable"),
    ("getCmdLineOpts", "how the server was started"),
    ("getLog", "names of logs"),
    ("getMore", "continues a cursor"),
    ("getParameter", "reads a parameter"),
    ("hello", "what this server is"),
    ("hostInfo", "the machine"),
    ("insert", "adds documents"),
    ("isMaster", "what this server is"),
    ("killCursors", "ends cursors"),
    ("killOp", "ends an operation"),
    ("listCollections", "collections of a database"),
    ("listCommands", "this list"),
    ("listDatabases", "all databases"),
    ("listIndexes", "indexes of a collection"),
    ("ping", "answers"),
    ("refreshSessions", "prolongs sessions"),
    ("renameCollection", "renames a collection"),
    ("serverStatus", "counters"),
    ("shutdown", "stops the server"),
    ("startSession", "starts a session"),
    ("update", "changes documents"),
    ("validate", "checks records against indexes"),
    ("whatsmyuri", "the client's address"),
];

pub(crate) fn list_commands() -> Answer {
    let mut writer = Reply::writer();
    writer.begin_document("commands");
    for (name, help) in COMMANDS {
        writer
            .begin_document(name)
            .append("help", *help)
            .append("requiresAuth", false)
            .append("secondaryOk", true)
            .append("adminOnly", false)
            .end();
    }
    writer.end();
    finish(writer)
}
