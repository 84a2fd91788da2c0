"""WebShop's pages, actions and observations, row by row, on a small catalogue in the official form."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnbench.envs import make
from turnbench.envs.webshop_pages import parse

TEXT = "Find me soft lamps with color: red, and price lower than 30.00 dollars"
HEAD = f"Instruction: [SEP] {TEXT} [SEP] Back to Search"
TAIL = "Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
START = f"WebShop [SEP] Instruction: [SEP] {TEXT} [SEP] Search"


def item(number: int, **changes) -> dict:
    return {
        "asin": f"B00LAMP{number:03}",
        "name": f"Lamp {number}",
        "category": "garden",
        "query": "lamps",
        "product_category": "Home › Lighting › Lamps",
        "pricing": "$12.50",
        "small_description": ["Soft light", "Small"],
        "full_description": "A lamp.",
        "customization_options": "",
        "images": [],
        **changes,
    }


ITEMS = [
    item(
        0,
        name="Lamp 0 <b> & 'Co'",
        pricing="$15.00 - $1,025.50",
        customization_options={
            "Size": [{"value": "Big "}, {"value": "1/2"}],
            "Color": [{"value": "Red"}, {"value": "Blue"}],
            "Gone": None,
        },
    ),
    item(1, full_description="", small_description=["", " a \n", "\n", "b"], pricing=""),
    # the same value under two names, and values that are also buttons
    item(
        2,
        customization_options={
            "Shade": [{"value": "red"}, {"value": 'x"y'}, {"value": "café"}],
            "Foot": [{"value": "red"}, {"value": "Search"}, {"value": "Description"}],
        },
        small_description="one bullet",
    ),
    *(item(number) for number in range(3, 64)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("webshop")
    (folder / "items_shuffle_1000.json").write_text(json.dumps(ITEMS), encoding="utf-8")
    info = {row["asin"]: {"attributes": ["soft light"]} for row in ITEMS}
    human = {
        "B00LAMP003": [
            {
                "instruction": "Find me soft lamps with color: red.",
                "instruction_attributes": ["soft"],
                "instruction_options": ["red"],
            }
        ]
    }
    (folder / "items_ins_v2_1000.json").write_text(json.dumps(info), encoding="utf-8")
    (folder / "items_human_ins.json").write_text(json.dumps(human), encoding="utf-8")
    return str(folder)


@pytest.fixture
def shop(folder):
    def start(**options):
        env = make(
            "turnbench/WebShop-v0",
            **{
                "catalogue": "1k",
                "goals": "human",
                "data": folder,
                "verify": False,
                "max_turns": 99,
                **options,
            },
        )
        env.reset(seed=0, options={"task": "0"})
        # the drawn price bound is not what is tested here
        env.goal = type(env.goal)(env.goal.product, TEXT, env.goal.attributes, env.goal.options, 30.0)
        return env

    return start


def act(env, *actions: str) -> str:
    for action in actions:
        observation = env.step(action)[0]
    return observation


def to_item(env, number: int) -> str:
    """Look at a product through the results, wherever it stands in them."""
    act(env, f"search[lamp {number}]")
    while f"B00LAMP{number:03}" not in [p.asin for p in env.page.shown]:
        act(env, "click[next >]")
    return act(env, f"click[b00lamp{number:03}]")


# --- text mode ------------------------------------------------------------------------------------------


def test_search_page(shop) -> None:
    env = shop()
    assert act(env, "click[search]") == START
    assert env.available_actions() == {"has_search_bar": True, "clickables": ["search"]}


def test_results_page_shows_ten(shop) -> None:
    env = shop()
    page = act(env, "search[lamp]")
    shown = env.page.shown
    assert len(shown) == 10
    offers = " [SEP] ".join(f"{p.asin} [SEP] {p.title} [SEP] {p.price_tag}" for p in shown)
    assert page == f"{HEAD} [SEP] Page 1 (Total results: 50) [SEP] Next > [SEP] {offers}"
    asins = [p.asin.lower() for p in shown]
    assert env.available_actions() == {
        "has_search_bar": False,
        "clickables": ["back to search", "next >", *asins],
    }


def test_pages_go_on_without_end(shop) -> None:
    env = shop()
    assert f"{HEAD} [SEP] Page 2 (Total results: 50) [SEP] < Prev [SEP] Next > [SEP] B00" in act(
        env, "search[lamp]", "click[next >]"
    )
    empty = f"{HEAD} [SEP] Page 7 (Total results: 50) [SEP] < Prev [SEP] Next >"
    assert act(env, *["click[next >]"] * 5) == empty
    assert env.available_actions()["clickables"] == ["back to search", "< prev", "next >"]
    assert "Page 6 (" in act(env, "click[< prev]")


def test_item_page(shop) -> None:
    env = shop()
    assert to_item(env, 0) == (
        f"{HEAD} [SEP] < Prev [SEP] size [SEP] big [SEP] 1 | 2 [SEP] color [SEP] red [SEP] blue [SEP] "
        f"Lamp 0 <b> & 'Co' [SEP] Price: $15.0 to $1025.5 [SEP] {TAIL}"
    )
    assert env.available_actions()["clickables"] == [
        *("back to search", "< prev", "description", "features", "reviews", "buy now"),
        *("big", "1 | 2", "red", "blue"),
    ]


def test_a_product_without_price_costs_100(shop) -> None:
    assert "Price: $100.0 [SEP]" in to_item(shop(), 1)


def test_sub_pages(shop) -> None:
    env = shop()
    to_item(env, 0)
    front = f"{HEAD} [SEP] < Prev"
    assert act(env, "click[description]") == f"{front} [SEP] A lamp."
    assert env.available_actions()["clickables"] == ["back to search", "< prev"]
    assert act(env, "click[< prev]", "click[features]") == f"{front} [SEP] Soft light [SEP] Small"
    assert act(env, "click[< prev]", "click[reviews]") == front


def test_empty_texts(shop) -> None:
    """As the published code does: no field for an empty text or one of line breaks, an empty one for
    other blanks, which is what an empty bullet amounts to."""
    env = shop()
    to_item(env, 1)
    assert act(env, "click[description]") == f"{HEAD} [SEP] < Prev"
    assert act(env, "click[< prev]", "click[features]") == f"{HEAD} [SEP] < Prev [SEP]  [SEP] a [SEP] b"


def test_a_bullet_that_is_no_list(shop) -> None:
    env = shop()
    to_item(env, 2)
    assert act(env, "click[features]").endswith("< Prev [SEP] one bullet")


def test_a_chosen_option_is_not_visible(shop) -> None:
    env = shop()
    page = to_item(env, 0)
    assert act(env, "click[red]") == page
    assert env.page.options == (("color", "red"),)


def test_done_page(shop) -> None:
    env = shop()
    to_item(env, 0)
    act(env, "click[red]")
    page, reward, terminated, _, info = env.step("click[buy now]")
    assert terminated and info["success"] is False
    assert page == (
        "Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] (Paste it in your MTurk "
        'interface.) [SEP] Purchased [SEP] asin [SEP] B00LAMP000 [SEP] options [SEP] {"color": "red"} '
        "[SEP] attrs [SEP] None [SEP] category [SEP] None [SEP] query [SEP] None [SEP] product category "
        "[SEP] None [SEP] Target [SEP] asin [SEP] options [SEP] attrs [SEP] price upper [SEP] instuction "
        "text [SEP] category [SEP] product category [SEP] query [SEP] Goal [SEP] None [SEP] Reward [SEP] "
        f"Your score (min 0.0, max 1.0) [SEP] {reward} [SEP] Reward Details [SEP] None"
    )
    assert env.available_actions() == {"has_search_bar": False, "clickables": []}


def test_done_page_prints_options_as_flask_does(shop) -> None:
    """Keys sorted, characters beyond ASCII and < > & ' escaped."""
    env = shop()
    to_item(env, 2)
    page = act(env, "click[café]", "click[search]", "click[buy now]")
    assert r'options [SEP] {"shade": "caf\u00e9"} [SEP]' in page


# --- actions --------------------------------------------------------------------------------------------

NOTHING = [
    *("Search[x]", "click [x]", "click[ buy now ]", "search[]", "click[search]", "click[nothing]"),
    *("I think search[lamp]", "search[lamp] click[b]", "look around\nsearch[lamp]", "", "]", "[", "[]"),
    *("search", "search[lamp", "search lamp]", "CLICK[buy now]", "search[\nlamp]", " search[lamp]"),
    *(
        "click[description]",
        "click[< prev]",
        "click[next >]",
        "click[back to search]",
        "click[b00lamp001]",
    ),
]


@pytest.mark.parametrize("action", NOTHING)
def test_what_is_no_action_changes_nothing(shop, action) -> None:
    env = shop()
    observation, reward, terminated, truncated, info = env.step(action)
    assert (observation, reward, terminated, truncated, info) == (START, 0.0, False, False, {})
    assert len(env.history) == 1  # it takes a turn all the same


@pytest.mark.parametrize("action", ["click[ buy now ]", "Click[buy now]", "click[buy]", "click[red ]"])
def test_what_is_no_action_on_an_item_page(shop, action) -> None:
    env = shop()
    page = to_item(env, 0)
    assert act(env, action) == page and not env.page.options


@pytest.mark.parametrize(
    "action",
    [
        *("search[lamp]", "search[LAMP]", "search[lamp] and so on", "search[lamp]\nclick[x]"),
        *("search[lamp]\nThought: a [b] c", "search[lamp]] "),
    ],
)
def test_what_is_an_action_all_the_same(shop, action) -> None:
    env = shop()
    assert "Page 1 (Total results: 50)" in act(env, action)


def test_search_works_on_every_page(shop) -> None:
    env = shop()
    to_item(env, 0)
    assert "Page 1 (" in act(env, "click[red]", "search[lamp]")
    assert env.page.options == () and env.page.product is None
    to_item(env, 0)
    assert "Page 1 (" in act(env, "click[features]", "search[lamp 5]")


def test_blank_and_unknown_keywords_find_nothing(shop) -> None:
    nothing = f"{HEAD} [SEP] Page 1 (Total results: 0) [SEP] Next >"
    assert act(shop(), "search[ ]") == act(shop(), "search[zebra]") == nothing


@pytest.mark.parametrize("keywords", ["<r>", "<a> soft light", "<c> garden", "<q> lamps"])
def test_hidden_commands_are_only_words(shop, keywords) -> None:
    """The published shop answers these with random or with all products, or fails."""
    words = re.sub("[<>]", "", keywords)
    env, other = shop(), shop()
    assert act(env, f"search[{keywords}]") == act(other, f"search[{words}]")


def test_the_way_back(shop) -> None:
    env = shop()
    results = act(env, "search[lamp]", "click[next >]")
    asin = env.page.shown[0].asin.lower()
    page = act(env, f"click[{asin}]")
    assert act(env, "click[features]", "click[< prev]") == page
    assert act(env, "click[< prev]") == results and env.page.product is None
    assert act(env, "click[back to search]") == START
    assert env.page == type(env.page)()


def test_sub_pages_keep_options_and_results_drop_them(shop) -> None:
    env = shop()
    to_item(env, 0)
    act(env, "click[red]", "click[reviews]", "click[< prev]")
    assert env.page.options == (("color", "red"),)
    act(env, "click[< prev]")
    assert env.page.options == ()


def test_the_last_click_on_an_option_wins(shop) -> None:
    env = shop()
    to_item(env, 0)
    act(env, "click[red]", "click[big]", "click[blue]")
    assert env.page.options == (("color", "blue"), ("size", "big"))


def test_options_are_found_by_their_value(shop) -> None:
    """Two options share a value: the last has it. A value that is a button's name can't be chosen."""
    env = shop()
    page = to_item(env, 2)
    act(env, "click[red]")
    assert env.page.options == (("foot", "red"),)
    assert env.available_actions()["clickables"].count("red") == 1
    assert act(env, "click[search]") == page and env.page.options == (("foot", "red"),)
    assert act(env, "click[description]").endswith("[SEP] A lamp.")


def test_buy_now_only_on_the_item_page(shop) -> None:
    env = shop()
    to_item(env, 0)
    page = act(env, "click[features]")
    assert act(env, "click[buy now]") == page and not env.over
    act(env, "click[< prev]")
    assert env.step("click[Buy Now]")[2]


actions = st.one_of(
    st.text("[]ab \n", max_size=12),
    st.text(max_size=20),
    st.builds(
        "{}[{}]{}".format,
        st.text("abc[] ", max_size=4),
        st.text("aB[]é ", max_size=5),
        st.text(max_size=3),
    ),
)


@given(actions)
@settings(deadline=None, max_examples=500)
def test_actions_are_read_as_the_pattern_does(text) -> None:
    match = re.match(r"(.+)\[(.+)\]", text)
    assert parse(text) == ((match[1], match[2].lower()) if match else ("", ""))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("[" * 1_000_000, ("", "")),
        ("a[" * 500_000, ("", "")),
        ("a[" * 300_000 + "]", ("a[" * 299_998 + "a", "a[")),
        ("]" * 1_000_000, ("", "")),
    ],
    ids=["open", "named", "closed", "close"],
)
def test_many_brackets_take_no_longer(text, read) -> None:
    assert parse(text) == read


# --- other observations ---------------------------------------------------------------------------------


def test_rich_text_marks_buttons_and_clicks(shop) -> None:
    env = shop(observation="text_rich")
    front = f"Instruction:\n{TEXT}\n[button] Back to Search [button_]\n"
    start = f"WebShop\nInstruction: \n{TEXT}\n[button] Search [button_]\n"
    assert act(env, "click[search]") == start
    page = act(env, "search[lamp]")
    first = env.page.shown[0]
    assert page.startswith(
        f"{front}Page 1 (Total results: 50)\n[button] Next > [button_]\n"
        f"\n[button] {first.asin} [button_]\n{first.title}\n{first.price_tag}\n\n[button] "
    )
    page = act(env, f"click[{first.asin.lower()}]", "click[< prev]")
    assert f"\n[clicked button] {first.asin} [clicked button_]\n" in page
    assert "[clicked button]" not in act(env, "click[back to search]", "search[lamp]")


def test_rich_text_marks_chosen_options(shop) -> None:
    env = shop(observation="text_rich")
    to_item(env, 0)
    page = act(env, "click[red]", "click[big]")
    assert page.startswith("You have clicked red.\nYou have clicked big.\nInstruction:\n")
    assert "size\n  [clicked button] big [clicked button_]\n  [button] 1 | 2 [button_]\ncolor\n" in page
    assert page.endswith("[button] Buy Now [button_]\n")


def test_rich_text_misses_values_that_json_escapes(shop) -> None:
    env = shop(observation="text_rich")
    to_item(env, 2)
    assert "clicked" not in act(env, "click[café]")
    assert "clicked" not in act(env, 'click[x"y]')


def test_urls(shop) -> None:
    env = shop(observation="url")
    host = "http://127.0.0.1:3000"
    assert act(env, "click[search]") == f"{host}/0"
    assert act(env, "search[Red  lamp 0]") == f"{host}/search_results/0/red++lamp+0/1"
    assert act(env, "click[next >]") == f"{host}/search_results/0/red++lamp+0/2"
    to_item(env, 0)
    number = env.page.number
    item_url = act(env, "click[big]", "click[red]")
    options = '{"size": "big", "color": "red"}'
    assert item_url == f"{host}/item_page/0/B00LAMP000/lamp+0/{number}/{options}"
    chosen = "{'size': 'big', 'color': 'red'}"
    assert act(env, "click[features]") == (
        f"{host}/item_sub_page/0/B00LAMP000/lamp+0/{number}/Features/{chosen}"
    )
    assert act(env, "click[< prev]") == item_url
    assert act(env, "click[buy now]") == f"{host}/done/0/B00LAMP000/{chosen}"


def test_actions_are_listed_on_request_only(shop) -> None:
    plain, listed = shop(), shop(list_actions=True)
    assert act(listed, "click[search]") == f"{START}\n\nPossible actions: search[keywords]"
    page = to_item(listed, 0)
    assert page.startswith(to_item(plain, 0)) and "click[buy now], click[big]" in page
    assert "listed" in listed.instructions and "listed" not in plain.instructions
    assert "Possible actions" not in act(listed, "click[buy now]")
