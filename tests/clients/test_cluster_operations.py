"""What runs at a router and on shards behind it: listed, killed, ended with its session and with its client; and
what clients get of a cluster that has lost a shard."""

import signal
import threading
import time

import pymongo
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure, PyMongoError

from server import connect, only_terndb, wait_until
from test_cluster import ClusterProgram
from test_cluster_processes import Processes

# More than anybody computes while a test waits.
MANY = 1_000_000
ENDLESS = [{"$set": {"a": {"$range": [0, MANY]}}}, {"$unwind": "$a"}] + [
    {"$set": {"b": {"$range": [0, MANY]}}},
    {"$unwind": "$b"},
]


class Running(threading.Thread):
    """A command on its way."""

    def __init__(self, function):
        super().__init__(daemon=True)
        self.function, self.error = function, None
        self.start()

    def run(self):
        try:
            self.function()
        except PyMongoError as error:
            self.error = error

    def code(self):
        self.join(60)
        assert not self.is_alive(), "it does not end"
        return getattr(self.error, "code", None)


@only_terndb
class Operations(ClusterProgram):
    def setUp(self):
        super().setUp()
        self.client.admin.command("shardCollection", "test.birds", key={"_id": "hashed"})
        self.birds = self.client.test.birds
        self.birds.insert_many([{"_id": number} for number in range(60)])

    def own(self, comment):
        """What the router itself does."""
        stages = [{"$currentOp": {"localOps": True}}, {"$match": {"command.comment": comment}}]
        return list(self.client.admin.aggregate(stages))

    def on_shards(self, comment):
        reply = self.client.admin.command("currentOp", **{"command.comment": comment})
        return reply["inprog"]

    def merging(self, comment, client=None, session=None):
        """A pipeline whose merging half does not end."""
        birds = (client or self.client).test.birds
        stages = [{"$group": {"_id": None, "n": {"$sum": 1}}}, *ENDLESS, {"$count": "n"}]
        begun = Running(lambda: list(birds.aggregate(stages, comment=comment, session=session)))
        wait_until(lambda: self.own(comment) and not self.on_shards(comment), "the shards have done their part")
        return begun

    def reading(self, comment, client=None, session=None):
        """A pipeline whose shards' half does not end."""
        birds = (client or self.client).test.birds
        stages = [*ENDLESS, {"$match": {"b": -1}}]
        begun = Running(lambda: list(birds.aggregate(stages, comment=comment, session=session)))
        wait_until(lambda: len(self.on_shards(comment)) == 3, "all shards work")
        return begun

    def test_killed_by_its_number(self):
        for begin in (self.merging, self.reading):
            begun = begin("killed")
            [operation] = self.own("killed")
            self.assertEqual(operation["ns"], "test.birds")
            self.assertEqual(operation["op"], "command")
            self.assertIn("microsecs_running", operation)
            reply = self.client.admin.command("killOp", 1, op=operation["opid"])
            self.assertEqual(reply["info"], "attempting to kill op")
            self.assertEqual(begun.code(), 11601)
            wait_until(lambda: not self.own("killed") and not self.on_shards("killed"), "nobody works any more")

    def test_killed_on_one_shard(self):
        begun = self.reading("by shard")
        names = sorted(operation["opid"] for operation in self.on_shards("by shard"))
        self.assertEqual([name.split(":")[0] for name in names], ["shard0", "shard1", "shard2"])
        for name in names:
            shard, number = name.split(":")
            reply = self.client.admin.command("killOp", 1, op=name)
            self.assertEqual((reply["shard"], reply["shardid"]), (shard, int(number)))
        self.assertEqual(begun.code(), 11601)
        wait_until(lambda: not self.on_shards("by shard"), "nobody works any more")

    def test_killed_with_its_session(self):
        for begin in (self.merging, self.reading):
            with self.client.start_session() as session:
                begun = begin("session", session=session)
                self.client.admin.command("killSessions", [session.session_id])
                self.assertEqual(begun.code(), 11601)
            wait_until(lambda: not self.own("session") and not self.on_shards("session"), "nobody works any more")

    def test_ended_with_its_client(self):
        for begin in (self.merging, self.reading):
            with connect(self.server.uri, socketTimeoutMS=3000, retryReads=False) as hasty:
                begun = begin("gone", client=hasty)
                self.assertIsNone(begun.code())
                self.assertIsInstance(begun.error, pymongo.errors.NetworkTimeout)
            wait_until(lambda: not self.own("gone") and not self.on_shards("gone"), "nobody works any more")

    def test_times_in_shard_keys(self):
        """The router says what time it is, for it has to know where the document goes."""
        self.shard("test.times", at=1)
        self.client.admin.command("split", "test.times", middle={"at": Timestamp(1, 0)})
        self.client.admin.command("moveRange", "test.times", min={"at": Timestamp(1, 0)}, toShard="shard2")
        self.client.test.times.insert_many([{"_id": 1, "at": Timestamp(0, 0)}, {"_id": 2, "at": Timestamp(0, 0)}])
        found = list(self.client.test.times.find())
        self.assertEqual(len(found), 2)
        self.assertTrue(all(abs(document["at"].time - time.time()) < 600 for document in found), found)

    def test_explain_tells_where(self):
        plan = self.birds.find({}).explain()
        servers = [shard["serverInfo"] for shard in plan["queryPlanner"]["winningPlan"]["shards"]]
        ports = {server["port"] for server in servers}
        hosts = [shard["host"] for shard in self.client.admin.command("listShards")["shards"]]
        self.assertEqual(ports, {int(host.rsplit(":", 1)[1]) for host in hosts})
        self.assertEqual(plan["serverInfo"]["port"], self.server.port)


@only_terndb
class PartialResults(Processes):
    def test_a_shard_is_gone(self):
        self.insist(0, "shardCollection", "shop.birds", key={"a": "hashed"}, numInitialChunks=4)
        birds = self.clients[0].shop.birds
        birds.insert_many([{"_id": number, "a": number} for number in range(600)])
        with connect(f"mongodb://127.0.0.1:{self.shards[0].port}/?directConnection=true") as shard:
            left = sorted(document["_id"] for document in shard.shop.birds.find())
        self.assertTrue(0 < len(left) < 600)
        whole = self.clients[0].shop.command("find", "birds", allowPartialResults=True)
        self.assertNotIn("partialResultsReturned", whole["cursor"])
        # Silent, then dead.
        for silence in (signal.SIGSTOP, signal.SIGKILL):
            self.shards[1].process.send_signal(silence)
            began = time.monotonic()
            reply = self.clients[0].shop.command("find", "birds", allowPartialResults=True, batchSize=50)
            self.assertLess(time.monotonic() - began, 15)
            self.assertTrue(reply["cursor"]["partialResultsReturned"])
            found = birds.find({}, allow_partial_results=True, batch_size=50)
            self.assertEqual(sorted(document["_id"] for document in found), left)
        self.shards[1].process.wait()
        with self.assertRaises(OperationFailure) as refused:
            self.clients[0].shop.command("find", "birds", maxTimeMS=1000)
        self.assertIn(refused.exception.code, (6, 50, 133))
        self.shards[1].process.stdout.close()
        self.shards[1].start()
        wait_until(lambda: self.count(birds) == 600, "all documents are there again")

    def count(self, birds):
        try:
            return len(list(birds.find({})))
        except PyMongoError:
            return None
