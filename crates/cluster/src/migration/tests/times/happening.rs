//! What can happen next.

use super::*;

type Next = Vec<(World, Step)>;

impl Search {
    pub(super) fn successors(&mut self, world: &World, next: &mut Next) {
        for number in 0..self.messages.len() {
            if world.network & (1 << number) != 0 {
                self.deliver(world, number, next);
            }
        }
        self.block(world, next);
        self.donor_does(world, next);
        self.recipient_does(world, next);
        self.clients(world, next);
        if self.extent.catalog_changes && world.catalog == 0 && world.fate == Fate::Undecided {
            let after = World {
                catalog: 1,
                ..*world
            };
            next.push((after, Step::CatalogChanges));
        }
    }

    fn deliver(&mut self, world: &World, number: usize, next: &mut Next) {
        let message = self.messages[number].clone();
        let heard = |next: &mut Next, after: World, shard: usize| {
            if after != *world {
                next.push((after, Step::Arrives(message.clone(), shard)));
            }
        };
        let mut after = *world;
        match &message {
            Message::Sent(Send::Recipient(message), _) => {
                self.recipient_hears(&mut after, message);
                heard(next, after, RECIPIENT);
            }
            Message::Sent(Send::Donor(message), at) => {
                let (event, noted) = match *message {
                    ToDonor::Ready { catalog, .. } => {
                        let noted = match self.rules.blocks_follow_copies {
                            true => *at,
                            false => 0,
                        };
                        (donor::Event::RecipientReady { catalog }, noted)
                    }
                    ToDonor::Cannot { .. } => (donor::Event::RecipientCannot, 0),
                    ToDonor::Progress { .. } | ToDonor::Released { .. } => return,
                };
                self.donor_hears(&mut after, event, noted);
                heard(next, after, DONOR);
            }
            Message::Sent(Send::Authority(message), at) => {
                self.authority_hears(&mut after, message, *at);
                heard(next, after, 2);
            }
            Message::Decided(outcome) => {
                let noted = self.noted(*outcome);
                self.donor_hears(&mut after, donor::Event::Decided(*outcome), noted);
                heard(next, after, DONOR);
                let mut after = *world;
                let event = recipient::Event::Decided(*outcome);
                self.recipient_steps(&mut after, event, 0, noted);
                heard(next, after, RECIPIENT);
            }
            Message::CatalogChanged(known, now) => {
                let (known, now) = (*known, *now);
                let event = donor::Event::CatalogChanged { known, now };
                self.donor_hears(&mut after, event, 0);
                heard(next, after, DONOR);
            }
        }
    }

    /// The time that is noted by who hears of a decision.
    fn noted(&self, outcome: Outcome) -> Time {
        match outcome {
            Outcome::Committed { since, .. } if self.rules.decisions_are_noted => {
                since.seconds() as Time
            }
            Outcome::Committed { .. } | Outcome::Aborted => 0,
        }
    }

    /// ⚑ As long as a block is not committed, the primary that writes it goes on to nothing else.
    fn donor_hears(&mut self, world: &mut World, event: donor::Event, noted: Time) {
        if world.block != Entry::default() {
            return;
        }
        if let Some(to) = self.donor(world).step(event) {
            self.donor_becomes(world, to, noted);
        }
    }

    fn recipient_steps(
        &mut self,
        world: &mut World,
        event: recipient::Event,
        value: u8,
        noted: Time,
    ) {
        let stepped = (self.recipient(world)).and_then(|it| it.step(event, version(0)));
        if let Some(to) = stepped {
            self.recipient_becomes(world, to, value, noted);
        }
    }

    fn recipient_hears(&mut self, world: &mut World, message: &ToRecipient) {
        match (self.recipient(world).is_some(), message) {
            (false, ToRecipient::Receive { moved, since }) => {
                let begun = Recipient::begin(moved.clone(), *since, Standing::Empty);
                if let Some(begun) = begun {
                    self.recipient_becomes(world, aligned(begun), 0, 0);
                }
            }
            // Of a move that has not begun here.
            (false, ToRecipient::Finish { .. } | ToRecipient::Release { .. }) => {}
            (true, message @ ToRecipient::Receive { .. }) => {
                let event = recipient::Event::Message(message.clone());
                let stepped = self
                    .recipient(world)
                    .and_then(|it| it.step(event, version(0)));
                if let Some(to) = stepped {
                    self.recipient_becomes(world, aligned(to), 0, 0);
                }
            }
            (
                true,
                &ToRecipient::Finish {
                    catalog,
                    up_to,
                    digest: wanted,
                    ..
                },
            ) => {
                let found = digest(world.logs[RECIPIENT].value());
                let event = recipient::Event::Finish {
                    catalog,
                    up_to,
                    wanted,
                    found,
                };
                self.recipient_steps(world, event, 0, 0);
            }
            (true, &ToRecipient::Release { id, outcome }) => {
                let release = ToRecipient::Release { id, outcome };
                let event = recipient::Event::Message(release);
                self.recipient_steps(world, event, 0, self.noted(outcome));
            }
        }
    }

    fn authority_hears(&mut self, world: &mut World, message: &ToAuthority, blocked_at: Time) {
        if let (ToAuthority::Commit { moved }, Fate::Undecided) = (message, world.fate) {
            let now = u64::from(world.catalog);
            if moved.catalog != now {
                return self.send(world, Message::CatalogChanged(moved.catalog, now));
            }
            world.time = match self.rules.ownership_follows_blocks {
                true => world.time.max(blocked_at) + 1,
                false => world.time + 1,
            };
            world.fate = Fate::Committed(world.time);
        }
        if let (ToAuthority::Settle { .. }, Fate::Undecided) = (message, world.fate) {
            world.fate = Fate::Aborted;
        }
        if let Some(outcome) = outcome(world.fate) {
            self.send(world, Message::Decided(outcome));
        }
    }

    /// A block that is being written comes to be majority-committed, or its primary is lost.
    fn block(&mut self, world: &World, next: &mut Next) {
        if world.block == Entry::default() {
            return;
        }
        let mut lost = *world;
        lost.block = Entry::default();
        next.push((lost, Step::BlockIsLost));
        let mut after = lost;
        after.logs[DONOR].push(world.block);
        if let Some(to) = self.donor(&after).step(donor::Event::Timer) {
            self.donor_becomes(&mut after, to, 0);
        }
        next.push((after, Step::BlockIsCommitted));
    }

    /// Counts that somebody gives up or grows impatient, if that may happen once more.
    fn disturbs(&self, world: &mut World) -> bool {
        let may = world.disturbances < self.extent.disturbances;
        world.disturbances += u8::from(may);
        may
    }

    fn donor_does(&mut self, world: &World, next: &mut Next) {
        let log = &world.logs[DONOR];
        let drained = donor::Event::Drained {
            at: log.position(),
            digest: digest(log.value()),
        };
        for event in [donor::Event::AlmostCaughtUp, drained, donor::Event::Abort] {
            let mut after = *world;
            if event == donor::Event::Abort && !self.disturbs(&mut after) {
                continue;
            }
            let before = after;
            self.donor_hears(&mut after, event.clone(), 0);
            if after != before {
                next.push((after, Step::DonorDoes(event)));
            }
        }
    }

    fn recipient_does(&mut self, world: &World, next: &mut Next) {
        for event in [recipient::Event::Timer, recipient::Event::Failed] {
            let mut after = *world;
            if !self.disturbs(&mut after) {
                continue;
            }
            let before = after;
            self.recipient_steps(&mut after, event.clone(), 0, 0);
            if after != before {
                next.push((after, Step::RecipientDoes(event)));
            }
        }
        let (value, up_to) = (world.logs[DONOR].value(), world.logs[DONOR].position());
        let receives = |it: &Recipient| matches!(it.phase, recipient::Phase::Receiving { .. });
        // Nothing comes from a donor that has ended the move.
        let gives = match self.donor(world).phase {
            donor::Phase::Copying | donor::Phase::WritesBlocked | donor::Phase::ReadsBlocked => {
                true
            }
            donor::Phase::Committed(_) | donor::Phase::Aborted => false,
        };
        let is_new = world.logs[RECIPIENT].value() != value;
        if gives && is_new && self.recipient(world).is_some_and(receives) {
            let mut after = *world;
            let digest = digest(value);
            let event = recipient::Event::Copied { up_to, digest };
            self.recipient_steps(&mut after, event, value, 0);
            next.push((after, Step::RecipientCopies));
        }
    }

    /// Whoever accepts it gets a write; and readers bring a time from one shard to the other.
    fn clients(&mut self, world: &World, next: &mut Next) {
        let donor = self.donor(world);
        let accepts = [
            !donor.has_given_away() && !donor.blocks_writes(),
            self.recipient(world).is_some_and(Recipient::owns),
        ];
        let latest = world.latest();
        for shard in [DONOR, RECIPIENT] {
            // Nothing else is written behind a block that may be lost.
            if shard == DONOR && world.block != Entry::default() {
                continue;
            }
            let (time, state) = (world.logs[shard].time() + 1, 0);
            if accepts[shard] && world.written < self.extent.writes {
                let mut after = *world;
                after.writes[usize::from(world.written)] = time;
                after.written += 1;
                let value = after.written;
                after.logs[shard].push(Entry { time, value, state });
                next.push((after, Step::Writes(shard)));
            }
            if time <= latest && world.jumps < self.extent.jumps {
                let mut after = *world;
                after.jumps += 1;
                let (time, value) = (latest, 0);
                after.logs[shard].push(Entry { time, value, state });
                next.push((after, Step::Knows(shard)));
            }
        }
    }
}

/// Options and indexes are made in the same step.
fn aligned(to: Transition<Recipient>) -> Transition<Recipient> {
    let Some(recipient) = &to.next else {
        return to;
    };
    let catalog = recipient.moved.catalog;
    let aligned = recipient.step(recipient::Event::Aligned { catalog }, version(0));
    match aligned {
        Some(aligned) => Transition {
            next: aligned.next,
            send: to.send,
        },
        None => to,
    }
}
