//! The numbers of a run for Prometheus, taken when they are asked for.

use super::answers::lag_seconds;
use crate::merge::Side;
use crate::scan::Shared;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::Ordering;

type Labels = Vec<(&'static str, String)>;

struct Page {
    registry: Registry,
}

impl Page {
    fn number(&mut self, name: &str, help: &str, value: u64) {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        self.registry.register(name, help, gauge);
    }

    fn numbers(&mut self, name: &str, help: &str, values: Vec<(Labels, u64)>) {
        let family = Family::<Labels, Gauge>::default();
        for (labels, value) in values {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            family.get_or_create(&labels).set(value);
        }
        self.registry.register(name, help, family);
    }
}

pub fn page(run: &Shared) -> String {
    let mut page = Page {
        registry: Registry::with_prefix("terndb_verify"),
    };
    let status = &run.status;
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    page.number(
        "generation",
        "The generation under way",
        load(&status.generation),
    );
    page.number(
        "documents_read",
        "Documents of the source read by scans",
        run.tally.documents(),
    );
    page.number(
        "documents_expected",
        "Documents of the source, as it estimates them",
        run.tally.documents_expected(),
    );
    page.number(
        "bytes_read",
        "Bytes of either side read by scans",
        run.tally.bytes(),
    );
    page.number(
        "rechecked",
        "Documents looked at again",
        load(&status.documents_rechecked),
    );
    page.number(
        "tasks_opened",
        "Parts of collections to compare",
        load(&status.tasks_open),
    );
    page.number(
        "tasks_done",
        "Parts of collections compared",
        load(&status.tasks_done),
    );
    page.number(
        "namespace_mismatches",
        "Differences of collections and indexes",
        status.metadata().len() as u64,
    );
    page.number(
        "not_verified",
        "Collections that could not be read in this generation",
        status.failures().len() as u64,
    );
    page.number(
        "writes_off",
        "Whether writes were said to be off",
        u64::from(status.writes_off.get().is_some()),
    );
    let mut mismatches = Vec::new();
    for (namespace, counts) in run.ledger.counts() {
        let kinds = [
            ("missing", counts.missing),
            ("extra", counts.extra),
            ("content", counts.content),
            ("repeated", counts.repeated),
        ];
        for (kind, count) in kinds {
            let labels = vec![("namespace", namespace.clone()), ("kind", kind.to_owned())];
            mismatches.push((labels, count));
        }
    }
    page.numbers("mismatches", "Documents that differ now", mismatches);
    let (mut lags, mut changes) = (Vec::new(), Vec::new());
    for side in Side::BOTH {
        let stream = status.stream(side);
        let seconds = lag_seconds(stream).unwrap_or(0);
        lags.push((
            vec![("side", side.to_string())],
            u64::try_from(seconds).unwrap_or(0),
        ));
        let kinds = [
            ("insert", &stream.inserts),
            ("update", &stream.updates),
            ("replace", &stream.replaces),
            ("delete", &stream.deletes),
            ("definition", &stream.definitions),
        ];
        for (kind, counter) in kinds {
            let labels = vec![("side", side.to_string()), ("kind", kind.to_owned())];
            changes.push((labels, load(counter)));
        }
    }
    page.numbers(
        "lag_seconds",
        "How far behind a side's changes are known",
        lags,
    );
    page.numbers("changes", "Changes that were followed", changes);
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut text, &page.registry);
    text
}
