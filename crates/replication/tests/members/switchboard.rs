//! A network in memory that can be cut, members on it, and waiting with a deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::time::ClusterTime;
use parking_lot::Mutex;
use replication::simulated_disk::SimulatedDisk;
use replication::{
    Beginning, BoxError, Committed, CopyId, Durability, EntryKind, Group, GroupId, LogPosition,
    MemberId, Options, Pending, Resume, Role, StateInstall, StateMachine, StateParts, Syncer,
    SystemClock, Transport,
};

/// What was applied, in order: the payloads of proposals.
#[derive(Clone, Default)]
pub struct Journal {
    pages: Arc<Mutex<Pages>>,
}

#[derive(Clone, Default)]
struct Pages {
    position: u64,
    time: Option<ClusterTime>,
    payloads: Vec<Vec<u8>>,
    installs: u64,
    priorities: BTreeMap<MemberId, u64>,
    /// Parts of a state, as they would be on disk.
    staged: Option<(CopyId, Vec<Vec<u8>>)>,
    /// Those of a copy before.
    earlier: Vec<Vec<u8>>,
    begun: u64,
    kept: u64,
    /// Who looks for what there is of a copy waits for who holds this.
    looks: Arc<Mutex<()>>,
    /// Where who reads the state waits.
    stop: Option<Stop>,
}

impl Journal {
    pub fn payloads(&self) -> Vec<Vec<u8>> {
        self.pages.lock().payloads.clone()
    }

    /// What it holds now.
    pub fn copy(&self) -> Journal {
        let pages = self.pages.lock().clone();
        Journal {
            pages: Arc::new(Mutex::new(pages)),
        }
    }

    /// Loses everything that was applied.
    pub fn clear(&self) {
        let mut pages = self.pages.lock();
        (pages.position, pages.time) = (0, None);
        pages.payloads.clear();
    }

    pub fn set_priority(&self, member: MemberId, priority: u64) {
        self.pages.lock().priorities.insert(member, priority);
    }

    /// How often a state was begun to be gathered, and how many parts there are now.
    pub fn gathered(&self) -> (u64, usize) {
        let pages = self.pages.lock();
        let parts = pages.staged.as_ref().map_or(0, |(_, parts)| parts.len());
        (pages.begun, parts)
    }

    /// Changes a part that was gathered.
    pub fn alter_gathered(&self, number: usize) {
        if let Some((_, parts)) = &mut self.pages.lock().staged {
            parts[number - 1].fill(b'!');
        }
    }

    /// Loses what an earlier copy has left.
    pub fn forget_earlier(&self) {
        self.pages.lock().earlier.clear();
    }

    /// How many parts were not sent because they were there.
    pub fn kept(&self) -> u64 {
        self.pages.lock().kept
    }

    /// Whoever holds this keeps others from finding what there is of a copy.
    pub fn looks(&self) -> Arc<Mutex<()>> {
        self.pages.lock().looks.clone()
    }

    /// Where who reads the state waits from now on.
    pub fn stop_reading(&self, stop: Stop) {
        self.pages.lock().stop = Some(stop);
    }

    pub fn installs(&self) -> u64 {
        self.pages.lock().installs
    }
}

/// What is left of a state, and where its reader waits.
struct Parts(Vec<Vec<u8>>, Option<Stop>);

/// Who reads a state waits, when so many parts are left, for who holds it.
#[derive(Clone)]
pub struct Stop {
    pub left: usize,
    pub held: Arc<Mutex<()>>,
}

impl StateParts for Parts {
    fn next_part(&mut self, _bytes_max: usize) -> Result<Option<Vec<u8>>, BoxError> {
        if let Some(stop) = self.1.as_ref().filter(|stop| stop.left == self.0.len()) {
            drop(stop.held.lock());
        }
        Ok(if self.0.is_empty() {
            None
        } else {
            Some(self.0.remove(0))
        })
    }

    fn skip_held(&mut self, held: &[u8], _bytes_max: usize) -> Result<bool, BoxError> {
        let is_same = self.0.first().is_some_and(|next| next == held);
        if is_same {
            self.0.remove(0);
        }
        Ok(is_same)
    }
}

/// What is gathered is kept with the journal, and found there after a restart.
struct Gathered(Arc<Mutex<Pages>>);

impl StateInstall for Gathered {
    fn add(&mut self, part: &[u8]) -> Result<(), BoxError> {
        if let Some((_, parts)) = &mut self.0.lock().staged {
            parts.push(part.to_vec());
        }
        Ok(())
    }

    fn held(&mut self) -> Result<Option<Vec<u8>>, BoxError> {
        let pages = self.0.lock();
        let at = pages.staged.as_ref().map_or(0, |(_, parts)| parts.len());
        Ok(pages.earlier.get(at).cloned())
    }

    fn keep(&mut self, held: &[u8]) -> Result<(), BoxError> {
        self.0.lock().kept += 1;
        self.add(held)
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }
}

impl StateMachine for Journal {
    type Companion = ();

    fn applied(&self) -> LogPosition {
        LogPosition::new(self.pages.lock().position)
    }

    fn applied_time(&self) -> Option<ClusterTime> {
        self.pages.lock().time
    }

    fn apply(&mut self, entries: &mut [Committed<()>]) -> Result<(), BoxError> {
        let mut pages = self.pages.lock();
        for committed in entries {
            pages.position = committed.entry.position.get();
            pages.time = Some(committed.entry.time);
            if committed.entry.kind == EntryKind::Data {
                pages.payloads.push(committed.entry.payload.to_vec());
            }
        }
        Ok(())
    }

    fn priority(&self, member: MemberId) -> u64 {
        let pages = self.pages.lock();
        pages.priorities.get(&member).copied().unwrap_or(1)
    }

    fn can_be_copied(&self) -> bool {
        true
    }

    fn open_copy(&mut self) -> Result<Box<dyn StateParts>, BoxError> {
        let stop = self.pages.lock().stop.clone();
        Ok(Box::new(Parts(self.payloads(), stop)))
    }

    fn begin_install(&mut self, copy: CopyId) -> Result<Box<dyn StateInstall>, BoxError> {
        let mut pages = self.pages.lock();
        if let Some((_, parts)) = pages.staged.replace((copy, Vec::new())) {
            pages.earlier = parts;
        }
        pages.begun += 1;
        Ok(Box::new(Gathered(self.pages.clone())))
    }

    fn resume_install(&mut self, copy: CopyId) -> Resume {
        let all = self.pages.clone();
        Box::new(move || {
            let looks = all.lock().looks.clone();
            // Waits for who holds it.
            drop(looks.lock());
            let pages = all.lock();
            Ok(match &pages.staged {
                Some((staged, parts)) if *staged == copy => {
                    let install = Box::new(Gathered(all.clone()));
                    Some((install as Box<dyn StateInstall>, parts.len() as u64))
                }
                _ => None,
            })
        })
    }

    fn discard_installs(&mut self) {
        let mut pages = self.pages.lock();
        pages.staged = None;
        pages.earlier = Vec::new();
    }

    fn install(
        &mut self,
        install: Box<dyn StateInstall>,
        position: LogPosition,
        time: ClusterTime,
    ) -> Result<(), BoxError> {
        if !install.into_any().is::<Gathered>() {
            return Err("another's state".into());
        }
        let mut pages = self.pages.lock();
        pages.position = position.get();
        pages.time = Some(time);
        pages.payloads = pages.staged.take().map_or(Vec::new(), |(_, parts)| parts);
        pages.installs += 1;
        Ok(())
    }

    fn syncer(&self) -> Syncer {
        let journal = self.clone();
        Box::new(move || Ok(LogPosition::new(journal.pages.lock().position)))
    }
}

#[derive(Default)]
struct Lines {
    groups: BTreeMap<MemberId, Group<Journal>>,
    cut: BTreeSet<MemberId>,
}

/// Cloning gives another handle to the same switchboard.
#[derive(Clone, Default)]
pub struct Switchboard {
    lines: Arc<Mutex<Lines>>,
}

/// One member's way into the switchboard.
struct Line {
    me: MemberId,
    board: Switchboard,
}

impl Transport for Line {
    fn send(&self, to: MemberId, packet: Vec<u8>) {
        let group = {
            let lines = self.board.lines.lock();
            if lines.cut.contains(&to) || lines.cut.contains(&self.me) {
                return;
            }
            lines.groups.get(&to).cloned()
        };
        if let Some(group) = group {
            group.receive(&packet).expect("a packet of ours is whole");
        }
    }
}

pub struct Member {
    pub id: MemberId,
    pub disk: Arc<SimulatedDisk>,
    pub group: Group<Journal>,
    pub journal: Journal,
}

impl Switchboard {
    pub fn add(&self, id: u64, beginning: Beginning, adjust: impl FnOnce(&mut Options)) -> Member {
        let disk = Arc::new(SimulatedDisk::new());
        self.open(id, disk, Journal::default(), beginning, adjust)
    }

    /// Ends a member's process and begins it again.
    pub fn restart(&self, member: Member, adjust: impl FnOnce(&mut Options)) -> Member {
        let Member {
            id, disk, journal, ..
        } = member;
        let group = self.lines.lock().groups.remove(&id);
        if let Some(group) = group {
            group.close().expect("closes");
        }
        self.open(id.get(), disk, journal, Beginning::Joining, adjust)
    }

    /// With what a disk and a journal hold.
    pub fn open(
        &self,
        id: u64,
        disk: Arc<SimulatedDisk>,
        journal: Journal,
        beginning: Beginning,
        adjust: impl FnOnce(&mut Options),
    ) -> Member {
        let id = MemberId::new(id);
        let mut options = Options::new(GroupId(5));
        options.member = id;
        options.beginning = beginning;
        // As a server has it. Quicker ones would elect others while a busy machine holds a leader up.
        options.tick_ms = 100;
        options.segment_bytes = 4096;
        adjust(&mut options);
        let line = Line {
            me: id,
            board: self.clone(),
        };
        let group = Group::open(
            options,
            disk.clone(),
            Arc::new(SystemClock),
            Arc::new(line),
            journal.clone(),
        )
        .expect("opens");
        self.lines.lock().groups.insert(id, group.clone());
        Member {
            id,
            disk,
            group,
            journal,
        }
    }

    pub fn cut(&self, member: MemberId) {
        self.lines.lock().cut.insert(member);
    }

    pub fn mend(&self) {
        self.lines.lock().cut.clear();
    }

    /// The members refer to each other through here.
    pub fn close(&self) {
        let groups = std::mem::take(&mut self.lines.lock().groups);
        for group in groups.values() {
            group.close().expect("closes");
        }
    }
}

pub fn ids(ids: &[u64]) -> Vec<MemberId> {
    ids.iter().map(|id| MemberId::new(*id)).collect()
}

/// Members that begin together.
pub fn begin(board: &Switchboard, count: u64, adjust: impl Fn(&mut Options)) -> Vec<Member> {
    let voters: Vec<MemberId> = (1..=count).map(MemberId::new).collect();
    (1..=count)
        .map(|id| board.add(id, Beginning::Voters(voters.clone()), &adjust))
        .collect()
}

/// Waits until something is there.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The member that leads, among these.
pub fn leader(members: &[Member]) -> &Member {
    wait_for("a leader", || {
        members
            .iter()
            .find(|member| member.group.role().borrow().is_leader())
    })
}

pub fn write(member: &Member, payload: &[u8]) -> Pending {
    let payload = payload.to_vec();
    member
        .group
        .propose(Durability::Synced, payload, |_, _, _| ())
        .expect("it leads")
}

pub fn is_leader(member: &Member) -> bool {
    matches!(*member.group.role().borrow(), Role::Leader { .. })
}

/// Runs a future to its end on this thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    use std::task::{Context, Poll, Waker};
    let mut future = std::pin::pin!(future);
    wait_for("an answer", || {
        match future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    })
}
