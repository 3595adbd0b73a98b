//! Progress of operations that nobody goes on with is removed: its router has ended. Routers that live write
//! over what they left.
//!
//! ```text
//!   unused for LIFETIME, as this member knows, which led for as long ─► one entry, of the same term:
//!     progress removed, horizon raised
//! ```
//!
//! ⚑ **What was forgotten is refused, never repeated.** Progress that is removed raises the *horizon* to when
//! its request was first sent, in the entry that removes it. A request that was first sent at the horizon or
//! before, and finds no progress, is not carried out: it may have been. So nothing is applied twice, whatever
//! clocks do and however late a request comes; that somebody asks in vain is all that a wrong age can lead to.
//!
//! That it does not happen to who still asks: ages are taken from a clock that nobody sets, and only from
//! what one member saw in one term. A request may walk for longer than progress lives and change nothing, so
//! that nothing is written; so what counts is when a stream was last worked on ([`super::Broadcasts`]). A new
//! primary remembers nothing, and forgets nothing until it has led for as long as progress lives: who is
//! still at it asks a new primary within seconds.
//!
//! What is left out: where no primary leads for an hour, nothing is removed.

use super::progress::{HORIZON_KEY, ProgressKey, decode, decode_horizon, encode_horizon};
use crate::Shard;
use model::Error;
use model::time::ClusterTime;

/// For so long who asks again is recognised.
const LIFETIME_MS: i64 = 60 * 60 * 1000;

impl Shard {
    pub(crate) async fn forget_broadcasts(&self) -> Result<(), Error> {
        let term = self.log.leading().map_err(crate::error::from_log)?;
        let now_ms = self.clock.elapsed_ms();
        let cutoff_ms = now_ms.saturating_sub(LIFETIME_MS);
        self.broadcasts.forget_unused(cutoff_ms);
        if self.broadcasts.leads_since(term, now_ms) > cutoff_ms {
            return Ok(());
        }
        for key in tokio::task::block_in_place(|| self.kept_broadcasts())? {
            let Some(_held) = self.broadcasts.hold_unused(key) else {
                continue;
            };
            let bytes = key.encode();
            let horizon = self.horizon_without(&bytes)?;
            // ⚑ In the term in which it was unused: another primary may have been asked since.
            self.propose_catalog_in(term, |encoder| {
                encoder.delete_meta(&bytes);
                encoder.put_meta(HORIZON_KEY, encode_horizon(horizon).as_bytes());
            })
            .await?;
            if self.is_shutting_down() {
                break;
            }
        }
        self.broadcasts.forget_unused(cutoff_ms);
        Ok(())
    }

    fn kept_broadcasts(&self) -> Result<Vec<ProgressKey>, Error> {
        let snapshot = self.store.snapshot();
        let mut found = Vec::new();
        for pair in snapshot.scan_meta(ProgressKey::PREFIX) {
            let (key, _) = pair.map_err(crate::error::from_storage)?;
            found.extend(ProgressKey::parse(&key));
        }
        Ok(found)
    }

    /// What was first sent at this time or before may have been forgotten; `None`: nothing was.
    pub(super) fn broadcast_horizon(&self) -> Result<Option<ClusterTime>, Error> {
        let stored = self.store.get_meta(HORIZON_KEY);
        let stored = stored.map_err(crate::error::from_storage)?;
        stored.map(|bytes| decode_horizon(&bytes)).transpose()
    }

    /// The horizon when this progress is gone too. The caller holds the stream. What cannot be read is of no
    /// use to anybody.
    fn horizon_without(&self, key: &[u8]) -> Result<ClusterTime, Error> {
        let known = self.broadcast_horizon()?.unwrap_or(ClusterTime::ZERO);
        let stored = self.store.get_meta(key);
        let stored = stored.map_err(crate::error::from_storage)?;
        let removed = stored.and_then(|bytes| decode(&bytes).ok());
        Ok(removed.map_or(known, |progress| known.max(progress.sent)))
    }
}
