//! How each action is carried out and checked over one connection.
//!
//! An [`Operation`] holds its prebuilt requests; performing it patches them, exchanges bytes and checks
//! the reply against what the dataset promises. A wrong answer is an error that ends the measurement.
//! Operations on users are here, those on orders in [`orders`].

mod orders;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use bson::spec::BinarySubtype;
use bson::{Binary, Document, doc};
use fastrand::Rng;

use crate::command::{Request, Slot, find_once, marker};
use crate::connection::Connection;
use crate::dataset::{self, DATABASE, Dataset, FIELD_BYTES, KEY_BYTES, USERS};
use crate::operations::orders::{Aggregate, LookUpByIndex, ScanAll, UpdateOrder};
use crate::reply;
use crate::workload::{Action, Durability};

const LOAD_BATCH: u64 = 100;
const SCAN_RECORDS_MAX: i32 = 100;

/// What all connections of one measurement have in common.
#[derive(Debug)]
pub struct Setting {
    pub dataset: Arc<Dataset>,
    pub durability: Option<Durability>,
    /// Where inserts go that do not belong to the dataset, with the number of the next one.
    pub scratch: Option<Scratch>,
    /// Whether commands carry a session id, as drivers' commands do.
    pub sessions: bool,
}

fn session_id(random: &mut Rng) -> Document {
    let id = Binary {
        subtype: BinarySubtype::Uuid,
        bytes: random.u128(..).to_le_bytes().to_vec(),
    };
    doc! { "id": id }
}

#[derive(Debug)]
pub struct Scratch {
    pub collection: String,
    pub next: AtomicU64,
}

impl Setting {
    fn command(&self, mut command: Document, random: &mut Rng) -> Document {
        command.insert("$db", DATABASE);
        if self.sessions {
            command.insert("lsid", session_id(random));
        }
        command
    }

    fn write(&self, mut command: Document, random: &mut Rng) -> Document {
        if let Some(durability) = self.durability {
            command.insert("writeConcern", durability.write_concern());
        }
        self.command(command, random)
    }
}

/// What performing an operation came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// This many units of the workload (operations, or documents).
    Units(u64),
    /// There was nothing left to do (a load that has given out all records).
    Exhausted,
}

pub trait Operation: Send {
    fn perform(&mut self, connection: &mut Connection, random: &mut Rng) -> Result<Done>;

    /// Gives back what the operation still holds on the server.
    fn finish(&mut self, _connection: &mut Connection) -> Result<()> {
        Ok(())
    }
}

/// The operation behind an action.
pub fn prepare(
    action: Action,
    setting: &Arc<Setting>,
    random: &mut Rng,
) -> Result<Box<dyn Operation>> {
    Ok(match action {
        Action::Ping => Box::new(Ping(Request::new(
            &setting.command(doc! { "ping": 1 }, random),
        )?)),
        Action::InsertBatch => Box::new(Insert::new(setting, LOAD_BATCH, random)?),
        Action::Insert => Box::new(Insert::new(setting, 1, random)?),
        Action::Read => Box::new(Read::new(setting, Dataset::any_user, random)?),
        Action::ReadRecent => Box::new(Read::new(setting, Dataset::recent_user, random)?),
        Action::Update => Box::new(Update::new(setting, None, random)?),
        Action::UpdateRetryable => {
            let session = Session::new(random);
            Box::new(Update::new(setting, Some(session), random)?)
        }
        Action::UpdateOrder => Box::new(UpdateOrder::new(setting, random)?),
        Action::ReadModifyWrite => Box::new(ReadModifyWrite {
            read: Read::new(setting, Dataset::any_user, random)?,
            update: Update::new(setting, None, random)?,
        }),
        Action::ScanRange => Box::new(ScanRange::new(setting, random)?),
        Action::LookUpByIndex => Box::new(LookUpByIndex::new(setting, random)?),
        Action::AggregateIndexed => Box::new(Aggregate::new(
            setting,
            "category",
            dataset::category,
            dataset::CATEGORIES,
            random,
        )?),
        Action::AggregateUnindexed => Box::new(Aggregate::new(
            setting,
            "kind",
            dataset::kind,
            dataset::KINDS,
            random,
        )?),
        Action::ScanAll => Box::new(ScanAll::new(setting, random)?),
    })
}

struct Ping(Request);

impl Operation for Ping {
    fn perform(&mut self, connection: &mut Connection, _random: &mut Rng) -> Result<Done> {
        reply::expect_ok(connection.exchange(&mut self.0)?)?;
        Ok(Done::Units(1))
    }
}

/// Inserts of users: into the scratch collection where there is one, else new users of the dataset.
struct Insert {
    setting: Arc<Setting>,
    request: Request,
    keys: Vec<Slot>,
    values: Vec<Slot>,
}

impl Insert {
    fn new(setting: &Arc<Setting>, batch: u64, random: &mut Rng) -> Result<Insert> {
        let collection = match &setting.scratch {
            Some(scratch) => scratch.collection.as_str(),
            None => USERS,
        };
        let command = setting.write(doc! { "insert": collection, "ordered": true }, random);
        let template = dataset::user_template()?;
        let documents = vec![template.clone(); usize::try_from(batch)?];
        let (request, first) = Request::with_sequence(&command, "documents", &documents)?;
        let key = find_once(&template, marker::text(KEY_BYTES).as_bytes())?;
        let mut keys = Vec::new();
        let mut values = Vec::new();
        for position in 0..documents.len() {
            let start = first + position * template.len();
            keys.push(request.slot_at(&key, start));
            for offset in dataset::user_value_offsets(&template) {
                values.push(Slot::new(start + offset, FIELD_BYTES));
            }
        }
        Ok(Insert {
            setting: Arc::clone(setting),
            request,
            keys,
            values,
        })
    }

    fn send(&mut self, first: u64, connection: &mut Connection, random: &mut Rng) -> Result<()> {
        for (key, number) in self.keys.iter().zip(first..) {
            self.request.patch(key, &dataset::user_key(number));
        }
        for value in &self.values {
            self.request.patch(value, self.setting.dataset.text(random));
        }
        let reply = connection.exchange(&mut self.request)?;
        reply::expect_count(reply, self.keys.len() as u64)
    }
}

impl Operation for Insert {
    fn perform(&mut self, connection: &mut Connection, random: &mut Rng) -> Result<Done> {
        let batch = self.keys.len() as u64;
        let setting = Arc::clone(&self.setting);
        match &setting.scratch {
            Some(scratch) => {
                let first = scratch.next.fetch_add(batch, Ordering::Relaxed);
                if batch > 1 && first >= setting.dataset.records {
                    return Ok(Done::Exhausted);
                }
                self.send(first, connection, random)?;
            }
            None => {
                let number = setting.dataset.users.take();
                self.send(number, connection, random)?;
                setting.dataset.users.acknowledge(number);
            }
        }
        Ok(Done::Units(batch))
    }
}

struct Read {
    setting: Arc<Setting>,
    choose: fn(&Dataset, &mut Rng) -> u64,
    request: Request,
    key: Slot,
}

impl Read {
    fn new(
        setting: &Arc<Setting>,
        choose: fn(&Dataset, &mut Rng) -> u64,
        random: &mut Rng,
    ) -> Result<Read> {
        let find = doc! {
            "find": USERS,
            "filter": { "_id": marker::text(KEY_BYTES) },
            "limit": 1,
            "singleBatch": true,
        };
        let request = Request::new(&setting.command(find, random))?;
        let key = request.slot(marker::text(KEY_BYTES).as_bytes())?;
        Ok(Read {
            setting: Arc::clone(setting),
            choose,
            request,
            key,
        })
    }

    fn read(&mut self, number: u64, connection: &mut Connection) -> Result<()> {
        let key = dataset::user_key(number);
        self.request.patch(&self.key, &key);
        let batch = reply::expect_batch(connection.exchange(&mut self.request)?)?;
        ensure!(batch.cursor == 0, "a single batch left a cursor open");
        let found = batch
            .first_key()
            .with_context(|| format!("reading user number {number}"))?;
        ensure!(found == key, "another document than asked for came back");
        Ok(())
    }
}

impl Operation for Read {
    fn perform(&mut self, connection: &mut Connection, random: &mut Rng) -> Result<Done> {
        let number = (self.choose)(&self.setting.dataset, random);
        self.read(number, connection)?;
        Ok(Done::Units(1))
    }
}

/// A session whose writes are numbered, so that they can be repeated.
struct Session {
    id: Document,
    number: i64,
}

impl Session {
    fn new(random: &mut Rng) -> Session {
        Session {
            id: session_id(random),
            number: 0,
        }
    }
}

struct Update {
    setting: Arc<Setting>,
    session: Option<(Session, Slot)>,
    request: Request,
    key: Slot,
    field: Slot,
    value: Slot,
}

impl Update {
    fn new(setting: &Arc<Setting>, session: Option<Session>, random: &mut Rng) -> Result<Update> {
        let mut command = setting.write(doc! { "update": USERS, "ordered": true }, random);
        if let Some(session) = &session {
            command.insert("lsid", session.id.clone());
            command.insert("txnNumber", marker::LONG);
        }
        let value = "#".repeat(FIELD_BYTES);
        let update = doc! {
            "q": { "_id": marker::text(KEY_BYTES) },
            "u": { "$set": { "field?": &value } },
        };
        let (request, _) = Request::with_sequence(&command, "updates", &[update.to_vec()?])?;
        let session = match session {
            Some(session) => Some((session, request.slot(&marker::LONG.to_le_bytes())?)),
            None => None,
        };
        Ok(Update {
            setting: Arc::clone(setting),
            session,
            key: request.slot(marker::text(KEY_BYTES).as_bytes())?,
            field: request.slot(b"field?\0")?,
            value: request.slot(value.as_bytes())?,
            request,
        })
    }

    fn update(&mut self, number: u64, connection: &mut Connection, random: &mut Rng) -> Result<()> {
        let mut field = *b"field0\0";
        field[5] = random.u8(b'0'..b'0' + dataset::FIELDS as u8);
        self.request.patch(&self.key, &dataset::user_key(number));
        self.request.patch(&self.field, &field);
        if let Some((session, slot)) = &mut self.session {
            session.number += 1;
            self.request.patch(slot, &session.number.to_le_bytes());
        }
        self.request
            .patch(&self.value, self.setting.dataset.text(random));
        reply::expect_count(connection.exchange(&mut self.request)?, 1)
            .with_context(|| format!("updating user number {number}"))
    }
}

impl Operation for Update {
    fn perform(&mut self, connection: &mut Connection, random: &mut Rng) -> Result<Done> {
        let number = self.setting.dataset.any_user(random);
        self.update(number, connection, random)?;
        Ok(Done::Units(1))
    }
}

/// A read and an update of the same user, counted as one operation as YCSB does.
struct ReadModifyWrite {
    read: Read,
    update: Update,
}

impl Operation for ReadModifyWrite {
    fn perform(&mut self, connection: &mut Connection, random: &mut Rng) -> Result<Done> {
        let number = self.read.setting.dataset.any_user(random);
        self.read.read(number, connection)?;
        self.update.update(number, connection, random)?;
        Ok(Done::Units(1))
    }
}

struct ScanRange {
    setting: Arc<Setting>,
    request: Request,
    key: Slot,
    limit: Slot,
}

impl ScanRange {
    fn new(setting: &Arc<Setting>, random: &mut Rng) -> Result<ScanRange> {
        let find = doc! {
            "find": USERS,
            "filter": { "_id": { "$gte": marker::text(KEY_BYTES) } },
            "sort": { "_id": 1 },
            "limit": marker::NUMBER,
        };
        let request = Request::new(&setting.command(find, random))?;
        Ok(ScanRange {
            setting: Arc::clone(setting),
            key: request.slot(marker::text(KEY_BYTES).as_bytes())?,
            limit: request.number_slot()?,
            request,
        })
    }
}

impl Operation for ScanRange {
    fn perform(&mut self, connection: &mut Connection, random: &mut Rng) -> Result<Done> {
        let key = dataset::user_key(self.setting.dataset.any_user(random));
        let limit = random.i32(1..=SCAN_RECORDS_MAX);
        self.request.patch(&self.key, &key);
        self.request.patch_number(&self.limit, limit);
        let batch = reply::expect_batch(connection.exchange(&mut self.request)?)?;
        ensure!(batch.cursor == 0, "a short scan left a cursor open");
        ensure!(
            batch.first_key()? == key,
            "a scan did not begin at the record asked for"
        );
        // Fewer come back only from the end of the collection.
        ensure!(
            batch.count()? <= limit as u64,
            "a scan returned more than its limit"
        );
        Ok(Done::Units(1))
    }
}
