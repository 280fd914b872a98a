"""The catalogue: complete for every exercise, and safe with whatever a learner's function returned."""

import ast
import inspect
import string
import textwrap
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.course import exercises, texts
from labkit.course.texts.shown import CHARACTERS, show
from labkit.errors import LabkitError

pytest_plugins = ["course_home"]

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)
specs = st.sampled_from(
    ["", ":.3f", ":,", ":>8", ":d", ":x", ":%", "!r", "!s", "!r:>5", ".real", "[0]", "[key]"]
)


@given(plain, specs)
def test_any_value_fits_any_field(value, spec):
    said = texts.fill(f"before {{got{spec}}} after", {"got": value})
    assert said.startswith("before ") and said.endswith(" after")


@given(plain)
def test_shown_values_are_short_single_lines_and_the_same_every_time(value):
    said = show(value)
    assert said == show(value) and "\n" not in said and len(said) <= CHARACTERS + 30


ODD = [
    object(),
    lambda x: x,
    torch.randn(3, 5),
    torch.tensor(2.5),
    torch.empty(0),
    torch.empty(2, device="meta"),
    torch.zeros(2, 2).to_sparse(),
    torch.float32,
    torch.nn.Linear(1, 1),
    numpy.arange(100),
    numpy.float32(1.5),
    numpy.array(["a", None], dtype=object),
    10**6000,
    "y" * 10**6,
    range(3),
    {1, 2},
]


@pytest.mark.parametrize("number", range(len(ODD)))
def test_odd_values_are_named_without_addresses(number):
    value = ODD[number]
    said = show(value) + texts.fill("{got:.2f} {got}", {"got": value})
    assert "0x" not in said and len(said) < 900


def test_a_list_inside_itself():
    loop: list = [1]
    loop.append(loop)
    assert "…" in show(loop)


def test_a_missing_field_stays_visible():
    assert texts.fill("{want} and {got:.2f}", {"got": 1}) == "{want} and 1.00"


def test_missing_texts_are_named(home, monkeypatch):
    with pytest.raises(LabkitError, match=r"check\.nothing"):
        texts.text("check.nothing")
    with pytest.raises(LabkitError, match="absent"):
        texts.exercise("90_demo", "absent")
    with pytest.raises(LabkitError, match=r"mean_gap\.failures\.absent"):
        texts.failure("90_demo", "mean_gap", "absent", {})
    with pytest.raises(LabkitError, match="91_none"):
        texts.exercise("91_none", "mean_gap")
    monkeypatch.setenv("LABKIT_LANG", "tlh")
    with pytest.raises(LabkitError, match="LABKIT_LANG"):
        texts.text("check.passed")


@pytest.mark.parametrize(
    "toml",
    [
        "[x]\ntitle = 'a'\n",
        "[x]\nhints = []\n",
        "x = 3\n",
        "[x",
        "[x]\ntitle='a'\nhints=[]\nfailures={a='{'}\n",
    ],
)
def test_broken_catalogues_give_one_clear_error(home, tmp_path, toml):
    folder = tmp_path / "texts"
    (folder / "en").mkdir(parents=True)
    (folder / "en" / "92_broken.toml").write_text(toml)
    texts.add_folder(folder)
    with pytest.raises(LabkitError, match="92_broken"):
        texts.exercise("92_broken", "x")


def test_a_text_of_another_language_is_found_in_an_added_folder(home, tmp_path, monkeypatch):
    folder = tmp_path / "texts"
    (folder / "de").mkdir(parents=True)
    (folder / "de" / "90_demo.toml").write_text(
        "[mean_gap]\ntitle = 'mittlerer Abstand'\nhints = ['a', 'b', 'c']\n"
    )
    texts.add_folder(folder)
    monkeypatch.setenv("LABKIT_LANG", "de")
    assert texts.exercise("90_demo", "mean_gap").title == "mittlerer Abstand"


def test_every_sentence_that_the_machinery_says_is_in_the_catalogue():
    """Each `texts.text("section.name", field=…)` in labkit: the text is there and gets what it mentions."""
    found = 0
    for path in Path(exercises.__file__).parents[2].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "texts.text"):
                continue
            if not isinstance(node.args[0], ast.Constant):
                continue
            key, fields = node.args[0].value, {keyword.arg for keyword in node.keywords}
            template = texts._read("common", "en")
            for part in key.split("."):
                assert part in template, f"{path.name}: {key}"
                template = template[part]
            assert None in fields or placeholders(template) <= fields, f"{path.name}: {key}"
            found += 1
    assert found > 30


@pytest.fixture(params=exercises.names())
def exercise(request):
    return exercises.find(request.param)


def test_every_exercise_has_a_title_three_hints_and_a_known_level(exercise):
    entry = texts.exercise(exercise.notebook, exercise.name)
    assert entry.title and len(entry.hints) == 3 and all(hint.strip() for hint in entry.hints)
    assert len(set(entry.hints)) == 3
    assert exercise.points > 0 and 0 < exercise.minutes <= (15 if exercise.level == "core" else 25)


def test_every_failure_key_of_a_check_is_in_the_catalogue_with_its_fields(exercise):
    """Each `expect(…, "key", field=…)` in the check's module names a text, and gives what the text mentions."""
    entry = texts.exercise(exercise.notebook, exercise.name)
    used = expectations(exercise)
    assert used, f"{exercise.name} expects nothing"
    for key, fields in used:
        assert texts.failure(exercise.notebook, exercise.name, key, {}), key
        template = entry.failures.get(key)
        if template is not None and fields is not None:
            assert placeholders(template) <= fields | {"name"}, (exercise.name, key)


def expectations(exercise):
    """(key, field names, or None when they are given as **fields) of the `expect` calls that its check can reach.

    Follows functions by name, so that a shared helper counts for each check that uses it.
    """
    found, todo, seen = [], [exercise.check], set()
    while todo:
        function = todo.pop()
        if function in seen:
            continue
        seen.add(function)
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
            if isinstance(node, ast.Name):
                named = function.__globals__.get(node.id)
                if inspect.isfunction(named) and ".exercises." in f".{named.__module__}.":
                    todo.append(named)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("expect", "Wrong"):
                key = node.args[1 if node.func.id == "expect" else 0]
                if isinstance(key, ast.Constant):
                    names = [keyword.arg for keyword in node.keywords]
                    given = node.func.id == "expect" and None not in names
                    found.append((key.value, set(names) if given else None))
    return found


def placeholders(template):
    fields = {field for _, field, _, _ in string.Formatter().parse(template) if field}
    return {field.partition(".")[0].partition("[")[0] for field in fields}
