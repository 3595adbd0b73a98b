//! One member's machine: its disk, its state, its wall clock, and what runs on it.
//!
//! The state machine keeps everything that was applied, and knows how much of it is
//! durable. Losing the power takes some of the rest, from the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use model::time::ClusterTime;
use parking_lot::Mutex;
use replication::simulated_disk::SimulatedDisk;
use replication::{
    Beginning, BoxError, Committed, Driver, EntryKind, Error, Group, LogPosition, MemberId,
    Options, Role, StateMachine, Syncer, Term,
};

use crate::network::Outbox;

/// One applied entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub term: Term,
    pub time: ClusterTime,
    pub kind: EntryKind,
    pub payload: Vec<u8>,
}

/// What was applied on one member, in order. The first has position 1.
#[derive(Clone, Default)]
pub struct Ledger {
    pages: Arc<Mutex<Pages>>,
}

#[derive(Default)]
struct Pages {
    records: Vec<Record>,
    durable: usize,
    roles: Vec<Role>,
}

impl Ledger {
    pub fn applied(&self) -> u64 {
        self.pages.lock().records.len() as u64
    }

    /// Looks at the records after a position.
    pub fn after(&self, position: u64) -> Vec<Record> {
        let pages = self.pages.lock();
        pages
            .records
            .get(position as usize..)
            .unwrap_or_default()
            .to_vec()
    }

    pub fn get(&self, position: u64) -> Option<Record> {
        let index = usize::try_from(position).ok()?.checked_sub(1)?;
        self.pages.lock().records.get(index).cloned()
    }

    /// What the state machine was told about its role since it was asked last.
    pub fn take_roles(&self) -> Vec<Role> {
        std::mem::take(&mut self.pages.lock().roles)
    }

    fn lose_power(&self, kept: u64) {
        let mut pages = self.pages.lock();
        let volatile = (pages.records.len() - pages.durable) as u64;
        let left = pages.durable + (kept % (volatile + 1)) as usize;
        pages.records.truncate(left);
    }
}

impl StateMachine for Ledger {
    type Companion = u64;

    fn applied(&self) -> LogPosition {
        LogPosition::new(self.applied())
    }

    fn applied_time(&self) -> Option<ClusterTime> {
        self.pages.lock().records.last().map(|record| record.time)
    }

    fn apply(&mut self, entries: &mut [Committed<u64>]) -> Result<(), BoxError> {
        let mut pages = self.pages.lock();
        for committed in entries {
            let entry = &committed.entry;
            if entry.position.get() != pages.records.len() as u64 + 1 {
                return Err(format!("{} was applied out of turn", entry.position).into());
            }
            if committed
                .companion
                .is_some_and(|it| it != entry.position.get())
            {
                return Err(format!("{} has another's companion", entry.position).into());
            }
            pages.records.push(Record {
                term: entry.term,
                time: entry.time,
                kind: entry.kind.clone(),
                payload: entry.payload.to_vec(),
            });
        }
        Ok(())
    }

    fn role_changed(&mut self, role: Role) {
        self.pages.lock().roles.push(role);
    }

    fn syncer(&self) -> Syncer {
        let ledger = self.clone();
        Box::new(move || {
            let mut pages = ledger.pages.lock();
            pages.durable = pages.records.len();
            Ok(LogPosition::new(pages.durable as u64))
        })
    }
}

/// How a machine goes down.
#[derive(Clone, Copy, Debug)]
pub enum Crash {
    /// The process dies; the system keeps what was written.
    Process,
    /// Unsynced writes are kept, lost or torn, as the seed says.
    Power { seed: u64 },
}

pub struct Machine {
    pub member: MemberId,
    pub disk: SimulatedDisk,
    pub ledger: Ledger,
    pub outbox: Outbox,
    wall_ms: Arc<AtomicI64>,
    options: Options,
    pub running: Option<(Group<Ledger>, Driver<Ledger>)>,
}

impl Machine {
    pub fn new(options: Options) -> Self {
        Self {
            member: options.member,
            disk: SimulatedDisk::new(),
            ledger: Ledger::default(),
            outbox: Outbox::default(),
            wall_ms: Arc::new(AtomicI64::new(1_700_000_000_000)),
            options,
            running: None,
        }
    }

    pub fn is_joining(&self) -> bool {
        self.options.beginning == Beginning::Joining
    }

    pub fn start(&mut self) -> Result<(), Error> {
        let wall_ms = self.wall_ms.clone();
        let opened = Group::open_stepped(
            self.options.clone(),
            Arc::new(self.disk.clone()),
            Arc::new(move || wall_ms.load(Ordering::Relaxed)),
            Arc::new(self.outbox.clone()),
            self.ledger.clone(),
        )?;
        self.running = Some(opened);
        Ok(())
    }

    pub fn crash(&mut self, crash: Crash) {
        self.running = None;
        self.outbox.take();
        match crash {
            Crash::Process => self.disk.restart(None),
            Crash::Power { seed } => {
                self.disk.restart(Some(seed));
                self.ledger.lose_power(seed >> 7);
            }
        }
    }

    pub fn pass_time(&self, ms: i64) {
        self.wall_ms.fetch_add(ms, Ordering::Relaxed);
    }

    pub fn group(&self) -> Option<&Group<Ledger>> {
        self.running.as_ref().map(|(group, _)| group)
    }

    pub fn role(&self) -> Option<Role> {
        self.group().map(|group| *group.role().borrow())
    }

    /// Why it stopped by itself, if it did.
    pub fn stopped(&self) -> Option<String> {
        self.group()?.stopped().map(|reason| reason.to_string())
    }
}
