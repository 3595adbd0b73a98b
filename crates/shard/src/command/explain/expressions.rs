//! Expressions of stages as MongoDB shows them: what stands for itself is a `$const`.
//!
//! ```text
//!   {$add: ["$a", 1]}          {$add: ["$a", {$const: 1}]}
//!   {$literal: "$a"}           {$const: "$a"}
//!   {$cond: {if, then, else}}  {$cond: [if, then, else]}
//! ```
//!
//! What depends on no document has been computed, and constants of sums and the like are one
//! and come last:
//!
//! ```text
//!   {$add: [1, "$a", 2]}       {$add: ["$a", {$const: 3}]}
//!   {$toUpper: "a"}            {$const: "A"}
//! ```

use model::bson::{Array, Doc, DocBuf, DocWriter, Value, ValueRef};
use query::context::QueryContext;
use query::expression::{Expression, is_commutative};

/// An expression.
pub(super) fn shown(value: ValueRef<'_>, context: &QueryContext) -> Value {
    if let Some(computed) = computed(value, context) {
        return constant(computed.as_ref());
    }
    match value {
        ValueRef::String(text) if text.starts_with('$') => value.to_owned(),
        ValueRef::Array(items) => list(items.iter(), context),
        ValueRef::Document(doc) => match doc.first() {
            Some(only) if only.key().starts_with('$') => {
                operator(only.key(), only.value(), context)
            }
            _ => Value::Document(fields(doc, context)),
        },
        _ => constant(value),
    }
}

/// The value, if it depends on no document.
fn computed(value: ValueRef<'_>, context: &QueryContext) -> Option<Value> {
    let expression = Expression::parse(value, context).ok()?;
    expression.as_constant().map(|value| value.to_owned())
}

fn constant(value: ValueRef<'_>) -> Value {
    Value::Document(DocWriter::new().with("$const", value).finish())
}

/// An object whose fields are expressions.
pub(super) fn fields(doc: Doc<'_>, context: &QueryContext) -> DocBuf {
    let mut out = DocWriter::new();
    for element in doc {
        out.append(element.key(), &shown(element.value(), context));
    }
    out.finish()
}

fn list<'a>(items: impl Iterator<Item = ValueRef<'a>>, context: &QueryContext) -> Value {
    Value::Array(items.map(|item| shown(item, context)).collect())
}

fn operator(name: &str, argument: ValueRef<'_>, context: &QueryContext) -> Value {
    if matches!(name, "$literal" | "$const") {
        return constant(argument);
    }
    let argument = match (name, argument) {
        ("$cond", ValueRef::Document(doc)) => {
            let part = |name| doc.get(name).unwrap_or(ValueRef::Null);
            list(["if", "then", "else"].map(part).into_iter(), context)
        }
        // Names of variables, and arguments by name.
        (_, ValueRef::Document(doc)) if takes_named(name) => {
            let mut out = DocWriter::new();
            for element in doc {
                match element.key() {
                    "as" => out.append("as", element.value()),
                    "vars" if name == "$let" => match element.value() {
                        ValueRef::Document(vars) => out.append("vars", &fields(vars, context)),
                        other => out.append("vars", other),
                    },
                    key => out.append(key, &shown(element.value(), context)),
                };
            }
            Value::Document(out.finish())
        }
        (_, ValueRef::Array(items)) if is_commutative(name) => regrouped(name, items, context),
        // One argument is a list of one to MongoDB.
        (_, ValueRef::Array(items)) => list(items.iter(), context),
        (_, other) => list(std::iter::once(other), context),
    };
    Value::Document(DocWriter::new().with(name, &argument).finish())
}

/// The arguments of an operator that may take them in any order: those of the same operator within
/// it are its own, and constants are one, and last.
fn regrouped(name: &str, items: Array<'_>, context: &QueryContext) -> Value {
    let (mut others, mut constants) = (Vec::new(), Vec::new());
    let mut pending: Vec<ValueRef<'_>> = items.iter().collect();
    pending.reverse();
    while let Some(item) = pending.pop() {
        if let Some(value) = computed(item, context) {
            constants.push(constant(value.as_ref()));
            continue;
        }
        let inner = match item {
            ValueRef::Document(doc) => doc.get_array(name).filter(|inner| inner.count() > 1),
            _ => None,
        };
        match inner {
            Some(inner) => {
                let first = pending.len();
                pending.extend(inner.iter());
                pending[first..].reverse();
            }
            None => others.push(shown(item, context)),
        }
    }
    if constants.len() > 1 {
        let call = DocWriter::new().with(name, &Value::Array(constants.iter().cloned().collect()));
        if let Some(value) = computed(ValueRef::Document(call.finish().as_doc()), context) {
            constants = vec![constant(value.as_ref())];
        }
    }
    Value::Array(others.into_iter().chain(constants).collect())
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
pub(super) fn group(spec: Doc<'_>, context: &QueryContext) -> DocBuf {
    let mut out = DocWriter::new();
    for element in spec {
        match (element.key(), element.value()) {
            ("_id", id) => out.append("_id", &shown(id, context)),
            (name, ValueRef::Document(accumulator)) => {
                let mut inner = DocWriter::new();
                match accumulator.first() {
                    Some(count) if count.key() == "$count" => {
                        inner.append("$sum", &constant(ValueRef::Int32(1)));
                    }
                    Some(only) => match only.value() {
                        // Those with several arguments name them.
                        ValueRef::Document(named) if only.key().ends_with('N') => {
                            inner.append(only.key(), &fields(named, context));
                        }
                        argument => {
                            inner.append(only.key(), &shown(argument, context));
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
pub(super) fn project(spec: Doc<'_>, context: &QueryContext) -> DocBuf {
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
            value => shown(value, context),
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
