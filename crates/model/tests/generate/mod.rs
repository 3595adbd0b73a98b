//! Random values of all types and depths, dense where types meet.

use model::bson::{ArrayBuf, Decimal128, DocBuf, DocWriter, ObjectId, Timestamp, Value};
use model::decimal::Decimal;
use proptest::collection::vec;
use proptest::prelude::*;

fn double() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<u64>().prop_map(f64::from_bits),
        (-100i32..100).prop_map(f64::from),
        (-1000i32..1000, 0u32..12)
            .prop_map(|(whole, halvings)| { f64::from(whole) / f64::from(1u32 << halvings) }),
        (-40i32..40).prop_map(|tenths| f64::from(tenths) / 10.0),
        (-1074i32..1024, 0u64..4).prop_map(|(exponent, step)| {
            let power = 2f64.powi(exponent);
            f64::from_bits(power.to_bits() + step)
        }),
        (0i64..4).prop_map(|step| (i64::MAX - step * 1024) as f64),
        Just(-0.0),
        Just(0.0),
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY),
        Just(f64::MIN_POSITIVE),
        Just(f64::MAX),
        Just(-f64::MAX),
    ]
}

fn long() -> impl Strategy<Value = i64> {
    prop_oneof![
        any::<i64>(),
        -300i64..300,
        (0u32..63, -2i64..3).prop_map(|(shift, step)| (1i64 << shift) + step),
        (0u32..63, -2i64..3).prop_map(|(shift, step)| -(1i64 << shift) + step),
        (0i64..3).prop_map(|step| i64::MIN + step),
        (0i64..3).prop_map(|step| i64::MAX - step),
    ]
}

fn finite_decimal() -> impl Strategy<Value = Decimal128> {
    let coefficient = prop_oneof![
        0u128..1000,
        (0u128..1000, 0u32..31).prop_map(|(digits, zeros)| digits * 10u128.pow(zeros)),
        0u128..10u128.pow(34),
        (0u128..200).prop_map(|step| 10u128.pow(34) - 1 - step),
        (0u128..200).prop_map(|step| 10u128.pow(33) + step),
    ];
    let exponent = prop_oneof![
        -6i32..6,
        -40i32..40,
        -370i32..-290,
        270i32..320,
        -6176i32..=6111,
        Just(-6176),
        Just(6111),
    ];
    (any::<bool>(), coefficient, exponent).prop_map(|(negative, coefficient, exponent)| {
        Decimal::Finite {
            negative,
            coefficient,
            exponent,
        }
        .to_bits()
    })
}

pub fn decimal() -> impl Strategy<Value = Decimal128> {
    prop_oneof![
        8 => finite_decimal(),
        1 => any::<u128>().prop_map(|bits| Decimal128(bits.to_le_bytes())),
        1 => long().prop_map(|whole| Decimal::from_i64(whole).to_bits()),
        1 => double().prop_map(|double| Decimal::from_f64_exact(double).to_bits()),
        1 => Just(Decimal::NaN.to_bits()),
        1 => any::<bool>().prop_map(|negative| Decimal::Infinity { negative }.to_bits()),
    ]
}

pub fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        long().prop_map(|whole| Value::Int32(whole as i32)),
        long().prop_map(Value::Int64),
        double().prop_map(Value::Double),
        decimal().prop_map(Value::Decimal128),
    ]
}

/// Text with NUL bytes, the escape byte, and prefixes of itself.
fn text() -> impl Strategy<Value = String> {
    vec(
        prop_oneof![
            Just('\0'),
            Just('\u{1}'),
            Just('\u{2}'),
            Just('a'),
            Just('b'),
            any::<char>(),
        ],
        0..6,
    )
    .prop_map(|chars| chars.into_iter().collect())
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[ab]{0,2}", "[^\\x00]{0,3}"]
}

fn object_id() -> impl Strategy<Value = ObjectId> {
    prop_oneof![
        any::<[u8; 12]>().prop_map(ObjectId),
        (0u8..3).prop_map(|byte| ObjectId([byte; 12])),
    ]
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => number(),
        2 => text().prop_map(Value::String),
        1 => text().prop_map(Value::Symbol),
        1 => (prop_oneof![0u8..2, 3u8..6], vec(any::<u8>(), 0..4))
            .prop_map(|(subtype, bytes)| Value::Binary { subtype, bytes }),
        1 => (3u8.., 250usize..260)
            .prop_map(|(subtype, length)| Value::Binary { subtype, bytes: vec![subtype; length] }),
        1 => object_id().prop_map(Value::ObjectId),
        1 => any::<bool>().prop_map(Value::Boolean),
        1 => long().prop_map(Value::DateTime),
        1 => (0u32..3, any::<u32>()).prop_map(|(seconds, increment)| {
            Value::Timestamp(Timestamp { seconds: seconds.wrapping_sub(1), increment })
        }),
        1 => (name(), "i?m?").prop_map(|(pattern, options)| Value::Regex { pattern, options }),
        1 => (text(), object_id()).prop_map(|(namespace, id)| Value::DbPointer { namespace, id }),
        1 => text().prop_map(Value::JavaScript),
        1 => prop_oneof![
            Just(Value::Undefined),
            Just(Value::Null),
            Just(Value::MinKey),
            Just(Value::MaxKey),
        ],
    ]
}

fn assemble(fields: Vec<(String, Value)>) -> DocBuf {
    let mut writer = DocWriter::new();
    for (name, value) in &fields {
        writer.append(name, value.as_ref());
    }
    writer.finish()
}

pub fn value() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec((name(), inner.clone()), 0..4).prop_map(|fields| Value::Document(assemble(fields))),
            vec(inner.clone(), 0..4)
                .prop_map(|values| Value::Array(values.into_iter().collect::<ArrayBuf>())),
            (text(), vec((name(), inner), 0..3)).prop_map(|(code, fields)| {
                Value::JavaScriptWithScope {
                    code,
                    scope: assemble(fields),
                }
            }),
        ]
    })
}

pub fn document() -> impl Strategy<Value = DocBuf> {
    vec((name(), value()), 0..6).prop_map(assemble)
}
