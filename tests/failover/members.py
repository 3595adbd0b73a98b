"""Replica sets of real processes: started, killed, paused, and looked into.

A set is made of TernDB members, or of the real `mongod` when TERNDB_FAILOVER_KIND=mongod: that is how
these programs are checked themselves before TernDB is judged by them.

Every wait is for something that can be observed, and has a deadline.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pymongo
from network import Network
from pymongo.errors import PyMongoError

# What these programs share with those of clients.
sys.path.append(str(Path(__file__).resolve().parents[1] / "clients"))
from server import DEADLINE_S, binary, free_ports, wait_until  # noqa: E402

SET_NAME = "flock"
ALREADY_INITIALIZED = 23
KIND = os.environ.get("TERNDB_FAILOVER_KIND", "terndb")


class Member:
    """One member's process, from life to life on the same data."""

    def __init__(self, number: int, port: int, root: Path, kind: str):
        self.number = number
        self.kind = kind
        self.port = port
        self.data = root / f"member{number}"
        self.data.mkdir()
        self.log = root / f"member{number}.log"
        self.process: subprocess.Popen | None = None
        self.paused = False
        self.detours: dict[str, str] = {}
        """Other members' hosts, and by which address this one reaches them."""
        self.settings = ""
        """More lines of TernDB's configuration file."""
        self.is_config = False
        """Whether it is a member of a config server."""

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def command(self) -> list:
        if self.kind == "mongod":
            mongod = os.environ.get("TERNDB_MONGOD") or Path.home() / ".cache/terndb/mongod"
            return [
                mongod, "--replSet", SET_NAME, "--dbpath", self.data, "--port", str(self.port),
                "--bind_ip", "127.0.0.1", "--wiredTigerCacheSizeGB", "0.25",
                *(["--configsvr"] if self.is_config else []),
            ]  # fmt: skip
        config = self.data.parent / f"member{self.number}.toml"
        config.write_text(
            f'replica_set = "{SET_NAME}"\nport = {self.port}\ndata = "{self.data}"\n'
            'cache_mb = 64\nlog_level = "info"\n'
            + self.settings
            + ("[detours]\n" if self.detours else "")
            + "".join(f'"{host}" = "{by}"\n' for host, by in self.detours.items())
        )
        return [binary(), "config" if self.is_config else "shard", "--config", config]

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"RUST_BACKTRACE": "1"},
            )
        self.paused = False

    def client(self, **options) -> pymongo.MongoClient:
        """To this member and no other."""
        options = {"serverSelectionTimeoutMS": 500, "connectTimeoutMS": 500, "socketTimeoutMS": 2000} | options
        return pymongo.MongoClient(
            "127.0.0.1", self.port, directConnection=True, readPreference="secondaryPreferred", **options
        )

    def tell(self, command, database: str = "admin") -> dict:
        """The answer to a command of a member that is up, however busy it is."""
        patience_ms = DEADLINE_S * 1000
        with self.client(
            serverSelectionTimeoutMS=patience_ms, connectTimeoutMS=patience_ms, socketTimeoutMS=2 * patience_ms
        ) as client:
            return client[database].command(command)

    def ask(self, command, database: str = "admin", **options) -> dict | None:
        """The answer to a command, or nothing if there is none soon."""
        try:
            with self.client(**options) as client:
                return client[database].command(command)
        except PyMongoError:
            return None

    def is_up(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"member {self.number} ended: {self.tail()}")
        return self.ask("ping") is not None

    def is_primary(self) -> bool:
        """Whether it says so, soon."""
        answer = self.ask("hello")
        return bool(answer and answer.get("isWritablePrimary"))

    def kill(self) -> None:
        """kill -9, and the end of the process."""
        self.process.kill()
        self.process.wait(DEADLINE_S)
        self.paused = False

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.paused = False

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)

    def tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-15:])


class ReplicaSet:
    """Members that know each other, initiated."""

    def __init__(
        self,
        count: int = 3,
        kind: str = KIND,
        election_ms: int | None = None,
        network: Network | None = None,
        settings: str = "",
    ):
        """Without a time, members call an election after what is their default. The real server's are ten
        seconds, which would make every failover a long wait: two, then.

        With a network, members reach each other through it (clients do not). Settings are lines of TernDB's
        configuration files."""
        self.root = Path(tempfile.mkdtemp(prefix="terndb-failover-"))
        self.members = [Member(at, port, self.root, kind) for at, port in enumerate(free_ports(count))]
        for member in self.members:
            member.settings = settings
        for member in self.members if network else []:
            for other in self.members:
                if other is not member:
                    member.detours[other.host] = network.link(member.number, other.number, other.port)
        try:
            for member in self.members:
                member.start()
            for member in self.members:
                wait_until(member.is_up, f"member {member.number} answers")
            config = {
                "_id": SET_NAME,
                "members": [{"_id": member.number, "host": member.host} for member in self.members],
            }
            if election_ms is None and kind == "mongod":
                election_ms = 2000
            if election_ms is not None:
                config["settings"] = {"electionTimeoutMillis": election_ms}
            # Members that are still opening refuse at first.
            wait_until(lambda: self.initiate(config), "the set is initiated")
            self.wait_primary()
            wait_until(lambda: self.settled(), "all members are primary or secondary")
        except BaseException:
            self.stop()
            raise

    def initiate(self, config: dict) -> bool:
        try:
            return bool(self.members[0].tell({"replSetInitiate": config}))
        except PyMongoError as refused:
            # An attempt whose answer was lost may have done it.
            return getattr(refused, "code", None) == ALREADY_INITIALIZED

    @property
    def uri(self) -> str:
        hosts = ",".join(member.host for member in self.members)
        return f"mongodb://{hosts}/?replicaSet={SET_NAME}"

    def client(self, **options) -> pymongo.MongoClient:
        options = {
            "serverSelectionTimeoutMS": 20_000,
            "connectTimeoutMS": 2000,
            "socketTimeoutMS": 10_000,
            "heartbeatFrequencyMS": 500,
        } | options
        return pymongo.MongoClient(self.uri, **options)

    def running(self) -> list[Member]:
        return [member for member in self.members if member.process.poll() is None and not member.paused]

    def wait_primary(self, besides: Member | None = None) -> Member:
        """Waits until a running member says that it is the primary."""

        def find():
            candidates = [member for member in self.running() if member is not besides]
            return next((member for member in candidates if member.is_primary()), None)

        return wait_until(find, "a primary")

    def settled(self) -> bool:
        """Whether every member is primary or secondary."""
        answers = [member.ask("hello") for member in self.members]
        return all(answer and (answer.get("isWritablePrimary") or answer.get("secondary")) for answer in answers)

    def heal(self) -> None:
        """Everybody runs, and takes part."""
        for member in self.members:
            if member.process.poll() is not None:
                member.start()
            elif member.paused:
                member.resume()
        wait_until(self.settled, "all members take part again")

    def hashes(self, database: str) -> list[dict]:
        """What each member holds, once all have applied the same."""

        def same_position():
            positions = []
            for member in self.members:
                hello = member.ask("hello")
                if not hello:
                    return None
                positions.append(hello["lastWrite"]["opTime"])
            return all(position == positions[0] for position in positions)

        wait_until(same_position, "all members have applied the same")
        return [member.tell("dbHash", database)["collections"] for member in self.members]

    def stop(self, keep: bool = False) -> None:
        for member in self.members:
            if member.process and member.process.poll() is None:
                if member.paused:
                    member.resume()
                member.process.kill()
                member.process.wait(DEADLINE_S)
        if not keep:
            shutil.rmtree(self.root, ignore_errors=True)
