"""Reward models: grades and losses by closed form, the fit of each head, the folder as a scorer."""

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from turnbench.agents.core import Population, population_to_json
from turnbench.agents.reward_models import CARD, is_reward_folder
from turnbench.agents.scorers import make_scorer
from turnbench.algorithms import reward_model, trainer
from turnbench.algorithms.reward_model import (
    ranked,
    ranking_loss,
    read_config,
    thresholds_of,
)
from turnbench.algorithms.rollouts import FILE, split_tasks
from turnbench.envs.errors import ConfigError
from turnbench.envs.record import Outcome, Task, Trajectory, Turn

ENV = "turnbench/Toy-v0"


def path(task: str, actions: list[str], ret: float) -> Trajectory:
    """Play that is paid at its end."""
    rewards = [0.0] * (len(actions) - 1) + [ret]
    turns = [
        Turn(f"You are in room {k}.", a, r)
        for k, (a, r) in enumerate(zip(actions, rewards, strict=True))
    ]
    return Trajectory(Task(ENV, task), tuple(turns), "Ready.", Outcome.OK, success=ret > 0)


def populations(tasks: int = 40) -> list[Population]:
    """Four rollouts a task: who ends with "right" succeeds, sooner or later."""
    found = []
    rng = np.random.default_rng(0)
    for task in range(tasks):
        paths = []
        for k in range(4):
            length = int(rng.integers(1, 6))
            end = "right" if k < 2 else "left"
            paths.append(path(str(task), ["wait"] * (length - 1) + [end], float(k < 2)))
        found.append(Population(paths))
    return found


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("played")
    rows = [json.dumps(population_to_json(p)) + "\n" for p in populations()]
    (folder / FILE).write_text("".join(rows), encoding="utf-8")
    return folder


def config(played: Path, backbone: Path, **changes: Any) -> dict[str, Any]:
    base = {"env": ENV, "rollouts": str(played), "backbone": str(backbone), "epochs": 6, "lr": 3e-3}
    return {**base, "batch": 8, **changes}


@pytest.mark.parametrize("head", ["scalar", "binary", "ordinal"])
def test_each_head_learns_which_path_does_best(
    played: Path, tiny_folder: str, tmp_path: Path, head: str
) -> None:
    """And the folder is a scorer, by itself or as one's model; so is the model in it."""
    changes = {"head": head, "discount": 0.8 if head == "ordinal" else 1.0}
    made = trainer("reward_model")(config(played, Path(tiny_folder), **changes), tmp_path)
    card = json.loads((tmp_path / CARD).read_text(encoding="utf-8"))
    assert card["held_out"]["auroc"] > 0.95 and card["held_out"]["ranked"] > 0.9
    good, bad = path("new", ["wait", "right"], 1.0), path("new", ["wait", "left"], 0.0)
    told = [
        make_scorer(spec).score([good, bad], np.random.default_rng(0))
        for spec in (
            str(tmp_path),
            *({"scorer": "reward_model", "model": str(m)} for m in (made, tmp_path)),
        )
    ]
    assert told[0] == told[1] == told[2]
    high, low = told[0]
    assert high > low
    if head == "ordinal":
        assert 1 <= low < high <= 5


def test_what_is_read_in_training_is_what_the_scorer_reads(
    played: Path, tiny_folder: str, tmp_path: Path
) -> None:
    """The card's figures are those of the scorer, asked about the same paths."""
    made = trainer("reward_model")(config(played, Path(tiny_folder), epochs=1), tmp_path)
    card = json.loads((tmp_path / CARD).read_text(encoding="utf-8"))
    held = split_tasks([p.best.task for p in populations()], 0.2, 0)
    paths = [path for p in populations() for path in p.trajectories if path.task.id in held]
    assert len(paths) == card["paths"]["held_out"] == 32
    scores = make_scorer({"scorer": "reward_model", "model": str(made)}).score(
        paths, np.random.default_rng(0)
    )
    again = ranked(scores, [p.task.id for p in paths], [p.ret for p in paths])
    assert again == pytest.approx(card["held_out"]["ranked"], abs=1e-9)


def test_grades_share_evenly_what_is_above_the_lowest() -> None:
    """Of different worths: most successes may be alike."""
    rest = [k / 40 for k in range(1, 41)]
    assert thresholds_of([0.0] + rest + [0.05] * 90, 5) == thresholds_of([0.0] + rest, 5)
    worths = [0.0] * 50 + rest
    bounds = thresholds_of(worths, 5)
    grades = [1 + sum(worth > bound for bound in bounds) for worth in worths]
    assert [grades.count(k) for k in (1, 2, 3, 4, 5)] == [50, 10, 10, 10, 10]


def test_returns_that_tell_fewer_grades_are_refused(
    played: Path, tiny_folder: str, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match="5 grades need as many different worths, but the rollouts have 2: a discount"
    ):
        trainer("reward_model")(config(played, Path(tiny_folder), head="ordinal"), tmp_path)


def test_ranking_loss_by_closed_form() -> None:
    """-log sigmoid(difference), for pairs of a task that differ in worth; nothing else counts."""
    scores = torch.tensor([2.0, 0.5, 7.0, -1.0], requires_grad=True)
    loss = ranking_loss(scores, ["a", "a", "b", "a"], [1.0, 0.0, 1.0, 0.0])
    want = [math.log1p(math.exp(-1.5)), math.log1p(math.exp(-3.0))]
    assert loss.item() == pytest.approx(sum(want) / 2, rel=1e-6)
    loss.backward()
    assert scores.grad is not None and scores.grad[2] == 0 and scores.grad[0] < 0 < scores.grad[1]


def test_tasks_whose_rollouts_are_alike_are_not_compared(tiny_folder: str, tmp_path: Path) -> None:
    """Half of the tasks are always solved: they teach a scalar head nothing; where that is all, it says so."""
    solved = [Population([path(f"s{k}", ["right"], 1.0)] * 4) for k in range(20)]
    for rows, want in ((populations(20) + solved, 80), (solved, None)):
        folder = tmp_path / str(want)
        folder.mkdir()
        lines = [json.dumps(population_to_json(row)) + "\n" for row in rows]
        failed = json.dumps(population_to_json(Population([path("f", ["left"], 0.0)] * 4))) + "\n"
        (folder / FILE).write_text("".join([*lines, failed]), encoding="utf-8")
        made = config(folder, Path(tiny_folder), epochs=1, held_out=0.01)
        if want is None:
            with pytest.raises(ConfigError, match="nothing to compare"):
                trainer("reward_model")(made, folder / "out")
        else:
            trainer("reward_model")(made, folder / "out")
            card = json.loads((folder / "out" / CARD).read_text(encoding="utf-8"))
            assert card["paths"]["train"] in (want, want - 4)  # one task is held out


def test_pairs_ranked_right() -> None:
    tasks, worths = ["a", "a", "a", "b"], [1.0, 0.0, 0.5, 0.0]
    assert ranked([3.0, 1.0, 2.0, 9.0], tasks, worths) == 1.0
    assert ranked([1.0, 3.0, 2.0, 9.0], tasks, worths) == 0.0
    assert ranked([1.0, 1.0, 2.0, 9.0], tasks, worths) == pytest.approx(0.5)
    assert ranked([1.0], ["a"], [1.0]) is None


def written(folder: Path, found: list[Population]) -> Path:
    """A folder of rollouts."""
    folder.mkdir(exist_ok=True)
    lines = [json.dumps(population_to_json(row)) + "\n" for row in found]
    (folder / FILE).write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.mark.parametrize("head", ["scalar", "binary"])
def test_one_outcome_in_training_teaches_nothing(tiny_folder: str, tmp_path: Path, head: str) -> None:
    """Even where the held-out tasks have both."""
    held = split_tasks([Task(ENV, str(k)) for k in range(10)], 0.2, 0)
    ends = {str(k): ["right", "left"] if str(k) in held else ["left"] * 2 for k in range(10)}
    found = [
        Population([path(task, [end], float(end == "right")) for end in both])
        for task, both in ends.items()
    ]
    made = config(written(tmp_path / "played", found), Path(tiny_folder), head=head)
    with pytest.raises(ConfigError, match="every training rollout returned 0: there is nothing"):
        trainer("reward_model")(made, tmp_path / "out")


def test_held_out_tasks_without_a_readable_rollout_are_an_error(
    tiny_folder: str, tmp_path: Path
) -> None:
    found = populations(10)
    held = split_tasks([p.best.task for p in found], 0.2, 0)
    for population in found:
        if population.best.task.id in held:
            lost = [dataclasses.replace(p, outcome=Outcome.INFRA_ERROR) for p in population.trajectories]
            found[found.index(population)] = Population(lost)
    made = config(written(tmp_path / "played", found), Path(tiny_folder))
    with pytest.raises(ConfigError, match="no rollout at a held-out task can be read"):
        trainer("reward_model")(made, tmp_path / "out")


def test_attempts_under_other_seeds_are_not_compared(tiny_folder: str, tmp_path: Path) -> None:
    """What differs under two seeds of a task may be the world."""
    found = []
    for task in range(10):
        for seed, end in enumerate(("left", "right")):
            one = dataclasses.replace(path("x", [end], float(seed)), task=Task(ENV, str(task), "", seed))
            found.append(Population([one, one]))
    made = config(written(tmp_path / "played", found), Path(tiny_folder))
    with pytest.raises(ConfigError, match="nothing to compare"):
        trainer("reward_model")(made, tmp_path / "out")


def test_a_sum_of_hundredths_is_a_full_success(tiny_folder: str, tmp_path: Path) -> None:
    """.70 + .29 + .01 isn't 1 to the last digit, but is worth as much."""
    split = path("a", ["wait", "wait", "right"], 0.0)
    turns = [
        dataclasses.replace(t, reward=r) for t, r in zip(split.turns, (0.70, 0.29, 0.01), strict=True)
    ]
    nearly = dataclasses.replace(split, turns=tuple(turns))
    assert nearly.ret != 1.0
    found = [
        Population(
            [dataclasses.replace(p, task=Task(ENV, str(k))) for p in (nearly, path("a", ["right"], 1.0))]
        )
        for k in range(10)
    ]
    made = config(written(tmp_path / "played", found), Path(tiny_folder))
    with pytest.raises(ConfigError, match="every training rollout returned 1"):
        trainer("reward_model")(made, tmp_path / "out")


def test_a_refit_that_is_interrupted_leaves_no_scorer(
    played: Path, tiny_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder holds another config by then."""
    trainer("reward_model")(config(played, Path(tiny_folder), epochs=1), tmp_path)
    assert is_reward_folder(str(tmp_path))
    monkeypatch.setattr(
        reward_model, "fit", lambda *args, **kwargs: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        trainer("reward_model")(config(played, Path(tiny_folder), head="binary"), tmp_path)
    assert not is_reward_folder(str(tmp_path))


def test_a_padding_token_of_number_0_is_one(played: Path, tiny_folder: str, tmp_path: Path) -> None:
    backbone = tmp_path / "backbone"
    shutil.copytree(tiny_folder, backbone)
    told = json.loads((backbone / "config.json").read_text(encoding="utf-8"))
    (backbone / "config.json").write_text(json.dumps(told | {"pad_token_id": None}), encoding="utf-8")
    made = trainer("reward_model")(config(played, backbone, epochs=1), tmp_path / "out")
    assert json.loads((made / "config.json").read_text(encoding="utf-8"))["pad_token_id"] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": "cardinal"}, "head: Input should be 'scalar', 'binary' or 'ordinal'"),
        ({"grades": 2}, "grades: Input should be greater than or equal to 4"),
        ({"rollouts": None}, "name either model"),
        ({"thresholds": []}, "thresholds: unknown key"),
    ],
)
def test_a_wrong_config_names_the_key(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(config(tmp_path, tmp_path, **changes))
