//! Cursors over a real socket: a getMore that allows a stream gets all batches,
//! each with the flag that says whether another follows.

use bson::{Document, doc};
use shard::{Shard, ShardOptions};
use std::net::SocketAddr;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use wire::client::Client;
use wire::protocol::{FLAG_EXHAUST_ALLOWED, FLAG_MORE_TO_COME};

fn encode(mut command: Document) -> Vec<u8> {
    command.insert("$db", "test");
    let mut bytes = Vec::new();
    command.to_writer(&mut bytes).expect("a command encodes");
    bytes
}

fn decode(bytes: &[u8]) -> Document {
    Document::from_reader(bytes).expect("a reply decodes")
}

fn ask(client: &mut Client, command: Document) -> Document {
    decode(
        client
            .command_bytes(&encode(command))
            .expect("a reply arrives"),
    )
}

fn ids(reply: &Document) -> Vec<i32> {
    let cursor = reply.get_document("cursor").expect("a cursor");
    cursor
        .get_array("nextBatch")
        .expect("a batch")
        .iter()
        .filter_map(|document| document.as_document()?.get_i32("_id").ok())
        .collect()
}

fn open_cursor(client: &mut Client) -> i64 {
    let reply = ask(client, doc! {"find": "c", "batchSize": 0});
    let cursor = reply.get_document("cursor").expect("a cursor");
    cursor.get_i64("id").expect("an id")
}

fn streams(address: SocketAddr) {
    let mut client = Client::connect(address).expect("a connection");
    client
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("a timeout is set");
    let documents: Vec<Document> = (0..25).map(|id| doc! {"_id": id}).collect();
    let inserted = ask(&mut client, doc! {"insert": "c", "documents": documents});
    assert_eq!(inserted.get_i32("n").ok(), Some(25), "{inserted}");

    let id = open_cursor(&mut client);
    let more = |id: i64| encode(doc! {"getMore": id, "collection": "c", "batchSize": 4});
    client
        .send_with_flags(FLAG_EXHAUST_ALLOWED, &more(id))
        .expect("a request is sent");
    let mut found = Vec::new();
    loop {
        let (flags, bytes) = client.read_reply_with_flags().expect("a reply");
        let reply = decode(bytes);
        found.extend(ids(&reply));
        let cursor = reply.get_document("cursor").expect("a cursor");
        let is_open = cursor.get_i64("id").ok() == Some(id);
        assert_eq!(flags & FLAG_MORE_TO_COME != 0, is_open, "{reply}");
        if !is_open {
            assert_eq!(cursor.get_i64("id").ok(), Some(0));
            break;
        }
    }
    assert_eq!(found, (0..25).collect::<Vec<i32>>());

    // Without the flag there is one batch.
    let id = open_cursor(&mut client);
    let reply = decode(client.command_bytes(&more(id)).expect("a reply"));
    assert_eq!(ids(&reply), [0, 1, 2, 3]);

    // A stream that fails ends with the error, and the connection is in step.
    client
        .send_with_flags(FLAG_EXHAUST_ALLOWED, &more(77))
        .expect("a request is sent");
    let (flags, bytes) = client.read_reply_with_flags().expect("a reply");
    assert_eq!(flags & FLAG_MORE_TO_COME, 0);
    assert_eq!(decode(bytes).get_i32("code").ok(), Some(43));
    let reply = ask(&mut client, doc! {"ping": 1});
    assert_eq!(reply.get_f64("ok").ok(), Some(1.0));

    // The statistics name the server with its port.
    for stage in [doc! {"$collStats": {"count": {}}}, doc! {"$indexStats": {}}] {
        let reply = ask(
            &mut client,
            doc! {"aggregate": "c", "pipeline": [stage], "cursor": {}},
        );
        let batch = reply
            .get_document("cursor")
            .and_then(|cursor| cursor.get_array("firstBatch"))
            .expect("a batch");
        let host = batch[0]
            .as_document()
            .and_then(|doc| doc.get_str("host").ok());
        let port = format!(":{}", address.port());
        assert!(host.is_some_and(|host| host.ends_with(&port)), "{reply}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_get_more_streams_all_batches() {
    let data = TempDir::new().expect("a temporary directory");
    let shard = Shard::open(&ShardOptions {
        log_window: shard::LogWindow::default(),
        data: data.path().to_owned(),
        cache_bytes: 8 << 20,
        scan_memory: None,
        parameters: Vec::new(),
    })
    .expect("an empty directory opens");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let wire::Running {
        handle,
        task: serving,
    } = shard.serve(listener);
    tokio::task::spawn_blocking(move || streams(address))
        .await
        .expect("the client's checks hold");
    handle.shutdown();
    serving.await.expect("the server ends");
}
