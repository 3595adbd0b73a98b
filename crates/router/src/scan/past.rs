//! Reads at a moment of the past whose owner has forgotten it.
//!
//! Whoever owned a range at a time owns it at that time for ever, so nobody else can be asked. A shard that was
//! removed took its history with it; if it was added again, it has forgotten what it had:
//!
//! ```text
//!   the shard is none of the cluster's                         gone
//!   it does not know the collection (StaleConfig without a
//!   version), and the placement that named it is the newest    gone
//!   anything else                                              routed again, as ever
//! ```
//!
//! ⚑ Members answer when they have come to the time that is read at, and at that time the shard knew the collection: one
//! that does not know it has not yet to hear of it.

use super::ElasticScan;
use crate::Router;
use crate::failure::{Failure, Stale};
use model::error::{Code, Error};
use model::namespace::Namespace;
use model::version::PlacementVersion;

/// The error for a moment that nobody can read any more.
pub(super) fn history_is_gone(namespace: &Namespace) -> Error {
    Error::new(
        Code::SNAPSHOT_UNAVAILABLE,
        format!(
            "Unable to read from a snapshot: a shard that had a part of {namespace} then has left the cluster"
        ),
    )
}

impl Router {
    /// What came of a read at a moment of the past, for which the placement of this version has named the shards.
    pub(crate) async fn refused_past(
        &self,
        namespace: &Namespace,
        routed_by: PlacementVersion,
        failure: Failure,
    ) -> Failure {
        let (shard, stale) = match failure {
            Failure::Error(error) if error.code == Code::SHARD_NOT_FOUND => {
                return history_is_gone(namespace).into();
            }
            Failure::Stale(Stale::Collection {
                shard,
                wanted: None,
            }) => {
                let wanted = None;
                (shard.clone(), Stale::Collection { shard, wanted })
            }
            other => return other,
        };
        self.routing.note(namespace, &stale);
        match self.routing.placement(namespace, Some(&[shard])).await {
            Ok(now) if now.version() == routed_by => history_is_gone(namespace).into(),
            Ok(_) => Failure::Stale(stale),
            Err(error) => error.into(),
        }
    }
}

impl ElasticScan {
    /// What a shard says to a scan of the past. One that has begun goes on with the owners of then, by whichever
    /// version they have.
    pub(super) async fn settle_past(&self, stale: &Stale) -> Result<(), Failure> {
        let namespace = &self.command.namespace;
        match stale {
            Stale::Collection { wanted: None, .. } if self.begun => {
                Err(history_is_gone(namespace).into())
            }
            Stale::Collection { .. } | Stale::Database if self.begun => Ok(()),
            stale => {
                let base = self.scan.base().version();
                let stale = Failure::Stale(stale.clone());
                Err(self.router.refused_past(namespace, base, stale).await)
            }
        }
    }
}
