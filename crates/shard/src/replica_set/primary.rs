//! What a secondary asks of the primary, on a connection of its own.
//!
//! ```text
//!   {_terndbAdvance: 1, time: timestamp, $db: "admin"}      an entry at or after that time
//!   {refreshSessions: [ … ]}, {endSessions: [ … ]}          sessions that were seen here
//!   {replSetGetStatus: 1}                                   what it knows of the other members
//! ```
//!
//! ⚑ Reading at a time requires an applied entry at or after it. A primary writes one if it has none; a
//! secondary that is asked to read after a time which nobody has written tells the primary, instead of
//! waiting for the next entry.
//!
//! A primary that does not answer is no error of the command: whoever asks waits for the log, or tries
//! again later.

use super::transport::ask;
use crate::Shard;
use model::bson::{DocBuf, DocWriter, Timestamp, ValueRef};
use model::time::ClusterTime;
use model::{Code, Error};
use std::time::Duration;
use tokio::net::TcpStream;
use wire::{Reply, Request};

pub(crate) const ADVANCE: &str = "_terndbAdvance";

const TIMEOUT: Duration = Duration::from_secs(2);

impl Shard {
    /// Runs a command on the primary.
    pub(crate) async fn ask_primary(&self, command: &DocBuf) -> Result<DocBuf, Error> {
        let unreachable = |why: String| {
            let message = format!("the primary does not answer: {why}");
            Err(Error::new(Code::HOST_UNREACHABLE, message))
        };
        let leader = self.log.members().leader;
        let Some(host) = leader.and_then(|leader| self.peers.address_of(leader)) else {
            return unreachable("nobody is known to be it".to_owned());
        };
        let asked = async {
            let mut stream = TcpStream::connect(&host).await?;
            stream.set_nodelay(true)?;
            ask(&mut stream, command).await
        };
        let reply = match tokio::time::timeout(TIMEOUT, asked).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => return unreachable(error.to_string()),
            Err(_) => return unreachable("it takes too long".to_owned()),
        };
        if reply.get("ok") == Some(ValueRef::Double(1.0)) {
            return Ok(reply);
        }
        let code = match reply.get("code") {
            Some(ValueRef::Int32(code)) => Code(code),
            _ => Code::INTERNAL_ERROR,
        };
        let text = reply.as_doc().get_str("errmsg").unwrap_or_default();
        Err(Error::new(code, text.to_owned()))
    }

    /// Has the primary write an entry at or after a time, unless there is one by now.
    pub(crate) async fn ask_for_time(&self, time: ClusterTime) {
        // One question at a time answers all who wait.
        let _asking = self.replica_set.asking.lock().await;
        if self.store.applied_time() >= time {
            return;
        }
        let command = DocWriter::new()
            .with(ADVANCE, 1)
            .with(
                "time",
                ValueRef::Timestamp(Timestamp {
                    seconds: time.seconds(),
                    increment: time.increment(),
                }),
            )
            .with("$db", "admin")
            .finish();
        if let Err(error) = self.ask_primary(&command).await {
            tracing::debug!("no entry was asked for: {error}");
        }
    }

    /// A secondary needs an entry at or after a time.
    pub(crate) async fn advance(&self, request: &Request) -> Result<Reply, Error> {
        let Some(ValueRef::Timestamp(time)) = request.body().get("time") else {
            return Err(Error::bad_value(format!("{ADVANCE} is malformed")));
        };
        let time = ClusterTime::new(time.seconds, time.increment);
        self.observe_time(time)?;
        if self.store.applied_time() < time {
            self.propose_catalog(|encoder| encoder.noop()).await?;
        }
        Ok(Reply::ok())
    }
}
