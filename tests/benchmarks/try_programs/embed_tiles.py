"""Embed the tiles of a large aerial scene with a ViT-L and assign each to its nearest land-cover prototype."""

import time

import timm
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

TILE, SCENE, STRIDE = 224, 6000, 64


class SceneTiles(Dataset):
    """Sliding windows over one uint8 scene; several passes with a shifted grid."""

    def __init__(self, passes=30):
        g = torch.Generator().manual_seed(11)
        coarse = torch.rand(1, 3, 60, 60, generator=g)
        scene = F.interpolate(coarse, size=(SCENE, SCENE), mode="bilinear")[0]
        self.scene = (scene * 255).to(torch.uint8).share_memory_()
        self.per_row = (SCENE - TILE - STRIDE) // STRIDE
        self.per_pass = self.per_row**2
        self.passes = passes

    def __len__(self):
        return self.per_pass * self.passes

    def __getitem__(self, i):
        shift, k = divmod(i, self.per_pass)
        r, c = divmod(k, self.per_row)
        r, c = r * STRIDE + shift, c * STRIDE + shift
        return self.scene[:, r : r + TILE, c : c + TILE]


@torch.inference_mode()
def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cuda = device == "cuda"
    model = timm.create_model("vit_large_patch16_224", pretrained=False, num_classes=0)
    model = model.to(device, torch.bfloat16).eval()
    prototypes = F.normalize(torch.randn(32, model.num_features, device=device, dtype=torch.bfloat16), dim=-1)
    loader = DataLoader(SceneTiles(), batch_size=64, num_workers=8 if cuda else 2, pin_memory=cuda, prefetch_factor=4)

    histogram = torch.zeros(32, dtype=torch.long, device=device)
    start = time.time()
    for step, tiles in enumerate(loader):
        x = tiles.to(device, non_blocking=True).to(torch.bfloat16)
        x = x.div_(127.5).sub_(1.0)
        z = F.normalize(model(x), dim=-1)
        nearest = (z @ prototypes.T).argmax(-1)
        histogram.scatter_add_(0, nearest, torch.ones_like(nearest))
        if step % 200 == 0:
            n = int(histogram.sum())
            print(f"batch {step}: {n} tiles, {n / (time.time() - start):.0f} tiles/s", flush=True)


if __name__ == "__main__":
    main()
