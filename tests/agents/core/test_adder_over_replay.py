"""Transitions through a replay server while actors write and a learner reads: every number stays with its step."""

import contextlib
import threading

import dm_env
import numpy as np

from topology.agents.core.replay import ReplayBatches
from topology.agents.core.transitions import NStepTransitionAdder
from topology.errors import ReplayDeadlineExceeded
from topology.nodes.replay import Client, Server, Table, rate_limiters, selectors

N_STEP, DISCOUNT, BATCH = 3, 0.5, 256


def write(client, writer_id, enough):
    """Episodes of 4 to 12 steps. An observation says who, which step of all, and which of the episode."""
    adder = NStepTransitionAdder(
        client.trajectory_writer(NStepTransitionAdder.num_keep_alive_refs(N_STEP)),
        table="t",
        n_step=N_STEP,
        discount=DISCOUNT,
    )
    total = 0
    while not enough.is_set():
        length = 4 + total % 9

        def see(t, first=total, length=length):
            return np.array([writer_id, first + t, t, length] * 5, np.float32)

        adder.observe_first(dm_env.restart(see(0)))
        for t in range(1, length + 1):
            end = dm_env.termination if t == length else dm_env.transition
            adder.observe(t % 4, end(float(t), see(t)))
        total += length + 1
    adder.close()


def check(data):
    first, last = np.asarray(data.o_tm1), np.asarray(data.o_t)
    for seen in (first, last):
        np.testing.assert_array_equal(seen, np.tile(seen[:, :4], 5))
    writer, step, t, length = first[:, :4].T
    end = np.minimum(t + N_STEP, length)
    np.testing.assert_array_equal(last[:, :4].T, [writer, step + end - t, end, length])
    np.testing.assert_array_equal(data.a_tm1, (t + 1) % 4)
    rewards = sum(np.where(t + k < length, DISCOUNT**k * (t + k + 1), 0.0) for k in range(N_STEP))
    np.testing.assert_allclose(data.r_t, rewards)
    np.testing.assert_allclose(data.discount_t, np.where(t + N_STEP >= length, 0.0, DISCOUNT**N_STEP))


def test_every_number_stays_with_its_step():
    limiter = rate_limiters.SampleToInsertRatio(4.0, 500, 4000.0)
    table = Table("t", selectors.Prioritized(0.6), selectors.Fifo(), 2000, limiter, seed=0)
    enough = threading.Event()
    with Server([table]) as server:
        clients = [Client(server.address) for _ in range(4)]
        writers = [threading.Thread(target=write, args=(clients[i], i, enough)) for i in range(2)]
        for thread in writers:
            thread.start()
        batches = ReplayBatches(clients[2], table="t", batch_size=BATCH)
        kept = []
        try:
            for i in range(60):
                batch = batches.sample()
                check(batch.data)
                batches.update_priorities(batch.keys, np.linspace(0.1, 2.0, BATCH))
                if i % 20 == 0:
                    kept.append((batch.data, [np.copy(leaf) for leaf in batch.data]))
        finally:
            enough.set()
            batches.close()
            drain(clients[3], writers)
        for data, copies in kept:  # a batch that is still held is not written over
            for leaf, copied in zip(data, copies, strict=True):
                np.testing.assert_array_equal(leaf, copied)
        for client in clients:
            client.close()


def drain(client, writers):
    """Samples until writers that wait for room have ended."""
    while any(thread.is_alive() for thread in writers):
        with contextlib.suppress(ReplayDeadlineExceeded):  # the last one may have ended meanwhile
            client.sample_batch("t", BATCH, timeout_s=0.05)
