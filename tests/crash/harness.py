"""Starts, stops and kills real server processes on a data directory.

Readiness is what the server says on its standard output, never a guess by time.
Every wait has a deadline.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pymongo

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60
READY = re.compile(r"mongodb://\S+")


def binary() -> Path:
    """The server under test: TERNDB_BINARY, or what `cargo build` left."""
    named = os.environ.get("TERNDB_BINARY")
    if named:
        return Path(named)
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "terndb"


class NotStarted(AssertionError):
    """A server ended, or said nothing, instead of becoming ready."""


class Server:
    """One life of a server process."""

    def __init__(self, data: Path, environment: dict[str, str] | None = None, within: list[str] | None = None):
        """`within` is a command that runs the server as its arguments say."""
        self.data = data
        self.errors = data.parent / "stderr.txt"
        self.uri: str | None = None
        self._answered = threading.Event()
        with open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(
                [*(within or []), binary(), "up", "--port", "0", "--data", data, "--cache-mb", "64", "--log-level", "warn"],
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"RUST_BACKTRACE": "1"} | (environment or {}),
                text=True,
            )
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()

    def _read_output(self) -> None:
        for line in self.process.stdout:
            found = READY.search(line)
            if found and not self.uri:
                self.uri = found.group()
                self._answered.set()
        self._answered.set()

    def wait_ready(self) -> "Server":
        """Waits until the server says where to connect."""
        if not self._answered.wait(DEADLINE_S):
            self.kill()
            raise NotStarted(f"the server was not ready in {DEADLINE_S} s: {self.stderr()}")
        if not self.uri:
            self.kill()
            raise NotStarted(f"the server did not start: {self.stderr()}")
        return self

    def ready_within(self, seconds: float) -> bool:
        return self._answered.wait(seconds)

    def stderr(self) -> str:
        return self.errors.read_text(errors="replace")

    def client(self, **options) -> pymongo.MongoClient:
        client = pymongo.MongoClient(
            self.uri,
            directConnection=True,
            retryWrites=False,
            retryReads=False,
            # Short, because a writer that looks for a killed server waits so long.
            serverSelectionTimeoutMS=500,
            socketTimeoutMS=DEADLINE_S * 1000,
            **options,
        )
        # The first connection may take longer on a busy machine.
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                client.admin.command("ping")
                return client
            except pymongo.errors.ConnectionFailure:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise

    def kill(self) -> None:
        """kill -9, and the end of the process."""
        self.process.kill()
        self._end()

    def wait_end(self) -> int:
        """Waits until the server ends by itself; the exit code."""
        return self._end()

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._end()

    def _end(self) -> int:
        try:
            code = self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(DEADLINE_S)
            raise AssertionError(f"the server did not end in {DEADLINE_S} s") from None
        self._reader.join(DEADLINE_S)
        self.process.stdout.close()
        return code


class Workplace:
    """A temporary directory that is kept when its test fails.

    `data` is the server's; the rest of `root` belongs to the test.
    """

    def __init__(self, name: str):
        # The parent may be chosen, for a file system other than that of /tmp.
        parent = os.environ.get("TERNDB_CRASH_DIRECTORY")
        self.root = Path(tempfile.mkdtemp(prefix=f"terndb-{name}-", dir=parent))
        self.data = self.root / "data"

    def discard(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def evidence(self, seed, note: str = "") -> str:
        return f"\n  seed: {seed}\n  data kept in: {self.root}\n{note}"


def number_from_environment(name: str, default: int) -> int:
    return int(os.environ.get(name, default))
