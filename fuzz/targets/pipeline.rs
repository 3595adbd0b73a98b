//! A pipeline over a few documents: parsing and running end in documents or an
//! error, and every document that comes out is valid.
#![no_main]

use fuzz::Input;
use libfuzzer_sys::fuzz_target;
use model::bson::{Doc, DocBuf};
use model::{Error, Namespace};
use query::context::QueryContext;
use query::pipeline::{
    Advance, CollectionStats, Documents, Environment, Place, ScanRequest, Scope, SessionsOf, Source, parse, start,
};
use query::sort::Spill;
use std::sync::Arc;

const STAGES: &[&str] = &[
    "$match", "$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith", "$group",
    "$sort", "$limit", "$skip", "$count", "$unwind", "$lookup", "$facet", "$bucket", "$bucketAuto",
    "$sortByCount", "$sample", "$unionWith", "$documents", "$redact", "$graphLookup",
];

const WORDS: &[&str] = &[
    "$eq", "$gt", "$in", "$and", "$or", "$not", "$expr", "$add", "$subtract", "$multiply", "$divide",
    "$mod", "$pow", "$round", "$concat", "$substrCP", "$split", "$trim", "$regexFind", "$toString",
    "$convert", "$toDate", "$toLong", "$arrayElemAt", "$slice", "$map", "$filter", "$reduce", "$zip",
    "$range", "$arrayToObject", "$objectToArray", "$setUnion", "$mergeObjects", "$getField",
    "$setField", "$dateAdd", "$dateDiff", "$dateTrunc", "$dateToString", "$dateFromParts", "$year",
    "$cond", "$switch", "$ifNull", "$let", "$literal", "$sum", "$avg", "$min", "$max", "$first",
    "$push", "$addToSet", "$topN", "$firstN", "$stdDevPop", "$sortArray", "input", "in", "as", "cond",
    "vars", "initialValue", "date", "unit", "amount", "startDate", "field", "value", "path", "newRoot",
    "groupBy", "boundaries", "default", "output", "from", "localField", "foreignField", "pipeline",
    "coll", "size", "n", "sortBy", "year", "month", "to", "onError", "connectFromField",
    "connectToField", "startWith", "preserveNullAndEmptyArrays", "includeArrayIndex",
];

/// Every collection holds the same documents.
struct World(Vec<DocBuf>);

impl Environment for World {
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }

    fn scan(&self, request: ScanRequest) -> Result<Box<dyn Source>, Error> {
        let mut found = Vec::new();
        for document in &self.0 {
            if request.filter.matches(document.as_doc())? {
                found.push(document.clone());
            }
        }
        let limit = request.limit.map_or(usize::MAX, |limit| limit as usize);
        let window = found.into_iter().skip(request.skip as usize).take(limit);
        Ok(Box::new(Documents::new(window.collect())))
    }

    fn spill(&self) -> Option<Box<dyn Spill>> {
        None
    }

    fn collection_stats(&self, _: &Namespace, _: &CollectionStats) -> Result<DocBuf, Error> {
        Ok(DocBuf::new())
    }

    fn index_stats(&self, _: &Namespace) -> Result<Vec<DocBuf>, Error> {
        Ok(Vec::new())
    }

    fn current_operations(&self, _: Doc<'_>) -> Result<Vec<DocBuf>, Error> {
        Ok(Vec::new())
    }

    fn local_sessions(&self, _: SessionsOf) -> Result<Vec<DocBuf>, Error> {
        Ok(Vec::new())
    }

    fn random_below(&self, bound: u64) -> u64 {
        bound / 2
    }
}

/// Enough to see what a pipeline makes; `$unwind` of `$range` can make millions.
const DOCUMENTS_MAX: usize = 200;

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let stages = input.stages(STAGES, WORDS);
    let documents = (0..3).map(|_| input.document(&[])).collect();
    let namespace = Namespace::new("d", "c").expect("a plain name");
    let context = QueryContext::new(0);
    let scope = Scope {
        database: "d",
        collection: Some(&namespace),
        context: &context,
        place: Place::Command,
        depth: 0,
    };
    let Ok(steps) = parse(stages.as_array(), &scope) else {
        return;
    };
    let world: Arc<dyn Environment> = Arc::new(World(documents));
    let Ok(mut source) = start(steps, Some(namespace.clone()), None, &world) else {
        return;
    };
    for _ in 0..DOCUMENTS_MAX {
        match source.advance() {
            Ok(Advance::End) | Err(_) => return,
            Ok(Advance::Paused) => {}
            Ok(_) => {
                Doc::from_bytes(source.current().as_bytes()).expect("stages make valid documents");
            }
        }
    }
});
