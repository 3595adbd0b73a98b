//! Progress of operations that nobody goes on with is removed when it is old: its router has ended.
//! Routers that live write over what they left.
//!
//! ⚑ A request may walk for longer than progress lives and change nothing, so that nothing is written. What
//! it did before must not be forgotten, or who asks again would do it twice. So what counts is also when a
//! stream was last worked on, which a member remembers ([`super::Broadcasts`]); and a new primary, which
//! remembers nothing, forgets nothing until it has led for as long as progress lives: who is still at it
//! asks a new primary within seconds.

use super::progress::{ProgressKey, written_at};
use crate::Shard;
use model::Error;
use model::bson::Doc;

/// A request that is as late as this is not recognised any more.
const LIFETIME_MS: i64 = 60 * 60 * 1000;

impl Shard {
    pub(crate) async fn forget_broadcasts(&self) -> Result<(), Error> {
        let term = self.log.leading().map_err(crate::error::from_log)?;
        let now_ms = self.clock.now_ms();
        let cutoff_ms = now_ms.saturating_sub(LIFETIME_MS);
        self.broadcasts.forget_unused(cutoff_ms);
        if self.broadcasts.leads_since(term, now_ms) > cutoff_ms {
            return Ok(());
        }
        let old = tokio::task::block_in_place(|| self.broadcasts_before(cutoff_ms))?;
        for key in old {
            let Some(_held) = self.broadcasts.hold_unused(key) else {
                continue;
            };
            let bytes = key.encode();
            self.propose_catalog(|encoder| encoder.delete_meta(&bytes))
                .await?;
            if self.is_shutting_down() {
                break;
            }
        }
        self.broadcasts.forget_unused(cutoff_ms);
        Ok(())
    }

    fn broadcasts_before(&self, cutoff_ms: i64) -> Result<Vec<ProgressKey>, Error> {
        let snapshot = self.store.snapshot();
        let mut found = Vec::new();
        for pair in snapshot.scan_meta(ProgressKey::PREFIX) {
            let (key, value) = pair.map_err(crate::error::from_storage)?;
            if let Some(key) = ProgressKey::parse(&key)
                && is_before(&value, cutoff_ms)
            {
                found.push(key);
            }
        }
        Ok(found)
    }
}

/// What cannot be read is old.
fn is_before(stored: &[u8], cutoff_ms: i64) -> bool {
    let written = Doc::from_bytes(stored).ok().and_then(written_at);
    written.is_none_or(|written| written < cutoff_ms)
}
