//! Sort patterns, and the key by which a document sorts.
//!
//! The key is encoded so that comparing bytes compares documents: each field in
//! BSON order, inverted where the pattern descends. A document with an array
//! has several candidate keys, the same as an index over the pattern would hold
//! for it; it sorts by the least of them in the order of the pattern. So an
//! ascending sort goes by the smallest element and a descending one by the
//! largest, and fields that share an array are taken from the same element.
//! Missing sorts as null, an empty array as undefined. Only a sort by `_id` alone compares
//! arrays as a whole.
//!
//! Sorting itself, with limits and spilling, is in [`sorter`].
//!
//! Left out: sorts by metadata (`$meta`), which need text search or a random
//! value per document; they are refused by name. `{$natural: 1}` is no order of
//! keys; commands ask [`natural_direction`] before they parse a pattern.

pub mod sorter;
mod spilled;

pub use sorter::{Run, RunWriter, Sorted, Sorter, Spill, SpilledRecord};
pub use spilled::StreamSpill;

use crate::index_keys::index_keys;
use crate::path::Path;
use model::bson::{Doc, MAX_DEPTH, Value, ValueRef};
use model::key::{Direction, KeyBuilder};
use model::number::Number;
use model::{Code, Error};
use std::cmp::Ordering;

/// MongoDB's limit on the fields of one pattern.
pub const MAX_FIELDS: usize = 32;

/// A parsed sort specification. The default one has no fields: all are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SortPattern {
    paths: Vec<Path>,
    directions: Vec<Direction>,
}

/// A document's place in a sorted sequence: compares as bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SortKey(Vec<u8>);

impl SortKey {
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl SortPattern {
    /// Reads `{a: 1, "b.c": -1}`. An empty document is an empty pattern, by
    /// which all documents are equal; where one is not allowed the caller says so.
    pub fn parse(doc: Doc<'_>) -> Result<Self, Error> {
        let mut pattern = Self {
            paths: Vec::new(),
            directions: Vec::new(),
        };
        for element in doc {
            let direction = parse_direction(element.key(), element.value())?;
            check_path(element.key())?;
            let path = Path::new(element.key());
            if path.components().len() > MAX_DEPTH {
                return Err(Error::new(Code::OVERFLOW, "FieldPath is too long"));
            }
            pattern.paths.push(path);
            pattern.directions.push(direction);
        }
        if pattern.paths.len() > MAX_FIELDS {
            return Err(Error::location(13103, "too many compound keys"));
        }
        Ok(pattern)
    }

    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    pub fn paths(&self) -> &[Path] {
        &self.paths
    }

    pub fn directions(&self) -> &[Direction] {
        &self.directions
    }

    pub fn fields(&self) -> impl Iterator<Item = (&Path, Direction)> {
        self.paths.iter().zip(self.directions.iter().copied())
    }

    /// The key of a document.
    pub fn key(&self, doc: Doc<'_>) -> Result<SortKey, Error> {
        let mut bytes = Vec::new();
        self.key_into(doc, &mut bytes)?;
        Ok(SortKey(bytes))
    }

    /// Appends the key of a document.
    pub fn key_into(&self, doc: Doc<'_>, out: &mut Vec<u8>) -> Result<(), Error> {
        if self.is_empty() {
            return Ok(());
        }
        let key = match self.key_without_arrays(doc) {
            Some(key) => key,
            None => self.least_key(doc)?.1,
        };
        if out.is_empty() {
            *out = key;
        } else {
            out.extend_from_slice(&key);
        }
        Ok(())
    }

    /// The values that a document sorts by: what `$meta: "sortKey"` shows.
    pub fn key_values(&self, doc: Doc<'_>) -> Result<Vec<Value>, Error> {
        if self.is_empty() {
            return Ok(Vec::new());
        }
        if self.is_by_id() {
            let id = doc.get("_id").unwrap_or(ValueRef::Null);
            return Ok(vec![id.to_owned()]);
        }
        Ok(self.least_key(doc)?.0)
    }

    pub fn compare(&self, left: Doc<'_>, right: Doc<'_>) -> Result<Ordering, Error> {
        Ok(self.key(left)?.cmp(&self.key(right)?))
    }

    /// The usual case, without looking for several keys; `None` at an array.
    fn key_without_arrays(&self, doc: Doc<'_>) -> Option<Vec<u8>> {
        let mut key = KeyBuilder::new();
        for (path, direction) in self.fields() {
            let mut value = Some(ValueRef::Document(doc));
            for component in path.components() {
                value = match value {
                    Some(ValueRef::Document(doc)) => doc.get(component.name()),
                    Some(_) | None => None,
                };
                if let Some(ValueRef::Array(_)) = value
                    && !self.is_by_id()
                {
                    return None;
                }
            }
            key.push(value.unwrap_or(ValueRef::Null), direction);
        }
        Some(key.finish().0)
    }

    /// A sort by `_id` alone takes an array there as a whole: stored ids are no arrays, but
    /// pipelines may put any value there.
    fn is_by_id(&self) -> bool {
        matches!(self.paths.as_slice(), [only] if only.as_str() == "_id")
    }

    fn least_key(&self, doc: Doc<'_>) -> Result<(Vec<Value>, Vec<u8>), Error> {
        let keys = index_keys(&self.paths, doc).map_err(|error| {
            if error.code == Code::CANNOT_INDEX_PARALLEL_ARRAYS {
                Error::bad_value("cannot sort with keys that are parallel arrays")
            } else {
                error
            }
        })?;
        let (values, encoded) = keys
            .keys()
            .map(|key| {
                let mut encoded = KeyBuilder::new();
                for (value, direction) in key.values.iter().zip(&self.directions) {
                    encoded.push(*value, *direction);
                }
                (key.values, encoded.finish().0)
            })
            .min_by(|(_, left), (_, right)| left.cmp(right))
            .expect("every document has at least one key");
        Ok((values.iter().map(ValueRef::to_owned).collect(), encoded))
    }
}

/// The direction of `{$natural: ..}`: the order in which records are stored.
pub fn natural_direction(doc: Doc<'_>) -> Result<Option<Direction>, Error> {
    let Some(value) = doc.get("$natural") else {
        return Ok(None);
    };
    if doc.iter().count() > 1 {
        return Err(Error::bad_value(format!(
            "Cannot include '$natural' in compound sort: {doc:?}"
        )));
    }
    let is_backward = Number::of(value).is_some_and(|number| number.to_f64() < 0.0);
    Ok(Some(if is_backward {
        Direction::Descending
    } else {
        Direction::Ascending
    }))
}

fn parse_direction(name: &str, value: ValueRef<'_>) -> Result<Direction, Error> {
    if let ValueRef::Document(expression) = value {
        return Err(refuse_metadata(expression));
    }
    let Some(number) = Number::of(value) else {
        return Err(Error::location(
            15974,
            format!("Illegal key in $sort specification: {name}: {value:?}"),
        ));
    };
    // A double is cut to its whole part, a decimal must be whole.
    let whole = match number {
        Number::Decimal(_) => number.to_i64_exact(),
        Number::Int32(_) | Number::Int64(_) | Number::Double(_) => number.to_i64_truncated(),
    };
    match whole {
        Some(1) => Ok(Direction::Ascending),
        Some(-1) => Ok(Direction::Descending),
        _ => Err(Error::location(
            15975,
            "$sort key ordering must be 1 (for ascending) or -1 (for descending)",
        )),
    }
}

fn refuse_metadata(expression: Doc<'_>) -> Error {
    let Some(first) = expression.first().filter(|first| first.key() == "$meta") else {
        return Error::location(
            17312,
            "$meta is the only expression supported by $sort right now",
        );
    };
    if expression.iter().count() > 1 {
        return Error::new(
            Code::FAILED_TO_PARSE,
            "Cannot have additional keys in a $meta sort specification",
        );
    }
    match first.value() {
        ValueRef::String("textScore") => Error::location(
            40218,
            "query requires text score metadata, but it is not available",
        ),
        ValueRef::String("geoNearDistance" | "geoNearPoint") => Error::location(
            40218,
            "query requires $geoNear distance metadata, but it is not available",
        ),
        ValueRef::String("randVal") => Error::new(
            Code::COMMAND_NOT_SUPPORTED,
            "sorting by {$meta: \"randVal\"} is not supported",
        ),
        ValueRef::String(name @ ("searchScore" | "searchHighlights")) => Error::location(
            31218,
            format!("$meta sort by '{name}' metadata is not supported"),
        ),
        other => Error::location(31138, format!("Illegal $meta sort: $meta: {other:?}")),
    }
}

/// The rules for paths in stages, which are stricter than in filters.
fn check_path(path: &str) -> Result<(), Error> {
    if path.is_empty() {
        return Err(Error::location(
            40352,
            "FieldPath cannot be constructed with empty string",
        ));
    }
    if path.ends_with('.') {
        return Err(Error::location(40353, "FieldPath must not end with a '.'."));
    }
    for (at, component) in path.split('.').enumerate() {
        if component.is_empty() {
            return Err(Error::location(
                15998,
                "FieldPath field names may not be empty strings.",
            ));
        }
        let is_reference = at > 0 && matches!(component, "$id" | "$ref" | "$db");
        if component.starts_with('$') && !is_reference {
            return Err(Error::location(
                16410,
                "FieldPath field names may not start with '$'. Consider using $getField or \
                 $setField.",
            ));
        }
    }
    Ok(())
}
