import torch

from imaging import FrameSource
from pipeline import Predictor

BATCHES = 70
BATCH_SIZE = 18


def summarise(probs, entropy):
    row = {}
    for c in range(probs.shape[1]):
        row[f"p{c}"] = probs[:, c].mean().item()
    row["entropy"] = entropy.mean().item()
    row["confident"] = probs.max(dim=1).values.mean().item()
    return row


def main():
    torch.set_num_threads(1)
    torch.manual_seed(51)
    source = FrameSource(BATCHES, BATCH_SIZE, seed=23)
    predictor = Predictor(seed=29)

    rows = []
    everything = []
    for x in source:
        probs, entropy = predictor(x)
        rows.append(summarise(probs, entropy))
        everything.append(probs.clone())

    table = torch.cat(everything)
    weights = torch.arange(1, table.shape[1] + 1).to(table.dtype)
    final = (table.mean(dim=0) * weights).sum().item()
    final += sum(r["entropy"] for r in rows) / len(rows)
    final += sum(r["confident"] for r in rows) / len(rows)
    print(f"checksum {final:.6f}")


if __name__ == "__main__":
    main()
