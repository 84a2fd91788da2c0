"""Scores shown: tables in the terminal, and a run's log with numbers by turn for its page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from turnbench.agents.core import Population
from turnbench.agents.turn_scores import Rated, show
from turnbench.envs.errors import ConfigError
from turnbench.leaderboards.cases import case_id
from turnbench.leaderboards.log import (
    NAME,
    VERSION,
    Episode,
    episode_line,
    has_log,
    json_line,
    read_episodes,
    read_header,
)
from turnbench.leaderboards.table import span

Strips = Mapping[str, Mapping[str, Sequence[float]]]
"""Numbers by turn: by the strip's name, with its unit in brackets, and a case's id (cases.py)."""


def drawn(rated: Mapping[str, Mapping[str, Rated]], names: Mapping[str, str]) -> Strips:
    """The strips of scorers; `names` says what each scorer's is called, and which have one."""
    return {
        names[scorer]: {case: numbers for case, (numbers, _) in values.items()}
        for scorer, values in rated.items()
        if scorer in names
    }


def by_strip(cases: Mapping[str, Mapping[str, Sequence[float]]]) -> Strips:
    """Strips from the numbers of each case by the strip's name."""
    strips: dict[str, dict[str, Sequence[float]]] = {}
    for case, named in cases.items():
        for name, numbers in named.items():
            strips.setdefault(name, {})[case] = numbers
    return strips


def refuse_other_run(run: Path, out: Path) -> None:
    """Raise ConfigError where a copy of a run's log would overwrite another run's."""
    mine = read_header(run) if run.is_dir() and has_log(run) else None
    if out.resolve() == run.resolve() or (has_log(out) and read_header(out) != mine):
        raise ConfigError(f"{out} holds a run of its own: choose another folder for the copy")


def write_shown(run: Path, out: Path, strips: Strips) -> None:
    """Write a copy of a run's log whose pages draw the strips under each path (`turnbench view OUT`).

    Raises ConfigError where that would overwrite a run.
    """
    refuse_other_run(run, out)
    out.mkdir(parents=True, exist_ok=True)
    fresh = out / f".{NAME}.new"
    with fresh.open("wb") as file:
        file.write(json_line({"turnbench_log": VERSION, **_without_version(read_header(run))}))
        for episode in read_episodes(run):
            population = _with_strips(episode, strips)
            file.write(episode_line(episode.key, population, episode.privileges, episode.seconds))
    fresh.replace(out / NAME)


def _without_version(header: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in header.items() if key != "turnbench_log"}


def _with_strips(episode: Episode, strips: Strips) -> Population:
    for k, path in enumerate(episode.population.trajectories):
        case = case_id(episode.key, k)
        for name, values in strips.items():
            if case in values:
                show(path, name, values[case])
    return episode.population


def score_table(told: Mapping[str, Any]) -> Table:
    """Scorers by what they are good for."""
    pools = told["best_of_n"]
    how = told["aggregation"]
    title = (
        f"{told['scored']} of {told['paths']} paths scored; {how['token']} over tokens, {how['turn']} over "
        f"turns; {pools['pools']} pools"
    )
    if pools["pools"]:
        sizes = pools["sizes"]
        title += f" of {sizes[0]}" + (f" to {sizes[-1]}" if len(sizes) > 1 else "")
    table = Table(title=title, title_justify="left")
    for name in ("scorer", "best-of-n success", "best-of-n return", "AUROC (95 %)", "Spearman", "AURC"):
        table.add_column(name, justify="left" if name == "scorer" else "right")
    for name, row in told["uncertainty"].items():
        best = pools["by_scorer"][name] or {}
        cells = [_cell(best.get("success")), _cell(best.get("return"))]
        table.add_row(name, *cells, _auroc(row), _number(row.get("spearman")), _number(row.get("aurc")))
    for name, what in (("mean of all attempts", "mean_at_n"), ("best attempt (oracle)", "oracle_at_n")):
        if "success" in pools.get(what, {}):
            table.add_row(name, _cell(pools[what]["success"]), "", "", "", "")
    return table


def attribution_table(told: Mapping[str, Any]) -> Table | None:
    """Rules by scorer; None where no case has a label."""
    rows = {name: rules for name, rules in told["attribution"].items() if rules}
    if not rows:
        return None
    cases = next(iter(rows.values()))["guessing"]["cases"]
    table = Table(title=f"attribution of {cases} labelled failures", title_justify="left")
    for name in ("scorer", "rule", "step accuracy", "agent accuracy", "error in steps"):
        table.add_column(name, justify="left" if name in ("scorer", "rule") else "right")
    for name, rules in rows.items():
        for rule, verdict in rules.items():
            if rule != "guessing":
                table.add_row(name, rule, *_verdict(verdict))
    table.add_row("guessing", "", *_verdict(next(iter(rows.values()))["guessing"]))
    return table


def choice_table(what: str, told: Mapping[str, Any], most: int) -> Table:
    """Options by their figures on the tasks that choose and on the others; the chosen ones are marked."""
    one, other = told["tasks"]
    title = f"{what}: {one} tasks choose (marked *), {other} tell"
    table = Table(title=title, title_justify="left")
    for name in (what, "AUROC, chooses", "tells", "best-of-n, chooses", "tells"):
        table.add_column(name, justify="left" if name == what else "right")
    rows = sorted(told["table"].items(), key=lambda row: -(row[1]["chooses"]["auroc"] or 0))
    for name, row in rows[:most]:
        cells = [
            _number(row[half][figure])
            + ("*" if half == "chooses" and told[figure]["chosen"] == name else "")
            for figure in ("auroc", "best_of_n")
            for half in ("chooses", "tells")
        ]
        table.add_row(name, *cells)
    return table


def _verdict(row: Mapping[str, Any]) -> list[str]:
    return [_number(row["step"]), _number(row["agent"]), _number(row["mae"])]


def _auroc(row: Mapping[str, Any]) -> str:
    if row.get("auroc") is None:
        return str(row.get("why", "-"))
    return f"{row['auroc']:.3f} ({span(*row['interval'])})"


def _cell(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "-"
    return f"{cell['mean']:.3f} ({span(*cell['interval'])})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
