"""Parameters of routers: they are their own, they are obeyed, and what a router would not obey is refused by name."""

import subprocess
import tempfile
import unittest
from collections import Counter
from pathlib import Path

import pymongo
from pymongo.errors import OperationFailure

from server import DEADLINE_S, binary, connect, only_terndb, wait_until
from test_cluster import ClusterProgram

DOCUMENTS = 3000
TIMEOUT = "cursorTimeoutMillis"
# Of a cluster, all roles are told; each takes what is its own.
STARTED_WITH = {TIMEOUT: 500_000, "mongosShutdownTimeoutMillisForSignaledShutdown": 7, "ttlMonitorSleepSecs": 33}


def get(client, *names):
    told = client.admin.command("getParameter", 1, **dict.fromkeys(names, 1))
    return {name: told[name] for name in names if name in told}


def set_to(client, **values):
    return client.admin.command("setParameter", 1, **values)


def open_cursors(client):
    return client.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"]


@only_terndb
class OfAClusterInOneProcess(ClusterProgram):
    OPTIONS = tuple(word for name, value in STARTED_WITH.items() for word in ("--set-parameter", f"{name}={value}"))

    def setUp(self):
        super().setUp()
        self.client.admin.command("shardCollection", "idle.c", key={"_id": "hashed"}, numInitialChunks=6)
        self.collection = self.client.idle.c
        self.collection.insert_many([{"_id": number, "rank": -number} for number in range(DOCUMENTS)])
        hosts = self.client.admin.command("getShardMap")["hosts"]
        self.servers = {}
        for host, name in hosts.items():
            self.servers[name] = connect(f"mongodb://{host}")
            self.addCleanup(self.servers[name].close)
        self.shards = [server for name, server in self.servers.items() if name != "config"]
        for client in (self.client, *self.servers.values()):
            self.addCleanup(set_to, client, **{TIMEOUT: STARTED_WITH[TIMEOUT]})

    def cursors(self):
        """Some of each kind, in the middle."""
        size = {"batch_size": 100}
        opened = {
            "as it comes": self.collection.find(**size),
            "sorted": self.collection.find(**size).sort("rank", 1),
            "made": self.collection.aggregate([{"$project": {"rank": 1}}], batchSize=100),
            "unlimited": self.collection.find(no_cursor_timeout=True, **size),
        }
        return opened, {name: [next(cursor)["_id"] for _ in range(150)] for name, cursor in opened.items()}

    def test_routers_end_their_own_idle_cursors(self):
        opened, found = self.cursors()
        status = self.client.admin.command("serverStatus")["metrics"]["cursor"]
        self.assertEqual(set_to(self.client, **{TIMEOUT: 1})["was"], STARTED_WITH[TIMEOUT])
        self.assertEqual(get(self.client, TIMEOUT), {TIMEOUT: 1})
        wait_until(lambda: open_cursors(self.client) == 1, "all are closed but the one that stays")
        now = self.client.admin.command("serverStatus")["metrics"]["cursor"]
        self.assertEqual(now["timedOut"] - status["timedOut"], 3)
        # What it had open on shards is closed with it.
        set_to(self.client, **{TIMEOUT: STARTED_WITH[TIMEOUT]})
        for name, cursor in opened.items():
            with self.subTest(name):
                if name == "unlimited":
                    found[name] += [one["_id"] for one in cursor]
                    self.assertEqual(Counter(found[name]), Counter(range(DOCUMENTS)))
                    continue
                with self.assertRaises(pymongo.errors.CursorNotFound) as ended:
                    list(cursor)
                self.assertEqual(ended.exception.code, 43)
        for shard in self.shards:
            wait_until(lambda shard=shard: open_cursors(shard) == 0, "nothing is left open on shards")

    def test_scans_outlive_the_cursors_of_shards(self):
        opened, found = self.cursors()
        for shard in self.shards:
            set_to(shard, **{TIMEOUT: 1})
        for shard in self.shards:
            # But for those that stay.
            wait_until(lambda shard=shard: open_cursors(shard) <= 1, "cursors of shards are closed")
        for name, cursor in opened.items():
            with self.subTest(name):
                found[name] += [one["_id"] for one in cursor]
                self.assertEqual(Counter(found[name]), Counter(range(DOCUMENTS)))
                if name == "sorted":
                    self.assertEqual(found[name], list(reversed(range(DOCUMENTS))))

    def test_each_has_its_own(self):
        for value, client in enumerate((self.client, *self.servers.values())):
            set_to(client, **{TIMEOUT: 1_000_000 + value})
        for value, client in enumerate((self.client, *self.servers.values())):
            self.assertEqual(get(client, TIMEOUT), {TIMEOUT: 1_000_000 + value})

    def test_each_is_started_with_what_is_its_own(self):
        routers_own = "mongosShutdownTimeoutMillisForSignaledShutdown"
        self.assertEqual(get(self.client, TIMEOUT, routers_own), {name: STARTED_WITH[name] for name in (TIMEOUT, routers_own)})
        for server in self.servers.values():
            told = get(server, TIMEOUT, routers_own, "ttlMonitorSleepSecs")
            self.assertEqual(told, {name: STARTED_WITH[name] for name in (TIMEOUT, "ttlMonitorSleepSecs")})

    def test_what_would_not_be_obeyed_is_refused(self):
        of_servers = set(self.servers["config"].admin.command("getParameter", "*"))
        of_routers = set(self.client.admin.command("getParameter", "*"))
        others = sorted(of_servers - of_routers)
        self.assertIn("orphanCleanupDelaySecs", others)
        for name in others:
            for command in ("getParameter", "setParameter"):
                with self.assertRaises(OperationFailure, msg=name) as refused:
                    self.client.admin.command(command, 1, **{name: 1})
                self.assertIn(f"[{name}] is a parameter of shards and config servers", str(refused.exception))
        with self.assertRaises(OperationFailure) as refused:
            set_to(self.client, feathers=1)
        self.assertIn("unrecognized parameter [feathers]", str(refused.exception))
        # All or none.
        with self.assertRaises(OperationFailure):
            set_to(self.client, **{TIMEOUT: 1, "internalDocumentSourceGroupMaxMemoryBytes": 0})
        self.assertEqual(get(self.client, TIMEOUT), {TIMEOUT: STARTED_WITH[TIMEOUT]})

    def test_memory_is_what_the_router_says(self):
        """Half of the pipeline runs there, on what shards have sent."""
        group = [{"$group": {"_id": "$rank"}}, {"$sort": {"_id": 1}}]
        expected = [{"_id": rank} for rank in range(1 - DOCUMENTS, 1)]
        self.assertEqual(list(self.collection.aggregate(group, allowDiskUse=False)), expected)
        for name, usual in {
            "internalDocumentSourceGroupMaxMemoryBytes": 100 << 20,
            "internalQueryMaxBlockingSortMemoryUsageBytes": 100 << 20,
        }.items():
            with self.subTest(name):
                self.assertEqual(set_to(self.client, **{name: 10_000})["was"], usual)
                try:
                    with self.assertRaises(OperationFailure) as refused:
                        list(self.collection.aggregate(group, allowDiskUse=False))
                    self.assertEqual(refused.exception.details["codeName"], "QueryExceededMemoryLimitNoDiskUseAllowed")
                    # By default it goes to disk, unless that is changed as well.
                    self.assertEqual(list(self.collection.aggregate(group)), expected)
                    set_to(self.client, allowDiskUseByDefault=False)
                    with self.assertRaises(OperationFailure):
                        list(self.collection.aggregate(group))
                finally:
                    set_to(self.client, allowDiskUseByDefault=True, **{name: usual})


@only_terndb
class OfARouter(unittest.TestCase):
    """What `terndb router` is started with. It has no cluster yet, and answers for itself."""

    def start(self, *flags):
        command = [binary(), "router", "--port", "0", "--config-servers", "config/127.0.0.1:1", *flags]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def check(self, *flags):
        router = self.start(*flags)
        try:
            lines = iter(router.stdout.readline, "")
            uri = next(line.split()[-1] for line in lines if "mongodb://" in line)
            with connect(uri) as client:
                self.assertEqual(get(client, TIMEOUT, "quiet"), {TIMEOUT: 777, "quiet": True})
        finally:
            router.kill()
            router.communicate(timeout=DEADLINE_S)

    def test_flags(self):
        self.check("--set-parameter", f"{TIMEOUT}=777", "--set-parameter", "quiet=true")

    def test_a_file(self):
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "router.toml"
            file.write_text(f'set_parameter = ["{TIMEOUT}=777", "quiet=true"]\n')
            self.check("--config", str(file))

    def test_mistakes_are_named(self):
        for given, named in {
            f"{TIMEOUT}=soon": TIMEOUT,
            "orphanCleanupDelaySecs=1": "a router has no parameter orphanCleanupDelaySecs",
            "localLogicalSessionTimeoutMinutes=1": "set on the config server",
            "feathers=1": "a router has no parameter feathers",
        }.items():
            router = self.start("--set-parameter", given)
            _, said = router.communicate(timeout=DEADLINE_S)
            self.assertNotEqual(router.returncode, 0, given)
            self.assertIn(named, said)

    def test_mistakes_of_servers_are_named_before_anybody_waits_for_them(self):
        for role in (["shard"], ["config"], ["up"], ["up", "--shards", "2"]):
            for given in ("feathers=1", f"{TIMEOUT}=soon"):
                with self.subTest(role=role, given=given), tempfile.TemporaryDirectory() as directory:
                    command = [binary(), *role, "--port", "0", "--data", directory, "--set-parameter", given]
                    refused = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
                    self.assertNotEqual(refused.returncode, 0)
                    self.assertIn("a parameter cannot be set", refused.stderr)
                    self.assertIn(given.split("=")[0], refused.stderr)


if __name__ == "__main__":
    unittest.main()
