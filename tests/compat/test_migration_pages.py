"""The migration pages are true: what they list is there unless they say that it is missing, and nothing is left out."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from topology import compat
from topology.compat import provided
from topology.compat.instead import NAMES, module_hint
from topology.compat.reverb.missing import GONE, has_tensorflow

with provided():
    import courier
    import launchpad as lp
    import reverb
    from absl import flags

pytestmark = pytest.mark.usefixtures("provided")

DOCS = Path(__file__).parents[2] / "docs" / "migration"
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PAGES = {name: BLOCK.sub("", (DOCS / f"{name}.md").read_text()) for name in ("launchpad", "reverb")}
CODE = re.compile(r"`([^`]+)`")

# The public names of the originals, by the module or class that has them.
ORIGINALS = {
    "launchpad": "AbstractAddressBuilder Address CacherNode Controller CourierClient CourierHandle CourierNode "
    "Deferred DockerConfig LAUNCH_TYPE LaunchType LazyModule MultiProcessingColocation MultiThreadingColocation "
    "Program PyClassNode PyNode PythonProcess ReverbHandle ReverbNode SimpleLocalAddressBuilder WorkerManager "
    "batched_handler get_port_from_address is_local_launch is_local_launch_or_test launch make_program "
    "make_program_stopper register_stop_handler stop stop_event unregister_stop_handler "
    "wait_for_stop "  # of the package
    "add_node create_handle dereference get_all_nodes group groups name "  # programs, handles
    "configure disable_run enable_run courier_kwargs courier_client_kwargs set_client_kwargs set_courier_server "
    "return_on_first_completed num_retries_on_failure allocate_address input_handles to_executables bind_addresses "
    "default_launch_config launch_context get_context set_context "  # nodes
    "xm_resources local_resources test_case terminal serialize_py_nodes controller_xm_requirements "
    "interpreter_args args env VERTEX_AI LOCAL_DOCKER local_mp current_terminal output_to_files tmux_session wait "
    "LAUNCHPAD_LAUNCH_LOCAL_TERMINAL LAUNCHPAD_LOGGING_DIR --lp_launch_type --lp_termination_notice_secs "
    "--tmux_open_window --tmux_session_name --lp_worker_manager_v2 --lp_worker_manager_registers_signals "  # launches
    "Client Server futures list_methods call_timeout wait_for_ready compress thread_pool_size Bind BindHandler "
    "BindCacher Unbind Start Stop Join port address has_started SetIsHealthy StatusNotOk",  # courier
    "reverb": "Client DeadlineExceededError PatternDataset ReplayDataset ReplaySample ReverbError Sample SampleInfo "
    "Server StructuredWriter TFClient Table TableInfo TimestepDataset TrajectoryColumn TrajectoryDataset "
    "TrajectoryWriter Writer checkpointers errors item_selectors pybind rate_limiters reverb_types selectors "
    "server_executable structured_writer "  # of the package
    "Fifo Lifo MaxHeap MinHeap Prioritized Uniform MinSize Queue RateLimiter SampleToInsertRatio Stack "
    "queue stack replace can_sample can_insert info max_times_sampled extensions signature "  # tables
    "insert writer trajectory_writer structured_writer sample mutate_priorities reset checkpoint server_info "
    "server_address localhost_client port stop wait emit_timesteps unpack_as_table_signature "  # clients, servers
    "key probability table_size priority times_sampled tf_dtypes tf_shapes zeros current_size num_unique_samples "
    "sampler_options remover_options rate_limiter_info table_worker_time num_episodes num_deleted_episodes "
    "SelectorType SpecNest CheckpointerBase DefaultCheckpointer TempDirCheckpointer default_checkpointer "  # values
    "append partial_step history create_item flush end_episode episode_steps step_is_open configure close "
    "append_sequence create_config create_reference_step infer_signature pattern_from_transform unpack_pattern "
    "Condition Config Pattern PatternNode PatternTransform ReferenceStep step_index steps_since_applied is_end_episode "
    "data max_chunk_length delta_encoded timeout_ms "  # writers
    "from_table_signature max_in_flight_samples_per_worker num_workers_per_iterator max_samples max_samples_per_stream "
    "rate_limiter_timeout_ms pattern_dataset_with_info update_priorities TableExtensionBase",
}


def rows(page: str) -> Iterator[tuple[str, str]]:
    """Both cells of every row of the tables that say what is here."""
    body = page.partition("## Acme")[0].partition("## How fast")[0]
    section = ""
    for line in body.splitlines():
        section = line if line.startswith("## ") else section
        cells = line.strip("| ").split(" | ")
        if line.startswith("| ") and len(cells) == 2 and cells[0]:
            yield cells[0], "missing" if section == "## Missing" else cells[1]


def words(text: str) -> set[str]:
    """Every name in the code of a text."""
    return set(re.findall(r"--\w+|\w+", " ".join(CODE.findall(text))))


@pytest.mark.parametrize("page", PAGES)
def test_every_name_of_the_original_is_on_its_page(page: str) -> None:
    assert sorted(set(ORIGINALS[page].split()) - words(PAGES[page])) == []


# --- what is listed is there -----------------------------------------------------------------------------------------

WHERE = {
    "launchpad": "launchpad courier launchpad.context launchpad.launch.worker_manager launchpad.nodes.base "
    "launchpad.nodes.dereference",
    "reverb": "reverb reverb.reverb_types reverb.server reverb.cc.patterns_pb2 reverb.structured_writer "
    "reverb.item_selectors reverb.rate_limiters reverb.errors reverb.platform.checkpointers_lib "
    "reverb.platform.default.checkpointers reverb.trajectory_dataset reverb.timestep_dataset",
}
"""The modules that have the names of a page."""

TENSORFLOWS = {"reverb": ["reverb.pattern_dataset", "reverb.tf_client"] if has_tensorflow() else []}
OF_OBJECTS = {"breakpoint", "client", "method", "node", "Worker", "_server", "episode_steps", "groups", "port", "n"}
"""What first cells name of objects, which their classes do not show, and of the examples in them."""
NEED_TENSORFLOW = {"PatternDataset", "TFClient", "pattern_dataset", "pattern_dataset_with_info", "tf_client"}


def modules_of(page: str) -> list[ModuleType]:
    return [importlib.import_module(name) for name in [*WHERE[page].split(), *TENSORFLOWS.get(page, [])]]


def parameters(function: Any) -> list[str]:
    try:
        return [name for name in inspect.signature(function).parameters if name != "self"]
    except (TypeError, ValueError):
        return []


def callables(page: str) -> Iterator[tuple[str, Any]]:
    """Functions, classes and methods of classes, by name."""
    for module in modules_of(page):
        for name, value in vars(module).items():
            if callable(value):
                yield name, value
                methods = inspect.getmembers(value, callable) if inspect.isclass(value) else []
                yield from methods


def names_of(page: str) -> set[str]:
    """All that can be reached in the modules of a page, and the parameters of it."""
    found = {name for module in modules_of(page) for name in dir(module)}
    for module in modules_of(page):
        found |= {name for value in vars(module).values() if inspect.isclass(value) for name in dir(value)}
    found |= {name for _, function in callables(page) for name in parameters(function)}
    return found | {f"--{name}" for name in flags.FLAGS}


def is_module(name: str, page: str) -> bool:
    for top in (f"{page}.", "courier.", *([""] if name.startswith("courier.") else [])):
        try:
            importlib.import_module(f"{top}{name}")
        except (ModuleNotFoundError, ValueError):
            continue
        return True
    return False


@pytest.mark.parametrize("page", PAGES)
def test_what_is_listed_is_there_unless_it_is_missing(page: str) -> None:
    there, top = names_of(page), {name for module in modules_of(page)[:2] for name in dir(module)}
    skipped = OF_OBJECTS if has_tensorflow() else OF_OBJECTS | NEED_TENSORFLOW
    wrong = []
    for first, second in rows(PAGES[page]):
        is_missing = second.startswith("missing")
        for code in CODE.findall(first):
            whole = code.partition("(")[0].removeprefix("node.").removeprefix("client.")
            if is_missing:
                found = whole in top or ("*" not in whole and is_module(whole, page))
                wrong += [f"{code} is there: {first}"] if found and whole not in HALF_MISSING else []
            elif not is_module(whole, page):
                wrong += [f"{name}: {first}" for name in words(f"`{code}`") - skipped - there]
    assert wrong == []


HALF_MISSING = {"pybind", "patterns_pb2", "dataset.take"}  # their rows say what of them there is


@pytest.mark.parametrize(
    ("page", "call"),
    [
        (page, call)
        for page in PAGES
        for first, _ in rows(PAGES[page])
        for call in re.findall(r"`(\w+\(\w[^`]*)`", first)
    ],
)
def test_parameters_are_those_of_the_page(page: str, call: str) -> None:
    name, _, text = call.rstrip(")").partition("(")
    listed = [part.partition("=")[0] for part in text.split(", ")]
    if "n" in listed or "=" in text:
        return  # an example of a call
    found = [parameters(function) for known, function in callables(page) if known == name]
    assert listed in [names[: len(listed)] for names in found], found


# --- modules ---------------------------------------------------------------------------------------------------------


def test_every_module_that_is_provided_is_on_a_page() -> None:
    """As a deep path, or by the last part of its name."""
    root = Path(compat.__file__).parent / "modules"
    modules = {path.stem for path in root.rglob("*.py")} - {"__init__"}
    assert len(modules) > 20
    text = " ".join(PAGES.values()) + (DOCS.parent / "migration.md").read_text()
    assert [name for name in sorted(modules) if not re.search(rf"\b{name}\b", text)] == []


def deep_paths() -> list[str]:
    """Of the paragraph that lists them; `a.{b,c}` stands for two."""
    paragraph = PAGES["launchpad"].partition("Deep paths: ")[2].partition("What is not there")[0]
    own, _, of_courier = paragraph.partition("Of `courier`: ")
    listed = [f"launchpad.{path.removeprefix('launchpad.')}" for path in CODE.findall(own)]
    return [
        each for path in [*listed, *(f"courier.{path}" for path in CODE.findall(of_courier))] for each in spread(path)
    ]


def spread(path: str) -> list[str]:
    match = re.search(r"\{([^}]*)\}", path)
    if match is None:
        return [path]
    return [each for part in match[1].split(",") for each in spread(path[: match.start()] + part + path[match.end() :])]


@pytest.mark.parametrize("path", deep_paths())
def test_deep_paths_are_there(path: str) -> None:
    importlib.import_module(path)


def missing_modules() -> Iterator[str]:
    for page, text in PAGES.items():
        for first, second in rows(text):
            if second.startswith("missing") and "module" in first and "TableInfo" not in second:
                top = "courier" if "`python.router`" in first else page
                yield from (f"{top}.{name}" for name in CODE.findall(first) if not name[0].isupper())


@pytest.mark.parametrize("name", list(missing_modules()))
def test_modules_that_are_missing_say_what_to_use(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="is not among the modules"):
        importlib.import_module(name)
    if not name.startswith("reverb"):
        assert "docs/migration.md lists them" not in module_hint(name), "it says what to use"


def test_names_that_are_missing_say_what_to_use() -> None:
    for module, names, page in ((lp, NAMES, "launchpad"), (reverb, GONE, "reverb")):
        for name, use in names.items():
            with pytest.raises(AttributeError, match=re.escape(use)):
                getattr(module, name)
            assert name in words(PAGES[page]) or name == "ItemSelector"
    assert not hasattr(courier, "Router")
