"""kill -9 under retryable writes: whatever was under way is sent again after the restart, under the
same number, and has then happened exactly once.

Each session counts in a document of its own and in one that all share, so a statement that is lost or
runs twice shows in both. TERNDB_CRASH_ROUNDS sets the number of rounds, TERNDB_CRASH_SEED the seed.
"""

import random
import threading
import time
import unittest
import uuid

from bson import Binary, Int64

from harness import DEADLINE_S, Server, Workplace, number_from_environment
from raw import Connection
from rounds import Budget

SEED = number_from_environment("TERNDB_CRASH_SEED", 20_240_607)
SESSIONS = 6


class Session:
    """Numbered commands of one session, one after the other."""

    def __init__(self, name: int):
        self.name = name
        self.lsid = {"id": Binary(uuid.UUID(int=name + 1).bytes, 4)}
        self.number = 0
        # What was sent and not answered.
        self.open: dict | None = None
        # How many commands of each kind have happened, and the number of the last one.
        self.done = {"update": 0, "insert": 0, "findAndModify": 0}
        self.last_done = 0
        self.retried = 0

    def next_command(self, chance: random.Random) -> dict:
        self.number += 1
        increment = {"$inc": {"n": 1}}
        kind = chance.randrange(3)
        if kind == 0:
            targets = [f"own-{self.name}", "shared"]
            updates = [{"q": {"_id": target}, "u": increment, "upsert": True} for target in targets]
            return {"update": "c", "updates": updates}
        if kind == 1:
            # As many steps as the others take, but as documents.
            documents = [{"_id": f"{target}-{self.name}-{self.number}"} for target in ("own", "shared")]
            return {"insert": "d", "documents": documents}
        return {"findAndModify": "e", "query": {"_id": self.name}, "update": increment, "upsert": True, "new": True}

    def send(self, connection: Connection, command: dict) -> dict:
        return connection.command("crash", command | {"lsid": self.lsid, "txnNumber": Int64(self.number)})

    def run(self, port: int, seed: str, ended: threading.Event) -> None:
        chance = random.Random(seed)
        try:
            connection = Connection(port)
            while not ended.is_set():
                self.open = self.next_command(chance)
                self.check(self.open, self.send(connection, self.open))
                self.open = None
        except OSError:
            pass

    def settle(self, connection: Connection) -> None:
        """Sends again what was not answered, twice."""
        if self.open is None:
            return
        first = self.send(connection, self.open)
        again = self.send(connection, self.open)
        self.check(self.open, first)
        self.check(self.open, again)
        retried = {"retriedStmtIds", "retriedStmtId"}
        assert retried & set(again), f"not from history: {again}"
        for field in ("n", "nModified", "value", "lastErrorObject"):
            assert first.get(field) == again.get(field), (first, again)
        self.retried += bool(retried & set(first))
        self.open = None

    def check(self, command: dict, reply: dict) -> None:
        kind = next(iter(command))
        changed = reply["lastErrorObject"]["n"] if kind == "findAndModify" else reply.get("n", 0) // 2
        assert reply["ok"] == 1 and changed == 1 and "writeErrors" not in reply, (command, reply)
        if self.last_done < self.number:
            self.last_done = self.number
            self.done[kind] += 1


class Retry(unittest.TestCase):
    def test_every_write_happens_exactly_once(self):
        place = Workplace("retry")
        sessions = [Session(number) for number in range(SESSIONS)]
        rounds = Budget("TERNDB_CRASH_ROUNDS", default=20, default_s=40)
        for number in rounds:
            seed = f"{SEED}-{number}"
            try:
                self.one_round(place, sessions, seed)
            except BaseException as failure:
                raise AssertionError(f"round {number}: {failure}{place.evidence(seed)}") from failure
        server = Server(place.data).wait_ready()
        self.judge(server, sessions)
        self.assertEqual(server.terminate(), 0)
        answered = sum(session.retried for session in sessions)
        writes = sum(session.number for session in sessions)
        print(f"\nretry: {rounds}, {writes} writes, {answered} answered from history after a kill")
        place.discard()

    def one_round(self, place: Workplace, sessions: list[Session], seed: str) -> None:
        chance = random.Random(seed)
        server = Server(place.data).wait_ready()
        try:
            self.judge(server, sessions)
            ended = threading.Event()
            target = sum(session.number for session in sessions) + chance.randrange(20, 400)
            threads = [
                threading.Thread(target=session.run, args=(port_of(server), f"{seed}-{session.name}", ended))
                for session in sessions
            ]
            for thread in threads:
                thread.start()
            deadline = time.monotonic() + DEADLINE_S
            while sum(session.number for session in sessions) < target and time.monotonic() < deadline:
                time.sleep(0.002)
            server.kill()
            ended.set()
            for thread in threads:
                thread.join(DEADLINE_S)
        finally:
            if server.process.poll() is None:
                server.kill()

    def judge(self, server: Server, sessions: list[Session]) -> None:
        connection = Connection(port_of(server))
        for session in sessions:
            session.settle(connection)
        with server.client() as client:
            database = client["crash"]
            counts = {document["_id"]: document["n"] for document in database.c.find()}
            modified = {document["_id"]: document["n"] for document in database.e.find()}
            for session in sessions:
                self.assertEqual(counts.get(f"own-{session.name}", 0), session.done["update"])
                self.assertEqual(modified.get(session.name, 0), session.done["findAndModify"])
            self.assertEqual(counts.get("shared", 0), sum(session.done["update"] for session in sessions))
            inserted = 2 * sum(session.done["insert"] for session in sessions)
            self.assertEqual(database.d.count_documents({}), inserted)


def port_of(server: Server) -> int:
    return int(server.uri.split("/")[2].rsplit(":", 1)[1])


if __name__ == "__main__":
    unittest.main()
