"""A member that was away for too long is sent the state; in the middle of that the leader is killed.

Another leader goes on with the copy: what the member has already is not sent again.
"""

import os
import re
import unittest

from members import KIND, ReplicaSet, wait_until
from network import Network

DOCUMENTS = 120
DOCUMENT_BYTES = 200_000
"""Together three times what the members keep of their logs."""
OPLOG_MB = 8
HERE = re.compile(r"the state of another member is here.*parts=(\d+) kept=(\d+)")


@unittest.skipIf(KIND != "terndb", "the real server begins anew")
class Copies(unittest.TestCase):
    def setUp(self):
        self.network = Network()
        self.addCleanup(self.network.close)
        self.set = ReplicaSet(network=self.network, settings=f"oplog_mb = {OPLOG_MB}\n")
        self.addCleanup(self.set.stop)

    def copied_parts(self, primary, late) -> int:
        """How much of the state the primary has sent to a member."""
        members = primary.tell("replSetGetStatus")["members"]
        message = next(member for member in members if member["_id"] == late.number).get("infoMessage", "")
        found = re.search(r"(\d+) parts", message)
        return int(found[1]) if found else 0

    def test_another_leader_goes_on(self):
        primary = self.set.wait_primary()
        late, other = (member for member in self.set.members if member is not primary)
        late.kill()
        with self.set.client(socketTimeoutMS=60_000) as client:
            for number in range(DOCUMENTS):
                client.test.birds.insert_one({"_id": number, "song": os.urandom(DOCUMENT_BYTES)})
        for sender in (primary, other):
            for link in self.network.between({sender.number}, {late.number}):
                link.delay_s = 0.05
        late.start()
        wait_until(late.is_up, "the member that was away answers")
        wait_until(lambda: self.copied_parts(primary, late) >= 30, "some of the state is there")
        primary.kill()
        sent_before = self.sent(other, late)
        self.network.heal()
        # Two of three are there, and one of them needs the copy before anything can be committed.
        wait_until(lambda: HERE.search(late.log.read_text(errors="replace")), "all of the state is there")
        sent = self.sent(other, late) - sent_before
        parts, kept = map(int, HERE.findall(late.log.read_text(errors="replace"))[-1])
        self.assertGreaterEqual(kept, 20, f"of {parts} parts, though 30 were there")
        self.assertLess(sent, (DOCUMENTS - 10) * DOCUMENT_BYTES, "what was there is not sent again")
        self.set.wait_primary(besides=primary)
        self.set.heal()
        hashes = self.set.hashes("test")
        self.assertEqual(hashes, [hashes[0]] * len(hashes))
        with self.set.client() as client:
            self.assertEqual(client.test.birds.count_documents({}), DOCUMENTS)

    def sent(self, sender, receiver) -> int:
        return sum(link.carried_bytes for link in self.network.between({sender.number}, {receiver.number}))


if __name__ == "__main__":
    unittest.main()
