"""The language script on other numbers of ranks, with bad input, and its files."""

import json
from array import array
from pathlib import Path

import pytest
import torch

from labs import lab_29_llama, lab_29_tokens
from tests.helpers import ROOT, python
from tests.launch import warm_torchrun

LABS = ROOT / "labs"
SCRIPT = LABS / "lab_29_language.py"
SMALL = "--length 16 --layers 1 --width 16 --heads 2 --kv-heads 1 --ffn 16 --batch-size 4 --precision float32"


def documents() -> list[list[int]]:
    return [[number % 40, *range(number % 7)] for number in range(200)]


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    folder = tmp_path / "tokens"
    lab_29_tokens.write(folder, documents(), vocabulary=50, end=49)
    return folder


def test_what_is_written_is_read(tokens: Path):
    read = lab_29_tokens.read(tokens)
    joined = [read.train.long().tolist(), read.test.long().tolist()]
    expected = [[], []]
    for number, document in enumerate(documents()):
        expected[number % 20 == 19].extend([*document, 49])
    assert joined == expected
    assert (read.vocabulary, read.end) == (50, 49)


def test_large_vocabularies_take_four_bytes(tmp_path: Path):
    lab_29_tokens.write(tmp_path / "tokens", [[70_000, 5]] * 40, vocabulary=128_256, end=128_000)
    read = lab_29_tokens.read(tmp_path / "tokens")
    assert read.train[:3].long().tolist() == [70_000, 5, 128_000]


def test_texts_become_bytes(tmp_path: Path):
    text = tmp_path / "text"
    text.write_bytes("one\n\ntwo, ä".encode())
    done = python(LABS / "lab_29_tokens.py", tmp_path / "tokens", text)
    assert done.returncode == 0, done.stdout
    assert bytes(lab_29_tokens.read(tmp_path / "tokens").train[4:-1].tolist()) == "two, ä".encode()
    done = python(LABS / "lab_29_tokens.py", tmp_path / "tokens", text)
    assert (done.returncode, done.stdout) == (1, f"{tmp_path / 'tokens'} exists; nothing is overwritten\n")


def test_a_row_ends_where_the_next_begins_and_documents_are_kept_apart():
    stream = torch.tensor([1, 2, 9, 3, 4, 5, 6, 7, 9])
    tokens, labels = lab_29_tokens.batch_of(stream, [0, 1], length=4, end=9, size=3)
    assert tokens.tolist() == [[1, 2, 9, 3], [4, 5, 6, 7], [9] * 4]
    assert labels.tolist() == [[2, 9, -100, 4], [5, 6, 7, 9], [-100] * 4]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda folder: (folder / "train.bin").write_bytes(b"12"), "train.bin has 2 bytes"),
        (lambda folder: (folder / "test.bin").unlink(), "FileNotFoundError"),
        (lambda folder: (folder / "about.json").write_text("{"), "JSONDecodeError"),
        (lambda folder: (folder / "about.json").write_text("{}"), "KeyError('size of train.bin')"),
    ],
)
def test_a_damaged_folder_of_tokens_is_told(tokens: Path, change, told: str):
    change(tokens)
    with pytest.raises(lab_29_tokens.DataError) as caught:
        lab_29_tokens.read(tokens)
    assert told in str(caught.value)


def test_a_token_outside_of_the_vocabulary_is_told(tmp_path: Path):
    with pytest.raises(lab_29_tokens.DataError, match="document 1 has the token 51, the vocabulary 50"):
        lab_29_tokens.write(tmp_path / "tokens", [[1], [51]], vocabulary=50, end=49)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--replicate", "3"), "--replicate 3 must divide the 2 ranks"),
        (("--batch-size", "1"), "--batch-size must be 2 (the ranks) to"),
        (("--kv-heads", "3"), "3 kv-heads must divide 2 heads"),
        (("--length", "100000"), "--batch-size must be 2 (the ranks) to 0 (the rows)"),
        (("--lr", "-1"), "--lr must be a number from 0, not -1.0"),
        (("--learning-rate", "1"), "unknown option --learning-rate"),
        (("--tokens", "nowhere"), "nowhere is no folder of lab_29_tokens.write"),
        (("--llama", "nowhere"), "nowhere has no config.json of a Llama"),
        (("--evaluate", "--checkpoints", "FOLDER"), "must name a folder with a checkpoint"),
        (("--lr", "1e30", "--clip", "0"), "the model is not finite; try a lower --lr"),
        (("--eval-rows", "0"), "--eval-rows must be a number from 1, not 0"),
    ],
)
@pytest.mark.slow
def test_bad_input_gets_one_line(arguments: tuple[str, ...], told: str, tmp_path: Path):
    words = [str(tmp_path / "run") if word == "FOLDER" else word for word in arguments]
    done = warm_torchrun(SCRIPT, *SMALL.split(), "--steps", "3", *words)
    assert done.returncode != 0
    lines = [line for line in done.stdout.splitlines() if told in line]
    assert len(lines) == 1 and "Traceback" not in done.stdout, done.stdout


def times_of_files(folder: Path) -> dict[Path, int]:
    """When each file was last written, but for the lock."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path: path.stat().st_mtime_ns for path in files}


def labels_tested(*arguments: str | Path) -> int:
    done = warm_torchrun(SCRIPT, *arguments, "--evaluate")
    assert done.returncode == 0, done.stdout
    [line] = [line for line in done.stdout.splitlines() if "test_loss" in line]
    return json.loads(line)["labels"]


@pytest.mark.slow
def test_another_text_another_vocabulary_and_other_settings_are_refused(tokens: Path, tmp_path: Path):
    common = (*SMALL.split(), "--steps", "3", "--checkpoints", tmp_path / "run")
    exported = ("--export", tmp_path / "model")
    assert warm_torchrun(SCRIPT, *common, "--tokens", tokens, *exported).returncode == 0
    tested = (*common, "--tokens", tokens, "--eval-rows")
    few, all_of_them = (labels_tested(*tested, rows) for rows in ("2", "9"))
    assert 0 < few < all_of_them  # of the 3 rows there are
    before = times_of_files(tmp_path / "run")
    other = tmp_path / "other"
    lab_29_tokens.write(other, [[1, 2, 3]] * 200, vocabulary=50, end=49)
    done = warm_torchrun(SCRIPT, *common, "--tokens", other)
    assert done.returncode != 0 and "has other settings: tokens" in done.stdout, done.stdout
    done = warm_torchrun(SCRIPT, *common, "--tokens", tokens, "--lr", "0.5")
    assert done.returncode != 0 and "has other settings: lr 0.5 (was 0.003)" in done.stdout, done.stdout
    assert times_of_files(tmp_path / "run") == before
    done = warm_torchrun(SCRIPT, *SMALL.split(), "--steps", "3", "--llama", tmp_path / "model")
    assert done.returncode != 0 and "257 kinds of tokens, but 50 in" in done.stdout, done.stdout


def exported_model(folder: Path, **sizes) -> lab_29_llama.Llama:
    """A model whose files are written there by one process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = lab_29_llama.Llama(lab_29_llama.Sizes(257, **sizes))
        lab_29_llama.initialize(model, seed=3)
        lab_29_llama.export(model, folder, 128, 256, torch.float32)
    finally:
        torch.distributed.destroy_process_group()
    return model


@pytest.mark.parametrize("sizes", [{}, {"tied": True, "rope": (8.0, 1.0, 4.0, 24)}])
def test_an_export_loads_again(sizes: dict, tmp_path: Path):
    model = exported_model(tmp_path, **sizes)
    assert lab_29_llama.sizes_in(tmp_path) == model.model.sizes
    again = lab_29_llama.Llama(lab_29_llama.sizes_in(tmp_path))
    lab_29_llama.load(again, tmp_path)
    tokens = torch.arange(60).view(2, 30)
    assert torch.equal(again(tokens), model(tokens))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"1234"),
            "is no whole file of safetensors",
        ),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(
                (folder / "model.safetensors").read_bytes()[:-500]
            ),
            "is no whole file of safetensors",
        ),
        (lambda folder: (folder / "model.safetensors").unlink(), "lacks model.embed_tokens.weight"),
    ],
)
def test_a_damaged_model_is_told(tmp_path: Path, change, told: str):
    model = exported_model(tmp_path)
    change(tmp_path)
    with pytest.raises(lab_29_llama.ModelError) as caught:
        lab_29_llama.load(model, tmp_path)
    assert told in str(caught.value)


def test_a_model_of_another_kind_is_told(tmp_path: Path):
    exported_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for changed in ({"model_type": "qwen3"}, {"attention_bias": True}, {"head_dim": 128}):
        (tmp_path / "config.json").write_text(json.dumps(config | changed))
        with pytest.raises(lab_29_llama.ModelError):
            lab_29_llama.sizes_in(tmp_path)


def test_own_parameters_have_first_values_or_are_refused():
    model = lab_29_llama.Llama(lab_29_llama.Sizes(257, layers=1))
    model.model.layers[0].self_attn.q_proj.bias = torch.nn.Parameter(torch.ones(64))
    lab_29_llama.initialize(model, seed=3)
    block = model.model.layers[0]
    assert not block.self_attn.q_proj.bias.any() and (block.input_layernorm.weight == 1).all()
    block.scale = torch.nn.Parameter(torch.ones(64))
    with pytest.raises(lab_29_llama.ModelError, match="layers.0.scale: say in initialize which first value"):
        lab_29_llama.initialize(model, seed=3)


BUFFER = """
import sys, torch, lab_29_language as script
class Block(script.Llama):
    def __init__(self, sizes):
        super().__init__(sizes)
        self.register_buffer("inv_freq", torch.ones(3))
script.Llama = Block
sys.exit(script.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_buffer_which_would_have_no_values_is_refused(tmp_path: Path):
    (tmp_path / "own.py").write_text(BUFFER)
    done = python(tmp_path / "own.py", *SMALL.split(), "--steps", "1", PYTHONPATH=str(LABS))
    assert done.returncode == 2 and "inv_freq is a buffer" in done.stdout, done.stdout


def test_parameters_are_counted_right():
    for tied in (False, True):
        sizes = lab_29_llama.Sizes(257, tied=tied)
        model = lab_29_llama.Llama(sizes)
        assert sizes.parameters() == sum(p.numel() for p in model.parameters())


def test_arrays_have_the_sizes_that_files_are_read_with():
    assert {array(kind).itemsize for kind in "HI"} == lab_29_tokens.DTYPES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_each_step_equals_one_process(ranks: int):
    done = warm_torchrun(LABS / "lesson_29" / "proof_one_step.py", ranks=ranks)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_forty_kills():
    done = python(LABS / "lesson_29" / "proof_resume.py", "--kills", "40")
    assert done.returncode == 0, done.stdout
