"""`rs.…` of `mongosh` on a set of several processes. TERNDB_MONGOSH names the shell."""

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

from server import DEADLINE_S, for_shell, free_ports, only_terndb, wait_until

sys.path.append(str(Path(__file__).resolve().parents[1] / "failover"))
from members import Member, ReplicaSet  # noqa: E402

MONGOSH = os.environ.get("TERNDB_MONGOSH")


@only_terndb
@unittest.skipUnless(MONGOSH, "TERNDB_MONGOSH does not name the shell")
class Shell(unittest.TestCase):
    def setUp(self):
        self.set = ReplicaSet(2)
        self.addCleanup(self.set.stop)

    def evaluate(self, script: str, member: Member | None = None):
        """The value of a script, on the primary or on one member."""
        uri = f"mongodb://{member.host}/?directConnection=true" if member else self.set.uri
        done = subprocess.run(
            [MONGOSH, "--quiet", "--norc", for_shell(uri), "--eval", f"EJSON.stringify((() => {{ {script} }})())"],
            capture_output=True,
            text=True,
            timeout=2 * DEADLINE_S,
            env=os.environ | {"NO_COLOR": "1", "MONGOSH_FORCE_DISABLE_TELEMETRY": "1"},
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(done.stdout.strip())

    def states(self) -> dict:
        return self.evaluate("return Object.fromEntries(rs.status().members.map(m => [m.name, m.stateStr]))")

    def test_a_set_grows_shrinks_and_changes_its_primary(self):
        newcomer = Member(9, free_ports(1)[0], self.set.root, "terndb")
        newcomer.start()
        self.set.members.append(newcomer)
        wait_until(newcomer.is_up, "the newcomer answers")
        # The primary hears of the other's state by and by.
        wait_until(lambda: sorted(self.states().values()) == ["PRIMARY", "SECONDARY"], "a primary and a secondary")
        found = self.evaluate(f'''
            db.birds.insertMany([...Array(500).keys()].map(n => ({{_id: n}})));
            const before = rs.conf();
            const added = rs.add("{newcomer.host}");
            return {{ok: added.ok, before: before.members.length, after: rs.conf().members.length,
                     version: rs.conf().version - before.version, set: rs.conf()._id}};
        ''')
        self.assertEqual(found, {"ok": 1, "before": 2, "after": 3, "version": 1, "set": "flock"})
        wait_until(lambda: self.states().get(newcomer.host) == "SECONDARY", "the newcomer is a secondary")
        reading = 'db.getMongo().setReadPref("secondary"); return db.birds.countDocuments()'
        wait_until(lambda: self.evaluate(reading, newcomer) == 500, "it has everything")

        # The shell reads the set's configuration from the collection where MongoDB keeps it.
        told = self.evaluate("return rs.printSecondaryReplicationInfo()")
        primary = self.set.wait_primary()
        for member in self.set.members:
            if member is not primary:
                self.assertIn(f"source: {member.host}", json.dumps(told))

        # The newcomer is frozen: stepping down makes the other one primary.
        self.assertEqual(self.evaluate("return rs.freeze(600).ok", newcomer), 1)
        primary = self.set.wait_primary()
        other = next(m for m in self.set.members if m not in (primary, newcomer))
        stepped = self.evaluate("try { return rs.stepDown(120, 60).ok } catch (error) { return error.message }", primary)
        self.assertEqual(stepped, 1)
        wait_until(other.is_primary, "the other one is primary")
        self.assertEqual(self.evaluate("return rs.status().members.filter(m => m.self)[0].stateStr", primary), "SECONDARY")
        reason = self.evaluate("return rs.status().electionCandidateMetrics.lastElectionReason", other)
        self.assertEqual(reason, "stepUpRequestSkipDryRun")
        self.assertEqual(self.evaluate("return rs.freeze(0).info", newcomer), "unfreezing")

        removed = self.evaluate(f'const r = rs.remove("{newcomer.host}"); return [r.ok, rs.conf().members.length]')
        self.assertEqual(removed, [1, 2])
        wait_until(lambda: newcomer.host not in self.states(), "it is gone")
        self.assertEqual(self.evaluate("return db.hello().hosts.length"), 2)
        self.assertTrue(self.evaluate("return rs.printReplicationInfo !== undefined && rs.isMaster().ismaster"))


if __name__ == "__main__":
    unittest.main()
