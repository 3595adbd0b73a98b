//! Documents that share an `_id`, as only the shards of a collection can have them, put side by side.
//!
//! Documents that are the same on both sides are paired first; of the rest, those with the same values in
//! the shard key are two states of one document. What then has no counterpart is on one side only. Where
//! the shard key is not known (a user who may not read `config`) the rest has no counterparts.

use crate::compare::Comparison;
use crate::difference::{Difference, differences, show};
use crate::element::{Malformed, ValueRef, field, kind};

/// How the documents of both sides with one `_id` differ, each named by its shard key.
pub fn describe(
    comparison: Comparison,
    shard_key: &[String],
    source: &[Vec<u8>],
    destination: &[Vec<u8>],
) -> Result<Vec<Difference>, Malformed> {
    let mut unpaired: Vec<&[u8]> = destination.iter().map(Vec::as_slice).collect();
    let mut left: Vec<&[u8]> = Vec::new();
    for one in source {
        let mut same = None;
        for (place, other) in unpaired.iter().enumerate() {
            if comparison.same_document(one, other)? {
                same = Some(place);
                break;
            }
        }
        match same {
            Some(place) => drop(unpaired.remove(place)),
            None => left.push(one),
        }
    }
    let mut found = Vec::new();
    for one in left {
        let values = key_values(one, shard_key)?;
        let mut counterpart = None;
        for (place, other) in unpaired.iter().enumerate() {
            if !shard_key.is_empty() && key_values(other, shard_key)? == values {
                counterpart = Some(place);
                break;
            }
        }
        match counterpart {
            Some(place) => {
                let other = unpaired.remove(place);
                let copy = shown_key(one, shard_key)?;
                for mut difference in differences(comparison, one, other)? {
                    difference.copy = copy.clone();
                    found.push(difference);
                }
            }
            None => found.push(Difference {
                copy: shown_key(one, shard_key)?,
                path: String::new(),
                source: Some(show(whole(one))),
                destination: None,
            }),
        }
    }
    for other in unpaired {
        found.push(Difference {
            copy: shown_key(other, shard_key)?,
            path: String::new(),
            source: None,
            destination: Some(show(whole(other))),
        });
    }
    Ok(found)
}

fn whole(document: &[u8]) -> ValueRef<'_> {
    ValueRef {
        kind: kind::DOCUMENT,
        bytes: document,
    }
}

/// What a document has in the fields of the shard key.
fn key_values<'a>(
    document: &'a [u8],
    shard_key: &[String],
) -> Result<Vec<Option<ValueRef<'a>>>, Malformed> {
    let values = shard_key.iter().map(|path| {
        let mut value = Some(whole(document));
        for name in path.split('.') {
            value = match value {
                Some(inner) if inner.kind == kind::DOCUMENT => field(inner.bytes, name)?,
                Some(_) | None => None,
            };
        }
        Ok(value)
    });
    values.collect()
}

fn shown_key(document: &[u8], shard_key: &[String]) -> Result<Option<String>, Malformed> {
    let values = key_values(document, shard_key)?;
    let parts: Vec<String> = shard_key
        .iter()
        .zip(values)
        .map(|(path, value)| match value {
            Some(value) => format!("{path}: {}", show(value).value),
            None => format!("no {path}"),
        })
        .collect();
    Ok((!parts.is_empty()).then(|| parts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Document, doc};

    fn check(shard_key: &[&str], source: &[Document], destination: &[Document], expected: &[&str]) {
        let bytes = |documents: &[Document]| -> Vec<Vec<u8>> {
            let encoded = documents.iter().map(|one| one.to_vec().unwrap());
            encoded.collect()
        };
        let key: Vec<String> = shard_key.iter().map(ToString::to_string).collect();
        let (source, destination) = (bytes(source), bytes(destination));
        let found = describe(Comparison::Bytes, &key, &source, &destination).unwrap();
        let lines: Vec<String> = found
            .iter()
            .map(|one| {
                let sides = (one.source.is_some(), one.destination.is_some());
                format!("{} {sides:?}", one.place())
            })
            .collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn documents_are_paired_by_shard_key() {
        let one = doc! {"_id": 7, "k": "a", "v": 1};
        let changed = doc! {"_id": 7, "k": "a", "v": 2};
        let two = doc! {"_id": 7, "k": "b", "v": 1};
        let both = [one.clone(), two.clone()];
        check(&["k"], &both, &[two.clone(), one.clone()], &[]);
        check(
            &["k"],
            &both,
            std::slice::from_ref(&one),
            &[r#"the document (of the one with k: "b") (true, false)"#],
        );
        check(
            &["k"],
            &both,
            &[two.clone(), changed.clone()],
            &[r#"v (of the one with k: "a") (true, true)"#],
        );
        check(
            &["k"],
            std::slice::from_ref(&one),
            &[changed, two.clone()],
            &[
                r#"v (of the one with k: "a") (true, true)"#,
                r#"the document (of the one with k: "b") (false, true)"#,
            ],
        );
        check(
            &["x.y", "k"],
            &[doc! {"_id": 7, "x": {"y": "c"}}, one.clone()],
            std::slice::from_ref(&one),
            &[r#"the document (of the one with x.y: "c", no k) (true, false)"#],
        );
        // Without a key only those that are the same have counterparts.
        check(&[], &both, &[one], &["the document (true, false)"]);
    }
}
