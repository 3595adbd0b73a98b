"""Sessions and retryable writes: what is sent again is answered and not run again, whether a driver does
it by itself because a connection broke, or a program does it by hand, or the server was killed in between."""

import signal
import socket
import tempfile
import threading
import unittest
from pathlib import Path

from bson import Int64
from pymongo import ReturnDocument, UpdateOne
from pymongo.errors import AutoReconnect, OperationFailure

from server import DEADLINE_S, Process, Program, connect, free_ports, only_terndb


class Proxy:
    """Passes bytes on in both directions, and loses a reply when it is told to: the server has then done
    its work, and the client sees a connection that broke."""

    def __init__(self, host: str, port: int):
        self.target = (host, port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.lost = 0
        self._lose = None
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_reply_to(self, command: bytes) -> None:
        """The next request that contains these bytes loses its reply."""
        with self._lock:
            self._lose = command

    def close(self) -> None:
        self.listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.target, DEADLINE_S)
            server.settimeout(None)
            doomed = threading.Event()
            for source, sink, requests in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pass, args=(source, sink, requests, doomed), daemon=True).start()

    def _pass(self, source, sink, requests: bool, doomed: threading.Event) -> None:
        try:
            while data := source.recv(1 << 16):
                if requests:
                    with self._lock:
                        if self._lose and self._lose in data:
                            self._lose = None
                            doomed.set()
                elif doomed.is_set():
                    self.lost += 1
                    break
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            source.close()


class ByHand(Program):
    """Numbered commands, sent twice."""

    def setUp(self):
        super().setUp()
        # A client of its own, because clients use sessions again that others have left.
        self.own = connect()
        self.addCleanup(self.own.close)

    def run_twice(self, session, number: int, command: dict) -> tuple[dict, dict]:
        command = command | {"txnNumber": Int64(number)}
        replies = [self.own[self.db.name].command(command, session=session) for _ in range(2)]
        for reply in replies:
            for field in ("ok", "$clusterTime", "operationTime", "electionId", "opTime"):
                reply.pop(field, None)
        return tuple(replies)

    def test_a_write_happens_once(self):
        with self.own.start_session() as session:
            first, again = self.run_twice(session, 1, {"insert": "c", "documents": [{"_id": 1, "a": 0}, {"_id": 2}]})
            self.assertEqual((first, again), ({"n": 2}, {"n": 2, "retriedStmtIds": [0, 1]}))
            increment = {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"a": 1}}}]}
            first, again = self.run_twice(session, 2, increment)
            self.assertEqual(first, {"n": 1, "nModified": 1})
            self.assertEqual(again, {"n": 1, "nModified": 1, "retriedStmtIds": [0]})
            self.assertEqual(self.db.c.find_one(1), {"_id": 1, "a": 1})
            modify = {"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"a": 1}}}
            first, again = self.run_twice(session, 3, modify)
            self.assertEqual(first["value"], {"_id": 1, "a": 1})
            self.assertEqual(again, first | {"retriedStmtId": 0})
            first, again = self.run_twice(session, 4, {"delete": "c", "deletes": [{"q": {}, "limit": 1}]})
            self.assertEqual((first, again), ({"n": 1}, {"n": 1, "retriedStmtIds": [0]}))
            self.assertEqual(self.db.c.count_documents({}), 1)
            with self.assertRaises(OperationFailure) as refused:
                self.own[self.db.name].command(increment | {"txnNumber": Int64(2)}, session=session)
            self.assertEqual(refused.exception.code, 225)

    def test_sessions_do_not_know_each_other(self):
        increment = {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"a": 1}}, "upsert": True}]}
        sessions = [self.own.start_session() for _ in range(3)]
        for session in sessions:
            self.run_twice(session, 1, increment)
        for session in sessions:
            session.end_session()
        self.assertEqual(self.db.c.find_one(1)["a"], 3)

    def test_a_killed_session_loses_its_cursors(self):
        self.db.c.insert_many([{"_id": number} for number in range(10)])
        with self.client.start_session() as session:
            cursor = self.db.c.find(batch_size=2, session=session)
            next(cursor)
            self.client.admin.command({"killSessions": [{"id": session.session_id["id"]}]})
            with self.assertRaises(OperationFailure) as gone:
                list(cursor)
            self.assertEqual(gone.exception.code, 43)

    def test_sessions_are_listed(self):
        with self.client.start_session() as session:
            self.db.c.find_one(session=session)
            local = self.db.aggregate([{"$listLocalSessions": {}}, {"$match": {"_id.id": session.session_id["id"]}}])
            self.assertEqual(len(list(local)), 1)


@only_terndb
class Killed(unittest.TestCase):
    def test_a_retry_is_answered_after_kill_9(self):
        with tempfile.TemporaryDirectory() as directory:
            [port] = free_ports(1)
            server = Process(Path(directory), port=port)
            client = connect(server.uri)
            collection = client.test.c
            with client.start_session() as session:
                commands = [
                    {"insert": "c", "documents": [{"_id": number, "a": 0} for number in range(100)]},
                    {"update": "c", "updates": [{"q": {"_id": n}, "u": {"$inc": {"a": 1}}} for n in (1, 2, 3)]},
                    {"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"a": 1}}, "new": True},
                    {"delete": "c", "deletes": [{"q": {"_id": 99}, "limit": 1}]},
                ]
                for number, command in enumerate(commands, start=1):
                    command = command | {"txnNumber": Int64(number)}
                    first = client.test.command(command, session=session)
                    server.stop(signal.SIGKILL)
                    server.errors.close()
                    server = Process(Path(directory), port=port)
                    # A read is tried again by the driver, which so notices that the old connection is gone.
                    collection.find_one()
                    again = client.test.command(command, session=session)
                    for field in ("n", "nModified", "value", "lastErrorObject"):
                        self.assertEqual(first.get(field), again.get(field), command)
                    self.assertTrue({"retriedStmtIds", "retriedStmtId"} & set(again), again)
                self.assertEqual([d["a"] for d in collection.find({"_id": {"$lt": 4}})], [0, 2, 1, 1])
                self.assertEqual(collection.count_documents({}), 99)
            client.close()
            self.assertEqual(server.stop(), 0)
            server.errors.close()


class BrokenConnections(Program):
    """The driver retries by itself."""

    def setUp(self):
        super().setUp()
        if "setName" not in self.client.admin.command("hello"):
            self.skipTest("drivers retry writes on replica sets only")
        address = self.client.address
        self.proxy = Proxy(*address)
        self.addCleanup(self.proxy.close)
        self.through = connect(f"mongodb://127.0.0.1:{self.proxy.port}")
        self.addCleanup(self.through.close)
        self.collection = self.through[self.db.name].c
        self.through.admin.command("ping")

    def losing(self, name: str):
        self.proxy.lose_reply_to(b"\x02" + name.encode() + b"\0")
        return self.collection

    def test_every_kind_of_write(self):
        self.assertEqual(self.losing("insert").insert_one({"_id": 1, "a": 0}).inserted_id, 1)
        many = self.losing("insert").insert_many([{"_id": number, "a": 0} for number in range(2, 500)])
        self.assertEqual(len(many.inserted_ids), 498)
        result = self.losing("update").update_one({"_id": 1}, {"$inc": {"a": 1}})
        self.assertEqual((result.matched_count, result.modified_count), (1, 1))
        result = self.losing("update").update_one({"k": 1}, {"$set": {"a": 1}}, upsert=True)
        self.assertIsNotNone(result.upserted_id)
        self.assertEqual(self.collection.count_documents({"k": 1}), 1)
        self.assertEqual(self.losing("delete").delete_one({"_id": 2}).deleted_count, 1)
        found = self.losing("findAndModify").find_one_and_update({"_id": 1}, {"$inc": {"a": 1}})
        self.assertEqual(found["a"], 1)
        found = self.losing("findAndModify").find_one_and_update(
            {"_id": 1}, {"$inc": {"a": 1}}, return_document=ReturnDocument.AFTER
        )
        self.assertEqual(found["a"], 3)
        self.assertEqual(self.losing("findAndModify").find_one_and_delete({"_id": 1})["a"], 3)
        result = self.losing("update").bulk_write([UpdateOne({"_id": n}, {"$inc": {"a": 1}}) for n in range(3, 50)])
        self.assertEqual(result.modified_count, 47)
        self.assertEqual(self.collection.count_documents({"a": 1}), 48)
        self.assertEqual(self.proxy.lost, 9)

    def test_without_retries_the_program_is_told(self):
        client = connect(f"mongodb://127.0.0.1:{self.proxy.port}", retryWrites=False)
        self.addCleanup(client.close)
        client.admin.command("ping")
        self.proxy.lose_reply_to(b"\x02insert\0")
        with self.assertRaises(AutoReconnect):
            client[self.db.name].c.insert_one({"_id": 1})
        self.assertEqual(self.db.c.count_documents({}), 1)


if __name__ == "__main__":
    unittest.main()
