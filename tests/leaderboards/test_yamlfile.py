import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from turnbench.envs.errors import ConfigError
from turnbench.leaderboards.yamlfile import (
    MAX_BYTES,
    MAX_DEPTH,
    Document,
    dump_yaml,
    parse_yaml,
    read_yaml,
    write_atomically,
)


def fault(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("a: 1\nb: 2\na: 3", 3, "twice"),
        ("a:\n  b: 1\n  b: 2", 3, "twice"),
        ("1: a\n'1': b", 2, "twice"),
        ("a: 1\nb: !!python/object/apply:os.system [echo]", 2, "!!python/object/apply:os.system"),
        ("a: !!python/name:os.system ''", 1, "!!python/name"),
        ("a: !mine x", 1, "!mine"),
        ("a: !!set {b}", 1, "!!set"),
        ("a: !!binary aGVsbG8=", 1, "!!binary"),
        ("!!python/object:os.x\na: 1", 1, "!!python/object:os.x"),
        ("? !!python/name:os.system x\n: 1", 1, "key"),
        ("a: &x [1]\nb: *x", 2, "aliases"),
        ("a: 1\n? [1]\n: 2", 2, "key"),
        ("a: .nan", 1, "finite"),
        ("a: 1\nb: 1e999", 2, "finite"),
        ("a: !!int ''", 1, "int"),
        ("a: !!bool perhaps", 1, "bool"),
        ("a: " + "9" * 5000, 1, "int"),
        ('a: 1\nb: "\\ud800"', 2, "UTF-8"),
        ("a: 1\nb: \x00", 2, "character"),
        ("a:\n\t- b", 2, "'\\t'"),
        ("a: [1, 2", 1, "flow sequence"),
        ("a: 1\n---\nb: 2", 2, "another document"),
        ("- a\n- b", 1, "mapping"),
        ("just words", 1, "mapping"),
        ("a: " + "[" * 60 + "]" * 60, 1, "deep"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, line: int, word: str) -> None:
    told = fault(text)
    assert told.startswith(f"f.yaml line {line}: ")
    assert word in told


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "\ufeff"])
def test_empty(text: str) -> None:
    assert "empty" in fault(text) or "mapping" in fault(text)


def test_billion_laughs_costs_nothing() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{k}: &a{k} [*a{k - 1}, *a{k - 1}]" for k in range(1, 200)]
    assert "aliases" in fault("\n".join(lines))


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 20_000])
def test_deep_nesting(depth: int) -> None:
    assert "deep" in fault("a: " + "[" * depth + "]" * depth)


def test_plain_words_are_those_of_yaml_1_2() -> None:
    text = "a: on\nb: 2026-01-01\nc: 3e-3\nd: 010\ne: 1:30\nf: true\ng: ~\nh: -4\ni: .5\nj: 1_000"
    data = parse_yaml(text, "f").data
    expected = ["on", "2026-01-01", 0.003, "010", "1:30", True, None, -4, 0.5, "1_000"]
    assert list(data.values()) == expected
    assert [type(v) for v in data.values()] == [type(v) for v in expected]


def test_byte_order_mark_and_odd_keys() -> None:
    assert parse_yaml("\ufeffa: 1\nnull: 2\ntrue: 3\n5: 4", "f").data == {
        "a": 1,
        "null": 2,
        "true": 3,
        "5": 4,
    }


def test_lines_of_keys_and_items() -> None:
    document = parse_yaml("a: 1\nb:\n  - x\n  - key: 1\n    c: 2\n", "f.yaml")
    assert document.lines[("b", 1, "c")] == 5
    assert document.lines[("b", 0)] == 3
    assert document.where(("b", 1, "c", "nothing")) == "f.yaml line 5"
    assert document.where(()) == "f.yaml line 1"


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    with pytest.raises(ConfigError, match="No such file"):
        read_yaml(path)
    with pytest.raises(ConfigError, match="directory"):
        read_yaml(tmp_path)
    path.write_bytes(b"a: 1\nb: \xff")
    with pytest.raises(ConfigError, match="line 2: not UTF-8"):
        read_yaml(path)
    path.write_bytes("a: 1".encode("utf-16"))
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_yaml(path)
    path.write_text("a: " + "x" * MAX_BYTES, encoding="utf-8")
    with pytest.raises(ConfigError, match="larger than"):
        read_yaml(path)
    path.write_bytes(b"\xef\xbb\xbfa: \xc3\xbc\r\n")
    assert read_yaml(path).data == {"a": "ü"}
    with pytest.raises(ConfigError, match="null"):
        read_yaml(Path("a\0b"))


@settings(max_examples=300, deadline=None)
@given(st.text() | st.text(alphabet="ab:-[]{}&*!<>|'\"#%@`\n\t ?,.~01e\\u", max_size=60))
def test_any_text_is_a_document_or_a_clear_error(text: str) -> None:
    try:
        document = parse_yaml(text, "f.yaml")
    except ConfigError as error:
        assert str(error).startswith("f.yaml")
    else:
        assert isinstance(document, Document) and isinstance(document.data, dict)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80))
def test_any_file_is_a_document_or_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    try:
        read_yaml(path)
    except ConfigError:
        pass


WORDS = st.text(alphabet="ab01.eE+-:#'\"{[&*!%~ \näß😀\u2028", max_size=8) | st.sampled_from(
    ["true", "null", "on", "~", "0x1f", "1e5", "12345678e1234", "2026-01-01", "1_0", "=", "<<", ".inf"]
)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(WORDS, PLAIN, max_size=4))
def test_what_is_written_reads_the_same(data: dict[str, Any]) -> None:
    assert parse_yaml(dump_yaml(data), "f").data == data


def test_text_that_looks_like_a_number_is_quoted() -> None:
    digest = "1234567890123e45"
    assert parse_yaml(dump_yaml({"code": digest, "date": "2026-01-01"}), "f").data == {
        "code": digest,
        "date": "2026-01-01",
    }


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    colour: str = "red"
    size: int = 1


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    inner: Inner = Inner()
    many: list[Inner] = []
    named: dict[str, Inner] = {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nam: x", ["line 1: the key 'name' is missing", "line 1: unknown key 'nam'; known: name"]),
        ("name: x\ninner:\n  colr: red", ["line 3: unknown key 'colr'; known: colour"]),
        ("name: x\nmany:\n  - size: 1\n  - siz: 1", ["line 4: unknown key 'siz'; known: size"]),
        ("name: x\nnamed:\n  a: {colour: x}\n  b: {colours: y}", ["line 4: unknown key 'colours'"]),
        ("name: x\ninner: {size: big}", ["line 2: inner.size: "]),
        ("name: 5", ["line 1: name: "]),
    ],
)
def test_models_name_line_and_neighbours(text: str, told: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f.yaml").validate(Outer)
    for part in told:
        assert f"f.yaml {part}" in str(caught.value)


def test_writing_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / ("n" * 200 + ".yaml")
    write_atomically(path, "old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError):
        write_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_floats_keep_their_digits() -> None:
    assert parse_yaml(dump_yaml({"a": math.pi, "b": 1e-300}), "f").data == {"a": math.pi, "b": 1e-300}
