import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from turnbench.leaderboards.entry import entries_of
from turnbench.leaderboards.runner import run
from turnbench.leaderboards.table import span, table


def shown(entries: Any, width: int = 110) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(table(entries, width))
    return file.getvalue()


ROWS = {
    "a-rather-long-name": {"agent": "standins:Odd", "model": "echo"},
    "seer": {"agent": "best_of_n", "model": "echo", "n": 2, "scorer": "return"},
}


def test_a_whole_run(suite: Any, tmp_path: Path) -> None:
    run(suite(agents=ROWS), tmp_path)
    entries = entries_of(tmp_path)
    text = shown(entries)
    lines = {words[0]: words for line in text.splitlines() if (words := line.split())}
    assert text.splitlines()[0].strip() == "trial v1, echo"
    mean, (low, high) = entries[0]["score"]["mean"], entries[0]["score"]["ci95"]
    assert lines["seer"][1:3] == [f"{mean:.3f}", f"({low:.3f}-{high:.3f})"]
    assert lines["seer"][-5:] == ["8", "48", "576", "$0.05", "oracle"]
    assert lines["a-rather-long-name"][-1] == "-"


@pytest.mark.parametrize("width", [80, 100, 140])
def test_figures_are_whole_at_any_usual_width(suite: Any, tmp_path: Path, width: int) -> None:
    run(suite(agents=ROWS), tmp_path)
    entries = entries_of(tmp_path)
    text = shown(entries, width)
    assert "…" not in text and all(len(line) <= width for line in text.splitlines())
    for entry in entries:
        assert "{:.3f}-{:.3f}".format(*entry["score"]["ci95"]) in text


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (40, ["calls", "tokens", "cost", "episodes", "success"]),
        (60, ["calls", "tokens", "cost"]),
        (80, []),
    ],
)
def test_a_narrow_terminal_leaves_out_columns_and_says_so(
    suite: Any, tmp_path: Path, width: int, left_out: list[str]
) -> None:
    run(suite(agents=ROWS), tmp_path)
    entries = entries_of(tmp_path)
    lines = shown(entries, width).splitlines()
    assert all(len(line) <= width for line in lines) and not any("…" in line for line in lines)
    head = next(line for line in lines if "system" in line)
    for name in ("calls", "tokens", "cost", "episodes", "success", "used"):
        assert (name in head) != (name in left_out)
    for entry in entries:
        assert any("({:.3f}-{:.3f})".format(*entry["score"]["ci95"]) in line for line in lines)
    note = f"left out, as the terminal is {width} columns wide: {', '.join(left_out)}"
    assert (note in " ".join(" ".join(lines).split())) == bool(left_out)


def test_many_worlds_and_two_models_fit_as_well(suite: Any, spec: Any, tmp_path: Path) -> None:
    models = {"echo": {"backend": "standins:Echo"}, "dear": {"backend": "standins:Echo", "cost": None}}
    rows = {f"a-rather-long-{m}": {"agent": "standins:Odd", "model": m} for m in models}
    world = spec(2)["envs"][0]
    run(suite(envs=[world, {**world, "tasks": 1}], models=models, agents=rows), tmp_path)
    entries = entries_of(tmp_path)
    for width in range(40, 140, 5):
        lines = shown(entries, width).splitlines()
        assert all(len(line) <= width for line in lines) and not any("…" in line for line in lines)
    assert "World-v0, World-v0" not in shown(entries, 40)


def test_what_is_missing_left_or_broken_is_told(suite: Any, spec: Any, tmp_path: Path) -> None:
    good = spec(2)["envs"][0]
    bad = {**good, "split": "bad", "tasks": ["env-step", "model-infra", "agent-raises"]}
    run(suite(envs=[good, bad], seeds=[0]), tmp_path)
    text = " ".join(shown(entries_of(tmp_path)).split())
    assert "3/5" in text
    assert "one: 2 missing on standins:World-v0; 0.000 or 2.000 with these" in text
    assert "one: 1 ended by an error of the agent" in text
    assert "mean over environments" in text


def test_two_models_have_a_column(suite: Any, tmp_path: Path) -> None:
    models = {"echo": {"backend": "standins:Echo"}, "dear": {"backend": "standins:Echo", "cost": None}}
    rows = {m: {"agent": "standins:Odd", "model": m} for m in models}
    run(suite(models=models, agents=rows), tmp_path)
    text = shown(entries_of(tmp_path))
    assert "model" in text and text.splitlines()[0].strip() == "trial v1"
    assert "unknown" in text


def test_nothing_counted(suite: Any, tmp_path: Path) -> None:
    run(suite(["env-step"], split="bad", agents={"one": {"agent": "react", "model": "echo"}}), tmp_path)
    assert "0/2" in shown(entries_of(tmp_path))


def test_square_brackets_are_shown_as_they_are(suite: Any, tmp_path: Path) -> None:
    run(suite(), tmp_path)
    (entry,) = entries_of(tmp_path)
    entry["privileges"] = ["[red]x[/red]"]
    assert "[red]x[/red]" in shown([entry])


def test_a_negative_bound_does_not_run_into_the_dash():
    assert span(0.125, 0.5) == "0.125-0.500"
    assert span(-0.097, -0.009) == "-0.097 to -0.009"
