//! What replies of `createIndexes`, `dropIndexes` and `collMod` tell of the time before, for a shard that was asked
//! twice: it has done its part by then, and its second reply compares with that. Also whether an index was there that
//! is to go: only then that it is missing says that it was dropped.

use crate::collection;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::number::Number;

#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct Before {
    /// How many indexes there were, the one on `_id` too.
    indexes: Option<i32>,
    /// How many a `createIndexes` brings.
    brings: i32,
    /// Whether those that a `dropIndexes` names are there.
    dropped: bool,
    /// Of the index that a `collMod` names.
    seconds: Option<i64>,
    hidden: bool,
}

impl Before {
    /// `indexes` are all but the one on `_id`.
    pub(super) fn new(command: Doc<'_>, indexes: &[DocBuf]) -> Self {
        let name = |index: Doc<'_>| index.get_str("name").map(str::to_owned);
        let asked = command.get_array("indexes").into_iter();
        let asked = asked.flat_map(|specs| specs.iter());
        let brings = asked.filter(|spec| match spec {
            ValueRef::Document(spec) => !indexes
                .iter()
                .any(|index| name(index.as_doc()) == name(*spec)),
            _ => false,
        });
        let named = indexes.iter().find(|index| is_named(command, index));
        let seconds = named.and_then(|index| index.get("expireAfterSeconds"));
        Self {
            indexes: i32::try_from(indexes.len() + 1).ok(),
            brings: brings.count() as i32,
            dropped: command.get("dropIndexes").is_some() && are_there(command, indexes),
            seconds: seconds.and_then(Number::of).and_then(Number::to_i64_exact),
            hidden: named.is_some_and(|index| index.get("hidden") == Some(ValueRef::Boolean(true))),
        }
    }

    pub(super) fn restore(state: Doc<'_>) -> Self {
        let Some(before) = state.get_doc("before") else {
            // An earlier version began it.
            return Self {
                dropped: true,
                ..Self::default()
            };
        };
        let number = |name: &str| {
            let number = before.get(name).and_then(Number::of);
            number.and_then(Number::to_i64_exact)
        };
        Self {
            indexes: number("indexes").and_then(|number| i32::try_from(number).ok()),
            brings: number("brings").unwrap_or(0) as i32,
            dropped: before.get("dropped") == Some(ValueRef::Boolean(true)),
            seconds: number("seconds"),
            hidden: before.get("hidden") == Some(ValueRef::Boolean(true)),
        }
    }

    pub(super) fn append(&self, writer: &mut DocWriter) {
        writer.begin_document("before");
        if let Some(indexes) = self.indexes {
            writer.append("indexes", indexes);
        }
        if let Some(seconds) = self.seconds {
            writer.append("seconds", seconds);
        }
        writer
            .append("brings", self.brings)
            .append("dropped", self.dropped)
            .append("hidden", self.hidden)
            .end();
    }

    /// Whether an index that is missing by now was there.
    pub(super) fn had_index(&self) -> bool {
        self.dropped
    }

    /// A reply as it would have been the first time.
    pub(super) fn tell(&self, command: Doc<'_>, reply: &DocBuf) -> DocBuf {
        let Some(indexes) = self.indexes else {
            return reply.clone();
        };
        let mut told = DocWriter::new();
        let name = command.first().map_or("", |first| first.key());
        if name == "dropIndexes" {
            told.append("nIndexesWas", indexes);
        }
        let modified = command.get_doc("index");
        for element in reply.iter() {
            match (name, element.key()) {
                ("createIndexes", "numIndexesBefore") => {
                    told.append("numIndexesBefore", indexes);
                }
                ("createIndexes", "numIndexesAfter") => {
                    told.append("numIndexesAfter", indexes + self.brings);
                }
                // All of them are there only by now.
                ("createIndexes", "note" | "createdCollectionAutomatically" | "commitQuorum")
                    if self.brings > 0 => {}
                ("createIndexes", "ok") if self.brings > 0 => {
                    told.append("createdCollectionAutomatically", false);
                    let quorum = command.get("commitQuorum");
                    told.append("commitQuorum", quorum.unwrap_or("votingMembers".into()));
                    let asked = command.get_array("indexes").map(|specs| specs.count());
                    if asked.is_some_and(|asked| (self.brings as usize) < asked) {
                        told.append("note", "index already exists");
                    }
                    told.append_element(&element);
                }
                ("dropIndexes", "nIndexesWas") => {}
                ("collMod", "expireAfterSeconds_old" | "hidden_old" | "hidden_new") => {}
                ("collMod", "expireAfterSeconds_new") => {
                    if let Some(seconds) = self.seconds {
                        told.append("expireAfterSeconds_old", seconds);
                    }
                    told.append_element(&element);
                }
                ("collMod", "ok") => {
                    let hidden = modified.and_then(|index| index.get("hidden"));
                    if let Some(ValueRef::Boolean(hidden)) = hidden
                        && hidden != self.hidden
                    {
                        told.append("hidden_old", self.hidden)
                            .append("hidden_new", hidden);
                    }
                    told.append_element(&element);
                }
                _ => {
                    told.append_element(&element);
                }
            }
        }
        told.finish()
    }
}

/// Whether a `dropIndexes` names indexes that are there.
fn are_there(command: Doc<'_>, indexes: &[DocBuf]) -> bool {
    let has = |wanted: &str| {
        let name = |index: &DocBuf| index.as_doc().get_str("name") == Some(wanted);
        indexes.iter().any(name)
    };
    match command.get("index") {
        Some(ValueRef::String(name)) => name == "*" || has(name),
        Some(ValueRef::Array(names)) => names.iter().all(|name| match name {
            ValueRef::String(name) => has(name),
            _ => false,
        }),
        Some(ValueRef::Document(pattern)) => indexes.iter().any(|index| {
            let key = index.as_doc().get_doc("key");
            key.is_some_and(|key| collection::same_key(pattern, key))
        }),
        _ => false,
    }
}

/// Whether a `collMod` is about this index.
fn is_named(command: Doc<'_>, index: &DocBuf) -> bool {
    let Some(meant) = command.get_doc("index") else {
        return false;
    };
    let key = index.as_doc().get_doc("key");
    match (meant.get_str("name"), meant.get_doc("keyPattern"), key) {
        (Some(name), _, _) => index.as_doc().get_str("name") == Some(name),
        (None, Some(pattern), Some(key)) => collection::same_key(pattern, key),
        _ => false,
    }
}
