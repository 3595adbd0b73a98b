"""The network between members, as a proxy for each of its links.

A member only sends on connections that it has dialled itself, so the link from one member to another
carries one direction, and cutting it is a cut in one direction. What is cut stalls, as behind a cable
that was pulled: nothing is refused and nothing is closed, until the link is healed; then connections
that were stalled break, and are dialled again.
"""

import socket
import threading
import time

CHUNK_BYTES = 64 * 1024
LOOK_S = 0.05


class Link:
    """From one member to another: a listener, and a pump for each connection."""

    def __init__(self, target: int):
        self.target = target
        self.delay_s = 0.0
        self.cut = False
        self.silent = False
        """What is sent arrives, and what is answered does not."""
        self.carried_bytes = 0
        self._life = 0
        """Connections of an earlier life than this one break."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def heal(self) -> None:
        if self.cut or self.silent:
            self._life += 1
            self.cut = self.silent = False
        self.delay_s = 0.0

    def close(self) -> None:
        self._life += 1
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near, self._life), daemon=True).start()

    def _connect(self, near: socket.socket, life: int) -> None:
        with near:
            while self.cut:
                if life != self._life:
                    return
                time.sleep(LOOK_S)
            try:
                far = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            except OSError:
                return
            with far:
                back = threading.Thread(target=self._pump, args=(far, near, life, True), daemon=True)
                back.start()
                self._pump(near, far, life, False)
                back.join()

    def _stalls(self, answers: bool) -> bool:
        return self.cut or (self.silent and answers)

    def _pump(self, source: socket.socket, sink: socket.socket, life: int, answers: bool) -> None:
        source.settimeout(LOOK_S)
        try:
            while life == self._life:
                try:
                    chunk = source.recv(CHUNK_BYTES)
                except TimeoutError:
                    continue
                if not chunk:
                    return
                if self.delay_s:
                    time.sleep(self.delay_s)
                while self._stalls(answers) and life == self._life:
                    time.sleep(LOOK_S)
                if life != self._life:
                    return
                sink.settimeout(5)
                sink.sendall(chunk)
                sink.settimeout(LOOK_S)
                self.carried_bytes += len(chunk)
        except OSError:
            pass
        finally:
            # The other direction ends too.
            for end in (source, sink):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass


class Network:
    """All links of a set, by who dials and who is dialled."""

    def __init__(self):
        self.links: dict[tuple[int, int], Link] = {}

    def link(self, dialler: int, dialled: int, port: int) -> str:
        """The address by which one member reaches another."""
        link = self.links[dialler, dialled] = Link(port)
        return f"127.0.0.1:{link.port}"

    def between(self, some: set[int], others: set[int]) -> list[Link]:
        """Links by which some send to others."""
        return [link for (dialler, dialled), link in self.links.items() if dialler in some and dialled in others]

    def cut(self, some: set[int], others: set[int], back: bool = True) -> None:
        """Some cannot send to others; with `back`, nor the others to them."""
        for link in self.between(some, others) + (self.between(others, some) if back else []):
            link.cut = True

    def delay(self, seconds: float) -> None:
        for link in self.links.values():
            link.delay_s = seconds

    def heal(self) -> None:
        for link in self.links.values():
            link.heal()

    def close(self) -> None:
        for link in self.links.values():
            link.close()
