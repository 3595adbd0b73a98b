//! Which collections a pipeline reads besides its own.
//!
//! Asked of stages as they were written, because a `$lookup` is parsed anew for each
//! document and knows its inner pipeline only that way.

use crate::pipeline::stage::Step;
use model::bson::{Array, Doc, ValueRef};
use model::{Error, Namespace};

/// Adds what a stage reads, each collection once.
pub(super) fn collect(
    stage: Doc<'_>,
    database: &str,
    found: &mut Vec<Namespace>,
) -> Result<(), Error> {
    visit(stage, &mut |place| {
        let namespace = match place {
            ValueRef::String(name) => Namespace::new(database, name)?,
            ValueRef::Document(doc) => Namespace::new(
                doc.get_str("db").unwrap_or(database),
                doc.get_str("coll").unwrap_or_default(),
            )?,
            _ => return Ok(()),
        };
        if !found.contains(&namespace) {
            found.push(namespace);
        }
        Ok(())
    })
}

/// Whether a stage reads any other collection.
pub(super) fn is_needed_by(step: &Step) -> bool {
    let mut needed = false;
    let asked = visit(step.spec.as_doc(), &mut |_| {
        needed = true;
        Ok(())
    });
    needed || asked.is_err()
}

type Found<'f> = &'f mut dyn FnMut(ValueRef<'_>) -> Result<(), Error>;

/// Calls back with the name of each collection.
fn visit(stage: Doc<'_>, found: Found<'_>) -> Result<(), Error> {
    let Some(stage) = stage.first() else {
        return Ok(());
    };
    match (stage.key(), stage.value()) {
        ("$unionWith", name @ ValueRef::String(_)) => found(name),
        ("$unionWith", ValueRef::Document(doc)) => named(doc, "coll", found),
        ("$lookup" | "$graphLookup", ValueRef::Document(doc)) => named(doc, "from", found),
        ("$facet", ValueRef::Document(branches)) => branches
            .iter()
            .try_for_each(|branch| inside(branch.value(), found)),
        _ => Ok(()),
    }
}

fn named(doc: Doc<'_>, field: &str, found: Found<'_>) -> Result<(), Error> {
    if let Some(name) = doc.get(field) {
        found(name)?;
    }
    doc.get("pipeline")
        .map_or(Ok(()), |stages| inside(stages, found))
}

fn inside(stages: ValueRef<'_>, found: Found<'_>) -> Result<(), Error> {
    let stages = match stages {
        ValueRef::Array(stages) => stages,
        _ => Array::EMPTY,
    };
    for stage in stages.iter() {
        if let ValueRef::Document(stage) = stage {
            visit(stage, found)?;
        }
    }
    Ok(())
}
