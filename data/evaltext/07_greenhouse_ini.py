"""Read the greenhouse controller's settings from an INI-like file.

The format is the usual one, with two wishes of the gardeners built in: values
may refer to others with ``${section:key}``, and a mistake names its line.
"""

import io
import re
from typing import Iterator, Mapping, TextIO

REFERENCE = re.compile(r"\$\{(?:(?P<section>[^:}]+):)?(?P<key>[^}]+)\}")


class ConfigError(Exception):
    """Raised for anything wrong in the file; `line` is None after reading."""

    def __init__(self, message: str, line: int | None = None) -> None:
        where = f"line {line}: " if line is not None else ""
        super().__init__(where + message)
        self.line = line


class Section(Mapping[str, str]):
    def __init__(self, name: str, owner: "Config") -> None:
        self.name = name
        self._owner = owner
        self._raw: dict[str, str] = {}

    def __getitem__(self, key: str) -> str:
        return self._owner.expand(self._raw[key], self.name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)

    def number(self, key: str, default: float | None = None) -> float:
        if key not in self._raw and default is not None:
            return default
        try:
            return float(self[key])
        except ValueError:
            raise ConfigError(f"[{self.name}] {key} should be a number, not {self[key]!r}") from None


class Config:
    def __init__(self) -> None:
        self.sections: dict[str, Section] = {}

    @classmethod
    def read(cls, stream: TextIO) -> "Config":
        config = cls()
        section: Section | None = None
        last_key: str | None = None
        for number, raw in enumerate(stream, start=1):
            line = raw.rstrip()
            text = line.lstrip()
            if not text or text[0] in "#;":
                last_key = None
            elif text.startswith("["):
                if not text.endswith("]"):
                    raise ConfigError(f"section is not closed: {text}", number)
                name = text[1:-1].strip()
                section = config.sections.setdefault(name, Section(name, config))
                last_key = None
            elif section is None:
                raise ConfigError("a setting before the first [section]", number)
            elif line[0].isspace() and last_key is not None:
                section._raw[last_key] += "\n" + text  # an indented line continues the value
            else:
                key, sign, value = text.partition("=")
                if not sign:
                    raise ConfigError(f"expected key = value, got {text!r}", number)
                last_key = key.strip().lower()
                if last_key in section._raw:
                    raise ConfigError(f"{last_key} is set twice in [{section.name}]", number)
                section._raw[last_key] = value.strip()
        return config

    def expand(self, value: str, section: str, depth: int = 0) -> str:
        """Replace references; a chain of more than ten must be a circle."""
        if depth > 10:
            raise ConfigError(f"references go round in a circle near {value!r}")

        def look_up(match: re.Match[str]) -> str:
            home, key = match["section"] or section, match["key"].lower()
            try:
                found = self.sections[home]._raw[key]
            except KeyError:
                raise ConfigError(f"no setting {home}:{key}") from None
            return self.expand(found, home, depth + 1)

        return REFERENCE.sub(look_up, value)


SAMPLE = """\
# north house
[climate]
base = 18.5
night = ${base}

[report]
title = Night at ${climate:night} degrees
recipients = head gardener
    apprentice
"""


def demo() -> tuple[object, ...]:
    config = Config.read(io.StringIO(SAMPLE))
    climate, report = config.sections["climate"], config.sections["report"]
    try:
        Config.read(io.StringIO("[pumps]\nspeed = 3\nspeed = 4\n"))
    except ConfigError as error:
        complaint = str(error)
    return (
        climate.number("night"),
        climate.number("humidity", default=0.6),
        report["title"],
        report["recipients"].splitlines(),
        complaint,
    )
