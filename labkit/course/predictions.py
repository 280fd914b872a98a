"""`predict`: say a number before measuring it, and see both side by side afterwards. Ungraded; blank is fine."""

import math
from typing import Any

from labkit.course import store, texts
from labkit.course.display import Table, measured_here, show
from labkit.course.texts.shown import show as shown
from labkit.errors import LabkitError

TIMES = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}  # seconds


class Predict:
    """`predict("tpot", 12, "ms")`, later `predict.compare("tpot", 31.4)`."""

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

    def compare(self, name: str, measured: float, unit: str = "") -> None:
        """Show the prediction `name` beside what was measured, in `unit` (that of the prediction where none is given).

        Raises:
            LabkitError: when the prediction was made in a unit that cannot be converted.
        """
        kept = store.read()["predictions"].get(name, {})
        value = kept.get("value")
        guess = float(value) if isinstance(value, int | float) else None
        guessed_in = str(kept.get("unit", ""))
        unit = unit or guessed_in
        if guess is not None and unit != guessed_in:
            guess = _converted(guess, guessed_in, unit)
        number = _number(measured)
        headers = [
            texts.text(f"predict.{key}") for key in ("what", "predicted", "measured", "verdict", "source")
        ]
        row = [name, "–" if guess is None else quantity(guess, unit), quantity(number, unit)]
        show(Table(headers, [[*row, _verdict(guess, number), measured_here()]]))


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


def _verdict(guess: float | None, measured: float) -> str:
    """How far off a guess was, as a factor."""
    if guess is None:
        return texts.text("predict.none")
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
