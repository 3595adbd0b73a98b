//! A whole run: from the first look at both sides to the report, over any number of processes.
//!
//! ```text
//! Beginning ──► Generation 0 ──► Generation 1 ──► … ──► last generation ──► Ended
//!   start is       scans            looks again at what changed      ▲         report
//!   persisted                       or differed                      │
//!                                        writes off: a time on each side is taken and persisted,
//!                                        and both streams have passed it
//! ```
//!
//! What is persisted, and when:
//! - the **start** of both sides' changes, as cluster times, before anything else is read;
//! - each **task** before it is worked on, with its counts when it is done;
//! - what changed goes into the **queue** of the next generation, and behind it the resume **token**;
//! - a document that differs goes into the **ledger** and into the next queue, before the task or the
//!   queue entry that it came from is done;
//! - the **generation**, after its queue was closed and before it is worked off;
//! - the times at which **writes went off**;
//! - what shows that a side did not go back in time (see `history`), before anything is marked as done.
//!
//! Every write may be the last of a process. Repeating what was not marked as done is harmless, so
//! the next process goes on from the marks (`kill -9` at any time). A run is forgotten by whoever
//! has its report ([`crate::store::forget`]); until then it can be concluded again.
//!
//! Why it is sound. Take any document. Let *c* be its last change on either side. If *c* came before
//! the start, the scan read the document after *c*, because reads wait for a cluster time that
//! covers the start. Otherwise *c* is an event of a stream, because streams begin at the start. Its
//! recheck was put into a queue that was open then, so it was worked off later, by a read that waits for
//! the time of *c* on the side that changed; the other side did not change any more, or its own last
//! change has its own recheck. So the last look at the document saw its last state on both sides.
//! All looks are read at majority: what they saw cannot be rolled back, and a side that somebody put
//! back is noticed (see `history`). The last generation begins
//! after both streams passed a time taken when writes were off, so no change is still to come.
//! Collections are subject to the same argument by their uuids (see `collections`).
//!
//! A run in which nobody writes is generation 0 alone, without streams; reads still wait for a cluster
//! time taken when the process began. Gone on with by a later process, it first takes in what changed
//! in between (see `beginning`).

use crate::api::Api;
use crate::beginning::{CaughtUp, Times, begin_record, both, moment, no_cluster_time, unfinished};
use crate::cluster::Cluster;
use crate::error::VerifyError;
use crate::follow::follow;
use crate::generation::Pairs;
use crate::hashing;
use crate::history::{self, Historian};
use crate::identity::Identity;
use crate::lane::Lanes;
use crate::ledger::Ledger;
use crate::merge::Side;
use crate::natural::Nodes;
use crate::pace::Pace;
use crate::progress;
use crate::queue::Queue;
use crate::record::{Recheck, RunRecord, decode, put, run_key};
use crate::report::{Report, counted};
use crate::scan::Shared;
use crate::settings::{Settings, Writes};
use crate::status::{Control, Phase, Status};
use crate::store::Store;
use crate::survey::Survey;
use crate::time::{ClusterTime, shown_moment};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How often a survey is made although no change of definitions was seen: old servers do not tell.
const SURVEY_INTERVAL: Duration = Duration::from_secs(10);
const SURVEY_ATTEMPTS: u32 = 4;
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long a side's changes may stand still in front of a time that they must pass. A cluster at rest
/// writes something to every oplog every ten seconds.
const STREAM_PATIENCE: Duration = Duration::from_secs(60);

/// Compares two clusters.
pub async fn verify(settings: Settings) -> Result<Report, VerifyError> {
    verify_controlled(settings, &Control::default()).await
}

/// As [`verify`], for whoever wants to say something to the run meanwhile.
///
/// Boxed, because the body of an async function is compiled where it is run: this way the run, and
/// with it most of the driver, is compiled in this crate and not again by whoever calls it.
pub fn verify_controlled(
    settings: Settings,
    control: &Control,
) -> Pin<Box<dyn Future<Output = Result<Report, VerifyError>> + Send + '_>> {
    Box::pin(run(settings, control))
}

async fn run(settings: Settings, control: &Control) -> Result<Report, VerifyError> {
    settings.check()?;
    let api = Api {
        control: control.clone(),
        settings: Arc::new(settings.clone()),
        run: Arc::default(),
        beginning: Arc::default(),
    };
    let _serving = match settings.listen.clone() {
        Some(address) => Some(api.clone().serve(&address).await?),
        None => None,
    };
    if !settings.wait {
        control.begin();
    }
    let run = async {
        control.until(|asked| asked.begin).await;
        let run = Run::begin(settings, control.clone()).await?;
        // Set once, because this is the only run.
        let _ = api.run.set(run.shared.clone());
        run.drive().await
    };
    tokio::select! {
        report = run => report,
        () = control.until(|asked| asked.stop) => Err(VerifyError::Stopped),
    }
}

struct Run {
    shared: Arc<Shared>,
    record: RunRecord,
    control: Control,
    /// Whether an earlier process worked on it.
    resumed: bool,
    survey: Survey,
    surveyed: Option<Instant>,
    pairs: Pairs,
}

impl Run {
    async fn begin(mut settings: Settings, control: Control) -> Result<Run, VerifyError> {
        settings.filter = control.filter().or(settings.filter);
        let (source, destination) = tokio::try_join!(
            Cluster::connect(Side::Source, &settings),
            Cluster::connect(Side::Destination, &settings),
        )?;
        let (one, other) = tokio::try_join!(Identity::ask(&source), Identity::ask(&destination))?;
        settings.same_cluster = one.is_same(&other);
        let now = moment(&source, &destination).await?;
        for cluster in [&source, &destination] {
            if let Some(time) = now.get(cluster.side as usize).copied().flatten() {
                cluster.reads_after.raise(time);
            }
        }
        let hash = match settings.hash {
            true => Some(hashing::choose(&source, &destination).await?),
            false => None,
        };
        if settings.restart {
            // Before it is opened: it may be what cannot be opened.
            crate::store::forget(&settings.place).await?;
        }
        let store = Store::open(&settings.place).await?;
        let historians = [Historian::new(&source), Historian::new(&destination)];
        let kept = unfinished(&store, &settings, &historians).await?;
        let resumed = kept.is_some();
        let record = match kept {
            Some(record) => record,
            None => {
                if settings.writes == Writes::On {
                    source.check_can_be_followed(settings.changes)?;
                    destination.check_can_be_followed(settings.changes)?;
                }
                let record = begin_record(&store, &settings, now).await?;
                for historian in &historians {
                    historian.begin(&store).await?;
                }
                record
            }
        };
        for silence in historians.iter().filter_map(Historian::silence) {
            eprintln!("terndb verify: warning: {silence}");
        }
        if record.start.is_some() && settings.writes == Writes::Off {
            // Begun while clusters were written; that they are off now is news.
            settings.writes = Writes::On;
            control.writes_off();
        }
        control.has_begun();
        let status = Status::default();
        if let Some(off) = record.writes_off {
            let _ = status.writes_off.set(off);
            control.writes_off();
        }
        let shared = Arc::new(Shared {
            tally: progress::Tally::default(),
            pace: Pace::new(settings.bytes_per_second_max, Instant::now()),
            ledger: Ledger::load(&store).await?,
            queue: Queue::new(record.generation),
            source,
            destination,
            settings,
            hash,
            store,
            status,
            started: Instant::now(),
            nodes: Nodes::default(),
            lanes: Lanes::default(),
            historians,
        });
        let mut run = Run {
            shared,
            record,
            control,
            resumed,
            survey: Survey::default(),
            surveyed: None,
            pairs: Pairs::default(),
        };
        if resumed {
            run.go_on(now).await?;
        }
        Ok(run)
    }

    /// Takes up what an earlier process did, if that still says something.
    async fn go_on(&mut self, now: Times) -> Result<(), VerifyError> {
        let shared = &self.shared;
        let begun = shown_moment(self.record.started_ms);
        let parts = counted(shared.parts_done().await?, "part", "parts");
        eprintln!("terndb verify: going on with a run begun at {begun}, {parts} done");
        if self.record.start.is_some() {
            return Ok(());
        }
        let caught_up = match (self.record.began, both(now)) {
            (Some(began), Some(now)) => shared.catch_up(began, now).await?,
            (_, _) => CaughtUp::No(VerifyError::settings("a side has no oplog")),
        };
        if let CaughtUp::No(why) = caught_up {
            eprintln!(
                "terndb verify: that run is begun anew, because nothing tells what was changed since: {why}"
            );
            for name in shared.ledger.counts().keys() {
                shared.ledger.forget(&shared.store, name).await?;
            }
            self.record = begin_record(&shared.store, &shared.settings, now).await?;
            for historian in &shared.historians {
                historian.begin(&shared.store).await?;
            }
            self.resumed = false;
        }
        Ok(())
    }

    async fn drive(mut self) -> Result<Report, VerifyError> {
        let begun = Instant::now();
        let mut beside = JoinSet::new();
        if let Some(start) = self.record.start {
            for side in Side::BOTH {
                beside.spawn(follow(self.shared.clone(), side, start.on(side)));
            }
        }
        beside.spawn(history::watch(self.shared.clone()));
        let showing = {
            let (shared, display) = (self.shared.clone(), self.shared.settings.display);
            tokio::spawn(progress::show(shared, display, self.control.clone()))
        };
        let shared = self.shared.clone();
        let ended = tokio::select! {
            ended = self.generations() => ended,
            error = shared.store.until_lost() => Err(error),
            Some(broken) = beside.join_next() => Err(match broken {
                Ok(error) => error,
                Err(panicked) => VerifyError::settings(format!(
                    "following changes failed, which is a bug of the verifier: {panicked}"
                )),
            }),
        };
        showing.abort();
        // Bars must be off the screen before the report is on it; an aborted task is an expected error.
        let _ = showing.await;
        let ended = match ended {
            Ok(()) => self.shared.cover().await,
            // A side that went back in time fails in many ways; the cause is what to say.
            Err(error) if !matches!(error, VerifyError::State { .. }) => {
                match self.shared.cover_once().await {
                    Err(cause @ VerifyError::WentBack { .. }) => Err(cause),
                    Ok(()) | Err(_) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        ended?;
        self.shared.status.enter(Phase::Idle);
        let report =
            self.shared
                .report(&self.survey, begun.elapsed(), (&self.record, self.resumed));
        let report = report.await?;
        self.shared.store.confirm().await?;
        self.shared.status.ended.store(true, Ordering::SeqCst);
        Ok(report)
    }

    /// All generations, until the last one is done.
    async fn generations(&mut self) -> Result<(), VerifyError> {
        let mut last = false;
        let mut positions = Default::default();
        loop {
            let begun = Instant::now();
            let again = self.generation(last).await?;
            self.shared.status.rechecked(positions);
            if self.record.start.is_none() {
                // What differed in a part that was read twice may have been noted the first time.
                return match again || self.resumed {
                    true => self.look_at_all_again().await,
                    false => Ok(()),
                };
            }
            if last {
                return self.shared.count_late_measurements(&self.survey).await;
            }
            last = self.wait_for_work(begun.elapsed()).await?;
            positions = self.shared.status.positions();
            self.record.generation = self.shared.queue.close().await;
            self.keep().await?;
        }
    }

    /// One generation; says whether a part of it was done twice.
    async fn generation(&mut self, last: bool) -> Result<bool, VerifyError> {
        let generation = self.record.generation;
        let status = &self.shared.status;
        status.generation.store(generation, Ordering::Relaxed);
        // A task that failed is tried again with the next survey.
        let failed = !status.failures().is_empty();
        status.forget_failures();
        let due = failed
            || self
                .surveyed
                .is_none_or(|made| made.elapsed() > SURVEY_INTERVAL);
        self.survey.is_fresh = status.take_definitions_changed() || last || due;
        let mut again = false;
        let last = last || self.record.start.is_none();
        if self.survey.is_fresh {
            let shared = &self.shared;
            let first = self.surveyed.is_none() && !self.resumed;
            let made = look_at_both(shared, first).await;
            if let (Err(_), true) = (&made, first) {
                // Nothing was done yet: whoever asks again, for something else, is not held up by it.
                shared.store.clear(b"").await?;
            }
            let made = made.map_err(|error| match error {
                VerifyError::Unreachable { .. } if !first => {
                    VerifyError::Interrupted(Box::new(error))
                }
                error => error,
            })?;
            if self.surveyed.is_none() {
                for warning in &made.warnings {
                    eprintln!("terndb verify: warning: {warning}");
                }
            }
            self.surveyed = Some(Instant::now());
            self.survey = made;
            status.set_metadata(self.survey.metadata.clone());
            let records = shared
                .align_collections(&self.survey, generation, |pair| last && pair.is_unfollowed)
                .await?;
            self.pairs.renew(shared, &self.survey, &records).await;
            status.enter(Phase::Check);
            again = shared
                .scan(&self.survey, &records, &mut self.pairs, last)
                .await?;
        }
        status.enter(Phase::Recheck);
        self.shared
            .work_off(generation, &self.survey, &self.pairs, last)
            .await?;
        status.enter(Phase::Idle);
        Ok(again)
    }

    /// Waits until there is something to do; says whether it is for the last time.
    async fn wait_for_work(&mut self, took: Duration) -> Result<bool, VerifyError> {
        // A long generation is followed by a long pause: half of the time is the clusters' own.
        let pause = self.shared.settings.generation_pause.max(took);
        let begun = Instant::now();
        loop {
            if self.control.asked().writes_off {
                self.close().await?;
                return Ok(true);
            }
            let work = self.shared.queue.has_work()
                || self.shared.status.have_definitions_changed()
                || !self.shared.status.failures().is_empty();
            if work && begun.elapsed() >= pause {
                return Ok(false);
            }
            let _ =
                tokio::time::timeout(POLL_INTERVAL, self.control.until(|asked| asked.writes_off))
                    .await;
        }
    }

    /// Takes a time on both sides after which nobody writes, and waits until the streams passed it.
    async fn close(&mut self) -> Result<(), VerifyError> {
        let shared = &self.shared;
        let off = match self.record.writes_off {
            Some(off) => off,
            None => {
                let now = moment(&shared.source, &shared.destination).await?;
                let off = both(now).ok_or_else(no_cluster_time)?;
                self.record.writes_off = Some(off);
                let _ = shared.status.writes_off.set(off);
                let kept = put(run_key(), &self.record)?;
                shared.store.write(vec![kept]).await?;
                off
            }
        };
        for side in Side::BOTH {
            let cluster = shared.side(side);
            let time = off.on(side);
            shared.until_passed(side, time).await?;
            cluster.reads_after.raise(time);
        }
        Ok(())
    }

    /// Has every mismatch looked at once more.
    async fn look_at_all_again(&mut self) -> Result<(), VerifyError> {
        let shared = &self.shared;
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = shared.store.page(b"m", after.as_deref(), 1000).await?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            let mut rechecks = Vec::new();
            for (_, bytes) in &page {
                let mismatch: crate::record::Mismatch = decode(bytes)?;
                rechecks.push(Recheck {
                    namespace: mismatch.namespace,
                    id: mismatch.id,
                    changed_ms: mismatch.changed_ms,
                });
            }
            shared
                .queue
                .add(&shared.store, &rechecks, Vec::new())
                .await?;
        }
        let generation = shared.queue.close().await;
        shared
            .work_off(generation, &self.survey, &self.pairs, true)
            .await
    }

    async fn keep(&self) -> Result<(), VerifyError> {
        let changes = vec![put(run_key(), &self.record)?];
        self.shared.store.write(changes).await
    }
}

impl Shared {
    /// Waits until a side's changes are known up to a time; fails if they do not come nearer.
    pub async fn until_passed(&self, side: Side, time: ClusterTime) -> Result<(), VerifyError> {
        let cluster = self.side(side);
        let mut positions = self.status.stream(side).position.subscribe();
        loop {
            let before = *positions.borrow_and_update();
            let passed = match before.idle {
                true => cluster.has_passed(before.time, time),
                false => before.time > time,
            };
            if passed {
                return Ok(());
            }
            let moved = positions.wait_for(|position| *position != before);
            // The sender lives as long as the run.
            if tokio::time::timeout(STREAM_PATIENCE, moved).await.is_err() {
                let seconds = STREAM_PATIENCE.as_secs();
                return Err(cluster.no_changes(format!(
                    "for {seconds} seconds its changes have not come past the time at which writes went off; start again with the same options to go on"
                )));
            }
        }
    }
}

/// A survey that can be worked with; the first also of what was asked for.
async fn look_at_both(shared: &Shared, first: bool) -> Result<Survey, VerifyError> {
    let made = survey_with_retries(shared).await?;
    if shared.settings.same_cluster {
        made.check_distinct_sides(&shared.settings)?;
    }
    if first {
        made.check_includes(&shared.settings)?;
        let sides = (&shared.source, &shared.destination);
        made.check_filter(sides, &shared.settings).await?;
    }
    Ok(made)
}

async fn survey_with_retries(shared: &Shared) -> Result<Survey, VerifyError> {
    let mut delay = Duration::from_millis(250);
    for _ in 1..SURVEY_ATTEMPTS {
        match Survey::make(&shared.source, &shared.destination, &shared.settings).await {
            Err(error) if error.is_transient() => {
                tokio::time::sleep(delay).await;
                delay *= 4;
            }
            ended => return ended,
        }
    }
    Survey::make(&shared.source, &shared.destination, &shared.settings).await
}
