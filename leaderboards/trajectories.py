"""Trajectories of one system as a file: gzipped JSON Lines, with digests that stand in its entry.

The first line is the log's header, reduced to this system; then comes one line an episode, exactly as
the log holds it. The Merkle root has a leaf for each line: leaf = SHA-256(0x00 line), node =
SHA-256(0x01 left right), an odd node moves up as it is. A file may come from anybody, so it is read
line by line within bounds, and every episode's types are checked before it is used.
"""

import gzip
import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from turnbench.agents.core import population_from_json
from turnbench.envs.errors import LogError
from turnbench.envs.record import Outcome
from turnbench.leaderboards.log import Episode, Key, existing, json_line, parse_header

MAX_LINE = 64 * 2**20  # bytes
MAX_RAW = 64 * 2**30
MAX_RATIO = 1000  # gzip can't do better than 1032 : 1
Json = dict[str, Any]


class Digests:
    """What identifies a system's episodes, gathered line by line."""

    def __init__(self, header: bytes) -> None:
        self.episodes, self.raw_bytes = 0, len(header)
        self._leaves = [_leaf(header)]
        self._played: list[bytes] = []

    def add(self, line: bytes, episode: Episode) -> None:
        """Count an episode and its line."""
        self.episodes += 1
        self.raw_bytes += len(line)
        self._leaves.append(_leaf(line))
        paths = [[turn.action for turn in path.turns] for path in episode.population.trajectories]
        task = episode.population.best.task
        played = json_line([task.env, task.id, task.seed, paths])
        self._played.append(hashlib.sha256(played).digest())

    def to_json(self) -> Json:
        """As it stands in an entry."""
        actions = hashlib.sha256(b"".join(sorted(self._played))).hexdigest()
        return {
            "episodes": self.episodes,
            "raw_bytes": self.raw_bytes,
            "merkle_root": merkle_root(self._leaves),
            "actions": actions,
        }


def _leaf(line: bytes) -> bytes:
    return hashlib.sha256(b"\0" + line.rstrip(b"\n")).digest()


def merkle_root(leaves: Iterable[bytes]) -> str:
    """Root of a tree over hashed leaves (at least one), as hex digits."""
    level = list(leaves)
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        odd = level[-1:] if len(level) % 2 else []
        level = [hashlib.sha256(b"\1" + left + right).digest() for left, right in pairs] + odd
    return level[0].hex()


def header_line(header: Mapping[str, Any], agent: str) -> bytes:
    """A log's header with nothing in it that concerns other systems."""
    suite = header["suite"]
    model = suite["agents"][agent].get("model")
    models = {name: spec for name, spec in suite["models"].items() if name == model}
    alone = {**suite, "agents": {agent: suite["agents"][agent]}, "models": models}
    checkpoints = {name: value for name, value in header["checkpoints"].items() if name == model}
    return json_line({**header, "suite": alone, "checkpoints": checkpoints})


def write_trajectories(path: Path, lines: Iterable[bytes]) -> Json:
    """Write lines; the same ones give the same bytes. Returns name, SHA-256 and size of the file."""
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
        for line in lines:
            file.write(line)
    return file_digest(path)


def file_digest(path: Path) -> Json:
    """Name, SHA-256 and size of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.name, "sha256": digest, "bytes": path.stat().st_size}


# --- reading --------------------------------------------------------------------------------------


def read_trajectories(path: Path, raw_bytes: int | None = None) -> Iterator[tuple[bytes, Episode]]:
    """Each line of a trajectory file with its episode; `trajectory_header` has the first one.

    Stops with a LogError where the file is damaged, or unpacks to more than `raw_bytes`.
    """
    lines = _lines(path, raw_bytes)
    next(lines)
    for number, line in lines:
        yield line, parse_episode(line, f"{path} line {number}")


def trajectory_header(path: Path) -> tuple[bytes, Json]:
    """The first line of a trajectory file, raw and parsed. Raises LogError."""
    _, line = next(_lines(path, None))
    return line, parse_header(line, path)


def _lines(path: Path, raw_bytes: int | None) -> Iterator[tuple[int, bytes]]:
    """Numbered lines, within bounds; always at least one."""
    try:
        limit = min(MAX_RAW, MAX_RATIO * existing(path).stat().st_size + 2**20)
        limit = limit if raw_bytes is None else min(limit, raw_bytes)
        seen = number = 0
        with gzip.open(path, "rb") as file:
            while line := file.readline(min(MAX_LINE, limit - seen) + 1):
                number, seen = number + 1, seen + len(line)
                if seen > limit:
                    raise LogError(f"{path} unpacks to more than the {limit:,} bytes there should be")
                if not line.endswith(b"\n"):
                    raise LogError(f"{path} line {number} is cut off, or longer than {MAX_LINE:,} bytes")
                yield number, line
    except (OSError, EOFError, zlib.error) as error:
        raise LogError(f"{path} is no whole gzip file: {error}") from error
    if not number:
        raise LogError(f"{path} is empty")


_strict = with_config(ConfigDict(extra="forbid", strict=True))
_Float = Annotated[float, Field(allow_inf_nan=False)]
_Weight = _Float | Literal["-inf", "nan"]
_Count = Annotated[int, Field(ge=0, lt=2**60)]


@_strict
class _TaskRow(TypedDict):
    env: str
    id: str
    split: str
    seed: int


@_strict
class _TurnRow(TypedDict):
    obs: str
    act: str
    rew: _Float
    text: NotRequired[str]
    tok: NotRequired[tuple[_Count, list[_Count], list[_Count], list[_Float]]]


@_strict
class _PathRow(TypedDict):
    outcome: str
    turns: list[_TurnRow]
    final: str
    failure: NotRequired[str]
    success: NotRequired[bool]
    info: NotRequired[dict[str, Any]]


@_strict
class _UsageRow(TypedDict):
    model_calls: _Count
    prompt_tokens: _Count
    cached_tokens: _Count
    completion_tokens: _Count
    cost: Annotated[_Float, Field(ge=0)] | None
    env_steps: _Count
    replayed_steps: _Count
    forks: _Count
    cache_hits: _Count
    shared_tokens: _Count


@_strict
class _PopulationRow(TypedDict):
    task: _TaskRow
    chosen: _Count
    trajectories: list[_PathRow]
    log_weights: list[_Weight]
    scores: list[_Weight]
    usage: _UsageRow
    resamplings: NotRequired[list[tuple[_Count, list[_Count], list[_Weight]]]]
    discarded: NotRequired[list[_PathRow]]
    log_evidence: NotRequired[_Weight]


@_strict
class _EpisodeRow(TypedDict):
    key: tuple[str, _Count, str, _Count]
    outcome: str
    seconds: Annotated[_Float, Field(ge=0)]
    privileges: list[str]
    population: _PopulationRow


_EPISODE = TypeAdapter(_EpisodeRow)


def parse_episode(line: bytes, where: str) -> Episode:
    """The episode on a line that may come from anybody. Raises LogError."""
    try:
        row = _EPISODE.validate_json(line)
        population = population_from_json(row["population"])  # type: ignore[arg-type]
        key, outcome = Key(*row["key"]), Outcome(row["outcome"])
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(map(str, fault["loc"]))
        raise LogError(f"{where}: {at}: {fault['msg']}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise LogError(f"{where}: {error}") from error
    task = population.best.task
    if (task.id, task.seed) != (key.task, key.seed) or population.best.outcome is not outcome:
        raise LogError(f"{where}: its key or outcome isn't that of its population")
    return Episode(key, outcome, row["seconds"], tuple(row["privileges"]), population)
