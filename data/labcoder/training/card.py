"""Write the model cards from what was recorded: corpus, training logs, evaluation, and fresh completions.

labkit eval --json data/labcoder/evaluation.json
python -m training.card        (in data/labcoder/)
"""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

HERE = Path(__file__).resolve().parent.parent
DRAFT = HERE.parent / "labcoder-draft"
PROMPTS = [
    'def read_json(path):\n    """Read a JSON file and return its content."""\n',
    "def count_words(text):\n    counts = {}\n    for word in text.split():\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    'def mean(values):\n    """Return the arithmetic mean of a list of numbers."""\n',
    "def test_addition():\n    assert add(1, 2) == 3\n\n\ndef test_division_by_zero():\n    with pytest.raises(",
    "def __repr__(self):\n",
    'def main():\n    parser = argparse.ArgumentParser(description="Convert images")\n',
    "async def fetch(session, url):\n",
    'def clamp(value, low, high):\n    """Limit a value to the range from low to high."""\n',
    "def connect(self, host, port, timeout=None):\n    if timeout is not None and timeout < 0:\n",
]
NEW_TOKENS = 64
ABOUT = {
    "labcoder": "A small Llama that completes Python, trained for this course so that every notebook has a real model "
    "offline. It knows how code looks and little of what it means: use it to learn about inference, not to write "
    "software.",
    "labcoder-draft": "The draft of labcoder: the same tokenizer, distilled from it by matching its next-token "
    "distribution. It proposes tokens that labcoder checks, and serves as the student in experiments.",
}
SHAPE = {
    "hidden_size": "hidden",
    "num_hidden_layers": "layers",
    "num_attention_heads": "query heads",
    "num_key_value_heads": "KV heads",
    "head_dim": "head dim",
    "intermediate_size": "MLP",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "positions up to",
}


def completion(model: LlamaForCausalLM, tokenizer: Any, prompt: str) -> str:
    """Greedy continuation, cut where the next top-level statement begins, as an editor would cut it."""
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    ids = torch.cat([torch.full((1, 1), tokenizer.bos_token_id), ids], dim=1)
    out = model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=tokenizer.eos_token_id)
    lines = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True).split("\n")
    ended = next(
        (i for i, line in enumerate(lines) if i and line[:1] not in ("", " ", ")", "]", "}")), len(lines)
    )
    return "\n".join(lines[:ended]).rstrip()


def completions() -> str:
    """The ten prompts with what labcoder adds to them."""
    tokenizer = AutoTokenizer.from_pretrained(HERE)
    model = LlamaForCausalLM.from_pretrained(HERE, dtype=torch.float32).eval()
    return "\n".join(
        f"```python\n{prompt}▸{completion(model, tokenizer, prompt)}\n```\n" for prompt in PROMPTS
    )


def figures(evaluation: dict[str, Any], model: str) -> str:
    """The evaluation of one model as a table, and how it was measured."""
    got = evaluation["models"][model]
    texts = {"fixed": "`data/evaltext` (fixed)", "stdlib": f"standard library, Python {evaluation['python']}"}
    rows = []
    for name, words in texts.items():
        row = got[name]
        same = f"{row['top1_agreement']:.1%}" if "top1_agreement" in row else "–"
        values = f"{row['tokens']:,} | {row['bits_per_byte']:.3f} | {row['perplexity']:.2f} | {same}"
        rows.append(f"| {words} | {values} |")
    speed = got["decode_ms"]
    spread = f"{speed['low']:.1f}–{speed['high']:.1f}; {got['dtype']}, {got['device']}"
    positions = " | ".join(f"{row['above'] // 1024}–{row['up_to'] // 1024}k" for row in got["positions"])
    long = " | ".join(f"{row['bits_per_byte']:.3f}" for row in got["positions"])
    short = " | ".join(f"{row['short']:.3f}" for row in got["positions"])
    return "\n".join(
        [
            "| text | tokens | bits per byte | perplexity | same top token as labcoder |",
            "|---|--:|--:|--:|--:|",
            *rows,
            "",
            f"Windows of {evaluation['context']:,} tokens, stride {evaluation['stride']}. "
            f"Decoding: {speed['median']:.1f} ms a token ({spread}).",
            "",
            f"| bits per byte by tokens read | {positions} |",
            "|---|" + "--:|" * len(got["positions"]),
            f"| with the whole text before them | {long} |",
            f"| the same tokens, short windows | {short} |",
        ]
    )


def training(log: dict[str, Any], module: str) -> str:
    """How the weights were trained, from the log."""
    plan = log["plan"]
    return (
        f"`python -m training.{module} {log['command']}` on one {log['device']}, torch {log['torch']}: "
        f"{plan['tokens'] / 1e6:,.0f}M tokens in windows of {plan['length']:,}, some of {plan['long_length']:,}. "
        "Steps, loss and learning rate are in `training_log.json`."
    )


def corpus(record: dict[str, Any]) -> str:
    """Totals, and every package with version and licence."""
    rows = [
        f"| {one['name']} | {one['version']} | {one['licence']} | {one['files']:,} | {one['bytes'] / 1e3:,.0f} |"
        for one in record["packages"]
    ]
    files, size = record["files"], record["bytes"]
    return f"""{len(record["packages"])} packages, {files["keep"]:,} files, {size / 1e6:,.0f} MB, \
{record["tokens"] / 1e6:,.1f}M tokens ({size / record["tokens"]:.2f} bytes a token). Left out:

- {len(record["left_out"])} packages whose licence is not permissive or unknown, or that are backports of the standard \
library,
- {files.get("stdlib", 0):,} files that hold copies of the standard library,
- {files.get("duplicate", 0):,} near-duplicates,
- {files.get("unsuitable", 0):,} files that do not parse, are generated, tables, very short or very long.

Licence headers are removed. `corpus.json` has it all.

<details><summary>All packages</summary>

| package | version | licence | files | kB |
|---|---|---|--:|--:|
{chr(10).join(rows)}

</details>"""


def card(folder: Path, module: str, evaluation: dict[str, Any], record: dict[str, Any]) -> str:
    """One model card in Markdown."""
    config = json.loads((folder / "config.json").read_text())
    log = json.loads((folder / "training_log.json").read_text())
    shape = ", ".join(f"{words} {config[key]:,}" for key, words in SHAPE.items())
    parts = [
        f"# {folder.name}",
        ABOUT[folder.name],
        "## Configuration",
        f"Llama architecture, tied embeddings, bfloat16: {shape}. Byte-level BPE; a newline and the indentation after "
        "it are separate tokens, so that a prompt may end anywhere in a line.",
        "## Figures",
        "`labkit eval` measures these anew. None of these texts was trained on.",
        figures(evaluation, folder.name),
        "## Training",
        training(log, module),
    ]
    if folder == DRAFT:
        parts += ["The corpus is labcoder's: see its card."]
    else:
        how = f"Greedy, at most {NEW_TOKENS} tokens, cut at the next top-level statement; ▸ marks where it begins."
        parts += ["## Ten completions", how, completions(), "## Corpus", corpus(record)]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Write both cards."""
    evaluation = json.loads((HERE / "evaluation.json").read_text())
    record = json.loads((HERE / "corpus.json").read_text())
    for folder, module in ((HERE, "pretrain"), (DRAFT, "distil")):
        (folder / "README.md").write_text(card(folder, module, evaluation, record), encoding="utf-8")


if __name__ == "__main__":
    main()
