//! Elections as `replSetGetStatus` and `serverStatus` show them, and the set as `serverStatus` does.

use crate::Shard;
use crate::command::hello;
use crate::command::placement::append_topology_version;
use crate::replica_set::configuration::Configuration;
use crate::replica_set::transport::configuration_id;
use model::bson::{DocWriter, ValueRef};
use replication::{CastVote, ElectionCount, ElectionReason, Members, Seen, Term, WonElection};

fn reason(reason: ElectionReason) -> &'static str {
    match reason {
        ElectionReason::Timeout => "electionTimeout",
        ElectionReason::PriorityTakeover => "priorityTakeover",
        ElectionReason::HandedOver => "stepUpRequestSkipDryRun",
    }
}

fn term_number(term: Term) -> i64 {
    i64::try_from(term.get()).unwrap_or(i64::MAX)
}

fn append_seen(writer: &mut DocWriter, name: &str, seen: Seen) {
    // Before the first election nobody led.
    let term = match term_number(seen.term) {
        0 => -1,
        term => term,
    };
    writer
        .begin_document(name)
        .append("ts", seen.time)
        .append("t", term)
        .end();
}

/// How this member was elected, or whom it voted for.
pub(super) fn append_elections(
    writer: &mut DocWriter,
    configuration: &Configuration,
    members: &Members,
) {
    let own = configuration.member_in_log(members.me);
    let priority = own.map_or(0.0, |own| own.priority);
    let timeout_ms = i64::from(configuration.settings.election_timeout_ms);
    match (members.elections.won, members.elections.voted) {
        (Some(won), _) => append_won(writer, won, priority, timeout_ms),
        (None, Some(voted)) => append_voted(writer, voted, priority),
        (None, None) => {}
    }
}

fn append_won(writer: &mut DocWriter, won: WonElection, priority: f64, timeout_ms: i64) {
    writer
        .begin_document("electionCandidateMetrics")
        .append("lastElectionReason", reason(won.reason))
        .append("lastElectionDate", ValueRef::DateTime(won.wall_ms))
        .append("electionTerm", term_number(won.term));
    append_seen(writer, "lastCommittedOpTimeAtElection", won.committed);
    append_seen(writer, "lastSeenOpTimeAtElection", won.last);
    writer
        .append("numVotesNeeded", won.votes_needed as i32)
        .append("priorityAtElection", priority)
        .append("electionTimeoutMillis", timeout_ms);
    if let Some(prior) = won.prior_leader {
        writer.append("priorPrimaryMemberId", configuration_id(prior));
    }
    // Whoever is elected has everything that counts.
    writer.append("numCatchUpOps", 0i64);
    if let Some(began) = won.began_wall_ms {
        writer
            .append("newTermStartDate", ValueRef::DateTime(began))
            .append("wMajorityWriteAvailabilityDate", ValueRef::DateTime(began));
    }
    writer.end();
}

fn append_voted(writer: &mut DocWriter, voted: CastVote, priority: f64) {
    writer
        .begin_document("electionParticipantMetrics")
        .append("votedForCandidate", true)
        .append("electionTerm", term_number(voted.term))
        .append("lastVoteDate", ValueRef::DateTime(voted.wall_ms))
        .append(
            "electionCandidateMemberId",
            configuration_id(voted.candidate),
        )
        .append("voteReason", "");
    append_seen(writer, "lastAppliedOpTimeAtElection", voted.applied);
    append_seen(writer, "maxAppliedOpTimeInSet", voted.applied);
    writer.append("priorityAtElection", priority);
    if let Some(began) = voted.began_wall_ms {
        writer
            .append("newTermStartDate", ValueRef::DateTime(began))
            .append("newTermAppliedDate", ValueRef::DateTime(began));
    }
    writer.end();
}

/// The sections `repl` and `electionMetrics`.
pub(crate) fn append_server_status(shard: &Shard, writer: &mut DocWriter) {
    let topology = shard.replica_set.topology();
    let me = shard.replica_set.host();
    let configuration = topology.configuration.as_deref();
    let Some(configuration) = configuration.filter(|now| now.member_at(me).is_some()) else {
        return;
    };
    writer.begin_document("repl");
    append_topology_version(writer, shard.process_id, &topology);
    hello::append_set(
        writer,
        shard,
        configuration,
        topology.role,
        "isWritablePrimary",
    );
    // Counts rollbacks, of which there are none.
    writer.append("rbid", 1).end();
    let elections = shard.log.members().elections;
    let counts = [
        ("stepUpCmd", elections.after_hand_over),
        ("priorityTakeover", elections.after_takeover),
        // A new leader has everything that was committed: nobody needs to take over for it.
        ("catchUpTakeover", ElectionCount::default()),
        ("electionTimeout", elections.after_timeout),
        ("freezeTimeout", ElectionCount::default()),
    ];
    writer.begin_document("electionMetrics");
    for (name, count) in counts {
        writer
            .begin_document(name)
            .append("called", count.called as i64)
            .append("successful", count.won as i64)
            .end();
    }
    let won: u64 = counts.iter().map(|(_, count)| count.won).sum();
    writer
        .append(
            "numStepDownsCausedByHigherTerm",
            elections.lost_to_later_term as i64,
        )
        .append("numCatchUps", 0i64)
        .append("numCatchUpsSucceeded", 0i64)
        .append("numCatchUpsAlreadyCaughtUp", won as i64)
        .append("numCatchUpsSkipped", 0i64)
        .append("numCatchUpsTimedOut", 0i64)
        .append("numCatchUpsFailedWithError", 0i64)
        .append("numCatchUpsFailedWithNewTerm", 0i64)
        .append("numCatchUpsFailedWithReplSetAbortPrimaryCatchUpCmd", 0i64)
        .append("averageCatchUpOps", 0.0)
        .end();
}
