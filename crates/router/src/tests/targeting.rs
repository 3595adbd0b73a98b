//! Statements about one document go to one shard.

use crate::config::Database;
use crate::routing::Route;
use cluster::cache::Placement;
use cluster::routing::{RoutingTable, ShardId, initial_chunks};
use model::bson::{DocWriter, ObjectId, ValueRef};
use model::ids::Uuid;
use model::namespace::Namespace;
use model::range::KeyBound;
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::{DatabaseVersion, Incarnation};
use query::context::QueryContext;
use query::filter::Filter;
use std::sync::Arc;

/// A route to a collection in chunks that begin at these bounds, on shards named by their order.
fn route(pattern: &ShardKeyPattern, bounds: &[KeyBound]) -> Route {
    let owners: Vec<ShardId> = (0..=bounds.len())
        .map(|at| ShardId::new(&format!("shard{at}")))
        .collect();
    let began = ClusterTime::new(5, 1);
    let incarnation = Incarnation {
        epoch: ObjectId([7; 12]),
        began,
    };
    let pattern = Arc::new(pattern.clone());
    let chunks = initial_chunks(&pattern, bounds, &owners, began);
    let table = RoutingTable::full(Uuid([1; 16]), incarnation, pattern, chunks);
    Route {
        namespace: Namespace::parse("test.birds").expect("a name"),
        placement: Placement::Sharded(table.expect("a table")),
        database: Database {
            primary: owners[0].clone(),
            version: DatabaseVersion::new_database(Uuid([2; 16]), began),
        },
    }
}

/// ⚑ What is missing, what is null and what is undefined equal null; their keys are two, on two shards here.
#[test]
fn one_document_with_null_for_a_key_is_on_one_shard() {
    let context = QueryContext::new(0);
    for (kinds, names_all) in [
        (&[("k", "hashed")][..], true),
        (&[("k", "")], true),
        (&[("k", ""), ("l", "")], true),
        (&[("k", ""), ("l", ""), ("m", "")], false),
    ] {
        let mut pattern = DocWriter::new();
        for (path, kind) in kinds {
            match *kind {
                "" => pattern.append(path, 1),
                kind => pattern.append(path, kind),
            };
        }
        let pattern = ShardKeyPattern::parse(pattern.finish().as_doc()).expect("a pattern");
        let keys = [ValueRef::Undefined, ValueRef::Null].map(|value| {
            let others = kinds.iter().skip(1).map(|_| value);
            pattern.key_of_values([value].into_iter().chain(others))
        });
        let later = keys.iter().max().expect("two keys");
        let route = route(&pattern, &[KeyBound::new(later)]);
        let table = route.table().expect("a sharded collection");
        let owner = table.find(&keys[1]).chunk.shard.clone();

        let mut query = DocWriter::new().with("k", ValueRef::Null);
        query.append("l", ValueRef::Null);
        let query = query.finish();
        let filter = Filter::parse(query.as_doc(), &context).expect("a filter");
        let filter = filter.optimized();
        assert_eq!(route.read_targets(&filter).len(), 2, "{kinds:?}");
        let statement = |extra: &str| {
            let update = DocWriter::new().with("k", 1).finish();
            let update = DocWriter::new().with("$inc", &update).finish();
            DocWriter::new()
                .with("q", &query)
                .with("u", &update)
                .with(extra, 1)
                .finish()
        };
        let upsert = route.update_targets(statement("upsert").as_doc(), &context);
        let update = route.update_targets(statement("x").as_doc(), &context);
        let delete = route.delete_targets(statement("limit").as_doc(), &context);
        let modify = route.find_and_modify_target(&filter);
        for (what, targets) in [
            ("upsert", upsert),
            ("update", update),
            ("delete", delete),
            ("findAndModify", modify),
        ] {
            match names_all {
                true => assert_eq!(targets, Ok(vec![owner.clone()]), "{what} by {kinds:?}"),
                false => assert!(targets.is_err(), "{what} by {kinds:?}"),
            }
        }
        let many = route.update_targets(statement("multi").as_doc(), &context);
        assert_eq!(many.map(|targets| targets.len()), Ok(2));
    }
}

/// The key is also named by the whole document that it is in.
#[test]
fn a_nested_key_is_named_by_its_document() {
    let context = QueryContext::new(0);
    let pattern = DocWriter::new().with("a.b", 1).finish();
    let pattern = ShardKeyPattern::parse(pattern.as_doc()).expect("a pattern");
    let bound = pattern.key_of_values([ValueRef::Int32(5)]);
    let route = route(&pattern, &[KeyBound::new(&bound)]);
    for (fields, expected) in [
        (&[("b", 7)][..], Some("shard1")),
        (&[("b", 3)], Some("shard0")),
        (&[("c", 0), ("b", 7)], Some("shard1")),
        (&[("c", 7)], None),
    ] {
        let mut inner = DocWriter::new();
        for (name, value) in fields {
            inner.append(name, *value);
        }
        let inner = inner.finish();
        let query = DocWriter::new().with("a", &inner).finish();
        let filter = Filter::parse(query.as_doc(), &context).expect("a filter");
        let targets = route.find_and_modify_target(&filter.optimized()).ok();
        let expected = expected.map(|shard| vec![ShardId::new(shard)]);
        assert_eq!(targets, expected, "{query:?}");
    }
}
