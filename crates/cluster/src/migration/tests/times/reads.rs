//! What a member answers that has applied some beginning of its shard's log.

use super::*;

/// How often each kind of answer came: after a time, and at one.
#[derive(Clone, Default, Debug)]
pub(super) struct Reads {
    waits: [usize; 2],
    refused: [usize; 2],
    /// By the donor's members, and by the recipient's.
    answered: [[usize; 2]; 2],
}

impl Reads {
    pub(super) fn add(&mut self, other: &Reads) {
        for kind in 0..2 {
            self.waits[kind] += other.waits[kind];
            self.refused[kind] += other.refused[kind];
            for shard in [DONOR, RECIPIENT] {
                self.answered[shard][kind] += other.answered[shard][kind];
            }
        }
    }

    pub(super) fn check_that_all_kinds_came(&self) {
        let all = [self.waits, self.refused].into_iter().chain(self.answered);
        assert!(all.flatten().all(|times| times > 0), "{self:?}");
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Read {
    /// What is there by now, and not before a time (`afterClusterTime`).
    After(Time),
    /// What was there at a time (`atClusterTime`).
    At(Time),
}

enum Answer {
    /// For an entry, or for a decision.
    Waits,
    /// It is another shard's: *stale config*, or *stale chunk history*.
    Refused,
    Value(u8),
}

impl Search {
    fn read(&self, world: &World, shard: usize, applied: &Log, read: Read) -> Answer {
        let (Read::After(time) | Read::At(time)) = read;
        // Whoever reads may have had an entry written that is not earlier, unless another one comes first.
        let following = world.logs[shard].entries().get(usize::from(applied.length));
        let is_known = following.is_none_or(|entry| time < entry.time);
        if !is_known && applied.time() < time && self.rules.reads_wait_for_their_time {
            return Answer::Waits;
        }
        let is_past = matches!(read, Read::At(_)) && self.rules.earlier_times_have_their_owner;
        let (state, since) = applied.state();
        let place = usize::from(state).checked_sub(1);
        let owns = if shard == DONOR {
            match place.map(|place| &self.donors[place]) {
                Some(donor) if donor.blocks_reads() && self.rules.blocks_hold_reads => {
                    let is_earlier = matches!(read, Read::At(at) if at < since);
                    if !is_earlier {
                        return Answer::Waits;
                    }
                    true
                }
                Some(donor) => match donor.phase {
                    donor::Phase::Committed(_) => is_past && !self.is_recipients(world, time),
                    donor::Phase::Copying
                    | donor::Phase::WritesBlocked
                    | donor::Phase::ReadsBlocked
                    | donor::Phase::Aborted => true,
                },
                None => true,
            }
        } else {
            let owns = place.is_some_and(|place| self.recipients[place].owns());
            owns && (!is_past || self.is_recipients(world, time))
        };
        if !owns {
            return Answer::Refused;
        }
        let mut latest = applied.entries().iter().rev();
        let found = latest.find(|entry| {
            let is_meant = matches!(read, Read::After(_)) || entry.time <= time;
            entry.value != 0 && is_meant
        });
        Answer::Value(found.map_or(0, |entry| entry.value))
    }

    /// Whether the recipient's ownership counts at a time: what is stored with it on both shards.
    fn is_recipients(&self, world: &World, time: Time) -> bool {
        matches!(world.fate, Fate::Committed(since) if time >= since)
    }

    /// Reads on every member that were not looked at before this step: on all of them if something was written, and
    /// otherwise on those that have applied everything.
    pub(super) fn check(&mut self, before: &World, world: &World) -> Result<(), String> {
        for shard in [DONOR, RECIPIENT] {
            let log = &world.logs[shard];
            let least = match before.written == world.written {
                true => log.length.min(before.logs[shard].length + 1),
                false => 1,
            };
            for length in least..=log.length {
                let applied = Log {
                    entries: log.entries,
                    length,
                };
                self.check_member(world, shard, &applied)?;
            }
        }
        Ok(())
    }

    fn check_member(&mut self, world: &World, shard: usize, applied: &Log) -> Result<(), String> {
        let written = usize::from(world.written);
        for time in &world.writes[..written] {
            self.check_read(world, shard, applied, Read::After(*time))?;
        }
        for time in world.writes[0]..=world.latest() + 1 {
            self.check_read(world, shard, applied, Read::At(time))?;
        }
        Ok(())
    }

    fn check_read(
        &mut self,
        world: &World,
        shard: usize,
        applied: &Log,
        read: Read,
    ) -> Result<(), String> {
        let (kind, time) = match read {
            Read::After(time) => (0, time),
            Read::At(time) => (1, time),
        };
        let value = match self.read(world, shard, applied, read) {
            Answer::Waits => {
                self.reads.waits[kind] += 1;
                return Ok(());
            }
            Answer::Refused => {
                self.reads.refused[kind] += 1;
                return Ok(());
            }
            Answer::Value(value) => value,
        };
        self.reads.answered[shard][kind] += 1;
        let written = &world.writes[..usize::from(world.written)];
        let latest = written.iter().rposition(|written| *written <= time);
        let expected = latest.map_or(0, |place| place as u8 + 1);
        let is_right = match read {
            Read::After(_) => value >= expected,
            Read::At(_) => value == expected,
        };
        if is_right {
            return Ok(());
        }
        let who = ["donor", "recipient"][shard];
        Err(format!(
            "a read {read:?} of the {who}'s member that has applied {} entries finds write {value}, and not {expected}, \
             of writes at {written:?}",
            applied.length
        ))
    }
}
