//! Simplifies filters as MongoDB does before planning.
//!
//! `optimize` keeps the order of what remains: nested conjunctions and
//! disjunctions are flattened, what is always true or false disappears or takes
//! over, an `$in` of one is equality, and equalities on one path in a
//! disjunction become an `$in`; only expressions, which can fail, move behind
//! what cannot. `sort` then orders all children by kind, path
//! and content, with equals as written, so that equivalent filters print alike.

use super::{BitTest, Comparison, Filter, Predicate, ValueSet};
use crate::path::Path;
use crate::regex::Regex;
use model::bson::Value;
use std::cmp::Ordering;

pub(super) fn optimize(filter: Filter) -> Filter {
    match filter {
        Filter::And(children) => optimize_and(children),
        Filter::Or(children) => optimize_or(children),
        Filter::Nor(children) => optimize_nor(children),
        Filter::Not(child) => optimize_not(optimize(*child)),
        Filter::Field { path, predicate } => Filter::Field {
            path,
            predicate: optimize_predicate(predicate),
        },
        kept @ (Filter::Expression { .. }
        | Filter::SampleRate(_)
        | Filter::AlwaysTrue
        | Filter::AlwaysFalse) => kept,
    }
}

fn optimize_and(children: Vec<Filter>) -> Filter {
    let mut kept = Vec::with_capacity(children.len());
    for child in children {
        match optimize(child) {
            Filter::And(nested) => kept.extend(nested),
            Filter::AlwaysTrue => {}
            Filter::AlwaysFalse => return Filter::AlwaysFalse,
            child => kept.push(child),
        }
    }
    expressions_last(&mut kept);
    super::parse::unwrap_single(kept)
}

/// Expressions are the only tests that can fail. Which of them are evaluated at
/// all is visible then, so the order is the real server's: nested lists, tests of
/// fields, negations, expressions.
fn expressions_last(children: &mut [Filter]) {
    if children.iter().any(may_fail) {
        children.sort_by_key(|child| match child {
            Filter::And(_) => 0,
            Filter::Or(_) => 1,
            Filter::Field { .. } => 2,
            Filter::Not(_) | Filter::Nor(_) => 3,
            Filter::Expression { .. } => 4,
            Filter::SampleRate(_) | Filter::AlwaysTrue | Filter::AlwaysFalse => 5,
        });
    }
}

fn may_fail(filter: &Filter) -> bool {
    match filter {
        Filter::Expression { .. } => true,
        Filter::And(children) | Filter::Or(children) | Filter::Nor(children) => {
            children.iter().any(may_fail)
        }
        Filter::Not(child) => may_fail(child),
        Filter::Field { .. } | Filter::SampleRate(_) | Filter::AlwaysTrue | Filter::AlwaysFalse => {
            false
        }
    }
}

fn optimize_or(children: Vec<Filter>) -> Filter {
    let mut kept = Vec::with_capacity(children.len());
    for child in children {
        match optimize(child) {
            Filter::Or(nested) => kept.extend(nested),
            Filter::AlwaysFalse => {}
            child if child.is_everything() => return Filter::AlwaysTrue,
            child => kept.push(child),
        }
    }
    let mut kept = join_equalities(kept);
    expressions_last(&mut kept);
    match kept.pop() {
        None => Filter::AlwaysFalse,
        Some(only) if kept.is_empty() => only,
        Some(last) => {
            kept.push(last);
            Filter::Or(kept)
        }
    }
}

fn optimize_nor(children: Vec<Filter>) -> Filter {
    let mut kept: Vec<Filter> = children.into_iter().map(optimize).collect();
    expressions_last(&mut kept);
    match kept.pop() {
        Some(only) if kept.is_empty() => optimize_not(only),
        last => {
            kept.extend(last);
            Filter::Nor(kept)
        }
    }
}

fn optimize_not(child: Filter) -> Filter {
    if child.is_everything() {
        Filter::AlwaysFalse
    } else {
        Filter::Not(Box::new(child))
    }
}

fn optimize_predicate(predicate: Predicate) -> Predicate {
    match predicate {
        Predicate::In(set) => match (set.values(), set.regexes()) {
            ([value], []) => Predicate::Compare(Comparison::Equal, value.clone()),
            ([], [regex]) => Predicate::Regex(regex.clone()),
            _ => Predicate::In(set),
        },
        Predicate::ElementMatches(filter) => Predicate::ElementMatches(Box::new(optimize(*filter))),
        Predicate::ElementPasses(filters) => {
            Predicate::ElementPasses(filters.into_iter().map(optimize).collect())
        }
        kept @ (Predicate::Compare(..)
        | Predicate::Regex(_)
        | Predicate::Exists
        | Predicate::Type(_)
        | Predicate::Size(_)
        | Predicate::Modulo { .. }
        | Predicate::Bits(..)) => kept,
    }
}

/// Equalities and regular expressions that share a path.
struct Group {
    path: Path,
    values: Vec<Value>,
    regexes: Vec<Regex>,
    members: Vec<usize>,
}

/// Turns equalities on the same path into one `$in` at the end of the list.
fn join_equalities(children: Vec<Filter>) -> Vec<Filter> {
    let mut groups: Vec<Group> = Vec::new();
    for (at, child) in children.iter().enumerate() {
        let Filter::Field { path, predicate } = child else {
            continue;
        };
        let (value, regex) = match predicate {
            // An `$in` would take this value for a pattern.
            Predicate::Compare(Comparison::Equal, Value::Regex { .. }) => continue,
            Predicate::Compare(Comparison::Equal, value) => (Some(value.clone()), None),
            Predicate::Regex(regex) => (None, Some(regex.clone())),
            _ => continue,
        };
        let group = match groups.iter().position(|group| group.path == *path) {
            Some(found) => &mut groups[found],
            None => {
                groups.push(Group {
                    path: path.clone(),
                    values: Vec::new(),
                    regexes: Vec::new(),
                    members: Vec::new(),
                });
                groups.last_mut().expect("just pushed")
            }
        };
        group.values.extend(value);
        group.regexes.extend(regex);
        group.members.push(at);
    }
    groups.retain(|group| group.members.len() > 1);
    if groups.is_empty() {
        return children;
    }
    let joined: Vec<usize> = groups
        .iter()
        .flat_map(|group| group.members.iter().copied())
        .collect();
    let mut kept: Vec<Filter> = children
        .into_iter()
        .enumerate()
        .filter(|(at, _)| !joined.contains(at))
        .map(|(_, child)| child)
        .collect();
    kept.extend(groups.into_iter().map(|group| Filter::Field {
        path: group.path,
        predicate: Predicate::In(ValueSet::new(group.values, group.regexes)),
    }));
    kept
}

pub(super) fn sort(filter: Filter) -> Filter {
    match filter {
        Filter::And(children) => Filter::And(sort_all(children)),
        Filter::Or(children) => Filter::Or(sort_all(children)),
        Filter::Nor(children) => Filter::Nor(sort_all(children)),
        Filter::Not(child) => Filter::Not(Box::new(sort(*child))),
        Filter::Field { path, predicate } => Filter::Field {
            path,
            predicate: match predicate {
                Predicate::ElementMatches(filter) => {
                    Predicate::ElementMatches(Box::new(sort(*filter)))
                }
                Predicate::ElementPasses(filters) => Predicate::ElementPasses(sort_all(filters)),
                leaf => leaf,
            },
        },
        leaf @ (Filter::Expression { .. }
        | Filter::SampleRate(_)
        | Filter::AlwaysTrue
        | Filter::AlwaysFalse) => leaf,
    }
}

/// Conditions without a path come first; those of one path stay by kind.
pub(super) fn by_path(filter: Filter) -> Filter {
    match filter {
        Filter::And(mut children) => {
            children.sort_by(|left, right| path(left).cmp(path(right)));
            Filter::And(children)
        }
        other => other,
    }
}

fn sort_all(children: Vec<Filter>) -> Vec<Filter> {
    let mut sorted: Vec<Filter> = children.into_iter().map(sort).collect();
    sorted.sort_by(compare);
    sorted
}

/// By kind, path, then children; what remains equal keeps its order.
pub(super) fn compare(left: &Filter, right: &Filter) -> Ordering {
    rank(left)
        .cmp(&rank(right))
        .then_with(|| path(left).cmp(path(right)))
        .then_with(|| {
            let (left, right) = (children(left), children(right));
            let pairs = left.iter().zip(right);
            pairs
                .map(|(left, right)| compare(left, right))
                .find(|unequal| unequal.is_ne())
                .unwrap_or_else(|| left.len().cmp(&right.len()))
        })
}

fn path(filter: &Filter) -> &str {
    match filter {
        Filter::Field { path, .. } => path.as_str(),
        _ => "",
    }
}

fn children(filter: &Filter) -> &[Filter] {
    match filter {
        Filter::And(children) | Filter::Or(children) | Filter::Nor(children) => children,
        Filter::Not(child) => std::slice::from_ref(child),
        Filter::Field { predicate, .. } => match predicate {
            Predicate::ElementMatches(filter) => std::slice::from_ref(filter),
            Predicate::ElementPasses(filters) => filters,
            _ => &[],
        },
        Filter::Expression { .. }
        | Filter::SampleRate(_)
        | Filter::AlwaysTrue
        | Filter::AlwaysFalse => &[],
    }
}

/// MongoDB's order of the kinds of conditions.
fn rank(filter: &Filter) -> u8 {
    match filter {
        Filter::And(_) => 0,
        Filter::Or(_) => 1,
        Filter::Field { predicate, .. } => match predicate {
            Predicate::ElementMatches(_) => 2,
            Predicate::ElementPasses(_) => 3,
            Predicate::Size(_) => 4,
            Predicate::Compare(Comparison::Equal, _) => 5,
            Predicate::Compare(Comparison::LessOrEqual, _) => 6,
            Predicate::Compare(Comparison::Less, _) => 7,
            Predicate::Compare(Comparison::Greater, _) => 8,
            Predicate::Compare(Comparison::GreaterOrEqual, _) => 9,
            Predicate::Regex(_) => 10,
            Predicate::Modulo { .. } => 11,
            Predicate::Exists => 12,
            Predicate::In(_) => 13,
            Predicate::Bits(BitTest::AllSet, _) => 14,
            Predicate::Bits(BitTest::AllClear, _) => 15,
            Predicate::Bits(BitTest::AnySet, _) => 16,
            Predicate::Bits(BitTest::AnyClear, _) => 17,
            Predicate::Type(_) => 20,
        },
        Filter::Not(_) => 18,
        Filter::Nor(_) => 19,
        Filter::Expression { .. } | Filter::SampleRate(_) => 21,
        Filter::AlwaysFalse => 22,
        Filter::AlwaysTrue => 23,
    }
}
