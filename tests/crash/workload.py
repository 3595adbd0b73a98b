"""Writers that know exactly what they wrote, and what a restart may make of it.

Each writer owns some keys: documents of its own, its own field in shared counters,
its own places in a collection with a unique index, or whole collections. It works
through a sequence of *steps*; a step is what must happen wholly or not at all, and
is written down, with the values it leaves behind, before it is sent:

      acknowledged                           attempted
          │                                      │
   ═══════╪══════════════════════════════════════╪═════►  the writer's steps
          └─ the state found after a restart is ─┘
             the state after one of these steps

So a lost write, a write of which half is there, and a later write without the
earlier one all show up in the same way: no number of steps explains what is there.

`check_order` compares writers with each other: whatever began after a lost step was
acknowledged must be lost as well, because all steps go through one log.
"""

import threading
import time
from dataclasses import dataclass, field

from pymongo.errors import ConnectionFailure, DuplicateKeyError, OperationFailure
from pymongo.write_concern import WriteConcern

DATABASE = "crash"
# What a server answers when it is told to stop: the outcome is unknown.
STOPPING = {91, 11600, 11602}

MAJORITY = WriteConcern(w="majority")
DEFAULT = WriteConcern()
BUFFERED = WriteConcern(w=1)


@dataclass
class Step:
    """`effects`: each key and the value it has afterwards, or None."""

    effects: list
    majority: bool
    began: float
    acknowledged: float | None = None


class Lost(AssertionError):
    """What is there after a restart is not what may be there."""


class Stop(Exception):
    """The server is gone or going."""


@dataclass
class Round:
    """What the writers of one round share: their pace, and when to end."""

    acknowledged: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    progress: threading.Condition = field(default_factory=threading.Condition)

    def count(self) -> None:
        with self.progress:
            self.acknowledged += 1
            self.progress.notify_all()

    def wait_for(self, acknowledged: int, deadline_s: float) -> None:
        """Returns when so many operations were acknowledged, or none comes any more."""
        with self.progress:
            self.progress.wait_for(
                lambda: self.acknowledged >= acknowledged or self.ended.is_set(), deadline_s
            )

    def end(self) -> None:
        self.ended.set()
        with self.progress:
            self.progress.notify_all()


class Writer:
    """One sequence of steps. Lives as long as the data directory."""

    # The chance that a write asks for nothing beyond being applied.
    buffered_share = 0.3

    def __init__(self, name: str):
        self.name = name
        # What is there for certain, and what is there after the steps since.
        self.state: dict = {}
        self.current: dict = {}
        self.steps: list[Step] = []
        # What the last restart left of the steps before it.
        self.present: list[Step] = []
        self.absent: list[Step] = []
        self.next_id = 0
        self.failure: BaseException | None = None

    # What a kind of writer must say.

    def operate(self, database, random) -> None:
        """Does one operation."""
        raise NotImplementedError

    def read(self, database) -> dict:
        """What is stored of this writer's keys."""
        raise NotImplementedError

    # Writing.

    def run(self, client, random, round: Round) -> None:
        database = client[DATABASE]
        try:
            while not round.ended.is_set():
                self.operate(database, random)
                round.count()
        except Stop:
            round.end()
        except BaseException as failure:  # Raised again by the test's own thread.
            self.failure = failure
            round.end()

    def concern(self, random) -> WriteConcern:
        if random.random() < self.buffered_share:
            return BUFFERED
        return random.choice([MAJORITY, DEFAULT])

    def apply(self, effects_of_steps: list, concern: WriteConcern, call, expect=None):
        """Sends one operation that consists of these steps, in this order."""
        began = time.monotonic()
        steps = [Step(effects, concern is not BUFFERED, began) for effects in effects_of_steps]
        self.steps.extend(steps)
        try:
            reply = call()
        except DuplicateKeyError:
            # Refused: none of it happened.
            del self.steps[len(self.steps) - len(steps) :]
            raise
        except ConnectionFailure:
            raise Stop from None
        except OperationFailure as error:
            if error.code in STOPPING:
                raise Stop from None
            raise
        acknowledged = time.monotonic()
        for step in steps:
            step.acknowledged = acknowledged
            leave_behind(self.current, step)
        if expect is not None and not expect(reply):
            raise Lost(f"{self.name}: unexpected reply {reply!r} to {effects_of_steps!r:.300}")
        return reply

    # Judging.

    def check(self, database, power_cut: bool) -> int:
        """Finds how many steps are there; they become the state. Returns the lost ones."""
        found = self.read(database)
        state = dict(self.state)
        wrong = {key for key in found.keys() | state.keys() if found.get(key) != state.get(key)}
        low = self._durable(power_cut)
        nearest = (len(wrong) + 1, 0, set())
        # A document that came and went leaves no trace: several numbers may explain what is there.
        explaining = [0] if low == 0 and not wrong else []
        for number, step in enumerate(self.steps, 1):
            leave_behind(state, step)
            for key, value in step.effects:
                if found.get(key) == value:
                    wrong.discard(key)
                else:
                    wrong.add(key)
            if number >= low and not wrong:
                explaining.append(number)
            if len(wrong) < nearest[0]:
                nearest = (len(wrong), number, set(wrong))
        if not explaining:
            raise Lost(self._explain(found, low, nearest))
        return self._settle(explaining[0], explaining[-1])

    def _durable(self, power_cut: bool) -> int:
        """The number of steps that must be there."""
        must = 0
        for number, step in enumerate(self.steps, 1):
            if step.acknowledged is not None and (step.majority or not power_cut):
                must = number
        return must

    def _settle(self, least: int, most: int) -> int:
        """At least so many steps are there, and at most so many; the state is the same."""
        self.present, self.absent = self.steps[:least], self.steps[most:]
        for step in self.present:
            leave_behind(self.state, step)
        self.current = dict(self.state)
        self.steps = []
        return len(self.absent)

    def _explain(self, found, low, nearest) -> str:
        acknowledged = sum(1 for step in self.steps if step.acknowledged is not None)
        differences, number, wrong = nearest
        lines = [
            f"{self.name}: no number of steps from {low} on explains what is there"
            f" ({acknowledged} acknowledged, {len(self.steps)} attempted);"
            f" nearest: {number} steps, {differences} keys differ"
        ]
        expected = dict(self.state)
        for step in self.steps[:number]:
            leave_behind(expected, step)
        for key in sorted(wrong, key=repr)[:5]:
            lines.append(f"  {key}: found {found.get(key)!r:.200}, expected {expected.get(key)!r:.200}")
            for at, step in enumerate(self.steps, 1):
                if any(changed == key for changed, _ in step.effects):
                    kind = "majority" if step.majority else "w:1"
                    told = "acknowledged" if step.acknowledged else "unknown"
                    lines.append(f"    step {at} ({kind}, {told}) changes it")
        return "\n".join(lines)


def leave_behind(state: dict, step: Step) -> None:
    for key, value in step.effects:
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value


def check_order(writers) -> None:
    """Nothing that began after a lost step was acknowledged is there."""
    lost = [
        (step.acknowledged, writer.name)
        for writer in writers
        for step in writer.absent
        if step.acknowledged is not None
    ]
    present = [(step.began, writer.name) for writer in writers for step in writer.present]
    if lost and present and min(lost)[0] < max(present)[0]:
        raise Lost(
            f"a step of {max(present)[1]} is there that began"
            f" {max(present)[0] - min(lost)[0]:.6f} s after a lost step of {min(lost)[1]} was acknowledged"
        )
