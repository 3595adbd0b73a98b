"""Cursors and tokens of scans while something about their collection changes for good: its shard key, its chunks, the
shards that have it, the home of its database. They go on where they stood, or end with an error, never as if they had
come to their end."""

import time
import unittest
from collections import Counter

import pymongo
from bson.min_key import MinKey

from server import DEADLINE_S, connect, only_terndb, wait_until
from test_cluster import ClusterProgram

SHARDS = ["shard0", "shard1", "shard2"]


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

    def test_tokens_that_are_not_asked_for_well(self):
        self.cursor().close()
        ask = {"batchSize": 100, "$_requestResumeToken": True}
        token = self.client.scans.command("find", "c", **ask)["cursor"]["postBatchResumeToken"]
        cases = [
            ({"$_resumeAfter": token}, 2, "'resumeAfter'"),
            ({"$_startAt": token}, 2, "'startAt'"),
            ({"$_startAt": token, "$_requestResumeToken": False}, 2, "'startAt'"),
            ({**ask, "$_resumeAfter": token, "$_startAt": token}, 2, "both"),
            ({**ask, "$_resumeAfter": 1}, 14, "$_resumeAfter"),
            ({**ask, "$_startAt": None}, 14, "$_startAt"),
            ({"$_requestResumeToken": 1, "$_resumeAfter": token}, 14, "$_requestResumeToken"),
        ]
        for arguments, code, named in cases:
            with self.assertRaises(pymongo.errors.OperationFailure, msg=arguments) as refused:
                self.client.scans.command("find", "c", **arguments)
            self.assertEqual(refused.exception.code, code, arguments)
            self.assertIn(named, refused.exception.details["errmsg"])
        # An empty document is no token.
        begun = self.client.scans.command("find", "c", **{"$_resumeAfter": {}, "$_startAt": {}})["cursor"]
        self.assertEqual(len(begun["firstBatch"]), 101)

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
class TokensThatGrowOld(ClusterProgram):
    """A token names the placement that its scan began with. It is refused once nobody knows that any more, which is when
    its ranges have moved and the history of the chunks is shorter than that."""

    PARAMETER = "minSnapshotHistoryWindowInSeconds"
    ASK = {"filter": {"k": {"$gte": 0}}, "batchSize": 100, "$_requestResumeToken": True}

    def setUp(self):
        super().setUp()
        self.shard("scans.c", k=1)
        self.client.scans.c.insert_many([{"_id": number, "k": number} for number in range(1000)])
        host = self.client.admin.command("getShardMap")["map"]["config"].split("/")[1]
        self.config = connect(f"mongodb://{host}")
        self.addCleanup(self.config.close)
        self.assertEqual(self.window(), 300)
        self.addCleanup(self.set_window, 300)

    def window(self):
        return self.config.admin.command("getParameter", 1, **{self.PARAMETER: 1})[self.PARAMETER]

    def set_window(self, seconds):
        self.config.admin.command("setParameter", 1, **{self.PARAMETER: seconds})

    def begin(self):
        """The first batch, and the token behind it."""
        cursor = self.client.scans.command("find", "c", **self.ASK)["cursor"]
        self.client.scans.command("killCursors", "c", cursors=[cursor["id"]])
        return [one["_id"] for one in cursor["firstBatch"]], cursor["postBatchResumeToken"]

    def go_on(self, token):
        """All that comes behind a token."""
        found = []
        while True:
            reply = self.client.scans.command("find", "c", **self.ASK, **{"$_resumeAfter": token})["cursor"]
            self.client.scans.command("killCursors", "c", cursors=[reply["id"]] if reply["id"] else [])
            found += [one["_id"] for one in reply["firstBatch"]]
            if not reply["id"]:
                return found
            token = reply["postBatchResumeToken"]

    def move(self):
        """The range goes to another shard, and the router hears of it."""
        [chunk] = self.client.config.chunks.find({"uuid": self.uuid()})
        to = next(shard for shard in SHARDS if shard != chunk["shard"])
        self.client.admin.command("moveRange", "scans.c", min={"k": MinKey()}, toShard=to)
        self.assertEqual(self.client.scans.c.count_documents({}), 1000)

    def uuid(self):
        return self.client.config.collections.find_one({"_id": "scans.c"})["uuid"]

    def test_a_token_is_refused_by_name_once_its_placement_is_forgotten(self):
        first, token = self.begin()
        for _ in range(3):
            self.move()
        self.assertEqual(first + self.go_on(token), list(range(1000)))
        self.set_window(0)

        def refused():
            # The time of a history is told in whole seconds: one move may come too early to forget.
            self.move()
            try:
                self.go_on(token)
            except pymongo.errors.OperationFailure as refused:
                return refused

        refused = wait_until(refused, "the token is refused")
        self.assertEqual((refused.code, refused.details["codeName"]), (250, "StaleChunkHistory"))
        # One that was given out since then goes on, and so it does when history is kept again.
        first, token = self.begin()
        self.assertEqual(first + self.go_on(token), list(range(1000)))
        self.set_window(300)
        for _ in range(3):
            self.move()
        self.assertEqual(first + self.go_on(token), list(range(1000)))

    def test_the_window_of_the_config_server_is_not_set_through_a_router(self):
        with self.assertRaises(pymongo.errors.OperationFailure) as refused:
            self.client.admin.command("setParameter", 1, **{self.PARAMETER: 0})
        self.assertIn(f"[{self.PARAMETER}] is a parameter of shards and config servers", str(refused.exception))
        self.assertEqual(self.window(), 300)


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

    def test_it_is_sharded(self):
        """It goes on while all of it is where it was. What has moved away is not told as if it were there, nor left
        out as if there were no more."""
        cursors = self.cursors()
        for cursor in cursors.values():
            next(cursor)
        self.shard("scans.c", _id=1)
        found = {name: 1 + sum(1 for _ in range(60) if next(cursor)) for name, cursor in cursors.items()}
        self.client.admin.command("moveRange", "scans.c", min={"_id": 300}, max={"_id": 700}, toShard="shard1")
        self.client.scans.c.update_many({}, {"$set": {"moved": True}})
        for name, cursor in cursors.items():
            with self.subTest(name):
                # What is in memory at the router or the shard is an answer from before.
                if name in ("groups", "sorted in memory"):
                    self.assertEqual(found[name] + len(list(cursor)), self.DOCUMENTS)
                    continue
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


@only_terndb
class FirstBehindRemoval(ClusterProgram):
    """Whatever is asked for first, behind the end of a shard, finds where its ranges are now."""

    def test_nobody_is_sent_to_a_shard_that_has_left(self):
        asked = {
            "find": lambda c: c.find_one({"k": 700})["_id"] == 700,
            "update": lambda c: c.update_one({"k": 700}, {"$set": {"n": 1}}).modified_count == 1,
            "delete": lambda c: c.delete_one({"k": 700}).deleted_count == 1,
            "insert": lambda c: c.insert_one({"k": 5000}).acknowledged,
            "insert many": lambda c: len(c.insert_many([{"k": 1}, {"k": 5000}]).inserted_ids) == 2,
            "find and modify": lambda c: c.find_one_and_update({"k": 700}, {"$set": {"n": 1}})["_id"] == 700,
            "scan": lambda c: len(list(c.find())) == 1000,
            "sorted": lambda c: len(list(c.find().sort("k", -1))) == 1000,
            "count": lambda c: c.count_documents({"k": {"$gte": 500}}) == 500,
            "group": lambda c: len(list(c.aggregate([{"$group": {"_id": "$k"}}]))) == 1000,
            # They count what is left where a range was, too.
            "statistics": lambda c: sum(one["count"] for one in c.aggregate([{"$collStats": {"count": {}}}])) >= 1000,
            "stats": lambda c: c.database.command("collStats", c.name)["count"] >= 1000,
            "validate": lambda c: c.database.command("validate", c.name)["valid"],
            "index": lambda c: c.create_index("n") == "n_1",
        }
        self.client.admin.command("enableSharding", "scans", primaryShard="shard0")
        for name in asked:
            self.shard(f"scans.{name}", k=1)
            self.client.scans[name].insert_many([{"_id": number, "k": number} for number in range(1000)])
            self.client.admin.command("moveRange", f"scans.{name}", min={"k": 500}, toShard="shard2")
            self.assertEqual(self.client.scans[name].find_one({"k": 700})["_id"], 700)
        wait_until(lambda: self.client.admin.command("removeShard", "shard2")["state"] == "completed", "it leaves")
        for name, ask in asked.items():
            with self.subTest(name):
                self.assertTrue(ask(self.client.scans[name]))
        told = {one["ns"] for one in self.client.admin.aggregate([{"$shardedDataDistribution": {}}])}
        self.assertLessEqual({f"scans.{name}" for name in asked}, told)


if __name__ == "__main__":
    unittest.main()
