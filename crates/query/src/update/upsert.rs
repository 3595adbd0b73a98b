//! The document that an upsert starts from: the filter's equalities.
//!
//! Every path that the filter binds to one value becomes a field; nested paths
//! become nested documents. A path bound twice, or a path and its prefix, cannot
//! be made into a document.

use super::tree::{Fields, Node};
use crate::filter::Filter;
use model::bson::{DocBuf, Value};
use model::{Code, Error};
use std::borrow::Cow;

pub fn upsert_base(filter: &Filter) -> Result<DocBuf, Error> {
    let optimized = filter.clone().optimized();
    let mut root = Fields::default();
    for (path, value) in optimized.equalities() {
        let components: Vec<&str> = path.components().iter().map(|c| c.name()).collect();
        put(&mut root, &components, value.to_owned(), path.as_str())?;
    }
    Ok(root.to_document())
}

fn put(
    fields: &mut Fields<'static>,
    components: &[&str],
    value: Value,
    full: &str,
) -> Result<(), Error> {
    let twice = || {
        Error::new(
            Code::NOT_SINGLE_VALUE_FIELD,
            format!("cannot infer query fields to set, path '{full}' is matched twice"),
        )
    };
    let [name, rest @ ..] = components else {
        return Err(twice());
    };
    let existing = fields.position(name);
    match (existing, rest) {
        (None, []) => {
            fields
                .entries
                .push((Cow::Owned((*name).to_owned()), Node::Owned(value)));
            Ok(())
        }
        (None, rest) => {
            let mut nested = Fields::default();
            put(&mut nested, rest, value, full)?;
            fields
                .entries
                .push((Cow::Owned((*name).to_owned()), Node::Document(nested)));
            Ok(())
        }
        (Some(_), []) => Err(twice()),
        (Some(at), rest) => match &mut fields.entries[at].1 {
            Node::Document(nested) => put(nested, rest, value, full),
            Node::Borrowed(_) | Node::Owned(_) | Node::Array(_) => Err(twice()),
        },
    }
}
