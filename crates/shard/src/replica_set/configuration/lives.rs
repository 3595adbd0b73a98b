//! Which life of a number a member lives: a number that was taken away is never given to another server
//! as it was.
//!
//! The log counts votes and copies by its own ids of members, and relies on it that an id is one server for
//! ever: what a server has promised under it must hold. The `_id`s of a configuration are the operator's, and
//! are used again: a member is removed, another server is added with the same `_id`, and the removed one
//! still runs, perhaps without having heard of it. So the log's id is made of both, the `_id` and the
//! *life* that it is in:
//!
//! ```text
//!   with the set begun, or by an earlier version    life 0
//!   added                                           the next life that this set has never given
//!   added again, and the same server is there       the life that it had      (it is *returned*)
//!   another host, another priority, …               stays
//! ```
//!
//! Whether the same server is there is asked, not guessed from its host (`replica_set/returning.rs`). A server
//! without data is never given a life that somebody has lived ⚑: it may be another one, and at best it has
//! forgotten what it promised.
//!
//! Stored with the configuration, in a field that clients do not see. What it leaves out: of members that
//! were removed long ago the oldest are forgotten; they are new ones when they are added again.

use super::{Configuration, MemberConfiguration};
use crate::replica_set::transport::MemberNumber;
use model::Error;
use model::bson::{Doc, DocBuf, DocWriter, ObjectId, ValueRef};
use replication::MemberId;
use std::collections::BTreeMap;

const FIELD: &str = "lives";
/// So many members that were removed are remembered.
const FORMER_MAX: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lives {
    /// The last life that was given.
    given: u32,
    /// Members in another life than the first, or returned.
    members: BTreeMap<i32, Life>,
    /// Members that were removed, the latest last.
    former: Vec<Former>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Life {
    number: u32,
    is_returned: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Former {
    id: i32,
    host: String,
    life: u32,
}

impl Lives {
    pub(crate) fn of(&self, id: i32) -> u32 {
        self.members.get(&id).map_or(0, |life| life.number)
    }

    /// Whether the member was there before, so that an empty server cannot be it.
    pub(crate) fn is_returned(&self, id: i32) -> bool {
        self.members.get(&id).is_some_and(|life| life.is_returned)
    }

    /// The lives of a removed member that had this number at this host, the latest first.
    pub(crate) fn earlier<'a>(&'a self, id: i32, host: &'a str) -> impl Iterator<Item = u32> + 'a {
        let had = move |former: &&Former| former.id == id && former.host == host;
        self.former
            .iter()
            .rev()
            .filter(had)
            .map(|former| former.life)
    }

    /// The lives in the configuration that follows; `returning` are added ones that are known again.
    pub(crate) fn successor(
        before: &Configuration,
        after: &Configuration,
        returning: &BTreeMap<i32, u32>,
    ) -> Lives {
        let mut lives = Lives {
            members: BTreeMap::new(),
            ..before.lives.clone()
        };
        for member in &after.members {
            let id = member.id;
            let life = if before.member(id).is_some() {
                let known = before.lives.members.get(&id);
                known.copied().unwrap_or_default()
            } else if let Some(number) = returning.get(&id) {
                let number = *number;
                lives
                    .former
                    .retain(|former| (former.id, former.life) != (id, number));
                Life {
                    number,
                    is_returned: true,
                }
            } else {
                lives.given += 1;
                Life {
                    number: lives.given,
                    is_returned: false,
                }
            };
            if life != Life::default() {
                lives.members.insert(id, life);
            }
        }
        for member in &before.members {
            if after.member(member.id).is_none() {
                lives.former.push(Former {
                    id: member.id,
                    host: member.host.clone(),
                    life: before.lives.of(member.id),
                });
            }
        }
        lives.forget_oldest();
        lives
    }

    /// Gives another life to a member that has lost the one it was to come back to.
    pub(crate) fn renew(&mut self, id: i32, host: &str) {
        self.given += 1;
        let next = Life {
            number: self.given,
            is_returned: false,
        };
        let before = self.members.insert(id, next).unwrap_or_default();
        self.former.push(Former {
            id,
            host: host.to_owned(),
            life: before.number,
        });
        self.forget_oldest();
    }

    fn forget_oldest(&mut self) {
        let forgotten = self.former.len().saturating_sub(FORMER_MAX);
        self.former.drain(..forgotten);
    }

    fn write(&self, writer: &mut DocWriter) {
        writer
            .begin_document(FIELD)
            .append("given", i64::from(self.given))
            .begin_array("members");
        for (id, life) in &self.members {
            writer
                .push_document()
                .append("_id", *id)
                .append("life", i64::from(life.number))
                .append("returned", life.is_returned)
                .end();
        }
        writer.end().begin_array("former");
        for former in &self.former {
            writer
                .push_document()
                .append("_id", former.id)
                .append("host", former.host.as_str())
                .append("life", i64::from(former.life))
                .end();
        }
        writer.end().end();
    }

    fn read(doc: Doc<'_>) -> Option<Lives> {
        let mut lives = Lives {
            given: life(doc, "given")?,
            ..Lives::default()
        };
        for member in doc.get_array("members")?.iter() {
            let ValueRef::Document(member) = member else {
                return None;
            };
            let life = Life {
                number: life(member, "life")?,
                is_returned: member.get("returned") == Some(ValueRef::Boolean(true)),
            };
            lives.members.insert(id(member)?, life);
        }
        for former in doc.get_array("former")?.iter() {
            let ValueRef::Document(former) = former else {
                return None;
            };
            lives.former.push(Former {
                id: id(former)?,
                host: former.get_str("host")?.to_owned(),
                life: life(former, "life")?,
            });
        }
        Some(lives)
    }
}

fn id(doc: Doc<'_>) -> Option<i32> {
    match doc.get("_id") {
        Some(ValueRef::Int32(id)) => Some(id),
        _ => None,
    }
}

fn life(doc: Doc<'_>, name: &str) -> Option<u32> {
    match doc.get(name) {
        Some(ValueRef::Int64(life)) => u32::try_from(life).ok(),
        _ => None,
    }
}

impl Configuration {
    /// A member of the configuration as the log knows it.
    pub(crate) fn number(&self, member: &MemberConfiguration) -> MemberNumber {
        MemberNumber {
            id: member.id,
            life: self.lives.of(member.id),
        }
    }

    pub(crate) fn in_log(&self, member: &MemberConfiguration) -> MemberId {
        self.number(member).in_log()
    }

    /// The member that the log knows under this id, if it still is one.
    pub(crate) fn member_in_log(&self, member: MemberId) -> Option<&MemberConfiguration> {
        let number = MemberNumber::from_log(member);
        self.member(number.id)
            .filter(|member| self.number(member) == number)
    }

    /// As it is stored: what clients see, and the lives.
    pub(crate) fn to_stored(&self) -> DocBuf {
        let shown = self.to_document();
        if self.lives == Lives::default() {
            return shown;
        }
        let mut writer = DocWriter::new();
        for element in shown.as_doc().iter() {
            writer.append_element(&element);
        }
        self.lives.write(&mut writer);
        writer.finish()
    }

    /// What [`Configuration::to_stored`] has written, or an earlier version.
    pub(crate) fn from_stored(doc: Doc<'_>) -> Result<Configuration, Error> {
        let mut shown = DocWriter::new();
        for element in doc.iter().filter(|element| element.key() != FIELD) {
            shown.append_element(&element);
        }
        let shown = shown.finish();
        let mut configuration = Configuration::from_document(shown.as_doc(), ObjectId([0; 12]))?;
        if let Some(lives) = doc.get_doc(FIELD) {
            configuration.lives = Lives::read(lives).ok_or_else(|| {
                Error::new(
                    model::Code::INTERNAL_ERROR,
                    "the stored configuration of the replica set is damaged",
                )
            })?;
        }
        Ok(configuration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(hosts: &[(i32, &str)]) -> Configuration {
        let mut configuration = Configuration::first("flock", &[], ObjectId([7; 12]));
        let members = hosts
            .iter()
            .map(|(id, host)| MemberConfiguration::new(*id, *host));
        configuration.members = members.collect();
        configuration
    }

    /// Members and their hosts, and who of them returns to which life.
    type Step<'a> = (&'a [(i32, &'a str)], &'a [(i32, u32)]);

    /// The lives of the members after a row of configurations.
    fn lives(row: &[Step<'_>]) -> Configuration {
        let mut now = configuration(row[0].0);
        for (hosts, returning) in &row[1..] {
            let mut next = configuration(hosts);
            let returning = returning.iter().copied().collect();
            next.lives = Lives::successor(&now, &next, &returning);
            now = Configuration::from_stored(next.to_stored().as_doc()).expect("it is whole");
            assert_eq!(now, next, "what is stored is loaded");
        }
        now
    }

    /// ⚑ A number that is given to another server is another member of the log.
    #[test]
    fn a_number_is_never_given_twice() {
        let a: (i32, &str) = (0, "a:1");
        let now = lives(&[
            (&[a, (1, "b:1")], &[]),
            (&[a], &[]),
            (&[a, (1, "c:1")], &[]),
        ]);
        assert_eq!((now.lives.of(0), now.lives.of(1)), (0, 1));
        let old = MemberNumber { id: 1, life: 0 }.in_log();
        assert_ne!(now.in_log(&now.members[1]), old);
        assert_eq!(now.member_in_log(old), None, "the old one is nobody");
        // The same host, and nobody knows whether it is the same server: a new one again.
        let now = lives(&[
            (&[a, (1, "b:1")], &[]),
            (&[a], &[]),
            (&[a, (1, "b:1")], &[]),
            (&[a], &[]),
            (&[a, (1, "b:1")], &[]),
        ]);
        assert_eq!(now.lives.of(1), 2);
    }

    #[test]
    fn a_server_that_is_known_again_keeps_its_life() {
        let a: (i32, &str) = (0, "a:1");
        let now = lives(&[
            (&[a, (1, "b:1")], &[]),
            (&[a], &[]),
            (&[a, (1, "c:1")], &[]),
            (&[a], &[]),
            (&[a, (1, "b:1")], &[(1, 0)]),
        ]);
        assert_eq!(now.lives.of(1), 0);
        assert!(now.lives.is_returned(1) && !now.lives.is_returned(0));
        let mut renewed = now.lives.clone();
        renewed.renew(1, "b:1");
        assert_eq!((renewed.of(1), renewed.is_returned(1)), (2, false));
        assert_eq!(now.lives.earlier(1, "c:1").collect::<Vec<_>>(), [1]);
        assert_eq!(now.lives.earlier(1, "b:1").count(), 0);
    }

    #[test]
    fn a_member_that_stays_keeps_its_life() {
        let now = lives(&[
            (&[(0, "a:1")], &[]),
            (&[(0, "a:1"), (1, "b:1")], &[]),
            (&[(0, "a:2"), (1, "b:2")], &[]),
        ]);
        assert_eq!((now.lives.of(0), now.lives.of(1)), (0, 1));
    }

    #[test]
    fn a_set_of_an_earlier_version_has_first_lives() {
        let before = configuration(&[(0, "a:1"), (3, "b:1")]);
        let stored = before.to_document();
        let loaded = Configuration::from_stored(stored.as_doc()).expect("it is whole");
        assert_eq!(before.to_stored(), stored);
        assert_eq!(loaded.in_log(&loaded.members[1]), MemberId::new(4));
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let a: (i32, &str) = (0, "a:1");
        let mut now = configuration(&[a]);
        for round in 0..=FORMER_MAX {
            let host = format!("b:{}", round + 1);
            for hosts in [&[a, (1, host.as_str())][..], &[a]] {
                let mut next = configuration(hosts);
                next.lives = Lives::successor(&now, &next, &BTreeMap::new());
                now = next;
            }
        }
        assert_eq!(now.lives.former.len(), FORMER_MAX);
        assert_eq!(now.lives.earlier(1, "b:1").count(), 0);
        assert_eq!(now.lives.earlier(1, "b:2").collect::<Vec<_>>(), [2]);
    }
}
