"""The digits are as described and always the same; MNIST is read from its own files."""

import struct
from pathlib import Path

import pytest
import torch

from shared.runtime.errors import InputError
from shared.training.data import Images, load_images, shareable


@pytest.fixture(scope="module")
def digits() -> Images:
    return load_images("digits")


def test_digits_have_the_described_form(digits: Images):
    assert digits.train_x.shape == (1437, 1, 8, 8)
    assert digits.test_x.shape == (360, 1, 8, 8)
    assert digits.train_y.shape == (1437,)
    assert digits.test_y.shape == (360,)
    assert {tensor.dtype for tensor in (digits.train_x, digits.test_x)} == {torch.float32}
    assert {tensor.dtype for tensor in (digits.train_y, digits.test_y)} == {torch.int64}
    assert (digits.train_x.min(), digits.train_x.max()) == (0, 1)
    assert set(digits.train_y.tolist()) == set(digits.test_y.tolist()) == set(range(10))


def test_digits_are_always_the_same(digits: Images):
    torch.manual_seed(99)  # another rank's seed
    again = load_images()
    assert all(torch.equal(a, b) for a, b in zip(digits, again, strict=True))


@pytest.mark.slow
def test_they_are_the_images_of_scikit_learn_each_once(digits: Images):
    from sklearn.datasets import load_digits

    original = load_digits()
    shown = torch.cat([digits.train_x, digits.test_x]).flatten(1) * 16
    labels = torch.cat([digits.train_y, digits.test_y])
    ours = sorted([*pixels, label] for pixels, label in zip(shown.tolist(), labels.tolist(), strict=True))
    theirs = sorted([*pixels, label] for pixels, label in zip(original.data, original.target, strict=True))
    assert ours == theirs


def write_idx(path: Path, values: torch.Tensor) -> None:
    """The format of MNIST's files: magic number, sizes, then one byte per value."""
    magic = struct.pack(">BBBB", 0, 0, 8, values.dim())
    sizes = struct.pack(f">{values.dim()}I", *values.shape)
    path.write_bytes(magic + sizes + values.to(torch.uint8).numpy().tobytes())


@pytest.fixture
def mnist_folder(tmp_path: Path) -> Path:
    """Six images to train and four to test, where torchvision looks for them."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 6), ("t10k", 4)):
        pixels = torch.arange(count * 28 * 28).reshape(count, 28, 28) % 256
        write_idx(raw / f"{part}-images-idx3-ubyte", pixels)
        write_idx(raw / f"{part}-labels-idx1-ubyte", torch.arange(count) % 10)
    return tmp_path


@pytest.mark.slow
def test_mnist_is_read_from_its_files(mnist_folder: Path):
    images = load_images("mnist", mnist_folder)
    assert images.train_x.shape == (6, 1, 28, 28)
    assert images.test_x.shape == (4, 1, 28, 28)
    assert images.train_x.dtype == torch.float32
    assert torch.equal(images.train_x[0, 0, 0, :3] * 255, torch.tensor([0.0, 1.0, 2.0]))
    assert (images.train_x.max(), images.train_y.dtype) == (1, torch.int64)
    assert images.test_y.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("error", [RuntimeError("Error downloading"), OSError("no route")])
def test_mnist_without_files_and_network_is_told_in_one_line(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def no_network(*_args, **_kwargs):
        raise error

    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", no_network)
    with pytest.raises(InputError, match="MNIST is not in .* use the data set digits$"):
        load_images("mnist", tmp_path)


def test_an_unknown_data_set_is_told_in_one_line():
    with pytest.raises(InputError, match="^data set 'cifar' is unknown; use digits or mnist$"):
        load_images("cifar")


def test_a_batch_is_found_that_all_ranks_can_share():
    assert [shareable(100, ranks) for ranks in (1, 2, 3, 4, 8)] == [100, 100, 102, 108, 840]
    assert shareable(101, 2) == 102
