//! Reading documents: the queries that a verification consists of.
//!
//! Every one of them carries the read concern, and waits for the cluster time that is known of its
//! side. What is read is either whole documents, or what stands for them in a comparison: their
//! `_id`s alone, or a hash that the server made of each, with its size.

use crate::cluster::Cluster;
use crate::element::{Malformed, ValueRef, Writer};
use crate::error::VerifyError;
use crate::merge::Batch;
use crate::namespace::Namespace;
use bson::{Document, RawDocumentBuf, doc};
use futures_util::StreamExt;
use mongodb::error::Error as DriverError;
use mongodb::options::SelectionCriteria;
use mongodb::raw_batch_cursor::{RawBatch, RawBatchCursor};

/// What is read of documents in order of `_id`.
#[derive(Debug, Clone, PartialEq)]
pub enum Reading {
    Whole,
    Ids,
    /// The result of this expression over each document, and the document's size.
    Hashes(Document),
}

/// What is read of documents in their stored order.
pub enum Natural<'a> {
    /// Whole documents, without record ids.
    Whole,
    /// Whole documents with their record ids, behind this one or all of them, as
    /// `{d: document, r: record id}`. (`showRecordId` would replace a field `$recordId` of the
    /// document, and costs a server as much.)
    Records { after: Option<ValueRef<'a>> },
    /// `_id` and record id: of those that the filter samples, or of the last document.
    Ids { sampled: bool },
}

/// The fields of a document that is sent with its record id.
pub const SENT_DOCUMENT: &str = "d";
pub const SENT_RECORD: &str = "r";

fn hashing_stages(filter: &[u8], by_id: &[u8], hash: &Document) -> Vec<Vec<u8>> {
    let stage = |name: &str, document: &[u8]| {
        let mut stage = Writer::new();
        stage.document(name, document);
        stage.finish()
    };
    let project = doc! {"_id": 1, "h": hash, "s": {"$bsonSize": "$$ROOT"}};
    let project = project.to_vec().expect("a document of ours");
    vec![
        stage("$match", filter),
        stage("$sort", by_id),
        stage("$project", &project),
    ]
}

/// A reply that is held while its documents are looked at.
struct Reply(RawBatch);

impl AsRef<[u8]> for Reply {
    fn as_ref(&self) -> &[u8] {
        self.0.as_raw_document().as_bytes()
    }
}

/// The batches of a running query.
pub struct Documents {
    cluster: Cluster,
    action: String,
    cursor: RawBatchCursor,
}

impl Documents {
    pub async fn next(&mut self) -> Result<Option<Batch>, VerifyError> {
        match self.cursor.next().await {
            None => Ok(None),
            Some(Err(error)) => Err(self.cluster.failed(&self.action, &error)),
            Some(Ok(reply)) => Batch::of_reply(Box::new(Reply(reply)))
                .map(Some)
                .map_err(|Malformed| self.cluster.malformed(&self.action)),
        }
    }
}

impl Cluster {
    /// Documents in order of `_id`, or what stands for them.
    pub async fn find_sorted(
        &self,
        namespace: &Namespace,
        filter: &[u8],
        batch_documents: u64,
        reading: &Reading,
    ) -> Result<Documents, VerifyError> {
        let mut by_id = Writer::new();
        by_id.int32("_id", 1);
        let by_id = by_id.finish();
        let action = format!("read {namespace}");
        if let Reading::Hashes(hash) = reading {
            let stages = hashing_stages(filter, &by_id, hash);
            return self
                .pipeline(namespace, &stages, batch_documents, action)
                .await;
        }
        let mut command = Writer::new();
        command
            .text("find", &namespace.collection)
            .document("filter", filter)
            .document("sort", &by_id);
        if *reading == Reading::Ids {
            // Answered by the index alone.
            command.document("projection", &by_id);
        }
        self.finish_find(&mut command, batch_documents);
        self.query(namespace, command, batch_documents, action)
            .await
    }

    /// Documents in order of some field.
    pub async fn find_by(
        &self,
        namespace: &Namespace,
        filter: &[u8],
        field: &str,
        batch_documents: u64,
    ) -> Result<Documents, VerifyError> {
        let mut sort = Writer::new();
        sort.int32(field, 1);
        let mut command = Writer::new();
        command
            .text("find", &namespace.collection)
            .document("filter", filter)
            .document("sort", &sort.finish());
        self.finish_find(&mut command, batch_documents);
        let action = format!("read {namespace}");
        self.query(namespace, command, batch_documents, action)
            .await
    }

    fn finish_find(&self, command: &mut Writer, batch_documents: u64) {
        let batch = i32::try_from(batch_documents).unwrap_or(i32::MAX);
        command.int32("batchSize", batch);
        // Without an index on `_id` (old capped collections) the sort may need a disk.
        if self.has_sample_rate {
            command.boolean("allowDiskUse", true);
        }
    }

    /// Documents in the order in which they are stored, each with its record's id if `wanted`
    /// says so.
    pub async fn find_natural(
        &self,
        namespace: &Namespace,
        filter: &[u8],
        batch_documents: u64,
        wanted: &Natural<'_>,
    ) -> Result<Documents, DriverError> {
        let along = |direction: i32| {
            let mut natural = Writer::new();
            natural.int32("$natural", direction);
            natural.finish()
        };
        let mut command = Writer::new();
        command
            .text("find", &namespace.collection)
            .document("filter", filter);
        match wanted {
            Natural::Whole | Natural::Records { .. } | Natural::Ids { sampled: true } => {
                command.document("hint", &along(1));
            }
            Natural::Ids { sampled: false } => {
                command.document("sort", &along(-1)).int32("limit", 1);
            }
        }
        if let Natural::Ids { .. } = wanted {
            let mut only_id = Writer::new();
            only_id.int32("_id", 1);
            command
                .document("projection", &only_id.finish())
                .boolean("showRecordId", true);
        }
        if let Natural::Records { after } = wanted {
            let mut record = Writer::new();
            record.text("$meta", "recordId");
            let mut wrapped = Writer::new();
            wrapped
                .int32("_id", 0)
                .text(SENT_DOCUMENT, "$$ROOT")
                .document(SENT_RECORD, &record.finish());
            command
                .document("projection", &wrapped.finish())
                .boolean("$_requestResumeToken", true);
            if let Some(after) = after {
                let mut token = Writer::new();
                token.value("$recordId", *after);
                let option = match self.has_start_at {
                    true => "$_startAt",
                    false => "$_resumeAfter",
                };
                command.document(option, &token.finish());
            }
        }
        let action = format!("read {namespace} in its stored order");
        self.try_query(namespace, command, batch_documents, &action)
            .await
    }

    /// Documents in any order, about as many as said.
    pub async fn find(
        &self,
        namespace: &Namespace,
        filter: &[u8],
        documents: usize,
    ) -> Result<Documents, VerifyError> {
        // One more than there are, so that the first reply says that it is the last.
        let batch_documents = documents as u64 + 1;
        let mut command = Writer::new();
        command
            .text("find", &namespace.collection)
            .document("filter", filter)
            .int32(
                "batchSize",
                i32::try_from(batch_documents).unwrap_or(i32::MAX),
            );
        let action = format!("look up documents of {namespace}");
        self.query(namespace, command, batch_documents, action)
            .await
    }

    /// Runs a pipeline whose results are `{_id: …}`.
    pub async fn aggregate(
        &self,
        namespace: &Namespace,
        stages: &[Document],
    ) -> Result<Documents, VerifyError> {
        let action = format!("sample {namespace}");
        let stages: Result<Vec<Vec<u8>>, _> = stages.iter().map(Document::to_vec).collect();
        let stages = stages.map_err(|_| self.malformed(&action))?;
        self.pipeline(namespace, &stages, 0, action).await
    }

    async fn pipeline(
        &self,
        namespace: &Namespace,
        stages: &[Vec<u8>],
        batch_documents: u64,
        action: String,
    ) -> Result<Documents, VerifyError> {
        let mut cursor = Writer::new();
        if batch_documents > 0 {
            let batch = i32::try_from(batch_documents).unwrap_or(i32::MAX);
            cursor.int32("batchSize", batch);
        }
        let mut command = Writer::new();
        command
            .text("aggregate", &namespace.collection)
            .documents("pipeline", stages)
            .document("cursor", &cursor.finish())
            .boolean("allowDiskUse", true);
        self.query(namespace, command, batch_documents, action)
            .await
    }

    async fn query(
        &self,
        namespace: &Namespace,
        command: Writer,
        batch_documents: u64,
        action: String,
    ) -> Result<Documents, VerifyError> {
        self.try_query(namespace, command, batch_documents, &action)
            .await
            .map_err(|error| self.failed(&action, &error))
    }

    /// As [`Cluster::query`], for whoever looks at the server's error.
    async fn try_query(
        &self,
        namespace: &Namespace,
        mut command: Writer,
        batch_documents: u64,
        action: &str,
    ) -> Result<Documents, DriverError> {
        let mut concern = Writer::new();
        concern.text("level", &self.read_concern);
        // The other levels do not take a time.
        if let (Some(time), "majority" | "local") =
            (self.reads_after.get(), self.read_concern.as_str())
        {
            concern.timestamp("afterClusterTime", time.timestamp());
        }
        command.document("readConcern", &concern.finish());
        let command = RawDocumentBuf::from_bytes(command.finish())
            .expect("what the writer wrote is a document");
        let batch = u32::try_from(batch_documents).unwrap_or(u32::MAX);
        self.open(&namespace.database, command, batch, action).await
    }

    /// Runs a command that answers with a cursor; a batch of 0 is the server's choice.
    pub(crate) async fn open(
        &self,
        database: &str,
        command: RawDocumentBuf,
        batch_documents: u32,
        action: &str,
    ) -> Result<Documents, DriverError> {
        let from = self.reads_from.clone();
        self.open_at(database, command, batch_documents, action, from)
            .await
    }

    /// As [`Cluster::open`], at such a member.
    pub(crate) async fn open_at(
        &self,
        database: &str,
        command: RawDocumentBuf,
        batch_documents: u32,
        action: &str,
        from: SelectionCriteria,
    ) -> Result<Documents, DriverError> {
        let database = self.client.database(database);
        let mut request = database
            .run_raw_cursor_command(command)
            .selection_criteria(from);
        if batch_documents > 0 {
            request = request.batch_size(batch_documents);
        }
        Ok(Documents {
            cluster: self.clone(),
            action: action.to_owned(),
            cursor: request.batch().await?,
        })
    }
}
