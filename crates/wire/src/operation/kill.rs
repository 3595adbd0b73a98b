//! The operation that `killOp` names.

use model::bson::Doc;
use model::number::Number;
use model::{Code, Error};

/// The id of an operation of this process.
pub fn kill_target(command: Doc<'_>) -> Result<i32, Error> {
    let value = command
        .get("op")
        .ok_or_else(|| Error::new(Code::NO_SUCH_KEY, "Missing expected field \"op\""))?;
    let number = Number::of(value).ok_or_else(|| {
        Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "Expected field \"op\" to have numeric type, but found {}",
                value.kind().name()
            ),
        )
    })?;
    let id = number.to_i64_exact().ok_or_else(|| {
        Error::bad_value(format!(
            "Expected field \"op\" to have a value exactly representable as a 64-bit integer, but \
             found op: {}",
            model::text::value_quoted(value)
        ))
    })?;
    // Ids are shown as signed and may come back as unsigned.
    let narrow = i32::try_from(id).or_else(|_| u32::try_from(id).map(u32::cast_signed));
    narrow.map_err(|_| {
        let message = format!("invalid op : {id}. Op ID cannot be represented with 32 bits");
        Error::location(26823, message)
    })
}
