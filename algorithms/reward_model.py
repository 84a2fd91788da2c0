"""Reward models: a sequence classifier learns from a model's rollouts how well a whole path did.

The run folder becomes a `scorer: {scorer: reward_model, model: FOLDER}`. A path is read as that
scorer reads it, and is worth its return, times `discount` for each turn after the first. The heads:

    scalar   one output r, by Bradley and Terry: -log sigmoid(r_i - r_j) for paths of a task of which i is
             worth more
    binary   two outputs, by cross-entropy: whether the path's return is the highest there is
    ordinal  `grades` - 1 outputs, by cross-entropy of each: whether the path's grade is above 1, 2, ...; the
             score is 1 + sum sigmoid (WildReward). Grade 1 is the lowest worth of all; the others share
             evenly what else occurs
"""

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, logsigmoid
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging

from turnbench.agents import shipped_path
from turnbench.agents.core import Population
from turnbench.agents.hf import context_of
from turnbench.agents.regression import load_backbone
from turnbench.agents.reward_models import CARD, beginning, classifier_ids, classify, graded
from turnbench.algorithms import checkpoint
from turnbench.algorithms.fitting import Fitted, Fitting, fit
from turnbench.algorithms.rollouts import populations_of, split_tasks
from turnbench.algorithms.settings import checked, claim
from turnbench.algorithms.value_data import auroc, pearson
from turnbench.envs.errors import ConfigError
from turnbench.envs.record import Task

Head = Literal["scalar", "binary", "ordinal"]


class Config(Fitting):
    """Everything that decides what a run of reward-model training makes."""

    algorithm: Literal["reward_model"] = Field("reward_model", description="Name of the trainer.")
    head: Head = Field("scalar", description="What the outputs mean.")
    grades: int = Field(5, ge=4, description="Grades of an ordinal head.")
    discount: float = Field(
        1.0,
        gt=0,
        le=1,
        description="What a turn more costs: below 1, of two equal returns the shorter "
        "path is worth more.",
    )
    batch: int = Field(2, ge=1, description="Tasks a step, with all their rollouts.")


def train(config: Mapping[str, Any], out: Path) -> Path:
    """Collect rollouts, fit a classifier and write it to `out/model`, which is returned.

    Rollouts collected by an interrupted run of the same config are used; the fit, of minutes, starts
    anew. Raises ConfigError, ModelError, LogError.
    """
    settings = read_config(config)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # there is a bar for the run itself
    claim(out, settings, free=Config.free())
    torch.manual_seed(settings.seed)
    return _Run(settings, out, populations_of(settings, out)).run()


def read_config(config: Mapping[str, Any]) -> Config:
    """The checked config. Raises ConfigError that names each wrong field."""
    return checked(Config, config)


# --- what is learned ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Example:
    """A path's token ids, its task and seed, its return, and its worth: the return with a price on turns."""

    ids: tuple[int, ...]
    task: Task
    ret: float
    worth: float


def thresholds_of(worths: Sequence[float], grades: int) -> list[float]:
    """What a path must be worth more than to have grade 2, 3, ... Raises ConfigError where `worths` tell
    fewer grades apart."""
    lowest = min(worths)
    above = sorted({worth for worth in worths if worth > lowest})
    inner = np.quantile(above, np.linspace(0, 1, grades)[1:-1]).tolist() if above else []
    found = [lowest, *inner]
    told = {sum(worth > bound for bound in found) for worth in worths}
    if len(told) < grades:
        raise ConfigError(
            f"{grades} grades need as many different worths, but the rollouts have {len(set(worths))}: a "
            "discount below 1 tells equal successes apart by their length; else take a binary or scalar head"
        )
    return found


def ranking_loss(scores: Tensor, tasks: Sequence[Hashable], worths: Sequence[float]) -> Tensor:
    """Bradley and Terry's, the mean over pairs of paths of a task that differ in worth, of which there is one."""
    better, worse = map(list, zip(*_pairs(tasks, worths), strict=True))
    return -logsigmoid(scores[better] - scores[worse]).mean()


def ranked(scores: Sequence[float], tasks: Sequence[Hashable], worths: Sequence[float]) -> float | None:
    """How many pairs of paths of a task the scores rank as their worths do, ties half; None without any."""
    gaps = np.array([scores[i] - scores[j] for i, j in _pairs(tasks, worths)])
    return float((gaps > 0).mean() + (gaps == 0).mean() / 2) if len(gaps) else None


def _pairs(tasks: Sequence[Hashable], worths: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Which path of a task is worth more than which other."""
    for i, j in combinations(range(len(tasks)), 2):
        if tasks[i] == tasks[j] and worths[i] != worths[j]:
            yield (i, j) if worths[i] > worths[j] else (j, i)


def _teaching(examples: Sequence[Example], head: Head) -> list[Example]:
    """What a head can learn from: where paths are compared, those of tasks at which they differ. Raises
    ConfigError where that is nothing."""
    if len({e.ret for e in examples}) < 2:
        only = ", ".join(f"{e.ret:g}" for e in examples[:1]) or "nothing"
        raise ConfigError(f"every training rollout returned {only}: there is nothing to tell apart")
    if head != "scalar":
        return list(examples)
    worths: dict[Task, set[float]] = {}
    for e in examples:
        worths.setdefault(e.task, set()).add(e.worth)
    if max(map(len, worths.values())) < 2:
        raise ConfigError("no training task has two rollouts that differ: there is nothing to compare")
    return [e for e in examples if len(worths[e.task]) > 1]


class _Run:
    def __init__(self, settings: Config, out: Path, populations: Sequence[Population]) -> None:
        self.settings, self.out = settings, out
        self.tokenizer, self.network = _network(settings)
        held = split_tasks([p.best.task for p in populations], settings.held_out, settings.seed)
        examples = [e for p in populations for e in self._examples(p)]
        self.held_set = [e for e in examples if e.task.id in held]
        self.train_set = _teaching([e for e in examples if e.task.id not in held], settings.head)
        if not self.held_set:
            raise ConfigError("no rollout at a held-out task can be read: raise held_out")
        self.highest = max(e.ret for e in self.train_set)
        self.bounds: list[float] = []
        if settings.head == "ordinal":
            self.bounds = thresholds_of([e.worth for e in self.train_set], settings.grades)

    def _examples(self, population: Population) -> Iterator[Example]:
        """The paths of a task, read to the end of the last action; a long one's beginning is cut off."""
        context = context_of(self.network.config)
        for path in population.trajectories:
            if path.missing or not path.turns:
                continue
            ids = classifier_ids(self.tokenizer, beginning(path, len(path.turns)))
            ret = round(path.ret, 9)  # a sum of hundredths is that of others to rounding only
            worth = round(ret * self.settings.discount ** (len(path.turns) - 1), 9)
            yield Example(tuple(ids[-(context or len(ids)) :]), path.task, ret, worth)

    def run(self) -> Path:
        (self.out / CARD).unlink(missing_ok=True)  # an earlier fit's, which is being replaced
        by_task: dict[Task, list[Example]] = {}
        for example in self.train_set:
            by_task.setdefault(example.task, []).append(example)
        fitted = fit(
            self.network,
            list(by_task.values()),
            self.settings,
            self.out,
            loss=self._loss,
            tokens=lambda paths: sum(len(e.ids) for e in paths),
            measure=self.measure,
            better=("ranked", "pearson"),
        )
        return self._write(fitted)

    def _loss(self, tasks: Sequence[Sequence[Example]]) -> Tensor:
        batch = [e for paths in tasks for e in paths]
        return self.loss(classify(self.network, [e.ids for e in batch]), batch)

    def loss(self, outputs: Tensor, batch: Sequence[Example]) -> Tensor:
        """The head's loss of outputs, of shape (paths, outputs)."""
        if self.settings.head == "scalar":
            return ranking_loss(outputs[:, 0], [e.task for e in batch], [e.worth for e in batch])
        if self.settings.head == "binary":
            won = torch.tensor([int(e.ret >= self.highest) for e in batch])
            return cross_entropy(outputs, won.to(outputs.device))
        above = torch.tensor([[float(e.worth > bound) for bound in self.bounds] for e in batch])
        return binary_cross_entropy_with_logits(outputs, above.to(outputs.device))

    @torch.inference_mode()
    def measure(self) -> dict[str, Any]:
        """Quality on the held-out tasks: pairs of a task ranked right, r with the worth, AUROC of the
        highest return."""
        self.network.eval()
        held = sorted(self.held_set, key=lambda e: len(e.ids))
        batches = [held[k : k + 8] for k in range(0, len(held), 8)]
        outputs = [row for b in batches for row in classify(self.network, [e.ids for e in b]).tolist()]
        if not np.isfinite(outputs).all():
            raise ConfigError("the network's outputs are no numbers any more: lower lr")
        scores = [graded(row, self.settings.head) for row in outputs]
        worths = [e.worth for e in held]
        won = np.array([e.ret >= self.highest for e in held])
        return {
            "ranked": ranked(scores, [e.task for e in held], worths),
            "pearson": pearson(np.array(scores), np.array(worths)),
            "auroc": auroc(np.array(scores), won),
        }

    def _write(self, fitted: Fitted) -> Path:
        def fill(folder: Path) -> None:
            self.network.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

        card = {
            "config": self.settings.model_dump(mode="json"),
            "grades_above": self.bounds,
            "paths": {"train": len(self.train_set), "held_out": len(self.held_set)},
            "epochs": fitted.epochs,
            "kept": fitted.kept,
            "held_out": self.measure(),
        }
        checkpoint.write_folder(self.out / "model", fill)
        checkpoint.write_text(self.out / CARD, json.dumps(card, indent=2) + "\n")
        return self.out / "model"


def _network(settings: Config) -> tuple[Any, Any]:
    """The tokenizer, and the backbone with a new head."""
    tokenizer, trunk = load_backbone(shipped_path(settings.backbone))
    config = trunk.config
    config.num_labels = {"scalar": 1, "binary": 2}.get(settings.head, settings.grades - 1)
    ends = (config.pad_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id)
    config.pad_token_id = next((token for token in ends if token is not None), None)
    if config.pad_token_id is None:
        raise ConfigError(
            f"{settings.backbone} has neither a padding nor an end token, which batches need"
        )
    try:
        network = AutoModelForSequenceClassification.from_config(  # type: ignore[no-untyped-call]
            config, dtype=torch.float32
        )
    except ValueError as error:
        raise ConfigError(
            f"transformers has no sequence classifier of {settings.backbone}'s kind, {config.model_type}"
        ) from error
    lacking = network.base_model.load_state_dict(trunk.state_dict(), strict=False).missing_keys
    if lacking:
        raise ConfigError(f"{settings.backbone} lacks weights of a classifier's trunk: {lacking[0]}")
    return tokenizer, network.to("cuda" if torch.cuda.is_available() else "cpu")
