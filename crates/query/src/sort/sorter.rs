//! Sorts documents in bounded memory.
//!
//! ```text
//!   push ──► entries in memory ──(full)──► sorted run, through `Spill`
//!               │ finish                        │
//!               ▼                               ▼
//!            sorted, kept in memory ──────► merge ──► documents in order
//! ```
//!
//! Every key carries the number of its arrival behind it, so that no two keys
//! are equal and documents that sort alike stay in the order in which they came;
//! comparing two entries is comparing bytes. This is sound because the encoding
//! of a value is never a prefix of another's.
//!
//! With a limit only the best so many are kept, in a heap whose top is the worst
//! of them.
//!
//! Where runs are kept is not known here: [`Spill`] is implemented with files by
//! whoever runs the sort. Without one, running out of memory is MongoDB's error.

use super::SortPattern;
use model::bson::DocBuf;
use model::{Code, Error};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Takes runs of records that do not fit into memory.
pub trait Spill: Send {
    /// Begins a run. What is written is discarded when it is dropped.
    fn begin_run(&mut self) -> Result<Box<dyn RunWriter>, Error>;

    /// Stores records in the order in which they come, and says how to read them back.
    fn write_run(
        &mut self,
        records: &mut dyn Iterator<Item = (&[u8], &[u8])>,
    ) -> Result<Box<dyn Run>, Error> {
        let mut run = self.begin_run()?;
        for (key, payload) in records {
            run.append(key, payload)?;
        }
        run.finish()
    }
}

/// A run that is still being written.
pub trait RunWriter: Send {
    fn append(&mut self, key: &[u8], payload: &[u8]) -> Result<(), Error>;

    /// Says how to read it.
    fn finish(self: Box<Self>) -> Result<Box<dyn Run>, Error>;
}

/// A stored run, read from its first record on.
pub trait Run: Send {
    fn next(&mut self) -> Result<Option<SpilledRecord>, Error>;
}

/// One record of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpilledRecord {
    pub key: Vec<u8>,
    pub payload: Vec<u8>,
}

/// Ordered by key alone; keys are unique within one sort.
struct Entry {
    key: Vec<u8>,
    document: DocBuf,
}

impl Entry {
    /// What the entry takes in memory.
    fn bytes(&self) -> usize {
        self.key.len() + self.document.as_bytes().len() + size_of::<Entry>()
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

/// Collects documents and returns them in order.
pub struct Sorter {
    pattern: SortPattern,
    limit: Option<usize>,
    memory_bytes_max: usize,
    spill: Option<Box<dyn Spill>>,
    entries: Entries,
    memory_bytes: usize,
    arrivals: u64,
    runs: Vec<Box<dyn Run>>,
}

enum Entries {
    All(Vec<Entry>),
    /// The worst on top.
    Best(BinaryHeap<Entry>),
}

impl Entries {
    fn new(limit: Option<usize>) -> Self {
        match limit {
            None => Entries::All(Vec::new()),
            Some(_) => Entries::Best(BinaryHeap::new()),
        }
    }

    fn into_sorted(self) -> Vec<Entry> {
        match self {
            Entries::All(mut all) => {
                all.sort_unstable();
                all
            }
            Entries::Best(best) => best.into_sorted_vec(),
        }
    }
}

impl Sorter {
    /// What MongoDB lets a sort take before it spills.
    pub const MEMORY_BYTES_MAX: usize = 100 * 1024 * 1024;

    /// Sorts everything, or the first `limit` documents.
    pub fn new(pattern: SortPattern, limit: Option<usize>) -> Self {
        Self {
            pattern,
            limit,
            memory_bytes_max: Self::MEMORY_BYTES_MAX,
            spill: None,
            entries: Entries::new(limit),
            memory_bytes: 0,
            arrivals: 0,
            runs: Vec::new(),
        }
    }

    /// Sorts by keys of the caller's alone, see [`Self::push_with_key`].
    pub fn by_keys(limit: Option<usize>) -> Self {
        Self::new(SortPattern::default(), limit)
    }

    /// Whether a document with this key may be among the first `limit`. Who asks
    /// first need not copy the others.
    pub fn wants(&self, key: &[u8]) -> bool {
        match (&self.entries, self.limit) {
            (Entries::Best(best), Some(limit)) if best.len() >= limit => {
                best.peek().is_some_and(|worst| key < worst.key.as_slice())
            }
            _ => true,
        }
    }

    /// Allows to leave memory.
    pub fn with_spill(mut self, spill: Box<dyn Spill>) -> Self {
        self.spill = Some(spill);
        self
    }

    pub fn with_memory_limit(mut self, bytes: usize) -> Self {
        self.memory_bytes_max = bytes;
        self
    }

    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Whether any part of this sort has left memory.
    pub fn has_spilled(&self) -> bool {
        !self.runs.is_empty()
    }

    pub fn push(&mut self, document: DocBuf) -> Result<(), Error> {
        let mut key = Vec::new();
        self.pattern.key_into(document.as_doc(), &mut key)?;
        self.push_with_key(key, document)
    }

    /// Sorts a document by a key of the caller's, whatever the pattern says. No
    /// key may be a prefix of another.
    pub fn push_with_key(&mut self, mut key: Vec<u8>, document: DocBuf) -> Result<(), Error> {
        key.extend_from_slice(&self.arrivals.to_be_bytes());
        self.arrivals += 1;
        self.keep(Entry { key, document });
        if self.memory_bytes > self.memory_bytes_max {
            self.spill_entries()?;
        }
        Ok(())
    }

    fn keep(&mut self, entry: Entry) {
        match (&mut self.entries, self.limit) {
            (Entries::Best(best), Some(limit)) if best.len() >= limit => {
                if let Some(mut worst) = best.peek_mut()
                    && entry < *worst
                {
                    self.memory_bytes += entry.bytes();
                    self.memory_bytes -= worst.bytes();
                    *worst = entry;
                }
            }
            (Entries::Best(best), _) => {
                self.memory_bytes += entry.bytes();
                best.push(entry);
            }
            (Entries::All(all), _) => {
                self.memory_bytes += entry.bytes();
                all.push(entry);
            }
        }
    }

    fn spill_entries(&mut self) -> Result<(), Error> {
        let Some(spill) = &mut self.spill else {
            return Err(Error::new(
                Code::QUERY_EXCEEDED_MEMORY_LIMIT_NO_DISK_USE_ALLOWED,
                format!(
                    "Sort exceeded memory limit of {} bytes, but did not opt in to external \
                     sorting.",
                    self.memory_bytes_max
                ),
            ));
        };
        let entries = std::mem::replace(&mut self.entries, Entries::new(self.limit));
        let sorted = entries.into_sorted();
        let mut records = sorted
            .iter()
            .map(|entry| (entry.key.as_slice(), entry.document.as_bytes()));
        self.runs.push(spill.write_run(&mut records)?);
        self.memory_bytes = 0;
        Ok(())
    }

    /// Ends the input.
    pub fn finish(self) -> Result<Sorted, Error> {
        let mut sources: Vec<Source> = self.runs.into_iter().map(Source::Spilled).collect();
        sources.push(Source::Memory(self.entries.into_sorted().into_iter()));
        let mut sorted = Sorted {
            heads: BinaryHeap::with_capacity(sources.len()),
            sources,
            remaining: self.limit.unwrap_or(usize::MAX),
        };
        for source in 0..sorted.sources.len() {
            sorted.refill(source)?;
        }
        Ok(sorted)
    }
}

enum Source {
    Memory(std::vec::IntoIter<Entry>),
    Spilled(Box<dyn Run>),
}

impl Source {
    fn next(&mut self) -> Result<Option<Entry>, Error> {
        match self {
            Source::Memory(entries) => Ok(entries.next()),
            Source::Spilled(run) => match run.next()? {
                None => Ok(None),
                Some(record) => Ok(Some(Entry {
                    key: record.key,
                    // The bytes come from a disk, so they are checked.
                    document: DocBuf::from_bytes(record.payload).map_err(|error| {
                        Error::new(
                            Code::INTERNAL_ERROR,
                            format!("a spilled document cannot be read back: {error}"),
                        )
                    })?,
                })),
            },
        }
    }
}

/// The documents in order.
pub struct Sorted {
    sources: Vec<Source>,
    /// The next entry of each source that has one; the least on top.
    heads: BinaryHeap<Reverse<(Entry, usize)>>,
    remaining: usize,
}

impl Sorted {
    fn refill(&mut self, source: usize) -> Result<(), Error> {
        if let Some(entry) = self.sources[source].next()? {
            self.heads.push(Reverse((entry, source)));
        }
        Ok(())
    }

    /// The next document with the key it is sorted by.
    pub fn next_with_key(&mut self) -> Result<Option<(Vec<u8>, DocBuf)>, Error> {
        Ok(self.advance()?.map(|Entry { mut key, document }| {
            // Behind it is when it came.
            key.truncate(key.len().saturating_sub(size_of::<u64>()));
            (key, document)
        }))
    }

    fn advance(&mut self) -> Result<Option<Entry>, Error> {
        if self.remaining == 0 {
            return Ok(None);
        }
        let Some(Reverse((entry, source))) = self.heads.pop() else {
            return Ok(None);
        };
        self.remaining -= 1;
        self.refill(source)?;
        Ok(Some(entry))
    }
}

impl Iterator for Sorted {
    type Item = Result<DocBuf, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.advance();
        next.map(|entry| entry.map(|entry| entry.document))
            .transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::bson::DocWriter;

    /// Runs kept in memory, where a file would be.
    #[derive(Default)]
    struct MemorySpill;

    #[derive(Default)]
    struct MemoryRun(std::collections::VecDeque<SpilledRecord>);

    impl Spill for MemorySpill {
        fn begin_run(&mut self) -> Result<Box<dyn RunWriter>, Error> {
            Ok(Box::<MemoryRun>::default())
        }
    }

    impl RunWriter for MemoryRun {
        fn append(&mut self, key: &[u8], payload: &[u8]) -> Result<(), Error> {
            self.0.push_back(SpilledRecord {
                key: key.to_vec(),
                payload: payload.to_vec(),
            });
            Ok(())
        }

        fn finish(self: Box<Self>) -> Result<Box<dyn Run>, Error> {
            Ok(self)
        }
    }

    impl Run for MemoryRun {
        fn next(&mut self) -> Result<Option<SpilledRecord>, Error> {
            Ok(self.0.pop_front())
        }
    }

    fn pattern() -> SortPattern {
        SortPattern::parse(DocWriter::new().with("k", -1).finish().as_doc()).unwrap()
    }

    /// Few keys and many documents, so that stability shows.
    fn documents(count: i32) -> Vec<DocBuf> {
        (0..count)
            .map(|at| {
                DocWriter::new()
                    .with("_id", at)
                    .with("k", (at * 7919) % 13)
                    .finish()
            })
            .collect()
    }

    fn check(count: i32, limit: Option<usize>, memory_bytes: usize) {
        let mut expected = documents(count);
        expected.sort_by_key(|doc| match doc.get("k") {
            Some(model::bson::ValueRef::Int32(k)) => Reverse(k),
            other => panic!("k is an int32: {other:?}"),
        });
        expected.truncate(limit.unwrap_or(usize::MAX));

        let mut sorter = Sorter::new(pattern(), limit)
            .with_spill(Box::new(MemorySpill))
            .with_memory_limit(memory_bytes);
        for doc in documents(count) {
            sorter.push(doc).unwrap();
        }
        let sorted: Vec<DocBuf> = sorter.finish().unwrap().map(Result::unwrap).collect();
        assert_eq!(sorted, expected, "{count} {limit:?} {memory_bytes}");
    }

    #[test]
    fn sorts_stably_whether_it_spills_or_not() {
        for limit in [None, Some(1), Some(10), Some(99), Some(1000), Some(0)] {
            for memory_bytes in [0, 500, 5000, usize::MAX] {
                check(300, limit, memory_bytes);
            }
        }
    }

    #[test]
    fn without_spilling_too_much_is_an_error() {
        let mut sorter = Sorter::new(pattern(), None).with_memory_limit(1000);
        let refused = documents(100)
            .into_iter()
            .find_map(|doc| sorter.push(doc).err())
            .expect("100 documents take more than 1000 bytes");
        assert_eq!(refused.code.0, 292);

        let mut top = Sorter::new(pattern(), Some(3)).with_memory_limit(1000);
        for doc in documents(100) {
            top.push(doc).unwrap();
        }
    }
}
