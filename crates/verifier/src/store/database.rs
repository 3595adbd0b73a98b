//! Runs in a collection of a server: `{_id: key, v: value}`, under a name that is the owner's alone
//! (see `lease`).
//!
//! Keys are hexadecimal text, because text sorts as we need it and binary values sort by length.
//! Writes wait for a majority, and are tried again when a connection breaks: making the same change
//! twice is the same as making it once, because nobody else writes to the run.

use super::lease::Lease;
use super::{Change, Entry, failed};
use crate::error::VerifyError;
use crate::record::run_key;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::error::Error as DriverError;
use mongodb::options::{ClientOptions, ReadConcern, ReadPreference, SelectionCriteria};
use mongodb::{Client, Collection, Database};
use std::ops::Bound;
use std::time::Duration;

/// Where an earlier version kept its entries.
const EARLIER: &str = "state";
const CHANGES_AT_ONCE: usize = 1000;
const ATTEMPTS: u32 = 6;

pub struct DatabaseStore {
    place: String,
    database: Database,
    entries: Collection<Document>,
    lease: Lease,
}

impl DatabaseStore {
    pub async fn open(uri: &str, name: &str) -> Result<DatabaseStore, VerifyError> {
        let (database, place) = connect(uri, name).await?;
        let wrong = |error: DriverError| VerifyError::of_meta(&place, &error);
        if earlier(&database).await.map_err(wrong)?.is_some() {
            return Err(failed(
                &place,
                format!(
                    "its collection {EARLIER} holds a run of an earlier version of this program, which cannot be gone on with: end it with that version, give it up with --restart, or name another database with --meta-database"
                ),
            ));
        }
        DatabaseStore::take(database, place).await
    }

    async fn take(database: Database, place: String) -> Result<DatabaseStore, VerifyError> {
        let lease = Lease::take(&database, &place).await?;
        Ok(DatabaseStore {
            entries: database.collection(&lease.entries()),
            place,
            database,
            lease,
        })
    }

    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, VerifyError> {
        let found = self
            .entries
            .find_one(doc! {"_id": hexadecimal(key)})
            .await
            .map_err(|error| self.broken(&error))?;
        found.map(|entry| self.value_of(entry)).transpose()
    }

    pub async fn page(
        &self,
        prefix: &[u8],
        low: Bound<&[u8]>,
        entries_max: usize,
    ) -> Result<Vec<Entry>, VerifyError> {
        let prefix = hexadecimal(prefix);
        let mut range = match low {
            Bound::Excluded(key) => doc! {"$gt": hexadecimal(key)},
            Bound::Included(key) => doc! {"$gte": hexadecimal(key)},
            Bound::Unbounded => doc! {"$gte": ""},
        };
        // Above all digits.
        range.insert("$lt", format!("{prefix}~"));
        let mut cursor = self
            .entries
            .find(doc! {"_id": range})
            .sort(doc! {"_id": 1})
            .limit(i64::try_from(entries_max).unwrap_or(i64::MAX))
            .await
            .map_err(|error| self.broken(&error))?;
        let mut page = Vec::new();
        while let Some(entry) = cursor
            .try_next()
            .await
            .map_err(|error| self.broken(&error))?
        {
            let key = entry.get_str("_id").ok().and_then(bytes_of);
            let key = key.ok_or_else(|| self.damaged())?;
            page.push((key, self.value_of(entry)?));
        }
        Ok(page)
    }

    pub async fn write(&self, changes: Vec<Change>) -> Result<(), VerifyError> {
        self.lease.check()?;
        let of_one_kind = |left: &Change, right: &Change| {
            matches!(left, Change::Put(_, _)) == matches!(right, Change::Put(_, _))
        };
        for run in changes.chunk_by(of_one_kind) {
            for chunk in run.chunks(CHANGES_AT_ONCE) {
                self.write_chunk(chunk).await?;
            }
        }
        Ok(())
    }

    async fn write_chunk(&self, chunk: &[Change]) -> Result<(), VerifyError> {
        let mut statements = Vec::with_capacity(chunk.len());
        let mut puts = false;
        for change in chunk {
            statements.push(match change {
                Change::Put(key, value) => {
                    puts = true;
                    let value = Binary {
                        subtype: BinarySubtype::Generic,
                        bytes: value.clone(),
                    };
                    doc! {"q": {"_id": hexadecimal(key)}, "u": {"v": value}, "upsert": true}
                }
                Change::Delete(key) => doc! {"q": {"_id": hexadecimal(key)}, "limit": 1},
            });
        }
        let statements: Vec<Bson> = statements.into_iter().map(Bson::Document).collect();
        let entries = self.entries.name();
        let mut command = match puts {
            true => doc! {"update": entries, "updates": statements},
            false => doc! {"delete": entries, "deletes": statements},
        };
        command.insert("ordered", true);
        command.insert("writeConcern", doc! {"w": "majority"});
        let mut delay = Duration::from_millis(100);
        let mut attempt = 1;
        loop {
            let why = match self.database.run_command(command.clone()).await {
                Ok(reply) => match (reply.get("writeErrors"), reply.get("writeConcernError")) {
                    (None, None) => return Ok(()),
                    (Some(error), _) | (None, Some(error)) => {
                        failed(&self.place, error.to_string())
                    }
                },
                Err(error) => self.broken(&error),
            };
            if attempt == ATTEMPTS {
                return Err(why);
            }
            self.lease.check()?;
            attempt += 1;
            tokio::time::sleep(delay).await;
            delay *= 2;
        }
    }

    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Removes the run that is kept there, one of an earlier version too. Leaves nothing behind that a later
    /// run would take for a collection of one side alone.
    pub async fn remove(uri: &str, name: &str) -> Result<(), VerifyError> {
        let (database, place) = connect(uri, name).await?;
        let wrong = |error: DriverError| VerifyError::of_meta(&place, &error);
        if let Some(entries) = earlier(&database).await.map_err(wrong)? {
            entries.drop().await.map_err(wrong)?;
        }
        let store = DatabaseStore::take(database, place).await?;
        store.lease.remove_all().await
    }

    fn broken(&self, error: &DriverError) -> VerifyError {
        VerifyError::of_meta(&self.place, error)
    }

    fn value_of(&self, entry: Document) -> Result<Vec<u8>, VerifyError> {
        match entry.get_binary_generic("v") {
            Ok(bytes) => Ok(bytes.clone()),
            Err(_) => Err(self.damaged()),
        }
    }

    fn damaged(&self) -> VerifyError {
        failed(&self.place, "it holds entries that are not the verifier's")
    }
}

async fn connect(uri: &str, name: &str) -> Result<(Database, String), VerifyError> {
    let place = format!("{}, database {name}", crate::cluster::shown_address(uri));
    let wrong = |error: DriverError| VerifyError::of_meta(&place, &error);
    let mut options = ClientOptions::parse(uri).await.map_err(wrong)?;
    options.server_selection_timeout = Some(Duration::from_secs(10));
    options.read_concern = Some(ReadConcern::majority());
    options.selection_criteria = Some(SelectionCriteria::ReadPreference(ReadPreference::Primary));
    let client = Client::with_options(options).map_err(wrong)?;
    Ok((client.database(name), place))
}

/// The entries of an earlier version, which kept them under a name that others may use as well: known
/// by its record of a run, which no one else has reason to write.
async fn earlier(database: &Database) -> Result<Option<Collection<Document>>, DriverError> {
    let entries = database.collection::<Document>(EARLIER);
    let run = doc! {"_id": hexadecimal(&run_key()), "v": {"$type": "binData"}};
    let found = entries.find_one(run).await?;
    Ok(found.map(|_| entries))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(hexadecimal: &str) -> Option<Vec<u8>> {
    let digits = hexadecimal.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}
