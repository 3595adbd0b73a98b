//! The keys that an index over one or more paths has for a document.
//!
//! Without arrays there is one key: the value at each path, null where there is
//! none. An array at a path makes the index *multikey* there: one key for each
//! element, undefined for an empty array. Several paths may go through the same
//! array and then move through it together:
//!
//! ```text
//!   a.x, a.y   {a: [{x: 1, y: 2}, {x: 3}]}    (1, 2) (3, null)
//!   a, b       {a: [1, 2], b: [3]}            error: parallel arrays
//!   a.0        {a: [[5], 6]}                  ([5])     by index, not expanded, not multikey
//!   a.0        {a: [{0: 5}]}                  error: index or name?
//!   a.0, a.c   {a: [[5], {c: [6]}]}           error: parallel arrays
//! ```
//!
//! The same rules give a document's sort key, which is the least of its keys in
//! the order of the sort.
//!
//! Keys may repeat; whoever encodes them drops the duplicates, since equal means
//! equal as encoded. What sparse, partial and hashed indexes leave out or change
//! is decided by the caller.

use crate::path::{Component, Path};
use model::bson::{Array, Doc, ValueRef};
use model::{Code, Error};

/// All keys of one document.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexKeys<'a> {
    width: usize,
    /// Key after key, `width` values each.
    values: Vec<ValueRef<'a>>,
    /// For each key, whether any of its values was in the document.
    present: Vec<bool>,
    multikey: Vec<MultikeyComponents>,
}

/// One key of a document.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IndexKey<'k, 'a> {
    pub values: &'k [ValueRef<'a>],
    /// False if every field was missing: a sparse index leaves the key out.
    pub any_present: bool,
}

/// The components of a path at which arrays were expanded, counted from 0.
/// Components from the 128th on share one bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MultikeyComponents(u128);

impl MultikeyComponents {
    fn insert(&mut self, component: usize) {
        self.0 |= 1 << component.min(127);
    }

    pub fn contains(self, component: usize) -> bool {
        self.0 & (1 << component.min(127)) != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// In ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..128).filter(move |&component| self.contains(component))
    }
}

/// Where in an index documents had arrays: for each of its fields the components
/// of the path. It only grows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MultikeyPaths {
    /// As long as it has to be: fields behind have none.
    fields: Vec<MultikeyComponents>,
}

impl MultikeyPaths {
    pub fn of(fields: &[MultikeyComponents]) -> Self {
        let used = fields.iter().rposition(|components| !components.is_empty());
        Self {
            fields: fields[..used.map_or(0, |last| last + 1)].to_vec(),
        }
    }

    /// Arrays anywhere: what is assumed where nothing more is known.
    pub fn everywhere(fields: usize) -> Self {
        Self {
            fields: vec![MultikeyComponents(u128::MAX); fields],
        }
    }

    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    pub fn field(&self, at: usize) -> MultikeyComponents {
        self.fields.get(at).copied().unwrap_or_default()
    }

    /// Every pair of a field and a component of its path.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize)> {
        self.fields
            .iter()
            .enumerate()
            .flat_map(|(field, components)| components.iter().map(move |c| (field, c)))
    }

    pub fn contains_all(&self, other: &Self) -> bool {
        other
            .fields
            .iter()
            .enumerate()
            .all(|(at, components)| components.0 & !self.field(at).0 == 0)
    }

    pub fn insert(&mut self, field: usize, component: usize) {
        if self.fields.len() <= field {
            self.fields.resize(field + 1, MultikeyComponents::default());
        }
        self.fields[field].insert(component);
    }

    pub fn add(&mut self, other: &Self) {
        if self.fields.len() < other.fields.len() {
            self.fields
                .resize(other.fields.len(), MultikeyComponents::default());
        }
        for (mine, theirs) in self.fields.iter_mut().zip(&other.fields) {
            mine.0 |= theirs.0;
        }
    }
}

impl<'a> IndexKeys<'a> {
    pub fn keys(&self) -> impl Iterator<Item = IndexKey<'_, 'a>> {
        self.values
            .chunks_exact(self.width)
            .zip(&self.present)
            .map(|(values, &any_present)| IndexKey {
                values,
                any_present,
            })
    }

    /// Per path, where arrays were expanded.
    pub fn multikey(&self) -> &[MultikeyComponents] {
        &self.multikey
    }
}

/// The keys of `doc` for an index over `paths`, in the order of array elements.
pub fn index_keys<'a>(paths: &[Path], doc: Doc<'a>) -> Result<IndexKeys<'a>, Error> {
    assert!(!paths.is_empty(), "an index has at least one path");
    let mut keys = IndexKeys {
        width: paths.len(),
        values: Vec::with_capacity(paths.len()),
        present: Vec::with_capacity(1),
        multikey: vec![MultikeyComponents::default(); paths.len()],
    };
    let fields = paths
        .iter()
        .map(|path| Field::Pending {
            doc,
            rest: path.components(),
            depth: 0,
        })
        .collect();
    expand(fields, &mut keys)?;
    Ok(keys)
}

/// What a path leads to where it passes no array.
pub enum Plain<'a> {
    Value(ValueRef<'a>),
    Missing,
    /// There is an array: [`index_keys`] has to look.
    AtArray,
}

/// Most documents have no array at any path, and so one key: its values, one after the other, without room made for
/// more.
pub fn plain_value<'a>(path: &Path, doc: Doc<'a>) -> Plain<'a> {
    match follow(doc, path.components(), 0) {
        Field::Done(Some(value)) => Plain::Value(value),
        Field::Done(None) => Plain::Missing,
        Field::Pending { .. } | Field::Whole { .. } | Field::AtArray { .. } => Plain::AtArray,
    }
}

/// How far one path has come.
#[derive(Clone, Copy)]
enum Field<'a, 'p> {
    Done(Option<ValueRef<'a>>),
    /// To be followed from here.
    Pending {
        doc: Doc<'a>,
        rest: &'p [Component],
        depth: usize,
    },
    /// An array that was reached by index: one value, but another array beside it is
    /// parallel to it.
    Whole {
        array: Array<'a>,
        name: &'p str,
    },
    /// Stopped at an array, `rest` is what lies behind it.
    AtArray {
        array: Array<'a>,
        name: &'p str,
        rest: &'p [Component],
        depth: usize,
    },
}

/// Follows all fields to their ends or to one common array, and recurses into
/// the elements of that.
fn expand<'a, 'p>(mut fields: Vec<Field<'a, 'p>>, keys: &mut IndexKeys<'a>) -> Result<(), Error> {
    let mut common: Option<(Array<'a>, &'p str)> = None;
    for field in &mut fields {
        if let Field::Pending { doc, rest, depth } = *field {
            *field = follow(doc, rest, depth);
        }
        if let Field::AtArray { array, name, .. } | Field::Whole { array, name } = *field {
            match common {
                None => common = Some((array, name)),
                Some((first, _)) if is_same(first, array) => {}
                Some((_, first_name)) => {
                    return Err(Error::new(
                        Code::CANNOT_INDEX_PARALLEL_ARRAYS,
                        format!("cannot index parallel arrays [{name}] [{first_name}]"),
                    ));
                }
            }
        }
    }
    let is_at_array = |field: &Field<'_, '_>| matches!(field, Field::AtArray { .. });
    let array = match common {
        Some((array, _)) if fields.iter().any(is_at_array) => array,
        Some(_) | None => {
            push_key(&fields, keys);
            return Ok(());
        }
    };
    // Fields that pass the array by index are the same for every element.
    let mut is_expanded = false;
    let mut passed = Vec::with_capacity(fields.len());
    for (field, multikey) in fields.into_iter().zip(&mut keys.multikey) {
        let field = match field {
            Field::AtArray { depth, .. } => match pass_by_index(field)? {
                Some(field) => field,
                None => {
                    multikey.insert(depth);
                    is_expanded = true;
                    field
                }
            },
            Field::Done(_) | Field::Whole { .. } | Field::Pending { .. } => field,
        };
        passed.push(field);
    }
    if !is_expanded {
        return expand(passed, keys);
    }
    let enter = |element| {
        let fields = passed.iter();
        fields
            .map(|field| into_element(*field, array, element))
            .collect()
    };
    if array.is_empty() {
        return expand(enter(None), keys);
    }
    for element in array.iter() {
        expand(enter(Some(element)), keys)?;
    }
    Ok(())
}

/// Identity, not equality: two equal arrays at different places are parallel.
fn is_same(left: Array<'_>, right: Array<'_>) -> bool {
    std::ptr::eq(left.as_bytes(), right.as_bytes())
}

/// What a field that stopped at this array finds in one of its elements;
/// `None` stands for the element that an empty array does not have.
fn into_element<'a, 'p>(
    field: Field<'a, 'p>,
    entered: Array<'a>,
    element: Option<ValueRef<'a>>,
) -> Field<'a, 'p> {
    let Field::AtArray {
        array, rest, depth, ..
    } = field
    else {
        return field;
    };
    if !is_same(array, entered) {
        return field;
    }
    match element {
        _ if rest.is_empty() => Field::Done(Some(element.unwrap_or(ValueRef::Undefined))),
        Some(ValueRef::Document(doc)) => Field::Pending {
            doc,
            rest,
            depth: depth + 1,
        },
        Some(_) | None => Field::Done(None),
    }
}

/// Follows a path from a document to its end or to the first array. `depth`
/// counts the components that lead to the document.
fn follow<'a, 'p>(doc: Doc<'a>, components: &'p [Component], depth: usize) -> Field<'a, 'p> {
    let mut doc = doc;
    let mut rest = components;
    let mut depth = depth;
    while let Some((component, behind)) = rest.split_first() {
        match doc.get(component.name()) {
            Some(ValueRef::Array(array)) => {
                return Field::AtArray {
                    array,
                    name: component.name(),
                    rest: behind,
                    depth,
                };
            }
            value if behind.is_empty() => return Field::Done(value),
            Some(ValueRef::Document(nested)) => doc = nested,
            Some(_) | None => return Field::Done(None),
        }
        rest = behind;
        depth += 1;
    }
    Field::Done(Some(ValueRef::Document(doc)))
}

/// Passes the array a field stopped at, if the next component is the index of
/// one of its elements. At the end of a path that element is not expanded, but
/// an empty array is undefined there too.
fn pass_by_index<'a, 'p>(field: Field<'a, 'p>) -> Result<Option<Field<'a, 'p>>, Error> {
    let Field::AtArray {
        array, rest, depth, ..
    } = field
    else {
        return Ok(None);
    };
    let Some((component, behind)) = rest.split_first() else {
        return Ok(None);
    };
    let Some(index) = component.index() else {
        return Ok(None);
    };
    let Some(element) = array.get(index as usize) else {
        return Ok(None);
    };
    let is_also_a_name = array.iter().any(|element| match element {
        ValueRef::Document(doc) => doc.get(component.name()).is_some(),
        _ => false,
    });
    if is_also_a_name {
        return Err(Error::location(
            16746,
            format!(
                "Ambiguous field name found in array (do not use numeric field names in \
                 embedded elements in an array), field: '{}' for array: {:?}",
                component.name(),
                array.as_doc()
            ),
        ));
    }
    Ok(Some(match element {
        ValueRef::Array(nested) if behind.is_empty() => Field::Whole {
            array: nested,
            name: component.name(),
        },
        _ if behind.is_empty() => Field::Done(Some(element)),
        ValueRef::Document(doc) => Field::Pending {
            doc,
            rest: behind,
            depth: depth + 2,
        },
        ValueRef::Array(nested) => Field::AtArray {
            array: nested,
            name: component.name(),
            rest: behind,
            depth: depth + 1,
        },
        _ => Field::Done(None),
    }))
}

fn push_key<'a>(fields: &[Field<'a, '_>], keys: &mut IndexKeys<'a>) {
    let mut any_present = false;
    for field in fields {
        let value = match field {
            Field::Done(value) => *value,
            Field::Whole { array, .. } if array.is_empty() => Some(ValueRef::Undefined),
            Field::Whole { array, .. } => Some(ValueRef::Array(*array)),
            Field::Pending { .. } | Field::AtArray { .. } => None,
        };
        any_present |= value.is_some();
        keys.values.push(value.unwrap_or(ValueRef::Null));
    }
    keys.present.push(any_present);
}
