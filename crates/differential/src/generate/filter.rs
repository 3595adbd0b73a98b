//! Random filters.

use super::expression;
use super::source::Source;
use crate::value::{Value, field};

/// A filter document, with logical operators nested at most so deep.
pub fn filter(source: &mut Source, depth: usize) -> Value {
    if depth > 0 && source.chance(25) {
        let operator = source.word(&["$and", "$or", "$or", "$nor"]);
        let count = source.between(1, 3);
        let parts: Vec<Value> = (0..count).map(|_| filter(source, depth - 1)).collect();
        return Value::Document(vec![field(operator, parts)]);
    }
    if source.chance(6) {
        return Value::Document(vec![field("$expr", expression::truth(source, 2))]);
    }
    let mut fields = Vec::new();
    for _ in 0..=usize::from(source.chance(25)) {
        let path = source.path();
        let condition = condition(source, &path, depth);
        fields.push((path, condition));
    }
    fields.dedup_by(|a, b| a.0 == b.0);
    Value::Document(fields)
}

/// A value like those the path leads to, most of the time.
fn likely(source: &mut Source, path: &str) -> Value {
    let name = path.split('.').next().unwrap_or_default();
    if source.chance(80)
        && let Some(value) = source.seen(name)
    {
        return value;
    }
    if source.chance(75) {
        match (source.habitual(name), path) {
            (_, "_id") => Value::Int32(source.between(1, 12)),
            // One item of an array is matched more often than the whole.
            (Value::Array(items), _) if !items.is_empty() && source.chance(70) => {
                source.pick(&items).clone()
            }
            (value, _) => value,
        }
    } else {
        source.value(2)
    }
}

fn condition(source: &mut Source, path: &str, depth: usize) -> Value {
    if source.chance(25) {
        return likely(source, path);
    }
    if source.chance(4) {
        return Value::Regex(
            source.word(&["a", "^a", "b$", "A", "."]).to_owned(),
            pick_options(source),
        );
    }
    let mut operators = Vec::new();
    for _ in 0..=usize::from(source.chance(25)) {
        let next = operator(source, path, depth);
        if !operators
            .iter()
            .any(|(name, _): &(String, Value)| *name == next.0)
        {
            operators.push(next);
        }
    }
    Value::Document(operators)
}

fn pick_options(source: &mut Source) -> String {
    source.word(&["", "", "i", "m"]).to_owned()
}

fn operator(source: &mut Source, path: &str, depth: usize) -> (String, Value) {
    match source.below(30) {
        0..10 => {
            let name = source.word(&["$eq", "$gt", "$gte", "$lt", "$lte"]);
            (name.to_owned(), likely(source, path))
        }
        10 | 11 => ("$ne".to_owned(), likely(source, path)),
        12..16 => {
            let name = source.word(&["$in", "$in", "$nin"]);
            let count = source.below(4);
            field(
                name,
                (0..count).map(|_| likely(source, path)).collect::<Vec<_>>(),
            )
        }
        16 | 17 => field("$exists", source.chance(50)),
        18 | 19 => {
            let name = source.word(&[
                "number", "string", "array", "object", "null", "int", "double", "date", "bool",
            ]);
            field("$type", name)
        }
        20 => field("$size", source.between(0, 4)),
        21 => {
            let count = source.between(0, 2);
            field(
                "$all",
                (0..count).map(|_| likely(source, path)).collect::<Vec<_>>(),
            )
        }
        22 | 23 if depth > 0 => {
            let inner = if source.chance(50) {
                Value::Document(vec![operator(source, path, 0)])
            } else {
                let name = source.word(&["a", "b", "c"]);
                let value = condition(source, "x", 0);
                Value::Document(vec![(name.to_owned(), value)])
            };
            field("$elemMatch", inner)
        }
        24 | 25 if depth > 0 => {
            let inner = operator(source, path, depth - 1);
            field("$not", vec![inner])
        }
        26 => field(
            "$mod",
            vec![
                Value::Int32(source.between(2, 4)),
                Value::Int32(source.between(0, 2)),
            ],
        ),
        27 => {
            let name = source.word(&[
                "$bitsAllSet",
                "$bitsAnySet",
                "$bitsAllClear",
                "$bitsAnyClear",
            ]);
            field(name, source.between(0, 7))
        }
        28 => field("$regex", *source.pick(&["a", "^a", "b$", "[ab]", "^.$"])),
        _ => ("$eq".to_owned(), Value::Null),
    }
}
