//! `getDefaultRWConcern` and `setDefaultRWConcern`: what commands get that name no concern.
//!
//! The defaults are a document in the meta space, changed through the log like the configuration.
//!
//! ```text
//!   meta key  "replica-set/defaults"
//!   value     { defaultReadConcern?: {level}, defaultWriteConcern?: {w, j?, wtimeout},
//!               updateOpTime: timestamp, updateWallClockTime: date }
//! ```

use super::arguments::arguments;
use super::read_concern::Level;
use super::write_concern::{Members, WriteConcernOptions};
use super::{Answer, Invocation, finish};
use crate::Shard;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::{Code, Error};
use std::sync::Arc;
use wire::Reply;

pub(crate) const DEFAULTS_KEY: &[u8] = b"replica-set/defaults";

/// The defaults in force, beyond those that are built in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ConcernDefaults {
    pub(crate) read: Option<&'static str>,
    pub(crate) write: Option<WriteConcernOptions>,
    stored: DocBuf,
}

impl ConcernDefaults {
    pub(crate) fn from_document(doc: Doc<'_>) -> Result<Self, Error> {
        let read = match doc.get_doc("defaultReadConcern") {
            Some(concern) => concern.get_str("level"),
            None => None,
        };
        let write = doc.get_doc("defaultWriteConcern");
        let write = write.map(WriteConcernOptions::parse).transpose()?;
        Ok(Self {
            read: read.map(Level::parse).transpose()?.map(Level::name),
            write: write.map(|write| WriteConcernOptions {
                provenance: "customDefault",
                ..write
            }),
            stored: doc.to_owned(),
        })
    }
}

pub(crate) fn get(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let mut in_memory = false;
    for argument in arguments("getDefaultRWConcern", invocation.request.body()) {
        match argument.name() {
            "inMemory" => in_memory = argument.loose_boolean()?,
            _ => return Err(argument.unknown()),
        }
    }
    answer(invocation.shard, in_memory)
}

pub(crate) async fn set(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let shard = invocation.shard;
    let (mut read, mut write) = (None, None);
    for argument in arguments("setDefaultRWConcern", invocation.request.body()) {
        match argument.name() {
            "defaultReadConcern" => read = Some(read_default(argument.doc()?)?),
            "defaultWriteConcern" => write = Some(write_default(shard, argument.doc()?)?),
            _ => return Err(argument.unknown()),
        }
    }
    if read.is_none() && write.is_none() {
        return Err(Error::bad_value(
            "At least one of the \"defaultReadConcern\" or \"defaultWriteConcern\" fields must be \
             present",
        ));
    }
    let _ddl = shard.ddl.lock().await;
    let current = shard.replica_set.defaults();
    if write == Some(None) && current.as_ref().is_some_and(|now| now.write.is_some()) {
        return Err(Error::new(
            Code::ILLEGAL_OPERATION,
            "The global default write concern cannot be unset once it is set.",
        ));
    }
    let read = read.unwrap_or_else(|| current.as_ref().and_then(|now| now.read));
    let write = write.unwrap_or_else(|| current.as_ref().and_then(|now| now.write.clone()));
    let mut writer = DocWriter::new();
    if let Some(level) = read {
        append_read(&mut writer, level);
    }
    if let Some(write) = &write {
        writer.begin_document("defaultWriteConcern");
        write.append_to(&mut writer);
        writer.end();
    }
    writer.append("updateOpTime", shard.cluster_time()).append(
        "updateWallClockTime",
        ValueRef::DateTime(shard.clock.now_ms()),
    );
    let document = writer.finish();
    shard
        .propose_catalog(|encoder| encoder.put_meta(DEFAULTS_KEY, document.as_bytes()))
        .await?;
    answer(shard, false)
}

/// The level to use, or `None` for the one that is built in.
fn read_default(doc: Doc<'_>) -> Result<Option<&'static str>, Error> {
    let unsuitable = |what: String| {
        Err(Error::bad_value(format!(
            "{what} is not suitable for the default read concern"
        )))
    };
    let mut chosen = None;
    for element in doc.iter() {
        match (element.key(), element.value()) {
            ("level", ValueRef::String(name)) => match Level::parse(name)? {
                level @ (Level::Linearizable | Level::Snapshot) => {
                    return unsuitable(format!("level: '{}'", level.name()));
                }
                level @ (Level::Local | Level::Available | Level::Majority) => {
                    chosen = Some(level.name());
                }
            },
            ("level", other) => {
                return Err(Error::new(
                    Code::TYPE_MISMATCH,
                    format!(
                        "\"level\" had the wrong type. Expected string, found {}",
                        other.kind().name()
                    ),
                ));
            }
            (other, _) => return unsuitable(format!("'{other}'")),
        }
    }
    Ok(chosen)
}

fn write_default(shard: &Shard, doc: Doc<'_>) -> Result<Option<WriteConcernOptions>, Error> {
    if doc.is_empty() {
        return Ok(None);
    }
    let mut options = WriteConcernOptions::parse(doc)?;
    if doc.get("w").is_none() {
        options.members = Members::Count(1);
    }
    if !options.is_acknowledged() {
        return Err(Error::bad_value(
            "Unacknowledged write concern is not suitable for the default write concern",
        ));
    }
    if let (Members::Mode(_) | Members::Tags(_), Some(configuration)) =
        (&options.members, shard.replica_set.configuration())
    {
        configuration.check_satisfiable(&options.members)?;
    }
    Ok(Some(options))
}

fn append_read(writer: &mut DocWriter, level: &str) {
    writer
        .begin_document("defaultReadConcern")
        .append("level", level)
        .end();
}

fn answer(shard: &Shard, in_memory: bool) -> Answer {
    let defaults: Option<Arc<ConcernDefaults>> = shard.replica_set.defaults();
    let defaults = defaults.as_deref();
    let mut writer = Reply::writer();
    append_read(
        &mut writer,
        defaults.and_then(|now| now.read).unwrap_or("local"),
    );
    let write = defaults.and_then(|now| now.write.as_ref());
    writer.begin_document("defaultWriteConcern");
    match write {
        Some(write) => write.append_to(&mut writer),
        None => {
            writer.append("w", "majority").append("wtimeout", 0);
        }
    }
    writer.end();
    for name in ["updateOpTime", "updateWallClockTime"] {
        if let Some(value) = defaults.and_then(|now| now.stored.get(name)) {
            writer.append(name, value);
        }
    }
    let source = |given: bool| if given { "global" } else { "implicit" };
    let read_given = defaults.is_some_and(|now| now.read.is_some());
    writer
        .append("defaultWriteConcernSource", source(write.is_some()))
        .append("defaultReadConcernSource", source(read_given));
    if in_memory {
        writer.append("inMemory", true);
    }
    writer.append(
        "localUpdateWallClockTime",
        ValueRef::DateTime(shard.clock.now_ms()),
    );
    finish(writer)
}
