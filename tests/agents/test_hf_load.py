import pytest

pytest.importorskip("torch")

from turnbench.agents.hf import HfModel  # noqa: E402
from turnbench.agents.model import Message, Prompt  # noqa: E402
from turnbench.envs.errors import ModelError  # noqa: E402


def test_what_can_not_be_loaded_says_so(tmp_path, make_checkpoint, checkpoint):
    with pytest.raises(ModelError, match="no checkpoint folder.*turnbench/tiny"):
        HfModel(str(tmp_path / "none"))
    with pytest.raises(ModelError, match="no config.json"):
        HfModel(str(tmp_path))
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match="no tokenizer"):
        HfModel(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match="can't be loaded"):
        HfModel(str(tmp_path))
    with pytest.raises(ModelError, match="no chat template"):
        HfModel(make_checkpoint(template=None))
    with pytest.raises(ModelError, match="dtype 'int3'.*float32"):
        HfModel(checkpoint, dtype="int3")
    with pytest.raises(ModelError, match="max_batch"):
        HfModel(checkpoint, max_batch=0)
    with pytest.raises(ModelError, match="can't be loaded"):
        HfModel(checkpoint, device="abacus")


def test_a_tokenizer_with_more_ids_than_the_network(make_checkpoint):
    model = HfModel(make_checkpoint(vocab_size=20))
    with pytest.raises(ModelError, match="vocabulary of 20: do tokenizer and weights belong"):
        model.generate([Prompt((Message("user", "inventory"),))])
    model.close()


@pytest.mark.parametrize("module", ["torch", "transformers"])
def test_a_missing_package_names_the_extra(module, checkpoint, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(ModelError, match=r"pip install 'turnbench\[local\]'"):
        HfModel(checkpoint)
