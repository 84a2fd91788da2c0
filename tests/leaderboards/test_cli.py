import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from turnbench.agents.turn_scores import AGGREGATES
from turnbench.leaderboards.cli import app
from turnbench.leaderboards.log import NAME
from turnbench.leaderboards.yamlfile import dump_yaml, read_yaml

COMMANDS = [
    "score",
    "references",
    "threshold",
    "credit",
    "list",
    "check",
    "play",
    "run",
    "board",
    "compare",
    "submit",
    "verify",
    "view",
    "site",
    "schema",
    "train",
    "credit",
]


class Command:
    """Runs commands in this process, in a folder of their own."""

    def __init__(
        self, folder: Path, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
    ) -> None:
        self.folder, self.capture, self.patch = folder, capture, patch

    def __call__(self, *arguments: str, typed: str = "") -> tuple[int, str, str]:
        from turnbench.leaderboards import cli

        words = iter(typed.splitlines())

        def answer(prompt: str) -> str:
            try:
                return next(words)
            except StopIteration:
                raise EOFError from None

        self.patch.setattr("builtins.input", answer)
        self.patch.setattr(sys, "argv", ["turnbench", *arguments])
        self.patch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = self.capture.readouterr()
        assert "Traceback" not in err
        return int(left.value.code or 0), out, err


@pytest.fixture
def turn(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(tmp_path, capsys, monkeypatch)


@pytest.fixture
def trial(spec: Any, tmp_path: Path) -> str:
    (tmp_path / "trial.yaml").write_text(dump_yaml(spec()), encoding="utf-8")
    return "trial.yaml"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(turn: Command, command: str) -> None:
    code, out, _ = turn(command, "--help")
    assert code == 0 and f"Example: turnbench {command}" in out


@pytest.mark.parametrize("command", ["score", "references", "threshold"])
def test_help_names_every_way_to_aggregate(turn: Command, command: str) -> None:
    _, out, _ = turn(command, "--help")
    for option in ("--token", "--running" if command == "threshold" else "--turn"):
        told = " ".join(out.partition(f"{option} <")[2].partition("[default")[0].split())
        names = told.partition(":")[2].replace(" or ", ", ").split(",")
        assert {name.strip() for name in names} == {*AGGREGATES}


def test_no_command_is_cut_short_in_the_list(turn: Command) -> None:
    _, out, _ = turn("--help")
    assert "..." not in out.partition("Commands:")[2]


def test_help_names_every_command_and_exit_code(turn: Command) -> None:
    code, out, _ = turn("--help")
    assert code == 0 and all(f"  {name} " in out for name in COMMANDS)
    assert "Exit codes: 0 " in out
    shown = [command for command in app.registered_commands if not command.hidden]
    assert {command.name or command.callback.__name__ for command in shown} == {*COMMANDS}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["lst"], "No such command 'lst'"),
        (["list", "agentz"], "unknown group 'agentz'; known: agents"),
        (["play", "turnbench/TextCaft-v0"], "known: turnbench/TextCraft-v0"),
        (["play", "turnbench/TextCraft-v0", "--task", "9999"], "unknown TextCraft task '9999'"),
        (["run", "quickstat"], "unknown suite 'quickstat'; known: quickstart"),
        (["run", "none.yaml"], "none.yaml: No such file"),
        (["run", "trial.yaml", "--workers", "0"], "greater than or equal to 1"),
        (["run", "trial.yaml", "--tasks", "0"], "greater than or equal to 1"),
        (["run", "trial.yaml", "--agent", "onne"], "unknown agent row 'onne'; known: one"),
        (["run", "trial.yaml", "--model", "tiny"], "unknown model 'tiny'"),
        (["run", "trial.yaml", "--out", "trial.yaml/x"], "can't write to trial.yaml/x"),
        (["run", "trial.yaml", "--boards", "trial.yaml/x"], "can't write to trial.yaml/x"),
        (["run", "bad.yaml"], "bad.yaml line 2: the key 'suite' appears twice"),
        (["board", "nowhere"], "turnbench: nowhere: No such file or directory"),
        (["board", "."], ". holds no run"),
        (["board", "foreign"], "is not a log of turnbench"),
        (["compare", "nowhere"], "turnbench: nowhere: No such file or directory"),
        (["compare", "trial.yaml"], "trial.yaml is no whole gzip file"),
        (["submit", "nowhere", "--name", "x"], "turnbench: nowhere: No such file or directory"),
        (["verify", "nowhere"], "turnbench: nowhere: No such file or directory"),
        (["verify", "trial.yaml", "--log", "nowhere"], "turnbench: nowhere: No such file or directory"),
        (["view", "nowhere"], "turnbench: nowhere: No such file or directory"),
        (["score", "nowhere"], "turnbench: nowhere: No such file or directory"),
        (["score", "nowhere.jsonl.gz"], "turnbench: nowhere.jsonl.gz: No such file or directory"),
        (["train", "none.yaml"], "none.yaml: No such file"),
        (["train", "algo.yaml"], "algo.yaml line 2: unknown algorithm 'stf'; known: sft"),
        (["train", "trial.yaml"], "trial.yaml line 1: the key 'algorithm' is missing"),
    ],
)
def test_bad_input_is_one_clear_message(
    turn: Command, trial: str, tmp_path: Path, arguments: list[str], told: str
) -> None:
    (tmp_path / "bad.yaml").write_text("suite: a\nsuite: b\n", encoding="utf-8")
    (tmp_path / "algo.yaml").write_text("a: 1\nalgorithm: stf\n", encoding="utf-8")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / NAME).write_text("{}\n", encoding="utf-8")
    code, _, err = turn(*arguments)
    assert code == 2 and told in " ".join(err.split())
    assert (tmp_path / "foreign" / NAME).read_text(encoding="utf-8") == "{}\n"


def test_run_then_board(turn: Command, trial: str, tmp_path: Path) -> None:
    code, out, err = turn("run", trial)
    assert code == 0 and "trial v1, echo" in out and "wrote leaderboards/boards/trial.yaml" in out
    assert "Suite trial v1" in err and "8/8" in err
    (table,) = read_yaml(tmp_path / "leaderboards/boards/trial.yaml").data["tables"]
    assert len(table["rows"]) == 1
    again = turn("run", trial)
    assert again[0] == 0 and "8 of 8 episodes are in the log already." in again[2]
    code, out, _ = turn("board", "runs/trial")
    assert code == 0 and "trial v1, echo" in out and "wrote" not in out
    code, out, _ = turn("board", "runs/trial", "--write", "--boards", "mine")
    assert code == 0 and (tmp_path / "mine/trial.yaml").exists()


def test_run_submit_verify_site_and_compare(turn: Command, spec: Any, tmp_path: Path) -> None:
    """The whole way of a result, with the address that the workflow asks for."""
    rows = {name: {"agent": "react", "model": "echo"} for name in ("one", "two")}
    rows["two"]["style"] = "thought"
    (tmp_path / "trial.yaml").write_text(dump_yaml(spec(agents=rows)), encoding="utf-8")
    assert turn("run", "trial.yaml")[0] == 0
    mine = ["submit", "runs/trial", "--name", "Ada", "--agent", "one"]
    code, out, _ = turn(*mine)
    assert code == 0
    log, entry = (line.split()[1] for line in out.splitlines()[:2])
    code, out, _ = turn(
        "verify", entry, "--log", log, "--suite", "trial.yaml", "--workers", "0", "--record"
    )
    assert code == 0, out
    assert out.splitlines()[-1] == "accepted"
    assert turn("verify", entry, "--log", entry, "--suite", "trial.yaml")[0] == 12
    code, _, err = turn("url", entry)
    assert code == 2 and "doesn't say where" in err
    assert turn(*mine, "--url", "https://example.org/x/")[0] == 0
    assert turn("url", entry)[1] == f"https://example.org/x/{Path(log).name}\n"
    code, out, _ = turn("site", "--logs", "runs/trial/submission")
    assert code == 0 and (tmp_path / "site/index.html").exists()
    code, out, _ = turn("view", log, "--html", "run.html")
    assert code == 0 and (tmp_path / "run.html").exists()
    code, out, _ = turn("compare", "runs/trial")
    assert code == 0 and "verdict" in out


def test_another_suite_in_the_folder(turn: Command, trial: str, spec: Any, tmp_path: Path) -> None:
    assert turn("run", trial)[0] == 0
    (tmp_path / trial).write_text(dump_yaml(spec(seeds=[5])), encoding="utf-8")
    code, _, err = turn("run", trial)
    assert code == 2 and "holds a run with another suite: suite.seeds is [0, 1] there" in err
    assert turn("run", trial, "--out", "runs/other")[0] == 0


def test_missing_episodes_exit_with_3_and_write_no_board(
    turn: Command, spec: Any, tmp_path: Path
) -> None:
    text = dump_yaml(spec(["env-step", "model-surrogate"], split="bad"))
    (tmp_path / "trial.yaml").write_text(text, encoding="utf-8")
    code, out, err = turn("run", "trial.yaml")
    assert code == 3 and "2 of 4 episodes are missing" in err and "planted in step" in err
    assert not (tmp_path / "leaderboards").exists() and "2/4" in out


def test_a_fatal_error_exits_with_2(turn: Command, spec: Any, tmp_path: Path) -> None:
    text = dump_yaml(spec(["model-fatal"], split="bad"))
    (tmp_path / "trial.yaml").write_text(text, encoding="utf-8")
    code, _, err = turn("run", "trial.yaml")
    assert code == 2 and err.count("401: who are you?") == 2
    assert err.splitlines()[-1] == "turnbench: 401: who are you?"


def test_a_trial_enters_no_board(turn: Command, trial: str, tmp_path: Path) -> None:
    code, out, err = turn("run", trial, "--tasks", "1", "--out", "few")
    assert code == 0 and "trial v1" in out and not (tmp_path / "leaderboards").exists()
    assert "turnbench board few --write" in err


@pytest.mark.parametrize(
    ("what", "some"),
    [
        ("envs", "turnbench/TextCraft-v0"),
        ("agents", "react"),
        ("scorers", "judge"),
        ("suites", "quickstart"),
    ],
)
def test_list(turn: Command, what: str, some: str) -> None:
    code, out, _ = turn("list", what)
    assert code == 0 and some in out.splitlines()
    assert f"  {some}" in turn("list")[1].splitlines()


def test_version(turn: Command) -> None:
    from importlib.metadata import version

    assert turn("--version")[:2] == (0, f"turnbench {version('turnbench')}\n")


def test_play(turn: Command) -> None:
    code, out, _ = turn("play", "standins:World-v0", "--task", "good3", typed="act 1\nact 2\nact 3\n")
    assert code == 0
    assert "[task good3, seed 0, at most 5 turns]" in out
    assert "task good3 turn 3" in out and "after 3 turns]" in out
    code, out, _ = turn("play", "standins:World-v0", typed="act 1\n")
    assert code == 0 and "after 1 turn]" in out


def test_play_shows_tools_at_first_and_when_they_change(turn: Command) -> None:
    task = ("--task", "miss_func-1-20001")
    code, out, _ = turn("play", "turnbench/ToolWorld-v0", *task, typed="find_contact('Bo')\nno tool\n")
    assert code == 0
    assert out.count("find_contact(name: string): Find people") == 2
    assert out.count("add_attendee(id: string, email: string)") == 1


BLOCKED = """
import sys
for name in ("torch", "transformers", "openai", "aiohttp", "vllm"):
    sys.modules[name] = None
sys.argv = ["turnbench", *sys.argv[1:]]
from turnbench.leaderboards.cli import main
main()
"""


@pytest.mark.parametrize("arguments", [["list"], ["--help"], ["board", "run"], ["run", "--help"]])
def test_light_commands_need_nothing_heavy(suite: Any, tmp_path: Path, arguments: list[str]) -> None:
    from turnbench.leaderboards.runner import run

    run(suite(), tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


def test_a_missing_checkpoint_is_named_and_leaves_the_folder_free(
    turn: Command, trial: str, spec: Any, tmp_path: Path
) -> None:
    local = {"echo": {"backend": "hf", "path": "nowhere"}}
    (tmp_path / "local.yaml").write_text(dump_yaml(spec(models=local)), encoding="utf-8")
    code, _, err = turn("run", "local.yaml", "--out", "run")
    assert code == 2 and "no checkpoint folder 'nowhere'" in err
    assert turn("run", trial, "--out", "run")[0] == 0


def test_a_missing_package_is_named(spec: Any, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("algorithm: sft\n", encoding="utf-8")
    local = {"echo": {"backend": "hf", "path": "."}}
    (tmp_path / "b.yaml").write_text(dump_yaml(spec(models=local)), encoding="utf-8")
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    for arguments in (["run", "b.yaml"], ["train", "a.yaml"]):
        done = subprocess.run(
            [sys.executable, "-c", BLOCKED, *arguments], capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert "pip install 'turnbench[" in done.stderr


def test_help_imports_no_world(tmp_path: Path) -> None:
    code = BLOCKED.replace("main()\n", "\ntry: main()\nexcept SystemExit: pass\n").replace(
        "import main\n\ntry", "import main\ntry"
    )
    code += "print(sorted({'gymnasium', 'numpy', 'pydantic', 'yaml', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


def test_an_ascii_locale_prints_utf_8(trial: str, tmp_path: Path) -> None:
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "turnbench.leaderboards.cli", "run", trial],
        capture_output=True,
        cwd=tmp_path,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    assert "─" in done.stdout.decode("utf-8")


def test_an_agent_that_cannot_be_made_is_named_with_its_line(turn: Command, tmp_path: Path) -> None:
    text = (
        "suite: none\nenvs: [{id: turnbench/TextCraft-v0, tasks: 1}]\n"
        "models: {m: {backend: 'standins:Echo'}}\nagents:\n  r: {agent: best_of_n, model: m, n: 0}\n"
    )
    (tmp_path / "none.yaml").write_text(text, encoding="utf-8")
    code, _, told = turn("run", "none.yaml")
    assert code == 2 and "none.yaml line 5: agents.r: n is 0" in told


def test_training_errors_name_the_line(turn: Command, tmp_path: Path) -> None:
    text = (
        "algorithm: sft\nsteps: 0\ndata:\n  - {env: turnbench/Toy-v0}\n  - {file: a.jsonl, sahre: 2}\n"
    )
    (tmp_path / "bad.yaml").write_text(text, encoding="utf-8")
    code, _, err = turn("train", "bad.yaml")
    assert code == 2
    assert "bad.yaml line 2: steps: " in err
    assert "bad.yaml line 5: data.1.sahre: unknown key; known: " in err and "share" in err


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import gymnasium\n1 / 0\n", "broken_world raises ZeroDivisionError: division by zero"),
        ("import nothing_of_the_sort\n", "broken_world raises ModuleNotFoundError"),
        (
            "import gymnasium\n\n\nclass W(gymnasium.Env):\n    def reset(self, *, seed=None, options=None):\n"
            "        raise KeyError('lost')\n\n\ngymnasium.register('W-v0', W)\n",
            "broken_world:W-v0 failed: KeyError: 'lost'",
        ),
    ],
)
def test_a_broken_world_is_no_traceback(turn: Command, tmp_path: Path, source: str, said: str) -> None:
    (tmp_path / "broken_world.py").write_text(source, encoding="utf-8")
    sys.modules.pop("broken_world", None)
    code, _, err = turn("play", "broken_world:W-v0")
    assert code == 2 and said in err


def test_changed_modules_of_the_user_are_not_resumed(turn: Command, spec: Any, tmp_path: Path) -> None:
    module = tmp_path / "my_agent.py"
    module.write_text("from turnbench.agents.react import ReAct as Mine\n", encoding="utf-8")
    row = {"agent": "my_agent:Mine", "model": "echo"}
    (tmp_path / "trial.yaml").write_text(dump_yaml(spec(agents={"one": row})), encoding="utf-8")
    assert turn("run", "trial.yaml", "--out", "out")[0] == 0
    with module.open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    code, _, err = turn("run", "trial.yaml", "--out", "out")
    assert code == 2 and "another version of your own modules" in err and "my_agent" in err


def test_a_damaged_board_does_not_hide_that_the_run_is_safe(
    turn: Command, trial: str, tmp_path: Path
) -> None:
    assert turn("run", trial, "--out", "out")[0] == 0
    suite = read_yaml(tmp_path / trial).data["suite"]
    (tmp_path / "leaderboards/boards" / suite / "odd.yaml").write_text("entry: [\n", encoding="utf-8")
    code, _, err = turn("board", "out", "--write")
    assert code == 2 and "odd.yaml" in err and "The run is safe" in err
