"""Change streams and `local.oplog.rs` as drivers use them.

`SideBySide` does the same to the real `mongod` and to the server under test and compares what their
streams and oplogs tell. It needs TERNDB_MONGOD (scripts/test fetches one) and is skipped without it.
"""

import os
import random
import shutil
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

import pymongo
from bson import Timestamp
from pymongo.cursor import CursorType
from server import DEADLINE_S, Process, Program, connect, free_ports, only_terndb, wait_until

MONGOD = Path(os.environ.get("TERNDB_MONGOD") or Path.home() / ".cache/terndb/mongod")
# How long a stream waits for news where nobody is to write any.
SHORT_MS = 50
VOLATILE = {"_id", "clusterTime", "wallTime", "collectionUUID", "lsid", "txnNumber"}


def told(event: dict) -> dict:
    """An event without what differs from run to run."""
    return {name: value for name, value in event.items() if name not in VOLATILE}


def drain(stream, client: pymongo.MongoClient) -> list[dict]:
    """All events of what has happened by now. A look that finds nothing may only have been too short."""
    now = client.admin.command("ping")["operationTime"]
    deadline = time.monotonic() + DEADLINE_S
    events = []
    while stream.alive:
        event = stream.try_next()
        if event is not None:
            events.append(event)
        elif time_of(stream.resume_token) >= now:
            break
        assert time.monotonic() < deadline, "the stream does not go on"
    return events


def time_of(token: dict) -> Timestamp:
    """The time at which a resume token stands: it follows the first byte."""
    data = bytes.fromhex(token["_data"])
    return Timestamp(int.from_bytes(data[1:5], "big"), int.from_bytes(data[5:9], "big"))


class Streams(Program):
    def test_collection_database_and_client(self):
        c = self.db.create_collection("c")
        with c.watch() as of_collection, self.db.watch() as of_database, self.client.watch() as of_client:
            c.insert_one({"_id": 1, "x": 1})
            c.update_one({"_id": 1}, {"$set": {"x": 2}})
            self.db.other.insert_one({"_id": 2})
            c.delete_one({"_id": 1})
            kinds = [event["operationType"] for event in (next(of_collection) for _ in range(3))]
            self.assertEqual(kinds, ["insert", "update", "delete"])
            names = [event["ns"]["coll"] for event in (next(of_database) for _ in range(4))]
            self.assertEqual(names, ["c", "c", "other", "c"])
            events = [event for event in drain(of_client, self.client) if event["ns"]["db"] == self.db.name]
            self.assertEqual(len(events), 4)

    def test_events_come_in_order_while_they_are_written(self):
        c = self.db.create_collection("c")
        count = 300

        def write():
            for number in range(count):
                c.insert_one({"_id": number})

        with c.watch(batch_size=7) as stream:
            writer = threading.Thread(target=write)
            writer.start()
            seen = [next(stream)["documentKey"]["_id"] for _ in range(count)]
            writer.join()
        self.assertEqual(seen, list(range(count)))

    def test_pipelines(self):
        c = self.db.create_collection("c")
        stages = [{"$match": {"fullDocument.x": {"$gt": 1}}}, {"$set": {"twice": {"$multiply": ["$fullDocument.x", 2]}}}]
        with c.watch(stages) as stream:
            c.insert_many([{"_id": n, "x": n} for n in range(4)])
            self.assertEqual([next(stream)["twice"] for _ in range(2)], [4, 6])
        with c.watch([{"$project": {"_id": 0}}]) as stream:
            c.insert_one({"_id": 9})
            with self.refused(280, "ChangeStreamFatalError"):
                next(stream)

    def test_resume_options(self):
        c = self.db.create_collection("c")
        with c.watch() as stream:
            c.insert_many([{"_id": n} for n in range(5)])
            events = [next(stream) for _ in range(5)]
            last = stream.resume_token
        for option in ("resume_after", "start_after"):
            for at, event in enumerate(events):
                with c.watch(**{option: event["_id"]}, max_await_time_ms=SHORT_MS) as stream:
                    self.assertEqual(drain(stream, self.client), events[at + 1 :])
        with c.watch(resume_after=last, max_await_time_ms=SHORT_MS) as stream:
            self.assertEqual(drain(stream, self.client), [])
        with c.watch(start_at_operation_time=events[0]["clusterTime"], max_await_time_ms=SHORT_MS) as stream:
            self.assertEqual(drain(stream, self.client), events)

    def test_the_token_moves_on_without_events(self):
        c = self.db.create_collection("c")
        with c.watch() as stream:
            before = stream.resume_token
            self.db.other.insert_one({"_id": 1})
            wait_until(
                lambda: stream.try_next() is None and stream.resume_token != before,
                "a token behind what is not watched",
            )
            token = stream.resume_token
        c.insert_one({"_id": 1})
        with c.watch(resume_after=token) as stream:
            self.assertEqual(next(stream)["documentKey"], {"_id": 1})

    def test_invalidate(self):
        c = self.db.create_collection("c")
        with c.watch() as stream:
            c.insert_one({"_id": 1})
            c.drop()
            kinds = [event["operationType"] for event in stream]
        self.assertEqual(kinds, ["insert", "drop", "invalidate"])
        self.assertFalse(stream.alive)
        token = stream.resume_token
        with self.refused(260, "InvalidResumeToken"):
            c.watch(resume_after=token)
        c.insert_one({"_id": 2})
        with c.watch(start_after=token) as stream:
            self.assertEqual(next(stream)["fullDocument"], {"_id": 2})

    def test_images(self):
        c = self.db.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
        with c.watch(full_document="required", full_document_before_change="required") as stream:
            c.insert_one({"_id": 1, "x": 1})
            c.update_one({"_id": 1}, {"$inc": {"x": 1}})
            c.replace_one({"_id": 1}, {"y": 1})
            c.delete_one({"_id": 1})
            images = [(e.get("fullDocumentBeforeChange"), e.get("fullDocument")) for e in (next(stream) for _ in range(4))]
        self.assertEqual(
            images,
            [
                (None, {"_id": 1, "x": 1}),
                ({"_id": 1, "x": 1}, {"_id": 1, "x": 2}),
                ({"_id": 1, "x": 2}, {"_id": 1, "y": 1}),
                ({"_id": 1, "y": 1}, None),
            ],
        )
        plain = self.db.create_collection("plain")
        with plain.watch(full_document="updateLookup", full_document_before_change="whenAvailable") as stream:
            plain.insert_one({"_id": 1, "x": 1})
            plain.update_one({"_id": 1}, {"$inc": {"x": 1}})
            plain.update_one({"_id": 1}, {"$inc": {"x": 1}})
            events = [next(stream) for _ in range(3)]
        self.assertEqual(events[1]["fullDocument"], {"_id": 1, "x": 3})
        self.assertIsNone(events[1]["fullDocumentBeforeChange"])

    def test_a_wait_ends_with_news_or_with_its_time(self):
        c = self.db.create_collection("c")
        with c.watch(max_await_time_ms=50) as stream:
            self.assertIsNone(stream.try_next())
        with c.watch(max_await_time_ms=2 * DEADLINE_S * 1000) as stream:
            timer = threading.Timer(0.2, c.insert_one, [{"_id": 1}])
            timer.start()
            began = time.monotonic()
            self.assertEqual(next(stream)["documentKey"], {"_id": 1})
            self.assertLess(time.monotonic() - began, DEADLINE_S)
            timer.join()


class Oplog(Program):
    def entries(self, since: Timestamp) -> list[dict]:
        found = self.client.local["oplog.rs"].find({"ts": {"$gt": since}})
        return [entry for entry in found if entry["ns"].startswith(self.db.name)]

    def last(self) -> Timestamp:
        return self.client.local["oplog.rs"].find().sort("$natural", -1).limit(1)[0]["ts"]

    def test_entries(self):
        since = self.last()
        self.db.c.insert_one({"_id": 1, "x": 1})
        self.db.c.update_one({"_id": 1}, {"$set": {"x": 2}})
        self.db.c.delete_one({"_id": 1})
        entries = self.entries(since)
        self.assertEqual([entry["op"] for entry in entries], ["c", "i", "u", "d"])
        self.assertEqual(entries[2]["o"], {"$v": 2, "diff": {"u": {"x": 2}}})
        for entry in entries[1:]:
            self.assertEqual(entry["ns"], f"{self.db.name}.c")
            self.assertEqual(entry["ui"], entries[0]["ui"])
            self.assertEqual(entry["stmtId"], 0)
            self.assertEqual(entry["v"], 2)
            self.assertIn("lsid", entry)
        self.assertEqual(sorted(entry["ts"] for entry in entries), [entry["ts"] for entry in entries])

    def test_tailing(self):
        oplog = self.client.local["oplog.rs"]
        query = {"ts": {"$gt": self.last()}, "ns": f"{self.db.name}.c", "op": "i"}
        cursor = oplog.find(query, cursor_type=CursorType.TAILABLE_AWAIT, oplog_replay=True)
        seen = []
        for number in range(20):
            self.db.c.insert_one({"_id": number})
            # A look that finds nothing ends, and does not end the cursor.
            seen.append(wait_until(lambda: next(cursor, None), f"the insertion of {number}")["o"]["_id"])
        self.assertEqual(seen, list(range(20)))
        self.assertTrue(cursor.alive)
        cursor.close()

    @only_terndb
    def test_it_is_not_written_by_clients(self):
        with self.refused(73):
            self.client.local["oplog.rs"].insert_one({"_id": 1})


@only_terndb
class Restart(unittest.TestCase):
    def test_a_stream_survives_the_server(self):
        directory = Path(tempfile.mkdtemp(prefix="terndb-streams-"))
        self.addCleanup(shutil.rmtree, directory, ignore_errors=True)
        [port] = free_ports(1)
        process = Process(directory / "data", port=port)
        with connect(process.uri) as client:
            c = client.test.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
            with c.watch(full_document_before_change="required") as stream:
                c.insert_one({"_id": 1, "x": 1})
                self.assertEqual(next(stream)["operationType"], "insert")
                c.update_one({"_id": 1}, {"$set": {"x": 2}})
                self.end(process)
                process = Process(directory / "data", port=port)
                # The driver resumes by itself, at the event it has not seen.
                event = next(stream)
                self.assertEqual(event["fullDocumentBeforeChange"], {"_id": 1, "x": 1})
                token = event["_id"]
            c.insert_one({"_id": 2})
        self.end(process)
        process = Process(directory / "data")
        with connect(process.uri) as client, client.test.c.watch(resume_after=token) as stream:
            self.assertEqual(next(stream)["documentKey"], {"_id": 2})
        self.end(process)

    def end(self, process):
        self.assertEqual(process.stop(), 0)
        process.errors.close()

    def test_a_waiting_stream_does_not_hold_up_the_end(self):
        directory = Path(tempfile.mkdtemp(prefix="terndb-streams-"))
        self.addCleanup(shutil.rmtree, directory, ignore_errors=True)
        process = Process(directory / "data")
        with connect(process.uri) as client:
            ended = threading.Event()

            def wait():
                # As commands, because the driver's streams look for the server when it is gone.
                opened = client.test.command("aggregate", 1, pipeline=[{"$changeStream": {}}], cursor={})
                more = {"getMore": opened["cursor"]["id"], "collection": "$cmd.aggregate"}
                try:
                    client.test.command(more | {"maxTimeMS": 2 * DEADLINE_S * 1000})
                except pymongo.errors.PyMongoError:
                    pass
                ended.set()

            threading.Thread(target=wait, daemon=True).start()

            def waits():
                operations = client.admin.command("currentOp")["inprog"]
                return any("getMore" in operation.get("command", {}) for operation in operations)

            wait_until(waits, "a getMore under way")
            self.end(process)
            self.assertTrue(ended.wait(DEADLINE_S))


class Real:
    """A real `mongod`, a replica set of one."""

    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="mongod-"))
        [port] = free_ports(1)
        self.process = subprocess.Popen(
            [MONGOD, "--replSet", "real", "--dbpath", self.directory, "--port", str(port), "--bind_ip", "127.0.0.1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        uri = f"mongodb://127.0.0.1:{port}"
        try:
            with connect(uri) as client:
                member = {"_id": 0, "host": f"127.0.0.1:{port}"}
                client.admin.command("replSetInitiate", {"_id": "real", "members": [member]})
                wait_until(lambda: client.admin.command("hello")["isWritablePrimary"], "a primary")
        except BaseException:
            self.end()
            raise
        # A driver that has seen it before it was the primary would not number its writes.
        self.client = connect(uri)

    def end(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


@only_terndb
@unittest.skipUnless(MONGOD.exists(), "no real mongod to compare with")
class SideBySide(Program):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        real = Real()
        cls.addClassCleanup(real.end)
        cls.addClassCleanup(real.client.close)
        cls.real = real.client[cls.db.name]

    def setUp(self):
        super().setUp()
        self.real.client.drop_database(self.real.name)

    def both(self, do):
        """What a program tells on the real server and here."""
        expected, found = do(self.real), do(self.db)
        self.assertEqual(len(expected), len(found), f"{expected}\n{found}")
        for real, ours in zip(expected, found):
            self.assertEqual(real, ours)
            # Fields come in the same order, too.
            self.assertEqual(str(real), str(ours))

    def test_documents(self):
        def changes(c):
            c.insert_one({"_id": 1, "x": 1, "a": [1, 2, 3], "o": {"p": 1, "q": {"r": 1}}})
            c.insert_many([{"_id": n} for n in range(2, 6)])
            for update in UPDATES:
                c.replace_one({"_id": 1}, DOCUMENT)
                c.update_one({"_id": 1}, update)
            c.update_many({"_id": {"$gt": 1}}, {"$set": {"m": 1}})
            c.find_one_and_update({"_id": 2}, {"$inc": {"m": 1}})
            c.find_one_and_replace({"_id": 2}, {"r": 1})
            c.find_one_and_delete({"_id": 2})
            c.update_one({"_id": 77}, {"$set": {"u": 1}}, upsert=True)
            c.delete_many({})

        for options in (
            {},
            {"full_document": "updateLookup"},
            {"full_document": "whenAvailable", "full_document_before_change": "whenAvailable"},
            {"show_expanded_events": True},
        ):
            for images in (False, True):

                def do(db):
                    db.drop_collection("c")
                    c = db.create_collection("c", changeStreamPreAndPostImages={"enabled": images})
                    with c.watch(**options, max_await_time_ms=SHORT_MS) as stream:
                        changes(c)
                        return [told(event) for event in drain(stream, db.client)]

                with self.subTest(options=options, images=images):
                    self.both(do)

    def test_random_updates(self):
        seed = int(os.environ.get("TERNDB_STREAMS_SEED", "1"))

        def do(db):
            draw = random.Random(seed)
            db.drop_collection("c")
            c = db.create_collection("c")
            with c.watch(max_await_time_ms=SHORT_MS) as stream:
                for number in range(400):
                    document = random_document(draw)
                    c.replace_one({"_id": 1}, document, upsert=True)
                    try:
                        c.update_one({"_id": 1}, random_update(draw))
                    except pymongo.errors.WriteError:
                        pass
                return [told(event) for event in drain(stream, db.client)]

        self.both(do)

    def test_changes_of_the_catalog(self):
        def changes(db):
            db.create_collection("a")
            db.a.insert_one({"_id": 1})
            db.a.create_index("x", name="x")
            db.b.create_index([("y", -1)], name="y", unique=True)
            db.command("collMod", "a", index={"name": "x", "hidden": True})
            db.command("collMod", "a", changeStreamPreAndPostImages={"enabled": True})
            db.a.drop_index("x")
            db.b.drop_indexes()
            db.a.rename("d")
            db.d.rename("b", dropTarget=True)
            db.b.drop()
            db.a.insert_one({"_id": 1})
            db.client.drop_database(db.name)

        def described(event):
            event = told(event)
            event.get("operationDescription", {}).pop("dropTarget", None)
            event.get("stateBeforeChange", {}).get("collectionOptions", {}).pop("uuid", None)
            for index in event.get("operationDescription", {}).get("indexes", []):
                index.pop("unique", None)
            return event

        for expanded in (False, True):

            def do(db):
                db.client.drop_database(db.name)
                with db.watch(show_expanded_events=expanded, max_await_time_ms=SHORT_MS) as of_database:
                    changes(db)
                    return [described(event) for event in drain(of_database, db.client)]

            with self.subTest(expanded=expanded):
                self.both(do)

    def test_how_collection_streams_end(self):
        def do(db):
            ended = []
            for there, end in (
                (["c"], lambda: db.c.drop()),
                (["c"], lambda: db.c.rename("e")),
                (["e"], lambda: db.e.rename("c")),
                (["c", "e"], lambda: db.e.rename("c", dropTarget=True)),
                (["c", "e"], lambda: db.client.drop_database(db.name)),
            ):
                db.client.drop_database(db.name)
                for name in there:
                    db.create_collection(name)
                with db.c.watch(max_await_time_ms=SHORT_MS) as stream:
                    end()
                    ended += [told(event) for event in drain(stream, db.client)]
                    ended.append({"alive": stream.alive})
            return ended

        self.both(do)

    def test_oplog(self):
        def do(db):
            oplog = db.client.local["oplog.rs"]
            since = oplog.find().sort("$natural", -1).limit(1)[0]["ts"]
            c = db.create_collection("c")
            c.insert_one(DOCUMENT)
            for update in UPDATES:
                c.replace_one({"_id": 1}, DOCUMENT)
                c.update_one({"_id": 1}, update)
            c.delete_one({"_id": 1})
            c.insert_many([{"_id": number} for number in range(5)])
            c.update_many({}, {"$set": {"m": 1}})
            c.bulk_write([pymongo.UpdateOne({"_id": 1}, {"$inc": {"m": 1}}), pymongo.DeleteOne({"_id": 2})])
            c.delete_many({})
            c.drop()
            db.create_collection("d")
            db.client.drop_database(db.name)
            shown = []
            for entry in oplog.find({"ts": {"$gt": since}, "ns": {"$regex": f"^{db.name}"}}):
                for name in ("ui", "ts", "t", "wall", "lsid", "txnNumber"):
                    entry.pop(name, None)
                if "prevOpTime" in entry:
                    entry["prevOpTime"] = entry["prevOpTime"]["t"] > 0
                shown.append(entry)
            return shown

        self.both(do)

    def test_going_on_behind_an_event_that_is_not_told(self):
        """Tokens of other collections, of events that the pipeline holds back, and of the ends of streams."""

        def told_by(db, name, option, token, pipeline=(), then=None, **options):
            """Kinds and keys of what a stream tells, how it ends, and the refusal, if there is one."""
            told = []

            def take(cursor, batch):
                events = cursor[batch]
                told.extend((event["operationType"], event.get("documentKey", {}).get("_id")) for event in events)
                return cursor

            stage = {"$changeStream": {option: token, **options}}
            try:
                reply = db.command("aggregate", name, pipeline=[stage, *pipeline], cursor={})
                cursor = take(reply["cursor"], "firstBatch")
                if then:
                    told.append("opened")
                    then()
                now = db.client.admin.command("ping")["operationTime"]
                deadline = time.monotonic() + DEADLINE_S
                # A token may stand right before what has just happened.
                asked = False
                while cursor["id"] and not (asked and time_of(cursor["postBatchResumeToken"]) >= now):
                    asked = True
                    collection = cursor["ns"].split(".", 1)[1]
                    cursor = db.command("getMore", cursor["id"], collection=collection, maxTimeMS=SHORT_MS)["cursor"]
                    cursor = take(cursor, "nextBatch")
                    assert time.monotonic() < deadline, "the stream does not go on"
                told.append("open" if cursor["id"] else "ended")
            except pymongo.errors.OperationFailure as refused:
                told.append((refused.code, refused.details.get("errorLabels")))
            return told

        def do(db):
            db.client.drop_database(db.name)
            shown = []
            a, b, d = (db.create_collection(name) for name in "abd")
            since = db.client.admin.command("ping")["operationTime"]
            a.insert_one({"_id": 1, "x": 1})
            b.insert_one({"_id": 2})
            a.update_one({"_id": 1}, {"$set": {"x": 5}})
            a.insert_many([{"_id": number, "x": 3} for number in (3, 4, 5)])
            d.insert_one({"_id": 1})
            d.create_index("y")
            d.insert_one({"_id": 2})
            tokens = {}
            with db.watch(start_at_operation_time=since, show_expanded_events=True, max_await_time_ms=SHORT_MS) as events:
                for event in drain(events, db.client):
                    key = event.get("documentKey", {}).get("_id")
                    tokens[event["ns"].get("coll"), event["operationType"], key] = event["_id"]
            with d.watch(start_at_operation_time=since, max_await_time_ms=SHORT_MS) as events:
                d.drop()
                dropped, invalidated = [event["_id"] for event in drain(events, db.client)][-2:]
            d.insert_one({"_id": 9})

            first, other, changed = tokens["a", "insert", 1], tokens["b", "insert", 2], tokens["a", "update", 1]
            third = tokens["a", "insert", 4]
            project = {"$project": {"documentKey": 1, "operationType": 1}}
            redact = {"$redact": {"$cond": [{"$eq": ["$documentKey._id", 5]}, "$$KEEP", "$$PRUNE"]}}
            for option in ("resumeAfter", "startAfter"):
                for name, token, pipeline, options in (
                    ("a", first, [], {}),
                    ("a", third, [], {}),
                    ("a", other, [], {}),
                    (1, other, [], {}),
                    ("a", first, [{"$match": {"operationType": "update"}}], {}),
                    ("a", first, [{"$match": {"documentKey._id": 5}}], {}),
                    ("a", third, [{"$match": {"documentKey._id": 5}}], {}),
                    ("a", first, [{"$match": {"documentKey._id": {"$in": [1, 5]}}}], {}),
                    ("a", first, [{"$match": {"fullDocument.x": 3}}], {}),
                    ("a", first, [{"$match": {"fullDocument.x": 3}}], {"fullDocument": "updateLookup"}),
                    ("a", changed, [{"$match": {"fullDocument.x": {"$in": [3, 5]}}}], {"fullDocument": "updateLookup"}),
                    ("a", first, [project, {"$match": {"documentKey._id": 5}}], {}),
                    ("a", first, [{"$addFields": {"k": "$documentKey._id"}}, {"$match": {"k": 5}}], {}),
                    ("a", first, [{"$match": {"$expr": {"$eq": ["$documentKey._id", 5]}}}], {}),
                    ("a", first, [redact], {}),
                    ("a", first, [{"$match": {"none": 1}}], {}),
                    ("d", tokens["d", "insert", 1], [], {}),
                    ("d", tokens["d", "createIndexes", None], [], {}),
                    ("d", tokens["d", "createIndexes", None], [], {"showExpandedEvents": True}),
                    ("d", tokens["d", "insert", 1], [], {"showExpandedEvents": True}),
                    ("d", dropped, [], {}),
                    ("d", dropped, [{"$match": {"operationType": "insert"}}], {}),
                    (1, dropped, [], {}),
                    ("d", invalidated, [], {}),
                    ("d", invalidated, [{"$match": {"operationType": "insert"}}], {}),
                    (1, invalidated, [], {}),
                ):
                    told = told_by(db, name, option, token, pipeline, **options)
                    shown.append({"option": option, "name": name, "pipeline": pipeline, "told": told})
                # The refusal comes with the first event.
                for token in (third, invalidated):
                    told = told_by(db, "b", option, token, then=lambda: b.replace_one({"_id": 2}, {"r": 1}))
                    shown.append({"option": option, "told": told})
            return shown

        self.both(do)

    def test_refusals(self):
        event = "826AFA420D000000032B022C0100296E5A1004041D04057F784D15806D2209D18ABD87461E5F6964002B020004"
        specifications = [
            5,
            {"no": 1},
            {"fullDocument": "x"},
            {"fullDocument": 1},
            {"fullDocument": None},
            {"fullDocumentBeforeChange": "x"},
            {"resumeAfter": 1},
            {"resumeAfter": {}},
            {"resumeAfter": {"_data": 1}},
            {"resumeAfter": {"_data": ""}},
            {"resumeAfter": {"_data": "zz"}},
            {"resumeAfter": {"_data": "82"}},
            {"resumeAfter": {"_data": event}},
            {"resumeAfter": {"_data": "82FFFFFF01000000032B0229296E04"}},
            {"startAtOperationTime": Timestamp(4000000000, 1)},
            {"startAtOperationTime": 1},
            {"startAtOperationTime": Timestamp(1, 1), "resumeAfter": {"_data": event}},
            {"startAfter": {"_data": event}, "resumeAfter": {"_data": event}},
            {"showExpandedEvents": 1},
            {"showMigrationEvents": False},
            {"showMigrationEvents": 1},
            {"showSystemEvents": False, "showRawUpdateDescription": False},
            {"allChangesForCluster": True},
        ]
        stages = [
            {"$match": {}}, {"$project": {"_id": 0}}, {"$addFields": {"z": 1}}, {"$unset": "z"}, {"$redact": "$$KEEP"},
            {"$replaceRoot": {"newRoot": {"_id": "$_id"}}}, {"$replaceWith": {"_id": 1}}, {"$group": {"_id": 1}},
            {"$sort": {"a": 1}}, {"$limit": 1}, {"$skip": 1}, {"$lookup": {"from": "a", "as": "x", "pipeline": []}},
            {"$unwind": "$a"}, {"$out": "x"}, {"$merge": "x"}, {"$facet": {"a": []}}, {"$count": "x"},
            {"$sample": {"size": 1}}, {"$changeStream": {}}, {"$unionWith": "x"}, {"$sortByCount": "$x"},
            {"$collStats": {}}, {"$changeStreamSplitLargeEvent": {}},
        ]
        pipelines = [[{"$changeStream": specification}] for specification in specifications]
        pipelines += [[{"$changeStream": {}}, stage] for stage in stages]
        pipelines += [[{"$match": {}}, {"$changeStream": {}}], [{"$facet": {"x": [{"$changeStream": {}}]}}]]
        commands = [{"aggregate": "c", "pipeline": pipeline, "cursor": {}} for pipeline in pipelines]
        commands += [
            {"aggregate": 1, "pipeline": [{"$changeStream": {}}], "cursor": {}},
            {"aggregate": "nothing", "pipeline": [{"$changeStream": {}}], "cursor": {}},
            {"aggregate": "system.views", "pipeline": [{"$changeStream": {}}], "cursor": {}},
            {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}, "readConcern": {"level": "local"}},
            {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}, "readConcern": {"level": "majority"}},
        ]

        def do(db):
            db.create_collection("c")
            answers = []
            for command in commands:
                try:
                    cursor = db.command(command)["cursor"]
                    answers.append({"command": str(command), "fields": sorted(cursor), "open": cursor["id"] != 0})
                except pymongo.errors.OperationFailure as error:
                    answers.append({"command": str(command), "code": error.code, "name": error.details["codeName"]})
            return answers

        self.both(do)


DOCUMENT = {"_id": 1, "x": 1, "a": [1, 2, 3], "o": {"p": 1, "q": {"r": 1}}, "e": [], "d": [{"k": 1}, {"k": 2}]}

UPDATES = [
    {"$set": {"x": 2, "new": 5}},
    {"$set": {"x": 2.0}},
    {"$set": {"o": {"p": 1, "q": {"r": 2}}}},
    {"$set": {"o.q.r": 2, "n.m": 1}, "$unset": {"o.p": 1}},
    {"$unset": {"x": 1, "a": 1}},
    {"$rename": {"x": "y"}},
    {"$rename": {"o.p": "o.s"}},
    {"$inc": {"o.p": 1}},
    {"$push": {"a": 4}},
    {"$push": {"a": {"$each": [0], "$position": 0}}},
    {"$push": {"a": {"$each": [9, 8], "$slice": -2}}},
    {"$push": {"e": 1}},
    {"$addToSet": {"a": 9}},
    {"$pull": {"a": 2}},
    {"$pop": {"a": 1}},
    {"$pop": {"a": -1}},
    {"$set": {"a.1": 7}},
    {"$set": {"a.5": 7}},
    {"$unset": {"a.0": 1}},
    {"$set": {"d.0.k": 9}},
    {"$set": {"d.$[].k": 2}},
    {"$inc": {"d.$[].k": 2}},
    {"$set": {"d.1.z": 1, "a.0": 5}},
    {"$mul": {"x": 3}},
    {"$min": {"x": 0}},
    {"$bit": {"x": {"or": 8}}},
    [{"$set": {"x": 5}}],
    [{"$set": {"a": [1, 2]}}],
    [{"$set": {"a": [1, 5, 3, 4]}}],
    [{"$set": {"o": {"q": {"r": 5}, "p": 1}}}],
    [{"$unset": ["o.q", "e"]}],
    [{"$set": {"d": [{"k": 1}, {"k": 3}]}}],
    [{"$replaceWith": {"_id": 1, "whole": True}}],
    [{"$replaceWith": {"_id": 1, "a": "$a", "x": "$x"}}],
    [{"$set": {"long": "0123456789012345678901234567890123456789", "x": 2}}],
]


def random_value(draw: random.Random, depth: int):
    kind = draw.randrange(8 if depth > 0 else 5)
    if kind < 2:
        return draw.randrange(4)
    if kind == 2:
        return float(draw.randrange(3))
    if kind == 3:
        return "s" * draw.randrange(30)
    if kind == 4:
        return None
    if kind == 5:
        return [random_value(draw, depth - 1) for _ in range(draw.randrange(5))]
    return {name: random_value(draw, depth - 1) for name in draw.sample("abcd", draw.randrange(4))}


def random_document(draw: random.Random) -> dict:
    return {"_id": 1} | {name: random_value(draw, 3) for name in draw.sample("abcd", draw.randrange(1, 5))}


def random_path(draw: random.Random) -> str:
    return ".".join([draw.choice("abcd")] + [draw.choice("abcd012") for _ in range(draw.randrange(3))])


def random_update(draw: random.Random):
    if draw.randrange(3) == 0:
        document = {name: {"$literal": random_value(draw, 2)} for name in draw.sample("abcd", draw.randrange(1, 3))}
        return [{"$set": document}]
    operator = draw.choice(["$set", "$set", "$unset", "$inc", "$push", "$addToSet", "$pull", "$pop", "$min"])
    operand = {"$inc": 1, "$pop": draw.choice([1, -1])}.get(operator)
    paths = {random_path(draw): operand if operand is not None else random_value(draw, 2) for _ in range(draw.randrange(1, 3))}
    return {operator: paths}


if __name__ == "__main__":
    unittest.main()
