"""What is wrong with the place of a data store is said in words: what was asked, what was found, what to do."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from topology.errors import PolicyNotFound, StoreDataError, StoreDenied, StoreError, StoreFull, StoreUnavailable
from topology.nodes.store import data_stores, record_chain
from topology.nodes.store.data_directory import DirectoryMedium
from topology.nodes.store.policies import DataStore, open_data_store

WEIGHTS = {"w": np.ones(1000)}
NOWHERE = "127.0.0.1:1"  # a port that nobody may listen at


# --- directories ------------------------------------------------------------------------------------------------------


def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("mine")
    with pytest.raises(StoreError, match=r"store cannot be opened: .*there is a file where the directory should be"):
        open_data_store(str(tmp_path / "store"))
    with pytest.raises(StoreError, match="there is a file where the directory should be"):
        open_data_store(str(tmp_path / "store" / "below")).save(WEIGHTS)
    assert (tmp_path / "store").read_text() == "mine"


def test_a_file_where_a_part_of_it_should_be(tmp_path: Path) -> None:
    (tmp_path / "policies").write_text("mine")
    with pytest.raises(StoreDenied, match="there is a file where the directory should be"):
        open_data_store(str(tmp_path)).save(WEIGHTS)


@pytest.mark.parametrize(("number", "text"), [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "the quota is used")])
@pytest.mark.parametrize("at", range(6))
def test_a_full_disk_leaves_the_policies_before(
    tmp_path: Path, monkeypatch: Any, number: int, text: str, at: int
) -> None:
    store = open_data_store(str(tmp_path))
    store.save(WEIGHTS, state=WEIGHTS)
    written, write = [0], os.write

    def write_until_full(descriptor: int, data: Any) -> int:
        written[0] += 1
        if written[0] > at:
            raise OSError(number, os.strerror(number))
        return write(descriptor, memoryview(data)[:1500])

    with monkeypatch.context() as full:
        full.setattr(os, "write", write_until_full)
        with pytest.raises(StoreFull, match=rf"cannot be written: .*{text}.*make room there"):
            store.save(WEIGHTS, state=WEIGHTS)
    assert not list(tmp_path.rglob("*.unfinished"))
    newest = store.newest()
    np.testing.assert_array_equal(store.load().arrays["w"], WEIGHTS["w"])
    assert store.save(WEIGHTS) == newest + 1


def test_a_directory_of_another_machine(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="names the machine 'data'"):
        open_data_store("file://data/run7")
    open_data_store(f"file://{tmp_path}/with%20space").save(WEIGHTS)
    assert (tmp_path / "with space" / "record").exists()


@pytest.mark.parametrize("poll_s", [(0, 1), (2, 1), (1, float("inf"))])
def test_pauses_that_make_no_sense(tmp_path: Path, poll_s: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="poll_s"):
        open_data_store(str(tmp_path), poll_s=poll_s)


# --- the chain of records ---------------------------------------------------------------------------------------------


def test_a_writer_that_died_before_the_copy_has_published(tmp_path: Path, monkeypatch: Any) -> None:
    writer = open_data_store(str(tmp_path))
    writer.save(WEIGHTS)
    with monkeypatch.context() as dying:
        dying.setattr(DirectoryMedium, "write_file", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            writer.save(WEIGHTS)
    reader = open_data_store(str(tmp_path))
    assert reader.newest() == 1
    assert reader.save(WEIGHTS) == 2


def test_a_copy_that_goes_back_does_not_matter(tmp_path: Path) -> None:
    store = open_data_store(str(tmp_path))
    store.save(WEIGHTS)
    old = (tmp_path / "record").read_bytes()
    for _ in range(5):
        store.save(WEIGHTS)
    (tmp_path / "record").write_bytes(old)
    assert store.newest() == 5


@pytest.mark.parametrize("left", [None, b"", b"4", b"hello\nworld"])
def test_a_copy_that_is_gone_or_half_written_is_made_anew(tmp_path: Path, left: bytes | None) -> None:
    store = open_data_store(str(tmp_path))
    for _ in range(record_chain.KEPT + 10):
        store.announce_ready()
    store.save(WEIGHTS)
    copy = tmp_path / "record"
    if left is None:
        copy.unlink()
    else:
        copy.write_bytes(left)
    again = open_data_store(str(tmp_path))
    assert again.newest() == 0
    np.testing.assert_array_equal(again.load().arrays["w"], WEIGHTS["w"])
    assert (again.save(WEIGHTS), store.save(WEIGHTS)) == (1, 2)
    assert copy.read_bytes().startswith(b"%d\n" % (record_chain.KEPT + 13))


def test_what_others_left_in_its_folders_does_not_matter(tmp_path: Path) -> None:
    open_data_store(str(tmp_path)).save(WEIGHTS)
    for folder in ("policies", "records"):
        (tmp_path / folder / "a folder").mkdir()
        (tmp_path / folder / "notes.txt").write_text("mine")
        (tmp_path / folder / "000000000009.12ab.unfinished").write_bytes(b"half of it")
    (tmp_path / "record.34cd.unfinished").write_bytes(b"half of it")
    store = open_data_store(str(tmp_path))
    with store.lease("trainer", 60.0) as lease:
        assert store.save(WEIGHTS, lease=lease) == 1
    assert not list(tmp_path.rglob("*.unfinished"))
    assert len(list((tmp_path / "policies").iterdir())) == 3, "two policies, and the folder"


def test_a_writer_that_is_far_behind_does_not_take_a_file_that_was_removed_for_the_next(tmp_path: Path) -> None:
    store = open_data_store(str(tmp_path))
    for _ in range(record_chain.KEPT + 5):
        store.announce_ready()
    assert len(list((tmp_path / "records").iterdir())) == record_chain.KEPT
    late = DirectoryMedium(tmp_path)
    assert not late.write(3, b"of the past", [])
    assert not (tmp_path / "records" / f"{3:012d}").exists()
    assert store.newest() == -1


def test_a_copy_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "record").write_bytes(b"hello")
    with pytest.raises(StoreDataError, match="begins with b'hello'"):
        open_data_store(str(tmp_path))


# --- Redis ------------------------------------------------------------------------------------------------------------


def test_a_redis_server_that_is_not_there() -> None:
    pytest.importorskip("redis")
    with pytest.raises(StoreUnavailable, match=rf"redis://{NOWHERE}/0 .*cannot be opened: .*that the server runs"):
        open_data_store(f"redis://:geheim@{NOWHERE}/0")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://:pass/word@host:1/0", "write /, @, :, # and"),
        ("redis://host/mine", "number of a database, not 'mine'"),
        ("redis://host?nmae=1", "does not take: .*'nmae'"),
    ],
)
def test_a_url_of_redis_that_cannot_be_meant(url: str, message: str) -> None:
    pytest.importorskip("redis")
    with pytest.raises(ValueError, match=message) as told:
        open_data_store(url, patience_s=30.0)
    assert "pass" not in str(told.value).replace("password", "")


def test_a_redis_server_that_does_not_let_us_in(make_redis: Any) -> None:
    url = make_redis("--requirepass", "right", tcp=True).url
    for password, found in (("", "asks for a password, and none was given"), (":wrong@", "invalid")):
        with pytest.raises(StoreDenied, match=rf"does not let us in .*{found}.*check user and password"):
            open_data_store(url.replace("://", f"://{password}"))
    with open_data_store(url.replace("://", "://:right@")) as store:
        assert store.save(WEIGHTS) == 0
        assert "right" not in repr(store)


def test_a_redis_server_whose_memory_is_full(make_redis: Any) -> None:
    server = make_redis("--maxmemory", "3mb", "--maxmemory-policy", "noeviction")
    with open_data_store(server.url) as store:
        store.save(WEIGHTS)
        with pytest.raises(StoreFull, match=r"memory is full: .*larger maxmemory, or keep fewer"):
            save_often(store)
        assert store.load().number == store.newest()


def test_a_redis_server_that_throws_away_is_refused(make_redis: Any) -> None:
    server = make_redis("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreDenied, match=r"allkeys-lru.*noeviction"):
        open_data_store(server.url)


def test_a_user_of_redis_who_may_not_ask_how_it_throws_away_is_let_in(make_redis: Any) -> None:
    server = make_redis("--user", "few", "on", ">pass", "~*", "&*", "+@all", "-info", tcp=True)
    with open_data_store(server.url.replace("://", "://few:pass@")) as store:
        assert store.save(WEIGHTS) == 0


def save_often(store: DataStore) -> None:
    for _ in range(8):
        store.save({"w": np.random.default_rng(0).standard_normal(100_000)})


def test_a_redis_server_that_goes_away_and_comes_back_empty(make_redis: Any) -> None:
    server = make_redis()
    with open_data_store(server.url) as store:
        lease = store.lease("trainer", 60.0)
        store.save(WEIGHTS, lease=lease)
        server.kill()
        with pytest.raises(StoreUnavailable):
            store.wait_newer(0, timeout_s=30.0)
        server.start()
        with pytest.raises(StoreError, match=r"what was in the data store is gone.*appendonly yes"):
            store.save(WEIGHTS, lease=lease)
        with pytest.raises(PolicyNotFound):
            store.load()


def test_a_key_of_something_else_in_redis(make_redis: Any) -> None:
    import redis

    server = make_redis()
    with redis.Redis.from_url(server.url) as client:
        client.set("policies:record", "mine")
        with pytest.raises(StoreDataError, match="WRONGTYPE"):
            open_data_store(server.url)
        client.delete("policies:record")
        client.xadd("policies:record", {"event": "mine"})
        with pytest.raises(StoreDataError, match="no record"):
            open_data_store(server.url)


def test_stores_of_one_redis_server_are_told_apart_by_name(make_redis: Any) -> None:
    url = make_redis().url
    with open_data_store(url, name="a") as one, open_data_store(f"{url}&name=b") as other:
        one.save(WEIGHTS)
        assert (one.newest(), other.newest()) == (0, -1)


# --- object stores ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3(request: pytest.FixtureRequest) -> Any:
    server = request.getfixturevalue("s3_server")
    server.make_bucket("bucket-of-faults")
    return server


@pytest.fixture
def strict_s3(s3: Any) -> Iterator[Any]:
    """The server asks for credentials that it knows."""
    # After so many requests it looks at them; the fixture's own bucket was made before.
    set_requests_without_credentials(s3, b"0")
    yield s3
    set_requests_without_credentials(s3, b"inf")


def set_requests_without_credentials(server: Any, count: bytes) -> None:
    request = urllib.request.Request(f"{server.endpoint}/moto-api/reset-auth", data=count, method="POST")
    request.add_header("Content-Type", "text/plain")
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.status == 200


def test_credentials_that_an_object_store_does_not_know(strict_s3: Any) -> None:
    with pytest.raises(StoreUnavailable, match=r"does not let us in .*check the credentials"):
        open_data_store("s3://bucket-of-faults/store", **strict_s3.options)


def test_a_bucket_that_is_not_there(s3: Any) -> None:
    with pytest.raises(StoreDenied, match="no place for the data store s3://no-such-bucket/store: make the bucket"):
        open_data_store("s3://no-such-bucket/store", **s3.options)


def test_an_object_store_that_is_not_there(s3: Any) -> None:
    options = {**s3.options, "endpoint_url": f"http://{NOWHERE}"}
    with pytest.raises(StoreUnavailable, match=r"s3://bucket/store cannot be opened: .*check its address"):
        open_data_store("s3://bucket/store", **options)


def test_a_place_without_a_bucket() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(ValueError, match="write s3://BUCKET/PREFIX"):
        open_data_store("s3://")


# --- other kinds ------------------------------------------------------------------------------------------------------


def test_a_scheme_that_nobody_knows() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(ValueError, match=r"no data store opens ftpx://.*'topology\.data_stores'"):
        open_data_store("ftpx://host/store")
    with pytest.raises(ValueError, match="url or directory"):
        open_data_store("")


def test_a_kind_from_another_package(monkeypatch: Any, tmp_path: Path) -> None:
    point = importlib.metadata.EntryPoint("mine", f"{__name__}:open_mine", data_stores.GROUP)
    opened = []

    def open_mine(url: str, **options: Any) -> Any:
        opened.append((url, options))
        return open_data_store(str(tmp_path))

    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", lambda _: open_mine)
    monkeypatch.setattr(data_stores, "entry_points", lambda **asked: [point] if asked["name"] == "mine" else [])
    assert open_data_store("mine://there", keep=3, colour="red").newest() == -1
    assert opened == [("mine://there", {"keep": 3, "colour": "red"})]


@pytest.mark.parametrize(("package", "url"), [("redis", "redis://h/0"), ("fsspec", "memory://x"), ("fsspec", "s3://b")])
def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch: Any, package: str, url: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"pip install 'rl-topology\[(redis|s3)\]'"):
        open_data_store(url)
