//! The rules about places: which stages make documents or write them and so stand first
//! or last, which are not allowed inside of others, and which want a collection.

use super::{Place, Scope};
use crate::pipeline::stage::{Stage, Step};
use model::{Code, Error, Namespace};

/// Whether each stage may stand where it does.
pub(super) fn check_places(steps: &[Step], scope: &Scope<'_>) -> Result<(), Error> {
    let is_command = matches!(scope.place, Place::Command | Place::ShardHalf);
    if is_command && scope.collection.is_none() {
        check_collection(steps, scope)?;
    }
    for (at, step) in steps.iter().enumerate() {
        let name = step.name();
        let writes = step.stage.is_final();
        let watches = matches!(step.stage, Stage::ChangeStream(_));
        match scope.place {
            Place::Facet
                if writes || step.stage.is_initial() || matches!(step.stage, Stage::Facet(_)) =>
            {
                return Err(Error::location(
                    40600,
                    format!("{name} is not allowed to be used within a $facet stage"),
                ));
            }
            Place::Lookup if writes || watches => {
                return Err(Error::location(
                    51047,
                    format!("{name} is not allowed within a $lookup's sub-pipeline"),
                ));
            }
            Place::UnionWith if writes || watches => {
                return Err(Error::location(
                    31441,
                    format!("{name} is not allowed within a $unionWith's sub-pipeline"),
                ));
            }
            Place::Update if !matches!(step.stage, Stage::Project(_) | Stage::Replace(_)) => {
                return Err(Error::new(
                    Code::INVALID_OPTIONS,
                    format!("{name} is not allowed to be used within an update"),
                ));
            }
            Place::Command
            | Place::ShardHalf
            | Place::Facet
            | Place::Lookup
            | Place::UnionWith
            | Place::Update => {}
        }
        if step.stage.is_initial() && at > 0 {
            return Err(Error::location(
                40602,
                format!("{name} is only valid as the first stage in a pipeline"),
            ));
        }
        if writes && at + 1 < steps.len() {
            return Err(Error::location(
                40601,
                format!("{name} can only be the final stage in the pipeline"),
            ));
        }
    }
    if is_command {
        check_collection(steps, scope)?;
    }
    Ok(())
}

/// Whether the command named a collection, as the first stage wants it.
fn check_collection(steps: &[Step], scope: &Scope<'_>) -> Result<(), Error> {
    let invalid = |message: String| Err(Error::new(Code::INVALID_NAMESPACE, message));
    let first = steps.first();
    match (scope.collection, first.map(|step| &step.stage)) {
        (Some(_), Some(Stage::Documents(_))) => {
            invalid("'$documents' can only be run with {aggregate: 1}".to_owned())
        }
        (None, None) => invalid("{aggregate: 1} is not valid for an empty pipeline.".to_owned()),
        (
            None,
            Some(
                Stage::Documents(_)
                | Stage::CurrentOperations(_)
                | Stage::LocalSessions(_)
                | Stage::ChangeStream(_),
            ),
        ) => Ok(()),
        (None, Some(_)) => invalid(needs_collection(first.map_or("", Step::name))),
        (Some(_), _) => Ok(()),
    }
}

fn needs_collection(name: &str) -> String {
    format!("{{aggregate: 1}} is not valid for '{name}'; a collection is required.")
}

pub(in crate::pipeline) fn required_collection<'s>(
    name: &str,
    scope: &Scope<'s>,
) -> Result<&'s Namespace, Error> {
    scope
        .collection
        .ok_or_else(|| Error::new(Code::INVALID_NAMESPACE, needs_collection(name)))
}
