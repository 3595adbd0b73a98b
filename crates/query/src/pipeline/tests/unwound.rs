//! `$lookup` and `$unwind` as one: how much is read, and that no array is made.

use super::*;
use std::sync::atomic::Ordering;

fn pipeline(text: &str) -> model::bson::ArrayBuf {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let Value::Array(stages) = parse_json(&lines.join(" ")) else {
        panic!("{text} is no array");
    };
    stages
}

/// Two documents of `c`, each with all `count` documents of `o` as matches.
fn world(count: i32, bytes: usize) -> Arc<World> {
    let text = "x".repeat(bytes);
    let other = (0..count).map(|at| {
        let document = DocWriter::new().with("_id", at).with("k", 1);
        document.with("text", text.as_str()).finish()
    });
    let own = (1..=2).map(|at| DocWriter::new().with("_id", at).with("a", 1).finish());
    Arc::new(World {
        collections: HashMap::from([
            ("c".to_owned(), own.collect()),
            ("o".to_owned(), other.collect()),
        ]),
        memory_bytes_max: usize::MAX,
        ..World::default()
    })
}

#[test]
fn reads_no_more_matches_than_are_wanted() {
    for (stages, read) in [
        // One document of the collection, and one match.
        (
            r#"[{"$lookup": {"from": "o", "localField": "a", "foreignField": "k", "as": "r"}},
                {"$unwind": "$r"}, {"$limit": 1}]"#,
            2,
        ),
        (
            r#"[{"$lookup": {"from": "o", "let": {"a": "$a"}, "as": "r.s", "pipeline":
                [{"$match": {"$expr": {"$eq": ["$k", "$$a"]}}}]}},
                {"$unwind": {"path": "$r.s", "includeArrayIndex": "i"}}, {"$limit": 3}]"#,
            4,
        ),
        // What is the same for all documents is read once.
        (
            r#"[{"$lookup": {"from": "o", "as": "r", "pipeline": [{"$match": {"k": 1}}]}},
                {"$unwind": "$r"}, {"$count": "n"}]"#,
            2 + 50,
        ),
        (
            r#"[{"$lookup": {"from": "o", "localField": "a", "foreignField": "k", "as": "r"}},
                {"$unwind": {"path": "$r", "preserveNullAndEmptyArrays": true}},
                {"$count": "n"}]"#,
            2 + 2 * 50,
        ),
    ] {
        let world = world(50, 10);
        run(&world, "c", pipeline(stages).as_array()).unwrap();
        assert_eq!(world.given.load(Ordering::Relaxed), read, "{stages}");
    }
}

/// More than 100 MB of matches for one document, whether or not they could be kept for the next.
#[test]
fn matches_may_be_more_than_an_array_holds() {
    let world = world(7, 15 << 20);
    for lookup in [
        r#"{"from": "o", "localField": "a", "foreignField": "k", "as": "r"}"#,
        r#"{"from": "o", "pipeline": [], "as": "r"}"#,
    ] {
        let rest = r#"{"$unwind": "$r"}, {"$count": "n"}"#;
        let stages = format!(r#"[{{"$lookup": {lookup}}}, {rest}]"#);
        let found = run(&world, "c", pipeline(&stages).as_array()).unwrap();
        assert_eq!(found[0].get("n"), Some(ValueRef::Int32(14)), "{lookup}");
    }
}
