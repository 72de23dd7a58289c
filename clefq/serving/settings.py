"""How to run a Clef under vLLM: the settings that matter, with defaults that are right for it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clefq.clef.config_match import activation_bits, quantization_of
from clefq.clef.encoding import DEFAULT_MAX_LENGTH
from clefq.clef.tensor_files import read_header
from clefq.clef.weight_files import weight_files
from clefq.errors import InputError
from clefq.plain_files import read_json
from clefq.serving.deltanet import FLASHINFER_HEAD, chosen_backend, fits_flashinfer
from clefq.serving.head_files import check_format, head_config
from clefq.serving.layout import ARCHITECTURE

GdnBackend = Literal["auto", "triton", "flashinfer"]
GDN_BACKENDS = ("auto", "triton", "flashinfer")
FourBit = Literal["auto", "kernel", "bf16", "simulated"]
FOUR_BIT = ("auto", "kernel", "bf16", "simulated")
# Where the choice travels in vLLM's own configuration, which keys its cache of compiled code.
FOUR_BIT_KEY = "clefq_four_bit"


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings of one engine.

    Attributes:
        max_length: Token limit of a prompt, image tokens included.
        max_images: Most images of a request; 0 leaves the vision tower out of memory.
        step_tokens: Most tokens of one engine step; longer prompts are prefilled in chunks.
        max_requests: Most prompts of one engine step.
        max_cudagraph_tokens: CUDA graphs are captured for steps up to this many tokens. Prefill
            is all that this model does, so graphs help only where they reach its sizes.
        gdn_backend: Kernel of the DeltaNet prefill; `auto` leaves the choice to vLLM, or is
            `triton` where the kernel that vLLM would choose cannot run, or not rightly.
        tensor_parallel: GPUs that share one copy of the model.
        gpu_memory: Fraction of a GPU's memory that vLLM may take.
        eager: No compilation and no CUDA graphs: starts in seconds, runs slower.
        four_bit: How NVFP4 layers run on a GPU: `kernel` as vLLM chooses (native, or Marlin's
            weight-only kernel), `bf16` unpacked at load, `simulated` with inputs rounded as
            four-bit units round them; `auto` unpacks where that is faster and fits.
        cpu_cache_gib: Memory for the key-value cache on a CPU.
        cpu_threads: Threads on a CPU, or None for vLLM's own choice.
    """

    max_length: int = DEFAULT_MAX_LENGTH
    max_images: int = 1
    step_tokens: int = 8192
    max_requests: int = 128
    max_cudagraph_tokens: int = 2048
    gdn_backend: GdnBackend = "auto"
    tensor_parallel: int = 1
    gpu_memory: float = 0.9
    eager: bool = False
    four_bit: FourBit = "auto"
    cpu_cache_gib: int = 1
    cpu_threads: int | None = None

    def __post_init__(self) -> None:
        faults = [
            f"{name} is {getattr(self, name)}, expected at least {least}"
            for name, least in _LEAST.items()
            if getattr(self, name) < least
        ]
        if self.cpu_threads is not None and self.cpu_threads < 1:
            faults.append(f"cpu_threads is {self.cpu_threads}, expected at least 1")
        if not 0 < self.gpu_memory <= 1:
            faults.append(f"gpu_memory is {self.gpu_memory}, expected 0 < fraction ≤ 1")
        if self.gdn_backend not in GDN_BACKENDS:
            faults.append(
                f"gdn_backend is {self.gdn_backend!r}, expected one of {', '.join(GDN_BACKENDS)}"
            )
        if self.four_bit not in FOUR_BIT:
            faults.append(f"four_bit is {self.four_bit!r}, expected one of {', '.join(FOUR_BIT)}")
        if faults:
            raise InputError(f"serving settings: {faults[0]}.", faults=faults[1:])


_LEAST = {
    "max_length": 1,
    "max_images": 0,
    "step_tokens": 1,
    "max_requests": 1,
    "max_cudagraph_tokens": 0,
    "tensor_parallel": 1,
    "cpu_cache_gib": 1,
}


def engine_arguments(
    folder: Path, settings: ServeSettings, *, cpu: bool, here: bool = True
) -> dict[str, Any]:
    """Keyword arguments of `vllm.LLM` and of `AsyncEngineArgs` alike.

    Args:
        folder: The checkpoint.
        settings: See `ServeSettings`.
        cpu: Whether vLLM runs on the CPU platform.
        here: Whether it runs in this environment, whose kernels decide then.

    Raises:
        CheckpointError: The folder has no sound head, or was made for a newer runner.
        InputError: A length or a kernel that the model was not made for.
    """
    check_format(str(folder))
    head = head_config(str(folder))
    whole = read_json(folder / "config.json")
    config = whole.get("text_config", whole)
    _check_length(folder, config, settings.max_length)
    _check_heads(folder, config, settings.tensor_parallel)
    text_only = settings.max_images == 0
    arguments: dict[str, Any] = {
        "model": str(folder),
        "runner": "pooling",
        "hf_overrides": {
            "architectures": [ARCHITECTURE],
            "joint_head_config": {name: getattr(head, name) for name in head.__slots__},
        },
        "dtype": "bfloat16",
        # vLLM leaves room for a generated token: up to 0.28 a prompt of exactly the limit that is
        # prefilled in chunks would wait for its last token for ever
        "max_model_len": settings.max_length + 1,
        "max_num_batched_tokens": settings.step_tokens,
        # vLLM asks for a token's room for each
        "max_num_seqs": min(settings.max_requests, settings.step_tokens),
        "enable_chunked_prefill": True,
        # the head reads every token of a prompt, so a cached prefix would be recomputed anyway
        "enable_prefix_caching": False,
        "tensor_parallel_size": settings.tensor_parallel,
        # vLLM knows the right default for its own architecture names only
        "mamba_ssm_cache_dtype": "float32",
        "enforce_eager": settings.eager or cpu,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "limit_mm_per_prompt": {"image": settings.max_images, "video": 0},
    }
    if text_only:
        arguments["language_model_only"] = True
    weights = unpacked_bytes(folder)
    _check_four_bit(folder, settings.four_bit, weights, cpu)
    if cpu:
        arguments["skip_mm_profiling"] = True
        return arguments
    if weights:
        arguments["additional_config"] = {
            FOUR_BIT_KEY: {"kind": settings.four_bit, "weights": weights}
        }
    arguments["gpu_memory_utilization"] = settings.gpu_memory
    backend = gdn_backend(folder, config, settings.gdn_backend, here=here)
    if backend != "auto":
        arguments["gdn_prefill_backend"] = backend
    if not settings.eager and settings.max_cudagraph_tokens:
        most = min(settings.max_cudagraph_tokens, settings.step_tokens)
        arguments["cudagraph_capture_sizes"] = graph_sizes(most)
    if not settings.eager and 8 in activation_bits(quantization_of(whole)):
        # vLLM's own kernel; those that the compiler makes instead cost 5% on an H200
        arguments["compilation_config"] = {"custom_ops": ["+quant_fp8"]}
    return arguments


def graph_sizes(most: int) -> list[int]:
    """Step sizes to capture: a step is padded to the next one, by at most 64 tokens.

    vLLM's own sizes are made for decoding: dense below 256 tokens, where a prefill hardly ever
    is. Up to 2,048 they would be 144 graphs; these are 40.
    """
    sizes = {*range(32, 513, 32), *range(576, most, 64), most}
    return sorted(size for size in sizes if size <= most)


def engine_environment(settings: ServeSettings) -> dict[str, str]:
    """Environment variables of vLLM; those of its CPU build are harmless on a GPU."""
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": str(settings.cpu_cache_gib),
        # threads that spin while they wait bring a busy machine to a standstill
        "OMP_WAIT_POLICY": "passive",
        "KMP_BLOCKTIME": "0",
        # for the one position more; `engine_arguments` checks the length itself
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    }
    cores = sorted(os.sched_getaffinity(0))
    if settings.cpu_threads is not None:
        cores = cores[: settings.cpu_threads]
        variables["OMP_NUM_THREADS"] = str(settings.cpu_threads)
    if settings.cpu_threads is not None or settings.tensor_parallel > 1:
        variables["VLLM_CPU_OMP_THREADS_BIND"] = bind_cores(cores, settings.tensor_parallel)
    return variables


def bind_cores(cores: Sequence[int], ranks: int) -> str:
    """Cores of each tensor-parallel rank on a CPU, as vLLM reads them.

    By itself vLLM wants a NUMA node per rank, which small machines do not have.

    Args:
        cores: At least one; fewer than `ranks` are shared.
        ranks: Processes that hold the model together.
    """
    parts = [list(cores[rank::ranks]) or [cores[rank % len(cores)]] for rank in range(ranks)]
    return "|".join(",".join(map(str, part)) for part in parts)


def unpacked_bytes(folder: Path) -> int:
    """Bytes of an NVFP4 checkpoint's weights once unpacked to BF16; 0 where no layer is NVFP4.

    Raises:
        CheckpointError: A shard is missing, or no whole safetensors file.
    """
    sizes = [
        # ModelOpt calls the packed weight `weight`; INT4 packs into I32
        (name.endswith((".weight_packed", ".weight")) and info.dtype == "U8", info.nbytes)
        for file in weight_files(folder)
        for name, info in read_header(file).items()
    ]
    if not any(packed for packed, _ in sizes):
        return 0
    return sum(4 * size if packed else size for packed, size in sizes)


def _check_four_bit(folder: Path, asked: FourBit, nvfp4: int, cpu: bool) -> None:
    """Refuses a choice that would change nothing."""
    if asked != "auto" and not nvfp4:
        raise InputError(
            f"--four-bit {asked} is about NVFP4 layers, and {folder} has none: INT4 and everything "
            "else runs on vLLM's own kernels.",
            fix="leave --four-bit out.",
        )
    if cpu and asked == "bf16":
        raise InputError(
            "--four-bit bf16 is for GPUs; on a CPU four-bit layers are emulated.",
            fix="leave --four-bit out.",
        )


def gdn_backend(
    folder: Path, config: Mapping[str, Any], asked: GdnBackend, *, here: bool
) -> GdnBackend:
    """The DeltaNet kernel to ask vLLM for; `auto` leaves it the choice.

    Args:
        folder: The checkpoint.
        config: Of its text model.
        asked: What the user wants.
        here: Whether the kernels of this environment count.

    Raises:
        InputError: FlashInfer's was asked for, and the model's heads are not of its size.
    """
    if fits_flashinfer(config):
        return chosen_backend() if asked == "auto" and here else asked
    if asked == "flashinfer":
        raise InputError(
            f"FlashInfer's DeltaNet kernel is for heads of {FLASHINFER_HEAD}, {folder} has others.",
            fix="leave --gdn-backend out, or use triton.",
        )
    return "triton"


def _check_heads(folder: Path, config: Mapping[str, Any], ranks: int) -> None:
    """Each rank takes as many whole heads as the others."""
    for name in ("num_attention_heads", "linear_num_key_heads", "linear_num_value_heads"):
        heads = config.get(name)
        if isinstance(heads, int) and heads % ranks:
            raise InputError(
                f"tensor_parallel is {ranks}, which does not divide the {heads} of {name} in "
                f"{folder}.",
                fix=f"use a --tp that divides {heads}.",
            )


def _check_length(folder: Path, config: Mapping[str, Any], max_length: int) -> None:
    limit = config.get("max_position_embeddings")
    if isinstance(limit, int) and max_length > limit:
        raise InputError(
            f"max_length is {max_length}, {folder} was made for {limit} positions.",
            fix=f"use at most --max-length {limit}.",
        )
