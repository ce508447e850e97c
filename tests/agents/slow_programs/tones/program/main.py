import copy

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from data import ToneDataset
from model import ToneNet

EPOCHS = 17
N_CLASSES = 6


def grad_norm(model):
    total = 0.0
    for p in model.parameters():
        if p.grad is not None:
            total += p.grad.norm().item() ** 2
    return total**0.5


def evaluate(model, loader):
    model.eval()
    correct, seen = 0, 0
    with torch.no_grad():
        for x, y in loader:
            pred = model(x).argmax(dim=1)
            correct += (pred == y).sum().item()
            seen += y.numel()
    return correct / seen


def main():
    torch.set_num_threads(1)
    torch.manual_seed(11)
    train_set = ToneDataset(320, N_CLASSES, seed=1)
    valid_set = ToneDataset(96, N_CLASSES, seed=2)
    gen = torch.Generator().manual_seed(5)
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True, generator=gen, num_workers=0)
    valid_loader = DataLoader(valid_set, batch_size=48, num_workers=0)

    model = ToneNet(N_CLASSES)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses, norms, accs = [], [], []
    best_acc, best_state = -1.0, None

    for epoch in range(EPOCHS):
        model.train()
        for x, y in train_loader:
            opt.zero_grad(set_to_none=False)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            norms.append(grad_norm(model))
            opt.step()
            losses.append(loss.item())
        acc = evaluate(model, valid_loader)
        accs.append(acc)
        if acc >= best_acc:
            best_acc = acc
            best_state = copy.deepcopy(model.state_dict())

    model.load_state_dict(best_state)
    final = sum(losses[-12:]) + sum(accs) + sum(norms) / len(norms)
    final += sum(p.abs().sum().item() for p in model.parameters())
    print(f"checksum {final:.6f}")


if __name__ == "__main__":
    main()
