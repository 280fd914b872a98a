"""The exercises of 02_compress: minutes, references against labkit's own, verdicts on planted mistakes."""

import itertools
import random
import runpy
from pathlib import Path

import pytest
import torch

from labkit.course import exercises
from labkit.course.exercise import CheckFailed
from labkit.course.verify import guarded, verify
from labkit.kernels import packed
from labkit.kernels.formats import Format

EXERCISES = exercises.of("02_compress")
ANSWERS = Path(__file__).parent / "answers" / "02_compress"


def own(name):
    return exercises.find(name).reference


def test_core_path_fits_into_the_promised_minutes():
    assert sum(exercise.minutes for exercise in EXERCISES if exercise.level == "core") <= 25
    core = {exercise.name for exercise in EXERCISES if exercise.level == "core"}
    assert core == {"quantise", "pack_int4", "model_bytes", "awq_scale", "distil_loss"}
    assert not any(exercise.needs for exercise in EXERCISES)


@pytest.mark.parametrize(("kind", "bits"), [("int8", 8), ("int4", 4)])
def test_rounding_is_that_of_the_packed_weights(kind, bits):
    weight, clip = torch.randn(random.randint(2, 9), random.randint(3, 99)) * 30, random.uniform(0.5, 1)
    weight[1] = 0
    stored = Format(kind)
    theirs = packed.quantise(weight, stored, clip=torch.full((len(weight), 1), clip))
    numbers, scales, restored = own("quantise")(weight, bits, clip)
    assert torch.allclose(scales[:, None], theirs.scales)
    apart = theirs.integers() - stored.middle - numbers
    assert apart.abs().max() <= 1  # a scale's last digit may move a half
    assert torch.allclose(restored, theirs.dequantise(), atol=float(scales.max()))


@pytest.mark.parametrize("group", [16, 32, 64])
def test_error_by_groups_is_that_of_the_packed_weights(group):
    weight = torch.randn(7, random.randint(40, 200), dtype=torch.float64)
    theirs = packed.quantise(weight, Format("int4", group=group)).dequantise()
    want = (theirs - weight).norm() / weight.norm()
    assert own("group_error")(weight, group) == pytest.approx(float(want), rel=1e-6)


def test_smaller_groups_err_less_and_groups_of_one_not_at_all():
    weight = torch.randn(5, 130, dtype=torch.float64) * torch.rand(130, dtype=torch.float64).exp()
    errors = [own("group_error")(weight, group) for group in (130, 32, 8, 2, 1)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-12


def test_bytes_are_those_of_a_row_that_is_one_block():
    for columns in (1, 2, 7, 128, random.randint(3, 300)):
        numbers = torch.randint(-8, 8, (3, columns), dtype=torch.int8)
        mine = own("pack_int4")(numbers)
        theirs = packed.pack(numbers + 8, 2 * mine.shape[1])
        assert torch.equal(mine, theirs)
        assert torch.equal(own("unpack_int4")(mine, columns), numbers)
        assert torch.equal(packed.unpack(mine, 2 * mine.shape[1], columns).to(torch.int8) - 8, numbers)


def test_size_is_what_packed_weights_take():
    rows, columns = random.randint(2, 9), 64 * random.randint(1, 5)
    weight = torch.randn(rows, columns, dtype=torch.bfloat16)
    for kind, bits in (("int4", 4), ("int8", 8)):
        theirs = packed.quantise(weight, Format(kind, group=32))
        assert own("model_bytes")(rows * columns, bits, 32, 16) == theirs.nbytes
    assert own("model_bytes")(7 * 10**9, 4, 128, 16) == 3_609_375_000


def test_whole_numbers_come_near_the_layer_and_a_loud_neighbour_changes_nothing():
    weight, x = torch.randn(9, 64), torch.randn(5, 64)
    theirs = packed.quantise(weight, Format("int8"))
    layer = own("int8_linear")
    result = layer(x, theirs.values, theirs.scales[:, 0])
    assert (result - x @ weight.T).norm() < 0.02 * (x @ weight.T).norm()
    loud = torch.cat([1000 * torch.randn(1, 64), x])
    assert torch.equal(layer(loud, theirs.values, theirs.scales[:, 0])[1:], result)


def test_a_scale_search_begins_at_plain_rounding():
    weight = torch.randn(6, 20, dtype=torch.float64)
    inputs = torch.randn(50, 20, dtype=torch.float64) * torch.linspace(0.1, 8, 20)
    best, errors = own("awq_scale")(weight, inputs, [0.0, 0.5, 1.0])
    rounded = packed.quantise(weight, Format("int4")).dequantise()
    plain = (inputs @ (rounded - weight).T).norm() / (inputs @ weight.T).norm()
    assert errors[0] == pytest.approx(float(plain), rel=1e-6)
    assert errors[[0.0, 0.5, 1.0].index(best)] == min(errors)


def test_kept_layers_are_the_best_of_all_choices():
    damage, sizes = [random.random() for _ in range(7)], [random.randint(1, 99) for _ in range(7)]
    budget = sum(sizes) // 2
    every = itertools.chain.from_iterable(itertools.combinations(range(7), count) for count in range(8))
    most = max(
        sum(damage[layer] for layer in choice)
        for choice in every
        if sum(sizes[layer] for layer in choice) <= budget
    )
    kept = own("keep_precise")(damage, sizes, budget)
    assert sum(damage[layer] for layer in kept) == pytest.approx(most)
    assert sum(sizes[layer] for layer in kept) <= budget


def test_importance_is_how_a_loss_moves():
    activations = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    read = torch.randn(5, 6, dtype=torch.float64)

    def losses(a):
        return (a @ read).tanh().square().sum((1, 2))

    losses(activations).sum().backward()
    importance = own("taylor_importance")(activations.detach(), activations.grad)
    step = 1e-6
    for neuron in range(5):
        weaker = activations.detach().clone()
        weaker[:, :, neuron] *= 1 - step
        moved = (losses(weaker) - losses(activations.detach())).abs().mean() / step
        assert float(importance[neuron]) == pytest.approx(float(moved), rel=1e-4)


def test_a_student_that_equals_its_teacher_has_nothing_to_learn():
    loss = own("distil_loss")
    teacher = torch.randn(4, 9, dtype=torch.float64)
    teacher[:, 3] = -torch.inf
    student = teacher.masked_fill(teacher == -torch.inf, -100).requires_grad_()
    value = loss(student, teacher, 2.0)
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-12) and student.grad.abs().max() < 1e-12


def test_gradients_keep_their_size_as_the_temperature_rises():
    teacher, sizes = torch.randn(4, 9, dtype=torch.float64), []
    for temperature in (20.0, 200.0):
        student = torch.zeros(4, 9, dtype=torch.float64, requires_grad=True)
        own("distil_loss")(student, teacher, temperature).backward()
        sizes.append(float(student.grad.norm()))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.2) and sizes[0] > 0


@pytest.mark.parametrize(
    ("name", "wrong", "mentions"),
    [
        ("quantise", "per_tensor", "Each row has its own"),
        ("quantise", "truncated", "cut off, not rounded"),
        ("quantise", "not_clamped", "not on the grid"),
        ("quantise", "zero_row", "0 ÷ 0 is NaN"),
        ("quantise", "across", "scales[:, None]"),
        ("group_error", "dropped", "They are a group too"),
        ("group_error", "across_rows", "Each row begins a new group"),
        ("pack_int4", "swapped", "its halves exchanged"),
        ("pack_int4", "odd", "is odd: a row needs"),
        ("unpack_int4", "dtype", "convert before you take 8 away"),
        ("model_bytes", "no_scales", "come with them"),
        ("int8_linear", "per_tensor", "who else is in the batch"),
        ("int8_linear", "wrapped", "began again at −128"),
        ("awq_scale", "dead_column", "became 0 ÷ 0"),
        ("awq_scale", "weight_strength", "AWQ looks at activations"),
        ("keep_precise", "greedy_ratio", "A good rule and not the best choice"),
        ("taylor_importance", "abs_too_late", "helps one and harms another"),
        ("distil_loss", "no_square", "not multiplied by T²"),
        ("distil_loss", "reversed", "KL(student ‖ teacher)"),
        ("distil_loss", "masked_nan", "0 · (−inf) is NaN"),
    ],
)
def test_a_mistake_gets_its_own_verdict(name, wrong, mentions):
    function = runpy.run_path(str(ANSWERS / name / f"wrong_{wrong}.py"))[name]
    for _ in range(3):
        with pytest.raises(CheckFailed) as caught:
            verify(exercises.find(name), guarded(function), random.randrange(10**6))
        assert caught.value.key == wrong
        assert mentions in " ".join(caught.value.text.split())


@pytest.mark.parametrize("exercise", EXERCISES, ids=[exercise.name for exercise in EXERCISES])
def test_an_answer_has_one_verdict_whatever_the_seed(exercise):
    """Also for answers that no failure is named after, which the other tests leave free."""
    for path in sorted((ANSWERS / exercise.name).glob("*.py")):
        function, verdicts = runpy.run_path(str(path))[exercise.name], set()
        for _ in range(5):
            try:
                verify(exercise, guarded(function), random.randrange(10**6))
                verdicts.add("right")
            except CheckFailed as failed:
                verdicts.add(failed.key)
        assert len(verdicts) == 1, f"{path.name}: {verdicts}"
        assert (verdicts == {"right"}) == path.name.startswith("right_"), f"{path.name}: {verdicts}"
