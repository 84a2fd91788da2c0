"""Who&When's logs, read from a folder that the user has (docs/blame.md says from where).

    FOLDER/Hand-Crafted/1.json ...   FOLDER/Algorithm-Generated/1.json ...

Each file is one object with `question`, `ground_truth`, `history`, `mistake_agent`, `mistake_step` (text
that holds a number) and `mistake_reason`. Errors are ConfigErrors that name the file and the entry.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from turnbench.envs.blame_log import Log, plain_agent
from turnbench.envs.core import clean
from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.envs.record import Json, Outcome, Task, Trajectory, Turn

WHO_AND_WHEN = "who_and_when"
SUBSETS = {"hand_crafted": "Hand-Crafted", "algorithm_generated": "Algorithm-Generated"}


def read_who_and_when(data: str, subset: str | None = None) -> Iterator[Log]:
    """The logs of one subset or of both, in the order of their numbers."""
    if subset is not None and subset not in SUBSETS:
        raise UnknownName("Who&When subset", subset, SUBSETS)
    for name in SUBSETS if subset is None else (subset,):
        for path in _files(Path(data).expanduser(), name):
            yield _read(path, name)


def _files(folder: Path, subset: str) -> list[Path]:
    name = SUBSETS[subset]
    place = next((p for p in (folder / name, folder / "Who&When" / name) if p.is_dir()), None)
    found = sorted(place.glob("*.json"), key=_number) if place else []
    if not found:
        raise ConfigError(f"{folder / name} holds no logs; `data` is the folder with {name}/1.json ...")
    return found


def _number(path: Path) -> tuple[int, str]:
    digits = re.sub(r"\D", "", path.stem)
    return int(digits[:9] or 0), path.name


def _read(path: Path, subset: str) -> Log:
    try:
        row = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} can't be read: {error}") from error
    if not isinstance(row, dict):
        _fail(path, f"holds {type(row).__name__}, not an object")
    history = row.get("history")
    if not isinstance(history, list) or not history:
        _fail(path, "field 'history' must be a list of messages")
    said = [_message(path, k, entry) for k, entry in enumerate(history)]
    question = _text(path, row, "question")
    step = _step(path, row, len(said))
    return Log(
        f"{subset}-{path.stem}",
        question,
        _text(path, row, "ground_truth"),
        _trajectory(subset, path.stem, question, [content for _, content in said]),
        tuple(agent for agent, _ in said),
        plain_agent(_text(path, row, "mistake_agent")),
        step,
        _text(path, row, "mistake_reason") if "mistake_reason" in row else "",
    )


def _message(path: Path, number: int, entry: Any) -> tuple[str, str]:
    """Who spoke and what; the speaker is the name where there is one, else the role."""
    where = f"history[{number}]: "
    if not isinstance(entry, dict):
        _fail(path, f"{where}a message must be an object")
    role = _text(path, entry, "name" if "name" in entry else "role", where)
    return plain_agent(role), _text(path, entry, "content", where)


def _step(path: Path, row: Json, length: int) -> int:
    text = _text(path, row, "mistake_step").strip()
    if not re.fullmatch(r"[0-9]{1,9}", text):
        _fail(path, f"field 'mistake_step' must be a number, not {text[:40]!r}")
    if int(text) >= length:
        _fail(path, f"field 'mistake_step' is {text}, but the history has {length} steps")
    return int(text)


def _text(path: Path, row: Json, name: str, where: str = "") -> str:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        _fail(path, f"{where}field {name!r} must be text, not {type(value).__name__}")
    return clean(str(value))


def _fail(path: Path, why: str) -> NoReturn:
    raise ConfigError(f"{path}: {why}")


def _trajectory(subset: str, name: str, question: str, said: list[str]) -> Trajectory:
    """Each speaker saw what was said before, the first the question."""
    turns = tuple(Turn(seen, text, 0.0) for seen, text in zip([question, *said], said, strict=False))
    return Trajectory(Task(f"who_and_when/{subset}", name), turns, said[-1], Outcome.OK, success=False)
