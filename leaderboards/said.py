"""What models say of logged paths, kept in a file so that it can be gone on with.

A model's token measures are written down, so that every way to aggregate them is a function of one file;
of any other scorer, as a reward model or a judge, its numbers by turn and its score. Each model reads
every path once and is let go before the next is loaded.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
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
from turnbench.agents.sharing import FOLDERS
from turnbench.agents.spans import Pair
from turnbench.agents.transcripts import Form, Scribe, check_same_vocabulary
from turnbench.agents.turn_scores import Rated, TurnScorer, ask_apart, check_numbers
from turnbench.envs.errors import ConfigError, LogError, Unanswered, Unscored
from turnbench.envs.record import Trajectory
from turnbench.leaderboards.cases import Case
from turnbench.leaderboards.log import json_line
from turnbench.leaderboards.provenance import folder_digest
from turnbench.leaderboards.suite import digest_of

CHUNK = 64  # paths read, and written down, at once
WHOLE = ("entropy", "certainty", "top")
Told = Callable[[str, int, int], None]


class Said(NamedTuple):
    """What one model said of cases, by their id; and why it could say nothing of the others."""

    found: dict[str, Measured]
    failed: dict[str, str]


class Measures:
    """The file of what models and scorers said of paths. Without a folder nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.path = None if folder is None else folder / "measures.jsonl"
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def of(self, key: str, cases: Sequence[Case]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """(id of a case, what is there of it under a key). A path counts by what it holds, whatever its
        source calls it. Raises LogError; a torn last line is dropped."""
        rows = {row["path"]: row for row in self._rows() if row["key"] == key}
        for case in cases if rows else ():
            if (row := rows.get(path_digest(case))) is not None:
                yield case.id, row

    def write(self, key: str, told: Mapping[str, Mapping[str, Any]], cases: Sequence[Case]) -> None:
        """Append what is told of cases, by their id."""
        if self.path is not None and told:
            rows = [
                {"key": key, "path": path_digest(case), "case": case.id, **told[case.id]}
                for case in cases
                if case.id in told
            ]
            with self.path.open("ab") as file:
                file.write(b"".join(map(json_line, rows)))

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        if self.path is None or not self.path.is_file():
            return
        lines = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines[:-1], start=1):
            try:
                row = _checked(json.loads(line))
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise LogError(f"{self.path} line {number} is damaged: delete the file") from error
            yield row
        if lines[-1]:
            with self.path.open("r+b") as file:
                file.truncate(sum(len(line) + 1 for line in lines[:-1]))


def _checked(row: Any) -> Mapping[str, Any]:
    """A row as it was written. Raises ValueError, LookupError, TypeError, AttributeError."""
    {row["key"], row["path"], row.get("failure")}
    if "turns" in row:
        [[float(x) for x in column] for turn in row["turns"] for column in turn.values()]
        int(row["cut"])
    elif "numbers" in row:
        [x if x is None else float(x) for x in (*row["numbers"], row["score"])]
    elif not isinstance(row["failure"], str):
        raise TypeError("a failure is no text")
    return row  # type: ignore[no-any-return]


def path_digest(case: Case) -> str:
    """What tells one path from another: all that a model or scorer is shown of it."""
    path = case.path
    shown = (case.said, path.task, path.turns, path.final, path.outcome, path.failure, path.success)
    return hashlib.sha256(repr(shown).encode("utf-8", "replace")).hexdigest()[:16]


def reader_key(
    spec: Spec, text: Form, names: Sequence[str], writer: Spec | None, context: int | None = None
) -> str:
    """What tells one model's measures from another's: checkpoints count by what they hold."""
    parts = [_model(spec), text, list(names), None if writer is None else _model(writer)]
    return digest_of(parts if context is None else [*parts, context])


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
    context: int | None = None,
    tell: Told = lambda name, done, total: None,
) -> Said:
    """What a model says of cases. What `kept` holds isn't asked again.

    `writer` is the model whose tokenizer made the ids that another one has read, so that both read the
    same; `context` bounds what this one reads, as what it is compared with may hold less. Raises ConfigError, ModelError where nothing can be read at all; what concerns one case alone
    is in `failed`.
    """
    key = reader_key(spec, text, names, writer, context)
    said = Said({}, {})
    for case, row in kept.of(key, cases):
        if "failure" in row:
            said.failed[case] = str(row["failure"])
        else:
            said.found[case] = Measured(row["turns"], int(row["cut"]))
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
            _say_some(reader, scribe, part, names, context, said)
            kept.write(key, {case.id: _row(case.id, said) for case in part}, part)
            tell(reader.name, start + len(part), len(todo))
    return said


def tokenizer_folder(spec: Spec) -> str:
    """Where a model's tokenizer is."""
    return spec if isinstance(spec, str) else str(spec.get("tokenizer", spec.get("path", "")))


def _row(case: str, said: Said) -> dict[str, Any]:
    if case in said.failed:
        return {"failure": said.failed[case]}
    return said.found[case]._asdict()


def _say_some(
    reader: Reader,
    scribe: Scribe,
    cases: Sequence[Case],
    names: Sequence[str],
    context: int | None,
    said: Said,
) -> None:
    texts: dict[str, tuple[list[Pair], int]] = {}
    for case in cases:
        try:
            texts[case.id] = fitted(reader, scribe, case.text, context)
        except Unscored as error:
            said.failed[case.id] = str(error)
    told = ask_apart(lambda some: read_fitted(reader, some, names), [*texts.values()]) if texts else []
    for case_id, found in zip(texts, told, strict=True):
        if isinstance(found, Unscored):
            said.failed[case_id] = str(found)
        else:
            _take_measured(case_id, found.rounded(), ["logprob", *names], reader.name, said)


def _take_measured(case: str, found: Measured, names: Sequence[str], reader: str, said: Said) -> None:
    try:
        for name in names:
            check_numbers(found.column(name), reader, "log-prob" if name == "logprob" else name)
        said.found[case] = found
    except Unscored as error:
        said.failed[case] = str(error)


def played(cases: Sequence[Case]) -> Said:
    """What the models that played said, as far as the log holds it."""
    said = Said({}, {})
    for case in cases:
        turns = case.path.turns
        if all(turn.tokens is not None and turn.tokens.logprobs for turn in turns):
            rows = [{"logprob": list(turn.tokens.logprobs)} for turn in turns if turn.tokens]
            _take_measured(case.id, Measured(rows, 0), ["logprob"], "the log", said)
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
    pages call its numbers by turn; `steps` the decisive mistakes, where it names them."""

    name: str
    strip: str
    rated: dict[str, Rated]
    failed: dict[str, str]
    steps: dict[str, int | None]

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

    Without `by_turn` scores alone are asked for, which may cost less. Who can name decisive mistakes is
    asked for those of cases that have a label. Raises ConfigError, ModelError, UnknownName, Unanswered;
    what concerns one case alone is in `failed`.
    """
    scorer: Any = make_scorer(spec)
    asked = Asked(*_names(spec, scorer), {}, {}, {})
    key = digest_of([_contents(spec), by_turn])
    for case, row in kept.of(key, cases):
        _take(case, row, asked)
    todo = [c for c in cases if c.id not in asked.rated and c.id not in asked.failed]
    rng = np.random.default_rng(len(cases) - len(todo))
    for start in range(0, len(todo), CHUNK):
        part = todo[start : start + CHUNK]
        rows, lost = _rows_as_far(scorer, part, by_turn, rng)
        kept.write(key, rows, part)
        if lost is not None:
            raise lost
        for case, row in rows.items():
            _take(case, row, asked)
        tell(asked.name, start + len(part), len(todo))
    return asked


def _names(spec: Spec, scorer: Any) -> tuple[str, str]:
    name = spec if isinstance(spec, str) else getattr(scorer, "name", "") or str(spec["scorer"])
    name += " (oracle)" if scorer.oracle else ""
    return name, getattr(scorer, "strip", "") or name


def _rows_as_far(
    scorer: Any, cases: Sequence[Case], by_turn: bool, rng: np.random.Generator
) -> tuple[dict[str, dict[str, Any]], Unanswered | None]:
    """What is told of cases, as far as its model answers; and why not of all."""
    try:
        return _rows_of(scorer, cases, by_turn, rng), None
    except Unanswered as error:
        lost = error
    rows: dict[str, dict[str, Any]] = {}
    for case in cases:
        with suppress(Unanswered):
            rows |= _rows_of(scorer, [case], by_turn, rng)
    return rows, lost if len(rows) < len(cases) else None


def _rows_of(
    scorer: Any, cases: Sequence[Case], by_turn: bool, rng: np.random.Generator
) -> dict[str, dict[str, Any]]:
    def rate(paths: Sequence[Trajectory]) -> list[Rated]:
        if by_turn and isinstance(scorer, TurnScorer):
            return scorer.rate(paths)
        return [([], score) for score in scorer.score(paths, rng)]

    found = ask_apart(rate, [case.path for case in cases])
    rows = {case.id: _row_of(one) for case, one in zip(cases, found, strict=True)}
    failed = [case for case in cases if case.label is not None and case.success is not True]
    if failed and hasattr(scorer, "decisive"):
        named = scorer.decisive([case.path for case in failed])
        for case, step in zip(failed, named, strict=True):
            rows[case.id]["step"] = step
    return rows


def _row_of(found: Rated | Unscored) -> dict[str, Any]:
    if isinstance(found, Unscored):
        return {"failure": str(found)}
    numbers, score = found
    return {"numbers": [_plain(x) for x in numbers], "score": _plain(score)}


def _plain(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None


def _take(case: str, row: Mapping[str, Any], asked: Asked) -> None:
    """As it is read from the file, whether it was or not."""
    if "failure" in row:
        asked.failed[case] = str(row["failure"])
    else:
        numbers, score = [math.nan if x is None else float(x) for x in row["numbers"]], row["score"]
        asked.rated[case] = (numbers, -math.inf if score is None else float(score))
    if "step" in row:
        asked.steps[case] = row["step"]
