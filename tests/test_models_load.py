"""load(): every kind of name that works, and one clear error for everything that does not."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import httpx
import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
from tiny_models import VOCAB, save, tiny_config, tiny_llama, tiny_tokenizer
from transformers import BloomConfig, DeepseekV2Config, FalconConfig, MambaConfig, MptConfig, T5Config
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from labkit import paths
from labkit.errors import LabkitError
from labkit.models import PRESETS, fill, inflated_config, load, memory, place, refuse
from labkit.models.lm import LM

CPU = torch.device("cpu")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A course folder whose embedded models are tiny."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.delenv("LABKIT_MODEL", raising=False)
    save(tmp_path / "data" / "labcoder", tiny_llama(seed=1))
    save(tmp_path / "data" / "labcoder-draft", tiny_llama(seed=2, num_hidden_layers=1))
    return tmp_path


@pytest.fixture
def tiny_presets(monkeypatch):
    """Presets small enough to build in a moment; the names stay."""
    from labkit.models import Shape

    monkeypatch.setitem(PRESETS, "7b", Shape("", 128, 4, 8, 8, 32, 256, tied=False))


def error_of(*args, **options):
    with pytest.raises(LabkitError) as caught:
        load(*args, **options)
    assert caught.value.what and caught.value.remedy, "an error says what is wrong and what would work"
    return str(caught.value)


class TestNames:
    def test_embedded(self, home):
        lm = load("labcoder", device="cpu")
        assert (lm.name, lm.device.type, lm.dtype) == ("labcoder", "cpu", torch.float32)
        assert not lm.model.training
        assert load("labcoder-draft", device="cpu").config.num_hidden_layers == 1

    def test_loading_prints_nothing(self, home, tiny_presets, capfd):
        for name in ("labcoder", "labcoder@7b"):
            load(name, device="cpu")
        assert capfd.readouterr() == ("", "")

    def test_weights_are_those_saved(self, home):
        ids = torch.randint(0, VOCAB, (1, 12))
        with torch.no_grad():
            got, want = load("labcoder", device="cpu").model(ids).logits, tiny_llama(seed=1)(ids).logits
        torch.testing.assert_close(got, want, rtol=0, atol=0)

    def test_local_folder_is_called_by_its_last_name(self, home, tmp_path):
        folder = save(tmp_path / "mine")
        assert load(str(folder), device="cpu").name == "mine"

    def test_inflated(self, home, tiny_presets):
        small, big = (load(name, device="cpu") for name in ("labcoder", "labcoder@7b"))
        ids = torch.randint(0, VOCAB, (1, 20))
        with torch.no_grad():
            torch.testing.assert_close(big.model(ids).logits, small.model(ids).logits, rtol=1e-5, atol=1e-5)
        assert big.name == "labcoder@7b" and big.config.hidden_size == 128

    @pytest.mark.parametrize("name", ["labcoder", "labcoder@7b"])
    def test_random_control(self, home, tiny_presets, name):
        one, same, other = (load(name, device="cpu", random_weights=True, seed=seed) for seed in (1, 1, 2))
        assert one.name == f"{name} (random weights)"
        ids = torch.randint(0, VOCAB, (1, 20))
        with torch.no_grad():
            logits = [lm.model(ids).logits for lm in (one, same, other, load(name, device="cpu"))]
        assert all(torch.isfinite(each).all() for each in logits)
        assert torch.equal(logits[0], logits[1])
        assert not torch.allclose(logits[0], logits[2]) and not torch.allclose(logits[0], logits[3])

    def test_environment_names_the_default(self, home, monkeypatch):
        assert load(device="cpu").name == "labcoder"
        monkeypatch.setenv("LABKIT_MODEL", "labcoder-draft")
        assert load(device="cpu").name == "labcoder-draft"
        assert load("labcoder", device="cpu").name == "labcoder"

    @pytest.mark.parametrize(
        ("free_gib", "want"),
        [(2, "labcoder"), (8, "labcoder@1b"), (16, "labcoder@1b"), (24, "labcoder@7b"), (139, "labcoder@7b")],
    )
    def test_auto_leaves_room_to_work(self, monkeypatch, free_gib, want):
        monkeypatch.setattr(place, "free_bytes", lambda device: free_gib * 1024**3)
        assert place.largest_sensible(torch.device("cuda"), torch.bfloat16, 8192) == want
        assert place.largest_sensible(CPU, torch.float32, 8192) == "labcoder"


class TestLM:
    def lm(self, **changes):
        model = tiny_llama(**changes)
        return LM(model, tiny_tokenizer(), "tiny", CPU, torch.float32)

    @pytest.mark.parametrize("text", ["def f(x):\n    return x\n", "naïve — 漢字 🙂", "", "  two  spaces "])
    def test_text_survives(self, text):
        lm = self.lm()
        ids = lm.encode(text)
        assert ids.dtype == torch.long and ids.shape == (1, ids.numel())
        assert lm.decode([0, *ids[0].tolist(), 0]) == text, "special tokens are not text"
        assert lm.decode(ids) == lm.decode(ids[0]) == lm.decode(ids[0].tolist()) == text

    def test_tied_weights_count_once(self):
        tied, untied = self.lm(), self.lm(tie_word_embeddings=False)
        assert tied.weight_bytes == 4 * sum(p.numel() for p in tied.model.parameters())
        assert untied.weight_bytes - tied.weight_bytes == 4 * VOCAB * 48

    def test_views_count_once(self):
        lm = self.lm()
        before = lm.weight_bytes
        attention = lm.model.model.layers[0].self_attn
        merged = torch.cat([attention.k_proj.weight.data, attention.v_proj.weight.data])
        attention.k_proj.weight.data, attention.v_proj.weight.data = merged.chunk(2)
        assert lm.weight_bytes == before

    def test_loaded_weights_count_as_their_dtype(self, home):
        full, half = (load("labcoder", device="cpu", dtype=dtype) for dtype in ("float32", torch.bfloat16))
        assert full.weight_bytes == 2 * half.weight_bytes == fill.stored_bytes(full.model)


class TestShapes:
    @pytest.mark.parametrize("preset", PRESETS)
    def test_parameters_match_the_skeleton(self, preset):
        small = tiny_config(vocab_size=8192, hidden_size=384, head_dim=64)
        config = inflated_config(small, PRESETS[preset])
        skeleton = fill.skeleton(config, torch.bfloat16)
        assert fill.stored_bytes(skeleton) == 2 * PRESETS[preset].parameters(8192)
        assert all(parameter.is_meta for parameter in skeleton.parameters())

    def test_published_sizes(self):
        """With their own vocabularies the shapes have the published numbers of parameters."""
        assert PRESETS["1b"].parameters(128_256) == 1_235_814_400
        assert PRESETS["7b"].parameters(32_000) == 6_738_415_616
        assert PRESETS["8b"].parameters(128_256) == 8_030_261_248


class TestTooLittleMemory:
    @pytest.fixture(autouse=True)
    def nothing_is_built(self, home, monkeypatch):
        def fail(*_, **__):
            raise AssertionError("weights were allocated before the memory check")

        monkeypatch.setattr(fill, "materialise", fail)
        monkeypatch.setattr("labkit.models.inflation.materialise", fail)
        monkeypatch.setattr("labkit.models.loader._from_folder", fail)

    def test_both_figures_and_what_fits(self, monkeypatch):
        monkeypatch.setattr(memory, "free_bytes", lambda device: 6 * 1024**3)
        text = error_of("labcoder@7b", device="cpu", dtype="bfloat16")
        assert "labcoder@7b needs 13." in text and "6.0 GiB free" in text and "labcoder@1b fits" in text

    def test_a_narrower_dtype_is_offered_first(self, monkeypatch):
        monkeypatch.setattr(memory, "free_bytes", lambda device: 16 * 1024**3)
        assert 'dtype="bfloat16"' in error_of("labcoder@7b", device="cpu")

    def test_any_checkpoint(self, home, monkeypatch):
        monkeypatch.setattr(memory, "free_bytes", lambda device: 1024)
        assert "GiB free" in error_of(str(home / "data" / "labcoder"), device="cpu", random_weights=True)

    def test_container_limit_counts(self, tmp_path, monkeypatch):
        monkeypatch.setattr(memory, "_cgroup_left", lambda: 1000)
        assert memory.free_bytes(CPU) == 1000


class TestUnknown:
    @pytest.fixture(autouse=True)
    def no_network(self, monkeypatch):
        def unreachable(*_, **__):
            raise LocalEntryNotFoundError("offline")

        monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)

    @pytest.mark.parametrize(
        ("name", "near"),
        [("labcodr", "labcoder"), ("labcoder-drft", "labcoder-draft"), ("labcoder@7", "labcoder@7b")]
        + [
            ("labcoder@70b", "labcoder@7b"),
            ("Labcoder", "labcoder"),
            ("labcoder-draft@7b", "labcoder-draft"),
        ],
    )
    def test_suggestions(self, home, name, near):
        assert f"Did you mean {near}" in error_of(name, device="cpu")

    @pytest.mark.parametrize("name", [5, ["labcoder"], paths.data()])
    def test_a_name_is_text(self, home, name):
        assert "is not the name of a model" in error_of(name, device="cpu")

    def test_folder_that_is_not_there(self, home):
        assert "no folder" in error_of("./nowhere", device="cpu")

    def test_folder_without_a_model(self, home, tmp_path):
        (tmp_path / "empty").mkdir()
        assert "config.json" in error_of(str(tmp_path / "empty"), device="cpu")

    def test_offline_names_what_is_embedded(self, home):
        text = error_of("Qwen/Qwen3-0.6B", device="cpu")
        assert "cannot be reached" in text and "labcoder-draft" in text

    def test_hub_checkpoint(self, home, tmp_path, monkeypatch):
        """Configuration first, then the weights; both from the same cached folder."""
        folder, asked = save(tmp_path / "cached"), []

        def cached(name, allow_patterns, **_):
            asked.append(allow_patterns)
            return str(folder)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
        assert load("someone/tiny", device="cpu").name == "someone/tiny"
        assert "*.safetensors" not in asked[0] and "*.safetensors" in asked[1]

    @pytest.mark.parametrize(
        "listing", [["pytorch_model.bin"], httpx.ConnectError("no route"), ["README.md"]]
    )
    def test_hub_checkpoint_without_safetensors(self, home, tmp_path, monkeypatch, listing):
        def files(name):
            if isinstance(listing, Exception):
                raise listing
            return listing

        folder = save(tmp_path / "cached")
        (folder / "model.safetensors").unlink()
        monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(folder))
        monkeypatch.setattr(huggingface_hub, "list_repo_files", files)
        text = error_of("someone/tiny", device="cpu")
        want = "cannot be reached" if isinstance(listing, Exception) else "safetensors"
        assert want in text and ("pickle" in text) == (listing == ["pytorch_model.bin"])

    def test_not_on_the_hub(self, home, monkeypatch):
        def missing(*_, **__):
            response = SimpleNamespace(headers={}, request=None, status_code=404, text="")
            raise RepositoryNotFoundError("404", response=response)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", missing)
        assert "no model called 'someone/nothing'" in error_of("someone/nothing", device="cpu")

    def test_embedded_model_missing(self, tmp_path, monkeypatch):
        monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
        assert "fresh clone" in error_of("labcoder", device="cpu")

    def test_device_and_dtype(self, home):
        assert "float32" in error_of("labcoder", device="cpu", dtype="int8")
        assert "no device" in error_of("labcoder", device="gpu")
        assert "no device" in error_of("labcoder", device=[])
        if not torch.cuda.is_available():
            assert "CUDA devices here: 0" in error_of("labcoder", device="cuda")
        assert "CPU devices here: 1" in error_of("labcoder", device="cpu:3")


def test_really_offline(home):
    """Nothing faked: the hub library itself, told that there is no network."""
    code = (
        "import labkit\n"
        "try: labkit.load('Qwen/Qwen3-0.6B', device='cpu')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(home / "hf")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("LabkitError Qwen/Qwen3-0.6B is not on this machine")


class TestCheckpoints:
    def test_sharded(self, home, tmp_path):
        folder = save(tmp_path / "sharded", tiny_llama(seed=3), max_shard_size="60KB")
        assert len(list(folder.glob("*.safetensors"))) > 1
        ids = torch.randint(0, VOCAB, (1, 9))
        with torch.no_grad():
            got, want = load(str(folder), device="cpu").model(ids).logits, tiny_llama(seed=3)(ids).logits
        torch.testing.assert_close(got, want, rtol=0, atol=0)

    def test_pickle_is_never_opened(self, home, tmp_path):
        folder = save(tmp_path / "pickled")
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
        text = error_of(str(folder), device="cpu")
        assert "pytorch_model.bin" in text and "safetensors" in text

    def test_no_weights_at_all(self, home, tmp_path):
        folder = save(tmp_path / "bare")
        (folder / "model.safetensors").unlink()
        assert "no safetensors weights" in error_of(str(folder), device="cpu")

    def test_truncated_weights(self, home, tmp_path):
        weights = save(tmp_path / "cut") / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
        assert "cannot be read" in error_of(str(weights.parent), device="cpu")

    def test_missing_weights_are_not_made_up(self, home, tmp_path):
        folder = save(tmp_path / "short")
        self.edit(folder, num_hidden_layers=3)
        assert "lacks 9 of" in error_of(str(folder), device="cpu")

    def test_other_shapes_than_the_configuration(self, home, tmp_path):
        folder = save(tmp_path / "other")
        self.edit(folder, intermediate_size=96)
        error_of(str(folder), device="cpu")

    def test_code_from_the_checkpoint(self, home, tmp_path):
        folder = save(tmp_path / "custom")
        self.edit(folder, model_type="their_own", auto_map={"AutoModelForCausalLM": "modeling.Theirs"})
        assert "trust_remote_code" in error_of(str(folder), device="cpu")

    def test_unknown_architecture(self, home, tmp_path):
        folder = save(tmp_path / "future")
        self.edit(folder, model_type="from_next_year")
        assert "'from_next_year'" in error_of(str(folder), device="cpu")

    def test_broken_configuration(self, home, tmp_path):
        folder = save(tmp_path / "broken")
        (folder / "config.json").write_text("{")
        assert "not valid JSON" in error_of(str(folder), device="cpu")

    def test_configuration_that_contradicts_itself(self, home, tmp_path):
        folder = save(tmp_path / "odd")
        self.edit(folder, hidden_size=127)
        assert "does not make sense" in error_of(str(folder), device="cpu")

    def test_missing_tokenizer(self, home, tmp_path):
        folder = tmp_path / "mute"
        tiny_llama().save_pretrained(folder)
        assert "tokenizer" in error_of(str(folder), device="cpu")

    @staticmethod
    def edit(folder, **settings):
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


class TestArchitectures:
    @pytest.mark.parametrize(
        ("config", "word"),
        [
            (T5Config(), "encoder-decoder"),
            (MambaConfig(), "state-space"),
            (BloomConfig(), "ALiBi"),
            (MptConfig(), "ALiBi"),
            (FalconConfig(), "own"),
            (DeepseekV2Config(), "MLA"),
            (CONFIG_MAPPING["bert"](), "left to right"),
            (CONFIG_MAPPING["qwen3_next"](), "state-space"),
            (CONFIG_MAPPING["vit"](), "left to right"),
        ],
        ids=lambda value: getattr(value, "model_type", value),
    )
    def test_refused_by_name_before_anything_is_read(self, home, tmp_path, config, word):
        config.save_pretrained(tmp_path / "other")
        text = error_of(str(tmp_path / "other"), device="cpu")
        assert config.model_type in text and word in text and "Llama" in text

    @pytest.mark.parametrize("kind", ["gptj", "codegen", "xglm"])
    def test_attention_of_its_own_is_found_by_counting(self, kind):
        config = CONFIG_MAPPING[kind]()
        refuse.refuse_config(config, kind)
        with pytest.raises(LabkitError, match="interface"):
            refuse.refuse_model(fill.skeleton(config, torch.bfloat16), kind)

    @pytest.mark.parametrize(
        "kind",
        ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "olmo2", "gpt2", "mixtral"],
    )
    def test_taken(self, kind):
        config = CONFIG_MAPPING[kind]()
        refuse.refuse_config(config, kind)
        skeleton = fill.skeleton(config, torch.bfloat16)
        before = skeleton.config._attn_implementation
        refuse.refuse_model(skeleton, kind)
        assert skeleton.config._attn_implementation == before

    @pytest.mark.parametrize("kind", ["qwen3", "gemma2", "phi3", "olmo2", "gpt2"])
    def test_random_control_of_other_architectures(self, home, tmp_path, kind):
        small = {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
        small |= {"num_key_value_heads": 2, "intermediate_size": 96, "head_dim": 16, "pad_token_id": 0}
        CONFIG_MAPPING[kind](**small).save_pretrained(tmp_path / kind)
        tiny_tokenizer().save_pretrained(tmp_path / kind)
        lm = load(str(tmp_path / kind), device="cpu", random_weights=True)
        with torch.no_grad():
            assert torch.isfinite(lm.model(torch.randint(0, VOCAB, (1, 33))).logits).all()


class TestImport:
    def test_import_is_light(self):
        code = (
            "import sys, time; start = time.perf_counter(); import labkit; taken = time.perf_counter() - start\n"
            "heavy = [name for name in ('torch', 'transformers', 'numpy', 'matplotlib') if name in sys.modules]\n"
            "print(taken, heavy)"
        )
        runs = [
            subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
            for _ in range(3)
        ]
        assert all(run.split(maxsplit=1)[1].strip() == "[]" for run in runs)
        assert min(float(run.split()[0]) for run in runs) < 0.3

    def test_lazy_names(self):
        import labkit
        import labkit.models

        assert labkit.load is labkit.models.load and labkit.LM is LM
        assert {"load", "LM"} <= set(dir(labkit))
        with pytest.raises(AttributeError, match="nothing_here"):
            _ = labkit.nothing_here


def test_the_embedded_models():
    lm, draft = load("labcoder", device="cpu"), load("labcoder-draft", device="cpu")
    assert 12e6 < lm.weight_bytes / 4 < 16e6 and 2e6 < draft.weight_bytes / 4 < 3.5e6
    assert lm.config.max_position_embeddings >= 16_384
    assert lm.tokenizer.get_vocab() == draft.tokenizer.get_vocab()
    ends = [each.model.generation_config.eos_token_id for each in (lm, draft)]
    assert ends[0] is not None and ends[0] == ends[1]
    text = "def f(x: int) -> int:\n\treturn x  # ünïcode ✓\n"
    assert lm.decode(lm.encode(text)) == text
    files = list((paths.data() / "labcoder").rglob("*.safetensors"))
    files += list((paths.data() / "labcoder-draft").rglob("*.safetensors"))
    assert all(file.stat().st_size <= 15 * 2**20 for file in files)
    assert sum(file.stat().st_size for file in files) <= 34 * 2**20
