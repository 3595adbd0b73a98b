"""Scans over shards of three members, while ranges move all the time and members are killed.

Sorted and unsorted, of primaries and of secondaries: a cursor goes on at another member from where it stood, every
document that was there throughout comes once, and totals are the truth. A router that is killed is replaced by another
one, which goes on from the token of the last batch. `TERNDB_SCAN_DOCUMENTS` sets how many documents
there are, up to the million that the design is made for; `TERNDB_SCAN_KILLS` how many members are killed in each scan.
"""

import os
import signal
import unittest

import test_moves
from pymongo import ReadPreference
from pymongo.errors import BulkWriteError, PyMongoError

from server import DEADLINE_S, connect, only_terndb, wait_until

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
            wait_until(lambda: self.fill(numbers), f"documents from {start} on")  # noqa: B023
        wait_until(self.index, "an index")
        self.moved, self.not_moved, self.killed = [], [], 0
        self.kills_wanted = 0

    def fill(self, numbers):
        """On a busy machine primaries change by themselves; what is there already is refused when it comes again."""
        birds = [{"_id": number, "k": number % test_moves.KEYS, "rank": -number} for number in numbers]
        try:
            self.birds.insert_many(birds, ordered=False)
        except BulkWriteError as refused:
            errors = refused.details["writeErrors"]
            return bool(errors) and all(error["code"] == 11000 for error in errors)
        except PyMongoError:
            return False
        return True

    def fill_alone(self, alone):
        try:
            alone.delete_many({})
            alone.insert_many([{"_id": number, "rank": -number} for number in range(DOCUMENTS)])
        except PyMongoError:
            return False
        return True

    def index(self):
        try:
            return self.birds.create_index("rank")
        except PyMongoError:
            return None

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

    def test_cursors_outlive_their_primaries(self):
        """What is read at one time, and what one shard answers alone, goes on at the members that are left."""
        self.insist("moveRange", "fleet.birds", min={"k": test_moves.KEYS // 2}, toShard="shard1")
        alone = self.client.fleet.alone
        wait_until(lambda: self.fill_alone(alone), "documents that are not sharded")
        few = {"$match": {"k": {"$lt": test_moves.KEYS // 20}}}
        group = {"$group": {"_id": "$_id", "n": {"$sum": 1}}}
        some = sorted(number for number in range(DOCUMENTS) if number % test_moves.KEYS < test_moves.KEYS // 20)
        size = max(len(some) // 10, 1)
        with self.client.start_session(snapshot=True) as session:
            dated = {"batch_size": DOCUMENTS // 30, "session": session}
            cursors = {
                "snapshot": self.birds.find({}, {"_id": 1}, **dated),
                "sorted snapshot": self.birds.find({}, {"_id": 1}, sort=[("rank", -1)], **dated),
                "made of a snapshot": self.birds.aggregate(
                    [{"$project": {"k": 1}}], batchSize=DOCUMENTS // 30, session=session
                ),
                "groups": self.birds.aggregate([few, group], batchSize=size),
                "alone": alone.find({}, {"_id": 1}, batch_size=DOCUMENTS // 30),
                "sorted alone": alone.find({}, {"_id": 1}, sort=[("rank", -1)], batch_size=DOCUMENTS // 30),
                "groups alone": alone.aggregate([group], batchSize=DOCUMENTS // 30),
                "snapshot alone": alone.find({}, {"_id": 1}, **dated),
            }
            found = {name: [next(cursor)["_id"]] for name, cursor in cursors.items()}
            for shard in self.shards:
                primary = shard.primary()
                primary.stop(signal.SIGKILL)
                shard.primary()
                primary.start()
            for name, cursor in cursors.items():
                with self.subTest(name):
                    found[name] += [bird["_id"] for bird in cursor]
                    expected = some if name == "groups" else list(range(DOCUMENTS))
                    self.assertEqual(sorted(found[name]), expected)
                    if name.startswith("sorted"):
                        self.assertEqual(found[name], expected)

    def total(self, pipeline):
        try:
            return list(self.birds.aggregate(pipeline))
        except PyMongoError:
            return None

    def test_another_router_goes_on(self):
        """A router is killed between two batches: another one goes on from the token, on members that may lag."""
        threads = [self.until_done(part) for part in (self.move, self.kill_member)]
        self.kills_wanted = KILLS
        routers = iter(range(1, 100))
        try:
            for sort in ({}, {"rank": 1}):
                found, batch, token = [], None, None
                while batch != []:
                    cursor = self.batch(sort, token)
                    batch, token = cursor["firstBatch"], cursor["postBatchResumeToken"]
                    found.extend(bird["_id"] for bird in batch)
                    if len(found) == 2 * (DOCUMENTS // 4):
                        self.router.stop(signal.SIGKILL)
                        self.router = self.run_role("router", f"router{next(routers)}")
                        self.client = connect(f"mongodb://127.0.0.1:{self.router.port}")
                        self.addCleanup(self.client.close)
                expected = list(range(DOCUMENTS))
                self.assertEqual(sorted(found, reverse=True), expected[::-1], f"seed {self.seed}")
                if sort:
                    self.assertEqual(found, expected[::-1], f"seed {self.seed}")
        finally:
            self.done.set()
            for thread in threads:
                thread.join()
        self.assertEqual(self.failures, [], f"seed {self.seed}")

    def batch(self, sort, token):
        """One batch, from a token on; whoever is asked while a shard has no primary is refused, and asks again."""
        command = {"find": "birds", "projection": {"rank": 1}, "batchSize": DOCUMENTS // 4, "singleBatch": True}
        command |= {"$_requestResumeToken": True} | ({"sort": sort} if sort else {})
        command |= {"$_resumeAfter": token} if token else {}

        def attempt():
            try:
                return self.client.fleet.command(command, read_preference=ReadPreference.SECONDARY_PREFERRED)["cursor"]
            except PyMongoError:
                return None

        return wait_until(attempt, "a batch")

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
