//! The donor while it copies: how far the recipient is, when it is close enough to block writes, and
//! whether it has the options and indexes that stand.

use super::{ANSWER_WAIT, Driver, LOOK_INTERVAL, Over, PAUSE, describe, phase_name};
use crate::Shard;
use crate::aside::aside;
use crate::migration::database::{Reached, Stage};
use crate::migration::digest::Follower;
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

/// Entries of the log that may be missing on the recipient when writes are blocked.
const LAG_ENTRIES_MAX: u64 = 200;
/// Changes in them. One entry may have a thousand.
const LAG_CHANGES_MAX: u64 = 1_000;
/// How much of both is borne at first. Writes wait while the recipient catches up with them, so
/// that it is worth a moment to find it close.
const LAG_AT_FIRST: u64 = 16;
/// After such a time twice as much is borne.
const LAG_PATIENCE: Duration = Duration::from_millis(100);
/// A part that is so many times further behind has not caught up any more. ⚑ Not at the limit itself: many parts
/// that go to and fro around it would never have caught up together.
const LAG_AGAIN: u64 = 10;
/// How long a recipient that has copied everything may stay further behind.
const CATCH_UP_LIMIT: Duration = Duration::from_secs(60);

/// What `$currentOp` calls the beginning of copying: the recipient makes its collection ready, and removes what
/// is left there of earlier days.
const RECIPIENT_BEGINS: &str = "recipientBegins";
/// And its end: every document has come, and the log is followed.
const CATCHING_UP: &str = "catchingUp";

impl Driver {
    pub(super) async fn copying(&mut self, since: LogPosition) -> Result<Event, Over> {
        let began = Instant::now();
        let mut scanned_at: Option<Instant> = None;
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
            let asking = self.ask_recipient(self.receive(since));
            let Some(answered) = self.unless_it_ends(asking).await else {
                continue;
            };
            let report = match answered {
                Ok(report) => report,
                Err(Failure::Unreachable(_)) => {
                    self.pause(PAUSE).await;
                    continue;
                }
                // What is in the way there may go away: a range deletion, another move.
                Err(Failure::Refused(error))
                    if error.code == Code::CONFLICTING_OPERATION_IN_PROGRESS
                        && began.elapsed() < CATCH_UP_LIMIT =>
                {
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
                *self.handle.phase.lock() = CATCHING_UP;
                // ⚑ The digest may have further to go than the copy, where the range is not one place: who could
                // not have caught up yet has not used up his time.
                if !self.is_scanned() {
                    scanned_at = None;
                }
                let since = *scanned_at.get_or_insert_with(Instant::now);
                let lag = self.shard.log.last_applied().get().saturating_sub(copied);
                let follower = self.follower.as_mut();
                let changes = follower.map_or(0, |follower| follower.changes_behind(copied));
                let borne = lag_borne(since.elapsed());
                let is_close = digested
                    && lag <= borne.min(LAG_ENTRIES_MAX)
                    && changes <= borne.min(LAG_CHANGES_MAX);
                if is_close {
                    stall.gets_on();
                }
                if let (Some(whole), true) = (&self.handle.whole, is_close) {
                    self.handle.reached.send_replace(Reached::CaughtUp);
                    let mut stage = whole.stage.subscribe();
                    if *stage.borrow_and_update() == Stage::Copying {
                        scanned_at = None;
                        tokio::select! {
                            _ = stage.changed() => {}
                            () = self.pause(PAUSE) => {}
                        }
                        continue;
                    }
                }
                let is_far =
                    lag > LAG_AGAIN * LAG_ENTRIES_MAX || changes > LAG_AGAIN * LAG_CHANGES_MAX;
                if is_far {
                    self.lags_again();
                }
                if is_close {
                    match self.is_aligned(fields.count("alignedWith").ok()).await? {
                        Ok(true) => {
                            let took = began.elapsed().as_millis() as u64;
                            self.handle.steps.lock().copying_ms += took;
                            return Ok(Event::AlmostCaughtUp);
                        }
                        // An index takes its time: here, on the recipient, or on another shard.
                        Ok(false) => {
                            scanned_at = None;
                            self.pause(LOOK_INTERVAL).await;
                            continue;
                        }
                        Err(error) => return Ok(self.gives_up(error.message)),
                    }
                }
                if since.elapsed() > CATCH_UP_LIMIT {
                    let why = match digested {
                        true => format!(
                            "the recipient stays {lag} entries of the log and {changes} changes behind"
                        ),
                        false => "what the donor writes outruns the digest of its range".to_owned(),
                    };
                    return Ok(self.gives_up(why));
                }
            } else {
                self.lags_again();
            }
            if digested {
                self.pause(LOOK_INTERVAL).await;
            }
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

/// How far behind a recipient may be when writes are blocked, after it could have caught up for
/// a while.
fn lag_borne(waited: Duration) -> u64 {
    let doublings = waited.as_millis() / LAG_PATIENCE.as_millis();
    let doublings = u32::try_from(doublings).unwrap_or(u32::MAX);
    LAG_AT_FIRST
        .checked_shl(doublings.min(32))
        .unwrap_or(u64::MAX)
}
