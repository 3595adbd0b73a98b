//! Properties of values: order, keys, hashes, decimals, and BSON bytes against
//! the `bson` crate as the naive model.

mod generate;

use generate::{decimal, document, number, value};
use model::bson::{ArrayWriter, Doc, DocBuf, DocWriter, Value, ValueRef};
use model::decimal::{Decimal, Rounding};
use model::hash::{hash_value, hashed_index_key};
use model::key::{Direction, KeyBuilder, RecordKey, decode, prefix_end, skip_value};
use model::order;
use proptest::collection::vec;
use proptest::prelude::*;
use std::cmp::Ordering;

const BOTH: [Direction; 2] = [Direction::Ascending, Direction::Descending];

fn cases(count: u32) -> ProptestConfig {
    ProptestConfig {
        cases: count,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

fn key_of(value: &Value, direction: Direction) -> Vec<u8> {
    let mut builder = KeyBuilder::new();
    builder.push(value.as_ref(), direction);
    builder.finish().0
}

fn bytes_of(values: &[Value]) -> Vec<u8> {
    let mut writer = ArrayWriter::new();
    for value in values {
        writer.push(value.as_ref());
    }
    writer.finish().into_bytes()
}

fn directed(ordering: Ordering, direction: Direction) -> Ordering {
    match direction {
        Direction::Ascending => ordering,
        Direction::Descending => ordering.reverse(),
    }
}

fn check_order(left: &Value, right: &Value) {
    let expected = order::compare(left.as_ref(), right.as_ref());
    assert_eq!(
        order::compare(right.as_ref(), left.as_ref()),
        expected.reverse()
    );
    for direction in BOTH {
        let (left_key, right_key) = (key_of(left, direction), key_of(right, direction));
        assert_eq!(
            left_key.cmp(&right_key),
            directed(expected, direction),
            "{left:?} and {right:?}: {left_key:02x?} and {right_key:02x?}"
        );
        if expected.is_ne() {
            assert!(!left_key.starts_with(&right_key) && !right_key.starts_with(&left_key));
        }
    }
    if expected.is_eq() {
        assert_eq!(hash_value(left.as_ref()), hash_value(right.as_ref()));
    }
}

/// A decimal cohort or another type of the same value, where there is one.
fn twin(value: &Value) -> Option<Value> {
    match *value {
        Value::Int32(v) => Some(Value::Double(v.into())),
        Value::Int64(v) => Some(Value::Decimal128(Decimal::from_i64(v).to_bits())),
        Value::Double(v) => {
            let exact = Decimal::from_f64_exact(v);
            (exact.compare_f64(v).is_eq()).then_some(Value::Decimal128(exact.to_bits()))
        }
        Value::Decimal128(v) => Some(Value::Decimal128(
            Decimal::from_bits(v).stripped().to_bits(),
        )),
        _ => None,
    }
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn number_keys_are_ordered(left in number(), right in number()) {
        check_order(&left, &right);
        if let Some(twin) = twin(&left) {
            check_order(&left, &twin);
            prop_assert_eq!(order::compare(left.as_ref(), twin.as_ref()), Ordering::Equal);
        }
    }

    #[test]
    fn numbers_near_each_other_are_ordered(double in any::<f64>(), step in -2i64..3) {
        prop_assume!(double.is_finite());
        let neighbour = f64::from_bits(double.to_bits().wrapping_add_signed(step));
        let decimal = Value::Decimal128(Decimal::from_f64_exact(double).to_bits());
        check_order(&Value::Double(double), &decimal);
        check_order(&Value::Double(neighbour), &decimal);
        let short = Value::Decimal128(Decimal::from_f64(double).to_bits());
        check_order(&Value::Double(double), &short);
        check_order(&decimal, &short);
    }
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn keys_are_ordered(left in value(), right in value()) {
        check_order(&left, &right);
    }

    #[test]
    fn keys_decode_to_the_same_bytes(
        fields in vec((value(), prop_oneof![Just(BOTH[0]), Just(BOTH[1])]), 1..4),
        tail in vec(any::<u8>(), 0..20),
    ) {
        let mut builder = KeyBuilder::new();
        for (value, direction) in &fields {
            builder.push(value.as_ref(), *direction);
        }
        let (key, type_bits) = builder.finish();
        let stored = model::key::TypeBits::from_bytes(type_bits.as_bytes());
        let (values, directions): (Vec<Value>, Vec<Direction>) = fields.into_iter().unzip();
        let decoded = decode(&key, &stored, &directions).expect("own keys decode");
        prop_assert_eq!(bytes_of(&decoded), bytes_of(&values));

        let mut followed = key.clone();
        followed.extend_from_slice(&tail);
        let (fields, record) = RecordKey::split_off(&followed, &directions).expect("own keys split");
        prop_assert_eq!(fields, &key[..]);
        prop_assert_eq!(record, &tail[..]);
    }

    #[test]
    fn tuples_compare_field_by_field(
        left in (number(), value()),
        right in (number(), value()),
        same_first: bool,
        first in prop_oneof![Just(BOTH[0]), Just(BOTH[1])],
        second in prop_oneof![Just(BOTH[0]), Just(BOTH[1])],
    ) {
        let right = if same_first { (left.0.clone(), right.1) } else { right };
        let key = |pair: &(Value, Value)| {
            let mut builder = KeyBuilder::new();
            builder.push(pair.0.as_ref(), first).push(pair.1.as_ref(), second);
            builder.finish().0
        };
        let expected = directed(order::compare(left.0.as_ref(), right.0.as_ref()), first)
            .then(directed(order::compare(left.1.as_ref(), right.1.as_ref()), second));
        prop_assert_eq!(key(&left).cmp(&key(&right)), expected);

        let prefix = key_of(&left.0, first);
        let end = prefix_end(&prefix).expect("no key is all FF");
        prop_assert!(key(&left) >= prefix && key(&left) < end);
        let first_order = directed(order::compare(right.0.as_ref(), left.0.as_ref()), first);
        prop_assert_eq!(key(&right) < prefix, first_order.is_lt());
        prop_assert_eq!(key(&right) >= end, first_order.is_gt());
    }

    #[test]
    fn hostile_bytes_never_panic(
        bytes in vec(prop_oneof![any::<u8>(), 0u8..0x60], 0..64),
        type_bits in vec(any::<u8>(), 0..24),
        value in value(),
        at in any::<prop::sample::Index>(),
        flip in 1u8..,
    ) {
        let type_bits = model::key::TypeBits::from_bytes(&type_bits);
        for direction in BOTH {
            let _ = skip_value(&bytes, direction);
            let _ = decode(&bytes, &type_bits, &[direction]);
            let mut key = key_of(&value, direction);
            let at = at.index(key.len());
            key[at] ^= flip;
            let _ = skip_value(&key, direction);
            let _ = decode(&key, &type_bits, &[direction]);
            let _ = skip_value(&key[..at], direction);
        }
    }

    #[test]
    fn decimals_survive_text_and_bytes(stored in decimal()) {
        let decimal = Decimal::from_bits(stored);
        let canonical = Decimal::from_bits(decimal.to_bits());
        prop_assert_eq!(decimal, canonical);
        let text = decimal.to_string();
        prop_assert_eq!(Decimal::parse(&text).expect("own text parses"), decimal);
        // The naive model knows no coefficient over 34 digits.
        if decimal.to_bits() == stored {
            prop_assert_eq!(bson::Decimal128::from_bytes(stored.0).to_string(), text);
        }
    }

    #[test]
    fn decimal_order_agrees_with_subtraction(left in decimal(), right in decimal()) {
        let (left, right) = (Decimal::from_bits(left), Decimal::from_bits(right));
        let difference = left.subtract(right);
        let finite = matches!((left, right), (Decimal::Finite { .. }, Decimal::Finite { .. }));
        if finite && !difference.is_infinite() {
            let expected = difference.compare(Decimal::ZERO);
            prop_assert_eq!(left.compare(right), expected);
        }
    }

    #[test]
    fn documents_agree_with_the_bson_crate(document in document()) {
        let bytes = document.as_bytes();
        Doc::from_bytes(bytes).expect("own documents are valid");
        let model = bson::RawDocument::from_bytes(bytes).expect("the model reads our bytes");
        let names: Vec<String> = model
            .iter()
            .map(|element| element.expect("the model reads every field").0.to_string())
            .collect();
        let own: Vec<&str> = document.iter().map(|element| element.key()).collect();
        prop_assert_eq!(names, own);

        let mut copied = bson::RawDocumentBuf::new();
        for element in model.iter() {
            let (name, value) = element.expect("the model reads every field");
            copied.append(name, bson::RawBson::from(value));
        }
        prop_assert_eq!(copied.as_bytes(), bytes);

        let mut rewritten = DocWriter::new();
        for element in document.iter() {
            rewritten.append(element.key(), element.value().to_owned().as_ref());
        }
        prop_assert_eq!(rewritten.finish().into_bytes(), bytes);
        hashed_index_key(ValueRef::from(&document));
    }

    #[test]
    fn damaged_documents_are_refused_or_readable(
        document in document(),
        at in any::<prop::sample::Index>(),
        flip in 1u8..,
    ) {
        let mut bytes = document.into_bytes();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if let Ok(read) = DocBuf::from_bytes(bytes) {
            let _ = format!("{read:?}");
            key_of(&Value::Document(read), Direction::Ascending);
        }
    }
}

proptest! {
    #![proptest_config(cases(150))]

    /// Whatever the operands, a result is a decimal that can be stored.
    #[test]
    fn decimal_arithmetic_is_total(left in decimal(), right in decimal(), place in -100i32..100) {
        let (left, right) = (Decimal::from_bits(left), Decimal::from_bits(right));
        let binary: [fn(Decimal, Decimal) -> Decimal; 8] = [
            Decimal::add,
            Decimal::subtract,
            Decimal::multiply,
            Decimal::divide,
            Decimal::remainder,
            Decimal::pow,
            Decimal::log,
            Decimal::atan2,
        ];
        let unary: [fn(Decimal) -> Decimal; 20] = [
            Decimal::exp,
            Decimal::ln,
            Decimal::log10,
            Decimal::sqrt,
            Decimal::floor,
            Decimal::ceil,
            Decimal::sin,
            Decimal::cos,
            Decimal::tan,
            Decimal::asin,
            Decimal::acos,
            Decimal::atan,
            Decimal::sinh,
            Decimal::cosh,
            Decimal::tanh,
            Decimal::asinh,
            Decimal::acosh,
            Decimal::atanh,
            Decimal::degrees_to_radians,
            Decimal::radians_to_degrees,
        ];
        for operation in binary {
            operation(left, right).to_bits();
        }
        for operation in unary {
            operation(left).to_bits();
        }
        for rounding in [Rounding::HalfEven, Rounding::TowardZero] {
            left.round_to_place(place, rounding).to_bits();
        }
    }
}
