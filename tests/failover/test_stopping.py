"""A member that is told to stop, as connections notice it that were open before: it says so, refuses new work, finishes
what runs, and ends when nobody is left to be told, or when their time is over."""

import sys
import threading
import unittest
from pathlib import Path

from members import DEADLINE_S, Member, ReplicaSet, wait_until

sys.path.append(str(Path(__file__).resolve().parents[1] / "crash"))
from raw import Connection  # noqa: E402

SHUTDOWN_IN_PROGRESS = 91
# Far longer than anybody here waits: a member that ends before has not waited for it.
LONG_MS = 10 * DEADLINE_S * 1000
NEW_WORK = (
    {"find": "birds", "$readPreference": {"mode": "nearest"}},
    {"insert": "birds", "documents": [{"_id": "late"}]},
)
# Some tenths of a second of work, on a machine that has time.
SUM = {"$reduce": {"input": {"$range": [0, 40_000]}, "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}}
LONG_WORK = {
    "aggregate": "birds",
    "pipeline": [{"$project": {"sum": SUM}}],
    "cursor": {},
    "comment": "long work",
    "$readPreference": {"mode": "nearest"},
}


class Stopping(unittest.TestCase):
    def members(self, count: int, quiesce_ms: int) -> ReplicaSet:
        parameter = f"shutdownTimeoutMillisForSignaledShutdown={quiesce_ms}"
        replica_set = ReplicaSet(count, settings=f'set_parameter = ["{parameter}"]\n')
        self.addCleanup(replica_set.stop)
        primary = replica_set.wait_primary()
        primary.tell({"insert": "birds", "documents": [{"_id": 0}]}, "test")
        return replica_set

    def hears_of_the_end(self, connection: Connection) -> dict | None:
        hello = connection.command("admin", {"hello": 1})
        return hello if hello["ok"] == 0 else None

    def check_told(self, member: Member, open_before: Connection, work: Connection) -> None:
        """Stops a member to which both connections are open."""
        done = []
        working = threading.Thread(target=lambda: done.append(work.command("test", LONG_WORK)))
        working.start()

        def works() -> bool:
            reply = open_before.command("admin", {"currentOp": 1, "command.comment": "long work"})
            return bool(reply["inprog"]) or bool(done)

        wait_until(works, "the work has begun")
        member.process.terminate()
        hello = wait_until(lambda: self.hears_of_the_end(open_before), "the member says that it stops")
        self.assertEqual((hello["code"], hello["codeName"]), (SHUTDOWN_IN_PROGRESS, "ShutdownInProgress"))
        self.assertIn("topologyVersion", hello)
        self.assertTrue(0 < hello["remainingQuiesceTimeMillis"] <= LONG_MS, hello)
        for command in NEW_WORK:
            reply = open_before.command("test", command)
            self.assertEqual(reply.get("code"), SHUTDOWN_IN_PROGRESS, reply)
        self.assertEqual(open_before.command("admin", {"ping": 1})["ok"], 1)
        working.join(2 * DEADLINE_S)
        self.assertEqual([reply["ok"] for reply in done], [1.0], done)
        self.assertIsNone(member.process.poll(), "it waits for its clients")

    def test_open_connections_are_told(self):
        replica_set = self.members(3, LONG_MS)
        primary = replica_set.wait_primary()
        secondary = next(member for member in replica_set.members if member is not primary)

        def has_it() -> bool:
            count = {"count": "birds", "$readPreference": {"mode": "nearest"}}
            return secondary.tell(count, "test")["n"] == 1

        wait_until(has_it, "the secondary has the document")
        for member in (secondary, primary):
            open_before, work = Connection(member.port), Connection(member.port)
            self.check_told(member, open_before, work)
            for connection in (open_before, work):
                connection.socket.close()
            self.assertEqual(member.process.wait(DEADLINE_S), 0, member.tail())
            member.start()
            wait_until(lambda: replica_set.settled(), "it is back")

    def test_a_connection_that_is_kept_holds_nobody_up_for_longer(self):
        replica_set = self.members(3, 100)
        primary = replica_set.wait_primary()
        kept = Connection(primary.port)
        self.assertEqual(kept.command("admin", {"ping": 1})["ok"], 1)
        self.assertEqual(primary.terminate(), 0, primary.tail())

    def test_the_only_member_stops_at_once(self):
        """There is nobody else to go to."""
        replica_set = self.members(1, LONG_MS)
        (only,) = replica_set.members
        kept = Connection(only.port)
        self.assertEqual(kept.command("admin", {"ping": 1})["ok"], 1)
        self.assertEqual(only.terminate(), 0, only.tail())


if __name__ == "__main__":
    unittest.main()
