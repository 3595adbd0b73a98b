//! `$_requestResumeToken`: a scan in the order of records that another cursor goes on with.
//!
//! ```text
//!   find {hint: {$natural: 1}, $_requestResumeToken: true}      cursor: {.., postBatchResumeToken: token}
//!   find {.., $_resumeAfter: token}                             goes on behind what came with the token
//!
//!   token   {$recordId: binary [time 8][place]}                 place: read/part.rs
//!           {$recordId: null}                                   from the beginning
//!           {ts: time}                                          of the log
//! ```
//!
//! The rules about hint and sort are MongoDB's. Its tokens hold the number of a record, which must still be
//! there; records have no numbers here, and a place need not be anybody's. `$_startAt`, of later versions, is
//! the same thing without that condition. ⚑ *Time* is when the batch was read: later ones read at or after it,
//! so that a member that lags behind does not show less than an earlier batch did.
//!
//! The log's tokens are MongoDB's: the time of the last document that was looked at. As there, one goes on behind it
//! with that time as `$recordId`, a number. Other collections that are made when they are read have none.
//!
//! Of sharded collections routers make tokens of their own, for any order (`cluster::scan`).

use super::Invocation;
use crate::read::{Place, ScanPart, VirtualCollection, record_is_gone};
use model::bson::{Doc, DocWriter, Value, ValueRef};
use model::key::Direction;
use model::time::ClusterTime;
use model::{Code, Error};
use query::sort::natural_direction;

/// What a `find` says about tokens.
#[derive(Default)]
pub(super) struct ResumeFields<'a> {
    pub(super) requested: bool,
    pub(super) after: Option<Doc<'a>>,
    pub(super) start_at: Option<Doc<'a>>,
}

fn malformed() -> Error {
    Error::bad_value(
        "Malformed resume token: the '_resumeAfter' object must contain exactly one field named \
         '$recordId', of type NumberLong, BinData or jstNULL.",
    )
}

impl<'a> ResumeFields<'a> {
    /// Where to go on: of the two fields one is given at most.
    fn token(&self) -> Option<Doc<'a>> {
        self.after.or(self.start_at)
    }

    /// Whether these may stand beside a hint and a sort.
    pub(super) fn check(&self, hint: Option<&Value>, sort: Option<Doc<'_>>) -> Result<(), Error> {
        let given = match (self.after, self.start_at) {
            (Some(_), Some(_)) => {
                let message = "'resumeAfter' and 'startAt' must not both be specified";
                return Err(Error::bad_value(message));
            }
            (Some(_), None) => Some("resumeAfter"),
            (None, Some(_)) => Some("startAt"),
            (None, None) => None,
        };
        if !self.requested {
            return match given {
                None => Ok(()),
                Some(name) => Err(Error::bad_value(format!(
                    "'requestResumeToken' must be true if '{name}' is specified"
                ))),
            };
        }
        let is_forward = |doc: Doc<'_>| Ok(natural_direction(doc)? == Some(Direction::Ascending));
        let hinted = match hint {
            Some(Value::Document(hint)) => is_forward(hint.as_doc())?,
            Some(_) | None => false,
        };
        if !hinted {
            return Err(Error::bad_value(
                "hint must be {$natural:1} if 'requestResumeToken' is enabled",
            ));
        }
        if let Some(sort) = sort.filter(|sort| !sort.is_empty())
            && !is_forward(sort)?
        {
            return Err(Error::bad_value(
                "sort must be unset or {$natural:1} if 'requestResumeToken' is enabled",
            ));
        }
        Ok(())
    }

    /// What is asked for, once everything is applied that an earlier batch saw.
    pub(super) async fn part(&self, invocation: &Invocation<'_>) -> Result<ScanPart, Error> {
        let mut part = ScanPart {
            places: true,
            token: true,
            ..ScanPart::default()
        };
        let Some(token) = self.token() else {
            return Ok(part);
        };
        let mut fields = token.iter();
        let (Some(field), None) = (fields.next(), fields.next()) else {
            return Err(malformed());
        };
        match (field.key(), field.value()) {
            ("$recordId", ValueRef::Null) => {}
            ("$recordId", ValueRef::Binary { bytes, .. }) => {
                let (time, place) = bytes.split_first_chunk::<8>().ok_or_else(malformed)?;
                part.after = Some(Place::decode(place).map_err(|_| malformed())?);
                let time = ClusterTime::from_u64(u64::from_be_bytes(*time));
                let reached =
                    invocation
                        .shard
                        .reach_time("resumeAfter", time, invocation.operation);
                reached.await?;
            }
            // A record's number, as MongoDB has them.
            ("$recordId", ValueRef::Int64(number)) => return Err(record_is_gone(number)),
            _ => return Err(malformed()),
        }
        Ok(part)
    }
}

impl ResumeFields<'_> {
    /// What is asked for of a collection that is made when it is read.
    pub(super) fn part_of(&self, made: &dyn VirtualCollection) -> Result<ScanPart, Error> {
        // The log is the only one that grows at its end and nowhere else.
        if !made.is_tailable() {
            let message = format!(
                "$_requestResumeToken is not supported on {}",
                made.namespace()
            );
            return Err(Error::new(Code::COMMAND_NOT_SUPPORTED, message));
        }
        let mut part = ScanPart {
            token: true,
            ..ScanPart::default()
        };
        let Some(token) = self.token() else {
            return Ok(part);
        };
        let mut fields = token.iter();
        match (
            fields.next().map(|field| (field.key(), field.value())),
            fields.next(),
        ) {
            (Some(("$recordId", ValueRef::Null)), None) => {}
            (Some(("$recordId", ValueRef::Int64(time))), None) => {
                part.after_time = Some(ClusterTime::from_u64(time.cast_unsigned()));
            }
            _ => return Err(malformed()),
        }
        Ok(part)
    }
}

/// Writes the token of a batch of the log.
pub(super) fn append_time(writer: &mut DocWriter, time: ClusterTime) {
    writer
        .begin_document("postBatchResumeToken")
        .append("ts", time)
        .end();
}

/// Writes the token of a batch that was read by this time and ends at a place, or at the beginning.
pub(super) fn append(writer: &mut DocWriter, place: Option<&[u8]>, time: ClusterTime) {
    writer.begin_document("postBatchResumeToken");
    match place {
        None => writer.append("$recordId", ValueRef::Null),
        Some(place) => {
            let token = [&time.to_u64().to_be_bytes(), place].concat();
            let bytes = &token[..];
            writer.append("$recordId", ValueRef::Binary { subtype: 0, bytes })
        }
    };
    writer.end();
}
