"""For Hugging Face's Trainer: `Trainer(..., callbacks=[Record("out/")])`."""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from advisor.lab.record import record


class Record(TrainerCallback):
    """Records optimizer steps of the first rank as `advisor.record` does; `stop` ends the training once all is recorded."""

    def __init__(self, directory: str | os.PathLike[str], *, stop: bool = False, **options: int) -> None:
        self.run = record(directory, **options)
        self.stop = stop

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.run.__enter__()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.run.step()
            control.should_training_stop |= self.stop and self.run.done

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.run.finish()
