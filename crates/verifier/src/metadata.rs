//! What two collections are, beside their documents: type, options, indexes.
//!
//! Options and indexes are compared name by name, each value whole. Left out is what a server adds
//! for itself and nobody chose: a collection's `uuid`, an index's `ns` and `background`. An option
//! that is not there is the same as its default, which some commands write down. Numbers are
//! compared by value, because servers keep a given number as an int, a long or a double as they like. The order of fields counts wherever it means something, that is within every value (the
//! fields of an index key, a validator, a view's pipeline), but not among options.

use bson::{Bson, Document};
use serde::Serialize;
use std::collections::BTreeSet;

/// A collection or view, as the server lists it.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectionEntry {
    pub name: String,
    /// `collection`, `view` or `timeseries`.
    pub kind: String,
    pub options: Document,
    /// What tells it from a later collection of the same name; views have none.
    pub uuid: Option<String>,
}

impl CollectionEntry {
    pub fn is_capped(&self) -> bool {
        self.options.get_bool("capped").unwrap_or(false)
    }

    pub fn is_clustered(&self) -> bool {
        self.options.contains_key("clusteredIndex")
    }

    /// The field that a time series is ordered by.
    pub fn time_field(&self) -> Option<&str> {
        let series = self.options.get_document("timeseries").ok()?;
        series.get_str("timeField").ok()
    }

    /// The collation that sorts the collection's `_id`s; None is by bytes.
    pub fn collation(&self) -> Option<&Document> {
        self.options.get_document("collation").ok()
    }
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
    source: &[Document],
    destination: &[Document],
) -> Vec<MetadataMismatch> {
    let named = |indexes: &[Document], name: &str| {
        indexes
            .iter()
            .find(|index| index_name(index) == name)
            .cloned()
    };
    let names: BTreeSet<String> = source.iter().chain(destination).map(index_name).collect();
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
                source: one.map(|index| show(&Bson::Document(index))),
                destination: other.map(|index| show(&Bson::Document(index))),
            }),
        }
    }
    found
}

fn index_name(index: &Document) -> String {
    index.get_str("name").unwrap_or_default().to_owned()
}

fn compare_named(
    namespace: &str,
    what: impl Fn(&str) -> String,
    source: &Document,
    destination: &Document,
    ignored: &[&str],
) -> Vec<MetadataMismatch> {
    let names: BTreeSet<&String> = source.keys().chain(destination.keys()).collect();
    names
        .into_iter()
        .filter(|name| !ignored.contains(&name.as_str()))
        .filter_map(|name| {
            let (one, other) = (source.get(name), destination.get(name));
            let default = default_of(name);
            let same = match (one.or(default.as_ref()), other.or(default.as_ref())) {
                (Some(one), Some(other)) => same_setting(one, other),
                (one, other) => one.is_none() && other.is_none(),
            };
            (!same).then(|| MetadataMismatch {
                namespace: namespace.to_owned(),
                what: what(name),
                source: one.map(show),
                destination: other.map(show),
            })
        })
        .collect()
}

/// What an option of a collection or an index is when it is not given.
fn default_of(name: &str) -> Option<Bson> {
    match name {
        "validationLevel" => Some(Bson::from("strict")),
        "validationAction" => Some(Bson::from("error")),
        "capped" | "unique" | "sparse" | "hidden" => Some(Bson::from(false)),
        _ => None,
    }
}

pub(crate) fn same_setting(one: &Bson, other: &Bson) -> bool {
    match (one, other) {
        (Bson::Document(one), Bson::Document(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .zip(other)
                    .all(|((name, value), (other_name, other_value))| {
                        name == other_name && same_setting(value, other_value)
                    })
        }
        (Bson::Array(one), Bson::Array(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .zip(other)
                    .all(|(value, other)| same_setting(value, other))
        }
        (one, other) => match (number(one), number(other)) {
            // What is not a number equals nothing, but is the same setting.
            (Some(one), Some(other)) => one == other || (one.is_nan() && other.is_nan()),
            (_, _) => one == other,
        },
    }
}

fn number(value: &Bson) -> Option<f64> {
    match value {
        Bson::Int32(number) => Some(f64::from(*number)),
        // Settings are small numbers; those that a double cannot hold compare as they are.
        Bson::Int64(number) if number.unsigned_abs() < 1 << 53 => Some(*number as f64),
        Bson::Double(number) => Some(*number),
        _ => None,
    }
}

pub(crate) fn show(value: &Bson) -> String {
    value.clone().into_relaxed_extjson().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    fn entry(kind: &str, options: Document) -> CollectionEntry {
        CollectionEntry {
            name: "c".to_owned(),
            kind: kind.to_owned(),
            options,
            uuid: None,
        }
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
        let id = doc! {"v": 2, "key": {"_id": 1}, "name": "_id_"};
        let one = doc! {"v": 2, "key": {"a": 1, "b": -1}, "name": "x", "ns": "d.c"};
        let turned = doc! {"v": 2.0, "key": {"b": -1, "a": 1}, "name": "x", "unique": true};
        check(
            &compare_indexes(
                "d.c",
                &[id.clone(), one.clone()],
                &[one.clone(), id.clone()],
            ),
            &[],
        );
        check(
            &compare_indexes("d.c", &[id.clone(), one.clone()], &[id.clone(), turned]),
            &[
                r#"index x, key: {"a":1,"b":-1} | {"b":-1,"a":1}"#,
                "index x, unique: - | true",
            ],
        );
        check(
            &compare_indexes("d.c", &[id.clone(), one], &[id]),
            &[r#"index x: {"v":2,"key":{"a":1,"b":-1},"name":"x","ns":"d.c"} | -"#],
        );
    }
}
