//! Definitions as users wrote them: names that come twice, types of numbers; and fields within measurements.

use crate::{Servers, insert};
use anyhow::{Context, Result, ensure};
use bson::{Document, RawDocumentBuf, doc};
use mongodb::Client;
use std::collections::BTreeSet;
use verifier::compare::Comparison;
use verifier::element::Writer;
use verifier::{Outcome, verify};

pub async fn check(servers: &Servers) -> Result<()> {
    definitions(servers).await.context("definitions")?;
    within_measurements(servers).await.context("measurements")
}

async fn run(client: &Client, command: Writer) -> Result<()> {
    let command = RawDocumentBuf::from_bytes(command.finish())?;
    let database = client.database("written");
    database.run_raw_command(command).await?;
    Ok(())
}

/// A filter, all of it or only what a map would keep.
fn filter(whole: bool) -> Result<Vec<u8>> {
    let mut filter = Writer::new();
    if whole {
        filter.document("a", &doc! {"$gt": 5}.to_vec()?);
    }
    filter.document("a", &doc! {"$lt": 9}.to_vec()?);
    Ok(filter.finish())
}

async fn definitions(servers: &Servers) -> Result<()> {
    for (client, whole) in servers.clients().into_iter().zip([true, false]) {
        for (name, whole) in [("ruled", whole), ("same", true)] {
            let mut create = Writer::new();
            create
                .text("create", name)
                .document("validator", &filter(whole)?);
            run(client, create).await?;
            let mut index = Writer::new();
            index
                .document("key", &doc! {"b": 1}.to_vec()?)
                .text("name", "b")
                .document("partialFilterExpression", &filter(whole)?);
            let mut indexes = Writer::new();
            indexes
                .text("createIndexes", name)
                .documents("indexes", &[index.finish()]);
            run(client, indexes).await?;
            let mut stage = Writer::new();
            stage.document("$match", &filter(whole)?);
            let mut view = Writer::new();
            view.text("create", &format!("{name}_view"))
                .text("viewOn", name)
                .documents("pipeline", &[stage.finish()]);
            run(client, view).await?;
        }
        let one = match whole {
            true => bson::Bson::Int32(1),
            false => bson::Bson::Double(1.0),
        };
        let pipeline = vec![doc! {"$project": {"x": {"$literal": one}}}];
        let view = doc! {"create": "numbers", "viewOn": "same", "pipeline": pipeline};
        client.database("written").run_command(view).await?;
    }
    let report = verify(servers.settings("written")).await?;
    let found: BTreeSet<String> = report
        .metadata_mismatches
        .iter()
        .map(|one| format!("{} {}", one.namespace, one.what))
        .collect();
    let expected = [
        "written.numbers option pipeline",
        "written.ruled index b, partialFilterExpression",
        "written.ruled option validator",
        "written.ruled_view option pipeline",
    ];
    ensure!(found.iter().eq(expected), "{found:?}");
    Ok(())
}

/// The order of fields of a measurement is the server's; that within its values is the user's.
async fn within_measurements(servers: &Servers) -> Result<()> {
    let measurement =
        |inner: Document| doc! {"t": bson::DateTime::from_millis(5), "_id": 1, "m": inner};
    let both = [
        doc! {"a": 1, "b": {"c": 1, "d": 2}},
        doc! {"b": {"d": 2, "c": 1}, "a": 1},
    ];
    for (client, inner) in servers.clients().into_iter().zip(both) {
        let create = doc! {"create": "c", "timeseries": {"timeField": "t"}};
        client.database("within").run_command(create).await?;
        insert(client, "within", "c", &[measurement(inner)]).await?;
    }
    let mut settings = servers.settings("within");
    ensure!(verify(settings.clone()).await?.outcome == Outcome::Different);
    settings.comparison = Comparison::IgnoreFieldOrder;
    let report = verify(settings).await?;
    ensure!(report.outcome == Outcome::Equal, "{report}");
    Ok(())
}
