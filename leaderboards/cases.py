"""Cases: paths to be scored after the fact - a run's, a trajectory file's, or anybody's conversations.

A file of conversations is JSON Lines, or a folder of Who&When's files, one JSON object each:

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "...", "name": "..."}],
     "task": "...", "success": true, "mistake_step": 3, "mistake_agent": "..."}

All keys but `messages` may be left out. Who&When's `history` stands for `messages`: each message in it
is a step, but for what people asked first. Steps are messages, counted from 0.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from turnbench.agents.attribution import Label
from turnbench.agents.model import Message
from turnbench.agents.transcripts import Conversation
from turnbench.envs.errors import LogError
from turnbench.envs.record import Outcome, Task, Trajectory, Turn
from turnbench.leaderboards.log import Episode, Key, existing, read_episodes
from turnbench.leaderboards.trajectories import read_trajectories

MAX_BYTES = 64 * 2**20  # of one line or file of conversations


class Case(NamedTuple):
    """A path with what is known of it. Cases of one `pool` are what best-of-N chooses among; cases of one
    `task` depend on each other. `said` is a foreign conversation; `speakers` has who acted, by turn.
    """

    id: str
    pool: str
    task: str
    split: str
    path: Trajectory
    said: Conversation | None = None
    success: bool | None = None
    label: Label | None = None
    speakers: tuple[str, ...] = ()

    @property
    def text(self) -> Trajectory | Conversation:
        """What is read."""
        return self.path if self.said is None else self.said


class Cases(NamedTuple):
    """The cases that can be scored, and how many can't: their world or server failed, or nothing was
    played."""

    cases: list[Case]
    skipped: int


def read_cases(source: Path) -> Cases:
    """The cases of a run folder, a trajectory file (.jsonl.gz), a JSON Lines file of conversations, or a
    folder of Who&When's files. Raises LogError.
    """
    if existing(source).is_dir() and (source / "log.jsonl").is_file():
        found = list(_of_run(read_episodes(source)))
    elif source.is_dir():
        files = sorted(source.glob("*/*.json")) or sorted(source.glob("*.json"))
        names = [path.relative_to(source).with_suffix("").as_posix() for path in files]
        found = [
            _of_row(_json(path.read_bytes(), str(path)), name, str(path))
            for path, name in zip(files, names, strict=True)
        ]
    elif source.suffix == ".gz":
        found = list(_of_run(episode for _, episode in read_trajectories(source)))
    elif source.is_file():
        found = list(_of_lines(source))
    else:
        raise LogError(f"{source} is neither a run folder nor a file of conversations")
    good = [case for case in found if case.path.turns and not case.path.missing]
    if not good:
        raise LogError(f"{source} holds no path that could be scored")
    return Cases(good, len(found) - len(good))


def _of_run(episodes: Iterable[Episode]) -> Iterator[Case]:
    """One case a path. Episodes of a single path are pooled over seeds."""
    for key, _, _, _, population in episodes:
        task = f"{key.env}/{key.task}"
        paths = population.trajectories
        pool = f"{key.agent}/{task}" + (f"/{key.seed}" if len(paths) > 1 else "")
        for k, path in enumerate(paths):
            name = case_id(key, k)
            label = _label(path.info.get("label"), len(path.turns), name)
            yield Case(name, pool, task, path.task.split, path, None, path.success, label)


def case_id(key: Key, path: int) -> str:
    """The id of an episode's path."""
    return f"{key.agent}/{key.env}/{key.task}/{key.seed}/{path}"


def _label(row: Any, turns: int, where: str) -> Label | None:
    if row is None:
        return None
    step = row.get("step") if isinstance(row, dict) else None
    if type(step) is not int or not 0 <= step < turns:
        raise LogError(f"{where}: its label is {row!r:.60}; a step from 0 to {turns - 1} is wanted")
    return Label(step, str(row.get("agent", "")))


def _of_lines(path: Path) -> Iterator[Case]:
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_BYTES + 1), b""), start=1):
            if line.strip():
                where = f"{path} line {number}"
                yield _of_row(_json(line, where), str(number), where)


def _json(text: bytes, where: str) -> dict[str, Any]:
    if len(text) > MAX_BYTES:
        raise LogError(f"{where} is longer than {MAX_BYTES:,} bytes")
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LogError(f"{where} is no JSON: {error}") from error
    if not isinstance(row, dict):
        raise LogError(f"{where} is no JSON object")
    return row


def _of_row(row: dict[str, Any], name: str, where: str) -> Case:
    foreign = "history" in row
    rows = row.get("history") if foreign else row.get("messages")
    if not isinstance(rows, list) or not all(_is_message(m) for m in rows):
        raise LogError(f"{where}: messages with a role and a content are wanted")
    steps = [k for k, m in enumerate(rows) if _is_step(k, m, foreign) and m["content"].strip()]
    roles = [_role(m["role"], k in steps, foreign) for k, m in enumerate(rows)]
    words = tuple(Message(role, m["content"]) for role, m in zip(roles, rows, strict=True))
    said = Conversation(words, tuple(steps))
    task = str(row.get("task", row.get("question_ID", row.get("id", name))))
    success = row.get("success", row.get("is_correct", False if foreign else None))
    if success is not None and not isinstance(success, bool):
        raise LogError(f"{where}: success is {success!r}; true, false or nothing is wanted")
    label = None
    if row.get("mistake_step") is not None:
        at = _whole(row["mistake_step"], where)
        if not 0 <= at < len(rows):
            raise LogError(f"{where}: mistake_step is {at}, but there are {len(rows)} messages")
        place = min(sum(k < at for k in steps), len(steps) - 1)  # what is no step: the one behind it
        label = Label(place, str(row.get("mistake_agent", "")))
    speakers = tuple(_speaker(rows[k]) for k in steps)
    path = folded(said, Task("conversation", task))
    return Case(name, task, task, "", path, said, success, label, speakers)


def _whole(value: Any, where: str) -> int:
    """A whole number; Who&When writes it as text."""
    try:
        if isinstance(value, str | int) and not isinstance(value, bool):
            return int(value)
    except ValueError:
        pass
    raise LogError(f"{where}: mistake_step is {value!r}, no whole number")


def _is_message(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and isinstance(row.get("content"), str)
        and isinstance(row.get("role"), str)
    )


def _is_step(at: int, row: dict[str, Any], foreign: bool) -> bool:
    """In Who&When every message is a step but for the first, where people asked."""
    return not (at == 0 and row["role"] == "human") if foreign else row["role"] == "assistant"


def _role(role: str, step: bool, foreign: bool) -> str:
    """Chat templates know few roles, and take a step for the assistant's."""
    return ("assistant" if step else "user") if foreign else role


def _speaker(row: dict[str, Any]) -> str:
    """Who&When names speakers, or has them as roles, with remarks in brackets behind the name."""
    return str(row.get("name") or row["role"].partition(" (")[0])


def folded(said: Conversation, task: Task) -> Trajectory:
    """A conversation as turns: what stands between two actions is the observation."""
    turns, heard = [], list[str]()
    for k, message in enumerate(said.messages):
        if k in said.actions:
            turns.append(Turn("\n".join(heard), message.content, 0.0))
            heard = []
        else:
            heard.append(message.content)
    return Trajectory(task, tuple(turns), "\n".join(heard), Outcome.OK)


def speakers_of(case: Case) -> tuple[str, ...]:
    """Who acted, by turn; one nameless agent where nobody is named."""
    return case.speakers or ("",) * len(case.path.turns)
