//! A replica set as one endpoint: finds the primary by `hello`, follows failovers, and reads where
//! a request's read preference allows it.
//!
//! ```text
//!   call ─► member known? ── no ─► look: hello to all members at once, one look at a time
//!             │ yes                    │ nobody fits: again after a pause, until the deadline
//!             ▼                        ▼
//!           send ─► NotSent, or refused by a member that is not what it was thought to be:
//!             │     forget what is known, look, send again until the deadline
//!             └───► a reply, or OutcomeUnknown: the caller's; a read is sent again, once
//! ```
//!
//! A read whose member ends before it has answered is asked for again where another one does its work. ⚑ Once
//! only: a query that its members do not survive must not end a whole set. A cursor that is gone
//! with its member is its caller's.
//!
//! While a call waits its member is watched (`watched.rs`).
//!
//! What is refused with "not primary" is sent again only where that cannot repeat anything: a batch
//! of writes may have lost its primary half-way, and then answers the same. Such a batch is sent
//! again if it belongs to a retryable write, whose statements the set recognises.
//!
//! Members come and go: what a primary says in `hello` about the hosts of its set replaces the list,
//! if it is of the same set. ⚑ They are asked now and then while all goes well, too: whoever asks only
//! when those he knows have failed does not know those that replaced them one by one. Members are reached through [`Dial`], so that a set may live in this
//! process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::error::Code;
use model::number::Number;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::pulse::Pulse;
use super::read_preference::{ReadMode, ReadPreference};
use super::watched::{Heard, Watched};
use super::{Answer, BoxFuture, CallError, Endpoint, PoolStatistics};
use crate::operation::only_reads;
use crate::reply::Reply;
use crate::request::Request;

/// How a member is reached, by its `host:port`.
pub type Dial = Arc<dyn Fn(&str) -> Arc<dyn Endpoint> + Send + Sync>;

#[derive(Clone, Debug)]
pub struct ReplicaSetTimes {
    /// How long a call may look for a member that fits.
    pub selection_limit: Duration,
    /// Between two looks.
    pub pause: Duration,
    /// How long a member may take to say what it is.
    pub hello_limit: Duration,
    /// Between two looks while nobody fails.
    pub look_interval: Duration,
}

impl Default for ReplicaSetTimes {
    fn default() -> ReplicaSetTimes {
        ReplicaSetTimes {
            selection_limit: Duration::from_secs(20),
            pause: Duration::from_millis(50),
            hello_limit: Duration::from_secs(2),
            look_interval: Duration::from_secs(30),
        }
    }
}

/// How long a hurried call looks: a set whose primary has ended has another one by then.
const HURRIED_LIMIT: Duration = Duration::from_secs(3);

/// How often a read is sent again because its member has not answered it. Once: if another member ends too, it is
/// probably the query.
const READS_LOST_MAX: u32 = 1;

/// The members of one replica set.
pub struct ReplicaSet(Arc<Shared>);

/// What all calls to a set, and to members of it, share.
pub(super) struct Shared {
    name: String,
    dial: Dial,
    pub(super) times: ReplicaSetTimes,
    pub(super) known: Mutex<Known>,
    /// Held by who looks, so that others wait for what it finds.
    looking: tokio::sync::Mutex<()>,
    /// Of calls that wait.
    pub(super) pulse: Arc<Pulse>,
}

#[derive(Default)]
pub(super) struct Known {
    pub(super) members: BTreeMap<String, Member>,
    /// Counts looks: who waited for one need not look again.
    pub(super) looks: u64,
    /// When to look although nobody failed.
    look_at: Option<Instant>,
    /// The primary's claim: of two that call themselves primary the later elected one is.
    claim: Option<Claim>,
    /// Where the next read among equals goes.
    turn: usize,
}

pub(super) struct Member {
    endpoint: Arc<dyn Endpoint>,
    pub(super) role: Role,
    tags: Option<DocBuf>,
    pub(super) heard: Arc<Heard>,
}

impl Member {
    fn new(endpoint: Arc<dyn Endpoint>) -> Member {
        Member {
            endpoint,
            role: Role::Unknown,
            tags: None,
            heard: Arc::default(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Unknown,
    Primary,
    Secondary,
}

/// The order of `setVersion` and `electionId`.
#[derive(Clone, PartialEq, PartialOrd, Debug)]
struct Claim {
    election: Option<[u8; 12]>,
    set_version: i64,
}

/// What a member says it is.
pub(super) struct Said {
    host: String,
    role: Role,
    tags: Option<DocBuf>,
    hosts: Vec<String>,
    claim: Claim,
}

impl ReplicaSet {
    /// `hosts` are those that are asked first.
    pub fn new<'a>(
        name: &str,
        hosts: impl IntoIterator<Item = &'a str>,
        dial: Dial,
        times: ReplicaSetTimes,
    ) -> ReplicaSet {
        let members = hosts
            .into_iter()
            .map(|host| (host.to_owned(), Member::new(dial(host))))
            .collect();
        ReplicaSet(Arc::new(Shared {
            name: name.to_owned(),
            known: Mutex::new(Known {
                members,
                ..Known::default()
            }),
            dial,
            times,
            looking: tokio::sync::Mutex::default(),
            pulse: Arc::default(),
        }))
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub fn hosts(&self) -> Vec<String> {
        self.0.known.lock().members.keys().cloned().collect()
    }
}

impl Shared {
    fn described(&self) -> String {
        let known = self.known.lock();
        let hosts: Vec<&str> = known.members.keys().map(String::as_str).collect();
        format!("{}/{}", self.name, hosts.join(","))
    }

    async fn send(self: &Arc<Self>, request: Request) -> Result<Answer, CallError> {
        self.look_now_and_then();
        let preference = ReadPreference::of(request.body());
        let limit = match request.is_hurried() {
            true => self.times.selection_limit.min(HURRIED_LIMIT),
            false => self.times.selection_limit,
        };
        let mut deadline = Instant::now() + limit;
        let mut lost = 0;
        let mut last_error = None;
        let mut refused_by: Option<String> = None;
        loop {
            let selected = self.select(&preference, deadline).await;
            let (host, endpoint) = match (selected, last_error) {
                (Ok(selected), _) => selected,
                (Err(_), Some(error)) => return Err(error),
                (Err(error), None) => return Err(error),
            };
            let member = Watched {
                set: self.clone(),
                endpoint,
                host,
                mode: preference.mode,
            };
            let result = member.ask(request.clone()).await;
            match result {
                Ok(reply) if is_not_primary(reply.document()) => {
                    self.doubt(&member.host);
                    if Instant::now() >= deadline || !may_be_repeated(&request) {
                        return Ok(member.answered(reply));
                    }
                    // It takes itself for the primary and answers otherwise: that takes time to end.
                    if refused_by.as_ref() == Some(&member.host) {
                        tokio::time::sleep(self.times.pause).await;
                    }
                    refused_by = Some(member.host);
                    last_error = None;
                }
                Ok(reply) => return Ok(member.answered(reply)),
                Err(error @ CallError::OutcomeUnknown(_)) => {
                    self.doubt(&member.host);
                    let is_asked_again = only_reads(request.name()) && may_be_repeated(&request);
                    // What took long until it was lost has not looked for anybody yet.
                    if !request.is_hurried() {
                        deadline = Instant::now() + limit;
                    }
                    if !is_asked_again || lost >= READS_LOST_MAX || Instant::now() >= deadline {
                        return Err(error);
                    }
                    lost += 1;
                    last_error = Some(error);
                }
                Err(error @ (CallError::NotSent(_) | CallError::NobodyFits(_))) => {
                    self.doubt(&member.host);
                    if Instant::now() >= deadline {
                        return Err(error);
                    }
                    last_error = Some(error);
                }
            }
        }
    }

    fn look_now_and_then(self: &Arc<Self>) {
        let looks = {
            let mut known = self.known.lock();
            let now = Instant::now();
            let due = *known.look_at.get_or_insert(now + self.times.look_interval);
            if now < due {
                return;
            }
            known.look_at = Some(now + self.times.look_interval);
            known.looks
        };
        let set = self.clone();
        tokio::spawn(async move { set.look(looks, ReadMode::Nearest).await });
    }

    /// A member that fits, looking for one if need be.
    async fn select(
        self: &Arc<Self>,
        preference: &ReadPreference,
        deadline: Instant,
    ) -> Result<(String, Arc<dyn Endpoint>), CallError> {
        loop {
            let looks = {
                let mut known = self.known.lock();
                if let Some(found) = known.choose(preference) {
                    return Ok(found);
                }
                known.looks
            };
            let looked = timeout_at(deadline, self.look(looks, preference.mode)).await;
            {
                let mut known = self.known.lock();
                if let Some(found) = known.choose(preference) {
                    return Ok(found);
                }
            }
            let pause = Instant::now() + self.times.pause;
            if looked.is_err() || pause >= deadline {
                return Err(CallError::NobodyFits(format!(
                    "Could not find host matching read preference {preference} for set {}",
                    self.described()
                )));
            }
            tokio::time::sleep_until(pause).await;
        }
    }

    /// Asks all members what they are, unless somebody did since `looks`.
    pub(super) async fn look(self: &Arc<Self>, looks: u64, mode: ReadMode) {
        let _one_at_a_time = self.looking.lock().await;
        let mut asking = JoinSet::new();
        {
            let known = self.known.lock();
            if known.looks != looks {
                return;
            }
            for (host, member) in &known.members {
                let (host, endpoint) = (host.clone(), member.endpoint.clone());
                let set = self.clone();
                asking.spawn(async move { set.ask(&host, &endpoint).await });
            }
        }
        while let Some(said) = asking.join_next().await {
            if mode == ReadMode::Primary && matches!(said, Ok(Some(Role::Primary))) {
                // The slower ones are learned of whenever they answer.
                asking.detach_all();
            }
        }
        self.known.lock().looks += 1;
    }

    /// Asks a member what it is, and remembers it.
    pub(super) async fn ask(&self, host: &str, endpoint: &Arc<dyn Endpoint>) -> Option<Role> {
        let said = ask(&self.name, host, endpoint, self.times.hello_limit).await?;
        let role = said.role;
        self.known.lock().learn(said, &self.dial);
        Some(role)
    }

    pub(super) fn doubt(&self, host: &str) {
        let mut known = self.known.lock();
        if let Some(member) = known.members.get_mut(host) {
            member.role = Role::Unknown;
        }
    }
}

impl Endpoint for ReplicaSet {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
        Box::pin(async move { Ok(self.0.send(request).await?.reply) })
    }

    fn open(&self, request: Request) -> BoxFuture<'_, Result<Answer, CallError>> {
        Box::pin(self.0.send(request))
    }

    fn look_again(&self) -> BoxFuture<'_, ()> {
        let looks = self.0.known.lock().looks;
        Box::pin(self.0.look(looks, ReadMode::Nearest))
    }

    fn pools(&self) -> Vec<PoolStatistics> {
        let known = self.0.known.lock();
        let members = known.members.values();
        members.flat_map(|member| member.endpoint.pools()).collect()
    }

    fn connection_string(&self) -> Option<String> {
        // Before anybody was asked there is nothing to tell.
        let asked = self.0.known.lock().claim.is_some();
        asked.then(|| self.0.described())
    }
}

impl Known {
    fn choose(&mut self, preference: &ReadPreference) -> Option<(String, Arc<dyn Endpoint>)> {
        let primary = |this: &Known| {
            let mut members = this.members.iter();
            let found = members.find(|(_, member)| member.role == Role::Primary)?;
            Some((found.0.clone(), found.1.endpoint.clone()))
        };
        match preference.mode {
            ReadMode::Primary => primary(self),
            ReadMode::PrimaryPreferred => {
                primary(self).or_else(|| self.any(preference, |role| role == Role::Secondary))
            }
            ReadMode::Secondary => self.any(preference, |role| role == Role::Secondary),
            ReadMode::SecondaryPreferred => self
                .any(preference, |role| role == Role::Secondary)
                .or_else(|| primary(self)),
            ReadMode::Nearest => self.any(preference, |role| role != Role::Unknown),
        }
    }

    /// One of the members with a role and the first tags that anybody has, in turn.
    fn any(
        &mut self,
        preference: &ReadPreference,
        fits: impl Fn(Role) -> bool,
    ) -> Option<(String, Arc<dyn Endpoint>)> {
        let no_tags = [DocBuf::new()];
        let sets = match preference.tag_sets.as_slice() {
            [] => &no_tags[..],
            sets => sets,
        };
        for set in sets {
            let fitting: Vec<(&String, &Member)> = self
                .members
                .iter()
                .filter(|(_, member)| {
                    fits(member.role) && ReadPreference::has_tags(member.tags.as_ref(), set)
                })
                .collect();
            if !fitting.is_empty() {
                let (host, member) = fitting[self.turn % fitting.len()];
                let found = (host.clone(), member.endpoint.clone());
                self.turn = self.turn.wrapping_add(1);
                return Some(found);
            }
        }
        None
    }

    fn learn(&mut self, said: Said, dial: &Dial) {
        let mut role = said.role;
        if role == Role::Primary {
            // A primary that was replaced may not know it yet.
            if self.claim.as_ref().is_some_and(|claim| said.claim < *claim) {
                role = Role::Unknown;
            } else {
                self.claim = Some(said.claim);
                for member in self.members.values_mut() {
                    if member.role == Role::Primary {
                        member.role = Role::Unknown;
                    }
                }
                self.members.retain(|host, _| said.hosts.contains(host));
            }
        }
        for host in &said.hosts {
            if !self.members.contains_key(host) {
                let member = Member::new(dial(host));
                self.members.insert(host.clone(), member);
            }
        }
        if let Some(member) = self.members.get_mut(&said.host) {
            member.role = role;
            member.tags = said.tags;
        }
    }
}

async fn ask(set: &str, host: &str, endpoint: &Arc<dyn Endpoint>, limit: Duration) -> Option<Said> {
    let body = DocWriter::new()
        .with("hello", 1)
        .with("$db", "admin")
        .finish();
    let request = Request::from_parts(body, Vec::new()).ok()?;
    let reply = timeout(limit, endpoint.call(request)).await.ok()?.ok()?;
    let reply = reply.document();
    if reply.get_str("setName") != Some(set) {
        return None;
    }
    let is = |field: &str| reply.get(field) == Some(ValueRef::Boolean(true));
    let role = match (is("isWritablePrimary"), is("secondary")) {
        (true, _) => Role::Primary,
        (false, true) => Role::Secondary,
        (false, false) => Role::Unknown,
    };
    let text = |value| match value {
        ValueRef::String(text) => Some(text.to_owned()),
        _ => None,
    };
    let hosts: Vec<String> = reply
        .get_array("hosts")
        .map_or(Vec::new(), |hosts| hosts.iter().filter_map(text).collect());
    let number = |field: &str| reply.get(field).and_then(Number::of);
    Some(Said {
        // A member may be reached by another name than the one the set knows it by.
        host: reply.get_str("me").unwrap_or(host).to_owned(),
        role,
        tags: reply.get_doc("tags").map(Doc::to_owned),
        hosts,
        claim: Claim {
            election: match reply.get("electionId") {
                Some(ValueRef::ObjectId(id)) => Some(id.0),
                _ => None,
            },
            set_version: number("setVersion").map_or(0, |number| number.to_f64() as i64),
        },
    })
}

/// Whether a member refused because it is not, or no longer, what a request needs.
fn is_not_primary(reply: Doc<'_>) -> bool {
    let code = match reply.get("code") {
        Some(ValueRef::Int32(code)) => Code(code),
        _ => return false,
    };
    matches!(
        code,
        Code::NOT_WRITABLE_PRIMARY
            | Code::NOT_PRIMARY_NO_SECONDARY_OK
            | Code::NOT_PRIMARY_OR_SECONDARY
            | Code::PRIMARY_STEPPED_DOWN
            | Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE
            | Code::SHUTDOWN_IN_PROGRESS
            | Code::INTERRUPTED_AT_SHUTDOWN
    )
}

/// Whether a refused request may be sent again without carrying anything out twice.
fn may_be_repeated(request: &Request) -> bool {
    let body = request.body();
    match request.name() {
        "insert" | "update" | "delete" | "findAndModify" | "findandmodify" => {
            body.get("txnNumber").is_some()
        }
        "aggregate" => {
            let stages = body.get_array("pipeline");
            let last = stages.and_then(|stages| stages.iter().last());
            !matches!(last, Some(ValueRef::Document(stage))
                if stage.get("$out").is_some() || stage.get("$merge").is_some())
        }
        // A cursor moves on whatever becomes of the reply.
        "getMore" => false,
        _ => true,
    }
}
