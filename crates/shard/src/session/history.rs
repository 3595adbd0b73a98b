//! What a session remembers of the writes of its latest transaction number, so
//! that a statement that is sent again is answered and not run again.
//!
//! ```text
//!   begin(number) ─► is this statement executed? ─yes─► answered from here
//!        │                     └─no─► evaluated, put into an entry with the new document
//!        │                                 └─► appended: remembered here, unsettled
//!        ▼                                         └─► applied: settled
//!   a greater number forgets all of it
//! ```
//!
//! Only statements that wrote something are remembered, as with MongoDB: one that
//! failed or changed nothing is evaluated anew.
//!
//! Neighbouring statements with the same effect are one stretch, so a batch of
//! inserts is one item. Items lie in the session document until they outgrow
//! [`DOCUMENT_ITEMS_BYTES`]; then they are sealed into an overflow document of
//! their own, and the session document goes on with an empty list.
//!
//! Invariant: between appending an entry and hearing that it is applied, the
//! history is *unsettled*. Whoever finds it so (the one who appended went away or
//! was told that the outcome is unknown) must not believe it: the outcome is
//! settled by reading the stored document behind everything that is under way.

use super::document;
use model::bson::DocBuf;
use model::time::ClusterTime;
use model::{Code, Error};

/// What the items of a session document may weigh before they are sealed.
pub(super) const DOCUMENT_ITEMS_BYTES: usize = 2048;

/// Which version of a document a `findAndModify` returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ImageKind {
    Before,
    After,
    /// The new document of an upsert. MongoDB finds it in its log, so its
    /// `config.image_collection` does not show it.
    Inserted,
}

/// What a statement did.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Effect {
    Inserted,
    Updated,
    Deleted,
    /// By `findAndModify`: the image is stored beside the session document.
    UpdatedWithImage(ImageKind),
    DeletedWithImage,
    /// `{_id}` of the new document.
    Upserted(DocBuf),
    UpsertedWithImage(DocBuf),
}

impl Effect {
    /// Whether one item can stand for several statements.
    fn joins(&self, other: &Effect) -> bool {
        matches!(
            (self, other),
            (Effect::Inserted, Effect::Inserted)
                | (Effect::Updated, Effect::Updated)
                | (Effect::Deleted, Effect::Deleted)
        )
    }

    /// As MongoDB's log names it.
    pub(crate) fn letter(&self) -> &'static str {
        match self {
            Effect::Inserted | Effect::Upserted(_) | Effect::UpsertedWithImage(_) => "i",
            Effect::Updated | Effect::UpdatedWithImage(_) => "u",
            Effect::Deleted | Effect::DeletedWithImage => "d",
        }
    }
}

/// A stretch of statements with the same effect.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Executed {
    pub(crate) first: i32,
    pub(crate) count: u32,
    pub(crate) effect: Effect,
}

impl Executed {
    pub(crate) fn one(statement: i32, effect: Effect) -> Self {
        Self {
            first: statement,
            count: 1,
            effect,
        }
    }

    fn end(&self) -> i64 {
        i64::from(self.first) + i64::from(self.count)
    }
}

/// Appends an item, or lengthens the last one.
pub(crate) fn join(items: &mut Vec<Executed>, item: Executed) {
    if let Some(last) = items.last_mut()
        && last.end() == i64::from(item.first)
        && last.effect.joins(&item.effect)
    {
        last.count += item.count;
        return;
    }
    items.push(item);
}

/// The document that a `findAndModify` returned.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) kind: ImageKind,
    pub(crate) document: DocBuf,
}

/// When a session last wrote.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct LastWrite {
    pub(crate) time: ClusterTime,
    pub(crate) term: u64,
    pub(crate) wall_ms: i64,
}

/// See the header of this file.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The latest number that was begun; it may have written nothing yet.
    number: Option<i64>,
    /// All statements of this number, by their first.
    executed: Vec<Executed>,
    /// Those of them that are in the session document, in the order of the log.
    pub(super) recent: Vec<Executed>,
    /// Overflow documents that are stored, of this number or, if it has written
    /// nothing yet, of the one before.
    pub(super) overflow_stored: u32,
    /// How many of them are this number's.
    pub(super) overflow: u32,
    /// Something that was executed is not in the list: nobody can tell what.
    pub(super) incomplete: bool,
    /// Whether what is remembered is known to be synced.
    pub(crate) synced: bool,
    pub(crate) unsettled: bool,
}

impl History {
    /// As it was stored.
    pub(super) fn stored(document: document::Stored, sealed: Vec<Executed>) -> Self {
        let mut history = History {
            number: Some(document.number),
            overflow: document.overflow,
            overflow_stored: document.overflow,
            incomplete: document.incomplete,
            ..History::default()
        };
        for item in sealed {
            history.remember(item);
        }
        for item in document.recent {
            history.remember(item.clone());
            history.recent.push(item);
        }
        history
    }

    pub(crate) fn number(&self) -> Option<i64> {
        self.number
    }

    /// Begins a transaction number, or goes on with it.
    pub(crate) fn begin(&mut self, number: i64, session: super::SessionId) -> Result<(), Error> {
        match self.number {
            Some(latest) if number < latest => Err(Error::new(
                Code::TRANSACTION_TOO_OLD,
                format!(
                    "Retryable write with txnNumber {number} is prohibited on session {session} \
                     because a newer retryable write with txnNumber {latest} has already started \
                     on this session."
                ),
            )),
            Some(latest) if number == latest => Ok(()),
            _ => {
                self.number = Some(number);
                self.executed.clear();
                self.recent.clear();
                self.overflow = 0;
                self.incomplete = false;
                Ok(())
            }
        }
    }

    /// Whether no statement of this number is known: none needs to be looked up.
    pub(crate) fn is_empty(&self) -> bool {
        self.executed.is_empty() && !self.incomplete
    }

    /// What a statement did, if it was executed.
    pub(crate) fn find(&self, statement: i32) -> Result<Option<&Effect>, Error> {
        let behind = self
            .executed
            .partition_point(|item| item.first <= statement);
        let found = behind
            .checked_sub(1)
            .map(|at| &self.executed[at])
            .filter(|item| i64::from(statement) < item.end());
        if found.is_none() && self.incomplete {
            return Err(Error::new(
                Code::INCOMPLETE_TRANSACTION_HISTORY,
                format!(
                    "Incomplete history detected for transaction {}",
                    self.number.unwrap_or(-1)
                ),
            ));
        }
        Ok(found.map(|item| &item.effect))
    }

    fn remember(&mut self, item: Executed) {
        // Statements mostly come in ascending order.
        if self
            .executed
            .last()
            .is_none_or(|last| last.end() <= i64::from(item.first))
        {
            join(&mut self.executed, item);
            return;
        }
        let at = self
            .executed
            .partition_point(|known| known.first < item.first);
        self.executed.insert(at, item);
    }

    /// Takes over what an entry of the log says: `sealed` tells that the items
    /// so far went into an overflow document with it.
    pub(super) fn appended(&mut self, items: Vec<Executed>, sealed: bool, synced: bool) {
        if sealed {
            self.recent.clear();
            self.overflow += 1;
        }
        self.overflow_stored = self.overflow;
        self.synced = synced;
        self.unsettled = true;
        for item in items {
            self.remember(item.clone());
            join(&mut self.recent, item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> super::super::SessionId {
        super::super::SessionId::new([7; 16])
    }

    #[test]
    fn statements_are_found_in_any_order() {
        let mut history = History::default();
        history.begin(1, session()).expect("the first number");
        for first in [10, 0, 5] {
            let item = Executed {
                first,
                count: 3,
                effect: Effect::Inserted,
            };
            history.appended(vec![item], false, true);
        }
        for statement in -1..20 {
            let expected = [0..3, 5..8, 10..13]
                .iter()
                .any(|some| some.contains(&statement));
            let found = history.find(statement).expect("complete");
            assert_eq!(found.is_some(), expected, "{statement}");
        }
    }

    #[test]
    fn neighbours_with_the_same_effect_are_one_item() {
        let mut items = Vec::new();
        for statement in 0..1000 {
            join(&mut items, Executed::one(statement, Effect::Inserted));
        }
        join(&mut items, Executed::one(1000, Effect::Deleted));
        join(&mut items, Executed::one(1002, Effect::Deleted));
        let shape: Vec<_> = items.iter().map(|item| (item.first, item.count)).collect();
        assert_eq!(shape, [(0, 1000), (1000, 1), (1002, 1)]);
    }

    #[test]
    fn a_greater_number_forgets_and_a_smaller_one_is_refused() {
        let mut history = History::default();
        history.begin(3, session()).expect("the first number");
        history.appended(vec![Executed::one(0, Effect::Updated)], false, true);
        history.begin(3, session()).expect("the same number");
        assert_eq!(history.find(0).expect("complete"), Some(&Effect::Updated));
        history.begin(4, session()).expect("a greater number");
        assert!(history.is_empty());
        let error = history.begin(3, session()).expect_err("it is too old");
        assert_eq!(error.code, Code::TRANSACTION_TOO_OLD);
    }

    #[test]
    fn what_cannot_be_known_is_not_guessed() {
        let mut history = History {
            incomplete: true,
            number: Some(1),
            ..History::default()
        };
        history.remember(Executed::one(0, Effect::Updated));
        assert!(history.find(0).expect("it is known").is_some());
        let error = history.find(1).expect_err("nobody knows");
        assert_eq!(error.code, Code::INCOMPLETE_TRANSACTION_HISTORY);
    }
}
