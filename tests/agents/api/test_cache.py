"""The response cache by itself: persistence, concurrency, damage, explanations."""

import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnbench.agents.cache import ResponseCache, _key
from turnbench.envs.errors import ConfigError


def request(**changes: Any) -> dict[str, Any]:
    messages = [["system", "You play."], ["user", "Goal: craft stick."]]
    base = {"model": "m", "messages": messages, "temperature": 1.0, "seed": 0, "extra": {}}
    return base | changes


def test_answers_outlive_the_object(tmp_path: Path) -> None:
    first = ResponseCache(tmp_path / "new" / "folder")
    first.put(request(), "é 😀 \ud83d".encode("utf-8", "replace").decode())
    first.close()
    second = ResponseCache(tmp_path / "new" / "folder")
    assert second.get(request()) == "é 😀 ?"
    assert second.get(request(seed=1)) is None
    second.close()


TEXT = st.text(st.characters(), max_size=6)  # lone surrogates too
MESSAGES = st.lists(st.tuples(TEXT, TEXT).map(list), max_size=3)
REQUEST = st.fixed_dictionaries({"messages": MESSAGES, "seed": st.integers(), "extra": st.none() | TEXT})


@given(REQUEST, REQUEST)
def test_keys_are_equal_exactly_where_requests_are(left: Any, right: Any) -> None:
    assert (_key(left) == _key(right)) == (left == right)
    assert _key(left) == _key(dict(reversed(left.items())))


def test_many_threads(tmp_path: Path) -> None:
    cache = ResponseCache(tmp_path)

    def work(start: int) -> None:
        for seed in range(start, start + 50):
            cache.put(request(seed=seed), str(seed))
            assert cache.get(request(seed=seed)) == str(seed)

    threads = [threading.Thread(target=work, args=(50 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [cache.get(request(seed=seed)) for seed in range(200)] == [str(s) for s in range(200)]
    cache.close()


SCRIPT = """
import sys
from turnbench.agents.cache import ResponseCache
cache = ResponseCache(sys.argv[1])
start = int(sys.argv[2])
for seed in range(start, start + 100):
    cache.put({"seed": seed}, str(seed))
cache.close()
"""


def test_several_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(tmp_path)]
    processes = [subprocess.Popen([*command, str(100 * k)]) for k in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    cache = ResponseCache(tmp_path)
    assert [cache.get({"seed": seed}) for seed in range(300)] == [str(s) for s in range(300)]
    cache.close()


@pytest.mark.parametrize("damage", [b"", b"garbage", None, "text", "flip", 7])
def test_a_damaged_entry_is_a_miss_with_a_warning(tmp_path: Path, damage: Any) -> None:
    cache = ResponseCache(tmp_path)
    cache.put(request(), "the answer")
    db = sqlite3.connect(cache.path)
    if damage == "flip":
        (blob,) = db.execute("SELECT answer FROM answers").fetchone()
        damage = blob[:5] + bytes([blob[5] ^ 1]) + blob[6:]
    db.execute("UPDATE answers SET answer = ?", (damage,))
    db.commit()
    db.close()
    with pytest.warns(UserWarning, match="damaged entry"):
        assert cache.get(request()) is None
    with pytest.warns(UserWarning, match="damaged entry"):
        assert cache.explain(request()) == "stored, but the answer is damaged"
    cache.put(request(), "again")
    assert cache.get(request()) == "again"
    cache.close()


def test_a_file_that_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "responses.sqlite3").write_bytes(b"not a database" * 100)
    with pytest.raises(ConfigError, match="responses.sqlite3.*use another folder"):
        ResponseCache(tmp_path)
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(ConfigError, match="response cache"):
        ResponseCache(tmp_path / "file")


def test_another_version_is_refused(tmp_path: Path) -> None:
    ResponseCache(tmp_path).close()
    db = sqlite3.connect(tmp_path / "responses.sqlite3")
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(ConfigError, match="version 99, not 1"):
        ResponseCache(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_close_leaves_no_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    cache = ResponseCache(tmp_path)
    cache.put(request(), "x")
    cache.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_answer_that_cannot_be_stored_is_a_warning(tmp_path: Path) -> None:
    cache = ResponseCache(tmp_path)
    cache._db.execute("PRAGMA query_only=ON")
    with pytest.warns(UserWarning, match="answer not stored"):
        cache.put(request(), "x")
    cache.close()


# --- explanations -----------------------------------------------------------------------------------


def test_explanations_name_the_nearest_and_what_differs(tmp_path: Path) -> None:
    cache = ResponseCache(tmp_path)
    assert cache.explain(request()).startswith("not stored") and "empty" in cache.explain(request())
    cache.put(request(model="other", temperature=0.3, seed=9), "far")
    cache.put(request(), "near")
    assert cache.explain(request()) == "stored: the next look-up is a hit"
    told = cache.explain(request(temperature=0.7))
    assert "of 2 requests" in told and told.endswith("differs in temperature (asked 0.7, stored 1.0)")
    told = cache.explain(request(messages=[["system", "You play."], ["user", "Goal: craft torch."]]))
    assert "messages[1] from character 18 on" in told and "torch" in told and "stick" in told
    told = cache.explain(request(messages=[["system", "You play."]], seed=4))
    assert "messages[1] from character 0 on (asked '', stored 'user: Goal" in told
    assert "seed (asked 4, stored 0)" in told
    told = cache.explain(request(new_field=1))
    assert "new_field (asked 1, stored None)" in told
    cache.close()


def test_the_longest_common_conversation_is_nearest(tmp_path: Path) -> None:
    cache = ResponseCache(tmp_path)
    talk = [["user", f"turn {k}"] for k in range(6)]
    for k in (1, 4, 2):
        cache.put(request(messages=[*talk[:k], ["user", f"changed {k}"], *talk[k + 1 :]]), "x")
    assert "messages[4]" in cache.explain(request(messages=talk))
    cache.close()
