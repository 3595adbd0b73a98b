//! What two collections are, beside their documents: type, options, indexes.
//!
//! Options and indexes are compared name by name, each value whole. Left out is what a server adds
//! for itself and nobody chose: a collection's `uuid`, an index's `ns` and `background`. An option
//! that is not there is the same as its default, which some commands write down. Numbers are
//! compared by value, because servers keep a given number as an int, a long or a double as they like; but not
//! within what users wrote, which servers keep as it is and which can tell them apart: the pipelines of views,
//! validators, partial filters. The order of fields counts wherever it means something, that is within every
//! value (the fields of an index key, a validator, a view's pipeline), but not among options.
//!
//! Everything is compared as it lies, element by element, because a validator may well have the same
//! name twice: decoded into a map, only one of the two would be seen.

use crate::difference;
use crate::element::{Malformed, ValueRef, elements, field, kind, text_bytes};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A collection or view, as the server lists it.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectionEntry {
    pub name: String,
    /// `collection`, `view` or `timeseries`.
    pub kind: String,
    /// As BSON.
    pub options: Vec<u8>,
    /// What tells it from a later collection of the same name; views have none.
    pub uuid: Option<String>,
}

impl CollectionEntry {
    pub fn parse(listed: &[u8]) -> Result<CollectionEntry, Malformed> {
        let options = match field(listed, "options")? {
            Some(options) if options.kind == kind::DOCUMENT => options.bytes.to_vec(),
            Some(_) | None => crate::element::Writer::new().finish(),
        };
        check_settings(&options)?;
        let uuid = match field(listed, "info")? {
            Some(info) if info.kind == kind::DOCUMENT => field(info.bytes, "uuid")?,
            Some(_) | None => None,
        };
        Ok(CollectionEntry {
            name: text_of(field(listed, "name")?).ok_or(Malformed)?,
            kind: text_of(field(listed, "type")?).unwrap_or_else(|| "collection".to_owned()),
            options,
            uuid: uuid.map(show),
        })
    }

    fn option(&self, name: &str, wanted: u8) -> Option<&[u8]> {
        let found = field(&self.options, name).ok().flatten();
        let found = found.filter(|value| value.kind == wanted);
        found.map(|value| value.bytes)
    }

    pub fn is_capped(&self) -> bool {
        self.option("capped", kind::BOOLEAN) == Some(&[1])
    }

    pub fn is_clustered(&self) -> bool {
        field(&self.options, "clusteredIndex").is_ok_and(|found| found.is_some())
    }

    /// The field that a time series is ordered by.
    pub fn time_field(&self) -> Option<String> {
        let series = self.option("timeseries", kind::DOCUMENT)?;
        text_of(field(series, "timeField").ok()?)
    }

    /// The collation that sorts the collection's `_id`s; None is by bytes.
    pub fn collation(&self) -> Option<&[u8]> {
        self.option("collation", kind::DOCUMENT)
    }
}

/// Refuses what could not be walked through; whatever passes can be compared and shown.
pub fn check_settings(settings: &[u8]) -> Result<(), Malformed> {
    crate::element::check_depth(settings, crate::element::LEVELS_MAX)
}

fn text_of(value: Option<ValueRef<'_>>) -> Option<String> {
    let value = value.filter(|value| value.kind == kind::STRING)?;
    let text = value.bytes.get(4..)?.strip_suffix(&[0])?;
    String::from_utf8(text.to_vec()).ok()
}

/// One thing that is not the same on both sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MetadataMismatch {
    /// The name of the namespace on the source.
    pub namespace: String,
    /// What differs: `collection`, `type`, `option validator`, `index a_1`, `index a_1, unique`.
    pub what: String,
    /// None where the source has no such thing.
    pub source: Option<String>,
    pub destination: Option<String>,
}

const COLLECTION_OPTIONS_IGNORED: [&str; 1] = ["uuid"];
const INDEX_OPTIONS_IGNORED: [&str; 2] = ["ns", "background"];

/// Compares what two collections are.
pub fn compare_collections(
    namespace: &str,
    source: &CollectionEntry,
    destination: &CollectionEntry,
) -> Vec<MetadataMismatch> {
    if source.kind != destination.kind {
        return vec![MetadataMismatch {
            namespace: namespace.to_owned(),
            what: "type".to_owned(),
            source: Some(source.kind.clone()),
            destination: Some(destination.kind.clone()),
        }];
    }
    compare_named(
        namespace,
        |name| format!("option {name}"),
        &source.options,
        &destination.options,
        &COLLECTION_OPTIONS_IGNORED,
    )
}

/// Compares the indexes of two collections, by name.
pub fn compare_indexes(
    namespace: &str,
    source: &[Vec<u8>],
    destination: &[Vec<u8>],
) -> Vec<MetadataMismatch> {
    let named = |indexes: &[Vec<u8>], name: &str| {
        let found = indexes.iter().find(|index| index_name(index) == name);
        found.cloned()
    };
    let names: BTreeSet<String> = source
        .iter()
        .chain(destination)
        .map(|index| index_name(index))
        .collect();
    let mut found = Vec::new();
    for name in names {
        match (named(source, &name), named(destination, &name)) {
            (Some(one), Some(other)) => found.extend(compare_named(
                namespace,
                |option| format!("index {name}, {option}"),
                &one,
                &other,
                &INDEX_OPTIONS_IGNORED,
            )),
            (one, other) => found.push(MetadataMismatch {
                namespace: namespace.to_owned(),
                what: format!("index {name}"),
                source: one.map(|index| show(document(&index))),
                destination: other.map(|index| show(document(&index))),
            }),
        }
    }
    found
}

fn index_name(index: &[u8]) -> String {
    let name = field(index, "name").ok().flatten();
    text_of(name).unwrap_or_default()
}

pub(crate) fn document(bytes: &[u8]) -> ValueRef<'_> {
    ValueRef {
        kind: kind::DOCUMENT,
        bytes,
    }
}

/// The values of each name, in their order.
fn by_name(settings: &[u8]) -> BTreeMap<String, Vec<ValueRef<'_>>> {
    let mut named: BTreeMap<String, Vec<ValueRef<'_>>> = BTreeMap::new();
    for element in walk(settings) {
        let name = String::from_utf8_lossy(element.name).into_owned();
        named.entry(name).or_default().push(element.value);
    }
    named
}

fn walk(settings: &[u8]) -> impl Iterator<Item = crate::element::Element<'_>> {
    // Whatever is compared was checked when it was read.
    elements(settings).into_iter().flatten().flatten()
}

fn compare_named(
    namespace: &str,
    what: impl Fn(&str) -> String,
    source: &[u8],
    destination: &[u8],
    ignored: &[&str],
) -> Vec<MetadataMismatch> {
    let (source, destination) = (by_name(source), by_name(destination));
    let names: BTreeSet<&String> = source.keys().chain(destination.keys()).collect();
    let mut found = Vec::new();
    for name in names {
        if ignored.contains(&name.as_str()) {
            continue;
        }
        let default = default_of(name);
        let default: Vec<ValueRef<'_>> = default.iter().map(|value| value.as_ref()).collect();
        let (one, other) = (source.get(name).cloned(), destination.get(name).cloned());
        let (left, right) = (
            one.as_ref().unwrap_or(&default),
            other.as_ref().unwrap_or(&default),
        );
        let numbers = numbers_of(name);
        let same = left.len() == right.len()
            && left
                .iter()
                .zip(right)
                .all(|(one, other)| same_setting(*one, *other, numbers));
        if same {
            continue;
        }
        let shown = |values: &Vec<ValueRef<'_>>, show: fn(ValueRef<'_>) -> String| {
            let shown: Vec<String> = values.iter().map(|value| show(*value)).collect();
            shown.join(", ")
        };
        let texts = |show: fn(ValueRef<'_>) -> String| {
            let text = |values: &Option<Vec<_>>| values.as_ref().map(|values| shown(values, show));
            (text(&one), text(&other))
        };
        let (mut one, mut other) = texts(show);
        if one == other {
            (one, other) = texts(show_types);
        }
        found.push(MetadataMismatch {
            namespace: namespace.to_owned(),
            what: what(name),
            source: one,
            destination: other,
        });
    }
    found
}

/// What an option of a collection or an index is when it is not given.
fn default_of(name: &str) -> Option<crate::element::Value> {
    let text = |text: &str| crate::element::Value {
        kind: kind::STRING,
        bytes: text_bytes(text).into(),
    };
    match name {
        "validationLevel" => Some(text("strict")),
        "validationAction" => Some(text("error")),
        "capped" | "unique" | "sparse" | "hidden" => Some(crate::element::Value {
            kind: kind::BOOLEAN,
            bytes: [0].into(),
        }),
        _ => None,
    }
}

/// When two numbers are the same setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbers {
    ByValue,
    /// To the bit, with their types.
    Exact,
}

fn numbers_of(option: &str) -> Numbers {
    match option {
        "pipeline" | "validator" | "partialFilterExpression" => Numbers::Exact,
        _ => Numbers::ByValue,
    }
}

pub(crate) fn same_setting(one: ValueRef<'_>, other: ValueRef<'_>, numbers: Numbers) -> bool {
    if one == other {
        return true;
    }
    match (one.kind, other.kind) {
        (kind::DOCUMENT, kind::DOCUMENT) | (kind::ARRAY, kind::ARRAY) => {
            let (mut left, mut right) = (walk(one.bytes), walk(other.bytes));
            loop {
                match (left.next(), right.next()) {
                    (None, None) => return true,
                    (Some(one), Some(other)) if one.name == other.name => {
                        if !same_setting(one.value, other.value, numbers) {
                            return false;
                        }
                    }
                    (_, _) => return false,
                }
            }
        }
        (_, _) => match (numbers, number(one), number(other)) {
            // What is not a number equals nothing, but is the same setting.
            (Numbers::ByValue, Some(one), Some(other)) => {
                one == other || (one.is_nan() && other.is_nan())
            }
            (_, _, _) => false,
        },
    }
}

fn number(value: ValueRef<'_>) -> Option<f64> {
    match value.kind {
        kind::INT32 => {
            let bytes = value.bytes.first_chunk()?;
            Some(f64::from(i32::from_le_bytes(*bytes)))
        }
        kind::INT64 => {
            let number = i64::from_le_bytes(*value.bytes.first_chunk()?);
            // Settings are small numbers; those that a double cannot hold compare as they are.
            (number.unsigned_abs() < 1 << 53).then_some(number as f64)
        }
        kind::DOUBLE => Some(f64::from_le_bytes(*value.bytes.first_chunk()?)),
        _ => None,
    }
}

/// A value as relaxed extended JSON, every element of it.
pub(crate) fn show(value: ValueRef<'_>) -> String {
    shown(value, &|leaf| difference::relaxed(leaf).to_string())
}

/// As [`show`], with the types of numbers.
fn show_types(value: ValueRef<'_>) -> String {
    shown(value, &|leaf| {
        let shown = difference::show(leaf);
        format!("{} {}", shown.kind, shown.value)
    })
}

fn shown(value: ValueRef<'_>, leaf: &dyn Fn(ValueRef<'_>) -> String) -> String {
    match value.kind {
        kind::DOCUMENT => {
            let fields = walk(value.bytes).map(|element| {
                let name = String::from_utf8_lossy(element.name);
                let name = serde_json::Value::from(name.into_owned());
                format!("{name}:{}", shown(element.value, leaf))
            });
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
        kind::ARRAY => {
            let items = walk(value.bytes).map(|element| shown(element.value, leaf));
            format!("[{}]", items.collect::<Vec<_>>().join(","))
        }
        _ => leaf(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Writer;
    use bson::{Document, doc};

    fn entry(kind: &str, options: Document) -> CollectionEntry {
        let listed = doc! {"name": "c", "type": kind, "options": options};
        CollectionEntry::parse(&listed.to_vec().unwrap()).unwrap()
    }

    /// Documents of one field each, as one with all of the fields.
    fn repeated(fields: &[Document]) -> Vec<u8> {
        let mut writer = Writer::new();
        for one in fields {
            for element in elements(&one.to_vec().unwrap()).unwrap() {
                let element = element.unwrap();
                let name = str::from_utf8(element.name).unwrap();
                writer.value(name, element.value);
            }
        }
        writer.finish()
    }

    #[test]
    fn a_name_that_comes_twice_is_seen_twice() {
        let (one, two) = (doc! {"a": 1}, doc! {"a": {"$gt": 2}});
        let both = repeated(&[one.clone(), two.clone()]);
        let turned = repeated(&[two.clone(), one]);
        let last = two.to_vec().unwrap();
        let with = |name: &str, value: &[u8]| {
            let mut options = Writer::new();
            options.document(name, value);
            options.finish()
        };
        let check_option = |name: &str, left: &[u8], right: &[u8], expected: &[&str]| {
            let entry = |value: &[u8]| CollectionEntry {
                options: with(name, value),
                ..entry("collection", doc! {})
            };
            let found = compare_collections("d.c", &entry(left), &entry(right));
            check(&found, expected);
        };
        for name in ["validator", "pipeline", "storageEngine"] {
            check_option(name, &both, &both, &[]);
            let told = format!("option {name}: {{\"a\":1,\"a\":{{\"$gt\":2}}}}");
            let missing = format!("{told} | {{\"a\":{{\"$gt\":2}}}}");
            check_option(name, &both, &last, &[&missing]);
            let other = format!("{told} | {{\"a\":{{\"$gt\":2}},\"a\":1}}");
            check_option(name, &both, &turned, &[&other]);
        }
        let index = |filter: &[u8]| {
            let mut index = Writer::new();
            index.text("name", "x");
            index.document("partialFilterExpression", filter);
            vec![index.finish()]
        };
        check(&compare_indexes("d.c", &index(&both), &index(&both)), &[]);
        let found = compare_indexes("d.c", &index(&both), &index(&last));
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn numbers_that_users_wrote_have_types() {
        let check_numbers = |name: &str, one: Document, other: Document, expected: &[&str]| {
            let entry = |value: Document| entry("collection", doc! {name: value});
            check(
                &compare_collections("d.c", &entry(one), &entry(other)),
                expected,
            );
        };
        let project = |one: bson::Bson| doc! {"$project": {"x": {"$literal": one}}};
        check_numbers(
            "pipeline",
            project(1.into()),
            project(1.0.into()),
            &[
                r#"option pipeline: {"$project":{"x":{"$literal":1}}} | {"$project":{"x":{"$literal":1.0}}}"#,
            ],
        );
        check_numbers(
            "validator",
            doc! {"a": 1},
            doc! {"a": 1_i64},
            &[r#"option validator: {"a":int {"$numberInt":"1"}} | {"a":long {"$numberLong":"1"}}"#],
        );
        check_numbers("timeseries", doc! {"a": 1}, doc! {"a": 1.0}, &[]);
    }

    fn check(found: &[MetadataMismatch], expected: &[&str]) {
        let side = |side: &Option<String>| side.clone().unwrap_or_else(|| "-".to_owned());
        let lines: Vec<String> = found
            .iter()
            .map(|one| {
                format!(
                    "{}: {} | {}",
                    one.what,
                    side(&one.source),
                    side(&one.destination)
                )
            })
            .collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn options_are_compared_by_name() {
        let source = entry("collection", doc! {"capped": true, "size": 4096, "uuid": 1});
        let other = entry(
            "collection",
            doc! {"size": 4096.0, "capped": true, "max": 5},
        );
        check(&compare_collections("d.c", &source, &source), &[]);
        check(
            &compare_collections("d.c", &source, &other),
            &["option max: - | 5"],
        );
        let defaults = entry(
            "collection",
            doc! {"validationAction": "error", "validationLevel": "strict", "capped": false},
        );
        let plain = entry("collection", doc! {});
        check(&compare_collections("d.c", &plain, &defaults), &[]);
        let ruled = entry("collection", doc! {"validator": {"a": {"$ne": f64::NAN}}});
        check(&compare_collections("d.c", &ruled, &ruled), &[]);
        let view = entry("view", doc! {"viewOn": "x"});
        check(
            &compare_collections("d.c", &source, &view),
            &["type: collection | view"],
        );
    }

    #[test]
    fn indexes_are_compared_by_name_and_option() {
        let compare = |source: &[Document], destination: &[Document]| {
            let bytes = |indexes: &[Document]| -> Vec<Vec<u8>> {
                indexes.iter().map(|one| one.to_vec().unwrap()).collect()
            };
            compare_indexes("d.c", &bytes(source), &bytes(destination))
        };
        let id = doc! {"v": 2, "key": {"_id": 1}, "name": "_id_"};
        let one = doc! {"v": 2, "key": {"a": 1, "b": -1}, "name": "x", "ns": "d.c"};
        let turned = doc! {"v": 2.0, "key": {"b": -1, "a": 1}, "name": "x", "unique": true};
        check(
            &compare(&[id.clone(), one.clone()], &[one.clone(), id.clone()]),
            &[],
        );
        check(
            &compare(&[id.clone(), one.clone()], &[id.clone(), turned]),
            &[
                r#"index x, key: {"a":1,"b":-1} | {"b":-1,"a":1}"#,
                "index x, unique: - | true",
            ],
        );
        check(
            &compare(&[id.clone(), one], &[id]),
            &[r#"index x: {"v":2,"key":{"a":1,"b":-1},"name":"x","ns":"d.c"} | -"#],
        );
    }
}
