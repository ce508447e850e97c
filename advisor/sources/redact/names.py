"""Parts of names that may be given away: names of frameworks, compilers and drivers stay, all others are replaced.

A report is about names of kernels, ops, functions and files. They stay if they are written like such names, with anything masked
that looks like a secret, a path, an address or an account. Free text (ranges, threads, groups) stays
if each word of it is among a few hundred words that identify nobody."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import lru_cache
from itertools import count

from advisor.knowledge import devices
from advisor.knowledge.framework_ranges import BY_FRAMEWORK
from advisor.knowledge.secrets import masked
from advisor.knowledge.server_marks import server_step

CACHED = 1 << 16  # texts: a trace has some thousands of different names

# Known of a range's text: what torch, its compiler, JAX and the profilers themselves open.
_FRAMEWORK = re.compile(
    r"ProfilerStep\s?#?\s?\d{1,9}|PyTorch Profiler \(\d{1,3}\)|Optimizer\.(?:step|zero_grad)#\w{1,40}\.(?:step|zero_grad)"
    r"|enumerate\(DataLoader\)#_?(?:SingleProcess|MultiProcessing|MultiProcess)DataLoaderIter\.__next__|DistributedDataParallel\.forward"
    r"|(?:nccl|gloo|mpi|ucc):_?(?:[a-z]{2,12}_?){1,6}|c10d::_?(?:[a-z]{2,12}_?){1,6}|## Call CompiledFxGraph \w{1,60} ##|Torch-Compiled Region: \d{1,6}/\d{1,6}"
    r"|[\w.<>]{1,120} \(dynamo_timed\)|\w{1,80}: (?:fn_name=[\w.<>]{1,120}, )?compile_id=\[?\d{1,6}/\d{1,6}\]?|entire_frame_compile|backend_compile\w{0,20}|inductor_compile|fx_codegen_and_compile"
    r"|TorchDynamo Cache Lookup|Pregraph bytecode|AOTDispatcher Runtime Wrapper Prologue|PJRT_Client_Compile|(?:PjRt|PyArray|Gpu|Thunk|Xla|Tfrt|Pjit|Common|Stream)\w{2,60}(?:::\w{2,60}){0,4}"
    r"|(?:\[\d{1,4}\] )?(?:ThenExecuteCallback:)?(?:PjRt|PJRT_|PyArray|Gpu|CommonPjRt|Stream|Transpose::)\w{2,60}(?:::\w{2,60}){0,3}(?: linkage)?"
    r"(?: ?\((?:jit_?[\w.<>]{1,100}|\w{1,10}\[[\d,]{0,60}\])\))?"
    r"|H2D Dispatch|Build buffer allocations|Wait for (?:usage|donation) holds|Handle inputs?(?: event recording)?|ParseArguments|DevicePut"
    r"|ComputeSemaphoreAcquire \[capacity=\d{1,6}, value=\d{1,6}\]|[\w.<>]{1,100}:XLA GPU module"
    r"|np\.asarray\(jax\.Array\)|BlockHostUntilReady|(?:ACTIVITY_)?BUFFER_\w{1,20}|<UNKNOWN>|DRIVER_COMPILER|INSTRUMENTATION|RESOURCE"
    r"|Lazy Function Loading|Runtime Triggered Module Loading|Command Buffer Full|Buffer Flush|Activity Buffer Request|Instrumentation"
)
_WORDS = frozenset(
    ["a", "aa", "accumulate", "activation", "activations", "active", "adam", "adamw", "after", "all", "amp", "and", "attention", "attn", "augment", "autocast", "await", "backward", "base", "batch", "before", "begin", "bench", "benchmark", "bf16", "bias", "block", "buffer", "build", "cache", "call", "capture", "checkpoint", "chunk", "clip", "collate", "collect", "collective", "comm", "communication", "compile", "compiled", "compute", "conv", "copy", "cpu", "cuda", "d2d", "d2h", "data", "dataloader", "dataset", "decode", "decoder", "device", "dispatch", "dot", "down", "dropout", "embed", "embedding", "encode", "encoder", "end", "epoch", "eval", "evaluate", "evaluation", "event", "exec", "execute", "expert", "experts", "fetch", "fetching", "ffn", "finish", "first", "flush", "fn", "forward", "fp16", "fp32", "fp8", "func", "function", "fused", "fwd", "bwd", "gate", "gather", "gc", "gemm", "generate", "get", "global", "gpu", "grad", "gradient", "gradients", "graph", "group", "h2d", "head", "heads", "host", "idle", "in", "inference", "init", "input", "inputs", "iter", "iteration", "iterations", "kernel", "key", "kv", "last", "layer", "layers", "linear", "lm", "load", "loader", "loading", "local", "log", "logits", "loop", "loss", "lr", "main", "make", "mask", "matmul", "measure", "measured", "memory", "micro", "microbatch", "microstep", "mlp", "model", "module", "moe", "move", "next", "no", "norm", "normalize", "not", "of", "off", "on", "op", "optim", "optimizer", "opt", "out", "output", "outputs", "p2p", "pack", "parallel", "param", "parameters", "params", "phase", "pin", "pinned", "pipeline", "post", "pre", "predict", "prefetch", "prefill", "prepare", "preprocess", "print", "process", "profile", "profiler", "proj", "projection", "prologue", "query", "queue", "rank", "read", "ready", "recv", "reduce", "request", "requests", "reset", "run", "sample", "sampler", "sampling", "scale", "scaler", "schedule", "scheduler", "score", "scores", "second", "send", "serve", "setup", "shard", "shuffle", "softmax", "stage", "start", "state", "step", "steps", "stop", "store", "stream", "sum", "sync", "synchronize", "task", "tensor", "test", "timed", "time", "timing", "to", "token", "tokenize", "tokens", "top", "torch", "total", "train", "trainer", "training", "transfer", "transform", "unpack", "up", "update", "val", "valid", "validate", "validation", "value", "values", "wait", "warm", "warmup", "weight", "weights", "window", "with", "work", "worker", "write", "zero", "python", "pt", "autograd", "thread", "default", "pg", "dp", "tp", "pp", "ep", "cp", "ddp", "fsdp", "rl"]
)  # fmt: skip
"""Words for names of ranges and threads: activities of such programs, and nobody's name."""

_SERVER_WORDS = frozenset(
    ["execute", "context", "generation", "new", "cached", "sq", "sk", "sqsq", "sqsk", "executor", "forward", "step", "ctx", "reqs", "tokens", "gen", "bs", "toks", "decode",
     "extend", "mixed", "target", "verify", "draft", "idle"]
)  # fmt: skip
"""Words of inference servers' marks, besides numbers."""

_DEVICE_PROCESSES = frozenset(["ascend", "hardware", "cann", "npu", "xpu", "hpu", "mtia", "overlap", "analysis", "communication", "python", "cpu", "gpu"])
"""Words in names of processes, by profilers of devices without CUDA."""

_TOKENS = re.compile(r"[A-Za-z]+\d{0,2}|\d+|[^A-Za-z\d]+")
_BETWEEN = re.compile(r"[ _\-:#./()\[\]=,|>&+]{1,4}")
_NUMBER_AT_END = re.compile(r"(?<!\d)\d{1,6}$")
_SYMBOL = re.compile(r"[A-Za-z_~][\w~]*(?:(?:::|\.)[\w~<>]+)*")
_OP_PREFIX = re.compile(r"(?:autograd::engine::evaluate_function: |torch::autograd::|fwd\.|bwd\.)?")
_KERNEL = re.compile(r"[\w:<>,.*&()\[\]{}#~ +\-]+(?: = [\w:<>,.*&()\[\]{}#~ +\-]+)*")
_FUNCTION = re.compile(r"<?[A-Za-z_]\w*>?(?:\.<?\w+>?)*")
_BUILT_IN = re.compile(r"<built-in (?:method|function) [\w.]+(?: of [\w.]+ object(?: at 0x[0-9a-fA-F]+)?)?>|nn\.Module: \w+")
_FILE = re.compile(r"[\w@+-][\w.@+-]*\.[A-Za-z][A-Za-z0-9]{0,7}|<(?:frozen )?[\w. ]{1,60}>|\?\?")
_DEVICE = re.compile(r"[A-Za-z\d]+(?:[ -][A-Za-z\d]+)*")
_DEVICE_WORD = re.compile(
    r"NVIDIA|AMD|Intel|Tesla|GeForce|Quadro|RTX|GTX|TITAN|Instinct|Radeon|Graphics|PCIe|PCI|SXM\d?|OAM|NVL|HBM\de?|Ada|Generation|Laptop|GPU|Ti|SUPER|Super|Max-Q|MIG"
    r"|\d{1,4}g?\.?\d{0,3}gb|\d{1,4}GB|[A-Z]{1,3}\d{1,4}[A-Z]{0,2}|MI\d{2,3}[A-Z]?|\d{2,5}|Xe|Data|Center|Max|TPU|Lite|v\d[a-z]{0,2}"
)
_VERSION = re.compile(r"\d{1,5}(?:\.\d{1,6}){0,4}(?:(?:[.+-]|rc|a|b)[a-z]{0,3}\d{1,6}){0,2}")

# Where libraries begin in a path: what follows says whose code it is, and the same on every machine.
_LIBRARY = re.compile(r"\A(?:.*/)?((?:site-packages|dist-packages|lib/python\d[\d.]*)/.*)", re.DOTALL)
_TORCH = re.compile(
    r"\A(?:.*/)?(torch/(?:_?(?:nn|optim|utils|autograd|cuda|distributed|dynamo|inductor|functorch|fx|amp|profiler|backends|jit|ao|export|library|compiler|linalg|fft"
    r"|special|sparse|overrides|random|multiprocessing|distributions|masked|nested|onnx|package|quantization|testing|accelerator|higher_order_ops|prims\w*|refs"
    r"|decomp|subclasses|dispatch|logging|numpy|guards|ops|tensor\w*|vmap_internals|lobpcg|lowrank|meta_registrations|storage_docs|weights_only_unpickler)/[^/].*"
    r"|_?[a-z_]{1,40}\.py))",
    re.DOTALL,
)
# Paths that profilers have already cut to where a package begins.
_PACKAGE = re.compile(
    r"((?:jax|jaxlib|flax|optax|triton|numpy|scipy|pandas|transformers|accelerate|deepspeed|datasets|diffusers|lightning|pytorch_lightning|torchvision|torchaudio"
    r"|torchtext|apex|xformers|flash_attn|bitsandbytes|timm|vllm|sglang|einops|tensorflow|keras|horovod|megatron|peft|trl|tokenizers|safetensors|PIL|cv2)/.*)"
)
_STANDARD = re.compile(rf"((?:{'|'.join(sorted(sys.stdlib_module_names))})/[a-z_]{{1,40}}\.py)")
_SEGMENTS = re.compile(r"[\w.@+<> -]+(?:/[\w.@+<> -]+)*")

# Whatever letters they are glued to: `on10.0.0.5x`, `rank0_gpu-7.corp.example_mm`.
_ADDRESS = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s\"'<>]+"
    r"|[\w.+-]{1,64}@(?!(?:plt|@|GLIBC))[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*"
    r"|(?<!\d)(?<!\d\.)(?:\d{1,3}\.){3}\d{1,3}(?!\d|\.\d)|\b(?:ip|ec2)(?:[-_]\d{1,3}){4}(?!\d)"
    r"|(?<!:)(?:[0-9A-Fa-f]{1,4}:){4,7}[0-9A-Fa-f]{1,4}(?![0-9A-Fa-f:])"
    r"|(?:2[0-9A-Fa-f]{3}|[Ff][Ee]80|(?<![A-Za-z0-9_])[Ff][CcDd]\d[0-9A-Fa-f])(?:::?[0-9A-Fa-f]{1,4}){1,7}(?![0-9A-Fa-f:])"
    r"|(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}"
)
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(
    # Domains that no program's own name ends in, then those that one may hold in its midst (`protobuf.internal.decoder`), and a few of countries.
    rf"(?:{_LABEL}\.){{1,8}}(?:com|org|edu|gov|corp|localdomain|intranet|example|arpa)(?![A-Za-z0-9-])"
    rf"|(?:{_LABEL}\.){{1,8}}(?:internal|lan|local|intra|cloud)(?![A-Za-z0-9.-])"
    rf"|(?:{_LABEL}\.){{2,8}}(?:net|io|ai|dev|info|ar|au|br|ca|ch|cn|cz|de|dk|es|eu|fi|fr|gr|hk|hu|ie|il|jp|kr|lu|mx|nl|nz|pl|ru|se|sg|tr|tw|uk|us|za)(?![A-Za-z0-9.-])"
)
"""A machine's name without an address around it."""
_ACCOUNT = re.compile(
    r"(?P<is>(?<![A-Za-z])(?:user|user_?name|logname|login|account|owner)(?:=|[\"']\s{0,2}:\s{0,2})[\"']?)(?P<value>[\w.@-]{2,64})", re.IGNORECASE
)
_HOME = re.compile(r"(?:/home/|/Users/|\\Users\\|(?<![\w~])~)([A-Za-z][\w.-]{0,63})")
_OF_EVERYBODY = frozenset({"root", "ubuntu", "user", "users", "admin", "shared", "public", "jovyan", "runner", "debian", "ec2-user", "localhost"})
_SHORTEST_KNOWN = 4
"""Least characters of a name that is masked everywhere: a shorter name is a part of too many words."""
_DIGITS_OF_ONE = 3
"""Of a plain word with a number: devices and threads of a machine have no more than two."""
_ANY_PATH = re.compile(r"(?<![\w<>~])(?:~[\w.-]{0,40}/|/(?![\s/*=>])|[A-Za-z]:[\\/]|\\\\)[^\s\"',;|()<>]+")

SEEN = "redacted"

_KINDS = ("kernel", "op", "call", "range", "frame", "frames", "thread", "path", "directory", "group")
"""Characters of a name that are checked at once."""


def accounts(text: str) -> set[str]:
    """Owners of directories in a text: `lovelace` of `/home/lovelace/x`."""
    return set(_HOME.findall(text)) if "~" in text or "home/" in text or "Users" in text else set()


class Names:
    """Gives names. Equal names get equal new names, and different names get different new names.

    New names have no digits of their own, because many views treat names as equal if they differ only in numbers."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], str] = {}
        self._count: dict[str, count[int]] = {}
        self._known: dict[str, re.Pattern[str]] = {}
        for kind in _KINDS:
            setattr(self, kind, lru_cache(maxsize=CACHED)(getattr(self, kind)))

    def know(self, *people_or_machines: str) -> None:
        """From here on these are masked everywhere: they look like other words, but a recording's file or its paths identified them."""
        for name in people_or_machines:
            low = name.lower()
            plain = _plain_words(low) and sum(map(str.isdigit, low)) < _DIGITS_OF_ONE  # `gpu0` is no machine, `gpu0423` is
            if len(low) >= _SHORTEST_KNOWN and low not in _OF_EVERYBODY and not plain:
                self._known[low] = re.compile(rf"(?<![A-Za-z0-9]){re.escape(low)}(?![A-Za-z])", re.IGNORECASE)
        for kind in _KINDS:
            getattr(self, kind).cache_clear()

    def given(self, kind: str, name: str) -> str:
        """A new name for a name that cannot stay: `range-a`, `range-b` …"""
        key = kind, name
        found = self._given.get(key)
        if found is None:
            found = self._given[key] = f"{kind}-{_letters(next(self._count.setdefault(kind, count())))}"
        return found

    def kernel(self, name: str) -> str:
        """A kernel, a copy or a memset, in the form of C++, Triton or a driver."""
        clean = self.plain(name)
        return clean if _KERNEL.fullmatch(clean) else self.given("kernel", name) if name else ""

    def op(self, name: str) -> str:
        """An op of a framework: `aten::mm`, `MyFunctionBackward`. Any other form is a range."""
        clean = self.plain(name)
        prefix = _OP_PREFIX.match(clean)
        return clean if _SYMBOL.fullmatch(clean, prefix.end() if prefix else 0) else self.range(name)

    def call(self, name: str) -> str:
        """A function of a driver or the operating system."""
        clean = self.plain(name)
        return clean if _SYMBOL.fullmatch(clean) else self.given("call", name) if name else ""

    def range(self, name: str) -> str:
        """Someone's name for a part of a program: kept if a framework or plain words made it, else only its number."""
        if not name or _FRAMEWORK.fullmatch(name) or _plain_words(name) or _of_server(name):
            return name
        clean = self.plain(name)
        if "::" in clean and _SYMBOL.fullmatch(clean):
            return clean
        number = _NUMBER_AT_END.search(name)
        given = self.given("range", name[: number.start()] if number else name)
        if BY_FRAMEWORK.search(name):  # else it could pass for a step of the program's own
            given = f"[{given}]"
        return f"{given} {number[0]}" if number else given

    def thread(self, name: str) -> str:
        return name if _plain_words(name) else self.given("thread", name)

    def process(self, name: str) -> str:
        """A trace's name of a process: a kind of device, or plain words."""
        return name if _plain_words(name) or words(name, _DEVICE_PROCESSES) else self.given("process", name)

    def rank(self, name: str) -> str:
        """The name of a rank in a merge of several, with its brackets: `[TP00-DP01]`, `rank0`."""
        return name if _plain_words(name) else f"[{self.given('rank', name)}]"

    def group(self, name: str) -> str:
        """A process group's name."""
        return name if name.isascii() and ((name.isdigit() and len(name) < 7) or _plain_words(name)) else self.given("group", name) if name else ""

    def frame(self, name: str) -> str:
        """A call of Python: `file(line): function`, `<built-in …>`, `nn.Module: Linear_0`."""
        if _BUILT_IN.fullmatch(name):
            return self.plain(name)
        file, line, function = _parts(name)
        if not line:
            return self.given("call", name) if name else ""
        return f"{self.path(file)}({line}): {self.function(function)}"

    def frames(self, stack: str) -> str:
        """A call stack, frames between semicolons."""
        return ";".join(self.frame(frame.strip()) for frame in stack.split(";")) if stack else ""

    def function(self, name: str) -> str:
        """A function of Python or C++."""
        clean = self.plain(name)
        return clean if _FUNCTION.fullmatch(clean) or _KERNEL.fullmatch(clean) else self.given("function", name) if name else ""

    def path(self, name: str) -> str:
        """A file: libraries from their own directory on, all others by a new directory name and a new name."""
        at = name.replace("\\", "/")
        for library in (_LIBRARY, _TORCH, _PACKAGE, _STANDARD):
            if (match := library.fullmatch(at)) and ".." not in match[1] and _SEGMENTS.fullmatch(match[1]) and self.plain(match[1]) == match[1]:
                return match[1]
        directory, slash, file = at.rpartition("/")
        shown = file if _FILE.fullmatch(file) and self.plain(file) == file and "@" not in file else self.given("file", file) if file else ""
        return f"{self.directory(directory)}/{shown}" if slash else shown

    def directory(self, name: str) -> str:
        """A new name, with its own last part if that is a plain word: `optim` shows the code's purpose."""
        above, _, last = name.rpartition("/")
        return f"{self.given('src', above)}/{last}" if above and _plain_words(last) else self.given("src", name)

    def plain(self, text: str) -> str:
        """The text with secrets, addresses, machines, accounts and paths in it masked."""
        text = masked(text, SEEN)
        dots, colons = text.count("."), text.count(":")
        if "@" in text or dots > 2 or colons > 2 or text.count("-") > 3 or text.count("_") > 3:
            text = _ADDRESS.sub(SEEN, text)
        text = _HOST.sub(SEEN, text) if dots else text
        text = _ACCOUNT.sub(rf"\g<is>{SEEN}", text) if "=" in text or colons else text
        text = _ANY_PATH.sub(SEEN, text) if "/" in text or "\\" in text else text
        for known, anywhere in self._known.items():
            if known in text.lower():
                text = anywhere.sub(SEEN, text)
        return text


def device(name: str) -> str:
    """A device's name: whole if its rates are known, since they are looked up by it, else only the words of vendors.

    That look-up ignores punctuation: a name with unusual punctuation is written as in devices.toml."""
    if known := devices.find(name):
        return name if _DEVICE.fullmatch(name) else next(spelled for spelled in known.names if devices.same_device(spelled, name))
    return " ".join(word for word in name.split() if _DEVICE_WORD.fullmatch(word))


def version(text: object) -> object:
    """A version; None for other texts."""
    return text if type(text) is int or (isinstance(text, str) and len(text) < 40 and _VERSION.fullmatch(text)) else None


def known_text(known: Callable[[str], object], text: str) -> str:
    """The text if it is known, else nothing."""
    return text if known(text) else ""


def words(text: str, known: frozenset[str]) -> str:
    """The text if each of its words is known, in upper or lower case, else nothing."""
    return text if all(word.lower() in known for word in re.findall(r"[^\W_]+", text)) and len(text) < 80 and text.isascii() else ""


def _of_server(text: str) -> bool:
    """Whether a text is the mark of a server's step, which nobody else words."""
    return bool(server_step(text)) and {*re.findall(r"[^\W\d_]+", text.lower())} <= _SERVER_WORDS


def _plain_words(text: str) -> bool:
    """Whether a text is made of plain words and short numbers."""
    if len(text) > 80 or not text.isascii() or text.count(".") > 2 or text.count(":") > 3:  # addresses are numbers too
        return False
    return all(
        len(token) < 7
        if token.isdigit()
        else token.rstrip("0123456789").lower() in _WORDS or token.lower() in _WORDS
        if token[0].isalpha()
        else _BETWEEN.fullmatch(token)
        for part in _humps(text)
        for token in _TOKENS.findall(part)
    )


_HUMP = re.compile(r"(?<=[a-z\d])(?=[A-Z])")


def _humps(text: str) -> list[str]:
    """camelCase taken apart."""
    return _HUMP.split(text)


def _parts(frame: str) -> tuple[str, str, str]:
    """File, line and function of `file(line): function`; no line if it is no such frame."""
    at = frame.find("): ")
    opened = frame.rfind("(", 0, at) if at > 0 else -1
    line = frame[opened + 1 : at] if opened > 0 else ""
    return (frame[:opened], line, frame[at + 3 :]) if line.isascii() and line.isdigit() and len(line) < 9 else (frame, "", "")


def _letters(n: int) -> str:
    """a, b … z, aa, ab …"""
    text = ""
    n += 1
    while n:
        n, letter = divmod(n - 1, 26)
        text = chr(97 + letter) + text
    return text
