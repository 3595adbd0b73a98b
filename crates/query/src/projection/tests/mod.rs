//! Tables of projections with MongoDB's answers, and what the planner is told.
//!
//! Every expectation in `find.txt` is what a real `mongod` 6.0 answered:
//!
//! ```text
//!   doc {..}                                   the document from here on
//!   find {projection} {filter}? => {..} | error 31254
//! ```

use super::Projection;
use crate::context::QueryContext;
use crate::filter::tests::notation::documents;
use model::bson::DocBuf;

#[test]
fn projections_of_find() {
    check(include_str!("find.txt"));
}

/// Runs one table and reports all rows that differ.
fn check(table: &str) {
    let mut doc = DocBuf::new();
    let mut wrong = Vec::new();
    let mut rows = 0;
    for line in table.lines() {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "" | "#" => {}
            "doc" => doc = documents(rest).remove(0),
            "find" => {
                let (input, expected) = rest.split_once("=> ").expect("a row has an expectation");
                let expected = match expected.starts_with('{') {
                    true => format!("{:?}", documents(expected)[0]),
                    false => expected.to_owned(),
                };
                let found = project(&documents(input), &doc);
                rows += 1;
                if found != expected {
                    wrong.push(format!(
                        "{input}\n  of       {doc:?}\n  expected {expected}\n  found    {found}"
                    ));
                }
            }
            other => panic!("unknown verb {other}"),
        }
    }
    assert!(rows > 0, "the table has rows");
    assert!(
        wrong.is_empty(),
        "{} of {rows} rows differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

fn project(arguments: &[DocBuf], doc: &DocBuf) -> String {
    let filter = arguments.get(1).map(DocBuf::as_doc);
    let context = QueryContext::new(0);
    let found = Projection::parse(arguments[0].as_doc(), filter, &context)
        .and_then(|projection| projection.apply(doc.as_doc()));
    match found {
        Ok(found) => {
            DocBuf::from_bytes(found.as_bytes().to_vec()).expect("the result is valid BSON");
            format!("{found:?}")
        }
        Err(error) => format!("error {}", error.code.0),
    }
}

#[test]
fn the_planner_learns_which_fields_are_needed() {
    for (spec, needed, stage) in [
        (r#"{"a":1}"#, Some("_id a"), "PROJECTION_COVERED"),
        (r#"{"a":1,"_id":0}"#, Some("a"), "PROJECTION_COVERED"),
        (r#"{"b.c":1,"_id":0}"#, Some("b.c"), "PROJECTION_DEFAULT"),
        (
            r#"{"b":{"c":1},"a":1}"#,
            Some("_id a b.c"),
            "PROJECTION_DEFAULT",
        ),
        (r#"{"n":"$a.b","_id":0}"#, Some("a.b"), "PROJECTION_DEFAULT"),
        (r#"{"n":"x","_id":0}"#, Some(""), "PROJECTION_DEFAULT"),
        (r#"{"n":"$$ROOT","_id":0}"#, None, "PROJECTION_DEFAULT"),
        (r#"{"a":0}"#, None, "PROJECTION_DEFAULT"),
        (r#"{"_id":0}"#, None, "PROJECTION_DEFAULT"),
        (r#"{"a":1,"x":{"$slice":1}}"#, None, "PROJECTION_DEFAULT"),
        (r#"{"a":1,"x.$":1}"#, None, "PROJECTION_DEFAULT"),
        (
            r#"{"a":{"$elemMatch":{"b":1}}}"#,
            None,
            "PROJECTION_DEFAULT",
        ),
    ] {
        let context = QueryContext::new(0);
        let projection = Projection::parse(documents(spec)[0].as_doc(), None, &context).unwrap();
        let found = projection.needed_fields().map(|paths| paths.join(" "));
        assert_eq!(found.as_deref(), needed, "{spec}");
        assert_eq!(projection.stage_name(true), stage, "{spec}");
        if stage == "PROJECTION_COVERED" {
            assert_eq!(projection.stage_name(false), "PROJECTION_SIMPLE", "{spec}");
        }
    }
}
