"""Indexes: made, listed, used, obeyed, enforced, expired."""

import datetime
import random
import threading
import unittest

from bson import Decimal128
from pymongo import ASCENDING, DESCENDING, HASHED, IndexModel
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure

from server import Program, connect, facts, wait_until


def stages(plan):
    """The stages of an explained plan, outermost first, with a step into each input."""
    while plan:
        yield plan
        plan = plan.get("inputStage") or (plan.get("inputStages") or [None])[0]


class Made(Program):
    def test_created_listed_dropped(self):
        c = self.db.c
        c.insert_one({"a": 1})
        self.assertEqual(c.create_index("a"), "a_1")
        self.assertEqual(c.create_index([("a", ASCENDING), ("b", DESCENDING)], name="mine"), "mine")
        self.assertEqual(c.create_indexes([IndexModel("x"), IndexModel([("y", HASHED)])]), ["x_1", "y_hashed"])
        # Once more is no mistake.
        self.assertEqual(c.create_index("a"), "a_1")
        self.assertEqual(
            [dict(i) for i in c.list_indexes()],
            [
                {"v": 2, "key": {"_id": 1}, "name": "_id_"},
                {"v": 2, "key": {"a": 1}, "name": "a_1"},
                {"v": 2, "key": {"a": 1, "b": -1}, "name": "mine"},
                {"v": 2, "key": {"x": 1}, "name": "x_1"},
                {"v": 2, "key": {"y": "hashed"}, "name": "y_hashed"},
            ],
        )
        self.assertEqual(c.index_information()["mine"], {"v": 2, "key": [("a", 1), ("b", -1)]})
        c.drop_index("a_1")
        self.db.command("dropIndexes", "c", index={"a": 1, "b": -1})
        self.assertEqual(sorted(c.index_information()), ["_id_", "x_1", "y_hashed"])
        c.drop_indexes()
        self.assertEqual(list(c.index_information()), ["_id_"])

    def test_the_raw_reply(self):
        reply = self.db.command("createIndexes", "c", indexes=[{"key": {"a": 1}, "name": "a_1"}])
        self.assertEqual(
            facts(reply),
            {
                "numIndexesBefore": 1,
                "numIndexesAfter": 2,
                "createdCollectionAutomatically": True,
                "commitQuorum": "votingMembers",
                "ok": 1.0,
            },
        )
        reply = self.db.command("createIndexes", "c", indexes=[{"key": {"a": 1}, "name": "a_1"}])
        self.assertEqual(
            facts(reply), {"numIndexesBefore": 2, "numIndexesAfter": 2, "note": "all indexes already exist", "ok": 1.0}
        )

    def test_mistakes(self):
        c = self.db.c
        c.insert_one({"a": [1], "b": [1]})
        c.create_index("a")
        for code, name, make in (
            (85, "IndexOptionsConflict", lambda: c.create_index("a", name="other")),
            (86, "IndexKeySpecsConflict", lambda: c.create_index("z", name="a_1")),
            (67, "CannotCreateIndex", lambda: c.create_index([("a", 0)])),
            (67, "CannotCreateIndex", lambda: c.create_index([("a", "other")])),
            (171, "CannotIndexParallelArrays", lambda: c.create_index([("a", 1), ("b", 1)])),
            (27, "IndexNotFound", lambda: c.drop_index("none")),
            (72, "InvalidOptions", lambda: c.drop_index("_id_")),
            (26, "NamespaceNotFound", lambda: self.db.command("dropIndexes", "none", index="x")),
            (197, "InvalidIndexSpecificationOption", lambda: c.create_index("q", colour="red")),
            (67, "CannotCreateIndex", lambda: c.create_index([("p", 1)], sparse=True, partialFilterExpression={"a": 1})),
        ):
            with self.subTest(name), self.refused(code, name):
                make()
        self.assertEqual(sorted(c.index_information()), ["_id_", "a_1"])

    def test_listing_nothing(self):
        self.assertEqual(list(self.db.none.list_indexes()), [])
        with self.refused(26, "NamespaceNotFound"):
            self.db.command("listIndexes", "none")


class Enforced(Program):
    def test_unique(self):
        c = self.db.c
        c.create_index("email", unique=True)
        c.insert_one({"_id": 1, "email": "a@x"})
        with self.refused(11000, kind=DuplicateKeyError) as refused:
            c.insert_one({"_id": 2, "email": "a@x"})
        self.assertEqual(refused.error.details["keyPattern"], {"email": 1})
        self.assertEqual(refused.error.details["keyValue"], {"email": "a@x"})
        c.insert_one({"_id": 3})
        with self.refused(11000, kind=DuplicateKeyError) as refused:
            c.insert_one({"_id": 4, "email": None})
        self.assertEqual(refused.error.details["keyValue"], {"email": None})
        with self.refused(11000, kind=DuplicateKeyError):
            c.update_one({"_id": 3}, {"$set": {"email": "a@x"}})
        with self.refused(11000, kind=DuplicateKeyError):
            c.find_one_and_update({"_id": 3}, {"$set": {"email": "a@x"}})
        # Freed by its holder, it can be taken.
        c.update_one({"_id": 1}, {"$set": {"email": "b@x"}})
        c.update_one({"_id": 3}, {"$set": {"email": "a@x"}})

    def test_unique_over_what_is_there(self):
        self.db.c.insert_many([{"a": 1}, {"a": 1.0}])
        with self.refused(11000, kind=DuplicateKeyError):
            self.db.c.create_index("a", unique=True)
        self.assertEqual(list(self.db.c.index_information()), ["_id_"])

    def test_unique_compound_and_multikey(self):
        c = self.db.c
        c.create_index([("a", 1), ("b", 1)], unique=True)
        c.insert_many([{"_id": 1, "a": 1, "b": [1, 2]}, {"_id": 2, "a": 2, "b": [1, 2]}])
        with self.refused(11000, kind=DuplicateKeyError):
            c.insert_one({"a": 1, "b": 2})
        # Within one document a value may repeat.
        c.insert_one({"a": 5, "b": [7, 7]})
        with self.refused(171, kind=OperationFailure):
            c.insert_one({"a": [1], "b": [1]})

    def test_unique_and_sparse(self):
        c = self.db.c
        c.create_index("a", unique=True, sparse=True)
        c.insert_many([{}, {}, {"a": None}])
        with self.refused(11000, kind=DuplicateKeyError):
            c.insert_one({"a": None})

    def test_unique_and_partial(self):
        c = self.db.c
        c.create_index("name", unique=True, partialFilterExpression={"active": True})
        c.insert_many([{"name": "x", "active": False}, {"name": "x"}, {"name": "x", "active": True}])
        with self.refused(11000, kind=DuplicateKeyError):
            c.insert_one({"name": "x", "active": True})
        with self.refused(11000, kind=DuplicateKeyError):
            c.update_one({"active": False}, {"$set": {"active": True}})

    def test_hashed_refuses_arrays(self):
        self.db.c.create_index([("h", HASHED)])
        with self.refused(16766, kind=OperationFailure):
            self.db.c.insert_one({"h": [1]})
        self.db.c.insert_many([{"h": i} for i in range(100)])
        self.assertEqual(self.db.c.find_one({"h": 50})["h"], 50)
        self.assertEqual(self.db.c.count_documents({"h": {"$in": [1, 2.0, Decimal128("3")]}}), 3)

    def test_two_writers_one_key(self):
        """Of many who insert the same key at once, one succeeds."""
        self.db.c.create_index("k", unique=True)
        won, failures = [], []

        def insert():
            with connect() as client:
                for k in range(100):
                    try:
                        client[self.db.name].c.insert_one({"k": k})
                        won.append(k)
                    except DuplicateKeyError:
                        pass
                    except Exception as error:
                        failures.append(error)

        threads = [threading.Thread(target=insert) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertEqual(sorted(won), list(range(100)))
        self.assertEqual(self.db.c.count_documents({}), 100)


class Used(Program):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client.drop_database(cls.db.name)
        cls.db.c.insert_many(
            [
                {"_id": i, "a": i % 100, "b": i, "tags": [i % 7, i % 11], "o": {"x": i % 13}, "s": f"s{i:05}"}
                for i in range(3000)
            ]
        )
        cls.db.c.create_index([("a", 1), ("b", -1)])
        cls.db.c.create_index("tags")
        cls.db.c.create_index("o.x")
        cls.db.c.create_index("s")
        cls.db.c.create_index("b", name="late", partialFilterExpression={"b": {"$gte": 2900}})

    def setUp(self):
        pass

    def check(self, cursor, names, index=None, examined=None):
        explained = cursor.explain()
        plan = list(stages(explained["queryPlanner"]["winningPlan"]))
        self.assertEqual([stage["stage"] for stage in plan], names, explained["queryPlanner"]["winningPlan"])
        if index:
            self.assertEqual(plan[-1]["indexName"], index)
        statistics = explained["executionStats"]
        self.assertTrue(statistics["executionSuccess"])
        self.assertEqual(statistics["nReturned"], len(list(cursor.clone())))
        if examined is not None:
            self.assertEqual(statistics["totalDocsExamined"], examined)
        return explained

    def test_plans(self):
        c = self.db.c
        self.check(c.find({}), ["COLLSCAN"], examined=3000)
        self.check(c.find({"z": 1}), ["COLLSCAN"], examined=3000)
        self.check(c.find({"_id": 5}), ["IDHACK"], examined=1)
        self.check(c.find({"a": 5}), ["FETCH", "IXSCAN"], "a_1_b_-1", examined=30)
        self.check(c.find({"a": 5, "b": {"$gt": 1000}}), ["FETCH", "IXSCAN"], "a_1_b_-1", examined=20)
        self.check(c.find({"tags": 3}), ["FETCH", "IXSCAN"], "tags_1")
        self.check(c.find({"o.x": 3}), ["FETCH", "IXSCAN"], "o.x_1")
        self.check(c.find({"s": {"$regex": "^s0001"}}), ["FETCH", "IXSCAN"], "s_1", examined=10)
        self.check(c.find({"b": {"$gte": 2950}}), ["FETCH", "IXSCAN"], "late", examined=50)
        self.check(c.find({"b": {"$gte": 2850}}), ["COLLSCAN"])

    def test_sorts(self):
        c = self.db.c
        self.check(c.find().sort([("a", 1), ("b", -1)]).limit(10), ["LIMIT", "FETCH", "IXSCAN"], "a_1_b_-1", 10)
        self.check(c.find().sort([("a", -1), ("b", 1)]).limit(10), ["LIMIT", "FETCH", "IXSCAN"], "a_1_b_-1", 10)
        self.check(c.find({"a": 7}).sort("b", 1), ["FETCH", "IXSCAN"], "a_1_b_-1", 30)
        self.check(c.find().sort([("a", 1), ("b", 1)]), ["SORT", "COLLSCAN"])
        self.check(c.find().sort("_id", -1).limit(1), ["LIMIT", "FETCH", "IXSCAN"], "_id_", 1)

    def test_covered(self):
        c = self.db.c
        self.check(c.find({"a": 5}, {"_id": 0, "a": 1, "b": 1}), ["PROJECTION_COVERED", "IXSCAN"], "a_1_b_-1", examined=0)
        self.assertEqual(
            list(c.find({"a": 5, "b": {"$lt": 300}}, {"_id": 0, "a": 1, "b": 1})),
            [{"a": 5, "b": 205}, {"a": 5, "b": 105}, {"a": 5, "b": 5}],
        )
        # A multikey index cannot give a whole array back.
        self.check(c.find({"tags": 3}, {"_id": 0, "tags": 1}), ["PROJECTION_SIMPLE", "FETCH", "IXSCAN"], "tags_1")

    def test_hints(self):
        c = self.db.c
        self.check(c.find({"a": 5}).hint("s_1"), ["FETCH", "IXSCAN"], "s_1", examined=3000)
        self.check(c.find({"a": 5}).hint([("s", 1)]), ["FETCH", "IXSCAN"], "s_1", examined=3000)
        self.check(c.find({"a": 5}).hint([("$natural", 1)]), ["COLLSCAN"])
        self.assertEqual(next(c.find().hint([("$natural", -1)]))["_id"], 2999)
        with self.refused(2, "BadValue"):
            list(c.find().hint("none"))
        self.assertEqual(c.count_documents({"a": 5}, hint="a_1_b_-1"), 30)
        # A hinted partial index shows what is in it.
        self.assertEqual(len(list(c.find().hint("late"))), 100)

    def test_min_and_max(self):
        c = self.db.c
        found = [d["b"] for d in c.find().hint([("a", 1), ("b", -1)]).min([("a", 5), ("b", 300)]).max([("a", 6), ("b", 2900)])]
        self.assertEqual(found, [205, 105, 5, 2906])

    def test_other_commands_are_explained(self):
        for command, expected in (
            ({"count": "c", "query": {"o.x": 5}}, ["COUNT", "COUNT_SCAN"]),
            ({"distinct": "c", "key": "a", "query": {"o.x": 5}}, ["FETCH", "IXSCAN"]),
            ({"delete": "c", "deletes": [{"q": {"a": 5}, "limit": 0}]}, ["DELETE", "FETCH", "IXSCAN"]),
            ({"findAndModify": "c", "query": {"a": 5}, "remove": True}, ["DELETE", "FETCH", "IXSCAN"]),
            (
                {"update": "c", "updates": [{"q": {"a": 5}, "u": {"$set": {"z": 1}}, "multi": True}]},
                ["UPDATE", "FETCH", "IXSCAN"],
            ),
        ):
            with self.subTest(command):
                explained = self.db.command("explain", command, verbosity="executionStats")
                names = [stage["stage"] for stage in stages(explained["queryPlanner"]["winningPlan"])]
                self.assertEqual(names[-len(expected) :], expected)
        self.assertEqual(self.db.c.count_documents({"z": 1}), 0)
        self.assertEqual(self.db.c.count_documents({}), 3000)

    def test_index_statistics(self):
        list(self.db.c.find({"s": "s00001"}))
        shown = {i["name"]: i for i in self.db.c.aggregate([{"$indexStats": {}}])}
        self.assertEqual(set(shown), {"_id_", "a_1_b_-1", "tags_1", "o.x_1", "s_1", "late"})
        self.assertGreaterEqual(shown["s_1"]["accesses"]["ops"], 1)

    def test_sparse(self):
        c = self.db.sparse
        c.insert_many([{"_id": 1, "x": 1}, {"_id": 2}, {"_id": 3, "x": None}])
        c.create_index("x", sparse=True)
        # Results never depend on the index, unless it is hinted.
        self.assertEqual([d["_id"] for d in c.find().sort("x", 1)], [2, 3, 1])
        self.assertEqual([d["_id"] for d in c.find().sort("x", 1).hint("x_1")], [3, 1])
        self.assertEqual(c.count_documents({"x": None}), 2)
        self.assertEqual([d["_id"] for d in c.find({"x": {"$exists": True}}).sort("_id", 1)], [1, 3])

    def test_multikey(self):
        c = self.db.multi
        c.insert_many([{"_id": 1, "a": [1, 5, 9]}, {"_id": 2, "a": [2]}, {"_id": 3, "a": []}, {"_id": 4, "a": 5}])
        plain = [list(c.find(f).sort("_id", 1)) for f in self.MULTIKEY_FILTERS]
        c.create_index("a")
        for filter, expected in zip(self.MULTIKEY_FILTERS, plain):
            with self.subTest(filter):
                self.assertEqual(list(c.find(filter).sort("_id", 1)), expected)
        self.assertEqual([d["_id"] for d in c.find({"a": {"$gt": 0}}).sort("a", -1)], [1, 4, 2])

    MULTIKEY_FILTERS = [
        {"a": 5},
        {"a": {"$gt": 4, "$lt": 3}},
        {"a": {"$elemMatch": {"$gt": 4, "$lt": 6}}},
        {"a": []},
        {"a": [1, 5, 9]},
        {"a": {"$size": 1}},
        {"a": {"$ne": 5}},
        {"a": None},
        {"a": {"$in": [1, 2, 9]}},
        {"$or": [{"a": 1}, {"a": 9}, {"a": 2}]},
    ]


class Built(Program):
    def test_while_others_write(self):
        c = self.db.c
        c.insert_many([{"_id": i, "n": i % 500, "tags": [i % 3, i % 5]} for i in range(20_000)])
        stop, failures, counts = threading.Event(), [], [0]

        def write(seed):
            chance = random.Random(seed)
            try:
                with connect() as client:
                    mine = client[self.db.name].c
                    while not stop.is_set():
                        number = chance.randrange(25_000)
                        what = chance.randrange(3)
                        if what == 0:
                            mine.update_one({"_id": number}, {"$set": {"n": chance.randrange(500)}}, upsert=True)
                        elif what == 1:
                            mine.delete_one({"_id": number})
                        else:
                            mine.update_one({"_id": number}, {"$set": {"tags": [chance.randrange(9)] * 2}})
                        counts[0] += 1
            except Exception as error:
                failures.append(error)

        writers = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
        for writer in writers:
            writer.start()
        try:
            wait_until(lambda: counts[0] > 100, "the writers are at work")
            for keys in ([("n", 1)], [("tags", 1), ("n", -1)], [("n", HASHED)]):
                c.create_index(keys)
                before = counts[0]
                wait_until(lambda: counts[0] > before + 50 or failures, "the writers go on")
            c.drop_index("n_1")
            c.create_index("n")
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        self.assertEqual(failures, [])
        report = self.db.command("validate", "c", full=True)
        self.assertTrue(report["valid"], report)
        self.assertEqual(report["errors"], [])
        self.assertEqual(report["nrecords"], report["keysPerIndex"]["n_1"])
        self.assertEqual(report["nIndexes"], 4)
        for n in (0, 250, 499):
            by_index = sorted(d["_id"] for d in c.find({"n": n}).hint("n_1"))
            by_scan = sorted(d["_id"] for d in c.find({"n": n}).hint([("$natural", 1)]))
            self.assertEqual(by_index, by_scan)

    def test_unique_while_others_write(self):
        """A build either fails or holds: no duplicate slips in."""
        c = self.db.u
        c.insert_many([{"_id": i, "k": i} for i in range(10_000)])
        stop = threading.Event()

        def write():
            with connect() as client:
                chance = random.Random(1)
                while not stop.is_set():
                    try:
                        client[self.db.name].u.insert_one({"k": 20_000 + chance.randrange(200_000)})
                    except DuplicateKeyError:
                        pass

        writer = threading.Thread(target=write)
        writer.start()
        try:
            try:
                c.create_index("k", unique=True)
                built = True
            except DuplicateKeyError:
                built = False
        finally:
            stop.set()
            writer.join()
        twice = list(c.aggregate([{"$sortByCount": "$k"}, {"$match": {"count": {"$gt": 1}}}]))
        self.assertEqual("k_1" in c.index_information(), built)
        if built:
            self.assertEqual(twice, [])
        self.assertTrue(self.db.command("validate", "u", full=True)["valid"])


class Expiring(Program):
    def setUp(self):
        super().setUp()
        before = self.client.admin.command("getParameter", ttlMonitorSleepSecs=1)["ttlMonitorSleepSecs"]
        self.client.admin.command("setParameter", ttlMonitorSleepSecs=1)
        self.addCleanup(self.client.admin.command, "setParameter", ttlMonitorSleepSecs=before)

    def test_documents_go_when_their_time_has_come(self):
        now = datetime.datetime.now(datetime.timezone.utc)
        hours = lambda n: now + datetime.timedelta(hours=n)
        c = self.db.c
        c.create_index("at", expireAfterSeconds=3600)
        c.insert_many(
            [
                {"_id": "old", "at": hours(-2)},
                {"_id": "new", "at": now},
                {"_id": "future", "at": hours(5)},
                {"_id": "never", "at": "not a date"},
                {"_id": "none"},
                {"_id": "array with an old one", "at": [hours(5), hours(-2)]},
                {"_id": "array", "at": [hours(5), now]},
            ]
        )
        left = {"new", "future", "never", "none", "array"}
        # The monitor of another server may have to wake up first.
        wait_until(lambda: {d["_id"] for d in c.find()} == left, "expired documents go", 100)
        # A shorter time, then what is new goes as well.
        self.db.command("collMod", "c", index={"keyPattern": {"at": 1}, "expireAfterSeconds": 0})
        left -= {"new", "array"}
        wait_until(lambda: {d["_id"] for d in c.find()} == left, "expired documents go", 100)
        self.assertEqual(c.index_information()["at_1"]["expireAfterSeconds"], 0)
        self.assertTrue(self.db.command("validate", "c", full=True)["valid"])

    def test_mistakes(self):
        with self.refused(67, "CannotCreateIndex"):
            self.db.c.create_index([("a", 1), ("b", 1)], expireAfterSeconds=5)
        with self.refused(67, "CannotCreateIndex"):
            self.db.c.create_index("a", expireAfterSeconds=-1)


if __name__ == "__main__":
    unittest.main()
