"""The replica set as drivers see it: discovery, causal sessions, retryable writes."""

import unittest

import pymongo
from bson import Timestamp
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import Nearest, PrimaryPreferred, Secondary
from server import OTHER_SERVER, Program, connect, shared_uri


class OneMember(Program):
    def test_drivers_find_it(self):
        with connect(directConnection=False) as client:
            hello = client.admin.command("hello")
            self.assertEqual(client.primary, self.client.address)
            self.assertEqual(client.nodes, {client.primary})
            self.assertEqual(hello["hosts"], [hello["me"]])
        with connect(directConnection=False, replicaSet=hello["setName"]) as client:
            self.assertTrue(client.admin.command("ping")["ok"])
        with connect(directConnection=False, replicaSet="another", serverSelectionTimeoutMS=500) as client:
            with self.assertRaises(pymongo.errors.ServerSelectionTimeoutError):
                client.admin.command("ping")

    def test_read_preferences(self):
        self.db.c.insert_one({"_id": 1})
        with connect(directConnection=False) as client:
            c = client[self.db.name].c
            for preference in (PrimaryPreferred(), Nearest()):
                self.assertEqual(c.with_options(read_preference=preference).count_documents({}), 1)
        with connect(directConnection=False, serverSelectionTimeoutMS=500) as client:
            c = client[self.db.name].c
            with self.assertRaises(pymongo.errors.ServerSelectionTimeoutError):
                c.with_options(read_preference=Secondary()).find_one()

    def test_a_causal_session_reads_what_it_wrote(self):
        with connect(directConnection=False) as client, client.start_session(causal_consistency=True) as session:
            c = client[self.db.name].c
            for number in range(20):
                c.insert_one({"_id": number}, session=session)
                self.assertIsInstance(session.operation_time, Timestamp)
                self.assertEqual(c.count_documents({}, session=session), number + 1)
        # Another session that is told about the time waits for it.
        with connect(directConnection=False) as client, client.start_session(causal_consistency=True) as other:
            other.advance_cluster_time(session.cluster_time)
            other.advance_operation_time(session.operation_time)
            c = client[self.db.name].get_collection("c", read_concern=ReadConcern("majority"))
            self.assertEqual(c.count_documents({}, session=other), 20)

    def test_snapshot_sessions(self):
        self.db.c.insert_one({"_id": 1})
        with connect(directConnection=False) as client, client.start_session(snapshot=True) as session:
            c = client[self.db.name].c
            self.assertEqual(len(list(c.find(session=session))), 1)
            self.db.c.insert_one({"_id": 2})
            self.assertEqual(len(list(c.find(session=session))), 1)
            self.assertEqual(len(list(c.find())), 2)

    def test_read_concerns(self):
        self.db.c.insert_one({"_id": 1})
        for level in ("local", "available", "majority", "linearizable", "snapshot"):
            with self.subTest(level):
                c = self.db.get_collection("c", read_concern=ReadConcern(level))
                self.assertEqual(list(c.find()), [{"_id": 1}])

    def test_writes_are_retryable(self):
        commands = []

        class Listener(pymongo.monitoring.CommandListener):
            def started(self, event):
                commands.append(event)

            def succeeded(self, event):
                pass

            def failed(self, event):
                pass

        uri = OTHER_SERVER or shared_uri()
        with pymongo.MongoClient(uri, event_listeners=[Listener()]) as client:
            client[self.db.name].c.insert_one({"_id": 1})
        inserts = [event.command for event in commands if event.command_name == "insert"]
        self.assertIn("txnNumber", inserts[0])


if __name__ == "__main__":
    unittest.main()
