"""A member that starts without the others: it does not know for sure how much of its log is committed, so that reads which
must not go back in time wait until somebody tells it. What it had noted as committed it shows at once."""

import struct
import unittest

from members import ReplicaSet, wait_until
from pymongo.errors import NotPrimaryError, OperationFailure
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

DOCUMENTS = 5
MAX_TIME_EXPIRED, NOT_PRIMARY_OR_SECONDARY = 50, 13436
SHOWS_LASTING = ("majority", "snapshot")


class Alone(unittest.TestCase):
    def setUp(self):
        self.set = ReplicaSet()
        self.addCleanup(self.set.stop)

    def count(self, member, level: str, **options) -> int:
        with member.client(socketTimeoutMS=60_000) as client:
            birds = client.test.get_collection("birds", read_concern=ReadConcern(level))
            return len(list(birds.find({}, **options)))

    def takes_part(self, member) -> bool:
        hello = member.ask("hello") or {}
        return bool(hello.get("isWritablePrimary") or hello.get("secondary"))

    def noted(self, member) -> tuple[int, int]:
        """The time of the last entry that a member has noted as committed."""
        try:
            increment, seconds = struct.unpack_from("<II", (member.data / "log" / "commit.hint").read_bytes(), 56)
        except (FileNotFoundError, struct.error):
            return 0, 0
        return seconds, increment

    def test_what_was_noted_as_committed_is_shown(self):
        with self.set.client() as client, client.start_session() as session:
            birds = client.test.get_collection("birds", write_concern=WriteConcern(3, wtimeout=60_000))
            birds.insert_many([{"_id": number} for number in range(DOCUMENTS)], session=session)
            written = (session.operation_time.time, session.operation_time.inc)
        for member in self.set.members:
            wait_until(lambda member=member: self.noted(member) >= written, "it is noted as committed")
        for member in self.set.members:
            member.kill()
        for member in self.set.members:
            member.start()
            wait_until(member.is_up, "the member answers")
            self.assertEqual(self.count(member, "local"), DOCUMENTS)
            member.kill()
        self.set.heal()
        self.set.wait_primary()

    def test_what_was_committed_does_not_vanish(self):
        # A second life: of the first one they know that it is committed.
        for member in self.set.members:
            member.kill()
        self.set.heal()
        self.set.wait_primary()
        with self.set.client() as client:
            birds = client.test.get_collection("birds", write_concern=WriteConcern(3, wtimeout=60_000))
            birds.insert_many([{"_id": number} for number in range(DOCUMENTS)])
        first, *others = self.set.members
        self.assertEqual(self.count(first, "majority"), DOCUMENTS)
        for member in self.set.members:
            member.kill()
        first.start()
        wait_until(first.is_up, "the member answers")
        for level in SHOWS_LASTING:
            try:
                found = self.count(first, level, max_time_ms=300)
            except (NotPrimaryError, OperationFailure) as refused:
                # It waits for the others, or does not know yet whose member it is.
                self.assertIn((refused.details or {}).get("code"), (MAX_TIME_EXPIRED, NOT_PRIMARY_OR_SECONDARY), level)
                continue
            self.assertEqual(found, DOCUMENTS, level)
        others[0].start()
        self.set.wait_primary()
        wait_until(lambda: self.takes_part(first), "the member takes part")
        for level in SHOWS_LASTING:
            self.assertEqual(self.count(first, level), DOCUMENTS, level)


if __name__ == "__main__":
    unittest.main()
