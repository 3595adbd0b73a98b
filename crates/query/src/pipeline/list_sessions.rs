//! `$listSessions` and `$listLocalSessions`: sessions as the sessions collection
//! and as this member knows them.
//!
//! The first is a condition on `config.system.sessions`, and nothing else. Users
//! come with authentication: until then whoever asks is nobody, and sessions of
//! named users do not exist.

use super::parse::Scope;
use super::stage::Stage;
use crate::filter::Filter;
use model::bson::{Doc, DocWriter, ValueRef};
use model::ids::NO_USER_DIGEST;
use model::{Code, Error};

/// Whose sessions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionsOf {
    /// Who asks.
    Own,
    Everybody,
    /// Named users.
    Nobody,
}

impl SessionsOf {
    fn parse(stage: &str, spec: ValueRef<'_>) -> Result<Self, Error> {
        let ValueRef::Document(options) = spec else {
            return Err(Error::new(
                Code::TYPE_MISMATCH,
                format!(
                    "{stage} options must be specified in an object, but found: {}",
                    spec.kind().name()
                ),
            ));
        };
        let (mut everybody, mut named) = (false, false);
        for option in options.iter() {
            let name = option.key();
            let wrong = |expected: &str| {
                Error::new(
                    Code::TYPE_MISMATCH,
                    format!(
                        "BSON field '{stage}.{name}' is the wrong type '{}', expected type '{expected}'",
                        option.kind().name()
                    ),
                )
            };
            match (name, option.value()) {
                ("allUsers", ValueRef::Boolean(all)) => everybody = all,
                ("allUsers", _) => return Err(wrong("bool")),
                ("users", ValueRef::Array(users)) => named = !users.is_empty(),
                ("users", _) => return Err(wrong("array")),
                _ => {
                    return Err(Error::location(
                        40415,
                        format!("BSON field '{stage}.{name}' is an unknown field."),
                    ));
                }
            }
        }
        match (everybody, named) {
            (true, true) => Err(Error::new(
                Code::UNSUPPORTED_FORMAT,
                format!(
                    "{stage} may not specify {{allUsers:true}} and {{users:[...]}} at the same time"
                ),
            )),
            (true, false) => Ok(SessionsOf::Everybody),
            (false, true) => Ok(SessionsOf::Nobody),
            (false, false) => Ok(SessionsOf::Own),
        }
    }
}

pub(super) fn parse_local(spec: ValueRef<'_>, scope: &Scope<'_>) -> Result<Stage, Error> {
    let whose = SessionsOf::parse("$listLocalSessions", spec)?;
    if scope.collection.is_some() {
        return Err(Error::new(
            Code::INVALID_NAMESPACE,
            "$listLocalSessions must be run against the database with {aggregate: 1}, not a \
             collection",
        ));
    }
    Ok(Stage::LocalSessions(whose))
}

/// `is_first` says whether no stage comes before it.
pub(super) fn parse_stored(
    spec: ValueRef<'_>,
    scope: &Scope<'_>,
    is_first: bool,
) -> Result<Stage, Error> {
    const STAGE: &str = "$listSessions";
    let whose = SessionsOf::parse(STAGE, spec)?;
    if scope.collection.map(|name| name.as_str()) != Some("config.system.sessions") {
        return Err(Error::new(
            Code::INVALID_NAMESPACE,
            "$listSessions may only be run against config.system.sessions",
        ));
    }
    if !is_first {
        return Err(Error::location(
            40602,
            format!("{STAGE} is only valid as the first stage in a pipeline"),
        ));
    }
    let own = ValueRef::Binary {
        subtype: 0,
        bytes: &NO_USER_DIGEST,
    };
    let condition = match whose {
        SessionsOf::Own => DocWriter::new().with("_id.uid", own).finish(),
        SessionsOf::Everybody => Doc::EMPTY.to_owned(),
        SessionsOf::Nobody => DocWriter::new().with("$alwaysFalse", 1).finish(),
    };
    Filter::parse(condition.as_doc(), scope.context).map(Stage::Match)
}
