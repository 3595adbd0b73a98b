//! `$bucketAuto`: sorts all documents by their value and cuts the sequence into
//! buckets of about equal size; a value never lies in two of them.
//!
//! Left out: `granularity`, refused by name.

use super::bucket::is_path_or_expression;
use super::environment::Environment;
use super::group::parse_field;
use super::memory::exceeded;
use super::source::{Advance, Interruption, Source};
use super::state_limit::StateLimit;
use crate::accumulator::{Accumulator, State};
use crate::context::QueryContext;
use crate::expression::Expression;
use crate::sort::{SortPattern, Sorted, Sorter};
use model::bson::{Doc, DocBuf, DocWriter, Value, ValueRef};
use model::key::{Direction, KeyBuilder};
use model::number::Number;
use model::order::compare;
use model::{Code, Error};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct BucketAuto {
    group_by: Expression,
    buckets: u64,
    fields: Vec<(Box<str>, Accumulator)>,
}

impl BucketAuto {
    pub(super) fn parse(spec: ValueRef<'_>, context: &QueryContext) -> Result<Self, Error> {
        let ValueRef::Document(doc) = spec else {
            return Err(Error::location(
                40240,
                format!(
                    "The argument to $bucketAuto must be an object, but found type: {}",
                    spec.kind().name()
                ),
            ));
        };
        let (mut group_by, mut buckets, mut fields) = (None, None, None);
        for element in doc.iter() {
            let value = element.value();
            let kind = value.kind().name();
            match element.key() {
                "groupBy" if is_path_or_expression(value) => {
                    group_by = Some(Expression::parse(value, context)?);
                }
                "groupBy" => {
                    return Err(Error::location(
                        40239,
                        format!(
                            "The $bucketAuto 'groupBy' field must be defined as a $-prefixed path \
                             or an expression object, but found: {value:?}"
                        ),
                    ));
                }
                "buckets" => buckets = Some(bucket_count(value)?),
                "output" => {
                    let ValueRef::Document(output) = value else {
                        return Err(Error::location(
                            40244,
                            format!(
                                "The $bucketAuto 'output' field must be an object, but found \
                                 type: {kind}"
                            ),
                        ));
                    };
                    fields = Some(
                        output
                            .iter()
                            .map(|field| parse_field(field.key(), field.value(), context))
                            .collect::<Result<Vec<_>, Error>>()?,
                    );
                }
                "granularity" => return Err(refuse_granularity(value)),
                unknown => {
                    return Err(Error::location(
                        40245,
                        format!("Unrecognized option to $bucketAuto: {unknown}"),
                    ));
                }
            }
        }
        let (Some(group_by), Some(buckets)) = (group_by, buckets) else {
            return Err(Error::location(
                40246,
                "$bucketAuto requires 'groupBy' and 'buckets' to be specified",
            ));
        };
        let fields = match fields {
            Some(fields) => fields,
            None => {
                let one = DocWriter::new().with("$sum", 1).finish();
                vec![parse_field("count", ValueRef::from(&one), context)?]
            }
        };
        Ok(Self {
            group_by,
            buckets,
            fields,
        })
    }

    fn value(&self, doc: Doc<'_>) -> Result<Value, Error> {
        Ok(self.group_by.evaluate(doc)?.unwrap_or(Value::Null))
    }
}

fn bucket_count(value: ValueRef<'_>) -> Result<u64, Error> {
    let Some(number) = Number::of(value) else {
        return Err(Error::location(
            40241,
            format!(
                "The $bucketAuto 'buckets' field must be a numeric value, but found type: {}",
                value.kind().name()
            ),
        ));
    };
    let count = number
        .to_i64_exact()
        .and_then(|whole| i32::try_from(whole).ok())
        .ok_or_else(|| {
            Error::location(
                40242,
                format!(
                    "The $bucketAuto 'buckets' field must be representable as a 32-bit integer, \
                     but found {value:?}"
                ),
            )
        })?;
    if count <= 0 {
        return Err(Error::location(
            40243,
            format!("The $bucketAuto 'buckets' field must be greater than 0, but found: {count}"),
        ));
    }
    Ok(count as u64)
}

fn refuse_granularity(value: ValueRef<'_>) -> Error {
    let ValueRef::String(name) = value else {
        return Error::location(
            40261,
            format!(
                "The $bucketAuto 'granularity' field must be a string, but found type: {}",
                value.kind().name()
            ),
        );
    };
    match name {
        "R5" | "R10" | "R20" | "R40" | "R80" | "1-2-5" | "E6" | "E12" | "E24" | "E48" | "E96"
        | "E192" | "POWERSOF2" => Error::new(
            Code::COMMAND_NOT_SUPPORTED,
            "the 'granularity' of $bucketAuto is not supported yet",
        ),
        unknown => Error::location(40257, format!("Unknown rounding granularity '{unknown}'")),
    }
}

/// A `$bucketAuto` under way.
pub(super) struct Bucketing {
    input: Box<dyn Source>,
    stage: BucketAuto,
    interruption: Interruption,
    state_limit: StateLimit,
    sorter: Option<Sorter>,
    may_spill: bool,
    count: u64,
    output: Option<Ordered>,
    buckets_made: u64,
    current: DocBuf,
}

/// The sorted documents, one of them looked at ahead.
struct Ordered {
    sorted: Sorted,
    ahead: Option<(Value, DocBuf)>,
}

impl Ordered {
    fn next(&mut self, stage: &BucketAuto) -> Result<Option<(Value, DocBuf)>, Error> {
        let next = match self.sorted.next().transpose()? {
            Some(doc) => Some((stage.value(doc.as_doc())?, doc)),
            None => None,
        };
        Ok(std::mem::replace(&mut self.ahead, next))
    }
}

impl Bucketing {
    pub(super) fn new(
        input: Box<dyn Source>,
        stage: BucketAuto,
        environment: &Arc<dyn Environment>,
    ) -> Result<Self, Error> {
        let mut sorter = Sorter::new(SortPattern::parse(Doc::EMPTY)?, None)
            .with_memory_limit(environment.memory_bytes_max());
        let spill = environment.spill();
        let may_spill = spill.is_some();
        if let Some(spill) = spill {
            sorter = sorter.with_spill(spill);
        }
        Ok(Self {
            input,
            stage,
            interruption: Interruption::new(environment),
            state_limit: StateLimit::default(),
            sorter: Some(sorter),
            may_spill,
            count: 0,
            output: None,
            buckets_made: 0,
            current: DocBuf::new(),
        })
    }

    /// One bucket: about its share of the documents, and all that equal its last.
    fn next_bucket(&mut self) -> Result<Option<DocBuf>, Error> {
        let Some(output) = &mut self.output else {
            return Ok(None);
        };
        if self.buckets_made >= self.stage.buckets {
            return Ok(None);
        }
        let Some((first, doc)) = output.next(&self.stage)? else {
            return Ok(None);
        };
        self.buckets_made += 1;
        let is_last = self.buckets_made == self.stage.buckets;
        let share = (self.count as f64 / self.stage.buckets as f64)
            .round()
            .max(1.0) as u64;
        let mut states = self
            .stage
            .fields
            .iter()
            .map(|(_, accumulator)| accumulator.start(Doc::EMPTY))
            .collect::<Result<Vec<State>, Error>>()?;
        let (interruption, limit) = (&mut self.interruption, self.state_limit);
        let mut add = |doc: &DocBuf| -> Result<(), Error> {
            interruption.step()?;
            for (field, state) in self.stage.fields.iter().zip(&mut states) {
                field.1.add(state, doc.as_doc())?;
                limit.check(field, state)?;
            }
            Ok(())
        };
        add(&doc)?;
        let mut taken = 1;
        let mut last = first.clone();
        while let Some((ahead, _)) = &output.ahead {
            let equal = compare(ahead.as_ref(), last.as_ref()).is_eq();
            if taken >= share && !is_last && !equal {
                break;
            }
            let Some((value, doc)) = output.next(&self.stage)? else {
                break;
            };
            add(&doc)?;
            taken += 1;
            last = value;
        }
        // A bucket ends where the next begins; the last one with its last value.
        let upper = output.ahead.as_ref().map_or(&last, |(value, _)| value);
        let mut writer = DocWriter::new();
        writer
            .begin_document("_id")
            .append("min", &first)
            .append("max", upper)
            .end();
        for ((name, _), state) in self.stage.fields.iter().zip(states) {
            writer.append(name, &state.finish());
        }
        Ok(Some(writer.finish()))
    }
}

impl Source for Bucketing {
    fn advance(&mut self) -> Result<Advance, Error> {
        while let Some(sorter) = &mut self.sorter {
            match self.input.advance()? {
                Advance::Document => {
                    let mut key = KeyBuilder::new();
                    let value = self.stage.value(self.input.current())?;
                    key.push(value.as_ref(), Direction::Ascending);
                    let pushed = sorter.push_with_key(key.finish().0, self.input.take());
                    if !self.may_spill && pushed.is_err() {
                        return Err(exceeded("$bucketAuto"));
                    }
                    pushed?;
                    self.count += 1;
                    self.interruption.step()?;
                }
                Advance::Paused => return Ok(Advance::Paused),
                Advance::End => {
                    if let Some(sorter) = self.sorter.take() {
                        let mut ordered = Ordered {
                            sorted: sorter.finish()?,
                            ahead: None,
                        };
                        ordered.next(&self.stage)?;
                        self.output = Some(ordered);
                    }
                }
            }
        }
        match self.next_bucket()? {
            Some(bucket) => {
                self.current = bucket;
                Ok(Advance::Document)
            }
            None => Ok(Advance::End),
        }
    }

    fn current(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn take(&mut self) -> DocBuf {
        std::mem::take(&mut self.current)
    }
}
