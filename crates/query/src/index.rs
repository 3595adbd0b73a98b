//! What an index is: its definition, and the keys a document has in it.
//!
//! The definition is parsed once from the specification that `createIndexes`
//! was given; the specification itself is kept, because `listIndexes` shows it.
//! What a specification may hold is the matter of `specification`.

mod specification;
#[cfg(test)]
mod tests;

pub use specification::parse_specification;

use crate::context::QueryContext;
use crate::filter::Filter;
use crate::index_keys::{MultikeyPaths, Plain, index_keys, plain_value};
use crate::path::Path;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::key::{Direction, KeyBuilder};
use model::number::Number;
use model::{Code, Error};

/// How one field of an index is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FieldKind {
    Ascending,
    Descending,
    /// The 64-bit hash of the value.
    Hashed,
}

impl FieldKind {
    pub fn direction(self) -> Direction {
        match self {
            FieldKind::Ascending | FieldKind::Hashed => Direction::Ascending,
            FieldKind::Descending => Direction::Descending,
        }
    }
}

#[derive(Clone, Debug)]
pub struct IndexField {
    pub path: Path,
    pub kind: FieldKind,
}

#[derive(Clone, Debug)]
pub struct IndexDefinition {
    pub name: String,
    /// As `listIndexes` shows it.
    pub spec: DocBuf,
    pub fields: Vec<IndexField>,
    /// The fields' paths alone, for making keys.
    paths: Vec<Path>,
    pub unique: bool,
    pub sparse: bool,
    pub hidden: bool,
    /// Only documents that match are in the index.
    pub partial: Option<Filter>,
    pub expire_after_seconds: Option<i64>,
}

/// Whether the outermost field of a path is the same in both, to the byte.
pub fn is_untouched(path: &str, before: Doc<'_>, after: Doc<'_>) -> bool {
    let name = path.split_once('.').map_or(path, |(first, _)| first);
    before.element(name) == after.element(name)
}

/// The keys of one document in one index, sorted and without repetitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentKeys {
    pub keys: Vec<EncodedKey>,
    /// Where arrays were expanded.
    pub multikey: MultikeyPaths,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EncodedKey {
    pub fields: Vec<u8>,
    pub type_bits: Vec<u8>,
}

fn damaged(what: &str) -> Error {
    Error::new(
        Code::CANNOT_CREATE_INDEX,
        format!("the index specification is not valid: {what}"),
    )
}

impl IndexDefinition {
    /// The index that every collection has: the order of its records.
    pub fn on_id() -> Result<Self, Error> {
        let key = DocWriter::new().with("_id", 1).finish();
        let spec = DocWriter::new()
            .with("v", 2)
            .with("key", &key)
            .with("name", "_id_")
            .finish();
        Self::from_stored(spec.as_doc())
    }

    /// Refuses what cannot be built, though it can be written down: a name or an index that is there
    /// already is looked for before.
    pub fn check_buildable(&self) -> Result<(), Error> {
        let mut fields = self.fields.iter();
        if self.unique && fields.any(|field| field.kind == FieldKind::Hashed) {
            return Err(Error::location(
                16764,
                "Currently hashed indexes cannot guarantee uniqueness. Use a regular index.",
            ));
        }
        Ok(())
    }

    /// This definition with one option of its specification set, or taken away.
    pub fn with_option(&self, name: &str, value: Option<ValueRef<'_>>) -> Result<Self, Error> {
        let mut spec = DocWriter::new();
        for field in ["v", "key", "name"].iter().chain(specification::OPTIONS) {
            match self.spec.as_doc().element(field) {
                _ if *field == name => {
                    if let Some(value) = value {
                        spec.append(name, value);
                    }
                }
                Some(element) => {
                    spec.append_element(&element);
                }
                None => {}
            }
        }
        Self::from_stored(spec.finish().as_doc())
    }

    /// Reads a specification that was checked before it was stored.
    pub fn from_stored(spec: Doc<'_>) -> Result<Self, Error> {
        let name = spec.get_str("name").ok_or_else(|| damaged("name"))?;
        let key = spec.get_doc("key").ok_or_else(|| damaged("key"))?;
        let mut fields = Vec::new();
        for element in key.iter() {
            let kind = match element.value() {
                ValueRef::String("hashed") => FieldKind::Hashed,
                value => match Number::of(value).map(Number::to_f64) {
                    Some(number) if number < 0.0 => FieldKind::Descending,
                    Some(_) => FieldKind::Ascending,
                    None => return Err(damaged("key")),
                },
            };
            fields.push(IndexField {
                path: Path::new(element.key()),
                kind,
            });
        }
        let flag = |name| spec.get(name).is_some_and(model::number::is_truthy);
        let partial = match spec.get_doc("partialFilterExpression") {
            Some(filter) => Some(Filter::parse(filter, &QueryContext::new(0))?),
            None => None,
        };
        let expire_after_seconds = spec
            .get("expireAfterSeconds")
            .and_then(Number::of)
            .and_then(Number::to_i64_truncated);
        Ok(Self {
            name: name.to_owned(),
            spec: spec.to_owned(),
            paths: fields.iter().map(|field| field.path.clone()).collect(),
            fields,
            unique: flag("unique"),
            sparse: flag("sparse"),
            hidden: flag("hidden"),
            partial,
            expire_after_seconds,
        })
    }

    /// The pattern, as in `{a: 1, b: -1}`.
    pub fn key_pattern(&self) -> Doc<'_> {
        self.spec
            .as_doc()
            .get_doc("key")
            .expect("a definition is made from a specification with a key")
    }

    pub fn directions(&self) -> Vec<Direction> {
        self.fields.iter().map(|f| f.kind.direction()).collect()
    }

    pub fn is_hashed(&self) -> bool {
        self.fields.iter().any(|f| f.kind == FieldKind::Hashed)
    }

    /// Whether this is the index on `_id`, whose entries are the records.
    pub fn is_id(&self) -> bool {
        self.name == "_id_"
    }

    /// Whether two versions of a document have the same keys for sure: nothing that keys are made
    /// of has changed. Most updates change what no index is about.
    pub fn is_untouched(&self, before: Doc<'_>, after: Doc<'_>) -> bool {
        let mut fields = self.fields.iter();
        self.partial.is_none()
            && fields.all(|field| is_untouched(field.path.as_str(), before, after))
    }

    /// The keys that a document has in this index.
    pub fn keys(&self, doc: Doc<'_>) -> Result<DocumentKeys, Error> {
        if let Some(partial) = &self.partial
            && !partial.matches(doc)?
        {
            return Ok(DocumentKeys::default());
        }
        let Some((key, any_present)) = self.plain_key(doc) else {
            return self.expanded_keys(doc);
        };
        let mut keys = DocumentKeys::default();
        if any_present || !self.sparse {
            keys.keys.push(key);
        }
        Ok(keys)
    }

    /// The keys of a document, with arrays expanded.
    fn expanded_keys(&self, doc: Doc<'_>) -> Result<DocumentKeys, Error> {
        let mut document_keys = DocumentKeys::default();
        let found = index_keys(&self.paths, doc)?;
        document_keys.multikey = MultikeyPaths::of(found.multikey());
        if !document_keys.multikey.is_empty() && self.is_hashed() {
            let hashed = self.fields.iter().find(|f| f.kind == FieldKind::Hashed);
            return Err(Error::location(
                16766,
                format!(
                    "Error: hashed indexes do not currently support array values. Found array \
                     at path: {}",
                    hashed.map_or("", |field| field.path.as_str())
                ),
            ));
        }
        for key in found.keys() {
            if self.sparse && !key.any_present {
                continue;
            }
            let mut builder = KeyBuilder::new();
            for (&value, field) in key.values.iter().zip(&self.fields) {
                push_field(&mut builder, value, field);
            }
            document_keys.keys.push(EncodedKey::from(builder));
        }
        if document_keys.keys.len() > 1 {
            document_keys.keys.sort();
            document_keys.keys.dedup_by(|a, b| a.fields == b.fields);
        }
        Ok(document_keys)
    }

    /// The one key of a document that has no array at any path, and whether any of its values is there.
    fn plain_key(&self, doc: Doc<'_>) -> Option<(EncodedKey, bool)> {
        let mut builder = KeyBuilder::with_prefix(&[]);
        let mut any_present = false;
        for field in &self.fields {
            let value = match plain_value(&field.path, doc) {
                Plain::Value(value) => {
                    any_present = true;
                    value
                }
                Plain::Missing => ValueRef::Null,
                Plain::AtArray => return None,
            };
            push_field(&mut builder, value, field);
        }
        Some((EncodedKey::from(builder), any_present))
    }
}

fn push_field(builder: &mut KeyBuilder, value: ValueRef<'_>, field: &IndexField) {
    match field.kind {
        FieldKind::Hashed => {
            let hash = ValueRef::Int64(model::hash::hashed_index_key(value));
            builder.push(hash, Direction::Ascending);
        }
        FieldKind::Ascending | FieldKind::Descending => {
            builder.push(value, field.kind.direction());
        }
    }
}

impl From<KeyBuilder> for EncodedKey {
    fn from(builder: KeyBuilder) -> Self {
        let (fields, type_bits) = builder.finish();
        Self {
            fields,
            type_bits: type_bits.into_bytes(),
        }
    }
}
