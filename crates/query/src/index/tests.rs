use super::IndexDefinition;
use model::bson::{DocBuf, DocWriter, ValueRef};

fn index(fields: &[&str], is_partial: bool) -> IndexDefinition {
    let mut spec = DocWriter::new();
    spec.append("v", 2).begin_document("key");
    for field in fields {
        spec.append(field, 1);
    }
    spec.end().append("name", "tried");
    if is_partial {
        let filter = spec.begin_document("partialFilterExpression");
        filter.append("c", 1).end();
    }
    IndexDefinition::from_stored(spec.finish().as_doc()).expect("a valid index")
}

fn document(a: i32, b: i64, c: i32) -> DocBuf {
    let mut writer = DocWriter::new();
    writer.append("_id", 1).append("c", c);
    writer.begin_document("a").append("x", a).end();
    writer.begin_array("b").push(b).push(2).end();
    writer.finish()
}

/// What is called untouched has the same keys, and what an index is not about does not touch it.
#[test]
fn an_index_is_touched_by_what_its_keys_are_made_of() {
    let before = document(1, 1, 1);
    let check = |fields: &[&str], is_partial: bool, after: DocBuf, expected: bool| {
        let index = index(fields, is_partial);
        let untouched = index.is_untouched(before.as_doc(), after.as_doc());
        assert_eq!(untouched, expected, "{fields:?} {:?}", after.as_doc());
        if untouched {
            assert_eq!(index.keys(before.as_doc()), index.keys(after.as_doc()));
        }
    };
    check(&["a.x"], false, document(1, 1, 2), true);
    check(&["a.x"], false, document(2, 1, 1), false);
    check(&["b"], false, document(2, 1, 2), true);
    check(&["b"], false, document(1, 3, 1), false);
    check(&["a.x", "b.y"], false, document(1, 1, 2), true);
    check(&["a.x", "b.y"], false, document(1, 3, 1), false);
    check(&["missing"], false, document(2, 3, 2), true);
    // It may enter or leave by a field that is no part of its keys.
    check(&["a.x"], true, document(1, 1, 2), false);
    // The same number of another type has other type bits.
    let mut other = DocWriter::new();
    other.append("_id", 1i64).append("c", 1);
    check(&["_id"], false, other.finish(), false);
}

/// A document without arrays has the one key that it would have if they were looked for.
#[test]
fn a_plain_key_is_the_only_one() {
    let nested = DocWriter::new().with("x", 1).with("0", "zero").finish();
    let documents = [
        DocWriter::new().finish(),
        DocWriter::new().with("a", ValueRef::Null).finish(),
        DocWriter::new().with("a", ValueRef::Undefined).finish(),
        DocWriter::new().with("a", 1.0).with("b", 7_i64).finish(),
        DocWriter::new().with("a", -0.0).with("b", "text").finish(),
        DocWriter::new()
            .with("a", &nested)
            .with("b", &nested)
            .finish(),
        DocWriter::new()
            .with("a", "x")
            .with("b", ValueRef::MinKey)
            .finish(),
    ];
    let patterns = [
        "{a: 1}",
        "{a: -1, b: 1}",
        "{a.x: 1}",
        "{a.0: 1, b.x: -1}",
        "{a: hashed, b: 1}",
    ];
    for (pattern, sparse) in patterns.iter().flat_map(|it| [(it, false), (it, true)]) {
        let mut spec = DocWriter::new();
        spec.append("v", 2).begin_document("key");
        for field in pattern.trim_matches(['{', '}']).split(", ") {
            match field.split_once(": ").expect("a field") {
                (path, "hashed") => spec.append(path, "hashed"),
                (path, direction) => spec.append(path, direction.parse::<i32>().expect("a number")),
            };
        }
        spec.end().append("name", "tried").append("sparse", sparse);
        let index = IndexDefinition::from_stored(spec.finish().as_doc()).expect("a valid index");
        for document in &documents {
            let expanded = index.expanded_keys(document.as_doc()).expect("it has keys");
            let keys = index.keys(document.as_doc()).expect("it has keys");
            assert_eq!(keys, expanded, "{pattern} {sparse} {:?}", document.as_doc());
            assert!(index.plain_key(document.as_doc()).is_some());
        }
        let array = document(1, 1, 1);
        let under_array = index
            .fields
            .iter()
            .any(|field| field.path.as_str().starts_with('b'));
        assert_eq!(
            index.plain_key(array.as_doc()).is_none(),
            under_array,
            "{pattern}"
        );
    }
}
