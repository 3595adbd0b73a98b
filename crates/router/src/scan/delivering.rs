//! What clients get: results in order, in batches of their size.

use super::ElasticScan;
use super::piece::Piece;
use crate::failure::Failure;
use crate::merge::{Batch, Merge, kill_cursor};
use cluster::scan::Entry;
use model::bson::DocWriter;
use wire::BoxFuture;

impl ElasticScan {
    /// The next result.
    pub(crate) async fn next(&mut self) -> Result<Option<Piece>, Failure> {
        loop {
            if let Some(piece) = self.arrived() {
                return Ok(Some(piece));
            }
            if self.reads_from_disk() {
                return Ok(self.next_with_disk()?);
            }
            if self.scan.has_ended() {
                return Ok(None);
            }
            self.ask().await?;
        }
    }

    /// The next result, if it has arrived.
    pub(crate) fn arrived(&mut self) -> Option<Piece> {
        match self.spilled.is_empty() {
            true => self.arrived_in_memory(),
            false => None,
        }
    }

    pub(super) fn arrived_in_memory(&mut self) -> Option<Piece> {
        let Entry { value, .. } = self.scan.deliver()?;
        self.begun = true;
        Some(value)
    }

    /// What does not fit is not delivered: a token that goes with the batch stands before it.
    async fn fill_from(&mut self, batch: &mut Batch) -> Result<bool, Failure> {
        loop {
            if self.reads_from_disk()
                && let Some(ended) = tokio::task::block_in_place(|| self.fill_with_disk(batch))?
            {
                return Ok(ended);
            }
            // Whoever takes one batch apart takes all behind it apart, for none begins where another
            // ends then.
            let goes_now = self.command.passes
                && batch.is_worth_sending()
                && (self.scan.peek()).is_none_or(|entry| entry.value.is_batch());
            // The end is told with the last batch where it is known already.
            if goes_now || batch.is_full() {
                return Ok(self.scan.has_ended());
            }
            let Some(entry) = self.scan.peek() else {
                if self.scan.has_ended() {
                    return Ok(true);
                }
                self.ask().await?;
                continue;
            };
            if entry.value.is_batch() {
                if entry.value.fits(batch) {
                    if let Some(piece) = self.arrived() {
                        piece.pass_on(batch);
                    }
                } else {
                    let pieces = entry.value.split()?;
                    self.scan.split_next(|_| pieces);
                }
                continue;
            }
            let document = entry.value.document();
            let taken = match &self.projection {
                Some(projection) => batch.offer(projection.apply(document)?.as_doc()),
                None => batch.offer(document),
            };
            if !taken {
                return Ok(false);
            }
            self.arrived();
        }
    }

    async fn kill(mut self) {
        for cursor in self.take_open() {
            kill_cursor(&*cursor.member, self.command.namespace.as_str(), cursor.id).await;
        }
    }
}

impl Merge for ElasticScan {
    fn fill<'a>(&'a mut self, batch: &'a mut Batch) -> BoxFuture<'a, Result<bool, Failure>> {
        Box::pin(self.fill_from(batch))
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin((*self).kill())
    }

    fn is_kept(&mut self) {
        self.is_begun();
    }

    fn set_batch_size(&mut self, batch_size: Option<u64>) {
        self.batch_size = batch_size;
    }

    fn append_state(&self, cursor: &mut DocWriter) {
        if self.command.places {
            self.append_token(cursor);
        }
        if self.left_out {
            cursor.append("partialResultsReturned", true);
        }
    }

    fn describe(&self, cursor: &mut DocWriter) {
        self.append_streams(cursor);
    }
}
