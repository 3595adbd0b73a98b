//! Outcomes of the statements of a write command, and the reply they make.

use super::{Answer, Invocation, finish};
use crate::broadcast::LeftBehind;
use crate::replica_set::election_id;
use model::bson::{DocWriter, Value};
use model::{Code, Error};
use wire::Reply;

/// Statements that one command may have.
pub(crate) const BATCH_MAX: usize = 100_000;
/// A reply stops listing error texts beyond this.
const ERROR_TEXTS_BYTES_MAX: usize = 1024 * 1024;

pub(crate) fn is_batch_size(count: usize) -> Result<(), Error> {
    if (1..=BATCH_MAX).contains(&count) {
        return Ok(());
    }
    Err(Error::new(
        Code::INVALID_LENGTH,
        format!("Write batch sizes must be between 1 and {BATCH_MAX}. Got {count} operations."),
    ))
}

/// What became of the statements so far.
pub(crate) struct Statements {
    ordered: bool,
    count: i64,
    modified: Option<i64>,
    upserted: Vec<(usize, Value)>,
    errors: Vec<(usize, Error)>,
    /// Statements that were answered from history.
    retried: Vec<i32>,
    /// Of a write over several shards, what others have to do.
    left: Option<Box<LeftBehind>>,
}

impl Statements {
    pub(crate) fn new(ordered: bool) -> Self {
        Self {
            ordered,
            count: 0,
            modified: None,
            upserted: Vec::new(),
            errors: Vec::new(),
            retried: Vec::new(),
            left: None,
        }
    }

    pub(crate) fn left_behind(&mut self, left: Option<Box<LeftBehind>>) {
        self.left = left;
    }

    /// Whether the batch left everything as it was.
    pub(crate) fn changed_nothing(&self) -> bool {
        self.modified.unwrap_or(self.count) == 0 && self.upserted.is_empty()
    }

    pub(crate) fn ordered(&self) -> bool {
        self.ordered
    }

    /// Whether an ordered batch has failed.
    pub(crate) fn is_over(&self) -> bool {
        self.ordered && !self.errors.is_empty()
    }

    /// Whether a batch comes to a statement before it is over.
    pub(crate) fn is_reached(&self, index: usize) -> bool {
        !self.ordered || self.errors.iter().all(|(failed, _)| index < *failed)
    }

    pub(crate) fn succeeded(&mut self, count: i64) {
        self.count += count;
    }

    pub(crate) fn modified(&mut self, count: i64) {
        *self.modified.get_or_insert(0) += count;
    }

    pub(crate) fn upserted(&mut self, index: usize, id: Value) {
        self.upserted.push((index, id));
    }

    /// A statement that was executed before.
    pub(crate) fn retried(&mut self, statement: i32) {
        self.count += 1;
        self.retried.push(statement);
    }

    /// Documents that this attempt changed.
    pub(crate) fn newly(&self) -> i64 {
        self.count - self.retried.len() as i64
    }

    /// Documents that this attempt inserted, or failed to.
    pub(crate) fn tried_inserts(&self) -> usize {
        self.newly() as usize + self.errors.len()
    }

    /// Leaves nothing to tell.
    fn forget(&mut self) {
        self.count = 0;
        self.modified = self.modified.map(|_| 0);
        self.upserted.clear();
        self.errors.clear();
        self.retried.clear();
    }

    /// All statements fail for the same reason, of an ordered batch the first.
    pub(crate) fn all_failed(&mut self, statements: usize, error: &Error) {
        let failed = if self.ordered { 1 } else { statements };
        for index in 0..failed.min(statements) {
            self.failed(index, error.clone());
        }
    }

    pub(crate) fn failed(&mut self, index: usize, error: Error) {
        self.errors.push((index, error));
    }
}

/// The reply of `insert`, `update` and `delete`.
pub(crate) struct WriteReply(Statements);

impl From<Statements> for WriteReply {
    fn from(statements: Statements) -> Self {
        Self(statements)
    }
}

impl WriteReply {
    pub(crate) fn finish(self, invocation: &Invocation<'_>) -> Answer {
        let mut statements = self.0;
        let acknowledged = invocation.envelope.acknowledged;
        if !acknowledged {
            statements.forget();
        }
        statements.errors.sort_by_key(|(index, _)| *index);
        let mut writer = Reply::writer();
        writer.append("n", count(statements.count));
        if acknowledged {
            let term = invocation.shard.log.term();
            writer
                .append("electionId", election_id(term))
                .begin_document("opTime")
                .append("ts", invocation.shard.store.applied_time())
                .append("t", i64::try_from(term.get()).unwrap_or(i64::MAX))
                .end();
        }
        append_errors(&mut writer, &statements.errors);
        if !statements.retried.is_empty() {
            writer.begin_array("retriedStmtIds");
            for statement in &statements.retried {
                writer.push(*statement);
            }
            writer.end();
        }
        if !statements.upserted.is_empty() {
            writer.begin_array("upserted");
            for (index, id) in &statements.upserted {
                writer
                    .push_document()
                    .append("index", *index as i32)
                    .append("_id", id)
                    .end();
            }
            writer.end();
        }
        if let Some(modified) = statements.modified {
            writer.append("nModified", count(modified));
        }
        if let Some(left) = &statements.left {
            writer.append("broadcast", &left.to_document());
        }
        finish(writer)
    }
}

fn count(count: i64) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn append_errors(writer: &mut DocWriter, errors: &[(usize, Error)]) {
    if errors.is_empty() {
        return;
    }
    let mut text_bytes = 0;
    writer.begin_array("writeErrors");
    for (index, error) in errors {
        text_bytes += error.message.len();
        let text = if text_bytes <= ERROR_TEXTS_BYTES_MAX {
            error.message.as_str()
        } else {
            ""
        };
        writer
            .push_document()
            .append("index", *index as i32)
            .append("code", error.code.0)
            .append("errmsg", text);
        match (&error.details, error.code) {
            (Some(details), Code::STALE_CONFIG | Code::STALE_DB_VERSION) => {
                writer.append("errInfo", &**details);
            }
            (Some(details), _) => {
                for element in details.iter() {
                    writer.append_element(&element);
                }
            }
            (None, _) => {}
        }
        writer.end();
    }
    writer.end();
}
