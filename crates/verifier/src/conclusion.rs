//! The report of a run, put together from what the store holds.

use crate::error::VerifyError;
use crate::ledger::Ledger;
use crate::merge::Side;
use crate::record::{CollectionRecord, DefinitionChange, RunRecord, collection_of_key, decode};
use crate::report::{CollectionReport, Counts, Outcome, Report, Unverified, counted};
use crate::scan::Shared;
use crate::survey::Survey;
use std::sync::atomic::Ordering;
use std::time::Duration;

const PAGE: usize = 1000;
/// How many changes of definitions a report lists.
const DEFINITION_CHANGES_MAX: usize = 1000;

impl Shared {
    /// What the run says, if it ends here.
    pub async fn report(
        &self,
        survey: &Survey,
        took: Duration,
        (record, resumed): (&RunRecord, bool),
    ) -> Result<Report, VerifyError> {
        let mut unverified = survey.unverified.clone();
        unverified.extend(self.status.failures());
        let may_do_better =
            self.status.may_do_better() && unverified.len() == self.status.failures().len();
        unverified.extend(
            Side::BOTH
                .iter()
                .filter_map(|side| self.written_after(*side)),
        );
        let mut changes: Vec<DefinitionChange> = Vec::new();
        for (_, bytes) in self.store.page(b"e", None, DEFINITION_CHANGES_MAX).await? {
            changes.push(decode(&bytes)?);
        }
        Ok(Report {
            outcome: Outcome::Unknown,
            from: self.source.address.clone(),
            to: self.destination.address.clone(),
            scope: self.settings.scope(),
            started_ms: record.started_ms,
            resumed,
            seconds: took.as_secs_f64(),
            generations: record.generation + 1,
            totals: Counts::default(),
            collections: self.collection_reports().await?,
            metadata_mismatches: survey.metadata.clone(),
            mismatches: Ledger::first(&self.store, self.settings.described_max).await?,
            unverified,
            warnings: [survey.warnings.clone(), self.silences()].concat(),
            definition_changes: changes,
            may_do_better,
        }
        .settle())
    }

    /// Writes after they were said to be off: then nothing is certain.
    fn written_after(&self, side: Side) -> Option<Unverified> {
        let count = self
            .status
            .stream(side)
            .after_writes_off
            .load(Ordering::Relaxed);
        (count > 0).then(|| Unverified {
            namespace: "everything".to_owned(),
            why: format!(
                "the {side} was changed {} after writes were said to be off: stop them, and verify again",
                counted(count, "time", "times"),
            ),
        })
    }

    pub async fn collection_reports(&self) -> Result<Vec<CollectionReport>, VerifyError> {
        let mismatches = self.ledger.counts();
        let mut reports = Vec::new();
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = self.store.page(b"c", after.as_deref(), PAGE).await?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            for (key, bytes) in &page {
                let record: CollectionRecord = decode(bytes)?;
                let number = collection_of_key(key).unwrap_or_default();
                let (partitions, mut counts) = self.counted(number).await?;
                if let Some(differing) = mismatches.get(&record.source) {
                    counts.missing = differing.missing;
                    counts.extra = differing.extra;
                    counts.content = differing.content;
                    counts.repeated = differing.repeated;
                }
                reports.push(CollectionReport {
                    namespace: record.source,
                    destination: record.destination,
                    partitions,
                    counts,
                });
            }
        }
        reports.sort_by(|left, right| left.namespace.cmp(&right.namespace));
        Ok(reports)
    }
}
