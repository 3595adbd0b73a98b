"""A sharded cluster in one process: `terndb up --shards 3`."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

import bson
import pymongo
from bson.min_key import MinKey

from server import DEADLINE_S, Process, binary, connect, for_shell, only_terndb, readme_commands

MONGOSH = os.environ.get("TERNDB_MONGOSH")
# How long a stream waits for what will not come.
SHORT_MS = 50
ZONES = """
sh.addShardToZone("shard1", "north")
sh.updateZoneKeyRange("tour.nests", { ring: 400 }, { ring: 700 }, "north")
sh.status()
sh.getBalancerState()
sh.removeRangeFromZone("tour.nests", { ring: 400 }, { ring: 700 })
sh.removeShardFromZone("shard1", "north")
"""


@contextlib.contextmanager
def orphans_removed_at_once(shard):
    """Other tests of the same cluster go by the delay that it has."""
    before = shard.admin.command("getParameter", 1, orphanCleanupDelaySecs=1)["orphanCleanupDelaySecs"]
    shard.admin.command("setParameter", 1, orphanCleanupDelaySecs=0)
    try:
        yield
    finally:
        shard.admin.command("setParameter", 1, orphanCleanupDelaySecs=before)


class ClusterProgram(unittest.TestCase):
    maxDiff = None
    # What the cluster is told beside the number of its shards.
    OPTIONS = ()

    @classmethod
    def setUpClass(cls):
        cls.directory = Path(tempfile.mkdtemp(prefix="terndb-cluster-"))
        cls.addClassCleanup(shutil.rmtree, cls.directory, True)
        cls.server = Process(cls.directory / "data", "--shards", "3", *cls.OPTIONS)
        cls.addClassCleanup(cls.server.errors.close)
        cls.client = connect(cls.server.uri)
        cls.addClassCleanup(cls.client.close)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, cls.server.stderr()
        assert "panicked" not in cls.server.stderr(), cls.server.stderr()

    def setUp(self):
        for name in self.client.list_database_names():
            if name not in ("admin", "config", "local"):
                self.client.drop_database(name)

    def tearDown(self):
        self.assertEqual(self.inconsistencies(), [])

    def inconsistencies(self):
        reply = self.client.admin.command("checkMetadataConsistency")
        return reply["cursor"]["firstBatch"]

    def shard(self, name, **key):
        self.client.admin.command("shardCollection", name, key=key)

    def owners(self, name):
        collection = self.client.config.collections.find_one({"_id": name})
        chunks = self.client.config.chunks.find({"uuid": collection["uuid"]})
        return sorted(chunk["shard"] for chunk in chunks)


@only_terndb
class Sharded(ClusterProgram):
    def test_documents_are_on_all_shards_and_found_again(self):
        self.shard("shop.orders", _id="hashed")
        self.assertEqual(self.owners("shop.orders"), ["shard0"] * 2 + ["shard1"] * 2 + ["shard2"] * 2)
        orders = self.client.shop.orders
        orders.insert_many([{"_id": number, "total": number % 10} for number in range(300)])
        self.assertEqual(orders.count_documents({}), 300)
        self.assertEqual(orders.find_one({"_id": 7}), {"_id": 7, "total": 7})
        self.assertEqual([found["_id"] for found in orders.find(sort=[("_id", -1)], limit=3)], [299, 298, 297])
        self.assertEqual(orders.update_many({"total": 3}, {"$inc": {"total": 100}}).modified_count, 30)
        self.assertEqual(orders.delete_one({"_id": 0}).deleted_count, 1)
        sums = list(orders.aggregate([{"$group": {"_id": None, "sum": {"$sum": "$total"}}}]))
        self.assertEqual(sums, [{"_id": None, "sum": 300 // 10 * 45 + 3000}])
        # Each shard has a part of them.
        for shard in self.client.config.shards.find():
            host = shard["host"].split("/")[1]
            with connect(f"mongodb://{host}") as direct:
                self.assertGreater(direct.shop.orders.count_documents({}), 50)

    def test_the_map_of_shards_names_the_config_server(self):
        told = self.client.admin.command("getShardMap")
        self.assertEqual(sorted(told["map"]), ["config", "shard0", "shard1", "shard2"])
        for name, connection in told["map"].items():
            self.assertEqual(told["connStrings"][connection], name)
            for host in connection.split("/")[1].split(","):
                self.assertEqual(told["hosts"][host], name)

    def test_unsharded_collections_are_on_the_primary_shard(self):
        self.client.shop.plain.insert_one({"_id": 1})
        self.assertEqual(list(self.client.shop.plain.find()), [{"_id": 1}])
        placement = self.client.config.databases.find_one({"_id": "shop"})
        self.assertIn(placement["primary"], ("shard0", "shard1", "shard2"))
        self.assertEqual(self.client.shop.list_collection_names(), ["plain"])

    def test_a_collection_with_documents_is_sharded_and_split(self):
        birds = self.client.zoo.birds
        birds.insert_many([{"_id": number, "wing": number} for number in range(100)])
        with self.assertRaises(pymongo.errors.OperationFailure) as refused:
            self.shard("zoo.birds", wing=1)
        self.assertEqual(refused.exception.code, 72)
        birds.create_index("wing")
        self.shard("zoo.birds", wing=1)
        self.client.admin.command("split", "zoo.birds", middle={"wing": 50})
        self.client.admin.command("split", "zoo.birds", find={"wing": 10})
        self.assertEqual(len(self.owners("zoo.birds")), 3)
        self.assertEqual(birds.count_documents({"wing": {"$gte": 20, "$lt": 70}}), 50)
        self.client.admin.command(
            "mergeChunks", "zoo.birds", bounds=[{"wing": MinKey()}, {"wing": 50}]
        )
        self.assertEqual(len(self.owners("zoo.birds")), 2)
        self.assertEqual(birds.count_documents({}), 100)

    def test_replies_about_indexes_tell_what_each_shard_has_said(self):
        self.shard("shop.orders", _id="hashed")
        hosts = {shard["_id"]: shard["host"] for shard in self.client.config.shards.find()}
        self.client.shop.plain.insert_one({"_id": 1})
        primary = self.client.config.databases.find_one({"_id": "shop"})["primary"]
        for name, asked, before in (("orders", hosts.values(), 2), ("plain", [hosts[primary]], 1)):
            indexes = [{"key": {"customer": 1}, "name": "customer"}]
            made = self.client.shop.command("createIndexes", name, indexes=indexes)
            self.assertEqual(sorted(made["raw"]), sorted(asked))
            for said in made["raw"].values():
                self.assertEqual((said["numIndexesBefore"], said["numIndexesAfter"]), (before, before + 1))
                self.assertEqual((said["commitQuorum"], said["ok"]), ("votingMembers", 1.0))
                self.assertNotIn("operationTime", said)
            gone = self.client.shop.command("dropIndexes", name, index="customer")
            self.assertEqual(sorted(gone["raw"]), sorted(asked))
            for said in gone["raw"].values():
                self.assertEqual(said, {"nIndexesWas": before + 1, "ok": 1.0})

    def test_indexes_and_drops_reach_all_shards(self):
        self.shard("shop.orders", _id="hashed")
        orders = self.client.shop.orders
        orders.create_index("customer")
        for shard in self.client.config.shards.find():
            with connect(f"mongodb://{shard['host'].split('/')[1]}") as direct:
                self.assertIn("customer_1", direct.shop.orders.index_information())
        orders.drop_index("customer_1")
        self.assertNotIn("customer_1", orders.index_information())
        orders.insert_many([{"_id": number} for number in range(50)])
        orders.drop()
        self.assertEqual(orders.count_documents({}), 0)
        self.assertEqual(self.client.config.chunks.count_documents({}), 0)
        # As an unsharded one it may live again.
        orders.insert_one({"_id": 1})
        self.assertEqual(orders.count_documents({}), 1)

    def test_documents_that_come_while_a_collection_is_sharded_stay(self):
        """Each insert that was acknowledged is there afterwards, wherever it landed."""
        for attempt in range(5):
            name = f"c{attempt}"
            done, told = threading.Event(), []
            # With its index, so that it can be sharded whether the first document comes before or after.
            self.client.race[name].create_index([("_id", "hashed")])

            def insert():
                with connect(self.server.uri) as client:
                    number = 0
                    while not done.is_set():
                        try:
                            client.race[name].insert_one({"_id": number})
                            told.append(number)
                        except pymongo.errors.OperationFailure:
                            pass
                        number += 1

            writer = threading.Thread(target=insert)
            writer.start()
            self.shard(f"race.{name}", _id="hashed")
            deadline = time.monotonic() + DEADLINE_S
            before = len(told)
            while len(told) < before + 20 and time.monotonic() < deadline:
                time.sleep(0.01)
            done.set()
            writer.join()
            found = sorted(document["_id"] for document in self.client.race[name].find())
            self.assertEqual(found, sorted(told))

    def test_what_has_moved_away_is_not_counted_as_owned(self):
        self.client.admin.command("enableSharding", "shop", primaryShard="shard0")
        self.shard("shop.moved", km=1)
        moved = self.client.shop.moved
        moved.insert_many([{"_id": number, "km": number} for number in range(100)])
        self.client.admin.command("split", "shop.moved", middle={"km": 60})
        self.client.admin.command("moveRange", "shop.moved", min={"km": 60}, toShard="shard1")

        def distribution():
            [found] = self.client.admin.aggregate(
                [{"$shardedDataDistribution": {}}, {"$match": {"ns": "shop.moved"}}]
            )
            return {
                part["shardName"]: (part["numOwnedDocuments"], part["numOrphanedDocs"], part["ownedSizeBytes"])
                for part in found["shards"]
            }

        size = len(bson.encode({"_id": 1, "km": 1}))
        whole = {"shard0": (60, 40, 60 * size), "shard1": (40, 0, 40 * size)}
        self.assertEqual(distribution(), whole)
        stats = self.client.shop.command("collStats", "moved")
        self.assertEqual((stats["count"], stats["numOrphanDocs"]), (140, 40))
        self.assertEqual({name: part["numOrphanDocs"] for name, part in stats["shards"].items()}, {"shard0": 40, "shard1": 0})
        host = self.client.config.shards.find_one({"_id": "shard0"})["host"].split("/")[1]
        with connect(f"mongodb://{host}") as donor:
            [task] = donor.config.rangeDeletions.find({"nss": "shop.moved"})
            self.assertEqual(task["numOrphanDocs"], 40)
            with orphans_removed_at_once(donor):
                self.client.admin.command("cleanupOrphaned", "shop.moved")
        self.assertEqual(distribution(), whole | {"shard0": (60, 0, 60 * size)})

    def test_out_keeps_the_options_of_what_it_replaces(self):
        self.shard("shop.orders", _id="hashed")
        self.client.shop.orders.insert_many([{"_id": number} for number in range(20)])
        images = {"changeStreamPreAndPostImages": {"enabled": True}}
        self.client.shop.create_collection("sums", **images)
        self.client.shop.sums.create_index("n")
        self.client.shop.orders.aggregate([{"$group": {"_id": None, "n": {"$sum": 1}}}, {"$out": "sums"}])
        self.assertEqual(list(self.client.shop.sums.find()), [{"_id": None, "n": 20}])
        self.assertEqual(self.client.shop.sums.options(), images)
        self.assertIn("n_1", self.client.shop.sums.index_information())
        self.assertEqual(sorted(self.client.shop.list_collection_names()), ["orders", "sums"])

    def test_two_routers_worth_of_ddl_at_once(self):
        """The same operation asked for many times at once is done once."""
        replies, threads = [], []

        def shard():
            with connect(self.server.uri) as client:
                replies.append(client.admin.command("shardCollection", "shop.once", key={"_id": "hashed"})["ok"])

        for _ in range(8):
            threads.append(threading.Thread(target=shard))
            threads[-1].start()
        for thread in threads:
            thread.join()
        self.assertEqual(replies, [1.0] * 8)
        self.assertEqual(len(self.owners("shop.once")), 6)
        self.assertEqual(self.client.config.locks.count_documents({}), 0)

    def test_streams_have_nothing_of_moves(self):
        """Neither through the router nor on the shards: not what is copied, not what is removed."""
        self.shard("fleet.birds", k=1)
        birds = self.client.fleet.birds
        birds.insert_many([{"_id": number, "k": number} for number in range(100)])
        (donor,) = set(self.owners("fleet.birds"))
        hosts = {shard["_id"]: shard["host"].split("/")[-1] for shard in self.client.config.shards.find()}
        recipient = next(name for name in sorted(hosts) if name != donor)
        with contextlib.ExitStack() as open_until_here:
            streams = {"router": open_until_here.enter_context(birds.watch(max_await_time_ms=SHORT_MS))}
            for name, host in hosts.items():
                shard = open_until_here.enter_context(connect(f"mongodb://{host}/?directConnection=true"))
                open_until_here.enter_context(orphans_removed_at_once(shard))
                streams[name] = open_until_here.enter_context(shard.fleet.watch(max_await_time_ms=SHORT_MS))
            move = {"moveRange": "fleet.birds", "min": {"k": 50}, "max": {"k": 90}, "toShard": recipient}
            self.client.admin.command(move)
            with connect(f"mongodb://{hosts[donor]}/?directConnection=true") as shard:
                shard.admin.command("cleanupOrphaned", "fleet.birds")
                self.assertEqual(shard.fleet.command("validate", "birds")["nrecords"], 60, "all are removed")
            birds.insert_many([{"_id": f"{k}", "k": k} for k in (10.5, 60.5)])
            expected = {"router": ["10.5", "60.5"], donor: ["10.5"], recipient: ["60.5"]}
            for name, stream in streams.items():
                events = []
                deadline = time.monotonic() + DEADLINE_S
                while len(events) < len(expected.get(name, [])) and time.monotonic() < deadline:
                    event = stream.try_next()
                    events += [event] if event else []
                # Whatever else there is to tell comes with the next look.
                event = stream.try_next()
                events += [event] if event else []
                told = [(event["operationType"], event["documentKey"]["_id"]) for event in events]
                self.assertEqual(told, [("insert", key) for key in expected.get(name, [])], name)

    def test_status_is_printed(self):
        self.shard("shop.orders", _id="hashed")
        self.client.shop.orders.insert_many([{"_id": number} for number in range(10)])
        host = self.server.uri.removeprefix("mongodb://")
        printed = subprocess.run(
            [binary(), "status", host], capture_output=True, text=True, timeout=DEADLINE_S, check=True
        ).stdout
        self.assertRegex(printed, r"shard2\s+127.0.0.1:\d+ primary")
        self.assertRegex(printed, r"shop.orders\s+\{.*hashed.*\}\s+6\s+2\s+2\s+2\s+10\s")

    def type(self, commands: str) -> str:
        """What the shell prints."""
        printed = subprocess.run(
            [MONGOSH, "--quiet", "--norc", for_shell(self.server.uri)],
            input=commands,
            capture_output=True,
            text=True,
            timeout=2 * DEADLINE_S,
            check=True,
            env=os.environ | {"NO_COLOR": "1", "MONGOSH_FORCE_DISABLE_TELEMETRY": "1"},
        ).stdout
        self.assertNotRegex(printed, r"MongoServerError|Uncaught|SyntaxError")
        return printed

    @unittest.skipUnless(MONGOSH, "TERNDB_MONGOSH does not name the shell")
    def test_mongosh_moves_the_ranges_of_the_readme(self):
        self.client.admin.command("enableSharding", "tour", primaryShard="shard0")
        printed = self.type(readme_commands("Move data while it is used") + ZONES)
        self.assertRegex(printed, r"\b250\b")
        for shard, documents in (("shard1", 300), ("shard2", 300)):
            self.assertRegex(printed, rf"shardName: '{shard}',[^}}]*numOwnedDocuments: \D*{documents}\b")
        for expected in ("'tour.nests'", "tag: 'north'", "'Currently enabled': 'no'", "'Currently running': 'no'"):
            self.assertIn(expected, printed)
        # Everywhere once, whoever is asked.
        rings = [nest["ring"] for nest in self.client.tour.nests.find({}, sort=[("ring", 1)])]
        self.assertEqual(rings, list(range(1000)))
        found = self.client.config.changelog.count_documents({"ns": "tour.nests", "what": "moveChunk.from"})
        self.assertGreaterEqual(found, 1)

    @unittest.skipUnless(MONGOSH, "TERNDB_MONGOSH does not name the shell")
    def test_mongosh_prints_the_cluster_of_the_readme(self):
        printed = self.type(readme_commands("Three shards"))
        for expected in (
            "SINGLE_SHARD",
            "shardingVersion",
            "'tour.sightings'",
            "{ shard: 'shard2', nChunks: 2 }",
            "active mongoses",
        ):
            self.assertIn(expected, printed)


@only_terndb
class Restarted(unittest.TestCase):
    def setUp(self):
        self.directory = Path(tempfile.mkdtemp(prefix="terndb-cluster-"))
        self.addCleanup(shutil.rmtree, self.directory, True)
        self.data = self.directory / "data"

    def start(self, *flags):
        server = Process(self.data, *flags)
        self.addCleanup(server.errors.close)
        return server

    def refused(self, *flags):
        done = subprocess.run(
            [binary(), "up", "--port", "0", "--data", self.data, *flags],
            capture_output=True, text=True, timeout=DEADLINE_S,
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.stderr

    def test_a_cluster_is_the_same_after_a_restart_and_a_crash(self):
        for ending in (signal.SIGTERM, signal.SIGKILL):
            server = self.start("--shards", "2")
            with connect(server.uri) as client:
                client.admin.command("shardCollection", "shop.orders", key={"_id": "hashed"})
                orders = client.shop.orders
                known = orders.count_documents({})
                orders.insert_many([{"_id": known + number} for number in range(100)])
            server.stop(ending)
        # With another shard, on other ports.
        server = self.start("--shards", "3")
        with connect(server.uri) as client:
            self.assertEqual(client.shop.orders.count_documents({}), 200)
            names = [shard["_id"] for shard in client.admin.command("listShards")["shards"]]
            self.assertEqual(names, ["shard0", "shard1", "shard2"])
            self.assertEqual(client.admin.command("checkMetadataConsistency")["cursor"]["firstBatch"], [])
        self.assertEqual(server.stop(), 0)
        self.assertIn("holds 3 shards: say --shards 3", self.refused("--shards", "2"))
        self.assertIn("holds a cluster of 3 shards: say --shards 3", self.refused())

    def test_data_of_one_set_is_no_cluster(self):
        self.start().stop()
        self.assertIn("start it without --shards", self.refused("--shards", "2"))

    def test_shards_have_members(self):
        server = self.start("--shards", "2", "--members", "3")
        with connect(server.uri) as client:
            client.admin.command("shardCollection", "shop.orders", key={"_id": "hashed"})
            client.shop.orders.insert_many([{"_id": number} for number in range(100)])
            self.assertEqual(client.shop.orders.count_documents({}), 100)
            hosts = [shard["host"].count(",") for shard in client.config.shards.find()]
            self.assertEqual(hosts, [2, 2])
        self.assertEqual(server.stop(), 0)
        self.assertIn("say --members 3", self.refused("--shards", "2"))


if __name__ == "__main__":
    unittest.main()
