//! What was in memory on the donor is in memory here too when it has arrived.
//!
//! ```text
//!   answers   ──kept──┬──kept──┬──not──┬──kept──►          what scans had left on the donor
//!   applied   ──────────────────────►                      by then it is still in the memtable
//!   read      ═══════════════            ═══               aside, as scans read it (`storage`: stretches)
//! ```
//!
//! A scan that finds a range in no cache pays more for it than for several that it does find. What is read here is what
//! an ordinary scan would leave, while there is room for it.
//!
//! Where clients are, or were a moment ago, an answer is read when it is applied: the range is not owned yet, so that
//! nobody else reads it. Where nobody is there is nobody to read it for, and the copy would take a fourth longer: it is
//! put off until the move has come to its end ([`PutOff`]), and read then at a pace that makes way for clients.

use super::pacing::{Felt, Pacer};
use super::plan::Fields;
use super::stretch::Stretch;
use crate::Shard;
use crate::aside::aside;
use crate::primary_services::Tenure;
use model::Error;
use model::bson::{Doc, ValueRef};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use storage::giving_way;

/// Between two looks at the clock.
const RECORDS_PER_LOOK: usize = 16;

pub(super) struct Warming {
    shard: Arc<Shard>,
    stretch: Stretch,
    /// Up to where everything was applied, and read or put off if it was to be.
    after: Option<Vec<u8>>,
    /// Answers that have come, and are not known to be applied.
    coming: VecDeque<Arrival>,
    put_off: Vec<Piece>,
}

/// An answer of the donor.
struct Arrival {
    kept: bool,
    /// Its last record; `None` of the last one.
    upto: Option<Vec<u8>>,
}

/// Records behind one of them, up to another and with that; of those that are not given, from the beginning or to the
/// end of the range.
#[derive(Clone, PartialEq, Debug)]
struct Piece {
    after: Option<Vec<u8>>,
    upto: Option<Vec<u8>>,
}

/// What is still to be read when the move has ended.
pub(super) struct PutOff {
    shard: Arc<Shard>,
    stretch: Stretch,
    pieces: Vec<Piece>,
}

impl Warming {
    /// Of what comes behind a record, if a copy goes on.
    pub(super) fn new(shard: Arc<Shard>, stretch: Stretch, after: Option<Vec<u8>>) -> Self {
        Self {
            shard,
            stretch,
            after,
            coming: VecDeque::new(),
            put_off: Vec::new(),
        }
    }

    /// An answer has come.
    pub(super) fn comes(&mut self, answer: Doc<'_>) {
        self.coming.push_back(Arrival {
            kept: answer.get("kept") == Some(ValueRef::Boolean(true)),
            upto: Fields(answer).bytes("next").map(<[u8]>::to_vec),
        });
    }

    /// All but the last so many answers are applied. Whether there is somebody to read them for now.
    pub(super) async fn applied(&mut self, but: usize, for_clients: bool) -> Result<(), Error> {
        while self.coming.len() > but
            && let Some(Arrival { kept, upto }) = self.coming.pop_front()
        {
            let after = std::mem::replace(&mut self.after, upto.clone());
            match kept {
                true if for_clients => {
                    let (shard, stretch) = (self.shard.clone(), self.stretch.clone());
                    let piece = Piece { after, upto };
                    aside(move || read(&shard, &stretch, &piece, None)).await?;
                }
                true => put_off(&mut self.put_off, Piece { after, upto }),
                false => {}
            }
        }
        Ok(())
    }

    /// What is left to do, if something is.
    pub(super) fn into_put_off(self) -> Option<PutOff> {
        let pieces = self.put_off;
        (!pieces.is_empty()).then_some(PutOff {
            shard: self.shard,
            stretch: self.stretch,
            pieces,
        })
    }
}

/// Adds a piece, which lies behind all others.
fn put_off(pieces: &mut Vec<Piece>, piece: Piece) {
    match pieces.last_mut() {
        Some(last) if last.upto.is_some() && last.upto == piece.after => last.upto = piece.upto,
        Some(_) | None => pieces.push(piece),
    }
}

impl PutOff {
    /// Reads it, as long as the member leads and the range is owned.
    pub(super) async fn read(self, tenure: Tenure) {
        let mut pacer = Pacer::new();
        for mut piece in self.pieces {
            loop {
                if tenure.is_over() || !is_owned(&self.shard, &self.stretch) {
                    return;
                }
                let pace = pacer.pace(&self.shard, Felt::default());
                let began = Instant::now();
                let (shard, stretch) = (self.shard.clone(), self.stretch.clone());
                let until = Some(began + pace.moment());
                let part = piece.clone();
                match aside(move || read(&shard, &stretch, &part, until)).await {
                    Ok(Some(reached)) => piece.after = Some(reached),
                    Ok(None) => break,
                    // Whoever scans it hears of it.
                    Err(error) => {
                        return tracing::warn!("a range that has come is not read: {error}");
                    }
                }
                tokio::select! {
                    () = tenure.ended() => {}
                    () = tokio::time::sleep(pace.pause_after(began.elapsed())) => {}
                }
            }
        }
    }
}

fn is_owned(shard: &Shard, stretch: &Stretch) -> bool {
    let collection = shard.catalog.by_id(stretch.collection);
    collection.is_some_and(|collection| match &collection.ownership {
        Some(ownership) => stretch.is_within(&ownership.owned),
        // It is not sharded, and here.
        None => true,
    })
}

/// Reads a piece, or a part of it; where it has come to if its time was over.
fn read(
    shard: &Shard,
    stretch: &Stretch,
    piece: &Piece,
    until: Option<Instant>,
) -> Result<Option<Vec<u8>>, Error> {
    let range = stretch.records_between(piece.after.as_deref(), piece.upto.as_deref());
    let snapshot = shard.store.snapshot();
    let mut records = 0_usize;
    let goes_on = || {
        giving_way::look();
        records += 1;
        let is_looked_at = records.is_multiple_of(RECORDS_PER_LOOK);
        !is_looked_at || until.is_none_or(|until| Instant::now() < until)
    };
    let reached = snapshot.keep_in_memory(stretch.collection, range, goes_on);
    let reached = reached.map_err(crate::error::from_storage)?;
    Ok(reached.map(|reached| reached.as_bytes().to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_follow_each_other_become_one() {
        let key = |key: &str| (!key.is_empty()).then(|| key.as_bytes().to_vec());
        let piece = |(after, upto): (&str, &str)| Piece {
            after: key(after),
            upto: key(upto),
        };
        let check = |pieces: &[(&str, &str)], expected: &[(&str, &str)]| {
            let mut joined = Vec::new();
            for &it in pieces {
                put_off(&mut joined, piece(it));
            }
            let expected: Vec<Piece> = expected.iter().copied().map(piece).collect();
            assert_eq!(joined, expected, "{pieces:?}");
        };
        check(&[("", "a")], &[("", "a")]);
        check(&[("", "a"), ("a", "b"), ("b", "")], &[("", "")]);
        check(&[("a", "b"), ("c", "d")], &[("a", "b"), ("c", "d")]);
        check(
            &[("", "b"), ("c", "d"), ("d", "e")],
            &[("", "b"), ("c", "e")],
        );
    }
}
