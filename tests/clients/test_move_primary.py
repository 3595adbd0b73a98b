"""The primary of a database moves between two shards while its unsharded collections are written and read, while
collections and indexes come and go, and while shards and the config server are killed.

Every write carries a value of its own. Afterwards nothing that was acknowledged is missing, nothing is there twice,
and each collection is the one that it was, with its options and indexes.
"""

import random
import shutil
import signal
import tempfile
import threading
import time
import unittest
from pathlib import Path

from pymongo.errors import PyMongoError

from server import DEADLINE_S, connect, only_terndb, wait_until
from test_cluster_processes import Role

BIRDS = 300
MOVES_WANTED = 4


@only_terndb
class MovePrimary(unittest.TestCase):
    def setUp(self):
        self.directory = Path(tempfile.mkdtemp(prefix="terndb-move-primary-"))
        self.addCleanup(shutil.rmtree, self.directory, True)
        self.seed = random.randrange(1 << 32)
        self.chance = random.Random(self.seed)
        self.config = self.run_role("config", "config")
        self.config.initiate()
        self.shards = [self.run_role("shard", f"shard{at}") for at in range(2)]
        routers = [self.run_role("router", f"router{at}") for at in range(2)]
        self.client, self.other = (connect(f"mongodb://127.0.0.1:{router.port}") for router in routers)
        for client in (self.client, self.other):
            self.addCleanup(client.close)
        for shard in self.shards:
            shard.initiate()
            self.insist("addShard", shard.connection)
        self.insist("enableSharding", "fleet", primaryShard="shard0")
        # The one that moves the primary is not the one that the writers use: theirs knows nothing of it.
        self.fleet = self.other.fleet
        self.fleet.birds.insert_many([{"_id": number, "seen": []} for number in range(BIRDS)])
        self.fleet.create_collection("limits", changeStreamPreAndPostImages={"enabled": True})
        self.fleet.limits.insert_one({"_id": 1, "n": 1})
        self.fleet.birds.create_index("seen", name="seen")
        self.insist("shardCollection", "fleet.spread", key={"k": 1})
        self.fleet.spread.insert_many([{"_id": number, "k": number} for number in range(50)])
        self.done = threading.Event()
        self.failures, self.moved, self.not_moved, self.kills = [], 0, [], 0
        self.inserted, self.pushed, self.unknown = [], [], []

    def run_role(self, role: str, name: str) -> Role:
        config = None if role == "config" else self.config.connection
        running = Role(role, name, self.directory, config)
        self.addCleanup(running.errors.close)
        self.addCleanup(running.stop)
        return running

    def insist(self, name: str, value, database: str = "admin", **options):
        """Runs a command until whoever has to carry it out is there."""
        last = []

        def attempt():
            try:
                return self.client[database].command(name, value, **options)
            except PyMongoError as error:
                last[:] = [error]
                return None

        try:
            return wait_until(attempt, f"{name} {value}")
        except AssertionError as waited:
            raise AssertionError(f"{waited}: {last}") from None

    def primary(self):
        try:
            return self.client.config.databases.find_one({"_id": "fleet"})["primary"]
        except PyMongoError:
            return None

    # What goes on at the same time.

    def until_done(self, work):
        def run():
            try:
                while not self.done.is_set():
                    work()
            except Exception as surprise:  # noqa: BLE001
                self.failures.append(repr(surprise))
                self.done.set()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def value(self) -> str:
        return f"v{self.chance.getrandbits(64):016x}"

    def write(self):
        value, number = self.value(), self.chance.randrange(BIRDS)
        try:
            self.fleet.birds.insert_one({"_id": value})
            self.inserted.append(value)
        except PyMongoError:
            self.unknown.append(value)
        value = self.value()
        try:
            result = self.fleet.birds.update_one({"_id": number}, {"$push": {"seen": value}})
        except PyMongoError:
            self.unknown.append(value)
            return
        if result.matched_count != 1:
            raise AssertionError(f"bird {number} was not found by a write")
        self.pushed.append((number, value))

    def read(self):
        number = self.chance.randrange(BIRDS)
        try:
            found = self.fleet.birds.find_one({"_id": number})
            counted = self.fleet.birds.count_documents({"_id": {"$type": "number"}})
            listed = self.fleet.list_collection_names(filter={"name": {"$in": ["birds", "limits", "spread"]}})
        except PyMongoError:
            return
        if found is None or counted != BIRDS or sorted(listed) != ["birds", "limits", "spread"]:
            raise AssertionError(f"read {found}, counted {counted}, listed {listed}")

    def scan(self):
        """A cursor ends with an error, or has met every document once."""
        try:
            cursor = self.fleet.birds.find({"_id": {"$type": "number"}}, {"_id": 1}, batch_size=20)
            numbers = sorted(bird["_id"] for bird in cursor)
        except PyMongoError:
            return
        if numbers != list(range(BIRDS)):
            raise AssertionError(f"a scan has met {len(numbers)} of {BIRDS}")

    def change(self):
        """Collections and indexes that come and go."""
        name = f"short{self.chance.randrange(3)}"
        try:
            if self.chance.random() < 0.5:
                self.fleet[name].insert_one({"_id": self.value()})
                self.fleet[name].create_index("a")
            else:
                self.fleet[name].drop()
        except PyMongoError:
            pass
        self.done.wait(self.chance.uniform(0.05, 0.5))

    def move(self):
        before = self.primary()
        to = "shard1" if before == "shard0" else "shard0"
        try:
            self.client.admin.command("movePrimary", "fleet", to=to)
            if before:
                self.moved += 1
        except PyMongoError as error:
            self.not_moved.append(str(error))
        self.done.wait(0.1)

    def kill(self):
        if self.done.wait(self.chance.uniform(0.5, 3)):
            return
        # On a busy machine moves come to their end when nobody disturbs them.
        if time.monotonic() > self.until:
            return
        role = self.chance.choice([*self.shards, self.config])
        role.stop(signal.SIGKILL)
        role.start()
        self.kills += 1

    # The whole.

    def load(self, work, load_s: float):
        self.until = time.monotonic() + load_s
        threads = [self.until_done(part) for part in work]
        try:
            wait_until(
                lambda: self.done.is_set() or (time.monotonic() > self.until and self.moved >= MOVES_WANTED),
                f"{MOVES_WANTED} moves under load: {self.not_moved[-3:]}",
                load_s + 2 * DEADLINE_S,
            )
        finally:
            self.done.set()
            for thread in threads:
                thread.join()
        told = f"seed {self.seed}, {self.moved} moves, {self.kills} kills, not moved: {self.not_moved[-3:]}"
        self.assertEqual(self.failures, [], told)
        self.check(told)

    def check(self, told: str):
        def is_settled():
            try:
                return self.client.config.terndb_operations.count_documents({"kind": {"$ne": "outcome"}}) == 0
            except PyMongoError:
                return False

        wait_until(is_settled, f"the operation comes to its end; {told}")
        birds = {bird["_id"]: bird for bird in wait_until(self.everything, "everything can be read")}
        self.assertEqual([value for value in self.inserted if value not in birds], [], f"inserts are lost; {told}")
        known = {*range(BIRDS), *self.inserted, *self.unknown}
        self.assertEqual([bird for bird in birds if bird not in known], [], told)
        pushed = {}
        for number, value in self.pushed:
            pushed.setdefault(number, set()).add(value)
        for number in range(BIRDS):
            seen = birds[number]["seen"]
            self.assertEqual(len(seen), len(set(seen)), f"an update of {number} happened twice; {told}")
            self.assertEqual(pushed.get(number, set()) - set(seen), set(), f"updates are lost; {told}")
        self.assertEqual(self.fleet.spread.count_documents({}), 50)
        self.assertIn("seen", self.fleet.birds.index_information())
        (limits,) = self.fleet.list_collections(filter={"name": "limits"})
        self.assertEqual(limits["options"], {"changeStreamPreAndPostImages": {"enabled": True}}, told)
        reply = self.insist("checkMetadataConsistency", 1)
        self.assertEqual(reply["cursor"]["firstBatch"], [], told)
        self.assertTrue(self.insist("validate", "birds", database="fleet")["valid"], told)
        self.check_places(told)

    def everything(self):
        try:
            return list(self.fleet.birds.find())
        except PyMongoError:
            return None

    def check_places(self, told: str):
        """Unsharded collections are on the primary alone."""
        primary = self.primary()
        for shard in self.shards:
            with connect(f"mongodb://127.0.0.1:{shard.port}/?directConnection=true") as server:
                names = set(server.fleet.list_collection_names())
                if shard.name == primary:
                    self.assertLessEqual({"birds", "limits", "spread"}, names, told)
                else:
                    wait_until(
                        lambda: set(server.fleet.list_collection_names()) <= {"spread"},
                        f"{shard.name} gives its collections up; {told}",
                    )

    def test_collections_move_while_they_are_in_use(self):
        uuid = self.uuids()
        work = [self.write, self.write, self.read, self.scan, self.change, self.move]
        self.load(work, 8)
        self.assertEqual(self.uuids(), uuid)

    def uuids(self):
        listed = self.fleet.list_collections(filter={"name": {"$in": ["birds", "limits"]}})
        return sorted((one["name"], one["info"]["uuid"]) for one in listed)

    def test_nothing_is_lost_when_servers_are_killed(self):
        work = [self.write, self.write, self.read, self.scan, self.change, self.move, self.kill]
        self.load(work, 20)

    def test_a_shard_that_was_a_primary_is_removed(self):
        version = self.client.config.databases.find_one({"_id": "fleet"})["version"]
        reply = self.insist("removeShard", "shard0")
        self.assertEqual((reply["state"], reply["dbsToMove"]), ("started", ["fleet"]))
        reply = self.insist("removeShard", "shard0")
        self.assertEqual((reply["state"], reply["dbsToMove"]), ("ongoing", ["fleet"]))
        self.assertEqual(self.client.admin.command("movePrimary", "fleet", to="shard1")["ok"], 1.0)
        moved = self.client.config.databases.find_one({"_id": "fleet"})
        self.assertEqual(moved["primary"], "shard1")
        self.assertEqual(moved["version"], {**version, "lastMod": version["lastMod"] + 1})
        wait_until(lambda: self.insist("removeShard", "shard0")["state"] == "completed", "shard0 is removed")
        self.assertEqual(self.fleet.birds.count_documents({}), BIRDS)
        self.assertEqual(self.fleet.spread.count_documents({}), 50)

    def test_what_is_written_into_another_database_goes_where_that_lives_now(self):
        into = {"db": "guests", "coll": "seen"}
        added = [{"$set": {"n": {"$add": ["$n", 1]}}}]
        kept = {"_id": 7, "n": 1}
        cases = [
            ({"$merge": {"into": into, "whenNotMatched": "discard"}}, [{"_id": 1, "n": 1, "here": 1}, kept]),
            ({"$merge": {"into": into, "whenMatched": added, "whenNotMatched": "discard"}}, [{"_id": 1, "n": 2}, kept]),
            ({"$merge": {"into": into}}, [{"_id": 1, "n": 1, "here": 1}, {"_id": 2, "here": 1}, kept]),
            ({"$merge": {"into": into, "whenMatched": added}}, [{"_id": 1, "n": 2}, {"_id": 2, "here": 1}, kept]),
            ({"$out": into}, [{"_id": 1, "here": 1}, {"_id": 2, "here": 1}]),
        ]
        self.insist("enableSharding", "guests", primaryShard="shard0")
        for stage, expected in cases:
            with self.subTest(stage=stage):
                self.insist("movePrimary", "guests", to="shard0")
                # Both databases are on one shard, as far as this router knows.
                self.other.guests.seen.drop()
                self.other.guests.seen.insert_many([{"_id": 1, "n": 1}, kept])
                self.insist("movePrimary", "guests", to="shard1")
                pipeline = [{"$match": {"_id": {"$in": [1, 2]}}}, {"$project": {"here": {"$literal": 1}}}, stage]
                self.fleet.birds.aggregate(pipeline)
                found = self.client.guests.seen.find(sort=[("_id", 1)])
                self.assertEqual(list(found), expected)
                self.assertEqual(self.client.guests.list_collection_names(), ["seen"])


if __name__ == "__main__":
    unittest.main()
