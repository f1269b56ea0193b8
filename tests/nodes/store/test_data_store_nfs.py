"""A directory that several machines share: another process writes, nothing tells of it, and NFS is as NFS is."""

from __future__ import annotations

import builtins
import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from topology.errors import PoliciesFinished, StoreDeadlineExceeded, StoreError
from topology.nodes.store.data_directory import DirectoryMedium
from topology.nodes.store.policies import open_data_store

ROOT = Path(__file__).parents[3]
DEADLINE_S = 60.0
WEIGHTS = {"w": np.arange(1000.0)}

WRITER = """
import sys
import numpy as np
from topology.nodes.store.policies import open_data_store

with open_data_store(sys.argv[1], keep=2) as store, store.lease("trainer", 60.0) as lease:
    for number in range(20):
        if number % 5 == 0:
            assert sys.stdin.readline() == "go on\\n"
        assert store.save({"w": np.full(20_000, number)}, {"number": number}, lease=lease) == number
    store.announce_finished("that is all", lease=lease)
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """In a process of its own; five policies for each "go on"."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.wait(DEADLINE_S)
    assert process.stdin is not None
    process.stdin.close()


def test_what_another_process_writes_is_seen_whole_and_in_order(tmp_path: Path, writer: subprocess.Popen[str]) -> None:
    store, newest = open_data_store(str(tmp_path)), -1
    assert writer.stdin is not None
    with ThreadPoolExecutor(1) as pool:
        while newest < 19:
            waiting = pool.submit(store.wait_newer, newest, timeout_s=DEADLINE_S)  # it waits before there is anything
            if newest in (-1, 4, 9, 14):
                writer.stdin.write("go on\n")
                writer.stdin.flush()
            policy = waiting.result()
            assert policy.number > newest
            assert policy.meta["number"] == policy.number
            np.testing.assert_array_equal(policy.arrays["w"], np.full(20_000, policy.number))
            newest = policy.number
    with pytest.raises(PoliciesFinished, match="that is all"):
        store.wait_newer(newest, timeout_s=DEADLINE_S)
    assert writer.wait(DEADLINE_S) == 0


# --- what only NFS does -----------------------------------------------------------------------------------------------


def fail(function: Callable[..., Any], name: str, times: int, *, number: int = errno.ESTALE) -> Callable[..., Any]:
    """`function`, which fails so many times for files of that name."""
    left = [times]

    def failing(path: Any, *args: Any, **kwargs: Any) -> Any:
        if Path(path).name == name and left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number), str(path))
        return function(path, *args, **kwargs)

    return failing


def test_a_file_that_is_replaced_while_it_is_opened_is_opened_again(tmp_path: Path, monkeypatch: Any) -> None:
    store = open_data_store(str(tmp_path))
    store.save(WEIGHTS)
    monkeypatch.setattr(builtins, "open", fail(open, "record", 3))
    assert store.load().number == 0


def test_a_server_that_has_forgotten_the_directory_is_an_error(tmp_path: Path, monkeypatch: Any) -> None:
    store = open_data_store(str(tmp_path))
    store.save(WEIGHTS)
    monkeypatch.setattr(builtins, "open", fail(open, "record", 10**6))
    with pytest.raises(StoreError, match=r"cannot be read: .*NFS server does not know it any more: mount it anew"):
        store.wait_newer(0, timeout_s=DEADLINE_S)


def test_a_request_that_the_server_got_twice_counts_once(tmp_path: Path, monkeypatch: Any) -> None:
    store = open_data_store(str(tmp_path))
    store.save(WEIGHTS)
    link = os.link

    def link_twice(source: Any, target: Any) -> None:
        link(source, target)
        link(source, target)  # FileExistsError, and it is ours

    with monkeypatch.context() as twice:
        twice.setattr(os, "link", link_twice)
        assert store.save(WEIGHTS) == 1
    assert (store.newest(), store.save(WEIGHTS)) == (1, 2)


def test_who_comes_second_is_told_so(tmp_path: Path) -> None:
    medium = DirectoryMedium(tmp_path)
    assert medium.make_file("records/000000000001", b"first")
    assert not medium.make_file("records/000000000001", b"second")
    assert medium.read_file("records/000000000001") == b"first"


def test_a_reader_with_an_old_look_at_the_directory_goes_on_looking(tmp_path: Path, monkeypatch: Any) -> None:
    """For a while, a machine may see files as they were, and not see that others have come."""
    reader, writer = open_data_store(str(tmp_path)), open_data_store(str(tmp_path))
    writer.save(WEIGHTS)
    medium, looks = reader._medium, [0]  # type: ignore[attr-defined]  # of a RecordStore
    old = {name: medium.read_file(name) for name in ("record", "records/000000000002")}
    assert old["records/000000000002"] is None
    writer.save(WEIGHTS)
    read_file = DirectoryMedium.read_file

    def read_late(self: DirectoryMedium, name: str) -> bytes | None:
        looks[0] += self is medium
        return old[name] if self is medium and name in old and looks[0] < most[0] else read_file(self, name)

    monkeypatch.setattr(DirectoryMedium, "read_file", read_late)
    most = [10**9]
    with pytest.raises(StoreDeadlineExceeded):
        reader.wait_newer(0, timeout_s=0.05)
    assert writer.newest() == 1
    most = [looks[0] + 20]
    assert reader.wait_newer(0, timeout_s=DEADLINE_S).number == 1


def test_files_that_cannot_be_removed_while_they_are_read_do_not_matter(tmp_path: Path, monkeypatch: Any) -> None:
    store = open_data_store(str(tmp_path))
    store.save(WEIGHTS)
    busy, left_behind = tmp_path / "policies" / ".nfs0123", tmp_path / "policies" / "000000000001-0badcafe.policy"
    for path in (busy, left_behind):
        path.write_bytes(b"half of it")
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == busy:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    store.lease("trainer", 60.0)
    assert busy.exists()
    assert not left_behind.exists()
