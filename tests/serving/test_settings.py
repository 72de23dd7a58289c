"""Settings become vLLM's arguments; what is wrong is said before vLLM starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import clefq.nano
from clefq.errors import CheckpointError, InputError
from clefq.serving import ARCHITECTURE, ServeSettings
from clefq.serving.plugin import parse_version, version_warning
from clefq.serving.settings import (
    bind_cores,
    engine_arguments,
    engine_environment,
    graph_sizes,
)

NANO = Path(clefq.nano.__file__).parent / "weights"
HEAD = {
    "hidden_size": 64,
    "width": 32,
    "routing_layers": 1,
    "layers": 1,
    "heads": 2,
    "feedforward": 64,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "joint_head.safetensors").touch()
    # a header without tensors
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (tmp_path / "joint_head_config.json").write_text(json.dumps(HEAD))
    text = {"max_position_embeddings": 32768}
    text |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    config = {"text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_what_clef_needs_is_always_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clefq.serving.settings.chosen_backend", lambda: "auto")
    arguments = engine_arguments(folder, ServeSettings(), cpu=False)
    assert arguments["enable_prefix_caching"] is False
    # one more than the longest prompt, or that prompt never ends
    assert arguments["max_model_len"] == 16385
    assert arguments["enable_chunked_prefill"] is True
    assert arguments["mamba_ssm_cache_dtype"] == "float32"
    assert arguments["cudagraph_capture_sizes"] == graph_sizes(2048)
    assert arguments["hf_overrides"] == {
        "architectures": [ARCHITECTURE],
        "joint_head_config": HEAD,
    }
    assert "gdn_prefill_backend" not in arguments
    assert "language_model_only" not in arguments


def test_triton_where_flashinfer_cannot_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clefq.serving.settings.chosen_backend", lambda: "triton")
    arguments = engine_arguments(folder, ServeSettings(), cpu=False)
    assert arguments["gdn_prefill_backend"] == "triton"
    asked = ServeSettings(gdn_backend="flashinfer")
    assert engine_arguments(folder, asked, cpu=False)["gdn_prefill_backend"] == "flashinfer"
    assert "gdn_prefill_backend" not in engine_arguments(folder, ServeSettings(), cpu=True)
    elsewhere = engine_arguments(folder, ServeSettings(), cpu=False, here=False)
    assert "gdn_prefill_backend" not in elsewhere


def test_triton_where_flashinfer_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashInfer's kernel addresses states of 128, the miniature's heads have 64."""
    monkeypatch.setattr("clefq.serving.settings.chosen_backend", lambda: "auto")
    for here in (True, False):
        arguments = engine_arguments(NANO, ServeSettings(), cpu=False, here=here)
        assert arguments["gdn_prefill_backend"] == "triton"
    with pytest.raises(InputError, match="for heads of 128"):
        engine_arguments(NANO, ServeSettings(gdn_backend="flashinfer"), cpu=False)


@pytest.mark.parametrize(("ranks", "name"), [(3, "num_attention_heads"), (4, "linear_num_key_")])
def test_ranks_that_cannot_share_the_heads(ranks: int, name: str) -> None:
    """The miniature has 4 attention heads, 2 and 4 in DeltaNet."""
    with pytest.raises(InputError, match=name):
        engine_arguments(NANO, ServeSettings(tensor_parallel=ranks), cpu=True)
    assert engine_arguments(NANO, ServeSettings(tensor_parallel=2), cpu=True)


def test_small_steps_hold_no_more_prompts_than_tokens(folder: Path) -> None:
    assert engine_arguments(folder, ServeSettings(step_tokens=5), cpu=True)["max_num_seqs"] == 5


def test_settings_reach_vllm(folder: Path) -> None:
    settings = ServeSettings(
        max_images=0, step_tokens=1024, gdn_backend="triton", tensor_parallel=2, gpu_memory=0.5
    )
    arguments = engine_arguments(folder, settings, cpu=False)
    assert arguments["language_model_only"] is True
    assert arguments["gdn_prefill_backend"] == "triton"
    assert arguments["tensor_parallel_size"] == 2
    assert arguments["gpu_memory_utilization"] == 0.5
    # graphs beyond a step's size would never be used
    assert max(arguments["cudagraph_capture_sizes"]) == 1024
    eager = engine_arguments(folder, ServeSettings(eager=True), cpu=False)
    assert eager["enforce_eager"] is True
    assert "cudagraph_capture_sizes" not in eager


@pytest.mark.parametrize(
    ("groups", "asked"),
    [
        ({"a": {"input_activations": {"num_bits": 8}}}, True),
        ({"a": {"input_activations": {"num_bits": 4}}, "b": {"input_activations": None}}, False),
        ({"a": {}}, False),
        ({"a": 3}, False),
        (None, False),
    ],
)
def test_inputs_in_fp8_are_quantized_by_vllm(folder: Path, groups: object, asked: bool) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"config_groups": groups}
    (folder / "config.json").write_text(json.dumps(config))
    arguments = engine_arguments(folder, ServeSettings(), cpu=False)
    wanted = {"custom_ops": ["+quant_fp8"]} if asked else None
    assert arguments.get("compilation_config") == wanted
    # there all of vLLM's own kernels are used anyway
    for cpu, eager in ((True, False), (False, True)):
        other = engine_arguments(folder, ServeSettings(eager=eager), cpu=cpu)
        assert "compilation_config" not in other


def test_a_cpu_runs_eagerly_and_without_gpu_options(folder: Path) -> None:
    arguments = engine_arguments(folder, ServeSettings(gdn_backend="triton"), cpu=True)
    assert arguments["enforce_eager"] is True
    for name in ("gpu_memory_utilization", "gdn_prefill_backend"):
        assert name not in arguments
    assert engine_environment(ServeSettings(cpu_cache_gib=3))["VLLM_CPU_KVCACHE_SPACE"] == "3"
    threads = engine_environment(ServeSettings(cpu_threads=1))
    assert threads["OMP_NUM_THREADS"] == "1"
    assert threads["VLLM_CPU_OMP_THREADS_BIND"].isdigit()


def test_ranks_share_the_cores() -> None:
    assert bind_cores([0, 1, 2, 3, 8], 2) == "0,2,8|1,3"
    assert bind_cores([5], 2) == "5|5"
    bound = engine_environment(ServeSettings(tensor_parallel=2))["VLLM_CPU_OMP_THREADS_BIND"]
    assert len(bound.split("|")) == 2


def test_every_fault_is_listed_at_once() -> None:
    with pytest.raises(InputError) as caught:
        ServeSettings(max_length=0, gpu_memory=1.5, gdn_backend="cute")  # type: ignore[arg-type]
    assert len(caught.value.faults) == 2


def test_more_positions_than_the_model_has(folder: Path) -> None:
    with pytest.raises(InputError, match="32768 positions"):
        engine_arguments(folder, ServeSettings(max_length=40000), cpu=True)


def test_a_head_in_its_own_folder(folder: Path) -> None:
    inner = folder / "clef_head"
    inner.mkdir()
    for name in ("joint_head.safetensors", "joint_head_config.json"):
        (folder / name).rename(inner / name)
    arguments = engine_arguments(folder, ServeSettings(), cpu=True)
    assert arguments["hf_overrides"]["joint_head_config"] == HEAD


def test_a_checkpoint_for_a_newer_runner_is_refused(folder: Path) -> None:
    (folder / "clefq.json").write_text(json.dumps({"schema_version": 1}))
    engine_arguments(folder, ServeSettings(), cpu=True)
    (folder / "clefq.json").write_text(json.dumps({"schema_version": 2}))
    with pytest.raises(CheckpointError, match="checkpoint format 2") as caught:
        engine_arguments(folder, ServeSettings(), cpu=True)
    assert "upgrade clefq" in str(caught.value.fix)


@pytest.mark.parametrize("version", ["0.25.1", "0.28.0", "0.32.0+cpu", "0.33.4"])
def test_versions_that_were_run(version: str) -> None:
    assert version_warning(version) is None


@pytest.mark.parametrize("version", ["0.24.9", "0.25.0", "0.34.0", "1.0", "dev", "0.35.0.dev1"])
def test_other_versions_get_one_clear_line(version: str) -> None:
    warning = version_warning(version)
    assert warning is not None
    assert version in warning
    assert "0.25.1 to 0.33" in warning


def test_versions_are_read_without_packages() -> None:
    assert parse_version("0.32.0+cpu") == (0, 32, 0)
    assert parse_version("0.33.1.dev3+g12") == (0, 33, 1)
    assert parse_version("dev") is None


@pytest.mark.parametrize("most", [1, 32, 100, 512, 513, 2048, 2050, 8192])
def test_graph_sizes_reach_the_limit_with_little_padding(most: int) -> None:
    sizes = graph_sizes(most)
    assert sizes[-1] == most
    gaps = [after - before for before, after in zip([0, *sizes], sizes, strict=False)]
    assert min(gaps) > 0
    assert max(gaps) <= 64
    assert len(graph_sizes(2048)) == 40


def packed(folder: Path, name: str, dtype: str) -> Path:
    header = json.dumps({name: {"dtype": dtype, "shape": [1, 4], "data_offsets": [0, ITEM[dtype]]}})
    data = len(header).to_bytes(8, "little") + header.encode() + bytes(ITEM[dtype])
    (folder / "model.safetensors").write_bytes(data)
    return folder


ITEM = {"U8": 4, "I32": 16, "BF16": 8}


@pytest.mark.parametrize(("name", "dtype"), [("a.weight_packed", "I32"), ("a.weight", "BF16")])
def test_four_bit_is_refused_where_it_would_change_nothing(
    folder: Path, name: str, dtype: str
) -> None:
    packed(folder, name, dtype)
    for cpu in (True, False):
        with pytest.raises(InputError, match=r"--four-bit simulated .* has none: INT4"):
            engine_arguments(folder, ServeSettings(four_bit="simulated"), cpu=cpu, here=False)
        assert "additional_config" not in engine_arguments(
            folder, ServeSettings(), cpu=cpu, here=False
        )


@pytest.mark.parametrize("name", ["a.weight_packed", "a.weight"])
def test_four_bit_reaches_nvfp4_layers(folder: Path, name: str) -> None:
    """Under compressed-tensors' name of a packed weight and under ModelOpt's."""
    packed(folder, name, "U8")
    found = engine_arguments(folder, ServeSettings(four_bit="bf16"), cpu=False, here=False)
    assert found["additional_config"] == {"clefq_four_bit": {"kind": "bf16", "weights": 16}}
    with pytest.raises(InputError, match="for GPUs"):
        engine_arguments(folder, ServeSettings(four_bit="bf16"), cpu=True)
