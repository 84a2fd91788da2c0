"""ToolWorld's tools: what an assistant can do in an office and a shop.

Each is a function of the state and of typed arguments, and changes that state or raises ToolError.
"""

from collections.abc import Collection
from typing import Any, Literal

from turnbench.envs.toolworld_state import (
    OWNER,
    REGISTERED,
    SHOWN,
    Record,
    State,
    Tool,
    ToolError,
    add,
    bounded,
    check_date,
    check_email,
    check_positive,
    check_time,
    drop,
    having,
    put,
    record_of,
    rows,
    tool,
)

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
    return rows(((k, r) for k, r in state["mail"].items() if r["folder"] == folder), MAIL)


@tool()
def search_mail(state: State, query: str) -> Any:
    """Find mails by words in sender, subject or body."""
    return rows(having(state["mail"], query, ("from", "subject", "body")), (*MAIL, "body"))


@tool(id="as in M-12")
def read_mail(state: State, id: str) -> Any:
    """Read one mail."""
    return record_of(state, "mail", id, "mail")


@tool(writes=True, to="an email address")
def send_mail(state: State, to: str, subject: str, body: str) -> Any:
    """Send a mail."""
    check_email(to)
    mail = {"from": OWNER, "to": to, "subject": subject, "body": bounded(body), "folder": "sent"}
    return {"sent": add(state, "mail", mail)}


@tool(writes=True, to="an email address")
def forward_mail(state: State, id: str, to: str) -> Any:
    """Forward a mail."""
    mail = record_of(state, "mail", id, "mail")
    return send_mail(state, to, f"Fwd: {mail['subject']}", mail["body"])


@tool(writes=True)
def move_mail(state: State, id: str, folder: Literal["inbox", "archive"]) -> Any:
    """Move a mail to another folder."""
    put(state, "mail", id, {**record_of(state, "mail", id, "mail"), "folder": folder})
    return {"moved": id, "folder": folder}


@tool(final=True)
def delete_mail(state: State, id: str) -> Any:
    """Delete a mail for good."""
    drop(state, "mail", id, "mail")
    return {"deleted": id}


# --- calendar -----------------------------------------------------------------------------------------


@tool(date="as YYYY-MM-DD")
def list_events(state: State, date: str) -> Any:
    """List the events of one day."""
    check_date(date)
    found = ((k, r) for k, r in state["events"].items() if r["date"] == date)
    return rows(found, ("title", "start", "minutes", "attendees", "notes"))


@tool()
def search_events(state: State, query: str) -> Any:
    """Find events by words in the title."""
    return rows(having(state["events"], query, ("title",)), ("title", "date", "start"))


@tool(writes=True, date="as YYYY-MM-DD", start="as HH:MM", attendees="email addresses")
def create_event(
    state: State, title: str, date: str, start: str, minutes: int, attendees: list[str]
) -> Any:
    """Put an event into the calendar."""
    check_date(date)
    check_time(start)
    check_positive(minutes, "length")
    for email in attendees:
        check_email(email)
    event = {"title": title, "date": date, "start": start, "minutes": minutes, "notes": ""}
    return {"created": add(state, "events", {**event, "attendees": sorted(set(attendees))})}


@tool(writes=True, date="as YYYY-MM-DD", start="as HH:MM")
def move_event(state: State, id: str, date: str, start: str) -> Any:
    """Move an event to another day or time."""
    event = record_of(state, "events", id, "event")
    check_date(date)
    check_time(start)
    put(state, "events", id, {**event, "date": date, "start": start})
    return {"moved": id}


@tool(writes=True, email="an email address")
def add_attendee(state: State, id: str, email: str) -> Any:
    """Invite somebody to an event."""
    event = record_of(state, "events", id, "event")
    check_email(email)
    put(state, "events", id, {**event, "attendees": sorted({*event["attendees"], email})})
    return {"invited": email}


@tool(final=True)
def cancel_event(state: State, id: str) -> Any:
    """Cancel an event for good."""
    drop(state, "events", id, "event")
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
    return record_of(state, "files", path, "file")["content"]


@tool(writes=True, path="with its folder, as in docs/plan.txt")
def write_file(state: State, path: str, content: str) -> Any:
    """Write a new file."""
    if path in state["files"]:
        raise ToolError(f"the file {path[:60]!r} exists already")
    if path.partition("/")[0] not in ("docs", "notes", "reports") or len(path) > 100:
        raise ToolError("a path begins with docs/, notes/ or reports/")
    put(state, "files", path, {"content": bounded(content)})
    return {"written": path}


@tool(writes=True)
def append_file(state: State, path: str, line: str) -> Any:
    """Add a line to the end of a file."""
    content = record_of(state, "files", path, "file")["content"]
    put(state, "files", path, {"content": bounded(f"{content}\n{line}")})
    return {"written": path}


@tool(writes=True)
def move_file(state: State, path: str, to: str) -> Any:
    """Move or rename a file."""
    content = record_of(state, "files", path, "file")["content"]
    write_file(state, to, content)
    drop(state, "files", path, "file")
    return {"moved": to}


@tool(final=True)
def delete_file(state: State, path: str) -> Any:
    """Delete a file for good."""
    drop(state, "files", path, "file")
    return {"deleted": path}


# --- shop ---------------------------------------------------------------------------------------------


@tool()
def search_products(state: State, query: str) -> Any:
    """Find products by words in name or description."""
    return rows(having(state["products"], query, ("name", "description")), ("name", "description"))


@tool(sku="as in P-12")
def get_product(state: State, sku: str) -> Any:
    """Name, price, stock and description of a product."""
    return record_of(state, "products", sku, "product")


@tool(customer="an email address")
def find_orders(state: State, customer: str) -> Any:
    """Find a customer's orders."""
    check_email(customer)
    found = ((k, r) for k, r in state["orders"].items() if r["customer"] == customer)
    return rows(found, ("product", "quantity", "total", "status", "note"))


@tool(id="as in O-12")
def get_order(state: State, id: str) -> Any:
    """Read one order."""
    return record_of(state, "orders", id, "order")


@tool(writes=True, customer="an email address", sku="as in P-12")
def place_order(state: State, customer: str, sku: str, quantity: int) -> Any:
    """Order a product for a customer."""
    product = record_of(state, "products", sku, "product")
    check_email(customer)
    check_positive(quantity, "quantity")
    if quantity > product["stock"]:
        raise ToolError(f"only {product['stock']} of {sku} are in stock")
    put(state, "products", sku, {**product, "stock": product["stock"] - quantity})
    order = {"customer": customer, "sku": sku, "product": product["name"], "quantity": quantity}
    total = quantity * product["price"]
    more = {"total": total, "status": "pending", "address": "on file", "note": "", "refunded": 0}
    return {"placed": add(state, "orders", order | more), "total": total}


@tool(writes=True)
def change_address(state: State, id: str, address: str) -> Any:
    """Change where an order is sent; only while it is pending."""
    order = _in_status(state, id, ("pending",))
    put(state, "orders", id, {**order, "address": address})
    return {"changed": id}


def _in_status(state: State, id: str, statuses: Collection[str]) -> Record:
    order = record_of(state, "orders", id, "order")
    if order["status"] not in statuses:
        raise ToolError(f"order {id} is {order['status']}, not {' or '.join(statuses)}")
    return order


@tool(final=True)
def cancel_order(state: State, id: str) -> Any:
    """Cancel an order that isn't delivered yet, for good."""
    put(state, "orders", id, {**_in_status(state, id, ("pending", "shipped")), "status": "cancelled"})
    return {"cancelled": id}


@tool(writes=True)
def return_order(state: State, id: str, reason: Literal["damaged", "wrong item", "not wanted"]) -> Any:
    """Take a delivered order back."""
    order = _in_status(state, id, ("delivered",))
    put(state, "orders", id, {**order, "status": "returned", "note": reason})
    return {"returned": id}


@tool(final=True)
def refund_order(state: State, id: str, amount: int) -> Any:
    """Pay money back for an order, for good; at most its total."""
    order = record_of(state, "orders", id, "order")
    check_positive(amount, "amount")
    if amount > order["total"] - order["refunded"]:
        raise ToolError(f"only {order['total'] - order['refunded']} of order {id} are left to refund")
    put(state, "orders", id, {**order, "refunded": order["refunded"] + amount})
    return {"refunded": id, "amount": amount}


@tool(writes=True)
def record_refusal(state: State, order: str, reason: Literal["shipped", "amount", "other"]) -> Any:
    """Record that a request about an order was refused, and why."""
    record_of(state, "orders", order, "order")
    return {"recorded": add(state, "refusals", {"order": order, "reason": reason})}


# --- payments -----------------------------------------------------------------------------------------


@tool(account="checking, savings or tax")
def get_balance(state: State, account: str) -> Any:
    """The balance of one of our accounts."""
    return {"account": account, "balance": record_of(state, "accounts", account, "account")["balance"]}


@tool()
def list_invoices(state: State, status: Literal["open", "paid"]) -> Any:
    """List invoices."""
    found = ((k, r) for k, r in state["invoices"].items() if r["status"] == status)
    return rows(found, ("vendor", "amount", "memo"))


@tool(final=True, account="checking, savings or tax")
def pay_invoice(state: State, id: str, account: str) -> Any:
    """Pay an open invoice, for good."""
    invoice = record_of(state, "invoices", id, "invoice")
    if invoice["status"] != "open":
        raise ToolError(f"invoice {id} is paid already")
    _book(state, account, invoice["vendor"], invoice["amount"])
    put(state, "invoices", id, {**invoice, "status": "paid"})
    return {"paid": id, "amount": invoice["amount"]}


@tool(final=True, source="checking, savings or tax", target="one of our accounts, or a number")
def transfer_money(state: State, source: str, target: str, amount: int) -> Any:
    """Transfer money between our accounts or to a bank account elsewhere, for good."""
    if source == target:
        raise ToolError("source and target are the same")
    _book(state, source, target, amount)
    own = state["accounts"].get(target)
    if own is not None:
        put(state, "accounts", target, {"balance": own["balance"] + amount})
    return {"transferred": amount}


def _book(state: State, source: str, target: str, amount: int) -> None:
    check_positive(amount, "amount")
    balance = record_of(state, "accounts", source, "account")["balance"]
    if amount > balance:
        raise ToolError(f"there are only {balance} in {source}")
    put(state, "accounts", source, {"balance": balance - amount})
    add(state, "payments", {"source": source, "target": target, "amount": amount})


TOOLS: dict[str, Tool] = dict(REGISTERED)
"""All of them, by name."""
