"""A replica set under load loses its primary again and again: killed, paused, told to step down.

Afterwards every acknowledged write is there exactly once, registers were linearizable, sessions read
their own writes, and all members hold the same.

TERNDB_FAILOVER_ROUNDS   how many faults (9)
TERNDB_FAILOVER_SEED     other choices
TERNDB_FAILOVER_KIND     mongod: check this program with the real server
TERNDB_FAILOVER_W        1: acknowledge writes early, which the real server pays for with losses
"""

import os
import random
import unittest

from load import SEED, UnderLoad
from pymongo.errors import PyMongoError

ROUNDS = int(os.environ.get("TERNDB_FAILOVER_ROUNDS", 9))


class Failover(UnderLoad):
    def hurt(self, fault: str) -> None:
        primary = self.set.wait_primary()
        if fault == "kill the primary":
            primary.kill()
            self.set.wait_primary(besides=primary)
        elif fault == "kill a secondary":
            others = [member for member in self.set.members if member is not primary]
            random.Random(f"{SEED}").choice(others).kill()
        elif fault == "pause the primary":
            primary.pause()
            self.set.wait_primary(besides=primary)
        elif fault == "step down":
            try:
                with primary.client(socketTimeoutMS=20_000) as client:
                    client.admin.command({"replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 5})
            except PyMongoError:
                # Nobody may be ready to take over, or the connection went with it.
                pass
        elif fault == "kill everybody":
            for member in self.set.members:
                member.kill()
        else:
            raise ValueError(fault)

    def test_nothing_is_lost_and_nothing_happens_twice(self):
        chance = random.Random(SEED)
        faults = ["kill the primary", "pause the primary", "step down", "kill a secondary", "kill everybody"]
        # Each kind at least once, then as chance has it.
        order = faults + chance.choices(faults, weights=[4, 3, 2, 1, 1], k=max(0, ROUNDS - len(faults)))
        for client in self.clients:
            client.start()
        self.progress()
        for fault in order[:ROUNDS]:
            with self.subTest(fault=fault):
                self.hurt(fault)
                if fault in ("kill the primary", "pause the primary", "kill a secondary"):
                    # Two of three are enough to go on with.
                    self.progress()
                self.set.heal()
                self.progress()
        self.check_all(ROUNDS)


if __name__ == "__main__":
    unittest.main()
