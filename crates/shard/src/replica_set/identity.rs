//! Which member of which set a data directory belongs to, on disk.
//!
//! ```text
//!   member.bson   { member: int, founders: [ { _id, host } ], configuration?: document }
//!                 { member: int, life?: long, caller: { _id, life?: long, host } }    a newcomer
//! ```
//!
//! A life that is not there is 0, which is that of all founders. Written once, before the member takes part. A directory without
//! this file belongs to the only member of a set, or to nobody yet.

use super::Membership;
use super::transport::MemberNumber;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

const FILE: &str = "member.bson";

impl Membership {
    /// What a data directory says, if it says anything.
    pub fn load(data: &Path) -> io::Result<Option<Membership>> {
        let bytes = match std::fs::read(data.join(FILE)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let document = DocBuf::from_bytes(bytes).map_err(io::Error::other)?;
        match Membership::from_document(&document) {
            Some(membership) => Ok(Some(membership)),
            None => Err(io::Error::other(format!("{FILE} is damaged"))),
        }
    }

    /// Makes it last.
    pub fn store(&self, data: &Path) -> io::Result<()> {
        std::fs::create_dir_all(data)?;
        let new = data.join(format!("{FILE}.new"));
        let mut file = File::create(&new)?;
        file.write_all(self.to_document().as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, data.join(FILE))?;
        File::open(data)?.sync_all()
    }

    fn to_document(&self) -> DocBuf {
        let mut writer = DocWriter::new();
        match self {
            Membership::Newcomer {
                member,
                caller: (caller, host),
            } => {
                writer
                    .append("member", member.id)
                    .append("life", i64::from(member.life))
                    .begin_document("caller")
                    .append("_id", caller.id)
                    .append("life", i64::from(caller.life))
                    .append("host", host.as_str())
                    .end();
            }
            Membership::Founder {
                member,
                founders,
                configuration,
            } => {
                writer.append("member", *member).begin_array("founders");
                for (id, host) in founders {
                    writer
                        .push_document()
                        .append("_id", *id)
                        .append("host", host.as_str())
                        .end();
                }
                writer.end();
                if let Some(configuration) = configuration {
                    writer.append("configuration", configuration);
                }
            }
        }
        writer.finish()
    }

    fn from_document(document: &DocBuf) -> Option<Membership> {
        let document = document.as_doc();
        let member = match document.get("member") {
            Some(ValueRef::Int32(member)) if (0..=255).contains(&member) => member,
            _ => return None,
        };
        let named = |named: Doc<'_>| match (named.get("_id"), named.get_str("host")) {
            (Some(ValueRef::Int32(id)), Some(host)) => Some((id, host.to_owned())),
            _ => None,
        };
        let Some(listed) = document.get_array("founders") else {
            let caller = document.get_doc("caller")?;
            let (id, host) = named(caller)?;
            let number = |id, doc| {
                Some(MemberNumber {
                    id,
                    life: life(doc)?,
                })
            };
            return Some(Membership::Newcomer {
                member: number(member, document)?,
                caller: (number(id, caller)?, host),
            });
        };
        let mut founders = Vec::new();
        for founder in listed.iter() {
            let ValueRef::Document(founder) = founder else {
                return None;
            };
            founders.push(named(founder)?);
        }
        Some(Membership::Founder {
            member,
            founders,
            configuration: document.get_doc("configuration").map(|doc| doc.to_owned()),
        })
    }
}

fn life(document: Doc<'_>) -> Option<u32> {
    match document.get("life") {
        None => Some(0),
        Some(ValueRef::Int64(life)) => u32::try_from(life).ok(),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newcomer_of_an_earlier_version_is_in_its_first_life() {
        let caller = DocWriter::new().with("_id", 2).with("host", "a:1").finish();
        let document = DocWriter::new()
            .with("member", 7)
            .with("caller", &caller)
            .finish();
        assert_eq!(
            Membership::from_document(&document),
            Some(Membership::Newcomer {
                member: MemberNumber::first(7),
                caller: (MemberNumber::first(2), "a:1".to_owned()),
            })
        );
    }

    #[test]
    fn what_is_stored_is_loaded() {
        let data = tempfile::tempdir().expect("a temporary directory");
        let directory = data.path().join("new");
        assert_eq!(Membership::load(&directory).expect("nothing"), None);
        for membership in [
            Membership::Newcomer {
                member: MemberNumber { id: 7, life: 3 },
                caller: (MemberNumber::first(0), "a:1".to_owned()),
            },
            Membership::Founder {
                member: 1,
                founders: vec![(0, "a:1".to_owned()), (1, "b:2".to_owned())],
                configuration: Some(DocWriter::new().with("_id", "flock").finish()),
            },
        ] {
            membership.store(&directory).expect("it is stored");
            let loaded = Membership::load(&directory).expect("it is loaded");
            assert_eq!(loaded, Some(membership));
        }
        std::fs::write(directory.join(FILE), b"rubbish").expect("a file");
        assert!(Membership::load(&directory).is_err());
    }
}
