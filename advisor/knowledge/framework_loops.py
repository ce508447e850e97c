"""Frameworks as Python imports them, and the classes that run their loops: what the recorder looks for in the program that it records.

It imports nothing, since it is loaded inside of other people's programs.
"""

MODEL = "Model"
"""In place of a loop: models of the framework, which a loop of the user's own, or of another framework, drives."""

LOOPS: dict[str, tuple[str, dict[str, str]]] = {
    "transformers": ("transformers", {"Trainer": "transformers.trainer:Trainer", MODEL: "transformers.modeling_utils:PreTrainedModel"}),
    "accelerate": ("accelerate", {"Accelerator": "accelerate.accelerator:Accelerator"}),
    "lightning": ("lightning", {"Trainer": "lightning.pytorch.trainer.trainer:Trainer"}),
    "deepspeed": ("deepspeed", {"DeepSpeedEngine": "deepspeed.runtime.engine:DeepSpeedEngine"}),
    "torchtitan": ("torchtitan", {"Trainer": "torchtitan.trainer:Trainer"}),
    "megatron-core": ("megatron.core", {"DistributedDataParallel": "megatron.core.distributed.distributed_data_parallel:DistributedDataParallel"}),
    "diffusers": ("diffusers", {"Pipeline": "diffusers.pipelines.pipeline_utils:DiffusionPipeline", MODEL: "diffusers.models.modeling_utils:ModelMixin"}),
    "ultralytics": ("ultralytics", {"Trainer": "ultralytics.engine.trainer:BaseTrainer", "Predictor": "ultralytics.engine.predictor:BasePredictor"}),
    "timm": ("timm", {MODEL: "timm.models:"}),
    "peft": ("peft", {MODEL: "peft.peft_model:PeftModel"}),
    "torchao": ("torchao", {}),
    "vllm": ("vllm", {"Engine": "vllm.v1.engine.core:EngineCore"}),
    "sglang": ("sglang", {"Scheduler": "sglang.srt.managers.scheduler:Scheduler"}),
    "tensorrt-llm": ("tensorrt_llm", {"PyExecutor": "tensorrt_llm._torch.pyexecutor.py_executor:PyExecutor"}),
    "jax": ("jax", {}),
    "flax": ("flax", {MODEL: "flax.linen:Module", "nnx": "flax.nnx:Module"}),
    "equinox": ("equinox", {MODEL: "equinox:Module"}),
    "maxtext": ("maxtext", {"train": "maxtext.trainers:"}),
}
"""By package on PyPI: the module, and the loops by name, each as `module:Class`. A loop runs
where an object of its class, or of one made from it, is alive; without a class, an object of any class that a module below that one defines."""
