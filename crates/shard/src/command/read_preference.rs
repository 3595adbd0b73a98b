//! A read preference, as far as it concerns the member that is asked: whether it may be another one than
//! the primary. Which member is asked is the driver's choice, by tags and staleness, and here these are
//! only checked.

use model::bson::{Doc, ValueRef};
use model::number::Number;
use model::{Code, Error};

/// The least staleness that can be asked for, in seconds: less could not be told from the time
/// between two heartbeats.
const STALENESS_MIN_S: f64 = 90.0;

/// Whether a read preference accepts a member that is not the primary.
pub(crate) fn allows_secondaries(preference: Doc<'_>) -> Result<bool, Error> {
    let mode = mode(preference)?;
    let is_primary = mode == "primary";
    check_tags(preference, is_primary)?;
    check_staleness(preference, is_primary)?;
    check_hedge(preference, is_primary)?;
    Ok(!is_primary)
}

fn mode(preference: Doc<'_>) -> Result<&str, Error> {
    match preference.get("mode") {
        Some(ValueRef::String(
            mode
            @ ("primary" | "primaryPreferred" | "secondary" | "secondaryPreferred" | "nearest"),
        )) => Ok(mode),
        Some(ValueRef::String(other)) => Err(Error::bad_value(format!(
            "Could not parse $readPreference mode '{other}'. Only the modes 'primary', \
             'primaryPreferred', 'secondary', 'secondaryPreferred', and 'nearest' are supported."
        ))),
        Some(other) => Err(wrong_type("mode", "string", other)),
        None => Err(Error::new(
            Code::NO_SUCH_KEY,
            "Missing expected field \"mode\"",
        )),
    }
}

fn check_tags(preference: Doc<'_>, is_primary: bool) -> Result<(), Error> {
    let tags = match preference.get("tags") {
        None => return Ok(()),
        Some(ValueRef::Array(tags)) => tags,
        Some(other) => return Err(wrong_type("tags", "array", other)),
    };
    let are_empty = tags
        .iter()
        .all(|set| matches!(set, ValueRef::Document(set) if set.is_empty()));
    match is_primary && !are_empty {
        true => Err(Error::bad_value(
            "Only empty tags are allowed with primary read preference",
        )),
        false => Ok(()),
    }
}

fn check_staleness(preference: Doc<'_>, is_primary: bool) -> Result<(), Error> {
    let Some(value) = preference.get("maxStalenessSeconds") else {
        return Ok(());
    };
    let Some(seconds) = Number::of(value).map(Number::to_f64) else {
        return Err(Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "Expected field \"maxStalenessSeconds\" to have numeric type, but found {}",
                value.kind().name()
            ),
        ));
    };
    if seconds.is_nan() || seconds < 0.0 {
        return Err(Error::bad_value(
            "maxStalenessSeconds must be a non-negative integer",
        ));
    }
    match seconds >= 1.0 {
        true if is_primary => Err(Error::bad_value(
            "maxStalenessSeconds can not be set for the primary mode",
        )),
        true if seconds < STALENESS_MIN_S => Err(Error::new(
            Code::MAX_STALENESS_OUT_OF_RANGE,
            "maxStalenessSeconds value can not be less than 90",
        )),
        true | false => Ok(()),
    }
}

fn check_hedge(preference: Doc<'_>, is_primary: bool) -> Result<(), Error> {
    match preference.get("hedge") {
        None => Ok(()),
        Some(ValueRef::Document(hedge)) => {
            let is_enabled = hedge.get("enabled") != Some(ValueRef::Boolean(false));
            match is_primary && is_enabled {
                true => Err(Error::new(
                    Code::INVALID_OPTIONS,
                    "cannot enable hedging for $readPreference mode \"primaryOnly\"",
                )),
                false => Ok(()),
            }
        }
        Some(other) => Err(Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "hedge field must be of type object if provided; found {}",
                other.kind().name()
            ),
        )),
    }
}

fn wrong_type(name: &str, expected: &str, found: ValueRef<'_>) -> Error {
    Error::new(
        Code::TYPE_MISMATCH,
        format!(
            "\"{name}\" had the wrong type. Expected {expected}, found {}",
            found.kind().name()
        ),
    )
}
