//! What two normalised replies disagree on, path by path.

use crate::notation::print;
use crate::value::{Fields, Value};

/// More lines than this say nothing new about one case.
const LINES_MAX: usize = 12;

/// Longer values are cut: the path says where to look.
const VALUE_CHARS_MAX: usize = 300;

/// One line for each place where the replies differ; empty if they agree.
pub fn differences(oracle: &Fields, target: &Fields) -> Vec<String> {
    let mut lines = Vec::new();
    compare_fields("", oracle, target, &mut lines);
    if lines.len() > LINES_MAX {
        let more = lines.len() - LINES_MAX;
        lines.truncate(LINES_MAX);
        lines.push(format!("and {more} more"));
    }
    lines
}

fn compare(path: &str, oracle: &Value, target: &Value, lines: &mut Vec<String>) {
    match (oracle, target) {
        (Value::Document(oracle), Value::Document(target)) => {
            compare_fields(path, oracle, target, lines)
        }
        (Value::Array(oracle), Value::Array(target)) if oracle.len() != target.len() => {
            let (oracle, target) = (without(oracle, target), without(target, oracle));
            lines.extend(
                oracle
                    .iter()
                    .map(|item| format!("{path}[]: {} | (nothing)", cut(print(item)))),
            );
            lines.extend(
                target
                    .iter()
                    .map(|item| format!("{path}[]: (nothing) | {}", cut(print(item)))),
            );
            if oracle.is_empty() && target.is_empty() {
                lines.push(format!(
                    "{path}: the same items, a different number of times"
                ));
            }
        }
        (Value::Array(oracle), Value::Array(target)) => {
            for index in 0..oracle.len().max(target.len()) {
                let path = format!("{path}[{index}]");
                match (oracle.get(index), target.get(index)) {
                    (Some(oracle), Some(target)) => compare(&path, oracle, target, lines),
                    (oracle, target) => one_sided(&path, oracle, target, lines),
                }
            }
        }
        (oracle, target) if oracle == target => {}
        (oracle, target) => lines.push(format!(
            "{path}: {} | {}",
            cut(print(oracle)),
            cut(print(target))
        )),
    }
}

/// The items of one array that the other does not have at all.
fn without<'a>(items: &'a [Value], others: &[Value]) -> Vec<&'a Value> {
    items.iter().filter(|item| !others.contains(item)).collect()
}

fn compare_fields(path: &str, oracle: &Fields, target: &Fields, lines: &mut Vec<String>) {
    let before = lines.len();
    let join = |name: &str| {
        if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        }
    };
    let repeated = |fields: &Fields| {
        let mut names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names.windows(2).any(|pair| pair[0] == pair[1])
    };
    if repeated(oracle) || repeated(target) {
        if oracle != target {
            let (oracle, target) = (
                Value::Document(oracle.clone()),
                Value::Document(target.clone()),
            );
            lines.push(format!(
                "{path}: {} | {}",
                cut(print(&oracle)),
                cut(print(&target))
            ));
        }
        return;
    }
    for (name, value) in oracle {
        match crate::value::get(target, name) {
            Some(found) => compare(&join(name), value, found, lines),
            None => one_sided(&join(name), Some(value), None, lines),
        }
    }
    for (name, value) in target {
        if crate::value::get(oracle, name).is_none() {
            one_sided(&join(name), None, Some(value), lines);
        }
    }
    let order = |fields: &Fields| {
        fields
            .iter()
            .map(|(name, _)| name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    if lines.len() == before && order(oracle) != order(target) {
        lines.push(format!(
            "{path}: field order ({}) | ({})",
            cut(order(oracle)),
            cut(order(target))
        ));
    }
}

fn one_sided(path: &str, oracle: Option<&Value>, target: Option<&Value>, lines: &mut Vec<String>) {
    let show =
        |value: Option<&Value>| value.map_or("(nothing)".to_owned(), |value| cut(print(value)));
    lines.push(format!("{path}: {} | {}", show(oracle), show(target)));
}

fn cut(text: String) -> String {
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notation::parse;

    fn check(oracle: &str, target: &str, expected: &[&str]) {
        let fields = |text: &str| match parse(text) {
            Ok(Value::Document(fields)) => fields,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(
            differences(&fields(oracle), &fields(target)),
            expected,
            "{oracle} {target}"
        );
    }

    #[test]
    fn types_order_and_duplicates_count() {
        check("{a: 1, b: [1, {c: NaN}]}", "{a: 1, b: [1, {c: NaN}]}", &[]);
        check("{a: 1}", "{a: 1.0}", &["a: 1 | 1.0"]);
        check("{a: 0.0}", "{a: -0.0}", &["a: 0.0 | -0.0"]);
        check("{a: 1.0m}", "{a: 1.00m}", &["a: 1.0m | 1.00m"]);
        check("{a: [1, 2]}", "{a: [1]}", &["a[]: 2 | (nothing)"]);
        check("{a: {b: 1}}", "{a: {b: 1, c: 2}}", &["a.c: (nothing) | 2"]);
        check(
            "{a: {b: 1, c: 2}}",
            "{a: {c: 2, b: 1}}",
            &["a: field order (b, c) | (c, b)"],
        );
        check(
            "{a: {b: 1}}",
            "{a: {b: 1, b: 1}}",
            &["a: {b: 1} | {b: 1, b: 1}"],
        );
    }
}
