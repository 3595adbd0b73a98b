"""Scans of a sharded collection while its ranges move all the time: every document once.

`TERNDB_SCAN_DOCUMENTS` sets how many documents there are: some thousands where nobody says so, up to the
million that the design is made for."""

import contextlib
import os
import threading
import unittest
from collections import Counter

import pymongo
from bson.min_key import MinKey
from pymongo.errors import PyMongoError

from server import connect, only_terndb
from test_cluster import ClusterProgram

DOCUMENTS = int(os.environ.get("TERNDB_SCAN_DOCUMENTS", "6000"))
RANGES = 8
SHARDS = ["shard0", "shard1", "shard2"]


class Mover(threading.Thread):
    """Sends ranges from shard to shard until it is told to stop."""

    def __init__(self, uri, namespace, bounds):
        super().__init__(daemon=True)
        self.uri = uri
        self.namespace = namespace
        self.bounds = bounds
        self.stopping = threading.Event()
        self.moved = 0
        self.moves_seen = threading.Condition()
        self.refused = None

    def run(self):
        with connect(self.uri) as client:
            turn = 0
            while not self.stopping.is_set():
                low = self.bounds[turn % len(self.bounds)]
                # Each range goes on to the next shard, round and round.
                shard = SHARDS[(turn % len(self.bounds) + turn // len(self.bounds)) % len(SHARDS)]
                turn += 1
                self.move(client, low, shard)

    def move(self, client, low, shard):
        try:
            client.admin.command("moveRange", self.namespace, min={"k": low}, toShard=shard)
        except PyMongoError as refused:
            # The next one may go; if none does, `wait_for` tells this.
            self.refused = refused
            return
        with self.moves_seen:
            self.moved += 1
            self.moves_seen.notify_all()

    def wait_for(self, moves):
        """Until so many more ranges have moved."""
        with self.moves_seen:
            target = self.moved + moves
            done = self.moves_seen.wait_for(lambda: self.moved >= target, timeout=120)
        assert done, f"only {self.moved} ranges moved: {self.refused!r}"

    def stop(self):
        self.stopping.set()
        self.join(120)
        assert not self.is_alive(), "a move does not end"


def document(number):
    # Keys are spread over the ranges; many documents have the same `group`.
    return {"_id": number, "k": number, "group": number % 100, "rank": -number, "tags": [number % 7, number % 11, 50]}


@only_terndb
class Scans(ClusterProgram):
    def setUp(self):
        super().setUp()
        self.shard("scans.c", k=1)
        width = DOCUMENTS // RANGES
        bounds = [MinKey()] + [width * part for part in range(1, RANGES)]
        for low in bounds[1:]:
            self.client.admin.command("split", "scans.c", middle={"k": low})
        self.collection = self.client.scans.c
        for start in range(0, DOCUMENTS, 5000):
            end = min(start + 5000, DOCUMENTS)
            self.collection.insert_many([document(number) for number in range(start, end)], ordered=False)
        self.collection.create_indexes(
            [
                pymongo.IndexModel([("group", 1)]),
                pymongo.IndexModel([("rank", 1)]),
                pymongo.IndexModel([("tags", 1)]),
            ]
        )
        self.mover = Mover(self.server.uri, "scans.c", bounds)
        self.mover.start()
        self.addCleanup(self.mover.stop)

    def tearDown(self):
        # While ranges still move.
        super().tearDown()
        self.mover.stop()
        super().tearDown()

    def numbers(self, cursor, key=lambda found: found["_id"]):
        """All results; now and then it waits until ranges have moved."""
        found = []
        every = max(DOCUMENTS // 3, 1)
        for result in cursor:
            found.append(key(result))
            if len(found) % every == 0:
                self.mover.wait_for(1)
        return found

    def check_all(self, found, expected):
        self.assertEqual(len(found), len(expected))
        self.assertEqual(Counter(found), Counter(expected))

    def test_every_document_comes_once(self):
        collection = self.collection
        everything = range(DOCUMENTS)
        size = max(DOCUMENTS // 40, 1)
        self.check_all(self.numbers(collection.find(batch_size=size)), everything)
        # Sorted by an index, by the shards themselves, and with a window.
        ranked = self.numbers(collection.find(batch_size=size).sort("rank", 1))
        self.assertEqual(ranked, list(reversed(everything)))
        alike = self.numbers(collection.find(batch_size=size).sort([("group", -1), ("_id", 1)]))
        self.assertEqual(alike, sorted(everything, key=lambda number: (-(number % 100), number)))
        window = collection.find(batch_size=size).sort("k", 1).skip(DOCUMENTS // 10).limit(DOCUMENTS // 2)
        start = DOCUMENTS // 10
        self.assertEqual(self.numbers(window), list(range(start, start + DOCUMENTS // 2)))
        # By an index, from the index alone, by one with several entries for each document, and by
        # two at once.
        some = [number for number in everything if number % 100 >= 50]
        self.check_all(self.numbers(collection.find({"group": {"$gte": 50}}, batch_size=size)), some)
        covered = collection.find({"rank": {"$lte": 0}}, {"_id": 0, "rank": 1}, batch_size=size)
        self.check_all(self.numbers(covered, key=lambda found: -found["rank"]), everything)
        several = collection.find({"tags": {"$gte": 3}}, batch_size=size).hint([("tags", 1)])
        self.check_all(self.numbers(several), everything)
        either = collection.find({"$or": [{"group": {"$lt": 50}}, {"tags": 50}]}, batch_size=size)
        self.check_all(self.numbers(either), everything)
        counters = self.client.admin.command("serverStatus")["shardingStatistics"]["elasticScans"]
        self.assertGreater(counters["virtualScansOpened"], 0)

    def test_totals_are_the_truth(self):
        collection = self.collection
        for _ in range(5):
            self.mover.wait_for(1)
            self.assertEqual(collection.count_documents({}), DOCUMENTS)
            counted = collection.database.command("count", "c", query={"group": {"$lt": 10}})["n"]
            self.assertEqual(counted, DOCUMENTS // 10)
            self.assertEqual(collection.distinct("group"), list(range(100)))
            groups = collection.aggregate([{"$group": {"_id": "$group", "n": {"$sum": 1}, "sum": {"$sum": "$_id"}}}])
            expected = {group: (0, 0) for group in range(100)}
            for number in range(DOCUMENTS):
                count, total = expected[number % 100]
                expected[number % 100] = (count + 1, total + number)
            self.assertEqual({one["_id"]: (one["n"], one["sum"]) for one in groups}, expected)
        size = max(DOCUMENTS // 40, 1)
        unwound = collection.aggregate([{"$unwind": "$tags"}, {"$project": {"tags": 1}}], batchSize=size)
        found = self.numbers(unwound, key=lambda one: (one["_id"], one["tags"]))
        each = [(number, tag) for number in range(DOCUMENTS) for tag in document(number)["tags"]]
        self.check_all(found, each)

    def test_documents_that_change_meanwhile(self):
        """What is there throughout comes once, whatever else is written."""
        stopping = threading.Event()

        def write():
            with connect(self.server.uri) as client:
                number = 0
                while not stopping.is_set():
                    number += 1
                    # What becomes of the writes themselves is asked elsewhere.
                    with contextlib.suppress(PyMongoError):
                        self.write_one(client.scans.c, number)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        try:
            size = max(DOCUMENTS // 40, 1)
            for sort in (None, [("rank", 1)]):
                found = self.numbers(self.collection.find(batch_size=size, sort=sort))
                stable = [number for number in found if isinstance(number, int)]
                self.check_all(stable, range(DOCUMENTS))
                if sort:
                    self.assertEqual(stable, list(reversed(range(DOCUMENTS))))
        finally:
            stopping.set()
            writer.join(120)

    def write_one(self, collection, number):
        at = number * 7919 % DOCUMENTS
        collection.update_one({"k": at}, {"$inc": {"other": 1}})
        collection.insert_one({"_id": f"extra {number}", "k": at + 0.5, "group": 1000, "rank": at + 0.5})
        if number > 20:
            earlier = (number - 20) * 7919 % DOCUMENTS + 0.5
            collection.delete_one({"_id": f"extra {number - 20}", "k": earlier})


if __name__ == "__main__":
    unittest.main()
