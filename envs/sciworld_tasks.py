"""ScienceWorld's tasks: the 30 types, their splits, AgentGym's ids, and how a task id is read.

A task id is "type/variation", such as "boil/12", and names what else changes the world after an "@":
"boil/12@easy", "boil/12@openDoors+teleportAction,moves=200".
"""

from collections.abc import Collection, Iterable
from functools import cache
from typing import NamedTuple

from turnbench.envs.errors import ConfigError, UnknownName

MISSING = "ScienceWorld needs {}; run: pip install 'turnbench[sciworld]'"
SIMPLIFICATIONS = (
    "easy",
    "noElectricalAction",
    "openContainers",
    "openDoors",
    "selfWateringFlowerPots",
    "teleportAction",
)
STEP_LIMIT = 100
"""Moves after which ScienceWorld ends an episode, unless told otherwise."""
DRAWING = frozenset({"grow-fruit", "mendelian-genetics-known-plant", "mendelian-genetics-unknown-plant"})
"""Types whose worlds draw random numbers all the time (bees, genes); the slowest as well."""


class TaskType(NamedTuple):
    """A type of task: ScienceWorld's number and name, and how many variations it has."""

    id: str
    name: str
    variations: int


TYPES = (
    TaskType("1-1", "boil", 30),
    TaskType("1-2", "melt", 30),
    TaskType("1-3", "freeze", 30),
    TaskType("1-4", "change-the-state-of-matter-of", 30),
    TaskType("2-1", "use-thermometer", 540),
    TaskType("2-2", "measure-melting-point-known-substance", 436),
    TaskType("2-3", "measure-melting-point-unknown-substance", 300),
    TaskType("3-1", "power-component", 20),
    TaskType("3-2", "power-component-renewable-vs-nonrenewable-energy", 20),
    TaskType("3-3", "test-conductivity", 900),
    TaskType("3-4", "test-conductivity-of-unknown-substances", 600),
    TaskType("4-1", "find-living-thing", 300),
    TaskType("4-2", "find-non-living-thing", 300),
    TaskType("4-3", "find-plant", 300),
    TaskType("4-4", "find-animal", 300),
    TaskType("5-1", "grow-plant", 126),
    TaskType("5-2", "grow-fruit", 126),
    TaskType("6-1", "chemistry-mix", 32),
    TaskType("6-2", "chemistry-mix-paint-secondary-color", 36),
    TaskType("6-3", "chemistry-mix-paint-tertiary-color", 36),
    TaskType("7-1", "lifespan-longest-lived", 125),
    TaskType("7-2", "lifespan-shortest-lived", 125),
    TaskType("7-3", "lifespan-longest-lived-then-shortest-lived", 125),
    TaskType("8-1", "identify-life-stages-1", 14),
    TaskType("8-2", "identify-life-stages-2", 10),
    TaskType("9-1", "inclined-plane-determine-angle", 168),
    TaskType("9-2", "inclined-plane-friction-named-surfaces", 1386),
    TaskType("9-3", "inclined-plane-friction-unnamed-surfaces", 162),
    TaskType("10-1", "mendelian-genetics-known-plant", 120),
    TaskType("10-2", "mendelian-genetics-unknown-plant", 480),
)
BY_NAME = {key: kind for kind in TYPES for key in (kind.id, kind.name)}

# --- AgentGym numbers the variations of all types but these, type after type -------------------------

LEFT_OUT = frozenset({"5-1", "5-2", "9-1", "9-2", "9-3", "10-1", "10-2"})
INDEX_MAPS = {"intended": LEFT_OUT | {"2-3"}, "released": LEFT_OUT}
"""What AgentGym's test numbers count. They were made without type 2-3, and then all of them fall into
ScienceWorld's own test split; the released server counts 2-3 too, so that the same numbers mean other
tasks, 61 of which are also train tasks. Train numbers were made with the released count."""

TEST = """
536-538 543-544 547 557 559 565 569 572-573 581 584 606 609-610 616 620 624 631 635 641 652 657
995 1002-1003 1006 1017 1020 1023-1024 1026 1028-1029 1032-1033 1052 1055 1058 1065-1066 1068
1074 1088 1093 1095 1111-1112 1131 1134-1135 1816 1821-1822 1824 1831 1835 1838 1844 1873 1879
1882 1897 1912 1914-1915 1919 1931 1934 1938 1940 1949 1953-1955 1969 1988 1994 2008 2015-2016
2029 2487-2488 2496-2498 2500 2503-2504 2506 2511-2513 2521 2527 2531 2546 2548 2552 2555 2559
2563 2569 2573 2577 2581-2582 2589 2619 2621 2625 2631 2633 2862 2864 2866 2871 2875-2876
2887-2888 2893 2896 2899 2901 2904 2910 2912 2915 2917 2924 2931-2932 3168 3174 3191 3195 3197
3200 3207 3210 3216 3223 3231 3464-3465 3471 3482-3483 3485 3488 3490-3491 3494 3496 3515
3518-3519 3523-3524 3533 3766 3782 3789 3794 3811 3813-3815 3828 3861 3867 3895 3931 4048 4050
4059 4159 4170 4175-4176 4178 4283-4284 4287-4288 4292 4294-4297 4299 4307 4312 4327 4335-4336
"""
TRAIN = """
0-10 30-43 60-64 66-73 90-103 120-389 660-670 673-674 676-678 680-686 688-690 692-701 703-708
710-723 726-738 740-744 746 748 750 754-758 760-762 764-769 772-777 779-786 788 790-796 798-802
804-816 818-824 826-841 844 846-847 849-851 853-862 864-870 872-877 1396-1405 1416-1425
1436-1885 2336-2635 2936-3085 3236-3385 3536-3685 3836-3985 4136-4140 4142-4143 4146-4151
4168-4185 4204-4221 4240-4301 4365-4426 4490-4551 4615-4620 4629-4632
"""
SPLITS = ("train", "test", "train-policy", "train-value", "full-train", "full-dev", "full-test")


class Spec(NamedTuple):
    """Which world: a type by name, its variation, the simplifications joined by commas."""

    task: str
    variation: int
    simplifications: str = ""

    @property
    def lane(self) -> tuple[str, bool]:
        """Worlds of one lane may share a Java process; those that draw have one of their own."""
        return self.simplifications, self.task in DRAWING


def agentgym_tasks(split: str, index: str = "intended") -> dict[int, str]:
    """AgentGym's numbers of its "train" or "test" split -> the tasks that they mean, by number."""
    known = {"train": (TRAIN, "released"), "test": (TEST, index)}
    if split not in known:
        raise UnknownName("AgentGym split", split, known)
    text, counted = known[split]
    tasks = index_map(counted)
    return {number: tasks[number] for number in _spread(text)}


@cache
def index_map(name: str) -> tuple[str, ...]:
    """The tasks that AgentGym's numbers mean under an index map, in order."""
    if name not in INDEX_MAPS:
        raise UnknownName("index map", name, INDEX_MAPS)
    return tuple(
        f"{kind.name}/{k}"
        for kind in TYPES
        if kind.id not in INDEX_MAPS[name]
        for k in range(kind.variations)
    )


@cache
def split_tasks(split: str, index: str) -> tuple[str, ...]:
    """The task ids of a split. Every third train task is kept for value functions."""
    if split.startswith("full-") and split in SPLITS:
        part = split.removeprefix("full-")
        return tuple(f"{kind.name}/{k}" for kind in TYPES for k in _part(kind.variations, part))
    if split == "test":
        return tuple(agentgym_tasks("test", index).values())
    train = tuple(agentgym_tasks("train").values())
    match split:
        case "train":
            return train
        case "train-policy":
            return tuple(task for k, task in enumerate(train) if k % 3 != 2)
        case "train-value":
            return tuple(task for k, task in enumerate(train) if k % 3 == 2)
    raise UnknownName("ScienceWorld split", split, SPLITS)


def _part(variations: int, part: str) -> range:
    """ScienceWorld's own division of a type: two quarters, one, and the rest."""
    quarter = variations // 4
    bounds = {"train": (0, 2), "dev": (2, 3), "test": (3, 0)}[part]
    return range(bounds[0] * quarter, bounds[1] * quarter or variations)


def _spread(text: str) -> Iterable[int]:
    for piece in text.split():
        first, _, last = piece.partition("-")
        yield from range(int(first), int(last or first) + 1)


def only_types(tasks: Iterable[str], types: Collection[str]) -> list[str]:
    """The tasks that belong to the types given by number or name (to any type where none is given).

    Raises UnknownName, and ConfigError for what is no list.
    """
    if isinstance(types, str):
        raise ConfigError(f"types is {types!r}; a list of types is wanted, such as [{types!r}]")
    for name in types:
        if name not in BY_NAME:
            raise UnknownName("ScienceWorld task type", name, BY_NAME)
    names = {BY_NAME[name].name for name in types}
    return [task for task in tasks if not names or task.partition("/")[0] in names]


def can_start(task: str, simplifications: str) -> bool:
    """Whether the simulator has the task: electrical ones need electrical actions."""
    electrical = BY_NAME[task.partition("/")[0]].id.startswith("3-")
    return not (electrical and "noElectricalAction" in simplifications)


def variant(simplifications: str, step_limit: int) -> str:
    """What a task id says about a world that isn't the plain one, "" for the plain one."""
    limit = "" if step_limit == STEP_LIMIT else f"moves={step_limit}"
    said = ",".join(filter(None, (simplifications.replace(",", "+"), limit)))
    return f"@{said}" if said else ""


def simplified(text: str) -> str:
    """Simplifications, comma-separated, checked and in canonical order. Raises UnknownName."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in SIMPLIFICATIONS:
            raise UnknownName("simplification", name, SIMPLIFICATIONS)
    if "easy" in names and set(names) != {"easy"}:
        raise ConfigError(
            "the simplification 'easy' stands for a set of its own: name nothing beside it"
        )
    return ",".join(sorted(set(names)))


def read_task(task: str, simplifications: str, suffix: str) -> Spec:
    """The world that a task id stands for. Raises UnknownName, ConfigError."""
    plain, at, variant = task.partition("@")
    name, _, number = plain.partition("/")
    kind = BY_NAME.get(name)
    if kind is None or name != kind.name or not _is_below(number, kind.variations):
        raise UnknownName("ScienceWorld task", task, _examples(name, suffix))
    if at + variant != suffix:
        raise ConfigError(
            f"task {task!r} is of another environment than this, where it is {plain + suffix!r}: what "
            "follows the @ comes from the arguments simplifications and step_limit"
        )
    if not can_start(plain, simplifications):
        raise ConfigError(f"task {task!r} can't be done with the simplification noElectricalAction")
    return Spec(kind.name, int(number), simplifications)


def _examples(name: str, suffix: str) -> list[str]:
    """Task ids to suggest: the first and the last of the type that was meant, else of all types."""
    meant = BY_NAME.get(name)
    kinds = TYPES if meant is None else (meant,)
    return [f"{kind.name}/{k}{suffix}" for kind in kinds for k in (0, kind.variations - 1)]


def _is_below(number: str, bound: int) -> bool:
    """Whether it is a number below `bound`, spelt as one spells it."""
    plain = len(number) < 6 and number.isascii() and number.isdecimal()
    return plain and str(int(number)) == number and int(number) < bound
