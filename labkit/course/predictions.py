"""`predict`: say a number before measuring it, and see both side by side afterwards. Ungraded; blank is fine."""

import math
from collections.abc import Mapping
from typing import Any, overload

from labkit.course import store, texts
from labkit.course.display import Table, measured_here, show
from labkit.course.texts.shown import show as shown
from labkit.errors import LabkitError

CLOSE_POINTS = 2  # per cent points that count as a hit
TIMES = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}  # seconds


class Predict:
    """`predict("tpot", 12, "ms")`; later `predict.compare("tpot", 31.4)`, or with a dict of several."""

    def __call__(self, name: str, value: float | None = None, unit: str = "") -> None:
        """Keep a prediction with the learner's progress.

        Args:
            name: what is predicted; the same name goes to `compare`.
            value: the number, in `unit`; None leaves it blank and keeps an earlier one.
            unit: shown behind the number.

        Raises:
            LabkitError: when the value is no finite number.
        """
        if value is None:
            print(texts.text("predict.blank", name=name))
            return
        number = _number(value)

        def change(content: dict[str, Any]) -> None:
            content["predictions"][name] = {"value": number, "unit": unit, "at": store.now()}

        store.update(change)
        print(texts.text("predict.kept", name=name, value=quantity(number, unit)))

    @overload
    def compare(self, name: str, measured: float, unit: str = "") -> None: ...
    @overload
    def compare(self, name: Mapping[str, float], measured: str = "") -> None: ...
    def compare(self, name: str | Mapping[str, float], measured: float | str = "", unit: str = "") -> None:
        """Show predictions beside what was measured, in one table.

        Args:
            name: of the prediction; or a dict of names and what was measured, with the unit as second argument.
            measured: the number for `name`.
            unit: of what was measured (that of the prediction where none is given).

        Raises:
            LabkitError: when a prediction was made in a unit that cannot be converted.
        """
        if isinstance(name, str):
            rows = [_row(name, measured, unit)]
        else:
            rows = [_row(one, value, unit or str(measured)) for one, value in name.items()]
        columns = ("what", "predicted", "measured", "verdict", "source")
        show(Table([texts.text(f"predict.{key}") for key in columns], rows))


def _row(name: str, measured: Any, unit: str) -> list[Any]:
    """One line of the comparison."""
    kept = store.read()["predictions"].get(name, {})
    value = kept.get("value")
    guess = float(value) if isinstance(value, int | float) else None
    guessed_in = str(kept.get("unit", ""))
    unit = unit or guessed_in
    if guess is not None and unit != guessed_in:
        guess = _converted(guess, guessed_in, unit)
    number = _number(measured)
    predicted = "–" if guess is None else quantity(guess, unit)
    return [name, predicted, quantity(number, unit), _verdict(guess, number, unit), measured_here()]


def quantity(value: float, unit: str = "") -> str:
    """A number to three figures with its unit: "31.4 ms", "12,400 tokens/s"."""
    if not math.isfinite(value):
        return f"{value} {unit}".strip()
    digits = 0 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}" if digits <= 6 else f"{value:.2e}"
    if "." in text and "e" not in text:
        text = text.rstrip("0").rstrip(".")
    return f"{text} {unit}".strip()


def _number(value: Any) -> float:
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        raise LabkitError(
            f"{shown(value)} is not a number.", "Write a plain number; the unit is given separately."
        )
    number = float(value)
    if not math.isfinite(number):
        raise LabkitError(f"{number} is not a finite number.", "Write a plain number, such as 12 or 0.5.")
    return number


def _converted(guess: float, guessed_in: str, unit: str) -> float:
    """A guess in another unit of time; a learner who thinks in seconds may write seconds."""
    try:
        return guess * TIMES[guessed_in] / TIMES[unit]
    except KeyError:
        raise LabkitError(
            f"The prediction is in {guessed_in or 'no unit'}, the measurement in {unit}.",
            f"Predict it again in {unit}.",
        ) from None


def _verdict(guess: float | None, measured: float, unit: str) -> str:
    """How far off a guess was, as a factor; of shares, in points."""
    if guess is None:
        return texts.text("predict.none")
    if unit == "%":
        points = guess - measured
        if abs(points) <= CLOSE_POINTS:
            return texts.text("predict.points_close", points=CLOSE_POINTS)
        key = "predict.points_high" if points > 0 else "predict.points_low"
        return texts.text(key, points=f"{abs(points):.0f}")
    if guess == measured:
        return texts.text("predict.close")
    if guess * measured <= 0:
        return texts.text("predict.off", difference=quantity(abs(guess - measured)))
    factor = max(guess / measured, measured / guess)
    if factor < 1.2:
        return texts.text("predict.close")
    return texts.text(
        "predict.high" if abs(guess) > abs(measured) else "predict.low", factor=quantity(factor)
    )


predict = Predict()
