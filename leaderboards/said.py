"""What models say of logged paths, kept in a file so that it can be gone on with.

A model's token measures are written down, so that every way to aggregate them is a function of one file;
of any other scorer, as a reward model or a judge, its numbers by turn and its score. Each model reads
every path once and is let go before the next is loaded.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from turnbench.agents import shipped_path
from turnbench.agents.readers import (
    Measured,
    Reader,
    Spec,
    fitted,
    load_tokenizer,
    read_fitted,
    reading,
    scribe_of,
)
from turnbench.agents.scorers import make_scorer
from turnbench.agents.spans import Pair
from turnbench.agents.transcripts import Form, Scribe, check_same_vocabulary
from turnbench.agents.turn_scores import Rated, TurnScorer, ask_apart, check_numbers
from turnbench.envs.errors import ConfigError, LogError, Unscored
from turnbench.envs.record import Trajectory
from turnbench.leaderboards.cases import Case
from turnbench.leaderboards.log import json_line
from turnbench.leaderboards.provenance import folder_digest
from turnbench.leaderboards.suite import digest_of

CHUNK = 64  # paths read, and written down, at once
FOLDERS = ("path", "merge", "model", "policy", "reference", "scorer")  # options that may name one
WHOLE = ("entropy", "certainty", "top")
Told = Callable[[str, int, int], None]


class Said(NamedTuple):
    """What one model said of cases, by their id; and why it could say nothing of the others."""

    found: dict[str, Measured]
    failed: dict[str, str]


class Measures:
    """The file of what models said of a source's paths. Without a folder nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.path = None if folder is None else folder / "measures.jsonl"
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def read(self, key: str) -> Said:
        """What a model has said already. Raises LogError; a torn last line is dropped."""
        said = Said({}, {})
        for row in self.rows(key):
            if "turns" in row:
                said.found[row["case"]] = Measured(row["turns"], int(row["cut"]))
            else:
                said.failed[row["case"]] = str(row["failure"])
        return said

    def rows(self, key: str) -> Iterator[Mapping[str, Any]]:
        """The rows under a key. Raises LogError; a torn last line is dropped."""
        return (row for row in self._all() if row["key"] == key)

    def _all(self) -> Iterator[Mapping[str, Any]]:
        if self.path is None or not self.path.is_file():
            return
        lines = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines[:-1], start=1):
            try:
                row = json.loads(line)
                {row["key"], row["case"]}
            except (ValueError, LookupError, TypeError) as error:
                raise LogError(f"{self.path} line {number} is damaged: delete the file") from error
            yield row
        if lines[-1]:
            with self.path.open("r+b") as file:
                file.truncate(sum(len(line) + 1 for line in lines[:-1]))

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows."""
        if self.path is not None and rows:
            with self.path.open("ab") as file:
                file.write(b"".join(map(json_line, rows)))


def reader_key(spec: Spec, text: Form, names: Sequence[str], writer: Spec | None) -> str:
    """What tells one model's measures from another's: checkpoints count by what they hold."""
    return digest_of([_model(spec), text, list(names), None if writer is None else _model(writer)])


def _model(spec: Spec) -> Any:
    return _contents({"path": spec} if isinstance(spec, str) else spec)


def _contents(spec: Any) -> Any:
    """A specification with what its folders hold in place of their names."""
    if isinstance(spec, Mapping):
        return {key: _contents(value) if key in FOLDERS else value for key, value in spec.items()}
    if isinstance(spec, str) and shipped_path(spec).is_dir():
        return folder_digest(shipped_path(spec))
    return spec


def say(
    spec: Spec,
    cases: Sequence[Case],
    kept: Measures,
    *,
    text: Form = "auto",
    names: Sequence[str] = (),
    writer: Spec | None = None,
    tell: Told = lambda name, done, total: None,
) -> Said:
    """What a model says of cases. What `kept` holds isn't asked again.

    `writer` is the model whose tokenizer made the ids that another one has read, so that both read the
    same. Raises ConfigError, ModelError where nothing can be read at all; what concerns one case alone
    is in `failed`.
    """
    key = reader_key(spec, text, names, writer)
    said = kept.read(key)
    todo = [c for c in cases if c.id not in said.found and c.id not in said.failed]
    if not todo:
        return said
    with reading(spec) as reader:
        scribe = scribe_of(reader, text)
        if writer is not None:
            tokenizer = load_tokenizer(tokenizer_folder(writer))
            check_same_vocabulary(tokenizer, reader.tokenizer)
            scribe = Scribe(tokenizer, reader.vocabulary, text)
        for start in range(0, len(todo), CHUNK):
            part = todo[start : start + CHUNK]
            _say_some(reader, scribe, part, names, said)
            kept.write([_row(key, case.id, said) for case in part])
            tell(reader.name, start + len(part), len(todo))
    return said


def tokenizer_folder(spec: Spec) -> str:
    """Where a model's tokenizer is."""
    return spec if isinstance(spec, str) else str(spec.get("tokenizer", spec.get("path", "")))


def _row(key: str, case: str, said: Said) -> dict[str, Any]:
    if case in said.failed:
        return {"key": key, "case": case, "failure": said.failed[case]}
    found = said.found[case]
    return {"key": key, "case": case, "turns": found.turns, "cut": found.cut}


def _say_some(
    reader: Reader, scribe: Scribe, cases: Sequence[Case], names: Sequence[str], said: Said
) -> None:
    texts: dict[str, tuple[list[Pair], int]] = {}
    for case in cases:
        try:
            texts[case.id] = fitted(reader, scribe, case.text)
        except Unscored as error:
            said.failed[case.id] = str(error)
    measured = read_fitted(reader, list(texts.values()), names) if texts else []
    for case_id, found in zip(texts, measured, strict=True):
        try:
            check_numbers(found.column("logprob"), reader.name)
            said.found[case_id] = found.rounded()  # as a file keeps it
        except Unscored as error:
            said.failed[case_id] = str(error)


def played(cases: Sequence[Case]) -> Said:
    """What the models that played said, as far as the log holds it."""
    said = Said({}, {})
    for case in cases:
        turns = case.path.turns
        if all(turn.tokens is not None and turn.tokens.logprobs for turn in turns):
            rows = [{"logprob": list(turn.tokens.logprobs)} for turn in turns if turn.tokens]
            said.found[case.id] = Measured(rows, 0)
        else:
            said.failed[case.id] = "the log has no log-probs of the model that played: name a policy"
    return said


def refuse_empty(said: Sequence[Said], cases: Sequence[Case]) -> None:
    """Raise ConfigError where no case could be read, with the commonest cause."""
    both = set.intersection(*({*one.found} for one in said)) if said else set()
    if cases and not both:
        causes = Counter(why for one in said for why in one.failed.values()).most_common(1)
        raise ConfigError(f"no path could be scored: {causes[0][0] if causes else 'nothing was read'}")


# --- other scorers --------------------------------------------------------------------------------


class Asked(NamedTuple):
    """What a scorer said of cases, by their id; and why it could say nothing of the others. `strip` is what
    pages call its numbers by turn."""

    name: str
    strip: str
    rated: dict[str, Rated]
    failed: dict[str, str]

    @property
    def silent(self) -> int:
        """Of how many cases a judge said nothing that could be read."""
        return sum(bool(numbers) and all(map(math.isnan, numbers)) for numbers, _ in self.rated.values())


def ask(
    spec: Spec,
    cases: Sequence[Case],
    kept: Measures,
    *,
    by_turn: bool = True,
    tell: Told = lambda name, done, total: None,
) -> Asked:
    """What a scorer says of cases, given as in a suite. What `kept` holds isn't asked again.

    Without `by_turn` scores alone are asked for, which may cost less. Raises ConfigError, ModelError,
    UnknownName, Unanswered; what concerns one case alone is in `failed`.
    """
    scorer: Any = make_scorer(spec)
    asked = Asked(*_names(spec, scorer), {}, {})
    key = digest_of([_contents(spec), by_turn])
    for row in kept.rows(key):
        _take(row, asked)
    todo = [c for c in cases if c.id not in asked.rated and c.id not in asked.failed]
    rng = np.random.default_rng(0)

    def rate(paths: Sequence[Trajectory]) -> list[Rated]:
        if by_turn and isinstance(scorer, TurnScorer):
            return scorer.rate(paths)
        return [([], score) for score in scorer.score(paths, rng)]

    for start in range(0, len(todo), CHUNK):
        part = todo[start : start + CHUNK]
        found = ask_apart(rate, [case.path for case in part])
        rows = [_told(key, case.id, one) for case, one in zip(part, found, strict=True)]
        kept.write(rows)
        for row in rows:
            _take(row, asked)
        tell(asked.name, start + len(part), len(todo))
    return asked


def _names(spec: Spec, scorer: Any) -> tuple[str, str]:
    name = spec if isinstance(spec, str) else getattr(scorer, "name", "") or str(spec["scorer"])
    name += " (oracle)" if scorer.oracle else ""
    return name, getattr(scorer, "strip", "") or name


def _told(key: str, case: str, found: Rated | Unscored) -> dict[str, Any]:
    if isinstance(found, Unscored):
        return {"key": key, "case": case, "failure": str(found)}
    numbers, score = found
    return {"key": key, "case": case, "numbers": [_plain(x) for x in numbers], "score": _plain(score)}


def _plain(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None


def _take(row: Mapping[str, Any], asked: Asked) -> None:
    """As it is read from the file, whether it was or not."""
    if "failure" in row:
        asked.failed[row["case"]] = str(row["failure"])
    else:
        numbers, score = [math.nan if x is None else float(x) for x in row["numbers"]], row["score"]
        asked.rated[row["case"]] = (numbers, -math.inf if score is None else float(score))
