"""Cuts the power of a server that was killed: takes back what it had not synced.

The server runs with `powercut.c` preloaded, which keeps undo logs in a directory
beside the data (see there). After the kill, `PowerCut.cut` decides at random, from
a seed, what the disk had kept:

- For each file with unsynced changes, on its own: all of them, none, the first
  few, the first few and a torn one, or for each 512-byte sector the state after
  any number of the changes (disks write back in any order). A sector is never a
  mixture of two states. What a write that was synced by itself has written stays, and
  with it the sectors that it touched: they are not older than it.
- For each name created, removed, replaced or renamed since its directory was last
  synced, on its own: before or after. Names that share a file (a rename) go together.

What is not simulated: disks that lie about a sync, bytes that rot, and a directory
that was made, synced and removed within one life of the server.
"""

import atexit
import functools
import os
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

SECTOR_BYTES = 512
RECORD = struct.Struct("<QQQQQ")
WRITE, SET_LENGTH, STABLE = 0, 1, 2


@functools.cache
def compile_shim() -> Path:
    """Builds the preloaded library, once in the life of this process."""
    folder = tempfile.mkdtemp(prefix="terndb-shim-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = Path(folder, "powercut.so")
    source = Path(__file__).with_name("powercut.c")
    subprocess.run(
        ["cc", "-O2", "-Wall", "-shared", "-fPIC", "-o", library, source, "-ldl", "-lpthread"],
        check=True,
    )
    return library


@dataclass
class Change:
    """One unsynced change of a file's bytes, as the shim recorded it."""

    offset: int
    length: int
    kind: int
    size_before: int
    saved: bytes

    def reach(self) -> range:
        """The bytes that it may have changed."""
        if self.kind == WRITE:
            return range(self.offset, self.offset + self.length)
        return range(min(self.offset, self.size_before), max(self.offset, self.size_before))

    def size_after(self) -> int:
        if self.kind == WRITE:
            return max(self.size_before, self.offset + self.length)
        return self.offset


@dataclass
class Undo:
    """The undo log of one file."""

    changes: list[Change]
    # For sectors that were made stable by themselves: after how many changes that was.
    floors: dict[int, int]


def sectors(reach: range) -> range:
    return range(reach.start // SECTOR_BYTES, -(-reach.stop // SECTOR_BYTES))


def read_undo(path: Path) -> Undo:
    data = path.read_bytes()
    undo, at = Undo([], {}), 0
    while at + RECORD.size <= len(data):
        offset, length, kind, size, saved = RECORD.unpack_from(data, at)
        at += RECORD.size
        if at + saved > len(data):
            break  # The kill came before the record was whole, so before its change.
        if kind == STABLE:
            for sector in sectors(range(offset, offset + length)):
                undo.floors[sector] = len(undo.changes)
        else:
            undo.changes.append(Change(offset, length, kind, size, data[at : at + saved]))
        at += saved
    return undo


class PowerCut:
    """The undo logs of one life of a server."""

    def __init__(self, data: Path, aside: Path):
        self.data = data
        self.aside = aside
        self.held: list[int] = []

    def begin(self) -> None:
        """Declares all that is in the data directory now to be on the disk."""
        shutil.rmtree(self.aside, ignore_errors=True)
        self.aside.mkdir(parents=True)
        self.data.mkdir(parents=True, exist_ok=True)
        self._let_go()
        for folder, folders, files in os.walk(self.data):
            # Held open, a directory's inode number is not given to another one.
            self.held.append(os.open(folder, os.O_RDONLY))
            lines = []
            for name in folders + files:
                path = Path(folder, name)
                inode = path.lstat().st_ino
                if name in files:
                    os.link(path, self.aside / f"f{inode}")
                lines.append(f"{inode} {'d' if name in folders else 'f'} {name}\n")
            (self.aside / f"d{os.stat(folder).st_ino}").write_text("".join(lines))

    def _let_go(self) -> None:
        for handle in self.held:
            os.close(handle)
        self.held = []

    def environment(self, shim: Path, ignore: str = "", delay_us: int = 2000) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(shim),
            "POWERCUT_DATA": str(self.data),
            "POWERCUT_ASIDE": str(self.aside),
            "POWERCUT_IGNORE": ignore,
            "POWERCUT_DELAY_US": str(delay_us),
        }

    def cut(self, random) -> list[str]:
        """Takes the power away. Returns what was done, for the failure report."""
        story: list[str] = []
        self._cut_names(self.data, random, story)
        for folder, _, files in sorted(os.walk(self.data)):
            for name in sorted(files):
                path = Path(folder, name)
                undo = self.aside / f"u{path.stat().st_ino}"
                unsynced = read_undo(undo) if undo.exists() else None
                if unsynced and unsynced.changes:
                    done = cut_bytes(path, unsynced, random)
                    story.append(f"{path.relative_to(self.data)}: {done}")
        self._let_go()
        return story

    def _cut_names(self, folder: Path, random, story: list[str]) -> None:
        now = {
            entry.name: (entry.inode(), "d" if entry.is_dir() else "f")
            for entry in os.scandir(folder)
        }
        listing = self.aside / f"d{folder.stat().st_ino}"
        stable = {}
        for line in listing.read_text().splitlines() if listing.exists() else []:
            inode, kind, name = line.split(" ", 2)
            stable[name] = (int(inode), kind)
        for names in tied_together(now, stable):
            if random.random() < 0.5:
                continue
            story.append(f"{folder.relative_to(self.data)}: names as before: {', '.join(names)}")
            self._put_back(folder, names, now, stable)
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if entry.is_dir():
                self._cut_names(Path(entry.path), random, story)

    def _put_back(self, folder: Path, names, now, stable) -> None:
        for name in names:
            if name not in now:
                continue
            path = folder / name
            if now[name][1] == "d":
                shutil.rmtree(path)
            else:
                path.unlink()
        for name in names:
            if name not in stable:
                continue
            inode, kind = stable[name]
            if kind == "d":
                # Its files are gone from it; those that were stable come back below.
                (folder / name).mkdir()
                listing = self.aside / f"d{inode}"
                if listing.exists():
                    shutil.copy(listing, self.aside / f"d{(folder / name).stat().st_ino}")
            else:
                os.link(self.aside / f"f{inode}", folder / name)


def tied_together(now: dict, stable: dict) -> list[list[str]]:
    """Groups the names that changed: those that share a file form one group."""
    changed = sorted(
        name for name in now.keys() | stable.keys() if now.get(name) != stable.get(name)
    )
    group_of = {name: {name} for name in changed}
    holder: dict[int, str] = {}
    for name in changed:
        for inode in {entry[0] for entry in (now.get(name), stable.get(name)) if entry}:
            if inode in holder:
                merged = group_of[name] | group_of[holder[inode]]
                for member in merged:
                    group_of[member] = merged
            holder[inode] = name
    return sorted({tuple(sorted(group)) for group in group_of.values()})


def cut_bytes(path: Path, unsynced: Undo, random) -> str:
    """Gives a file bytes that the disk may have held, and says which."""
    changes = unsynced.changes
    count = len(changes)
    first = random.randrange(count + 1)
    kind = random.choice(["none lost", "all lost", "a suffix lost", "torn", "scattered"])
    if kind == "none lost":
        return f"all {count} unsynced changes kept"
    if kind == "all lost":
        keep_in_sector, first = (lambda: 0), 0
    elif kind == "a suffix lost" or (kind == "torn" and first == count):
        keep_in_sector = lambda: first
    elif kind == "torn":
        keep_in_sector = lambda: first + random.randrange(2)
    else:
        keep_in_sector, first = (lambda: random.randrange(count + 1)), count
    uniform = kind != "scattered"

    # Which of the states (after 0, 1, … count changes) each sector gets.
    base = first if uniform else 0
    torn = changes[first : first + 1] if kind == "torn" else changes if not uniform else []
    chosen: dict[int, int] = {}
    for change in torn:
        for sector in sectors(change.reach()):
            if change.kind == WRITE and sector not in chosen:
                chosen[sector] = keep_in_sector()
    for sector, floor in unsynced.floors.items():
        chosen[sector] = max(chosen.get(sector, base), floor)
    wanted: dict[int, set[int]] = {}
    for sector, state in chosen.items():
        wanted.setdefault(state, set()).add(sector)

    with open(path, "r+b", buffering=0) as file:
        captured: dict[int, bytes] = {}
        base_size = None
        for state in range(count, -1, -1):
            if state < count:
                undo(file, changes[state])
            for sector in wanted.get(state, ()):
                captured[sector] = os.pread(file.fileno(), SECTOR_BYTES, sector * SECTOR_BYTES)
            if state == base:
                break
        base_size = os.fstat(file.fileno()).st_size
        put_sectors(file, captured)
        size = os.fstat(file.fileno()).st_size
    newer = sum(1 for state in chosen.values() if state != base)
    return (
        f"{kind}: {base} of {count} unsynced changes kept, then {newer} newer sectors,"
        f" {base_size} -> {size} bytes"
    )


def put_sectors(file, sectors: dict[int, bytes]) -> None:
    """Writes sectors as they were in other states of the file."""
    ends = [number * SECTOR_BYTES + len(content) for number, content in sectors.items() if content]
    size = max([os.fstat(file.fileno()).st_size, *ends])
    for number, content in sectors.items():
        if content:
            # Where the file ended in that state, the rest of the sector was zeros.
            room = min(SECTOR_BYTES, size - number * SECTOR_BYTES)
            os.pwrite(file.fileno(), content.ljust(room, b"\0"), number * SECTOR_BYTES)


def undo(file, change: Change) -> None:
    """Takes one change back; the later ones must have been taken back already."""
    handle = file.fileno()
    reach = change.reach()
    os.ftruncate(handle, change.size_before)
    stop = min(reach.stop, change.size_before)
    if reach.start >= stop:
        return
    saved = change.saved
    if len(saved) >= stop - reach.start:
        os.pwrite(handle, saved[: stop - reach.start], reach.start)
    elif change.kind == SET_LENGTH:
        # The truncation left nothing behind `offset`: what follows is zeros anyway.
        os.pwrite(handle, saved, reach.start)
    else:
        os.pwrite(handle, saved + bytes(stop - reach.start - len(saved)), reach.start)
