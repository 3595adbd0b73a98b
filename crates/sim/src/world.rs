//! The world: rounds of time, work, clients and misfortune, then an end in peace.
//!
//! In every round each running member may notice that time has passed, packets arrive,
//! members work, clients ask and hear, and something may break. After each of them the
//! invariants are looked at. In the last rounds nothing breaks any more and everything
//! is mended: a leader must be found, and every member of the last configuration must
//! have everything that was acknowledged.

use std::collections::BTreeMap;

use replication::{
    Beginning, Durability, Error, Faults, GroupId, LogPosition, MemberId, Options, Role,
    StateMachine,
};

use crate::client::Clients;
use crate::invariant::acknowledged::Acknowledged;
use crate::invariant::leaders::Leaders;
use crate::invariant::once::Once;
use crate::invariant::prefixes::Prefixes;
use crate::invariant::{reads, tails, times};
use crate::machine::{Crash, Machine};
use crate::network::{Network, Weather};
use crate::random::Random;
use crate::session::Sessions;

/// What kind of world it is.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Members that the group begins with.
    pub voters: u64,
    /// Machines that may be taken in later.
    pub joining: u64,
    pub rounds: u64,
    pub quiet_rounds_max: u64,
    /// In thousandths, per round.
    pub crashes: u64,
    pub partitions: u64,
    pub clock_jumps: u64,
    pub changes: u64,
    pub transfers: u64,
    /// How often old entries leave the log.
    pub trims: u64,
    pub weather: Weather,
    pub faults: Faults,
    /// Clients that send their statements again until they are answered.
    pub sessions: u64,
    /// A session's statement is refused after a break in leadership; off only for a test.
    pub heed_terms: bool,
    /// Members are wanted more or less as leaders, some not at all.
    pub priorities: bool,
    /// How often a member is told that another one is gone, though nobody knows; in thousandths, per round.
    pub rumours: u64,
}

impl Settings {
    /// A world that differs from seed to seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5e77_1465);
        let voters = [1, 2, 3, 3, 3, 4, 5][random.below(7) as usize];
        let rough = random.chance(700);
        Self {
            voters,
            joining: if random.chance(400) { 2 } else { 0 },
            rounds: 250,
            quiet_rounds_max: 400,
            crashes: [0, 5, 15, 40][random.below(4) as usize],
            partitions: [0, 10, 40][random.below(3) as usize],
            clock_jumps: [0, 20][random.below(2) as usize],
            changes: 30,
            transfers: [0, 10][random.below(2) as usize],
            trims: [0, 100][random.below(2) as usize],
            weather: Weather {
                loss: if rough { random.below(200) } else { 0 },
                doubling: if rough { random.below(100) } else { 0 },
                delay_rounds_max: random.below(4),
            },
            faults: Faults::default(),
            sessions: 3,
            heed_terms: true,
            priorities: random.chance(300),
            rumours: [0, 0, 20][random.below(3) as usize],
        }
    }
}

/// What happened in a world in which everything held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The same for the same seed, always.
    pub fingerprint: u64,
    pub acknowledged: usize,
    pub applied: usize,
    pub terms: usize,
    pub crashes: u64,
    pub reads: u64,
    pub installs: u64,
    /// Copies of the state that went on after a restart of the receiver.
    pub resumed: u64,
    /// Parts of such copies that an earlier one had left, of whatever leader.
    pub kept: u64,
    /// Those of them that were another leader's.
    pub kept_of_others: u64,
    /// Statements of sessions that were acknowledged.
    pub statements: usize,
    /// Entries that were read from logs.
    pub tailed: u64,
    pub rounds: u64,
}

struct World {
    settings: Settings,
    random: Random,
    /// Decides about sessions and readers of logs, so that there may be none of them in a
    /// world that is the same otherwise.
    guests: Random,
    round: u64,
    machines: BTreeMap<MemberId, Machine>,
    network: Network,
    clients: Clients,
    sessions: Sessions,
    once: Once,
    /// How far each member's log has been read.
    tails: BTreeMap<MemberId, LogPosition>,
    tailed: u64,
    acknowledged: Acknowledged,
    leaders: Leaders,
    prefixes: Prefixes,
    /// How much of a member's state has been looked at.
    looked: BTreeMap<MemberId, u64>,
    crashes: u64,
    reads: u64,
    fingerprint: u64,
}

/// Runs a world to its end. An error says what did not hold.
pub fn run(seed: u64, settings: Settings) -> Result<Report, String> {
    let mut world = World::new(seed, settings);
    for _ in 0..settings.rounds {
        world.round(true)?;
    }
    world.mend()?;
    let mut agreed = false;
    for _ in 0..settings.quiet_rounds_max {
        world.round(false)?;
        if world.agreed() {
            agreed = true;
            break;
        }
    }
    if !agreed {
        return Err(format!(
            "the members did not agree in the end: {}",
            world.describe()
        ));
    }
    world.check_end()?;
    Ok(Report {
        fingerprint: world.fingerprint,
        acknowledged: world.acknowledged.count(),
        applied: world.prefixes.longest(),
        terms: world.leaders.terms(),
        crashes: world.crashes,
        reads: world.reads,
        installs: world
            .machines
            .values()
            .map(|machine| machine.ledger.installs())
            .sum(),
        resumed: world
            .machines
            .values()
            .map(|machine| machine.ledger.resumed())
            .sum(),
        kept: world
            .machines
            .values()
            .map(|machine| machine.ledger.kept())
            .sum(),
        kept_of_others: world
            .machines
            .values()
            .map(|machine| machine.ledger.kept_of_others())
            .sum(),
        statements: world.once.count(),
        tailed: world.tailed,
        rounds: world.round,
    })
}

impl World {
    fn new(seed: u64, settings: Settings) -> Self {
        let voters: Vec<MemberId> = (1..=settings.voters).map(MemberId::new).collect();
        let machines = (1..=settings.voters + settings.joining).map(|id| {
            let member = MemberId::new(id);
            let mut options = Options::new(GroupId(7));
            options.member = member;
            options.beginning = if id <= settings.voters {
                Beginning::Voters(voters.clone())
            } else {
                Beginning::Joining
            };
            options.segment_bytes = 4096;
            options.window_bytes = 2 * 4096;
            options.tail_bytes_max = 2048;
            options.message_bytes_max = 1024;
            options.election_seed = Some(seed);
            options.faults = settings.faults;
            (member, Machine::new(options, priorities(seed, settings)))
        });
        let mut network = Network::default();
        network.weather = settings.weather;
        Self {
            settings,
            random: Random::new(seed),
            guests: Random::new(seed ^ 0x6e57_5000),
            round: 0,
            machines: machines.collect(),
            network,
            clients: Clients::default(),
            sessions: Sessions::new(settings.sessions, settings.heed_terms),
            once: Once::default(),
            tails: BTreeMap::new(),
            tailed: 0,
            acknowledged: Acknowledged::default(),
            leaders: Leaders::default(),
            prefixes: Prefixes::default(),
            looked: BTreeMap::new(),
            crashes: 0,
            reads: 0,
            fingerprint: seed,
        }
    }

    fn round(&mut self, troubled: bool) -> Result<(), String> {
        self.round += 1;
        if troubled {
            self.misfortune()?;
        }
        self.start_some(troubled)?;
        self.pass_time();
        for (to, packet) in self.network.arrivals(self.round, &mut self.random) {
            self.mix(&packet);
            if let Some(group) = self.machines.get(&to).and_then(Machine::group) {
                group
                    .receive(&packet)
                    .map_err(|error| format!("{to:?} cannot read a packet: {error}"))?;
            }
        }
        if troubled {
            self.ask();
        }
        self.work()?;
        self.hear()?;
        self.tail()?;
        self.look()
    }

    /// Readers follow the logs, with pauses: some come too late.
    fn tail(&mut self) -> Result<(), String> {
        for (member, machine) in &self.machines {
            let Some(group) = machine.group() else {
                continue;
            };
            if !self.guests.chance(60) {
                continue;
            }
            let reached = self
                .tails
                .entry(*member)
                .or_insert(LogPosition::BEFORE_FIRST);
            // A member that lost its power may have to apply again what was read.
            let after = (*reached).min(group.last_applied());
            match group.read(after, 2000) {
                Ok(entries) => {
                    tails::check(*member, &machine.ledger, after, &entries)?;
                    self.tailed += entries.len() as u64;
                    *reached = entries.last().map_or(after, |last| last.position);
                }
                // It has left the log, or a power cut took it: the reader is told, and begins anew.
                Err(_) => *reached = group.first_position().previous(),
            }
        }
        Ok(())
    }

    fn mix(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.fingerprint = (self.fingerprint ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn members(&self) -> Vec<MemberId> {
        self.machines.keys().copied().collect()
    }

    /// Time passes, not for everybody at the same speed.
    fn pass_time(&mut self) {
        for machine in self.machines.values_mut() {
            machine.pass_time(100);
            if let Some((_, driver)) = &mut machine.running
                && self.random.chance(900)
            {
                driver.tick();
            }
        }
    }

    /// Members do what waits for them; what they send goes on its way.
    fn work(&mut self) -> Result<(), String> {
        for (member, machine) in &mut self.machines {
            if let Some((_, driver)) = &mut machine.running {
                while driver.step() {}
            }
            for (to, packet) in machine.outbox.take() {
                self.network
                    .send(self.round, *member, to, packet, &mut self.random);
            }
        }
        // Those whose power went in the middle of it.
        for member in self.members() {
            let Some(machine) = self.machines.get_mut(&member) else {
                continue;
            };
            let Some(reason) = machine.stopped() else {
                continue;
            };
            if !machine.disk.power_is_off() {
                return Err(format!("{member:?} stopped by itself: {reason}"));
            }
            self.look_at(member)?;
            self.crash(member);
        }
        Ok(())
    }

    fn crash(&mut self, member: MemberId) {
        let crash = if self.random.chance(700) {
            Crash::Power {
                seed: self.random.number(),
            }
        } else {
            Crash::Process
        };
        if let Some(machine) = self.machines.get_mut(&member) {
            machine.crash(crash);
            let applied = machine.ledger.applied();
            let looked = self.looked.entry(member).or_default();
            *looked = (*looked).min(applied);
            self.crashes += 1;
            self.tell_gone(member);
        }
    }

    /// Those who see that a process has ended say so.
    fn tell_gone(&mut self, gone: MemberId) {
        for (member, machine) in &self.machines {
            if *member != gone
                && let Some(group) = machine.group()
                && self.guests.chance(500)
            {
                group.gone(gone);
            }
        }
    }

    fn misfortune(&mut self) -> Result<(), String> {
        let settings = self.settings;
        let members = self.members();
        if self.random.chance(settings.crashes)
            && let Some(member) = self.random.pick(&members).copied()
            && self.machines[&member].running.is_some()
        {
            if self.random.chance(500) {
                // In the middle of some write that is to come.
                let operations = self.random.below(6);
                self.machines[&member].disk.cut_power_after(operations);
            } else {
                self.look_at(member)?;
                self.crash(member);
            }
        }
        if self.random.chance(settings.partitions) {
            let count = 1 + self.random.below(members.len() as u64) as usize;
            let mut group = members.clone();
            while group.len() > count {
                let index = self.random.below(group.len() as u64) as usize;
                group.swap_remove(index);
            }
            let one_way = self.random.chance(200);
            self.network.partition(&group, &members, one_way);
        }
        if self.random.chance(settings.partitions * 2) {
            self.network.heal();
        }
        if self.random.chance(settings.trims)
            && let Some(member) = self.random.pick(&members)
            && let Some(group) = self.machines[member].group()
        {
            group.maintain();
        }
        if self.guests.chance(settings.rumours)
            && let Some(member) = self.guests.pick(&members).copied()
        {
            self.tell_gone(member);
        }
        if self.random.chance(settings.clock_jumps)
            && let Some(member) = self.random.pick(&members)
        {
            let ms = self.random.below(40_000) as i64 - 20_000;
            self.machines[member].pass_time(ms);
        }
        Ok(())
    }

    /// Machines that are down come back.
    fn start_some(&mut self, troubled: bool) -> Result<(), String> {
        for (member, machine) in &mut self.machines {
            if machine.running.is_some() || (troubled && !self.random.chance(150)) {
                continue;
            }
            match machine.start() {
                Ok(()) => {}
                Err(Error::Disk { .. } | Error::Stopped { .. }) if machine.disk.power_is_off() => {
                    let seed = self.random.number();
                    machine.crash(Crash::Power { seed });
                }
                Err(error) => return Err(format!("{member:?} does not start: {error}")),
            }
        }
        Ok(())
    }

    /// Clients ask whoever says that it leads, or anybody.
    fn ask(&mut self) {
        let members = self.members();
        for member in &members {
            let Some(group) = self.machines[member].group().cloned() else {
                continue;
            };
            let leads = group.role().borrow().is_leader();
            let (position, time) = self.acknowledged.latest();
            if self.random.chance(if leads { 500 } else { 20 }) {
                let durability = if self.random.chance(500) {
                    Durability::Synced
                } else {
                    Durability::Buffered
                };
                let bytes = self.random.below(300) as usize;
                let count = 1 + self.random.below(3);
                // A sole member loses what it need not sync: nobody may rely on it.
                let sole = group.members().progress.len() <= 1;
                let durability = if sole { Durability::Synced } else { durability };
                for _ in 0..count {
                    self.clients.write(*member, &group, time, bytes, durability);
                }
            }
            let ledger = self.machines[member].ledger.clone();
            let random = &mut self.guests;
            for statement in self.sessions.ask(*member, &group, &ledger, random) {
                self.once.note(statement);
            }
            if self.random.chance(if leads { 150 } else { 10 }) {
                self.clients.read(*member, &group, position);
            }
            if leads && self.random.chance(self.settings.transfers) {
                self.clients.transfer(&group);
            }
            // A caretaker hands over as soon as it can.
            if leads && ledger.priority(*member) == 0 {
                self.clients.transfer(&group);
            }
            if leads && self.settings.joining > 0 && self.random.chance(self.settings.changes) {
                let (voters, learners) = self.some_configuration(&members);
                self.clients.change(&group, voters, learners);
            }
        }
    }

    fn some_configuration(&mut self, members: &[MemberId]) -> (Vec<MemberId>, Vec<MemberId>) {
        let (mut voters, mut learners) = (Vec::new(), Vec::new());
        for member in members {
            match self.random.below(10) {
                0..6 => voters.push(*member),
                6..9 => learners.push(*member),
                _ => {}
            }
        }
        if voters.is_empty() {
            voters.push(members[0]);
            learners.retain(|learner| *learner != members[0]);
        }
        (voters, learners)
    }

    /// Clients hear of what they asked for.
    fn hear(&mut self) -> Result<(), String> {
        for answered in self.clients.answered() {
            if let Ok(applied) = answered.outcome {
                times::check_order(answered.after, applied)?;
                self.acknowledged.note(applied, answered.payload)?;
            }
        }
        for (member, machine) in &self.machines {
            for statement in self.sessions.pass(*member, machine.group()) {
                self.once.note(statement);
            }
        }
        for (member, after) in self.clients.passed() {
            self.reads += 1;
            reads::check(member, &self.machines[&member].ledger, after)?;
        }
        Ok(())
    }

    fn look(&mut self) -> Result<(), String> {
        for member in self.members() {
            self.look_at(member)?;
        }
        Ok(())
    }

    fn look_at(&mut self, member: MemberId) -> Result<(), String> {
        let Some(machine) = self.machines.get(&member) else {
            return Ok(());
        };
        let looked = self.looked.entry(member).or_default();
        let ledger = &machine.ledger;
        times::check_log(member, ledger, *looked)?;
        self.prefixes.check(member, ledger, *looked)?;
        self.once.check(member, ledger, *looked)?;
        // Acknowledgements may have come later than what they are about.
        self.acknowledged
            .check_applied(member, ledger, looked.saturating_sub(64))?;
        *looked = ledger.applied();
        for role in ledger.take_roles() {
            if let Role::Leader { term } = role {
                self.leaders.note(term, member)?;
                self.acknowledged.check_complete(member, ledger)?;
            }
        }
        let Some(group) = machine.group() else {
            return Ok(());
        };
        let seen = group.members();
        if let Some(leader) = seen.leader {
            self.leaders.note(seen.term, leader)?;
        }
        Ok(())
    }

    /// Nothing breaks any more.
    fn mend(&mut self) -> Result<(), String> {
        self.network.mend();
        for member in self.members() {
            let is_dying = self.machines[&member].disk.power_is_off();
            self.machines[&member].disk.cut_power_after(u64::MAX);
            if is_dying && self.machines[&member].running.is_some() {
                self.look_at(member)?;
                self.crash(member);
            }
        }
        Ok(())
    }

    /// Whether somebody leads, and everybody in its configuration has what it has.
    fn agreed(&self) -> bool {
        let leader = self.machines.values().find(|machine| {
            machine.role().is_some_and(|role| role.is_leader())
                && machine.group().is_some_and(|group| {
                    let members = group.members();
                    !members.configuration.is_joint() && members.leader == Some(members.me)
                })
        });
        let Some(group) = leader.and_then(Machine::group) else {
            return false;
        };
        let members = group.members();
        let (latest, _) = self.acknowledged.latest();
        let applied = group.last_applied();
        applied >= latest
            && applied == group.last_appended()
            && members.configuration.members().all(|member| {
                let group = self.machines.get(&member).and_then(Machine::group);
                group.is_some_and(|group| {
                    group.last_applied() == applied
                        && group.members().leader == Some(members.me)
                        && group.members().configuration == members.configuration
                })
            })
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for (member, machine) in &self.machines {
            let state = match machine.group() {
                None => "down".to_owned(),
                Some(group) => format!(
                    "{:?} applied {} appended {} of {:?}",
                    *group.role().borrow(),
                    group.last_applied(),
                    group.last_appended(),
                    group.members().configuration,
                ),
            };
            text.push_str(&format!("\n  {member:?}: {state}"));
        }
        text
    }

    fn check_end(&self) -> Result<(), String> {
        let leader = self
            .machines
            .values()
            .find(|machine| machine.role().is_some_and(|role| role.is_leader()));
        let Some(group) = leader.and_then(Machine::group) else {
            return Err("nobody leads".to_owned());
        };
        for member in group.members().configuration.members() {
            let ledger = &self.machines[&member].ledger;
            self.acknowledged.check_complete(member, ledger)?;
            self.once.check_complete(member, ledger)?;
        }
        Ok(())
    }
}

/// By the place of a member. The first is always wanted, so that somebody can lead wherever
/// members do not change; where they do, all are wanted.
fn priorities(seed: u64, settings: Settings) -> Vec<u64> {
    let mut random = Random::new(seed ^ 0x0071_e5a7);
    let least = u64::from(settings.joining > 0);
    match settings.priorities {
        false => Vec::new(),
        true => (0..settings.voters + settings.joining)
            .map(|place| random.below(3).max(least).max(u64::from(place == 0)))
            .collect(),
    }
}
