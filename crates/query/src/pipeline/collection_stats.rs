//! `$collStats` as data: which figures of a collection are asked for. The environment has them.

use super::parse::{Scope, required_collection, unknown_field, wrong_type};
use super::stage::Stage;
use model::bson::{Doc, ValueRef};
use model::number::Number;
use model::{Code, Error};

/// The sections of the one document that `$collStats` gives.
#[derive(Clone, Debug, Default)]
pub struct CollectionStats {
    pub latency: Option<LatencyStats>,
    pub storage: Option<StorageStats>,
    pub count: bool,
    pub query_execution: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct LatencyStats {
    pub histograms: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct StorageStats {
    /// What sizes are divided by.
    pub scale: u64,
}

impl CollectionStats {
    fn parse(doc: Doc<'_>) -> Result<Self, Error> {
        let mut stats = Self::default();
        for section in doc.iter() {
            let name = section.key();
            if !matches!(
                name,
                "count" | "storageStats" | "latencyStats" | "queryExecStats"
            ) {
                return Err(unknown_field("$collStats", name));
            }
            let options = match section.value() {
                ValueRef::Document(options) => options,
                ValueRef::Null | ValueRef::Undefined => continue,
                other => return Err(wrong_type("$collStats", name, other, "object")),
            };
            match name {
                "storageStats" => stats.storage = Some(StorageStats::parse(options)?),
                "latencyStats" => stats.latency = Some(LatencyStats::parse(options)?),
                "count" => stats.count = without_options(options)?,
                _ => stats.query_execution = without_options(options)?,
            }
        }
        Ok(stats)
    }
}

fn without_options(options: Doc<'_>) -> Result<bool, Error> {
    match options.is_empty() {
        true => Ok(true),
        false => Err(Error::location(
            31170,
            format!("expected an empty object, but got {options:?}"),
        )),
    }
}

impl StorageStats {
    /// Options that are not known are let through, as MongoDB does.
    fn parse(options: Doc<'_>) -> Result<Self, Error> {
        let mut scale = 1;
        for option in options.iter() {
            match (option.key(), option.value()) {
                ("scale", ValueRef::Null | ValueRef::Undefined) => {}
                ("scale", value) => scale = parse_scale(value)?,
                (name @ ("verbose" | "waitForLock" | "numericOnly"), value) => {
                    flag(name, value)?;
                }
                _ => {}
            }
        }
        Ok(Self { scale })
    }
}

impl LatencyStats {
    fn parse(options: Doc<'_>) -> Result<Self, Error> {
        let mut histograms = false;
        for option in options.iter() {
            match option.key() {
                "histograms" => histograms = flag("histograms", option.value())?,
                unknown => return Err(unknown_field("$collStats.latencyStats", unknown)),
            }
        }
        Ok(Self { histograms })
    }
}

fn parse_scale(value: ValueRef<'_>) -> Result<u64, Error> {
    let Some(number) = Number::of(value).map(Number::to_f64) else {
        return Err(Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "BSON field '$collStats.storageStats.scale' is the wrong type '{}', expected \
                 types '[long, int, decimal, double']",
                value.kind().name()
            ),
        ));
    };
    let scale = number as i32;
    if scale < 1 {
        return Err(Error::location(
            51024,
            format!("BSON field 'scale' value must be >= 1, actual value '{scale}'"),
        ));
    }
    Ok(scale.unsigned_abs().into())
}

fn flag(name: &str, value: ValueRef<'_>) -> Result<bool, Error> {
    match value {
        ValueRef::Boolean(flag) => Ok(flag),
        other => Err(Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "Field '{name}' should be a boolean value, but found: {}",
                other.kind().name()
            ),
        )),
    }
}

pub(super) fn parse_collection_stats(
    spec: ValueRef<'_>,
    scope: &Scope<'_>,
) -> Result<Stage, Error> {
    let ValueRef::Document(doc) = spec else {
        return Err(Error::location(
            5447000,
            format!("$collStats must take a nested object but found: $collStats: {spec:?}"),
        ));
    };
    let stats = CollectionStats::parse(doc)?;
    let namespace = required_collection("$collStats", scope)?;
    Ok(Stage::CollectionStats(namespace.clone(), stats))
}
