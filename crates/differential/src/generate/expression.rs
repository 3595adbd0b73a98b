//! Random expressions, by the type they are meant to give.

use super::source::{ARRAY, DATE, NUMBER, OBJECT, STRING, Source};
use crate::value::{Value, field};

fn call(name: &str, arguments: Vec<Value>) -> Value {
    Value::Document(vec![field(name, arguments)])
}

fn named(name: &str, arguments: Vec<(String, Value)>) -> Value {
    Value::Document(vec![field(name, arguments)])
}

fn literal(value: Value) -> Value {
    Value::Document(vec![("$literal".to_owned(), value)])
}

fn path(text: &str) -> Value {
    Value::String(format!("${text}"))
}

pub fn any(source: &mut Source, depth: usize) -> Value {
    match source.below(12) {
        0..3 => number(source, depth),
        3 | 4 => string(source, depth),
        5 | 6 => array(source, depth),
        7 | 8 => truth(source, depth),
        9 => date(source, depth),
        10 if depth > 0 => {
            let condition = truth(source, depth - 1);
            let (one, other) = (any(source, depth - 1), any(source, depth - 1));
            call("$cond", vec![condition, one, other])
        }
        _ => match source.below(6) {
            0 => path(&source.path()),
            1 => literal(source.value(2)),
            2 => Value::Document(vec![
                ("x".to_owned(), leaf(source)),
                ("y".to_owned(), leaf(source)),
            ]),
            3 => call("$type", vec![leaf(source)]),
            4 => {
                let first = leaf(source);
                call("$ifNull", vec![first, leaf(source)])
            }
            _ => object(source),
        },
    }
}

/// A field or a constant of any type.
fn leaf(source: &mut Source) -> Value {
    if source.chance(70) {
        path(&source.path())
    } else {
        literal(source.value(1))
    }
}

fn object(source: &mut Source) -> Value {
    match source.below(4) {
        0 => call(
            "$mergeObjects",
            vec![path(OBJECT), literal(Value::Document(source.object(1)))],
        ),
        1 => call("$objectToArray", vec![path(OBJECT)]),
        2 => named(
            "$getField",
            vec![
                field("field", source.word(&["a", "b"])),
                ("input".to_owned(), path(OBJECT)),
            ],
        ),
        _ => path(OBJECT),
    }
}

pub fn number(source: &mut Source, depth: usize) -> Value {
    if depth == 0 || source.chance(25) {
        return match source.below(10) {
            0..5 => path(NUMBER),
            5 => path("_id"),
            6 => path(&source.path()),
            _ => source.number(),
        };
    }
    let depth = depth - 1;
    match source.below(14) {
        0..3 => {
            let name = source.word(&["$add", "$multiply", "$sum", "$max", "$min", "$avg"]);
            let count = source.between(1, 3);
            call(name, (0..count).map(|_| number(source, depth)).collect())
        }
        3..6 => {
            let name = source.word(&["$subtract", "$divide", "$mod", "$subtract"]);
            let first = number(source, depth);
            call(name, vec![first, number(source, depth)])
        }
        6 => call(
            source.word(&["$abs", "$ceil", "$floor", "$trunc", "$round", "$sqrt"]),
            vec![number(source, depth)],
        ),
        7 => {
            let value = number(source, depth);
            call(
                source.word(&["$round", "$trunc"]),
                vec![value, Value::Int32(source.between(-1, 2))],
            )
        }
        8 => call(
            source.word(&["$strLenCP", "$strLenBytes"]),
            vec![string(source, depth)],
        ),
        9 => call("$size", vec![array(source, depth)]),
        10 => call(
            source.word(&["$sum", "$avg", "$max", "$min"]),
            vec![array(source, depth)],
        ),
        11 => {
            let (first, second) = (leaf(source), leaf(source));
            call("$cmp", vec![first, second])
        }
        12 => {
            let to = source.word(&["int", "long", "double", "decimal"]);
            let input = leaf(source);
            named(
                "$convert",
                vec![
                    ("input".to_owned(), input),
                    field("to", to),
                    field("onError", "failed"),
                    field("onNull", Value::Null),
                ],
            )
        }
        _ => {
            let part = source.word(&[
                "$year",
                "$month",
                "$dayOfMonth",
                "$dayOfWeek",
                "$hour",
                "$isoWeek",
                "$week",
            ]);
            call(part, vec![date(source, depth)])
        }
    }
}

pub fn string(source: &mut Source, depth: usize) -> Value {
    if depth == 0 || source.chance(30) {
        return match source.below(8) {
            0..5 => path(STRING),
            5 => path(&source.path()),
            _ => source.string(),
        };
    }
    let depth = depth - 1;
    match source.below(9) {
        0 | 1 => {
            let first = string(source, depth);
            call("$concat", vec![first, string(source, depth)])
        }
        2 => call(
            source.word(&["$toUpper", "$toLower"]),
            vec![string(source, depth)],
        ),
        3 => {
            let (from, count) = (source.between(0, 2), source.between(0, 3));
            call(
                "$substrCP",
                vec![
                    string(source, depth),
                    Value::Int32(from),
                    Value::Int32(count),
                ],
            )
        }
        4 => named(
            source.word(&["$trim", "$ltrim", "$rtrim"]),
            vec![("input".to_owned(), string(source, depth))],
        ),
        5 => named(
            source.word(&["$replaceOne", "$replaceAll"]),
            vec![
                ("input".to_owned(), string(source, depth)),
                field("find", source.word(&["a", "b", "ab"])),
                field("replacement", "x"),
            ],
        ),
        6 => call("$toString", vec![number(source, depth)]),
        7 => named(
            "$dateToString",
            vec![
                ("date".to_owned(), date(source, depth)),
                field("format", "%Y-%m-%d %H:%M:%S.%L"),
            ],
        ),
        _ => call("$type", vec![leaf(source)]),
    }
}

pub fn array(source: &mut Source, depth: usize) -> Value {
    if depth == 0 || source.chance(30) {
        return match source.below(8) {
            0..5 => path(ARRAY),
            5 => path(&source.path()),
            _ => literal(source.array()),
        };
    }
    let depth = depth - 1;
    match source.below(9) {
        0 => {
            let first = array(source, depth);
            call("$concatArrays", vec![first, array(source, depth)])
        }
        1 => call("$reverseArray", vec![array(source, depth)]),
        2 => {
            let count = *source.pick(&[-2, -1, 1, 2]);
            call("$slice", vec![array(source, depth), Value::Int32(count)])
        }
        3 => {
            let body = match source.below(3) {
                0 => Value::from("$$this"),
                1 => call("$type", vec![Value::from("$$this")]),
                _ => call(
                    "$ifNull",
                    vec![Value::from("$$this.a"), number(source, depth)],
                ),
            };
            named(
                "$map",
                vec![
                    ("input".to_owned(), array(source, depth)),
                    ("in".to_owned(), body),
                ],
            )
        }
        4 => {
            let bound = literal(source.value(0));
            let name = source.word(&["$gt", "$lte", "$ne"]);
            let condition = call(name, vec![Value::from("$$this"), bound]);
            named(
                "$filter",
                vec![
                    ("input".to_owned(), array(source, depth)),
                    ("cond".to_owned(), condition),
                ],
            )
        }
        5 => call(
            "$split",
            vec![
                string(source, depth),
                Value::from(source.word(&["a", ",", " "])),
            ],
        ),
        6 => call(
            "$range",
            vec![Value::Int32(0), Value::Int32(source.between(0, 4))],
        ),
        7 => {
            let first = array(source, depth);
            call("$indexOfArray", vec![first, leaf(source)])
        }
        _ => {
            let direction = if source.chance(50) { 1 } else { -1 };
            named(
                "$sortArray",
                vec![
                    ("input".to_owned(), array(source, depth)),
                    field("sortBy", direction),
                ],
            )
        }
    }
}

pub fn truth(source: &mut Source, depth: usize) -> Value {
    if depth == 0 || source.chance(40) {
        let name = source.word(&["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]);
        let first = leaf(source);
        return call(name, vec![first, leaf(source)]);
    }
    let depth = depth - 1;
    match source.below(7) {
        0 | 1 => {
            let first = truth(source, depth);
            call(
                source.word(&["$and", "$or"]),
                vec![first, truth(source, depth)],
            )
        }
        2 => call("$not", vec![truth(source, depth)]),
        3 => {
            let item = leaf(source);
            call("$in", vec![item, array(source, depth)])
        }
        4 => {
            let first = number(source, depth);
            call(
                source.word(&["$gt", "$lt", "$eq"]),
                vec![first, number(source, depth)],
            )
        }
        5 => call("$isArray", vec![leaf(source)]),
        _ => named(
            "$regexMatch",
            vec![
                ("input".to_owned(), string(source, depth)),
                field("regex", *source.pick(&["a", "^b", "[0-9]"])),
            ],
        ),
    }
}

pub fn date(source: &mut Source, depth: usize) -> Value {
    if depth == 0 || source.chance(60) {
        return if source.chance(80) {
            path(DATE)
        } else {
            source.date()
        };
    }
    let depth = depth - 1;
    let unit = source.word(&[
        "year", "quarter", "month", "week", "day", "hour", "minute", "second",
    ]);
    match source.below(3) {
        0 => named(
            "$dateAdd",
            vec![
                ("startDate".to_owned(), date(source, depth)),
                field("unit", unit),
                field("amount", source.between(-13, 40)),
            ],
        ),
        1 => named(
            "$dateTrunc",
            vec![
                ("date".to_owned(), date(source, depth)),
                field("unit", unit),
            ],
        ),
        _ => call(
            "$add",
            vec![
                date(source, depth),
                Value::Int32(source.between(-5000, 5000)),
            ],
        ),
    }
}
