"""Tasks about a message or a case: routing, triage, policy checks, ratings, requests, forms.

Each mixes clear records with ambiguous ones. Where evidence conflicts, the gold is drawn from
the probabilities that the evidence states, so nobody can be right all the time, and a good
model's margins take every size.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from clefq.clef.records import Question
from clefq.nano.draw import Draft, Draw, listed
from clefq.nano.lexicon import (
    ACTIONS,
    ADVERBS,
    ASPECTS,
    ATTRIBUTES,
    CLOSERS,
    FILLERS,
    GRADES,
    HEDGES,
    MENTIONS,
    OPENERS,
    SCALES,
    THINGS,
    TOPICS,
)

Asked = tuple[Question, str]
_SHARPNESS = 1.6  # how strongly a heavier mention decides the gold


def ask(draw: Draw, ids: Sequence[str], kind: str, texts: Sequence[str], criteria: Any) -> Question:
    """A question under one of `ids`, worded as one of `texts`."""
    return Question(draw.one(ids), kind, draw.one(texts), criteria)


_NOUL_CRITERIA: tuple[Any, ...] = (
    None,
    {"true": None, "false": None},
    {"true": None, "false": None},
    {"true": "yes", "false": "no"},
    {"true": "it holds", "false": "it does not hold"},
)


def noul(draw: Draw, ids: Sequence[str], text: str) -> Question:
    """A true/false question under one of `ids`, with or without descriptions."""
    return Question(draw.one(ids), "noul", text, draw.one(_NOUL_CRITERIA))


def distinct(asked: Sequence[Asked]) -> tuple[Asked, ...]:
    """The questions without repetitions, under ids that differ from each other."""
    seen: dict[str, int] = {}
    texts = set()
    result = []
    for question, gold in asked:
        text = (question.type, str(question.instructions))
        if text in texts:
            continue
        texts.add(text)
        count = seen[question.id] = seen.get(question.id, 0) + 1
        if count > 1:
            name = f"{question.id}_{count}"
            question = Question(name, question.type, question.instructions, question.criteria)
        result.append((question, gold))
    return tuple(result)


def message(draw: Draw, sentences: Sequence[str]) -> str:
    """The sentences as a message, with greeting, small talk and ending."""
    parts = list(sentences)
    for _ in range(draw.upto(0, 3)):
        parts.insert(draw.whole(0, len(parts)), draw.one(FILLERS))
    if draw.chance(0.6):
        parts.insert(0, draw.one(OPENERS))
    if draw.chance(0.6):
        parts.append(draw.one(CLOSERS))
    return " ".join(parts)


def mention(draw: Draw, topic: str, weight: int) -> str:
    """A sentence that raises a topic with a weight from 1 to 3."""
    text = draw.one(MENTIONS[weight]).format(draw.one(TOPICS[topic]))
    return text[0].upper() + text[1:]


def _mentions(draw: Draw, topics: Sequence[str]) -> dict[str, int]:
    weights = {topic: draw.whole(1, 3) for topic in topics}
    if len(topics) == 1:
        weights[topics[0]] = draw.whole(2, 3)
    return weights


def routing(draw: Draw) -> Draft:
    """Which team should take a message; teams are known by what they handle only."""
    teams = draw.upto(3, 9)
    handled = draw.some(list(TOPICS), min(len(TOPICS), teams + draw.upto(0, teams)))
    shares = {team: [handled[team]] for team in range(teams)}
    for topic in handled[teams:]:
        shares[draw.whole(0, teams - 1)].append(topic)
    raised = draw.some(handled, draw.weighted((1, 2, 3), (4, 4, 2)) if draw.level > 0.3 else 1)
    weights = _mentions(draw, raised)
    scores = [sum(weights.get(topic, 0) for topic in shares[team]) for team in range(teams)]
    gold = draw.weighted(range(teams), [math.exp(_SHARPNESS * s) if s else 0.0 for s in scores])
    ids = draw.option_ids(teams)
    wording = draw.one(("handles {}", "{}", "responsible for {}", "takes care of {}"))
    criteria = {ids[team]: wording.format(listed(shares[team])) for team in range(teams)}
    text = message(draw, draw.mixed([mention(draw, t, w) for t, w in weights.items()]))
    reference = draw.code()
    state: Any = {"message": text, "ticket": reference}
    if draw.chance(0.4):
        state = f"Ticket {reference} from {draw.name()}\n{text}"
    texts = (
        "Which team should handle this message?",
        "Choose the team that is responsible for the main issue.",
        "Where should this ticket go?",
    )
    asked = [(ask(draw, ("team", "route", "queue"), "choice", texts, criteria), ids[gold])]
    for _ in range(draw.upto(0, 3)):
        asked.append(_topic_question(draw, raised, handled))
    return Draft(state, distinct(asked))


def _topic_question(draw: Draw, raised: Sequence[str], handled: Sequence[str]) -> Asked:
    topic = draw.one(raised) if draw.chance(0.5) else draw.one(handled)
    text = draw.one(("The message mentions {}.", "Is the message about {}?", "It raises {}."))
    question = noul(draw, ("mentions", "topic", "about"), text.format(topic))
    return question, "true" if topic in raised else "false"


_QUANTITIES = (
    ("affected users", "{} users are affected"),
    ("open orders", "{} orders are still open"),
    ("euros of damage", "the damage is {} euros"),
    ("hours of delay", "the delay is {} hours"),
    ("failed logins", "{} logins have failed"),
)


def triage(draw: Draw) -> Draft:
    """Which level a number falls into, where the levels' bounds stand in the schema."""
    count = draw.whole(1, 1 + draw.upto(0, 2))
    sentences, asked = [], []
    for noun, sentence in draw.some(_QUANTITIES, count):
        bounds = _bounds(draw, draw.whole(2, 2 + draw.upto(0, 2)))
        number = _number(draw, bounds)
        actual = float(number)
        text = sentence.format(number)
        if draw.chance(0.4):
            text = sentence.format(f"about {number}")
            actual = number * math.exp(draw.normal(0.3))
        sentences.append(text[0].upper() + text[1:] + ".")
        level = sum(actual >= bound for bound in bounds)
        texts = (f"How serious is it, judged by the {noun}?", f"Rate the {noun}.", noun)
        ids = ("severity", "priority", "level")
        asked.append((ask(draw, ids, "score", texts, _levels(bounds, noun)), str(level)))
    case = draw.code()
    text = message(draw, draw.mixed(sentences))
    state = {"case": case, "report": text} if draw.chance(0.5) else f"Case {case}. {text}"
    return Draft(state, distinct(asked))


def _bounds(draw: Draw, count: int) -> list[int]:
    bounds: list[int] = []
    low = draw.one((2, 5, 10, 20, 50))
    for _ in range(count):
        bounds.append(low)
        low *= draw.one((3, 4, 5, 10))
    return bounds


def _number(draw: Draw, bounds: Sequence[int]) -> int:
    if draw.chance(0.3):  # near a bound, where reading it wrong by a little matters
        return max(1, round(draw.one(bounds) * (0.75 + 0.5 * draw.real())))
    top = math.log(bounds[-1] * 4)
    return max(1, round(math.exp(draw.real() * top)))


def _levels(bounds: Sequence[int], noun: str) -> list[str]:
    middle = [f"{a} to {b - 1} {noun}" for a, b in itertools.pairwise(bounds)]
    return [f"fewer than {bounds[0]} {noun}", *middle, f"{bounds[-1]} or more {noun}"]


_FACTS = (
    ("the item is unused", "the item is {} unused", "The item must be unused."),
    ("the receipt is there", "the receipt is {} there", "The receipt must be there."),
    ("the customer is an adult", "the customer is {} an adult", "The customer must be an adult."),
    ("the box is sealed", "the box is {} sealed", "The box must be sealed."),
    ("the form is signed", "the form is {} signed", "The form must be signed."),
    ("the device is insured", "the device is {} insured", "The device must be insured."),
)


def policy(draw: Draw) -> Draft:
    """Whether a case keeps the rules, where the case file is sure of some facts and not others."""
    lines, rules, keeps = [], [], []
    for fact, sentence, rule in draw.some(_FACTS, draw.upto(1, 3)):
        hedge = draw.one(list(HEDGES))
        kept = draw.chance(HEDGES[hedge])
        lines.append(sentence.format(hedge))
        rules.append(rule)
        keeps.append((fact, kept))
    member = draw.one(ATTRIBUTES["plan"])
    admitted = draw.some(ATTRIBUTES["plan"], draw.whole(1, 3))
    lines.append(f"the customer has the {member} plan")
    rules.append(f"Only the {listed(admitted)} plan qualifies.")
    keeps.append(("the plan qualifies", member in admitted))
    days, limit = draw.whole(1, 60), draw.one((7, 14, 21, 30, 45))
    lines.append(f"the purchase was {days} days ago")
    rules.append(f"The purchase must be at most {limit} days ago.")
    keeps.append((f"the purchase is within {limit} days", days <= limit))
    case = draw.code()
    facts = ". ".join(line[0].upper() + line[1:] for line in draw.mixed(lines)) + "."
    state: Any = {"case": case, "facts": facts, "policy": rules}
    if draw.chance(0.4):
        state = f"Policy: {' '.join(rules)}\nCase {case} of {draw.name()}: {facts}"
    chosen = draw.some(keeps, draw.whole(1, draw.upto(1, len(keeps))))
    asked: list[Asked] = []
    for number, (fact, kept) in enumerate(chosen, start=1):
        text = f"In this case {fact}." if draw.chance(0.5) else f"Is it so that {fact}?"
        asked.append((noul(draw, (f"check_{number}",), text), "true" if kept else "false"))
    if draw.chance(0.4):
        passed = all(kept for _, kept in keeps)
        criteria = {"approve": "every rule is kept", "reject": "some rule is broken"}
        question = Question("decision", "choice", "Decide by the policy.", criteria)
        asked.append((question, "approve" if passed else "reject"))
    return Draft(state, distinct(asked))


def rating(draw: Draw) -> Draft:
    """How good several aspects of something were, on scales of three to seven levels."""
    aspects = draw.some(ASPECTS, draw.whole(1, draw.upto(1, 5)))
    sentences, values = [], {}
    for aspect in aspects:
        adverb, grade = draw.one(list(ADVERBS)), draw.one(list(GRADES))
        values[aspect] = 0.5 + (GRADES[grade] - 0.5) * ADVERBS[adverb]
        pattern = draw.one(("The {a} was {g}.", "I found the {a} {g}.", "{G}: the {a}."))
        graded = adverb + grade
        sentences.append(pattern.format(a=aspect, g=graded, G=graded.capitalize()))
    scale = SCALES[draw.one((3, 3, 4, 5, 5, 7)) if draw.level > 0.3 else 3]
    asked = []
    for aspect in aspects:
        position = values[aspect] * (len(scale) - 1) + draw.normal(0.3)
        level = min(len(scale) - 1, max(0, round(position)))
        texts = (f"How was the {aspect}?", f"Rate the {aspect}.", f"Opinion on the {aspect}")
        asked.append((Question(aspect, "score", draw.one(texts), list(scale)), str(level)))
    place = draw.name()
    text = message(draw, sentences)
    state = {"review": text, "subject": place} if draw.chance(0.5) else f"About {place}: {text}"
    return Draft(state, distinct(asked))


def request(draw: Draw) -> Draft:
    """Which of up to 77 labels `action_thing` a request means; some of them never seen before."""
    labels = [f"{action}_{thing}" for action in ACTIONS for thing in THINGS]
    count = draw.upto(6, 77)
    if draw.chance(0.6):
        count = min(count, 16)
    action, thing = _asked_for(draw)
    gold = f"{action}_{thing}"
    others = draw.some([label for label in labels if label != gold], count - 1)
    phrase = draw.one(ACTIONS[action]).format(draw.one(THINGS[thing]))
    text = message(draw, [phrase[0].upper() + phrase[1:] + "."])
    texts = ("What does the user want?", "Which intent does the request express?", "Intent")
    question = ask(draw, ("intent", "request"), "choice", texts, dict.fromkeys([gold, *others]))
    state = {"from": draw.name(), "text": text} if draw.chance(0.5) else f"{draw.name()}: {text}"
    return Draft(state, ((question, gold),))


def _asked_for(draw: Draw) -> tuple[str, str]:
    """An action and a thing; one pair in ten is never asked for in training."""
    while True:
        action, thing = draw.one(list(ACTIONS)), draw.one(list(THINGS))
        if draw.split != "train" or zlib.crc32(f"{action}_{thing}".encode()) % 10:
            return action, thing


def form(draw: Draw) -> Draft:
    """Up to eight questions of all types about one customer file."""
    names = draw.some(list(ATTRIBUTES), draw.upto(2, 7))
    values = {name: draw.one(ATTRIBUTES[name]) for name in names}
    person = draw.name()
    if draw.chance(0.5):
        state: Any = {"customer": person, **values}
    else:
        lines = [f"the {name} is {value}" for name, value in draw.mixed(list(values.items()))]
        state = f"Customer {person}: {'; '.join(lines)}. {draw.one(FILLERS)}"
    makers: tuple[Callable[[Draw, str, str], Asked], ...] = (_form_choice, _form_noul)
    asked = []
    for _ in range(draw.whole(1, draw.upto(2, 8))):
        name = draw.one(names)
        asked.append(draw.one(makers)(draw, name, values[name]))
    return Draft(state, distinct(asked))


def _form_choice(draw: Draw, name: str, value: str) -> Asked:
    domain = [other for other in ATTRIBUTES[name] if other != value]
    others = draw.some(domain, draw.whole(1, min(len(domain), draw.upto(2, 6))))
    texts = (f"Which {name} does the file state?", f"What is the {name}?", name)
    if draw.chance(0.5):
        criteria: dict[str, Any] = dict.fromkeys([value, *others])
        return Question(name, "choice", draw.one(texts), criteria), value
    ids = draw.option_ids(len(others) + 1)
    criteria = dict(zip(ids, [value, *others], strict=True))
    return Question(name, "choice", draw.one(texts), criteria), ids[0]


def _form_noul(draw: Draw, name: str, value: str) -> Asked:
    shown = value if draw.chance(0.5) else draw.one(ATTRIBUTES[name])
    text = draw.one((f"The {name} is {shown}.", f"Is the {name} {shown}?"))
    return noul(draw, (name,), text), "true" if shown == value else "false"
