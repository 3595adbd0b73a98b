//! What both sides have: their collections paired by name, and what the pairs are compared.
//!
//! A pair of collections has documents to compare; a collection that only one side has is a
//! mismatch itself, whatever is in it. A survey is made when a run begins, again whenever
//! definitions may have changed, and once more at the end; the last one is what the report says.

use crate::cluster::Cluster;
use crate::error::VerifyError;
use crate::merge::Side;
use crate::metadata::{CollectionEntry, MetadataMismatch, compare_collections, compare_indexes};
use crate::namespace::Namespace;
use crate::range_query::{both, ids_filter};
use crate::report::Unverified;
use crate::settings::Settings;
use crate::sharding::BothShardKeys;
use std::collections::{BTreeMap, BTreeSet};

type Listed = BTreeMap<Namespace, CollectionEntry>;

#[derive(Debug, Default)]
pub struct Survey {
    pub pairs: Vec<Pairing>,
    pub metadata: Vec<MetadataMismatch>,
    pub unverified: Vec<Unverified>,
    /// Whether it was made for the generation that is under way.
    pub is_fresh: bool,
    /// What was asked for and changes nothing, in words.
    pub warnings: Vec<String>,
    /// Everything that is selected on either side, by its name on the source.
    names: BTreeSet<Namespace>,
}

/// Two collections whose documents can be compared.
#[derive(Debug, Clone)]
pub struct Pairing {
    pub source: Namespace,
    pub destination: Namespace,
    pub source_uuid: Option<String>,
    pub destination_uuid: Option<String>,
    /// Whether both sides sort `_id`s alike, so that a bound cuts both at the same place.
    pub sorted_alike: bool,
    /// Whether documents may go without an event, as the oldest of a capped collection do.
    pub is_unfollowed: bool,
    pub is_clustered: bool,
    /// The time field of a time series, whose measurements are compared by time.
    pub time_field: Option<String>,
    /// The fields of the shard key, of the source's if both have one.
    pub shard_key: Vec<String>,
}

impl Survey {
    pub async fn make(
        source: &Cluster,
        destination: &Cluster,
        settings: &Settings,
    ) -> Result<Survey, VerifyError> {
        let (on_source, on_destination) = tokio::try_join!(
            list(source, settings, false),
            list(destination, settings, true),
        )?;
        let warnings = warnings(settings, &on_source.seen, &on_destination.seen);
        let (on_source, on_destination, strays) =
            (on_source.found, on_destination.found, on_destination.strays);
        let shard_keys = BothShardKeys::read(source, destination).await?;
        let names = on_source.keys().chain(on_destination.keys());
        let mut survey = Survey {
            names: names.cloned().collect(),
            is_fresh: true,
            warnings,
            ..Survey::default()
        };
        survey.unverified.extend(shard_keys.unverified.clone());
        for (name, entry) in &on_source {
            match on_destination.get(name) {
                None => survey.metadata.push(one_sided(name, entry, Side::Source)),
                Some(other) => {
                    let names = (name.clone(), settings.mapping.to_destination(name));
                    let differing = shard_keys.compare(&names.0, &names.1);
                    survey.metadata.extend(differing);
                    survey
                        .add_pair((source, destination), names, (entry, other), &shard_keys)
                        .await?;
                }
            }
        }
        let unpaired = on_destination
            .iter()
            .filter(|(name, _)| !on_source.contains_key(name));
        // Within one cluster these are what the source has under its own names.
        let strays = match settings.same_cluster {
            true => Listed::new(),
            false => strays,
        };
        for (name, entry) in unpaired.chain(&strays) {
            let extra = one_sided(name, entry, Side::Destination);
            survey.metadata.push(extra);
        }
        Ok(survey)
    }

    /// Compares what two namespaces are, and notes whether their documents can be compared.
    async fn add_pair(
        &mut self,
        (source, destination): (&Cluster, &Cluster),
        (name, destination_name): (Namespace, Namespace),
        (entry, other): (&CollectionEntry, &CollectionEntry),
        shard_keys: &BothShardKeys,
    ) -> Result<(), VerifyError> {
        let found = compare_collections(&name.to_string(), entry, other);
        self.metadata.extend(found);
        let time_field = match (entry.kind.as_str(), other.kind.as_str()) {
            ("collection", "collection") => None,
            ("timeseries", "timeseries") => {
                if entry.time_field() != other.time_field() {
                    self.unverified.push(Unverified {
                        namespace: name.to_string(),
                        why: "its time field has another name on the destination, so that measurements cannot be compared by time".to_owned(),
                    });
                    return Ok(());
                }
                entry.time_field()
            }
            // Of a view there is nothing beside its definition; another pair is a mismatch already.
            (_, _) => return Ok(()),
        };
        let (indexes, others) = tokio::try_join!(
            source.indexes(&name),
            destination.indexes(&destination_name)
        )?;
        let found = compare_indexes(&name.to_string(), &indexes, &others);
        self.metadata.extend(found);
        let is_series = time_field.is_some();
        self.pairs.push(Pairing {
            shard_key: shard_keys.fields(&name, &destination_name),
            source: name,
            destination: destination_name,
            source_uuid: entry.uuid.clone(),
            destination_uuid: other.uuid.clone(),
            sorted_alike: is_series || entry.collation() == other.collation(),
            is_unfollowed: is_series || entry.is_capped() || other.is_capped(),
            is_clustered: !is_series && entry.is_clustered(),
            time_field,
        });
        Ok(())
    }

    /// A name that nothing has is a mistake rather than an empty result.
    pub fn check_includes(&self, settings: &Settings) -> Result<(), VerifyError> {
        for pattern in &settings.selection.include {
            if !self.names.iter().any(|name| pattern.matches(name)) {
                return Err(VerifyError::settings(format!(
                    "no collection matches --include {pattern} on either side: check the name, the excludes, and that the user may list it"
                )));
            }
        }
        if self.names.is_empty() {
            return Err(VerifyError::settings(
                "neither side has a collection to verify: check the URIs, the patterns, and what the users may list",
            ));
        }
        Ok(())
    }

    /// A filter that a server refuses is a mistake as well.
    pub async fn check_filter(
        &self,
        (source, destination): (&Cluster, &Cluster),
        settings: &Settings,
    ) -> Result<(), VerifyError> {
        let (Some(filter), Some(pair)) = (&settings.filter, self.pairs.first()) else {
            return Ok(());
        };
        // It need not look for documents that match.
        let filter = both(ids_filter(&[]), Some(filter));
        for (cluster, name) in [(source, &pair.source), (destination, &pair.destination)] {
            match cluster.find(name, &filter, 0).await {
                Ok(_) => {}
                Err(VerifyError::Server {
                    side,
                    detail,
                    transient: false,
                    ..
                }) => {
                    return Err(VerifyError::settings(format!(
                        "the {side} refuses the filter ({detail}): correct --filter"
                    )));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Everything that is selected on either side, by its name on the source.
    pub fn names(&self) -> impl Iterator<Item = &Namespace> {
        self.names.iter()
    }

    /// Whether the name was there when the survey was made, on one side at least.
    pub fn knows(&self, name: &Namespace) -> bool {
        self.names.contains(name)
    }
}

/// What one side has, by names of the source.
#[derive(Default)]
struct Listing {
    found: Listed,
    /// Of the destination, by its own names: what has the name of a collection which the mapping calls
    /// otherwise there. Nobody's counterparts.
    strays: Listed,
    /// Also what is not selected.
    seen: BTreeSet<Namespace>,
}

fn warnings(
    settings: &Settings,
    source: &BTreeSet<Namespace>,
    destination: &BTreeSet<Namespace>,
) -> Vec<String> {
    let names: BTreeSet<Namespace> = source.union(destination).cloned().collect();
    let excludes = settings.selection.idle_excludes(&names);
    let excludes = excludes.iter().map(|pattern| {
        format!("--exclude {pattern} leaves out nothing, because no collection matches it")
    });
    let rules = settings.mapping.idle(&names);
    let rules = rules
        .iter()
        .map(|rule| format!("--map {rule} renames nothing, because neither side has such a name"));
    excludes.chain(rules).collect()
}

/// The selected namespaces of one side.
async fn list(
    cluster: &Cluster,
    settings: &Settings,
    mapped: bool,
) -> Result<Listing, VerifyError> {
    let mut listing = Listing::default();
    let mut named = settings.selection.named_databases();
    if let (Some(names), true) = (&mut named, mapped) {
        let there = names.iter().map(|name| settings.mapping.databases_of(name));
        *names = there.flatten().collect();
    }
    for database in cluster.databases(named.as_ref()).await? {
        if matches!(database.as_str(), "admin" | "config" | "local") {
            continue;
        }
        for entry in cluster.collections(&database).await? {
            let namespace = Namespace::new(&database, &entry.name);
            let name = match mapped {
                true => settings.mapping.to_source(&namespace),
                false => namespace.clone(),
            };
            listing.seen.insert(name.clone());
            if !settings.verifies(&namespace, &name) {
                continue;
            }
            if mapped && settings.mapping.to_destination(&name) != namespace {
                listing.strays.insert(namespace, entry);
                continue;
            }
            let shown = name.to_string();
            if listing.found.insert(name, entry).is_some() {
                return Err(VerifyError::settings(format!(
                    "the mapping gives {shown} two counterparts on the destination: map each collection to a name of its own"
                )));
            }
        }
    }
    if !mapped {
        check_distinct(&listing.found, settings)?;
    }
    Ok(listing)
}

fn check_distinct(found: &Listed, settings: &Settings) -> Result<(), VerifyError> {
    let mut targets = BTreeMap::new();
    for name in found.keys() {
        let target = settings.mapping.to_destination(name);
        if let Some(other) = targets.insert(target.clone(), name) {
            return Err(VerifyError::settings(format!(
                "{other} and {name} of the source are both mapped to {target}: map each collection to a name of its own"
            )));
        }
    }
    Ok(())
}

fn one_sided(name: &Namespace, entry: &CollectionEntry, side: Side) -> MetadataMismatch {
    let there = Some(entry.kind.clone());
    let (source, destination) = match side {
        Side::Source => (there, None),
        Side::Destination => (None, there),
    };
    MetadataMismatch {
        namespace: name.to_string(),
        what: "collection".to_owned(),
        source,
        destination,
    }
}
