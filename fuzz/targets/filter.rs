//! A filter and a document: parsing and matching end in an answer or an error;
//! simplifying a filter does not change the answer.
#![no_main]

use fuzz::Input;
use libfuzzer_sys::fuzz_target;
use query::context::QueryContext;
use query::filter::Filter;

const OPERATORS: &[&str] = &[
    "$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$and", "$or", "$nor", "$not",
    "$exists", "$type", "$all", "$elemMatch", "$size", "$mod", "$regex", "$options", "$expr",
    "$bitsAllSet", "$bitsAnyClear", "$comment", "$alwaysTrue",
];

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let filter = input.document(OPERATORS);
    let document = input.document(&[]);
    let context = QueryContext::new(0);
    let Ok(filter) = Filter::parse(filter.as_doc(), &context) else {
        return;
    };
    let matched = filter.matches(document.as_doc());
    let normalized = filter.clone().normalized();
    let _ = filter.matches_with_position(document.as_doc());
    let _ = normalized.to_document();
    if let (Ok(matched), Ok(again)) = (matched, normalized.matches(document.as_doc())) {
        assert_eq!(matched, again, "{filter:?} on {document:?}");
    }
});
