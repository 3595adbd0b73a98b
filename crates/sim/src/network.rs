//! Packets on their way, and who can reach whom.
//!
//! A member's [`Outbox`] takes packets while the member works; the network takes them
//! over afterwards, in that order, and decides about each: lost, doubled, late. Packets
//! that arrive in the same round arrive in any order.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use replication::{MemberId, Transport};

use crate::random::Random;

/// Where a packet goes, and its bytes.
type Addressed = (MemberId, Vec<u8>);

/// What a member has sent and nobody has picked up yet.
#[derive(Clone, Default)]
pub struct Outbox {
    packets: Arc<Mutex<Vec<Addressed>>>,
}

impl Outbox {
    pub fn take(&self) -> Vec<Addressed> {
        std::mem::take(&mut *self.packets.lock())
    }
}

impl Transport for Outbox {
    fn send(&self, to: MemberId, packet: Vec<u8>) {
        self.packets.lock().push((to, packet));
    }
}

/// How bad the network is, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    pub loss: u64,
    pub doubling: u64,
    pub delay_rounds_max: u64,
}

struct Flying {
    arrives: u64,
    from: MemberId,
    to: MemberId,
    packet: Vec<u8>,
}

#[derive(Default)]
pub struct Network {
    flying: Vec<Flying>,
    /// Ways that are cut, from and to.
    cut: BTreeSet<(MemberId, MemberId)>,
    pub weather: Weather,
}

impl Network {
    pub fn send(
        &mut self,
        round: u64,
        from: MemberId,
        to: MemberId,
        packet: Vec<u8>,
        random: &mut Random,
    ) {
        let copies = 1 + u64::from(random.chance(self.weather.doubling));
        for _ in 0..copies {
            if random.chance(self.weather.loss) {
                continue;
            }
            let delay = random.below(self.weather.delay_rounds_max + 1);
            self.flying.push(Flying {
                arrives: round + delay,
                from,
                to,
                packet: packet.clone(),
            });
        }
    }

    /// What arrives now, in any order.
    pub fn arrivals(&mut self, round: u64, random: &mut Random) -> Vec<Addressed> {
        let (mut now, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.flying)
            .into_iter()
            .partition(|flying| flying.arrives <= round);
        self.flying = later;
        now.retain(|flying| !self.cut.contains(&(flying.from, flying.to)));
        for at in (1..now.len()).rev() {
            if random.chance(300) {
                now.swap(at, random.below(at as u64 + 1) as usize);
            }
        }
        now.into_iter()
            .map(|flying| (flying.to, flying.packet))
            .collect()
    }

    /// Cuts a group of members off from the others, sometimes in one direction only.
    pub fn partition(&mut self, group: &[MemberId], all: &[MemberId], one_way: bool) {
        for inside in group {
            for outside in all.iter().filter(|member| !group.contains(member)) {
                self.cut.insert((*inside, *outside));
                if !one_way {
                    self.cut.insert((*outside, *inside));
                }
            }
        }
    }

    pub fn heal(&mut self) {
        self.cut.clear();
    }

    /// Everything works from now on.
    pub fn mend(&mut self) {
        self.heal();
        self.weather = Weather::default();
    }
}
