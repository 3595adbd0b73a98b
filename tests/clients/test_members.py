"""Three members in one process: drivers find them, read from all, follow the primary."""

import re
import shutil
import tempfile
import threading
import time
import unittest
from pathlib import Path

import pymongo
from bson import Timestamp
from pymongo.monitoring import CommandListener
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import Nearest, Primary, PrimaryPreferred, Secondary, SecondaryPreferred
from pymongo.write_concern import WriteConcern
from server import DEADLINE_S, Process, only_terndb, wait_until


class NumberedInserts(CommandListener):
    """Counts the inserts that a driver can send again."""

    def __init__(self):
        self.count = 0

    def started(self, event):
        self.count += event.command_name == "insert" and "txnNumber" in event.command

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass


class Members(unittest.TestCase):
    flags: tuple[str, ...] = ()

    @classmethod
    def setUpClass(cls):
        cls.directory = Path(tempfile.mkdtemp(prefix="terndb-members-"))
        cls.addClassCleanup(shutil.rmtree, cls.directory, ignore_errors=True)
        cls.process = Process(cls.directory / "data", "--members", "3", *cls.flags)
        cls.addClassCleanup(lambda: cls.assertEqual(cls(), cls.process.stop(), 0, cls.process.stderr()))
        cls.ports = [int(port) for port in re.findall(r":(\d+)", cls.process.uri.split("/?")[0])]
        # Only when a test says so somebody else is to lead, however busy the machine.
        with pymongo.MongoClient(cls.process.uri, serverSelectionTimeoutMS=DEADLINE_S * 1000) as client:
            config = client.admin.command("replSetGetConfig")["config"]
            config["version"] += 1
            config["settings"]["electionTimeoutMillis"] = 10_000
            client.admin.command("replSetReconfig", config)

    def setUp(self):
        self.client = pymongo.MongoClient(self.process.uri, serverSelectionTimeoutMS=DEADLINE_S * 1000)
        self.addCleanup(self.client.close)
        self.db = self.client["members"]
        self.db.c.drop()

    def member(self, port: int, **options) -> pymongo.MongoClient:
        options = {"serverSelectionTimeoutMS": DEADLINE_S * 1000} | options
        client = pymongo.MongoClient("127.0.0.1", port, directConnection=True, **options)
        self.addCleanup(client.close)
        return client

    def members(self):
        """Primary and secondaries, each by a connection of its own."""
        found = wait_until(lambda: self.client.primary and len(self.client.secondaries) == 2 and self.client.primary,
                           "a primary and two secondaries")
        primary = found[1]
        return self.member(primary), [self.member(port) for port in self.ports if port != primary]


@only_terndb
class Unasked(Members):
    def test_a_secondary_reads_after_a_time_that_nobody_has_written(self):
        self.members()
        self.db.c.insert_one({"_id": 1})
        began = time.monotonic()
        for _ in range(12):
            with self.client.start_session(causal_consistency=True) as session:
                self.client.admin.command("ping", session=session)
                later = Timestamp(session.cluster_time["clusterTime"].time + 2, 1)
                session.advance_cluster_time(dict(session.cluster_time) | {"clusterTime": later})
                session.advance_operation_time(later)
                c = self.db.get_collection("c", read_preference=Secondary(), read_concern=ReadConcern("majority"))
                self.assertEqual(c.find_one({}, session=session), {"_id": 1})
                self.assertGreaterEqual(session.operation_time, later)
        # Without being asked, a primary writes something every ten seconds: two minutes for twelve times.
        self.assertLess(time.monotonic() - began, DEADLINE_S)


@only_terndb
class ThreeMembers(Members):
    flags = ("--set-parameter", "logicalSessionRefreshMillis=300")

    def step_down(self) -> None:
        """The primary hands over to another member, and may be elected again."""
        primary, _ = self.members()
        primary.admin.command({"replSetStepDown": 2 * DEADLINE_S, "secondaryCatchUpPeriodSecs": DEADLINE_S})
        # Without this one, the next to step down would have fewer and fewer to hand over to.
        self.assertEqual(primary.admin.command("replSetFreeze", 0)["info"], "unfreezing")

    def test_drivers_find_all_of_them(self):
        primary, secondaries = self.members()
        self.assertEqual(self.client.nodes, {("127.0.0.1", port) for port in self.ports})
        hello = primary.admin.command("hello")
        self.assertTrue(hello["isWritablePrimary"])
        for secondary in secondaries:
            answer = secondary.admin.command("hello")
            self.assertTrue(answer["secondary"])
            self.assertEqual(answer["primary"], hello["me"])
            self.assertEqual(answer["hosts"], hello["hosts"])
            self.assertNotIn("electionId", answer)
        states = [member["stateStr"] for member in primary.admin.command("replSetGetStatus")["members"]]
        self.assertEqual(sorted(states), ["PRIMARY", "SECONDARY", "SECONDARY"])

    def test_the_configuration_can_be_read_as_a_collection(self):
        primary, secondaries = self.members()
        config = primary.admin.command("replSetGetConfig")["config"]
        for member in [primary, *secondaries]:
            stored = member.local["system.replset"].find_one()
            self.assertEqual(stored, config)
            log = member.admin.command("getLog", "global")
            self.assertGreaterEqual(log["totalLinesWritten"], len(log["log"]))
            self.assertTrue(log["log"])

    def test_secondaries_refuse_what_belongs_to_the_primary(self):
        _, secondaries = self.members()
        for secondary in secondaries:
            with self.assertRaises(pymongo.errors.NotPrimaryError) as caught:
                secondary.members.command("insert", "c", documents=[{}])
            self.assertEqual(caught.exception.details["code"], 10107)
            self.assertIn("topologyVersion", caught.exception.details)
            with self.assertRaises(pymongo.errors.NotPrimaryError) as caught:
                secondary.members.command(
                    {"find": "c", "readConcern": {"level": "linearizable"}}, read_preference=Secondary()
                )
            self.assertEqual(caught.exception.details["code"], 10107)

    def test_all_members_confirm(self):
        self.members()
        c = self.db.get_collection("c", write_concern=WriteConcern(w=3, wtimeout=DEADLINE_S * 1000))
        c.insert_one({"_id": 1})
        with self.assertRaises(pymongo.errors.WriteConcernError) as caught:
            self.db.get_collection("c", write_concern=WriteConcern(w=4, wtimeout=1000)).insert_one({"_id": 2})
        self.assertEqual(caught.exception.code, 100)

    def test_a_session_reads_its_own_writes_on_secondaries(self):
        self.members()
        c = self.db.get_collection("c", read_preference=Secondary(), read_concern=ReadConcern("majority"))
        with self.client.start_session(causal_consistency=True) as session:
            for number in range(50):
                c.insert_one({"_id": number}, session=session)
                self.assertEqual(c.count_documents({}, session=session), number + 1)

    def test_the_catalog_follows(self):
        primary, secondaries = self.members()
        self.db.c.insert_many([{"_id": n, "a": n % 7} for n in range(100)])
        self.db.c.create_index("a")
        self.db.d.insert_one({"_id": 1})
        self.db.d.rename("e", dropTarget=True)
        last = self.client.admin.command("hello")["lastWrite"]["opTime"]
        for secondary in secondaries:
            wait_until(
                lambda s=secondary: s.admin.command("hello")["lastWrite"]["opTime"]["ts"] >= last["ts"],
                "the secondary has applied it",
            )
            db = secondary.get_database("members", read_preference=Secondary())
            self.assertEqual(sorted(db.list_collection_names()), ["c", "e"])
            self.assertIn("a_1", db.c.index_information())
            plan = db.command({"explain": {"find": "c", "filter": {"a": 3}}})["queryPlanner"]["winningPlan"]
            self.assertEqual(plan["inputStage"]["stage"], "IXSCAN")
            self.assertEqual(
                db.command("dbHash")["collections"],
                primary.members.command("dbHash")["collections"],
            )
        self.db.e.drop()

    def test_a_driver_follows_a_step_down(self):
        for _ in range(3):
            self.members()
            before = self.client.primary
            self.db.c.insert_one({})
            self.step_down()
            self.db.c.insert_one({})
            self.assertNotEqual(self.client.primary, before)
        self.assertEqual(self.db.c.count_documents({}), 6)

    def test_retryable_writes_notice_nothing_of_a_step_down(self):
        failed, given_up, written, ended = [], [], [[] for _ in range(4)], threading.Event()

        def write(name: int):
            sent = NumberedInserts()
            options = {"serverSelectionTimeoutMS": DEADLINE_S * 1000, "event_listeners": [sent]}
            with pymongo.MongoClient(self.process.uri, **options) as client:
                number = 0
                while not ended.is_set():
                    bird, sent.count = f"{name}-{number}", 0
                    try:
                        client["members"].c.insert_one({"_id": bird})
                        written[name].append(bird)
                    except pymongo.errors.PyMongoError as error:
                        # A driver that hears of the change between its choice of a member and the write does not
                        # number it, or sends it no second time though it is told that it may.
                        may_retry = error.has_error_label("RetryableWriteError")
                        if sent.count == 0 or (sent.count == 1 and may_retry):
                            given_up.append(bird)
                        else:
                            failed.append(error)
                    number += 1

        writers = [threading.Thread(target=write, args=(name,)) for name in range(len(written))]
        for writer in writers:
            writer.start()
        try:
            for _ in range(3):
                self.members()
                before = self.client.primary
                # Of each writer: a driver tries twice, so none may meet two of them in one write.
                goals = [len(mine) + 25 for mine in written]
                wait_until(
                    lambda: failed or all(len(mine) >= goal for mine, goal in zip(written, goals)),
                    "writes go on",
                )
                self.step_down()
                wait_until(lambda: self.client.primary not in (None, before), "another primary")
        finally:
            ended.set()
            for writer in writers:
                writer.join()
        self.assertEqual(failed, [])
        found = [document["_id"] for document in self.db.c.find()]
        self.assertEqual(sorted(set(found) - set(given_up)), sorted(sum(written, [])))

    def test_read_preferences_tags_and_staleness(self):
        primary, secondaries = self.members()
        config = primary.admin.command("replSetGetConfig")["config"]
        config["version"] += 1
        places = ["here", "there", "there"]
        for member, place in zip(config["members"], places):
            member["tags"] = {"place": place, "number": str(member["_id"])}
        primary.admin.command({"replSetReconfig": config})
        tags = {member["host"]: member["tags"] for member in config["members"]}
        one_primary = "%s:%s" % self.members()[0].address
        hosts = set(tags)
        addresses = {(name, int(port)) for name, port in (host.rsplit(":", 1) for host in hosts)}
        self.db.c.insert_one({"_id": 1})
        self.db.get_collection("c", write_concern=WriteConcern(w=3)).insert_one({"_id": 2})

        def readers(preference) -> set:
            """Who answers."""
            with pymongo.MongoClient(
                self.process.uri,
                localThresholdMS=DEADLINE_S * 1000,
                serverSelectionTimeoutMS=DEADLINE_S * 1000,
                heartbeatFrequencyMS=500,
            ) as client:
                # A driver that has not found the primary yet takes another
                # member where the preference lets it.
                wait_until(
                    lambda: client.primary and {client.primary, *client.secondaries} == addresses, "all are found"
                )
                c = client["members"].get_collection("c", read_preference=preference)
                found = set()
                for _ in range(30):
                    cursor = c.find({"_id": 2})
                    self.assertEqual(cursor.next(), {"_id": 2})
                    found.add("%s:%s" % cursor.address)
                return found

        tagged = {place: {host for host in hosts if tags[host]["place"] == place} for place in places}
        for preference, expected in [
            (Primary(), {one_primary}),
            (PrimaryPreferred(), {one_primary}),
            (Secondary(), hosts - {one_primary}),
            (SecondaryPreferred(), hosts - {one_primary}),
            (Nearest(), hosts),
            (Nearest(tag_sets=[{"place": "there"}]), tagged["there"]),
            (Nearest(tag_sets=[{"place": "nowhere"}, {"place": "here"}]), tagged["here"]),
            (Nearest(tag_sets=[{"place": "nowhere"}, {}]), hosts),
            (Secondary(max_staleness=90), hosts - {one_primary}),
            (Nearest(max_staleness=120, tag_sets=[{"place": "there"}]), tagged["there"]),
        ]:
            with self.subTest(str(preference)):
                self.assertEqual(readers(preference), expected)
        with pymongo.MongoClient(self.process.uri, serverSelectionTimeoutMS=500) as client:
            c = client["members"].get_collection("c", read_preference=Nearest(tag_sets=[{"place": "nowhere"}]))
            with self.assertRaises(pymongo.errors.ServerSelectionTimeoutError):
                c.find_one()
        # What drivers tell staleness by.
        written = [s.admin.command("hello")["lastWrite"]["lastWriteDate"] for s in secondaries]
        latest = primary.admin.command("hello")["lastWrite"]["lastWriteDate"]
        self.assertTrue(all(abs((latest - one).total_seconds()) < 30 for one in written))

    def test_what_all_members_confirmed_can_be_read_on_each(self):
        _, secondaries = self.members()
        c = self.db.get_collection("c", write_concern=WriteConcern(w=3))
        for number in range(100):
            c.insert_one({"_id": number})
            for secondary in secondaries:
                found = secondary.members.get_collection("c", read_preference=Secondary()).find_one({"_id": number})
                self.assertEqual(found, {"_id": number})

    def test_sessions_of_secondaries_are_known_to_the_primary(self):
        primary, secondaries = self.members()
        ids = []
        for secondary in secondaries:
            with secondary.start_session() as session:
                c = secondary.members.get_collection("c", read_preference=Secondary())
                c.find_one({}, session=session)
                ids.append(session.session_id["id"])
        sessions = primary.config["system.sessions"]
        wait_until(
            lambda: sessions.count_documents({"_id.id": {"$in": ids}}) == len(ids), "the primary knows the sessions"
        )
        for secondary, id in zip(secondaries, ids):
            secondary.admin.command("endSessions", [{"id": id}])
        wait_until(lambda: sessions.count_documents({"_id.id": {"$in": ids}}) == 0, "the primary knows their end")

    def test_secondaries_validate(self):
        _, secondaries = self.members()
        self.db.c.create_index("a")
        stop = threading.Event()

        def write():
            number = 0
            while not stop.is_set():
                number += 1
                self.db.c.update_one({"_id": number % 50}, {"$set": {"a": [number, number % 7]}}, upsert=True)

        writer = threading.Thread(target=write)
        writer.start()
        self.addCleanup(writer.join)
        self.addCleanup(stop.set)
        self.db.get_collection("c", write_concern=WriteConcern(w=3)).insert_one({"_id": "x"})
        for secondary in secondaries * 3:
            answer = secondary.get_database("members", read_preference=Secondary()).command("validate", "c")
            self.assertTrue(answer["valid"], answer)
            self.assertEqual(answer["nIndexes"], 2)

    def test_linearizable_reads(self):
        self.members()
        c = self.db.get_collection("c", read_concern=ReadConcern("linearizable"))
        self.db.c.insert_one({"_id": 1})
        self.assertEqual(c.find_one(), {"_id": 1})


if __name__ == "__main__":
    unittest.main()
