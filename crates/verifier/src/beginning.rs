//! How a run begins, and how a later process goes on with it.
//!
//! A run in which nobody writes has no streams: nothing would tell what was changed between two
//! processes. So it keeps the moment at which it was begun, and whoever goes on with it first reads
//! the changes of both sides from there up to now. Documents that changed are looked at again, and
//! collections that came or went are scanned anew, as they are while clusters are written. Where nothing
//! tells the changes (servers without an oplog, an oplog that no longer reaches back, a user who may not
//! read them) what was compared earlier proves nothing, and the run begins anew. So does every run of which a
//! side went back in time (see `history`). Either is said on standard error, whatever else is shown.

use crate::cluster::Cluster;
use crate::error::VerifyError;
use crate::follow::follow;
use crate::history::Historians;
use crate::merge::Side;
use crate::record::{FORMAT, Moment, RunRecord, TaskRecord, decode, put, run_key};
use crate::scan::Shared;
use crate::settings::{Settings, Writes};
use crate::store::Store;
use crate::survey::Survey;
use crate::time::{ClusterTime, now_ms, shown_moment};
use std::sync::Arc;
use tokio::task::JoinSet;

const PAGE: usize = 1000;

/// Whether it is known what changed since a run was begun.
pub enum CaughtUp {
    Yes,
    /// It cannot be known, and why.
    No(VerifyError),
}

impl Shared {
    /// Takes in what changed on both sides between two moments.
    pub async fn catch_up(
        self: &Arc<Self>,
        began: Moment,
        now: Moment,
    ) -> Result<CaughtUp, VerifyError> {
        let mut following = JoinSet::new();
        for side in Side::BOTH {
            following.spawn(follow(self.clone(), side, began.on(side)));
        }
        let passed = async {
            for side in Side::BOTH {
                self.until_passed(side, now.on(side)).await?;
            }
            Ok(CaughtUp::Yes)
        };
        let ended = tokio::select! {
            passed = passed => passed,
            Some(broken) = following.join_next() => match broken {
                Ok(error) if error.is_transient() => Err(VerifyError::Interrupted(Box::new(error))),
                Ok(error @ VerifyError::State { .. }) => Err(error),
                Ok(error) => Ok(CaughtUp::No(error)),
                Err(panicked) => Ok(CaughtUp::No(VerifyError::settings(format!(
                    "following changes failed, which is a bug of the verifier: {panicked}"
                )))),
            },
        };
        following.shutdown().await;
        ended
    }

    /// How many parts of collections are done.
    pub async fn parts_done(&self) -> Result<u64, VerifyError> {
        let mut done = 0;
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = self.store.page(b"t", after.as_deref(), PAGE).await?;
            let Some((last, _)) = page.last() else {
                return Ok(done);
            };
            after = Some(last.clone());
            for (_, bytes) in &page {
                done += u64::from(decode::<TaskRecord>(bytes)?.counts.is_some());
            }
        }
    }
}

pub type Times = [Option<ClusterTime>; 2];

pub async fn moment(source: &Cluster, destination: &Cluster) -> Result<Times, VerifyError> {
    let (source, destination) = tokio::try_join!(source.now(), destination.now())?;
    Ok([source, destination])
}

pub fn both([source, destination]: Times) -> Option<Moment> {
    Some(Moment {
        source: source?,
        destination: destination?,
    })
}

pub fn no_cluster_time() -> VerifyError {
    VerifyError::settings(
        "a side does not tell its cluster time (operationTime), without which its changes cannot be followed: stop all writes to both sides and say so with --writes-off",
    )
}

/// Whether both sides take a filter, before a run is begun with it.
pub async fn check_filter(settings: &Settings, filter: &[u8]) -> Result<(), VerifyError> {
    let mut settings = settings.clone();
    settings.filter = Some(filter.to_vec());
    let (source, destination) = tokio::try_join!(
        Cluster::connect(Side::Source, &settings),
        Cluster::connect(Side::Destination, &settings),
    )?;
    let survey = Survey::make(&source, &destination, &settings).await?;
    survey
        .check_filter((&source, &destination), &settings)
        .await
}

/// The run that the store holds, if it can be gone on with: both sides must still be what they were.
pub async fn unfinished(
    store: &Store,
    settings: &Settings,
    historians: &Historians,
) -> Result<Option<RunRecord>, VerifyError> {
    let record: RunRecord = match store.get(&run_key()).await? {
        Some(bytes) => decode(&bytes)?,
        None => return Ok(None),
    };
    let another = |why: &str| {
        VerifyError::settings(format!(
            "{} holds an unfinished run {why}: name another place with --state, or give it up with --restart",
            settings.place
        ))
    };
    if record.format != FORMAT {
        return Err(another("of another version of this program"));
    }
    if record.asked != settings.asked() {
        return Err(another("with other clusters, names or filters"));
    }
    if record.start.is_none() && settings.writes == Writes::On {
        return Err(another("that was begun with --writes-off"));
    }
    for historian in historians {
        if let Err(why) = historian.resume(store).await? {
            let begun = shown_moment(record.started_ms);
            eprintln!(
                "terndb verify: the run that was begun at {begun} is begun anew, because {why}"
            );
            return Ok(None);
        }
    }
    Ok(Some(record))
}

pub async fn begin_record(
    store: &Store,
    settings: &Settings,
    now: Times,
) -> Result<RunRecord, VerifyError> {
    store.clear(b"").await?;
    let record = RunRecord {
        format: FORMAT,
        asked: settings.asked(),
        started_ms: now_ms(),
        began: both(now),
        start: match settings.writes {
            Writes::Off => None,
            // Without it the run would be taken for one in which nobody writes.
            Writes::On => Some(both(now).ok_or_else(no_cluster_time)?),
        },
        generation: 0,
        writes_off: None,
    };
    store.write(vec![put(run_key(), &record)?]).await?;
    Ok(record)
}
