"""Tasks that look something up: extraction, needles in long states, catalogues of many options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clefq.nano.draw import Draft, Draw, listed
from clefq.nano.lexicon import ATTRIBUTES, EVENTS, ITEMS
from clefq.nano.message_tasks import Asked, ask, distinct, noul

_KINDS = ("colour", "country", "device", "weekday", "department", "language")


def extraction(draw: Draw) -> Draft:
    """An attribute of one of several people; sources may contradict each other."""
    people = draw.names(draw.upto(2, 6))
    kinds = draw.some(_KINDS, draw.upto(1, 3))
    facts = {(p, k): draw.one(ATTRIBUTES[k]) for p in people for k in kinds}
    lines = [_fact(draw, p, k, facts[p, k]) for p, k in draw.mixed(list(facts))]
    for _ in range(draw.weighted((0, 1, 2), (5, 4, 2)) if draw.level > 0.3 else 0):
        person, kind = draw.one(list(facts))
        facts[person, kind] = _contradict(draw, lines, (person, kind), facts[person, kind])
    state: Any = " ".join(lines)
    if draw.chance(0.4):
        state = {"file": draw.code(), "notes": lines}
    asked = [
        _which(draw, person, kind, facts)
        for person, kind in draw.some(list(facts), min(len(facts), draw.whole(1, draw.upto(1, 6))))
    ]
    return Draft(state, distinct(asked))


def _fact(draw: Draw, person: str, kind: str, value: str) -> str:
    patterns = (
        "{p} has the {k} {v}.",
        "The {k} of {p} is {v}.",
        "{p}: {k} {v}.",
        "For {p} the {k} {v} is noted.",
    )
    return draw.one(patterns).format(p=person, k=kind, v=value)


def _contradict(draw: Draw, lines: list[str], key: tuple[str, str], value: str) -> str:
    """Adds a line that contradicts a fact and returns what holds, perhaps by chance."""
    person, kind = key
    other = draw.one([v for v in ATTRIBUTES[kind] if v != value])
    word, trust = draw.one(
        (
            ("Correction", 0.95),
            ("Newer source", 0.85),
            ("Another source", 0.5),
            ("Doubtful source", 0.15),
        )
    )
    lines.append(f"{word}: the {kind} of {person} is {other}.")
    return other if draw.chance(trust) else value


def _which(draw: Draw, person: str, kind: str, facts: dict[tuple[str, str], str]) -> Asked:
    value = facts[person, kind]
    if draw.chance(0.25):
        shown = value if draw.chance(0.5) else draw.one(ATTRIBUTES[kind])
        text = f"The {kind} of {person} is {shown}."
        return noul(draw, ("claim",), text), "true" if shown == value else "false"
    domain = ATTRIBUTES[kind]
    options = set(draw.some(domain, draw.whole(2, min(len(domain), draw.upto(3, 8)))))
    options |= {v for (_, k), v in facts.items() if k == kind and draw.chance(0.8)} | {value}
    texts = (f"What is the {kind} of {person}?", f"Which {kind} holds for {person}?")
    return ask(draw, (kind, "value"), "choice", texts, dict.fromkeys(sorted(options))), value


def needle(draw: Draw) -> Draft:
    """A few facts anywhere in a log that grows up to some 4,000 tokens."""
    hidden = draw.names(draw.upto(1, 3))
    colours = {name: draw.one(ATTRIBUTES["colour"]) for name in hidden}
    facts = [f"the box of {name} is {colour}" for name, colour in colours.items()]
    longest = draw.weighted((40, 120, 300), (6, 3, 1))
    events = draw.upto(4, longest)
    lines = [_event(draw) for _ in range(events)]
    for fact in facts:
        lines.insert(draw.whole(0, len(lines)), fact)
    log = ". ".join(line[0].upper() + line[1:] for line in lines) + "."
    asked: list[Asked] = []
    for name in hidden:
        options = set(draw.some(ATTRIBUTES["colour"], draw.whole(2, 7))) | {colours[name]}
        texts = (f"Which colour has the box of {name}?", f"What colour is the box of {name}?")
        criteria = dict.fromkeys(sorted(options))
        asked.append((ask(draw, ("box", "colour"), "choice", texts, criteria), colours[name]))
    if draw.chance(0.5):
        name = draw.one(hidden) if draw.chance(0.5) else draw.name()
        question = noul(draw, ("mentioned",), f"The log mentions {name}.")
        asked.append((question, "true" if name in hidden else "false"))
    return Draft(log, distinct(asked))


def _event(draw: Draw) -> str:
    event = draw.one(EVENTS)
    subject = draw.name() if event.startswith("{}") or event.endswith("with {}") else draw.code()
    return event.format(subject)


def catalogue(draw: Draw) -> Draft:
    """Which of up to 77 articles is meant; a vague order fits several."""
    count = draw.weighted((draw.upto(4, 12), draw.upto(6, 30), draw.upto(8, 77)), (5, 4, 1))
    rows = _articles(draw, count)
    ids = draw.option_ids(len(rows))
    gold = draw.whole(0, len(rows) - 1)
    wanted = rows[gold]
    known = draw.weighted((3, 2), (3, 1)) if draw.level > 0.3 else 3
    told = sorted(draw.some(range(3), known))
    fitting = [n for n, row in enumerate(rows) if all(row[f] == wanted[f] for f in told)]
    parts = {f: wanted[f] for f in told}
    text = _order(draw, parts, wanted[3])
    fitting = [n for n in fitting if rows[n][3] == wanted[3]]
    gold = draw.one(fitting)
    pattern = draw.one(("{1} {0} {2} {3}", "{3}, {0}, {1}, {2}", "{0} {3} of {2}, {1}"))
    criteria = {ids[n]: pattern.format(*row) for n, row in enumerate(rows)}
    texts = ("Which article is meant?", "Choose the article that fits the order.", "article")
    question = ask(draw, ("article", "item", "sku"), "choice", texts, criteria)
    state = {"order": draw.code(), "text": text} if draw.chance(0.5) else f"{draw.name()}: {text}"
    return Draft(state, ((question, ids[gold]),))


def _articles(draw: Draw, count: int) -> list[tuple[str, str, str, str]]:
    """Different articles (colour, size, material, item) that share many features."""
    items = draw.some(ITEMS, max(2, min(len(ITEMS), count // 4)))
    rows: set[tuple[str, str, str, str]] = set()
    while len(rows) < count:
        rows.add(
            (
                draw.one(ATTRIBUTES["colour"]),
                draw.one(ATTRIBUTES["size"]),
                draw.one(ATTRIBUTES["material"]),
                draw.one(items),
            )
        )
    return draw.mixed(sorted(rows))


def _order(draw: Draw, parts: dict[int, str], item: str) -> str:
    clauses = {0: "in {}", 1: "in size {}", 2: "made of {}"}
    told: Sequence[str] = draw.mixed([clauses[field].format(v) for field, v in parts.items()])
    pattern = draw.one(("I would like a {} {}.", "Please send me a {} {}.", "We need one {} {}."))
    return pattern.format(item, listed(told))
