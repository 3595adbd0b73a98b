//! `_terndbCommit`: writes to several collections under conditions, all in one entry of
//! the log or not at all. The config server's decisions are made of it.
//!
//! ```text
//!   {_terndbCommit: 1,
//!    conditions: [{ns, query, expect: null | filter}],
//!    writes: [{ns, insert: document}
//!             | {ns, update: {q, u, upsert, multi}}
//!             | {ns, delete: {q, limit: 0 | 1}}]}
//!   => {writes: [{n, nModified, upserted}, ..]}
//! ```
//!
//! A condition looks for one document that matches `query`. With `expect: null` there
//! must be none; else there must be one, and it must match `expect`, so that a whole
//! document, a few of its fields or `{}` (it is there) can be expected. A condition that
//! does not hold answers 117 with its place in `condition`. Writes see those before them.
//!
//! Left out: sessions and retries. Who repeats a commit protects itself by a condition.

use super::arguments::{Argument, arguments, fields, missing};
use super::modify::{Selection, moment};
use super::{Answer, Invocation, finish};
use crate::Shard;
use crate::catalog::Collection;
use crate::read::Candidates;
use crate::write::{Evaluator, Hold, Refusal, Searched, check_stored, prepare_insert};
use model::bson::{Doc, DocBuf, DocWriter, ObjectId, Value, ValueRef};
use model::key::RecordKey;
use model::{Code, Error, Namespace};
use query::context::QueryContext;
use query::filter::{Filter, refuse_expression_in_upsert};
use query::update::Update;
use std::collections::BTreeSet;
use std::sync::Arc;
use wire::Reply;

const NAME: &str = "_terndbCommit";
/// How many documents one search of a commit may find.
const CANDIDATES_MAX: usize = 100_000;

pub(crate) async fn commit(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let context = invocation.context();
    let (mut conditions, mut writes) = (Vec::new(), None);
    for argument in arguments(NAME, invocation.request.body()) {
        match argument.name() {
            "conditions" => {
                for condition in documents(&argument)? {
                    conditions.push(Condition::parse(condition, &context)?);
                }
            }
            "writes" => {
                let mut parsed = Vec::new();
                for write in documents(&argument)? {
                    parsed.push(Write::parse(invocation.shard, write, &context)?);
                }
                writes = Some(parsed);
            }
            _ => return Err(argument.unknown()),
        }
    }
    let writes = writes.ok_or_else(|| missing(NAME, "writes"))?;
    let commit = Commit {
        invocation,
        conditions,
        writes,
    };
    let outcomes = commit.run().await?;
    let mut reply = Reply::writer();
    reply.begin_array("writes");
    for outcome in &outcomes {
        reply.push_document().append("n", outcome.documents);
        if let Some(modified) = outcome.modified {
            reply.append("nModified", modified);
        }
        if let Some(id) = &outcome.upserted {
            reply.append("upserted", id);
        }
        reply.end();
    }
    reply.end();
    finish(reply)
}

fn documents<'a>(list: &Argument<'a>) -> Result<Vec<Doc<'a>>, Error> {
    let mut documents = Vec::new();
    for value in list.array()?.iter() {
        match value {
            ValueRef::Document(doc) => documents.push(doc),
            _ => return Err(list.wrong_type("array of objects")),
        }
    }
    Ok(documents)
}

/// What must hold.
struct Condition {
    namespace: Namespace,
    query: Selection,
    /// `None`: there must be no such document.
    expect: Option<Filter>,
}

impl Condition {
    fn parse(condition: Doc<'_>, context: &QueryContext) -> Result<Self, Error> {
        const PATH: &str = "_terndbCommit.conditions";
        let (mut namespace, mut query, mut expect) = (None, None, None);
        for field in fields(PATH, condition) {
            match field.name() {
                "ns" => namespace = Some(Namespace::parse(field.string()?)?),
                "query" => query = Some(Selection::parse(field.doc()?, None, context.clone())?),
                "expect" => {
                    let expected = field.optional_doc()?;
                    expect = Some(
                        expected
                            .map(|doc| Filter::parse(doc, context))
                            .transpose()?,
                    );
                }
                _ => return Err(field.unknown()),
            }
        }
        Ok(Self {
            namespace: namespace.ok_or_else(|| missing(PATH, "ns"))?,
            query: query.ok_or_else(|| missing(PATH, "query"))?,
            expect: expect.ok_or_else(|| missing(PATH, "expect"))?,
        })
    }
}

struct Write {
    namespace: Namespace,
    action: Action,
}

enum Action {
    Insert {
        document: DocBuf,
    },
    Update {
        selection: Selection,
        update: Box<Update>,
        multi: bool,
        /// The `_id` of an upserted document that gets none from the statement: the
        /// same each time the statement is evaluated, so that its latch is known.
        upsert: Option<ObjectId>,
    },
    Delete {
        selection: Selection,
        multi: bool,
    },
}

impl Action {
    fn selection(&self) -> Option<&Selection> {
        match self {
            Action::Insert { .. } => None,
            Action::Update { selection, .. } | Action::Delete { selection, .. } => Some(selection),
        }
    }
}

impl Write {
    fn parse(shard: &Shard, write: Doc<'_>, context: &QueryContext) -> Result<Self, Error> {
        const PATH: &str = "_terndbCommit.writes";
        let (mut namespace, mut action) = (None, None);
        for field in fields(PATH, write) {
            let parsed = match field.name() {
                "ns" => {
                    let parsed = Namespace::parse(field.string()?)?;
                    shard.check_writable(&parsed, NAME)?;
                    namespace = Some(parsed);
                    continue;
                }
                "insert" => parse_insert(shard, field.doc()?)?,
                "update" => parse_update(shard, field.doc()?, context)?,
                "delete" => parse_delete(field.doc()?, context)?,
                _ => return Err(field.unknown()),
            };
            if action.replace(parsed).is_some() {
                return Err(Error::new(
                    Code::FAILED_TO_PARSE,
                    "a write is one of insert, update and delete",
                ));
            }
        }
        Ok(Self {
            namespace: namespace.ok_or_else(|| missing(PATH, "ns"))?,
            action: action.ok_or_else(|| missing(PATH, "insert"))?,
        })
    }
}

fn parse_insert(shard: &Shard, document: Doc<'_>) -> Result<Action, Error> {
    let document = prepare_insert(shard, document)?;
    check_stored(document.as_doc())?;
    Ok(Action::Insert { document })
}

fn parse_update(
    shard: &Shard,
    statement: Doc<'_>,
    context: &QueryContext,
) -> Result<Action, Error> {
    const PATH: &str = "_terndbCommit.writes.update";
    let (mut query, mut change) = (None, None);
    let (mut multi, mut upsert) = (false, false);
    for field in fields(PATH, statement) {
        match field.name() {
            "q" => query = Some(field.doc()?),
            "u" => change = Some(field.value()),
            "multi" => multi = field.boolean()?,
            "upsert" => upsert = field.boolean()?,
            _ => return Err(field.unknown()),
        }
    }
    let query = query.ok_or_else(|| missing(PATH, "q"))?;
    if upsert {
        refuse_expression_in_upsert(query)?;
    }
    let change = change.ok_or_else(|| missing(PATH, "u"))?;
    Ok(Action::Update {
        selection: Selection::parse(query, None, context.clone())?,
        update: Box::new(Update::parse(change, None, context)?),
        multi,
        upsert: upsert.then(|| shard.new_object_id()),
    })
}

fn parse_delete(statement: Doc<'_>, context: &QueryContext) -> Result<Action, Error> {
    const PATH: &str = "_terndbCommit.writes.delete";
    let (mut query, mut limit) = (None, None);
    for field in fields(PATH, statement) {
        match field.name() {
            "q" => query = Some(field.doc()?),
            "limit" => limit = Some(field.integer()?),
            _ => return Err(field.unknown()),
        }
    }
    Ok(Action::Delete {
        selection: Selection::parse(
            query.ok_or_else(|| missing(PATH, "q"))?,
            None,
            context.clone(),
        )?,
        multi: match limit.ok_or_else(|| missing(PATH, "limit"))? {
            0 => true,
            1 => false,
            other => {
                return Err(Error::new(
                    Code::FAILED_TO_PARSE,
                    format!("The limit field in delete objects must be 0 or 1. Got {other}"),
                ));
            }
        },
    })
}

/// What became of one write.
#[derive(Default)]
struct Outcome {
    documents: i32,
    modified: Option<i32>,
    upserted: Option<Value>,
}

/// The records that conditions and writes may be about, in their order.
struct Found {
    conditions: Vec<Vec<RecordKey>>,
    writes: Vec<Vec<RecordKey>>,
}

struct Commit<'a> {
    invocation: &'a Invocation<'a>,
    conditions: Vec<Condition>,
    writes: Vec<Write>,
}

impl Commit<'_> {
    async fn run(&self) -> Result<Vec<Outcome>, Error> {
        let of_conditions = self.conditions.iter().map(|one| &one.namespace);
        let of_writes = self.writes.iter().map(|one| &one.namespace);
        let namespaces: BTreeSet<Namespace> = of_conditions.chain(of_writes).cloned().collect();
        if namespaces.is_empty() {
            return Ok(Vec::new());
        }
        let searches = self.conditions.iter().map(|one| &one.query);
        let mut searches =
            searches.chain(self.writes.iter().filter_map(|one| one.action.selection()));
        let by_id = searches.all(|one| query::plan::id_value(&one.filter).is_some());
        let catalog = self.invocation.shard.catalog.current();
        let mut collections = namespaces.iter().filter_map(|name| catalog.get(name));
        // An `_id` does not tell where its record is, then: it is searched for.
        let by_id = by_id && collections.all(|known| known.clustering.is_none());
        drop(collections);
        drop(catalog);
        let hold = if by_id { Hold::Shared } else { Hold::Alone };
        self.invocation
            .shard
            .write_several(
                &namespaces,
                hold,
                self.invocation.envelope.write_concern,
                |collections| self.search(collections),
                |evaluator, found| self.evaluate(evaluator, found),
            )
            .await
    }

    fn search(&self, collections: &[Arc<Collection>]) -> Result<Searched<Found>, Error> {
        let mut keys = Vec::new();
        let mut found = Found {
            conditions: Vec::new(),
            writes: Vec::new(),
        };
        let mut note = |namespace: &Namespace, found: &[RecordKey]| {
            keys.extend(found.iter().map(|key| (namespace.clone(), key.clone())));
        };
        for condition in &self.conditions {
            let matching = self.candidates(collections, &condition.namespace, &condition.query)?;
            note(&condition.namespace, &matching);
            found.conditions.push(matching);
        }
        for write in &self.writes {
            let matching = match &write.action {
                Action::Insert { document } => {
                    let mut all = collections.iter();
                    let target = all.find(|one| one.namespace == write.namespace);
                    let key =
                        |target: &Arc<Collection>| target.record_key_to_insert(document.as_doc());
                    target.map(key).into_iter().collect()
                }
                Action::Update { selection, .. } | Action::Delete { selection, .. } => {
                    self.candidates(collections, &write.namespace, selection)?
                }
            };
            note(&write.namespace, &matching);
            found.writes.push(matching);
        }
        Ok(Searched { keys, found })
    }

    fn candidates(
        &self,
        collections: &[Arc<Collection>],
        namespace: &Namespace,
        selection: &Selection,
    ) -> Result<Vec<RecordKey>, Error> {
        let invocation = self.invocation;
        let mut all = collections.iter();
        let Some(collection) = all.find(|one| one.namespace == *namespace) else {
            return Ok(Vec::new());
        };
        let mut candidates = Candidates::new(
            invocation.shard,
            collection,
            &selection.filter,
            None,
            None,
            invocation.operation,
        )?;
        let mut keys = Vec::new();
        loop {
            let more = candidates.next_keys(1000, invocation.operation)?;
            if more.is_empty() {
                return Ok(keys);
            }
            keys.extend(more);
            if keys.len() > CANDIDATES_MAX {
                return Err(Error::new(
                    Code::EXCEEDED_MEMORY_LIMIT,
                    format!("a search of {NAME} finds more than {CANDIDATES_MAX} documents"),
                ));
            }
            invocation.operation.check()?;
        }
    }

    fn evaluate(
        &self,
        evaluator: &mut Evaluator<'_>,
        found: &Found,
    ) -> Result<Vec<Outcome>, Refusal> {
        for (at, condition) in self.conditions.iter().enumerate() {
            evaluator.select(&condition.namespace)?;
            if !holds(evaluator, condition, &found.conditions[at])? {
                return Err(Refusal::Error(does_not_hold(at, condition)));
            }
        }
        let mut outcomes = Vec::with_capacity(self.writes.len());
        for (write, keys) in self.writes.iter().zip(&found.writes) {
            evaluator.select(&write.namespace)?;
            outcomes.push(self.write(evaluator, &write.action, keys)?);
        }
        Ok(outcomes)
    }

    fn write(
        &self,
        evaluator: &mut Evaluator<'_>,
        action: &Action,
        keys: &[RecordKey],
    ) -> Result<Outcome, Refusal> {
        let (selection, multi) = match action {
            Action::Insert { document } => {
                let key = evaluator
                    .collection()
                    .record_key_to_insert(document.as_doc());
                evaluator.insert(key, document.clone())?;
                return Ok(Outcome {
                    documents: 1,
                    ..Outcome::default()
                });
            }
            Action::Update {
                selection, multi, ..
            }
            | Action::Delete { selection, multi } => (selection, *multi),
        };
        let mut outcome = Outcome::default();
        if let Action::Update { .. } = action {
            outcome.modified = Some(0);
        }
        let mut keys = keys.to_vec();
        // What the search could not see yet.
        let mut new: Vec<RecordKey> = evaluator.changed_keys().cloned().collect();
        new.retain(|key| !keys.contains(key));
        new.sort();
        keys.extend(new);
        for key in &keys {
            let Some(version) = evaluator.latest(key)? else {
                continue;
            };
            let Some(matched) = selection.filter.matches_with_position(version.doc())? else {
                continue;
            };
            outcome.documents += 1;
            match action {
                Action::Delete { .. } => evaluator.remove(key.clone(), &version)?,
                Action::Update { update, .. } => {
                    let position = matched.position.map(|at| at.to_string());
                    let moment = moment(self.invocation.shard, position.as_deref(), false);
                    let doc = version.doc();
                    if let Some(after) = update.apply(doc, moment, &selection.context)? {
                        check_stored(after.as_doc())?;
                        let difference = update.difference(doc, after.as_doc(), moment);
                        evaluator.replace(key.clone(), &version, after.as_doc(), difference)?;
                        *outcome.modified.get_or_insert(0) += 1;
                    }
                }
                Action::Insert { .. } => {}
            }
            if !multi {
                break;
            }
        }
        if let Action::Update {
            update,
            upsert: Some(new_id),
            ..
        } = action
            && outcome.documents == 0
        {
            let shard = self.invocation.shard;
            let moment = moment(shard, None, true);
            let new = update.upsert(&selection.filter, moment, &selection.context)?;
            let mut named = DocWriter::new();
            if new.get("_id").is_none() {
                named.append("_id", *new_id);
            }
            for element in new.iter() {
                named.append_element(&element);
            }
            let document = prepare_insert(shard, named.finish().as_doc())?;
            check_stored(document.as_doc())?;
            outcome.documents = 1;
            outcome.upserted = document.get("_id").map(|id| id.to_owned());
            let key = evaluator
                .collection()
                .record_key_to_insert(document.as_doc());
            evaluator.insert(key, document)?;
        }
        Ok(outcome)
    }
}

/// Whether a condition holds for the latest versions.
fn holds(
    evaluator: &Evaluator<'_>,
    condition: &Condition,
    keys: &[RecordKey],
) -> Result<bool, Refusal> {
    for key in keys {
        let Some(version) = evaluator.latest(key)? else {
            continue;
        };
        if !condition.query.filter.matches(version.doc())? {
            continue;
        }
        return Ok(match &condition.expect {
            None => false,
            Some(expected) => expected.matches(version.doc())?,
        });
    }
    Ok(condition.expect.is_none())
}

fn does_not_hold(at: usize, condition: &Condition) -> Error {
    Error::new(
        Code::CONFLICTING_OPERATION_IN_PROGRESS,
        format!(
            "condition {at} of the commit, about {}, does not hold",
            condition.namespace
        ),
    )
    .with_details(DocWriter::new().with("condition", at as i32).finish())
}
