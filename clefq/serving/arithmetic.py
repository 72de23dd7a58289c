"""What arithmetic an engine in fact runs: read off the loaded layers, not off the config."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from clefq.clef.formats import EngineArithmetic, arithmetic_of_kernel, coarsest
from clefq.errors import ClefqError

if TYPE_CHECKING:
    from clefq.serving.runtime import Runtime

Kernels = Literal["real", "simulated"]

_EMULATED = ("Emulation", "CpuNvFp4", "CpuInt4")


@dataclass(frozen=True, slots=True)
class Executed:
    """What ran.

    Attributes:
        arithmetic: The coarsest matrix arithmetic among the layers.
        kernels: `simulated` where an emulation stands in for a kernel.
        detail: Kernel names with their number of layers, most frequent first.
    """

    arithmetic: EngineArithmetic
    kernels: Kernels
    detail: str


def executed(runtime: Runtime) -> Executed:
    """Asks the engine's layers which kernels they hold."""
    found: list[str] = runtime.apply_model(describe_layers)[0]
    return summarize(found)


def summarize(kernels: list[str]) -> Executed:
    """Turns the layers' kernel names into what goes into a predictions file.

    Args:
        kernels: `scheme/kernel` per linear layer, as `describe_layers` gives them.
    """
    counts = Counter(kernels)
    simulated = any(word in kernel for kernel in counts for word in _EMULATED)
    return Executed(
        arithmetic=coarsest(arithmetic_of(kernel) for kernel in counts),
        kernels="simulated" if simulated else "real",
        detail=", ".join(f"{name} ×{count}" for name, count in counts.most_common()),
    )


def arithmetic_of(kernel: str) -> EngineArithmetic:
    """Arithmetic of one `scheme/kernel` name.

    Raises:
        ClefqError: A kernel that is not known here: calling it BF16 would be a false statement.
    """
    found = arithmetic_of_kernel(kernel)
    if found is None:
        raise ClefqError(
            f"the engine runs {kernel}, whose arithmetic is not known here.",
            fix="quantize with a scheme of `clefq quantize`.",
        )
    return found


def describe_layers(model: Any) -> list[str]:
    """`scheme/kernel` of every linear layer of the language model (runs inside the engine)."""
    found = []
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if method is None or name.startswith("visual."):
            continue
        scheme = getattr(module, "scheme", None)
        if scheme is None:
            if "Linear" in type(module).__name__:
                found.append(_of_method(method))
            continue
        kernel = _kernel(scheme)
        bits = getattr(scheme, "num_bits", None)  # of the scheme for all widths, WNA16
        kind = type(scheme).__name__.replace("WNA", f"W{bits}A")
        found.append(f"{kind}/{type(kernel).__name__}")
    return found


def _kernel(holder: Any) -> Any:
    return getattr(holder, "kernel", None) or getattr(holder, "fp8_linear", None)


def _of_method(method: Any) -> str:
    """A layer of another library than compressed-tensors: its method and its kernel."""
    # AutoRound's method wraps that of the packing
    method = getattr(getattr(method, "scheme", None), "linear_method", method)
    name, kernel = type(method).__name__, _kernel(method)
    weight = getattr(method, "wkey", None)  # of ModelOpt's method for all formats
    if weight is not None:
        alone = getattr(method, "akey", None) is None
        name = f"ModelOpt{type(weight).__name__.removeprefix('K')}{'A16' if alone else ''}"
    kind = getattr(getattr(method, "quant_config", None), "quant_type", None)
    bits = "" if kind is None else f"[{kind}]"
    return f"{name}{bits}/{'' if kernel is None else type(kernel).__name__}"
