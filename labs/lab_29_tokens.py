"""Tokens of many documents in a file that is mapped into memory, and the rows of a batch. To copy.

Writes a folder of tokens, bytes as tokens, from text files; each paragraph is a document:

Run it:      python labs/lab_29_tokens.py FOLDER TEXT...
Written by:  notebooks/29_language_model.ipynb (edit it there)

With a tokenizer of transformers, a list of documents for each text:

    tokens = (tokenizer(text, add_special_tokens=False).input_ids for text in texts)
    write(Path("TOKENS"), tokens, len(tokenizer), tokenizer.eos_token_id)
"""

import hashlib
import json
import sys
from array import array
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

from lab_10_batches import DataError

IGNORED = -100  # a label that counts for nothing, as in F.cross_entropy
BYTES_AND_END = 257  # a vocabulary: each byte is a token, 256 ends a document
TEST_EVERY = 20  # of so many documents one is for testing; of a large text fewer will do
DTYPES = {2: torch.uint16, 4: torch.uint32}


class Tokens(NamedTuple):
    """Two streams, each of whole documents; every document ends with the token ``end``."""

    train: torch.Tensor
    test: torch.Tensor
    vocabulary: int
    end: int
    known_by: str  # another text: other tokens. It does not depend on where they are


def rows_in(stream: torch.Tensor, length: int) -> int:
    """How many rows of ``length`` tokens and a label for each. What is left at the end is left out."""
    return (len(stream) - 1) // length


def batch_of(
    stream: torch.Tensor, rows: Sequence[int], length: int, end: int, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels, both (size, length) and int64, of these rows of the stream.

    The label of a token is the next one. A token that ends a document has none: it must not be trained to
    predict the first token of the next document. A batch of fewer than ``size`` rows is filled up with rows
    without labels, so that all ranks have the same shapes.
    """
    tokens = torch.full((size, length), end)
    labels = torch.full((size, length), IGNORED)
    for place, row in enumerate(rows):
        piece = stream[row * length : (row + 1) * length + 1].long()
        tokens[place] = piece[:-1]
        labels[place] = piece[1:]
    labels[tokens == end] = IGNORED
    return tokens, labels


def write(
    folder: Path,
    documents: Iterable[Sequence[int]],
    vocabulary: int,
    end: int,
    test_every: int = TEST_EVERY,
) -> None:
    """Write ``train.bin``, ``test.bin`` and ``about.json``, which is last: without it there is no folder."""
    kind = "H" if vocabulary <= 2**16 else "I"
    about = {"vocabulary": vocabulary, "end": end, "bytes": array(kind).itemsize}
    if folder.exists():
        raise DataError(f"{folder} exists; nothing is overwritten")
    folder.mkdir(parents=True)
    with (folder / "train.bin").open("wb") as train, (folder / "test.bin").open("wb") as test:
        for number, document in enumerate(documents):
            tokens = array(kind, [*document])  # of bytes it would take the memory as it is
            if tokens and not 0 <= max(tokens) < vocabulary:
                raise DataError(f"document {number} has the token {max(tokens)}, the vocabulary {vocabulary}")
            tokens.append(end)
            tokens.tofile(test if number % test_every == test_every - 1 else train)
    for name in ("train.bin", "test.bin"):
        with (folder / name).open("rb") as stream:
            about[name] = hashlib.file_digest(stream, "sha256").hexdigest()
        about[f"size of {name}"] = (folder / name).stat().st_size
    (folder / "about.json").write_text(json.dumps(about))


def read(folder: Path) -> Tokens:
    """Map the files; nothing of them is read yet, and the ranks of a machine share what is.

    Raises ``DataError`` for a folder that ``write`` did not finish, or a file of another size. Other bytes in
    a file of the right size are not noticed; ``sha256sum`` and ``about.json`` tell.
    """
    try:
        text = (folder / "about.json").read_text()
        about = json.loads(text)
        streams = []
        for name in ("train.bin", "test.bin"):
            size = (folder / name).stat().st_size
            if size != about[f"size of {name}"]:
                raise DataError(f"{folder / name} has {size} bytes, {about[f'size of {name}']} were written")
            dtype = DTYPES[about["bytes"]]
            count = size // about["bytes"]
            streams.append(torch.from_file(str(folder / name), shared=False, size=count, dtype=dtype))
        known_by = hashlib.sha256(text.encode()).hexdigest()[:16]
        return Tokens(*streams, about["vocabulary"], about["end"], known_by)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder} is no folder of lab_29_tokens.write: {error!r}") from None


def paragraphs_of(files: Iterable[Path]) -> list[bytes]:
    return [
        paragraph for file in files for paragraph in file.read_bytes().split(b"\n\n") if paragraph.strip()
    ]


def descriptions() -> Tokens:
    """What scikit-learn says of its data sets, 43 kB in 246 paragraphs; each byte is a token."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError(
            "this text comes with scikit-learn: pip install scikit-learn, or give --tokens FOLDER"
        )
    documents = paragraphs_of(sorted((Path(spec.origin).parent / "datasets/descr").glob("*.rst")))
    train, test = [], []
    for number, document in enumerate(documents):
        (test if number % TEST_EVERY == TEST_EVERY - 1 else train).extend([*document, BYTES_AND_END - 1])
    known_by = hashlib.sha256(b"\n\n".join(documents)).hexdigest()[:16]
    return Tokens(torch.tensor(train), torch.tensor(test), BYTES_AND_END, BYTES_AND_END - 1, known_by)


def main(folder: str, *texts: str) -> None:
    write(Path(folder), paragraphs_of(map(Path, texts)), BYTES_AND_END, BYTES_AND_END - 1)
    tokens = read(Path(folder))
    print(f"{Path(folder).name}: {len(tokens.train):,} tokens to train on, {len(tokens.test):,} to test with")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (DataError, OSError) as error:
        sys.exit(str(error))
