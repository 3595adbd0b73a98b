//! Expressions of stages as MongoDB shows them: what stands for itself is a `$const`.
//!
//! ```text
//!   {$add: ["$a", 1]}          {$add: ["$a", {$const: 1}]}
//!   {$literal: "$a"}           {$const: "$a"}
//!   {$cond: {if, then, else}}  {$cond: [if, then, else]}
//! ```
//!
//! Left out: expressions of constants, which MongoDB has computed by then.

use model::bson::{Array, Doc, DocBuf, DocWriter, Value, ValueRef};

/// An expression.
pub(super) fn shown(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::String(text) if text.starts_with('$') => value.to_owned(),
        ValueRef::Array(items) => list(items),
        ValueRef::Document(doc) => match doc.first() {
            Some(only) if only.key().starts_with('$') => operator(only.key(), only.value()),
            _ => Value::Document(fields(doc)),
        },
        _ => constant(value),
    }
}

fn constant(value: ValueRef<'_>) -> Value {
    Value::Document(DocWriter::new().with("$const", value).finish())
}

/// An object whose fields are expressions.
pub(super) fn fields(doc: Doc<'_>) -> DocBuf {
    let mut out = DocWriter::new();
    for element in doc {
        out.append(element.key(), &shown(element.value()));
    }
    out.finish()
}

fn list(items: Array<'_>) -> Value {
    let mut holder = DocWriter::new();
    holder.begin_array("items");
    for item in items.iter() {
        holder.push(&shown(item));
    }
    holder.end();
    let holder = holder.finish();
    holder.get("items").unwrap_or(ValueRef::Null).to_owned()
}

fn operator(name: &str, argument: ValueRef<'_>) -> Value {
    if matches!(name, "$literal" | "$const") {
        return constant(argument);
    }
    let argument = match (name, argument) {
        ("$cond", ValueRef::Document(doc)) => {
            let mut ordered = DocWriter::new();
            ordered.begin_array("items");
            for part in ["if", "then", "else"] {
                ordered.push(&shown(doc.get(part).unwrap_or(ValueRef::Null)));
            }
            ordered.end();
            let ordered = ordered.finish();
            ordered.get("items").unwrap_or(ValueRef::Null).to_owned()
        }
        // Names of variables, and arguments by name.
        (_, ValueRef::Document(doc)) if takes_named(name) => {
            let mut out = DocWriter::new();
            for element in doc {
                match element.key() {
                    "as" => out.append("as", element.value()),
                    "vars" if name == "$let" => match element.value() {
                        ValueRef::Document(vars) => out.append("vars", &fields(vars)),
                        other => out.append("vars", other),
                    },
                    key => out.append(key, &shown(element.value())),
                };
            }
            Value::Document(out.finish())
        }
        // One argument is a list of one to MongoDB.
        (_, ValueRef::Array(items)) => list(items),
        (_, other) => {
            let only = shown(other);
            let mut holder = DocWriter::new();
            holder.begin_array("items");
            holder.push(&only);
            holder.end();
            let holder = holder.finish();
            holder.get("items").unwrap_or(ValueRef::Null).to_owned()
        }
    };
    Value::Document(DocWriter::new().with(name, &argument).finish())
}

/// Operators whose arguments have names.
fn takes_named(name: &str) -> bool {
    name.starts_with("$date")
        || name.starts_with("$regex")
        || matches!(
            name,
            "$let"
                | "$map"
                | "$filter"
                | "$reduce"
                | "$switch"
                | "$convert"
                | "$zip"
                | "$trim"
                | "$ltrim"
                | "$rtrim"
                | "$replaceOne"
                | "$replaceAll"
                | "$sortArray"
                | "$getField"
                | "$setField"
                | "$unsetField"
                | "$firstN"
                | "$lastN"
                | "$minN"
                | "$maxN"
        )
}

/// The fields of `$group`: the key, and accumulators over expressions.
pub(super) fn group(spec: Doc<'_>) -> DocBuf {
    let mut out = DocWriter::new();
    for element in spec {
        match (element.key(), element.value()) {
            ("_id", id) => out.append("_id", &shown(id)),
            (name, ValueRef::Document(accumulator)) => {
                let mut inner = DocWriter::new();
                match accumulator.first() {
                    Some(count) if count.key() == "$count" => {
                        inner.append("$sum", &constant(ValueRef::Int32(1)));
                    }
                    Some(only) => match only.value() {
                        // Those with several arguments name them.
                        ValueRef::Document(named) if only.key().ends_with('N') => {
                            inner.append(only.key(), &fields(named));
                        }
                        argument => {
                            inner.append(only.key(), &shown(argument));
                        }
                    },
                    None => {}
                }
                out.append(name, &inner.finish())
            }
            (name, other) => out.append(name, other),
        };
    }
    out.finish()
}

/// The fields of `$project`: kept, left out, or computed.
pub(super) fn project(spec: Doc<'_>) -> DocBuf {
    let mut out = DocWriter::new();
    let excludes = spec.iter().all(|element| {
        let value = element.value();
        (value.is_number() || matches!(value, ValueRef::Boolean(_)))
            && (element.key() == "_id" || !model::number::is_truthy(value))
    });
    if !excludes && spec.get("_id").is_none() {
        out.append("_id", true);
    }
    let mut rest = Vec::new();
    for element in spec {
        let value = match element.value() {
            value if value.is_number() || matches!(value, ValueRef::Boolean(_)) => {
                Value::Boolean(model::number::is_truthy(value))
            }
            value => shown(value),
        };
        // What is kept comes before what is computed.
        match &value {
            Value::Boolean(_) => {
                out.append(element.key(), &value);
            }
            _ => rest.push((element.key().to_owned(), value)),
        }
    }
    for (name, value) in &rest {
        out.append(name, value);
    }
    out.finish()
}
