//! Several members that reach each other over real sockets: election, replication, step-down, reads and
//! writes where they belong, members that are added and removed.

use bson::{Document, doc};
use model::bson::DocBuf;
use shard::{
    Doorway, LogWindow, MemberNumber, Membership, ReplicaSetOptions, Shard, ShardHandler,
    ShardOptions, WaitingRoom,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use wire::{ConnectionInfo, Handler, Request, ServerHandle};

const DEADLINE: Duration = Duration::from_secs(60);

struct Member {
    shard: Arc<Shard>,
    handler: wire::BoxedHandler,
    connection: Arc<ConnectionInfo>,
    server: ServerHandle,
    tasks: Vec<JoinHandle<()>>,
    host: String,
    _data: TempDir,
}

fn options(data: &TempDir) -> ShardOptions {
    ShardOptions {
        log_window: LogWindow::default(),
        data: data.path().to_owned(),
        cache_bytes: 8 << 20,
        scan_memory: None,
        parameters: Vec::new(),
    }
}

fn set(host: &str) -> ReplicaSetOptions {
    ReplicaSetOptions {
        detours: Default::default(),
        name: "flock".to_owned(),
        host: host.to_owned(),
    }
}

impl Member {
    async fn start(
        shard: Arc<Shard>,
        host: String,
        data: TempDir,
        server: ServerHandle,
        serving: JoinHandle<()>,
    ) -> Member {
        shard
            .join_replica_set(&set(&host))
            .await
            .expect("it joins its set");
        let background = shard.spawn_background();
        Member {
            handler: shard.boxed_handler(),
            shard,
            connection: Arc::new(ConnectionInfo::in_process(1)),
            server,
            tasks: vec![serving, background],
            host,
            _data: data,
        }
    }

    async fn run(&self, mut command: Document) -> Document {
        if !command.contains_key("$db") {
            command.insert("$db", "admin");
        }
        let mut bytes = Vec::new();
        command.to_writer(&mut bytes).expect("a command encodes");
        let body = DocBuf::from_bytes(bytes).expect("a command is valid");
        let request = Request::from_parts(body, Vec::new()).expect("a command has a name");
        let reply = self.handler.handle(&self.connection, request).await;
        Document::from_reader(reply.document().as_bytes()).expect("a reply decodes")
    }

    async fn is_primary(&self) -> bool {
        let hello = self.run(doc! {"hello": 1}).await;
        hello.get_bool("isWritablePrimary").unwrap_or(false)
    }

    async fn stop(self) {
        let none = Duration::ZERO;
        self.shard.begin_quiesce(none, none).await;
        self.server.shutdown();
        for task in self.tasks {
            task.await.expect("a task ends in order");
        }
        tokio::task::block_in_place(|| self.shard.close()).expect("the shard closes");
    }
}

async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let host = listener.local_addr().expect("an address").to_string();
    (listener, host)
}

async fn founders(count: usize) -> Vec<Member> {
    let mut listeners = Vec::new();
    for _ in 0..count {
        listeners.push(listener().await);
    }
    let hosts: Vec<(i32, String)> = (0..)
        .zip(listeners.iter().map(|(_, host)| host.clone()))
        .collect();
    let mut members = Vec::new();
    for (id, (listener, host)) in (0..).zip(listeners) {
        let data = TempDir::new().expect("a temporary directory");
        let membership = Membership::Founder {
            member: id,
            founders: hosts.clone(),
            configuration: None,
        };
        let shard = tokio::task::block_in_place(|| Shard::open_member(&options(&data), membership))
            .expect("an empty directory opens");
        let wire::Running {
            handle,
            task: serving,
        } = shard.serve(listener);
        members.push(Member::start(shard, host, data, handle, serving).await);
    }
    members
}

/// Waits for a condition with a deadline.
async fn wait_until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let deadline = Instant::now() + DEADLINE;
    while !condition().await {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        // Polling what clients see: there is nothing to be woken by.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn primary(members: &[Member]) -> &Member {
    let deadline = Instant::now() + DEADLINE;
    loop {
        for member in members {
            if member.is_primary().await {
                return member;
            }
        }
        assert!(Instant::now() < deadline, "waited in vain for a primary");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The next configuration: on a machine that is busy with other tests, nobody is to take a slow primary
/// for one that is gone.
async fn patient_configuration(primary: &Member) -> Document {
    let mut reply = primary.run(doc! {"replSetGetConfig": 1}).await;
    let mut configuration = reply
        .remove("config")
        .and_then(|config| config.as_document().cloned())
        .expect("a configuration");
    let version = configuration.get_i32("version").expect("a version");
    configuration.insert("version", version + 1);
    let settings = configuration
        .get_document_mut("settings")
        .expect("settings");
    settings.insert("electionTimeoutMillis", 30_000);
    configuration
}

async fn count(member: &Member) -> i32 {
    let reply = member
        .run(doc! {"count": "c", "$db": "test", "$readPreference": {"mode": "secondaryPreferred"}})
        .await;
    reply.get_i32("n").unwrap_or(-1)
}

async fn hash(member: &Member) -> Option<String> {
    let ask = doc! {"dbHash": 1, "$db": "test", "$readPreference": {"mode": "nearest"}};
    let reply = member.run(ask).await;
    reply.get_str("md5").ok().map(str::to_owned)
}

fn code(reply: &Document) -> Option<i32> {
    reply.get_i32("code").ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_elect_replicate_and_hand_over() {
    let members = founders(3).await;
    let first = primary(&members).await;
    let configuration = patient_configuration(first).await;
    let reply = first.run(doc! {"replSetReconfig": configuration}).await;
    assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
    for at in 0..10 {
        let reply = first
            .run(doc! {"insert": "c", "documents": [{"_id": at}], "$db": "test"})
            .await;
        assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    }
    let all = doc! {"insert": "c", "documents": [{"_id": 10}], "$db": "test",
    "writeConcern": {"w": 3, "wtimeout": 60_000}};
    let reply = first.run(all).await;
    assert!(!reply.contains_key("writeConcernError"), "{reply}");
    for member in &members {
        wait_until("the documents arrive", || async {
            count(member).await == 11
        })
        .await;
    }

    let secondary = members
        .iter()
        .find(|member| member.host != first.host)
        .expect("there are three");
    let reply = secondary
        .run(doc! {"insert": "c", "documents": [{"_id": "no"}], "$db": "test"})
        .await;
    assert_eq!(code(&reply), Some(10107), "{reply}");
    assert!(reply.contains_key("topologyVersion"), "{reply}");
    let reply = secondary.run(doc! {"find": "c", "$db": "test"}).await;
    assert_eq!(code(&reply), Some(13435), "{reply}");
    let commitment = doc! {"replSetGetConfig": 1, "commitmentStatus": true};
    let reply = secondary.run(commitment.clone()).await;
    assert_eq!(code(&reply), Some(10107), "{reply}");
    let reply = first.run(commitment).await;
    assert_eq!(
        reply.get_bool("commitmentStatus").ok(),
        Some(true),
        "{reply}"
    );
    let linearizable = doc! {"find": "c", "$db": "test", "readConcern": {"level": "linearizable"}};
    let reply = first.run(linearizable).await;
    assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");

    let hosts = first.run(doc! {"hello": 1}).await;
    let hosts = hosts.get_array("hosts").expect("hosts").clone();
    assert_eq!(hosts.len(), 3);
    let step_down = doc! {"replSetStepDown": 120, "secondaryCatchUpPeriodSecs": 60};
    let reply = first.run(step_down).await;
    assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
    let second = primary(&members).await;
    assert_ne!(second.host, first.host);
    wait_until("the old primary follows", || async {
        let hello = first.run(doc! {"hello": 1}).await;
        hello.get_str("primary").ok() == Some(second.host.as_str())
    })
    .await;
    let retry = doc! {"insert": "c", "documents": [{"_id": 11}], "$db": "test",
    "lsid": {"id": bson::Uuid::new()}, "txnNumber": 1i64};
    let reply = second.run(retry.clone()).await;
    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    let reply = first.run(retry).await;
    assert_eq!(code(&reply), Some(10107), "{reply}");
    let labels = reply.get_array("errorLabels").expect("labels");
    assert_eq!(labels, &vec![bson::Bson::from("RetryableWriteError")]);

    for member in &members {
        wait_until("the last document arrives", || async {
            count(member).await == 12
        })
        .await;
        assert_eq!(hash(member).await, hash(second).await);
    }
    for member in members {
        member.stop().await;
    }
}

/// A server that holds nothing.
struct Empty {
    room: Arc<WaitingRoom>,
    doorway: Arc<Doorway<ShardHandler>>,
    running: wire::Running,
    host: String,
}

impl Empty {
    async fn listen() -> Empty {
        let (listener, host) = listener().await;
        let room = Arc::new(WaitingRoom::new("flock", &host).expect("a host"));
        let doorway: Arc<Doorway<ShardHandler>> = Arc::new(Doorway::new(room.clone()));
        Empty {
            room,
            running: doorway.clone().serve(listener),
            doorway,
            host,
        }
    }

    /// Adds it to a set under a number, and lets it begin as what it is told.
    async fn added(
        self,
        primary: &Member,
        configuration: &mut Document,
        id: i32,
    ) -> (Member, MemberNumber) {
        let listed = configuration.get_array_mut("members").expect("members");
        listed.push(doc! {"_id": id, "host": &self.host}.into());
        let reply = primary
            .run(doc! {"replSetReconfig": configuration.clone()})
            .await;
        assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
        let membership = tokio::time::timeout(DEADLINE, self.room.became())
            .await
            .expect("the primary calls the newcomer");
        let Membership::Newcomer { member, .. } = membership else {
            panic!("it was not there from the beginning: {membership:?}");
        };
        assert_eq!(member.id, id);
        let data = TempDir::new().expect("a temporary directory");
        let shard = tokio::task::block_in_place(|| Shard::open_member(&options(&data), membership))
            .expect("an empty directory opens");
        self.doorway.open(ShardHandler(shard.clone()));
        let wire::Running { handle, task } = self.running;
        let newcomer = Member::start(shard, self.host, data, handle, task).await;
        self.room.settle();
        (newcomer, member)
    }
}

/// Stores the next configuration after it was changed.
async fn configure(primary: &Member, change: impl FnOnce(&mut Vec<bson::Bson>)) {
    let mut configuration = patient_configuration(primary).await;
    change(configuration.get_array_mut("members").expect("members"));
    let reply = primary.run(doc! {"replSetReconfig": configuration}).await;
    assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
}

/// What a server answers to a member that takes it for that one.
async fn call(server: &Member, to: MemberNumber) -> Option<i32> {
    let hello = server.run(doc! {"_terndbJoin": 1, "set": "flock", "to": to.id,
    "toLife": i64::from(to.life), "from": 0, "host": "nobody:1", "newcomer": false});
    code(&hello.await)
}

/// ⚑ A number that is given to another server is another member: the one that was removed, and still
/// runs, is not taken for it, whoever was restarted and remembers nothing. If it is the removed one
/// that is added again, it comes back as what it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_that_was_taken_away_is_given_as_another_member() {
    let members = founders(1).await;
    let first = primary(&members).await;
    let mut configuration = patient_configuration(first).await;
    let (old, before) = Empty::listen()
        .await
        .added(first, &mut configuration, 1)
        .await;
    assert_eq!(call(&old, before).await, None);
    let write = async |id: i32| {
        let both = doc! {"insert": "c", "documents": [{"_id": id}], "$db": "test",
        "writeConcern": {"w": 2, "wtimeout": 60_000}};
        let reply = first.run(both).await;
        assert!(!reply.contains_key("writeConcernError"), "{reply}");
    };
    write(1).await;
    let leave = |members: &mut Vec<bson::Bson>| members.truncate(1);
    configure(first, leave).await;

    let mut configuration = patient_configuration(first).await;
    let (new, after) = Empty::listen()
        .await
        .added(first, &mut configuration, 1)
        .await;
    assert_eq!(after.id, before.id);
    assert_ne!(after.life, before.life);
    assert_eq!(call(&old, after).await, Some(93), "it is another member");
    assert_eq!(call(&new, before).await, Some(93), "it is another member");
    write(2).await;
    assert_eq!(count(&new).await, 2, "the new one has confirmed it");

    configure(first, leave).await;
    let host = old.host.clone();
    configure(first, |members| {
        members.push(doc! {"_id": 1, "host": host}.into());
    })
    .await;
    write(3).await;
    assert_eq!(
        count(&old).await,
        3,
        "the one that came back has confirmed it"
    );
    assert_eq!(call(&old, before).await, None);
    for member in members.into_iter().chain([old, new]) {
        member.stop().await;
    }
}

/// A server that holds nothing is added, catches up, votes, and is removed again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_is_added_and_removed() {
    let mut members = founders(1).await;
    let first = primary(&members).await;
    for at in 0..10 {
        let reply = first
            .run(doc! {"insert": "c", "documents": [{"_id": at}], "$db": "test"})
            .await;
        assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    }
    let mut configuration = patient_configuration(first).await;
    let version = configuration.get_i32("version").expect("a version");
    let (newcomer, _) = Empty::listen()
        .await
        .added(first, &mut configuration, 1)
        .await;
    members.push(newcomer);

    let both = doc! {"insert": "c", "documents": [{"_id": 10}], "$db": "test",
    "writeConcern": {"w": 2, "wtimeout": 60_000}};
    let reply = members[0].run(both).await;
    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    assert!(!reply.contains_key("writeConcernError"), "{reply}");
    let added = &members[1];
    wait_until("the newcomer catches up", || async {
        count(added).await == 11
    })
    .await;

    configuration.insert("version", version + 1);
    let listed = configuration.get_array_mut("members").expect("members");
    listed.pop();
    let reply = members[0]
        .run(doc! {"replSetReconfig": configuration})
        .await;
    assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
    wait_until("the removed member knows", || async {
        let hello = added.run(doc! {"hello": 1}).await;
        hello.contains_key("info")
    })
    .await;
    let alone = doc! {"insert": "c", "documents": [{"_id": 11}], "$db": "test"};
    let reply = members[0].run(alone).await;
    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    for member in members {
        member.stop().await;
    }
}

async fn insert(primary: &Member, id: i32, w: bson::Bson) {
    let command = doc! {"insert": "c", "documents": [{"_id": id}], "$db": "test",
    "writeConcern": {"w": w, "wtimeout": 60_000}};
    let reply = primary.run(command).await;
    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    assert!(!reply.contains_key("writeConcernError"), "{reply}");
}

/// As many members as a set may have voters, and an even number: elected, written, deposed, some of them lost, those
/// removed one after the other.
async fn check_large_set(count_of_members: usize) {
    let mut members = founders(count_of_members).await;
    let first = primary(&members).await;
    configure(first, |_| {}).await;
    insert(first, 1, "majority".into()).await;
    insert(first, 2, (count_of_members as i32).into()).await;
    let step_down = doc! {"replSetStepDown": 120, "secondaryCatchUpPeriodSecs": 60};
    let reply = first.run(step_down).await;
    assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
    let old = first.host.clone();
    let second = primary(&members).await.host.clone();
    assert_ne!(second, old);

    let lost = (count_of_members - 1) / 2;
    let mut ids = Vec::new();
    for _ in 0..lost {
        let at = members.iter().position(|member| member.host != second);
        let member = members.remove(at.expect("others are there"));
        ids.push(member.host.clone());
        member.stop().await;
    }
    let second = primary(&members).await;
    insert(second, 3, "majority".into()).await;
    for host in ids {
        configure(second, |listed| {
            listed.retain(|member| {
                let member = member.as_document().expect("a member");
                member.get_str("host").ok() != Some(host.as_str())
            });
        })
        .await;
    }
    let left = members.len();
    assert_eq!(left, count_of_members - lost);
    wait_until("the others are gone from the set", || async {
        let status = second.run(doc! {"replSetGetStatus": 1}).await;
        status.get_array("members").map(Vec::len).ok() == Some(left)
            && status.get_i32("votingMembersCount").ok() == Some(left as i32)
    })
    .await;
    insert(second, 4, (left as i32).into()).await;
    for member in &members {
        assert_eq!(count(member).await, 4);
        assert_eq!(hash(member).await, hash(second).await);
    }
    for member in members {
        member.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_of_six() {
    check_large_set(6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_of_seven() {
    check_large_set(7).await;
}
