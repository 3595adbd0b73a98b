//! The history of a session that comes from another shard, with a range that moved here.
//!
//! ```text
//!   number there < here   nothing: retries of the older number are refused here too
//!   the same              statements that are not known here are added
//!   number there > here   its statements replace what is here
//! ```
//!
//! A statement ran on one shard, so what two shards know of one number adds up. Taking over
//! what concerns other ranges does no harm: whoever sends such a statement again is told what
//! it did, wherever he asks.
//!
//! The session is checked out meanwhile, and its documents are written as a write of it would
//! write them, in an entry that is marked with the move. Taken over twice it is the same.

use super::SessionId;
use super::document::{Stored, StoredImage, decode_overflow};
use super::history::{Effect, Executed, join};
use crate::Shard;
use crate::command::envelope::WriteConcern;
use crate::operation::Operation;
use crate::write::Companion;
use model::{Code, Error};
use replication::{Durability, ProposeError};
use storage::entry::{Encoder, Header};

/// What another shard has stored of a session.
pub(crate) struct Arriving<'a> {
    pub(crate) session: SessionId,
    pub(crate) document: &'a [u8],
    pub(crate) overflow: Vec<&'a [u8]>,
    pub(crate) image: Option<&'a [u8]>,
}

impl Shard {
    /// Takes a history over, durably.
    pub(crate) async fn take_over_history(
        &self,
        arriving: &Arriving<'_>,
        origin: &[u8],
        operation: &Operation,
    ) -> Result<(), Error> {
        let stored = Stored::decode(arriving.document)?;
        let image = arriving.image.map(StoredImage::decode).transpose()?;
        let image = image.filter(|image| image.number == stored.number);
        let begun = self.begin_retryable(arriving.session, stored.number, operation);
        let retryable = match begun.await {
            Err(error) if error.code == Code::TRANSACTION_TOO_OLD => return Ok(()),
            begun => begun?,
        };
        // ⚑ What was sealed and did not come may have been executed.
        let incomplete = stored.incomplete || arriving.overflow.len() < stored.overflow as usize;
        let mut all = Vec::new();
        for sealed in &arriving.overflow {
            all.extend(decode_overflow(sealed)?);
        }
        all.extend(stored.recent);
        let mut items: Vec<Executed> = Vec::new();
        for item in all {
            for offset in 0..item.count {
                let statement = item.first.wrapping_add_unsigned(offset);
                // Where it is not known what is missing, nothing can be added.
                let is_new = matches!(retryable.history().find(statement), Ok(None));
                if is_new {
                    join(&mut items, Executed::one(statement, item.effect.clone()));
                }
            }
        }
        let image = image.filter(|image| {
            let of_image = |item: &Executed| item.first == image.statement && has_image(item);
            let place = items.iter().position(of_image);
            // The image is stored for the first statement of an entry.
            place.inspect(|at| items.swap(0, *at)).is_some()
        });
        if items.is_empty() && !incomplete {
            return Ok(());
        }
        retryable.note_incomplete(incomplete);
        let image = image.map(|image| image.image);
        let header = Header {
            origin: Some(origin),
            ..Header::default()
        };
        let pending = loop {
            let mut payload = Vec::new();
            let mut encoder = Encoder::with_header(&mut payload, header);
            let written = retryable.encode(self, &items, image.as_ref(), &mut encoder);
            let proposed = self.log.propose_in(
                retryable.term(),
                Durability::Buffered,
                payload,
                |payload, _, time| {
                    written.set_time(payload, time);
                    Companion::empty()
                },
            );
            match proposed {
                Ok(pending) => {
                    retryable.appended(items, &written, WriteConcern::Applied);
                    break pending;
                }
                Err(ProposeError::Busy) => {
                    self.log.ready().await.map_err(crate::error::from_log)?;
                }
                Err(error) => return Err(crate::error::from_log(error)),
            }
        };
        pending.await.map_err(crate::error::from_log)?;
        retryable.applied();
        Ok(())
    }
}

fn has_image(item: &Executed) -> bool {
    match item.effect {
        Effect::UpdatedWithImage(_) | Effect::DeletedWithImage | Effect::UpsertedWithImage(_) => {
            true
        }
        Effect::Inserted | Effect::Updated | Effect::Deleted | Effect::Upserted(_) => false,
    }
}
