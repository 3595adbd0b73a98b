//! A question in the words of a request: which ranges, and by what they were routed.
//!
//! ```text
//!   databaseVersion, uuid                   the whole of a collection that is not sharded (`at_home.rs`)
//!   shardVersion                            as in the base placement
//!   shardVersion, without: [min, max, ..]   what the shard owns by that version, but for these
//!   ranges: [min, max, ..], uuid, version   these; of the version only the incarnation matters, which
//!                                           says how many fields bounds have
//! ```
//!
//! Of a moment of the past a shard is first asked by the base version, so that somebody tells if the base does not know
//! who owned what then; and after that by the version of now, whichever that is: what it owned then stays what it owned
//! then. What has moved after that moment is no reason to refuse: the version says until when it tells the owners
//! (`known`).
//!
//! Which of them, and why: [`cluster::scan::naming`]. What a shard is known not to own any more it is not asked
//! for.

use super::asking::{Answered, Ask, Asker, append_ranges, binary};
use crate::config::Database;
use crate::failure::{Failure, Stale};
use crate::request::stamp_known;
use cluster::cache::Placement;
use cluster::scan::{Asked, Limits, Naming, Question, naming};
use model::bson::{DocWriter, ValueRef};
use model::range::RangeSet;
use model::version::PlacementVersion;

/// How a question is put.
pub(super) enum Words {
    AsAsked,
    ByVersion {
        version: PlacementVersion,
        without: RangeSet,
    },
    /// By the version of the database.
    AtHome(Database),
}

/// How to put a question, or what comes of it without asking.
pub(super) enum Named {
    So(Words),
    Answered(Ask),
}

impl Ask {
    /// The answer of a shard that has nothing of some ranges, and says nothing of the others.
    pub(super) fn not_owned(ranges: RangeSet, version: Option<PlacementVersion>) -> Ask {
        Ask::Answered(Box::new(Answered {
            entries: Vec::new(),
            place: None,
            ended: false,
            not_owned: ranges,
            version,
            cursor: None,
            collection: None,
            times: Vec::new(),
            bytes_on_cursor: None,
            run: None,
        }))
    }
}

impl Asker {
    /// Finds the words for a question. Few ranges need no look at who owns what.
    pub(super) async fn name(&self, question: &Question) -> Result<Named, Failure> {
        if self.command.is_at_home {
            return self.name_home(question).await;
        }
        let limits = Limits::OF_REQUESTS;
        let ranges = match &question.asked {
            Asked::These(ranges) if !limits.are_few(ranges) => Some(ranges),
            Asked::AsInBase if self.command.is_past && self.begun => None,
            Asked::These(_) | Asked::AsInBase => return Ok(Named::So(Words::AsAsked)),
        };
        let (routing, shard) = (&self.router.routing, [question.shard.clone()]);
        // ⚑ Nothing that the shard has said to be old.
        let placement = routing.placement(&self.command.namespace, Some(&shard));
        let now = match placement.await? {
            Placement::Sharded(table) if table.incarnation == self.base.incarnation => table,
            // It is another collection: the scan ends.
            Placement::Sharded(table) => {
                return Ok(Named::Answered(Ask::Stale(Stale::Collection {
                    shard: question.shard.clone(),
                    wanted: Some(table.version()),
                })));
            }
            Placement::Unsharded => return Ok(Named::Answered(Ask::Stale(Stale::Database))),
        };
        let Some(ranges) = ranges else {
            return Ok(Named::So(Words::ByVersion {
                version: now.shard_version(&question.shard),
                without: RangeSet::new(),
            }));
        };
        Ok(match naming(ranges, &question.shard, &now, limits) {
            Naming::ByName => Named::So(Words::AsAsked),
            Naming::ByVersion { version, without } => {
                Named::So(Words::ByVersion { version, without })
            }
            Naming::Gone(gone) => Named::Answered(Ask::not_owned(gone, Some(now.version()))),
            Naming::TooLong => Named::Answered(Ask::TooLong),
        })
    }

    /// Says which part of a scan is asked for, and by what it was routed. The part's document stays open.
    pub(super) fn append_part(&self, writer: &mut DocWriter, question: &Question, words: &Words) {
        let version = match (words, &question.asked) {
            (Words::AtHome(database), _) => {
                self.append_home(writer, database);
                return self.append_place(writer, question);
            }
            (Words::ByVersion { version, .. }, _) => Some(*version),
            (Words::AsAsked, Asked::AsInBase) => Some(self.base.shard_version(&question.shard)),
            (Words::AsAsked, Asked::These(_)) => None,
        };
        if let Some(version) = version {
            stamp_known(writer, version, self.base.came_to_be());
        }
        writer.begin_document("_terndbScan");
        match (words, &question.asked) {
            (Words::ByVersion { without, .. }, _) => append_ranges(writer, "without", without),
            (Words::AtHome(_), _) | (Words::AsAsked, Asked::AsInBase) => {}
            (Words::AsAsked, Asked::These(ranges)) => {
                append_ranges(writer, "ranges", ranges);
                let uuid = ValueRef::Binary {
                    subtype: 4,
                    bytes: &self.base.uuid.0,
                };
                writer.append("uuid", uuid).begin_document("version");
                self.base.version().append_to(writer);
                writer.end();
            }
        }
        self.append_place(writer, question);
    }

    fn append_place(&self, writer: &mut DocWriter, question: &Question) {
        if let Some(place) = &question.after {
            writer.append("after", binary(place));
        }
    }
}
