"""The product's processes, forked from one that has loaded it: its imports take a second, and the tests start hundreds.

`program("cli")` is a file to run in place of `python -m perdure.cli`. It is a stand-in, which any parent may start, be
it a shell: it gives all that it was given to the process that has loaded the product, and the child that this forks is
the command. The stand-in passes signals on, takes the command along when it is killed, and ends as the command ends.
But its pid is not the command's, which is in a session of its own and has no controlling terminal.

What Python does at its start a fork cannot do otherwise: with a variable that is read then, or with a closed standard
stream, the stand-in becomes a new Python.
"""

import atexit
import gc
import marshal
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parent.parent
PROGRAMS = {"cli": ("perdure.cli", "main"), "worker": ("perdure.process.worker", "run_worker_program")}
A_CALL = "from {0} import {1}; {1}()"
READ_AT_START = ("PYTHON", "LC_", "LANG", "TZ")
HARMLESS = "PYTHONDONTWRITEBYTECODE"
A_NEW_PYTHON = {"PYTHONHASHSEED": "random"}  # what it is without it
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGWINCH)
# The kernel ends the path in a first line at a blank, and cuts a long one, so it names a link in a folder of ours.
# A shell finds that folder first: a link named `python` would be its `python`, without the packages of the environment.
LINK = "interpreter"
STAND_IN = """\
#!{link} -IS
import sys
sys.executable = {python!r}
sys.path.append({here!r})
import preloaded
preloaded.stand_in({address!r}, {name!r}, {start!r})
"""
MAX_FOLDER = 60  # characters, with which a first line and a socket's address are short enough everywhere
Given = tuple[str, list[str], dict[str, str], list[int], int]


def start_of(environment: Mapping[str, str]) -> dict[str, str]:
    """What of it Python reads at its start."""
    return {k: v for k, v in environment.items() if k.startswith(READ_AT_START) and k != HARMLESS}


# Of the tests' process.


def program(name: str) -> str:
    """To run in place of `python {name}.py`."""
    with _one_at_a_time:
        return _program(name)


_one_at_a_time = threading.Lock()  # threads that ask at once would each have one made


@cache
def _program(name: str) -> str:
    folder = _loaded()
    start = start_of(os.environ)
    place = folder / {"cli": "perdure"}.get(name, name)
    text = STAND_IN.format(
        link=folder / LINK,
        python=sys.executable,
        here=str(Path(__file__).parent),
        address=str(folder / "socket"),
        name=name,
        start=start,
    )
    place.write_text(text, encoding="utf-8")
    place.chmod(0o700)
    return str(place)


@cache
def _loaded() -> Path:
    """The folder of a process that loads the product. It ends with this one, which holds its standard input open."""
    import subprocess
    import tempfile

    folder = tempfile.TemporaryDirectory(prefix="preloaded-", dir=short_folder(tempfile.gettempdir(), "/tmp"))
    (Path(folder.name) / LINK).symlink_to(sys.executable)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(f"{folder.name}/socket")
        door.listen(100)
        process = subprocess.Popen(
            [sys.executable, __file__, str(door.fileno())],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[door.fileno()],
            start_new_session=True,  # a Ctrl-C is for the tests
        )

    def end() -> None:
        with process:
            pass
        folder.cleanup()

    atexit.register(end)
    return Path(folder.name)


def short_folder(*folders: str) -> str:
    """The first whose path can stand in a script's first line and in a socket's address."""
    return next(folder for folder in folders if len(folder) <= MAX_FOLDER and not any(map(str.isspace, folder)))


# Of the stand-in, which imports little, as it is there to be quick.


def stand_in(address: str, name: str, start: Mapping[str, str]) -> NoReturn:
    if start_of(os.environ) != start or None in (sys.stdin, sys.stdout, sys.stderr):
        os.execv(sys.executable, [sys.executable, "-Pc", A_CALL.format(*PROGRAMS[name]), *sys.argv[1:]])  # noqa: S606 - itself
    ignored = [number for number in PASSED_ON if signal.getsignal(number) is signal.SIG_IGN]
    mask = os.umask(0)
    given: Given = (name, sys.argv[1:], dict(os.environ), [int(number) for number in ignored], mask)
    message = marshal.dumps(given)
    with socket.socket(socket.AF_UNIX) as command:
        command.connect(address)
        socket.send_fds(command, [len(message).to_bytes(4)], [0, 1, 2, os.open(".", os.O_RDONLY)])
        command.sendall(message)
        for number in PASSED_ON:
            signal.signal(number, lambda number, _: command.send(bytes([number])))
        message = command.recv(4)
    if not message:
        sys.exit("the process that has loaded the product is gone")
    code = int.from_bytes(message, signed=True)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


# Of the process that has loaded the product.


def load() -> None:
    """Everything that a command may import, and nothing that it would find to be otherwise."""
    sys.path[0] = str(ROOT)
    for name in (*(module for module, _ in PROGRAMS.values()), "anthropic.resources.messages"):
        import_module(name)
    for path in (ROOT / "perdure" / "commands").rglob("[!_]*.py"):
        import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for name in [name for name in sys.modules if name.startswith(("perdure.commands", "perdure.terminal"))]:
        del sys.modules[name]  # they look at their terminal as they are loaded
    if threading.active_count() > 1:
        raise RuntimeError("an import has started a thread, which no fork would have")
    gc.collect()
    gc.freeze()  # a look at an object would copy its page


def serve(door: socket.socket) -> Callable[[], object]:
    """Forks a child for each stand-in that comes, and returns only there: with what the child is to run."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    stand_ins: dict[int, socket.socket] = {}  # by the pid of the command
    while True:
        ready, _, _ = select.select([sys.stdin, woken, door, *stand_ins.values()], [], [])
        if sys.stdin in ready:  # the tests are over
            for pid in stand_ins:
                os.kill(pid, signal.SIGKILL)
            sys.exit()
        if woken in ready:
            os.read(woken, 4096)  # that somebody ended: see below
        for pid in [pid for pid, stand_in in stand_ins.items() if stand_in in ready]:
            _pass_on(stand_ins[pid], pid)
        if door in ready:
            stand_in, _ = door.accept()
            given, descriptors = _given(stand_in)
            if given:
                pid = os.fork()
                if not pid:
                    return _become(given, descriptors)
                stand_ins[pid] = stand_in
            for descriptor in descriptors:
                os.close(descriptor)
        _tell_ends(stand_ins)


def _pass_on(stand_in: socket.socket, pid: int) -> None:
    """Its signals. One that is gone was killed."""
    numbers = b""
    with suppress(ConnectionResetError):
        numbers = stand_in.recv(100)
    for number in numbers or [signal.SIGKILL]:
        os.kill(pid, number)


def _given(stand_in: socket.socket) -> tuple[Given | None, list[int]]:
    """None from one that was killed before it had said everything."""
    length, descriptors, _, _ = socket.recv_fds(stand_in, 4, 4)
    message = stand_in.recv(int.from_bytes(length), socket.MSG_WAITALL) if length else b""
    is_all = message and len(message) == int.from_bytes(length)
    return marshal.loads(message) if is_all else None, descriptors  # noqa: S302 - a file of ours has written it


def _tell_ends(stand_ins: dict[int, socket.socket]) -> None:
    while stand_ins and any(ended := os.waitpid(-1, os.WNOHANG)):
        with stand_ins.pop(ended[0]) as stand_in, suppress(OSError):  # it may be gone, too
            stand_in.send(os.waitstatus_to_exitcode(ended[1]).to_bytes(4, signed=True))


def _become(given: Given, descriptors: list[int]) -> Callable[[], object]:
    name, args, environment, ignored, mask = given
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    os.umask(mask)
    os.fchdir(descriptors[3])
    for place in range(3):
        os.dup2(descriptors[place], place)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(environment)
    sys.dont_write_bytecode = bool(environment.get(HARMLESS))
    sys.argv = [str(ROOT / f"{name}.py"), *args]
    sys.stdin, sys.stdout, sys.stderr = (
        open(place, mode, buffering, encoding=was.encoding, errors=was.errors, closefd=False)  # noqa: SIM115 - they stay
        for place, (was, mode, buffering) in enumerate(
            ((sys.stdin, "r", -1), (sys.stdout, "w", -1), (sys.stderr, "w", 1))
        )
    )
    module, function = PROGRAMS[name]
    run: Callable[[], object] = getattr(import_module(module), function)
    return run


if __name__ == "__main__":
    load()
    serve(socket.socket(fileno=int(sys.argv[1])))()
