//! Configurations that follow each other while others reconfigure, leadership is lost, or writes wait; and whom a
//! new configuration begins.
//!
//! The set has one member that runs. Others are named in its configuration; where they are asked who they
//! are, a listener of the test is silent for as long as the test likes.

use super::leadership::{lead_again, step_down};
use crate::replica_set::configuration::{Configuration, Lives, MemberConfiguration};
use crate::replica_set::transport::MemberNumber;
use crate::testing::TestShard;
use differential::value::{Fields, Value, get};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

const DEADLINE: Duration = Duration::from_secs(60);

/// A command for the next configuration: the member that runs, and these that are no voters.
fn reconfigure(version: i32, others: &[(i32, &str)]) -> String {
    let others: String = others
        .iter()
        .map(|(id, host)| format!(", {{_id: {id}, host: '{host}', votes: 0, priority: 0}}"))
        .collect();
    format!(
        "{{replSetReconfig: {{_id: 'terndb', version: {version}, members: [{{_id: 0, host: 'localhost:27017'}}{others}]}}}}"
    )
}

async fn configure(server: &TestShard, version: i32, others: &[(i32, &str)]) {
    let command = reconfigure(version, others);
    server.check(&format!("admin {command} => {{}}")).await;
}

/// The server at the host of a member that was removed.
struct Removed {
    listener: TcpListener,
    host: String,
}

impl Removed {
    /// Member 1, added with the second configuration and removed with the third.
    async fn from(server: &TestShard) -> Removed {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let host = listener.local_addr().expect("an address").to_string();
        configure(server, 2, &[(1, &host)]).await;
        configure(server, 3, &[]).await;
        Removed { listener, host }
    }

    /// It is asked whether it is still the same, and is silent until what this gives is dropped.
    async fn asked(&self) -> TcpStream {
        let asked = tokio::time::timeout(DEADLINE, self.listener.accept());
        asked.await.expect("it is asked").expect("a connection").0
    }
}

fn code(reply: &Fields) -> Option<&Value> {
    get(reply, "code")
}

/// Version of the configuration that holds, and its members.
fn held(server: &TestShard) -> (i32, Vec<i32>) {
    let now = server.shard.replica_set.configuration();
    let now = now.expect("there is one");
    (
        now.version,
        now.members.iter().map(|member| member.id).collect(),
    )
}

/// ⚑ A configuration that was worked out from another one than the one that holds is worked out again. Nobody
/// waits for a host that is silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reconfigures_while_a_host_is_silent_is_not_undone() {
    let server = TestShard::open().await;
    let removed = Removed::from(&server).await;
    let again = reconfigure(4, &[(1, &removed.host)]);
    let (reply, ()) = tokio::join!(server.run("admin", &again), async {
        let silent = removed.asked().await;
        configure(&server, 4, &[(2, "localhost:2")]).await;
        drop(silent);
    });
    assert_eq!(code(&reply), Some(&Value::Int32(103)), "{reply:?}");
    assert_eq!(held(&server), (4, vec![0, 2]));
}

/// ⚑ A life is given once, also if configurations cross each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lives_that_were_given_meanwhile_are_not_given_again() {
    let server = TestShard::open().await;
    let removed = Removed::from(&server).await;
    let again = reconfigure(9, &[(1, &removed.host)]);
    let (reply, ()) = tokio::join!(server.run("admin", &again), async {
        let silent = removed.asked().await;
        // As an entry of another primary: it comes by the log, and waits for nothing here.
        let now = server.shard.replica_set.configuration();
        let now = now.expect("there is one");
        let mut next = Configuration::clone(&now);
        next.version = 4;
        next.members
            .push(MemberConfiguration::new(2, "localhost:2"));
        next.lives = Lives::successor(&now, &next, &BTreeMap::new());
        assert_eq!(next.lives.of(2), 2);
        let term = server.shard.log.leading().expect("it leads");
        let stored = server.shard.store_configuration(term, next).await;
        stored.expect("it leads");
        drop(silent);
        // It is asked once more, for the configuration that follows this one.
        drop(removed.asked().await);
    });
    assert_eq!(get(&reply, "ok"), Some(&Value::Double(1.0)), "{reply:?}");
    configure(&server, 10, &[(1, &removed.host), (3, "localhost:3")]).await;
    let now = server.shard.replica_set.configuration();
    let now = now.expect("there is one");
    assert_eq!((now.lives.of(1), now.lives.of(3)), (1, 3));
    assert!(now.lives.earlier(2, "localhost:2").eq([2]));
}

/// ⚑ Who has lost the term in which it read a configuration stores none that follows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_has_lost_its_term_stores_no_configuration() {
    let server = TestShard::open().await;
    let removed = Removed::from(&server).await;
    let again = reconfigure(4, &[(1, &removed.host)]);
    let (reply, ()) = tokio::join!(server.run("admin", &again), async {
        let silent = removed.asked().await;
        step_down(&server).await;
        lead_again(&server).await;
        drop(silent);
    });
    assert_eq!(code(&reply), Some(&Value::Int32(10107)), "{reply:?}");
    assert_eq!(held(&server), (3, vec![0]));
    let (_, ()) = tokio::join!(server.run("admin", &again), async {
        drop(removed.asked().await);
    });
    assert_eq!(held(&server), (4, vec![0, 1]));
}

/// ⚑ Nobody is begun in a life that is over, nor in one that was lived before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_who_is_a_member_now_may_begin() {
    let server = TestShard::open().await;
    let may_begin = |id: i32, life: u32| {
        let number = MemberNumber { id, life }.in_log();
        let introduction = server.shard.introduction_to(number);
        introduction.expect("the set has a name").newcomer
    };
    assert!(!may_begin(1, 0), "it was never added");
    let removed = Removed::from(&server).await;
    assert!(!may_begin(1, 1), "it was removed");
    configure(&server, 4, &[(1, "localhost:1")]).await;
    assert!(may_begin(1, 2), "another one has its number");
    assert!(!may_begin(1, 1), "that life is over");
    assert!(!may_begin(1, 0), "nobody had that one");
    configure(&server, 5, &[]).await;
    let again = reconfigure(6, &[(1, &removed.host)]);
    let (reply, ()) = tokio::join!(server.run("admin", &again), async {
        drop(removed.asked().await);
    });
    assert_eq!(get(&reply, "ok"), Some(&Value::Double(1.0)), "{reply:?}");
    assert!(!may_begin(1, 1), "it has lived, and nobody has answered");
    assert!(!may_begin(1, 2), "that life is over");
    assert!(!may_begin(0, 0), "it votes");
}

/// A write that waits for members waits for those of the configuration that holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_waits_hears_of_another_configuration() {
    let server = TestShard::open().await;
    let near = |version: i32, others: &str, count: i32| {
        format!(
            "{{replSetReconfig: {{_id: 'terndb', version: {version}, members: [{{_id: 0, host: 'localhost:27017', tags: {{dc: 'a'}}}}{others}], settings: {{getLastErrorModes: {{near: {{dc: {count}}}}}}}}}}}"
        )
    };
    let other = ", {_id: 1, host: 'localhost:1', votes: 0, priority: 0, tags: {dc: 'b'}}";
    let waits = async |write: &str, next: &str| {
        let insert = format!("{{insert: 'c', documents: [{{}}], writeConcern: {write}}}");
        let both = async {
            tokio::join!(server.run("test", &insert), async {
                let writes = || server.shard.operations.all();
                while !writes().iter().any(|operation| operation.has_written()) {
                    tokio::task::yield_now().await;
                }
                server.check(&format!("admin {next} => {{}}")).await;
            })
        };
        let both = tokio::time::timeout(DEADLINE, both).await;
        both.expect("it does not wait for ever").0
    };
    server
        .check(&format!("admin {} => {{}}", near(2, other, 2)))
        .await;
    // What it asks for means something else.
    let reply = waits("{w: 'near'}", &near(3, other, 1)).await;
    assert_eq!(get(&reply, "writeConcernError"), None, "{reply:?}");
    // Nobody is left who could confirm it.
    let reply = waits("{w: 2}", &near(4, "", 1)).await;
    let error = get(&reply, "writeConcernError").and_then(|error| error.get("code"));
    assert_eq!(error, Some(&Value::Int32(100)), "{reply:?}");
}
