"""kill -9 under load, many times over, on two data directories side by side. After
fifty rounds they are new: what is old only makes restarts and checks slower.

After every restart each writer's documents are the result of its first so many
steps, at least the acknowledged ones: a killed process takes nothing back that was
handed to the operating system, so that holds for w:1 too.

TERNDB_CRASH_ROUNDS sets the number of rounds, TERNDB_CRASH_SEED the seed.
"""

import collections
import random
import unittest

from harness import Server, Workplace, number_from_environment
from rounds import LANES, Budget, Crew, side_by_side

SEED = number_from_environment("TERNDB_CRASH_SEED", 20_240_607)
ROUNDS_EACH = 50


class Lane:
    """Rounds on one data directory after the other."""

    def __init__(self):
        self.steps_there = self.steps_absent = 0
        self.begin()

    def run(self, lane: int) -> tuple[collections.Counter, str]:
        endings = collections.Counter()
        rounds = Budget("TERNDB_CRASH_ROUNDS", default=200, default_s=150, lanes=LANES)
        for number in rounds:
            seed = f"{SEED}-{lane}-{number}"
            if number % ROUNDS_EACH == 0 and number > 0:
                self.finish()
                self.begin()
            try:
                endings[self.one_round(random.Random(seed), seed)] += 1
            except BaseException as failure:
                raise AssertionError(
                    f"round {number}: {failure}{self.place.evidence(seed)}"
                ) from failure
        self.finish()
        return endings, f"{rounds}, {self.steps_there} steps there, {self.steps_absent} not"

    def begin(self) -> None:
        self.place = Workplace("kill")
        self.crew = Crew()

    def finish(self) -> None:
        """Judges the last round on this directory."""
        server = Server(self.place.data).wait_ready()
        self.crew.check(server, power_cut=False)
        assert server.terminate() == 0, server.stderr()
        self.place.discard()
        self.steps_there += self.crew.present
        self.steps_absent += self.crew.absent

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
            assert code == 0, f"SIGTERM: {server.stderr()}"
        elif chance.random() < 0.3:
            ending = "kill, and again while it recovers"
            again = Server(self.place.data)
            again.ready_within(chance.uniform(0, 0.25))
            again.kill()
        return ending


def run_lane(lane: int) -> tuple[collections.Counter, str]:
    return Lane().run(lane)


class Kill(unittest.TestCase):
    def test_nothing_acknowledged_is_lost(self):
        endings = collections.Counter()
        for lane_endings, summary in side_by_side(run_lane):
            endings += lane_endings
            print(f"\nkill -9: {summary}")
        print(f"kill -9: {dict(endings)}")


if __name__ == "__main__":
    unittest.main()
