//! Paths of update modifiers: `a.b`, `a.$`, `a.$[]`, `a.$[name].b`.
//!
//! A path is split when the update is parsed ([`Component`]); while a document
//! is walked, [`At`] remembers the way as a chain on the stack.

use model::bson::{Doc, ValueRef};
use model::{Code, Error, text};
use std::cmp::Ordering;

/// The most components of a path.
const COMPONENTS_MAX: usize = 255;

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

    /// The order in which fields are created.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Component::Field(left), Component::Field(right)) => compare_names(left, right),
            _ => self.to_string().cmp(&other.to_string()),
        }
    }
}

/// As text, except that of two names that begin with a digit other than zero the
/// shorter comes first. So 9 comes before 10, and 9 before 1a too.
fn compare_names(left: &str, right: &str) -> Ordering {
    let is_counted = |name: &str| matches!(name.as_bytes().first(), Some(b'1'..=b'9'));
    if is_counted(left) && is_counted(right) {
        left.len().cmp(&right.len()).then_with(|| left.cmp(right))
    } else {
        left.cmp(right)
    }
}

fn is_digits(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
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

/// A name as an array index. Unlike in filters, leading zeros are allowed.
pub(super) fn parse_index(name: &str) -> Option<usize> {
    if !is_digits(name) {
        return None;
    }
    let index: u32 = name.parse().ok()?;
    usize::try_from(index).ok()
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
        // Longer than any document is deep: the walk recurses by component. The real server counts
        // in a byte, and takes one more for none at all.
        if components.len() == COMPONENTS_MAX {
            return Err(Error::new(
                Code::EMPTY_FIELD_NAME,
                format!("An update path has at most {COMPONENTS_MAX} components"),
            ));
        }
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

/// Where an update is in a document: known for messages, never stored.
#[derive(Clone, Copy)]
pub(super) struct At<'p> {
    parent: Option<&'p At<'p>>,
    name: AtName<'p>,
}

#[derive(Clone, Copy)]
enum AtName<'p> {
    Document(Doc<'p>),
    Field(&'p str),
    Index(usize),
}

impl<'p> At<'p> {
    pub(super) fn of(document: Doc<'p>) -> At<'p> {
        At {
            parent: None,
            name: AtName::Document(document),
        }
    }

    /// Which document it is, as messages say it: `{_id: 1}`.
    pub(super) fn document(&self) -> String {
        match self.id() {
            Some(id) => format!("{{_id: {}}}", text::value_quoted(id)),
            None => "{no id}".to_owned(),
        }
    }

    pub(super) fn id(&self) -> Option<ValueRef<'p>> {
        match (self.parent, self.name) {
            (_, AtName::Document(document)) => document.get("_id"),
            (Some(parent), _) => parent.id(),
            (None, _) => None,
        }
    }

    pub(super) fn field(&'p self, name: &'p str) -> At<'p> {
        At {
            parent: Some(self),
            name: AtName::Field(name),
        }
    }

    pub(super) fn index(&'p self, index: usize) -> At<'p> {
        At {
            parent: Some(self),
            name: AtName::Index(index),
        }
    }

    /// The last step alone.
    pub(super) fn last(&self) -> String {
        match self.name {
            AtName::Document(_) => String::new(),
            AtName::Field(name) => name.to_owned(),
            AtName::Index(index) => index.to_string(),
        }
    }
}

impl std::fmt::Display for At<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(parent) = self.parent
            && !matches!(parent.name, AtName::Document(_))
        {
            write!(f, "{parent}.")?;
        }
        f.write_str(&self.last())
    }
}
