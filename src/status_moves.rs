//! Moves that run, as lines with bars, for `terndb status`.
//!
//! The config server says which moves run (`config.terndb_operations`); the donors say how far they are
//! (`$currentOp`). A donor that does not answer leaves a line without a bar.

use crate::status::{ask, batch, in_units, show};
use anyhow::Result;
use model::bson::{Doc, DocBuf, DocWriter};
use model::number::Number;
use model::text::document_quoted;
use wire::Host;

const BAR_CELLS: usize = 24;

/// One line for each move: its collection and range, where it goes, how far it is.
pub(crate) fn rows(operations: &[DocBuf], donors: &[DocBuf]) -> Vec<Vec<String>> {
    let moves = operations
        .iter()
        .filter(|operation| operation.as_doc().get_str("kind") == Some("moveRange"));
    moves
        .map(|operation| {
            let doc = operation.as_doc();
            let bound = |name: &str| document_quoted(doc.get_doc(name).unwrap_or(Doc::EMPTY));
            let donor = donors.iter().find(|donor| {
                let command = donor.as_doc().get_doc("command");
                command.is_some_and(|command| command.get("id") == doc.get("_id"))
            });
            let (from, to) = (show(doc.get("from")), show(doc.get("to")));
            vec![
                show(doc.get("ns")),
                format!("[{}, {})", bound("min"), bound("max")),
                format!("{from} → {to}"),
                progress(operation, donor),
            ]
        })
        .collect()
}

fn progress(operation: &DocBuf, donor: Option<&DocBuf>) -> String {
    if operation.get("committed").is_some() {
        return format!("{} committed", bar(1.0));
    }
    let Some(donor) = donor else {
        return "no word from the donor".to_owned();
    };
    let number = |name: &str| donor.get(name).and_then(Number::of).map(Number::to_f64);
    // The donor has not counted the documents of the range yet.
    let (at_least, at_most) = match donor.get("expectedDocsAtMost") {
        Some(_) => ("≥", "≤"),
        None => ("", ""),
    };
    let mut line = match number("percent") {
        Some(percent) => format!("{} {at_least}{percent:.0}%", bar(percent / 100.0)),
        None => String::new(),
    };
    for part in [
        Some(show(donor.get("phase"))),
        number("bytesPerSecond").map(|rate| format!("{}/s", in_units(rate))),
        number("estimatedSecondsLeft").map(|left| format!("{at_most}{left:.0} s left")),
    ] {
        let part = part.unwrap_or_default();
        if !part.is_empty() {
            line.push(' ');
            line.push_str(&part);
        }
    }
    line.trim_start().to_owned()
}

fn bar(share: f64) -> String {
    let full = (share.clamp(0.0, 1.0) * BAR_CELLS as f64) as usize;
    format!("[{}{}]", "#".repeat(full), "-".repeat(BAR_CELLS - full))
}

/// What donors say of their moves.
pub(crate) async fn donors(router: &Host) -> Result<Vec<DocBuf>> {
    let mut command = DocWriter::new().with("aggregate", 1);
    command.begin_array("pipeline");
    command
        .push_document()
        .begin_document("$currentOp")
        .append("allUsers", true)
        .end()
        .end();
    command
        .push_document()
        .begin_document("$match")
        .append("desc", "MoveRangeDonor")
        .end()
        .end()
        .end();
    command.begin_document("cursor").end();
    Ok(batch(&ask(router, "admin", command).await?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::bson::ValueRef;

    fn id(number: u8) -> [u8; 16] {
        [number; 16]
    }

    fn operation(number: u8) -> DocBuf {
        let mut writer = DocWriter::new()
            .with(
                "_id",
                ValueRef::Binary {
                    subtype: 4,
                    bytes: &id(number),
                },
            )
            .with("kind", "moveRange")
            .with("ns", "fleet.birds");
        writer.begin_document("min").append("a", 1).end();
        writer.begin_document("max").append("a", 5).end();
        writer.with("from", "shard0").with("to", "shard1").finish()
    }

    #[test]
    fn moves_have_bars() {
        let mut donor = DocWriter::new().with("desc", "MoveRangeDonor");
        donor.begin_document("command").append(
            "id",
            ValueRef::Binary {
                subtype: 4,
                bytes: &id(1),
            },
        );
        donor.end();
        let donor = donor
            .with("phase", "cloning")
            .with("percent", 50.0)
            .with("bytesPerSecond", 2_000_000i64)
            .finish();
        let other = DocWriter::new().with("kind", "drop").finish();
        let rows = rows(&[operation(1), other, operation(2)], &[donor]);
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0][0], "fleet.birds");
        assert_eq!(rows[0][1], "[{ a: 1 }, { a: 5 })");
        assert_eq!(rows[0][2], "shard0 → shard1");
        assert_eq!(
            rows[0][3],
            "[############------------] 50% cloning 2.0 MB/s"
        );
        assert_eq!(rows[1][3], "no word from the donor");
    }

    #[test]
    fn what_is_not_counted_yet_is_bounded() {
        let donor = DocWriter::new()
            .with("expectedDocsAtMost", 100_i64)
            .with("percent", 25.0)
            .with("estimatedSecondsLeft", 30.2)
            .finish();
        let line = progress(&DocWriter::new().finish(), Some(&donor));
        assert_eq!(line, "[######------------------] ≥25% ≤30 s left");
    }
}
