"""Large read-only data, made once and shared: a cache folder, and rows of text mapped from files.

What is opened from here lives in the page cache: environments, threads and worker processes that use
the same data share one copy of it.
"""

import json
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, overload

import numpy as np

from turnbench.envs.errors import ConfigError

T = TypeVar("T")


def cache_folder() -> Path:
    """TURNBENCH_CACHE, else the folder `turnbench` in the user's cache folder."""
    if own := os.environ.get("TURNBENCH_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "turnbench"


def build_once(name: str, build: Callable[[Path], None]) -> Path:
    """The folder `name` in the cache. Where it is missing, `build` fills it first.

    It appears whole or not at all, and of several processes that ask at once one builds while the
    others wait. Raises ConfigError where the cache can't be written.
    """
    target = cache_folder() / name
    if target.is_dir():
        return target
    with _writable(target.parent), _locked(target.with_name(f"{name}.lock")):
        if not target.is_dir():
            for left in target.parent.glob(f"{name}.*/"):  # by builders that were killed
                shutil.rmtree(left, ignore_errors=True)
            fresh = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=target.parent))
            try:
                build(fresh)
                fresh.rename(target)
            except BaseException:
                shutil.rmtree(fresh, ignore_errors=True)
                raise
    return target


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Write into a folder of the cache, which is made if need be. Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ConfigError(
            f"the cache folder {folder} can't be used: {error}; TURNBENCH_CACHE may name another"
        ) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that the system releases with the process, however that ends."""
    with path.open("w", encoding="utf-8") as file:
        try:
            import fcntl
        except ImportError:  # not POSIX: two builders then do the same work, and one result is kept
            yield
            return
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, remembered in the cache for as long as size and time stay the same."""
    stat = path.stat()
    stamp = sha256(f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}".encode()).hexdigest()
    noted = cache_folder() / "digests" / stamp
    if noted.is_file():
        return noted.read_text(encoding="utf-8")
    with path.open("rb") as file:
        digest = _sha256(file)
    if stat.st_size > 2**24:  # worth remembering, where that can be done
        with suppress(ConfigError), _writable(noted.parent):
            part = noted.with_suffix(f".{os.getpid()}")
            part.write_text(digest, encoding="utf-8")
            part.replace(noted)
    return digest


def _sha256(file: Any) -> str:
    digest = sha256()
    while chunk := file.read(2**20):
        digest.update(chunk)
    return digest.hexdigest()


class RowsWriter:
    """Writes rows of text to `NAME.rows` and where each begins to `NAME.starts.npy`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._starts = folder / f"{name}.starts.npy"
        self._file = (folder / f"{name}.rows").open("wb")
        self._ends = [0]

    def add(self, row: str) -> None:
        """Append a row, which may hold any text."""
        self._ends.append(self._ends[-1] + self._file.write(row.encode("utf-8", "surrogatepass")))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._file.close()
        np.save(self._starts, np.array(self._ends, dtype=np.int64))


class Rows(Sequence[T], Generic[T]):
    """Rows that a RowsWriter wrote, mapped into memory and decoded when asked for.

    The last `keep` rows asked for stay decoded.
    """

    def __init__(self, folder: Path, name: str, decode: Callable[[str], T], keep: int = 4096) -> None:
        self._starts = load_array(folder / f"{name}.starts.npy")
        with (folder / f"{name}.rows").open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        self._decode = decode
        self._row = lru_cache(maxsize=keep)(self._read) if keep else self._read

    def _read(self, index: int) -> T:
        start, end = int(self._starts[index]), int(self._starts[index + 1])
        return self._decode(self._map[start:end].decode("utf-8", "surrogatepass"))

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._row(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._row(index % len(self))


def load_array(path: Path) -> np.ndarray[Any, Any]:
    """The array of an .npy file, mapped into memory and read-only."""
    return np.asarray(np.load(path, mmap_mode="r"))  # a plain array is quicker to slice than a memmap


def to_row(value: Any) -> str:
    """A JSON value as a row."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
