//! The name of a logical session: a UUID that the client made, and a digest of
//! the user it belongs to.
//!
//! Nobody is logged in yet, so the digest is that of no user, unless a client
//! names another one.

use crate::bson::{Doc, DocWriter, ValueRef};
use crate::ids::NO_USER_DIGEST;
use crate::{Code, Error};
use std::fmt;

const ID_BYTES: usize = 16;
const USER_BYTES: usize = 32;

/// What clients call `lsid`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId {
    id: [u8; ID_BYTES],
    user: [u8; USER_BYTES],
}

impl SessionId {
    /// A session of nobody in particular.
    pub fn new(id: [u8; ID_BYTES]) -> Self {
        Self {
            id,
            user: NO_USER_DIGEST,
        }
    }

    /// Reads `{id, uid}`; `path` names the document in errors.
    pub fn parse(path: &str, session: Doc<'_>) -> Result<Self, Error> {
        let (mut id, mut user, mut internal) = (None, None, None);
        for element in session.iter() {
            let name = element.key();
            let wrong = |expected: &str| {
                let found = element.kind().name();
                Error::new(
                    Code::TYPE_MISMATCH,
                    format!(
                        "BSON field '{path}.{name}' is the wrong type '{found}', expected type '{expected}'"
                    ),
                )
            };
            match (name, element.value()) {
                ("id", ValueRef::Binary { subtype: 4, bytes }) => {
                    id = Some(bytes.try_into().map_err(|_| {
                        Error::new(
                            Code::INVALID_UUID,
                            "uuid must be a 16-byte binary field with UUID (4) subtype",
                        )
                    })?);
                }
                ("id" | "txnUUID", ValueRef::Binary { subtype, .. }) if subtype != 4 => {
                    let found = match subtype {
                        0 => "general",
                        3 => "UUID(deprecated)",
                        _ => "other",
                    };
                    return Err(Error::new(
                        Code::TYPE_MISMATCH,
                        format!(
                            "BSON field '{path}.{name}' is the wrong binData type '{found}', expected type 'UUID'"
                        ),
                    ));
                }
                ("uid", ValueRef::Binary { bytes, .. }) => {
                    user = Some(bytes.try_into().map_err(|_| {
                        Error::new(
                            Code::UNSUPPORTED_FORMAT,
                            "Unsupported SHA256Block hash length",
                        )
                    })?);
                }
                ("id" | "uid", _) => return Err(wrong("binData")),
                ("txnUUID" | "txnNumber", _) => internal = Some(name),
                _ => {
                    return Err(Error::location(
                        40415,
                        format!("BSON field '{path}.{name}' is an unknown field."),
                    ));
                }
            }
        }
        let id = id.ok_or_else(|| {
            Error::location(
                40414,
                format!("BSON field '{path}.id' is missing but a required field"),
            )
        })?;
        match internal {
            None => {}
            Some("txnNumber") if session.get("txnUUID").is_none() => {
                return Err(Error::new(
                    Code::INVALID_OPTIONS,
                    "Cannot specify txnNumber in lsid without specifying txnUUID",
                ));
            }
            Some(_) => {
                return Err(Error::new(
                    Code::INVALID_OPTIONS,
                    "Internal sessions are not supported outside of transactions",
                ));
            }
        }
        Ok(Self {
            id,
            user: user.unwrap_or(NO_USER_DIGEST),
        })
    }

    pub fn user(&self) -> &[u8] {
        &self.user
    }

    /// Appends `{id, uid}` to a document.
    pub fn append(&self, writer: &mut DocWriter, name: &str) {
        writer.begin_document(name);
        self.append_fields(writer);
        writer.end();
    }

    pub fn append_fields(&self, writer: &mut DocWriter) {
        writer
            .append(
                "id",
                ValueRef::Binary {
                    subtype: 4,
                    bytes: &self.id,
                },
            )
            .append(
                "uid",
                ValueRef::Binary {
                    subtype: 0,
                    bytes: &self.user,
                },
            );
    }

    /// The bytes by which the session is stored: without a user they are few
    /// enough for a key that the engine keeps inline.
    pub fn key_bytes(&self) -> ([u8; ID_BYTES + USER_BYTES], usize) {
        let mut bytes = [0; ID_BYTES + USER_BYTES];
        bytes[..ID_BYTES].copy_from_slice(&self.id);
        if self.user == NO_USER_DIGEST {
            return (bytes, ID_BYTES);
        }
        bytes[ID_BYTES..].copy_from_slice(&self.user);
        (bytes, ID_BYTES + USER_BYTES)
    }

    pub fn from_key_bytes(bytes: &[u8]) -> Option<Self> {
        let (id, user) = bytes.split_at_checked(ID_BYTES)?;
        let user = match user.len() {
            0 => NO_USER_DIGEST,
            _ => user.try_into().ok()?,
        };
        Some(Self {
            id: id.try_into().ok()?,
            user,
        })
    }
}

impl fmt::Display for SessionId {
    /// As MongoDB's messages have it: the UUID, then the user in base 64.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.id.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        write!(f, " - {} -  - ", base64(&self.user))
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at)) as usize & 63];
            // As many digits as there are bytes, and one more.
            text.push(if at <= three.len() { digit.into() } else { '=' });
        }
    }
    text
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
