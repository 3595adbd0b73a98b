"""A cluster of separate processes whose config server is killed while it changes collections.

Whatever was under way is finished by the config server's next life, and the routers wait for it: clients ask once, and
are told what was done. Afterwards `checkMetadataConsistency` finds nothing, no lock is left, and what was acknowledged
is there.
"""

import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

import pymongo

from server import DEADLINE_S, binary, connect, free_ports, only_terndb, wait_until


class Role:
    """One role of a cluster, on a port that it keeps over its lives."""

    def __init__(self, role: str, name: str, directory: Path, config: str | None):
        self.name, [self.port] = name, free_ports(1)
        self.flags = [role, "--port", str(self.port), "--log-level", "warn"]
        if role != "router":
            self.flags += ["--replica-set", name, "--data", directory / name, "--cache-mb", "32"]
        if config:
            self.flags += ["--config-servers", config]
        self.errors = open(directory / f"{name}.log", "w+")
        self.start()

    @property
    def connection(self) -> str:
        return f"{self.name}/127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [binary(), *self.flags], stdout=subprocess.PIPE, stderr=self.errors, stdin=subprocess.DEVNULL, text=True
        )
        # It says so when it listens.
        if "TernDB" not in self.process.stdout.readline():
            raise AssertionError(f"{self.name} did not start")

    def initiate(self) -> None:
        with connect(f"mongodb://127.0.0.1:{self.port}") as server:
            member = {"_id": 0, "host": f"127.0.0.1:{self.port}"}
            server.admin.command("replSetInitiate", {"_id": self.name, "members": [member]})

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(DEADLINE_S)
        self.process.stdout.close()


class Processes(unittest.TestCase):
    """A config server, two shards and two routers, each a process."""

    steps = 0
    """What `insist` has got done."""

    def setUp(self):
        self.directory = Path(tempfile.mkdtemp(prefix="terndb-processes-"))
        self.addCleanup(shutil.rmtree, self.directory, True)
        self.config = self.run_role("config", "config")
        self.config.initiate()
        self.shards = shards = [self.run_role("shard", f"shard{at}") for at in range(2)]
        routers = [self.run_role("router", f"router{at}") for at in range(2)]
        self.clients = [connect(f"mongodb://127.0.0.1:{router.port}") for router in routers]
        for client in self.clients:
            self.addCleanup(client.close)
        for shard in shards:
            shard.initiate()
            self.insist(0, "addShard", shard.connection)

    def run_role(self, role: str, name: str) -> Role:
        config = None if role == "config" else self.config.connection
        running = Role(role, name, self.directory, config)
        self.addCleanup(running.errors.close)
        self.addCleanup(running.stop)
        return running

    def insist(self, router: int, name: str, value, database: str = "admin", **options):
        """Runs a command until the config server is there to carry it out."""

        def attempt():
            try:
                return self.clients[router][database].command(name, value, **options)
            except pymongo.errors.PyMongoError as error:
                # What was done before the answer was lost need not be done again.
                if getattr(error, "code", None) in (26, 72, 96):
                    return {"ok": 1.0}
                return None

        answer = wait_until(attempt, f"{name} {value}")
        self.steps += 1
        return answer


@only_terndb
class Streams(Processes):
    def test_a_shard_that_is_added_is_watched(self):
        """A stream of one router, while all the changes go through the other."""
        with self.clients[1].shop.watch() as stream:
            added = self.run_role("shard", "shard2")
            added.initiate()
            self.insist(0, "addShard", added.connection)
            self.insist(0, "shardCollection", "shop.birds", key={"a": "hashed"}, numInitialChunks=6)
            documents = [{"_id": number, "a": number} for number in range(60)]
            self.clients[0].shop.birds.insert_many(documents)
            with connect(f"mongodb://127.0.0.1:{added.port}/?directConnection=true") as shard:
                self.assertGreater(shard.shop.birds.count_documents({}), 0)
            self.clients[0].shop.birds.delete_one({"a": 7})
            self.clients[0].shop.drop_collection("birds")

            events = []

            def ended():
                event = stream.try_next()
                if event:
                    events.append(event)
                return bool(event) and event["operationType"] == "drop"

            wait_until(ended, "the collection is dropped")
            kinds = [event["operationType"] for event in events]
            self.assertEqual(kinds, ["insert"] * 60 + ["delete", "drop"])
            keys = [event["documentKey"] for event in events[:61]]
            self.assertEqual(sorted(key["_id"] for key in keys[:60]), list(range(60)))
            self.assertTrue(all(list(key.items()) == [("a", key["_id"]), ("_id", key["_id"])] for key in keys))
            # One shard tells it, not all of them.
            self.clients[0].shop.other.insert_one({})
            wait_until(lambda: (event := stream.try_next()) and events.append(event) is None, "what comes next")
            self.assertEqual(events[-1]["operationType"], "insert")


@only_terndb
class Sights(Processes):
    """What `terndb status` and `addShard` say while something is missing."""

    def status(self) -> subprocess.CompletedProcess:
        host = "{}:{}".format(*self.clients[0].address)
        return subprocess.run([binary(), "status", host], capture_output=True, text=True, timeout=2 * DEADLINE_S)

    def test_status_names_who_does_not_answer(self):
        names = [f"shop.birds{at}" for at in range(8)]
        for name in names:
            self.insist(0, "shardCollection", name, key={"a": "hashed"})
        shown = self.status()
        self.assertEqual((shown.returncode, shown.stderr), (0, ""))
        self.assertRegex(shown.stdout, rf"config\s+127.0.0.1:{self.config.port} primary")
        self.assertNotIn("no sizes", shown.stdout)
        self.shards[1].stop(signal.SIGKILL)
        began = time.monotonic()
        shown = self.status()
        # One limit for all of them: one after the other they would take 40 s.
        self.assertLess(time.monotonic() - began, 25)
        self.assertEqual(shown.returncode, 0)
        self.assertRegex(shown.stdout, rf"shard1\s+127.0.0.1:{self.shards[1].port} unreachable, no primary")
        self.assertRegex(shown.stdout, r"shop.birds7 .* 4 +2 +2 +- +-")
        self.assertIn(f"does not answer: {', '.join(names)}", shown.stdout)
        self.config.stop(signal.SIGKILL)
        shown = self.status()
        self.assertNotEqual(shown.returncode, 0)
        self.assertIn("answers, but cannot read what its config server has", shown.stderr)
        self.config.start()
        self.shards[1].start()

    def test_who_cannot_be_a_shard_is_told_why(self):
        loner = Role("shard", "loner", self.directory, None)
        self.addCleanup(loner.errors.close)
        self.addCleanup(loner.stop)
        loner.initiate()
        with self.assertRaisesRegex(pymongo.errors.OperationFailure, "start each of its members with --config-servers"):
            self.clients[0].admin.command("addShard", loner.connection)
        shards = self.clients[0].config.shards
        self.assertEqual(sorted(shards.distinct("_id")), ["shard0", "shard1"])


@only_terndb
class Routers(Processes):
    def test_a_router_that_stops_tells_its_clients(self):
        """Clients that know another router go there: no operation fails, but for one that a driver was about to
        send in the moment in which it heard of the end (it gives such a write no number, and does not retry it)."""
        stopping = self.run_role("router", "router2")
        name, other = f"127.0.0.1:{stopping.port}", self.clients[0].address
        mongos = self.clients[0].config.mongos
        wait_until(lambda: mongos.find_one({"_id": name}), "the router says that it lives")
        with connect(f"mongodb://{name}/?directConnection=true") as client:
            client.shop.birds.insert_many([{"_id": number} for number in range(10)])
            status = client.admin.command("serverStatus")
            self.assertEqual((status["process"], status["opcounters"]["insert"]), ("mongos", 10))
            self.assertGreater(status["network"]["numRequests"], 1)
            pools = client.admin.command("connPoolStats")
            self.assertGreater(pools["totalCreated"], 0)
            self.assertEqual(sum(pool["created"] for pool in pools["hosts"].values()), pools["totalCreated"])
        with connect(f"mongodb://{name},{other[0]}:{other[1]}/?localThresholdMS=10000", directConnection=False) as client:
            wait_until(lambda: len(client.nodes) == 2, "both routers are known")
            stopping.process.send_signal(signal.SIGTERM)
            number, refused = 10, 0
            while stopping.process.poll() is None or number < 100:
                try:
                    client.shop.birds.insert_one({"_id": number})
                except pymongo.errors.NotPrimaryError as error:
                    self.assertEqual(error.details["code"], 91)
                    refused += 1
                    continue
                self.assertEqual(client.shop.birds.find_one({"_id": number}), {"_id": number})
                number += 1
        self.assertLessEqual(refused, 1)
        self.assertEqual(stopping.process.wait(DEADLINE_S), 0)
        self.assertIsNone(mongos.find_one({"_id": name}))
        self.assertEqual(self.clients[0].shop.birds.count_documents({}), number)


    def test_collections_are_listed_while_a_shard_is_away(self):
        self.insist(0, "enableSharding", "shop", primaryShard="shard0")
        self.insist(0, "shardCollection", "shop.birds", key={"a": "hashed"})
        self.clients[0].shop.nests.insert_one({})
        self.shards[1].stop()
        for client in self.clients:
            self.assertEqual(sorted(client.shop.list_collection_names()), ["birds", "nests"])
        self.shards[1].start()


@only_terndb
class ConfigServerKilled(Processes):
    def test_changes_go_on_after_kills(self):
        seed = random.randrange(1 << 32)
        chance = random.Random(seed)
        done = threading.Event()
        self.steps = 0

        def kill():
            # The longer nothing gets done, the longer it lives: on a busy machine its life may be over before
            # it has begun to work.
            steps, longest_s = self.steps, 0.5
            while not done.wait(chance.uniform(0.05, longest_s)):
                self.config.stop(signal.SIGKILL)
                self.config.start()
                longest_s = 0.5 if self.steps > steps else longest_s * 1.5
                steps = self.steps

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            until = time.monotonic() + 8
            rounds = 0
            while time.monotonic() < until:
                self.change(rounds % 2, f"c{rounds}")
                rounds += 1
        finally:
            done.set()
            killer.join()
        # A router that heard nothing of all this knows it as well.
        for router in (0, 1):
            # The last life of the config server finishes what the one before had begun.
            for name in ("locks", "terndb_operations"):
                wait_until(lambda: self.is_empty(router, name), f"nothing is left in {name}, seed {seed}")
            reply = self.insist(router, "checkMetadataConsistency", 1)
            self.assertEqual(reply["cursor"]["firstBatch"], [], f"seed {seed}")
            for at in range(rounds):
                for name, kept in ((f"c{at}", at % 3 == 2), (f"r{at}", at % 3 == 1), (f"plain{at}", False)):
                    count = self.clients[router].shop[name].count_documents({})
                    self.assertEqual(count, 20 if kept else 0, f"seed {seed}, {name}")

    def is_empty(self, router: int, name: str) -> bool:
        try:
            return self.clients[router].config[name].count_documents({}) == 0
        except pymongo.errors.PyMongoError:
            return False

    def once(self, router: int, name: str, value, database: str = "admin", **options) -> dict:
        """Runs a command once: its answer comes, however often the config server is killed meanwhile."""
        answer = self.clients[router][database].command(name, value, **options)
        self.steps += 1
        return answer

    def change(self, router: int, name: str):
        number = int(name[1:])
        answer = self.once(router, "shardCollection", f"shop.{name}", key={"a": "hashed"})
        self.assertEqual(answer["collectionsharded"], f"shop.{name}")
        self.once(router, "split", f"shop.{name}", find={"a": 1})
        indexes = [{"key": {"b": 1}, "name": "b"}]
        answer = self.once(router, "createIndexes", name, database="shop", indexes=indexes)
        self.assertEqual((answer["numIndexesBefore"], answer["numIndexesAfter"]), (2, 3))
        documents = [{"_id": number, "a": number} for number in range(20)]

        # The other router has not heard of the collection.
        def insert():
            try:
                self.clients[1 - router].shop[name].insert_many(documents, ordered=False)
                return True
            except pymongo.errors.BulkWriteError as error:
                return all(fault["code"] == 11000 for fault in error.details["writeErrors"])
            except pymongo.errors.PyMongoError:
                return False

        wait_until(insert, "documents are inserted")
        if number % 3 == 0:
            answer = self.once(router, "drop", name, database="shop")
            self.assertEqual((answer["ns"], answer["nIndexesWas"]), (f"shop.{name}", 3))
        elif number % 3 == 1:
            self.once(router, "renameCollection", f"shop.{name}", to=f"shop.r{number}")
        # One that is not sharded: its shard does it alone.
        plain = f"plain{number}"
        wait_until(lambda: self.made(router, plain), "a collection is made")
        self.once(router, "renameCollection", f"shop.{plain}", to=f"shop.{plain}x")
        answer = self.once(router, "drop", f"{plain}x", database="shop")
        self.assertEqual(answer["nIndexesWas"], 1)

    def made(self, router: int, name: str) -> bool:
        try:
            self.clients[router].shop[name].update_one({"_id": 1}, {"$set": {"a": 1}}, upsert=True)
            return True
        except pymongo.errors.PyMongoError:
            return False


if __name__ == "__main__":
    unittest.main()
