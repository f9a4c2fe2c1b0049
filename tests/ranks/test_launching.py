"""Ranks of one machine, started as users start them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from drivetrain.testing.leaks import find_sockets
from tests.ranks.launched_programs import all_gone, descendants, finish, run, start, wait_for, write_script

pytestmark = pytest.mark.slow

HOLD = """
open(f"ready_{rank}", "w").close()
time.sleep(60)
"""
FUNCTION = """
import os
import torch
import torch.distributed as dist
from drivetrain.launch.launch_function import launch_function

class Thing:
    def __init__(self, value):
        self.value = value

offset = 10
unpicklable = lambda: os.environ["RANK"]

def main(scale, *, power):
    dist.init_process_group("gloo")
    total = torch.tensor(float(int(unpicklable()) + 1))
    dist.all_reduce(total)
    dist.destroy_process_group()
    return Thing(total ** power * scale + offset)

for how in HOW:
    things = launch_function(main, (2,), {"power": 2}, num_ranks=2, start=how)
    print(how, [thing.value.item() for thing in things], all(isinstance(thing, Thing) for thing in things))
"""


def test_a_script_runs_again_in_each_rank_with_its_arguments(tmp_path: Path) -> None:
    """`python train.py` would not use the devices, or lose its command line."""
    script = write_script(tmp_path, "print(rank, sys.argv, __name__, __file__, sys.path[0], sys.warnoptions)")
    code, out, err = run("train.py", "--name", "a$$b c", cwd=tmp_path)
    expected = f"['train.py', '--name', 'a$$b c'] __main__ {script} {tmp_path} ['error']"
    assert (code, sorted(out.splitlines()), err) == (0, [f"0 {expected}", f"1 {expected}"], "")


def test_a_module_runs_again_in_each_rank(tmp_path: Path) -> None:
    """`python -m package.train` would lose its package."""
    write_script(tmp_path, "print(rank, __name__, __package__, sys.argv[1:])", name="package/train.py")
    code, out, err = run("-m", "package.train", "x", cwd=tmp_path)
    assert (code, sorted(out.splitlines()), err) == (0, [f"{rank} __main__ package ['x']" for rank in (0, 1)], "")


def test_torchrun_starts_the_same_script(tmp_path: Path) -> None:
    """A script would launch once more inside ranks that torchrun has started."""
    write_script(tmp_path, "sys.stdout.write(f'{rank} {current_cluster().launched_by}\\n')")
    code, out, err = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py", cwd=tmp_path)
    assert (code, sorted(out.splitlines())) == (0, ["0 torchelastic", "1 torchelastic"]), err


@pytest.mark.parametrize("where", ["script", "prompt"])
def test_a_function_of_main_is_launched_and_its_results_come_back(tmp_path: Path, where: str) -> None:
    """A notebook could not train on several ranks, or a script only behind a `__main__` guard."""
    text = FUNCTION.replace("HOW", "('spawn', 'fork')")
    (tmp_path / "main.py").write_text(text)
    code, out, err = run("main.py", cwd=tmp_path) if where == "script" else run("-", cwd=tmp_path, stdin=text)
    assert (code, out.splitlines(), err) == (0, ["spawn [28.0, 28.0] True", "fork [28.0, 28.0] True"], "")


def test_without_a_script_the_way_out_is_named(tmp_path: Path) -> None:
    """A notebook would start its kernel again, or hang."""
    text = "from drivetrain.launch.launch_script import launch_script\nlaunch_script(2)\n"
    code, _, err = run(cwd=tmp_path, stdin=text)
    assert code == 1
    assert "LaunchError: [no-script]" in err and "ddp_notebook" in err and "fabric.launch(main)" in err


def test_the_first_failing_rank_is_the_last_thing_on_the_screen(tmp_path: Path) -> None:
    """The cause would have to be looked for among what the other ranks say because of it."""
    write_script(tmp_path, "if rank == 1:\n    raise ValueError('the cause')")
    process = start("train.py", cwd=tmp_path)
    code, _, err = finish(process)
    assert code == 1
    assert err.splitlines()[-1] == "    ValueError: the cause"
    assert "[rank-failed] rank 1 of 2 failed: ValueError: the cause" in err
    assert f'File "{tmp_path / "train.py"}", line' in err.split("rank-failed")[1]
    assert "Connection" not in err and "elastic" not in err


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("os._exit(0)", "rank 1 of 2 left with exit code 0 before it had finished"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 of 2 was killed by SIGKILL"),
    ],
)
def test_a_rank_that_ends_without_a_word_is_a_failure(tmp_path: Path, how: str, text: str) -> None:
    """Half of a training would count as success, or the survivor's error as the cause."""
    write_script(tmp_path, f"if rank == 1:\n    {how}")
    code, _, err = run("train.py", cwd=tmp_path)
    assert code == 1
    assert text in err


def test_a_survivor_that_ignores_sigterm_does_not_keep_a_failed_run_alive(tmp_path: Path) -> None:
    """A crash would hold the machine until somebody looks."""
    body = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.barrier()
    open(f"ready_{rank}", "w").close()
    if rank == 1:
        raise ValueError("the cause")
    time.sleep(60)
    """
    write_script(tmp_path, "if True:" + body.replace("\n    ", "\n        "))
    process = start("train.py", cwd=tmp_path)
    wait_for(tmp_path / "ready_*")
    pids = descendants(process)
    code, _, err = finish(process, timeout_s=10)
    assert (code, err.splitlines()[-1], all_gone(pids, within_s=0)) == (1, "    ValueError: the cause", [])


def test_killing_the_launcher_leaves_nothing(tmp_path: Path) -> None:
    """Ranks and their data workers would hold devices for ever."""
    loader = "loader = iter(torch.utils.data.DataLoader(range(9), num_workers=1))\nnext(loader)\n"
    write_script(tmp_path, loader + HOLD)
    process = start("train.py", cwd=tmp_path)
    wait_for(tmp_path / "ready_*")
    pids = descendants(process)
    assert len(pids) == 4
    process.kill()
    left = all_gone(pids, within_s=3)
    finish(process)
    assert left == []


def test_nothing_listens_beyond_loopback(tmp_path: Path) -> None:
    """The network could reach the launcher's store or the ranks."""
    write_script(tmp_path, HOLD)
    process = start("train.py", cwd=tmp_path)
    wait_for(tmp_path / "ready_*")
    sockets = [text for pid in (process.pid, *descendants(process)) for text in find_sockets(pid).values()]
    process.kill()
    finish(process)
    listening = [text for text in sockets if text.endswith("LISTEN")]
    assert listening
    assert [text for text in listening if not text.startswith("127.0.0.1:")] == []


def test_sigterm_is_passed_on_and_the_code_of_all_ranks_comes_back(tmp_path: Path) -> None:
    """A preempted run could not save, or would look like a failure."""
    body = """
    def stop(*_):
        open(f"saved_{rank}", "w").close()
        sys.exit(75)
    signal.signal(signal.SIGTERM, stop)
    """
    write_script(tmp_path, "if True:" + body.replace("\n    ", "\n        ") + HOLD.replace("\n", "\n        "))
    process = start("train.py", cwd=tmp_path)
    wait_for(tmp_path / "ready_*")
    process.terminate()
    code, _, err = finish(process, timeout_s=15)
    assert (code, err) == (75, "")
    assert len(list(tmp_path.glob("saved_*"))) == 2


def test_sigterm_ends_a_launcher_whose_ranks_do_not_mind(tmp_path: Path) -> None:
    """`kill` would have to be `kill -9`, and the caller would not see the signal."""
    write_script(tmp_path, HOLD)
    process = start("train.py", cwd=tmp_path)
    wait_for(tmp_path / "ready_*")
    pids = descendants(process)
    process.terminate()
    code, _, _ = finish(process, timeout_s=15)
    assert (code, all_gone(pids, within_s=1)) == (-signal.SIGTERM, [])


def test_an_interrupt_ends_the_ranks_and_reaches_the_program(tmp_path: Path) -> None:
    """Ctrl-C would leave ranks behind, or end a notebook with them."""
    (tmp_path / "main.py").write_text(
        "import time\n"
        "from drivetrain.launch.launch_function import launch_function\n"
        "def hold():\n"
        "    import os\n"
        "    open('ready_' + os.environ['RANK'], 'w').close()\n"
        "    time.sleep(60)\n"
        "try:\n"
        "    launch_function(hold, num_ranks=2)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted, and still here')\n"
    )
    process = start("main.py", cwd=tmp_path)
    wait_for(tmp_path / "ready_*")
    pids = descendants(process)
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process, timeout_s=15)
    assert (code, out, err, all_gone(pids, within_s=1)) == (0, "interrupted, and still here\n", "", [])


def test_launches_at_the_same_time_do_not_meet(tmp_path: Path) -> None:
    """A second job on the machine would find its port taken, or join the first."""
    write_script(tmp_path, "print(rank)")
    processes = [start("train.py", cwd=tmp_path) for _ in range(5)]
    ends = [finish(process, timeout_s=100) for process in processes]
    assert [(code, sorted(out.split()), err) for code, out, err in ends] == [(0, ["0", "1"], "")] * 5


def test_a_rank_that_launches_is_told_so(tmp_path: Path) -> None:
    """Ranks would start ranks without end."""
    (tmp_path / "train.py").write_text("from drivetrain.launch.launch_script import launch_script\nlaunch_script(2)\n")
    code, _, err = run("train.py", cwd=tmp_path)
    assert code == 1
    assert "[launched-twice]" in err and "asked to start 2 more" in err
