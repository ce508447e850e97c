import torch

from agent import Agent
from env import DriftField
from memory import Replay

torch.set_num_threads(1)

N_ENVS = 48
DIM = 64
N_ACTIONS = 9
STEPS = 700
WARMUP = 32
BATCH = 128
CAPACITY = 40000


def main():
    torch.manual_seed(11)
    gen = torch.Generator().manual_seed(12)
    env = DriftField(N_ENVS, DIM, N_ACTIONS, seed=13)
    agent = Agent(DIM, N_ACTIONS)
    memory = Replay(CAPACITY, DIM)

    losses, rewards = [], []
    obs = env.observe()
    for step in range(STEPS):
        eps = max(0.05, 1.0 - step / 800)
        action = agent.act(obs, eps, gen)
        nxt, reward, done = env.step(action)
        memory.add(obs, action, reward, nxt, done)
        obs = env.observe()
        rewards.append(float(reward.mean()))
        if step >= WARMUP:
            losses.append(agent.learn(memory.sample(BATCH, gen)))
        if step % 25 == 0:
            agent.sync()

    tail = torch.tensor(rewards[-500:]).mean().item()
    loss = sum(losses) / len(losses)
    print("checksum %.8f" % (abs(tail) + 10 * loss))


if __name__ == "__main__":
    main()
