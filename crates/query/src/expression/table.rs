//! All operators by name: how their arguments are written and what computes them.

use super::node::{Evaluated, Frame, Node};
use super::parse::{Parser, conversion, literal, meta, no_arguments, whole_operand};
use super::{
    arithmetic, array, array_order, boolean, comparison, conditional, convert, date, logarithm,
    object, range, regex, rounding, scope, set, size, statistics, string, substring, trigonometry,
    trim,
};
use model::Error;
use model::bson::ValueRef;
use std::fmt;

pub(super) type Evaluate = for<'a> fn(&'a [Node], &mut Frame<'a>) -> Result<Evaluated<'a>, Error>;
pub(super) type Parse = fn(&mut Parser<'_>, &'static Operator, ValueRef<'_>) -> Result<Node, Error>;

pub(super) struct Operator {
    pub(super) name: &'static str,
    pub(super) parameters: Parameters,
    pub(super) evaluate: Evaluate,
    /// Whether constant arguments are folded when parsed; the real server does
    /// not do so for all, and then an error waits for the first document.
    pub(super) folds: bool,
}

impl Operator {
    /// Whether arguments may be regrouped and reordered.
    pub(super) fn is_commutative(&self) -> bool {
        is_commutative(self.name)
    }
}

/// Whether an operator may take its arguments regrouped and in any order.
pub fn is_commutative(name: &str) -> bool {
    matches!(
        name,
        "$add" | "$multiply" | "$setUnion" | "$setIntersection" | "$min" | "$max" | "$sum"
    )
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// How arguments are written. The numbers are MongoDB's codes for each mistake.
pub(super) enum Parameters {
    Exactly(usize),
    Between(usize, usize),
    AtLeast(usize, i32),
    Any,
    Named {
        not_object: i32,
        unknown: i32,
        /// In the order of the evaluated arguments; with a code if required.
        names: &'static [(&'static str, Option<i32>)],
    },
    Special(Parse),
}
use Parameters::{Any, AtLeast, Between, Exactly, Named, Special};

pub(super) fn find(name: &str) -> Option<&'static Operator> {
    OPERATORS
        .binary_search_by(|operator| operator.name.cmp(name))
        .ok()
        .map(|at| &OPERATORS[at])
}

/// Operators of MongoDB that are not here, and why.
pub(super) fn refused(name: &str) -> Option<&'static str> {
    match name {
        "$function" => Some("needs server-side JavaScript, which is not supported"),
        _ => None,
    }
}

/// For operators that become a node of their own when parsed.
fn never<'a>(_: &'a [Node], _: &mut Frame<'a>) -> Result<Evaluated<'a>, Error> {
    Err(Error::new(
        model::Code::INTERNAL_ERROR,
        "an operator without evaluation was called",
    ))
}

const fn folds(name: &str) -> bool {
    !matches!(
        name.as_bytes(),
        b"$rand" | b"$firstN" | b"$lastN" | b"$maxN" | b"$minN" | b"$replaceOne" | b"$replaceAll"
    )
}

const fn named(
    not_object: i32,
    unknown: i32,
    names: &'static [(&'static str, Option<i32>)],
) -> Parameters {
    Named {
        not_object,
        unknown,
        names,
    }
}

const TRIM: Parameters = named(50696, 50694, &[("input", Some(50695)), ("chars", None)]);
const REPLACE: Parameters = named(
    51751,
    51750,
    &[
        ("input", Some(51749)),
        ("find", Some(51748)),
        ("replacement", Some(51747)),
    ],
);
const DATE_ADD: Parameters = named(
    5166400,
    5166401,
    &[
        ("startDate", Some(5166402)),
        ("unit", Some(5166402)),
        ("amount", Some(5166402)),
        ("timezone", None),
    ],
);
const N_FIRST: Parameters = named(5787801, 5787901, N_NAMES);
const N_LARGEST: Parameters = named(5787900, 5787901, N_NAMES);
const N_NAMES: &[(&str, Option<i32>)] = &[("n", Some(5787906)), ("input", Some(5787907))];

macro_rules! operators {
    ($($name:literal $parameters:expr => $evaluate:expr;)*) => {
        /// Sorted by name, for `find`.
        static OPERATORS: &[Operator] = &[$(Operator {
            name: $name,
            parameters: $parameters,
            evaluate: $evaluate,
            folds: folds($name),
        }),*];
    };
}

operators! {
    "$_internalBsonBytes" Special(whole_operand) => convert::bson_bytes;
    "$abs" Exactly(1) => rounding::abs;
    "$acos" Exactly(1) => trigonometry::acos;
    "$acosh" Exactly(1) => trigonometry::acosh;
    "$add" Any => arithmetic::add;
    "$allElementsTrue" Exactly(1) => set::all_elements_true;
    "$and" Any => boolean::and;
    "$anyElementTrue" Exactly(1) => set::any_element_true;
    "$arrayElemAt" Exactly(2) => array::element_at;
    "$arrayToObject" Exactly(1) => object::array_to_object;
    "$asin" Exactly(1) => trigonometry::asin;
    "$asinh" Exactly(1) => trigonometry::asinh;
    "$atan" Exactly(1) => trigonometry::atan;
    "$atan2" Exactly(2) => trigonometry::atan2;
    "$atanh" Exactly(1) => trigonometry::atanh;
    "$avg" Any => statistics::avg;
    "$binarySize" Exactly(1) => size::binary_size;
    "$bsonSize" Exactly(1) => size::bson_size;
    "$ceil" Exactly(1) => rounding::ceil;
    "$cmp" Exactly(2) => comparison::cmp;
    "$concat" Any => string::concat;
    "$concatArrays" Any => array::concat_arrays;
    "$cond" Special(conditional::parse_cond) => conditional::cond;
    "$const" Special(literal) => never;
    "$convert" named(9, 9, &[("input", Some(9)), ("to", Some(9)), ("onError", None), ("onNull", None)]) => convert::convert;
    "$cos" Exactly(1) => trigonometry::cos;
    "$cosh" Exactly(1) => trigonometry::cosh;
    "$dateAdd" DATE_ADD => date::date_add;
    "$dateDiff" named(5166301, 5166302, &[
        ("startDate", Some(5166303)),
        ("endDate", Some(5166304)),
        ("unit", Some(5166305)),
        ("timezone", None),
        ("startOfWeek", None),
    ]) => date::date_diff;
    "$dateFromParts" Special(date::parse_from_parts) => date::date_from_parts;
    "$dateFromString" named(40540, 40541, &[
        ("dateString", Some(40542)),
        ("format", None),
        ("timezone", None),
        ("onError", None),
        ("onNull", None),
    ]) => date::date_from_string;
    "$dateSubtract" DATE_ADD => date::date_subtract;
    "$dateToParts" named(40524, 40520, &[
        ("date", Some(40522)),
        ("timezone", None),
        ("iso8601", None),
    ]) => date::date_to_parts;
    "$dateToString" named(18629, 18534, &[
        ("date", Some(18628)),
        ("format", None),
        ("timezone", None),
        ("onNull", None),
    ]) => date::date_to_string;
    "$dateTrunc" named(5439007, 5439008, &[
        ("date", Some(5439009)),
        ("unit", Some(5439010)),
        ("binSize", None),
        ("timezone", None),
        ("startOfWeek", None),
    ]) => date::date_trunc;
    "$dayOfMonth" Special(date::parse_part) => date::day_of_month;
    "$dayOfWeek" Special(date::parse_part) => date::day_of_week;
    "$dayOfYear" Special(date::parse_part) => date::day_of_year;
    "$degreesToRadians" Exactly(1) => trigonometry::degrees_to_radians;
    "$divide" Exactly(2) => arithmetic::divide;
    "$eq" Exactly(2) => comparison::eq;
    "$exp" Exactly(1) => logarithm::exp;
    "$filter" Special(scope::parse_filter) => never;
    "$first" Exactly(1) => array::first;
    "$firstN" N_FIRST => array_order::first_n;
    "$floor" Exactly(1) => rounding::floor;
    "$getField" Special(object::parse_get_field) => object::get_field;
    "$gt" Exactly(2) => comparison::gt;
    "$gte" Exactly(2) => comparison::gte;
    "$hour" Special(date::parse_part) => date::hour;
    "$ifNull" AtLeast(2, 1257300) => conditional::if_null;
    "$in" Exactly(2) => array::is_in;
    "$indexOfArray" Between(2, 4) => array::index_of_array;
    "$indexOfBytes" Between(2, 4) => substring::index_of_bytes;
    "$indexOfCP" Between(2, 4) => substring::index_of_code_points;
    "$isArray" Exactly(1) => array::is_array;
    "$isNumber" Exactly(1) => convert::is_number;
    "$isoDayOfWeek" Special(date::parse_part) => date::iso_day_of_week;
    "$isoWeek" Special(date::parse_part) => date::iso_week;
    "$isoWeekYear" Special(date::parse_part) => date::iso_week_year;
    "$last" Exactly(1) => array::last;
    "$lastN" N_FIRST => array_order::last_n;
    "$let" Special(scope::parse_let) => never;
    "$literal" Special(literal) => never;
    "$ln" Exactly(1) => logarithm::ln;
    "$log" Exactly(2) => logarithm::log;
    "$log10" Exactly(1) => logarithm::log10;
    "$lt" Exactly(2) => comparison::lt;
    "$lte" Exactly(2) => comparison::lte;
    "$ltrim" TRIM => trim::ltrim;
    "$map" Special(scope::parse_map) => never;
    "$max" Any => statistics::max;
    "$maxN" N_LARGEST => array_order::max_n;
    "$mergeObjects" Any => object::merge_objects;
    "$meta" Special(meta) => never;
    "$millisecond" Special(date::parse_part) => date::millisecond;
    "$min" Any => statistics::min;
    "$minN" N_LARGEST => array_order::min_n;
    "$minute" Special(date::parse_part) => date::minute;
    "$mod" Exactly(2) => arithmetic::modulo;
    "$month" Special(date::parse_part) => date::month;
    "$multiply" Any => arithmetic::multiply;
    "$ne" Exactly(2) => comparison::ne;
    "$not" Exactly(1) => boolean::not;
    "$objectToArray" Exactly(1) => object::object_to_array;
    "$or" Any => boolean::or;
    "$pow" Exactly(2) => logarithm::pow;
    "$radiansToDegrees" Exactly(1) => trigonometry::radians_to_degrees;
    "$rand" Special(no_arguments) => arithmetic::rand;
    "$range" Between(2, 3) => range::range;
    "$reduce" Special(scope::parse_reduce) => never;
    "$regexFind" Special(regex::parse) => regex::find;
    "$regexFindAll" Special(regex::parse) => regex::find_all;
    "$regexMatch" Special(regex::parse) => regex::is_match;
    "$replaceAll" REPLACE => string::replace_all;
    "$replaceOne" REPLACE => string::replace_one;
    "$reverseArray" Exactly(1) => array::reverse;
    "$round" Between(1, 2) => rounding::round;
    "$rtrim" TRIM => trim::rtrim;
    "$second" Special(date::parse_part) => date::second;
    "$setDifference" Exactly(2) => set::difference;
    "$setEquals" AtLeast(2, 17045) => set::equals;
    "$setField" Special(object::parse_set_field) => object::set_field;
    "$setIntersection" Any => set::intersection;
    "$setIsSubset" Exactly(2) => set::is_subset;
    "$setUnion" Any => set::union;
    "$sin" Exactly(1) => trigonometry::sin;
    "$sinh" Exactly(1) => trigonometry::sinh;
    "$size" Exactly(1) => array::size;
    "$slice" Between(2, 3) => range::slice;
    "$sortArray" Special(array_order::parse_sort_array) => array_order::sort_array;
    "$split" Exactly(2) => string::split;
    "$sqrt" Exactly(1) => logarithm::sqrt;
    "$stdDevPop" Any => statistics::std_dev_pop;
    "$stdDevSamp" Any => statistics::std_dev_samp;
    "$strLenBytes" Exactly(1) => size::length_bytes;
    "$strLenCP" Exactly(1) => size::length_code_points;
    "$strcasecmp" Exactly(2) => string::compare_ignoring_case;
    "$substr" Exactly(3) => substring::substr_bytes;
    "$substrBytes" Exactly(3) => substring::substr_bytes;
    "$substrCP" Exactly(3) => substring::substr_code_points;
    "$subtract" Exactly(2) => arithmetic::subtract;
    "$sum" Any => statistics::sum;
    "$switch" Special(conditional::parse_switch) => conditional::switch;
    "$tan" Exactly(1) => trigonometry::tan;
    "$tanh" Exactly(1) => trigonometry::tanh;
    "$toBool" Special(conversion) => convert::to_bool;
    "$toDate" Special(conversion) => convert::to_date;
    "$toDecimal" Special(conversion) => convert::to_decimal;
    "$toDouble" Special(conversion) => convert::to_double;
    "$toHashedIndexKey" Special(whole_operand) => convert::to_hashed_index_key;
    "$toInt" Special(conversion) => convert::to_int;
    "$toLong" Special(conversion) => convert::to_long;
    "$toLower" Exactly(1) => string::to_lower;
    "$toObjectId" Special(conversion) => convert::to_object_id;
    "$toString" Special(conversion) => convert::to_string;
    "$toUpper" Exactly(1) => string::to_upper;
    "$trim" TRIM => trim::trim;
    "$trunc" Between(1, 2) => rounding::trunc;
    "$tsIncrement" Exactly(1) => size::timestamp_increment;
    "$tsSecond" Exactly(1) => size::timestamp_second;
    "$type" Exactly(1) => convert::type_of;
    "$unsetField" Special(object::parse_unset_field) => object::set_field;
    "$week" Special(date::parse_part) => date::week;
    "$year" Special(date::parse_part) => date::year;
    "$zip" Special(array_order::parse_zip) => array_order::zip;
}

#[cfg(test)]
mod tests {
    use super::OPERATORS;

    #[test]
    fn the_table_is_sorted() {
        assert!(OPERATORS.windows(2).all(|pair| pair[0].name < pair[1].name));
    }
}
