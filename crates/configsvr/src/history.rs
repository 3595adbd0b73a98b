//! How long the history of chunks is: who owned a range before, and until when.
//!
//! Two ask for it: reads at a time of the past, and resume tokens, which name the placement that their scan began with.
//! Its length follows from this server's `minSnapshotHistoryWindowInSeconds`, as MongoDB's does, so that it can be
//! changed while the server runs. Each member has a value of its own: the one that decides uses its own.
//!
//! What is too old is forgotten when its chunk is moved or merged the next time, and not before; whoever asks for it then
//! is told so (`StaleChunkHistory`).

use crate::error::Fault;
use crate::tenure::Tenure;
use cluster::routing::History;
use model::Code;
use model::bson::{DocWriter, ValueRef};

const PARAMETER: &str = "minSnapshotHistoryWindowInSeconds";

/// What is kept by a decision of now.
pub(crate) async fn kept(tenure: &Tenure) -> Result<History, Fault> {
    let question = DocWriter::new().with("getParameter", 1).with(PARAMETER, 1);
    let told = tenure.store.run_on("admin", question).await?;
    match told.get(PARAMETER) {
        Some(ValueRef::Int32(seconds @ 0..)) => Ok(History::of_window(seconds.unsigned_abs())),
        _ => Err(Fault::new(
            Code::INTERNAL_ERROR,
            format!("{PARAMETER} is not known"),
        )),
    }
}
