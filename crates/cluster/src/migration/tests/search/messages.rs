//! What arrives: at donors, recipients and the authority, and what they make of it.

use super::*;

impl Search {
    pub(super) fn deliver(&mut self, world: &World, number: usize, next: &mut Next<'_>) {
        let message = self.messages[number].clone();
        let step = || format!("arrives: {message:?}");
        let mut after = *world;
        match &*message {
            Message::Sent(Send::Recipient(message)) => {
                self.recipient_hears(&mut after, number, message);
            }
            Message::Sent(Send::Donor(message)) => {
                let (id, event) = match *message {
                    ToDonor::Progress { .. } => return,
                    ToDonor::Ready { id, catalog } => {
                        let catalog = match self.rules.readiness_is_of_one_attempt {
                            true => catalog,
                            false => self.attempt(world, id),
                        };
                        (id, donor::Event::RecipientReady { catalog })
                    }
                    ToDonor::Cannot { id } => (id, donor::Event::RecipientCannot),
                    ToDonor::Released { id } => (id, donor::Event::RecipientReleased),
                };
                self.donor_hears(&mut after, number_of(id), event);
            }
            Message::Sent(Send::Authority(message)) => self.authority_hears(&mut after, message),
            &Message::Decided(number, outcome) => {
                if !self.waits_for_earlier(world, self.movement(number).from, outcome) {
                    self.donor_hears(&mut after, number, donor::Event::Decided(outcome));
                }
                // Whoever asked may be the recipient.
                let mut elsewhere = *world;
                let event = recipient::Event::Decided(outcome);
                self.decided_for_recipient(&mut elsewhere, number, event, outcome);
                if elsewhere != *world {
                    next.push(elsewhere, || format!("{}, at the recipient", step()));
                }
            }
            &Message::Refused(number) => {
                self.donor_hears(&mut after, number, donor::Event::CommitRefused);
            }
            &Message::CatalogChanged(number, known, now) => {
                let event = donor::Event::CatalogChanged { known, now };
                self.donor_hears(&mut after, number, event);
            }
        }
        if after != *world {
            next.push(after, step);
        }
    }

    /// ⚑ Whether a shard that hears of a commit has to learn of an earlier one first: of a range that it has
    /// said to be ready for. It asks the authority about those. What is undecided then will be decided later,
    /// with a newer version, so that asking and writing need not be one step.
    pub(super) fn waits_for_earlier(&self, world: &World, shard: usize, outcome: Outcome) -> bool {
        let learned = commits(outcome);
        self.rules.commits_are_learned_in_order
            && (0..self.moves()).any(|other| {
                let is_ready = |it: &Recipient| it.phase == recipient::Phase::Ready;
                self.movement(other).to == shard
                    && self.recipient(world, other).is_some_and(is_ready)
                    && matches!(world.fates[other], Fate::Committed(earlier) if earlier < learned)
            })
    }

    /// The version of the catalog that a donor is at.
    pub(super) fn attempt(&self, world: &World, id: OperationId) -> u64 {
        let donor = self.donor(world, number_of(id));
        donor.map_or(BEFORE.into(), |donor| donor.moved.catalog)
    }

    pub(super) fn donor_hears(&mut self, world: &mut World, number: usize, event: donor::Event) {
        if let Some(led) = self.donor_step(world.donors[number], event) {
            self.apply_donor(world, number, led);
        }
    }

    pub(super) fn decided_for_recipient(
        &mut self,
        world: &mut World,
        number: usize,
        event: recipient::Event,
        outcome: Outcome,
    ) {
        if self.waits_for_earlier(world, self.movement(number).to, outcome) {
            return;
        }
        let known = self.known(world, number);
        if let Some(led) = self.recipient_step(world.recipients[number], event, known) {
            self.apply_recipient(world, number, led, commits(outcome));
        }
    }

    /// `place` is that of the message among all messages.
    pub(super) fn recipient_hears(
        &mut self,
        world: &mut World,
        place: usize,
        message: &ToRecipient,
    ) {
        let id = match message {
            ToRecipient::Receive { moved, .. } => moved.id,
            ToRecipient::Finish { id, .. } | ToRecipient::Release { id, .. } => *id,
        };
        let number = number_of(id);
        let Movement { range, to, .. } = self.movement(number);
        let here = world.shards[to].parts[range];
        let known = self.known(world, number);
        let there = self.recipient(world, number);
        let attempt = there.map(|recipient| recipient.moved.catalog);
        let led = match (attempt, message) {
            (None, ToRecipient::Receive { moved, since }) => {
                let standing = if here.owns && self.rules.owned_ranges_are_not_received {
                    Standing::Owns
                } else if here.has_deletion {
                    Standing::HoldsDeadData
                } else {
                    Standing::Empty
                };
                let begun = Recipient::begin(moved.clone(), *since, standing);
                if begun.as_ref().is_some_and(|begun| begun.next.is_some()) {
                    world.known_at_begin[number] = world.shards[to].known;
                }
                begun.map(|begun| self.led_recipient(begun))
            }
            // Of a move that is forgotten here: it has ended.
            (None, ToRecipient::Release { .. }) => {
                let send = self.sent(vec![Send::Donor(ToDonor::Released { id })]);
                Some(Led { next: 0, send })
            }
            (None, ToRecipient::Finish { .. }) => {
                let send = self.sent(vec![Send::Donor(ToDonor::Cannot { id })]);
                Some(Led { next: 0, send })
            }
            (
                Some(attempt),
                &ToRecipient::Finish {
                    catalog,
                    up_to,
                    digest: wanted,
                    ..
                },
            ) => {
                let found = digest(here.data);
                let catalog = match self.rules.readiness_is_of_one_attempt {
                    true => catalog,
                    false => attempt,
                };
                let (up_to, wanted) = match self.rules.ready_means_all_of_it {
                    true => (up_to, wanted),
                    false => (0, found),
                };
                let event = recipient::Event::Finish {
                    catalog,
                    up_to,
                    wanted,
                    found,
                };
                self.recipient_step(world.recipients[number], event, known)
            }
            (Some(_), &ToRecipient::Release { id, outcome }) => {
                let event = recipient::Event::Message(ToRecipient::Release { id, outcome });
                return self.decided_for_recipient(world, number, event, outcome);
            }
            (Some(_), ToRecipient::Receive { .. }) => {
                let key = (world.recipients[number], place, known);
                match self.received_steps.get(&key) {
                    Some(led) => *led,
                    None => {
                        let event = recipient::Event::Message(message.clone());
                        let led = self.recipient_step(key.0, event, known);
                        self.received_steps.insert(key, led);
                        led
                    }
                }
            }
        };
        if let Some(led) = led {
            self.apply_recipient(world, number, led, 0);
        }
    }

    /// What a recipient goes by to tell an old commit.
    pub(super) fn known(&self, world: &World, number: usize) -> u8 {
        match self.rules.old_commits_are_told_by_version {
            true => world.known_at_begin[number],
            false => 0,
        }
    }

    /// Who owns a range after so many commits.
    pub(super) fn owner_at(&self, world: &World, range: usize, commits: u8) -> usize {
        let mut owner = (0, self.extent.owners[range]);
        for (number, moved) in self.extent.moves.iter().enumerate() {
            match world.fates[number] {
                Fate::Committed(at) if moved.range == range && at <= commits && at > owner.0 => {
                    owner = (at, moved.to);
                }
                Fate::Committed(_) | Fate::Aborted | Fate::Undecided => {}
            }
        }
        owner.1
    }

    /// The authority of `crate::authority`, as small as it can be.
    pub(super) fn authority_hears(&mut self, world: &mut World, message: &ToAuthority) {
        let (number, answer) = match message {
            ToAuthority::Settle { id } => {
                let number = number_of(*id);
                if world.fates[number] == Fate::Undecided {
                    world.fates[number] = Fate::Aborted;
                }
                (number, None)
            }
            ToAuthority::Commit { moved } => {
                let number = number_of(moved.id);
                let Movement { range, from, .. } = self.movement(number);
                let owner = self.owner_at(world, range, world.commits);
                let answer = match world.fates[number] {
                    Fate::Committed(_) => None,
                    Fate::Aborted if self.rules.outcomes_are_final => {
                        Some(Message::Refused(number))
                    }
                    _ if owner != from => Some(Message::Refused(number)),
                    _ if self.rules.commits_compare_catalogs
                        && self.standing(world) != Some(moved.catalog) =>
                    {
                        let (known, now) = (moved.catalog, world.catalog.into());
                        Some(Message::CatalogChanged(number, known, now))
                    }
                    Fate::Undecided | Fate::Aborted => {
                        world.commits += 1;
                        world.fates[number] = Fate::Committed(world.commits);
                        None
                    }
                };
                (number, answer)
            }
        };
        let answer = answer.or_else(|| {
            let outcome = outcome(world.fates[number]);
            outcome.map(|outcome| Message::Decided(number, outcome))
        });
        if let Some(answer) = answer {
            world.network |= self.message(answer);
        }
    }

    pub(super) fn apply_donor(&mut self, world: &mut World, number: usize, led: Led) {
        let Movement { range, from, .. } = self.movement(number);
        let gave_away = |donor: Option<&Donor>| donor.is_some_and(Donor::has_given_away);
        let before = gave_away(self.donor(world, number));
        world.donors[number] = led.next;
        if let Some(Donor {
            phase: donor::Phase::Committed(outcome),
            ..
        }) = self.donor(world, number)
            && !before
        {
            // In the same entry: not owned any more, and to be deleted.
            let here = &mut world.shards[from];
            here.parts[range].owns = false;
            here.parts[range].has_deletion = true;
            here.known = here.known.max(commits(*outcome));
        }
        world.network |= led.send;
    }

    /// `learned` counts the commits of the decision that this was about.
    pub(super) fn apply_recipient(
        &mut self,
        world: &mut World,
        number: usize,
        led: Led,
        learned: u8,
    ) {
        let Movement { range, to, .. } = self.movement(number);
        let phase = |world: &World| self.recipient(world, number).map(|it| it.phase);
        let before = phase(world);
        if led.next != 0 {
            world.recipients[number] = led.next;
        }
        let after = phase(world);
        if before != after {
            let here = &mut world.shards[to];
            match after {
                Some(recipient::Phase::Owner) => {
                    here.parts[range].owns = true;
                    here.known = here.known.max(learned);
                }
                Some(recipient::Phase::Aborted) => here.parts[range].has_deletion = true,
                Some(recipient::Phase::Receiving { .. } | recipient::Phase::Ready) | None => {}
            }
        }
        world.network |= led.send;
    }
}
