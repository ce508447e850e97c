"""timm's ConvNeXt on batches of images, in float32."""

import timm
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
model = timm.create_model("convnext_atto" if device == "cpu" else "convnext_base").to(device).eval()
images = torch.randn(1 if device == "cpu" else 32, 3, 224, 224, device=device)
with torch.inference_mode():
    for _ in range(5000):
        model(images)
