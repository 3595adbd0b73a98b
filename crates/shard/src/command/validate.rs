//! `validate`: checks every record against every index and every index entry
//! against its record.
//!
//! All of it on one snapshot, taken at a moment at which everything appended is
//! applied, so that writes going on meanwhile are not mistaken for damage and the
//! counters can be compared too. Nothing is changed.
//!
//! ```text
//!   records ─► well-formed? under its own key? ─► keys in each index: count, sum of hashes
//!   entries of an index ─► count, sum of hashes ─► the same: valid
//!                                                 else: looked up one by one, and listed
//! ```
//!
//! The sums are 64 bits of a sum of hashes: two different sets of entries that
//! agree in it and in their number are not to be expected.

use super::arguments::arguments;
use super::stats::append_count;
use super::{Answer, Invocation, finish};
use crate::Snapshot;
use crate::catalog::{Collection, Index};
use crate::operation::Operation;
use foldhash::fast::FixedState;
use model::bson::{Doc, DocBuf, DocWriter};
use model::ids::IndexId;
use model::key::TypeBits;
use model::time::ClusterTime;
use model::{Code, Error};
use std::hash::BuildHasher;
use std::ops::Bound;
use std::sync::Arc;
use storage::store::Counter;
use storage::{Direction, KeyRange};
use wire::Reply;

/// How often the walk asks whether it should go on.
const CHECK_INTERVAL: usize = 256;
/// Faults of each kind that are listed; all of them are counted.
const LISTED_MAX: usize = 100;

pub(crate) async fn validate(invocation: &Invocation<'_>) -> Answer {
    let namespace = invocation.namespace_of_check()?;
    let (mut full, mut background, mut metadata) = (false, false, false);
    let mut fast_count = false;
    for argument in arguments("validate", invocation.request.body()) {
        let wanted = model::number::is_truthy(argument.value());
        match argument.name() {
            "full" => full = wanted,
            "background" => background = wanted,
            "metadata" => metadata = wanted,
            "enforceFastCount" => fast_count = wanted,
            "repair" if wanted => {
                return Err(Error::new(
                    Code::COMMAND_NOT_SUPPORTED,
                    "validate with repair is not supported",
                ));
            }
            _ => {}
        }
    }
    let refused = match () {
        () if background && full => {
            "both { background: true } and { full: true } is not supported."
        }
        () if background && fast_count => {
            "both { background: true } and { enforceFastCount: true } is not supported."
        }
        () if metadata && (full || background || fast_count) => {
            "{ metadata: true } is not supported with any other options"
        }
        () => "",
    };
    if !refused.is_empty() {
        return Err(Error::new(
            Code::INVALID_OPTIONS,
            format!("Running the validate command with {refused}"),
        ));
    }
    let shard = invocation.shard;
    let not_found = || {
        Error::new(
            Code::NAMESPACE_NOT_FOUND,
            format!("Collection '{namespace}' does not exist to validate."),
        )
    };
    let known = shard.catalog.get(&namespace).ok_or_else(not_found)?;
    let (collection, snapshot, counter, time) = {
        // No write is between append and apply while the gate is held.
        let _gate = known.gate.write().await;
        if shard.log.leading().is_ok() {
            shard.wait_for_proposed().await?;
        }
        // Elsewhere entries are applied meanwhile: the two must be of the same moment.
        let (snapshot, counter) =
            tokio::task::block_in_place(|| shard.store.snapshot_and_counter(known.id));
        let collection = shard.catalog.by_id(known.id).ok_or_else(not_found)?;
        (collection, snapshot, counter, shard.store.applied_time())
    };
    let mut report = Report::new(&collection);
    if !metadata {
        tokio::task::block_in_place(|| {
            report.check(&collection, &snapshot, counter, invocation.operation)
        })?;
    }
    let mut writer = Reply::writer();
    writer.append("ns", namespace.as_str());
    report.append_to(&mut writer, metadata, background.then_some(time));
    finish(writer)
}

/// The entries of one index, added up.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Sum {
    entries: u64,
    hashes: u64,
}

impl Sum {
    fn add(&mut self, fields: &[u8], record_key: &[u8], type_bits: &[u8]) {
        let hash = FixedState::with_seed(11).hash_one((fields, record_key, type_bits));
        self.entries += 1;
        self.hashes = self.hashes.wrapping_add(hash);
    }
}

/// What was found out about one index.
struct IndexReport {
    index: Arc<Index>,
    expected: Sum,
    found: Sum,
    errors: Vec<String>,
}

struct Report {
    records: u64,
    invalid_documents: u64,
    indexes: Vec<IndexReport>,
    errors: Vec<String>,
    missing: Vec<DocBuf>,
    extra: Vec<DocBuf>,
    corrupt: Vec<DocBuf>,
}

impl Report {
    fn new(collection: &Collection) -> Self {
        let indexes = collection.indexes.iter().filter(|index| index.is_ready());
        Self {
            records: 0,
            invalid_documents: 0,
            indexes: indexes
                .map(|index| IndexReport {
                    index: index.clone(),
                    expected: Sum::default(),
                    found: Sum::default(),
                    errors: Vec::new(),
                })
                .collect(),
            errors: Vec::new(),
            missing: Vec::new(),
            extra: Vec::new(),
            corrupt: Vec::new(),
        }
    }

    fn check(
        &mut self,
        collection: &Collection,
        snapshot: &Snapshot,
        counter: Counter,
        operation: &Operation,
    ) -> Result<(), Error> {
        let mut bytes = 0;
        let records = snapshot.scan_records(collection.id, KeyRange::ALL, Direction::Forward);
        for (at, record) in records.enumerate() {
            if at % CHECK_INTERVAL == 0 {
                operation.check()?;
            }
            self.records += 1;
            match record {
                Ok(record) => {
                    bytes += record.document().len() as u64;
                    self.check_record(collection, record.key(), record.document());
                }
                Err(fault) => self.corrupt_record(&[], &fault.to_string()),
            }
        }
        if (counter.items, counter.bytes) != (self.records, bytes) {
            self.errors.push(format!(
                "the collection counts {} documents of {} bytes, but has {} of {bytes} bytes",
                counter.items, counter.bytes, self.records
            ));
        }
        for at in 0..self.indexes.len() {
            self.check_index(at, collection, snapshot, operation)?;
        }
        Ok(())
    }

    fn corrupt_record(&mut self, key: &[u8], why: &str) {
        self.invalid_documents += 1;
        if self.corrupt.len() < LISTED_MAX {
            let document = DocWriter::new()
                .with("recordKey", hexadecimal(key).as_str())
                .with("error", why)
                .finish();
            self.corrupt.push(document);
        }
    }

    fn check_record(&mut self, collection: &Collection, key: &[u8], document: &[u8]) {
        let doc = match Doc::from_bytes(document) {
            Ok(doc) => doc,
            Err(fault) => return self.corrupt_record(key, &fault.to_string()),
        };
        if doc.get("_id").is_none() {
            return self.corrupt_record(key, "the document has no _id");
        }
        let place = collection.record_key(doc);
        if place.is_ok_and(|place| place.as_bytes() != key) {
            return self.corrupt_record(key, "the document is not stored under its key");
        }
        for report in &mut self.indexes {
            if report.index.id.is_none() {
                report.expected.entries += 1;
                report.found.entries += 1;
                continue;
            }
            match report.index.definition.keys(doc) {
                Ok(keys) => {
                    if !report.index.multikey.contains_all(&keys.multikey) {
                        report.fail("a document has an array where the index knows of none");
                    }
                    for each in &keys.keys {
                        report.expected.add(&each.fields, key, &each.type_bits);
                    }
                }
                Err(error) => report.fail(&format!("a document has no keys: {}", error.message)),
            }
        }
    }

    fn check_index(
        &mut self,
        at: usize,
        collection: &Collection,
        snapshot: &Snapshot,
        operation: &Operation,
    ) -> Result<(), Error> {
        let report = &mut self.indexes[at];
        let Some(id) = report.index.id else {
            return Ok(());
        };
        // One that belongs to another shard may have the key of one that does not.
        let unique = report.index.is_unique() && !collection.may_hold_orphans();
        let mut previous: Vec<u8> = Vec::new();
        let entries = snapshot.scan_index(id, KeyRange::ALL, Direction::Forward);
        for (at, entry) in entries.enumerate() {
            if at % CHECK_INTERVAL == 0 {
                operation.check()?;
            }
            match entry {
                Ok(entry) => {
                    let fields = entry.fields();
                    if unique && at > 0 && previous == fields {
                        report.fail("two documents have the same key in a unique index");
                    }
                    previous.clear();
                    previous.extend_from_slice(fields);
                    report
                        .found
                        .add(fields, entry.record_key(), entry.type_bits());
                }
                Err(fault) => report.fail(&fault.to_string()),
            }
        }
        if report.found == report.expected {
            return Ok(());
        }
        let index = report.index.clone();
        let missing = self.list_missing(&index, id, collection, snapshot, operation)?;
        let extra = self.list_extra(&index, id, collection, snapshot, operation)?;
        let report = &mut self.indexes[at];
        if missing > 0 {
            report.fail(&format!("{missing} index entries are missing"));
        }
        if extra > 0 {
            report.fail(&format!("{extra} index entries have no document"));
        }
        Ok(())
    }

    /// Keys of documents that are not in the index.
    fn list_missing(
        &mut self,
        index: &Index,
        id: IndexId,
        collection: &Collection,
        snapshot: &Snapshot,
        operation: &Operation,
    ) -> Result<usize, Error> {
        let mut count = 0;
        let records = snapshot.scan_records(collection.id, KeyRange::ALL, Direction::Forward);
        for (at, record) in records.enumerate() {
            if at % CHECK_INTERVAL == 0 {
                operation.check()?;
            }
            let Ok(record) = record else { continue };
            let Ok(doc) = Doc::from_bytes(record.document()) else {
                continue;
            };
            let Ok(keys) = index.definition.keys(doc) else {
                continue;
            };
            for key in &keys.keys {
                let mut position = key.fields.clone();
                position.extend_from_slice(record.key());
                let bound = Bound::Included(&position[..]);
                let range = KeyRange::new(bound, bound);
                let found = snapshot.scan_index(id, range, Direction::Forward).next();
                let there = matches!(found, Some(Ok(entry)) if entry.type_bits() == key.type_bits);
                if !there {
                    count += 1;
                    let listed = describe(index, &key.fields, &key.type_bits, record.key());
                    list(&mut self.missing, listed);
                }
            }
        }
        Ok(count)
    }

    /// Entries whose document is gone or has other keys.
    fn list_extra(
        &mut self,
        index: &Index,
        id: IndexId,
        collection: &Collection,
        snapshot: &Snapshot,
        operation: &Operation,
    ) -> Result<usize, Error> {
        let mut count = 0;
        let entries = snapshot.scan_index(id, KeyRange::ALL, Direction::Forward);
        for (at, entry) in entries.enumerate() {
            if at % CHECK_INTERVAL == 0 {
                operation.check()?;
            }
            let Ok(entry) = entry else { continue };
            let record = snapshot
                .get(collection.id, entry.record_key())
                .map_err(crate::error::from_storage)?;
            let keys = record.as_ref().and_then(|record| {
                let doc = Doc::from_bytes(record.document()).ok()?;
                index.definition.keys(doc).ok()
            });
            let has = |keys: &query::index::DocumentKeys| {
                keys.keys
                    .iter()
                    .any(|key| key.fields == entry.fields() && key.type_bits == entry.type_bits())
            };
            if !keys.as_ref().is_some_and(has) {
                count += 1;
                let listed = describe(index, entry.fields(), entry.type_bits(), entry.record_key());
                list(&mut self.extra, listed);
            }
        }
        Ok(count)
    }

    fn is_valid(&self) -> bool {
        self.errors.is_empty()
            && self.invalid_documents == 0
            && self.indexes.iter().all(|report| report.errors.is_empty())
    }

    /// `time`: of the state that was looked at, if that is to be told.
    fn append_to(&self, writer: &mut DocWriter, metadata: bool, time: Option<ClusterTime>) {
        if !metadata {
            append_count(writer, "nInvalidDocuments", self.invalid_documents);
            writer.append("nNonCompliantDocuments", 0);
            append_count(writer, "nrecords", self.records);
            writer.append("nIndexes", self.indexes.len() as i32);
            let mut sorted: Vec<&IndexReport> = self.indexes.iter().collect();
            sorted.sort_by(|a, b| a.index.definition.name.cmp(&b.index.definition.name));
            writer.begin_document("keysPerIndex");
            for report in &sorted {
                append_count(writer, &report.index.definition.name, report.found.entries);
            }
            writer.end().begin_document("indexDetails");
            for report in &sorted {
                writer
                    .begin_document(&report.index.definition.name)
                    .append("valid", report.errors.is_empty());
                if !report.errors.is_empty() {
                    append_texts(writer, "errors", report.errors.iter());
                }
                writer.end();
            }
            writer.end();
        }
        writer
            .append("valid", self.is_valid())
            .append("repaired", false);
        if let Some(time) = time {
            writer.append("readTimestamp", time);
        }
        writer.begin_array("warnings").end();
        let of_indexes = self.indexes.iter().flat_map(|report| &report.errors);
        append_texts(writer, "errors", self.errors.iter().chain(of_indexes));
        for (name, documents) in [
            ("extraIndexEntries", &self.extra),
            ("missingIndexEntries", &self.missing),
            ("corruptRecords", &self.corrupt),
        ] {
            writer.begin_array(name);
            for document in documents {
                writer.push(document);
            }
            writer.end();
        }
    }
}

impl IndexReport {
    fn fail(&mut self, why: &str) {
        let text = format!("index {}: {why}", self.index.definition.name);
        if self.errors.len() < LISTED_MAX && !self.errors.contains(&text) {
            self.errors.push(text);
        }
    }
}

fn list(listed: &mut Vec<DocBuf>, document: DocBuf) {
    if listed.len() < LISTED_MAX {
        listed.push(document);
    }
}

fn append_texts<'a>(writer: &mut DocWriter, name: &str, texts: impl Iterator<Item = &'a String>) {
    writer.begin_array(name);
    for text in texts {
        writer.push(text.as_str());
    }
    writer.end();
}

fn describe(index: &Index, fields: &[u8], type_bits: &[u8], record_key: &[u8]) -> DocBuf {
    let directions = index.definition.directions();
    let bits = TypeBits::from_bytes(type_bits);
    let values = model::key::decode(fields, &bits, &directions).unwrap_or_default();
    let mut writer = DocWriter::new();
    writer
        .append("indexName", index.definition.name.as_str())
        .append("recordKey", hexadecimal(record_key).as_str())
        .begin_document("indexKey");
    for (value, field) in values.iter().zip(&index.definition.fields) {
        writer.append(field.path.as_str(), value);
    }
    writer.end();
    writer.finish()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
