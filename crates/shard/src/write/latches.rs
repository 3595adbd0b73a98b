//! Latches: who may evaluate a change of a key right now.
//!
//! A writer latches the keys it touches (record keys, and the keys of unique
//! indexes) from before it reads their latest version until its entry is
//! appended to the log. Keys hash onto a fixed number of stripes; two keys on
//! one stripe only wait for each other without need.
//!
//! ```text
//!   latch ─► read latest (overlay, then engine) ─► evaluate ─► append ─► unlatch
//! ```
//!
//! Invariants:
//! - Stripes are taken in ascending order, so writers never wait in a circle.
//!   Who finds out while evaluating that it needs a further, lower stripe lets
//!   all go and begins again with the larger set ([`Latches::hold`] per round).
//! - Nothing is awaited while latches are held: they are plain mutexes, and a
//!   suspended holder could wait for the very thread that waits for it.
//! - Who waits for long tells the runtime that it blocks: an evaluation may take
//!   as long as a client's expression wants, and meanwhile the other connections
//!   need their workers. Who waits is asked now and then whether it still may: its
//!   time may be over, or somebody may have killed it.

use model::Error;
use parking_lot::{Mutex, MutexGuard};
use std::hash::BuildHasher;
use std::time::Duration;

const STRIPES: usize = 4096;
/// Longer than any evaluation without costly expressions.
const SHORT_WAIT: Duration = Duration::from_millis(2);

/// How often one who waits is asked whether it still may.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Which stripe a key belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Stripe(u16);

pub(crate) struct Latches {
    stripes: Box<[Mutex<()>]>,
    hasher: foldhash::fast::FixedState,
}

/// The stripes held by one writer.
pub(crate) struct Held<'a> {
    stripes: Vec<Stripe>,
    _guards: Vec<MutexGuard<'a, ()>>,
}

impl Latches {
    pub(crate) fn new() -> Self {
        Self {
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            hasher: foldhash::fast::FixedState::with_seed(1),
        }
    }

    pub(crate) fn stripe(&self, space: u64, key: &[u8]) -> Stripe {
        let hash = self.hasher.hash_one((space, key));
        Stripe((hash % STRIPES as u64) as u16)
    }

    /// Takes all of `wanted`, in ascending order. Who has to wait for long gives up
    /// with the error that `may_wait` answers.
    pub(crate) fn hold(
        &self,
        mut wanted: Vec<Stripe>,
        may_wait: impl Fn() -> Result<(), Error>,
    ) -> Result<Held<'_>, Error> {
        wanted.sort_unstable();
        wanted.dedup();
        let guards = wanted
            .iter()
            .map(|stripe| {
                let latch = &self.stripes[stripe.0 as usize];
                match latch.try_lock_for(SHORT_WAIT) {
                    Some(guard) => Ok(guard),
                    None => tokio::task::block_in_place(|| wait(latch, &may_wait)),
                }
            })
            .collect::<Result<_, Error>>()?;
        Ok(Held {
            stripes: wanted,
            _guards: guards,
        })
    }
}

fn wait<'a>(
    latch: &'a Mutex<()>,
    may_wait: &impl Fn() -> Result<(), Error>,
) -> Result<MutexGuard<'a, ()>, Error> {
    loop {
        may_wait()?;
        if let Some(guard) = latch.try_lock_for(LOOK_INTERVAL) {
            return Ok(guard);
        }
    }
}

impl Held<'_> {
    /// As if these were held.
    pub(crate) fn in_name_only(mut stripes: Vec<Stripe>) -> Self {
        stripes.sort_unstable();
        stripes.dedup();
        Self {
            stripes,
            _guards: Vec::new(),
        }
    }

    pub(crate) fn covers(&self, stripe: Stripe) -> bool {
        self.stripes.binary_search(&stripe).is_ok()
    }

    pub(crate) fn stripes(&self) -> &[Stripe] {
        &self.stripes
    }
}
