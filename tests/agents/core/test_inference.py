"""Inference servers: batches of requests, fewer actors than a batch, fresh weights, errors."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from dm_env import specs

from topology.agents.core.inference import InferenceServer, ServedPolicy
from topology.agents.core.policy import Policy, PolicyOutput
from topology.agents.core.types import Variables
from topology.agents.core.variables import VariableClient
from topology.context import StopToken
from topology.errors import ConnectionBroken, CourierClosed
from topology.nodes.courier import Client, Server


def make_agent(shapes=None):
    """A policy that notes the shape of the observations each time it is compiled."""

    def act(params, key, observations, states, explorations):
        if shapes is not None:
            shapes.append(observations.shape)
        if observations.shape[1:] != (3,):
            raise ValueError("three numbers make an observation")
        action = observations[:, 0] * params["factor"] + explorations
        return PolicyOutput(action, {"twice": 2 * observations}, states + 1)

    return Policy(act=act, initial_state=np.float32(0))


AGENT = make_agent()


class Source:
    def __init__(self):
        self.version = 1

    def get_variables(self, names):
        return Variables(self.version, 1000.0 - self.version, [{"factor": np.float32(self.version)}])


@pytest.fixture
def serve(rows, clock, run_in_thread):
    """Starts a server; it is stopped at the end."""
    stops = []

    def serve(*, agent=AGENT, source=None, timeout_s=0.002, batch_size=4, environments=2, refresh_s=0.005):
        stops.append(StopToken())
        server = InferenceServer(
            policy=agent,
            client=VariableClient(source or Source(), ["policy"], clock=clock),
            observations=specs.Array((3,), np.float32),
            environments=environments,
            batch_size=batch_size,
            timeout_s=timeout_s,
            refresh_s=refresh_s,
            seed=0,
            metrics=rows,
            stop=stops[-1],
        )
        run_in_thread(server.run)
        return server

    yield serve
    for stop in stops:
        stop.set()


def request(value, environments=2):
    observations = np.full((environments, 3), value, np.float32)
    return observations, np.arange(environments, dtype=np.float32), np.full(environments, 0.5, np.float32)


def test_requests_of_many_actors_make_one_batch_and_each_gets_its_part(serve):
    shapes = []
    server = serve(agent=make_agent(shapes), timeout_s=30)
    with ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(lambda value: ServedPolicy(server)(*request(value)), range(8)))
    for value, output in enumerate(outputs):
        np.testing.assert_allclose(output.action, [value + 0.5] * 2)
        np.testing.assert_allclose(output.extras["twice"], np.full((2, 3), 2 * value))
        np.testing.assert_allclose(output.state, [1, 2])
    assert shapes == [(8, 3)], "compiled once, for the whole batch"


def test_fewer_actors_than_the_batch_wait_for_nobody(serve):
    shapes = []
    policy = ServedPolicy(serve(agent=make_agent(shapes), batch_size=64))
    for value in range(5):
        np.testing.assert_allclose(policy(*request(value)).action, [value + 0.5] * 2)
    assert shapes == [(128, 3)]


def test_weights_are_kept_fresh_and_actors_hear_of_their_version_and_age(serve, clock):
    source = Source()
    policy = ServedPolicy(serve(source=source), clock=clock)
    assert policy.version == -1
    assert np.isnan(policy.age_s)
    policy(*request(1))
    assert policy.version == 1
    clock.advance(3)
    assert policy.age_s == 4
    source.version = 6
    while policy.version != 6:
        output = policy(*request(1))
    np.testing.assert_allclose(output.action, [6.5] * 2)


def test_calls_before_the_first_weights_wait_for_them(serve):
    given = threading.Event()

    class Late(Source):
        def get_variables(self, names):
            assert given.wait(20)
            return super().get_variables(names)

    server = serve(source=Late())
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.act, *request(3))
        assert not answer.done()
        given.set()
        np.testing.assert_allclose(answer.result(20)[0].action, [3.5] * 2)


@pytest.fixture
def make_server(rows, clock):
    """A server that nobody runs yet."""

    def make(source, stop):
        return InferenceServer(
            policy=AGENT,
            client=VariableClient(source, ["policy"], clock=clock),
            observations=specs.Array((3,), np.float32),
            environments=2,
            batch_size=2,
            timeout_s=20,
            refresh_s=0,
            seed=0,
            metrics=rows,
            stop=stop,
        )

    return make


def test_a_stop_before_the_first_weights_ends_the_calls(make_server):
    server = make_server(Source(), StopToken())
    server._ready.set()  # as the stop does while run() waits for weights
    calls = [server.act.submit(*request(1)) for _ in range(2)]
    with pytest.raises(CourierClosed):
        calls[0].result(20)
    server.act.close()


class Failing(Source):
    """Gives weights `times` times, and fails once it `may`."""

    def __init__(self, times):
        super().__init__()
        self.may = threading.Event()
        self._times = times

    def get_variables(self, names):
        self._times -= 1
        if self._times >= 0:
            return super().get_variables(names)
        assert self.may.wait(20)
        raise KeyError("no such weights")


@pytest.mark.parametrize("times", [0, 1], ids=["before it has weights", "later"])
def test_calls_that_wait_at_a_server_that_fails_are_ended_and_so_are_later_ones(make_server, times):
    source = Failing(times)
    server = make_server(source, StopToken())
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(server.run)
        if times:
            assert server._ready.wait(20)
        waiting = server.act.submit(*request(3))
        source.may.set()
        with pytest.raises(KeyError, match="no such weights"):
            ended.result(20)
    with pytest.raises(CourierClosed):
        waiting.result(20)
    later = [server.act.submit(*request(3)) for _ in range(2)]
    with pytest.raises(CourierClosed):
        later[0].result(20)
    server.act.close()


def test_a_server_that_failed_is_asked_again_as_one_that_went_away():
    """Its actors do not fail with it: they wait for the one that is started in its place."""

    class Ended:
        def act(self, *_):
            raise CourierClosed("the inference server has ended")

    with pytest.raises(ConnectionBroken, match=r"the inference server went away: .* has ended"):
        ServedPolicy(Ended())(*request(1))


def test_what_the_policy_raises_reaches_the_actors_and_later_calls_go_on(serve):
    with Server("inference") as courier:
        server = serve(batch_size=1)
        courier.bind("act", server.act)
        courier.start()
        with Client(courier.address) as client:
            policy = ServedPolicy(client)
            with pytest.raises(ValueError, match="three numbers make an observation"):
                policy(np.zeros((2, 4), np.float32), *request(1)[1:])
            np.testing.assert_allclose(policy(*request(2)).action, [2.5] * 2)


def test_it_reports_how_full_its_batches_are(serve, rows):
    policy = ServedPolicy(serve(batch_size=4))
    reported = threading.Event()
    rows.write = lambda **values: (rows.append(values), values["inferences_per_second"] and reported.set())
    while not reported.is_set():
        policy(*request(1))
    row = next(row for row in rows if row["inferences_per_second"])
    assert row["requests_per_batch"] == 1
    assert row["inferences_per_second"] == pytest.approx(2 * row["batches_per_second"])
    assert row["weights_version"] == 1
    assert "weights_age_s" in row
