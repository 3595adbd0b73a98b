//! One connection to one server, and how it runs the rows of a group.
//!
//! Each session works in a database of its own, which it drops when it ends. Rows that only read
//! share the group's collections; after a row that writes the documents are put back, after any
//! other row the database is dropped and set up again.
//!
//! A server that hangs, closes the connection or sends what is not BSON fails the row, not the run.

use std::time::{Duration, Instant};

use wire::client::Client;

use crate::notation::print_fields;
use crate::row::{Effect, Row, Step};
use crate::sharding;
use crate::table::{COLLECTION, Group, Setup};
use crate::value::{Fields, Value, decode, encode, field, get};

/// Long enough for a loaded machine; a reply that takes longer counts as none.
const REPLY_SECONDS_MAX: u64 = 20;

/// What the oracle says while it looks at another configuration of its set.
const CONFIGURATION_IN_PROGRESS: i32 = 109;
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// The replies to a row's commands, or why there are none.
pub type Outcome = Result<Vec<Fields>, String>;

pub struct Session {
    address: String,
    client: Option<Client>,
    pub database: String,
    last_cursor: i64,
    /// What the server calls itself as a member of a set, once it was asked.
    me: Option<String>,
    /// The server is a router: collections are sharded where that is possible.
    sharded: bool,
    /// No row of the group writes.
    only_read: bool,
}

impl Session {
    pub fn new(address: &str, database: &str) -> Session {
        Session {
            address: address.to_owned(),
            client: None,
            database: database.to_owned(),
            last_cursor: 0,
            me: None,
            sharded: false,
            only_read: false,
        }
    }

    /// Shards the collections of every setup before documents are inserted.
    pub fn with_sharding(mut self, sharded: bool) -> Session {
        self.sharded = sharded;
        self
    }

    /// Runs the given rows of a group; one outcome for each, in order.
    pub fn run_group(&mut self, setup: &Setup, rows: &[&Row]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(rows.len());
        let mut left_behind = Some(Effect::Anything);
        self.only_read = rows.iter().all(|row| row.effect == Effect::Reads);
        for row in rows {
            let ready = match left_behind {
                Some(Effect::Anything) => self.set_up(setup),
                Some(Effect::Writes) => self.put_documents_back(setup),
                Some(Effect::Reads) | None => Ok(()),
            };
            outcomes.push(match ready {
                Ok(()) => self.run_row(row),
                Err(reason) => Err(format!("setup: {reason}")),
            });
            left_behind = match outcomes.last() {
                Some(Ok(_)) => Some(row.effect),
                Some(Err(_)) | None => Some(Effect::Anything),
            };
        }
        outcomes
    }

    pub fn run_row(&mut self, row: &Row) -> Outcome {
        row.steps.iter().map(|step| self.run_step(step)).collect()
    }

    fn run_step(&mut self, step: &Step) -> Result<Fields, String> {
        let database = if step.on_admin {
            "admin".to_owned()
        } else {
            self.database.clone()
        };
        if self.me.is_none() && print_fields(&step.command).contains("@me") {
            let hello = self.command("admin", vec![field("hello", 1)])?;
            let me = get(&hello, "me").and_then(Value::as_str);
            self.me = Some(me.unwrap_or("nobody:1").to_owned());
        }
        let command: Fields = step
            .command
            .iter()
            .map(|(name, value)| (name.clone(), self.substitute(value)))
            .collect();
        let deadline = Instant::now() + Duration::from_secs(REPLY_SECONDS_MAX);
        let reply = loop {
            let reply = self.command(&database, command.clone())?;
            // Another session's row asks for a configuration at this moment.
            let in_progress = get(&reply, "code") == Some(&Value::Int32(CONFIGURATION_IN_PROGRESS));
            if !in_progress || Instant::now() > deadline {
                break reply;
            }
            std::thread::sleep(LOOK_INTERVAL);
        };
        if let Some(Value::Int64(id)) = get(&reply, "cursor").and_then(|cursor| cursor.get("id")) {
            self.last_cursor = *id;
        }
        Ok(reply)
    }

    fn substitute(&self, value: &Value) -> Value {
        match value {
            Value::String(text) if text == "@cursor" => Value::Int64(self.last_cursor),
            Value::String(text) if text == "@me" => {
                Value::String(self.me.clone().unwrap_or_default())
            }
            Value::String(text) if text.contains("@db") => {
                Value::String(text.replace("@db", &self.database))
            }
            Value::Document(fields) => Value::Document(
                fields
                    .iter()
                    .map(|(name, value)| (name.clone(), self.substitute(value)))
                    .collect(),
            ),
            Value::Array(items) => {
                Value::Array(items.iter().map(|item| self.substitute(item)).collect())
            }
            other => other.clone(),
        }
    }

    fn set_up(&mut self, setup: &Setup) -> Result<(), String> {
        if self.expect_ok(vec![field("dropDatabase", 1)]).is_err() {
            // A target that cannot drop databases yet can still be tested on everything else.
            for (collection, _) in &setup.collections {
                let _ = self.expect_ok(vec![field("drop", collection.as_str())]);
            }
        }
        for command in &setup.commands {
            let Value::Document(command) = self.substitute(&Value::Document(command.clone()))
            else {
                return Err("a setup command is a document".to_owned());
            };
            self.expect_ok(command)?;
        }
        if self.sharded {
            self.shard_collections(setup)?;
        }
        self.insert_documents(setup)
    }

    /// Spreads every collection over the shards. Where that is not possible (capped collections,
    /// views, unique indexes on other fields) it stays on one shard, which is a test too.
    fn shard_collections(&mut self, setup: &Setup) -> Result<(), String> {
        for (name, key) in sharding::keys(setup, self.only_read) {
            let namespace = format!("{}.{name}", self.database);
            let pattern = vec![field(key.as_str(), "hashed")];
            let command = vec![
                field("shardCollection", namespace.as_str()),
                field("key", pattern),
                field("numInitialChunks", 6),
            ];
            // A refusal is an answer; no answer is none.
            self.command("admin", command)?;
        }
        Ok(())
    }

    fn put_documents_back(&mut self, setup: &Setup) -> Result<(), String> {
        let everything = vec![field("q", Vec::new() as Fields), field("limit", 0)];
        self.expect_ok(vec![
            field("delete", COLLECTION),
            field("deletes", vec![Value::Document(everything)]),
        ])?;
        self.insert_into(COLLECTION, setup)
    }

    fn insert_documents(&mut self, setup: &Setup) -> Result<(), String> {
        let mut names: Vec<&str> = setup
            .collections
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        names.dedup();
        for name in names {
            self.insert_into(name, setup)?;
        }
        Ok(())
    }

    fn insert_into(&mut self, collection: &str, setup: &Setup) -> Result<(), String> {
        let documents: Vec<Value> = setup
            .collections
            .iter()
            .filter(|(name, _)| name == collection)
            .flat_map(|(_, documents)| documents.iter().cloned().map(Value::Document))
            .collect();
        if documents.is_empty() {
            return Ok(());
        }
        self.expect_ok(vec![
            field("insert", collection),
            field("documents", documents),
        ])
    }

    fn expect_ok(&mut self, command: Fields) -> Result<(), String> {
        let name = command
            .first()
            .map_or(String::new(), |(name, _)| name.clone());
        let database = self.database.clone();
        let reply = self.command(&database, command)?;
        let succeeded =
            get(&reply, "ok").is_some_and(Value::is_truthy) && get(&reply, "writeErrors").is_none();
        if succeeded {
            Ok(())
        } else {
            Err(format!("{name}: {}", print_fields(&reply)))
        }
    }

    /// Sends one command and decodes the reply; connects first where needed.
    pub fn command(&mut self, database: &str, mut command: Fields) -> Result<Fields, String> {
        if get(&command, "$db").is_none() {
            command.push(field("$db", database));
        }
        let mut client = match self.client.take() {
            Some(client) => client,
            None => self.connect()?,
        };
        let reply = match client.command_bytes(&encode(&command)) {
            Ok(bytes) => {
                decode(bytes).map_err(|error| format!("the reply is not BSON: {error}"))?
            }
            // The connection is not used again: a late reply would answer the wrong command.
            Err(error) => return Err(format!("no reply: {error}")),
        };
        self.client = Some(client);
        Ok(reply)
    }

    fn connect(&self) -> Result<Client, String> {
        let failed = |error| format!("cannot connect to {}: {error}", self.address);
        let client = Client::connect(self.address.as_str()).map_err(failed)?;
        client
            .set_read_timeout(Some(Duration::from_secs(REPLY_SECONDS_MAX)))
            .map_err(failed)?;
        Ok(client)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.client.is_some() {
            let database = self.database.clone();
            // Nothing is left to tell if this fails: the server is not ours to keep clean then.
            let _ = self.command(&database, vec![field("dropDatabase", 1)]);
        }
    }
}

/// The rows of a group that a selection keeps.
pub fn selected<'a>(group: &'a Group, only: Option<&str>) -> Vec<&'a Row> {
    group
        .rows
        .iter()
        .filter(|row| only.is_none_or(|part| group.case_name(row).contains(part)))
        .collect()
}
