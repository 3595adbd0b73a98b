"""The judge of histories: what it accepts, what it must not, and that it agrees with a plain search."""

import random
import unittest

from history import FOREVER, History, Operation, fault


def history(*operations) -> History:
    made = History(initial=0)
    made.operations = [Operation(*operation) for operation in operations]
    return made


def by_search(made: History) -> bool:
    """Tries every order. Only for very short histories."""

    def search(left: list[Operation], value) -> bool:
        known = [operation for operation in left if operation.returned != FOREVER]
        if not known:
            return True
        first_return = min(operation.returned for operation in left)
        for at, operation in enumerate(left):
            # It cannot be next if another one had returned before it was called.
            if operation.called > first_return:
                continue
            rest = left[:at] + left[at + 1 :]
            if operation.kind == "write" and search(rest, operation.value):
                return True
            if operation.kind == "read" and operation.value == value and search(rest, value):
                return True
        # An unknown write may also never happen.
        unknown = next((at for at, operation in enumerate(left) if operation.returned == FOREVER), None)
        return unknown is not None and search(left[:unknown] + left[unknown + 1 :], value)

    return search([op for op in made.operations if op.kind == "write" or op.returned != FOREVER], made.initial)


class TheJudge(unittest.TestCase):
    def test_accepts(self):
        for name, made in {
            "nothing": history(),
            "a read of the beginning": history(("read", 0, 1, 2)),
            "one after the other": history(("write", 1, 1, 2), ("read", 1, 3, 4), ("write", 2, 5, 6), ("read", 2, 7, 8)),
            "a read during a write, old": history(("write", 1, 1, 5), ("read", 0, 2, 3)),
            "a read during a write, new": history(("write", 1, 1, 5), ("read", 1, 2, 3)),
            "an unknown write that was seen late": history(
                ("write", 1, 1, FOREVER), ("write", 2, 2, 3), ("read", 2, 4, 5), ("read", 1, 6, 7)
            ),
            "an unknown write that was never seen": history(("write", 1, 1, FOREVER), ("read", 0, 2, 3)),
        }.items():
            with self.subTest(name):
                self.assertIsNone(fault(made))

    def test_refuses(self):
        for name, made in {
            "a value out of nowhere": history(("read", 7, 1, 2)),
            "a read before the write": history(("read", 1, 1, 2), ("write", 1, 3, 4)),
            "an old value after a new one was acknowledged": history(("write", 1, 1, 2), ("read", 0, 3, 4)),
            "a stale read after a fresh one": history(("write", 1, 1, 9), ("read", 1, 2, 3), ("read", 0, 4, 5)),
            "a lost acknowledged write": history(("write", 1, 1, 2), ("write", 2, 3, 4), ("read", 1, 5, 6)),
            "an unknown write that comes and goes": history(
                ("write", 1, 1, FOREVER), ("read", 1, 2, 3), ("read", 0, 4, 5)
            ),
        }.items():
            with self.subTest(name):
                self.assertIsNotNone(fault(made))

    def test_agrees_with_a_search_of_all_orders(self):
        verdicts = {True: 0, False: 0}
        for seed in range(4000):
            chance = random.Random(seed)
            values = list(range(1, chance.randint(1, 4)))
            moments = list(range(2 * 6))
            chance.shuffle(moments)
            operations = []
            for value in values:
                called, returned = sorted((moments.pop(), moments.pop()))
                unknown = chance.random() < 0.2
                operations.append(("write", value, called, FOREVER if unknown else returned))
            for _ in range(chance.randint(1, 3)):
                called, returned = sorted((moments.pop(), moments.pop()))
                operations.append(("read", chance.choice([0, *values]), called, returned))
            made = history(*operations)
            expected = by_search(made)
            verdicts[expected] += 1
            self.assertEqual(fault(made) is None, expected, f"seed {seed}: {operations}: {fault(made)}")
        # Both verdicts must have been asked for often.
        self.assertGreater(min(verdicts.values()), 500)


if __name__ == "__main__":
    unittest.main()
