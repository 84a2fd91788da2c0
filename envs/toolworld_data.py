"""ToolWorld's people, goods and papers: a world full of them, made from a random generator."""

from random import Random

from turnbench.envs.toolworld_state import OWNER, PREFIX, State

TODAY = "2031-03-03"
FIRST = (
    *("Ana", "Bo", "Carla", "Dmitri", "Edda", "Farid", "Greta", "Hiro", "Ines", "Jonas", "Kaya"),
    *("Lars", "Mina", "Nils", "Oda", "Pavel", "Rosa", "Sami", "Tilda", "Uma", "Viktor", "Wanda"),
)
LAST = (
    *("Adler", "Brandt", "Castro", "Dahl", "Egger", "Fonseca", "Grau", "Holm", "Ito", "Jansen"),
    *("Keller", "Larsen", "Moreau", "Novak", "Okafor", "Petrov", "Quist", "Rossi", "Silva", "Tamm"),
)
LOOKS = ("oak", "brass", "linen", "blue", "folding", "small", "striped", "cork", "glass", "woollen")
GOODS = ("lamp", "shelf", "blanket", "teapot", "mirror", "stool", "basket", "clock", "vase", "rug")
TOPICS = (
    *("Budget", "Delivery", "Contract", "Newsletter", "Trade fair", "Stock count", "Website", "Payroll"),
    *("Catalogue", "Insurance", "Warehouse", "Training", "Photo session", "Price list", "Rent"),
)
PLACES = ("Oslo", "Porto", "Graz", "Tartu", "Lyon", "Kyoto", "Ghent", "Turin", "Cork", "Basel")
MEETINGS = ("review", "planning", "interview", "briefing", "workshop", "call", "lunch", "visit")
VENDORS = (
    *("Northlight Printing", "Harbour Freight", "Bluebird Telecom", "Stonegate Rent", "Alder Cleaning"),
    *("Mill Street Paper", "Quay Electric", "Summit Insurance", "Fern Software", "Old Town Packaging"),
)
STREETS = ("Mill Lane", "Station Road", "Harbour Street", "Elm Avenue", "Church Square", "Ring Road")
WORDS = ("amber", "basil", "cedar", "delta", "ember", "flint", "grove", "heron", "ivory", "jasper")
FILLER = (
    "Please keep this for the record.",
    "There is no need to answer.",
    "The details were settled last week.",
    "We will come back to it after the holidays.",
    "Nothing else has changed since.",
)
SIZES = {"contacts": 12, "mail": 12, "events": 10, "files": 12, "products": 12, "orders": 14}
LARGE = {"contacts": 60, "mail": 120, "events": 60, "files": 120, "products": 60, "orders": 120}


def build(rng: Random, large: bool = False) -> State:
    """A world; a `large` one holds far more than anybody asks for, and longer texts."""
    size = LARGE if large else SIZES
    state: State = {"contacts": _contacts(rng, size["contacts"])}
    emails = [record["email"] for record in state["contacts"].values()]
    state["mail"] = _mail(rng, size["mail"], emails, large)
    state["events"] = _events(rng, size["events"], emails)
    state["files"] = _files(rng, size["files"], large)
    state["products"] = _products(rng, size["products"])
    state["orders"] = _orders(rng, size["orders"], emails, state)
    state["invoices"] = _invoices(rng)
    accounts = ("checking", "savings", "tax")
    state["accounts"] = {name: {"balance": rng.randrange(5000, 9000)} for name in accounts}
    state["payments"], state["refusals"] = {}, {}
    state["next"] = {table: {"id": 900} for table in PREFIX}
    return state


def pairs(
    rng: Random, left: tuple[str, ...], right: tuple[str, ...], count: int
) -> list[tuple[str, str]]:
    """Different pairs, in random order."""
    return [
        (left[k // len(right)], right[k % len(right)])
        for k in rng.sample(range(len(left) * len(right)), count)
    ]


def text(rng: Random, large: bool) -> str:
    """A sentence or two that nobody needs; many for a large world."""
    return " ".join(rng.choices(FILLER, k=rng.randrange(8, 20) if large else 1))


def address(rng: Random) -> str:
    """A street and a number."""
    return f"{rng.choice(STREETS)} {rng.randrange(1, 99)}"


def date(rng: Random) -> str:
    """A day of the month."""
    return f"2031-03-{rng.randrange(4, 29):02}"


def time(rng: Random) -> str:
    """A full or half hour."""
    return f"{rng.randrange(8, 18):02}:{rng.choice(('00', '30'))}"


def _numbered(prefix: str, rng: Random, count: int) -> list[str]:
    return [f"{prefix}-{number}" for number in sorted(rng.sample(range(100, 900), count))]


def _contacts(rng: Random, count: int) -> dict[str, dict[str, str]]:
    names = pairs(rng, FIRST, LAST, count)
    return {f"{a} {b}": {"email": f"{a}.{b}@mail.example".lower()} for a, b in names}


def _mail(rng: Random, count: int, emails: list[str], large: bool) -> dict[str, dict[str, str]]:
    found = {}
    for key, (topic, place) in zip(
        _numbered("M", rng, count), pairs(rng, TOPICS, PLACES, count), strict=True
    ):
        head = {"from": rng.choice(emails), "to": OWNER, "subject": f"{topic} {place}"}
        found[key] = {**head, "body": text(rng, large), "folder": "inbox"}
    return found


def _events(rng: Random, count: int, emails: list[str]) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for key, (topic, kind) in zip(
        _numbered("E", rng, count), pairs(rng, TOPICS, MEETINGS, count), strict=True
    ):
        when = {"date": date(rng), "start": time(rng), "minutes": rng.choice((30, 45, 60, 90))}
        people = sorted(rng.sample(emails, rng.randrange(1, 3)))
        found[key] = {"title": f"{topic} {kind}", **when, "attendees": people, "notes": text(rng, False)}
    return found


def _files(rng: Random, count: int, large: bool) -> dict[str, dict[str, str]]:
    folders = ("docs", "notes", "reports")
    found = {}
    for k, (topic, place) in enumerate(pairs(rng, TOPICS, PLACES, count)):
        path = f"{folders[k % 3]}/{topic}_{place}.txt".lower().replace(" ", "_")
        code = f"{rng.choice(WORDS)}-{rng.randrange(100, 999)}"
        found[path] = {"content": f"{text(rng, large)}\nCode word: {code}"}
    return found


def _products(rng: Random, count: int) -> dict[str, dict[str, object]]:
    rows = zip(_numbered("P", rng, count), pairs(rng, LOOKS, GOODS, count), strict=True)
    return {
        key: {
            "name": f"{look} {good}",
            "price": rng.randrange(5, 90),
            "stock": rng.randrange(12, 60),
            "description": f"A {look} {good} for house and garden.",
        }
        for key, (look, good) in rows
    }


STATUSES = ("pending", "shipped", "delivered")


def _orders(rng: Random, count: int, emails: list[str], state: State) -> dict[str, dict[str, object]]:
    products = state["products"]
    found: dict[str, dict[str, object]] = {}
    chosen = pairs(rng, tuple(emails), tuple(products), count)
    for k, (key, (customer, sku)) in enumerate(zip(_numbered("O", rng, count), chosen, strict=True)):
        quantity = rng.randrange(1, 9)
        order = {
            "customer": customer,
            "sku": sku,
            "product": products[sku]["name"],
            "quantity": quantity,
        }
        total = quantity * products[sku]["price"]
        more = {
            "total": total,
            "status": STATUSES[k % 3],
            "address": address(rng),
            "note": "",
            "refunded": 0,
        }
        found[key] = order | more
    return found


def _invoices(rng: Random) -> dict[str, dict[str, object]]:
    """An open one of each vendor and, of every other one, a paid one."""
    vendors = rng.sample(VENDORS, 8)
    rows = [(vendor, "open") for vendor in vendors] + [(vendor, "paid") for vendor in vendors[::2]]
    rng.shuffle(rows)
    return {
        key: {"vendor": vendor, "amount": rng.randrange(40, 400), "status": status, "memo": ""}
        for key, (vendor, status) in zip(_numbered("I", rng, len(rows)), rows, strict=True)
    }
