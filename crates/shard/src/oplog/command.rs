//! Changes of the catalog as clients know them: commands.
//!
//! An entry that changes the catalog carries the commands that do the same, in the
//! header field `command`: `{ops: [{ns, ui, o, o2}, ..]}`. The shape of each is
//! what MongoDB writes into its oplog. One entry may do several, dropping a
//! database say.

use crate::catalog::{Collection, Index};
use model::Namespace;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::ids::Uuid;
use std::sync::Arc;

/// The commands of one entry.
pub(crate) struct Commands {
    writer: DocWriter,
    count: u32,
}

pub(crate) fn uuid_value(uuid: &Uuid) -> ValueRef<'_> {
    ValueRef::Binary {
        subtype: 4,
        bytes: &uuid.0,
    }
}

impl Commands {
    pub(crate) fn new() -> Self {
        let mut writer = DocWriter::new();
        writer.begin_array("ops");
        Self { writer, count: 0 }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn finish(mut self) -> DocBuf {
        self.writer.end();
        self.writer.finish()
    }

    fn add(
        mut self,
        database: &str,
        uuid: Option<&Uuid>,
        command: &DocBuf,
        before: Option<&DocBuf>,
    ) -> Self {
        self.count += 1;
        self.writer
            .push_document()
            .append("ns", format!("{database}.$cmd").as_str());
        if let Some(uuid) = uuid {
            self.writer.append("ui", uuid_value(uuid));
        }
        self.writer.append("o", command);
        if let Some(before) = before {
            self.writer.append("o2", before);
        }
        self.writer.end();
        self
    }

    fn of(self, collection: &Collection, command: &DocBuf, before: Option<&DocBuf>) -> Self {
        let database = collection.namespace.database();
        self.add(database, Some(&collection.uuid), command, before)
    }

    pub(crate) fn create(self, collection: &Collection) -> Self {
        let mut command = DocWriter::new();
        command.append("create", collection.namespace.collection());
        for option in collection.options.iter() {
            command.append_element(&option);
        }
        if let Some(index) = collection.index_by_name("_id_") {
            command.append("idIndex", &index.definition.spec);
        }
        let created = self.of(collection, &command.finish(), None);
        let ready: Vec<Arc<Index>> = collection
            .secondary_indexes()
            .filter(|(_, index)| !index.definition.is_id())
            .map(|(_, index)| index.clone())
            .collect();
        created.create_indexes(collection, &ready)
    }

    /// Indexes of an empty collection.
    pub(crate) fn create_indexes(self, collection: &Collection, indexes: &[Arc<Index>]) -> Self {
        indexes.iter().fold(self, |commands, index| {
            let mut command = DocWriter::new();
            command.append("createIndexes", collection.namespace.collection());
            for field in index.definition.spec.iter() {
                command.append_element(&field);
            }
            commands.of(collection, &command.finish(), None)
        })
    }

    /// Indexes that were built over documents.
    pub(crate) fn commit_index_build(
        self,
        collection: &Collection,
        build: &Uuid,
        indexes: &[Arc<Index>],
    ) -> Self {
        let mut command = DocWriter::new();
        command
            .append("commitIndexBuild", collection.namespace.collection())
            .append("indexBuildUUID", uuid_value(build))
            .begin_array("indexes");
        for index in indexes {
            command.push(&index.definition.spec);
        }
        command.end();
        self.of(collection, &command.finish(), None)
    }

    pub(crate) fn drop_indexes(self, collection: &Collection, indexes: &[Arc<Index>]) -> Self {
        indexes.iter().fold(self, |commands, index| {
            let command = DocWriter::new()
                .with("dropIndexes", collection.namespace.collection())
                .with("index", index.definition.name.as_str())
                .finish();
            commands.of(collection, &command, Some(&index.definition.spec))
        })
    }

    pub(crate) fn drop(self, collection: &Collection, records: u64) -> Self {
        let name = collection.namespace.collection();
        let command = DocWriter::new().with("drop", name).finish();
        self.of(collection, &command, Some(&number_of_records(records)))
    }

    pub(crate) fn drop_database(self, database: &str) -> Self {
        let command = DocWriter::new().with("dropDatabase", 1).finish();
        self.add(database, None, &command, None)
    }

    /// `replaced` is the collection that had the name, and how many records.
    pub(crate) fn rename(
        self,
        collection: &Collection,
        to: &Namespace,
        replaced: Option<(&Collection, u64)>,
    ) -> Self {
        let mut command = DocWriter::new();
        command
            .append("renameCollection", collection.namespace.as_str())
            .append("to", to.as_str())
            .append("stayTemp", false);
        if let Some((replaced, _)) = replaced {
            command.append("dropTarget", uuid_value(&replaced.uuid));
        }
        let before = replaced.map(|(_, records)| number_of_records(records));
        self.of(collection, &command.finish(), before.as_ref())
    }

    /// `change` holds the fields that the command was given; `old_index` those of
    /// the index as they were.
    pub(crate) fn modify(
        self,
        collection: &Collection,
        change: Doc<'_>,
        old_index: Option<Doc<'_>>,
    ) -> Self {
        let mut command = DocWriter::new();
        command.append("collMod", collection.namespace.collection());
        for field in change.iter() {
            command.append_element(&field);
        }
        let mut before = DocWriter::new();
        before
            .begin_document("collectionOptions_old")
            .append("uuid", uuid_value(&collection.uuid));
        for option in collection.options.iter() {
            before.append_element(&option);
        }
        before.end();
        if let Some(old_index) = old_index {
            before.append("indexOptions_old", old_index);
        }
        self.of(collection, &command.finish(), Some(&before.finish()))
    }
}

fn number_of_records(records: u64) -> DocBuf {
    let mut writer = DocWriter::new();
    match i32::try_from(records) {
        Ok(records) => writer.append("numRecords", records),
        Err(_) => writer.append("numRecords", records as i64),
    };
    writer.finish()
}
