//! The commit quorum of `createIndexes`: how many members must have built an index before it is used.
//!
//! A build here is a row of entries in the log, and the one that makes the index ready is applied in its
//! place on every member: no member can have a ready index that is not complete. So the quorum only has to
//! be one that the set could satisfy; it is checked and told back.

use super::Invocation;
use super::arguments::Argument;
use super::write_concern::Members;
use model::bson::{DocWriter, ValueRef};
use model::number::Number;
use model::{Code, Error};

#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) enum CommitQuorum {
    #[default]
    VotingMembers,
    Members(Members),
}

impl CommitQuorum {
    pub(crate) fn parse(argument: &Argument<'_>) -> Result<Self, Error> {
        match argument.value() {
            ValueRef::String("votingMembers") => Ok(Self::VotingMembers),
            ValueRef::String("majority") => Ok(Self::Members(Members::Majority)),
            ValueRef::String(mode) => Ok(Self::Members(Members::Mode(mode.to_owned()))),
            value => match Number::of(value).and_then(|count| count.to_i64_truncated()) {
                Some(count @ 0..=50) => Ok(Self::Members(Members::Count(count as u32))),
                Some(_) => Err(Error::new(
                    Code::FAILED_TO_PARSE,
                    "commitQuorum has to be a non-negative number and not greater than 50",
                )),
                None => Err(argument.wrong_type("[long, int, decimal, double, string]")),
            },
        }
    }

    pub(crate) fn check(&self, invocation: &Invocation<'_>) -> Result<(), Error> {
        match (self, invocation.shard.replica_set.configuration()) {
            (Self::Members(members), Some(configuration)) => configuration
                .check_satisfiable(members)
                .map_err(|error| match error.code {
                    Code::UNSATISFIABLE_WRITE_CONCERN => Error::new(
                        Code::UNSATISFIABLE_COMMIT_QUORUM,
                        "Not enough data-bearing nodes to satisfy commit quorum",
                    ),
                    _ => error,
                }),
            (Self::VotingMembers, _) | (_, None) => Ok(()),
        }
    }

    pub(crate) fn append_to(&self, writer: &mut DocWriter) {
        match self {
            Self::VotingMembers => writer.append("commitQuorum", "votingMembers"),
            Self::Members(Members::Count(count)) => writer.append("commitQuorum", *count as i32),
            Self::Members(Members::Mode(mode)) => writer.append("commitQuorum", mode.as_str()),
            Self::Members(Members::Majority | Members::Tags(_)) => {
                writer.append("commitQuorum", "majority")
            }
        };
    }
}
