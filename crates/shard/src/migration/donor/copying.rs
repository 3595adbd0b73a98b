//! The donor while it copies: how far the recipient is, when it is close enough to block writes
//! (`catching_up.rs`), whether writers have to make way for that (`making_way.rs`), and whether it has the options and
//! indexes that stand.

use super::catching_up::{Approach, CatchingUp, Lag};
use super::{ANSWER_WAIT, Driver, LOOK_INTERVAL, Over, PAUSE, describe, phase_name};
use crate::Shard;
use crate::aside::aside;
use crate::migration::database::{Reached, Stage};
use crate::migration::digest::Follower;
use crate::migration::making_way::Asker;
use crate::migration::pacing::{Felt, Pacer};
use crate::migration::peers::Failure;
use crate::migration::plan::{Fields, append_range, uuid_value};
use crate::migration::stall::Stall;
use crate::migration::{Asking, standing_catalog};
use cluster::migration::donor::Event;
use model::bson::DocWriter;
use model::{Code, Error};
use replication::LogPosition;
use std::time::{Duration, Instant};
use wire::Reply;

/// How long a recipient that has copied everything may stay further behind.
const CATCH_UP_LIMIT: Duration = Duration::from_secs(60);

/// What `$currentOp` calls the beginning of copying: the recipient makes its collection ready, and removes what
/// is left there of earlier days.
const RECIPIENT_BEGINS: &str = "recipientBegins";
/// And its end: every document has come, and the log is followed.
const CATCHING_UP: &str = "catchingUp";
/// The same, if writers are held for it.
const WRITERS_MAKE_WAY: &str = "writersMakeWay";
/// How long nobody makes way where options and indexes were not what they are to be.
const NOT_ALIGNED_PAUSE: Duration = Duration::from_secs(10);

impl Driver {
    pub(super) async fn copying(&mut self, since: LogPosition) -> Result<Event, Over> {
        let began = Instant::now();
        let mut catching_up: Option<CatchingUp> = None;
        let mut asker = Asker::new(&self.shard.migrations.making_way);
        // Nobody makes way earlier: later than now where options and indexes are not what they are to be.
        let mut may_ask_from = began;
        let mut stall = Stall::begins();
        let shard = self.shard.clone();
        let _copying = shard.latency.copying();
        let mut pacer = Pacer::new();
        let mut asked: Option<Instant> = None;
        let mut has_begun = false;
        *self.handle.phase.lock() = RECIPIENT_BEGINS;
        if self.follower.is_none() {
            let Some(stretch) = self.handle.stretch.clone() else {
                return Ok(self.gives_up("the collection was dropped"));
            };
            self.follower = Some(Follower::new(stretch, self.shard.log.last_applied()));
        }
        loop {
            self.check()?;
            if catching_up.is_none() {
                asker.end();
            }
            if self.is_to_abort() {
                return Ok(self.obeys());
            }
            if let Some(why) = stall.is_over(&self.shard, since) {
                return Ok(self.gives_up(why));
            }
            let scans = Instant::now();
            let pace = pacer.pace(&shard, Felt::default());
            let digested = match self.digest_a_bit(pace.moment()).await {
                Ok(digested) => digested,
                Err(error) => return Ok(self.gives_up(error.message)),
            };
            if !digested {
                // ⚑ Only the scan makes way for clients. The log grows as they write: who rests behind each
                // stretch of it may never come to its end.
                match self.is_scanned() {
                    true => tokio::task::yield_now().await,
                    false => self.pause(pace.pause_after(scans.elapsed())).await,
                }
                if asked.is_some_and(|asked| asked.elapsed() < LOOK_INTERVAL) {
                    continue;
                }
            }
            asked = Some(Instant::now());
            let Some(answered) = self.how_far(since, &mut asker).await else {
                continue;
            };
            let report = match answered {
                Ok(report) => report,
                Err(Failure::Unreachable(_)) => {
                    self.nobody_makes_way(&mut asker);
                    self.pause(PAUSE).await;
                    continue;
                }
                // What is in the way there may go away: a range deletion, another move.
                Err(Failure::Refused(error))
                    if error.code == Code::CONFLICTING_OPERATION_IN_PROGRESS
                        && began.elapsed() < CATCH_UP_LIMIT =>
                {
                    catching_up = None;
                    self.pause(PAUSE).await;
                    continue;
                }
                Err(Failure::Refused(error)) => {
                    self.reason = Some(error.message);
                    return Ok(Event::RecipientCannot);
                }
            };
            let fields = Fields(report.document());
            if report.document().get_str("phase") != Some("receiving") {
                return Ok(self.is_refused(report.document()));
            }
            if !std::mem::replace(&mut has_begun, true) {
                *self.handle.phase.lock() = phase_name(&self.state.donor.phase);
                let took = began.elapsed().as_millis() as u64;
                self.handle.steps.lock().recipient_begins_ms += took;
            }
            self.note(fields);
            stall.hear(fields);
            if !digested {
                stall.gets_on();
            }
            let copied = fields.count("copied").unwrap_or(0);
            if fields.flag("scanned") {
                // ⚑ The digest may have further to go than the copy, where the range is not one place: who could
                // not have caught up yet has not used up his time.
                if !self.is_scanned() {
                    catching_up = None;
                }
                let now = Instant::now();
                let applied = self.shard.log.last_applied().get();
                let Some(follower) = self.follower.as_mut() else {
                    return Ok(self.gives_up("the digest was lost"));
                };
                let followed = follower.followed();
                let lag = Lag {
                    entries: applied.saturating_sub(copied),
                    changes: follower.changes_behind(copied),
                };
                let catches_up = catching_up.get_or_insert_with(|| CatchingUp::begins(now));
                let could = catches_up.elapsed(now);
                let is_close = digested && lag.is_borne(could);
                let to_go = applied.saturating_sub(copied.min(followed.position));
                let left = CATCH_UP_LIMIT.saturating_sub(could);
                match catches_up.looks(to_go, followed, now, left) {
                    Approach::Outrun if !is_close && now >= may_ask_from => {
                        self.asks_to_make_way(&mut asker);
                    }
                    // Who has made way does so until it is close: it is because of that that it gets closer.
                    Approach::Outrun | Approach::GetsCloser => {}
                    Approach::OutrunByOthers => asker.end(),
                }
                *self.handle.phase.lock() = match asker.is_asking() {
                    true => WRITERS_MAKE_WAY,
                    false => CATCHING_UP,
                };
                if is_close {
                    stall.gets_on();
                }
                if let (Some(whole), true) = (&self.handle.whole, is_close) {
                    self.handle.reached.send_replace(Reached::CaughtUp);
                    let mut stage = whole.stage.subscribe();
                    if *stage.borrow_and_update() == Stage::Copying {
                        catching_up = None;
                        tokio::select! {
                            _ = stage.changed() => {}
                            () = self.pause(PAUSE) => {}
                        }
                        continue;
                    }
                }
                if lag.is_far() {
                    self.lags_again();
                }
                if is_close {
                    let aligned = self.is_aligned(fields.count("alignedWith").ok());
                    match asker.unless_silent(aligned).await? {
                        Ok(true) => {
                            let took = began.elapsed().as_millis() as u64;
                            self.handle.steps.lock().copying_ms += took;
                            return Ok(Event::AlmostCaughtUp);
                        }
                        // An index takes its time: here, on the recipient, or on another shard.
                        Ok(false) => {
                            catching_up = None;
                            may_ask_from = Instant::now() + NOT_ALIGNED_PAUSE;
                            self.pause(LOOK_INTERVAL).await;
                            continue;
                        }
                        Err(error) => return Ok(self.gives_up(error.message)),
                    }
                }
                if could > CATCH_UP_LIMIT {
                    let why = match digested {
                        true => {
                            let Lag { entries, changes } = lag;
                            let (count, bytes) = (changes.count, changes.bytes);
                            format!(
                                "the recipient stays {entries} entries of the log behind, with {count} changes of \
                                 {bytes} bytes"
                            )
                        }
                        false => "what the donor writes outruns the digest of its range".to_owned(),
                    };
                    return Ok(self.gives_up(why));
                }
            } else {
                // It copies, or does so again: another primary has looked at what was there.
                catching_up = None;
                *self.handle.phase.lock() = phase_name(&self.state.donor.phase);
                self.lags_again();
            }
            if digested {
                self.pause(LOOK_INTERVAL).await;
            }
        }
    }

    /// Asks the recipient how far it is; `None` if the move is to end, or this member leads no longer.
    async fn how_far(
        &self,
        since: LogPosition,
        asker: &mut Asker,
    ) -> Option<Result<Reply, Failure>> {
        let asking = self.ask_recipient(self.receive(since));
        let asking = async {
            tokio::select! {
                answered = self.unless_it_ends(asking) => answered,
                () = self.tenure.ended() => None,
            }
        };
        asker.unless_silent(asking).await
    }

    /// Writers of the range make way from now on. Parts of a whole ask nobody: one that is there waits for the others.
    fn asks_to_make_way(&self, asker: &mut Asker) {
        if let (Some(stretch), None) = (&self.handle.stretch, &self.state.plan.part_of) {
            asker.ask(stretch);
        }
    }

    fn nobody_makes_way(&self, asker: &mut Asker) {
        if asker.is_asking() {
            asker.rest();
            *self.handle.phase.lock() = CATCHING_UP;
        }
    }

    /// Whether the recipient, which says which version it is aligned with, has the options and indexes that
    /// stand.
    async fn is_aligned(&mut self, aligned: Option<u64>) -> Result<Result<bool, Error>, Over> {
        // Of a part they are looked at when all have been copied.
        if self.state.plan.part_of.is_some() {
            return Ok(Ok(true));
        }
        let (plan, why) = (&self.state.plan, Asking::ToFinish);
        match standing_catalog(&self.shard, plan, why, ANSWER_WAIT).await {
            Ok(Some(catalog)) => {
                self.standing = Some(catalog);
                if self.state.donor.moved.catalog < catalog {
                    self.step(Event::CatalogStands { catalog }).await?;
                }
                let is_this = self.state.donor.moved.catalog == catalog;
                Ok(Ok(is_this && aligned == Some(catalog)))
            }
            // They are about to change: what they are here is of no version.
            Ok(None) => {
                self.standing = None;
                self.pause(PAUSE).await;
                Ok(Ok(false))
            }
            Err(Failure::Unreachable(_)) => {
                self.pause(PAUSE).await;
                Ok(Ok(false))
            }
            Err(Failure::Refused(error)) => Ok(Err(error)),
        }
    }

    /// A part that had caught up waits for the others, and may fall behind meanwhile: the database is not
    /// closed for one that is far from ready.
    fn lags_again(&self) {
        let whole = self.handle.whole.as_ref();
        if whole.is_some_and(|whole| whole.stage() == Stage::Copying) {
            self.handle.reached.send_replace(Reached::Copying);
        }
    }

    /// Works on the digest for a moment; true if only the last entries are missing.
    async fn digest_a_bit(&mut self, moment: Duration) -> Result<bool, Error> {
        let Some(mut follower) = self.follower.take() else {
            return Ok(false);
        };
        let digested = match follower.is_scanned() {
            // What is left is short, and writes will soon wait for it.
            true => tokio::task::block_in_place(|| digest_some(&self.shard, &mut follower, moment)),
            false => {
                let shard = self.shard.clone();
                let work = move || (digest_some(&shard, &mut follower, moment), follower);
                let (digested, back) = aside(work).await;
                follower = back;
                digested
            }
        };
        if follower.is_scanned() {
            let documents = follower.digest().documents;
            // What clients insert from now on comes with the log.
            self.handle.steps.lock().expected.get_or_insert(documents);
        }
        self.follower = Some(follower);
        digested
    }

    /// Whether the digest has every record, and follows the log.
    fn is_scanned(&self) -> bool {
        self.follower.as_ref().is_some_and(Follower::is_scanned)
    }

    /// `_terndbReceive`: with all that the recipient needs to begin.
    fn receive(&self, since: LogPosition) -> DocWriter {
        let plan = &self.state.plan;
        let mut writer = DocWriter::new()
            .with("_terndbReceive", 1)
            .with("id", uuid_value(&plan.id))
            .with("ns", plan.namespace.as_str())
            .with("uuid", uuid_value(&plan.uuid))
            .with("key", &plan.key)
            .with("bounds", &plan.bounds)
            .with("from", plan.donor.as_str())
            .with("fromHost", self.shard.connection_string().as_str())
            .with("since", since.get() as i64)
            .with("catalogVersion", plan.catalog_version)
            .with("secondaryThrottle", plan.secondary_throttle)
            .with("waitForDelete", plan.wait_for_delete);
        append_range(&mut writer, "range", &plan.range);
        let catalog = self.state.donor.moved.catalog;
        if plan.part_of.is_some() || self.standing == Some(catalog) {
            writer.append("describes", catalog as i64);
        }
        match &plan.part_of {
            Some(whole) => {
                writer.append("partOf", uuid_value(whole));
                let described = self.handle.described.iter();
                for element in described.flat_map(|described| described.iter()) {
                    writer.append_element(&element);
                }
            }
            None => {
                if let Some(collection) = self.collection() {
                    describe(&collection, plan, &mut writer);
                }
            }
        }
        writer
    }
}

/// Works on a digest for a moment; true if only the last entries are missing.
fn digest_some(shard: &Shard, follower: &mut Follower, moment: Duration) -> Result<bool, Error> {
    let until = Instant::now() + moment;
    loop {
        let scanned = follower.scan(shard, until)?;
        let followed = follower.follow(shard, shard.log.last_applied())?;
        if scanned && followed {
            return Ok(true);
        }
        if Instant::now() > until {
            return Ok(false);
        }
    }
}
