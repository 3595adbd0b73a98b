"""What clients do to a replica set while it is being hurt, and what must hold afterwards.

Each kind of client works in a thread of its own until it is told to stop, and keeps what it needs to
judge. Errors are part of the work: the driver retries what it may, and what is left is an unknown
outcome, never a reason to stop. `done` counts what was acknowledged, so that others can wait for
progress instead of time.
"""

import itertools
import os
import threading

import pymongo
from history import FOREVER, History, fault
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

DATABASE = "flock"
# With w: 1 the real server loses writes, and these tests must notice.
MAJORITY = WriteConcern(1 if os.environ.get("TERNDB_FAILOVER_W") == "1" else "majority", wtimeout=10_000)
ROTATION = 200
"""After so many operations a client goes on with a new document, so that none grows for ever."""


class Client:
    """Works in a thread of its own."""

    pace = 20
    """How much it gets done between two faults."""

    def __init__(self, replica_set, name: str):
        self.name = name
        self.done = 0
        self.failed = 0
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._client = replica_set.client(retryWrites=True)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def database(self):
        return self._client.get_database(DATABASE, write_concern=MAJORITY)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"{self.name} does not end"
        self._client.close()
        if self.failure:
            raise self.failure

    def _run(self) -> None:
        try:
            for number in itertools.count(1):
                if self._stop.is_set():
                    return
                try:
                    self.step(number)
                    self.done += 1
                except PyMongoError:
                    self.failed += 1
        except BaseException as unexpected:
            self.failure = unexpected

    def step(self, number: int) -> None:
        raise NotImplementedError

    def check(self, database) -> None:
        raise NotImplementedError


class ExactlyOnce(Client):
    """Appends numbers to a list. A retry that was applied twice would show, as would a loss."""

    def __init__(self, replica_set, name: str):
        super().__init__(replica_set, name)
        self.acknowledged: set[int] = set()
        self.tried = 0

    def step(self, number: int) -> None:
        self.tried = number
        self.database.once.update_one(
            {"_id": f"{self.name}-{number // ROTATION}"},
            {"$push": {"numbers": number}, "$inc": {"count": 1}},
            upsert=True,
        )
        self.acknowledged.add(number)

    def check(self, database) -> None:
        documents = list(database.once.find({"_id": {"$regex": f"^{self.name}-"}}))
        found = [number for document in documents for number in document["numbers"]]
        for document in documents:
            assert document["count"] == len(document["numbers"]), f"{document['_id']}: half an update"
        twice = {number for number in found if found.count(number) > 1}
        assert not twice, f"{self.name}: applied twice: {sorted(twice)}"
        lost = self.acknowledged - set(found)
        assert not lost, f"{self.name}: acknowledged and lost: {sorted(lost)}"
        assert set(found) <= set(range(1, self.tried + 1)), f"{self.name}: out of nowhere"


class Swaps(Client):
    """findAndModify that returns what was there before: each must see the one before it."""

    def __init__(self, replica_set, name: str):
        super().__init__(replica_set, name)
        self.before: dict[int, int | None] = {}

    def step(self, number: int) -> None:
        document = self.database.swaps.find_one_and_update(
            {"_id": self.name}, {"$set": {"number": number}, "$inc": {"times": 1}}, upsert=True
        )
        self.before[number] = document and document["number"]

    def check(self, database) -> None:
        document = database.swaps.find_one({"_id": self.name}) or {"number": 0, "times": 0}
        for number, before in self.before.items():
            # What it saw was written before it, after every earlier acknowledged one.
            earlier = max((other for other in self.before if other < number), default=0)
            assert (before or 0) >= earlier, f"{self.name}: {number} saw {before} after {earlier}"
            assert (before or 0) < number, f"{self.name}: {number} saw {before}, itself or later"
        last = max(self.before, default=0)
        assert document["number"] >= last, f"{self.name}: {last} was acknowledged, {document['number']} is there"
        tried = self.done + self.failed
        assert self.done <= document["times"] <= tried, f"{self.name}: {document['times']} swaps of {tried}"


class Register(Client):
    """Writes or reads a register that others use as well. Their history must be linearizable."""

    def __init__(self, replica_set, name: str, shared: "SharedRegisters", writes: bool):
        super().__init__(replica_set, name)
        self.shared = shared
        self.writes = writes

    def step(self, number: int) -> None:
        key, history = self.shared.current()
        called = history.called()
        if not self.writes:
            registers = self.database.get_collection("registers", read_concern=ReadConcern("linearizable"))
            document = registers.find_one({"_id": key}, max_time_ms=5000)
            history.record("read", document and document["value"], called)
            return
        value = f"{self.name}:{number}"
        try:
            self.database.registers.update_one({"_id": key}, {"$set": {"value": value}}, upsert=True)
        except PyMongoError:
            history.record("write", value, called, FOREVER)
            raise
        history.record("write", value, called)

    def check(self, database) -> None:
        """The registers are judged together."""


class SharedRegisters:
    """Registers that several clients use, one after the other."""

    def __init__(self):
        self.histories: list[History] = [History()]
        self._lock = threading.Lock()

    def current(self) -> tuple[int, History]:
        with self._lock:
            if len(self.histories[-1].operations) > ROTATION:
                self.histories.append(History())
            return len(self.histories), self.histories[-1]

    def check(self) -> None:
        for key, history in enumerate(self.histories, 1):
            found = fault(history)
            assert not found, f"register {key} is not linearizable: {found}"


class Causal(Client):
    """A session that writes, and reads its own writes on secondaries."""

    # A secondary that is cut off is asked as often as the other one, and cannot answer.
    pace = 5

    def step(self, number: int) -> None:
        with self._client.start_session(causal_consistency=True) as session:
            collection = self.database.get_collection("causal", read_concern=ReadConcern("majority"))
            collection.update_one({"_id": self.name}, {"$set": {"number": number}}, upsert=True, session=session)
            secondary = collection.with_options(read_preference=pymongo.ReadPreference.SECONDARY_PREFERRED)
            document = secondary.find_one({"_id": self.name}, session=session, max_time_ms=2000)
            assert document and document["number"] == number, f"{self.name}: wrote {number}, read {document}"

    def check(self, database) -> None:
        """Judged at every step."""


class Monotonic(Client):
    """One counter; majority reads of it must never be taken back."""

    def __init__(self, replica_set, name: str):
        super().__init__(replica_set, name)
        self.seen = 0

    def step(self, number: int) -> None:
        self.database.monotonic.update_one({"_id": self.name}, {"$set": {"number": number}}, upsert=True)
        collection = self.database.get_collection("monotonic", read_concern=ReadConcern("majority"))
        secondary = collection.with_options(read_preference=pymongo.ReadPreference.NEAREST)
        document = secondary.find_one({"_id": self.name}, max_time_ms=5000)
        self.seen = max(self.seen, document["number"] if document else 0)

    def check(self, database) -> None:
        document = database.monotonic.find_one({"_id": self.name})
        number = document["number"] if document else 0
        assert number >= self.seen, f"{self.name}: {self.seen} was read at majority, {number} is there"


class Ordered(Client):
    """Two documents: one client writes the first and then the second, another one reads the second and then the first,
    in one session, on whatever members. Who has seen the second sees the first, and nobody sees less than before."""

    # A member that is cut off cannot answer.
    pace = 5

    def __init__(self, replica_set, name: str, writes: bool):
        super().__init__(replica_set, name)
        self.writes = writes
        self.seen = (0, 0)
        self._session = self._client.start_session(causal_consistency=True)

    def step(self, number: int) -> None:
        if self.writes:
            for name in ("first", "second"):
                self.database.ordered.update_one({"_id": name}, {"$set": {"number": number}}, upsert=True)
            return
        collection = self.database.get_collection("ordered", read_concern=ReadConcern("majority"))
        nearest = collection.with_options(read_preference=pymongo.ReadPreference.NEAREST)
        read = {}
        for name in ("second", "first"):
            document = nearest.find_one({"_id": name}, session=self._session, max_time_ms=2000)
            read[name] = document["number"] if document else 0
        assert read["first"] >= read["second"], f"{self.name}: read {read}: the effect without its cause"
        seen = (read["first"], read["second"])
        went_back = any(now < before for now, before in zip(seen, self.seen))
        assert not went_back, f"{self.name}: read {seen} after {self.seen}"
        self.seen = seen

    def check(self, database) -> None:
        """Judged at every step; what was read is there in the end."""
        for name, seen in zip(("first", "second"), self.seen):
            document = database.ordered.find_one({"_id": name}) or {"number": 0}
            assert document["number"] >= seen, f"{self.name}: {seen} of {name} was read, {document['number']} is there"
