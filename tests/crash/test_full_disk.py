"""A disk that fills up under load.

The disk is a small file system in memory, mounted in a mount namespace of its own, so
that nothing of the machine's is touched and no root is needed where the kernel lets
users have namespaces. Where it does not, these tests are skipped and say so.

When a write fails for want of room, the server ends with one sentence and a non-zero
exit; what it acknowledged is there once there is room again. Sizes differ, because at
different moments it is the log, the engine or a new file that finds no room.
"""

import os
import subprocess
import unittest

import pymongo
from pymongo import WriteConcern

from harness import DEADLINE_S, NotStarted, Server, Workplace


class SmallDisk:
    """A file system of a given size at `place.data`, seen from inside only."""

    def __init__(self, place: Workplace, size_mib: int):
        place.data.mkdir()
        self.place = place
        mount = f"mount -t tmpfs -o size={size_mib}m tmpfs '{place.data}' && echo mounted && exec cat"
        # The namespace lives as long as this process, which waits for its input to end.
        self.holder = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if self.holder.stdout.readline() != "mounted\n":
            why = self.holder.communicate(timeout=DEADLINE_S)[1].strip()
            raise unittest.SkipTest(f"no file system of one's own here: {why}")

    def within(self) -> list[str]:
        return ["nsenter", "--target", str(self.holder.pid), "--user", "--mount", "--preserve-credentials"]

    def start(self) -> Server:
        return Server(self.place.data, within=self.within())

    def resize(self, size_mib: int) -> None:
        command = ["mount", "-o", f"remount,size={size_mib}m", self.place.data]
        subprocess.run([*self.within(), *command], check=True)

    def discard(self) -> None:
        self.holder.communicate(timeout=DEADLINE_S)


def fill(client: pymongo.MongoClient) -> tuple[int, int]:
    """Writes until the server is gone: how many were acknowledged, how many sent."""
    majority = client.full.get_collection("majority", write_concern=WriteConcern("majority"))
    early = client.full.get_collection("early", write_concern=WriteConcern(1))
    sent = 0
    while True:
        # What could be compressed would fill nothing.
        noise = os.urandom(64 * 1024)
        try:
            early.insert_one({"_id": sent, "noise": noise})
            majority.insert_one({"_id": sent, "noise": noise})
        except pymongo.errors.ConnectionFailure:
            return sent, sent + 1
        except pymongo.errors.OperationFailure:
            # Answered while the server was already on its way out.
            return sent, sent + 1
        sent += 1


class FullDisk(unittest.TestCase):
    def test_the_server_ends_and_keeps_what_it_acknowledged(self):
        for size_mib in (96, 130, 200):
            with self.subTest(size_mib=size_mib):
                self.one_disk(size_mib)

    def one_disk(self, size_mib: int) -> None:
        place = Workplace("full")
        disk = SmallDisk(place, size_mib)
        try:
            server = disk.start().wait_ready()
            with server.client() as client:
                acknowledged, sent = fill(client)
            self.assertNotEqual(server.wait_end(), 0)
            self.check_sentence(server)

            # Still no room: it says so again, or serves what it has.
            server = disk.start()
            try:
                server.wait_ready()
                server.terminate()
            except NotStarted:
                self.check_sentence(server)

            disk.resize(size_mib * 4)
            server = disk.start().wait_ready()
            with server.client() as client:
                for name in ("majority", "early"):
                    ids = [found["_id"] for found in client.full[name].find({}, {"_id": 1})]
                    self.assertGreaterEqual(len(ids), acknowledged, name)
                    self.assertLessEqual(len(ids), sent, name)
                    self.assertEqual(sorted(ids), list(range(len(ids))), name)
                    self.assertTrue(client.full.command("validate", name)["valid"], name)
                client.full.majority.insert_one({"_id": "there is room"})
            self.assertEqual(server.terminate(), 0)
        finally:
            disk.discard()
        place.discard()

    def check_sentence(self, server: Server) -> None:
        said = [line for line in server.stderr().splitlines() if line.startswith("terndb: ")]
        self.assertEqual(len(said), 1, server.stderr())
        # What the engine does in the background tells us only that it failed.
        self.assertRegex(said[0], "No space left on device|a write in the background failed")
        self.assertNotIn("Error", said[0])
        self.assertNotIn("panicked", server.stderr())


if __name__ == "__main__":
    unittest.main()
