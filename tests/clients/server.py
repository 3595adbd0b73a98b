"""The server that the programs of this folder talk to.

One process is started when the first program needs it and is shared by all of them; each class of
tests has a database of its own. Programs that start, stop or starve a server start one for themselves
with `Process`. With TERNDB_TEST_URI the programs talk to that server instead, and what concerns the
process is skipped: that is how a program is checked against the real `mongod` before TernDB is judged
by it.

Readiness is what the server says on its standard output. Every wait has a deadline.
"""

import atexit
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

import pymongo

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = int(os.environ.get("TERNDB_TEST_DEADLINE_S", 60))
READY = re.compile(r"mongodb://\S+")
OTHER_SERVER = os.environ.get("TERNDB_TEST_URI")

only_terndb = unittest.skipIf(OTHER_SERVER, "concerns a server process of its own")


def binary() -> Path:
    """The server under test: TERNDB_BINARY, or what `cargo build` left."""
    named = os.environ.get("TERNDB_BINARY")
    if named:
        return Path(named)
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "terndb"


def wait_until(condition, what: str, seconds: float = DEADLINE_S):
    """Waits for a condition with a deadline; the first true answer."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain: {what}")
        time.sleep(0.02)


_ports_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports for servers that others must know before they start, or that keep theirs from life to life.

    They lie below those that the system gives away by itself: between two lives of a server, neither a
    listener that asks for any port nor the near end of a connection can take its port."""
    lowest_of_system = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    below = range(max(10_000, lowest_of_system - 20_000), lowest_of_system) or range(10_000, 65_536)
    found: list[int] = []
    for port in random.SystemRandom().sample(below, len(below)):
        if len(found) == count:
            break
        if port in _ports_given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    assert len(found) == count, "no ports are free"
    _ports_given.update(found)
    return found


class Process:
    """One life of a server process on a data directory."""

    def __init__(self, data: Path, *flags: str, port: int = 0):
        self.data = data
        # The server appends, wherever this end reads.
        self.errors = tempfile.TemporaryFile("a+")
        self.uri: str | None = None
        self._answered = threading.Event()
        self.process = subprocess.Popen(
            [binary(), "up", "--port", str(port), "--data", data, "--cache-mb", "128", "--log-level", "warn", *flags],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()
        if not self._answered.wait(DEADLINE_S) or not self.uri:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not start: {self.stderr()}")

    def _read_output(self) -> None:
        for line in self.process.stdout:
            found = READY.search(line)
            if found and not self.uri:
                self.uri = found.group()
                self._answered.set()
        self._answered.set()

    @property
    def port(self) -> int:
        return int(self.uri.rsplit(":", 1)[1])

    def stderr(self) -> str:
        self.errors.seek(0)
        return self.errors.read()

    def memory_bytes(self) -> int:
        """Resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) * 1024

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and waits for the end; the exit code."""
        if self.process.poll() is None:
            self.send(number)
        return self.wait()

    def wait(self) -> int:
        try:
            code = self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not end in {DEADLINE_S} s: {self.stderr()}") from None
        self._reader.join(DEADLINE_S)
        self.process.stdout.close()
        return code


class _Shared:
    """The process that most programs use."""

    process: Process | None = None

    @classmethod
    def uri(cls) -> str:
        if OTHER_SERVER:
            return OTHER_SERVER
        if cls.process is None:
            directory = Path(tempfile.mkdtemp(prefix="terndb-clients-"))
            cls.process = Process(directory / "data")
            atexit.register(cls.end, directory)
        return cls.process.uri

    @classmethod
    def end(cls, directory: Path) -> None:
        code = cls.process.stop()
        if code != 0:
            print(f"the shared server ended with {code}: {cls.process.stderr()}")
            os._exit(1)
        cls.process.errors.close()
        shutil.rmtree(directory, ignore_errors=True)


def facts(reply: dict) -> dict:
    """A reply without what every reply of a replica set tells about its time."""
    volatile = {"$clusterTime", "operationTime", "opTime", "electionId"}
    return {name: value for name, value in reply.items() if name not in volatile}


def shared_uri() -> str:
    return _Shared.uri()


class Client(pymongo.MongoClient):
    def close(self) -> None:
        # A driver says goodbye; nobody waits for a server that is gone.
        with pymongo.timeout(0.5):
            super().close()


def connect(uri: str | None = None, **options) -> pymongo.MongoClient:
    options = {
        "serverSelectionTimeoutMS": DEADLINE_S * 1000,
        "socketTimeoutMS": 4 * DEADLINE_S * 1000,
        "directConnection": True,
    } | options
    return Client(uri or shared_uri(), **options)


class Program(unittest.TestCase):
    """A class of programs: `self.client`, and in `self.db` a database that nobody else uses."""

    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.client = connect()
        cls.addClassCleanup(cls.client.close)
        cls.db = cls.client[f"clients_{cls.__name__}"]

    @classmethod
    def tearDownClass(cls):
        cls.client.drop_database(cls.db.name)
        if _Shared.process is not None:
            assert _Shared.process.process.poll() is None, "the server has died"
            assert "panicked" not in _Shared.process.stderr(), _Shared.process.stderr()

    def setUp(self):
        self.client.drop_database(self.db.name)

    def refused(self, code: int, name: str | None = None, kind=pymongo.errors.OperationFailure):
        """Expects the block to be refused by the server with this error."""
        return _Refused(self, code, name, kind)


class _Refused:
    def __init__(self, test, code, name, kind):
        self.test, self.code, self.name, self.kind = test, code, name, kind
        self.error = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if error is None:
            raise AssertionError(f"no error, but {self.code} {self.name or ''} was expected")
        if not isinstance(error, self.kind):
            return False
        self.test.assertEqual(error.code, self.code, error)
        if self.name:
            self.test.assertEqual(error.details.get("codeName"), self.name, error)
        self.error = error
        return True


def for_shell(uri: str) -> str:
    """By itself the shell looks for a server of this machine for two seconds only."""
    whole = uri if "/" in uri.removeprefix("mongodb://") else f"{uri}/"
    return f"{whole}{'&' if '?' in whole else '?'}serverSelectionTimeoutMS={DEADLINE_S * 1000}"


def readme_commands(section: str) -> str:
    """What a section of the README has its readers type into the shell."""
    text = (ROOT / "README.md").read_text()
    body = re.search(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", text, re.M | re.S).group(1)
    blocks = re.findall(r"^```js\n(.*?)^```", body, re.M | re.S)
    assert blocks, f"the README types nothing in {section}"
    return "".join(blocks)
