//! A run in a database has one owner at a time, and one that was replaced changes nothing any more.

use crate::{Servers, on_runtime};
use anyhow::{Context, Result, bail, ensure};
use bson::{Document, doc};
use std::process::Command;
use std::time::{Duration, Instant};
use verifier::store::{Change, Store, forget};
use verifier::{Control, Place, verify_controlled};

const HOUR_MS: i64 = 3_600_000;

#[test]
fn a_run_has_one_owner() -> Result<()> {
    on_runtime(async { on_any_servers(&Servers::two_mongods().await?).await })
}

pub async fn on_any_servers(servers: &Servers) -> Result<()> {
    who_gets_it(servers).await.context("who gets a lease")?;
    replaced(servers).await.context("a replaced owner")?;
    come_and_go(servers).await.context("come and go")?;
    of_an_earlier_version(servers)
        .await
        .context("an earlier version")?;
    between_taking_and_renaming(servers)
        .await
        .context("an owner that died early")?;
    no_verdict_without_it(servers)
        .await
        .context("a run that was taken over")
}

fn place(servers: &Servers) -> Place {
    Place::Database {
        uri: servers.to.clone(),
        name: "verify_lease".to_owned(),
    }
}

fn owners(servers: &Servers) -> mongodb::Collection<Document> {
    let database = servers.destination.database("verify_lease");
    database.collection("verify_lease")
}

async fn owner(servers: &Servers) -> Result<Document> {
    let found = owners(servers).find_one(doc! {}).await?;
    found.context("nobody has the lease")
}

async fn nothing_is_left(servers: &Servers) -> Result<()> {
    let database = servers.destination.database("verify_lease");
    let left = database.list_collection_names().await?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

/// A lease keeps a second process off, as long as its owner lives and renews it.
async fn who_gets_it(servers: &Servers) -> Result<()> {
    let place = place(servers);
    drop(Store::open(&place).await?);
    let own = owner(servers).await?;
    let mut ended = Command::new("true").spawn()?;
    let gone = i64::from(ended.id());
    ended.wait()?;
    let parent = i64::from(std::os::unix::process::parent_id());
    let (now, mine) = (
        own.get_datetime("renewed")?.timestamp_millis(),
        own.get_i64("pid")?,
    );
    let (here, machine) = (own.get_str("host")?, own.get_str("machine")?);
    // In an hour, because a slow machine must not make a lease lapse.
    let cases = [
        ("elsewhere", machine, gone, now + HOUR_MS, false),
        ("elsewhere", machine, gone, now - HOUR_MS, true),
        (here, "another boot", gone, now + HOUR_MS, false),
        (here, machine, parent, now + HOUR_MS, false),
        (here, machine, parent, now - HOUR_MS, true),
        (here, machine, gone, now + HOUR_MS, true),
        (here, machine, mine, now + HOUR_MS, true),
    ];
    for (host, machine, pid, renewed, opens) in cases {
        let renewed = bson::DateTime::from_millis(renewed);
        let held = doc! {"host": host, "machine": machine, "pid": pid, "renewed": renewed};
        owners(servers)
            .update_one(doc! {}, doc! {"$set": held})
            .await?;
        match Store::open(&place).await {
            Ok(_) => ensure!(opens, "{host} {machine} {pid} has it"),
            Err(error) => {
                let text = error.to_string();
                let expected = format!("in use by process {pid} on {host}");
                ensure!(!opens && text.contains(&expected), text);
            }
        }
    }
    forget(&place).await?;
    nothing_is_left(servers).await
}

async fn put(store: &Store, key: &str, value: &str) -> Result<()> {
    store
        .write(vec![Change::Put(key.into(), value.into())])
        .await?;
    Ok(())
}

/// A write of somebody who was replaced: it may know that already, if this machine is slow.
async fn write_late(store: &Store, change: Change) -> Result<()> {
    match store.write(vec![change]).await {
        Err(error) if !error.to_string().contains("taken it over") => Err(error.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

async fn all(store: &Store) -> Result<String> {
    let page = store.page(b"", None, 100).await?;
    let shown = page.iter().map(|(key, value)| {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        format!("{}={}", text(key), text(value))
    });
    Ok(shown.collect::<Vec<_>>().join(" "))
}

/// One that does not know yet still writes, to where nobody reads; and reads nothing that it could
/// conclude from.
async fn replaced(servers: &Servers) -> Result<()> {
    let place = place(servers);
    let before = Store::open(&place).await?;
    put(&before, "a", "1").await?;
    put(&before, "b", "1").await?;
    let after = Store::open(&place).await?;
    ensure!(all(&after).await? == "a=1 b=1");
    put(&after, "b", "2").await?;
    let stale = |key: &str| Change::Put(key.into(), "stale".into());
    write_late(&before, stale("a")).await?;
    write_late(&before, stale("b")).await?;
    write_late(&before, Change::Delete(b"a".to_vec())).await?;
    ensure!(all(&after).await? == "a=1 b=2", "{}", all(&after).await?);
    after.confirm().await?;
    let Err(error) = before.confirm().await else {
        bail!("it was replaced");
    };
    ensure!(error.to_string().contains("taken it over"), "{error}");
    // What it left does not come back, neither to the next owner nor to the next run.
    let next = Store::open(&place).await?;
    ensure!(all(&next).await? == "a=1 b=2", "{}", all(&next).await?);
    forget(&place).await?;
    nothing_is_left(servers).await?;
    write_late(&before, stale("a")).await?;
    let another = Store::open(&place).await?;
    ensure!(all(&another).await?.is_empty(), "{}", all(&another).await?);
    forget(&place).await?;
    nothing_is_left(servers).await
}

/// An owner may leave between two looks at who it is: nobody is told of one that there is not.
async fn come_and_go(servers: &Servers) -> Result<()> {
    let place = place(servers);
    let visits = async || -> Result<()> {
        for _ in 0..8 {
            let opened = Store::open(&place).await.map(drop);
            // Each takes it from the others, whose trouble with that is not what is looked for.
            for error in [opened.err(), forget(&place).await.err()]
                .into_iter()
                .flatten()
            {
                ensure!(!error.to_string().contains("process 0 "), "{error}");
            }
        }
        Ok(())
    };
    tokio::try_join!(visits(), visits(), visits())?;
    until_nothing_is_left(servers).await
}

/// Its entries are told from a collection that only has the same name.
async fn of_an_earlier_version(servers: &Servers) -> Result<()> {
    let database = servers.destination.database("verify_lease");
    let state = database.collection::<Document>("state");
    state.insert_one(doc! {"_id": 1, "v": "theirs"}).await?;
    let place = place(servers);
    drop(Store::open(&place).await?);
    forget(&place).await?;
    ensure!(state.count_documents(doc! {}).await? == 1);
    let value = bson::Binary {
        subtype: bson::spec::BinarySubtype::Generic,
        bytes: vec![5, 0, 0, 0, 0],
    };
    state.insert_one(doc! {"_id": "72", "v": value}).await?;
    let Err(error) = Store::open(&place).await else {
        bail!("it was taken for nothing");
    };
    ensure!(error.to_string().contains("earlier version"), "{error}");
    forget(&place).await?;
    nothing_is_left(servers).await
}

async fn between_taking_and_renaming(servers: &Servers) -> Result<()> {
    let place = place(servers);
    put(&Store::open(&place).await?, "a", "1").await?;
    let taken = doc! {"$inc": {"token": 1_000_000_i64}};
    owners(servers).update_one(doc! {}, taken).await?;
    let store = Store::open(&place).await?;
    ensure!(all(&store).await? == "a=1", "{}", all(&store).await?);
    forget(&place).await?;
    nothing_is_left(servers).await
}

/// Whatever it has found: it may have missed what its successor did.
async fn no_verdict_without_it(servers: &Servers) -> Result<()> {
    servers
        .insert_both("leased", "c", &[doc! {"_id": 1}])
        .await?;
    let mut settings = servers.live_settings("leased");
    settings.place = place(servers);
    let control = Control::default();
    let running = tokio::spawn({
        let control = control.clone();
        async move { verify_controlled(settings, &control).await }
    });
    control.until_begun().await;
    let taken = doc! {"$inc": {"token": 1}, "$set": {"host": "elsewhere"}};
    owners(servers).update_one(doc! {}, taken).await?;
    control.writes_off();
    let ended = tokio::time::timeout(Duration::from_secs(120), running).await??;
    let Err(error) = ended else {
        bail!("a verdict");
    };
    ensure!(error.to_string().contains("taken it over"), "{error}");
    let lapsed = doc! {"$set": {"renewed": bson::DateTime::from_millis(0)}};
    owners(servers).update_one(doc! {}, lapsed).await?;
    // A write that the run had sent when it ended may be made after the first of these.
    until_nothing_is_left(servers).await
}

async fn until_nothing_is_left(servers: &Servers) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        forget(&place(servers)).await?;
        match nothing_is_left(servers).await {
            Err(_) if Instant::now() < deadline => {}
            checked => return checked,
        }
    }
}
