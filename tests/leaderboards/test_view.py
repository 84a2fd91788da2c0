import http.client
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from turnbench.envs.errors import LogError
from turnbench.leaderboards import pages
from turnbench.leaderboards.log import NAME, read_episodes, read_header, read_places
from turnbench.leaderboards.pages import run_index, run_page
from turnbench.leaderboards.runner import run
from turnbench.leaderboards.submit import submit
from turnbench.leaderboards.suite import Suite
from turnbench.leaderboards.view import run_folder, server


@pytest.fixture
def folder(suite: Any, tmp_path: Path) -> Path:
    run(suite(), tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def ask(folder: Path) -> Iterator[Any]:
    with server(folder) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()

        def get(path: str, **headers: str) -> tuple[int, Any, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", made.server_port, timeout=10)
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            found = answer.status, answer.headers, answer.read()
            connection.close()
            return found

        yield get
        made.shutdown()


def test_the_index_finds_every_episode(folder: Path) -> None:
    index, _ = run_index(Suite.model_validate(read_header(folder)["suite"]), read_places(folder))
    log = (folder / NAME).read_bytes()
    columns = index["columns"]
    for k, episode in enumerate(read_episodes(folder)):
        row = json.loads(log[columns["at"][k] : columns["at"][k] + columns["size"][k]])
        assert tuple(row["key"]) == episode.key
        assert index["tasks"][columns["task"][k]] == episode.key.task
        assert columns["ret"][k] == episode.population.best.ret
    assert len(columns["at"]) == 8


def test_an_episode_played_again_is_listed_once(folder: Path) -> None:
    lines = (folder / NAME).read_bytes().splitlines(keepends=True)
    (folder / NAME).write_bytes(b"".join([*lines, lines[1]]))
    index, _ = run_index(Suite.model_validate(read_header(folder)["suite"]), read_places(folder))
    assert len(index["columns"]["at"]) == 8 and index["columns"]["at"][-1] == sum(map(len, lines))


def test_byte_ranges_of_the_log_and_nothing_else(ask: Any, folder: Path) -> None:
    log = (folder / NAME).read_bytes()
    code, headers, body = ask(f"/{NAME}", Range="bytes=5-99")
    assert code == 206 and body == log[5:100] and headers["X-Content-Type-Options"] == "nosniff"
    for wrong in ("", "bytes=-5", "bytes=9-5", f"bytes=0-{len(log)}", "bytes=0-1,3-4", "lines=0-1"):
        assert ask(f"/{NAME}", Range=wrong)[0] == 416
    for path in ("/.lock", "/../run/log.jsonl", "/%2e%2e/", "//etc/passwd", "/log.jsonl?x"):
        assert ask(path)[0] == 404


def test_another_name_for_this_machine_is_refused(ask: Any) -> None:
    assert ask("/", Host="evil.example.org")[0] == 403
    assert ask("/")[0] == 200


def test_the_page_allows_its_own_script_only(folder: Path) -> None:
    text = run_page(folder, embed=True)
    (rule,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert "default-src &#39;none&#39;" in rule and "unsafe" not in rule and "sha256-" in rule
    assert "http:" not in text.replace("http://www.w3.org/2000/svg", "") and "src=" not in text


def test_a_run_too_large_for_one_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_EMBEDDED", 100)
    with pytest.raises(LogError, match="turnbench view"):
        run_page(folder, embed=True)


def test_a_trajectory_file_is_shown_like_its_run(folder: Path, tmp_path: Path) -> None:
    about = {"submitter": {"name": "x"}, "code_url": "https://example.org/", "notes": "n"}
    (entry,) = submit(folder, tmp_path / "out", about)
    file = tmp_path / "out" / entry["trajectories"]["file"]["name"]
    with run_folder(file) as unpacked:
        mine = [episode.key for episode in read_episodes(unpacked)]
    assert mine == [episode.key for episode in read_episodes(folder)] and not unpacked.exists()
    file.write_bytes(b"no gzip")
    with pytest.raises(LogError, match="no whole gzip file"), run_folder(file):
        pass


def test_a_vocabulary_becomes_words(tmp_path: Path) -> None:
    document = {
        "model": {"vocab": {"Ġcraft": 0, "Ċ": 2}},
        "added_tokens": [{"content": "<eos>", "id": 3}],
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    spec = {"backend": "hf", "path": str(tmp_path)}
    assert pages.vocabulary(spec) == [" craft", None, "\n", "<eos>"]
    (tmp_path / "tokenizer.json").write_text("[]", encoding="utf-8")
    assert pages.vocabulary(spec) is None and pages.vocabulary({"backend": "api"}) is None
