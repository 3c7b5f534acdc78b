"""Which images a rank takes: the same global batches on any number of ranks. To copy into any training loop.

A module, which needs torch; ``images_of`` needs torchvision. ``lab_10_train.py`` uses it.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_10_train.py --epochs 2
Written by:  notebooks/10_training_template.ipynb (edit it there)
"""

import gzip
import math
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.utils.data import Dataset, Sampler, TensorDataset

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of the colours of ImageNet, by torchvision


class DataError(Exception):
    """Its text says what does not fit."""


def seed_of(*what: object) -> int:
    """A number that depends on all of ``what`` and on nothing else.

    The order of images is seeded by (seed, epoch), an image's augmentation by (seed, epoch, image), noise
    in the model by (seed, step, rank). So no state has to be saved, and the first two do not depend on
    the number of ranks or workers.
    """
    return random.Random(repr(what)).getrandbits(63)


class RankBatches(Sampler[list]):
    """This rank's part of each global batch of an epoch, as pairs (epoch, image), from any step on.

    The order of images does not depend on the number of ranks: a step takes the next ``batch_size`` images,
    and rank r of n gets each n-th of them, beginning with the r-th. What is left at the end of an epoch is
    less than a batch and is left out. The order takes 8 bytes for each image, on each rank.
    """

    def __init__(self, images: int, batch_size: int, seed: int, rank: int, ranks: int) -> None:
        if not ranks <= batch_size <= images:
            raise DataError(f"a batch must have {ranks} (the ranks) to {images} images, not {batch_size}")
        self.images = images
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.ranks = ranks
        self.steps = images // batch_size  # in an epoch
        self.done = 0  # steps handed out, in all epochs; workers run ahead, so set it from your own count

    def __len__(self) -> int:
        return self.steps - self.done % self.steps

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        epoch, first = divmod(self.done, self.steps)
        generator = torch.Generator().manual_seed(seed_of(self.seed, "order", epoch))
        batches = torch.randperm(self.images, generator=generator).split(self.batch_size)
        for batch in batches[first : self.steps]:
            self.done += 1
            mine = batch[self.rank :: self.ranks].tolist()
            yield [(epoch, image) for image in mine]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator, ``random`` and NumPy; afterwards they resume where they were."""
    numpy = sys.modules.get("numpy")  # torch can do without it
    of_random = random.getstate()
    of_numpy = numpy and numpy.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        if numpy:
            numpy.random.seed(seed % 2**32)
        try:
            yield
        finally:  # an image may be unreadable
            random.setstate(of_random)
            if numpy:
                numpy.random.set_state(of_numpy)


class Seeded(Dataset):
    """What an image's transform draws from these depends on seed, epoch and image, not on the rank."""

    def __init__(self, images: Dataset, seed: int) -> None:
        self.images = images
        self.seed = seed

    def __getitem__(self, position: tuple[int, int]) -> tuple[torch.Tensor, int]:
        epoch, index = position
        with seeded(seed_of(self.seed, "augmentation", epoch, index)):
            return self.images[index]


class Shifted(TensorDataset):
    """Images, each moved by up to one pixel at random."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, label = super().__getitem__(index)
        return torch.roll(image, torch.randint(-1, 2, (2,)).tolist(), (1, 2)), label


class Data(NamedTuple):
    """Images as float32 (channels, side, side), each with the number of its class."""

    train: Dataset
    test: Dataset
    classes: int
    known_by: int  # a fingerprint of the images, independent of their path

    def check_that_all_ranks_have_it(self) -> None:
        known = [None] * dist.get_world_size()
        dist.all_gather_object(known, self.known_by)
        if len(set(known)) > 1:
            raise DataError("the machines of this job have different images")


def digits(augment: bool = False) -> Data:
    """1,797 images of 8 x 8 that scikit-learn brings along; 1,437 to train on and 360 to test with."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError("these digits come with scikit-learn: pip install scikit-learn")
    with gzip.open(Path(spec.origin).parent / "datasets/data/digits.csv.gz", "rt") as lines:
        rows = torch.tensor([[float(value) for value in line.split(",")] for line in lines])
    images = rows[:, :64].reshape(-1, 1, 8, 8) / 16
    labels = rows[:, 64].long()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    train = (Shifted if augment else TensorDataset)(images[order[:1437]], labels[order[:1437]])
    test = TensorDataset(images[order[1437:]], labels[order[1437:]])
    return Data(train, test, 10, seed_of(rows.tolist()))


class Files(Dataset):
    """Images of a folder. Names are one block of bytes, which workers share: a list would be copied."""

    def __init__(self, folder: Path, names: list[str], labels: list[int], transform: Callable) -> None:
        self.folder = folder
        self.names = "".join(names).encode()
        self.ends = torch.tensor([0, *(len(name.encode()) for name in names)]).cumsum(0)
        self.labels = torch.tensor(labels)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from torchvision.datasets.folder import default_loader

        name = self.names[self.ends[index] : self.ends[index + 1]].decode()
        return self.transform(default_loader(str(self.folder / name))), int(self.labels[index])


def images_of(folder: Path, side: int, augment: bool = False) -> Data:
    """Images of a folder with train/CLASS/ and test/CLASS/, known by their names and some of their files.

    ``augment``: train on a random part of 8 to 100 % of an image's area, half of them mirrored. Rank 0 alone
    lists the folder, which takes long with millions of files; the others wait, up to --timeout. Collective.
    """
    from torchvision import transforms

    found = [list_of(folder) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    if isinstance(found[0], str):
        raise DataError(found[0])
    rest = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    larger = side * 8 // 7  # 256 for 224
    cut = transforms.Compose([transforms.Resize(larger), transforms.CenterCrop(side), *rest])
    at_random = [transforms.RandomResizedCrop(side), transforms.RandomHorizontalFlip()]
    to_train_on = transforms.Compose([*at_random, *rest]) if augment else cut
    (names, labels, classes), (test_names, test_labels, _) = found[0]
    few = [folder / name for name in names[:: math.ceil(len(names) / 8)]]
    known_by = seed_of(names + test_names, [file.read_bytes() if file.is_file() else None for file in few])
    train = Files(folder, names, labels, to_train_on)
    return Data(train, Files(folder, test_names, test_labels, cut), len(classes), known_by)


def list_of(folder: Path) -> list[tuple[list[str], list[int], list[str]]] | str:
    """(names, labels, classes) of the images to train on and of those to test with; or what is wrong."""
    from torchvision.datasets import ImageFolder

    try:
        train, test = (ImageFolder(folder / part) for part in ("train", "test"))
    except (FileNotFoundError, NotADirectoryError):
        return f"{folder} is no folder with train/CLASS/*.png and test/CLASS/*.png"
    if train.classes != test.classes:
        return f"{folder.name}: train has the classes {train.classes}, test has {test.classes}"
    return [
        ([str(Path(file).relative_to(folder)) for file, _ in part.samples], part.targets, part.classes)
        for part in (train, test)
    ]
