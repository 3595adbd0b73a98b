"""Who becomes primary: priorities, freezing, stepping down; what a set tells of its elections.

With TERNDB_FAILOVER_KIND=mongod the same is asked of the real server.
"""

import time
import unittest

from members import DEADLINE_S, KIND, ReplicaSet, wait_until
from pymongo.errors import OperationFailure

CANDIDATE = [
    "lastElectionReason",
    "lastElectionDate",
    "electionTerm",
    "lastCommittedOpTimeAtElection",
    "lastSeenOpTimeAtElection",
    "numVotesNeeded",
    "priorityAtElection",
    "electionTimeoutMillis",
]
PARTICIPANT = [
    "votedForCandidate",
    "electionTerm",
    "lastVoteDate",
    "electionCandidateMemberId",
    "voteReason",
    "lastAppliedOpTimeAtElection",
    "maxAppliedOpTimeInSet",
    "priorityAtElection",
]


class Elections(unittest.TestCase):
    def setUp(self):
        self.set = ReplicaSet(3)
        self.addCleanup(self.set.stop)

    def admin(self, member, command):
        with member.client(socketTimeoutMS=30_000) as client:
            return client.admin.command(command)

    def secondaries(self):
        primary = self.set.wait_primary()
        return [member for member in self.set.members if member is not primary]

    def prioritise(self, priorities: dict) -> None:
        """Gives members priorities, one configuration after the other."""
        primary = self.set.wait_primary()
        config = self.admin(primary, "replSetGetConfig")["config"]
        config["version"] += 1
        for member in config["members"]:
            member["priority"] = priorities.get(member["_id"], member["priority"])
        self.admin(primary, {"replSetReconfig": config})

    def status(self, member) -> dict:
        return self.admin(member, "replSetGetStatus")

    def test_the_greatest_priority_takes_over(self):
        favourite = self.secondaries()[0]
        self.prioritise({favourite.number: 5})
        wait_until(favourite.is_primary, "the favourite is primary", DEADLINE_S)
        metrics = self.status(favourite)["electionCandidateMetrics"]
        self.assertEqual([name for name in CANDIDATE if name not in metrics], [])
        self.assertEqual(metrics["lastElectionReason"], "priorityTakeover")
        self.assertEqual(metrics["priorityAtElection"], 5.0)
        self.assertEqual(metrics["numVotesNeeded"], 2)
        voter = self.secondaries()[0]
        metrics = self.status(voter)["electionParticipantMetrics"]
        self.assertEqual([name for name in PARTICIPANT if name not in metrics], [])
        self.assertEqual(metrics["electionCandidateMemberId"], favourite.number)
        counts = self.admin(favourite, "serverStatus")["electionMetrics"]["priorityTakeover"]
        self.assertEqual(counts, {"called": 1, "successful": 1})
        # It goes, another one leads; it comes back, and leads again.
        favourite.kill()
        self.set.wait_primary(besides=favourite)
        favourite.start()
        wait_until(favourite.is_up, "the favourite answers")
        wait_until(favourite.is_primary, "the favourite is primary again", DEADLINE_S)

    def test_priority_zero_never_leads(self):
        one, other = self.secondaries()
        self.prioritise({one.number: 0})
        primary = self.set.wait_primary()
        hello = self.admin(one, "hello")
        self.assertTrue(hello["passive"])
        self.assertEqual(hello["passives"], [one.host])
        primary.kill()
        # The only one that may be elected is, with the vote of the one that may not.
        wait_until(other.is_primary, "the other is primary")
        other.pause()
        # Nobody is left who may lead.
        until = time.monotonic() + 5
        while time.monotonic() < until:
            self.assertFalse(one.is_primary())
        other.resume()
        wait_until(other.is_primary, "the other is primary again")
        # Nor does a primary hand over to it.
        with self.assertRaises(OperationFailure) as refused:
            self.admin(other, {"replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 1})
        self.assertEqual(refused.exception.code, 262)
        self.assertTrue(other.is_primary())

    def test_a_primary_that_stepped_down_rests(self):
        primary = self.set.wait_primary()
        one, other = self.secondaries()
        for member in (one, other):
            self.assertEqual(self.admin(member, {"replSetFreeze": 600})["ok"], 1)
        # Both have everything, and neither may ask for votes: the primary steps down all the same.
        began = time.monotonic()
        rest_s = 8 if KIND == "terndb" else 16
        self.admin(primary, {"replSetStepDown": rest_s, "secondaryCatchUpPeriodSecs": 2})
        self.assertFalse(primary.is_primary())
        again = self.set.wait_primary()
        self.assertIs(again, primary, "the others are frozen")
        self.assertGreaterEqual(time.monotonic() - began, rest_s - 0.5)
        # One may stand again, and takes over.
        self.assertEqual(self.admin(one, {"replSetFreeze": 0})["info"], "unfreezing")
        self.admin(primary, {"replSetStepDown": 60, "secondaryCatchUpPeriodSecs": 5})
        wait_until(one.is_primary, "the one that is not frozen")
        with self.assertRaises(OperationFailure) as refused:
            self.admin(one, {"replSetFreeze": 5})
        self.assertEqual(refused.exception.code, 95)

    def test_stepping_down_without_a_successor_must_be_forced(self):
        primary = self.set.wait_primary()
        one, other = self.secondaries()
        self.prioritise({one.number: 0, other.number: 0})
        with self.assertRaises(OperationFailure) as refused:
            self.admin(primary, {"replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 1})
        self.assertEqual(refused.exception.code, 262)
        self.assertTrue(primary.is_primary())
        self.admin(primary, {"replSetStepDown": 3, "secondaryCatchUpPeriodSecs": 1, "force": True})
        self.assertFalse(primary.is_primary())
        wait_until(primary.is_primary, "its rest is over")

    def test_every_member_tells_of_every_member(self):
        self.set.wait_primary()
        for member in self.set.members:
            wait_until(
                lambda m=member: sorted(one["stateStr"] for one in self.status(m)["members"])
                == ["PRIMARY", "SECONDARY", "SECONDARY"],
                f"member {member.number} knows all of them",
            )
            status = self.status(member)
            for one in status["members"]:
                self.assertEqual(one["health"], 1.0)
                self.assertIn("optime", one)
                self.assertEqual("optimeDurable" in one, not one.get("self", False) and "self" not in one)
            repl = self.admin(member, "serverStatus")["repl"]
            self.assertEqual(repl["me"], member.host)
            self.assertEqual(len(repl["hosts"]), 3)


if __name__ == "__main__":
    unittest.main()
