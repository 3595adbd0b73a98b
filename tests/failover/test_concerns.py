"""Write concerns of a set in which a member does not answer.

With TERNDB_FAILOVER_KIND=mongod the same is asked of the real server.
"""

import unittest
from concurrent.futures import ThreadPoolExecutor

from members import DEADLINE_S, ReplicaSet, wait_until
from pymongo.errors import WriteConcernError
from pymongo.write_concern import WriteConcern

SATISFIED = None
TIMED_OUT = 64
UNKNOWN_MODE = 79
NOT_ENOUGH_MEMBERS = 100


class Concerns(unittest.TestCase):
    def setUp(self):
        self.set = ReplicaSet(3)
        self.addCleanup(self.set.stop)
        self.number = 0

    def write(self, w, wtimeout_ms: int, j: bool = False) -> int | None:
        """The error of a write that is made in any case."""
        self.number += 1
        concern = {"w": w, "wtimeout": wtimeout_ms} | ({"j": True} if j else {})
        primary = self.set.wait_primary()
        with primary.client(socketTimeoutMS=2 * DEADLINE_S * 1000) as client:
            command = {"insert": "birds", "documents": [{"_id": self.number}], "writeConcern": concern}
            reply = client.test.command(command, check=False)
            self.assertEqual(reply["n"], 1, reply)
            self.assertEqual(client.test.birds.count_documents({"_id": self.number}), 1)
        error = reply.get("writeConcernError")
        if error and error["code"] == TIMED_OUT:
            self.assertEqual(error["codeName"], "WriteConcernFailed")
            self.assertTrue(error["errInfo"]["wtimeout"])
        return error and error["code"]

    def test_numbers_tags_and_modes(self):
        primary = self.set.wait_primary()
        near, far = (member for member in self.set.members if member is not primary)
        config = primary.tell("replSetGetConfig")["config"]
        config["version"] += 1
        for member in config["members"]:
            member["tags"] = {"place": "there" if member["_id"] == far.number else "here"}
        config["settings"]["getLastErrorModes"] = {"both places": {"place": 2}, "three places": {"place": 3}}
        # However busy the machine is, nobody takes the primary for one that is gone.
        config["settings"]["electionTimeoutMillis"] = 4 * DEADLINE_S * 1000
        primary.tell({"replSetReconfig": config})
        patient, hasty = DEADLINE_S * 1000, 100
        for w in (1, 2, 3, "majority", "both places"):
            for j in (False, True):
                with self.subTest(w=w, j=j):
                    self.assertEqual(self.write(w, patient, j), SATISFIED)
        for w, error in ((4, NOT_ENOUGH_MEMBERS), ("three places", NOT_ENOUGH_MEMBERS), ("no mode", UNKNOWN_MODE)):
            with self.subTest(w=w):
                self.assertEqual(self.write(w, patient), error)
        far.pause()
        for w in (1, 2, "majority"):
            with self.subTest(w=w, far="away"):
                self.assertEqual(self.write(w, patient), SATISFIED)
        for w in (3, "both places"):
            with self.subTest(w=w, far="away"):
                self.assertEqual(self.write(w, hasty), TIMED_OUT)
        far.resume()
        for w in (3, "both places"):
            with self.subTest(w=w, far="back"):
                self.assertEqual(self.write(w, patient), SATISFIED)
        # The driver's own errors.
        with self.set.client() as client:
            wait_until(lambda: client.primary, "the driver finds the primary")
            with self.assertRaises(WriteConcernError) as refused:
                client.test.get_collection(
                    "birds", write_concern=WriteConcern(w="no such mode")
                ).insert_one({})
            self.assertEqual(refused.exception.code, UNKNOWN_MODE)

    def test_a_driver_retries_where_the_primary_steps_down_before_all_have_confirmed(self):
        primary = self.set.wait_primary()
        slow = next(member for member in self.set.members if member is not primary)
        with self.set.client(retryWrites=True) as client:
            wait_until(lambda: len(client.nodes) == 3, "the driver finds all members")
            birds = client.test.get_collection("birds", write_concern=WriteConcern(w=3))
            birds.insert_one({"_id": "first"})
            slow.pause()
            with ThreadPoolExecutor(1) as pool:
                written = pool.submit(birds.update_one, {"_id": "first"}, {"$inc": {"flights": 1}})
                # It waits for the third member from now on.
                wait_until(lambda: client.test.birds.find_one({"flights": 1}), "the write is made")
                wait_until(
                    lambda: primary.ask({"replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 0, "force": True})
                    or not primary.is_primary(),
                    "the primary steps down",
                )
                slow.resume()
                self.assertEqual(written.result(2 * DEADLINE_S).modified_count, 1)
            self.assertEqual(birds.find_one(), {"_id": "first", "flights": 1})


if __name__ == "__main__":
    unittest.main()
