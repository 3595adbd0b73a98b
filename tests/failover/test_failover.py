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

from clients import DATABASE, Causal, ExactlyOnce, Monotonic, Register, SharedRegisters, Swaps
from members import DEADLINE_S, ReplicaSet, wait_until
from pymongo.errors import PyMongoError

ROUNDS = int(os.environ.get("TERNDB_FAILOVER_ROUNDS", 9))
SEED = int(os.environ.get("TERNDB_FAILOVER_SEED", 1))
PROGRESS = 20
"""How much every client gets done between two faults."""


class Failover(unittest.TestCase):
    def setUp(self):
        self.set = ReplicaSet(3)
        self.shared = SharedRegisters()
        self.clients = [
            *(ExactlyOnce(self.set, f"once{at}") for at in range(3)),
            Swaps(self.set, "swaps"),
            *(Register(self.set, f"writer{at}", self.shared, writes=True) for at in range(2)),
            *(Register(self.set, f"reader{at}", self.shared, writes=False) for at in range(2)),
            Causal(self.set, "causal"),
            Monotonic(self.set, "monotonic"),
        ]

    def tearDown(self):
        for client in self.clients:
            client.stop()
        failed = bool(self._outcome and not self._outcome.success) if hasattr(self, "_outcome") else False
        self.set.stop(keep=failed)
        if failed:
            print(f"\n  seed: {SEED}, data and logs kept in {self.set.root}")

    def progress(self) -> None:
        """Waits until every client got something done since now."""
        goals = [(client, client.done + PROGRESS) for client in self.clients]

        def reached():
            for client, _ in goals:
                if client.failure:
                    raise client.failure
            return all(client.done >= goal for client, goal in goals)

        def states():
            return ", ".join(f"{client.name} {client.done}/{goal} ({client.failed})" for client, goal in goals)

        try:
            wait_until(reached, "every client makes progress", 2 * DEADLINE_S)
        except AssertionError as late:
            raise AssertionError(f"{late}: {states()}") from None

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
        for client in self.clients:
            client.stop()
        for client in self.clients:
            client.join(DEADLINE_S)
        self.set.heal()
        with self.set.client() as client:
            database = client[DATABASE]
            for one in self.clients:
                one.check(database)
        self.shared.check()
        hashes = self.set.hashes(DATABASE)
        self.assertTrue(hashes[0], "there is something to compare")
        for other in hashes[1:]:
            self.assertEqual(hashes[0], other, "members hold the same")
        done = sum(client.done for client in self.clients)
        failed = sum(client.failed for client in self.clients)
        print(f"\n  {ROUNDS} faults, {done} operations, {failed} with an unknown outcome, {len(self.shared.histories)} registers")


if __name__ == "__main__":
    unittest.main()
