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

    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// For storing.
    pub fn bits(self) -> u128 {
        self.0
    }

    pub fn from_bits(bits: u128) -> Self {
        Self(bits)
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

    pub fn is_multikey(&self) -> bool {
        self.multikey.iter().any(|components| !components.is_empty())
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
fn expand<'a, 'p>(
    mut fields: Vec<Field<'a, 'p>>,
    keys: &mut IndexKeys<'a>,
) -> Result<(), Error> {
    let mut common: Option<(Array<'a>, &'p str)> = None;
    for field in &mut fields {
        if let Field::Pending { doc, rest, depth } = *field {
            *field = follow(doc, rest, depth)?;
        }
        if let Field::AtArray { array, name, .. } = *field {
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
    let Some((array, _)) = common else {
        push_key(&fields, keys);
        return Ok(());
    };
    for (field, multikey) in fields.iter().zip(&mut keys.multikey) {
        if let Field::AtArray { depth, .. } = field {
            multikey.insert(*depth);
        }
    }
    if array.is_empty() {
        let emptied = fields.iter().map(|field| into_element(*field, None));
        return expand(emptied.collect(), keys);
    }
    for element in array.iter() {
        let entered = fields
            .iter()
            .map(|field| into_element(*field, Some(element)));
        expand(entered.collect(), keys)?;
    }
    Ok(())
}

/// Identity, not equality: two equal arrays at different places are parallel.
fn is_same(left: Array<'_>, right: Array<'_>) -> bool {
    std::ptr::eq(left.as_bytes(), right.as_bytes())
}

/// What a field that stopped at an array finds in one of its elements;
/// `None` stands for the element that an empty array does not have.
fn into_element<'a, 'p>(field: Field<'a, 'p>, element: Option<ValueRef<'a>>) -> Field<'a, 'p> {
    let Field::AtArray { rest, depth, .. } = field else {
        return field;
    };
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

/// Follows a path from a document to its end or to the first array that is not
/// passed by index. `depth` counts the components that lead to the document.
fn follow<'a, 'p>(
    doc: Doc<'a>,
    components: &'p [Component],
    depth: usize,
) -> Result<Field<'a, 'p>, Error> {
    let mut value = ValueRef::Document(doc);
    let mut name = "";
    let mut rest = components;
    let mut depth = depth;
    let mut reached_by_index = false;
    loop {
        match (value, rest.split_first()) {
            (ValueRef::Array(_), None) if reached_by_index => return Ok(Field::Done(Some(value))),
            (ValueRef::Array(array), next) => match by_index(array, next)? {
                Some((element, component, behind)) => {
                    (value, name, rest) = (element, component.name(), behind);
                    reached_by_index = true;
                }
                None => {
                    return Ok(Field::AtArray {
                        array,
                        name,
                        rest,
                        depth: depth - 1,
                    });
                }
            },
            (ValueRef::Document(doc), Some((component, behind))) => {
                match doc.get(component.name()) {
                    Some(found) => (value, name, rest) = (found, component.name(), behind),
                    None => return Ok(Field::Done(None)),
                }
                reached_by_index = false;
            }
            (_, None) => return Ok(Field::Done(Some(value))),
            (_, Some(_)) => return Ok(Field::Done(None)),
        }
        depth += 1;
    }
}

/// An element, the component that named it, and the path behind that.
type ByIndex<'a, 'p> = Option<(ValueRef<'a>, &'p Component, &'p [Component])>;

/// The element that the next component names, if it is the index of one.
fn by_index<'a, 'p>(
    array: Array<'a>,
    next: Option<(&'p Component, &'p [Component])>,
) -> Result<ByIndex<'a, 'p>, Error> {
    let Some((component, behind)) = next else {
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
    Ok(Some((element, component, behind)))
}

fn push_key<'a>(fields: &[Field<'a, '_>], keys: &mut IndexKeys<'a>) {
    let mut any_present = false;
    for field in fields {
        let value = match field {
            Field::Done(value) => *value,
            Field::Pending { .. } | Field::AtArray { .. } => None,
        };
        any_present |= value.is_some();
        keys.values.push(value.unwrap_or(ValueRef::Null));
    }
    keys.present.push(any_present);
}
