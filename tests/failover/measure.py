"""How long a driver waits for its next acknowledged write when the primary is killed.

    python tests/failover/measure.py [rounds] [kind[:electionTimeoutMillis] ...]

Three members on this machine, each kind of server with its own defaults where nothing is said: the real
`mongod` calls an election after ten seconds of silence, TernDB after one. A driver with retryable writes inserts with `w: "majority"` one
document after the other. The time is from kill -9 to the acknowledgement of a write that was begun
after it.
"""

import statistics
import sys
import threading
import time

from members import ReplicaSet
from pymongo.errors import PyMongoError
from pymongo.write_concern import WriteConcern

DEFAULT_ELECTION_MS = 10_000


class Writer:
    """Writes one document after the other, and remembers when the last was begun and acknowledged."""

    def __init__(self, replica_set: ReplicaSet):
        self.client = replica_set.client(serverSelectionTimeoutMS=60_000)
        majority = WriteConcern("majority")
        self.collection = self.client.get_database("measure", write_concern=majority).writes
        self.acknowledged = threading.Condition()
        self.begun = 0.0
        self.stopped = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.stopped:
            begun = time.monotonic()
            try:
                self.collection.insert_one({})
            except PyMongoError:
                continue
            with self.acknowledged:
                self.begun = begun
                self.acknowledged.notify_all()

    def wait_for_write_begun_after(self, moment: float) -> float:
        with self.acknowledged:
            if not self.acknowledged.wait_for(lambda: self.begun > moment, timeout=120):
                raise AssertionError("no write was acknowledged in two minutes")
        return time.monotonic()

    def stop(self) -> None:
        self.stopped = True
        self.thread.join(60)
        self.client.close()


def failover_s(replica_set: ReplicaSet) -> float:
    writer = Writer(replica_set)
    writer.wait_for_write_begun_after(time.monotonic())
    primary = replica_set.wait_primary()
    killed = time.monotonic()
    primary.kill()
    waited = writer.wait_for_write_begun_after(killed) - killed
    writer.stop()
    replica_set.heal()
    return waited


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    kinds = sys.argv[2:] or ["mongod", "terndb"]
    for name in kinds:
        kind, _, election_ms = name.partition(":")
        default = DEFAULT_ELECTION_MS if kind == "mongod" else None
        replica_set = ReplicaSet(3, kind=kind, election_ms=int(election_ms) if election_ms else default)
        try:
            times = [failover_s(replica_set) for _ in range(rounds)]
        finally:
            replica_set.stop()
        shown = ", ".join(f"{seconds:.2f}" for seconds in times)
        print(f"{name:12} median {statistics.median(times):.2f} s, {min(times):.2f} to {max(times):.2f} ({shown})")


if __name__ == "__main__":
    main()
