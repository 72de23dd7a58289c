"""What the tests of reports share: gates, a page reader, one-line judging."""

from html.parser import HTMLParser

from clefq.parity.gates.compare import JudgeSpec, judge_candidate
from clefq.parity.gates.files import load_gates
from clefq.parity.gates.preregistration import GitEvidence
from clefq.parity.report.documents import Provenance
from clefq.parity.report.parity_json import parity_document
from clefq.store.predictions import Predictions

NO_GIT = GitEvidence(None, "not asked")
PROVENANCE = Provenance("0.1.0", "2026-01-02T00:00:00+00:00", "predictions", {}, "clefq parity")
POLICY_GATES = b"""
schema: clefq.gates/1
name: policies
description: d
thresholds: [0.5, 0.9]
policies:
  - {name: auto, questions: "q*", option: "true", threshold: 0.9,
     cost_act_to_hold: 1, cost_hold_to_act: 5}
gates:
  - {name: excess, metric: tv, direction: at_most, margin: 0.5, reference: replicate}
  - {name: cost, metric: policy_cost@auto, direction: at_most, bound: 5000}
  - {name: gone, metric: agreement, direction: at_least, bound: 0.5, slice: {cohort: gone}}
"""


class Page(HTMLParser):
    """Collects tags and text, and checks that tags are balanced."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read_page(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page


def judged(base: Predictions, other: Predictions, gates: str = "release") -> dict:
    spec = JudgeSpec(load_gates(gates), NO_GIT, resamples=200)
    return parity_document(judge_candidate(base, other, spec), PROVENANCE)


def changed(found: Predictions, **columns: object) -> Predictions:
    return Predictions(found.meta, found.frame.assign(**columns))
