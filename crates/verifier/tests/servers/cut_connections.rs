//! Connections that break in the middle: tried again if that helps, and never taken for the end.

use crate::{Servers, on_runtime};
use anyhow::{Context, Result, ensure};
use bson::{Document, doc};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use verifier::{Outcome, Place, Settings, verify};

/// How much the proxy lets through before it cuts a connection.
#[derive(Clone, Copy)]
enum Cuts {
    Once { after_bytes: i64 },
    Always { after_bytes: i64 },
}

/// A proxy in front of a server; returns its URI, and how much it still lets through.
async fn proxy(server: &str, cuts: Cuts) -> Result<(String, Arc<AtomicI64>)> {
    let server = verifier::cluster::shown_address(server);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    // Otherwise the driver would go to the member that a replica set names, past the proxy.
    let uri = format!(
        "mongodb://{}/?directConnection=true",
        listener.local_addr()?
    );
    let after_bytes = match cuts {
        Cuts::Once { after_bytes } | Cuts::Always { after_bytes } => after_bytes,
    };
    let left = Arc::new(AtomicI64::new(after_bytes));
    let handed_out = left.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(&server).await else {
                return;
            };
            tokio::spawn(forward(client, server, left.clone(), cuts));
        }
    });
    Ok((uri, handed_out))
}

async fn forward(client: TcpStream, server: TcpStream, left: Arc<AtomicI64>, cuts: Cuts) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let asking = async {
        tokio::io::copy(&mut from_client, &mut to_server)
            .await
            .map(drop)
    };
    let answering = async {
        let mut buffer = vec![0; 4096];
        loop {
            let count = from_server.read(&mut buffer).await?;
            if count == 0 {
                return Ok(());
            }
            let before = left.fetch_sub(count as i64, Ordering::Relaxed);
            let crossed = before >= 0 && before < count as i64;
            match cuts {
                Cuts::Once { .. } if crossed => return Ok(()),
                Cuts::Always { .. } if before < count as i64 => return Ok(()),
                Cuts::Once { .. } | Cuts::Always { .. } => {}
            }
            to_client.write_all(&buffer[..count]).await?;
        }
    };
    // Either way both connections are closed, in the middle of a reply perhaps.
    let _: std::io::Result<()> = tokio::select! { done = asking => done, done = answering => done };
}

#[test]
fn a_cut_connection_is_not_the_end_of_a_collection() -> Result<()> {
    on_runtime(async {
        let servers = Servers::two_mongods().await?;
        let documents: Vec<Document> = (0..3000)
            .map(|number| doc! {"_id": number, "text": "x".repeat(300)})
            .collect();
        servers.insert_both("cut", "c", &documents).await?;
        let settings = |from: String| Settings {
            from,
            partition_bytes: 200_000,
            connect_timeout: std::time::Duration::from_secs(60),
            ..servers.settings("cut")
        };
        for after_bytes in [100_000, 250_000, 400_000, 700_000] {
            let (from, _) = proxy(&servers.from, Cuts::Once { after_bytes }).await?;
            let report = verify(settings(from)).await.context("cut once")?;
            ensure!(report.outcome == Outcome::Equal, "{after_bytes}: {report}");
            ensure!(report.totals.equal == 3000, "{after_bytes}: {report}");
        }
        let cuts = Cuts::Always {
            after_bytes: 500_000,
        };
        let (from, left) = proxy(&servers.from, cuts).await?;
        let folder = tempfile::tempdir()?;
        let mut settings = settings(from);
        settings.workers = 1;
        settings.place = Place::Directory(folder.path().join("state"));
        // Long enough for the first connection, and not much longer than it takes to give up.
        settings.connect_timeout = std::time::Duration::from_secs(5);
        let Err(error) = verify(settings.clone()).await else {
            anyhow::bail!("it cannot have been read");
        };
        let shown = error.to_string();
        ensure!(shown.contains("cannot be reached"), "{shown}");
        ensure!(
            shown.contains("start again with the same options"),
            "{shown}"
        );
        // What was done is not done again.
        left.store(i64::MAX, Ordering::Relaxed);
        settings.connect_timeout = std::time::Duration::from_secs(60);
        let report = verify(settings).await.context("gone on with")?;
        ensure!(report.outcome == Outcome::Equal, "{report}");
        ensure!(report.totals.equal == 3000 && report.resumed, "{report}");
        Ok(())
    })
}
