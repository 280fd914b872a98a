"""Sliders over a measured grid: the picture is there with and without them, and follows them."""

import base64
import builtins
import itertools

import IPython.display
import pytest
from matplotlib.figure import Figure

from labkit.course import widgets
from labkit.errors import LabkitError


@pytest.fixture
def shown(monkeypatch):
    """What a notebook would get: ("display" or "update", thing, display id)."""
    seen = []
    monkeypatch.setattr(widgets, "in_notebook", lambda: True)
    for name in ("display", "update_display"):
        monkeypatch.setattr(
            IPython.display,
            name,
            lambda thing, name=name, display_id=None, **_: seen.append((name, thing, display_id)),
        )
    return seen


def draw_into(calls):
    def draw(tokens, batch):
        calls.append((tokens, batch))
        figure = Figure(figsize=(2, 1))
        figure.subplots().set_title(f"{tokens} {batch}")
        return figure

    return draw


def test_moving_a_slider_replaces_the_one_picture_and_draws_each_point_once(shown):
    calls = []
    widgets.explore(draw_into(calls), "a plot", tokens=[1, 16, 256], batch=[1, 2, 4])
    (_, box, _), (_, first, shown_as) = shown
    assert calls == [(16, 2)] and base64.b64decode(first["image/png"]).startswith(b"\x89PNG")
    assert first["text/plain"] == "a plot" and shown_as
    tokens, batch = box.children
    for i, j in itertools.product(range(3), range(3)):
        tokens.value, batch.value = [1, 16, 256][i], [1, 2, 4][j]
        kind, picture, updated = shown[-1]
        assert (kind, updated) == ("update_display", shown_as)
        assert picture["image/png"] != first["image/png"] or (i, j) == (1, 1)
    assert sorted(calls) == sorted(itertools.product([1, 16, 256], [1, 2, 4]))


def test_a_story_starts_where_it_is_told_to(shown):
    calls = []
    widgets.explore(draw_into(calls), "a plot", start={"tokens": 1}, tokens=[1, 16, 256], batch=[1, 2, 4])
    (_, box, _), _ = shown
    assert calls == [(1, 2)] and [slider.value for slider in box.children] == [1, 2]
    for start in ({"tokens": 2}, {"token": 1}):
        with pytest.raises(LabkitError, match="start"):
            widgets.explore(draw_into([]), "x", start=start, tokens=[1], batch=[2])


def test_sliders_are_named_with_their_unit(shown):
    widgets.explore(lambda prompt, any_other: Figure(), "a plot", prompt=[1, 2], any_other=[3])
    assert [slider.description for slider in shown[0][1].children] == ["prompt (tokens)", "any other"]


def test_without_ipywidgets_the_picture_stays(shown, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "ipywidgets":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    widgets.explore(draw_into([]), "a plot", tokens=[1], batch=[2])
    ((_, picture, _),) = shown
    assert "image/png" in picture


def test_outside_a_notebook_the_description_is_printed(capsys):
    widgets.explore(draw_into([]), "what it shows", tokens=[1], batch=[2])
    widgets.show_figure(Figure(), "a figure")
    assert capsys.readouterr().out == "what it shows\na figure\n"


def test_the_same_picture_has_the_same_bytes(shown):
    for _ in range(2):
        widgets.show_figure(draw_into([])(3, 4), "x")
    assert shown[0][1] == shown[1][1]


@pytest.mark.parametrize(
    "grid",
    [
        {},
        {"tokens": [], "batch": [1]},
        {"tokens": [1], "size": [1]},
        {"tokens": [1, 1], "batch": [2]},
        {"tokens": [1]},
    ],
)
def test_a_grid_that_does_not_fit_is_one_clear_error(grid):
    with pytest.raises(LabkitError):
        widgets.explore(draw_into([]), "x", **grid)
