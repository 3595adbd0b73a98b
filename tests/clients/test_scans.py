"""Scans of a sharded collection while its ranges move all the time: every document once.

All that reads or writes many documents is here: cursors, tokens that other cursors go on from, totals, other collections
that pipelines read, writes of many documents. And what a cursor says whose collection goes away.

`TERNDB_SCAN_DOCUMENTS` sets how many documents there are: some thousands where nobody says so, up to the
million that the design is made for."""

import contextlib
import os
import threading
import time
import unittest
from collections import Counter

import pymongo
from bson.min_key import MinKey
from pymongo.errors import PyMongoError

from server import DEADLINE_S, connect, only_terndb, wait_until
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
class CollectionsThatGoAway(ClusterProgram):
    """A cursor whose collection is not the same any more ends with an error, never as if it had come to its end."""

    def cursor(self, **options):
        """A cursor in the middle of a collection on two shards."""
        self.shard("scans.c", k=1)
        self.fill()
        self.client.scans.c.create_index("rank")
        [chunk] = self.client.config.chunks.find({"uuid": self.uuid()})
        to = "shard1" if chunk["shard"] != "shard1" else "shard0"
        self.client.admin.command("moveRange", "scans.c", min={"k": 500}, toShard=to)
        cursor = self.client.scans.c.find(batch_size=100, **options)
        for _ in range(150):
            next(cursor)
        return cursor

    def fill(self):
        self.client.scans.c.insert_many([{"_id": number, "k": number, "rank": number} for number in range(1000)])

    def uuid(self):
        return self.client.config.collections.find_one({"_id": "scans.c"})["uuid"]

    def check_killed(self, cursor):
        with self.assertRaises(pymongo.errors.OperationFailure) as killed:
            list(cursor)
        self.assertEqual((killed.exception.code, killed.exception.details["codeName"]), (175, "QueryPlanKilled"))

    def test_dropped(self):
        cursor = self.cursor()
        self.client.scans.drop_collection("c")
        self.check_killed(cursor)

    def test_dropped_before_the_first_batch(self):
        """Nobody has seen anything, but the cursor is the client's."""
        self.cursor().close()
        pipelines = [[], [{"$match": {"k": {"$lt": 500}}}, {"$lookup": {"from": "d", "as": "d", "pipeline": []}}]]
        find = self.client.scans.command("find", "c", batchSize=0)["cursor"]
        made = [
            self.client.scans.command("aggregate", "c", pipeline=pipeline, cursor={"batchSize": 0})["cursor"]
            for pipeline in pipelines
        ]
        self.client.scans.drop_collection("c")
        for cursor in (find, *made):
            with self.assertRaises(pymongo.errors.OperationFailure) as killed:
                while cursor["id"]:
                    cursor = self.client.scans.command("getMore", cursor["id"], collection="c")["cursor"]
            self.assertEqual(killed.exception.code, 175)

    def test_tokens_of_what_is_gone(self):
        drops = [lambda: self.client.scans.drop_collection("c"), lambda: self.client.drop_database("scans")]
        for drop in drops:
            self.cursor().close()
            ask = {"batchSize": 100, "$_requestResumeToken": True}
            first = self.client.scans.command("find", "c", **ask)["cursor"]
            drop()
            for field in ("$_resumeAfter", "$_startAt"):
                with self.assertRaises(pymongo.errors.OperationFailure) as refused:
                    self.client.scans.command("find", "c", **ask, **{field: first["postBatchResumeToken"]})
                self.assertEqual(refused.exception.code, 175)

    def test_renamed(self):
        cursor = self.cursor()
        self.client.admin.command("renameCollection", "scans.c", to="scans.d")
        self.check_killed(cursor)

    def test_another_of_the_same_name(self):
        cursor = self.cursor()
        self.client.scans.drop_collection("c")
        self.shard("scans.c", k=1)
        self.fill()
        self.check_killed(cursor)

    def test_another_that_is_not_sharded(self):
        cursor = self.cursor()
        self.client.scans.drop_collection("c")
        self.fill()
        self.check_killed(cursor)

    def test_an_index_that_is_dropped(self):
        """As of a `mongod`: the plan is gone, whether somebody asked for it or not."""
        for options in ({"hint": "rank_1"}, {"hint": "rank_1", "sort": [("rank", 1)]}, {"sort": [("rank", 1)]}):
            with self.subTest(options):
                cursor = self.cursor(filter={"rank": {"$gte": 0}}, **options)
                self.client.scans.c.drop_index("rank_1")
                self.check_killed(cursor)
                self.client.scans.drop_collection("c")

    def test_an_index_that_is_dropped_while_a_range_moves(self):
        """What is found elsewhere from the beginning is asked for with the same hint."""
        cursor = self.cursor(filter={"rank": {"$gte": 0}}, hint="rank_1")
        moved = {chunk["shard"] for chunk in self.client.config.chunks.find({"uuid": self.uuid()})}
        [to] = set(SHARDS) - moved
        self.client.admin.command("moveRange", "scans.c", min={"k": 500}, toShard=to)
        self.client.scans.c.drop_index("rank_1")
        self.check_killed(cursor)


@only_terndb
class RefinedKeys(ClusterProgram):
    """A shard key gets another field: nothing moves by that, and cursors and tokens go on where they stood."""

    DOCUMENTS = 1000

    def setUp(self):
        super().setUp()
        self.client.admin.command("enableSharding", "scans", primaryShard="shard0")
        self.shard("scans.c", k=1)
        self.collection = self.client.scans.c
        documents = [{"_id": number, "k": number // 2, "m": number % 7, "rank": -number} for number in range(self.DOCUMENTS)]
        self.collection.insert_many(documents)
        self.collection.create_index([("k", 1), ("m", 1)])
        self.move({"k": 200}, "shard1")
        self.move({"k": 400}, "shard2")

    def move(self, low, to):
        self.client.admin.command("moveRange", "scans.c", min=low, toShard=to)

    def refine(self):
        self.client.admin.command("refineCollectionShardKey", "scans.c", key={"k": 1, "m": 1})

    def check_all(self, found):
        self.assertEqual(Counter(found), Counter(range(self.DOCUMENTS)))

    def test_cursors(self):
        with self.client.start_session(snapshot=True) as session:
            cursors = {
                "unsorted": self.collection.find(batch_size=50),
                "sorted": self.collection.find(batch_size=50, sort=[("rank", 1)]),
                "by index": self.collection.find({"k": {"$gte": 0}}, batch_size=50, hint="k_1_m_1"),
                "covered": self.collection.find({"k": {"$gte": 0}}, {"_id": 0, "k": 1}, batch_size=50),
                "pipeline": self.collection.aggregate([{"$project": {"m": 0}}], batchSize=50),
                "groups": self.collection.aggregate([{"$group": {"_id": "$_id"}}], batchSize=50),
                "snapshot": self.collection.find(batch_size=50, session=session),
            }
            read = {name: lambda one: one["_id"] for name in cursors} | {"covered": lambda one: one["k"]}
            found = {name: [read[name](next(cursor)) for _ in range(60)] for name, cursor in cursors.items()}
            # A range that is asked for by name, before and after.
            self.move({"k": 100}, "shard2")
            for name, cursor in cursors.items():
                found[name] += [read[name](next(cursor)) for _ in range(60)]
            self.refine()
            for name, cursor in cursors.items():
                found[name] += [read[name](next(cursor)) for _ in range(60)]
            # Its bounds lie between two documents of the same `k`.
            self.move({"k": 450, "m": 3}, "shard0")
            for name, cursor in cursors.items():
                with self.subTest(name):
                    found[name] += [read[name](one) for one in cursor]
                    if name == "covered":
                        self.assertEqual(sorted(found[name]), [number // 2 for number in range(self.DOCUMENTS)])
                    else:
                        self.check_all(found[name])
        self.assertEqual(found["sorted"], list(reversed(range(self.DOCUMENTS))))

    def test_tokens(self):
        for sort in ({}, {"rank": 1}):
            with self.subTest(sort):
                found, token = [], None
                for round in range(self.DOCUMENTS):
                    ask = {"batchSize": 70, "sort": sort, "$_requestResumeToken": True}
                    if token is not None:
                        ask["$_resumeAfter"] = token
                    cursor = self.client.scans.command("find", "c", **ask)["cursor"]
                    if not cursor["firstBatch"]:
                        break
                    found += [one["_id"] for one in cursor["firstBatch"]]
                    token = cursor["postBatchResumeToken"]
                    if cursor["id"]:
                        self.client.scans.command("killCursors", "c", cursors=[cursor["id"]])
                    if round == 2:
                        self.move({"k": 100}, "shard2")
                    if round == 4:
                        self.refine()
                    if round == 6:
                        self.move({"k": 450, "m": 3}, "shard0")
                self.check_all(found)
                self.tearDown()
                self.setUp()


@only_terndb
class NotSharded(ClusterProgram):
    """Cursors on a collection that is not sharded go on where its database has moved to, and end with it."""

    DOCUMENTS = 1000

    def setUp(self):
        super().setUp()
        self.client.admin.command("enableSharding", "scans", primaryShard="shard0")
        self.fill()

    def fill(self):
        documents = [{"_id": number, "rank": -number} for number in range(self.DOCUMENTS)]
        self.client.scans.c.insert_many(documents)
        self.client.scans.c.create_index("rank")

    def cursors(self):
        collection = self.client.scans.c
        return {
            "unsorted": collection.find(batch_size=50),
            "sorted": collection.find(batch_size=50, sort=[("rank", 1)], projection={"_id": 1}),
            "sorted in memory": collection.find({}, {"rank": 0}, batch_size=50, sort=[("rank", 1), ("_id", 1)]),
            "some": collection.find(batch_size=50, sort=[("_id", 1)], skip=10, limit=900),
            "pipeline": collection.aggregate([{"$project": {"_id": 1}}], batchSize=50),
            "sorted pipeline": collection.aggregate([{"$sort": {"rank": 1}}], batchSize=50),
            "groups": collection.aggregate([{"$group": {"_id": "$_id", "n": {"$sum": 1}}}], batchSize=50),
        }

    def test_the_database_moves(self):
        cursors = self.cursors()
        found = {name: [next(cursor)["_id"] for _ in range(60)] for name, cursor in cursors.items()}
        for to in ("shard1", "shard2"):
            self.client.admin.command("movePrimary", "scans", to=to)
            for name, cursor in cursors.items():
                found[name] += [next(cursor)["_id"] for _ in range(120)]
        for name, cursor in cursors.items():
            with self.subTest(name):
                found[name] += [one["_id"] for one in cursor]
                expected = list(range(self.DOCUMENTS))
                if name == "some":
                    self.assertEqual(found[name], expected[10:910])
                elif name.startswith("sorted"):
                    self.assertEqual(found[name], expected[::-1])
                else:
                    self.assertEqual(Counter(found[name]), Counter(expected))

    def test_what_is_gone(self):
        def make_anew():
            self.client.scans.drop_collection("c")
            self.fill()

        def make_anew_elsewhere():
            make_anew()
            self.client.admin.command("movePrimary", "scans", to="shard1")

        ends = {
            "dropped": lambda: self.client.scans.drop_collection("c"),
            "made anew": make_anew,
            "made anew elsewhere": make_anew_elsewhere,
            "renamed": lambda: self.client.admin.command("renameCollection", "scans.c", to="scans.d"),
            "with its database": lambda: self.client.drop_database("scans"),
        }
        for how, end in ends.items():
            self.setUp()
            cursors = self.cursors()
            for cursor in cursors.values():
                next(cursor)
            end()
            for name, cursor in cursors.items():
                # Groups are all at the router, and what is sorted may be.
                if name != "groups":
                    with self.subTest(f"{name}, {how}"):
                        with self.assertRaises(pymongo.errors.OperationFailure) as killed:
                            list(cursor)
                        self.assertEqual(killed.exception.code, 175)


@only_terndb
class Placements(ClusterProgram):
    """Two ranges on two shards; what is read while they go to and fro and become one."""

    def setUp(self):
        super().setUp()
        self.shard("scans.c", k=1)
        self.collection = self.client.scans.c
        documents = [{"_id": number, "k": number, "rank": -number, "g": number // 2} for number in range(1000)]
        self.collection.insert_many(documents)
        uuid = self.client.config.collections.find_one({"_id": "scans.c"})["uuid"]
        self.by_uuid = {"uuid": uuid}
        [chunk] = self.client.config.chunks.find(self.by_uuid)
        self.home = chunk["shard"]
        self.others = [shard for shard in SHARDS if shard != self.home]
        self.move(500, self.others[0])

    def move(self, low, shard):
        self.client.admin.command("moveRange", "scans.c", min={"k": low}, toShard=shard)

    def merge(self):
        """All of it on one shard, and one chunk."""
        for chunk in list(self.client.config.chunks.find({**self.by_uuid, "shard": {"$ne": self.home}})):
            self.client.admin.command(
                "moveRange", "scans.c", min=chunk["min"], max=chunk["max"], toShard=self.home
            )
        chunks = list(self.client.config.chunks.find(self.by_uuid).sort("min", 1))
        self.client.admin.command("mergeChunks", "scans.c", bounds=[chunks[0]["min"], chunks[-1]["max"]])
        [chunk] = self.client.config.chunks.find(self.by_uuid)
        return chunk

    def batch(self, token=None, **options):
        after = {"$_resumeAfter": token} if token is not None else {}
        asked = {"batchSize": 100, "singleBatch": True, "$_requestResumeToken": True}
        cursor = self.client.scans.command({"find": "c", **asked, **options, **after})["cursor"]
        return [one["_id"] for one in cursor["firstBatch"]], cursor["postBatchResumeToken"]

    def read_on(self, found, token, **options):
        while True:
            batch, token = self.batch(token, **options)
            if not batch:
                return found, token
            found += batch

    def test_tokens_outlive_merged_chunks(self):
        for options in ({}, {"sort": {"rank": 1}}):
            with self.subTest(options):
                found, token = self.batch(**options)
                chunk = self.merge()
                owners = {one["shard"] for part in chunk["parts"] for one in part["history"]}
                self.assertEqual(owners, {self.home, self.others[0]})
                # Another router would ask the config server, too.
                self.client.admin.command("flushRouterConfig", 1)
                found, _ = self.read_on(found, token, **options)
                self.assertEqual(Counter(found), Counter(range(1000)))
                self.move(500, self.others[0])

    def test_snapshots_before_chunks_were_merged(self):
        time = self.client.scans.command("find", "c", limit=1)["operationTime"]
        self.merge()
        self.client.admin.command("flushRouterConfig", 1)
        concern = {"level": "snapshot", "atClusterTime": time}
        reply = self.client.scans.command("find", "c", batchSize=1000, readConcern=concern)
        self.assertEqual(sorted(one["_id"] for one in reply["cursor"]["firstBatch"]), list(range(1000)))

    def test_tokens_stay_with_their_query(self):
        sort = {"sort": {"rank": 1}}
        found, token = self.batch(**sort)
        cases = ({}, {"sort": {"rank": -1}}, {**sort, "filter": {"k": {"$gte": 0}}}, {**sort, "hint": {"_id": 1}})
        for options in cases:
            with self.subTest(options), self.assertRaises(pymongo.errors.OperationFailure) as refused:
                self.batch(token, **options)
            details = refused.exception.details
            self.assertEqual((details["code"], details["codeName"]), (260, "InvalidResumeToken"))
        found, end = self.read_on(found, token, **sort)
        self.assertEqual(found, list(reversed(range(1000))))
        for _ in range(2):
            batch, end = self.batch(end, **sort)
            self.assertEqual(batch, [])

    def test_snapshots_while_ranges_move(self):
        """Whoever owned a range at a time is read on, whatever becomes of it."""
        with self.client.start_session(snapshot=True) as session:
            cursors = {
                "as it comes": self.collection.find(batch_size=100, session=session),
                "sorted": self.collection.find(batch_size=100, session=session).sort("rank", 1),
                "one shard": self.collection.find({"k": {"$lt": 500}}, batch_size=100, session=session),
                "made": self.collection.aggregate([{"$project": {"k": 1}}], batchSize=100, session=session),
            }
            found = {name: [next(cursor)["_id"] for _ in range(50)] for name, cursor in cursors.items()}
            self.move(500, self.others[1])
            self.move(MinKey(), self.others[1])
            self.collection.delete_many({"k": {"$gte": 100}})
            for name, cursor in cursors.items():
                with self.subTest(name):
                    found[name] += [one["_id"] for one in cursor]
                    self.assertEqual(Counter(found[name]), Counter(range(500 if name == "one shard" else 1000)))

    def test_one_shard_that_gives_its_range_away(self):
        few = {"$match": {"k": {"$lt": 400}}}
        group = {"$group": {"_id": "$g", "n": {"$sum": 1}}}
        wide = "x" * 200_000
        self.collection.update_many({"k": {"$lt": 100}}, {"$set": {"wide": wide}})
        self.collection.create_index("rank")
        cursors = {
            "groups": self.collection.aggregate([few, group], batchSize=50),
            "sorted groups": self.collection.aggregate([few, group, {"$sort": {"_id": -1}}], batchSize=50),
            # What does not fit into one batch although it is asked for so.
            "sorted by what nobody gets": self.collection.find({"k": {"$lt": 100}}, {"wide": 1})
            .sort("rank", 1)
            .hint("rank_1")
            .limit(100),
        }
        found = {name: [next(cursor)["_id"]] for name, cursor in cursors.items()}
        self.move(MinKey(), self.others[1])
        for name, cursor in cursors.items():
            found[name] += [one["_id"] for one in cursor]
        self.assertEqual(sorted(found["groups"]), list(range(200)))
        self.assertEqual(found["sorted groups"], list(reversed(range(200))))
        self.assertEqual(found["sorted by what nobody gets"], list(reversed(range(100))))


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
        self.assertEqual(virtual[-1]["ranges"], 1)
        self.assertIn("position", virtual[-1])
        found += [one["_id"] for one in cursor]
        self.assertEqual(sorted(found), list(range(1000)))
        after = self.counters()
        for name in ("scans", "virtualScansOpened", "batchesRepeated", "hops"):
            self.assertGreater(after[name], before[name], name)

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
    """Thousands of ranges on each shard, none touching the next: what is asked for stays short while some move."""

    CHUNKS = 3000
    DOCUMENTS = 3000

    def setUp(self):
        super().setUp()
        self.client.admin.command("shardCollection", "scans.c", key={"k": "hashed"}, numInitialChunks=self.CHUNKS)
        self.collection = self.client.scans.c
        self.collection.insert_many([{"_id": number, "k": number, "rank": -number} for number in range(self.DOCUMENTS)])
        self.collection.create_index("rank")
        uuid = self.client.config.collections.find_one({"_id": "scans.c"})["uuid"]
        self.chunks = list(self.client.config.chunks.find({"uuid": uuid}).sort("min", 1))
        self.assertEqual(len(self.chunks), self.CHUNKS)

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
                for at in (1, 2, 1501):
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
            self.assertLess(len(token["terndbScan"]), 2000)
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


@only_terndb
class RemovedShards(ClusterProgram):
    """A shard is drained and leaves the cluster while a cursor stands on it."""

    def test_every_document_comes_once(self):
        self.client.admin.command("enableSharding", "scans", primaryShard="shard0")
        self.shard("scans.c", k=1)
        self.client.scans.c.insert_many([{"_id": number, "k": number} for number in range(1000)])
        self.client.admin.command("moveRange", "scans.c", min={"k": 500}, toShard="shard1")
        self.client.admin.command("moveRange", "scans.c", min={"k": 700}, toShard="shard2")
        cursors = [self.client.scans.c.find(batch_size=50, sort=sort) for sort in (None, [("k", -1)])]
        found = [[next(cursor)["_id"] for _ in range(60)] for cursor in cursors]
        left = None
        deadline = time.monotonic() + DEADLINE_S
        while left != "completed":
            self.assertLess(time.monotonic(), deadline)
            left = self.client.admin.command("removeShard", "shard2")["state"]
        for cursor, numbers in zip(cursors, found):
            numbers += [one["_id"] for one in cursor]
            self.assertEqual(Counter(numbers), Counter(range(1000)))
        self.assertEqual(found[1], list(reversed(range(1000))))

    def test_what_was_there_before_it_left(self):
        """A moment at which the shard had a range is gone with it, also when it is back: nobody is kept waiting."""
        self.client.admin.command("enableSharding", "scans", primaryShard="shard0")
        self.shard("scans.d", k=1)
        collection = self.client.scans.d
        collection.insert_many([{"_id": number, "k": number} for number in range(1000)])
        self.client.admin.command("moveRange", "scans.d", min={"k": 500}, toShard="shard1")
        [shard] = self.client.config.shards.find({"_id": "shard1"})
        with self.client.start_session(snapshot=True) as session:
            cursors = [
                collection.find(batch_size=50, session=session),
                collection.find({"k": {"$gte": 600}}, batch_size=50, session=session),
                collection.aggregate([{"$sort": {"k": -1}}], batchSize=50, session=session),
            ]
            for cursor in cursors:
                next(cursor)
            wait_until(lambda: self.client.admin.command("removeShard", "shard1")["state"] == "completed", "it leaves")
            for back in (False, True):
                if back:
                    self.client.admin.command("addShard", shard["host"])
                asked = [
                    lambda: list(collection.find(session=session)),
                    lambda: list(collection.find({"k": 700}, session=session)),
                    lambda: list(collection.aggregate([{"$group": {"_id": "$k"}}], session=session)),
                    lambda: collection.distinct("k", session=session),
                ]
                # Cursors that are open where it ran go on for as long as it does not forget.
                if back:
                    asked += [lambda cursor=cursor: list(cursor) for cursor in cursors]
                for ask in asked:
                    began = time.monotonic()
                    with self.assertRaises(pymongo.errors.OperationFailure) as refused:
                        ask()
                    self.assertEqual(refused.exception.code, 246)
                    self.assertLess(time.monotonic() - began, 10)
            self.assertEqual(collection.count_documents({}), 1000)


if __name__ == "__main__":
    unittest.main()
