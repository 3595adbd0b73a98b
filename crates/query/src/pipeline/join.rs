//! What `$lookup` and `$graphLookup` join by: the filter that finds the values
//! of one document elsewhere.

use crate::filter::{Filter, ValueSet};
use crate::path::Path;
use model::bson::Value;

/// Documents whose field equals one of the values.
pub(super) fn any_of(field: &str, mut values: Vec<Value>) -> Filter {
    let path = Path::new(field);
    match values.pop() {
        Some(only) if values.is_empty() => Filter::equal(path, only),
        Some(last) => {
            values.push(last);
            // A regular expression in a set would be a pattern; here it is a value.
            if values
                .iter()
                .any(|value| matches!(value, Value::Regex { .. }))
            {
                return Filter::Or(
                    values
                        .into_iter()
                        .map(|value| Filter::equal(path.clone(), value))
                        .collect(),
                );
            }
            Filter::Field {
                path,
                predicate: crate::filter::Predicate::In(ValueSet::new(values, Vec::new())),
            }
        }
        None => Filter::AlwaysFalse,
    }
}
