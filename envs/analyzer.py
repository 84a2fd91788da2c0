"""English text to index terms, as Lucene's EnglishAnalyzer makes them.

Words are found by Unicode's default rules (UAX #29), a possessive 's is cut off, letters are made
small, 33 stop words dropped, and the rest stemmed by Porter's algorithm with its author's two later
changes (bli -> ble, logi -> log). `analyze` is the whole chain.
"""

import re
from functools import lru_cache

STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there "
    "these they this to was will with".split()
)
MAX_TOKEN = 255  # Lucene cuts longer words into pieces

# --- words --------------------------------------------------------------------------------------------

# Extended_Pictographic as Unicode 12 has it, which is what Lucene knows.
_PICTURES = (
    "©®‼⁉™ℹ↔-↙↩↪⌚⌛⌨⎈⏏⏩-⏳⏸-⏺Ⓜ▪▫▶◀◻-◾☀-★☇-☒☔-♥♧-⚅⚐-✅✈-✒✔✖✝✡✨✳✴❄❇❌❎❓-❕❗❣-❧➕-➗➡➰➿⤴⤵⬅-⬇⬛⬜⭐⭕〰〽㊗㊙"
    "\U0001f000-\U0001f0ff\U0001f10d-\U0001f10f\U0001f12f\U0001f16c-\U0001f171\U0001f17e\U0001f17f\U0001f18e"
    "\U0001f191-\U0001f19a\U0001f1ad-\U0001f1e5\U0001f201-\U0001f20f\U0001f21a\U0001f22f\U0001f232-\U0001f23a"
    "\U0001f23c-\U0001f23f\U0001f249-\U0001f3fa\U0001f400-\U0001f53d\U0001f546-\U0001f64f\U0001f680-\U0001f6ff"
    "\U0001f774-\U0001f77f\U0001f7d5-\U0001f7ff\U0001f80c-\U0001fffd"
)
_FLAGS = "\U0001f1e6-\U0001f1ff"
_IDEOGRAPHS = (
    "\u3006\u3007\u3041-\u3096\u309d-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd"
)
_MARKS = "\u00ad\u0300-\u036f\u200c\u200d\u20d0-\u20f0\ufe00-\ufe0f\uff9e\uff9f\U0001f3fb-\U0001f3ff"
_FRACTIONS = "²³¹¼-¾⁰⁴-⁹₀-₉⅐-⅟↉①-⒛⓪-⓿❶-➓㆒-㆕㈠-㈩㉈-㉏㉑-㉟㊀-㊉㊱-㊿"  # numbers, but no digits
_LETTER = f"[^\\W\\d_{_IDEOGRAPHS}{_FRACTIONS}]"
_WORD = re.compile(
    f"[{_PICTURES}][{_MARKS}]*(?:(?<=\u200d)[{_PICTURES}][{_MARKS}]*)*"  # one emoji, or several joined
    f"|[{_FLAGS}]{{2}}|[{_IDEOGRAPHS}][{_MARKS}]*"
    # letters, digits and underscores; some signs stand inside of words, others inside of numbers
    f"|(?:[^\\W{_IDEOGRAPHS}{_FRACTIONS}\uff9e\uff9f][{_MARKS}]*|(?<={_LETTER})[:.'‘’·․‧︓﹒﹕＇．：](?={_LETTER})"
    "|(?<=\\d)[.,;'‘’․⁄︐︔﹐﹒﹔＇，．；](?=\\d))+"
)
_ASCII_WORD = re.compile(r"(?:\w|(?<=[a-z])[:.'](?=[a-z])|(?<=\d)[.,;'](?=\d))+", re.ASCII)
_POSSESSIVES = ("'s", "’s", "＇s")


def words(text: str) -> list[str]:
    """The words of `text` in small letters, in order; only blanks and punctuation are left out."""
    text = text.lower()
    found = (_ASCII_WORD if text.isascii() else _WORD).findall(text)
    if any(len(word) > MAX_TOKEN for word in found):
        found = [w[k : k + MAX_TOKEN] for w in found for k in range(0, len(w), MAX_TOKEN)]
    return [word for word in found if word.strip("_")]


def analyze(text: str) -> list[str]:
    """The index terms of `text`, in order, with repetitions."""
    terms = []
    for word in words(text):
        term = _term(word)
        if term:
            terms.append(term)
    return terms


@lru_cache(maxsize=2**17)
def _term(word: str) -> str:
    """The index term of a word; empty for a stop word."""
    if word.endswith(_POSSESSIVES):
        word = word[:-2]
    return "" if word in STOP_WORDS else stem(word)


# --- Porter's stemmer (Program 14, 1980) --------------------------------------------------------------

_STEP2 = {
    **{"ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble"},
    **{"alli": "al", "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate"},
    **{"ator": "ate", "alism": "al", "iveness": "ive", "fulness": "ful", "ousness": "ous"},
    **{"aliti": "al", "iviti": "ive", "biliti": "ble", "logi": "log"},
}
_STEP3 = {
    **{"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""},
}
_STEP4 = (
    *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou"),
    *("ism", "ate", "iti", "ous", "ive", "ize"),
)
_LONGEST_FIRST = tuple(sorted(_STEP4, key=len, reverse=True))


def stem(word: str) -> str:
    """Porter's stem of a word in small letters; words of one or two letters stay as they are."""
    if len(word) <= 2:
        return word
    word = _plural(word)
    word = _past(word)
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _derived(word, _STEP2)
    word = _derived(word, _STEP3)
    word = _residual(word)
    return _final(word)


def _shape(word: str) -> str:
    """The word with c for each consonant and v for each vowel; y is a vowel after a consonant."""
    shape = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and shape.endswith("c"))
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    """How often a consonant follows a vowel."""
    return _shape(word).count("vc")


def _has_vowel(word: str) -> bool:
    return "v" in _shape(word)


def _double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _shape(word)[-1] == "c"


def _short(word: str) -> bool:
    """Whether the word ends in consonant, vowel, consonant, the last not w, x or y."""
    return _shape(word).endswith("cvc") and word[-1] not in "wxy"


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        if word.endswith(suffix):
            root = word.removesuffix(suffix)
            return _mended(root) if _has_vowel(root) else word
    return word


def _mended(root: str) -> str:
    """The root that ed or ing was taken from, with its e back or its doubled letter single."""
    if root.endswith(("at", "bl", "iz")):
        return root + "e"
    if _double(root) and root[-1] not in "lsz":
        return root[:-1]
    return root + "e" if _measure(root) == 1 and _short(root) else root


def _derived(word: str, endings: dict[str, str]) -> str:
    for ending, short in endings.items():
        if word.endswith(ending):
            root = word.removesuffix(ending)
            return root + short if _measure(root) > 0 else word
    return word


def _residual(word: str) -> str:
    for ending in _LONGEST_FIRST:
        if word.endswith(ending):
            root = word.removesuffix(ending)
            allowed = ending != "ion" or root.endswith(("s", "t"))
            return root if allowed and _measure(root) > 1 else word
    return word


def _final(word: str) -> str:
    if word.endswith("e"):
        root = word[:-1]
        measure = _measure(root)
        if measure > 1 or (measure == 1 and not _short(root)):
            word = root
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word
