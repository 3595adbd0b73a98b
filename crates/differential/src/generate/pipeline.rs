//! Random projections and pipelines.

use super::source::Source;
use super::{Draft, expression, filter};
use crate::value::{Fields, Value, field};

/// A projection; with `find`'s own operators if it is one of `find`.
pub fn projection(source: &mut Source, of_find: bool) -> Value {
    let inclusive = source.chance(65);
    let mut fields: Fields = Vec::new();
    for _ in 0..source.between(1, 3) {
        let path = source.path();
        let top = path.split('.').next().unwrap_or_default().to_owned();
        // Paths that collide are an error in both: once in a while is enough.
        let collides = fields
            .iter()
            .any(|(name, _)| name.split('.').next() == Some(top.as_str()));
        if (collides && !source.chance(5)) || path == "_id" {
            continue;
        }
        let value = match source.below(10) {
            0 if of_find => Value::Document(vec![field("$slice", source.between(-2, 2))]),
            1 if of_find && !path.contains('.') => {
                Value::Document(vec![field("$elemMatch", filter::filter(source, 0))])
            }
            2 | 3 if inclusive => expression::any(source, 2),
            _ => Value::Int32(i32::from(inclusive)),
        };
        fields.push((path, value));
    }
    if source.chance(25) {
        fields.insert(0, field("_id", i32::from(!source.chance(70))));
    }
    if fields.is_empty() {
        fields.push(field("a", 1));
    }
    Value::Document(fields)
}

pub fn pipeline(source: &mut Source) -> Draft {
    let mut stages = Vec::new();
    let (mut has_ids, mut sorted) = (true, false);
    let mut has_sets = false;
    // Whether fields were computed. A `$match` behind them may be asked before
    // them, which shows where computing fails; and a field that is taken away and
    // put back keeps its place or not. Both are the real server's own affair.
    let mut computed = false;
    for _ in 0..source.between(1, 4) {
        let (name, argument) = match source.below(14) {
            0..3 if !computed => ("$match", filter::filter(source, 1)),
            3 | 4 => {
                // Without its _id a document cannot break ties any more.
                let projection = projection(source, false);
                has_ids &= projection.get("_id").is_none();
                computed = true;
                ("$project", projection)
            }
            5 | 6 if !computed => {
                computed = true;
                let path = source.word(&["x", "y", "o.x", "a"]);
                (
                    "$addFields",
                    Value::Document(vec![(path.to_owned(), expression::any(source, 2))]),
                )
            }
            7 => {
                let path = source.path();
                has_ids &= path != "_id";
                computed = true;
                ("$unset", Value::String(path))
            }
            8 | 9 => {
                let path = Value::String(format!("${}", source.word(&["r", "r", "a", "o.a", "b"])));
                let mut options = vec![field("path", path)];
                if source.chance(40) {
                    options.push(field("preserveNullAndEmptyArrays", true));
                }
                if source.chance(30) {
                    options.push(field("includeArrayIndex", "i"));
                }
                // Several documents of one _id follow: an order by _id has ties from here on.
                stages.push(Value::Document(vec![field("$unwind", options)]));
                break;
            }
            10 => {
                sorted = has_ids;
                ("$sort", source.sort())
            }
            11 if sorted => ("$limit", Value::Int32(source.between(1, 6))),
            12 if sorted => ("$skip", Value::Int32(source.between(0, 3))),
            _ => {
                let (group, sets) = group(source);
                has_sets |= sets;
                stages.push(Value::Document(vec![("$group".to_owned(), group)]));
                break;
            }
        };
        stages.push(Value::Document(vec![(name.to_owned(), argument)]));
    }
    let mut draft = Draft::new("pipeline", vec![Value::Array(stages)]);
    if has_sets {
        draft.flags.push("sets");
    }
    draft.flags.push("unordered");
    draft
}

/// A `$group`, and whether it makes sets.
/// Groups by fields and gathers fields. What is computed inside of a leading
/// `$group` runs in the real server's other engine, which rounds and fails in its
/// own ways; expressions are generated on their own.
fn group(source: &mut Source) -> (Value, bool) {
    let key = match source.below(5) {
        0 => Value::Null,
        1..4 => Value::String(format!("${}", source.path())),
        _ => Value::Document(vec![
            ("p".to_owned(), Value::String(format!("${}", source.path()))),
            ("q".to_owned(), Value::String(format!("${}", source.path()))),
        ]),
    };
    let mut fields = vec![("_id".to_owned(), key)];
    let mut sets = false;
    for name in ["x", "y"] {
        if source.chance(30) {
            continue;
        }
        let accumulator = source.word(&[
            "$sum",
            "$sum",
            "$avg",
            "$min",
            "$max",
            "$push",
            "$first",
            "$last",
            "$addToSet",
            "$count",
        ]);
        sets |= accumulator == "$addToSet";
        let argument = match accumulator {
            "$count" => Value::Document(Vec::new()),
            _ => Value::String(format!("${}", source.path())),
        };
        fields.push((
            name.to_owned(),
            Value::Document(vec![(accumulator.to_owned(), argument)]),
        ));
    }
    (Value::Document(fields), sets)
}
