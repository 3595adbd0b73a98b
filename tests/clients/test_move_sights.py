"""What operators see of a move, and what it does with the greatest documents: two shards, each a process.

`terndb status --watch` shows a running move with a bar, `config.changelog` the figures of both sides, each its own. A
document of 16 MiB comes with the scan and through the log. `secondaryThrottle` reaches the recipient.
"""

import select
import subprocess
import threading
import time
import unittest

import bson

from server import DEADLINE_S, binary, connect, only_terndb, wait_until
from test_cluster_processes import Processes

LOW, HIGH = {"k": 0}, {"k": 1000}
GREATEST = 16 * 1024 * 1024


def weighing(key: int, size: int) -> dict:
    """A document of exactly so many bytes."""
    document = {"_id": key, "k": key, "t": ""}
    document["t"] = "t" * (size - len(bson.encode(document)))
    assert len(bson.encode(document)) == size
    return document


@only_terndb
class Sights(Processes):
    def setUp(self):
        super().setUp()
        self.insist(0, "enableSharding", "fleet", primaryShard="shard0")
        self.insist(0, "shardCollection", "fleet.birds", key={"k": 1})
        self.client = self.clients[0]
        self.birds = self.client.fleet.birds

    def move(self, to: str, **options):
        self.client.admin.command("moveRange", "fleet.birds", min=LOW, max=HIGH, toShard=to, **options)

    def owner(self) -> str:
        return self.client.config.chunks.find_one({"min": LOW})["shard"]

    def test_a_running_move_is_watched(self):
        for key in range(0, 1000, 50):
            self.birds.insert_many([{"k": key + at, "t": "t" * 40_000} for at in range(50)])
        done = threading.Event()
        ended = []

        def to_and_fro():
            to = "shard1"
            while not done.is_set():
                self.move(to, waitForDelete=True)
                ended.append(to)
                to = "shard0" if to == "shard1" else "shard1"

        moving = threading.Thread(target=to_and_fro)
        port = self.client.address[1]
        watch = subprocess.Popen(
            [binary(), "status", f"127.0.0.1:{port}", "--watch"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        moving.start()
        shown = b""
        try:
            until = time.monotonic() + DEADLINE_S
            while not self.is_shown(shown):
                self.assertLess(time.monotonic(), until, f"no bar in {shown[-3000:]!r}; moves: {ended}")
                if select.select([watch.stdout], [], [], 1)[0]:
                    shown += watch.stdout.read1(1 << 16)
            wait_until(self.is_in_server_status, "a running move in serverStatus")
        finally:
            done.set()
            watch.kill()
            watch.wait(DEADLINE_S)
            watch.stdout.close()
            moving.join(DEADLINE_S)
        self.assertFalse(moving.is_alive())

    def is_in_server_status(self) -> bool:
        """Whether a donor tells how far a move is, how fast, and what it is at."""
        for shard in self.shards:
            with connect(f"mongodb://127.0.0.1:{shard.port}/?directConnection=true") as direct:
                running = direct.admin.command("serverStatus")["shardingStatistics"]["runningMoves"]
            for move in running:
                phases = ("recipientBegins", "copying", "catchingUp", "writesBlocked", "readsBlocked", "committed")
                if move["desc"] == "MoveRangeDonor" and move["phase"] in phases and "percent" in move:
                    return move["bytesPerSecond"] >= 0
        return False

    def is_shown(self, text: bytes) -> bool:
        """Whether a line names the move, and has a bar with how far it is."""
        for line in text.decode(errors="replace").splitlines():
            if line.startswith("fleet.birds") and "→" in line and "%" in line:
                bar = line[line.index("[", line.index("→")) + 1 :].split("]")[0]
                return len(bar) == 24 and set(bar) <= {"#", "-"}
        return False

    def test_both_sides_tell_their_own_figures(self):
        self.birds.insert_many([{"k": key} for key in range(500)])
        self.move("shard1")
        log = self.client.config.changelog
        [to] = log.find({"what": "moveChunk.to"})
        [donor] = log.find({"what": "moveChunk.from"})
        self.assertEqual(to["details"]["clonedDocs"], 500)
        steps = {"prepareMillis", "cloneMillis", "catchUpMillis"}
        self.assertLessEqual(steps, to["details"].keys())
        steps = {"recipientBeginsMillis", "criticalSectionMicros", "commitMicros", "totalMillis"}
        self.assertLessEqual(steps, donor["details"].keys())
        self.assertNotIn("commitMicros", to["details"])
        self.assertNotIn("prepareMillis", donor["details"])

    def test_the_greatest_documents_move(self):
        self.birds.insert_many([weighing(1, GREATEST), weighing(2, GREATEST)])
        self.birds.insert_many([{"_id": key, "k": key} for key in range(3, 1000)])
        moving = threading.Thread(target=self.move, args=["shard1"])
        moving.start()
        # Through the log, or before, or behind it.
        self.birds.replace_one({"_id": 3, "k": 3}, weighing(3, GREATEST))
        self.birds.replace_one({"_id": 999, "k": 999}, weighing(999, GREATEST))
        moving.join(DEADLINE_S)
        self.assertFalse(moving.is_alive())
        self.assertEqual(self.owner(), "shard1")
        self.assertEqual(self.birds.count_documents({}), 999)
        for key in (1, 2, 3, 999):
            self.assertEqual(self.birds.find_one({"k": key}), weighing(key, GREATEST))

    def test_secondary_throttle_reaches_the_recipient(self):
        self.birds.insert_many([{"k": key} for key in range(100)])
        for throttle, stored in ((True, True), (False, False), ({"w": 2}, True)):
            to = "shard0" if self.owner_or_first() == "shard1" else "shard1"
            self.move(to, secondaryThrottle=throttle)
            shard = self.shards[int(to[-1])]
            with_throttle = self.recipients(shard)
            self.assertEqual(with_throttle[-1], stored, throttle)

    def owner_or_first(self) -> str:
        chunk = self.client.config.chunks.find_one({"min": LOW})
        return chunk["shard"] if chunk else "shard0"

    def recipients(self, shard) -> list[bool]:
        """What the moves to a shard were asked to do, in their order."""
        with connect(f"mongodb://127.0.0.1:{shard.port}") as client:
            found = list(client.config.migrationRecipients.find().sort("endedAt", 1))
        return [document["secondaryThrottle"] for document in found]


if __name__ == "__main__":
    unittest.main()
