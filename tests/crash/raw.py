"""A connection that sends commands as they are: no session, no retry, no opinion of its own."""

import itertools
import socket
import struct

import bson

from harness import DEADLINE_S

OP_MSG = 2013


class Connection:
    def __init__(self, port: int):
        self.socket = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        self.ids = itertools.count(1)

    def __del__(self):
        self.socket.close()

    def command(self, database: str, command: dict) -> dict:
        body = bson.encode(command | {"$db": database})
        header = struct.pack("<iiii", 16 + 5 + len(body), next(self.ids), 0, OP_MSG)
        self.socket.sendall(header + struct.pack("<IB", 0, 0) + body)
        (length,) = struct.unpack("<i", self._read(4))
        return bson.decode(self._read(length - 4)[12 + 5 :])

    def _read(self, count: int) -> bytes:
        parts = b""
        while len(parts) < count:
            part = self.socket.recv(count - len(parts))
            if not part:
                raise ConnectionResetError("the server is gone")
            parts += part
        return parts
