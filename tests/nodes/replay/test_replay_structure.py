import dataclasses
import pickle
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import pytest

from topology.nodes.replay.structure import Matcher, describe, flatten, leaf_count, paths, show_path, unflatten


class Step(NamedTuple):
    observation: object
    action: object


@dataclasses.dataclass(frozen=True)
class Extras:
    core_state: object
    logits: object


TREES = [
    1.0,
    {"b": 1, "a": 2},
    [1, (2, {"x": 3})],
    Step({"pixels": 1, "joints": (2, 3)}, 4),
    Extras([1], Step(2, 3)),
    {"empty": {}, "more": [], "leaf": None},
    OrderedDict(a=1, z=2),
    (),
]


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_round_trip_keeps_types(tree):
    leaves, shape = flatten(tree)
    again = unflatten(pickle.loads(pickle.dumps(shape)), leaves)
    assert again == tree
    assert type(again) is type(tree)
    assert leaf_count(shape) == len(leaves) == len(paths(shape))
    assert flatten(again)[1] == shape


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_a_matcher_takes_apart_trees_of_its_shape_and_no_others(tree):
    leaves, shape = flatten(tree)
    matcher = Matcher(shape)
    assert list(matcher.leaves(tree)) == leaves
    for other in [*TREES, {"b": 1, "a": {}}, {"b": 1, "c": 2}, {"b": 1}, [1, (2, {"y": 3})], [1], (1, 2)]:
        if flatten(other)[1] == shape:
            assert list(matcher.leaves(other)) == flatten(other)[0]
        else:
            assert matcher.leaves(other) is None


def test_leaves_come_in_the_order_of_sorted_keys():
    leaves, shape = flatten({"b": [1, 2], "a": Step(3, 4)})
    assert leaves == [3, 4, 1, 2]
    assert list(map(show_path, paths(shape))) == ["a/observation", "a/action", "b/0", "b/1"]


def test_arrays_and_none_are_leaves():
    array = np.zeros(3)
    leaves, shape = flatten({"a": array, "n": None, "s": "text"})
    assert leaves[0] is array
    assert leaves[1:] == [None, "text"]
    assert describe(shape) == "dict(a=*, n=*, s=*)"


def test_shapes_tell_container_types_apart():
    assert describe(flatten([1])[1]) != describe(flatten((1,))[1])
    assert describe(flatten(Step(1, 2))[1]).endswith("Step(observation=*, action=*)")


def test_wrong_number_of_leaves():
    with pytest.raises(ValueError, match=r"dict\(a=\*\) has 1 leaves, got 2"):
        unflatten(flatten({"a": 0})[1], [1, 2])
