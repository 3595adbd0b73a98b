"""The files of `examples/`, as they are: the cluster that the compose file, the unit of systemd and `found.js`
describe runs here, as processes.

A machine is an address of its own (127.0.0.1, 127.0.0.2, ..), so that only names of machines, ports and
directories are put in the place of those in the files. What containers and systemd add is not here: their
networks, and that they start what has ended.
"""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path

from server import DEADLINE_S, OTHER_SERVER, ROOT, binary, connect, free_ports, wait_until

MONGOSH = os.environ.get("TERNDB_MONGOSH")
EXAMPLES = ROOT / "examples"
FILES = EXAMPLES / "three-machines"
PORTS = ["27017", "27019", "27020", "27021"]
MACHINES = {f"machine{at}": f"127.0.0.{at}" for at in (1, 2, 3)}


def compose() -> dict:
    """The compose file, read by the parser that comes with the shell."""
    script = "console.log(JSON.stringify(require('js-yaml').load(require('fs').readFileSync(0, 'utf8'))))"
    modules = Path(MONGOSH).resolve().parent
    while modules.name != "node_modules":
        modules = modules.parent
    done = subprocess.run(
        ["node", "-e", script],
        input=(EXAMPLES / "compose.yaml").read_text(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=modules,
    )
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    for service in read["services"].values():
        for name, value in service.pop("<<", {}).items():
            service.setdefault(name, value)
    return read


def started_by_systemd(instance: str) -> list[str]:
    """What the unit runs for an instance: its specifiers and dollars as systemd reads them, its words as
    `sh` does."""
    unit = (EXAMPLES / "terndb@.service").read_text()
    line = re.search(r"^ExecStart=(.*)$", unit, re.M).group(1)
    line = re.sub(r"%(.)", lambda found: {"%": "%", "i": instance}[found.group(1)], line)
    shell = shlex.split(line.replace("$$", "$"))
    assert shell[:2] == ["/bin/sh", "-c"], shell
    shown = shell[2].replace("exec /usr/local/bin/terndb", "printf '%s\\n' terndb")
    assert shown != shell[2], "the unit runs the binary"
    done = subprocess.run(["/bin/sh", "-c", shown], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@unittest.skipIf(OTHER_SERVER, "concerns processes of its own")
@unittest.skipUnless(MONGOSH, "TERNDB_MONGOSH does not name the shell")
class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.services = compose()["services"]

    def commands(self) -> dict[str, list[str]]:
        """By service, what the containers run."""
        servers = {name: service for name, service in self.services.items() if service["image"] == "terndb"}
        return {name: service["entrypoint"] + service["command"] for name, service in servers.items()}

    def test_every_file_is_run_once_and_finds_its_data(self):
        used = sorted(Path(words[3]).name for words in self.commands().values())
        self.assertEqual(used, sorted(file.name for file in FILES.glob("*.toml")))
        for name, service in self.services.items():
            mounted = dict(volume.split(":")[:2] for volume in service["volumes"])
            self.assertEqual(mounted.pop("./three-machines"), "/etc/terndb", name)
            if "command" not in service:
                continue
            role, file = service["command"][0], FILES / Path(service["command"][2]).name
            machine = file.name.split("-")[0]
            self.assertEqual(service.get("hostname", service.get("network_mode", "").split(":")[-1]), machine)
            data = re.search(r'^data = "(.*)"$', file.read_text(), re.M)
            if role == "router":
                self.assertIsNone(data)
                continue
            self.assertEqual(list(mounted), [machine], name)
            self.assertTrue(data.group(1).startswith(mounted[machine] + "/"), file)

    def test_the_unit_runs_what_the_containers_run(self):
        guide = (FILES / "README.md").read_text()
        instances = re.findall(r"terndb@(\w+-machine1-\w+)", guide)
        by_systemd = sorted(started_by_systemd(instance) for instance in instances)
        by_compose = sorted(words for name, words in self.commands().items() if name.startswith("machine1"))
        self.assertEqual(by_systemd, by_compose)

    def test_the_cluster_runs_and_survives_a_machine(self):
        with tempfile.TemporaryDirectory(prefix="terndb-examples-") as directory:
            self.here = Path(directory)
            self.ports = dict(zip(PORTS, self.ports_of_all_machines()))
            (self.here / "etc").mkdir()
            for file in FILES.iterdir():
                (self.here / "etc" / file.name).write_text(self.translated(file.read_text()))
            processes = {name: self.start(words) for name, words in self.commands().items()}
            try:
                self.use_the_cluster(processes)
            finally:
                for process in processes.values():
                    process.kill()
                for process in processes.values():
                    process.wait()

    def use_the_cluster(self, processes):
        router = f"mongodb://127.0.0.1:{self.ports['27017']}"
        for name, process in processes.items():
            wait_until(lambda: self.listens(name, process), f"{name} listens")
        self.found()
        # It may be run again.
        self.found()
        with connect(router) as client:
            shards = {shard["_id"]: shard["host"].count(",") + 1 for shard in client.admin.command("listShards")["shards"]}
            self.assertEqual(shards, {"shard0": 3, "shard1": 3})
            client.admin.command("shardCollection", "fleet.birds", key={"_id": "hashed"})
            client.fleet.birds.insert_many([{"_id": at} for at in range(100)])
            shown = subprocess.run(
                [binary(), "status", f"127.0.0.1:{self.ports['27017']}"],
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
            )
            self.assertEqual(shown.returncode, 0, shown.stderr)
            self.assertRegex(shown.stdout, r"fleet\.birds .* 4 +2 +2 +100 ")
            # Any one machine may fail.
            for name, process in processes.items():
                if name.startswith("machine3"):
                    process.send_signal(signal.SIGKILL)
            wait_until(lambda: self.has_written(client), "writes after the loss of a machine")
            self.assertEqual(client.fleet.birds.count_documents({"_id": {"$lt": 100}}), 100)

    def listens(self, name: str, process: subprocess.Popen) -> bool:
        errors = self.here / f"{process.args[-1].split('/')[-1]}.log"
        self.assertIsNone(process.poll(), f"{name} has ended: {errors.read_text()}")
        text = Path(process.args[-1]).read_text()
        address, port = re.search(r'^host = "(.*):(.*)"$', text, re.M).groups()
        with socket.socket() as probe:
            return probe.connect_ex((address, int(port))) == 0

    def has_written(self, client) -> bool:
        try:
            for at in range(100, 120):
                client.fleet.birds.update_one({"_id": at}, {"$set": {"seen": True}}, upsert=True)
            return True
        except Exception:
            return False

    def ports_of_all_machines(self) -> list[int]:
        def is_free(address: str, port: int) -> bool:
            with socket.socket() as probe:
                try:
                    probe.bind((address, port))
                    return True
                except OSError:
                    return False

        found = []
        while len(found) < len(PORTS):
            [port] = free_ports(1)
            if all(is_free(address, port) for address in MACHINES.values()):
                found.append(port)
        return found

    def translated(self, text: str) -> str:
        address = next((MACHINES[name] for name in MACHINES if f'host = "{name}:' in text), "0.0.0.0")
        text = text.replace('bind = "0.0.0.0"', f'bind = "{address}"')
        # The data of the machines would lie in one directory.
        text = text.replace("/var/lib/terndb", str(self.here / f"data-{address}"))
        for machine, address in MACHINES.items():
            text = text.replace(machine, address)
        for port, other in self.ports.items():
            text = text.replace(port, str(other))
        return text

    def start(self, words: list[str]) -> subprocess.Popen:
        words = [word.replace("/etc/terndb", str(self.here / "etc")) for word in words]
        with open(self.here / f"{Path(words[-1]).name}.log", "w") as errors:
            return subprocess.Popen(
                [str(binary()), *words[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def found(self):
        """As the last service does."""
        words = self.services["found"]["entrypoint"]
        self.assertEqual(words[0], "mongosh")
        words = [word.replace("/etc/terndb", str(self.here / "etc")) for word in words[1:]]
        done = subprocess.run(
            [MONGOSH, "--quiet", "--norc", *words],
            capture_output=True,
            text=True,
            timeout=3 * DEADLINE_S,
            env=os.environ | {"NO_COLOR": "1", "MONGOSH_FORCE_DISABLE_TELEMETRY": "1"},
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("shardAdded"), 2, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
