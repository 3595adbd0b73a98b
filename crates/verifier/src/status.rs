//! How a run is doing: written by whoever works on it, read by whoever asks.
//!
//! And the other way round: [`Control`] is how somebody outside tells a run that writes are off, or
//! that it should stop.

use crate::error::VerifyError;
use crate::merge::Side;
use crate::metadata::MetadataMismatch;
use crate::record::Moment;
use crate::report::Unverified;
use crate::time::{ClusterTime, Watermark};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::sync::watch;

/// What a run is busy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Comparing collections as a whole.
    Check,
    /// Looking again at what changed or differed.
    Recheck,
    /// Nothing to do at the moment, or ended.
    Idle,
}

/// How far a side's changes are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    pub time: ClusterTime,
    /// Whether nothing was waiting there.
    pub idle: bool,
}

#[derive(Default)]
pub struct StreamStatus {
    pub position: watch::Sender<Position>,
    pub inserts: AtomicU64,
    pub updates: AtomicU64,
    pub replaces: AtomicU64,
    pub deletes: AtomicU64,
    pub definitions: AtomicU64,
    /// Changes later than the time at which writes were said to be off.
    pub after_writes_off: AtomicU64,
}

pub struct Status {
    phase: Mutex<Phase>,
    pub generation: AtomicU64,
    pub source: StreamStatus,
    pub destination: StreamStatus,
    /// Documents that were looked up again, over all generations.
    pub documents_rechecked: AtomicU64,
    pub tasks_open: AtomicU64,
    pub tasks_done: AtomicU64,
    pub writes_off: OnceLock<Moment>,
    pub ended: AtomicBool,
    /// Definitions may have changed since the last survey.
    definitions_changed: AtomicBool,
    metadata: Mutex<Vec<MetadataMismatch>>,
    /// Up to which changes of each side everything was looked at again.
    rechecked_until: [Watermark; 2],
    /// What could not be read in this generation, by name, and why.
    failures: Mutex<BTreeMap<String, String>>,
    /// Whether all of it may be read on another try.
    failures_pass: AtomicBool,
}

impl Default for Status {
    fn default() -> Status {
        Status {
            phase: Mutex::new(Phase::Idle),
            generation: AtomicU64::new(0),
            source: StreamStatus::default(),
            destination: StreamStatus::default(),
            documents_rechecked: AtomicU64::new(0),
            tasks_open: AtomicU64::new(0),
            tasks_done: AtomicU64::new(0),
            writes_off: OnceLock::new(),
            ended: AtomicBool::new(false),
            definitions_changed: AtomicBool::new(false),
            metadata: Mutex::default(),
            rechecked_until: Default::default(),
            failures: Mutex::default(),
            failures_pass: AtomicBool::new(true),
        }
    }
}

fn lock<T>(held: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing here is left half done by a panic elsewhere.
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Status {
    pub fn phase(&self) -> Phase {
        *lock(&self.phase)
    }

    pub fn enter(&self, phase: Phase) {
        *lock(&self.phase) = phase;
    }

    pub fn stream(&self, side: Side) -> &StreamStatus {
        match side {
            Side::Source => &self.source,
            Side::Destination => &self.destination,
        }
    }

    pub fn rechecked_until(&self, side: Side) -> Option<ClusterTime> {
        self.rechecked_until[side as usize].get()
    }

    /// Where both streams are now: a queue that is closed after this holds what came before.
    pub fn positions(&self) -> [ClusterTime; 2] {
        Side::BOTH.map(|side| self.stream(side).position.borrow().time)
    }

    /// Everything up to these positions was looked at.
    pub fn rechecked(&self, positions: [ClusterTime; 2]) {
        for (mark, time) in self.rechecked_until.iter().zip(positions) {
            mark.raise(time);
        }
    }

    pub fn definitions_have_changed(&self) {
        self.definitions_changed.store(true, Ordering::SeqCst);
    }

    pub fn have_definitions_changed(&self) -> bool {
        self.definitions_changed.load(Ordering::SeqCst)
    }

    /// Whether definitions changed since this was last asked.
    pub fn take_definitions_changed(&self) -> bool {
        self.definitions_changed.swap(false, Ordering::SeqCst)
    }

    pub fn metadata(&self) -> Vec<MetadataMismatch> {
        lock(&self.metadata).clone()
    }

    pub fn set_metadata(&self, metadata: Vec<MetadataMismatch>) {
        *lock(&self.metadata) = metadata;
    }

    /// Once for each collection is enough: the next parts fail alike.
    pub fn failed(&self, namespace: String, why: &VerifyError) {
        if !why.is_transient() {
            self.failures_pass.store(false, Ordering::Relaxed);
        }
        let why = why.to_string();
        lock(&self.failures).entry(namespace).or_insert(why);
    }

    pub fn forget_failures(&self) {
        self.failures_pass.store(true, Ordering::Relaxed);
        lock(&self.failures).clear();
    }

    /// Whether something failed, and all of it for passing reasons.
    pub fn may_do_better(&self) -> bool {
        self.failures_pass.load(Ordering::Relaxed) && !lock(&self.failures).is_empty()
    }

    pub fn failures(&self) -> Vec<Unverified> {
        let failures = lock(&self.failures);
        let listed = failures.iter().map(|(namespace, why)| Unverified {
            namespace: namespace.clone(),
            why: why.clone(),
        });
        listed.collect()
    }
}

/// What somebody outside asked of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asked {
    pub begin: bool,
    pub writes_off: bool,
    pub stop: bool,
    /// Somebody is being asked something on the terminal.
    pub is_asking: bool,
}

/// A handle to a run, for whoever controls it.
#[derive(Debug, Clone, Default)]
pub struct Control {
    asked: watch::Sender<Asked>,
    begun: watch::Sender<bool>,
    filter: Arc<Mutex<Option<Vec<u8>>>>,
    listening: watch::Sender<Option<SocketAddr>>,
}

impl Control {
    /// Begin, where the run was told to wait for it.
    pub fn begin(&self) {
        self.asked.send_modify(|asked| asked.begin = true);
    }

    pub(crate) fn listens_on(&self, address: SocketAddr) {
        self.listening.send_replace(Some(address));
    }

    /// Waits until the HTTP API listens, and says where.
    pub async fn until_listening(&self) -> Option<SocketAddr> {
        let mut listening = self.listening.subscribe();
        let address = listening.wait_for(Option::is_some).await.ok()?;
        *address
    }

    /// Compare only documents that match, as BSON; before the run begins.
    pub fn set_filter(&self, filter: Vec<u8>) {
        *lock(&self.filter) = Some(filter);
    }

    pub(crate) fn filter(&self) -> Option<Vec<u8>> {
        lock(&self.filter).clone()
    }

    /// Nobody writes to either side any more: come to an end.
    pub fn writes_off(&self) {
        self.asked.send_modify(|asked| asked.writes_off = true);
    }

    /// Leaves the terminal to a question, or takes it back.
    pub fn asking(&self, is_asking: bool) {
        self.asked.send_modify(|asked| asked.is_asking = is_asking);
    }

    /// Stop where you are.
    pub fn stop(&self) {
        self.asked.send_modify(|asked| asked.stop = true);
    }

    /// From now on every change counts.
    pub(crate) fn has_begun(&self) {
        self.begun.send_replace(true);
    }

    /// Waits until every change counts.
    pub async fn until_begun(&self) {
        // The sender is ours, so that it cannot be gone.
        let _ = self.begun.subscribe().wait_for(|begun| *begun).await;
    }

    pub fn asked(&self) -> Asked {
        *self.asked.borrow()
    }

    pub async fn until(&self, wanted: impl Fn(&Asked) -> bool) {
        // The sender is ours, so that it cannot be gone.
        let _ = self.asked.subscribe().wait_for(|asked| wanted(asked)).await;
    }
}
