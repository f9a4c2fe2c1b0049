"""What a loop costs around a tiny model on 2 DDP ranks, per step.

python -m benchmarks.ddp_overhead [--rounds 7] [--steps 2000] [--peers raw,drivetrain_bare] [--out FILE.md]
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.overhead import compare
from benchmarks.peers import Peer
from benchmarks.two_ranks import free_port, launch_command

PEERS = (
    Peer("raw", "hand-written DDP"),
    Peer("drivetrain_loop", "drivetrain Fabric, raw loop", "drivetrain"),
    Peer("drivetrain_bare", "drivetrain Trainer, bare", "drivetrain"),
    Peer("drivetrain_synced", "drivetrain Trainer, one value with sync_dist", "drivetrain"),
    Peer("lightning_bare", "Lightning Trainer, bare", "lightning"),
    Peer("lightning_synced", "Lightning Trainer, one value with sync_dist", "lightning"),
)


def command_of(name: str, num_steps: int) -> list[str]:
    """The command line of one measurement."""
    return launch_command("benchmarks.ddp_loops", [name, "--steps", str(num_steps)], port=free_port())


def main(arguments: Sequence[str] | None = None) -> str:
    """Measure, print the section, write it if asked; return it."""
    return compare(
        arguments,
        name="ddp_overhead",
        title="Cost of a step on 2 ranks",
        peers=PEERS,
        command_of=command_of,
        what="64-128-10 perceptron, batch 32 on each of 2 gloo ranks, SGD, no workers, one thread a rank",
        num_steps=2000,
    )


if __name__ == "__main__":
    main()
