"""A member is removed, and its number is given to another server, as `rs.remove` and `rs.add` do: from then on that
server is the member, and the old one, which still runs, answers for nobody, also when all others were restarted."""

import shutil
import unittest

from members import Member, ReplicaSet, free_ports, wait_until
from pymongo.errors import PyMongoError
from pymongo.write_concern import WriteConcern

DOCUMENTS = 50


class Replaced(unittest.TestCase):
    def setUp(self):
        self.set = ReplicaSet()
        self.addCleanup(self.set.stop)

    def configure(self, change) -> None:
        """Stores a changed configuration, on whoever is the primary."""

        def attempt():
            try:
                primary = self.set.wait_primary()
                config = primary.tell("replSetGetConfig")["config"]
                change(config)
                config["version"] += 1
                return primary.tell({"replSetReconfig": config})
            except PyMongoError:
                return None

        wait_until(attempt, "the configuration is changed")

    def is_secondary(self, member: Member) -> bool:
        answer = member.ask("hello")
        return bool(answer and answer.get("secondary"))

    def test_the_old_server_does_not_answer_for_the_new_one(self):
        primary = self.set.wait_primary()
        old = next(member for member in self.set.members if member is not primary)
        new = Member(len(self.set.members), free_ports(1)[0], self.set.root, old.kind)
        with self.set.client() as client:
            birds = client.test.get_collection("birds", write_concern=WriteConcern(3, wtimeout=60_000))
            birds.insert_many([{"_id": number} for number in range(DOCUMENTS)])

            def remove(config):
                config["members"] = [member for member in config["members"] if member["_id"] != old.number]

            self.configure(remove)
            wait_until(lambda: not self.is_secondary(old), "the removed member notices")
            new.start()
            self.set.members.append(new)
            wait_until(new.is_up, "the new member answers")
            self.configure(lambda config: config["members"].append({"_id": old.number, "host": new.host}))
            # The old server still runs.
            wait_until(lambda: self.is_secondary(new), "the new server takes part")
            birds.insert_one({"_id": "last"})
        with new.client(socketTimeoutMS=60_000) as there:
            self.assertEqual(there.test.birds.count_documents({}), DOCUMENTS + 1)
        self.assertFalse(self.is_secondary(old))
        # Whoever remembers is gone, except for the old server.
        members = [member for member in self.set.members if member is not old]
        for member in members:
            member.kill()
        for member in members:
            member.start()
        wait_until(lambda: all(member.is_primary() or self.is_secondary(member) for member in members), "all are back")
        with self.set.client() as client:
            birds = client.test.get_collection("birds", write_concern=WriteConcern(3, wtimeout=60_000))
            birds.insert_one({"_id": "after"})
        with new.client(socketTimeoutMS=60_000) as there:
            self.assertEqual(there.test.birds.count_documents({}), DOCUMENTS + 2)
        self.assertFalse(self.is_secondary(old))

    def test_a_member_that_has_lost_its_data_is_removed_and_added_again(self):
        primary = self.set.wait_primary()
        lost = next(member for member in self.set.members if member is not primary)
        entry = {"_id": lost.number, "host": lost.host}
        with self.set.client() as client:
            birds = client.test.get_collection("birds", write_concern=WriteConcern(3, wtimeout=60_000))
            birds.insert_many([{"_id": number} for number in range(DOCUMENTS)])
            lost.kill()
            shutil.rmtree(lost.data)
            lost.data.mkdir()

            def remove(config):
                config["members"] = [member for member in config["members"] if member["_id"] != lost.number]

            self.configure(remove)
            # It is not there, and might be the one that left: only when it answers is it known to be empty.
            self.configure(lambda config: config["members"].append(entry))
            lost.start()
            wait_until(lambda: self.is_secondary(lost), "it takes part again")
            birds.insert_one({"_id": "last"})
        with lost.client(socketTimeoutMS=60_000) as there:
            self.assertEqual(there.test.birds.count_documents({}), DOCUMENTS + 1)


if __name__ == "__main__":
    unittest.main()
