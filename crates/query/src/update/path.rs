//! Paths of update modifiers: `a.b`, `a.$`, `a.$[]`, `a.$[name].b`.

use model::{Code, Error};
use std::cmp::Ordering;

/// One step of an update path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Component {
    /// A field, or an index where the container is an array.
    Field(String),
    /// `$`: the array element that the filter matched.
    Positional,
    /// `$[]`: every element.
    All,
    /// `$[name]`: the elements that the array filter of this name accepts.
    Filtered(String),
}

impl Component {
    pub(super) fn is_array_step(&self) -> bool {
        match self {
            Component::All | Component::Filtered(_) => true,
            Component::Field(_) | Component::Positional => false,
        }
    }

    /// The order in which modifiers are applied: numbers as numbers, then text.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        match (self.index(), other.index()) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => self.to_string().cmp(&other.to_string()),
        }
    }

    /// The array index this step stands for, if it can be one.
    pub(super) fn index(&self) -> Option<usize> {
        match self {
            Component::Field(name) => parse_index(name),
            Component::Positional | Component::All | Component::Filtered(_) => None,
        }
    }
}

impl std::fmt::Display for Component {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Component::Field(name) => f.write_str(name),
            Component::Positional => f.write_str("$"),
            Component::All => f.write_str("$[]"),
            Component::Filtered(name) => write!(f, "$[{name}]"),
        }
    }
}

/// A field name that is an array index: digits without a leading zero.
pub(super) fn parse_index(name: &str) -> Option<usize> {
    let digits = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = digits && (name.len() == 1 || !name.starts_with('0'));
    if canonical { name.parse().ok() } else { None }
}

pub(super) fn parse(path: &str) -> Result<Vec<Component>, Error> {
    if path.is_empty() {
        return Err(Error::new(
            Code::EMPTY_FIELD_NAME,
            "An empty update path is not valid.",
        ));
    }
    let mut components = Vec::new();
    for part in path.split('.') {
        let component = match part {
            "" => {
                return Err(Error::new(
                    Code::EMPTY_FIELD_NAME,
                    format!(
                        "The update path '{path}' contains an empty field name, which is not allowed."
                    ),
                ));
            }
            "$" => {
                if components.is_empty() {
                    return Err(Error::bad_value(format!(
                        "Cannot have positional (i.e. '$') element in the first position in path '{path}'"
                    )));
                }
                if components.contains(&Component::Positional) {
                    return Err(Error::bad_value(format!(
                        "Too many positional (i.e. '$') elements found in path '{path}'"
                    )));
                }
                Component::Positional
            }
            "$[]" => array_step(path, &components, Component::All)?,
            _ => match part.strip_prefix("$[").and_then(|p| p.strip_suffix(']')) {
                Some(name) => array_step(path, &components, Component::Filtered(name.to_owned()))?,
                None => Component::Field(part.to_owned()),
            },
        };
        components.push(component);
    }
    Ok(components)
}

fn array_step(path: &str, before: &[Component], step: Component) -> Result<Component, Error> {
    if before.is_empty() {
        return Err(Error::bad_value(format!(
            "Cannot have array filter identifier (i.e. '$[<id>]') element in the first position in path '{path}'"
        )));
    }
    Ok(step)
}
