//! Specifications of new indexes: what `createIndexes` accepts, and what is
//! stored of it.
//!
//! ```text
//!   as sent ─► each field by itself ─► the rules of `_id` ─► expiry ─► combinations ─► stored
//! ```
//!
//! The order of these steps decides which of several faults is reported. The
//! stored form begins with `v`, `key` and `name`; what has no meaning (`ns`, a
//! false `unique`) is left out, and numbers that stand for truth or seconds are
//! stored as such.
//!
//! Refused by name for now: text, 2d, 2dsphere and wildcard indexes, and
//! collations other than simple.

mod partial;

use super::IndexDefinition;
use model::bson::{Doc, DocBuf, DocWriter, Element, ValueRef};
use model::number::Number;
use model::text::document_quoted;
use model::{Code, Error};
use partial::{check_partial, parse_partial};

const FIELDS_MAX: usize = 32;

/// What is stored behind `v`, `key` and `name`, in the order in which it is
/// shown, whatever order it was sent in.
pub(super) const OPTIONS: &[&str] = &[
    "background",
    "unique",
    "hidden",
    "partialFilterExpression",
    "sparse",
    "expireAfterSeconds",
    "default_language",
    "language_override",
    "textIndexVersion",
    "2dsphereIndexVersion",
    "bits",
    "min",
    "max",
];

/// One specification under examination.
struct Specification<'a> {
    sent: Doc<'a>,
    key: Doc<'a>,
    name: &'a str,
    version: i32,
}

/// Checks a specification as a client sent it. `ignore_unknown` leaves out
/// fields that are not known instead of refusing them.
pub fn parse_specification(sent: Doc<'_>, ignore_unknown: bool) -> Result<IndexDefinition, Error> {
    let mut version = 2;
    let (mut key, mut name) = (None, None);
    for element in sent.iter() {
        check_field(sent, &element, ignore_unknown)
            .map_err(|fault| in_specification(sent, fault))?;
        match (element.key(), element.value()) {
            ("key", ValueRef::Document(doc)) => key = Some(doc),
            ("name", ValueRef::String(text)) => name = Some(text),
            ("v", value) => version = version_of(value).unwrap_or(version),
            _ => {}
        }
    }
    let required = |field: &str| {
        let message =
            format!("The '{field}' field is a required property of an index specification");
        in_specification(sent, Error::new(Code::FAILED_TO_PARSE, message))
    };
    let specification = Specification {
        sent,
        key: key.ok_or_else(|| required("key"))?,
        name: name.ok_or_else(|| required("name"))?,
        version,
    };
    if is_id_pattern(specification.key) {
        return specification.id_index();
    }
    specification.check_name()?;
    specification.check_expiry()?;
    let stored = specification.stored();
    specification.check_combination()?;
    IndexDefinition::from_stored(stored.as_doc())
}

/// Whether a key pattern is that of the index on `_id`, in whatever direction.
fn is_id_pattern(key: Doc<'_>) -> bool {
    let mut fields = key.iter();
    match (fields.next(), fields.next()) {
        (Some(field), None) if field.key() == "_id" => Number::of(field.value())
            .map(Number::to_f64)
            // Its fraction is cut off before it is compared.
            .is_some_and(|number| number.trunc().abs() == 1.0),
        _ => false,
    }
}

fn in_specification(sent: Doc<'_>, fault: Error) -> Error {
    let message = format!(
        "Error in specification {} :: caused by :: {}",
        document_quoted(sent),
        fault.message
    );
    Error::new(fault.code, message)
}

fn cannot_create(message: impl Into<String>) -> Error {
    Error::new(Code::CANNOT_CREATE_INDEX, message)
}

/// Checks one field by itself.
fn check_field(sent: Doc<'_>, element: &Element<'_>, ignore_unknown: bool) -> Result<(), Error> {
    let name = element.key();
    let value = element.value();
    let expect = |what: &str, holds: bool| {
        if holds {
            return Ok(());
        }
        let message = format!(
            "The field '{name}' must be {what}, but got {}",
            value.kind().name()
        );
        Err(Error::new(Code::TYPE_MISMATCH, message))
    };
    match name {
        "key" => match value {
            ValueRef::Document(key) => check_key(key),
            _ => expect("an object", false),
        },
        "name" | "default_language" | "language_override" => {
            expect("a string", matches!(value, ValueRef::String(_)))
        }
        "hidden" => expect("a bool", matches!(value, ValueRef::Boolean(_))),
        "unique" | "sparse" | "background" | "dropDups" | "prepareUnique" | "clustered" => {
            if value.is_number() || matches!(value, ValueRef::Boolean(_)) {
                return if name == "clustered" && model::number::is_truthy(value) {
                    Err(cannot_create("clustered indexes are not supported yet"))
                } else if name == "prepareUnique" && model::number::is_truthy(value) {
                    Err(cannot_create(
                        "the option 'prepareUnique' is not supported yet",
                    ))
                } else {
                    Ok(())
                };
            }
            let mut shown = DocWriter::new();
            shown.append_element(element);
            let shown = document_quoted(shown.finish().as_doc());
            let shown = shown.trim_start_matches("{ ").trim_end_matches(" }");
            let message =
                format!("The field '{name} has value {shown}, which is not convertible to bool");
            Err(Error::new(Code::TYPE_MISMATCH, message))
        }
        "v" => check_version(sent, value),
        "textIndexVersion" | "2dsphereIndexVersion" | "bits" | "min" | "max" => {
            expect("a number", value.is_number())
        }
        // The rules of expiry have texts of their own: `check_expiry`.
        "ns" | "_id" | "expireAfterSeconds" => Ok(()),
        "partialFilterExpression" => match value {
            ValueRef::Document(filter) => parse_partial(filter).map(|_| ()),
            _ => expect("an object", false),
        },
        "collation" => match value {
            ValueRef::Document(doc) => check_collation(doc),
            _ => expect("an object", false),
        },
        "weights" => {
            expect(
                "an object",
                matches!(value, ValueRef::Document(_) | ValueRef::String(_)),
            )?;
            Err(cannot_create(format!(
                "Invalid index specification {}; the field 'weights' can only be specified with \
                 text indexes",
                document_quoted(sent)
            )))
        }
        "wildcardProjection" => Err(Error::bad_value(
            "The field 'wildcardProjection' is only allowed in an 'wildcard' index",
        )),
        "storageEngine" => Err(cannot_create(match value {
            ValueRef::Document(doc) if !doc.is_empty() => {
                "storage engine options are not supported"
            }
            ValueRef::Document(_) => {
                "Empty \"storageEngine\" options are invalid. Please remove the field or include \
                 valid options."
            }
            _ => "\"storageEngine\" options must be a document if present",
        })),
        _ if ignore_unknown => Ok(()),
        _ => Err(Error::new(
            Code::INVALID_INDEX_SPECIFICATION_OPTION,
            format!(
                "The field '{name}' is not valid for an index specification. Specification: {}",
                document_quoted(sent)
            ),
        )),
    }
}

fn check_collation(collation: Doc<'_>) -> Result<(), Error> {
    if collation.is_empty() {
        return Err(Error::bad_value(
            "The field 'collation' cannot be an empty object.",
        ));
    }
    if collation.get_str("locale") == Some("simple") {
        return Ok(());
    }
    Err(Error::new(
        Code::COMMAND_NOT_SUPPORTED,
        "collations other than simple are not supported yet",
    ))
}

fn version_of(value: ValueRef<'_>) -> Option<i32> {
    Number::of(value)?.to_i64_exact()?.try_into().ok()
}

fn check_version(sent: Doc<'_>, value: ValueRef<'_>) -> Result<(), Error> {
    if !value.is_number() {
        let message = format!(
            "The field 'v' must be a number, but got {}",
            value.kind().name()
        );
        return Err(Error::new(Code::TYPE_MISMATCH, message));
    }
    match version_of(value) {
        Some(1 | 2) => Ok(()),
        Some(other) => Err(cannot_create(format!(
            "Invalid index specification {}; cannot create an index with v={other}",
            document_quoted(sent)
        ))),
        None => Err(Error::bad_value(format!(
            "Index version must be representable as a 32-bit integer, but got {}",
            model::text::value_quoted(value)
        ))),
    }
}

/// Checks a key pattern: its fields and their kinds.
fn check_key(key: Doc<'_>) -> Result<(), Error> {
    let mut names: Vec<&str> = Vec::new();
    let mut plugin: Option<&str> = None;
    for field in key.iter() {
        let name = field.key();
        if names.contains(&name) {
            return Err(Error::bad_value(format!(
                "The field '{name}' appears multiple times in the index key pattern {}",
                document_quoted(key)
            )));
        }
        names.push(name);
        check_kind(field.value())?;
        if let ValueRef::String(kind) = field.value() {
            if plugin.is_some_and(|other| other != kind) {
                return Err(cannot_create(
                    "Can't use more than one index plugin for a single index.",
                ));
            }
            plugin = Some(kind);
        }
        check_path(name)?;
    }
    if names.is_empty() {
        return Err(cannot_create("Index keys cannot be empty."));
    }
    if names.len() > FIELDS_MAX {
        return Err(Error::location(13103, "too many compound keys"));
    }
    Ok(())
}

fn check_kind(kind: ValueRef<'_>) -> Result<(), Error> {
    match kind {
        ValueRef::String("hashed") => Ok(()),
        ValueRef::String("") => Err(cannot_create(
            "Values in the index key pattern cannot be empty strings",
        )),
        ValueRef::String(kind @ ("text" | "2d" | "2dsphere")) => Err(cannot_create(format!(
            "{kind} indexes are not supported yet"
        ))),
        ValueRef::String("geoHaystack") => Err(cannot_create(
            "GeoHaystack indexes cannot be created in version 5.0 and above",
        )),
        ValueRef::String("wildcard") => Err(cannot_create(
            "The key pattern value for an 'wildcard' index must be a non-zero number, not a string.",
        )),
        ValueRef::String(other) => Err(cannot_create(format!("Unknown index plugin '{other}'"))),
        value => match Number::of(value) {
            Some(number) if number.is_nan() => Err(cannot_create(
                "Values in the index key pattern cannot be NaN.",
            )),
            Some(number) if number.is_zero() => Err(cannot_create(
                "Values in the index key pattern cannot be 0.",
            )),
            Some(_) => Ok(()),
            None => Err(cannot_create(format!(
                "Values in v:2 index key pattern cannot be of type {}. Only numbers > 0, \
                 numbers < 0, and strings are allowed.",
                value.kind().name()
            ))),
        },
    }
}

fn check_path(path: &str) -> Result<(), Error> {
    if path.is_empty() {
        return Err(cannot_create("Index keys cannot be an empty field."));
    }
    if path == "_fts" {
        return Err(cannot_create(
            "Index key contains an illegal field name: '_fts'",
        ));
    }
    for (depth, part) in path.split('.').enumerate() {
        if part.is_empty() {
            return Err(cannot_create("Index keys cannot contain an empty field."));
        }
        if part == "$**" {
            return Err(cannot_create("wildcard indexes are not supported yet"));
        }
        // The fields of a DBRef have names like operators.
        let reference = depth > 0 && matches!(part, "$id" | "$ref" | "$db");
        if part.starts_with('$') && !reference {
            return Err(cannot_create(
                "Index key contains an illegal field name: field name starts with '$'.",
            ));
        }
    }
    Ok(())
}

impl Specification<'_> {
    /// The index on `_id` takes no options; whatever name it was given, it is `_id_`.
    fn id_index(&self) -> Result<IndexDefinition, Error> {
        let direction = self.key.get("_id").and_then(Number::of).map(Number::to_f64);
        if direction != Some(1.0) {
            return Err(Error::bad_value(format!(
                "The field 'key' for an _id index must be {{_id: 1}}, but got {}",
                document_quoted(self.key)
            )));
        }
        let allowed =
            |name: &str| matches!(name, "key" | "name" | "v" | "ns" | "collation" | "_id");
        if let Some(field) = self.sent.iter().find(|field| !allowed(field.key())) {
            return Err(Error::new(
                Code::INVALID_INDEX_SPECIFICATION_OPTION,
                format!(
                    "The field '{}' is not valid for an _id index specification. \
                     Specification: {}",
                    field.key(),
                    document_quoted(self.sent)
                ),
            ));
        }
        IndexDefinition::on_id()
    }

    fn check_name(&self) -> Result<(), Error> {
        match self.name {
            "_id_" => Err(Error::bad_value(format!(
                "The index name '_id_' is reserved for the _id index, which must have key \
                 pattern {{_id: 1}}, found key: {}",
                document_quoted(self.key)
            ))),
            "*" => Err(Error::bad_value("The index name '*' is not valid.")),
            _ => Ok(()),
        }
    }

    fn check_expiry(&self) -> Result<(), Error> {
        let Some(value) = self.sent.get("expireAfterSeconds") else {
            return Ok(());
        };
        let refuse = |why: String| {
            let message = format!("{why}. Index spec: {}", document_quoted(self.sent));
            Err(cannot_create(message))
        };
        let Some(number) = Number::of(value) else {
            return refuse(format!(
                "TTL index 'expireAfterSeconds' option must be numeric, but received a type of '{}'",
                value.kind().name()
            ));
        };
        let seconds = number.to_f64();
        if seconds < 0.0 {
            return refuse("TTL index 'expireAfterSeconds' option cannot be less than 0".into());
        }
        if seconds > f64::from(i32::MAX) {
            return refuse(
                "TTL index 'expireAfterSeconds' option must be within an acceptable range, try a \
                 lower number"
                    .into(),
            );
        }
        if self.key.iter().count() > 1 {
            return refuse(
                "TTL indexes are single-field indexes, compound indexes do not support TTL".into(),
            );
        }
        Ok(())
    }

    /// What the fields must be together.
    fn check_combination(&self) -> Result<(), Error> {
        let fault = |fault| Err(in_specification(self.sent, fault));
        if self.name.is_empty() {
            return fault(cannot_create("index name cannot be empty"));
        }
        if self.name.contains('\0') {
            return fault(cannot_create("index name cannot contain NUL bytes"));
        }
        let flag = |name| self.sent.get(name).is_some_and(model::number::is_truthy);
        if let Some(partial) = self.sent.get_doc("partialFilterExpression") {
            if flag("sparse") {
                return fault(cannot_create(
                    "cannot mix \"partialFilterExpression\" and \"sparse\" options",
                ));
            }
            if let Err(unsupported) = check_partial(&parse_partial(partial)?, 0) {
                return fault(unsupported);
            }
        }
        let hashed = self
            .key
            .iter()
            .filter(|field| field.value() == ValueRef::String("hashed"))
            .count();
        if hashed > 1 {
            return Err(Error::location(
                31303,
                format!(
                    "A maximum of one index field is allowed to be hashed but found {hashed} \
                     for 'key' {}",
                    document_quoted(self.key)
                ),
            ));
        }
        Ok(())
    }

    fn stored(&self) -> DocBuf {
        let mut writer = DocWriter::new();
        writer
            .append("v", self.version)
            .append("key", self.key)
            .append("name", self.name);
        for name in OPTIONS {
            let Some(element) = self.sent.element(name) else {
                continue;
            };
            let truth = model::number::is_truthy(element.value());
            match *name {
                "unique" | "hidden" if !truth => {}
                "unique" | "hidden" | "sparse" | "background" => {
                    writer.append(name, truth);
                }
                "expireAfterSeconds" => {
                    writer.append(name, stored_seconds(element.value()));
                }
                _ => {
                    writer.append_element(&element);
                }
            }
        }
        writer.finish()
    }
}

/// Seconds after which documents expire, as stored. Not a number means never.
fn stored_seconds(value: ValueRef<'_>) -> i32 {
    let seconds = Number::of(value).map_or(f64::NAN, Number::to_f64);
    match value {
        _ if seconds.is_nan() => i32::MAX,
        ValueRef::Decimal128(_) => seconds.round_ties_even() as i32,
        _ => seconds as i32,
    }
}

#[cfg(test)]
mod tests;
