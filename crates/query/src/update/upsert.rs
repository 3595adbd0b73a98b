//! The document that an upsert inserts.
//!
//! Every path that the filter binds to one value becomes a field, in the order
//! of the paths; nested paths become nested documents. A path bound twice, or a
//! path and its prefix, cannot be made into a document. A replacement takes
//! nothing from the filter but `_id`.

use super::{Update, UpdateMoment};
use crate::context::QueryContext;
use crate::filter::Filter;
use model::bson::{DocBuf, DocWriter, Kind, ValueRef};
use model::{Code, Error};

impl Update {
    /// The new document; it has no `_id` if neither side gives one.
    pub fn upsert(
        &self,
        filter: &Filter,
        moment: UpdateMoment<'_>,
        context: &QueryContext,
    ) -> Result<DocBuf, Error> {
        let filter = filter.clone().optimized();
        if super::parse_array::has_expression(&filter) {
            return Err(Error::new(
                Code::QUERY_FEATURE_NOT_ALLOWED,
                "$expr is not allowed in the query predicate for an upsert",
            ));
        }
        let moment = UpdateMoment {
            is_insert: true,
            ..moment
        };
        let base = match self {
            Update::Modifiers(_) | Update::Pipeline(_) => base(&filter)?,
            Update::Replacement(replacement) => {
                let base = id_of(&filter)?;
                if base.get("_id").is_none()
                    && replacement
                        .get("_id")
                        .is_some_and(|id| id.kind() == Kind::Array)
                {
                    return Err(Error::new(
                        Code::NOT_SINGLE_VALUE_FIELD,
                        "After applying the update to the document, the (immutable) field '_id' was found to be an array or array descendant.",
                    ));
                }
                base
            }
        };
        let applied = self.apply(base.as_doc(), moment, context)?;
        Ok(applied.unwrap_or(base))
    }
}

/// The document that modifiers start from.
pub fn upsert_base(filter: &Filter) -> Result<DocBuf, Error> {
    base(&filter.clone().optimized())
}

/// A bound path, split into its names.
struct Bound<'f> {
    path: &'f str,
    names: Vec<&'f str>,
    value: ValueRef<'f>,
}

fn base(filter: &Filter) -> Result<DocBuf, Error> {
    let mut bound: Vec<Bound<'_>> = filter
        .equalities()
        .into_iter()
        .map(|(path, value)| Bound {
            path: path.as_str(),
            names: path.components().iter().map(|c| c.name()).collect(),
            value,
        })
        .collect();
    // By names, so that paths with a common beginning lie side by side.
    bound.sort_by(|left, right| left.names.cmp(&right.names));
    for pair in bound.windows(2) {
        check_apart(&pair[0], &pair[1])?;
    }
    let mut out = DocWriter::new();
    write_level(&bound, 0, &mut out);
    Ok(out.finish())
}

fn check_apart(shorter: &Bound<'_>, longer: &Bound<'_>) -> Result<(), Error> {
    if !longer.names.starts_with(&shorter.names) {
        return Ok(());
    }
    let problem = if shorter.names.len() == longer.names.len() {
        format!("path '{}' is matched twice", shorter.path)
    } else {
        format!(
            "both paths '{}' and '{}' are matched",
            longer.path, shorter.path
        )
    };
    Err(Error::new(
        Code::NOT_SINGLE_VALUE_FIELD,
        format!("cannot infer query fields to set, {problem}"),
    ))
}

fn write_level(bound: &[Bound<'_>], depth: usize, out: &mut DocWriter) {
    for group in bound.chunk_by(|left, right| left.names[depth] == right.names[depth]) {
        let name = group[0].names[depth];
        if group[0].names.len() == depth + 1 {
            out.append(name, group[0].value);
        } else {
            out.begin_document(name);
            write_level(group, depth + 1, out);
            out.end();
        }
    }
}

/// The `_id` that the filter gives a replacement.
fn id_of(filter: &Filter) -> Result<DocBuf, Error> {
    let mut out = DocWriter::new();
    let mut is_found = false;
    for (path, value) in filter.equalities() {
        match path.as_str() {
            "_id" if is_found => {
                return Err(Error::new(
                    Code::NOT_SINGLE_VALUE_FIELD,
                    "cannot infer query fields to set, path '_id' is matched twice",
                ));
            }
            "_id" => {
                out.append("_id", value);
                is_found = true;
            }
            nested if nested.starts_with("_id.") => {
                return Err(Error::new(
                    Code::NOT_EXACT_VALUE_FIELD,
                    format!(
                        "field at '_id' must be exactly specified, field at sub-path '{nested}' found"
                    ),
                ));
            }
            _ => {}
        }
    }
    Ok(out.finish())
}
