"""Members that cannot reach each other: cut off, in one direction or both, or slow.

Afterwards the same holds as after every other fault: see `load.py`. While a primary is cut off from the
majority it acknowledges no majority write, and answers no linearizable read.

TERNDB_FAILOVER_CUTS     how many faults (6)
TERNDB_FAILOVER_SEED     other choices
"""

import os
import random
import unittest

from load import SEED, UnderLoad
from members import KIND
from network import Network
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

ROUNDS = int(os.environ.get("TERNDB_FAILOVER_CUTS", 6))
ALL = {0, 1, 2}


@unittest.skipIf(KIND != "terndb", "the real server's members are reached by one address only")
class Cuts(UnderLoad):
    def setUp(self):
        self.network = Network()
        super().setUp()

    def tearDown(self):
        super().tearDown()
        self.network.close()

    def check_cut_off(self, member) -> None:
        """It may believe to lead for a moment, and must not act like it."""
        with member.client(socketTimeoutMS=5000, retryWrites=False) as client:
            marks = client.get_database("marks", write_concern=WriteConcern("majority", wtimeout=500))
            with self.assertRaises(PyMongoError, msg="a write was acknowledged without a majority"):
                marks.marks.insert_one({"never": "acknowledged"})
            marks = marks.get_collection("marks", read_concern=ReadConcern("linearizable"))
            with self.assertRaises(PyMongoError, msg="a linearizable read was answered"):
                marks.find_one(max_time_ms=500)

    def hurt(self, fault: str) -> None:
        primary = self.set.wait_primary()
        one, others = {primary.number}, ALL - {primary.number}
        if fault == "the primary is cut off":
            self.network.cut(one, others)
            self.check_cut_off(primary)
            self.set.wait_primary(besides=primary)
        elif fault == "nobody hears the primary":
            self.network.cut(one, others, back=False)
            self.set.wait_primary(besides=primary)
        elif fault == "the primary hears nobody":
            self.network.cut(others, one, back=False)
            self.check_cut_off(primary)
            self.set.wait_primary(besides=primary)
        elif fault == "a secondary is cut off":
            self.network.cut({random.Random(SEED).choice(sorted(others))}, ALL)
        elif fault == "two cannot reach each other":
            self.network.cut({min(others)}, {max(others)})
        elif fault == "everything is slow":
            self.network.delay(0.05)
        elif fault == "everybody is alone":
            for number in ALL:
                self.network.cut({number}, ALL - {number})
            self.check_cut_off(primary)
        else:
            raise ValueError(fault)

    def test_nothing_is_lost_and_nothing_happens_twice(self):
        chance = random.Random(SEED)
        faults = [
            "the primary is cut off",
            "the primary hears nobody",
            "nobody hears the primary",
            "a secondary is cut off",
            "everybody is alone",
            "everything is slow",
            "two cannot reach each other",
        ]
        order = faults + chance.choices(faults, k=max(0, ROUNDS - len(faults)))
        for client in self.clients:
            client.start()
        self.progress()
        one = {self.set.wait_primary().number}
        for link in self.network.between(one, ALL) + self.network.between(ALL, one):
            self.assertGreater(link.carried_bytes, 0, "members use the network")
        for fault in order[:ROUNDS]:
            with self.subTest(fault=fault):
                self.hurt(fault)
                if fault != "everybody is alone":
                    # Two of three are enough to go on with.
                    self.progress()
                self.network.heal()
                self.set.heal()
                self.progress()
        self.check_all(ROUNDS)


if __name__ == "__main__":
    unittest.main()
