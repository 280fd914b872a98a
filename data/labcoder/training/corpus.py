"""Gather the training corpus from installed packages, train the tokenizer, and write token ids.

Writes into --out: `corpus.json` (packages with version, licence, files, bytes; what was left out and why),
`tokenizer.json`, `tokens.npy` (uint16, documents separated by the end-of-text id) and `stdlib.npy`, the held-out
standard library of this Python, which is never trained on.
"""

import argparse
import json
import multiprocessing
import sys
import sysconfig
from collections import Counter
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath

import numpy as np
from tokenizers import Tokenizer

from .filters import BACKPORTS, MAX_BYTES, MIN_BYTES, Deduplicator, clean, shingles, vendored
from .licences import permissive_licence
from .tokenizer import END_OF_TEXT, train_tokenizer

NOT_HELD_OUT = {"test", "tests", "idlelib", "encodings", "lib2to3", "turtledemo", "__phello__", "ensurepip"}


def canonical(name: str) -> str:
    """A distribution's name as registries compare it."""
    return name.lower().replace("_", "-").replace(".", "-")


def stdlib_files() -> list[Path]:
    """Every source file of this Python's standard library, its tests included."""
    root = Path(sysconfig.get_path("stdlib"))
    return sorted(
        p for p in root.rglob("*.py") if "site-packages" not in p.parts and "dist-packages" not in p.parts
    )


def heldout(path: Path) -> bool:
    """True for standard-library files that the held-out text uses: not tests, not tables."""
    return not NOT_HELD_OUT & set(path.parts)


def _read(path: Path) -> str | None:
    try:
        if not MIN_BYTES <= path.stat().st_size <= MAX_BYTES:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _cleaned(path: Path) -> tuple[str | None, set[int]]:
    text = _read(path)
    text = clean(text) if text is not None else None
    return text, shingles(text) if text else set()


def _raw_shingles(path: Path) -> set[int]:
    text = _read(path)
    return shingles(text) if text else set()


def sources(dist: Distribution) -> list[Path]:
    """The Python files a distribution installed, vendored folders left out."""
    files = [f for f in dist.files or [] if f.suffix == ".py" and not vendored(PurePosixPath(f))]
    return sorted(Path(str(dist.locate_file(f))) for f in files if ".." not in f.parts)


def eligible(paths: list[str]) -> tuple[list[tuple[str, str, str, list[Path]]], dict[str, str]]:
    """(name, version, licence, files) of each permissive distribution, and why each other was left out."""
    chosen, refused = {}, {}
    for dist in distributions(path=paths):
        name = canonical(dist.metadata["Name"] or "")
        licence = permissive_licence(dist)
        if name in BACKPORTS:
            refused[name] = "copies of the standard library"
        elif licence is None:
            refused[name] = "licence unknown or not permissive"
        elif name and name not in chosen:
            chosen[name] = (name, dist.version, licence, sources(dist))
    return [chosen[name] for name in sorted(chosen)], refused


def gather(paths: list[str], pool) -> tuple[list[str], dict]:
    """Cleaned, deduplicated documents in the order of package and path, and the record of where they came from."""
    packages, refused = eligible(paths)
    judge = Deduplicator(pool.imap_unordered(_raw_shingles, stdlib_files(), chunksize=64))
    documents, record, verdicts = [], [], Counter()
    for name, version, licence, files in packages:
        kept = []
        for text, hashes in pool.imap(_cleaned, files, chunksize=32):
            verdict = judge.judge(hashes) if text else "unsuitable"
            verdicts[verdict] += 1
            if text and verdict == "keep":
                kept.append(text)
        if kept:
            documents += kept
            size = sum(len(text.encode()) for text in kept)
            record.append(
                {"name": name, "version": version, "licence": licence, "files": len(kept), "bytes": size}
            )
    return documents, {"packages": record, "left_out": refused, "files": dict(verdicts)}


def encode(documents: list[str], tokenizer: Tokenizer) -> np.ndarray:
    """Token ids of all documents, uint16, each closed by the end-of-text id."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    parts = []
    for start in range(0, len(documents), 2000):
        for encoding in tokenizer.encode_batch(documents[start : start + 2000]):
            parts.append(np.array([*encoding.ids, end], dtype=np.uint16))
    return np.concatenate(parts)


def main() -> None:
    """Command line of the corpus step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--path", action="append", help="a site-packages folder; may be repeated (default: this Python's)"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with multiprocessing.Pool() as pool:
        documents, record = gather(args.path or sys.path, pool)
    tokenizer = train_tokenizer(documents)
    tokenizer.save(str(args.out / "tokenizer.json"))
    tokens = encode(documents, tokenizer)
    held = [text for text in map(_read, filter(heldout, stdlib_files())) if text]
    stdlib = encode(held, tokenizer)
    np.save(args.out / "tokens.npy", tokens)
    np.save(args.out / "stdlib.npy", stdlib)
    size = sum(len(text.encode()) for text in documents)
    record |= {"python": sys.version.split()[0], "bytes": size, "tokens": len(tokens)}
    record |= {"stdlib_bytes": sum(len(text.encode()) for text in held)}
    (args.out / "corpus.json").write_text(json.dumps(record, indent=1) + "\n")
    print(
        f"{len(record['packages'])} packages, {len(documents)} files, {size / 1e6:.1f} MB; {record['files']}"
    )
    print(
        f"{len(tokens) / 1e6:.1f}M tokens of {size / len(tokens):.2f} bytes; {len(stdlib) / 1e6:.2f}M held out"
    )


if __name__ == "__main__":
    main()
