"""A program that profiles itself, long after all is recorded."""

import torch
from loop import train, trained

print(trained(steps=70))
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profiler:
    for _ in train(steps=3):
        pass
print({event.key: event.count for event in profiler.key_averages() if event.key == "aten::linear"})
