//! Results that count as a whole, kept until all of them are there.
//!
//! A router merges groups of several shards only when every stream has ended: until then a stream can begin anew,
//! elsewhere or with other ranges, and what it had given counts for nothing. So all that shards have made is kept
//! here for a while, and it may be more than memory holds:
//!
//! ```text
//!   reply ─► memory ──────────────────────────────────────────► delivered, least sort key first
//!              │ the command's replies weigh more than             ▲
//!              │ `memory_bytes_max`                                │
//!              └─► the stream's file: what it has, and all after ──┘
//! ```
//!
//! - ⚑ **Memory is bounded**: by the limit for each command, and one reply of each stream that is on its way. A
//!   stream that has ended below the limit keeps what it has in memory, and makes the others write.
//! - **One file for each stream**, however often it is written to. Records keep the order in which they came, with
//!   the sort key of each, so that sorted streams are merged from files as from memory.
//! - **Nothing is left behind**: a file has no name (`spill.rs`), and goes with the stream or the scan that is
//!   dropped, whatever the reason.
//!
//! A command that may not use the disk fails with MongoDB's error instead. Writing does not hold up the runtime's
//! threads; reading happens where merging halves run.

use super::ElasticScan;
use super::asking::{Answered, Ask, Asker};
use super::piece::Piece;
use crate::failure::Failure;
use crate::merge::{Batch, kill_cursor};
use crate::spill::spill;
use cluster::scan::{Entry, Question};
use model::bson::{Doc, DocBuf};
use model::error::{Code, Error};
use parking_lot::Mutex;
use query::pipeline::memory::exceeded;
use query::sort::{Run, RunWriter, SpilledRecord};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What the streams of one command may keep, and where the rest goes.
#[derive(Default)]
pub(crate) struct PartialRoom {
    bytes: AtomicUsize,
    /// `None`: as much as comes.
    bytes_max: Option<usize>,
    /// `None`: nothing may leave memory.
    scratch: Option<PathBuf>,
}

impl PartialRoom {
    pub(crate) fn new(bytes_max: usize, scratch: Option<PathBuf>) -> Arc<PartialRoom> {
        Arc::new(PartialRoom {
            bytes: AtomicUsize::new(0),
            bytes_max: Some(bytes_max),
            scratch,
        })
    }

    fn is_full(&self) -> bool {
        let bytes = self.bytes.load(Ordering::Relaxed);
        self.bytes_max.is_some_and(|bytes_max| bytes > bytes_max)
    }
}

/// What one stream has given so far.
struct Kept {
    room: Arc<PartialRoom>,
    memory: Vec<Entry<Piece>>,
    /// What that weighs.
    bytes: usize,
    /// What came before it.
    file: Option<Box<dyn RunWriter>>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.room.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Kept {
    fn new(room: &Arc<PartialRoom>) -> Kept {
        Kept {
            room: room.clone(),
            memory: Vec::new(),
            bytes: 0,
            file: None,
        }
    }

    /// Takes a reply, and leaves memory if there is no room for it.
    async fn take(&mut self, entries: Vec<Entry<Piece>>) -> Result<(), Error> {
        let weight = |entry: &Entry<Piece>| {
            entry.value.document().len() + entry.sort.len() + size_of::<Entry<Piece>>()
        };
        let bytes: usize = entries.iter().map(weight).sum();
        self.bytes += bytes;
        self.room.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.memory.extend(entries);
        match self.room.is_full() && !self.memory.is_empty() {
            true => self.leave_memory().await,
            false => Ok(()),
        }
    }

    async fn leave_memory(&mut self) -> Result<(), Error> {
        let directory = self.room.scratch.clone();
        let directory = directory.ok_or_else(|| exceeded("$group"))?;
        let (file, entries) = (self.file.take(), std::mem::take(&mut self.memory));
        let written = blocking(move || {
            let mut file = match file {
                Some(file) => file,
                None => spill(directory).begin_run()?,
            };
            for entry in &entries {
                file.append(&entry.sort, entry.value.document().as_bytes())?;
            }
            Ok(file)
        });
        self.file = Some(written.await?);
        let bytes = std::mem::take(&mut self.bytes);
        self.room.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// What is on disk, and what comes behind it. The room stays taken for as long as the scan lives.
    async fn finish(mut self) -> Result<(Option<Box<dyn Run>>, Vec<Entry<Piece>>), Error> {
        let run = match self.file.take() {
            Some(file) => Some(blocking(move || file.finish()).await?),
            None => None,
        };
        self.bytes = 0;
        Ok((run, std::mem::take(&mut self.memory)))
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.map_err(|error| {
        let message = format!("partial results could not be written: {error}");
        Error::new(Code::INTERNAL_ERROR, message)
    })?
}

impl Asker {
    /// Asks on until a stream has given all that it has.
    pub(super) async fn gather(
        &self,
        question: &Question,
        mut all: Box<Answered>,
    ) -> Result<Ask, Failure> {
        let mut kept = Kept::new(&self.room);
        let mut entries = std::mem::take(&mut all.entries);
        loop {
            let cursor = all.cursor.take().filter(|_| !all.ended);
            if let Err(error) = kept.take(entries).await {
                if let Some(cursor) = cursor {
                    let namespace = self.command.namespace.as_str();
                    kill_cursor(&*cursor.member, namespace, cursor.id).await;
                }
                return Err(error.into());
            }
            let Some(cursor) = cursor else {
                break;
            };
            match self.go_on(question, cursor).await? {
                Ask::Answered(more) => {
                    entries = more.entries;
                    all.times.extend(more.times);
                    all.ended = more.ended;
                    all.cursor = more.cursor;
                }
                // What came so far counts for nothing.
                other => return Ok(other),
            }
        }
        all.place = None;
        (all.run, all.entries) = kept.finish().await?;
        Ok(Ask::Answered(all))
    }
}

/// A stream's file that is being read.
pub(super) struct Spilled {
    /// Read by one at a time; the lock only says so to those who share the scan.
    run: Mutex<Box<dyn Run>>,
    next: SpilledRecord,
}

impl Spilled {
    /// `None` if nothing is in it.
    fn new(mut run: Box<dyn Run>) -> Result<Option<Spilled>, Error> {
        let next = run.next()?;
        let run = Mutex::new(run);
        Ok(next.map(|next| Spilled { run, next }))
    }

    fn document(&self) -> Result<Doc<'_>, Error> {
        // The bytes come from a disk, so they are checked.
        Doc::from_bytes(&self.next.payload).map_err(|error| {
            let message = format!("a partial result cannot be read back: {error}");
            Error::new(Code::INTERNAL_ERROR, message)
        })
    }
}

impl ElasticScan {
    /// Takes what a stream has left on disk.
    pub(super) fn take_run(&mut self, run: Option<Box<dyn Run>>) -> Result<(), Error> {
        if let Some(run) = run {
            self.spilled.extend(Spilled::new(run)?);
            self.router.scans.spilled.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether results are on disk, and all of them are there.
    pub(super) fn reads_from_disk(&mut self) -> bool {
        let is_there =
            |scan: &mut cluster::scan::Scan<Piece>| scan.peek().is_some() || scan.has_ended();
        !self.spilled.is_empty() && is_there(&mut self.scan)
    }

    /// The file whose next record comes before all others, also those in memory.
    fn least_spilled(&mut self) -> Option<usize> {
        let files = self.spilled.iter().enumerate();
        let (at, least) = files.min_by(|(_, a), (_, b)| a.next.key.cmp(&b.next.key))?;
        let in_memory = self.scan.peek();
        let is_first = in_memory.is_none_or(|entry| least.next.key <= entry.sort);
        is_first.then_some(at)
    }

    /// Goes to the next record of a file.
    fn advance(&mut self, at: usize) -> Result<DocBuf, Error> {
        let taken = self.spilled[at].document()?.to_owned();
        self.begun = true;
        match self.spilled[at].run.get_mut().next()? {
            Some(next) => self.spilled[at].next = next,
            None => drop(self.spilled.remove(at)),
        }
        Ok(taken)
    }

    /// The next result, while some are on disk.
    pub(super) fn next_with_disk(&mut self) -> Result<Option<Piece>, Error> {
        match self.least_spilled() {
            Some(at) => Ok(Some(Piece::of(self.advance(at)?.as_doc()))),
            None => Ok(self.arrived_in_memory()),
        }
    }

    /// Fills a batch, while some results are on disk; `None` if none are any more.
    pub(super) fn fill_with_disk(&mut self, batch: &mut Batch) -> Result<Option<bool>, Failure> {
        while !self.spilled.is_empty() {
            if batch.is_full() {
                return Ok(Some(false));
            }
            let least = self.least_spilled();
            let taken = match (least, self.scan.peek()) {
                (Some(at), _) => batch.offer(self.spilled[at].document()?),
                (None, Some(entry)) => batch.offer(entry.value.document()),
                (None, None) => return Ok(Some(true)),
            };
            match least {
                _ if !taken => return Ok(Some(false)),
                Some(at) => drop(self.advance(at)?),
                None => drop(self.arrived_in_memory()),
            }
        }
        Ok(None)
    }
}
