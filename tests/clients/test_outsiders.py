"""Servers outside of a set: before they are initiated, and after they were removed.

Everything is done to the real `mongod` too, and the answers compared. It needs TERNDB_MONGOD (scripts/test fetches
one) and is skipped without it.
"""

import os
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

from pymongo.errors import AutoReconnect
from server import DEADLINE_S, free_ports, only_terndb, wait_until

sys.path.append(str(Path(__file__).resolve().parents[1] / "failover"))
from members import SET_NAME, Member  # noqa: E402

MONGOD = Path(os.environ.get("TERNDB_MONGOD") or Path.home() / ".cache/terndb/mongod")
# What clients ask first, write and read, and what is asked about the set itself.
COMMANDS = [
    {"insert": "c", "documents": [{"_id": 1}], "$db": "test"},
    {"update": "c", "updates": [{"q": {}, "u": {"$set": {"a": 1}}}], "$db": "test"},
    {"delete": "c", "deletes": [{"q": {}, "limit": 1}], "$db": "test"},
    {"findAndModify": "c", "remove": True, "$db": "test"},
    {"create": "c", "$db": "test"},
    {"drop": "c", "$db": "test"},
    {"find": "c", "$db": "test"},
    {"aggregate": "c", "pipeline": [], "cursor": {}, "$db": "test"},
    {"aggregate": "c", "pipeline": [{"$out": "d"}], "cursor": {}, "$db": "test"},
    {"count": "c", "$db": "test"},
    {"distinct": "c", "key": "a", "$db": "test"},
    {"listCollections": 1, "$db": "test"},
    {"ping": 1},
    {"replSetGetStatus": 1},
]
HELLO = ("isWritablePrimary", "ismaster", "secondary", "info", "isreplicaset", "setName", "hosts", "me", "primary")


def reply(member: Member, command: dict) -> dict:
    """What a server replies. One that changes its state closes connections: then it is asked again."""
    patience_ms = DEADLINE_S * 1000
    command = dict(command)
    database = command.pop("$db", "admin")

    def ask():
        with member.client(serverSelectionTimeoutMS=patience_ms, socketTimeoutMS=2 * patience_ms) as client:
            try:
                return client[database].command(command, check=False)
            except AutoReconnect:
                return None

    return wait_until(ask, f"a reply to {command}")


def answer(member: Member, command: dict):
    """The code of a refusal; nothing if there is none."""
    found = reply(member, command)
    return None if found["ok"] else found.get("code")


@only_terndb
@unittest.skipUnless(MONGOD.exists(), "there is no mongod to compare with")
class Outsiders(unittest.TestCase):
    def members(self, kind: str, count: int, is_config: bool = False) -> list[Member]:
        root = Path(tempfile.mkdtemp(prefix=f"terndb-outsiders-{kind}-"))
        self.addCleanup(shutil.rmtree, root, ignore_errors=True)
        members = [Member(number, port, root, kind) for number, port in enumerate(free_ports(count))]
        for member in members:
            member.is_config = is_config
            member.start()
            self.addCleanup(member.kill)
        for member in members:
            wait_until(member.is_up, f"{kind} answers")
        return members

    def both(self, do) -> None:
        expected, found = do("mongod"), do("terndb")
        for name, told in expected.items():
            self.assertEqual(told, found[name], name)
        self.assertEqual(expected.keys(), found.keys())

    def seen(self, member: Member) -> dict:
        told = {str(command): answer(member, command) for command in COMMANDS}
        for name in ("hello", "isMaster"):
            hello = reply(member, {name: 1})
            told[name] = {field: hello[field] for field in HELLO if field in hello}
        return told

    def test_before_a_set_is_initiated(self):
        def do(kind: str) -> dict:
            [member] = self.members(kind, 1)
            me = {"_id": 0, "host": member.host}
            told = self.seen(member)
            told["replSetGetConfig"] = answer(member, {"replSetGetConfig": 1})
            for name, configuration in {
                "another name": {"_id": "gulls", "members": [me]},
                "nobody": {"_id": SET_NAME, "members": []},
                "no name": {"members": [me]},
                "an unknown field": {"_id": SET_NAME, "members": [me], "feathers": 1},
                "the same _id twice": {"_id": SET_NAME, "members": [me, {"_id": 0, "host": "127.0.0.1:1"}]},
                "the same host twice": {"_id": SET_NAME, "members": [me, {"_id": 1, "host": member.host}]},
                "nobody may lead": {"_id": SET_NAME, "members": [me | {"priority": 0}]},
                "a priority": {"_id": SET_NAME, "members": [me | {"priority": -1}]},
                "votes": {"_id": SET_NAME, "members": [me | {"votes": 2}]},
                "hidden": {"_id": SET_NAME, "members": [me | {"hidden": True}]},
                "no host": {"_id": SET_NAME, "members": [{"_id": 0}]},
                "somebody else": {"_id": SET_NAME, "members": [{"_id": 0, "host": "127.0.0.1:1"}]},
                "a mode": {"_id": SET_NAME, "members": [me], "settings": {"getLastErrorModes": {"a": {"dc": 1}}}},
                "an interval": {"_id": SET_NAME, "members": [me], "settings": {"heartbeatIntervalMillis": 0}},
                "a config server's": {"_id": SET_NAME, "members": [me], "configsvr": True},
                "a number for it": {"_id": SET_NAME, "members": [me], "configsvr": 1},
                "nobody there": {"_id": SET_NAME, "members": [me, {"_id": 1, "host": "127.0.0.1:1"}]},
                "right": {"_id": SET_NAME, "members": [me]},
                "again": {"_id": SET_NAME, "members": [me]},
                "again, without a word": {},
            }.items():
                told[name] = answer(member, {"replSetInitiate": configuration})
            wait_until(member.is_primary, f"{kind} leads")
            told["at last"] = answer(member, {"replSetInitiate": {}})
            return told

        self.both(do)

    def test_config_servers(self):
        """They may say in their configuration what they are, and show it in any case."""
        for says in ({"configsvr": True}, {}):

            def do(kind: str) -> dict:
                first, second = self.members(kind, 2, is_config=True)
                hosts = [{"_id": 0, "host": first.host, "priority": 2}, {"_id": 1, "host": second.host}]
                configuration = {"_id": SET_NAME, "members": hosts}
                told = {"a number for it": answer(first, {"replSetInitiate": configuration | {"configsvr": 1}})}
                told["initiated"] = answer(first, {"replSetInitiate": configuration | says})
                wait_until(first.is_primary, f"{kind} leads")
                wait_until(lambda: reply(second, {"hello": 1})["secondary"], f"{kind} follows")
                for name, member in {"primary": first, "secondary": second}.items():
                    config = reply(member, {"replSetGetConfig": 1})["config"]
                    told[f"{name} shows"] = (list(config), config["configsvr"])
                # As a shell changes it.
                config = reply(first, {"replSetGetConfig": 1})["config"]
                config["members"][1]["priority"] = 0.5
                config["version"] += 1
                changes = {"replSetReconfig": config}
                wait_until(lambda: answer(first, changes) is None, f"{kind} takes a configuration")
                config = reply(first, {"replSetGetConfig": 1})["config"]
                told["changed"] = (config["configsvr"], config["members"][1]["priority"])
                return told

            with self.subTest(says):
                self.both(do)

    def test_after_a_member_was_removed(self):
        def do(kind: str) -> dict:
            first, second = self.members(kind, 2)
            hosts = [{"_id": 0, "host": first.host, "priority": 2}, {"_id": 1, "host": second.host}]
            self.assertIsNone(answer(first, {"replSetInitiate": {"_id": SET_NAME, "members": hosts}}))
            wait_until(first.is_primary, f"{kind} leads")
            wait_until(lambda: reply(second, {"hello": 1})["secondary"], f"{kind} follows")
            config = reply(first, {"replSetGetConfig": 1})["config"]
            config["version"] += 1
            del config["members"][1]
            removed = {"replSetReconfig": config}
            # Another configuration may be on its way to everybody still.
            wait_until(lambda: answer(first, removed) is None, f"{kind} removes a member")
            wait_until(lambda: "setName" not in reply(second, {"hello": 1}), "it is told that it is removed")
            told = self.seen(second)
            told["hosts"] = len(reply(second, {"replSetGetConfig": 1})["config"]["members"])
            told["initiate"] = answer(second, {"replSetInitiate": {}})
            return told

        self.both(do)


if __name__ == "__main__":
    unittest.main()
