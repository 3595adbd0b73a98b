"""Ranges that move among three shards while links between the shards, and between them and the config server, are cut.

A link carries what one process asks another, and the answers. It is cut as a whole, or only its answers are, so that
what was asked for has happened and nobody hears of it: a commit, the end of a copy, a release. What is cut stalls, and
breaks when it is healed. Clients reach the cluster all the time. Writes, reads and what is checked afterwards are those
of `test_moves.py`: nothing is lost, nothing doubled, no orphan stays, and no range is left blocked.
"""

import importlib.util
import time
import unittest
from pathlib import Path

import test_moves
from server import DEADLINE_S, ROOT, connect, free_ports, only_terndb, wait_until
from test_cluster_processes import Role
from test_moves import BIRDS, SHARDS, key_of

LOAD_S = 12
MOVES_WANTED, CUTS_WANTED = 5, 10


def load_network():
    """The links of the tests of replica sets."""
    spec = importlib.util.spec_from_file_location("network", ROOT / "tests" / "failover" / "network.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Network()


class Linked(Role):
    """A role that reaches the others by links."""

    def __init__(self, role: str, name: str, port: int, directory: Path, config: str | None, detours: dict[str, str]):
        self.name, self.port = name, port
        settings = directory / f"{name}.toml"
        lines = [f'"{host}" = "{by}"\n' for host, by in detours.items()]
        settings.write_text("[detours]\n" + "".join(lines))
        self.flags = [role, "--port", str(port), "--log-level", "warn", "--config", settings]
        self.flags += ["--replica-set", name, "--data", directory / name, "--cache-mb", "32"]
        if config:
            self.flags += ["--config-servers", config]
        self.errors = open(directory / f"{name}.log", "w+")
        self.start()


@only_terndb
class CutLinks(test_moves.Moves):
    test_snapshots_are_complete = None
    test_nothing_is_lost_or_doubled = None
    test_indexes_change_beside_moves = None

    def setUp(self):
        names = ["config", *(f"shard{at}" for at in range(SHARDS))]
        self.ports = dict(zip(names, free_ports(len(names))))
        self.network = load_network()
        self.addCleanup(self.network.close)
        super().setUp()

    def run_role(self, role: str, name: str, directory: Path | None = None) -> Role:
        if name not in self.ports:
            return super().run_role(role, name, directory)
        others = {other: port for other, port in self.ports.items() if other != name}
        detours = {f"127.0.0.1:{port}": self.network.link(name, other, port) for other, port in others.items()}
        config = None if role == "config" else self.config.connection
        running = Linked(role, name, self.ports[name], self.directory, config, detours)
        self.addCleanup(running.errors.close)
        self.addCleanup(running.stop)
        return running

    def cut(self):
        """Some links are cut for a while, as a whole or one way."""
        if self.done.wait(self.chance.uniform(0.1, 0.8)) or time.monotonic() > self.until:
            return
        links = list(self.network.links.values())
        for link in self.chance.sample(links, self.chance.choice([1, 1, 2, 3, len(links) // 2])):
            if self.chance.random() < 0.5:
                link.cut = True
            else:
                link.silent = True
        self.done.wait(self.chance.uniform(0.1, 2.5))
        self.network.heal()
        self.cuts += 1

    def in_progress(self) -> list[str]:
        """What the shards and the config server are at, as they say themselves."""
        said = []
        for role in [*self.shards, self.config]:
            with connect(f"mongodb://127.0.0.1:{role.port}/?directConnection=true") as direct:
                said += [f"{role.name}: {it}" for it in direct.admin.aggregate([{"$currentOp": {"allUsers": True}}])]
        return said

    def test_links_are_cut_during_moves(self):
        self.birds.insert_many([{"_id": number, "k": key_of(number)} for number in range(BIRDS)])
        self.moved, self.not_moved, self.cuts = [], [], 0
        work = [self.write, self.write, self.update_many, self.delete_many, self.read, self.move, self.move, self.cut]
        self.until = time.monotonic() + LOAD_S
        threads = [self.until_done(part) for part in work]

        def is_enough():
            return time.monotonic() > self.until and len(self.moved) >= MOVES_WANTED and self.cuts >= CUTS_WANTED

        # Links are cut until there were enough of them.
        def goes_on():
            if self.cuts < CUTS_WANTED:
                self.until = max(self.until, time.monotonic() + 1)
            return self.done.is_set() or is_enough()

        def told():
            return f"seed {self.seed}, {len(self.moved)} moves, {self.cuts} cuts, not moved: {self.not_moved[-3:]}"

        try:
            wanted = f"{MOVES_WANTED} moves while links are cut {CUTS_WANTED} times"
            wait_until(goes_on, wanted, LOAD_S + 2 * DEADLINE_S)
        except AssertionError as waited:
            raise AssertionError(f"{waited}: {told()}; {self.in_progress()}") from None
        finally:
            self.done.set()
            for thread in threads:
                thread.join()
            self.network.heal()
        told = told()
        self.assertEqual(self.failures, [], told)
        for dialled in self.ports:
            used = [link.carried_bytes for (_, to), link in self.network.links.items() if to == dialled]
            self.assertGreater(sum(used), 0, f"nobody uses a link to {dialled}; {told}")
        self.settle()
        self.check_contents(told)
        self.check_cluster(told)


if __name__ == "__main__":
    unittest.main()
