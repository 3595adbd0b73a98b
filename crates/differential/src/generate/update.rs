//! Random updates.

use super::source::{ARRAY, NUMBER, Source};
use super::{Draft, expression, filter};
use crate::value::{Fields, Value, field};

pub fn update(source: &mut Source) -> Draft {
    let query = match source.below(4) {
        0 => Value::Document(vec![field("_id", source.between(1, 14))]),
        1 => Value::Document(Vec::new()),
        _ => filter::filter(source, 1),
    };
    let change = match source.below(12) {
        0 => replacement(source),
        1 => stages(source),
        _ => operators(source),
    };
    let is_replacement = matches!(&change, Value::Document(fields)
        if !fields.first().is_some_and(|(name, _)| name.starts_with('$')));
    let uses_filter = crate::notation::print(&change).contains("$[i]");
    let mut draft = Draft::new("update", vec![query, change]);
    if !is_replacement && source.chance(40) {
        draft = draft.with("multi", true);
    }
    if source.chance(20) {
        draft = draft.with("upsert", true);
    }
    if uses_filter {
        let value = source.number();
        let condition = Value::Document(vec![(
            source.word(&["$gt", "$lt", "$eq", "$ne"]).to_owned(),
            value,
        )]);
        draft = draft.with(
            "arrayFilters",
            vec![Value::Document(vec![("i".to_owned(), condition)])],
        );
    }
    draft
}

fn replacement(source: &mut Source) -> Value {
    let mut fields = source.object(2);
    fields.retain(|(name, _)| name != "0");
    Value::Document(fields)
}

fn stages(source: &mut Source) -> Value {
    let count = source.between(1, 2);
    let stage = |source: &mut Source| match source.below(3) {
        0 => Value::Document(vec![field("$unset", source.word(&["a", "o.a", "r"]))]),
        _ => {
            let path = source.word(&["x", "a", "o.b"]);
            let fields = vec![(path.to_owned(), expression::any(source, 2))];
            Value::Document(vec![field("$set", fields)])
        }
    };
    Value::Array((0..count).map(|_| stage(source)).collect())
}

fn operators(source: &mut Source) -> Value {
    let mut change: Fields = Vec::new();
    let mut taken: Vec<String> = Vec::new();
    for _ in 0..source.between(1, 2) {
        let operator = source.word(&[
            "$set",
            "$set",
            "$unset",
            "$inc",
            "$mul",
            "$min",
            "$max",
            "$rename",
            "$setOnInsert",
            "$bit",
            "$push",
            "$push",
            "$addToSet",
            "$pop",
            "$pull",
            "$pullAll",
        ]);
        let path = path_for(source, operator);
        let top = path.split('.').next().unwrap_or_default().to_owned();
        // Conflicts are an error in both; a few of them are enough.
        if change.iter().any(|(name, _)| name == operator)
            || (taken.contains(&top) && !source.chance(5))
        {
            continue;
        }
        let argument = argument(source, operator);
        taken.push(top);
        change.push(field(operator, vec![(path, argument)]));
    }
    Value::Document(change)
}

fn path_for(source: &mut Source, operator: &str) -> String {
    if source.chance(25) {
        return match source.below(5) {
            0 => "r.$[]".to_owned(),
            1 => "r.$[i]".to_owned(),
            2 => "r.0".to_owned(),
            _ => source.path(),
        };
    }
    let name = match operator {
        "$inc" | "$mul" | "$bit" => NUMBER,
        "$push" | "$addToSet" | "$pop" | "$pull" | "$pullAll" => ARRAY,
        "$min" | "$max" => source.word(&[NUMBER, "d", "a"]),
        _ => source.name(),
    };
    if name == "_id" && !source.chance(10) {
        "a".to_owned()
    } else {
        name.to_owned()
    }
}

fn argument(source: &mut Source, operator: &str) -> Value {
    match operator {
        "$inc" | "$mul" => {
            if source.chance(95) {
                source.number()
            } else {
                source.value(1)
            }
        }
        "$unset" => Value::from(""),
        "$rename" => Value::from(source.word(&["x", "y", "o.x", "a"])),
        "$bit" => Value::Document(vec![field(
            source.word(&["and", "or", "xor"]),
            source.between(0, 7),
        )]),
        "$pop" => Value::Int32(if source.chance(50) { 1 } else { -1 }),
        "$pullAll" => source.array(),
        "$pull" => {
            if source.chance(50) {
                source.number()
            } else {
                let value = source.value(1);
                Value::Document(vec![(
                    source.word(&["$gt", "$lt", "$in", "$ne"]).to_owned(),
                    value,
                )])
            }
        }
        "$push" | "$addToSet" if source.chance(50) => {
            let mut modifiers = vec![field("$each", source.array())];
            if operator == "$push" {
                if source.chance(30) {
                    modifiers.push(field("$slice", source.between(-3, 3)));
                }
                if source.chance(30) {
                    modifiers.push(field("$sort", if source.chance(50) { 1 } else { -1 }));
                }
                if source.chance(30) {
                    modifiers.push(field("$position", source.between(-2, 3)));
                }
            }
            Value::Document(modifiers)
        }
        _ => source.value(2),
    }
}
