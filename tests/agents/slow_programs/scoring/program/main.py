import torch

from scorer import ReviewScorer
from tokens import VOCAB, Tokenizer, make_reviews

torch.set_num_threads(1)

N_REVIEWS = 1536
BATCH = 24
MAX_LENGTH = 256


def chunks(rows, size):
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def score(model, tokenizer, reviews):
    encoded = [(tokenizer.encode(r["text"]), r["id"]) for r in reviews]
    encoded.sort(key=lambda pair: len(pair[0]))
    results = {}
    for chunk in chunks(encoded, BATCH):
        model.eval()
        ids, mask = tokenizer.batch([seq for seq, _ in chunk])
        ids = torch.tensor(ids, dtype=torch.long)
        mask = torch.tensor(mask, dtype=torch.bool)
        with torch.no_grad():
            probs = torch.softmax(model(ids, mask), dim=1)
        for row, (_, rid) in zip(probs, chunk):
            results[rid] = {
                "negative": row[0].item(),
                "neutral": row[1].item(),
                "positive": row[2].item(),
            }
    return results


def summarise(results):
    total = 0.0
    counts = {"negative": 0, "neutral": 0, "positive": 0}
    for rid in sorted(results):
        entry = results[rid]
        total += entry["positive"] - entry["negative"] + (rid % 7) * 0.01 * entry["neutral"]
        counts[max(entry, key=entry.get)] += 1
    return total, counts


def main():
    torch.manual_seed(31)
    reviews = make_reviews(N_REVIEWS, seed=32)
    tokenizer = Tokenizer(MAX_LENGTH)
    model = ReviewScorer(VOCAB, max_length=MAX_LENGTH)
    results = score(model, tokenizer, reviews)
    total, counts = summarise(results)
    print("checksum %.8f" % (abs(total) + counts["positive"] * 1e-3 + len(results)))


if __name__ == "__main__":
    main()
