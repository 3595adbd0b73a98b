"""Clients of all kinds on a set that is being hurt: until they get on, and what must hold in the end."""

import os
import unittest

from clients import DATABASE, Causal, ExactlyOnce, Monotonic, Ordered, Register, SharedRegisters, Swaps
from members import DEADLINE_S, ReplicaSet, wait_until
from network import Network

SEED = int(os.environ.get("TERNDB_FAILOVER_SEED", 1))


class UnderLoad(unittest.TestCase):
    """Three members with clients of all kinds; `self.check_all` in the end."""

    network: Network | None = None

    def setUp(self):
        self.set = ReplicaSet(3, network=self.network)
        self.shared = SharedRegisters()
        self.clients = [
            *(ExactlyOnce(self.set, f"once{at}") for at in range(3)),
            Swaps(self.set, "swaps"),
            *(Register(self.set, f"writer{at}", self.shared, writes=True) for at in range(2)),
            *(Register(self.set, f"reader{at}", self.shared, writes=False) for at in range(2)),
            Causal(self.set, "causal"),
            Monotonic(self.set, "monotonic"),
            Ordered(self.set, "cause", writes=True),
            Ordered(self.set, "effect", writes=False),
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
        goals = [(client, client.done + client.pace) for client in self.clients]

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

    def check_all(self, faults: int) -> None:
        """Ends the clients, and looks whether everything held."""
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
        print(f"\n  {faults} faults, {done} operations, {failed} with an unknown outcome, {len(self.shared.histories)} registers")
