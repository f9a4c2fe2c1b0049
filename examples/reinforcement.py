"""A policy learns to balance a pole on a cart: policy gradients (REINFORCE) in a loop of one's own.

The environment is a few lines of physics for many carts at once. Each rank drives its own carts, which begin otherwise
than those of the others; one window is one optimizer step, on the mean over all moves of all ranks.
"""

# run: --steps 40

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import drivetrain as dt


class Carts:
    """Poles on carts (Barto, Sutton and Anderson 1983), pushed to the left (0) or right (1) fifty times a second.

    Attributes:
        state: Place, speed, angle and turning speed: `(num_carts, 4) float32`.
    """

    def __init__(self, num_carts: int, generator: torch.Generator) -> None:
        self.state = (torch.rand(num_carts, 4, generator=generator) - 0.5) / 10

    def push(self, moves: Tensor) -> None:
        _, speed, angle, turning = self.state.unbind(dim=1)
        force = 20.0 * moves - 10.0
        cos, sin = angle.cos(), angle.sin()
        pull = (force + 0.05 * turning.square() * sin) / 1.1
        bend = (9.8 * sin - cos * pull) / (0.5 * (4 / 3 - 0.1 * cos.square() / 1.1))
        gain = pull - 0.05 * bend * cos / 1.1
        self.state = self.state + 0.02 * torch.stack([speed, gain, turning, bend], dim=1)

    @property
    def stands(self) -> Tensor:
        return (self.state[:, 0].abs() < 2.4) & (self.state[:, 2].abs() < 0.21)


def play(policy: nn.Module, num_carts: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """States, moves, and whether each cart was in play before its move: `(length, num_carts, ...)`."""
    carts = Carts(num_carts, generator)
    in_play = torch.ones(num_carts, dtype=torch.bool)
    states, moves, played = [], [], []
    with torch.no_grad():
        while in_play.any() and len(states) < length:
            states.append(carts.state)
            chances = policy(carts.state).softmax(dim=1)
            moves.append(torch.multinomial(chances, 1, generator=generator).squeeze(1))
            played.append(in_play)
            carts.push(moves[-1])
            in_play = in_play & carts.stands
    return torch.stack(states), torch.stack(moves), torch.stack(played)


def rewards_to_come(played: Tensor, discount: float = 0.98) -> Tensor:
    """One for each move that the pole stands, those to come counted less."""
    sums, total = [], torch.zeros(played.shape[1])
    for row in reversed(played.float().unbind()):
        total = row * (1 + discount * total)
        sums.append(total)
    return torch.stack(sums[::-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1, help="ranks on this machine")
    parser.add_argument("--carts", type=int, default=32, help="on all ranks together")
    parser.add_argument("--length", type=int, default=200, help="moves of a cart at most")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps")
    options = parser.parse_args()

    fabric = dt.Fabric(accelerator="cpu", devices=options.devices)
    fabric.launch()
    fabric.seed_everything(1, verbose=False)
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    policy, optimizer = fabric.setup(policy, torch.optim.Adam(policy.parameters(), lr=1e-2))
    generator = torch.Generator().manual_seed(1 + fabric.global_rank)  # other carts, and other moves, on each rank
    num_carts = options.carts // fabric.world_size

    def mean_length() -> float:
        """Moves until the pole falls, over all carts of all ranks."""
        _, _, played = play(policy, num_carts, options.length, generator)
        return float(fabric.all_reduce(played.sum(dim=0).float().mean(), "mean"))

    untrained = mean_length()
    window = fabric.window(optimizer, max_norm=1.0)
    for step in range(options.steps):
        states, moves, played = play(policy, num_carts, options.length, generator)
        rewards = rewards_to_come(played)[played]
        gains = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        with window:
            loss = -(Categorical(logits=policy(states[played])).log_prob(moves[played]) * gains).mean()
            window.backward(loss, weight=len(gains))  # a rank whose carts stood longer counts for more
        if (step + 1) % 20 == 0:
            fabric.print(f"step {step + 1:3}  rank 0's carts stood for {played.sum() / num_carts:.1f} moves")

    trained = mean_length()
    fabric.print(f"moves until the pole falls {trained:.1f} (has to be above {untrained:.1f}: before training)")
    fabric.close()


if __name__ == "__main__":
    main()
