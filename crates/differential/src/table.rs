//! The text format of the tables: groups of rows over a common setup.
//!
//! ```text
//! # A comment.
//! == numbers compare by value            a group: its setup, then its rows
//! docs: {_id: 1, a: 5} {_id: 2, a: 5L}   documents of the collection `c`
//! docs other: {_id: 1}                   documents of another collection
//! index: {a: 1} unique: true             an index of `c`; further pairs are its options
//! before: {create: "d"}                  commands that belong to the setup
//! filter: {a: 5.0}                       every other line is a row, see `row.rs`
//! update: {a: 5} -> {$set: {b: 1}}
//!     multi: true                        an indented line continues the one before
//! ```
//!
//! A row is a list of `key: value …` pairs and flags; its first key says what it does. A group
//! without `docs` has one document, `{_id: 1}`. The name of a case is `table/group:line`.

use std::path::Path;

use crate::notation::Cursor;
use crate::row::Row;
use crate::value::{Fields, Value, field};

/// The collection that rows work on.
pub const COLLECTION: &str = "c";

#[derive(Debug, Clone)]
pub struct Table {
    pub name: String,
    pub groups: Vec<Group>,
}

#[derive(Debug, Clone)]
pub struct Group {
    pub table: String,
    pub title: String,
    pub setup: Setup,
    pub rows: Vec<Row>,
}

impl Group {
    pub fn case_name(&self, row: &Row) -> String {
        format!("{}/{}:{}", self.table, self.title, row.line)
    }
}

/// What exists before a row runs.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    pub collections: Vec<(String, Vec<Fields>)>,
    pub commands: Vec<Fields>,
}

impl Setup {
    pub fn with_documents(documents: Vec<Fields>) -> Setup {
        Setup {
            collections: vec![(COLLECTION.to_owned(), documents)],
            commands: Vec::new(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error("{table}:{line}: {reason}")]
    Syntax {
        table: String,
        line: usize,
        reason: String,
    },
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
}

/// Reads every `*.table` file of a folder, in order of their names.
pub fn read_folder(folder: &Path) -> Result<Vec<Table>, TableError> {
    let failed = |error| TableError::Io(folder.display().to_string(), error);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "table")
        {
            paths.push(path);
        }
    }
    paths.sort();
    paths
        .iter()
        .map(|path| {
            let text = std::fs::read_to_string(path)
                .map_err(|error| TableError::Io(path.display().to_string(), error))?;
            let name = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            parse_table(&name, &text)
        })
        .collect()
}

pub fn parse_table(name: &str, text: &str) -> Result<Table, TableError> {
    let mut groups: Vec<Group> = Vec::new();
    for (line, statement) in statements(text) {
        let syntax = |reason: String| TableError::Syntax {
            table: name.to_owned(),
            line,
            reason,
        };
        if let Some(title) = statement.strip_prefix("==") {
            groups.push(Group {
                table: name.to_owned(),
                title: title.trim().to_owned(),
                setup: Setup::default(),
                rows: Vec::new(),
            });
            continue;
        }
        let group = groups
            .last_mut()
            .ok_or_else(|| syntax("a line stands before the first group".to_owned()))?;
        if !read_setup(&statement, &mut group.setup).map_err(syntax)? {
            let row = Row::parse(line, &statement).map_err(syntax)?;
            group.rows.push(row);
        }
    }
    for group in &mut groups {
        if group.setup.collections.is_empty() {
            group
                .setup
                .collections
                .push((COLLECTION.to_owned(), vec![vec![field("_id", 1)]]));
        }
    }
    Ok(Table {
        name: name.to_owned(),
        groups,
    })
}

/// Joins continued lines; drops comments and empty lines.
fn statements(text: &str) -> Vec<(usize, String)> {
    let mut statements: Vec<(usize, String)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        match statements.last_mut() {
            Some((_, statement)) if line.starts_with(char::is_whitespace) => {
                statement.push('\n');
                statement.push_str(line);
            }
            Some(_) | None => statements.push((index + 1, line.to_owned())),
        }
    }
    statements
}

/// Takes a setup line; false if the line is a row.
fn read_setup(statement: &str, setup: &mut Setup) -> Result<bool, String> {
    let mut cursor = Cursor::new(statement);
    let Some(kind) = cursor
        .word()
        .filter(|word| ["docs", "index", "before"].contains(&word.as_str()))
    else {
        return Ok(false);
    };
    let collection = cursor.word().unwrap_or_else(|| COLLECTION.to_owned());
    if !cursor.accept(":") {
        return Err(format!("expected a colon after {kind}"));
    }
    let mut values = Vec::new();
    let mut options: Fields = Vec::new();
    loop {
        cursor.accept(",");
        cursor.skip_blanks();
        if cursor.is_at_end() {
            break;
        }
        match cursor.key() {
            Some(key) => options.push((key, cursor.value().map_err(|error| error.to_string())?)),
            None => match cursor.value().map_err(|error| error.to_string())? {
                Value::Array(items) => values.extend(items),
                value => values.push(value),
            },
        }
    }
    let mut documents = Vec::new();
    for value in values {
        match value {
            Value::Document(fields) => documents.push(fields),
            other => return Err(format!("{kind} takes documents, not {}", other.type_name())),
        }
    }
    match kind.as_str() {
        "docs" => setup.collections.push((collection, documents)),
        "before" => setup.commands.extend(documents),
        _ => {
            let key = documents.into_iter().next().ok_or("index takes a key")?;
            setup.commands.push(create_index(&collection, key, options));
        }
    }
    Ok(true)
}

fn create_index(collection: &str, key: Fields, options: Fields) -> Fields {
    let name = key
        .iter()
        .map(|(field, direction)| match direction {
            Value::String(kind) => format!("{field}_{kind}"),
            other => format!("{field}_{}", other.as_number().unwrap_or_default()),
        })
        .collect::<Vec<_>>()
        .join("_");
    let mut index = vec![field("key", key), field("name", Value::String(name))];
    for (option, value) in options {
        index.retain(|(existing, _)| *existing != option);
        index.push((option, value));
    }
    vec![
        field("createIndexes", collection),
        field("indexes", vec![Value::Document(index)]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<(usize, usize, usize), &str>) {
        let found = parse_table("t", text);
        match (found, expected) {
            (Ok(table), Ok((groups, rows, collections))) => {
                assert_eq!(table.groups.len(), groups, "{text}");
                assert_eq!(
                    table
                        .groups
                        .iter()
                        .map(|group| group.rows.len())
                        .sum::<usize>(),
                    rows,
                    "{text}"
                );
                let found: usize = table
                    .groups
                    .iter()
                    .map(|group| group.setup.collections.len())
                    .sum();
                assert_eq!(found, collections, "{text}");
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{text}: {error}"),
            (found, expected) => panic!("{text}: {found:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn groups_setups_and_rows_are_told_apart() {
        check("", Ok((0, 0, 0)));
        check(
            "# nothing\n== a\nfilter: {}\n\n== b\n  # x\n",
            Ok((2, 1, 2)),
        );
        check(
            "== a\ndocs: {_id: 1}\n  {_id: 2}\ndocs d: Many(3)\nfilter: {a: 1}\n  sort: {a: 1}",
            Ok((1, 1, 2)),
        );
        check(
            "== a\nindex: {a: 1, b: 'hashed'} unique: true\nfilter: {}",
            Ok((1, 1, 1)),
        );
        check("filter: {}", Err("t:1"));
        check("== a\nfilter: {", Err("t:2"));
        check("== a\ndocs: 5", Err("takes documents"));
        check("== a\nfrobnicate: 5", Err("frobnicate"));
        check("== a\nfilter: {} sideways", Err("sideways"));
    }
}
