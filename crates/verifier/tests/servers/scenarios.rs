//! What else two servers may differ in, and what can be asked.

use crate::{Servers, found, insert, on_runtime, planted};
use anyhow::{Context, Result, ensure};
use bson::{Document, doc};
use verifier::cluster::{Cluster, parse_filter};
use verifier::compare::Comparison;
use verifier::hashing;
use verifier::merge::Side;
use verifier::namespace::{Mapping, Pattern};
use verifier::settings::Partitioning;
use verifier::{Outcome, Report, Settings, verify};

#[test]
fn two_real_servers() -> Result<()> {
    on_runtime(async {
        let servers = Servers::two_mongods().await?;
        planted::check_equal(&servers).await.context("equal")?;
        planted::check(&servers).await.context("planted")?;
        hashes_are_refused(&servers).await.context("hashes")?;
        time_series(&servers).await.context("time series")?;
        on_any_servers(&servers).await?;
        collations(&servers).await.context("collations")?;
        metadata(&servers).await.context("metadata")?;
        crate::as_written::check(&servers)
            .await
            .context("as written")?;
        kinds_of_collections(&servers)
            .await
            .context("kinds of collections")?;
        bad_input(&servers).await.context("bad input")
    })
}

/// What TernDB must do as well.
pub async fn on_any_servers(servers: &Servers) -> Result<()> {
    ids_that_only_look_equal(servers).await.context("ids")?;
    natural(servers).await.context("natural")?;
    field_order(servers).await.context("field order")?;
    many_documents(servers).await.context("many")?;
    index_options(servers).await.context("index options")?;
    names_and_filters(servers).await.context("names")
}

async fn ids_that_only_look_equal(servers: &Servers) -> Result<()> {
    insert(&servers.source, "alike", "c", &[doc! {"_id": 1}]).await?;
    insert(&servers.destination, "alike", "c", &[doc! {"_id": 1.0}]).await?;
    let found = found(&verify(servers.settings("alike")).await?);
    let expected = [
        r#"extra alike.c double {"$numberDouble":"1.0"}"#,
        r#"missing alike.c int {"$numberInt":"1"}"#,
    ];
    ensure!(found.iter().eq(expected.iter()), "{found:?}");
    Ok(())
}

async fn field_order(servers: &Servers) -> Result<()> {
    insert(
        &servers.source,
        "order",
        "c",
        &[doc! {"_id": 1, "a": 1, "b": {"c": 1, "d": 2}}],
    )
    .await?;
    insert(
        &servers.destination,
        "order",
        "c",
        &[doc! {"_id": 1, "b": {"d": 2, "c": 1}, "a": 1}],
    )
    .await?;
    let mut settings = servers.settings("order");
    ensure!(verify(settings.clone()).await?.totals.content == 1);
    settings.comparison = Comparison::IgnoreFieldOrder;
    ensure!(verify(settings).await?.outcome == Outcome::Equal);
    Ok(())
}

/// How many documents are many: as many as `TERNDB_VERIFY_DOCUMENTS` says, on demand.
fn many() -> usize {
    let given = std::env::var("TERNDB_VERIFY_DOCUMENTS").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(6_000)
}

/// Enough for many batches and partitions, with differences at random places.
pub async fn many_documents(servers: &Servers) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(11);
    let (mut source, mut destination) = (Vec::new(), Vec::new());
    let (mut missing, mut extra, mut content) = (0, 0, 0);
    for number in 0..many() {
        let document = doc! {"_id": number as i64, "text": "x".repeat(random.usize(0..600))};
        // Single ones, and a long stretch that only one side has.
        match (random.u8(0..200), (2000..2700).contains(&number)) {
            (0, _) | (_, true) => {
                source.push(document);
                missing += 1;
            }
            (1, _) => {
                destination.push(document);
                extra += 1;
            }
            (2, _) => {
                source.push(document.clone());
                let mut changed = document;
                changed.insert("text", "y");
                destination.push(changed);
                content += 1;
            }
            (_, false) => {
                source.push(document.clone());
                destination.push(document);
            }
        }
    }
    insert(&servers.source, "many", "c", &source).await?;
    insert(&servers.destination, "many", "c", &destination).await?;
    // So many that chance, which samples, cannot leave the collection whole.
    for partitions in [90, 20, 0] {
        let bytes = many() as u64 * 300;
        let partition_bytes = bytes.checked_div(partitions).unwrap_or(10 * bytes);
        let mut settings = servers.settings("many");
        settings.partition_bytes = partition_bytes;
        settings.described_max = 5;
        let report = verify(settings).await?;
        let counts = report.totals;
        ensure!(
            (counts.missing, counts.extra, counts.content) == (missing, extra, content),
            "{counts:?}"
        );
        ensure!(report.mismatches.len() == 5);
        ensure!(counts.source_documents == source.len() as u64);
        ensure!(counts.destination_documents == destination.len() as u64);
        // What needs a second look is what differs, not its neighbours.
        ensure!(counts.rechecked == counts.mismatches(), "{counts:?}");
        let several = report.collections[0].partitions > 1;
        ensure!(several == (partitions > 0), "{:?}", report.collections);
    }
    Ok(())
}

async fn collations(servers: &Servers) -> Result<()> {
    let words: Vec<String> = (0..400)
        .map(|n| format!("{}{n:03}", ["a", "B", "ä", "Z"][n % 4]))
        .collect();
    let documents: Vec<Document> = words
        .iter()
        .map(|word| doc! {"_id": word, "v": 1})
        .collect();
    let collated = |collection: &str, locale: &str| {
        doc! {"create": collection, "collation": {"locale": locale, "strength": 2}}
    };
    for (collection, other) in [("same", "de"), ("differing", "sv")] {
        servers
            .source
            .database("words")
            .run_command(collated(collection, "de"))
            .await?;
        servers
            .destination
            .database("words")
            .run_command(collated(collection, other))
            .await?;
        insert(&servers.source, "words", collection, &documents).await?;
        insert(&servers.destination, "words", collection, &documents[..399]).await?;
        servers
            .destination
            .database("words")
            .collection::<Document>(collection)
            .update_one(doc! {"_id": "ä002"}, doc! {"$set": {"v": 2}})
            .await?;
    }
    let mut settings = servers.settings("words");
    settings.partition_bytes = 1000;
    let report = verify(settings).await?;
    for one in &report.collections {
        let counts = one.counts;
        ensure!(
            (counts.missing, counts.extra, counts.content, counts.equal) == (1, 0, 1, 398),
            "{one:?}"
        );
    }
    ensure!(
        report
            .metadata_mismatches
            .iter()
            .all(|one| one.namespace == "words.differing")
    );
    ensure!(!report.metadata_mismatches.is_empty());
    Ok(())
}

/// The options that every server has.
async fn index_options(servers: &Servers) -> Result<()> {
    let indexes = doc! {"createIndexes": "c", "indexes": [
        {"key": {"a": 1, "b": -1}, "name": "ab", "unique": true},
        {"key": {"c": 1}, "name": "c", "partialFilterExpression": {"d": {"$exists": true}}},
        {"key": {"h": "hashed"}, "name": "h"},
        {"key": {"s": 1}, "name": "s", "sparse": true},
        {"key": {"t": 1}, "name": "t", "expireAfterSeconds": 3600},
    ]};
    for client in servers.clients() {
        client
            .database("indexes")
            .run_command(indexes.clone())
            .await?;
    }
    let report = verify(servers.settings("indexes")).await?;
    ensure!(report.outcome == Outcome::Equal, "{report}");
    let changes = [
        doc! {"collMod": "c", "index": {"name": "ab", "hidden": true}},
        doc! {"collMod": "c", "index": {"name": "t", "expireAfterSeconds": 60}},
        doc! {"dropIndexes": "c", "index": "h"},
    ];
    for change in changes {
        servers
            .destination
            .database("indexes")
            .run_command(change)
            .await?;
    }
    let report = verify(servers.settings("indexes")).await?;
    let what: Vec<&str> = report
        .metadata_mismatches
        .iter()
        .map(|one| one.what.as_str())
        .collect();
    let expected = ["index ab, hidden", "index h", "index t, expireAfterSeconds"];
    ensure!(what == expected, "{what:?}");
    Ok(())
}

/// Documents of clustered and capped collections.
async fn kinds_of_collections(servers: &Servers) -> Result<()> {
    let documents: Vec<Document> = (0..300)
        .map(|n| doc! {"_id": format!("{n}"), "v": n})
        .collect();
    let clustered =
        doc! {"create": "clustered", "clusteredIndex": {"key": {"_id": 1}, "unique": true}};
    let capped = doc! {"create": "capped", "capped": true, "size": 1_000_000};
    for (collection, create) in [("clustered", clustered), ("capped", capped)] {
        servers
            .source
            .database("kinds")
            .run_command(create.clone())
            .await?;
        servers
            .destination
            .database("kinds")
            .run_command(create)
            .await?;
        insert(&servers.source, "kinds", collection, &documents).await?;
        insert(&servers.destination, "kinds", collection, &documents[1..]).await?;
    }
    for (_, mut settings) in planted::ways(&servers.settings("kinds")) {
        settings.partition_bytes = settings.partition_bytes.max(1000);
        let report = verify(settings).await?;
        ensure!(
            report.totals.missing == 2 && report.totals.equal == 598,
            "{report}"
        );
        ensure!(report.totals.mismatches() == 2, "{report}");
    }
    let mut settings = servers.settings("kinds");
    settings.partitioning = Partitioning::Natural;
    // So small that chance, which samples, cannot leave them whole.
    settings.partition_bytes = 200;
    let report = verify(settings).await?;
    ensure!(
        report.totals.missing == 2 && report.totals.equal == 598,
        "{report}"
    );
    for one in &report.collections {
        ensure!(one.partitions > 2, "{one:?}");
    }
    Ok(())
}

/// In stored order, with documents in another order than their `_id`s, holes, and differences of
/// every kind: those that only the destination has are found as well.
async fn natural(servers: &Servers) -> Result<()> {
    let by_record = |database: &str| {
        let mut settings = servers.settings(database);
        settings.partitioning = Partitioning::Natural;
        settings.partition_bytes = 3000;
        settings
    };
    for database in ["same", "planted"] {
        let by_id = verify(servers.settings(database)).await?;
        let mut settings = by_record(database);
        settings.partition_bytes = 400;
        let report = verify(settings).await?;
        ensure!(found(&report) == found(&by_id), "{report}");
        ensure!(report.totals.equal == by_id.totals.equal, "{report}");
    }
    let mut random = fastrand::Rng::with_seed(3);
    let mut ids: Vec<i32> = (0..2000).collect();
    random.shuffle(&mut ids);
    let documents: Vec<Document> = ids
        .iter()
        .map(|id| doc! {"_id": id, "text": "x".repeat(50)})
        .collect();
    servers.insert_both("stored", "c", &documents).await?;
    insert(&servers.source, "stored", "empty", &[]).await?;
    insert(&servers.destination, "stored", "empty", &[doc! {"_id": 1}]).await?;
    let report = verify(by_record("stored")).await?;
    ensure!(
        report.totals.equal == 2000 && report.totals.extra == 1 && report.totals.mismatches() == 1,
        "{report}"
    );
    for (one, several) in report.collections.iter().zip([true, false]) {
        // One may be the pass over the `_id`s.
        ensure!((one.partitions > 2) == several, "{one:?}");
    }
    let ids_of = |range: std::ops::Range<i32>| {
        let ids: Vec<i32> = range.collect();
        doc! {"delete": "c", "deletes": [{"q": {"_id": {"$in": ids}}, "limit": 0}]}
    };
    let source = servers.source.database("stored");
    source.run_command(ids_of(0..900)).await?;
    let destination = servers.destination.database("stored");
    destination.run_command(ids_of(1000..1100)).await?;
    let report = verify(by_record("stored")).await?;
    ensure!(
        (report.totals.missing, report.totals.extra) == (100, 901),
        "{report}"
    );
    Ok(())
}

/// The real 6.0 makes hashes of values and not of their bytes: too little to rely on.
async fn hashes_are_refused(servers: &Servers) -> Result<()> {
    let mut settings = servers.settings("planted");
    settings.hash = true;
    let Err(error) = verify(settings.clone()).await else {
        anyhow::bail!("the server has no key strings");
    };
    ensure!(error.to_string().contains("leave --hash out"), "{error}");
    let source = Cluster::connect(Side::Source, &settings).await?;
    let destination = Cluster::connect(Side::Destination, &settings).await?;
    let by_value = doc! {"$toHashedIndexKey": "$$ROOT"};
    let checked = hashing::check(&source, &destination, &by_value).await?;
    let why = checked.err().unwrap_or_default();
    ensure!(why.contains("different values for the same"), "{why}");
    Ok(())
}

/// Hashes of documents' bytes: what differs is found, and then read whole.
pub async fn hashes(servers: &Servers) -> Result<()> {
    for database in ["same", "planted", "alike", "order"] {
        let mut settings = servers.settings(database);
        let whole = verify(settings.clone()).await?;
        settings.hash = true;
        for (way, settings) in planted::ways(&settings) {
            let report = verify(settings).await?;
            ensure!(
                found(&report) == found(&whole),
                "{database} {way}: {report}"
            );
            ensure!(report.totals.equal == whole.totals.equal, "{way}: {report}");
            let differences = |report: &Report| {
                let places = report.mismatches.iter().map(|one| &one.differences);
                places.flatten().count()
            };
            ensure!(
                differences(&report) == differences(&whole),
                "{way}: {report}"
            );
        }
    }
    Ok(())
}

/// Measurements in any order, several of one time, some twice.
async fn time_series(servers: &Servers) -> Result<()> {
    let create = doc! {"create": "c", "timeseries": {"timeField": "t", "metaField": "m"}};
    let measurement = |n: i64| {
        let time = bson::DateTime::from_millis(1_700_000_000_000 + n / 4 * 1000);
        doc! {"t": time, "m": n % 7, "a": n, "b": format!("{n}"), "_id": n / 2}
    };
    let mut measurements: Vec<Document> = (0..2000).map(measurement).collect();
    measurements.push(measurement(5));
    let mut random = fastrand::Rng::with_seed(8);
    for client in servers.clients() {
        client
            .database("series")
            .run_command(create.clone())
            .await?;
        random.shuffle(&mut measurements);
        insert(client, "series", "c", &measurements).await?;
    }
    let report = verify(servers.settings("series")).await?;
    ensure!(report.outcome == Outcome::Equal, "{report}");
    ensure!(report.totals.equal == 2001, "{report}");
    // One more of the same is missing, and another one is extra.
    insert(&servers.source, "series", "c", &[measurement(5)]).await?;
    insert(&servers.destination, "series", "c", &[measurement(9999)]).await?;
    let report = verify(servers.settings("series")).await?;
    ensure!(
        (
            report.totals.missing,
            report.totals.extra,
            report.totals.equal
        ) == (1, 1, 2001),
        "{report}"
    );
    Ok(())
}

async fn metadata(servers: &Servers) -> Result<()> {
    let both = [
        doc! {"create": "plain"},
        doc! {"create": "capped", "capped": true, "size": 8192, "max": 10},
        doc! {"create": "ruled", "validator": {"a": {"$gt": 1}}, "validationLevel": "moderate"},
        doc! {"create": "view", "viewOn": "plain", "pipeline": [{"$match": {"a": 1}}]},
        doc! {"createIndexes": "plain", "indexes": [
            {"key": {"a": 1, "b": -1}, "name": "ab", "unique": true},
            {"key": {"c": 1}, "name": "c", "partialFilterExpression": {"d": {"$exists": true}}},
            {"key": {"t": "text"}, "name": "t"},
            {"key": {"e": 1}, "name": "e", "collation": {"locale": "fr"}},
        ]},
    ];
    for command in both {
        servers
            .source
            .database("metadata")
            .run_command(command.clone())
            .await?;
        servers
            .destination
            .database("metadata")
            .run_command(command)
            .await?;
    }
    let report = verify(servers.settings("metadata")).await?;
    ensure!(report.outcome == Outcome::Equal, "{report}");

    let on_source = [
        doc! {"create": "lost"},
        doc! {"create": "kind"},
        doc! {"createIndexes": "plain", "indexes": [{"key": {"x": 1}, "name": "x", "sparse": true}]},
        doc! {"createIndexes": "plain", "indexes": [{"key": {"y": 1}, "name": "y"}]},
    ];
    let on_destination = [
        doc! {"create": "new"},
        doc! {"create": "kind", "viewOn": "plain", "pipeline": []},
        doc! {"createIndexes": "plain", "indexes": [{"key": {"x": -1}, "name": "x"}]},
        doc! {"collMod": "ruled", "validator": {"a": {"$gt": 2}}},
    ];
    for command in on_source {
        servers
            .source
            .database("metadata")
            .run_command(command)
            .await?;
    }
    for command in on_destination {
        servers
            .destination
            .database("metadata")
            .run_command(command)
            .await?;
    }
    let report = verify(servers.settings("metadata")).await?;
    let mut what: Vec<String> = report
        .metadata_mismatches
        .iter()
        .map(|one| format!("{} {}", one.namespace, one.what))
        .collect();
    what.sort();
    let expected = [
        "metadata.kind type",
        "metadata.lost collection",
        "metadata.new collection",
        "metadata.plain index x, key",
        "metadata.plain index x, sparse",
        "metadata.plain index y",
        "metadata.ruled option validator",
    ];
    ensure!(what == expected, "{what:?}");
    Ok(())
}

async fn names_and_filters(servers: &Servers) -> Result<()> {
    let documents: Vec<Document> = (0..20).map(|n| doc! {"_id": n, "year": 2000 + n}).collect();
    insert(&servers.source, "old", "orders", &documents).await?;
    insert(&servers.source, "old", "scratch", &documents).await?;
    insert(&servers.destination, "new", "orders", &documents[5..]).await?;
    let mut settings = servers.settings("old");
    settings.mapping = Mapping::parse(&["old=new".to_owned()])?;
    settings.selection.exclude = vec![Pattern::parse("old.scr*")?];
    let report = verify(settings.clone()).await?;
    ensure!(
        report.totals.missing == 5 && report.metadata_mismatches.is_empty(),
        "{report}"
    );
    ensure!(report.collections[0].destination == "new.orders");
    settings.filter = Some(parse_filter(r#"{"year": {"$gte": 2005}}"#)?);
    settings.partition_bytes = 100;
    let report = verify(settings.clone()).await?;
    ensure!(
        report.outcome == Outcome::Equal && report.totals.equal == 15,
        "{report}"
    );
    settings.bytes_per_second_max = Some(100_000_000);
    settings.read_concern = Some("local".to_owned());
    ensure!(verify(settings.clone()).await?.outcome == Outcome::Equal);
    // What the destination has under a name that the mapping left is nobody's counterpart.
    insert(&servers.destination, "old", "orders", &documents).await?;
    for existing in [true, false] {
        let report = verify(settings.clone()).await?;
        let found: Vec<(&str, bool)> = report
            .metadata_mismatches
            .iter()
            .map(|one| (one.namespace.as_str(), one.source.is_some()))
            .collect();
        let expected: &[_] = match existing {
            true => &[("old.orders", false)],
            // It does not stand in for the one that is gone.
            false => &[("old.orders", true), ("old.orders", false)],
        };
        ensure!(found == expected, "{report}");
        ensure!(report.totals.mismatches() == 0, "{report}");
        let counterpart = servers.destination.database("new");
        counterpart.collection::<Document>("orders").drop().await?;
    }
    Ok(())
}

async fn bad_input(servers: &Servers) -> Result<()> {
    let good = || servers.settings("same");
    // Nobody listens there; a port that was free a moment ago might be another test's by now.
    let nowhere = "mongodb://user:secret@127.0.0.1:1".to_owned();
    let quick = std::time::Duration::from_millis(500);
    let cases: Vec<(Settings, &str)> = vec![
        (
            Settings {
                to: nowhere,
                connect_timeout: quick,
                ..good()
            },
            "cannot be reached",
        ),
        (
            Settings {
                to: servers.from.clone(),
                ..good()
            },
            "are the same",
        ),
        (
            Settings {
                to: "http://x".to_owned(),
                ..good()
            },
            "URI of the destination is not valid",
        ),
        (
            Settings {
                to: "mongodb+srv://x.y.z".to_owned(),
                ..good()
            },
            "mongodb+srv",
        ),
        (
            Settings {
                to: servers.to.replace("mongodb://", "mongodb://user:secret@"),
                ..good()
            },
            "refused the credentials",
        ),
        (
            servers.settings("nothing.like_it"),
            "no collection matches --include nothing.like_it",
        ),
        (
            Settings {
                workers: 0,
                ..good()
            },
            "at least one worker",
        ),
        (
            Settings {
                workers: 99_999_999_999,
                ..good()
            },
            "at most 1000",
        ),
        (
            Settings {
                filter: Some(parse_filter(r#"{"v": {"$bad": 1}}"#)?),
                ..good()
            },
            "the source refuses the filter (BadValue, unknown operator: $bad)",
        ),
    ];
    for (settings, expected) in cases {
        let Err(error) = verify(settings).await else {
            anyhow::bail!("{expected}: no error");
        };
        let shown = error.to_string();
        ensure!(shown.contains(expected), "{expected}: {shown}");
        ensure!(
            !shown.contains("secret") && !shown.contains('\n'),
            "{shown}"
        );
    }
    Ok(())
}
