"""Things of made-up counties, the facts about them, and the documents that state them: ClosedSearch's data."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple

VERSION = 1  # raise it when anything below changes what is made
COUNTY = 40  # documents of a county
PRIME = 100_003  # document numbers are spread over this many, so that neighbours don't tell


class Document(NamedTuple):
    """What `open_document` shows."""

    id: str
    title: str
    text: str


class Relation(NamedTuple):
    """A kind of fact. `target` is a kind of thing, "date" or "number"; {s} and {o} are its two ends.

    {x} is the known end: `forward` describes the object by the subject (or asks for the value),
    `inverse` the subject by the object. `words` help a search.
    """

    source: str
    target: str
    sentences: tuple[str, ...]
    forward: str
    inverse: str
    words: str


TABLE = """
person|town|{s} was born in {o}. / The parish register of {o} records the birth of {s}.|the town where {x} was born|the person born in {x}|born birth
person|school|{s} studied at {o}. / As a student {s} went to {o}.|the school where {x} studied|the person who studied at {x}|studied student
person|date|{s} was born on {o}. / The date of birth of {s} is {o}.|On what date was {x} born?|the person born on {x}|born birth date
town|person|The mayor of {s} is {o}. / {o} was elected mayor of {s}.|the mayor of {x}|the town whose mayor is {x}|mayor
town|date|{s} received its charter on {o}. / The charter of {s} bears the date of {o}.|On what date did {x} receive its charter?|the town that received its charter on {x}|charter
town|number|{s} has {o} inhabitants. / The last census of {s} counted {o} inhabitants.|How many inhabitants does {x} have?|the town with {x} inhabitants|inhabitants census
company|person|{s} was founded by {o}. / The founder of {s} is {o}.|the founder of {x}|the company founded by {x}|founded founder company
company|town|{s} has its head office in {o}. / The head office of {s} stands in {o}.|the town where {x} has its head office|the company with its head office in {x}|head office
company|date|{s} was registered on {o}. / The register lists {s} since {o}.|On what date was {x} registered?|the company registered on {x}|registered register
ship|company|The {s} was built by {o}. / {o} laid down and built the {s}.|the company that built {x}|the ship built by {x}|ship built
ship|person|The captain of the {s} is {o}. / {o} commands the {s} as its captain.|the captain of {x}|the ship whose captain is {x}|ship captain
ship|date|The {s} was launched on {o}. / The launch of the {s} took place on {o}.|On what date was {x} launched?|the ship launched on {x}|ship launched launch
ship|number|The {s} displaces {o} tonnes. / Fully laden the {s} displaces {o} tonnes.|How many tonnes does {x} displace?|the ship that displaces {x} tonnes|ship displaces tonnes
book|person|{s} was written by {o}. / The author of {s} is {o}.|the author of {x}|the book written by {x}|book written author
book|company|{s} was printed by {o}. / {o} printed {s}.|the company that printed {x}|the book printed by {x}|book printed
book|person|{s} is dedicated to {o}. / A dedication to {o} opens {s}.|the person to whom {x} is dedicated|the book dedicated to {x}|book dedicated dedication
book|date|{s} was published on {o}. / {s} came out on {o}.|On what date was {x} published?|the book published on {x}|book published came out
building|person|{s} was designed by {o}. / The architect of {s} is {o}.|the architect of {x}|the building designed by {x}|designed architect
building|town|{s} stands in {o}. / Visitors find {s} in the middle of {o}.|the town where {x} stands|the building that stands in {x}|stands
building|date|{s} was opened on {o}. / The doors of {s} were opened on {o}.|On what date was {x} opened?|the building opened on {x}|opened
festival|person|{s} was first organised by {o}. / {o} organised the first {s}.|the person who first organised {x}|the festival first organised by {x}|festival organised
festival|town|{s} takes place in {o}. / Every year {s} takes place in {o}.|the town where {x} takes place|the festival that takes place in {x}|festival takes place
festival|number|{s} draws {o} guests. / The last {s} drew {o} guests.|How many guests does {x} draw?|the festival that draws {x} guests|festival guests
school|person|The principal of {s} is {o}. / {o} leads {s} as its principal.|the principal of {x}|the school whose principal is {x}|school principal
school|town|{s} is a school in {o}. / {s} opened its classrooms in {o}.|the town where {x} is|the school in {x}|school classrooms
school|number|{s} teaches {o} pupils. / At {s} {o} pupils are taught.|How many pupils does {x} teach?|the school that teaches {x} pupils|school pupils
"""


def _relations() -> tuple[Relation, ...]:
    rows = (row.split("|") for row in TABLE.strip().splitlines())
    return tuple(
        Relation(source, target, tuple(said.split(" / ")), forward, inverse, words)
        for source, target, said, forward, inverse, words in rows
    )


RELATIONS = _relations()
SIZES = {  # things of each kind in a county; together COUNTY
    "town": 5,
    "school": 3,
    "person": 13,
    "company": 5,
    "ship": 4,
    "book": 4,
    "building": 3,
    "festival": 3,
}
MONTHS = "January February March April May June July August September October November December".split()
GIVEN = (
    "Ada Albin Alma Anton Astrid Aurel Beata Bruno Carla Casimir Clara Dario Edda Edwin Elsa Emil Ester Fabian"
    " Flora Gerda Gustav Hanna Hedwig Henrik Ida Igor Ilse Ines Ivo Jana Jonas Judit Karl Katja Klara Lars Lena"
    " Linus Lotte Magda Marek Marta Milo Mira Nadia Nils Nora Olaf Olga Oskar Paula Pavel Petra Rasmus Rita Rolf"
    " Rosa Rufus Sara Selma Silas Sonja Stefan Tilda Tomas Ulla Urban Vera Viktor Wanda Werner Xenia Yara Zoltan"
).split()
SYLLABLES = "al bar bel cor dan del dor el fal fen gar gil har hol il jar kel lan lor mar mel nor or pel quin ras ros sal sen tal tor ul van ver wes yar zan".split()
PLACES = "by den ford ham holm ley mere mouth stead thorpe ton wick worth burgh".split()
ENDINGS = "ek en er ic is off old on or ov sen stam stein strom ula ven wen wich".split()
COLOURS = "Amber Ashen Bold Bright Bronze Calm Copper Crimson Distant Early Eastern Empty Faithful Golden Green Grey Hidden Iron Ivory Late Little Lonely Merry Northern Pale Patient Proud Quiet Red Restless Scarlet Silent Silver Sleeping Southern Steady Stubborn Velvet Western White Wild Winter".split()
THINGS = "Albatross Anchor Badger Beacon Bell Blossom Candle Cedar Clover Comet Compass Cormorant Crane Dolphin Ember Falcon Fern Finch Gull Harbour Hawk Heron Island Kestrel Lantern Lark Lighthouse Lynx Magpie Marigold Meadow Mirror Nightingale Orchard Otter Owl Pelican Plover Raven River Sparrow Star Swallow Thistle Tide Violet Walnut Willow Wren".split()
TRADES = "Baker Beekeeper Binder Brewer Carpenter Clockmaker Cooper Dyer Ferryman Fisher Gardener Glazier Goldsmith Grocer Hatter Joiner Lamplighter Mason Miller Painter Piper Porter Potter Sailor Shepherd Smith Surveyor Tailor Tanner Weaver".split()
FIRMS = "Brothers|Mills|Works|Company|Trading House|Foundry|Yards".split("|")
HOUSES = "Bridge Theatre Observatory Library Museum Station Tower".split()
FEASTS = "Kite Festival|Lantern Fair|Harvest Days|Song Week|Rowing Days|Puppet Festival".split("|")
SCHOOLS = "Academy College Institute Seminary".split()
LEADS = {
    "town": "{s} is a market town in the county of {c}.",
    "school": "{s} belongs to the older institutions of the county of {c}.",
    "person": "{s} is a {t} from the county of {c}.",
    "company": "{s} is a firm in the county of {c}.",
    "ship": "The {s} is a ship on the register of the county of {c}.",
    "book": "{s} is a novel from the county of {c}.",
    "building": "{s} is a listed building in the county of {c}.",
    "festival": "{s} is a public holiday fair in the county of {c}.",
}
ASIDES = (
    "Little is known of the early years.",
    "Several letters on the matter are kept in the county archive.",
    "A fire destroyed part of the older records.",
    "Local newspapers wrote about it more than once.",
    "An exhibition on the subject toured the county.",
    "The chronicle of {c} gives it half a page.",
    "Older accounts differ in small details.",
    "A later edition of the county handbook corrects the spelling.",
)


class Thing(NamedTuple):
    """What a document is about; `row` is the document's place in the corpus."""

    row: int
    kind: str
    name: str


class Fact(NamedTuple):
    """`subject`, relation number, and the object: a thing or a value."""

    subject: Thing
    relation: int
    object: "Thing | str"


@dataclass(slots=True)
class Names:
    """What is taken already: names and values, and answers with the split that may use them."""

    seed: int
    taken: set[tuple[str, str]] = field(default_factory=set)
    answers: dict[str, str] = field(default_factory=dict)


def document_id(row: int) -> str:
    """The id of a generated document."""
    return f"d{(row + 1) * 7919 % PRIME:06d}"


# --- names ----------------------------------------------------------------------------------------------


def unique(names: Names, draw: Callable[[], str], what: str = "") -> str:
    """The first text drawn that nothing of the same sort (`what`) has yet."""
    while (what, name := draw()) in names.taken:
        pass
    names.taken.add((what, name))
    return name


def draw_word(rng: Random) -> str:
    """Two syllables, as counties and towns begin."""
    return (rng.choice(SYLLABLES) + rng.choice(SYLLABLES)).capitalize()


def _surname(rng: Random) -> str:
    return (
        rng.choice(SYLLABLES).capitalize()
        + rng.choice(("", rng.choice(SYLLABLES)))
        + rng.choice(ENDINGS)
    )


def draw_name(rng: Random, kind: str) -> str:
    """A name such as things of a kind have; there are enough for 100,000 documents."""
    if kind == "person":
        return f"{rng.choice(GIVEN)} {_surname(rng)}"
    if kind == "town":
        return draw_word(rng) + rng.choice(PLACES)
    if kind == "ship":
        home = f" of {draw_word(rng)}" if rng.random() < 0.3 else ""
        return f"{rng.choice(COLOURS)} {rng.choice(THINGS)}{home}"
    if kind == "book":
        return f"The {rng.choice(TRADES)}'s {rng.choice(COLOURS)} {rng.choice(THINGS)}"
    ends = {"company": FIRMS, "building": HOUSES, "festival": FEASTS, "school": SCHOOLS}[kind]
    return f"{_surname(rng)} {rng.choice(ends)}"


# --- facts and texts ------------------------------------------------------------------------------------


def make_facts(rng: Random, names: Names, things: list[Thing]) -> list[Fact]:
    """One fact of each fitting relation for each thing; no value stands in two facts of a relation."""
    found = []
    for thing in things:
        for number, relation in enumerate(RELATIONS):
            if relation.source != thing.kind:
                continue
            if relation.target in VALUES:
                value = unique(names, partial(VALUES[relation.target], rng), str(number))
                found.append(Fact(thing, number, value))
            else:
                others = [o for o in things if o.kind == relation.target and o != thing]
                found.append(Fact(thing, number, rng.choice(others)))
    return found


def _date(rng: Random) -> str:
    return f"{rng.randint(1, 28)} {rng.choice(MONTHS)} {rng.randint(1740, 1960)}"


def _number(rng: Random) -> str:
    return str(rng.randint(1_001, 49_999))


VALUES: dict[str, Callable[[Random], str]] = {"date": _date, "number": _number}


def make_document(rng: Random, thing: Thing, facts: list[Fact], county: str) -> Document:
    """The document on a thing: what it is, every fact about it in some words, and two asides."""
    said = [
        rng.choice(RELATIONS[fact.relation].sentences).format(s=thing.name, o=shown(fact.object))
        for fact in facts
        if fact.subject == thing
    ]
    said += [aside.format(c=county) for aside in rng.sample(ASIDES, 2)]
    rng.shuffle(said)
    lead = LEADS[thing.kind].format(s=thing.name, c=county, t=rng.choice(TRADES).lower())
    return Document(document_id(thing.row), thing.name, " ".join([lead, *said]))


def shown(value: Thing | str) -> str:
    """A thing or value as a sentence has it."""
    return (
        value if isinstance(value, str) else f"the {value.name}" if value.kind == "ship" else value.name
    )
