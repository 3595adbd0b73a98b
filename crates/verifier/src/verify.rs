//! A whole verification: namespaces, metadata, then documents by several workers, then the report.
//!
//! ```text
//! list both sides ─► pair namespaces ─► compare metadata ─► plan ──tasks──► workers ─► report
//! ```
//!
//! What goes wrong before the first document is compared ends the verification with an error. From
//! then on, what goes wrong with one collection is noted as not verified, and the others go on.

use crate::cluster::{Cluster, CollectionSize};
use crate::error::VerifyError;
use crate::merge::Side;
use crate::metadata::{CollectionEntry, MetadataMismatch, compare_collections, compare_indexes};
use crate::namespace::Namespace;
use crate::pace::Pace;
use crate::partition::{Sampling, sampling};
use crate::plan::Planned;
use crate::progress::{self, CollectionTally, Tally};
use crate::report::{CollectionReport, Counts, DocumentMismatch, Outcome, Report, Unverified};
use crate::scan::{Findings, Pair, Shared, Task};
use crate::settings::Settings;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tokio::task::JoinSet;

/// Partitions that wait for a worker. When it is full, sampling waits; the limit is far above what
/// workers take on before the server would give up a waiting cursor.
const TASKS_WAITING_MAX: usize = 16 * 1024;
const TASK_ATTEMPTS: u32 = 4;
const RETRY_DELAY: Duration = Duration::from_millis(250);

type Listed = BTreeMap<Namespace, CollectionEntry>;

/// What the workers add to.
struct Results {
    collections: Vec<CollectionReport>,
    mismatches: Vec<DocumentMismatch>,
    unverified: Vec<Unverified>,
}

/// Compares two clusters that nobody writes to.
pub async fn verify(settings: Settings) -> Result<Report, VerifyError> {
    check_settings(&settings)?;
    let start = Instant::now();
    let (source, destination) = tokio::try_join!(
        Cluster::connect(Side::Source, &settings),
        Cluster::connect(Side::Destination, &settings),
    )?;
    let (on_source, on_destination) = tokio::try_join!(
        list(&source, &settings, false),
        list(&destination, &settings, true),
    )?;
    check_includes(&settings, &on_source, &on_destination)?;

    let mut metadata = Vec::new();
    let mut unverified = Vec::new();
    let mut planned = Vec::new();
    for (name, entry) in &on_source {
        match on_destination.get(name) {
            None => metadata.push(one_sided(name, entry, Side::Source)),
            Some(other) => {
                let names = (name.clone(), settings.mapping.to_destination(name));
                let pair = compare_pair(
                    (&source, &destination),
                    (&names.0, &names.1),
                    (entry, other),
                    &mut metadata,
                    &mut unverified,
                );
                if pair.await? {
                    planned.push(
                        plan_pair(&source, names, (entry, other), planned.len(), &settings).await,
                    );
                }
            }
        }
    }
    for (name, entry) in &on_destination {
        if !on_source.contains_key(name) {
            metadata.push(one_sided(name, entry, Side::Destination));
        }
    }

    let tallies = planned
        .iter()
        .map(|one| CollectionTally::new(one.pair.source.to_string(), one.pair.size.documents));
    let shared = Arc::new(Shared {
        tally: Tally::new(tallies.collect()),
        source,
        destination,
        comparison: settings.comparison,
        filter: settings.filter.clone(),
        described_max: settings.described_max,
        pace: Pace::new(settings.bytes_per_second_max, Instant::now()),
    });
    let results = Results {
        collections: planned.iter().map(report_of).collect(),
        mismatches: Vec::new(),
        unverified,
    };
    let results = compare_documents(&shared, planned, results, &settings).await;
    Ok(Report {
        outcome: Outcome::Unknown,
        from: shared.source.address.clone(),
        to: shared.destination.address.clone(),
        seconds: start.elapsed().as_secs_f64(),
        totals: Counts::default(),
        collections: results.collections,
        metadata_mismatches: metadata,
        mismatches: results.mismatches,
        unverified: results.unverified,
    }
    .settle())
}

fn check_settings(settings: &Settings) -> Result<(), VerifyError> {
    if settings.from == settings.to && settings.mapping.is_empty() {
        return Err(VerifyError::settings(
            "--from and --to are the same, which would prove nothing: give two clusters, or a --map to compare within one",
        ));
    }
    if settings.workers == 0 {
        return Err(VerifyError::settings("there must be at least one worker"));
    }
    Ok(())
}

/// The selected namespaces of one side, by their names on the source.
async fn list(cluster: &Cluster, settings: &Settings, mapped: bool) -> Result<Listed, VerifyError> {
    let mut found = Listed::new();
    for database in cluster.databases().await? {
        if matches!(database.as_str(), "admin" | "config" | "local") {
            continue;
        }
        for entry in cluster.collections(&database).await? {
            let namespace = Namespace::new(&database, &entry.name);
            let name = match mapped {
                true => settings.mapping.to_source(&namespace),
                false => namespace.clone(),
            };
            if namespace.is_internal() || !settings.selection.selects(&name) {
                continue;
            }
            let shown = name.to_string();
            if found.insert(name, entry).is_some() {
                return Err(VerifyError::settings(format!(
                    "the mapping gives {shown} two counterparts on the destination: map each collection to a name of its own"
                )));
            }
        }
    }
    if !mapped {
        check_distinct(&found, settings)?;
    }
    Ok(found)
}

fn check_distinct(found: &Listed, settings: &Settings) -> Result<(), VerifyError> {
    let mut targets = BTreeMap::new();
    for name in found.keys() {
        let target = settings.mapping.to_destination(name);
        if let Some(other) = targets.insert(target.clone(), name) {
            return Err(VerifyError::settings(format!(
                "{other} and {name} of the source are both mapped to {target}: map each collection to a name of its own"
            )));
        }
    }
    Ok(())
}

/// A name that nothing has is a mistake rather than an empty result.
fn check_includes(
    settings: &Settings,
    source: &Listed,
    destination: &Listed,
) -> Result<(), VerifyError> {
    for pattern in &settings.selection.include {
        let mut names = source.keys().chain(destination.keys());
        if !names.any(|name| pattern.matches(name)) {
            return Err(VerifyError::settings(format!(
                "no collection matches --include {pattern} on either side: check the name, the excludes, and that the user may list it"
            )));
        }
    }
    if source.is_empty() && destination.is_empty() {
        return Err(VerifyError::settings(
            "neither side has a collection to verify: check the URIs, the patterns, and what the users may list",
        ));
    }
    Ok(())
}

fn one_sided(name: &Namespace, entry: &CollectionEntry, side: Side) -> MetadataMismatch {
    let there = Some(entry.kind.clone());
    let (source, destination) = match side {
        Side::Source => (there, None),
        Side::Destination => (None, there),
    };
    MetadataMismatch {
        namespace: name.to_string(),
        what: "collection".to_owned(),
        source,
        destination,
    }
}

/// Compares what two namespaces are; says whether their documents can be compared.
async fn compare_pair(
    (source, destination): (&Cluster, &Cluster),
    (name, destination_name): (&Namespace, &Namespace),
    (entry, other): (&CollectionEntry, &CollectionEntry),
    metadata: &mut Vec<MetadataMismatch>,
    unverified: &mut Vec<Unverified>,
) -> Result<bool, VerifyError> {
    metadata.extend(compare_collections(&name.to_string(), entry, other));
    match (entry.kind.as_str(), other.kind.as_str()) {
        ("collection", "collection") => {
            let (indexes, others) =
                tokio::try_join!(source.indexes(name), destination.indexes(destination_name))?;
            metadata.extend(compare_indexes(&name.to_string(), &indexes, &others));
            Ok(true)
        }
        ("timeseries", "timeseries") => {
            unverified.push(Unverified {
                namespace: name.to_string(),
                why: "the measurements of time series collections are not compared yet; the options were".to_owned(),
            });
            Ok(false)
        }
        // Of a view there is nothing beside its definition; another pair is a mismatch already.
        (_, _) => Ok(false),
    }
}

async fn plan_pair(
    source: &Cluster,
    (name, destination): (Namespace, Namespace),
    (entry, other): (&CollectionEntry, &CollectionEntry),
    position: usize,
    settings: &Settings,
) -> Planned {
    // Without a size the collection is one task, which takes longer and proves as much.
    let size = source.size(&name).await.unwrap_or_default();
    let CollectionSize { documents, bytes } = size;
    let sampling = match entry.collation() == other.collation() {
        true => sampling(
            documents,
            bytes,
            settings.partition_bytes,
            source.has_sample_rate,
        ),
        // A bound would cut the two sides at different places.
        false => Sampling::None,
    };
    Planned {
        pair: Arc::new(Pair {
            source: name,
            destination,
            size,
            position,
        }),
        sampling,
    }
}

fn report_of(planned: &Planned) -> CollectionReport {
    CollectionReport {
        namespace: planned.pair.source.to_string(),
        destination: planned.pair.destination.to_string(),
        partitions: 0,
        counts: Counts::default(),
    }
}

/// Plans and works at the same time, until everything is compared.
async fn compare_documents(
    shared: &Arc<Shared>,
    planned: Vec<Planned>,
    results: Results,
    settings: &Settings,
) -> Results {
    let results = Arc::new(Mutex::new(results));
    let (tasks, waiting) = mpsc::channel(TASKS_WAITING_MAX);
    let waiting = Arc::new(AsyncMutex::new(waiting));
    let mut running = JoinSet::new();
    for _ in 0..settings.workers {
        running.spawn(work(
            shared.clone(),
            waiting.clone(),
            results.clone(),
            settings.described_max,
        ));
    }
    // The workers hold it: were they all gone, planning would end as well.
    drop(waiting);
    running.spawn(plan_all(shared.clone(), planned, tasks));
    let showing = tokio::spawn(progress::show(shared.clone(), settings.display));
    while let Some(ended) = running.join_next().await {
        if let Err(panicked) = ended {
            lock(&results).unverified.push(Unverified {
                namespace: "everything".to_owned(),
                why: format!("a worker failed, which is a bug of the verifier: {panicked}"),
            });
        }
    }
    showing.abort();
    // Bars must be off the screen before the report is on it; an aborted task is an expected error.
    let _ = showing.await;
    let mut results = lock(&results);
    Results {
        collections: std::mem::take(&mut results.collections),
        mismatches: std::mem::take(&mut results.mismatches),
        unverified: std::mem::take(&mut results.unverified),
    }
}

fn lock(results: &Mutex<Results>) -> std::sync::MutexGuard<'_, Results> {
    // Additions to lists and counts cannot be left half done.
    results.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn plan_all(shared: Arc<Shared>, planned: Vec<Planned>, tasks: mpsc::Sender<Task>) {
    for collection in planned {
        collection.run(&shared, &tasks).await;
    }
}

async fn work(
    shared: Arc<Shared>,
    waiting: Arc<AsyncMutex<mpsc::Receiver<Task>>>,
    results: Arc<Mutex<Results>>,
    described_max: usize,
) {
    loop {
        let next = waiting.lock().await.recv().await;
        let Some(task) = next else { return };
        let ended = run_with_retries(&shared, &task).await;
        shared.tally.task_closed(task.pair.position);
        let mut results = lock(&results);
        match ended {
            Ok(findings) => {
                let collection = &mut results.collections[task.pair.position];
                collection.partitions += 1;
                collection.counts.add(&findings.counts);
                let room = described_max.saturating_sub(results.mismatches.len());
                results
                    .mismatches
                    .extend(findings.mismatches.into_iter().take(room));
            }
            Err(error) => {
                let namespace = task.pair.source.to_string();
                let why = error.to_string();
                // Once is enough: the next partitions fail alike.
                if !results
                    .unverified
                    .iter()
                    .any(|one| one.namespace == namespace)
                {
                    results.unverified.push(Unverified { namespace, why });
                }
            }
        }
    }
}

async fn run_with_retries(shared: &Arc<Shared>, task: &Task) -> Result<Findings, VerifyError> {
    let mut delay = RETRY_DELAY;
    for _ in 1..TASK_ATTEMPTS {
        match task.run(shared).await {
            Err(error) if error.is_transient() => {
                tokio::time::sleep(delay).await;
                delay *= 4;
            }
            ended => return ended,
        }
    }
    task.run(shared).await
}
