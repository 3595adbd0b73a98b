//! Read concern: which state a read may see.
//!
//! What is applied is committed, so `local`, `available` and `majority` read the same: the applied state;
//! `available` also shows what is stored here and belongs to other shards. A member that has just started
//! does not know yet how much of its log is committed, and may have applied less than it had shown before:
//! until it has applied what its log held then, `majority` and `snapshot` wait ⚑.
//! `snapshot` reads as of one time. `linearizable` first asks a majority whether this member is still the
//! primary. `afterClusterTime` waits until an entry at or after that time is applied ⚑; a primary that has
//! none writes an entry that changes nothing, because no later entry can have an earlier time, and a
//! secondary asks the primary to.

use crate::Shard;
use crate::command::arguments::fields;
use crate::operation::Operation;
use crate::rules::Rule;
use model::bson::{Doc, ValueRef};
use model::time::ClusterTime;
use model::{Code, Error};
use std::time::Duration;

/// How often a wait looks whether its client still wants it.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Which state a read may see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadConcern {
    /// local, available, majority and linearizable read what is applied.
    Latest,
    /// As of one time: the given one, or that of the command's start.
    Snapshot(Option<ClusterTime>),
}

/// A read concern as it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReadConcernOptions {
    pub(crate) concern: ReadConcern,
    pub(crate) linearizable: bool,
    pub(crate) available: bool,
    /// What was seen once does not vanish: majority and snapshot.
    pub(crate) lasting: bool,
    pub(crate) after: Option<ClusterTime>,
}

impl ReadConcernOptions {
    pub(crate) const DEFAULT: ReadConcernOptions = ReadConcernOptions {
        concern: ReadConcern::Latest,
        linearizable: false,
        available: false,
        lasting: false,
        after: None,
    };

    pub(crate) fn parse(command: &str, doc: Doc<'_>) -> Result<Self, Error> {
        let invalid = |message: String| Err(Error::new(Code::INVALID_OPTIONS, message));
        let (mut level, mut at, mut after) = (None, None, None);
        for field in fields("readConcern", doc) {
            match field.name() {
                "level" => level = Some(Level::parse(field.string()?)?),
                "atClusterTime" => at = Some(timestamp("atClusterTime", field.value())?),
                "afterClusterTime" => after = Some(timestamp("afterClusterTime", field.value())?),
                "afterOpTime" => {
                    let time = match field.value() {
                        ValueRef::Document(time) => time.get("ts"),
                        _ => return Err(field.wrong_type("object")),
                    };
                    let missing = || Error::new(Code::NO_SUCH_KEY, "Missing expected field \"ts\"");
                    after = Some(timestamp("ts", time.ok_or_else(missing)?)?);
                }
                "provenance" => match field.string()? {
                    "clientSupplied" | "implicitDefault" | "customDefault" => {}
                    other => {
                        return Err(Error::bad_value(format!(
                            "Enumeration value '{other}' for field \
                             'ReadConcernArgs::parse.provenance' is not a valid value."
                        )));
                    }
                },
                other => return invalid(format!("Unrecognized option in readConcern: {other}")),
            }
        }
        let chosen = level.unwrap_or(Level::Local);
        if at.is_some() && after.is_some() {
            return invalid(
                "Specifying a timestamp for readConcern snapshot in a causally consistent session \
                 is not allowed"
                    .to_owned(),
            );
        }
        if after.is_some() && matches!(chosen, Level::Linearizable | Level::Available) {
            return invalid(
                "afterClusterTime field can be set only if level is equal to majority, local, or \
                 snapshot"
                    .to_owned(),
            );
        }
        if at.is_some() && chosen != Level::Snapshot {
            return invalid(
                "atClusterTime field can be set only if level is equal to snapshot".to_owned(),
            );
        }
        if !chosen.is_supported_by(command) {
            return invalid(format!(
                "Command {command} does not support readConcern {doc:?}"
            ));
        }
        if after.is_some() && matches!(command, "ping" | "dbHash" | "getMore") {
            return invalid("afterClusterTime is not allowed for this command".to_owned());
        }
        Ok(Self {
            concern: match chosen {
                Level::Snapshot => ReadConcern::Snapshot(at),
                Level::Local | Level::Available | Level::Majority | Level::Linearizable => {
                    ReadConcern::Latest
                }
            },
            linearizable: chosen == Level::Linearizable,
            available: chosen == Level::Available,
            lasting: matches!(chosen, Level::Majority | Level::Snapshot),
            after,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Local,
    Available,
    Majority,
    Linearizable,
    Snapshot,
}

impl Level {
    pub(crate) fn parse(name: &str) -> Result<Level, Error> {
        match name {
            "local" => Ok(Level::Local),
            "available" => Ok(Level::Available),
            "majority" => Ok(Level::Majority),
            "linearizable" => Ok(Level::Linearizable),
            "snapshot" => Ok(Level::Snapshot),
            _ => Err(Error::new(
                Code::FAILED_TO_PARSE,
                "readConcern.level must be either 'local', 'majority', 'linearizable', \
                 'available', or 'snapshot'",
            )),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Level::Local => "local",
            Level::Available => "available",
            Level::Majority => "majority",
            Level::Linearizable => "linearizable",
            Level::Snapshot => "snapshot",
        }
    }

    /// Commands that read documents take every level, the others only `local`.
    fn is_supported_by(self, command: &str) -> bool {
        match self {
            Level::Local => true,
            Level::Available | Level::Majority | Level::Linearizable => {
                matches!(
                    command,
                    "find" | "aggregate" | "distinct" | "count" | "getMore"
                )
            }
            Level::Snapshot => matches!(command, "find" | "aggregate" | "distinct" | "getMore"),
        }
    }
}

fn timestamp(name: &str, value: ValueRef<'_>) -> Result<ClusterTime, Error> {
    match value {
        ValueRef::Timestamp(time) if time.seconds == 0 && time.increment == 0 => Err(Error::new(
            Code::INVALID_OPTIONS,
            format!("{name} cannot be a null timestamp"),
        )),
        ValueRef::Timestamp(time) => Ok(ClusterTime::new(time.seconds, time.increment)),
        other => Err(Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "\"{name}\" had the wrong type. Expected timestamp, found {}",
                other.kind().name()
            ),
        )),
    }
}

impl Shard {
    /// Waits for what a read concern asks for before the command may run.
    pub(crate) async fn await_read_concern(
        &self,
        options: &ReadConcernOptions,
        operation: &Operation,
    ) -> Result<(), Error> {
        if options.lasting {
            self.reach_start(operation).await?;
        }
        if let ReadConcern::Snapshot(Some(time)) = options.concern {
            self.reach_time("atClusterTime", time, operation).await?;
        }
        if let Some(time) = options.after {
            self.reach_time("afterClusterTime", time, operation).await?;
        }
        if options.linearizable {
            self.confirm_leadership(operation).await?;
        }
        Ok(())
    }

    /// ⚑ Waits until everything is applied that the log held when this member started, or of which
    /// a primary has said that it does not count.
    async fn reach_start(&self, operation: &Operation) -> Result<(), Error> {
        loop {
            let wanted = self.log_at_start.min(self.log.last_appended());
            if self.log.last_applied() >= wanted {
                return Ok(());
            }
            let applied = self.log.wait_applied(wanted);
            match tokio::time::timeout(LOOK_INTERVAL, applied).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => {
                    return Err(Error::new(Code::SHUTDOWN_IN_PROGRESS, error.to_string()));
                }
                Err(_) => operation.check()?,
            }
        }
    }

    /// ⚑ Asks a majority whether this member leads, and waits until it has applied everything that
    /// was acknowledged before. Waits as long as no majority answers, up to the operation's time limit.
    async fn confirm_leadership(&self, operation: &Operation) -> Result<(), Error> {
        let mut barrier = std::pin::pin!(self.log.read_barrier());
        loop {
            match tokio::time::timeout(LOOK_INTERVAL, barrier.as_mut()).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => {
                    return Err(Error::new(Code::NOT_WRITABLE_PRIMARY, error.to_string()));
                }
                Err(_) => operation.check()?,
            }
        }
    }

    /// ⚑ Waits until nothing can be written at or before a time any more: an entry at
    /// or after it is applied. A time that was never given out is refused.
    pub(super) async fn reach_time(
        &self,
        option: &str,
        time: ClusterTime,
        operation: &Operation,
    ) -> Result<(), Error> {
        if self.store.applied_time() >= time || !self.rules.hold(Rule::ReachTime) {
            return Ok(());
        }
        let latest = self.cluster_time();
        if time > latest {
            let text = |time: ClusterTime| {
                format!(
                    "{{ ts: Timestamp({}, {}) }}",
                    time.seconds(),
                    time.increment()
                )
            };
            return Err(Error::new(
                Code::INVALID_OPTIONS,
                format!(
                    "readConcern {option} value must not be greater than the current \
                     clusterTime. Requested clusterTime: {}; current clusterTime: {}",
                    text(time),
                    text(latest)
                ),
            ));
        }
        if self.replica_set.is_primary() {
            // Its time is after all times given before.
            return self.propose_catalog(|encoder| encoder.noop()).await;
        }
        // Another member's next entry may be far off: the primary is asked to write one.
        self.ask_for_time(time).await;
        let mut progress = self.log.watch();
        loop {
            let reached = progress.wait_for(|_| self.store.applied_time() >= time);
            match tokio::time::timeout(LOOK_INTERVAL, reached).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(_)) => {
                    return Err(Error::new(
                        Code::INTERRUPTED_AT_SHUTDOWN,
                        "the log has ended",
                    ));
                }
                Err(_) => operation.check()?,
            }
        }
    }
}
