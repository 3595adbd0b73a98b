"""Power cuts under load, simulated (see `powercut.py` and `powercut.c`).

After every cut the server opens without complaint, every acknowledged majority write
is there, and what is there is a prefix: of each writer's steps, of the one sequence
over several collections, and of all writers together. Writes with w:1 that were
acknowledged may be lost, but only from the end.

Two of the tests are about the tests: with syncs that do nothing, and with syncs of
directories that do nothing, losses must be noticed.

TERNDB_POWER_CUTS sets the number of cuts, TERNDB_CRASH_SEED the seed.
"""

import os
import random
import subprocess
import sys
import unittest
from pathlib import Path

from harness import NotStarted, Server, Workplace, number_from_environment
from powercut import PowerCut, compile_shim
from rounds import LANES, Budget, Crew, side_by_side
from workload import Lost

SEED = number_from_environment("TERNDB_CRASH_SEED", 20_240_607)


class Machine:
    """A data directory whose power can be cut."""

    def __init__(self, name: str):
        self.place = Workplace(name)
        self.place.data.mkdir()
        self.shim = compile_shim()
        self.power = PowerCut(self.place.data, self.place.root / "aside")
        self.story: list[str] = []

    def start(self, ignore: str = "", delay_us: int = 2000) -> Server:
        self.power.begin()
        return Server(self.place.data, self.power.environment(self.shim, ignore, delay_us))

    def cut(self, chance: random.Random) -> None:
        self.story += self.power.cut(chance)

    def cut_during_start(self, chance: random.Random, longest_s: float) -> None:
        server = self.start()
        server.ready_within(chance.uniform(0, longest_s))
        server.kill()
        self.story.append("-- cut while starting")
        self.cut(chance)

    def failed(self, number: int, seed, failure) -> AssertionError:
        note = "".join(f"  {line}\n" for line in self.story)
        return AssertionError(f"cut {number}: {failure}{self.place.evidence(seed, note)}")


def cut_round(machine: Machine, crew: Crew, chance: random.Random, seed: str, ignore: str = "") -> None:
    """Load, cut, perhaps a second cut while it recovers, and judgement."""
    machine.story = []
    server = machine.start(ignore, chance.choice([0, 500, 5000])).wait_ready()
    crew.work(server, chance, seed, "kill")
    machine.cut(chance)
    if chance.random() < 0.25:
        machine.cut_during_start(chance, 0.3)
    judge(machine, crew, chance)


def cut_lane(lane: int) -> tuple[int, str]:
    """Cuts of one machine, one after the other: the steps they took, and a summary."""
    machine, crew = Machine("power"), Crew()
    judge(machine, crew, random.Random(SEED))
    cuts = Budget("TERNDB_POWER_CUTS", default=100, default_s=150, lanes=LANES)
    for number in cuts:
        seed = f"{SEED}-{lane}-{number}"
        try:
            cut_round(machine, crew, random.Random(seed), seed)
        except BaseException as failure:
            raise machine.failed(number, seed, failure) from failure
    machine.place.discard()
    return crew.absent, f"{cuts}, {crew.summary()}"


def judge(machine: Machine, crew: Crew, chance: random.Random) -> None:
    server = Server(machine.place.data).wait_ready()
    try:
        crew.check(server, power_cut=True)
        complaints = [line for line in server.stderr().splitlines() if "ERROR" in line or "panic" in line]
        assert not complaints, f"the server complains: {complaints}"
    finally:
        if chance.random() < 0.5:
            server.terminate()
        else:
            server.kill()


class PowerCuts(unittest.TestCase):
    def test_majority_writes_survive_and_the_rest_is_a_prefix(self):
        # Here, so that the lanes need not.
        compile_shim()
        absent = 0
        for lane_absent, summary in side_by_side(cut_lane):
            absent += lane_absent
            print(f"\npower cuts: {summary}")
        self.assertGreater(absent, 0, "cuts that take nothing prove nothing")

    def test_first_start_can_be_cut(self):
        for number in Budget("TERNDB_POWER_CUTS", default=12, default_s=20):
            seed = f"{SEED}-first-{number}"
            chance = random.Random(seed)
            machine = Machine("first")
            try:
                for _ in range(chance.randrange(1, 4)):
                    machine.cut_during_start(chance, 0.4)
                server = Server(machine.place.data).wait_ready()
                with server.client() as client:
                    client.crash.first.insert_one({"_id": number})
                    self.assertEqual(client.crash.first.find_one(), {"_id": number})
                self.assertEqual(server.terminate(), 0)
            except BaseException as failure:
                raise machine.failed(number, seed, failure) from failure
            machine.place.discard()

    def test_ignored_syncs_are_noticed(self):
        self.must_be_noticed("sync")

    def test_ignored_directory_syncs_are_noticed(self):
        self.must_be_noticed("directories")

    def must_be_noticed(self, ignore: str) -> None:
        for number in range(20):
            seed = f"{SEED}-{ignore}-{number}"
            chance = random.Random(seed)
            machine, crew = Machine(f"ignored-{ignore}"), Crew()
            try:
                if ignore == "directories":
                    # Names are mostly made at the first start.
                    server = machine.start(ignore).wait_ready()
                    crew.check(server, power_cut=False)
                    crew.work(server, chance, seed, "kill")
                    machine.cut(chance)
                    judge(machine, crew, chance)
                else:
                    judge(machine, crew, chance)
                    cut_round(machine, crew, chance, seed, ignore)
            # Without its files, or with half of them, the server may well refuse to start.
            except (Lost, NotStarted) as sign:
                print(f"\nnoticed after {number + 1} cuts: {str(sign).splitlines()[0]}")
                return
            finally:
                machine.place.discard()
        self.fail(f"twenty cuts with ignored syncs ({ignore}) lost nothing")


class Shim(unittest.TestCase):
    """The preloaded library and the cut, with a program that is known by heart."""

    PROGRAM = """
import os, sys
os.chdir(sys.argv[1])
write = lambda name, text: open(name, "w").write(text)
def sync(name):
    handle = os.open(name, os.O_RDONLY); os.fsync(handle); os.close(handle)
write("kept", "a" * 2000); sync("kept")
write("replaced", "old"); sync("replaced")
write("removed", "r"); sync("removed")
for path in ("handle", "handle-mixed", "call", "call-mixed", "handed-on"):
    write(path, "a" * 2048); sync(path)
sync(".")
with open("kept", "r+b") as file:
    file.seek(500); file.write(b"b" * 1000); file.flush()
    file.seek(1990); file.write(b"c" * 100); file.flush()
    file.truncate(700)
write("unfinished", "new"); sync("unfinished")
os.rename("unfinished", "replaced")
os.remove("removed")
write("created", "x")
# Writes that are synced by themselves, by a flag of the handle or of the call.
for name, flags, flag in (("handle", os.O_DSYNC, 0), ("call", 0, os.RWF_DSYNC)):
    for before in ("", "x" * 512):
        path = name + "-mixed" * bool(before)
        file = os.open(path, os.O_WRONLY)
        through = os.open(path, os.O_WRONLY | flags)
        if before:
            os.pwrite(file, before.encode(), 0)
        if flag:
            os.pwritev(through, [b"y" * 500, b"y" * 12], 1024, flag)
        else:
            os.pwrite(through, b"y" * 512, 1024)
        if before:
            os.pwrite(file, b"z" * 512, 1536)
# What another process syncs is its own write alone.
file = os.open("handed-on", os.O_WRONLY)
os.pwrite(file, b"x" * 512, 0)
next = "import os; os.pwrite(os.open('handed-on', os.O_WRONLY | os.O_DSYNC), b'y' * 512, 1024)"
os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-S", "-E", "-c", next])
os.kill(os.getpid(), 9)
"""

    THROUGH = ("handle", "call")
    NAMES = ("kept", "replaced", "removed", "created", "unfinished", "handed-on") + tuple(
        name + mixed for name in THROUGH for mixed in ("", "-mixed")
    )

    def outcomes(self, cuts: int) -> dict[str, set]:
        found: dict[str, set] = {}
        for number in range(cuts):
            machine = Machine("shim")
            machine.power.begin()
            subprocess.run(
                [sys.executable, "-S", "-E", "-c", self.PROGRAM, machine.place.data],
                env=os.environ | machine.power.environment(machine.shim),
                check=False,
            )
            machine.cut(random.Random(number))
            for name in self.NAMES:
                path = Path(machine.place.data, name)
                found.setdefault(name, set()).add(path.read_text() if path.exists() else None)
            machine.place.discard()
        return found

    def test_every_outcome_that_may_be_and_no_other(self):
        found = self.outcomes(60)
        self.assertEqual(found["replaced"], {"old", "new"})
        self.assertEqual(found["removed"], {"r", None})
        self.assertEqual(found["created"], {None, "", "x"})
        self.assertEqual(found["unfinished"], {None})
        old = "a" * 2000
        first = old[:500] + "b" * 1000 + old[1500:]
        second = first[:1990] + "c" * 100
        states = [old, first, second, second[:700]]
        self.assertLessEqual(set(states), found["kept"])
        for content in found["kept"]:
            for at in range(0, len(content), 512):
                sector = content[at : at + 512]
                self.assertTrue(
                    any(state[at : at + 512].ljust(512, "\0").startswith(sector) for state in states),
                    f"a sector that never was, at {at}: {sector!r}",
                )
        self.assertGreater(len(found["kept"]), len(states), "no sector was ever torn")
        for name in self.THROUGH:
            # Its bytes stay, and nothing is said about others, earlier or later.
            self.assertEqual(found[name], {"a" * 1024 + "y" * 512 + "a" * 512})
            mixed = found[f"{name}-mixed"]
            left = {(text[0], text[-1]) for text in mixed}
            self.assertLessEqual({("a", "a"), ("x", "a"), ("x", "z")}, left)
            for text in mixed:
                first, last = text[0], text[-1]
                self.assertEqual(text, first * 512 + "a" * 512 + "y" * 512 + last * 512)
                self.assertIn(first + last, ("aa", "xa", "az", "xz"))
        rest = "a" * 512 + "y" * 512 + "a" * 512
        self.assertEqual(found["handed-on"], {"a" * 512 + rest, "x" * 512 + rest})


if __name__ == "__main__":
    unittest.main()
