//! A database and a collection name, checked against MongoDB's rules.

use crate::error::{Code, Error};
use std::fmt;
use std::sync::Arc;

/// `database.collection`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace {
    full: Arc<str>,
    database_len: usize,
}

/// The longest namespace, both names and the dot together.
pub const MAX_NAMESPACE_BYTES: usize = 255;

impl Namespace {
    pub fn new(database: &str, collection: &str) -> Result<Self, Error> {
        check_database(database)?;
        let invalid = |why: &str| {
            Err(Error::new(
                Code::INVALID_NAMESPACE,
                format!("Invalid namespace specified '{database}.{collection}': {why}"),
            ))
        };
        if collection.is_empty() {
            return invalid("the collection name is empty");
        }
        if collection.starts_with('.') || collection.contains('\0') {
            return invalid("the collection name starts with '.' or holds a NUL byte");
        }
        if database.len() + 1 + collection.len() > MAX_NAMESPACE_BYTES {
            return invalid("it is longer than 255 bytes");
        }
        // By hand: every command names one, and formatting costs more than the rest.
        let mut full = String::with_capacity(database.len() + 1 + collection.len());
        full.push_str(database);
        full.push('.');
        full.push_str(collection);
        Ok(Self {
            full: full.into(),
            database_len: database.len(),
        })
    }

    /// Reads `database.collection` from one string.
    pub fn parse(full: &str) -> Result<Self, Error> {
        match full.split_once('.') {
            Some((database, collection)) => Self::new(database, collection),
            None => Err(Error::new(
                Code::INVALID_NAMESPACE,
                format!("Invalid namespace specified '{full}'"),
            )),
        }
    }

    pub fn database(&self) -> &str {
        &self.full[..self.database_len]
    }

    pub fn collection(&self) -> &str {
        &self.full[self.database_len + 1..]
    }

    pub fn as_str(&self) -> &str {
        &self.full
    }
}

/// Checks a database name.
pub fn check_database(name: &str) -> Result<(), Error> {
    let bad = name.is_empty()
        || name.len() > 63
        || name
            .bytes()
            .any(|byte| matches!(byte, b'/' | b'\\' | b'.' | b' ' | b'"' | b'$' | 0));
    if bad {
        return Err(Error::new(
            Code::INVALID_NAMESPACE,
            format!("Invalid database name: '{name}'"),
        ));
    }
    Ok(())
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}
