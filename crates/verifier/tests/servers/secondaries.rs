//! Reading from secondaries, which are behind the primary by some time: nothing older than what is
//! known to have changed may be seen.

use crate::{Kind, Servers, live, on_runtime};
use anyhow::{Context, Result, ensure};
use bson::{Document, doc};
use mongodb::Client;
use mongodb::options::{ReadPreference, SelectionCriteria};
use verifier::{Outcome, verify};

#[test]
fn secondaries_are_read() -> Result<()> {
    on_runtime(async {
        let (source, destination) = (Kind::TernDbMembers, Kind::TernDbMembers);
        let mut servers = Servers::start(source, destination).await?;
        let documents: Vec<Document> = (0..500).map(|n| doc! {"_id": n}).collect();
        servers.insert_both("read", "c", &documents).await?;
        // Not only where they are preferred: a driver that has found no secondary yet takes the primary then.
        let secondary = ReadPreference::Secondary {
            options: Default::default(),
        };
        servers.reads_from = Some(SelectionCriteria::ReadPreference(secondary));

        let members = members(&servers.source).await?;
        let before = queries(&members).await?;
        let report = verify(servers.settings("read")).await?;
        let after = queries(&members).await?;
        ensure!(report.outcome == Outcome::Equal, "{report}");
        ensure!(report.totals.equal == 500, "{report}");
        let read: Vec<bool> = before.iter().zip(&after).map(|(b, a)| b != a).collect();
        // The primary is asked for entries of its oplog, whoever is read.
        ensure!(read[1] || read[2], "{before:?} became {after:?}");

        live::copied(&servers).await.context("copied")
    })
}

/// A client of each member, the primary's first.
async fn members(client: &Client) -> Result<Vec<Client>> {
    let admin = client.database("admin");
    let hello = admin.run_command(doc! {"hello": 1}).await?;
    let primary = hello.get_str("primary")?;
    let hosts = hello
        .get_array("hosts")?
        .iter()
        .filter_map(|host| host.as_str());
    let mut hosts: Vec<&str> = hosts.collect();
    hosts.sort_by_key(|host| *host != primary);
    let mut members = Vec::new();
    for host in hosts {
        let uri = format!("mongodb://{host}/?directConnection=true");
        members.push(Client::with_uri_str(uri).await?);
    }
    Ok(members)
}

/// How many queries each member has answered.
async fn queries(members: &[Client]) -> Result<Vec<i64>> {
    let mut counts = Vec::new();
    for member in members {
        let admin = member.database("admin");
        let status = admin.run_command(doc! {"serverStatus": 1}).await?;
        let count = status.get_document("opcounters")?.get("query");
        let count = count.and_then(|count| match count {
            bson::Bson::Int32(count) => Some(i64::from(*count)),
            bson::Bson::Int64(count) => Some(*count),
            _ => None,
        });
        counts.push(count.context("a count of queries")?);
    }
    Ok(counts)
}
