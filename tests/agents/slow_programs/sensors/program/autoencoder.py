import torch.nn as nn


class AutoEncoder(nn.Module):
    def __init__(self, n_in, hidden, code):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(n_in, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, code),
        )
        self.decoder = nn.Sequential(
            nn.Linear(code, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, n_in),
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))
