//! `$year` and its like, `$dateToParts`.

use super::super::node::{Evaluated, Frame, Node};
use super::super::parse::Parser;
use super::super::table::Operator;
use super::calendar::Civil;
use super::expect_date;
use super::zone::zone_argument;
use model::bson::{DocWriter, ValueRef};
use model::{Code, Error};

/// A date by itself, in an array of one, or `{date, timezone}`.
pub(in super::super) fn parse_part(
    parser: &mut Parser<'_>,
    operator: &'static Operator,
    argument: ValueRef<'_>,
) -> Result<Node, Error> {
    let name = operator.name;
    let arguments: Box<[Node]> = match argument {
        ValueRef::Document(doc)
            if !doc
                .first()
                .is_some_and(|first| first.key().starts_with('$')) =>
        {
            let (mut date, mut zone) = (None, Node::Absent);
            for element in doc.iter() {
                match element.key() {
                    "date" => date = Some(parser.operand(element.value())?),
                    "timezone" => zone = parser.operand(element.value())?,
                    other => {
                        return Err(Error::location(
                            40535,
                            format!("unrecognized option to {name}: \"{other}\""),
                        ));
                    }
                }
            }
            let Some(date) = date else {
                return Err(Error::location(
                    40539,
                    format!("missing 'date' argument to {name}, provided: {doc:?}"),
                ));
            };
            Box::new([date, zone])
        }
        ValueRef::Array(array) => {
            let mut values = array.iter();
            let (Some(date), None) = (values.next(), values.next()) else {
                return Err(Error::location(
                    40536,
                    format!(
                        "{name} accepts exactly one argument if given an array, but was given {}",
                        array.count()
                    ),
                ));
            };
            Box::new([parser.operand(date)?, Node::Absent])
        }
        date => Box::new([parser.operand(date)?, Node::Absent]),
    };
    parser.call(operator, arguments)
}

fn part<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
    read: fn(&Civil) -> i64,
) -> Result<Evaluated<'a>, Error> {
    let Some(civil) = civil(arguments, frame)? else {
        return Ok(Evaluated::null());
    };
    Ok((read(&civil) as i32).into())
}

fn civil<'a>(arguments: &'a [Node], frame: &mut Frame<'a>) -> Result<Option<Civil>, Error> {
    let date = arguments[0].evaluate(frame)?;
    if date.is_nullish() {
        return Ok(None);
    }
    let millis = expect_date(&date)?;
    let zone = zone_argument(&arguments[1], frame).map_err(|mut error| {
        // These operators have a code of their own for a zone that is no string.
        if error.code == Code(40517) {
            error.code = Code(40533);
        }
        error
    })?;
    Ok(zone.map(|zone| zone.civil(millis)))
}

macro_rules! date_parts {
    ($($name:ident => $read:expr;)*) => {$(
        pub(in super::super) fn $name<'a>(
            arguments: &'a [Node],
            frame: &mut Frame<'a>,
        ) -> Result<Evaluated<'a>, Error> {
            part(arguments, frame, $read)
        }
    )*};
}

date_parts! {
    year => |civil| civil.year;
    month => |civil| civil.month;
    day_of_month => |civil| civil.day;
    hour => |civil| civil.hour;
    minute => |civil| civil.minute;
    second => |civil| civil.second;
    millisecond => |civil| civil.millisecond;
    day_of_year => Civil::day_of_year;
    day_of_week => |civil| civil.weekday() + 1;
    week => Civil::week;
    iso_day_of_week => Civil::iso_weekday;
    iso_week => |civil| civil.iso_week().0;
}

pub(in super::super) fn iso_week_year<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    Ok(match civil(arguments, frame)? {
        // The one part that is an int64.
        Some(civil) => civil.iso_week().1.into(),
        None => Evaluated::null(),
    })
}

pub(in super::super) fn date_to_parts<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let date = arguments[0].evaluate(frame)?;
    let Some(zone) = zone_argument(&arguments[1], frame)? else {
        return Ok(Evaluated::null());
    };
    let iso = match &arguments[2] {
        Node::Absent => false,
        node => {
            let flag = node.evaluate(frame)?;
            match flag.as_value() {
                None | Some(ValueRef::Null | ValueRef::Undefined) => return Ok(Evaluated::null()),
                Some(ValueRef::Boolean(flag)) => flag,
                Some(other) => {
                    return Err(Error::location(
                        40521,
                        format!(
                            "iso8601 must evaluate to a bool, found {}",
                            other.kind().name()
                        ),
                    ));
                }
            }
        }
    };
    if date.is_nullish() {
        return Ok(Evaluated::null());
    }
    let civil = zone.civil(expect_date(&date)?);
    let mut writer = DocWriter::new();
    if iso {
        let (week, year) = civil.iso_week();
        writer.append("isoWeekYear", year as i32);
        writer.append("isoWeek", week as i32);
        writer.append("isoDayOfWeek", civil.iso_weekday() as i32);
    } else {
        writer.append("year", civil.year as i32);
        writer.append("month", civil.month as i32);
        writer.append("day", civil.day as i32);
    }
    writer.append("hour", civil.hour as i32);
    writer.append("minute", civil.minute as i32);
    writer.append("second", civil.second as i32);
    writer.append("millisecond", civil.millisecond as i32);
    Ok(writer.finish().into())
}
