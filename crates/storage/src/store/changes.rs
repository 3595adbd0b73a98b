//! What batches have written lately, for those who want to keep what they read.
//!
//! A scan reads a snapshot and keeps a stretch of it some time later. Meanwhile batches
//! may have begun; what matters is whether one of them writes inside the stretch.
//!
//! ```text
//!   batch number   … 41 │ 42   43   44    45   46         before 42: only the last number
//!                       │ keys keys spans keys keys       of each subject is known
//!                             44 wrote too many keys: from the first to the last of each subject
//! ```
//!
//! The keys of the last few batches are remembered, and of a large one where they lie: a range that is
//! received comes in large batches, each in one place, and must not keep scans elsewhere in its collection
//! from leaving what they read. Everything older counts as a change of all of its subjects.

use std::collections::{HashMap, VecDeque};

use crate::layout::{self, Subject};

/// Batches whose keys are remembered.
const BATCHES_MAX: usize = 256;
/// Keys of one batch that are remembered.
const KEYS_MAX: usize = 64;
/// And what they may take together: keys can be long.
const KEYS_BYTES_MAX: usize = 4 << 10;
/// What the ends of spans may take together: there are two for each index.
const SPANS_BYTES_MAX: usize = 16 << 10;

type Numbers = HashMap<Subject, u64, foldhash::fast::RandomState>;

/// A batch with its keys.
#[derive(Default)]
struct Recent {
    number: u64,
    subjects: Vec<Subject>,
    /// One after the other.
    keys: Vec<u8>,
    /// Where each of them ends.
    ends: Vec<u32>,
    /// Instead of keys, where there are many.
    spans: Vec<Span>,
}

/// Keys from one to another, both included.
struct Span {
    first: Box<[u8]>,
    last: Box<[u8]>,
}

impl Span {
    fn bytes(&self) -> usize {
        self.first.len() + self.last.len()
    }
}

impl Recent {
    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        self.ends.iter().map(move |&to| {
            let key = &self.keys[from..to as usize];
            from = to as usize;
            key
        })
    }

    /// Whether it writes a key from `from` to `to`, which is excluded, as far as is known.
    fn writes_within(&self, (from, to): (&[u8], &[u8])) -> bool {
        self.keys().any(|key| from <= key && key < to)
            || (self.spans.iter()).any(|span| *span.first < *to && *from <= *span.last)
    }
}

/// Where the keys of each subject lie. Every key belongs to one of them.
fn spans<'a>(subjects: &[Subject], keys: impl Iterator<Item = &'a [u8]>) -> Vec<Span> {
    let prefixes = subjects.iter().map(|&subject| layout::all_of(subject));
    let mut found: Vec<_> = prefixes.map(|prefix| (prefix, None)).collect();
    // Most keys come behind one of the same subject.
    let mut at = 0;
    for key in keys {
        if !{ found.get(at) }.is_some_and(|(prefix, _)| key.starts_with(prefix)) {
            let subject = { found.iter() }.position(|(prefix, _)| key.starts_with(prefix));
            at = subject.unwrap_or(found.len());
        }
        debug_assert!(at < found.len(), "a batch names what it writes to");
        if let Some((_, span)) = found.get_mut(at) {
            let (first, last) = span.get_or_insert((key, key));
            *first = key.min(*first);
            *last = key.max(*last);
        }
    }
    let spans = found.into_iter().filter_map(|(_, span)| span);
    let boxed = |(first, last): (&[u8], &[u8])| Span {
        first: first.into(),
        last: last.into(),
    };
    spans.map(boxed).collect()
}

#[derive(Default)]
pub(super) struct Changes {
    /// The last batch with this subject.
    last: Numbers,
    /// The last one of those whose keys are not remembered.
    last_anywhere: Numbers,
    /// The last batch that replaced everything.
    replaced: u64,
    /// Ascending.
    recent: VecDeque<Recent>,
}

impl Changes {
    /// After a batch that replaced everything nothing else counts.
    pub fn after_replacement(number: u64) -> Self {
        Self {
            replaced: number,
            ..Self::default()
        }
    }

    /// Notes a batch before it is committed; numbers ascend.
    pub fn note<'a>(
        &mut self,
        number: u64,
        subjects: impl Iterator<Item = Subject>,
        keys: impl Iterator<Item = &'a [u8]> + Clone,
    ) {
        let mut batch = self.begin(number, subjects);
        for key in keys.clone() {
            if batch.ends.len() == KEYS_MAX || batch.keys.len() + key.len() > KEYS_BYTES_MAX {
                batch.keys.clear();
                batch.ends.clear();
                batch.spans = spans(&batch.subjects, keys);
                if batch.spans.iter().map(Span::bytes).sum::<usize>() > SPANS_BYTES_MAX {
                    batch.spans.clear();
                    self.changed_anywhere(&batch);
                }
                break;
            }
            batch.keys.extend_from_slice(key);
            batch.ends.push(batch.keys.len() as u32);
        }
        self.recent.push_back(batch);
    }

    /// The batch with this number may change anything of a subject from one key to another, which are both
    /// included.
    pub fn note_span(&mut self, number: u64, subject: Subject, (first, last): (&[u8], &[u8])) {
        let mut batch = self.begin(number, [subject].into_iter());
        let (first, last) = (first.into(), last.into());
        batch.spans.push(Span { first, last });
        self.recent.push_back(batch);
    }

    fn changed_anywhere(&mut self, batch: &Recent) {
        for &subject in &batch.subjects {
            raise(&mut self.last_anywhere, subject, batch.number);
        }
    }

    fn begin(&mut self, number: u64, subjects: impl Iterator<Item = Subject>) -> Recent {
        let mut batch = match self.recent.len() < BATCHES_MAX {
            true => Recent::default(),
            false => self.forget_oldest(),
        };
        batch.number = number;
        batch.subjects.extend(subjects);
        for &subject in &batch.subjects {
            raise(&mut self.last, subject, number);
        }
        batch
    }

    /// Makes place; what is returned is empty.
    fn forget_oldest(&mut self) -> Recent {
        let mut oldest = self.recent.pop_front().unwrap_or_default();
        for subject in oldest.subjects.drain(..) {
            raise(&mut self.last_anywhere, subject, oldest.number);
        }
        oldest.keys.clear();
        oldest.ends.clear();
        oldest.spans.clear();
        oldest
    }

    /// The batch with this number may change anything of a subject.
    pub fn note_all(&mut self, number: u64, subject: Subject) {
        raise(&mut self.last, subject, number);
        raise(&mut self.last_anywhere, subject, number);
    }

    /// Nothing of this subject is unchanged any more, at any time.
    pub fn note_dropped(&mut self, subject: Subject) {
        self.last.insert(subject, u64::MAX);
        self.last_anywhere.insert(subject, u64::MAX);
    }

    /// Whether no batch with this subject has begun besides the first so many.
    pub fn is_unchanged(&self, subject: Subject, commits_finished: u64) -> bool {
        let last = self.last.get(&subject).copied().unwrap_or(0);
        last.max(self.replaced) <= commits_finished
    }

    /// Whether none has that writes within an interval whose end is excluded.
    pub fn is_unchanged_within(
        &self,
        subject: Subject,
        within: (&[u8], &[u8]),
        commits_finished: u64,
    ) -> bool {
        let anywhere = self.last_anywhere.get(&subject).copied().unwrap_or(0);
        let later = self.recent.iter().rev();
        anywhere.max(self.replaced) <= commits_finished
            && !later
                .take_while(|batch| batch.number > commits_finished)
                .any(|batch| batch.writes_within(within))
    }
}

fn raise(numbers: &mut Numbers, subject: Subject, number: u64) {
    let last = numbers.entry(subject).or_insert(0);
    *last = number.max(*last);
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::ids::CollectionId;

    const SUBJECT: Subject = Subject::Collection(CollectionId(7));

    fn note(changes: &mut Changes, number: u64, keys: &[&str]) {
        let keys = keys.iter().map(|key| key.as_bytes());
        changes.note(number, [SUBJECT].into_iter(), keys);
    }

    fn is_unchanged(changes: &Changes, (from, to): (&str, &str), commits_finished: u64) -> bool {
        let within = (from.as_bytes(), to.as_bytes());
        changes.is_unchanged_within(SUBJECT, within, commits_finished)
    }

    #[test]
    fn only_keys_inside_count_while_they_are_remembered() {
        let mut changes = Changes::default();
        note(&mut changes, 1, &["b"]);
        note(&mut changes, 2, &["f", "x"]);
        assert!(is_unchanged(&changes, ("c", "f"), 0));
        assert!(!is_unchanged(&changes, ("c", "g"), 0));
        assert!(!is_unchanged(&changes, ("c", "g"), 1));
        assert!(is_unchanged(&changes, ("c", "g"), 2));
        assert!(!changes.is_unchanged(SUBJECT, 1));
        assert!(changes.is_unchanged(SUBJECT, 2));
        for number in 3..3 + BATCHES_MAX as u64 {
            note(&mut changes, number, &["z"]);
        }
        // The second one is forgotten by now, so it may have been anywhere.
        assert!(!is_unchanged(&changes, ("c", "d"), 1));
        assert!(is_unchanged(&changes, ("c", "d"), 2));
    }

    /// ⚑ From the first key to the last, wherever these come in the batch.
    #[test]
    fn large_batches_are_where_their_keys_lie() {
        const OTHER: Subject = Subject::Collection(CollectionId(8));
        let stored = |subject: Subject, key: &str| {
            let mut stored = layout::all_of(subject).to_vec();
            stored.extend_from_slice(key.as_bytes());
            stored
        };
        let mut changes = Changes::default();
        let mut keys = vec![stored(SUBJECT, "m"); KEYS_MAX + 1];
        keys[7] = stored(SUBJECT, "f");
        keys[9] = stored(OTHER, "b");
        keys[KEYS_MAX] = stored(SUBJECT, "p");
        let subjects = [SUBJECT, OTHER].into_iter();
        changes.note(1, subjects, keys.iter().map(Vec::as_slice));
        let is_unchanged = |changes: &Changes, subject, from, to, commits_finished| {
            let (from, to) = (stored(subject, from), stored(subject, to));
            changes.is_unchanged_within(subject, (&from, &to), commits_finished)
        };
        assert!(is_unchanged(&changes, SUBJECT, "a", "f", 0));
        assert!(!is_unchanged(&changes, SUBJECT, "a", "g", 0));
        assert!(!is_unchanged(&changes, SUBJECT, "h", "i", 0));
        assert!(!is_unchanged(&changes, SUBJECT, "p", "q", 0));
        assert!(is_unchanged(&changes, SUBJECT, "q", "z", 0));
        assert!(is_unchanged(&changes, SUBJECT, "h", "i", 1));
        assert!(!is_unchanged(&changes, OTHER, "a", "c", 0));
        assert!(is_unchanged(&changes, OTHER, "c", "z", 0));
        let span = (stored(SUBJECT, "s"), stored(SUBJECT, "t"));
        changes.note_span(2, SUBJECT, (&span.0, &span.1));
        assert!(is_unchanged(&changes, SUBJECT, "q", "s", 1));
        assert!(!is_unchanged(&changes, SUBJECT, "q", "z", 1));
        assert!(!changes.is_unchanged(SUBJECT, 1));
        for number in 3..3 + BATCHES_MAX as u64 {
            changes.note(number, [SUBJECT].into_iter(), [].into_iter());
        }
        // Both are forgotten by now.
        assert!(!is_unchanged(&changes, SUBJECT, "a", "f", 1));
        assert!(!is_unchanged(&changes, OTHER, "c", "z", 0));
    }

    /// Where their ends would take too much memory, a batch counts as everywhere in its subjects.
    #[test]
    fn ends_of_spans_are_not_kept_however_long_they_are() {
        let mut changes = Changes::default();
        let mut long = layout::all_of(SUBJECT).to_vec();
        long.resize(SPANS_BYTES_MAX, b'm');
        changes.note(1, [SUBJECT].into_iter(), [long.as_slice()].into_iter());
        assert!(changes.recent.iter().all(|batch| batch.spans.is_empty()));
        let from = layout::all_of(SUBJECT).to_vec();
        let to = [&from[..], b"a"].concat();
        assert!(!changes.is_unchanged_within(SUBJECT, (&from, &to), 0));
        assert!(changes.is_unchanged_within(SUBJECT, (&from, &to), 1));
    }

    #[test]
    fn what_is_dropped_or_replaced_is_never_unchanged() {
        let mut changes = Changes::default();
        note(&mut changes, 3, &["x"]);
        changes.note_dropped(SUBJECT);
        assert!(!is_unchanged(&changes, ("c", "d"), 3));
        assert!(!is_unchanged(&Changes::after_replacement(9), ("c", "d"), 8));
    }
}
