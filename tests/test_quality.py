"""Quality: exact bytes, windows that score each token once, comparisons against definitions, honest intervals."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import END, VOCAB, save, tiny_llama, tiny_tokenizer, tokenizer_json
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from labkit import paths, quality
from labkit.errors import LabkitError
from labkit.models import LM
from labkit.quality import report, scoring, text
from labkit.quality.bootstrap import Interval

CPU = torch.device("cpu")

CODE = "def area(radius):\n    # naïve — 漢字 🙂\n    return 3.14 * radius ** 2\n\n" * 9


def lm(seed=0, tokenizer=None, name="tiny", **changes):
    model = tiny_llama(seed=seed, **changes)
    return LM(model, tokenizer or tiny_tokenizer(), name, CPU, model.dtype)


def perturbed(model, amount, seed=5):
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.model.parameters():
            weight.add_(torch.randn_like(weight) * amount * weight.std())
    return model


def score_sizes(model, sample):
    return scoring.tokenize(model, sample)[1].tolist()


class TestWindows:
    @given(st.integers(2, 400), st.integers(1, 60), st.integers(1, 60))
    def test_every_token_once_with_enough_context(self, tokens, context, stride):
        stride = min(stride, context)
        plan = scoring.windows(tokens, context, stride)
        scored = [token for window in plan for token in range(window.first, window.end + 1)]
        assert scored == list(range(1, tokens))
        for number, window in enumerate(plan):
            assert 0 <= window.start < window.first <= window.end < tokens
            assert window.end - window.start <= context
            if number:
                assert window.first - window.start > context - stride

    @pytest.mark.parametrize(("tokens", "context", "stride"), [(10, 4, 5), (10, 4, 0), (1, 4, 4), (0, 4, 4)])
    def test_nonsense_is_refused(self, tokens, context, stride):
        with pytest.raises(LabkitError):
            scoring.windows(tokens, context, stride)


class TestBytes:
    TEXTS = [CODE, "a", "  lead and trail  \n\n\t", "🙂🙂", "ÅÅ ﬁ ½", "x" * 300, "\n", "tab\tend"]

    @staticmethod
    def word_tokenizer(normalizer):
        """A tokenizer of another family: words, spaces dropped, the text normalised first."""
        tokenizer = Tokenizer(models.WordPiece(unk_token="?"))
        tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["?"], show_progress=False)
        tokenizer.train_from_iterator([CODE], trainer)
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?")

    @staticmethod
    def metaspace_tokenizer():
        """As SentencePiece does it: spaces are ▁, unknown characters become bytes."""
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
        trainer = trainers.BpeTrainer(vocab_size=360, special_tokens=special, show_progress=False)
        tokenizer.train_from_iterator(["def area(radius): return radius"], trainer)
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")

    @staticmethod
    def trimming_tokenizer():
        """As GPT-2 does it: offsets leave out the spaces that a token begins with."""
        tokenizer = Tokenizer.from_str(tokenizer_json())
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END)

    def tokenizers(self):
        return {
            "trimming": self.trimming_tokenizer(),
            "byte-level": tiny_tokenizer(),
            "without a start": tiny_tokenizer(bos_token=None),
            "lower case": self.word_tokenizer(
                normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase()])
            ),
            "sentencepiece": self.metaspace_tokenizer(),
        }

    @pytest.mark.parametrize(
        "kind", ["byte-level", "trimming", "without a start", "lower case", "sentencepiece"]
    )
    def test_bytes_of_all_tokens_are_those_of_the_text(self, kind):
        model = lm(tokenizer=self.tokenizers()[kind])
        for sample in self.TEXTS:
            ids, sizes = scoring.tokenize(model, sample)
            assert len(ids) == len(sizes) and (sizes >= 0).all()
            if len(ids) > (model.tokenizer.bos_token_id is not None):
                assert sizes.sum() == len(sample.encode())

    def test_byte_level_tokens_have_their_own_lengths(self):
        """Where each token is whole characters, its bytes are exactly those it decodes to."""
        model = lm()
        ids, sizes = scoring.tokenize(model, "def area(radius):\n    return 1\n")
        want = [len(model.tokenizer.decode([token])) for token in ids.tolist()[1:]]
        assert sizes.tolist() == [0, *want]

    def test_offsets_that_overlap_or_go_back_count_no_byte_twice(self):
        """Parts of one character all claim it; some tokenizers report a part after the whole."""
        model = lm()
        encoded = {"input_ids": [5, 6, 7, 8], "offset_mapping": [(0, 1), (1, 3), (1, 2), (3, 4)]}
        model.tokenizer = type(
            "Odd", (), {"is_fast": True, "bos_token_id": None, "__call__": lambda *_, **__: encoded}
        )()
        assert score_sizes(model, "a漢b!") == [1, 4, 0, 1]

    def test_start_token_makes_the_first_token_count(self):
        with_start, without = lm(), lm(tokenizer=tiny_tokenizer(bos_token=None))
        first, second = quality.score(with_start, CODE), quality.score(without, CODE)
        assert first.bytes.sum() == len(CODE.encode())
        assert len(first.nats) == len(second.nats) + 1
        assert second.bytes.sum() == len(CODE.encode()) - first.bytes[0]

    def test_slow_tokenizer_is_refused(self):
        model = lm()
        model.tokenizer = type("Slow", (), {"is_fast": False})()
        with pytest.raises(LabkitError, match="offsets"):
            quality.score(model, CODE)


class TestScore:
    def test_against_the_definition(self):
        """Each token from a fresh forward over exactly the tokens that it may see."""
        model = lm(seed=2)
        context, stride = 23, 9
        got = quality.score(model, CODE, context=context, stride=stride)
        ids, _ = scoring.tokenize(model, CODE)
        want, position = [], 1
        while position < len(ids):
            end = min(context if position == 1 else position + stride - 1, len(ids) - 1)
            start = max(0, end - context)
            with torch.no_grad():
                table = model.model(ids[None, start:end]).logits[0].log_softmax(-1)
            want += [-table[token - 1 - start, ids[token]].item() for token in range(position, end + 1)]
            position = end + 1
        torch.testing.assert_close(got.nats, torch.tensor(want, dtype=torch.float64), rtol=1e-5, atol=1e-5)
        assert got.perplexity == pytest.approx(math.exp(sum(want) / len(want)), rel=1e-5)
        assert got.bits_per_byte == pytest.approx(sum(want) / math.log(2) / len(CODE.encode()), rel=1e-5)
        assert quality.perplexity(model, CODE, context=context, stride=stride) == got.perplexity
        assert quality.bits_per_byte(model, CODE, context=context, stride=stride) == got.bits_per_byte

    def test_a_model_that_knows_nothing(self):
        model = lm()
        with torch.no_grad():
            model.model.model.embed_tokens.weight.zero_()
        got = quality.score(model, CODE)
        assert got.perplexity == pytest.approx(VOCAB, rel=1e-5)
        assert got.bits_per_byte == pytest.approx(
            len(got.nats) * math.log2(VOCAB) / len(CODE.encode()), rel=1e-5
        )

    @pytest.mark.parametrize("chunk", [7, 16, 40])
    def test_chunks_do_not_change_it(self, monkeypatch, chunk):
        model = lm(seed=3)
        whole = quality.score(model, CODE, context=61, stride=20)
        monkeypatch.setattr(scoring, "CHUNK", chunk)
        parts = quality.score(model, CODE, context=61, stride=20)
        torch.testing.assert_close(parts.nats, whole.nats, rtol=1e-4, atol=1e-5)

    def test_windows_and_positions_are_recorded(self):
        got = quality.score(lm(), CODE, context=32, stride=8)
        bits, size = got.per_window()
        assert size.sum() == len(CODE.encode())
        assert (bits * size).sum().item() == pytest.approx(got.bits_per_byte * len(CODE.encode()))
        assert got.seen.min() == 1 and got.seen.max() == 32
        assert (got.seen[got.window > 0] > 32 - 8).all()

    def test_more_positions_than_the_model_has(self):
        with pytest.raises(LabkitError, match="2048 positions"):
            quality.score(lm(), CODE, context=4096)
        with pytest.raises(LabkitError, match="2048 positions"):
            quality.compare(lm(), lm(), CODE, context=4096)

    def test_nan_never_passes(self):
        broken = lm()
        with torch.no_grad():
            broken.model.model.norm.weight[0] = math.nan
        with pytest.raises(LabkitError, match="NaN"):
            quality.score(broken, CODE)
        with pytest.raises(LabkitError, match="NaN"):
            quality.compare(lm(), broken, CODE)


class TestCompare:
    def test_against_the_definition(self):
        one, other = lm(seed=1), perturbed(lm(seed=1), 0.05)
        ids, _ = scoring.tokenize(one, CODE)
        got = quality.compare(one, other, CODE, context=2000, stride=2000)
        with torch.no_grad():
            p, q = (model.model(ids[None, :-1]).logits[0].double().softmax(-1) for model in (one, other))
        kl = (p * (p / q).log()).sum(-1)
        agrees = (p.argmax(-1) == q.argmax(-1)).double()
        torch.testing.assert_close(got.kl, kl, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(got.agrees, agrees)
        assert 0 < got.top1_agreement < 1
        assert quality.kl_divergence(one, other, CODE) == pytest.approx(kl.mean().item(), rel=1e-3)
        assert quality.top1_agreement(one, other, CODE) == pytest.approx(agrees.mean().item())
        assert quality.kl_divergence(other, one, CODE) != pytest.approx(kl.mean().item(), rel=1e-3)

    def test_a_model_agrees_with_itself(self):
        got = quality.compare(lm(), lm(), CODE, context=32, stride=8)
        assert got.top1_agreement == 1 and abs(got.kl_divergence) < 1e-9

    def test_a_larger_change_is_further_away(self):
        far = [quality.kl_divergence(lm(), perturbed(lm(), amount), CODE) for amount in (0.01, 0.05, 0.25)]
        assert far == sorted(far) and far[0] > 0

    def test_different_tokens_are_refused(self):
        with pytest.raises(LabkitError, match="different tokens"):
            quality.compare(lm(), lm(tokenizer=tiny_tokenizer(bos_token=None)), CODE)
        with pytest.raises(LabkitError, match="vocabularies"):
            quality.compare(lm(), lm(vocab_size=VOCAB + 8), CODE)


class TestBootstrap:
    def test_covers_the_truth_about_as_often_as_it_says(self):
        generator = torch.Generator().manual_seed(3)
        hits = 0
        for trial in range(200):
            difficulty = torch.randn(60, generator=generator) * 5
            before = difficulty + 0.3 * torch.randn(60, generator=generator)
            after = difficulty + 0.3 * torch.randn(60, generator=generator) + 0.1
            interval = quality.paired_bootstrap(before, after, resamples=500, seed=trial)
            hits += interval.low <= 0.1 <= interval.high
        assert 0.88 <= hits / 200 <= 0.99

    def test_pairing_is_what_makes_it_narrow(self):
        torch.manual_seed(0)
        difficulty = torch.randn(80) * 5
        after = difficulty + 0.1 + 0.01 * torch.randn(80)
        paired = quality.paired_bootstrap(difficulty, after)
        shuffled = quality.paired_bootstrap(difficulty, after[torch.randperm(80)])
        assert paired.low > 0 and shuffled.low < 0 < shuffled.high
        assert shuffled.high - shuffled.low > 50 * (paired.high - paired.low)
        assert paired.mean == pytest.approx(shuffled.mean, abs=1e-6)

    def test_seeded(self):
        torch.manual_seed(1)
        before, after = torch.randn(30), torch.randn(30)
        one, same, other = (quality.paired_bootstrap(before, after, seed=seed) for seed in (1, 1, 2))
        assert one == same and one != other

    def test_weights_make_it_a_ratio_of_sums(self):
        before, after = [1.0, 2.0, 3.0, 0.5], [1.5, 2.0, 2.0, 9.0]
        got = quality.paired_bootstrap(before, after, weights=[10, 20, 30, 0])
        assert got.mean == pytest.approx((10 * 0.5 + 0 - 30) / 60)
        assert got.low <= got.mean <= got.high

    def test_a_constant_change_has_no_spread_whatever_the_weights(self):
        torch.manual_seed(2)
        before = torch.randn(40, dtype=torch.float64)
        got = quality.paired_bootstrap(before, before + 0.5, weights=torch.rand(40))
        assert [got.mean, got.low, got.high] == pytest.approx([0.5, 0.5, 0.5])

    @pytest.mark.parametrize(("confidence", "deviations"), [(0.95, 1.96), (0.8, 1.28)])
    def test_width_is_that_of_the_normal_distribution(self, confidence, deviations):
        torch.manual_seed(4)
        before, after = torch.zeros(1000), torch.randn(1000)
        got = quality.paired_bootstrap(before, after, confidence=confidence)
        want = 2 * deviations * after.std().item() / 1000**0.5
        assert got.high - got.low == pytest.approx(want, rel=0.08)

    def test_no_change_is_no_change(self):
        same = quality.paired_bootstrap([1.0, 2.0], [1.0, 2.0])
        assert same == Interval(0.0, 0.0, 0.0)

    @pytest.mark.parametrize(
        ("a", "b", "options"),
        [
            ([1.0], [1.0], {}),
            ([1.0, 2.0], [1.0], {}),
            ([1.0, math.nan], [1.0, 2.0], {}),
            ([1.0, 2.0], [1.0, math.inf], {}),
            ([1.0, 2.0], [1.0, 2.0], {"weights": [1.0]}),
            ([1.0, 2.0], [1.0, 2.0], {"weights": [0.0, 0.0]}),
            ([1.0, 2.0], [1.0, 2.0], {"weights": [-1.0, 2.0]}),
            ([1.0, 2.0], [1.0, 2.0], {"confidence": 1.0}),
        ],
    )
    def test_nonsense_is_refused(self, a, b, options):
        with pytest.raises(LabkitError):
            quality.paired_bootstrap(a, b, **options)

    def test_change_of_bits_per_byte(self):
        settings = {"context": 32, "stride": 16}
        before = quality.score(lm(), CODE, **settings)
        after = quality.score(perturbed(lm(), 0.3), CODE, **settings)
        got = quality.change(before, after)
        assert got.mean == pytest.approx(after.bits_per_byte - before.bits_per_byte)
        assert got.low <= got.mean <= got.high
        with pytest.raises(LabkitError, match="different windows"):
            quality.change(before, quality.score(lm(), CODE, context=32, stride=8))


class TestTexts:
    def test_fixed_is_the_modules_in_order(self):
        folder = paths.data() / "evaltext"
        want = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
        assert quality.evaluation_text("fixed").encode() == want and len(want) > 50_000

    def test_stdlib_sample(self):
        files = quality.evaluation_files("stdlib")
        joined = quality.evaluation_text("stdlib")
        assert joined == "".join(source for _, source in files) == quality.evaluation_text("stdlib")
        assert 0.97 * text.STDLIB_BYTES < len(joined.encode()) <= text.STDLIB_BYTES
        assert len(files) >= 6 and joined.endswith("\n")
        names = [part for name, _ in files for part in name.split(".")]
        assert not {"test", "tests", "site-packages", "encodings", "lib2to3"} & set(names)

    def test_selection_depends_on_names_only(self, tmp_path):
        library = tmp_path / "one"
        for number in range(40):
            folder = library / ("test" if number % 10 == 0 else f"package{number % 4}")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"module{number}.py").write_text(f"# {number}\n" + "pass\n" * 1000)
        (library / "table.py").write_text("# Automatically generated by a script\n" + "pass\n" * 1000)
        first = text._sample(library)
        moved = library.rename(tmp_path / "two")
        (moved / "package9").mkdir()
        (moved / "package9" / "short.py").write_text("pass\n")
        assert text._sample(moved) == first
        assert not any(name.startswith("test.") or name == "table" for name, _ in first)
        assert sum(len(source) for _, source in first) <= text.STDLIB_BYTES

    def test_unknown_or_missing(self, tmp_path, monkeypatch):
        with pytest.raises(LabkitError, match="novel"):
            quality.evaluation_text("novel")
        monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
        with pytest.raises(LabkitError, match="not on this machine"):
            quality.evaluation_text("fixed")


class TestEvaluate:
    @pytest.fixture
    def home(self, tmp_path, monkeypatch):
        monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
        save(tmp_path / "data" / "labcoder", tiny_llama(seed=1))
        save(tmp_path / "data" / "labcoder-draft", tiny_llama(seed=2, num_hidden_layers=1))
        (tmp_path / "data" / "evaltext").mkdir()
        for name in ("a", "b"):
            (tmp_path / "data" / "evaltext" / f"{name}.py").write_text(f"# {name}\n" + CODE, encoding="utf-8")
        monkeypatch.setattr(text, "STDLIB_BYTES", 4000)
        monkeypatch.setattr(report, "EDGES", (64, 256, 1024))
        return tmp_path

    def test_figures_and_json(self, home, capsys):
        path = home / "figures.json"
        got = quality.evaluate([], path, context=128, stride=64)
        assert got == json.loads(path.read_text())
        assert list(got["models"]) == ["labcoder", "labcoder-draft"]
        coder, draft = got["models"].values()
        for name in ("fixed", "stdlib"):
            model = lm(seed=1)
            expected = quality.score(model, quality.evaluation_text(name), context=128, stride=64)
            assert coder[name]["bits_per_byte"] == pytest.approx(expected.bits_per_byte, rel=1e-4)
            assert "top1_agreement" not in coder[name]
            assert 0 <= draft[name]["top1_agreement"] < 0.9
        rows = coder["positions"]
        assert [row["up_to"] for row in rows] == [64, 256, 1024]
        tokens = sum(coder[name]["tokens"] for name in ("fixed", "stdlib"))
        assert sum(row["tokens"] for row in rows) == tokens
        assert rows[0]["bits_per_byte"] > 0 and rows[0]["short"] > 0
        assert 0 < coder["decode_ms"]["low"] <= coder["decode_ms"]["median"] <= coder["decode_ms"]["high"]
        assert got["texts"]["fixed"]["modules"] == ["a", "b"] and got["python"]
        printed = capsys.readouterr().out
        assert "labcoder-draft" in printed and f"{coder['fixed']['bits_per_byte']:.3f}" in printed

    def test_a_path_that_cannot_be_written_is_refused_at_once(self, home):
        with pytest.raises(LabkitError, match="does not exist"):
            quality.evaluate([], home / "nowhere" / "figures.json")


def test_labcoder_knows_python():
    from labkit.models import load

    sample = quality.evaluation_text("fixed")[:6000]
    trained = quality.bits_per_byte(load("labcoder", device="cpu"), sample)
    draft = quality.bits_per_byte(load("labcoder-draft", device="cpu"), sample)
    assert trained < draft < 1.6
    assert END not in sample
