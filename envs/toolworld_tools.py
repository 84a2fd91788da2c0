"""ToolWorld's tools: what an assistant can do in an office and a shop, over one state of tables.

A state maps a table's name to the table, and that an id to a record. Neither tables nor records ever
change: a write puts new ones in their place, so that a copy of the state is a copy of the world. Money
is whole euros.
"""

import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

from turnbench.envs.record import Json

Record = Json
State = dict[str, dict[str, Record]]

OWNER = "robin@valeshop.example"
MAX_CONTENT = 20_000
SHOWN = 200
PREFIX = {"mail": "M", "events": "E", "orders": "O", "payments": "T", "refusals": "R"}


class ToolError(Exception):
    """A tool refuses; the message is for whoever called it. Never leaves the world."""


class Tool(NamedTuple):
    """A tool: what runs, its schema, whether it changes the state and whether that can be undone."""

    run: Callable[..., Any]
    schema: Json
    writes: bool
    final: bool


TOOLS: dict[str, Tool] = {}
_TYPES = {str: "string", int: "integer"}


def tool(
    *, writes: bool = False, final: bool = False, **hints: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of the state and typed arguments; its docstring describes it to an assistant,
    and `hints` describe single arguments."""

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        parameters = list(inspect.signature(run).parameters.values())[1:]
        properties = {p.name: _property(p.annotation, hints.get(p.name, "")) for p in parameters}
        required = [p.name for p in parameters if p.default is p.empty]
        schema = {"type": "object", "properties": properties, "required": required}
        function = {"name": run.__name__, "description": run.__doc__, "parameters": schema}
        described = {"type": "function", "function": function}
        TOOLS[run.__name__] = Tool(run, described, writes or final, final)
        return run

    return register


def _property(annotation: Any, hint: str) -> Json:
    described = {"description": hint} if hint else {}
    if get_origin(annotation) is list:
        return {"type": "array", "items": {"type": "string"}, **described}
    if get_origin(annotation) is Literal:
        return {"type": "string", "enum": list(get_args(annotation)), **described}
    return {"type": _TYPES[annotation], **described}


# --- what tools share -------------------------------------------------------------------------------


def _get(state: State, table: str, key: str, what: str) -> Record:
    found = state[table].get(key)
    if found is None:
        raise ToolError(f"there is no {what} {key[:60]!r}")
    return found


def _put(state: State, table: str, key: str, record: Record) -> None:
    state[table] = {**state[table], key: record}


def _drop(state: State, table: str, key: str, what: str) -> None:
    _get(state, table, key, what)
    state[table] = {k: record for k, record in state[table].items() if k != key}


def _add(state: State, table: str, record: Record) -> str:
    count = state["next"][table]["id"]
    _put(state, "next", table, {"id": count + 1})
    key = f"{PREFIX[table]}-{count}"
    _put(state, table, key, record)
    return key


def _having(
    table: dict[str, Record], words: str, fields: Collection[str]
) -> Iterator[tuple[str, Record]]:
    words = words.lower()
    for key, record in table.items():
        if any(words in record[name].lower() for name in fields):
            yield key, record


def _rows(found: Iterator[tuple[str, Record]], fields: Collection[str]) -> list[Json]:
    rows = []
    for (key, record), _ in zip(found, range(SHOWN), strict=False):
        rows.append({"id": key, **{name: record[name] for name in fields}})
    return rows


def _positive(amount: int, what: str) -> None:
    if amount < 1:
        raise ToolError(f"the {what} must be at least 1, not {amount}")


def _address(email: str) -> None:
    if "@" not in email:
        raise ToolError(f"{email[:60]!r} is no email address; find_contact gives it")


def _date(date: str) -> None:
    parts = date.split("-")
    if [len(part) for part in parts] != [4, 2, 2] or not date.replace("-", "").isdecimal():
        raise ToolError(f"{date[:20]!r} is no date as YYYY-MM-DD")


def _time(start: str) -> None:
    hours, _, minutes = start.partition(":")
    good = len(hours) == len(minutes) == 2 and (hours + minutes).isdecimal()
    if not good or int(hours) > 23 or int(minutes) > 59:
        raise ToolError(f"{start[:20]!r} is no time as HH:MM")


def _bounded(text: str) -> str:
    if len(text) > MAX_CONTENT:
        raise ToolError(f"the text is longer than {MAX_CONTENT} characters")
    return text


# --- contacts and mail --------------------------------------------------------------------------------

MAIL = ("from", "subject", "folder")


@tool()
def find_contact(state: State, name: str) -> Any:
    """Find people by a part of their name; gives names and email addresses."""
    return [
        {"name": key, "email": record["email"]}
        for key, record in state["contacts"].items()
        if name.lower() in key.lower()
    ][:SHOWN]


@tool(folder="inbox, archive or sent")
def list_mail(state: State, folder: Literal["inbox", "archive", "sent"]) -> Any:
    """List the mails of a folder."""
    return _rows(((k, r) for k, r in state["mail"].items() if r["folder"] == folder), MAIL)


@tool()
def search_mail(state: State, query: str) -> Any:
    """Find mails by words in sender, subject or body."""
    return _rows(_having(state["mail"], query, ("from", "subject", "body")), (*MAIL, "body"))


@tool(id="as in M-12")
def read_mail(state: State, id: str) -> Any:
    """Read one mail."""
    return _get(state, "mail", id, "mail")


@tool(writes=True, to="an email address")
def send_mail(state: State, to: str, subject: str, body: str) -> Any:
    """Send a mail."""
    _address(to)
    mail = {"from": OWNER, "to": to, "subject": subject, "body": _bounded(body), "folder": "sent"}
    return {"sent": _add(state, "mail", mail)}


@tool(writes=True, to="an email address")
def forward_mail(state: State, id: str, to: str) -> Any:
    """Forward a mail."""
    mail = _get(state, "mail", id, "mail")
    return send_mail(state, to, f"Fwd: {mail['subject']}", mail["body"])


@tool(writes=True)
def move_mail(state: State, id: str, folder: Literal["inbox", "archive"]) -> Any:
    """Move a mail to another folder."""
    _put(state, "mail", id, {**_get(state, "mail", id, "mail"), "folder": folder})
    return {"moved": id, "folder": folder}


@tool(final=True)
def delete_mail(state: State, id: str) -> Any:
    """Delete a mail for good."""
    _drop(state, "mail", id, "mail")
    return {"deleted": id}


# --- calendar -----------------------------------------------------------------------------------------


@tool(date="as YYYY-MM-DD")
def list_events(state: State, date: str) -> Any:
    """List the events of one day."""
    _date(date)
    found = ((k, r) for k, r in state["events"].items() if r["date"] == date)
    return _rows(found, ("title", "start", "minutes", "attendees", "notes"))


@tool()
def search_events(state: State, query: str) -> Any:
    """Find events by words in the title."""
    return _rows(_having(state["events"], query, ("title",)), ("title", "date", "start"))


@tool(writes=True, date="as YYYY-MM-DD", start="as HH:MM", attendees="email addresses")
def create_event(
    state: State, title: str, date: str, start: str, minutes: int, attendees: list[str]
) -> Any:
    """Put an event into the calendar."""
    _date(date)
    _time(start)
    _positive(minutes, "length")
    for email in attendees:
        _address(email)
    event = {"title": title, "date": date, "start": start, "minutes": minutes, "notes": ""}
    return {"created": _add(state, "events", {**event, "attendees": sorted(set(attendees))})}


@tool(writes=True, date="as YYYY-MM-DD", start="as HH:MM")
def move_event(state: State, id: str, date: str, start: str) -> Any:
    """Move an event to another day or time."""
    event = _get(state, "events", id, "event")
    _date(date)
    _time(start)
    _put(state, "events", id, {**event, "date": date, "start": start})
    return {"moved": id}


@tool(writes=True, email="an email address")
def add_attendee(state: State, id: str, email: str) -> Any:
    """Invite somebody to an event."""
    event = _get(state, "events", id, "event")
    _address(email)
    _put(state, "events", id, {**event, "attendees": sorted({*event["attendees"], email})})
    return {"invited": email}


@tool(final=True)
def cancel_event(state: State, id: str) -> Any:
    """Cancel an event for good."""
    _drop(state, "events", id, "event")
    return {"cancelled": id}


# --- files --------------------------------------------------------------------------------------------


@tool(folder="docs, notes or reports")
def list_files(state: State, folder: str) -> Any:
    """List the files of a folder."""
    found = [path for path in state["files"] if path.startswith(folder.rstrip("/") + "/")]
    if not found:
        raise ToolError(f"there is no folder {folder[:60]!r}; there are docs, notes and reports")
    return found[:SHOWN]


@tool(path="with its folder, as in docs/plan.txt")
def read_file(state: State, path: str) -> Any:
    """Read a file."""
    return _get(state, "files", path, "file")["content"]


@tool(writes=True, path="with its folder, as in docs/plan.txt")
def write_file(state: State, path: str, content: str) -> Any:
    """Write a new file."""
    if path in state["files"]:
        raise ToolError(f"the file {path[:60]!r} exists already")
    if path.partition("/")[0] not in ("docs", "notes", "reports") or len(path) > 100:
        raise ToolError("a path begins with docs/, notes/ or reports/")
    _put(state, "files", path, {"content": _bounded(content)})
    return {"written": path}


@tool(writes=True)
def append_file(state: State, path: str, line: str) -> Any:
    """Add a line to the end of a file."""
    content = _get(state, "files", path, "file")["content"]
    _put(state, "files", path, {"content": _bounded(f"{content}\n{line}")})
    return {"written": path}


@tool(writes=True)
def move_file(state: State, path: str, to: str) -> Any:
    """Move or rename a file."""
    content = _get(state, "files", path, "file")["content"]
    write_file(state, to, content)
    _drop(state, "files", path, "file")
    return {"moved": to}


@tool(final=True)
def delete_file(state: State, path: str) -> Any:
    """Delete a file for good."""
    _drop(state, "files", path, "file")
    return {"deleted": path}


# --- shop ---------------------------------------------------------------------------------------------


@tool()
def search_products(state: State, query: str) -> Any:
    """Find products by words in name or description."""
    return _rows(_having(state["products"], query, ("name", "description")), ("name", "description"))


@tool(sku="as in P-12")
def get_product(state: State, sku: str) -> Any:
    """Name, price, stock and description of a product."""
    return _get(state, "products", sku, "product")


@tool(customer="an email address")
def find_orders(state: State, customer: str) -> Any:
    """Find a customer's orders."""
    _address(customer)
    found = ((k, r) for k, r in state["orders"].items() if r["customer"] == customer)
    return _rows(found, ("product", "quantity", "total", "status", "note"))


@tool(id="as in O-12")
def get_order(state: State, id: str) -> Any:
    """Read one order."""
    return _get(state, "orders", id, "order")


@tool(writes=True, customer="an email address", sku="as in P-12")
def place_order(state: State, customer: str, sku: str, quantity: int) -> Any:
    """Order a product for a customer."""
    product = _get(state, "products", sku, "product")
    _address(customer)
    _positive(quantity, "quantity")
    if quantity > product["stock"]:
        raise ToolError(f"only {product['stock']} of {sku} are in stock")
    _put(state, "products", sku, {**product, "stock": product["stock"] - quantity})
    order = {"customer": customer, "sku": sku, "product": product["name"], "quantity": quantity}
    total = quantity * product["price"]
    more = {"total": total, "status": "pending", "address": "on file", "note": "", "refunded": 0}
    return {"placed": _add(state, "orders", order | more), "total": total}


@tool(writes=True)
def change_address(state: State, id: str, address: str) -> Any:
    """Change where an order is sent; only while it is pending."""
    order = _in_status(state, id, ("pending",))
    _put(state, "orders", id, {**order, "address": address})
    return {"changed": id}


def _in_status(state: State, id: str, statuses: Collection[str]) -> Record:
    order = _get(state, "orders", id, "order")
    if order["status"] not in statuses:
        raise ToolError(f"order {id} is {order['status']}, not {' or '.join(statuses)}")
    return order


@tool(final=True)
def cancel_order(state: State, id: str) -> Any:
    """Cancel an order that isn't delivered yet, for good."""
    _put(state, "orders", id, {**_in_status(state, id, ("pending", "shipped")), "status": "cancelled"})
    return {"cancelled": id}


@tool(writes=True)
def return_order(state: State, id: str, reason: Literal["damaged", "wrong item", "not wanted"]) -> Any:
    """Take a delivered order back."""
    order = _in_status(state, id, ("delivered",))
    _put(state, "orders", id, {**order, "status": "returned", "note": reason})
    return {"returned": id}


@tool(final=True)
def refund_order(state: State, id: str, amount: int) -> Any:
    """Pay money back for an order, for good; at most its total."""
    order = _get(state, "orders", id, "order")
    _positive(amount, "amount")
    if amount > order["total"] - order["refunded"]:
        raise ToolError(f"only {order['total'] - order['refunded']} of order {id} are left to refund")
    _put(state, "orders", id, {**order, "refunded": order["refunded"] + amount})
    return {"refunded": id, "amount": amount}


@tool(writes=True)
def record_refusal(state: State, order: str, reason: Literal["shipped", "amount", "other"]) -> Any:
    """Record that a request about an order was refused, and why."""
    _get(state, "orders", order, "order")
    return {"recorded": _add(state, "refusals", {"order": order, "reason": reason})}


# --- payments -----------------------------------------------------------------------------------------


@tool(account="checking, savings or tax")
def get_balance(state: State, account: str) -> Any:
    """The balance of one of our accounts."""
    return {"account": account, "balance": _get(state, "accounts", account, "account")["balance"]}


@tool()
def list_invoices(state: State, status: Literal["open", "paid"]) -> Any:
    """List invoices."""
    found = ((k, r) for k, r in state["invoices"].items() if r["status"] == status)
    return _rows(found, ("vendor", "amount", "memo"))


@tool(final=True, account="checking, savings or tax")
def pay_invoice(state: State, id: str, account: str) -> Any:
    """Pay an open invoice, for good."""
    invoice = _get(state, "invoices", id, "invoice")
    if invoice["status"] != "open":
        raise ToolError(f"invoice {id} is paid already")
    _book(state, account, invoice["vendor"], invoice["amount"])
    _put(state, "invoices", id, {**invoice, "status": "paid"})
    return {"paid": id, "amount": invoice["amount"]}


@tool(final=True, source="checking, savings or tax", target="one of our accounts, or a number")
def transfer_money(state: State, source: str, target: str, amount: int) -> Any:
    """Transfer money between our accounts or to a bank account elsewhere, for good."""
    if source == target:
        raise ToolError("source and target are the same")
    _book(state, source, target, amount)
    own = state["accounts"].get(target)
    if own is not None:
        _put(state, "accounts", target, {"balance": own["balance"] + amount})
    return {"transferred": amount}


def _book(state: State, source: str, target: str, amount: int) -> None:
    _positive(amount, "amount")
    balance = _get(state, "accounts", source, "account")["balance"]
    if amount > balance:
        raise ToolError(f"there are only {balance} in {source}")
    _put(state, "accounts", source, {"balance": balance - amount})
    _add(state, "payments", {"source": source, "target": target, "amount": amount})
