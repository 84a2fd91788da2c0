"""Final answers: how they are read from text and compared, by one of RULES.

    exact    equal after `normalise`: Unicode NFKC, small letters, no articles, no punctuation but a
             point inside a number and a minus before one, no thousands separators, single blanks
    gaia     GAIA's own scorer's rules: numbers by value without $, % and separators; lists by element;
             other text without blanks and punctuation
    strict   equal but for case, blanks, and dollar signs or full stops around: formulas keep their signs
    choice   the same letter

BrowseComp-Plus and HLE ask a language model whether an answer is right, so numbers made with these
rules are not theirs.
"""

import math
import re
import string
import unicodedata
from collections.abc import Callable, Collection
from typing import NamedTuple

MAX_ANSWER = 2000  # characters of an answer that are compared; longer ones are wrong

_ANSWER = re.compile(
    r"^[ \t*#>-]*(?:exact |final )?answer[ \t*]*:[ \t*]*(.*)$", re.IGNORECASE | re.MULTILINE
)
_CITED = re.compile(r"\[([^\[\]\n]{1,2000})\]")
_SEPARATOR = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_PUNCTUATION = re.compile(r"(?<!\d)\.|\.(?!\d)|(?<![^\s(])-(?!\d)|(?<=\w)-|[^\w\s.-]|_")
_LETTER = re.compile(r"\W*([A-Za-z])(?![A-Za-z])")
_ARTICLES = frozenset({"a", "an", "the"})


class Answered(NamedTuple):
    """An answer and the ids of the documents it cites, each once."""

    answer: str
    cited: tuple[str, ...]


def read_answer(text: str, known: Callable[[str], bool]) -> Answered:
    """The last line "Answer: ..." of `text`, or all of it, without the citations.

    Citations are ids in square brackets that are `known`, one or several: [d012345, d000678].
    """
    marked = _ANSWER.findall(text)
    cited: dict[str, None] = {}
    for inside in _CITED.findall(text):
        cited |= dict.fromkeys(part for part in re.split(r"[,;\s]+", inside) if known(part))
    return Answered(_uncited(marked[-1] if marked else text, cited), tuple(cited))


def _uncited(text: str, cited: Collection[str]) -> str:
    def kept(found: re.Match[str]) -> str:
        return "" if set(re.split(r"[,;\s]+", found[1])) & set(cited) else found[0]

    return " ".join(_CITED.sub(kept, text).strip(" \t\n*").split())


def is_correct(answer: str, expected: str, rule: str) -> bool:
    """Whether an answer is the expected one by a rule of RULES."""
    return bool(answer) and len(answer) <= MAX_ANSWER and RULES[rule](answer, expected)


def normalise(text: str) -> str:
    """The form in which the rule "exact" compares."""
    text = _SEPARATOR.sub("", unicodedata.normalize("NFKC", text).casefold()).replace("\u2212", "-")
    return " ".join(w for w in _PUNCTUATION.sub("", text).split() if w not in _ARTICLES)


def _exact(answer: str, expected: str) -> bool:
    return normalise(answer) == normalise(expected) != ""


def _strict(answer: str, expected: str) -> bool:
    return _plain(answer) == _plain(expected)


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip("$. ")


def _choice(answer: str, expected: str) -> bool:
    chosen, right = _LETTER.match(answer), _LETTER.match(expected)
    return bool(chosen and right and chosen[1].upper() == right[1].upper())


# --- GAIA -----------------------------------------------------------------------------------------------


def _gaia(answer: str, expected: str) -> bool:
    if _value(expected) is not None:
        return _value(_bare(answer)) == _value(expected)
    if "," not in expected and ";" not in expected:
        return _squeezed(answer) == _squeezed(expected)
    given, wanted = re.split("[,;]", answer), re.split("[,;]", expected)
    return len(given) == len(wanted) and all(map(_same_element, given, wanted))


def _same_element(given: str, wanted: str) -> bool:
    """Elements of a list: numbers by value, and text with its punctuation."""
    if _value(wanted) is not None:
        return _value(_bare(given)) == _value(wanted)
    return "".join(given.split()).lower() == "".join(wanted.split()).lower()


def _value(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _bare(text: str) -> str:
    return text.translate(str.maketrans("", "", "$%,"))


def _squeezed(text: str) -> str:
    return "".join(text.split()).lower().translate(str.maketrans("", "", string.punctuation))


RULES: dict[str, Callable[[str, str], bool]] = {
    "exact": _exact,
    "gaia": _gaia,
    "strict": _strict,
    "choice": _choice,
}
