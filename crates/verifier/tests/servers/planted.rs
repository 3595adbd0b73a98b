//! Differences of every kind in every type, planted where partitions meet, and all of them found.

use crate::{Servers, found, ids, insert, shown_id};
use anyhow::{Result, ensure};
use bson::{Bson, Document, doc};
use std::collections::BTreeSet;
use verifier::range_query::AcrossTypes;
use verifier::{Outcome, Settings, verify};

/// Plants in one database; returns what a report must name.
///
/// Each `_id` is in four collections: the same on both sides, on the source only, on the
/// destination only, and with a value of its type changed to another of that type.
pub async fn plant(servers: &Servers, database: &str) -> Result<BTreeSet<String>> {
    let ids = ids::ascending();
    let mut expected = BTreeSet::new();
    for shift in 0..4 {
        let collection = format!("planted{shift}");
        let (mut source, mut destination) = (Vec::new(), Vec::new());
        for (position, id) in ids.iter().enumerate() {
            // Values have the type of the `_id`, and the types that no `_id` has take a turn.
            let value = match position {
                0 => Bson::Array(vec![Bson::Int32(1), Bson::Double(2.0)]),
                1 => Bson::RegularExpression(bson::Regex {
                    pattern: "a|b".to_owned().try_into()?,
                    options: "i".to_owned().try_into()?,
                }),
                _ => id.clone(),
            };
            let document =
                doc! {"_id": id, "before": 1, "nested": {"v": value.clone()}, "after": "x"};
            let kind = match (position + shift) % 4 {
                0 => {
                    source.push(document.clone());
                    destination.push(document);
                    continue;
                }
                1 => {
                    source.push(document);
                    "missing"
                }
                2 => {
                    destination.push(document);
                    "extra"
                }
                _ => {
                    source.push(document.clone());
                    let mut changed = document;
                    changed.insert("nested", doc! {"v": ids::another(&value)});
                    destination.push(changed);
                    "content"
                }
            };
            expected.insert(format!("{kind} {database}.{collection} {}", shown_id(id)?));
        }
        insert(&servers.source, database, &collection, &source).await?;
        insert(&servers.destination, database, &collection, &destination).await?;
    }
    Ok(expected)
}

/// The same database verified with every way to cut and to ask.
pub fn ways(settings: &Settings) -> Vec<(&'static str, Settings)> {
    let whole = settings.clone();
    let mut each_its_own = settings.clone();
    // Smaller than any document: each becomes a border.
    each_its_own.partition_bytes = 1;
    let mut joined = each_its_own.clone();
    joined.across_types = Some(AcrossTypes::Join);
    let mut sampled = settings.clone();
    sampled.partition_bytes = 400;
    sampled.has_sample_rate = Some(false);
    sampled.workers = 1;
    vec![
        ("one task", whole),
        ("a partition for each document", each_its_own),
        ("types joined", joined),
        ("$sample", sampled),
    ]
}

pub async fn check(servers: &Servers) -> Result<()> {
    let expected = plant(servers, "planted").await?;
    for (way, settings) in ways(&servers.settings("planted")) {
        let report = verify(settings).await?;
        let found = found(&report);
        let missed: Vec<_> = expected.difference(&found).collect();
        let invented: Vec<_> = found.difference(&expected).collect();
        ensure!(
            missed.is_empty() && invented.is_empty(),
            "{way}: missed {missed:?}, invented {invented:?}"
        );
        ensure!(report.outcome == Outcome::Different);
        ensure!(
            report.totals.mismatches() == expected.len() as u64,
            "{way}: {:?}",
            report.totals
        );
        ensure!(
            report.unverified.is_empty(),
            "{way}: {:?}",
            report.unverified
        );
        for one in report
            .mismatches
            .iter()
            .filter(|one| !one.differences.is_empty())
        {
            ensure!(
                one.differences
                    .iter()
                    .all(|place| place.path.starts_with("nested.v")),
                "{one:?}"
            );
        }
    }
    Ok(())
}

/// The same ids on both sides: nothing is reported.
pub async fn check_equal(servers: &Servers) -> Result<()> {
    let documents: Vec<Document> = ids::ascending()
        .into_iter()
        .map(|id| doc! {"_id": id.clone(), "v": [id]})
        .collect();
    servers.insert_both("same", "ids", &documents).await?;
    for (way, settings) in ways(&servers.settings("same")) {
        let report = verify(settings).await?;
        ensure!(report.outcome == Outcome::Equal, "{way}: {report}");
        ensure!(
            report.totals.equal == documents.len() as u64,
            "{way}: {:?}",
            report.totals
        );
        ensure!(report.totals.rechecked == 0, "{way}: {:?}", report.totals);
    }
    Ok(())
}
