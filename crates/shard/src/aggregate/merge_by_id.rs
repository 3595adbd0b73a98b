//! `$merge` by `_id`: a portion of documents as one entry of the log, or a few
//! where what they make of the target's documents is large.
//!
//! ```text
//!   keys of all ─► latch all ─► for each: latest version? ─► change it, or insert ─► one entry
//! ```
//!
//! Under the latches nobody else inserts or removes these records, so that no
//! document is tried twice. One that fails leaves the others as they are: they
//! are written, and then the command fails, as in MongoDB.

use super::merge::{Joining, no_match, not_changed};
use crate::command::modify::moment;
use crate::write::{Evaluator, Refusal, check_stored, prepare_insert};
use model::Error;
use model::bson::{DocBuf, ValueRef};
use model::key::RecordKey;
use query::context::QueryContext;
use query::pipeline::WhenNotMatched;
use query::update::Update;
use std::sync::atomic::Ordering;

/// Bytes of changed documents after which an entry ends.
const ENTRY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A document on its way into the target.
struct Joined {
    key: RecordKey,
    document: DocBuf,
    identity: DocBuf,
    /// What happens to one that is there; `None` if none may be.
    change: Result<Option<(Update, QueryContext)>, Error>,
}

/// What one entry took.
#[derive(Default)]
struct Written {
    documents: usize,
    /// Bytes of the documents that it stores.
    bytes: usize,
    /// The first failure.
    failed: Option<Error>,
}

impl Joining<'_> {
    /// Joins a portion; the first failure, after all were tried.
    pub(super) async fn join_by_id(&self, identified: Vec<(DocBuf, DocBuf)>) -> Result<(), Error> {
        let mut failed = None;
        let joined: Vec<Joined> = identified
            .into_iter()
            .map(|(document, identity)| Joined {
                key: RecordKey::from_id(document.get("_id").unwrap_or(ValueRef::Null)),
                change: self.change(document.as_doc()),
                document,
                identity,
            })
            .collect();
        let keys: Vec<RecordKey> = joined.iter().map(|one| one.key.clone()).collect();
        let mut done = 0;
        while done < joined.len() {
            let written = self.write(&joined[done..], &keys[done..]).await?;
            done += written.documents;
            failed = failed.or(written.failed);
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Writes as many as one entry takes.
    async fn write(&self, joined: &[Joined], keys: &[RecordKey]) -> Result<Written, Error> {
        let shard = self.invocation.shard;
        let target = &self.merge.target;
        loop {
            let collection = match self.merge.when_not_matched {
                WhenNotMatched::Insert => {
                    let operation = self.invocation.operation;
                    shard.ensure_collection(target, Some(operation)).await?
                }
                WhenNotMatched::Discard | WhenNotMatched::Fail => match shard.catalog.get(target) {
                    Some(collection) => collection,
                    // Nothing can match, unless it went away with its database.
                    None => {
                        self.invocation.check_database_route()?;
                        return Ok(Written {
                            documents: joined.len(),
                            bytes: 0,
                            failed: joined
                                .iter()
                                .find_map(|one| one.change.as_ref().err().cloned())
                                .or_else(|| self.unmatched()),
                        });
                    }
                },
            };
            let concern = self.invocation.envelope.write_concern;
            let operation = Some(self.invocation.operation.as_ref());
            let written = shard
                .write_statements(collection.id, concern, None, operation, keys, |evaluator| {
                    let mut written = Written::default();
                    for one in joined {
                        if written.bytes > ENTRY_BYTES_MAX {
                            break;
                        }
                        match self.join_one(evaluator, one) {
                            Ok(changed) => written.bytes += changed,
                            Err(Refusal::Error(error)) => {
                                written.failed.get_or_insert(error);
                            }
                            Err(again @ (Refusal::Latch(_) | Refusal::Blocked)) => {
                                return Err(again);
                            }
                        }
                        written.documents += 1;
                    }
                    Ok(written)
                })
                .await?;
            // Dropped in between: begun again, with what is there then.
            let Some(written) = written else {
                continue;
            };
            match written.bytes {
                // ⚑ What was not found may have gone.
                0 => self.invocation.check_not_given_away(Some(&*collection))?,
                _ => self.has_written.store(true, Ordering::Relaxed),
            }
            return Ok(written);
        }
    }

    /// The bytes of what is stored now.
    fn join_one(&self, evaluator: &mut Evaluator<'_>, one: &Joined) -> Result<usize, Refusal> {
        let refused = |refusal, tell: &dyn Fn(Error) -> Error| match refusal {
            Refusal::Error(error) => Refusal::Error(tell(error)),
            again @ (Refusal::Latch(_) | Refusal::Blocked) => again,
        };
        let change = one.change.as_ref().map_err(Error::clone)?.as_ref();
        let version = evaluator.latest(&one.key)?;
        match (version, change) {
            (Some(version), Some((update, context))) => {
                let moment = moment(self.invocation.shard, None, false);
                let after = update
                    .apply(version.doc(), moment, context)
                    .map_err(not_changed)?;
                let Some(after) = after else {
                    return Ok(0);
                };
                check_stored(after.as_doc())?;
                let bytes = after.as_bytes().len();
                let difference = update.difference(version.doc(), after.as_doc(), moment);
                evaluator
                    .replace(one.key.clone(), &version, after.as_doc(), difference)
                    .map_err(|refusal| refused(refusal, &not_changed))?;
                Ok(bytes)
            }
            (None, _) if self.merge.when_not_matched != WhenNotMatched::Insert => {
                self.unmatched().map_or(Ok(0), |error| Err(error.into()))
            }
            // One that is there and must not be is refused as a duplicate.
            (Some(_), None) | (None, _) => {
                let (document, identity) = (one.document.as_doc(), one.identity.as_doc());
                let new = self.inserted(document, identity, change)?;
                let new = prepare_insert(self.invocation.shard, new.as_doc())?;
                check_stored(new.as_doc())?;
                let bytes = new.as_bytes().len();
                evaluator
                    .insert(one.key.clone(), new)
                    .map_err(|refusal| refused(refusal, &|error| self.not_inserted(error)))?;
                Ok(bytes)
            }
        }
    }

    /// What a document that is not in the target means, where it is not inserted.
    fn unmatched(&self) -> Option<Error> {
        match self.merge.when_not_matched {
            WhenNotMatched::Fail => Some(no_match()),
            WhenNotMatched::Insert | WhenNotMatched::Discard => None,
        }
    }
}
