"""kill -9 under load, many times over, on one data directory.

After every restart each writer's documents are the result of its first so many
steps, at least the acknowledged ones: a killed process takes nothing back that was
handed to the operating system, so that holds for w:1 too.

TERNDB_CRASH_ROUNDS sets the number of rounds, TERNDB_CRASH_SEED the seed.
"""

import itertools
import random
import unittest

from harness import Server, Workplace, number_from_environment
from rounds import Budget, Crew

SEED = number_from_environment("TERNDB_CRASH_SEED", 20_240_607)


class Kill(unittest.TestCase):
    def test_nothing_acknowledged_is_lost(self):
        self.place = Workplace("kill")
        self.crew = Crew()
        endings = []
        rounds = Budget("TERNDB_CRASH_ROUNDS", default=60, default_s=90)
        for number in rounds:
            seed = f"{SEED}-{number}"
            try:
                endings.append(self.one_round(random.Random(seed), seed))
            except BaseException as failure:
                raise AssertionError(
                    f"round {number}: {failure}{self.place.evidence(seed)}"
                ) from failure
        counts = {kind: sum(1 for _ in group) for kind, group in itertools.groupby(sorted(endings))}
        server = Server(self.place.data).wait_ready()
        self.crew.check(server, power_cut=False)
        self.assertEqual(server.terminate(), 0)
        print(f"\nkill -9: {rounds}, {counts}, {self.crew.summary()}")
        self.place.discard()

    def one_round(self, chance: random.Random, seed: str) -> str:
        server = Server(self.place.data).wait_ready()
        try:
            self.crew.check(server, power_cut=False)
            ending = chance.choices(["kill", "term"], [5, 1])[0]
            code = self.crew.work(server, chance, seed, ending)
        finally:
            if server.process.poll() is None:
                server.kill()
        if ending == "term":
            self.assertEqual(code, 0, f"SIGTERM: {server.stderr()}")
        elif chance.random() < 0.3:
            ending = "kill, and again while it recovers"
            again = Server(self.place.data)
            again.ready_within(chance.uniform(0, 0.25))
            again.kill()
        return ending


if __name__ == "__main__":
    unittest.main()
