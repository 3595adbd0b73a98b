//! A `hello` that waits: the client says which state of the server it knows, and how long it would wait
//! for another one.
//!
//! Both go together; bad ones get MongoDB's codes. An answer may come at once where the state is of
//! another process, or never of itself where the server's state does not change: that is the server's
//! to know.

use model::bson::{Doc, ObjectId, ValueRef};
use model::number::Number;
use model::{Code, Error};
use std::time::Duration;

/// Nobody waits longer, whatever was asked for.
const WAIT_MAX: Duration = Duration::from_secs(60 * 60);

/// What a client that waits knows, and for how long it waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AwaitedHello {
    pub process_id: ObjectId,
    pub counter: i64,
    pub wait: Duration,
}

impl AwaitedHello {
    /// `None` if the command does not wait.
    pub fn parse(command: &str, body: Doc<'_>) -> Result<Option<Self>, Error> {
        let wrong_type = |field: &str, found: ValueRef<'_>, expected: &str| {
            let found = found.kind().name();
            Error::new(
                Code::TYPE_MISMATCH,
                format!(
                    "BSON field '{command}.{field}' is the wrong type '{found}', expected {expected}"
                ),
            )
        };
        let wait = match body.get("maxAwaitTimeMS") {
            None => None,
            Some(value) => {
                let numbers = "types '[long, int, decimal, double']";
                let number = Number::of(value);
                Some(number.ok_or_else(|| wrong_type("maxAwaitTimeMS", value, numbers))?)
            }
        };
        let known = match body.get("topologyVersion") {
            None => None,
            Some(ValueRef::Document(known)) => Some(known),
            Some(other) => return Err(wrong_type("topologyVersion", other, "type 'object'")),
        };
        let (known, wait) = match (known, wait) {
            (Some(known), Some(wait)) => (known, wait.to_f64()),
            (None, None) => return Ok(None),
            (Some(_), None) => {
                let message = "A request with a 'topologyVersion' must include 'maxAwaitTimeMS'";
                return Err(Error::location(31368, message));
            }
            (None, Some(_)) => {
                let message = "A request with 'maxAwaitTimeMS' must include a 'topologyVersion'";
                return Err(Error::location(31368, message));
            }
        };
        let (mut process_id, mut counter) = (None, None);
        for element in known.iter() {
            match (element.key(), element.value()) {
                ("processId", ValueRef::ObjectId(id)) => process_id = Some(id),
                ("counter", ValueRef::Int64(number)) => counter = Some(number),
                ("processId", other) => {
                    let field = "topologyVersion.processId";
                    return Err(wrong_type(field, other, "type 'objectId'"));
                }
                ("counter", other) => {
                    return Err(wrong_type("topologyVersion.counter", other, "type 'long'"));
                }
                (other, _) => {
                    return Err(Error::location(
                        40415,
                        format!(
                            "BSON field '{command}.topologyVersion.{other}' is an unknown field."
                        ),
                    ));
                }
            }
        }
        let missing = |field: &str| {
            Error::location(
                40414,
                format!(
                    "BSON field '{command}.topologyVersion.{field}' is missing but a required field"
                ),
            )
        };
        let process_id = process_id.ok_or_else(|| missing("processId"))?;
        let counter = counter.ok_or_else(|| missing("counter"))?;
        if wait.is_nan() || wait < 0.0 {
            return Err(Error::location(
                51024,
                format!("BSON field 'maxAwaitTimeMS' value must be >= 0, actual value '{wait}'"),
            ));
        }
        if counter < 0 {
            let message = "topologyVersion must have a non-negative counter";
            return Err(Error::location(31372, message));
        }
        Ok(Some(Self {
            process_id,
            counter,
            // As many milliseconds as there are whole ones; a float too large becomes the largest.
            wait: Duration::from_millis(wait as u64).min(WAIT_MAX),
        }))
    }
}
