"""The crew of writers on one data directory, from round to round; and several such
crews side by side, in processes of their own, because one of them mostly waits.
"""

import multiprocessing
import os
import random
import threading
import time

from harness import DEADLINE_S, Server
from workload import Round, check_order
from writers import (
    CatalogWriter,
    DocumentWriter,
    HeavyWriter,
    SequenceWriter,
    check_shared,
    prepare,
)

DOCUMENT_WRITERS = 4


class Budget:
    """How many rounds to go: as many as asked for, or a default within a time.

    On a slow machine the default ends early, but never before a third of the rounds.
    Several lanes share the rounds: each does its part.
    """

    def __init__(self, variable: str, default: int, default_s: float, lanes: int = 1):
        self.asked = os.environ.get(variable)
        self.rounds = -(-int(self.asked or default) // lanes)
        self.limit_s = default_s
        self.began = time.monotonic()
        self.done = 0

    def __iter__(self):
        while self.done < self.rounds:
            slow = self.spent_s() > self.limit_s and self.done >= self.rounds // 3
            if slow and not self.asked:
                return
            yield self.done
            self.done += 1

    def spent_s(self) -> float:
        return time.monotonic() - self.began

    def __str__(self) -> str:
        return f"{self.done} of {self.rounds} in {self.spent_s():.0f} s"


LANES = 2


def side_by_side(lane) -> list:
    """Runs `lane(number)` in a process for each lane; what they return. The first
    failure is the caller's, as text: a process cannot hand over more."""
    context = multiprocessing.get_context("fork")
    with context.Pool(LANES) as pool:
        return pool.map(_Lane(lane), range(LANES), chunksize=1)


class _Lane:
    def __init__(self, lane):
        self.lane = lane

    def __call__(self, number: int):
        try:
            return self.lane(number)
        except BaseException as failure:
            raise AssertionError(f"lane {number}: {failure}") from None


class Crew:
    def __init__(self):
        self.documents = [DocumentWriter(f"w{number}") for number in range(DOCUMENT_WRITERS)]
        self.sequence = SequenceWriter("sequence")
        self.heavy = HeavyWriter("heavy")
        self.catalog = CatalogWriter("catalog")
        self.prepared = False
        self.present = self.absent = 0

    def everyone(self) -> list:
        return [*self.documents, self.sequence, self.heavy, self.catalog]

    def check(self, server: Server, power_cut: bool) -> None:
        """Judges what the last round left behind."""
        with server.client() as client:
            if not self.prepared:
                prepare(client)
                for writer in [*self.documents, self.catalog]:
                    writer.prepare(client)
                self.prepared = True
            database = client["crash"]
            for writer in self.everyone():
                writer.check(database, power_cut)
            check_order(self.everyone())
            check_shared(client)
        self.present += sum(len(writer.present) for writer in self.everyone())
        self.absent += sum(len(writer.absent) for writer in self.everyone())

    def work(self, server: Server, chance: random.Random, seed: str, ending: str) -> int | None:
        """One round of load, ended by kill -9 ("kill") or SIGTERM ("term"). The exit code."""
        working = [*self.documents, self.sequence]
        # The others come and go, so that each is met alone and together.
        working += [writer for writer in (self.heavy, self.catalog) if chance.random() < 0.5]
        round = Round()
        target = chance.randrange(30, 250)
        client, alone = server.client(), server.client(maxPoolSize=1)
        threads = [
            threading.Thread(
                target=writer.run,
                args=(
                    alone if writer is self.sequence else client,
                    random.Random(f"{seed}-{writer.name}"),
                    round,
                ),
            )
            for writer in working
        ]
        for thread in threads:
            thread.start()
        began = time.monotonic()
        round.wait_for(target, DEADLINE_S)
        failed = any(writer.failure for writer in working)
        # What is under way is cut off; nobody begins anew and looks for the dead.
        round.end()
        if ending == "kill" and not failed:
            server.kill()
            code = None
        else:
            code = server.terminate()
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), "a writer did not end"
        for dead in (client, alone):
            # It looks for the server to say goodbye, in vain: nobody waits for that.
            threading.Thread(target=dead.close, daemon=True).start()
        for writer in working:
            if writer.failure:
                raise writer.failure
        assert round.acknowledged >= target, (
            f"only {round.acknowledged} of {target} operations in {time.monotonic() - began:.0f} s"
        )
        return code

    def summary(self) -> str:
        return f"{self.present} steps there, {self.absent} not"
