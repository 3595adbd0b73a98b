//! `$dateFromParts`.

use super::super::node::{Evaluated, Frame, Node};
use super::super::parse::{Parser, object};
use super::super::table::Operator;
use super::calendar::{DAY_MS, day_number, iso_day_number};
use super::zone::zone_argument;
use model::bson::{Value, ValueRef};
use model::number::Number;
use model::{Code, Error};

const NATURAL: &[&str] = &["year", "month", "day"];
const ISO: &[&str] = &["isoWeekYear", "isoWeek", "isoDayOfWeek"];
const TIME: &[&str] = &["hour", "minute", "second", "millisecond"];

/// Arguments become `[iso?, three of the date, four of the time, timezone]`.
pub(in super::super) fn parse_from_parts(
    parser: &mut Parser<'_>,
    operator: &'static Operator,
    argument: ValueRef<'_>,
) -> Result<Node, Error> {
    let doc = object("$dateFromParts", argument, 40519)?;
    let mut natural = vec![Node::Absent; 3];
    let mut iso = vec![Node::Absent; 3];
    let mut time = vec![Node::Absent; 4];
    let mut zone = Node::Absent;
    for element in doc.iter() {
        let name = element.key();
        let node = parser.operand(element.value())?;
        let place = |names: &[&str]| names.iter().position(|known| *known == name);
        if let Some(at) = place(NATURAL) {
            natural[at] = node;
        } else if let Some(at) = place(ISO) {
            iso[at] = node;
        } else if let Some(at) = place(TIME) {
            time[at] = node;
        } else if name == "timezone" {
            zone = node;
        } else {
            return Err(Error::location(
                40518,
                format!("Unrecognized argument to $dateFromParts: {name}"),
            ));
        }
    }
    if natural[0].is_absent() && iso[0].is_absent() {
        return Err(Error::location(
            40516,
            "$dateFromParts requires either 'year' or 'isoWeekYear' to be present",
        ));
    }
    let given = |nodes: &[Node]| nodes.iter().any(|node| !node.is_absent());
    if !natural[0].is_absent() && given(&iso) {
        return Err(Error::location(
            40489,
            "$dateFromParts does not allow mixing natural dates with ISO dates",
        ));
    }
    if !iso[0].is_absent() && given(&natural) {
        return Err(Error::location(
            40525,
            "$dateFromParts does not allow mixing ISO dates with natural dates",
        ));
    }
    let is_iso = !iso[0].is_absent();
    let mut arguments = vec![Node::Constant(is_iso.into())];
    arguments.extend(if is_iso { iso } else { natural });
    arguments.extend(time);
    arguments.push(zone);
    parser.call(operator, arguments.into())
}

pub(in super::super) fn date_from_parts<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let iso = matches!(arguments[0], Node::Constant(Value::Boolean(true)));
    let names = if iso { ISO } else { NATURAL };
    let mut parts = [1, 1, 1, 0, 0, 0, 0];
    let Some(zone) = zone_argument(&arguments[8], frame)? else {
        return Ok(Evaluated::null());
    };
    for (at, name) in names.iter().chain(TIME).enumerate() {
        let node = &arguments[at + 1];
        if node.is_absent() {
            continue;
        }
        let value = node.evaluate(frame)?;
        if value.is_nullish() {
            return Ok(Evaluated::null());
        }
        let Some(number) = value
            .as_value()
            .and_then(Number::of)
            .and_then(Number::to_i64_exact)
        else {
            return Err(Error::location(
                40515,
                format!(
                    "'{name}' must evaluate to an integer, found {}",
                    value.type_name()
                ),
            ));
        };
        let limited = !matches!(*name, "year" | "isoWeekYear" | "second" | "millisecond");
        if limited && !(-32_768..=32_767).contains(&number) {
            return Err(Error::location(
                31034,
                format!("'{name}' must evaluate to a value in the range [-32768, 32767]"),
            ));
        }
        parts[at] = number;
    }
    let [first, second, third, hour, minute, seconds, millisecond] = parts;
    // Looked at last: whatever is wrong with another part is told before.
    if !(1..=9999).contains(&first) {
        return Err(Error::location(
            if iso { 31095 } else { 40523 },
            format!(
                "'{}' must evaluate to an integer in the range 1 to 9999, found {first}",
                names[0]
            ),
        ));
    }
    let day = if iso {
        iso_day_number(first, second, third)
    } else {
        let month = second - 1;
        day_number(first + month.div_euclid(12), month.rem_euclid(12) + 1, 1) + third - 1
    };
    let local = seconds
        .checked_add((hour * 60 + minute) * 60)
        .and_then(|seconds| seconds.checked_mul(1000))
        .and_then(|local| local.checked_add(millisecond))
        .and_then(|local| local.checked_add(day * DAY_MS))
        .ok_or_else(|| Error::new(Code::DURATION_OVERFLOW, "Overflow in $dateFromParts"))?;
    Ok(Evaluated::Owned(Value::DateTime(zone.utc_ms(local))))
}
