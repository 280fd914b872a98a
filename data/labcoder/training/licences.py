"""Which installed distributions may be trained on: only those that state a permissive licence.

A distribution states its licence in up to three places of its metadata (core metadata 2.4): the SPDX
`License-Expression`, trove classifiers, and the free-text `License` field. They are read in that order and the
first that says something decides. Copyleft, proprietary, contradictory or absent statements leave it out.
"""

import re
from importlib.metadata import Distribution

PERMISSIVE_SPDX = frozenset(
    """
    0bsd apache-2.0 blueoak-1.0.0 bsd-2-clause bsd-3-clause bsd-3-clause-lbnl bsl-1.0 cc0-1.0 hpnd
    cnri-python isc mit mit-0 mit-cmu ncsa postgresql psf-2.0 unlicense upl-1.0 zlib
    """.split()
)
PERMISSIVE_CLASSIFIERS = {
    "Apache Software License",
    "BSD License",
    "Boost Software License 1.0 (BSL-1.0)",
    "CC0 1.0 Universal (CC0 1.0) Public Domain Dedication",
    "Historical Permission Notice and Disclaimer (HPND)",
    "ISC License (ISCL)",
    "MIT License",
    "MIT No Attribution License (MIT-0)",
    "Python Software Foundation License",
    "The Unlicense (Unlicense)",
    "Universal Permissive License (UPL)",
    "zlib/libpng License",
    "Zero-Clause BSD (0BSD)",
}
# The whole free-text field must be one of these: a longer text may hide a condition.
PERMISSIVE_TEXT = re.compile(
    r"(the )?(new |modified |revised |simplified )?"
    r"(mit|bsd|isc|zlib|unlicense|hpnd|0bsd|(bsd[- ])?[23][- ]clause( bsd)?|bsd[- ]?[23]?[- ]?clause|apache)"
    r"([ -]*(software )?(licen[cs]e)?,?[ -]*(version |v)?2?(\.0)?)?( licen[cs]e)?",
    re.IGNORECASE,
)


def permissive_expression(expression: str) -> bool:
    """True when an SPDX expression is met by permissive licences alone.

    Alternatives joined by `OR` need one permissive licence; as soon as there is an `AND`, every licence named must be
    permissive, which is stricter than SPDX asks. An exception (`WITH`) only grants more and is passed over.
    """
    text = re.sub(r"\bwith\s+\S+", " ", expression.lower().replace("(", " ").replace(")", " "))
    words = text.split()
    permissive = [word in PERMISSIVE_SPDX for word in words if word not in ("and", "or")]
    return any(permissive) if "and" not in words else bool(permissive) and all(permissive)


def permissive_licence(dist: Distribution) -> str | None:
    """The permissive licence a distribution states, or None when it states none, another, or several that differ."""
    meta = dist.metadata
    expression = meta.get("License-Expression")
    if expression:
        return expression if permissive_expression(expression) else None
    stated = [c.split(" :: ")[-1] for c in meta.get_all("Classifier") or [] if c.startswith("License ::")]
    stated = [c for c in stated if c != "OSI Approved"]
    if stated:
        return " / ".join(sorted(stated)) if all(c in PERMISSIVE_CLASSIFIERS for c in stated) else None
    text = (meta.get("License") or "").strip()
    if permissive_expression(text.replace(",", " AND ")) or PERMISSIVE_TEXT.fullmatch(text):
        return text
    return None
