"""Change streams on secondaries: one that is behind is waited for, one that was removed sends its readers away."""

import unittest

from members import DEADLINE_S, Member, ReplicaSet, wait_until
from network import Network
from pymongo import ReadPreference
from pymongo.errors import NotPrimaryError, PyMongoError
from pymongo.write_concern import WriteConcern

NOT_PRIMARY_OR_SECONDARY = 13436


class Streams(unittest.TestCase):
    def setUp(self):
        self.network = Network()
        self.addCleanup(self.network.close)
        self.set = ReplicaSet(network=self.network)
        self.addCleanup(self.set.stop)
        self.primary = self.set.wait_primary()
        self.secondary = next(member for member in self.set.members if member is not self.primary)

    def direct(self, member: Member):
        patience_ms = DEADLINE_S * 1000
        client = member.client(
            serverSelectionTimeoutMS=patience_ms, connectTimeoutMS=patience_ms, socketTimeoutMS=2 * patience_ms
        )
        self.addCleanup(client.close)
        return client

    def next_event(self, stream) -> dict:
        return wait_until(stream.try_next, "the stream goes on")

    def test_a_stream_is_resumed_on_a_secondary_that_is_behind(self):
        birds = self.direct(self.primary).test.birds
        birds.with_options(write_concern=WriteConcern(3, wtimeout=60_000)).insert_one({"_id": 0})
        cut_off = {self.secondary.number}
        self.network.cut(cut_off, {0, 1, 2} - cut_off)
        with birds.watch(max_await_time_ms=100) as stream:
            birds.with_options(write_concern=WriteConcern("majority")).insert_many(
                [{"_id": number} for number in (1, 2, 3)]
            )
            seen = [self.next_event(stream) for _ in (1, 2)]
        self.assertEqual(seen[-1]["documentKey"], {"_id": 2})
        behind = self.direct(self.secondary).test.birds
        self.assertEqual(behind.count_documents({}), 1)
        token = seen[-1]["_id"]
        with (
            behind.watch(resume_after=token, max_await_time_ms=100) as resumed,
            behind.watch(start_after=token, max_await_time_ms=100) as started,
        ):
            for stream in (resumed, started):
                self.assertIsNone(stream.try_next())
            self.network.heal()
            for stream in (resumed, started):
                self.assertEqual(self.next_event(stream)["documentKey"], {"_id": 3})

    def test_cursors_of_a_removed_member_end(self):
        self.direct(self.primary).test.birds.with_options(
            write_concern=WriteConcern(3, wtimeout=60_000)
        ).insert_many([{"_id": number} for number in range(10)])
        there = self.direct(self.secondary).get_database("test", read_preference=ReadPreference.SECONDARY_PREFERRED)

        session = there.client.start_session()
        self.addCleanup(session.end_session)

        def opened(command: dict) -> int:
            return there.command(command, session=session)["cursor"]["id"]

        stream = opened({"aggregate": "birds", "pipeline": [{"$changeStream": {}}], "cursor": {}})
        scan = opened({"find": "birds", "batchSize": 2})

        def remove():
            try:
                primary = self.set.wait_primary()
                config = primary.tell("replSetGetConfig")["config"]
                config["members"] = [one for one in config["members"] if one["_id"] != self.secondary.number]
                config["version"] += 1
                return primary.tell({"replSetReconfig": config})
            except PyMongoError:
                return None

        wait_until(remove, "the member is removed")
        wait_until(lambda: not (self.secondary.ask("hello") or {}).get("secondary"), "the member notices")
        with self.assertRaises(NotPrimaryError) as refused:
            there.command({"getMore": stream, "collection": "birds", "maxTimeMS": 100}, session=session)
        self.assertEqual(refused.exception.details["code"], NOT_PRIMARY_OR_SECONDARY)
        self.assertIn("ResumableChangeStreamError", refused.exception.details["errorLabels"])
        with self.assertRaises(NotPrimaryError) as refused:
            there.command({"getMore": scan, "collection": "birds"}, session=session)
        self.assertEqual(refused.exception.details["code"], NOT_PRIMARY_OR_SECONDARY)
        self.assertNotIn("errorLabels", refused.exception.details)


if __name__ == "__main__":
    unittest.main()
