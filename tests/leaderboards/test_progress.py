import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from turnbench.leaderboards import progress
from turnbench.leaderboards.progress import Show, duration, human
from turnbench.leaderboards.runner import run


def plain() -> tuple[Show, io.StringIO]:
    file = io.StringIO()
    return Show(Console(file=file, width=100)), file


def test_without_a_terminal_plain_lines(suite: Any, tmp_path: Path) -> None:
    show, file = plain()
    run(suite(), tmp_path, watcher=show)
    text = file.getvalue()
    assert "\x1b" not in text and "\r" not in text
    assert re.fullmatch(r"8/8  [\d.]+/s  one [\d.]+  288 tokens  \$0\.02\n", text)


def test_every_few_seconds_with_the_time_left(
    suite: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    show, file = plain()
    run(suite(), tmp_path, watcher=show)
    lines = file.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == [f"{k}/8" for k in range(1, 9)]
    assert all(line.endswith(" left") for line in lines[:-1]) and not lines[-1].endswith("left")


def test_a_resumption_says_so(suite: Any, tmp_path: Path) -> None:
    run(suite(), tmp_path)
    show, file = plain()
    run(suite(), tmp_path, watcher=show)
    assert file.getvalue() == "8 of 8 episodes are in the log already.\n"


def test_on_a_terminal_a_display_that_goes_away(suite: Any, tmp_path: Path) -> None:
    file = io.StringIO()
    console = Console(file=file, width=100, force_terminal=True)
    run(suite(options={"pause": 0.02}), tmp_path, watcher=Show(console))
    text = file.getvalue()
    assert "loading models" in text and "8/8" in text and "288 tokens" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor comes back


def test_each_kind_of_failure_is_told_once(suite: Any, tmp_path: Path) -> None:
    bad = ["env-step", "env-reset", "model-infra", "agent-raises"]
    show, file = plain()
    run(suite(bad, split="bad", seeds=[0, 1, 2]), tmp_path, watcher=show)
    lines = file.getvalue().splitlines()
    assert len(lines) == 5
    assert any(re.fullmatch(r"one, task model-infra, seed \d: infra_error: 503 .*", x) for x in lines)
    assert lines[-1].startswith("12/12") and lines[-1].endswith("9 missing")


def test_a_flood_of_failures_is_not(suite: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "TOLD_AT_MOST", 2)
    bad = ["env-step", "env-reset", "model-infra", "agent-raises"]
    show, file = plain()
    run(suite(bad, split="bad"), tmp_path, watcher=show)
    lines = file.getvalue().splitlines()
    assert len(lines) == 4 and lines[2] == "Further kinds of failure are in the log only."


def test_an_unknown_cost_is_said_to_be_unknown(suite: Any, tmp_path: Path) -> None:
    show, file = plain()
    run(suite(models={"echo": {"backend": "standins:Echo", "cost": None}}), tmp_path, watcher=show)
    assert "cost unknown" in file.getvalue()


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (950, "950"), (1000, "1k"), (12_345, "12.3k"), (4.56e6, "4.56M")]
)
def test_human(count: float, text: str) -> None:
    assert human(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (6000, "1.7 h")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
