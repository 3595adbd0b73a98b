//! `renameCollection` of unsharded collections, on the primary shard that both databases have.
//!
//! Left out: sharded ones. They are refused by name, whichever side they are on.

use crate::error::Fault;
use crate::queue::Claim;
use crate::server::text;
use crate::tenure::Tenure;
use model::bson::{Doc, DocBuf};
use model::{Code, Namespace};
use std::collections::BTreeSet;
use std::sync::Arc;

pub(crate) async fn rename(tenure: &Arc<Tenure>, command: Doc<'_>) -> Result<DocBuf, Fault> {
    let from = Namespace::parse(text(command, "renameCollection")?)?;
    let to = Namespace::parse(text(command, "to")?)?;
    // It may be where nothing is yet.
    crate::database::create(tenure, to.database(), None).await?;
    let (here, command) = (tenure.clone(), command.to_owned());
    tenure
        .complete(async move {
            let claim = Claim::Collections(BTreeSet::from([from.clone(), to.clone()]));
            let _turn = here.queue.enter(&claim).await;
            rename_in_turn(&here, &from, &to, command.as_doc()).await
        })
        .await
}

async fn rename_in_turn(
    tenure: &Tenure,
    from: &Namespace,
    to: &Namespace,
    command: Doc<'_>,
) -> Result<DocBuf, Fault> {
    let primary = {
        let state = tenure.state().await?;
        for name in [from, to] {
            if state.sharded(name).is_ok() {
                return Err(Fault::new(
                    Code::ILLEGAL_OPERATION,
                    format!("renaming is not supported for sharded collections yet: {name} is one"),
                ));
            }
        }
        let primary = |name: &Namespace| {
            let database = state.authority.database(name.database());
            database.map(|placement| placement.primary.clone())
        };
        match (primary(from), primary(to)) {
            (Some(source), Some(target)) if source == target => source,
            (None, _) => {
                return Err(Fault::new(
                    Code::NAMESPACE_NOT_FOUND,
                    format!("Source collection {from} does not exist"),
                ));
            }
            (Some(_), _) => {
                return Err(Fault::new(
                    Code::COMMAND_FAILED,
                    "Source and destination collections must be on the same shard",
                ));
            }
        }
    };
    tenure.ask(&primary, "admin", command).await
}
