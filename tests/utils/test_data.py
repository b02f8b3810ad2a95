"""Datasets: prepared once by whoever comes first, whole or not at all, and every fault named in a line."""

import os
import struct
import subprocess
import sys

import pytest
import torch
from conftest import need, until
from programs import Program, run_program
from torch.utils.data import DataLoader

from utils.data import DATASETS, load, prepare, whole_batch
from utils.data.digits import draw, originals
from utils.errors import UserError

PREPARE = [sys.executable, "-m", "utils.data"]
NO_NETWORK = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}  # where nobody listens


def shell(*args, **environment):
    """Run the command-line preparation and return its finished process."""
    return run_program("utils.data", *args, environment=os.environ | environment)


def leftovers(root):
    return [path.name for path in root.iterdir() if path.suffix not in (".lock", ".pt")]


@pytest.mark.parametrize(("name", "shape"), [("digits", (1, 28, 28)), ("digits-rgb", (3, 32, 32))])
def test_embedded_datasets_are_uint8_labelled_and_always_the_same(name, shape, tmp_path):
    prepare(name, tmp_path)
    train, test = load(name, tmp_path, "train"), load(name, tmp_path, "test")
    assert train.images.shape == (12_000, *shape) and test.images.shape == (1_999, *shape)
    assert train.images.dtype == torch.uint8 and train.labels.dtype == torch.int64
    assert train.classes == list("0123456789")
    assert (torch.bincount(train.labels) > 900).all()
    images, labels = draw(name, "train", 12_000, seed=1)
    assert torch.equal(images, train.images) and torch.equal(labels, train.labels)


def test_no_original_digit_is_in_two_splits():
    rows = {split: {image.numpy().tobytes() for image in originals(split)[0]} for split in ("train", "test", "reserve")}
    assert sum(map(len, rows.values())) == len(set.union(*rows.values()))
    assert sum(len(originals(split)[0]) for split in rows) == 1797


def test_a_batch_is_one_indexing_call_and_the_images_it_names(digits):
    data = load("digits", digits, "test")
    batches = list(DataLoader(data, 256, collate_fn=whole_batch))
    assert torch.equal(torch.cat([images for images, _ in batches]), data.images)
    assert torch.equal(torch.cat([labels for _, labels in batches]), data.labels)
    images, labels = data.__getitems__([3, 1, 3])
    assert torch.equal(images[1], data[1][0]) and labels[0] == data[3][1]


def test_shrunk_images_are_means_of_squares_of_pixels(digits):
    images = load("digits", digits, "test")
    small = images.shrunk(2)
    assert small.images.shape == (len(images), 1, 14, 14) and small.images.dtype == torch.uint8
    square = images.images[5, 0, 12:14, 16:18].float().mean()
    assert abs(small.images[5, 0, 6, 8].float() - square) <= 0.5
    assert torch.equal(small.labels, images.labels) and images.shrunk(1) is images


def test_ranks_share_one_copy_in_memory(digits):
    """The images are mapped from the file, so the kernel keeps one copy for all processes."""
    images = load("digits", digits, "train").images
    need(sys.platform == "linux", "needs /proc/self/maps")
    address = images.data_ptr()
    with open("/proc/self/maps") as maps:
        for line in maps:
            low, high = (int(end, 16) for end in line.split()[0].split("-"))
            if low <= address < high:
                assert line.rstrip().endswith("digits.pt")
                return
    pytest.fail("the images lie in no mapped file")


def test_loading_never_prepares(tmp_path):
    with pytest.raises(UserError, match=r"digits is not prepared in .* run python -m utils\.data"):
        load("digits", tmp_path)
    assert not list(tmp_path.iterdir())


def test_ten_processes_at_once_prepare_one_file(tmp_path):
    preparing = [Program("utils.data", "digits", "--data-dir", tmp_path) for _ in range(10)]
    done = [one.wait(180) for one in preparing]
    said = {one.stdout for one in done}
    assert [one.returncode for one in done] == [0] * 10
    assert len(said) == 1 and "12,000 train images" in said.pop()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits.lock", "digits.pt"]


def test_prepared_files_are_used_again(tmp_path):
    path = prepare("digits", tmp_path)
    before = path.stat()
    prepare("digits", tmp_path)
    assert path.stat().st_mtime_ns == before.st_mtime_ns and path.stat().st_ino == before.st_ino


def test_a_prepare_killed_half_way_leaves_nothing_that_is_taken_for_whole(tmp_path):
    """The process is stopped inside the writing, when the temporary file is there, and then killed."""
    code = (
        "import torch, time; from utils import data; save = torch.save\n"
        "def slow(content, path):\n"
        "    save(content, path)\n"
        "    with open(path, 'r+b') as file: file.truncate(100_000)\n"
        "    print('half', flush=True); time.sleep(60)\n"
        f"torch.save = slow; data.prepare('digits', {str(tmp_path)!r})"
    )
    process = Program("-c", code)
    until(lambda: process.stdout == "half\n", 60, "a file half written")
    process.kill()
    with pytest.raises(UserError, match="not prepared"):
        load("digits", tmp_path)
    (tmp_path / ".digits.download.part").mkdir()  # what a killed download leaves
    prepare("digits", tmp_path)
    assert len(load("digits", tmp_path, "test")) == 1_999
    assert not leftovers(tmp_path)


def test_a_damaged_prepared_file_is_named_and_prepared_anew(tmp_path):
    path = prepare("digits", tmp_path)
    with open(path, "r+b") as file:
        file.truncate(1_000_000)
    with pytest.raises(UserError, match=r"digits\.pt is damaged"):
        load("digits", tmp_path)
    prepare("digits", tmp_path)
    assert len(load("digits", tmp_path)) == 12_000


@pytest.mark.parametrize("held", [{"a": 1}, [1, 2], torch.zeros(3), {"train": {"images": 1}}, eval], ids=repr)
def test_a_file_that_holds_something_else_is_named_and_prepared_anew(held, tmp_path):
    torch.save(held, tmp_path / "digits.pt")
    with pytest.raises(UserError, match=r"digits\.pt is damaged, or none of the course's"):
        load("digits", tmp_path)
    prepare("digits", tmp_path)
    assert len(load("digits", tmp_path)) == 12_000


def test_one_flipped_bit_in_the_images_is_noticed(tmp_path):
    path = prepare("digits", tmp_path)
    with open(path, "r+b") as file:
        file.seek(5_000_000)
        (byte,) = file.read(1)
        file.seek(5_000_000)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(UserError, match="its bytes are not those that were written"):
        load("digits", tmp_path, "train")


@pytest.mark.parametrize("place", ["/proc", "/proc/self", "/dev/null", "{file}", "{file}/below", "{long}"])
def test_a_place_that_takes_no_data_is_named_at_once(place, tmp_path):
    (tmp_path / "file").touch()
    place = place.format(file=tmp_path / "file", long=tmp_path / ("x" * 300))
    run = shell("digits", "--data-dir", place)
    assert run.returncode == 1 and run.stderr.count("\n") == 1, run.stderr
    assert run.stderr.startswith(f"cannot write {place}") and "free some space" not in run.stderr


def mounted(options, command):
    """Run ``command`` in a namespace where ./disk is a file system with ``options``."""
    script = f'mount -t tmpfs -o {options} tmpfs disk && exec "$@"'
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", *command]


@pytest.mark.parametrize(("options", "reason"), [("size=4m", "MB left"), ("size=4m,ro", "Read-only file system")])
def test_a_full_disk_and_a_read_only_folder_are_named(options, reason, tmp_path):
    (tmp_path / "disk").mkdir()
    need(subprocess.run(mounted(options, ["true"]), cwd=tmp_path).returncode == 0, "needs unshare and tmpfs")
    command = 'python=$1; shift; "$python" "$@"; code=$?; ls -A disk >&2; exit $code'
    run = subprocess.run(
        mounted(options, ["sh", "-c", command, "sh", *PREPARE, "digits", "--data-dir", "disk"]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    first, *files = run.stderr.splitlines()
    assert run.returncode == 1
    assert first.startswith("cannot write disk/digits") and reason in first and "choose another folder" in first
    assert set(files) <= {"digits.lock"}


def test_a_prepared_dataset_is_used_from_a_read_only_folder(tmp_path):
    prepare("digits", tmp_path)
    need(subprocess.run(["unshare", "--map-root-user", "--mount", "true"]).returncode == 0, "needs unshare")
    script = 'mount --bind . . && mount -o remount,bind,ro . && cd "$PWD" && "$@" && ! touch new 2>/dev/null'
    command = ["sh", "-c", script, "sh", *PREPARE, "digits", "--data-dir", "."]
    run = subprocess.run(
        ["unshare", "--map-root-user", "--mount", *command], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr


def test_without_network_the_line_says_where_to_put_the_files(tmp_path):
    run = shell("mnist", "--data-dir", tmp_path, LOCKSTEP_DATA="", **NO_NETWORK)
    assert run.returncode == 1
    last = run.stderr.splitlines()[-1]
    assert "mnist could not be downloaded" in last
    assert "MNIST/raw" in last and "LOCKSTEP_DATA" in last and "digits needs no download" in last
    assert "Traceback" not in run.stderr
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("name", ["nonsense", "folder", ""])
def test_an_unknown_dataset_is_answered_with_those_there_are(name, tmp_path):
    with pytest.raises(UserError) as caught:
        prepare(name, tmp_path)
    assert all(known in str(caught.value) for known in (*DATASETS, "folder:PATH"))


def idx(path, shape, body=None):
    """Write an IDX file of zeros (its format: http://yann.lecun.com/exdb/mnist)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 1
    for size in shape:
        count *= size
    header = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    path.write_bytes(header + bytes(count if body is None else body))


def test_a_truncated_idx_file_is_named(tmp_path, monkeypatch):
    raw = tmp_path / "FashionMNIST/raw"
    for part in ("train", "t10k"):
        idx(raw / f"{part}-images-idx3-ubyte", (20, 28, 28))
        idx(raw / f"{part}-labels-idx1-ubyte", (20,))
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path))
    prepare("fashion-mnist", tmp_path / "good")
    assert load("fashion-mnist", tmp_path / "good").images.shape == (20, 1, 28, 28)
    for shape, body, complaint in [((20, 28, 28), 5_000, "holds 5,016 bytes"), ((), 0, "ends within its header")]:
        idx(raw / "t10k-images-idx3-ubyte", shape, body)
        if not shape:
            (raw / "t10k-images-idx3-ubyte").write_bytes(b"\0\0")
        with pytest.raises(UserError, match=f"t10k-images-idx3-ubyte.*{complaint}"):
            prepare("fashion-mnist", tmp_path / "bad")
        assert not list((tmp_path / "bad").glob("*.pt")) and not leftovers(tmp_path / "bad")
    idx(raw / "t10k-images-idx3-ubyte", (20, 28, 28))
    prepare("fashion-mnist", tmp_path / "bad")  # put right, it works in the same process
    (tmp_path / "bad/fashion-mnist.pt").unlink()
    (raw / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(UserError, match="t10k-images-idx3-ubyte is missing"):
        prepare("fashion-mnist", tmp_path / "bad")


def test_real_fashion_mnist(real_data, tmp_path):
    prepare("fashion-mnist", tmp_path)
    train = load("fashion-mnist", tmp_path)
    assert train.images.shape == (60_000, 1, 28, 28) and train.classes[9] == "Ankle boot"
    assert torch.bincount(train.labels).tolist() == [6_000] * 10
