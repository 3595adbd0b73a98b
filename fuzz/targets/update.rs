//! An update and a document: an error, no change, or a valid document with the
//! same `_id`.
#![no_main]

use fuzz::Input;
use libfuzzer_sys::fuzz_target;
use model::bson::{DocBuf, Timestamp, Value};
use query::context::QueryContext;
use query::update::{Update, UpdateMoment};

const OPERATORS: &[&str] = &[
    "$set", "$unset", "$inc", "$mul", "$min", "$max", "$rename", "$setOnInsert", "$currentDate",
    "$bit", "$push", "$addToSet", "$pop", "$pull", "$pullAll", "$each", "$slice", "$sort",
    "$position", "$type", "and", "or", "xor",
];

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let update = input.document(OPERATORS);
    let document = input.document(&[]);
    let filters = input.value(&["x", "x.b", "$gt"], 4);
    let context = QueryContext::new(0);
    let array_filters = match &filters {
        Value::Array(filters) => Some(filters.as_array()),
        _ => None,
    };
    let update = Value::Document(update);
    let Ok(update) = Update::parse(update.as_ref(), array_filters, &context) else {
        return;
    };
    let moment = UpdateMoment {
        matched: Some("0"),
        is_insert: false,
        timestamp: Timestamp { seconds: 1, increment: 1 },
    };
    if let Ok(Some(result)) = update.apply(document.as_doc(), moment, &context) {
        DocBuf::from_bytes(result.as_bytes().to_vec()).expect("an update makes a valid document");
        if let Some(id) = document.get("_id") {
            let kept = result.get("_id").expect("_id stays");
            assert!(model::order::compare(id, kept).is_eq());
        }
    }
});
