//! The log as clients know it: MongoDB's oplog.
//!
//! | file | part |
//! | --- | --- |
//! | `command.rs` | commands for entries that change the catalog |
//! | `operation.rs` | what an entry did, read back from its payload |
//! | `view.rs` | an entry as documents of `local.oplog.rs` |
//! | `collection.rs` | `local.oplog.rs` itself, a virtual collection |
//!
//! Entries say everything themselves: names and ids of collections as they were,
//! differences, document keys. So an entry reads the same however old it is, on
//! every member, whatever has been renamed or dropped since.

mod collection;
mod command;
mod operation;
mod view;

pub(crate) use collection::Oplog;
pub(crate) use command::Commands;
pub(crate) use operation::{CommandOperation, Logged, Place, document_key, operations};
