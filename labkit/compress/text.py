"""Text to calibrate, prune and distil with: Python source of libraries that the course has installed anyway.

It is of the kind that labcoder was trained on and never what quality is measured on: no standard library, no module
of an evaluation text, and no copy of one. Another version of a library gives another text, so what is measured with
it is recorded with its versions.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from labkit.errors import LabkitError
from labkit.models import LM
from labkit.quality import evaluation_files
from labkit.quality.text import GENERATED

LIBRARIES = (
    "IPython PIL _pytest anyio bitsandbytes bleach click filelock fsspec httpcore httpx huggingface_hub ipykernel "
    "ipywidgets jedi jinja2 jsonschema jupyter_client jupyter_server jupytext matplotlib nbclient nbconvert nbgrader "
    "networkx numpy packaging prompt_toolkit psutil pygments rich sympy torch tornado traitlets transformers triton "
    "typer"
).split()
"""Import names. All state a permissive licence: Apache-2.0, BSD, HPND, MIT or PSF."""

MODULE_BYTES = range(1_000, 100_000)
LONGEST_LINE = 400
"""Characters; longer lines are tables."""

LEFT_OUT = frozenset(
    "__pycache__ test tests testing _vendor _vendored vendored vendor extern externals third_party _distutils "
    "thirdparty backports distutils".split()
)
"""Folders: tests, and code that came from elsewhere."""

LEGAL = re.compile(r"copyright|licen[cs]e|spdx-|all rights reserved", re.IGNORECASE)
COPIED = 8
"""Runs of three lines in common with an evaluation text that make a file a copy of its."""

KNOWN_SHARE = 0.5
"""A file of which more than this share was taken before is a variant of another."""


def training_text(bytes: int = 500_000, seed: int = 0) -> str:
    """Python source of installed libraries, cut at the end of a line.

    Args:
        bytes: of UTF-8; all that there is makes some 70 MB.
        seed: another one gives another order of files, and so another text.

    Raises:
        LabkitError: the libraries installed here hold less than that.
    """
    parts, left = [], bytes
    for _, source in training_files(seed):
        cut = source.encode()[:left].decode(errors="ignore")
        parts.append(cut if cut == source else cut[: cut.rfind("\n") + 1])
        left -= len(source.encode())
        if left <= 0:
            return "".join(parts)
    raise _too_little(f"{bytes:,} bytes", f"{bytes - left:,}")


def training_tokens(lm: LM, tokens: int, seed: int = 0) -> Tensor:
    """Tokens of `training_text`, an end-of-text token after each file if the tokenizer has one.

    Args:
        tokens: how many; 2M take about 5 s.

    Returns:
        LongTensor [tokens] on the CPU.

    Raises:
        LabkitError: the libraries installed here hold fewer.
    """
    end = lm.tokenizer.eos_token_id
    ids: list[int] = []
    files = (source for _, source in training_files(seed))
    while len(ids) < tokens:
        batch = list(islice(files, 64))
        if not batch:
            raise _too_little(f"{tokens:,} tokens", f"{len(ids):,}")
        for row in lm.tokenizer(batch, add_special_tokens=False, verbose=False)["input_ids"]:
            ids += row if end is None else [*row, end]
    return torch.tensor(ids[:tokens], dtype=torch.long)


def training_files(seed: int = 0) -> Iterator[tuple[str, str]]:
    """(name, source) of every module that is fit, in an order given by the hash of seed and name."""
    evaluated = {
        each for kind in ("fixed", "stdlib") for _, text in evaluation_files(kind) for each in runs(text)
    }
    found = {name: path for library in LIBRARIES for name, path in _modules(library)}
    taken: set[int] = set()
    for name in sorted(found, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest()):
        source = _fit(found[name])
        if source is None:
            continue
        marks = runs(source)
        if len(marks & evaluated) >= COPIED or len(marks & taken) > KNOWN_SHARE * len(marks):
            continue
        taken |= marks
        yield name, source


def runs(text: str) -> set[int]:
    """Hashes of every three neighbouring lines that say something, white space folded."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    lines = [line for line in lines if len(line) > 8 and not line.startswith(("import ", "from ", "#"))]
    return {
        int.from_bytes(hashlib.blake2b("\n".join(three).encode(), digest_size=8).digest())
        for three in zip(lines, lines[1:], lines[2:], strict=False)
    }


def _modules(library: str) -> Iterator[tuple[str, Path]]:
    """(name, path) of a library's modules; found without importing it."""
    spec = PathFinder.find_spec(library, sys.path)
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for folder, inner, files in os.walk(root):
            inner[:] = [name for name in inner if name not in LEFT_OUT]
            for file in files:
                if file.endswith(".py") and not file.startswith("test_"):
                    path = Path(folder, file)
                    yield ".".join((library, *path.relative_to(root).with_suffix("").parts)), path


def _fit(path: Path) -> str | None:
    """The source without the notice at its head, or None if it was not written by hand, is a table or unreadable."""
    try:
        text = path.read_text(encoding="utf-8").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError):
        return None
    lines = text.splitlines(keepends=True)
    if len(text.encode()) not in MODULE_BYTES or GENERATED.search(text[:2000]) or not text.isascii():
        return None
    if max(map(len, lines)) > LONGEST_LINE or len(set(lines)) < 0.35 * len(lines):
        return None
    head = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))
    if any(LEGAL.search(line) for line in lines[:head]):
        lines = lines[head:]
    return "".join(lines).strip("\n") + "\n"


def _too_little(wanted: str, there: str) -> LabkitError:
    return LabkitError(
        f"The libraries installed here hold {there}, less than {wanted} of training text.",
        "Ask for less, or install what requirements.lock names.",
    )
