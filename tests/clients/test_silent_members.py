"""A primary that falls silent keeps its connections: whoever waits for it must not wait as long as it sleeps.

The process is stopped (SIGSTOP), which is what a frozen machine or a hanging disk looks like from outside. Its set has
another primary within seconds; cursors, reads, writes and moves through a router go on there, while it is still
stopped.
"""

import signal
import unittest

import test_moves
from pymongo.errors import PyMongoError

from server import only_terndb, wait_until

DOCUMENTS = 200


@only_terndb
class SilentMembers(test_moves.MovesAmongMembers):
    test_primaries_change_during_moves = None

    def test_nobody_waits_for_a_silent_primary(self):
        self.birds.insert_many([{"_id": number, "k": number} for number in range(DOCUMENTS)])
        self.insist("split", "fleet.birds", middle={"k": DOCUMENTS // 2})
        self.insist("moveRange", "fleet.birds", min={"k": DOCUMENTS // 2}, toShard="shard1")
        cursor = self.birds.find({}, batch_size=10)
        found = [cursor.next()["_id"]]

        silent = self.shards[0].primary()
        silent.process.send_signal(signal.SIGSTOP)
        self.addCleanup(silent.process.send_signal, signal.SIGCONT)

        # An error is an answer: drivers ask again, and so do we. What counts is that there is one.
        self.insist_on(lambda: self.birds.update_one({"k": 1}, {"$set": {"seen": True}}), "a write")
        self.insist_on(lambda: self.birds.find_one({"k": 1}), "a read")
        self.insist_on(lambda: self.birds.count_documents({}) == DOCUMENTS, "a count over all shards")
        # A scan that has begun goes on from its place.
        found.extend(bird["_id"] for bird in cursor)
        self.assertEqual(sorted(found), list(range(DOCUMENTS)))
        self.insist("moveRange", "fleet.birds", min={"k": DOCUMENTS // 2}, toShard="shard0")

        silent.process.send_signal(signal.SIGCONT)
        self.insist_on(lambda: self.birds.count_documents({"k": {"$gte": 0}}) == DOCUMENTS, "all of them, once")

    def insist_on(self, operation, what):
        def attempt():
            try:
                return operation()
            except PyMongoError:
                return None

        return wait_until(attempt, what)


if __name__ == "__main__":
    unittest.main()
