//! Prints a filter as explain's `parsedQuery` does.
//!
//! Every condition names its operator; a negated leaf is `{path: {$not: ..}}`
//! and any other negation a `$nor` of one.
//!
//! An expression is printed as it was written; MongoDB prints what it has
//! simplified it to.

use super::{Filter, Predicate};
use model::bson::{ArrayWriter, Doc, DocBuf, DocWriter, Value, ValueRef};

pub(super) fn render(filter: &Filter) -> DocBuf {
    let mut out = DocWriter::new();
    write(filter, &mut out);
    out.finish()
}

fn write(filter: &Filter, out: &mut DocWriter) {
    match filter {
        Filter::And(children) if children.is_empty() => {}
        Filter::And(children) => write_list("$and", children, out),
        Filter::Or(children) => write_list("$or", children, out),
        Filter::Nor(children) => write_list("$nor", children, out),
        Filter::Not(child) => match &**child {
            Filter::Field { path, predicate } => {
                out.begin_document(path.as_str()).begin_document("$not");
                write_predicate(predicate, out);
                out.end().end();
            }
            child => write_list("$nor", std::slice::from_ref(child), out),
        },
        Filter::Field { path, predicate } if path.is_itself() => write_predicate(predicate, out),
        Filter::Field { path, predicate } => {
            out.begin_document(path.as_str());
            write_predicate(predicate, out);
            out.end();
        }
        Filter::Expression { source, .. } => {
            out.append("$expr", &with_constants(source.as_ref()));
        }
        Filter::SampleRate(rate) => {
            out.begin_document("$expr").begin_array("$lt");
            out.push_document().append("$rand", &DocBuf::new()).end();
            out.push_document().append("$const", *rate).end();
            out.end().end();
        }
        Filter::AlwaysTrue => {
            out.append("$alwaysTrue", 1);
        }
        Filter::AlwaysFalse => {
            out.append("$alwaysFalse", 1);
        }
    }
}

fn write_list(operator: &str, children: &[Filter], out: &mut DocWriter) {
    let mut list = ArrayWriter::new();
    for child in children {
        list.push(&render(child));
    }
    out.append(operator, &list.finish());
}

fn write_predicate(predicate: &Predicate, out: &mut DocWriter) {
    match predicate {
        Predicate::Compare(comparison, value) => {
            out.append(comparison.operator(), value);
        }
        Predicate::In(set) => {
            out.begin_array("$in");
            for value in set.values() {
                out.push(value);
            }
            for regex in set.regexes() {
                out.push(ValueRef::Regex {
                    pattern: regex.pattern(),
                    options: regex.options(),
                });
            }
            out.end();
        }
        Predicate::Regex(regex) => {
            out.append("$regex", regex.pattern());
            if !regex.options().is_empty() {
                out.append("$options", regex.options());
            }
        }
        Predicate::Exists => {
            out.append("$exists", true);
        }
        Predicate::Type(types) => {
            out.begin_array("$type");
            if types.all_numbers() {
                out.push("number");
            }
            for code in types.codes() {
                out.push(code);
            }
            out.end();
        }
        Predicate::Size(size) => {
            out.append("$size", &narrowest(*size));
        }
        Predicate::Modulo { divisor, remainder } => {
            out.begin_array("$mod");
            out.push(*divisor).push(*remainder);
            out.end();
        }
        Predicate::Bits(test, mask) => {
            out.begin_array(test.operator());
            for &position in mask.positions() {
                out.push(&narrowest(position.into()));
            }
            out.end();
        }
        Predicate::ElementMatches(filter) => {
            out.append("$elemMatch", &render(filter));
        }
        Predicate::ElementPasses(filters) => {
            out.begin_document("$elemMatch");
            for filter in filters {
                write_for_value(filter, out);
            }
            out.end();
        }
    }
}

/// Inside `$elemMatch` over values, where negation needs no path.
fn write_for_value(filter: &Filter, out: &mut DocWriter) {
    let Filter::Not(child) = filter else {
        return write(filter, out);
    };
    out.begin_document("$not");
    match &**child {
        Filter::And(children) => children
            .iter()
            .for_each(|child| write_for_value(child, out)),
        child => write_for_value(child, out),
    }
    out.end();
}

fn narrowest(number: i64) -> Value {
    match i32::try_from(number) {
        Ok(number) => Value::Int32(number),
        Err(_) => Value::Int64(number),
    }
}

/// An expression as MongoDB writes it: constants are marked as such, and a single
/// argument stands in a list.
fn with_constants(expression: ValueRef<'_>) -> Value {
    match expression {
        ValueRef::String(text) if text.starts_with('$') => expression.to_owned(),
        ValueRef::Array(items) => Value::Array(items.iter().map(with_constants).collect()),
        ValueRef::Document(doc) => Value::Document(document_with_constants(doc)),
        constant => Value::Document(DocWriter::new().with("$const", constant).finish()),
    }
}

fn document_with_constants(doc: Doc<'_>) -> DocBuf {
    let is_operator = |doc: Doc<'_>| {
        doc.first()
            .is_some_and(|first| first.key().starts_with('$'))
    };
    let mut out = DocWriter::new();
    for element in doc.iter() {
        let (name, value) = (element.key(), element.value());
        match value {
            _ if name == "$literal" || name == "$const" => {
                out.append("$const", value);
            }
            // Names and orders are no expressions.
            _ if name == "as" || name == "sortBy" => {
                out.append(name, value);
            }
            ValueRef::Array(_) => {
                out.append(name, &with_constants(value));
            }
            ValueRef::Document(arguments) if !name.starts_with('$') || !is_operator(arguments) => {
                out.append(name, &with_constants(value));
            }
            single if name.starts_with('$') => {
                out.begin_array(name).push(&with_constants(single)).end();
            }
            field => {
                out.append(name, &with_constants(field));
            }
        }
    }
    out.finish()
}
