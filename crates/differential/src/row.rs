//! Rows: the short forms of a case, and the commands they stand for.
//!
//! | row | command |
//! | --- | --- |
//! | `filter: {…}`, `projection: {…}`, `sort: {…}` and more options | `find` |
//! | `expr: …` | `aggregate`: the expression's value for every document, by `_id` |
//! | `pipeline: […]` | `aggregate` |
//! | `update: q -> u` with `multi`, `upsert`, `arrayFilters`, … | `update` |
//! | `insert: {…} {…}`, `delete: q` with `limit` | `insert`, `delete` |
//! | `modify: q -> u`, `modify: q` with `remove: true` | `findAndModify` |
//! | `distinct: "key"`, `count: {…}` | `distinct`, `count` |
//! | `explain: {find: …}` | `explain`, of which only plan, namespace and counts are compared |
//! | `run: {…} {…}` | commands, one after the other; `"@cursor"` is the last cursor's id |
//! | `admin: {…} {…}` | the same on the database `admin` |
//!
//! Pairs that the row itself does not take become fields of the command. `"@db"` inside a string is
//! the database's name, `"@me"` what the server calls itself as a member of its set. After a row that writes, the collection's content is compared too.
//!
//! Pairs and flags for the comparison:
//!
//! - `ordered`, `unordered`: whether results come in a defined order. By default they do if the
//!   row sorts, and `expr` rows do.
//! - `sets`: arrays inside results have no defined order (`$addToSet`, set operators).
//! - `anyerror`: if both servers fail, the codes need not agree.
//! - `shape`: only field names and types are compared.
//! - `ignore: ["a.b"]`, `only: ["a.b"]`: paths of the reply to leave out, or to compare alone.
//! - `known: "why"`: the target is expected to differ; agreement is then reported.
//! - `routed: "why"`: a router over several shards may differ; one server may not.
//! - `members: "why"`: a set of three members may differ from the oracle's; one server may not.

use crate::notation::{Cursor, print};
use crate::table::COLLECTION;
use crate::value::{Fields, Value, field};

#[derive(Debug, Clone)]
pub struct Row {
    pub line: usize,
    pub text: String,
    pub steps: Vec<Step>,
    pub effect: Effect,
    pub comparison: Comparison,
    pub known: Option<String>,
    /// Why the answer of a router may differ.
    pub routed: Option<String>,
    /// Why the answer of a set of three members may differ.
    pub members: Option<String>,
}

/// One command of a row.
#[derive(Debug, Clone)]
pub struct Step {
    pub on_admin: bool,
    pub command: Fields,
}

/// What a row leaves behind, which decides how the next row gets its setup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The documents stay as they are.
    Reads,
    /// Documents of the collection `c` change.
    Writes,
    /// Anything may have changed.
    Anything,
}

#[derive(Debug, Clone, Default)]
pub struct Comparison {
    pub ordered: bool,
    pub sets: bool,
    pub shape: bool,
    pub any_error: bool,
    pub explain: bool,
    pub ignore: Vec<String>,
    pub only: Vec<String>,
}

/// A row's pairs before they are given meaning: a key with one or more values.
struct Pair {
    key: String,
    values: Vec<Value>,
}

/// Fields that belong to the one statement of an `update` or `delete` row.
const STATEMENT_FIELDS: [&str; 9] = [
    "q",
    "u",
    "multi",
    "upsert",
    "arrayFilters",
    "collation",
    "hint",
    "c",
    "limit",
];

/// Enough for one batch, so that cursors matter only where a row asks for them.
const BATCH_SIZE: i32 = 1000;

impl Row {
    pub fn parse(line: usize, text: &str) -> Result<Row, String> {
        let mut cursor = Cursor::new(text);
        let mut comparison = Comparison::default();
        let (mut ordered, mut known, mut routed, mut members) = (None, None, None, None);
        let mut pairs: Vec<Pair> = Vec::new();
        loop {
            cursor.accept(",");
            cursor.skip_blanks();
            if cursor.is_at_end() {
                break;
            }
            if let Some(key) = cursor.key() {
                let first = cursor.value().map_err(|error| error.to_string())?;
                match key.as_str() {
                    "known" => known = first.as_str().map(str::to_owned),
                    "routed" => routed = first.as_str().map(str::to_owned),
                    "members" => members = first.as_str().map(str::to_owned),
                    "ignore" => comparison.ignore = strings(&first),
                    "only" => comparison.only = strings(&first),
                    _ => pairs.push(Pair {
                        key,
                        values: vec![first],
                    }),
                }
            } else if let Some(pair) = pairs.last_mut().filter(|_| cursor.accept("->")) {
                pair.values
                    .push(cursor.value().map_err(|error| error.to_string())?);
            } else {
                let before = cursor.flag();
                match before.as_deref() {
                    Some("ordered") => ordered = Some(true),
                    Some("unordered") => ordered = Some(false),
                    Some("sets") => comparison.sets = true,
                    Some("anyerror") => comparison.any_error = true,
                    Some("shape") => comparison.shape = true,
                    Some(other) => return Err(format!("unknown flag {other}")),
                    None => {
                        let value = cursor.value().map_err(|error| error.to_string())?;
                        pairs
                            .last_mut()
                            .ok_or("a value stands without a key")?
                            .values
                            .push(value);
                    }
                }
            }
        }
        let mut pairs = pairs.into_iter();
        let first = pairs.next().ok_or("the row is empty")?;
        let rest: Fields = pairs
            .map(|mut pair| match pair.values.len() {
                1 => Ok((pair.key, pair.values.remove(0))),
                _ => Err(format!("{} takes one value", pair.key)),
            })
            .collect::<Result<_, _>>()?;
        let compiled = compile(first, rest)?;
        comparison.explain = compiled.explain;
        comparison.ordered = ordered.unwrap_or(compiled.ordered);
        Ok(Row {
            line,
            text: text.to_owned(),
            steps: compiled.steps,
            effect: compiled.effect,
            comparison,
            known,
            routed,
            members,
        })
    }
}

fn strings(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(items) => items
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        _ => Vec::new(),
    }
}

struct Compiled {
    steps: Vec<Step>,
    effect: Effect,
    ordered: bool,
    explain: bool,
}

impl Compiled {
    fn new(effect: Effect, commands: Vec<Fields>) -> Compiled {
        let steps = commands
            .into_iter()
            .map(|command| Step {
                on_admin: false,
                command,
            })
            .collect();
        Compiled {
            steps,
            effect,
            ordered: false,
            explain: false,
        }
    }
}

fn compile(first: Pair, rest: Fields) -> Result<Compiled, String> {
    let Pair { key, mut values } = first;
    let one = |values: Vec<Value>| -> Result<Value, String> {
        let [value] =
            <[Value; 1]>::try_from(values).map_err(|_| format!("{key} takes one value"))?;
        Ok(value)
    };
    Ok(match key.as_str() {
        "filter" | "projection" | "sort" => {
            let mut command = vec![field("find", COLLECTION), (key.clone(), one(values)?)];
            command.extend(rest);
            add_missing(&mut command, "batchSize", BATCH_SIZE);
            let ordered = command.iter().any(|(name, _)| name == "sort");
            Compiled {
                ordered,
                ..Compiled::new(Effect::Reads, vec![command])
            }
        }
        "expr" => {
            let shown = vec![field("_id", "$_id"), field("v", one(values)?)];
            let stages = vec![
                Value::Document(vec![field("$sort", vec![field("_id", 1)])]),
                Value::Document(vec![field("$replaceWith", shown)]),
            ];
            let command = aggregate(stages, rest);
            Compiled {
                ordered: true,
                ..Compiled::new(Effect::Reads, vec![command])
            }
        }
        "pipeline" => {
            let Value::Array(stages) = one(values)? else {
                return Err("pipeline takes an array".to_owned());
            };
            let has = |names: &[&str]| {
                stages
                    .iter()
                    .any(|stage| names.iter().any(|name| stage.get(name).is_some()))
            };
            let effect = if has(&["$out", "$merge"]) {
                Effect::Anything
            } else {
                Effect::Reads
            };
            let ordered = has(&["$sort", "$sortByCount"]);
            Compiled {
                ordered,
                ..Compiled::new(effect, vec![aggregate(stages, rest)])
            }
        }
        "update" => {
            let [query, change] =
                <[Value; 2]>::try_from(values).map_err(|_| "update takes q -> u")?;
            let (of_statement, of_command) = split_statement(rest);
            let mut statement = vec![("q".to_owned(), query), ("u".to_owned(), change)];
            statement.extend(of_statement);
            writing(
                vec![
                    field("update", COLLECTION),
                    field("updates", vec![Value::Document(statement)]),
                ],
                of_command,
            )
        }
        "delete" => {
            let (of_statement, of_command) = split_statement(rest);
            let mut statement = vec![("q".to_owned(), one(values)?)];
            statement.extend(of_statement);
            add_missing(&mut statement, "limit", 0);
            writing(
                vec![
                    field("delete", COLLECTION),
                    field("deletes", vec![Value::Document(statement)]),
                ],
                of_command,
            )
        }
        "insert" => writing(
            vec![field("insert", COLLECTION), field("documents", values)],
            rest,
        ),
        "modify" => {
            let change = if values.len() == 2 {
                values.pop()
            } else {
                None
            };
            let mut command = vec![
                field("findAndModify", COLLECTION),
                ("query".to_owned(), one(values)?),
            ];
            command.extend(change.map(|change| ("update".to_owned(), change)));
            writing(command, rest)
        }
        "distinct" => {
            let mut command = vec![
                field("distinct", COLLECTION),
                ("key".to_owned(), one(values)?),
            ];
            command.extend(rest);
            Compiled::new(Effect::Reads, vec![command])
        }
        "count" => {
            let mut command = vec![
                field("count", COLLECTION),
                ("query".to_owned(), one(values)?),
            ];
            command.extend(rest);
            Compiled::new(Effect::Reads, vec![command])
        }
        "explain" => {
            let mut command = vec![("explain".to_owned(), one(values)?)];
            command.extend(rest);
            add_missing(&mut command, "verbosity", "executionStats");
            Compiled {
                explain: true,
                ..Compiled::new(Effect::Reads, vec![command])
            }
        }
        "run" | "admin" => {
            let mut commands = Vec::new();
            for value in values {
                match value {
                    Value::Document(command) => commands.push(command),
                    other => return Err(format!("{key} takes commands, not {}", print(&other))),
                }
            }
            if let Some((extra, _)) = rest.first() {
                return Err(format!("{key} takes no {extra}"));
            }
            let mut compiled = Compiled::new(Effect::Anything, commands);
            for step in &mut compiled.steps {
                step.on_admin = key == "admin";
            }
            compiled
        }
        unknown => return Err(format!("{unknown} is not a kind of row")),
    })
}

fn aggregate(stages: Vec<Value>, rest: Fields) -> Fields {
    let mut command = vec![field("aggregate", COLLECTION), field("pipeline", stages)];
    command.extend(rest);
    add_missing(&mut command, "cursor", vec![field("batchSize", BATCH_SIZE)]);
    command
}

/// A write, then a look at what it left.
fn writing(mut command: Fields, rest: Fields) -> Compiled {
    command.extend(rest);
    let content = vec![
        field("find", COLLECTION),
        field("sort", vec![field("_id", 1)]),
        field("batchSize", BATCH_SIZE),
    ];
    Compiled {
        ordered: true,
        ..Compiled::new(Effect::Writes, vec![command, content])
    }
}

fn add_missing(command: &mut Fields, name: &str, value: impl Into<Value>) {
    if !command.iter().any(|(existing, _)| existing == name) {
        command.push((name.to_owned(), value.into()));
    }
}

fn split_statement(rest: Fields) -> (Fields, Fields) {
    rest.into_iter()
        .partition(|(name, _)| STATEMENT_FIELDS.contains(&name.as_str()))
}
