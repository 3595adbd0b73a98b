//! Runs in a collection of a server: `{_id: key, v: value}`.
//!
//! Keys are hexadecimal text, because text sorts as we need it and binary values sort by length.
//! Writes wait for a majority, and are tried again when a connection breaks: making the same change
//! twice is the same as making it once, as long as nobody else writes to the run.

use super::lease::{Lease, release};
use super::{Change, Entry, failed};
use crate::error::VerifyError;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::options::{ClientOptions, ReadConcern, ReadPreference, SelectionCriteria};
use mongodb::{Client, Collection};
use std::ops::Bound;
use std::time::Duration;

const COLLECTION: &str = "state";
const CHANGES_AT_ONCE: usize = 1000;
const ATTEMPTS: u32 = 6;

pub struct DatabaseStore {
    place: String,
    client: Client,
    name: String,
    entries: Collection<Document>,
    lease: Lease,
}

impl DatabaseStore {
    pub async fn open(uri: &str, name: &str) -> Result<DatabaseStore, VerifyError> {
        let place = format!("{}, database {name}", crate::cluster::shown_address(uri));
        let mut options = ClientOptions::parse(uri)
            .await
            .map_err(|e| failed(&place, e))?;
        options.server_selection_timeout = Some(Duration::from_secs(10));
        options.read_concern = Some(ReadConcern::majority());
        options.selection_criteria =
            Some(SelectionCriteria::ReadPreference(ReadPreference::Primary));
        let client = Client::with_options(options).map_err(|e| failed(&place, e))?;
        let entries = client.database(name).collection(COLLECTION);
        let lease = Lease::take(&client, &entries, &place).await?;
        let store = DatabaseStore {
            lease,
            place,
            client,
            name: name.to_owned(),
            entries,
        };
        store.get(b"").await?;
        Ok(store)
    }

    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, VerifyError> {
        let found = self
            .entries
            .find_one(doc! {"_id": hexadecimal(key)})
            .await
            .map_err(|e| failed(&self.place, e))?;
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
            .map_err(|e| failed(&self.place, e))?;
        let mut page = Vec::new();
        while let Some(entry) = cursor
            .try_next()
            .await
            .map_err(|e| failed(&self.place, e))?
        {
            let key = entry.get_str("_id").ok().and_then(bytes_of);
            let key = key.ok_or_else(|| self.damaged())?;
            page.push((key, self.value_of(entry)?));
        }
        Ok(page)
    }

    pub async fn write(&self, changes: Vec<Change>) -> Result<(), VerifyError> {
        self.lease.check(&self.place)?;
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
        let mut command = match puts {
            true => doc! {"update": COLLECTION, "updates": statements},
            false => doc! {"delete": COLLECTION, "deletes": statements},
        };
        command.insert("ordered", true);
        command.insert("writeConcern", doc! {"w": "majority"});
        let mut delay = Duration::from_millis(100);
        let mut attempt = 1;
        loop {
            let answer = self
                .client
                .database(&self.name)
                .run_command(command.clone())
                .await;
            let why = match answer {
                Ok(reply) => match (reply.get("writeErrors"), reply.get("writeConcernError")) {
                    (None, None) => return Ok(()),
                    (Some(error), _) | (None, Some(error)) => error.to_string(),
                },
                Err(error) => error.to_string(),
            };
            if attempt == ATTEMPTS {
                return Err(failed(&self.place, why));
            }
            attempt += 1;
            tokio::time::sleep(delay).await;
            delay *= 2;
        }
    }

    /// Leaves nothing behind that a later run would take for a collection of one side alone. A
    /// collection of the same name that also holds something of somebody else's stays.
    pub async fn drop_if_empty(&self) -> Result<(), VerifyError> {
        release(&self.entries, &self.place).await?;
        let any = self.entries.find_one(doc! {}).await;
        if any.map_err(|e| failed(&self.place, e))?.is_none() {
            // A user who may not drop it leaves an empty collection, which is no reason to fail.
            let _ = self.entries.drop().await;
        }
        Ok(())
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

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(hexadecimal: &str) -> Option<Vec<u8>> {
    let digits = hexadecimal.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}
