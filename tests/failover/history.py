"""Histories of one register, and whether they are linearizable.

A register is written with values that are never written twice, and read. A history is linearizable if
every operation can be given one moment between its call and its return so that each read sees the
write before it. Because values are unique, this can be told without searching (Gibbons and Korach):

    cluster     a write and the reads of its value
    zone        from the earliest return in a cluster to the latest call
    forward     the return comes first: from then to the call the register surely has this value
    backward    the call comes first: all of the cluster overlaps, and may happen at once

A history is linearizable if no read returns before its write is called, no two forward zones overlap,
and no backward zone lies inside a forward one.

A write with an unknown outcome may happen at any time after its call, or never. If nobody read its
value it is left out; otherwise it returns at the end of time.
"""

import threading
import time
from dataclasses import dataclass, field

FOREVER = float("inf")


@dataclass
class Operation:
    kind: str
    """"write" or "read"."""
    value: object
    called: float
    returned: float = FOREVER
    """FOREVER: nobody knows what came of it."""


@dataclass
class History:
    """Operations on one register; threads may record at once."""

    initial: object = None
    operations: list[Operation] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def called(self) -> float:
        return time.monotonic()

    def record(self, kind: str, value: object, called: float, returned: float | None = None) -> None:
        """Without `returned` the operation returns now."""
        operation = Operation(kind, value, called, time.monotonic() if returned is None else returned)
        with self._lock:
            self.operations.append(operation)


def fault(history: History) -> str | None:
    """Why a history is not linearizable, or nothing."""
    # The initial value was written before everything.
    writes = {history.initial: Operation("write", history.initial, -2.0, -1.0)}
    reads: dict[object, list[Operation]] = {}
    for operation in history.operations:
        if operation.kind == "write":
            if operation.value in writes:
                raise ValueError(f"{operation.value} is written twice: such a history cannot be judged")
            writes[operation.value] = operation
        elif operation.returned != FOREVER:
            reads.setdefault(operation.value, []).append(operation)
    zones = []
    for value, its_reads in reads.items():
        if value not in writes:
            return f"{value} was read and never written"
        for read in its_reads:
            if read.returned < writes[value].called:
                return f"{value} was read before it was written"
    for value, write in writes.items():
        its_reads = reads.get(value, [])
        if write.returned == FOREVER and not its_reads:
            continue
        cluster = [write, *its_reads]
        first_return = min(operation.returned for operation in cluster)
        last_call = max(operation.called for operation in cluster)
        zones.append((first_return, last_call, value))
    forward = sorted(zone for zone in zones if zone[0] < zone[1])
    backward = [zone for zone in zones if zone[0] >= zone[1]]
    for (_, end, value), (begin, _, other) in zip(forward, forward[1:]):
        if begin < end:
            return f"{value} and {other} were both seen before and after each other"
    for last_return, first_call, value in backward:
        for begin, end, other in forward:
            if begin < first_call and last_return < end:
                return f"{value} happened while the register held {other}"
    return None
