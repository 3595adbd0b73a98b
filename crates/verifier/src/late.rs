//! Measurements that were written after writes were said to be off.
//!
//! Change streams do not tell of time series: what they are stored in are the server's own collections,
//! `system.buckets.…`. An oplog has them (see `follow`). Where changes come from a stream, the server is
//! asked once, right before the verdict, for its own events since then.
//!
//! Left out: servers before 6.0, which do not have the option. What was written into a time series there
//! while it was compared goes unnoticed.

use crate::cluster::code_of;
use crate::error::VerifyError;
use crate::merge::Side;
use crate::namespace::Namespace;
use crate::scan::Shared;
use crate::settings::Changes;
use crate::survey::Survey;
use crate::time::ClusterTime;
use bson::{Document, doc};
use mongodb::ClientSession;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const BUCKETS: &str = "system.buckets.";
const ACTION: &str = "tell what was written into time series";
/// How long one question waits for an answer that brings nothing.
const WAIT: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(60);
/// What servers say to an option that they do not have.
const UNKNOWN_OPTION: [i32; 2] = [40415, 115];

/// The time series that a collection of buckets belongs to.
pub fn series_of(buckets: &Namespace) -> Option<Namespace> {
    let name = buckets.collection.strip_prefix(BUCKETS)?;
    Some(Namespace::new(buckets.database.clone(), name))
}

impl Shared {
    /// Counts what was written into time series since writes were said to be off.
    pub async fn count_late_measurements(&self, survey: &Survey) -> Result<(), VerifyError> {
        let has_series = survey.pairs.iter().any(|pair| pair.time_field.is_some());
        let Some(off) = self.status.writes_off.get() else {
            return Ok(());
        };
        if !has_series || self.settings.changes == Changes::Oplog {
            return Ok(());
        }
        for side in Side::BOTH {
            let late = self.late_measurements(side, off.on(side)).await?;
            let counter = &self.status.stream(side).after_writes_off;
            counter.fetch_add(late, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn late_measurements(&self, side: Side, off: ClusterTime) -> Result<u64, VerifyError> {
        let cluster = self.side(side);
        let failed = |error: mongodb::error::Error| cluster.failed(ACTION, &error);
        let admin = cluster.client.database("admin");
        let mut session = cluster.client.start_session().await.map_err(failed)?;
        let reply = admin.run_command(doc! {"ping": 1}).session(&mut session);
        let reply = reply.await.map_err(failed)?;
        let now = ClusterTime::of_reply(&reply).unwrap_or(off);
        let opened = doc! {
            "aggregate": 1,
            "pipeline": [
                {"$changeStream": {
                    "allChangesForCluster": true,
                    "showSystemEvents": true,
                    "startAtOperationTime": off.timestamp(),
                }},
                {"$match": {
                    "ns.coll": {"$regex": "^system\\.buckets\\."},
                    "clusterTime": {"$gt": off.timestamp()},
                }},
                {"$project": {"ns": 1}},
            ],
            "cursor": {},
        };
        let mut reply = match admin.run_command(opened).session(&mut session).await {
            Ok(reply) => reply,
            Err(error) if code_of(&error).is_some_and(|code| UNKNOWN_OPTION.contains(&code)) => {
                return Ok(0);
            }
            Err(error) => return Err(failed(error)),
        };
        let mut late = 0;
        let begun = Instant::now();
        loop {
            let cursor = reply.get_document("cursor");
            let cursor = cursor.map_err(|_| cluster.malformed(ACTION))?;
            late += self.count_of_series(side, cursor);
            let reached = cursor
                .get_document("postBatchResumeToken")
                .ok()
                .and_then(ClusterTime::of_token_document);
            let id = cursor.get_i64("id").unwrap_or_default();
            if id == 0 || reached.is_some_and(|reached| cluster.has_passed(reached, now)) {
                end(&admin, &mut session, id).await;
                return Ok(late);
            }
            if begun.elapsed() > PATIENCE {
                let seconds = PATIENCE.as_secs();
                return Err(cluster.no_changes(format!(
                    "for {seconds} seconds it did not tell what was written into its time series; start again with the same options to go on"
                )));
            }
            let more = doc! {
                "getMore": id,
                "collection": "$cmd.aggregate",
                "maxTimeMS": WAIT.as_millis() as i64,
            };
            reply = admin
                .run_command(more)
                .session(&mut session)
                .await
                .map_err(failed)?;
        }
    }

    /// How many of a batch's events are of time series that are verified.
    fn count_of_series(&self, side: Side, cursor: &Document) -> u64 {
        let batch = cursor
            .get_array("firstBatch")
            .or_else(|_| cursor.get_array("nextBatch"));
        let events = batch.iter().flat_map(|batch| batch.iter());
        let is_verified = |event: &Document| -> Option<bool> {
            let name = event.get_document("ns").ok()?;
            let buckets = Namespace::new(name.get_str("db").ok()?, name.get_str("coll").ok()?);
            let series = series_of(&buckets)?;
            let name = self.name_on_source(side, &series);
            Some(self.settings.verifies(&series, &name))
        };
        let late = events
            .filter_map(|event| event.as_document())
            .filter(|event| is_verified(event) == Some(true));
        late.count() as u64
    }
}

/// A cursor that stays open ends by itself after some minutes: no reason to fail.
async fn end(admin: &mongodb::Database, session: &mut ClientSession, id: i64) {
    let kill = doc! {"killCursors": "$cmd.aggregate", "cursors": [id]};
    let _ = admin.run_command(kill).session(session).await;
}
