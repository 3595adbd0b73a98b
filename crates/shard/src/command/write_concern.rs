//! Write concern: who must have a write before its reply is sent.
//!
//! Every reply follows commit and apply, so a majority has the write already whatever was asked for, and
//! `w: 1` costs what `w: "majority"` costs. The one exception is a set of one member, which answers `w: 1`
//! without `j` before the sync. A member has confirmed a write when it has applied it (and synced it before),
//! so that it can be read there. What asks for more — a number of members, a named mode, tags — waits here
//! after the command has run; if that fails, the write stays and the reply says so in
//! `writeConcernError`, as MongoDB has it.

use crate::Shard;
use crate::command::arguments::fields;
use crate::command::placement::{MayGoOn, needs_primary};
use crate::operation::Operation;
use crate::replica_set::MemberNumber;
use crate::replica_set::configuration::Configuration;
use model::bson::{Doc, DocWriter, ValueRef};
use model::number::Number;
use model::{Code, Error};
use replication::Members as LogMembers;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{Reply, Request};

/// How often a wait looks whether it still makes sense.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// What is asked of the log before a write is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteConcern {
    /// Synced before the reply; what every write gets that says nothing else.
    Majority,
    /// `w: 1` or `w: 0` without `j`: applied, and synced soon after.
    Applied,
}

/// Whose confirmation is asked for.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Members {
    Count(u32),
    Majority,
    /// A mode by its name in the configuration's settings.
    Mode(String),
    /// For each tag, how many of its values must have confirmed.
    Tags(Vec<(String, i64)>),
}

/// A write concern as it was given.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct WriteConcernOptions {
    pub(crate) members: Members,
    pub(crate) journal: Option<bool>,
    pub(crate) fsync: bool,
    pub(crate) timeout_ms: i32,
    pub(crate) provenance: &'static str,
}

impl WriteConcernOptions {
    pub(crate) fn parse(doc: Doc<'_>) -> Result<Self, Error> {
        let mut options = Self {
            members: Members::Majority,
            journal: None,
            fsync: false,
            timeout_ms: 0,
            provenance: "clientSupplied",
        };
        for field in fields("WriteConcernOptions", doc) {
            match field.name() {
                "w" => options.members = members(field.value())?,
                "j" => options.journal = Some(field.loose_boolean()?),
                "fsync" => options.fsync = field.loose_boolean()?,
                "wtimeout" => {
                    let number = Number::of(field.value()).map_or(0.0, Number::to_f64);
                    if number.abs() > f64::from(i32::MAX) {
                        return Err(Error::new(
                            Code::FAILED_TO_PARSE,
                            "wtimeout must be a 32-bit integer",
                        ));
                    }
                    options.timeout_ms = number as i32;
                }
                "provenance" => match field.string()? {
                    "clientSupplied"
                    | "implicitDefault"
                    | "customDefault"
                    | "getLastErrorDefaults"
                    | "internalWriteDefault" => {}
                    other => {
                        return Err(Error::bad_value(format!(
                            "Enumeration value '{other}' for field \
                             'WriteConcernOptions.provenance' is not a valid value."
                        )));
                    }
                },
                "getLastError" | "wElectionId" | "wOpTime" => {}
                _ => return Err(field.unknown()),
            }
        }
        if options.fsync && options.journal == Some(true) {
            return Err(Error::new(
                Code::FAILED_TO_PARSE,
                "fsync and j options cannot be used together",
            ));
        }
        Ok(options)
    }

    /// What the log has to do for it.
    pub(crate) fn durability(&self) -> WriteConcern {
        match (&self.members, self.journal) {
            (Members::Count(0 | 1), None | Some(false)) => WriteConcern::Applied,
            (Members::Count(_) | Members::Majority | Members::Mode(_) | Members::Tags(_), _) => {
                WriteConcern::Majority
            }
        }
    }

    /// False if the reply tells nothing of the outcome.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.members != Members::Count(0) || self.journal == Some(true) || self.fsync
    }

    /// Whether the log's own commit is not enough.
    pub(crate) fn waits_for_members(&self) -> bool {
        match self.members {
            Members::Count(count) => count > 1,
            Members::Majority => false,
            Members::Mode(_) | Members::Tags(_) => true,
        }
    }

    pub(crate) fn append_to(&self, writer: &mut DocWriter) {
        match &self.members {
            Members::Count(count) => writer.append("w", *count as i32),
            Members::Majority => writer.append("w", "majority"),
            Members::Mode(name) => writer.append("w", name.as_str()),
            Members::Tags(tags) => {
                writer.begin_document("w");
                for (tag, count) in tags {
                    writer.append(tag, *count);
                }
                writer.end()
            }
        };
        if self.fsync {
            writer.append("fsync", true);
        }
        if let Some(journal) = self.journal {
            writer.append("j", journal);
        }
        writer.append("wtimeout", self.timeout_ms);
    }
}

/// A number of members as the real server reads it: decimals are rounded,
/// doubles are cut, and NaN is zero.
fn member_count(number: Number) -> f64 {
    let count = match number {
        Number::Decimal(_) => number.to_f64().round_ties_even(),
        _ => number.to_f64().trunc(),
    };
    if count.is_nan() { 0.0 } else { count }
}

fn members(value: ValueRef<'_>) -> Result<Members, Error> {
    let refuse = |message: String| Err(Error::new(Code::FAILED_TO_PARSE, message));
    match value {
        ValueRef::String("majority") => Ok(Members::Majority),
        ValueRef::String(mode) => Ok(Members::Mode(mode.to_owned())),
        ValueRef::Null | ValueRef::Undefined => Ok(Members::Mode(String::new())),
        ValueRef::Document(tags) if tags.is_empty() => {
            refuse("tagged write concern requires tags".to_owned())
        }
        ValueRef::Document(tags) => {
            let mut counts = Vec::new();
            for tag in tags.iter() {
                match Number::of(tag.value()).and_then(|number| number.to_i64_truncated()) {
                    Some(count) => counts.push((tag.key().to_owned(), count)),
                    None => {
                        return refuse(format!(
                            "tags must be a single level document with only number values; found: \
                             {}: {}",
                            tag.key(),
                            model::text::value_quoted(tag.value())
                        ));
                    }
                }
            }
            Ok(Members::Tags(counts))
        }
        value => match Number::of(value).map(member_count) {
            Some(count) if (0.0..=50.0).contains(&count) => Ok(Members::Count(count as u32)),
            Some(count) => refuse(format!(
                "w has to be a non-negative number and not greater than 50; found: {count}"
            )),
            None => refuse(format!(
                "w has to be a number, string, or object; found: {}",
                value.kind().name()
            )),
        },
    }
}

impl Configuration {
    /// Whether the members that this set has could ever satisfy a write concern.
    pub(crate) fn check_satisfiable(&self, members: &Members) -> Result<(), Error> {
        let unsatisfiable =
            |message: String| Err(Error::new(Code::UNSATISFIABLE_WRITE_CONCERN, message));
        match members {
            Members::Majority => Ok(()),
            Members::Count(count) if *count as usize <= self.members.len() => Ok(()),
            Members::Count(_) => unsatisfiable("Not enough data-bearing nodes".to_owned()),
            Members::Mode(name) => match self.mode(name) {
                Some(tags) => {
                    let enough = |(tag, count): &(String, i32)| {
                        self.tag_values(tag) >= usize::try_from(*count).unwrap_or(0)
                    };
                    match tags.iter().all(enough) {
                        true => Ok(()),
                        false => unsatisfiable(format!(
                            "Not enough nodes match write concern mode \"{name}\""
                        )),
                    }
                }
                None => Err(Error::new(
                    Code::UNKNOWN_REPL_WRITE_CONCERN,
                    format!(
                        "No write concern mode named '{name}' found in replica set configuration"
                    ),
                )),
            },
            Members::Tags(tags) => {
                for (tag, count) in tags {
                    let values = self.tag_values(tag);
                    if values == 0 {
                        return Err(Error::new(
                            Code::NO_SUCH_KEY,
                            format!("No replica set tag key {tag} in config"),
                        ));
                    }
                    if (values as i64) < *count {
                        return unsatisfiable(format!(
                            "Not enough nodes match write concern mode \"{{(\"{tag}\", {count})}}\""
                        ));
                    }
                }
                Ok(())
            }
        }
    }

    /// Whether those who have confirmed are enough.
    fn is_confirmed(&self, members: &Members, has_confirmed: impl Fn(i32) -> bool) -> bool {
        let confirmed = || {
            let all = self.members.iter();
            all.filter(|member| has_confirmed(member.id))
        };
        let values = |tag: &str| {
            let mut values: Vec<&str> = confirmed()
                .flat_map(|member| &member.tags)
                .filter(|(name, _)| name == tag)
                .map(|(_, value)| value.as_str())
                .collect();
            values.sort_unstable();
            values.dedup();
            values.len() as i64
        };
        match members {
            Members::Majority => true,
            Members::Count(count) => confirmed().count() >= *count as usize,
            Members::Mode(name) => self.mode(name).is_some_and(|tags| {
                tags.iter()
                    .all(|(tag, count)| values(tag) >= i64::from(*count))
            }),
            Members::Tags(tags) => tags.iter().all(|(tag, count)| values(tag) >= *count),
        }
    }

    pub(crate) fn mode(&self, name: &str) -> Option<&[(String, i32)]> {
        let modes = &self.settings.modes;
        let (_, tags) = modes.iter().find(|(known, _)| known == name)?;
        Some(tags)
    }
}

impl Shard {
    /// Waits for the members that a write concern names, and tells in the reply if they did not confirm.
    ///
    /// ⚑ A primary that has stepped down since the write does not know who has it: then nobody has
    /// confirmed, and a driver that may retry is told to.
    pub(crate) async fn await_members(
        &self,
        reply: Reply,
        request: &Request,
        options: &WriteConcernOptions,
        operation: &Operation,
    ) -> Reply {
        // What failed or was none has written nothing that a primary before could have lost sight of.
        let has_succeeded = reply.document().get("ok") == Some(ValueRef::Double(1.0));
        let may_have_written = has_succeeded && needs_primary(request);
        let confirmed = self.confirmed_by(options, may_have_written, operation);
        let Err(error) = confirmed.await else {
            return reply;
        };
        let is_retryable = request.body().get("txnNumber").is_some();
        let label = MayGoOn::of(request, is_retryable, false).label_after(error.code);
        with_concern_error(&reply, options, &error, label)
    }

    async fn confirmed_by(
        &self,
        options: &WriteConcernOptions,
        may_have_written: bool,
        operation: &Operation,
    ) -> Result<(), Error> {
        let Some(mut configuration) = self.replica_set.configuration() else {
            return Ok(());
        };
        configuration.check_satisfiable(&options.members)?;
        if !may_have_written && !self.replica_set.is_primary() {
            return Ok(());
        }
        // At or after whatever the command has written.
        let position = self.log.last_proposed();
        let deadline = u64::try_from(options.timeout_ms)
            .ok()
            .filter(|timeout_ms| *timeout_ms > 0)
            .map(|timeout_ms| Instant::now() + Duration::from_millis(timeout_ms));
        let mut members = self.log.watch_members();
        loop {
            let confirmed = |members: &Arc<LogMembers>| -> bool {
                configuration.is_confirmed(&options.members, |id| {
                    let life = configuration.lives.of(id);
                    let member = MemberNumber { id, life }.in_log();
                    members.me == member
                        || members
                            .of(member)
                            .is_some_and(|progress| progress.applied >= Some(position))
                })
            };
            if !self.replica_set.is_primary() {
                return Err(Error::new(
                    Code::PRIMARY_STEPPED_DOWN,
                    "Primary stepped down while waiting for replication",
                ));
            }
            let look = Instant::now() + LOOK_INTERVAL;
            let until = deadline.map_or(look, |deadline| deadline.min(look));
            let waited = tokio::time::timeout_at(until.into(), members.wait_for(confirmed)).await;
            if matches!(waited, Ok(Ok(_))) {
                return Ok(());
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let details = DocWriter::new().with("wtimeout", true).finish();
                return Err(Error::new(
                    Code::WRITE_CONCERN_FAILED,
                    "waiting for replication timed out",
                )
                .with_details(details));
            }
            operation.check()?;
            // A member may live another life by now, under the same number, or have been removed.
            if let Some(now) = self.replica_set.configuration()
                && now != configuration
            {
                now.check_satisfiable(&options.members)?;
                configuration = now;
            }
        }
    }
}

/// The reply of a command that wrote something and ran out of time. Who asked for no more than
/// this member gets it as it is.
pub(crate) fn told_unconfirmed(reply: Reply, command: Doc<'_>) -> Reply {
    let stated = command
        .get_doc("writeConcern")
        .map(WriteConcernOptions::parse);
    let options = match stated {
        Some(Ok(options)) if matches!(options.members, Members::Count(0 | 1)) => return reply,
        Some(Ok(options)) => options,
        // Shown as the server shows one that was not given.
        Some(Err(_)) | None => WriteConcernOptions {
            members: Members::Count(1),
            journal: None,
            fsync: false,
            timeout_ms: 0,
            provenance: "",
        },
    };
    let error = Error::new(Code::MAX_TIME_MS_EXPIRED, "operation exceeded time limit");
    with_concern_error(&reply, &options, &error, None)
}

/// The same reply, with the error in front of `ok`.
fn with_concern_error(
    reply: &Reply,
    options: &WriteConcernOptions,
    error: &Error,
    label: Option<&'static str>,
) -> Reply {
    let mut writer = Reply::writer();
    for element in reply.document().iter() {
        if element.key() == "ok" {
            writer
                .begin_document("writeConcernError")
                .append("code", error.code.0)
                .append("codeName", error.code.name().as_str())
                .append("errmsg", error.message.as_str())
                .begin_document("errInfo");
            for detail in error.details.iter().flat_map(|details| details.iter()) {
                writer.append_element(&detail);
            }
            writer.begin_document("writeConcern");
            options.append_to(&mut writer);
            if !options.provenance.is_empty() {
                writer.append("provenance", options.provenance);
            }
            writer.end().end().end();
            if let Some(label) = label {
                writer.begin_array("errorLabels").push(label).end();
            }
        }
        writer.append_element(&element);
    }
    Reply::from_writer(writer)
}

#[cfg(test)]
mod tests {
    use super::{Reply, told_unconfirmed};
    use model::bson::DocWriter;

    /// The reply of a command that ran out of time after it had written, with this concern.
    fn told(concern: Option<DocWriter>) -> String {
        let mut command = DocWriter::new().with("update", "c");
        if let Some(concern) = concern {
            command.append("writeConcern", &concern.finish());
        }
        let reply = Reply::from_writer(Reply::writer().with("ok", 0.0).with("code", 50));
        let reply = told_unconfirmed(reply, command.finish().as_doc());
        model::text::document_quoted(reply.document())
    }

    #[test]
    fn what_was_written_in_time_is_told_to_be_unconfirmed() {
        let with = |concern: &str| {
            format!(
                "{{ writeConcernError: {{ code: 50, codeName: \"MaxTimeMSExpired\", errmsg: \
                 \"operation exceeded time limit\", errInfo: {{ writeConcern: {concern} }} }}, ok: \
                 0.0, code: 50 }}"
            )
        };
        assert_eq!(told(None), with("{ w: 1, wtimeout: 0 }"));
        assert_eq!(
            told(Some(DocWriter::new().with("w", 2).with("wtimeout", 50))),
            with("{ w: 2, wtimeout: 50, provenance: \"clientSupplied\" }")
        );
        // This member alone is no reason to wait.
        assert_eq!(
            told(Some(DocWriter::new().with("w", 1))),
            "{ ok: 0.0, code: 50 }"
        );
    }
}
