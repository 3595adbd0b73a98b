//! Waiting for ranges whose owner is being decided.
//!
//! ```text
//!   write into a blocked range ─► evaluation given up, gate and latches let go, and the session
//!     (`session/given_back.rs`) ─► the next change of the catalog ─► looked up and evaluated again,
//!     with what is owned then
//!   read of a range blocked for reads ─► no snapshot is kept ─► the same ─► the command runs again
//!   request with a newer version than is known ─► the same ─► versions compared again
//! ```
//!
//! Nobody polls: changes of ownership are changes of the catalog, which wakes all who wait, on
//! every member that applies them. Who listens does so before it looks. The wait ends with the
//! operation's time limit, or after [`LONGEST_WAIT`] with an error: an outcome that cannot be
//! found out is not guessed.
//!
//! What a command has read is right for the ownership that was the same before and after it
//! read. Where it was not, or where it meets a block, the command gives up with an error that
//! never leaves the server ([`read_again`]) and is run again.

use super::Ownership;
use super::version_check::{Routed, namespace_of};
use crate::Shard;
use crate::catalog::Collection;
use crate::operation::Operation;
use model::bson::DocWriter;
use model::ids::CollectionId;
use model::range::RangeSet;
use model::time::ClusterTime;
use model::version::{Age, DatabaseVersion};
use model::{Code, Error, Namespace};
use query::filter::Filter;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::Request;

/// How long an operation without a time limit waits.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

const MARK: &str = "rangeIsMoving";

/// The read has to be done again, once nothing keeps it away.
pub(crate) fn read_again(namespace: &Namespace) -> Error {
    let details = DocWriter::new().with(MARK, namespace.as_str()).finish();
    Error::new(
        Code::EXCEEDED_TIME_LIMIT,
        format!("a range of {namespace} is being moved to another shard"),
    )
    .with_details(details)
}

/// The collection of [`read_again`], if that is what the error is.
pub(crate) fn is_to_be_read_again(error: &Error) -> Option<Namespace> {
    if error.code != Code::EXCEEDED_TIME_LIMIT {
        return None;
    }
    let details = error.details.as_ref()?.as_doc();
    Namespace::parse(details.get_str(MARK)?).ok()
}

impl Ownership {
    /// Whether documents that a filter selects may lie in a range that is blocked for reads.
    /// Only the ranges that are asked for count, where some are.
    pub(crate) fn keeps_away(
        &self,
        filter: &Filter,
        asked: Option<&RangeSet>,
        at: Option<ClusterTime>,
    ) -> bool {
        if self.moving.blocks.is_empty() {
            return false;
        }
        let mut blocked = self.moving.blocked_for_reads(at);
        if let Some(asked) = asked {
            blocked = blocked.intersection(asked);
        }
        if blocked.is_empty() {
            return false;
        }
        let wanted = query::plan::shard_key_ranges(filter, &self.pattern);
        !wanted.intersection(&blocked).is_empty()
    }
}

impl Collection {
    /// Whether what may be seen of it is told by the same ownership, blocks included.
    pub(crate) fn has_the_same_ownership(&self, other: &Collection) -> bool {
        match (&self.ownership, &other.ownership) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl Collection {
    pub(crate) fn has_blocks(&self) -> bool {
        let ownership = self.ownership.as_ref();
        ownership.is_some_and(|ownership| !ownership.moving.blocks.is_empty())
    }
}

/// Until when an operation waits.
struct Patience<'a> {
    operation: Option<&'a Operation>,
    until: Instant,
}

impl<'a> Patience<'a> {
    fn of(operation: Option<&'a Operation>, began: Instant) -> Self {
        let limit = operation.and_then(|operation| operation.deadline());
        Self {
            operation,
            until: limit.unwrap_or(began + LONGEST_WAIT),
        }
    }

    /// Ends when the time is over or the operation is.
    async fn ends(&self) {
        let interrupted = async {
            match self.operation {
                Some(operation) => operation.interrupted().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep_until(self.until.into()) => {}
            () = interrupted => {}
        }
    }

    fn check(&self, what: &str) -> Result<(), Error> {
        if let Some(operation) = self.operation {
            operation.check()?;
        }
        match Instant::now() < self.until {
            true => Ok(()),
            false => Err(Error::new(
                Code::EXCEEDED_TIME_LIMIT,
                format!("{what} is being moved, and it could not be found out in time who owns it"),
            )),
        }
    }
}

impl Shard {
    /// Waits until a collection has another ownership than the one that was seen.
    pub(crate) async fn await_other_ownership(
        &self,
        id: CollectionId,
        seen: &Collection,
        operation: Option<&Operation>,
        began: Instant,
    ) -> Result<(), Error> {
        let is_same = |now: &Collection| now.has_the_same_ownership(seen);
        self.await_ownership(id, &seen.namespace, &is_same, operation, began)
            .await
    }

    /// After [`read_again`]: waits for the next change if something is still blocked.
    pub(crate) async fn await_readable(
        &self,
        namespace: &Namespace,
        operation: &Operation,
    ) -> Result<(), Error> {
        let Some(seen) = self.catalog.get(namespace) else {
            return Ok(());
        };
        let is_blocked = |now: &Collection| {
            let is_blocked = (now.ownership.as_ref())
                .is_some_and(|now| !now.moving.blocked_for_reads(None).is_empty());
            is_blocked && now.has_the_same_ownership(&seen)
        };
        let began = operation.started;
        self.await_ownership(seen.id, namespace, &is_blocked, Some(operation), began)
            .await
    }

    /// Waits, where a request knows a newer version of the collection, for the end of the move
    /// that it may have come with; false if there is none.
    pub(crate) async fn await_version(
        &self,
        request: &Request,
        routed: &Routed,
        operation: &Operation,
    ) -> Result<bool, Error> {
        if let Some(received) = routed.database()
            && self
                .await_database(request.database(), received, operation)
                .await?
        {
            return Ok(true);
        }
        let (Some(received), Some(namespace)) = (routed.shard(), namespace_of(request)) else {
            return Ok(false);
        };
        let Some(seen) = self.catalog.get(&namespace) else {
            return Ok(false);
        };
        let is_behind = |now: &Collection| {
            now.sharded_ownership().is_some_and(|known| {
                !received.is_ignored()
                    && received.age(known.placement) == Age::Newer
                    && received.chunk.major != known.placement.chunk.major
                    && !known.moving.undecided().is_empty()
            })
        };
        if !is_behind(&seen) {
            return Ok(false);
        }
        let began = operation.started;
        self.await_ownership(seen.id, &namespace, &is_behind, Some(operation), began)
            .await?;
        Ok(true)
    }

    /// Waits while it is being decided whether a database stays here, or while its collections are
    /// arriving for a request that knows that they do; false if neither is so.
    async fn await_database(
        &self,
        name: &str,
        received: DatabaseVersion,
        operation: &Operation,
    ) -> Result<bool, Error> {
        let waits = || match self.sharding.database(name) {
            Some(known) if known.version == received => known.keeps_away(),
            Some(known) if received.age(known.version) != Age::Newer => false,
            Some(_) | None => self.is_arriving(name),
        };
        if !waits() {
            return Ok(false);
        }
        let patience = Patience::of(Some(operation), operation.started);
        self.await_while(name, &waits, patience).await?;
        Ok(true)
    }

    /// Whether collections are on their way here with their database.
    pub(crate) fn is_arriving(&self, database: &str) -> bool {
        let catalog = self.catalog.current();
        catalog.database(database).any(|collection| {
            let ownership = collection.ownership.as_ref();
            ownership.is_some_and(|it| it.unsharded && !it.moving.receiving.is_empty())
        })
    }

    /// The right to change collections of databases, once none of them is about to move. ⚑ One may have
    /// moved away while others had that right: who came by its version looks at it again
    /// (`check_database_route`).
    pub(crate) async fn ddl_in(
        &self,
        databases: &[&str],
        operation: Option<&Operation>,
    ) -> Result<tokio::sync::MutexGuard<'_, ()>, Error> {
        // One patience for all: a database that is closed again and again keeps nobody longer.
        let began = Instant::now();
        loop {
            let held = self.ddl.lock().await;
            let moves = |database: &str| {
                let known = self.sharding.database(database);
                known.is_some_and(|known| known.moving.is_some())
            };
            let Some(database) = databases.iter().find(|database| moves(database)) else {
                return Ok(held);
            };
            drop(held);
            let patience = Patience::of(operation, began);
            self.await_while(database, &|| moves(database), patience)
                .await?;
            // It may live elsewhere from now on.
            self.check_lives_here(database)?;
        }
    }

    async fn await_while(
        &self,
        database: &str,
        waits: &(dyn Fn() -> bool + Sync),
        patience: Patience<'_>,
    ) -> Result<(), Error> {
        self.counters.waited_for_move();
        let mut role = self.log.role();
        let leads = role.borrow_and_update().is_leader();
        loop {
            let mut known = std::pin::pin!(self.sharding.changed());
            known.as_mut().enable();
            let mut catalog = std::pin::pin!(self.catalog.changed());
            catalog.as_mut().enable();
            if !waits() {
                return Ok(());
            }
            tokio::select! {
                () = known => {}
                () = catalog => {}
                () = patience.ends() => {}
                _ = role.changed() => {
                    if leads && !role.borrow_and_update().is_leader() {
                        return Ok(());
                    }
                }
            }
            patience.check(&format!("the primary of {database}"))?;
        }
    }

    /// For what was read without a snapshot: refuses it if another ownership may hold in it,
    /// or if part of it is blocked.
    pub(crate) fn check_read_with(&self, collection: &Collection) -> Result<(), Error> {
        let Some(ownership) = &collection.ownership else {
            return Ok(());
        };
        let is_same = (self.catalog.by_id(collection.id))
            .is_none_or(|now| now.has_the_same_ownership(collection));
        match is_same && ownership.moving.blocked_for_reads(None).is_empty() {
            true => Ok(()),
            false => Err(read_again(&collection.namespace)),
        }
    }

    async fn await_ownership(
        &self,
        id: CollectionId,
        namespace: &Namespace,
        waits: &(dyn Fn(&Collection) -> bool + Sync),
        operation: Option<&Operation>,
        began: Instant,
    ) -> Result<(), Error> {
        let patience = Patience::of(operation, began);
        self.counters.waited_for_move();
        // A member that leads no longer must not keep writers until their time is over.
        let mut role = self.log.role();
        let leads = role.borrow_and_update().is_leader();
        loop {
            let mut changed = std::pin::pin!(self.catalog.changed());
            changed.as_mut().enable();
            match self.catalog.by_id(id) {
                Some(now) if waits(&now) => {}
                _ => return Ok(()),
            }
            tokio::select! {
                () = changed => {}
                () = patience.ends() => {}
                _ = role.changed() => {
                    if leads && !role.borrow_and_update().is_leader() {
                        return Ok(());
                    }
                }
            }
            patience.check(&format!("a range of {namespace}"))?;
        }
    }
}
