//! Tables whose right-hand side was answered by a real `mongod` 6.0.5.

use super::{Decimal, Rounding};

fn decimal(text: &str) -> Decimal {
    Decimal::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[track_caller]
fn check(result: Decimal, expected: &str) {
    assert_eq!(result.to_string(), expected);
    assert_eq!(Decimal::from_bits(result.to_bits()), result);
}

#[test]
fn parses_and_prints_as_the_server_does() {
    for (text, printed) in [
        ("1E+3", "1E+3"),
        ("0E-10", "0E-10"),
        ("1.00", "1.00"),
        ("1e400", "1E+400"),
        (".5", "0.5"),
        ("5.", "5"),
        ("+5", "5"),
        ("0.00001", "0.00001"),
        ("0.000000001", "1E-9"),
        ("-nan", "NaN"),
        ("inf", "Infinity"),
        ("-Infinity", "-Infinity"),
        ("-0", "-0"),
        ("1e+6144", "1.000000000000000000000000000000000E+6144"),
        ("0e7000", "0E+6111"),
        ("0e-99999999999", "0E-6176"),
        ("10E-6177", "1E-6176"),
        (
            "1234567890123456789012345678901234567890",
            "1.234567890123456789012345678901234E+39",
        ),
        ("0000000000000000000000000000000000000000000001", "1"),
        (
            "0.00000000000000000000000000000000000000000000100",
            "1.00E-45",
        ),
    ] {
        check(decimal(text), printed);
    }
    for text in [
        "",
        " 1",
        "1E7000",
        "0x1",
        "1E-6180",
        "1e+6145",
        "10e+6144",
        "1e",
        "snan",
        "infinit",
        "1_0",
        "12E-6177",
        "1e-99999999999",
        ".",
        "-",
        "e5",
        "1.2.3",
        "é",
    ] {
        assert!(Decimal::parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn doubles_become_decimals() {
    for (double, rounded) in [
        (0.1, "0.100000000000000"),
        (1e300, "1.00000000000000E+300"),
        (1.0, "1.00000000000000"),
        (1.0 / 3.0, "0.333333333333333"),
        (123456789012345678.0, "1.23456789012346E+17"),
        (5e-324, "4.94065645841247E-324"),
        (-0.0, "-0"),
        (100.0, "100.000000000000"),
        (f64::NAN, "NaN"),
        (f64::INFINITY, "Infinity"),
    ] {
        check(Decimal::from_f64(double), rounded);
    }
    check(
        Decimal::from_f64_exact(0.1),
        "0.1000000000000000055511151231257827",
    );
    check(Decimal::from_f64_exact(1e22), "1E+22");
}

#[test]
fn computes_as_the_server_does() {
    type Binary = fn(Decimal, Decimal) -> Decimal;
    for (operation, left, right, expected) in [
        (Decimal::add as Binary, "1E+3", "1", "1001"),
        (Decimal::add, "9.99E+6144", "9.99E+6144", "Infinity"),
        (Decimal::add, "Infinity", "-Infinity", "NaN"),
        (Decimal::add, "NaN", "1", "NaN"),
        (Decimal::subtract, "1.10", "1.1", "0.00"),
        (Decimal::multiply, "2.0", "3.00", "6.000"),
        (Decimal::multiply, "1E-6000", "1E-6000", "0E-6176"),
        (
            Decimal::divide,
            "1",
            "3",
            "0.3333333333333333333333333333333333",
        ),
        (Decimal::divide, "6.00", "3", "2.00"),
        (Decimal::divide, "1", "8", "0.125"),
        (Decimal::divide, "100", "10", "10"),
        (Decimal::remainder, "-7", "2.5", "-2.0"),
        (Decimal::remainder, "1E+40", "3", "1"),
        (Decimal::remainder, "1E+6000", "7", "1"),
        (Decimal::remainder, "10", "0.3", "0.1"),
        (Decimal::remainder, "Infinity", "3", "NaN"),
        (Decimal::remainder, "3", "Infinity", "3"),
        (Decimal::remainder, "NaN", "3", "NaN"),
        (
            Decimal::pow,
            "2",
            "3",
            "8.000000000000000000000000000000000",
        ),
        (
            Decimal::pow,
            "2",
            "0",
            "1.000000000000000000000000000000000",
        ),
        (
            Decimal::pow,
            "2",
            "-1",
            "0.5000000000000000000000000000000000",
        ),
        (
            Decimal::pow,
            "1.1",
            "10",
            "2.593742460100000000000000000000000",
        ),
        (
            Decimal::pow,
            "2",
            "0.5",
            "1.414213562373095048801688724209698",
        ),
        (
            Decimal::pow,
            "10",
            "30",
            "1000000000000000000000000000000.000",
        ),
        (Decimal::pow, "0", "2", "0E-6176"),
        (Decimal::pow, "-8", "0.333", "NaN"),
        (Decimal::pow, "2", "Infinity", "Infinity"),
        (Decimal::log, "8", "2", "3"),
        (Decimal::log, "1024", "2", "10"),
        (
            Decimal::log,
            "9",
            "2",
            "3.169925001442312362907477887895633",
        ),
    ] {
        check(operation(decimal(left), decimal(right)), expected);
    }
    type Unary = fn(Decimal) -> Decimal;
    for (operation, value, expected) in [
        (
            Decimal::exp as Unary,
            "1",
            "2.718281828459045235360287471352662",
        ),
        (Decimal::exp, "0", "1"),
        (
            Decimal::exp,
            "10000",
            "8.806818225662921587261496007644561E+4342",
        ),
        (Decimal::exp, "20000", "Infinity"),
        (Decimal::exp, "-20000", "0E-6176"),
        (Decimal::ln, "2", "0.6931471805599453094172321214581766"),
        (Decimal::ln, "1", "0"),
        (Decimal::log10, "1000", "3"),
        (Decimal::log10, "0.001", "-3"),
        (Decimal::log10, "2", "0.3010299956639811952137388947244930"),
        (Decimal::sqrt, "2", "1.414213562373095048801688724209698"),
        (Decimal::sqrt, "4.00", "2.0"),
        (Decimal::abs, "-1.50", "1.50"),
        (Decimal::abs, "-Infinity", "Infinity"),
        (Decimal::floor, "-1.5", "-2"),
        (Decimal::floor, "1.00", "1"),
        (Decimal::floor, "1E+40", "NaN"),
        (Decimal::ceil, "1E+3", "1000"),
        (Decimal::ceil, "-0.5", "-0"),
    ] {
        check(operation(decimal(value)), expected);
    }
}

#[test]
fn rounds_to_a_place() {
    for (value, place, rounding, expected) in [
        ("2.5", 0, Rounding::HalfEven, "2"),
        ("1234.567", -2, Rounding::HalfEven, "1.2E+3"),
        ("-1234.567", 1, Rounding::TowardZero, "-1234.5"),
        ("1.00", 5, Rounding::HalfEven, "1.00000"),
        ("1E+3", 0, Rounding::HalfEven, "1000"),
        ("1.25", 1, Rounding::HalfEven, "1.2"),
        ("Infinity", 1, Rounding::HalfEven, "Infinity"),
        ("NaN", 1, Rounding::HalfEven, "NaN"),
        ("0.4", 0, Rounding::HalfEven, "0"),
        ("123", -5, Rounding::HalfEven, "0E+5"),
        (
            "1.5",
            40,
            Rounding::HalfEven,
            "1.500000000000000000000000000000000",
        ),
        (
            "1E+40",
            0,
            Rounding::TowardZero,
            "1.000000000000000000000000000000000E+40",
        ),
        ("1E-6176", 100, Rounding::TowardZero, "0E-100"),
        ("0", 5, Rounding::HalfEven, "0.00000"),
        ("0", 40, Rounding::HalfEven, "0E-40"),
        ("0E+10", 0, Rounding::HalfEven, "0"),
    ] {
        check(decimal(value).round_to_place(place, rounding), expected);
    }
}

#[test]
fn whole_numbers_are_recognised() {
    for (text, exact, truncated) in [
        ("1.00", Some(1), Some(1)),
        ("1.9", None, Some(1)),
        ("-1.9", None, Some(-1)),
        ("-9223372036854775808", Some(i64::MIN), Some(i64::MIN)),
        ("9223372036854775808", None, None),
        ("0E+6111", Some(0), Some(0)),
        ("1E-6176", None, Some(0)),
        ("NaN", None, None),
    ] {
        assert_eq!(decimal(text).to_i64_exact(), exact, "{text}");
        assert_eq!(decimal(text).to_i64_truncated(), truncated, "{text}");
    }
}

/// The server's last digit is not always the correctly rounded one, so two
/// units of it are allowed.
#[track_caller]
fn check_nearly(result: Decimal, expected: &str) {
    let expected = decimal(expected);
    let allowed = expected.abs().multiply(decimal("2E-33"));
    let difference = result.subtract(expected).abs();
    let near = difference.compare(allowed).is_le() || (result.is_nan() && expected.is_nan());
    assert!(near, "{result} is not near {expected}");
}

#[test]
fn trigonometry_is_the_servers() {
    type Unary = fn(Decimal) -> Decimal;
    for (operation, value, expected) in [
        (
            Decimal::sin as Unary,
            "1",
            "0.8414709848078965066525023216302991",
        ),
        (Decimal::sin, "0", "0"),
        (Decimal::sin, "100", "-0.5063656411097587936565576104597853"),
        (
            Decimal::sin,
            "1E+10",
            "-0.4875060250875106915277942943481060",
        ),
        (Decimal::sin, "Infinity", "NaN"),
        (Decimal::cos, "0", "1"),
        (Decimal::cos, "1", "0.5403023058681397174009366074429766"),
        (Decimal::tan, "1", "1.557407724654902230506974807458360"),
        (Decimal::asin, "0.5", "0.5235987755982988730771072305465838"),
        (Decimal::asin, "-1", "-1.570796326794896619231321691639751"),
        (Decimal::acos, "0.5", "1.047197551196597746154214461093168"),
        (
            Decimal::acos,
            "0.9999999",
            "0.0004472135992267379856340358796153252",
        ),
        (Decimal::acos, "1", "0"),
        (Decimal::acos, "-1", "3.141592653589793238462643383279503"),
        (Decimal::acos, "1.5", "NaN"),
        (Decimal::atan, "1000", "1.569796327128229752564797882004831"),
        (
            Decimal::atan,
            "-0.3",
            "-0.2914567944778670919956046214328912",
        ),
        (Decimal::sinh, "1", "1.175201193643801456882381850595601"),
        (Decimal::cosh, "2", "3.762195691083631459562213477773746"),
        (
            Decimal::cosh,
            "1E-10",
            "1.000000000000000000005000000000000",
        ),
        (Decimal::cosh, "1E-30", "1"),
        (Decimal::tanh, "0.5", "0.4621171572600097585023184836436726"),
        (Decimal::tanh, "100", "1"),
        (Decimal::asinh, "-3", "-1.818446459232066823483698963560709"),
        (Decimal::acosh, "3", "1.762747174039086050465218649959585"),
        (Decimal::acosh, "0", "NaN"),
        (
            Decimal::atanh,
            "0.5",
            "0.5493061443340548456976226184612628",
        ),
        (
            Decimal::degrees_to_radians,
            "180",
            "3.141592653589793238462643383279503",
        ),
        (
            Decimal::radians_to_degrees,
            "1",
            "57.29577951308232087679815481410517",
        ),
    ] {
        check_nearly(operation(decimal(value)), expected);
    }
    for (y, x, expected) in [
        ("1", "2", "0.4636476090008061162142562314612144"),
        ("-1", "-2", "-2.677945044588987122248387151818289"),
        ("1", "-2", "2.677945044588987122248387151818289"),
    ] {
        check_nearly(decimal(y).atan2(decimal(x)), expected);
    }
}
