//! Dotted paths, and what they reach in a document for the purpose of matching.
//!
//! A path is split once, when a query is parsed. Walking it over a document
//! offers *candidates* one after the other to a test, and stops at the first
//! that the test accepts:
//!
//! ```text
//!   path a.b   {a: {b: 1}}              1
//!              {a: 5}  {}               missing
//!              {a: [{b: 1}, {c: 2}]}    1, missing        one walk per document in the array
//!              {a: [5, 6]}              (nothing)         scalars in an array have no fields
//!              {a: [[{b: 1}]]}          (nothing)         arrays in arrays are not entered
//!   path a     {a: [1, [2]]}            1, [2], [1, [2]]  elements, then the array itself
//!   path a.0   {a: [[7], {0: 8}]}       [7], 8            as an index: not expanded further; as a name
//! ```
//!
//! A number names an array element only in its plain form: `0`, never `00`.
//!
//! Positions: each candidate carries the index of the element of the outermost
//! array that it was found in, which is what the positional operator `$` stands
//! for. An array that is passed by index does not count.
//!
//! A dot at the end of a path means nothing behind an array: `a.` reaches the
//! elements of `a`, as `a` does, but in a document it is the field named "".
//!
//! What `distinct`, `$lookup` and `$graphLookup` read along a path is less: see
//! [`visit_values`].
//!
//! Nothing is allocated on the walk. The depth of the recursion is bounded by
//! the nesting of the document, which was checked when it entered the system.

use model::bson::{Array, Doc, ValueRef};
use std::fmt;

/// A dotted path, split into its components.
#[derive(Clone, PartialEq, Eq)]
pub struct Path {
    text: Box<str>,
    components: Box<[Component]>,
}

/// The name between two dots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Component {
    name: Box<str>,
    index: Option<u32>,
}

/// What becomes of an array at the end of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeafArray {
    /// Its elements are candidates, then the array itself.
    Expand,
    /// Only the array itself is.
    Whole,
}

impl Component {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            index: array_index(name),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The array element this component names, if it is a number.
    pub fn index(&self) -> Option<u32> {
        self.index
    }
}

/// Reads an array index in its plain decimal form.
pub fn array_index(name: &str) -> Option<u32> {
    let bytes = name.as_bytes();
    let plain = match bytes {
        [b'0'] => true,
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if plain { name.parse().ok() } else { None }
}

impl AsRef<str> for Component {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

impl Path {
    pub fn new(text: &str) -> Self {
        Self {
            text: text.into(),
            components: text.split('.').map(Component::new).collect(),
        }
    }

    /// The path of no components: the value itself, inside `$elemMatch`.
    pub fn itself() -> Self {
        Self {
            text: "".into(),
            components: Box::new([]),
        }
    }

    /// True for [`Path::itself`]; the path of a field named "" is not empty.
    pub fn is_itself(&self) -> bool {
        self.components.is_empty()
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn components(&self) -> &[Component] {
        &self.components
    }

    /// Whether any candidate of this path passes the test. The test gets the
    /// value (`None` where the field is missing) and its position.
    #[inline]
    pub fn any<'a>(
        &self,
        doc: Doc<'a>,
        leaf: LeafArray,
        test: &mut impl FnMut(Option<ValueRef<'a>>, Option<u32>) -> bool,
    ) -> bool {
        any_in_document(&self.components, doc, leaf, None, test)
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

impl From<&str> for Path {
    fn from(text: &str) -> Self {
        Path::new(text)
    }
}

fn any_in_document<'a>(
    components: &[Component],
    doc: Doc<'a>,
    leaf: LeafArray,
    outer: Option<u32>,
    test: &mut impl FnMut(Option<ValueRef<'a>>, Option<u32>) -> bool,
) -> bool {
    let mut current = doc;
    let mut components = components;
    while let Some((component, rest)) = components.split_first() {
        match current.get(&component.name) {
            Some(ValueRef::Array(array)) => {
                return any_in_array(rest, array, leaf, outer, test);
            }
            Some(value) if rest.is_empty() => return test(Some(value), outer),
            Some(ValueRef::Document(nested)) => {
                current = nested;
                components = rest;
            }
            Some(_) | None => return test(None, outer),
        }
    }
    false
}

/// `rest` is what remains of the path behind the field that holds the array.
fn any_in_array<'a>(
    rest: &[Component],
    array: Array<'a>,
    leaf: LeafArray,
    outer: Option<u32>,
    test: &mut impl FnMut(Option<ValueRef<'a>>, Option<u32>) -> bool,
) -> bool {
    let rest = match rest {
        [last] if last.name.is_empty() => &[],
        rest => rest,
    };
    let Some((component, behind)) = rest.split_first() else {
        if leaf == LeafArray::Expand {
            for (at, element) in (0u32..).zip(array.iter()) {
                if test(Some(element), outer.or(Some(at))) {
                    return true;
                }
            }
        }
        return test(Some(ValueRef::Array(array)), outer);
    };
    for (at, element) in (0u32..).zip(array.iter()) {
        if let ValueRef::Document(nested) = element
            && any_in_document(rest, nested, leaf, outer.or(Some(at)), test)
        {
            return true;
        }
        if component.index == Some(at) {
            // By index: this array sets no position.
            let found = match element {
                _ if behind.is_empty() => test(Some(element), outer),
                ValueRef::Document(nested) => any_in_document(behind, nested, leaf, outer, test),
                ValueRef::Array(nested) => any_in_array(behind, nested, leaf, outer, test),
                _ => false,
            };
            if found {
                return true;
            }
        }
    }
    false
}

/// Calls with every value that a path leads to; the elements of an array at its
/// end count instead of the array. Behind an array a number is an index and
/// nothing else; other names are looked for in each of its documents.
pub fn visit_values<'a, N: AsRef<str>>(
    doc: Doc<'a>,
    names: &[N],
    visit: &mut dyn FnMut(ValueRef<'a>),
) {
    if let Some((name, rest)) = names.split_first()
        && let Some(value) = doc.get(name.as_ref())
    {
        visit_behind(value, rest, visit);
    }
}

fn visit_behind<'a, N: AsRef<str>>(
    value: ValueRef<'a>,
    names: &[N],
    visit: &mut dyn FnMut(ValueRef<'a>),
) {
    match (value, names) {
        (ValueRef::Array(array), []) => array.iter().for_each(visit),
        (value, []) => visit(value),
        (ValueRef::Document(doc), _) => visit_values(doc, names, visit),
        (ValueRef::Array(array), [name, rest @ ..]) => match array_index(name.as_ref()) {
            Some(index) => {
                if let Some(element) = array.iter().nth(index as usize) {
                    visit_behind(element, rest, visit);
                }
            }
            None => {
                for element in array.iter() {
                    if let ValueRef::Document(doc) = element {
                        visit_values(doc, names, visit);
                    }
                }
            }
        },
        (_, _) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_numbers_are_indexes() {
        for (name, expected) in [
            ("0", Some(0)),
            ("7", Some(7)),
            ("10", Some(10)),
            ("00", None),
            ("01", None),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("1a", None),
            ("4294967295", Some(u32::MAX)),
            ("4294967296", None),
        ] {
            assert_eq!(array_index(name), expected, "{name}");
        }
    }

    #[test]
    fn dots_separate_components_even_empty_ones() {
        let names = |text: &str| -> Vec<String> {
            Path::new(text)
                .components()
                .iter()
                .map(|component| component.name().to_owned())
                .collect()
        };
        assert_eq!(names("a.b.0"), ["a", "b", "0"]);
        assert_eq!(names("a."), ["a", ""]);
        assert_eq!(names(""), [""]);
    }
}
