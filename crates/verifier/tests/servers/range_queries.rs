//! A query for a partition returns exactly the ids within it, on a real server.

use crate::{Servers, ids, insert, on_runtime};
use anyhow::{Result, ensure};
use bson::{Bson, Document, doc};
use verifier::cluster::Cluster;
use verifier::element::Value;
use verifier::merge::{Side, id_of};
use verifier::namespace::Namespace;
use verifier::order::Group;
use verifier::partition::{Cutter, Partition};
use verifier::range_query::{AcrossTypes, ids_filter, partition_filter};

async fn ids_of(cluster: &Cluster, namespace: &Namespace, filter: &[u8]) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    let mut documents = cluster
        .find_sorted(namespace, filter, 1000, &verifier::reading::Reading::Whole)
        .await?;
    while let Some(batch) = documents.next().await? {
        for document in batch.documents() {
            found.push(id_of(document)?.to_value());
        }
    }
    Ok(found)
}

/// The partitions that the given positions of the sorted ids cut, each with the ids it must hold.
fn cut<'a>(sorted: &'a [Value], positions: &[usize]) -> Vec<(Partition, &'a [Value])> {
    let mut cutter = Cutter::new();
    let mut from = 0;
    let mut cuts = Vec::new();
    for &position in positions {
        if let Some(partition) = cutter.cut(sorted[position].clone()) {
            cuts.push((partition, &sorted[from..position]));
            from = position;
        }
    }
    cuts.push((cutter.finish(), &sorted[from..]));
    cuts
}

async fn check(
    cluster: &Cluster,
    namespace: &Namespace,
    sorted: &[Value],
    positions: &[usize],
) -> Result<()> {
    for (partition, expected) in cut(sorted, positions) {
        for across_types in [AcrossTypes::Expression, AcrossTypes::Join] {
            let filter = partition_filter(&partition, across_types);
            let found = ids_of(cluster, namespace, &filter).await?;
            let shown = Document::from_reader(filter.as_slice())?;
            ensure!(
                found == expected,
                "{shown}\n  found {found:?}\n  expected {expected:?}"
            );
        }
    }
    Ok(())
}

#[test]
fn a_partition_is_exactly_what_its_query_returns() -> Result<()> {
    on_runtime(async {
        let servers = Servers::two_mongods().await?;
        let cluster = Cluster::connect(Side::Source, &servers.settings("d")).await?;
        let namespace = Namespace::new("d", "ids");
        let documents: Vec<Document> = ids::ascending()
            .into_iter()
            .map(|id| doc! {"_id": id})
            .collect();
        insert(&servers.source, "d", "ids", &documents).await?;
        let sorted = ids_of(&cluster, &namespace, &doc! {}.to_vec()?).await?;
        ensure!(sorted.len() == documents.len());

        // Every pair of bounds, which makes every kind of range there is.
        let bounds: Vec<usize> = (0..sorted.len())
            .filter(|&position| Group::of(sorted[position].kind).can_be_bound())
            .collect();
        for (i, &lower) in bounds.iter().enumerate() {
            for &upper in &bounds[i + 1..] {
                check(&cluster, &namespace, &sorted, &[lower, upper]).await?;
            }
        }
        let everything: Vec<usize> = (0..sorted.len()).collect();
        check(&cluster, &namespace, &sorted, &everything).await?;

        index_is_used(&servers, &sorted).await?;

        // The second look finds each of them.
        for id in &sorted {
            let found = ids_of(&cluster, &namespace, &ids_filter(&[id.as_ref()])).await?;
            ensure!(found == std::slice::from_ref(id), "{id:?}: {found:?}");
        }
        let refs: Vec<_> = sorted.iter().map(Value::as_ref).collect();
        ensure!(ids_of(&cluster, &namespace, &ids_filter(&refs)).await? == sorted);

        random_sets(&servers, &cluster).await
    })
}

/// Both ways read what they return, and a key or so for each stretch of the index.
async fn index_is_used(servers: &Servers, sorted: &[Value]) -> Result<()> {
    let middle = sorted.len() / 2;
    for (partition, expected) in cut(sorted, &[5, middle]) {
        for across_types in [AcrossTypes::Expression, AcrossTypes::Join] {
            let filter =
                Document::from_reader(partition_filter(&partition, across_types).as_slice())?;
            let find = doc! {"find": "ids", "filter": &filter, "sort": {"_id": 1}};
            let explain = doc! {"explain": find, "verbosity": "executionStats"};
            let explained = servers.source.database("d").run_command(explain).await?;
            let examined = explained
                .get_document("executionStats")?
                .get_i32("totalKeysExamined")?;
            let allowed = i32::try_from(expected.len())? + 6;
            ensure!(
                examined <= allowed,
                "{filter}: {examined} keys, {allowed} allowed"
            );
        }
    }
    Ok(())
}

/// Random sets of ids cut at random places, with and without a collation.
async fn random_sets(servers: &Servers, cluster: &Cluster) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(7);
    for (round, collation) in [None, Some("de"), Some("en")].into_iter().enumerate() {
        let name = format!("random{round}");
        let namespace = Namespace::new("d", &name);
        let mut create = doc! {"create": &name};
        if let Some(locale) = collation {
            create.insert("collation", doc! {"locale": locale, "strength": 2});
        }
        servers.source.database("d").run_command(create).await?;
        for _ in 0..300 {
            let words = ["a", "B", "c", "ä", "Z", "zz", "y y", "É", "e", ""];
            let id: Bson = match random.u8(0..6) {
                0 => Bson::Int32(random.i32(-20..20)),
                1 => Bson::Double(f64::from(random.i32(-40..40)) / 4.0),
                2 => Bson::String(words[random.usize(0..words.len())].repeat(random.usize(0..3))),
                3 => Bson::Document(doc! {"k": words[random.usize(0..words.len())]}),
                4 => Bson::DateTime(bson::DateTime::from_millis(random.i64(-9..9))),
                _ => Bson::ObjectId(bson::oid::ObjectId::from_bytes([random.u8(..); 12])),
            };
            // Two that are equal to the server: the first stays.
            let first = doc! {"q": {"_id": id}, "u": {"$setOnInsert": {"v": 1}}, "upsert": true};
            let command = doc! {"update": &name, "updates": [first]};
            servers.source.database("d").run_command(command).await?;
        }
        let sorted = ids_of(cluster, &namespace, &doc! {}.to_vec()?).await?;
        for share in [3, 10, 50] {
            let positions: Vec<usize> = (0..sorted.len())
                .filter(|_| random.usize(0..share) == 0)
                .collect();
            check(cluster, &namespace, &sorted, &positions).await?;
        }
    }
    Ok(())
}
