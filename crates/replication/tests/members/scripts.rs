//! Golden scripts: a group of members stepped by hand, one line per step, and what came of
//! it. The members are named by their numbers.
//!
//! ```text
//!   open 1 2 3        members that begin together
//!   ticks 1 12        time passes on a member
//!   run               packets are carried until there are none
//!   carry 1 2         packets are carried between these two only
//!   pass 1 2 3        so many times, what is on its way between these two arrives
//!   drop              packets on their way are lost
//!   drop 1 2          those between these two
//!   write 1 a         a proposal
//!   barrier 1         a linearizable read begins
//!   priority 1 0      how much a member is wanted as leader, as all of them know
//!   rest 1 20         a member does not stand for election for so many ticks
//!   transfer 1        a leader hands over
//!   stepdown 1        a leader leads no longer, whoever does
//!   progress 1        what a leader knows of the others
//!   elections 1       what a member remembers of elections
//!   fill 1 2 30       thirty proposals on 1, confirmed by 2
//!   trim 1            old entries leave the log
//!   gathered 1        what a member has of a copy of the state
//!   alter 1 2         the second part that a member has of a copy becomes another
//!   forget 1          a member loses what an earlier copy has left
//!   gone 2 1          2 is told that the process of 1 has ended, whether that is true or not
//!   stop 1            the member's process ends
//!   start 1           it is opened again, with all that it had written
//!   blank 1           what it had applied is gone: nothing of it had been made stable
//!   end 1             the member ends in order
//!   power 1           the member loses its power, and what it had not synced, and is opened
//!   show              roles, what is applied, what was answered
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use replication::simulated_disk::SimulatedDisk;
use replication::{
    Beginning, Driver, Durability, Group, GroupId, LeaderError, LogPosition, MemberId, Options,
    Pending, ProposeError, Role, Transport,
};

use crate::switchboard::Journal;

type Packets = Arc<Mutex<Vec<(MemberId, MemberId, Vec<u8>)>>>;

struct Wire {
    me: MemberId,
    packets: Packets,
}

impl Transport for Wire {
    fn send(&self, to: MemberId, packet: Vec<u8>) {
        self.packets.lock().push((self.me, to, packet));
    }
}

type Barrier = Pin<Box<dyn Future<Output = Result<LogPosition, LeaderError>>>>;
type Asked = Pin<Box<dyn Future<Output = Result<(), LeaderError>>>>;

struct Stage {
    packets: Packets,
    voters: Vec<MemberId>,
    disks: BTreeMap<MemberId, (SimulatedDisk, Journal)>,
    members: BTreeMap<MemberId, (Group<Journal>, Driver<Journal>)>,
    writes: Vec<(String, Option<Pending>, String)>,
    barriers: Vec<(String, Option<Barrier>, String)>,
    asked: Vec<(String, Asked)>,
    wall_ms: Arc<AtomicI64>,
}

fn member(text: &str) -> MemberId {
    MemberId::new(text.parse().expect("a member's number"))
}

impl Stage {
    fn new() -> Self {
        Self {
            packets: Packets::default(),
            voters: Vec::new(),
            disks: BTreeMap::new(),
            members: BTreeMap::new(),
            writes: Vec::new(),
            barriers: Vec::new(),
            asked: Vec::new(),
            wall_ms: Arc::new(AtomicI64::new(1_700_000_000_000)),
        }
    }

    fn open(&mut self, id: MemberId) {
        let (disk, journal) = self.disks.entry(id).or_default().clone();
        let mut options = Options::new(GroupId(1));
        options.member = id;
        options.beginning = Beginning::Voters(self.voters.clone());
        options.segment_bytes = 4096;
        options.window_bytes = 0;
        options.election_seed = Some(1);
        let wire = Wire {
            me: id,
            packets: self.packets.clone(),
        };
        let wall_ms = self.wall_ms.clone();
        let opened = Group::open_stepped(
            options,
            Arc::new(disk),
            Arc::new(move || wall_ms.load(Ordering::Relaxed)),
            Arc::new(wire),
            journal,
        );
        self.members.insert(id, opened.expect("opens"));
    }

    /// Packets arrive, and those that they bring about, so many times.
    fn carry(&mut self, only: Option<(MemberId, MemberId)>, times: usize) {
        for _ in 0..times {
            let packets = std::mem::take(&mut *self.packets.lock());
            let (now, later): (Vec<_>, Vec<_>) = packets.into_iter().partition(|(from, to, _)| {
                only.is_none_or(|(a, b)| (*from, *to) == (a, b) || (*from, *to) == (b, a))
            });
            self.packets.lock().extend(later);
            if now.is_empty() {
                return;
            }
            for (_, to, packet) in now {
                if let Some((group, driver)) = self.members.get_mut(&to) {
                    group.receive(&packet).expect("a packet of ours");
                    driver.step();
                }
            }
        }
    }

    fn step(&mut self, line: &str, out: &mut String) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["open", ..] => {
                self.voters = words[1..].iter().map(|word| member(word)).collect();
                for id in self.voters.clone() {
                    self.open(id);
                }
            }
            ["ticks", id, count] => {
                let (_, driver) = self.members.get_mut(&member(id)).expect("a member");
                for _ in 0..count.parse().expect("a number") {
                    driver.tick();
                }
            }
            ["run"] => self.carry(None, usize::MAX),
            ["carry", a, b] => self.carry(Some((member(a), member(b))), usize::MAX),
            ["pass", a, b, times] => {
                let times = times.parse().expect("a number");
                self.carry(Some((member(a), member(b))), times);
            }
            ["drop"] => self.packets.lock().clear(),
            ["drop", a, b] => {
                let (a, b) = (member(a), member(b));
                let mut packets = self.packets.lock();
                packets.retain(|(from, to, _)| (*from, *to) != (a, b) && (*from, *to) != (b, a));
            }
            ["write", id, text] => {
                let (group, driver) = self.members.get_mut(&member(id)).expect("a member");
                let payload = text.as_bytes().to_vec();
                let proposed = group.propose(Durability::Buffered, payload, |_, _, _| ());
                let (pending, answer) = match proposed {
                    Ok(pending) => (Some(pending), "under way".to_owned()),
                    Err(error) => (None, describe(&error)),
                };
                self.writes.push((text.to_owned(), pending, answer));
                driver.step();
            }
            ["barrier", id] => {
                let (group, driver) = self.members.get_mut(&member(id)).expect("a member");
                let group = group.clone();
                let mut barrier: Barrier = Box::pin(async move { group.read_barrier().await });
                let _ = look(&mut barrier);
                driver.step();
                self.barriers
                    .push((id.to_owned(), Some(barrier), "under way".to_owned()));
            }
            ["priority", id, priority] => {
                let priority = priority.parse().expect("a number");
                for (_, journal) in self.disks.values() {
                    journal.set_priority(member(id), priority);
                }
            }
            ["rest", id, ticks] => {
                let (group, driver) = self.members.get_mut(&member(id)).expect("a member");
                let tick_ms = Options::new(GroupId(1)).tick_ms;
                let ticks: u64 = ticks.parse().expect("a number");
                group.rest(Duration::from_millis(ticks * tick_ms));
                driver.step();
            }
            ["transfer" | "stepdown", id] => {
                let (group, driver) = self.members.get_mut(&member(id)).expect("a member");
                let group = group.clone();
                let down = words[0] == "stepdown";
                let mut asked: Asked = Box::pin(async move {
                    match down {
                        true => group.step_down().await,
                        false => group.transfer(None).await,
                    }
                });
                let _ = look(&mut asked);
                driver.step();
                self.asked.push((line.to_owned(), asked));
            }
            ["progress", id] => {
                let (group, _) = &self.members[&member(id)];
                for known in &group.members().progress {
                    let applied = known.applied.map_or(0, LogPosition::get);
                    let rests = if known.is_resting { ", rests" } else { "" };
                    writeln!(out, "{}: applied {applied}{rests}", known.member).expect("writes");
                }
                out.push('\n');
            }
            ["elections", id] => {
                let (group, _) = &self.members[&member(id)];
                let elections = group.members().elections;
                let won = elections.won.map(|won| {
                    let prior = won.prior_leader.map_or(0, MemberId::get);
                    format!("won {} by {:?} from {prior}", won.term.get(), won.reason)
                });
                let voted = elections
                    .voted
                    .map(|voted| format!("voted for {} in {}", voted.candidate, voted.term.get()));
                writeln!(out, "{id}: {won:?} {voted:?}\n").expect("writes");
            }
            ["fill", id, other, count] => {
                for number in 0..count.parse::<u8>().expect("a number") {
                    let (group, driver) = self.members.get_mut(&member(id)).expect("a member");
                    let payload = vec![b'a' + number % 26; 300];
                    let proposed = group.propose(Durability::Buffered, payload, |_, _, _| ());
                    drop(proposed.expect("it leads"));
                    driver.step();
                    self.carry(Some((member(id), member(other))), usize::MAX);
                }
            }
            ["trim", id] => self.members[&member(id)].0.maintain(),
            ["gathered", id] => {
                let (_, journal) = &self.disks[&member(id)];
                let ((begun, parts), installs) = (journal.gathered(), journal.installs());
                writeln!(
                    out,
                    "{id}: begun {begun}, {parts} parts, {} kept, installed {installs}, {} entries\n",
                    journal.kept(),
                    journal.payloads().len()
                )
                .expect("writes");
            }
            ["alter", id, part] => {
                let (_, journal) = &self.disks[&member(id)];
                journal.alter_gathered(part.parse().expect("a number"));
            }
            ["forget", id] => self.disks[&member(id)].1.forget_earlier(),
            ["gone", id, other] => {
                let (group, driver) = self.members.get_mut(&member(id)).expect("a member");
                group.gone(member(other));
                driver.step();
            }
            ["stop", id] => drop(self.members.remove(&member(id))),
            ["start", id] => self.open(member(id)),
            ["end", id] => {
                let (_, driver) = self.members.remove(&member(id)).expect("a member");
                driver.close().expect("it ends");
            }
            ["blank", id] => self.disks[&member(id)].1.clear(),
            ["power", id] => {
                let id = member(id);
                self.members.remove(&id);
                let (disk, _) = &self.disks[&id];
                disk.restart(Some(0));
                self.open(id);
            }
            ["show"] => {
                self.show(out);
                out.push('\n');
            }
            _ => panic!("not a step: {line}"),
        }
    }

    fn show(&mut self, out: &mut String) {
        for (id, (group, _)) in &self.members {
            let role = match *group.role().borrow() {
                Role::Leader { term } => format!("leads in {}", term.get()),
                Role::Candidate { term } => format!("is a candidate in {}", term.get()),
                Role::Follower { term, leader } => match leader {
                    Some(leader) => format!("follows {leader} in {}", term.get()),
                    None => format!("waits in {}", term.get()),
                },
                Role::Installing { position } => format!("installs {position}"),
                Role::Gone => "is gone".to_owned(),
            };
            let applied: Vec<String> = self.disks[id]
                .1
                .payloads()
                .iter()
                .map(|payload| String::from_utf8_lossy(payload).into_owned())
                .collect();
            let applied = applied.join("");
            writeln!(
                out,
                "{id} {role}, log to {}, applied {} [{applied}]",
                group.last_appended(),
                group.last_applied()
            )
            .expect("writes");
        }
        for (text, pending, answer) in &mut self.writes {
            if let Some(outcome) = pending.as_mut().and_then(Pending::poll_now) {
                *answer = match outcome {
                    Ok(applied) => format!("applied at {}", applied.position),
                    Err(error) => describe(&error),
                };
                *pending = None;
            }
            writeln!(out, "write {text}: {answer}").expect("writes");
        }
        for (id, barrier, answer) in &mut self.barriers {
            if let Some(outcome) = barrier.as_mut().and_then(look) {
                *answer = match outcome {
                    Ok(position) => format!("passed at {position}"),
                    Err(error) => error.to_string(),
                };
                *barrier = None;
            }
            writeln!(out, "barrier on {id}: {answer}").expect("writes");
        }
        self.asked.retain_mut(|(text, asked)| match look(asked) {
            None => true,
            Some(outcome) => {
                let answer = outcome.map_or_else(|error| error.to_string(), |()| "done".to_owned());
                writeln!(out, "{text}: {answer}").expect("writes");
                false
            }
        });
        self.writes.retain(|(_, pending, _)| pending.is_some());
        self.barriers.retain(|(_, barrier, _)| barrier.is_some());
    }
}

fn describe(error: &ProposeError) -> String {
    match error {
        ProposeError::NotLeader { leader: None } => "not the leader".to_owned(),
        ProposeError::NotLeader { leader: Some(it) } => format!("not the leader, that is {it}"),
        other => other.to_string(),
    }
}

fn look<T>(asked: &mut Pin<Box<dyn Future<Output = T>>>) -> Option<T> {
    match asked.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

/// Steps before `---`, what they show behind it. With `TERNDB_BLESS` set, what they show
/// now is what they are to show from now on.
fn check(name: &str, script: &str) {
    let (steps, expected) = script.split_once("---\n").expect("a script has two parts");
    let mut stage = Stage::new();
    let mut out = String::new();
    for line in steps.lines().map(str::trim) {
        if !line.is_empty() && !line.starts_with('#') {
            stage.step(line, &mut out);
        }
    }
    if std::env::var_os("TERNDB_BLESS").is_some() {
        let path = format!(
            "{}/tests/members/scripts/{name}.txt",
            env!("CARGO_MANIFEST_DIR")
        );
        std::fs::write(path, format!("{steps}---\n{}\n", out.trim())).expect("writes");
        return;
    }
    assert_eq!(out.trim(), expected.trim(), "{name}");
}

macro_rules! scripts {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            let name = stringify!($name);
            check(name, include_str!(concat!("scripts/", stringify!($name), ".txt")));
        })*
    };
}

scripts! {
    an_election_and_a_write
    a_new_leader_waits_for_an_entry_of_its_own
    a_vote_survives_the_power
    a_barrier_needs_a_majority
    what_no_majority_has_is_replaced
    a_member_without_priority_never_leads
    a_member_that_rests_votes_and_does_not_stand
    leadership_is_handed_to_the_most_wanted
    a_follower_tells_what_it_has_applied
    a_copy_goes_on_after_a_restart_of_its_receiver
    a_copy_goes_on_with_another_leader
    what_has_changed_since_an_earlier_copy_is_sent
    what_was_held_and_is_lost_is_not_kept
    a_leader_that_is_gone_is_replaced_at_once
    members_take_turns_where_a_leader_is_gone
    who_is_told_wrongly_that_its_leader_is_gone_follows_it_again
    silence_is_noticed_after_an_election_timeout
    what_was_committed_is_applied_by_a_member_that_is_alone
}
