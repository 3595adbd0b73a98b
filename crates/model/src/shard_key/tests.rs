use super::*;
use crate::bson::{DocBuf, DocWriter};
use std::cmp::Ordering;

fn pattern(fields: &[(&str, ValueRef<'_>)]) -> DocBuf {
    let mut writer = DocWriter::new();
    for (name, value) in fields {
        writer.append(name, *value);
    }
    writer.finish()
}

const ASCENDING: ValueRef<'_> = ValueRef::Int32(1);
const HASHED: ValueRef<'_> = ValueRef::String("hashed");

fn parsed(fields: &[(&str, ValueRef<'_>)]) -> ShardKeyPattern {
    ShardKeyPattern::parse(pattern(fields).as_doc()).unwrap()
}

#[test]
fn patterns() {
    let check = |fields: &[(&str, ValueRef<'_>)], accepted: bool| {
        let result = ShardKeyPattern::parse(pattern(fields).as_doc());
        assert_eq!(result.is_ok(), accepted, "{result:?}");
    };
    check(&[("a", ASCENDING)], true);
    check(&[("a", ValueRef::Double(1.0)), ("b.c", ASCENDING)], true);
    check(&[("a", HASHED)], true);
    check(&[("a", ASCENDING), ("b", HASHED)], true);
    check(&[("a", HASHED), ("b", HASHED)], false);
    check(&[], false);
    check(&[("a", ValueRef::Int32(-1))], false);
    check(&[("a", ValueRef::String("2d"))], false);
    check(&[("a..b", ASCENDING)], false);
    check(&[("$a", ASCENDING)], false);
}

#[test]
fn keys_of_documents() {
    let by = parsed(&[("a.b", ASCENDING), ("c", ASCENDING)]);
    let inner = DocWriter::new().with("b", 5).finish();
    let whole = DocWriter::new()
        .with("a", ValueRef::Document(inner.as_doc()))
        .with("c", "x")
        .finish();
    let missing = DocWriter::new().with("a", 3).finish();
    let bound = |b: ValueRef<'_>, c: ValueRef<'_>| {
        let doc = DocWriter::new().with("a.b", b).with("c", c).finish();
        by.key_of_bound(doc.as_doc()).unwrap()
    };
    assert_eq!(
        by.key_of(whole.as_doc()).unwrap(),
        bound(ValueRef::Int32(5), ValueRef::String("x"))
    );
    // What is missing is null.
    assert_eq!(
        by.key_of(missing.as_doc()).unwrap(),
        bound(ValueRef::Null, ValueRef::Null)
    );
    let key = by.key_of(whole.as_doc()).unwrap();
    assert_eq!(by.least().cmp(&key), Ordering::Less);
    assert_eq!(by.greatest().cmp(&key), Ordering::Greater);
}

#[test]
fn arrays_have_no_place() {
    let by = parsed(&[("a.b", ASCENDING)]);
    let mut writer = DocWriter::new();
    writer.begin_array("a").push(1).end();
    let on_the_way = writer.finish();
    let mut writer = DocWriter::new();
    writer.begin_document("a").begin_array("b").end().end();
    let as_value = writer.finish();
    for doc in [on_the_way, as_value] {
        let fault = by.key_of(doc.as_doc()).unwrap_err();
        assert_eq!(fault.code, Code::SHARD_KEY_NOT_FOUND);
    }
}

#[test]
fn hashed_fields_hold_the_hash() {
    let by = parsed(&[("a", HASHED)]);
    let doc = DocWriter::new().with("a", "tern").finish();
    let hash = crate::hash::hashed_index_key(ValueRef::String("tern"));
    let bound = DocWriter::new().with("a", hash).finish();
    assert_eq!(
        by.key_of(doc.as_doc()).unwrap(),
        by.key_of_bound(bound.as_doc()).unwrap()
    );
}

#[test]
fn bounds_must_fit() {
    let by = parsed(&[("a", ASCENDING), ("b", ASCENDING)]);
    let fits = |names: &[&str]| {
        let mut writer = DocWriter::new();
        for name in names {
            writer.append(name, 1);
        }
        by.key_of_bound(writer.finish().as_doc()).is_ok()
    };
    assert!(fits(&["a", "b"]));
    assert!(!fits(&["a"]));
    assert!(!fits(&["b", "a"]));
    assert!(!fits(&["a", "b", "c"]));
}

#[test]
fn refining_extends() {
    let short = parsed(&[("a", ASCENDING)]);
    let long = parsed(&[("a", ASCENDING), ("b", HASHED)]);
    assert!(long.extends(&short));
    assert!(!short.extends(&long));
    assert!(!parsed(&[("a", HASHED), ("b", ASCENDING)]).extends(&short));
}

#[test]
fn bounds_are_read_back() {
    let by = parsed(&[("a", ASCENDING), ("b", HASHED)]);
    for (a, b) in [
        (ValueRef::MinKey, ValueRef::MinKey),
        (ValueRef::MaxKey, ValueRef::MaxKey),
        (ValueRef::Int32(5), ValueRef::Int64(7)),
        (ValueRef::String("tern"), ValueRef::Int64(i64::MIN)),
        (ValueRef::Null, ValueRef::MinKey),
    ] {
        let bound = DocWriter::new().with("a", a).with("b", b).finish();
        let key = by.bound(bound.as_doc()).unwrap();
        assert_eq!(by.bound_of_key(key.as_bytes()).unwrap(), bound);
    }
    // Which of several equal numbers it was is not known; where it lies is.
    for text in [
        "19.99",
        "0.1",
        "-0.1",
        "1E-5",
        "1E+25",
        "-1E+30",
        "123456789012345678901234567890",
        "9223372036854775808",
        "18446744073709551615",
        "-9223372036854775809",
        "2.50",
        "1E-6176",
        "9.999999999999999999999999999999999E+6144",
        "0E+3",
        "NaN",
        "-Infinity",
    ] {
        let decimal = crate::decimal::Decimal::parse(text).unwrap().to_bits();
        let bound = DocWriter::new()
            .with("a", ValueRef::Decimal128(decimal))
            .with("b", 7i64)
            .finish();
        let key = by.bound(bound.as_doc()).unwrap();
        let read = by.bound_of_key(key.as_bytes()).unwrap();
        assert_eq!(by.bound(read.as_doc()).unwrap(), key, "{text}: {read:?}");
    }
    let greatest = by.bound_of_key(KeyBound::after_all().as_bytes()).unwrap();
    assert_eq!(by.bound(greatest.as_doc()).unwrap(), KeyBound::after_all());
    assert!(by.bound_of_key(&[0xFE, 1]).is_err());
}

/// ⚑ Whether a document lies in a range does not depend on the number of fields that its bounds have.
#[test]
fn bounds_of_a_shorter_key_are_bounds_of_a_longer_one() {
    let short = parsed(&[("a", ASCENDING)]);
    let long = parsed(&[("a", ASCENDING), ("b", ASCENDING), ("c", HASHED)]);
    let values = [
        ValueRef::MinKey,
        ValueRef::Null,
        ValueRef::Double(f64::NAN),
        ValueRef::Double(f64::NEG_INFINITY),
        ValueRef::Int32(-1),
        ValueRef::Int32(0),
        ValueRef::Int32(5),
        ValueRef::Double(5.5),
        ValueRef::String(""),
        ValueRef::String("tern"),
        ValueRef::ObjectId(crate::bson::ObjectId([7; 12])),
        ValueRef::Boolean(true),
        ValueRef::MaxKey,
    ];
    let document = |a, b| DocWriter::new().with("a", a).with("b", b).finish();
    let mut bounds = vec![KeyBound::after_all(), KeyBound::new(&[])];
    for a in values {
        let key = short.key_of(document(a, ValueRef::Null).as_doc()).unwrap();
        bounds.extend(crate::key::prefix_end(&key).map(|end| KeyBound::new(&end)));
        bounds.push(KeyBound::new(&key));
    }
    for bound in &bounds {
        let completed = long.completed(bound);
        assert_eq!(long.completed(&completed), completed);
        for a in values {
            for b in values {
                let document = document(a, b);
                let (brief, whole) = (
                    short.key_of(document.as_doc()).unwrap(),
                    long.key_of(document.as_doc()).unwrap(),
                );
                let is_behind = bound.as_bytes() <= &brief[..];
                assert_eq!(bound.as_bytes() <= &whole[..], is_behind, "{document:?}");
                assert_eq!(
                    completed.as_bytes() <= &whole[..],
                    is_behind,
                    "{document:?}"
                );
            }
        }
    }
    let five = short.key_of(document(ValueRef::Int32(5), ValueRef::Null).as_doc());
    let completed = long.completed(&KeyBound::new(&five.unwrap()));
    let shown = long.bound_of_key(completed.as_bytes()).unwrap();
    assert_eq!(
        format!("{shown:?}"),
        "{a: 5, b: MinKey, c: MinKey}",
        "as the config server says it"
    );
}
