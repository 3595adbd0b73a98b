//! What the tests share: a state machine in memory that survives its group, with a part
//! that is durable and a part that a power cut may take, and ways to open a log on a
//! simulated disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use replication::simulated_disk::SimulatedDisk;
use replication::{
    BoxError, Committed, Driver, Durability, Entry, EntryKind, Error, Group, GroupId, LogPosition,
    NoTransport, Options, Pending, StateMachine, Syncer,
};

/// How many entries a new log makes for itself: its members, and the first of its term.
pub const OWN: u64 = 2;

/// What the state holds in place of an entry that the log made for itself.
pub const OWN_ENTRY: &[u8] = b"the log's own";

/// The state: every payload in order, those of the log's own entries included, so that
/// its length is the applied position.
#[derive(Clone, Default)]
pub struct Ledger {
    pub pages: Arc<Mutex<Pages>>,
}

#[derive(Default)]
pub struct Pages {
    pub payloads: Vec<Vec<u8>>,
    pub durable: usize,
    /// For each call of apply, the positions and whether a companion came along.
    pub calls: Vec<Vec<(u64, bool)>>,
    pub syncs: usize,
    pub fail_apply: bool,
    pub panic_apply: bool,
    /// Whether proposers may apply.
    pub at_once: bool,
    /// On whose thread each call of apply was made.
    pub threads: Vec<std::thread::ThreadId>,
    pub fail_sync: bool,
}

impl Ledger {
    pub fn applied(&self) -> u64 {
        self.pages.lock().payloads.len() as u64
    }

    pub fn take_calls(&self) -> Vec<Vec<(u64, bool)>> {
        std::mem::take(&mut self.pages.lock().calls)
    }

    /// Loses what was not durable, except for some of it.
    pub fn power_cut(&self, kept: usize) {
        let mut pages = self.pages.lock();
        let undurable = pages.payloads.len() - pages.durable;
        let left = pages.durable + kept % (undurable + 1);
        pages.payloads.truncate(left);
    }
}

impl StateMachine for Ledger {
    type Companion = u64;

    fn applied(&self) -> LogPosition {
        LogPosition::new(self.applied())
    }

    fn apply(&mut self, entries: &mut [Committed<u64>]) -> Result<(), BoxError> {
        let mut pages = self.pages.lock();
        if pages.fail_apply {
            return Err("the ledger is closed".into());
        }
        assert!(!pages.panic_apply, "the ledger burns");
        pages.threads.push(std::thread::current().id());
        let mut call = Vec::new();
        for committed in entries {
            let position = committed.entry.position.get();
            assert_eq!(
                position,
                pages.payloads.len() as u64 + 1,
                "applied in order"
            );
            if let Some(companion) = committed.companion.take() {
                assert_eq!(companion, position, "the companion of its own entry");
                call.push((position, true));
            } else {
                call.push((position, false));
            }
            pages.payloads.push(match committed.entry.kind {
                EntryKind::Data => committed.entry.payload.to_vec(),
                EntryKind::Noop | EntryKind::Configuration(_) => OWN_ENTRY.to_vec(),
            });
        }
        pages.calls.push(call);
        Ok(())
    }

    fn applies_at_once(&self) -> bool {
        self.pages.lock().at_once
    }

    fn syncer(&self) -> Syncer {
        let ledger = self.clone();
        Box::new(move || {
            let mut pages = ledger.pages.lock();
            if pages.fail_sync {
                return Err("the ledger's disk is broken".into());
            }
            pages.syncs += 1;
            pages.durable = pages.payloads.len();
            Ok(LogPosition::new(pages.durable as u64))
        })
    }
}

pub struct World {
    pub disk: SimulatedDisk,
    pub ledger: Ledger,
    pub wall_ms: Arc<AtomicI64>,
    pub options: Options,
}

impl World {
    /// Small segments, so that a few entries fill one.
    pub fn new() -> Self {
        let mut options = Options::new(GroupId(0x7e57));
        options.segment_bytes = 4096;
        options.tail_bytes_max = 2048;
        Self {
            disk: SimulatedDisk::new(),
            ledger: Ledger::default(),
            wall_ms: Arc::new(AtomicI64::new(1_700_000_000_000)),
            options,
        }
    }

    pub fn open_stepped(&self) -> Result<(Group<Ledger>, Driver<Ledger>), Error> {
        let (disk, wall, ledger) = self.parts();
        Group::open_stepped(
            self.options.clone(),
            disk,
            wall,
            Arc::new(NoTransport),
            ledger,
        )
    }

    /// With threads.
    pub fn open(&self) -> Result<Group<Ledger>, Error> {
        let (disk, wall, ledger) = self.parts();
        Group::open(
            self.options.clone(),
            disk,
            wall,
            Arc::new(NoTransport),
            ledger,
        )
    }

    fn parts(&self) -> (Arc<SimulatedDisk>, Arc<dyn replication::WallClock>, Ledger) {
        let wall_ms = self.wall_ms.clone();
        (
            Arc::new(self.disk.clone()),
            Arc::new(move || wall_ms.load(Ordering::Relaxed)),
            self.ledger.clone(),
        )
    }
}

pub fn propose(group: &Group<Ledger>, durability: Durability, payload: &[u8]) -> Pending {
    group
        .propose(durability, payload.to_vec(), |_, position, _| {
            position.get()
        })
        .expect("there is room")
}

/// Where the proposal of this number is, as long as the log was opened once.
pub fn at(number: u64) -> LogPosition {
    LogPosition::new(number + OWN)
}

/// Which proposals these are, as long as the log was opened once.
pub fn positions(entries: &[Entry]) -> Vec<u64> {
    entries
        .iter()
        .map(|entry| entry.position.get() - OWN)
        .collect()
}
