"""`maxStalenessSeconds`: a driver leaves out a secondary that has fallen too far behind.

The specification allows no less than 90 seconds, so this takes over a minute and a half of waiting, and
runs only on demand: TERNDB_FAILOVER_SLOW=1.
"""

import os
import time
import unittest

from members import KIND, ReplicaSet
from network import Network
from pymongo.errors import ServerSelectionTimeoutError
from pymongo.read_preferences import Secondary

DEADLINE_S = 240
LEAST_S = 90


@unittest.skipIf(KIND != "terndb", "the real server's members are reached by one address only")
@unittest.skipUnless(os.environ.get("TERNDB_FAILOVER_SLOW") == "1", "takes minutes: TERNDB_FAILOVER_SLOW=1")
class Staleness(unittest.TestCase):
    def setUp(self):
        self.network = Network()
        self.addCleanup(self.network.close)
        self.set = ReplicaSet(network=self.network)
        self.addCleanup(self.set.stop)

    def wait_until(self, condition, what: str):
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            self.assertLess(time.monotonic(), deadline, f"in vain: {what}")
            time.sleep(0.2)

    def test_a_secondary_that_is_cut_off_is_left_out(self):
        primary = self.set.wait_primary()
        fresh, stale = (member for member in self.set.members if member is not primary)
        options = {"heartbeatFrequencyMS": 500, "serverSelectionTimeoutMS": 60_000, "localThresholdMS": 60_000}
        with self.set.client(**options) as client:
            client.test.birds.insert_one({"_id": "tern"})
            self.wait_until(lambda: len(client.secondaries) == 2, "the driver knows both secondaries")
            birds = client.test.birds

            def answers(preference, times=20) -> set[str]:
                """Who answers reads: as many reads as it takes to meet everybody who may."""
                asked = birds.database.client.get_database("admin", read_preference=preference)
                return {asked.command("hello", read_preference=preference)["me"] for _ in range(times)}

            any_age, young = Secondary(), Secondary(max_staleness=LEAST_S)
            everybody = {fresh.host, stale.host}
            self.wait_until(lambda: answers(young) == everybody, "both are fresh")
            self.network.cut({stale.number}, {0, 1, 2} - {stale.number})
            began = time.monotonic()

            def is_left_out() -> bool:
                birds.insert_one({})
                return answers(young) == {fresh.host}

            self.wait_until(is_left_out, "the member that is cut off is left out")
            lag = time.monotonic() - began
            self.assertGreater(lag, LEAST_S - 15, "not before it is that old")
            self.wait_until(lambda: answers(any_age) == everybody, "without a limit both answer")
            by_tags = Secondary([{"no": "such"}], max_staleness=LEAST_S)
            with self.set.client(**options | {"serverSelectionTimeoutMS": 1000}) as hasty:
                with self.assertRaises(ServerSelectionTimeoutError):
                    hasty.get_database("test", read_preference=by_tags).birds.find_one()
            self.network.heal()
            self.wait_until(lambda: answers(young) == everybody, "it has caught up")
            print(f"left out after {lag:.0f} s")


if __name__ == "__main__":
    unittest.main()
