"""The judge itself: what it must accept, and what it must not."""

import unittest

from workload import Lost, Step, Writer, check_order


class Recorded(Writer):
    """A writer whose steps and findings are given."""

    def __init__(self, steps, found):
        super().__init__("recorded")
        self.steps = steps
        self.found = found

    def read(self, database):
        return dict(self.found)


def put(key, value, acknowledged=1.0, majority=True, began=0.0):
    return Step([(key, value)], majority, began, acknowledged)


A, B, C = put("a", 1), put("b", 1), put("c", 1)
UNKNOWN = put("c", 1, acknowledged=None)
BUFFERED = put("c", 1, majority=False)


class Judge(unittest.TestCase):
    def check(self, steps, found, expect, power_cut=False):
        """`expect`: how many steps are there, or None if that must not be."""
        writer = Recorded(steps, found)
        try:
            writer.check(None, power_cut)
            judged = len(writer.present)
        except Lost:
            judged = None
        self.assertEqual(judged, expect)

    def test_what_came_and_went_is_neither_there_nor_lost(self):
        came = put("a", 1, acknowledged=1.0, majority=False)
        went = put("a", None, acknowledged=2.0, majority=False)
        fleeting = Recorded([came, went], {})
        fleeting.check(None, True)
        self.assertEqual((fleeting.present, fleeting.absent), ([], []))
        later = Recorded([put("b", 1, acknowledged=4.0, began=3.0)], {"b": 1})
        later.check(None, True)
        check_order([fleeting, later])
        # But what is not there can be lost.
        lost = Recorded([came], {})
        lost.check(None, True)
        with self.assertRaises(Lost):
            check_order([lost, later])

    def test_states(self):
        self.check([], {}, 0)
        self.check([], {"a": 1}, None)
        self.check([A, B, C], {"a": 1, "b": 1, "c": 1}, 3)
        # Acknowledged and lost.
        self.check([A, B, C], {"a": 1, "b": 1}, None)
        # A gap.
        self.check([A, B, C], {"a": 1, "c": 1}, None)
        # Unknown: with or without it.
        self.check([A, UNKNOWN], {"a": 1}, 1)
        self.check([A, UNKNOWN], {"a": 1, "c": 1}, 2)
        # What nobody wrote, and a value that nobody wrote.
        self.check([A], {"a": 1, "z": 1}, None)
        self.check([A], {"a": 2}, None)
        # Half a step.
        both = Step([("a", 1), ("b", 1)], True, 0.0, None)
        self.check([both], {}, 0)
        self.check([both], {"a": 1}, None)
        # A removal that came back.
        self.check([A, put("a", None)], {}, 2)
        self.check([A, put("a", None)], {"a": 1}, None)
        # Only a power cut may take what was not to wait for the disk.
        self.check([A, BUFFERED], {"a": 1}, None)
        self.check([A, BUFFERED], {"a": 1}, 1, power_cut=True)
        # A later majority write makes the earlier ones durable.
        self.check([A, BUFFERED, put("d", 1)], {"a": 1}, None, power_cut=True)

    def test_order_between_writers(self):
        lost = Recorded([put("a", 1, acknowledged=5.0, majority=False)], {})
        for began, allowed in ((4.0, True), (6.0, False)):
            lost.steps = [put("a", 1, acknowledged=5.0, majority=False)]
            there = Recorded([put("b", 1, acknowledged=7.0, began=began)], {"b": 1})
            lost.check(None, True)
            there.check(None, True)
            if allowed:
                check_order([lost, there])
            else:
                self.assertRaises(Lost, check_order, [lost, there])


if __name__ == "__main__":
    unittest.main()
