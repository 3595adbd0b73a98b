//! The collections that are compared: which are to be scanned, and which have to be forgotten.
//!
//! A record stands for one scan of one pair of collections, told by their uuids. Before each
//! generation the records are brought in line with what both sides have:
//!
//! ```text
//! a pair without a record             ──► a new record: it is scanned
//! a pair with other uuids, or marked  ──► the old record goes, a new one comes
//! a record without a pair             ──► it goes, and what was known of its documents
//! ```
//!
//! Marked are collections that were dropped, created or renamed to since (see `follow`).
//!
//! A record that goes is emptied of its name first, then its tasks are removed, then the record: a
//! process that dies in between leaves a nameless record, which the next one removes. Were the tasks
//! to go first, a collection could come back to a record that has lost some of them.

use crate::error::VerifyError;
use crate::record::{
    CollectionRecord, TaskRecord, collection_key, collection_of_key, decode, put, rescan_key,
    task_prefix,
};
use crate::report::Counts;
use crate::scan::Shared;
use crate::store::Change;
use crate::survey::{Pairing, Survey};
use std::collections::BTreeMap;

const PAGE: usize = 1000;

/// The records of a run, by the collections' names on the source.
pub type Records = BTreeMap<String, (u32, CollectionRecord)>;

impl Shared {
    async fn load_collections(&self) -> Result<Records, VerifyError> {
        let mut records = Records::new();
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = self.store.page(b"c", after.as_deref(), PAGE).await?;
            let Some((last, _)) = page.last() else {
                return Ok(records);
            };
            after = Some(last.clone());
            for (key, bytes) in &page {
                let record: CollectionRecord = decode(bytes)?;
                let number = collection_of_key(key).unwrap_or_default();
                if record.source.is_empty() {
                    self.remove_record(number, &record).await?;
                } else {
                    records.insert(record.source.clone(), (number, record));
                }
            }
        }
    }

    /// The collections that have records, as they are.
    pub async fn compared_collections(&self) -> Result<Vec<CollectionRecord>, VerifyError> {
        let mut found = Vec::new();
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = self.store.page(b"c", after.as_deref(), PAGE).await?;
            let Some((last, _)) = page.last() else {
                return Ok(found);
            };
            after = Some(last.clone());
            for (_, bytes) in &page {
                found.push(decode(bytes)?);
            }
        }
    }

    async fn remove_record(
        &self,
        number: u32,
        record: &CollectionRecord,
    ) -> Result<(), VerifyError> {
        let nameless = CollectionRecord {
            source: String::new(),
            ..record.clone()
        };
        let key = collection_key(number);
        self.store.write(vec![put(key.clone(), &nameless)?]).await?;
        self.store.clear(&task_prefix(number)).await?;
        self.store.write(vec![Change::Delete(key)]).await
    }

    /// Brings the records in line with what both sides have.
    ///
    /// `anew` chooses pairs that are scanned again whatever is known of them.
    pub async fn align_collections(
        &self,
        survey: &Survey,
        generation: u64,
        anew: impl Fn(&Pairing) -> bool,
    ) -> Result<Records, VerifyError> {
        let mut before = self.load_collections().await?;
        let mut next = before.values().map(|(number, _)| number + 1).max();
        let mut records = Records::new();
        for pair in &survey.pairs {
            let name = pair.source.to_string();
            let mark = rescan_key(&name);
            let marked = self.store.get(&mark).await?.is_some();
            let kept = before.remove(&name);
            if let Some((number, record)) = &kept {
                let same = record.source_uuid == pair.source_uuid
                    && record.destination_uuid == pair.destination_uuid
                    && record.destination == pair.destination.to_string();
                if same && !marked && !anew(pair) {
                    records.insert(name, (*number, record.clone()));
                    continue;
                }
                self.remove_record(*number, record).await?;
            }
            let number = next.unwrap_or(0);
            next = Some(number + 1);
            let record = CollectionRecord {
                source: name.clone(),
                destination: pair.destination.to_string(),
                source_uuid: pair.source_uuid.clone(),
                destination_uuid: pair.destination_uuid.clone(),
                planned: false,
                generation,
            };
            // The mark goes only when the scan that it asks for is certain.
            let changes = vec![put(collection_key(number), &record)?, Change::Delete(mark)];
            self.store.write(changes).await?;
            records.insert(name, (number, record));
        }
        for (number, record) in before.values() {
            self.remove_record(*number, record).await?;
        }
        for name in self.ledger.counts().keys() {
            if !records.contains_key(name) {
                self.ledger.forget(&self.store, name).await?;
            }
        }
        Ok(records)
    }

    /// What was counted in a collection's finished tasks, and how many they are.
    pub async fn counted(&self, number: u32) -> Result<(u64, Counts), VerifyError> {
        let mut counts = Counts::default();
        let mut finished = 0;
        let mut after: Option<Vec<u8>> = None;
        loop {
            let prefix = task_prefix(number);
            let page = self.store.page(&prefix, after.as_deref(), PAGE).await?;
            let Some((last, _)) = page.last() else {
                return Ok((finished, counts));
            };
            after = Some(last.clone());
            for (_, bytes) in &page {
                let task: TaskRecord = decode(bytes)?;
                if let Some(done) = task.counts {
                    finished += 1;
                    counts.add(&done);
                }
            }
        }
    }
}
