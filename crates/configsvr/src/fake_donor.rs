//! A donor that copies nothing: it answers `_terndbMoveRange` as tests tell it to, so that what the config
//! server does can be tried without shards that move data.

use differential::notation::print_fields;
use differential::value::{Fields, Value, decode, encode, get};
use model::bson::DocBuf;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::watch;
use wire::{CallError, Endpoint, Reply, Request};

/// What the donor does with a move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manner {
    /// Asks for the decision at once, and again with the indexes that stand if they are others.
    Commits,
    /// The same, as if it had begun with other indexes, and gives up when they are.
    CommitsWithOtherCatalog,
    /// Says that it cannot.
    Refuses,
    /// The same for ranges without a lower bound; commits others at once.
    RefusesLowest,
    /// Copies until it is told otherwise, or until moves of the collection are to end.
    Copies,
    /// Gives up, because somebody killed it.
    IsKilled,
    /// The same, but the config server had decided before.
    IsKilledLate,
}

#[derive(Clone, Copy)]
struct State {
    manner: Manner,
    /// Since when it blocks what moves, in seconds.
    blocked_at: u32,
    /// Moves that it was asked for.
    asked: usize,
    /// Whether moves are to end.
    halted: bool,
    /// Commits that were put off because indexes have changed.
    put_off: usize,
}

pub(crate) struct FakeDonor {
    state: watch::Sender<State>,
    config: Mutex<Option<Arc<dyn Endpoint>>>,
}

impl Default for FakeDonor {
    fn default() -> Self {
        Self {
            state: watch::Sender::new(State {
                manner: Manner::Commits,
                blocked_at: 7,
                asked: 0,
                halted: false,
                put_off: 0,
            }),
            config: Mutex::default(),
        }
    }
}

fn field(fields: &Fields, name: &str) -> Value {
    get(fields, name).cloned().unwrap_or(Value::Null)
}

/// Whether a reply says that who answers is not the primary, or stops being it.
fn is_of_no_primary(reply: &Fields) -> bool {
    use model::Code;
    let codes = [
        Code::NOT_WRITABLE_PRIMARY,
        Code::PRIMARY_STEPPED_DOWN,
        Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
        Code::SHUTDOWN_IN_PROGRESS,
    ];
    codes
        .iter()
        .any(|code| field(reply, "code") == Value::Int32(code.0))
}

fn commit_of_primary(asked: &Fields, shard: &str) -> Fields {
    let mut commit = vec![("_configsvrCommitPrimary".to_owned(), Value::Int32(1))];
    for name in ["id", "db", "version", "to"] {
        commit.push((name.to_owned(), field(asked, name)));
    }
    commit.push(("from".to_owned(), Value::String(shard.to_owned())));
    commit.push(("blockedAt".to_owned(), Value::Timestamp(7, 7)));
    commit
}

/// What both sides of a move tell of it.
fn figures() -> Value {
    let long = |name: &str, number: i64| (name.to_owned(), Value::Int64(number));
    let to = vec![long("clonedDocs", 7), long("catchUpMillis", 3)];
    Value::Document(vec![
        long("clonedDocs", 5),
        long("commitMicros", 9),
        ("to".to_owned(), Value::Document(to)),
    ])
}

impl FakeDonor {
    /// From now on this is the primary of the config server.
    pub(crate) fn meets(&self, config: Arc<dyn Endpoint>) {
        *self.config.lock() = Some(config);
    }

    /// The test is over. The primary that it met knows it, too: they would keep each other, and the
    /// data of every shard.
    pub(crate) fn leaves(&self) {
        *self.config.lock() = None;
    }

    pub(crate) fn behaves(&self, manner: Manner) {
        self.state.send_modify(|state| {
            state.manner = manner;
            state.halted = false;
        });
    }

    /// From now on its blocks have this time.
    pub(crate) fn blocks_at(&self, seconds: u32) {
        self.state.send_modify(|state| state.blocked_at = seconds);
    }

    /// How many of its commits were put off.
    pub(crate) fn was_put_off(&self) -> usize {
        self.state.borrow().put_off
    }

    /// Completes when it was asked for so many moves.
    pub(crate) async fn was_asked(&self, times: usize) {
        let mut state = self.state.subscribe();
        let _ = state.wait_for(|state| state.asked >= times).await;
    }

    /// Its answer, if it is a message about moves.
    pub(crate) async fn answer(
        &self,
        shard: &str,
        request: &Request,
    ) -> Option<Result<Reply, CallError>> {
        match request.name() {
            "_terndbAbortMoves" => {
                self.state.send_modify(|state| state.halted = true);
                Some(Ok(Reply::ok()))
            }
            "_terndbMoveRange" | "_terndbMovePrimary" => Some(self.moves(shard, request).await),
            _ => None,
        }
    }

    async fn ask(&self, mut command: Fields) -> Result<Fields, CallError> {
        let config = self.config.lock().clone();
        let config = config.expect("there is a config server");
        command.push(("$db".to_owned(), Value::String("admin".to_owned())));
        let body = DocBuf::from_bytes(encode(&command)).expect("encoded BSON is valid");
        let request = Request::from_parts(body, Vec::new()).expect("a command");
        let reply = config.call(request).await?;
        Ok(decode(reply.document().as_bytes()).expect("a reply is valid BSON"))
    }

    async fn commit_of_range(
        &self,
        asked: &Fields,
        shard: &str,
        manner: Manner,
    ) -> Result<Fields, CallError> {
        let routing = vec![("_configsvrGetRouting".to_owned(), field(asked, "ns"))];
        let routing = self.ask(routing).await?;
        let version = field(&routing, "version");
        let part = |name: &str| version.get(name).cloned().unwrap_or(Value::Null);
        let catalog = match (manner, field(asked, "catalogVersion")) {
            (Manner::CommitsWithOtherCatalog, _) => Value::Int64(77),
            (_, catalog) => catalog,
        };
        let mut commit = vec![("_configsvrCommitMove".to_owned(), Value::Int32(1))];
        for name in ["id", "ns", "uuid", "range", "to"] {
            commit.push((name.to_owned(), field(asked, name)));
        }
        commit.push(("from".to_owned(), Value::String(shard.to_owned())));
        commit.push(("epoch".to_owned(), part("e")));
        commit.push(("timestamp".to_owned(), part("t")));
        commit.push(("catalogVersion".to_owned(), catalog));
        let blocked_at = self.state.borrow().blocked_at;
        commit.push(("blockedAt".to_owned(), Value::Timestamp(blocked_at, 7)));
        Ok(commit)
    }

    /// The version of options and indexes, once one stands.
    async fn standing_catalog(&self, asked: &Fields) -> Result<Value, CallError> {
        loop {
            let mut question = vec![("_configsvrCatalogVersion".to_owned(), Value::Int32(1))];
            for name in ["ns", "uuid"] {
                question.push((name.to_owned(), field(asked, name)));
            }
            let told = self.ask(question).await?;
            if field(&told, "changes") != Value::Bool(true) {
                return Ok(field(&told, "catalogVersion"));
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    async fn moves(&self, shard: &str, request: &Request) -> Result<Reply, CallError> {
        self.state.send_modify(|state| state.asked += 1);
        let asked: Fields = decode(request.body().as_bytes()).expect("a valid command");
        let mut state = self.state.subscribe();
        let manner = {
            let decided = state.wait_for(|state| state.manner != Manner::Copies || state.halted);
            let decided = decided.await.expect("the sender lives in self");
            decided.manner
        };
        let bounds = field(&asked, "bounds");
        let lowest = match bounds.get("min") {
            Some(Value::Document(min)) => min.iter().any(|(_, value)| *value == Value::MinKey),
            _ => false,
        };
        if manner == Manner::Refuses || (manner == Manner::RefusesLowest && lowest) {
            let error = model::Error::new(model::Code::OPERATION_FAILED, "no disk space");
            return Ok(Reply::error(&error));
        }
        let lost = |reply: &Fields| CallError::OutcomeUnknown(print_fields(reply));
        let mut outcome = Vec::new();
        if !matches!(manner, Manner::Copies | Manner::IsKilled) {
            let commit = match request.name() {
                "_terndbMovePrimary" => commit_of_primary(&asked, shard),
                _ => self.commit_of_range(&asked, shard, manner).await?,
            };
            outcome = self.ask(commit.clone()).await?;
            if is_of_no_primary(&outcome) {
                // It would be settled at the next one, as aborted: rightly so, but not what is tried.
                return Err(lost(&outcome));
            }
            while field(&outcome, "outcome") == Value::String("catalogChanged".to_owned()) {
                self.state.send_modify(|state| state.put_off += 1);
                if manner == Manner::CommitsWithOtherCatalog {
                    outcome = Vec::new();
                    break;
                }
                let standing = self.standing_catalog(&asked).await?;
                let mut again = commit.clone();
                for (name, value) in &mut again {
                    if name == "catalogVersion" {
                        *value = standing.clone();
                    }
                }
                outcome = self.ask(again).await?;
            }
        }
        if get(&outcome, "outcome").is_none() {
            let settle = vec![
                ("_configsvrSettle".to_owned(), Value::Int32(1)),
                ("operation".to_owned(), field(&asked, "id")),
            ];
            outcome = self.ask(settle).await?;
        }
        if get(&outcome, "outcome").is_none() {
            return Err(lost(&outcome));
        }
        let mut reply = vec![
            ("outcome".to_owned(), field(&outcome, "outcome")),
            (
                "reason".to_owned(),
                Value::String("it was told so".to_owned()),
            ),
            ("stats".to_owned(), figures()),
            ("ok".to_owned(), Value::Double(1.0)),
        ];
        if matches!(manner, Manner::IsKilled | Manner::IsKilledLate) {
            reply.push(("reasonCode".to_owned(), Value::Int32(11601)));
        }
        let reply = DocBuf::from_bytes(encode(&reply)).expect("encoded BSON is valid");
        Ok(Reply::from(reply))
    }
}
