import numpy as np
import pytest

from topology.nodes import replay
from topology.nodes.replay import selectors


@pytest.fixture
def client(serve, make_table):
    return serve(make_table(sampler=selectors.Fifo(), max_times_sampled=1))


def test_text_of_any_length_comes_back_as_bytes(client):
    for i in range(100):
        client.insert({"text": "ä" * i, "raw": b"x\0" * i}, {"table": 1.0})
    data = client.sample_batch("table", 100).data
    assert data["text"][:, 0].tolist() == ["ä".encode() * i for i in range(100)]
    assert data["raw"][:, 0].tolist() == [b"x\0" * i for i in range(100)]


def test_arrays_of_text(client):
    for value in (np.array(["a", "bcd"]), np.array([b"a", b"bcd"]), np.array(["a", b"bcd"], object)):
        client.insert(value, {"table": 1.0})
    assert client.sample_batch("table", 3).data.tolist() == [[[b"a", b"bcd"]]] * 3
    with client.trajectory_writer(2) as writer:
        writer.append_batch({"x": np.array(["a", "bc"])})
        assert writer.history["x"][:].numpy().tolist() == [b"a", b"bc"]
        writer.create_item("table", 1.0, writer.history["x"][:])
    assert client.sample_batch("table", 1).data.tolist() == [[b"a", b"bc"]]


def test_other_objects_are_refused(client):
    with pytest.raises(TypeError, match="column x: values of type object cannot be stored"):
        client.insert({"x": object()}, {"table": 1.0})
    with pytest.raises(TypeError, match=r"column x: values of dtype .* cannot be stored"):
        client.insert({"x": np.zeros(1, [("a", object)])}, {"table": 1.0})
    with client.trajectory_writer(2) as writer:
        writer.append({"x": np.array(["a"])})
        with pytest.raises(ValueError, match=r"column x holds <object\[1\]>.* has <int64\[\]>"):
            writer.append({"x": 1})


def test_signatures_of_text(serve, make_table):
    signature = {"x": replay.Spec((1,), "S")}
    client = serve(make_table(signature=signature))
    client.insert({"x": "abc"}, {"table": 1.0})
    assert client.server_info()["table"].signature == signature
    with pytest.raises(ValueError, match="column x of the item is"):
        client.insert({"x": 1}, {"table": 1.0})


def test_text_in_checkpoints(make_table, tmp_path):
    def start():
        return replay.Server([make_table()], checkpointer=replay.DefaultCheckpointer(tmp_path))

    with start() as server, server.localhost_client() as client:
        client.insert({"x": "å"}, {"table": 1.0})
        client.checkpoint()
    with start() as server, server.localhost_client() as client:
        assert client.sample_batch("table", 1).data["x"].tolist() == [["å".encode()]]
