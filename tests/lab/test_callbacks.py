"""Against the real frameworks, where they are installed."""

import json

import pytest

torch = pytest.importorskip("torch")

import advisor  # noqa: E402

FEW = {"warmup": 1, "settle": 0, "timed": 3, "light": 2, "deep": 2}


@pytest.fixture(autouse=True)
def soon_timed(monkeypatch):
    monkeypatch.setattr("advisor.lab.record.TIMED_S", 0.0)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, i):
        return {"x": torch.ones(8), "labels": torch.ones(1)}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x, labels=None):
        out = self.layer(x)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}


def assert_recorded(directory, op="aten::addmm"):
    saved = json.loads((directory / "recording.json").read_text())
    assert len(saved["unprofiled_step_us"]) >= 3 and saved["notes"] == []
    for name in ("light", "deep"):
        timeline = advisor.load(directory / saved[name])
        assert sum(name.startswith("ProfilerStep#") for name in timeline.annotations["name"]) == 2
        assert (timeline.cpu_ops["name"] == op).sum() == 2, "one forward a step"


def test_lightning(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")
    from advisor.lab.callbacks.lightning import Record

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, index):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    callback = Record(tmp_path / "out", stop=True, **FEW)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", callbacks=[callback], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(Numbers(), batch_size=4))
    assert_recorded(tmp_path / "out")
    assert trainer.global_step < 100, "it was asked to stop"


def test_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from advisor.lab.callbacks.transformers import Record

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "model"), max_steps=90, per_device_train_batch_size=4, report_to=[], use_cpu=True,
        save_strategy="no", logging_strategy="no", disable_tqdm=True, remove_unused_columns=False,
    )  # fmt: skip
    trainer = transformers.Trainer(Net(), arguments, train_dataset=Numbers(), callbacks=[Record(tmp_path / "out", stop=True, **FEW)])
    trainer.train()
    assert_recorded(tmp_path / "out")
    assert trainer.state.global_step < 90, "it was asked to stop"


def test_accelerate_needs_no_callback(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    net, optimizer, loader = accelerator.prepare(net, optimizer, torch.utils.data.DataLoader(Numbers(), batch_size=4))
    with advisor.record(tmp_path, **FEW) as run:
        for batch in run.steps(loader):
            optimizer.zero_grad()
            accelerator.backward(net(**batch)["loss"])
            optimizer.step()
    assert_recorded(tmp_path)
