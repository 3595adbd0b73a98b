//! Replies without what may differ between two correct servers.
//!
//! Taken out: cluster times and sessions, cursor ids (zero or not), collection UUIDs, error texts,
//! generated ObjectIds, the current time, the name of the run's database. Everything else stays,
//! with its type. Sets are sorted by their printed form, which makes equal sets equal lists.

use crate::notation::print;
use crate::row::Comparison;
use crate::value::{Fields, Value, field, get};

/// Values this close to now were made from the server's clock.
const NOW_SECONDS: u64 = 24 * 60 * 60;

/// What stands for the current time, whatever its type.
const NOW: &str = "<now>";

pub struct Normalizer<'a> {
    pub database: &'a str,
    pub now_seconds: u64,
    pub comparison: &'a Comparison,
}

impl Normalizer<'_> {
    pub fn reply(&self, reply: &Fields) -> Fields {
        if self.comparison.explain && get(reply, "ok").is_some_and(Value::is_truthy) {
            return explained(reply)
                .into_iter()
                .map(|(name, value)| (name, self.nested(&value)))
                .collect();
        }
        let failed = get(reply, "ok").is_some_and(|ok| !ok.is_truthy());
        if failed && self.comparison.any_error {
            return vec![field("ok", 0)];
        }
        let mut fields: Fields = reply
            .iter()
            .filter(|(name, _)| !is_volatile(name) && (!failed || is_error_fact(name)))
            .map(|(name, value)| (name.clone(), self.value(name, value)))
            .collect();
        for path in &self.comparison.ignore {
            remove(&mut fields, path);
        }
        if !self.comparison.only.is_empty() && !failed {
            fields = self
                .comparison
                .only
                .iter()
                .filter_map(|path| Some((path.clone(), lookup(&fields, path)?.clone())))
                .collect();
        }
        if self.comparison.shape && !failed {
            shape_of_fields(&fields)
        } else {
            fields
        }
    }

    fn value(&self, name: &str, value: &Value) -> Value {
        match value {
            Value::Document(fields) if name == "cursor" => Value::Document(
                fields
                    .iter()
                    .map(|(name, value)| (name.clone(), self.cursor_part(name, value)))
                    .collect(),
            ),
            Value::Array(items) if name == "writeErrors" => Value::Array(
                items
                    .iter()
                    .map(|item| match self.nested(item) {
                        Value::Document(fields) => Value::Document(
                            fields
                                .into_iter()
                                .filter(|(name, _)| {
                                    name != "errmsg"
                                        && !(self.comparison.any_error && name != "index")
                                })
                                .collect(),
                        ),
                        other => other,
                    })
                    .collect(),
            ),
            Value::Array(items) if name == "values" => self.results(items),
            Value::Binary(4, _) if name.to_lowercase().ends_with("uuid") => Value::from("<uuid>"),
            other => self.nested(other),
        }
    }

    fn cursor_part(&self, name: &str, value: &Value) -> Value {
        match (name, value) {
            ("id", Value::Int64(id)) => Value::Int64(i64::from(*id != 0)),
            ("firstBatch" | "nextBatch", Value::Array(items)) => self.results(items),
            (_, other) => self.nested(other),
        }
    }

    fn results(&self, items: &[Value]) -> Value {
        let items: Vec<Value> = items.iter().map(|item| self.nested(item)).collect();
        Value::Array(if self.comparison.ordered {
            items
        } else {
            sorted(items)
        })
    }

    fn nested(&self, value: &Value) -> Value {
        match value {
            Value::Document(fields) => Value::Document(
                fields
                    .iter()
                    .map(|(name, value)| match value {
                        Value::Binary(4, _) if name == "uuid" => {
                            (name.clone(), Value::from("<uuid>"))
                        }
                        _ => (name.clone(), self.nested(value)),
                    })
                    .collect(),
            ),
            Value::Array(items) => {
                let items: Vec<Value> = items.iter().map(|item| self.nested(item)).collect();
                Value::Array(if self.comparison.sets {
                    sorted(items)
                } else {
                    items
                })
            }
            Value::String(text) if text.contains(self.database) => {
                Value::String(text.replace(self.database, "@db"))
            }
            Value::ObjectId(bytes) => {
                let seconds = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                if self.is_now(u64::from(seconds)) {
                    Value::from("<generated id>")
                } else {
                    value.clone()
                }
            }
            Value::Date(millis) => match u64::try_from(*millis) {
                Ok(millis) if self.is_now(millis / 1000) => Value::from(NOW),
                Ok(_) | Err(_) => value.clone(),
            },
            Value::Timestamp(seconds, _) if self.is_now(u64::from(*seconds)) => Value::from(NOW),
            other => other.clone(),
        }
    }

    fn is_now(&self, seconds: u64) -> bool {
        seconds.abs_diff(self.now_seconds) < NOW_SECONDS
    }
}

fn is_volatile(name: &str) -> bool {
    matches!(
        name,
        "$clusterTime" | "operationTime" | "lsid" | "electionId" | "opTime" | "lastCommittedOpTime"
    )
}

/// Of an error only these count; its text may say the same in other words.
fn is_error_fact(name: &str) -> bool {
    matches!(
        name,
        "ok" | "code" | "codeName" | "keyPattern" | "keyValue" | "errorLabels"
    )
}

fn sorted(mut items: Vec<Value>) -> Vec<Value> {
    items.sort_by_cached_key(print);
    items
}

fn lookup<'a>(fields: &'a Fields, path: &str) -> Option<&'a Value> {
    match path.split_once('.') {
        None => get(fields, path),
        Some((first, rest)) => match get(fields, first)? {
            Value::Document(nested) => lookup(nested, rest),
            Value::Array(items) => {
                let (index, rest) = rest.split_once('.').unwrap_or((rest, ""));
                let item = items.get(index.parse::<usize>().ok()?)?;
                if rest.is_empty() {
                    Some(item)
                } else {
                    lookup(item.as_document()?, rest)
                }
            }
            _ => None,
        },
    }
}

/// Removes a path; on the way, arrays are entered item by item.
fn remove(fields: &mut Fields, path: &str) {
    let Some((first, rest)) = path.split_once('.') else {
        fields.retain(|(name, _)| name != path);
        return;
    };
    for (_, value) in fields.iter_mut().filter(|(name, _)| name == first) {
        match value {
            Value::Document(nested) => remove(nested, rest),
            Value::Array(items) => {
                for item in items {
                    if let Value::Document(nested) = item {
                        remove(nested, rest);
                    }
                }
            }
            _ => {}
        }
    }
}

fn shape_of_fields(fields: &Fields) -> Fields {
    fields
        .iter()
        .map(|(name, value)| (name.clone(), shape(value)))
        .collect()
}

fn shape(value: &Value) -> Value {
    match value {
        Value::Document(fields) => Value::Document(shape_of_fields(fields)),
        Value::Array(items) => Value::Array(items.iter().map(shape).collect()),
        other => Value::from(other.type_name()),
    }
}

/// Of an explanation: the namespace, the tree of stages, and how many documents came out; of a
/// pipeline its stages as they are shown.
fn explained(reply: &Fields) -> Fields {
    let mut fields = Vec::new();
    if let Some(plan) = lookup(reply, "queryPlanner.winningPlan") {
        fields.push(field("winningPlan", stage_tree(plan)));
    }
    for path in [
        "queryPlanner.namespace",
        "executionStats.nReturned",
        "executionStats.executionSuccess",
    ] {
        if let Some(value) = lookup(reply, path) {
            fields.push(field(path, value.clone()));
        }
    }
    if let Some(stages) = get(reply, "stages").and_then(Value::as_array) {
        let stages = stages.iter().filter_map(Value::as_document);
        fields.push(field(
            "stages",
            stages.map(pipeline_stage).collect::<Vec<_>>(),
        ));
    }
    fields
}

/// A stage of a pipeline: its name, what it is about unless it is the search, and what it gave.
fn pipeline_stage(stage: &Fields) -> Value {
    let mut shown = Vec::new();
    if let Some((name, spec)) = stage.first() {
        shown.push(field("name", Value::from(name.as_str())));
        if name != "$cursor" {
            shown.push(field("spec", spec.clone()));
        }
    }
    if let Some(returned) = get(stage, "nReturned") {
        shown.push(field("nReturned", returned.clone()));
    }
    Value::Document(shown)
}

/// Stage names with the index each uses and its bounds, nested as the plan nests them.
fn stage_tree(plan: &Value) -> Value {
    let plan = plan.get("queryPlan").unwrap_or(plan);
    let mut tree = Vec::new();
    for name in [
        "stage",
        "indexName",
        "direction",
        "isMultiKey",
        "multiKeyPaths",
        "indexBounds",
    ] {
        if let Some(value) = plan.get(name) {
            tree.push(field(name, value.clone()));
        }
    }
    if let Some(input) = plan.get("inputStage") {
        tree.push(field("inputStage", stage_tree(input)));
    }
    if let Some(inputs) = plan.get("inputStages").and_then(Value::as_array) {
        tree.push(field(
            "inputStages",
            inputs.iter().map(stage_tree).collect::<Vec<_>>(),
        ));
    }
    Value::Document(tree)
}
