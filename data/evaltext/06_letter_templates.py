"""Fill in the library's form letters.

A template is plain text with three kinds of marks:

* ``{{ reader.name }}`` inserts a value; dots look inside objects or dicts, and
  a filter may follow a bar: ``{{ name | title }}``;
* ``{% if fine %} ... {% else %} ... {% end %}`` chooses;
* ``{% for book in books %} ... {% end %}`` repeats.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Any, Callable, Union

Context = dict[str, Any]
Node = Union[str, "Value", "If", "For"]

MARK = re.compile(r"({{.*?}}|{%.*?%})", re.DOTALL)

FILTERS: dict[str, Callable[[Any], str]] = {
    "title": lambda value: str(value).title(),
    "money": lambda value: f"{value / 100:.2f} EUR",
    "date": lambda value: f"{value:%d %B %Y}",
}


class TemplateError(ValueError):
    pass


def resolve(path: str, context: Context) -> Any:
    """Follow a dotted path; each step is a key if possible, else an attribute."""
    value: Any = context
    for step in path.split("."):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif hasattr(value, step):
            value = getattr(value, step)
        else:
            raise TemplateError(f"nothing called {step!r} in {path!r}")
    return value


class Value:
    def __init__(self, source: str) -> None:
        self.path, *self.filters = [piece.strip() for piece in source.split("|")]

    def render(self, context: Context) -> str:
        value = resolve(self.path, context)
        for name in self.filters:
            value = FILTERS[name](value)
        return str(value)


class If:
    def __init__(self, path: str) -> None:
        self.path = path
        self.then: list[Node] = []
        self.otherwise: list[Node] = []

    def render(self, context: Context) -> str:
        chosen = self.then if resolve(self.path, context) else self.otherwise
        return render_nodes(chosen, context)


class For:
    def __init__(self, variable: str, path: str) -> None:
        self.variable, self.path = variable, path
        self.body: list[Node] = []

    def render(self, context: Context) -> str:
        items = resolve(self.path, context)
        return "".join(render_nodes(self.body, {**context, self.variable: item}) for item in items)


def render_nodes(nodes: list[Node], context: Context) -> str:
    return "".join(n if isinstance(n, str) else n.render(context) for n in nodes)


def parse(text: str) -> list[Node]:
    top: list[Node] = []
    targets = [top]  # the innermost list collects what comes next
    open_blocks: list[If | For] = []
    for piece in MARK.split(text):
        if piece.startswith("{{"):
            targets[-1].append(Value(piece[2:-2]))
            continue
        if not piece.startswith("{%"):
            targets[-1].append(piece)
            continue
        match piece[2:-2].split():
            case ["if", path]:
                choice = If(path)
                targets[-1].append(choice)
                open_blocks.append(choice)
                targets.append(choice.then)
            case ["for", variable, "in", path]:
                loop = For(variable, path)
                targets[-1].append(loop)
                open_blocks.append(loop)
                targets.append(loop.body)
            case ["else"] if open_blocks and isinstance(open_blocks[-1], If):
                targets[-1] = open_blocks[-1].otherwise
            case ["end"] if open_blocks:
                open_blocks.pop()
                targets.pop()
            case words:
                raise TemplateError(f"cannot understand {' '.join(words)!r} here")
    if open_blocks:
        raise TemplateError(f"{len(open_blocks)} block(s) without an end")
    return top


LETTER = """Dear {{ reader.name | title }},
these are due on {{ due | date }}:{% for book in books %}
  * {{ book.title }}{% if book.reserved %} (someone is waiting!){% end %}{% end %}
{% if fine %}You owe {{ fine | money }}.{% else %}Nothing to pay.{% end %}"""


def demo() -> str:
    books = [{"title": "The Moss Garden", "reserved": True}, {"title": "Knots", "reserved": False}]
    context = {"reader": {"name": "ada brook"}, "due": date(2024, 5, 17), "books": books, "fine": 250}
    return render_nodes(parse(LETTER), context)


if __name__ == "__main__":
    print(demo())
