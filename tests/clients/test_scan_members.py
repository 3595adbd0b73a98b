"""Scans over shards of three members, while ranges move all the time and members are killed.

Sorted and unsorted, of primaries and of secondaries: a cursor goes on at another member from where it stood, every
document that was there throughout comes once, and totals are the truth. `TERNDB_SCAN_DOCUMENTS` sets how many documents
there are, up to the million that the design is made for; `TERNDB_SCAN_KILLS` how many members are killed in each scan.
"""

import os
import signal
import unittest

import test_moves
from pymongo import ReadPreference
from pymongo.errors import PyMongoError

from server import DEADLINE_S, only_terndb, wait_until

DOCUMENTS = int(os.environ.get("TERNDB_SCAN_DOCUMENTS", "6000"))
KILLS = int(os.environ.get("TERNDB_SCAN_KILLS", "1"))
AT_ONCE = 5000


@only_terndb
class ScansAmongMembers(test_moves.MovesAmongMembers):
    test_primaries_change_during_moves = None

    def setUp(self):
        super().setUp()
        for start in range(0, DOCUMENTS, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, DOCUMENTS))
            self.birds.insert_many([{"_id": number, "k": number % test_moves.KEYS, "rank": -number} for number in numbers])
        self.birds.create_index("rank")
        self.moved, self.not_moved, self.killed = [], [], 0
        self.kills_wanted = 0

    def kill_member(self):
        """Any member: the others of its set are enough. Not all the time, or no move would come to its end."""
        if self.done.wait(self.chance.uniform(0.5, 2)) or self.killed >= self.kills_wanted:
            return
        shard = self.chance.choice(self.shards)
        member = self.chance.choice(shard.members)
        member.stop(signal.SIGKILL)
        member.start()
        shard.primary()
        self.killed += 1

    def scan(self, collection, **options):
        """All numbers, in the order in which they come. On its way the scan waits until a range has moved and
        members were killed."""
        found = []
        moved = len(self.moved)
        self.kills_wanted = self.killed + KILLS
        for bird in collection.find({}, {"_id": 1}, batch_size=max(DOCUMENTS // 30, 1), **options):
            found.append(bird["_id"])
            if len(found) == DOCUMENTS // 2:
                self.wait_for(moved)
        return found

    def wait_for(self, moved):
        """Until more ranges have moved than before, and enough members were killed."""

        def happened():
            return self.done.is_set() or (len(self.moved) > moved and self.killed >= self.kills_wanted)

        try:
            wait_until(happened, "a move and kills in the middle of a scan", 8 * DEADLINE_S)
        except AssertionError as waited:
            now = f"{len(self.moved) - moved} moves, {self.kills_wanted - self.killed} kills missing"
            raise AssertionError(f"{waited}: {now}, not moved: {self.not_moved[-3:]}") from None

    def total(self, pipeline):
        try:
            return list(self.birds.aggregate(pipeline))
        except PyMongoError:
            return None

    def test_every_document_comes_once(self):
        threads = [self.until_done(part) for part in (self.move, self.kill_member)]
        try:
            for preference in (ReadPreference.PRIMARY, ReadPreference.SECONDARY_PREFERRED):
                birds = self.birds.with_options(read_preference=preference)
                told = f"seed {self.seed}, {preference.mongos_mode}"
                self.assertEqual(sorted(self.scan(birds)), list(range(DOCUMENTS)), told)
                ranked = self.scan(birds, sort=[("rank", 1)])
                self.assertEqual(ranked, list(reversed(range(DOCUMENTS))), told)
            groups = [{"$group": {"_id": None, "number": {"$sum": 1}, "sum": {"$sum": "$_id"}}}]
            expected = [{"_id": None, "number": DOCUMENTS, "sum": DOCUMENTS * (DOCUMENTS - 1) // 2}]
            for _ in range(5):
                # A total is not a cursor that goes on: it may be refused while a shard has no primary.
                totals = wait_until(lambda: self.total(groups), "a total")
                self.assertEqual(totals, expected, f"seed {self.seed}")
        finally:
            self.done.set()
            for thread in threads:
                thread.join()
        self.assertEqual(self.failures, [], f"seed {self.seed}")
        self.settle()
        self.check_cluster(f"seed {self.seed}")


if __name__ == "__main__":
    unittest.main()
