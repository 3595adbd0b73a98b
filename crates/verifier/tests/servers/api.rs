//! The HTTP API of a run, from the check to the end, asked over a plain connection.

use crate::{Servers, insert, on_runtime};
use anyhow::{Context, Result, ensure};
use bson::{Document, doc};
use serde_json::Value as Json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use verifier::{Control, Outcome, verify_controlled};

/// Status line and body.
async fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
    let mut connection = TcpStream::connect(address).await?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(request.as_bytes()).await?;
    let mut reply = String::new();
    connection.read_to_string(&mut reply).await?;
    let (head, body) = reply.split_once("\r\n\r\n").context("a whole reply")?;
    let code = head.split(' ').nth(1).context("a status")?.parse()?;
    Ok((code, body.to_owned()))
}

pub async fn get(address: SocketAddr, path: &str) -> Result<Vec<Json>> {
    let (code, body) = ask(address, "GET", path, "").await?;
    ensure!(code == 200, "{path}: {code} {body}");
    body.lines()
        .map(|line| Ok(serde_json::from_str(line)?))
        .collect()
}

pub async fn until(
    address: SocketAddr,
    path: &str,
    wanted: impl Fn(&[Json]) -> bool,
) -> Result<Vec<Json>> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let answer = get(address, path).await?;
        if wanted(&answer) {
            return Ok(answer);
        }
        ensure!(Instant::now() < deadline, "{path}: {answer:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn a_run_is_controlled_and_watched() -> Result<()> {
    on_runtime(async {
        let servers = Servers::two_mongods().await?;
        let documents: Vec<Document> = (0..100).map(|n| doc! {"_id": n, "on": n < 90}).collect();
        servers.insert_both("asked", "c", &documents).await?;
        insert(&servers.source, "asked", "only", &[doc! {}]).await?;
        let mut settings = servers.live_settings("asked");
        settings.listen = Some("127.0.0.1:0".to_owned());
        settings.wait = true;
        let control = Control::default();
        let running = tokio::spawn({
            let control = control.clone();
            async move { verify_controlled(settings, &control).await }
        });
        let address = control.until_listening().await.context("it listens")?;

        let idle = get(address, "/api/v1/progress").await?;
        ensure!(idle[0]["progress"]["phase"] == "idle", "{idle:?}");
        let (code, body) = ask(address, "POST", "/api/v1/check", r#"{"filtre": {}}"#).await?;
        ensure!(code == 400 && body.contains("filtre"), "{code} {body}");
        let filter = r#"{"filter": {"$not": 3}}"#;
        let (code, body) = ask(address, "POST", "/api/v1/check", filter).await?;
        ensure!(code == 400 && body.contains("refuses the filter"), "{body}");
        let filter = r#"{"filter": {"on": true}}"#;
        let (code, body) = ask(address, "POST", "/api/v1/check", filter).await?;
        ensure!(code == 200 && body.contains("true"), "{code} {body}");
        let (code, _) = ask(address, "POST", "/api/v1/check", "").await?;
        ensure!(code == 409);
        control.until_begun().await;

        until(address, "/api/v1/progress", |lines| {
            lines[0]["progress"]["verificationStatus"]["completedTasks"] == 1
        })
        .await?;
        // Three of the filter's documents begin to differ, and one that it leaves out.
        let change = doc! {"update": "c", "updates": [
            {"q": {"_id": {"$in": [5, 95]}}, "u": {"$set": {"v": "new"}}, "multi": true},
        ]};
        let delete = doc! {"delete": "c", "deletes": [{"q": {"_id": 6}, "limit": 1}]};
        let source = servers.source.database("asked");
        source.run_command(change).await?;
        source.run_command(delete.clone()).await?;
        let destination = servers.destination.database("asked");
        let delete = doc! {"delete": "c", "deletes": [{"q": {"_id": 7}, "limit": 1}]};
        destination.run_command(delete).await?;
        let listed = until(address, "/api/v1/docMismatches", |lines| lines.len() == 3).await?;
        let mut kinds: Vec<(i64, &str)> = listed
            .iter()
            .map(|one| {
                (
                    one["_id"].as_i64().unwrap_or(-1),
                    one["type"].as_str().unwrap_or(""),
                )
            })
            .collect();
        kinds.sort_unstable();
        ensure!(
            kinds == [(5, "content"), (6, "extraOnDst"), (7, "missingOnDst")],
            "{listed:?}"
        );
        let path = "/api/v1/docMismatches?minDurationSecs=86400";
        ensure!(get(address, path).await?.is_empty());
        let namespaces = get(address, "/api/v1/nsMismatches").await?;
        ensure!(
            namespaces.len() == 1
                && namespaces[0]["aspect"] == "exist"
                && namespaces[0]["namespace"] == "asked.only",
            "{namespaces:?}"
        );
        let summary = get(address, "/api/v1/summary").await?;
        let collection = &summary[0]["summary"]["collections"][0];
        ensure!(collection["source_documents"] == 90, "{summary:?}");
        let (_, metrics) = ask(address, "GET", "/metrics", "").await?;
        for expected in [
            "terndb_verify_mismatches{namespace=\"asked.c\",kind=\"content\"} 1",
            "terndb_verify_changes{side=\"destination\",kind=\"delete\"} 1",
            "terndb_verify_documents_read 90",
        ] {
            ensure!(metrics.contains(expected), "{expected}: {metrics}");
        }
        until(address, "/api/v1/progress", |lines| {
            lines[0]["progress"]["srcLastRecheckedTS"]["$timestamp"]["t"].is_number()
        })
        .await?;
        for (method, path, expected) in [
            ("GET", "/nothing", 404),
            ("GET", "/api/v1/writesOff", 405),
            ("GET", "/api/v1/docMismatches?limit=few", 400),
        ] {
            let (code, body) = ask(address, method, path, "").await?;
            ensure!(code == expected, "{path}: {code} {body}");
            let answer: Json = serde_json::from_str(&body)?;
            ensure!(answer["success"] == false, "{path}: {answer}");
            ensure!(answer["errorDescription"].is_string(), "{path}: {answer}");
        }
        let (code, _) = ask(address, "POST", "/api/v1/writesOff", "{}").await?;
        ensure!(code == 200);
        let report = running.await??;
        ensure!(report.outcome == Outcome::Different, "{report}");
        ensure!(report.totals.mismatches() == 3, "{report}");
        let page = report.to_html();
        ensure!(page.contains("asked.c") && !page.contains("{{report}}"));
        Ok(())
    })
}
