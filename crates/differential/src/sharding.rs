//! What is different where the target is a sharded cluster: by which fields the collections of the
//! tables are sharded, and which answers only a router gives.
//!
//! Collections are spread by the hash of one field: of another than `_id` where all documents have
//! one and all rows of the group only read, since rows that change single documents, or join them by
//! `$merge`, need `_id`.
//!
//! What a correct router shows otherwise than one server is of few kinds, and each is allowed for as
//! narrowly as it can be said: [`level`] makes two replies equal in that respect alone. Single rows
//! that depend on where documents lie carry `routed: "why"` in their tables.

use crate::row::{Row, Step};
use crate::table::Setup;
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
        let key = match only_read {
            true => other_field(&documents).unwrap_or("_id"),
            false => "_id",
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
            Some(67) => text.contains("with a shard key that is not its prefix"),
            Some(59) => MEMBERS_ONLY.iter().any(|name| text.contains(name)),
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

/// Commands that only members of a replica set have.
const MEMBERS_ONLY: [&str; 5] = [
    "'replSetGetStatus'",
    "'replSetGetConfig'",
    "'replSetInitiate'",
    "'replSetReconfig'",
    "'dbHash'",
];

/// What a member of a replica set says of itself in `hello`, and a router does not.
const OF_MEMBERS: [&str; 5] = [
    "setName",
    "setVersion",
    "secondary",
    "lastWrite",
    "readOnly",
];

/// Numbers of indexes: a sharded collection has one more, on its shard key.
const INDEX_COUNTS: [&str; 4] = [
    "numIndexesBefore",
    "numIndexesAfter",
    "nIndexesWas",
    "nindexes",
];

/// Two replies to a command, equal in what a correct router may show otherwise.
pub fn level(step: &Step, oracle: &Fields, target: &Fields) -> (Fields, Fields) {
    let (mut oracle, mut target) = (oracle.clone(), target.clone());
    let name = step.command.first().map_or("", |(name, _)| name.as_str());
    if matches!(name, "hello" | "isMaster" | "ismaster") {
        oracle.retain(|(name, _)| !OF_MEMBERS.contains(&name.as_str()));
        target.retain(|(name, _)| name != "msg");
        oracle.sort_by(|one, other| one.0.cmp(&other.0));
        target.sort_by(|one, other| one.0.cmp(&other.0));
    }
    // What each shard has said about indexes.
    if matches!(name, "createIndexes" | "dropIndexes" | "deleteIndexes") {
        target.retain(|(name, _)| name != "raw");
    }
    for (name, value) in &mut target {
        if let (true, Some(Value::Int32(one)), Value::Int32(other)) = (
            INDEX_COUNTS.contains(&name.as_str()),
            get(&oracle, name),
            &value,
        ) && *other == one + 1
        {
            *value = Value::Int32(*one);
        }
    }
    let grouped = name == "distinct" || is_grouping(step);
    let cursor_of = |reply: &Fields| get(reply, "cursor").and_then(Value::as_document).cloned();
    if let (Some(mut one), Some(mut other)) = (cursor_of(&oracle), cursor_of(&target)) {
        level_cursors(&one, &mut other);
        if grouped {
            by_value(&mut one, false);
            by_value(&mut other, false);
        }
        put(&mut oracle, "cursor", Value::Document(one));
        put(&mut target, "cursor", Value::Document(other));
    }
    if grouped {
        for reply in [&mut oracle, &mut target] {
            for (_, value) in reply.iter_mut().filter(|(name, _)| name == "values") {
                value_by_value(value);
            }
        }
    }
    (oracle, target)
}

fn put(fields: &mut Fields, name: &str, value: Value) {
    for (_, old) in fields.iter_mut().filter(|(field, _)| field == name) {
        *old = value.clone();
    }
}

/// The index on the shard key is one more to list. And a router that has sent all documents says so
/// at once, where a server whose last batch is full finds out with the next one.
fn level_cursors(oracle: &Fields, target: &mut Fields) {
    let batch = |fields: &Fields| {
        let found = fields.iter().find(|(name, _)| name.ends_with("Batch"));
        found
            .and_then(|(_, batch)| batch.as_array())
            .map(<[Value]>::to_vec)
    };
    let of_oracle = batch(oracle).unwrap_or_default();
    for (_, value) in target
        .iter_mut()
        .filter(|(name, _)| name.ends_with("Batch"))
    {
        if let Value::Array(items) = value {
            items.retain(|item| of_oracle.contains(item) || !is_shard_key_index(item));
        }
    }
    let is_open = |id: Option<&Value>| matches!(id, Some(Value::Int64(id)) if *id != 0);
    let (one, other) = (get(oracle, "id"), get(target, "id"));
    if let (true, false, Some(id)) = (is_open(one), is_open(other), one) {
        put(target, "id", id.clone());
    }
}

fn is_shard_key_index(item: &Value) -> bool {
    let field = item.get("key").and_then(Value::as_document);
    let field = field.and_then(|key| key.first());
    match (field, item.get("name").and_then(Value::as_str)) {
        (Some((field, Value::String(kind))), Some(name)) => {
            kind == "hashed" && *name == format!("{field}_hashed")
        }
        _ => false,
    }
}

/// Whether a step makes groups: which of equal values stands for one depends on who came first.
fn is_grouping(step: &Step) -> bool {
    let stages = get(&step.command, "pipeline").and_then(Value::as_array);
    let grouping = ["$group", "$sortByCount", "$bucket"];
    stages.is_some_and(|stages| {
        let groups = |stage: &Value| grouping.iter().any(|name| stage.get(name).is_some());
        stages.iter().any(groups)
    })
}

/// Makes equal numbers of different types the same, within `_id`s.
fn by_value(fields: &mut Fields, within: bool) {
    for (name, value) in fields {
        match value {
            _ if within || name == "_id" => value_by_value(value),
            Value::Document(nested) => by_value(nested, false),
            Value::Array(items) => {
                for item in items {
                    if let Value::Document(nested) = item {
                        by_value(nested, false);
                    }
                }
            }
            _ => {}
        }
    }
}

fn value_by_value(value: &mut Value) {
    match value {
        Value::Document(nested) => by_value(nested, true),
        Value::Array(items) => items.iter_mut().for_each(value_by_value),
        Value::Int32(number) => *value = Value::Double(f64::from(*number)),
        Value::Int64(number) if number.unsigned_abs() < 1 << 53 => {
            *value = Value::Double(*number as f64);
        }
        _ => {}
    }
}
