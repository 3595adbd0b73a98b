//! Arguments of commands that no shard sees as they came: names and types are checked here, with
//! MongoDB's codes. What a shard is handed whole it checks itself.

use model::bson::{Element, Kind, ValueRef};
use model::error::{Code, Error};
use model::number::Number;
use wire::Request;

/// What an argument may be.
#[derive(Clone, Copy)]
enum Takes {
    Text,
    Document,
    Array,
    Boolean,
    /// A boolean, or a number that stands for one.
    LooseBoolean,
    /// A boolean or the UUID of what is to be dropped.
    BooleanOrUuid,
    Uuid,
    Whole,
    Anything,
}

/// What the first field of a command is.
enum First {
    /// The name of a collection, or a whole namespace.
    Name,
    /// The number one.
    One,
    /// The id of a cursor.
    Id,
    Anything,
}

use Takes::{
    Anything, Array, Boolean, BooleanOrUuid, Document, LooseBoolean, Text, Uuid as Collection,
    Whole,
};

type Fields = &'static [(&'static str, Takes)];

const DROP: Fields = &[("collectionUUID", Collection)];
const RENAME: Fields = &[
    ("to", Text),
    ("dropTarget", BooleanOrUuid),
    ("stayTemp", LooseBoolean),
    ("collectionUUID", Anything),
];
const GET_MORE: Fields = &[
    ("collection", Text),
    ("batchSize", Whole),
    ("term", Anything),
    ("lastKnownCommittedOpTime", Anything),
];
const KILL_CURSORS: Fields = &[("cursors", Array)];
const LIST_COLLECTIONS: Fields = &[
    ("filter", Document),
    ("nameOnly", Boolean),
    ("cursor", Document),
    ("authorizedCollections", Boolean),
    ("includePendingDrops", Anything),
];
const LIST_DATABASES: Fields = &[
    ("filter", Document),
    ("nameOnly", LooseBoolean),
    ("authorizedDatabases", LooseBoolean),
];
const DATA_SIZE: Fields = &[
    ("keyPattern", Anything),
    ("min", Anything),
    ("max", Anything),
    ("estimate", Anything),
    ("maxSize", Anything),
    ("maxObjects", Anything),
];

/// Refuses unknown arguments and those of a wrong type.
pub(crate) fn check(request: &Request) -> Result<(), Error> {
    let (first, fields) = match request.name() {
        "drop" => (First::Name, DROP),
        "dropDatabase" => (First::One, &[] as Fields),
        "renameCollection" => (First::Name, RENAME),
        "getMore" => (First::Id, GET_MORE),
        "killCursors" => (First::Anything, KILL_CURSORS),
        "listCollections" => (First::Anything, LIST_COLLECTIONS),
        "listDatabases" => (First::Anything, LIST_DATABASES),
        "dataSize" | "datasize" => (First::Name, DATA_SIZE),
        _ => return Ok(()),
    };
    let body = request.body();
    if let Some(element) = body.first() {
        check_first(request.name(), &first, &element)?;
    }
    let concern = body.get_doc("readConcern");
    if let (First::Id, Some(concern)) = (&first, concern)
        && concern.get("afterClusterTime").is_some()
    {
        let message = "afterClusterTime is not allowed for this command";
        return Err(Error::new(Code::INVALID_OPTIONS, message));
    }
    for element in body.iter().skip(1) {
        let name = element.key();
        match fields.iter().find(|(known, _)| *known == name) {
            Some((_, takes)) => check_type(request.name(), &element, *takes)?,
            None if is_generic(name) => {}
            None => {
                let command = request.name();
                let message = format!("BSON field '{command}.{name}' is an unknown field.");
                return Err(Error::location(40415, message));
            }
        }
    }
    Ok(())
}

fn check_first(command: &str, first: &First, element: &Element<'_>) -> Result<(), Error> {
    let kind = element.kind();
    match (first, element.value()) {
        (First::Name, ValueRef::String(_)) | (First::Id, ValueRef::Int64(_)) => Ok(()),
        (First::Name, _) => Err(Error::bad_value(format!(
            "collection name has invalid type {}",
            kind.name()
        ))),
        (First::Id, ValueRef::Null | ValueRef::Undefined) => Err(Error::location(
            40414,
            format!("BSON field '{command}.{command}' is missing but a required field"),
        )),
        (First::Id, _) => Err(wrong_type(command, element, "long")),
        (First::One, value) => match Number::of(value).map(|number| number.to_f64()) {
            Some(1.0) => Ok(()),
            Some(_) => Err(Error::location(
                5_255_100,
                "Have to pass 1 as 'drop' parameter",
            )),
            None => Err(wrong_type(command, element, "[long, int, decimal, double]")),
        },
        (First::Anything, _) => Ok(()),
    }
}

fn check_type(command: &str, element: &Element<'_>, takes: Takes) -> Result<(), Error> {
    let value = element.value();
    let is_nothing = matches!(value, ValueRef::Null | ValueRef::Undefined);
    let number = Number::of(value);
    let (fits, expected) = match takes {
        Text => (element.kind() == Kind::String, "string"),
        Document => (is_nothing || element.kind() == Kind::Document, "object"),
        Array => (element.kind() == Kind::Array, "array"),
        Boolean => (element.kind() == Kind::Boolean, "bool"),
        LooseBoolean => (
            is_nothing || number.is_some() || element.kind() == Kind::Boolean,
            "[bool, long, int, decimal, double]",
        ),
        BooleanOrUuid => (
            matches!(element.kind(), Kind::Boolean | Kind::Binary),
            "[bool, binData]",
        ),
        Collection => (
            matches!(value, ValueRef::Binary { subtype: 4, .. }),
            "binData",
        ),
        Whole => (number.is_some(), "[long, int, decimal, double]"),
        Anything => (true, ""),
    };
    if !fits {
        return Err(wrong_type(command, element, expected));
    }
    match (takes, number.and_then(|number| number.to_i64_truncated())) {
        (Whole, Some(number)) if number < 0 => {
            let name = element.key();
            let message =
                format!("BSON field '{name}' value must be >= 0, actual value '{number}'");
            Err(Error::location(51024, message))
        }
        _ => Ok(()),
    }
}

fn wrong_type(command: &str, element: &Element<'_>, expected: &str) -> Error {
    let (name, kind) = (element.key(), element.kind().name());
    let message = format!(
        "BSON field '{command}.{name}' is the wrong type '{kind}', expected type '{expected}'"
    );
    Error::new(Code::TYPE_MISMATCH, message)
}

/// Fields that every command accepts.
pub(crate) fn is_generic(name: &str) -> bool {
    name.starts_with('$')
        || matches!(
            name,
            "lsid"
                | "comment"
                | "maxTimeMS"
                | "maxTimeMSOpOnly"
                | "readConcern"
                | "writeConcern"
                | "allowImplicitCollectionCreation"
                | "apiVersion"
                | "apiStrict"
                | "apiDeprecationErrors"
                | "autocommit"
                | "startTransaction"
                | "txnNumber"
                | "stmtId"
                | "clientOperationKey"
                | "shardVersion"
                | "databaseVersion"
        )
}
