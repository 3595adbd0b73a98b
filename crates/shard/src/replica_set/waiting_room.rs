//! A server that belongs to no set yet: it waits to be founded, or to be called as a newcomer.
//!
//! ```text
//!   waiting ── replSetInitiate: asks all founders, tells all of them, then begins itself ──► founder
//!           ── _terndbFound: another founder was initiated ────────────────────────────────► founder
//!           ── _terndbJoin with newcomer: a primary was told to add it ────────────────────► newcomer
//! ```
//!
//! What it becomes is written to disk before it is answered (by whoever made the room, through
//! [`WaitingRoom::became`]), so that it is the same after a crash. If `replSetInitiate` fails halfway, those
//! who were told begin without the others; a founder that was not told must be added to them.
//!
//! Until then it answers what drivers ask of any server, and refuses the rest.

use super::Membership;
use super::configuration::{Configuration, MemberConfiguration, read_host};
use super::transport::{Introduction, JOIN, ask};
use crate::command::diagnostic::build_info;
use crate::command::hello::append_limits;
use crate::command::placement::{refuse_outside_a_set, tells_of_another_state};
use crate::shard::ObjectIds;
use crate::{Clock, SystemClock};
use model::bson::{Doc, DocBuf, DocWriter, ObjectId, ValueRef};
use model::{Code, Error};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use wire::{ConnectionInfo, Handler, Reply, Request};

pub(crate) const FOUND: &str = "_terndbFound";
const SESSION_TIMEOUT_MINUTES: i32 = 30;
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

pub struct WaitingRoom {
    set: String,
    host: String,
    process_id: ObjectId,
    /// What this server is to become.
    chosen: watch::Sender<Option<Membership>>,
    /// Whether that is on disk.
    settled: watch::Sender<bool>,
}

impl WaitingRoom {
    pub fn new(set: &str, host: &str) -> Result<WaitingRoom, Error> {
        Ok(WaitingRoom {
            set: set.to_owned(),
            host: read_host(host)?,
            process_id: ObjectIds::new().next(0),
            chosen: watch::Sender::new(None),
            settled: watch::Sender::new(false),
        })
    }

    /// Completes when it is known what this server is.
    pub async fn became(&self) -> Membership {
        let mut chosen = self.chosen.subscribe();
        loop {
            if let Some(membership) = chosen.borrow_and_update().clone() {
                return membership;
            }
            // The sender lives in self.
            let _ = chosen.changed().await;
        }
    }

    /// What it became is on disk: whoever waits may be answered.
    pub fn settle(&self) {
        self.settled.send_replace(true);
    }

    async fn become_member(&self, membership: Membership) -> Result<(), Error> {
        let accepted = self.chosen.send_if_modified(|chosen| {
            let free = chosen.is_none();
            if free {
                *chosen = Some(membership.clone());
            }
            free
        });
        if !accepted && *self.chosen.borrow() != Some(membership) {
            return Err(already_initialized());
        }
        // The sender lives in self.
        let _ = self.settled.subscribe().wait_for(|settled| *settled).await;
        Ok(())
    }

    async fn answer(&self, connection: &ConnectionInfo, request: &Request) -> Result<Reply, Error> {
        let body = request.body();
        match request.name() {
            "hello" | "isMaster" | "ismaster" => Ok(self.hello(connection, request)),
            "ping" => Ok(Reply::ok()),
            "buildInfo" | "buildinfo" => build_info(),
            "replSetInitiate" => self.initiate(body).await,
            FOUND => self.found(body).await,
            JOIN => self.join(body).await,
            "replSetGetStatus" | "replSetGetConfig" | "replSetReconfig" | "replSetStepDown"
            | "replSetFreeze" => Err(Error::new(
                Code::NOT_YET_INITIALIZED,
                "no replset config has been received",
            )),
            _ => Err(self.explain_to_drivers(refuse_outside_a_set(request))),
        }
    }

    /// With the number of what this server says of itself, as members tell it.
    fn explain_to_drivers(&self, error: Error) -> Error {
        if !tells_of_another_state(error.code) {
            return error;
        }
        let mut details = DocWriter::new();
        self.append_topology_version(&mut details);
        error.with_details(details.finish())
    }

    fn append_topology_version(&self, writer: &mut DocWriter) {
        writer
            .begin_document("topologyVersion")
            .append("processId", self.process_id)
            .append("counter", 0i64)
            .end();
    }

    fn hello(&self, connection: &ConnectionInfo, request: &Request) -> Reply {
        let mut writer = Reply::writer();
        if request.body().get("helloOk") == Some(ValueRef::Boolean(true)) {
            writer.append("helloOk", true);
        }
        let primary = match request.name() {
            "hello" => "isWritablePrimary",
            _ => "ismaster",
        };
        self.append_topology_version(&mut writer);
        writer
            .append(primary, false)
            .append("secondary", false)
            .append("info", "Does not have a valid replica set config")
            .append("isreplicaset", true);
        append_limits(
            &mut writer,
            connection,
            SystemClock.now_ms(),
            SESSION_TIMEOUT_MINUTES,
        );
        writer.append("ok", 1.0);
        Reply::from_writer(writer)
    }

    async fn initiate(&self, body: Doc<'_>) -> Result<Reply, Error> {
        let id = ObjectIds::new().next(0);
        let configuration = match body.first().map(|first| first.value()) {
            Some(ValueRef::Document(doc)) if !doc.is_empty() => {
                Configuration::from_document(doc, id)?
            }
            _ => Configuration::first(&self.set, std::slice::from_ref(&self.host), id),
        };
        if configuration.name != self.set {
            return Err(Error::new(
                Code::INVALID_REPLICA_SET_CONFIG,
                format!(
                    "Attempting to initiate a replica set with name {}, but the server was \
                     started with {}; see rs.help()",
                    configuration.name, self.set
                ),
            ));
        }
        if configuration.version != 1 {
            return Err(Error::new(
                Code::INVALID_REPLICA_SET_CONFIG,
                format!(
                    "Configuration used to initiate a replica set must have version 1, but found {}",
                    configuration.version
                ),
            ));
        }
        configuration
            .check_hosts()
            .map_err(|why| Error::new(Code::INVALID_REPLICA_SET_CONFIG, why))?;
        let me = configuration.member_at(&self.host).ok_or_else(|| {
            Error::new(
                Code::INVALID_REPLICA_SET_CONFIG,
                format!(
                    "No host described in new configuration maps to this node, {}",
                    self.host
                ),
            )
        })?;
        if !me.is_voter() {
            return Err(Error::new(
                Code::INVALID_REPLICA_SET_CONFIG,
                "the member that is initiated must have a vote",
            ));
        }
        for check in [true, false] {
            for other in configuration
                .members
                .iter()
                .filter(|member| member.is_voter())
            {
                if other.id != me.id {
                    tell(&configuration, other, check).await?;
                }
            }
        }
        let membership = founder(&configuration, me);
        self.become_member(membership).await?;
        Ok(Reply::ok())
    }

    async fn found(&self, body: Doc<'_>) -> Result<Reply, Error> {
        let malformed = || Error::bad_value(format!("{FOUND} is malformed"));
        let document = body.get_doc("configuration").ok_or_else(malformed)?;
        let configuration = Configuration::from_document(document, ObjectId([0; 12]))?;
        if configuration.name != self.set {
            return Err(Error::new(
                Code::INVALID_REPLICA_SET_CONFIG,
                format!("{} was started for the set {}", self.host, self.set),
            ));
        }
        let Some(ValueRef::Int32(id)) = body.get("member") else {
            return Err(malformed());
        };
        let me = configuration.member(id).ok_or_else(malformed)?;
        if me.host != self.host {
            return Err(Error::new(
                Code::INVALID_REPLICA_SET_CONFIG,
                format!("{} calls itself {}", me.host, self.host),
            ));
        }
        if body.get("check") != Some(ValueRef::Boolean(true)) {
            self.become_member(founder(&configuration, me)).await?;
        }
        Ok(Reply::ok())
    }

    async fn join(&self, body: Doc<'_>) -> Result<Reply, Error> {
        let caller = Introduction::parse(body)?;
        if caller.set != self.set || !caller.newcomer {
            return Err(Error::new(
                Code::NOT_YET_INITIALIZED,
                "this server holds no data; a member that has lost its data must be removed from \
                 the set and added again",
            ));
        }
        let membership = Membership::Newcomer {
            member: caller.to,
            caller: (caller.from, caller.host),
        };
        self.become_member(membership).await?;
        Ok(Reply::ok())
    }
}

fn founder(configuration: &Configuration, me: &MemberConfiguration) -> Membership {
    let voters = configuration
        .members
        .iter()
        .filter(|member| member.is_voter());
    Membership::Founder {
        member: me.id,
        founders: voters
            .map(|member| (member.id, member.host.clone()))
            .collect(),
        configuration: Some(configuration.to_document()),
    }
}

pub(crate) fn already_initialized() -> Error {
    Error::new(Code::ALREADY_INITIALIZED, "already initialized")
}

/// Tells another founder what it is, or only asks whether it could be told.
async fn tell(
    configuration: &Configuration,
    other: &MemberConfiguration,
    check: bool,
) -> Result<(), Error> {
    let command = DocWriter::new()
        .with(FOUND, 1)
        .with("configuration", &configuration.to_document())
        .with("member", other.id)
        .with("check", check)
        .with("$db", "admin")
        .finish();
    let asked = async {
        let mut stream = TcpStream::connect(&other.host).await?;
        ask(&mut stream, &command).await
    };
    let reply: DocBuf = match tokio::time::timeout(ASK_TIMEOUT, asked).await {
        Ok(Ok(reply)) => reply,
        Ok(Err(error)) => return Err(unreachable(&other.host, &error.to_string())),
        Err(_) => return Err(unreachable(&other.host, "it does not answer")),
    };
    if reply.get("ok") == Some(ValueRef::Double(1.0)) {
        return Ok(());
    }
    let text = reply.as_doc().get_str("errmsg").unwrap_or("it refuses");
    Err(unreachable(&other.host, text))
}

fn unreachable(host: &str, why: &str) -> Error {
    Error::new(
        Code::NODE_NOT_FOUND,
        format!(
            "replSetInitiate quorum check failed because not all proposed set members responded \
             affirmatively: {host} failed with {why}"
        ),
    )
}

/// What answers before and after a server knows what it is.
pub struct Doorway<H> {
    room: Arc<WaitingRoom>,
    inside: std::sync::OnceLock<H>,
}

impl<H> Doorway<H> {
    pub fn new(room: Arc<WaitingRoom>) -> Self {
        Self {
            room,
            inside: std::sync::OnceLock::new(),
        }
    }

    /// From here on this answers.
    pub fn open(&self, inside: H) {
        // There is one caller, which calls once.
        let _ = self.inside.set(inside);
    }
}

impl<H: Handler> Handler for Doorway<H> {
    async fn handle(&self, connection: &Arc<ConnectionInfo>, request: Request) -> Reply {
        match self.inside.get() {
            Some(inside) => inside.handle(connection, request).await,
            None => Box::pin(self.room.answer(connection, &request))
                .await
                .into(),
        }
    }

    fn disconnected(&self, connection: &Arc<ConnectionInfo>) {
        if let Some(inside) = self.inside.get() {
            inside.disconnected(connection);
        }
    }
}
