"""A learner's work is safe: copies, rescue, updates, reset."""

import nbformat
import pytest

from labkit import paths
from labkit.course import work
from labkit.course.build import build, drifted
from labkit.errors import LabkitError

pytest_plugins = ["course_home"]


@pytest.fixture
def course(home):
    build(execute=False, say=lambda _: None)
    return home


def pristine():
    return paths.notebooks() / "90_demo.ipynb"


def mine():
    return paths.work() / "90_demo.ipynb"


def edit(path, text="x = 'my work'"):
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[4].source = text
    nbformat.write(notebook, path)


def change_source(home, text="# %% [markdown]\n# A new closing.\n"):
    source = home / "solutions" / "90_demo.py"
    source.write_text(source.read_text() + "\n" + text)


def test_the_first_opening_copies_and_a_second_says_nothing(course):
    assert work.open_course() == []
    assert mine().read_bytes() == pristine().read_bytes()
    edit(mine())
    before = mine().read_bytes()
    assert work.open_course() == []
    assert mine().read_bytes() == before


def test_a_pristine_notebook_that_was_edited_moves_to_work(course):
    original = pristine().read_bytes()
    edit(pristine())
    edited = pristine().read_bytes()
    (notice,) = work.open_course()
    assert "notebooks/90_demo.ipynb" in notice and "work/90_demo.ipynb" in notice
    assert mine().read_bytes() == edited and pristine().read_bytes() == original
    assert drifted(course / "solutions" / "90_demo.py") == ["90_demo: the executed solution is missing."]


def test_a_rescued_notebook_never_replaces_work(course):
    work.open_course()
    edit(mine(), "kept = 1")
    kept = mine().read_bytes()
    for text in ("other = 2", "third = 3"):
        edit(pristine(), text)
        work.open_course()
    assert mine().read_bytes() == kept
    beside = {
        nbformat.read(path, as_version=4).cells[4].source for path in paths.work().glob("*from-notebooks*")
    }
    assert beside == {"other = 2", "third = 3"}


@pytest.mark.parametrize("content", ["", "{", "<<<<<<< HEAD\n{}", '{"cells": []}', "[]"])
def test_a_broken_pristine_notebook_is_rescued_and_rebuilt(course, content):
    original = pristine().read_bytes()
    pristine().write_text(content)
    work.open_course()
    assert pristine().read_bytes() == original
    assert mine().read_text() == content


def test_a_missing_pristine_notebook_is_built_again(course):
    original = pristine().read_bytes()
    pristine().unlink()
    assert work.open_course() == []
    assert pristine().read_bytes() == original == mine().read_bytes()


def test_running_a_pristine_notebook_is_no_edit(course):
    notebook = nbformat.read(pristine(), as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count = 1
            cell.outputs = [nbformat.v4.new_output("stream", text="hi")]
    nbformat.write(notebook, pristine())
    assert work.rescue(pristine()) == []


def test_a_newer_edition_replaces_an_untouched_copy_and_spares_a_touched_one(course):
    work.open_course()
    old = mine().read_bytes()
    change_source(course)
    build(execute=False, say=lambda _: None)
    (notice,) = work.open_course()
    assert "updated" in notice and mine().read_bytes() == pristine().read_bytes() != old
    edit(mine())
    touched = mine().read_bytes()
    assert work.open_course() == []
    change_source(course, "# %%\nlast = 1\n")
    build(execute=False, say=lambda _: None)
    (notice,) = work.open_course()
    assert "labkit reset 90" in notice and mine().read_bytes() == touched


def test_build_rescues_an_edited_notebook_first(course):
    edit(pristine(), "precious = 1")
    change_source(course)
    said = []
    build(execute=False, say=said.append)
    assert any("work/90_demo.ipynb" in line for line in said)
    assert "precious = 1" in mine().read_text() and "precious" not in pristine().read_text()


@pytest.mark.parametrize("name", ["90", "demo", "90_demo", "90_demo.ipynb", "notebooks/90_demo.ipynb"])
def test_reset_keeps_a_backup(course, name):
    work.open_course()
    for text in ("first = 1", "second = 2"):
        edit(mine(), text)
        notices = work.reset(name)
        assert "backups" in notices[0]
    assert mine().read_bytes() == pristine().read_bytes()
    kept = {
        nbformat.read(path, as_version=4).cells[4].source for path in (paths.work() / "backups").iterdir()
    }
    assert kept == {"first = 1", "second = 2"}


def test_reset_works_without_a_copy_and_names_the_nearest(course):
    assert len(work.reset("90")) == 1 and mine().is_file()
    with pytest.raises(LabkitError, match="90_demo"):
        work.reset("90_dema")
    with pytest.raises(LabkitError, match="90_demo"):
        work.reset("01")
