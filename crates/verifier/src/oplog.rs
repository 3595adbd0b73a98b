//! Entries of an oplog, as the changes that they tell.
//!
//! ```text
//! {op: "i" | "u" | "d", ns, o, o2}    a document
//! {op: "c", ns: "db.$cmd", o: {…}}    a collection or index, or several operations:
//!    {applyOps: […]}                      that happened here
//!    {applyOps: […], partialTxn | prepare: true}   that happen when their transaction commits
//!    {commitTransaction} {abortTransaction}        which is here
//! {op: "n"}                           nothing
//! ```
//!
//! **No change is told before it can be seen**: operations of a transaction that has not committed are
//! held back, and told with the time of the commit. A read that waits for that time has them; one that
//! waited for their own entry might not. Until then the place to resume at stays in front of them, so
//! that a later process reads them again.

use crate::element::{Malformed, ValueRef, elements, field, kind};
use crate::event::{Event, text, text_of, time};
use crate::namespace::Namespace;
use crate::time::ClusterTime;
use std::collections::HashMap;

/// Why an entry says nothing to us.
#[derive(Debug, PartialEq, Eq)]
pub enum Unread {
    Malformed,
    /// An operation of this kind is not known.
    Kind(String),
}

impl From<Malformed> for Unread {
    fn from(_: Malformed) -> Unread {
        Unread::Malformed
    }
}

/// Reads entries in their order.
#[derive(Default)]
pub struct Entries {
    /// Transactions that have not committed: where they begin, and what they did.
    open: HashMap<Vec<u8>, (ClusterTime, Vec<Event>)>,
}

impl Entries {
    /// Where the oldest transaction began that has not committed.
    pub fn held_back_from(&self) -> Option<ClusterTime> {
        self.open.values().map(|(begun, _)| *begun).min()
    }

    /// What an entry makes known.
    pub fn read(&mut self, entry: &[u8], time: ClusterTime) -> Result<Vec<Event>, Unread> {
        let mut events = Vec::new();
        let (command, body) = match command_of(entry)? {
            None => {
                operation(entry, time, &mut events)?;
                return Ok(events);
            }
            Some(command) => command,
        };
        match command.as_str() {
            "applyOps" => {
                operation(entry, time, &mut events)?;
                let is_open = is_true(body, "partialTxn")? || is_true(body, "prepare")?;
                let transaction = transaction(entry)?;
                if is_open {
                    let held = self.open.entry(transaction);
                    let (_, held) = held.or_insert_with(|| (time, Vec::new()));
                    held.append(&mut events);
                } else {
                    self.commit(&transaction, time, &mut events);
                }
            }
            "commitTransaction" => self.commit(&transaction(entry)?, time, &mut events),
            "abortTransaction" => drop(self.open.remove(&transaction(entry)?)),
            _ => operation(entry, time, &mut events)?,
        }
        Ok(events)
    }

    fn commit(&mut self, transaction: &[u8], time: ClusterTime, events: &mut Vec<Event>) {
        if let Some((_, mut held)) = self.open.remove(transaction) {
            for event in &mut held {
                event.time = time;
            }
            events.append(&mut held);
        }
    }
}

/// The name of the command that an entry logs, and the command.
fn command_of(entry: &[u8]) -> Result<Option<(String, &[u8])>, Malformed> {
    if text(entry, "op")?.as_deref() != Some("c") {
        return Ok(None);
    }
    let body = document(entry, "o")?;
    let first = elements(body)?.next().ok_or(Malformed)??;
    let name = std::str::from_utf8(first.name).map_err(|_| Malformed)?;
    Ok(Some((name.to_owned(), body)))
}

fn document<'a>(entry: &'a [u8], name: &str) -> Result<&'a [u8], Malformed> {
    let value = field(entry, name)?.filter(|value| value.kind == kind::DOCUMENT);
    Ok(value.ok_or(Malformed)?.bytes)
}

fn is_true(document: &[u8], name: &str) -> Result<bool, Malformed> {
    let value = field(document, name)?;
    Ok(value.is_some_and(|value| value.kind == kind::BOOLEAN && value.bytes == [1]))
}

/// What tells a transaction from every other one.
fn transaction(entry: &[u8]) -> Result<Vec<u8>, Malformed> {
    let part = |value: Option<ValueRef<'_>>| value.map_or(Vec::new(), |value| value.bytes.to_vec());
    let session = part(field(entry, "lsid")?);
    Ok([session, part(field(entry, "txnNumber")?)].concat())
}

/// Adds what an operation changed; operations lie within operations.
fn operation(entry: &[u8], time: ClusterTime, events: &mut Vec<Event>) -> Result<(), Unread> {
    let op = text(entry, "op")?.ok_or(Malformed)?;
    let name = text(entry, "ns")?.unwrap_or_default();
    let (database, collection) = name.split_once('.').unwrap_or((&name, ""));
    let (what, key) = match op.as_str() {
        "n" | "db" => return Ok(()),
        "i" => ("insert", "o"),
        "d" => ("delete", "o"),
        "u" => ("update", "o2"),
        "c" => return command(entry, database, time, events),
        _ => return Err(Unread::Kind(op)),
    };
    let namespace = Namespace::new(database, collection);
    let id = field(document(entry, key)?, "_id")?;
    match id {
        Some(id) => events.push(Event {
            what: what.to_owned(),
            namespace,
            to: None,
            time,
            id: Some(id.to_value()),
        }),
        // Some of the server's own collections have documents without.
        None if namespace.is_internal() => {}
        None => return Err(Unread::Malformed),
    }
    Ok(())
}

fn command(
    entry: &[u8],
    database: &str,
    time: ClusterTime,
    events: &mut Vec<Event>,
) -> Result<(), Unread> {
    let (name, body) = command_of(entry)?.ok_or(Malformed)?;
    let named = match elements(body)?.next() {
        Some(first) => text_of(first?.value)?.unwrap_or_default(),
        None => return Err(Unread::Malformed),
    };
    let full = |name: &str| {
        let (database, collection) = name.split_once('.').unwrap_or((name, ""));
        Namespace::new(database, collection)
    };
    // As change streams call them.
    let (what, namespace, to) = match name.as_str() {
        "applyOps" => {
            let operations = field(body, "applyOps")?.ok_or(Malformed)?;
            for one in elements(operations.bytes)? {
                operation(one?.value.bytes, time, events)?;
            }
            return Ok(());
        }
        "commitTransaction" | "abortTransaction" => return Ok(()),
        // What is being built is no index yet.
        "startIndexBuild" | "abortIndexBuild" => return Ok(()),
        "renameCollection" => {
            let to = text(body, "to")?.ok_or(Malformed)?;
            ("rename", full(&named), Some(full(&to)))
        }
        "commitIndexBuild" => ("createIndexes", Namespace::new(database, named), None),
        "deleteIndexes" => ("dropIndexes", Namespace::new(database, named), None),
        "collMod" => ("modify", Namespace::new(database, named), None),
        other => (other, Namespace::new(database, named), None),
    };
    events.push(Event {
        what: what.to_owned(),
        namespace,
        to,
        time,
        id: None,
    });
    Ok(())
}

/// The time of an entry.
pub fn time_of(entry: &[u8]) -> Result<ClusterTime, Malformed> {
    time(entry, "ts")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Document, doc};

    /// One line for each event: what, name, time.
    fn check(entries: &mut Entries, counter: u32, entry: Document, expected: &[&str]) {
        let time = ClusterTime {
            seconds: 1,
            counter,
        };
        let bytes = entry.to_vec().unwrap();
        let events = entries.read(&bytes, time).unwrap();
        let shown: Vec<String> = events
            .iter()
            .map(|event| {
                let to = event.to.as_ref().map(|to| format!(" > {to}"));
                let document = event.id.as_ref().map(|id| format!(" {}", id.bytes[0]));
                let (what, name) = (&event.what, &event.namespace);
                let rest = [to, document].map(Option::unwrap_or_default).concat();
                format!("{what} {name}{rest} @{}", event.time.counter)
            })
            .collect();
        assert_eq!(shown, expected, "{entry}");
    }

    #[test]
    fn entries_are_taken_apart() {
        let mut entries = Entries::default();
        let mut check = |entry, expected: &[&str]| check(&mut entries, 5, entry, expected);
        check(doc! {"op": "n", "ns": "", "o": {}}, &[]);
        check(
            doc! {"op": "i", "ns": "a.b.c", "o": {"_id": 7}},
            &["insert a.b.c 7 @5"],
        );
        check(
            doc! {"op": "u", "ns": "a.b", "o": {}, "o2": {"_id": 8}},
            &["update a.b 8 @5"],
        );
        check(
            doc! {"op": "c", "ns": "a.$cmd", "o": {"renameCollection": "a.b", "to": "c.d"}},
            &["rename a.b > c.d @5"],
        );
        check(
            doc! {"op": "c", "ns": "a.$cmd", "o": {"dropDatabase": 1}},
            &["dropDatabase a @5"],
        );
        check(
            doc! {"op": "c", "ns": "a.$cmd", "o": {"startIndexBuild": "b"}},
            &[],
        );
        check(
            doc! {"op": "c", "ns": "a.$cmd", "o": {"commitIndexBuild": "b"}},
            &["createIndexes a.b @5"],
        );
        check(
            doc! {"op": "c", "ns": "admin.$cmd", "o": {"applyOps": [
                {"op": "d", "ns": "a.b", "o": {"_id": 1}},
                {"op": "c", "ns": "a.$cmd", "o": {"create": "e"}},
            ]}},
            &["delete a.b 1 @5", "create a.e @5"],
        );
    }

    #[test]
    fn what_cannot_be_read_is_not_passed_over() {
        let read = |entry: Document| {
            let bytes = entry.to_vec().unwrap();
            Entries::default().read(&bytes, ClusterTime::default())
        };
        let unknown = read(doc! {"op": "xi", "ns": "a.b", "o": {}});
        assert_eq!(unknown, Err(Unread::Kind("xi".to_owned())));
        for wrong in [
            doc! {},
            doc! {"op": "i", "ns": "a.b", "o": {}},
            doc! {"op": "u", "ns": "a.b", "o": {"_id": 1}},
            doc! {"op": "c", "ns": "a.$cmd", "o": {}},
            doc! {"op": "c", "ns": "a.$cmd", "o": {"applyOps": 1}},
        ] {
            assert_eq!(read(wrong.clone()), Err(Unread::Malformed), "{wrong}");
        }
    }

    #[test]
    fn a_transaction_is_told_when_it_commits() {
        let entry = |number: i64, command: Document| {
            doc! {"op": "c", "ns": "admin.$cmd", "o": command, "lsid": {"id": 1}, "txnNumber": number}
        };
        let insert = |id: i32| doc! {"op": "i", "ns": "a.b", "o": {"_id": id}};
        let mut entries = Entries::default();
        let at = |counter| {
            Some(ClusterTime {
                seconds: 1,
                counter,
            })
        };
        let partial = doc! {"applyOps": [insert(1)], "partialTxn": true};
        check(&mut entries, 2, entry(1, partial), &[]);
        let prepared = doc! {"applyOps": [insert(2)], "prepare": true};
        check(&mut entries, 3, entry(2, prepared.clone()), &[]);
        assert_eq!(entries.held_back_from(), at(2));
        let last = doc! {"applyOps": [insert(3)]};
        check(
            &mut entries,
            4,
            entry(1, last),
            &["insert a.b 3 @4", "insert a.b 1 @4"],
        );
        assert_eq!(entries.held_back_from(), at(3));
        let commit = doc! {"commitTransaction": 1};
        check(&mut entries, 5, entry(2, commit), &["insert a.b 2 @5"]);
        check(&mut entries, 6, entry(3, prepared), &[]);
        check(&mut entries, 7, entry(3, doc! {"abortTransaction": 1}), &[]);
        assert_eq!(entries.held_back_from(), None);
    }
}
