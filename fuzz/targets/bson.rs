//! Any bytes as a document: what validation accepts can be read to the last
//! value, copied without a change, ordered, hashed, and encoded into a key that
//! decodes to an equal value.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::bson::{Doc, DocWriter, ValueRef};
use model::key::{Direction, KeyBuilder, decode, skip_value};
use model::order::compare;

fuzz_target!(|bytes: &[u8]| {
    let Ok(doc) = Doc::from_bytes(bytes) else {
        return;
    };
    let mut copy = DocWriter::new();
    for element in doc.iter() {
        copy.append(element.key(), element.value());
        check_value(element.value());
    }
    assert_eq!(copy.finish().as_bytes(), bytes);
    let _ = format!("{doc:?}");
});

fn check_value(value: ValueRef<'_>) {
    assert!(compare(value, value).is_eq());
    let _ = model::hash::hash_value(value);
    let _ = model::hash::hashed_index_key(value);
    for direction in [Direction::Ascending, Direction::Descending] {
        let mut builder = KeyBuilder::new();
        builder.push(value, direction);
        let (key, type_bits) = builder.finish();
        assert_eq!(skip_value(&key, direction), Ok(key.len()));
        let values = decode(&key, &type_bits, &[direction]).expect("own keys decode");
        assert!(compare(values[0].as_ref(), value).is_eq());
    }
}
