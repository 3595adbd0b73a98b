//! A command as the protocol delivers it: a body, document sequences, flags.
//!
//! The bytes stay where the socket put them. A request holds reference-counted slices of the
//! received message, so it is cheap to clone and to keep, and it never copies a document.
//!
//! Invariants: the body and every document of every sequence have passed `model`'s validation;
//! the body is not empty and names its database in a string field `$db`; sequence names are
//! unique and none is also a field of the body.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use model::bson::{Doc, DocBuf, DocWriter, InvalidBson, MAX_INTERNAL_BYTES, ValueRef, validate};
use model::error::{Code, Error};

/// One command.
#[derive(Clone, Debug)]
pub struct Request {
    body: Bytes,
    name: Name,
    /// Where the database's name lies in `body`.
    database: Range<usize>,
    sequences: Vec<Sequence>,
    fields: FieldNames,
    exhaust_allowed: bool,
    more_to_come: bool,
    passes_batch: bool,
    is_hurried: bool,
}

/// The command's name. A request is asked for it at every turn.
#[derive(Clone, Debug)]
enum Name {
    /// One of those that there are most of.
    Frequent(&'static str),
    /// Where it lies in the body.
    At(Range<usize>),
}

/// Which names the body's fields may have: a bit for each, which names share. Every command is asked for a
/// dozen fields that hardly any has, and this tells so without a walk over those that it has.
#[derive(Clone, Copy, Debug, Default)]
struct FieldNames {
    bits: u64,
    /// Whether two of them have the same bit.
    is_shared: bool,
}

impl FieldNames {
    #[inline]
    fn bit(name: &[u8]) -> u64 {
        let (first, last) = match name {
            [] => (0, 0),
            [first, .., last] => (*first, *last),
            [only] => (*only, *only),
        };
        let mixed = (usize::from(first) * 7) ^ (usize::from(last) * 35) ^ name.len();
        1 << (mixed % 64)
    }

    fn add(&mut self, name: &[u8]) {
        let bit = FieldNames::bit(name);
        self.is_shared |= self.bits & bit != 0;
        self.bits |= bit;
    }

    #[inline]
    fn may_have(self, name: &str) -> bool {
        self.bits & FieldNames::bit(name.as_bytes()) != 0
    }
}

/// A list of documents that travels beside the body, as if it were an array field of it.
#[derive(Clone, Debug)]
pub struct Sequence {
    name: Bytes,
    documents: Bytes,
    count: usize,
}

impl Request {
    /// Builds a request inside the process, as if it had arrived in a message.
    pub fn from_parts(body: DocBuf, sequences: Vec<Sequence>) -> Result<Request, Error> {
        Request::from_validated(Bytes::from(body.into_bytes()), sequences)
    }

    /// Takes a body whose bytes are validated, and finds and checks what every command must have.
    pub(crate) fn from_validated(body: Bytes, sequences: Vec<Sequence>) -> Result<Request, Error> {
        let (name, database, fields) = locate_names(Doc::from_validated(&body))?;
        for (index, sequence) in sequences.iter().enumerate() {
            let field = sequence.name();
            if sequences[..index]
                .iter()
                .any(|earlier| earlier.name == sequence.name)
            {
                let message = format!("Duplicate document sequence: {field}");
                return Err(Error::location(40431, message));
            }
            if fields.may_have(field) && Doc::from_validated(&body).element(field).is_some() {
                let message = format!("Duplicate field between body and document sequence {field}");
                return Err(Error::location(40433, message));
            }
        }
        Ok(Request {
            body,
            name,
            database,
            sequences,
            fields,
            exhaust_allowed: false,
            more_to_come: false,
            passes_batch: false,
            is_hurried: false,
        })
    }

    /// The same command with more fields at the end of its body. None of their names may be there already.
    #[must_use]
    pub fn extended(&self, append: impl FnOnce(&mut DocWriter)) -> Request {
        let mut writer = DocWriter::continuing(self.body(), 256);
        append(&mut writer);
        let body = Bytes::from(writer.finish_buffer());
        let mut fields = self.fields;
        for element in Doc::from_validated(&body).iter_from(self.body.len() - 1) {
            fields.add(element.key_bytes());
        }
        Request {
            // What was found in the shorter body is in the same place.
            name: self.name.clone(),
            database: self.database.clone(),
            sequences: self.sequences.clone(),
            fields,
            body,
            exhaust_allowed: false,
            more_to_come: false,
            passes_batch: false,
            is_hurried: false,
        }
    }

    pub(crate) fn with_flags(mut self, exhaust_allowed: bool, more_to_come: bool) -> Request {
        self.exhaust_allowed = exhaust_allowed;
        self.more_to_come = more_to_come;
        self
    }

    /// Says that whoever asks passes the reply's batch on without a look at its documents, so that
    /// they need no check: `Doc`s of them must not be read (see [`model::bson::validate_around_batch`]).
    #[must_use]
    pub fn passing_batch(mut self, passes: bool) -> Request {
        self.passes_batch = passes;
        self
    }

    pub(crate) fn passes_batch(&self) -> bool {
        self.passes_batch
    }

    /// Says that whoever asks goes on without an answer: nobody is waited for who does not say a word.
    #[must_use]
    pub fn hurried(mut self, is_hurried: bool) -> Request {
        self.is_hurried = is_hurried;
        self
    }

    pub(crate) fn is_hurried(&self) -> bool {
        self.is_hurried
    }

    /// The command document.
    pub fn body(&self) -> Doc<'_> {
        Doc::from_validated(&self.body)
    }

    /// The value of the body's first field of this name; cheaper than asking the body where there is none.
    #[inline]
    pub fn get(&self, name: &str) -> Option<ValueRef<'_>> {
        match self.fields.may_have(name) {
            true => self.body().get(name),
            false => None,
        }
    }

    /// Whether the body may have two fields of one name; where it says no, it has none.
    pub fn may_repeat_names(&self) -> bool {
        self.fields.is_shared
    }

    /// Whether the body may have a field of this name; where it says no, there is none.
    #[inline]
    pub fn may_have(&self, name: &str) -> bool {
        self.fields.may_have(name)
    }

    /// The same for a document.
    #[inline]
    pub fn get_doc(&self, name: &str) -> Option<Doc<'_>> {
        match self.get(name) {
            Some(ValueRef::Document(doc)) => Some(doc),
            _ => None,
        }
    }

    /// The command document's bytes, for keeping without a copy.
    pub fn body_bytes(&self) -> &Bytes {
        &self.body
    }

    /// The command's name: the name of the body's first field.
    pub fn name(&self) -> &str {
        match &self.name {
            Name::Frequent(name) => name,
            Name::At(place) => utf8(&self.body[place.clone()]),
        }
    }

    /// The database that the command addresses.
    pub fn database(&self) -> &str {
        utf8(&self.body[self.database.clone()])
    }

    pub fn sequences(&self) -> &[Sequence] {
        &self.sequences
    }

    pub fn sequence(&self, name: &str) -> Option<&Sequence> {
        self.sequences
            .iter()
            .find(|sequence| sequence.name == name.as_bytes())
    }

    /// Whether the client accepts a stream of replies, see [`crate::Reply::then`].
    pub fn exhaust_allowed(&self) -> bool {
        self.exhaust_allowed
    }

    /// Whether the client wants no reply.
    pub fn is_fire_and_forget(&self) -> bool {
        self.more_to_come
    }
}

impl Sequence {
    /// A sequence of documents given one by one; they are copied next to each other.
    pub fn new<'a>(name: &str, documents: impl IntoIterator<Item = Doc<'a>>) -> Sequence {
        let mut bytes = BytesMut::new();
        let mut count = 0;
        for document in documents {
            bytes.extend_from_slice(document.as_bytes());
            count += 1;
        }
        let name = Bytes::copy_from_slice(name.as_bytes());
        Sequence {
            name,
            documents: bytes.freeze(),
            count,
        }
    }

    /// Checks a received sequence: a name, and documents without gaps.
    pub(crate) fn parse(name: Bytes, documents: Bytes) -> Result<Sequence, Error> {
        if std::str::from_utf8(&name).is_err() {
            let message = "The name of a document sequence is not valid UTF-8";
            return Err(Error::new(Code::INVALID_BSON, message));
        }
        let mut rest = &documents[..];
        let mut count = 0;
        while !rest.is_empty() {
            let (document, after) = split_document(rest)?;
            validate(document, MAX_INTERNAL_BYTES).map_err(invalid_bson)?;
            rest = after;
            count += 1;
        }
        Ok(Sequence {
            name,
            documents,
            count,
        })
    }

    pub fn name(&self) -> &str {
        utf8(&self.name)
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The documents' bytes, without gaps.
    pub fn bytes(&self) -> &Bytes {
        &self.documents
    }

    /// The documents, where they lie.
    pub fn iter(&self) -> Documents<'_> {
        Documents {
            rest: &self.documents,
            remaining: self.count,
        }
    }
}

impl<'a> IntoIterator for &'a Sequence {
    type Item = Doc<'a>;
    type IntoIter = Documents<'a>;

    fn into_iter(self) -> Documents<'a> {
        self.iter()
    }
}

/// The walk over the documents of a sequence.
#[derive(Clone, Debug)]
pub struct Documents<'a> {
    rest: &'a [u8],
    remaining: usize,
}

impl<'a> Iterator for Documents<'a> {
    type Item = Doc<'a>;

    fn next(&mut self) -> Option<Doc<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let (document, rest) =
            split_document(self.rest).expect("the documents of a sequence were validated");
        self.rest = rest;
        self.remaining -= 1;
        Some(Doc::from_validated(document))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl ExactSizeIterator for Documents<'_> {}

/// Cuts the document at the start of `bytes` off by its length field; it is not yet validated.
pub(crate) fn split_document(bytes: &[u8]) -> Result<(&[u8], &[u8]), Error> {
    let length = bytes
        .first_chunk::<4>()
        .map(|length| i32::from_le_bytes(*length));
    match length.map(usize::try_from) {
        Some(Ok(length)) if length >= 5 && length <= bytes.len() => Ok(bytes.split_at(length)),
        Some(Ok(length)) if length >= 5 => {
            Err(Error::new(Code::INVALID_BSON, "Incorrect BSON length"))
        }
        Some(_) | None => Err(Error::new(
            Code::INVALID_BSON,
            "BSON data has to be at least 5 bytes",
        )),
    }
}

/// What the real server answers to a document that is not one.
pub(crate) fn invalid_bson(fault: InvalidBson) -> Error {
    let code = match fault {
        InvalidBson::TooLarge { .. } => Code::BSON_OBJECT_TOO_LARGE,
        InvalidBson::TooDeep => Code::OVERFLOW,
        InvalidBson::Truncated { .. }
        | InvalidBson::UnknownType { .. }
        | InvalidBson::Malformed { .. } => Code::INVALID_BSON,
    };
    Error::new(code, fault.to_string())
}

/// Finds the command's name and its database, as ranges of the body's bytes, and which fields there are.
fn locate_names(body: Doc<'_>) -> Result<(Name, Range<usize>, FieldNames), Error> {
    let missing = || Error::location(40571, "OP_MSG requests require a $db argument");
    let position = |part: &[u8]| {
        // Both slices are of one buffer, so the distance of their starts is a position in it.
        let start = part.as_ptr() as usize - body.as_bytes().as_ptr() as usize;
        start..start + part.len()
    };
    let first = body.first().ok_or_else(missing)?;
    let mut database: Option<&str> = None;
    let mut fields = FieldNames::default();
    for element in body.iter() {
        fields.add(element.key_bytes());
        if element.key_bytes() != b"$db" {
            continue;
        }
        if database.is_some() {
            let message = "BSON field 'APIParametersFromClient.$db' is a duplicate field";
            return Err(Error::location(40413, message));
        }
        match element.value() {
            ValueRef::String(text) => database = Some(text),
            other => {
                let kind = other.kind().name();
                let message = format!("wrong type for field ($db) {kind} != string");
                return Err(Error::location(13111, message));
            }
        }
    }
    let database = database.ok_or_else(missing)?;
    check_database_name(database)?;
    let name = match frequent(first.key_bytes()) {
        Some(name) => Name::Frequent(name),
        None => Name::At(position(first.key_bytes())),
    };
    Ok((name, position(database.as_bytes()), fields))
}

fn frequent(name: &[u8]) -> Option<&'static str> {
    Some(match name {
        b"find" => "find",
        b"insert" => "insert",
        b"update" => "update",
        b"delete" => "delete",
        b"getMore" => "getMore",
        b"aggregate" => "aggregate",
        b"findAndModify" => "findAndModify",
        _ => return None,
    })
}

/// The rule for a command's `$db`. It is wider than the rule for databases that can be created:
/// `$external`, for one, is where some users live.
pub(crate) fn check_database_name(name: &str) -> Result<(), Error> {
    let forbidden = |byte: u8| matches!(byte, b'/' | b'\\' | b'.' | b' ' | b'"' | 0);
    if name.is_empty() || name.len() > 63 || name.bytes().any(forbidden) {
        let message = format!("Invalid database name: '{name}'");
        return Err(Error::new(Code::INVALID_NAMESPACE, message));
    }
    Ok(())
}

fn utf8(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("names were checked to be UTF-8 when the request was built")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(fields: &[&str]) -> Request {
        let mut body = DocWriter::new();
        body.append("update", "birds").append("$db", "fleet");
        for (number, name) in (0..).zip(fields) {
            body.append(name, number);
        }
        Request::from_parts(body.finish(), Vec::new()).expect("a request")
    }

    #[test]
    fn a_field_is_found_whatever_shares_its_bit() {
        // More names than there are bits.
        let names: Vec<String> = (0..200).map(|number| format!("field{number}")).collect();
        let given: Vec<&str> = names.iter().map(String::as_str).collect();
        let (here, absent) = given.split_at(100);
        let request = request(here);
        assert!(request.may_repeat_names());
        for (number, name) in (0..).zip(here) {
            assert!(request.may_have(name), "{name}");
            assert_eq!(request.get(name), Some(ValueRef::Int32(number)), "{name}");
        }
        for name in absent.iter().chain(&["", "$", "fieldx"]) {
            assert_eq!(request.get(name), None, "{name}");
        }
    }

    #[test]
    fn a_name_given_twice_is_not_overlooked() {
        assert!(request(&["lsid", "ordered", "lsid"]).may_repeat_names());
        assert!(!request(&["ordered", "writeConcern"]).may_repeat_names());
    }

    #[test]
    fn an_extended_request_is_what_is_built_anew() {
        let documents = [DocWriter::new().with("q", 1).finish()];
        let statements = Sequence::new("updates", documents.iter().map(DocBuf::as_doc));
        let body = DocWriter::new()
            .with("update", "birds")
            .with("$db", "fleet");
        let short = Request::from_parts(body.finish(), vec![statements.clone()]);
        let long = short.expect("a request").extended(|writer| {
            writer.append("shardVersion", 7).append("$clusterTime", 8);
        });
        let body = DocWriter::new()
            .with("update", "birds")
            .with("$db", "fleet")
            .with("shardVersion", 7)
            .with("$clusterTime", 8);
        let anew = Request::from_parts(body.finish(), vec![statements]).expect("a request");
        assert_eq!(long.body(), anew.body());
        assert_eq!(
            (long.name(), long.database()),
            (anew.name(), anew.database())
        );
        assert_eq!(long.sequences()[0].bytes(), anew.sequences()[0].bytes());
        assert_eq!(long.get("shardVersion"), Some(ValueRef::Int32(7)));
        assert_eq!(long.get("$clusterTime"), Some(ValueRef::Int32(8)));
    }
}
