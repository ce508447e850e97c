"""For Lightning: `Trainer(callbacks=[Record("out/")])`."""

from __future__ import annotations

import os
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from advisor.lab.record import record


class Record(Callback):
    """Records training batches of the first rank as `advisor.record` does; `stop` ends the training once all is recorded."""

    def __init__(self, directory: str | os.PathLike[str], *, stop: bool = False, **options: int) -> None:
        self.run = record(directory, **options)
        self.stop = stop

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self.run.__enter__()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.is_global_zero:
            self.run.step()
            trainer.should_stop |= self.stop and self.run.done

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self.run.finish()
