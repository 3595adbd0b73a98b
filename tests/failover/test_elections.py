"""Who becomes primary: priorities, freezing, stepping down; what a set tells of its elections.

With TERNDB_FAILOVER_KIND=mongod the same is asked of the real server.
"""

import threading
import time
import unittest

from members import DEADLINE_S, KIND, ReplicaSet, wait_until
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.write_concern import WriteConcern

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

    def leads(self, member) -> bool:
        return member.tell("hello")["isWritablePrimary"]

    def term(self, member) -> int:
        return self.status(member)["term"]

    def secondaries(self):
        primary = self.set.wait_primary()
        return [member for member in self.set.members if member is not primary]

    def prioritise(self, priorities: dict) -> None:
        """Gives members priorities, one configuration after the other."""
        primary = self.set.wait_primary()
        config = primary.tell("replSetGetConfig")["config"]
        config["version"] += 1
        for member in config["members"]:
            member["priority"] = priorities.get(member["_id"], member["priority"])
        primary.tell({"replSetReconfig": config})

    def confirms(self, member) -> bool:
        """Whether a member leads a majority."""
        try:
            with member.client(socketTimeoutMS=DEADLINE_S * 1000) as client:
                majority = WriteConcern("majority", wtimeout=DEADLINE_S * 1000)
                return bool(client.test.get_collection("c", write_concern=majority).insert_one({}))
        except PyMongoError:
            return False

    def status(self, member) -> dict:
        return member.tell("replSetGetStatus")

    def test_the_greatest_priority_takes_over(self):
        favourite = self.secondaries()[0]
        self.prioritise({favourite.number: 5})
        wait_until(favourite.is_primary, "the favourite is primary", DEADLINE_S)
        metrics = self.status(favourite)["electionCandidateMetrics"]
        self.assertEqual([name for name in CANDIDATE if name not in metrics], [])
        self.assertEqual(metrics["lastElectionReason"], "priorityTakeover")
        self.assertEqual(metrics["priorityAtElection"], 5.0)
        self.assertEqual(metrics["numVotesNeeded"], 2)
        # One of the others at least has voted for it.
        voters = [self.status(member).get("electionParticipantMetrics", {}) for member in self.secondaries()]
        votes = [metrics for metrics in voters if metrics.get("electionCandidateMemberId") == favourite.number]
        self.assertTrue(votes, voters)
        for metrics in votes:
            self.assertEqual([name for name in PARTICIPANT if name not in metrics], [])
        counts = favourite.tell("serverStatus")["electionMetrics"]["priorityTakeover"]
        self.assertEqual(counts["successful"], 1)
        # Where a vote comes too late, it stands once more.
        self.assertGreaterEqual(counts["called"], 1)
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
        # Of the new configuration a member hears by and by.
        hello = wait_until(lambda: (hello := one.tell("hello")).get("passive") and hello, "it is passive")
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
        # It may believe to lead still, and notice that it slept; what a majority has confirmed tells that it leads.
        wait_until(lambda: self.confirms(other), "the other is primary again")
        # Nor does a primary hand over to it.
        term = self.term(other)
        with self.assertRaises(OperationFailure) as refused:
            other.tell({"replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 1})
        self.assertEqual(refused.exception.code, 262)
        self.assertTrue(self.leads(other))
        self.assertEqual(self.term(other), term)

    def test_a_primary_that_stepped_down_rests(self):
        primary = self.set.wait_primary()
        one, other = self.secondaries()
        for member in (one, other):
            self.assertEqual(member.tell({"replSetFreeze": 600})["ok"], 1)
        # Both have everything, and neither may ask for votes: the primary steps down all the same.
        began = time.monotonic()
        rest_s = 8 if KIND == "terndb" else 16
        term = self.term(primary)
        primary.tell({"replSetStepDown": rest_s, "secondaryCatchUpPeriodSecs": rest_s})
        again = self.set.wait_primary()
        self.assertIs(again, primary, "the others are frozen")
        self.assertGreaterEqual(time.monotonic() - began, rest_s - 0.5)
        self.assertGreater(self.term(primary), term)
        # One may stand again, and takes over.
        self.assertEqual(one.tell({"replSetFreeze": 0})["info"], "unfreezing")
        primary.tell({"replSetStepDown": 2 * DEADLINE_S, "secondaryCatchUpPeriodSecs": DEADLINE_S})
        wait_until(one.is_primary, "the one that is not frozen")
        with self.assertRaises(OperationFailure) as refused:
            one.tell({"replSetFreeze": 5})
        self.assertEqual(refused.exception.code, 95)

    def test_stepping_down_without_a_successor_must_be_forced(self):
        primary = self.set.wait_primary()
        one, other = self.secondaries()
        self.prioritise({one.number: 0, other.number: 0})
        term = self.term(primary)
        with self.assertRaises(OperationFailure) as refused:
            primary.tell({"replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 1})
        self.assertEqual(refused.exception.code, 262)
        self.assertTrue(self.leads(primary))
        self.assertEqual(self.term(primary), term)
        primary.tell({"replSetStepDown": 3, "secondaryCatchUpPeriodSecs": 1, "force": True})
        wait_until(primary.is_primary, "its rest is over")
        self.assertGreater(self.term(primary), term)

    @unittest.skipIf(KIND != "terndb", "the real server waits for its election timeout")
    def test_a_primary_that_is_killed_is_not_waited_for(self):
        """Others see that its process has ended, long before they would notice that it is silent."""
        primary = self.set.wait_primary()
        config = primary.tell("replSetGetConfig")["config"]
        config["version"] += 1
        config["settings"]["electionTimeoutMillis"] = 2 * DEADLINE_S * 1000
        primary.tell({"replSetReconfig": config})
        others = self.secondaries()

        def heard() -> bool:
            told = [member.tell("replSetGetConfig")["config"]["settings"] for member in others]
            return all(settings["electionTimeoutMillis"] == 2 * DEADLINE_S * 1000 for settings in told)

        wait_until(heard, "all members know how long to wait")
        primary.kill()
        # Their turns to ask for votes come after a tenth of the timeout, or three tenths.
        wait_until(lambda: any(member.is_primary() for member in others), "another primary", 1.5 * DEADLINE_S)

    def test_a_primary_that_is_told_to_stop_hands_over(self):
        primary = self.set.wait_primary()
        with self.set.client(serverSelectionTimeoutMS=DEADLINE_S * 1000) as client:
            birds = client.test.get_collection("birds", write_concern=WriteConcern("majority"))
            birds.insert_one({"_id": 0})
            stopped = threading.Event()
            ended = []

            def stop() -> None:
                ended.append(primary.terminate())
                stopped.set()

            threading.Thread(target=stop, daemon=True).start()
            written = 1
            # Drivers retry what is refused, so that the program hears nothing of it.
            while not stopped.is_set() or written < 10:
                birds.insert_one({"_id": written})
                written += 1
            self.assertEqual(ended, [0], primary.tail())
            self.assertEqual(birds.count_documents({}), written)
        self.assertIsNot(self.set.wait_primary(), primary)

    def test_every_member_tells_of_every_member(self):
        self.set.wait_primary()
        for member in self.set.members:

            def known():
                members = self.status(member)["members"]
                states = sorted((one["stateStr"], one["health"]) for one in members)
                return states == [("PRIMARY", 1.0), ("SECONDARY", 1.0), ("SECONDARY", 1.0)] and members

            for one in wait_until(known, f"member {member.number} knows all of them"):
                self.assertIn("optime", one)
                self.assertEqual("optimeDurable" in one, not one.get("self", False) and "self" not in one)
            repl = member.tell("serverStatus")["repl"]
            self.assertEqual(repl["me"], member.host)
            self.assertEqual(len(repl["hosts"]), 3)


if __name__ == "__main__":
    unittest.main()
