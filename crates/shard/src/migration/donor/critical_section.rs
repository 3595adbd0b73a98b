//! The donor while clients wait: writes are blocked until the recipient has everything, then reads until
//! the config server has decided.

use super::{ANSWER_WAIT, Driver, KILLED, LOOK_INTERVAL, Over, PAUSE, release};
use crate::migration::copy::binary;
use crate::migration::database::{Reached, Stage};
use crate::migration::digest;
use crate::migration::killing::Wish;
use crate::migration::learning::learn_earlier;
use crate::migration::peers::{Failure, ask};
use crate::migration::plan::{Fields, append_range, uuid_value};
use crate::migration::{ask_config, settle};
use cluster::authority::Outcome;
use cluster::migration::Digest;
use cluster::migration::donor::Event;
use model::bson::DocWriter;
use model::version::Age;
use model::{Code, Error};
use replication::LogPosition;
use std::time::{Duration, Instant};

/// How long writes may be blocked before the move is given up.
const BLOCKED_LIMIT: Duration = Duration::from_secs(10);
/// How often a commit may be put off because options or indexes have changed.
const PUT_OFF_MAX: u32 = 10;
/// Documents that may be scanned while writes are blocked.
const SCAN_BLOCKED_MAX: u64 = 50_000;

/// What the config server says to a commit.
enum Verdict {
    Decided(Outcome),
    /// Nothing is decided, and nothing will be with the version that was named.
    CatalogChanged {
        now: u64,
    },
}

impl Driver {
    pub(super) async fn finishing(&mut self) -> Result<Event, Over> {
        let began = self
            .blocked
            .as_ref()
            .map_or_else(Instant::now, |(_, at)| *at);
        let (at, digest) = match self.drained() {
            Ok(drained) => drained,
            Err(error) => return Ok(self.gives_up(error.message)),
        };
        self.state.documents = digest.documents as i64;
        let event = Event::Drained {
            at: at.get(),
            digest,
        };
        if self.state.donor.step(event).is_none() {
            return Ok(self.gives_up("the move is not where it was"));
        }
        loop {
            self.check()?;
            if self.is_to_abort() {
                return Ok(self.obeys());
            }
            if began.elapsed() > BLOCKED_LIMIT {
                return Ok(self.gives_up("the recipient did not get ready in time"));
            }
            let finish = DocWriter::new()
                .with("_terndbReceiveFinish", 1)
                .with("id", uuid_value(&self.state.plan.id))
                .with("catalogVersion", self.state.plan.catalog_version)
                .with("upTo", at.get() as i64)
                .with("documents", digest.documents as i64)
                .with("sum", binary(&digest.sum.to_be_bytes()));
            // ⚑ Nobody's writes wait longer because the recipient is silent.
            let left = BLOCKED_LIMIT.saturating_sub(began.elapsed());
            let asking = ask(&self.shard, &*self.recipient, finish, ANSWER_WAIT.min(left));
            let Some(answered) = self.unless_it_ends(asking).await else {
                continue;
            };
            match answered {
                Ok(report) => {
                    self.note(Fields(report.document()));
                    match report.document().get_str("phase") {
                        Some("ready") => {
                            let took = began.elapsed().as_micros() as u64;
                            self.handle.steps.lock().ready_us = took;
                            if let Err(error) = self.follows(Fields(report.document())) {
                                return Ok(self.gives_up(error.message));
                            }
                            let others = self.await_others(Reached::Ready, Stage::BlockReads);
                            return Ok(match others.await? {
                                true => Event::RecipientReady {
                                    catalog: self.state.donor.moved.catalog,
                                },
                                false => self.obeys(),
                            });
                        }
                        Some("receiving") => {}
                        _ => return Ok(self.is_refused(report.document())),
                    }
                }
                Err(Failure::Unreachable(_)) => self.pause(PAUSE).await,
                Err(Failure::Refused(error)) => {
                    self.reason = Some(error.message);
                    return Ok(Event::RecipientCannot);
                }
            }
        }
    }

    /// ⚑ What blocks reads here is later than the last entry by which the recipient got
    /// anything of the range. So whatever time the config server chooses behind the block,
    /// the recipient has all of it then.
    fn follows(&self, ready: Fields<'_>) -> Result<(), Error> {
        self.shard.observe_time(ready.time("readyAt")?)
    }

    /// The last position that matters, and the digest of what is stored then.
    fn drained(&mut self) -> Result<(LogPosition, Digest), Error> {
        tokio::task::block_in_place(|| {
            if let (Some((applied, _)), Some(follower)) = (&self.blocked, &mut self.follower) {
                while !follower.follow(&self.shard, applied.position)? {}
                return Ok((applied.position, follower.digest()));
            }
            // The primary that blocked writes is gone, and nothing was written since.
            let (Some(stretch), Some(id)) = (&self.handle.stretch, self.handle.collection) else {
                return Err(Error::new(
                    Code::NAMESPACE_NOT_FOUND,
                    "the collection was dropped",
                ));
            };
            if self.shard.store.collection_counter(id).items > SCAN_BLOCKED_MAX {
                return Err(Error::new(
                    Code::OPERATION_FAILED,
                    "the primary was lost while writes were blocked",
                ));
            }
            let digest = digest::of_stored(&self.shard, stretch, |_| {})?;
            Ok((self.shard.log.last_applied(), digest))
        })
    }

    /// Asks the config server until it is known what was decided. ⚑ A lost answer is never
    /// taken for an abort.
    pub(super) async fn deciding(&mut self) -> Result<Event, Over> {
        let mut settles = self.state.plan.part_of.is_some();
        if let Some(whole) = self.handle.whole.clone() {
            self.handle.reached.send_replace(Reached::ReadsBlocked);
            let mut stage = whole.stage.subscribe();
            // Nobody but the whole asks, and nobody but it is to end.
            let decided = tokio::select! {
                stage = stage.wait_for(|now| matches!(now, Stage::Decided(_))) => {
                    stage.map(|stage| *stage)
                }
                () = self.tenure.ended() => return Err(Over),
            };
            if let Ok(Stage::Decided(outcome)) = decided {
                return Ok(Event::Decided(outcome));
            }
        }
        loop {
            self.check()?;
            let plan = &self.state.plan;
            let began = Instant::now();
            let decided = match settles || self.is_to_abort() {
                true => {
                    let settled = settle(&self.shard, plan, ANSWER_WAIT).await;
                    settled.map(Verdict::Decided)
                }
                // Whatever becomes of the question: who wants the move to end asks what was decided.
                false => match self.unless_it_ends(self.commit()).await {
                    Some(verdict) => verdict,
                    None => continue,
                },
            };
            self.handle.steps.lock().commit_us = began.elapsed().as_micros() as u64;
            match decided {
                Ok(Verdict::Decided(outcome)) => {
                    let outcome = self.of_this_life(outcome);
                    if *self.handle.wish.borrow() == Wish::Killed && self.reason.is_none() {
                        self.reason = Some(KILLED.to_owned());
                        self.is_killed = true;
                    }
                    self.tell_at_once(outcome);
                    learn_earlier(&self.shard, &self.tenure, &self.state.plan, outcome).await;
                    self.check()?;
                    return Ok(Event::Decided(outcome));
                }
                Ok(Verdict::CatalogChanged { .. }) if self.put_off >= PUT_OFF_MAX => {
                    self.reason = Some("options or indexes change again and again".to_owned());
                    settles = true;
                }
                Ok(Verdict::CatalogChanged { now }) => {
                    self.put_off += 1;
                    let known = self.state.donor.moved.catalog;
                    return Ok(Event::CatalogChanged { known, now });
                }
                Err(Failure::Unreachable(why)) => {
                    tracing::warn!("a move waits for the config server: {why}");
                    self.pause(PAUSE).await;
                }
                Err(Failure::Refused(error)) => {
                    self.reason = Some(error.message);
                    // The protocol's answer to a refusal is to ask for what was decided.
                    settles = self.state.donor.step(Event::CommitRefused).is_some();
                    self.pause(LOOK_INTERVAL).await;
                }
            }
        }
    }

    /// Tells the recipient that it owns the range, while this side is still writing down that it
    /// does not: clients of the range wait for both. It is decided, and the recipient could have
    /// asked by itself; whether it has heard is found out in *committed*.
    fn tell_at_once(&mut self, outcome: Outcome) {
        if !matches!(outcome, Outcome::Committed { .. }) || self.state.plan.part_of.is_some() {
            return;
        }
        let (shard, recipient) = (self.shard.clone(), self.recipient.clone());
        let question = release(&self.state.plan, outcome);
        self.telling = Some(tokio::spawn(async move {
            ask(&shard, &*recipient, question, ANSWER_WAIT).await
        }));
    }

    /// ⚑ A commit that is not newer than what was known when this began is of an earlier life
    /// of the move.
    fn of_this_life(&self, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Committed { version, .. } => match version.age(self.state.plan.known) {
                Age::Newer | Age::Unknown => outcome,
                Age::Same | Age::Older => Outcome::Aborted,
            },
            Outcome::Aborted => Outcome::Aborted,
        }
    }

    async fn commit(&self) -> Result<Verdict, Failure> {
        let plan = &self.state.plan;
        let incarnation = plan.known.incarnation;
        let blocked_at = self.shard.log.latest_time();
        let mut question = DocWriter::new()
            .with("_configsvrCommitMove", 1)
            .with("id", uuid_value(&plan.id))
            .with("ns", plan.namespace.as_str())
            .with("uuid", uuid_value(&plan.uuid))
            .with("from", plan.donor.as_str())
            .with("to", plan.recipient.as_str())
            .with("epoch", incarnation.epoch)
            .with("timestamp", incarnation.began)
            .with("catalogVersion", plan.catalog_version)
            .with("blockedAt", blocked_at);
        append_range(&mut question, "range", &plan.range);
        let reply = ask_config(&self.shard, question, ANSWER_WAIT).await?;
        let fields = Fields(reply.document());
        match fields.text("outcome")? {
            "catalogChanged" => Ok(Verdict::CatalogChanged {
                now: fields.count("catalogVersion")?,
            }),
            _ => Ok(Verdict::Decided(fields.outcome()?)),
        }
    }
}
