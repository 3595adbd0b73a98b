//! Parameters that `setParameter` changes while the server runs.
//!
//! All of them together are one small value behind a watch channel: who depends
//! on one (the expiry of documents, say) is woken when any changes.

use model::bson::{Value, ValueRef};
use model::parameter::{self, integer, integer32};
use model::{Code, Error};
use tokio::sync::watch;

/// The values of all parameters at one moment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Settings {
    /// How far ahead of this machine's clock a client may push the cluster's time.
    pub(crate) clock_drift_secs: i64,
    pub(crate) cursor_timeout_ms: i64,
    pub(crate) group_memory_bytes: i64,
    pub(crate) sort_memory_bytes: i32,
    pub(crate) log_level: i32,
    pub(crate) history_window_secs: i32,
    /// Whether what does not fit into memory goes to disk where a command does not say.
    pub(crate) disk_use: bool,
    pub(crate) move_pacing: bool,
    pub(crate) no_table_scan: bool,
    pub(crate) quiet: bool,
    pub(crate) ttl_enabled: bool,
    pub(crate) ttl_sleep_secs: i32,
    pub(crate) session_refresh_ms: i32,
    pub(crate) session_timeout_minutes: i32,
    pub(crate) session_refresh_disabled: bool,
    pub(crate) shutdown_timeout_ms: i32,
    pub(crate) move_pinned_log_bytes_max: i64,
    pub(crate) move_stall_secs: i32,
    pub(crate) orphan_cleanup_delay_secs: i32,
    pub(crate) range_deleter_batch_delay_ms: i32,
    /// Zero leaves it to the server.
    pub(crate) range_deleter_batch_size: i32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            clock_drift_secs: 365 * 24 * 3600,
            cursor_timeout_ms: 600_000,
            group_memory_bytes: 100 * 1024 * 1024,
            sort_memory_bytes: 100 * 1024 * 1024,
            log_level: 0,
            history_window_secs: 300,
            disk_use: true,
            move_pacing: true,
            no_table_scan: false,
            quiet: false,
            ttl_enabled: true,
            ttl_sleep_secs: 60,
            session_refresh_ms: 300_000,
            session_timeout_minutes: 30,
            session_refresh_disabled: false,
            // The real server waits for 15 s, whether anybody is there or not.
            shutdown_timeout_ms: 2_000,
            move_pinned_log_bytes_max: 32 << 30,
            move_stall_secs: 900,
            orphan_cleanup_delay_secs: 900,
            range_deleter_batch_delay_ms: 20,
            range_deleter_batch_size: i32::MAX,
        }
    }
}

pub(crate) struct Parameters {
    settings: watch::Sender<Settings>,
}

/// Names in the order in which they are shown.
pub(crate) const SETTABLE: &[&str] = &[
    "allowDiskUseByDefault",
    "cursorTimeoutMillis",
    "internalDocumentSourceGroupMaxMemoryBytes",
    "internalQueryMaxBlockingSortMemoryUsageBytes",
    "logLevel",
    "minSnapshotHistoryWindowInSeconds",
    "movePacingEnabled",
    "movePinnedLogBytesMax",
    "moveStallSecs",
    "notablescan",
    "orphanCleanupDelaySecs",
    "quiet",
    "rangeDeleterBatchDelayMS",
    "rangeDeleterBatchSize",
    "shutdownTimeoutMillisForSignaledShutdown",
    "ttlMonitorEnabled",
    "ttlMonitorSleepSecs",
];

/// Those that are given when the server starts, and not changed afterwards.
pub(crate) const AT_STARTUP: &[&str] = &[
    "disableLogicalSessionCacheRefresh",
    "localLogicalSessionTimeoutMinutes",
    "logicalSessionRefreshMillis",
    "maxAcceptableLogicalClockDriftSecs",
];

impl Settings {
    pub(crate) fn get(&self, name: &str) -> Option<Value> {
        Some(match name {
            "allowDiskUseByDefault" => self.disk_use.into(),
            "cursorTimeoutMillis" => self.cursor_timeout_ms.into(),
            "internalDocumentSourceGroupMaxMemoryBytes" => self.group_memory_bytes.into(),
            "internalQueryMaxBlockingSortMemoryUsageBytes" => self.sort_memory_bytes.into(),
            "logLevel" => self.log_level.into(),
            "minSnapshotHistoryWindowInSeconds" => self.history_window_secs.into(),
            "movePacingEnabled" => self.move_pacing.into(),
            "movePinnedLogBytesMax" => self.move_pinned_log_bytes_max.into(),
            "moveStallSecs" => self.move_stall_secs.into(),
            "notablescan" => self.no_table_scan.into(),
            "orphanCleanupDelaySecs" => self.orphan_cleanup_delay_secs.into(),
            "quiet" => self.quiet.into(),
            "rangeDeleterBatchDelayMS" => self.range_deleter_batch_delay_ms.into(),
            "rangeDeleterBatchSize" => self.range_deleter_batch_size.into(),
            "shutdownTimeoutMillisForSignaledShutdown" => self.shutdown_timeout_ms.into(),
            "ttlMonitorEnabled" => self.ttl_enabled.into(),
            "ttlMonitorSleepSecs" => self.ttl_sleep_secs.into(),
            "disableLogicalSessionCacheRefresh" => self.session_refresh_disabled.into(),
            "localLogicalSessionTimeoutMinutes" => self.session_timeout_minutes.into(),
            "logicalSessionRefreshMillis" => self.session_refresh_ms.into(),
            "maxAcceptableLogicalClockDriftSecs" => self.clock_drift_secs.into(),
            _ => return None,
        })
    }

    /// Changes one parameter; its name must be one of [`SETTABLE`] or [`AT_STARTUP`].
    pub(crate) fn set(&mut self, name: &str, value: ValueRef<'_>) -> Result<(), Error> {
        let truth = model::number::is_truthy(value);
        match name {
            "allowDiskUseByDefault" => self.disk_use = truth,
            "cursorTimeoutMillis" => self.cursor_timeout_ms = integer(name, value)?,
            "internalDocumentSourceGroupMaxMemoryBytes" => {
                self.group_memory_bytes = parameter::positive(name, integer(name, value)?)?;
            }
            "internalQueryMaxBlockingSortMemoryUsageBytes" => {
                self.sort_memory_bytes = not_negative(name, value)?;
            }
            "logLevel" => self.log_level = parameter::log_level(value)?,
            "minSnapshotHistoryWindowInSeconds" => {
                self.history_window_secs = not_negative(name, value)?;
            }
            "movePinnedLogBytesMax" => {
                self.move_pinned_log_bytes_max = parameter::positive(name, integer(name, value)?)?;
            }
            "moveStallSecs" => self.move_stall_secs = positive(name, value)?,
            "notablescan" => {
                if truth {
                    return Err(Error::new(
                        Code::COMMAND_NOT_SUPPORTED,
                        "the parameter notablescan is not supported",
                    ));
                }
            }
            "movePacingEnabled" => self.move_pacing = truth,
            "orphanCleanupDelaySecs" => {
                self.orphan_cleanup_delay_secs = not_negative(name, value)?;
            }
            "quiet" => self.quiet = truth,
            "rangeDeleterBatchDelayMS" => {
                self.range_deleter_batch_delay_ms = not_negative(name, value)?;
            }
            "rangeDeleterBatchSize" => self.range_deleter_batch_size = not_negative(name, value)?,
            "shutdownTimeoutMillisForSignaledShutdown" => {
                self.shutdown_timeout_ms = not_negative(name, value)?;
            }
            "ttlMonitorEnabled" => self.ttl_enabled = truth,
            "ttlMonitorSleepSecs" => {
                self.ttl_sleep_secs = positive(name, value)?;
            }
            "disableLogicalSessionCacheRefresh" => self.session_refresh_disabled = truth,
            "localLogicalSessionTimeoutMinutes" => {
                self.session_timeout_minutes = positive(name, value)?;
            }
            "logicalSessionRefreshMillis" => self.session_refresh_ms = positive(name, value)?,
            "maxAcceptableLogicalClockDriftSecs" => {
                self.clock_drift_secs = parameter::positive(name, integer(name, value)?)?;
            }
            _ => unreachable!("callers set only parameters that can be set"),
        }
        Ok(())
    }
}

fn not_negative(name: &str, value: ValueRef<'_>) -> Result<i32, Error> {
    parameter::not_negative(name, integer32(name, value)?)
}

fn positive(name: &str, value: ValueRef<'_>) -> Result<i32, Error> {
    parameter::positive(name, integer32(name, value)?)
}

impl Parameters {
    /// With values as somebody typed them.
    pub(crate) fn at_startup(given: &[(String, String)]) -> Result<Self, Error> {
        let mut settings = Settings::default();
        for (name, text) in given {
            if !SETTABLE.contains(&name.as_str()) && !AT_STARTUP.contains(&name.as_str()) {
                return Err(Error::bad_value(format!("there is no parameter {name}")));
            }
            settings.set(name, parameter::typed(text))?;
        }
        Ok(Self {
            settings: watch::Sender::new(settings),
        })
    }

    pub(crate) fn current(&self) -> Settings {
        *self.settings.borrow()
    }

    /// Takes over changed settings and wakes who watches them.
    pub(crate) fn replace(&self, settings: Settings) {
        self.settings.send_replace(settings);
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Settings> {
        self.settings.subscribe()
    }
}
