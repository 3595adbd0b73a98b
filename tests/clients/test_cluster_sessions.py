"""The sessions of a sharded cluster: `config.system.sessions` is sharded, and the config server says how long they live."""

import shutil
import tempfile
import unittest
from pathlib import Path

from pymongo.errors import OperationFailure

from server import Process, connect, only_terndb, wait_until


@only_terndb
class ClusterSessions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = Path(tempfile.mkdtemp(prefix="terndb-cluster-sessions-"))
        cls.addClassCleanup(shutil.rmtree, cls.directory, True)
        settings = ["logicalSessionRefreshMillis=500", "localLogicalSessionTimeoutMinutes=7"]
        flags = [flag for setting in settings for flag in ("--set-parameter", setting)]
        cls.server = Process(cls.directory / "data", "--shards", "3", *flags)
        cls.addClassCleanup(cls.server.errors.close)
        cls.client = connect(cls.server.uri)
        cls.addClassCleanup(cls.client.close)
        shards = cls.client.admin.command("listShards")["shards"]
        hosts = [shard["host"].split("/")[1] for shard in shards]
        cls.shards = [connect(f"mongodb://{host}/?directConnection=true") for host in hosts]
        for shard in cls.shards:
            cls.addClassCleanup(shard.close)
        entry = {"_id": "config.system.sessions"}
        wait_until(lambda: cls.client.config.collections.find_one(entry), "the config server makes the collection")
        cls.client.admin.command("shardCollection", "test.birds", key={"_id": "hashed"})
        cls.client.test.birds.insert_many([{"_id": number} for number in range(300)])

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, cls.server.stderr()
        assert "panicked" not in cls.server.stderr(), cls.server.stderr()

    def setUp(self):
        self.session = self.client.start_session()
        self.addCleanup(self.session.end_session)
        self.id = self.session.session_id["id"]
        self.sessions = self.client.config["system.sessions"]

    def is_stored(self):
        # Without a session of its own.
        found = self.sessions.find_one({"_id.id": self.id})
        return found is not None

    def local(self, client):
        listed = client.config.command("aggregate", 1, pipeline=[{"$listLocalSessions": {"allUsers": True}}], cursor={})
        return [session["_id"]["id"] for session in listed["cursor"]["firstBatch"]]

    def stored(self):
        self.client.test.birds.count_documents({}, session=self.session)
        wait_until(self.is_stored, "the session is stored")

    def open_cursor(self):
        """A cursor with more to come on every shard."""
        command = {"find": "birds", "batchSize": 3}
        return self.client.test.command(command, session=self.session)["cursor"]["id"]

    def is_lost(self, cursor):
        try:
            more = {"getMore": cursor, "collection": "birds", "batchSize": 1}
            self.client.test.command(more, session=self.session)
        except OperationFailure as error:
            self.assertEqual(error.code, 43)
            return True
        return False

    def open_on_shards(self):
        return sum(shard.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"] for shard in self.shards)

    def test_the_collection_is_spread_over_the_shards(self):
        entry = self.client.config.collections.find_one({"_id": "config.system.sessions"})
        self.assertEqual((entry["key"], entry["unique"]), ({"_id": 1}, False))
        # On shards that were there when it was made.
        chunks = list(self.client.config.chunks.find({"uuid": entry["uuid"]}))
        self.assertEqual(len(chunks), 1024)
        owners = [self.shards[int(shard[-1])] for shard in {chunk["shard"] for chunk in chunks}]
        for client in [self.client, *owners]:
            indexes = client.config["system.sessions"].index_information()
            self.assertEqual(indexes["lsidTTLIndex"]["expireAfterSeconds"], 7 * 60)
        for client in [self.client, *self.shards]:
            self.assertEqual(client.admin.command("hello")["logicalSessionTimeoutMinutes"], 7)
        with self.assertRaises(OperationFailure) as refused:
            self.sessions.drop()
        self.assertEqual(refused.exception.code, 20)
        reply = self.client.admin.command("checkMetadataConsistency")
        self.assertEqual(reply["cursor"]["firstBatch"], [])

    def test_sessions_in_use_are_stored_and_listed(self):
        self.stored()
        listed = self.sessions.aggregate([{"$listSessions": {"allUsers": True}}])
        self.assertIn(self.id, [session["_id"]["id"] for session in listed])
        owners = [shard for shard in self.shards if shard.config["system.sessions"].find_one({"_id.id": self.id})]
        self.assertEqual(len(owners), 1)
        for client in [self.client, *self.shards]:
            self.assertIn(self.id, self.local(client))

    def test_ended_sessions_lose_their_cursors_everywhere(self):
        self.stored()
        cursor = self.open_cursor()
        self.assertGreater(self.open_on_shards(), 0)
        self.client.admin.command("endSessions", [self.session.session_id])
        wait_until(lambda: not self.is_stored(), "the session is removed")
        wait_until(lambda: self.is_lost_quietly(cursor), "the cursor is closed")
        wait_until(lambda: self.open_on_shards() == 0, "the shards' cursors are closed")

    def is_lost_quietly(self, cursor):
        """Whether the router has closed a cursor, without using its session."""
        idle = [{"$currentOp": {"localOps": True, "idleCursors": True}}, {"$match": {"type": "idleCursor"}}]
        return cursor not in [found["cursor"]["cursorId"] for found in self.client.admin.aggregate(idle)]

    def test_expired_sessions_lose_their_cursors_everywhere(self):
        self.stored()
        cursor = self.open_cursor()

        def expired():
            # As the index on lastUse would; whoever has not written it since its last use may do so once more.
            self.sessions.delete_many({"_id.id": self.id})
            known = any(self.id in self.local(client) for client in [self.client, *self.shards])
            return not known

        wait_until(expired, "nobody knows the session")
        wait_until(lambda: self.is_lost_quietly(cursor), "the cursor is closed")
        self.assertTrue(self.is_lost(cursor))
        wait_until(lambda: self.open_on_shards() == 0, "the shards' cursors are closed")

    def test_killed_sessions_lose_their_cursors_at_once(self):
        for command in ({"killSessions": [{"id": self.id}]}, {"killAllSessions": []}, {"killAllSessionsByPattern": []}):
            cursor = self.open_cursor()
            self.client.admin.command(command)
            self.assertTrue(self.is_lost(cursor), command)
            wait_until(lambda: self.open_on_shards() == 0, "the shards' cursors are closed")


if __name__ == "__main__":
    unittest.main()
