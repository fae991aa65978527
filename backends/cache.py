"""The artefact store: folders of built files on disk, shared by processes, that may be lost but never be wrong.

An entry is published whole (written aside, synced, renamed) with a manifest of checksums that every load verifies. A
killed writer, a full or read-only disk or a damaged file costs a rebuild and one warning, nothing else.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

_MANIFEST = "manifest.json"
_FORMAT = 1
#: Longest wait for another process that builds the same entry, in seconds.
_PATIENCE_S = 600
#: Entries used more recently than this are never evicted, and younger temporary folders may still be in use.
_RECENT_S = 3600


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What a store holds, and what this process did with it."""

    root: Path
    entries: int
    size_bytes: int
    hits: int
    builds: int


class Store:
    """A folder of content-addressed entries.

    Args:
        root: where entries live; created on first use.
        limit_bytes: size beyond which the entries used longest ago are removed.
    """

    def __init__(self, root: Path, limit_bytes: int = 1 << 30) -> None:
        self.root, self.limit_bytes = Path(root), limit_bytes
        self._hits = self._builds = 0
        self._warned = False
        self._private: dict[str, Path] = {}

    @classmethod
    def default(cls) -> Store:
        """The user's store: ``$OPTPASS_CACHE_DIR``, or ``optpass`` in the platform's cache folder."""
        root = os.environ.get("OPTPASS_CACHE_DIR")
        return cls(Path(root) if root else platformdirs.user_cache_path("optpass"))

    def get_or_build(self, key: str, build: Callable[[Path], None]) -> Path:
        """The folder of the entry for ``key``; ``build(folder)`` fills an empty folder where there is none yet.

        Of several processes that ask at once, one builds. What ``build`` raises is passed on.
        """
        name = hashlib.sha256(key.encode()).hexdigest()[:40]
        entry = self.root / "entries" / name
        if name in self._private:
            self._hits += 1
            return self._private[name]
        if self._usable(entry):
            return entry
        try:
            (self.root / "locks").mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = FileLock(self.root / "locks" / name, timeout=_PATIENCE_S)
            lock.acquire()
        except (OSError, NotImplementedError, Timeout) as error:
            self._warn(f"cannot lock the cache {self.root} ({error}); building without it")
            return self._build_private(name, key, build)
        try:
            if self._usable(entry):
                return entry
            folder = self._build_private(name, key, build)
            try:
                self._publish(folder, entry)
            except OSError as error:
                self._warn(f"cannot write to the cache {self.root} ({error}); artefacts last as long as this process")
                return folder
        finally:
            lock.release()
        del self._private[name]
        shutil.rmtree(folder, ignore_errors=True)
        self._trim()
        return entry

    def find(self, key: str) -> Path | None:
        """The folder of the entry for ``key``, if it is there and whole."""
        entry = self.root / "entries" / hashlib.sha256(key.encode()).hexdigest()[:40]
        return entry if self._usable(entry) else None

    def stats(self) -> StoreStats:
        entries = self._entries()
        return StoreStats(self.root, len(entries), sum(size for _, size, _ in entries), self._hits, self._builds)

    def clear(self) -> int:
        """Removes all entries and gives their number. Files that a process has loaded stay usable to it."""
        entries = self._entries()
        for _, _, path in entries:
            shutil.rmtree(path, ignore_errors=True)
        return len(entries)

    # ---- reading ----

    def _usable(self, entry: Path) -> bool:
        """Whether an entry is there and whole; a damaged one is reported."""
        if not entry.is_dir():
            return False
        try:
            manifest = json.loads((entry / _MANIFEST).read_bytes())
            whole = manifest["format"] == _FORMAT and all(
                _checksum(entry / file) == checksum for file, checksum in manifest["files"].items()
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            whole = False
        if not whole:
            self._warn(f"the cache entry {entry} is damaged; building it again")
            return False
        self._hits += 1
        with contextlib.suppress(OSError):  # a read-only store evicts nothing
            os.utime(entry)  # its age for eviction
        return True

    # ---- writing ----

    def _build_private(self, name: str, key: str, build: Callable[[Path], None]) -> Path:
        """Builds in a folder of this process, where the state of the store cannot interfere."""
        folder = Path(tempfile.mkdtemp(prefix="optpass-"))
        try:
            build(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._builds += 1
        files = {f.relative_to(folder).as_posix(): _checksum(f) for f in sorted(folder.rglob("*")) if f.is_file()}
        (folder / _MANIFEST).write_text(json.dumps({"format": _FORMAT, "key": key, "files": files}, indent=1))
        atexit.register(_remove_own, folder, os.getpid())
        self._private[name] = folder
        return folder

    def _publish(self, folder: Path, entry: Path) -> None:
        """Copies a finished folder into the store; readers see all of it or nothing."""
        for part in ("entries", "temporary"):
            (self.root / part).mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=self.root / "temporary"))
        try:
            copy = aside / "entry"
            shutil.copytree(folder, copy)
            for path in (*copy.rglob("*"), copy):
                _sync(path)
            if entry.exists():
                entry.rename(aside / "damaged")
            copy.rename(entry)
            _sync(entry.parent)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _trim(self) -> None:
        """Keeps the store below its limit and removes what killed writers left behind."""
        now = time.time()
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        for used, size, path in entries:
            if total <= self.limit_bytes or now - used < _RECENT_S:
                break
            shutil.rmtree(path, ignore_errors=True)
            total -= size
        with contextlib.suppress(OSError):  # another process may be cleaning up too
            for path in (self.root / "temporary").iterdir():
                if now - path.stat().st_mtime > _RECENT_S:
                    shutil.rmtree(path, ignore_errors=True)

    def _entries(self) -> list[tuple[float, int, Path]]:
        """Time of last use, size in bytes and path of every entry."""
        out = []
        folder = self.root / "entries"
        for path in folder.iterdir() if folder.is_dir() else ():
            try:
                size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
                out.append((path.stat().st_mtime, size, path))
            except OSError:
                continue  # another process has just removed it
        return out

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"optpass: {text}", RuntimeWarning, stacklevel=3)


def _remove_own(folder: Path, process: int) -> None:
    """Removes a private folder, unless this is a fork of the process that made it."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
