//! `createIndexes` and `dropIndexes`.
//!
//! ```text
//!   specifications ─► checked ─► [ddl] against the catalog: there already, in conflict, or new
//!     new: entered in the catalog ─► built while writes go on ─► ready
//! ```
//!
//! Two builds of the same index do not run side by side: who asks for an index
//! that somebody else is building waits until that build has ended, and looks
//! again.

use super::arguments::{Argument, arguments, missing};
use super::commit_quorum::CommitQuorum;
use super::insert::check_target;
use super::{Answer, Invocation, finish};
use crate::catalog::{Collection, Index};
use model::bson::{Doc, DocBuf, ValueRef};
use model::text::document_quoted;
use model::{Code, Error, Namespace};
use query::index::{IndexDefinition, parse_specification};
use std::collections::HashSet;
use std::time::Duration;
use wire::Reply;

/// Indexes that one collection may have, the one on `_id` included.
const INDEXES_MAX: usize = 64;
/// How long to wait for another's build before looking whether to go on.
pub(crate) const BUILD_WAIT: Duration = Duration::from_secs(1);

pub(crate) async fn create_indexes(invocation: &Invocation<'_>) -> Answer {
    let namespace = invocation.namespace()?;
    let (asked, quorum) = parse(invocation)?;
    check_target(&namespace)?;
    quorum.check(invocation)?;
    let shard = invocation.shard;
    loop {
        let catalog_change = shard.catalog.changed();
        let ddl = shard
            .ddl_in(&[namespace.database()], Some(invocation.operation))
            .await?;
        invocation.check_database_route()?;
        let Some(collection) = shard.catalog.get(&namespace) else {
            let new = choose(None, &namespace, &asked)?.new;
            let after = new.len() + 1;
            shard
                .create_collection(&namespace, DocBuf::new(), new)
                .await?;
            return reply(1, after, asked.len(), Some((true, &quorum)));
        };
        check_unique(&collection, &asked)?;
        let chosen = choose(Some(&collection), &namespace, &asked)?;
        if chosen.wait {
            drop(ddl);
            // Looks again now and then: the client's time may be up.
            let _ = tokio::time::timeout(BUILD_WAIT, catalog_change).await;
            invocation.operation.check()?;
            continue;
        }
        let before = collection.indexes.len();
        if chosen.new.is_empty() {
            return reply(before, before, asked.len(), None);
        }
        let after = before + chosen.new.len();
        let build = shard.begin_indexes(&collection, chosen.new).await?;
        drop(ddl);
        if let Some(build) = build {
            shard
                .build_indexes(&build, invocation.operation)
                .await
                .map_err(|error| failed_build(error, &collection))?;
        }
        return reply(before, after, asked.len(), Some((false, &quorum)));
    }
}

/// ⚑ A unique index can only be kept by a shard that sees all documents of one value: its first fields
/// must be those of the shard key.
fn check_unique(collection: &Collection, asked: &[IndexDefinition]) -> Result<(), Error> {
    let Some(ownership) = collection.sharded_ownership() else {
        return Ok(());
    };
    for index in asked.iter().filter(|index| index.unique) {
        let mut fields = index.key_pattern().iter();
        let mut is_next = |name: &str| fields.next().is_some_and(|field| field.key() == name);
        let is_prefix = ownership.key.iter().all(|wanted| is_next(wanted.key()));
        let first = index.key_pattern().first();
        let is_on_id = first.is_some_and(|first| first.key() == "_id");
        if !is_prefix && !is_on_id {
            return Err(Error::new(
                Code::CANNOT_CREATE_INDEX,
                format!(
                    "cannot create unique index over {} with a shard key that is not its prefix",
                    document_quoted(index.key_pattern()),
                ),
            ));
        }
    }
    Ok(())
}

fn failed_build(error: Error, collection: &Collection) -> Error {
    Error {
        message: format!(
            "Index build failed: Collection {} ( {} ) :: caused by :: {}",
            collection.namespace, collection.uuid, error.message
        ),
        ..error
    }
}

fn reply(
    before: usize,
    after: usize,
    asked: usize,
    built: Option<(bool, &CommitQuorum)>,
) -> Answer {
    let mut writer = Reply::writer();
    writer
        .append("numIndexesBefore", before as i32)
        .append("numIndexesAfter", after as i32);
    if let Some((created, quorum)) = built {
        writer.append("createdCollectionAutomatically", created);
        quorum.append_to(&mut writer);
    }
    if before == after {
        writer.append("note", "all indexes already exist");
    } else if after - before < asked {
        writer.append("note", "index already exists");
    }
    finish(writer)
}

fn parse(invocation: &Invocation<'_>) -> Result<(Vec<IndexDefinition>, CommitQuorum), Error> {
    let (mut listed, mut ignore_unknown, mut quorum) = (None, false, CommitQuorum::default());
    for argument in arguments("createIndexes", invocation.request.body()) {
        match argument.name() {
            "indexes" => listed = Some(argument),
            "ignoreUnknownIndexOptions" => ignore_unknown = argument.loose_boolean()?,
            "commitQuorum" if argument.is_null() => {}
            "commitQuorum" => quorum = CommitQuorum::parse(&argument)?,
            _ => return Err(argument.unknown()),
        }
    }
    let specs: Vec<Doc<'_>> = match (invocation.request.sequence("indexes"), listed) {
        (Some(sequence), _) => sequence.iter().collect(),
        (None, Some(listed)) => list_of_documents(&listed)?,
        (None, None) => return Err(missing("createIndexes", "indexes")),
    };
    if specs.is_empty() {
        return Err(Error::bad_value(
            "Must specify at least one index to create",
        ));
    }
    let definitions = specs
        .into_iter()
        .map(|spec| parse_specification(spec, ignore_unknown))
        .collect::<Result<_, _>>()?;
    Ok((definitions, quorum))
}

fn list_of_documents<'a>(argument: &Argument<'a>) -> Result<Vec<Doc<'a>>, Error> {
    let documents = argument
        .array()?
        .iter()
        .enumerate()
        .map(|(at, value)| match value {
            ValueRef::Document(doc) => Ok(doc),
            other => Err(Error::new(
                Code::TYPE_MISMATCH,
                format!(
                    "BSON field 'createIndexes.indexes.{at}' is the wrong type '{}', expected type \
                 'object'",
                    other.kind().name()
                ),
            )),
        });
    documents.collect()
}

/// What is to be done for a list of specifications.
pub(crate) struct Chosen {
    pub(crate) new: Vec<IndexDefinition>,
    /// One of them is being built by somebody else.
    pub(crate) wait: bool,
}

pub(crate) fn choose(
    collection: Option<&Collection>,
    namespace: &Namespace,
    asked: &[IndexDefinition],
) -> Result<Chosen, Error> {
    let existing: &[std::sync::Arc<Index>] = collection.map_or(&[], |known| &known.indexes);
    let mut chosen = Chosen {
        new: Vec::new(),
        wait: false,
    };
    for definition in asked.iter().filter(|definition| !definition.is_id()) {
        let mut there = None;
        for index in existing {
            if relation(definition, &index.definition)? == Relation::Same {
                there = Some(index);
            }
        }
        if let Some(index) = there {
            chosen.wait |= !index.is_ready();
            continue;
        }
        for other in &chosen.new {
            if relation(definition, other)? == Relation::Same {
                return Err(match collection {
                    Some(_) => Error::new(
                        Code::OPERATION_FAILED,
                        "Cannot build two identical indexes. Try again without duplicate indexes.",
                    ),
                    None => Error::new(
                        Code::INDEX_ALREADY_EXISTS,
                        format!("Identical index already exists: {}", definition.name),
                    ),
                });
            }
        }
        definition.check_buildable()?;
        chosen.new.push(definition.clone());
        if existing.len().max(1) + chosen.new.len() > INDEXES_MAX {
            return Err(Error::new(
                Code::CANNOT_CREATE_INDEX,
                format!(
                    "add index fails, too many indexes for {namespace} key:{}",
                    document_quoted(definition.key_pattern())
                ),
            ));
        }
    }
    Ok(chosen)
}

#[derive(PartialEq)]
enum Relation {
    Unrelated,
    Same,
}

/// How a new index stands to one that exists. Two indexes hold the same keys if
/// they agree in key pattern, uniqueness, sparseness and filter: then they must
/// agree in the rest too, and there is one of them.
fn relation(asked: &IndexDefinition, existing: &IndexDefinition) -> Result<Relation, Error> {
    let partial = |definition: &IndexDefinition| {
        let partial = definition.partial.clone();
        partial.map(|filter| filter.normalized().to_document())
    };
    let alike = same_pattern(asked.key_pattern(), existing.key_pattern())
        && asked.unique == existing.unique
        && asked.sparse == existing.sparse
        && partial(asked) == partial(existing);
    let specs = || {
        format!(
            "Requested index: {}, existing index: {}",
            document_quoted(asked.spec.as_doc()),
            document_quoted(existing.spec.as_doc())
        )
    };
    let options_conflict = |message| Err(Error::new(Code::INDEX_OPTIONS_CONFLICT, message));
    let same_expiry = asked.expire_after_seconds == existing.expire_after_seconds;
    match (asked.name == existing.name, alike) {
        (false, false) => Ok(Relation::Unrelated),
        (true, true) if same_expiry => Ok(Relation::Same),
        (true, true) => options_conflict(format!(
            "An equivalent index already exists with the same name but different options. {}",
            specs()
        )),
        (true, false) => Err(Error::new(
            Code::INDEX_KEY_SPECS_CONFLICT,
            format!(
                "An existing index has the same name as the requested index. When index names \
                 are not specified, they are auto generated and can cause conflicts. Please \
                 refer to our documentation. {}",
                specs()
            ),
        )),
        (false, true) if same_expiry => options_conflict(format!(
            "Index already exists with a different name: {}",
            existing.name
        )),
        (false, true) => options_conflict(format!(
            "An equivalent index already exists with a different name and options. {}",
            specs()
        )),
    }
}

/// Whether two key patterns are equal, numbers by value.
pub(crate) fn same_pattern(left: Doc<'_>, right: Doc<'_>) -> bool {
    let (left, right) = (ValueRef::Document(left), ValueRef::Document(right));
    model::order::compare(left, right).is_eq()
}

/// Which indexes to drop.
enum Target<'a> {
    All,
    Names(Vec<&'a str>),
    Pattern(Doc<'a>),
}

pub(crate) async fn drop_indexes(invocation: &Invocation<'_>) -> Answer {
    let namespace = invocation.namespace()?;
    let mut target = None;
    for argument in arguments("dropIndexes", invocation.request.body()) {
        match argument.name() {
            "index" => target = Some(parse_target(&argument)?),
            _ => return Err(argument.unknown()),
        }
    }
    let target = target.ok_or_else(|| missing("dropIndexes", "index"))?;
    let before = invocation
        .shard
        .drop_indexes(&namespace, Some(invocation.operation), |collection| {
            invocation.check_database_route()?;
            names_of(collection, &target)
        })
        .await?;
    let Some(before) = before else {
        invocation.check_database_route()?;
        return Err(Error::new(
            Code::NAMESPACE_NOT_FOUND,
            format!("ns not found {namespace}"),
        ));
    };
    let mut writer = Reply::writer();
    writer.append("nIndexesWas", before.indexes.len() as i32);
    if matches!(target, Target::All) {
        writer.append("msg", "non-_id indexes dropped for collection");
    }
    finish(writer)
}

fn parse_target<'a>(argument: &Argument<'a>) -> Result<Target<'a>, Error> {
    match argument.value() {
        ValueRef::String("*") => Ok(Target::All),
        ValueRef::String(name) => Ok(Target::Names(vec![name])),
        ValueRef::Document(pattern) => Ok(Target::Pattern(pattern)),
        ValueRef::Array(names) => {
            let names = names.iter().map(|name| match name {
                ValueRef::String(name) => Ok(name),
                _ => Err(argument.wrong_type("[string]")),
            });
            let names: Vec<&str> = names.collect::<Result<_, _>>()?;
            Ok(match names[..] {
                ["*"] => Target::All,
                _ => Target::Names(names),
            })
        }
        _ => Err(argument.wrong_type("[string, object]")),
    }
}

fn names_of(collection: &Collection, target: &Target<'_>) -> Result<Vec<String>, Error> {
    let id = || Err(Error::new(Code::INVALID_OPTIONS, "cannot drop _id index"));
    match target {
        Target::All => Ok(collection
            .secondary_indexes()
            .filter(|(_, index)| !index.definition.is_id())
            .map(|(_, index)| index.definition.name.clone())
            .collect()),
        Target::Names(names) => {
            let mut seen = HashSet::new();
            for name in names {
                let known = collection.index_by_name(name).is_some() && seen.insert(*name);
                if !known {
                    return Err(Error::new(
                        Code::INDEX_NOT_FOUND,
                        format!("index not found with name [{name}]"),
                    ));
                }
                if *name == "_id_" {
                    return id();
                }
            }
            Ok(names.iter().map(|name| (*name).to_owned()).collect())
        }
        Target::Pattern(pattern) => {
            let found: Vec<&std::sync::Arc<Index>> = collection
                .indexes
                .iter()
                .filter(|index| same_pattern(index.definition.key_pattern(), *pattern))
                .collect();
            match found[..] {
                [] => Err(Error::new(
                    Code::INDEX_NOT_FOUND,
                    format!("can't find index with key: {}", document_quoted(*pattern)),
                )),
                [index] if index.definition.is_id() => id(),
                [index] => Ok(vec![index.definition.name.clone()]),
                [first, second, ..] => Err(Error::new(
                    Code::AMBIGUOUS_INDEX_KEY_PATTERN,
                    format!(
                        "{} indexes found for key: {}, identify by name instead. Conflicting \
                         indexes: {}, {}",
                        found.len(),
                        document_quoted(*pattern),
                        document_quoted(first.definition.spec.as_doc()),
                        document_quoted(second.definition.spec.as_doc())
                    ),
                )),
            }
        }
    }
}
