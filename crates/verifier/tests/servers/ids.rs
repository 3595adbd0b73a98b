//! Values of every BSON type that a server takes as an `_id`, twice each, in the servers' order.

use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, DateTime, Decimal128, JavaScriptCodeWithScope, Timestamp, doc};
use verifier::element::{ValueRef, Writer, kind, text_bytes};

fn decimal(text: &str) -> Bson {
    Bson::Decimal128(text.parse::<Decimal128>().expect("a decimal"))
}

fn binary(subtype: u8, bytes: &[u8]) -> Bson {
    Bson::Binary(Binary {
        subtype: BinarySubtype::from(subtype),
        bytes: bytes.to_vec(),
    })
}

fn scoped(code: &str) -> Bson {
    Bson::JavaScriptCodeWithScope(JavaScriptCodeWithScope {
        code: code.to_owned(),
        scope: doc! {"x": 1},
    })
}

/// The driver has no constructor for this type, which only old data has.
fn pointer(namespace: &str) -> Bson {
    let mut bytes = text_bytes(namespace);
    bytes.extend_from_slice(&[7; 12]);
    let kind = kind::DB_POINTER;
    let mut writer = Writer::new();
    writer.value(
        "v",
        ValueRef {
            kind,
            bytes: &bytes,
        },
    );
    let document = bson::Document::from_reader(writer.finish().as_slice()).expect("it is BSON");
    document.get("v").cloned().expect("it was written")
}

/// `_id`s of every type, ascending, no two of which are equal to a server.
pub fn ascending() -> Vec<Bson> {
    vec![
        Bson::MinKey,
        Bson::Null,
        Bson::Double(f64::NAN),
        Bson::Double(f64::NEG_INFINITY),
        Bson::Int64(i64::MIN),
        decimal("-12.75"),
        Bson::Int32(-1),
        Bson::Double(-0.5),
        Bson::Int32(0),
        decimal("0.1"),
        Bson::Double(0.5),
        Bson::Int32(1),
        Bson::Double(1.5),
        Bson::Int64(2),
        Bson::Int64(i64::MAX),
        decimal("1E+40"),
        Bson::Double(f64::INFINITY),
        Bson::String(String::new()),
        Bson::String("a".to_owned()),
        Bson::Symbol("aa".to_owned()),
        Bson::String("b".to_owned()),
        Bson::Symbol("c".to_owned()),
        Bson::String("ü".to_owned()),
        Bson::Document(doc! {}),
        Bson::Document(doc! {"a": 1}),
        Bson::Document(doc! {"a": 1, "b": 2}),
        Bson::Document(doc! {"a": {"b": 1}}),
        Bson::Document(doc! {"a": [1, 2]}),
        binary(0, b""),
        binary(0, b"z"),
        binary(5, b"a"),
        binary(0, b"aa"),
        binary(4, &[9; 16]),
        Bson::ObjectId(ObjectId::from_bytes([0; 12])),
        Bson::ObjectId(ObjectId::from_bytes([0x65; 12])),
        Bson::ObjectId(ObjectId::from_bytes([0xff; 12])),
        Bson::Boolean(false),
        Bson::Boolean(true),
        Bson::DateTime(DateTime::from_millis(-5)),
        Bson::DateTime(DateTime::from_millis(1_600_000_000_000)),
        Bson::Timestamp(Timestamp {
            time: 0,
            increment: 1,
        }),
        Bson::Timestamp(Timestamp {
            time: 12,
            increment: 23,
        }),
        pointer("a.b"),
        pointer("a.c"),
        Bson::JavaScriptCode("a()".to_owned()),
        Bson::JavaScriptCode("b()".to_owned()),
        scoped("a()"),
        scoped("b()"),
        Bson::MaxKey,
    ]
}

/// A value of the same type that is not the same; of MinKey, MaxKey and null there is only one.
pub fn another(value: &Bson) -> Bson {
    match value {
        Bson::Double(number) if *number == 7.25 => Bson::Double(7.5),
        Bson::Double(_) => Bson::Double(7.25),
        Bson::String(text) => Bson::String(format!("{text}!")),
        Bson::Array(items) => Bson::Array(items.iter().map(another).collect()),
        Bson::Document(fields) => {
            let mut fields = fields.clone();
            fields.insert("another", true);
            Bson::Document(fields)
        }
        Bson::Boolean(given) => Bson::Boolean(!given),
        Bson::Int32(number) => Bson::Int32(number.wrapping_add(1)),
        Bson::Int64(number) => Bson::Int64(number.wrapping_add(1)),
        Bson::Timestamp(at) => Bson::Timestamp(Timestamp {
            time: at.time,
            increment: at.increment + 1,
        }),
        Bson::Binary(binary) => {
            let mut binary = binary.clone();
            binary.bytes.push(1);
            Bson::Binary(binary)
        }
        Bson::ObjectId(id) => {
            let mut bytes = id.bytes();
            bytes[11] ^= 1;
            Bson::ObjectId(ObjectId::from_bytes(bytes))
        }
        Bson::DateTime(at) => Bson::DateTime(DateTime::from_millis(at.timestamp_millis() + 1)),
        Bson::Decimal128(number) if number.to_string() == "7.0" => decimal("7.00"),
        Bson::Decimal128(_) => decimal("7.0"),
        Bson::Symbol(text) => Bson::Symbol(format!("{text}!")),
        Bson::JavaScriptCode(code) => Bson::JavaScriptCode(format!("{code};")),
        Bson::JavaScriptCodeWithScope(scoped) => {
            let mut scoped = scoped.clone();
            scoped.scope.insert("y", 2);
            Bson::JavaScriptCodeWithScope(scoped)
        }
        Bson::DbPointer(_) if *value == pointer("d.e") => pointer("d.f"),
        Bson::DbPointer(_) => pointer("d.e"),
        Bson::RegularExpression(_) | Bson::Undefined | Bson::Null | Bson::MinKey | Bson::MaxKey => {
            Bson::String("of another type".to_owned())
        }
    }
}
