"""verify: accept or reject a board entry by playing every recorded action again.

Checks run in the order of CHECKS and stop at the first that fails; its number is the exit code. The
entry and its trajectories may come from anybody: YAML without tags, size limits before anything is
read, no pickle, no path out of the entry's folder, a deadline for the replay, and nothing is fetched.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from turnbench.envs.errors import BoardError, ConfigError, LogError, UnknownName
from turnbench.envs.record import Trajectory
from turnbench.leaderboards.audits import Openings, leak_fault, search_fault, solutions
from turnbench.leaderboards.board import (
    Verification,
    entry_digest,
    ranking,
    read_entry,
    verification_path,
    write_ranking,
)
from turnbench.leaderboards.entry import Entry, entry_id, make_entries, track_of
from turnbench.leaderboards.log import Episode, Key, difference
from turnbench.leaderboards.provenance import code_digest, world_of
from turnbench.leaderboards.replay import Job, replay_all
from turnbench.leaderboards.suite import Suite, find_suite, make_env
from turnbench.leaderboards.trajectories import file_digest, read_trajectories, trajectory_header
from turnbench.leaderboards.yamlfile import dump_yaml, read_yaml, write_atomically

TYPED = ("submitter", "code_url", "notes")  # keys that nobody can compute
SAMPLE = 200  # discarded paths of search that are replayed
ULP = 2e-6  # relative: one unit in the last of the 6 digits that entries keep


class Rejected(Exception):
    """An entry fails a check: this one, or the one named."""

    def __init__(self, message: str, check: str | None = None) -> None:
        super().__init__(message)
        self.check = check


class Unverifiable(Exception):
    """A check can't be made, by no fault of the entry: it is neither verified nor rejected."""


class Finding(NamedTuple):
    """What a check found; `code`: its exit code where it failed, UNVERIFIABLE where it is open, else 0."""

    check: str
    code: int
    text: str


@dataclass(slots=True)
class Case:
    """An entry under verification, and what the checks have learnt of it."""

    path: Path
    log: Path | None = None
    suite_file: Path | None = None
    workers: int = field(default_factory=lambda: max(2, os.cpu_count() or 1))
    seconds: float = 3600.0
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    entry: Entry = field(default_factory=dict)
    suite: Suite | None = None
    header: Mapping[str, Any] = field(default_factory=dict)
    computed: Entry = field(default_factory=dict)
    keys: Counter[Key] = field(default_factory=Counter)
    openings: Openings = field(default_factory=Openings)
    discarded: list[int] = field(default_factory=list)
    search_fault: str | None = None

    @property
    def known(self) -> Suite:
        """The suite as the verifier knows it."""
        assert self.suite is not None
        return self.suite

    @property
    def file(self) -> Path:
        """The trajectory file."""
        if self.log is not None:
            return self.log
        return self.path.parent / str(self.entry["trajectories"]["file"]["name"])

    def episodes(self) -> Iterator[tuple[bytes, Episode]]:
        """The file's lines, unpacked no further than the entry says."""
        return read_trajectories(self.file, self.entry["trajectories"]["raw_bytes"])

    @property
    def open(self) -> set[int]:
        """The numbers of the worlds that declare non-determinism: what was played there stays open."""
        return {k for k, world in enumerate(self.header["worlds"]) if world.get("nondeterministic")}

    def discards(self, episode: Episode) -> tuple[Trajectory, ...]:
        """The paths that an episode gave up and that can be replayed."""
        return () if episode.key.env in self.open else episode.population.discarded

    def noted(self) -> Iterator[tuple[bytes, Episode]]:
        """The same; what later checks need is noted on the way."""
        wanted = _wanted(self.known, self.header["worlds"], self.entry["system"]["name"])
        agent, has_model = self.entry["system"]["agent"], self.entry["system"]["model"] is not None
        for line, episode in self.episodes():
            self.keys[episode.key] += 1
            if episode.key not in wanted or self.keys[episode.key] > 1:
                why = "stands twice" if self.keys[episode.key] > 1 else "isn't one of the suite's"
                raise Rejected(f"the episode {list(episode.key)} {why}", "episodes")
            _check_task(self.known, episode)
            self.openings.add(episode)
            self.discarded.append(len(self.discards(episode)))
            if self.search_fault is None and (fault := search_fault(episode, agent, has_model)):
                self.search_fault = f"task {episode.key.task} seed {episode.key.seed}: {fault}"
            yield line, episode


def verify(case: Case) -> Iterator[Finding]:
    """One finding a check, until the first that fails; what can't be checked doesn't end it."""
    for name, check in CHECKS.items():
        try:
            yield Finding(name, 0, _line(check(case)))
        except Unverifiable as why:
            yield Finding(name, UNVERIFIABLE, _line(str(why)))
        except (Rejected, LogError, BoardError) as error:
            failed = getattr(error, "check", None) or name
            yield Finding(failed, CODES[failed], _line(str(error)))
            return


def _line(text: str) -> str:
    """One printable line: what an entry says must not steer a terminal, or a workflow's log."""
    return "".join(c if c.isprintable() else "?" for c in text)[:1000]


def record(case: Case, findings: list[Finding]) -> Path:
    """Write down that an entry was verified, by which code, and make the ranking anew: the entry's
    status follows from that.
    """
    checks = {finding.check: finding.text[:200] for finding in findings}
    found = Verification(entry=entry_digest(case.path), code=code_digest(), checks=checks)
    path = verification_path(case.path)
    write_atomically(path, dump_yaml(found.model_dump()))
    write_ranking(case.path.parent.name, case.path.parent.parent)
    return path


# --- the checks: each returns what it found, or raises Rejected ---------------------------------------


def _schema(case: Case) -> str:
    if case.path.is_symlink():
        raise Rejected(f"{case.path} is a link")
    case.entry = entry = read_entry(case.path)
    system, name = entry["system"], entry["entry"]
    right = entry_id(system, entry["suite"]["digest"], entry["provenance"]["code"])
    if name != right or case.path.stem != name:
        raise Rejected(f"the entry and its file must be called {right}")
    if entry["track"] != (track := track_of(system["agent"], entry["privileges"])):
        raise Rejected(f"track is {entry['track']}, but the system's is {track}")
    if entry["track"] == "custom" and not (entry.get("code_url") and entry.get("notes")):
        raise Rejected("the custom track needs code_url and notes")
    if "file" not in entry["trajectories"]:
        raise Rejected("there is no trajectory file: make the entry with `turnbench submit`")
    return f"{name}, {track} track"


def _suite(case: Case) -> str:
    told = case.entry["suite"]
    try:
        document = read_yaml(case.suite_file) if case.suite_file else find_suite(told["name"])
        case.suite = suite = document.validate(Suite)
    except (UnknownName, ConfigError) as error:
        raise Rejected(str(error)) from error
    mine = {"name": suite.suite, "version": suite.version, "digest": suite.digest}
    if told != mine:
        raise Rejected(difference(told, mine, "suite"))
    return f"{suite.suite} v{suite.version} ({suite.digest})"


def _protocol(case: Case) -> str:
    wanted = case.known.protocol
    if case.entry["protocol"] != wanted:
        raise Rejected("the entry's " + difference(case.entry["protocol"], wanted, "protocol"))
    _, case.header = trajectory_header(_file_of(case))
    try:
        logged = Suite.model_validate(case.header["suite"])
        played = logged.protocol
        worlds = _bounded(case.header["worlds"])
    except (LookupError, TypeError, ValueError) as error:
        raise Rejected(f"the log's header is damaged: {' '.join(str(error).split())[:200]}") from error
    if list(logged.agents) != [case.entry["system"]["name"]]:
        raise Rejected(f"the log is of {', '.join(logged.agents)}")
    if played != wanted:
        raise Rejected("the log's " + difference(played, wanted, "protocol"))
    mine = [world_of(spec) for spec in case.known.envs]
    if worlds != _bounded(mine):
        raise Rejected(
            "the log's header names other tasks, bounds of returns or non-deterministic worlds than the suite"
        )
    data = [world["data"] for world in mine]
    if case.entry["provenance"]["worlds"] != data:
        raise Rejected("the data behind a world is other than here: install the same data")
    return "tasks, seeds, turns, limits and data are the suite's"


def _bounded(worlds: Any) -> list[Any]:
    """Of each world its tasks, the bounds of a return, and whether it declares non-determinism."""
    return [
        (list(w["tasks"]), w["returns"] and list(w["returns"]), bool(w.get("nondeterministic")))
        for w in worlds
    ]


def _file_of(case: Case) -> Path:
    """The trajectory file, where it is one and lies in the entry's folder or was given by hand."""
    file = case.file
    if not file.is_file():
        raise Rejected(f"{file} isn't there: give the trajectory file with --log", "digests")
    if case.log is None and file.resolve().parent != case.path.resolve().parent:
        raise Rejected(f"{file} leads out of the entry's folder", "digests")
    return file


def _digests(case: Case) -> str:
    told = case.entry["trajectories"]
    mine = file_digest(_file_of(case))
    for part in ("bytes", "sha256"):
        if told["file"][part] != mine[part]:
            raise Rejected(f"{part} of the file is {mine[part]}, not {told['file'][part]}")
    (case.computed,) = make_entries(case.header, case.noted(), str(case.file))
    for part, value in case.computed["trajectories"].items():
        if told[part] != value:
            raise Rejected(f"{part} is {value}, not {told[part]}")
    return f"file and Merkle root over {told['episodes']:,} episodes"


def _episodes(case: Case) -> str:
    wanted = _wanted(case.known, case.header["worlds"], case.entry["system"]["name"])
    if left := wanted - case.keys.keys():
        raise Rejected(f"{len(left)} episodes are left out, such as {list(min(left))}")
    if not case.computed["complete"]:
        raise Rejected("there are episodes whose environment or server failed: play them again")
    return f"every task and seed once: {len(wanted):,} episodes"


def _wanted(suite: Suite, worlds: Any, agent: str) -> set[Key]:
    return {
        Key(agent, k, task, seed)
        for k, world in enumerate(worlds)
        for task in world["tasks"]
        for seed in suite.seeds
    }


def _check_task(suite: Suite, episode: Episode) -> None:
    """The task played is the key's, in the suite's world, within the suite's limit of calls."""
    task, spec = episode.population.best.task, suite.envs[episode.key.env]
    if (task.env, task.split) != (spec.id, spec.split):
        raise Rejected(f"{list(episode.key)} was played in {task.env}, split {task.split}", "episodes")
    limit, calls = suite.limits.model_calls, episode.population.usage.model_calls
    if limit is not None and calls > limit:
        raise Rejected(f"{list(episode.key)} used {calls} model calls of {limit}", "protocol")


def _numbers(case: Case) -> str:
    told = {k: v for k, v in case.entry.items() if k not in (*TYPED, "trajectories")}
    mine = {k: v for k, v in case.computed.items() if k != "trajectories"}
    if where := _apart(told, mine, ""):
        raise Rejected(where)
    score = case.computed["score"]
    return f"every number recomputed; score {score['mean']:g}" if score else "every number recomputed"


def _apart(told: Any, mine: Any, at: str) -> str | None:
    """Where an entry first says another thing than its log."""
    match told, mine:
        case dict(), dict():
            for key in [*told, *(k for k in mine if k not in told)]:
                if key not in told or key not in mine:
                    return f"{at}{key} stands only in {'the entry' if key in told else 'the log'}"
                if where := _apart(told[key], mine[key], f"{at}{key}."):
                    return where
            return None
        case list(), list() if len(told) == len(mine):
            pairs = enumerate(zip(told, mine, strict=True))
            return next((w for k, (a, b) in pairs if (w := _apart(a, b, f"{at}{k}."))), None)
        case (float(), float()) if abs(told - mine) <= ULP * abs(mine):
            return None
    return None if told == mine else f"{at[:-1]} is {told!r:.80}, but the log gives {mine!r:.80}"


def _replay(case: Case) -> str:
    jobs = (Job(line) for line, episode in case.episodes() if episode.key.env not in case.open)
    paths, steps = _timed(case, jobs)
    told = f"{paths:,} paths, {steps:,} steps, equal to the byte"
    if not case.open:
        return told
    names = ", ".join(case.known.envs[k].id for k in sorted(case.open))
    raise Unverifiable(
        f"{names} declares itself non-deterministic and can't be replayed; elsewhere {told}"
    )


def _timed(case: Case, jobs: Iterator[Job]) -> tuple[int, int]:
    try:
        envs = case.known.envs
        result = replay_all(envs, jobs, workers=case.workers, seconds=case.seconds)
    except TimeoutError as error:
        raise Rejected(f"the replay took more than {case.seconds:g} s") from error
    if result.fault:
        raise Rejected(result.fault)
    return result.paths, result.steps


def _search(case: Case) -> str:
    if case.search_fault:
        raise Rejected(case.search_fault)
    total = sum(case.discarded)
    if not total:
        return "bills cover what the paths imply; nothing was discarded"
    drawn = np.sort(case.rng.permutation(total)[:SAMPLE])
    paths, steps = _timed(case, _sampled(case, drawn))
    return f"bills cover what the paths imply; {paths} of {total} discarded paths, {steps} steps, equal"


def _sampled(case: Case, drawn: Any) -> Iterator[Job]:
    """Jobs for the drawn numbers, which count all discarded paths of the log through."""
    start = 0
    for line, episode in case.episodes():
        size = len(case.discards(episode))
        mine = drawn[(drawn >= start) & (drawn < start + size)] - start
        start += size
        if len(mine):
            yield Job(line, tuple(int(k) for k in mine))


def _leaks(case: Case) -> str:
    for spec, world in zip(case.known.envs, case.header["worlds"], strict=True):
        with closing(make_env(spec)) as env:
            solved = solutions(env, world["tasks"], case.known.seeds[0])
        told = case.entry["system"], world["tasks"], case.openings.telling, spec.split, solved
        if fault := leak_fault(*told):
            raise Rejected(fault)
    others = [p for p in sorted(case.path.parent.glob("*.yaml")) if p.name != case.path.name]
    for path in others:
        other = read_entry(path)
        same = other["trajectories"]["actions"] == case.entry["trajectories"]["actions"]
        if same and other["system"] != case.entry["system"]:
            raise Rejected(f"its transcripts are those of {other['entry']}")
    return f"no task in the configuration; transcripts differ from {len(others)} other entries"


def _ranks(case: Case) -> str:
    suite, name = case.entry["suite"], case.entry["entry"]
    folder = case.path.parent
    made = ranking(folder.name, folder.parent)
    row, rows = _row_of(made, suite["digest"], name)
    page = folder.parent / f"{folder.name}.yaml"
    if page.is_file():
        try:
            told, _ = _row_of(read_yaml(page).data, suite["digest"], name)
        except (ConfigError, LookupError, TypeError) as error:
            raise Rejected(f"{page} is damaged: {error}") from error
        if told is not None and (where := _apart(_ranked(told), _ranked(row), "")):
            raise Rejected(f"{page.name} wasn't made from the entries: {where}")
    tied = sum(other["rank"] == row["rank"] for other in rows) - 1
    return f"rank {row['rank']} of {len(rows)}" + (f", tied with {tied}" if tied else "")


def _row_of(made: Any, digest: str, name: str) -> tuple[Any, list[Any]]:
    rows: list[Any] = next((table["rows"] for table in made["tables"] if table["digest"] == digest), [])
    return next((row for row in rows if row["entry"] == name), None), rows


def _ranked(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "status"}


CHECKS: dict[str, Callable[[Case], str]] = {
    "schema": _schema,
    "suite": _suite,
    "protocol": _protocol,
    "digests": _digests,
    "episodes": _episodes,
    "numbers": _numbers,
    "replay": _replay,
    "search": _search,
    "leaks": _leaks,
    "ranks": _ranks,
}
UNVERIFIABLE = 20
CODES = {name: code for code, name in enumerate(CHECKS, start=10)}
