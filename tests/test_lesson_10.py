"""The steps of lesson 10 give its script, faulty batch norms are found, and images come as described."""

from pathlib import Path

import pytest
import torch
from torch import nn

from shared.runtime import diffs
from shared.runtime.errors import InputError
from shared.runtime.options import Options, positive
from shared.tools import steps
from shared.training.image_models import image_classifier
from shared.training.image_sets import load_image_sets, random_shift
from shared.training.sync_batch_norm import convert_batch_norm
from tests.helpers import ROOT, SCRIPTS
from tests.warm import warm_torchrun

TRAIN = ROOT / "labs" / "lab_10_train.py"
DIFFS = diffs.diffs_of(steps.NOTEBOOK)
VERSIONS = diffs.versions(steps.FIRST.read_text(encoding="utf-8"), DIFFS)


def test_the_steps_reproduce_the_script():
    assert len(VERSIONS) == 7
    assert VERSIONS[-1] == TRAIN.read_text(encoding="utf-8")
    assert [diffs.difference(*pair) for pair in zip(VERSIONS, VERSIONS[1:], strict=False)] == DIFFS


@pytest.mark.parametrize(
    ("before", "after"),
    [("a\nb\nc\n", "a\nx\nc\n"), ("", "a\nb\n"), ("a\nb\n", ""), ("a\nb\n", "z\na\nb\nc\n"), ("a\n", "a\n")],
)
def test_a_difference_applied_gives_what_came_after(before: str, after: str):
    assert diffs.apply(before, diffs.difference(before, after)) == after


def test_a_step_that_does_not_fit_is_found():
    with pytest.raises(InputError, match="the diff does not fit line 2: -b"):
        diffs.apply("a\nB\nc\n", diffs.difference("a\nb\nc\n", "a\nx\nc\n"))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 6))
def test_the_script_runs_after_each_step(number: int, tmp_path: Path):
    script = tmp_path / f"step_{number}.py"
    script.write_text(VERSIONS[number], encoding="utf-8")
    done = warm_torchrun(script, "--steps", "2")
    assert done.returncode == 0, done.stdout
    assert "epoch 1: loss " in done.stdout
    assert "in all" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("nothing", None),
        ("local gradient", "2 rank(s), even shares, step 0: gradient of x: differs by"),
        ("biased", "1 rank(s), even shares, step 0: running_var: differs by"),
        ("talkative", "one collective per pass, not"),
    ],
)
def test_a_faulty_batch_norm_is_found(fault: str, expected: str | None, tmp_path: Path):
    done = warm_torchrun(SCRIPTS / "faulty_batch_norm.py", fault, ranks=4, RANK_BY_RANK_RESULTS=str(tmp_path))
    assert (done.returncode == 0) == (expected is None), done.stdout
    assert expected is None or expected in done.stdout


def test_what_our_batch_norm_does_not_do_is_refused():
    with pytest.raises(ValueError, match="only with affine"):
        convert_batch_norm(nn.Sequential(nn.BatchNorm1d(3, affine=False)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    from PIL import Image

    for part, count in (("train", 3), ("test", 1)):
        for shade, name in ((40, "dark"), (200, "light")):
            target = tmp_path / part / name
            target.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (20, 12), (shade, shade, shade)).save(target / f"{number}.png")
    return tmp_path


def test_a_folder_of_images_is_read(folder: Path):
    data = load_image_sets(str(folder), side=8, augment=True)
    assert (len(data.train), len(data.test), data.channels, data.classes) == (6, 2, 3, 2)
    image, label = data.test[1]
    assert (image.shape, image.dtype, label) == ((3, 8, 8), torch.float32, 1)
    assert (image.min() - 200 / 255).abs() < 1e-6


def test_a_folder_without_images_is_told_in_one_line(tmp_path: Path):
    with pytest.raises(InputError, match="must hold images as train/CLASS"):
        load_image_sets(str(tmp_path))


def test_a_folder_with_other_classes_to_test_is_told_in_one_line(folder: Path):
    (folder / "test" / "light").rename(folder / "test" / "bright")
    with pytest.raises(InputError, match="train holds the classes"):
        load_image_sets(str(folder))


def test_images_are_shifted_only_when_asked():
    plain, shifted = load_image_sets("digits"), load_image_sets("digits", augment=True)
    assert torch.equal(plain.train[0][0], plain.train[0][0])
    assert len({tuple(shifted.train[0][0].flatten().tolist()) for _ in range(50)}) > 3
    assert torch.equal(shifted.test[5][0], plain.test[5][0])
    assert random_shift(torch.ones(1, 28, 28)).shape == (1, 28, 28)


@pytest.mark.parametrize(
    ("name", "channels", "side"), [("convnet", 1, 8), ("convnet", 3, 64), ("resnet18", 1, 32)]
)
def test_the_models_take_images_of_any_size(name: str, channels: int, side: int):
    assert image_classifier(name, channels, classes=7)(torch.rand(2, channels, side, side)).shape == (2, 7)


def test_help_is_printed_by_rank_0_only(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    for rank, words in (("0", True), ("1", False)):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(SystemExit):
            Options(description="of a test").parse_args(["--help"])
        assert ("of a test" in capsys.readouterr().out) == words


def test_a_count_is_positive():
    assert positive("3") == 3
    with pytest.raises(ValueError):
        positive("0")
