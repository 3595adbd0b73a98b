//! One of the two clusters: connecting, and the few requests that the verifier makes of it.
//!
//! Everything goes through the official driver as commands whose bytes we wrote ourselves, because
//! a filter must carry the exact bytes of a bound. The driver does not retry such commands: whoever
//! runs a task runs it again.

use crate::element::{Malformed, Writer};
use crate::error::VerifyError;
use crate::merge::Side;
use crate::metadata::{CollectionEntry, check_settings};
use crate::namespace::Namespace;
use crate::range_query::AcrossTypes;
use crate::settings::{Settings, Writes};
use crate::time::Watermark;
use crate::topology::Topology;
use bson::{Document, RawDocumentBuf, doc};
use futures_util::StreamExt;
use mongodb::Client;
use mongodb::options::{
    ClientOptions, ReadConcernLevel, ReadPreference, SelectionCriteria, ServerAddress,
};
use std::collections::BTreeSet;
use std::sync::Arc;

const NAMESPACE_NOT_FOUND: i32 = 26;
/// About how much a batch of documents should hold.
const BATCH_BYTES: u64 = 2 * 1024 * 1024;
const BATCH_DOCUMENTS_MAX: u64 = 10_000;

/// A connected cluster.
#[derive(Clone)]
pub struct Cluster {
    pub side: Side,
    /// Host and port, for people.
    pub address: String,
    pub across_types: AcrossTypes,
    pub has_sample_rate: bool,
    /// Whether a scan can start at a record that is no longer there.
    pub has_start_at: bool,
    pub topology: Topology,
    /// What every read waits for: nothing older is ever seen.
    pub reads_after: Arc<Watermark>,
    pub(crate) client: Client,
    pub(crate) reads_from: SelectionCriteria,
    /// Where definitions are read: while they may change only the primary knows the latest.
    definitions_from: SelectionCriteria,
    pub(crate) read_concern: String,
    /// As connected with, for a connection to one of its nodes.
    options: ClientOptions,
}

/// About how large a collection is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CollectionSize {
    pub documents: u64,
    pub bytes: u64,
}

impl CollectionSize {
    /// How many documents to ask for at once.
    pub fn batch_documents(self) -> u64 {
        let average = self.bytes / self.documents.max(1);
        (BATCH_BYTES / average.max(1)).clamp(1, BATCH_DOCUMENTS_MAX)
    }
}

impl Cluster {
    /// Connects, and asks the server what it can do.
    pub async fn connect(side: Side, settings: &Settings) -> Result<Cluster, VerifyError> {
        let (uri, option) = match side {
            Side::Source => (&settings.from, "--from"),
            Side::Destination => (&settings.to, "--to"),
        };
        if uri.starts_with("mongodb+srv://") {
            return Err(VerifyError::settings(format!(
                "{option} is a mongodb+srv:// URI, which this build cannot resolve: give the hosts themselves, as mongodb://host1:port,host2:port/?replicaSet=name&tls=true"
            )));
        }
        let shown = shown_address(uri);
        let mut options = ClientOptions::parse(uri)
            .await
            .map_err(|error| VerifyError::of_driver(side, &shown, "read the URI", &error))?;
        options
            .app_name
            .get_or_insert_with(|| "terndb verify".to_owned());
        options.server_selection_timeout = Some(settings.connect_timeout);
        // Each worker has one query running, and the sampling one more.
        let connections = u32::try_from(settings.workers + 4).unwrap_or(u32::MAX);
        options.max_pool_size.get_or_insert(connections.max(10));
        options
            .connect_timeout
            .get_or_insert(settings.connect_timeout);
        let read_concern = settings
            .read_concern
            .clone()
            .or_else(|| {
                options
                    .read_concern
                    .as_ref()
                    .map(|given| level_name(&given.level))
            })
            .unwrap_or_else(|| "majority".to_owned());
        let reads_from = settings
            .read_preference
            .clone()
            .or_else(|| options.selection_criteria.clone())
            .unwrap_or(SelectionCriteria::ReadPreference(ReadPreference::Primary));
        let definitions_from = match settings.writes {
            Writes::On => SelectionCriteria::ReadPreference(ReadPreference::Primary),
            Writes::Off => reads_from.clone(),
        };
        let client = Client::with_options(options.clone())
            .map_err(|error| VerifyError::of_driver(side, &shown, "connect", &error))?;
        let mut cluster = Cluster {
            side,
            address: shown,
            across_types: AcrossTypes::Expression,
            has_sample_rate: true,
            has_start_at: false,
            topology: Topology::Standalone,
            reads_after: Arc::default(),
            client,
            reads_from,
            definitions_from,
            read_concern,
            options,
        };
        let version = match cluster.version().await {
            Err(error @ VerifyError::Unreachable { .. }) => {
                return Err(cluster.named_otherwise().await.unwrap_or(error));
            }
            told => told?,
        };
        cluster.across_types = settings.across_types.unwrap_or(match version >= [5, 0, 0] {
            true => AcrossTypes::Expression,
            false => AcrossTypes::Join,
        });
        cluster.has_sample_rate = settings.has_sample_rate.unwrap_or(version >= [4, 4, 0]);
        cluster.has_start_at = version >= [8, 0, 14] || ([7, 0, 26]..[8, 0, 0]).contains(&version);
        cluster.topology = cluster.ask_topology().await?;
        Ok(cluster)
    }

    /// If a host that the URI names is there but of another replica set than it says: that.
    async fn named_otherwise(&self) -> Option<VerifyError> {
        let expected = self.options.repl_set_name.as_ref()?;
        for host in &self.options.hosts {
            let Ok(node) = self.node(&host.to_string()) else {
                continue;
            };
            let hello = node.command("admin", doc! {"hello": 1}, "say who it is");
            let Ok(reply) = hello.await else { continue };
            let is = match reply.get_str("setName") {
                Ok(name) if name == expected => continue,
                Ok(name) => format!("a member of the replica set {name:?}"),
                Err(_) => "not a member of a replica set".to_owned(),
            };
            return Some(VerifyError::settings(format!(
                "the {} at {host} is {is}, but its URI says replicaSet={expected}: correct the name, or leave it out",
                self.side
            )));
        }
        None
    }

    async fn version(&self) -> Result<[i64; 3], VerifyError> {
        let action = "tell its version";
        let reply = self.command("admin", doc! {"buildInfo": 1}, action).await?;
        let parts = reply
            .get_array("versionArray")
            .map_err(|_| self.malformed(action))?;
        let part = |position: usize| parts.get(position).and_then(whole_number).unwrap_or(0);
        Ok([part(0), part(1), part(2)])
    }

    /// A connection to one node of the cluster, for what only that node knows.
    pub fn node(&self, host: &str) -> Result<Cluster, VerifyError> {
        let wrong = |error| self.failed("connect to one node", &error);
        let mut options = self.options.clone();
        options.hosts = vec![ServerAddress::parse(host).map_err(wrong)?];
        options.direct_connection = Some(true);
        options.repl_set_name = None;
        Ok(Cluster {
            client: Client::with_options(options).map_err(wrong)?,
            address: host.to_owned(),
            ..self.clone()
        })
    }

    /// A connection to a replica set of the cluster, as `name/host:port,host:port`.
    pub fn replica_set(&self, hosts: &str) -> Result<Cluster, VerifyError> {
        let wrong = |error| self.failed("connect to a shard", &error);
        let (name, members) = hosts.split_once('/').unwrap_or(("", hosts));
        let mut options = self.options.clone();
        let parsed = members.split(',').map(ServerAddress::parse);
        options.hosts = parsed.collect::<Result<_, _>>().map_err(wrong)?;
        options.direct_connection = None;
        options.repl_set_name = Some(name.to_owned()).filter(|name| !name.is_empty());
        Ok(Cluster {
            client: Client::with_options(options).map_err(wrong)?,
            address: members.to_owned(),
            topology: Topology::ReplicaSet,
            ..self.clone()
        })
    }

    /// The shards of a cluster, by name, with their connection strings.
    pub async fn shards(&self) -> Result<Vec<(String, String)>, VerifyError> {
        let action = "read its shards in config.shards";
        let listed = self
            .drain("config", doc! {"find": "shards"}, action)
            .await?;
        let shards = listed.iter().map(|shard| {
            let name = shard.get_str("_id")?.to_owned();
            Ok((name, shard.get_str("host")?.to_owned()))
        });
        shards
            .collect::<Result<_, bson::error::Error>>()
            .map_err(|_| self.malformed(action))
    }

    /// Whether the URI wants one member of a set, whatever others there are.
    pub(crate) fn is_direct(&self) -> bool {
        self.options.direct_connection == Some(true)
    }

    /// The databases' names.
    ///
    /// Those that a user may not see would count as absent, so that a user who may not see all is
    /// refused, unless what to verify is `named`. Then the names are taken for there: whoever may not
    /// see what is in them is told so when that is listed.
    pub async fn databases(
        &self,
        named: Option<&BTreeSet<String>>,
    ) -> Result<BTreeSet<String>, VerifyError> {
        let action = "list all databases";
        let command = doc! {"listDatabases": 1, "nameOnly": true};
        let mut all = command.clone();
        all.insert("authorizedDatabases", false);
        let (reply, named) = match (self.command("admin", all, action).await, named) {
            (Err(VerifyError::Privilege { .. }), Some(named)) => {
                let reply = self.command("admin", command, action).await?;
                (reply, named.clone())
            }
            (answered, _) => (answered?, BTreeSet::new()),
        };
        let listed = reply
            .get_array("databases")
            .map_err(|_| self.malformed(action))?;
        let names = listed.iter().map(|entry| {
            let name = entry
                .as_document()
                .and_then(|entry| entry.get_str("name").ok());
            name.map(str::to_owned)
                .ok_or_else(|| self.malformed(action))
        });
        names.chain(named.into_iter().map(Ok)).collect()
    }

    /// The collections and views of a database.
    pub async fn collections(&self, database: &str) -> Result<Vec<CollectionEntry>, VerifyError> {
        let action = format!("list the collections of {database}");
        let mut command = Writer::new();
        command.int32("listCollections", 1);
        let listed = self.definitions(database, command, &action).await?;
        let entries = listed.iter().map(|entry| CollectionEntry::parse(entry));
        entries
            .collect::<Result<_, Malformed>>()
            .map_err(|Malformed| self.malformed(&action))
    }

    /// The indexes of a collection, as BSON.
    pub async fn indexes(&self, namespace: &Namespace) -> Result<Vec<Vec<u8>>, VerifyError> {
        let action = format!("list the indexes of {namespace}");
        let mut command = Writer::new();
        command.text("listIndexes", &namespace.collection);
        let database = &namespace.database;
        let listed = self.definitions(database, command, &action).await?;
        for index in &listed {
            check_settings(index).map_err(|Malformed| self.malformed(&action))?;
        }
        Ok(listed)
    }

    /// All results of a command that lists definitions, as they are; none if the collection is gone.
    async fn definitions(
        &self,
        database: &str,
        mut command: Writer,
        action: &str,
    ) -> Result<Vec<Vec<u8>>, VerifyError> {
        command.document("cursor", &Writer::new().finish());
        let command = RawDocumentBuf::from_bytes(command.finish())
            .expect("what the writer wrote is a document");
        let from = self.definitions_from.clone();
        let opened = self.open_at(database, command, 0, action, from).await;
        let mut documents = match opened {
            Ok(documents) => documents,
            Err(error) if code_of(&error) == Some(NAMESPACE_NOT_FOUND) => return Ok(Vec::new()),
            Err(error) => return Err(self.failed(action, &error)),
        };
        let mut found = Vec::new();
        while let Some(batch) = documents.next().await? {
            found.extend(batch.documents().map(<[u8]>::to_vec));
        }
        Ok(found)
    }

    pub async fn size(&self, namespace: &Namespace) -> Result<CollectionSize, VerifyError> {
        let action = format!("tell the size of {namespace}");
        let command = doc! {"collStats": &namespace.collection};
        let reply = self.command(&namespace.database, command, &action).await?;
        let number = |name: &str| {
            let given = reply.get(name).and_then(whole_number).unwrap_or(0);
            u64::try_from(given).unwrap_or(0)
        };
        Ok(CollectionSize {
            documents: number("count"),
            bytes: number("size"),
        })
    }

    pub(crate) async fn command(
        &self,
        database: &str,
        command: Document,
        action: &str,
    ) -> Result<Document, VerifyError> {
        self.client
            .database(database)
            .run_command(command)
            .selection_criteria(self.definitions_from.clone())
            .await
            .map_err(|error| self.failed(action, &error))
    }

    /// All results of a command that answers with a cursor; none if the collection is gone.
    pub(crate) async fn drain(
        &self,
        database: &str,
        command: Document,
        action: &str,
    ) -> Result<Vec<Document>, VerifyError> {
        let opened = self
            .client
            .database(database)
            .run_cursor_command(command)
            .selection_criteria(self.definitions_from.clone())
            .await;
        let mut cursor = match opened {
            Ok(cursor) => cursor,
            Err(error) if code_of(&error) == Some(NAMESPACE_NOT_FOUND) => return Ok(Vec::new()),
            Err(error) => return Err(self.failed(action, &error)),
        };
        let mut found = Vec::new();
        while let Some(next) = cursor.next().await {
            found.push(next.map_err(|error| self.failed(action, &error))?);
        }
        Ok(found)
    }

    pub fn failed(&self, action: &str, error: &mongodb::error::Error) -> VerifyError {
        VerifyError::of_driver(self.side, &self.address, action, error)
    }

    /// A query of ours ended without its result.
    pub fn broke_off(&self, namespace: &Namespace) -> VerifyError {
        VerifyError::Server {
            side: self.side,
            address: self.address.clone(),
            action: format!("read {namespace}"),
            detail: "the reader broke off, which is a bug of the verifier".to_owned(),
            transient: false,
        }
    }

    pub fn malformed(&self, action: &str) -> VerifyError {
        VerifyError::Malformed {
            side: self.side,
            address: self.address.clone(),
            action: action.to_owned(),
        }
    }
}

fn level_name(level: &ReadConcernLevel) -> String {
    match level {
        ReadConcernLevel::Local => "local",
        ReadConcernLevel::Majority => "majority",
        ReadConcernLevel::Linearizable => "linearizable",
        ReadConcernLevel::Available => "available",
        ReadConcernLevel::Snapshot => "snapshot",
        ReadConcernLevel::Custom(name) => name,
        // Levels of later drivers: what is surely known.
        _ => "majority",
    }
    .to_owned()
}

pub(crate) fn code_of(error: &mongodb::error::Error) -> Option<i32> {
    match error.kind.as_ref() {
        mongodb::error::ErrorKind::Command(command) => Some(command.code),
        _ => None,
    }
}

fn whole_number(value: &bson::Bson) -> Option<i64> {
    match value {
        bson::Bson::Int32(number) => Some(i64::from(*number)),
        bson::Bson::Int64(number) => Some(*number),
        bson::Bson::Double(number) => Some(*number as i64),
        _ => None,
    }
}

/// The hosts of a URI, without user, password and options.
pub fn shown_address(uri: &str) -> String {
    let rest = uri.split_once("://").map_or(uri, |(_, rest)| rest);
    // First the last @: a password may hold a slash that should have been escaped.
    let after_user = rest.rsplit_once('@').map_or(rest, |(_, hosts)| hosts);
    let hosts = after_user.split(['/', '?']).next().unwrap_or(after_user);
    hosts.to_owned()
}

/// Parses a filter that a person wrote, as extended JSON.
pub fn parse_filter(text: &str) -> Result<Vec<u8>, VerifyError> {
    let wrong = |why: String| {
        VerifyError::settings(format!(
            "the filter is not understood ({why}): write it as extended JSON, such as {{\"year\": {{\"$gte\": 2020}}}}"
        ))
    };
    let json: serde_json::Value =
        serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    let value = bson::Bson::try_from(json).map_err(|error| wrong(error.to_string()))?;
    let bson::Bson::Document(filter) = value else {
        return Err(wrong("it is not an object".to_owned()));
    };
    let bytes = filter.to_vec().map_err(|error| wrong(error.to_string()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_shown() {
        let check = |uri: &str, expected: &str| assert_eq!(shown_address(uri), expected, "{uri}");
        check("mongodb://a:1", "a:1");
        check("mongodb://user:p%40ss@a:1,b:2/db?x=y", "a:1,b:2");
        check("mongodb://user:p@ss@a:1?x=y", "a:1");
        check("mongodb://user:p/w?@a:1/?x=y", "a:1");
        check("nonsense", "nonsense");
    }

    #[test]
    fn filters_are_extended_json() {
        let expected = doc! {"a": {"$gte": 5_i64}}.to_vec().unwrap();
        assert_eq!(
            parse_filter(r#"{"a": {"$gte": {"$numberLong": "5"}}}"#).unwrap(),
            expected
        );
        for wrong in ["", "{", "[]", "5"] {
            let error = parse_filter(wrong).unwrap_err().to_string();
            assert!(error.contains("extended JSON"), "{error}");
        }
    }

    #[test]
    fn batches_hold_about_as_many_bytes() {
        let check = |documents, bytes, expected| {
            let size = CollectionSize { documents, bytes };
            assert_eq!(size.batch_documents(), expected);
        };
        check(0, 0, 10_000);
        check(1000, 1_024_000, 2048);
        check(1, 16 * 1024 * 1024, 1);
    }
}
