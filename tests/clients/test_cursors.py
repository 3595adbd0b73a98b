"""Cursors as applications hold them: in batches, many at once, killed, outlived by their collection,
and while others write; and the operations behind them, seen and killed by an administrator."""

import random
import threading
import unittest

from bson import Int64
from pymongo import CursorType, monitoring
from pymongo.errors import CursorNotFound, ExecutionTimeout, OperationFailure

from server import Program, connect, wait_until


class Commands(monitoring.CommandListener):
    """Remembers the names of the commands that a client sent."""

    def __init__(self):
        self.names = []

    def started(self, event):
        self.names.append(event.command_name)

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass


class Batches(Program):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client.drop_database(cls.db.name)
        cls.db.c.insert_many([{"_id": i, "n": (i * 7919) % 10_007, "s": "x" * 50} for i in range(5000)])

    def setUp(self):
        pass

    def test_sizes(self):
        for size in (1, 2, 99, 101, 4999, 5000, 5001, 100_000):
            with self.subTest(size):
                limit = 300 if size < 99 else 0
                found = [d["_id"] for d in self.db.c.find(batch_size=size, limit=limit).sort("_id", 1)]
                self.assertEqual(found, list(range(limit or 5000)))

    def test_the_first_batch(self):
        reply = self.db.command("find", "c")["cursor"]
        self.assertEqual(reply["ns"], f"{self.db.name}.c")
        self.assertEqual(len(reply["firstBatch"]), 101)
        self.assertNotEqual(reply["id"], 0)
        more = self.db.command("getMore", reply["id"], collection="c", batchSize=5)["cursor"]
        self.assertEqual(len(more["nextBatch"]), 5)
        self.assertEqual(more["id"], reply["id"])
        rest = self.db.command("getMore", reply["id"], collection="c")["cursor"]
        self.assertEqual((rest["id"], len(rest["nextBatch"])), (0, 5000 - 106))

    def test_an_empty_first_batch(self):
        reply = self.db.command("find", "c", batchSize=0)["cursor"]
        self.assertEqual(reply["firstBatch"], [])
        more = self.db.command("getMore", reply["id"], collection="c", batchSize=2)["cursor"]
        self.assertEqual(len(more["nextBatch"]), 2)
        self.db.command("killCursors", "c", cursors=[reply["id"]])

    def test_a_single_batch(self):
        reply = self.db.command("find", "c", batchSize=3, singleBatch=True)["cursor"]
        self.assertEqual((len(reply["firstBatch"]), reply["id"]), (3, 0))

    def test_limit_over_batches(self):
        self.assertEqual(len(list(self.db.c.find(limit=250, batch_size=100))), 250)
        self.assertEqual(len(list(self.db.c.find(limit=250, skip=4900, batch_size=40))), 100)

    def test_killed(self):
        cursor = self.db.c.find(batch_size=10)
        next(cursor)
        reply = self.db.command("killCursors", "c", cursors=[cursor.cursor_id, Int64(12345)])
        self.assertEqual(reply["cursorsKilled"], [cursor.cursor_id])
        self.assertEqual(reply["cursorsNotFound"], [12345])
        self.assertEqual((reply["cursorsAlive"], reply["cursorsUnknown"]), ([], []))
        with self.refused(43, "CursorNotFound", CursorNotFound):
            list(cursor)

    def test_closed_by_the_driver(self):
        with self.db.c.find(batch_size=10) as cursor:
            next(cursor)
            number = cursor.cursor_id
        with self.refused(43, "CursorNotFound", CursorNotFound):
            self.db.command("getMore", number, collection="c")

    def test_of_another_collection(self):
        number = self.db.command("find", "c", batchSize=1)["cursor"]["id"]
        with self.refused(13, "Unauthorized"):
            self.db.command("getMore", number, collection="d")
        self.db.command("killCursors", "c", cursors=[number])

    def test_wrong_numbers(self):
        with self.refused(43, "CursorNotFound", CursorNotFound):
            self.db.command("getMore", Int64(987654321), collection="c")

    def test_exhaust(self):
        found = [d["_id"] for d in self.db.c.find({}, cursor_type=CursorType.EXHAUST, batch_size=7)]
        self.assertEqual(found, list(range(5000)))
        # Left in the middle: the driver closes the connection, and the next command has another one.
        cursor = self.db.c.find({}, cursor_type=CursorType.EXHAUST, batch_size=7)
        for _ in range(20):
            next(cursor)
        cursor.close()
        self.assertEqual(self.db.c.count_documents({}), 5000)

    def test_many_at_once(self):
        cursors = [self.db.c.find(batch_size=50).sort("_id", 1) for _ in range(200)]
        order = list(range(len(cursors))) * 300
        random.Random(7).shuffle(order)
        reached = [0] * len(cursors)
        for which in order:
            self.assertEqual(next(cursors[which])["_id"], reached[which])
            reached[which] += 1
        open_now = self.client.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"]
        self.assertGreaterEqual(open_now, 200)
        for cursor in cursors:
            cursor.close()

    def test_aggregation_cursors(self):
        found = [d["n"] for d in self.db.c.aggregate([{"$sort": {"n": 1}}, {"$project": {"n": 1}}], batchSize=33)]
        self.assertEqual(len(found), 5000)
        self.assertEqual(found, sorted(found))

    def test_a_thousand_round_trips(self):
        listener = Commands()
        with connect(event_listeners=[listener]) as client:
            self.assertEqual(len(list(client[self.db.name].c.find(batch_size=5))), 5000)
        self.assertGreaterEqual(listener.names.count("getMore"), 999)

    def test_rewinding_and_cloning(self):
        cursor = self.db.c.find({"n": {"$lt": 100}}).sort("n", 1)
        first = list(cursor)
        cursor.rewind()
        self.assertEqual(list(cursor), first)
        self.assertEqual(list(cursor.clone()), first)

    def test_sessions(self):
        with self.client.start_session() as session:
            cursor = self.db.c.find({}, session=session, batch_size=10)
            self.assertEqual(len(list(cursor)), 5000)
            self.db.other.insert_one({"_id": 1}, session=session)
            self.assertEqual(self.db.other.find_one({}, session=session), {"_id": 1})
            self.db.other.drop(session=session)
            left_open = self.db.c.find({}, session=session, batch_size=10)
            next(left_open)
            number = left_open.cursor_id
            # A cursor belongs to the session that opened it.
            with self.refused(50738, "Location50738"):
                self.db.command("getMore", number, collection="c")
            left_open.close()

    def test_transactions_are_refused(self):
        with self.client.start_session() as session, self.refused(115, "CommandNotSupported"):
            with session.start_transaction():
                self.db.c.insert_one({}, session=session)


class Collections(Program):
    def test_dropped_under_a_cursor(self):
        self.db.c.insert_many([{"_id": i} for i in range(1000)])
        cursor = self.db.c.find(batch_size=10)
        next(cursor)
        self.db.c.drop()
        with self.refused(175, "QueryPlanKilled"):
            list(cursor)

    def test_of_nothing(self):
        self.assertEqual(list(self.db.none.find()), [])
        self.assertEqual(list(self.db.none.aggregate([{"$match": {}}])), [])
        self.assertEqual(self.db.command("find", "none")["cursor"]["id"], 0)

    def test_renamed_under_a_cursor(self):
        self.db.c.insert_many([{"_id": i} for i in range(1000)])
        cursor = self.db.c.find(batch_size=10)
        next(cursor)
        self.db.c.rename("d")
        with self.assertRaises(OperationFailure):
            list(cursor)
        self.assertEqual(self.db.d.count_documents({}), 1000)

    def test_no_tailing_without_a_capped_collection(self):
        self.db.c.insert_one({})
        with self.refused(2, "BadValue"):
            list(self.db.c.find({}, cursor_type=CursorType.TAILABLE))

    def test_writes_during_a_scan(self):
        """Each document that nobody touches is returned exactly once, whatever happens around it."""
        untouched = set(range(0, 20_000, 2))
        self.db.c.insert_many([{"_id": i, "n": i} for i in range(20_000)])
        self.db.c.create_index("n")
        stop = threading.Event()
        failures = []

        def write(seed):
            chance = random.Random(seed)
            try:
                with connect() as client:
                    c = client[self.db.name].c
                    while not stop.is_set():
                        odd = chance.randrange(0, 10_000) * 2 + 1
                        what = chance.randrange(4)
                        if what == 0:
                            c.delete_one({"_id": odd})
                        elif what == 1:
                            c.update_one({"_id": odd}, {"$set": {"n": chance.randrange(40_000)}}, upsert=True)
                        elif what == 2:
                            c.update_one({"_id": odd}, {"$set": {"pad": "x" * chance.randrange(2000)}}, upsert=True)
                        else:
                            c.update_one({"_id": 100_000 + chance.randrange(1000)}, {"$inc": {"n": 1}}, upsert=True)
            except Exception as error:
                failures.append(error)

        writers = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
        for writer in writers:
            writer.start()
        try:
            for scan in (
                lambda: self.db.c.find({}, batch_size=500),
                lambda: self.db.c.find({"n": {"$gte": 0}}, batch_size=500).hint("n_1"),
                lambda: self.db.c.find({}, batch_size=500).sort("n", 1).hint("n_1"),
                lambda: self.db.c.aggregate([{"$match": {"n": {"$gte": 0}}}], batchSize=500),
            ):
                found = [d["_id"] for d in scan() if d["_id"] in untouched]
                self.assertEqual(len(found), len(untouched))
                self.assertEqual(set(found), untouched)
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        self.assertEqual(failures, [])
        self.assertTrue(self.db.command("validate", "c", full=True)["valid"])


class Large(Program):
    def test_a_sort_over_the_memory_limit(self):
        # 120 MiB in all, and what is sorted by is random.
        chance = random.Random(3)
        for start in range(0, 1200, 100):
            self.db.c.insert_many(
                [{"_id": i, "k": chance.random(), "s": "y" * 100_000} for i in range(start, start + 100)]
            )
        keys = [d["k"] for d in self.db.c.find(sort=[("k", 1)], allow_disk_use=True)]
        self.assertEqual(len(keys), 1200)
        self.assertEqual(keys, sorted(keys))
        with self.refused(292, "QueryExceededMemoryLimitNoDiskUseAllowed"):
            list(self.db.c.find(sort=[("k", 1)], allow_disk_use=False))
        with self.refused(292, "QueryExceededMemoryLimitNoDiskUseAllowed"):
            list(self.db.c.aggregate([{"$sort": {"k": 1}}], allowDiskUse=False))
        # With a limit only what is needed is kept.
        best = [d["k"] for d in self.db.c.find(sort=[("k", 1)], limit=3, allow_disk_use=False)]
        self.assertEqual(best, keys[:3])
        # The limit of 16 MiB holds for each batch.
        reply = self.db.command("find", "c", batchSize=1000)["cursor"]
        self.assertLessEqual(len(reply["firstBatch"]), 168)
        self.db.command("killCursors", "c", cursors=[reply["id"]])
        groups = list(
            self.db.c.aggregate([{"$group": {"_id": {"$mod": ["$_id", 10]}, "n": {"$sum": 1}}}], allowDiskUse=True)
        )
        self.assertEqual({g["n"] for g in groups}, {120})


class Operations(Program):
    """A cross product that would take hours, and ways to end it."""

    HOURS = [
        {"$lookup": {"from": "c", "pipeline": [], "as": "a"}},
        {"$unwind": "$a"},
        {"$lookup": {"from": "c", "pipeline": [], "as": "b"}},
        {"$unwind": "$b"},
        {"$group": {"_id": None, "n": {"$sum": {"$multiply": ["$a.n", "$b.n"]}}}},
    ]

    def setUp(self):
        super().setUp()
        self.db.c.insert_many([{"_id": i, "n": i} for i in range(3000)])

    def test_a_time_limit(self):
        with self.refused(50, "MaxTimeMSExpired", ExecutionTimeout):
            list(self.db.c.aggregate(self.HOURS, maxTimeMS=200))
        with self.refused(50, "MaxTimeMSExpired", ExecutionTimeout):
            slow = {"$lt": [{"$sum": {"$range": [0, {"$add": [50_000, "$n"]}]}}, "$n"]}
            list(self.db.c.find({"$expr": slow}, max_time_ms=100))
        self.assertEqual(self.db.c.count_documents({}, maxTimeMS=20_000), 3000)
        with self.refused(2, "BadValue"):
            self.db.command("find", "c", maxTimeMS=-1)

    def test_seen_and_killed(self):
        outcome = []

        def run():
            try:
                with connect() as client:
                    outcome.append(list(client[self.db.name].c.aggregate(self.HOURS, comment="hours")))
            except Exception as error:
                outcome.append(error)

        thread = threading.Thread(target=run)
        thread.start()

        def seen():
            # With both ways to ask.
            shown = self.client.admin.command({"currentOp": 1, "command.comment": "hours"})["inprog"]
            staged = list(
                self.client.admin.aggregate([{"$currentOp": {}}, {"$match": {"command.comment": "hours"}}])
            )
            return shown[0] if shown and staged else None

        operation = wait_until(seen, "the aggregation is shown")
        self.assertEqual(operation["ns"], f"{self.db.name}.c")
        self.assertEqual(operation["op"], "command")
        self.assertTrue(operation["active"])
        self.assertEqual(operation["command"]["aggregate"], "c")
        self.assertGreater(operation["microsecs_running"], 0)
        reply = self.client.admin.command("killOp", op=operation["opid"])
        self.assertEqual(reply["ok"], 1.0)
        thread.join()
        self.assertIsInstance(outcome[0], OperationFailure)
        self.assertEqual((outcome[0].code, outcome[0].details["codeName"]), (11601, "Interrupted"))
        self.assertFalse(
            self.client.admin.command({"currentOp": 1, "command.comment": "hours"})["inprog"]
        )

    def test_ended_with_its_client(self):
        client = connect(socketTimeoutMS=500, retryReads=False)
        with self.assertRaises(Exception):
            list(client[self.db.name].c.aggregate(self.HOURS, comment="gone"))
        client.close()
        wait_until(
            lambda: not self.client.admin.command({"currentOp": 1, "command.comment": "gone"})["inprog"],
            "an operation whose client is gone ends",
        )


if __name__ == "__main__":
    unittest.main()
