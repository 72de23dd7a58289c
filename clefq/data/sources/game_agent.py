"""States of a game agent with a choice of two to four moves, written by clefq (Apache-2.0).

Every state carries its own rules in order of precedence, so that the right move has to be read,
not remembered. Records follow from the seed and their number alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from clefq.data.hashed import HashedChoices
from clefq.data.readers import Row, RowError
from clefq.data.sources.base import Example, NoOptions, ReadSpec, Source, choice, single
from clefq.errors import DefinitionError

INSTRUCTIONS = "Which move do the rules of this state demand?"
MOVES = {
    "attack": "Strike the nearest enemy.",
    "retreat": "Step back from the nearest enemy.",
    "drink_potion": "Use up one potion and recover health.",
    "advance": "Move towards the exit.",
    "search": "Look for supplies on this field.",
    "wait": "Stay where you are for a turn.",
}
# Text of a rule, its move, and when it applies.
RULES: tuple[tuple[str, str, Callable[[dict[str, Any]], bool]], ...] = (
    (
        "If an enemy can bring your health to zero this turn and you hold a potion, drink it.",
        "drink_potion",
        lambda s: s["hero"]["potions"] > 0 and _threat(s) >= s["hero"]["health"],
    ),
    (
        "If the nearest enemy is adjacent and one strike defeats it, attack.",
        "attack",
        lambda s: _nearest(s)["distance"] == 1 and _nearest(s)["health"] <= s["hero"]["strength"],
    ),
    (
        "If two or more enemies are within three fields, retreat.",
        "retreat",
        lambda s: sum(enemy["distance"] <= 3 for enemy in s["enemies"]) >= 2,
    ),
    (
        "If you hold no potion and no enemy is within five fields, search.",
        "search",
        lambda s: s["hero"]["potions"] == 0 and _nearest(s)["distance"] > 5,
    ),
    (
        "If the exit is locked and an enemy that carries a key is exactly two fields away, wait.",
        "wait",
        lambda s: (
            s["exit"]["locked"]
            and any(enemy["key"] and enemy["distance"] == 2 for enemy in s["enemies"])
        ),
    ),
)
OTHERWISE = ("In every other case, advance.", "advance")
NAMES = ("wolf", "bandit", "golem", "spider", "ghoul", "knight", "troll", "imp")
PLACES = ("cellar", "courtyard", "tower stairs", "library", "crypt", "bridge", "stable", "gallery")


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as {state, gold, offered}; as many as the definition wants."""
    if spec.count is None:
        raise DefinitionError("game_agent: a generated source needs a count.")
    for number in range(1, spec.count + 1):
        draw = HashedChoices(f"{spec.seed}/game_agent/{spec.split}/{number}")
        state, gold = scene(draw)
        others = draw.shuffled([move for move in MOVES if move != gold])
        offered = [gold, *others[: draw.between(1, 3)]]
        yield Row(spec.split, number, {"state": state, "gold": gold, "offered": offered})


def scene(draw: HashedChoices) -> tuple[dict[str, Any], str]:
    """A state with its rules, and the move that they demand."""
    state: dict[str, Any] = {
        "turn": draw.between(1, 60),
        "place": draw.pick(PLACES),
        "hero": {
            "health": draw.between(1, 20),
            "strength": draw.between(2, 9),
            "potions": draw.below(3),
        },
        "enemies": [
            {
                "kind": kind,
                "distance": draw.between(1, 9),
                "health": draw.between(1, 14),
                "damage": draw.between(1, 9),
                "key": draw.below(3) == 0,
            }
            for kind in draw.shuffled(NAMES)[: draw.between(1, 4)]
        ],
        "exit": {"distance": draw.between(1, 30), "locked": draw.below(2) == 0},
    }
    rules = draw.shuffled(RULES)
    state["rules"] = [*(text for text, _, _ in rules), OTHERWISE[0]]
    gold = next((move for _, move, applies in rules if applies(state)), OTHERWISE[1])
    return state, gold


def _nearest(state: dict[str, Any]) -> dict[str, Any]:
    enemy: dict[str, Any] = min(state["enemies"], key=lambda e: (e["distance"], e["kind"]))
    return enemy


def _threat(state: dict[str, Any]) -> int:
    return max((e["damage"] for e in state["enemies"] if e["distance"] == 1), default=0)


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """Generated, never downloaded."""
    raise RowError("not on the hub")


def build(value: dict[str, Any], record_id: str, options: NoOptions) -> Iterable[Example]:
    """One record: the state, one choice question."""
    criteria = {move: MOVES[move] for move in sorted(value["offered"])}
    question = choice("move", INSTRUCTIONS, criteria)
    yield single(record_id, "game_agent", value["state"], question, value["gold"])


SOURCE = Source(
    name="game_agent",
    title="States of a game agent",
    licence="Apache-2.0",
    attribution=None,
    revision=None,
    splits={part: () for part in ("calibration", "eval")},
    hub=None,
    read=read,
    from_hub=from_hub,
    build=build,
    origin="generated",
)
