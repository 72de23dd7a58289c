"""YAML that would lose or bend what its author wrote is refused."""

import pytest
import yaml

from clefq.store.yaml_text import load_yaml, yaml_fault


def test_plain_values_anchors_and_merges_are_read() -> None:
    text = "a: &a {x: 1, y: [2, null]}\nb: *a\nc: {<<: *a, x: 3}\n"
    assert load_yaml(text) == {
        "a": {"x": 1, "y": [2, None]},
        "b": {"x": 1, "y": [2, None]},
        "c": {"x": 3, "y": [2, None]},
    }


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("gates: [1]\nname: x\ngates: []\n", "the key gates appears twice"),
        ("gates: [{margin: 0.01, margin: 0.5}]\n", "the key margin appears twice"),
        ("day: 2024-13-45\n", "month"),
        ("a: " + "[" * 20_000, "nested too deeply"),
        ("a:\n\tb: 1\n", "cannot start any token"),
        ("!!python/object/apply:os.getcwd []", "could not determine a constructor"),
    ],
)
def test_what_is_at_fault_is_refused(text: str, word: str) -> None:
    with pytest.raises(yaml.YAMLError, match=word) as caught:
        load_yaml(text)
    said = yaml_fault(caught.value)
    assert said.startswith("is not valid YAML") and word in said
    assert "\n" not in said and "unicode string" not in said


def test_the_line_of_a_fault_is_told() -> None:
    with pytest.raises(yaml.YAMLError) as caught:
        load_yaml("gates: [1]\nname: x\ngates: []\n")
    assert yaml_fault(caught.value) == "is not valid YAML, line 3: the key gates appears twice."
