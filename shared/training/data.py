"""Real images without a download. Taught in lesson 00."""

import math
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from shared.runtime.errors import InputError


class Images(NamedTuple):
    """Images as float32 (count, 1, height, width) in 0..1, labels as int64 (count,) in 0..9."""

    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor


def load_images(name: str = "digits", folder: str | Path = "~/.cache/rank-by-rank") -> Images:
    """Load a data set of handwritten digits. Every rank gets the same images in the same order.

    Args:
        name: ``digits``, 1,797 images of 8 x 8 that come with scikit-learn (1,437 to train, 360 to
            test), or ``mnist``, 70,000 of 28 x 28 through torchvision, downloaded once into ``folder``.

    Raises:
        InputError: the name is unknown, or MNIST is neither in ``folder`` nor to be downloaded.
    """
    if name == "digits":
        return _digits()
    if name == "mnist":
        return _mnist(Path(folder).expanduser())
    raise InputError(f"data set {name!r} is unknown; use digits or mnist")


def batch(
    data: Images, step: int, size: int, device: torch.device, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels ``step * size`` and following of those to train; after the last comes the first."""
    chosen = torch.arange(step * size, (step + 1) * size) % len(data.train_x)
    return data.train_x[chosen].to(device, dtype), data.train_y[chosen].to(device)


def shareable(size: int, ranks: int) -> int:
    """The smallest batch of ``size`` or more images that 1, 2, .. and ``ranks`` ranks can share equally."""
    common = math.lcm(*range(1, ranks + 1))
    return -(-size // common) * common


def _digits() -> Images:
    # sklearn.datasets.load_digits reads the same file, but to import it takes a second on every rank.
    sklearn = find_spec("sklearn")
    if sklearn is None or sklearn.origin is None:
        raise InputError("scikit-learn, which holds the digits, is not installed: pip install -e '.[course]'")
    path = Path(sklearn.origin).parent / "datasets" / "data" / "digits.csv.gz"
    rows = torch.from_numpy(np.loadtxt(path, delimiter=","))
    x = rows[:, :64].float().reshape(-1, 1, 8, 8) / 16
    y = rows[:, 64].long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train = order[:1437]
    test = order[1437:]
    return Images(x[train], y[train], x[test], y[test])


def _mnist(folder: Path) -> Images:
    from torchvision.datasets import MNIST

    def load(train: bool) -> tuple[torch.Tensor, torch.Tensor]:
        try:
            data = MNIST(folder, train=train)
        except RuntimeError:  # not there yet
            try:
                data = MNIST(folder, train=train, download=True)
            except (OSError, RuntimeError) as error:
                raise InputError(
                    f"MNIST is not in {folder} and cannot be downloaded; use the data set digits"
                ) from error
        return data.data.float().unsqueeze(1) / 255, data.targets.long()

    return Images(*load(True), *load(False))
