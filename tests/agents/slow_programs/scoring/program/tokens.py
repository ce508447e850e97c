import random
import zlib

VOCAB = 4000
PAD = 0
SUFFIXES = ["", "s", "ed", "ing", "er"]


def make_reviews(n, seed):
    rng = random.Random(seed)
    stems = ["w%03d" % i for i in range(700)]
    reviews = []
    for i in range(n):
        n_words = min(240, max(5, int(rng.lognormvariate(4.2, 0.6))))
        words = [rng.choice(stems) + rng.choice(SUFFIXES) for _ in range(n_words)]
        reviews.append({"id": i, "text": " ".join(words)})
    return reviews


class Tokenizer:
    def __init__(self, max_length):
        self.max_length = max_length

    def word_id(self, word):
        return 1 + zlib.crc32(word.encode()) % (VOCAB - 1)

    def encode(self, text):
        return [self.word_id(w) for w in text.lower().split(" ")][: self.max_length]

    def batch(self, sequences):
        ids, mask = [], []
        for seq in sequences:
            fill = self.max_length - len(seq)
            ids.append(seq + [PAD] * fill)
            mask.append([1] * len(seq) + [0] * fill)
        return ids, mask
