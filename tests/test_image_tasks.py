"""Image tasks: files read strictly, splits by seed, augmentation by key; most data is made here, in small."""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import call_in_forks
from PIL import Image
from torch import Tensor

import naspipe
from naspipe.errors import NaspipeWarning, TaskError
from naspipe.files import digest_tensors
from naspipe.tasks import fashion_mnist, image_cache, image_files
from naspipe.tasks.fashion_mnist import FILES, FOLDER, PACKAGE, FashionMNIST
from naspipe.tasks.image_folder import ImageFolder
from naspipe.tasks.images import Augmentation, Images, Normalisation, split_images
from naspipe.tasks.torchvision_data import TorchvisionData
from naspipe.training.context import as_config
from naspipe.verification.equality import verify

ROOT = Path(__file__).resolve().parent.parent


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def arrays(train: int = 40, test: int = 10) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    found = {}
    for part, count in (("train", train), ("t10k", test)):
        found[f"{part}-images-idx3-ubyte"] = generator.integers(256, size=(count, 28, 28))
        found[f"{part}-labels-idx1-ubyte"] = np.arange(count) % 10
    return found


@pytest.fixture
def idx(tmp_path: Path) -> Path:
    """A folder with four small IDX files, two of them gzipped."""
    folder = tmp_path / "idx"
    folder.mkdir()
    for name, array in arrays().items():
        write_idx(folder / (f"{name}.gz" if "images" in name else name), array)
    return folder


def everything(dataset: Any, key: int = 0) -> naspipe.Batch:
    batch: naspipe.Batch = dataset.batch(range(len(dataset)), key)
    return batch


# Fashion-MNIST


def test_idx_files_become_normalised_splits(idx: Path) -> None:
    splits = FashionMNIST(folder=str(idx), verify=False, validation=0.25).load(3)
    assert splits.sizes() == {"train": 30, "validation": 10, "test": 10}
    source = arrays()
    expected = torch.from_numpy(source["t10k-images-idx3-ubyte"]).unsqueeze(1).float()
    test = everything(splits.test)
    assert torch.equal(test.inputs, expected.div(255).sub(0.2860).div(0.3530))
    assert test.targets.tolist() == source["t10k-labels-idx1-ubyte"].tolist()
    assert test.targets.dtype == torch.int64


def test_validation_and_training_share_out_the_training_set_by_seed(idx: Path) -> None:
    def images(seed: int) -> list[list[bytes]]:
        splits = FashionMNIST(folder=str(idx), verify=False).load(seed)
        return [[x.numpy().tobytes() for x in everything(s).inputs] for s in (splits.train, splits.validation)]

    first, again, other = images(1), images(1), images(2)
    assert first == again
    assert first[1] != other[1]
    assert len(set(first[0]) | set(first[1])) == 40
    assert set(first[0]) | set(first[1]) == set(other[0]) | set(other[1])


def test_fewer_training_samples_are_a_part_of_all_and_leave_the_other_splits_alone(idx: Path) -> None:
    settings: dict[str, Any] = {"folder": str(idx), "verify": False}
    whole = FashionMNIST(**settings).load(0)
    small = FashionMNIST(**settings, train_samples=30).load(0)
    assert small.sizes() == {"train": 30, "validation": 4, "test": 10}
    found = {x.numpy().tobytes() for x in everything(whole.train).inputs}
    assert {x.numpy().tobytes() for x in everything(small.train).inputs} < found
    assert torch.equal(everything(small.validation).inputs, everything(whole.validation).inputs)
    with pytest.raises(TaskError, match="must be at most 36, the images that validation leaves, but is 37"):
        FashionMNIST(**settings, train_samples=37).load(0)


def test_an_empty_split_is_refused(idx: Path) -> None:
    with pytest.raises(TaskError, match=r"every split must have images, but there are 40 .* validation takes 0.01"):
        FashionMNIST(folder=str(idx), verify=False, validation=0.01).load(0)


def test_missing_data_names_package_command_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fashion_mnist, "FOLDER", tmp_path / "nowhere")
    with pytest.raises(TaskError) as caught:
        FashionMNIST().load(0)
    message = str(caught.value)
    assert f"apt-get install {PACKAGE}" in message
    assert str(tmp_path / "nowhere") in message
    assert "task.folder" in message
    assert all(name in message for name in FILES)


def test_one_missing_file_is_named(idx: Path) -> None:
    (idx / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(TaskError, match=f"but t10k-labels-idx1-ubyte is not in {idx}"):
        FashionMNIST(folder=str(idx), verify=False).load(0)


def test_other_data_than_fashion_mnist_is_refused_by_its_checksum(idx: Path) -> None:
    content = gzip.decompress((idx / "train-images-idx3-ubyte.gz").read_bytes())
    message = (
        f"train-images-idx3-ubyte.gz must have the SHA-256 {FILES['train-images-idx3-ubyte']}, unpacked, but has "
        f"{hashlib.sha256(content).hexdigest()} .31,376 bytes.*task.verify=false"
    )
    with pytest.raises(TaskError, match=message):
        FashionMNIST(folder=str(idx)).load(0)


def test_files_with_the_right_checksums_are_accepted(idx: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in idx.iterdir():
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        monkeypatch.setitem(FILES, path.name.removesuffix(".gz"), hashlib.sha256(content).hexdigest())
    assert FashionMNIST(folder=str(idx)).load(0).sizes()["test"] == 10


DAMAGES: dict[str, tuple[Any, str]] = {
    "cut off, gzipped": (lambda data: data[:500], "cannot be read: .*It is damaged"),
    "no gzip": (lambda data: b"hello", "cannot be read: Not a gzipped file .*It is damaged"),
    "a bit turned, gzipped": (lambda data: data[:900] + bytes([data[900] ^ 1]) + data[901:], "cannot be read: "),
    "cut off": (lambda data: gzip.compress(gzip.decompress(data)[:-1]),
                "must have 40 x 28 x 28 = 31,360 bytes after its header, but has 31,359. It is incomplete"),
    "too long": (lambda data: gzip.compress(gzip.decompress(data) + b"1"), ".* but has 31,361"),
    "of another type": (lambda data: gzip.compress(b"\0\0\x0d" + gzip.decompress(data)[3:]),
                        ".* with 3 dimensions, so start with 00 00 08 03, but .* starts with 00 00 0d 03"),
    "empty": (lambda data: gzip.compress(b""), ".* it has 0 bytes and starts with nothing"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named(idx: Path, damage: str) -> None:
    change, message = DAMAGES[damage]
    path = idx / "train-images-idx3-ubyte.gz"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(TaskError, match=f"{path} {message}"):
        FashionMNIST(folder=str(idx), verify=False).load(0)


def test_images_without_labels_are_refused(idx: Path) -> None:
    write_idx(idx / "train-labels-idx1-ubyte", np.zeros(39))
    with pytest.raises(TaskError, match="has 40 images and .* has 39 labels"):
        FashionMNIST(folder=str(idx), verify=False).load(0)


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"needs Debian's package: apt-get install {PACKAGE}")
def test_debians_package_is_fashion_mnist() -> None:
    splits = FashionMNIST().load(0)
    assert splits.sizes() == {"train": 54_000, "validation": 6_000, "test": 10_000}
    batch = splits.train.batch(range(10_000), 0)
    assert batch.inputs.shape == (10_000, 1, 28, 28)
    assert abs(float(batch.inputs.mean())) < 0.02
    assert abs(float(batch.inputs.std()) - 1) < 0.02
    counts = torch.bincount(everything(splits.test).targets)
    assert counts.tolist() == [1_000] * 10
    # The first test image is an ankle boot.
    assert int(everything(splits.test).targets[0]) == 9


# Augmentation


def split(augmentation: Augmentation, count: int = 30) -> tuple[naspipe.Splits, Images]:
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(1, 256, (count, 2, 5, 6), generator=generator).to(torch.uint8)
    images = Images(pixels, torch.arange(count))
    plain = Normalisation((0.0, 0.0), (1 / 255, 1 / 255))
    return split_images(images, images, 0, plain, augmentation, validation=0.2, train_samples=None), images


def test_augmentation_cuts_pieces_out_of_padded_images_and_mirrors_them() -> None:
    splits, images = split(Augmentation(crop=2, flip=True))
    batch = everything(splits.train, key=5)
    seen = set()
    for x, target in zip(batch.inputs.round().to(torch.uint8), batch.targets.tolist(), strict=True):
        padded = torch.nn.functional.pad(images.pixels[target], (2, 2, 2, 2))
        places = [
            (top, left, mirrored)
            for top in range(5)
            for left in range(5)
            for mirrored in (False, True)
            if torch.equal(x, _piece(padded, top, left, mirrored))
        ]
        assert len(places) == 1, target
        seen.add(places[0])
    assert {top for top, _, _ in seen} == {left for _, left, _ in seen} == set(range(5))
    assert {mirrored for _, _, mirrored in seen} == {False, True}


def _piece(padded: Tensor, top: int, left: int, mirrored: bool) -> Tensor:
    piece = padded[:, top : top + 5, left : left + 6]
    return piece.flip(2) if mirrored else piece


@pytest.mark.parametrize("augmentation", [Augmentation(crop=2), Augmentation(flip=True), Augmentation(2, True)])
def test_augmentation_is_a_function_of_the_key_alone(augmentation: Augmentation) -> None:
    splits, _ = split(augmentation)
    first = everything(splits.train, key=7)
    torch.manual_seed(99)
    everything(splits.train, key=8)
    state = torch.get_rng_state()
    again = everything(split(augmentation)[0].train, key=7)
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first.inputs, everything(splits.train, key=8).inputs)


def test_flips_are_the_same_with_and_without_crops() -> None:
    flips, both = (split(augmentation)[0] for augmentation in (Augmentation(flip=True), Augmentation(2, True)))
    plain, _ = split(Augmentation())
    images = everything(plain.train).inputs
    mirrored = [not torch.equal(x, y) for x, y in zip(everything(flips.train, 3).inputs, images, strict=True)]
    for x, image, flip in zip(everything(both.train, 3).inputs, images, mirrored, strict=True):
        padded = torch.nn.functional.pad(image, (2, 2, 2, 2))
        pieces = [_piece(padded, top, left, flip) for top in range(5) for left in range(5)]
        assert any(torch.equal(x, piece) for piece in pieces)


def test_validation_and_test_are_never_augmented() -> None:
    augmented, plain = split(Augmentation(2, True))[0], split(Augmentation())[0]
    assert not torch.equal(everything(augmented.train).inputs, everything(plain.train).inputs)
    for name in ("validation", "test"):
        one, other = getattr(augmented, name), getattr(plain, name)
        assert torch.equal(everything(one, 1).inputs, everything(other, 2).inputs)


def test_pixels_stay_bytes_and_are_held_once() -> None:
    splits, images = split(Augmentation(2, True))
    held = [dataset._images.pixels for dataset in (splits.train, splits.validation, splits.test)]  # type: ignore[attr-defined]
    assert {pixels.data_ptr() for pixels in held} == {images.pixels.data_ptr()}
    assert {pixels.dtype for pixels in held} == {torch.uint8}


# Folders of image files


def write_images(folder: Path, classes: dict[str, int], seed: int = 0) -> Path:
    generator = np.random.default_rng(seed)
    for name, count in classes.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            array = generator.integers(256, size=(12, 16, 3)).astype(np.uint8)
            Image.fromarray(array).save(folder / name / f"{index:02}.{('png', 'PNG', 'bmp')[index % 3]}")
    return folder


def test_a_class_that_nothing_teaches_is_refused(idx: Path) -> None:
    task = FashionMNIST(str(idx), verify=False, train_samples=3)
    with pytest.raises(TaskError, match=r"must have images in the training split, but class \d has none there, nor"):
        task.load(0)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return write_images(tmp_path / "pictures", {"cat": 12, "bird": 8})


def test_class_folders_become_splits(pictures: Path) -> None:
    (pictures / "cat" / "readme.txt").write_text("not an image")
    (pictures / ".cache").mkdir()
    splits = ImageFolder(str(pictures), size=12, test=0.25, validation=0.2).load(0)
    assert splits.sizes() == {"train": 12, "validation": 3, "test": 5}
    targets = torch.cat([everything(part).targets for part in (splits.train, splits.validation, splits.test)])
    assert torch.bincount(targets).tolist() == [8, 12]  # bird, cat
    inputs = torch.cat([everything(part).inputs for part in (splits.train, splits.validation, splits.test)])
    assert inputs.shape == (20, 3, 12, 12)
    assert -1 <= float(inputs.min()) < -0.9 < 0.9 < float(inputs.max()) <= 1


def test_an_image_of_the_right_height_is_cut_to_its_middle(pictures: Path) -> None:
    files = image_files.list_images(pictures)
    pixels = image_files.decode(files, 12, 3).pixels
    for place, name in enumerate(files.paths):
        with Image.open(pictures / name) as image:
            expected = torch.from_numpy(np.array(image)).permute(2, 0, 1)[:, :, 2:14]
        assert torch.equal(pixels[place], expected)


def test_grey_transparent_and_turned_images_are_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    ramp = np.tile(np.arange(0, 160, 10, dtype=np.uint8), (16, 1))
    Image.fromarray(ramp).save(tmp_path / "a" / "grey.png")
    Image.fromarray(np.dstack([ramp] * 4)).save(tmp_path / "a" / "rgba.png")
    palette = Image.fromarray(np.dstack([ramp] * 3)).quantize(200)
    palette.info["transparency"] = bytes(range(200))
    palette.save(tmp_path / "a" / "palette.png")
    exif = Image.Exif()
    exif[0x0112] = 8  # to be shown turned by 90 degrees
    Image.fromarray(ramp).save(tmp_path / "b" / "turned.png", exif=exif)
    images = image_files.decode(image_files.list_images(tmp_path), 16, 1)
    grey, palette_read, rgba, turned = images.pixels[:, 0]
    assert torch.equal(grey, torch.from_numpy(ramp))
    assert torch.equal(rgba, grey)
    assert torch.equal(palette_read, grey)
    assert torch.equal(turned, grey.T.flip(0))


def test_a_test_folder_is_the_test_set_whole(pictures: Path, tmp_path: Path) -> None:
    tests = write_images(tmp_path / "tests", {"bird": 2, "cat": 3}, seed=5)
    splits = ImageFolder(str(pictures), test_folder=str(tests), channels=1, mean=[0.5], std=[0.25]).load(0)
    assert splits.sizes() == {"train": 18, "validation": 2, "test": 5}
    assert everything(splits.test).inputs.shape == (5, 1, 32, 32)
    assert everything(splits.test).targets.tolist() == [0, 0, 1, 1, 1]


def test_image_folder_refuses_what_does_not_fit(pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="both test_folder = 'x' and test = 0.2 were given. Remove one"):
        ImageFolder(str(pictures), test_folder="x", test=0.2)
    with pytest.raises(TaskError, match=r"mean must have one number for each of the 3 channels.* but is \[0.1, 0.2\]"):
        ImageFolder(str(pictures), mean=[0.1, 0.2])
    with pytest.raises(TaskError, match=r"std must be above 0, but is \[0.0\]"):
        ImageFolder(str(pictures), std=[0.0])
    with pytest.raises(TaskError, match="nowhere must be a folder with one folder of image files for each class"):
        ImageFolder(str(tmp_path / "nowhere")).load(0)
    with pytest.raises(TaskError, match="and at least two classes, but has nothing"):
        ImageFolder(str(pictures / "cat")).load(0)
    tests = write_images(tmp_path / "tests", {"bird": 2, "dog": 3})
    with pytest.raises(TaskError, match=f"same classes, but {pictures} has bird, cat and {tests} has bird, dog"):
        ImageFolder(str(pictures), test_folder=str(tests)).load(0)
    (pictures / "fox").mkdir()
    with pytest.raises(TaskError, match=f"every class must have images .* but {pictures / 'fox'} has none"):
        ImageFolder(str(pictures)).load(0)


def test_a_damaged_image_is_named(pictures: Path) -> None:
    path = pictures / "cat" / "00.png"
    whole = path.read_bytes()
    for content in (whole[:200], b"", b"not an image"):
        path.write_bytes(content)
        with pytest.raises(TaskError, match=f"{path} cannot be read as an image: .*Replace it, or remove it"):
            ImageFolder(str(pictures)).load(0)
    Image.fromarray(np.zeros((4, 4), dtype=np.uint16)).save(path)
    with pytest.raises(TaskError, match=f"{path} .*more than 8 bits a channel"):
        ImageFolder(str(pictures)).load(0)


def test_without_pillow_the_error_says_what_to_install(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(TaskError, match=r"pip install pillow \(it is in the extra naspipe\[vision\]\)") as caught:
        ImageFolder(str(pictures)).load(0)
    assert isinstance(caught.value.__cause__, ImportError)


# The cache of decoded images


def cached(pictures: Path, **more: Any) -> Tensor:
    splits = ImageFolder(str(pictures), size=8, cache=str(pictures.parent / "cache"), **more).load(0)
    inputs: Tensor = everything(splits.train).inputs
    return inputs


def test_a_cache_gives_the_same_images_without_decoding(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = everything(ImageFolder(str(pictures), size=8).load(0).train).inputs
    assert torch.equal(cached(pictures), fresh)

    def refuse(*arguments: Any) -> Any:
        raise AssertionError("decoded again")

    monkeypatch.setattr(image_cache, "decode", refuse)
    assert torch.equal(cached(pictures), fresh)


def test_a_changed_file_or_setting_makes_a_cache_of_its_own(pictures: Path) -> None:
    cached(pictures)
    cached(pictures, channels=1)
    path = pictures / "cat" / "00.png"
    os.utime(path, ns=(1, 1))
    cached(pictures)
    (pictures / "cat" / "01.PNG").unlink()
    cached(pictures)
    assert len(list((pictures.parent / "cache").iterdir())) == 4


@pytest.mark.parametrize("damage", [lambda d: d[:-1] + bytes([d[-1] ^ 1]), lambda d: d[:100], lambda d: b""])
def test_a_damaged_cache_is_made_anew_with_a_warning(pictures: Path, damage: Any) -> None:
    fresh = cached(pictures)
    (path,) = (pictures.parent / "cache").iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with pytest.warns(NaspipeWarning, match=f"{path} is damaged .*. It is made again from the image files"):
        assert torch.equal(cached(pictures), fresh)
    assert path.read_bytes() == whole


def test_a_cache_that_another_process_wrote_meanwhile_is_replaced_by_the_same(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(*arguments: Any) -> Images:
        monkeypatch.undo()
        others.append(cached(pictures))
        return image_files.decode(*arguments)

    others: list[Tensor] = []
    monkeypatch.setattr(image_cache, "decode", overtaken)
    assert torch.equal(cached(pictures), others[0])
    assert torch.equal(cached(pictures), others[0])
    assert len(list((pictures.parent / "cache").iterdir())) == 1


def digest_of_training(pictures: Path, cache: str, seed: int) -> str:
    torch.manual_seed(seed)
    train = ImageFolder(str(pictures), size=8, cache=cache, crop=2, flip=True).load(0).train
    return digest_tensors({"x": everything(train, key=2**62).inputs})


def test_processes_share_a_cache_and_augment_alike(pictures: Path, forks: None) -> None:
    cache = str(pictures.parent / "cache")
    found = call_in_forks(digest_of_training, (pictures, cache, 1), (pictures, cache, 2))
    assert found == [digest_of_training(pictures, cache, 3)] * 2
    assert [path.suffix for path in (pictures.parent / "cache").iterdir()] == [".safetensors"]


def test_a_cache_that_cannot_be_written_is_an_error_that_names_it(pictures: Path) -> None:
    (pictures.parent / "cache").write_text("a file")
    with pytest.raises(TaskError, match=r"cache.* cannot be written: .* Or do without task.cache"):
        cached(pictures)


# torchvision: it cannot be installed beside the CPU build of torch here, so these tests put a small module of
# our own in its place. They show what the task does with classes of such signatures, not that torchvision has them.


class Flowers:
    """As torchvision's classes with ``train=``: pairs of an image and a class."""

    shape: tuple[int, ...] = (6, 5, 3)

    def __init__(self, root: str, train: bool = True, download: bool = False) -> None:
        if "missing" in root and not download:
            raise RuntimeError("Dataset not found or corrupted. You can use download=True to download it")
        self.count = 20 if train else 8

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return Image.fromarray(np.full(self.shape, index, dtype=np.uint8)), index % 4


class Houses(Flowers):
    """As those with ``split=``."""

    shape = (6, 5)

    def __init__(self, root: str, split: str = "train") -> None:
        super().__init__(root, train={"train": True, "test": False}[split])


class Pairs(Flowers):
    def __init__(self, root: str, seed: int = 0) -> None:
        raise AssertionError


class Boxes(Flowers):
    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return super().__getitem__(index)[0], {"boxes": []}


class Uneven(Flowers):
    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return Image.new("RGB", (5 + index, 5)), 0


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in torchvision's place."""
    package, datasets = types.ModuleType("torchvision"), types.ModuleType("torchvision.datasets")
    for cls in (Flowers, Houses, Pairs, Boxes, Uneven):
        setattr(datasets, cls.__name__, cls)
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.datasets", datasets)


@pytest.mark.usefixtures("stand_in")
def test_a_data_set_of_torchvisions_form_becomes_splits() -> None:
    splits = TorchvisionData("Flowers", "data", validation=0.2, mean=[0.0], std=[1 / 255]).load(0)
    assert splits.sizes() == {"train": 16, "validation": 4, "test": 8}
    test = everything(splits.test)
    assert test.inputs.shape == (8, 3, 6, 5)
    assert test.inputs[:, 2, 4, 1].round().tolist() == list(range(8))
    assert test.targets.tolist() == [0, 1, 2, 3] * 2
    assert everything(TorchvisionData("Houses", "data").load(0).test).inputs.shape == (8, 1, 6, 5)
    assert TorchvisionData("Flowers", "missing", download=True).load(0).sizes()["test"] == 8


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("dataset", "folder", "message"),
    [
        ("Flower", "data", "must be a class of torchvision.datasets, but is 'Flower'. Did you mean 'Flowers'"),
        ("Pairs", "data", "its class takes train= or split=, but Pairs takes root, seed"),
        ("Flowers", "missing", r"Flowers\('missing', train=True\) failed: Dataset not found .* task.download=true"),
        ("Boxes", "data", r"must have a class for each image, a whole number, but image 0 has \{'boxes': \[\]\}"),
        ("Uneven", "data", r"image 1 has shape \(5, 6, 3\) and type uint8 and the first has shape \(5, 5, 3\)"),
    ],
)
def test_a_data_set_that_cannot_be_used_is_refused(dataset: str, folder: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        TorchvisionData(dataset, folder).load(0)


def test_without_torchvision_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    message = (
        rf"needs torchvision, .* belongs to torch {torch.__version__.replace('+', '.')}: pip install 'naspipe.vision"
    )
    with pytest.raises(TaskError, match=message) as caught:
        TorchvisionData("CIFAR10", "data").load(0)
    assert isinstance(caught.value.__cause__, ImportError)


# From end to end


def test_training_on_augmented_images_is_the_same_on_any_number_of_stages(pictures: Path) -> None:
    config = as_config(
        {
            "space": {"name": "resnet", "width": 4, "blocks": 3, "candidates": 4, "input_channels": 3, "classes": 2},
            "task": {"name": "image_folder", "folder": str(pictures), "size": 8, "crop": 1, "flip": True},
            "training": {"batch_size": 4, "microbatches": 2, "delay": 1},
        }
    )
    checks = list(verify(config, ["csp"], [2], ["in-process"], subnets=8))
    assert [check.difference for check in checks] == ["", ""]
    assert all(check.kept for check in checks)
