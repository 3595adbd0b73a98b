//! What clients have asked for and not heard of yet.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use model::time::ClusterTime;
use replication::{
    Applied, ChangeError, Durability, Group, LeaderError, LogPosition, MemberId, Pending,
    ProposeError,
};

use crate::machine::Ledger;

/// A write under way.
pub struct Write {
    pub member: MemberId,
    pub payload: Vec<u8>,
    /// The latest time that was acknowledged to anybody before it was proposed.
    pub after: ClusterTime,
    pub pending: Pending,
}

/// A write whose outcome is there.
pub struct Answered {
    pub member: MemberId,
    pub payload: Vec<u8>,
    pub after: ClusterTime,
    pub outcome: Result<Applied, ProposeError>,
}

type Asked<T> = Pin<Box<dyn Future<Output = T>>>;

/// A linearizable read that waits for its barrier.
pub struct Read {
    pub member: MemberId,
    /// The latest position that was acknowledged to anybody before it began.
    pub after: LogPosition,
    barrier: Asked<Result<LogPosition, LeaderError>>,
}

/// Everything that clients wait for.
#[derive(Default)]
pub struct Clients {
    number: u64,
    writes: Vec<Write>,
    reads: Vec<Read>,
    changes: Vec<Asked<Result<(), ChangeError>>>,
    transfers: Vec<Asked<Result<(), LeaderError>>>,
}

/// Looks at a future once.
fn look<T>(future: &mut Asked<T>) -> Option<T> {
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

impl Clients {
    /// Writes something that was never written before. False if it was refused.
    pub fn write(
        &mut self,
        member: MemberId,
        group: &Group<Ledger>,
        after: ClusterTime,
        bytes: usize,
        durability: Durability,
    ) -> bool {
        self.number += 1;
        let mut payload = self.number.to_le_bytes().to_vec();
        payload.resize(8 + bytes, 0xcd);
        let proposed = group.propose(durability, payload.clone(), |_, position, _| position.get());
        let Ok(pending) = proposed else { return false };
        self.writes.push(Write {
            member,
            payload,
            after,
            pending,
        });
        true
    }

    pub fn read(&mut self, member: MemberId, group: &Group<Ledger>, after: LogPosition) {
        let group = group.clone();
        let barrier: Asked<_> = Box::pin(async move { group.read_barrier().await });
        self.reads.push(Read {
            member,
            after,
            barrier,
        });
    }

    pub fn change(
        &mut self,
        group: &Group<Ledger>,
        voters: Vec<MemberId>,
        learners: Vec<MemberId>,
    ) {
        let group = group.clone();
        let mut change: Asked<_> =
            Box::pin(async move { group.change_members(&voters, &learners).await });
        if look(&mut change).is_none() {
            self.changes.push(change);
        }
    }

    pub fn transfer(&mut self, group: &Group<Ledger>) {
        let group = group.clone();
        let mut transfer: Asked<_> = Box::pin(async move { group.transfer(None).await });
        if look(&mut transfer).is_none() {
            self.transfers.push(transfer);
        }
    }

    /// Writes that have been answered since.
    pub fn answered(&mut self) -> Vec<Answered> {
        let mut answered = Vec::new();
        let mut waiting = Vec::new();
        for mut write in std::mem::take(&mut self.writes) {
            match write.pending.poll_now() {
                None => waiting.push(write),
                Some(outcome) => answered.push(Answered {
                    member: write.member,
                    payload: write.payload,
                    after: write.after,
                    outcome,
                }),
            }
        }
        self.writes = waiting;
        answered
    }

    /// Reads whose barrier has been passed since: on which member, and what must be there.
    pub fn passed(&mut self) -> Vec<(MemberId, LogPosition)> {
        let mut passed = Vec::new();
        self.reads.retain_mut(|read| match look(&mut read.barrier) {
            None => true,
            Some(Ok(_)) => {
                passed.push((read.member, read.after));
                false
            }
            Some(Err(_)) => false,
        });
        self.changes.retain_mut(|change| look(change).is_none());
        self.transfers
            .retain_mut(|transfer| look(transfer).is_none());
        passed
    }
}
