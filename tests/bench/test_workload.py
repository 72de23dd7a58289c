import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import clefq
from clefq.bench import workload
from clefq.clef.encoding import EncodeSpec, PromptTokenizer, encode_record
from clefq.clef.records import parse_record, record_to_json
from clefq.errors import InputError

NANO = Path(clefq.__file__).parent / "nano" / "weights"


@pytest.fixture(scope="module")
def tokenizer() -> PromptTokenizer:
    return PromptTokenizer.from_folder(NANO)


def lengths(tokenizer: PromptTokenizer, records: list) -> list[int]:
    spec = EncodeSpec(1 << 20)
    return [
        len(encode_record(tokenizer, record, spec, [1] * len(record.images)).token_ids)
        for record in records
    ]


@pytest.mark.parametrize("tokens", [470, 500, 777, 1000, 4096])
def test_prompts_have_the_wanted_length(tokenizer: PromptTokenizer, tokens: int) -> None:
    found = lengths(tokenizer, workload.records(tokenizer, [tokens], 6))
    assert all(tokens - workload.TOLERANCE <= length <= tokens for length in found)
    assert found.count(tokens) >= 4


def test_the_kinds_have_the_shapes_that_they_name(tokenizer: PromptTokenizer) -> None:
    made = {k: workload.records(tokenizer, [k], 1)[0] for k in workload.KINDS}
    assert [len(q.option_ids) for q in made["options-77"].questions] == [77]
    for name in ("500", "1000", "16k", "image-640"):
        assert len(made[name].questions) == 4
    assert {q.type for q in made["1000"].questions} == {"noul", "choice", "score"}
    assert lengths(tokenizer, [made["16k"]])[0] in range(15_996, 16_001)
    assert len(made["image-640"].images) == 1


def test_records_are_sound_distinct_and_the_same_every_time(tokenizer: PromptTokenizer) -> None:
    made = workload.records(tokenizer, ["500", 600, "image-640"], 5)
    assert [record.cohort for record in made] == ["500"] * 5 + ["600"] * 5 + ["image-640"] * 5
    assert len({record.id for record in made}) == 15
    assert len({json.dumps(record.state) for record in made}) == 15
    for record in made:
        assert parse_record(json.loads(json.dumps(record_to_json(record))), "test") == record
    fresh = PromptTokenizer.from_folder(NANO)
    assert workload.records(fresh, ["500", 600, "image-640"], 5) == made
    # more of them begin with the same ones, and another seed gives others
    assert workload.records(fresh, ["500"], 7)[:5] == made[:5]
    assert workload.records(fresh, ["500"], 5, seed=1)[0].state != made[0].state


@pytest.mark.parametrize("kind", ["many", "0", "-5", "", "5.5"])
def test_unknown_kinds_are_named(tokenizer: PromptTokenizer, kind: str) -> None:
    with pytest.raises(InputError, match="kind of record") as caught:
        workload.records(tokenizer, [kind], 1)
    assert "options-77" in str(caught.value.fix)


def test_a_length_below_the_questions_own_is_refused(tokenizer: PromptTokenizer) -> None:
    with pytest.raises(InputError, match="questions alone take"):
        workload.records(tokenizer, [100], 1)


def test_images_are_whole_png_files(tmp_path: Path, tokenizer: PromptTokenizer) -> None:
    made = workload.records(tokenizer, [workload.Kind("i", 520, image=96)], 2)
    workload.write_images(made, tmp_path)
    pixels = [np.asarray(Image.open(tmp_path / record.images[0])) for record in made]
    assert all(one.shape == (96, 96, 3) for one in pixels)
    assert (pixels[0] != pixels[1]).any()
    assert pixels[0].std() > 20
    again = Image.open(io.BytesIO(workload.image_bytes(made[0].images[0])))
    assert (np.asarray(again) == pixels[0]).all()


def test_the_core_imports_nothing_heavy() -> None:
    code = (
        "import sys; import clefq.bench.timing, clefq.bench.workload; "
        "print([m for m in ('torch', 'typer', 'vllm', 'rich', 'transformers', 'pandas') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
