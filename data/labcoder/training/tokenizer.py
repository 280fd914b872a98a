"""labcoder's tokenizer: byte-level BPE (Sennrich et al. 2016, on bytes as in GPT-2), split for completing code.

A newline and the indentation after it are separate tokens. A prompt that ends in a newline, or in a newline and some
spaces, is then cut exactly as the same text was cut in training, and completion goes on from there; with the usual
splits (newline and indentation in one token) such a prompt would look like the end of a block.
"""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
VOCABULARY = 8192
SPLIT = Regex(r"\n+| {2,}| ?[\p{L}_]+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}_]+|\s")
SAMPLE_BYTES = 120_000_000


def train_tokenizer(documents: list[str]) -> Tokenizer:
    """Train on an even sample of the documents; the end-of-text id is 0."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(SPLIT, behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    step = max(1, sum(map(len, documents)) // SAMPLE_BYTES)
    tokenizer.train_from_iterator(documents[::step], trainer=trainer)
    return tokenizer
