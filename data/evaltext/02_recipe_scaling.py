"""Scale recipes for more (or fewer) guests without losing the fractions.

Amounts are read as people write them, "1 1/2 cups flour", kept as exact
fractions while they are multiplied, and written back in the same manner:

>>> print(scale_line("1 1/2 cups flour", Fraction(2, 3)))
1 cup flour
>>> print(scale_line("3 eggs", Fraction(1, 2)))
1 1/2 eggs
>>> scale_line("a pinch of salt", Fraction(5))
'a pinch of salt'
"""

import re
from fractions import Fraction

AMOUNT = re.compile(r"^\s*(?:(\d+)\s+)?(\d+)(?:/(\d+))?\s+(.*)$")

# Spoons and cups relate to one another exactly, so we may change unit on the way.
SPOONS_PER = {"teaspoon": 1, "tablespoon": 3, "cup": 48}


class UnreadableAmount(ValueError):
    """The number in front of an ingredient makes no sense."""


def parse_amount(line):
    """Split a line into (amount, rest); amount is None if the line has no number."""
    match = AMOUNT.match(line)
    if match is None:
        return None, line.strip()
    whole, top, bottom, rest = match.groups()
    if whole and not bottom:
        raise UnreadableAmount(f"two numbers in a row in {line!r}")
    if bottom and int(bottom) == 0:
        raise UnreadableAmount(f"division by zero in {line!r}")
    amount = Fraction(int(top), int(bottom or 1))
    return amount + int(whole or 0), rest.strip()


def format_amount(amount):
    whole, part = divmod(amount, 1)
    if not part:
        return str(whole)
    return f"{whole} {part}" if whole else str(part)


def singular(word):
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def best_unit(amount, unit):
    """Pick the largest spoon or cup in which the amount is at least a quarter."""
    spoons = amount * SPOONS_PER[unit]
    for name in sorted(SPOONS_PER, key=SPOONS_PER.get, reverse=True):
        converted = spoons / SPOONS_PER[name]
        if converted >= Fraction(1, 4) and converted.denominator in (1, 2, 3, 4):
            return converted, name
    return amount, unit


def scale_line(line, factor):
    amount, rest = parse_amount(line)
    if amount is None:
        return rest
    amount *= factor
    first, _, ingredient = rest.partition(" ")
    unit = singular(first)
    if unit in SPOONS_PER:
        amount, unit = best_unit(amount, unit)
        rest = f"{unit if amount <= 1 else unit + 's'} {ingredient}"
    elif amount == 1:
        rest = f"{unit} {ingredient}".strip()
    return f"{format_amount(amount)} {rest}"


def scale_recipe(text, serves, guests):
    """Scale every line of a recipe written for `serves` people to `guests` people."""
    factor = Fraction(guests, serves)
    return [scale_line(line, factor) for line in text.splitlines() if line.strip()]


PANCAKES = """
    2 cups flour
    1 1/2 cups milk
    2 eggs
    3 teaspoons sugar
    a little butter
"""


def demo():
    for guests in (2, 6):
        print(f"For {guests}:")
        print("\n".join("  - " + line for line in scale_recipe(PANCAKES, 4, guests)))
    return scale_recipe(PANCAKES, serves=4, guests=2)


if __name__ == "__main__":
    import doctest

    doctest.testmod()
    demo()
