//! Shard keys: from a document to its place in the order that ranges divide.
//!
//! ```text
//!   pattern   {country: 1, "address.zip": 1}     ranged
//!             {_id: "hashed"}                    hashed
//!             {country: 1, _id: "hashed"}        compound, at most one field hashed
//!
//!   document ─► one value per field ─► encoded, one behind the other ─► key
//!               (missing: null; hashed: its 64-bit hash)
//! ```
//!
//! A key is bytes whose order is the order of the values (see [`crate::key`]), so
//! ranges compare without decoding. Every key is at or after [`ShardKeyPattern::least`]
//! and before [`crate::range::KeyBound::after_all`], which is how MaxKey as the end of the last range
//! is read.
//!
//! Arrays have no place in this order: neither as a value nor on the way to one.

use crate::bson::{Doc, DocBuf, DocWriter, Value, ValueRef};
use crate::key::{Direction, KeyBuilder, TypeBits, decode, skip_value};
use crate::number::Number;
use crate::range::{KeyBound, KeyRange, RangeSet};
use crate::text::document_quoted;
use crate::{Code, Error};

/// What a collection is sharded by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardKeyPattern {
    fields: Box<[ShardKeyField]>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardKeyField {
    pub path: Box<str>,
    pub hashed: bool,
}

impl ShardKeyPattern {
    /// Reads a pattern as `shardCollection` is given it.
    pub fn parse(pattern: Doc<'_>) -> Result<Self, Error> {
        let mut fields = Vec::new();
        for element in pattern.iter() {
            let hashed = match element.value() {
                ValueRef::String("hashed") => true,
                value if Number::of(value).is_some_and(|number| number.to_f64() == 1.0) => false,
                _ => return Err(unusable(pattern)),
            };
            let path = element.key();
            let parts_named = path
                .split('.')
                .all(|part| !part.is_empty() && !part.starts_with('$'));
            if !parts_named {
                return Err(unusable(pattern));
            }
            fields.push(ShardKeyField {
                path: path.into(),
                hashed,
            });
        }
        if fields.is_empty() {
            return Err(Error::bad_value("Shard key is empty"));
        }
        if fields.iter().filter(|field| field.hashed).count() > 1 {
            return Err(Error::bad_value(format!(
                "A maximum of one index field is allowed to be hashed but found more in {}",
                document_quoted(pattern)
            )));
        }
        Ok(Self {
            fields: fields.into(),
        })
    }

    pub fn fields(&self) -> &[ShardKeyField] {
        &self.fields
    }

    /// Whether this pattern continues `other`: what refining a key asks for.
    pub fn extends(&self, other: &ShardKeyPattern) -> bool {
        self.fields.starts_with(&other.fields)
    }

    /// The key of a document.
    pub fn key_of(&self, document: Doc<'_>) -> Result<Vec<u8>, Error> {
        let mut key = KeyBuilder::new();
        for field in &self.fields {
            let value = value_at(document, &field.path)?.unwrap_or(ValueRef::Null);
            self.push(&mut key, field, value);
        }
        Ok(key.finish().0)
    }

    /// The key of a document that may have arrays in fields which the key was refined by later: they count as MinKey.
    /// Bounds from before have that in these fields, so it lies in the same ranges as the shorter key.
    pub fn key_of_before(&self, document: Doc<'_>) -> Vec<u8> {
        let mut key = KeyBuilder::new();
        for field in &self.fields {
            match value_at(document, &field.path) {
                Ok(value) => self.push(&mut key, field, value.unwrap_or(ValueRef::Null)),
                Err(_) => {
                    key.push(ValueRef::MinKey, Direction::Ascending);
                }
            }
        }
        key.finish().0
    }

    /// The key of documents that have these values in its fields.
    pub fn key_of_values<'a>(&self, values: impl IntoIterator<Item = ValueRef<'a>>) -> Vec<u8> {
        let mut key = KeyBuilder::new();
        for (field, value) in self.fields.iter().zip(values) {
            self.push(&mut key, field, value);
        }
        key.finish().0
    }

    /// The key that the bounds of a range name: all fields in order, hashed ones
    /// as the hash itself.
    pub fn key_of_bound(&self, bound: Doc<'_>) -> Result<Vec<u8>, Error> {
        let mut key = KeyBuilder::new();
        let mut elements = bound.iter();
        for field in &self.fields {
            match elements.next() {
                Some(element) if element.key() == &*field.path => {
                    key.push(element.value(), Direction::Ascending);
                }
                _ => return Err(wrong_bound(bound)),
            }
        }
        match elements.next() {
            Some(_) => Err(wrong_bound(bound)),
            None => Ok(key.finish().0),
        }
    }

    /// The range between two bounds; one that ends with MaxKey throughout has all keys
    /// from its beginning on.
    pub fn range_of(&self, min: Doc<'_>, max: Doc<'_>) -> Result<KeyRange, Error> {
        let min = KeyBound::new(&self.key_of_bound(min)?);
        Ok(KeyRange::new(min, self.bound(max)?))
    }

    /// Where a range begins or ends that is given as documents. MaxKey throughout is the
    /// end of all.
    pub fn bound(&self, bound: Doc<'_>) -> Result<KeyBound, Error> {
        let key = self.key_of_bound(bound)?;
        Ok(match key == self.greatest() {
            true => KeyBound::after_all(),
            false => KeyBound::new(&key),
        })
    }

    /// The bound that a place in the order stands for: [`Self::bound`] the other way.
    /// Numbers get their usual type: which of several equal ones it was made from is not known.
    pub fn bound_of_key(&self, key: &[u8]) -> Result<DocBuf, Error> {
        let mut bound = DocWriter::new();
        if key == KeyBound::after_all().as_bytes() {
            for field in &self.fields {
                bound.append(&field.path, ValueRef::MaxKey);
            }
            return Ok(bound.finish());
        }
        let directions = vec![Direction::Ascending; self.fields.len()];
        let values = decode(key, &TypeBits::new(), &directions).map_err(|fault| {
            Error::new(
                Code::INTERNAL_ERROR,
                format!("a bound of a chunk cannot be read: {fault}"),
            )
        })?;
        for (field, value) in self.fields.iter().zip(&values) {
            match (field.hashed, value) {
                // Hashes are always long.
                (true, Value::Int32(hash)) => bound.append(&field.path, i64::from(*hash)),
                // The least one, which is a power of two.
                (true, Value::Double(hash)) => bound.append(&field.path, *hash as i64),
                (true | false, value) => bound.append(&field.path, value),
            };
        }
        Ok(bound.finish())
    }

    /// A bound in the words of this key: one that names only the first of its fields, as a bound of a key that
    /// was refined to this one does, gets MinKey in the others. ⚑ No key lies between the two. Whatever else
    /// stands behind a value, the end of a prefix or of all, stays as it is.
    #[must_use]
    pub fn completed(&self, bound: &KeyBound) -> KeyBound {
        let bytes = bound.as_bytes();
        let (mut at, mut named) = (0, 0);
        while at < bytes.len() && named < self.fields.len() {
            match skip_value(&bytes[at..], Direction::Ascending) {
                Ok(length) => at += length,
                Err(_) => return bound.clone(),
            }
            named += 1;
        }
        if at < bytes.len() || named == self.fields.len() {
            return bound.clone();
        }
        let mut rest = KeyBuilder::new();
        for _ in named..self.fields.len() {
            rest.push(ValueRef::MinKey, Direction::Ascending);
        }
        KeyBound::new(&[bytes, &rest.finish().0].concat())
    }

    /// Ranges in the words of this key.
    #[must_use]
    pub fn completed_ranges(&self, ranges: &RangeSet) -> RangeSet {
        let completed = |range: &KeyRange| {
            KeyRange::new(self.completed(&range.min), self.completed(&range.max))
        };
        ranges.iter().map(completed).collect()
    }

    /// The smallest key: MinKey in every field.
    pub fn least(&self) -> Vec<u8> {
        self.filled_with(ValueRef::MinKey)
    }

    /// The greatest key: MaxKey in every field.
    pub fn greatest(&self) -> Vec<u8> {
        self.filled_with(ValueRef::MaxKey)
    }

    fn filled_with(&self, value: ValueRef<'_>) -> Vec<u8> {
        let mut key = KeyBuilder::new();
        for _ in &self.fields {
            key.push(value, Direction::Ascending);
        }
        key.finish().0
    }

    fn push(&self, key: &mut KeyBuilder, field: &ShardKeyField, value: ValueRef<'_>) {
        let hash;
        let value = match field.hashed {
            true => {
                hash = crate::hash::hashed_index_key(value);
                ValueRef::Int64(hash)
            }
            false => value,
        };
        key.push(value, Direction::Ascending);
    }
}

/// The value at a dotted path; an error if it is an array or lies inside one.
fn value_at<'a>(document: Doc<'a>, path: &str) -> Result<Option<ValueRef<'a>>, Error> {
    let mut value = ValueRef::Document(document);
    for part in path.split('.') {
        value = match value {
            ValueRef::Document(doc) => match doc.get(part) {
                Some(inner) => inner,
                None => return Ok(None),
            },
            ValueRef::Array(_) => return Err(array_in_key(path)),
            _ => return Ok(None),
        };
    }
    match value {
        ValueRef::Array(_) => Err(array_in_key(path)),
        value => Ok(Some(value)),
    }
}

fn array_in_key(path: &str) -> Error {
    Error::new(
        Code::SHARD_KEY_NOT_FOUND,
        format!("Shard key cannot contain array values or array descendants: '{path}'"),
    )
}

fn unusable(pattern: Doc<'_>) -> Error {
    Error::bad_value(format!(
        "Unsupported shard key pattern {}. Pattern must either be a single hashed field, or a \
         list of ascending fields",
        document_quoted(pattern)
    ))
}

fn wrong_bound(bound: Doc<'_>) -> Error {
    Error::bad_value(format!(
        "the bound {} does not have the fields of the shard key in their order",
        document_quoted(bound)
    ))
}

#[cfg(test)]
mod tests;
