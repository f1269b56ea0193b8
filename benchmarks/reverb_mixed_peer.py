"""Four writers and one sampler on the real Reverb at the same time: run by `replay.py`, with the peer's python.

    python reverb_mixed_peer.py FOLDER_OF_PEERS --items small --writers 4 --count 5000

Prints one JSON line: items inserted and sampled per second while all writers write.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

BATCH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", type=Path)
    parser.add_argument("--items", default="small")
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--count", type=int, default=5000)
    options = parser.parse_args()
    sys.path.insert(0, str(options.peers))
    import reverb
    import reverb_peer
    import tensorflow as tf

    server = reverb_peer.Server("uniform")
    reverb_peer.write(reverb.Client(server.address), options.items, 300)
    step = reverb_peer.steps(options.items)[0]
    # As the peer's own script reads: the fastest way found.
    batches = iter(
        reverb.TrajectoryDataset(
            server.address,
            "table",
            dtypes={key: tf.as_dtype(value.dtype) for key, value in step.items()},
            shapes={key: tf.TensorShape([1, *value.shape]) for key, value in step.items()},
            max_in_flight_samples_per_worker=64,
            num_workers_per_iterator=4,
        )
        .batch(BATCH, drop_remainder=True)
        .prefetch(4)
        .as_numpy_iterator()
    )
    for _ in range(6):
        next(batches)
    script = [sys.executable, str(options.peers / "reverb_peer.py"), "--role", "writer", "--address", server.address]
    script += ["--items", options.items, "--count", str(options.count)]
    writers = [
        subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(options.writers)
    ]
    done, start = 0, time.perf_counter()
    while all(writer.poll() is None for writer in writers):
        next(batches)
        done += BATCH
    sampled = done / (time.perf_counter() - start)
    inserted = sum(float(writer.communicate()[0]) for writer in writers)
    print(json.dumps({"inserted_per_s": inserted, "sampled_per_s": sampled}), flush=True)


if __name__ == "__main__":
    main()
