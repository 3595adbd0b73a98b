//! The authority: the one place where the placement of data is decided.
//!
//! The config server holds this state, changes it only by entries of its log, and
//! answers from what is applied. Everything here is a pure function of that state:
//!
//! ```text
//!   request ─► decide(state) ─► Decision ─► one log entry ─► apply(state)
//!                 │                          placements, and the outcome by operation id
//!                 └─► already decided, or refused: nothing is written
//! ```
//!
//! **Deciding is one compare-and-set, by operation id.** ⚑ A request names the
//! operation, and what it believes: the incarnation of the collection, the version of
//! its catalog (so that an index created meanwhile is not missed), who owns the range.
//! If any of that no longer holds it is refused, and nothing is written.
//!
//! **A version of a catalog stands, or it changes.** ⚑ An operation on options or indexes says so
//! before it touches the first shard, and when it has ended; each time the version grows. Meanwhile
//! nothing that names a version is decided: whoever owns the collection when the operation looks
//! owns it until the operation has ended. A refusal for that reason is none of the operation: it may
//! be asked for again with a newer version, and never with this one.
//!
//! **An outcome is final.** ⚑ Whoever lost the answer asks [`Authority::settle`]: it
//! returns what was decided, or durably records that the operation is aborted. A
//! commit that arrives after that is refused; one that arrives twice is answered from
//! the record and changes nothing. So an unknown outcome is never guessed.
//!
//! Outcomes are kept until [`Authority::forget`], which the operation's owner asks for
//! once it has recorded the outcome itself and no message of the operation can be on
//! its way any more. Until then they cost a few bytes each.
//!
//! Databases have a primary shard each, which has their unsharded collections; here it
//! is said which, and which version of that holds. Moving it is decided as a range is: by operation id,
//! if the database is still where it was ([`Authority::decide_primary`]).
//!
//! What whoever asked is told when it asks again is kept beside the outcomes ([`Answers`]).
//!
//! Left out so far: zones, resharding.

use crate::routing::{ChangeError, ChunkWithEnd, History, RefreshError, RoutingTable, ShardId};
use model::ids::Uuid;
use model::range::{KeyBound, KeyRange};
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::{DatabaseVersion, Incarnation, PlacementVersion};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

mod answers;
#[cfg(test)]
mod tests;

pub use answers::{Answers, OtherCommand, Ticket};

/// Names one long operation, from its first message to its last.
pub type OperationId = Uuid;

/// What became of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    Committed {
        /// Of the collection afterwards.
        version: PlacementVersion,
        /// ⚑ The time from which on it counts. Reads at earlier times see what was there
        /// before, on every shard and in every routing table: there is one such time,
        /// chosen here, and everybody is told it.
        since: ClusterTime,
    },
    Aborted,
}

/// Why an operation is not decided as asked. Nothing was written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    #[error("the operation was aborted before")]
    Aborted,
    #[error("the collection is not sharded")]
    NotSharded,
    #[error("the collection has another incarnation now")]
    OtherIncarnation,
    #[error("the collection's options or indexes have changed meanwhile")]
    CatalogChanged {
        /// Newer than the version that was named.
        now: u64,
    },
    #[error("{0} does not own the range")]
    NotTheOwner(ShardId),
    #[error("the database {0} is not what it was when its move began")]
    OtherDatabase(String),
    #[error("there is no shard {0}, or it is being removed")]
    NoSuchShard(ShardId),
    #[error("the collection is sharded already")]
    AlreadySharded,
    #[error(transparent)]
    Change(#[from] ChangeError),
    #[error(transparent)]
    Table(#[from] RefreshError),
}

/// What is asked for.
#[derive(Clone, Debug)]
pub enum Request {
    /// The first placement of a collection.
    Shard { table: RoutingTable },
    /// A range has been copied and is blocked on its owner: who owns it from now on?
    Move {
        expected: Expected,
        range: KeyRange,
        from: ShardId,
        to: ShardId,
        history: History,
    },
    Split {
        expected: Expected,
        points: Vec<KeyBound>,
    },
    Merge {
        expected: Expected,
        range: KeyRange,
        history: History,
    },
    /// The same chunks under a key with more fields.
    Refine {
        expected: Expected,
        pattern: Arc<ShardKeyPattern>,
        incarnation: Incarnation,
    },
    /// The collection is gone, or no longer sharded.
    Drop { expected: Expected },
}

/// What whoever asks believes of the collection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected {
    pub incarnation: Incarnation,
    /// `None` where options and indexes do not matter.
    pub catalog: Option<u64>,
}

/// What one log entry writes, all or nothing.
#[derive(Clone, Debug)]
pub struct Decision<N> {
    pub operation: OperationId,
    pub outcome: Outcome,
    pub placement: Option<(N, NewPlacement)>,
}

#[derive(Clone, Debug)]
pub enum NewPlacement {
    Table(RoutingTable),
    /// Of a collection that was sharded before, and goes on as it is otherwise.
    Refined(RoutingTable),
    Changes(Vec<ChunkWithEnd>),
    Gone,
}

/// Where the unsharded collections of a database are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DatabasePlacement {
    pub primary: ShardId,
    pub version: DatabaseVersion,
}

/// An answer to a request.
#[derive(Clone, Debug)]
pub enum Answer<N> {
    /// Write this; when it is applied, the operation is decided.
    Write(Decision<N>),
    /// It was decided before.
    Decided(Outcome),
}

/// The state. `N` names collections.
#[derive(Clone, Debug)]
pub struct Authority<N> {
    collections: HashMap<N, Placed>,
    databases: BTreeMap<String, DatabasePlacement>,
    outcomes: BTreeMap<OperationId, Outcome>,
    /// Whether each shard may be given data.
    shards: BTreeMap<ShardId, bool>,
}

#[derive(Clone, Debug)]
struct Placed {
    table: RoutingTable,
    catalog: Catalog,
}

/// A collection's options and indexes, as far as placements depend on them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Catalog {
    /// Grows with every change, before it and after it.
    pub version: u64,
    /// They are about to change: shards may differ.
    pub changes: bool,
}

impl Catalog {
    /// The version that all owners have.
    pub fn standing(self) -> Option<u64> {
        (!self.changes).then_some(self.version)
    }
}

impl<N: Clone + Eq + std::hash::Hash> Default for Authority<N> {
    fn default() -> Self {
        Self {
            collections: HashMap::new(),
            databases: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            shards: BTreeMap::new(),
        }
    }
}

impl<N: Clone + Eq + std::hash::Hash> Authority<N> {
    pub fn table(&self, name: &N) -> Option<&RoutingTable> {
        self.collections.get(name).map(|placed| &placed.table)
    }

    pub fn outcome(&self, operation: OperationId) -> Option<Outcome> {
        self.outcomes.get(&operation).copied()
    }

    /// Says that a shard is there; `usable` is false while it is being emptied.
    pub fn set_shard(&mut self, shard: ShardId, usable: bool) {
        self.shards.insert(shard, usable);
    }

    /// A shard has left.
    pub fn remove_shard(&mut self, shard: &ShardId) {
        self.shards.remove(shard);
    }

    /// Every shard, and whether it may be given data.
    pub fn shards(&self) -> impl Iterator<Item = (&ShardId, bool)> {
        self.shards.iter().map(|(shard, usable)| (shard, *usable))
    }

    pub fn database(&self, name: &str) -> Option<&DatabasePlacement> {
        self.databases.get(name)
    }

    pub fn databases(&self) -> impl Iterator<Item = (&str, &DatabasePlacement)> {
        let all = self.databases.iter();
        all.map(|(name, placement)| (name.as_str(), placement))
    }

    /// Where a database that is not there yet will be.
    pub fn new_database(
        &self,
        primary: &ShardId,
        uuid: Uuid,
        now: ClusterTime,
    ) -> Result<DatabasePlacement, Refusal> {
        self.check_usable(primary)?;
        Ok(DatabasePlacement {
            primary: primary.clone(),
            version: DatabaseVersion::new_database(uuid, now),
        })
    }

    /// Takes over what is stored of a database; `None` if it is gone.
    pub fn set_database(&mut self, name: &str, placement: Option<DatabasePlacement>) {
        match placement {
            Some(placement) => self.databases.insert(name.to_owned(), placement),
            None => self.databases.remove(name),
        };
    }

    /// Takes over what is stored of a collection, when a new primary begins.
    pub fn restore(&mut self, name: N, table: RoutingTable, catalog: Catalog) {
        self.collections.insert(name, Placed { table, catalog });
    }

    /// Takes over a stored outcome, when a new primary begins.
    pub fn restore_outcome(&mut self, operation: OperationId, outcome: Outcome) {
        self.outcomes.insert(operation, outcome);
    }

    /// Every sharded collection, in no order.
    pub fn collections(&self) -> impl Iterator<Item = (&N, &RoutingTable)> {
        let all = self.collections.iter();
        all.map(|(name, placed)| (name, &placed.table))
    }

    /// Notes that options or indexes of a collection have changed, or are about to.
    pub fn set_catalog(&mut self, name: &N, catalog: Catalog) {
        if let Some(placed) = self.collections.get_mut(name) {
            placed.catalog = catalog;
        }
    }

    pub fn catalog(&self, name: &N) -> Option<Catalog> {
        self.collections.get(name).map(|placed| placed.catalog)
    }

    /// Works out what an operation would write now. `now` becomes the time from which
    /// on a new owner owns what it got.
    pub fn decide(
        &self,
        operation: OperationId,
        name: &N,
        request: Request,
        now: ClusterTime,
    ) -> Result<Answer<N>, Refusal> {
        match self.outcome(operation) {
            Some(Outcome::Aborted) => return Err(Refusal::Aborted),
            Some(outcome @ Outcome::Committed { .. }) => return Ok(Answer::Decided(outcome)),
            None => {}
        }
        let (placement, version) = match request {
            Request::Shard { table } => self.first_placement(name, table)?,
            Request::Move {
                expected,
                range,
                from,
                to,
                history,
            } => {
                self.check_usable(&to)?;
                let table = self.expected(name, expected)?;
                if table.find(range.min.as_bytes()).chunk.shard != from {
                    return Err(Refusal::NotTheOwner(from));
                }
                changed(table, table.moving_with(&range, &to, now, history)?)?
            }
            Request::Split { expected, points } => {
                let table = self.expected(name, expected)?;
                changed(table, table.splitting(&points)?)?
            }
            Request::Merge {
                expected,
                range,
                history,
            } => {
                let table = self.expected(name, expected)?;
                changed(table, table.merging_with(&range, now, history)?)?
            }
            Request::Refine {
                expected,
                pattern,
                incarnation,
            } => {
                let table = self.expected(name, expected)?;
                let chunks = table.refined(pattern.clone(), incarnation)?;
                let table = RoutingTable::full(table.uuid, incarnation, pattern, chunks)?;
                let version = table.version();
                (NewPlacement::Refined(table), version)
            }
            Request::Drop { expected } => {
                self.expected(name, expected)?;
                (NewPlacement::Gone, PlacementVersion::UNSHARDED)
            }
        };
        Ok(Answer::Write(Decision {
            operation,
            outcome: Outcome::Committed {
                version,
                since: now,
            },
            placement: Some((name.clone(), placement)),
        }))
    }

    /// Works out what the move of a database's primary would write now: the database from then on, and the
    /// decision. Nothing but the decision if it was decided before.
    pub fn decide_primary(
        &self,
        operation: OperationId,
        name: &str,
        before: &DatabasePlacement,
        to: &ShardId,
        now: ClusterTime,
    ) -> Result<(Answer<N>, DatabasePlacement), Refusal> {
        let after = DatabasePlacement {
            primary: to.clone(),
            version: before.version.moved(),
        };
        let outcome = Outcome::Committed {
            version: after.version.as_placement(),
            since: now,
        };
        match self.outcome(operation) {
            Some(Outcome::Aborted) => return Err(Refusal::Aborted),
            Some(outcome @ Outcome::Committed { .. }) => {
                return Ok((Answer::Decided(outcome), after));
            }
            None => {}
        }
        self.check_usable(to)?;
        if self.database(name) != Some(before) {
            return Err(Refusal::OtherDatabase(name.to_owned()));
        }
        let decision = Decision {
            operation,
            outcome,
            placement: None,
        };
        Ok((Answer::Write(decision), after))
    }

    /// What became of an operation; if nothing did, it is aborted by what this returns.
    pub fn settle(&self, operation: OperationId) -> Answer<N> {
        match self.outcome(operation) {
            Some(outcome) => Answer::Decided(outcome),
            None => Answer::Write(Decision {
                operation,
                outcome: Outcome::Aborted,
                placement: None,
            }),
        }
    }

    /// Takes over a decision whose entry is applied. Entries are applied in the order
    /// of the log: one that was worked out before another was applied must have been
    /// refused, so a second outcome of an operation is a fault of ours.
    pub fn apply(&mut self, decision: Decision<N>) -> Result<(), RefreshError> {
        let earlier = self.outcomes.insert(decision.operation, decision.outcome);
        assert!(earlier.is_none(), "an operation is decided once");
        let Some((name, placement)) = decision.placement else {
            return Ok(());
        };
        match placement {
            NewPlacement::Table(table) => {
                let catalog = Catalog::default();
                let placed = Placed { table, catalog };
                self.collections.insert(name, placed);
            }
            NewPlacement::Refined(table) => {
                if let Some(placed) = self.collections.get_mut(&name) {
                    placed.table = table;
                }
            }
            NewPlacement::Changes(changes) => {
                if let Some(placed) = self.collections.get_mut(&name) {
                    placed.table = placed.table.with_changes(changes)?;
                }
            }
            NewPlacement::Gone => {
                self.collections.remove(&name);
            }
        }
        Ok(())
    }

    /// Forgets an outcome that nobody can ask for any more.
    pub fn forget(&mut self, operation: OperationId) {
        self.outcomes.remove(&operation);
    }

    fn first_placement(
        &self,
        name: &N,
        table: RoutingTable,
    ) -> Result<(NewPlacement, PlacementVersion), Refusal> {
        if self.collections.contains_key(name) {
            return Err(Refusal::AlreadySharded);
        }
        for placement in table.shards() {
            self.check_usable(&placement.shard)?;
        }
        let version = table.version();
        Ok((NewPlacement::Table(table), version))
    }

    fn expected(&self, name: &N, expected: Expected) -> Result<&RoutingTable, Refusal> {
        let placed = self.collections.get(name).ok_or(Refusal::NotSharded)?;
        if placed.table.incarnation != expected.incarnation {
            return Err(Refusal::OtherIncarnation);
        }
        if let Some(known) = expected.catalog
            && placed.catalog.standing() != Some(known)
        {
            let now = placed.catalog.version.max(known + 1);
            return Err(Refusal::CatalogChanged { now });
        }
        Ok(&placed.table)
    }

    fn check_usable(&self, shard: &ShardId) -> Result<(), Refusal> {
        match self.shards.get(shard) {
            Some(true) => Ok(()),
            Some(false) | None => Err(Refusal::NoSuchShard(shard.clone())),
        }
    }
}

/// The version that a table gets by changes that must fit.
fn changed(
    table: &RoutingTable,
    changes: Vec<ChunkWithEnd>,
) -> Result<(NewPlacement, PlacementVersion), Refusal> {
    let version = table.with_changes(changes.clone())?.version();
    Ok((NewPlacement::Changes(changes), version))
}
