//! Which events entries make, as a script: see `events.txt`.

use super::{Moment, events};
use crate::oplog::Logged;
use model::Namespace;
use model::bson::{DocBuf, DocWriter, ValueRef};
use model::ids::CollectionId;
use model::key::RecordKey;
use model::time::ClusterTime;
use query::pipeline::Target;
use std::fmt::Write;
use storage::entry::{Description, Encoder, Entry, Header, Name, Names};

const UUID: [u8; 16] = [7; 16];

/// The commands of an entry, in the shape of its header.
fn commands(operations: &[&str]) -> Option<DocBuf> {
    let mut out = DocWriter::new();
    out.begin_array("ops");
    let mut any = false;
    for operation in operations {
        let words: Vec<&str> = operation.split(' ').collect();
        let (name, on) = match words[..] {
            ["no-op"] | ["insert" | "delete", ..] => continue,
            [name, on, ..] => (name, on),
            _ => panic!("{operation}"),
        };
        any = true;
        let (database, collection) = on.split_once('.').unwrap_or((on, ""));
        out.push_document()
            .append("ns", format!("{database}.$cmd").as_str());
        if name != "dropDatabase" {
            let bytes = &UUID[..];
            out.append("ui", ValueRef::Binary { subtype: 4, bytes });
        }
        out.begin_document("o");
        match name {
            "dropDatabase" => out.append(name, 1),
            "rename" => out.append("renameCollection", on).append("to", words[2]),
            "commitIndexBuild" => out.append(name, collection).begin_array("indexes").end(),
            _ => out.append(name, collection),
        };
        out.end().end();
    }
    out.end();
    any.then(|| out.finish())
}

/// Encodes an entry; collections are numbered in the order of their first use.
fn encode(operations: &[&str], of_a_move: bool) -> Vec<u8> {
    let mut known: Vec<&str> = Vec::new();
    let mut names = Vec::new();
    for operation in operations {
        let words: Vec<&str> = operation.split(' ').collect();
        if let ["insert" | "delete", namespace, _] = words[..]
            && !known.contains(&namespace)
        {
            known.push(namespace);
            let name = Name {
                collection: CollectionId(known.len() as u32),
                uuid: UUID,
                keeps_images: false,
                namespace,
                shard_key: None,
            };
            name.encode(&mut names);
        }
    }
    let commands = commands(operations);
    let header = Header {
        origin: of_a_move.then_some(b"a move"),
        command: commands.as_ref().map(DocBuf::as_bytes),
        names: Some(Names::new(&names)),
        ..Header::default()
    };
    let mut payload = Vec::new();
    let mut encoder = Encoder::with_header(&mut payload, header);
    for operation in operations {
        let words: Vec<&str> = operation.split(' ').collect();
        let (kind, namespace, id) = match words[..] {
            ["no-op"] => {
                encoder.noop();
                continue;
            }
            [kind @ ("insert" | "delete"), namespace, id] => (kind, namespace, id),
            _ => continue,
        };
        let id: i32 = id.parse().expect("a number");
        let document = DocWriter::new().with("_id", id).finish();
        let key = RecordKey::from_id(ValueRef::Int32(id));
        let number = known.iter().position(|name| *name == namespace);
        let collection = CollectionId(number.expect("it was named") as u32 + 1);
        match kind {
            "insert" => encoder.put_record(
                collection,
                key.as_bytes(),
                document.as_bytes(),
                Description::Insert,
                &[],
            ),
            _ => encoder.delete_record(collection, key.as_bytes(), document.as_bytes(), &[]),
        }
    }
    payload
}

/// The events of one entry, a line each.
fn told(operations: &str, of_a_move: bool, target: &Target, expanded: bool) -> String {
    let operations: Vec<&str> = operations.split(", ").collect();
    let payload = encode(&operations, of_a_move);
    let entry = Entry::decode(&payload).expect("an entry");
    let moment = Moment {
        time: ClusterTime::new(1, 1),
        wall_ms: 0,
    };
    let mut out = String::new();
    for event in events(&entry, moment, target, expanded).expect("events") {
        let super::super::token::At::Event { operation, .. } = event.token.at else {
            panic!("an event's token is no mark");
        };
        let _ = write!(out, "  {operation} {}", event.kind());
        if let Some((database, collection)) = event.namespace() {
            let _ = write!(out, " {database}");
            if let Some(collection) = collection {
                let _ = write!(out, ".{collection}");
            }
        }
        if let super::What::Command(super::Change { to: Some(to), .. }) = &event.what {
            let _ = write!(out, " to {}.{}", to.0, to.1);
        }
        out.push('\n');
        assert!(
            !matches!(event.what, super::What::Document(Logged::Noop)),
            "a no-op is no event"
        );
    }
    out
}

#[test]
fn entries_make_events() {
    let script = include_str!("events.txt");
    let mut found = String::new();
    let mut target = Target::Cluster;
    let mut expanded = false;
    for line in script.lines() {
        // What was expected is left out and told anew.
        if line.starts_with("  ") {
            continue;
        }
        let _ = writeln!(found, "{line}");
        if let Some(whom) = line.strip_prefix("watch ") {
            expanded = whom.ends_with(" expanded");
            let whom = whom.trim_end_matches(" expanded");
            target = match whom.split_once('.') {
                Some((database, collection)) => {
                    Target::Collection(Namespace::new(database, collection).expect("a name"))
                }
                None if whom == "everything" => Target::Cluster,
                None => Target::Database(whom.to_owned()),
            };
        } else if let Some(operations) = line.strip_prefix("entry: ") {
            found.push_str(&told(operations, false, &target, expanded));
        } else if let Some(operations) = line.strip_prefix("entry of a move: ") {
            found.push_str(&told(operations, true, &target, expanded));
        }
    }
    assert_eq!(found, script, "\n{found}");
}
