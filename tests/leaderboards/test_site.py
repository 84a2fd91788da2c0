import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from turnbench.envs.errors import BoardError
from turnbench.leaderboards.board import read_entry, write_entries
from turnbench.leaderboards.runner import run
from turnbench.leaderboards.site import build_site, command, plot
from turnbench.leaderboards.submit import submit
from turnbench.leaderboards.yamlfile import dump_yaml

ROWS = {
    "search": {"agent": "amc", "model": "echo", "n": 4, "resample_at": [1]},
    "plain": {"agent": "react", "model": "echo"},
}


@pytest.fixture
def boards(suite: Any, tmp_path: Path) -> Path:
    run(suite(6, agents=ROWS), tmp_path / "run")
    entries = submit(tmp_path / "run", tmp_path / "out", {"submitter": {"name": "Ada"}})
    write_entries(entries, tmp_path / "boards")
    return tmp_path / "boards"


def test_every_page_and_every_link_is_there(boards: Path, tmp_path: Path) -> None:
    pages = build_site(boards, tmp_path / "site", tmp_path / "out")
    assert len(pages) == 4 and pages[-1].name == "index.html"
    for page in [*pages, *(tmp_path / "site").rglob("run.html")]:
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r'href="([^"#]+)', text):
            assert (page.parent / link).exists(), f"{page}: {link}"
        assert "Content-Security-Policy" in text and "<script src" not in text
    assert len(list((tmp_path / "site").rglob("run.html"))) == 2


def test_every_score_leads_to_its_entry_and_its_command(boards: Path, tmp_path: Path) -> None:
    build_site(boards, tmp_path / "site")
    board = (tmp_path / "site/trial.html").read_text(encoding="utf-8")
    for path in (boards / "trial").glob("*.yaml"):
        entry = read_entry(path)
        assert board.count(f'href="trial/{entry["entry"]}.html') >= 4
        page = (tmp_path / "site/trial" / f"{entry['entry']}.html").read_text(encoding="utf-8")
        assert command(entry) in page and f"{entry['score']['mean']:.3f}" in page
        copied = tmp_path / "site/trial" / path.name
        assert copied.read_bytes() == path.read_bytes()


def test_what_a_submitter_writes_is_escaped(boards: Path, tmp_path: Path) -> None:
    attack = "<script>window.pwned = 1</script>"
    for path in (boards / "trial").glob("*.yaml"):
        entry = read_entry(path)
        entry["notes"] = entry["submitter"]["org"] = attack
        entry["system"]["model"]["name"] = entry["system"]["options"]["x"] = attack
        path.write_text(dump_yaml(entry), encoding="utf-8")
    build_site(boards, tmp_path / "site")
    for page in (tmp_path / "site").rglob("*.html"):
        assert "<script>window.pwned" not in page.read_text(encoding="utf-8")
    assert "&lt;script&gt;window.pwned" in (tmp_path / "site/trial.html").read_text(encoding="utf-8")


def test_a_log_too_large_for_one_file_lies_beside_its_page(
    boards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnbench.leaderboards.site.MAX_EMBEDDED", 10)
    build_site(boards, tmp_path / "site", tmp_path / "out")
    folders = [page.parent for page in (tmp_path / "site").rglob("run.html")]
    assert len(folders) == 2 and all((folder / "log.jsonl").is_file() for folder in folders)


def test_no_boards_is_said(tmp_path: Path) -> None:
    with pytest.raises(BoardError, match="holds no entries"):
        build_site(tmp_path / "none", tmp_path / "site")


def test_a_plot_puts_more_to_the_right_and_better_higher() -> None:
    rows = [
        {"tokens": t, "score": {"mean": s, "ci95": [s - 0.1, s + 0.1]}}
        for t, s in ((10, 0.2), (900, 0.9))
    ]
    rows.append({"tokens": 0, "score": {"mean": 0.5, "ci95": [0.5, 0.5]}})
    made = plot(rows, "tokens", "tokens")
    (a, b), out = made["points"], made["left_out"]
    assert a["x"] < b["x"] and a["y"] > b["y"] and a["high"] < a["y"] < a["low"] and out == 1
    same = plot([rows[0], rows[0]], "tokens", "tokens")["points"]
    assert same[0] == same[1]
    assert plot([], "cost", "US dollars")["points"] == []


def test_the_site_needs_nothing_heavy(boards: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nfor name in ('torch', 'transformers', 'openai', 'scipy'): sys.modules[name] = None\n"
        "from pathlib import Path; from turnbench.leaderboards.site import build_site\n"
        "build_site(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(boards), str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
