"""The entry point that vLLM calls in every one of its processes.

It registers our architecture name lazily and, on a CPU only, the emulations that tests need: of
NVFP4, and of INT4 where there is no AVX-512.
Importing this module loads nothing; `register` imports vLLM, which has called it.
"""

from __future__ import annotations

from clefq.clef.family import FAMILY
from clefq.serving.layout import ARCHITECTURE

OLDEST_VLLM, NEWEST_VLLM = FAMILY.fused_in
_MODEL = "clefq.serving.model:ClefqForJointSchema"


def register() -> None:
    """Makes `ARCHITECTURE` known to vLLM; harmless when called again."""
    from vllm import ModelRegistry, __version__
    from vllm.logger import init_logger

    logger = init_logger("vllm.clefq")
    warning = version_warning(__version__)
    if warning is not None:
        logger.warning(warning)
    ModelRegistry.register_model(ARCHITECTURE, _MODEL)
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from clefq.serving.cpu_int4 import register_cpu_int4
        from clefq.serving.cpu_nvfp4 import register_cpu_kernels

        register_cpu_kernels()
        register_cpu_int4()


def version_warning(version: str) -> str | None:
    """One line when this vLLM is older or newer than those that the plugin was run on.

    Args:
        version: `vllm.__version__`, for example `0.32.0+cpu`.
    """
    numbers = parse_version(version)
    if numbers is not None and numbers >= OLDEST_VLLM and numbers[:2] <= NEWEST_VLLM:
        return None
    oldest = ".".join(map(str, OLDEST_VLLM))
    newest = ".".join(map(str, NEWEST_VLLM))
    return (
        f"clefq's plugin was run on vLLM {oldest} to {newest}, this is {version}; the table of "
        f"products that share scales and a format was read from the same versions. "
        f"If it fails to load or answers differ, install a version in that range and check with "
        f"`clefq parity`."
    )


def parse_version(version: str) -> tuple[int, ...] | None:
    """The leading numbers of a version (`0.32.0+cpu` → (0, 32, 0)), or None."""
    numbers: list[int] = []
    for part in version.split("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers) if len(numbers) >= 2 else None
