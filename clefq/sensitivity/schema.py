"""What a sweep leaves on disk: one file per block and scheme, and `sensitivity.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from clefq.parity.statistics.metric import Metric
from clefq.sensitivity.figures import Damage
from clefq.store.atomic import write_json
from clefq.store.reading import Stored, expected, read_stored, to_plain

SCHEMA_VERSION = 1
SUMMARY_FILE = "sensitivity.json"
RECIPE_FILE = "recipe.yaml"
REPORT_FILE = "sensitivity.html"
PUBLISHED_FOLDER = "published"
# BF16's answers, and what they depend on: the first that a sweep writes
ANSWERS_FILE, BASELINE_FILE = "baseline.parquet", "baseline.json"
SEARCHED, PUBLISHED, TRIED = "searched", "published", "tried"
T = TypeVar("T", bound=Stored)


@dataclass(frozen=True)
class BlockResult(Stored):
    """One block quantized alone, the rest in BF16.

    Attributes:
        block: Block name, for example `3.attention`.
        layer: Layer number.
        kind: `mlp`, `attention` or `deltanet`.
        scheme: `fp8`, `nvfp4a16` or `nvfp4`.
        damage: Measured on the answers.
        weight_error: Product to relative Frobenius error of its weights.
        output_error: Relative error of what the block adds to the residual stream, on a sample.
        nbytes: Bytes of the block's weights in this scheme.
        seconds: Time of the measurement.
    """

    block: str
    layer: int
    kind: str
    scheme: str
    damage: Damage
    weight_error: Mapping[str, float]
    output_error: float
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class StoredBlock(Stored):
    """The file of one finished measurement.

    Attributes:
        key: Hash of everything that decides it.
        result: The figures.
        kl: KL per question in canonical order; None where it is infinite or one side failed.
        schema_version: Version of this format.
    """

    key: str
    result: BlockResult
    kl: tuple[float | None, ...]
    schema_version: Annotated[int, expected(SCHEMA_VERSION)] = SCHEMA_VERSION


@dataclass(frozen=True)
class LayoutResult(Stored):
    """A format per block.

    Attributes:
        name: Published name, `searched`, or `tried-HASH`.
        origin: `published`, `searched`, or `tried` for what an earlier budget led to.
        formats: Block name to format.
        nbytes: Bytes of all weights, head included.
        speedup: Estimated prefill speed relative to BF16, by the stated model.
        predicted_kl: Sum of the blocks' single KL, with its clustered interval.
        measured: Measured on the set, or None.
        on_front: Measured, and no other measured layout is at least as small and as fast with
            less damage (or as good in all three and better in one).
    """

    name: str
    origin: str
    formats: Mapping[str, str]
    nbytes: int
    speedup: float
    predicted_kl: Metric
    measured: Damage | None
    on_front: bool = False


@dataclass(frozen=True)
class Budget(Stored):
    """What the searched recipe had to meet.

    Attributes:
        kind: `bytes` or `speed`.
        limit: Most bytes, or least estimated speed relative to BF16.
        given: How it was asked for.
    """

    kind: str
    limit: float
    given: str


@dataclass(frozen=True)
class FrontPoint(Stored):
    """The least predicted damage at one size or speed.

    Attributes:
        by: `bytes` or `speed`: what was bounded.
        nbytes: Bytes of all weights.
        speedup: Estimated prefill speed relative to BF16.
        kl: Predicted KL, nats.
    """

    by: str
    nbytes: int
    speedup: float
    kl: float


@dataclass(frozen=True)
class Effort(Stored):
    """What the sweep cost, resumed parts included.

    Attributes:
        variants: Block and scheme pairs.
        layer_passes: Layers run over the whole set for them, the BF16 run and the moving prefix
            included.
        full_passes: The same with one full run per variant.
        seconds: Time of the variants.
        full_run_seconds: Time of one full BF16 run, or None where all was taken over.
        resumed: Variants taken over from an earlier run.
    """

    variants: int
    layer_passes: int
    full_passes: int
    seconds: float
    full_run_seconds: float | None
    resumed: int


@dataclass(frozen=True)
class Sensitivity(Stored):
    """`sensitivity.json`.

    Attributes:
        clefq_version: Version that wrote it.
        created_at: RFC 3339, UTC.
        model: `model_id`, `revision`, `sha256`, `bf16_bytes`.
        eval_set: `name`, `sha256`, `records`, `questions`, `tokens`, `sampled`.
        calibration: `name`, `sha256`, or None.
        engine: Version, device, dtype and kernels.
        speeds: Format to assumed speed relative to BF16.
        baseline_accuracy: BF16's accuracy on the set, where it has gold.
        blocks: Every measurement.
        layouts: The searched layout, the published ones, and all others measured in this folder.
        budget: The budget, or None.
        recipe: Name of the recipe file beside this one, or None.
        front: Least predicted KL over size, and over estimated speed.
        effort: What it cost.
        schema_version: Version of this format.
    """

    clefq_version: str
    created_at: str
    model: Mapping[str, Any]
    eval_set: Mapping[str, Any]
    calibration: Mapping[str, Any] | None
    engine: Mapping[str, Any]
    speeds: Mapping[str, float]
    baseline_accuracy: float | None
    blocks: tuple[BlockResult, ...]
    layouts: tuple[LayoutResult, ...]
    budget: Budget | None
    recipe: str | None
    front: tuple[FrontPoint, ...]
    effort: Effort
    schema_version: Annotated[int, expected(SCHEMA_VERSION)] = SCHEMA_VERSION


def save(path: Path, value: Any) -> None:
    """Writes one of these dataclasses as JSON, atomically."""
    write_json(path, to_plain(value))


def load(cls: type[T], path: Path) -> T:
    """Reads one of these dataclasses back, strictly.

    Raises:
        InputError: Missing, not JSON, of another version, or at fault; lists every fault.
    """
    return read_stored(cls, path, fix="run `clefq sensitivity` again.")


def searched(found: Sensitivity) -> LayoutResult | None:
    """The searched layout, if a budget was given."""
    return next((layout for layout in found.layouts if layout.origin == SEARCHED), None)


def worst_first(found: Sensitivity) -> Sequence[str]:
    """Block names, the one with the largest KL in any scheme first."""
    worst: dict[str, float] = {}
    for result in found.blocks:
        kl = result.damage.kl.estimate
        value = float("inf") if kl is None else kl
        worst[result.block] = max(worst.get(result.block, 0.0), value)
    return sorted(worst, key=lambda name: -worst[name])
