//! What is different where the target is a sharded cluster: by which fields the collections of the
//! tables are sharded, and which answers only a router gives.
//!
//! Collections are spread by the hash of one field: of another than `_id` where all documents have
//! one and all rows of the group only read, since rows that change single documents need `_id`.

use crate::row::{Row, Step};
use crate::table::{COLLECTION, Setup};
use crate::value::{Fields, Value, get};

/// The collections of a setup and the fields they are sharded by.
pub fn keys(setup: &Setup, only_read: bool) -> Vec<(String, String)> {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in &setup.collections {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let key_of = |name: &&str| {
        let documents: Vec<&Fields> = setup
            .collections
            .iter()
            .filter(|(collection, _)| collection == name)
            .flat_map(|(_, documents)| documents)
            .collect();
        let key = match *name == COLLECTION && !only_read {
            true => "_id",
            false => other_field(&documents).unwrap_or("_id"),
        };
        (name.to_string(), key.to_owned())
    };
    names.iter().map(key_of).collect()
}

/// A field that all documents have, never an array.
fn other_field<'a>(documents: &[&'a Fields]) -> Option<&'a str> {
    let first = documents.first()?;
    let usable = |name: &str| {
        documents.iter().all(|document| {
            let value = get(document, name);
            value.is_some_and(|value| !matches!(value, Value::Array(_)))
        })
    };
    let mut names = first.iter().map(|(name, _)| name.as_str());
    names.find(|name| *name != "_id" && !name.contains('.') && usable(name))
}

/// Whether a row asks for a plan: those of routers name shards.
pub fn is_about_plans(row: &Row) -> bool {
    let explains = |step: &Step| {
        let first = step.command.first();
        first.is_some_and(|(name, _)| name == "explain") || get(&step.command, "explain").is_some()
    };
    row.steps.iter().any(explains)
}

/// Whether a reply says that a statement cannot be routed: MongoDB's routers say so too.
pub fn is_refused_by_routers(reply: &Fields) -> bool {
    let refuses = |error: &Fields| {
        let code = match get(error, "code") {
            Some(Value::Int32(code)) => Some(*code),
            _ => None,
        };
        let text = get(error, "errmsg").and_then(Value::as_str).unwrap_or("");
        match code {
            Some(61) => true,
            Some(72) => text.starts_with("A {multi:false} update on a sharded collection"),
            _ => text.contains("is sharded so it can't be used for $out"),
        }
    };
    let of_statements = get(reply, "writeErrors").and_then(Value::as_array);
    let statement = |error: &Value| match error {
        Value::Document(error) => refuses(error),
        _ => false,
    };
    refuses(reply) || of_statements.is_some_and(|errors| errors.iter().any(statement))
}
