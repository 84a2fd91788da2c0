"""compare: which of several systems is better, and whether that is more than noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from rich import box
from rich.markup import escape
from rich.table import Table

from turnbench.envs.errors import ConfigError, LogError
from turnbench.leaderboards.cells import Cell, tally
from turnbench.leaderboards.log import NAME, difference, read_episodes, read_header
from turnbench.leaderboards.statistics import (
    Difference,
    Discordant,
    holm,
    mcnemar,
    mean,
    paired_bootstrap,
    tasks_needed,
)
from turnbench.leaderboards.suite import Suite
from turnbench.leaderboards.trajectories import read_trajectories, trajectory_header

LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Compared:
    """One system: its name, the worlds it played, and what it did in each."""

    name: str
    worlds: Any
    cells: Sequence[Cell]

    @property
    def score(self) -> float:
        """Mean over worlds of the mean return."""
        return sum(mean(cell.scores.lists()) for cell in self.cells) / len(self.cells)


class Verdict(NamedTuple):
    """Two systems on their common tasks. `p_holm` is corrected over all pairs shown together."""

    left: str
    right: str
    difference: Difference
    p_holm: float
    success: Discordant | None

    @property
    def word(self) -> str:
        """better, worse or tied: what may be said of the left one."""
        if self.p_holm > LEVEL:
            return "tied"
        return "better" if self.difference.delta > 0 else "worse"


def systems_of(path: Path) -> list[Compared]:
    """The systems of a run folder, of its log, or of a trajectory file. Raises LogError."""
    path = path.parent if path.name == NAME else path
    if path.is_dir():
        header, episodes = read_header(path), read_episodes(path)
    else:
        header = trajectory_header(path)[1]
        episodes = (episode for _, episode in read_trajectories(path))
    try:
        suite = Suite.model_validate(header["suite"])
    except (LookupError, ValidationError) as error:
        raise LogError(f"{path}: its header is damaged") from error
    worlds = [spec.model_dump(exclude={"tasks"}) for spec in suite.envs]
    cells = tally(episodes)
    rows = {name: [cells[name, k] for k in range(len(worlds))] for name in suite.agents}
    return [Compared(n, worlds, row) for n, row in rows.items() if all(cell.scores for cell in row)]


def compare(paths: Sequence[Path]) -> list[Verdict]:
    """Every pair of systems in these runs, best first. Raises ConfigError, LogError."""
    found = [(path, system) for path in paths for system in systems_of(path)]
    if len(found) < 2:
        raise ConfigError(f"two systems are needed to compare, and there are {len(found)}")
    for path, system in found[1:]:
        if system.worlds != found[0][1].worlds:
            where = difference(found[0][1].worlds, system.worlds, "envs")
            raise ConfigError(f"{path} holds another measurement than {found[0][0]}: {where}")
    ordered = sorted(_named(found), key=lambda system: -system.score)
    pairs = list(combinations(ordered, 2))
    try:
        differences = [paired_bootstrap(_scores(a), _scores(b)) for a, b in pairs]
    except ValueError as error:
        raise ConfigError("two of these systems have no task in common") from error
    adjusted = holm([d.p for d in differences])
    return [
        Verdict(a.name, b.name, d, p, _success(a, b))
        for (a, b), d, p in zip(pairs, differences, adjusted, strict=True)
    ]


def _named(found: Sequence[tuple[Path, Compared]]) -> list[Compared]:
    """The systems, with the run's name where one row stands in several runs."""
    names = [system.name for _, system in found]
    return [
        Compared(f"{s.name} ({path.name})" if names.count(s.name) > 1 else s.name, s.worlds, s.cells)
        for path, s in found
    ]


def _scores(system: Compared) -> list[dict[str, list[float]]]:
    return [cell.scores.lists() for cell in system.cells]


def _success(left: Compared, right: Compared) -> Discordant | None:
    """McNemar's test over the tasks of all worlds; None where one doesn't tell success."""
    if not all(cell.tells_success for cell in [*left.cells, *right.cells]):
        return None
    return mcnemar(_wins(left), _wins(right))


def _wins(system: Compared) -> Mapping[str, Mapping[int, bool]]:
    return {
        f"{k} {task}": of_task
        for k, cell in enumerate(system.cells)
        for task, of_task in cell.wins.items()
    }


def comparison_table(verdicts: Sequence[Verdict]) -> Table:
    """One row a pair: the difference with its interval, p-values, and what may be said."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption_justify="left")
    for name in ("pair", "difference (95 %)", "p", "p Holm", "success only in", "p McNemar", "verdict"):
        made.add_column(name, justify="left" if name in ("pair", "verdict") else "right")
    for v in verdicts:
        d, s = v.difference, v.success
        cells = [
            f"{v.left} - {v.right}",
            f"{d.delta:+.3f} ({d.interval.low:+.3f} to {d.interval.high:+.3f})",
            _p(d.p),
            _p(v.p_holm),
            "-" if s is None else f"{s.left_only} : {s.right_only}",
            "-" if s is None else _p(s.p),
            v.word,
        ]
        made.add_row(*map(escape, cells))
    made.caption = escape("\n".join(_notes(verdicts)))
    return made


def _p(p: float) -> str:
    return "<.001" if p < 0.001 else f"{p:.3f}"


def _notes(verdicts: Sequence[Verdict]) -> list[str]:
    tasks = sorted({v.difference.tasks for v in verdicts})
    notes = [
        f"paired bootstrap over {' or '.join(map(str, tasks))} common tasks; tied: noise could explain it"
    ]
    spread = max(v.difference.sd for v in verdicts)
    if spread > 0:
        needs = (f"{tasks_needed(x, spread):,} for {x:g}" for x in (0.1, 0.05, 0.02))
        notes.append(f"tasks needed to tell a difference with 80 % power: {', '.join(needs)}")
    return notes
