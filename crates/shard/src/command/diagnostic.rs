//! What shells and monitoring tools ask about the server itself.

use super::arguments::{arguments, fields};
use super::{Answer, Invocation, bare_failure, finish};
use crate::Shard;
use crate::parameters::{AT_STARTUP, SETTABLE};
use crate::recent_log::RecentLog;
use model::bson::{ArrayBuf, DocWriter, Value, ValueRef};
use model::{Code, Error};
use wire::{Origin, Reply};

/// The version of MongoDB whose behaviour this server follows.
pub(crate) const COMPATIBLE_VERSION: &str = "6.0.5";
const COMPATIBLE_VERSION_PARTS: [i32; 4] = [6, 0, 5, 0];

pub(crate) fn ping(invocation: &Invocation<'_>) -> Answer {
    match arguments("ping", invocation.request.body()).next() {
        Some(argument) => Err(argument.unknown()),
        None => finish(Reply::writer()),
    }
}

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

pub(crate) fn connection_status(invocation: &Invocation<'_>) -> Answer {
    let mut privileges = false;
    for argument in arguments("connectionStatus", invocation.request.body()) {
        match argument.name() {
            "showPrivileges" => privileges = argument.loose_boolean()?,
            _ => return Err(argument.unknown()),
        }
    }
    let mut writer = Reply::writer();
    writer
        .begin_document("authInfo")
        .begin_array("authenticatedUsers")
        .end()
        .begin_array("authenticatedUserRoles")
        .end();
    if privileges {
        writer.begin_array("authenticatedUserPrivileges").end();
    }
    writer.end();
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
fn parameters(shard: &Shard) -> Vec<(&'static str, Value)> {
    let settings = shard.parameters.current();
    let version = DocWriter::new().with("version", "6.0").finish();
    let mut known: Vec<(&'static str, Value)> = vec![
        ("authenticationMechanisms", Value::Array(ArrayBuf::new())),
        ("featureCompatibilityVersion", Value::Document(version)),
        ("enableTestCommands", false.into()),
        ("transactionLifetimeLimitSeconds", 60.into()),
    ];
    for name in SETTABLE.iter().chain(AT_STARTUP) {
        known.extend(settings.get(name).map(|value| (*name, value)));
    }
    known.sort_by_key(|(name, _)| *name);
    known
}

pub(crate) fn get_parameter(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let body = invocation.request.body();
    let (mut all, mut details) = (false, false);
    match body.first().map(|element| element.value()) {
        Some(ValueRef::String("*")) => all = true,
        Some(ValueRef::Document(options)) => {
            for field in fields("getParameter", options) {
                match field.name() {
                    "allParameters" => all = field.loose_boolean()?,
                    "showDetails" => details = field.loose_boolean()?,
                    "setAt" => {}
                    _ => return Err(field.unknown()),
                }
            }
        }
        _ => {}
    }
    let mut writer = Reply::writer();
    let mut found = false;
    for (name, value) in parameters(invocation.shard) {
        if !all && !body.iter().skip(1).any(|element| element.key() == name) {
            continue;
        }
        found = true;
        if details {
            writer
                .begin_document(name)
                .append("value", &value)
                .append("settableAtRuntime", SETTABLE.contains(&name))
                .append("settableAtStartup", AT_STARTUP.contains(&name))
                .end();
        } else {
            writer.append(name, &value);
        }
    }
    if !found {
        return bare_failure("no option found to get");
    }
    finish(writer)
}

/// Sets parameters, all or none. The reply shows what the first one was.
pub(crate) fn set_parameter(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let shard = invocation.shard;
    let readable = parameters(shard);
    let mut settings = shard.parameters.current();
    let mut was = None;
    for argument in arguments("setParameter", invocation.request.body()) {
        let name = argument.name();
        if !SETTABLE.contains(&name) {
            return bare_failure(&if readable.iter().any(|(known, _)| *known == name) {
                format!("not allowed to change [{name}] at runtime")
            } else {
                format!(
                    "attempted to set unrecognized parameter [{name}], use help:true to see options "
                )
            });
        }
        if was.is_none() {
            was = settings.get(name);
        }
        settings.set(name, argument.value())?;
    }
    let Some(was) = was else {
        return bare_failure("no option found to set, use help:true to see options ");
    };
    shard.parameters.replace(settings);
    finish(Reply::writer().with("was", &was))
}

pub(crate) fn get_log(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    if let Some(unknown) = arguments("getLog", invocation.request.body()).next() {
        return Err(unknown.unknown());
    }
    let name = match invocation.request.body().first().map(|e| e.value()) {
        Some(ValueRef::String(name)) => name.to_owned(),
        _ => {
            return Err(Error::new(
                Code::TYPE_MISMATCH,
                "BSON field 'getLog.getLog' is the wrong type, expected type 'string'",
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
        "global" => {
            let (written, lines) = RecentLog.lines();
            writer
                .append("totalLinesWritten", written as i32)
                .begin_array("log");
            for line in &lines {
                writer.push(line.as_str());
            }
            writer.end();
        }
        "startupWarnings" => {
            writer
                .append("totalLinesWritten", 0)
                .begin_array("log")
                .end();
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
    let host = &invocation.shard.host;
    let mut writer = Reply::writer();
    writer
        .begin_document("system")
        .append(
            "currentTime",
            ValueRef::DateTime(invocation.shard.clock.now_ms()),
        )
        .append("hostname", &invocation.shard.host_of(invocation.connection))
        .append("cpuAddrSize", usize::BITS as i32)
        .append("memSizeMB", host.memory_mb)
        .append("memLimitMB", host.memory_mb)
        .append("numCores", host.cores)
        .append("numPhysicalCores", host.processors.physical_cores)
        .append("numCpuSockets", host.processors.sockets)
        .append("cpuArch", std::env::consts::ARCH)
        .append("numaEnabled", host.numa_nodes > 1)
        .append("numNumaNodes", host.numa_nodes)
        .end()
        .begin_document("os")
        .append("type", "Linux")
        .append("name", &host.system)
        .append("version", format!("Kernel {}", host.kernel).as_str())
        .end()
        .begin_document("extra")
        .begin_document("extra")
        .append("versionString", &host.kernel_version)
        .append("kernelVersion", &host.kernel)
        .append("cpuFrequencyMHz", &host.processors.megahertz)
        .append("cpuFeatures", &host.processors.features)
        .append("pageSize", i64::from(host.page_bytes))
        .append("numPages", host.pages)
        .append("maxOpenFiles", host.files_max)
        .end()
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

/// Every command with what it is for.
const COMMANDS: &[(&str, &str)] = &[
    ("aggregate", "runs an aggregation pipeline"),
    ("appendOplogNote", "moves the time of the log on"),
    ("availableQueryOptions", "flags of legacy queries"),
    ("buildInfo", "the version and how it was built"),
    ("collMod", "changes options of an index"),
    ("collStats", "sizes of a collection"),
    (
        "connectionStatus",
        "who is authenticated on this connection",
    ),
    ("connPoolStats", "pools of outgoing connections"),
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
    ("features", "features of the process"),
    ("find", "reads documents"),
    ("findAndModify", "changes one document and returns it"),
    ("fsync", "makes everything durable"),
    ("fsyncUnlock", "ends a lock by fsync"),
    ("getCmdLineOpts", "how the server was started"),
    ("getDefaultRWConcern", "concerns of commands that name none"),
    ("getDiagnosticData", "counters in one document"),
    ("getFreeMonitoringStatus", "free monitoring is not there"),
    ("getLog", "names of logs"),
    ("getMore", "continues a cursor"),
    ("getParameter", "reads a parameter"),
    ("hello", "what this server is"),
    ("hostInfo", "the machine"),
    ("insert", "adds documents"),
    ("isMaster", "what this server is"),
    ("killCursors", "ends cursors"),
    ("killAllSessions", "ends sessions"),
    ("killAllSessionsByPattern", "ends sessions"),
    ("killOp", "ends an operation"),
    ("killSessions", "ends sessions"),
    ("listCollections", "collections of a database"),
    ("listCommands", "this list"),
    ("listDatabases", "all databases"),
    ("listIndexes", "indexes of a collection"),
    ("lockInfo", "locks"),
    ("logout", "ends authentication"),
    ("logRotate", "nothing: the log goes to standard error"),
    ("ping", "answers"),
    ("profile", "whether operations are profiled"),
    (
        "reapLogicalSessionCacheNow",
        "deletes what is kept of sessions that are gone",
    ),
    (
        "refreshLogicalSessionCacheNow",
        "writes sessions in use to config.system.sessions",
    ),
    ("refreshSessions", "prolongs sessions"),
    ("renameCollection", "renames a collection"),
    ("replSetGetConfig", "configuration of a replica set"),
    ("replSetGetStatus", "members of a replica set"),
    (
        "replSetReconfig",
        "changes the configuration of a replica set",
    ),
    ("rolesInfo", "roles"),
    ("serverStatus", "counters"),
    ("setDefaultRWConcern", "concerns of commands that name none"),
    ("setFeatureCompatibilityVersion", "accepts 6.0"),
    ("setParameter", "changes a parameter"),
    ("shardingState", "whether this is a shard"),
    ("shutdown", "stops the server"),
    ("startSession", "starts a session"),
    ("top", "collections in use"),
    ("update", "changes documents"),
    ("usersInfo", "users"),
    ("validate", "checks records against indexes"),
    ("whatsmyuri", "the client's address"),
];

/// Those that may only be run against the admin database.
const ADMIN_COMMANDS: &[&str] = &[
    "appendOplogNote",
    "currentOp",
    "fsync",
    "fsyncUnlock",
    "getCmdLineOpts",
    "getDiagnosticData",
    "getFreeMonitoringStatus",
    "getLog",
    "getParameter",
    "killOp",
    "listDatabases",
    "lockInfo",
    "logRotate",
    "renameCollection",
    "replSetGetConfig",
    "replSetGetStatus",
    "setFeatureCompatibilityVersion",
    "setParameter",
    "shardingState",
    "shutdown",
    "top",
];

/// Whether there is a command of this name.
pub(crate) fn is_command(name: &str) -> bool {
    COMMANDS.iter().any(|(known, _)| *known == name)
}

pub(crate) fn list_commands() -> Answer {
    let mut writer = Reply::writer();
    writer.begin_document("commands");
    for (name, help) in COMMANDS {
        writer
            .begin_document(name)
            .append("help", *help)
            .append("requiresAuth", false)
            .append("secondaryOk", true)
            .append("adminOnly", ADMIN_COMMANDS.contains(name))
            .begin_array("apiVersions")
            .end()
            .begin_array("deprecatedApiVersions")
            .end()
            .end();
    }
    writer.end();
    finish(writer)
}
