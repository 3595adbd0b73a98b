"""Connecting, staying connected, and what happens when the server starts, stops or cannot start."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

import bson
import pymongo
from pymongo import monitoring
from pymongo.errors import AutoReconnect, ConnectionFailure, OperationFailure, PyMongoError

from server import (
    DEADLINE_S,
    Process,
    Program,
    binary,
    connect,
    facts,
    free_ports,
    only_terndb,
    shared_uri,
    wait_until,
)

# Errors on which drivers retry by themselves: the server says "I am going", or the connection ends.
GOING_AWAY = {11600, 91, 11602, 189, 10107, 13435, 13436}


def message(body: dict, number: int = 1) -> bytes:
    """An OP_MSG with one document."""
    content = b"\0\0\0\0" + b"\0" + bson.encode(body)
    head = b"".join(n.to_bytes(4, "little") for n in (16 + len(content), number, 0, 2013))
    return head + content


def receive(stream: socket.socket) -> dict:
    """The document of the next OP_MSG."""

    def exactly(count):
        data = b""
        while len(data) < count:
            more = stream.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    length = int.from_bytes(exactly(4), "little")
    return bson.decode(exactly(length - 4)[17:])


def raw_connection(uri: str) -> socket.socket:
    host, port = uri.removeprefix("mongodb://").rstrip("/").split(":")
    return socket.create_connection((host, int(port)), timeout=DEADLINE_S)


def installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


class Handshake(Program):
    def test_hello(self):
        for command in ("hello", "isMaster", "ismaster"):
            with self.subTest(command):
                reply = self.client.admin.command(command)
                self.assertTrue(reply["isWritablePrimary" if command == "hello" else "ismaster"])
                self.assertEqual(reply["maxBsonObjectSize"], 16 * 1024 * 1024)
                self.assertEqual(reply["maxMessageSizeBytes"], 48_000_000)
                self.assertEqual(reply["maxWriteBatchSize"], 100_000)
                self.assertEqual((reply["minWireVersion"], reply["maxWireVersion"]), (0, 17))
                self.assertEqual(reply["logicalSessionTimeoutMinutes"], 30)
                self.assertFalse(reply["readOnly"])

    def test_what_drivers_ask(self):
        admin = self.client.admin
        self.assertEqual(facts(admin.command("ping")), {"ok": 1.0})
        self.assertEqual(self.client.server_info()["versionArray"][:2], [6, 0])
        self.assertEqual(admin.command("connectionStatus")["authInfo"]["authenticatedUsers"], [])
        self.assertIn("you", admin.command("whatsmyuri"))
        self.assertIn("log", admin.command("getLog", "startupWarnings"))
        self.assertIn("names", admin.command("getLog", "*"))
        self.assertIn("argv", admin.command("getCmdLineOpts"))
        self.assertIn("hostname", admin.command("hostInfo")["system"])
        self.assertIn("insert", admin.command("listCommands")["commands"])
        self.assertIn("featureCompatibilityVersion", admin.command("getParameter", featureCompatibilityVersion=1))
        session = admin.command("startSession")["id"]
        self.assertEqual(admin.command("refreshSessions", [session])["ok"], 1.0)
        self.assertEqual(admin.command("endSessions", [session])["ok"], 1.0)

    def test_unknown_commands(self):
        with self.refused(59, "CommandNotFound") as refused:
            self.db.command("makeCoffee")
        self.assertEqual(refused.error.details["errmsg"], "no such command: 'makeCoffee'")

    def test_compressors(self):
        for name, modules in (
            ("zlib", ("zlib",)),
            ("zstd", ("compression.zstd", "backports.zstd")),
            ("snappy", ("snappy",)),
        ):
            with self.subTest(name):
                if not any(installed(module) for module in modules):
                    self.skipTest(f"none of the Python packages {modules} is installed")
                with connect(compressors=name) as client:
                    c = client[self.db.name][name]
                    self.assertEqual(client.admin.command("hello", compression=[name])["compression"], [name])
                    c.insert_many([{"_id": i, "s": "tern " * 500} for i in range(2000)])
                    self.assertEqual(sum(len(d["s"]) for d in c.find()), 2000 * 2500)
                    self.assertEqual(c.count_documents({"s": {"$regex": "^tern"}}), 2000)
                    with self.refused(59, "CommandNotFound"):
                        client.admin.command("nope")

    def test_a_client_names_itself(self):
        with connect(appname="clients test") as client:
            [shown] = client.admin.command({"currentOp": 1, "appName": "clients test", "command.currentOp": 1})["inprog"]
            self.assertEqual(shown["clientMetadata"]["application"]["name"], "clients test")
            self.assertEqual(shown["clientMetadata"]["driver"]["name"].split("|")[0], "PyMongo")

    def test_many_connections(self):
        self.db.c.insert_many([{"_id": i} for i in range(50)])
        failures = []

        def work(number):
            try:
                with connect(maxPoolSize=1) as client:
                    for i in range(20):
                        assert client[self.db.name].c.find_one({"_id": (number + i) % 50})
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_pipelined_requests(self):
        """Requests sent ahead are answered in their order."""
        with raw_connection(shared_uri()) as stream:
            stream.sendall(b"".join(message({"ping": 1, "$db": "admin"}, n) for n in range(100)))
            for _ in range(100):
                self.assertEqual(facts(receive(stream)), {"ok": 1.0})

    def test_rubbish_ends_one_connection_only(self):
        for rubbish in (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\xff" * 16,
            (2**31 - 1).to_bytes(4, "little") + b"\0" * 12,
            (48_000_001).to_bytes(4, "little") + b"\0" * 12,
            (15).to_bytes(4, "little") + b"\0" * 12,
        ):
            with self.subTest(rubbish[:8]), raw_connection(shared_uri()) as stream:
                try:
                    stream.sendall(rubbish)
                    while stream.recv(1000):
                        pass
                except ConnectionResetError:
                    pass
        self.client.admin.command("ping")

    def test_malformed_bson_leaves_the_connection(self):
        with raw_connection(shared_uri()) as stream:
            good = message({"ping": 1, "$db": "admin", "comment": "yyyy"})
            # The length of the string `yyyy` now points past the end of the document.
            bad = good.replace(b"\x05\0\0\0yyyy", b"\xff\0\0\0yyyy")
            self.assertNotEqual(good, bad)
            stream.sendall(bad)
            self.assertEqual(receive(stream)["ok"], 0.0)
            stream.sendall(good)
            self.assertEqual(facts(receive(stream)), {"ok": 1.0})


class Heartbeats(monitoring.ServerHeartbeatListener):
    def __init__(self):
        self.succeeded_awaited = threading.Event()
        self.failures = []

    def started(self, event):
        pass

    def succeeded(self, event):
        if event.awaited:
            self.succeeded_awaited.set()

    def failed(self, event):
        self.failures.append(event)


class Monitoring(Program):
    def test_streaming_hello(self):
        """The driver's monitor is told by the server, instead of asking every time."""
        listener = Heartbeats()
        with connect(event_listeners=[listener], heartbeatFrequencyMS=500) as client:
            client.admin.command("ping")
            self.assertTrue(listener.succeeded_awaited.wait(DEADLINE_S))
            self.assertEqual(listener.failures, [])


@only_terndb
class Lives(unittest.TestCase):
    """Programs that need a server of their own."""

    def setUp(self):
        self.directory = Path(tempfile.mkdtemp(prefix="terndb-clients-"))
        self.data = self.directory / "data"
        self.processes = []

    def tearDown(self):
        for process in self.processes:
            if process.process.poll() is None:
                process.process.kill()
                process.wait()
            self.assertNotIn("panicked", process.stderr())
            process.errors.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self, *flags, **options) -> Process:
        process = Process(self.data, *flags, **options)
        self.processes.append(process)
        return process

    def test_restarted_on_the_same_port(self):
        [port] = free_ports(1)
        first = self.start(port=port)
        with connect(first.uri) as client:
            client.x.c.insert_many([{"_id": i, "n": i % 3} for i in range(1000)])
            client.x.c.create_index("n")
            self.assertEqual(first.stop(), 0)
            with self.assertRaises(PyMongoError), pymongo.timeout(0.5):
                client.x.c.count_documents({})
            self.start(port=port)
            # The same client, which learned that the server was gone, finds it again.
            self.assertEqual(client.x.c.count_documents({"n": 1}), 333)
            self.assertEqual(sorted(client.x.c.index_information()), ["_id_", "n_1"])
            self.assertTrue(client.x.command("validate", "c", full=True)["valid"])

    def test_ended_by_signals(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number):
                process = self.start()
                with connect(process.uri) as client:
                    client.x.c.insert_one({})
                self.assertEqual(process.stop(number), 0, process.stderr())

    def test_ended_while_it_starts(self):
        """A signal that comes before the data is open is obeyed, and what is stored stays sound."""
        [port] = free_ports(1)
        process = self.start(port=port)
        with connect(process.uri) as client:
            client.x.c.insert_many([{"_id": i, "s": "x" * 500} for i in range(20_000)])
        # Its log is replayed by whoever starts next.
        process.send(signal.SIGKILL)
        process.wait()
        for _ in range(3):
            starting = subprocess.Popen(
                [binary(), "up", "--port", str(port), "--data", self.data, "--log-level", "warn"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )

            def listens():
                # It listens before it opens the data, and expects signals before it listens.
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    return True
                except OSError:
                    return starting.poll() is not None

            wait_until(listens, "the server listens")
            starting.terminate()
            errors = starting.communicate(timeout=DEADLINE_S)[1]
            self.assertEqual(starting.returncode, 0, errors)
            self.assertNotIn("panicked", errors)
        with connect(self.start().uri) as client:
            self.assertEqual(client.x.c.count_documents({}), 20_000)
            self.assertTrue(client.x.command("validate", "c", full=True)["valid"])

    def test_ended_by_command(self):
        process = self.start()
        with connect(process.uri) as client:
            client.x.c.insert_one({"_id": 1})
            try:
                client.admin.command("shutdown")
            except ConnectionFailure:
                # The connection may end before the answer comes, or instead of it.
                pass
        self.assertEqual(process.wait(), 0, process.stderr())

    def test_ended_while_clients_are_busy(self):
        """What was acknowledged is there; what was not is refused in a way that drivers understand."""
        process = self.start()
        uri = process.uri
        acknowledged, odd = [], []
        begun = threading.Barrier(9)

        def answers(client):
            try:
                return client.admin.command("ping")
            except ConnectionFailure:
                return None

        def insert(worker):
            # Short, because a worker that looks for a server which is gone waits so long.
            with connect(uri, retryWrites=False, serverSelectionTimeoutMS=500) as client:
                wait_until(lambda: answers(client), "the first connection")
                begun.wait(2 * DEADLINE_S)
                for i in range(1_000_000):
                    number = worker * 1_000_000 + i
                    try:
                        client.x.c.insert_one({"_id": number, "s": "x" * 200})
                        acknowledged.append(number)
                    except (ConnectionFailure, AutoReconnect):
                        return
                    except OperationFailure as error:
                        if error.code not in GOING_AWAY:
                            odd.append(error)
                        return
                    except Exception as error:
                        odd.append(error)
                        return

        workers = [threading.Thread(target=insert, args=(w,)) for w in range(8)]
        for worker in workers:
            worker.start()
        begun.wait(2 * DEADLINE_S)
        wait_until(lambda: len(acknowledged) > 300, "the workers are at work")
        self.assertEqual(process.stop(), 0, process.stderr())
        for worker in workers:
            worker.join()
        self.assertEqual(odd, [])
        with connect(self.start().uri) as client:
            found = {d["_id"] for d in client.x.c.find({}, {"_id": 1})}
            self.assertEqual(set(acknowledged) - found, set())
            # At most the one in flight for each worker is there beyond that.
            self.assertLessEqual(len(found - set(acknowledged)), 8)
            self.assertTrue(client.x.command("validate", "c", full=True)["valid"])

    def test_a_running_scan_does_not_hold_up_the_end(self):
        process = self.start()
        # Once it is gone, nobody looks for it.
        with connect(process.uri, retryReads=False) as client:
            client.x.c.insert_many([{"_id": i} for i in range(3000)])
            pipeline = [
                {"$lookup": {"from": "c", "pipeline": [], "as": "a"}},
                {"$unwind": "$a"},
                {"$lookup": {"from": "c", "pipeline": [], "as": "b"}},
                {"$unwind": "$b"},
                {"$count": "n"},
            ]
            outcome = []

            def run():
                try:
                    outcome.append(list(client.x.c.aggregate(pipeline, comment="long")))
                except Exception as error:
                    outcome.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            wait_until(
                lambda: client.admin.command({"currentOp": 1, "command.comment": "long"})["inprog"], "the scan runs"
            )
            # This has a deadline.
            self.assertEqual(process.stop(), 0, process.stderr())
            thread.join()
            self.assertIsInstance(outcome[0], (ConnectionFailure, OperationFailure))

    def test_two_thousand_idle_connections(self):
        process = self.start()
        with connect(process.uri) as client:
            client.x.c.insert_one({"_id": 1})
            before = process.memory_bytes()
            streams = []
            try:
                for _ in range(2000):
                    stream = raw_connection(process.uri)
                    streams.append(stream)
                    stream.sendall(message({"hello": 1, "$db": "admin"}))
                    self.assertEqual(receive(stream)["ok"], 1.0)
                self.assertEqual(client.x.c.find_one(), {"_id": 1})
                self.assertGreaterEqual(client.admin.command("serverStatus")["connections"]["current"], 2000)
                # Ten thousand are to stay under 500 MB: 50 kB each, and these are debug builds.
                grown = process.memory_bytes() - before
                self.assertLess(grown, 2000 * 50_000, f"{grown / 2000:.0f} bytes for each connection")
            finally:
                for stream in streams:
                    stream.close()
            wait_until(
                lambda: client.admin.command("serverStatus")["connections"]["current"] < 100, "connections are let go"
            )


@only_terndb
class Starting(unittest.TestCase):
    """One clear sentence on standard error, a non-zero exit, and never the text of a panic."""

    def setUp(self):
        self.directory = Path(tempfile.mkdtemp(prefix="terndb-clients-"))
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)

    def check(self, arguments, *expected, command=()):
        done = subprocess.run(
            [*command, binary(), "up", *map(str, arguments)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            cwd=self.directory,
            timeout=DEADLINE_S,
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stdout, "")
        for text in expected:
            self.assertIn(text, done.stderr)
        for text in ("panicked", "RUST_BACKTRACE", "stack backtrace", "Os {", "Error {"):
            self.assertNotIn(text, done.stderr)
        return done.stderr

    def one_line(self, arguments, *expected, **options):
        text = self.check(arguments, *expected, **options)
        self.assertEqual(len(text.strip().splitlines()), 1, text)

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.one_line(["--port", port, "--data", "d"], f"cannot listen on 127.0.0.1:{port}", "another server")
        # Nothing was made.
        self.assertFalse((self.directory / "d").exists())

    def test_address_of_another_machine(self):
        self.one_line(["--bind", "192.0.2.1", "--port", 0, "--data", "d"], "cannot listen on 192.0.2.1")

    def test_data_in_use(self):
        process = Process(self.directory / "d")
        self.addCleanup(process.errors.close)
        try:
            self.one_line(["--port", 0, "--data", "d"], "d", "in use")
            with connect(process.uri) as client:
                client.x.c.insert_one({})
        finally:
            self.assertEqual(process.stop(), 0)

    def test_data_of_another_version(self):
        process = Process(self.directory / "d")
        self.addCleanup(process.errors.close)
        self.assertEqual(process.stop(), 0)
        formats = list((self.directory / "d").rglob("FORMAT"))
        self.assertTrue(formats)
        formats[0].write_text("TernDB store format 999\ncrc32c 00000000\n")
        self.one_line(["--port", 0, "--data", "d"], "FORMAT is damaged", "backup")
        formats[0].unlink()
        self.one_line(["--port", 0, "--data", "d"], "FORMAT is missing", "backup")

    def test_data_of_somebody_else(self):
        (self.directory / "d").mkdir()
        (self.directory / "d" / "somefile").write_text("hello")
        self.one_line(["--port", 0, "--data", "d"], "no data directory of TernDB", "somefile", "Name a directory")

    def test_data_that_is_a_file(self):
        (self.directory / "d").write_text("hello")
        self.one_line(["--port", 0, "--data", "d"], "d is a file", "needs a directory")
        for several in ("--members", "--shards"):
            self.one_line(["--port", 0, "--data", "d", several, 3], "d is a file", "needs a directory")

    @unittest.skipUnless(shutil.which("setpriv") or os.geteuid() != 0, "needs a user who is not root")
    def test_data_that_is_read_only(self):
        place = self.directory / "d"
        place.mkdir(mode=0o555)
        os.chmod(self.directory, 0o755)
        # Root may write anywhere: the program runs as somebody else then.
        command = () if os.geteuid() else ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        server = binary()
        reachable = all(os.stat(p).st_mode & 0o001 for p in Path(server).resolve().parents)
        if not reachable:
            copied = self.directory / "terndb"
            shutil.copy(server, copied)
            os.environ["TERNDB_BINARY"], before = str(copied), os.environ.get("TERNDB_BINARY")
            self.addCleanup(
                lambda: os.environ.pop("TERNDB_BINARY") if before is None else os.environ.update(TERNDB_BINARY=before)
            )
        self.one_line(["--port", 0, "--data", place], str(place), "ermission denied", command=command)

    def test_configuration_files(self):
        file = self.directory / "terndb.toml"
        for text, expected in (
            ("port = ", "terndb.toml"),
            ("prot = 27017", "prot"),
            ("port = 'many'", "port"),
            ("port = 70000", "port"),
            ("bind = 'everywhere'", "bind"),
            ("log_level = 'loud'", "loud"),
            ("cache_mb = 0", "cache-mb"),
        ):
            with self.subTest(text):
                file.write_text(text)
                self.check(["--config", file], expected)
        self.one_line(["--config", "none.toml"], "none.toml")

    def test_flags(self):
        for arguments, expected in (
            (["--port", "x"], "--port"),
            (["--port", "65536"], "--port"),
            (["--cache-mb=-1"], "--cache-mb"),
            (["--colour"], "--colour"),
            (["--bind", "127.0.0.1,::1"], "one address or host name is expected"),
            (["--bind", "*"], "0.0.0.0 stands for all"),
            (["--log-level", "loud"], "loud"),
        ):
            with self.subTest(arguments):
                self.check(arguments, expected)

    def test_a_configuration_file_is_obeyed(self):
        [port] = free_ports(1)
        file = self.directory / "terndb.toml"
        file.write_text(
            f"port = {port}\nbind = '127.0.0.1'\ndata = '{self.directory}/from-file'\ncache_mb = 64\nlog_level = 'error'\n"
        )
        process = subprocess.Popen([binary(), "up", "--config", file], stdout=subprocess.PIPE, text=True)
        try:
            said = ""
            while "connect" not in said:
                line = process.stdout.readline()
                self.assertTrue(line, said)
                said += line
            self.assertIn(f"mongodb://127.0.0.1:{port}", said)
            self.assertIn("from-file", said)
            self.assertIn("64 MiB", said)
            with connect(f"mongodb://127.0.0.1:{port}") as client:
                client.admin.command("ping")
            self.assertTrue((self.directory / "from-file").is_dir())
        finally:
            process.terminate()
            self.assertEqual(process.wait(DEADLINE_S), 0)
            process.stdout.close()

    def test_a_server_that_listens_everywhere_is_known_by_the_name_of_its_machine(self):
        name = socket.gethostname()
        arguments = ["--bind", "0.0.0.0", "--port", "0", "--data", self.directory / "d"]
        process = subprocess.Popen(
            [binary(), "up", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            said = ""
            while "connect" not in said:
                line = process.stdout.readline()
                self.assertTrue(line, said)
                said += line
            port = int(said.strip().rsplit(":", 1)[1])
            with connect(f"mongodb://127.0.0.1:{port}/?directConnection=true") as client:
                me = client.admin.command("hello")["me"]
        finally:
            process.terminate()
            errors = process.communicate()[1]
            self.assertEqual(process.returncode, 0)
        try:
            socket.getaddrinfo(name, port)
            self.assertEqual(me, f"{name}:{port}")
        except socket.gaierror:
            self.assertEqual(me, f"127.0.0.1:{port}")
            self.assertIn("--host", errors)


if __name__ == "__main__":
    unittest.main()
