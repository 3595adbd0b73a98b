//! A shard's log, as far as the range is concerned.

use super::{LogPosition, Time};

const ENTRIES: usize = 14;

/// What an entry writes; zero stands for nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Entry {
    pub(super) time: Time,
    /// The document becomes what the write of this number made of it.
    pub(super) value: u8,
    /// The number of the move's document from then on.
    pub(super) state: u8,
}

/// What is majority-committed of a shard's log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Log {
    pub(super) entries: [Entry; ENTRIES],
    pub(super) length: u8,
}

impl Log {
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries[..usize::from(self.length)]
    }

    pub(super) fn push(&mut self, entry: Entry) {
        self.entries[usize::from(self.length)] = entry;
        self.length += 1;
    }

    pub(super) fn time(&self) -> Time {
        self.entries().last().map_or(0, |entry| entry.time)
    }

    pub(super) fn value(&self) -> u8 {
        let mut latest = self.entries().iter().rev();
        latest.find(|it| it.value != 0).map_or(0, |it| it.value)
    }

    /// The number of the move's document, and the time that it is from.
    pub(super) fn state(&self) -> (u8, Time) {
        let mut latest = self.entries().iter().rev();
        let found = latest.find(|it| it.state != 0);
        found.map_or((0, 0), |it| (it.state, it.time))
    }

    /// Of the writes to the range.
    pub(super) fn position(&self) -> LogPosition {
        let written = self.entries().iter().filter(|it| it.value != 0);
        written.count() as LogPosition
    }
}
