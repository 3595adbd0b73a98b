//! One member's machine: its disk, its state, its wall clock, and what runs on it.
//!
//! The state machine keeps everything that was applied, and knows how much of it is
//! durable. Losing the power takes some of the rest, from the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use model::time::ClusterTime;
use parking_lot::Mutex;
use replication::simulated_disk::SimulatedDisk;
use replication::{
    Beginning, BoxError, Committed, ConfigurationChange, CopyId, Driver, EntryKind, Error, Group,
    LogPosition, MemberId, MemberStep, Options, Resume, Role, StateInstall, StateMachine,
    StateParts, Syncer, Term,
};

use crate::network::Outbox;
use crate::session::Statement;

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
    installs: u64,
    resumed: u64,
    /// Parts that an earlier copy had left, and how many of those were another sender's.
    kept: u64,
    kept_of_others: u64,
    /// Where statements were applied; what lies behind the end was lost since.
    statements: BTreeMap<Statement, u64>,
    /// How much each member is wanted as leader; all the same if it is empty.
    priorities: Vec<u64>,
    /// Parts of a state that is being received: they outlive the process.
    incoming: Option<Incoming>,
    /// Parts of a state that was being received before it.
    earlier: Option<Incoming>,
}

#[derive(Clone)]
struct Incoming {
    copy: CopyId,
    parts: Vec<Vec<u8>>,
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

    /// How often it was replaced by another member's.
    pub fn installs(&self) -> u64 {
        self.pages.lock().installs
    }

    /// How often a copy went on after a restart.
    pub fn resumed(&self) -> u64 {
        self.pages.lock().resumed
    }

    /// How many parts were not sent because an earlier copy had left them.
    pub fn kept(&self) -> u64 {
        self.pages.lock().kept
    }

    /// How many of those another sender had sent.
    pub fn kept_of_others(&self) -> u64 {
        self.pages.lock().kept_of_others
    }

    /// Whether a statement has taken effect here.
    pub fn has(&self, statement: Statement) -> bool {
        let pages = self.pages.lock();
        let position = pages.statements.get(&statement);
        position.is_some_and(|position| *position <= pages.records.len() as u64)
    }

    fn lose_power(&self, kept: u64) {
        let mut pages = self.pages.lock();
        // Parts are not synced as they come: some of the last ones may be gone.
        if let Some(incoming) = &mut pages.incoming {
            let left = kept as usize % (incoming.parts.len() + 1);
            incoming.parts.truncate(left);
        }
        if let Some(earlier) = &mut pages.earlier {
            let left = (kept >> 5) as usize % (earlier.parts.len() + 1);
            earlier.parts.truncate(left);
        }
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
            if let Some(statement) = Statement::decode(&entry.payload) {
                pages.statements.insert(statement, entry.position.get());
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

    fn priority(&self, member: MemberId) -> u64 {
        let priorities = &self.pages.lock().priorities;
        let place = member.get() as usize - 1;
        priorities.get(place).copied().unwrap_or(1)
    }

    fn can_be_copied(&self) -> bool {
        true
    }

    fn open_copy(&mut self) -> Result<Box<dyn StateParts>, BoxError> {
        Ok(Box::new(Parts {
            records: self.pages.lock().records.clone(),
            next: 0,
        }))
    }

    fn begin_install(&mut self, copy: CopyId) -> Result<Box<dyn StateInstall>, BoxError> {
        let mut pages = self.pages.lock();
        let begun = Incoming {
            copy,
            parts: Vec::new(),
        };
        if let Some(before) = pages.incoming.replace(begun)
            && before.parts.len() > pages.earlier.as_ref().map_or(0, |it| it.parts.len())
        {
            pages.earlier = Some(before);
        }
        drop(pages);
        Ok(Box::new(Gathered {
            ledger: self.clone(),
            records: Vec::new(),
        }))
    }

    fn resume_install(&mut self, copy: CopyId) -> Resume {
        let ledger = self.clone();
        Box::new(move || {
            let found = ledger.pages.lock().incoming.clone();
            let Some(incoming) = found.filter(|incoming| incoming.copy == copy) else {
                return Ok(None);
            };
            let mut gathered = Gathered {
                ledger: ledger.clone(),
                records: Vec::new(),
            };
            for part in &incoming.parts {
                gathered.take(part)?;
            }
            ledger.pages.lock().resumed += 1;
            let install: Box<dyn StateInstall> = Box::new(gathered);
            Ok(Some((install, incoming.parts.len() as u64)))
        })
    }

    fn discard_installs(&mut self) {
        let mut pages = self.pages.lock();
        pages.incoming = None;
        pages.earlier = None;
    }

    fn install(
        &mut self,
        install: Box<dyn StateInstall>,
        position: LogPosition,
        _time: ClusterTime,
    ) -> Result<(), BoxError> {
        let Ok(gathered) = install.into_any().downcast::<Gathered>() else {
            return Err("another's state".into());
        };
        if gathered.records.len() as u64 != position.get() {
            return Err(format!("{} records for {position}", gathered.records.len()).into());
        }
        let mut pages = self.pages.lock();
        pages.durable = gathered.records.len();
        pages.records = gathered.records;
        let statements = pages
            .records
            .iter()
            .zip(1..)
            .filter_map(|(record, position)| {
                Statement::decode(&record.payload).map(|statement| (statement, position))
            });
        pages.statements = statements.collect();
        pages.installs += 1;
        pages.incoming = None;
        pages.earlier = None;
        Ok(())
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

/// A state on its way: so many records at a time.
struct Parts {
    records: Vec<Record>,
    next: usize,
}

const RECORDS_PER_PART: usize = 20;

impl Parts {
    fn peek(&self) -> (usize, Vec<u8>) {
        let end = (self.next + RECORDS_PER_PART).min(self.records.len());
        let mut part = Vec::new();
        for record in &self.records[self.next..end] {
            encode(record, &mut part);
        }
        (end, part)
    }
}

impl StateParts for Parts {
    fn next_part(&mut self, _bytes_max: usize) -> Result<Option<Vec<u8>>, BoxError> {
        let (end, part) = self.peek();
        self.next = end;
        Ok((!part.is_empty()).then_some(part))
    }

    fn skip_held(&mut self, held: &[u8], _bytes_max: usize) -> Result<bool, BoxError> {
        let (end, part) = self.peek();
        let is_same = part == held;
        if is_same {
            self.next = end;
        }
        Ok(is_same)
    }
}

fn encode(record: &Record, part: &mut Vec<u8>) {
    let (kind, steps): (u8, &[MemberStep]) = match &record.kind {
        EntryKind::Data => (0, &[]),
        EntryKind::Noop => (1, &[]),
        EntryKind::Configuration(change) => (2, &change.steps),
    };
    part.extend_from_slice(&record.term.get().to_le_bytes());
    part.extend_from_slice(&record.time.to_u64().to_le_bytes());
    part.push(kind);
    part.push(steps.len() as u8);
    for step in steps {
        let (kind, member) = match step {
            MemberStep::Voter(member) => (0, member),
            MemberStep::Learner(member) => (1, member),
            MemberStep::Remove(member) => (2, member),
        };
        part.push(kind);
        part.extend_from_slice(&member.get().to_le_bytes());
    }
    part.extend_from_slice(&(record.payload.len() as u64).to_le_bytes());
    part.extend_from_slice(&record.payload);
}

fn decode(part: &mut &[u8]) -> Option<Record> {
    fn take<const N: usize>(part: &mut &[u8]) -> Option<[u8; N]> {
        let (taken, rest) = part.split_first_chunk::<N>()?;
        *part = rest;
        Some(*taken)
    }
    let term = Term::new(u64::from_le_bytes(take(part)?));
    let time = ClusterTime::from_u64(u64::from_le_bytes(take(part)?));
    let [kind, count] = take(part)?;
    let mut steps = Vec::new();
    for _ in 0..count {
        let [kind] = take(part)?;
        let member = MemberId::checked(u64::from_le_bytes(take(part)?))?;
        steps.push(match kind {
            0 => MemberStep::Voter(member),
            1 => MemberStep::Learner(member),
            _ => MemberStep::Remove(member),
        });
    }
    let length = usize::try_from(u64::from_le_bytes(take(part)?)).ok()?;
    let (payload, rest) = part.split_at_checked(length)?;
    *part = rest;
    Some(Record {
        term,
        time,
        kind: match kind {
            0 => EntryKind::Data,
            1 => EntryKind::Noop,
            _ => EntryKind::Configuration(ConfigurationChange { steps }),
        },
        payload: payload.to_vec(),
    })
}

/// A state that is being received.
struct Gathered {
    ledger: Ledger,
    records: Vec<Record>,
}

impl Gathered {
    fn take(&mut self, mut part: &[u8]) -> Result<(), BoxError> {
        while !part.is_empty() {
            let record = decode(&mut part).ok_or("a part that does not decode")?;
            self.records.push(record);
        }
        Ok(())
    }
}

impl StateInstall for Gathered {
    fn add(&mut self, part: &[u8]) -> Result<(), BoxError> {
        self.take(part)?;
        if let Some(incoming) = &mut self.ledger.pages.lock().incoming {
            incoming.parts.push(part.to_vec());
        }
        Ok(())
    }

    fn held(&mut self) -> Result<Option<Vec<u8>>, BoxError> {
        let pages = self.ledger.pages.lock();
        let at = pages.incoming.as_ref().map_or(0, |it| it.parts.len());
        let earlier = pages.earlier.as_ref();
        Ok(earlier.and_then(|it| it.parts.get(at)).cloned())
    }

    fn keep(&mut self, held: &[u8]) -> Result<(), BoxError> {
        if self.held()?.as_deref() != Some(held) {
            return Err("it is not held".into());
        }
        let mut pages = self.ledger.pages.lock();
        let sender = |of: &Option<Incoming>| of.as_ref().map(|it| it.copy.from);
        let is_of_another = sender(&pages.earlier) != sender(&pages.incoming);
        pages.kept += 1;
        pages.kept_of_others += u64::from(is_of_another);
        drop(pages);
        self.add(held)
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
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
    pub fn new(options: Options, priorities: Vec<u64>) -> Self {
        let ledger = Ledger::default();
        ledger.pages.lock().priorities = priorities;
        Self {
            member: options.member,
            disk: SimulatedDisk::new(),
            ledger,
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
