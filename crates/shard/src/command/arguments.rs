//! Reads a command's fields with MongoDB's strictness.
//!
//! Each command walks its body once and matches on field names; what it does
//! not know and is not one of the fields any command may carry is refused, as
//! is a value of the wrong type. The checks and their codes live here.

use model::bson::{Array, Doc, Element, Kind, ValueRef};
use model::{Code, Error};
use query::context::QueryContext;

/// Fields that every command accepts; [`crate::command::Envelope`] reads them.
pub(crate) fn is_generic(name: &[u8]) -> bool {
    matches!(
        name,
        b"$db"
            | b"lsid"
            | b"comment"
            | b"maxTimeMS"
            | b"maxTimeMSOpOnly"
            | b"readConcern"
            | b"writeConcern"
            | b"$readPreference"
            | b"$clusterTime"
            | b"$configTime"
            | b"$topologyTime"
            | b"$audit"
            | b"$client"
            | b"$configServerState"
            | b"$oplogQueryData"
            | b"$queryOptions"
            | b"$replData"
            | b"$gleStats"
            | b"allowImplicitCollectionCreation"
            | b"apiVersion"
            | b"apiStrict"
            | b"apiDeprecationErrors"
            | b"autocommit"
            | b"startTransaction"
            | b"txnNumber"
            | b"stmtId"
            | b"clientOperationKey"
            | b"shardVersion"
            | b"databaseVersion"
            | b"routedBy"
            | b"_terndbScan"
    )
}

/// One named argument of a command, for checks that say where they are.
#[derive(Clone, Copy)]
pub(crate) struct Argument<'a> {
    command: &'a str,
    element: Element<'a>,
}

/// Walks the arguments of a command behind its name, generic fields left out.
pub(crate) fn arguments<'a>(command: &'a str, body: Doc<'a>) -> impl Iterator<Item = Argument<'a>> {
    body.iter()
        .skip(1)
        .map(move |element| Argument { command, element })
        .filter(move |argument| match argument.element.key_bytes() {
            // Any command takes it, and these look at it.
            b"stmtId" => matches!(command, "insert" | "update" | "delete" | "findAndModify"),
            // Read with the variables of those that have any.
            b"runtimeConstants" => !matches!(
                command,
                "aggregate" | "find" | "FindCommandRequest" | "update" | "delete" | "findAndModify"
            ),
            name => !is_generic(name),
        })
}

/// Reads `{localNow: date, clusterTime: timestamp}`.
pub(crate) fn runtime_constants(
    constants: ValueRef<'_>,
    context: &mut QueryContext,
) -> Result<(), Error> {
    let fail = |why: &str| Error::new(Code::TYPE_MISMATCH, format!("runtimeConstants {why}"));
    let ValueRef::Document(constants) = constants else {
        return Err(fail("must be a document"));
    };
    match constants.get("localNow") {
        Some(ValueRef::DateTime(now_ms)) => context.now_ms = now_ms,
        None => return Err(missing("runtimeConstants", "localNow")),
        _ => return Err(fail("must have a date as localNow")),
    }
    match constants.get("clusterTime") {
        Some(ValueRef::Timestamp(time)) => context.cluster_time = Some(time),
        None => {}
        Some(_) => return Err(fail("must have a timestamp as clusterTime")),
    }
    Ok(())
}

/// The fields of a document inside a command, such as one statement of `update`.
pub(crate) fn fields<'a>(path: &'a str, doc: Doc<'a>) -> impl Iterator<Item = Argument<'a>> {
    doc.iter().map(move |element| Argument {
        command: path,
        element,
    })
}

impl<'a> Argument<'a> {
    pub(crate) fn name(&self) -> &'a str {
        self.element.key()
    }

    pub(crate) fn value(&self) -> ValueRef<'a> {
        self.element.value()
    }

    pub(crate) fn element(&self) -> Element<'a> {
        self.element
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self.element.kind(), Kind::Null | Kind::Undefined)
    }

    pub(crate) fn unknown(&self) -> Error {
        Error::location(
            40415,
            format!(
                "BSON field '{}.{}' is an unknown field.",
                self.command,
                self.name()
            ),
        )
    }

    pub(crate) fn wrong_type(&self, expected: &str) -> Error {
        Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "BSON field '{}.{}' is the wrong type '{}', expected type '{expected}'",
                self.command,
                self.name(),
                self.element.kind().name(),
            ),
        )
    }

    /// The same for an element of an array.
    pub(crate) fn wrong_element(&self, element: &Element<'_>, expected: &str) -> Error {
        Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "BSON field '{}.{}.{}' is the wrong type '{}', expected type '{expected}'",
                self.command,
                self.name(),
                element.key(),
                element.kind().name(),
            ),
        )
    }

    pub(crate) fn doc(&self) -> Result<Doc<'a>, Error> {
        match self.value() {
            ValueRef::Document(doc) => Ok(doc),
            _ => Err(self.wrong_type("object")),
        }
    }

    /// Null stands for an absent document, as MongoDB's own parser has it.
    pub(crate) fn optional_doc(&self) -> Result<Option<Doc<'a>>, Error> {
        if self.is_null() {
            return Ok(None);
        }
        self.doc().map(Some)
    }

    pub(crate) fn array(&self) -> Result<Array<'a>, Error> {
        match self.value() {
            ValueRef::Array(array) => Ok(array),
            _ => Err(self.wrong_type("array")),
        }
    }

    pub(crate) fn string(&self) -> Result<&'a str, Error> {
        match self.value() {
            ValueRef::String(text) => Ok(text),
            _ => Err(self.wrong_type("string")),
        }
    }

    /// A strict boolean.
    pub(crate) fn boolean(&self) -> Result<bool, Error> {
        match self.value() {
            ValueRef::Boolean(value) => Ok(value),
            _ => Err(self.wrong_type("bool")),
        }
    }

    /// A boolean, or a number that stands for one.
    pub(crate) fn loose_boolean(&self) -> Result<bool, Error> {
        match self.value() {
            ValueRef::Boolean(value) => Ok(value),
            ValueRef::Null | ValueRef::Undefined => Ok(false),
            value => match model::number::Number::of(value).map(|n| n.to_f64()) {
                Some(number) => Ok(number != 0.0),
                None => Err(self.wrong_type("[bool, long, int, decimal, double]")),
            },
        }
    }

    /// Any number, cut to an integer.
    pub(crate) fn integer(&self) -> Result<i64, Error> {
        match model::number::Number::of(self.value()).and_then(|n| n.to_i64_truncated()) {
            Some(number) => Ok(number),
            None => Err(self.wrong_type("[long, int, decimal, double]")),
        }
    }

    /// A number that must not be negative.
    pub(crate) fn non_negative(&self) -> Result<i64, Error> {
        let number = self.integer()?;
        if number < 0 {
            return Err(Error::location(
                51024,
                format!(
                    "BSON field '{}' value must be >= 0, actual value '{number}'",
                    self.name()
                ),
            ));
        }
        Ok(number)
    }
}

/// Refuses a field given twice; `path` names the document.
pub(crate) fn refuse_duplicates(path: &str, doc: Doc<'_>) -> Result<(), Error> {
    if has_few_distinct_fields(doc) {
        return Ok(());
    }
    let mut names: Vec<&[u8]> = doc.iter().map(|element| element.key_bytes()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(Error::location(
            40413,
            format!(
                "BSON field '{path}.{}' is a duplicate field",
                String::from_utf8_lossy(pair[0])
            ),
        )),
    }
}

/// Says yes of nearly every command, without a list on the heap.
fn has_few_distinct_fields(doc: Doc<'_>) -> bool {
    let mut names: [&[u8]; 16] = [&[]; 16];
    for (at, element) in doc.iter().enumerate() {
        let name = element.key_bytes();
        if at == names.len() || names[..at].contains(&name) {
            return false;
        }
        names[at] = name;
    }
    true
}

/// The error for an argument that must be there.
pub(crate) fn missing(command: &str, name: &str) -> Error {
    Error::location(
        40414,
        format!("BSON field '{command}.{name}' is missing but a required field"),
    )
}
