"""Images to train and to test with, as data sets for a ``DataLoader``. Taught in lesson 10."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import Dataset

from shared.runtime.errors import InputError
from shared.training.data import load_images


class ImageSets(NamedTuple):
    """What a training script needs: two data sets of (image, label), and the sizes of its model's ends."""

    train: Dataset
    test: Dataset
    channels: int
    classes: int


def load_image_sets(name: str, side: int = 64, augment: bool = False) -> ImageSets:
    """Data sets whose items are (float32 image (channels, side, side), label).

    In a process group all ranks must call it: rank 0 comes first, since it may have to download MNIST.

    Args:
        name: ``digits`` or ``mnist`` as in ``load_images``; ``synthetic``, random RGB images of 1,000
            classes; or the path of a folder that holds ``train/CLASS/*.png`` and ``test/CLASS/*.png``.
        side: height and width of synthetic images and of those of a folder.
        augment: shift each image to train on by up to an eighth of its side, at random.

    Raises:
        InputError: the name is unknown, or the folder does not hold such images.
    """
    if name == "synthetic":
        x = torch.rand(64, 3, side, side, generator=torch.Generator().manual_seed(0))
        y = torch.arange(64) * 15
        return ImageSets(_TensorImages(x, y, augment, times=100), _TensorImages(x, y), 3, 1000)
    if name in ("digits", "mnist"):
        images = _rank_0_first(load_images, name)
        train = _TensorImages(images.train_x, images.train_y, augment)
        return ImageSets(train, _TensorImages(images.test_x, images.test_y), 1, 10)
    return _folder(Path(name).expanduser(), side, augment)


def _rank_0_first(function: Callable, *args):
    if not dist.is_initialized():
        return function(*args)
    if dist.get_rank() != 0:
        dist.barrier()
    result = function(*args)
    if dist.get_rank() == 0:
        dist.barrier()
    return result


def random_shift(image: torch.Tensor) -> torch.Tensor:
    """Shift an image (channels, side, side) by up to an eighth of its side; what becomes free is 0."""
    side = image.shape[-1]
    most = max(1, side // 8)
    top, left = torch.randint(0, 2 * most + 1, (2,)).tolist()
    return F.pad(image, [most] * 4)[:, top : top + side, left : left + side]


class _TensorImages(Dataset):
    def __init__(self, x: torch.Tensor, y: torch.Tensor, augment: bool = False, times: int = 1) -> None:
        self.x = x
        self.y = y.tolist()
        self.augment = augment
        self.times = times

    def __len__(self) -> int:
        return len(self.x) * self.times

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        index %= len(self.x)
        image = self.x[index]
        if self.augment:
            image = random_shift(image)
        return image, self.y[index]


def _folder(folder: Path, side: int, augment: bool) -> ImageSets:
    if not folder.is_dir():
        raise InputError(f"data set {str(folder)!r} is no folder; use digits, mnist or the path of a folder")
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    steps = [transforms.Resize(side), transforms.CenterCrop(side), transforms.ToTensor()]
    shift = [random_shift] if augment else []
    try:
        train = ImageFolder(folder / "train", transforms.Compose(steps + shift))
        test = ImageFolder(folder / "test", transforms.Compose(steps))
    except FileNotFoundError:
        raise InputError(f"{folder} must hold images as train/CLASS/*.png and test/CLASS/*.png") from None
    if train.classes != test.classes:
        raise InputError(f"{folder}: train holds the classes {train.classes}, test {test.classes}")
    return ImageSets(train, test, 3, len(train.classes))
