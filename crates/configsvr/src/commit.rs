//! What one log entry of the config server writes, all or nothing, and what must hold for it.

use model::bson::{Doc, DocBuf, DocWriter, ValueRef};

/// Conditions and writes that become one entry.
#[derive(Default, Clone, Debug)]
pub(crate) struct Commit {
    conditions: Vec<DocBuf>,
    writes: Vec<DocBuf>,
}

impl Commit {
    /// No document may match.
    pub(crate) fn expect_none(&mut self, collection: &str, query: Doc<'_>) -> &mut Self {
        self.condition(collection, query, ValueRef::Null)
    }

    /// The document that matches must be this one.
    pub(crate) fn expect(&mut self, collection: &str, query: Doc<'_>, is: Doc<'_>) -> &mut Self {
        self.condition(collection, query, ValueRef::Document(is))
    }

    fn condition(&mut self, collection: &str, query: Doc<'_>, expect: ValueRef<'_>) -> &mut Self {
        let condition = on(collection).with("query", query).with("expect", expect);
        self.conditions.push(condition.finish());
        self
    }

    pub(crate) fn insert(&mut self, collection: &str, document: Doc<'_>) -> &mut Self {
        let write = on(collection).with("insert", document);
        self.writes.push(write.finish());
        self
    }

    /// Replaces the document that matches, or inserts it.
    pub(crate) fn put(&mut self, collection: &str, query: Doc<'_>, document: Doc<'_>) -> &mut Self {
        self.update(collection, query, document, true)
    }

    /// Changes the document that matches, if there is one.
    pub(crate) fn change(
        &mut self,
        collection: &str,
        query: Doc<'_>,
        change: Doc<'_>,
    ) -> &mut Self {
        self.update(collection, query, change, false)
    }

    fn update(&mut self, collection: &str, q: Doc<'_>, u: Doc<'_>, upsert: bool) -> &mut Self {
        let mut write = on(collection);
        write.begin_document("update");
        write.append("q", q).append("u", u);
        write.append("upsert", upsert).end();
        self.writes.push(write.finish());
        self
    }

    /// Removes every document that matches.
    pub(crate) fn delete(&mut self, collection: &str, query: Doc<'_>) -> &mut Self {
        let mut write = on(collection);
        write.begin_document("delete");
        write.append("q", query).append("limit", 0).end();
        self.writes.push(write.finish());
        self
    }

    /// The command that carries it out.
    pub(crate) fn command(&self) -> DocWriter {
        let mut command = DocWriter::new().with("_terndbCommit", 1);
        for (name, parts) in [("conditions", &self.conditions), ("writes", &self.writes)] {
            command.begin_array(name);
            for part in parts {
                command.push(part);
            }
            command.end();
        }
        command
            .begin_document("writeConcern")
            .append("w", "majority")
            .end();
        command
    }
}

fn on(collection: &str) -> DocWriter {
    DocWriter::new().with("ns", format!("config.{collection}").as_str())
}

/// `{name: value}`.
pub(crate) fn by<'a>(name: &str, value: impl Into<ValueRef<'a>>) -> DocBuf {
    DocWriter::new().with(name, value).finish()
}
