"""Write data/SHA256SUMS, which `labkit doctor` holds the embedded models against: `make sums`.

The format is that of `sha256sum`, so `cd data && sha256sum -c SHA256SUMS` says the same without labkit.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import List

MODELS = ("labcoder", "labcoder-draft")
KINDS = (".safetensors", ".json")
RECORDS = ("corpus.json", "training_log.json")  # how a model was made; nothing is loaded from them


def lines(data: Path) -> List[str]:
    """One line a file that a model is loaded from, sorted by name."""
    files = [
        path
        for model in MODELS
        for path in (data / model).glob("*")
        if path.suffix in KINDS and path.name not in RECORDS
    ]
    named = sorted((path.relative_to(data).as_posix(), path) for path in files)
    return [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}" for name, path in named]


if __name__ == "__main__":
    folder = Path(__file__).resolve().parent.parent / "data"
    found = lines(folder)
    (folder / "SHA256SUMS").write_bytes("".join(line + "\n" for line in found).encode())
    print(f"data/SHA256SUMS: {len(found)} files")
