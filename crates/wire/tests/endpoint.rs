//! Endpoints: a pool of connections to one server, and a replica set that changes its primary.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use model::bson::{DocBuf, DocWriter, ObjectId, ValueRef};
use model::error::{Code, Error};
use parking_lot::Mutex;
use support::*;
use tokio::sync::Notify;
use wire::operation::{Operations, within};
use wire::{
    BoxFuture, CallError, ConnectionInfo, Endpoint, Handler, Host, HostOptions, InProcess,
    ReplicaSet, ReplicaSetTimes, Reply, Request, Sequence, ServerOptions,
};

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(async { tokio::time::timeout(DEADLINE, future).await })
        .expect("in time")
}

fn request(body: DocBuf) -> Request {
    Request::from_parts(body, vec![]).unwrap()
}

fn host(server: &TestServer, connections_max: usize) -> Arc<Host> {
    let options = HostOptions {
        connections_max,
        ..HostOptions::default()
    };
    Arc::new(Host::new(&server.address.to_string(), options))
}

#[test]
fn requests_and_replies_of_every_size_pass_unchanged() {
    let server = TestServer::start();
    let host = host(&server, 4);
    run(async {
        for n in [0, 1, 5_000, 70_000, 1_000_000, 3, 9_000_000, 18_000_000, 0] {
            let reply = host.call(request(command("grow", n))).await.unwrap();
            let text = reply.document().get_str("text").unwrap();
            assert_eq!(text.len(), n as usize);
        }
        for length in [1, 40_000, 200_000] {
            let text = "y".repeat(length);
            let large = DocWriter::new().with("t", text.as_str()).finish();
            let body = DocWriter::new()
                .with("echo", 1)
                .with("$db", "test")
                .with("t", text.as_str())
                .finish();
            let sequences = vec![
                Sequence::new("a", [large.as_doc(), large.as_doc()]),
                Sequence::new("b", [large.as_doc()]),
            ];
            let sent = Request::from_parts(body.clone(), sequences).unwrap();
            let reply = host.call(sent).await.unwrap();
            let reply = reply.document();
            assert_eq!(reply.get_doc("body"), Some(body.as_doc()));
            let counts = reply.get_doc("sequences").unwrap();
            assert_eq!(counts.get("a"), Some(ValueRef::Int32(2)));
            assert_eq!(counts.get("b"), Some(ValueRef::Int32(1)));
        }
    });
    assert_eq!(server.handle.metrics().connections_created, 1);
}

#[test]
fn calls_wait_for_their_turn_when_the_pool_is_full() {
    let server = TestServer::start();
    let host = host(&server, 2);
    run(async {
        let calls: Vec<_> = (0..10)
            .map(|_| {
                let host = host.clone();
                tokio::spawn(async move { host.call(request(command("hold", 1))).await })
            })
            .collect();
        server.script.release.add_permits(10);
        for call in calls {
            assert!(call.await.unwrap().is_ok());
        }
    });
    assert!(server.handle.metrics().connections_created <= 2);
}

#[test]
fn a_lost_connection_says_whether_the_request_was_sent() {
    let mut server = TestServer::start_with(ServerOptions {
        drain_timeout: Duration::ZERO,
        ..ServerOptions::default()
    });
    let host = host(&server, 4);
    run(async {
        host.call(request(command("ping", 1))).await.unwrap();
        let held = {
            let host = host.clone();
            tokio::spawn(async move { host.call(request(command("hold", 1))).await })
        };
        tokio::task::block_in_place(|| {
            wait_for("the command", || server.script.holding.load(SeqCst) == 1);
            server.handle.shutdown();
            server.join();
        });
        let lost = held.await.unwrap();
        assert!(
            matches!(lost, Err(CallError::OutcomeUnknown(_))),
            "{lost:?}"
        );
        let refused = host.call(request(command("ping", 1))).await;
        assert!(matches!(refused, Err(CallError::NotSent(_))), "{refused:?}");
    });
}

#[test]
fn a_dropped_call_ends_its_connection_and_no_other() {
    let server = TestServer::start();
    let host = host(&server, 4);
    run(async {
        let call = tokio::spawn({
            let host = host.clone();
            async move { host.call(request(command("hangup", 1))).await }
        });
        tokio::task::block_in_place(|| {
            wait_for("the command", || server.script.holding.load(SeqCst) == 1);
        });
        call.abort();
        tokio::task::block_in_place(|| {
            wait_for("the hangup", || server.script.hangups.load(SeqCst) == 1);
        });
        host.call(request(command("ping", 1))).await.unwrap();
    });
}

#[test]
fn a_handler_is_an_endpoint_without_a_socket() {
    let server = TestServer::start();
    let endpoint = InProcess::new(server.script.clone());
    run(async {
        let reply = endpoint.call(request(command("grow", 3))).await.unwrap();
        assert_eq!(reply.document().get_str("text"), Some("xxx"));
    });
    drop(endpoint);
    assert_eq!(server.script.disconnected.load(SeqCst), 1);
}

/// A replica set of members that only say what they are and count what they are asked.
#[derive(Default)]
struct Set(Mutex<SetState>);

#[derive(Default)]
struct SetState {
    primary: Option<&'static str>,
    election: u8,
    hosts: Vec<&'static str>,
    away: Vec<&'static str>,
    release: Arc<Notify>,
    hellos_to_a: usize,
    look_interval: Option<Duration>,
    /// Loses the replies to so many commands.
    lose_replies: usize,
    /// These answer nothing until they are released.
    silent: Vec<&'static str>,
    /// Of these only `hello` is answered until they are released.
    slow: Vec<&'static str>,
    /// Commands other than hello, with who answered.
    asked: Vec<(String, String)>,
}

struct FakeMember {
    host: String,
    set: Arc<Set>,
    release: Arc<Notify>,
}

impl Endpoint for FakeMember {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
        let mut set = self.set.0.lock();
        let result = if set.away.contains(&self.host.as_str()) {
            Err(CallError::NotSent("away".to_owned()))
        } else {
            let is_primary = set.primary == Some(self.host.as_str());
            if request.name() == "hello" {
                set.hellos_to_a += usize::from(self.host == "a");
                let mut writer = Reply::writer()
                    .with("setName", "flock")
                    .with("setVersion", 1)
                    .with("me", self.host.as_str())
                    .with("isWritablePrimary", is_primary)
                    .with("secondary", !is_primary)
                    .with("electionId", ObjectId([set.election; 12]));
                writer.begin_array("hosts");
                for host in &set.hosts {
                    writer.push(*host);
                }
                writer.end().append("ok", 1.0);
                Ok(Reply::from_writer(writer))
            } else {
                let name = request.name().to_owned();
                set.asked.push((self.host.clone(), name.clone()));
                let is_read = request.body().get("$readPreference").is_some();
                let is_lost = set.lose_replies > 0;
                set.lose_replies = set.lose_replies.saturating_sub(1);
                if is_lost {
                    Err(CallError::OutcomeUnknown("lost".to_owned()))
                } else if is_primary || is_read {
                    Ok(Reply::ok())
                } else {
                    Ok(Reply::error(&Error::new(
                        Code::NOT_WRITABLE_PRIMARY,
                        "not primary",
                    )))
                }
            }
        };
        let waits = set.silent.contains(&self.host.as_str())
            || (set.slow.contains(&self.host.as_str()) && request.name() != "hello");
        let release = self.release.clone();
        Box::pin(async move {
            if waits {
                release.notified().await;
            }
            result
        })
    }
}

impl Set {
    fn new(hosts: &[&'static str]) -> Arc<Set> {
        let set = Set::default();
        set.0.lock().hosts = hosts.to_vec();
        set.elect(Some(hosts[0]));
        Arc::new(set)
    }

    fn elect(&self, primary: Option<&'static str>) {
        let mut state = self.0.lock();
        state.primary = primary;
        state.election += 1;
    }

    fn endpoint(self: &Arc<Set>, seeds: &[&str]) -> ReplicaSet {
        self.endpoint_within(DEADLINE / 2, seeds)
    }

    /// One that looks no longer than this for a member to ask.
    fn endpoint_within(self: &Arc<Set>, limit: Duration, seeds: &[&str]) -> ReplicaSet {
        self.endpoint_with(limit, DEADLINE / 2, seeds)
    }

    fn endpoint_with(
        self: &Arc<Set>,
        selection_limit: Duration,
        hello_limit: Duration,
        seeds: &[&str],
    ) -> ReplicaSet {
        let (set, made) = (self.clone(), Mutex::new(HashMap::new()));
        let dial = move |host: &str| -> Arc<dyn Endpoint> {
            let mut made = made.lock();
            let member = made.entry(host.to_owned()).or_insert_with(|| {
                Arc::new(FakeMember {
                    host: host.to_owned(),
                    set: set.clone(),
                    release: set.0.lock().release.clone(),
                })
            });
            member.clone()
        };
        let times = ReplicaSetTimes {
            selection_limit,
            pause: Duration::from_millis(1),
            hello_limit,
            look_interval: self.0.lock().look_interval.unwrap_or(DEADLINE),
        };
        ReplicaSet::new("flock", seeds.iter().copied(), Arc::new(dial), times)
    }

    fn asked(&self) -> Vec<String> {
        let asked = std::mem::take(&mut self.0.lock().asked);
        asked
            .into_iter()
            .map(|(host, name)| format!("{name}@{host}"))
            .collect()
    }
}

fn insert(retryable: bool) -> Request {
    let mut body = DocWriter::new()
        .with("insert", "birds")
        .with("$db", "test")
        .finish();
    if retryable {
        body = DocWriter::new()
            .with("insert", "birds")
            .with("txnNumber", 1i64)
            .with("$db", "test")
            .finish();
    }
    request(body)
}

fn read(mode: &str) -> Request {
    let preference = DocWriter::new().with("mode", mode).finish();
    let body = DocWriter::new()
        .with("find", "birds")
        .with("$db", "test")
        .with("$readPreference", ValueRef::Document(preference.as_doc()))
        .finish();
    request(body)
}

/// Nobody has the tags that a request asks for: that is not the same as nobody being there.
#[test]
fn tags_that_nobody_has_are_told() {
    let set = Set::new(&["a", "b"]);
    let endpoint = set.endpoint_within(Duration::from_millis(20), &["a"]);
    let mut body = DocWriter::new().with("find", "birds").with("$db", "test");
    body.begin_document("$readPreference")
        .append("mode", "nearest")
        .begin_array("tags")
        .push_document()
        .append("region", "moon")
        .end()
        .end()
        .end();
    run(async {
        let error = endpoint.call(request(body.finish())).await.unwrap_err();
        let told = "Could not find host matching read preference { mode: \"nearest\", tags: [ { \
                    region: \"moon\" } ] } for set flock/a,b";
        assert_eq!(error, CallError::NobodyFits(told.to_owned()));
    });
}

#[test]
fn the_primary_is_found_and_followed() {
    let set = Set::new(&["a", "b", "c"]);
    let endpoint = set.endpoint(&["b"]);
    run(async {
        endpoint.call(insert(false)).await.unwrap();
        assert_eq!(set.asked(), ["insert@a"]);
        assert_eq!(endpoint.connection_string().as_deref(), Some("flock/a,b,c"));
        set.elect(Some("c"));
        // Not a retryable write: what became of it is for the caller to judge.
        let refused = endpoint.call(insert(false)).await.unwrap();
        let code = refused.document().get("code");
        assert_eq!(code, Some(ValueRef::Int32(Code::NOT_WRITABLE_PRIMARY.0)));
        assert_eq!(set.asked(), ["insert@a"]);
        endpoint.call(insert(false)).await.unwrap();
        assert_eq!(set.asked(), ["insert@c"]);
        set.elect(Some("b"));
        endpoint.call(insert(true)).await.unwrap();
        assert_eq!(set.asked(), ["insert@c", "insert@b"]);
        set.0.lock().away = vec!["b"];
        set.elect(Some("a"));
        endpoint.call(insert(false)).await.unwrap();
        assert_eq!(set.asked(), ["insert@a"]);
    });
}

#[test]
fn a_lost_reply_is_never_answered_by_sending_again() {
    let set = Set::new(&["a", "b"]);
    let endpoint = set.endpoint(&["a", "b"]);
    run(async {
        endpoint.call(insert(true)).await.unwrap();
        let more = DocWriter::new().with("getMore", 1i64).with("$db", "test");
        for sent in [insert(true), request(more.finish())] {
            set.0.lock().lose_replies = 1;
            set.asked();
            let name = sent.name().to_owned();
            let lost = endpoint.call(sent).await;
            assert!(matches!(lost, Err(CallError::OutcomeUnknown(_))));
            assert_eq!(set.asked(), [format!("{name}@a")]);
        }
    });
}

/// ⚑ A read has changed nothing: whoever does its member's work answers it. One that no member survives is told.
#[test]
fn a_read_whose_reply_is_lost_is_sent_again_once() {
    let set = Set::new(&["a", "b"]);
    let endpoint = set.endpoint(&["a", "b"]);
    run(async {
        for mode in ["primary", "secondary", "nearest"] {
            set.0.lock().lose_replies = 1;
            endpoint.call(read(mode)).await.unwrap();
            assert_eq!(set.asked().len(), 2, "{mode}");
            set.0.lock().lose_replies = usize::MAX;
            let lost = endpoint.call(read(mode)).await;
            assert!(
                matches!(lost, Err(CallError::OutcomeUnknown(_))),
                "{lost:?}"
            );
            assert_eq!(set.asked().len(), 2, "{mode}");
        }
        // What writes is no read.
        let mut body = DocWriter::new().with("aggregate", "birds");
        body.begin_array("pipeline").push_document();
        body.append("$out", "nests").end().end();
        let body = body.with("$db", "test").finish();
        let lost = endpoint.call(request(body)).await;
        assert!(
            matches!(lost, Err(CallError::OutcomeUnknown(_))),
            "{lost:?}"
        );
        assert_eq!(set.asked(), ["aggregate@a"]);
    });
}

#[test]
fn without_a_primary_the_call_ends_in_time_and_was_not_sent() {
    let set = Set::new(&["a", "b"]);
    let endpoint = set.endpoint_within(Duration::from_millis(200), &["a"]);
    set.elect(None);
    run(async {
        let refused = endpoint.call(insert(false)).await;
        assert!(
            matches!(refused, Err(CallError::NobodyFits(_))),
            "{refused:?}"
        );
        assert_eq!(set.asked(), [""; 0]);
        let endpoint = set.endpoint(&["a"]);
        endpoint.call(read("secondary")).await.unwrap();
    });
}

#[test]
fn reads_go_where_their_preference_allows() {
    let set = Set::new(&["a", "b", "c"]);
    let endpoint = set.endpoint(&["a"]);
    run(async {
        for mode in ["primary", "primaryPreferred"] {
            endpoint.call(read(mode)).await.unwrap();
            assert_eq!(set.asked(), ["find@a"], "{mode}");
        }
        endpoint.call(read("secondary")).await.unwrap();
        endpoint.call(read("secondaryPreferred")).await.unwrap();
        let mut asked = set.asked();
        asked.sort();
        assert_eq!(asked, ["find@b", "find@c"]);
        set.0.lock().away = vec!["b", "c"];
        endpoint.call(read("secondaryPreferred")).await.unwrap();
        assert_eq!(set.asked(), ["find@a"]);
        // A cursor is continued where it was opened.
        set.0.lock().away = vec![];
        let opened = endpoint.open(read("nearest")).await.unwrap();
        let first = set.asked();
        let member = opened.member.expect("one of several answered");
        member.call(read("nearest")).await.unwrap();
        assert_eq!(set.asked(), first);
    });
}

/// An endpoint that takes members for silent soon.
fn impatient(set: &Arc<Set>) -> ReplicaSet {
    set.endpoint_with(DEADLINE / 2, Duration::from_millis(20), &["a", "b", "c"])
}

/// ⚑ A primary that is stopped keeps its connections, and those who wait for it.
#[test]
fn a_silent_primary_is_not_waited_for_when_another_leads() {
    let set = Set::new(&["a", "b", "c"]);
    let endpoint = impatient(&set);
    run(async {
        let opened = endpoint.open(insert(true)).await.unwrap();
        let member = opened.member.expect("who answered");
        set.0.lock().silent = vec!["a"];
        set.elect(Some("b"));
        for call in [endpoint.call(insert(true)), member.call(insert(true))] {
            let lost = call.await;
            assert!(
                matches!(lost, Err(CallError::OutcomeUnknown(_))),
                "{lost:?}"
            );
        }
        set.asked();
        endpoint.call(insert(false)).await.unwrap();
        assert_eq!(set.asked(), ["insert@b"]);
    });
}

#[test]
fn a_call_that_is_dropped_casts_doubt_on_its_member() {
    let set = Set::new(&["a", "b"]);
    // Nobody is taken for silent while it waits.
    let endpoint = set.endpoint(&["a", "b"]);
    run(async {
        endpoint.call(insert(false)).await.unwrap();
        set.0.lock().silent = vec!["a"];
        set.elect(Some("b"));
        let dropped = tokio::time::timeout(Duration::ZERO, endpoint.call(insert(true))).await;
        assert!(dropped.is_err());
        set.asked();
        endpoint.call(insert(false)).await.unwrap();
        assert_eq!(set.asked(), ["insert@b"]);
    });
}

/// ⚑ Reads are dropped whenever a client has had enough: others do not wait for a word of the member because of that.
#[test]
fn a_read_that_is_dropped_casts_no_doubt_on_a_member_that_lives() {
    let set = Set::new(&["a", "b"]);
    let endpoint = set.endpoint(&["a", "b"]);
    run(async {
        endpoint.call(insert(false)).await.unwrap();
        set.0.lock().silent = vec!["a"];
        let said = set.0.lock().hellos_to_a;
        for _ in 0..5 {
            let dropped = tokio::time::timeout(Duration::ZERO, endpoint.call(read("primary")));
            assert!(dropped.await.is_err());
        }
        // It is asked, once, whether it is there.
        while set.0.lock().hellos_to_a == said {
            tokio::task::yield_now().await;
        }
        set.0.lock().silent.clear();
        // Nobody waits for its answer, and nobody asks anew.
        endpoint.call(insert(false)).await.unwrap();
        assert_eq!(set.0.lock().hellos_to_a, said + 1);
    });
}

/// One that stays silent is doubted after all.
#[test]
fn a_member_that_stays_silent_after_a_dropped_read_is_doubted() {
    let set = Set::new(&["a", "b"]);
    let endpoint = impatient(&set);
    run(async {
        endpoint.call(insert(false)).await.unwrap();
        set.0.lock().silent = vec!["a"];
        set.elect(Some("b"));
        let dropped = tokio::time::timeout(Duration::ZERO, endpoint.call(read("primary")));
        assert!(dropped.await.is_err());
        // A call that reaches it before waits until it is known that another one leads.
        loop {
            set.asked();
            match endpoint.call(insert(false)).await {
                Ok(_) => break,
                Err(lost) => assert!(matches!(lost, CallError::OutcomeUnknown(_)), "{lost:?}"),
            }
        }
        assert_eq!(set.asked(), ["insert@b"]);
    });
}

/// ⚑ Whoever goes on without an answer waits as long as a set takes to find another primary.
#[test]
fn a_hurried_read_waits_for_the_next_primary() {
    let set = Set::new(&["a", "b"]);
    let endpoint = set.endpoint(&["a", "b"]);
    run(async {
        endpoint.call(insert(false)).await.unwrap();
        set.asked();
        set.elect(None);
        set.0.lock().lose_replies = 1;
        let reading = endpoint.call(read("primary").hurried(true));
        let electing = async {
            while set.0.lock().lose_replies > 0 {
                tokio::task::yield_now().await;
            }
            set.0.lock().away = vec!["a"];
            set.elect(Some("b"));
        };
        let (answered, ()) = tokio::join!(reading, electing);
        answered.unwrap();
        assert_eq!(set.asked(), ["find@a", "find@b"]);
    });
}

/// What takes long is waited for: nobody else could tell what becomes of it.
#[test]
fn a_slow_member_and_a_silent_one_without_a_successor_are_waited_for() {
    let silent = |state: &mut SetState| state.silent = vec!["a"];
    let slow = |state: &mut SetState| state.slow = vec!["a"];
    for waits in [silent, slow] {
        let set = Set::new(&["a", "b", "c"]);
        let endpoint = Arc::new(impatient(&set));
        run(async {
            endpoint.call(insert(false)).await.unwrap();
            waits(&mut set.0.lock());
            let call = {
                let endpoint = endpoint.clone();
                tokio::spawn(async move { endpoint.call(insert(true)).await })
            };
            // It was asked some times whether it lives.
            let said = set.0.lock().hellos_to_a;
            while set.0.lock().hellos_to_a < said + 6 {
                assert!(!call.is_finished());
                tokio::task::yield_now().await;
            }
            set.0.lock().silent.clear();
            set.0.lock().slow.clear();
            let release = set.0.lock().release.clone();
            while !call.is_finished() {
                release.notify_waiters();
                tokio::task::yield_now().await;
            }
            call.await.unwrap().unwrap();
        });
    }
}

/// ⚑ A set whose members are replaced one after the other, none of which failed while it was one.
#[test]
fn members_that_come_later_are_known_before_they_are_needed() {
    let set = Set::new(&["a"]);
    set.0.lock().look_interval = Some(Duration::ZERO);
    let by_calls = set.endpoint(&["a"]);
    set.0.lock().look_interval = None;
    let by_looks = set.endpoint(&["a"]);
    run(async {
        for endpoint in [&by_calls, &by_looks] {
            endpoint.call(insert(false)).await.unwrap();
        }
        set.0.lock().hosts = vec!["a", "b", "c"];
        while by_calls.connection_string().as_deref() != Some("flock/a,b,c") {
            by_calls.call(insert(false)).await.unwrap();
        }
        by_looks.look_again().await;
        set.0.lock().hosts = vec!["b", "c"];
        set.0.lock().away = vec!["a"];
        set.elect(Some("b"));
        set.asked();
        for endpoint in [by_calls, by_looks] {
            endpoint.call(insert(false)).await.unwrap();
            assert_eq!(set.asked(), ["insert@b"]);
            assert_eq!(endpoint.connection_string().as_deref(), Some("flock/b,c"));
        }
    });
}

/// Keeps the connection of the command that came last, and never answers.
#[derive(Default)]
struct Endless(Mutex<Option<Arc<ConnectionInfo>>>);

impl Handler for Endless {
    async fn handle(&self, connection: &Arc<ConnectionInfo>, _: Request) -> Reply {
        *self.0.lock() = Some(connection.clone());
        std::future::pending().await
    }
}

/// ⚑ Within a process nobody hangs up: whoever reads for a caller that has given up, or is to end, is told all the
/// same. A write is finished.
#[test]
fn within_a_process_reads_end_with_their_caller() {
    run(async {
        let handler = Arc::new(Endless::default());
        let endpoint = Arc::new(InProcess::new(handler.clone()));
        let begun = async || {
            loop {
                if let Some(connection) = handler.0.lock().take() {
                    return connection;
                }
                tokio::task::yield_now().await;
            }
        };
        for (asked, ends) in [(read("primary"), true), (insert(false), false)] {
            let call = tokio::spawn({
                let endpoint = endpoint.clone();
                async move { endpoint.call(asked).await.is_ok() }
            });
            let connection = begun().await;
            assert!(!connection.is_closed());
            call.abort();
            assert!(call.await.is_err());
            assert_eq!(connection.is_closed(), ends);
        }
        // The operation that asks is killed, while its task computes and cannot drop anything.
        let operations: Operations = Operations::default();
        let client = Arc::new(ConnectionInfo::in_process(7));
        let body = DocWriter::new().with("aggregate", 1).finish();
        let operation = operations.begin(&client, body.as_bytes().to_vec().into());
        let call = tokio::spawn({
            let (endpoint, operation) = (endpoint.clone(), Arc::clone(&operation));
            let asked = async move { endpoint.call(read("primary")).await.is_ok() };
            within(operation, asked)
        });
        let connection = begun().await;
        assert!(!connection.is_closed());
        operation.kill();
        assert!(connection.is_closed() && connection.look_for_hangup());
        call.abort();
    });
}

/// Opens a cursor when it is let, whether anybody waits or not, and remembers which ones were closed.
#[derive(Default)]
struct Opens {
    asked: Notify,
    may_answer: Notify,
    closed: Mutex<Vec<i64>>,
}

impl Handler for Opens {
    async fn handle(&self, _: &Arc<ConnectionInfo>, request: Request) -> Reply {
        let mut writer = Reply::writer();
        match request.name() {
            "killCursors" => {
                let cursors = request.body().get_array("cursors").expect("cursors");
                let ids = cursors.iter().filter_map(|id| match id {
                    ValueRef::Int64(id) => Some(id),
                    _ => None,
                });
                self.closed.lock().extend(ids);
            }
            _ => {
                self.asked.notify_one();
                self.may_answer.notified().await;
                writer.begin_document("cursor");
                writer.begin_array("firstBatch").push(1).end();
                writer.append("id", 77i64).append("ns", "test.birds").end();
            }
        }
        Reply::from_writer(writer.with("ok", 1.0))
    }
}

/// ⚑ A reply that nobody reads may name a cursor: it would stay for ten minutes.
#[test]
fn a_cursor_that_a_dropped_call_opens_is_closed() {
    run(async {
        let here = Arc::new(Opens::default());
        let there = Arc::new(Opens::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = wire::Server::new(there.clone(), ServerOptions::default());
        let served = server.spawn(vec![listener]);
        let endpoints: [(Arc<Opens>, Arc<dyn Endpoint>); 2] = [
            (here.clone(), Arc::new(InProcess::new(here))),
            (there, Arc::new(Host::new(&address, HostOptions::default()))),
        ];
        for (handler, endpoint) in endpoints {
            let call = tokio::spawn({
                let endpoint = endpoint.clone();
                async move { endpoint.call(read("primary")).await.is_ok() }
            });
            handler.asked.notified().await;
            call.abort();
            assert!(call.await.is_err());
            handler.may_answer.notify_one();
            while handler.closed.lock().is_empty() {
                tokio::task::yield_now().await;
            }
            assert_eq!(*handler.closed.lock(), [77]);
        }
        served.handle.shutdown();
        served.task.await.unwrap();
    });
}
