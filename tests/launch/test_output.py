"""Lines out of bytes."""

from __future__ import annotations

import errno
import io
import itertools
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.output import LineSplitter, OutputPump, Terminal, prefix, write_all


def split(*chunks: bytes) -> list[bytes]:
    splitter = LineSplitter()
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.finish()


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a", b"b\nc"], [b"ab", b"c"]),
        ([b"\n\na\n"], [b"", b"", b"a"]),
        ([b"a\r\nb\r\n"], [b"a", b"b"]),
        ([b"a\r", b"\nb"], [b"a", b"b"]),
        ([b"\r10%\r20%\r30%"], [b"20%", b"30%"]),  # progress: the newest whole one
        ([b"10%\r", b"20%\r", b"100%\n"], [b"10%", b"100%"]),
        ([b"10%\r100%\ndone"], [b"100%", b"done"]),
        ([], []),
    ],
)
def test_lines(chunks: list[bytes], lines: list[bytes]) -> None:
    assert split(*chunks) == lines


@given(st.binary(max_size=200).filter(lambda data: b"\r" not in data), st.lists(st.integers(0, 200)))
def test_where_chunks_end_makes_no_difference(data: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    chunks = [data[a:b] for a, b in itertools.pairwise(places)]
    lines = split(*chunks)
    assert lines == split(data)
    assert b"\n".join(lines) == data.removesuffix(b"\n") or data == b"\n"


def test_a_very_long_line_is_cut() -> None:
    lines = split(*[b"x" * 300_000] * 8, b"\nend")
    assert [len(line) for line in lines] == [1 << 20, 1 << 20, 2_400_000 - (2 << 20), 3]


def test_prefix() -> None:
    assert prefix("actor/3", coloured=False) == "[actor/3] "
    coloured = prefix("actor/3", coloured=True)
    assert coloured.startswith("\x1b[")
    assert coloured.endswith("[actor/3]\x1b[0m ")
    assert coloured == prefix("actor/3", coloured=True) != prefix("actor/4", coloured=True)


class Recorder:
    """A terminal that keeps what it gets."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, bytes]] = []

    def write(self, name: str, lines: list[bytes]) -> None:
        self.lines += [(name, line) for line in lines]


def test_the_pump_reads_to_the_end_and_appends_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"before\n")
    recorder = Recorder()
    pump = OutputPump(recorder)  # type: ignore[arg-type]
    reader, writer = os.pipe()
    pump.add("a/0", reader, log)
    os.write(writer, b"one\ntwo")
    os.close(writer)
    pump.close()
    assert recorder.lines == [("a/0", b"one"), ("a/0", b"two")]
    assert log.read_bytes() == b"before\none\ntwo"


def test_the_pump_does_not_wait_for_ever_for_a_pipe_that_somebody_keeps(tmp_path: Path) -> None:
    recorder = Recorder()
    pump = OutputPump(recorder)  # type: ignore[arg-type]
    reader, writer = os.pipe()
    pump.add("a/0", reader, None)
    os.write(writer, b"partial")
    pump.close(timeout_s=0.05)
    os.close(writer)
    assert recorder.lines == [("a/0", b"partial")]


def test_an_unwritable_log_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder()
    pump = OutputPump(recorder)  # type: ignore[arg-type]
    for name in ("a/0", "a/1"):
        reader, writer = os.pipe()
        pump.add(name, reader, tmp_path / "missing" / "log")
        os.write(writer, b"shown\n")
        os.close(writer)
    pump.close()
    assert sorted(recorder.lines) == [("a/0", b"shown"), ("a/1", b"shown")]
    assert capsys.readouterr().err.count("cannot be written") == 1


def test_a_terminal_that_cannot_show_every_character(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    Terminal().write("a/0", ["größe".encode(), b"\xff"])
    sys.stdout.flush()
    assert raw.getvalue() == b"[a/0] gr??e\n[a/0] ?\n"


def test_a_broken_terminal_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    broken = open(writer, "w")  # noqa: SIM115
    monkeypatch.setattr(sys, "stdout", broken)
    terminal = Terminal()
    for _ in range(3):
        terminal.write("a/0", [b"line"])
    with pytest.raises(BrokenPipeError):
        broken.close()


def test_a_terminal_that_breaks_over_a_character_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.TextIOWrapper):
        is_full = True

        def flush(self) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")

    full = Full(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", full)
    terminal = Terminal()
    terminal.write("a/0", ["é".encode()])
    terminal.write("a/0", [b"more"])
    full.is_full = False  # it is flushed once more when it is forgotten


def test_a_full_disk_takes_a_part() -> None:
    class NearlyFull(io.RawIOBase):
        taken = b""

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            if len(self.taken) == 5:
                raise OSError(errno.ENOSPC, "No space left on device")
            part = bytes(data)[: min(3, 5 - len(self.taken))]
            self.taken += part
            return len(part)

    file = NearlyFull()
    write_all(file, b"1234")  # type: ignore[arg-type]
    assert file.taken == b"1234"
    with pytest.raises(OSError, match="No space"):
        write_all(file, b"56")  # type: ignore[arg-type]
