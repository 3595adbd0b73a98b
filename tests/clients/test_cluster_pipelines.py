"""Pipelines and change streams over three shards, as drivers use them.

What a pipeline answers over a sharded collection is compared with what it answers over the same
documents in a collection that is not sharded, which one shard does alone.
"""

import random
import shutil
import tempfile
import unittest
from pathlib import Path

import pymongo
from bson import Decimal128, Int64
from server import Process, only_terndb, wait_until

PIPELINES = [
    [{"$group": {"_id": "$a", "n": {"$sum": "$n"}, "m": {"$avg": "$n"}, "c": {"$count": {}}}}, {"$sort": {"_id": 1}}],
    [{"$group": {"_id": "$k", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}],
    [
        {"$group": {"_id": {"a": "$a", "b": "$b"}, "s": {"$addToSet": "$k"}}},
        {"$project": {"s": {"$size": "$s"}}},
        {"$sort": {"_id": 1}},
    ],
    [{"$sort": {"n": -1, "_id": 1}}, {"$skip": 7}, {"$limit": 20}, {"$project": {"n": 1}}],
    [{"$match": {"a": {"$ne": None}}}, {"$count": "n"}],
    [{"$unwind": "$t"}, {"$group": {"_id": "$t", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}],
    [{"$bucket": {"groupBy": "$k", "boundaries": [0, 5, 10, 20]}}],
    [{"$bucketAuto": {"groupBy": "$_id", "buckets": 4}}],
    [
        {"$sort": {"_id": 1}},
        {"$group": {"_id": None, "f": {"$first": "$_id"}, "l": {"$last": "$_id"}, "p": {"$push": "$k"}}},
    ],
    [{"$facet": {"x": [{"$match": {"a": 1}}, {"$count": "n"}], "y": [{"$sortByCount": "$b"}, {"$sort": {"count": 1, "_id": 1}}]}}],
    [
        {"$match": {"_id": {"$lt": 20}}},
        {"$lookup": {"from": "other", "localField": "a", "foreignField": "a", "as": "f"}},
        {"$sort": {"_id": 1}},
    ],
    [{"$match": {"_id": {"$lt": 5}}}, {"$unionWith": "other"}, {"$sort": {"_id": 1, "k": 1}}],
    [
        {"$match": {"_id": {"$lt": 5}}},
        {"$lookup": {"from": "other", "pipeline": [{"$count": "c"}], "as": "f"}},
        {"$unionWith": {"coll": "other", "pipeline": [{"$match": {"a": 1}}, {"$count": "c"}]}},
        {"$sort": {"_id": 1}},
    ],
    [{"$sample": {"size": 1000}}, {"$group": {"_id": None, "n": {"$sum": 1}, "s": {"$sum": "$_id"}}}],
    [{"$limit": 400}, {"$count": "n"}],
    [
        {"$group": {"_id": "$b", "t": {"$topN": {"n": 3, "sortBy": {"_id": -1}, "output": "$_id"}}}},
        {"$sort": {"_id": 1}},
    ],
]


def document(at: int) -> dict:
    return {
        "_id": at,
        "k": at % 17,
        "a": random.choice([1, 2, 3, None]),
        "b": random.choice(["x", "y", 2.5]),
        "n": random.choice([1, Int64(5), 2.25, Decimal128("0.5")]),
        "t": list(range(at % 4)),
    }


@only_terndb
class Cluster(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.data = Path(tempfile.mkdtemp(prefix="terndb-cluster-"))
        cls.addClassCleanup(shutil.rmtree, cls.data, ignore_errors=True)
        cls.server = Process(cls.data, "--shards", "3")
        cls.addClassCleanup(cls.server.stop)
        cls.client = pymongo.MongoClient(cls.server.uri)
        cls.addClassCleanup(cls.client.close)
        cls.db = cls.client.pipelines

    def sharded(self, name: str, key: dict):
        self.client.admin.command({"shardCollection": f"pipelines.{name}", "key": key, "numInitialChunks": 6})
        return self.db[name]

    def test_pipelines_answer_as_on_one_server(self):
        documents = [document(at) for at in range(500)]
        self.db.alone.insert_many(documents)
        self.db.other.insert_many([{"_id": at, "a": at % 4} for at in range(8)])
        for name, key in [("by_id", {"_id": "hashed"}), ("by_k", {"k": "hashed"})]:
            collection = self.sharded(name, key)
            collection.insert_many(documents)
            owners = {stats["shard"] for stats in collection.aggregate([{"$collStats": {"count": {}}}])}
            self.assertEqual(len(owners), 3)
            for pipeline in PIPELINES:
                with self.subTest(key=key, pipeline=pipeline):
                    expected = list(self.db.alone.aggregate(pipeline))
                    self.assertEqual(list(collection.aggregate(pipeline)), expected)
        explained = self.db.command(
            {"explain": {"aggregate": "by_id", "pipeline": PIPELINES[0], "cursor": {}}, "verbosity": "queryPlanner"}
        )
        self.assertEqual(len(explained["splitPipeline"]["shardsPart"]), 1)
        self.assertEqual(len(explained["shards"]), 3)

    def test_explained_pipelines_write_nothing(self):
        collection = self.sharded("explained", {"_id": "hashed"})
        collection.insert_many([{"_id": at, "a": at % 3} for at in range(30)])
        self.db.beside.insert_one({"_id": 1})
        group = {"$group": {"_id": "$a"}}
        lookup = {"$lookup": {"from": "explained", "localField": "a", "foreignField": "a", "as": "f"}}
        into = {"$merge": {"into": {"db": "pipelines_never", "coll": "written"}}}
        cases = [
            ("explained", [group, {"$out": "written"}]),
            ("explained", [{"$match": {"_id": 5}}, {"$merge": "written"}]),
            ("explained", [group, into]),
            ("beside", [lookup, {"$out": "written"}]),
            ("beside", [{"$out": {"db": "pipelines_never", "coll": "written"}}]),
            ("absent", [group, {"$out": "written"}]),
            (1, [{"$documents": [{"a": 1}]}, {"$out": "written"}]),
            (1, [{"$documents": [{"a": 1}]}, into]),
        ]
        for name, pipeline in cases:
            with self.subTest(name=name, pipeline=pipeline):
                command = {"aggregate": name, "pipeline": pipeline}
                reply = self.db.command(command | {"explain": True})
                self.assertNotIn("cursor", reply)
                question = {"explain": command | {"cursor": {}}, "verbosity": "queryPlanner"}
                self.assertEqual(self.db.command(question)["ok"], 1)
        nowhere = {"aggregate": "absent", "pipeline": [group, into], "explain": True}
        self.assertEqual(self.client.pipelines_nowhere.command(nowhere)["ok"], 1)
        operations = {"aggregate": 1, "pipeline": [{"$currentOp": {}}], "explain": True}
        self.assertNotIn("cursor", self.client.admin.command(operations))
        self.assertNotIn("written", self.db.list_collection_names())
        names = self.client.list_database_names()
        self.assertFalse({"pipelines_never", "pipelines_nowhere"} & set(names), names)
        self.assertEqual(self.client.config.databases.count_documents({"_id": "pipelines_never"}), 0)

    def test_one_stream_of_all_shards(self):
        collection = self.sharded("watched", {"_id": "hashed"})
        with collection.watch(max_await_time_ms=500) as stream:
            for at in range(20):
                collection.insert_one({"_id": at})
                event = wait_until(stream.try_next, f"the insertion of {at}")
                self.assertEqual(event["documentKey"]["_id"], at)
            collection.insert_many([{"_id": at} for at in range(100, 300)])
            events = [wait_until(stream.try_next, "an insertion") for _ in range(200)]
            self.assertEqual(sorted(event["documentKey"]["_id"] for event in events), list(range(100, 300)))
            times = [event["clusterTime"] for event in events]
            self.assertEqual(times, sorted(times))
        # An event of another collection, or one that the pipeline holds back, is none to go on behind.
        key = events[77]["documentKey"]["_id"]
        for watched, pipeline in (
            (self.sharded("unwatched", {"_id": "hashed"}), []),
            (collection, [{"$match": {"documentKey._id": {"$ne": key}}}]),
        ):
            with self.assertRaises(pymongo.errors.OperationFailure) as refused:
                with watched.watch(pipeline, resume_after=events[77]["_id"], max_await_time_ms=500) as stream:
                    wait_until(stream.try_next, "a refusal")
            self.assertEqual(refused.exception.code, 280)
        with collection.watch(resume_after=events[77]["_id"], max_await_time_ms=500) as stream:
            again = [wait_until(stream.try_next, "an insertion") for _ in range(122)]
            self.assertEqual([event["_id"] for event in again], [event["_id"] for event in events[78:]])
            collection.drop()
            ends = [wait_until(stream.try_next, "the end")["operationType"] for _ in range(2)]
            self.assertEqual(ends, ["drop", "invalidate"])


if __name__ == "__main__":
    unittest.main()
