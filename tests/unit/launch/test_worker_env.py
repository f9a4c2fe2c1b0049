"""The environment of ranks on one machine."""

from __future__ import annotations

import os

from drivetrain.launch.worker_env import count_cores, env_for_a_while, make_worker_env


def test_engines_are_kept_on_loopback() -> None:
    """gloo, NCCL or TensorPipe would listen where the network can reach them."""
    env = make_worker_env({}, num_ranks=2, num_cores=8)
    assert {env[name] for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")} <= {"lo", "lo0"}


def test_ranks_share_the_cores() -> None:
    """Each rank would start a thread for every core."""
    assert make_worker_env({}, num_ranks=2, num_cores=8)["OMP_NUM_THREADS"] == "4"
    assert make_worker_env({}, num_ranks=8, num_cores=2)["OMP_NUM_THREADS"] == "1"


def test_what_the_user_has_set_is_left() -> None:
    """A choice made outside would be overruled."""
    env = make_worker_env({"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "3"}, num_ranks=2, num_cores=8)
    assert not {"GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS"} & set(env)


def test_ranks_know_their_launcher() -> None:
    """They could not end with it."""
    assert make_worker_env({}, num_ranks=1, num_cores=1)["DRIVETRAIN_LAUNCHER_PID"] == str(os.getpid())


def test_the_environment_is_as_it_was_after_a_while() -> None:
    """One test's variables would reach the next."""
    before = dict(os.environ)
    with env_for_a_while({"DRIVETRAIN_TEST_A": "1"}):
        os.environ["DRIVETRAIN_TEST_B"] = "2"
        assert os.environ["DRIVETRAIN_TEST_A"] == "1"
    assert dict(os.environ) == before


def test_cores_are_those_that_this_process_may_use() -> None:
    """A container with two of 64 cores would start 64 threads."""
    assert count_cores() >= 1
