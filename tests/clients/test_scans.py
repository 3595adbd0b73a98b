"""Scans of a sharded collection while its ranges move all the time: every document once.

All that reads or writes many documents is here: cursors, tokens that other cursors go on from, totals, other collections
that pipelines read, writes of many documents. What changes for good is in `test_scan_changes.py`.

`TERNDB_SCAN_DOCUMENTS` sets how many documents there are: some thousands where nobody says so, up to the
million that the design is made for."""

import contextlib
import os
import threading
import unittest
from collections import Counter

import pymongo
from bson.max_key import MaxKey
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
        for name in ("scans", "virtualScansOpened", "batchesRepeated", "hops"):
            self.assertGreater(counters[name], 0, name)

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

    def while_moving(self, work):
        """Does something until a range has moved meanwhile; whether one does is chance, so that it is not asked for
        ever."""
        for _ in range(10):
            before = self.mover.moved
            work()
            if self.mover.moved > before:
                return

    def test_other_collections_of_a_pipeline(self):
        """Both sides of a `$lookup`, `$unionWith` and `$facet`."""
        collection, groups = self.collection, self.client.scans.groups
        each = DOCUMENTS // 100
        groups.insert_many([{"_id": group} for group in range(100)])
        join = {"$lookup": {"from": "c", "localField": "_id", "foreignField": "group", "as": "found"}}
        joined = {group: list(range(group, DOCUMENTS, 100)) for group in range(100)}

        def from_outside():
            found = groups.aggregate([join], batchSize=10)
            self.assertEqual({one["_id"]: sorted(bird["_id"] for bird in one["found"]) for one in found}, joined)

        def by_pipeline():
            inner = [{"$match": {"$expr": {"$eq": ["$group", "$$group"]}}}, {"$count": "n"}]
            few = [{"$match": {"_id": {"$lt": 5}}}]
            lookup = {"$lookup": {"from": "c", "let": {"group": "$_id"}, "pipeline": inner, "as": "found"}}
            found = groups.aggregate([*few, lookup])
            self.assertEqual([one["found"] for one in found], [[{"n": each}]] * 5)

        def from_inside():
            lookup = {"$lookup": {"from": "groups", "localField": "group", "foreignField": "_id", "as": "found"}}
            found = collection.aggregate([lookup, {"$project": {"found": 1}}], batchSize=max(DOCUMENTS // 20, 1))
            seen = [(one["_id"], [group["_id"] for group in one["found"]]) for one in found]
            self.assertEqual(sorted(seen), [(number, [number % 100]) for number in range(DOCUMENTS)])

        def united():
            found = groups.aggregate([{"$unionWith": "c"}, {"$group": {"_id": None, "n": {"$sum": 1}}}])
            self.assertEqual(list(found), [{"_id": None, "n": DOCUMENTS + 100}])
            union = {"$unionWith": {"coll": "c", "pipeline": [{"$match": {"group": {"$lt": 10}}}]}}
            found = collection.aggregate([{"$project": {"_id": 1}}, union, {"$project": {"_id": 1}}])
            numbers = Counter(one["_id"] for one in found)
            self.assertEqual(numbers, Counter(range(DOCUMENTS)) + Counter(n for n in range(DOCUMENTS) if n % 100 < 10))

        def faceted():
            sums = [{"$group": {"_id": None, "sum": {"$sum": "$_id"}}}]
            facets = {"number": [{"$count": "n"}], "sum": sums, "first": [{"$sort": {"k": 1}}, {"$limit": 2}]}
            [found] = collection.aggregate([{"$facet": facets}])
            self.assertEqual(found["number"], [{"n": DOCUMENTS}])
            self.assertEqual(found["sum"], [{"_id": None, "sum": DOCUMENTS * (DOCUMENTS - 1) // 2}])
            self.assertEqual([one["_id"] for one in found["first"]], [0, 1])

        for work in (from_outside, by_pipeline, from_inside, united, faceted):
            with self.subTest(work.__name__):
                self.while_moving(work)

    def test_counts_and_values(self):
        collection = self.collection
        half = DOCUMENTS // 2

        def counted(**options):
            return collection.database.command("count", "c", **options)["n"]

        def counts():
            self.assertEqual(counted(limit=half), half)
            self.assertEqual(counted(skip=10), DOCUMENTS - 10)
            self.assertEqual(counted(skip=DOCUMENTS - 7, limit=half), 7)
            self.assertEqual(counted(skip=DOCUMENTS + 1), 0)
            self.assertEqual(counted(query={"group": {"$lt": 10}}, skip=5, limit=20), 20)
            self.assertEqual(collection.count_documents({"tags": 50}, skip=3), DOCUMENTS - 3)

        def values():
            self.assertEqual(collection.distinct("tags"), [*range(11), 50])
            self.assertEqual(collection.distinct("_id", {"group": 7}), list(range(7, DOCUMENTS, 100)))

        for work in (counts, values):
            with self.subTest(work.__name__):
                self.while_moving(work)

    def test_writes_of_many_documents(self):
        """Each document once, and counted once."""
        collection = self.collection
        rounds = 0

        def update():
            nonlocal rounds
            rounds += 1
            result = collection.update_many({"group": {"$gte": 10}}, {"$inc": {"changed": 1}})
            matched = DOCUMENTS - DOCUMENTS // 10
            self.assertEqual((result.matched_count, result.modified_count), (matched, matched))

        def delete():
            self.mover.wait_for(1)
            for group in range(50, 60):
                self.assertEqual(collection.delete_many({"group": group}).deleted_count, DOCUMENTS // 100)

        self.while_moving(update)
        wrong = {"$or": [{"group": {"$lt": 10}, "changed": {"$exists": True}}]}
        wrong["$or"].append({"group": {"$gte": 10}, "changed": {"$ne": rounds}})
        self.assertEqual(list(collection.find(wrong).limit(3)), [])
        delete()
        left = [number for number in range(DOCUMENTS) if not 50 <= number % 100 < 60]
        self.check_all([found["_id"] for found in collection.find({}, {"_id": 1})], left)

    def test_tokens(self):
        """Every batch is a cursor of its own, which goes on from the token of the one before."""
        size = max(DOCUMENTS // 20, 1)
        rank = list(reversed(range(DOCUMENTS)))
        window = {"skip": DOCUMENTS // 10, "limit": DOCUMENTS // 2}
        cases = [
            ({}, None),
            ({"sort": {"rank": 1}}, rank),
            ({"sort": {"rank": 1}, **window}, rank[DOCUMENTS // 10 :][: DOCUMENTS // 2]),
            ({"filter": {"tags": {"$gte": 3}}, "hint": {"tags": 1}}, None),
        ]
        for at, (options, expected) in enumerate(cases):
            found, batch, token = [], None, None
            while batch != []:
                names = ("$_resumeAfter", "$_startAt")
                after = {names[at % 2]: token} if token else {}
                asked = {"batchSize": size, "singleBatch": True, "$_requestResumeToken": True}
                cursor = self.client.scans.command({"find": "c", **options, **asked, **after})["cursor"]
                batch, token = cursor["firstBatch"], cursor["postBatchResumeToken"]
                found.extend(one["_id"] for one in batch)
                if len(found) == 5 * size:
                    self.mover.wait_for(1)
            if expected is None:
                self.check_all(found, range(DOCUMENTS))
            else:
                self.assertEqual(found, expected)

    def write_one(self, collection, number):
        at = number * 7919 % DOCUMENTS
        collection.update_one({"k": at}, {"$inc": {"other": 1}})
        collection.insert_one({"_id": f"extra {number}", "k": at + 0.5, "group": 1000, "rank": at + 0.5})
        if number > 20:
            earlier = (number - 20) * 7919 % DOCUMENTS + 0.5
            collection.delete_one({"_id": f"extra {number - 20}", "k": earlier})


@only_terndb
class CursorsAreShown(ClusterProgram):
    """`$currentOp` shows what a cursor began with, and how far each of its streams has come."""

    def setUp(self):
        super().setUp()
        self.shard("scans.c", k=1)
        self.client.scans.c.insert_many([{"_id": number, "k": number} for number in range(1000)])
        entry = self.client.config.collections.find_one({"_id": "scans.c"})
        self.uuid = entry["uuid"]
        [chunk] = self.client.config.chunks.find({"uuid": self.uuid})
        self.home = chunk["shard"]
        self.others = [shard for shard in SHARDS if shard != self.home]
        self.move(500, self.others[0])

    def move(self, low, shard):
        self.client.admin.command("moveRange", "scans.c", min={"k": low}, toShard=shard)

    def shown(self):
        pipeline = [{"$currentOp": {"localOps": True, "idleCursors": True}}, {"$match": {"ns": "scans.c"}}]
        [operation] = self.client.admin.aggregate(pipeline)
        self.assertEqual(operation["type"], "idleCursor")
        return operation["cursor"]["elasticScan"]

    def counters(self):
        return self.client.admin.command("serverStatus")["shardingStatistics"]["elasticScans"]

    def test_streams(self):
        before = self.counters()
        cursor = self.client.scans.c.find(batch_size=100)
        found = [next(cursor)["_id"] for _ in range(50)]
        scan = self.shown()
        self.assertEqual(scan["collectionUUID"], self.uuid)
        base = scan["baseVersion"]
        self.assertEqual({stream["shard"] for stream in scan["streams"]}, {self.home, self.others[0]})
        self.assertEqual([stream["virtual"] for stream in scan["streams"]], [False, False])
        self.check_base(scan)
        # The second range goes on, and then back: every time that it is asked for it is a hop more.
        self.move(500, self.others[1])
        found += [next(cursor)["_id"] for _ in range(600)]
        self.assertEqual(self.shown()["baseVersion"], base, "it stays what it was")
        self.move(500, self.others[0])
        while not self.is_hopping(2):
            found.append(next(cursor)["_id"])
        streams = self.shown()["streams"]
        virtual = [stream for stream in streams if stream["virtual"]]
        self.assertEqual([stream["hops"] for stream in virtual], list(range(1, len(virtual) + 1)))
        self.assertEqual(virtual[-1]["shard"], self.others[0])
        self.assertEqual(virtual[-1]["ranges"]["count"], 1)
        self.assertEqual(virtual[-1]["ranges"]["first"], [{"min": {"k": 500}, "max": {"k": MaxKey()}}])
        # It is shown in one place only.
        [given] = [stream for stream in streams if not stream["virtual"] and stream["shard"] == self.others[0]]
        self.assertEqual(given["ranges"], {"count": 0, "first": []})
        self.assertIn("position", virtual[-1])
        found += [one["_id"] for one in cursor]
        self.assertEqual(sorted(found), list(range(1000)))
        after = self.counters()
        for name in ("scans", "virtualScansOpened", "batchesRepeated", "hops"):
            self.assertGreater(after[name], before[name], name)

    def check_base(self, scan):
        """What is shown of a scan whose ranges have not moved yet."""
        self.assertEqual((scan["order"], scan["streamsOpened"], scan["streamsEnded"]), ("unsorted", 2, 0))
        ranges = {self.home: (MinKey(), 500), self.others[0]: (500, MaxKey())}
        for stream in scan["streams"]:
            low, high = ranges[stream["shard"]]
            first = [{"min": {"k": low}, "max": {"k": high}}]
            self.assertEqual(stream["ranges"], {"count": 1, "first": first})
            self.assertEqual((stream["state"], stream["batches"], stream["results"]), ("under way", 1, 100))
            self.assertIn("position", stream)
            self.assertIn("shardCursor", stream)

    def is_hopping(self, hops):
        return any(stream["hops"] >= hops for stream in self.shown()["streams"])


@only_terndb
class IdleCursors(ClusterProgram):
    """A cursor that nobody reads holds a position and no snapshot: what a shard gave away is removed beside it."""

    def setUp(self):
        super().setUp()
        self.shard("scans.c", k=1)
        self.collection = self.client.scans.c
        self.collection.insert_many([{"_id": number, "k": number, "rank": -number} for number in range(2000)])
        self.collection.create_index("rank")
        [chunk] = self.chunks()
        self.donor = chunk["shard"]
        self.others = [shard for shard in SHARDS if shard != self.donor]
        self.direct = self.connect_to(self.donor)
        # What is removed is kept for nobody.
        names = {"orphanCleanupDelaySecs": 0, "minSnapshotHistoryWindowInSeconds": 0}
        for shard in SHARDS:
            client = self.connect_to(shard)
            for name, value in names.items():
                before = client.admin.command("getParameter", 1, **{name: 1})[name]
                client.admin.command("setParameter", 1, **{name: value})
                self.addCleanup(client.admin.command, "setParameter", 1, **{name: before})

    def chunks(self):
        uuid = self.client.config.collections.find_one({"_id": "scans.c"})["uuid"]
        return list(self.client.config.chunks.find({"uuid": uuid}))

    def connect_to(self, name):
        host = self.client.config.shards.find_one({"_id": name})["host"].split("/")[1]
        client = connect(f"mongodb://{host}/?directConnection=true")
        self.addCleanup(client.close)
        return client

    def give_away(self, low, shard):
        """Moves a range, and sees it removed where it was."""
        self.client.admin.command("moveRange", "scans.c", min={"k": low}, toShard=shard)
        for client in (self.client, self.direct):
            client.admin.command("cleanupOrphaned", "scans.c")
        self.assertEqual(self.direct.config.rangeDeletions.count_documents({}), 0)

    def stored(self):
        """What the donor still has, owned or not."""
        return self.direct.scans.command("validate", "c")["nrecords"]

    def test_deletions_do_not_wait(self):
        size = 100
        router = {
            "as it comes": self.collection.find(batch_size=size),
            "sorted": self.collection.find(batch_size=size).sort("rank", 1),
            "sorted by the shard": self.collection.find(batch_size=size).sort([("rank", 1), ("k", 1)]),
            "made": self.collection.aggregate([{"$project": {"k": 1}}], batchSize=size),
        }
        found = {name: [next(cursor)["_id"] for _ in range(150)] for name, cursor in router.items()}
        direct = self.direct.scans.c.find(batch_size=size)
        for _ in range(150):
            next(direct)
        self.give_away(1000, self.others[0])
        self.give_away(MinKey(), self.others[1])
        self.assertEqual(self.stored(), 0)
        # A shard's own cursor is told that it is over; it kept nobody from anything.
        with self.assertRaises(pymongo.errors.OperationFailure) as killed:
            list(direct)
        self.assertEqual(killed.exception.code, 175)
        for name, cursor in router.items():
            with self.subTest(name):
                found[name] += [one["_id"] for one in cursor]
                self.assertEqual(Counter(found[name]), Counter(range(2000)))
                if name.startswith("sorted"):
                    self.assertEqual(found[name], list(reversed(range(2000))))


@only_terndb
class ManyRanges(ClusterProgram):
    """Hundreds of ranges on each shard, none touching the next: what is asked for stays short while some move."""

    CHUNKS = 900
    DOCUMENTS = 2700

    def setUp(self):
        super().setUp()
        # Zones say where the chunks of an empty collection begin: shard by shard in turns.
        for shard in SHARDS:
            self.client.admin.command("addShardToZone", shard, zone=shard)
        width = self.DOCUMENTS // self.CHUNKS
        bounds = [MinKey(), *range(width, self.DOCUMENTS, width), MaxKey()]
        for at, (low, high) in enumerate(zip(bounds, bounds[1:])):
            zone = SHARDS[at % len(SHARDS)]
            self.client.admin.command("updateZoneKeyRange", "scans.c", min={"k": low}, max={"k": high}, zone=zone)
        self.shard("scans.c", k=1)
        self.collection = self.client.scans.c
        self.collection.insert_many([{"_id": number, "k": number, "rank": -number} for number in range(self.DOCUMENTS)])
        self.collection.create_index("rank")
        uuid = self.client.config.collections.find_one({"_id": "scans.c"})["uuid"]
        self.chunks = list(self.client.config.chunks.find({"uuid": uuid}).sort("min", 1))
        owners = [chunk["shard"] for chunk in self.chunks]
        self.assertEqual(owners, [SHARDS[at % len(SHARDS)] for at in range(self.CHUNKS)])

    def move(self, at):
        """The chunk goes on to the next shard."""
        chunk = self.chunks[at]
        chunk["shard"] = SHARDS[(SHARDS.index(chunk["shard"]) + 1) % len(SHARDS)]
        self.client.admin.command(
            "moveRange", "scans.c", min=chunk["min"], max=chunk["max"], toShard=chunk["shard"]
        )

    def test_every_document_comes_once(self):
        for sort in (None, [("rank", 1)]):
            with self.subTest(sort):
                cursor = self.collection.find(batch_size=200, sort=sort)
                found = [next(cursor)["_id"] for _ in range(300)]
                for at in (1, 2, 601):
                    self.move(at)
                found += [next(cursor)["_id"] for _ in range(1000)]
                self.move(1)
                found += [one["_id"] for one in cursor]
                self.assertEqual(Counter(found), Counter(range(self.DOCUMENTS)))
                if sort:
                    self.assertEqual(found, list(reversed(range(self.DOCUMENTS))))

    def test_tokens_are_short(self):
        found, batch, token = [], None, None
        while batch != []:
            after = {"$_resumeAfter": token} if token else {}
            asked = {"batchSize": 500, "singleBatch": True, "$_requestResumeToken": True}
            cursor = self.client.scans.command({"find": "c", **asked, **after})["cursor"]
            batch, token = cursor["firstBatch"], cursor["postBatchResumeToken"]
            found += [one["_id"] for one in batch]
            # Not one of hundreds of ranges, but those that have moved.
            self.assertLess(len(token["terndbScan"]), 400)
            self.move(len(found) % 10)
        self.assertEqual(Counter(found), Counter(range(self.DOCUMENTS)))


@only_terndb
class PartialResults(ClusterProgram):
    """Groups of all shards that a router does not hold in memory go through its files."""

    DOCUMENTS = 4000
    OPTIONS = ("--set-parameter", "internalDocumentSourceGroupMaxMemoryBytes=150000")

    def setUp(self):
        super().setUp()
        self.shard("scans.c", k="hashed")
        self.collection = self.client.scans.c
        documents = [{"_id": number, "k": number, "g": number % 1000, "t": "x" * 300} for number in range(self.DOCUMENTS)]
        self.collection.insert_many(documents)

    def spilled(self):
        return self.client.admin.command("serverStatus")["shardingStatistics"]["elasticScans"]["streamsSpilled"]

    def test_groups(self):
        before = self.spilled()
        group = {"_id": "$g", "n": {"$sum": 1}, "ids": {"$push": "$_id"}, "t": {"$first": "$t"}}
        found = list(self.collection.aggregate([{"$group": group}], batchSize=50))
        self.assertGreater(self.spilled(), before)
        self.assertEqual(len(found), 1000)
        for one in found:
            expected = list(range(one["_id"], self.DOCUMENTS, 1000))
            self.assertEqual((one["n"], sorted(one["ids"]), one["t"]), (4, expected, "x" * 300))
        self.assertEqual(list((self.directory / "data" / "scratch").iterdir()), [])
        with self.assertRaises(pymongo.errors.OperationFailure) as refused:
            self.collection.aggregate([{"$group": group}], allowDiskUse=False)
        self.assertEqual(refused.exception.code, 292)


if __name__ == "__main__":
    unittest.main()
