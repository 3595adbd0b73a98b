//! Key bytes as they are on disk. A difference here is a new format version.

use model::bson::{ArrayBuf, DocWriter, ObjectId, Timestamp, Value};
use model::decimal::Decimal;
use model::key::{Direction, FORMAT_VERSION, KeyBuilder};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[track_caller]
fn check(value: impl Into<Value>, key: &str, type_bits: &str) {
    let value = value.into();
    let mut builder = KeyBuilder::new();
    builder.push(value.as_ref(), Direction::Ascending);
    let (bytes, bits) = builder.finish();
    assert_eq!(
        (hex(&bytes).as_str(), hex(bits.as_bytes()).as_str()),
        (key, type_bits),
        "{value:?}"
    );
    let mut descending = KeyBuilder::new();
    descending.push(value.as_ref(), Direction::Descending);
    let inverted: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    assert_eq!(descending.as_bytes(), inverted);
}

fn decimal(text: &str) -> Value {
    let decimal = Decimal::parse(text).expect("the table holds decimals");
    Value::Decimal128(decimal.to_bits())
}

#[test]
fn numbers() {
    assert_eq!(FORMAT_VERSION, 1);
    check(0, "1e", "");
    check(0i64, "1e", "90");
    check(0.0, "1e", "a0");
    check(-0.0, "1e", "e0");
    check(1, "2102", "");
    check(127, "21fe", "");
    check(128, "220100", "");
    check(-1, "1bfd", "");
    check(1i64, "2102", "90");
    check(1.0, "2102", "a0");
    check(1.5, "210380", "");
    check(-1.5, "1bfc7f", "");
    check(0.5, "20c800", "");
    check(0.1, "20c599cd673399cd6740", "");
    check(i64::MAX, "28fffffffffffffffe", "");
    check(i64::MIN, "13ffc0ff", "90");
    check(2f64.powi(63), "29003f00", "");
    check(f64::NAN, "10", "");
    check(f64::INFINITY, "2b", "");
    check(f64::NEG_INFINITY, "11", "");
    check(decimal("1.50"), "210380", "b040");
    check(decimal("0.1"), "20c599cd673399cd6733997fff0b00", "b0");
    check(decimal("1E+400"), "2a81900b00", "b0");
    check(decimal("1E-400"), "1f7e700b00", "b0");
    check(decimal("0"), "1e", "f304");
}

#[test]
fn other_types() {
    check("abc", "3061626300", "");
    check("a\0\u{1}", "30610101010200", "");
    check(Value::Symbol("a".into()), "306100", "80");
    check(ObjectId([7; 12]), "40070707070707070707070707", "");
    check(true, "45", "");
    check(false, "44", "");
    check(Value::Null, "0c", "");
    check(Value::MinKey, "04", "");
    check(Value::MaxKey, "f8", "");
    check(Value::Undefined, "08", "");
    check(Value::DateTime(1), "488000000000000001", "");
    let time = Timestamp {
        seconds: 1,
        increment: 2,
    };
    check(time, "4c0000000100000002", "");
    let bytes = vec![1, 2];
    check(Value::Binary { subtype: 4, bytes }, "3c02040102", "");
    let document = DocWriter::new().with("a", 1).with("b", "x").finish();
    check(document, "34106100210215620030780000", "");
    let array: ArrayBuf = [Value::from(1), Value::from("x")].into_iter().collect();
    check(array, "38210230780000", "");
    let (pattern, options) = ("a".to_owned(), "i".to_owned());
    check(Value::Regex { pattern, options }, "5061006900", "");
    check(Value::JavaScript("a".into()), "586100", "");
}
