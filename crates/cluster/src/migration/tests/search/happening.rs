//! What happens by itself: moves begin, donors and recipients get on or give up, clients write, ranges are deleted.

use super::*;

impl Search {
    pub(super) fn begin(&mut self, world: &World, next: &mut Next<'_>) {
        if world.catalog == CHANGING {
            return;
        }
        for number in 0..self.moves() {
            let Movement { range, from, .. } = self.movement(number);
            // Those of one range in their order: to and fro.
            let mut earlier = (0..number).filter(|it| self.movement(*it).range == range);
            let follows = earlier.all(|earlier| world.begun & (1 << earlier) != 0);
            let here = world.shards[from].parts[range];
            let is_free = self.donor_on(world, from, range).is_none();
            if world.begun & (1 << number) != 0 || !follows || !here.owns || !is_free {
                continue;
            }
            let mut after = *world;
            after.begun |= 1 << number;
            let moved = self.moved(number, world.catalog);
            let transition = Donor::begin(moved, here.position.into());
            let led = self.led_donor(transition);
            self.apply_donor(&mut after, number, led);
            next.push(after, || format!("move {number} begins"));
        }
    }

    /// The operation that creates an index takes its next step.
    pub(super) fn index(&mut self, world: &World, next: &mut Next<'_>) {
        if !self.extent.indexes || world.catalog == CHANGED {
            return;
        }
        let mut after = *world;
        let step = match (world.catalog, world.owners_told) {
            (BEFORE, _) => {
                after.catalog = CHANGING;
                "an index is announced"
            }
            (_, false) => {
                for range in 0..self.ranges() {
                    after.shards[self.owner_at(world, range, world.commits)].has_index = true;
                }
                after.owners_told = true;
                "the owner creates the index"
            }
            (_, true) => {
                after.catalog = CHANGED;
                "the index is there"
            }
        };
        next.push(after, || step.to_owned());
    }

    /// The version that the authority calls the standing one.
    pub(super) fn standing(&self, world: &World) -> Option<u64> {
        let stands = world.catalog != CHANGING || !self.rules.changing_catalogs_stop_commits;
        stands.then_some(world.catalog.into())
    }

    /// Whether somebody may be impatient or give up once more.
    pub(super) fn may_disturb(&self, world: &World) -> bool {
        let most = self.extent.disturbances;
        most.is_none_or(|most| world.disturbances < most)
    }

    /// Counts it, if it had any effect.
    pub(super) fn disturbed(&self, world: &World, after: &mut World) {
        if self.extent.disturbances.is_some() && after != world {
            after.disturbances += 1;
        }
    }

    pub(super) fn donor_events(&mut self, world: &World, number: usize, next: &mut Next<'_>) {
        let Some(donor) = self.donor(world, number) else {
            return;
        };
        let (blocks_writes, blocks_reads) = (donor.blocks_writes(), donor.blocks_reads());
        let Movement { range, from, .. } = self.movement(number);
        let here = world.shards[from].parts[range];
        let drained = donor::Event::Drained {
            at: here.position.into(),
            digest: digest(here.data),
        };
        let almost = donor::Event::AlmostCaughtUp;
        let mut events = vec![almost, drained, donor::Event::Timer, donor::Event::Abort];
        let standing = self.standing(world);
        events.extend(standing.map(|catalog| donor::Event::CatalogStands { catalog }));
        for event in events {
            let mut after = *world;
            let step = || format!("donor of {number}: {event:?}");
            let disturbs = event == donor::Event::Abort;
            if disturbs && !self.may_disturb(world) {
                continue;
            }
            if disturbs && !self.rules.donor_settles && blocks_reads {
                let phase = donor::Phase::Aborted;
                let aborted = self.donor(world, number).cloned();
                let aborted = aborted.map(|donor| Donor { phase, ..donor });
                after.donors[number] = self.donors.number(aborted);
                next.push(after, step);
            } else if let Some(led) = self.donor_step(world.donors[number], event.clone()) {
                self.apply_donor(&mut after, number, led);
                if disturbs {
                    self.disturbed(world, &mut after);
                }
                next.push(after, step);
            }
        }
        if !self.rules.blocks_are_durable && blocks_writes {
            let mut after = *world;
            let (phase, since) = (donor::Phase::Copying, 0);
            let donor = self.donor(world, number).cloned();
            let forgotten = donor.map(|donor| Donor {
                phase,
                since,
                ..donor
            });
            after.donors[number] = self.donors.number(forgotten);
            next.push(after, || {
                format!("donor of {number} restarts and has forgotten")
            });
        }
    }

    pub(super) fn recipient_events(&mut self, world: &World, number: usize, next: &mut Next<'_>) {
        let Some(recipient) = self.recipient(world, number) else {
            return;
        };
        let (phase, aligned) = (recipient.phase, recipient.aligned);
        let catalog = recipient.moved.catalog;
        let Movement { range, from, to } = self.movement(number);
        let known = self.known(world, number);
        let source = world.shards[from].parts[range];
        let gives = self
            .donor(world, number)
            .is_some_and(|donor| !donor.has_given_away() && donor.phase != donor::Phase::Aborted);
        if matches!(phase, recipient::Phase::Receiving { .. }) && gives {
            let mut after = *world;
            let part = &mut after.shards[to].parts[range];
            part.data = source.data;
            if self.rules.history_comes_too {
                part.history |= source.history;
            }
            let event = recipient::Event::Copied {
                up_to: source.position.into(),
                digest: digest(source.data),
            };
            if let Some(led) = self.recipient_step(world.recipients[number], event, known) {
                self.apply_recipient(&mut after, number, led, 0);
                next.push(after, || format!("recipient of {number} copies"));
            }
        }
        let here = world.shards[to].parts[range];
        if !self.rules.copies_are_durable && !here.owns && here.data != 0 {
            let mut after = *world;
            after.shards[to].parts[range].data = 0;
            next.push(after, || {
                format!("recipient of {number} restarts and has less")
            });
        }
        // It looks at what the donor has once the version stands, and asks whether it still does.
        let may_align = Some(catalog) == self.standing(world)
            && (catalog != u64::from(CHANGING) || !self.rules.changing_catalogs_stop_commits);
        if may_align && aligned != Some(catalog) {
            let event = recipient::Event::Aligned { catalog };
            if let Some(led) = self.recipient_step(world.recipients[number], event, known) {
                let mut after = *world;
                after.shards[to].has_index = world.shards[from].has_index;
                self.apply_recipient(&mut after, number, led, 0);
                next.push(after, || {
                    format!("recipient of {number} aligns with {catalog}")
                });
            }
        }
        for event in [recipient::Event::Timer, recipient::Event::Failed] {
            if !self.may_disturb(world) {
                continue;
            }
            let mut after = *world;
            let step = || format!("recipient of {number}: {event:?}");
            let alone = !self.rules.ready_recipient_never_aborts
                && phase == recipient::Phase::Ready
                && event == recipient::Event::Failed;
            if alone {
                let phase = recipient::Phase::Aborted;
                let aborted = self.recipient(world, number).cloned();
                let aborted = aborted.map(|recipient| Recipient { phase, ..recipient });
                let led = Led {
                    next: self.recipients.number(aborted),
                    send: 0,
                };
                self.apply_recipient(&mut after, number, led, 0);
                next.push(after, step);
            } else if let Some(led) =
                self.recipient_step(world.recipients[number], event.clone(), known)
            {
                self.apply_recipient(&mut after, number, led, 0);
                self.disturbed(world, &mut after);
                next.push(after, step);
            }
        }
        // Forgotten once the donor is done with it, although messages may be late.
        let ended = matches!(phase, recipient::Phase::Owner | recipient::Phase::Aborted);
        if ended && world.donors[number] == 0 {
            let mut after = *world;
            after.recipients[number] = 0;
            after.known_at_begin[number] = 0;
            next.push(after, || format!("recipient of {number} forgets it"));
        }
    }

    pub(super) fn client(
        &mut self,
        world: &World,
        shard: usize,
        range: usize,
        next: &mut Next<'_>,
    ) {
        if world.written < self.extent.writes && self.serves_writes(world, shard, range) {
            let mut after = *world;
            let bit = 1 << after.written;
            after.written += 1;
            after.acknowledged[range] |= bit;
            let part = &mut after.shards[shard].parts[range];
            part.data |= bit;
            part.history |= bit;
            part.position += 1;
            next.push(after, || format!("write {bit} to range {range} on {shard}"));
        }
    }

    pub(super) fn deletion(
        &mut self,
        world: &World,
        shard: usize,
        range: usize,
        next: &mut Next<'_>,
    ) {
        let here = world.shards[shard].parts[range];
        if !here.has_deletion || here.owns && self.rules.owned_ranges_are_not_deleted {
            return;
        }
        let mut after = *world;
        let part = &mut after.shards[shard].parts[range];
        part.data = 0;
        part.has_deletion = false;
        next.push(after, || format!("deletion of range {range} on {shard}"));
    }
}
