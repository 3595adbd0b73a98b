use super::IndexDefinition;
use model::bson::{DocBuf, DocWriter};

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
