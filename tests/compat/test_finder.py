"""The modules of other projects: provided in every interpreter, and never over a real one unasked."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import topology.compat

SITE = Path(topology.compat.__file__).parent / "site"
COMMAND = [sys.executable, "-m", "topology.compat"]


def write(directory, files):
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def run(*arguments, cwd, **environment):
    return subprocess.run(
        arguments, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=50, check=False
    )


def test_a_script_runs_as_under_python(tmp_path):
    write(tmp_path, {"a/script.py": "import sys\nprint(__name__, sys.argv, sys.path[0], 'launchpad' in sys.modules)\n"})
    plain = run(sys.executable, "a/script.py", "--x", "1", cwd=tmp_path)
    ours = run(*COMMAND, "a/script.py", "--x", "1", cwd=tmp_path)
    assert ours.stdout == plain.stdout != ""
    assert ours.returncode == 0, ours.stderr
    write(tmp_path, {"b/__init__.py": "", "b/tool.py": "import sys\nprint(__name__, sys.argv[1:])\nsys.exit(3)\n"})
    ours = run(*COMMAND, "-m", "b.tool", "y", cwd=tmp_path)
    assert (ours.stdout, ours.returncode) == ("__main__ ['y']\n", 3), ours.stderr


def test_interpreters_that_a_program_starts_have_the_modules_too(tmp_path):
    write(
        tmp_path,
        {
            "script.py": """
                import subprocess, sys
                code = "import launchpad, courier, reverb; print(launchpad.Program('x'))"
                subprocess.run([sys.executable, "-c", code])
                """,
            "early/sitecustomize.py": "print('the site of the program')",
        },
    )
    result = run(*COMMAND, "script.py", cwd=tmp_path, PYTHONPATH=str(tmp_path / "early"))
    assert result.stdout.count("the site of the program") == 3, result.stdout + result.stderr  # command, script, child
    assert "Program" in result.stdout


def test_folders_of_a_program_inside_those_names_are_found(tmp_path):
    write(
        tmp_path,
        {
            "launchpad/examples/mine.py": "HERE = 1",
            "launchpad/nodes/own.py": "HERE = 2",
            "script.py": """
                from launchpad.examples import mine
                from launchpad.nodes import own
                import launchpad
                print(mine.HERE, own.HERE, launchpad.CourierNode.__name__)
                """,
        },
    )
    result = run(*COMMAND, "script.py", cwd=tmp_path)
    assert result.stdout == "1 2 CourierNode\n", result.stderr


@pytest.mark.parametrize(("option", "expected"), [((), "real"), (("--shadow",), "ours")])
def test_a_real_installation_is_shadowed_only_when_asked(tmp_path, option, expected):
    write(
        tmp_path,
        {
            "launchpad/__init__.py": "WHO = 'real'",
            "launchpad/program.py": "",
            "script.py": "import launchpad\nprint(getattr(launchpad, 'WHO', 'ours'))",
        },
    )
    result = run(*COMMAND, *option, "script.py", cwd=tmp_path)
    assert result.stdout == expected + "\n", result.stderr


def test_what_is_not_provided_says_so(tmp_path):
    write(tmp_path, {"script.py": "import launchpad.launch.on_the_moon\n"})
    result = run(*COMMAND, "script.py", cwd=tmp_path)
    assert "launchpad.launch.on_the_moon is not among the modules that topology.compat provides" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "usage:"),
        (("-m",), "needs the name"),
        (("nowhere.py",), "no file 'nowhere.py'"),
        (("-z",), "unknown option"),
    ],
)
def test_a_wrong_command_line_is_refused(tmp_path, arguments, text):
    result = run(*COMMAND, *arguments, cwd=tmp_path)
    assert text in result.stderr
    assert result.returncode == 2


def test_a_package_with_relative_imports_and_a_module_beside_it(tmp_path):
    write(
        tmp_path,
        {
            "pkg/__init__.py": "",
            "pkg/parts.py": "import launchpad as lp\nNAME = lp.Program('relative').name",
            "pkg/main.py": "from .parts import NAME\nimport beside\nprint(NAME, beside.HERE, __package__)",
            "beside.py": "HERE = 1",
        },
    )
    result = run(*COMMAND, "-m", "pkg.main", cwd=tmp_path)
    assert result.stdout == "relative 1 pkg\n", result.stderr


def test_the_line_that_the_wheel_adds_to_every_interpreter(tmp_path):
    code = f"import site; site.addsitedir({str(SITE)!r}); import launchpad; print(launchpad.Program('x').name)"
    result = run(sys.executable, "-c", code, cwd=tmp_path, TOPOLOGY_COMPAT="1")
    assert result.stdout == "x\n", result.stderr
    result = run(sys.executable, "-c", code, cwd=tmp_path, TOPOLOGY_COMPAT="0")
    assert "No module named 'launchpad'" in result.stderr


def test_pytest_has_them_before_it_collects(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)  # of whoever runs this test
    write(
        tmp_path,
        {
            "test_mine.py": """
                import launchpad as lp

                def node():
                    lp.stop()

                def test_program():
                    program = lp.Program("test")
                    program.add_node(lp.PyNode(node), label="node")
                    lp.launch(program, "test_mt").wait()
                """
        },
    )
    options = ("-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path))
    plugin = ("-p", "topology.compat.pytest_plugin")
    result = run(sys.executable, "-m", "pytest", *plugin, *options, "test_mine.py", cwd=tmp_path)
    assert "1 passed" in result.stdout, result.stdout + result.stderr


def test_install_and_uninstall_leave_the_process_as_it_was(tmp_path):
    write(
        tmp_path,
        {
            "script.py": """
                import os, sys
                from topology import compat
                before = dict(os.environ)
                compat.install()
                compat.install()
                with compat.provided():
                    import launchpad
                assert compat.is_installed()
                compat.uninstall()
                assert not compat.is_installed()
                assert dict(os.environ) == before
                with compat.provided():
                    import courier
                assert not compat.is_installed()
                sys.modules["reverb"] = os
                try:
                    compat.install(shadow=True)
                except ImportError as error:
                    print(error)
                """
        },
    )
    environment = {name: value for name, value in os.environ.items() if name not in {"TOPOLOGY_COMPAT", "PYTHONPATH"}}
    result = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert "reverb was imported already" in result.stdout, result.stderr


def test_nothing_is_provided_without_being_asked(tmp_path):
    result = run(sys.executable, "-c", "import topology\nimport launchpad", cwd=tmp_path)
    assert "No module named 'launchpad'" in result.stderr


# As TensorFlow does: it takes the module that is there, or makes one, and binds names of its own that must be free.
BINDS = """
import sys, types
module = sys.modules.setdefault("pybind11_abseil.status", types.ModuleType("pybind11_abseil.status"))
for name in ("StatusNotOk", "StatusCode", "is_ok"):
    assert name not in vars(module), f"{name} is already defined"
    setattr(module, name, object())
"""
USES = """
from pybind11_abseil.status import StatusCode, StatusNotOk
import pybind11_abseil.status
from pybind11_abseil import status
assert status is pybind11_abseil.status
assert status.StatusNotOk is StatusNotOk and issubclass(StatusNotOk, Exception)
"""


@pytest.mark.parametrize(
    "parts",
    [[USES], [BINDS, USES], [USES, BINDS, USES], ["import courier, launchpad, reverb", BINDS, USES]],
    ids=["alone", "after", "before", "between"],
)
@pytest.mark.parametrize("installs", ["from the start", "when asked", "late"])
def test_statuses_are_ours_whoever_else_binds_them(tmp_path, parts, installs):
    install = "import topology.compat; topology.compat.install()"
    late = installs == "late" and parts[0] is BINDS
    script = [BINDS, install, *parts[1:]] if late else [install, *parts] if installs != "from the start" else parts
    end = [
        "import courier",
        "server = courier.Server(); server.Bind('fail', lambda: 1 / 0); server.Start()",
        "try: courier.Client(f'localhost:{server.port}').fail()",
        "except StatusNotOk as error: print(error.code is StatusCode.UNKNOWN, hasattr(status, 'is_ok'))",
        "server.Stop()",
    ]
    write(tmp_path, {"script.py": ""})
    (tmp_path / "script.py").write_text("\n".join([*script, *end]))
    result = run(*(COMMAND if installs == "from the start" else [sys.executable]), "script.py", cwd=tmp_path)
    assert result.stdout == f"True {BINDS in parts}\n", result.stderr


def test_what_another_one_bound_stays_when_nothing_is_provided_any_more(tmp_path):
    script = f"""
import topology.compat
topology.compat.install()
{BINDS}
topology.compat.uninstall()
left = vars(sys.modules["pybind11_abseil.status"])
print(type(left["StatusNotOk"]).__name__, type(sys.modules["pybind11_abseil.status"]).__name__)
del sys.modules["pybind11_abseil.status"]
with topology.compat.provided():
    from pybind11_abseil.status import StatusNotOk
print("pybind11_abseil.status" in sys.modules)
"""
    write(tmp_path, {"script.py": script})
    result = run(sys.executable, "script.py", cwd=tmp_path)
    assert result.stdout == "object module\nFalse\n", result.stderr
