//! The parameters of a router, which `setParameter` changes while it runs.
//!
//! They are its own, as those of `mongos` are: what a router does itself obeys them, and no other router, shard or
//! config server hears of them. What concerns servers only (when orphans are removed, say) is set on those. A router
//! refuses it by name instead of keeping a value that nobody obeys:
//!
//! ```text
//!   one of the router's     set, shown
//!   one that servers have   "… is a parameter of shards and config servers, …"
//!   any other               MongoDB's words
//! ```
//!
//! Which parameters servers have is asked of the config server, so that no list of theirs is kept here.
//!
//! `logLevel` and `quiet` are kept without effect, as by shards. How long sessions live is said by the config server: it
//! can be read here, and set there.

use crate::Router;
use crate::arguments::is_generic;
use crate::failure::Failure;
use model::bson::{ArrayBuf, Doc, DocWriter, Value, ValueRef};
use model::error::Error;
use model::number::is_truthy;
use model::parameter::{self, integer, integer32, not_negative, positive};
use std::time::Duration;
use wire::{Reply, Request};

/// How long the config server may take to say whether it knows a name.
const CONFIG_LIMIT: Duration = Duration::from_secs(1);

/// Their values at one moment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Parameters {
    /// After how long cursors that nobody uses are closed.
    pub(crate) cursor_timeout_ms: i64,
    /// How far ahead of this machine's clock a client may push the cluster's time.
    pub(crate) clock_drift_secs: i64,
    /// Whether what does not fit into memory goes to disk where a command does not say.
    pub(crate) disk_use: bool,
    /// What one command's partial results may weigh in memory, and what a stage that collects may take.
    pub(crate) group_memory_bytes: i64,
    pub(crate) sort_memory_bytes: i32,
    pub(crate) log_level: i32,
    pub(crate) quiet: bool,
    /// How long clients are told that the router is about to stop.
    pub(crate) quiesce_ms: i32,
    /// How often sessions are written to the cluster's collection.
    pub(crate) session_refresh_ms: i32,
    pub(crate) session_refresh_disabled: bool,
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters {
            cursor_timeout_ms: 600_000,
            clock_drift_secs: 365 * 24 * 3600,
            disk_use: true,
            group_memory_bytes: 100 * 1024 * 1024,
            sort_memory_bytes: 100 * 1024 * 1024,
            log_level: 0,
            quiet: false,
            quiesce_ms: 15_000,
            session_refresh_ms: 300_000,
            session_refresh_disabled: false,
        }
    }
}

const SETTABLE: &[&str] = &[
    "allowDiskUseByDefault",
    "cursorTimeoutMillis",
    "internalDocumentSourceGroupMaxMemoryBytes",
    "internalQueryMaxBlockingSortMemoryUsageBytes",
    "logLevel",
    ROUTERS_ONLY,
    "quiet",
];

/// Those that are given when the router starts, and not changed afterwards.
const AT_STARTUP: &[&str] = &[
    "disableLogicalSessionCacheRefresh",
    "logicalSessionRefreshMillis",
    "maxAcceptableLogicalClockDriftSecs",
];

/// The one that no server has.
const ROUTERS_ONLY: &str = "mongosShutdownTimeoutMillisForSignaledShutdown";

/// Said by the config server.
const SESSION_TIMEOUT: &str = "localLogicalSessionTimeoutMinutes";

impl Parameters {
    /// With values as somebody typed them.
    pub fn at_startup<'a>(
        given: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Parameters, Error> {
        let mut parameters = Parameters::default();
        for (name, text) in given {
            if name == SESSION_TIMEOUT {
                return Err(Error::bad_value(format!(
                    "{name} is set on the config server, which tells routers"
                )));
            }
            if !Self::has(name) {
                return Err(Error::bad_value(format!(
                    "a router has no parameter {name}"
                )));
            }
            parameters.set(name, parameter::typed(text))?;
        }
        Ok(parameters)
    }

    /// Whether a router can be started with such a parameter.
    pub fn has(name: &str) -> bool {
        SETTABLE.contains(&name) || AT_STARTUP.contains(&name)
    }

    /// Whether nobody but routers has such a parameter.
    pub fn only_routers_have(name: &str) -> bool {
        name == ROUTERS_ONLY
    }

    /// How often sessions are written to the cluster's collection; `None`: never.
    pub(crate) fn session_refresh(&self) -> Option<Duration> {
        let period = Duration::from_millis(u64::from(self.session_refresh_ms.unsigned_abs()));
        (!self.session_refresh_disabled).then_some(period)
    }

    pub(crate) fn cursor_timeout(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.cursor_timeout_ms).unwrap_or(0))
    }

    pub(crate) fn group_memory_bytes(&self) -> usize {
        usize::try_from(self.group_memory_bytes).unwrap_or(usize::MAX)
    }

    pub(crate) fn sort_memory_bytes(&self) -> usize {
        usize::try_from(self.sort_memory_bytes).unwrap_or(0)
    }

    pub(crate) fn quiesce(&self) -> Duration {
        Duration::from_millis(u64::from(self.quiesce_ms.unsigned_abs()))
    }

    fn get(&self, name: &str) -> Option<Value> {
        Some(match name {
            "allowDiskUseByDefault" => self.disk_use.into(),
            "cursorTimeoutMillis" => self.cursor_timeout_ms.into(),
            "disableLogicalSessionCacheRefresh" => self.session_refresh_disabled.into(),
            "internalDocumentSourceGroupMaxMemoryBytes" => self.group_memory_bytes.into(),
            "internalQueryMaxBlockingSortMemoryUsageBytes" => self.sort_memory_bytes.into(),
            "logLevel" => self.log_level.into(),
            "logicalSessionRefreshMillis" => self.session_refresh_ms.into(),
            "maxAcceptableLogicalClockDriftSecs" => self.clock_drift_secs.into(),
            ROUTERS_ONLY => self.quiesce_ms.into(),
            "quiet" => self.quiet.into(),
            _ => return None,
        })
    }

    /// Changes one parameter; its name must be one of [`SETTABLE`] or [`AT_STARTUP`].
    fn set(&mut self, name: &str, value: ValueRef<'_>) -> Result<(), Error> {
        let truth = is_truthy(value);
        match name {
            "allowDiskUseByDefault" => self.disk_use = truth,
            "cursorTimeoutMillis" => self.cursor_timeout_ms = integer(name, value)?,
            "disableLogicalSessionCacheRefresh" => self.session_refresh_disabled = truth,
            "internalDocumentSourceGroupMaxMemoryBytes" => {
                self.group_memory_bytes = positive(name, integer(name, value)?)?;
            }
            "internalQueryMaxBlockingSortMemoryUsageBytes" => {
                self.sort_memory_bytes = not_negative(name, integer32(name, value)?)?;
            }
            "logLevel" => self.log_level = parameter::log_level(value)?,
            "logicalSessionRefreshMillis" => {
                self.session_refresh_ms = positive(name, integer32(name, value)?)?;
            }
            "maxAcceptableLogicalClockDriftSecs" => {
                self.clock_drift_secs = positive(name, integer(name, value)?)?;
            }
            ROUTERS_ONLY => self.quiesce_ms = not_negative(name, integer32(name, value)?)?,
            "quiet" => self.quiet = truth,
            _ => unreachable!("callers set only parameters that can be set"),
        }
        Ok(())
    }
}

/// All that can be read, by name.
fn readable(router: &Router) -> Vec<(&'static str, Value)> {
    let parameters = router.parameters();
    let version = DocWriter::new().with("version", "6.0").finish();
    let mut known: Vec<(&'static str, Value)> = vec![
        ("authenticationMechanisms", Value::Array(ArrayBuf::new())),
        ("enableTestCommands", false.into()),
        ("featureCompatibilityVersion", Value::Document(version)),
        (SESSION_TIMEOUT, router.sessions.timeout_minutes().into()),
    ];
    for name in SETTABLE.iter().chain(AT_STARTUP) {
        known.extend(parameters.get(name).map(|value| (*name, value)));
    }
    known.sort_by_key(|(name, _)| *name);
    known
}

/// The names that a command is about.
fn names(body: Doc<'_>) -> impl Iterator<Item = &str> {
    let names = body.iter().skip(1).map(|element| element.key());
    names.filter(|name| !is_generic(name))
}

/// Answers `getParameter`.
pub(crate) async fn get(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let body = request.body();
    let (mut all, mut details) = (false, false);
    match body.first().map(|first| first.value()) {
        Some(ValueRef::String("*")) => all = true,
        Some(ValueRef::Document(options)) => {
            for option in options.iter() {
                match option.key() {
                    "allParameters" => all = is_truthy(option.value()),
                    "showDetails" => details = is_truthy(option.value()),
                    "setAt" => {}
                    name => {
                        let message =
                            format!("BSON field 'getParameter.{name}' is an unknown field.");
                        return Err(Error::location(40415, message).into());
                    }
                }
            }
        }
        _ => {}
    }
    let mut writer = Reply::writer();
    let mut is_found = false;
    for (name, value) in readable(router) {
        if !all && !names(body).any(|asked| asked == name) {
            continue;
        }
        is_found = true;
        match details {
            true => writer
                .begin_document(name)
                .append("value", &value)
                .append("settableAtRuntime", SETTABLE.contains(&name))
                .append("settableAtStartup", Parameters::has(name))
                .end(),
            false => writer.append(name, &value),
        };
    }
    if is_found {
        return Ok(Reply::from_writer(writer.with("ok", 1.0)));
    }
    let first = names(body).next();
    Ok(refused(match first {
        Some(name) if is_of_servers(router, name).await => of_servers(name),
        Some(_) | None => "no option found to get".to_owned(),
    }))
}

/// Answers `setParameter`: all or none. The reply shows what the first one was.
pub(crate) async fn set(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let body = request.body();
    if let Some(name) = names(body).find(|name| !SETTABLE.contains(name)) {
        let is_known = readable(router).iter().any(|(known, _)| *known == name);
        return Ok(refused(match is_known {
            true => format!("not allowed to change [{name}] at runtime"),
            false if is_of_servers(router, name).await => of_servers(name),
            false => format!(
                "attempted to set unrecognized parameter [{name}], use help:true to see options "
            ),
        }));
    }
    let mut current = router.parameters.lock();
    let mut changed = *current;
    for element in body.iter().filter(|one| SETTABLE.contains(&one.key())) {
        changed.set(element.key(), element.value())?;
    }
    let was = names(body).next().and_then(|first| current.get(first));
    let Some(was) = was else {
        let message = "no option found to set, use help:true to see options ";
        return Ok(refused(message.to_owned()));
    };
    *current = changed;
    Ok(Reply::from_writer(
        Reply::writer().with("was", &was).with("ok", 1.0),
    ))
}

/// Whether a server has a parameter of this name, if that can be found out.
async fn is_of_servers(router: &Router, name: &str) -> bool {
    let question = DocWriter::new().with("getParameter", 1).with(name, 1);
    let told = router.config.run(question.with("$db", "admin"));
    let told = tokio::time::timeout(CONFIG_LIMIT, told).await;
    matches!(told, Ok(Ok(told)) if told.get(name).is_some())
}

fn of_servers(name: &str) -> String {
    format!(
        "[{name}] is a parameter of shards and config servers, not of routers: connect to one of them to see or set it"
    )
}

/// A refusal without a code, as MongoDB's.
fn refused(message: String) -> Reply {
    let writer = Reply::writer().with("ok", 0.0);
    Reply::from_writer(writer.with("errmsg", message.as_str()))
}
