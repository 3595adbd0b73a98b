//! How far the verification is: counted by the workers, shown on standard error.
//!
//! A terminal gets a bar for each collection that is being compared and one for everything, with
//! rates and the time left; a log gets a line now and then. The counts are for people: a task that
//! is run again counts again here. The report counts for itself.

use crate::report::counted;
use crate::scan::Shared;
use crate::settings::Display;
use crate::status::{Control, Phase};
use indicatif::{HumanBytes, MultiProgress, ProgressBar, ProgressState, ProgressStyle};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

const BARS_INTERVAL: Duration = Duration::from_millis(200);
const LINES_INTERVAL: Duration = Duration::from_secs(10);
/// More bars than this do not help anybody.
const COLLECTION_BARS_MAX: usize = 8;

/// One collection's share.
pub struct CollectionTally {
    name: String,
    /// As the source estimates it.
    documents_expected: u64,
    documents: AtomicU64,
    /// Tasks that were handed out and not finished, and one for the planning itself.
    open: AtomicU64,
}

impl CollectionTally {
    pub fn new(name: String, documents_expected: u64) -> CollectionTally {
        CollectionTally {
            name,
            documents_expected,
            documents: AtomicU64::new(0),
            open: AtomicU64::new(1),
        }
    }

    fn documents(&self) -> u64 {
        self.documents.load(Ordering::Relaxed)
    }

    pub fn task_opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// A task, or the planning, has ended.
    pub fn task_closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    fn is_active(&self) -> bool {
        self.documents() > 0 && self.open.load(Ordering::Relaxed) > 0
    }
}

/// What was read so far.
#[derive(Default)]
pub struct Tally {
    collections: RwLock<Vec<Arc<CollectionTally>>>,
    bytes: AtomicU64,
}

impl Tally {
    /// One more collection is compared.
    pub fn open(&self, name: String, documents_expected: u64) -> Arc<CollectionTally> {
        let one = Arc::new(CollectionTally::new(name, documents_expected));
        let mut collections = self
            .collections
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        collections.push(one.clone());
        one
    }

    /// Documents of the source that were read, and bytes of either side.
    pub fn add(&self, collection: &CollectionTally, documents: u64, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        collection.documents.fetch_add(documents, Ordering::Relaxed);
    }

    fn collections(&self) -> Vec<Arc<CollectionTally>> {
        let collections = self.collections.read();
        collections.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn len(&self) -> usize {
        self.collections().len()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn documents(&self) -> u64 {
        self.collections().iter().map(|one| one.documents()).sum()
    }

    pub fn documents_expected(&self) -> u64 {
        let collections = self.collections();
        collections.iter().map(|one| one.documents_expected).sum()
    }
}

/// Shows progress until it is aborted.
pub async fn show(shared: Arc<Shared>, display: Display, control: Control) {
    match display {
        Display::Silent => (),
        Display::Lines => show_lines(&shared).await,
        Display::Bars => show_bars(&shared, &control).await,
    }
}

/// What the run is busy with, beside scanning.
fn state(shared: &Shared) -> String {
    let generation = shared.status.generation.load(Ordering::Relaxed);
    let phase = match shared.status.phase() {
        Phase::Check => "comparing",
        Phase::Recheck => "looking again",
        Phase::Idle => "waiting for changes",
    };
    let rechecked = shared.status.documents_rechecked.load(Ordering::Relaxed);
    let mismatches = shared.ledger.total();
    format!("generation {generation}, {phase}, {rechecked} looked at again, {mismatches} differ")
}

async fn show_lines(shared: &Shared) {
    let start = Instant::now();
    loop {
        tokio::time::sleep(LINES_INTERVAL).await;
        let line = line(&shared.tally, start.elapsed());
        eprintln!("{line}; {}", state(shared));
    }
}

fn line(tally: &Tally, elapsed: Duration) -> String {
    let (read, expected) = (tally.documents(), tally.documents_expected());
    let seconds = elapsed.as_secs_f64().max(0.001);
    let rate = read as f64 / seconds;
    let bytes = tally.bytes() as f64 / seconds;
    let left = match rate > 0.0 && expected > read {
        true => format!(", about {:.0} s left", (expected - read) as f64 / rate),
        false => String::new(),
    };
    format!(
        "{read} of about {}, {rate:.0} per second, {:.1} MB/s{left}",
        counted(expected, "document", "documents"),
        bytes / 1e6
    )
}

/// The bars, which leave the terminal as they found it.
struct Bars {
    group: MultiProgress,
    total: ProgressBar,
    state: ProgressBar,
    collections: HashMap<usize, ProgressBar>,
}

impl Drop for Bars {
    fn drop(&mut self) {
        // Fails only if the terminal is gone.
        let _ = self.group.clear();
    }
}

impl Bars {
    fn new(expected: u64) -> Bars {
        let group = MultiProgress::new();
        let total = group.add(ProgressBar::new(expected));
        total.set_style(style("{msg:30!} {bar:30} {pos}/{len} {rate} {eta} left"));
        let state = group.add(ProgressBar::new(0));
        state.set_style(style("{msg}"));
        Bars {
            group,
            total,
            state,
            collections: HashMap::new(),
        }
    }

    fn draw(&mut self, tally: &Tally, state: String) {
        self.state.set_message(state);
        for (position, one) in tally.collections().iter().enumerate() {
            if !one.is_active() {
                if let Some(bar) = self.collections.remove(&position) {
                    bar.finish_and_clear();
                    self.group.remove(&bar);
                }
                continue;
            }
            if !self.collections.contains_key(&position) {
                if self.collections.len() >= COLLECTION_BARS_MAX {
                    continue;
                }
                let bar = ProgressBar::new(one.documents_expected);
                let bar = self.group.insert_before(&self.total, bar);
                bar.set_style(style("{msg:30!} {bar:30} {pos}/{len}"));
                bar.set_message(one.name.clone());
                self.collections.insert(position, bar);
            }
            if let Some(bar) = self.collections.get(&position) {
                bar.set_position(one.documents());
            }
        }
        let bytes = tally.bytes();
        self.total
            .set_message(format!("all, {}", HumanBytes(bytes)));
        self.total.set_length(tally.documents_expected());
        self.total.set_position(tally.documents());
    }
}

fn style(template: &str) -> ProgressStyle {
    let rate = |state: &ProgressState, text: &mut dyn std::fmt::Write| {
        // Whoever writes it grows as needed.
        let _ = write!(text, "{:.0}/s", state.per_sec());
    };
    ProgressStyle::with_template(template)
        .expect("the template is ours, and right")
        .with_key("rate", rate)
}

async fn show_bars(shared: &Shared, control: &Control) {
    let mut bars = Bars::new(shared.tally.documents_expected());
    loop {
        match control.asked().is_asking {
            // Somebody is being asked something on the same screen.
            true => drop(bars.group.clear()),
            false => bars.draw(&shared.tally, state(shared)),
        }
        tokio::time::sleep(BARS_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_how_fast_and_how_long() {
        let tally = Tally::default();
        let collection = tally.open("a.b".to_owned(), 1000);
        tally.add(&collection, 200, 3_000_000);
        assert_eq!(
            line(&tally, Duration::from_secs(2)),
            "200 of about 1000 documents, 100 per second, 1.5 MB/s, about 8 s left"
        );
        assert!(collection.is_active());
        collection.task_closed();
        assert!(!collection.is_active());
        let mut bars = Bars::new(1000);
        bars.draw(&tally, "generation 0".to_owned());
    }
}
