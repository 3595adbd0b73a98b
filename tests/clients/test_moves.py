"""Ranges that move among three shards while they are written and read, and while shards and the config server are
killed.

Two moves run at the same time where their ranges do not meet. A writer, a multi-updater, one who deletes many and a reader work at full speed. Every write carries a value of its
own, so that afterwards it can be told of each one whether it is there, and how often: nothing that was acknowledged is
missing, nothing is there twice, and what nobody asked for is not there. Scans meet every document once, and so do
updates and deletes of many documents, which also count them; reads at one time see all of that time. Indexes that
come and go meanwhile are on every shard or on none. The same with shards of several members, whose primaries change.
"""

import random
import shutil
import signal
import tempfile
import threading
import time
import unittest
from pathlib import Path

from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from server import DEADLINE_S, connect, only_terndb, wait_until
from test_cluster_processes import Role

KEYS = 1000
BIRDS = 400
FLOCK = 20
SHARDS = 3
# As long as the load runs, if moves come to their end by then.
LOAD_S = 25
MOVES_WANTED = 6
# Reads at one time, beside so many moves.
SNAPSHOTS, SNAPSHOT_MOVES = 60, 20
# Indexes that come and go beside so many moves.
INDEX_CHANGES, INDEX_MOVES = 6, 10
# New primaries of shards with several members.
CHANGES_WANTED = 5


class Ledger:
    """What was asked for, and what was acknowledged."""

    def __init__(self):
        self.lock = threading.Lock()
        self.acknowledged, self.unknown = {}, {}

    def note(self, kind: str, value, certain: bool) -> None:
        with self.lock:
            (self.acknowledged if certain else self.unknown).setdefault(kind, []).append(value)

    def of(self, kind: str) -> tuple[list, list]:
        return self.acknowledged.get(kind, []), self.unknown.get(kind, [])


@only_terndb
class Moves(unittest.TestCase):
    def setUp(self):
        self.directory = Path(tempfile.mkdtemp(prefix="terndb-moves-"))
        self.addCleanup(shutil.rmtree, self.directory, True)
        self.seed = random.randrange(1 << 32)
        self.chance = random.Random(self.seed)
        self.config = self.run_role("config", "config")
        self.config.initiate()
        self.shards = self.run_shards()
        self.router = self.run_role("router", "router0")
        self.client = connect(f"mongodb://127.0.0.1:{self.router.port}")
        self.addCleanup(self.client.close)
        for shard in self.shards:
            shard.initiate()
            self.insist("addShard", shard.connection)
        self.insist("enableSharding", "fleet", primaryShard="shard0")
        self.insist("shardCollection", "fleet.birds", key={"k": 1})
        self.birds = self.client.fleet.get_collection("birds", write_concern=WriteConcern("majority"))
        self.ledger = Ledger()
        self.done = threading.Event()
        self.addCleanup(self.done.set)
        self.failures = []

    def run_shards(self):
        return [self.run_role("shard", f"shard{at}") for at in range(SHARDS)]

    def run_role(self, role: str, name: str, directory: Path | None = None) -> Role:
        config = None if role == "config" else self.config.connection
        running = Role(role, name, directory or self.directory, config)
        self.addCleanup(running.errors.close)
        self.addCleanup(running.stop)
        return running

    def insist(self, name: str, value, database: str = "admin", **options):
        """Runs a command until whoever has to carry it out is there."""
        last = []

        def attempt():
            try:
                return self.client[database].command(name, value, **options)
            except PyMongoError as error:
                last[:] = [error]
                return None

        try:
            return wait_until(attempt, f"{name} {value}")
        except AssertionError as waited:
            raise AssertionError(f"{waited}: {last}") from None

    # What goes on at the same time.

    def until_done(self, work):
        """A thread that repeats something; what surprises it is told at the end."""

        def run():
            try:
                while not self.done.is_set():
                    work()
            except Exception as surprise:  # noqa: BLE001
                self.failures.append(repr(surprise))
                self.done.set()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def write(self):
        """An insert, and an update of a document that was there from the beginning."""
        value = self.ledger_value()
        bird = {"_id": value, "k": self.chance.randrange(KEYS)}
        self.attempt("insert", (value, bird["k"]), lambda: self.birds.insert_one(bird))
        number = self.chance.randrange(BIRDS)
        # Without the shard key all shards are asked.
        place = {"_id": number} if self.chance.random() < 0.5 else {"_id": number, "k": key_of(number)}
        value = self.ledger_value()
        change = {"$push": {"seen": value}}
        self.attempt("update", (number, value), lambda: self.updated(self.birds.update_one(place, change)))

    def updated(self, result):
        if result.matched_count != 1:
            raise AssertionError(f"one document was found {result.matched_count} times by a write")

    def update_many(self):
        low = self.chance.randrange(KEYS)
        high = min(KEYS, low + self.chance.randrange(1, KEYS // 2))
        value = self.ledger_value()
        filter = {"k": {"$gte": low, "$lt": high}, "_id": {"$type": "number"}}
        change = {"$push": {"many": value}}
        there = sum(low <= key_of(number) < high for number in range(BIRDS))

        def write():
            result = self.birds.update_many(filter, change)
            if (result.matched_count, result.modified_count) != (there, there):
                raise AssertionError(f"of {there} documents an update of many found {result.raw_result}")

        self.attempt("many", (low, high, value), write)

    def delete_many(self):
        """Inserts some documents all over the keys, and deletes them by another field."""
        flock = self.ledger_value()
        birds = [{"_id": f"{flock}-{at}", "k": self.chance.randrange(KEYS), "flock": flock} for at in range(FLOCK)]
        try:
            self.birds.insert_many(birds)
        except PyMongoError:
            self.ledger.note("flock", flock, certain=False)
            return

        def write():
            result = self.birds.delete_many({"flock": flock})
            if result.deleted_count != FLOCK:
                raise AssertionError(f"of {FLOCK} documents {result.deleted_count} were deleted")

        self.attempt("flock", flock, write)

    def ledger_value(self) -> str:
        return f"v{self.chance.getrandbits(64):016x}"

    def attempt(self, kind: str, what, write) -> None:
        try:
            write()
            self.ledger.note(kind, what, certain=True)
        except PyMongoError:
            # It may have happened, or not.
            self.ledger.note(kind, what, certain=False)

    def read(self):
        """A scan over everything: each of the first documents once, in order."""
        try:
            found = list(self.birds.find({"_id": {"$type": "number"}}, {"_id": 1}, sort=[("_id", 1)]))
        except PyMongoError:
            return
        numbers = [bird["_id"] for bird in found]
        if numbers != list(range(BIRDS)):
            missing = sorted(set(range(BIRDS)) - set(numbers))
            doubled = sorted({number for number in numbers if numbers.count(number) > 1})
            raise AssertionError(f"a scan misses {missing} and has twice {doubled}")

    def move(self):
        low = self.chance.randrange(KEYS)
        chunk = self.chunk_of(low)
        if not chunk:
            return
        to = self.chance.choice(self.shards).name
        bounds = {"min": {"k": low}}
        above = chunk["max"]["k"]
        high = low + self.chance.randrange(1, KEYS // 2)
        # Ever smaller chunks would be moved otherwise.
        if self.chance.random() < 0.5:
            bounds = {"min": chunk["min"], "max": chunk["max"]}
        elif not isinstance(above, int) or high < above:
            bounds["max"] = {"k": high}
        before = time.monotonic()
        try:
            self.client.admin.command("moveRange", "fleet.birds", toShard=to, **bounds)
            if chunk["shard"] != to:
                self.moved.append((before, time.monotonic()))
        except PyMongoError as error:
            self.not_moved.append(str(error))
            # A shard may be down: nobody gains from asking all the time.
            self.done.wait(0.05)

    def at_once(self) -> int:
        """Moves that were committed beside another one."""
        moved = sorted(self.moved)
        return sum(later[0] < earlier[1] for earlier, later in zip(moved, moved[1:]))

    def chunk_of(self, key: int):
        try:
            uuid = self.client.config.collections.find_one({"_id": "fleet.birds"})["uuid"]
            filter = {"uuid": uuid, "min.k": {"$lte": key}}
            below = list(self.client.config.chunks.find(filter).sort("min", -1).limit(1))
            return below[0] if below else self.client.config.chunks.find_one({"uuid": uuid}, sort=[("min", 1)])
        except PyMongoError:
            return None

    def kill(self):
        if self.done.wait(self.chance.uniform(0.5, 3)):
            return
        # On a busy machine moves come to their end when nobody disturbs them.
        if time.monotonic() > self.until:
            return
        role = self.chance.choice([*self.shards, self.config])
        role.stop(signal.SIGKILL)
        role.start()
        self.kills += 1

    def read_snapshot(self):
        """Two reads of one session see everything as it was at one time, whoever owns it now."""
        with self.client.start_session(snapshot=True) as session:
            try:
                first = list(self.birds.find({}, {"_id": 1, "n": 1}, session=session).sort("_id", 1))
                second = list(self.birds.aggregate([{"$sort": {"_id": 1}}, {"$project": {"n": 1}}], session=session))
            except PyMongoError as error:
                # A shard that got its first range just now has no earlier times.
                self.refused.append(str(error))
                return
        if [bird["_id"] for bird in first] != list(range(BIRDS)):
            missing = set(range(BIRDS)) - {bird["_id"] for bird in first}
            raise AssertionError(f"{len(first)} documents at one time, without {sorted(missing)}")
        if first != second:
            raise AssertionError("two reads at one time differ")
        self.read_at_one_time += 1

    def count_up(self):
        """Every document is changed all the time."""
        number = self.chance.randrange(BIRDS)
        try:
            self.birds.update_one({"_id": number, "k": key_of(number)}, {"$inc": {"n": 1}})
        except PyMongoError:
            # What was written does not matter here.
            pass

    def change_indexes(self):
        """An index comes and goes. In between a move comes to its end: none is decided while indexes change."""
        for change in [lambda: self.birds.create_index([("n", 1)], name="n"), lambda: self.birds.drop_index("n")]:
            before = len(self.moved)
            change()
            while len(self.moved) == before and not self.done.wait(0.05):
                pass
        self.index_changes += 1

    # The whole.

    def test_snapshots_are_complete(self):
        """Readers at one time beside endless moves: a range is never nobody's, and never two shards'."""
        self.birds.insert_many([{"_id": number, "k": key_of(number), "n": 0} for number in range(BIRDS)])
        self.moved, self.not_moved, self.refused, self.read_at_one_time = [], [], [], 0
        threads = [self.until_done(part) for part in [self.move, self.read_snapshot, self.read_snapshot, self.count_up]]
        wait_until(
            lambda: self.done.is_set() or (len(self.moved) >= SNAPSHOT_MOVES and self.read_at_one_time >= SNAPSHOTS),
            f"{SNAPSHOTS} snapshots beside {SNAPSHOT_MOVES} moves",
            LOAD_S + DEADLINE_S,
        )
        self.done.set()
        for thread in threads:
            thread.join()
        told = f"seed {self.seed}, {len(self.moved)} moves, {self.read_at_one_time} snapshots, {self.refused[-3:]}"
        self.assertEqual(self.failures, [], told)

    def test_indexes_change_beside_moves(self):
        """Whoever got a range meanwhile has the same indexes as whoever gave it away."""
        self.birds.insert_many([{"_id": number, "k": key_of(number), "n": 0} for number in range(BIRDS)])
        self.moved, self.not_moved, self.index_changes = [], [], 0
        threads = [self.until_done(part) for part in [self.move, self.count_up, self.change_indexes]]
        wait_until(
            lambda: self.done.is_set() or (len(self.moved) >= INDEX_MOVES and self.index_changes >= INDEX_CHANGES),
            f"{INDEX_CHANGES} changes of indexes beside {INDEX_MOVES} moves",
            LOAD_S + 2 * DEADLINE_S,
        )
        self.done.set()
        for thread in threads:
            thread.join()
        told = f"seed {self.seed}, {len(self.moved)} moves, {self.index_changes} indexes, {self.not_moved[-3:]}"
        self.assertEqual(self.failures, [], told)
        self.birds.create_index([("n", -1)], name="last")
        self.settle()
        self.check_cluster(told)

    def test_nothing_is_lost_or_doubled(self):
        self.birds.insert_many([{"_id": number, "k": key_of(number)} for number in range(BIRDS)])
        self.moved, self.not_moved, self.kills = [], [], 0
        work = [self.write, self.write, self.update_many, self.delete_many, self.read, self.move, self.move, self.kill]
        self.until = time.monotonic() + LOAD_S
        threads = [self.until_done(part) for part in work]
        wait_until(
            lambda: self.done.is_set()
            or (time.monotonic() > self.until and len(self.moved) >= MOVES_WANTED and self.at_once() > 0),
            f"{MOVES_WANTED} moves under load, some of them at once",
            LOAD_S + 2 * DEADLINE_S,
        )
        self.done.set()
        for thread in threads:
            thread.join()
        told = f"seed {self.seed}, {len(self.moved)} moves, {self.at_once()} at once, {self.kills} kills, not moved: {self.not_moved[-3:]}"
        self.assertEqual(self.failures, [], told)
        self.settle()
        self.check_contents(told)
        self.check_cluster(told)

    def settle(self):
        """Completes when no move is unfinished."""

        def is_settled():
            try:
                return self.client.config.terndb_operations.count_documents({"kind": {"$ne": "outcome"}}) == 0
            except PyMongoError:
                return False

        wait_until(is_settled, "moves come to their end")

    def check_contents(self, told: str):
        found = wait_until(lambda: self.everything(), "everything can be read")
        gone, maybe = self.ledger.of("flock")
        left = [bird for bird in found if bird.get("flock") in gone]
        self.assertEqual(left, [], f"what was deleted is there; {told}")
        birds = {}
        for bird in found:
            if "flock" in bird:
                self.assertIn(bird["flock"], maybe, told)
                continue
            self.assertNotIn(bird["_id"], birds, f"{bird['_id']} is there twice; {told}")
            birds[bird["_id"]] = bird
        inserted, maybe = self.ledger.of("insert")
        missing = [value for value, _ in inserted if value not in birds]
        self.assertEqual(missing, [], f"inserts are lost; {told}")
        known = set(range(BIRDS)) | {value for value, _ in inserted} | {value for value, _ in maybe}
        self.assertEqual([bird for bird in birds if bird not in known], [], told)
        for value, key in inserted:
            self.assertEqual(birds[value]["k"], key, told)
        updated, maybe = self.ledger.of("update")
        many, maybe_many = self.ledger.of("many")
        for number in range(BIRDS):
            seen = birds[number].get("seen", [])
            self.assertEqual(len(seen), len(set(seen)), f"an update of {number} happened twice; {told}")
            lost = {value for at, value in updated if at == number} - set(seen)
            self.assertEqual(lost, set(), f"updates of {number} are lost; {told}")
            strange = set(seen) - {value for at, value in [*updated, *maybe] if at == number}
            self.assertEqual(strange, set(), told)
            seen = birds[number].get("many", [])
            self.assertEqual(len(seen), len(set(seen)), f"an update of many met {number} twice; {told}")
            lost = {value for low, high, value in many if low <= key_of(number) < high} - set(seen)
            self.assertEqual(lost, set(), f"updates of many missed {number}; {told}")
            possible = {value for low, high, value in [*many, *maybe_many] if low <= key_of(number) < high}
            self.assertEqual(set(seen) - possible, set(), told)

    def everything(self):
        try:
            return list(self.birds.find())
        except PyMongoError:
            return None

    def servers(self):
        """The primary of each shard."""
        for shard in self.shards:
            with connect(f"mongodb://127.0.0.1:{shard.port}/?directConnection=true") as server:
                yield server

    def check_cluster(self, told: str):
        reply = self.insist("checkMetadataConsistency", 1)
        self.assertEqual(reply["cursor"]["firstBatch"], [], told)
        self.assertTrue(self.insist("validate", "birds", database="fleet")["valid"], told)
        # Nothing stays where it does not belong.
        for server in self.servers():
            server.admin.command("setParameter", 1, orphanCleanupDelaySecs=0)
        self.insist("cleanupOrphaned", "fleet.birds")
        stored = 0
        for server in self.servers():
            birds = server.fleet.get_collection("birds", read_concern=ReadConcern("available"))
            stored += len(list(birds.find({}, {"_id": 1})))
        self.assertEqual(stored, len(list(self.birds.find({}, {"_id": 1}))), f"orphans are left; {told}")


class Set:
    """A shard of three members, of which one leads."""

    def __init__(self, name: str, members: list[Role]):
        self.name, self.members = name, members

    @property
    def connection(self) -> str:
        return f"{self.name}/" + ",".join(f"127.0.0.1:{member.port}" for member in self.members)

    def initiate(self) -> None:
        members = [{"_id": at, "host": f"127.0.0.1:{member.port}"} for at, member in enumerate(self.members)]
        with connect(f"mongodb://127.0.0.1:{self.members[0].port}") as server:
            server.admin.command("replSetInitiate", {"_id": self.name, "members": members})
        self.primary()

    def primary(self) -> Role:
        def leads(member: Role) -> bool:
            try:
                with connect(f"mongodb://127.0.0.1:{member.port}", serverSelectionTimeoutMS=1000) as server:
                    return server.admin.command("hello")["isWritablePrimary"]
            except PyMongoError:
                return False

        return wait_until(lambda: next(filter(leads, self.members), None), f"{self.name} has a primary")

    @property
    def port(self) -> int:
        return self.primary().port


@only_terndb
class MovesAmongMembers(Moves):
    """The same with shards of three members, whose primaries are killed or step down."""

    test_snapshots_are_complete = None
    test_nothing_is_lost_or_doubled = None
    test_indexes_change_beside_moves = None

    def run_shards(self):
        directories = [self.directory / f"member{at}" for at in range(3)]
        for directory in directories:
            directory.mkdir()
        return [
            Set(name, [self.run_role("shard", name, directory) for directory in directories])
            for name in ["shard0", "shard1"]
        ]

    def change_primary(self):
        if self.done.wait(self.chance.uniform(1, 4)) or self.changes >= CHANGES_WANTED:
            return
        primary = self.chance.choice(self.shards).primary()
        if self.chance.random() < 0.5:
            primary.stop(signal.SIGKILL)
            primary.start()
        else:
            try:
                with connect(f"mongodb://127.0.0.1:{primary.port}") as server:
                    server.admin.command("replSetStepDown", 10)
            except PyMongoError:
                # It leads no more, or nobody could take over.
                return
        self.changes += 1

    def test_primaries_change_during_moves(self):
        self.birds.insert_many([{"_id": number, "k": key_of(number)} for number in range(BIRDS)])
        self.moved, self.not_moved, self.changes = [], [], 0
        work = [self.write, self.update_many, self.read, self.move, self.change_primary]
        threads = [self.until_done(part) for part in work]
        wait_until(
            lambda: self.done.is_set() or (len(self.moved) >= MOVES_WANTED and self.changes >= CHANGES_WANTED),
            f"{MOVES_WANTED} moves while {CHANGES_WANTED} primaries change",
            LOAD_S + 2 * DEADLINE_S,
        )
        self.done.set()
        for thread in threads:
            thread.join()
        told = f"seed {self.seed}, {len(self.moved)} moves, {self.changes} changes, not moved: {self.not_moved[-3:]}"
        self.assertEqual(self.failures, [], told)
        self.settle()
        self.check_contents(told)
        self.check_cluster(told)


def key_of(number: int) -> int:
    """The first documents are spread over all keys."""
    return number * 7 % KEYS


if __name__ == "__main__":
    unittest.main()
