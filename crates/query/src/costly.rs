//! What may compute for long, told by the names of operators, before anything is parsed.
//!
//! An expression, a regular expression or a condition as large as a book can keep a thread busy for hours, from the
//! parsing on, where constants are folded. The list names what is *known to be cheap*: what it has never heard of
//! is taken for costly.

use model::bson::{Array, Doc, Element, Kind, ValueRef};

/// A document without expressions may still hold a condition with ten thousand branches; one of this size is dear
/// enough not to mind what running apart costs.
pub const PLAIN_BYTES_MAX: usize = 256 * 1024;

/// Whether work on what a document asks for may take long.
pub fn may_compute_long(document: Doc<'_>) -> bool {
    document.len() > PLAIN_BYTES_MAX || has_costly(document)
}

/// Whether anything in a document is not known to be cheap.
pub fn has_costly(document: Doc<'_>) -> bool {
    document.iter().any(|element| is_costly(element, is_plain))
}

/// The same for a command: fields that any command may carry are not computed with.
pub fn has_costly_argument(command: Doc<'_>) -> bool {
    let mut arguments = command
        .iter()
        .filter(|field| !is_carried(field.key_bytes()));
    arguments.any(|element| is_costly(element, is_plain))
}

fn is_carried(name: &[u8]) -> bool {
    matches!(
        name,
        b"lsid"
            | b"$db"
            | b"$clusterTime"
            | b"writeConcern"
            | b"readConcern"
            | b"$readPreference"
            | b"shardVersion"
            | b"databaseVersion"
    )
}

/// The same for parsing the stages of a pipeline: work on documents is not meant.
pub fn is_costly_to_parse(stages: Array<'_>) -> bool {
    let is_cheap = |name: &[u8]| is_plain(name) || is_plain_stage(name);
    (stages.elements()).any(|stage| is_costly_value(stage, is_cheap))
}

fn is_costly(element: Element<'_>, is_cheap: fn(&[u8]) -> bool) -> bool {
    let name = element.key_bytes();
    (name.starts_with(b"$") && !is_cheap(name)) || is_costly_value(element, is_cheap)
}

fn is_costly_value(element: Element<'_>, is_cheap: fn(&[u8]) -> bool) -> bool {
    match element.kind() {
        Kind::Document | Kind::Array => match element.value() {
            ValueRef::Document(document) => document.iter().any(|inner| is_costly(inner, is_cheap)),
            ValueRef::Array(array) => {
                (array.elements()).any(|inner| is_costly_value(inner, is_cheap))
            }
            _ => false,
        },
        // PCRE may backtrack, over every string of an array.
        Kind::Regex => true,
        _ => false,
    }
}

/// Stages and accumulators of which nothing is worked out before there are documents, or no more than they hold.
fn is_plain_stage(name: &[u8]) -> bool {
    matches!(
        name,
        b"$match"
            | b"$project"
            | b"$addFields"
            | b"$unwind"
            | b"$group"
            | b"$limit"
            | b"$skip"
            | b"$count"
            | b"$sortByCount"
            | b"$sum"
            | b"$avg"
            | b"$first"
            | b"$last"
    )
}

/// Operators of conditions and updates whose work is bounded by the sizes of
/// request and document, and names that are not operators.
fn is_plain(name: &[u8]) -> bool {
    matches!(
        name,
        b"$db"
            | b"$clusterTime"
            | b"$readPreference"
            | b"$eq"
            | b"$ne"
            | b"$gt"
            | b"$gte"
            | b"$lt"
            | b"$lte"
            | b"$in"
            | b"$nin"
            | b"$and"
            | b"$or"
            | b"$nor"
            | b"$not"
            | b"$exists"
            | b"$type"
            | b"$size"
            | b"$all"
            | b"$elemMatch"
            | b"$mod"
            | b"$bitsAllSet"
            | b"$bitsAllClear"
            | b"$bitsAnySet"
            | b"$bitsAnyClear"
            | b"$comment"
            | b"$set"
            | b"$setOnInsert"
            | b"$unset"
            | b"$inc"
            | b"$mul"
            | b"$min"
            | b"$max"
            | b"$rename"
            | b"$currentDate"
            | b"$bit"
            | b"$push"
            | b"$pull"
            | b"$pullAll"
            | b"$pop"
            | b"$addToSet"
            | b"$each"
            | b"$slice"
            | b"$sort"
            | b"$position"
            | b"$ref"
            | b"$id"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::bson::{DocBuf, DocWriter};

    fn stages(expression: &str) -> DocBuf {
        let mut pipeline = DocWriter::new();
        let stages = pipeline.begin_array("pipeline");
        stages
            .push_document()
            .begin_document("$match")
            .append("a", 1)
            .end()
            .end();
        stages.push_document().begin_document("$addFields");
        stages
            .begin_document("b")
            .append(expression, "$a")
            .end()
            .end()
            .end();
        stages.end();
        pipeline.finish()
    }

    #[test]
    fn a_pipeline_is_as_costly_as_its_expressions() {
        let check = |expression: &str, expected: bool| {
            let pipeline = stages(expression);
            let stages = pipeline.as_doc().get_array("pipeline").expect("an array");
            assert_eq!(is_costly_to_parse(stages), expected, "{expression}");
        };
        check("$sum", false);
        check("$range", true);
        check("$neverHeardOf", true);
        assert!(may_compute_long(stages("$sum").as_doc()), "on documents");
    }
}
