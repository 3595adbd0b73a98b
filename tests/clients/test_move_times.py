"""Who has written reads what was written, on any member of any shard, while ranges move and primaries change.

Shards of three members. Each writer counts up documents of its own, and reads them in the same causal session from
secondaries and from primaries: the read names the time of the write (`afterClusterTime`), and may reach a member of the
shard that gave the range away, or of the one that has it now, however far it has followed its primary. It sees the
write, by whatever plan. So it does through another router, which knows of older owners, when it is told the time.
"""

import threading
import unittest

import test_moves
from pymongo import ReadPreference
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from server import DEADLINE_S, connect, only_terndb, wait_until

WRITERS = 3
READS_WANTED = 150
MOVES_WANTED = 8
CHANGES_WANTED = 2


@only_terndb
class ReadsBehindWrites(test_moves.MovesAmongMembers):
    test_primaries_change_during_moves = None

    def setUp(self):
        super().setUp()
        numbers = range(test_moves.BIRDS)
        self.birds.insert_many(
            [{"_id": number, "k": test_moves.key_of(number), "n": 0, "odd": number % 2} for number in numbers]
        )
        wait_until(self.index, "an index")
        second = self.run_role("router", "router1")
        self.elsewhere = connect(f"mongodb://127.0.0.1:{second.port}")
        self.addCleanup(self.elsewhere.close)
        self.moved, self.not_moved, self.changes = [], [], 0
        self.reads, self.refused, self.counting = 0, [], threading.Lock()

    def index(self):
        try:
            return self.birds.create_index([("odd", 1), ("n", 1)])
        except PyMongoError:
            return None

    def plans(self, birds, number, session):
        """One document, by its key, by all shards, by an index, and as a group of its own."""
        return self.chance.choice(
            [
                lambda: birds.find_one({"k": test_moves.key_of(number), "_id": number}, session=session),
                lambda: birds.find_one({"_id": number}, session=session),
                lambda: birds.find_one({"odd": number % 2, "_id": number}, hint="odd_1_n_1", session=session),
                lambda: next(
                    birds.aggregate(
                        [{"$match": {"_id": {"$in": [number]}}}, {"$group": {"_id": "$_id", "n": {"$sum": "$n"}}}],
                        session=session,
                    ),
                    None,
                ),
            ]
        )

    def count_and_read(self, writer: int):
        """Nobody else counts these documents, so that what is read is what was written, and not more."""
        number = self.chance.randrange(test_moves.BIRDS // WRITERS) * WRITERS + writer
        options = {
            "read_preference": self.chance.choice([ReadPreference.SECONDARY, ReadPreference.PRIMARY]),
            "read_concern": ReadConcern(self.chance.choice(["local", "majority"])),
        }
        with self.client.start_session(causal_consistency=True) as session:
            try:
                place = {"k": test_moves.key_of(number), "_id": number}
                written = self.birds.find_one_and_update(
                    place, {"$inc": {"n": 1}}, session=session, return_document=True
                )
                client, reader = self.client, session
                if self.chance.random() < 0.3:
                    client, reader = self.elsewhere, self.elsewhere.start_session(causal_consistency=True)
                    reader.advance_cluster_time(session.cluster_time)
                    reader.advance_operation_time(session.operation_time)
                read = self.plans(client.fleet.get_collection("birds", **options), number, reader)()
            except PyMongoError as error:
                # A primary is down, or a set has none for a moment.
                self.refused.append(str(error))
                self.done.wait(0.05)
                return
        if written is None or read is None or read["n"] != written["n"]:
            raise AssertionError(f"{number} was written as {written} and read as {read}, with {options}")
        with self.counting:
            self.reads += 1

    def test_who_has_written_sees_it(self):
        work = [lambda writer=writer: self.count_and_read(writer) for writer in range(WRITERS)]
        threads = [self.until_done(part) for part in [*work, self.move, self.change_primary]]

        def is_enough():
            enough = self.reads >= READS_WANTED and len(self.moved) >= MOVES_WANTED and self.changes >= CHANGES_WANTED
            return self.done.is_set() or enough

        try:
            wait_until(is_enough, f"{READS_WANTED} reads beside {MOVES_WANTED} moves", 4 * DEADLINE_S)
        finally:
            self.done.set()
            for thread in threads:
                thread.join()
        told = f"seed {self.seed}, {self.reads} reads, {len(self.moved)} moves, refused: {self.refused[-3:]}"
        self.assertEqual(self.failures, [], told)
        self.settle()
        self.check_cluster(told)


if __name__ == "__main__":
    unittest.main()
